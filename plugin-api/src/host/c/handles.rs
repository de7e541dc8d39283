//! Host handles that a plugin holds: constants, and graphs that run with the reference kernels.

use crate::constant::Constant;
use crate::executable::Executable;
use crate::guard::guard;
use crate::tensor::Tensor;
use std::ffi::c_char;
use std::sync::Arc;

/// Constant handle of a C plugin, always in an `Arc` whose reference count the plugin controls.
pub struct CConstant(pub Constant);

impl CConstant {
    /// Creates a handle to a constant.
    pub fn new(constant: &Constant) -> Arc<CConstant> {
        Arc::new(CConstant(constant.clone()))
    }
}

/// Returns the constant behind a plugin's handle; `None` for a null pointer.
fn constant<'a>(handle: *const CConstant) -> Option<&'a Constant> {
    // SAFETY: the plugin passes null or a handle that it has not released.
    unsafe { handle.as_ref() }.map(|handle| &handle.0)
}

pub unsafe extern "C" fn constant_tensor(handle: *const CConstant, tensor: *mut Tensor) {
    if let (Some(constant), false) = (constant(handle), tensor.is_null()) {
        // SAFETY: the plugin passes a valid output pointer.
        unsafe { tensor.write(*constant.tensor().raw()) };
    }
}

pub unsafe extern "C" fn constant_digest(handle: *const CConstant, text: *mut c_char, size: usize) -> usize {
    constant(handle).map_or(0, |constant| run_guarded(|| write_text(&constant.digest(), text, size)))
}

pub unsafe extern "C" fn constant_name(handle: *const CConstant, text: *mut c_char, size: usize) -> usize {
    constant(handle).map_or(0, |constant| run_guarded(|| write_text(constant.name(), text, size)))
}

/// Writes a NUL-terminated text into a plugin's buffer, truncated to its `size`, and returns the untruncated length.
fn write_text(source: &str, text: *mut c_char, size: usize) -> usize {
    if size > 0 && !text.is_null() {
        let len = source.floor_char_boundary(size - 1);
        // SAFETY: the plugin guarantees `size` writable bytes, and `len` is less than `size`.
        unsafe {
            std::ptr::copy_nonoverlapping(source.as_ptr(), text.cast(), len);
            text.add(len).write(0);
        }
    }
    source.len()
}

pub unsafe extern "C" fn constant_retain(constant: *const CConstant) -> *const CConstant {
    if !constant.is_null() {
        // SAFETY: every handle that a plugin receives comes from an `Arc`.
        unsafe { Arc::increment_strong_count(constant) };
    }
    constant
}

pub unsafe extern "C" fn constant_release(constant: *const CConstant) {
    if !constant.is_null() {
        // SAFETY: every handle that a plugin receives comes from an `Arc`, and the plugin releases a reference that it
        // retained.
        run_guarded(|| unsafe { Arc::decrement_strong_count(constant) });
    }
}

/// Graph that runs with the host's reference kernels.
pub struct CReference(pub Box<dyn Executable>);

pub unsafe extern "C" fn reference_release(reference: *mut CReference) {
    if !reference.is_null() {
        // SAFETY: `reference` returned the pointer, and the plugin releases it once.
        run_guarded(|| drop(unsafe { Box::from_raw(reference) }));
    }
}

/// Runs the body of a function that cannot report errors; returns the default after a panic.
pub fn run_guarded<T: Default>(body: impl FnOnce() -> T) -> T {
    guard(|| Ok(body())).unwrap_or_default()
}

//! What a plugin holds of the host's: constants, and graphs that run by the reference kernels.

use crate::backend::Executable;
use crate::constant::Constant;
use crate::guard::guard;
use crate::tensor::Tensor;
use std::ffi::c_char;
use std::sync::Arc;

/// A constant as a C plugin has it: always behind an `Arc`, whose count is the plugin's.
pub struct CConstant(pub Constant);

impl CConstant {
    /// A handle to a constant.
    pub fn new(constant: &Constant) -> Arc<CConstant> {
        Arc::new(CConstant(constant.clone()))
    }
}

pub unsafe extern "C" fn constant_tensor(constant: *const CConstant, tensor: *mut Tensor) {
    if constant.is_null() || tensor.is_null() {
        return;
    }
    // SAFETY: a handle that the plugin was given, and has not given back.
    let described = *unsafe { &*constant }.0.tensor().raw();
    // SAFETY: the plugin's structure.
    unsafe { tensor.write(described) };
}

pub unsafe extern "C" fn constant_digest(constant: *const CConstant, text: *mut c_char, size: usize) -> usize {
    if constant.is_null() {
        return 0;
    }
    guarded(|| {
        // SAFETY: as above.
        let digest = unsafe { &*constant }.0.digest();
        if size > 0 && !text.is_null() {
            let copied = digest.len().min(size - 1);
            // SAFETY: the plugin's buffer is as long as it says.
            unsafe {
                std::ptr::copy_nonoverlapping(digest.as_ptr(), text.cast(), copied);
                text.add(copied).write(0);
            }
        }
        digest.len()
    })
}

pub unsafe extern "C" fn constant_retain(constant: *const CConstant) -> *const CConstant {
    if !constant.is_null() {
        // SAFETY: every handle that a plugin gets is an `Arc`'s.
        unsafe { Arc::increment_strong_count(constant) };
    }
    constant
}

pub unsafe extern "C" fn constant_release(constant: *const CConstant) {
    if !constant.is_null() {
        // SAFETY: as above; the plugin gives back what it retained.
        guarded(|| unsafe { Arc::decrement_strong_count(constant) });
    }
}

/// A graph that runs by the host's reference kernels.
pub struct CReference(pub Box<dyn Executable>);

pub unsafe extern "C" fn reference_release(reference: *mut CReference) {
    if !reference.is_null() {
        // SAFETY: what `reference` gave, once.
        guarded(|| drop(unsafe { Box::from_raw(reference) }));
    }
}

/// Runs the body of a function that has no call to complain to: a panic gives the default.
pub fn guarded<T: Default>(body: impl FnOnce() -> T) -> T {
    guard(|| Ok(body())).unwrap_or_default()
}

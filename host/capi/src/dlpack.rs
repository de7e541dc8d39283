//! Managed DLPack tensors: results passed to other libraries, and tensors received from them.
//!
//! The structures match DLPack 1.1. A managed tensor has one owner, who calls its deleter once, from any thread.

use crate::error::{Error, report};
use crate::options::{object, store_result};
use crate::tensor::{Layout, Operand, Results, View};
use byoc::Tensor;
use byoc_ir::tensor::byte_count;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Release};

/// C structure `DLManagedTensor`.
#[repr(C)]
pub struct DlManagedTensor {
    view: View,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut DlManagedTensor)>,
}

/// C structure `DLManagedTensorVersioned`.
#[repr(C)]
pub struct DlManagedTensorVersioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut DlManagedTensorVersioned)>,
    flags: u64,
    view: View,
}

/// DLPack version of the structures.
const MAJOR: u32 = 1;
const MINOR: u32 = 1;
/// Flag that marks a tensor as read-only.
const READ_ONLY: u64 = 1;

/// Managed tensor together with the shape and the elements to which it points.
struct ExportedTensor<M> {
    managed: M,
    _shape: Box<[i64]>,
    _tensor: Tensor,
}

/// Frees an exported tensor.
///
/// # Safety
/// `object` is NULL, or was returned by [`export`] and has not been freed.
unsafe extern "C" fn delete<M: ManagedTensor>(object: *mut M) {
    if !object.is_null() {
        // SAFETY: `export` stored a pointer from `Box::into_raw` in the context, and the caller has not freed `object`.
        drop(unsafe { Box::from_raw((*object).context().cast::<ExportedTensor<M>>()) });
    }
}

/// Common interface of `DLManagedTensor` and `DLManagedTensorVersioned`.
trait ManagedTensor: Sized + 'static {
    fn new(view: View, read_only: bool) -> Self;
    fn context(&self) -> *mut c_void;
    fn set_context(&mut self, context: *mut c_void);
    fn view(&self) -> &View;
    fn deleter(&self) -> Option<unsafe extern "C" fn(*mut Self)>;
    /// Checks that the DLPack version is supported.
    fn check(&self) -> Result<(), Error>;
}

impl ManagedTensor for DlManagedTensor {
    fn new(view: View, _read_only: bool) -> DlManagedTensor {
        DlManagedTensor { view, context: std::ptr::null_mut(), deleter: Some(delete::<DlManagedTensor>) }
    }
    fn context(&self) -> *mut c_void {
        self.context
    }
    fn set_context(&mut self, context: *mut c_void) {
        self.context = context;
    }
    fn view(&self) -> &View {
        &self.view
    }
    fn deleter(&self) -> Option<unsafe extern "C" fn(*mut DlManagedTensor)> {
        self.deleter
    }
    fn check(&self) -> Result<(), Error> {
        Ok(())
    }
}

impl ManagedTensor for DlManagedTensorVersioned {
    fn new(view: View, read_only: bool) -> DlManagedTensorVersioned {
        let flags = if read_only { READ_ONLY } else { 0 };
        let context = std::ptr::null_mut();
        DlManagedTensorVersioned {
            major: MAJOR,
            minor: MINOR,
            context,
            deleter: Some(delete::<DlManagedTensorVersioned>),
            flags,
            view,
        }
    }
    fn context(&self) -> *mut c_void {
        self.context
    }
    fn set_context(&mut self, context: *mut c_void) {
        self.context = context;
    }
    fn view(&self) -> &View {
        &self.view
    }
    fn deleter(&self) -> Option<unsafe extern "C" fn(*mut DlManagedTensorVersioned)> {
        self.deleter
    }
    fn check(&self) -> Result<(), Error> {
        if self.major == MAJOR {
            return Ok(());
        }
        Err(Error::argument(format!("tensor: expected DLPack version {MAJOR}, found {}.{}", self.major, self.minor)))
    }
}

/// Exports a result. A shared tensor, such as a model constant, is marked as read-only, or copied if the structure has
/// no read-only flag.
fn export<M: ManagedTensor>(results: &Results, index: usize, can_mark: bool) -> Result<*mut M, Error> {
    let Some((tensor, is_shared)) = results.tensor(index) else {
        let message = format!("expected a result index < {}, found {index}", results.len());
        return Err(Error::argument(message));
    };
    let tensor = if is_shared && !can_mark {
        let copy = Tensor::from_bytes(tensor.dtype(), tensor.shape(), tensor.bytes());
        copy.ok_or_else(|| {
            let bytes = tensor.bytes().len();
            Error::argument(format!("result {index}: not enough memory for a copy of {bytes} bytes"))
        })?
    } else {
        tensor.clone()
    };
    let mut shape: Box<[i64]> = tensor.shape().iter().map(|&dim| dim as i64).collect();
    let data = tensor.bytes().as_ptr().cast_mut().cast();
    let view = View::new(tensor.dtype(), data, shape.as_mut_ptr(), shape.len() as i32);
    let view = view.ok_or_else(|| {
        Error::argument(format!("result {index}: expected a DLPack element type, found {}", tensor.dtype()))
    })?;
    let exported_tensor = Box::new(ExportedTensor { managed: M::new(view, is_shared), _shape: shape, _tensor: tensor });
    let raw = Box::into_raw(exported_tensor);
    // SAFETY: `raw` was returned by `Box::into_raw` above, and nothing else refers to it.
    unsafe {
        (*raw).managed.set_context(raw.cast());
        Ok(&raw mut (*raw).managed)
    }
}

/// Memory of an external library, released when the last tensor that uses it is dropped.
struct ImportedTensor<M: ManagedTensor> {
    managed: *mut M,
    data: *const u8,
    bytes: usize,
    /// False while the caller still owns the managed tensor.
    owned: AtomicBool,
}

// SAFETY: DLPack permits calling a deleter from any thread, and `ImportedTensor` only reads the elements.
unsafe impl<M: ManagedTensor> Send for ImportedTensor<M> {}
// SAFETY: shared access only reads the elements, and `owned` is atomic.
unsafe impl<M: ManagedTensor> Sync for ImportedTensor<M> {}

impl<M: ManagedTensor> AsRef<[u8]> for ImportedTensor<M> {
    fn as_ref(&self) -> &[u8] {
        if self.bytes == 0 {
            return &[];
        }
        // SAFETY: `import` computed `bytes` from the tensor's shape, and the elements stay valid until `drop` calls the
        // deleter, as DLPack requires of the exporter.
        unsafe { std::slice::from_raw_parts(self.data, self.bytes) }
    }
}

impl<M: ManagedTensor> Drop for ImportedTensor<M> {
    fn drop(&mut self) {
        if !*self.owned.get_mut() {
            return;
        }
        // SAFETY: `self` owns the managed tensor, which is therefore valid, and calls its deleter only here.
        unsafe {
            if let Some(deleter) = (*self.managed).deleter() {
                deleter(self.managed);
            }
        }
    }
}

/// Takes ownership of a managed tensor. On error, the caller retains ownership.
///
/// # Safety
/// `managed` is NULL, or a valid managed tensor owned by the caller.
unsafe fn import<M: ManagedTensor>(managed: *mut M) -> Result<Results, Error> {
    // SAFETY: the caller passes NULL or a valid managed tensor, whose view and elements are readable.
    unsafe {
        let tensor = object(managed.cast_const(), "tensor")?;
        tensor.check()?;
        let Layout { dtype, dims, data, strides } = tensor.view().layout(Operand::Tensor)?;
        let Some(bytes) = byte_count(dtype, &dims) else {
            return Err(Error::argument(format!("tensor: expected a size within the address space, found {dims:?}")));
        };
        let memory_error = || Error::argument(format!("tensor: not enough memory for a copy of {bytes} bytes"));
        let owner = Arc::new(ImportedTensor { managed, data, bytes, owned: AtomicBool::new(false) });
        let result = match strides {
            // `from_storage` copies misaligned elements.
            None => Tensor::from_storage(dtype, &dims, owner.clone()).ok_or_else(memory_error)?,
            Some(strides) => {
                let copy = |destination: &mut [u8]| copy_strided(data, &dims, &strides, dtype.size(), destination);
                Tensor::build(dtype, &dims, copy).map_err(|_| memory_error())?
            }
        };
        let results = Results::new(vec![result])?;
        owner.owned.store(true, Release);
        Ok(results)
    }
}

/// Copies strided elements to dense memory.
///
/// # Safety
/// `data` points to elements of `size` bytes with the given shape, and with `strides` in elements.
unsafe fn copy_strided(data: *const u8, shape: &[usize], strides: &[i64], size: usize, destination: &mut [u8]) {
    let mut index = vec![0usize; shape.len()];
    let mut offset = 0isize;
    for element in destination.chunks_exact_mut(size) {
        // SAFETY: `index` is within `shape`, so the caller guarantees an element at `offset`.
        unsafe {
            let source = data.wrapping_offset(offset * size as isize);
            std::ptr::copy_nonoverlapping(source, element.as_mut_ptr(), size);
        }
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            offset += strides[axis] as isize;
            if index[axis] < shape[axis] {
                break;
            }
            offset -= strides[axis] as isize * index[axis] as isize;
            index[axis] = 0;
        }
    }
}

/// Exports a result, and writes the address of the managed tensor to `destination`.
///
/// # Safety
/// `destination` is NULL or writable, and `results` is NULL or has not been freed.
unsafe fn export_to<M: ManagedTensor>(
    results: *const Results,
    index: usize,
    can_mark: bool,
    destination: *mut *mut M,
) -> *mut Error {
    // SAFETY: the caller passes NULL or valid pointers in `results` and `destination`.
    report(|| unsafe {
        let results = object(results, "byoc_results")?;
        if destination.is_null() {
            return Err(Error::argument("expected an output pointer for the tensor, found NULL"));
        }
        destination.write(export(results, index, can_mark)?);
        Ok(())
    })
}

/// Exports a result as a `DLManagedTensor`.
///
/// # Safety
/// The pointers meet the requirements of `byoc.h`. The same applies to all functions of this module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn byoc_results_to_dlpack(
    results: *const Results,
    index: usize,
    tensor: *mut *mut DlManagedTensor,
) -> *mut Error {
    // SAFETY: the caller meets the pointer requirements of `byoc.h`.
    unsafe { export_to(results, index, false, tensor) }
}

/// Exports a result as a `DLManagedTensorVersioned`.
///
/// # Safety
/// See [`byoc_results_to_dlpack`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn byoc_results_to_dlpack_versioned(
    results: *const Results,
    index: usize,
    tensor: *mut *mut DlManagedTensorVersioned,
) -> *mut Error {
    // SAFETY: the caller meets the pointer requirements of `byoc.h`.
    unsafe { export_to(results, index, true, tensor) }
}

/// Takes ownership of a `DLManagedTensor`.
///
/// # Safety
/// See [`byoc_results_to_dlpack`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn byoc_results_from_dlpack(
    tensor: *mut DlManagedTensor,
    results: *mut *mut Results,
) -> *mut Error {
    // SAFETY: the caller meets the pointer requirements of `byoc.h`.
    report(|| unsafe { store_result(results, || import(tensor)) })
}

/// Takes ownership of a `DLManagedTensorVersioned`.
///
/// # Safety
/// See [`byoc_results_to_dlpack`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn byoc_results_from_dlpack_versioned(
    tensor: *mut DlManagedTensorVersioned,
    results: *mut *mut Results,
) -> *mut Error {
    // SAFETY: the caller meets the pointer requirements of `byoc.h`.
    report(|| unsafe { store_result(results, || import(tensor)) })
}

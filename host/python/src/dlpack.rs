//! Import of tensors from external libraries through DLPack, version 1.

use crate::error;
use crate::foreign::{Foreign, Layout};
use byoc::{DType, Diagnostic, Tensor};
use byoc_ir::diag::codes;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};
use std::ffi::{CStr, c_void};

#[repr(C)]
struct Device {
    kind: i32,
    id: i32,
}

#[repr(C)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct View {
    data: *mut c_void,
    device: Device,
    ndim: i32,
    dtype: DataType,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
struct DlManagedTensor {
    view: View,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut DlManagedTensor)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct DlManagedTensorVersioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut DlManagedTensorVersioned)>,
    flags: u64,
    view: View,
}

const CAPSULE_NAME: &CStr = c"dltensor";
const VERSIONED_CAPSULE_NAME: &CStr = c"dltensor_versioned";
/// DLPack major version that defines the structures above.
const MAJOR: u32 = 1;
/// DLPack device types whose memory the CPU can read: the CPU itself, and pinned memory of CUDA and ROCm.
const HOST_DEVICES: [i32; 3] = [1, 3, 11];

/// Converts an object with a method `__dlpack__` to a tensor, without a copy if the elements are dense; `None` if the
/// object lacks the method.
///
/// # Errors
/// If the tensor is in the memory of a device or has an unsupported element type, or a method of the object fails.
pub fn tensor(value: &Bound<'_, PyAny>, name: &str) -> PyResult<Option<Tensor>> {
    let py = value.py();
    let Ok(export) = value.getattr("__dlpack__") else { return Ok(None) };
    if let Ok(device) = value.call_method0("__dlpack_device__") {
        let (kind, id): (i32, i32) = device.extract()?;
        check_device(py, name, kind, id)?;
    }
    let export_args = PyDict::new(py);
    export_args.set_item("max_version", (MAJOR, 0))?;
    let capsule = match export.call((), Some(&export_args)) {
        // Libraries that predate DLPack 1 reject the argument.
        Err(error) if error.is_instance_of::<PyTypeError>(py) => export.call0()?,
        outcome => outcome?,
    };
    let capsule = capsule.cast::<PyCapsule>()?;
    let capsule_pointer = capsule.as_ptr();
    // SAFETY: `capsule` is alive, and by the DLPack protocol its name determines the type of its content. A capsule
    // with one of these two names has not been consumed, so it owns its content, which is valid as long as the capsule.
    unsafe {
        let view = if pyo3::ffi::PyCapsule_IsValid(capsule_pointer, VERSIONED_CAPSULE_NAME.as_ptr()) != 0 {
            let managed_tensor = pyo3::ffi::PyCapsule_GetPointer(capsule_pointer, VERSIONED_CAPSULE_NAME.as_ptr())
                .cast::<DlManagedTensorVersioned>();
            if (*managed_tensor).major != MAJOR {
                let major = (*managed_tensor).major;
                return Err(read_error(
                    py,
                    format!("input \"{name}\": expected DLPack version {MAJOR}, found {major}"),
                ));
            }
            &raw const (*managed_tensor).view
        } else if pyo3::ffi::PyCapsule_IsValid(capsule_pointer, CAPSULE_NAME.as_ptr()) != 0 {
            &raw const (*pyo3::ffi::PyCapsule_GetPointer(capsule_pointer, CAPSULE_NAME.as_ptr())
                .cast::<DlManagedTensor>())
            .view
        } else {
            return Err(read_error(
                py,
                format!("input \"{name}\": expected an unused DLPack capsule, found a consumed one"),
            ));
        };
        // The capsule is not consumed: its destructor frees the tensor when the last reference to the capsule is
        // dropped.
        read(py, name, &*view, capsule).map(Some)
    }
}

fn check_device(py: Python<'_>, name: &str, kind: i32, id: i32) -> PyResult<()> {
    if HOST_DEVICES.contains(&kind) {
        return Ok(());
    }
    let message = format!(
        "input \"{name}\": expected a tensor in host memory, found one on device {id} of DLPack device type {kind}"
    );
    let help = "copy the tensor to the host, for example with .cpu()";
    Err(error::of(py, Diagnostic::error(codes::runtime::INPUT_MEMORY, message).help(help)))
}

fn read_error(py: Python<'_>, message: String) -> PyErr {
    error::of(py, Diagnostic::error(codes::runtime::INPUT_MEMORY, message))
}

/// Converts a view of memory that `owner` keeps alive.
///
/// # Safety
/// `view` must be valid as long as `owner` lives.
unsafe fn read(py: Python<'_>, name: &str, view: &View, owner: &Bound<'_, PyCapsule>) -> PyResult<Tensor> {
    check_device(py, name, view.device.kind, view.device.id)?;
    let DataType { code, bits, lanes } = view.dtype;
    let dtype = dtype(code, bits).filter(|_| lanes == 1).ok_or_else(|| {
        let message = format!(
            "input \"{name}\": expected a supported element type, found code {code}, bits {bits}, lanes {lanes}"
        );
        error::of(py, Diagnostic::error(codes::runtime::INPUT_DTYPE, message))
    })?;
    let ndim = usize::try_from(view.ndim).unwrap_or(0);
    // SAFETY: the caller guarantees a valid view: `shape` points to `ndim` dimensions, and `strides` to `ndim` strides
    // or is NULL.
    let (sizes, strides) = unsafe {
        let list = |pointer: *const i64| if ndim == 0 { &[][..] } else { std::slice::from_raw_parts(pointer, ndim) };
        (list(view.shape), if view.strides.is_null() { None } else { Some(list(view.strides)) })
    };
    let shape: byoc_ir::tensor::Shape = sizes.iter().map(|size| usize::try_from(*size).unwrap_or(0)).collect();
    let layout = match strides {
        Some(strides) => {
            Layout::Strided(strides.iter().map(|stride| *stride as isize * dtype.size() as isize).collect())
        }
        None => Layout::Dense,
    };
    let data = view.data.cast::<u8>().wrapping_add(view.byte_offset as usize);
    // SAFETY: the caller guarantees that the view describes memory that lives as long as `owner`.
    unsafe { Foreign::tensor(py, dtype, &shape, &layout, data, owner.as_any()) }
}

/// Converts a DLPack type code and bit width to an element type; `None` if it is unsupported.
fn dtype(code: u8, bits: u8) -> Option<DType> {
    Some(match (code, bits) {
        (0, 8) => DType::I8,
        (0, 16) => DType::I16,
        (0, 32) => DType::I32,
        (0, 64) => DType::I64,
        (1, 8) => DType::U8,
        (1, 16) => DType::U16,
        (1, 32) => DType::U32,
        (1, 64) => DType::U64,
        (2, 16) => DType::F16,
        (2, 32) => DType::F32,
        (2, 64) => DType::F64,
        (4, 16) => DType::BF16,
        (6, 8) => DType::Bool,
        _ => return None,
    })
}

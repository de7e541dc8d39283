//! Conversion between tensors and NumPy arrays, without a copy where the memory layout allows it.

use crate::foreign::{Foreign, Layout};
use crate::{dlpack, error};
use byoc::{DType, Diagnostic, Port, Tensor, TensorType};
use byoc_ir::diag::codes;
use bytes::Bytes;
use numpy::npyffi::{_PyArray_GET_ITEM_DATA, NPY_ARRAY_WRITEABLE, NpyTypes, PY_ARRAY_API, get_type_object, npy_intp};
use numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyImportError, PyTypeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyString, PyType};
use smallvec::SmallVec;
use std::ffi::c_int;

/// Returns the class `numpy.ndarray` if NumPy has been imported. Otherwise no NumPy array can exist.
fn array_class<'py>(py: Python<'py>) -> PyResult<Option<&'py Bound<'py, PyType>>> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    if let Some(class) = CLASS.get(py) {
        return Ok(Some(class.bind(py)));
    }
    let modules = py.import("sys")?.getattr("modules")?;
    let Some(numpy) = modules.get_item("numpy").ok().filter(|numpy| !numpy.is_none()) else { return Ok(None) };
    let class = numpy.getattr("ndarray")?.cast_into::<PyType>()?.unbind();
    Ok(Some(CLASS.get_or_init(py, || class).bind(py)))
}

/// Imports NumPy.
///
/// # Errors
/// If NumPy cannot be imported; if it is not installed, the exception shows how to install it.
pub fn import_numpy(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    py.import("numpy").map_err(|cause| {
        if !cause.is_instance_of::<PyImportError>(py) {
            return cause;
        }
        let message = format!("cannot import NumPy, which inputs and results require: {cause}");
        missing_package_error(py, message, "pip install numpy")
    })
}

/// Creates the exception for a package that is not installed.
fn missing_package_error(py: Python<'_>, message: String, help: &str) -> PyErr {
    error::new(py, "MissingDependency", Diagnostic::error(codes::runtime::MISSING_PACKAGE, message).help(help))
}

/// Creates the exception for a value that is not an array of a supported element type.
fn type_error(py: Python<'_>, message: String, port: &Port) -> PyErr {
    let help = format!("convert the input: numpy.asarray(x, \"{}\")", port.ty.dtype);
    error::of(py, Diagnostic::error(codes::runtime::INPUT_DTYPE, message).help(help))
}

/// Converts an input value: a NumPy array, a tensor of an external library through DLPack, a number, or a nested list
/// of numbers.
pub fn tensor_of(value: &Bound<'_, PyAny>, port: &Port) -> PyResult<Tensor> {
    let py = value.py();
    if let Some(class) = array_class(py)?
        && (value.get_type().is(class) || value.is_instance(class)?)
    {
        // SAFETY: the check above guarantees that `value` is an instance of `numpy.ndarray`.
        return of_array(unsafe { value.cast_unchecked::<PyUntypedArray>() }, port);
    }
    if let Some(tensor) = dlpack::tensor(value, &port.name)? {
        return Ok(tensor);
    }
    if value.is_none() || value.is_instance_of::<PyString>() {
        let message = format!("input \"{}\": expected an array, found {}", port.name, value.get_type());
        return Err(type_error(py, message, port));
    }
    let array = import_numpy(py)?.call_method1("asarray", (value, port.ty.dtype.name())).map_err(|cause| {
        let message = format!(
            "input \"{}\": expected an array of {}, found {}: {cause}",
            port.name,
            port.ty.dtype,
            value.get_type()
        );
        type_error(py, message, port)
    })?;
    of_array(array.cast::<PyUntypedArray>()?, port)
}

/// Returns a tensor over the memory of an array.
pub fn tensor_of_array(array: &Bound<'_, PyUntypedArray>) -> PyResult<Tensor> {
    of_array(array, &Port::tensor("array", TensorType::fixed(DType::F32, &[])))
}

fn of_array(array: &Bound<'_, PyUntypedArray>, port: &Port) -> PyResult<Tensor> {
    let py = array.py();
    let descr = array.dtype();
    let Some(dtype) = dtype_of(&descr)? else {
        let message = format!("input \"{}\": expected {}, found an array of {descr}", port.name, port.ty.dtype);
        return Err(type_error(py, message, port));
    };
    if descr.is_native_byteorder() == Some(false) {
        let native_descr = descr.call_method1("newbyteorder", ("=",))?;
        let native_array = array.call_method1("astype", (native_descr,))?;
        return of_array(native_array.cast::<PyUntypedArray>()?, port);
    }
    of_memory(array, dtype)
}

/// Returns a tensor over the memory of an array whose element type is `dtype`.
fn of_memory(array: &Bound<'_, PyUntypedArray>, dtype: DType) -> PyResult<Tensor> {
    let layout = if array.is_c_contiguous() { Layout::Dense } else { Layout::Strided(array.strides().into()) };
    // SAFETY: NumPy guarantees that data, shape and strides describe the array's memory, which lives as long as the
    // array; `Foreign` holds a reference to the array.
    unsafe {
        let data = (*_PyArray_GET_ITEM_DATA(array.as_array_ptr())).data.cast::<u8>();
        Foreign::tensor(array.py(), dtype, array.shape(), &layout, data, array.as_any())
    }
}

/// Tensor that owns the memory of a [`Bytes`].
struct TensorBytes(Tensor);

impl AsRef<[u8]> for TensorBytes {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

/// Returns the elements of a one-dimensional uint8 array, without a copy if they are dense.
pub fn bytes_of(array: &Bound<'_, PyUntypedArray>) -> PyResult<Bytes> {
    let descr = array.dtype();
    if dtype_of(&descr)? != Some(DType::U8) || array.ndim() != 1 {
        let message = format!("expected a uint8 array of rank 1, found {descr} of rank {}", array.ndim());
        return Err(PyTypeError::new_err(message));
    }
    Ok(Bytes::from_owner(TensorBytes(of_memory(array, DType::U8)?)))
}

/// NumPy type numbers of the built-in element types.
const BUILT_IN: [(c_int, DType); 11] = [
    (0, DType::Bool),
    (1, DType::I8),
    (2, DType::U8),
    (3, DType::I16),
    (4, DType::U16),
    (5, DType::I32),
    (6, DType::U32),
    (7, DType::I64),
    (8, DType::U64),
    (11, DType::F32),
    (12, DType::F64),
];
/// NumPy type number of float16.
const HALF_TYPE_NUM: c_int = 23;
/// First NumPy type number of element types registered by other packages, such as ml_dtypes.
const FIRST_REGISTERED: c_int = 256;

/// Converts a NumPy element type; `None` if byoc does not support it.
fn dtype_of(descr: &Bound<'_, PyArrayDescr>) -> PyResult<Option<DType>> {
    let num = descr.num();
    let built_in = BUILT_IN.iter().find(|(entry, _)| *entry == num);
    Ok(match built_in {
        Some((_, dtype)) => Some(*dtype).filter(|dtype| dtype.size() == descr.itemsize()),
        None if num == HALF_TYPE_NUM => Some(DType::F16),
        // The type `long long` on systems where `long` has the same size.
        None if num == 9 => Some(DType::I64),
        None if num == 10 => Some(DType::U64),
        None if num >= FIRST_REGISTERED => DType::parse(&descr.getattr("name")?.extract::<String>()?),
        None => None,
    })
}

/// Returns NumPy's descriptor of an element type.
fn descr_of(py: Python<'_>, dtype: DType) -> PyResult<Bound<'_, PyArrayDescr>> {
    let num = BUILT_IN.iter().find(|(_, entry)| *entry == dtype).map(|(num, _)| *num);
    if let Some(num) = num.or((dtype == DType::F16).then_some(HALF_TYPE_NUM)) {
        // SAFETY: callers import NumPy first, and for the type number of a built-in type NumPy returns a new reference.
        return unsafe {
            let descr = PY_ARRAY_API.PyArray_DescrFromType(py, num);
            Ok(Bound::from_owned_ptr(py, descr.cast()).cast_into_unchecked())
        };
    }
    let types = py.import("ml_dtypes").map_err(|cause| {
        let message = format!("cannot import the package ml_dtypes, which {dtype} requires: {cause}");
        missing_package_error(py, message, "pip install ml_dtypes")
    })?;
    PyArrayDescr::new(py, types.getattr(dtype.name())?)
}

/// Owner of the memory of a result; every array over this memory holds a reference to it.
#[pyclass(frozen, module = "byoc._byoc")]
pub struct Memory {
    _tensor: Tensor,
}

/// Returns an array over the memory of a result. A result whose memory is shared, for example with an input or a
/// constant, is copied, because the array is writable.
pub fn array_of<'py>(py: Python<'py>, tensor: Tensor) -> PyResult<Bound<'py, PyAny>> {
    import_numpy_once(py)?;
    let tensor = if tensor.is_exclusive() {
        tensor
    } else {
        let copy =
            Tensor::build(tensor.dtype(), tensor.shape(), |destination| destination.copy_from_slice(tensor.bytes()));
        copy.map_err(|full| error::of(py, Diagnostic::from(full)))?
    };
    let descr = descr_of(py, tensor.dtype())?;
    let mut dims: SmallVec<[npy_intp; 6]> = tensor.shape().iter().map(|size| *size as npy_intp).collect();
    let data = tensor.bytes().as_ptr().cast_mut();
    let memory = Bound::new(py, Memory { _tensor: tensor })?;
    // SAFETY: `tensor` guarantees that the data is aligned and has the size given by `dims` and `descr`. `memory` owns
    // the data and becomes the base of the array. The check above guarantees that nothing else refers to the bytes, so
    // the array may be writable. NumPy steals the references to the type and to the base.
    unsafe {
        let class = get_type_object(py, NpyTypes::PyArray_Type);
        let ndim = dims.len() as c_int;
        let array = PY_ARRAY_API.PyArray_NewFromDescr(
            py,
            class,
            descr.into_dtype_ptr(),
            ndim,
            dims.as_mut_ptr(),
            std::ptr::null_mut(),
            data.cast(),
            NPY_ARRAY_WRITEABLE,
            std::ptr::null_mut(),
        );
        let array = Bound::from_owned_ptr_or_err(py, array)?;
        if PY_ARRAY_API.PyArray_SetBaseObject(py, array.as_ptr().cast(), memory.into_ptr()) != 0 {
            return Err(PyErr::fetch(py));
        }
        Ok(array)
    }
}

fn import_numpy_once(py: Python<'_>) -> PyResult<()> {
    static IMPORTED: PyOnceLock<()> = PyOnceLock::new();
    if IMPORTED.get(py).is_none() {
        import_numpy(py)?;
        let _ = IMPORTED.set(py, ());
    }
    Ok(())
}

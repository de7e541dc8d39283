//! Conversion of inputs and results that are no tensors of numbers: strings, sequences, optional values, maps.

use crate::array::{array_of, import_numpy, tensor_of};
use crate::error;
use byoc::runtime::value::{self, Keys, PortValue, StringTensor};
use byoc::{Diagnostic, Port, Tensor};
use byoc_ir::diag::{Code, codes};
use byoc_ir::interface::PortKind;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};

type AnyObject<'py> = Bound<'py, PyAny>;

fn input_error(py: Python<'_>, code: Code, ports: &[Port], found: impl std::fmt::Display) -> PyErr {
    let message = format!("input \"{}\": expected {}, found {found}", ports[0].name, value::type_text(ports));
    error::of(py, Diagnostic::error(code, message))
}

/// Converts an input value to the tensors of its ports.
pub fn tensors_of(value: &AnyObject<'_>, ports: &[Port]) -> PyResult<Vec<Tensor>> {
    let (py, port) = (value.py(), &ports[0]);
    let value = match port.kind {
        PortKind::Tensor => return Ok(vec![tensor_of(value, port)?]),
        PortKind::Strings => PortValue::Strings(strings_of(value, ports)?),
        PortKind::Optional if value.is_none() => PortValue::Optional(None),
        PortKind::OptionalSequence if value.is_none() => PortValue::OptionalSequence(None),
        PortKind::Optional => PortValue::Optional(Some(tensor_of(value, port)?)),
        _ => {
            let list = value
                .cast::<PyList>()
                .map_err(|_| input_error(py, codes::runtime::INPUT_DTYPE, ports, value.get_type()))?;
            let element = |element: AnyObject<'_>| match port.kind {
                PortKind::StringSequence => strings_of(&element, ports).map(PortValue::Strings),
                _ => tensor_of(&element, port).map(PortValue::Tensor),
            };
            let elements = list.iter().map(element).collect::<PyResult<_>>()?;
            match port.kind {
                PortKind::OptionalSequence => PortValue::OptionalSequence(Some(elements)),
                _ => PortValue::Sequence(elements),
            }
        }
    };
    value.into_tensors(ports).map_err(|diagnostic| error::of(py, diagnostic))
}

/// Converts an array of strings, or a nested list of strings.
fn strings_of(value: &AnyObject<'_>, ports: &[Port]) -> PyResult<StringTensor> {
    let py = value.py();
    let wrong = |found: &dyn std::fmt::Display| input_error(py, codes::runtime::INPUT_DTYPE, ports, found);
    if value.is_none() || value.is_instance_of::<PyString>() || value.is_instance_of::<PyBytes>() {
        return Err(wrong(&value.get_type()));
    }
    let numpy = import_numpy(py)?;
    let array = numpy.call_method1("asarray", (value,))?;
    let kind: String = array.getattr("dtype")?.getattr("kind")?.extract()?;
    if !matches!(&*kind, "U" | "S" | "O" | "T") && array.getattr("size")?.extract::<usize>()? > 0 {
        return Err(wrong(&format!("an array of {}", array.getattr("dtype")?)));
    }
    let shape: Vec<usize> = array.getattr("shape")?.extract()?;
    let elements = array.call_method1("ravel", ())?.call_method0("tolist")?;
    let mut strings = Vec::new();
    for (i, element) in elements.cast::<PyList>()?.iter().enumerate() {
        if let Ok(text) = element.cast::<PyString>() {
            strings.push(text.to_string_lossy().into_owned());
        } else if let Ok(bytes) = element.cast::<PyBytes>() {
            let text = std::str::from_utf8(bytes.as_bytes()).map_err(|_| {
                let message = format!("input \"{}\": element {i}: expected UTF-8, found invalid bytes", ports[0].name);
                error::of(py, Diagnostic::error(codes::runtime::BAD_STRING, message))
            })?;
            strings.push(text.to_owned());
        } else {
            return Err(wrong(&format!("element {i} of {}", element.get_type())));
        }
    }
    Ok(StringTensor { shape: shape.into(), strings })
}

/// Converts results, one object for each output.
pub fn objects_of<'py>(py: Python<'py>, ports: &[Port], tensors: Vec<Tensor>) -> PyResult<Vec<AnyObject<'py>>> {
    if !value::has_other_values(ports) {
        return tensors.into_iter().map(|tensor| array_of(py, tensor)).collect();
    }
    let values = value::values(ports, tensors).map_err(|diagnostic| error::of(py, diagnostic))?;
    values.into_iter().map(|value| object_of(py, value)).collect()
}

fn object_of<'py>(py: Python<'py>, value: PortValue) -> PyResult<AnyObject<'py>> {
    match value {
        PortValue::Tensor(tensor) | PortValue::Optional(Some(tensor)) => array_of(py, tensor),
        PortValue::Optional(None) | PortValue::OptionalSequence(None) => Ok(py.None().into_bound(py)),
        PortValue::Strings(tensor) => strings_array(py, &tensor),
        PortValue::Sequence(elements) | PortValue::OptionalSequence(Some(elements)) => {
            let list = PyList::empty(py);
            for element in elements {
                // A sequence has no sequences in it.
                list.append(match element {
                    PortValue::Strings(tensor) => strings_array(py, &tensor)?,
                    PortValue::Tensor(tensor) => array_of(py, tensor)?,
                    _ => py.None().into_bound(py),
                })?;
            }
            Ok(list.into_any())
        }
        PortValue::Maps(keys, values) => {
            let list = PyList::empty(py);
            let columns = values.shape().get(1).copied().unwrap_or(0);
            let rows = array_of(py, values)?.call_method0("tolist")?;
            for row in rows.cast::<PyList>()?.iter() {
                let dict = PyDict::new(py);
                for column in 0..columns {
                    let value = row.get_item(column)?;
                    match &keys {
                        Keys::Numbers(keys) => dict.set_item(keys.get(column), value)?,
                        Keys::Strings(keys) => dict.set_item(keys.get(column), value)?,
                    }
                }
                list.append(dict)?;
            }
            Ok(list.into_any())
        }
    }
}

/// Returns strings as an array of objects.
fn strings_array<'py>(py: Python<'py>, tensor: &StringTensor) -> PyResult<AnyObject<'py>> {
    let numpy = import_numpy(py)?;
    let array = numpy.call_method1("array", (PyList::new(py, &tensor.strings)?, "O"))?;
    array.call_method1("reshape", (tensor.shape.to_vec(),))
}

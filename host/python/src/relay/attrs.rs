//! Attributes of calls and functions as a Python mapping.

use crate::error;
use byoc::Diagnostic;
use byoc_ir::diag::codes;
use byoc_ir::ir::{AttrValue, Attrs, OpId};
use byoc_ir::op::{self, Params};
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyList, PyString, PyTuple};

/// Maximum nesting of lists, as in the text format.
const MAX_NESTING: usize = byoc_ir::text::MAX_NESTING;

/// Attributes of an operator call, with the defaults of the operator, or of a function.
#[pyclass(frozen, subclass, eq, module = "byoc._byoc")]
#[derive(PartialEq)]
pub struct Attributes {
    pub op: Option<OpId>,
    pub attrs: Attrs,
}

impl Attributes {
    pub fn new(op: Option<OpId>, attrs: Attrs) -> Attributes {
        Attributes { op, attrs }
    }

    fn value(&self, key: &str) -> Option<AttrValue> {
        match self.op.map(op::get) {
            Some(def) if def.attr(key).is_some() => Some(Params::new(def, &self.attrs).value(key)),
            _ => self.attrs.get(key).cloned(),
        }
    }
}

#[pymethods]
impl Attributes {
    /// Returns the names: those of the operator in the order of its definition, or those that are set.
    fn keys(&self) -> Vec<String> {
        match self.op.map(op::get) {
            Some(def) => def.attrs.iter().map(|attr| attr.name.to_owned()).collect(),
            None => self.attrs.iter().map(|(key, _)| key.to_string()).collect(),
        }
    }

    fn __contains__(&self, key: &str) -> bool {
        self.value(key).is_some()
    }

    fn __len__(&self) -> usize {
        self.keys().len()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, key: &str) -> PyResult<Bound<'py, PyAny>> {
        match self.value(key) {
            Some(value) => to_python(py, &value),
            None => Err(PyKeyError::new_err(format!("no attribute \"{key}\"; there are {}", self.keys().join(", ")))),
        }
    }

    fn __repr__(&self) -> String {
        let pairs: Vec<String> =
            self.keys().iter().filter_map(|key| Some(format!("{key}={}", self.value(key)?))).collect();
        format!("{{{}}}", pairs.join(", "))
    }
}

/// Converts a value of an attribute to Python.
pub fn to_python<'py>(py: Python<'py>, value: &AttrValue) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        AttrValue::Int(v) => v.into_pyobject(py)?.into_any(),
        AttrValue::Float(v) => v.into_pyobject(py)?.into_any(),
        AttrValue::Bool(v) => PyBool::new(py, *v).to_owned().into_any(),
        AttrValue::Str(v) => PyString::new(py, v).into_any(),
        AttrValue::None => py.None().into_bound(py),
        AttrValue::List(items) => {
            let items: Vec<_> = items.iter().map(|item| to_python(py, item)).collect::<PyResult<_>>()?;
            PyList::new(py, items)?.into_any()
        }
    })
}

/// Converts a Python value to a value of the attribute `key`.
pub fn from_python(key: &str, value: &Bound<'_, PyAny>, depth: usize) -> PyResult<AttrValue> {
    let py = value.py();
    if value.is_none() {
        return Ok(AttrValue::None);
    }
    if value.is_instance_of::<PyString>() {
        return Ok(AttrValue::Str(value.str()?.to_string().into()));
    }
    if let Ok(flag) = value.cast::<PyBool>() {
        return Ok(AttrValue::Bool(flag.is_true()));
    }
    if depth < MAX_NESTING && (value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>()) {
        let items = value.try_iter()?.map(|item| from_python(key, &item?, depth + 1)).collect::<PyResult<Vec<_>>>()?;
        return Ok(AttrValue::List(items.into()));
    }
    if !value.is_instance_of::<PyFloat>()
        && value.hasattr("__index__")?
        && let Ok(number) = value.extract::<i64>()
    {
        return Ok(AttrValue::Int(number));
    }
    if value.hasattr("__float__")?
        && let Ok(number) = value.extract::<f64>()
    {
        return Ok(AttrValue::Float(shortest(number)));
    }
    // An element type of NumPy.
    if value.hasattr("itemsize")? && value.hasattr("name")? {
        return Ok(AttrValue::Str(value.getattr("name")?.extract::<String>()?.into()));
    }
    let message = format!(
        "attribute {key}: expected a number, a string, None or a list of these, found {}",
        value.get_type().name()?
    );
    Err(error::of(py, Diagnostic::error(codes::types::BAD_ATTRIBUTE, message)))
}

/// Returns a number of float32's precision as its shortest decimal, so that `numpy.float32(1e-5)` equals `1e-5`.
fn shortest(number: f64) -> f64 {
    let single = number as f32;
    if f64::from(single) == number { single.to_string().parse().unwrap_or(number) } else { number }
}

/// Returns the attributes of a dictionary, or those of an [`Attributes`].
pub fn of_any(value: Option<&Bound<'_, PyAny>>) -> PyResult<Attrs> {
    let Some(value) = value.filter(|value| !value.is_none()) else { return Ok(Attrs::none()) };
    if let Ok(attributes) = value.cast::<Attributes>() {
        return Ok(attributes.get().attrs.clone());
    }
    let mut pairs = Vec::new();
    for (key, value) in value.cast::<PyDict>()? {
        let key: String = key.extract()?;
        let value = from_python(&key, &value, 0)?;
        pairs.push((key, value));
    }
    Ok(Attrs::new(pairs))
}

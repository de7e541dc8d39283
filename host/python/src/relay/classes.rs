//! Classes of the package `byoc.relay`, whose objects the extension creates.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

/// Classes of the package, in the order of `set_classes`.
#[derive(Clone, Copy)]
pub enum Kind {
    Constant,
    Var,
    GlobalVar,
    Constructor,
    Tuple,
    TupleGetItem,
    Call,
    Let,
    If,
    Match,
    Function,
    RefCreate,
    RefRead,
    RefWrite,
    TensorType,
    TupleType,
    FuncType,
    RefType,
    TypeCall,
    TypeVar,
    IncompleteType,
}

static CLASSES: PyOnceLock<Vec<Py<PyType>>> = PyOnceLock::new();

/// Sets the classes of expressions and types, in the order of [`Kind`].
#[pyfunction]
pub fn set_classes(py: Python<'_>, classes: Vec<Py<PyType>>) {
    let _ = CLASSES.set(py, classes);
}

/// Creates an object of a class of the package; `argument` is passed to the constructor of its native base.
pub fn create<'py>(
    py: Python<'py>,
    kind: Kind,
    base: &Bound<'py, PyType>,
    argument: Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let classes = match CLASSES.get(py) {
        Some(classes) => classes,
        None => {
            py.import("byoc.relay")?;
            CLASSES.get(py).ok_or_else(|| PyTypeError::new_err("byoc.relay has set no classes"))?
        }
    };
    base.call_method1("__new__", (classes[kind as usize].bind(py), argument))
}

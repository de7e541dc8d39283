//! Types as Python objects.

use super::classes::{self, Kind};
use crate::error;
use byoc::Diagnostic;
use byoc_ir::diag::{codes, nearest};
use byoc_ir::ir::{Dim, FuncType, Name, Type as IrType};
use byoc_ir::tensor::DType;
use byoc_ir::text::parse_dim;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

/// Type of an expression.
#[pyclass(frozen, subclass, module = "byoc._byoc")]
pub struct Type {
    pub ty: IrType,
}

/// Returns the Python object of a type.
pub fn wrap<'py>(py: Python<'py>, ty: &IrType) -> PyResult<Bound<'py, PyAny>> {
    let kind = match ty {
        IrType::Tensor(_) => Kind::TensorType,
        IrType::Tuple(_) => Kind::TupleType,
        IrType::Func(_) => Kind::FuncType,
        IrType::Ref(_) => Kind::RefType,
        IrType::Adt(_) => Kind::TypeCall,
        IrType::Param(_) => Kind::TypeVar,
        IrType::Unknown => Kind::IncompleteType,
    };
    let plain = Bound::new(py, Type { ty: ty.clone() })?;
    classes::create(py, kind, &py.get_type::<Type>(), plain.into_any())
}

/// Dimension passed from Python: a number, or a name or expression.
#[derive(FromPyObject)]
pub enum DimArgument {
    Number(i64),
    Text(String),
}

/// Converts dimensions passed from Python; `None` is an unknown one.
pub fn dims(py: Python<'_>, dims: Vec<Option<DimArgument>>) -> PyResult<Box<[Dim]>> {
    let fail = |message| error::of(py, Diagnostic::error(codes::types::TYPE_MISMATCH, message));
    let dim = |dim| match dim {
        Some(DimArgument::Number(n)) => match usize::try_from(n) {
            Ok(n) => Ok(Dim::Fixed(n)),
            Err(_) => Err(fail(format!("expected a dimension >= 0, found {n}"))),
        },
        Some(DimArgument::Text(text)) => parse_dim(&text).map_err(fail),
        None => Ok(Dim::Any),
    };
    dims.into_iter().map(dim).collect()
}

/// Returns the element type of a name.
pub fn dtype(py: Python<'_>, name: &str) -> PyResult<DType> {
    DType::parse(name).ok_or_else(|| {
        let message = format!("expected an element type, found \"{name}\"");
        let diagnostic = Diagnostic::error(codes::types::TYPE_MISMATCH, message);
        let names = ["float32", "float16", "float64", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "bool"];
        error::of(
            py,
            match nearest(name, names) {
                Some(name) => diagnostic.help(format!("did you mean \"{name}\"?")),
                None => diagnostic,
            },
        )
    })
}

#[pymethods]
impl Type {
    #[new]
    fn new(plain: &Bound<'_, Type>) -> Type {
        Type { ty: plain.get().ty.clone() }
    }

    #[staticmethod]
    fn tensor<'py>(py: Python<'py>, shape: Vec<Option<DimArgument>>, dtype_name: &str) -> PyResult<Bound<'py, PyAny>> {
        let dims = dims(py, shape)?;
        wrap(py, &IrType::tensor_of(dtype(py, dtype_name)?, dims))
    }

    #[staticmethod]
    fn tuple<'py>(py: Python<'py>, fields: Vec<PyRef<'py, Type>>) -> PyResult<Bound<'py, PyAny>> {
        wrap(py, &IrType::tuple(fields.iter().map(|field| field.ty.clone())))
    }

    #[staticmethod]
    fn func<'py>(
        py: Python<'py>,
        params: Vec<PyRef<'py, Type>>,
        ret: PyRef<'py, Type>,
        type_params: Vec<String>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let params: Vec<IrType> = params.iter().map(|param| param.ty.clone()).collect();
        let type_params = type_params.into_iter().map(Name::from).collect();
        wrap(py, &IrType::func(FuncType { type_params, params: params.into(), ret: ret.ty.clone() }))
    }

    #[staticmethod]
    fn reference<'py>(py: Python<'py>, inner: PyRef<'py, Type>) -> PyResult<Bound<'py, PyAny>> {
        wrap(py, &IrType::reference(inner.ty.clone()))
    }

    #[staticmethod]
    fn adt<'py>(py: Python<'py>, name: &str, args: Vec<PyRef<'py, Type>>) -> PyResult<Bound<'py, PyAny>> {
        let args: Vec<IrType> = args.iter().map(|arg| arg.ty.clone()).collect();
        wrap(py, &IrType::adt(name.into(), args))
    }

    #[staticmethod]
    fn param<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        wrap(py, &IrType::param(name))
    }

    #[staticmethod]
    fn unknown(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        wrap(py, &IrType::Unknown)
    }

    /// Returns the parts: shape and element type; fields; type parameters, parameters and result; the content of a
    /// reference; name and arguments of an instance; the name of a parameter.
    fn parts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let list = |types: &[IrType]| -> PyResult<Bound<'py, PyList>> {
            let types: Vec<_> = types.iter().map(|ty| wrap(py, ty)).collect::<PyResult<_>>()?;
            PyList::new(py, types)
        };
        match &self.ty {
            IrType::Tensor(tensor) => {
                let shape = PyList::empty(py);
                for dim in &tensor.dims {
                    match dim {
                        Dim::Fixed(n) => shape.append(n)?,
                        Dim::Any => shape.append(py.None())?,
                        symbolic => shape.append(symbolic.to_string())?,
                    }
                }
                (shape, tensor.dtype.name()).into_pyobject(py)
            }
            IrType::Tuple(fields) => (list(fields)?,).into_pyobject(py),
            IrType::Func(func) => {
                let names: Vec<String> = func.type_params.iter().map(ToString::to_string).collect();
                (names, list(&func.params)?, wrap(py, &func.ret)?).into_pyobject(py)
            }
            IrType::Ref(inner) => (wrap(py, inner)?,).into_pyobject(py),
            IrType::Adt(adt) => (adt.name.to_string(), list(&adt.args)?).into_pyobject(py),
            IrType::Param(name) => (name.to_string(),).into_pyobject(py),
            IrType::Unknown => Ok(PyTuple::empty(py)),
        }
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Type>().is_ok_and(|other| other.get().ty == self.ty)
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.ty.hash(&mut hasher);
        hasher.finish()
    }

    fn __str__(&self) -> String {
        self.ty.to_string()
    }

    fn __repr__(&self) -> String {
        self.ty.to_string()
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, (String,))> {
        let core = slf.py().import("byoc.relay._core")?;
        Ok((core.getattr("_parse_type")?, (slf.get().ty.to_string(),)))
    }
}

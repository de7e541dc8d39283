//! Extension module of the Python package `byoc`: sessions, models, arrays and the command line. The Python files of
//! the package define its interface; this module implements the parts that need the library.

mod array;
mod backend;
mod callback;
mod command;
mod dlpack;
mod error;
mod foreign;
mod fork;
mod graph;
mod kept;
mod model;
mod onnx;
mod pending;
mod relay;
mod session;
mod trace;
mod values;
mod wait;

use pyo3::prelude::*;

/// Native module of the package `byoc`.
#[pymodule(gil_used = false)]
mod _byoc {
    #[pymodule_export]
    use super::array::Memory;
    #[pymodule_export]
    use super::backend::{register_backend, unregister_backend};
    #[pymodule_export]
    use super::command::main;
    #[pymodule_export]
    use super::error::{escaped, in_python};
    #[pymodule_export]
    use super::graph::Graph;
    #[pymodule_export]
    use super::model::Model;
    #[pymodule_export]
    use super::onnx::{onnx_edited, onnx_metadata};
    #[pymodule_export]
    use super::pending::{Cancel, Pending};
    #[pymodule_export]
    use super::relay::attrs::Attributes;
    #[pymodule_export]
    use super::relay::build::{describe_backend, partition_module, read_model};
    #[pymodule_export]
    use super::relay::classes::set_classes;
    #[pymodule_export]
    use super::relay::expr::{Expr, checked_attrs, operators};
    #[pymodule_export]
    use super::relay::module::{RelayModule, partition_expr, run_on_expr};
    #[pymodule_export]
    use super::relay::pattern::{match_pattern, rewrite_once};
    #[pymodule_export]
    use super::relay::types::Type;
    #[pymodule_export]
    use super::session::{Session, set_folder};
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let end_callbacks = wrap_pyfunction!(super::callback::end_callbacks, module)?;
        module.py().import("atexit")?.call_method1("register", (end_callbacks,))?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}

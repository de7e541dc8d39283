//! Backends that are written in Python. They are plugins of this process: the host calls them through the same traits as
//! a library.

use crate::array::{array_of, tensor_of_array};
use crate::error;
use byoc::runtime::plugin::registry::{register_in_process, rejection_diagnostic, unregister_in_process};
use byoc::{DType, Tensor};
use byoc_plugin_api::host::{LoadedPlugin, RegisteredObject, Registration};
use byoc_plugin_api::{
    self as api, Call, Candidate, CandidateKind, Codegen, CompiledRegion, Constant, Description, Executable,
    LoadRequest, Loader, Prepared, Region, TensorType, Verdict,
};
use numpy::PyUntypedArray;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use std::path::PathBuf;
use std::sync::Arc;

/// Registers a backend. `object` has the methods `describe() -> str`, `judge(list) -> list`, `compile(graph, constants,
/// options) -> (blob, source)` and `load(symbol, blob, constants, options) -> callable`. `path` is the file of its code.
#[pyfunction]
pub fn register_backend(py: Python<'_>, name: &str, version: &str, path: PathBuf, object: Py<PyAny>) -> PyResult<()> {
    let loader_key = format!("{name}_python");
    let backend = Arc::new(Backend { object, loader_key: loader_key.clone() });
    let registrations = vec![
        Registration {
            name: format!("{}{name}", api::CODEGEN_PREFIX),
            object: RegisteredObject::Codegen(backend.clone()),
        },
        Registration { name: format!("{}{loader_key}", api::LOADER_PREFIX), object: RegisteredObject::Loader(backend) },
    ];
    let plugin = LoadedPlugin::in_process(name, version, &path, registrations)
        .map_err(|rejection| error::of(py, rejection_diagnostic(&path, &rejection)))?;
    register_in_process(plugin);
    Ok(())
}

/// Removes a backend. Models that were compiled with it keep it.
#[pyfunction]
pub fn unregister_backend(name: &str) {
    unregister_in_process(name);
}

/// Backend in Python: code generator and loader.
struct Backend {
    object: Py<PyAny>,
    loader_key: String,
}

/// Calls Python, and converts an exception: its message, its hint, and the code of the refusal.
fn with_python<T>(body: impl FnOnce(Python<'_>) -> PyResult<T>) -> api::Result<T> {
    let outcome = Python::try_attach(|py| {
        body(py).map_err(|error| {
            let value = error.value(py);
            let text = |name: &str| value.getattr(name).ok().and_then(|text| text.extract::<String>().ok());
            let message = text("message").unwrap_or_else(|| error.to_string());
            api::Error::new(message).hint(text("hint").unwrap_or_default())
        })
    });
    outcome.unwrap_or_else(|| Err(api::Error::new("expected a running interpreter, found one that has ended")))
}

fn dtype(dtype: api::DType) -> api::Result<DType> {
    DType::parse(&dtype.to_string()).ok_or_else(|| api::Error::new(format!("element type {dtype} is not supported")))
}

/// Returns an array with a copy of the elements: Python may keep it longer than the host keeps the memory.
fn array<'py>(py: Python<'py>, tensor: &api::TensorRef<'_>) -> PyResult<Bound<'py, PyAny>> {
    let dtype = dtype(tensor.dtype()).map_err(|error| PyTypeError::new_err(error.message.to_string()))?;
    let copy = Tensor::build(dtype, tensor.shape(), |bytes| bytes.copy_from_slice(tensor.bytes()));
    array_of(py, copy.map_err(|full| error::of(py, byoc::Diagnostic::from(full)))?)
}

fn constant_arrays<'py>(py: Python<'py>, constants: &[Constant]) -> PyResult<Bound<'py, PyList>> {
    let arrays: Vec<_> = constants.iter().map(|constant| array(py, &constant.tensor())).collect::<PyResult<_>>()?;
    PyList::new(py, arrays)
}

impl Codegen for Backend {
    fn describe(&self) -> api::Result<Description> {
        let text: String = with_python(|py| self.object.bind(py).call_method0("describe")?.extract())?;
        Ok(Description::from_json_lossy(&text))
    }

    fn judge_batch(&self, candidates: &[Candidate]) -> api::Result<Vec<Verdict>> {
        let row = |candidate: &Candidate| {
            let kind = match candidate.kind {
                CandidateKind::Pattern => "pattern",
                CandidateKind::Operator => "operator",
                CandidateKind::Region => "region",
            };
            (kind, candidate.name.to_string(), candidate.check.to_string(), candidate.graph.to_json())
        };
        let rows: Vec<_> = candidates.iter().map(row).collect();
        let answers: Vec<Option<(String, String, String)>> =
            with_python(|py| self.object.bind(py).call_method1("judge", (rows,))?.extract())?;
        Ok(answers
            .into_iter()
            .map(|answer| match answer {
                None => Verdict::Supported,
                Some((code, detail, hint)) => {
                    Verdict::Refused(api::Refusal { code: code.into(), detail: detail.into(), hint: hint.into() })
                }
            })
            .collect())
    }

    fn compile(&self, region: &Region<'_>) -> api::Result<CompiledRegion> {
        let symbol = region.graph.symbol.as_str();
        let (blob, source): (Vec<u8>, Option<(String, String)>) = with_python(|py| {
            let constants = constant_arrays(py, region.constants)?;
            let (blob, source): (Bound<'_, PyBytes>, _) = self
                .object
                .bind(py)
                .call_method1("compile", (region.graph.to_json(), constants, region.options.to_string()))?
                .extract()?;
            Ok((blob.as_bytes().to_vec(), source))
        })?;
        let mut compiled = CompiledRegion::new(symbol, &self.loader_key, blob);
        if let Some((language, text)) = source {
            compiled = compiled.with_source(&language, text);
        }
        Ok(compiled)
    }
}

impl Loader for Backend {
    fn load(&self, region: &LoadRequest<'_>) -> api::Result<Box<dyn Executable>> {
        let signature = region.signature()?.unwrap_or_default();
        let function = with_python(|py| {
            let constants = constant_arrays(py, region.constants)?;
            let blob = PyBytes::new(py, region.blob);
            let arguments = (region.symbol, blob, constants, region.options.to_string());
            Ok(self.object.bind(py).call_method1("load", arguments)?.unbind())
        })?;
        let outputs = signature.outputs.iter().map(TensorType::shape).collect();
        Ok(Box::new(Function { symbol: region.symbol.to_owned(), function, outputs }))
    }
}

/// Region whose results a function in Python computes.
struct Function {
    symbol: String,
    function: Py<PyAny>,
    outputs: Vec<Option<Vec<usize>>>,
}

impl Executable for Function {
    fn prepare(&self, _: &[&[usize]]) -> api::Result<Prepared> {
        let shapes: Option<Vec<Vec<usize>>> = self.outputs.iter().cloned().collect();
        let open = || api::Error::new(format!("{}: expected outputs of known dimensions", self.symbol));
        Ok(Prepared::exact(shapes.ok_or_else(open)?))
    }

    fn run(&self, call: Call<'_, '_>) -> api::Result<()> {
        with_python(|py| {
            let inputs: Vec<_> = call.inputs.iter().map(|input| array(py, input)).collect::<PyResult<_>>()?;
            let result = self.function.bind(py).call1((PyList::new(py, inputs)?,))?;
            // The package has checked number, element types and shapes, and made the arrays dense.
            let results: Vec<Bound<'_, PyUntypedArray>> = result.extract()?;
            for (output, array) in call.outputs.iter_mut().zip(&results) {
                let tensor = tensor_of_array(array)?;
                let bytes = output.bytes_mut();
                if tensor.bytes().len() != bytes.len() {
                    let (expected, found) = (bytes.len(), tensor.bytes().len());
                    let message = format!("{}: expected an output of {expected} bytes, found {found}", self.symbol);
                    return Err(PyValueError::new_err(message));
                }
                bytes.copy_from_slice(tensor.bytes());
            }
            Ok(())
        })
    }
}

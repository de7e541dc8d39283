//! Models: compilation, artifacts, runs.

use crate::array::bytes_of;
use crate::callback;
use crate::kept::StoredCompilation;
use crate::pending::{self, Pending};
use crate::relay::module::RelayModule;
use crate::session::Session;
use crate::values::{objects_of, tensors_of};
use crate::wait::interruptible;
use crate::{error, fork, trace};
use byoc::driver::explanation::Explanation;
use byoc::runtime::exec::check_inputs;
use byoc::runtime::fork::Generation;
use byoc::runtime::value;
use byoc::{
    Cancel, Compilation, CompileOptions, Diagnostic, Dim, Inputs, Interface, OnFailure, Outputs, Port, RunOptions,
    Source, Tensor,
};
use byoc_ir::diag::codes;
use byoc_ir::interface::PortKind;
use numpy::PyUntypedArray;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use smallvec::SmallVec;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Compiled model that is ready to run. Any number of threads may run it at the same time.
#[pyclass(frozen, subclass, weakref, module = "byoc._byoc")]
pub struct Model {
    /// Loaded model; `None` after `close`.
    model: Mutex<Option<byoc::Model>>,
    stored_compilation: StoredCompilation,
    explanation: Explanation,
    session: Arc<byoc::Session>,
    generation: Generation,
    inputs: Vec<Port>,
    optional_inputs: Vec<Port>,
    outputs: Vec<Port>,
    /// Duration of the last run in nanoseconds. Ctrl-C can interrupt a run only if the previous run was long.
    last_run: AtomicU64,
}

impl Drop for Model {
    /// Leaks the model in a child process: its destructor could wait for threads that do not exist there.
    fn drop(&mut self) {
        if !self.generation.is_current() {
            std::mem::forget(self.model.get_mut().unwrap_or_else(PoisonError::into_inner).take());
            std::mem::forget(self.session.clone());
        }
    }
}

/// Minimum duration of a run, in nanoseconds, after which Ctrl-C can interrupt the next run.
const INTERRUPTIBLE: u64 = 20_000_000;

type AnyObject<'py> = Bound<'py, PyAny>;
type Tensors = SmallVec<[Tensor; 4]>;

/// Model or artifact passed from Python: a path, or the bytes of the file.
#[derive(FromPyObject)]
enum ModelArgument<'py> {
    Bytes(Bound<'py, PyBytes>),
    Path(PathBuf),
    /// Module that Python has built.
    Module(PyRef<'py, RelayModule>),
    /// Bytes as a uint8 array, which is not copied.
    Array(Bound<'py, PyUntypedArray>),
}

impl ModelArgument<'_> {
    fn source(self, folder: Option<PathBuf>) -> PyResult<Source> {
        Ok(match self {
            ModelArgument::Path(path) => Source::Path(path),
            ModelArgument::Bytes(bytes) => Source::Bytes { bytes: bytes.as_bytes().to_vec().into(), folder },
            ModelArgument::Module(module) => Source::Module(module.typed(module.py())?),
            ModelArgument::Array(array) => Source::Bytes { bytes: bytes_of(&array)?, folder },
        })
    }
}

/// Compilation options passed from Python.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Choices {
    backends: Vec<String>,
    /// Backend options, as (backend, option, value).
    options: Vec<(String, String, String)>,
    fixed_dims: Vec<(String, usize)>,
    /// Names of symbolic dimensions, each with the sizes for which specialized programs are compiled.
    open_dims: Vec<(String, Vec<usize>)>,
    input_shapes: Vec<(String, Vec<usize>)>,
    /// True to compile programs for shapes that come again.
    adapt: bool,
    /// Lowest precision of computation that a float32 model allows.
    precision: String,
    /// True if backends receive only the regions of the module.
    keep_partition: bool,
    /// True if the regions of the module run on the host as well.
    host_only: bool,
    /// Fate of a region that its backend fails to compile.
    on_failure: String,
    /// Python function called with a description of each stage.
    progress: Option<Py<PyAny>>,
}

impl Choices {
    fn options(self, cancel: &Cancel) -> PyResult<CompileOptions> {
        let mut options = CompileOptions::new().open_unbound_dims().cancel(cancel.clone());
        let precision = self.precision.parse();
        options = options
            .precision(precision.map_err(|reason: String| PyValueError::new_err(format!("precision: {reason}")))?);
        if self.keep_partition {
            options = options.keep_partition();
        }
        if self.host_only {
            options = options.host_only();
        }
        if let Some(policy) = OnFailure::parse(&self.on_failure) {
            options = options.on_failure(policy);
        }
        for backend in self.backends {
            options = options.backend(backend);
        }
        for (backend, option, value) in self.options {
            options = options.backend_option(backend, option, value);
        }
        for (name, size) in self.fixed_dims {
            options = options.dim(name, size);
        }
        for (name, sizes) in self.open_dims {
            options = options.open_dim(name, sizes);
        }
        for (name, shape) in self.input_shapes {
            options = options.input_shape(name, shape);
        }
        if let Some(progress) = self.progress {
            options = options.progress(move |stage| {
                callback::call(|py| progress.call1(py, (stage.to_string(),)).map(drop));
            });
        }
        Ok(options)
    }
}

#[pymethods]
impl Model {
    /// Compiles and loads a model, or loads an artifact if `choices` is `None`.
    #[new]
    #[pyo3(signature = (session, source, folder=None, choices=None))]
    fn new(
        py: Python<'_>,
        session: &Session,
        source: ModelArgument<'_>,
        folder: Option<PathBuf>,
        choices: Option<Choices>,
    ) -> PyResult<Model> {
        fork::check(session.generation, py)?;
        let source = source.source(folder)?;
        let engine = session.session.clone();
        let cancel = engine.cancel.part(None);
        let adapt = choices.as_ref().is_some_and(|choices| choices.adapt);
        let options = choices.map(|choices| choices.options(&cancel)).transpose()?;
        let compile_result = interruptible(py, &cancel, || {
            let _scope = cancel.enter();
            error::catch_panics(|| {
                let compilation = match &options {
                    Some(options) => Compilation::new(&engine, source.clone(), options)?,
                    None => Compilation::open(source.clone())?,
                };
                let stored_compilation = match &options {
                    Some(_) => StoredCompilation::new(&compilation, &session.spare_folders()),
                    // The constants of an artifact are views of its mapped file.
                    None => StoredCompilation::in_memory(compilation.clone()),
                };
                let model = match options.clone().filter(|_| adapt) {
                    Some(options) => byoc::Model::adaptive(&engine, compilation, source, options)?,
                    None => byoc::Model::of(&engine, compilation)?,
                };
                Ok((model, stored_compilation))
            })
        })?;
        let (model, stored_compilation) = error::result(py, compile_result)?;
        let (inputs, outputs) = (model.inputs().to_vec(), model.outputs().to_vec());
        let optional_inputs = model.optional_inputs().to_vec();
        let explanation = model.explanation().in_interface(Interface::Python);
        let (model, last_run) = (Mutex::new(Some(model)), AtomicU64::new(u64::MAX));
        let generation = session.generation;
        Ok(Model {
            model,
            stored_compilation,
            explanation,
            session: engine,
            generation,
            inputs,
            optional_inputs,
            outputs,
            last_run,
        })
    }

    /// Runs the model on values in the order of its inputs, or by name. Returns the result, or a tuple of several
    /// results.
    #[pyo3(signature = (*values, **named))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        values: &Bound<'py, PyTuple>,
        named: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<AnyObject<'py>> {
        let tensors = match named {
            None => self.ordered_tensors(py, values.iter_borrowed().map(|value| value.to_owned()))?,
            Some(named) if values.is_empty() => self.named_tensors(named)?,
            Some(_) => return Err(PyTypeError::new_err("expected inputs by position or by name, found both")),
        };
        let outputs = self.run_tensors(py, &tensors, RunOptions::default())?.into_tensors();
        let mut objects = objects_of(py, &self.outputs, outputs)?;
        match objects.len() {
            1 => Ok(objects.remove(0)),
            _ => Ok(PyTuple::new(py, objects)?.into_any()),
        }
    }

    /// Runs the model on values by name or in order. Returns the results as a list, in the order of the outputs.
    #[pyo3(signature = (feeds, timeout=None, cancel=None))]
    fn run_list<'py>(
        &self,
        py: Python<'py>,
        feeds: &AnyObject<'py>,
        timeout: Option<f64>,
        cancel: Option<&pending::Cancel>,
    ) -> PyResult<Vec<AnyObject<'py>>> {
        let tensors = self.feeds(py, feeds)?;
        let cancel = cancel.map(|cancel| cancel.token().clone());
        let outputs =
            self.run_tensors(py, &tensors, RunOptions { timeout: limit(timeout)?, cancel, ..RunOptions::default() })?;
        objects_of(py, &self.outputs, outputs.into_tensors())
    }

    /// Variant of `run_list` that also returns one event per step. An event holds the name of the operator or region,
    /// the backend or `None`, the operators of the model as pairs of name and type, and the start and the duration in
    /// seconds.
    fn run_traced<'py>(
        &self,
        py: Python<'py>,
        feeds: &AnyObject<'py>,
    ) -> PyResult<(Vec<AnyObject<'py>>, Vec<trace::Event>)> {
        let tensors = self.feeds(py, feeds)?;
        let model = self.open_model(py)?;
        let events = trace::Events::new();
        let outcome = py.detach(|| error::catch_panics(|| model.run_observed(Inputs::ordered(&tensors), &events)));
        let outputs = error::result(py, outcome)?.into_tensors();
        Ok((objects_of(py, &self.outputs, outputs)?, events.into_list()))
    }

    /// Variant of `run_list` that returns the results as a dictionary by output name. `options` are backend options for
    /// this run.
    #[pyo3(signature = (feeds, timeout=None, options=None))]
    fn run_dict<'py>(
        &self,
        py: Python<'py>,
        feeds: &AnyObject<'py>,
        timeout: Option<f64>,
        options: Option<Vec<(String, String, String)>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let tensors = self.feeds(py, feeds)?;
        let mut run_options = RunOptions { timeout: limit(timeout)?, ..RunOptions::default() };
        for (backend, option, value) in options.unwrap_or_default() {
            run_options = run_options
                .backend_option(&self.session, &backend, &option, &value)
                .map_err(|error| error::of(py, error))?;
        }
        let outputs = self.run_tensors(py, &tensors, run_options)?;
        let dict = PyDict::new(py);
        let objects = objects_of(py, &self.outputs, outputs.into_tensors())?;
        for (ports, object) in value::by_value(&self.outputs).zip(objects) {
            dict.set_item(&ports[0].name, object)?;
        }
        Ok(dict)
    }

    /// Starts a run. `done` is called on a different thread when the run ends. If the second result is true, the run
    /// has already ended, and `done` is not called.
    fn start<'py>(&self, py: Python<'py>, feeds: &AnyObject<'py>, done: Py<PyAny>) -> PyResult<(Pending, bool)> {
        let tensors = self.feeds(py, feeds)?;
        let model = self.open_model(py)?;
        let future = py.detach(|| model.run_async(Inputs::ordered(&tensors), &RunOptions::default()));
        let future = future.map_err(|error| error::of(py, error))?;
        Ok(Pending::new(future, self.outputs.clone(), done))
    }

    /// Returns the name, element type and dimensions of each input; a dimension is a number, a name, or `None`.
    #[getter]
    fn input_ports<'py>(&self, py: Python<'py>) -> PyResult<Vec<(String, String, Bound<'py, PyList>)>> {
        value::by_value(&self.inputs).map(|ports| describe(py, ports)).collect()
    }

    /// Returns the name, element type and dimensions of each input with a default value.
    #[getter]
    fn optional_input_ports<'py>(&self, py: Python<'py>) -> PyResult<Vec<(String, String, Bound<'py, PyList>)>> {
        self.optional_inputs.chunks(1).map(|ports| describe(py, ports)).collect()
    }

    /// Returns the name, element type and dimensions of each output; a dimension is a number, a name, or `None`.
    #[getter]
    fn output_ports<'py>(&self, py: Python<'py>) -> PyResult<Vec<(String, String, Bound<'py, PyList>)>> {
        value::by_value(&self.outputs).map(|ports| describe(py, ports)).collect()
    }

    /// Returns the number of programs compiled for shapes that came again.
    #[getter]
    fn adapted(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.open_model(py)?.adapted())
    }

    /// Returns the sources of the regions: symbol, language and text.
    fn region_sources(&self) -> Vec<(String, String, String)> {
        self.stored_compilation.compilation().region_sources()
    }

    /// Returns the explanation as JSON.
    fn explanation_json(&self) -> String {
        serde_json::to_string(&self.explanation).unwrap_or_default()
    }

    /// Returns the plan as JSON.
    fn plan_json(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.open_model(py)?.plan().to_json().to_string())
    }

    /// Returns the explanation as text, as printed by `byoc explain`.
    fn explanation_text(&self, full: bool) -> String {
        byoc_cli::report::explanation_text(&self.explanation, full)
    }

    /// Returns the explanation as an HTML page.
    fn explanation_page(&self, title: &str) -> String {
        byoc_cli::report::explanation_page(title, &self.explanation)
    }

    /// Returns the warnings from compiling and loading the model.
    #[getter]
    fn warnings(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let warnings = self.open_model(py)?.warnings_in(Interface::Python);
        Ok(warnings.iter().map(|warning| format!("{}: {}", warning.code, warning.message)).collect())
    }

    /// Writes the model to an artifact.
    fn save_to(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let write_result = py.detach(|| error::catch_panics(|| self.stored_compilation.compilation().save(path)));
        error::result(py, write_result)
    }

    /// Returns the model as the bytes of an artifact.
    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = py.detach(|| error::catch_panics(|| self.stored_compilation.compilation().to_bytes()));
        Ok(PyBytes::new(py, &error::result(py, bytes)?))
    }

    /// Returns true if the compilation retained for saving is in a file instead of in memory.
    #[getter]
    fn is_kept_in_file(&self) -> bool {
        self.stored_compilation.is_in_file()
    }

    /// Releases the model's memory once the runs in progress have ended.
    fn close(&self, py: Python<'_>) {
        let model = self.model.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(model));
    }
}

impl Model {
    fn open_model(&self, py: Python<'_>) -> PyResult<byoc::Model> {
        fork::check(self.generation, py)?;
        let model = self.model.lock().unwrap_or_else(PoisonError::into_inner).clone();
        model.ok_or_else(|| {
            let message = "the model is closed";
            let diagnostic = Diagnostic::error(codes::runtime::MODEL_GONE, message);
            error::new(py, "ClosedError", diagnostic.help("load or compile the model again"))
        })
    }

    fn feeds(&self, py: Python<'_>, feeds: &AnyObject<'_>) -> PyResult<Tensors> {
        if let Ok(named) = feeds.cast::<PyDict>() {
            return self.named_tensors(named);
        }
        if let Ok(list) = feeds.cast::<PyList>() {
            return self.ordered_tensors(py, list.iter());
        }
        if let Ok(tuple) = feeds.cast::<PyTuple>() {
            return self.ordered_tensors(py, tuple.iter());
        }
        let message = format!("expected a dictionary of inputs by name, or a list, found {}", feeds.get_type());
        Err(PyTypeError::new_err(message))
    }

    fn ordered_tensors<'py>(
        &self,
        py: Python<'py>,
        values: impl ExactSizeIterator<Item = AnyObject<'py>>,
    ) -> PyResult<Tensors> {
        let count = value::by_value(&self.inputs).count();
        if values.len() != count {
            let found = self.inputs.len() - count + values.len();
            check_inputs(&self.inputs, &vec![Tensor::empty(); found]).map_err(|error| error::of(py, error))?;
        }
        let mut tensors = Tensors::new();
        for (ports, value) in value::by_value(&self.inputs).zip(values) {
            tensors.extend(tensors_of(&value, ports)?);
        }
        Ok(tensors)
    }

    fn named_tensors(&self, values: &Bound<'_, PyDict>) -> PyResult<Tensors> {
        let mut tensors = Tensors::new();
        let mut given = 0;
        for ports in value::by_value(&self.inputs) {
            let value = match values.get_item(&ports[0].name)? {
                Some(value) => value,
                // An optional value may be left out.
                None if matches!(ports[0].kind, PortKind::Optional | PortKind::OptionalSequence) => {
                    values.py().None().into_bound(values.py())
                }
                None => break,
            };
            given += usize::from(values.contains(&ports[0].name)?);
            tensors.extend(tensors_of(&value, ports)?);
        }
        if values.len() == given && tensors.len() == self.inputs.len() {
            return Ok(tensors);
        }
        // There are optional inputs, or the names do not match; the library's error lists the expected names.
        let mut named = Vec::with_capacity(values.len());
        for (name, value) in values {
            let name = name.to_string();
            let mut all = value::by_value(&self.inputs).chain(self.optional_inputs.chunks(1));
            match all.find(|ports| ports[0].name == name) {
                Some(ports) => {
                    let names = ports.iter().map(|port| port.name.clone());
                    named.extend(names.zip(tensors_of(&value, ports)?));
                }
                None => named.push((name, Tensor::empty())),
            }
        }
        let bound = self.open_model(values.py())?.loaded().bind(named);
        Ok(bound.map_err(|error| error::of(values.py(), error))?.into())
    }

    /// Runs the model with the interpreter's lock released.
    fn run_tensors(&self, py: Python<'_>, tensors: &Tensors, options: RunOptions) -> PyResult<Outputs> {
        let model = self.open_model(py)?;
        let run = |options: &RunOptions| {
            let start = Instant::now();
            let outcome = error::catch_panics(|| model.run_with(Inputs::ordered(tensors), options));
            let duration = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.last_run.store(duration, Ordering::Relaxed);
            outcome
        };
        let outcome = if self.last_run.load(Ordering::Relaxed) < INTERRUPTIBLE {
            py.detach(|| run(&options))
        } else {
            let cancel = options.cancel.as_ref().unwrap_or(&self.session.cancel).part(options.timeout);
            let options = RunOptions { timeout: None, cancel: Some(cancel.clone()), ..options.clone() };
            interruptible(py, &cancel, || run(&options))?
        };
        error::result(py, outcome)
    }
}

/// Converts a time limit in seconds.
fn limit(seconds: Option<f64>) -> PyResult<Option<Duration>> {
    let Some(seconds) = seconds else { return Ok(None) };
    match Duration::try_from_secs_f64(seconds) {
        Ok(limit) if seconds > 0.0 => Ok(Some(limit)),
        _ => Err(PyValueError::new_err(format!("timeout: expected a positive number of seconds, found {seconds}"))),
    }
}

fn describe<'py>(py: Python<'py>, ports: &[Port]) -> PyResult<(String, String, Bound<'py, PyList>)> {
    let (port, dims) = (&ports[0], PyList::empty(py));
    let dtype = match port.kind {
        PortKind::Strings => "string".to_owned(),
        PortKind::Tensor | PortKind::Part => port.ty.dtype.to_string(),
        _ => return Ok((port.name.clone(), value::type_text(ports), dims)),
    };
    for dim in &port.ty.dims {
        match dim {
            Dim::Fixed(size) => dims.append(size)?,
            Dim::Any => dims.append(py.None())?,
            symbolic => dims.append(symbolic.to_string())?,
        }
    }
    Ok((port.name.clone(), dtype, dims))
}

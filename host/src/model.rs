//! Library interface for loaded models.

use crate::adaptive::{Adaptive, Chosen};
use crate::compilation::{Compilation, CompileOptions, Source};
use crate::driver::Stage;
use crate::driver::backend::check_run_option;
use crate::driver::explanation::Explanation;
use crate::error::Error;
use crate::plan::Plan;
use crate::run_async::{Executors, RunFuture};
use crate::values::{Input, Inputs, Outputs};
use crate::wording::Interface;
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::tensor::{AlignedBytes, Tensor, TensorView, TensorViewMut};
use byoc_plugin_api::host::run_options::{BackendOptions, Scope};
use byoc_runtime::Session;
use byoc_runtime::cancel::Cancel;
use byoc_runtime::choices::base_name;
use byoc_runtime::exec::Observer;
use byoc_runtime::exec::program::Port;
use smallvec::SmallVec;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Loaded model, which can be run from any thread. Cloning is cheap; clones share all state.
#[derive(Clone)]
pub struct Model(Arc<Inner>);

struct Inner {
    loaded: byoc_runtime::Model,
    adaptive: Option<Adaptive>,
    names: Arc<[String]>,
    explanation: Arc<Explanation>,
    warnings: Vec<Diagnostic>,
    /// Same as `warnings`, with texts that name command-line options.
    plain_warnings: Vec<Diagnostic>,
    cancel: Cancel,
    executors: Executors,
    /// Free buffers for copies of borrowed inputs.
    staging: Mutex<Vec<Arc<AlignedBytes>>>,
}

/// Maximum number of free staging buffers.
const MAX_STAGED: usize = 32;

/// Run options.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// Time limit; a run that exceeds it ends with [`Error::TimedOut`].
    pub timeout: Option<Duration>,
    /// Cancellation that any thread may request.
    pub cancel: Option<Cancel>,
    /// Backend options, which override the session's backend options; see [`RunOptions::backend_option`].
    pub backend_options: BackendOptions,
}

impl RunOptions {
    /// Sets a backend option for the run, if the backend describes it as a run option.
    ///
    /// # Errors
    /// If no plugin registers the backend, the backend has no such run option, or the option does not accept the value.
    pub fn backend_option(
        mut self,
        session: &Session,
        backend: &str,
        option: &str,
        value: &str,
    ) -> Result<RunOptions, Error> {
        check_run_option(&session.registry, backend, option, value)?;
        self.backend_options.set(base_name(backend), option, value);
        Ok(self)
    }

    /// Applies the backend options to the runs of this thread, until the returned scope is dropped.
    fn enter(&self) -> Option<Scope> {
        (!self.backend_options.is_empty()).then(|| self.backend_options.clone().enter())
    }

    /// Returns the cancellation of a run; `None` if the run uses the cancellation of the session.
    pub fn cancellation(&self, session: &Cancel) -> Option<Cancel> {
        match (&self.cancel, self.timeout) {
            (None, None) => None,
            (Some(cancel), None) => Some(cancel.clone()),
            (cancel, timeout) => Some(cancel.as_ref().unwrap_or(session).part(timeout)),
        }
    }
}

impl Model {
    /// Compiles and loads a model.
    ///
    /// # Errors
    /// Same as [`Compilation::new`] and [`Model::of`].
    pub fn compile(session: &Session, source: impl Into<Source>, options: &CompileOptions) -> Result<Model, Error> {
        let _scope = options.cancellation(session).enter();
        Model::of(session, Compilation::new(session, source, options)?)
    }

    /// Opens and loads an artifact.
    ///
    /// # Errors
    /// Same as [`Compilation::open`] and [`Model::of`].
    pub fn load(session: &Session, source: impl Into<Source>) -> Result<Model, Error> {
        Model::of(session, Compilation::open(source)?)
    }

    /// Loads a compilation, with each region passed to the loader of its backend. A region that the loader refuses runs
    /// on the host; [`Model::warnings`] contains the reason.
    ///
    /// # Errors
    /// If an operator can run only on the host and has no host implementation, or the load is cancelled.
    pub fn of(session: &Session, compilation: Compilation) -> Result<Model, Error> {
        Model::with(session, compilation, None)
    }

    /// Loads the compilation of a model with unknown sizes, as [`Model::of`] does, and adapts it to its inputs: shapes
    /// that come twice in a row get a program of their own, compiled from `source` with the same options while the second
    /// run waits. There are at most four such programs, each compiled after more runs than the one before, and their
    /// constants have at most 512 MiB. Runs with a time limit compile nothing, and nor do models with weights in other files, or
    /// with regions that have state.
    ///
    /// # Errors
    /// Same as [`Model::of`].
    pub fn adaptive(
        session: &Arc<Session>,
        compilation: Compilation,
        source: Source,
        options: CompileOptions,
    ) -> Result<Model, Error> {
        let adaptive = Adaptive::new(session, &compilation, source, options);
        Model::with(session, compilation, adaptive)
    }

    fn with(session: &Session, compilation: Compilation, adaptive: Option<Adaptive>) -> Result<Model, Error> {
        if let Some(progress) = &compilation.progress {
            progress.report(&Stage::Load);
        }
        let (explanation, mut plain_warnings) = (compilation.shared_explanation(), compilation.warnings().to_vec());
        let compiled = Arc::unwrap_or_clone(compilation.compiled);
        let (loaded, load_warnings) = byoc_runtime::Model::load(session, compiled, session.cache_dir.as_deref())?;
        plain_warnings.extend(load_warnings);
        let adaptive = adaptive.filter(|_| !loaded.is_stateful());
        let warnings = plain_warnings.iter().map(|warning| Interface::Rust.diagnostic(warning)).collect();
        let names = loaded.outputs().iter().map(|port| port.name.clone()).collect();
        let executors = Executors::new(session.pool.threads());
        let cancel = session.cancel.clone();
        let staging = Mutex::default();
        let inner =
            Inner { loaded, adaptive, names, explanation, warnings, plain_warnings, cancel, executors, staging };
        Ok(Model(Arc::new(inner)))
    }

    /// Returns the inputs of the model.
    pub fn inputs(&self) -> &[Port] {
        self.0.loaded.inputs()
    }

    /// Returns the inputs that have a default value, which a run by name may replace.
    pub fn optional_inputs(&self) -> &[Port] {
        self.0.loaded.optional_inputs()
    }

    /// Returns the outputs of the model.
    pub fn outputs(&self) -> &[Port] {
        self.0.loaded.outputs()
    }

    /// Returns the placement of each operator at compilation, and the reasons for refusals by backends; see
    /// [`Compilation::explanation`].
    pub fn explanation(&self) -> &Explanation {
        &self.0.explanation
    }

    /// Returns the warnings of compilation and loading.
    pub fn warnings(&self) -> &[Diagnostic] {
        &self.0.warnings
    }

    /// Resets stateful regions, whose state persists between runs, to their state after loading. Each loaded model has
    /// separate state, which its clones share.
    ///
    /// # Errors
    /// If a backend cannot reset its state.
    pub fn reset_state(&self) -> Result<(), Error> {
        Ok(self.0.loaded.reset_state()?)
    }

    /// Releases the memory retained between runs: activations, input copies, and the plans that backends prepared for
    /// earlier input dimensions. The next run allocates the memory again.
    pub fn release_memory(&self) {
        self.0.staging.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.0.loaded.release_memory();
        if let Some(adaptive) = &self.0.adaptive {
            adaptive.release_memory();
        }
    }

    /// Returns the number of programs that were compiled for shapes that came again; see [`Model::adaptive`].
    pub fn adapted(&self) -> usize {
        self.0.adaptive.as_ref().map_or(0, Adaptive::count)
    }

    /// Returns the warnings with texts that name the options or functions of `interface`.
    pub fn warnings_in(&self, interface: Interface) -> Vec<Diagnostic> {
        self.0.plain_warnings.iter().map(|warning| interface.diagnostic(warning)).collect()
    }

    /// Returns the plan of the model, with the steps of a run.
    pub fn plan(&self) -> Plan<'_> {
        let executor = self.0.loaded.executor();
        let program = executor.program();
        let entry = program.entry as usize;
        let arena_bytes = program.functions.get(entry).map_or(0, |function| function.arena);
        Plan { functions: executor.steps(), entry, arena_bytes, program }
    }

    /// Returns the underlying model of the runtime crate.
    pub fn loaded(&self) -> &byoc_runtime::Model {
        &self.0.loaded
    }

    /// Runs the model.
    ///
    /// # Errors
    /// If the inputs do not match the model, a step fails, or a limit is reached.
    pub fn run<'a>(&self, inputs: impl Into<Inputs<'a>>) -> Result<Outputs, Error> {
        self.run_with(inputs, &RunOptions::default())
    }

    /// Runs the model with options.
    ///
    /// # Errors
    /// Same as [`Model::run`], and [`Error::Cancelled`] if the run is cancelled or [`Error::TimedOut`] if it exceeds
    /// its time limit.
    pub fn run_with<'a>(&self, inputs: impl Into<Inputs<'a>>, options: &RunOptions) -> Result<Outputs, Error> {
        let bound = self.bind(inputs.into())?;
        let cancel = options.cancellation(&self.0.cancel);
        let _scope = options.enter();
        let cancel = cancel.as_ref().unwrap_or(&self.0.cancel);
        let tensors = self.0.loaded_for(&bound, cancel, options).run_under(&bound, cancel)?;
        Ok(Outputs { names: self.0.names.clone(), tensors })
    }

    /// Runs the model; the observer receives an event for every step.
    ///
    /// # Errors
    /// Same as [`Model::run`].
    pub fn run_observed<'a>(&self, inputs: impl Into<Inputs<'a>>, observer: &dyn Observer) -> Result<Outputs, Error> {
        let bound = self.bind(inputs.into())?;
        let tensors =
            self.0.loaded_for(&bound, &self.0.cancel, &RunOptions::default()).run_observed(&bound, observer)?;
        Ok(Outputs { names: self.0.names.clone(), tensors })
    }

    /// Runs the model with options; the observer receives an event for every step.
    ///
    /// # Errors
    /// Same as [`Model::run_with`].
    pub fn run_observed_with<'a>(
        &self,
        inputs: impl Into<Inputs<'a>>,
        observer: &dyn Observer,
        options: &RunOptions,
    ) -> Result<Outputs, Error> {
        let bound = self.bind(inputs.into())?;
        let cancel = options.cancellation(&self.0.cancel);
        let cancel = cancel.as_ref().unwrap_or(&self.0.cancel);
        let _scope = options.enter();
        let tensors = self.0.loaded_for(&bound, cancel, options).run_observed_under(&bound, observer, cancel)?;
        Ok(Outputs { names: self.0.names.clone(), tensors })
    }

    /// Runs the model and writes the results to caller-provided memory, in the order of the outputs. From the second
    /// run on, a model with known dimensions and without control flow allocates nothing on the host. If the memory is
    /// aligned to 64 bytes, operators write results of known dimensions to it directly; otherwise, they are copied.
    ///
    /// # Errors
    /// Same as [`Model::run`], and if the memory for an output does not match its type. After an error, the contents of
    /// `outputs` are unspecified.
    pub fn run_into<'a>(
        &self,
        inputs: impl Into<Inputs<'a>>,
        outputs: &mut [TensorViewMut<'_>],
        options: &RunOptions,
    ) -> Result<(), Error> {
        let bound = self.bind(inputs.into())?;
        let cancel = options.cancellation(&self.0.cancel);
        let _scope = options.enter();
        let cancel = cancel.as_ref().unwrap_or(&self.0.cancel);
        Ok(self.0.loaded_for(&bound, cancel, options).run_into(&bound, outputs, cancel)?)
    }

    /// Starts a run on a separate thread. The future works with any executor; dropping it cancels the run.
    ///
    /// # Errors
    /// If the inputs do not match the model.
    pub fn run_async<'a>(&self, inputs: impl Into<Inputs<'a>>, options: &RunOptions) -> Result<RunFuture, Error> {
        let bound = self.bind(inputs.into())?;
        let cancel = options.cancellation(&self.0.cancel).unwrap_or_else(|| self.0.cancel.part(None));
        let (inner, token, options) = (self.0.clone(), cancel.clone(), options.clone());
        Ok(self.0.executors.start(cancel, move || {
            let _scope = options.enter();
            let tensors = inner.loaded_for(&bound, &token, &options).run_under(&bound, &token)?;
            Ok(Outputs { names: inner.names.clone(), tensors })
        }))
    }

    /// Reorders the inputs to match the model, and copies borrowed inputs.
    fn bind(&self, inputs: Inputs<'_>) -> Result<SmallVec<[Tensor; 4]>, Error> {
        let mut values = inputs.0;
        if values.iter().all(|(name, _)| name.is_none()) {
            return values.into_iter().map(|(_, input)| self.owned_tensor(input)).collect();
        }
        let ports = self.inputs();
        let is_given_once = |port: &Port| values.iter().filter(|(name, _)| *name == Some(&port.name)).count() == 1;
        if values.len() != ports.len() || !ports.iter().all(is_given_once) {
            let named = |(name, input): (Option<&str>, Input<'_>)| {
                Ok((name.unwrap_or_default().to_owned(), self.owned_tensor(input)?))
            };
            let named_tensors = values.into_iter().map(named).collect::<Result<Vec<_>, Error>>()?;
            return Ok(self.0.loaded.bind(named_tensors)?.into());
        }
        let mut bound = SmallVec::with_capacity(ports.len());
        for port in ports {
            let index = values.iter().position(|(name, _)| *name == Some(&port.name)).unwrap_or_default();
            bound.push(self.owned_tensor(values.swap_remove(index).1)?);
        }
        Ok(bound)
    }

    /// Returns an input as a tensor; borrowed elements are copied to memory that later runs reuse.
    fn owned_tensor(&self, input: Input<'_>) -> Result<Tensor, Error> {
        let view = match input {
            Input::Tensor(tensor) => return Ok(tensor),
            Input::View(view) => view,
        };
        let TensorView { dtype, shape, data } = view;
        let spare_memory = self.spare_memory(data.len()).and_then(|mut memory| {
            Arc::get_mut(&mut memory)?.as_mut().copy_from_slice(data);
            Some(memory)
        });
        let memory = match spare_memory {
            Some(memory) => memory,
            None => Arc::new(AlignedBytes::copy_of(data).map_err(Diagnostic::from)?),
        };
        {
            let mut staging = self.0.staging.lock().unwrap_or_else(PoisonError::into_inner);
            if staging.len() < MAX_STAGED {
                staging.push(memory.clone());
            }
        }
        Tensor::from_storage(dtype, shape, memory).ok_or_else(|| {
            let message = format!("expected data of type {dtype}{shape:?}, found {} bytes", data.len());
            Diagnostic::error(codes::runtime::INPUT_SHAPE, message).into()
        })
    }

    /// Removes and returns a free buffer of `bytes` bytes; `None` if there is none.
    fn spare_memory(&self, bytes: usize) -> Option<Arc<AlignedBytes>> {
        let mut staging = self.0.staging.lock().unwrap_or_else(PoisonError::into_inner);
        let is_reusable =
            |memory: &Arc<AlignedBytes>| memory.as_ref().as_ref().len() == bytes && Arc::strong_count(memory) == 1;
        let index = staging.iter().position(is_reusable)?;
        Some(staging.swap_remove(index))
    }
}

impl Inner {
    /// Returns the program for the inputs of a run: the general one, or one for their shapes, which is compiled if they
    /// came often enough and the run has no time limit.
    fn loaded_for(&self, inputs: &[Tensor], cancel: &Cancel, options: &RunOptions) -> Chosen<'_> {
        let cancel = Some(cancel).filter(|_| options.timeout.is_none());
        let specialized = self.adaptive.as_ref().and_then(|adaptive| adaptive.program(inputs, cancel));
        specialized.map_or(Chosen::General(&self.loaded), Chosen::Specialized)
    }
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Model({} inputs, {} regions)", self.inputs().len(), self.0.loaded.regions)
    }
}

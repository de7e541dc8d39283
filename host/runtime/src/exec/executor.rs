//! Runs a program repeatedly, possibly from several threads at a time.

use super::device::DeviceSpaces;
use super::inputs::{check_inputs, check_outputs, order_inputs, show};
use super::interpreter::{self, Results};
use super::pool::Pool;
use super::prepared::{PreparedProgram, Threading};
use super::program::{Place, Program};
use super::region::Region;
use super::trace::{Observer, StepInfo};
use super::validate::validate;
use crate::cancel::{Cancel, MAX_CALLS};
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::tensor::{Tensor, TensorViewMut};
use byoc_kernels::split;
use byoc_plugin_api::host::run_options::BackendOptions;
use std::sync::{Arc, OnceLock};

/// Program prepared for execution. Kernels are created and weights are packed once, and shared by concurrent runs.
///
/// Memory is reused between runs: from the second run on, a straight-line program with known dimensions allocates
/// nothing but its outputs.
pub struct Executor {
    prepared_program: PreparedProgram,
    /// Program without the backend whose device was lost.
    without_lost: OnceLock<Result<PreparedProgram, Diagnostic>>,
    on_caller: bool,
    /// False if the loss of a device is an error.
    has_fallback: bool,
    /// Backend options for every run.
    options: Option<BackendOptions>,
    cancel: Cancel,
    max_calls: u64,
}

impl Executor {
    /// Prepares a program for execution. `constants` are the values of `program.constants`; `regions` corresponds to
    /// `program.regions`, with `None` for a region that runs on the host.
    ///
    /// # Errors
    /// If the program is invalid, or the host has to run an operator that it does not implement.
    pub fn new(
        program: Program,
        constants: Vec<Tensor>,
        regions: Vec<Option<Arc<dyn Region>>>,
        pool: Arc<Pool>,
    ) -> Result<Executor, Diagnostic> {
        Executor::with_partial_constants(program, constants.into_iter().map(Some).collect(), regions, Vec::new(), pool)
    }

    /// Same as [`Executor::new`], with device memory for the program's spaces, and with constants that may be absent if
    /// nothing reads them while every region runs on its backend; see
    /// [`needed_constants`](super::constants::needed_constants).
    ///
    /// # Errors
    /// Same as [`Executor::new`], and E0616 if a backend refuses a region whose host program reads an absent constant.
    pub fn with_partial_constants(
        program: Program,
        constants: Vec<Option<Tensor>>,
        regions: Vec<Option<Arc<dyn Region>>>,
        mut spaces: DeviceSpaces,
        pool: Arc<Pool>,
    ) -> Result<Executor, Diagnostic> {
        validate(&program)?;
        spaces.resize(program.spaces.len(), None);
        for (index, space) in spaces.iter_mut().enumerate() {
            if space.as_ref().is_some_and(|space| !has_aligned_offsets(&program, index, space.memory.alignment())) {
                *space = None;
            }
        }
        check_constants(&program, &constants)?;
        let cancel = Cancel::current().unwrap_or_default();
        Ok(Executor {
            prepared_program: PreparedProgram::new(program, constants, regions, spaces, pool)?,
            without_lost: OnceLock::new(),
            on_caller: false,
            has_fallback: true,
            options: None,
            cancel,
            max_calls: MAX_CALLS,
        })
    }

    /// Releases the constants that are read only by host programs of regions that are certain to run on their backends.
    pub fn release_constants(&mut self) {
        self.prepared_program.release_constants();
    }

    /// Runs regions on the calling thread instead of on a thread of the pool. This is meant for backends with their own
    /// threads: OpenMP creates a team for every thread that calls it, so regions called from several pool threads would
    /// create several teams, and the idle teams would compete with the active team for processors. Host kernels still
    /// run on the pool.
    #[must_use]
    pub fn with_regions_on_caller(mut self) -> Executor {
        self.on_caller = true;
        self
    }

    /// Makes a lost device an error of the run, which the host otherwise repeats.
    #[must_use]
    pub fn without_fallback(mut self) -> Executor {
        self.has_fallback = false;
        self
    }

    /// Sets backend options for every run. Options of the scope in which a run is started ([`BackendOptions::enter`])
    /// take precedence.
    #[must_use]
    pub fn with_options(mut self, options: BackendOptions) -> Executor {
        self.options = Some(options).filter(|options| !options.is_empty());
        self
    }

    /// Sets the cancellation of all runs except those of [`Executor::run_under`]. The default is the cancellation in
    /// whose scope the executor was created.
    #[must_use]
    pub fn with_cancel(mut self, cancel: Cancel) -> Executor {
        self.cancel = cancel;
        self
    }

    /// Sets the maximum number of calls and loop iterations of a run, counted together. The default is [`MAX_CALLS`].
    #[must_use]
    pub fn with_max_calls(mut self, calls: u64) -> Executor {
        self.max_calls = calls;
        self
    }

    /// Runs the program. The inputs correspond to `program().inputs`, the results to `program().outputs`.
    ///
    /// # Errors
    /// If an input has the wrong type, a step fails, the memory limit is exceeded (E0609), or the run is ended early
    /// (E0617, E0618, E0619).
    pub fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Diagnostic> {
        self.run_observed(inputs, None)
    }

    /// Same as [`Executor::run`], and reports every step to the observer.
    ///
    /// # Errors
    /// Same as [`Executor::run`].
    pub fn run_observed(&self, inputs: &[Tensor], observer: Option<&dyn Observer>) -> Result<Vec<Tensor>, Diagnostic> {
        self.run_under(inputs, observer, &self.cancel)
    }

    /// Same as [`Executor::run_observed`], with the flag and the deadline of `cancel` for this run. A cancelled run
    /// ends between two steps or inside a host kernel; plugins observe the same state through the service `cancelled`.
    ///
    /// # Errors
    /// Same as [`Executor::run`].
    pub fn run_under(
        &self,
        inputs: &[Tensor],
        observer: Option<&dyn Observer>,
        cancel: &Cancel,
    ) -> Result<Vec<Tensor>, Diagnostic> {
        let mut results = Vec::with_capacity(self.program().outputs.len());
        self.run_to(inputs, &mut Results::Owned(&mut results), observer, cancel)?;
        Ok(results)
    }

    /// Same as [`Executor::run_under`], and writes the results to caller-provided memory. From the second run on, a
    /// straight-line program with known dimensions allocates nothing. After an error, the contents of `outputs` are
    /// unspecified.
    ///
    /// # Errors
    /// Same as [`Executor::run`], and E0621 if an output does not have the type of its result.
    pub fn run_into(
        &self,
        inputs: &[Tensor],
        outputs: &mut [TensorViewMut<'_>],
        observer: Option<&dyn Observer>,
        cancel: &Cancel,
    ) -> Result<(), Diagnostic> {
        check_outputs(&self.program().outputs, outputs)?;
        self.run_to(inputs, &mut Results::Into(outputs), observer, cancel)
    }

    fn run_to(
        &self,
        inputs: &[Tensor],
        results: &mut Results<'_, '_>,
        observer: Option<&dyn Observer>,
        cancel: &Cancel,
    ) -> Result<(), Diagnostic> {
        check_inputs(&self.program().inputs, inputs)?;
        if self.prepared_program.lost_backend().is_none() {
            let result = self.run_prepared(&self.prepared_program, inputs, results, observer, cancel);
            let is_device_lost = result.as_ref().is_err_and(|error| error.code == codes::runtime::DEVICE_LOST);
            if !is_device_lost || !self.has_fallback || self.prepared_program.lost_backend().is_none() {
                return result;
            }
        }
        let backend = self.prepared_program.lost_backend().unwrap_or_default();
        if !self.has_fallback {
            return Err(Diagnostic::error(codes::runtime::DEVICE_LOST, format!("the device of {backend} is lost")));
        }
        let fallback_program = self.without_lost.get_or_init(|| self.prepared_program.without_backend(backend));
        self.run_prepared(fallback_program.as_ref().map_err(Clone::clone)?, inputs, results, observer, cancel)
    }

    fn run_prepared(
        &self,
        prepared_program: &PreparedProgram,
        inputs: &[Tensor],
        results: &mut Results<'_, '_>,
        observer: Option<&dyn Observer>,
        cancel: &Cancel,
    ) -> Result<(), Diagnostic> {
        // A plugin reads the options on the thread that calls it, which may be a pool thread.
        let options = match (BackendOptions::current(), &self.options) {
            (of_run, None) => of_run,
            (None, of_session) => of_session.clone(),
            (Some(of_run), Some(of_session)) => Some(of_session.with(&of_run)),
        };
        let mut run = || {
            let _options = options.clone().map(BackendOptions::enter);
            interpreter::run(prepared_program, inputs, results, observer, cancel, self.max_calls)
        };
        match prepared_program.threading() {
            Threading::Inline => split::inline(run),
            Threading::Pool if self.on_caller => run(),
            Threading::Pool => self.pool().install(run),
            Threading::Unknown => {
                let mut observe = || {
                    // A thread that waits for other threads may execute this closure inside another run.
                    let outer_split = split::take_split();
                    let result = run();
                    prepared_program.learn_threading(split::take_split(), result.is_ok());
                    if outer_split {
                        split::record_split();
                    }
                    result
                };
                if self.on_caller { observe() } else { self.pool().install(observe) }
            }
        }
    }

    /// Returns true if runs change the state of a region.
    pub fn is_stateful(&self) -> bool {
        self.prepared_program.is_stateful()
    }

    /// Resets the state of each stateful region to the state after loading. The reset is not ordered with respect to
    /// runs in progress.
    ///
    /// # Errors
    /// If a backend cannot reset the state.
    pub fn reset_state(&self) -> Result<(), Diagnostic> {
        self.prepared_program.reset_state()
    }

    /// Releases the memory that is retained between runs: activations, and the plans for dimensions of earlier runs.
    /// The next run allocates it again.
    pub fn release_memory(&self) {
        self.prepared_program.release_memory();
    }

    /// Orders named inputs for [`Executor::run`].
    ///
    /// # Errors
    /// If the model has no input of a given name, or an input is duplicated or missing.
    pub fn bind(&self, named_inputs: impl IntoIterator<Item = (String, Tensor)>) -> Result<Vec<Tensor>, Diagnostic> {
        order_inputs(&self.program().inputs, &[], &[], named_inputs)
    }

    /// Returns the prepared program.
    pub fn program(&self) -> &Program {
        &self.prepared_program.program
    }

    /// Returns the thread pool that runs host kernels.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.prepared_program.pool
    }

    /// Returns one line per region that its backend refused during preparation, with the reason.
    pub fn notes(&self) -> Vec<String> {
        self.prepared_program.notes()
    }

    /// Returns static information about each step, indexed by function and instruction.
    pub fn steps(&self) -> &[Vec<StepInfo>] {
        self.prepared_program.steps()
    }
}

impl std::fmt::Debug for Executor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Executor({} functions, {} regions)", self.program().functions.len(), self.program().regions.len())
    }
}

/// Returns true if the offsets of all tensors in a space are multiples of the alignment. Otherwise the tensors stay in
/// host memory. Earlier versions used a smaller alignment, which not every device accepts.
fn has_aligned_offsets(program: &Program, space: usize, alignment: usize) -> bool {
    program.functions.iter().flat_map(|function| &function.registers).all(|register| match register.place {
        Place::Device { space: index, offset } if index as usize == space => offset.is_multiple_of(alignment),
        _ => true,
    })
}

fn check_constants(program: &Program, constants: &[Option<Tensor>]) -> Result<(), Diagnostic> {
    let program_error = |message: String| Err(Diagnostic::error(codes::runtime::BAD_PROGRAM, message));
    if program.constants.len() != constants.len() {
        return program_error(format!("expected {} constants, found {}", program.constants.len(), constants.len()));
    }
    let present_constants =
        program.constants.iter().zip(constants).filter_map(|(port, tensor)| Some((port, tensor.as_ref()?)));
    for (port, tensor) in present_constants {
        if port.ty.dtype != tensor.dtype() || port.ty.shape().as_deref() != Some(tensor.shape()) {
            return program_error(format!("constant \"{}\": expected {}, found {tensor:?}", port.name, show(port)));
        }
    }
    Ok(())
}

//! Runs a program: as often as wanted, from as many threads as wanted.

use super::inputs::{bind, check_inputs, show};
use super::machine;
use super::pool::Pool;
use super::program::Program;
use super::ready::Ready;
use super::region::Region;
use super::trace::{Observer, StepInfo};
use super::validate::validate;
use crate::cancel::{Cancel, MAX_CALLS};
use byoc_core::diag::{Diagnostic, codes};
use byoc_core::tensor::Tensor;
use std::sync::Arc;

/// A program ready to run. Kernels are made and weights are packed once; runs share them and nothing else.
///
/// Memory of activations is kept from run to run, so that a second run of a straight-line program of known sizes
/// allocates its outputs and nothing per step.
pub struct Executor {
    ready: Ready,
    on_caller: bool,
    cancel: Cancel,
    max_calls: u64,
}

impl Executor {
    /// Makes a program ready to run. `constants` are the values of `program.constants`; `regions` go with
    /// `program.regions`, `None` where the host is to run one.
    ///
    /// # Errors
    /// When the program makes no sense, or the host has no implementation of an operator that it would have to run.
    pub fn new(
        program: Program,
        constants: Vec<Tensor>,
        regions: Vec<Option<Arc<dyn Region>>>,
        pool: Arc<Pool>,
    ) -> Result<Executor, Diagnostic> {
        Executor::with_some(program, constants.into_iter().map(Some).collect(), regions, pool)
    }

    /// As [`Executor::new`], without the constants that nobody reads as long as every region runs on its backend:
    /// [`needed_constants`](super::needs::needed_constants) says which these are.
    ///
    /// # Errors
    /// As [`Executor::new`], and E0616 when a region is turned down and what the host would need for it is not there.
    pub fn with_some(
        program: Program,
        constants: Vec<Option<Tensor>>,
        regions: Vec<Option<Arc<dyn Region>>>,
        pool: Arc<Pool>,
    ) -> Result<Executor, Diagnostic> {
        validate(&program)?;
        check_constants(&program, &constants)?;
        let cancel = Cancel::current().unwrap_or_default();
        Ok(Executor {
            ready: Ready::new(program, constants, regions, pool)?,
            on_caller: false,
            cancel,
            max_calls: MAX_CALLS,
        })
    }

    /// Lets go of the constants that nobody will read: those that only the host programs of regions read which run on
    /// their backends for certain.
    pub fn let_go(&mut self) {
        self.ready.let_go();
    }

    /// Runs regions on the calling thread from now on, not on a thread of the pool: for backends that bring threads of their
    /// own. OpenMP makes a team for every thread that calls it; a model that is run from one thread and reaches its
    /// backend from any of the pool's would have several, and idle ones keep the one at work from its processors. What the
    /// host computes goes to the pool, step by step.
    #[must_use]
    pub fn regions_on_caller(mut self) -> Executor {
        self.on_caller = true;
        self
    }

    /// Lets runs end when `cancel` says so, but for those that are given one of their own. Without it, it is the one in whose scope
    /// the executor was made.
    #[must_use]
    pub fn cancelled_by(mut self, cancel: Cancel) -> Executor {
        self.cancel = cancel;
        self
    }

    /// Lets a run make so many calls and iterations of loops, all together; [`MAX_CALLS`] where nothing is said.
    #[must_use]
    pub fn with_max_calls(mut self, calls: u64) -> Executor {
        self.max_calls = calls;
        self
    }

    /// Runs it. The inputs go with `program().inputs`, the results with `program().outputs`.
    ///
    /// # Errors
    /// When the inputs do not fit, a step fails, memory is refused (E0609), or the run is to end before its result is there:
    /// E0617, E0618 and E0619.
    pub fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Diagnostic> {
        self.run_observed(inputs, None)
    }

    /// As [`Executor::run`]; the observer hears of every step.
    ///
    /// # Errors
    /// As [`Executor::run`].
    pub fn run_observed(&self, inputs: &[Tensor], observer: Option<&dyn Observer>) -> Result<Vec<Tensor>, Diagnostic> {
        self.run_under(inputs, observer, &self.cancel)
    }

    /// As [`Executor::run_observed`], for a run with a flag and a deadline of its own: it ends when `cancel` says so, between
    /// two steps or inside of a kernel of the host, and plugins see the same as `cancelled`.
    ///
    /// # Errors
    /// As [`Executor::run`].
    pub fn run_under(
        &self,
        inputs: &[Tensor],
        observer: Option<&dyn Observer>,
        cancel: &Cancel,
    ) -> Result<Vec<Tensor>, Diagnostic> {
        check_inputs(&self.program().inputs, inputs)?;
        let run = || machine::run(&self.ready, inputs, observer, cancel, self.max_calls);
        if self.on_caller { run() } else { self.pool().install(run) }
    }

    /// The inputs in the order that [`Executor::run`] wants.
    ///
    /// # Errors
    /// A name that the model does not have, a name given twice, an input that is missing.
    pub fn bind(&self, named: impl IntoIterator<Item = (String, Tensor)>) -> Result<Vec<Tensor>, Diagnostic> {
        bind(&self.program().inputs, named)
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.ready.program
    }

    /// The threads that it runs on.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.ready.pool
    }

    /// Regions that their backends turned down when the program was made ready, and why, one line each.
    pub fn notes(&self) -> Vec<String> {
        self.ready.notes()
    }

    /// What is known of each step, by function and place in its code.
    pub fn steps(&self) -> &[Vec<StepInfo>] {
        self.ready.steps()
    }
}

impl std::fmt::Debug for Executor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Executor({} functions, {} regions)", self.program().functions.len(), self.program().regions.len())
    }
}

fn check_constants(program: &Program, constants: &[Option<Tensor>]) -> Result<(), Diagnostic> {
    let wrong = |message: String| Err(Diagnostic::error(codes::runtime::BAD_PROGRAM, message));
    if program.constants.len() != constants.len() {
        return wrong(format!("the program has {} constants, {} are given", program.constants.len(), constants.len()));
    }
    let given = program.constants.iter().zip(constants).filter_map(|(port, tensor)| Some((port, tensor.as_ref()?)));
    for (port, tensor) in given {
        if port.ty.dtype != tensor.dtype() || port.ty.shape().as_deref() != Some(tensor.shape()) {
            return wrong(format!("constant \"{}\" is {tensor:?}, the program says {}", port.name, show(port)));
        }
    }
    Ok(())
}

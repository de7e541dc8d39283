//! Runs a program: as often as wanted, from as many threads as wanted.

use super::frame::{Frame, Scratch, allocate};
use super::load::{self, Code, Step};
use super::machine;
use super::needs::{constants_of, needed_constants};
use super::pool::Pool;
use super::program::{Port, Program};
use super::region::Region;
use super::trace::{Observer, StepInfo, steps};
use super::validate::validate;
use super::value::Value;
use byoc_core::diag::{Diagnostic, codes, nearest};
use byoc_core::ir::Dim;
use byoc_core::tensor::{AlignedBytes, DType, Tensor};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A program ready to run. Kernels are made and weights are packed once; runs share them and nothing else.
///
/// Memory of activations is kept from run to run, so that a second run of a straight-line program of known sizes
/// allocates its outputs and nothing per step.
pub struct Executor {
    program: Program,
    /// Those that are gone are empty, and `code` refuses the functions that read them.
    constants: Vec<Tensor>,
    gone: Vec<bool>,
    regions: Vec<Option<Arc<dyn Region>>>,
    pool: Arc<Pool>,
    on_caller: bool,
    /// Filled when it is certain that a function may run, and otherwise (the host program of a region that a backend
    /// runs) when it does.
    functions: Vec<OnceLock<Result<Code, Diagnostic>>>,
    frames: Vec<Mutex<Vec<Frame>>>,
    kits: Mutex<Vec<Kit>>,
    infos: OnceLock<Vec<Vec<StepInfo>>>,
}

/// How many activations' memory of a function is kept: enough for runs side by side, not for a deep recursion.
const KEPT_FRAMES: usize = 16;

/// Working memory of a run that belongs to no activation.
pub(super) struct Kit {
    pub scratch: Scratch,
    pub workspace: AlignedBytes,
    pub args: Vec<Value>,
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
        let count = program.functions.len();
        let executor = Executor {
            gone: constants.iter().map(Option::is_none).collect(),
            constants: constants.into_iter().map(|constant| constant.unwrap_or_else(nothing)).collect(),
            regions,
            pool,
            on_caller: false,
            functions: (0..count).map(|_| OnceLock::new()).collect(),
            frames: (0..count).map(|_| Mutex::default()).collect(),
            kits: Mutex::default(),
            infos: OnceLock::new(),
            program,
        };
        // What may run for certain is made ready now: then a missing kernel is said before the first run.
        let mut seen = vec![false; count];
        let mut todo = vec![executor.program.entry];
        while let Some(index) = todo.pop() {
            if !std::mem::replace(&mut seen[index as usize], true) {
                todo.extend(executor.code(index)?.callees(&executor.program));
            }
        }
        Ok(executor)
    }

    /// Lets go of the constants that nobody will read: those that only the host programs of regions read which run on
    /// their backends for certain.
    pub fn let_go(&mut self) {
        let turned_down: Vec<u32> = self
            .functions
            .iter()
            .filter_map(|code| code.get()?.as_ref().ok())
            .flat_map(|code| &code.steps)
            .filter_map(|step| match step {
                Step::Region(step) if step.region.is_none() => Some(step.index),
                _ => None,
            })
            .collect();
        let loaded = |region: u32| self.regions[region as usize].is_some() && !turned_down.contains(&region);
        let needed = needed_constants(&self.program, loaded);
        for (number, _) in needed.iter().enumerate().filter(|(_, needed)| !**needed) {
            self.constants[number] = nothing();
            self.gone[number] = true;
        }
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

    /// Runs it. The inputs go with `program().inputs`, the results with `program().outputs`.
    ///
    /// # Errors
    /// When the inputs do not fit, or a step fails.
    pub fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Diagnostic> {
        self.run_observed(inputs, None)
    }

    /// As [`Executor::run`]; the observer hears of every step.
    ///
    /// # Errors
    /// As [`Executor::run`].
    pub fn run_observed(&self, inputs: &[Tensor], observer: Option<&dyn Observer>) -> Result<Vec<Tensor>, Diagnostic> {
        check_inputs(&self.program.inputs, inputs)?;
        match self.on_caller {
            true => machine::run(self, inputs, observer),
            false => self.pool.install(|| machine::run(self, inputs, observer)),
        }
    }

    /// The inputs in the order that [`Executor::run`] wants.
    ///
    /// # Errors
    /// A name that the model does not have, a name given twice, an input that is missing.
    pub fn bind(&self, named: impl IntoIterator<Item = (String, Tensor)>) -> Result<Vec<Tensor>, Diagnostic> {
        bind(&self.program.inputs, named)
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The threads that it runs on.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Regions that their backends turned down when the program was made ready, and why, one line each.
    pub fn notes(&self) -> Vec<String> {
        let ready = self.functions.iter().filter_map(|code| code.get()?.as_ref().ok());
        let mut notes: Vec<String> = ready.flat_map(|code| code.notes.iter().cloned()).collect();
        notes.sort();
        notes.dedup();
        notes
    }

    /// What is known of each step, by function and place in its code.
    pub fn steps(&self) -> &[Vec<StepInfo>] {
        self.infos.get_or_init(|| steps(&self.program))
    }

    pub(super) fn constants(&self) -> &[Tensor] {
        &self.constants
    }

    pub(super) fn code(&self, index: u32) -> Result<&Code, Diagnostic> {
        let load = || {
            self.check_present(index)?;
            load::load(&self.program, &self.constants, &self.regions, index as usize)
        };
        self.functions[index as usize].get_or_init(load).as_ref().map_err(Clone::clone)
    }

    /// Whether every constant is there that a function reads.
    fn check_present(&self, index: u32) -> Result<(), Diagnostic> {
        let function = &self.program.functions[index as usize];
        if constants_of(function).all(|constant| !self.gone[constant]) {
            return Ok(());
        }
        let message = format!("{} would run on the host, and its constants have been let go", function.name);
        Err(Diagnostic::error(codes::runtime::CONSTANTS_GONE, message)
            .note("its backend had loaded it, packed the constants, and turned it down afterwards")
            .help("leave the backend out"))
    }

    /// Memory for an activation.
    pub(super) fn frame(&self, index: u32, code: &Code) -> Result<Frame, Diagnostic> {
        if let Some(frame) = lock(&self.frames[index as usize]).pop() {
            return Ok(frame);
        }
        Ok(Frame { values: vec![Value::Empty; code.values], arena: allocate(code.arena)? })
    }

    /// Keeps the memory of an activation that has ended.
    pub(super) fn keep_frame(&self, index: u32, mut frame: Frame) {
        frame.values.fill(Value::Empty);
        let mut kept = lock(&self.frames[index as usize]);
        if kept.len() < KEPT_FRAMES {
            kept.push(frame);
        }
    }

    pub(super) fn kit(&self) -> Kit {
        let kept = lock(&self.kits).pop();
        kept.unwrap_or_else(|| Kit {
            scratch: Scratch::default(),
            workspace: AlignedBytes::zeroed(0),
            args: Vec::new(),
        })
    }

    pub(super) fn keep_kit(&self, mut kit: Kit) {
        kit.args.clear();
        lock(&self.kits).push(kit);
    }
}

impl std::fmt::Debug for Executor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Executor({} functions, {} regions)", self.functions.len(), self.regions.len())
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What stands for a constant that is gone.
fn nothing() -> Tensor {
    Tensor::zeros(DType::U8, &[0])
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

/// The inputs in the order of `ports`.
///
/// # Errors
/// A name that there is not, a name given twice, an input that is missing.
pub fn bind(ports: &[Port], named: impl IntoIterator<Item = (String, Tensor)>) -> Result<Vec<Tensor>, Diagnostic> {
    let position: HashMap<&str, usize> = ports.iter().enumerate().map(|(i, port)| (port.name.as_str(), i)).collect();
    let mut bound: Vec<Option<Tensor>> = vec![None; ports.len()];
    for (name, tensor) in named {
        let Some(&at) = position.get(name.as_str()) else {
            let message = format!("the model has no input \"{name}\"");
            let mut diagnostic = inputs_note(Diagnostic::error(codes::runtime::UNKNOWN_INPUT, message), ports);
            if let Some(near) = nearest(&name, ports.iter().map(|p| p.name.as_str())) {
                diagnostic = diagnostic.help(format!("did you mean \"{near}\"?"));
            }
            return Err(diagnostic);
        };
        if bound[at].replace(tensor).is_some() {
            let message = format!("input \"{name}\" is given twice");
            return Err(Diagnostic::error(codes::runtime::INPUT_COUNT, message));
        }
    }
    let missing: Vec<String> = ports
        .iter()
        .zip(&bound)
        .filter(|(_, b)| b.is_none())
        .map(|(p, _)| format!("\"{}\" ({})", p.name, show(p)))
        .collect();
    if !missing.is_empty() {
        let message = format!("no value is given for input {}", missing.join(", "));
        return Err(inputs_note(Diagnostic::error(codes::runtime::INPUT_COUNT, message), ports));
    }
    Ok(bound.into_iter().flatten().collect())
}

/// Checks values against the inputs of a program.
///
/// # Errors
/// Another number of inputs, another element type, other dimensions, or one named dimension of two sizes.
pub fn check_inputs(ports: &[Port], inputs: &[Tensor]) -> Result<(), Diagnostic> {
    if ports.len() != inputs.len() {
        let message = format!("{} inputs are given, the model takes {}", inputs.len(), ports.len());
        return Err(inputs_note(Diagnostic::error(codes::runtime::INPUT_COUNT, message), ports));
    }
    let mut named: BTreeMap<&str, (usize, &str)> = BTreeMap::new();
    for (port, tensor) in ports.iter().zip(inputs) {
        let given = format!("{}{:?}", tensor.dtype(), tensor.shape());
        if port.ty.dtype != tensor.dtype() {
            let message = format!("input \"{}\" is {given}, {} is wanted", port.name, show(port));
            return Err(Diagnostic::error(codes::runtime::INPUT_DTYPE, message));
        }
        let wrong = || {
            let message = format!("input \"{}\" is {given}, {} is wanted", port.name, show(port));
            Diagnostic::error(codes::runtime::INPUT_SHAPE, message)
        };
        if port.ty.dims.len() != tensor.shape().len() {
            return Err(wrong());
        }
        for (dim, &size) in port.ty.dims.iter().zip(tensor.shape()) {
            match dim {
                Dim::Fixed(n) if *n != size => return Err(wrong()),
                Dim::Named(name) => {
                    let (first, of) = *named.entry(&**name).or_insert((size, &port.name));
                    if first != size {
                        return Err(wrong().note(format!("{name} is {first} in input \"{of}\" and {size} here")));
                    }
                }
                _ => {}
            }
        }
    }
    // What is a product of named dimensions must come out.
    let size = |name: &str| named.get(name).map(|(size, _)| *size);
    for (port, tensor) in ports.iter().zip(inputs) {
        for (dim, &given) in port.ty.dims.iter().zip(tensor.shape()).filter(|(dim, _)| dim.name().is_none()) {
            if let Some(wanted) = dim.with_sizes(size).fixed().filter(|wanted| *wanted != given) {
                let message = format!("input \"{}\" has {given} elements where {dim} = {wanted} are wanted", port.name);
                return Err(Diagnostic::error(codes::runtime::INPUT_SHAPE, message));
            }
        }
    }
    Ok(())
}

fn inputs_note(diagnostic: Diagnostic, ports: &[Port]) -> Diagnostic {
    if ports.is_empty() {
        return diagnostic.note("the model takes no inputs");
    }
    let inputs: Vec<String> = ports.iter().map(|port| format!("\"{}\" ({})", port.name, show(port))).collect();
    diagnostic.note(format!("its inputs are {}", inputs.join(", ")))
}

fn show(port: &Port) -> String {
    let dims: Vec<String> = port.ty.dims.iter().map(Dim::to_string).collect();
    format!("{}[{}]", port.ty.dtype, dims.join(", "))
}

//! A program made ready to run, and the memory that its runs leave to the next: what the machine works on.

use super::frame::{Frame, Scratch, allocate};
use super::load::{self, Code, Step};
use super::lock::lock;
use super::needs::{constants_of, needed_constants};
use super::plans::RegionPlans;
use super::pool::Pool;
use super::program::Program;
use super::region::Region;
use super::trace::{StepInfo, steps};
use super::value::Value;
use byoc_core::diag::{Diagnostic, codes};
use byoc_core::tensor::{AlignedBytes, Tensor};
use std::sync::{Arc, Mutex, OnceLock};

/// A program, its constants and its code. Runs share it, from as many threads as wanted.
pub(super) struct Ready {
    pub program: Program,
    /// Those that are gone are empty, and `code` refuses the functions that read them.
    pub constants: Vec<Tensor>,
    pub pool: Arc<Pool>,
    gone: Vec<bool>,
    regions: Vec<Option<Arc<dyn Region>>>,
    plans: Vec<Option<Arc<RegionPlans>>>,
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

impl Ready {
    /// Makes ready what may run for certain: then a missing kernel is said before the first run.
    ///
    /// # Errors
    /// When the host has no implementation of an operator that it would have to run, or not the constants for it.
    pub fn new(
        program: Program,
        constants: Vec<Option<Tensor>>,
        regions: Vec<Option<Arc<dyn Region>>>,
        pool: Arc<Pool>,
    ) -> Result<Ready, Diagnostic> {
        let count = program.functions.len();
        let ready = Ready {
            gone: constants.iter().map(Option::is_none).collect(),
            constants: constants.into_iter().map(|constant| constant.unwrap_or_else(nothing)).collect(),
            plans: RegionPlans::of(&regions),
            regions,
            pool,
            functions: (0..count).map(|_| OnceLock::new()).collect(),
            frames: (0..count).map(|_| Mutex::default()).collect(),
            kits: Mutex::default(),
            infos: OnceLock::new(),
            program,
        };
        let mut seen = vec![false; count];
        let mut todo = vec![ready.program.entry];
        while let Some(index) = todo.pop() {
            if !std::mem::replace(&mut seen[index as usize], true) {
                todo.extend(ready.code(index)?.callees(&ready.program));
            }
        }
        Ok(ready)
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

    /// The code of a function.
    ///
    /// # Errors
    /// When the host lacks a kernel for it, or constants of it are gone.
    pub fn code(&self, index: u32) -> Result<&Code, Diagnostic> {
        let load = || {
            self.check_present(index)?;
            load::load(&self.program, &self.constants, &self.regions, &self.plans, index as usize)
        };
        self.functions[index as usize].get_or_init(load).as_ref().map_err(Clone::clone)
    }

    /// Returns true if every constant is there that a function reads.
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
    pub fn frame(&self, index: u32, code: &Code) -> Result<Frame, Diagnostic> {
        if let Some(frame) = lock(&self.frames[index as usize]).pop() {
            return Ok(frame);
        }
        Ok(Frame { values: vec![Value::Empty; code.values], arena: allocate(code.arena)? })
    }

    /// Keeps the memory of an activation that has ended.
    pub fn keep_frame(&self, index: u32, mut frame: Frame) {
        frame.values.fill(Value::Empty);
        let mut kept = lock(&self.frames[index as usize]);
        if kept.len() < KEPT_FRAMES {
            kept.push(frame);
        }
    }

    /// Working memory for a run.
    pub fn kit(&self) -> Kit {
        let kept = lock(&self.kits).pop();
        kept.unwrap_or_else(|| Kit { scratch: Scratch::default(), workspace: AlignedBytes::empty(), args: Vec::new() })
    }

    /// Keeps the working memory of a run that has ended.
    pub fn keep_kit(&self, mut kit: Kit) {
        kit.args.clear();
        lock(&self.kits).push(kit);
    }
}

/// What stands for a constant that is gone.
fn nothing() -> Tensor {
    Tensor::nothing()
}

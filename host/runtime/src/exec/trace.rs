//! Static information about each step ([`StepInfo`]), and the events that an observer receives during a run.

use super::program::{Function, Instr, OpCall, Place, Program, Reg};
use byoc_ir::diag::Diagnostic;
use byoc_ir::ir::{TensorType, Type};
use byoc_ir::op::{self, Cost, Params};
use byoc_ir::tensor::{DType, Shape};
use std::time::{Duration, Instant};

/// Kind of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepKind {
    /// Operator executed on the host.
    Kernel,
    /// Operator that only changes the dimensions of its argument.
    Alias,
    /// Region, run on its backend or on the host.
    Region,
    /// Copy between host and device memory.
    Copy,
    /// Move, jump, call, or operation on a closure or a cell.
    Control,
}

/// Static information about a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepInfo {
    /// Index of the function.
    pub function: u32,
    /// Index of the instruction in the code of the function.
    pub index: u32,
    /// Kind of the step.
    pub kind: StepKind,
    /// Name of the operator, symbol of the region, or name of the instruction.
    pub name: String,
    /// Backend of the region; `None` on the host.
    pub backend: Option<String>,
    /// Operators of the model that the step was built from, as indices into [`Program::sources`].
    pub origins: Vec<u32>,
    /// FLOPs of the step; operators with unknown dimensions count as 0.
    pub flops: u64,
}

/// A completed step.
#[derive(Clone, Debug)]
pub struct StepEvent<'a> {
    /// Static information about the step.
    pub step: &'a StepInfo,
    /// Program of the step, for looking up the names of functions and sources.
    pub program: &'a Program,
    /// Types of the inputs.
    pub inputs: Vec<(DType, Shape)>,
    /// Types of the outputs; empty for a call, which has no results yet.
    pub outputs: Vec<(DType, Shape)>,
    /// True if the step is a region that the host ran because no backend runs it.
    pub on_host: bool,
    /// Start time.
    pub start: Instant,
    /// Duration; for a call, only of the control transfer.
    pub duration: Duration,
}

/// Observes the steps of a run.
pub trait Observer: Sync {
    /// Receives the event of a step after the step has run.
    fn step(&self, event: &StepEvent<'_>);

    /// Returns the reason why the observer cannot receive more events, which ends the run. An observer that keeps events
    /// counts their memory toward the limit of the process, because a loop has any number of steps.
    fn failure(&self) -> Option<Diagnostic> {
        None
    }
}

/// Returns the steps of each function, in the order of the code.
pub fn steps(program: &Program) -> Vec<Vec<StepInfo>> {
    let functions = program.functions.iter().enumerate();
    functions
        .map(|(f, function)| {
            function.code.iter().enumerate().map(|(i, instr)| step(program, f, function, i, instr)).collect()
        })
        .collect()
}

fn step(program: &Program, f: usize, function: &Function, i: usize, instr: &Instr) -> StepInfo {
    let info = |kind, name: &str| StepInfo {
        function: f as u32,
        index: i as u32,
        kind,
        name: name.to_owned(),
        backend: None,
        origins: Vec::new(),
        flops: 0,
    };
    match instr {
        Instr::Kernel(call) => {
            StepInfo { origins: call.origins.clone(), flops: flops(function, call), ..info(StepKind::Kernel, &call.op) }
        }
        Instr::Alias(call) => StepInfo { origins: call.origins.clone(), ..info(StepKind::Alias, &call.op) },
        Instr::Region { region, .. } => match program.regions.get(*region as usize) {
            Some(region) => StepInfo {
                backend: Some(region.backend.clone()),
                origins: region.origins.clone(),
                flops: region.flops,
                ..info(StepKind::Region, &region.symbol)
            },
            None => info(StepKind::Region, ""),
        },
        Instr::Copy { from, to } => copy(program, function, *from, *to, &info),
        Instr::Move { .. } => info(StepKind::Control, "move"),
        Instr::Jump { .. } => info(StepKind::Control, "jump"),
        Instr::Branch { .. } => info(StepKind::Control, "branch"),
        Instr::Call { .. } => info(StepKind::Control, "call"),
        Instr::TailCall { .. } => info(StepKind::Control, "tail_call"),
        Instr::Closure { .. } => info(StepKind::Control, "closure"),
        Instr::CallClosure { .. } => info(StepKind::Control, "call_closure"),
        Instr::TailCallClosure { .. } => info(StepKind::Control, "tail_call_closure"),
        Instr::RefNew { .. } => info(StepKind::Control, "ref_new"),
        Instr::RefRead { .. } => info(StepKind::Control, "ref_read"),
        Instr::RefWrite { .. } => info(StepKind::Control, "ref_write"),
        Instr::Construct { .. } => info(StepKind::Control, "construct"),
        Instr::Test { .. } => info(StepKind::Control, "test"),
        Instr::Fields { .. } => info(StepKind::Control, "fields"),
        Instr::Unmatched { .. } => info(StepKind::Control, "unmatched"),
        Instr::Free { .. } => info(StepKind::Control, "free"),
        Instr::Return { .. } => info(StepKind::Control, "return"),
    }
}

/// Describes a copy by its direction and the backend of the device.
fn copy(
    program: &Program,
    function: &Function,
    source: Reg,
    target: Reg,
    info: &impl Fn(StepKind, &str) -> StepInfo,
) -> StepInfo {
    let space = |reg: Reg| match function.registers.get(reg.index())?.place {
        Place::Device { space, .. } => program.spaces.get(space as usize),
        _ => None,
    };
    let (space, name) = match (space(source), space(target)) {
        (_, Some(space)) => (Some(space), "copy_to_device"),
        (space, None) => (space, "copy_from_device"),
    };
    StepInfo { backend: space.map(|space| space.backend.clone()), ..info(StepKind::Copy, name) }
}

/// Returns the FLOPs of a call; 0 if the types do not determine them.
pub fn flops(function: &Function, call: &OpCall) -> u64 {
    let Some(id) = op::lookup(&call.op) else { return 0 };
    let (Some(args), Some(outs)) = (arg_types(function, call), types(function, &call.outs)) else { return 0 };
    let ret = match &outs[..] {
        [only] => only.clone(),
        _ => Type::tuple(outs),
    };
    let def = op::get(id);
    (def.flops)(&Cost { params: Params::new(def, &call.attrs), args: &args, ret: &ret })
}

/// Returns the types of a call's arguments.
pub(super) fn arg_types(function: &Function, call: &OpCall) -> Option<Vec<Type>> {
    call.args
        .iter()
        .map(|arg| match arg {
            super::program::Arg::One(reg) => Some(Type::Tensor(tensor(function, *reg)?.clone().into())),
            super::program::Arg::Tuple(regs) => Some(Type::tuple(types(function, regs)?)),
        })
        .collect()
}

fn types(function: &Function, regs: &[Reg]) -> Option<Vec<Type>> {
    regs.iter().map(|&reg| Some(Type::Tensor(tensor(function, reg)?.clone().into()))).collect()
}

fn tensor(function: &Function, reg: Reg) -> Option<&TensorType> {
    function.registers.get(reg.index())?.ty.as_ref()
}

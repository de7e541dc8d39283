//! Prepares a validated program for execution, once for all runs: creates the kernels, which may pack their constants,
//! and lays out the operands of each step with known dimensions.

use super::append::{Growing, growing_operand};
use super::device::{ALIGNMENT, DeviceSpace, Footprint, WorkspaceRange};
use super::direct::direct_results;
use super::frame::{Arenas, DirectResult, Operands, RegInfo, Slot};
use super::lru_cache::{Dims, LruCache};
use super::plans::RegionPlans;
use super::program::{self, Arg, Function, Instr, OpCall, Program, Reg, Register};
use super::region::{OutputDims, Prepared, Region};
use super::signature::Signature;
use super::trace;
use super::value::bad_program;
use super::written::importable_registers;
use byoc_ir::cancel;
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::ir::{Attrs, OpId, TensorType, Type};
use byoc_ir::op::{self, OpDef};
use byoc_ir::tensor::memory::Charge;
use byoc_ir::tensor::{OutOfMemory, Shape, Tensor, memory};
use byoc_ir::typing::unify;
use byoc_kernels::{self, Kernel, Spec};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Maximum number of kernels that a step caches for different dimensions. Such kernels are created without constants,
/// so they hold no packed weights; of those that need packed ones, a step keeps the last.
const MAX_KERNELS: usize = 16;

/// Function prepared for execution.
pub(super) struct Code {
    /// Sizes of the arenas.
    pub arenas: Arenas,
    /// Number of registers that are values.
    pub values: usize,
    /// Size of the workspace in bytes: the maximum over all steps.
    pub workspace: usize,
    /// True if a region needs device memory without contents of earlier runs.
    pub zeroes_devices: bool,
    /// Space whose tensors are copied to or from the host arena, if there is one.
    pub copying_space: Option<u32>,
    pub regs: Vec<RegInfo>,
    pub steps: Vec<Step>,
    /// Results that steps can write to caller-provided memory; empty unless this is the entry function.
    pub direct: Vec<DirectResult>,
    /// Regions that their backends refused, with the reason, one line each.
    pub notes: Vec<String>,
    #[expect(dead_code, reason = "counts toward the memory limit until it is dropped")]
    charge: Charge,
}

/// Size in bytes of an operand of an instruction, at most: its type, its view, and its entries in the lists of a step.
const OPERAND_BYTES: usize = 256;

/// Counts the memory of a function toward the limit: its registers, instructions and operands, as they are in the
/// program and in its [`Code`].
fn charge(function: &Function) -> Result<Charge, Diagnostic> {
    let operands = |instr: &Instr| {
        let (read, written) = instr.operands();
        (read.len() + written.len()).saturating_mul(OPERAND_BYTES)
    };
    let registers = function.registers.len().saturating_mul(size_of::<Register>() + size_of::<RegInfo>());
    let instructions = function.code.len().saturating_mul(2 * size_of::<Instr>() + size_of::<Step>());
    let operands = function.code.iter().map(operands).fold(0, usize::saturating_add);
    let charge = Charge::new(registers.saturating_add(instructions).saturating_add(operands));
    charge.map_err(|error| Diagnostic::from(error).note(format!("required by function {}", function.name)))
}

impl Code {
    /// Returns the functions that this function calls or turns into closures, and the host programs of its regions that
    /// no backend runs.
    pub(super) fn callees(&self, program: &Program) -> Vec<u32> {
        let callee = |step: &Step| match step {
            Step::Region(step) if step.region.is_none() => Some(program.regions[step.index as usize].fallback),
            Step::Control(
                Instr::Call { function, .. } | Instr::TailCall { function, .. } | Instr::Closure { function, .. },
            ) => Some(*function),
            _ => None,
        };
        self.steps.iter().filter_map(callee).collect()
    }
}

/// Instruction prepared for execution.
pub(super) enum Step {
    Kernel(Box<KernelStep>),
    Dynamic(Box<DynamicStep>),
    /// View of an operand, with the dimensions of the result if they are known.
    Alias {
        from: Reg,
        out: Reg,
        shape: Option<Shape>,
        call: Option<Box<DynamicStep>>,
    },
    Region(Box<RegionStep>),
    Copy(Box<CopyStep>),
    /// No operation: source and result share their slot in the arena.
    Nop,
    /// Any other instruction, unchanged.
    Control(Instr),
}

/// Operator call on operands with known dimensions.
pub(super) struct KernelStep {
    pub kernel: Box<dyn Kernel>,
    pub operands: Operands,
    pub in_place: InPlace,
    /// True if the operands and results are small; see [`MAX_INLINE_BYTES`].
    pub is_small: bool,
}

/// Maximum size of the operands and results of a step that the calling thread runs alone, even if it does not belong to
/// the pool. To hand a step to the pool takes about as long as the work of most operators on tensors of this size.
pub(super) const MAX_INLINE_BYTES: usize = 64 << 10;

/// Maximum number of floating-point operations of such a step.
const MAX_INLINE_FLOPS: u64 = 200_000;

/// In-place execution: the first output reuses the memory of an input, which is then not among the [`Operands`].
pub(super) enum InPlace {
    /// The output has separate memory.
    No,
    /// The kernel computes in place.
    Yes,
    /// The program was planned for in-place execution, but the kernel on this machine does not support it: the input is
    /// copied to the end of the workspace first, and the copy is inserted into the inputs at this index.
    Save(u32, Reg),
}

/// Operator call on operands whose dimensions are known only at run time.
pub(super) struct DynamicStep {
    pub op: OpId,
    pub attrs: Attrs,
    pub args: Vec<Arg>,
    pub outs: Vec<Reg>,
    pub grows: Option<Growing>,
    /// Recently used kernels, by the dimensions of inputs and results.
    pub kernels: Mutex<LruCache<Dims, Arc<SizedKernel>>>,
}

/// Kernel for the dimensions of a run.
pub(super) struct SizedKernel {
    pub kernel: Box<dyn Kernel>,
    pub outs: Vec<TensorType>,
}

/// Region call.
pub(super) struct RegionStep {
    /// Index into [`Program::regions`], for messages and the host program.
    pub index: u32,
    /// The loaded region; `None` if the host runs it.
    pub region: Option<Arc<dyn Region>>,
    /// Types that the region was compiled for.
    pub signature: Signature,
    /// Operands and plan, if all dimensions are known before the run.
    pub fixed_plan: Option<(Operands, Prepared)>,
    /// Workspace in device memory; `None` unless `fixed_plan` has a footprint.
    pub device_workspace: Option<WorkspaceRange>,
    pub inputs: Vec<Reg>,
    pub outs: Vec<Reg>,
    /// Plans, if dimensions are known only at run time.
    pub plans: Option<Arc<RegionPlans>>,
}

/// Copy between host and device memory.
pub(super) struct CopyStep {
    pub from: Reg,
    pub to: Reg,
    /// Ranges that the step accesses in device memory.
    pub footprint: Footprint,
    /// True if the device may read the tensor in host memory instead: the tensor is a value, and regions only read the
    /// copy.
    pub is_importable: bool,
}

/// Prepares a function of a validated program for execution.
pub(super) fn load(
    program: &Program,
    constants: &[Tensor],
    regions: &[Option<Arc<dyn Region>>],
    plans: &[Option<Arc<RegionPlans>>],
    spaces: &[Option<Arc<DeviceSpace>>],
    index: usize,
) -> Result<Code, Diagnostic> {
    let function = &program.functions[index];
    let charge = charge(function)?;
    let is_importable = importable_registers(function);
    let mut loader = Loader { program, constants, regions, plans, workspace: 0, notes: Vec::new(), is_importable };
    let mut values = 0;
    let mut arenas = Arenas::of(function, spaces).ok_or(OutOfMemory::OVERFLOW)?;
    let regs: Option<Vec<RegInfo>> = function.registers.iter().map(|r| RegInfo::new(r, &arenas, &mut values)).collect();
    let regs = regs.ok_or(OutOfMemory::OVERFLOW)?;
    check_fits(function, &regs, arenas.host)?;
    let mut steps: Vec<Step> = function
        .code
        .iter()
        .zip(1..)
        .map(|(instr, next)| {
            cancel::check(|| format!("while preparing step {} of function {}", next - 1, function.name))?;
            loader.step(function, &regs, instr, &function.code[next..])
        })
        .collect::<Result<_, _>>()?;
    let direct = if index == program.entry as usize { direct_results(function, &regs) } else { Vec::new() };
    let direct_outputs: BTreeMap<Reg, u32> = direct.iter().map(|result| (result.reg, result.output)).collect();
    for step in &mut steps {
        match step {
            Step::Kernel(step) => step.operands.set_direct(&direct_outputs),
            Step::Region(step) => {
                if let Some((operands, _)) = &mut step.fixed_plan {
                    operands.set_direct(&direct_outputs);
                }
            }
            _ => {}
        }
    }
    place_device_workspaces(&mut steps, &mut arenas)?;
    let copying_space = steps.iter().find_map(|step| match step {
        Step::Copy(copy) => {
            let is_in_arena = |reg: Reg| matches!(regs[reg.index()].slot, Slot::Arena(_));
            let has_device = spaces.get(copy.footprint.space as usize).is_some_and(Option::is_some);
            (has_device && (is_in_arena(copy.from) || is_in_arena(copy.to))).then_some(copy.footprint.space)
        }
        _ => None,
    });
    let zeroes_devices = steps.iter().any(|step| match step {
        Step::Region(step) => step.region.as_ref().is_some_and(|region| region.needs_zeroed_memory()),
        _ => false,
    });
    let Loader { workspace, notes, .. } = loader;
    let values = values as usize;
    Ok(Code { arenas, values, workspace, zeroes_devices, copying_space, regs, steps, direct, notes, charge })
}

/// Reserves a range for workspaces at the end of each device arena. All steps share the range: each step records a
/// write to it, so that the device runs the steps in order.
fn place_device_workspaces(steps: &mut [Step], arenas: &mut Arenas) -> Result<(), Diagnostic> {
    let ends: Vec<Option<usize>> =
        arenas.device.iter().map(|bytes| bytes.checked_next_multiple_of(ALIGNMENT)).collect();
    for step in steps {
        let Step::Region(step) = step else { continue };
        let (Some((operands, _)), Some(range)) = (&mut step.fixed_plan, &mut step.device_workspace) else { continue };
        let Some(footprint) = &mut operands.footprint else { continue };
        let start = ends[range.space as usize].ok_or(OutOfMemory::OVERFLOW)?;
        let end = start.checked_add(range.bytes).ok_or(OutOfMemory::OVERFLOW)?;
        range.offset = start;
        footprint
            .add(start..end, true)
            .ok_or_else(|| bad_program("the workspace overlaps the operands of its step"))?;
        let arena = &mut arenas.device[range.space as usize];
        *arena = (*arena).max(end);
    }
    Ok(())
}

/// Checks that no tensor of the function exceeds the memory limit, because a kernel may allocate a table as long as an
/// axis of the tensor.
fn check_fits(function: &Function, regs: &[RegInfo], arena: usize) -> Result<(), Diagnostic> {
    let largest = regs.iter().filter(|reg| !matches!(reg.slot, Slot::Constant(_))).map(|reg| reg.bytes).max();
    let bytes = largest.unwrap_or(0).max(arena);
    if bytes <= memory::limit() {
        return Ok(());
    }
    let error = OutOfMemory { bytes: Some(bytes), limit: Some((memory::limit(), memory::used())) };
    Err(Diagnostic::from(error).note(format!("required by function {}", function.name)))
}

struct Loader<'a> {
    program: &'a Program,
    constants: &'a [Tensor],
    regions: &'a [Option<Arc<dyn Region>>],
    plans: &'a [Option<Arc<RegionPlans>>],
    workspace: usize,
    notes: Vec<String>,
    /// Registers that a device may read in host memory.
    is_importable: Vec<bool>,
}

impl Loader<'_> {
    /// Prepares an instruction; `later` are the instructions after it.
    fn step(
        &mut self,
        function: &Function,
        regs: &[RegInfo],
        instr: &Instr,
        later: &[Instr],
    ) -> Result<Step, Diagnostic> {
        match instr {
            Instr::Kernel(call) => self.kernel(function, regs, call, later),
            Instr::Alias(call) => self.alias(function, regs, call),
            Instr::Region { region, inputs, outs, in_place } => self.region(regs, *region, [inputs, outs], in_place),
            Instr::Copy { from, to } => Ok(copy(&self.is_importable, regs, *from, *to)),
            other => Ok(Step::Control(other.clone())),
        }
    }

    fn kernel(
        &mut self,
        function: &Function,
        regs: &[RegInfo],
        call: &OpCall,
        later: &[Instr],
    ) -> Result<Step, Diagnostic> {
        let result_types = self.infer_types(function, regs, call)?;
        let is_sized = call.inputs().all(|reg| regs[reg.index()].shape.is_some())
            && result_types.outs.iter().all(|t| t.len().is_some());
        if !is_sized {
            let grows = growing_operand(result_types.def, call, later, regs);
            return Ok(Step::Dynamic(Box::new(result_types.dynamic_step(call, grows))));
        }
        let inputs: Vec<TensorType> = call.inputs().filter_map(|reg| regs[reg.index()].ty.clone()).collect();
        let constants: Vec<Option<&Tensor>> = call.inputs().map(|reg| self.constant(regs, reg)).collect();
        let spec = Spec {
            def: result_types.def,
            attrs: &result_types.attrs,
            inputs: &inputs,
            outputs: &result_types.outs,
            constants: &constants,
        };
        let kernel = byoc_kernels::make(result_types.op, &spec).ok_or_else(|| no_kernel(self.program, call))?;
        let mut workspace = kernel.workspace();
        let mut read: Vec<Reg> = call.inputs().collect();
        let in_place = match call.in_place {
            None => InPlace::No,
            Some(position) => {
                let reg = read.remove(position as usize);
                if kernel.in_place() == Some(position as usize) {
                    InPlace::Yes
                } else {
                    workspace = workspace.next_multiple_of(64) + regs[reg.index()].bytes;
                    InPlace::Save(position, reg)
                }
            }
        };
        self.workspace = self.workspace.max(workspace);
        let operands = Operands::new(regs, read, call.outs.clone())
            .ok_or_else(|| bad_program(&format!("the operands of {} overlap", call.op)))?;
        let bytes: usize = call.inputs().chain(call.outs.iter().copied()).map(|reg| regs[reg.index()].bytes).sum();
        let is_small = bytes <= MAX_INLINE_BYTES && trace::flops(function, call) <= MAX_INLINE_FLOPS;
        Ok(Step::Kernel(Box::new(KernelStep { kernel, operands, in_place, is_small })))
    }

    fn alias(&mut self, function: &Function, regs: &[RegInfo], call: &OpCall) -> Result<Step, Diagnostic> {
        let result_types = self.infer_types(function, regs, call)?;
        let (view_source, out) = match (call.inputs().next(), &call.outs[..]) {
            (Some(from), [out]) => (from, *out),
            _ => {
                return Err(bad_program(&format!(
                    "view: expected at least one argument and exactly one result, found {} and {}",
                    call.inputs().count(),
                    call.outs.len()
                )));
            }
        };
        let (source, target) = (&regs[view_source.index()], &regs[out.index()]);
        let is_in_arena = matches!(source.slot, Slot::Arena(_) | Slot::Device { .. });
        let is_same_location = is_in_arena && source.slot == target.slot;
        let shape = result_types.outs.first().and_then(TensorType::shape);
        if is_same_location && shape.is_some() && source.bytes == target.bytes {
            return Ok(Step::Nop);
        }
        let call = shape.is_none().then(|| Box::new(result_types.dynamic_step(call, None)));
        Ok(Step::Alias { from: view_source, out, shape, call })
    }

    fn region(
        &mut self,
        regs: &[RegInfo],
        index: u32,
        [inputs, outs]: [&[Reg]; 2],
        in_place: &[[u32; 2]],
    ) -> Result<Step, Diagnostic> {
        let (inputs, outs) = (inputs.to_vec(), outs.to_vec());
        let declaration = &self.program.regions[index as usize];
        let mut region = self.regions.get(index as usize).cloned().flatten();
        let plans = self.plans.get(index as usize).cloned().flatten();
        let mut fixed_plan = None;
        let mut device_workspace = None;
        let is_sized = inputs.iter().chain(&outs).all(|reg| regs[reg.index()].shape.is_some());
        if let Some(plans) = &plans
            && is_sized
        {
            let dims: Vec<&[usize]> = inputs.iter().filter_map(|reg| regs[reg.index()].shape.as_deref()).collect();
            let expected: Vec<&[usize]> = outs.iter().filter_map(|reg| regs[reg.index()].shape.as_deref()).collect();
            match plans.fixed_plan(&dims) {
                Ok(plan)
                    if plan.outputs.iter().all(|o| o.exact)
                        && plan.outputs.iter().map(|o| &o.dims[..]).eq(expected.iter().copied()) =>
                {
                    self.workspace = self.workspace.max(plan.workspace);
                    let operands = Operands::with_in_place(regs, inputs.clone(), outs.clone(), in_place)
                        .ok_or_else(|| bad_program(&format!("the operands of {} overlap", declaration.symbol)))?;
                    device_workspace = self.device_workspace(region.as_deref(), &operands, &plan, &dims)?;
                    fixed_plan = Some((operands, plan));
                }
                Ok(plan) => {
                    let dims_text = |OutputDims { dims, exact }: &OutputDims| match exact {
                        true => format!("{dims:?}"),
                        false => format!("at most {dims:?}"),
                    };
                    let plan_dims: Vec<String> = plan.outputs.iter().map(dims_text).collect();
                    let expected: Vec<String> = expected.iter().map(|dims| format!("{dims:?}")).collect();
                    let reason = format!(
                        "expected prepared output dimensions {1}, found {0}",
                        plan_dims.join(" and "),
                        expected.join(" and ")
                    );
                    self.notes.push(refusal_note(declaration, &reason));
                    region = None;
                }
                Err(error) => {
                    self.notes.push(refusal_note(declaration, &error.to_string()));
                    region = None;
                }
            }
        }
        let signature = Signature {
            inputs: declaration.inputs.clone(),
            outputs: declaration.outputs.clone(),
            ..Signature::default()
        };
        Ok(Step::Region(Box::new(RegionStep {
            index,
            region,
            signature,
            fixed_plan,
            device_workspace,
            inputs,
            outs,
            plans,
        })))
    }

    /// Returns the workspace that a step needs in device memory, at an offset that is not known yet.
    fn device_workspace(
        &self,
        region: Option<&dyn Region>,
        operands: &Operands,
        plan: &Prepared,
        dims: &[&[usize]],
    ) -> Result<Option<WorkspaceRange>, Diagnostic> {
        let (Some(region), Some(footprint)) = (region, &operands.footprint) else { return Ok(None) };
        let bytes = region.device_workspace(plan.plan, dims)?;
        Ok((bytes > 0).then_some(WorkspaceRange { space: footprint.space, offset: 0, bytes }))
    }

    fn constant(&self, regs: &[RegInfo], reg: Reg) -> Option<&Tensor> {
        match regs[reg.index()].slot {
            Slot::Constant(i) => Some(&self.constants[i as usize]),
            _ => None,
        }
    }

    /// Infers the types of a call again, because a program from a file may declare arbitrary types.
    fn infer_types(&self, function: &Function, regs: &[RegInfo], call: &OpCall) -> Result<TypedCall, Diagnostic> {
        let op = op::lookup(&call.op).ok_or_else(|| no_kernel(self.program, call))?;
        let def = op::get(op);
        let attrs = op::normalize_attrs(def, call.attrs.clone()).map_err(|d| type_error(&d))?;
        let args = trace::arg_types(function, call)
            .ok_or_else(|| bad_program("expected tensors as operator arguments, found a handle"))?;
        let values: Vec<Option<&Tensor>> = call
            .args
            .iter()
            .map(|arg| match arg {
                Arg::One(reg) => self.constant(regs, *reg),
                Arg::Tuple(_) => None,
            })
            .collect();
        let result_types = def.infer(&attrs, &args, &values).map_err(|d| type_error(&d))?;
        let result_types = flatten(&result_types)
            .ok_or_else(|| bad_program(&format!("expected {} to return tensors, found {result_types}", call.op)))?;
        let matches_declaration = result_types.len() == call.outs.len()
            && result_types.iter().zip(&call.outs).all(|(ty, out)| match &regs[out.index()].ty {
                Some(declared_type) => {
                    unify(&Type::Tensor(ty.clone().into()), &Type::Tensor(declared_type.clone().into())).is_some()
                }
                None => false,
            });
        if !matches_declaration {
            let type_text = |ty: Option<&TensorType>| ty.map_or_else(|| "a handle".to_owned(), TensorType::to_string);
            let expected: Vec<String> = result_types.iter().map(|ty| type_text(Some(ty))).collect();
            let found: Vec<String> = call.outs.iter().map(|out| type_text(regs[out.index()].ty.as_ref())).collect();
            return Err(bad_program(&format!(
                "{}: expected results of types [{}], found [{}]",
                call.op,
                expected.join(", "),
                found.join(", ")
            )));
        }
        Ok(TypedCall { op, def, attrs, outs: result_types })
    }
}

struct TypedCall {
    op: OpId,
    def: &'static OpDef,
    attrs: Attrs,
    outs: Vec<TensorType>,
}

impl TypedCall {
    /// Creates the step for a call; `grows` is the operand whose memory may grow to hold the result.
    fn dynamic_step(&self, call: &OpCall, grows: Option<Growing>) -> DynamicStep {
        // Kernels with copies of constants do not add up.
        let kernels = if byoc_kernels::packs_constants(self.def.name) { 1 } else { MAX_KERNELS };
        DynamicStep {
            op: self.op,
            attrs: self.attrs.clone(),
            args: call.args.clone(),
            outs: call.outs.clone(),
            grows,
            kernels: Mutex::new(LruCache::new(kernels, usize::MAX)),
        }
    }
}

/// Returns the tensor types in the result type of a call, tuples flattened.
pub(super) fn flatten(ty: &Type) -> Option<Vec<TensorType>> {
    match ty {
        Type::Tensor(t) => Some(vec![(**t).clone()]),
        Type::Tuple(fields) => fields.iter().map(|f| f.as_tensor().cloned()).collect(),
        _ => None,
    }
}

/// Prepares a copy between host and device memory.
fn copy(is_importable: &[bool], regs: &[RegInfo], source: Reg, target: Reg) -> Step {
    let mut footprint = Footprint::default();
    for (reg, writes) in [(source, false), (target, true)] {
        let info = &regs[reg.index()];
        if let Slot::Device { space, offset } = info.slot {
            footprint.space = space;
            let range = offset..offset + info.bytes;
            if writes { &mut footprint.writes } else { &mut footprint.reads }.push(range);
        }
    }
    let is_importable = matches!(regs[source.index()].slot, Slot::Value(_)) && is_importable[target.index()];
    Step::Copy(Box::new(CopyStep { from: source, to: target, footprint, is_importable }))
}

fn refusal_note(region: &program::Region, reason: &str) -> String {
    format!("region {} runs on the host because {} refused it: {reason}", region.symbol, region.backend)
}

/// Converts a type error to an invalid program: types are inferred when a program is created, so an error at this point
/// means that its file is invalid.
fn type_error(diagnostic: &Diagnostic) -> Diagnostic {
    bad_program(&diagnostic.message)
}

fn no_kernel(program: &Program, call: &OpCall) -> Diagnostic {
    let mut diagnostic =
        Diagnostic::error(codes::runtime::NO_KERNEL, format!("the host has no implementation of {}", call.op))
            .help("select a backend that supports the operator: see byoc explain");
    for source in call.origins.iter().filter_map(|&i| program.sources.get(i as usize)) {
        diagnostic = diagnostic.note(format!("model operator: {} ({})", source.name, source.op));
    }
    diagnostic
}

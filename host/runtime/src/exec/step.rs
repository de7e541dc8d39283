//! Runs the steps that compute: kernels, views, regions.

use super::append::append;
use super::device::{DeviceOperands, DeviceSlice, DeviceSpace, SharedTensor};
use super::frame::{Frame, Operands, Scope, Slot};
use super::load::{CopyStep, DynamicStep, InPlace, KernelStep, MAX_INLINE_BYTES, RegionStep, SizedKernel, flatten};
use super::lock::lock;
use super::lru_cache::Dims;
use super::pool::Pool;
use super::prepared::RunBuffers;
use super::program::{Arg, Reg};
use super::recycler::{RecycledBytes, Recycler};
use super::region::{Region, RegionCall};
use super::value::{Value, bad_program};
use crate::cancel::Cancel;
use crate::error::fault;
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::ir::{TensorType, Type};
use byoc_ir::op;
use byoc_ir::tensor::{Shape, Tensor, TensorView, TensorViewMut, memory};
use byoc_kernels::{self, Spec};
use byoc_plugin_api::host::device::Event;
use std::sync::Arc;

/// Failure of a step.
pub(super) enum StepError {
    /// Message of the kernel.
    Kernel(String),
    /// Diagnostic of the executor.
    Other(Diagnostic),
}

impl From<Diagnostic> for StepError {
    fn from(diagnostic: Diagnostic) -> StepError {
        StepError::Other(diagnostic)
    }
}

/// Runs a kernel on operands with known dimensions; see [`Scratch::with_views`](super::frame::Scratch::with_views) for
/// `caller`.
pub(super) fn kernel(
    scope: Scope<'_>,
    frame: &mut Frame,
    step: &KernelStep,
    buffers: &mut RunBuffers,
    caller: &mut [TensorViewMut<'_>],
) -> Result<(), StepError> {
    let workspace = buffers.workspace.as_mut();
    let mut failure = None;
    let _reservation = match step.kernel.scratch() {
        0 => None,
        bytes => Some(memory::reserve(bytes).map_err(Diagnostic::from)?),
    };
    let (workspace, saved_bytes) = match step.in_place {
        InPlace::Save(_, reg) => {
            let bytes = scope.reg(reg).bytes;
            let (workspace, saved_bytes) = workspace.split_at_mut(step.kernel.workspace().next_multiple_of(64));
            let saved_bytes = &mut saved_bytes[..bytes];
            scope.copy_arena(frame, reg, saved_bytes);
            (workspace, &*saved_bytes)
        }
        _ => (workspace, &[][..]),
    };
    buffers.scratch.with_views(scope, frame, &step.operands, caller, |views| {
        let result = match step.in_place {
            InPlace::No => step.kernel.run(&views.inputs, &mut views.outputs, workspace),
            InPlace::Yes => step.kernel.run_in_place(&views.inputs, &mut views.outputs),
            InPlace::Save(offset, reg) => {
                let mut inputs = views.inputs.clone();
                inputs.insert(offset as usize, scope.view_of(reg, saved_bytes));
                step.kernel.run(&inputs, &mut views.outputs, workspace)
            }
        };
        failure = result.err();
        Ok(())
    })?;
    match failure {
        Some(message) => Err(StepError::Kernel(message)),
        None => Ok(()),
    }
}

/// Runs an operator on operands whose dimensions are known only at run time.
pub(super) fn run_dynamic(
    scope: Scope<'_>,
    frame: &mut Frame,
    step: &DynamicStep,
    recycler: &Arc<Recycler>,
    (pool, cancel): (&Pool, &Cancel),
) -> Result<(), Diagnostic> {
    let mut operands = SizedOperands::new(scope, frame, step)?;
    let outs = operands.results(step)?;
    if let (Some(growing), [ty], [out]) = (&step.grows, &outs[..], &step.outs[..]) {
        drop(operands.inputs.remove(0));
        if append(scope, frame, growing, *out, &operands.inputs, ty, recycler)? {
            return Ok(());
        }
        operands.inputs.insert(0, scope.read_tensor(frame, growing.register())?);
    }
    // A step that takes elements of a tensor reads no more of it than it returns.
    let read = if op::get(step.op).name == "take" { &[][..] } else { &operands.inputs };
    let read_bytes: usize = read.iter().map(|tensor| tensor.bytes().len()).sum();
    let result_bytes = outs.iter().map(|ty| Ok(size(ty)?.1)).sum::<Result<usize, Diagnostic>>()?;
    let is_small = read_bytes.saturating_add(result_bytes) <= MAX_INLINE_BYTES;
    let body = || cancel.within(|| run_sized(scope, frame, step, recycler, (&operands, outs)));
    pool.install_unless(is_small, body)
}

/// Runs an operator on operands, and for results, of these dimensions.
fn run_sized(
    scope: Scope<'_>,
    frame: &mut Frame,
    step: &DynamicStep,
    recycler: &Arc<Recycler>,
    (operands, outs): (&SizedOperands, Vec<TensorType>),
) -> Result<(), Diagnostic> {
    let kernel = operands.kernel(step, outs)?;
    let mut memory: Vec<(Shape, RecycledBytes)> = Vec::with_capacity(kernel.outs.len());
    for ty in &kernel.outs {
        let (shape, bytes) = size(ty)?;
        memory.push((shape, recycler.allocate(bytes)?));
    }
    let mut workspace = recycler.allocate(kernel.kernel.workspace())?;
    let views: Vec<TensorView<'_>> = operands.inputs.iter().map(Tensor::view).collect();
    let mut outputs: Vec<TensorViewMut<'_>> = kernel
        .outs
        .iter()
        .zip(&mut memory)
        .map(|(ty, (shape, bytes))| TensorViewMut { dtype: ty.dtype, shape, data: bytes.as_mut() })
        .collect();
    let reservation = memory::reserve(kernel.kernel.scratch())?;
    let result = kernel.kernel.run(&views, &mut outputs, workspace.as_mut());
    drop(reservation);
    result.map_err(|message| Diagnostic::error(codes::runtime::KERNEL_FAILED, message))?;
    for ((ty, (shape, bytes)), &out) in kernel.outs.iter().zip(memory).zip(&step.outs) {
        let tensor =
            Tensor::from_storage(ty.dtype, &shape, Arc::new(bytes)).expect("the buffer has the size of the shape");
        scope.write(frame, out, Value::Tensor(tensor))?;
    }
    Ok(())
}

/// Arguments of a step, with the dimensions of this run.
struct SizedOperands {
    /// Inputs, tuples flattened.
    inputs: Vec<Tensor>,
    /// True for each input that is a constant of the program.
    is_constant: Vec<bool>,
    args: Vec<Type>,
}

impl SizedOperands {
    fn new(scope: Scope<'_>, frame: &Frame, step: &DynamicStep) -> Result<SizedOperands, Diagnostic> {
        let mut inputs = Vec::new();
        let mut is_constant = Vec::new();
        let mut args = Vec::with_capacity(step.args.len());
        for arg in &step.args {
            let first_input = inputs.len();
            for &reg in arg.regs() {
                inputs.push(scope.read_tensor(frame, reg)?);
                is_constant.push(matches!(scope.regs[reg.index()].slot, Slot::Constant(_)));
            }
            let mut types = inputs[first_input..].iter().map(|t| Type::tensor(t.dtype(), t.shape()));
            args.push(match arg {
                Arg::One(_) => types.next_back().expect("one register"),
                Arg::Tuple(_) => Type::tuple(types),
            });
        }
        Ok(SizedOperands { inputs, is_constant, args })
    }

    /// Infers the types of the results from the values of the arguments.
    fn results(&self, step: &DynamicStep) -> Result<Vec<TensorType>, Diagnostic> {
        let mut inputs = self.inputs.iter();
        let values: Vec<Option<&Tensor>> = step
            .args
            .iter()
            .map(|arg| match arg {
                Arg::One(_) => inputs.next(),
                Arg::Tuple(regs) => {
                    inputs.by_ref().take(regs.len()).for_each(drop);
                    None
                }
            })
            .collect();
        let ty = op::get(step.op).infer(&step.attrs, &self.args, &values).map_err(|d| *d)?;
        flatten(&ty).ok_or_else(|| bad_program(&format!("expected tensors as results, found {ty}")))
    }

    /// Returns the kernel for the dimensions of this run and results `outs`, from the cache or newly created.
    fn kernel(&self, step: &DynamicStep, outs: Vec<TensorType>) -> Result<Arc<SizedKernel>, Diagnostic> {
        // Result dimensions may depend on values as well, so they are part of the key.
        let result_shapes = outs.iter().map(|ty| size(ty).map(|(shape, _)| shape));
        let key: Dims =
            self.inputs.iter().map(|t| Ok(t.shape().into())).chain(result_shapes).collect::<Result<_, Diagnostic>>()?;
        let cache = lock(&step.kernels).get(&key);
        if let Some(kernel) = cache
            && kernel.outs == outs
        {
            return Ok(kernel);
        }
        // The limit is checked before the kernel is created, because a kernel may allocate a table as long as an axis
        // of the result.
        let reservation =
            outs.iter().map(|ty| Ok(memory::Charge::new(size(ty)?.1)?)).collect::<Result<Vec<_>, Diagnostic>>()?;
        drop(reservation);
        let def = op::get(step.op);
        let inputs: Vec<TensorType> = self.inputs.iter().map(|t| TensorType::fixed(t.dtype(), t.shape())).collect();
        let packs = byoc_kernels::packs_constants(def.name);
        let constants: Vec<Option<&Tensor>> = self
            .inputs
            .iter()
            .zip(&self.is_constant)
            .map(|(input, &is_constant)| Some(input).filter(|_| packs && is_constant))
            .collect();
        let spec = Spec { def, attrs: &step.attrs, inputs: &inputs, outputs: &outs, constants: &constants };
        let kernel = byoc_kernels::make(step.op, &spec).ok_or_else(|| {
            Diagnostic::error(codes::runtime::NO_KERNEL, format!("the host has no implementation of {}", def.name))
        })?;
        let kernel = Arc::new(SizedKernel { kernel, outs });
        let evicted_kernels = lock(&step.kernels).insert(key, kernel.clone(), 0);
        drop(evicted_kernels);
        Ok(kernel)
    }
}

/// Returns the dimensions and the size in bytes of a tensor type; E0611 if a dimension is unknown, or the size exceeds
/// the address space.
fn size(ty: &TensorType) -> Result<(Shape, usize), Diagnostic> {
    let shape = ty.shape();
    let bytes = shape.as_deref().and_then(|shape| byoc_ir::tensor::byte_count(ty.dtype, shape));
    let error = |expected: &str, found: String| {
        let message = format!("expected a result of {expected}, found {found}");
        Diagnostic::error(codes::runtime::SIZE_UNKNOWN, message)
    };
    match (shape, bytes) {
        (Some(shape), Some(bytes)) => Ok((shape, bytes)),
        (None, _) => Err(error("known dimensions", Type::Tensor(ty.clone().into()).to_string())),
        (Some(shape), None) => {
            let elements: f64 = shape.iter().map(|&size| size as f64).product();
            let found =
                format!("{} of {:.1e} bytes", Type::Tensor(ty.clone().into()), elements * ty.dtype.size() as f64);
            let limit = memory::Bytes(memory::limit().min(isize::MAX as usize));
            Err(error(&format!("at most {limit}"), found)
                .help("pass other values for the inputs that determine the dimensions"))
        }
    }
}

/// Reshapes a tensor to `shape`, or to the dimensions inferred for `call` in this run.
pub(super) fn alias(
    scope: Scope<'_>,
    frame: &mut Frame,
    source: Reg,
    out: Reg,
    shape: Option<&[usize]>,
    call: Option<&DynamicStep>,
) -> Result<(), Diagnostic> {
    let tensor = scope.read_tensor(frame, source)?;
    let dims = match (shape, call) {
        (Some(shape), _) => Shape::from(shape),
        (None, Some(call)) => match &SizedOperands::new(scope, frame, call)?.results(call)?[..] {
            [ty] => size(ty)?.0,
            types => return Err(bad_program(&format!("view: expected one result, found {}", types.len()))),
        },
        (None, None) => return Err(bad_program("expected the dimensions of a view, found none")),
    };
    let alias = tensor.reshaped(&dims).ok_or_else(|| {
        Diagnostic::error(codes::runtime::KERNEL_FAILED, format!("cannot reshape {tensor:?} to dimensions {dims:?}"))
    })?;
    scope.write(frame, out, Value::Tensor(alias))
}

/// Outcome of a region step.
pub(super) enum RegionOutcome {
    /// The outputs are complete.
    Done,
    /// The device has not finished yet.
    Started(Event),
    /// The host has to run the region.
    OnHost,
}

/// Runs a region, or starts it if its operands are in device memory; `caller` as in [`kernel`].
pub(super) fn region(
    scope: Scope<'_>,
    frame: &mut Frame,
    step: &RegionStep,
    buffers: &mut RunBuffers,
    caller: &mut [TensorViewMut<'_>],
    dependencies: Option<&[&Event]>,
) -> Result<RegionOutcome, Diagnostic> {
    let Some(region) = &step.region else { return Ok(RegionOutcome::OnHost) };
    if let Some((operands, plan)) = &step.fixed_plan {
        let workspace = &mut buffers.workspace.as_mut()[..plan.workspace];
        let device = operands.is_on_device.then(|| device_operands(scope, frame, step, operands)).transpose()?;
        let mut start_time = None;
        buffers.scratch.with_views(scope, frame, operands, caller, |views| {
            if region.needs_zeroed_memory() {
                let is_reused = |index: usize| operands.in_place.iter().any(|[out, _]| *out as usize == index);
                let outputs = views.outputs.iter_mut().enumerate().filter(|(index, _)| !is_reused(*index));
                outputs.for_each(|(_, output)| output.data.fill(0));
            }
            let call = RegionCall {
                inputs: &views.inputs,
                outputs: &mut views.outputs,
                // The outputs are exact, so the region does not return dimensions.
                shapes: &mut [],
                workspace,
                plan: plan.plan,
                in_place: &operands.in_place,
                device: device.as_ref(),
            };
            match dependencies {
                Some(dependencies) => start_time = region.start(call, dependencies)?,
                None => region.run(call)?,
            }
            Ok(())
        })?;
        return Ok(start_time.map_or(RegionOutcome::Done, RegionOutcome::Started));
    }
    dynamic_region(scope, frame, step, region.as_ref(), &buffers.recycler)
}

/// Runs a region whose dimensions are known only at run time.
fn dynamic_region(
    scope: Scope<'_>,
    frame: &mut Frame,
    step: &RegionStep,
    region: &dyn Region,
    recycler: &Arc<Recycler>,
) -> Result<RegionOutcome, Diagnostic> {
    let inputs: Vec<Tensor> = step.inputs.iter().map(|&reg| scope.read_tensor(frame, reg)).collect::<Result<_, _>>()?;
    step.signature
        .check_inputs(inputs.iter().map(|t| (Some(t.dtype()), t.shape())))
        .map_err(|message| bad_program(&format!("region call: {message}")))?;
    let dims: Vec<&[usize]> = inputs.iter().map(Tensor::shape).collect();
    let plan = step.plans.as_ref().and_then(|plans| plans.get(&dims, &step.signature));
    let Some(plan) = plan else { return Ok(RegionOutcome::OnHost) };
    let region_error = |message: String| Diagnostic::error(codes::runtime::REGION_FAILED, message);
    let mut shapes: Vec<Shape> = plan.outputs.iter().map(|out| out.dims.clone()).collect();
    let mut memory = Vec::with_capacity(shapes.len());
    for (&reg, out) in step.outs.iter().zip(&plan.outputs) {
        let dtype = scope
            .reg(reg)
            .ty
            .as_ref()
            .ok_or_else(|| bad_program("expected tensors as region results, found a handle"))?
            .dtype;
        let (_, bytes) = size(&TensorType::fixed(dtype, &out.dims))?;
        memory.push((dtype, recycler.allocate(bytes)?));
    }
    let mut workspace = recycler.allocate(plan.workspace)?;
    if region.needs_zeroed_memory() {
        workspace.as_mut().fill(0);
        memory.iter_mut().for_each(|(_, bytes)| bytes.as_mut().fill(0));
    }
    let views: Vec<TensorView<'_>> = inputs.iter().map(Tensor::view).collect();
    let mut outputs: Vec<TensorViewMut<'_>> = memory
        .iter_mut()
        .zip(&plan.outputs)
        .map(|((dtype, bytes), out)| TensorViewMut { dtype: *dtype, shape: &out.dims, data: bytes.as_mut() })
        .collect();
    region.run(RegionCall {
        inputs: &views,
        outputs: &mut outputs,
        shapes: &mut shapes,
        workspace: workspace.as_mut(),
        plan: plan.plan,
        in_place: &[],
        device: None,
    })?;
    step.signature.check_results(&plan, &shapes).map_err(region_error)?;
    for (((&reg, out), (dtype, bytes)), shape) in step.outs.iter().zip(&plan.outputs).zip(memory).zip(shapes) {
        let tensor = if out.exact {
            Tensor::from_storage(dtype, &out.dims, Arc::new(bytes))
        } else {
            let (_, byte_count) = size(&TensorType::fixed(dtype, &shape))?;
            bytes.as_ref().get(..byte_count).and_then(|byte_count| Tensor::from_bytes(dtype, &shape, byte_count))
        };
        let tensor = tensor.ok_or_else(|| {
            region_error(format!("expected at most the prepared dimensions {:?}, found {shape:?}", out.dims))
        })?;
        scope.write(frame, reg, Value::Tensor(tensor))?;
    }
    Ok(RegionOutcome::Done)
}

/// Returns the operands of a step that are in device memory, and its workspace there.
fn device_operands(
    scope: Scope<'_>,
    frame: &Frame,
    step: &RegionStep,
    operands: &Operands,
) -> Result<DeviceOperands, Diagnostic> {
    let slice = |&reg: &Reg| match scope.reg(reg).slot {
        Slot::Device { space, offset } => {
            let (buffer, offset) = frame.device.slice(reg, space, offset)?;
            Ok(Some(DeviceSlice { buffer: buffer.clone(), offset }))
        }
        _ => Ok(None),
    };
    let workspace = match step.device_workspace {
        Some(range) => Some(frame.device.arena(range.space)?.workspace(range.offset, range.bytes)),
        None => None,
    };
    Ok(DeviceOperands {
        inputs: operands.inputs.iter().map(slice).collect::<Result<_, Diagnostic>>()?,
        outputs: operands.outs.iter().map(slice).collect::<Result<_, Diagnostic>>()?,
        workspace,
    })
}

/// Copies a tensor between host and device memory, or lets the device read it in host memory.
pub(super) fn copy(
    scope: Scope<'_>,
    frame: &mut Frame,
    step: &CopyStep,
    spaces: &[Option<Arc<DeviceSpace>>],
) -> Result<(), Diagnostic> {
    let &CopyStep { from, to, is_importable, .. } = step;
    let count = |space: &DeviceSpace, name: &str| {
        (space.count)(name, 1);
        (space.count)(&format!("{name}_bytes"), scope.reg(from).bytes as u64);
    };
    match (scope.reg(from).slot, scope.reg(to).slot) {
        (_, Slot::Device { space, .. }) => {
            let Some(space) = &spaces[space as usize] else { return scope.copy(frame, from, to) };
            if is_importable && space.memory.imports() {
                let tensor = scope.read_tensor(frame, from)?;
                if let Some(buffer) = space.memory.import(SharedTensor(tensor)).map_err(|error| fault(&error))? {
                    count(space, "import.to_device");
                    frame.device.import(to, buffer);
                    return Ok(());
                }
            }
            count(space, "copy.to_device");
        }
        (Slot::Device { space, .. }, _) => {
            if let Some(space) = &spaces[space as usize] {
                count(space, "copy.from_device");
            }
        }
        // This machine lacks the device.
        _ => {}
    }
    scope.copy(frame, from, to)
}

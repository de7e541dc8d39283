//! Memory of one activation of a function, and the views of it that a step operates on.
//!
//! A step reads and writes one buffer, the arena, at the same time. This needs no unsafe code: outputs overlap neither
//! each other nor inputs (checked before the program runs), so the arena is split into a mutable slice per output and
//! shared slices in between. [`Operands`] holds the order of the splits.

use super::device::{DeviceFrame, DeviceSpace, Footprint};
use super::program::{Function, Place, Reg, Register};
use super::value::{Value, bad_program};
use crate::error::fault;
use byoc_ir::diag::Diagnostic;
use byoc_ir::ir::TensorType;
use byoc_ir::tensor::memory::Charge;
use byoc_ir::tensor::{AlignedBytes, DType, OutOfMemory, Shape, Tensor, TensorView, TensorViewMut, element_count};
use byoc_plugin_api::host::device::HostMemory;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Register prepared for execution.
pub(super) struct RegInfo {
    pub slot: Slot,
    /// Type of the tensor; `None` for a handle.
    pub ty: Option<TensorType>,
    /// Dimensions, if all are known.
    pub shape: Option<Shape>,
    /// Size of the tensor in bytes; 0 if a dimension is unknown.
    pub bytes: usize,
}

/// Location of a register.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Slot {
    /// Index into [`Frame::values`].
    Value(u32),
    /// Offset in [`Frame::arena`].
    Arena(usize),
    /// Index into the constants.
    Constant(u32),
    /// Offset in an arena of [`Frame::device`].
    Device { space: u32, offset: usize },
}

/// Arenas of a function.
pub(super) struct Arenas {
    /// Size of the host arena in bytes, including stand-ins for the arenas of devices that this machine lacks.
    pub host: usize,
    /// Size of the arena in each device's memory; 0 for a device that this machine lacks.
    pub device: Vec<usize>,
    /// Offset in the host arena at which the stand-in for each device's arena begins; `None` for a device that exists.
    bases: Vec<Option<usize>>,
}

impl Arenas {
    /// Lays out the arenas of a function; returns `None` if their size overflows.
    pub(super) fn of(function: &Function, spaces: &[Option<Arc<DeviceSpace>>]) -> Option<Arenas> {
        let mut arenas = Arenas { host: function.arena, device: Vec::new(), bases: Vec::new() };
        for (index, bytes) in function.device_arenas.iter().enumerate() {
            let exists = spaces.get(index).is_some_and(Option::is_some);
            arenas.device.push(if exists { *bytes } else { 0 });
            arenas.bases.push(if exists { None } else { Some(arenas.host.checked_next_multiple_of(64)?) });
            if let Some(Some(base)) = arenas.bases.last() {
                arenas.host = base.checked_add(*bytes)?;
            }
        }
        Some(arenas)
    }

    fn slot(&self, space: u32, offset: usize) -> Option<Slot> {
        match self.bases.get(space as usize)? {
            Some(base) => Some(Slot::Arena(base.checked_add(offset)?)),
            None => Some(Slot::Device { space, offset }),
        }
    }
}

impl RegInfo {
    /// Prepares a register; returns `None` if its size overflows. `values` counts the registers that are values.
    pub(super) fn new(register: &Register, arenas: &Arenas, values: &mut u32) -> Option<RegInfo> {
        let shape = register.ty.as_ref().and_then(TensorType::shape);
        let dtype = register.ty.as_ref().map_or(DType::U8, |ty| ty.dtype);
        let bytes = match &shape {
            Some(shape) => element_count(shape)?.checked_mul(dtype.size())?,
            None => 0,
        };
        let slot = match register.place {
            Place::Arena(offset) => Slot::Arena(offset),
            Place::Device { space, offset } => arenas.slot(space, offset)?,
            Place::Constant(index) => Slot::Constant(index),
            Place::Value => {
                *values += 1;
                Slot::Value(*values - 1)
            }
        };
        Some(RegInfo { slot, ty: register.ty.clone(), shape, bytes })
    }

    /// Returns the element type and the dimensions, if all dimensions are known.
    pub(super) fn known_type(&self) -> Option<(DType, &Shape)> {
        Some((self.ty.as_ref()?.dtype, self.shape.as_ref()?))
    }
}

/// Memory of an activation.
pub(super) struct Frame {
    pub values: Vec<Value>,
    /// Tensors at the offsets that the planner assigned.
    pub arena: HostArena,
    pub device: DeviceFrame,
    #[expect(dead_code, reason = "counts toward the memory limit until it is dropped")]
    charge: Charge,
}

impl Frame {
    /// Size in bytes of the bookkeeping of an activation: the frame itself, and its entry in the stack of activations,
    /// which doubles its memory as it grows.
    const ENTRY_BYTES: usize = size_of::<Frame>() + 512;

    /// Creates the memory of an activation with `values` registers that are values. The arena must be zeroed.
    ///
    /// # Errors
    /// If the registers exceed the memory limit of the process, or the system is out of memory.
    pub(super) fn new(values: usize, arena: HostArena, device: DeviceFrame) -> Result<Frame, OutOfMemory> {
        let bytes = values.saturating_mul(size_of::<Value>()).saturating_add(Frame::ENTRY_BYTES);
        let charge = Charge::new(bytes)?;
        let mut registers = Vec::new();
        registers.try_reserve_exact(values).map_err(|_| OutOfMemory { bytes: Some(bytes), limit: None })?;
        registers.resize(values, Value::Empty);
        Ok(Frame { values: registers, arena, device, charge })
    }

    /// Returns true if no memory of the activation belongs to a device.
    pub(super) fn is_on_host(&self) -> bool {
        self.device.is_empty() && matches!(self.arena, HostArena::Ordinary(_))
    }
}

/// Host arena of an activation.
pub(super) enum HostArena {
    Ordinary(AlignedBytes),
    /// Page-locked memory of a device, for an arena whose tensors are copied to and from it.
    PageLocked(HostMemory, #[expect(dead_code, reason = "counts toward the memory limit until it is dropped")] Charge),
}

impl HostArena {
    /// Allocates an arena filled with zeros, in page-locked memory if a device offers it.
    pub(super) fn allocate(bytes: usize, device: Option<&DeviceSpace>) -> Result<HostArena, Diagnostic> {
        if let Some(device) = device.filter(|_| bytes > 0) {
            let charge = Charge::new(bytes)?;
            match device.memory.allocate_host(bytes) {
                Ok(Some(memory)) => return Ok(HostArena::PageLocked(memory, charge)),
                Ok(None) => {}
                Err(error) => tracing::debug!("ordinary memory replaces page-locked memory: {}", fault(&error)),
            }
        }
        Ok(HostArena::Ordinary(allocate(bytes)?))
    }
}

impl AsRef<[u8]> for HostArena {
    fn as_ref(&self) -> &[u8] {
        match self {
            HostArena::Ordinary(bytes) => bytes.as_ref(),
            HostArena::PageLocked(bytes, _) => bytes.as_ref(),
        }
    }
}

impl AsMut<[u8]> for HostArena {
    fn as_mut(&mut self) -> &mut [u8] {
        match self {
            HostArena::Ordinary(bytes) => bytes.as_mut(),
            HostArena::PageLocked(bytes, _) => bytes.as_mut(),
        }
    }
}

/// Failure to copy a register to caller-provided memory.
pub(super) enum ReadError {
    /// The register holds a tensor of a different type.
    Type(DType, Shape),
    /// The register could not be read.
    Failed(Diagnostic),
}

/// Constants and register descriptions of a function: the immutable part of an activation.
#[derive(Clone, Copy)]
pub(super) struct Scope<'a> {
    pub regs: &'a [RegInfo],
    pub constants: &'a [Tensor],
}

impl<'a> Scope<'a> {
    pub(super) fn reg(&self, reg: Reg) -> &'a RegInfo {
        &self.regs[reg.index()]
    }

    /// Returns the contents of a register as a value; a tensor in the arena is copied.
    pub(super) fn read(&self, frame: &Frame, reg: Reg) -> Result<Value, Diagnostic> {
        let info = self.reg(reg);
        match info.slot {
            Slot::Value(i) => match &frame.values[i as usize] {
                Value::Empty => Err(bad_program("a register is read before it is written")),
                value => Ok(value.clone()),
            },
            Slot::Constant(i) => Ok(Value::Tensor(self.constants[i as usize].clone())),
            Slot::Arena(_) | Slot::Device { .. } => {
                let (dtype, shape) = info.known_type().expect("a tensor in an arena has a known size");
                let mut copy = allocate(info.bytes)?;
                match info.slot {
                    Slot::Device { space, offset } => {
                        let (buffer, offset) = frame.device.slice(reg, space, offset)?;
                        buffer.copy_out(offset, copy.as_mut()).map_err(|error| fault(&error))?;
                    }
                    _ => self.copy_arena(frame, reg, copy.as_mut()),
                }
                Ok(Value::Tensor(
                    Tensor::from_storage(dtype, shape, Arc::new(copy)).expect("the buffer has the size of the shape"),
                ))
            }
        }
    }

    /// Tests whether a register is a value that has not been written.
    pub(super) fn is_empty(&self, frame: &Frame, reg: Reg) -> bool {
        matches!(self.reg(reg).slot, Slot::Value(i) if matches!(frame.values[i as usize], Value::Empty))
    }

    /// Same as [`Scope::read`], for a register that must hold a tensor.
    pub(super) fn read_tensor(&self, frame: &Frame, reg: Reg) -> Result<Tensor, Diagnostic> {
        match self.read(frame, reg)? {
            Value::Tensor(tensor) => Ok(tensor),
            value => Err(bad_program(&format!("expected a tensor in the register, found {}", value.kind()))),
        }
    }

    /// Copies the tensor in a register to caller-provided memory.
    pub(super) fn read_into(&self, frame: &Frame, reg: Reg, out: &mut TensorViewMut<'_>) -> Result<(), ReadError> {
        let info = self.reg(reg);
        let copy = |out: &mut TensorViewMut<'_>, tensor: &Tensor| {
            if (out.dtype, out.shape) != (tensor.dtype(), tensor.shape()) {
                return Err(ReadError::Type(tensor.dtype(), tensor.shape().into()));
            }
            out.data.copy_from_slice(tensor.bytes());
            Ok(())
        };
        match info.slot {
            Slot::Value(i) => match &frame.values[i as usize] {
                Value::Tensor(tensor) => copy(out, tensor),
                value => {
                    let message = format!("expected a tensor in the register, found {}", value.kind());
                    Err(ReadError::Failed(bad_program(&message)))
                }
            },
            Slot::Constant(i) => copy(out, &self.constants[i as usize]),
            Slot::Arena(_) | Slot::Device { .. } => {
                let (dtype, shape) = info.known_type().expect("a tensor in an arena has a known size");
                if (out.dtype, out.shape) != (dtype, &shape[..]) {
                    return Err(ReadError::Type(dtype, shape.clone()));
                }
                if let Slot::Device { space, offset } = info.slot {
                    let (buffer, offset) = frame.device.slice(reg, space, offset).map_err(ReadError::Failed)?;
                    return buffer.copy_out(offset, out.data).map_err(|error| ReadError::Failed(fault(&error)));
                }
                self.copy_arena(frame, reg, out.data);
                Ok(())
            }
        }
    }

    /// Writes a value to a register; a tensor is copied into the arena.
    pub(super) fn write(&self, frame: &mut Frame, reg: Reg, value: Value) -> Result<(), Diagnostic> {
        let info = self.reg(reg);
        match info.slot {
            Slot::Value(i) => frame.values[i as usize] = value,
            Slot::Arena(offset) => match value {
                Value::Tensor(t) if Some((t.dtype(), t.shape())) == info.known_type().map(|(d, s)| (d, &s[..])) => {
                    frame.arena.as_mut()[offset..offset + info.bytes].copy_from_slice(t.bytes());
                }
                value => return Err(register_error(info, &value)),
            },
            Slot::Device { space, offset } => match value {
                Value::Tensor(t) if Some((t.dtype(), t.shape())) == info.known_type().map(|(d, s)| (d, &s[..])) => {
                    frame.device.remove_import(reg);
                    frame.device.arena(space)?.copy_in(offset, t.bytes()).map_err(|error| fault(&error))?;
                }
                value => return Err(register_error(info, &value)),
            },
            Slot::Constant(_) => return Err(bad_program("expected a writable register, found a constant")),
        }
        Ok(())
    }

    /// Reads a boolean scalar.
    pub(super) fn read_bool(&self, frame: &Frame, reg: Reg) -> Result<bool, Diagnostic> {
        let info = self.reg(reg);
        match info.slot {
            Slot::Arena(offset) if info.bytes == 1 => Ok(frame.arena.as_ref()[offset] != 0),
            _ => match self.read_tensor(frame, reg)? {
                t if t.dtype() == DType::Bool && t.len() == 1 => Ok(t.bytes()[0] != 0),
                t => Err(bad_program(&format!("branch condition: expected a boolean scalar, found {t:?}"))),
            },
        }
    }

    /// Copies a tensor of known size to a register of the same type.
    pub(super) fn copy(&self, frame: &mut Frame, source: Reg, target: Reg) -> Result<(), Diagnostic> {
        let bytes = self.reg(source).bytes;
        let Frame { arena, device, .. } = frame;
        match (self.reg(source).slot, self.reg(target).slot) {
            (Slot::Arena(source_offset), Slot::Device { space, offset }) => {
                let source_data = &arena.as_ref()[source_offset..source_offset + bytes];
                device.remove_import(target);
                device.arena(space)?.copy_in(offset, source_data).map_err(|error| fault(&error))
            }
            (Slot::Device { space, offset }, Slot::Arena(target_offset)) => {
                let target_data = &mut arena.as_mut()[target_offset..target_offset + bytes];
                let (buffer, offset) = device.slice(source, space, offset)?;
                buffer.copy_out(offset, target_data).map_err(|error| fault(&error))
            }
            _ => {
                let value = self.read(frame, source)?;
                self.write(frame, target, value)
            }
        }
    }

    /// Copies the bytes of an arena register to `target`.
    pub(super) fn copy_arena(&self, frame: &Frame, reg: Reg, target: &mut [u8]) {
        if let Slot::Arena(offset) = self.reg(reg).slot {
            target.copy_from_slice(&frame.arena.as_ref()[offset..offset + target.len()]);
        }
    }

    /// Returns a view of `data` with the type of a register whose dimensions are known.
    pub(super) fn view_of<'b>(&self, reg: Reg, data: &'b [u8]) -> TensorView<'b>
    where
        'a: 'b,
    {
        let (dtype, shape) = self.reg(reg).known_type().expect("an operand computed in place has a known size");
        TensorView { dtype, shape, data }
    }

    /// Returns the dimensions of the tensor in a register; empty for a handle.
    pub(super) fn shape(&self, frame: &Frame, reg: Reg) -> Shape {
        let info = self.reg(reg);
        match (&info.shape, info.slot) {
            (Some(shape), _) => shape.clone(),
            (None, Slot::Value(i)) => match &frame.values[i as usize] {
                Value::Tensor(t) => t.shape().into(),
                _ => Shape::new(),
            },
            _ => Shape::new(),
        }
    }
}

/// Result of a program that a step can write to caller-provided memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DirectResult {
    /// Register of the result.
    pub reg: Reg,
    /// Index into the program's outputs.
    pub output: u32,
}

/// Operands of a step with known dimensions.
pub(super) struct Operands {
    pub inputs: Box<[Reg]>,
    pub outs: Box<[Reg]>,
    /// Non-empty operands in the arena, sorted by offset.
    arena_operands: Box<[ArenaOperand]>,
    /// Device memory that the step accesses, if all non-constant operands are in the memory of one device.
    pub footprint: Option<Footprint>,
    /// True if an operand is in device memory.
    pub is_on_device: bool,
    /// Results that reuse the memory of an input: pairs of indices into `outs` and `inputs`. Such an input has no view.
    pub in_place: Box<[[u32; 2]]>,
    /// Results that the step can write to caller-provided memory: pairs of an index into `outs` and an index into the
    /// program's outputs.
    direct: Box<[[u32; 2]]>,
}

struct ArenaOperand {
    offset: usize,
    bytes: usize,
    /// Index into `inputs` or `outs`.
    operand_index: u32,
    is_output: bool,
}

impl Operands {
    /// Sorts the operands; returns `None` if an output overlaps another operand, or an output is a constant.
    pub(super) fn new(regs: &[RegInfo], inputs: Vec<Reg>, outs: Vec<Reg>) -> Option<Operands> {
        Operands::with_in_place(regs, inputs, outs, &[])
    }

    /// Same as [`Operands::new`], with results that reuse the memory of an input.
    pub(super) fn with_in_place(
        regs: &[RegInfo],
        inputs: Vec<Reg>,
        outs: Vec<Reg>,
        in_place: &[[u32; 2]],
    ) -> Option<Operands> {
        let mut arena_operands = Vec::new();
        let mut footprints: BTreeMap<u32, Footprint> = BTreeMap::new();
        let mut has_other_operands = false;
        let reused_inputs: BTreeSet<usize> = in_place.iter().map(|[_, input]| *input as usize).collect();
        let operand_lists = [(&inputs, false), (&outs, true)];
        for (list, is_output) in operand_lists {
            for (index, reg) in list.iter().enumerate() {
                let info = &regs[reg.index()];
                if !is_output && reused_inputs.contains(&index) {
                    // The access to the result covers the access to the input.
                    continue;
                }
                match info.slot {
                    Slot::Arena(offset) if info.bytes > 0 => {
                        arena_operands.push(ArenaOperand {
                            offset,
                            bytes: info.bytes,
                            operand_index: index as u32,
                            is_output,
                        });
                    }
                    Slot::Constant(_) if is_output => return None,
                    Slot::Device { space, offset } => {
                        let footprint = footprints.entry(space).or_insert_with(|| Footprint::of(space));
                        footprint.add(offset..offset + info.bytes, is_output)?;
                    }
                    // Constants live as long as the program.
                    Slot::Constant(_) => {}
                    Slot::Arena(_) | Slot::Value(_) => has_other_operands = true,
                }
            }
        }
        arena_operands.sort_by_key(|operand| operand.offset);
        let (mut read_to, mut written_to) = (0, 0);
        for operand in &arena_operands {
            if operand.offset < written_to || (operand.is_output && operand.offset < read_to) {
                return None;
            }
            let end = operand.offset + operand.bytes;
            if operand.is_output {
                written_to = end;
            } else {
                read_to = read_to.max(end);
            }
        }
        let is_on_device = !footprints.is_empty();
        let single_footprint =
            (footprints.len() == 1 && !has_other_operands && arena_operands.is_empty()).then_some(footprints);
        Some(Operands {
            inputs: inputs.into(),
            outs: outs.into(),
            arena_operands: arena_operands.into(),
            footprint: single_footprint.and_then(|footprints| footprints.into_values().next()),
            is_on_device,
            in_place: in_place.into(),
            direct: [].into(),
        })
    }

    /// Sets the results that the step can write to caller-provided memory; `outputs` has their indices among the
    /// program's outputs.
    pub(super) fn set_direct(&mut self, outputs: &BTreeMap<Reg, u32>) {
        let results = (0..).zip(&self.outs);
        self.direct = results.filter_map(|(index, out)| Some([index, *outputs.get(out)?])).collect();
    }
}

/// Memory reused between steps, so that a run allocates nothing per step.
#[derive(Default)]
pub(super) struct Scratch {
    inputs: Vec<TensorView<'static>>,
    outputs: Vec<TensorViewMut<'static>>,
    allocations: Vec<Arc<AlignedBytes>>,
    /// True if value buffers are retained for later steps and runs, because the results of the run are copied
    /// elsewhere.
    pub keeps_buffers: bool,
    /// Retained value buffers; a buffer without another reference is free.
    kept: Vec<Arc<AlignedBytes>>,
}

/// Maximum number of retained value buffers.
const MAX_KEPT: usize = 16;

/// Views of a step's operands.
pub(super) struct Views<'a> {
    pub inputs: Vec<TensorView<'a>>,
    pub outputs: Vec<TensorViewMut<'a>>,
}

impl Scratch {
    /// Returns a buffer for a value.
    fn memory(&mut self, bytes: usize) -> Result<Arc<AlignedBytes>, Diagnostic> {
        let is_free = |memory: &mut Arc<AlignedBytes>| {
            Arc::get_mut(memory).is_some_and(|memory| AsRef::<[u8]>::as_ref(memory).len() == bytes)
        };
        match self.kept.iter_mut().position(is_free) {
            Some(index) => Ok(self.kept.swap_remove(index)),
            None => Ok(Arc::new(allocate(bytes)?)),
        }
    }

    /// Calls `body` with views of the operands. Outputs that are reference-counted values are allocated first, and
    /// written to their registers if `body` succeeds. `caller` is the caller-provided memory for the outputs of the
    /// program; it is empty unless the direct results are written to it.
    pub(super) fn with_views(
        &mut self,
        scope: Scope<'_>,
        frame: &mut Frame,
        operands: &Operands,
        caller: &mut [TensorViewMut<'_>],
        body: impl FnOnce(&mut Views<'_>) -> Result<(), Diagnostic>,
    ) -> Result<(), Diagnostic> {
        let mut allocations = std::mem::take(&mut self.allocations);
        allocations.clear();
        let direct: &[[u32; 2]] = if caller.is_empty() { &[] } else { &operands.direct };
        let is_direct = |index: usize| direct.iter().any(|[out, _]| *out as usize == index);
        for (index, &reg) in operands.outs.iter().enumerate() {
            let info = scope.reg(reg);
            if matches!(info.slot, Slot::Value(_)) && !is_direct(index) {
                allocations.push(self.memory(info.bytes)?);
            }
        }
        let mut views = Views {
            inputs: recycle_views(std::mem::take(&mut self.inputs)),
            outputs: recycle_outputs(std::mem::take(&mut self.outputs)),
        };
        for &reg in &operands.inputs {
            views.inputs.push(input_view(scope, &frame.values, reg)?);
        }
        let mut unused_allocations = allocations.iter_mut();
        for (index, &reg) in operands.outs.iter().enumerate() {
            let info = scope.reg(reg);
            let (dtype, shape) = info
                .known_type()
                .ok_or_else(|| bad_program("expected an operand of known size, found unknown dimensions"))?;
            let data = match info.slot {
                Slot::Value(_) if !is_direct(index) => {
                    let memory = unused_allocations.next().expect("each value output has a buffer");
                    Arc::get_mut(memory).expect("nothing else refers to the buffer").as_mut()
                }
                _ => bytemuck::cast_slice_mut::<u64, u8>(&mut []),
            };
            views.outputs.push(TensorViewMut { dtype, shape, data });
        }
        split_arena(frame.arena.as_mut(), &operands.arena_operands, &mut views);
        for (output, memory) in caller.iter_mut().enumerate() {
            if let Some([index, _]) = direct.iter().find(|[_, operand_output]| *operand_output as usize == output) {
                views.outputs[*index as usize].data = &mut *memory.data;
            }
        }
        let result = body(&mut views);
        let Views { inputs, outputs } = views;
        self.inputs = recycle_views(inputs);
        self.outputs = recycle_outputs(outputs);
        result?;
        let mut allocated_buffers = allocations.drain(..);
        for (index, &reg) in operands.outs.iter().enumerate() {
            let info = scope.reg(reg);
            if let (Slot::Value(i), Some((dtype, shape)), false) = (info.slot, info.known_type(), is_direct(index)) {
                let bytes = allocated_buffers.next().expect("each value output has a buffer");
                if self.keeps_buffers && self.kept.len() < MAX_KEPT {
                    self.kept.push(bytes.clone());
                }
                let tensor = Tensor::from_storage(dtype, shape, bytes).expect("the buffer has the size of the shape");
                frame.values[i as usize] = Value::Tensor(tensor);
            }
        }
        drop(allocated_buffers);
        self.allocations = allocations;
        Ok(())
    }
}

fn register_error(info: &RegInfo, value: &Value) -> Diagnostic {
    let expected = info.ty.as_ref().map_or_else(|| "a handle".to_owned(), TensorType::to_string);
    let found = match value {
        Value::Tensor(tensor) => format!("{tensor:?}"),
        value => value.kind().to_owned(),
    };
    bad_program(&format!("register: expected {expected}, found {found}"))
}

/// Returns the view of an input. The data of an input in the arena is set later, by `split_arena`.
fn input_view<'a>(scope: Scope<'a>, values: &'a [Value], reg: Reg) -> Result<TensorView<'a>, Diagnostic> {
    let info = scope.reg(reg);
    let (dtype, shape) =
        info.known_type().ok_or_else(|| bad_program("expected an operand of known size, found unknown dimensions"))?;
    let tensor = match info.slot {
        // Even an empty slice must be aligned for the elements.
        Slot::Arena(_) | Slot::Device { .. } => {
            return Ok(TensorView { dtype, shape, data: bytemuck::cast_slice::<u64, u8>(&[]) });
        }
        Slot::Constant(i) => &scope.constants[i as usize],
        Slot::Value(i) => match &values[i as usize] {
            Value::Tensor(tensor) => tensor,
            Value::Empty => return Err(bad_program("a register is read before it is written")),
            value => return Err(bad_program(&format!("expected a tensor in the register, found {}", value.kind()))),
        },
    };
    if tensor.dtype() != dtype || tensor.shape() != &shape[..] {
        return Err(bad_program(&format!("register: expected {dtype} of shape {shape:?}, found {tensor:?}")));
    }
    Ok(tensor.view())
}

/// Splits the arena at the outputs, and sets the data of the arena operands' views to the slices.
fn split_arena<'a>(arena: &'a mut [u8], arena_operands: &[ArenaOperand], views: &mut Views<'a>) {
    let (mut remaining, mut base) = (arena, 0);
    let mut next = 0;
    while next < arena_operands.len() {
        let out = arena_operands[next..]
            .iter()
            .position(|operand| operand.is_output)
            .map_or(arena_operands.len(), |index| next + index);
        let end = arena_operands.get(out).map_or(base + remaining.len(), |operand| operand.offset);
        let (shared_part, tail) = std::mem::take(&mut remaining).split_at_mut(end - base);
        let shared_part: &'a [u8] = shared_part;
        for input in &arena_operands[next..out] {
            views.inputs[input.operand_index as usize].data = &shared_part[input.offset - base..][..input.bytes];
        }
        (remaining, base) = (tail, end);
        if let Some(operand) = arena_operands.get(out) {
            let (output_data, tail) = std::mem::take(&mut remaining).split_at_mut(operand.bytes);
            views.outputs[operand.operand_index as usize].data = output_data;
            (remaining, base) = (tail, operand.offset + operand.bytes);
        }
        next = out + 1;
    }
}

/// Reuses the allocation for views with a different lifetime.
fn recycle_views<'b>(mut views: Vec<TensorView<'_>>) -> Vec<TensorView<'b>> {
    views.clear();
    views.into_iter().map(|_| unreachable!("the vector is empty")).collect()
}

/// Reuses the allocation for views with a different lifetime.
fn recycle_outputs<'b>(mut views: Vec<TensorViewMut<'_>>) -> Vec<TensorViewMut<'b>> {
    views.clear();
    views.into_iter().map(|_| unreachable!("the vector is empty")).collect()
}

/// Allocates zeroed bytes, within the memory limit of the process.
pub(super) fn allocate(bytes: usize) -> Result<AlignedBytes, Diagnostic> {
    Ok(AlignedBytes::zeroed(bytes)?)
}

//! Assignment of storage locations to registers, and selection of operators that compute in place.
//!
//! A tensor of known size that never leaves its function is stored in the function's arena, from the instruction that
//! writes it to the last instruction that reads it or one of its views. All jumps are forward, so a live range is an
//! interval of instructions; a branch inside the interval that does not use the tensor only wastes memory. Every
//! remaining tensor is a reference-counted value, dropped after its last use if that may free memory.

use super::arena::Arena;
use byoc_ir::ir::TensorType;
use byoc_ir::op;
use byoc_kernels::{self, Spec};
use byoc_runtime::exec::device::ALIGNMENT;
use byoc_runtime::exec::program::{Function, Instr, OpCall, Place, Reg};

/// Classes of registers that share their bytes: a register and its views. The index of the first register identifies
/// the class.
struct Classes {
    class_of: Vec<u32>,
    /// True if a class has to be a reference-counted value.
    value: Vec<bool>,
    /// Last instruction that reads each class.
    last_use: Vec<usize>,
}

impl Classes {
    fn of(&self, reg: Reg) -> usize {
        self.class_of[reg.index()] as usize
    }
}

/// Function that maps a region to the (result, argument) index pairs for which the result may be written to the memory
/// of the argument.
type InPlaceOf<'a> = dyn Fn(u32) -> &'a [[u32; 2]] + 'a;

/// Assigns a storage location to every register of a function.
pub(super) fn assign(mut function: Function, in_place: &InPlaceOf<'_>) -> Function {
    let classes = classify(&function);
    place_registers(&mut function, &classes, in_place);
    insert_frees(&mut function);
    function
}

/// Returns the size in bytes of a register's tensor, if its shape is known.
fn bytes(function: &Function, reg: Reg) -> Option<usize> {
    let ty = function.registers[reg.index()].ty.as_ref()?;
    ty.len()?.checked_mul(ty.dtype.size())
}

/// Returns true if all operands are tensors of known size.
fn is_sized(function: &Function, mut operands: impl Iterator<Item = Reg>) -> bool {
    operands.all(|reg| bytes(function, reg).is_some())
}

fn classify(function: &Function) -> Classes {
    let count = function.registers.len();
    let mut class_of: Vec<u32> = (0..count as u32).collect();
    // A class is a value unless it is written by a step that computes into caller-provided memory.
    let mut value = vec![true; count];
    let mut last_use = vec![0; count];
    for instr in &function.code {
        match instr {
            Instr::Kernel(call) if is_sized(function, call.inputs().chain(call.outs.iter().copied())) => {
                call.outs.iter().for_each(|out| value[out.index()] = false);
            }
            Instr::Region { inputs, outs, .. } if is_sized(function, inputs.iter().chain(outs).copied()) => {
                outs.iter().for_each(|out| value[out.index()] = false);
            }
            Instr::Copy { to: target, .. } => value[target.index()] = false,
            Instr::Alias(call) => {
                if let (Some(source), Some(out)) = (call.inputs().next(), call.outs.first()) {
                    let is_same_size =
                        bytes(function, source).is_some() && bytes(function, source) == bytes(function, *out);
                    if is_same_size {
                        class_of[out.index()] = class_of[source.index()];
                    } else {
                        value[class_of[source.index()] as usize] = true;
                    }
                }
            }
            _ => {}
        }
    }
    for (i, register) in function.registers.iter().enumerate() {
        let is_fixed = matches!(register.place, Place::Arena(_) | Place::Constant(_));
        if is_fixed || i < function.params as usize {
            value[class_of[i] as usize] = true;
        }
    }
    for (position, instr) in function.code.iter().enumerate() {
        let (read, written) = instr.operands();
        // A step with unknown dimensions, or a step that retains the tensor, needs its operand as a value.
        let is_kept_alive = match instr {
            Instr::Kernel(call) => !is_sized(function, call.inputs().chain(call.outs.iter().copied())),
            Instr::Region { .. } => !is_sized(function, read.iter().chain(&written).copied()),
            Instr::Alias(_) | Instr::Branch { .. } | Instr::Copy { .. } => false,
            _ => true,
        };
        for reg in read {
            let class = class_of[reg.index()] as usize;
            value[class] |= is_kept_alive;
            last_use[class] = position;
        }
        for reg in written {
            let class = class_of[reg.index()] as usize;
            last_use[class] = last_use[class].max(position);
        }
    }
    Classes { class_of, value, last_use }
}

/// Arena block that a class occupies during its live range.
#[derive(Clone, Copy)]
struct Block {
    offset: usize,
    bytes: usize,
    /// Device whose arena holds the block; `None` for the host.
    space: Option<u32>,
}

fn place_registers(function: &mut Function, classes: &Classes, in_place_of: &InPlaceOf<'_>) {
    let count = function.registers.len();
    let mut blocks: Vec<Option<Block>> = vec![None; count];
    let mut arena = Arena::default();
    let mut devices: Vec<Arena> = Vec::new();
    let mut code = std::mem::take(&mut function.code);
    for (position, instr) in code.iter_mut().enumerate() {
        let (read, written) = instr.operands();
        // Classes whose blocks are reused by outputs of this instruction.
        let mut reused_classes: Vec<usize> = Vec::new();
        if let Instr::Kernel(call) = instr
            && let Some(input) = in_place(function, classes, &blocks, call, position)
        {
            let source = classes.of(call.inputs().nth(input).expect("the index of an input of the kernel"));
            call.in_place = Some(input as u32);
            blocks[classes.of(call.outs[0])] = blocks[source];
            reused_classes.push(source);
        }
        if let Instr::Region { region, inputs, outs, in_place } = instr {
            for &[out, input] in in_place_of(*region) {
                let pair = outs.get(out as usize).copied().zip(inputs.get(input as usize).copied());
                let Some((target, source)) = pair else { continue };
                if ends_in(function, classes, &blocks, (source, target), inputs, position) {
                    blocks[classes.of(target)] = blocks[classes.of(source)];
                    in_place.push([out, input]);
                    reused_classes.push(classes.of(source));
                }
            }
        }
        let mut dying_classes: Vec<usize> = Vec::new();
        for &reg in &written {
            let class = classes.of(reg);
            let location = function.registers[reg.index()].place;
            if classes.value[class] || matches!(location, Place::Constant(_)) {
                continue;
            }
            let space = device_of(location);
            if blocks[class].is_none() {
                let bytes = bytes(function, reg).unwrap_or(0);
                let arena = arena_of(space, &mut arena, &mut devices);
                // An empty tensor needs no block. A tensor too large for the arena remains a value, whose allocation
                // fails at run time.
                let offset = if bytes == 0 { Some(0) } else { arena.allocate(bytes) };
                blocks[class] = offset.map(|offset| Block { offset, bytes, space });
            }
            if let Some(Block { offset, .. }) = blocks[class] {
                function.registers[reg.index()].place = match space {
                    Some(space) => Place::Device { space, offset },
                    None => Place::Arena(offset),
                };
            }
            dying_classes.push(class);
        }
        dying_classes.extend(read.iter().map(|&reg| classes.of(reg)));
        dying_classes.retain(|&class| {
            classes.last_use[class] == position && !reused_classes.contains(&class) && !classes.value[class]
        });
        dying_classes.sort_unstable();
        dying_classes.dedup();
        for class in dying_classes {
            if let Some(block) = blocks[class]
                && block.bytes > 0
            {
                arena_of(block.space, &mut arena, &mut devices).free(block.offset, block.bytes);
            }
        }
    }
    function.code = code;
    function.arena = arena.size();
    function.device_arenas = devices.iter().map(Arena::size).collect();
}

/// Returns the device of a storage location; `None` for the host.
fn device_of(location: Place) -> Option<u32> {
    match location {
        Place::Device { space, .. } => Some(space),
        _ => None,
    }
}

fn arena_of<'a>(space: Option<u32>, host: &'a mut Arena, devices: &'a mut Vec<Arena>) -> &'a mut Arena {
    let Some(space) = space else { return host };
    while devices.len() <= space as usize {
        devices.push(Arena::aligned(ALIGNMENT));
    }
    &mut devices[space as usize]
}

/// Returns the input whose block the first output of a kernel reuses, if any.
fn in_place(
    function: &Function,
    classes: &Classes,
    blocks: &[Option<Block>],
    call: &OpCall,
    position: usize,
) -> Option<usize> {
    let out = *call.outs.first()?;
    let size = bytes(function, out).filter(|&bytes| bytes > 0)?;
    if classes.value[classes.of(out)] || blocks[classes.of(out)].is_some() {
        return None;
    }
    let inputs: Vec<Reg> = call.inputs().collect();
    // In-place reuse requires that the input dies here, is in the arena, has the output's size, and is read only once.
    let is_reusable = |input: usize| {
        let class = classes.of(inputs[input]);
        classes.last_use[class] == position
            && !classes.value[class]
            && blocks[class].is_some_and(|block| block.bytes == size)
            && bytes(function, inputs[input]) == Some(size)
            && inputs.iter().filter(|&&other| classes.of(other) == class).count() == 1
    };
    if !(0..inputs.len()).any(is_reusable) {
        return None;
    }
    let op = op::lookup(&call.op)?;
    let types = |regs: &[Reg]| -> Option<Vec<TensorType>> {
        regs.iter().map(|reg| function.registers[reg.index()].ty.clone()).collect()
    };
    let (input_types, output_types) = (types(&inputs)?, types(&call.outs)?);
    let constants = vec![None; inputs.len()];
    let spec = Spec {
        def: op::get(op),
        attrs: &call.attrs,
        inputs: &input_types,
        outputs: &output_types,
        constants: &constants,
    };
    let input = byoc_kernels::make(op, &spec)?.in_place()?;
    (input < inputs.len() && is_reusable(input)).then_some(input)
}

/// Returns true if a region result can reuse the block of an argument: the argument dies here, is read once, and is in
/// the same arena with the same size, and the result has no block yet.
fn ends_in(
    function: &Function,
    classes: &Classes,
    blocks: &[Option<Block>],
    (from, to): (Reg, Reg),
    inputs: &[Reg],
    position: usize,
) -> bool {
    let (class, result) = (classes.of(from), classes.of(to));
    let location = |reg: Reg| function.registers[reg.index()].place;
    let size = bytes(function, to).filter(|&bytes| bytes > 0);
    size.is_some()
        && !classes.value[class]
        && !classes.value[result]
        && blocks[result].is_none()
        && classes.last_use[class] == position
        && class != result
        && blocks[class].is_some_and(|block| Some(block.bytes) == size && block.space == device_of(location(to)))
        && bytes(function, from) == size
        && inputs.iter().filter(|&&other| classes.of(other) == class).count() == 1
}

/// Frees values after their last use, unless the function ends there.
fn insert_frees(function: &mut Function) {
    let mut last_use = vec![None; function.registers.len()];
    let mut is_defined = vec![false; function.registers.len()];
    for (position, instr) in function.code.iter().enumerate() {
        let (read, written) = instr.operands();
        for reg in read.iter().chain(&written) {
            last_use[reg.index()] = Some(position);
        }
        for reg in written {
            is_defined[reg.index()] = true;
        }
    }
    let mut freed_registers: Vec<Vec<Reg>> = vec![Vec::new(); function.code.len()];
    let mut is_inserted = false;
    for (i, register) in function.registers.iter().enumerate() {
        let Some(position) = last_use[i] else { continue };
        let ends_function = |position: usize| {
            matches!(
                function.code.get(position),
                None | Some(
                    Instr::Return { .. }
                        | Instr::TailCall { .. }
                        | Instr::TailCallClosure { .. }
                        | Instr::Unmatched { .. }
                )
            )
        };
        if is_defined[i]
            && register.place == Place::Value
            && register.ty.is_some()
            && !ends_function(position)
            && !ends_function(position + 1)
        {
            freed_registers[position].push(Reg(i as u32));
            is_inserted = true;
        }
    }
    if !is_inserted {
        return;
    }
    let mut new_positions = Vec::with_capacity(function.code.len());
    let mut code = Vec::with_capacity(function.code.len() + freed_registers.len());
    for (instr, regs) in std::mem::take(&mut function.code).into_iter().zip(freed_registers) {
        new_positions.push(code.len() as u32);
        code.push(instr);
        if !regs.is_empty() {
            code.push(Instr::Free { regs });
        }
    }
    for instr in &mut code {
        if let Instr::Jump { to: target }
        | Instr::Branch { otherwise: target, .. }
        | Instr::Test { otherwise: target, .. } = instr
        {
            *target = new_positions[*target as usize];
        }
    }
    function.code = code;
}

//! Placement of tensors in device memories. Tensors that regions of one backend pass to each other, directly or through
//! views, stay on the backend's device; tensors that the host computes or reads are copied.
//!
//! A copy in device memory is a separate register, the *twin* of the host register. All jumps are forward, so a twin
//! created before a jump exists at every later instruction, whereas a twin created between a jump and its target does
//! not exist after the target.

use byoc_runtime::exec::program::{Arg, Function, Instr, OpCall, Place, Reg, Region, Register};
use std::collections::BTreeMap;

/// Places the tensors of a function's regions in device memory. Offsets are assigned later.
pub(super) fn assign(mut function: Function, regions: &[Region]) -> Function {
    let space_of = |instr: &Instr| match instr {
        Instr::Region { region, .. } => regions[*region as usize].space,
        _ => None,
    };
    if function.code.iter().all(|instr| space_of(instr).is_none()) {
        return function;
    }
    let uses = Uses::of(&function, |instr| space_of(instr).filter(|_| is_placed(&function.registers, instr)));
    let registers = std::mem::take(&mut function.registers);
    let mut placement = Placement { registers, twins: BTreeMap::new(), copies: Vec::new() };
    let (old_code, mut code, mut new_positions) = (std::mem::take(&mut function.code), Vec::new(), Vec::new());
    let mut aliases: BTreeMap<Reg, OpCall> = BTreeMap::new();
    let mut jumps: Vec<(u32, usize)> = Vec::new();
    for (position, instr) in old_code.into_iter().enumerate() {
        let space = space_of(&instr).filter(|_| is_placed(&placement.registers, &instr));
        let read = uses.host_operands(&instr, space);
        let is_unmoved =
            matches!(instr, Instr::Kernel(_) | Instr::Alias(_) | Instr::Region { .. } | Instr::Free { .. });
        let is_target = jumps.iter().any(|(target, _)| *target as usize == position);
        // Copies are deferred until the host reads the tensor, but never past a jump, so that the device can continue
        // in the meantime.
        placement.flush(&mut code, |target| !is_unmoved || is_target || read.contains(&target));
        new_positions.push(code.len() as u32);
        // Twins created after a jump to this instruction do not exist here.
        if let Some(first_input) =
            jumps.iter().filter(|(target, _)| *target as usize == position).map(|(_, source)| *source).min()
        {
            placement.twins.retain(|_, (_, emission)| *emission < first_input);
            jumps.retain(|(target, _)| *target as usize != position);
        }
        match instr {
            Instr::Region { region, inputs, outs, .. } if space.is_some() => {
                let mut emission =
                    Emission { code: &mut code, at: position, space: space.expect("the guard tests `space`") };
                let inputs = inputs.iter().map(|reg| placement.input(*reg, &aliases, &mut emission)).collect();
                let twins: Vec<Reg> = outs.iter().map(|reg| placement.new_register(*reg, &emission)).collect();
                code.push(Instr::Region { region, inputs, outs: twins.clone(), in_place: Vec::new() });
                let copied_outputs = outs.iter().zip(twins).filter(|(out, _)| uses.read[out.index()]);
                placement.copies.extend(copied_outputs.map(|(&target, source)| [source, target]));
            }
            Instr::Alias(call) if is_view(&placement.registers, &call) => {
                let (source, out) = (call.inputs().next().expect("a view has an argument"), call.outs[0]);
                match uses.home[source.index()] {
                    // A view of a device tensor is on the same device.
                    Some(space) => {
                        let mut emission = Emission { code: &mut code, at: position, space };
                        aliases.insert(out, call);
                        let copy_reg = placement.input(out, &aliases, &mut emission);
                        if uses.read[out.index()] {
                            placement.copies.push([copy_reg, out]);
                        }
                    }
                    None => {
                        aliases.insert(out, call.clone());
                        code.push(Instr::Alias(call));
                    }
                }
            }
            Instr::Jump { to: target }
            | Instr::Branch { otherwise: target, .. }
            | Instr::Test { otherwise: target, .. } => {
                jumps.push((target, position));
                code.push(instr);
            }
            instr => code.push(instr),
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
    (function.registers, function.code) = (placement.registers, code);
    function
}

/// Returns true if all operands of an instruction are tensors of known size.
fn is_placed(registers: &[Register], instr: &Instr) -> bool {
    let (read, written) = instr.operands();
    read.iter().chain(&written).all(|reg| is_sized(&registers[reg.index()]))
}

fn is_sized(register: &Register) -> bool {
    register.ty.as_ref().is_some_and(|ty| ty.len().and_then(|len| len.checked_mul(ty.dtype.size())).is_some())
}

/// Producers and readers of a function's tensors.
struct Uses {
    /// Device of each register that holds the result of a region or a view of such a result; `None` for other
    /// registers.
    home: Vec<Option<u32>>,
    /// True if the host, or a region on a different device, reads the register.
    read: Vec<bool>,
}

impl Uses {
    fn of(function: &Function, space_of: impl Fn(&Instr) -> Option<u32>) -> Uses {
        let mut home: Vec<Option<u32>> = vec![None; function.registers.len()];
        let mut read = vec![false; function.registers.len()];
        for instr in &function.code {
            let (inputs, outs) = instr.operands();
            let (space, host_inputs) = match instr {
                Instr::Alias(call) if is_view(&function.registers, call) => (home[inputs[0].index()], &inputs[1..]),
                _ => (space_of(instr), &inputs[..]),
            };
            outs.iter().for_each(|reg| home[reg.index()] = space);
            let is_view = matches!(instr, Instr::Alias(_));
            for reg in host_inputs {
                read[reg.index()] |= is_view || space.is_none() || home[reg.index()] != space;
            }
        }
        Uses { home, read }
    }
}

impl Uses {
    /// Returns the registers that an instruction reads from host memory.
    fn host_operands(&self, instr: &Instr, space: Option<u32>) -> Vec<Reg> {
        let (mut read, _) = instr.operands();
        let first_input = read.first().copied();
        read.retain(|reg| match instr {
            Instr::Alias(_) => Some(*reg) != first_input || self.home[reg.index()].is_none(),
            _ => space.is_none() || self.home[reg.index()] != space,
        });
        read
    }
}

/// Returns true if the result of an `Alias` instruction has as many bytes as its first argument, and both sizes are
/// known.
fn is_view(registers: &[Register], call: &OpCall) -> bool {
    let bytes = |reg: Reg| {
        let ty = registers[reg.index()].ty.as_ref()?;
        ty.len()?.checked_mul(ty.dtype.size())
    };
    let (Some(source), [out]) = (call.inputs().next(), &call.outs[..]) else { return false };
    bytes(source).is_some() && bytes(source) == bytes(*out)
}

/// Code to which instructions are appended, with the current position and device.
struct Emission<'a> {
    code: &'a mut Vec<Instr>,
    /// Index of the current instruction in the original code.
    at: usize,
    space: u32,
}

/// Registers of a function, with the twins that exist at the current instruction.
struct Placement {
    registers: Vec<Register>,
    /// Twin of a register in a device memory, and the index of the original instruction at which it was created.
    twins: BTreeMap<(Reg, u32), (Reg, usize)>,
    /// Deferred copies to the host, each from a twin to its host register.
    copies: Vec<[Reg; 2]>,
}

impl Placement {
    /// Emits the deferred copies whose host register satisfies `is_due`.
    fn flush(&mut self, code: &mut Vec<Instr>, is_due: impl Fn(Reg) -> bool) {
        self.copies.retain(|&[source, target]| {
            let emission = is_due(target);
            if emission {
                code.push(Instr::Copy { from: source, to: target });
            }
            !emission
        });
    }

    fn new_register(&mut self, reg: Reg, emission: &Emission<'_>) -> Reg {
        let copy_reg = Reg(self.registers.len() as u32);
        let ty = self.registers[reg.index()].ty.clone();
        self.registers.push(Register { ty, place: Place::Device { space: emission.space, offset: 0 } });
        self.twins.insert((reg, emission.space), (copy_reg, emission.at));
        copy_reg
    }

    /// Returns the register from which a region reads an input. If the input has no twin, creates one: as a view if the
    /// viewed tensor has a twin, otherwise by a copy. A constant stays in its host register.
    fn input(&mut self, reg: Reg, aliases: &BTreeMap<Reg, OpCall>, emission: &mut Emission<'_>) -> Reg {
        if matches!(self.registers[reg.index()].place, Place::Constant(_)) {
            return reg;
        }
        // Chain of views from the input to a register that has a twin, or to the host tensor.
        let (mut chain, mut source) = (Vec::new(), reg);
        while !self.twins.contains_key(&(source, emission.space)) {
            let Some(call) = aliases.get(&source) else { break };
            chain.push(call);
            source = call.inputs().next().expect("a view has an argument");
        }
        let Some(&(mut copy_reg, _)) = self.twins.get(&(source, emission.space)) else {
            // No register of the chain is on the device, so the host view is copied.
            let copy_reg = self.new_register(reg, emission);
            emission.code.push(Instr::Copy { from: reg, to: copy_reg });
            return copy_reg;
        };
        for call in chain.into_iter().rev() {
            let out = self.new_register(call.outs[0], emission);
            let mut call = OpCall { outs: vec![out], in_place: None, ..call.clone() };
            call.args[0] = Arg::One(copy_reg);
            emission.code.push(Instr::Alias(call));
            copy_reg = out;
        }
        copy_reg
    }
}

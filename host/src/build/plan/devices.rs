//! Placement of tensors in device memories. Tensors that regions of one backend pass to each other, directly or through
//! views, stay on the backend's device; tensors that the host computes or reads are copied.
//!
//! A copy in device memory is a separate register, the *twin* of the host register. All jumps are forward, so a twin
//! created before a jump exists at every later instruction, whereas a twin created between a jump and its target does
//! not exist after the target.

use byoc_runtime::exec::program::{Arg, Function, Instr, OpCall, Place, Reg, Region, Register};
use std::collections::BTreeMap;

/// Moves the tensors of a function's regions to their devices. Offsets are assigned later.
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
    let (old, mut code, mut moved) = (std::mem::take(&mut function.code), Vec::new(), Vec::new());
    let mut aliases: BTreeMap<Reg, OpCall> = BTreeMap::new();
    let mut jumps: Vec<(u32, usize)> = Vec::new();
    for (at, instr) in old.into_iter().enumerate() {
        let space = space_of(&instr).filter(|_| is_placed(&placement.registers, &instr));
        let read = uses.host_operands(&instr, space);
        let stays = matches!(instr, Instr::Kernel(_) | Instr::Alias(_) | Instr::Region { .. } | Instr::Free { .. });
        let is_target = jumps.iter().any(|(to, _)| *to as usize == at);
        // Copies are deferred until the host reads the tensor, so the device can continue in the meantime, but never
        // past a jump.
        placement.flush(&mut code, |to| !stays || is_target || read.contains(&to));
        moved.push(code.len() as u32);
        // Twins created after a jump to this instruction do not exist here.
        if let Some(first) = jumps.iter().filter(|(to, _)| *to as usize == at).map(|(_, from)| *from).min() {
            placement.twins.retain(|_, (_, made)| *made < first);
            jumps.retain(|(to, _)| *to as usize != at);
        }
        match instr {
            Instr::Region { region, inputs, outs, .. } if space.is_some() => {
                let mut made = Made { code: &mut code, at, space: space.expect("the guard tests `space`") };
                let inputs = inputs.iter().map(|reg| placement.input(*reg, &aliases, &mut made)).collect();
                let twins: Vec<Reg> = outs.iter().map(|reg| placement.twin(*reg, &made)).collect();
                code.push(Instr::Region { region, inputs, outs: twins.clone(), in_place: Vec::new() });
                let copied = outs.iter().zip(twins).filter(|(out, _)| uses.read[out.index()]);
                placement.copies.extend(copied.map(|(&to, from)| [from, to]));
            }
            Instr::Alias(call) if is_view(&placement.registers, &call) => {
                let (from, out) = (call.inputs().next().expect("a view has an argument"), call.outs[0]);
                match uses.home[from.index()] {
                    // A view of a device tensor is on the same device.
                    Some(space) => {
                        let mut made = Made { code: &mut code, at, space };
                        aliases.insert(out, call);
                        let twin = placement.input(out, &aliases, &mut made);
                        if uses.read[out.index()] {
                            placement.copies.push([twin, out]);
                        }
                    }
                    None => {
                        aliases.insert(out, call.clone());
                        code.push(Instr::Alias(call));
                    }
                }
            }
            Instr::Jump { to } | Instr::Branch { otherwise: to, .. } | Instr::Test { otherwise: to, .. } => {
                jumps.push((to, at));
                code.push(instr);
            }
            instr => code.push(instr),
        }
    }
    for instr in &mut code {
        if let Instr::Jump { to } | Instr::Branch { otherwise: to, .. } | Instr::Test { otherwise: to, .. } = instr {
            *to = moved[*to as usize];
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
    /// Device that holds each register, which is the result of a region, or a view of a tensor on that device.
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
            let (space, others) = match instr {
                Instr::Alias(call) if is_view(&function.registers, call) => (home[inputs[0].index()], &inputs[1..]),
                _ => (space_of(instr), &inputs[..]),
            };
            outs.iter().for_each(|reg| home[reg.index()] = space);
            let is_view = matches!(instr, Instr::Alias(_));
            for reg in others {
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
        let first = read.first().copied();
        read.retain(|reg| match instr {
            Instr::Alias(_) => Some(*reg) != first || self.home[reg.index()].is_none(),
            _ => space.is_none() || self.home[reg.index()] != space,
        });
        read
    }
}

/// Returns true if the result of an alias has as many bytes as its first argument, and both sizes are known.
fn is_view(registers: &[Register], call: &OpCall) -> bool {
    let bytes = |reg: Reg| {
        let ty = registers[reg.index()].ty.as_ref()?;
        ty.len()?.checked_mul(ty.dtype.size())
    };
    let (Some(from), [out]) = (call.inputs().next(), &call.outs[..]) else { return false };
    bytes(from).is_some() && bytes(from) == bytes(*out)
}

/// Position of new instructions, and the device that they serve.
struct Made<'a> {
    code: &'a mut Vec<Instr>,
    /// Index of the current instruction in the original code.
    at: usize,
    space: u32,
}

/// Registers of a function, with the twins that exist at the current instruction.
struct Placement {
    registers: Vec<Register>,
    /// Twin of a register in a space, and the index of the original instruction at which it was created.
    twins: BTreeMap<(Reg, u32), (Reg, usize)>,
    /// Deferred copies to the host, each from a twin to its host register.
    copies: Vec<[Reg; 2]>,
}

impl Placement {
    /// Emits the deferred copies whose host register satisfies `now`.
    fn flush(&mut self, code: &mut Vec<Instr>, now: impl Fn(Reg) -> bool) {
        self.copies.retain(|&[from, to]| {
            let made = now(to);
            if made {
                code.push(Instr::Copy { from, to });
            }
            !made
        });
    }

    fn twin(&mut self, reg: Reg, made: &Made<'_>) -> Reg {
        let twin = Reg(self.registers.len() as u32);
        let ty = self.registers[reg.index()].ty.clone();
        self.registers.push(Register { ty, place: Place::Device { space: made.space, offset: 0 } });
        self.twins.insert((reg, made.space), (twin, made.at));
        twin
    }

    /// Returns the register from which a region reads an input: a twin, created by a copy or as a view of the viewed
    /// tensor's twin. Constants stay on the host.
    fn input(&mut self, reg: Reg, aliases: &BTreeMap<Reg, OpCall>, made: &mut Made<'_>) -> Reg {
        if matches!(self.registers[reg.index()].place, Place::Constant(_)) {
            return reg;
        }
        // Chain of views from the input to a register that has a twin, or to the host tensor.
        let (mut chain, mut from) = (Vec::new(), reg);
        while !self.twins.contains_key(&(from, made.space)) {
            let Some(call) = aliases.get(&from) else { break };
            chain.push(call);
            from = call.inputs().next().expect("a view has an argument");
        }
        let Some(&(mut twin, _)) = self.twins.get(&(from, made.space)) else {
            // No register of the chain is on the device, so the host view is copied.
            let twin = self.twin(reg, made);
            made.code.push(Instr::Copy { from: reg, to: twin });
            return twin;
        };
        for call in chain.into_iter().rev() {
            let out = self.twin(call.outs[0], made);
            let mut call = OpCall { outs: vec![out], in_place: None, ..call.clone() };
            call.args[0] = Arg::One(twin);
            made.code.push(Instr::Alias(call));
            twin = out;
        }
        twin
    }
}

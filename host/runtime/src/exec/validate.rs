//! Checks a program before it runs, because its file may be hand-written.
//!
//! After the check, every index is in range, every jump goes forward and stays inside the function, every function
//! ends, the numbers of arguments and results agree, tensors in an arena are within its bounds, and no instruction reads
//! memory that is not written on every path to it ([`written`]). Properties that
//! depend on values or on kernels (types of operators, overlapping operands, arguments of closures) are checked later,
//! where they are known.

use super::device::{ALIGNMENT, MIN_ALIGNMENT};
use super::program::{Function, Instr, Place, Port, Program, Reg, VERSION, byte_size};
use super::value::bad_program;
use super::written;
use byoc_ir::diag::Diagnostic;
use byoc_ir::interface::PortKind;
use byoc_ir::ir::{TensorType, Type};
use std::collections::BTreeSet;

/// Checks the structure of a program.
///
/// # Errors
/// If the program is invalid; the message names the first violation and its function.
pub fn validate(program: &Program) -> Result<(), Diagnostic> {
    check_header(program).map_err(|reason| bad_program(&reason))?;
    for function in &program.functions {
        check_registers(program, function)
            .and_then(|()| check_code(program, function))
            .and_then(|()| written::check(function))
            .map_err(|reason| bad_program(&format!("in function {}: {reason}", function.name)))?;
    }
    Ok(())
}

fn check_header(program: &Program) -> Result<(), String> {
    if program.version != VERSION {
        return Err(format!("expected version {VERSION}, found {}", program.version));
    }
    let entry = program.functions.get(program.entry as usize).ok_or_else(|| {
        format!("entry: expected the index of one of {} functions, found {}", program.functions.len(), program.entry)
    })?;
    let inputs: Vec<TensorType> = program.inputs.iter().map(|port| port.ty.clone()).collect();
    check_arity(entry, program.inputs.len(), program.outputs.len())
        .and_then(|()| check_types("parameter", entry.registers.iter().map(|r| r.ty.as_ref()), &inputs))
        .map_err(|reason| format!("entry function: {reason}"))?;
    check_ports(&program.inputs)?;
    check_ports(&program.outputs)?;
    for region in &program.regions {
        let fallback = program.functions.get(region.fallback as usize);
        let fallback = fallback.ok_or_else(|| {
            let (symbol, count) = (&region.symbol, program.functions.len());
            format!("region {symbol}: expected the index of one of {count} functions, found {}", region.fallback)
        })?;
        check_arity(fallback, region.inputs.len(), region.outputs.len())
            .and_then(|()| check_types("parameter", fallback.registers.iter().map(|r| r.ty.as_ref()), &region.inputs))
            .map_err(|reason| format!("host program of region {}: {reason}", region.symbol))?;
        check_origins(program, &region.origins)?;
    }
    if let Some(region) = program.regions.iter().find(|r| r.space.is_some_and(|s| s as usize >= program.spaces.len())) {
        return Err(format!(
            "region {}: expected the index of one of {} device memories, found {}",
            region.symbol,
            program.spaces.len(),
            region.space.unwrap_or_default()
        ));
    }
    if let Some(port) = program.constants.iter().find(|port| byte_size(&port.ty).is_none()) {
        return Err(format!(
            "constant \"{}\": expected known dimensions, found {}",
            port.name,
            Type::Tensor(port.ty.clone().into())
        ));
    }
    Ok(())
}

/// Checks that each value has all of its ports, which follow each other.
fn check_ports(ports: &[Port]) -> Result<(), String> {
    for value in ports.chunk_by(|_, next| next.kind == PortKind::Part) {
        let (port, expected, found) = (&value[0], value[0].kind.parts().len() + 1, value.len());
        if port.kind == PortKind::Part || found != expected {
            let (name, kind) = (&port.name, port.kind.name());
            return Err(format!(
                "port \"{name}\" of kind {kind}: expected {expected} tensors of a value, found {found}"
            ));
        }
    }
    Ok(())
}

fn check_arity(function: &Function, inputs: usize, outputs: usize) -> Result<(), String> {
    if function.params as usize != inputs || function.results as usize != outputs {
        let (params, results) = (function.params, function.results);
        return Err(format!("expected {inputs} parameters and {outputs} results, found {params} and {results}"));
    }
    Ok(())
}

/// Checks that registers can hold the inputs or outputs of a region: element types, ranks and known dimensions must
/// agree.
fn check_types<'t>(
    role: &str,
    registers: impl Iterator<Item = Option<&'t TensorType>>,
    expected: &[TensorType],
) -> Result<(), String> {
    for (i, (register, expected)) in registers.zip(expected).enumerate() {
        let is_compatible = register.is_some_and(|ty| {
            let mut dims = ty.dims.iter().zip(&expected.dims);
            ty.dtype == expected.dtype
                && ty.dims.len() == expected.dims.len()
                && dims.all(|(a, b)| a.fixed().zip(b.fixed()).is_none_or(|(a, b)| a == b))
        });
        if !is_compatible {
            let type_text = |ty: &TensorType| Type::Tensor(ty.clone().into()).to_string();
            let found = register.map_or_else(|| "a handle".to_owned(), type_text);
            return Err(format!("{role} {i}: expected {}, found {found}", type_text(expected)));
        }
    }
    Ok(())
}

fn check_origins(program: &Program, origins: &[u32]) -> Result<(), String> {
    match origins.iter().find(|&&i| i as usize >= program.sources.len()) {
        Some(i) => Err(format!("expected the index of one of {} model operators, found {i}", program.sources.len())),
        None => Ok(()),
    }
}

fn check_registers(program: &Program, function: &Function) -> Result<(), String> {
    if function.params as usize > function.registers.len() {
        return Err(format!(
            "expected at least {} registers, one per parameter, found {}",
            function.params,
            function.registers.len()
        ));
    }
    if function.device_arenas.len() > program.spaces.len() {
        let (expected, found) = (program.spaces.len(), function.device_arenas.len());
        return Err(format!("expected arenas in at most {expected} device memories, found {found}"));
    }
    let mut end = 0;
    let mut device_ends = vec![0; function.device_arenas.len()];
    for (i, register) in function.registers.iter().enumerate() {
        match (register.place, &register.ty) {
            (Place::Value, _) => {}
            _ if i < function.params as usize => {
                return Err(format!("parameter {i}: expected a value, found {}", register.place));
            }
            (Place::Arena(offset), Some(ty)) if offset % 64 == 0 => {
                let bytes = byte_size(ty).ok_or_else(|| {
                    format!("register {i}: expected known dimensions, found {}", Type::Tensor(ty.clone().into()))
                })?;
                end = end.max(offset.checked_add(bytes).ok_or_else(|| {
                    format!("register {i}: expected an addressable arena, found {bytes} bytes at {offset}")
                })?);
            }
            (Place::Device { space, offset }, Some(ty)) if offset.is_multiple_of(MIN_ALIGNMENT) => {
                let bytes = byte_size(ty).ok_or_else(|| {
                    format!("register {i}: expected known dimensions, found {}", Type::Tensor(ty.clone().into()))
                })?;
                let offset_end = offset.checked_add(bytes).ok_or_else(|| {
                    format!("register {i}: expected an addressable arena, found {bytes} bytes at {offset}")
                })?;
                let end: &mut usize = device_ends
                    .get_mut(space as usize)
                    .ok_or_else(|| format!("register {i}: expected the index of a device arena, found {space}"))?;
                *end = offset_end.max(*end);
            }
            (Place::Arena(_) | Place::Device { .. }, _) => {
                return Err(format!("register {i}: expected a tensor at an aligned offset, found {}", register.place));
            }
            (Place::Constant(index), ty) => match program.constants.get(index as usize) {
                Some(constant) if Some(&constant.ty) == ty.as_ref() => {}
                Some(constant) => {
                    let expected = ty.as_ref().map_or_else(|| "a handle".to_owned(), TensorType::to_string);
                    return Err(format!(
                        "register {i}: expected {expected}, found constant {index} of type {}",
                        constant.ty
                    ));
                }
                None => {
                    let count = program.constants.len();
                    return Err(format!("register {i}: expected the index of one of {count} constants, found {index}"));
                }
            },
        }
    }
    // An arena larger than needed is invalid as well, because all of it is allocated.
    let device = device_ends.iter().zip(&function.device_arenas).map(|(end, arena)| (*end, *arena, ALIGNMENT));
    for (end, arena, alignment) in std::iter::once((end, function.arena, 64)).chain(device) {
        if end > arena || arena > end.next_multiple_of(alignment) {
            return Err(format!("expected an arena of {end} bytes, found {arena}"));
        }
    }
    Ok(())
}

fn check_code(program: &Program, function: &Function) -> Result<(), String> {
    for (i, instr) in function.code.iter().enumerate() {
        check_instr(program, function, i, instr).map_err(|reason| format!("instruction {i}: {reason}"))?;
    }
    match function.code.last() {
        Some(
            Instr::Return { .. } | Instr::TailCall { .. } | Instr::TailCallClosure { .. } | Instr::Unmatched { .. },
        ) => Ok(()),
        Some(_) => Err("expected a return or a tail call as the last instruction, found a different one".to_owned()),
        None => Err("expected at least one instruction, found none".to_owned()),
    }
}

/// Checks that the operands of an instruction are in memory that it can access: in host memory or, for a region or a
/// copy, in device memory.
fn check_spaces(
    program: &Program,
    function: &Function,
    instr: &Instr,
    read: &[Reg],
    outputs_written: &[Reg],
) -> Result<(), String> {
    let register = |reg: &Reg| &function.registers[reg.index()];
    let space = |reg: &Reg| match register(reg).place {
        Place::Device { space, .. } => Some(space),
        _ => None,
    };
    let mut spaces = read.iter().chain(outputs_written).filter_map(space);
    let is_compatible = match instr {
        Instr::Copy { from, to } => {
            let has_size = register(from).bytes().is_some();
            let is_same_type = register(from).ty == register(to).ty;
            has_size && is_same_type && space(from).is_some() != space(to).is_some()
        }
        Instr::Region { region, .. } => {
            let region_space = program.regions.get(*region as usize).and_then(|region| region.space);
            spaces.all(|space| Some(space) == region_space)
        }
        // The result of a view has the location of its argument.
        Instr::Alias(call) => match (call.inputs().next(), call.outs.first()) {
            (Some(from), Some(to)) => {
                let locations = (register(&from).place, register(to).place);
                let are_others_on_host = call.inputs().skip(1).all(|reg| space(&reg).is_none());
                are_others_on_host && (locations.0 == locations.1 || (space(&from).is_none() && space(to).is_none()))
            }
            _ => spaces.next().is_none(),
        },
        _ => spaces.next().is_none(),
    };
    match is_compatible {
        true => Ok(()),
        false => {
            let places = read.iter().chain(outputs_written).map(|reg| register(reg).place.to_string());
            let places: Vec<String> = places.collect();
            Err(format!("expected operands in memory that the instruction can access, found {}", places.join(", ")))
        }
    }
}

/// Returns true if the result and the argument of each pair have the same location and size, and no register is in two
/// pairs.
fn is_in_place(function: &Function, inputs: &[Reg], outs: &[Reg], pairs: &[[u32; 2]]) -> bool {
    let (mut paired_outs, mut paired_inputs) = (BTreeSet::new(), BTreeSet::new());
    pairs.iter().all(|&[out, input]| {
        let (Some(out_reg), Some(input_reg)) = (outs.get(out as usize), inputs.get(input as usize)) else {
            return false;
        };
        let [target_register, source_register] = [out_reg, input_reg].map(|reg| &function.registers[reg.index()]);
        paired_outs.insert(out)
            && paired_inputs.insert(input)
            && matches!(target_register.place, Place::Arena(_) | Place::Device { .. })
            && target_register.place == source_register.place
            && target_register.bytes().is_some_and(|bytes| bytes > 0)
            && target_register.bytes() == source_register.bytes()
    })
}

fn check_instr(program: &Program, function: &Function, instr_index: usize, instr: &Instr) -> Result<(), String> {
    let (read, outputs_written) = instr.operands();
    let is_register = |reg: &Reg| reg.index() < function.registers.len();
    let released_registers: &[Reg] = match instr {
        Instr::Free { regs } => regs,
        _ => &[],
    };
    if let Some(reg) = read.iter().chain(&outputs_written).chain(released_registers).find(|reg| !is_register(reg)) {
        return Err(format!("expected the index of one of {} registers, found {}", function.registers.len(), reg.0));
    }
    let location = |reg: &Reg| function.registers[reg.index()].place;
    if outputs_written.iter().chain(released_registers).any(|reg| matches!(location(reg), Place::Constant(_))) {
        return Err("expected a writable register, found a constant".to_owned());
    }
    check_spaces(program, function, instr, &read, &outputs_written)?;
    let check_jump = |jump_target: u32| match jump_target as usize > instr_index
        && (jump_target as usize) < function.code.len()
    {
        true => Ok(()),
        false => {
            Err(format!("expected a jump target in {}..{}, found {jump_target}", instr_index + 1, function.code.len()))
        }
    };
    let check_callee = |index: u32, args: usize, outs: Option<usize>| match program.functions.get(index as usize) {
        None => Err(format!("expected the index of one of {} functions, found {index}", program.functions.len())),
        Some(f) => check_arity(f, args, outs.unwrap_or(function.results as usize)),
    };
    match instr {
        Instr::Kernel(call) | Instr::Alias(call) => {
            check_origins(program, &call.origins)?;
            match call.in_place {
                Some(i) if i as usize >= read.len() || call.outs.is_empty() => {
                    let (inputs, results) = (read.len(), call.outs.len());
                    Err(format!(
                        "in-place input {i}: expected the index of one of {inputs} inputs and at least one result, \
                         found {results} results"
                    ))
                }
                Some(i) => {
                    let (input, out) = (read[i as usize].index(), call.outs[0].index());
                    let size = |reg: usize| function.registers[reg].bytes();
                    let is_same_location =
                        location(&read[i as usize]) == location(&call.outs[0]) && size(input) == size(out);
                    if is_same_location && matches!(location(&call.outs[0]), Place::Arena(_)) {
                        Ok(())
                    } else {
                        let memory_text = |reg: &Reg| {
                            let bytes = size(reg.index()).map_or_else(|| "?".to_owned(), |bytes| bytes.to_string());
                            format!("{bytes} bytes at {}", location(reg))
                        };
                        Err(format!(
                            "in-place input {i}: expected the arena memory of the result, {}, found {}",
                            memory_text(&call.outs[0]),
                            memory_text(&read[i as usize])
                        ))
                    }
                }
                None => Ok(()),
            }
        }
        Instr::Region { region, inputs, outs, in_place } => match program.regions.get(*region as usize) {
            Some(_) if !is_in_place(function, inputs, outs, in_place) => Err(format!(
                "expected an in-place input of the region at the location of its result, found pairs {in_place:?}"
            )),
            Some(region) if (region.inputs.len(), region.outputs.len()) == (inputs.len(), outs.len()) => {
                let types = |regs: &'_ [Reg]| {
                    regs.iter().map(|reg| function.registers[reg.index()].ty.as_ref()).collect::<Vec<_>>()
                };
                check_types("input", types(inputs).into_iter(), &region.inputs)
                    .and_then(|()| check_types("output", types(outs).into_iter(), &region.outputs))
                    .map_err(|reason| format!("region {}: {reason}", region.symbol))
            }
            Some(region) => Err(format!(
                "region {}: expected {} inputs and {} outputs, found {} and {}",
                region.symbol,
                region.inputs.len(),
                region.outputs.len(),
                inputs.len(),
                outs.len()
            )),
            None => Err(format!("expected the index of one of {} regions, found {region}", program.regions.len())),
        },
        Instr::Move { to, .. } if location(to) != Place::Value => {
            Err(format!("move: expected a value register as the destination, found {}", location(to)))
        }
        Instr::Jump { to } => check_jump(*to),
        Instr::Branch { otherwise, .. } | Instr::Test { otherwise, .. } => check_jump(*otherwise),
        Instr::Construct { out, .. } if location(out) != Place::Value => {
            Err(format!("constructor: expected a value register as the destination, found {}", location(out)))
        }
        Instr::Call { function, args, outs } => check_callee(*function, args.len(), Some(outs.len())),
        Instr::TailCall { function, args } => check_callee(*function, args.len(), None),
        Instr::Closure { function, captures, out } => match program.functions.get(*function as usize) {
            Some(f) if f.params as usize >= captures.len() && location(out) == Place::Value => Ok(()),
            _ => Err(format!(
                "closure: expected a function with at least {} parameters and a value register as the \
                 destination, found function {function} and {}",
                captures.len(),
                location(out)
            )),
        },
        Instr::RefNew { out, .. } if location(out) != Place::Value => {
            Err(format!("reference cell: expected a value register as the destination, found {}", location(out)))
        }
        Instr::Free { regs } => match regs.iter().map(location).find(|place| *place != Place::Value) {
            Some(place) => Err(format!("free: expected value registers, found {place}")),
            None => Ok(()),
        },
        Instr::Return { values } if values.len() != function.results as usize => {
            Err(format!("expected {} results, found {}", function.results, values.len()))
        }
        _ => Ok(()),
    }
}

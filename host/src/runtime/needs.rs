//! Which constants the host reads.
//!
//! A region carries the program by which the host computes it, for when its backend turns it down. A backend that runs the
//! region has packed what it needs of the constants, so that they need not stay in memory for a program that is never run. A
//! region with dimensions that the run tells may be turned down in any run; its constants stay.

use super::program::{Function, Instr, Place, Program};
use byoc_core::ir::TensorType;

/// For each constant, whether a function reads it that the host may have to run. `loaded` says of a region whether its
/// backend has taken it.
pub fn needed_constants(program: &Program, loaded: impl Fn(u32) -> bool) -> Vec<bool> {
    let mut needed = vec![false; program.constants.len()];
    let mut seen = vec![false; program.functions.len()];
    let mut todo = vec![program.entry];
    while let Some(index) = todo.pop() {
        if std::mem::replace(&mut seen[index as usize], true) {
            continue;
        }
        let function = &program.functions[index as usize];
        constants_of(function).for_each(|constant| needed[constant] = true);
        todo.extend(function.code.iter().filter_map(|instr| match instr {
            Instr::Region { region, .. } if loaded(*region) && is_sized(function, instr) => None,
            Instr::Region { region, .. } => Some(program.regions[*region as usize].fallback),
            Instr::Call { function, .. } | Instr::TailCall { function, .. } | Instr::Closure { function, .. } => {
                Some(*function)
            }
            _ => None,
        }));
    }
    needed
}

/// The constants that a function reads.
pub(super) fn constants_of(function: &Function) -> impl Iterator<Item = usize> + '_ {
    function.registers.iter().filter_map(|register| match register.place {
        Place::Constant(index) => Some(index as usize),
        _ => None,
    })
}

/// Returns true if the sizes of all that an instruction reads and writes are known before the run.
fn is_sized(function: &Function, instr: &Instr) -> bool {
    let (read, written) = instr.operands();
    read.iter().chain(&written).all(|reg| {
        let ty = function.registers[reg.index()].ty.as_ref();
        ty.and_then(TensorType::shape).is_some()
    })
}

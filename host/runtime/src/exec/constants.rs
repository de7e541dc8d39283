//! Constants that the host reads.
//!
//! Every region carries a host program as its fallback. A backend that runs the region has its own packed copies of the
//! constants, so constants that only an unused host program reads need not stay in memory. In any run, a backend may
//! refuse a region whose dimensions are known only at run time, and a region may lose its device; the constants of both
//! kinds of region are retained.

use super::program::{Function, Instr, Place, Program};
use byoc_ir::ir::TensorType;

/// Returns, for each constant, whether a function that the host may have to run reads the constant. `is_loaded` returns
/// true for the index of a region that a backend has loaded and whose device cannot be lost.
pub fn needed_constants(program: &Program, is_loaded: impl Fn(u32) -> bool) -> Vec<bool> {
    let mut is_needed = vec![false; program.constants.len()];
    let mut is_visited = vec![false; program.functions.len()];
    let mut worklist = vec![program.entry];
    while let Some(index) = worklist.pop() {
        if std::mem::replace(&mut is_visited[index as usize], true) {
            continue;
        }
        let function = &program.functions[index as usize];
        constants_of(function).for_each(|constant| is_needed[constant] = true);
        worklist.extend(function.code.iter().filter_map(|instr| match instr {
            Instr::Region { region, .. } if is_loaded(*region) && is_sized(function, instr) => None,
            Instr::Region { region, .. } => Some(program.regions[*region as usize].fallback),
            Instr::Call { function, .. } | Instr::TailCall { function, .. } | Instr::Closure { function, .. } => {
                Some(*function)
            }
            _ => None,
        }));
    }
    is_needed
}

/// Returns the indices of the constants that a function reads.
pub(super) fn constants_of(function: &Function) -> impl Iterator<Item = usize> + '_ {
    function.registers.iter().filter_map(|register| match register.place {
        Place::Constant(index) => Some(index as usize),
        _ => None,
    })
}

/// Returns true if all operands and results of an instruction are tensors of known dimensions.
fn is_sized(function: &Function, instr: &Instr) -> bool {
    let (read, outputs_written) = instr.operands();
    read.iter().chain(&outputs_written).all(|reg| {
        let ty = function.registers[reg.index()].ty.as_ref();
        ty.and_then(TensorType::shape).is_some()
    })
}

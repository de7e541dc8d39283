//! Results that a step writes to caller-provided memory. Other results are copied there at the end of the run.

use super::frame::{DirectResult, RegInfo, Slot};
use super::program::{Function, Instr, Reg};
use byoc_ir::tensor::{Tensor, TensorViewMut};
use std::ops::Range;

/// Alignment of the tensors of a step in bytes.
const ALIGNMENT: usize = 64;

/// Returns the results of a straight-line function that are values of known size, written once and neither read by a step
/// nor freed.
pub(super) fn direct_results(function: &Function, regs: &[RegInfo]) -> Vec<DirectResult> {
    let mut uses = vec![(0u32, 0u32); regs.len()];
    for instr in &function.code {
        match instr {
            Instr::Kernel(_)
            | Instr::Alias(_)
            | Instr::Region { .. }
            | Instr::Copy { .. }
            | Instr::Move { .. }
            | Instr::Free { .. }
            | Instr::Return { .. } => {}
            _ => return Vec::new(),
        }
        let (read, outputs_written) = instr.operands();
        let freed: &[Reg] = if let Instr::Free { regs } = instr { regs } else { &[] };
        // A result that is freed is not one that the caller gets.
        freed.iter().chain(&read).for_each(|reg| uses[reg.index()].0 += 1);
        outputs_written.iter().for_each(|reg| uses[reg.index()].1 += 1);
    }
    let Some(Instr::Return { values }) = function.code.last() else { return Vec::new() };
    let is_direct = |reg: &Reg| {
        let info = &regs[reg.index()];
        matches!(info.slot, Slot::Value(_)) && info.bytes > 0 && uses[reg.index()] == (1, 1)
    };
    let results = values.iter().enumerate().filter(|(_, reg)| is_direct(reg));
    results.map(|(output, &reg)| DirectResult { reg, output: output as u32 }).collect()
}

/// Tests that steps can write all of these results to `outputs`: the memory has the type of the result and the
/// alignment of a tensor, and overlaps neither an input nor another output.
pub(super) fn are_writable(
    results: &[DirectResult],
    regs: &[RegInfo],
    inputs: &[Tensor],
    outputs: &[TensorViewMut<'_>],
) -> bool {
    let range = |bytes: &[u8]| -> Range<*const u8> { bytes.as_ptr_range() };
    let overlaps = |a: &Range<*const u8>, b: &Range<*const u8>| a.start < b.end && b.start < a.end;
    !results.is_empty()
        && results.iter().all(|result| {
            let Some(out) = outputs.get(result.output as usize) else { return false };
            let memory = range(out.data);
            let has_declared_type = regs[result.reg.index()]
                .known_type()
                .is_some_and(|actual_type| (out.dtype, out.shape) == (actual_type.0, &actual_type.1[..]));
            let mut other_outputs = outputs.iter().enumerate().filter(|(other, _)| *other != result.output as usize);
            has_declared_type
                && (memory.start as usize).is_multiple_of(ALIGNMENT)
                && !inputs.iter().any(|input| overlaps(&memory, &range(input.bytes())))
                && !other_outputs.any(|(_, other)| overlaps(&memory, &range(other.data)))
        })
}

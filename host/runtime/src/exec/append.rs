//! Concatenations that append to their first operand, typically in loops that collect their results. The memory of the
//! operand grows with spare capacity, so that most appends copy only the new part, not the parts before it.

use super::frame::{Frame, RegInfo, Scope, Slot};
use super::program::{Arg, Instr, OpCall, Reg};
use super::recycler::{RecycledBytes, Recycler};
use super::value::Value;
use byoc_ir::diag::Diagnostic;
use byoc_ir::ir::TensorType;
use byoc_ir::op::facts::ResultMemory;
use byoc_ir::op::{OpDef, Params};
use byoc_ir::tensor::{Tensor, byte_count};
use std::sync::Arc;

/// Maximum number of later instructions that are searched for a read of the operand.
const MAX_LATER: usize = 256;

/// First operand of a concatenation whose memory may grow to hold the result.
pub(super) struct Growing {
    first: Reg,
    /// Axis of the concatenation; a negative axis counts from the end.
    axis: i64,
}

impl Growing {
    /// Returns the register of the operand.
    pub(super) fn register(&self) -> Reg {
        self.first
    }
}

/// Returns the first operand of a concatenation if it is a value that no later instruction reads.
pub(super) fn growing_operand(
    def: &'static OpDef,
    call: &OpCall,
    later: &[Instr],
    regs: &[RegInfo],
) -> Option<Growing> {
    let ([Arg::Tuple(fields)], ResultMemory::Concatenation) = (&call.args[..], def.properties.result) else {
        return None;
    };
    let first = *fields.first()?;
    let is_value = matches!(regs[first.index()].slot, Slot::Value(_));
    let is_appended = is_value && !fields[1..].contains(&first) && is_dead(first, later);
    is_appended.then(|| Growing { first, axis: Params::new(def, &call.attrs).int("axis") })
}

/// Returns true if it is certain that no instruction in `later` reads the register. The search returns false at the
/// first jump or branch, and after `MAX_LATER` instructions.
fn is_dead(reg: Reg, later: &[Instr]) -> bool {
    for instr in later.iter().take(MAX_LATER) {
        match instr {
            Instr::Free { regs } if regs.contains(&reg) => return true,
            Instr::Jump { .. } | Instr::Branch { .. } | Instr::Test { .. } => return false,
            _ if instr.operands().0.contains(&reg) => return false,
            Instr::TailCall { .. } | Instr::TailCallClosure { .. } | Instr::Return { .. } => return true,
            _ => {}
        }
    }
    false
}

/// Appends `tail` to the tensor that may grow, and writes the result of type `ty` to register `out`.
/// Returns false if the memory of the tensor cannot grow, or its elements are not adjacent in the result.
pub(super) fn append(
    scope: Scope<'_>,
    frame: &mut Frame,
    &Growing { first, axis }: &Growing,
    out: Reg,
    tail: &[Tensor],
    ty: &TensorType,
    recycler: &Arc<Recycler>,
) -> Result<bool, Diagnostic> {
    let Some(shape) = ty.shape() else { return Ok(false) };
    let Some(bytes) = byte_count(ty.dtype, &shape) else { return Ok(false) };
    let axis = axis.rem_euclid(shape.len().max(1) as i64) as usize;
    let Slot::Value(slot) = scope.reg(first).slot else { return Ok(false) };
    if shape[..axis.min(shape.len())].iter().any(|&dim| dim != 1) {
        return Ok(false);
    }
    let slot = &mut frame.values[slot as usize];
    let Value::Tensor(tensor) = std::mem::take(slot) else { return Ok(false) };
    let mut storage = match tensor.into_storage::<RecycledBytes>() {
        Ok(storage) => storage,
        Err(tensor) => {
            *slot = Value::Tensor(tensor);
            return Ok(false);
        }
    };
    let mut end = storage.as_ref().len();
    storage.grow(bytes, recycler)?;
    for part in tail {
        let target = &mut storage.as_mut()[end..end + part.bytes().len()];
        target.copy_from_slice(part.bytes());
        end += part.bytes().len();
    }
    let result =
        Tensor::from_storage(ty.dtype, &shape, Arc::new(storage)).expect("the buffer has the size of the shape");
    scope.write(frame, out, Value::Tensor(result))?;
    Ok(true)
}

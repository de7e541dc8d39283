//! Operands that must be constant.

use crate::refusal::{CompileError, refuse};
use crate::region::{Op, RegionIr};
use byoc_plugin_api::{DType, RefusalCode, TensorRef};

/// Returns the elements of an operator's operand `input`, which must be a constant of element type `dtype`. Refusals
/// refer to the operand as `name`.
///
/// # Errors
/// If the operand is missing, is non-constant, or has a different element type.
pub fn elements<T>(
    ir: &RegionIr<'_>,
    op: &Op<'_>,
    input: usize,
    dtype: DType,
    name: &str,
    read: impl Fn(TensorRef<'_>) -> Vec<T>,
) -> Result<Vec<T>, CompileError> {
    let Some(&value) = op.inputs.get(input) else {
        let detail =
            format!("{}: number of operands: expected at least {}, found {}", op.name, input + 1, op.inputs.len());
        return refuse(RefusalCode::UnsupportedOp, detail);
    };
    match ir.constant(value) {
        Some((_, constant)) if constant.dtype() == dtype => Ok(read(constant.tensor())),
        Some((_, constant)) => {
            refuse(RefusalCode::UnsupportedDtype, format!("{name}: expected {dtype}, found {}", constant.dtype()))
        }
        None => refuse(RefusalCode::NotConstant, format!("{name}: expected a constant, found a runtime value")),
    }
}

//! Operands that must be constants.

use crate::refusal::{CompileError, refuse};
use crate::region::{Op, RegionIr};
use byoc_plugin_api::{DType, RefusalCode, TensorRef};

/// Returns the elements of operand `input` of an operator, which must be a constant of this element type. `name` names
/// the operand in a refusal.
///
/// # Errors
/// A missing operand, one that is not a constant, or one of another element type.
pub fn elements<T>(
    ir: &RegionIr<'_>,
    op: &Op<'_>,
    input: usize,
    dtype: DType,
    name: &str,
    read: impl Fn(TensorRef<'_>) -> Vec<T>,
) -> Result<Vec<T>, CompileError> {
    let Some(&value) = op.inputs.get(input) else {
        return refuse(RefusalCode::UnsupportedOp, format!("{}: expected an operand {input}", op.name));
    };
    match ir.constant(value) {
        Some((_, constant)) if constant.dtype() == dtype => Ok(read(constant.tensor())),
        Some((_, constant)) => {
            refuse(RefusalCode::UnsupportedDtype, format!("{name}: expected {dtype}, found {}", constant.dtype()))
        }
        None => refuse(RefusalCode::NotConstant, format!("{name}: expected a constant")),
    }
}

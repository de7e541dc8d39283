//! Looking at calls of quantized operators.

use byoc_ir::ir::{Attrs, Call, ExprId, Module};
use byoc_ir::op;
use byoc_ir::tensor::{DType, Tensor};

/// Returns the operator's name and the call, if the expression is an operator call.
pub(super) fn as_called_op(module: &Module, id: ExprId) -> Option<(&'static str, &Call)> {
    module.expr(id).as_op_call().map(|(operator, call)| (op::get(operator).name, call))
}

/// Returns the tensor of a constant.
pub(super) fn constant(module: &Module, id: ExprId) -> Option<&Tensor> {
    module.expr(id).as_constant().map(|t| &**t)
}

/// Tests whether an expression is a tensor of 8-bit integers.
pub(super) fn is_8_bit(module: &Module, id: ExprId) -> bool {
    module.ty(id).as_tensor().is_some_and(|t| matches!(t.dtype, DType::I8 | DType::U8))
}

/// Returns the axis of the channels in the result of a convolution.
pub(super) fn channel_axis(attrs: &Attrs) -> usize {
    let layout = |key: &str| attrs.str(key).filter(|layout| !layout.is_empty());
    layout("out_layout").or(layout("data_layout")).unwrap_or("NCHW").find('C').unwrap_or(1)
}

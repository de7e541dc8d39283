//! Fuses a quantized convolution or matrix product with the bias, requantization and bounds that follow, or with the
//! conversion to real numbers, into one operator for the host, so that the accumulators stay in registers. Only operators assigned to no backend are fused;
//! functions of backends are left unchanged.

use super::calls::{as_called_op, channel_axis, constant, is_8_bit};
use super::fuse_dequantize;
use crate::analysis::scope::rewritable_exprs;
use byoc_ir::diag::Diagnostic;
use byoc_ir::ir::{AttrValue, Call, Callee, Expr, ExprId, IndexVec, Module};
use byoc_ir::op::qnn::numerics::range;
use byoc_ir::op::{self, Params};
use byoc_ir::tensor::{DType, Tensor};
use byoc_ir::typing::Rebuild;

type Result<T, E = Box<Diagnostic>> = std::result::Result<T, E>;

/// Fuses quantized convolutions and matrix products with the operators that follow, if the intermediate results have no
/// other user.
///
/// # Errors
/// If the rebuilt module is ill-typed, which indicates a bug in this pass.
pub fn fuse_requantize(module: &Module) -> Result<Module> {
    let is_rewritable = rewritable_exprs(module);
    let uses = uses(module);
    Rebuild::run(module, |rebuild, id, expr| {
        let Some((operator, call)) = expr.as_op_call() else { return Ok(None) };
        let is_single_use = |id: ExprId| uses[id] == 1;
        if !is_rewritable[id] {
            return Ok(None);
        }
        match op::get(operator).name {
            "qnn.requantize" if is_single_use(call.args[0]) => requantize(rebuild, call, &is_single_use),
            "multiply" => fuse_dequantize::multiply(rebuild, call, &is_single_use),
            "qnn.dequantize" => fuse_dequantize::dequantize(rebuild, call, &is_single_use),
            name @ ("add" | "nn.bias_add") => fuse_dequantize::add_bias(rebuild, call, name, &is_single_use),
            name @ ("clip" | "nn.relu") if is_single_use(call.args[0]) => merge_bounds(rebuild, call, name),
            _ => Ok(None),
        }
    })
}

/// Counts the uses of each live expression as an operand.
fn uses(module: &Module) -> IndexVec<ExprId, u32> {
    let live = module.live();
    let mut uses = IndexVec::filled(0, module.nodes.len());
    for (_, node) in module.nodes.iter().filter(|(id, _)| live[*id]) {
        node.expr.for_each_operand(|operand| uses[operand] += 1);
    }
    uses
}

fn requantize(
    rebuild: &mut Rebuild<'_>,
    call: &Call,
    is_single_use: &dyn Fn(ExprId) -> bool,
) -> Result<Option<ExprId>> {
    let source = rebuild.old;
    let Some((mut name, mut inner)) = as_called_op(source, call.args[0]) else { return Ok(None) };
    let mut origins = vec![source.nodes[call.args[0]].origin];
    let mut bias = None;
    let mut bias_at = None;
    if matches!(name, "nn.bias_add" | "add") {
        let Some(producer) = as_called_op(source, inner.args[0]) else { return Ok(None) };
        if !is_single_use(inner.args[0]) {
            return Ok(None);
        }
        let Some(tensor) = constant(source, inner.args[1]) else { return Ok(None) };
        bias = Some((inner.args[1], tensor));
        bias_at = Some((name, inner));
        origins.push(source.nodes[inner.args[0]].origin);
        (name, inner) = producer;
    }
    let fused_name = match name {
        "qnn.conv2d" => "qnn.contrib_conv2d_requantize",
        "qnn.dense" => "qnn.contrib_dense_requantize",
        _ => return Ok(None),
    };
    let Some(accumulators) = source.ty(call.args[0]).as_tensor() else { return Ok(None) };
    let rank = accumulators.dims.len();
    let axis = if name == "qnn.conv2d" { channel_axis(&inner.attrs) } else { rank - 1 };
    let Some(channels) = accumulators.dims[axis].fixed() else { return Ok(None) };
    let resolve = |axis: i64| (if axis < 0 { axis + rank as i64 } else { axis }) as usize;
    let Callee::Op(operator) = call.callee else { return Ok(None) };
    let params = Params::new(op::get(operator), &call.attrs);
    // All scales and zero points must be constants. The input zero point must be 0; the output scale and the output
    // zero point must have one element each.
    let constants: Option<Vec<&Tensor>> = call.args[1..].iter().map(|&arg| constant(source, arg)).collect();
    let Some(constants) = constants else { return Ok(None) };
    let is_along_axis = constants.iter().all(|t| t.len() == 1) || resolve(params.int("axis")) == axis;
    let out = params.dtype("out_dtype").unwrap_or(DType::I8);
    let is_fusible = accumulators.dtype == DType::I32
        && is_8_bit(source, inner.args[0])
        && is_8_bit(source, inner.args[1])
        && matches!(out, DType::I8 | DType::U8)
        && is_along_axis
        && constants[1].as_slice::<i32>().iter().all(|&zero| zero == 0)
        && constants[2].len() == 1
        && constants[3].len() == 1;
    // The bias must have one element per channel.
    let bias = match (bias, bias_at) {
        (None, _) => Tensor::zeros(DType::I32, &[channels]).ok(),
        (Some((_, tensor)), Some(("nn.bias_add", bias_add))) => {
            let axis_of = bias_add.attrs.get("axis").and_then(AttrValue::as_int).unwrap_or(1);
            (resolve(axis_of) == axis).then(|| tensor.clone())
        }
        (Some((_, tensor)), _) => {
            // The bias is broadcast: every dimension is 1 except for the channels.
            let missing_rank = rank.checked_sub(tensor.shape().len());
            let is_bias_shaped = missing_rank.is_some_and(|missing_rank| {
                let mut dims = tensor.shape().iter().enumerate();
                dims.all(|(i, &d)| d == if i + missing_rank == axis { channels } else { 1 })
            });
            (is_bias_shaped && tensor.len() == channels).then(|| tensor.reshaped(&[channels])).flatten()
        }
    };
    let Some(bias) = bias.filter(|bias| is_fusible && bias.dtype() == DType::I32 && bias.len() == channels) else {
        return Ok(None);
    };
    let bias = rebuild.new.constant(bias);
    let inner_arg = |i: usize| rebuild.get(inner.args[i]);
    let outer_arg = |i: usize| rebuild.get(call.args[i]);
    let args = [inner_arg(0), inner_arg(1), bias, inner_arg(2), inner_arg(3), outer_arg(1), outer_arg(3), outer_arg(4)];
    let mut attrs = inner.attrs.with("out_dtype", out);
    for key in ["rounding", "compute_dtype"] {
        attrs = attrs.with(key, params.value(key));
    }
    let value = rebuild.new.op(fused_name, &args, attrs)?;
    for origin in origins {
        rebuild.inherit_origin(value, origin);
    }
    Ok(Some(value))
}

/// Merges a `clip` or `nn.relu` into the fused operator that produces its operand.
fn merge_bounds(rebuild: &mut Rebuild<'_>, call: &Call, name: &str) -> Result<Option<ExprId>> {
    let producer = rebuild.get(call.args[0]);
    let Expr::Call(fused) = rebuild.new.module.expr(producer).clone() else { return Ok(None) };
    let Some((producer_name, _)) = as_called_op(&rebuild.new.module, producer) else { return Ok(None) };
    if !producer_name.ends_with("_requantize") {
        return Ok(None);
    }
    let Some(dtype) = rebuild.new.module.ty(producer).as_tensor().map(|t| t.dtype) else { return Ok(None) };
    let (low, high) = range(dtype);
    let bound_of = |key: &str| call.attrs.get(key).and_then(AttrValue::as_float);
    let (a_min, a_max) = match name {
        "nn.relu" => (0, high),
        _ => match (bound_of("a_min"), bound_of("a_max")) {
            // Only integral bounds can be merged.
            (Some(a), Some(b)) if a.fract() == 0.0 && b.fract() == 0.0 && a <= b => (a as i64, b as i64),
            _ => return Ok(None),
        },
    };
    let own_bound = |key: &str, default: i64| fused.attrs.get(key).and_then(AttrValue::as_int).unwrap_or(default);
    let (was_low, was_high) = (own_bound("a_min", low), own_bound("a_max", high));
    let attrs = fused.attrs.with("a_min", was_low.clamp(a_min, a_max)).with("a_max", was_high.clamp(a_min, a_max));
    let is_in_type = |v: i64| (low..=high).contains(&v);
    if !is_in_type(was_low.clamp(a_min, a_max)) || !is_in_type(was_high.clamp(a_min, a_max)) {
        return Ok(None);
    }
    let origin = rebuild.new.module.nodes[producer].origin;
    let value = rebuild.new.op(producer_name, &fused.args, attrs)?;
    rebuild.inherit_origin(value, origin);
    Ok(Some(value))
}

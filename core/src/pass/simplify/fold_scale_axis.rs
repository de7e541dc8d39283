//! Folds a per-channel multiplication into the weights of the operator that produces its operand.
//!
//! `multiply(op(x, W), s)` becomes `op(x, W * s)`, where `op` is a convolution or `nn.dense` whose result has no other
//! user, `W` is a constant, and `s` is a constant that is a scalar or varies only along the output channels. A bias in
//! between is scaled as well: `multiply(add(op(x, W), b), s)` becomes `add(op(x, W * s), b * s)`. After
//! `simplify_inference`, this removes batch normalizations that follow convolutions. Chains of additions and
//! multiplications are folded one by one. Products of constants are computed immediately. Only floats of one type are
//! folded, because integers would round or overflow at different points than before.

use crate::analysis::scope::rewritable_exprs;
use byoc_ir::diag::Diagnostic;
use byoc_ir::ir::{Attrs, Expr, ExprId, IndexVec, Module};
use byoc_ir::op::{self, Params, Value};
use byoc_ir::tensor::Tensor;
use byoc_ir::typing::Rebuild;
use std::collections::HashMap;

/// Folds per-channel multiplications into weights.
///
/// # Errors
/// If the rebuilt module is ill-typed, which indicates a bug in this pass.
pub fn fold_scale_axis(module: &Module) -> Result<Module, Box<Diagnostic>> {
    let is_rewritable = rewritable_exprs(module);
    let users = user_counts(module);
    // True for each new expression that has a single user.
    let mut is_single_use: HashMap<ExprId, bool> = HashMap::new();
    Rebuild::run(module, |rebuild, id, expr| {
        if expr.as_op_call().is_none() || !is_rewritable[id] {
            return Ok(None);
        }
        let replacement = match fold(rebuild, &mut is_single_use, id)? {
            Some(replacement) => replacement,
            None => rebuild.copy(id)?,
        };
        is_single_use.insert(replacement, users[id] == 1);
        Ok(Some(replacement))
    })
}

/// Folds the multiplication `id` into the operator that produces its operand. Returns the replacement, or `None` if the
/// multiplication cannot be folded.
fn fold(
    rebuild: &mut Rebuild<'_>,
    is_single_use: &mut HashMap<ExprId, bool>,
    id: ExprId,
) -> Result<Option<ExprId>, Box<Diagnostic>> {
    let Some([value, scale]) = operands(rebuild.old.expr(id), "multiply") else { return Ok(None) };
    let Some([value, scale]) = constant_last(&rebuild.new.module, [rebuild.get(value), rebuild.get(scale)]) else {
        return Ok(None);
    };
    let has_one_user = |id: ExprId| is_single_use.get(&id) == Some(&true);
    if !has_one_user(value) {
        return Ok(None);
    }
    if let Some(scaled) = scale_weights(rebuild, value, scale)? {
        rebuild.inherit(scaled, id);
        return Ok(Some(scaled));
    }
    let module = &rebuild.new.module;
    let Some([producer, bias]) = operands(module.expr(value), "add").and_then(|pair| constant_last(module, pair))
    else {
        return Ok(None);
    };
    if !has_one_user(producer) {
        return Ok(None);
    }
    let Some(product) = product(module, bias, scale) else { return Ok(None) };
    // If the bias and the scale vary along different axes, their product is larger than both.
    let size = |id: ExprId| module.expr(id).as_constant().map_or(0, |tensor| tensor.len());
    if product.len() > size(bias).max(size(scale)) {
        return Ok(None);
    }
    let Some(scaled) = scale_weights(rebuild, producer, scale)? else { return Ok(None) };
    rebuild.inherit(scaled, id);
    is_single_use.insert(scaled, true);
    let bias = constant(rebuild, product, [bias, scale]);
    rebuild.new.origin = Some(rebuild.new.module.nodes[value].origin);
    let sum = rebuild.new.op("add", &[scaled, bias], Attrs::none())?;
    rebuild.inherit(sum, id);
    Ok(Some(sum))
}

/// Returns the operands if `expr` is a call to the binary operator `name`.
fn operands(expr: &Expr, name: &str) -> Option<[ExprId; 2]> {
    let (operator, call) = expr.as_op_call()?;
    match call.args[..] {
        [a, b] if op::get(operator).name == name => Some([a, b]),
        _ => None,
    }
}

/// Returns the operands of a commutative operator with the constant last, if exactly one operand is constant.
fn constant_last(module: &Module, [a, b]: [ExprId; 2]) -> Option<[ExprId; 2]> {
    let is_constant = |id: ExprId| module.expr(id).as_constant().is_some();
    match (is_constant(a), is_constant(b)) {
        (false, true) => Some([a, b]),
        (true, false) => Some([b, a]),
        _ => None,
    }
}

/// Folds `scale` into the weights if `value` is a convolution or `nn.dense`.
fn scale_weights(rebuild: &mut Rebuild<'_>, value: ExprId, scale: ExprId) -> Result<Option<ExprId>, Box<Diagnostic>> {
    let module = &rebuild.new.module;
    let Some((operator, call)) = module.expr(value).as_op_call() else { return Ok(None) };
    let params = Params::new(op::get(operator), &call.attrs);
    let Some(out) = module.ty(value).as_tensor() else { return Ok(None) };
    // Axis of the output channels in the result, and in the weights.
    let axes = match op::get(operator).name {
        "nn.conv1d" | "nn.conv2d" | "nn.conv3d" => {
            let mut layout = params.string("out_layout");
            if layout.is_empty() {
                layout = params.string("data_layout");
            }
            layout.find('C').zip(params.string("kernel_layout").find('O'))
        }
        "nn.dense" => out.dims.len().checked_sub(1).map(|channel_axis| (channel_axis, 0)),
        _ => None,
    };
    let Some((axis, weight_axis)) = axes else { return Ok(None) };
    let (Some(weight), Some(factor)) = (module.expr(call.args[1]).as_constant(), module.expr(scale).as_constant())
    else {
        return Ok(None);
    };
    if !out.dtype.is_float() || weight.dtype() != out.dtype || factor.dtype() != out.dtype {
        return Ok(None);
    }
    let Some(vector) = as_vector_along(factor, axis, out.dims.len(), out.dims[axis].fixed()) else { return Ok(None) };
    let mut shape = vec![1; weight.shape().len()];
    shape[weight_axis] = vector.len();
    let Some(vector) = vector.reshaped(&shape) else { return Ok(None) };
    let Some(product) = multiply(weight, &vector) else { return Ok(None) };
    let (data, old_weight, attrs) = (call.args[0], call.args[1], call.attrs.clone());
    let weight = constant(rebuild, product, [old_weight, scale]);
    rebuild.new.origin = Some(rebuild.new.module.nodes[value].origin);
    Ok(Some(rebuild.new.push(Expr::op(operator, [data, weight], attrs))?))
}

/// Returns `scale` as a vector along `axis` of a tensor of rank `rank`, if `scale` has a single element, or has all
/// `channels` elements of that axis and varies along no other axis.
fn as_vector_along(scale: &Tensor, axis: usize, rank: usize, channels: Option<usize>) -> Option<Tensor> {
    let offset = rank.checked_sub(scale.shape().len())?;
    let varies = |i: usize, d: usize| d != 1 && i + offset != axis;
    if scale.shape().iter().enumerate().any(|(i, &d)| varies(i, d)) {
        return None;
    }
    (scale.len() == 1 || Some(scale.len()) == channels).then(|| scale.reshaped(&[scale.len()]))?
}

/// Returns the product of two constants.
fn product(module: &Module, a: ExprId, b: ExprId) -> Option<Tensor> {
    multiply(module.expr(a).as_constant()?, module.expr(b).as_constant()?)
}

fn multiply(a: &Tensor, b: &Tensor) -> Option<Tensor> {
    let values = [Value::Tensor(a.clone()), Value::Tensor(b.clone())];
    op::evaluate(op::lookup("multiply")?, &Attrs::none(), &values, usize::MAX).ok()?.pop()
}

/// Creates a constant with the origins of the two expressions from which `value` was computed.
fn constant(rebuild: &mut Rebuild<'_>, value: Tensor, operands: [ExprId; 2]) -> ExprId {
    let [a, b] = operands.map(|id| rebuild.new.module.nodes[id].origin);
    rebuild.new.origin = Some(rebuild.new.module.origins.union(a, b));
    rebuild.new.constant(value)
}

/// Counts the uses of each expression as an operand of live expressions.
fn user_counts(module: &Module) -> IndexVec<ExprId, u32> {
    let live = module.live();
    let mut users = IndexVec::filled(0, module.nodes.len());
    for (id, node) in module.nodes.iter() {
        if live[id] {
            node.expr.for_each_operand(|operand| users[operand] += 1);
        }
    }
    users
}

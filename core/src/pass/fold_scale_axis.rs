//! Folds a multiplication per output channel into the weights before it.
//!
//! `multiply(op(x, W), s)` becomes `op(x, W * s)` where `op` is a convolution or `nn.dense` whose result nobody else
//! reads, `W` is a constant and `s` a constant that varies along the output channels alone. A bias between the two is
//! scaled with it: `multiply(add(op(x, W), b), s)` becomes `add(op(x, W * s), b * s)`. Batch norms behind convolutions
//! vanish this way (after `simplify_inference`).

use super::scope::touchable;
use crate::diag::Diagnostic;
use crate::ir::{Attrs, Expr, ExprId, IndexVec, Module};
use crate::op::{self, Params};
use crate::tensor::Tensor;
use crate::typing::Rebuild;

/// Folds multiplications into weights.
///
/// # Errors
/// Types that no longer agree, which would be a defect of this pass.
pub fn fold_scale_axis(module: &Module) -> Result<Module, Box<Diagnostic>> {
    let touch = touchable(module);
    let users = user_counts(module);
    Rebuild::run(module, |rebuild, id, expr| {
        if !touch[id] {
            return Ok(None);
        }
        let Some([value, scale]) = constant_operand(module, "multiply", expr) else { return Ok(None) };
        if users[value] != 1 {
            return Ok(None);
        }
        if let Some(folded) = scaled(rebuild, value, scale)? {
            rebuild.inherit(folded, id);
            return Ok(Some(folded));
        }
        let Some([inner, bias]) = constant_operand(module, "add", module.expr(value)) else { return Ok(None) };
        if users[inner] != 1 {
            return Ok(None);
        }
        let Some(folded) = scaled(rebuild, inner, scale)? else { return Ok(None) };
        rebuild.inherit(folded, id);
        let (bias, scale) = (rebuild.get(bias), rebuild.get(scale));
        let bias = rebuild.new.op("multiply", &[bias, scale], Attrs::none())?;
        let sum = rebuild.new.op("add", &[folded, bias], Attrs::none())?;
        rebuild.inherit(sum, value);
        Ok(Some(sum))
    })
}

/// `[value, constant]` of a call of a commutative operator with one constant operand.
fn constant_operand(module: &Module, name: &str, expr: &Expr) -> Option<[ExprId; 2]> {
    let (operator, call) = expr.as_op_call()?;
    if op::get(operator).name != name {
        return None;
    }
    let [a, b] = call.args[..] else { return None };
    let is_constant = |id: ExprId| module.expr(id).as_constant().is_some();
    match (is_constant(a), is_constant(b)) {
        (false, true) => Some([a, b]),
        (true, false) => Some([b, a]),
        _ => None,
    }
}

/// The convolution or dense `value` with `scale` folded into its weights.
fn scaled(rebuild: &mut Rebuild<'_>, value: ExprId, scale: ExprId) -> Result<Option<ExprId>, Box<Diagnostic>> {
    let module = rebuild.old;
    let Some((operator, call)) = module.expr(value).as_op_call() else { return Ok(None) };
    let params = Params::new(op::get(operator), &call.attrs);
    // Where the output channel stands: in the result, and in the weights.
    let place = match op::get(operator).name {
        "nn.conv1d" | "nn.conv2d" | "nn.conv3d" => {
            let mut layout = params.string("out_layout");
            if layout.is_empty() {
                layout = params.string("data_layout");
            }
            layout.find('C').zip(params.string("kernel_layout").find('O'))
        }
        "nn.dense" => module.ty(value).as_tensor().map(|t| (t.dims.len() - 1, 0)),
        _ => None,
    };
    let (Some((axis, weight_axis)), Some(out)) = (place, module.ty(value).as_tensor()) else { return Ok(None) };
    let weight = rebuild.get(call.args[1]);
    let Some(weight_rank) = rebuild.new.module.expr(weight).as_constant().map(|w| w.shape().len()) else {
        return Ok(None);
    };
    let channels = out.dims[axis].fixed();
    let Some(vector) = module.expr(scale).as_constant().and_then(|s| along(s, axis, out.dims.len(), channels)) else {
        return Ok(None);
    };
    let mut shape = vec![1; weight_rank];
    shape[weight_axis] = vector.len();
    let Some(vector) = vector.reshaped(&shape) else { return Ok(None) };
    rebuild.new.origin = Some(module.nodes[scale].origin);
    let vector = rebuild.new.constant(vector);
    rebuild.new.origin = Some(module.nodes[value].origin);
    let weight = rebuild.new.op("multiply", &[weight, vector], Attrs::none())?;
    let data = rebuild.get(call.args[0]);
    Ok(Some(rebuild.new.push(Expr::op(operator, [data, weight], call.attrs.clone()))?))
}

/// The values of `scale` along `axis` of a tensor of `rank` dimensions, if it varies there alone and spans it.
fn along(scale: &Tensor, axis: usize, rank: usize, channels: Option<usize>) -> Option<Tensor> {
    let offset = rank.checked_sub(scale.shape().len())?;
    let varies = |i: usize, d: usize| d != 1 && i + offset != axis;
    if scale.shape().iter().enumerate().any(|(i, &d)| varies(i, d)) || Some(scale.len()) != channels {
        return None;
    }
    scale.reshaped(&[scale.len()])
}

/// How many operands of live expressions each expression is.
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

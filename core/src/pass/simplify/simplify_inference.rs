//! Replaces operators that have a training mode with their inference forms.
//!
//! * `nn.batch_norm(x, gamma, beta, mean, var).0` becomes `x * scale + shift` with `scale = gamma / sqrt(var +
//!   epsilon)` and `shift = beta - mean * scale`. Both fold into constants, and then into the weights of the preceding
//!   operator. All projections `.0` of one call become the same sum.
//! * `nn.dropout(x).0` becomes `x`.
//!
//! Normalizations whose statistics are computed at inference, too (`nn.layer_norm`, `nn.instance_norm`, ...), are left
//! unchanged: backends and the host have kernels for them.

use crate::analysis::scope::rewritable_exprs;
use byoc_ir::diag::Diagnostic;
use byoc_ir::ir::{Attrs, Call, Expr, ExprId, Module, Type};
use byoc_ir::op::{self, Params};
use byoc_ir::tensor::Tensor;
use byoc_ir::typing::Rebuild;
use byoc_ir::with_dtype;
use std::collections::HashMap;

/// Rewrites projections of field 0 of `nn.batch_norm` and `nn.dropout`.
///
/// # Errors
/// If the rebuilt module is ill-typed, which indicates a bug in this pass.
pub fn simplify_inference(module: &Module) -> Result<Module, Box<Diagnostic>> {
    let is_rewritable = rewritable_exprs(module);
    let mut additions: HashMap<ExprId, ExprId> = HashMap::new();
    Rebuild::run(module, |rebuild, id, expr| {
        let Expr::Project { tuple, index: 0 } = expr else { return Ok(None) };
        let Some((operator, call)) = module.expr(*tuple).as_op_call() else { return Ok(None) };
        if !is_rewritable[id] {
            return Ok(None);
        }
        match op::get(operator).name {
            "nn.dropout" => Ok(Some(rebuild.get(call.args[0]))),
            "nn.batch_norm" => {
                if let Some(&sum) = additions.get(tuple) {
                    rebuild.inherit(sum, id);
                    return Ok(Some(sum));
                }
                let origin = rebuild.new.module.origins.union(module.nodes[*tuple].origin, module.nodes[id].origin);
                rebuild.new.origin = Some(origin);
                let sum = batch_norm(rebuild, call, Params::new(op::get(operator), &call.attrs))?;
                additions.extend(sum.map(|sum| (*tuple, sum)));
                Ok(sum)
            }
            _ => Ok(None),
        }
    })
}

fn batch_norm(rebuild: &mut Rebuild<'_>, call: &Call, params: Params<'_>) -> Result<Option<ExprId>, Box<Diagnostic>> {
    let args: Vec<ExprId> = call.args.iter().map(|&a| rebuild.get(a)).collect();
    let [data, gamma, beta, mean, var] = args[..] else { return Ok(None) };
    let Type::Tensor(ty) = rebuild.new.module.ty(data).clone() else { return Ok(None) };
    if !ty.dtype.is_float() {
        return Ok(None);
    }
    let rank = ty.dims.len() as i64;
    let axis = params.int("axis");
    let axis = if axis < 0 { axis + rank } else { axis };
    let b = &mut rebuild.new;
    let epsilon =
        with_dtype!(ty.dtype, T => Tensor::scalar(<T as byoc_ir::tensor::Element>::from_f64(params.float("epsilon"))));
    let epsilon = b.constant(epsilon);
    let var = b.op("add", &[var, epsilon], Attrs::none())?;
    let deviation = b.op("sqrt", &[var], Attrs::none())?;
    let unit = with_dtype!(ty.dtype, T => Tensor::scalar(<T as byoc_ir::tensor::Element>::from_f64(1.0)));
    let unit = b.constant(unit);
    let mut scale = b.op("divide", &[unit, deviation], Attrs::none())?;
    if params.bool("scale") {
        scale = b.op("multiply", &[scale, gamma], Attrs::none())?;
    }
    let mean = b.op("negative", &[mean], Attrs::none())?;
    let mut shift = b.op("multiply", &[mean, scale], Attrs::none())?;
    if params.bool("center") {
        shift = b.op("add", &[shift, beta], Attrs::none())?;
    }
    let broadcast = |b: &mut byoc_ir::typing::Builder, x| {
        let newaxis = rank - axis - 1;
        if newaxis == 0 {
            return Ok(x);
        }
        b.op("expand_dims", &[x], Attrs::new([("axis", 1.into()), ("num_newaxis", newaxis.into())]))
    };
    let (scale, shift) = (broadcast(b, scale)?, broadcast(b, shift)?);
    let product = b.op("multiply", &[data, scale], Attrs::none())?;
    Ok(Some(b.op("add", &[product, shift], Attrs::none())?))
}

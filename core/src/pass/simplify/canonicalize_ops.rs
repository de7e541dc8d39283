//! Rewrites `nn.bias_add` as `add` with an expanded bias, so that a single pattern matches both ways of adding a bias.

use crate::analysis::scope::rewritable_exprs;
use byoc_ir::diag::Diagnostic;
use byoc_ir::ir::{Attrs, Module};
use byoc_ir::op::{self, Params};
use byoc_ir::typing::Rebuild;

/// Rewrites every `nn.bias_add`.
///
/// # Errors
/// If the rebuilt module is ill-typed, which indicates a bug in this pass.
pub fn canonicalize_ops(module: &Module) -> Result<Module, Box<Diagnostic>> {
    let is_rewritable = rewritable_exprs(module);
    Rebuild::run(module, |rebuild, id, expr| {
        let Some((operator, call)) = expr.as_op_call() else { return Ok(None) };
        let def = op::get(operator);
        let Some(ty) = module.ty(call.args.first().copied().unwrap_or(id)).as_tensor() else { return Ok(None) };
        if def.name != "nn.bias_add" || !is_rewritable[id] {
            return Ok(None);
        }
        let rank = ty.dims.len() as i64;
        let axis = Params::new(def, &call.attrs).int("axis");
        let newaxis = rank - 1 - if axis < 0 { axis + rank } else { axis };
        let (data, mut bias) = (rebuild.get(call.args[0]), rebuild.get(call.args[1]));
        if newaxis > 0 {
            let attrs = Attrs::new([("axis", 1.into()), ("num_newaxis", newaxis.into())]);
            bias = rebuild.new.op("expand_dims", &[bias], attrs)?;
        }
        Ok(Some(rebuild.new.op("add", &[data, bias], Attrs::none())?))
    })
}

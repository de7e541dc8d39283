//! The layers of a model: the convolutions and matrix products that may be computed with int8.

use byoc_core::ir::{ExprId, Id, Module};
use byoc_core::op::{self, Params};
use byoc_core::tensor::DType;
use std::collections::BTreeSet;

/// With so many terms the largest products of int8 and (asymmetric) int8, and a bias as large again, fit into int32.
const MOST_TERMS: usize = (1 << 30) / (255 * 127);

/// A convolution or a matrix product.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// The call in the float model.
    pub call: ExprId,
    /// The name of the model's operator.
    pub name: String,
    /// `nn.conv2d` or `nn.dense`.
    pub operator: &'static str,
    /// The axis of the weight along which the output channels lie.
    pub weight_axis: usize,
    /// The axis of the result along which they lie.
    pub channel_axis: usize,
    /// Why it cannot be computed with int8, if it cannot.
    pub obstacle: Option<String>,
}

/// The expressions that are evaluated in every run: what `@main` reaches without entering functions and branches.
pub fn always_evaluated(module: &Module) -> BTreeSet<ExprId> {
    use byoc_core::ir::Expr;
    let Some(main) = module.main() else { return BTreeSet::new() };
    let enters = |_: ExprId, expr: &Expr| !matches!(expr, Expr::Function(_) | Expr::If { .. });
    module.post_order(main.body, enters).into_iter().collect()
}

/// Every layer, in the order of evaluation.
pub fn find(module: &Module) -> Vec<Layer> {
    always_evaluated(module).into_iter().filter_map(|id| layer(module, id)).collect()
}

fn layer(module: &Module, call: ExprId) -> Option<Layer> {
    let (operator, arguments) = module.expr(call).as_op_call()?;
    let def = op::get(operator);
    let mut layer =
        Layer { call, name: name(module, call), operator: def.name, weight_axis: 0, channel_axis: 0, obstacle: None };
    let params = Params::new(def, &arguments.attrs);
    match def.name {
        "nn.conv2d" => {
            let (kernel, data) = (params.string("kernel_layout"), params.string("data_layout"));
            let out = params.string("out_layout");
            let out = if out.is_empty() { data.clone() } else { out };
            match (kernel.find('O'), out.find('C'), ["OIHW", "HWIO", "OHWI"].contains(&kernel.as_str())) {
                (Some(weight), Some(channel), true) if out == data && ["NCHW", "NHWC"].contains(&data.as_str()) => {
                    (layer.weight_axis, layer.channel_axis) = (weight, channel);
                }
                _ => layer.obstacle = Some(format!("layout {data} with kernels {kernel}")),
            }
        }
        "nn.dense" => layer.channel_axis = module.ty(call).as_tensor()?.dims.len().checked_sub(1)?,
        _ => return None,
    }
    let weight = module.expr(*arguments.args.get(1)?).as_constant();
    let data = module.ty(arguments.args[0]).as_tensor()?;
    let found = match weight {
        None => Some("the weight is not constant".to_owned()),
        Some(weight) if weight.dtype() != DType::F32 || data.dtype != DType::F32 => {
            Some(format!("{} by {}; float32 is quantized", data.dtype, weight.dtype()))
        }
        Some(weight) if weight.is_empty() => Some("the weight has no elements".to_owned()),
        Some(weight) => {
            let terms = weight.len() / weight.shape()[layer.weight_axis];
            let finite = weight.as_slice::<f32>().iter().all(|v| v.is_finite());
            if !finite {
                Some("the weight has values that are not finite".to_owned())
            } else if terms > MOST_TERMS {
                Some(format!("a sum of {terms} terms may not fit into int32"))
            } else {
                None
            }
        }
    };
    layer.obstacle = layer.obstacle.or(found);
    Some(layer)
}

/// The name of the operator of the model that an expression came from; of several (a convolution and the batch norm in its
/// weights) the first.
pub fn name(module: &Module, id: ExprId) -> String {
    let origins = &module.origins;
    match origins.get(module.nodes[id].origin).first() {
        Some(&source) => origins.sources()[source].name.to_string(),
        None => format!("%{}", id.index()),
    }
}

//! Model layers: convolutions and matrix products that may be executed in int8.

use byoc_ir::ir::{ExprId, Id, Module};
use byoc_ir::op::{self, Params};
use byoc_ir::tensor::DType;
use std::collections::BTreeSet;

/// Maximum number of products that an int32 accumulator can sum without overflow. The product of an asymmetric
/// activation and a weight has a magnitude of at most 255 * 127, and half of the int32 range is reserved for the bias.
const MAX_TERMS: usize = (1 << 30) / (255 * 127);

/// Convolution or matrix product.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// Call in the float model.
    pub call: ExprId,
    /// Name of the operator in the model.
    pub name: String,
    /// Relay operator: `nn.conv2d` or `nn.dense`.
    pub operator: &'static str,
    /// Output channel axis of the weight.
    pub weight_axis: usize,
    /// Output channel axis of the result.
    pub channel_axis: usize,
    /// Input value of the layer.
    pub input: ExprId,
    /// Channel axis of `input`.
    pub input_channel_axis: usize,
    /// Input channel axis of the weight, whose extent is the number of input channels per group.
    pub weight_input_axis: usize,
    /// Number of channel groups.
    pub groups: usize,
    /// Obstacle to executing the layer in int8; `None` if there is none.
    pub obstacle: Option<String>,
}

/// Returns the expressions that every run evaluates: the expressions reachable from `@main` without entering functions
/// or branches.
pub fn always_evaluated(module: &Module) -> BTreeSet<ExprId> {
    use byoc_ir::ir::Expr;
    let Some(main) = module.main() else { return BTreeSet::new() };
    let is_transparent = |_: ExprId, expr: &Expr| !matches!(expr, Expr::Function(_) | Expr::If { .. });
    module.post_order(main.body, is_transparent).into_iter().collect()
}

/// Returns all layers, in evaluation order.
pub fn find(module: &Module) -> Vec<Layer> {
    always_evaluated(module).into_iter().filter_map(|id| layer(module, id)).collect()
}

fn layer(module: &Module, call: ExprId) -> Option<Layer> {
    let (operator, arguments) = module.expr(call).as_op_call()?;
    let def = op::get(operator);
    let mut layer = Layer {
        call,
        name: name(module, call),
        operator: def.name,
        weight_axis: 0,
        channel_axis: 0,
        input: *arguments.args.first()?,
        input_channel_axis: 0,
        weight_input_axis: 1,
        groups: 1,
        obstacle: None,
    };
    let params = Params::new(def, &arguments.attrs);
    match def.name {
        "nn.conv2d" => {
            let (kernel, data) = (params.string("kernel_layout"), params.string("data_layout"));
            let out = params.string("out_layout");
            let out = if out.is_empty() { data.clone() } else { out };
            match (kernel.find('O'), out.find('C'), ["OIHW", "HWIO", "OHWI"].contains(&kernel.as_str())) {
                (Some(weight), Some(channel), true) if out == data && ["NCHW", "NHWC"].contains(&data.as_str()) => {
                    (layer.weight_axis, layer.channel_axis) = (weight, channel);
                    layer.input_channel_axis = channel;
                    layer.weight_input_axis = kernel.find('I')?;
                    layer.groups = usize::try_from(params.int("groups")).ok()?;
                }
                _ => layer.obstacle = Some(format!("unsupported layout {data} with kernel layout {kernel}")),
            }
        }
        "nn.dense" => {
            layer.channel_axis = module.ty(call).as_tensor()?.dims.len().checked_sub(1)?;
            layer.input_channel_axis = layer.channel_axis;
        }
        _ => return None,
    }
    let weight = module.expr(*arguments.args.get(1)?).as_constant();
    let data = module.ty(arguments.args[0]).as_tensor()?;
    let weight_source = match weight {
        None => Some("the weight is not constant".to_owned()),
        Some(weight) if weight.dtype() != DType::F32 || data.dtype != DType::F32 => {
            Some(format!("expected float32 operands, found {} and {}", data.dtype, weight.dtype()))
        }
        Some(weight) if weight.is_empty() => Some("the weight has no elements".to_owned()),
        Some(weight) => {
            let terms = weight.len() / weight.shape()[layer.weight_axis];
            let is_finite = weight.as_slice::<f32>().iter().all(|v| v.is_finite());
            if !is_finite {
                Some("the weight contains NaN or infinite values".to_owned())
            } else if terms > MAX_TERMS {
                Some(format!("an accumulator of {terms} products may overflow int32"))
            } else {
                None
            }
        }
    };
    layer.obstacle = layer.obstacle.or(weight_source);
    Some(layer)
}

/// Returns the name of the model operator from which an expression originates, or `%<index>` if there is none. An
/// expression with several origins, such as a convolution with a batch norm folded into its weights, has the name of
/// the first.
pub fn name(module: &Module, id: ExprId) -> String {
    let origins = &module.origins;
    match origins.get(module.nodes[id].origin).first() {
        Some(&source) => origins.sources()[source].name.to_string(),
        None => format!("%{}", id.index()),
    }
}

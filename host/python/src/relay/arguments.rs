//! Types of variables that follow from the operators to which they are arguments: weights, biases, scales. Programs in
//! Python often leave them out, as `relay.var("weight")`.

use byoc_ir::ir::{Dim, Expr, ExprId, IndexVec, Module, Type};
use byoc_ir::op::{self, Params};
use byoc_ir::typing::infer_expr;

/// Completes the types of variables without a type that are arguments of such operators, and of what they make known.
pub fn complete(module: &mut Module) {
    let is_open = |module: &Module, id: ExprId| match module.expr(id) {
        Expr::Var(var) => var.annotation == Type::Unknown,
        _ => false,
    };
    if !module.nodes.ids().any(|id| is_open(module, id)) {
        return;
    }
    let mut is_new: IndexVec<ExprId, bool> = IndexVec::filled(false, module.nodes.len());
    let ids: Vec<ExprId> = module.nodes.ids().collect();
    for id in ids {
        if let Some((op, call)) = module.expr(id).as_op_call() {
            let def = op::get(op);
            let args = call.args.clone();
            let params = Params::new(def, &call.attrs);
            let types: Vec<Type> = args.iter().map(|&arg| module.ty(arg).clone()).collect();
            let found: Vec<(ExprId, Type)> = args
                .iter()
                .enumerate()
                .filter(|&(_, &arg)| is_open(module, arg))
                .filter_map(|(index, &arg)| Some((arg, argument(def.name, &params, &types, index)?)))
                .collect();
            for (arg, ty) in found {
                if let Expr::Var(var) = &mut module.nodes[arg].expr {
                    var.annotation = ty.clone();
                }
                module.nodes[arg].ty = ty;
                is_new[arg] = true;
            }
        }
        let mut depends = false;
        module.expr(id).for_each_operand(|operand| depends |= is_new[operand]);
        if depends && let Ok(ty) = infer_expr(module, module.expr(id)) {
            is_new[id] = ty != module.nodes[id].ty;
            module.nodes[id].ty = ty;
        }
    }
}

/// Returns the type of an argument, given those of the others.
fn argument(name: &str, params: &Params<'_>, types: &[Type], index: usize) -> Option<Type> {
    let data = types.first()?.as_tensor()?;
    let of = |dims: Vec<Dim>| Some(Type::tensor_of(data.dtype, dims));
    let along = |axis: i64| {
        let axis = if axis < 0 { axis + data.dims.len() as i64 } else { axis };
        data.dims.get(usize::try_from(axis).ok()?).cloned()
    };
    match (name, index) {
        ("nn.dense", 1) => of(vec![fixed(params.opt_int("units")?)?, along(-1)?]),
        ("nn.bias_add" | "nn.prelu", 1) => of(vec![along(params.int("axis"))?]),
        ("nn.batch_norm", 1..=4) | ("nn.instance_norm" | "nn.layer_norm" | "nn.group_norm", 1..=2) => {
            of(vec![along(params.int("axis"))?])
        }
        (_, 1) if name.starts_with("nn.conv") => {
            let (layout, kernel) = (params.string("data_layout"), params.string("kernel_layout"));
            let channels = along(layout.find('C')? as i64)?.fixed()?;
            let groups = usize::try_from(params.int("groups")).ok().filter(|groups| *groups > 0)?;
            let outputs = usize::try_from(params.opt_int("channels")?).ok()?;
            let sizes = params.opt_ints("kernel_size")?;
            // The transposed convolutions over one and three axes name the channels of the data O.
            let (input, output) = match name {
                "nn.conv2d_transpose" => (channels, outputs / groups),
                "nn.conv1d_transpose" | "nn.conv3d_transpose" => (outputs / groups, channels),
                _ => (channels / groups, outputs),
            };
            let mut sizes = sizes.into_iter();
            let dims = kernel.chars().map(|axis| match axis {
                'O' => Some(Dim::Fixed(output)),
                'I' => Some(Dim::Fixed(input)),
                'D' | 'H' | 'W' => fixed(sizes.next()?),
                _ => None,
            });
            of(dims.collect::<Option<_>>()?)
        }
        _ => None,
    }
}

fn fixed(size: i64) -> Option<Dim> {
    usize::try_from(size).ok().map(Dim::Fixed)
}

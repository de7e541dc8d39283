//! Tests of programs so long or so deep that a naive pass would take quadratic time or overflow the stack.

use byoc_core::analysis::verify;
use byoc_ir::ir::{Attrs, Expr, ExprId, Module, OriginId, Source, Type};
use byoc_ir::tensor::{DType, Tensor};
use byoc_ir::typing::Builder;

const LENGTH: usize = 100_000;

/// Maximum number of fields of a tuple.
const WIDTH: usize = 60_000;

/// Builds a program with one parameter and the result of `build_body`.
fn main(build_body: impl FnOnce(&mut Builder, ExprId) -> ExprId) -> Module {
    let mut builder = Builder::default();
    let x = builder.var("x", Type::tensor(DType::F32, &[2]));
    let body = build_body(&mut builder, x);
    builder.define("main", &[x], body).unwrap();
    builder.module
}

fn relu(builder: &mut Builder, x: ExprId) -> ExprId {
    let name = format!("relu{}", builder.module.nodes.len());
    let source = Source { name: name.as_str().into(), op: "Relu".into() };
    builder.origin = Some(builder.module.origins.add_source(source));
    builder.op("nn.relu", &[x], Attrs::none()).unwrap()
}

fn nested_lets(
    builder: &mut Builder,
    x: ExprId,
    mut build_value: impl FnMut(&mut Builder, ExprId) -> ExprId,
) -> ExprId {
    let mut variables = Vec::new();
    let mut value = x;
    for _ in 0..LENGTH {
        value = build_value(builder, value);
        let var = builder.var("v", Type::tensor(DType::F32, &[2]));
        variables.push((var, value));
        value = var;
    }
    variables.into_iter().rev().fold(x, |body, (var, value)| builder.push(Expr::Let { var, value, body }).unwrap())
}

/// Passes after which the live expressions are counted, in the order of the counts.
const PASSES: [&str; 6] = [
    "canonicalize_ops",
    "dead_code_elimination",
    "eliminate_common_subexpr",
    "fold_constant",
    "fold_scale_axis",
    "simplify_inference",
];

/// Runs every pass, and returns the number of live expressions after each pass.
fn live(module: &Module) -> Vec<usize> {
    assert_eq!(verify(module), Ok(()));
    PASSES.iter().map(|pass| count(&super::run(module, pass))).collect()
}

/// Returns the origin of the first live expression of a kind.
fn origin(module: &Module, matches: impl Fn(&Expr) -> bool) -> OriginId {
    let live = module.live();
    let match_found = module.nodes.iter().find(|(id, node)| live[*id] && matches(&node.expr));
    match_found.map(|(_, node)| node.origin).unwrap()
}

#[test]
fn a_chain_on_a_constant() {
    let module = main(|builder, x| {
        let zero = builder.constant(Tensor::scalar(0f32));
        let constant = (0..LENGTH).fold(zero, |value, _| relu(builder, value));
        builder.op("add", &[x, constant], Attrs::none()).unwrap()
    });
    let total = LENGTH + 4;
    assert_eq!(live(&module), [total, total, total, 4, total, total]);
    let folded_module = super::run(&module, "fold_constant");
    let origin = origin(&folded_module, |expr| expr.as_constant().is_some());
    assert_eq!(
        folded_module.origins.get(origin).len(),
        LENGTH,
        "expected the constant to have the origins of all folded operators"
    );
}

#[test]
fn equal_expressions() {
    let module = main(|builder, x| {
        let relus: Vec<ExprId> = (0..WIDTH).map(|_| relu(builder, x)).collect();
        builder.tuple(&relus).unwrap()
    });
    let total = WIDTH + 3;
    assert_eq!(live(&module), [total, total, 4, total, total, total]);
    let merged_module = super::run(&module, "eliminate_common_subexpr");
    let origin = origin(&merged_module, |expr| expr.as_op_call().is_some());
    assert_eq!(
        merged_module.origins.get(origin).len(),
        WIDTH,
        "expected one call with the origins of all merged calls"
    );
}

#[test]
fn a_chain_of_dead_lets() {
    let module = main(|builder, x| nested_lets(builder, x, relu));
    let total = 3 * LENGTH + 2;
    assert_eq!(live(&module), [total, 2, total, total, total, total]);
}

#[test]
fn equal_values_of_nested_lets() {
    let module = main(|builder, x| nested_lets(builder, x, |builder, _| relu(builder, x)));
    let total = 3 * LENGTH + 2;
    assert_eq!(live(&module), [total, 2, 2 * LENGTH + 3, total, total, total]);
}

#[test]
fn equal_expressions_in_branches_side_by_side() {
    let module = main(|builder, x| {
        let cond = builder.constant(Tensor::from_bools(&[], &[true]));
        let branches: Vec<ExprId> = (0..WIDTH)
            .map(|_| {
                let then = relu(builder, x);
                builder.push(Expr::If { cond, then, otherwise: x }).unwrap()
            })
            .collect();
        builder.tuple(&branches).unwrap()
    });
    let total = 2 * WIDTH + 4;
    assert_eq!(live(&module), [total, total, total, WIDTH + 3, total, total]);
}

#[test]
fn lets_of_constants() {
    let module = main(|builder, x| {
        let zero = builder.constant(Tensor::from_slice(&[2], &[0f32, 1.0]));
        nested_lets(builder, x, |builder, value| relu(builder, if value == x { zero } else { value }))
    });
    let total = 3 * LENGTH + 3;
    assert_eq!(live(&module), [total, 2, total, 2, total, total]);
}

#[test]
fn normal_forms() {
    let chain = main(|builder, x| (0..LENGTH).fold(x, |value, _| relu(builder, value)));
    assert_eq!(count(&super::run(&chain, "to_a_normal_form")), 3 * LENGTH + 2);

    let lets = main(|builder, x| nested_lets(builder, x, relu));
    assert_eq!(count(&super::run(&lets, "to_a_normal_form")), 3 * LENGTH + 2);

    // Lets nested as the values of lets: in the normal form, a variable that was bound to a let is bound to another
    // variable.
    let values = main(|builder, x| {
        (0..LENGTH).fold(x, |value, _| {
            let var = builder.var("v", Type::tensor(DType::F32, &[2]));
            let body = relu(builder, var);
            builder.push(Expr::Let { var, value, body }).unwrap()
        })
    });
    assert_eq!(count(&super::run(&values, "to_a_normal_form")), 5 * LENGTH + 2);

    let branches = main(|builder, x| {
        let cond = builder.constant(Tensor::from_bools(&[], &[true]));
        (0..LENGTH).fold(x, |then, _| {
            let otherwise = relu(builder, x);
            builder.push(Expr::If { cond, then, otherwise }).unwrap()
        })
    });
    // Each level has an if and a relu, each bound to a variable by a let.
    assert_eq!(count(&super::run(&branches, "to_a_normal_form")), 6 * LENGTH + 3);
}

#[test]
fn a_chain_after_a_convolution() {
    let mut builder = Builder::default();
    let x = builder.var("x", Type::tensor(DType::F32, &[1, 2, 2, 2]));
    let weight = builder.constant(Tensor::from_slice(&[2, 2, 1, 1], &[1f32; 4]));
    let conv = builder.op("nn.conv2d", &[x, weight], Attrs::none()).unwrap();
    let body = (0..LENGTH).fold(conv, |value, _| relu(&mut builder, value));
    builder.define("main", &[x], body).unwrap();
    // One transform before the convolution, one for the weights, and one at the end of the chain.
    let converted = super::run(&builder.module, "convert_layout");
    assert_eq!(count(&converted), count(&builder.module) + 3);
}

fn count(module: &Module) -> usize {
    module.live().iter().filter(|(_, live)| **live).count()
}

//! Tests of the pattern API: match, partition, rewrite.

use super::{assert_equal, module, print_module};
use byoc_core::pass::defuse_ops;
use byoc_core::pass::{Callback, Site, rewrite};
use byoc_core::pattern::{Pattern, parse_pattern};
use byoc_ir::ir::{AttrValue, Attrs, Expr, ExprId, Module, Origins, Type};
use byoc_ir::tensor::DType;
use byoc_ir::typing::Builder;

fn pattern(text: &str) -> Pattern {
    parse_pattern(text).unwrap_or_else(|errors| panic!("{errors:?}")).0
}

type Rule<'r> = dyn FnMut(&mut Site<'_>) -> Result<ExprId, Box<byoc_ir::diag::Diagnostic>> + 'r;

fn rewrite_source(pattern: &Pattern, source: &str, is_once: bool, rule: &mut Rule<'_>) -> Module {
    let callback = Callback { pattern, require_type: false, rewrite_once: is_once, function: rule };
    rewrite(&mut [callback], &module(source)).unwrap_or_else(|d| panic!("{d}"))
}

/// Returns the first argument of the call at a site.
fn first_argument(site: &Site<'_>) -> ExprId {
    match site.builder.module.expr(site.after) {
        Expr::Call(call) => call.args[0],
        other => panic!("{other:?}"),
    }
}

#[test]
fn rewrites_to_a_fixed_point() {
    let double_relu = pattern("nn.relu(nn.relu(*))");
    let source = "def @main(%x: T) { nn.relu(nn.relu(nn.relu(nn.relu(%x)))) }";
    let result = rewrite_source(&double_relu, source, false, &mut |site| Ok(first_argument(site)));
    assert_equal(&result, &module("def @main(%x: T) { nn.relu(%x) }"));
    let result = rewrite_source(&double_relu, source, true, &mut |site| Ok(first_argument(site)));
    assert_equal(&result, &module("def @main(%x: T) { nn.relu(nn.relu(%x)) }"));
}

#[test]
fn callback_sees_rewritten_operands() {
    // x * 1 and 1 * x both become x, also inside the operand of another match.
    let neutral_factor = pattern("multiply(*x, const(1f))");
    let x = neutral_factor
        .post_order()
        .into_iter()
        .find(|&id| matches!(neutral_factor.nodes[id], byoc_core::pattern::PatternNode::Wildcard));
    let result = rewrite_source(
        &neutral_factor,
        "def @main(%x: T) { multiply(exp(multiply(1f, %x)), 1f) }",
        false,
        &mut |site| Ok(site.get(x.expect("expected a wildcard")).expect("expected an expression")),
    );
    assert_equal(&result, &module("def @main(%x: T) { exp(%x) }"));
}

#[test]
fn new_expressions_are_typed_and_change_the_types_of_their_users() {
    let exp_pattern = pattern("exp(*)");
    let result = rewrite_source(
        &exp_pattern,
        "def @main(%x: T) { cast(tanh(exp(%x)), dtype=\"float32\") }",
        true,
        &mut |site| {
            let attrs = Attrs::new([("dtype", AttrValue::from(DType::F16))]);
            let replacement = site.after;
            site.builder.op("cast", &[replacement], attrs)
        },
    );
    assert_equal(
        &result,
        &module("def @main(%x: T) { cast(tanh(cast(exp(%x), dtype=\"float16\")), dtype=\"float32\") }"),
    );
    let float16_count = result.nodes.iter().filter(|(_, node)| node.ty.to_string() == "Tensor[(10, 10), float16]");
    assert_eq!(float16_count.count(), 2, "{}", print_module(&result));
}

#[test]
fn several_callbacks_take_turns() {
    let (a, b) = (pattern("exp(*)"), pattern("tanh(*)"));
    let mut to_tanh = |site: &mut Site<'_>| {
        let arg = first_argument(site);
        site.builder.op("tanh", &[arg], Attrs::none())
    };
    let mut to_relu = |site: &mut Site<'_>| {
        let arg = first_argument(site);
        site.builder.op("nn.relu", &[arg], Attrs::none())
    };
    let mut callbacks = [
        Callback { pattern: &a, require_type: true, rewrite_once: false, function: &mut to_tanh },
        Callback { pattern: &b, require_type: true, rewrite_once: false, function: &mut to_relu },
    ];
    let result = rewrite(&mut callbacks, &module("def @main(%x: T) { exp(tanh(%x)) }"));
    assert_equal(&result.expect("rewriting terminates"), &module("def @main(%x: T) { nn.relu(nn.relu(%x)) }"));
}

#[test]
fn rejects_endless_rewriting() {
    let either_pattern = pattern("nn.relu(*) | tanh(*)");
    let program = module("def @main(%x: T) { nn.relu(%x) }");
    let error = |rule: &mut Rule<'_>| {
        let callback = Callback { pattern: &either_pattern, require_type: false, rewrite_once: false, function: rule };
        rewrite(&mut [callback], &program).expect_err("expected an error for nonterminating rewriting")
    };
    let relu = byoc_ir::op::lookup("nn.relu");
    let alternating_error = error(&mut |site| {
        let arg = first_argument(site);
        let is_relu = site.builder.module.expr(site.after).as_op_call().map(|(op, _)| op) == relu;
        site.builder.op(if is_relu { "tanh" } else { "nn.relu" }, &[arg], Attrs::none())
    });
    assert_eq!(alternating_error.code.to_string(), "E0317");
    assert!(alternating_error.message.contains("100 rounds"), "{alternating_error}");
    let doubling_error = error(&mut |site| {
        let replacement = site.after;
        site.builder.op("nn.relu", &[replacement], Attrs::none())
    });
    assert_eq!(doubling_error.code.to_string(), "E0317");
    assert!(doubling_error.message.contains("expressions"), "{doubling_error}");
}

#[test]
fn skips_overlapping_and_escaping_matches() {
    let pair = pattern("exp(exp(*))");
    let source = "def @main(%x: T) { %0 = exp(%x); %1 = exp(%0); add(%0, %1) }";
    let result =
        rewrite_source(&pair, source, true, &mut |_| panic!("expected no match: the inner value is used outside"));
    assert_equal(&result, &module(source));
}

#[test]
fn partition_calls_check_and_sets_attributes() {
    let relu = pattern("nn.relu(add(*, *))");
    let program = module("def @main(%x: T, %y: T) { nn.relu(add(nn.relu(add(%x, %y)), %x)) }");
    let attrs = Attrs::new([("Kind", AttrValue::from("pair"))]);
    let mut arguments = Vec::new();
    let mut check = |module: &Module, root: ExprId| {
        arguments.push(module.ty(root).to_string());
        arguments.len() == 1
    };
    let result = relu.partition(&program, &attrs, &mut check, &mut Vec::new()).unwrap_or_else(|d| panic!("{d}"));
    assert_eq!(arguments, ["Tensor[(10, 10), float32]"; 2]);
    assert_equal(
        &result,
        &module(
            "def @main(%x: T, %y: T) { %0 = nn.relu(add(%x, %y));
               fn (%p: T, %q: T, PartitionedFromPattern=\"add_nn.relu_\", Kind=\"pair\") { nn.relu(add(%p, %q)) }(%0, %x) }",
        ),
    );
    let mut warnings = Vec::new();
    let function_pattern = pattern("fn (..) { * }");
    let repeated_result = function_pattern
        .partition(&program, &attrs, &mut |_, _| true, &mut warnings)
        .expect("expected an unchanged module");
    assert_equal(&repeated_result, &program);
    assert_eq!(warnings.len(), 1);
}

#[test]
fn recursive_pattern_matches_a_chain_of_100_000() {
    let mut builder = Builder::default();
    let x = builder.var("x", Type::tensor(DType::F32, &[2]));
    let mut last = builder.op("exp", &[x], Attrs::none()).expect("the program is well typed");
    for _ in 0..100_000 {
        last = builder.op("nn.relu", &[last], Attrs::none()).expect("the program is well typed");
    }
    let last = builder.op("tanh", &[last], Attrs::none()).expect("the program is well typed");
    builder.define("main", &[x], last).expect("the program is well typed");
    let chain = pattern("let c = nn.relu(c | *); c");
    let result = chain
        .partition(&builder.module, &Attrs::none(), &mut |_, _| true, &mut Vec::new())
        .unwrap_or_else(|d| panic!("{d}"));
    let calls = |module: &Module| {
        let main = module.main().expect("the module has a main");
        module.post_order(main.body, |_, expr| expr.as_function().is_none()).len()
    };
    // The five expressions are the variable, exp, the function, the call to the function, and tanh.
    assert_eq!(calls(&result), 5);
}

#[test]
fn rejects_duplicate_parameters_of_a_fused_function() {
    let mut builder = Builder::default();
    let ty = Type::tensor(DType::F32, &[2]);
    let (a, b) = (builder.var("p0", ty.clone()), builder.var("p0", ty.clone()));
    let sum = builder.op("add", &[a, b], Attrs::none()).expect("the program is well typed");
    let attrs = Attrs::new([("Primitive", AttrValue::Int(1))]);
    let fused_function = builder.function(&[a, b], sum, Type::Unknown, attrs).expect("the program is well typed");
    let x = builder.var("x", ty);
    let call =
        builder.module.push_typed(Expr::call(fused_function, [x, x]), builder.module.ty(sum).clone(), Origins::none());
    builder.define("main", &[x], call).expect("the program is well typed");
    let error = defuse_ops(&builder.module).expect_err("expected an error for duplicate parameters");
    assert_eq!((error.code.to_string().as_str(), error.message.contains("%p0")), ("E0345", true));
}

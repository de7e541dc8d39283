use super::{assert_equal, check, module, module_with, passes, patterns, print_module};
use byoc_core::pass::{Candidate, Judge, Question, Refusal, RefusalCode, Verdict, merge_composite};
use byoc_ir::tensor::{DType, Tensor};
use std::sync::Arc;

fn merge(table: &str, before: &str, after: &str) {
    check(&["merge_composite"], &patterns(table), before, after);
}

fn assert_unchanged(table: &str, source: &str) {
    merge(table, source, source);
}

#[test]
fn m1_simple_merge() {
    merge(
        "add_relu: nn.relu(add(*, *))",
        "def @main(%a: T, %b: T) { %0 = add(%a, %b); nn.relu(%0) }",
        r#"def @main(%a: T, %b: T) {
            %1 = fn (%p: T, %q: T, PartitionedFromPattern="add_nn.relu_", Composite="add_relu") {
                %0 = add(%p, %q);
                nn.relu(%0)
            };
            %1(%a, %b)
        }"#,
    );
}

#[test]
fn parameters_are_named_by_candidate_and_position() {
    let before = module("def @main(%a: T, %b: T) { nn.relu(add(nn.relu(add(%a, %b)), %a)) }");
    let text = print_module(&passes(&before, &["merge_composite"], &patterns("add_relu: nn.relu(add(*, *))")));
    for name in ["%FunctionVar_0_0", "%FunctionVar_0_1", "%FunctionVar_1_0", "%FunctionVar_1_1"] {
        assert!(text.contains(name), "expected {name} in {text}");
    }
}

#[test]
fn m2_shared_wildcards_and_two_matches() {
    merge(
        "add_sub_mul: multiply(add(*x, *y), subtract(*x, *y))",
        "def @main(%a: T, %b: T, %c: T) {
            %0 = add(%a, %b); %1 = subtract(%a, %b); %2 = multiply(%0, %1);
            %3 = add(%c, %2); %4 = subtract(%c, %2); %5 = multiply(%3, %4);
            nn.relu(%5)
        }",
        r#"def @main(%a: T, %b: T, %c: T) {
            %2 = fn (%p0: T, %p1: T, PartitionedFromPattern="add_subtract_multiply_", Composite="add_sub_mul") {
                %0 = add(%p0, %p1); %1 = subtract(%p0, %p1); multiply(%0, %1) };
            %3 = %2(%a, %b);
            %6 = fn (%q0: T, %q1: T, PartitionedFromPattern="add_subtract_multiply_", Composite="add_sub_mul") {
                %4 = add(%q0, %q1); %5 = subtract(%q0, %q1); multiply(%4, %5) };
            %7 = %6(%c, %3);
            nn.relu(%7)
        }"#,
    );
}

#[test]
fn m5_optional_operator() {
    merge(
        "layer: nn.bias_add(nn.conv2d(*, *), *) ? nn.relu",
        "def @main(%x: Tensor[(1, 3, 7, 7), float32], %w1: Tensor[(3, 3, 1, 1), float32], %w2: Tensor[(3, 3, 1, 1), float32],
                   %b1: Tensor[(3), float32], %b2: Tensor[(3), float32]) {
            %0 = nn.conv2d(%x, %w1, padding=[0, 0, 0, 0], kernel_size=[1, 1]); %1 = nn.bias_add(%0, %b1); %2 = nn.relu(%1);
            %3 = nn.conv2d(%2, %w2, padding=[0, 0, 0, 0], kernel_size=[1, 1]);
            nn.bias_add(%3, %b2)
        }",
        r#"def @main(%x: Tensor[(1, 3, 7, 7), float32], %w1: Tensor[(3, 3, 1, 1), float32], %w2: Tensor[(3, 3, 1, 1), float32],
                   %b1: Tensor[(3), float32], %b2: Tensor[(3), float32]) {
            %3 = fn (%p: Tensor[(1, 3, 7, 7), float32], %q: Tensor[(3, 3, 1, 1), float32], %r: Tensor[(3), float32],
                     PartitionedFromPattern="nn.conv2d_nn.bias_add_nn.relu_", Composite="layer") {
                %0 = nn.conv2d(%p, %q, padding=[0, 0, 0, 0], kernel_size=[1, 1]); %1 = nn.bias_add(%0, %r); nn.relu(%1) };
            %4 = %3(%x, %w1, %b1);
            %6 = fn (%s: Tensor[(1, 3, 7, 7), float32], %t: Tensor[(3, 3, 1, 1), float32], %u: Tensor[(3), float32],
                     PartitionedFromPattern="nn.conv2d_nn.bias_add_", Composite="layer") {
                %5 = nn.conv2d(%s, %t, padding=[0, 0, 0, 0], kernel_size=[1, 1]); nn.bias_add(%5, %u) };
            %6(%4, %w2, %b2)
        }"#,
    );
}

const M6: &str = "def @main(%input_1: T, %input_2: T) { %0 = add(%input_1, %input_2); %1 = abs(%0); nn.relu(%1) }";

#[test]
fn m6_table_order_decides() {
    let (a, b, c) = ("A: nn.relu(abs(add(*, *)))\n", "B: abs(add(*, *))\n", "C: nn.relu(abs(*))\n");
    merge(
        &[a, b, c].concat(),
        M6,
        r#"def @main(%x: T, %y: T) {
            %2 = fn (%p: T, %q: T, PartitionedFromPattern="add_abs_nn.relu_", Composite="A") {
                %0 = add(%p, %q); %1 = abs(%0); nn.relu(%1) };
            %2(%x, %y)
        }"#,
    );
    merge(
        &[b, c, a].concat(),
        M6,
        r#"def @main(%x: T, %y: T) {
            %1 = fn (%p: T, %q: T, PartitionedFromPattern="add_abs_", Composite="B") { %0 = add(%p, %q); abs(%0) };
            %2 = %1(%x, %y);
            nn.relu(%2)
        }"#,
    );
    merge(
        &[c, a, b].concat(),
        M6,
        r#"def @main(%x: T, %y: T) {
            %0 = add(%x, %y);
            %2 = fn (%p: T, PartitionedFromPattern="abs_nn.relu_", Composite="C") { %1 = abs(%p); nn.relu(%1) };
            %2(%0)
        }"#,
    );
}

/// Judge that accepts the candidates for which a closure returns true, and counts the batches of candidates.
struct Check<F>(F, usize);

impl<F: FnMut(&byoc_ir::ir::Module, &Candidate) -> bool> Judge for Check<F> {
    fn judge(&mut self, module: &byoc_ir::ir::Module, _: Question<'_>, candidates: &[Candidate]) -> Vec<Verdict> {
        self.1 += 1;
        let verdict = Verdict::Refused(Refusal::new(RefusalCode::UnsupportedLayout, "unsupported layout"));
        candidates.iter().map(|c| if (self.0)(module, c) { Verdict::Supported } else { verdict.clone() }).collect()
    }
}

#[test]
fn m9_judge_sees_the_original_call() {
    let before = module(
        "def @main(%x: Tensor[(1, 7, 7, 3), float32], %w: Tensor[(8, 3, 3, 3), float32], %b: Tensor[(7), float32]) {
            nn.relu(nn.bias_add(nn.conv2d(%x, %w, data_layout=\"NHWC\", kernel_layout=\"OIHW\", kernel_size=[3, 3], padding=[1, 1, 1, 1]), %b))
        }",
    );
    let table = super::table("conv_bias_relu: nn.relu(nn.bias_add(nn.conv2d(*, *), *))");
    for (layout, is_accepted) in [("NCHW", false), ("NHWC", true)] {
        let mut judge = Check(
            |module: &byoc_ir::ir::Module, candidate: &Candidate| {
                let mut node = candidate.outputs[0];
                for _ in 0..2 {
                    node = module.expr(node).as_call().unwrap().args[0];
                }
                module.expr(node).as_call().unwrap().attrs.str("data_layout").unwrap_or("NCHW") == layout
            },
            0,
        );
        let mut refusals = Vec::new();
        let after = merge_composite(&before, &table, &mut judge, &mut |_, refusal| refusals.push(refusal), &mut vec![])
            .unwrap();
        assert_eq!(judge.1, 1, "expected one batch for the entry");
        let text = print_module(&after);
        assert_eq!(text.contains("PartitionedFromPattern=\"nn.conv2d_nn.bias_add_nn.relu_\""), is_accepted, "{text}");
        assert_eq!(refusals.is_empty(), is_accepted);
        if !is_accepted {
            assert_equal(&after, &before);
        }
    }
}

#[test]
fn m13_escaping_value() {
    assert_unchanged(
        "conv_relu: nn.relu(nn.conv2d(*, *))",
        "def @main(%i: Tensor[(1, 3, 7, 7), float32], %w: Tensor[(3, 3, 1, 1), float32]) {
            %0 = nn.conv2d(%i, %w, kernel_size=[1, 1]); %1 = nn.relu(%0); add(%1, %0)
        }",
    );
}

#[test]
fn an_escaping_value_that_flows_back_into_the_root_is_computed_twice() {
    // abs(%0) is outside the pattern, but flows only into the other argument of the root.
    merge(
        "twice: add(nn.relu(exp(*)), *)",
        "def @main(%a: T) { %0 = exp(%a); %1 = nn.relu(%0); %2 = abs(%0); add(%1, %2) }",
        r#"def @main(%a: T) {
            %0 = exp(%a); %1 = abs(%0);
            %4 = fn (%p: T, %q: T, PartitionedFromPattern="exp_nn.relu_add_", Composite="twice") {
                %2 = exp(%p); %3 = nn.relu(%2); add(%3, %q) };
            %4(%a, %1)
        }"#,
    );
}

#[test]
fn overlapping_matches_go_to_the_later_root() {
    // The two matches of relu(abs(relu)) overlap in the middle relu; the match closer to the result is tried first.
    merge(
        "rar: nn.relu(abs(nn.relu(*)))",
        "def @main(%a: T) { nn.relu(abs(nn.relu(abs(nn.relu(%a))))) }",
        r#"def @main(%a: T) {
            %0 = nn.relu(%a); %1 = abs(%0);
            %4 = fn (%p: T, PartitionedFromPattern="nn.relu_abs_nn.relu_", Composite="rar") {
                %2 = nn.relu(%p); %3 = abs(%2); nn.relu(%3) };
            %4(%1)
        }"#,
    );
}

#[test]
fn the_result_of_the_function_is_an_escape() {
    assert_unchanged("pair: nn.relu(abs(*))", "def @main(%a: T) { %0 = abs(%a); %1 = nn.relu(%0); (%0, %1) }");
}

#[test]
fn commutative_arguments_keep_the_order_of_the_pattern() {
    merge(
        "bias: add(nn.relu(*), const)",
        "def @main(%a: T) { add(2f, nn.relu(%a)) }",
        r#"def @main(%a: T) {
            %1 = fn (%p: T, PartitionedFromPattern="nn.relu_add_", Composite="bias") { %0 = nn.relu(%p); add(2f, %0) };
            %1(%a)
        }"#,
    );
    assert_unchanged("first: subtract(nn.relu(*), *)", "def @main(%a: T, %b: T) { subtract(%b, nn.relu(%a)) }");
}

#[test]
fn one_parameter_for_each_distinct_input() {
    merge(
        "square: multiply(nn.relu(*), *)",
        "def @main(%a: T) { multiply(nn.relu(%a), %a) }",
        r#"def @main(%a: T) {
            %1 = fn (%p: T, PartitionedFromPattern="nn.relu_multiply_", Composite="square") { %0 = nn.relu(%p); multiply(%0, %p) };
            %1(%a)
        }"#,
    );
}

#[test]
fn m16_constants_are_lifted_or_embedded() {
    let constants = [Arc::new(Tensor::zeros(DType::F32, &[3, 3, 1, 1]).unwrap())];
    let program = |weight: &str| {
        format!(
            "def @main(%x: Tensor[(1, 3, 7, 7), float32], %w: Tensor[(3, 3, 1, 1), float32], %b: Tensor[(3), float32]) {{
                nn.relu(nn.bias_add(nn.conv2d(%x, {weight}, kernel_size=[1, 1]), %b))
            }}"
        )
    };
    let label = r#"PartitionedFromPattern="nn.conv2d_nn.bias_add_nn.relu_", Composite="p""#;
    let lifted = |weight: &str| {
        format!(
            "def @main(%x: Tensor[(1, 3, 7, 7), float32], %w: Tensor[(3, 3, 1, 1), float32], %b: Tensor[(3), float32]) {{
                %2 = fn (%p: Tensor[(1, 3, 7, 7), float32], %q: Tensor[(3, 3, 1, 1), float32], %r: Tensor[(3), float32], {label}) {{
                    %0 = nn.conv2d(%p, %q, kernel_size=[1, 1]); %1 = nn.bias_add(%0, %r); nn.relu(%1) }};
                %2(%x, {weight}, %b)
            }}"
        )
    };
    let embedded = format!(
        "def @main(%x: Tensor[(1, 3, 7, 7), float32], %w: Tensor[(3, 3, 1, 1), float32], %b: Tensor[(3), float32]) {{
            %2 = fn (%p: Tensor[(1, 3, 7, 7), float32], %r: Tensor[(3), float32], {label}) {{
                %0 = nn.conv2d(%p, meta[relay.Constant][0], kernel_size=[1, 1]); %1 = nn.bias_add(%0, %r); nn.relu(%1) }};
            %2(%x, %b)
        }}"
    );
    let (variable, constant) = ("%w", "meta[relay.Constant][0]");
    let cases = [
        ("*", Some(lifted(variable)), Some(lifted(constant))),
        ("var", Some(lifted(variable)), None),
        ("const", None, Some(embedded.clone())),
        ("(var | const)", Some(lifted(variable)), Some(embedded.clone())),
        ("(const | var)", Some(lifted(variable)), Some(embedded)),
    ];
    for (weight, of_variable, of_constant) in cases {
        let options = patterns(&format!("p: nn.relu(nn.bias_add(nn.conv2d(*, {weight}), *))"));
        for (variant, expected) in [(variable, of_variable), (constant, of_constant)] {
            let before = module_with(&program(variant), &constants);
            let expected = expected.map_or(before.clone(), |text| module_with(&text, &constants));
            assert_equal(&passes(&before, &["merge_composite"], &options), &expected);
        }
    }
}

#[test]
fn a_literal_embeds_the_equal_constant() {
    merge(
        "scaled: multiply(*, const(2f))",
        "def @main(%a: T) { multiply(multiply(%a, 3f), 2f) }",
        r#"def @main(%a: T) {
            %0 = multiply(%a, 3f);
            %1 = fn (%p: T, PartitionedFromPattern="multiply_", Composite="scaled") { multiply(%p, 2f) };
            %1(%0)
        }"#,
    );
}

#[test]
fn processes_all_functions_except_opaque_ones() {
    merge(
        "r: nn.relu(abs(*))",
        r#"def @main(%a: T) { nn.relu(abs(%a)) }
           def @other(%a: T) { nn.relu(abs(%a)) }
           def @taken(%a: T, Compiler="x") { nn.relu(abs(%a)) }"#,
        r#"def @main(%a: T) { %1 = fn (%p: T, PartitionedFromPattern="abs_nn.relu_", Composite="r") { %0 = abs(%p); nn.relu(%0) }; %1(%a) }
           def @other(%a: T) { %3 = fn (%p: T, PartitionedFromPattern="abs_nn.relu_", Composite="r") { %2 = abs(%p); nn.relu(%2) }; %3(%a) }
           def @taken(%a: T, Compiler="x") { nn.relu(abs(%a)) }"#,
    );
}

#[test]
fn matches_inside_branches_and_loops() {
    merge(
        "r: nn.relu(abs(*))",
        "def @main(%c: bool, %a: T) { if (%c) { nn.relu(abs(%a)) } else { let %x = nn.relu(%a); abs(%x) } }",
        r#"def @main(%c: bool, %a: T) {
            if (%c) {
                %1 = fn (%p: T, PartitionedFromPattern="abs_nn.relu_", Composite="r") { %0 = abs(%p); nn.relu(%0) };
                %1(%a)
            } else { let %x = nn.relu(%a); abs(%x) }
        }"#,
    );
}

#[test]
fn tuples_and_projections() {
    merge(
        "cat: concatenate((nn.relu(*), *))\nfirst: split(*).0",
        "def @main(%a: T, %b: T) { %0 = split(%a, indices_or_sections=2); (concatenate((nn.relu(%a), %b)), %0.1) }",
        r#"def @main(%a: T, %b: T) {
            %2 = fn (%p: T, %q: T, PartitionedFromPattern="nn.relu_Tuple_concatenate_", Composite="cat") {
                %0 = nn.relu(%p); %1 = (%0, %q); concatenate(%1) };
            %3 = %2(%a, %b);
            %4 = split(%a, indices_or_sections=2);
            (%3, %4.1)
        }"#,
    );
}

#[test]
fn any_arguments_and_any_fields_become_inputs() {
    merge(
        "cat: concatenate((..))\nany: clip(..)",
        "def @main(%a: T, %b: T) { concatenate((clip(%a, a_min=0f, a_max=6f), %b)) }",
        r#"def @main(%a: T, %b: T) {
            %0 = fn (%s: T, PartitionedFromPattern="clip_", Composite="any") { clip(%s, a_min=0f, a_max=6f) };
            %1 = %0(%a);
            %3 = fn (%p: T, %q: T, PartitionedFromPattern="Tuple_concatenate_", Composite="cat") {
                %2 = (%p, %q); concatenate(%2) };
            %3(%1, %b)
        }"#,
    );
}

#[test]
fn a_later_pattern_may_call_an_earlier_composite() {
    merge(
        "inner: nn.relu(*)\nouter: abs(call(fn{Composite=\"inner\"}(..) { nn.relu(*) }; *))",
        "def @main(%a: T) { abs(nn.relu(%a)) }",
        r#"def @main(%a: T) {
            %1 = fn (%p: T, PartitionedFromPattern="nn.relu_FunctionCall_abs_", Composite="outer") {
                %0 = fn (%q: T, PartitionedFromPattern="nn.relu_", Composite="inner") { nn.relu(%q) };
                %2 = %0(%p);
                abs(%2)
            };
            %1(%a)
        }"#,
    );
}

#[test]
fn a_bare_function_pattern_warns_and_changes_nothing() {
    let before = module("def @main(%a: T) { nn.relu(%a) }");
    let mut warnings = Vec::new();
    let table = super::table("f: fn (..) { nn.relu(*) }");
    let after =
        merge_composite(&before, &table, &mut byoc_core::pass::AcceptAll, &mut |_, _| {}, &mut warnings).unwrap();
    assert_equal(&after, &before);
    assert_eq!(warnings.len(), 1);
    assert_eq!(warnings[0].code.to_string(), "E0316");
}

#[test]
fn a_dominator_takes_the_whole_diamond() {
    merge(
        "fuzzy: dominates(nn.conv2d(*, *), op{TOpPattern=0}, add(*, *))",
        "def @main(%x: Tensor[(1, 3, 7, 7), float32], %w: Tensor[(3, 3, 1, 1), float32]) {
            %0 = nn.conv2d(%x, %w, kernel_size=[1, 1]); %1 = nn.relu(%0); %2 = nn.relu(%1); %3 = abs(%0); add(%2, %3)
        }",
        r#"def @main(%x: Tensor[(1, 3, 7, 7), float32], %w: Tensor[(3, 3, 1, 1), float32]) {
            %4 = fn (%p: Tensor[(1, 3, 7, 7), float32], %q: Tensor[(3, 3, 1, 1), float32],
                     PartitionedFromPattern="nn.conv2d_nn.relu_nn.relu_abs_add_", Composite="fuzzy") {
                %0 = nn.conv2d(%p, %q, kernel_size=[1, 1]); %1 = nn.relu(%0); %2 = nn.relu(%1); %3 = abs(%0); add(%2, %3) };
            %4(%x, %w)
        }"#,
    );
}

/// Tests that a residual with a bias becomes a composite whose parameters include the operands off the paths.
#[test]
fn a_post_dominator_takes_a_residual_with_a_bias() {
    let types = "%x: Tensor[(1, 3, 7, 7), float32], %w: Tensor[(3, 3, 1, 1), float32], %v: Tensor[(3), float32]";
    merge(
        "residual: post_dominates(nn.relu(*), nn.conv2d(*, *) | nn.bias_add(*, *), add(*, *))",
        &format!(
            "def @main({types}) {{
                %0 = nn.relu(%x); %1 = nn.conv2d(%0, %w, kernel_size=[1, 1]); %2 = nn.bias_add(%1, %v); add(%2, %0)
            }}"
        ),
        &format!(
            r#"def @main({types}) {{
                %4 = fn (%p: Tensor[(1, 3, 7, 7), float32], %q: Tensor[(3, 3, 1, 1), float32], %r: Tensor[(3), float32],
                         PartitionedFromPattern="nn.relu_nn.conv2d_nn.bias_add_add_", Composite="residual") {{
                    %0 = nn.relu(%p); %1 = nn.conv2d(%0, %q, kernel_size=[1, 1]); %2 = nn.bias_add(%1, %r); add(%2, %0) }};
                %4(%x, %w, %v)
            }}"#
        ),
    );
    // A chain that matches the path but does not begin at the parent stays outside the composite.
    merge(
        "free: post_dominates(abs(*), op{TOpPattern=0}, add(*, *))",
        "def @main(%a: T, %b: T) { %0 = abs(%a); %1 = nn.relu(%b); %2 = exp(%1); add(tanh(%0), %2) }",
        r#"def @main(%a: T, %b: T) {
            %1 = nn.relu(%b); %2 = exp(%1);
            %4 = fn (%p: T, %q: T, PartitionedFromPattern="abs_tanh_add_", Composite="free") {
                %0 = abs(%p); add(tanh(%0), %q) };
            %4(%a, %2)
        }"#,
    );
}

use super::{assert_equal, check, module, module_with, passes, targets};
use byoc_core::pass::PassOptions;
use byoc_core::pass::manager::{RunOptions, run};
use byoc_ir::tensor::{DType, Tensor};
use std::sync::Arc;

fn partition(before: &str, after: &str) {
    check(&["partition_graph"], &PassOptions::default(), before, after);
}

fn attrs(target: &str, number: u32) -> String {
    format!(r#"Primitive=1, Inline=1, Compiler="{target}", global_symbol="tvmgen_default_{target}_main_{number}""#)
}

#[test]
fn p1_single_operator_and_the_rest() {
    let attrs = attrs("ccompiler", 0);
    partition(
        "def @main(%x: T, %y: T) { %0 = E[ccompiler](add(B[ccompiler](%x), B[ccompiler](%y))); %1 = log(%0); %2 = exp(%0); %3 = (%1, %2); concatenate(%3) }",
        &format!(
            "def @main(%x: T, %y: T) {{ %0 = @tvmgen_default_ccompiler_main_0(%x, %y); %1 = log(%0); %2 = exp(%0); %3 = (%1, %2); concatenate(%3) }}
             def @tvmgen_default_ccompiler_main_0(%ccompiler_0_i0: T, %ccompiler_0_i1: T, {attrs}) -> T {{ add(%ccompiler_0_i0, %ccompiler_0_i1) }}"
        ),
    );
}

const BN: &str = "%gamma: Tensor[(16), float32], %beta: Tensor[(16), float32], %mean: Tensor[(16), float32], %var: Tensor[(16), float32]";

#[test]
fn p5_three_outputs() {
    let head = format!("%data: Tensor[(1, 3, 8, 8), float32], %weight: Tensor[(16, 3, 3, 3), float32], {BN}");
    let attrs = attrs("test_target", 0);
    partition(
        &format!(
            "def @main({head}) {{
                %0 = nn.conv2d(B[test_target](%data), B[test_target](%weight), padding=[1, 1, 1, 1], channels=16, kernel_size=[3, 3]);
                %1 = nn.batch_norm(%0, B[test_target](%gamma), B[test_target](%beta), B[test_target](%mean), B[test_target](%var));
                %2 = %1.0; %3 = nn.relu(%2); %4 = %1.1; %5 = %1.2;
                (E[test_target](%3), abs(E[test_target](%4)), abs(E[test_target](%5)))
            }}"
        ),
        &format!(
            "def @tvmgen_default_test_target_main_0({head}, {attrs}) {{
                %0 = nn.conv2d(%data, %weight, padding=[1, 1, 1, 1], channels=16, kernel_size=[3, 3]);
                %1 = nn.batch_norm(%0, %gamma, %beta, %mean, %var); %2 = %1.0; %3 = nn.relu(%2); %4 = %1.1; %5 = %1.2;
                (%3, %4, %5)
            }}
            def @main({head}) {{
                %6 = @tvmgen_default_test_target_main_0(%data, %weight, %gamma, %beta, %mean, %var);
                %7 = %6.0; %8 = %6.1; %9 = abs(%8); %10 = %6.2; %11 = abs(%10); (%7, %9, %11)
            }}"
        ),
    );
}

#[test]
fn p7_an_input_used_twice_is_one_parameter() {
    let (b, e) = ("B[ccompiler]", "E[ccompiler]");
    check(
        &["merge_compiler_regions", "partition_graph"],
        &PassOptions::default(),
        &format!(
            "def @main(%x: T, %y: T, %z: T) {{
                %0 = add(%x, %y); %1 = {e}(subtract({b}(%0), {b}(%z))); %2 = {e}(log({b}(%0))); {e}(multiply({b}(%2), {b}(%1)))
            }}"
        ),
        &format!(
            "def @main(%x: T, %y: T, %z: T) {{ %0 = add(%x, %y); @tvmgen_default_ccompiler_main_0(%0, %z) }}
             def @tvmgen_default_ccompiler_main_0(%p: T, %q: T, {}) {{ %1 = log(%p); %2 = subtract(%p, %q); multiply(%1, %2) }}",
            attrs("ccompiler", 0)
        ),
    );
    check(
        &["merge_compiler_regions", "partition_graph"],
        &PassOptions::default(),
        &format!(
            "def @main(%x: T, %y: T, %z: T) {{
                %0 = add(%x, %y); %1 = {e}(subtract({b}(%0), {b}(%z))); %2 = {e}(log({b}(%0))); multiply(%2, %1)
            }}"
        ),
        &format!(
            "def @main(%x: T, %y: T, %z: T) {{ %0 = add(%x, %y);
                multiply(@tvmgen_default_ccompiler_main_0(%0), @tvmgen_default_ccompiler_main_1(%0, %z)) }}
             def @tvmgen_default_ccompiler_main_0(%p: T, {}) {{ log(%p) }}
             def @tvmgen_default_ccompiler_main_1(%p: T, %q: T, {}) {{ subtract(%p, %q) }}",
            attrs("ccompiler", 0),
            attrs("ccompiler", 1)
        ),
    );
}

#[test]
fn p8_duplicate_outputs_collapse() {
    check(
        &["annotate_target", "merge_compiler_regions", "partition_graph"],
        &targets(&[("t", &["abs"])], true),
        "def @main(%data: T) { %0 = abs(%data); (nn.relu(%0), tanh(%0), log(%0)) }",
        &format!(
            "def @main(%data: T) {{ %0 = @tvmgen_default_t_main_0(%data); (nn.relu(%0), tanh(%0), log(%0)) }}
             def @tvmgen_default_t_main_0(%p: T, {}) {{ abs(%p) }}",
            attrs("t", 0)
        ),
    );
}

#[test]
fn p13_numbers_have_gaps_and_lifted_functions_are_opaque() {
    let t = "test_compiler";
    let head = format!("%data: Tensor[(1, 3, 8, 8), float32], %weight: Tensor[(16, 3, 3, 3), float32], {BN}");
    let bn = format!("B[{t}](%gamma), B[{t}](%beta), B[{t}](%mean), B[{t}](%var)");
    let conv = "padding=[1, 1, 1, 1], channels=16, kernel_size=[3, 3]";
    let result = "(Tensor[(1, 16, 8, 8), float32], Tensor[(16), float32], Tensor[(16), float32])";
    check(
        &["partition_graph", "simplify_inference", "fold_constant"],
        &PassOptions::default(),
        &format!(
            "def @main({head}) {{
                %0 = E[{t}](nn.conv2d(B[{t}](%data), B[{t}](%weight), {conv}));
                %1 = E[{t}](nn.batch_norm(B[{t}](%0), {bn}));
                %1.0
            }}"
        ),
        &format!(
            "def @main({head}) {{
                %0 = @tvmgen_default_{t}_main_0(%data, %weight);
                %1 = @tvmgen_default_{t}_main_2(%0, %gamma, %beta, %mean, %var);
                %1.0
            }}
            def @tvmgen_default_{t}_main_0(%a: Tensor[(1, 3, 8, 8), float32], %b: Tensor[(16, 3, 3, 3), float32], {}) {{ nn.conv2d(%a, %b, {conv}) }}
            def @tvmgen_default_{t}_main_2(%d: Tensor[(1, 16, 8, 8), float32], {BN}, {}) -> {result} {{
                nn.batch_norm(%d, %gamma, %beta, %mean, %var) }}",
            attrs(t, 0),
            attrs(t, 2)
        ),
    );
}

#[test]
fn p20_region_that_returns_a_tuple() {
    partition(
        "def @main(%a: T, %b: T) { %0 = B[c](%a); %1 = B[c](%b); E[c]((add(%0, %1), subtract(%0, %1))) }",
        &format!(
            "def @main(%a: T, %b: T) {{ %0 = @tvmgen_default_c_main_0(%a, %b); (%0.0, %0.1) }}
             def @tvmgen_default_c_main_0(%p: T, %q: T, {}) {{ (add(%p, %q), subtract(%p, %q)) }}",
            attrs("c", 0)
        ),
    );
}

#[test]
fn constants_and_tuples_of_constants_move_inside() {
    let constants = [
        Arc::new(Tensor::zeros(DType::F32, &[10, 10]).unwrap()),
        Arc::new(Tensor::zeros(DType::F32, &[2, 10]).unwrap()),
    ];
    let before = module_with(
        "def @main(%x: T) {
            %0 = E[c](add(B[c](%x), B[c](meta[relay.Constant][0])));
            add(%0, strided_slice(E[c](concatenate(B[c]((meta[relay.Constant][0], meta[relay.Constant][1])))), begin=[0, 0], end=[10, 10]))
        }",
        &constants,
    );
    let inner_text = format!(
        "def @main(%x: T) {{ add(@tvmgen_default_c_main_0(%x), strided_slice(@tvmgen_default_c_main_2(), begin=[0, 0], end=[10, 10])) }}
         def @tvmgen_default_c_main_0(%p: T, {}) {{ add(%p, meta[relay.Constant][0]) }}
         def @tvmgen_default_c_main_2({}) {{ concatenate((meta[relay.Constant][0], meta[relay.Constant][1])) }}",
        attrs("c", 0),
        attrs("c", 2)
    );
    assert_equal(
        &passes(&before, &["partition_graph"], &PassOptions::default()),
        &module_with(&inner_text, &constants),
    );
    let outer_text = format!(
        "def @main(%x: T) {{
            add(@tvmgen_default_c_main_0(%x, meta[relay.Constant][0]),
                strided_slice(@tvmgen_default_c_main_2((meta[relay.Constant][0], meta[relay.Constant][1])), begin=[0, 0], end=[10, 10])) }}
         def @tvmgen_default_c_main_0(%p: T, %q: T, {}) {{ add(%p, %q) }}
         def @tvmgen_default_c_main_2(%p: (T, Tensor[(2, 10), float32]), {}) {{ concatenate(%p) }}",
        attrs("c", 0),
        attrs("c", 2)
    );
    let unbound_options = PassOptions { bind_constants: false, ..PassOptions::default() };
    assert_equal(&passes(&before, &["partition_graph"], &unbound_options), &module_with(&outer_text, &constants));
}

#[test]
fn names_are_sanitized_and_unique() {
    let before = module(
        "def @main(%x: T) { E[my-chip](abs(B[my-chip](%x))) }
         def @tvmgen_a_b_my_chip_main_0(%x: T) { %x }",
    );
    let options = PassOptions { module_name: "a.b".into(), ..PassOptions::default() };
    let after = passes(&before, &["partition_graph"], &options);
    let names: Vec<_> = after.globals.keys().map(|name| &**name).collect();
    assert_eq!(names, ["main", "tvmgen_a_b_my_chip_main_0", "tvmgen_a_b_my_chip_main_a_0"]);
    assert_eq!(after.function(names[2]).unwrap().attrs.str("Compiler"), Some("my-chip"));
}

#[test]
fn input_computed_after_first_output() {
    // The region's first result is used before its last input is computed.
    partition(
        "def @main(%x: T, %y: T) {
            %0 = B[c](%x); %1 = abs(%0); %2 = log(E[c](%1)); %3 = exp(%y); %4 = add(%1, B[c](%3)); (%2, E[c](%4))
        }",
        &format!(
            "def @main(%x: T, %y: T) {{ %0 = exp(%y); %1 = @tvmgen_default_c_main_0(%x, %0); (log(%1.0), %1.1) }}
             def @tvmgen_default_c_main_0(%p: T, %q: T, {}) {{ %2 = abs(%p); (%2, add(%2, %q)) }}",
            attrs("c", 0)
        ),
    );
}

#[test]
fn rejects_region_that_depends_on_itself() {
    let program = module(
        "def @main(%x: T) {
            %0 = B[c](%x); %1 = abs(%0); %2 = log(E[c](%1)); %3 = add(%1, B[c](%2)); E[c](%3)
        }",
    );
    let error = run(program, &["partition_graph"], &PassOptions::default(), &mut RunOptions::default()).unwrap_err();
    assert_eq!(error.diagnostics[0].code.to_string(), "E0331");
}

#[test]
fn regions_inside_branches_lets_and_loops() {
    check(
        &["annotate_target", "merge_compiler_regions", "partition_graph"],
        &targets(&[("c", &["abs", "exp"])], true),
        "def @main(%c: bool, %x: T) {
            let %a = abs(%x);
            let %f = fn (%y: T) { exp(%y) };
            if (%c) { %f(%a) } else { add(%a, abs(%a)) }
        }",
        &format!(
            "def @main(%c: bool, %x: T) {{
                let %a = @tvmgen_default_c_main_0(%x);
                let %f = fn (%y: T) {{ @tvmgen_default_c_main_2(%y) }};
                if (%c) {{ %f(%a) }} else {{ add(%a, @tvmgen_default_c_main_3(%a)) }}
            }}
            def @tvmgen_default_c_main_0(%p: T, {}) {{ abs(%p) }}
            def @tvmgen_default_c_main_2(%p: T, {}) {{ exp(%p) }}
            def @tvmgen_default_c_main_3(%p: T, {}) {{ abs(%p) }}",
            attrs("c", 0),
            attrs("c", 2),
            attrs("c", 3)
        ),
    );
}

#[test]
fn flattens_nested_tuples_at_any_depth() {
    check(
        &["flatten_nested_tuples"],
        &PassOptions::default(),
        "def @main(%x: T) { %0 = abs(B[c](%x)); %1 = exp(%0); E[c](((%0, %1), %1)) }",
        "def @main(%x: T) { %0 = abs(B[c](%x)); %1 = exp(%0); ((E[c](%0), E[c](%1)), E[c](%1)) }",
    );
}

#[test]
fn removes_default_annotations() {
    check(
        &["remove_default_annotations"],
        &PassOptions::default(),
        "def @main(%x: T) { E[default](abs(B[default](E[c](exp(B[c](%x)))))) }",
        "def @main(%x: T) { abs(E[c](exp(B[c](%x)))) }",
    );
}

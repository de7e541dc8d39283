use super::{assert_equal, check, module, passes, targets};
use byoc_core::pass::manager::{RunOptions, run};

#[test]
fn a1_two_consumers_get_two_ends() {
    for non_call in [false, true] {
        check(
            &["annotate_target"],
            &targets(&[("test", &["nn.relu"])], non_call),
            "def @main(%x: T) { %0 = nn.relu(%x); %1 = abs(%0); %2 = abs(%0); add(%1, %2) }",
            "def @main(%x: T) {
                %0 = nn.relu(B[test](%x));
                %1 = abs(B[default](E[test](%0)));
                %2 = abs(B[default](E[test](%0)));
                E[default](add(B[default](E[default](%1)), B[default](E[default](%2))))
            }",
        );
    }
}

const A2: &str = "def @main(%x: Tensor[(10, 5), float32], %y: Tensor[(10, 5), float32]) {
    %0 = nn.relu(%x); %1 = nn.relu(%y); %2 = (%0, %1); concatenate(%2, axis=1)
}";

#[test]
fn a2_tuple_argument() {
    let rules: &[(&str, &[&str])] = &[("t", &["nn.relu", "concatenate"])];
    check(
        &["annotate_target"],
        &targets(rules, true),
        A2,
        "def @main(%x: Tensor[(10, 5), float32], %y: Tensor[(10, 5), float32]) {
            %0 = nn.relu(B[t](%x)); %1 = nn.relu(B[t](%y));
            %2 = (B[t](E[t](%0)), B[t](E[t](%1)));
            E[t](concatenate(B[t](E[t](%2)), axis=1))
        }",
    );
    check(
        &["annotate_target"],
        &targets(rules, false),
        A2,
        "def @main(%x: Tensor[(10, 5), float32], %y: Tensor[(10, 5), float32]) {
            %0 = nn.relu(B[t](%x)); %1 = nn.relu(B[t](%y));
            %2 = (E[t](%0), E[t](%1));
            E[t](concatenate(B[t](%2), axis=1))
        }",
    );
}

#[test]
fn a3_composite_call() {
    check(
        &["annotate_target"],
        &targets(&[("test", &[])], true),
        r#"def @main(%a: T, %b: T) { %1 = fn (%p: T, %q: T, Composite="test.add_relu") { %0 = add(%p, %q); nn.relu(%0) }; %1(%a, %b) }"#,
        r#"def @main(%a: T, %b: T) {
            %1 = fn (%p: T, %q: T, Composite="test.add_relu") { %0 = add(%p, %q); nn.relu(%0) };
            E[test](%1(B[test](%a), B[test](%b)))
        }"#,
    );
    for name in ["test", "other.add_relu"] {
        check(
            &["annotate_target"],
            &targets(&[("test", &["add"])], true),
            &format!(r#"def @main(%a: T) {{ %1 = fn (%p: T, Composite="{name}") {{ add(%p, %p) }}; %1(%a) }}"#),
            &format!(
                r#"def @main(%a: T) {{ %1 = fn (%p: T, Composite="{name}") {{ add(%p, %p) }}; E[default](%1(B[default](%a))) }}"#
            ),
        );
    }
}

#[test]
fn a5_if() {
    for non_call in [false, true] {
        check(
            &["annotate_target"],
            &targets(&[("t", &["equal", "tanh", "sigmoid", "erf"])], non_call),
            "def @main(%e1: float32, %e2: float32, %data: T) {
                %0 = equal(%e1, %e2); %1 = if (%0) { tanh(%data) } else { sigmoid(%data) }; erf(%1) }",
            "def @main(%e1: float32, %e2: float32, %data: T) {
                %0 = equal(B[t](%e1), B[t](%e2));
                %1 = if (E[t](%0)) { E[t](tanh(B[t](%data))) } else { E[t](sigmoid(B[t](%data))) };
                E[t](erf(B[t](%1)))
            }",
        );
    }
}

#[test]
fn first_matching_target_wins() {
    check(
        &["annotate_target"],
        &targets(&[("a", &["abs"]), ("b", &["abs", "exp"])], true),
        "def @main(%x: T) { exp(abs(%x)) }",
        "def @main(%x: T) { E[b](exp(B[b](E[a](abs(B[a](%x)))))) }",
    );
}

#[test]
fn a_call_without_arguments_is_an_input() {
    check(
        &["annotate_target"],
        &targets(&[("t", &["add", "zeros"])], true),
        "def @main(%x: T) { add(%x, zeros(shape=[10, 10], dtype=\"float32\")) }",
        "def @main(%x: T) { E[t](add(B[t](%x), B[t](zeros(shape=[10, 10], dtype=\"float32\")))) }",
    );
}

#[test]
fn lets_projections_and_closures() {
    check(
        &["annotate_target"],
        &targets(&[("t", &["split", "abs"])], true),
        "def @main(%x: T) { let %a = abs(%x); %0 = split(%a, indices_or_sections=2); %1 = %0.0; abs(%1) }",
        "def @main(%x: T) {
            let %a = B[t](E[t](abs(B[t](%x))));
            %0 = split(B[t](%a), indices_or_sections=2);
            %1 = B[t](E[t](%0)).0;
            E[t](abs(B[t](E[t](%1))))
        }",
    );
    let closure = "def @main(%x: T) { let %f = fn (%y: T) { abs(%y) }; %f(%x) }";
    check(
        &["annotate_target"],
        &targets(&[("t", &["abs"])], true),
        closure,
        "def @main(%x: T) { let %f = fn (%y: T) { E[t](abs(B[t](%y))) }; E[default](%f(B[default](%x))) }",
    );
    check(
        &["annotate_target"],
        &targets(&[("t", &["abs"])], false),
        closure,
        "def @main(%x: T) { let %f = fn (%y: T) { E[t](abs(B[t](%y))) }; %f(%x) }",
    );
}

const LAWS: &[&str] = &[
    "def @main(%x: T) { %0 = nn.relu(%x); %1 = abs(%0); %2 = exp(%0); add(%1, %2) }",
    "def @main(%x: T, %y: T) { %0 = abs(%x); %1 = exp(%y); %2 = (%0, %1); %3 = concatenate(%2); (%3, %0) }",
    "def @main(%c: bool, %x: T) { let %a = abs(%x); if (%c) { exp(%a) } else { add(%a, nn.relu(%x)) } }",
    "def @main(%x: T) { %0 = split(%x, indices_or_sections=2); %1 = %0.0; %2 = %0.1; exp(add(abs(%1), %2)) }",
    "def @main(%x: T) { %0 = ref(%x); %1 = ref_read(%0); abs(%1) }",
];

#[test]
fn annotation_is_idempotent() {
    for non_call in [true, false] {
        let options = targets(&[("t", &["abs", "split", "add"])], non_call);
        for source in LAWS {
            let annotated = passes(&module(source), &["annotate_target"], &options);
            assert_equal(&passes(&annotated, &["annotate_target"], &options), &annotated);
        }
    }
}

#[test]
fn annotation_composes_in_order() {
    let (a, b): (&[&str], &[&str]) = (&["abs", "split"], &["exp", "abs", "concatenate", "add"]);
    for source in LAWS {
        let annotated = passes(&module(source), &["annotate_target"], &targets(&[("a", a), ("b", b)], true));
        let first = passes(&module(source), &["annotate_target"], &targets(&[("a", a)], true));
        assert_equal(&passes(&first, &["annotate_target"], &targets(&[("b", b)], true)), &annotated);
    }
}

#[test]
fn reports_unknown_operator_of_a_rule() {
    let program = module("def @main(%x: T) { abs(%x) }");
    let options = targets(&[("t", &["nn.conv2"])], true);
    let error = run(program, &["annotate_target"], &options, &mut RunOptions::default()).unwrap_err();
    assert_eq!(error.diagnostics[0].code.to_string(), "E0320");
    assert_eq!(error.diagnostics[0].help.as_deref(), Some("did you mean \"nn.conv2d\"?"));
}

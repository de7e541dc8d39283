//! Three backends that support the operators of the synthetic programs.

use byoc_core::pass::{
    AcceptAll, Backend, Candidate, ControlFlow, Judge, Question, Refusal, RefusalCode, Report, TargetRule, Verdict,
    partition_for,
};
use byoc_core::pattern::{Checks, Entry, parse_table};
use byoc_ir::ir::{Module, Name};
use std::fmt::Write;

/// Returns a pattern table of 95 entries, about as many as for a complete library: convolutions and matrix products,
/// each with and without bias and with seven activations, long patterns first.
pub fn table() -> Vec<Entry> {
    let mut text = String::new();
    let _ =
        writeln!(text, "first.conv2d_bias_gate_sum: let c = add(nn.conv2d(*, *), *); add(multiply(c, sigmoid(c)), *)");
    let _ = writeln!(text, "first.conv2d_bias_sum_relu: nn.relu(add(add(nn.conv2d(*, *), *), *))");
    let _ = writeln!(text, "first.conv2d_bias_sum: add(add(nn.conv2d(*, *), *), *)");
    let _ = writeln!(text, "first.dense_bias_sum: add(add(nn.dense(*, *), *), *)");
    let _ = writeln!(text, "first.gelu: multiply(multiply(*x, add(erf(divide(*x, *)), *)), *)");
    for bias in [true, false] {
        for activation in ["relu", "tanh", "sigmoid", "clip", "gelu", "swish", "mish", ""] {
            if activation.is_empty() && !bias {
                continue;
            }
            for (name, op) in [
                ("conv1d", "nn.conv1d"),
                ("conv2d", "nn.conv2d"),
                ("conv3d", "nn.conv3d"),
                ("deconv2d", "nn.conv2d_transpose"),
                ("matmul", "nn.batch_matmul"),
                ("dense", "nn.dense"),
            ] {
                let anchor = if bias { format!("add({op}(*, *), *)") } else { format!("{op}(*, *)") };
                let pattern = match activation {
                    "relu" => "nn.relu(r)",
                    "gelu" => "multiply(multiply(r, add(erf(divide(r, *)), *)), *)",
                    "swish" => "multiply(r, sigmoid(r))",
                    "mish" => "multiply(r, tanh(log(add(exp(r), *))))",
                    "tanh" => "tanh(r)",
                    "sigmoid" => "sigmoid(r)",
                    "clip" => "clip(r)",
                    _ => "r",
                };
                let suffix = if bias { "_bias" } else { "" };
                let _ = writeln!(text, "first.{name}{suffix}_{activation}: let r = {anchor}; {pattern}");
            }
        }
    }
    let parse_result = parse_table(&text, Checks::Allowed);
    assert!(parse_result.diagnostics.is_empty(), "{:?}", parse_result.diagnostics);
    assert_eq!(parse_result.entries.len(), 95);
    parse_result.entries
}

const FIRST_OPERATORS: &[&str] = &["nn.relu", "tanh", "nn.conv2d", "nn.dense", "maximum"];
const SECOND_OPERATORS: &[&str] = &["sigmoid", "add", "multiply", "nn.relu"];
const THIRD_OPERATORS: &[&str] = &["sqrt", "concatenate", "sum"];

/// Returns the rules of `annotate_target`: the single operators that each backend supports, with the backends in
/// priority order.
pub fn rules() -> Vec<TargetRule> {
    let rule = |target: &str, operators: &[&str]| TargetRule {
        target: target.into(),
        operators: operators.iter().map(|&op| op.into()).collect(),
    };
    vec![rule("first", FIRST_OPERATORS), rule("second", SECOND_OPERATORS), rule("third", THIRD_OPERATORS)]
}

/// Judge that refuses every seventh single operator, so that reports contain refusals.
struct RefusingJudge;

impl Judge for RefusingJudge {
    fn judge(&mut self, _: &Module, question: Question<'_>, candidates: &[Candidate]) -> Vec<Verdict> {
        let is_refused = |i: usize| matches!(question, Question::Operators) && i % 7 == 6;
        let refusal = || Refusal::new(RefusalCode::UnsupportedShape, "every seventh operator is refused");
        (0..candidates.len())
            .map(|i| if is_refused(i) { Verdict::Refused(refusal()) } else { Verdict::Supported })
            .collect()
    }
}

/// Partitions `module` for the three backends: one with a table of 95 entries, one that refuses some operators, and one
/// that supports the remaining operators.
pub fn partition(module: &Module, table: &[Entry]) -> (Module, Report) {
    let names = |operators: &[&str]| operators.iter().map(|&op| op.to_owned()).collect::<Vec<String>>();
    let (first, second, third) = (names(FIRST_OPERATORS), names(SECOND_OPERATORS), names(THIRD_OPERATORS));
    let mut backends = [
        Backend {
            name: Name::from("first"),
            table,
            operators: &first,
            control_flow: ControlFlow::default(),
            judge: &mut AcceptAll,
        },
        Backend {
            name: Name::from("second"),
            table: &[],
            operators: &second,
            control_flow: ControlFlow::default(),
            judge: &mut RefusingJudge,
        },
        Backend {
            name: Name::from("third"),
            table: &[],
            operators: &third,
            control_flow: ControlFlow::default(),
            judge: &mut AcceptAll,
        },
    ];
    partition_for(module, &mut backends, "default").expect("cannot partition the module")
}

//! Pattern table, with the most specific patterns first.
//!
//! Names list the fused operators: `conv2d_bias_sum_relu` is a convolution with a bias, a residual and an activation.
//! The final fusion is decided for a whole region, with more context than a pattern has; the table serves to claim a
//! model's operators when several backends compete for them, and to claim operators that are supported only in
//! combination, such as the seven operators of a GELU.

use std::fmt::Write;

/// Operators that start a chain, with their pattern names.
const ANCHORS: &[(&str, &str)] = &[
    ("conv1d", "nn.conv1d"),
    ("conv2d", "nn.conv2d"),
    ("conv3d", "nn.conv3d"),
    ("deconv1d", "nn.conv1d_transpose"),
    ("deconv2d", "nn.conv2d_transpose"),
    ("deconv3d", "nn.conv3d_transpose"),
    ("dense", "nn.dense"),
];

/// Activation names, with the patterns that apply them to `c`.
const ACTIVATIONS: &[(&str, &str)] = &[
    ("relu", "nn.relu(c)"),
    ("leaky_relu", "nn.leaky_relu(c)"),
    ("tanh", "tanh(c)"),
    ("gelu", GELU),
    ("gelu_tanh", GELU_TANH),
    ("hardswish", HARDSWISH),
    ("swish", "multiply(c, sigmoid(c))"),
    ("mish", "multiply(c, tanh(log(add(exp(c), const))))"),
    ("sigmoid", "sigmoid(c)"),
    ("hardsigmoid", "clip(add(multiply(c, const), const))"),
    ("clip", "clip(c)"),
];

/// Parts of the GELU patterns. A constant may have any value: `simplify` checks it within a tolerance. The numbers
/// written here are the values that test cases use.
macro_rules! gelu_part {
    (half) => {
        "const(0.5) | const"
    };
    (cube) => {
        "multiply(power(c, const(3.0) | const), const(0.044715) | const)"
    };
    (tanh_gate) => {
        concat!("add(tanh(multiply(add(c, ", gelu_part!(cube), "), const(0.7978846) | const)), const(1.0) | const)")
    };
    (gate) => {
        "add(erf(divide(c, const(1.4142135) | const) | multiply(c, const(0.70710677) | const)), const(1.0) | const)"
    };
}

const GELU: &str = concat!(
    concat!("multiply(multiply(c, ", gelu_part!(gate), "), ", gelu_part!(half), ")"),
    concat!(" | multiply(multiply(c, ", gelu_part!(half), "), ", gelu_part!(gate), ")"),
    concat!(" | multiply(c, multiply(", gelu_part!(gate), ", ", gelu_part!(half), "))"),
);

const GELU_TANH: &str = concat!(
    concat!("multiply(multiply(c, ", gelu_part!(half), "), ", gelu_part!(tanh_gate), ")"),
    concat!(" | multiply(multiply(c, ", gelu_part!(tanh_gate), "), ", gelu_part!(half), ")"),
);

const HARDSWISH: &str = "multiply(c, clip(add(multiply(c, const), const))) \
    | divide(multiply(c, clip(add(c, const))), const) | multiply(multiply(c, clip(add(c, const))), const)";

/// Quantized residual sum, with the chain as either operand.
const QUANTIZED_SUM: &str = "(qnn.add(scaled ? nn.relu ? clip, *, const, const, const, const, const, const) \
    | qnn.add(*, scaled ? nn.relu ? clip, const, const, const, const, const, const))";

/// Returns the bindings of a quantized convolution or matrix product with an optional bias, up to the requantization
/// `scaled`.
fn requantize_pattern(op: &str) -> String {
    format!(
        "let sum = qnn.{op}(*, const, const, const, const, const);\n    \
         let biased = nn.bias_add(sum, const) | add(sum, const) | add(const, sum) | sum;\n    \
         let scaled = qnn.requantize(biased, const, const, const, const)"
    )
}

/// Maximum number of tensors in a `qnn.concatenate` pattern.
const MAX_CONCAT_INPUTS: usize = 6;

/// Returns the pattern of a concatenation of `count` tensors, each with its own scale. The scales are in a tuple, which
/// is accessible only as part of a claimed composite.
fn concat_pattern(count: usize) -> String {
    let repeat = |text: &str| vec![text; count].join(", ");
    format!("qnn.concatenate(({}), ({}), ({}), const, const)", repeat("*"), repeat("const"), repeat("const"))
}

/// Returns the pattern of a quantized operator whose requantization is spelled out in float arithmetic, in the form
/// that oneDNN-specific passes emit: bias, scale, bounds, scaled residual sum, zero point of the result.
fn real_arithmetic(op: &str) -> String {
    format!(
        "let sum = cast(qnn.{op}(*, const, const(0), const(0), const, const));\n    \
         let biased = add(sum, const) | sum;\n    \
         let bounded = clip(multiply(biased, const));\n    \
         let scaled = multiply(bounded, const) | bounded;\n    \
         let summed = add(scaled, multiply(const, cast(*))) | scaled;\n    \
         let moved = add(summed, const) | summed;\n    \
         cast(moved)"
    )
}

/// Returns the pattern table.
pub fn table() -> String {
    let mut text = String::from("# Quantized: sums with their requantization to bytes.\n");
    for op in ["conv2d", "dense"] {
        let _ = writeln!(text, "qnn.{op}: {}", real_arithmetic(op));
    }
    for op in ["conv2d", "dense"] {
        let _ = writeln!(
            text,
            "qnn_{op}_requantize_sum: {};\n    {QUANTIZED_SUM} ? nn.relu ? clip",
            requantize_pattern(op)
        );
        let _ = writeln!(text, "qnn_{op}_requantize: {};\n    scaled ? nn.relu ? clip ? cast", requantize_pattern(op));
    }
    let concats: Vec<String> = (2..=MAX_CONCAT_INPUTS).map(concat_pattern).collect();
    let _ = writeln!(text, "qnn_concatenate: {}", concats.join("\n    | "));
    text.push_str("# Residuals, then biases and activations, then patterns without an anchor.\n");
    for (name, op) in ANCHORS {
        // If a bias could be any expression, a residual sum would match as a biased product, and be computed again as
        // part of the next residual sum.
        let biased_pattern = with_bias(op, "const | var");
        for (activation, pattern) in [("_relu", "nn.relu(c)"), ("", "c")] {
            write_pattern(
                &mut text,
                &format!("{name}_bias_sum{activation}"),
                &format!("add({biased_pattern}, *)"),
                pattern,
            );
        }
    }
    for bias in [true, false] {
        for (activation, pattern) in ACTIVATIONS.iter().map(|(n, p)| (*n, *p)).chain(bias.then_some(("", "c"))) {
            for (name, op) in ANCHORS {
                let anchor = if bias { with_bias(op, "*") } else { format!("{op}(*, *)") };
                let name = [*name, if bias { "bias" } else { "" }, activation];
                let name: Vec<&str> = name.into_iter().filter(|part| !part.is_empty()).collect();
                write_pattern(&mut text, &name.join("_"), &anchor, pattern);
            }
        }
    }
    for (name, pattern) in ACTIVATIONS.iter().filter(|(_, pattern)| pattern.len() > 40) {
        write_pattern(&mut text, name, "*", pattern);
    }
    // Exporters emit this after a softmax, which yields NaN for a fully masked row.
    text.push_str("no_nan: where(isnan(*x), const, *x)\n");
    text
}

/// Returns the pattern of an operator with a bias; `addend` is the pattern of a bias that `add` adds.
fn with_bias(op: &str, addend: &str) -> String {
    format!("nn.bias_add({op}(*, *), *) | add({op}(*, *), {addend})")
}

fn write_pattern(text: &mut String, name: &str, anchor: &str, pattern: &str) {
    let anchor = if anchor == "*" { "*c".to_owned() } else { format!("({anchor})") };
    let _ = match pattern {
        "c" => writeln!(text, "{name}: {anchor}"),
        _ if anchor == "*c" => writeln!(text, "{name}: {}", replace_name(pattern)),
        _ => writeln!(text, "{name}: let c = {anchor}; {pattern}"),
    };
}

/// Replaces `c` with a named wildcard, which matches the same expression at each occurrence.
fn replace_name(pattern: &str) -> String {
    pattern.replace("(c,", "(*c,").replace("(c)", "(*c)").replace("exp(c)", "exp(*c)")
}

//! Operators fused with their producers or consumers.

use super::{Node, Outputs, Result, Row, attrs, math, single_output};
use crate::ops::{conv, elementwise, norm};
use byoc_ir::ir::ExprId;

pub const ROWS: &[Row] = &[
    ("BiasGelu", 1, |n| {
        let sum = n.op_without_attrs("add", &[n.input(0)?, n.input(1)?])?;
        single_output(elementwise::gelu_of(n, sum, false)?)
    }),
    ("FastGelu", 1, |n| {
        let mut x = n.input(0)?;
        if let Some(bias) = n.optional_input(1) {
            x = n.op_without_attrs("add", &[x, bias])?;
        }
        single_output(elementwise::gelu_of(n, x, true)?)
    }),
    ("FusedConv", 1, |n| {
        let mut result = conv::conv(n)?[0];
        if let Some(bias) = n.optional_input(3) {
            result = n.op_without_attrs("add", &[result, bias])?;
        }
        let params = n.floats_attr("activation_params")?.unwrap_or_default();
        single_output(activate(n, result, &params)?)
    }),
    ("FusedGemm", 1, |n| {
        let result = math::gemm(n)?[0];
        let names = ["activation_alpha", "activation_beta", "activation_gamma"];
        let present_names = names.into_iter().take_while(|name| n.has(name));
        let params = present_names.map(|name| n.float_attr(name, 0.0)).collect::<Result<Vec<_>>>()?;
        single_output(activate(n, result, &params)?)
    }),
    ("FusedMatMul", 1, fused_matmul),
    ("Gelu", 1, |n| {
        let x = n.input(0)?;
        single_output(elementwise::gelu_of(n, x, false)?)
    }),
    ("QuickGelu", 1, |n| {
        let (x, alpha) = (n.input(0)?, n.float_attr("alpha", 1.702)?);
        let scaled_x = n.with_scalar("multiply", x, alpha)?;
        let gate = n.op_without_attrs("sigmoid", &[scaled_x])?;
        single_output(n.op_without_attrs("multiply", &[x, gate])?)
    }),
    ("SkipLayerNormalization", 1, |n| skip_norm(n, false)),
    ("SkipSimplifiedLayerNormalization", 1, |n| skip_norm(n, true)),
    ("TransposeMatMul", 1, fused_matmul),
];

/// Applies the activation function named by the attribute `activation`.
fn activate(n: &mut Node<'_, '_>, x: ExprId, params: &[f64]) -> Result<ExprId> {
    let name = n.str_attr("activation", "")?;
    let param = |i: usize, default: f64| params.get(i).copied().unwrap_or(default);
    match name.as_str() {
        "" => Ok(x),
        "Relu" => n.op_without_attrs("nn.relu", &[x]),
        "Tanh" => n.op_without_attrs("tanh", &[x]),
        "Sigmoid" => n.op_without_attrs("sigmoid", &[x]),
        "LeakyRelu" => n.op("nn.leaky_relu", &[x], attrs![alpha: param(0, 0.01)]),
        "Clip" => {
            n.op("clip", &[x], attrs![a_min: param(0, f64::from(f32::MIN)), a_max: param(1, f64::from(f32::MAX))])
        }
        "HardSigmoid" => elementwise::hard_sigmoid(n, x, param(0, 0.2), param(1, 0.5)),
        other => Err(n.invalid_node(format!("unsupported activation \"{other}\""))),
    }
}

/// Converts FusedMatMul: a matrix product whose operands are transposed if `transA` or `transB` is set.
fn fused_matmul(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let mut operands = [n.input(0)?, n.input(1)?];
    for (value, suffix) in operands.iter_mut().zip(["A", "B"]) {
        if n.int_attr(&format!("transBatch{suffix}"), 0)? != 0 {
            return Err(n.invalid_node(format!("unsupported attribute transBatch{suffix}")));
        }
        let rank = n.rank(*value)?;
        if n.int_attr(&format!("trans{suffix}"), 0)? != 0 && rank >= 2 {
            let mut order: Vec<usize> = (0..rank).collect();
            order.swap(rank - 2, rank - 1);
            *value = n.transpose(*value, &order)?;
        }
    }
    let product = math::matmul(n, operands[0], operands[1], None)?;
    let alpha = n.float_attr("alpha", 1.0)?;
    single_output(if alpha == 1.0 { product } else { n.with_scalar("multiply", product, alpha)? })
}

/// Adds input, skip connection and bias, and applies layer normalization over the last axis, or RMS normalization if
/// `is_simplified`.
fn skip_norm(n: &mut Node<'_, '_>, is_simplified: bool) -> Result<Outputs> {
    let epsilon = n.float_attr("epsilon", if is_simplified { 1e-6 } else { 1e-12 })?;
    let (gamma, input_offsets) = (
        n.input(2)?,
        if is_simplified { [None, n.optional_input(3)] } else { [n.optional_input(3), n.optional_input(4)] },
    );
    let [beta, bias] = input_offsets;
    let mut sum = n.op_without_attrs("add", &[n.input(0)?, n.input(1)?])?;
    if let Some(bias) = bias {
        sum = n.op_without_attrs("add", &[sum, bias])?;
    }
    if n.has_output(1) || n.has_output(2) {
        return Err(n.invalid_node("the outputs mean and inv_std_var are not supported"));
    }
    let normalized_sum = if is_simplified {
        norm::rms_norm_of(n, sum, gamma, epsilon)?
    } else {
        norm::layer_norm_of(n, sum, gamma, beta, epsilon)?
    };
    Ok(vec![normalized_sum, sum, sum, sum])
}

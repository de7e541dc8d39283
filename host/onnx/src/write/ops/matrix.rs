//! Matrix products, and the bias that Conv and Gemm take as an input.

use super::super::call::{Call, Outputs};
use super::super::proto_parts::{int, string};
use super::super::values::Operand;
use super::super::writer::{Refusal, Result};
use super::norm::along;
use super::{Row, single};
use byoc_ir::op;
use byoc_ir::tensor::DType;

pub const ROWS: &[Row] = &[
    ("einsum", |c| {
        let (mut fields, equation, dtype) = (c.fields(0)?, c.params.string("equation"), c.result()?.dtype);
        let computed = if dtype == DType::BF16 { DType::F32 } else { dtype };
        for field in &mut fields {
            *field = c.cast(field, dtype, computed)?;
        }
        let result = c.node("Einsum", &fields, vec![string("equation", &equation)]);
        single(c.cast(&result, computed, dtype)?)
    }),
    ("linalg.det", |c| {
        let x = c.arg(0)?;
        single(c.apply("Det", &[&x]))
    }),
    ("nn.batch_matmul", |c| {
        let (a, b) = (matrix(c, 0, "transpose_a")?, matrix(c, 1, "transpose_b")?);
        product(c, &a, &b)
    }),
    ("nn.bias_add", bias_add),
    ("nn.dense", |c| {
        let (a, b) = (c.arg(0)?, c.arg(1)?);
        if c.rank(0)? == 2 && c.dtype(0)?.is_float() {
            return gemm(c, a, b, [false, true]);
        }
        let b = swapped(c, &b, 1)?;
        product(c, &a, &b)
    }),
    ("nn.matmul", |c| {
        let transposes = ["transpose_a", "transpose_b"].map(|name| c.params.bool(name));
        if c.rank(0)? == 2 && c.dtype(0)?.is_float() {
            let (a, b) = (c.arg(0)?, c.arg(1)?);
            return gemm(c, a, b, transposes);
        }
        let (a, b) = (matrix(c, 0, "transpose_a")?, matrix(c, 1, "transpose_b")?);
        product(c, &a, &b)
    }),
];

/// Swaps the last two axes of argument `i`.
pub fn swapped(c: &mut Call<'_, '_>, value: &Operand, i: usize) -> Result<Operand> {
    let rank = c.rank(i)?;
    let mut axes: Vec<usize> = (0..rank).collect();
    axes.swap(rank.saturating_sub(1), rank.saturating_sub(2));
    Ok(c.transpose(value, &axes))
}

/// Returns argument `i`, transposed if attribute `flag` says so.
fn matrix(c: &mut Call<'_, '_>, i: usize, flag: &str) -> Result<Operand> {
    let value = c.arg(i)?;
    if c.params.bool(flag) { swapped(c, &value, i) } else { Ok(value) }
}

fn gemm(c: &mut Call<'_, '_>, a: Operand, b: Operand, transposes: [bool; 2]) -> Result<Outputs> {
    let (dtype, result) = (c.dtype(0)?, c.result()?.dtype);
    let names = ["transA", "transB"].into_iter().zip(transposes);
    let attrs = names.filter(|(_, is_transposed)| *is_transposed).map(|(name, _)| int(name, 1)).collect();
    let product = c.node("Gemm", &[a, b], attrs);
    single(c.cast(&product, dtype, result)?)
}

fn product(c: &mut Call<'_, '_>, a: &Operand, b: &Operand) -> Result<Outputs> {
    let (dtype, other, result) = (c.dtype(0)?, c.dtype(1)?, c.result()?.dtype);
    let is_narrow = |dtype: DType| matches!(dtype, DType::I8 | DType::U8);
    if is_narrow(dtype) && is_narrow(other) && result == DType::I32 {
        return single(c.apply("MatMulInteger", &[a, b]));
    }
    let computed = match dtype {
        DType::I8 | DType::U8 | DType::I16 | DType::U16 => DType::I32,
        _ => dtype,
    };
    let (a, b) = (c.cast(a, dtype, computed)?, c.cast(b, other, computed)?);
    let sum = c.apply("MatMul", &[&a, &b]);
    single(c.cast(&sum, computed, result)?)
}

/// Writes a bias: as the third input of the Conv or Gemm that computes the data, if nothing else reads that, or as a sum.
fn bias_add(c: &mut Call<'_, '_>) -> Result<Outputs> {
    let rank = c.rank(0)?;
    let (x, bias, axis) = (c.arg(0)?, c.arg(1)?, c.axis("axis", rank)?);
    let is_only_use = c.w.units.only_user(c.args[0]) == Some(c.id);
    let source = c.w.module.expr(c.args[0]).as_op_call().map(|(op, _)| op::get(op).name);
    let takes_bias = match source {
        Some(
            "nn.conv1d"
            | "nn.conv2d"
            | "nn.conv3d"
            | "nn.conv1d_transpose"
            | "nn.conv2d_transpose"
            | "nn.conv3d_transpose",
        ) => axis == 1,
        Some("nn.dense" | "nn.matmul") => axis == 1 && rank == 2,
        _ => false,
    };
    if is_only_use && takes_bias && bias.constant().is_some() && c.w.add_bias(&x, &bias) {
        return single(x);
    }
    if c.dtype(0)? != c.result()?.dtype {
        return Err(Refusal::new("a bias of another element type"));
    }
    let bias = along(c, 1, axis, rank)?;
    single(c.apply("Add", &[&x, &bias]))
}

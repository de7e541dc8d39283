//! Operators that create tensors: constants, ranges, dimensions, random numbers.

use super::super::call::{Call, Outputs, int_vector};
use super::super::proto_parts::{float, int};
use super::super::values::Operand;
use super::super::writer::{Refusal, Result};
use super::{Row, single};
use crate::tensor::{from_f64s, type_number};
use byoc_ir::ir::Attrs;
use byoc_ir::tensor::DType;

pub const ROWS: &[Row] = &[
    ("arange", arange),
    ("dyn.full", |c| {
        let shape = c.int_vector(1)?;
        full(c, 0, &shape)
    }),
    ("dyn.ones", |c| {
        let shape = c.int_vector(0)?;
        constant(c, &shape, 1.0)
    }),
    ("dyn.zeros", |c| {
        let shape = c.int_vector(0)?;
        constant(c, &shape, 0.0)
    }),
    ("full", |c| {
        let shape = int_vector(&c.params.ints("shape"));
        full(c, 0, &shape)
    }),
    ("full_like", |c| {
        let x = c.arg(0)?;
        let shape = c.shape_of(&x);
        full(c, 1, &shape)
    }),
    ("ndarray_size", |c| {
        let (x, dtype) = (c.arg(0)?, c.result()?.dtype);
        let size = c.apply("Size", &[&x]);
        single(c.narrow(&size, dtype)?)
    }),
    ("ones", |c| {
        let shape = int_vector(&c.params.ints("shape"));
        constant(c, &shape, 1.0)
    }),
    ("ones_like", |c| {
        let x = c.arg(0)?;
        let shape = c.shape_of(&x);
        constant(c, &shape, 1.0)
    }),
    ("random.uniform_like", uniform_like),
    ("shape_of", |c| {
        let (x, dtype) = (c.arg(0)?, c.result()?.dtype);
        let shape = c.shape_of(&x);
        single(c.narrow(&shape, dtype)?)
    }),
    ("zeros", |c| {
        let shape = int_vector(&c.params.ints("shape"));
        constant(c, &shape, 0.0)
    }),
    ("zeros_like", |c| {
        let x = c.arg(0)?;
        let shape = c.shape_of(&x);
        constant(c, &shape, 0.0)
    }),
];

fn constant(c: &mut Call<'_, '_>, shape: &Operand, value: f64) -> Result<Outputs> {
    let value = from_f64s(c.result()?.dtype, &[1], &[value]);
    single(c.filled(shape, &value)?)
}

/// Fills a tensor with argument `i`.
fn full(c: &mut Call<'_, '_>, i: usize, shape: &Operand) -> Result<Outputs> {
    let (from, to) = (c.dtype(i)?, c.result()?.dtype);
    let value = c.cast(&c.arg(i)?, from, to)?;
    match value.constant().cloned() {
        Some(tensor) => single(c.filled(shape, &tensor)?),
        None => single(c.apply("Expand", &[&value, shape])),
    }
}

fn arange(c: &mut Call<'_, '_>) -> Result<Outputs> {
    let (from, to) = (c.dtype(0)?, c.result()?.dtype);
    let computed = match from {
        DType::F32 | DType::F64 | DType::I16 | DType::I32 | DType::I64 => from,
        dtype if dtype.is_float() => DType::F32,
        _ => DType::I64,
    };
    let mut operands = Vec::new();
    for i in 0..3 {
        let value = c.arg(i)?;
        operands.push(c.cast(&value, from, computed)?);
    }
    let result = c.node("Range", &operands, Vec::new());
    single(c.cast(&result, computed, to)?)
}

/// Writes random numbers; those of other runtimes have the same distribution. The key begins with the seed.
fn uniform_like(c: &mut Call<'_, '_>) -> Result<Outputs> {
    let (x, dtype) = (c.arg(1)?, c.result()?.dtype);
    let key = c.arg(0)?;
    let seed = key.constant().and_then(|key| key.view().to_i64s().or_else(|| first_word(c, key)));
    let seed = seed.and_then(|words| words.first().copied()).unwrap_or(0);
    if !matches!(dtype, DType::F32 | DType::F64) {
        return Err(Refusal::new(format!("random numbers of type {dtype}")));
    }
    let attrs = vec![int("dtype", type_number(dtype).into()), float("seed", seed as f64)];
    single(c.node("RandomUniformLike", &[x], attrs))
}

fn first_word(c: &Call<'_, '_>, key: &std::sync::Arc<byoc_ir::tensor::Tensor>) -> Option<Vec<i64>> {
    let cast = c.fold("cast", Attrs::new([("dtype", DType::I64.into())]), key)?;
    cast.constant()?.view().to_i64s()
}

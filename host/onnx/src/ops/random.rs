//! Random numbers. A key determines the numbers of an operator: it consists of the attribute `seed`, or of the number of
//! the operator in the model, and of the iteration of the loop around it. Every run of a model computes the same numbers.

use super::{Node, Outputs, Result, Row, attrs, single_output};
use crate::tensor::dtype;
use byoc_ir::ir::{AttrValue, ExprId};
use byoc_ir::tensor::{DType, Tensor};
use std::f64::consts::TAU;

pub const ROWS: &[Row] = &[
    ("Bernoulli", 15, bernoulli),
    ("Multinomial", 7, multinomial),
    ("RandomNormal", 1, |n| {
        let shape = shape(n)?;
        normal(n, shape, DType::F32)
    }),
    ("RandomNormalLike", 1, |n| {
        let like = n.input(0)?;
        let default = n.dtype(like)?;
        normal(n, like, default)
    }),
    ("RandomUniform", 1, |n| {
        let shape = shape(n)?;
        uniform(n, shape, DType::F32)
    }),
    ("RandomUniformLike", 1, |n| {
        let like = n.input(0)?;
        let default = n.dtype(like)?;
        uniform(n, like, default)
    }),
];

/// Returns a tensor of the shape in attribute `shape`.
fn shape(n: &mut Node<'_, '_>) -> Result<ExprId> {
    let sizes = n.ints_attr("shape")?.ok_or_else(|| n.invalid_node("attribute shape is missing"))?;
    let zero = n.scalar(DType::F32, 0.0);
    // Not a constant, so that a large one takes no memory while the model is read.
    n.op_unfolded("full", &[zero], attrs![shape: AttrValue::ints(sizes), dtype: DType::F32])
}

/// Returns the element type in attribute `dtype`.
fn number_type(n: &Node<'_, '_>, default: DType) -> Result<DType> {
    let Some(number) = n.has("dtype").then(|| n.int_attr("dtype", 0)).transpose()? else { return Ok(default) };
    let found = i32::try_from(number).ok().and_then(dtype);
    found.ok_or_else(|| n.invalid_node(format!("attribute dtype: unsupported element type number {number}")))
}

/// Returns the type in which random numbers of a type are computed.
fn computed_type(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// Returns a key, which differs from those of the other operators and, in a loop, from those of the other iterations.
/// `part` tells the keys of one operator apart.
fn key(n: &mut Node<'_, '_>, part: u64) -> Result<ExprId> {
    let seed = match n.has("seed") {
        // The seed of Dropout is an integer, all others are floats.
        true => match n.int_attr("seed", 0) {
            Ok(seed) => seed.cast_unsigned(),
            Err(_) => (n.float_attr("seed", 0.0)? as f32).to_bits().into(),
        },
        false => n.random_number() << 32,
    };
    // The state of Threefry: four words of the key, four of the counter, and the first bit of the path.
    let words = |words: &[u64]| Tensor::from_slice(&[words.len()], words);
    let Some(iteration) = n.iteration() else {
        return Ok(n.tensor(words(&[seed, part, 0, 0, 0, 0, 0, 0, 1 << 63, 0])));
    };
    let iteration = n.cast(iteration, DType::U64)?;
    let iteration = n.reshape(iteration, &[1])?;
    let (first, rest) = (n.tensor(words(&[seed, part])), n.tensor(words(&[0, 0, 0, 0, 0, 1 << 63, 0])));
    n.concatenate(&[first, iteration, rest], 0)
}

/// Returns numbers in [0, 1), as many as `like` has elements.
pub(super) fn uniform_like(n: &mut Node<'_, '_>, like: ExprId, dtype: DType, part: u64) -> Result<ExprId> {
    let key = key(n, part)?;
    n.op("random.uniform_like", &[key, like], attrs![out_dtype: dtype])
}

fn uniform(n: &mut Node<'_, '_>, like: ExprId, default: DType) -> Result<Outputs> {
    let dtype = number_type(n, default)?;
    let (low, high) = (n.float_attr("low", 0.0)?, n.float_attr("high", 1.0)?);
    let numbers = uniform_like(n, like, computed_type(dtype), 0)?;
    let numbers = n.with_scalar("multiply", numbers, high - low)?;
    let numbers = n.with_scalar("add", numbers, low)?;
    single_output(n.cast(numbers, dtype)?)
}

/// Computes sqrt(-2 log(1 - u)) sin(2 pi v) for uniform u and v: the transformation of Box and Muller.
fn normal(n: &mut Node<'_, '_>, like: ExprId, default: DType) -> Result<Outputs> {
    let dtype = number_type(n, default)?;
    let computed_type = computed_type(dtype);
    let (mean, scale) = (n.float_attr("mean", 0.0)?, n.float_attr("scale", 1.0)?);
    let u = uniform_like(n, like, computed_type, 0)?;
    let v = uniform_like(n, like, computed_type, 1)?;
    let one = n.scalar(computed_type, 1.0);
    let rest = n.op_without_attrs("subtract", &[one, u])?;
    let logarithm = n.op_without_attrs("log", &[rest])?;
    let square = n.with_scalar("multiply", logarithm, -2.0)?;
    let radius = n.op_without_attrs("sqrt", &[square])?;
    let angle = n.with_scalar("multiply", v, TAU)?;
    let sine = n.op_without_attrs("sin", &[angle])?;
    let numbers = n.op_without_attrs("multiply", &[radius, sine])?;
    let numbers = n.with_scalar("multiply", numbers, scale)?;
    let numbers = n.with_scalar("add", numbers, mean)?;
    single_output(n.cast(numbers, dtype)?)
}

/// Draws 1 with the probability that each element of the input is.
fn bernoulli(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let probabilities = n.input(0)?;
    let default = n.dtype(probabilities)?;
    let dtype = number_type(n, default)?;
    let probabilities = n.widen(probabilities)?;
    let numbers = uniform_like(n, probabilities, n.dtype(probabilities)?, 0)?;
    let is_drawn = n.op_without_attrs("less", &[numbers, probabilities])?;
    single_output(n.cast(is_drawn, dtype)?)
}

/// Draws classes from rows of unnormalized log-probabilities.
fn multinomial(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let dtype = number_type(n, DType::I32)?;
    let (input, samples) = (n.input(0)?, n.int_attr("sample_size", 1)?);
    let logits = n.cast(input, DType::F32)?;
    let probabilities = n.op("nn.softmax", &[logits], attrs![axis: -1i64])?;
    let key = key(n, 0)?;
    let result = n.op("random.multinomial", &[key, probabilities], attrs![num_samples: samples])?;
    let classes = n.project(result, 1)?;
    single_output(n.cast(classes, dtype)?)
}

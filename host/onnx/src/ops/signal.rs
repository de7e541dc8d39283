//! Fourier transforms, window functions and Einstein summation.

use super::{Node, Outputs, Result, Row, attrs, one};
use byoc_ir::ir::ExprId;
use byoc_ir::tensor::{DType, Tensor};
use std::f64::consts::PI;

pub const ROWS: &[Row] = &[
    ("BlackmanWindow", 17, |n| window(n, [0.42, 0.5, 0.08])),
    ("DFT", 17, |n| {
        let axis = n.int_attr("axis", 1)?;
        let axis = n.tensor(Tensor::scalar(axis));
        dft(n, axis)
    }),
    ("DFT", 20, |n| {
        let axis = match n.optional_input(2) {
            Some(axis) => n.cast(axis, DType::I64)?,
            None => n.tensor(Tensor::scalar(-2i64)),
        };
        dft(n, axis)
    }),
    ("Einsum", 12, |n| {
        let inputs = n.all_inputs()?;
        let equation = n.str_attr("equation", "")?;
        let operands = n.tuple(&inputs)?;
        one(n.op("einsum", &[operands], attrs![equation: equation.as_str()])?)
    }),
    ("HammingWindow", 17, |n| window(n, [25.0 / 46.0, 21.0 / 46.0, 0.0])),
    ("HannWindow", 17, |n| window(n, [0.5, 0.5, 0.0])),
    ("STFT", 17, stft),
];

/// Transforms along an axis, a scalar.
fn dft(n: &mut Node<'_, '_>, axis: ExprId) -> Result<Outputs> {
    let data = n.input(0)?;
    let length = match n.optional_input(1) {
        Some(length) => n.cast(length, DType::I64)?,
        None => n.tensor(Tensor::scalar(0i64)),
    };
    let (inverse, onesided) = (n.int_attr("inverse", 0)? != 0, n.int_attr("onesided", 0)? != 0);
    one(n.op("signal.dft", &[data, length, axis], attrs![inverse: inverse, onesided: onesided])?)
}

fn stft(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (signal, step) = (n.input(0)?, n.input(1)?);
    let dtype = n.dtype(signal)?;
    let window = match (n.optional_input(2), n.optional_input(3)) {
        (Some(window), _) => window,
        (None, length) => {
            let length = match length {
                Some(length) => n.cast(length, DType::I64)?,
                None => n.shape_vector(signal, 1..2)?,
            };
            let length = n.reshape(length, &[1])?;
            let value = n.scalar(dtype, 1.0);
            n.op("dyn.full", &[value, length], attrs![dtype: dtype])?
        }
    };
    let onesided = n.int_attr("onesided", 1)? != 0;
    one(n.op("signal.stft", &[signal, step, window], attrs![onesided: onesided])?)
}

/// Computes a - b cos(2 pi i / count) + c cos(4 pi i / count) for each element i, in float64. `count` is the size of a
/// periodic window, and one less for a symmetric one.
fn window(n: &mut Node<'_, '_>, [a, b, c]: [f64; 3]) -> Result<Outputs> {
    let size = n.input(0)?;
    let size = n.cast(size, DType::F64)?;
    let size = n.reshape(size, &[])?;
    let number = n.int_attr("output_datatype", 1)?;
    let dtype = crate::tensor::dtype(number as i32)
        .ok_or_else(|| n.invalid_node(format!("unsupported element type number {number}")))?;
    let (zero, step) = (n.scalar(DType::F64, 0.0), n.scalar(DType::F64, 1.0));
    let index = n.op("arange", &[zero, size, step], attrs![dtype: DType::F64])?;
    let count = if n.int_attr("periodic", 1)? != 0 { size } else { n.with_scalar("subtract", size, 1.0)? };
    let ratio = n.op_without_attrs("divide", &[index, count])?;
    let mut wave = |turns: f64, factor: f64| {
        let angle = n.with_scalar("multiply", ratio, 2.0 * PI * turns)?;
        let cosine = n.op_without_attrs("cos", &[angle])?;
        n.with_scalar("multiply", cosine, factor)
    };
    let (first, second) = (wave(1.0, -b)?, wave(2.0, c)?);
    let sum = n.op_without_attrs("add", &[first, second])?;
    let sum = n.with_scalar("add", sum, a)?;
    one(n.cast(sum, dtype)?)
}

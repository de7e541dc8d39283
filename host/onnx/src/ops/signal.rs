//! Fourier transforms and window functions.

use super::{Node, Outputs, Result, Row, attrs, single_output};
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
    ("HammingWindow", 17, |n| window(n, [25.0 / 46.0, 21.0 / 46.0, 0.0])),
    ("HannWindow", 17, |n| window(n, [0.5, 0.5, 0.0])),
    ("MelWeightMatrix", 17, mel_weight_matrix),
    ("STFT", 17, stft),
];

/// Computes the discrete Fourier transform along `axis`, a scalar.
fn dft(n: &mut Node<'_, '_>, axis: ExprId) -> Result<Outputs> {
    let data = n.input(0)?;
    let length = match n.optional_input(1) {
        Some(length) => n.cast(length, DType::I64)?,
        None => n.tensor(Tensor::scalar(0i64)),
    };
    let (inverse, onesided) = (n.int_attr("inverse", 0)? != 0, n.int_attr("onesided", 0)? != 0);
    single_output(n.op("signal.dft", &[data, length, axis], attrs![inverse: inverse, onesided: onesided])?)
}

fn stft(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (signal, step) = (n.input(0)?, n.input(1)?);
    let dtype = n.dtype(signal)?;
    // A signal of real numbers may lack the last dimension, as exporters write it.
    let signal = if n.rank(signal)? == 2 { n.op("expand_dims", &[signal], attrs![axis: 2])? } else { signal };
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
    single_output(n.op("signal.stft", &[signal, step, window], attrs![onesided: onesided])?)
}

/// Computes a - b * cos(2 * pi * i / count) + c * cos(4 * pi * i / count) for each element i, in float64 (ONNX
/// operators BlackmanWindow, HammingWindow, HannWindow). `count` is the window size for a periodic window, and one less
/// for a symmetric window.
fn window(n: &mut Node<'_, '_>, [a, b, c]: [f64; 3]) -> Result<Outputs> {
    let size = n.input(0)?;
    let size = n.cast(size, DType::F64)?;
    let size = n.reshape(size, &[])?;
    let dtype_number = n.int_attr("output_datatype", 1)?;
    let dtype = crate::tensor::dtype(dtype_number as i32).ok_or_else(|| {
        n.invalid_node(format!("attribute output_datatype: unsupported element type number {dtype_number}"))
    })?;
    let (zero, step) = (n.scalar(DType::F64, 0.0), n.scalar(DType::F64, 1.0));
    let index = n.op("arange", &[zero, size, step], attrs![dtype: DType::F64])?;
    let count = if n.int_attr("periodic", 1)? != 0 { size } else { n.with_scalar("subtract", size, 1.0)? };
    let ratio = n.op_without_attrs("divide", &[index, count])?;
    let mut wave = |frequency: f64, factor: f64| {
        let angle = n.with_scalar("multiply", ratio, 2.0 * PI * frequency)?;
        let cosine = n.op_without_attrs("cos", &[angle])?;
        n.with_scalar("multiply", cosine, factor)
    };
    let (first_cosine, second_cosine) = (wave(1.0, -b)?, wave(2.0, c)?);
    let sum = n.op_without_attrs("add", &[first_cosine, second_cosine])?;
    let sum = n.with_scalar("add", sum, a)?;
    single_output(n.cast(sum, dtype)?)
}

/// Computes the weights of triangular mel-scale filters, (spectrogram bins, mel bins), in float64. Filter i rises
/// from edge i to edge i + 1 and falls to edge i + 2.
fn mel_weight_matrix(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let mut scalars = Vec::with_capacity(5);
    for i in 0..5 {
        let value = n.input(i)?;
        let value = n.cast(value, DType::F64)?;
        scalars.push(n.reshape(value, &[])?);
    }
    let [bins, length, rate, min_frequency, max_frequency] = scalars[..] else {
        return Err(n.invalid_node(format!("expected 5 inputs, found {}", scalars.len())));
    };
    let dtype_number = n.int_attr("output_datatype", 1)?;
    let dtype = crate::tensor::dtype(dtype_number as i32).ok_or_else(|| {
        n.invalid_node(format!("attribute output_datatype: unsupported element type number {dtype_number}"))
    })?;
    let mut mel = |frequency: ExprId| {
        let ratio = n.with_scalar("divide", frequency, 700.0)?;
        let shifted_ratio = n.with_scalar("add", ratio, 1.0)?;
        let power = n.op_without_attrs("log10", &[shifted_ratio])?;
        n.with_scalar("multiply", power, 2595.0)
    };
    let (min_frequency, max_frequency) = (mel(min_frequency)?, mel(max_frequency)?);
    let (zero, step) = (n.scalar(DType::F64, 0.0), n.scalar(DType::F64, 1.0));
    let count = n.with_scalar("add", bins, 2.0)?;
    let edges = n.op("arange", &[zero, count, step], attrs![dtype: DType::F64])?;
    let width = n.op_without_attrs("subtract", &[max_frequency, min_frequency])?;
    let width = n.op_without_attrs("divide", &[width, count])?;
    let edges = n.op_without_attrs("multiply", &[edges, width])?;
    let edges = n.op_without_attrs("add", &[edges, min_frequency])?;
    let power = n.with_scalar("divide", edges, 2595.0)?;
    let ten_value = n.scalar(DType::F64, 10.0);
    let power = n.op_without_attrs("power", &[ten_value, power])?;
    let frequency = n.with_scalar("subtract", power, 1.0)?;
    let frequency = n.with_scalar("multiply", frequency, 700.0)?;
    let length_plus_one = n.with_scalar("add", length, 1.0)?;
    let bin_position = n.op_without_attrs("multiply", &[length_plus_one, frequency])?;
    let bin_position = n.op_without_attrs("divide", &[bin_position, rate])?;
    let edges = n.op_without_attrs("floor", &[bin_position])?;
    let half_length = n.with_scalar("divide", length, 2.0)?;
    let half_length = n.op_without_attrs("floor", &[half_length])?;
    let rows = n.with_scalar("add", half_length, 1.0)?;
    let rows = n.op("arange", &[zero, rows, step], attrs![dtype: DType::F64])?;
    let row = n.op("expand_dims", &[rows], attrs![axis: 1])?;
    let mut filter_edge = |i: i64| -> Result<ExprId> {
        let steps =
            attrs![begin: [i], end: [if i == 2 { i64::from(i32::MAX) } else { i - 2 }], strides: [1], axes: [0]];
        n.op("strided_slice", &[edges], steps)
    };
    let [left_edge, center, right_edge] = [filter_edge(0)?, filter_edge(1)?, filter_edge(2)?];
    let [rise, fall] =
        [slope(n, [left_edge, center], [row, left_edge])?, slope(n, [center, right_edge], [right_edge, row])?];
    let mut both_hold = |pairs: [[ExprId; 2]; 2], comparisons: [&str; 2]| {
        let (a, b) = (n.op_without_attrs(comparisons[0], &pairs[0])?, n.op_without_attrs(comparisons[1], &pairs[1])?);
        n.op_without_attrs("logical_and", &[a, b])
    };
    let is_rising = both_hold([[row, left_edge], [row, center]], ["greater_equal", "less_equal"])?;
    let is_falling = both_hold([[row, center], [row, right_edge]], ["greater_equal", "less"])?;
    // A filter without a rising side is 1 at its center.
    let flat = both_hold([[left_edge, center], [row, center]], ["equal", "equal"])?;
    let value = n.op_without_attrs("where", &[is_rising, rise, zero])?;
    let value = n.op_without_attrs("where", &[flat, step, value])?;
    let value = n.op_without_attrs("where", &[is_falling, fall, value])?;
    single_output(n.cast(value, dtype)?)
}

/// Returns (a - b) / max(to - from, 1).
fn slope(n: &mut Node<'_, '_>, [from, to]: [ExprId; 2], [a, b]: [ExprId; 2]) -> Result<ExprId> {
    let one = n.scalar(DType::F64, 1.0);
    let width = n.op_without_attrs("subtract", &[to, from])?;
    let width = n.op_without_attrs("maximum", &[width, one])?;
    let height = n.op_without_attrs("subtract", &[a, b])?;
    n.op_without_attrs("divide", &[height, width])
}

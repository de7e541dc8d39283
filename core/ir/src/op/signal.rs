//! Discrete Fourier transforms. A complex number is stored as the two elements of the last axis: real part, imaginary
//! part.

use super::scalar::Writer;
use super::walk::split_at_axis;
use super::{AttrDef, AttrKind, Cost, Default, Evaluation, Params, ReferenceError, Relation, TypeResult};
use crate::cancel::Ticks;
use crate::diag::{Diagnostic, codes};
use crate::ir::{Dim, Type};
use crate::op::facts::{Properties, elements_of};
use crate::tensor::{TensorView, TensorViewMut};
use std::f64::consts::TAU;

operator! {
    name: "signal.dft",
    doc: "Discrete Fourier transform along an axis: y[k] = sum of x[n] e^(-2 pi i k n / length), the inverse with \
          the opposite sign and divided by the length. The last axis of data holds a real number (1 element) or a complex one (2). \
          Data is cut or padded with zeros to dft_length; 0 denotes the dimension of the axis.",
    inputs: &["data", "dft_length", "axis"],
    attrs: &[
        AttrDef::new("inverse", AttrKind::Bool, Default::Bool(false), "true for the inverse transform"),
        AttrDef::new("onesided", AttrKind::Bool, Default::Bool(false),
            "true to return the frequencies up to the Nyquist frequency, or with `inverse` to read them and return real numbers"),
    ],
    relation: dft_type,
    reference: Some(dft),
    flops,
    properties: Properties::EXACT.sum(elements_of::<0>),
}

operator! {
    name: "signal.stft",
    doc: "Discrete Fourier transforms of windows of a signal, frame_step apart: signal is (n, length, 1 or 2), the \
          result (n, frames, frequencies, 2).",
    inputs: &["signal", "frame_step", "window"],
    attrs: &[AttrDef::new("onesided", AttrKind::Bool, Default::Bool(true), "true to return the frequencies up to the Nyquist frequency")],
    relation: stft_type,
    reference: Some(stft),
    flops,
    properties: Properties::EXACT.sum(elements_of::<2>),
}

/// Estimates the cost as a complex multiply-add (8 operations) for each pair of a result element and an input element,
/// counting at most 1024 input elements.
fn flops(cost: &Cost<'_>) -> u64 {
    cost.ret_len().saturating_mul(8 * 1024.min(cost.arg_len(0)))
}

/// Returns the single integer of argument `i`, if it is known.
fn known_int(relation: &Relation<'_>, i: usize) -> Option<i64> {
    relation.known_ints(i).and_then(|values| values.first().copied())
}

/// Checks that the last axis of argument 0 holds real or complex floats.
fn check_numbers(relation: &Relation<'_>, least_rank: usize) -> Result<(), Box<Diagnostic>> {
    let data = relation.tensor(0)?;
    let parts = data.dims.last().and_then(Dim::fixed);
    if data.dtype.is_float() && data.dims.len() >= least_rank && parts.is_none_or(|parts| parts == 1 || parts == 2) {
        return Ok(());
    }
    let message = format!(
        "{}: expected floats with a last dimension of 1 or 2, found {}",
        relation.def.inputs[0], relation.args[0]
    );
    Err(relation.mismatch(message))
}

/// Sizes of a transform.
struct Sizes {
    /// Number of elements that are transformed.
    length: usize,
    /// Number of real or complex numbers in the result.
    out: usize,
    /// Number of tensor elements per number in the result: 1 for real numbers, 2 for complex numbers.
    parts: usize,
}

fn sizes(params: &Params<'_>, size: usize, requested: i64) -> Option<Sizes> {
    let (inverse, onesided) = (params.bool("inverse"), params.bool("onesided"));
    let length = match requested {
        0 if inverse && onesided => size.checked_sub(1)?.checked_mul(2)?,
        0 => size,
        length => usize::try_from(length).ok().filter(|&length| length < 1 << 31)?,
    };
    Some(match (inverse, onesided) {
        (true, true) => Sizes { length, out: length, parts: 1 },
        (false, true) => Sizes { length, out: length / 2 + 1, parts: 2 },
        _ => Sizes { length, out: length, parts: 2 },
    })
}

fn dft_type(relation: &Relation<'_>) -> TypeResult {
    check_numbers(relation, 2)?;
    let data = relation.tensor(0)?;
    let rank = data.dims.len();
    let is_real = relation.params.bool("inverse") && relation.params.bool("onesided");
    let mut dims = data.dims.to_vec();
    dims[rank - 1] = Dim::Fixed(if is_real { 1 } else { 2 });
    match (known_int(relation, 1), known_int(relation, 2)) {
        (Some(length), Some(axis)) => {
            let axis = relation.axis(axis, rank)?;
            if axis + 1 == rank {
                let message = format!("axis: expected an axis < {}, found {axis}", rank - 1);
                return Err(relation.error(codes::types::BAD_ATTRIBUTE, message));
            }
            dims[axis] = match data.dims[axis].fixed() {
                Some(size) => {
                    let sizes = sizes(&relation.params, size, length);
                    let message = || format!("dft_length: expected an integer >= 0, found {length}");
                    Dim::Fixed(sizes.ok_or_else(|| relation.error(codes::types::BAD_ATTRIBUTE, message()))?.out)
                }
                None => Dim::Any,
            };
        }
        _ => dims[..rank - 1].fill(Dim::Any),
    }
    Ok(Type::tensor_of(data.dtype, dims))
}

/// Transforms `length` complex numbers that `sample` returns, and calls `put` with each of the first `count` results.
fn transform(
    length: usize,
    count: usize,
    inverse: bool,
    sample: impl Fn(usize) -> (f64, f64),
    mut put: impl FnMut(usize, f64, f64),
) {
    let direction = if inverse { TAU } else { -TAU };
    let scale = if inverse { 1.0 / length.max(1) as f64 } else { 1.0 };
    // All angles are multiples of `direction / length`, so `length` sines and cosines suffice.
    let table: Vec<(f64, f64)> = (0..length).map(|i| (direction * i as f64 / length as f64).sin_cos()).collect();
    for k in 0..count {
        let (mut real, mut imaginary) = (0.0, 0.0);
        for n in 0..length {
            let (x, y) = sample(n);
            let (sin, cos) = table[(k as u128 * n as u128 % length as u128) as usize];
            real += x * cos - y * sin;
            imaginary += x * sin + y * cos;
        }
        put(k, real * scale, imaginary * scale);
    }
}

/// Returns the first element of an integer tensor. Error messages call the tensor `name`.
fn integer(view: &TensorView<'_>, name: &str) -> Result<i64, ReferenceError> {
    view.to_i64s().and_then(|values| values.first().copied()).ok_or_else(|| {
        format!("{name}: expected an integer that fits int64, found {} of shape {:?}", view.dtype, view.shape)
    })
}

fn dft(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let shape = inputs[0].shape;
    let int = |i: usize| integer(&inputs[i], ["data", "dft_length", "axis"][i]);
    let axis = int(2)?.rem_euclid(shape.len() as i64) as usize;
    let inverse = params.bool("inverse");
    let length = int(1)?;
    let sizes = sizes(&params, shape[axis], length)
        .ok_or_else(|| format!("dft_length: expected an integer >= 0 and < 2^31, found {length}"))?;
    let parts = *shape.last().unwrap_or(&1);
    let (outer, size, inner) = split_at_axis(&shape[..shape.len() - 1], axis);
    let data = inputs[0].to_f64s();
    let mut result = vec![0.0; outputs[0].len()];
    let mut ticks = Ticks::every(sizes.length.saturating_mul(sizes.out));
    for (block, inner_index) in (0..outer).flat_map(|block| (0..inner).map(move |inner_index| (block, inner_index))) {
        if ticks.is_requested() {
            return Err("cancelled".into());
        }
        let input_sample = |n: usize| {
            let start = ((block * size + n) * inner + inner_index) * parts;
            (data[start], if parts == 2 { data[start + 1] } else { 0.0 })
        };
        let sample_at = |n: usize| match n {
            // The upper half of a real signal's spectrum is the conjugate of the lower half.
            n if sizes.parts == 1 && n > sizes.length / 2 => {
                let (x, y) = if sizes.length - n < size { input_sample(sizes.length - n) } else { (0.0, 0.0) };
                (x, -y)
            }
            n if n < size => input_sample(n),
            _ => (0.0, 0.0),
        };
        transform(sizes.length, sizes.out, inverse, sample_at, |k, real, imaginary| {
            let start = ((block * sizes.out + k) * inner + inner_index) * sizes.parts;
            result[start] = real;
            if sizes.parts == 2 {
                result[start + 1] = imaginary;
            }
        });
    }
    Writer::new(&mut outputs[0]).store(result);
    Ok(())
}

fn stft_type(relation: &Relation<'_>) -> TypeResult {
    check_numbers(relation, 3)?;
    let (signal, window) = (relation.tensor(0)?, relation.tensor(2)?);
    if signal.dims.len() != 3 || window.dims.len() != 1 {
        let [a, b] = [&relation.args[0], &relation.args[2]];
        return Err(relation
            .mismatch(format!("expected a signal (n, length, 1 or 2) and a window (length), found {a} and {b}")));
    }
    let frequencies = match window.dims[0].fixed() {
        Some(length) if relation.params.bool("onesided") => Dim::Fixed(length / 2 + 1),
        _ => window.dims[0].clone(),
    };
    let frames = match (known_int(relation, 1), signal.dims[1].fixed(), window.dims[0].fixed()) {
        (Some(step), ..) if step < 1 => {
            return Err(relation
                .error(codes::types::BAD_ATTRIBUTE, format!("frame_step: expected an integer > 0, found {step}")));
        }
        (Some(step), Some(length), Some(window)) => match length.checked_sub(window) {
            Some(slack) => Dim::Fixed(slack / step as usize + 1),
            None => {
                return Err(relation.mismatch(format!("window: expected at most {length} elements, found {window}")));
            }
        },
        _ => Dim::Any,
    };
    Ok(Type::tensor_of(signal.dtype, [signal.dims[0].clone(), frames, frequencies, Dim::Fixed(2)]))
}

fn stft(_: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let (signal, window) = (inputs[0].to_f64s(), inputs[2].to_f64s());
    let (length, parts) = (inputs[0].shape[1], inputs[0].shape[2]);
    let step = integer(&inputs[1], "frame_step")?;
    let &[batches, frames, frequencies, _] = outputs[0].shape else {
        return Err(format!("result: expected 4 dimensions, found {}", outputs[0].shape.len()));
    };
    let mut result = vec![0.0; outputs[0].len()];
    let mut ticks = Ticks::every(window.len().saturating_mul(frequencies));
    for (batch, frame) in (0..batches).flat_map(|batch| (0..frames).map(move |frame| (batch, frame))) {
        if ticks.is_requested() {
            return Err("cancelled".into());
        }
        let sample = |n: usize| {
            let start = (batch * length + frame * step as usize + n) * parts;
            let imaginary = if parts == 2 { signal[start + 1] } else { 0.0 };
            (signal[start] * window[n], imaginary * window[n])
        };
        transform(window.len(), frequencies, false, sample, |k, real, imaginary| {
            let start = ((batch * frames + frame) * frequencies + k) * 2;
            (result[start], result[start + 1]) = (real, imaginary);
        });
    }
    Writer::new(&mut outputs[0]).store(result);
    Ok(())
}

operator! {
    name: "dft",
    doc: "Discrete Fourier transform along the last axis of a complex tensor in two parts: y[k] = sum of x[n] e^(-2 pi i \
          k n / length), the inverse with the opposite sign and divided by the length.",
    inputs: &["re_data", "im_data"],
    attrs: &[AttrDef::new("inverse", AttrKind::Bool, Default::Bool(false), "true for the inverse transform")],
    relation: |relation| {
        let (real, imaginary) = (relation.tensor(0)?, relation.tensor(1)?);
        let dtype = relation.same_dtype(real.dtype, imaginary.dtype)?;
        if real.dims.is_empty() || real.dims.len() != imaginary.dims.len() || !dtype.is_float() {
            let [a, b] = [&relation.args[0], &relation.args[1]];
            return Err(relation.mismatch(format!("expected floats of equal rank, at least 1, found {a} and {b}")));
        }
        for (i, (a, b)) in real.dims.iter().zip(&imaginary.dims).enumerate() {
            relation.same_dim(&format!("axis {i}"), a, b)?;
        }
        Ok(Type::tuple(relation.args.iter().cloned()))
    },
    reference: Some(split_dft),
    flops,
    properties: Properties::EXACT.sum(elements_of::<0>),
}

fn split_dft(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let length = inputs[0].shape[inputs[0].shape.len() - 1];
    let (real, imaginary, inverse) = (inputs[0].to_f64s(), inputs[1].to_f64s(), params.bool("inverse"));
    let [real_out, imaginary_out] = outputs else { return Err("expected two results".into()) };
    let (mut real_out, mut imaginary_out) = (Writer::new(real_out), Writer::new(imaginary_out));
    let mut ticks = Ticks::every(length.saturating_mul(length));
    for start in (0..real.len()).step_by(length.max(1)) {
        if ticks.is_requested() {
            return Err("cancelled".into());
        }
        transform(
            length,
            length,
            inverse,
            |n| (real[start + n], imaginary[start + n]),
            |k, x, y| {
                real_out.set_float(start + k, x);
                imaginary_out.set_float(start + k, y);
            },
        );
    }
    Ok(())
}

operator! {
    name: "stft",
    doc: "Discrete Fourier transforms of windows of a signal, hop_length apart: data is (length) or (batch, length), the \
          result (batch, frequencies, frames, 2) with real and imaginary parts. Of each frame the win_length elements are \
          multiplied by window; the angles are those of win_length.",
    inputs: &["data", "window"],
    attrs: &[
        AttrDef::new("n_fft", AttrKind::Int, Default::Required, "length of the transform"),
        AttrDef::new("hop_length", AttrKind::Int, Default::Int(-1), "distance between frames; n_fft / 4 if not positive"),
        AttrDef::new("win_length", AttrKind::Int, Default::Int(-1), "number of elements of a frame; n_fft if not positive"),
        AttrDef::new("normalized", AttrKind::Bool, Default::Bool(false), "true to divide by the square root of n_fft"),
        AttrDef::new("onesided", AttrKind::Bool, Default::Bool(true), "true to return the frequencies up to the Nyquist frequency"),
    ],
    relation: windows_type,
    reference: Some(windows),
    flops,
    properties: Properties::EXACT.sum(elements_of::<1>),
}

/// Returns attributes n_fft, hop_length and win_length; `None` if they are out of range.
fn window_sizes(params: &Params<'_>) -> Option<[usize; 3]> {
    let size = params.int("n_fft");
    let or = |value: i64, default: i64| if value > 0 { value } else { default };
    let (hop, window) = (or(params.int("hop_length"), size / 4), or(params.int("win_length"), size));
    let is_valid = (1..1 << 31).contains(&size) && (1..1 << 31).contains(&hop) && window <= size;
    is_valid.then_some([size as usize, hop as usize, window as usize])
}

fn windows_type(relation: &Relation<'_>) -> TypeResult {
    let (data, window) = (relation.tensor(0)?, relation.tensor(1)?);
    relation.same_dtype(data.dtype, window.dtype)?;
    let Some([size, hop, length]) = window_sizes(&relation.params) else {
        let [size, hop, length] = ["n_fft", "hop_length", "win_length"].map(|name| relation.params.int(name));
        return Err(relation.error(
            codes::types::BAD_ATTRIBUTE,
            format!("expected 1 <= win_length <= n_fft and hop_length >= 1, found {length}, {size} and {hop}"),
        ));
    };
    let (batch, samples) = match (&data.dims[..], &window.dims[..]) {
        ([samples], [_]) => (None, samples),
        ([batch, samples], [_]) => (Some(batch.clone()), samples),
        _ => {
            let [a, b] = [&relation.args[0], &relation.args[1]];
            return Err(relation.mismatch(format!("expected data of rank 1 or 2 and a vector, found {a} and {b}")));
        }
    };
    if !data.dtype.is_float() {
        return Err(relation.mismatch(format!("data: expected floats, found {}", relation.args[0])));
    }
    relation.same_dim("win_length and window", &Dim::Fixed(length), &window.dims[0])?;
    let frames = match samples.fixed() {
        Some(samples) if samples >= size => Dim::Fixed((samples - size) / hop + 1),
        Some(samples) => {
            return Err(relation.mismatch(format!("data: expected at least {size} elements, found {samples}")));
        }
        None => Dim::Any,
    };
    let frequencies = Dim::Fixed(if relation.params.bool("onesided") { size / 2 + 1 } else { size });
    Ok(Type::tensor_of(data.dtype, batch.into_iter().chain([frequencies, frames, Dim::Fixed(2)])))
}

fn windows(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let [size, hop, length] = window_sizes(&params).ok_or("n_fft, hop_length, win_length: expected valid sizes")?;
    let (data, window) = (inputs[0].to_f64s(), inputs[1].to_f64s());
    let samples = inputs[0].shape[inputs[0].shape.len() - 1];
    let [.., frequencies, frames, _] = *outputs[0].shape else {
        return Err("result: expected 3 dimensions or more".into());
    };
    let scale = if params.bool("normalized") { 1.0 / (size as f64).sqrt() } else { 1.0 };
    let mut result = vec![0.0; outputs[0].len()];
    let mut ticks = Ticks::every(length.saturating_mul(frequencies));
    for (batch, signal) in data.chunks_exact(samples.max(1)).enumerate() {
        for frame in 0..frames {
            if ticks.is_requested() {
                return Err("cancelled".into());
            }
            transform(
                length,
                frequencies,
                false,
                |n| (signal[frame * hop + n] * window[n], 0.0),
                |k, x, y| {
                    let start = ((batch * frequencies + k) * frames + frame) * 2;
                    (result[start], result[start + 1]) = (x * scale, y * scale);
                },
            );
        }
    }
    Writer::new(&mut outputs[0]).store(result);
    Ok(())
}

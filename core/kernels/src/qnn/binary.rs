//! Binary operators on 8-bit integers, with broadcasting. Additions and subtractions look both operands up in tables of
//! their requantized values; products are computed and rescaled. With a single second operand the result is a function of
//! one byte, so that all 256 results are computed first.

use super::elementwise::line;
use super::lookup::{self, Sum};
use crate::broadcast::LoopNest;
use crate::simd::{low_byte_f64, multiversion};
use crate::{Kernel, Offer, Spec};
use byoc_ir::op::qnn::numerics::{Rescale, Rounding, range, rescale, saturate};
use byoc_ir::op::qnn::{default_requantization, scales};
use byoc_ir::tensor::{DType, TensorView, TensorViewMut};

inventory::submit! { Offer { op: "qnn.add", make } }
inventory::submit! { Offer { op: "qnn.subtract", make } }
inventory::submit! { Offer { op: "qnn.mul", make } }

/// Number of elements that are computed together.
const BLOCK: usize = 256;

struct Binary {
    function: Function,
    walk: LoopNest<2>,
    /// Operand with a single element, and which the other one has the shape of the result.
    single: Option<usize>,
}

enum Function {
    Sum(Box<Sum>),
    Product(Product),
}

/// Product of integers minus their zero points, rescaled.
struct Product {
    /// Sign bit of `int8`, which is flipped, and the zero points of the flipped bytes.
    flip: u8,
    zero_points: [i32; 2],
    factor: Rescale,
    /// The factor in binary64, if results computed with it are those of the fixed-point formula.
    real_factor: Option<f64>,
    result_zero_point: i32,
    limits: (i64, i64),
}

fn make(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    let shapes: Vec<_> = spec.inputs[..2].iter().map(|t| t.shape()).collect::<Option<_>>()?;
    let out = spec.outputs.first()?.shape()?;
    if spec.inputs[0].dtype.size() != 1 || spec.inputs[2..].iter().any(|t| t.len() != Some(1)) || out.contains(&0) {
        return None;
    }
    let function = match spec.def.name {
        "qnn.mul" => Function::Product(product(spec)?),
        _ => Function::Sum(Box::new(sum(spec)?)),
    };
    let len = |shape: &[usize]| shape.iter().product::<usize>();
    let single = (0..2).find(|&i| len(&shapes[i]) == 1 && len(&shapes[1 - i]) == len(&out));
    Some(Box::new(Binary { function, walk: LoopNest::new([&shapes[0], &shapes[1]], &out), single }))
}

/// Returns the scale in input `i`, if it is constant.
fn scale(spec: &Spec<'_>, i: usize) -> Option<Vec<f32>> {
    scales(&spec.params(), i, &spec.constants.get(i).copied().flatten()?.view()).ok()
}

/// Returns the zero point in input `i`, if it is constant.
fn zero_point(spec: &Spec<'_>, i: usize) -> Option<i32> {
    spec.constants.get(i).copied().flatten()?.as_slice::<i32>().first().copied()
}

fn sum(spec: &Spec<'_>) -> Option<Sum> {
    let dtype = spec.inputs[0].dtype;
    let (result_scale, result_zero) = (scale(spec, 6)?, zero_point(spec, 7)?);
    let mut tables = [[0; 256]; 2];
    for (side, table) in tables.iter_mut().enumerate() {
        let (source_scale, source_zero) = (scale(spec, 2 + 2 * side)?, zero_point(spec, 3 + 2 * side)?);
        let factor = default_requantization(&source_scale, &result_scale)[0];
        let is_identity = factor == Rescale::Same && source_zero == result_zero;
        for (i, entry) in table.iter_mut().enumerate() {
            let x = if dtype == DType::U8 { i as i64 } else { i64::from(i as u8 as i8) };
            let int32_range = (i64::from(i32::MIN), i64::from(i32::MAX));
            let centered_value = saturate(i128::from(x) - i128::from(source_zero));
            let value = if is_identity { x } else { rescale(centered_value, factor, result_zero, int32_range) };
            // The table of the second operand excludes the zero point, and includes the sign of a subtraction. Sums
            // that may overflow `int32` are left to the reference.
            let value = match side {
                0 => value,
                _ if spec.def.name == "qnn.subtract" => i64::from(result_zero) - value,
                _ => value - i64::from(result_zero),
            };
            *entry = i32::try_from(value).ok().filter(|v| v.unsigned_abs() < 1 << 30)?;
        }
    }
    Some(Sum::new(tables, dtype == DType::I8))
}

fn product(spec: &Spec<'_>) -> Option<Product> {
    let product_scale = scale(spec, 2)?.first()? * scale(spec, 4)?.first()?;
    if !(product_scale.is_finite() && product_scale > 0.0) {
        return None;
    }
    let dtype = spec.inputs[0].dtype;
    let flip = if dtype == DType::I8 { 0x80 } else { 0 };
    let zero_points = [zero_point(spec, 3)?, zero_point(spec, 5)?];
    // The products of differences to larger ones may exceed `int32`, and are left to the reference.
    let are_small = zero_points.iter().all(|zero| zero.unsigned_abs() < 1 << 14);
    let zero_points = zero_points.map(|zero| zero + i32::from(flip));
    let (factor, result_zero_point) =
        (default_requantization(&[product_scale], &scale(spec, 6)?)[0], zero_point(spec, 7)?);
    let largest = |zero: i32| i64::from(zero.abs().max((255 - zero).abs()));
    let is_exact = largest(zero_points[0]) * largest(zero_points[1]) < MAX_EXACT && result_zero_point.abs() <= 255;
    let real_factor = if is_exact { real_factor(factor) } else { None };
    are_small.then_some(Product { flip, zero_points, factor, real_factor, result_zero_point, limits: range(dtype) })
}

/// Bound of products whose multiplication by a fixed-point factor is exact in binary64, with a half added: 21 bits and
/// the 31 bits of the multiplier.
const MAX_EXACT: i64 = 1 << 21;

/// Returns the factor as a real number, if halves are rounded up and the formula shifts by no more than its limits.
fn real_factor(factor: Rescale) -> Option<f64> {
    match factor {
        Rescale::Fixed(ratio, Rounding::Upward) if (-32..=30).contains(&ratio.exponent) => {
            Some(f64::from(ratio.multiplier) * (f64::from(ratio.exponent) - 31.0).exp2())
        }
        _ => None,
    }
}

impl Function {
    /// Computes `out[i]` from `a[i]` and `b[i]`.
    fn compute(&self, a: &[u8], b: &[u8], out: &mut [u8]) {
        match self {
            Function::Sum(sum) => sum.compute(a, b, out),
            Function::Product(product) => {
                let mut products = [0; BLOCK];
                for ((a, b), out) in a.chunks(BLOCK).zip(b.chunks(BLOCK)).zip(out.chunks_mut(BLOCK)) {
                    let products = &mut products[..out.len()];
                    multiply(a, b, product.flip, product.zero_points, products);
                    match product.real_factor {
                        Some(factor) => real_line(products, out, factor, product.result_zero_point, product.limits),
                        None => line(products, out, product.factor, product.result_zero_point, product.limits),
                    }
                }
            }
        }
    }
}

impl Kernel for Binary {
    fn run(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], _: &mut [u8]) -> Result<(), String> {
        let operands = [inputs[0].data, inputs[1].data];
        if let Some(single) = self.single.filter(|_| outputs[0].data.len() > BLOCK) {
            let (bytes, repeated) = (std::array::from_fn::<u8, 256, _>(|i| i as u8), [operands[single][0]; 256]);
            let mut table = [0; 256];
            let [a, b] = if single == 0 { [&repeated, &bytes] } else { [&bytes, &repeated] };
            self.function.compute(a, b, &mut table);
            lookup::look_up_each(&table, operands[1 - single], outputs[0].data);
            return Ok(());
        }
        let steps = self.walk.inner.1;
        self.walk.for_each_row(&mut *outputs[0].data, 2, |offsets, out| {
            let mut repeated = [[0; BLOCK]; 2];
            for (i, repeated) in repeated.iter_mut().enumerate().filter(|(i, _)| steps[*i] == 0) {
                repeated.fill(operands[i][offsets[i]]);
            }
            for (block, out) in out.chunks_mut(BLOCK).enumerate() {
                let [a, b] = std::array::from_fn(|i| match steps[i] {
                    0 => &repeated[i][..out.len()],
                    _ => &operands[i][offsets[i] + block * BLOCK..][..out.len()],
                });
                self.function.compute(a, b, out);
            }
        });
        Ok(())
    }
}

multiversion! {
    /// Rescales integers, halves rounded up, adds the zero point, and saturates the results. (Processors have few
    /// instructions for the 64-bit integers of the fixed-point formula.)
    fn real_line(x: &[i32], out: &mut [u8], factor: f64, zero_point: i32, limits: (i64, i64)) {
        let (zero, low, high) = (f64::from(zero_point), limits.0 as f64, limits.1 as f64);
        for (out, x) in out.iter_mut().zip(x) {
            let value = (f64::from(*x) * factor + 0.5).floor() + zero;
            *out = low_byte_f64(value.max(low).min(high));
        }
    }

    /// Computes the products of bytes with their sign bits flipped, minus the zero points.
    fn multiply(a: &[u8], b: &[u8], flip: u8, zero_points: [i32; 2], products: &mut [i32]) {
        for ((product, a), b) in products.iter_mut().zip(a).zip(b) {
            *product = (i32::from(a ^ flip) - zero_points[0]) * (i32::from(b ^ flip) - zero_points[1]);
        }
    }
}

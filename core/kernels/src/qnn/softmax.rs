//! `qnn.softmax` over the last axis of 8-bit integers. The exponentials of a row are functions of a byte and of the row's
//! largest one, so that there is a table of them for each largest byte that occurs.

use super::elementwise::quantize;
use crate::simd::multiversion;
use crate::{Kernel, Offer, Spec, split};
use byoc_ir::op::qnn::numerics::{Rounding, range};
use byoc_ir::tensor::{DType, TensorView, TensorViewMut};
use std::sync::OnceLock;

inventory::submit! { Offer { op: "qnn.softmax", make } }

/// Number of results that are divided, then quantized, at once.
const BLOCK: usize = 512;

multiversion! {
    /// Divides the table's entry of each byte by the sum.
    fn divide(row: &[u8], flip: u8, table: &[f64; 256], sum: f64, out: &mut [f32]) {
        for (out, &x) in out.iter_mut().zip(row) {
            *out = (table[usize::from(x ^ flip)] / sum) as f32;
        }
    }
}

struct Softmax {
    len: usize,
    is_signed: bool,
    limits: (i64, i64),
}

fn make(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    let (data, axis) = (&spec.inputs[0], spec.params().int("axis"));
    let shape = data.shape()?;
    let is_last = axis == -1 || axis == shape.len() as i64 - 1;
    if data.dtype.size() != 1 || !is_last || shape.is_empty() || shape.contains(&0) {
        return None;
    }
    Some(Box::new(Softmax { len: *shape.last()?, is_signed: data.dtype == DType::I8, limits: range(data.dtype) }))
}

impl Kernel for Softmax {
    fn run(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], _: &mut [u8]) -> Result<(), String> {
        let [scale, result_scale] = [1, 3].map(|i| inputs[i].as_slice::<f32>()[0]);
        let [zero, result_zero] = [2, 4].map(|i| inputs[i].as_slice::<i32>()[0]);
        for (name, scale) in [("input_scale", scale), ("output_scale", result_scale)] {
            if !(scale.is_finite() && scale > 0.0) {
                return Err(format!("{name}: expected a finite scale above 0, found {scale}"));
            }
        }
        // Bytes in the order of the integers: the sign bit of `int8` is flipped.
        let flip = if self.is_signed { 0x80 } else { 0 };
        let lowest = if self.is_signed { -128 } else { 0 };
        let real = |byte: usize| f64::from(scale * (byte as i32 + lowest).saturating_sub(zero) as f32);
        let tables: [OnceLock<Box<[f64; 256]>>; 256] = [const { OnceLock::new() }; 256];
        let limits = (self.limits.0 as f32, self.limits.1 as f32);
        let x = inputs[0].data;
        split::for_each_chunk(&mut *outputs[0].data, self.len, 4 * x.len(), |i, out| {
            let row = &x[i * self.len..][..self.len];
            let max = usize::from(row.iter().fold(0, |max, &x| max.max(x ^ flip)));
            let exp = |byte: usize| (real(byte) - real(max)).exp();
            let table = tables[max].get_or_init(|| Box::new(std::array::from_fn(exp)));
            let sum: f64 = row.iter().map(|&x| table[usize::from(x ^ flip)]).sum();
            let mut quotients = [0.0; BLOCK];
            for (row, out) in row.chunks(BLOCK).zip(out.chunks_mut(BLOCK)) {
                let quotients = &mut quotients[..row.len()];
                divide(row, flip, table, sum, quotients);
                quantize(quotients, out, result_scale, result_zero as f32, limits, Rounding::ToNearest);
            }
        });
        Ok(())
    }
}

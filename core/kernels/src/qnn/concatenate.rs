//! Concatenation of 8-bit integers with different scales: a table of the requantized values for each tensor.

use super::lookup;
use crate::{Kernel, Offer, Spec};
use byoc_ir::op::qnn::numerics::{range, rescale, saturate};
use byoc_ir::op::qnn::{default_requantization, scales};
use byoc_ir::tensor::{DType, TensorView, TensorViewMut};

inventory::submit! { Offer { op: "qnn.concatenate", make } }

struct Concatenate {
    parts: Vec<Part>,
    /// Number of elements of the result for each index before the axis.
    row: usize,
}

struct Part {
    table: Box<[u8; 256]>,
    /// Number of elements for each index before the axis.
    row: usize,
}

fn make(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    let out = spec.outputs.first()?;
    let shape = out.shape()?;
    let count = (spec.inputs.len() - 2) / 3;
    let axis = spec.params().int("axis");
    let axis = if axis < 0 { axis + shape.len() as i64 } else { axis } as usize;
    if out.dtype.size() != 1 || shape.contains(&0) {
        return None;
    }
    let constant = |i: usize| spec.constants.get(i).copied().flatten();
    let scale = |i: usize| scales(&spec.params(), i, &constant(i)?.view()).ok();
    let zero_point = |i: usize| constant(i)?.as_slice::<i32>().first().copied();
    let (result_scale, result_zero) = (scale(3 * count)?, zero_point(3 * count + 1)?);
    let part = |i: usize| {
        let factor = default_requantization(&scale(count + i)?, &result_scale)[0];
        let zero = zero_point(2 * count + i)?;
        let entry = |byte: usize| {
            let x = if out.dtype == DType::U8 { byte as i128 } else { i128::from(byte as u8 as i8) };
            rescale(saturate(x - i128::from(zero)), factor, result_zero, range(out.dtype)) as u8
        };
        let row = spec.inputs[i].shape()?[axis..].iter().product();
        Some(Part { table: Box::new(std::array::from_fn(entry)), row })
    };
    let parts = (0..count).map(part).collect::<Option<Vec<_>>>()?;
    Some(Box::new(Concatenate { parts, row: shape[axis..].iter().product() }))
}

impl Kernel for Concatenate {
    fn run(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], _: &mut [u8]) -> Result<(), String> {
        let mut first = 0;
        for (part, input) in self.parts.iter().zip(inputs).filter(|(part, _)| part.row > 0) {
            for (row, out) in input.data.chunks_exact(part.row).zip(outputs[0].data.chunks_exact_mut(self.row)) {
                lookup::look_up_each(&part.table, row, &mut out[first..][..part.row]);
            }
            first += part.row;
        }
        Ok(())
    }
}

//! bfloat16 on request: products and convolutions with constant weights read 16-bit operands and accumulate in 32 bits;
//! everything else is unaffected.
//!
//! oneDNN's own mode for this (`fpmath`) has no effect on CPUs without matrix tiles. So weights are packed as bfloat16
//! at load time, which halves them, and data is converted by a copy before each use; results are 32-bit floats again.
//! The copy is a pass over the data, so convolutions that do little work per element are excluded: depthwise ones, and
//! those with few output channels.

use crate::argument::Buf;
use crate::lower::{Lowering, Placed};
use crate::program::Taken;
use crate::view::{View, count};
use byoc_plugin_api::DType;

/// Minimum number of multiplications of a product, in total and per element of its data, for the copy to pay off. On
/// MobileNetV2, where few products qualify, copying for all of them cost more than the products gained.
const LEAST: i64 = 500_000;
const LEAST_EACH: i64 = 48;

impl Lowering<'_> {
    /// Returns true if a product of data by weights with this number of multiplications should read bfloat16.
    pub fn may_narrow(&self, data: &Placed, weights: &Placed, multiplications: i64) -> bool {
        let narrows = [data, weights].map(|placed| self.dtype(placed)) == [DType::F32; 2] && self.is_constant(weights);
        let gains = multiplications >= LEAST && multiplications >= LEAST_EACH * count(&data.view.shape);
        self.program.options.narrow && narrows && gains
    }

    /// Returns a bfloat16 copy, dense in this memory order; the copy is shared by all its readers.
    pub fn narrowed(&mut self, placed: &Placed, order: &[usize]) -> Taken<Placed> {
        let view = View::in_order(&placed.view.shape, order);
        if let Some((_, copy)) = self.narrow_copies.iter().find(|(from, to)| from == placed && to.view == view) {
            return Ok(copy.clone());
        }
        let copy = self.scratch_of(DType::BF16, view);
        self.copy(placed, &copy, "bfloat16")?;
        self.narrow_copies.push((placed.clone(), copy.clone()));
        Ok(copy)
    }

    /// Invalidates the copies of a buffer that is overwritten.
    pub fn forget_narrowed(&mut self, written: Buf) {
        self.narrow_copies.retain(|(from, _)| from.buffer != written);
    }
}

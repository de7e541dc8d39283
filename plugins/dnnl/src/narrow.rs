//! bfloat16, where its user asks for it: products and convolutions whose weights are constant read 16-bit operands and sum in
//! 32 bits, everything else stays as it is.
//!
//! The library's own mode for that (`fpmath`) changes nothing on CPUs without matrix tiles. So weights are packed as bfloat16 when
//! they are loaded, which halves them, and data is copied on the way in; results are 32-bit floats again. A copy costs a pass over
//! the data, which is why convolutions that do little with each element are left alone: depthwise
//! ones, and those into few channels.

use crate::argument::Buf;
use crate::lower::{Lowering, Placed};
use crate::program::Taken;
use crate::view::{View, count};
use byoc_plugin_api::DType;

/// The fewest multiplications of a product that is worth a copy of its data, and for each of its elements. On MobileNetV2, where
/// few are, the copies took more than the products gained as long as everything was copied.
const LEAST: i64 = 500_000;
const LEAST_EACH: i64 = 48;

impl Lowering<'_> {
    /// Returns true if a product of data by weights is to read bfloat16, which takes so many multiplications.
    pub fn may_narrow(&self, data: &Placed, weights: &Placed, multiplications: i64) -> bool {
        let narrows = [data, weights].map(|placed| self.dtype(placed)) == [DType::F32; 2] && self.is_constant(weights);
        let gains = multiplications >= LEAST && multiplications >= LEAST_EACH * count(&data.view.shape);
        self.program.options.narrow && narrows && gains
    }

    /// A copy in bfloat16, dense in that order, made once for all who read it.
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

    /// Forgets the copies of what is overwritten.
    pub fn forget_narrowed(&mut self, written: Buf) {
        self.narrow_copies.retain(|(from, _)| from.buffer != written);
    }
}

//! bfloat16 on request: products and convolutions with constant weights read 16-bit operands and accumulate in 32 bits;
//! everything else is unaffected.
//!
//! oneDNN's own mode for this (`fpmath`) has no effect on CPUs without matrix tiles. So weights are packed as bfloat16
//! at load time, which halves them, and data is converted by a copy before each use; results are 32-bit floats again.
//! The copy is a pass over the data, so convolutions that do little work per element are excluded: depthwise ones, and
//! those with few output channels.

use crate::argument::BufferId;
use crate::ir::Result;
use crate::lower::{BufferView, Lowering};
use byoc_plugin_api::DType;
use byoc_plugin_support::view::{View, count};

/// Minimum number of multiplications of a product, in total and per element of its data, for the copy to pay off. On
/// MobileNetV2, where few products qualify, copying for all of them cost more than the products gained.
const MIN_MULTIPLICATIONS: i64 = 500_000;
const MIN_MULTIPLICATIONS_PER_ELEMENT: i64 = 48;

impl Lowering<'_> {
    /// Returns true if a product of data by weights with this number of multiplications should read bfloat16.
    pub fn should_use_bf16(&self, data: &BufferView, weights: &BufferView, multiplications: i64) -> bool {
        let eligible = [data, weights].map(|tensor| self.dtype(tensor)) == [DType::F32; 2] && self.is_constant(weights);
        let gains = multiplications >= MIN_MULTIPLICATIONS
            && multiplications >= MIN_MULTIPLICATIONS_PER_ELEMENT * count(&data.view.shape);
        self.ir.options.bf16 && eligible && gains
    }

    /// Returns a bfloat16 copy, dense in this memory order; the copy is shared by all its readers.
    pub fn bf16_copy(&mut self, tensor: &BufferView, order: &[usize]) -> Result<BufferView> {
        let view = View::in_order(&tensor.view.shape, order);
        if let Some((_, copy)) = self.bf16_copies.iter().find(|(from, to)| from == tensor && to.view == view) {
            return Ok(copy.clone());
        }
        let copy = self.scratch_of(DType::BF16, view);
        self.copy(tensor, &copy, "bfloat16")?;
        self.bf16_copies.push((tensor.clone(), copy.clone()));
        Ok(copy)
    }

    /// Invalidates the copies of a buffer that is overwritten.
    pub fn forget_bf16_copies(&mut self, written: BufferId) {
        self.bf16_copies.retain(|(from, _)| from.buffer != written);
    }
}

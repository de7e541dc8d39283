//! Optional bfloat16: matrix products and convolutions with constant weights read bfloat16 operands and accumulate in
//! `float32`; all other operators are unaffected.
//!
//! oneDNN's own bfloat16 mode (`fpmath`) has no effect on CPUs without matrix tiles. So weights are packed as bfloat16
//! at load time, which halves their size, and activations are converted by a copy before each use; results are
//! `float32`. Because of the copy, convolutions with little work per element are excluded: depthwise convolutions, and
//! convolutions with few output channels.

use crate::argument::BufferId;
use crate::ir::Result;
use crate::lower::{BufferView, Lowering};
use byoc_plugin_api::DType;
use byoc_plugin_support::view::{View, count};

/// Minimum number of multiplications, in total and per data element, for which the copy to bfloat16 pays off. On
/// MobileNetV2, converting the data of every operator took more time than the faster multiplications saved.
const MIN_MULTIPLICATIONS: i64 = 500_000;
const MIN_MULTIPLICATIONS_PER_ELEMENT: i64 = 48;

impl Lowering<'_> {
    /// Returns true if an operator with `multiplications` multiplications of `data` by `weights` should read bfloat16.
    pub fn should_use_bf16(&self, data: &BufferView, weights: &BufferView, multiplications: i64) -> bool {
        let is_eligible =
            [data, weights].map(|tensor| self.dtype(tensor)) == [DType::F32; 2] && self.is_constant(weights);
        let is_profitable = multiplications >= MIN_MULTIPLICATIONS
            && multiplications >= MIN_MULTIPLICATIONS_PER_ELEMENT * count(&data.view.shape);
        self.ir.options.bf16 && is_eligible && is_profitable
    }

    /// Returns a bfloat16 copy of a tensor, dense in the memory order `order` and shared by all readers.
    pub fn bf16_copy(&mut self, tensor: &BufferView, order: &[usize]) -> Result<BufferView> {
        let view = View::in_order(&tensor.view.shape, order);
        if let Some((_, copy)) =
            self.bf16_copies.iter().find(|(source, copy_view)| source == tensor && copy_view.view == view)
        {
            return Ok(copy.clone());
        }
        let copy = self.scratch_of(DType::BF16, view);
        self.copy(tensor, &copy, "bfloat16")?;
        self.bf16_copies.push((tensor.clone(), copy.clone()));
        Ok(copy)
    }

    /// Invalidates the bfloat16 copies of a buffer that has been overwritten.
    pub fn forget_bf16_copies(&mut self, overwritten_buffer: BufferId) {
        self.bf16_copies.retain(|(source, _)| source.buffer != overwritten_buffer);
    }
}

//! Lowering of int8 and uint8 average pooling.

use super::Lowering;
use crate::ir::{CompileError, Op, Result};
use crate::library::ffi;
use crate::plan::Operation;
use crate::qnn::avg_pool::{Axis, IntAvgPool, IntAvgPoolKernel};
use crate::shape::channels_last;
use byoc_plugin_api::{DType, RefusalCode};
use byoc_plugin_support::view::View;

impl Lowering<'_> {
    /// Adds an average pooling step, which runs a hand-written channels-last kernel.
    pub fn int_avg_pool(&mut self, op: &Op, pool: &IntAvgPool) -> Result<usize> {
        let x = self.placement(op.inputs[0]);
        let shape = self.ir.shape(op.output).to_vec();
        if shape.len() != 4 {
            return Err(CompileError::new(
                RefusalCode::UnsupportedShape,
                format!("result: expected rank 4, found shape {shape:?}"),
            ));
        }
        let channels_last_order = channels_last(4);
        let x = self.in_order(&x, &channels_last_order)?;
        let axis = |i: usize| Axis {
            size: x.view.shape[2 + i],
            out: shape[2 + i],
            kernel: pool.window.kernel[i],
            stride: pool.window.strides[i],
            dilation: pool.window.dilation[i],
            pad_before: pool.window.pad_before[i],
        };
        let kernel = IntAvgPoolKernel {
            images: shape[0] as usize,
            channels: shape[1] as usize,
            axes: [axis(0), axis(1)],
            includes_padding: pool.includes_padding,
            zero: pool.zero,
            scale: pool.scale,
            is_signed: self.dtype(&x) == DType::I8,
        };
        let result = self.scratch(View::in_order(&shape, &channels_last_order));
        let args = vec![(ffi::ARG_SRC, x), (ffi::ARG_DST, result.clone())];
        self.handwritten_step(Operation::IntAvgPool(kernel), args, "integer average pooling")?;
        self.set_placement(op.output, result);
        Ok(0)
    }
}

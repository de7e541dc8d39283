//! Lowering of average pooling of bytes.

use super::Lowering;
use crate::library::ffi;
use crate::plan::Work;
use crate::program::{Op, Reason, Taken};
use crate::qnn::mean::{Axis, Mean, Means};
use crate::view::{View, channels_last};
use byoc_plugin_api::{DType, RefusalCode};

impl Lowering<'_> {
    /// Adds the step of an average pooling.
    pub fn mean(&mut self, op: &Op, mean: &Mean) -> Taken<usize> {
        let x = self.at(op.inputs[0]);
        let shape = self.program.shape(op.output).to_vec();
        if shape.len() != 4 {
            return Err(Reason::new(RefusalCode::UnsupportedShape, format!("expected 4 dimensions, found {shape:?}")));
        }
        let last = channels_last(4);
        let x = self.in_order(&x, &last)?;
        let axis = |i: usize| Axis {
            size: x.view.shape[2 + i],
            out: shape[2 + i],
            kernel: mean.window.kernel[i],
            stride: mean.window.strides[i],
            dilation: mean.window.dilation[i],
            before: mean.window.before[i],
        };
        let means = Means {
            images: shape[0] as usize,
            channels: shape[1] as usize,
            axes: [axis(0), axis(1)],
            padded: mean.padded,
            zero: mean.zero,
            scale: mean.scale,
            signed: self.dtype(&x) == DType::I8,
        };
        let result = self.scratch(View::in_order(&shape, &last));
        let args = vec![(ffi::ARG_SRC, x), (ffi::ARG_DST, result.clone())];
        self.own_step(Work::Means(means), args, "integer average pooling")?;
        self.put(op.output, result);
        Ok(0)
    }
}

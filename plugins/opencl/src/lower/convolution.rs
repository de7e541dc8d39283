//! Convolutions as contractions, or as windows if they are depthwise.

use super::contraction::{Contraction, Tap};
use super::panels::Operand;
use super::window::{Reduction, Window};
use super::{Lowering, Result};
use crate::layout::{Axis, layout, spatial_axes};
use byoc_plugin_api::RefusalCode;
use byoc_plugin_support::refusal::refuse;
use byoc_plugin_support::region::Op;
use byoc_plugin_support::view::View;

impl Lowering<'_, '_> {
    /// Lowers a convolution.
    pub fn convolution(&mut self, group_index: usize, op: &Op<'_>) -> Result<()> {
        let axes = spatial_axes(op.name).unwrap_or(2);
        let Some(layout) = layout(op, axes) else {
            return refuse(RefusalCode::UnsupportedLayout, format!("{}: unsupported layouts", op.name));
        };
        let groups = op.attrs().int("groups", 1);
        let out = self.ir.shape(op.outputs[0]).to_vec();
        let data = self.resolve(op.inputs[0])?;
        let weight = self.resolve(op.inputs[1])?;
        let (x, w) = (&data.view, &weight.view);
        let mut order = vec![layout.n];
        order.extend(&layout.spatial);
        order.push(layout.c);
        let body = self.body(group_index, Some(&order))?;
        let channels = x.shape[layout.c] / groups.max(1);
        let (strides, dilation) = (op.attrs().per_axis("strides", axes, 1), op.attrs().per_axis("dilation", axes, 1));
        let pads = op.attrs().padding(axes);
        let axis = |i: usize| {
            let d = layout.spatial[i];
            Axis {
                taps: w.shape[layout.kernel[i]],
                stride: strides[i],
                dilation: dilation[i],
                pad: pads[i],
                size: x.shape[d],
                outputs: out[d],
                step: x.strides[d],
            }
        };
        let axes: Vec<Axis> = (0..axes).map(axis).collect();
        let kernel: Vec<(i64, i64)> = layout.kernel.iter().map(|&d| (w.shape[d], w.strides[d])).collect();
        let body = body.permute(&order);
        if groups > 1 && channels == 1 && groups == out[layout.c] {
            let b = Operand {
                outer: Vec::new(),
                columns: (w.shape[layout.out], w.strides[layout.out]),
                inner: kernel,
                storage: weight.clone(),
            };
            let window = Window {
                body,
                storage: data.clone(),
                batch: x.strides[layout.n],
                channel: x.strides[layout.c],
                axes,
                reduction: Reduction::Products(b),
            };
            return self.window(group_index, window);
        }
        // The channels are split into groups, which become the outermost dimension.
        let columns = out[layout.c] / groups.max(1);
        let split = |view: &View| {
            let rank = view.shape.len();
            let mut shape = view.shape[..rank - 1].to_vec();
            shape.extend([groups, columns]);
            let mut order: Vec<usize> = (0..=rank).collect();
            order.retain(|&d| d != rank - 1);
            order.insert(0, rank - 1);
            Some(view.reshape(&shape)?.permute(&order))
        };
        let Some(body) = body.transform(split) else {
            let detail = format!(
                "{}: expected a number of output channels divisible by {groups} groups, found {}",
                op.name, out[layout.c]
            );
            return refuse(RefusalCode::UnsupportedShape, detail);
        };
        let offset: i64 = axes.iter().map(|axis| axis.pad.0 * axis.step).sum();
        let mut a_strides = vec![if groups > 1 { channels * x.strides[layout.c] } else { 0 }, x.strides[layout.n]];
        a_strides.extend(axes.iter().map(|axis| axis.stride * axis.step));
        a_strides.push(0);
        let tap = |(i, axis): (usize, &Axis)| Tap {
            size: axis.taps,
            step: axis.dilation * axis.step,
            bounds: (!axis.is_inside()).then_some((2 + i, *axis)),
        };
        let mut inner_loops = kernel;
        inner_loops.push((channels, w.strides[layout.input]));
        let contraction = Contraction {
            batch: 1,
            a: data.place,
            a_view: View { shape: body.domain.clone(), strides: a_strides, offset: x.offset - offset },
            taps: axes.iter().enumerate().map(tap).collect(),
            k: (channels, x.strides[layout.c]),
            b: Operand {
                outer: vec![(groups, columns * w.strides[layout.out])],
                columns: (columns, w.strides[layout.out]),
                inner: inner_loops,
                storage: weight.clone(),
            },
            body,
        };
        self.contraction(group_index, contraction)
    }
}

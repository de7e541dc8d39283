//! Convolutions, transposed convolutions and matrix products, as contractions.

use super::Lowering;
use super::window::Range;
use crate::form::Form;
use crate::nest::body::{LoopBody, Storage};
use crate::operators::layout::{Layout, border, layout, residue, spatial_axes};
use crate::operators::quantized;
use crate::schedule::contraction::{Contraction, TapGuard};
use crate::types::Types;
use byoc_plugin_support::region::OpId;
use byoc_plugin_support::view::View;

/// Convolution: its attributes, and the storage of its operands.
struct Convolution {
    layout: Layout,
    /// Order of the dimensions with the channels last.
    order: Vec<usize>,
    groups: i64,
    /// Number of elements of the kernel along each spatial axis, as of the strides, the dilation and the padding.
    kernel: Vec<i64>,
    strides: Vec<i64>,
    dilation: Vec<i64>,
    pads: Vec<(i64, i64)>,
    is_transposed: bool,
    is_depthwise: bool,
    /// Shapes of the data and of the result.
    shapes: [Vec<i64>; 2],
    data: Storage,
    weight: Storage,
    types: Types,
    a_zero: i64,
    /// True if taps in the padding are skipped, false if the data has a zero border.
    skips_padding: bool,
}

/// Taps along one spatial axis: output `o` at tap `t` multiplies the data at `o * scale + start + t * step` and the
/// kernel at `first + t * kernel_step`.
struct Taps {
    count: i64,
    scale: i64,
    start: i64,
    step: i64,
    first: i64,
    kernel_step: i64,
}

impl Convolution {
    /// Returns the taps of an ordinary convolution along axis `i`.
    fn taps(&self, i: usize) -> Taps {
        let (start, step) = (-self.pads[i].0, self.dilation[i]);
        Taps { count: self.kernel[i], scale: self.strides[i], start, step, first: 0, kernel_step: 1 }
    }

    /// Returns the taps of a transposed convolution along axis `i` for the outputs with a residue modulo the stride, and
    /// the number of those outputs.
    fn residue_taps(&self, i: usize, index: i64) -> (Taps, i64) {
        let size = self.shapes[1][self.layout.spatial[i]];
        let r = residue(index, size, self.kernel[i], self.strides[i], self.dilation[i], self.pads[i].0);
        let (first, kernel_step) = (r.first, r.step);
        (Taps { count: r.taps, scale: 1, start: r.start, step: -r.back, first, kernel_step }, r.outputs)
    }

    /// Returns the guard of axis `i`: without a zero border, taps that may read the padding need one.
    fn guard(&self, i: usize, taps: &Taps) -> Option<TapGuard> {
        let [size, outputs] = [0, 1].map(|of: usize| self.shapes[of][self.layout.spatial[i]]);
        // The step of a single tap may be 0, but the guard divides by the step.
        let step = if taps.step == 0 { 1 } else { taps.step };
        let guard = TapGuard { row: 1 + i, scale: taps.scale, base: taps.start, step, size };
        Some(guard).filter(|guard| self.skips_padding && !guard.is_idle(taps.count, outputs))
    }

    /// Splits the channels into groups: the index space becomes `[group, n, pixels.., channel]`.
    fn split(&self, body: &LoopBody) -> Result<LoopBody, String> {
        let (groups, channels) = (self.groups, self.shapes[1][self.layout.c]);
        let outer = &self.order[..self.order.len() - 1];
        let split = |view: &View| {
            let sizes: Vec<i64> = outer.iter().map(|&d| view.shape[d]).collect();
            let axes = [&[self.layout.c], outer].concat();
            let view = view.permute(&axes).reshape(&[&[groups, channels / groups], &sizes[..]].concat())?;
            let axes: Vec<usize> = [0].into_iter().chain(2..view.shape.len()).chain([1]).collect();
            Some(view.permute(&axes))
        };
        body.transform(split).ok_or_else(|| {
            format!("expected a number of output channels divisible by {groups} groups, found {channels}")
        })
    }

    /// Returns the sum over the taps and the channels of a group; over the taps alone if the convolution is depthwise.
    fn contraction(&self, body: LoopBody, taps: &[Taps]) -> Contraction {
        let (l, x, w) = (&self.layout, &self.data.view, &self.weight.view);
        let pixel = |i: usize| x.strides[l.spatial[i]];
        let element = |i: usize| w.strides[l.kernel[i]];
        let axes = || taps.iter().enumerate();
        let channels = self.shapes[0][l.c] / self.groups;
        let group_stride = match self.is_transposed {
            true => channels * w.strides[l.input],
            false => self.shapes[1][l.c] / self.groups * w.strides[l.out],
        };
        let (a_group, channel_stride, k) = match self.is_depthwise {
            true => (None, if self.skips_padding { x.strides[l.c] } else { 1 }, (1, 0, 0)),
            false => (Some(channels * x.strides[l.c]), 0, (channels, x.strides[l.c], w.strides[l.input])),
        };
        let b_groups: Vec<i64> = a_group.iter().map(|_| if self.groups > 1 { group_stride } else { 0 }).collect();
        let pixels = axes().map(|(i, taps)| taps.scale * pixel(i));
        let a_strides = a_group.into_iter().chain([x.strides[l.n]]).chain(pixels).chain([channel_stride]).collect();
        let offset = x.offset + axes().map(|(i, taps)| taps.start * pixel(i)).sum::<i64>();
        Contraction {
            parts: [b_groups.len(), 1 + taps.len()],
            a: self.data.place,
            a_view: View { shape: body.domain.clone(), strides: a_strides, offset },
            body,
            taps: axes().map(|(i, t)| (t.count, t.step * pixel(i), t.kernel_step * element(i))).collect(),
            k,
            b: self.weight.place,
            b_offset: w.offset + axes().map(|(i, taps)| taps.first * element(i)).sum::<i64>(),
            b_groups,
            b_column: w.strides[l.out],
            guards: axes().map(|(i, taps)| self.guard(i, taps)).collect(),
            types: self.types,
            a_zero: self.a_zero,
        }
    }
}

impl Lowering<'_, '_> {
    /// Lowers an ordinary, depthwise or transposed convolution.
    pub fn convolution(&mut self, group_index: usize, id: OpId, comment: Vec<String>) -> Result<(), String> {
        let (c, body) = self.convolution_of(group_index, id, &comment[0])?;
        let axes = c.kernel.len();
        let taps: Vec<Taps> = (0..axes).map(|i| c.taps(i)).collect();
        if c.is_depthwise {
            return self.depthwise_convolution(&c, body.permute(&c.order), &taps, comment);
        }
        let body = c.split(&body)?;
        if !c.is_transposed {
            return self.contraction(c.contraction(body, &taps), comment);
        }
        // A transposed convolution decomposes into one ordinary convolution per residue of the output index modulo the
        // stride.
        for ry in 0..c.strides[0] {
            for rx in 0..c.strides[1] {
                let ((y, rows), (x, columns)) = (c.residue_taps(0, ry), c.residue_taps(1, rx));
                if rows <= 0 || columns <= 0 {
                    continue;
                }
                let body = body.slice(2, ry, c.strides[0], rows).slice(3, rx, c.strides[1], columns);
                let mut comment = comment.clone();
                comment[0].push_str(&format!(", outputs {ry} and {rx} modulo the strides"));
                self.contraction(c.contraction(body, &[y, x]), comment)?;
            }
        }
        Ok(())
    }

    /// Reads the attributes of a convolution, resolves its operands, and builds the loop body of its group.
    fn convolution_of(
        &mut self,
        group_index: usize,
        id: OpId,
        comment: &str,
    ) -> Result<(Convolution, LoopBody), String> {
        let ir = self.ir;
        let (op, attrs) = (ir.get(id), ir.get(id).attrs());
        let axes = spatial_axes(op.name).ok_or_else(|| format!("expected a convolution, found {}", op.name))?;
        let layout = layout(op, axes).ok_or_else(|| {
            let (data, kernel) = (attrs.text("data_layout"), attrs.text("kernel_layout"));
            format!("{}: unsupported layouts: data {data}, kernel {kernel}", op.name)
        })?;
        let groups = attrs.int("groups", 1);
        let shapes = [op.inputs[0], op.outputs[0]].map(|value| ir.shape(value).to_vec());
        let weight_shape = ir.shape(op.inputs[1]);
        let is_transposed = op.name.ends_with("conv2d_transpose");
        let is_depthwise = groups > 1
            && shapes.iter().all(|shape| groups == shape[layout.c])
            && weight_shape[layout.input] == 1
            && !is_transposed;
        let data = self.channels_last(op.inputs[0], layout.c, &border(ir, op), is_depthwise, comment)?;
        let weight = self.resolve(op.inputs[1])?;
        let order = [&[layout.n], &layout.spatial[..], &[layout.c]].concat();
        let body = self.loop_body(group_index, Some(&order))?;
        let types = quantized::types(ir, op);
        let convolution = Convolution {
            order,
            groups,
            kernel: layout.kernel.iter().map(|&d| weight_shape[d]).collect(),
            strides: attrs.per_axis("strides", axes, 1),
            dilation: attrs.per_axis("dilation", axes, 1),
            pads: attrs.padding(axes),
            is_transposed,
            is_depthwise,
            shapes,
            data,
            weight,
            types,
            a_zero: if types == Types::FLOAT { 0 } else { quantized::zero_points(ir, op)? },
            skips_padding: self.form != Form::Tasks,
            layout,
        };
        Ok((convolution, body))
    }

    /// Adds the phases of a depthwise convolution; the index space of `body` is `[n, pixels.., channel]`.
    fn depthwise_convolution(
        &mut self,
        c: &Convolution,
        body: LoopBody,
        taps: &[Taps],
        comment: Vec<String>,
    ) -> Result<(), String> {
        let contraction = c.contraction(body, taps);
        if self.form == Form::Tasks {
            return self.depthwise(&contraction, comment);
        }
        let (stride, dilation) = (&c.strides, &c.dilation);
        let window =
            |i: usize| Range::Window { taps: c.kernel[i], stride: stride[i], dilation: dilation[i], pad: c.pads[i] };
        let ordered = Storage { view: c.data.view.permute(&c.order), ..c.data.clone() };
        self.direct_depthwise(&contraction, ordered, (0..taps.len()).map(window).collect(), comment)
    }

    /// Lowers `nn.dense`, `nn.matmul` and `nn.batch_matmul`.
    pub fn matrix_product(&mut self, group_index: usize, id: OpId, comment: Vec<String>) -> Result<(), String> {
        let ir = self.ir;
        let op = ir.get(id);
        let a = self.resolve(op.inputs[0])?;
        let b = self.resolve(op.inputs[1])?;
        let is_dense = op.name.ends_with(".dense");
        let transpose_a = !is_dense && op.attrs().flag("transpose_a", false);
        let transpose_b = is_dense || op.attrs().flag("transpose_b", false);
        let rank = ir.shape(op.outputs[0]).len();
        let order: Vec<usize> = (0..rank).collect();
        let body = self.loop_body(group_index, Some(&order))?;
        let (a_rank, b_rank) = (a.view.shape.len(), b.view.shape.len());
        let (b_k, b_column) = if transpose_b { (b_rank - 1, b_rank - 2) } else { (b_rank - 2, b_rank - 1) };
        let (row, a_k) = if transpose_a { (a_rank - 1, a_rank - 2) } else { (a_rank.saturating_sub(2), a_rank - 1) };
        let batch = if op.name.ends_with(".batch_matmul") { rank - 2 } else { 0 };
        let mut a_strides: Vec<i64>;
        if batch > 0 {
            a_strides = (0..batch).map(|d| if a.view.shape[d] == 1 { 0 } else { a.view.strides[d] }).collect();
            a_strides.push(a.view.strides[row]);
        } else {
            a_strides = (0..a_rank).filter(|&d| d != a_k).map(|d| a.view.strides[d]).collect();
        }
        a_strides.push(0);
        let contraction = Contraction {
            a: a.place,
            a_view: View { shape: body.domain.clone(), strides: a_strides, offset: a.view.offset },
            parts: [batch, rank - 1 - batch],
            body,
            taps: Vec::new(),
            k: (a.view.shape[a_k], a.view.strides[a_k], b.view.strides[b_k]),
            b: b.place,
            b_offset: b.view.offset,
            b_groups: (0..batch).map(|d| if b.view.shape[d] == 1 { 0 } else { b.view.strides[d] }).collect(),
            b_column: b.view.strides[b_column],
            guards: Vec::new(),
            types: quantized::types(ir, op),
            a_zero: quantized::zero_points(ir, op)?,
        };
        self.contraction(contraction, comment)
    }
}

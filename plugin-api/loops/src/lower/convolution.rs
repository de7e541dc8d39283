//! Convolutions, transposed convolutions and matrix products, as contractions.

use super::Lowering;
use super::panels::Width;
use super::window::Range;
use crate::form::Form;
use crate::nest::body::Storage;
use crate::operators::layout::{border, layout, residue, spatial_axes};
use crate::operators::quantized;
use crate::schedule::contraction::{Contraction, TapGuard};
use crate::types::Types;
use byoc_plugin_support::region::OpId;
use byoc_plugin_support::view::View;

impl Lowering<'_, '_> {
    /// Lowers an ordinary, depthwise or transposed convolution.
    pub fn convolution(&mut self, group_index: usize, id: OpId, comment: Vec<String>) -> Result<(), String> {
        let ir = self.ir;
        let op = ir.get(id);
        let axes = spatial_axes(op.name).ok_or_else(|| format!("expected a convolution, found {}", op.name))?;
        let l = layout(op, axes).ok_or_else(|| {
            let (data, kernel) = (op.attrs().text("data_layout"), op.attrs().text("kernel_layout"));
            format!("{}: unsupported layouts: data {data}, kernel {kernel}", op.name)
        })?;
        let groups = op.attrs().int("groups", 1);
        let out = ir.shape(op.outputs[0]).to_vec();
        let data_shape = ir.shape(op.inputs[0]).to_vec();
        let weight_shape = ir.shape(op.inputs[1]).to_vec();
        let is_depthwise = groups > 1
            && groups == data_shape[l.c]
            && groups == out[l.c]
            && weight_shape[l.input] == 1
            && !op.name.ends_with("conv2d_transpose");
        let border = border(ir, op);
        let data = self.channels_last(op.inputs[0], l.c, &border, is_depthwise, &comment[0])?;
        let weight = self.resolve(op.inputs[1])?;
        let mut order = vec![l.n];
        order.extend(&l.spatial);
        order.push(l.c);
        let (body, _) = self.loop_body(group_index, Some(&order))?;
        let (strides, dilation) = (op.attrs().per_axis("strides", axes, 1), op.attrs().per_axis("dilation", axes, 1));
        let pads = op.attrs().padding(axes);
        let (x, w) = (&data.view, &weight.view);
        let pixel_strides: Vec<i64> = l.spatial.iter().map(|&d| x.strides[d]).collect();
        let tap_strides: Vec<i64> = l.kernel.iter().map(|&d| w.strides[d]).collect();
        let kernel: Vec<i64> = l.kernel.iter().map(|&d| weight_shape[d]).collect();

        let reads_padding = self.form != Form::Tasks;
        let types = quantized::types(ir, op);
        let a_zero = if types == Types::FLOAT { 0 } else { quantized::zero_points(ir, op)? };
        // Without a zero border, taps that may read the padding need a guard.
        let guard = |i: usize, taps: i64, scale: i64, base: i64, step: i64| {
            let size = data_shape[l.spatial[i]];
            // The step of a single tap may be 0, but the guard divides by the step.
            let step = if step == 0 { 1 } else { step };
            let guard = TapGuard { row: 1 + i, scale, base, step, size };
            Some(guard).filter(|g| reads_padding && !g.is_idle(taps, out[l.spatial[i]]))
        };
        if is_depthwise {
            let guards = (0..axes).map(|i| guard(i, kernel[i], strides[i], -pads[i].0, dilation[i])).collect();
            let offset = (0..axes).map(|i| pads[i].0 * pixel_strides[i]).sum::<i64>();
            let channel_stride = if reads_padding { x.strides[l.c] } else { 1 };
            let a_strides: Vec<i64> = std::iter::once(x.strides[l.n])
                .chain((0..axes).map(|i| strides[i] * pixel_strides[i]))
                .chain([channel_stride])
                .collect();
            let body = body.permute(&order);
            let a_view = View { shape: body.domain.clone(), strides: a_strides, offset: x.offset - offset };
            let taps: Vec<(i64, i64, i64)> =
                (0..axes).map(|i| (kernel[i], dilation[i] * pixel_strides[i], tap_strides[i])).collect();
            let contraction = Contraction {
                parts: [0, body.domain.len() - 1],
                body,
                a: data.place,
                a_view,
                taps,
                k: (1, 0, 0),
                b: weight.place,
                b_offset: w.offset,
                b_groups: Vec::new(),
                b_column: w.strides[l.out],
                guards,
                types,
                a_zero,
            };
            let window =
                |i: usize| Range::Window { taps: kernel[i], stride: strides[i], dilation: dilation[i], pad: pads[i] };
            let ranges = (0..axes).map(window).collect();
            let ordered = Storage { view: x.permute(&order), ..data };
            return match self.form {
                Form::Tasks => self.depthwise(&contraction, comment),
                Form::Program(..) => self.direct_depthwise(&contraction, ordered, ranges, comment),
                Form::Device(_) => {
                    let channels = contraction.columns();
                    let weights = self.panels(&contraction.operand(channels), &Width::Columns(channels))?;
                    let view = View::dense(&[&kernel[..], &[channels]].concat());
                    self.weighted_windows(contraction.body, (ordered, types, a_zero), ranges, (weights, view), comment)
                }
            };
        }

        // Splits the channels into groups; the index space becomes [group, n, pixels.., channel].
        let columns = out[l.c] / groups;
        let split = |view: &View| {
            let mut axes: Vec<usize> = vec![l.c];
            axes.extend(&order[..order.len() - 1]);
            let mut shape: Vec<i64> = vec![groups, columns];
            shape.extend(order[..order.len() - 1].iter().map(|&d| view.shape[d]));
            let view = view.permute(&axes).reshape(&shape)?;
            let mut axis_order: Vec<usize> = vec![0];
            axis_order.extend(2..shape.len());
            axis_order.push(1);
            Some(view.permute(&axis_order))
        };
        let body = body.transform(split).ok_or_else(|| {
            format!("expected a number of output channels divisible by {groups} groups, found {}", out[l.c])
        })?;
        let channels = data_shape[l.c] / groups;
        if !op.name.ends_with("conv2d_transpose") {
            let guards = (0..axes).map(|i| guard(i, kernel[i], strides[i], -pads[i].0, dilation[i])).collect();
            let offset = (0..axes).map(|i| pads[i].0 * pixel_strides[i]).sum::<i64>();
            let mut a_strides = vec![channels * x.strides[l.c], x.strides[l.n]];
            a_strides.extend((0..axes).map(|i| strides[i] * pixel_strides[i]));
            a_strides.push(0);
            let contraction = Contraction {
                a: data.place,
                a_view: View { shape: body.domain.clone(), strides: a_strides, offset: x.offset - offset },
                body,
                parts: [1, 1 + axes],
                taps: (0..axes).map(|i| (kernel[i], dilation[i] * pixel_strides[i], tap_strides[i])).collect(),
                k: (channels, x.strides[l.c], w.strides[l.input]),
                b: weight.place,
                b_offset: w.offset,
                b_groups: vec![if groups > 1 { columns * w.strides[l.out] } else { 0 }],
                b_column: w.strides[l.out],
                guards,
                types,
                a_zero,
            };
            return self.contraction(contraction, comment);
        }

        // A transposed convolution decomposes into one ordinary convolution per residue of the output index modulo the
        // stride.
        for ry in 0..strides[0] {
            for rx in 0..strides[1] {
                let residue_of =
                    |i: usize, r: i64| residue(r, out[l.spatial[i]], kernel[i], strides[i], dilation[i], pads[i].0);
                let (y, x_residue) = (residue_of(0, ry), residue_of(1, rx));
                if y.outputs <= 0 || x_residue.outputs <= 0 {
                    continue;
                }
                let residues = [&y, &x_residue];
                let body = body.slice(2, ry, strides[0], y.outputs).slice(3, rx, strides[1], x_residue.outputs);
                let offset: i64 = (0..2).map(|i| residues[i].start * pixel_strides[i]).sum();
                let mut comment = comment.clone();
                comment[0].push_str(&format!(", outputs {ry} and {rx} modulo the strides"));
                let a_strides = vec![channels * x.strides[l.c], x.strides[l.n], pixel_strides[0], pixel_strides[1], 0];
                let contraction = Contraction {
                    a: data.place,
                    a_view: View { shape: body.domain.clone(), strides: a_strides, offset: x.offset + offset },
                    body,
                    parts: [1, 3],
                    taps: (0..2)
                        .map(|i| {
                            (residues[i].taps, -residues[i].back * pixel_strides[i], residues[i].step * tap_strides[i])
                        })
                        .collect(),
                    k: (channels, x.strides[l.c], w.strides[l.input]),
                    b: weight.place,
                    b_offset: w.offset + (0..2).map(|i| residues[i].first * tap_strides[i]).sum::<i64>(),
                    b_groups: vec![if groups > 1 { channels * w.strides[l.input] } else { 0 }],
                    b_column: w.strides[l.out],
                    guards: (0..2)
                        .map(|i| guard(i, residues[i].taps, 1, residues[i].start, -residues[i].back))
                        .collect(),
                    types,
                    a_zero,
                };
                self.contraction(contraction, comment)?;
            }
        }
        Ok(())
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
        let (body, _) = self.loop_body(group_index, Some(&order))?;
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

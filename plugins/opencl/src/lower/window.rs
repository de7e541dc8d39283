//! Sliding-window operators: pooling and depthwise convolutions, vectorized over channels.

use super::body::Body;
use super::map::grid;
use super::panels::Operand;
use super::{Lowering, Result, Storage};
use crate::expression::{literal, vector};
use crate::kernel::{KernelText, Point};
use crate::layout::Axis;
use byoc_plugin_api::DType;
use byoc_plugin_support::region::Op;
use byoc_plugin_support::view::View;

/// Reduction over a window.
#[derive(Clone, Debug)]
pub enum Reduction {
    /// Maximum, which propagates NaN.
    Max,
    /// Mean; `true` includes the padding.
    Mean(bool),
    /// Dot product with one weight per tap and channel.
    Products(Operand),
}

/// Windows over an index space of batches, pixels and channels.
pub struct Window {
    /// Operators after the reduction, and stores. The index space is `[batch, pixels.., channel]`.
    pub body: Body,
    /// Storage of the data.
    pub storage: Storage,
    /// Batch stride of the data, in elements.
    pub batch: i64,
    /// Channel stride of the data, in elements.
    pub channel: i64,
    pub axes: Vec<Axis>,
    pub reduction: Reduction,
}

impl Lowering<'_, '_> {
    /// Lowers a pooling operator.
    pub fn pool(&mut self, group_index: usize, op: &Op<'_>) -> Result<()> {
        let data = self.resolve(op.inputs[0])?;
        let (shape, out) = (data.view.shape.clone(), self.ir.shape(op.outputs[0]).to_vec());
        let rank = shape.len();
        let axes = rank - 2;
        let channel = if op.attrs().text("layout").ends_with('C') { rank - 1 } else { 1 };
        let spatial: Vec<usize> = (1..rank).filter(|&d| d != channel).collect();
        let mut order = vec![0];
        order.extend(&spatial);
        order.push(channel);
        let body = self.body(group_index, Some(&order))?.permute(&order);
        let (sizes, strides) = (op.attrs().per_axis("pool_size", axes, 1), op.attrs().per_axis("strides", axes, 1));
        let (dilation, pads) = (op.attrs().per_axis("dilation", axes, 1), op.attrs().padding(axes));
        let is_whole_window = op.name.contains("global") || op.name.contains("adaptive");
        let axis = |(i, &d): (usize, &usize)| Axis {
            // 0 marks global and adaptive windows, whose bounds the kernel computes.
            taps: if is_whole_window { 0 } else { sizes[i] },
            stride: strides[i],
            dilation: if is_whole_window { 1 } else { dilation[i] },
            pad: if is_whole_window { (0, 0) } else { pads[i] },
            size: shape[d],
            outputs: out[d],
            step: data.view.strides[d],
        };
        let axes = spatial.iter().enumerate().map(axis).collect();
        let reduction = if op.name.contains("max") {
            Reduction::Max
        } else {
            Reduction::Mean(op.attrs().flag("count_include_pad", false))
        };
        let (batch, channel) = (data.view.strides[0], data.view.strides[channel]);
        self.window(group_index, Window { body, storage: data, batch, channel, axes, reduction })
    }

    /// Adds a kernel that reduces windows.
    pub fn window(&mut self, group_index: usize, w: Window) -> Result<()> {
        let rank = w.body.domain.len();
        let channels = w.body.domain[rank - 1];
        let width = if w.channel == 1 { self.device.vector(channels) } else { 1 };
        let weights = match &w.reduction {
            Reduction::Products(b) => Some((self.panels(b, width)?, b.depth())),
            _ => None,
        };
        let rows: i64 = w.body.domain[..rank - 1].iter().product();
        let grid = grid((channels + width - 1) / width, rows);
        let mut text = KernelText::default();
        text.write_positions(&grid);
        let valid_columns = text.write_column(channels, width);
        let indices: Vec<String> = (0..rank - 1).map(|d| format!("i{d}")).collect();
        text.decode(1, &indices, &w.body.domain[..rank - 1], "m");
        let ty = vector(width);
        let x = text.pointer(w.storage.place, DType::F32, false);
        if let Some((place, depth)) = weights {
            let pointer = text.pointer(place, DType::F32, false);
            text.line(1, &format!("global const float *w = {pointer} + x * {};", depth * width));
        }
        let start = if matches!(w.reduction, Reduction::Max) { f64::NEG_INFINITY } else { 0.0 };
        text.line(1, &format!("{ty} a = {};", literal(start, width)));
        let mut names = Vec::new();
        for (i, axis) in w.axes.iter().enumerate() {
            let index = if w.body.domain[1 + i] == 1 { "0" } else { &indices[1 + i] };
            write_window_bounds(&mut text, i, axis, index);
            names.push(format!("y{i}"));
        }
        for (i, axis) in w.axes.iter().enumerate() {
            let step = if axis.dilation == 1 { format!("++y{i}") } else { format!("y{i} += {}", axis.dilation) };
            text.line(1 + i, &format!("for (int y{i} = from{i}; y{i} < to{i}; {step}) {{"));
        }
        let depth = 1 + w.axes.len();
        let mut view = View { shape: vec![w.body.domain[0]], strides: vec![w.batch], offset: w.storage.view.offset };
        view.shape.extend(w.axes.iter().map(|axis| axis.size));
        view.strides.extend(w.axes.iter().map(|axis| axis.step));
        view.shape.push(channels);
        view.strides.push(w.channel);
        let mut index = vec![indices[0].clone()];
        index.extend(names);
        let point = Point { indices: index, column: "c".into(), valid: valid_columns.clone(), width };
        text.line(depth, &format!("const {ty} v = {};", point.load(&x, &view)));
        match &w.reduction {
            Reduction::Max => text.line(depth, "a = ((a != a) | (a > v)) ? a : v;"),
            Reduction::Mean(_) => text.line(depth, "a += v;"),
            Reduction::Products(_) => {
                let mut tap_index = String::from("0");
                for (i, axis) in w.axes.iter().enumerate() {
                    let index = if axis.dilation == 1 {
                        format!("(y{i} - at{i})")
                    } else {
                        format!("(y{i} - at{i}) / {}", axis.dilation)
                    };
                    tap_index =
                        if tap_index == "0" { index } else { format!("({tap_index}) * {} + {index}", axis.taps) };
                }
                let load = if width == 1 { format!("w[{tap_index}]") } else { format!("vload{width}({tap_index}, w)") };
                text.line(depth, &format!("a += v * {load};"));
            }
        }
        for level in (1..depth).rev() {
            text.line(level, "}");
        }
        let acc = match w.reduction {
            Reduction::Mean(include) => {
                let counts: Vec<String> =
                    w.axes.iter().enumerate().map(|(i, axis)| window_count(i, axis, include)).collect();
                // With `ceil_mode`, a window may be entirely in the padding; its mean is 0.
                format!("a / (float)max({}, 1)", counts.join(" * "))
            }
            _ => "a".to_owned(),
        };
        text.line(1, &format!("const {ty} acc = {acc};"));
        w.body.emit(self.ir, &mut text, &Point { indices, column: "c".into(), valid: valid_columns, width }, 1);
        let (name, comment) = self.group_names(group_index);
        self.add_launch("window", text, grid, &name, &comment);
        Ok(())
    }
}

/// Appends the bounds of a window: `at` is its first tap, which may be in the padding; `from` and `to` delimit its
/// range inside the data.
fn write_window_bounds(text: &mut KernelText, i: usize, axis: &Axis, index: &str) {
    let (size, outputs) = (axis.size, axis.outputs);
    if axis.taps == 0 {
        text.line(1, &format!("const int from{i} = {index} * {size} / {outputs};"));
        text.line(1, &format!("const int to{i} = (({index} + 1) * {size} + {outputs} - 1) / {outputs};"));
        return;
    }
    text.line(1, &format!("const int at{i} = {index} * {} - {};", axis.stride, axis.pad.0));
    let end = (axis.taps - 1) * axis.dilation + 1;
    if axis.is_inside() {
        text.line(1, &format!("const int from{i} = at{i}, to{i} = at{i} + {end};"));
        return;
    }
    let dilation = axis.dilation;
    let first_tap = if dilation == 1 {
        "0".to_owned()
    } else {
        format!("(-at{i} + {0}) / {dilation} * {dilation} + at{i}", dilation - 1)
    };
    text.line(1, &format!("const int from{i} = at{i} < 0 ? {first_tap} : at{i};"));
    text.line(1, &format!("const int to{i} = min(at{i} + {end}, {size});"));
}

/// Formats the number of elements in a window, with or without the padding.
fn window_count(i: usize, axis: &Axis, includes_padding: bool) -> String {
    let dilation = axis.dilation;
    if axis.taps != 0 && includes_padding {
        // Elements past the end of the padding do not count.
        let limit = axis.size + axis.pad.1;
        return format!("min({}, ({limit} - at{i} + {}) / {dilation})", axis.taps, dilation - 1);
    }
    if dilation == 1 {
        format!("max(to{i} - from{i}, 0)")
    } else {
        format!("max((to{i} - from{i} + {}) / {dilation}, 0)", dilation - 1)
    }
}

//! Windows: pooling, and depthwise convolutions without tiles, over channels.

use super::tile::product;
use super::{Lowering, Phase};
use crate::form::Form;
use crate::nest::Step;
use crate::nest::body::{LoopBody, Storage};
use crate::nest::transform::nest;
use crate::nest::{Expr, Infix, Loop, Place, Reduce, Stmt, element, indices, numbered, product_indices};
use crate::operators::elementwise::extreme;
use crate::operators::quantized;
use crate::schedule::window::Pooling;
use crate::types::Types;
use crate::types::{computed, integer_range};
use byoc_plugin_api::DType;
use byoc_plugin_support::region::{Op, OpId, RegionIr};
use byoc_plugin_support::view::View;

/// Window along one spatial axis.
#[derive(Clone, Copy, Debug)]
pub enum Range {
    /// Window of `taps` elements every `stride` elements.
    Window {
        /// Number of window elements.
        taps: i64,
        /// Distance between adjacent windows.
        stride: i64,
        /// Distance between adjacent window elements.
        dilation: i64,
        /// Padding before and after.
        pad: (i64, i64),
    },
    /// Entire axis, divided into the given number of ranges as evenly as possible.
    Adaptive(i64),
}

impl Range {
    /// Declares the tap range of axis `i`: position `at{i}` of tap 0, first tap `from{i}` and end `to{i}`, without the
    /// taps in the padding. Tap `k` is at position `at{i} + k * step`. `outputs` windows cover `size` elements.
    pub fn bounds(&self, i: usize, output: &Expr, size: i64, outputs: i64) -> [Stmt; 3] {
        let [at, from, to] = ["at", "from", "to"].map(|prefix| format!("{prefix}{i}"));
        match *self {
            Range::Adaptive(parts) => {
                let end = ((output.clone() + 1) * size + (parts - 1)) / parts;
                [
                    Stmt::index(&at, output.clone() * size / parts),
                    Stmt::index(&from, 0),
                    Stmt::index(&to, end - Expr::from(&at)),
                ]
            }
            Range::Window { taps, stride, dilation, pad } => {
                let is_inside = pad.0 <= 0 && (outputs - 1) * stride - pad.0 + (taps - 1) * dilation < size;
                let position = Stmt::index(&at, output.clone() * stride - pad.0);
                match is_inside {
                    true => [position, Stmt::index(&from, 0), Stmt::index(&to, taps)],
                    false => {
                        let [first, end] = tap_range(i, &at, dilation, size, taps);
                        [position, first, end]
                    }
                }
            }
        }
    }

    fn step(&self) -> i64 {
        if let Range::Window { dilation, .. } = self { *dilation } else { 1 }
    }

    /// Returns the number of elements by which a mean is divided.
    fn count(&self, i: usize, size: i64, includes_padding: bool) -> Expr {
        let [at, from, to] = ["at", "from", "to"].map(|prefix| Expr::name(format!("{prefix}{i}")));
        match *self {
            Range::Window { taps, dilation, pad, .. } if includes_padding => {
                // A window that extends past the padding counts elements only up to the end of the padding.
                ((Expr::Index(size + pad.1 + dilation - 1) - at) / dilation).min(taps)
            }
            _ => to - from,
        }
    }
}

/// Declares the taps that read elements, from `from{i}` to `to{i}`: of `taps` taps, `step` apart from the position `at` on,
/// those that are below `size`.
pub fn tap_range(i: usize, at: &str, step: i64, size: i64, taps: i64) -> [Stmt; 2] {
    let (at, step) = (Expr::name(at), Expr::Index(step));
    let first = Expr::Call("byoc_first_tap", vec![at.clone(), step.clone()]);
    let end = Expr::Call("byoc_end_tap", vec![at, step, size.into(), taps.into()]);
    [Stmt::index(format!("from{i}"), first), Stmt::index(format!("to{i}"), end)]
}

/// Returns the type of a pooling operator's accumulator for data of type `dtype`; `None` if it does not take the type.
fn sum_type(op: &Op<'_>, is_max: bool, dtype: DType) -> Option<DType> {
    match (is_max, dtype) {
        (true, DType::F32 | DType::I8 | DType::I32 | DType::U8) => Some(dtype),
        (false, _) if op.name == "qnn.avg_pool2d" => Some(DType::I32),
        (false, DType::F32) => Some(DType::F32),
        _ => None,
    }
}

/// Declares `count`, the number of elements of the data, of the given sizes, by which a mean is divided.
fn element_count(ranges: &[Range], sizes: &[i64], includes_padding: bool) -> Vec<Stmt> {
    let axes = ranges.iter().zip(sizes).enumerate();
    let count =
        axes.fold(Expr::Index(1), |product, (i, (range, &size))| product * range.count(i, size, includes_padding));
    // With `ceil_mode`, a window may be entirely in the padding; a count of at least 1 makes its mean 0.
    let at_least_one = Expr::name("elements").max(1).cast(DType::F32);
    vec![Stmt::index("elements", count), Stmt::value("count", DType::F32, at_least_one)]
}

/// Returns the scale and zero point of the data of a `qnn.avg_pool2d`, then those of its result.
fn pool_scales(ir: &RegionIr<'_>, op: &Op<'_>) -> Result<(f32, i64, f32, i64), String> {
    let scale = |i: usize| quantized::scale(ir, op.inputs[i]);
    let zero = |i: usize| quantized::zero_point(ir, op.inputs[i]);
    let parameters = || Some((scale(1)?, zero(2)?, scale(3)?, zero(4)?));
    parameters().ok_or_else(|| {
        format!("{}: expected constant per-tensor scales and zero points, found per-channel or runtime values", op.name)
    })
}

/// Windows over an index space `[batch, pixels.., channel]`.
pub struct Windows {
    /// Operators on each result, and stores.
    pub body: LoopBody,
    /// Data, with its dimensions in the order of the index space.
    pub data: Storage,
    /// Element type of the data.
    pub dtype: DType,
    /// Window along each spatial axis.
    pub ranges: Vec<Range>,
    /// Type of the accumulator.
    pub sum: DType,
    /// First value of the accumulator.
    pub start: Expr,
    /// Statements between the bounds and the reduction.
    pub before: Vec<Stmt>,
    /// Type and value of the result, given the accumulator `sum`.
    pub result: (DType, Expr),
    /// Number of elements that are read, or of products.
    pub work: i64,
}

impl Lowering<'_, '_> {
    /// Adds a nest that reduces windows. `combine` returns the new accumulator for `sum` and an element of the data, with
    /// the taps as indices `k0`, `k1`.
    pub fn windows(&mut self, windows: Windows, comment: Vec<String>, combine: impl Fn(Expr, Expr) -> Expr) {
        let Windows { body, data, dtype, ranges, sum, start, before, result, work } = windows;
        let vars = product_indices(0, body.domain.len() - 1);
        let axes = ranges.len();
        let outer_vars = indices(&vars);
        let mut stmts = Vec::new();
        let mut index = outer_vars.clone();
        let mut loops = Vec::new();
        for (i, range) in ranges.iter().enumerate() {
            let size = data.view.shape[1 + i];
            stmts.extend(range.bounds(i, &outer_vars[1 + i], size, body.domain[1 + i]));
            let tap = format!("k{i}");
            index[1 + i] = Expr::name(format!("at{i}")) + Expr::from(&tap) * range.step();
            let to = Expr::name(format!("to{i}"));
            loops.push(Loop::new(&tap, to, Vec::new()).starting(Expr::name(format!("from{i}"))));
        }
        stmts.extend(before);
        // The index along a dimension of size 1 is 0.
        let loaded = Expr::load(data.place, dtype, element(&data.view, &index));
        let value = combine(Expr::name("sum"), loaded);
        stmts.push(Reduce { name: "sum".into(), dtype: sum, start, loops, value }.into());
        stmts.push(Stmt::value("acc", result.0, result.1));
        stmts.extend(body.statements(&outer_vars));
        let mut phase = Phase::of("window", comment, &[data.place], &body);
        if matches!(self.form, Form::Device(_)) {
            return self.push_points(phase, &vars, &body.domain, stmts, 1);
        }
        let channels = body.domain[axes + 1];
        let Pooling { block, tasks } = Pooling::new(channels, &body.domain[..axes], work);
        phase.tasks = self.form.tasks(tasks);
        let mut stmts = nest(&vars, &body.domain, stmts);
        // One item is a block of channels in a row of pixels.
        let mut item = vars[..axes].to_vec();
        item.push("block".into());
        phase.schedule = vec![
            Step::Split { var: "c".into(), by: block, into: ["block".into(), "j".into()] },
            Step::Sink { var: vars[axes].clone(), below: "block".into() },
            Step::Fuse { vars: item, into: "item".into() },
            Step::Parallel { var: "item".into(), tasks: phase.tasks },
            Step::Accumulate { var: "j".into(), len: block },
        ];
        self.push_scheduled(phase, &mut stmts);
    }

    /// Lowers max, average, global and adaptive pooling.
    pub fn pool(&mut self, group_index: usize, id: OpId, comment: Vec<String>) -> Result<(), String> {
        let ir = self.ir;
        let op = ir.get(id);
        let shape = ir.shape(op.inputs[0]).to_vec();
        let rank = shape.len();
        let axes = rank - 2;
        let c = if op.attrs().text("layout").ends_with('C') { rank - 1 } else { 1 };
        let spatial: Vec<usize> = if c == 1 { (2..rank).collect() } else { (1..rank - 1).collect() };
        let out = ir.shape(op.outputs[0]).to_vec();
        let is_max = op.name.contains("max");
        let is_whole_window = op.name.contains("global") || op.name.contains("adaptive");
        let (sizes, strides) = (op.attrs().per_axis("pool_size", axes, 1), op.attrs().per_axis("strides", axes, 1));
        let (dilation, pads) = (op.attrs().per_axis("dilation", axes, 1), op.attrs().padding(axes));
        let range = |i: usize| match is_whole_window {
            true => Range::Adaptive(out[spatial[i]]),
            false => Range::Window { taps: sizes[i], stride: strides[i], dilation: dilation[i], pad: pads[i] },
        };
        let ranges: Vec<Range> = (0..axes).map(range).collect();
        let data = self.channels_last(op.inputs[0], c, &[], false, &comment[0])?;
        let order = [&[0], &spatial[..], &[c]].concat();
        let body = self.loop_body(group_index, Some(&order))?;
        let dtype = ir.val(op.inputs[0]).dtype;
        let computed_type = computed(dtype);
        // Scale and zero point of the data, then those of the result.
        let scales = if op.name == "qnn.avg_pool2d" { Some(pool_scales(ir, op)?) } else { None };
        let sum = sum_type(op, is_max, computed_type).ok_or_else(|| match is_max {
            true => format!("{}: unsupported element type {dtype}", op.name),
            false => format!("{}: expected float32, found {dtype}", op.name),
        })?;
        let least = if sum == DType::F32 { f64::NEG_INFINITY } else { integer_range(sum).0 };
        let sizes_of_data: Vec<i64> = spatial.iter().map(|&d| shape[d]).collect();
        let includes_padding = op.attrs().flag("count_include_pad", false);
        let before = if is_max { Vec::new() } else { element_count(&ranges, &sizes_of_data, includes_padding) };
        let (total, count) = (Expr::name("sum"), Expr::name("count"));
        let result = match scales {
            Some((in_scale, _, out_scale, zero)) => {
                // The quotient is computed in float64, so that the mean is rounded to float32 only once.
                let mean = (total.cast(DType::F64) / count.cast(DType::F64)).cast(DType::F32)
                    * Expr::Number(DType::F32, in_scale.into());
                let unsupported = || format!("{}: unsupported element type {dtype}", op.name);
                quantized::quantized(dtype, mean, out_scale, zero).ok_or_else(unsupported)?
            }
            None if is_max => total,
            None => total / count,
        };
        let taps = sizes.iter().fold(out.iter().product(), |n: i64, &size| n.saturating_mul(size));
        let storage = Storage { view: data.view.permute(&order), ..data };
        let windows = Windows {
            body: body.permute(&order),
            data: storage,
            dtype,
            ranges,
            sum,
            start: Expr::number(sum, if is_max { least } else { 0.0 }),
            before,
            result: (computed_type, result),
            work: shape.iter().product::<i64>().max(taps),
        };
        self.windows(windows, comment, |total, x| match scales {
            _ if is_max => extreme(Infix::Gt, computed_type, total, x),
            Some((_, zero, ..)) => total + (x.cast(DType::I32) - Expr::Integer(DType::I32, zero.into())),
            None => total + x,
        });
        Ok(())
    }

    /// Adds a depthwise convolution without tiles: the products of a window with the weights of its channel, which are
    /// at `view` in memory `weights`, taps before channels.
    pub fn weighted_windows(
        &mut self,
        body: LoopBody,
        (data, types, a_zero): (Storage, Types, i64),
        ranges: Vec<Range>,
        (weights, view): (Place, View),
        comment: Vec<String>,
    ) {
        let windows = Windows {
            body,
            data,
            dtype: types.a,
            ranges,
            sum: types.sum,
            start: Expr::number(types.sum, 0.0),
            before: Vec::new(),
            result: (types.sum, Expr::name("sum")),
            work: 0,
        };
        let mut index = numbered("k", windows.ranges.len());
        index.push("c".into());
        let weight = Expr::load(weights, types.b, element(&view, &indices(&index)));
        self.windows(windows, comment, |total, x| total + product(types, a_zero, x, weight.clone()));
    }
}

//! Pooling: sliding windows, global pooling, and adaptive windows for a given output size.

use super::blocked;
use super::scalar::{Reader, Writer, max_or_nan};
use super::spatial::{self, CanonicalDims, Window, WindowParams, each};
use super::{AttrDef, AttrKind, Cost, Default, Evaluation, OpPattern, Params, Relation, TypeResult};
use crate::cancel::Ticks;
use crate::diag::codes;
use crate::ir::{Dim, Type};
use crate::op::facts::{LayoutRule, Properties, reduced_elements};
use crate::tensor::{TensorView, TensorViewMut};
use std::ops::Range;

const LAYOUT: &str = "order of the data's axes";
const OUT_LAYOUT: &str = "order of the result's axes; that of the data if empty";

/// Returns the attributes of pooling with a sliding window.
const fn window_attrs(ones: &'static [i64], zeros: &'static [i64], layout: &'static str) -> [AttrDef; 7] {
    [
        AttrDef::new("pool_size", AttrKind::Ints, Default::Required, "taps of the window per axis"),
        AttrDef::new("strides", AttrKind::Ints, Default::Ints(ones), "stride of the window per axis"),
        AttrDef::new("dilation", AttrKind::Ints, Default::Ints(ones), "distance between taps per axis"),
        AttrDef::new(
            "padding",
            AttrKind::Ints,
            Default::Ints(zeros),
            "padding: one value, one per axis, or all values before the axes followed by all values after",
        ),
        AttrDef::new("layout", AttrKind::Str, Default::Str(layout), LAYOUT),
        AttrDef::new("out_layout", AttrKind::Str, Default::Str(""), OUT_LAYOUT),
        AttrDef::new(
            "ceil_mode",
            AttrKind::Bool,
            Default::Bool(false),
            "true if the number of windows is rounded up, so that the last one may be incomplete",
        ),
    ]
}

/// Returns the attributes of average pooling.
const fn avg_attrs(ones: &'static [i64], zeros: &'static [i64], layout: &'static str) -> [AttrDef; 8] {
    let [a, b, c, d, e, f, g] = window_attrs(ones, zeros, layout);
    [a, b, c, d, e, f, g, COUNT_INCLUDE_PAD]
}

/// Returns the attributes of Lp pooling.
const fn lp_attrs(ones: &'static [i64], zeros: &'static [i64], layout: &'static str) -> [AttrDef; 8] {
    let [a, b, c, d, e, f, g] = window_attrs(ones, zeros, layout);
    let p = AttrDef::new("p", AttrKind::Int, Default::Int(2), "exponent of the norm, at least 1");
    [a, b, c, d, e, f, g, p]
}

/// Returns the attributes of `nn.max_pool2d`.
pub(super) const fn max_attrs_2d() -> [AttrDef; 7] {
    window_attrs(&[1, 1], &[0, 0], "NCHW")
}

/// Returns the attributes of `nn.avg_pool2d`.
pub(super) const fn avg_attrs_2d() -> [AttrDef; 8] {
    avg_attrs(&[1, 1], &[0, 0], "NCHW")
}

/// Returns the number of elements in a window, including padding.
fn window_elements(params: &Params<'_>, shapes: &[&[usize]], result: &[usize]) -> usize {
    let window: i64 = params.ints("pool_size").iter().product();
    reduced_elements(params, shapes, result).max(window as usize)
}

macro_rules! pool {
    ($($axes:literal $name:literal $doc:ident $ones:tt $zeros:tt $layout:literal $reference:ident $attrs:ident $properties:expr;)*) => {$(
        operator! {
            name: $name,
            doc: $doc,
            inputs: &["data"],
            attrs: &$attrs(&$ones, &$zeros, $layout),
            pattern: OpPattern::OutEWiseFusable,
            relation: pool_relation::<$axes>,
            reference: Some($reference),
            flops: pool_flops,
            properties: $properties,
        }
    )*};
}

const MAX: &str = "Largest element of each window; padding is ignored, NaN propagates.";
const AVG: &str = "Mean of each window over its elements in the data or, with count_include_pad, over those in the \
                   padded data.";
const LP: &str = "p-norm of each window, (sum of |x|^p)^(1/p); padding counts as 0.";
const COUNT_INCLUDE_PAD: AttrDef =
    AttrDef::new("count_include_pad", AttrKind::Bool, Default::Bool(false), "true if padding counts in the mean");

pool! {
    1 "nn.max_pool1d" MAX [1] [0] "NCW" max_reference window_attrs Properties::SELECTS;
    2 "nn.max_pool2d" MAX [1, 1] [0, 0] "NCHW" max_reference window_attrs Properties::SELECTS.layout(LayoutRule::Window2d);
    3 "nn.max_pool3d" MAX [1, 1, 1] [0, 0, 0] "NCDHW" max_reference window_attrs Properties::SELECTS;
    1 "nn.avg_pool1d" AVG [1] [0] "NCW" avg_reference avg_attrs Properties::EXACT.sum(window_elements);
    2 "nn.avg_pool2d" AVG [1, 1] [0, 0] "NCHW" avg_reference avg_attrs Properties::EXACT.sum(window_elements).layout(LayoutRule::Window2d);
    3 "nn.avg_pool3d" AVG [1, 1, 1] [0, 0, 0] "NCDHW" avg_reference avg_attrs Properties::EXACT.sum(window_elements);
    1 "nn.contrib_lp_pool1d" LP [1] [0] "NCW" lp_reference lp_attrs Properties::EXACT.stable(window_elements);
    2 "nn.contrib_lp_pool2d" LP [1, 1] [0, 0] "NCHW" lp_reference lp_attrs
        Properties::EXACT.stable(window_elements).layout(LayoutRule::Window2d);
    3 "nn.contrib_lp_pool3d" LP [1, 1, 1] [0, 0, 0] "NCDHW" lp_reference lp_attrs Properties::EXACT.stable(window_elements);
}

macro_rules! global {
    ($($name:literal $doc:literal $reference:ident $properties:expr;)*) => {$(
        operator! {
            name: $name,
            doc: $doc,
            inputs: &["data"],
            attrs: &[
                AttrDef::new("layout", AttrKind::Str, Default::Str("NCHW"), LAYOUT),
                AttrDef::new("out_layout", AttrKind::Str, Default::Str(""), OUT_LAYOUT),
            ],
            pattern: OpPattern::CommReduce,
            relation: global_relation,
            reference: Some($reference),
            flops: |cost| cost.arg_len(0),
            properties: $properties,
        }
    )*};
}

global! {
    "nn.global_avg_pool2d" "Mean of each plane; height and width become 1." adaptive_avg Properties::EXACT.sum(reduced_elements).layout(LayoutRule::Window2d);
    "nn.global_max_pool2d" "Largest element of each plane; height and width become 1." adaptive_max Properties::SELECTS.layout(LayoutRule::Window2d);
}

macro_rules! adaptive {
    ($($axes:literal $name:literal $doc:ident $layout:literal $reference:ident $properties:expr;)*) => {$(
        operator! {
            name: $name,
            doc: $doc,
            inputs: &["data"],
            attrs: &[
                AttrDef::new("output_size", AttrKind::Ints, Default::Ints(&[]),
                    "dimensions of the result: one per axis, one for all axes, or those of the data if empty"),
                AttrDef::new("layout", AttrKind::Str, Default::Str($layout), LAYOUT),
                AttrDef::new("out_layout", AttrKind::Str, Default::Str(""), OUT_LAYOUT),
            ],
            pattern: OpPattern::OutEWiseFusable,
            relation: adaptive_relation::<$axes>,
            reference: Some($reference),
            flops: |cost| cost.arg_len(0),
            properties: $properties,
        }
    )*};
}

const ADAPTIVE_AVG: &str =
    "Mean over [floor(i * size / out), ceil((i + 1) * size / out)) of each spatial axis, for index i of out.";
const ADAPTIVE_MAX: &str =
    "Largest element of [floor(i * size / out), ceil((i + 1) * size / out)) of each spatial axis, for index i of out.";

adaptive! {
    1 "nn.adaptive_avg_pool1d" ADAPTIVE_AVG "NCW" adaptive_avg Properties::EXACT.sum(reduced_elements);
    2 "nn.adaptive_avg_pool2d" ADAPTIVE_AVG "NCHW" adaptive_avg Properties::EXACT.sum(reduced_elements).layout(LayoutRule::Window2d);
    3 "nn.adaptive_avg_pool3d" ADAPTIVE_AVG "NCDHW" adaptive_avg Properties::EXACT.sum(reduced_elements);
    1 "nn.adaptive_max_pool1d" ADAPTIVE_MAX "NCW" adaptive_max Properties::SELECTS;
    2 "nn.adaptive_max_pool2d" ADAPTIVE_MAX "NCHW" adaptive_max Properties::SELECTS.layout(LayoutRule::Window2d);
    3 "nn.adaptive_max_pool3d" ADAPTIVE_MAX "NCDHW" adaptive_max Properties::SELECTS;
}

/// Pooling with known dimensions.
#[derive(Clone, Debug)]
pub struct PoolShape {
    /// Dimensions of the data: batch, channels, spatial.
    pub data: CanonicalDims,
    /// Dimensions of the result: batch, channels, spatial.
    pub out: CanonicalDims,
}

impl PoolShape {
    /// Creates the shape from attributes and shapes that the type relation accepted.
    pub fn new(params: &Params<'_>, data: &[usize], out: &[usize]) -> PoolShape {
        let layout = params.string("layout");
        let out_layout = params.string("out_layout");
        let out_layout = if out_layout.is_empty() { &layout } else { &out_layout };
        PoolShape { data: CanonicalDims::new(data, &layout, "NC"), out: CanonicalDims::new(out, out_layout, "NC") }
    }
}

/// Returns the taps and the parameters of a pooling window, extended to three axes.
pub fn pool_window(params: &Params<'_>, axes: usize) -> ([usize; 3], WindowParams) {
    let mut taps = [1; 3];
    for (extent, &v) in taps[3 - axes..].iter_mut().zip(&params.per_axis("pool_size", axes)) {
        *extent = v as usize;
    }
    (taps, WindowParams::new(params, axes))
}

/// Returns the type of the result: batch and channels of argument 0 and the given spatial dimensions, in the layout of
/// the result.
fn pooled_type(relation: &Relation<'_>, axes: usize, spatial: Vec<Dim>) -> TypeResult {
    let data = relation.tensor(0)?;
    let order = format!("NC{}", spatial::spatial(axes));
    let positions = spatial::layout(relation, "layout", &order, &order)?;
    let out_at = spatial::layout(relation, "out_layout", &order, &relation.params.string("layout"))?;
    rank(relation, axes)?;
    let mut dims = vec![Dim::Any; axes + 2];
    let leading_dims = positions[..2].iter().map(|&i| data.dims[i].clone());
    for (dim, &position) in leading_dims.chain(spatial).zip(&out_at) {
        dims[position] = dim;
    }
    Ok(Type::tensor_of(data.dtype, dims))
}

fn global_relation(relation: &Relation<'_>) -> TypeResult {
    match blocked::relation(relation, global_relation) {
        Some(ty) => ty,
        None => pooled_type(relation, 2, vec![Dim::Fixed(1); 2]),
    }
}

fn rank(relation: &Relation<'_>, axes: usize) -> Result<(), Box<crate::diag::Diagnostic>> {
    let rank = relation.tensor(0)?.dims.len();
    if rank == axes + 2 {
        return Ok(());
    }
    Err(relation.mismatch(format!("data: expected {} dimensions, found {rank}", axes + 2)))
}

pub(super) fn pool_relation<const AXES: usize>(relation: &Relation<'_>) -> TypeResult {
    if let Some(ty) = blocked::relation(relation, pool_relation::<AXES>) {
        return ty;
    }
    rank(relation, AXES)?;
    let data = relation.tensor(0)?;
    let order = format!("NC{}", spatial::spatial(AXES));
    let positions = spatial::layout(relation, "layout", &order, &order)?;
    let taps = spatial::per_axis(relation, "pool_size", AXES, 1)?;
    let strides = spatial::per_axis(relation, "strides", AXES, 1)?;
    let dilation = spatial::per_axis(relation, "dilation", AXES, 1)?;
    let pads = spatial::padding(relation, AXES)?;
    let rounds_up = relation.params.bool("ceil_mode");
    let window_size = |i: usize| {
        let window = Window { stride: strides[i], dilation: dilation[i], pads: pads[i] };
        window.output_size(relation, &data.dims[positions[2 + i]], &Dim::Fixed(taps[i] as usize), rounds_up)
    };
    pooled_type(relation, AXES, (0..AXES).map(window_size).collect::<Result<_, _>>()?)
}

fn adaptive_relation<const AXES: usize>(relation: &Relation<'_>) -> TypeResult {
    if let Some(ty) = blocked::relation(relation, adaptive_relation::<AXES>) {
        return ty;
    }
    rank(relation, AXES)?;
    let expected = if relation.params.ints("output_size").is_empty() {
        let order = format!("NC{}", spatial::spatial(AXES));
        let positions = spatial::layout(relation, "layout", &order, &order)?;
        positions[2..].iter().map(|&i| relation.tensor(0).map(|t| t.dims[i].clone())).collect::<Result<_, _>>()?
    } else {
        let sizes = spatial::per_axis(relation, "output_size", AXES, 1)?;
        sizes.into_iter().map(|n| Dim::Fixed(n as usize)).collect()
    };
    let data = relation.tensor(0)?;
    if data.is_empty() && data.dims.first() != Some(&Dim::Fixed(0)) {
        return Err(relation.error(codes::types::TYPE_MISMATCH, "data: expected at least one element, found none"));
    }
    pooled_type(relation, AXES, expected)
}

/// Counts one operation per tap.
pub(super) fn pool_flops(cost: &Cost<'_>) -> u64 {
    let taps = cost.params.ints("pool_size");
    let dims = cost.args.first().and_then(Type::as_tensor).map_or(0, |t| t.dims.len());
    let blocks = cost.params.string("layout").chars().filter(char::is_ascii_lowercase).count();
    let axes = dims.saturating_sub(2 + blocks);
    let volume = (0..axes).filter_map(|i| taps.get(i).or(taps.last())).fold(1u64, |n, &t| n.saturating_mul(t as u64));
    cost.ret_len().saturating_mul(volume)
}

/// Folds each window with `step`, starting at `start`. `finish` computes the element of the result from the folded
/// value, the number of window elements in the data and the number in the padded data.
fn for_each_window(
    params: &Params<'_>,
    inputs: &[TensorView<'_>],
    outputs: &mut [TensorViewMut<'_>],
    start: f64,
    step: &dyn Fn(f64, f64) -> f64,
    finish: &dyn Fn(f64, usize, usize) -> f64,
) {
    let s = PoolShape::new(params, inputs[0].shape, outputs[0].shape);
    let (taps, window) = pool_window(params, inputs[0].shape.len() - 2);
    let size = s.data.spatial();
    let padded: [usize; 3] = std::array::from_fn(|i| window.before[i] + size[i] + window.after[i]);
    let unpadded_window = WindowParams { before: [0; 3], ..window };
    let (x, mut y) = (Reader::new(&inputs[0]), Writer::new(&mut outputs[0]));
    let mut ticks = Ticks::every(taps.iter().zip(size).map(|(&taps, size)| taps.min(size)).product());
    for n in 0..s.out.size[0] {
        for c in 0..s.out.size[1] {
            each(s.out.spatial(), |position| {
                if ticks.is_requested() {
                    return;
                }
                // A large window may consist mostly of padding, which is not traversed.
                let tap_count = |window: &WindowParams, size: [usize; 3]| -> [Range<usize>; 3] {
                    std::array::from_fn(|i| window.taps_inside(i, position[i], taps[i], size[i]))
                };
                let count = |ranges: &[Range<usize>; 3]| ranges.iter().map(Range::len).product();
                let taps_in_data = tap_count(&window, size);
                let mut value = start;
                each(taps_in_data.clone().map(|range| range.len()), |offset_in_window| {
                    let tap = std::array::from_fn(|i| taps_in_data[i].start + offset_in_window[i]);
                    if let Some(index) = window.tap(position, tap, size) {
                        value = step(value, x.float(s.data.at(n, c, index)));
                    }
                });
                let (tap_count, covered_count) = (count(&taps_in_data), count(&tap_count(&unpadded_window, padded)));
                y.set_float(s.out.at(n, c, position), finish(value, tap_count, covered_count));
            });
        }
    }
}

fn max_reference(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    if let Some(blocked_result) = blocked::reference(&params, inputs, outputs, max_reference) {
        return blocked_result;
    }
    for_each_window(&params, inputs, outputs, f64::NEG_INFINITY, &max_or_nan, &|value, _, _| value);
    Ok(())
}

pub(super) fn avg_reference(
    params: Params<'_>,
    inputs: &[TensorView<'_>],
    outputs: &mut [TensorViewMut<'_>],
) -> Evaluation {
    if let Some(blocked_result) = blocked::reference(&params, inputs, outputs, avg_reference) {
        return blocked_result;
    }
    if params.bool("count_include_pad") {
        for_each_window(&params, inputs, outputs, 0.0, &|a, b| a + b, &|sum, _, covered| sum / covered.max(1) as f64);
    } else {
        for_each_window(&params, inputs, outputs, 0.0, &|a, b| a + b, &|sum, inside, _| sum / inside.max(1) as f64);
    }
    Ok(())
}

fn lp_reference(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    if let Some(blocked_result) = blocked::reference(&params, inputs, outputs, lp_reference) {
        return blocked_result;
    }
    let p = params.int("p");
    if p < 1 {
        return Err(format!("p: expected an integer >= 1, found {p}"));
    }
    let p = p as f64;
    for_each_window(&params, inputs, outputs, 0.0, &|sum, x| sum + x.abs().powf(p), &|sum, _, _| sum.powf(1.0 / p));
    Ok(())
}

/// Returns the range of input elements that are pooled into output element `i`, on an axis of `size` input elements and
/// `out` output elements.
pub fn adaptive_range(i: usize, size: usize, out: usize) -> Range<usize> {
    i * size / out..((i + 1) * size).div_ceil(out)
}

fn adaptive_pool(
    params: &Params<'_>,
    inputs: &[TensorView<'_>],
    outputs: &mut [TensorViewMut<'_>],
    start: f64,
    step: fn(f64, f64) -> f64,
    finish: fn(f64, usize) -> f64,
) {
    let s = PoolShape::new(params, inputs[0].shape, outputs[0].shape);
    let (size, out) = (s.data.spatial(), s.out.spatial());
    let (x, mut y) = (Reader::new(&inputs[0]), Writer::new(&mut outputs[0]));
    let mut ticks = Ticks::every((0..3).map(|i| size[i] / out[i].max(1) + 1).product());
    for n in 0..s.out.size[0] {
        for c in 0..s.out.size[1] {
            each(out, |position| {
                if ticks.is_requested() {
                    return;
                }
                let ranges: [_; 3] = std::array::from_fn(|i| adaptive_range(position[i], size[i], out[i]));
                let mut value = start;
                each(ranges.clone().map(|r| r.len()), |tap| {
                    let index = std::array::from_fn(|i| ranges[i].start + tap[i]);
                    value = step(value, x.float(s.data.at(n, c, index)));
                });
                let element_count = ranges.iter().map(|r| r.len()).product();
                y.set_float(s.out.at(n, c, position), finish(value, element_count));
            });
        }
    }
}

fn adaptive_avg(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    if let Some(blocked_result) = blocked::reference(&params, inputs, outputs, adaptive_avg) {
        return blocked_result;
    }
    adaptive_pool(&params, inputs, outputs, 0.0, |a, b| a + b, |sum, n| sum / n.max(1) as f64);
    Ok(())
}

fn adaptive_max(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    if let Some(blocked_result) = blocked::reference(&params, inputs, outputs, adaptive_max) {
        return blocked_result;
    }
    adaptive_pool(&params, inputs, outputs, f64::NEG_INFINITY, max_or_nan, |value, _| value);
    Ok(())
}

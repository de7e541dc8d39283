//! Pooling.

use super::conv::{Geometry, geometry, ints, per_axis, spatial};
use super::{Node, Outputs, Result, Row, attrs, one};
use byoc_ir::ir::AttrValue;

pub const ROWS: &[Row] = &[
    ("AveragePool", 1, |n| pool(n, Kind::Average)),
    ("GlobalAveragePool", 1, |n| global(n, "nn.global_avg_pool2d", "mean")),
    ("GlobalLpPool", 2, global_lp),
    ("GlobalMaxPool", 1, |n| global(n, "nn.global_max_pool2d", "max")),
    ("LpPool", 2, |n| pool(n, Kind::Norm)),
    ("MaxPool", 1, |n| pool(n, Kind::Max)),
];

/// Reduction over a window.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Average,
    Max,
    Norm,
}

/// Converts GlobalLpPool to a pooling whose window covers the data.
fn global_lp(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let data = n.input(0)?;
    let size = spatial(n, data)?;
    let (p, name) = (n.int_attr("p", 2)?, format!("nn.contrib_lp_pool{}d", size.len()));
    one(n.op(&name, &[data], attrs![pool_size: ints(&size), p: p])?)
}

fn global(n: &mut Node<'_, '_>, planar: &str, reduction: &str) -> Result<Outputs> {
    let data = n.input(0)?;
    let rank = n.rank(data)?;
    if rank == 4 {
        return one(n.op_without_attrs(planar, &[data])?);
    }
    let axes = AttrValue::ints(2..rank as i64);
    one(n.op(reduction, &[data], attrs![axis: axes, keepdims: true])?)
}

fn pool(n: &mut Node<'_, '_>, kind: Kind) -> Result<Outputs> {
    let data = n.input(0)?;
    let spatial = spatial(n, data)?;
    let axes = spatial.len();
    if n.ints_attr("kernel_shape")?.is_none() {
        return Err(n.invalid_node("attribute kernel_shape is missing"));
    }
    let kernel = per_axis(n, "kernel_shape", axes)?;
    let mut window = geometry(n, kernel, &spatial)?;
    let count_include_pad = kind == Kind::Average && n.int_attr("count_include_pad", 0)? != 0;
    let mut ceil_mode = false;
    if n.int_attr("ceil_mode", 0)? != 0 {
        ceil_mode = round_up(n, &mut window, &spatial, count_include_pad)?;
    }
    let name = match kind {
        Kind::Average => "nn.avg_pool",
        Kind::Max => "nn.max_pool",
        Kind::Norm => "nn.contrib_lp_pool",
    };
    let mut attributes = attrs![
        pool_size: ints(&window.kernel),
        strides: ints(&window.strides),
        dilation: ints(&window.dilations),
        padding: window.padding(),
        ceil_mode: ceil_mode,
    ];
    match kind {
        Kind::Average => attributes = attributes.with("count_include_pad", count_include_pad),
        Kind::Norm => attributes = attributes.with("p", n.int_attr("p", 2)?),
        Kind::Max => {}
    }
    one(n.op(&format!("{name}{axes}d"), &[data], attributes)?)
}

/// Handles `ceil_mode`: an incomplete last stride yields a window too, unless that window would begin in the padding
/// after the data. Relay's `ceil_mode` applies to all axes, so if only some axes get such a window, their padding after
/// the data is extended instead, which affects neither the maximum nor a mean over the data alone. Returns true if
/// Relay's `ceil_mode` has to be set.
fn round_up(n: &Node<'_, '_>, window: &mut Geometry, spatial: &[usize], padding_counts: bool) -> Result<bool> {
    let mut extra_padding = vec![0i64; spatial.len()];
    let (mut more, mut fewer) = (false, false);
    for (axis, &size) in spatial.iter().enumerate() {
        let stride = window.strides[axis] as i64;
        let free = size as i64 + window.begin[axis] + window.end[axis] - window.extent(axis) as i64;
        let incomplete = free >= 0 && free % stride != 0;
        let last = (free / stride + 1) * stride;
        if incomplete && last < size as i64 + window.begin[axis] {
            extra_padding[axis] = last - free;
            more = true;
        } else if incomplete {
            fewer = true;
        }
    }
    if more && fewer {
        if padding_counts {
            return Err(n.invalid_node(
                "ceil_mode with count_include_pad is not supported if axes differ in their last window",
            ));
        }
        for (end, extra_padding) in window.end.iter_mut().zip(extra_padding) {
            *end += extra_padding;
        }
        return Ok(false);
    }
    Ok(more)
}

//! View operators of a region.

use byoc_plugin_support::attributes::normalize_axis;
use byoc_plugin_support::region::{Op, RegionIr};
use byoc_plugin_support::view::View;

/// View operators: for most shapes, the result can be expressed as a view of the input.
pub const VIEWS: &[&str] = &[
    "reshape",
    "nn.batch_flatten",
    "squeeze",
    "expand_dims",
    "transpose",
    "strided_slice",
    "split",
    "broadcast_to",
    "copy",
];

/// Returns true for a view operator.
pub fn is_view_op(name: &str) -> bool {
    VIEWS.contains(&name)
}

/// Returns true if the output of a view operator contains each element of its input exactly once.
pub fn is_bijective(name: &str) -> bool {
    is_view_op(name) && !matches!(name, "strided_slice" | "split" | "broadcast_to")
}

/// Returns output `k` of a view operator as a view of its input's memory; `None` if a copy is needed.
pub fn view_through(ir: &RegionIr<'_>, op: &Op<'_>, k: usize, input: &View) -> Option<View> {
    let out = ir.shape(op.outputs[k]);
    let rank = input.shape.len();
    match op.name {
        "copy" => Some(input.clone()),
        "transpose" => Some(input.permute(&op.attrs().permutation(rank)?)),
        "broadcast_to" => input.broadcast(out),
        "split" => {
            let axis = op.attrs().axis("axis", 0, rank)?;
            let start = op.outputs[..k].iter().map(|&v| ir.shape(v)[axis]).sum();
            Some(input.slice(axis, start, 1, out[axis]))
        }
        "strided_slice" => {
            let mut view = input.clone();
            for (axis, (begin, step)) in slice_starts(op, &input.shape).into_iter().enumerate() {
                view = view.slice(axis, begin, step, out[axis]);
            }
            Some(view)
        }
        _ => input.reshape(out),
    }
}

/// Returns the first index and the step of a `strided_slice` along each axis.
fn slice_starts(op: &Op<'_>, shape: &[i64]) -> Vec<(i64, i64)> {
    let rank = shape.len();
    let begin = op.attrs().ints("begin").unwrap_or_default();
    let strides = op.attrs().ints("strides").unwrap_or_default();
    let axes = op.attrs().ints("axes").filter(|a| !a.is_empty()).unwrap_or_else(|| (0..begin.len() as i64).collect());
    let is_by_size = op.attrs().text("slice_mode") == "size";
    let mut starts = vec![(0, 1); rank];
    for (i, axis) in axes.iter().enumerate() {
        let Some(axis) = normalize_axis(*axis, rank) else { continue };
        let (start, size) = (&mut starts[axis], shape[axis]);
        let step = if is_by_size { 1 } else { strides.get(i).or(strides.last()).copied().unwrap_or(1) };
        let requested_begin = begin.get(i).copied().unwrap_or(0);
        let begin_index = if requested_begin < 0 { requested_begin + size } else { requested_begin };
        *start = (if step < 0 { begin_index.clamp(-1, size - 1) } else { begin_index.clamp(0, size) }, step);
    }
    starts
}

//! View operators, and views over a kernel's index space.

use byoc_plugin_support::attributes::normalize_axis;
use byoc_plugin_support::region::{Op, RegionIr};
use byoc_plugin_support::view::View;

/// Names of the view operators.
pub const NAMES: &[&str] = &[
    "reshape",
    "nn.batch_flatten",
    "squeeze",
    "expand_dims",
    "transpose",
    "copy",
    "strided_slice",
    "split",
    "broadcast_to",
];

/// Tests for a view operator: for most shapes, its results are views of its operand.
pub fn is_view(name: &str) -> bool {
    NAMES.contains(&name)
}

/// Tests for a view operator whose result contains each element of its operand exactly once.
pub fn is_bijective(name: &str) -> bool {
    is_view(name) && !matches!(name, "strided_slice" | "split" | "broadcast_to")
}

/// Returns output `k` of a view operator as a view of its operand's memory; `None` if a copy is needed.
pub fn through(ir: &RegionIr<'_>, op: &Op<'_>, k: usize, input: &View) -> Option<View> {
    let out = ir.shape(op.outputs[k]);
    let rank = input.shape.len();
    match op.name {
        "copy" => Some(input.clone()),
        "transpose" => Some(input.permute(&op.attrs().permutation(rank)?)),
        "broadcast_to" => input.broadcast(out),
        "split" => {
            let axis = op.attrs().axis("axis", 0, rank)?;
            let start = op.outputs[..k].iter().map(|&output| ir.shape(output)[axis]).sum();
            Some(input.slice(axis, start, 1, out[axis]))
        }
        "strided_slice" => slice(op, input, out),
        _ => input.reshape(out),
    }
}

fn slice(op: &Op<'_>, input: &View, out: &[i64]) -> Option<View> {
    let rank = input.shape.len();
    let begin = op.attrs().ints("begin").unwrap_or_default();
    let strides = op.attrs().ints("strides").unwrap_or_default();
    let axes = op.attrs().ints("axes").filter(|axes| !axes.is_empty());
    let axes = axes.unwrap_or_else(|| (0..begin.len() as i64).collect());
    let is_by_size = op.attrs().text("slice_mode") == "size";
    let mut view = input.clone();
    for (i, axis) in axes.iter().enumerate() {
        let axis = normalize_axis(*axis, rank)?;
        let size = input.shape[axis];
        let step = if is_by_size { 1 } else { strides.get(i).or(strides.last()).copied().unwrap_or(1) };
        let requested_begin = begin.get(i).copied().unwrap_or(0);
        let begin_index = if requested_begin < 0 { requested_begin + size } else { requested_begin };
        let begin_index = if step < 0 { begin_index.clamp(-1, size - 1) } else { begin_index.clamp(0, size) };
        view = view.slice(axis, begin_index, step, out[axis]);
    }
    Some(view)
}

/// Returns the dimensions in memory order, outermost first; dimensions that are broadcast or of size 1 come last.
pub fn memory_order(view: &View) -> Vec<usize> {
    let mut order: Vec<usize> = (0..view.shape.len()).collect();
    order.sort_by_key(|&d| std::cmp::Reverse(if view.shape[d] == 1 { 0 } else { view.strides[d].abs() }));
    order
}

/// Returns `operand`, which has the dimensions of `index`, as a view of shape `domain`; `None` if there is no such
/// view. `index` maps each tensor element one to one to its position in the row-major order of `domain`.
pub fn pull_back(index: &View, operand: &View, domain: &[i64]) -> Option<View> {
    if index.shape == domain && index.is_dense() {
        return Some(operand.clone());
    }
    operand.permute(&memory_order(index)).reshape(domain)
}

/// Merges adjacent dimensions that are contiguous in all views. Returns the merged shape and views.
pub fn collapse(shape: &[i64], views: &[&View]) -> (Vec<i64>, Vec<View>) {
    let mut merged_shape: Vec<i64> = Vec::new();
    let mut strides: Vec<Vec<i64>> = vec![Vec::new(); views.len()];
    for d in (0..shape.len()).filter(|&d| shape[d] != 1) {
        let is_contiguous = !merged_shape.is_empty()
            && views
                .iter()
                .zip(&strides)
                .all(|(view, view_strides)| view_strides.last() == Some(&(view.strides[d] * shape[d])));
        match merged_shape.last_mut().filter(|_| is_contiguous) {
            Some(last_size) => *last_size *= shape[d],
            None => merged_shape.push(shape[d]),
        }
        for (view, view_strides) in views.iter().zip(&mut strides) {
            match view_strides.last_mut().filter(|_| is_contiguous) {
                Some(last_stride) => *last_stride = view.strides[d],
                None => view_strides.push(view.strides[d]),
            }
        }
    }
    if merged_shape.is_empty() {
        merged_shape.push(1);
        strides.iter_mut().for_each(|view_strides| view_strides.push(0));
    }
    let views = views.iter().zip(strides);
    let views =
        views.map(|(view, strides)| View { shape: merged_shape.clone(), strides, offset: view.offset }).collect();
    (merged_shape, views)
}

#[cfg(test)]
mod tests {
    use super::*;
    use byoc_plugin_support::view::{count, dense_strides};

    fn offsets(view: &View) -> Vec<i64> {
        let dense = dense_strides(&view.shape);
        let offset =
            |i: i64| (0..view.shape.len()).map(|d| i / dense[d] % view.shape[d] * view.strides[d]).sum::<i64>();
        (0..count(&view.shape)).map(|i| view.offset + offset(i)).collect()
    }

    #[test]
    fn operands_follow_a_permuted_domain() {
        let index = View::dense(&[4, 6]).reshape(&[4, 2, 3]).unwrap().permute(&[1, 2, 0]);
        let operand = View::dense(&[2, 3, 4]);
        let pulled_view = pull_back(&index, &operand, &[4, 6]).unwrap();
        let (positions, expected_offsets) = (offsets(&index), offsets(&operand));
        for (k, &position) in positions.iter().enumerate() {
            assert_eq!(offsets(&pulled_view)[position as usize], expected_offsets[k]);
        }
    }

    #[test]
    fn merged_dimensions_keep_their_places() {
        let a = View::dense(&[2, 1, 3, 4]);
        let b = View::dense(&[3, 4]).broadcast(&[2, 1, 3, 4]).unwrap();
        let (shape, views) = collapse(&[2, 1, 3, 4], &[&a, &b]);
        assert_eq!(shape, [2, 12]);
        assert_eq!([offsets(&views[0]), offsets(&views[1])], [offsets(&a), offsets(&b)]);
        assert_eq!(collapse(&[1, 1], &[]).0, [1]);
    }
}

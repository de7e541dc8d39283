//! Views over the index space of a loop nest.

use byoc_plugin_support::view::View;

/// Returns the dimensions from the outermost in memory to the innermost; broadcast dimensions and dimensions of size 1
/// come last.
pub fn memory_order(view: &View) -> Vec<usize> {
    let mut order: Vec<usize> = (0..view.shape.len()).collect();
    order.sort_by_key(|&d| std::cmp::Reverse(if view.shape[d] == 1 { 0 } else { view.strides[d].abs() }));
    order
}

/// Converts `operand`, a view with the shape of `index`, to a view with the shape `domain`; `None` if no such view
/// exists. `index` maps each index of a tensor to a position in the row-major order of `domain`, and must be bijective.
pub fn pull_back(index: &View, operand: &View, domain: &[i64]) -> Option<View> {
    operand.permute(&memory_order(index)).reshape(domain)
}

/// Compares two views, ignoring the strides of dimensions of size 1.
pub fn is_same_location(a: &View, b: &View) -> bool {
    a.offset == b.offset && a.same_layout(b)
}

/// Groups adjacent dimensions that are contiguous in each of `views`, given as strides for `shape`. Dimensions of size
/// 1 are omitted.
pub fn collapse(shape: &[i64], views: &[&[i64]]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for d in (0..shape.len()).filter(|&d| shape[d] != 1) {
        if let Some(last_group) = groups.last_mut() {
            let outer = *last_group.last().expect("groups are non-empty");
            if views.iter().all(|strides| strides[outer] == strides[d] * shape[d]) {
                last_group.push(d);
                continue;
            }
        }
        groups.push(vec![d]);
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use byoc_plugin_support::view::{count, dense_strides};

    fn offsets(view: &View) -> Vec<i64> {
        let dense = dense_strides(&view.shape);
        (0..count(&view.shape))
            .map(|i| {
                view.offset + (0..view.shape.len()).map(|d| i / dense[d] % view.shape[d] * view.strides[d]).sum::<i64>()
            })
            .collect()
    }

    #[test]
    fn pull_back_follows_a_permuted_domain() {
        // The tensor is the domain [4, 6] seen as [2, 3, 4]: reshape to [4, 2, 3], then transpose.
        let index = View::dense(&[4, 6]).reshape(&[4, 2, 3]).unwrap().permute(&[1, 2, 0]);
        let operand = View::dense(&[2, 3, 4]);
        let pulled_view = pull_back(&index, &operand, &[4, 6]).unwrap();
        let (positions, expected_offsets) = (offsets(&index), offsets(&operand));
        for (k, &position) in positions.iter().enumerate() {
            assert_eq!(offsets(&pulled_view)[position as usize], expected_offsets[k]);
        }
    }
}

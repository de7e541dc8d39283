//! Strided views: the layout of a tensor in a buffer.
//!
//! Every activation has a strided layout: row-major, or channels-last, which is row-major for another order of the
//! dimensions. So a transpose, a slice, a split and most reshapes are views of the same memory and cost nothing.

/// Strided layout: element `i` is at `offset + Σ i[d] * strides[d]`, counted in elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    pub shape: Vec<i64>,
    /// Stride of each dimension, in elements.
    pub strides: Vec<i64>,
    /// Offset of the element at index 0.
    pub offset: i64,
}

/// Returns the number of elements of a shape.
pub fn count(shape: &[i64]) -> i64 {
    shape.iter().product()
}

/// Returns the strides of a dense tensor with this memory order of dimensions, outermost first.
pub fn strides_in_order(shape: &[i64], order: &[usize]) -> Vec<i64> {
    let mut strides = vec![1; shape.len()];
    let mut step = 1;
    for &d in order.iter().rev() {
        strides[d] = step;
        step *= shape[d].max(1);
    }
    strides
}

/// Returns the channels-last order: (N, C, spatial...) in memory as (N, spatial..., C).
pub fn channels_last(rank: usize) -> Vec<usize> {
    std::iter::once(0).chain(2..rank).chain(std::iter::once(1)).take(rank).collect()
}

impl View {
    /// Creates a dense view with this memory order of dimensions.
    pub fn in_order(shape: &[i64], order: &[usize]) -> View {
        View { shape: shape.to_vec(), strides: strides_in_order(shape, order), offset: 0 }
    }

    /// Creates a dense row-major view.
    pub fn dense(shape: &[i64]) -> View {
        View::in_order(shape, &(0..shape.len()).collect::<Vec<_>>())
    }

    /// Permutes the dimensions into the order `axes`.
    pub fn permute(&self, axes: &[usize]) -> View {
        View {
            shape: axes.iter().map(|&a| self.shape[a]).collect(),
            strides: axes.iter().map(|&a| self.strides[a]).collect(),
            offset: self.offset,
        }
    }

    /// Slices `axis`: `len` elements from `begin`, every `step`th.
    pub fn slice(&self, axis: usize, begin: i64, step: i64, len: i64) -> View {
        let mut view = self.clone();
        view.offset += begin * self.strides[axis];
        view.strides[axis] *= step;
        view.shape[axis] = len;
        view
    }

    /// Reshapes in row-major order; returns `None` if that takes a copy.
    pub fn reshape(&self, shape: &[i64]) -> Option<View> {
        if count(&self.shape) != count(shape) {
            return None;
        }
        // Ignores dimensions of size 1 and merges adjacent dimensions that are dense in each other.
        let mut runs: Vec<(i64, i64)> = Vec::new();
        for (&size, &stride) in self.shape.iter().zip(&self.strides).filter(|(size, _)| **size != 1) {
            match runs.last_mut() {
                Some(last) if last.1 == stride * size => *last = (last.0 * size, stride),
                _ => runs.push((size, stride)),
            }
        }
        let mut strides = vec![0; shape.len()];
        let mut d = shape.len();
        for &(size, stride) in runs.iter().rev() {
            let (mut left, mut step) = (size, stride);
            while left > 1 {
                d = d.checked_sub(1)?;
                if shape[d] == 0 || left % shape[d] != 0 {
                    return None;
                }
                strides[d] = step;
                step *= shape[d];
                left /= shape[d];
            }
        }
        // Dimensions of size 1 get the stride that they have in a dense tensor.
        for d in (0..shape.len()).rev().filter(|&d| shape[d] == 1) {
            strides[d] = if d + 1 < shape.len() { strides[d + 1] * shape[d + 1] } else { 1 };
        }
        Some(View { shape: shape.to_vec(), strides, offset: self.offset })
    }

    /// Returns the dimensions from the outermost in memory to the innermost.
    pub fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.shape.len()).collect();
        order.sort_by_key(|&d| std::cmp::Reverse(self.strides[d]));
        order
    }

    /// Returns true if the elements fill a contiguous range of memory, with the dimensions in any order.
    pub fn is_packed(&self) -> bool {
        let dense = strides_in_order(&self.shape, &self.order());
        (0..self.shape.len()).all(|d| self.shape[d] == 1 || self.strides[d] == dense[d])
    }

    /// Returns true if the elements are row-major without gaps.
    pub fn is_dense(&self) -> bool {
        self.same_layout(&View::dense(&self.shape))
    }

    /// Returns true if two views have the same shape and strides; offsets may differ.
    pub fn same_layout(&self, other: &View) -> bool {
        self.shape == other.shape
            && (0..self.shape.len()).all(|d| self.shape[d] == 1 || self.strides[d] == other.strides[d])
    }
}

/// Maps a shape that broadcasts to `from` to one that broadcasts to `to`, where `to` is a reshape of `from`. Returns
/// `None` if a dimension of the reshape would be partially broadcast.
pub fn regroup(operand: &[i64], from: &[i64], to: &[i64]) -> Option<Vec<i64>> {
    let lead = from.len().checked_sub(operand.len())?;
    let own = |d: usize| if d < lead { 1 } else { operand[d - lead] };
    let mut result = Vec::with_capacity(to.len());
    let (mut i, mut j) = (0, 0);
    while i < from.len() || j < to.len() {
        // Find the shortest runs of dimensions on both sides with equal numbers of elements.
        let (first_i, first_j) = (i, j);
        let (mut a, mut b) = (1, 1);
        if i < from.len() && j < to.len() {
            (a, b) = (from[i], to[j]);
            (i, j) = (i + 1, j + 1);
        }
        loop {
            if a == b && a != 0 && !(first_i == i && first_j == j) {
                break;
            }
            if a < b && i < from.len() {
                a *= from[i];
                i += 1;
            } else if j < to.len() && b <= a {
                b *= to[j];
                j += 1;
            } else if i < from.len() {
                a *= from[i];
                i += 1;
            } else {
                return None;
            }
        }
        if (first_i..i).all(|d| own(d) == from[d]) {
            result.extend_from_slice(&to[first_j..j]);
        } else if (first_i..i).all(|d| own(d) == 1) {
            result.extend(std::iter::repeat_n(1, j - first_j));
        } else {
            return None;
        }
    }
    Some(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(view: &View) -> Vec<i64> {
        let dense = View::dense(&view.shape).strides;
        (0..count(&view.shape))
            .map(|i| {
                view.offset + (0..view.shape.len()).map(|d| i / dense[d] % view.shape[d] * view.strides[d]).sum::<i64>()
            })
            .collect()
    }

    #[test]
    fn reshape_keeps_row_major_order_or_returns_none() {
        let view = View::dense(&[2, 4, 5, 6]).permute(&[0, 3, 1, 2]);
        for shape in [&[2, 6, 20][..], &[2, 2, 3, 4, 5], &[2, 6, 2, 2, 5, 1]] {
            assert_eq!(places(&view.reshape(shape).unwrap()), places(&view));
        }
        assert_eq!(view.reshape(&[12, 20]), None);
        assert_eq!(view.reshape(&[2, 120]), None);
        assert_eq!(view.reshape(&[2, 121]), None);
    }

    #[test]
    fn dimensions_of_size_1_keep_the_memory_order() {
        let last = View::in_order(&[1, 8, 3, 3], &channels_last(4));
        assert_eq!(last.strides, [72, 1, 24, 8]);
        assert_eq!(last.order(), [0, 2, 3, 1]);
        assert!(last.is_packed() && !last.is_dense());
        assert!(!last.slice(1, 2, 1, 4).is_packed());
        let pooled = View::in_order(&[1, 8, 1, 1], &channels_last(4));
        assert_eq!(pooled.order(), [0, 2, 3, 1]);
        assert!(pooled.is_dense(), "both orders have the same layout");
        assert_eq!(View::dense(&[8]).reshape(&[1, 8, 1]).unwrap().strides, [8, 1, 1]);
    }

    #[test]
    fn regroup_maps_broadcast_shapes() {
        assert_eq!(regroup(&[192], &[1, 12, 192], &[12, 192]), Some(vec![1, 192]));
        assert_eq!(regroup(&[1, 12, 192], &[1, 12, 192], &[12, 192]), Some(vec![12, 192]));
        assert_eq!(regroup(&[2, 1, 192], &[2, 12, 192], &[24, 192]), None);
        assert_eq!(regroup(&[4, 1, 1], &[2, 4, 3, 3], &[8, 3, 3]), None);
        assert_eq!(regroup(&[2, 4, 3, 3], &[2, 4, 3, 3], &[8, 3, 3]), Some(vec![8, 3, 3]));
        assert_eq!(regroup(&[1, 1, 3, 3], &[2, 4, 3, 3], &[8, 3, 3]), Some(vec![1, 3, 3]));
        assert_eq!(regroup(&[], &[5], &[1, 5, 1]), Some(vec![1, 1, 1]));
        assert_eq!(regroup(&[5, 1], &[5, 1], &[5]), Some(vec![5]));
        assert_eq!(regroup(&[5], &[5], &[5, 1]), Some(vec![5, 1]));
    }
}

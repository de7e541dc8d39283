//! Strided views: the layout of a tensor in a buffer.
//!
//! A transpose, a slice, a split, a broadcast and most reshapes only change the view of the memory, and are free at
//! run time. Only a reshape that no view can express needs a copy.

/// Strided view: element `i` is at `offset + Σ i[d] * strides[d]`, counted in elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Dimensions, in the order of the tensor's axes.
    pub shape: Vec<i64>,
    /// Stride of each dimension, in elements.
    pub strides: Vec<i64>,
    /// Offset of the element whose indices are all 0, in elements.
    pub offset: i64,
}

/// Returns the number of elements of a shape.
pub fn count(shape: &[i64]) -> i64 {
    shape.iter().product()
}

/// Returns the strides of a dense tensor whose dimensions have the memory order `order`, outermost first.
pub fn strides_in_order(shape: &[i64], order: &[usize]) -> Vec<i64> {
    let mut strides = vec![1; shape.len()];
    let mut step = 1;
    for &d in order.iter().rev() {
        strides[d] = step;
        step *= shape[d].max(1);
    }
    strides
}

/// Returns the strides of a dense row-major tensor.
pub fn dense_strides(shape: &[i64]) -> Vec<i64> {
    strides_in_order(shape, &(0..shape.len()).collect::<Vec<_>>())
}

impl View {
    /// Creates a dense view whose dimensions have the memory order `order`, outermost first.
    pub fn in_order(shape: &[i64], order: &[usize]) -> View {
        View { shape: shape.to_vec(), strides: strides_in_order(shape, order), offset: 0 }
    }

    /// Creates a dense row-major view.
    pub fn dense(shape: &[i64]) -> View {
        View { shape: shape.to_vec(), strides: dense_strides(shape), offset: 0 }
    }

    /// Permutes the dimensions into the order `axes`.
    pub fn permute(&self, axes: &[usize]) -> View {
        View {
            shape: axes.iter().map(|&a| self.shape[a]).collect(),
            strides: axes.iter().map(|&a| self.strides[a]).collect(),
            offset: self.offset,
        }
    }

    /// Restricts `axis` to `len` indices that start at `begin` and are `step` apart.
    pub fn slice(&self, axis: usize, begin: i64, step: i64, len: i64) -> View {
        let mut view = self.clone();
        view.offset += begin * self.strides[axis];
        view.strides[axis] *= step;
        view.shape[axis] = len;
        view
    }

    /// Broadcasts to `shape`, aligned at the last dimension; `None` if the shapes do not broadcast.
    pub fn broadcast(&self, shape: &[i64]) -> Option<View> {
        let leading_dims = shape.len().checked_sub(self.shape.len())?;
        let mut strides = vec![0; shape.len()];
        for (d, &size) in self.shape.iter().enumerate() {
            if size == shape[leading_dims + d] {
                strides[leading_dims + d] = if size == 1 { 0 } else { self.strides[d] };
            } else if size != 1 {
                return None;
            }
        }
        Some(View { shape: shape.to_vec(), strides, offset: self.offset })
    }

    /// Reshapes the view in row-major order; `None` if a copy is needed. Unit dimensions receive the stride that they
    /// have in a dense tensor.
    pub fn reshape(&self, shape: &[i64]) -> Option<View> {
        if count(&self.shape) != count(shape) {
            return None;
        }
        if count(shape) == 0 {
            return Some(View { offset: self.offset, ..View::dense(shape) });
        }
        // Unit dimensions are skipped, and adjacent dimensions that are contiguous are merged.
        let mut runs: Vec<(i64, i64)> = Vec::new();
        for (&size, &stride) in self.shape.iter().zip(&self.strides).filter(|(size, _)| **size != 1) {
            match runs.last_mut() {
                Some(last_run) if last_run.1 == stride * size => *last_run = (last_run.0 * size, stride),
                _ => runs.push((size, stride)),
            }
        }
        let mut strides = vec![0; shape.len()];
        let mut d = shape.len();
        for &(size, stride) in runs.iter().rev() {
            let (mut remaining, mut step) = (size, stride);
            while remaining > 1 {
                d = d.checked_sub(1)?;
                if remaining % shape[d] != 0 {
                    return None;
                }
                strides[d] = step;
                step *= shape[d];
                remaining /= shape[d];
            }
        }
        for d in (0..shape.len()).rev().filter(|&d| shape[d] == 1) {
            strides[d] = if d + 1 < shape.len() { strides[d + 1] * shape[d + 1] } else { 1 };
        }
        Some(View { shape: shape.to_vec(), strides, offset: self.offset })
    }

    /// Sets the stride of each unit dimension to the extent in memory of the next inner dimension in the order `order`,
    /// or to 1 for the innermost dimension. Such strides have no effect on addressing.
    pub fn normalize_unit_strides(&self, order: &[usize]) -> View {
        let mut view = self.clone();
        let mut step = 1;
        for &d in order.iter().rev() {
            if view.shape[d] == 1 {
                view.strides[d] = step;
            }
            step = view.strides[d] * view.shape[d].max(1);
        }
        view
    }

    /// Returns the dimensions in memory order, outermost first.
    pub fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.shape.len()).collect();
        order.sort_by_key(|&d| std::cmp::Reverse(self.strides[d]));
        order
    }

    /// Returns true if the elements fill a contiguous range of memory, with the dimensions in arbitrary order.
    pub fn is_packed(&self) -> bool {
        let dense = strides_in_order(&self.shape, &self.order());
        (0..self.shape.len()).all(|d| self.shape[d] == 1 || self.strides[d] == dense[d])
    }

    /// Returns true if the elements are row-major without gaps, at an arbitrary offset.
    pub fn is_dense(&self) -> bool {
        self.same_layout(&View::dense(&self.shape))
    }

    /// Returns true if two views have the same shape and strides, except for the strides of unit dimensions; the
    /// offsets may differ.
    pub fn same_layout(&self, other: &View) -> bool {
        self.shape == other.shape
            && (0..self.shape.len()).all(|d| self.shape[d] == 1 || self.strides[d] == other.strides[d])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offsets(view: &View) -> Vec<i64> {
        let dense = dense_strides(&view.shape);
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
            assert_eq!(offsets(&view.reshape(shape).unwrap()), offsets(&view));
        }
        assert_eq!(view.reshape(&[12, 20]), None);
        assert_eq!(view.reshape(&[2, 120]), None);
        assert_eq!(view.reshape(&[2, 121]), None);
        let singleton = View::dense(&[1, 1, 8]).permute(&[0, 2, 1]);
        assert_eq!(offsets(&singleton.reshape(&[8]).unwrap()), offsets(&singleton));
        assert_eq!(View::dense(&[0, 3]).reshape(&[3, 0]).unwrap().shape, [3, 0]);
    }

    #[test]
    fn unit_strides_continue_the_next_inner_dimension() {
        let view = View { shape: vec![1, 2, 1, 128], strides: vec![7, 128, 256, 1], offset: 3 };
        let normalized_view = view.normalize_unit_strides(&[0, 1, 2, 3]);
        assert_eq!((&normalized_view.strides[..], normalized_view.offset), (&[256, 128, 128, 1][..], 3));
        assert_eq!(offsets(&normalized_view), offsets(&view));
    }

    #[test]
    fn broadcast_and_slice() {
        let view = View::dense(&[3, 1]).broadcast(&[2, 3, 2]).unwrap();
        assert_eq!(offsets(&view), [0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2]);
        assert_eq!(View::dense(&[3]).broadcast(&[2]), None);
        assert_eq!(offsets(&View::dense(&[6]).slice(0, 5, -2, 3)), [5, 3, 1]);
    }

    #[test]
    fn dimensions_of_size_1_keep_the_memory_order() {
        let channels_last = [0, 2, 3, 1];
        let channels_last_view = View::in_order(&[1, 8, 3, 3], &channels_last);
        assert_eq!(channels_last_view.strides, [72, 1, 24, 8]);
        assert_eq!(channels_last_view.order(), channels_last);
        assert!(channels_last_view.is_packed() && !channels_last_view.is_dense());
        assert!(!channels_last_view.slice(1, 2, 1, 4).is_packed());
        let pooled_view = View::in_order(&[1, 8, 1, 1], &channels_last);
        assert_eq!(pooled_view.order(), channels_last);
        assert!(pooled_view.is_dense(), "both orders have the same layout");
        assert_eq!(View::dense(&[8]).reshape(&[1, 8, 1]).unwrap().strides, [8, 1, 1]);
    }
}

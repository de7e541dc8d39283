//! Strided views of tensors in a buffer.
//!
//! A transpose, a slice, a broadcast and most reshapes only create another view of the same buffer and cost nothing at
//! run time. Only a reshape that no view can express needs a copy.

/// Strided view: element `i` is at `offset + Σ i[d] * strides[d]`, counted in elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Dimensions.
    pub shape: Vec<i64>,
    /// Stride of each dimension in elements.
    pub strides: Vec<i64>,
    /// Offset of the element with all indices 0.
    pub offset: i64,
}

/// Returns the number of elements of a shape.
pub fn count(shape: &[i64]) -> i64 {
    shape.iter().product()
}

/// Returns the strides of a dense row-major tensor.
pub fn dense_strides(shape: &[i64]) -> Vec<i64> {
    let mut strides = vec![1; shape.len()];
    for d in (0..shape.len().saturating_sub(1)).rev() {
        strides[d] = strides[d + 1] * shape[d + 1].max(1);
    }
    strides
}

impl View {
    /// Creates the view of a dense row-major tensor.
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

    /// Broadcasts to `shape`, aligned at the right; `None` if the shapes do not broadcast.
    pub fn broadcast(&self, shape: &[i64]) -> Option<View> {
        let lead = shape.len().checked_sub(self.shape.len())?;
        let mut strides = vec![0; shape.len()];
        for (d, &size) in self.shape.iter().enumerate() {
            if size == shape[lead + d] {
                strides[lead + d] = if size == 1 { 0 } else { self.strides[d] };
            } else if size != 1 {
                return None;
            }
        }
        Some(View { shape: shape.to_vec(), strides, offset: self.offset })
    }

    /// Reshapes the view in row-major order; `None` if a copy is needed.
    pub fn reshape(&self, shape: &[i64]) -> Option<View> {
        if count(&self.shape) != count(shape) {
            return None;
        }
        if count(shape) == 0 {
            return Some(View { offset: self.offset, ..View::dense(shape) });
        }
        // Drops dimensions of size 1 and merges adjacent dimensions that are contiguous.
        let old = merge(self.shape.iter().zip(&self.strides).map(|(&size, &stride)| (size, stride)));
        let mut strides = vec![0; shape.len()];
        let mut d = shape.len();
        for &(size, stride) in old.iter().rev() {
            let (mut left, mut step) = (size, stride);
            while left > 1 {
                d = d.checked_sub(1)?;
                if left % shape[d] != 0 {
                    return None;
                }
                strides[d] = if shape[d] == 1 { 0 } else { step };
                step *= shape[d];
                left /= shape[d];
            }
        }
        Some(View { shape: shape.to_vec(), strides, offset: self.offset })
    }

    /// Returns true if the elements are dense and row-major from the start of the buffer.
    pub fn is_dense(&self) -> bool {
        let mut expected = 1;
        for (&size, &stride) in self.shape.iter().zip(&self.strides).rev() {
            if size != 1 && stride != expected {
                return false;
            }
            expected *= size;
        }
        self.offset == 0
    }

    /// Returns the dimensions from the outermost in memory to the innermost; broadcast dimensions and those of size 1
    /// come last.
    pub fn memory_order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.shape.len()).collect();
        order.sort_by_key(|&d| std::cmp::Reverse(if self.shape[d] == 1 { 0 } else { self.strides[d].abs() }));
        order
    }

    /// Returns `other`, which has the indices of `self`, as a view of shape `domain`; `None` if there is no such view.
    /// `self` maps each index of a tensor to a position in the row-major order of `domain`, and must be bijective.
    pub fn pull_back(&self, other: &View, domain: &[i64]) -> Option<View> {
        let order = self.memory_order();
        other.permute(&order).reshape(domain)
    }

    /// Compares two views except for the strides of dimensions of size 1.
    pub fn same_places(&self, other: &View) -> bool {
        self.shape == other.shape
            && self.offset == other.offset
            && (0..self.shape.len()).all(|d| self.shape[d] == 1 || self.strides[d] == other.strides[d])
    }
}

/// Drops dimensions of size 1 from a list of (size, stride) and merges adjacent dimensions that are contiguous.
fn merge(dims: impl Iterator<Item = (i64, i64)>) -> Vec<(i64, i64)> {
    let mut merged: Vec<(i64, i64)> = Vec::new();
    for (size, stride) in dims.filter(|&(size, _)| size != 1) {
        match merged.last_mut() {
            Some(last) if last.1 == stride * size => *last = (last.0 * size, stride),
            _ => merged.push((size, stride)),
        }
    }
    merged
}

/// Merges adjacent dimensions that are contiguous in each of `views` (strides for `shape`). Returns the groups of
/// dimensions that were merged, without dimensions of size 1.
pub fn collapse(shape: &[i64], views: &[&[i64]]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for d in (0..shape.len()).filter(|&d| shape[d] != 1) {
        if let Some(last) = groups.last_mut() {
            let outer = *last.last().expect("groups are not empty");
            if views.iter().all(|strides| strides[outer] == strides[d] * shape[d]) {
                last.push(d);
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

    fn places(view: &View) -> Vec<i64> {
        let total = count(&view.shape);
        let dense = dense_strides(&view.shape);
        (0..total)
            .map(|i| {
                view.offset + (0..view.shape.len()).map(|d| i / dense[d] % view.shape[d] * view.strides[d]).sum::<i64>()
            })
            .collect()
    }

    #[test]
    fn reshape_keeps_row_major_order_or_fails() {
        let nhwc = View::dense(&[2, 4, 5, 6]).permute(&[0, 3, 1, 2]);
        for shape in [&[2, 6, 20][..], &[2, 2, 3, 4, 5], &[2, 6, 2, 2, 5, 1]] {
            assert_eq!(places(&nhwc.reshape(shape).unwrap()), places(&nhwc));
        }
        assert_eq!(nhwc.reshape(&[12, 20]), None);
        assert_eq!(nhwc.reshape(&[2, 120]), None);
        let one = View::dense(&[1, 1, 8]).permute(&[0, 2, 1]);
        assert_eq!(places(&one.reshape(&[8]).unwrap()), places(&one));
    }

    #[test]
    fn broadcast_and_slice() {
        let view = View::dense(&[3, 1]).broadcast(&[2, 3, 2]).unwrap();
        assert_eq!(places(&view), [0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2]);
        assert_eq!(View::dense(&[3]).broadcast(&[2]), None);
        assert_eq!(places(&View::dense(&[6]).slice(0, 5, -2, 3)), [5, 3, 1]);
    }

    #[test]
    fn pull_back_follows_a_permuted_domain() {
        // The tensor is the domain [4, 6] seen as [2, 3, 4]: reshape to [4, 2, 3], then transpose.
        let index = View::dense(&[4, 6]).reshape(&[4, 2, 3]).unwrap().permute(&[1, 2, 0]);
        let operand = View::dense(&[2, 3, 4]);
        let pulled = index.pull_back(&operand, &[4, 6]).unwrap();
        let (at, direct) = (places(&index), places(&operand));
        for (k, &place) in at.iter().enumerate() {
            assert_eq!(places(&pulled)[place as usize], direct[k]);
        }
    }
}

//! Maps from a value's dimensions to the dimensions that a primitive sees, which are permuted and partly merged.
//!
//! An elementwise primitive does not depend on the meaning of dimensions. oneDNN is fast for row-major tensors of low
//! rank, and falls back to its reference implementation for many other shapes, even if they describe the same memory.
//! So dimensions are passed in memory order, unit dimensions are omitted, and two adjacent dimensions are merged if
//! every operand is broadcast over both or over neither.

use crate::shape::regroup;
use byoc_plugin_support::view::View;

/// Map from a value's dimensions to the dimensions that a primitive sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DimMap {
    value_shape: Vec<i64>,
    /// Permutation of the dimensions.
    order: Vec<usize>,
    /// Shape that the primitive sees: a reshape of the permuted dimensions.
    pub exec_shape: Vec<i64>,
}

impl DimMap {
    /// Creates a map without a permutation.
    pub fn plain(value_shape: &[i64], exec_shape: &[i64]) -> DimMap {
        DimMap {
            value_shape: value_shape.to_vec(),
            order: (0..value_shape.len()).collect(),
            exec_shape: exec_shape.to_vec(),
        }
    }

    /// Creates a map to a reshape of the dimensions in the order `order`.
    pub fn in_order(value_shape: &[i64], order: &[usize], exec_shape: &[i64]) -> DimMap {
        DimMap { value_shape: value_shape.to_vec(), order: order.to_vec(), exec_shape: exec_shape.to_vec() }
    }

    /// Creates the map with the fewest dimensions for a value in memory order `order`, given the shapes of the operands
    /// that broadcast to the value.
    pub fn collapsed(value_shape: &[i64], order: &[usize], operands: &[Vec<i64>]) -> DimMap {
        let broadcasts_of = |d: usize| -> Vec<bool> {
            let is_broadcast_dim = |shape: &Vec<i64>| {
                (d + shape.len()).checked_sub(value_shape.len()).is_none_or(|index| shape[index] == 1)
            };
            operands.iter().map(is_broadcast_dim).collect()
        };
        let mut runs: Vec<(i64, Vec<bool>)> = Vec::new();
        for &d in order.iter().filter(|&&d| value_shape[d] != 1) {
            let broadcasts = broadcasts_of(d);
            match runs.last_mut() {
                Some((size, last_broadcasts)) if *last_broadcasts == broadcasts => *size *= value_shape[d],
                _ => runs.push((value_shape[d], broadcasts)),
            }
        }
        let exec_shape = if runs.is_empty() { vec![1] } else { runs.into_iter().map(|(size, _)| size).collect() };
        DimMap { value_shape: value_shape.to_vec(), order: order.to_vec(), exec_shape }
    }

    /// Returns the permuted dimensions.
    pub fn ordered_shape(&self) -> Vec<i64> {
        self.order.iter().map(|&d| self.value_shape[d]).collect()
    }

    /// Permutes the dimensions of a tensor that broadcasts to the value.
    pub fn permute_view(&self, view: &View) -> Option<View> {
        let leading_dims = self.value_shape.len().checked_sub(view.shape.len())?;
        let full: Vec<i64> = std::iter::repeat_n(1, leading_dims).chain(view.shape.iter().copied()).collect();
        Some(view.reshape(&full)?.permute(&self.order))
    }

    /// Maps a tensor that broadcasts to the value onto the primitive's dimensions. Returns `None` if the mapping
    /// requires a copy.
    pub fn to_exec(&self, view: &View) -> Option<View> {
        let view = self.permute_view(view)?;
        view.reshape(&regroup(&view.shape, &self.ordered_shape(), &self.exec_shape)?)
    }

    /// Maps a tensor of the primitive's shape back to the value's dimensions.
    pub fn to_value(&self, view: &View) -> Option<View> {
        let mut inverse = vec![0; self.order.len()];
        self.order.iter().enumerate().for_each(|(i, &d)| inverse[d] = i);
        Some(view.reshape(&self.ordered_shape())?.permute(&inverse))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::channels_last;

    #[test]
    fn merges_spatial_dimensions_under_a_channel_gate() {
        let image = View::in_order(&[1, 96, 7, 5], &channels_last(4));
        let gate = View::dense(&[1, 96, 1, 1]);
        let dim_map = DimMap::collapsed(&image.shape, &image.order(), std::slice::from_ref(&gate.shape));
        assert_eq!(dim_map.exec_shape, [35, 96]);
        assert_eq!(dim_map.to_exec(&image), Some(View::dense(&[35, 96])));
        assert_eq!(dim_map.to_exec(&gate), Some(View::dense(&[1, 96])));
        assert!(dim_map.to_value(&View::dense(&[35, 96])).unwrap().same_layout(&image));
    }

    #[test]
    fn keeps_dimensions_apart_if_an_operand_broadcasts_over_one() {
        let shape = [4, 96, 7, 5];
        let order = channels_last(4);
        assert_eq!(DimMap::collapsed(&shape, &order, &[vec![4, 96, 1, 1]]).exec_shape, [4, 35, 96]);
        assert_eq!(DimMap::collapsed(&shape, &order, &[vec![96, 1, 1], vec![7, 1]]).exec_shape, [4, 7, 5, 96]);
        assert_eq!(DimMap::collapsed(&shape, &order, &[]).exec_shape, [4 * 96 * 35]);
        assert_eq!(DimMap::collapsed(&[1, 1], &[0, 1], &[vec![1]]).exec_shape, [1]);
    }
}

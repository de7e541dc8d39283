//! Shapes and dimension orders.
//!
//! Every activation has a strided layout: row-major, or channels-last, which is row-major for a permuted dimension
//! order.

/// Returns the channels-last order: (N, C, spatial...) in memory as (N, spatial..., C).
pub fn channels_last(rank: usize) -> Vec<usize> {
    std::iter::once(0).chain(2..rank).chain(std::iter::once(1)).take(rank).collect()
}

/// Returns the axes of a tensor of `rank` dimensions along which an operand of this shape, which is broadcast to it,
/// varies; `None` if the operand has more dimensions.
pub fn varying_axes(shape: &[i64], rank: usize) -> Option<Vec<usize>> {
    let leading_dims = rank.checked_sub(shape.len())?;
    Some((leading_dims..rank).filter(|&axis| shape[axis - leading_dims] != 1).collect())
}

/// Maps the shape `operand`, which broadcasts to `source`, to a shape that broadcasts to `target`, a reshape of
/// `source`. Returns `None` if a dimension of the reshape would be partially broadcast.
pub fn regroup(operand: &[i64], source: &[i64], target: &[i64]) -> Option<Vec<i64>> {
    let leading_dims = source.len().checked_sub(operand.len())?;
    let operand_dim = |d: usize| if d < leading_dims { 1 } else { operand[d - leading_dims] };
    let mut result = Vec::with_capacity(target.len());
    let (mut i, mut j) = (0, 0);
    while i < source.len() || j < target.len() {
        // Finds the shortest runs of dimensions on both sides with equal numbers of elements.
        let (first_i, first_j) = (i, j);
        let (mut a, mut b) = (1, 1);
        if i < source.len() && j < target.len() {
            (a, b) = (source[i], target[j]);
            (i, j) = (i + 1, j + 1);
        }
        loop {
            if a == b && a != 0 && !(first_i == i && first_j == j) {
                break;
            }
            if a < b && i < source.len() {
                a *= source[i];
                i += 1;
            } else if j < target.len() && b <= a {
                b *= target[j];
                j += 1;
            } else if i < source.len() {
                a *= source[i];
                i += 1;
            } else {
                return None;
            }
        }
        if (first_i..i).all(|d| operand_dim(d) == source[d]) {
            result.extend_from_slice(&target[first_j..j]);
        } else if (first_i..i).all(|d| operand_dim(d) == 1) {
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

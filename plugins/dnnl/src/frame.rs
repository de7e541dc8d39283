//! How a primitive sees a value: its dimensions in another order, and some of them taken together.
//!
//! An elementwise primitive does not care which dimension is which. The library has fast code for few dimensions that lie
//! row-major, and falls back to its reference for many others, even where they only name the same memory in another way. So the
//! dimensions are given to it in their order in memory, those of size 1 left out, and neighbours as one where every operand is
//! either broadcast over both or over neither.

use crate::view::{View, regroup};

/// A way of seeing a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The dimensions of the value.
    start: Vec<i64>,
    /// The order in which they are seen.
    order: Vec<usize>,
    /// The shape that is seen: a reshape of the dimensions in that order.
    pub exec: Vec<i64>,
}

impl Frame {
    /// The value as it is, reshaped.
    pub fn plain(start: &[i64], exec: &[i64]) -> Frame {
        Frame { start: start.to_vec(), order: (0..start.len()).collect(), exec: exec.to_vec() }
    }

    /// The fewest dimensions in which a value that lies in this order can be seen, together with operands of these shapes,
    /// which broadcast to it.
    pub fn fewest(start: &[i64], order: &[usize], operands: &[Vec<i64>]) -> Frame {
        let spread = |d: usize| -> Vec<bool> {
            let own = |shape: &Vec<i64>| (d + shape.len()).checked_sub(start.len()).is_none_or(|at| shape[at] == 1);
            operands.iter().map(own).collect()
        };
        let mut runs: Vec<(i64, Vec<bool>)> = Vec::new();
        for &d in order.iter().filter(|&&d| start[d] != 1) {
            let own = spread(d);
            match runs.last_mut() {
                Some((size, last)) if *last == own => *size *= start[d],
                _ => runs.push((start[d], own)),
            }
        }
        let exec = if runs.is_empty() { vec![1] } else { runs.into_iter().map(|(size, _)| size).collect() };
        Frame { start: start.to_vec(), order: order.to_vec(), exec }
    }

    /// The dimensions in the order in which they are seen.
    pub fn ordered_shape(&self) -> Vec<i64> {
        self.order.iter().map(|&d| self.start[d]).collect()
    }

    /// A tensor that broadcasts to the value, with its dimensions in the order in which they are seen.
    pub fn permuted(&self, view: &View) -> Option<View> {
        let lead = self.start.len().checked_sub(view.shape.len())?;
        let full: Vec<i64> = std::iter::repeat_n(1, lead).chain(view.shape.iter().copied()).collect();
        Some(view.reshape(&full)?.permute(&self.order))
    }

    /// A tensor that broadcasts to the value, as it is seen. `None` where that takes a copy, or cannot be.
    pub fn enter(&self, view: &View) -> Option<View> {
        let view = self.permuted(view)?;
        view.reshape(&regroup(&view.shape, &self.ordered_shape(), &self.exec)?)
    }

    /// The value behind what is seen.
    pub fn leave(&self, view: &View) -> Option<View> {
        let mut inverse = vec![0; self.order.len()];
        self.order.iter().enumerate().for_each(|(i, &d)| inverse[d] = i);
        Some(view.reshape(&self.ordered_shape())?.permute(&inverse))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::channels_last;

    #[test]
    fn a_gate_on_channels_is_one_row_for_all_places() {
        let image = View::in_order(&[1, 96, 7, 5], &channels_last(4));
        let gate = View::dense(&[1, 96, 1, 1]);
        let frame = Frame::fewest(&image.shape, &image.order(), std::slice::from_ref(&gate.shape));
        assert_eq!(frame.exec, [35, 96]);
        assert_eq!(frame.enter(&image), Some(View::dense(&[35, 96])));
        assert_eq!(frame.enter(&gate), Some(View::dense(&[1, 96])));
        assert!(frame.leave(&View::dense(&[35, 96])).unwrap().same_layout(&image));
    }

    #[test]
    fn dimensions_stay_apart_where_an_operand_is_spread_over_one_of_them() {
        let shape = [4, 96, 7, 5];
        let order = channels_last(4);
        assert_eq!(Frame::fewest(&shape, &order, &[vec![4, 96, 1, 1]]).exec, [4, 35, 96]);
        assert_eq!(Frame::fewest(&shape, &order, &[vec![96, 1, 1], vec![7, 1]]).exec, [4, 7, 5, 96]);
        assert_eq!(Frame::fewest(&shape, &order, &[]).exec, [4 * 96 * 35]);
        assert_eq!(Frame::fewest(&[1, 1], &[0, 1], &[vec![1]]).exec, [1]);
    }
}

//! Operator attributes under Relay's conventions: a number stands for a one-element list, a negative axis counts from
//! the end, and padding is one value, one value per axis, or one value before and one after each axis.

use byoc_plugin_api::{AttrValue, Node};

/// Attributes of a node.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a>(pub &'a Node);

impl<'a> Attributes<'a> {
    /// Returns an integer, or a Boolean as 0 or 1; `default` if the attribute is not set.
    pub fn int(self, key: &str, default: i64) -> i64 {
        self.0.int(key).or_else(|| self.0.flag(key).map(i64::from)).unwrap_or(default)
    }

    /// Returns a number; `default` if the attribute is not set.
    pub fn float(self, key: &str, default: f64) -> f64 {
        self.0.float(key).unwrap_or(default)
    }

    /// Returns a Boolean, or true for a nonzero integer; `default` if the attribute is not set.
    pub fn flag(self, key: &str, default: bool) -> bool {
        self.int(key, i64::from(default)) != 0
    }

    /// Returns a string; `""` if the attribute is not set.
    pub fn text(self, key: &str) -> &'a str {
        self.0.text(key).unwrap_or_default()
    }

    /// Returns a list of integers, with a single integer as a one-element list; `None` if the attribute is not set.
    pub fn ints(self, key: &str) -> Option<Vec<i64>> {
        match self.0.attr(key)? {
            AttrValue::Int(value) => Some(vec![*value]),
            other => other.as_ints(),
        }
    }

    /// Returns one value per spatial axis; the last value of a shorter list applies to the remaining axes.
    pub fn per_axis(self, key: &str, axes: usize, default: i64) -> Vec<i64> {
        let values = self.ints(key).unwrap_or_default();
        (0..axes).map(|i| values.get(i).or(values.last()).copied().unwrap_or(default)).collect()
    }

    /// Returns the spatial padding (before, after) per axis. The attribute has one value, one value per axis, or the
    /// values before all axes followed by the values after all axes.
    pub fn padding(self, axes: usize) -> Vec<(i64, i64)> {
        let widths = self.ints("padding").unwrap_or_default();
        let width = |i: usize| widths.get(i).or(widths.last()).copied().unwrap_or(0);
        (0..axes)
            .map(|i| if widths.len() >= 2 * axes { (width(i), width(axes + i)) } else { (width(i), width(i)) })
            .collect()
    }

    /// Returns the axis that an attribute selects in a tensor of rank `rank`; `None` if the axis is out of range.
    pub fn axis(self, key: &str, default: i64, rank: usize) -> Option<usize> {
        normalize_axis(self.int(key, default), rank)
    }

    /// Marks the axes that `axis` and `exclude` select for reduction; `None` if an axis is out of range.
    pub fn reduced(self, rank: usize) -> Option<Vec<bool>> {
        let mut is_reduced = vec![false; rank];
        match self.ints("axis") {
            None => is_reduced.fill(true),
            Some(axes) => {
                for axis in axes {
                    is_reduced[normalize_axis(axis, rank)?] = true;
                }
            }
        }
        if self.flag("exclude", false) {
            is_reduced.iter_mut().for_each(|flag| *flag = !*flag);
        }
        Some(is_reduced)
    }

    /// Returns the `axes` of a transpose, or all axes in reverse order by default; `None` if `axes` is not a
    /// permutation.
    pub fn permutation(self, rank: usize) -> Option<Vec<usize>> {
        let Some(listed_axes) = self.ints("axes").filter(|axes| !axes.is_empty()) else {
            return Some((0..rank).rev().collect());
        };
        let axes: Vec<usize> = listed_axes.into_iter().map(|axis| normalize_axis(axis, rank)).collect::<Option<_>>()?;
        let mut sorted_axes = axes.clone();
        sorted_axes.sort_unstable();
        sorted_axes.iter().copied().eq(0..rank).then_some(axes)
    }
}

/// Converts an axis, counted from the end if negative, to an index; `None` if the axis is out of range.
pub fn normalize_axis(axis: i64, rank: usize) -> Option<usize> {
    let from_start = if axis < 0 { axis.checked_add(rank as i64)? } else { axis };
    usize::try_from(from_start).ok().filter(|&axis| axis < rank)
}

#[cfg(test)]
mod tests {
    use super::*;
    use byoc_plugin_api::{Attr, NodeKind};

    fn node(attrs: &[(&str, AttrValue)]) -> Node {
        let mut node = Node::new(NodeKind::Op("op".into()), [], []);
        node.attrs = attrs.iter().map(|(key, value)| Attr { key: (*key).into(), value: value.clone() }).collect();
        node
    }

    fn list(values: &[i64]) -> AttrValue {
        AttrValue::List(values.iter().map(|&v| AttrValue::Int(v)).collect())
    }

    #[test]
    fn numbers_stand_for_lists() {
        let node =
            node(&[("padding", AttrValue::Int(2)), ("keepdims", AttrValue::Bool(true)), ("alpha", AttrValue::Int(3))]);
        let attrs = Attributes(&node);
        assert_eq!(attrs.ints("padding"), Some(vec![2]));
        assert_eq!(attrs.padding(2), [(2, 2), (2, 2)]);
        assert_eq!((attrs.int("keepdims", 0), attrs.flag("alpha", false)), (1, true));
        assert_eq!((attrs.ints("strides"), attrs.per_axis("strides", 2, 1)), (None, vec![1, 1]));
    }

    #[test]
    fn padding_before_and_after_each_axis() {
        let (per_axis, per_side) = (node(&[("padding", list(&[1, 2]))]), node(&[("padding", list(&[1, 2, 3, 4]))]));
        assert_eq!(Attributes(&per_axis).padding(2), [(1, 1), (2, 2)]);
        assert_eq!(Attributes(&per_side).padding(2), [(1, 3), (2, 4)]);
    }

    #[test]
    fn axes_count_from_the_end_and_stay_in_range() {
        assert_eq!(
            [-1, 0, 2, 3, -4, i64::MIN].map(|axis| normalize_axis(axis, 3)),
            [Some(2), Some(0), Some(2), None, None, None]
        );
        let excluded_axes = node(&[("axis", list(&[-1])), ("exclude", AttrValue::Bool(true))]);
        assert_eq!(Attributes(&excluded_axes).reduced(3), Some(vec![true, true, false]));
        assert_eq!(Attributes(&excluded_axes).reduced(0), None);
        let (valid, duplicate) = (node(&[("axes", list(&[0, -1, 1]))]), node(&[("axes", list(&[0, 0, 1]))]));
        assert_eq!(Attributes(&valid).permutation(3), Some(vec![0, 2, 1]));
        assert_eq!(Attributes(&duplicate).permutation(3), None);
        assert_eq!(Attributes(&node(&[])).permutation(2), Some(vec![1, 0]));
    }
}

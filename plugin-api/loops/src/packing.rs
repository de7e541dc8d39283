//! Panels: the order of the elements of an operand that kernels read.

use serde::{Deserialize, Serialize};

/// Strided loop: number of steps, and distance between steps in source elements.
pub type Strided = (i64, i64);

/// Maximum number of elements after packing.
const MAX_ELEMENTS: i64 = 1 << 31;

/// Element order of an operand: panels of `width` columns, with one row of a panel per step of `inner`.
///
/// The elements are `[outer][panel][inner][column in panel]`. Columns that the source lacks are zero. A tensor that is
/// copied unchanged is a single panel with one column per element.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Packing {
    /// Index of the first element in the source.
    pub offset: i64,
    /// Loops outside the panels.
    pub outer: Vec<Strided>,
    /// Loop over the columns.
    pub columns: Strided,
    /// Number of columns with those that pad the last panel, which may be narrower than the others; 0 if all panels are
    /// equally wide.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub padded: i64,
    /// Number of columns per panel.
    pub width: i64,
    /// Loops inside a panel.
    pub inner: Vec<Strided>,
}

fn is_zero(value: &i64) -> bool {
    *value == 0
}

impl Packing {
    /// Creates the order of a tensor that is copied unchanged.
    pub fn identity(elements: i64) -> Packing {
        let width = elements.max(1);
        Packing { offset: 0, outer: Vec::new(), columns: (elements, 1), padded: 0, width, inner: Vec::new() }
    }

    /// Returns the number of columns in all panels.
    pub fn padded_columns(&self) -> Option<i64> {
        let width = self.width.max(1);
        match self.padded {
            0 => self.columns.0.checked_add(width - 1)?.div_euclid(width).checked_mul(width),
            padded => Some(padded),
        }
    }

    /// Returns the number of elements after packing; `None` if it exceeds the maximum.
    pub fn elements(&self) -> Option<i64> {
        let sizes = self.outer.iter().chain(&self.inner).map(|step| step.0);
        let mut sizes = sizes.chain([self.padded_columns()?]);
        let multiply = |count: i64, size: i64| count.checked_mul(size).filter(|_| size >= 0);
        sizes.try_fold(1, multiply).filter(|&count| count <= MAX_ELEMENTS)
    }

    /// Returns the minimum number of source elements; `None` if a loop has no steps, a stride is negative, or the number
    /// overflows.
    pub fn source_elements(&self) -> Option<i64> {
        let loops = self.outer.iter().chain(&self.inner).chain([&self.columns]);
        let mut last_offset = self.offset;
        for &(size, stride) in loops {
            if size < 1 || stride < 0 || self.offset < 0 {
                return None;
            }
            last_offset = last_offset.checked_add((size - 1).checked_mul(stride)?)?;
        }
        last_offset.checked_add(1)
    }

    /// Packs elements of `element` bytes each. The caller must have checked [`elements`](Packing::elements) and
    /// [`source_elements`](Packing::source_elements).
    pub fn pack(&self, source: &[u8], element: usize) -> Vec<u8> {
        let mut packed_bytes = Vec::with_capacity(self.elements().unwrap_or(0) as usize * element);
        let (columns, stride) = self.columns;
        let padded_columns = self.padded_columns().unwrap_or(0);
        let rows = offsets(&self.inner);
        for outer in offsets(&self.outer) {
            for first_column in (0..padded_columns).step_by(self.width.max(1) as usize) {
                let width = self.width.min(padded_columns - first_column);
                let valid_columns = (columns - first_column).clamp(0, width);
                for &row in &rows {
                    let offset = (self.offset + outer + row + first_column * stride) as usize;
                    if stride == 1 {
                        packed_bytes
                            .extend_from_slice(&source[offset * element..(offset + valid_columns as usize) * element]);
                    } else {
                        for column in 0..valid_columns as usize {
                            let offset = offset + column * stride as usize;
                            packed_bytes.extend_from_slice(&source[offset * element..(offset + 1) * element]);
                        }
                    }
                    packed_bytes.resize(packed_bytes.len() + (width - valid_columns) as usize * element, 0);
                }
            }
        }
        packed_bytes
    }
}

/// Returns the source offset of every iteration of nested loops.
pub fn offsets(loops: &[Strided]) -> Vec<i64> {
    let mut offsets = vec![0];
    for &(size, stride) in loops {
        offsets = offsets.iter().flat_map(|offset| (0..size).map(move |step| offset + step * stride)).collect();
    }
    offsets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_of_columns() {
        // A transposed 2 x 5 matrix: 5 rows of 2 columns, padded with two zero columns to panels of 4.
        let source: Vec<u8> = (1..=10).collect();
        let packing = Packing { offset: 0, outer: vec![], columns: (2, 5), padded: 0, width: 4, inner: vec![(5, 1)] };
        assert_eq!((packing.elements(), packing.source_elements()), (Some(20), Some(10)));
        assert_eq!(packing.pack(&source, 1), [1, 6, 0, 0, 2, 7, 0, 0, 3, 8, 0, 0, 4, 9, 0, 0, 5, 10, 0, 0]);
        let packing = Packing::identity(5);
        assert_eq!(packing.pack(&source, 2), source);
        let groups = Packing { offset: 0, outer: vec![(2, 5)], columns: (5, 1), padded: 0, width: 2, inner: vec![] };
        assert_eq!(groups.pack(&source, 1), [1, 2, 3, 4, 5, 0, 6, 7, 8, 9, 10, 0]);
        let narrow = Packing { padded: 5, ..groups };
        assert_eq!(narrow.pack(&source, 1), source);
    }

    #[test]
    fn sizes_that_overflow() {
        let packing = |columns, outer| Packing { offset: 0, outer, columns, padded: 0, width: 4, inner: vec![] };
        assert_eq!(packing((1 << 40, 1), vec![]).elements(), None);
        assert_eq!(packing((2, i64::MAX), vec![]).source_elements(), None);
        assert_eq!(packing((1, 1), vec![(0, 1)]).source_elements(), None);
    }
}

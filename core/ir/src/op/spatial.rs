//! Common parts of convolutions, pooling and image operators: layouts, and windows that slide over spatial axes.
//!
//! A layout is a permutation of letters: N (batch), C (channels), D, H and W (depth, height and width), O and I (output
//! and input channels of a kernel). One, two and three spatial axes are treated alike: a missing leading axis counts as
//! a dimension of 1.

use super::{Params, Relation};
use crate::diag::{Diagnostic, codes, plural};
use crate::ir::{Dim, DimExpr};
use std::ops::Range;

/// Returns the letters of `axes` spatial axes.
pub const fn spatial(axes: usize) -> &'static str {
    match axes {
        1 => "W",
        2 => "HW",
        _ => "DHW",
    }
}

/// Returns the position of each letter of `order` in `layout`; `None` if `layout` is not a permutation of `order`.
pub fn positions(layout: &str, order: &str) -> Option<Vec<usize>> {
    if layout.len() != order.len() {
        return None;
    }
    order.chars().map(|letter| layout.find(letter)).collect()
}

/// Returns the layout in attribute `attr`, as positions of the letters of `order`. An empty attribute means `default`.
pub(super) fn layout(
    relation: &Relation<'_>,
    attr: &str,
    order: &str,
    default: &str,
) -> Result<Vec<usize>, Box<Diagnostic>> {
    let value = relation.params.string(attr);
    let value = if value.is_empty() { default } else { &value };
    positions(value, order).ok_or_else(|| {
        relation
            .error(codes::types::BAD_ATTRIBUTE, format!("{attr}: expected a permutation of {order}, found \"{value}\""))
    })
}

/// Maximum value of an attribute that counts elements; larger values are assumed to be errors.
const MAX_ELEMENT_COUNT: i64 = i32::MAX as i64;

/// Returns attribute `attr` as one value per spatial axis, each at least `min`; a single value applies to all axes.
pub(super) fn per_axis(
    relation: &Relation<'_>,
    attr: &str,
    axes: usize,
    min: i64,
) -> Result<Vec<i64>, Box<Diagnostic>> {
    let values = relation.params.ints(attr);
    if values.len() != 1 && values.len() != axes || values.iter().any(|v| !(min..=MAX_ELEMENT_COUNT).contains(v)) {
        return Err(relation.error(
            codes::types::BAD_ATTRIBUTE,
            format!("{attr}: expected {} >= {min}, found {values:?}", plural(axes, "integer")),
        ));
    }
    Ok(relation.params.per_axis(attr, axes))
}

/// Returns the padding before and after each spatial axis.
pub(super) fn padding(relation: &Relation<'_>, axes: usize) -> Result<Vec<(i64, i64)>, Box<Diagnostic>> {
    let values = relation.params.ints("padding");
    let is_valid = [1, axes, 2 * axes].contains(&values.len());
    if !is_valid || values.iter().any(|v| !(0..=MAX_ELEMENT_COUNT).contains(v)) {
        let counts = if axes == 1 { "1 or 2".to_owned() } else { format!("1, {axes} or {}", 2 * axes) };
        return Err(relation.error(
            codes::types::BAD_ATTRIBUTE,
            format!("padding: expected {counts} integers >= 0, found {values:?}"),
        ));
    }
    Ok(relation.params.padding(axes))
}

/// Window on one spatial axis.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub stride: i64,
    pub dilation: i64,
    pub pads: (i64, i64),
}

impl Window {
    /// Returns the number of positions of the window: floor (or ceil) of (padded - dilated kernel) / stride, plus 1.
    pub fn output_size(
        &self,
        relation: &Relation<'_>,
        size: &Dim,
        kernel: &Dim,
        rounds_up: bool,
    ) -> Result<Dim, Box<Diagnostic>> {
        let rounding_offset = if rounds_up { self.stride - 1 } else { 0 };
        let (Dim::Fixed(n), Dim::Fixed(k)) = (size, kernel) else {
            return Ok(Dim::compute([size, kernel], |[n, k]| {
                let extent = k.offset(-1)?.scale(self.dilation)?.offset(1)?;
                let padded_size = n.offset(self.pads.0)?.offset(self.pads.1)?.sub(&extent)?;
                padded_size.offset(rounding_offset)?.floor_div(&DimExpr::constant(self.stride))?.offset(1)
            }));
        };
        let padded = *n as i128 + i128::from(self.pads.0) + i128::from(self.pads.1);
        let extent = (*k as i128 - 1) * i128::from(self.dilation) + 1;
        if *k == 0 || padded < extent {
            return Err(relation.mismatch(format!(
                "a window of {k} (dilation {}) does not fit an axis of length {n} with padding {} and {}",
                self.dilation, self.pads.0, self.pads.1
            )));
        }
        to_dim(relation, (padded - extent + i128::from(rounding_offset)) / i128::from(self.stride) + 1)
    }

    /// Returns the dimension on which the window has `size` positions, plus `output_padding` elements: the inverse of
    /// [`Window::output_size`].
    pub fn input_size(
        &self,
        relation: &Relation<'_>,
        size: &Dim,
        kernel: &Dim,
        output_padding: i64,
    ) -> Result<Dim, Box<Diagnostic>> {
        let (Dim::Fixed(n), Dim::Fixed(k)) = (size, kernel) else {
            return Ok(Dim::compute([size, kernel], |[n, k]| {
                let extent = k.offset(-1)?.scale(self.dilation)?.offset(1)?;
                let dilated_size = n.offset(-1)?.scale(self.stride)?.add(&extent)?;
                dilated_size.offset(output_padding)?.offset(-self.pads.0)?.offset(-self.pads.1)
            }));
        };
        let span = i128::from(self.stride) * (*n as i128 - 1);
        let extent = (*k as i128 - 1) * i128::from(self.dilation) + 1;
        to_dim(relation, span + extent + i128::from(output_padding) - i128::from(self.pads.0) - i128::from(self.pads.1))
    }
}

/// Converts a computed size to a dimension.
pub(super) fn to_dim(relation: &Relation<'_>, size: i128) -> Result<Dim, Box<Diagnostic>> {
    match usize::try_from(size) {
        Ok(n) if n <= isize::MAX as usize => Ok(Dim::Fixed(n)),
        _ => Err(relation.mismatch(format!("expected a result dimension from 0 to 2^63 - 1, found {size}"))),
    }
}

/// Dimensions of a shape in canonical order (two leading letters, then depth, height, width) with their strides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CanonicalDims {
    /// Dimensions; 1 for missing spatial axes.
    pub size: [usize; 5],
    /// Strides in elements; 0 for missing spatial axes.
    pub stride: [usize; 5],
}

impl CanonicalDims {
    /// Creates the dimensions of a dense row-major tensor of layout `layout`, in the order of `lead` and the spatial
    /// letters. The type relation must have accepted the layout.
    pub fn new(shape: &[usize], layout: &str, lead: &str) -> CanonicalDims {
        let axes = shape.len() - 2;
        let order = format!("{lead}{}", spatial(axes));
        let order_positions = positions(layout, &order).unwrap_or_else(|| (0..shape.len()).collect());
        let mut canonical = CanonicalDims { size: [1; 5], stride: [0; 5] };
        for (i, &axis) in order_positions.iter().enumerate() {
            let target = if i < 2 { i } else { i + 3 - axes };
            canonical.size[target] = shape[axis];
            canonical.stride[target] = shape[axis + 1..].iter().product();
        }
        canonical
    }

    /// Returns the offset of an element from its indices, in elements.
    #[inline(always)]
    pub fn at(&self, a: usize, b: usize, spatial: [usize; 3]) -> usize {
        let s = &self.stride;
        a * s[0] + b * s[1] + spatial[0] * s[2] + spatial[1] * s[3] + spatial[2] * s[4]
    }

    /// Returns the spatial dimensions.
    pub fn spatial(&self) -> [usize; 3] {
        [self.size[2], self.size[3], self.size[4]]
    }
}

/// Calls `f` with every index of a three-dimensional box, in row-major order.
#[inline(always)]
pub(super) fn each(sizes: [usize; 3], mut f: impl FnMut([usize; 3])) {
    for d in 0..sizes[0] {
        for h in 0..sizes[1] {
            for w in 0..sizes[2] {
                f([d, h, w]);
            }
        }
    }
}

/// Returns the taps that lie within `size` elements, for a window whose tap 0 is at element `first` of the padded axis.
pub fn taps_inside(first: usize, before: usize, dilation: usize, taps: usize, size: usize) -> Range<usize> {
    let start = before.saturating_sub(first).div_ceil(dilation).min(taps);
    let end = (before + size).saturating_sub(first).div_ceil(dilation).min(taps);
    start..end.max(start)
}

/// Strides, dilation and padding on three axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowParams {
    /// Distance between consecutive windows, in elements.
    pub stride: [usize; 3],
    /// Distance between consecutive taps of a window, in elements.
    pub dilation: [usize; 3],
    /// Padding before the first element of each axis.
    pub before: [usize; 3],
    /// Padding after the last element of each axis.
    pub after: [usize; 3],
}

impl WindowParams {
    /// Creates the parameters from attributes that the type relation accepted.
    pub fn new(params: &Params<'_>, axes: usize) -> WindowParams {
        let spatial_values = |values: &[i64], missing: usize| {
            let mut padded_values = [missing; 3];
            for (target, &v) in padded_values[3 - axes..].iter_mut().zip(values) {
                *target = v as usize;
            }
            padded_values
        };
        let pads = params.padding(axes);
        WindowParams {
            stride: spatial_values(&params.per_axis("strides", axes), 1),
            dilation: spatial_values(&params.per_axis("dilation", axes), 1),
            before: spatial_values(&pads.iter().map(|p| p.0).collect::<Vec<_>>(), 0),
            after: spatial_values(&pads.iter().map(|p| p.1).collect::<Vec<_>>(), 0),
        }
    }

    /// Returns the taps of window `position` that lie within the `size` elements of an axis.
    pub fn taps_inside(&self, axis: usize, position: usize, taps: usize, size: usize) -> Range<usize> {
        taps_inside(position * self.stride[axis], self.before[axis], self.dilation[axis], taps, size)
    }

    /// Returns the coordinates of tap `tap` of window `position`; `None` if they lie outside the data, whose dimensions
    /// are `size`.
    #[inline(always)]
    pub fn tap(&self, position: [usize; 3], tap: [usize; 3], size: [usize; 3]) -> Option<[usize; 3]> {
        let mut index = [0; 3];
        for i in 0..3 {
            let padded = position[i] * self.stride[i] + tap[i] * self.dilation[i];
            index[i] = padded.checked_sub(self.before[i]).filter(|&x| x < size[i])?;
        }
        Some(index)
    }
}

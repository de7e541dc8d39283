//! Validated Relay attributes, with defaults.

use crate::ir::{CompileError, Result};
use crate::library::{Window, ffi};
use byoc_plugin_api::{AttrValue, Node, RefusalCode};
use byoc_plugin_support::attributes as support;
use byoc_plugin_support::view::count;
use std::ops::Deref;

/// Node attributes. Invalid values are reported as [`CompileError`]s.
#[derive(Clone, Copy)]
pub struct Attributes<'a>(pub support::Attributes<'a>);

impl<'a> Deref for Attributes<'a> {
    type Target = support::Attributes<'a>;

    fn deref(&self) -> &support::Attributes<'a> {
        &self.0
    }
}

fn attr_error(detail: impl Into<String>) -> CompileError {
    CompileError::new(RefusalCode::UnsupportedAttr, detail)
}

/// Formats an optional attribute for a message.
fn display(values: Option<impl std::fmt::Debug>) -> String {
    values.map_or_else(|| "none".to_owned(), |values| format!("{values:?}"))
}

/// Formats an attribute value for a message.
fn value_text(value: &AttrValue) -> String {
    match value {
        AttrValue::None => "none".to_owned(),
        AttrValue::Bool(value) => value.to_string(),
        AttrValue::Int(value) => value.to_string(),
        AttrValue::Float(value) => value.to_string(),
        AttrValue::Str(text) => format!("\"{text}\""),
        AttrValue::List(values) => format!("[{}]", values.iter().map(value_text).collect::<Vec<_>>().join(", ")),
    }
}

/// Exclusive upper bound on attributes from which dimensions are computed.
const EXTENT_LIMIT: i64 = 1 << 31;

impl<'a> Attributes<'a> {
    /// Wraps the attributes of a node.
    pub fn of(node: &'a Node) -> Attributes<'a> {
        Attributes(support::Attributes(node))
    }

    /// Returns the window with the given kernel size, and with the strides, dilation and padding of `axes` spatial
    /// axes.
    pub fn window(self, axes: usize, kernel: &[i64]) -> Result<Window> {
        let (pad_before, pad_after) = self.padding(axes).into_iter().unzip();
        let window = Window {
            strides: self.per_axis("strides", axes, 1),
            dilation: self.per_axis("dilation", axes, 1),
            kernel: kernel.to_vec(),
            pad_before,
            pad_after,
        };
        let are_positive = |values: &[i64]| values.iter().all(|value| (1..EXTENT_LIMIT).contains(value));
        if !are_positive(&window.strides) || !are_positive(&window.dilation) || !are_positive(&window.kernel) {
            return Err(attr_error(format!(
                "expected strides, dilation and kernel size in 1..2^31, found {:?}, {:?} and {:?}",
                window.strides, window.dilation, window.kernel
            )));
        }
        if !window.pad_before.iter().chain(&window.pad_after).all(|value| (0..EXTENT_LIMIT).contains(value)) {
            return Err(attr_error(format!(
                "padding: expected values in 0..2^31, found {:?} before and {:?} after",
                window.pad_before, window.pad_after
            )));
        }
        Ok(window)
    }

    /// Returns the axis that attribute `key` selects in a tensor of rank `rank`; negative values count from the end.
    pub fn axis(self, key: &str, default: i64, rank: usize) -> Result<usize> {
        normalize_axis(self.int(key, default), rank)
    }

    /// Returns the permutation of a transpose.
    pub fn permutation(self, rank: usize) -> Result<Vec<usize>> {
        let invalid = || {
            attr_error(format!(
                "axes: expected a permutation of {rank} dimensions, found {}",
                display(self.ints("axes"))
            ))
        };
        self.0.permutation(rank).ok_or_else(invalid)
    }

    /// Returns the reduction axes in ascending order.
    pub fn reduced_axes(self, rank: usize) -> Result<Vec<usize>> {
        let invalid =
            || attr_error(format!("axis: expected integers in -{rank}..{rank}, found {}", display(self.ints("axis"))));
        let is_reduced = self.0.reduced(rank).ok_or_else(invalid)?;
        Ok((0..rank).filter(|&d| is_reduced[d]).collect())
    }

    /// Returns the result of reshaping `shape` according to the codes in `newshape`.
    pub fn reshaped_dims(self, shape: &[i64]) -> Result<Vec<i64>> {
        let shape_codes = self.ints("newshape").ok_or_else(|| attr_error("missing attribute newshape"))?;
        let invalid = || {
            attr_error(format!(
                "newshape: expected dimensions or codes that fit shape {shape:?}, found {shape_codes:?}"
            ))
        };
        let allows_zero = self.flag("allowzero", false);
        let (mut result, mut unresolved_index, mut position, mut index) = (Vec::new(), None, 0, 0);
        while index < shape_codes.len() {
            match shape_codes[index] {
                0 if !allows_zero => {
                    result.push(*shape.get(position).ok_or_else(invalid)?);
                    position += 1;
                }
                -1 => {
                    if unresolved_index.replace(result.len()).is_some() {
                        return Err(invalid());
                    }
                    result.push(1);
                    position += 1;
                }
                -2 => {
                    result.extend_from_slice(shape.get(position..).ok_or_else(invalid)?);
                    position = shape.len();
                }
                -3 => {
                    let merged_dims = shape.get(position..position + 2).ok_or_else(invalid)?;
                    result.push(merged_dims[0] * merged_dims[1]);
                    position += 2;
                }
                -4 => {
                    let dim = *shape.get(position).ok_or_else(invalid)?;
                    let (a, b) = (
                        *shape_codes.get(index + 1).ok_or_else(invalid)?,
                        *shape_codes.get(index + 2).ok_or_else(invalid)?,
                    );
                    let (a, b) = match (a, b) {
                        (-1, b) if b > 0 => (dim / b, b),
                        (a, -1) if a > 0 => (a, dim / a),
                        pair => pair,
                    };
                    if a.checked_mul(b) != Some(dim) {
                        return Err(invalid());
                    }
                    result.extend([a, b]);
                    position += 1;
                    index += 2;
                }
                size if (0..EXTENT_LIMIT).contains(&size) => {
                    result.push(size);
                    position += 1;
                }
                _ => return Err(invalid()),
            }
            index += 1;
        }
        if let Some(unresolved_index) = unresolved_index {
            let known_elements = result.iter().try_fold(1i64, |a, &b| a.checked_mul(b)).ok_or_else(invalid)?;
            if known_elements == 0 || count(shape) % known_elements != 0 {
                return Err(invalid());
            }
            result[unresolved_index] = count(shape) / known_elements;
        }
        Ok(result)
    }

    /// Returns `shape` without the listed axes, whose dimensions must be 1, or without all unit dimensions if no axes
    /// are listed.
    pub fn squeezed_shape(self, shape: &[i64]) -> Result<Vec<i64>> {
        let listed_axes: Option<Vec<usize>> = match self.ints("axis") {
            None => None,
            Some(axes) => Some(axes.iter().map(|&axis| normalize_axis(axis, shape.len())).collect::<Result<_>>()?),
        };
        let is_removed = |d: usize| listed_axes.as_ref().map_or(shape[d] == 1, |axes| axes.contains(&d));
        if (0..shape.len()).any(|d| is_removed(d) && shape[d] != 1) {
            return Err(attr_error(format!(
                "axis: expected axes with dimension 1 in shape {shape:?}, found {}",
                display(listed_axes.as_deref())
            )));
        }
        Ok((0..shape.len()).filter(|&d| !is_removed(d)).map(|d| shape[d]).collect())
    }

    /// Returns the first index, the step and the resulting dimension of a slice along each axis.
    pub fn slice(self, shape: &[i64]) -> Result<(Vec<i64>, Vec<i64>, Vec<i64>)> {
        let (begin, end) = (self.ints("begin").unwrap_or_default(), self.ints("end").unwrap_or_default());
        let strides = self.ints("strides").unwrap_or_default();
        let axes = match self.ints("axes").filter(|axes| !axes.is_empty()) {
            Some(axes) => axes.iter().map(|&axis| normalize_axis(axis, shape.len())).collect::<Result<Vec<_>>>()?,
            None => (0..begin.len()).collect(),
        };
        let has_sizes = self.0.0.text("slice_mode") == Some("size");
        let (mut starts, mut step, mut size) = (vec![0; shape.len()], vec![1; shape.len()], shape.to_vec());
        for (i, &axis) in axes.iter().enumerate() {
            let (Some(&begin_index), Some(&end_index), Some(&dim)) = (begin.get(i), end.get(i), shape.get(axis)) else {
                return Err(attr_error(format!(
                    "begin and end: expected one value for each of the axes {axes:?}, found {begin:?} and {end:?}"
                )));
            };
            let step_of_axis = match strides.get(i).or(strides.last()) {
                Some(&stride) if !has_sizes => stride,
                _ => 1,
            };
            if step_of_axis < 1 {
                return Err(attr_error(format!("strides: expected integers >= 1, found {step_of_axis}")));
            }
            let clamp = |index: i64| (if index < 0 { index.saturating_add(dim) } else { index }).clamp(0, dim);
            let start = clamp(begin_index);
            let end = match (has_sizes, end_index) {
                (false, _) => clamp(end_index),
                (true, -1) => dim,
                (true, _) => start.saturating_add(end_index).clamp(0, dim),
            };
            starts[axis] = start;
            step[axis] = step_of_axis;
            size[axis] = (end - start).max(0).saturating_add(step_of_axis - 1) / step_of_axis;
        }
        Ok((starts, step, size))
    }

    /// Returns the start of each part of a split along an axis of `len` elements, followed by the end of the last
    /// part.
    pub fn split_bounds(self, len: i64) -> Result<Vec<i64>> {
        let invalid = || {
            attr_error(format!(
                "indices_or_sections: expected a divisor of {len} or ascending split indices < {len}, found {}",
                display(self.ints("indices_or_sections"))
            ))
        };
        let bounds: Vec<i64> = match self.0.0.attr("indices_or_sections") {
            Some(AttrValue::Int(count)) if *count > 0 && len % count == 0 => {
                (0..=*count).map(|i| i * (len / count)).collect()
            }
            Some(AttrValue::List(_)) => {
                let split_indices = self.ints("indices_or_sections").ok_or_else(invalid)?;
                std::iter::once(0).chain(split_indices).chain(std::iter::once(len)).collect()
            }
            _ => return Err(invalid()),
        };
        if bounds.windows(2).all(|pair| pair[0] < pair[1]) { Ok(bounds) } else { Err(invalid()) }
    }

    /// Returns `(pad_before, pad_after)` for each of `rank` dimensions, from pairs or a flat list.
    pub fn pairs(self, key: &str, rank: usize) -> Result<Vec<(i64, i64)>> {
        let invalid = || {
            let value = self.0.0.attr(key).map_or_else(|| "none".to_owned(), value_text);
            attr_error(format!(
                "attribute {key}: expected {rank} pairs (before, after) of integers < 2^31, found {value}"
            ))
        };
        let list = self.0.0.attr(key).and_then(AttrValue::as_list).ok_or_else(invalid)?;
        let flat_list: Option<Vec<i64>> = match list.first() {
            Some(AttrValue::List(_)) => {
                list.iter().map(AttrValue::as_ints).collect::<Option<Vec<_>>>().map(|pairs| pairs.concat())
            }
            _ => self.ints(key),
        };
        let flat_list = flat_list
            .filter(|flat_list| flat_list.len() == 2 * rank && flat_list.iter().all(|&v| v < EXTENT_LIMIT))
            .ok_or_else(invalid)?;
        Ok(flat_list.chunks(2).map(|pair| (pair[0], pair[1])).collect())
    }

    /// Returns the oneDNN algorithm equivalent to a resize. Linear interpolation must sample at half-pixel centers, and
    /// nearest-neighbor interpolation must have integer factors.
    pub fn resampling(self, name: &str, in_size: [i64; 2], out_size: [i64; 2]) -> Result<i32> {
        if out_size.iter().any(|size| !(1..EXTENT_LIMIT).contains(size)) {
            return Err(attr_error(format!("size: expected dimensions in 1..2^31, found {out_size:?}")));
        }
        let method = self.0.0.text("method").unwrap_or_default();
        let mode = match name {
            "nn.upsampling" if self.flag("align_corners", false) => "align_corners",
            "nn.upsampling" => "asymmetric",
            _ => self.0.0.text("coordinate_transformation_mode").unwrap_or("half_pixel"),
        };
        let rounding = self.0.0.text("rounding_method").unwrap_or_default();
        let is_integer = (0..2).all(|i| out_size[i] % in_size[i] == 0);
        match (method, mode, rounding) {
            // For integer factors, all these rounding modes select the same neighbor: floor(x / factor). Without a
            // mode, `image.resize2d` rounds down, which selects a different neighbor at half-pixel centers.
            ("nearest_neighbor", "asymmetric", "" | "floor") if is_integer => Ok(ffi::RESAMPLING_NEAREST),
            ("nearest_neighbor", "half_pixel", "round" | "round_prefer_floor" | "round_prefer_ceil") if is_integer => {
                Ok(ffi::RESAMPLING_NEAREST)
            }
            ("linear" | "bilinear", "half_pixel", _) => Ok(ffi::RESAMPLING_LINEAR),
            ("linear" | "bilinear", "pytorch_half_pixel", _) if out_size.iter().all(|&size| size > 1) => {
                Ok(ffi::RESAMPLING_LINEAR)
            }
            _ => Err(attr_error(format!(
                "unsupported resize: method {method:?}, coordinate mode {mode:?}, rounding {rounding:?}"
            ))),
        }
    }
}

fn normalize_axis(axis: i64, rank: usize) -> Result<usize> {
    support::normalize_axis(axis, rank)
        .ok_or_else(|| attr_error(format!("axis: expected an integer in -{rank}..{rank}, found {axis}")))
}

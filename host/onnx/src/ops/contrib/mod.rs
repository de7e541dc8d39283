//! Operators of the domain `com.microsoft`, as emitted by ONNX Runtime's optimizer, quantizer and language-model
//! builder.

mod attention;
mod fused;
mod quantized;

use super::{Node, Outputs, Result, Row, attrs, geometry, index, math, shape, single_output, slice};

pub const TABLES: &[&[Row]] = &[attention::ROWS, fused::ROWS, quantized::ROWS, EARLY];

/// Operators that the standard domain adopted later.
const EARLY: &[Row] = &[
    ("GatherND", 1, index::gather_nd),
    ("GridSample", 1, geometry::grid_sample),
    ("Pad", 1, slice::pad_11),
    ("Range", 1, |n| shape::range(n, Some(1.0))),
    ("Trilu", 1, shape::trilu),
];

//! Operators of the domain `com.microsoft`, as emitted by ONNX Runtime's optimizer, quantizer and language-model
//! builder.

mod arrays;
mod attention;
mod blocks;
mod embedding;
mod fused;
mod group_query;
mod quantized;

use super::{Node, Outputs, Result, Row, attrs, geometry, index, math, recurrence, shape, single_output, slice, text};

pub const TABLES: &[&[Row]] = &[
    arrays::ROWS,
    attention::ROWS,
    blocks::ROWS,
    embedding::ROWS,
    fused::ROWS,
    group_query::ROWS,
    quantized::ROWS,
    text::CONTRIB_ROWS,
    EARLY,
];

/// Operators that the standard domain adopted later.
const EARLY: &[Row] = &[
    ("CausalConvWithState", 1, |n| {
        reject_attrs(n, &[("ndim", 1), ("dilation", 1), ("channels_last", 0), ("state_window", 0)])?;
        recurrence::causal_conv_with_state(n)
    }),
    ("GatherND", 1, index::gather_nd),
    ("GridSample", 1, geometry::grid_sample),
    ("LinearAttention", 1, |n| {
        reject_attrs(n, &[("state_window", 0)])?;
        recurrence::linear_attention(n)
    }),
    ("Pad", 1, slice::pad_11),
    ("Range", 1, |n| shape::range(n, Some(1.0))),
    ("Trilu", 1, shape::trilu),
];

/// Rejects attributes that the standard operator lacks, unless they have their default values.
fn reject_attrs(n: &Node<'_, '_>, defaults: &[(&str, i64)]) -> Result<()> {
    for &(name, default) in defaults {
        let value = n.int_attr(name, default)?;
        if value != default {
            return Err(n.invalid_node(format!("attribute {name}: expected {default}, found {value}")));
        }
    }
    Ok(())
}

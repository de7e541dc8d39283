//! Operators of the domain `com.microsoft`, as emitted by ONNX Runtime's optimizer, quantizer and language-model
//! builder.

mod attention;
mod fused;
mod quantized;

use super::{Node, Outputs, Result, Row, attrs, math, single_output};

pub const TABLES: &[&[Row]] = &[attention::ROWS, fused::ROWS, quantized::ROWS];

//! Operators of the domain `com.microsoft`, as ONNX Runtime's optimizer, quantizer and builder of language models write
//! them.

mod attention;
mod fused;
mod quantized;

use super::{Node, Outputs, Result, Row, attrs, math, one};

pub const TABLES: &[&[Row]] = &[attention::ROWS, fused::ROWS, quantized::ROWS];

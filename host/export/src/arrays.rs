//! Tensors as initializers of C arrays.

use byoc_emit_c::elementwise::{c_type, int_literal, literal};
use byoc_plugin_api::DType;
use std::fmt::Write;

/// Maximum length of a line of elements.
const MAX_LINE: usize = 116;

/// Formats the definition of a constant array of these little-endian elements.
pub fn definition(qualifiers: &str, name: &str, dtype: DType, bytes: &[u8]) -> String {
    let ty = c_type(dtype).unwrap_or("uint8_t");
    let count = bytes.len() / dtype.size().max(1);
    let mut text = format!("{qualifiers}{ty} {name}[{}] = {{\n", count.max(1));
    let mut line = String::from("   ");
    for element in bytes.chunks_exact(dtype.size().max(1)) {
        let value = element_text(dtype, element);
        if line.len() + value.len() + 2 > MAX_LINE {
            text.push_str(&line);
            text.push('\n');
            line = String::from("   ");
        }
        let _ = write!(line, " {value},");
    }
    text.push_str(&line);
    text.push_str("\n};\n");
    text
}

/// Formats one element so that it is read back exactly.
fn element_text(dtype: DType, bytes: &[u8]) -> String {
    fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
        let mut array = [0; N];
        array.copy_from_slice(bytes);
        array
    }
    match dtype {
        DType::F32 => literal(dtype, f64::from(f32::from_le_bytes(array(bytes)))),
        DType::F64 => literal(dtype, f64::from_le_bytes(array(bytes))),
        DType::I8 => i8::from_le_bytes(array(bytes)).to_string(),
        DType::I16 => i16::from_le_bytes(array(bytes)).to_string(),
        DType::I32 => int_literal(dtype, i32::from_le_bytes(array(bytes)).into()),
        DType::I64 => int_literal(dtype, i64::from_le_bytes(array(bytes)).into()),
        DType::U16 => u16::from_le_bytes(array(bytes)).to_string(),
        DType::U32 => int_literal(dtype, u32::from_le_bytes(array(bytes)).into()),
        DType::U64 => int_literal(dtype, u64::from_le_bytes(array(bytes)).into()),
        _ => bytes[0].to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_round_trip() {
        let values = [1.0f32, -0.0, 1e-20, f32::NEG_INFINITY];
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let text = definition("const ", "x", DType::F32, &bytes);
        assert_eq!(text, "const float x[4] = {\n    1.0f, -0.0f, 1e-20f, -INFINITY,\n};\n");
        assert_eq!(definition("", "y", DType::I8, &[0xff, 3]), "int8_t y[2] = {\n    -1, 3,\n};\n");
        let least = i64::MIN.to_le_bytes();
        assert!(definition("", "z", DType::I64, &least).contains("INT64_MIN"));
    }
}

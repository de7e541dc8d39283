//! A region as a self-contained C file that defines the function of [`crate::externals::Region`].

use crate::externals::Externals;
use crate::form::Machine;
use crate::print::c_types::{int_literal, literal, storage_type};
use crate::print::comment;
use crate::program::{Program, program};
use byoc_plugin_api::{Constant, DType, Graph};
use std::fmt::Write;

/// Region as a C file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SingleFile {
    /// Text of the file.
    pub text: String,
    /// Size in bytes of the workspace.
    pub workspace: i64,
    /// Size in bytes of the constant arrays.
    pub constant_bytes: u64,
}

/// Generates the C file of a region.
///
/// # Errors
/// If code generation does not support an operator; the message lists all unsupported operators.
pub fn single_file(graph: &Graph, constants: &[Constant], machine: Machine) -> Result<SingleFile, String> {
    let symbol = graph.symbol.as_str();
    let program = program(graph, constants, symbol, machine, &Externals::default()).map_err(|refusals| {
        let reasons: Vec<String> = refusals.iter().map(|r| format!("{}: {}", r.operator, r.reason)).collect();
        reasons.join("; ")
    })?;
    let constant_bytes = program.arrays.iter().map(|array| array.array.bytes.len() as u64).sum();
    Ok(SingleFile { text: text(&program, symbol), workspace: program.arena, constant_bytes })
}

fn text(program: &Program, symbol: &str) -> String {
    let mut text = format!(
        "/* Region {symbol}. */\n#include <math.h>\n#include <stdint.h>\n#include <string.h>\n\ntypedef struct {{\n    \
         const void *const *in;\n    void *const *out;\n    unsigned char *work;\n}} {symbol}_args;\n\n{}\n",
        offsets(program)
    );
    let w = &mut text;
    for array in &program.arrays {
        let array_text = definition("static const ", &array.name, array.array.dtype, &array.array.bytes);
        let _ = writeln!(w, "/* {} */\n{array_text}", comment(&array.array.comment));
    }
    let _ = writeln!(w, "{}", program.kernels);
    for step in &program.steps {
        for line in &step.comment {
            let _ = writeln!(w, "/* {} */", comment(line));
        }
        w.push_str("static ");
        w.push_str(&step.code);
    }
    let head =
        format!("void {symbol}(const void *const *in, void *const *out, const void *const *constants, void *work)");
    let _ = writeln!(
        w,
        "{head};\n\n{head} {{\n    {symbol}_args args;\n    (void)constants;\n    args.in = in;\n    \
         args.out = out;\n    args.work = work;"
    );
    program.steps.iter().for_each(|step| w.push_str(&step.call));
    w.push_str("}\n");
    text
}

/// Formats the offsets of the buffers in the arena.
pub fn offsets(program: &Program) -> String {
    let mut text = String::new();
    let count = program.buffers.len();
    if count == 0 {
        return text;
    }
    let _ = writeln!(text, "/* Offsets in the arena; buffers with disjoint lifetimes overlap. */\nenum {{");
    for (i, buffer) in program.buffers.iter().enumerate() {
        let comma = if i + 1 < count { "," } else { "" };
        let content = comment(&buffer.comment);
        let _ =
            writeln!(text, "    {} = {}{comma} /* {} bytes: {content} */", buffer.name, buffer.offset, buffer.bytes);
    }
    let _ = writeln!(text, "}};");
    text
}

/// Maximum line length of an initializer, in characters.
const MAX_LINE: usize = 116;

/// Formats the definition of a constant array with the little-endian elements `bytes`.
pub fn definition(qualifiers: &str, name: &str, dtype: DType, bytes: &[u8]) -> String {
    let ty = storage_type(dtype).unwrap_or("uint8_t");
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
    // A C99 initializer list must not be empty.
    text.push_str(if count == 0 { "    0," } else { &line });
    text.push_str("\n};\n");
    text
}

/// Formats one element as a literal that round-trips exactly.
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
        DType::F16 => format!("{:#06x}", u16::from_le_bytes(array(bytes))),
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
        let min = i64::MIN.to_le_bytes();
        assert!(definition("", "z", DType::I64, &min).contains("INT64_MIN"));
    }
}

//! External functions: user-supplied functions (`--extern`) and backend regions.

use crate::exported::{Extern, RegionCode, export_error};
use crate::names::is_identifier;
use byoc::driver::Compiled;
use byoc::driver::codegen::{PROGRAM_CONSTANT_BYTES, PROGRAM_REFUSED, PROGRAM_STATUS, PROGRAM_WORKSPACE};
use byoc::runtime::error::Failure;
use byoc::runtime::plugin::to_graph::dtype_to_api;
use byoc_loops::externals::{Externals, Function, Region};
use byoc_loops::lower::ConstantArray;
use byoc_loops::program::Array;
use byoc_plugin_api::program::KEY;
use serde_json::Value;
use std::str::FromStr;

/// Name of the header that declares the argument types of external functions.
pub const EXTERN_HEADER: &str = "byoc_extern.h";

impl FromStr for Extern {
    type Err = String;

    /// Parses `OP[:LAYOUT]=FUNCTION(HEADER)`.
    fn from_str(text: &str) -> Result<Extern, String> {
        let expected = || format!("expected OP=FUNCTION(HEADER) or OP:LAYOUT=FUNCTION(HEADER), found \"{text}\"");
        let (operator, call) = text.split_once('=').ok_or_else(expected)?;
        let (operator, kernel_layout) = operator.split_once(':').unwrap_or((operator, ""));
        let (function, header) = call.strip_suffix(')').and_then(|c| c.split_once('(')).ok_or_else(expected)?;
        let is_complete = !operator.is_empty() && is_identifier(function) && !header.is_empty();
        if !is_complete || header.contains(['"', '\n', '\\']) {
            return Err(expected());
        }
        let [operator, kernel_layout, function, header] =
            [operator, kernel_layout, function, header].map(str::to_owned);
        Ok(Extern { operator, kernel_layout, function, header })
    }
}

/// Returns the regions of a model as C code.
///
/// # Errors
/// E0519 if a backend did not compile its region, or has no C program for it.
pub fn regions(compiled: &Compiled, prefix: &str) -> Result<Vec<RegionCode>, Failure> {
    let mut externs = Vec::new();
    for (declaration, region) in compiled.program.regions.iter().zip(&compiled.regions) {
        let (symbol, backend) = (&declaration.symbol, &declaration.backend);
        let refuse = |reason: String, hint: &str| {
            let diagnostic = export_error(reason)
                .note(format!("a backend supports export by answering the query {KEY}; see docs/writing-a-backend.md"));
            let advice = format!("export without {backend}, so that its operators become plain C");
            Failure::from(diagnostic.help(if hint.is_empty() { advice } else { hint.to_owned() }))
        };
        let Some(region) = region else {
            return Err(refuse(format!("{backend} did not compile region {symbol}"), ""));
        };
        let metadata = |key: &str| region.metadata.iter().find(|(key_name, _)| key_name == key).map(|(_, value)| value);
        let number = |key: &str| metadata(key).and_then(Value::as_i64).filter(|&bytes| bytes >= 0);
        let message = format!("{backend} has no C program for region {symbol}");
        if let Some(refusal) = metadata(PROGRAM_REFUSED) {
            let text = |i: usize| refusal[i].as_str().unwrap_or_default();
            return Err(refuse(format!("{message}: {}", text(0)), text(1)));
        }
        let (Some(workspace), Some(source)) = (number(PROGRAM_WORKSPACE), &region.source) else {
            return Err(refuse(message, ""));
        };
        let status = metadata(PROGRAM_STATUS) == Some(&Value::Bool(true));
        let mut call = Region { workspace, status, constants: Vec::new() };
        let mut arrays = Vec::new();
        for (i, &index) in region.constants.iter().enumerate() {
            let tensor = compiled.constants.get(index as usize);
            let Some(tensor) = tensor.filter(|_| reads_constant(&source.text, i)) else {
                call.constants.push(None);
                continue;
            };
            let name = format!("{prefix}_c{index}");
            let (dtype, bytes) = (dtype_to_api(tensor.dtype()), tensor.bytes().to_vec());
            let comment = format!("{:?}, of {}", tensor.shape(), region.symbol);
            call.constants.push(Some(name.clone()));
            arrays.push(Array { name, array: ConstantArray { dtype, bytes, comment } });
        }
        let (symbol, backend) = (region.symbol.clone(), region.backend.clone());
        let constant_bytes = number(PROGRAM_CONSTANT_BYTES).unwrap_or(0);
        externs.push(RegionCode { symbol, backend, source: source.text.clone(), call, arrays, constant_bytes });
    }
    Ok(externs)
}

/// Returns true if the C code of a region may read constant `i`, with a literal or a computed index.
fn reads_constant(text: &str, i: usize) -> bool {
    text.match_indices("constants[").any(|(start, name)| {
        let tail = &text[start + name.len()..];
        let index = tail.split(']').next().unwrap_or_default().trim();
        index.parse::<usize>().map_or(!index.is_empty(), |number| number == i)
    })
}

/// Converts the external functions to the input of the emitter.
pub fn externals(externs: &[Extern], regions: &[RegionCode]) -> Externals {
    let function = |e: &Extern| Function { name: e.function.clone(), kernel_layout: e.kernel_layout.clone() };
    Externals {
        operators: externs.iter().map(|e| (e.operator.clone(), function(e))).collect(),
        regions: regions.iter().map(|region| (region.symbol.clone(), region.call.clone())).collect(),
    }
}

/// Returns the header that declares the argument types of external functions.
pub fn header() -> String {
    include_str!("extern.h").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_are_read_by_number_or_by_a_computed_index() {
        assert!(reads_constant("x = constants[3];", 3) && !reads_constant("x = constants[3];", 0));
        assert!(reads_constant("x = constants[i + 1];", 0) && !reads_constant("void f(const void *constants[]);", 0));
    }

    #[test]
    fn functions_are_parsed() {
        let layout_extern: Extern = "nn.conv2d:OHWI=my_conv2d(my header.h)".parse().unwrap();
        assert_eq!((&*layout_extern.operator, &*layout_extern.kernel_layout), ("nn.conv2d", "OHWI"));
        assert_eq!((&*layout_extern.function, &*layout_extern.header), ("my_conv2d", "my header.h"));
        for invalid in ["", "nn.relu", "nn.relu=f", "=f(h)", "nn.relu=3d(h.h)", "nn.relu=f()", "nn.relu=f(a\"b)"] {
            assert!(invalid.parse::<Extern>().is_err(), "{invalid}");
        }
    }
}

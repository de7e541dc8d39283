//! Serialized form of a compiled region.
//!
//! | part | content |
//! |---|---|
//! | magic | `BYOC-CL\n` |
//! | version | 32 bits |
//! | header length | 64 bits |
//! | header | JSON: types, buffers, constants, kernels, launches |
//! | source | OpenCL C, up to the checksum |
//! | checksum | 32 bits, CRC-32 of header and source |
//!
//! A region with open dimensions has the magic `BYOC-CLO`, its graph in the header, and no source.
//!
//! Integers are little-endian. Sizes and references are validated on reading.

use crate::device::is_selector;
use crate::program::{ALIGNMENT, Buffer, Edge, Kernel, Launch, PackedConstant, Place, Program};
use byoc_plugin_api::{Constant, DType, Error, Graph, Result, Signature, TensorType};
use serde::{Deserialize, Serialize};
use serde_json::Value;

const MAGIC: &[u8; 8] = b"BYOC-CL\n";
const MAGIC_OPEN: &[u8; 8] = b"BYOC-CLO";

/// Format version that this plugin writes and reads.
pub const VERSION: u32 = 1;

/// Maximum number of entries in each list of a program, such as its kernels or launches.
const MAX_PARTS: usize = 1 << 16;

/// Maximum size in bytes of the arena and of each tensor.
const MAX_BYTES: u64 = 1 << 40;

/// Maximum number of work-items per work-group.
const MAX_GROUP_SIZE: usize = 1 << 12;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    symbol: String,
    signature: Value,
    inputs: Vec<Edge>,
    outputs: Vec<Edge>,
    constants: Vec<(usize, String)>,
    packed: Vec<PackedConstant>,
    buffers: Vec<Buffer>,
    arena: u64,
    kernels: Vec<Kernel>,
    launches: Vec<Launch>,
    device: String,
    selector: String,
}

/// Serializes a region with known dimensions.
///
/// # Errors
/// Never: a header can always be serialized to JSON.
pub fn write(program: &Program) -> Result<Vec<u8>> {
    let header = Header {
        symbol: program.symbol.clone(),
        signature: program.signature.to_json(),
        inputs: program.inputs.clone(),
        outputs: program.outputs.clone(),
        constants: program.constants.iter().map(|(size, dtype)| (*size, dtype.to_string())).collect(),
        packed: program.packed.clone(),
        buffers: program.buffers.clone(),
        arena: program.arena,
        kernels: program.kernels.clone(),
        launches: program.launches.clone(),
        device: program.device.clone(),
        selector: program.selector.clone(),
    };
    Ok(packet(MAGIC, &serde_json::to_vec(&header)?, program.source.as_bytes()))
}

/// Region with open dimensions.
#[derive(Debug)]
pub struct OpenRegion {
    pub graph: Graph,
    /// Number of elements and element type of each constant.
    pub constants: Vec<(usize, DType)>,
    /// Value of the option `device`.
    pub selector: String,
    /// Value of the option `tile`.
    pub tile: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OpenHeader {
    graph: Value,
    constants: Vec<(usize, String)>,
    selector: String,
    tile: String,
}

/// Deserialized region.
pub enum Blob {
    /// Region with known dimensions.
    Fixed(Box<Program>),
    /// Region with open dimensions.
    Open(Box<OpenRegion>),
}

/// Serializes a region with open dimensions.
///
/// # Errors
/// Never: a header can always be serialized to JSON.
pub fn write_open(graph: &Graph, constants: &[Constant], selector: &str, tile: &str) -> Result<Vec<u8>> {
    let size = |constant: &Constant| (constant.shape().iter().product(), constant.dtype().to_string());
    let header = OpenHeader {
        graph: serde_json::from_str(&graph.to_json())?,
        constants: constants.iter().map(size).collect(),
        selector: selector.to_owned(),
        tile: tile.to_owned(),
    };
    Ok(packet(MAGIC_OPEN, &serde_json::to_vec(&header)?, &[]))
}

fn packet(magic: &[u8; 8], text: &[u8], source: &[u8]) -> Vec<u8> {
    let mut bytes = magic.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text);
    bytes.extend(source);
    bytes.extend(checksum(text, source).to_le_bytes());
    bytes
}

fn checksum(header: &[u8], source: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(header);
    hasher.update(source);
    hasher.finalize()
}

fn invalid(problem: impl AsRef<str>) -> Error {
    Error::new(format!("OpenCL program: {}", problem.as_ref()))
}

/// Parses and validates a region.
///
/// # Errors
/// If the bytes are not a region, have an unsupported version, are corrupt, or contain invalid sizes or references.
pub fn read(bytes: &[u8]) -> Result<Blob> {
    let (is_open, rest) = match (bytes.strip_prefix(MAGIC), bytes.strip_prefix(MAGIC_OPEN)) {
        (Some(rest), _) => (false, rest),
        (_, Some(rest)) => (true, rest),
        _ => return Err(Error::new("expected an OpenCL program, found foreign or corrupted data")),
    };
    let truncated_header = || invalid("truncated header");
    let (version, rest) = rest.split_first_chunk::<4>().ok_or_else(truncated_header)?;
    let version = u32::from_le_bytes(*version);
    if version != VERSION {
        return Err(invalid(format!("expected version {VERSION}, found {version}"))
            .hint("compile the model again with this plugin"));
    }
    let (length, rest) = rest.split_first_chunk::<8>().ok_or_else(truncated_header)?;
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
    let (text, rest) = rest.split_at_checked(length).ok_or_else(truncated_header)?;
    let (source, sum) = rest.split_last_chunk::<4>().ok_or_else(truncated_header)?;
    let (expected_sum, sum) = (u32::from_le_bytes(*sum), checksum(text, source));
    if sum != expected_sum {
        return Err(invalid(format!("expected checksum {expected_sum:08x}, found {sum:08x}: the data is corrupted")));
    }
    if is_open {
        Ok(Blob::Open(Box::new(read_open(text)?)))
    } else {
        Ok(Blob::Fixed(Box::new(read_fixed(text, source)?)))
    }
}

fn types(constants: &[(usize, String)]) -> Result<Vec<(usize, DType)>> {
    let dtype = |(size, name): &(usize, String)| match DType::parse(name) {
        Some(dtype) => Ok((*size, dtype)),
        None => Err(invalid(format!("constants: expected an element type, found \"{name}\""))),
    };
    constants.iter().map(dtype).collect()
}

fn read_open(text: &[u8]) -> Result<OpenRegion> {
    let header: OpenHeader = serde_json::from_slice(text).map_err(|error| invalid(error.to_string()))?;
    let graph = Graph::from_json(&header.graph.to_string())?;
    graph.check(header.constants.len()).map_err(invalid)?;
    if !is_selector(&header.selector) {
        return Err(invalid(format!("device selector: expected auto or an index, found {}", header.selector)));
    }
    Ok(OpenRegion { graph, constants: types(&header.constants)?, selector: header.selector, tile: header.tile })
}

fn read_fixed(text: &[u8], source: &[u8]) -> Result<Program> {
    let header: Header = serde_json::from_slice(text).map_err(|error| invalid(error.to_string()))?;
    let source =
        std::str::from_utf8(source).map_err(|error| invalid(format!("source: expected UTF-8, found {error}")))?;
    let program = Program {
        symbol: header.symbol,
        signature: Signature::from_json(&header.signature)?,
        inputs: header.inputs,
        outputs: header.outputs,
        constants: types(&header.constants)?,
        packed: header.packed,
        buffers: header.buffers,
        arena: header.arena,
        kernels: header.kernels,
        launches: header.launches,
        source: source.to_owned(),
        device: header.device,
        selector: header.selector,
    };
    check(&program).map_err(invalid)?;
    Ok(program)
}

/// Checks the sizes and references in a program.
fn check(program: &Program) -> std::result::Result<(), String> {
    let parts = [
        program.inputs.len(),
        program.outputs.len(),
        program.constants.len(),
        program.packed.len(),
        program.buffers.len(),
        program.kernels.len(),
        program.launches.len(),
    ];
    if let Some(count) = parts.into_iter().find(|&count| count > MAX_PARTS) {
        return Err(format!("expected at most {MAX_PARTS} entries per list, found {count}"));
    }
    if !is_selector(&program.selector) {
        return Err(format!("device selector: expected auto or an index, found {}", program.selector));
    }
    check_edges("input", &program.inputs, &program.signature.inputs)?;
    check_edges("output", &program.outputs, &program.signature.outputs)?;
    for (index, packed_constant) in program.packed.iter().enumerate() {
        check_constant(program, packed_constant).map_err(|problem| format!("packed constant {index}: {problem}"))?;
    }
    if program.arena > MAX_BYTES {
        return Err(format!("expected an arena of at most {MAX_BYTES} bytes, found {}", program.arena));
    }
    for (index, buffer) in program.buffers.iter().enumerate() {
        let is_inside = buffer.offset.checked_add(buffer.bytes).is_some_and(|end| end <= program.arena);
        if !is_inside || !buffer.offset.is_multiple_of(ALIGNMENT) || buffer.bytes == 0 {
            return Err(format!(
                "buffer {index}: expected an aligned range in the arena, found {} bytes at offset {}",
                buffer.bytes, buffer.offset
            ));
        }
    }
    for (index, kernel) in program.kernels.iter().enumerate() {
        let is_identifier =
            !kernel.name.is_empty() && kernel.name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        let size = kernel.local.iter().try_fold(1usize, |size, &dim| size.checked_mul(dim));
        if !is_identifier || size.is_none_or(|size| size == 0 || size > MAX_GROUP_SIZE) {
            return Err(format!(
                "kernel {index}: expected an identifier and 1 to {MAX_GROUP_SIZE} work-items, found {:?} and {:?}",
                kernel.name, kernel.local
            ));
        }
    }
    for (index, launch) in program.launches.iter().enumerate() {
        check_launch(program, launch).map_err(|problem| format!("launch {index}: {problem}"))?;
    }
    Ok(())
}

fn check_edges(kind: &str, edges: &[Edge], types: &[TensorType]) -> std::result::Result<(), String> {
    if edges.len() != types.len() {
        return Err(format!("number of {kind}s: expected {}, found {}", types.len(), edges.len()));
    }
    for (index, (edge, ty)) in edges.iter().zip(types).enumerate() {
        let is_match = ty.shape().is_some_and(|shape| shape == edge.shape) && ty.dtype.size() == edge.element;
        if !is_match {
            return Err(format!(
                "{kind} {index}: expected {ty}, found shape {:?} and element size {}",
                edge.shape, edge.element
            ));
        }
        if edge.bytes().is_none_or(|bytes| bytes > MAX_BYTES) {
            return Err(format!("{kind} {index}: expected at most {MAX_BYTES} bytes, found {ty}"));
        }
    }
    Ok(())
}

fn check_constant(program: &Program, packed_constant: &PackedConstant) -> std::result::Result<(), String> {
    if packed_constant.bytes().is_none_or(|bytes| bytes == 0 || bytes > MAX_BYTES) || packed_constant.packing.width < 1
    {
        let bytes =
            packed_constant.bytes().map_or_else(|| "an unsupported number of".to_owned(), |bytes| bytes.to_string());
        return Err(format!(
            "expected 1 to {MAX_BYTES} bytes in panels of at least 1 column, found {bytes} bytes in panels of {} columns",
            packed_constant.packing.width
        ));
    }
    let Some(constant) = packed_constant.constant else { return Ok(()) };
    let Some(&(elements, dtype)) = program.constants.get(constant) else {
        return Err(format!("expected a constant index < {}, found {constant}", program.constants.len()));
    };
    if dtype.size() != packed_constant.element {
        return Err(format!("element size in bytes: expected {}, found {}", dtype.size(), packed_constant.element));
    }
    // A panel has at most 64 columns, of which all but one may be padding.
    let display =
        |count: Option<i64>| count.map_or_else(|| "an unsupported number".to_owned(), |count| count.to_string());
    let packed_elements = packed_constant.packing.elements();
    if packed_elements.is_none_or(|packed_elements| packed_elements / 64 > elements as i64) {
        return Err(format!(
            "expected at most 64 times the {elements} elements of the constant, found {}",
            display(packed_elements)
        ));
    }
    let required_elements = packed_constant.packing.source_elements();
    if required_elements.is_none_or(|required_elements| required_elements > elements as i64) {
        return Err(format!("expected at most {elements} source elements, found {}", display(required_elements)));
    }
    Ok(())
}

fn check_launch(program: &Program, launch: &Launch) -> std::result::Result<(), String> {
    let Some(kernel) = program.kernels.get(launch.kernel) else {
        return Err(format!("expected a kernel index < {}, found {}", program.kernels.len(), launch.kernel));
    };
    if launch.arguments.len() != kernel.arguments {
        return Err(format!("number of arguments: expected {}, found {}", kernel.arguments, launch.arguments.len()));
    }
    let is_divisible = |(&global, &local): (&usize, &usize)| global > 0 && global.is_multiple_of(local);
    if !launch.global.iter().zip(&kernel.local).all(is_divisible) {
        return Err(format!(
            "expected positive numbers of work-items divisible by {:?}, found {:?}",
            kernel.local, launch.global
        ));
    }
    for place in &launch.arguments {
        let (kind, index, count) = match *place {
            Place::Input(i) => ("input", i, program.inputs.len()),
            Place::Output(i) => ("output", i, program.outputs.len()),
            Place::Constant(i) => ("packed constant", i, program.packed.len()),
            Place::Work(i) => ("buffer", i, program.buffers.len()),
        };
        if index >= count {
            return Err(format!("{kind}: expected an index < {count}, found {index}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use byoc_loops::packing::Packing;

    fn program() -> Program {
        let ty = || [TensorType::new(DType::F32, &[2, 3])].into_iter().collect();
        let edges = || vec![Edge { shape: vec![2, 3], element: 4 }];
        let packing = Packing { offset: 0, outer: vec![], columns: (3, 1), padded: 0, width: 4, inner: vec![(2, 3)] };
        let arguments = [Place::Input(0), Place::Constant(0), Place::Work(0), Place::Output(0)];
        Program {
            symbol: "region_0".into(),
            signature: Signature { inputs: ty(), outputs: ty() },
            inputs: edges(),
            outputs: edges(),
            constants: vec![(6, DType::F32)],
            packed: vec![PackedConstant { constant: Some(0), element: 4, packing }],
            buffers: vec![Buffer { offset: ALIGNMENT, bytes: 24 }],
            arena: 2 * ALIGNMENT,
            kernels: vec![Kernel { name: "k0_map".into(), arguments: 4, local: [2, 1, 1] }],
            launches: vec![Launch { name: "add".into(), kernel: 0, arguments: arguments.to_vec(), global: [4, 1, 1] }],
            source: "kernel void k0_map() {}\n".into(),
            device: "a device".into(),
            selector: "auto".into(),
        }
    }

    #[test]
    fn programs_survive_and_damage_does_not() {
        let program = program();
        let bytes = write(&program).unwrap();
        let Ok(Blob::Fixed(read_back)) = read(&bytes) else { panic!("expected a program, found another blob") };
        assert_eq!(*read_back, program);
        for index in 0..bytes.len() {
            let mut damaged_bytes = bytes.clone();
            damaged_bytes[index] ^= 1;
            assert!(read(&damaged_bytes).is_err(), "expected an error after changing byte {index}");
            assert!(read(&bytes[..index]).is_err(), "expected an error for the first {index} bytes");
        }
        let mut later = bytes;
        later[8] = 2;
        assert!(read(&later).err().unwrap().message.contains("expected version 1, found 2"));
    }

    #[test]
    fn references_and_sizes_are_checked() {
        type Change = fn(&mut Program);
        let changes: [(Change, &str); 18] = [
            (|p| p.launches[0].arguments[0] = Place::Input(1), "launch 0: input: expected an index < 1, found 1"),
            (
                |p| p.launches[0].arguments[1] = Place::Constant(1),
                "launch 0: packed constant: expected an index < 1, found 1",
            ),
            (|p| p.launches[0].arguments[2] = Place::Work(7), "launch 0: buffer: expected an index < 1, found 7"),
            (|p| p.launches[0].arguments.truncate(3), "launch 0: number of arguments: expected 4, found 3"),
            (|p| p.launches[0].kernel = 1, "launch 0: expected a kernel index < 1, found 1"),
            (|p| p.launches[0].global = [3, 1, 1], "launch 0: expected positive numbers of work-items divisible by"),
            (|p| p.launches[0].global = [0, 1, 1], "launch 0: expected positive numbers of work-items divisible by"),
            (|p| p.kernels[0].local = [1 << 20, 1 << 20, 1 << 30], "kernel 0: expected an identifier and 1 to"),
            (|p| p.kernels[0].local = [0, 1, 1], "kernel 0: expected an identifier and 1 to"),
            (|p| p.kernels[0].name = "k 0".into(), "kernel 0: expected an identifier and 1 to"),
            (|p| p.buffers[0].offset = 1, "buffer 0: expected an aligned range in the arena"),
            (|p| p.buffers[0].bytes = u64::MAX, "buffer 0: expected an aligned range in the arena"),
            (|p| p.arena = u64::MAX, "expected an arena of at most"),
            (|p| p.packed[0].constant = Some(1), "packed constant 0: expected a constant index < 1, found 1"),
            (|p| p.packed[0].packing.offset = 1, "packed constant 0: expected at most 6 source elements, found 7"),
            (
                |p| p.packed[0].packing.outer = vec![(1 << 20, 0)],
                "packed constant 0: expected at most 64 times the 6 elements",
            ),
            (|p| p.inputs[0].shape = vec![2, 4], "input 0: expected Tensor"),
            (|p| p.selector = "abacus".into(), "device selector: expected auto or an index, found abacus"),
        ];
        for (change, expected) in changes {
            let mut program = program();
            change(&mut program);
            let error = read(&write(&program).unwrap()).err().expect(expected);
            assert!(error.message.contains(expected), "expected {expected}, found {}", error.message);
        }
    }
}

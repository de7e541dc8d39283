//! Serialized form of a compiled region.
//!
//! | part | content |
//! |---|---|
//! | magic | `VTABYOC\n` |
//! | version | 32 bits |
//! | header length | 64 bits |
//! | header | JSON: device, inputs, outputs, buffers, layers, runs, sizes and checksums of the subsequent parts |
//! | vectors | bytes |
//! | micro-operations | 32 bits each |
//! | instructions | 128 bits each |
//! | accessed buffers | 32 bits per instruction, all ones for none |
//! | header checksum | 32 bits, CRC-32 |
//!
//! Integers are little-endian. Reading validates sizes and references, and applies the checker of `byoc-vta-machine` to
//! the stream.

use crate::image::{Buffer, Content, Edge, Image, LayerInfo, PAGE, Simulator};
use crate::pack::Weights;
use byoc_plugin_api::{Error, Result};
use byoc_vta_machine::check::{self, check};
use byoc_vta_machine::config::Config;
use byoc_vta_machine::isa::{Insn, Memory, Op};
use byoc_vta_program::relocate::relocate;
use serde::{Deserialize, Serialize};
use std::ops::Range;

const MAGIC: &[u8; 8] = b"VTABYOC\n";

/// Format version that this plugin writes and reads.
pub const VERSION: u32 = 1;

/// Maximum number of instructions per region.
const MAX_INSTRUCTIONS: usize = 1 << 24;

/// Maximum total number of steps of all units: about 200 times the number for ResNet-18.
const MAX_STEPS: u64 = 1 << 31;

/// Maximum total size of the buffers in bytes.
const MAX_BYTES: usize = 1 << 32;

/// Maximum number of entries in each list of the header, such as buffers, layers and runs.
const MAX_PARTS: usize = 1 << 16;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    symbol: String,
    #[serde(default)]
    simulator: Simulator,
    device: Config,
    inputs: Vec<Edge>,
    outputs: Vec<Edge>,
    constants: usize,
    buffers: Vec<Buffer>,
    layers: Vec<LayerInfo>,
    runs: Vec<Range<usize>>,
    vector_bytes: usize,
    uops: usize,
    instructions: usize,
    /// CRC-32 of the vectors, and CRC-32 of the micro-operations.
    checksums: [u32; 2],
    /// CRC-32 per layer, over its instructions and the indices of the buffers that they access.
    layer_checksums: Vec<u32>,
}

/// Returns the CRC-32 over a layer's instructions and the indices of the buffers that they access.
fn checksum(words: &[u8], accessed_buffers: &[u8], layer: &Range<usize>) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(words.get(layer.start * 16..layer.end * 16).unwrap_or_default());
    hasher.update(accessed_buffers.get(layer.start * 4..layer.end * 4).unwrap_or_default());
    hasher.finalize()
}

/// Serializes a region.
///
/// # Errors
/// If an instruction cannot be encoded for the device.
pub fn write(image: &Image) -> Result<Vec<u8>> {
    let mut words = Vec::with_capacity(image.stream.len() * 16);
    for (index, insn) in image.stream.iter().enumerate() {
        let encoded_insn = insn
            .encode(&image.config)
            .map_err(|error| Error::new(image.locate_message(Some(index), &error.to_string())))?;
        words.extend(encoded_insn.iter().flat_map(|word| word.to_le_bytes()));
    }
    let uops: Vec<u8> = image.uops.iter().flat_map(|word| word.to_le_bytes()).collect();
    let accessed_buffers: Vec<u8> =
        image.accessed_buffers.iter().flat_map(|buffer| buffer.unwrap_or(u32::MAX).to_le_bytes()).collect();
    let header = Header {
        symbol: image.symbol.clone(),
        simulator: image.simulator,
        device: image.config.clone(),
        inputs: image.inputs.clone(),
        outputs: image.outputs.clone(),
        constants: image.constants,
        buffers: image.buffers.clone(),
        layers: image.layers.clone(),
        runs: image.runs.clone(),
        vector_bytes: image.vectors.len(),
        uops: image.uops.len(),
        instructions: image.stream.len(),
        checksums: [crc32fast::hash(&image.vectors), crc32fast::hash(&uops)],
        layer_checksums: image.layers.iter().map(|l| checksum(&words, &accessed_buffers, &l.instructions)).collect(),
    };
    let text = serde_json::to_vec(&header)?;
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend((text.len() as u64).to_le_bytes());
    for section in [&text, &image.vectors, &uops, &words, &accessed_buffers] {
        bytes.extend_from_slice(section);
    }
    bytes.extend(crc32fast::hash(&text).to_le_bytes());
    Ok(bytes)
}

fn invalid(problem: &str) -> Error {
    Error::new(format!("VTA program: {problem}"))
}

/// Parses and validates a region.
///
/// # Errors
/// If the bytes are not a region, have an unsupported version, are corrupt, or contain a stream that the checker
/// rejects.
pub fn read(bytes: &[u8]) -> Result<Image> {
    let rest = bytes
        .strip_prefix(MAGIC)
        .ok_or_else(|| Error::new("expected a VTA program, found foreign or corrupted data"))?;
    let (version, rest) = rest.split_first_chunk::<4>().ok_or_else(|| invalid("truncated header"))?;
    let version = u32::from_le_bytes(*version);
    if version != VERSION {
        return Err(invalid(&format!("expected version {VERSION}, found {version}"))
            .hint("compile the model again with this plugin"));
    }
    let (length, rest) = rest.split_first_chunk::<8>().ok_or_else(|| invalid("truncated header"))?;
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
    let (text, rest) = rest.split_at_checked(length).ok_or_else(|| invalid("truncated header"))?;
    let (body, sum) = rest.split_last_chunk::<4>().ok_or_else(|| invalid("truncated header"))?;
    if crc32fast::hash(text) != u32::from_le_bytes(*sum) {
        return Err(invalid("header: the data does not match the stored checksum"));
    }
    let header: Header = serde_json::from_slice(text).map_err(|error| invalid(&error.to_string()))?;
    check_header(&header).map_err(|problem| invalid(&problem))?;
    let sizes = [header.vector_bytes, header.uops * 4, header.instructions * 16, header.instructions * 4];
    let expected: usize = sizes.iter().sum();
    if body.len() != expected {
        return Err(invalid(&format!("expected {expected} bytes after the header, found {}", body.len())));
    }
    let mut rest = body;
    let [vectors, uops, words, accessed_buffers] = sizes.map(|size| {
        let (bytes, remaining) = rest.split_at(size);
        rest = remaining;
        bytes
    });
    for (section, sum, name) in
        [(vectors, header.checksums[0], "vectors"), (uops, header.checksums[1], "micro-operations")]
    {
        if crc32fast::hash(section) != sum {
            return Err(invalid(&format!("{name}: the data does not match the stored checksum")));
        }
    }
    for (layer, sum) in header.layers.iter().zip(&header.layer_checksums) {
        if checksum(words, accessed_buffers, &layer.instructions) != *sum {
            let Range { start, end } = layer.instructions;
            let name = &layer.name;
            let problem = format!("layer {name}: instructions {start} to {end} do not match the stored checksum");
            return Err(invalid(&problem));
        }
    }
    let word = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let mut image = Image {
        symbol: header.symbol,
        simulator: header.simulator,
        config: header.device,
        inputs: header.inputs,
        outputs: header.outputs,
        constants: header.constants,
        buffers: header.buffers,
        layers: header.layers,
        runs: header.runs,
        vectors: vectors.to_vec(),
        uops: uops.chunks_exact(4).map(word).collect(),
        stream: Vec::with_capacity(header.instructions),
        accessed_buffers: accessed_buffers
            .chunks_exact(4)
            .map(word)
            .map(|buffer| (buffer != u32::MAX).then_some(buffer))
            .collect(),
    };
    for (index, insn_words) in words.chunks_exact(16).enumerate() {
        let value =
            |index: usize| u64::from(word(&insn_words[index..])) | u64::from(word(&insn_words[index + 4..])) << 32;
        let decoded_insn = Insn::decode([value(0), value(8)], &image.config);
        let insn = decoded_insn.map_err(|error| invalid(&image.locate_message(Some(index), &error.to_string())))?;
        image.stream.push(insn);
    }
    check_stream(&image)?;
    Ok(image)
}

/// Checks the sizes and references in a header.
fn check_header(header: &Header) -> std::result::Result<(), String> {
    header.device.check().map_err(|error| error.to_string())?;
    let counts =
        [header.buffers.len(), header.layers.len(), header.runs.len(), header.inputs.len(), header.outputs.len()];
    if let Some(count) = counts.into_iter().find(|count| *count > MAX_PARTS) {
        return Err(format!("expected at most {MAX_PARTS} entries per list, found {count}"));
    }
    let limits = [
        (header.instructions, MAX_INSTRUCTIONS, "instructions"),
        (header.uops, MAX_INSTRUCTIONS * 4, "micro-operations"),
        (header.vector_bytes, MAX_BYTES, "bytes of vectors"),
    ];
    if let Some((count, limit, unit)) = limits.into_iter().find(|(count, limit, _)| count > limit) {
        return Err(format!("expected at most {limit} {unit}, found {count}"));
    }
    let mut total_bytes = PAGE;
    for buffer in &header.buffers {
        total_bytes = total_bytes.saturating_add(buffer.bytes.saturating_add(PAGE));
    }
    if total_bytes > MAX_BYTES {
        return Err(format!("expected buffers of at most {MAX_BYTES} bytes, found {total_bytes}"));
    }
    for (index, buffer) in header.buffers.iter().enumerate() {
        let expected = match &buffer.content {
            Content::Uops => header.uops * 4,
            Content::Identity => header.device.element_bytes(Memory::Wgt),
            Content::Vectors => header.vector_bytes,
            Content::Weights(weights) => {
                let sizes = [weights.kernels, weights.channels, weights.groups, weights.merged, weights.taps];
                let is_valid = sizes.iter().all(|size| (1..1 << 24).contains(size))
                    && weights.kernels.is_multiple_of(weights.groups)
                    && weights.groups.is_multiple_of(weights.merged)
                    && weights.constant < header.constants;
                let limit = |product: usize, size: usize| product.saturating_mul(size);
                if !is_valid || [weights.kernels, weights.channels, weights.taps].into_iter().fold(1, limit) > MAX_BYTES
                {
                    let Weights { constant, kernels, channels, groups, merged, taps } = weights;
                    return Err(format!(
                        "buffer {index}: expected at most {MAX_BYTES} weights in whole groups, found {kernels} \
                         kernels, {channels} channels, {groups} groups ({merged} merged) and {taps} taps of constant \
                         {constant}"
                    ));
                }
                weights.bytes(header.device.block())
            }
            Content::Input(i) => edge_bytes(header, header.inputs.get(*i), index)?,
            Content::Output(i) => edge_bytes(header, header.outputs.get(*i), index)?,
            Content::Scratch => buffer.bytes,
        };
        if buffer.bytes != expected {
            return Err(format!("buffer {index}: expected {expected} bytes, found {}", buffer.bytes));
        }
    }
    for (kind, edges) in [("input", &header.inputs), ("output", &header.outputs)] {
        for (i, edge) in edges.iter().enumerate() {
            let content = header.buffers.get(edge.buffer as usize).map(|buffer| &buffer.content);
            let is_match = match content {
                Some(Content::Input(index)) => kind == "input" && *index == i,
                Some(Content::Output(index)) => kind == "output" && *index == i,
                _ => false,
            };
            if !is_match || (kind == "input" && edge.int32) {
                return Err(format!("{kind} {i}: expected a separate buffer, found buffer {}", edge.buffer));
            }
        }
    }
    let layers: Vec<&Range<usize>> = header.layers.iter().map(|layer| &layer.instructions).collect();
    let runs: Vec<&Range<usize>> = header.runs.iter().collect();
    for (name, ranges) in [("layers", layers), ("runs", runs)] {
        let mut end = 0;
        for range in ranges {
            if range.start != end || range.end < range.start {
                return Err(format!(
                    "{name}: expected a range that starts at instruction {end}, found {} to {}",
                    range.start, range.end
                ));
            }
            end = range.end;
        }
        if end != header.instructions {
            return Err(format!("{name}: expected {} instructions, found {end}", header.instructions));
        }
    }
    if header.layer_checksums.len() != header.layers.len() {
        return Err(format!(
            "number of layer checksums: expected {}, found {}",
            header.layers.len(),
            header.layer_checksums.len()
        ));
    }
    Ok(())
}

/// Returns the size in bytes of the buffer for an input or output.
fn edge_bytes(header: &Header, edge: Option<&Edge>, index: usize) -> std::result::Result<usize, String> {
    let edge = edge.ok_or_else(|| format!("buffer {index}: the header lists no such input or output"))?;
    let count = edge.shape.iter().try_fold(1usize, |count, dim| count.checked_mul(*dim));
    if edge.buffer as usize != index || edge.shape.contains(&0) || count.is_none_or(|count| count > MAX_BYTES) {
        return Err(format!(
            "buffer {index}: expected a separate non-empty tensor, found shape {:?} in buffer {}",
            edge.shape, edge.buffer
        ));
    }
    Ok(edge.bytes(&header.device))
}

/// Checks the number of steps and the memory accesses of the stream.
fn check_stream(image: &Image) -> Result<()> {
    let mut steps = 0u64;
    for (index, insn) in image.stream.iter().enumerate() {
        steps = steps.saturating_add(match &insn.op {
            Op::Gemm(gemm) => gemm.loops.steps(),
            Op::Alu(alu) => alu.loops.steps(),
            Op::Load(transfer) | Op::Store(transfer) => (transfer.rows() * transfer.row_length()) as u64,
            Op::Finish => 0,
        });
        if steps > MAX_STEPS {
            return Err(invalid(
                &image.locate_message(
                    Some(index),
                    &format!("expected at most {MAX_STEPS} steps, found at least {steps}"),
                ),
            ));
        }
    }
    let (addresses, _) = image.addresses();
    let stream = relocate(&image.config, &image.stream, &image.accessed_buffers, &addresses)
        .map_err(|error| invalid(&image.locate_message(Some(error.instruction), &error.message)))?;
    let segments = image.segments(&addresses);
    for run in &image.runs {
        let invalid_at = |violation: check::Violation| {
            let instruction = violation.instruction.map(|index| index + run.start);
            invalid(&image.locate_message(instruction, &violation.message))
        };
        check(&image.config, &stream[run.clone()], &segments).map_err(invalid_at)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use byoc_test_support::artifact::Entries;

    /// Removes each token of an artifact's streams, one at a time, and expects the checker to detect each removal.
    #[test]
    #[ignore = "takes minutes, and an artifact named by BYOC_VTA_ARTIFACT: cargo xtask vta"]
    fn streams_of_an_artifact_need_every_token() {
        let path = std::env::var_os("BYOC_VTA_ARTIFACT").expect("BYOC_VTA_ARTIFACT names an artifact");
        let entries = Entries::unpack(&std::fs::read(path).unwrap());
        let regions: Vec<_> = entries.0.iter().filter(|(_, bytes)| bytes.starts_with(MAGIC)).collect();
        assert!(!regions.is_empty(), "expected vta regions in the artifact, found none");
        for (name, bytes) in regions {
            let image = read(bytes).unwrap();
            let removed_count = removed_tokens(&image);
            assert!(
                removed_count > image.layers.len(),
                "{name}: expected more than {} tokens, found {removed_count}",
                image.layers.len()
            );
        }
    }

    /// Removes each token, one at a time, using all threads. Returns the number of tokens.
    fn removed_tokens(image: &Image) -> usize {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            let remove_in_thread = |first_index: usize| {
                let mut image = image.clone();
                let indices = (first_index..image.stream.len()).step_by(threads);
                indices.map(|index| removed_tokens_of(&mut image, index)).sum::<usize>()
            };
            let handles: Vec<_> =
                (0..threads).map(|thread_index| scope.spawn(move || remove_in_thread(thread_index))).collect();
            handles.into_iter().map(|handle| handle.join().unwrap()).sum()
        })
    }

    fn removed_tokens_of(image: &mut Image, index: usize) -> usize {
        let flags: [fn(&mut Insn) -> &mut bool; 4] = [
            |insn| &mut insn.deps.pop_prev,
            |insn| &mut insn.deps.pop_next,
            |insn| &mut insn.deps.push_prev,
            |insn| &mut insn.deps.push_next,
        ];
        let mut removed_count = 0;
        for flag in flags {
            if std::mem::replace(flag(&mut image.stream[index]), false) {
                let result = check_stream(image);
                assert!(result.is_err(), "expected an error for {index} without a token: {}", image.stream[index]);
                *flag(&mut image.stream[index]) = true;
                removed_count += 1;
            }
        }
        removed_count
    }
}

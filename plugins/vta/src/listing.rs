//! Listing of a compiled region: device, buffers, and the stream layer by layer.

use crate::image::Image;
use std::fmt::Write;

/// Returns the listing of a region, with at most `limit` instructions per layer.
pub fn listing(image: &Image, limit: usize) -> String {
    let mut text = String::new();
    let total_bytes: usize = image.buffers.iter().map(|buffer| buffer.bytes).sum();
    let _ = writeln!(
        text,
        "device {}; layers: {}, instructions: {}, predicted cycles: {}, runs: {}, bytes: {total_bytes}, buffers: {}",
        image.config.name(),
        image.layers.len(),
        image.stream.len(),
        image.cycles(),
        image.runs.len(),
        image.buffers.len()
    );
    for (index, buffer) in image.buffers.iter().enumerate() {
        let _ = writeln!(text, "buffer {index}: {}, {} bytes", buffer.content, buffer.bytes);
    }
    for (layer_index, layer) in image.layers.iter().enumerate() {
        let [rows, columns, inputs, outputs, threads] = layer.tile;
        let _ = writeln!(
            text,
            "\nlayer {layer_index}: {}\n  tile {rows}x{columns}, input blocks: {inputs}, output blocks: {outputs}, \
             threads: {threads}; predicted cycles: {}, GEMM: {:.1} %, bytes: {}",
            layer.name,
            layer.cycles,
            100.0 * layer.utilization(),
            layer.bytes
        );
        for index in layer.instructions.clone().take(limit) {
            let (Some(insn), Some(accessed_buffer)) = (image.stream.get(index), image.accessed_buffers.get(index))
            else {
                continue;
            };
            let buffer_comment = accessed_buffer.map(|buffer| format!("  ; buffer {buffer}")).unwrap_or_default();
            let _ = writeln!(text, "  {index:>6}  {insn}{buffer_comment}");
        }
        let remaining = layer.instructions.len().saturating_sub(limit);
        if remaining > 0 {
            let _ = writeln!(text, "          more instructions: {remaining}");
        }
    }
    text
}

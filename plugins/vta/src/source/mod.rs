//! The region as a C program against VTA's `driver.h`: constants, stream and tensors as arrays, and a `main` that checks
//! one input.

mod expected;

use crate::image::{Content, Edge, Image};
use crate::pack::Layout;
use byoc_plugin_api::{Constant, Result};
use byoc_vta_machine::config::Config;
use byoc_vta_machine::isa::{self, Op};
use std::fmt::{Display, Write};

/// Functions that are the same for every region.
const PROGRAM: &str = include_str!("program.c");

/// Maximum size of the weights of a region whose program is part of every artifact. The program of a larger region is
/// written on request alone, because the weights are text in it.
const MAX_WEIGHT_BYTES: usize = 64 << 10;

/// Maximum number of steps of the matrix unit of such a region, which is simulated when its program is written.
const MAX_GEMM_STEPS: u64 = 1 << 20;

/// Returns true if the program of a region is small and quickly made.
pub fn is_small(image: &Image) -> bool {
    let weights: usize =
        image.buffers.iter().filter(|b| matches!(b.content, Content::Weights(_))).map(|b| b.bytes).sum();
    let steps: u64 = image.layers.iter().map(|layer| layer.gemm_steps).sum();
    weights <= MAX_WEIGHT_BYTES && steps <= MAX_GEMM_STEPS
}

/// Returns the C program of a region. The programs of several regions, one after another, are a program as well; its `main`
/// checks the first of them.
///
/// # Errors
/// A region that the simulator cannot run, or an instruction that cannot be encoded.
pub fn source(image: &Image, constants: &[Constant]) -> Result<String> {
    let mut text = String::new();
    header(&mut text, image);
    text.push_str(PROGRAM);
    buffers(&mut text, image, constants)?;
    stream(&mut text, image)?;
    let symbol = &image.symbol;
    for (name, edges) in [("inputs", &image.inputs), ("outputs", &image.outputs)] {
        array(&mut text, &format!("struct vta_tensor {symbol}_{name}[]"), edges.iter().map(tensor));
    }
    let hashes = expected::hashes(image, constants)?;
    array(&mut text, &format!("uint64_t {symbol}_expected[]"), hashes.iter().map(|hash| format!("{hash:#x}u")));
    region(&mut text, image);
    functions(&mut text, image);
    Ok(text)
}

/// Writes the structure with all parts of the region.
fn region(text: &mut String, image: &Image) {
    let Image { symbol, config, .. } = image;
    let _ = writeln!(text, "static const struct vta_region {symbol}_region = {{");
    let mut field = |name: &str, value: String| {
        let _ = writeln!(text, "    .{name} = {value},");
    };
    field("batch", config.batch().to_string());
    field("block", config.block().to_string());
    field("dram_base_bit", isa::dram_base_bit(config).to_string());
    field("buffer_count", image.buffers.len().to_string());
    field("instruction_count", image.stream.len().to_string());
    field("transfer_count", addressed(image).count().to_string());
    field("run_count", image.runs.len().to_string());
    field("input_count", image.inputs.len().to_string());
    field("output_count", image.outputs.len().to_string());
    for name in ["buffers", "stream", "transfers", "runs", "inputs", "outputs", "expected"] {
        field(name, format!("{symbol}_{name}"));
    }
    text.push_str("};\n\n");
}

/// Writes the functions of the region.
fn functions(text: &mut String, image: &Image) {
    let symbol = &image.symbol;
    let (buffers, inputs, outputs) = (image.buffers.len(), image.inputs.len(), image.outputs.len());
    let _ = write!(
        text,
        "static void *{symbol}_memory[{buffers}];
static struct vta_state {symbol}_state = {{{symbol}_memory, NULL, NULL}};

int {symbol}_open(void);
int {symbol}_run(const void *const *in, void *const *out);
void {symbol}_close(void);
int {symbol}_check(void);

int {symbol}_open(void) {{
    return vta_open(&{symbol}_region, &{symbol}_state);
}}

int {symbol}_run(const void *const *in, void *const *out) {{
    return vta_run(&{symbol}_region, &{symbol}_state, in, out);
}}

void {symbol}_close(void) {{
    vta_close(&{symbol}_region, &{symbol}_state);
}}

int {symbol}_check(void) {{
    void *in[{inputs}], *out[{outputs}];
    return vta_check(&{symbol}_region, &{symbol}_state, \"{symbol}\", in, out);
}}

#ifndef VTA_NO_MAIN
#define VTA_NO_MAIN
int main(void) {{
    return {symbol}_check();
}}
#endif
"
    );
}

/// Makes names of a model safe within a comment.
fn clean(text: &str) -> String {
    text.replace("*/", "* /").replace("/*", "/ *").replace(|c: char| c.is_control() || c == '\\' || c == '?', " ")
}

fn header(text: &mut String, image: &Image) {
    let Image { symbol, config, layers, .. } = image;
    let _ = writeln!(text, "/*\n * Region {symbol} as a program for the VTA device {}.\n *", clean(&config.name()));
    let _ = writeln!(text, " *   int {symbol}_open(void)                     fills the memory of the device");
    let _ = writeln!(text, " *   int {symbol}_run(const void **in, void **out)  runs the stream on dense tensors");
    let _ = writeln!(text, " *   void {symbol}_close(void)");
    let _ =
        writeln!(text, " *   int {symbol}_check(void)                    runs one input, and checks its results\n *");
    let _ = writeln!(text, " * The functions return 0 for success.\n *");
    for (kind, edges) in [("in", &image.inputs), ("out", &image.outputs)] {
        for (number, edge) in edges.iter().enumerate() {
            let dtype = if edge.int32 { "int32, little-endian" } else { "int8" };
            let _ = writeln!(text, " *   {kind}[{number}]: {dtype} {:?}", edge.shape);
        }
    }
    let _ =
        writeln!(text, " *\n * It needs driver.h of VTA, and a library with the functions that the header declares.");
    let _ = writeln!(text, " * main calls the last function; -DVTA_NO_MAIN leaves it out.\n *");
    let _ = writeln!(text, " * {} predicted cycles:", image.cycles());
    for (number, layer) in layers.iter().enumerate() {
        let _ = writeln!(text, " *   layer {number}: {}, {} cycles", clean(&layer.name), layer.cycles);
    }
    text.push_str(" */\n\n");
    for include in ["inttypes.h", "stddef.h", "stdint.h", "stdio.h", "stdlib.h", "string.h"] {
        let _ = writeln!(text, "#include <{include}>");
    }
    let _ = writeln!(text, "\n#include <vta/driver.h>\n");
}

/// Writes an array, eight elements a line.
fn array(text: &mut String, declaration: &str, elements: impl Iterator<Item = impl Display>) {
    let _ = write!(text, "static const {declaration} = {{");
    for (index, element) in elements.enumerate() {
        let _ = write!(text, "{}{element},", if index % 8 == 0 { "\n    " } else { " " });
    }
    text.push_str("\n};\n\n");
}

/// Writes the contents of the buffers.
fn buffers(text: &mut String, image: &Image, constants: &[Constant]) -> Result<()> {
    let services = expected::inline_services();
    let symbol = &image.symbol;
    let mut rows = Vec::with_capacity(image.buffers.len());
    for (number, buffer) in image.buffers.iter().enumerate() {
        let content = image.content(number, constants, &services)?.unwrap_or_default();
        let about = buffer.content.to_string();
        if content.is_empty() {
            rows.push(format!("{{{}, NULL}}, /* {number}: {about} */", buffer.bytes));
            continue;
        }
        let _ = writeln!(text, "/* Buffer {number}: {about}. */");
        array(text, &format!("unsigned char {symbol}_buffer_{number}[]"), content.iter());
        rows.push(format!("{{{}, {symbol}_buffer_{number}}}, /* {number}: {about} */", buffer.bytes));
    }
    let _ = writeln!(text, "static const struct vta_buffer {symbol}_buffers[] = {{");
    for row in rows {
        let _ = writeln!(text, "    {row}");
    }
    text.push_str("};\n\n");
    Ok(())
}

/// Returns the transfers that need the address of a buffer: index of the instruction, buffer, size of an element.
fn addressed(image: &Image) -> impl Iterator<Item = (usize, u32, usize)> {
    let config = &image.config;
    image.stream.iter().zip(&image.accessed).enumerate().filter_map(|(index, (insn, buffer))| match &insn.op {
        Op::Load(transfer) | Op::Store(transfer) if !transfer.is_no_op() => {
            Some((index, (*buffer)?, config.element_bytes(transfer.memory)))
        }
        _ => None,
    })
}

/// Writes the stream, its runs, and the addresses that depend on buffers.
fn stream(text: &mut String, image: &Image) -> Result<()> {
    let symbol = &image.symbol;
    let _ = writeln!(text, "static const uint64_t {symbol}_stream[][2] = {{");
    for (index, insn) in image.stream.iter().enumerate() {
        if let Some(number) = image.layers.iter().position(|layer| layer.instructions.start == index) {
            let _ = writeln!(text, "    /* layer {number}: {} */", clean(&image.layers[number].name));
        }
        let [low, high] = encode(&image.config, image, index)?;
        let _ = writeln!(text, "    {{{low:#018x}u, {high:#018x}u}}, /* {index}: {insn} */");
    }
    text.push_str("};\n\n");
    let rows =
        addressed(image).map(|(index, buffer, unit)| format!("{{{index}, {buffer}, {}}}", unit.trailing_zeros()));
    array(text, &format!("struct vta_transfer {symbol}_transfers[]"), rows);
    let runs = image.runs.iter().map(|run| format!("{{{}, {}}}", run.start, run.len()));
    array(text, &format!("uint32_t {symbol}_runs[][2]"), runs);
    Ok(())
}

fn encode(config: &Config, image: &Image, index: usize) -> Result<[u64; 2]> {
    let invalid = |error: &dyn Display| byoc_plugin_api::Error::new(image.at(Some(index), &error.to_string()));
    image.stream[index].encode(config).map_err(|error| invalid(&error))
}

fn tensor(edge: &Edge) -> String {
    let bytes = if edge.int32 { 4 } else { 1 };
    let (images, channels, positions, rows) = match edge.layout() {
        Layout::Images { batch, channels, positions } => (batch, channels, positions, 0),
        Layout::Rows { rows, channels } => (rows, channels, 1, 1),
    };
    format!("{{{}, {images}, {channels}, {positions}, {bytes}, {rows}}}", edge.buffer)
}

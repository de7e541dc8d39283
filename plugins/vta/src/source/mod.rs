//! Region as a C program that uses VTA's `driver.h`: constants, stream and tensors as arrays, and a `main` that checks
//! the results for one input.

mod expected;

use crate::image::{Content, Edge, Image};
use crate::pack::Layout;
use byoc_plugin_api::{Constant, Result};
use byoc_vta_machine::config::Config;
use byoc_vta_machine::isa::{self, Op};
use std::fmt::{Display, Write};

/// C functions that all regions share.
const PROGRAM: &str = include_str!("program.c");

/// C functions that run one input and check its results.
const CHECK: &str = include_str!("check.c");

/// Driver declarations in an exported program.
const DRIVER: &str = include_str!("../../include/vta/driver.h");

/// Maximum size in bytes of a region's weights for its program to be written to the artifact by default. The program of
/// a larger region is written only on request, because it contains the weights as text.
const MAX_WEIGHT_BYTES: usize = 64 << 10;

/// Maximum number of matrix unit steps in such a region. Writing its program requires a simulation.
const MAX_GEMM_STEPS: u64 = 1 << 20;

/// Tests for a region whose program is small and quick to write.
pub fn is_small(image: &Image) -> bool {
    let weights: usize =
        image.buffers.iter().filter(|b| matches!(b.content, Content::Weights(_))).map(|b| b.bytes).sum();
    let steps: u64 = image.layers.iter().map(|layer| layer.gemm_steps).sum();
    weights <= MAX_WEIGHT_BYTES && steps <= MAX_GEMM_STEPS
}

/// Returns the C program of a region. The concatenated programs of several regions form a valid program, whose `main`
/// checks the first region.
///
/// # Errors
/// If the simulator cannot run the region, or an instruction cannot be encoded.
pub fn source(image: &Image, constants: &[Constant]) -> Result<String> {
    let mut text = String::new();
    write_header(&mut text, image);
    text.push_str(PROGRAM);
    text.push_str(CHECK);
    let symbol = &image.symbol;
    let hashes = expected::hashes(image, constants)?;
    write_array(&mut text, &format!("uint64_t {symbol}_expected[]"), hashes.iter().map(|hash| format!("{hash:#x}u")));
    region(&mut text, image, constants, &format!("{symbol}_expected"))?;
    write_functions(&mut text, image);
    Ok(text)
}

/// Region as a C file of an exported program.
pub struct Exported {
    /// Text of the file; its function returns 0 on success.
    pub text: String,
    /// Size in bytes of the workspace.
    pub workspace: usize,
    /// Size in bytes of the constant arrays.
    pub constant_bytes: usize,
}

/// Returns the region as a C file of an exported program, which is linked with the driver. The first run opens the
/// device, which then stays open.
///
/// # Errors
/// If an instruction cannot be encoded.
pub fn export(image: &Image, constants: &[Constant]) -> Result<Exported> {
    let mut text = String::new();
    write_exported_header(&mut text, image);
    text.push_str(PROGRAM);
    let constant_bytes = region(&mut text, image, constants, "NULL")?;
    write_exported_functions(&mut text, image);
    Ok(Exported { text, workspace: scratch_bytes(image), constant_bytes })
}

/// Returns the size in bytes of the staging memory for a tensor or the stream.
fn scratch_bytes(image: &Image) -> usize {
    let edges = image.inputs.iter().chain(&image.outputs).map(|edge| edge.bytes(&image.config));
    edges.chain([image.stream.len() * 16]).max().unwrap_or(0)
}

/// Writes the arrays of the region and the structure that refers to them. Returns the size of the constant arrays in
/// bytes.
fn region(text: &mut String, image: &Image, constants: &[Constant], expected: &str) -> Result<usize> {
    let content_bytes = buffers(text, image, constants)?;
    write_stream(text, image)?;
    let symbol = &image.symbol;
    for (name, edges) in [("inputs", &image.inputs), ("outputs", &image.outputs)] {
        write_array(text, &format!("struct vta_tensor {symbol}_{name}[]"), edges.iter().map(tensor));
    }
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
    field("transfer_count", accessed_ranges(image).count().to_string());
    field("run_count", image.runs.len().to_string());
    field("input_count", image.inputs.len().to_string());
    field("output_count", image.outputs.len().to_string());
    for name in ["buffers", "stream", "transfers", "runs", "inputs", "outputs"] {
        field(name, format!("{symbol}_{name}"));
    }
    field("expected", expected.to_owned());
    field("scratch_bytes", scratch_bytes(image).to_string());
    text.push_str("};\n\n");
    // In the arrays, an instruction takes 16 bytes and a transfer 8 bytes.
    Ok(content_bytes + image.stream.len() * 16 + accessed_ranges(image).count() * 8)
}

/// Writes the functions that open, run, close and check the region, and `main`.
fn write_functions(text: &mut String, image: &Image) {
    let symbol = &image.symbol;
    let (buffers, inputs, outputs) = (image.buffers.len(), image.inputs.len(), image.outputs.len());
    let _ = write!(
        text,
        "static void *{symbol}_memory[{buffers}];
static struct vta_state {symbol}_state = {{{symbol}_memory, NULL, NULL, NULL}};

int {symbol}_open(void);
int {symbol}_run(const void *const *in, void *const *out);
void {symbol}_close(void);
int {symbol}_check(void);

int {symbol}_open(void) {{
    {symbol}_state.scratch = malloc({symbol}_region.scratch_bytes);
    return {symbol}_state.scratch == NULL || vta_open(&{symbol}_region, &{symbol}_state) != 0;
}}

int {symbol}_run(const void *const *in, void *const *out) {{
    return vta_run(&{symbol}_region, &{symbol}_state, in, out);
}}

void {symbol}_close(void) {{
    vta_close(&{symbol}_region, &{symbol}_state);
    free({symbol}_state.scratch);
    {symbol}_state.scratch = NULL;
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

/// Writes the functions of a region in an exported program.
fn write_exported_functions(text: &mut String, image: &Image) {
    let (symbol, buffers) = (&image.symbol, image.buffers.len());
    let _ = write!(
        text,
        "static void *{symbol}_memory[{buffers}];
static struct vta_state {symbol}_state = {{{symbol}_memory, NULL, NULL, NULL}};

int {symbol}(const void *const *in, void *const *out, const void *const *constants, void *work);
void {symbol}_close(void);

int {symbol}(const void *const *in, void *const *out, const void *const *constants, void *work) {{
    (void)constants;
    {symbol}_state.scratch = work;
    if ({symbol}_state.device == NULL && vta_open(&{symbol}_region, &{symbol}_state) != 0) {{
        vta_close(&{symbol}_region, &{symbol}_state);
        return 1;
    }}
    return vta_run(&{symbol}_region, &{symbol}_state, in, out);
}}

void {symbol}_close(void) {{
    vta_close(&{symbol}_region, &{symbol}_state);
}}
"
    );
}

/// Makes model names safe within a C comment.
fn escape_comment(text: &str) -> String {
    text.replace("*/", "* /").replace("/*", "/ *").replace(|c: char| c.is_control() || c == '\\' || c == '?', " ")
}

fn write_header(text: &mut String, image: &Image) {
    let Image { symbol, config, .. } = image;
    let _ = writeln!(
        text,
        "/*\n * Region {symbol} as a program for the VTA device {}.\n *",
        escape_comment(&config.name())
    );
    let _ = writeln!(text, " *   int {symbol}_open(void)                     fills the memory of the device");
    let _ = writeln!(text, " *   int {symbol}_run(const void **in, void **out)  runs the stream on dense tensors");
    let _ = writeln!(text, " *   void {symbol}_close(void)");
    let _ =
        writeln!(text, " *   int {symbol}_check(void)                    runs one input, and checks its results\n *");
    let _ = writeln!(text, " * The functions return 0 for success.\n *");
    write_tensors(text, image);
    let _ =
        writeln!(text, " *\n * Requires VTA's driver.h, and a library with the functions that the header declares.");
    let _ = writeln!(text, " * main calls the last function; -DVTA_NO_MAIN omits it.\n *");
    write_costs(text, image);
    for include in ["inttypes.h", "stddef.h", "stdint.h", "stdio.h", "stdlib.h", "string.h"] {
        let _ = writeln!(text, "#include <{include}>");
    }
    let _ = writeln!(text, "\n#include <vta/driver.h>\n");
}

fn write_exported_header(text: &mut String, image: &Image) {
    let Image { symbol, config, .. } = image;
    let _ = writeln!(
        text,
        "/*\n * Region {symbol} on the VTA device {}, through its driver.\n *",
        escape_comment(&config.name())
    );
    let _ =
        writeln!(text, " *   int {symbol}(in, out, constants, work)  runs the stream; the first run opens the device");
    let _ = writeln!(text, " *   void {symbol}_close(void)               closes the device\n *");
    let _ = writeln!(text, " * The function returns 0 for success. A device executes one run at a time.\n *");
    write_tensors(text, image);
    text.push_str(" *\n");
    write_costs(text, image);
    text.push_str("#include <string.h>\n\n");
    text.push_str(DRIVER);
    text.push('\n');
}

/// Writes the tensors of a region as comment lines.
fn write_tensors(text: &mut String, image: &Image) {
    for (kind, edges) in [("in", &image.inputs), ("out", &image.outputs)] {
        for (index, edge) in edges.iter().enumerate() {
            let dtype = if edge.int32 { "int32, little-endian" } else { "int8" };
            let _ = writeln!(text, " *   {kind}[{index}]: {dtype} {:?}", edge.shape);
        }
    }
}

/// Writes the predicted cycles, and ends the comment.
fn write_costs(text: &mut String, image: &Image) {
    let _ = writeln!(text, " * {} predicted cycles:", image.cycles());
    for (index, layer) in image.layers.iter().enumerate() {
        let _ = writeln!(text, " *   layer {index}: {}, {} cycles", escape_comment(&layer.name), layer.cycles);
    }
    text.push_str(" */\n\n");
}

/// Writes an array with eight elements per line.
fn write_array(text: &mut String, declaration: &str, elements: impl Iterator<Item = impl Display>) {
    let _ = write!(text, "static const {declaration} = {{");
    for (index, element) in elements.enumerate() {
        let _ = write!(text, "{}{element},", if index % 8 == 0 { "\n    " } else { " " });
    }
    text.push_str("\n};\n\n");
}

/// Writes the buffer contents. Returns their size in bytes.
fn buffers(text: &mut String, image: &Image, constants: &[Constant]) -> Result<usize> {
    let services = expected::inline_services();
    let symbol = &image.symbol;
    let mut rows = Vec::with_capacity(image.buffers.len());
    let mut content_bytes = 0;
    for (index, buffer) in image.buffers.iter().enumerate() {
        let content = image.content(index, constants, &services)?.unwrap_or_default();
        let description = buffer.content.to_string();
        if content.is_empty() {
            rows.push(format!("{{{}, NULL}}, /* {index}: {description} */", buffer.bytes));
            continue;
        }
        content_bytes += content.len();
        let _ = writeln!(text, "/* Buffer {index}: {description}. */");
        write_array(text, &format!("unsigned char {symbol}_buffer_{index}[]"), content.iter());
        rows.push(format!("{{{}, {symbol}_buffer_{index}}}, /* {index}: {description} */", buffer.bytes));
    }
    let _ = writeln!(text, "static const struct vta_buffer {symbol}_buffers[] = {{");
    for row in rows {
        let _ = writeln!(text, "    {row}");
    }
    text.push_str("};\n\n");
    Ok(content_bytes)
}

/// Returns the transfers that need a buffer address: instruction index, buffer index, element size in bytes.
fn accessed_ranges(image: &Image) -> impl Iterator<Item = (usize, u32, usize)> {
    let config = &image.config;
    image.stream.iter().zip(&image.accessed_buffers).enumerate().filter_map(|(index, (insn, buffer))| match &insn.op {
        Op::Load(transfer) | Op::Store(transfer) if !transfer.is_no_op() => {
            Some((index, (*buffer)?, config.element_bytes(transfer.memory)))
        }
        _ => None,
    })
}

/// Writes the stream, the list of transfers that need buffer addresses, and the runs.
fn write_stream(text: &mut String, image: &Image) -> Result<()> {
    let symbol = &image.symbol;
    let _ = writeln!(text, "static const uint64_t {symbol}_stream[][2] = {{");
    for (index, insn) in image.stream.iter().enumerate() {
        if let Some(layer_index) = image.layers.iter().position(|layer| layer.instructions.start == index) {
            let _ =
                writeln!(text, "    /* layer {layer_index}: {} */", escape_comment(&image.layers[layer_index].name));
        }
        let [low, high] = encode(&image.config, image, index)?;
        let _ = writeln!(text, "    {{{low:#018x}u, {high:#018x}u}}, /* {index}: {insn} */");
    }
    text.push_str("};\n\n");
    let rows =
        accessed_ranges(image).map(|(index, buffer, unit)| format!("{{{index}, {buffer}, {}}}", unit.trailing_zeros()));
    write_array(text, &format!("struct vta_transfer {symbol}_transfers[]"), rows);
    let runs = image.runs.iter().map(|run| format!("{{{}, {}}}", run.start, run.len()));
    write_array(text, &format!("uint32_t {symbol}_runs[][2]"), runs);
    Ok(())
}

fn encode(config: &Config, image: &Image, index: usize) -> Result<[u64; 2]> {
    let invalid =
        |error: &dyn Display| byoc_plugin_api::Error::new(image.locate_message(Some(index), &error.to_string()));
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

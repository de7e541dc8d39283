//! Assembles the C file of a region from its phases and plans the workspace.

use crate::arena;
use crate::form::Form;
use crate::lower::Lowering;
use crate::lower::packing_statements;
use crate::nest::stmt::Uses;
use crate::nest::{Function, Place};
use crate::print::c::C;
use crate::print::comment;
use byoc_plugin_api::DType;
use std::collections::BTreeSet;
use std::fmt::Write;

/// Parts of the prelude, each included if the code contains one of its names.
const PRELUDE: &[(&[&str], &str)] = &[
    (&["byoc_zero_border"], include_str!("prelude/border.c")),
    (&["byoc_pack_panel"], include_str!("prelude/pack.c")),
    (&["byoc_transpose"], include_str!("prelude/transpose.c")),
    (&["byoc_tile"], include_str!("prelude/tile.c")),
    (&["byoc_vector_depthwise"], include_str!("prelude/depthwise.c")),
    (&["byoc_first_tap"], include_str!("prelude/taps.c")),
    (
        &["byoc_exp", "byoc_sigmoid", "byoc_tanh", "byoc_erf", "byoc_floor_", "byoc_softmax", "byoc_log_softmax"],
        include_str!("prelude/math.c"),
    ),
    (&["byoc_row_", "byoc_softmax", "byoc_log_softmax", "byoc_layer_norm"], include_str!("prelude/rows.c")),
    (&["byoc_softmax", "byoc_log_softmax"], include_str!("prelude/softmax.c")),
];

/// Generated C file of a region.
#[derive(Debug)]
pub struct Source {
    /// Text of the file.
    pub text: String,
    /// Size of the workspace in bytes.
    pub workspace: i64,
    /// Size of the packed constants in bytes.
    pub packed: i64,
}

/// Returns the sorted indices of the constants that the generated code reads in place; only the packing function reads
/// the remaining constants.
pub fn kept_constants(text: &str) -> Vec<usize> {
    let read = text.split(" = args->constants[").skip(1);
    let indices: BTreeSet<usize> = read.filter_map(|text_after| text_after.split(']').next()?.parse().ok()).collect();
    indices.into_iter().collect()
}

/// Generates the C file of a region.
pub fn source(lowering: &Lowering<'_, '_>, symbol: &str) -> Source {
    let sizes: Vec<i64> = lowering.buffers.iter().map(|buffer| buffer.bytes).collect();
    let (offsets, workspace) = arena::plan(&sizes, lowering.phases.iter().map(|phase| &phase.buffers), arena::ALIGN);
    let mut body = String::new();
    let w = &mut body;
    let _ = writeln!(w, "/* Arguments of the tasks of a run. */");
    let _ = writeln!(w, "typedef struct {{");
    let _ = writeln!(w, "    const void *const *in;\n    void *const *out;\n    const void *const *constants;");
    let _ = writeln!(w, "    const char *packed;\n    char *work;\n}} {symbol}_args;\n");
    if !lowering.buffers.is_empty() {
        let _ = writeln!(w, "/* Offsets of the buffers in the workspace; buffers with disjoint lifetimes overlap. */");
        let _ = writeln!(w, "enum {{");
        for (i, buffer) in lowering.buffers.iter().enumerate() {
            let content = comment(&buffer.comment);
            let _ = writeln!(w, "    {symbol}_at_w{i} = {}, /* {} bytes: {content} */", offsets[i], buffer.bytes);
        }
        let _ = writeln!(w, "}};\n");
    }
    let mut bytes = 0;
    if !lowering.packed.is_empty() {
        let _ = writeln!(w, "/* Offsets of the packed constants. */\nenum {{");
        for (i, constant) in lowering.packed.iter().enumerate() {
            let _ = writeln!(w, "    {symbol}_at_p{i} = {bytes}, /* {} */", comment(&constant.comment));
            let elements = constant.packing.elements().unwrap_or(0);
            bytes += (elements * constant.dtype.size() as i64 + 63) / 64 * 64;
        }
        let _ = writeln!(w, "}};\n");
    }
    let dialect = C { symbol, form: Form::Tasks, restrict: true };
    let functions = || lowering.phases.iter().flat_map(|phase| &phase.functions);
    functions().for_each(|function| dialect.constants(function, w));
    for phase in &lowering.phases {
        write_comment(w, &phase.comment, "");
        phase.functions.iter().for_each(|function| dialect.function(function, w));
    }
    let _ = writeln!(
        w,
        "/* Size of the workspace in bytes. */\nint64_t {symbol}_workspace_size(void) {{\n    return {workspace};\n}}\n"
    );
    let _ = writeln!(
        w,
        "/* Size of the packed constants in bytes. */\nint64_t {symbol}_packed_size(void) {{\n    return {bytes};\n}}\n"
    );
    let _ = writeln!(
        w,
        "/* Packs constants into the layout that the tiles read; called once, when the region is loaded. */"
    );
    let _ = writeln!(w, "void {symbol}_pack(const void *const *constants, void *packed) {{");
    if lowering.packed.is_empty() {
        let _ = writeln!(w, "    (void)constants;\n    (void)packed;");
    }
    let packing: Vec<_> =
        lowering.packed.iter().enumerate().flat_map(|(i, constant)| packing_statements(i, constant)).collect();
    let uses: Uses = Function { body: packing.clone(), ..Function::default() }.uses();
    for (place, (dtype, _)) in &uses {
        debug_assert_eq!(*dtype, DType::F32);
        let _ = match place {
            Place::Constant(i) => writeln!(w, "    const float *{place} = constants[{i}];"),
            place => writeln!(w, "    float *{place} = (void *)((char *)packed + {symbol}_at_{place});"),
        };
    }
    dialect.statements(&packing, w);
    let _ = writeln!(w, "}}\n");
    let _ = writeln!(
        w,
        "void {symbol}(const byoc_pool *pool, const void *const *in, void *const *out,\n    const void *const *constants, const void *packed, void *work) {{"
    );
    let _ =
        writeln!(w, "    {symbol}_args args = {{in, out, constants, packed, work}};\n    (void)pool;\n    (void)args;");
    for phase in &lowering.phases {
        write_comment(w, &phase.comment, "    ");
        let name = phase.functions.last().map_or("", |function| function.name.as_str());
        let _ = writeln!(w, "    byoc_run(pool, {}, {name}, &args);", phase.tasks);
    }
    let _ = writeln!(w, "}}");

    let mut text = format!("/*\n * Region {symbol}, generated by byoc's ccompiler.\n *\n");
    text.push_str(
        " * Names: in = input, out = output, k = constant, p = packed constant, w = buffer in the workspace.\n */\n",
    );
    text.push_str(include_str!("prelude/compiler.c"));
    text.push('\n');
    text.push_str(include_str!("prelude/base.c"));
    for (names, function_text) in PRELUDE {
        if names.iter().any(|name| body.contains(name)) {
            text.push('\n');
            text.push_str(function_text);
        }
    }
    text.push('\n');
    text.push_str(&body);
    Source { text, workspace, packed: bytes }
}

fn write_comment(text: &mut String, lines: &[String], pad: &str) {
    match lines {
        [] => {}
        [line] => {
            let _ = writeln!(text, "{pad}/* {} */", comment(line));
        }
        _ => {
            let _ = writeln!(text, "{pad}/*");
            for line in lines {
                let _ = writeln!(text, "{pad} * {}", comment(line));
            }
            let _ = writeln!(text, "{pad} */");
        }
    }
}

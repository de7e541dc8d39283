//! Programs: a graph as C functions over an arena that is planned at code generation.

use crate::externals::Externals;
use crate::form::{Concatenation, Form, Machine};
use crate::group::{Fusion, Grouping};
use crate::lower::{ConstantArray, Lowering, lower, tile_name, unsupported};
use crate::nest::Place;
use crate::operators::anchors::{Anchor, program_anchor};
use crate::operators::check::check_anchor;
use crate::operators::elementwise::is_elementwise;
use crate::operators::views::is_view_op;
use crate::prelude::{Calls, PROGRAM};
use crate::print::c::{C, stack_bytes};
use crate::print::c_types::{loaded, storage_type};
use crate::types::computed;
use byoc_plugin_api::{Constant, DType, Graph};
use byoc_plugin_support::arena::{self, Lifetime};
use byoc_plugin_support::region::{Op, RegionIr, Val};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Alignment of the arena and of each buffer in it, in bytes.
pub const ALIGN: i64 = 8;

/// Function of a program, which computes some of the graph's operators.
#[derive(Clone, Debug)]
pub struct Step {
    /// Name of the function.
    pub name: String,
    /// Description of the operators, one line each.
    pub comment: Vec<String>,
    /// Definition of the function.
    pub code: String,
    /// Statement that calls the function.
    pub call: String,
    /// Number of multiply-add operations.
    pub macs: i64,
    /// Size in bytes of the local arrays.
    pub stack: i64,
    /// Number of arena bytes that are live while the function runs.
    pub live: i64,
}

/// Constant array of a program.
#[derive(Clone, Debug)]
pub struct Array {
    /// Name in the code.
    pub name: String,
    /// Type and content.
    pub array: ConstantArray,
}

/// Buffer in the arena.
#[derive(Clone, Debug)]
pub struct ArenaBuffer {
    /// Name of the constant that holds the offset.
    pub name: String,
    /// Offset in bytes.
    pub offset: i64,
    /// Size in bytes.
    pub bytes: i64,
    /// Description of the content.
    pub comment: String,
}

/// Input or output of a program.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Element type.
    pub dtype: DType,
    /// Dimensions, outermost first.
    pub shape: Vec<i64>,
}

/// Program in C.
#[derive(Clone, Debug)]
pub struct Program {
    /// Functions, in execution order.
    pub steps: Vec<Step>,
    /// Constant arrays.
    pub arrays: Vec<Array>,
    /// Buffers in the arena.
    pub buffers: Vec<ArenaBuffer>,
    /// Size of the arena in bytes.
    pub arena: i64,
    /// Inputs, in order.
    pub inputs: Vec<Tensor>,
    /// Outputs, in order.
    pub outputs: Vec<Tensor>,
    /// C text of the functions that the steps share.
    pub kernels: String,
}

/// Operator that code generation does not support.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// Relay name of the operator; empty if the reason concerns the graph.
    pub operator: String,
    /// Names of the operator's source nodes in the model.
    pub sources: Vec<String>,
    /// Reason for the refusal.
    pub reason: String,
}

/// Generates the program of a graph. `symbol` is the prefix of all names.
///
/// # Errors
/// If code generation does not support the graph or an operator; the error lists all unsupported operators.
pub fn program(
    graph: &Graph,
    constants: &[Constant],
    symbol: &str,
    machine: Machine,
    externals: &Externals,
) -> Result<Program, Vec<Unsupported>> {
    let whole_graph = |reason: String| vec![Unsupported { operator: String::new(), sources: Vec::new(), reason }];
    let ir = RegionIr::new(graph, constants).map_err(|error| whole_graph(error.detail))?;
    let refusals: Vec<Unsupported> = ir.ops.iter().filter_map(|op| check(&ir, op, externals)).collect();
    if !refusals.is_empty() {
        return Err(refusals);
    }
    let grouping = Grouping::new(&ir, Fusion::InPlace, externals);
    // In-place concatenation saves copies, but its result is live from the first operand on.
    let mut best_program: Option<Program> = None;
    for concatenation in [Concatenation::First, Concatenation::Last, Concatenation::Copied] {
        let form = Form::Program(machine, concatenation);
        let lowering = lower(&ir, &grouping, symbol, form, externals).map_err(whole_graph)?;
        let program = assemble(&ir, &grouping, &lowering, symbol, machine);
        if best_program.as_ref().is_none_or(|best_program| program.arena < best_program.arena) {
            best_program = Some(program);
        }
        if !ir.ops.iter().any(|op| op.name == "concatenate") {
            break;
        }
    }
    best_program.ok_or_else(|| whole_graph("expected a graph with operators, found an empty graph".into()))
}

/// Memory of a program.
struct Memory {
    /// Buffer whose memory each buffer occupies: the buffer itself, or one that its result takes over.
    owners: Vec<usize>,
    /// True for a phase whose result takes over the memory of an operand.
    is_aliased: Vec<bool>,
    /// Size in bytes, offset and lifetime of each owner.
    sizes: Vec<i64>,
    offsets: Vec<i64>,
    lifetimes: Vec<Option<Lifetime>>,
    /// Size in bytes of the arena.
    arena: i64,
}

impl Memory {
    /// Plans the arena.
    fn new(lowering: &Lowering<'_, '_>) -> Memory {
        let (owners, is_aliased) = owners(lowering);
        let mut sizes = vec![0; owners.len()];
        for (buffer, &owner) in lowering.buffers.iter().zip(&owners) {
            sizes[owner] = sizes[owner].max(buffer.bytes);
        }
        let touched = lowering.phases.iter().map(|phase| phase.buffers.iter().map(|&b| owners[b]).collect());
        let touched: Vec<BTreeSet<usize>> = touched.collect();
        let (offsets, arena) = arena::plan(&sizes, touched.iter(), ALIGN);
        let lifetimes = arena::lifetimes(sizes.len(), touched.iter());
        Memory { owners, is_aliased, sizes, offsets, lifetimes, arena }
    }

    /// Returns the number of bytes that are live while a phase runs.
    fn live(&self, phase: usize) -> i64 {
        let spans = self.lifetimes.iter().zip(&self.sizes).filter_map(|(span, size)| Some(((*span)?, size)));
        spans.filter(|((start, end), _)| *start <= phase && phase <= *end).map(|(_, size)| size).sum()
    }
}

/// Returns the owner of each buffer, and for each phase whether its result takes over the memory of an operand: if the
/// phase is the last to read the operand, and stores a result of equal size element by element.
fn owners(lowering: &Lowering<'_, '_>) -> (Vec<usize>, Vec<bool>) {
    let buffers = &lowering.buffers;
    let lifetimes = arena::lifetimes(buffers.len(), lowering.phases.iter().map(|phase| &phase.buffers));
    let mut owners: Vec<usize> = (0..buffers.len()).collect();
    let mut is_reused = vec![false; buffers.len()];
    let mut is_aliased = vec![false; lowering.phases.len()];
    for (index, phase) in lowering.phases.iter().enumerate() {
        for &(result, operand) in &phase.in_place {
            let ends_here = lifetimes[operand].is_some_and(|(_, end)| end == index);
            let begins_here = lifetimes[result].is_some_and(|(start, _)| start == index);
            if ends_here
                && begins_here
                && buffers[result].bytes == buffers[operand].bytes
                && !is_reused[operand]
                && owners[result] == result
                && !phase.unordered.contains(&operand)
            {
                (is_reused[operand], owners[result], is_aliased[index]) = (true, operand, true);
            }
        }
    }
    for buffer in 0..owners.len() {
        while owners[owners[buffer]] != owners[buffer] {
            owners[buffer] = owners[owners[buffer]];
        }
    }
    (owners, is_aliased)
}

/// Plans the arena of a lowered program, and collects the parts of the program.
fn assemble(
    ir: &RegionIr<'_>,
    grouping: &Grouping,
    lowering: &Lowering<'_, '_>,
    symbol: &str,
    machine: Machine,
) -> Program {
    let memory = Memory::new(lowering);
    let buffers = lowering.buffers.iter().enumerate().map(|(i, buffer)| ArenaBuffer {
        name: format!("{symbol}_at_w{i}"),
        offset: memory.offsets[memory.owners[i]],
        bytes: buffer.bytes,
        comment: buffer.comment.clone(),
    });
    let tensors = |values: &[Val]| {
        values.iter().map(|&v| Tensor { dtype: ir.val(v).dtype, shape: ir.shape(v).to_vec() }).collect()
    };
    let (steps, calls) = steps(ir, grouping, lowering, &memory, machine);
    Program {
        steps,
        arrays: arrays(ir, lowering),
        buffers: buffers.collect(),
        arena: memory.arena,
        inputs: tensors(&ir.inputs),
        outputs: tensors(&ir.outputs),
        kernels: kernels(&calls, &lowering.kernels, machine),
    }
}

/// Prints the functions of a program. Returns the functions, and what they call.
fn steps(
    ir: &RegionIr<'_>,
    grouping: &Grouping,
    lowering: &Lowering<'_, '_>,
    memory: &Memory,
    machine: Machine,
) -> (Vec<Step>, Calls) {
    // Multiply-add operations of each group, which its first function takes.
    let mut macs: BTreeMap<usize, i64> = BTreeMap::new();
    for (group, op) in grouping.of.iter().zip(&ir.ops).filter_map(|(group, op)| Some(((*group)?, op))) {
        *macs.entry(group).or_default() += multiply_adds(ir, op);
    }
    let mut calls = Calls::default();
    let mut steps = Vec::new();
    for (index, phase) in lowering.phases.iter().enumerate() {
        let restrict = machine.vectors && !memory.is_aliased[index];
        let dialect = C { symbol: lowering.symbol, form: lowering.form, restrict };
        let mut code = String::new();
        for function in &phase.functions {
            dialect.function(function, &mut code);
            calls.add(&dialect, &function.body);
        }
        let name = phase.functions.last().map_or(String::new(), |function| function.name.clone());
        steps.push(Step {
            comment: phase.comment.clone(),
            code,
            call: format!("    {name}(&args);\n"),
            macs: phase.group.and_then(|group| macs.remove(&group)).unwrap_or(0),
            stack: phase.functions.iter().map(stack_bytes).sum(),
            live: memory.live(index),
            name,
        });
    }
    (steps, calls)
}

/// Returns the constants that a program reads: those of the graph, and those in another layout.
fn arrays(ir: &RegionIr<'_>, lowering: &Lowering<'_, '_>) -> Vec<Array> {
    let functions = lowering.phases.iter().flat_map(|phase| &phase.functions);
    let used: BTreeSet<Place> = functions.flat_map(|function| function.uses().into_keys()).collect();
    let constants = ir.constants.iter().enumerate().filter(|(i, _)| used.contains(&Place::Constant(*i)));
    let constants = constants.map(|(i, constant)| {
        let (bytes, comment) = (constant.bytes().to_vec(), format!("{:?}", constant.shape()));
        (Place::Constant(i), ConstantArray { dtype: constant.dtype(), bytes, comment })
    });
    let packed = lowering.arrays.iter().enumerate().map(|(i, array)| (Place::Packed(i), array.clone()));
    let named = |(place, array)| Array { name: format!("{}_{place}", lowering.symbol), array };
    constants.chain(packed).map(named).collect()
}

/// Returns the reason that a program cannot contain an operator; `None` if it can.
fn check(ir: &RegionIr<'_>, op: &Op<'_>, externals: &Externals) -> Option<Unsupported> {
    let refuse = |reason: String| {
        let sources = op.node.sources.iter().map(|s| s.to_string()).collect();
        Some(Unsupported { operator: op.name.to_owned(), sources, reason })
    };
    if externals.contains(op.name) {
        return match unsupported(ir, op) {
            _ if is_view_op(op.name) => refuse("an external function cannot replace a view operator".to_owned()),
            Some(reason) => refuse(reason),
            None => None,
        };
    }
    if !is_view_op(op.name) && !is_elementwise(op.name) && program_anchor(op.name).is_none() {
        return refuse("no C code generation".to_owned());
    }
    for &value in op.inputs.iter().chain(&op.outputs) {
        let value = ir.val(value);
        if storage_type(value.dtype).is_none() || (op.name.starts_with("qnn.") && value.dtype == DType::F16) {
            return refuse(format!("unsupported element type {}", value.dtype));
        }
        if value.shape.contains(&0) {
            return refuse(format!("expected tensors with at least 1 element, found shape {:?}", value.shape));
        }
    }
    let kind = program_anchor(op.name)?;
    if op.name.starts_with("qnn.") && kind != Anchor::Pool {
        return None;
    }
    let accepts_any_dtype = matches!(kind, Anchor::Gather | Anchor::Concatenate | Anchor::Pad | Anchor::Pool);
    let dtype = ir.val(op.inputs[0]).dtype;
    if !accepts_any_dtype && computed(dtype) != DType::F32 {
        return refuse(format!("expected float32, found {dtype}"));
    }
    match check_anchor(ir, op, kind) {
        Ok(()) => None,
        Err((_, reason)) => refuse(reason),
    }
}

/// Returns the number of multiply-add operations of an operator: 0 except for convolutions and matrix products.
fn multiply_adds(ir: &RegionIr<'_>, op: &Op<'_>) -> i64 {
    let outputs: i64 = ir.shape(op.outputs[0]).iter().product();
    match program_anchor(op.name) {
        Some(Anchor::Convolution) => {
            let weight = ir.shape(op.inputs[1]);
            if op.name.ends_with("conv2d_transpose") {
                let inputs: i64 = ir.shape(op.inputs[0]).iter().product();
                return inputs * weight[1..].iter().product::<i64>();
            }
            let channels = op.attrs().text("kernel_layout").find('O').map_or(weight[0], |axis| weight[axis]);
            outputs * (weight.iter().product::<i64>() / channels.max(1))
        }
        Some(Anchor::MatrixProduct) => {
            let a = ir.shape(op.inputs[0]);
            let transpose_a = !op.name.ends_with(".dense") && op.attrs().flag("transpose_a", false);
            outputs * a[a.len() - if transpose_a { 2 } else { 1 }]
        }
        _ => 0,
    }
}

/// Returns the C text of the functions that the steps share.
fn kernels(calls: &Calls, tiles: &BTreeSet<(DType, DType)>, machine: Machine) -> String {
    let restrict = if machine.vectors { " restrict" } else { "" };
    let mut text = format!("{}#define BYOC_RESTRICT{restrict}\n\n", include_str!("prelude/compiler.c"));
    let converts = ["byoc_from_half", "byoc_to_half", "byoc_round_half"].iter().any(|name| calls.has(name));
    if converts || tiles.iter().any(|&(a, b)| a == DType::F16 || b == DType::F16) {
        let _ = writeln!(text, "{}", include_str!("prelude/half.c"));
    }
    if calls.has("byoc_vector_") {
        let _ = writeln!(text, "#define BYOC_LANES {}\n{}", machine.lanes, include_str!("prelude/vectors.c"));
    }
    for part in calls.needed(PROGRAM) {
        let _ = writeln!(text, "{part}");
    }
    tiles.iter().for_each(|&(a, b)| text.push_str(&plain_tile(a, b)));
    text
}

/// Returns the tile functions for the operand types `a` and `b`: one text, with macros for what depends on the types.
fn plain_tile(a: DType, b: DType) -> String {
    let (a_type, b_type) = (storage_type(a).unwrap_or("float"), storage_type(b).unwrap_or("float"));
    let is_float = computed(a) == DType::F32;
    let element = |dtype: DType, zero: &str| match dtype {
        DType::F32 | DType::F16 => loaded(dtype, "x"),
        _ => format!("((int32_t)x{zero})"),
    };
    let name = tile_name(a, b);
    let macros = [
        ("BYOC_PLAIN_TILE", name.clone()),
        ("BYOC_STRIDED_TILE", format!("{name}_strided")),
        ("BYOC_ZERO", if is_float { "" } else { "const int32_t zero," }.to_owned()),
        ("BYOC_LOAD(x)", element(a, " - zero")),
        ("BYOC_WEIGHT(x)", element(b, "")),
        ("BYOC_A", a_type.to_owned()),
        ("BYOC_B", b_type.to_owned()),
        ("BYOC_SUM", if is_float { "float" } else { "int32_t" }.to_owned()),
    ];
    let mut text = String::new();
    for (name, value) in &macros {
        let _ = writeln!(text, "#define {name} {value}");
    }
    text.push_str(include_str!("prelude/plain_tile.c"));
    for (name, _) in &macros {
        let _ = writeln!(text, "#undef {}", name.split('(').next().unwrap_or(name));
    }
    text.push('\n');
    text
}

//! Lowering of operator groups to phases, in execution order.

mod body;
mod contraction;
mod convolution;
mod depthwise;
mod direct;
mod external_call;
mod moves;
mod panels;
mod reduce;
mod registers;
mod resize;
mod rows;
mod shared;
mod storage;
mod tile;
mod window;

pub use direct::tile_name;
pub use external_call::unsupported;
pub use panels::packing_statements;

use crate::externals::Externals;
use crate::form::Form;
use crate::group::Grouping;
use crate::index_space::{is_same_location, memory_order};
use crate::nest::Step;
use crate::nest::body::{LoopBody, Storage};
use crate::nest::stmt::{Grid, remove_unused};
use crate::nest::{Function, Place, Stmt};
use crate::operators::anchors::{self, Anchor};
use crate::packing::Packing;
use crate::print::c_types::value_type;
use crate::print::comment;
use crate::types::is_computed_on_device;
use byoc_plugin_api::DType;
use byoc_plugin_support::region::{Op, OpId, RegionIr, Val};
use byoc_plugin_support::view::{View, count};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Part of a region whose tasks, or work-items, may run in parallel. Phases run one after the other.
#[derive(Debug, Default)]
pub struct Phase {
    /// Kind of the loop nest, in one word.
    pub kind: &'static str,
    /// Description of the computation, one entry per line.
    pub comment: Vec<String>,
    /// Functions; the region calls the last one.
    pub functions: Vec<Function>,
    /// Number of tasks that the function is divided into.
    pub tasks: i64,
    /// Work-items of the function on a device.
    pub grid: Option<Grid>,
    /// Nest before the schedule.
    pub nest: Vec<Stmt>,
    /// Steps that transformed the nest.
    pub schedule: Vec<Step>,
    /// Workspace buffers that the phase accesses.
    pub buffers: BTreeSet<usize>,
    /// Buffers that the phase does not access in the order of its points.
    pub unordered: BTreeSet<usize>,
    /// Pairs of a result buffer and an operand buffer that are accessed at the same positions.
    pub in_place: BTreeSet<(usize, usize)>,
    /// Group whose operators the phase computes.
    pub group: Option<usize>,
}

impl Phase {
    /// Creates a phase of one task that accesses `operands` in an arbitrary order and computes a loop body.
    pub fn of(kind: &'static str, comment: Vec<String>, operands: &[Place], body: &LoopBody) -> Phase {
        let mut phase = Phase { kind, comment, tasks: 1, ..Phase::default() };
        phase.unordered.extend(operands.iter().filter_map(|place| place.buffer()));
        phase.touch_all(body);
        phase
    }

    /// Records the results that a loop body computes at the positions of its operands.
    fn touch_all(&mut self, body: &LoopBody) {
        for store in &body.stores {
            for load in &body.loads {
                let (Place::Work(result), Place::Work(operand)) = (store.place, load.place) else { continue };
                let is_same = |view: &View| is_same_location(view, &store.view);
                let is_aligned = body.loads.iter().filter(|l| l.place == load.place).all(|l| is_same(&l.view));
                if result != operand && is_aligned && load.dtype.size() == store.dtype.size() {
                    self.in_place.insert((result, operand));
                }
            }
        }
    }
}

/// Buffer in the workspace.
#[derive(Debug)]
pub struct Buffer {
    /// Size in bytes.
    pub bytes: i64,
    /// Description of the content.
    pub comment: String,
}

/// Constant packed at load time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedConstant {
    /// Index of the region's constant; `None` for zeros.
    pub constant: Option<usize>,
    /// Element type.
    pub dtype: DType,
    /// Order of the elements.
    pub packing: Packing,
    /// Name of the number of columns in a panel, where the C compiler chooses it by the length of its vectors.
    pub width: Option<String>,
    /// Description of the content.
    pub comment: String,
}

/// Constant of a program, in the layout that the generated code reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConstantArray {
    /// Element type.
    pub dtype: DType,
    /// Elements, little-endian.
    pub bytes: Vec<u8>,
    /// Description of the content.
    pub comment: String,
}

/// Returns the attribute `axis` of an operator.
///
/// # Errors
/// If the axis is out of range.
pub fn axis(op: &Op<'_>, default: i64, rank: usize) -> Result<usize, String> {
    let invalid = || format!("{}: axis {} is out of range for rank {rank}", op.name, op.attrs().int("axis", default));
    op.attrs().axis("axis", default, rank).ok_or_else(invalid)
}

/// State and result of lowering a region. Sibling modules add `impl` blocks that lower the individual operator kinds.
pub struct Lowering<'p, 'a> {
    /// Region being lowered.
    pub ir: &'p RegionIr<'a>,
    /// Groups of the region.
    pub grouping: &'p Grouping,
    /// Symbol of the region, the prefix of all names in the C file.
    pub symbol: &'p str,
    /// Form of the generated code.
    pub form: Form,
    /// External functions that a program calls.
    pub externals: &'p Externals,
    /// Storage assigned to values so far.
    pub storage: BTreeMap<Val, Storage>,
    /// Buffers in the workspace.
    pub buffers: Vec<Buffer>,
    /// Constants packed at load time.
    pub packed: Vec<PackedConstant>,
    /// Constants of a program, in the layout that the generated code reads.
    pub arrays: Vec<ConstantArray>,
    /// Operand element types of the tile functions that a program uses.
    pub kernels: BTreeSet<(DType, DType)>,
    /// Phases emitted so far.
    pub phases: Vec<Phase>,
}

impl Lowering<'_, '_> {
    /// Describes an operator for the comment of a phase: name, shapes and source nodes.
    pub fn describe(&self, id: OpId) -> String {
        let op = self.ir.get(id);
        let shape = |v: &Val| {
            let dims: Vec<String> = self.ir.shape(*v).iter().map(i64::to_string).collect();
            format!("({})", dims.join(", "))
        };
        let inputs: Vec<String> = op.inputs.iter().map(shape).collect();
        let outputs: Vec<String> = op.outputs.iter().map(shape).collect();
        let mut text = format!("{}: {} -> {}", op.name, inputs.join(", "), outputs.join(", "));
        if !op.node.sources.is_empty() {
            let sources: Vec<&str> = op.node.sources.iter().map(|s| s.as_str()).collect();
            let _ = write!(text, "  [{}]", sources.join(", "));
        }
        // Names from the model must neither end the comment nor continue it.
        comment(&text).replace(['\n', '\r', '\\'], " ")
    }

    /// Returns the name of the next phase's functions.
    pub fn phase_name(&self) -> String {
        format!("{}_phase{}", self.symbol, self.phases.len())
    }

    /// Adds a buffer to the workspace and returns its index.
    pub fn buffer(&mut self, elements: i64, dtype: DType, comment: String) -> usize {
        // Vector code may read, but never writes, up to one vector past the end.
        let padding = if self.form == Form::Tasks { 64 } else { 0 };
        let bytes = elements * dtype.size() as i64 + padding;
        self.buffers.push(Buffer { bytes, comment });
        self.buffers.len() - 1
    }

    /// Adds a phase with one function.
    pub fn push(&mut self, mut phase: Phase, body: Vec<Stmt>) {
        phase.functions.push(Function { name: self.phase_name(), body, ..Function::default() });
        self.push_functions(phase);
    }

    /// Adds a phase with its functions.
    pub fn push_functions(&mut self, mut phase: Phase) {
        for function in &mut phase.functions {
            remove_unused(&mut function.body);
            phase.buffers.extend(function.uses().keys().filter_map(|place| place.buffer()));
        }
        self.phases.push(phase);
    }

    /// Returns true if the form computes values of an element type.
    pub fn computes(&self, dtype: DType) -> bool {
        match self.form {
            Form::Device(_) => is_computed_on_device(dtype),
            _ => value_type(dtype).is_some(),
        }
    }

    /// Returns the index of a constant array in the program; adds the array unless the program already has an equal
    /// one.
    pub fn constant_array(&mut self, array: ConstantArray) -> usize {
        position_or_push(&mut self.arrays, array, |a, b| a.dtype == b.dtype && a.bytes == b.bytes)
    }

    /// Returns the index of a packed constant; adds it unless there is an equal one.
    pub fn packed_constant(&mut self, packed: PackedConstant) -> usize {
        position_or_push(&mut self.packed, packed, PackedConstant::eq)
    }

    /// Lowers one group.
    fn lower_group(&mut self, group_index: usize) -> Result<(), String> {
        let grouping = self.grouping;
        let group = &grouping.groups[group_index];
        let mut comment: Vec<String> = group.anchor.iter().map(|&op| self.describe(op)).collect();
        comment.extend(group.members.iter().map(|&op| self.describe(op)));
        let Some(id) = group.anchor else {
            let body = self.loop_body(group_index, None)?;
            self.map("map", &body, comment);
            return Ok(());
        };
        let name = self.ir.get(id).name;
        if self.externals.contains(name) {
            return self.lower_external(id, comment);
        }
        match anchors::program_anchor(name) {
            Some(Anchor::Convolution) => self.convolution(group_index, id, comment),
            Some(Anchor::MatrixProduct) => self.matrix_product(group_index, id, comment),
            Some(Anchor::Pool) => self.pool(group_index, id, comment),
            Some(Anchor::Normalize) => self.normalize(group_index, id, comment),
            Some(Anchor::Reduce) => self.reduce(group_index, id, comment),
            Some(Anchor::Gather) => self.gather(group_index, id, comment),
            Some(Anchor::Pad) => self.pad(group_index, id, comment),
            Some(Anchor::Resize) => self.resize(group_index, id, comment),
            Some(Anchor::Concatenate) => self.concatenate(id, comment),
            None => Err(format!("no code generation for {name}")),
        }
    }

    /// Returns the storage for the result of a concatenation in a program if the operands are already adjacent in
    /// memory, in order, for example as operands of a longer concatenation.
    fn adjacent_storage(&mut self, id: OpId, axis: usize) -> Result<Option<Storage>, String> {
        let op = self.ir.get(id);
        let is_stored = self.ir.outputs.contains(&op.outputs[0]) || self.storage.contains_key(&op.outputs[0]);
        if self.form == Form::Tasks || op.name != "concatenate" || is_stored {
            return Ok(None);
        }
        let operands = op.inputs.iter().map(|&input| self.resolve(input)).collect::<Result<Vec<Storage>, String>>()?;
        let first_operand = &operands[0];
        let (stride, mut end) = (first_operand.view.strides[axis], first_operand.view.offset);
        for operand in &operands {
            let has_same_layout = (0..operand.view.shape.len()).all(|d| {
                operand.view.strides[d] == first_operand.view.strides[d] || (d != axis && operand.view.shape[d] == 1)
            });
            if operand.place != first_operand.place || !has_same_layout || operand.view.offset != end {
                return Ok(None);
            }
            end += stride * operand.view.shape[axis];
        }
        let view = View { shape: self.ir.shape(op.outputs[0]).to_vec(), ..first_operand.view.clone() };
        Ok(Some(Storage::new(first_operand.place, view)))
    }

    /// Copies the operands that were not computed in place into the result of a concatenation.
    fn concatenate(&mut self, id: OpId, comment: Vec<String>) -> Result<(), String> {
        let op = self.ir.get(id);
        let result = op.outputs[0];
        let rank = self.ir.shape(result).len();
        let axis = axis(op, 0, rank)?;
        if let Some(storage) = self.adjacent_storage(id, axis)? {
            self.storage.insert(result, storage);
            return Ok(());
        }
        let first_operand = self.resolve(op.inputs[0])?;
        let order = if count(&first_operand.view.shape) > 1 && op.name == "concatenate" {
            memory_order(&first_operand.view)
        } else {
            (0..rank).collect()
        };
        let destination = self
            .place_for(result, &order, &comment[0], |_| true)
            .ok_or("expected storage for the result of a concatenation, found none")?;
        let dtype = self.ir.val(result).dtype;
        let mut start = 0;
        let is_stack = op.name == "stack";
        for &input in &op.inputs {
            let size = if is_stack { 1 } else { self.ir.shape(input)[axis] };
            let mut view = destination.view.slice(axis, start, 1, size);
            if is_stack {
                view.shape.remove(axis);
                view.strides.remove(axis);
            }
            let slice = Storage::new(destination.place, view);
            let source = self.resolve(input)?;
            if source.place != slice.place || source.view != slice.view {
                self.copy(&source, &slice, dtype, &comment[0]);
            }
            start += size;
        }
        Ok(())
    }
}

/// Returns the index of the item that equals `item`, which is added if there is none.
fn position_or_push<T>(items: &mut Vec<T>, item: T, is_equal: impl Fn(&T, &T) -> bool) -> usize {
    items.iter().position(|existing| is_equal(existing, &item)).unwrap_or_else(|| {
        items.push(item);
        items.len() - 1
    })
}

/// Lowers a region.
///
/// # Errors
/// If code generation does not support an operator, its types or its attributes.
pub fn lower<'p, 'a>(
    ir: &'p RegionIr<'a>,
    grouping: &'p Grouping,
    symbol: &'p str,
    form: Form,
    externals: &'p Externals,
) -> Result<Lowering<'p, 'a>, String> {
    let mut lowering = Lowering {
        ir,
        grouping,
        symbol,
        form,
        externals,
        storage: BTreeMap::new(),
        buffers: Vec::new(),
        packed: Vec::new(),
        arrays: Vec::new(),
        kernels: BTreeSet::new(),
        phases: Vec::new(),
    };
    for group in 0..grouping.groups.len() {
        let first_phase = lowering.phases.len();
        lowering.lower_group(group)?;
        if let Some(last_phase) = lowering.phases[first_phase..].last_mut() {
            last_phase.group = Some(group);
        }
    }
    for (i, &value) in ir.outputs.iter().enumerate() {
        let source = lowering.resolve(value)?;
        if source.place != Place::Output(i) {
            let output = Storage::new(Place::Output(i), View::dense(ir.shape(value)));
            lowering.copy(&source, &output, ir.val(value).dtype, "result");
        }
    }
    Ok(lowering)
}

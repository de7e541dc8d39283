//! Storage of every tensor, and the loop body of each group over that storage.
//!
//! Activations of convolutions and pooling are stored with the channels innermost, so that the code is vectorized over
//! channels. The input of a convolution has a zero border as wide as the padding, so that taps need no bounds checks.

use crate::elementwise::{expression, operand_view};
use crate::externals::Externals;
use crate::form::{Concatenation, Form};
use crate::group::{Grouping, index_in};
use crate::index_space::{is_same_location, memory_order, pull_back};
use crate::layout;
use crate::literals::{floats, int_literal, literal, storage_type, value_type};
use crate::loop_body::{Load, LoopBody, Place, Storage, Store};
use crate::quantized::{self, Rescale};
use crate::view_ops::{is_view_op, view_through};
use byoc_plugin_api::DType;
use byoc_plugin_support::region::{Def, Op, OpId, RegionIr, Val};
use byoc_plugin_support::view::View;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Part of the region function whose tasks may run in parallel. Phases run sequentially.
#[derive(Debug, Default)]
pub struct Phase {
    /// Description of the computation, one entry per line.
    pub comment: Vec<String>,
    /// Functions and constants defined before the region function.
    pub code: String,
    /// Statements in the region function.
    pub call: String,
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
    /// Records that the phase accesses `place` in an arbitrary order.
    pub fn touch(&mut self, place: Place) {
        if let Place::Work(buffer) = place {
            self.buffers.insert(buffer);
            self.unordered.insert(buffer);
        }
    }

    /// Records that the phase accesses all memory of a loop body.
    pub fn touch_all(&mut self, body: &LoopBody) {
        for (place, _) in body.places() {
            if let Place::Work(buffer) = place {
                self.buffers.insert(buffer);
            }
        }
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
#[derive(Debug)]
pub struct PackedConstant {
    /// Number of float32 elements.
    pub floats: i64,
    /// Description of the content.
    pub comment: String,
    /// Statements of the packing function that write the constant.
    pub code: String,
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

/// Returns the bytes of the element at `index` in a constant; `size` is the size of an element in bytes.
///
/// # Errors
/// If the index is out of range.
pub(crate) fn weight_bytes(bytes: &[u8], index: i64, size: usize) -> Result<&[u8], String> {
    let start = usize::try_from(index).ok().and_then(|index| index.checked_mul(size));
    start
        .and_then(|start| bytes.get(start..)?.get(..size))
        .ok_or_else(|| format!("expected weight indices < {}, found {index}", bytes.len() / size))
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

impl<'p, 'a> Lowering<'p, 'a> {
    /// Creates the initial state, without lowered groups.
    pub fn new(
        ir: &'p RegionIr<'a>,
        grouping: &'p Grouping,
        symbol: &'p str,
        form: Form,
        externals: &'p Externals,
    ) -> Lowering<'p, 'a> {
        Lowering {
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
        }
    }

    /// Formats the declaration of a pointer in a task function.
    pub fn pointer(&self, place: Place, dtype: DType, qualifier: &str) -> String {
        let ty = storage_type(dtype).unwrap_or("void");
        if let Some(machine) = self.machine() {
            return self.program_pointer(place, ty, qualifier, machine.vectors);
        }
        let source = match place {
            Place::Input(i) => format!("args->in[{i}]"),
            Place::Output(i) => format!("args->out[{i}]"),
            Place::Constant(i) => format!("args->constants[{i}]"),
            Place::Packed(i) => format!("(const void *)(args->packed + {}_at_p{i})", self.symbol),
            Place::Work(i) => format!("(void *)(args->work + {}_at_w{i})", self.symbol),
        };
        format!("    {qualifier}{ty} *restrict {place} = {source};\n")
    }

    fn program_pointer(&self, place: Place, ty: &str, qualifier: &str, restrict: bool) -> String {
        let symbol = self.symbol;
        let source = match place {
            Place::Input(i) => format!("args->in[{i}]"),
            Place::Output(i) => format!("args->out[{i}]"),
            Place::Constant(i) => format!("{symbol}_k{i}"),
            Place::Packed(i) => format!("{symbol}_p{i}"),
            Place::Work(i) => format!("(void *)(args->work + {symbol}_at_w{i})"),
        };
        let restrict = if restrict { "restrict " } else { "" };
        format!("    {qualifier}{ty} *{restrict}{place} = {source};\n")
    }

    /// Formats all pointer declarations of a loop body.
    pub fn pointers(&self, body: &LoopBody) -> String {
        let mut text = String::new();
        for (place, dtype) in body.places() {
            let is_written = body.stores.iter().any(|s| s.place == place);
            text.push_str(&self.pointer(place, dtype, if is_written { "" } else { "const " }));
        }
        text
    }

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
        text.replace("*/", "* /").replace("/*", "/ *").replace(['\n', '\r', '\\'], " ")
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

    /// Returns the storage of a value, copying the value if a view operator cannot be expressed as a strided view.
    pub fn resolve(&mut self, value: Val) -> Result<Storage, String> {
        let mut chain = Vec::new();
        let mut current = value;
        let mut storage = loop {
            if let Some(storage) = self.storage.get(&current) {
                break storage.clone();
            }
            let dense = View::dense(self.ir.shape(current));
            match self.ir.val(current).def {
                Def::Input(i) => break Storage::new(Place::Input(i), dense),
                Def::Constant(i) => break Storage::new(Place::Constant(i), dense),
                Def::Op(op, k) if is_view_op(self.ir.get(op).name) => {
                    chain.push((op, k, current));
                    current = self.ir.get(op).inputs[0];
                }
                Def::Op(op, _) => {
                    let name = self.ir.get(op).name;
                    return Err(format!(
                        "expected operators in topological order, found a use of {name} before its definition"
                    ));
                }
            }
        };
        for (id, k, value) in chain.into_iter().rev() {
            let op = self.ir.get(id);
            storage = match view_through(self.ir, op, k, &storage.view) {
                Some(view) => {
                    let border = match op.name {
                        "transpose" => {
                            let rank = view.shape.len();
                            let axes = op.attrs().permutation(rank).ok_or_else(|| {
                                let found = op.attrs().ints("axes").unwrap_or_default();
                                format!("transpose: axes: expected a permutation of {rank} axes, found {found:?}")
                            })?;
                            axes.into_iter().map(|a| storage.border[a]).collect()
                        }
                        "copy" => storage.border,
                        _ => vec![(0, 0); view.shape.len()],
                    };
                    Storage { place: storage.place, view, border }
                }
                None => {
                    let shape = storage.view.shape.clone();
                    let dense = self.dense_copy(&storage, self.ir.val(value).dtype, &self.describe(id))?;
                    let view = view_through(self.ir, op, k, &View::dense(&shape));
                    let view = view.ok_or_else(|| {
                        let result = self.ir.shape(value);
                        format!(
                            "{}: expected an operand that can be viewed as shape {result:?}, found shape {shape:?}",
                            op.name
                        )
                    })?;
                    Storage::new(dense.place, view)
                }
            };
            self.storage.insert(value, storage.clone());
        }
        Ok(storage)
    }

    /// Emits a row-major copy in the workspace.
    pub fn dense_copy(&mut self, source: &Storage, dtype: DType, comment: &str) -> Result<Storage, String> {
        let order: Vec<usize> = (0..source.view.shape.len()).collect();
        let destination = self.allocate(&source.view.shape, &order, &[], dtype, comment);
        self.copy(source, &destination, dtype, comment)?;
        Ok(destination)
    }

    /// Emits a phase that copies a tensor.
    pub fn copy(&mut self, source: &Storage, destination: &Storage, dtype: DType, comment: &str) -> Result<(), String> {
        // A float16 is copied as a bit pattern, without conversion.
        let dtype = if dtype == DType::F16 { DType::U16 } else { dtype };
        let body = LoopBody {
            domain: destination.view.shape.clone(),
            loads: vec![Load { name: "x".into(), place: source.place, view: source.view.clone(), dtype }],
            lines: Vec::new(),
            stores: vec![Store { value: "x".into(), place: destination.place, view: destination.view.clone(), dtype }],
            acc: None,
        };
        self.map(&body, vec![format!("copy to another layout, for {comment}")])
    }

    /// Allocates a tensor in the workspace with its dimensions in `order`, outermost first, and a zero border.
    pub fn allocate(
        &mut self,
        shape: &[i64],
        order: &[usize],
        border: &[(i64, i64)],
        dtype: DType,
        comment: &str,
    ) -> Storage {
        let border: Vec<(i64, i64)> = (0..shape.len()).map(|d| border.get(d).copied().unwrap_or((0, 0))).collect();
        let strides = bordered_strides(shape, order, &border);
        let offset = (0..shape.len()).map(|d| border[d].0 * strides[d]).sum();
        let elements = (0..shape.len()).map(|d| shape[d] + border[d].0 + border[d].1).product();
        let buffer = self.buffer(elements, dtype, comment.to_owned());
        let place = Place::Work(buffer);
        if border.iter().any(|&b| b != (0, 0)) {
            let mut phase = Phase { comment: vec![format!("the zero border of {place}")], ..Phase::default() };
            phase.buffers.insert(buffer);
            let pointer = format!("(void *)((char *)work + {}_at_{place})", self.symbol);
            phase.call = border_code(&pointer, shape, order, &border, elements);
            self.phases.push(phase);
        }
        Storage { place, view: View { shape: shape.to_vec(), strides, offset }, border }
    }

    /// Returns a value with its channels innermost and a zero border at least as wide as `border`; with
    /// `reads_past_end`, the memory is also readable up to one vector past the end. Emits a copy if the value is stored
    /// differently.
    pub fn channels_last(
        &mut self,
        value: Val,
        channel: usize,
        border: &[(i64, i64)],
        reads_past_end: bool,
        comment: &str,
    ) -> Result<Storage, String> {
        let storage = self.resolve(value)?;
        if self.form != Form::Tasks {
            // A program reads any layout in place and skips the taps in the padding.
            return Ok(storage);
        }
        let is_innermost = storage.view.strides[channel] == 1 || storage.view.shape[channel] == 1;
        let has_border = border.iter().zip(&storage.border).all(|(required_pads, existing_pads)| {
            required_pads.0 <= existing_pads.0 && required_pads.1 <= existing_pads.1
        });
        let has_nonzero_border = border.iter().any(|&b| b != (0, 0));
        // Only buffers in the workspace may be read past the end.
        let is_readable = !reads_past_end || matches!(storage.place, Place::Work(_));
        if is_innermost && (has_border || !has_nonzero_border) && is_readable {
            return Ok(storage);
        }
        let mut order: Vec<usize> = (0..storage.view.shape.len()).filter(|&d| d != channel).collect();
        order.push(channel);
        let dtype = self.ir.val(value).dtype;
        let shape = storage.view.shape.clone();
        let destination = self.allocate(&shape, &order, border, dtype, comment);
        self.copy(&storage, &destination, dtype, comment)?;
        Ok(destination)
    }

    /// Returns the widest zero border that any user of a value needs, for each dimension.
    fn required_border(&self, value: Val) -> Vec<(i64, i64)> {
        let rank = self.ir.shape(value).len();
        let mut border = vec![(0, 0); rank];
        if self.form != Form::Tasks {
            return border;
        }
        // Values to visit, each with a map from its dimensions to the dimensions of `value`.
        let mut worklist = vec![(value, (0..rank).collect::<Vec<usize>>())];
        let mut budget = 64;
        while let Some((value, dims)) = worklist.pop() {
            budget -= 1;
            if budget == 0 {
                break;
            }
            for &user in &self.ir.val(value).users {
                let op = self.ir.get(user);
                match op.name {
                    "transpose" => {
                        let Some(axes) = op.attrs().permutation(dims.len()) else { continue };
                        worklist.push((op.outputs[0], axes.iter().map(|&a| dims[a]).collect()));
                    }
                    "concatenate" => worklist.push((op.outputs[0], dims.clone())),
                    _ if op.inputs[0] == value => {
                        for (d, required_pads) in layout::border(self.ir, op).into_iter().enumerate() {
                            let existing_pads = &mut border[dims[d]];
                            *existing_pads =
                                (existing_pads.0.max(required_pads.0), existing_pads.1.max(required_pads.1));
                        }
                    }
                    _ => {}
                }
            }
        }
        border
    }

    /// Returns true if a value is used outside the group, directly or through view operators.
    fn is_used_outside(&self, value: Val, group: usize) -> bool {
        let mut worklist = vec![value];
        while let Some(value) = worklist.pop() {
            if self.ir.outputs.contains(&value) {
                return true;
            }
            for &user in &self.ir.val(value).users {
                let op = self.ir.get(user);
                if is_view_op(op.name) {
                    worklist.extend(&op.outputs);
                } else if self.grouping.of[user.index()] != Some(group) {
                    return true;
                }
            }
        }
        false
    }

    /// Chooses the storage of a value that is about to be computed: the output of the region, a slice of a
    /// concatenation's result, or a new buffer with the dimensions in `order`; `None` if no candidate satisfies `fits`.
    pub fn place_for(
        &mut self,
        value: Val,
        order: &[usize],
        comment: &str,
        fits: impl Fn(&View) -> bool,
    ) -> Option<Storage> {
        if let Some(storage) = self.storage.get(&value) {
            return Some(storage.clone()).filter(|s| fits(&s.view));
        }
        let shape = self.ir.shape(value).to_vec();
        let dtype = self.ir.val(value).dtype;
        let order = row_major_if_equal(&shape, order);
        // A program writes its results in place, whatever the memory order.
        let is_row_major = self.form != Form::Tasks || order.windows(2).all(|w| w[0] < w[1]);
        let output = self.ir.outputs.iter().position(|&v| v == value);
        let dense = View::dense(&shape);
        if let Some(i) = output.filter(|_| is_row_major && fits(&dense)) {
            let storage = Storage::new(Place::Output(i), dense);
            self.storage.insert(value, storage.clone());
            return Some(storage);
        }
        if let Some(slice) = self.slice_of_concatenation(value, &order, comment) {
            if fits(&slice.view) {
                return Some(slice);
            }
            self.storage.remove(&value);
        }
        let border = self.required_border(value);
        let bordered_view = View { strides: bordered_strides(&shape, &order, &border), ..dense };
        let border = if fits(&bordered_view) { border } else { Vec::new() };
        let storage = self.allocate(&shape, &order, &border, dtype, comment);
        if !fits(&storage.view) {
            return None;
        }
        self.storage.insert(value, storage.clone());
        Some(storage)
    }

    /// Returns the slice of a concatenation's result that holds `value`, if `value` can be computed in place.
    fn slice_of_concatenation(&mut self, value: Val, order: &[usize], comment: &str) -> Option<Storage> {
        // Nested concatenations, from the innermost to the outermost.
        let mut path = Vec::new();
        let mut current = value;
        let policy = self.concatenations();
        if policy == Concatenation::Copied {
            return None;
        }
        let is_concatenation = |user: &&OpId| self.ir.get(**user).name == "concatenate";
        while let Some(&user) = match policy {
            Concatenation::Last => self.ir.val(current).users.iter().rev().find(is_concatenation),
            _ => self.ir.val(current).users.iter().find(is_concatenation),
        } {
            let op = self.ir.get(user);
            if self.ir.outputs.contains(&op.outputs[0]) || path.len() > 256 {
                break;
            }
            path.push((user, current));
            current = op.outputs[0];
        }
        if path.is_empty() {
            return None;
        }
        let dtype = self.ir.val(current).dtype;
        let mut storage = match self.storage.get(&current) {
            Some(storage) => storage.clone(),
            None => {
                let shape = self.ir.shape(current).to_vec();
                let order = row_major_if_equal(&shape, order);
                let border = self.required_border(current);
                let storage = self.allocate(&shape, &order, &border, dtype, comment);
                self.storage.insert(current, storage.clone());
                storage
            }
        };
        for (concatenation, operand) in path.into_iter().rev() {
            let op = self.ir.get(concatenation);
            let rank = storage.view.shape.len();
            let axis = axis(op, 0, rank).ok()?;
            let mut start = 0;
            for &input in &op.inputs {
                if input == operand {
                    break;
                }
                start += self.ir.shape(input)[axis];
            }
            let size = self.ir.shape(operand)[axis];
            let mut border = storage.border.clone();
            if storage.border[axis] != (0, 0) {
                border[axis] = (0, 0);
            }
            storage = Storage { place: storage.place, view: storage.view.slice(axis, start, 1, size), border };
            self.storage.entry(operand).or_insert_with(|| storage.clone());
        }
        // A value that occurs twice in the concatenation is computed in place at its first occurrence.
        Some(storage)
    }

    /// Builds the loop body of a group, resolves its operands and chooses the storage of its results. `order` is the
    /// memory order of the results' dimensions; the default is the order of the operand that is broadcast along the
    /// fewest dimensions. Returns the body and the order.
    pub fn loop_body(&mut self, group_index: usize, order: Option<&[usize]>) -> Result<(LoopBody, Vec<usize>), String> {
        let grouping: &'p Grouping = self.grouping;
        let group = &grouping.groups[group_index];
        let mut body = LoopBody { domain: group.domain.clone(), ..LoopBody::default() };
        let mut names: BTreeMap<Val, String> = BTreeMap::new();
        let mut loaded_names: BTreeMap<(Val, Vec<i64>, i64), String> = BTreeMap::new();
        let mut preferred_order: Option<(usize, Vec<usize>)> = None;
        if let Some(anchor) = group.anchor {
            let result = self.ir.get(anchor).outputs[0];
            let is_half = self.ir.val(result).dtype == DType::F16;
            if is_half {
                body.lines.push("const float rounded = byoc_round_half(acc);".into());
            }
            names.insert(result, if is_half { "rounded" } else { "acc" }.into());
            body.acc = Some("acc".into());
        }
        for &member in &group.members {
            let op: &Op<'_> = self.ir.get(member);
            let index = group.index[&op.outputs[0]].clone();
            let mut args = Vec::new();
            for (i, &input) in op.inputs.iter().enumerate() {
                if op.name == "qnn.requantize" && matches!(i, 1 | 3) {
                    if i == 1 {
                        args.extend(self.rescaling(op, &index, &group.domain, &mut body)?);
                    }
                    continue;
                }
                if let Some((source, _)) = index_in(self.ir, group, input) {
                    let name = names
                        .get(&source)
                        .ok_or("expected operators in topological order, found a use before its definition")?;
                    args.push(name.clone());
                    continue;
                }
                if let Some(text) = self.scalar(input) {
                    args.push(text);
                    continue;
                }
                let storage = self.resolve(input)?;
                let broadcast_view = operand_view(self.ir, op, i, &storage.view).ok_or_else(|| {
                    let (operand, result) = (&storage.view.shape, self.ir.shape(op.outputs[0]));
                    format!(
                        "{}: operand {i}: expected a shape that broadcasts to {result:?}, found {operand:?}",
                        op.name
                    )
                })?;
                let dtype = self.ir.val(input).dtype;
                let (place, view) = match pull_back(&index, &broadcast_view, &group.domain) {
                    Some(view) => (storage.place, view),
                    None => {
                        // A copy in the layout of the domain is always readable as a strided view.
                        let dense: Vec<usize> = (0..group.domain.len()).collect();
                        let destination = self.allocate(&group.domain, &dense, &[], dtype, &self.describe(member));
                        let source = Storage::new(storage.place, broadcast_view);
                        let target = Storage::new(destination.place, index.clone());
                        self.copy(&source, &target, dtype, &self.describe(member))?;
                        (destination.place, destination.view)
                    }
                };
                let distinct_dims = view.strides.iter().zip(&view.shape).filter(|(s, d)| **s != 0 || **d == 1).count();
                if preferred_order.as_ref().is_none_or(|(best_count, _)| distinct_dims > *best_count) {
                    preferred_order = Some((distinct_dims, memory_order(&view)));
                }
                let key = (input, view.strides.clone(), view.offset);
                let name = loaded_names.entry(key).or_insert_with(|| {
                    let name = format!("x{}", body.loads.len());
                    body.loads.push(Load { name: name.clone(), place, view, dtype });
                    name
                });
                args.push(name.clone());
            }
            let text = expression(self.ir, op, &args)
                .ok_or_else(|| format!("{}: unsupported element type {}", op.name, self.ir.val(op.inputs[0]).dtype))?;
            let name = format!("t{}", body.lines.len());
            let dtype = self.ir.val(op.outputs[0]).dtype;
            let ty = value_type(dtype)
                .ok_or_else(|| format!("{}: unsupported element type {dtype} of the result", op.name))?;
            // C computes with integers of at least 32 bits; programs convert the result to a narrower type explicitly.
            let is_narrow = dtype.size() < 4 && self.form != Form::Tasks;
            let text = match dtype {
                DType::F16 => format!("byoc_round_half({text})"),
                _ if is_narrow => format!("({ty})({text})"),
                _ => text,
            };
            body.lines.push(format!("const {ty} {name} = {text}; /* {} */", op.name));
            names.insert(op.outputs[0], name);
        }
        let dense: Vec<usize> = (0..group.domain.len()).collect();
        let order = match (order, preferred_order) {
            (Some(order), _) => order.to_vec(),
            (None, Some((_, order))) => order,
            (None, None) => dense,
        };
        for (value, name) in &names {
            if !self.is_used_outside(*value, group_index) {
                continue;
            }
            let index = &group.index[value];
            // Order of the value's dimensions that corresponds to the order `order` of the domain's dimensions.
            let value_order = self.domain_order(index, &group.domain, &order);
            let comment = format!("{} of {}", name, self.symbol);
            let comment = self.ir.producer(*value).map_or(comment, |op| self.describe(op));
            let domain = &group.domain;
            let is_readable = |view: &View| pull_back(index, view, domain).is_some();
            let dtype = self.ir.val(*value).dtype;
            let storage = match self.place_for(*value, &value_order, &comment, is_readable) {
                Some(storage) => storage,
                None => {
                    // Storage in the layout of the domain is always possible.
                    let dense: Vec<usize> = (0..domain.len()).collect();
                    let place = self.allocate(domain, &dense, &[], dtype, &comment).place;
                    let storage = Storage::new(place, index.clone());
                    self.storage.insert(*value, storage.clone());
                    storage
                }
            };
            let view = pull_back(index, &storage.view, domain).ok_or("expected storage for the result, found none")?;
            body.stores.push(Store { value: name.clone(), place: storage.place, view, dtype });
        }
        Ok((body, order))
    }

    /// Returns the multiplier and the shift of a `qnn.requantize` as operands of the loop body: literals, or loads of
    /// per-channel constants. Empty if the scales are equal.
    fn rescaling(
        &mut self,
        op: &Op<'_>,
        index: &View,
        domain: &[i64],
        body: &mut LoopBody,
    ) -> Result<Vec<String>, String> {
        let rescales = quantized::multipliers(self.ir, op)?;
        if let [single_rescale] = rescales[..] {
            return Ok(match single_rescale {
                Rescale::Same => Vec::new(),
                Rescale::Fixed { multiplier, shift } => vec![multiplier.to_string(), shift.to_string()],
                Rescale::Float(ratio) => vec![literal(DType::F32, f64::from(ratio))],
            });
        }
        let mut columns: Vec<(&str, DType, Vec<u8>)> = Vec::new();
        if let Some(Rescale::Float(_)) = rescales.first() {
            let ratio_bytes = rescales
                .iter()
                .flat_map(|rescale| if let Rescale::Float(x) = rescale { x.to_le_bytes() } else { [0; 4] });
            columns.push(("ratios of scales", DType::F32, ratio_bytes.collect()));
        } else {
            let bytes_of =
                |get: fn(&Rescale) -> i32| rescales.iter().flat_map(|rescale| get(rescale).to_le_bytes()).collect();
            let multiplier =
                |rescale: &Rescale| if let Rescale::Fixed { multiplier, .. } = rescale { *multiplier } else { 0 };
            let shift = |rescale: &Rescale| if let Rescale::Fixed { shift, .. } = rescale { *shift } else { 1 };
            columns.push(("multipliers of a requantization", DType::I32, bytes_of(multiplier)));
            columns.push(("shifts of a requantization", DType::I32, bytes_of(shift)));
        }
        let axis = axis(op, -1, index.shape.len())?;
        let mut strides = vec![0; index.shape.len()];
        strides[axis] = 1;
        let axis_view = View { shape: index.shape.clone(), strides, offset: 0 };
        let mut names = Vec::new();
        for (comment, dtype, bytes) in columns {
            let array = self.constant_array(ConstantArray { dtype, bytes, comment: comment.to_owned() });
            let view = pull_back(index, &axis_view, domain)
                .ok_or("qnn.requantize: expected an unchanged scale axis, found a reshaped one")?;
            let name = format!("x{}", body.loads.len());
            body.loads.push(Load { name: name.clone(), place: Place::Packed(array), view, dtype });
            names.push(name);
        }
        Ok(names)
    }

    /// Translates the memory order `order` of the domain's dimensions to the dimensions of a value.
    fn domain_order(&self, index: &View, domain: &[i64], order: &[usize]) -> Vec<usize> {
        let rank = index.shape.len();
        if index.shape == domain && index.is_dense() {
            return order.to_vec();
        }
        // Strides of the domain stored in `order`; they determine the order of a value that permutes the domain.
        let mut strides = vec![0; domain.len()];
        let mut elements = 1;
        for &d in order.iter().rev() {
            strides[d] = elements;
            elements *= domain[d];
        }
        let bordered_view = View { shape: domain.to_vec(), strides, offset: 0 };
        let dims_in_memory_order = memory_order(index);
        let permuted_shape: Vec<i64> = dims_in_memory_order.iter().map(|&d| index.shape[d]).collect();
        match bordered_view.reshape(&permuted_shape) {
            Some(view) => {
                let mut strides = vec![0; rank];
                for (k, &d) in dims_in_memory_order.iter().enumerate() {
                    strides[d] = view.strides[k];
                }
                memory_order(&View { shape: index.shape.clone(), strides, offset: 0 })
            }
            None => dims_in_memory_order,
        }
    }

    /// Returns the C literal of a constant with one element; `None` for any other value.
    fn scalar(&self, value: Val) -> Option<String> {
        let mut current = value;
        while let Some(op) = self.ir.producer(current) {
            if !is_view_op(self.ir.get(op).name) {
                return None;
            }
            current = self.ir.get(op).inputs[0];
        }
        let (_, constant) = self.ir.constant(current)?;
        if constant.shape().iter().product::<usize>() != 1 {
            return None;
        }
        let tensor = constant.tensor();
        Some(match constant.dtype() {
            DType::F16 | DType::F32 => literal(DType::F32, *floats(constant).first()?),
            DType::F64 => literal(DType::F64, *floats(constant).first()?),
            DType::I64 => int_literal(DType::I64, i128::from(tensor.as_slice::<i64>()[0])),
            DType::I32 => int_literal(DType::I32, i128::from(tensor.as_slice::<i32>()[0])),
            DType::BOOL => u8::from(tensor.as_slice::<u8>()[0] != 0).to_string(),
            _ => return None,
        })
    }
}

/// Returns row-major order if `order` differs from it only in the position of dimensions of size 1, otherwise `order`.
fn row_major_if_equal(shape: &[i64], order: &[usize]) -> Vec<usize> {
    let ordered_dims: Vec<usize> = order.iter().copied().filter(|&d| shape[d] != 1).collect();
    if ordered_dims.windows(2).all(|w| w[0] < w[1]) { (0..shape.len()).collect() } else { order.to_vec() }
}

/// Returns the strides of a buffer with its dimensions in `order` and a border.
fn bordered_strides(shape: &[i64], order: &[usize], border: &[(i64, i64)]) -> Vec<i64> {
    let mut strides = vec![0; shape.len()];
    let mut elements = 1;
    for &d in order.iter().rev() {
        strides[d] = elements;
        let (pad_before, pad_after) = border.get(d).copied().unwrap_or((0, 0));
        elements *= shape[d] + pad_before + pad_after;
    }
    strides
}

/// Formats the statements that zero the border of a buffer with its dimensions in `order`.
fn border_code(pointer: &str, shape: &[i64], order: &[usize], border: &[(i64, i64)], elements: i64) -> String {
    let mut code = String::new();
    let mut outer = 1;
    let mut inner_elements = elements;
    for &d in order {
        let (pad_before, pad_after) = border[d];
        let size = pad_before + shape[d] + pad_after;
        inner_elements /= size;
        if (pad_before, pad_after) != (0, 0) {
            let _ = writeln!(
                code,
                "    byoc_zero_border({pointer}, {outer}, {}, {}, {});",
                size * inner_elements,
                pad_before * inner_elements,
                pad_after * inner_elements
            );
        }
        outer *= size;
    }
    code
}

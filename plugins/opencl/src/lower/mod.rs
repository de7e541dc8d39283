//! Lowers a region to a program: tensor storage, kernels, and the launch list.
//!
//! Results of convolutions and pooling are stored with the channels innermost, so that kernels can be vectorized over
//! channels. Every tensor is a strided view of a buffer, so transposes, slices and most reshapes cost nothing.

mod body;
mod contraction;
mod convolution;
mod map;
mod moves;
mod panels;
mod product;
mod reduce;
mod resize;
mod rows;
mod shared;
mod window;

use crate::anchors::{Anchor, anchor};
use crate::arena;
use crate::device::Traits;
use crate::expression::c_type;
use crate::fusion::Grouping;
use crate::kernel::{KernelText, functions};
use crate::pack::Packing;
use crate::program::{Edge, Kernel, Launch, PackedConstant, Place, Program};
use crate::view_ops::{is_view, through};
use byoc_plugin_api::{DType, Graph, RefusalCode, Signature};
use byoc_plugin_support::refusal::{CompileError, refuse};
use byoc_plugin_support::region::{Def, Op, OpId, RegionIr, Val};
use byoc_plugin_support::view::{View, count};
use std::collections::BTreeMap;
use std::fmt::Write;

type Result<T> = std::result::Result<T, CompileError>;

/// Tensor in memory.
#[derive(Clone, Debug)]
pub struct Storage {
    /// Memory that contains the tensor.
    pub place: Place,
    /// Strided view of the tensor's elements in that memory.
    pub view: View,
}

/// NDRange of a launch: number of work-items per work-group, and in total.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    /// Work-group size along each dimension.
    pub local: [usize; 3],
    /// Number of active work-items along each dimension, before rounding up to whole work-groups.
    pub items: [i64; 3],
}

/// State of the lowering of a region. Submodules add one `impl` block per kind of operator.
pub struct Lowering<'p, 'a> {
    /// Region to lower.
    pub ir: &'p RegionIr<'a>,
    /// Fusion groups of the region.
    pub grouping: &'p Grouping,
    /// Properties of the device for which kernels are tuned.
    pub device: &'p Traits,
    /// Storage assigned to values so far.
    pub storage: BTreeMap<Val, Storage>,
    /// Buffer sizes in bytes.
    buffers: Vec<u64>,
    packed: Vec<PackedConstant>,
    kernels: Vec<Kernel>,
    definitions: Vec<String>,
    /// Kernel indices keyed by kernel text.
    kernel_indices: BTreeMap<String, usize>,
    launches: Vec<Launch>,
    comments: Vec<String>,
}

/// Returns the attribute `axis` of an operator, normalized to a dimension index.
pub fn axis(op: &Op<'_>, default: i64, rank: usize) -> Result<usize> {
    op.attrs().axis("axis", default, rank).map_or_else(
        || {
            let axis_value = op.attrs().int("axis", default);
            let detail =
                format!("{}: attribute axis: expected an integer in -{rank}..{rank}, found {axis_value}", op.name);
            refuse(RefusalCode::UnsupportedAttr, detail)
        },
        Ok,
    )
}

impl Lowering<'_, '_> {
    /// Allocates an arena buffer for a dense tensor.
    pub fn allocate(&mut self, shape: &[i64], dtype: DType) -> Place {
        self.buffers.push((count(shape) * dtype.size() as i64) as u64);
        Place::Work(self.buffers.len() - 1)
    }

    /// Returns the place of a packed constant, or of zeros if `constant` is `None`. Identical requests share a place.
    pub fn constant(&mut self, constant: Option<usize>, dtype: DType, packing: Packing) -> Place {
        let packed_constant = PackedConstant { constant, element: dtype.size(), packing };
        let existing_index = self.packed.iter().position(|existing| *existing == packed_constant);
        Place::Constant(existing_index.unwrap_or_else(|| {
            self.packed.push(packed_constant);
            self.packed.len() - 1
        }))
    }

    /// Returns the storage of a value; adds a copy where the result of a view operator cannot be a view.
    pub fn resolve(&mut self, value: Val) -> Result<Storage> {
        let ir = self.ir;
        let mut chain = Vec::new();
        let mut current_value = value;
        let mut storage = loop {
            if let Some(storage) = self.storage.get(&current_value) {
                break storage.clone();
            }
            let view = View::dense(ir.shape(current_value));
            match ir.val(current_value).def {
                Def::Input(i) => break Storage { place: Place::Input(i), view },
                Def::Constant(i) => {
                    let elements = count(&view.shape) as u64;
                    let place = self.constant(Some(i), ir.val(current_value).dtype, Packing::identity(elements));
                    break Storage { place, view };
                }
                Def::Op(op, k) if is_view(ir.get(op).name) => {
                    chain.push((op, k, current_value));
                    current_value = ir.get(op).inputs[0];
                }
                Def::Op(op, _) => {
                    let detail = format!("{} is used before it is computed", ir.get(op).name);
                    return refuse(RefusalCode::UnsupportedOp, detail);
                }
            }
        };
        for (id, k, value) in chain.into_iter().rev() {
            let op = ir.get(id);
            let view = match through(ir, op, k, &storage.view) {
                Some(view) => view,
                None => {
                    storage = self.dense(&storage, ir.val(value).dtype, op.name)?;
                    let Some(view) = through(ir, op, k, &storage.view) else {
                        let (in_shape, out_shape) = (&storage.view.shape, ir.shape(op.outputs[k]));
                        let detail = format!("{}: cannot view shape {in_shape:?} as {out_shape:?}", op.name);
                        return refuse(RefusalCode::UnsupportedShape, detail);
                    };
                    view
                }
            };
            storage = Storage { place: storage.place, view };
            self.storage.insert(value, storage.clone());
        }
        Ok(storage)
    }

    /// Adds a row-major copy of a tensor, and returns its storage.
    pub fn dense(&mut self, source: &Storage, dtype: DType, name: &str) -> Result<Storage> {
        let shape = &source.view.shape;
        let destination = Storage { place: self.allocate(shape, dtype), view: View::dense(shape) };
        self.copy(source, &destination, dtype, name)?;
        Ok(destination)
    }

    /// Describes an operator for a comment in the source: name, shapes, model nodes.
    pub fn describe(&self, id: OpId) -> String {
        let op = self.ir.get(id);
        let shape = |value: &Val| {
            let dims: Vec<String> = self.ir.shape(*value).iter().map(i64::to_string).collect();
            format!("({})", dims.join(", "))
        };
        let shapes = |values: &[Val]| values.iter().map(shape).collect::<Vec<_>>().join(", ");
        let mut text = format!("{}: {} -> {}", op.name, shapes(&op.inputs), shapes(&op.outputs));
        if !op.node.sources.is_empty() {
            let sources: Vec<&str> = op.node.sources.iter().map(|source| source.as_str()).collect();
            let _ = write!(text, "  [{}]", sources.join(", "));
        }
        // Names from the model must neither end the comment nor continue it.
        text.replace("*/", "* /").replace("/*", "/ *").replace(|c: char| c == '\\' || c.is_control(), " ")
    }

    /// Adds a kernel launch; defines the kernel unless an equal kernel exists.
    pub fn add_launch(&mut self, kind: &str, text: KernelText, grid: Grid, name: &str, comment: &str) {
        let [x, y, z] = grid.local;
        let definition = format!("({}) {{\n{}}}\n", text.parameters(), text.code);
        let key = format!("{kind} {x} {y} {z} {definition}");
        let kernel = match self.kernel_indices.get(&key) {
            Some(&kernel) => kernel,
            None => {
                let kernel = self.kernels.len();
                let name = format!("k{kernel}_{kind}");
                let head = format!("kernel __attribute__((reqd_work_group_size({x}, {y}, {z})))\nvoid {name}");
                self.definitions.push(format!("/* {comment} */\n{head}{definition}"));
                self.kernels.push(Kernel { name, arguments: text.arguments().len(), local: grid.local });
                self.kernel_indices.insert(key, kernel);
                kernel
            }
        };
        let round = |d: usize| (grid.items[d].max(1) as usize).div_ceil(grid.local[d]) * grid.local[d];
        let global = [round(0), round(1), round(2)];
        self.comments.push(comment.to_owned());
        self.launches.push(Launch { name: name.to_owned(), kernel, arguments: text.arguments(), global });
    }

    /// Returns the launch name of a group, made of its operator names, and the launch comment.
    pub fn group_names(&self, group_index: usize) -> (String, String) {
        let group = &self.grouping.groups[group_index];
        let ops: Vec<OpId> = group.anchor.iter().chain(&group.members).copied().collect();
        let names: Vec<&str> = ops.iter().map(|&op| self.ir.get(op).name).collect();
        let descriptions: Vec<String> = ops.iter().map(|&op| self.describe(op)).collect();
        (names.join(" + "), descriptions.join("\n   "))
    }

    fn lower_group(&mut self, group_index: usize) -> Result<()> {
        let ir = self.ir;
        let Some(id) = self.grouping.groups[group_index].anchor else { return self.lower_chain(group_index) };
        let op = ir.get(id);
        match anchor(op.name) {
            Some(Anchor::Convolution) => self.convolution(group_index, op),
            Some(Anchor::MatrixProduct) => self.matrix_product(group_index, op),
            Some(Anchor::Pool) => self.pool(group_index, op),
            Some(Anchor::Normalize) => self.normalize(group_index, op),
            Some(Anchor::Reduce) => self.reduce(group_index, op),
            Some(Anchor::Concatenate) => self.concatenate(op),
            Some(Anchor::Take) => self.take(op),
            Some(Anchor::Resize) => self.resize(group_index, op),
            None => refuse(RefusalCode::UnsupportedOp, format!("{}: opencl has no kernel for this operator", op.name)),
        }
    }

    /// Adds copies for outputs that no kernel writes: inputs, constants, views, and values returned more than once.
    fn copy_outputs(&mut self) -> Result<()> {
        for (i, &value) in self.ir.outputs.iter().enumerate() {
            let place = Place::Output(i);
            if self.storage.get(&value).is_some_and(|storage| storage.place == place && storage.view.is_dense()) {
                continue;
            }
            let source = self.resolve(value)?;
            let destination = Storage { place, view: View::dense(&source.view.shape) };
            self.copy(&source, &destination, self.ir.val(value).dtype, "copy to the output")?;
        }
        Ok(())
    }

    /// Assembles the source: launch list, helper functions, and kernels.
    fn source(&self, symbol: &str) -> String {
        let mut text = format!("/* {symbol}, for {}. Launches, in order:\n\n", self.device.name.replace("*/", ""));
        for (launch, comment) in self.launches.iter().zip(&self.comments) {
            let [x, y, z] = launch.global;
            let name = &self.kernels[launch.kernel].name;
            let _ = writeln!(text, "   {name}, {x} x {y} x {z} work-items\n   {comment}\n");
        }
        text.push_str("*/\n\n#pragma OPENCL FP_CONTRACT ON\n\n");
        for (name, function) in [1, 2, 4, 8, 16].into_iter().flat_map(functions) {
            let call = format!("{name}(");
            if self.definitions.iter().any(|definition| definition.contains(&call)) {
                text.push_str(&function);
                text.push('\n');
            }
        }
        text.push_str(&self.definitions.join("\n"));
        text
    }
}

/// Lowers a region to a program.
///
/// # Errors
/// If no kernel supports an operator with its element types, shapes and attributes.
pub fn lower(graph: &Graph, ir: &RegionIr<'_>, device: &Traits) -> Result<Program> {
    let grouping = Grouping::new(ir);
    let mut lowering = Lowering {
        ir,
        grouping: &grouping,
        device,
        storage: BTreeMap::new(),
        buffers: Vec::new(),
        packed: Vec::new(),
        kernels: Vec::new(),
        definitions: Vec::new(),
        kernel_indices: BTreeMap::new(),
        launches: Vec::new(),
        comments: Vec::new(),
    };
    for group_index in 0..grouping.groups.len() {
        lowering.lower_group(group_index)?;
    }
    lowering.copy_outputs()?;
    let source = lowering.source(&graph.symbol);
    let Lowering { buffers, packed: packed_constants, kernels, mut launches, .. } = lowering;
    let packed_constants = prune(packed_constants, &mut launches);
    let (buffers, arena) = arena::plan(&buffers, &launches);
    let edge = |value: &Val| Edge {
        shape: ir.shape(*value).iter().map(|&dim| dim as usize).collect(),
        element: ir.val(*value).dtype.size(),
    };
    Ok(Program {
        symbol: graph.symbol.to_string(),
        signature: Signature::of(graph),
        inputs: ir.inputs.iter().map(edge).collect(),
        outputs: ir.outputs.iter().map(edge).collect(),
        constants: ir.constants.iter().map(|c| (c.shape().iter().product(), c.dtype())).collect(),
        packed: packed_constants,
        buffers,
        arena,
        kernels,
        launches,
        source,
        device: device.name.clone(),
        selector: "auto".to_owned(),
    })
}

/// Removes constants that no launch reads.
fn prune(packed_constants: Vec<PackedConstant>, launches: &mut [Launch]) -> Vec<PackedConstant> {
    let mut is_used = vec![false; packed_constants.len()];
    for place in launches.iter().flat_map(|launch| &launch.arguments) {
        if let Place::Constant(i) = place {
            is_used[*i] = true;
        }
    }
    let new_indices: Vec<usize> = is_used
        .iter()
        .scan(0, |next_index, &is_used| Some(std::mem::replace(next_index, *next_index + usize::from(is_used))))
        .collect();
    for place in launches.iter_mut().flat_map(|launch| &mut launch.arguments) {
        if let Place::Constant(i) = place {
            *i = new_indices[*i];
        }
    }
    packed_constants
        .into_iter()
        .zip(is_used)
        .filter_map(|(packed_constants, is_used)| is_used.then_some(packed_constants))
        .collect()
}

/// Returns the OpenCL C type of an element type that [`support::check`](crate::support::check) accepts.
pub fn element_type(dtype: DType) -> &'static str {
    c_type(dtype).unwrap_or("float")
}

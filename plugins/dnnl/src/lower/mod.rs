//! Lowering of a region into a plan: selects a layout for every tensor and a primitive for every item.
//!
//! Within a region, images are channels-last and all other tensors are row-major; the region's inputs and outputs,
//! including images, are dense and row-major. A view is read in place if the library supports its layout. A tensor
//! whose layout only oneDNN's reference implementation supports is copied first.
//!
//! For each item, alternatives are tried in order of preference, and the first alternative that the library implements
//! is selected: fusion of the whole chain is preferred to fusion of a prefix, and existing layouts to copies.

mod avg_pool;
mod stages;

use crate::argument::{Argument, BufferId};
use crate::concat::RowConcat;
use crate::dim_map::DimMap;
use crate::fuse::{Item, Link, items};
use crate::gemv::MatrixUses;
use crate::ir::{CompileError, Def, EltwiseParams, Kind, Op, RegionIr, Result, Val};
use crate::library::{Attr, Desc, OneDnn, OneDnnError, PostOps, PrimitiveDesc, ffi};
use crate::pack::{PackSpec, Packing};
use crate::plan::{Buffer, Operation, Place, Plan, Step, place_in_arena};
use crate::shape::regroup;
use byoc_plugin_api::DType;
use byoc_plugin_support::view::{View, count};
use std::collections::HashMap;

/// Tensor in a buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct BufferView {
    pub buffer: BufferId,
    /// Layout, in elements relative to the start of the buffer.
    pub view: View,
}

/// Post-op of a primitive.
#[derive(Clone)]
pub enum PostOp {
    /// Adds the previous contents of the destination.
    Sum,
    /// Applies an elementwise function.
    Eltwise(EltwiseParams),
    /// Combines the result with another tensor.
    Binary(i32, BufferView),
}

/// Chain prefix, converted to a primitive's post-ops.
pub struct Chain {
    pub post_ops: Vec<PostOp>,
    /// Number of links in the prefix.
    pub links: usize,
    /// Tensor that the first post-op accumulates into; the result is stored in its buffer.
    pub sum_into: Option<BufferView>,
}

/// Packed constants of one region, shared by its plans.
#[derive(Default)]
pub struct Packs {
    pub packs: Vec<PackSpec>,
}

/// Maximum number of post-ops that a oneDNN primitive supports.
const MAX_POST_OPS: usize = 32;

/// Plan under construction.
pub struct Lowering<'p> {
    pub library: &'static OneDnn,
    pub ir: &'p RegionIr,
    pub packs: &'p mut Packs,
    users: Vec<Vec<usize>>,
    steps: Vec<Step>,
    buffers: Vec<Buffer>,
    constants: HashMap<usize, BufferId>,
    packed_buffers: HashMap<usize, BufferId>,
    tensor: Vec<Option<BufferView>>,
    /// For each value, the index of the last item that reads the value or a view of it; `usize::MAX` for outputs.
    last_read: Vec<usize>,
    /// For each buffer, the index of the last item that reads it.
    last_needed_item: Vec<usize>,
    /// Tensors and their copies in other layouts, so that each copy is made once.
    copies: Vec<(BufferView, BufferView)>,
    /// Tensors and their copies in layouts that the library chose.
    layout_copies: Vec<(BufferView, Desc, BufferId)>,
    /// Tensors and their bfloat16 copies.
    pub bf16_copies: Vec<(BufferView, BufferView)>,
    /// Buffers that the remaining links of the current item read, whether or not the links are fused with the current
    /// anchor.
    chain_reads: Vec<BufferId>,
    /// Uses of constant matrices by matrix products.
    pub matrices: MatrixUses,
    item_index: usize,
}

/// Lowers a region. `packs` holds the constants packed by earlier plans of the region and receives the constants that
/// this plan adds.
///
/// # Errors
/// If the library has no implementation of an operator.
pub fn lower(library: &'static OneDnn, ir: &RegionIr, packs: &mut Packs) -> Result<Plan> {
    let items = items(ir);
    let mut lowering = Lowering {
        library,
        ir,
        packs,
        users: ir.users(),
        steps: Vec::new(),
        buffers: Vec::new(),
        constants: HashMap::new(),
        packed_buffers: HashMap::new(),
        tensor: vec![None; ir.values.len()],
        last_read: last_reads(ir, &items),
        last_needed_item: Vec::new(),
        copies: Vec::new(),
        layout_copies: Vec::new(),
        bf16_copies: Vec::new(),
        chain_reads: Vec::new(),
        matrices: MatrixUses::of(ir),
        item_index: 0,
    };
    for (i, &input) in ir.inputs.iter().enumerate() {
        let view = View::dense(ir.shape(input));
        let buffer = lowering.buffer(Place::Input(i), count(&view.shape), ir.get(input).dtype);
        lowering.tensor[input.index()] = Some(BufferView { buffer, view });
    }
    for (item_index, item) in items.iter().enumerate() {
        lowering.item_index = item_index;
        lowering.lower_item(item)?;
    }
    lowering.finish()
}

fn last_reads(ir: &RegionIr, items: &[Item]) -> Vec<usize> {
    let mut last_reads = vec![0; ir.values.len()];
    ir.outputs.iter().for_each(|output| last_reads[output.index()] = usize::MAX);
    for (item_index, item) in items.iter().enumerate().rev() {
        let ops = std::iter::once(item.anchor).chain(item.chain.iter().map(|link| link.op()));
        for op in ops.map(|op| &ir.ops[op]) {
            let read_index = if op.kind.is_view() { last_reads[op.output.index()].max(item_index) } else { item_index };
            op.inputs.iter().for_each(|input| last_reads[input.index()] = last_reads[input.index()].max(read_index));
        }
    }
    last_reads
}

impl Lowering<'_> {
    /// Adds a buffer of `elements` elements of type `dtype`.
    pub fn buffer(&mut self, placement: Place, elements: i64, dtype: DType) -> BufferId {
        self.buffers.push(Buffer { place: placement, bytes: elements as usize * dtype.size(), dtype });
        self.last_needed_item.push(if matches!(placement, Place::Arena(_)) { 0 } else { usize::MAX });
        BufferId((self.buffers.len() - 1) as u32)
    }

    /// Allocates a `float32` tensor in the arena.
    pub fn scratch(&mut self, view: View) -> BufferView {
        self.scratch_of(DType::F32, view)
    }

    /// Allocates a tensor in the arena.
    pub fn scratch_of(&mut self, dtype: DType, view: View) -> BufferView {
        let buffer = self.buffer(Place::Arena(0), count(&view.shape), dtype);
        BufferView { buffer, view }
    }

    pub fn dtype(&self, tensor: &BufferView) -> DType {
        self.buffers[tensor.buffer.0 as usize].dtype
    }

    /// Returns true if a tensor is a constant, which can be packed at load time.
    pub fn is_constant(&self, tensor: &BufferView) -> bool {
        matches!(self.buffers[tensor.buffer.0 as usize].place, Place::Constant(_))
    }

    /// Returns the offset of a tensor's first element in its buffer, in bytes.
    fn offset(&self, tensor: &BufferView) -> usize {
        tensor.view.offset as usize * self.dtype(tensor).size()
    }

    /// Returns the placement of a value.
    pub fn placement(&mut self, value: Val) -> BufferView {
        if let Some(tensor) = &self.tensor[value.index()] {
            return tensor.clone();
        }
        let view = View::dense(self.ir.shape(value));
        let Def::Constant(constant) = self.ir.get(value).def else {
            unreachable!("operands are placed before they are read")
        };
        let dtype = self.ir.get(value).dtype;
        let buffer = match self.constants.get(&constant) {
            Some(&buffer) => buffer,
            None => {
                let buffer = self.buffer(Place::Constant(constant), count(&view.shape), dtype);
                self.constants.insert(constant, buffer);
                buffer
            }
        };
        let tensor = BufferView { buffer, view };
        self.tensor[value.index()] = Some(tensor.clone());
        tensor
    }

    /// Sets the placement of a value.
    pub fn set_placement(&mut self, value: Val, tensor: BufferView) {
        let last_needed_item = &mut self.last_needed_item[tensor.buffer.0 as usize];
        *last_needed_item = (*last_needed_item).max(self.last_read[value.index()]);
        self.tensor[value.index()] = Some(tensor);
    }

    /// Returns true if a buffer is in the arena and nothing reads it after the current item.
    fn is_last_use(&self, buffer: BufferId) -> bool {
        matches!(self.buffers[buffer.0 as usize].place, Place::Arena(_))
            && self.last_needed_item[buffer.0 as usize] <= self.item_index
    }

    /// Creates the descriptor of a `float32` tensor with this layout.
    pub fn desc(&self, view: &View) -> Result<Desc, OneDnnError> {
        self.desc_as(DType::F32, view)
    }

    /// Creates the descriptor of a tensor with this element type and layout.
    pub fn desc_as(&self, dtype: DType, view: &View) -> Result<Desc, OneDnnError> {
        if view.shape.is_empty() {
            return Desc::with_strides(self.library, dtype, &[1], &[1]);
        }
        Desc::with_strides(self.library, dtype, &view.shape, &view.strides)
    }

    /// Creates the descriptor of a placed tensor.
    pub fn desc_of(&self, tensor: &BufferView) -> Result<Desc, OneDnnError> {
        self.desc_as(self.dtype(tensor), &tensor.view)
    }

    /// Returns a tensor in the dense layout of the given order, copying it if its layout differs. Constants are copied
    /// at load time.
    pub fn in_order(&mut self, tensor: &BufferView, order: &[usize]) -> Result<BufferView> {
        let expected = View::in_order(&tensor.view.shape, order);
        if tensor.view.same_layout(&expected) {
            return Ok(BufferView { buffer: tensor.buffer, view: View { offset: tensor.view.offset, ..expected } });
        }
        if let Some((_, copy)) =
            self.copies.iter().find(|(source, copy_of_source)| source == tensor && copy_of_source.view == expected)
        {
            return Ok(copy.clone());
        }
        let dtype = self.dtype(tensor);
        let desc = self.desc_as(dtype, &expected)?;
        if let Some(packed_buffer) = self.pack(tensor, desc)? {
            return Ok(BufferView { buffer: packed_buffer, view: expected });
        }
        let copy = self.scratch_of(dtype, expected);
        self.copy(tensor, &copy, "reorder")?;
        // Later items may read the copy instead of the original, so the copy's buffer is never reused.
        self.last_needed_item[copy.buffer.0 as usize] = usize::MAX;
        self.copies.push((tensor.clone(), copy.clone()));
        Ok(copy)
    }

    /// Returns the tensor in row-major order, copying it if necessary.
    pub fn row_major(&mut self, tensor: &BufferView) -> Result<BufferView> {
        let order: Vec<usize> = (0..tensor.view.shape.len()).collect();
        self.in_order(tensor, &order)
    }

    /// Packs a constant into a oneDNN layout at load time. Returns `None` if the tensor is not a constant.
    pub fn pack(&mut self, tensor: &BufferView, packing: Desc) -> Result<Option<BufferId>> {
        self.pack_as(tensor, Packing::Layout(packing))
    }

    /// Packs a constant at load time. Returns `None` if the tensor is not a constant.
    pub fn pack_as(&mut self, tensor: &BufferView, packing: Packing) -> Result<Option<BufferId>> {
        let Place::Constant(constant) = self.buffers[tensor.buffer.0 as usize].place else { return Ok(None) };
        let source_desc = self.desc_of(tensor)?;
        let offset = self.offset(tensor);
        let is_same = |pack: &PackSpec| {
            pack.constant == constant && pack.offset == offset && pack.source == source_desc && pack.packing == packing
        };
        let index = match self.packs.packs.iter().position(is_same) {
            Some(index) => index,
            None => {
                self.packs.packs.push(PackSpec { constant, offset, source: source_desc, packing });
                self.packs.packs.len() - 1
            }
        };
        if let Some(&buffer) = self.packed_buffers.get(&index) {
            return Ok(Some(buffer));
        }
        let packing = &self.packs.packs[index].packing;
        let bytes = packing.bytes();
        let dtype = if matches!(packing, Packing::Values(_)) { DType::F32 } else { self.dtype(tensor) };
        let buffer = self.buffer(Place::Packed(index), bytes.div_ceil(dtype.size()) as i64, dtype);
        self.packed_buffers.insert(index, buffer);
        Ok(Some(buffer))
    }

    /// Returns the forms in which a constant tensor has already been packed.
    pub fn existing_packings(&self, tensor: &BufferView) -> Vec<Packing> {
        let Place::Constant(constant) = self.buffers[tensor.buffer.0 as usize].place else { return Vec::new() };
        let Ok(source_desc) = self.desc_of(tensor) else { return Vec::new() };
        let offset = self.offset(tensor);
        let is_of_constant =
            |pack: &&PackSpec| pack.constant == constant && pack.offset == offset && pack.source == source_desc;
        self.packs.packs.iter().filter(is_of_constant).map(|pack| pack.packing.clone()).collect()
    }

    /// Returns the oneDNN layouts in which a constant tensor has already been packed.
    pub fn existing_layouts(&self, tensor: &BufferView) -> Vec<Desc> {
        let layout = |packing| if let Packing::Layout(desc) = packing { Some(desc) } else { None };
        self.existing_packings(tensor).into_iter().filter_map(layout).collect()
    }

    /// Adds a step that copies a tensor into another layout.
    pub fn copy(&mut self, source: &BufferView, destination: &BufferView, label: &str) -> Result<()> {
        let (src, dst) = (self.desc_of(source)?, self.desc_of(destination)?);
        let attr = self.attr(&[])?;
        let desc = PrimitiveDesc::reorder(self.library, &src, &dst, &attr)?;
        // Rows between which there are gaps, which the library copies with a general loop over elements.
        if desc.is_slow()
            && self.dtype(source) == self.dtype(destination)
            && let Some(rows) = RowConcat::copy(&source.view, &destination.view, self.dtype(source).size())
        {
            let tensors = vec![(ffi::ARG_MULTIPLE_SRC, source.clone()), (ffi::ARG_DST, destination.clone())];
            self.handwritten_step(Operation::Concat(rows), tensors, label)?;
        } else {
            self.step(
                desc,
                vec![(ffi::ARG_SRC, source.clone(), src), (ffi::ARG_DST, destination.clone(), dst)],
                label,
            )?;
        }
        self.mark_copy();
        Ok(())
    }

    /// Marks the last step as a copy into another layout.
    fn mark_copy(&mut self) {
        self.steps.iter_mut().next_back().into_iter().for_each(|step| step.is_copy = true);
    }

    /// Returns a buffer with a tensor that is not constant in a layout that the library chose, copying it in each run,
    /// once for all its readers.
    pub fn copy_into_layout(&mut self, tensor: &BufferView, layout: &Desc) -> Result<BufferId> {
        let is_same = |(source, chosen, _): &&(BufferView, Desc, BufferId)| source == tensor && chosen == layout;
        if let Some((_, _, buffer)) = self.layout_copies.iter().find(is_same) {
            return Ok(*buffer);
        }
        let src = self.desc_of(tensor)?;
        let attr = self.attr(&[])?;
        let desc = PrimitiveDesc::reorder(self.library, &src, layout, &attr)?;
        let buffer = self.buffer(Place::Arena(0), layout.size() as i64, DType::U8);
        // Later items may read the copy, so its buffer is never reused.
        self.last_needed_item[buffer.0 as usize] = usize::MAX;
        let copy = BufferView { buffer, view: View::dense(&[layout.size() as i64]) };
        let tensors = vec![(ffi::ARG_SRC, tensor.clone(), src), (ffi::ARG_DST, copy, layout.clone())];
        self.step(desc, tensors, "weights")?;
        self.mark_copy();
        self.layout_copies.push((tensor.clone(), layout.clone(), buffer));
        Ok(buffer)
    }

    /// Adds a step that fills an entire buffer with a byte.
    pub fn fill(&mut self, tensor: &BufferView, byte: u8) -> Result<()> {
        let desc = self.desc_of(tensor)?;
        let args = vec![Argument { arg: ffi::ARG_DST, buffer: tensor.buffer, offset: 0, desc }];
        self.push(Operation::Fill(byte), args, "filling");
        Ok(())
    }

    /// Adds a step that replaces every NaN in a packed tensor with `replacement`.
    pub fn replace_nan(&mut self, tensor: &BufferView, replacement: f32) -> Result<()> {
        let desc = self.desc(&tensor.view)?;
        let offset = self.offset(tensor);
        let args = vec![Argument { arg: ffi::ARG_DST, buffer: tensor.buffer, offset, desc }];
        self.push(Operation::NoNan(replacement, count(&tensor.view.shape) as usize), args, "NaN replacement");
        Ok(())
    }

    /// Adds a step with a hand-written kernel.
    pub fn handwritten_step(
        &mut self,
        operation: Operation,
        tensors: Vec<(i32, BufferView)>,
        label: &str,
    ) -> Result<()> {
        let mut args = Vec::new();
        for (arg, tensor) in tensors {
            let desc = self.desc_of(&tensor)?;
            args.push(Argument { arg, buffer: tensor.buffer, offset: self.offset(&tensor), desc });
        }
        tracing::trace!("{label}: hand-written kernel");
        self.push(operation, args, label);
        Ok(())
    }

    /// Adds a step that runs a primitive.
    pub fn step(&mut self, desc: PrimitiveDesc, tensors: Vec<(i32, BufferView, Desc)>, label: &str) -> Result<()> {
        let mut args: Vec<Argument> = tensors
            .into_iter()
            .map(|(arg, tensor, desc)| Argument { arg, buffer: tensor.buffer, offset: self.offset(&tensor), desc })
            .collect();
        if let Some(scratch) = desc.scratchpad()? {
            let buffer = self.buffer(Place::Arena(0), scratch.size() as i64, DType::U8);
            args.push(Argument { arg: ffi::ARG_SCRATCHPAD, buffer, offset: 0, desc: scratch });
        }
        tracing::trace!("{label}: {}", desc.implementation());
        self.push(Operation::Primitive(desc), args, label);
        Ok(())
    }

    fn push(&mut self, operation: Operation, args: Vec<Argument>, label: &str) {
        // If a buffer is overwritten, copies of its tensors, and copies stored in it, are stale.
        for overwritten_argument in args.iter().filter(|argument| argument.arg == ffi::ARG_DST) {
            self.copies.retain(|(source, destination)| {
                source.buffer != overwritten_argument.buffer && destination.buffer != overwritten_argument.buffer
            });
            self.layout_copies.retain(|(source, ..)| source.buffer != overwritten_argument.buffer);
            self.forget_bf16_copies(overwritten_argument.buffer);
        }
        let implementation = operation.implementation().to_owned();
        self.steps.push(Step { operation, args, label: label.to_owned(), implementation, is_copy: false });
    }

    /// Creates primitive attributes with the given post-ops.
    pub fn attr(&self, post_ops: &[PostOp]) -> Result<Attr, OneDnnError> {
        let mut list = PostOps::new(self.library)?;
        for post_op in post_ops {
            match post_op {
                PostOp::Sum => list.sum()?,
                PostOp::Eltwise(f) => list.eltwise(f.alg, f.alpha, f.beta)?,
                PostOp::Binary(alg, operand) => list.binary(*alg, &self.desc(&operand.view)?)?,
            }
        }
        Attr::new(self.library, &list)
    }

    /// Returns the tensor arguments of post-ops.
    pub fn post_op_args(&self, post_ops: &[PostOp]) -> Result<Vec<(i32, BufferView, Desc)>, OneDnnError> {
        let mut args = Vec::new();
        for (i, post_op) in post_ops.iter().enumerate() {
            if let PostOp::Binary(_, other) = post_op {
                let arg = (ffi::ARG_POST_OP * (i as i32 + 1)) | ffi::ARG_SRC_1;
                args.push((arg, other.clone(), self.desc(&other.view)?));
            }
        }
        Ok(args)
    }

    /// Returns a link's second operand in the dimensions of the primitive that computes the chain's first value.
    /// Returns `None` if that is impossible. `path` lists the views between that value and the link.
    pub fn operand(&mut self, other: Val, path: &[Link], dim_map: &DimMap) -> Option<BufferView> {
        let tensor = self.placement(other);
        let mut view = tensor.view;
        // The operand broadcasts to the shape after the last view.
        for link in path.iter().rev() {
            let op = &self.ir.ops[link.op()];
            let (shape_before, shape_after) = (self.ir.shape(op.inputs[0]), self.ir.shape(op.output));
            match &op.kind {
                Kind::Reshape => view = view.reshape(&regroup(&view.shape, shape_after, shape_before)?)?,
                Kind::Transpose(axes) => {
                    let leading_dims = shape_after.len().checked_sub(view.shape.len())?;
                    let full_shape: Vec<i64> =
                        std::iter::repeat_n(1, leading_dims).chain(view.shape.iter().copied()).collect();
                    view = view.reshape(&full_shape)?;
                    let mut inverse = vec![0; axes.len()];
                    axes.iter().enumerate().for_each(|(i, &axis)| inverse[axis] = i);
                    view = view.permute(&inverse);
                }
                _ => return None,
            }
        }
        let buffer = tensor.buffer;
        if let Some(view) = dim_map.to_exec(&view) {
            return Some(BufferView { buffer, view });
        }
        // If dimensions that the map merges are not adjacent in memory, the operand is copied.
        let ordered_view = BufferView { buffer, view: dim_map.permute_view(&view)? };
        let shape = regroup(&ordered_view.view.shape, &dim_map.ordered_shape(), &dim_map.exec_shape)?;
        let ordered_view = self.row_major(&ordered_view).ok()?;
        Some(BufferView { view: ordered_view.view.reshape(&shape)?, ..ordered_view })
    }

    /// Converts the longest expressible prefix of the links into post-ops, for a result with layout `dst`, which has
    /// the shape that the primitive sees. The prefix ends before an operator whose input is not a view of the result.
    /// `bias` is the index of the link that the primitive computes as its bias. `read` lists the buffers that the item
    /// reads, from the anchor to the end of its chain.
    pub fn chain(
        &mut self,
        links: &[Link],
        dim_map: &DimMap,
        dst: &View,
        bias: Option<usize>,
        allows_sum: bool,
        read: &[BufferId],
    ) -> Result<Chain> {
        let mut chain = Chain { post_ops: Vec::new(), links: 0, sum_into: None };
        let mut path: Vec<Link> = Vec::new();
        let mut view = dim_map.to_value(dst);
        for (i, &link) in links.iter().enumerate() {
            if chain.post_ops.len() == MAX_POST_OPS || view.is_none() {
                break;
            }
            match link {
                Link::View(op) => {
                    view = view.and_then(|view| self.view_after(&self.ir.ops[op], &view));
                    path.push(link);
                }
                Link::Stage { .. } => break,
                _ if bias == Some(i) => chain.links = i + 1,
                Link::Eltwise(op) => {
                    let Kind::Eltwise(function) = self.ir.ops[op].kind else { break };
                    chain.post_ops.push(PostOp::Eltwise(function));
                    chain.links = i + 1;
                }
                Link::Binary { op, operand: other } => {
                    let Kind::Binary(alg) = self.ir.ops[op].kind else { break };
                    let Some(mut operand) = self.operand(other, &path, dim_map) else { break };
                    let is_whole = operand.view.shape == dst.shape;
                    let is_read_once = read.iter().filter(|&&buffer| buffer == operand.buffer).count() == 1;
                    // oneDNN accumulates in place only as the first post-op, and only in the layout of the result.
                    if allows_sum
                        && chain.post_ops.is_empty()
                        && alg == ffi::BINARY_ADD
                        && is_whole
                        && is_read_once
                        && operand.view.same_layout(dst)
                        && operand.view.is_packed()
                        && self.is_last_use(operand.buffer)
                    {
                        chain.sum_into = Some(operand);
                        chain.post_ops.push(PostOp::Sum);
                        chain.links = i + 1;
                        continue;
                    }
                    if is_whole && !operand.view.same_layout(dst) {
                        operand = self.in_order(&operand, &dst.order())?;
                    } else if !operand.view.is_packed() {
                        operand = self.row_major(&operand)?;
                    }
                    chain.post_ops.push(PostOp::Binary(alg, operand));
                    chain.links = i + 1;
                }
            }
        }
        Ok(chain)
    }

    /// Returns the buffers that the links of a chain read.
    pub fn read_buffers(&mut self, links: &[Link]) -> Vec<BufferId> {
        let operands = links.iter().filter_map(|link| match link {
            Link::Binary { operand, .. } => Some(*operand),
            _ => None,
        });
        operands.collect::<Vec<_>>().into_iter().map(|operand| self.placement(operand).buffer).collect()
    }

    /// Returns true if an anchor may overwrite the operand `tensor`: nothing else in its item or in later items reads
    /// the buffer.
    pub fn may_overwrite(&self, tensor: &BufferView, read: &[BufferId]) -> bool {
        self.is_last_use(tensor.buffer)
            && !self.chain_reads.contains(&tensor.buffer)
            && tensor.view.is_packed()
            && read.iter().filter(|&&buffer| buffer == tensor.buffer).count() == 1
    }

    /// Returns the preferred memory order of a value: the order of its transpose if a transpose is the only user.
    pub fn preferred_order(&self, value: Val) -> Option<Vec<usize>> {
        match self.users[value.index()][..] {
            [user] => match &self.ir.ops[user].kind {
                Kind::Transpose(axes) => Some(axes.clone()),
                _ => None,
            },
            _ => None,
        }
    }

    fn lower_item(&mut self, item: &Item) -> Result<()> {
        let mut anchor = item.anchor;
        let mut links = &item.chain[..];
        loop {
            let op = &self.ir.ops[anchor];
            self.chain_reads = self.read_buffers(links);
            let fused_links = if op.kind.is_view() {
                self.lower_view(op)?;
                0
            } else {
                self.anchor(op, links).map_err(|reason| CompileError {
                    detail: format!("{}: {}", name(&op.kind), reason.detail),
                    ..reason
                })?
            };
            let Some(link) = links.get(fused_links) else { return Ok(()) };
            anchor = link.op();
            links = &links[fused_links + 1..];
        }
    }

    /// Applies a transpose or reshape to `view`. Returns `None` if the result needs a copy.
    pub fn view_after(&self, op: &Op, view: &View) -> Option<View> {
        match &op.kind {
            Kind::Transpose(axes) => Some(view.permute(axes)),
            _ => view.reshape(self.ir.shape(op.output)),
        }
    }

    /// Sets the placement of the value that the first `count` links of a chain compute; `tensor` is the result in the
    /// primitive's dimensions, which `dim_map` maps back.
    pub fn put_after_chain(
        &mut self,
        op: &Op,
        links: &[Link],
        count: usize,
        tensor: BufferView,
        dim_map: &DimMap,
    ) -> Result<()> {
        let mut value = op.output;
        let mut view = dim_map.to_value(&tensor.view);
        for link in &links[..count] {
            let op = &self.ir.ops[link.op()];
            value = op.output;
            if matches!(link, Link::View(_)) {
                view = view.and_then(|view| self.view_after(op, &view));
            }
        }
        let view = view.ok_or_else(|| {
            OneDnnError::from(format!("cannot view the result of fused operators as shape {:?}", self.ir.shape(value)))
        })?;
        self.set_placement(value, BufferView { view, ..tensor });
        Ok(())
    }

    /// Returns the map with the fewest dimensions for the result of `op` in memory order `order`. The map also applies
    /// to an operand of shape `operand` and to all operands of the chain.
    pub fn collapsed_dims(&mut self, op: &Op, links: &[Link], order: &[usize], operand: Option<&[i64]>) -> DimMap {
        let start = self.ir.shape(op.output).to_vec();
        let full_map = DimMap::plain(&start, &start);
        let mut shapes: Vec<Vec<i64>> = operand.into_iter().map(<[i64]>::to_vec).collect();
        let mut path: Vec<Link> = Vec::new();
        for &link in links {
            match link {
                Link::View(_) => path.push(link),
                Link::Binary { operand: other, .. } => {
                    shapes.extend(self.operand(other, &path, &full_map).map(|tensor| tensor.view.shape));
                }
                Link::Eltwise(_) | Link::Stage { .. } => {}
            }
        }
        DimMap::collapsed(&start, order, &shapes)
    }

    fn lower_view(&mut self, op: &Op) -> Result<()> {
        let tensor = self.placement(op.inputs[0]);
        let shape = self.ir.shape(op.output).to_vec();
        let view_of_result = |view: &View| match &op.kind {
            Kind::Reshape => view.reshape(&shape),
            Kind::Transpose(axes) => Some(view.permute(axes)),
            Kind::Slice { begin, step } => {
                let mut view = view.clone();
                for (axis, &size) in shape.iter().enumerate() {
                    view = view.slice(axis, begin[axis], step[axis], size);
                }
                Some(view)
            }
            _ => None,
        };
        let tensor = match view_of_result(&tensor.view) {
            Some(view) => BufferView { view, ..tensor },
            None => {
                let copy = self.row_major(&tensor)?;
                let view = view_of_result(&copy.view).ok_or_else(|| {
                    OneDnnError::from(format!("cannot view shape {:?} as {shape:?}", copy.view.shape))
                })?;
                BufferView { view, ..copy }
            }
        };
        self.set_placement(op.output, tensor);
        Ok(())
    }

    /// Places the results in the region's outputs, copying them where necessary, and assigns arena offsets.
    fn finish(mut self) -> Result<Plan> {
        let mut outputs = Vec::new();
        for (k, &output) in self.ir.outputs.iter().enumerate() {
            let shape = self.ir.shape(output).to_vec();
            let dtype = self.ir.get(output).dtype;
            let bytes = count(&shape) as usize * dtype.size();
            let tensor = self.placement(output);
            let buffer = &mut self.buffers[tensor.buffer.0 as usize];
            let is_whole = tensor.view.is_dense() && tensor.view.offset == 0 && buffer.bytes == bytes;
            if is_whole && matches!(buffer.place, Place::Arena(_)) {
                buffer.place = Place::Output(k);
            } else {
                let buffer = self.buffer(Place::Output(k), count(&shape), dtype);
                let result = BufferView { buffer, view: View::dense(&shape) };
                self.copy(&tensor, &result, "output")?;
            }
            outputs.push(shape.iter().map(|&d| d as usize).collect());
        }
        let workspace = place_in_arena(&self.steps, &mut self.buffers);
        let is_serial = self.library.threads() == 1 || self.ir.is_small();
        Ok(Plan { steps: self.steps, buffers: self.buffers, workspace, outputs, is_serial })
    }
}

/// Returns the name of an operator kind for messages.
fn name(kind: &Kind) -> &'static str {
    match kind {
        Kind::Conv { transposed: false, .. } => "convolution",
        Kind::Conv { .. } => "transposed convolution",
        Kind::MatMul { .. } => "matrix product",
        Kind::Pool { .. } => "pool",
        Kind::Softmax { .. } => "softmax",
        Kind::LayerNorm { .. } => "layer normalization",
        Kind::Eltwise(_) => "elementwise function",
        Kind::Erf => "erf",
        Kind::MathFn(function) => function.name(),
        Kind::IsNan => "isnan",
        Kind::NoNan(_) => "NaN replacement",
        Kind::Binary(_) => "binary",
        Kind::Prelu => "prelu",
        Kind::Cell(kind) => kind.name(),
        Kind::Concat { .. } => "concatenation",
        Kind::Reduce { .. } => "reduction",
        Kind::Resample { .. } => "resizing",
        Kind::Pad { .. } | Kind::PadBytes { .. } => "padding",
        Kind::Stage(_) => "integer stage",
        Kind::IntAvgPool(_) => "integer average pooling",
        Kind::Reshape | Kind::Transpose(_) | Kind::Slice { .. } => "view",
    }
}

//! Lowering of a program into a plan: a layout for every tensor, a primitive for every item.
//!
//! Images are channels-last throughout a region, everything else is row-major; only the region's inputs and outputs are
//! dense in the order of their dimensions. Views are free as long as the library reads them in place; where it has only
//! its reference implementation for a layout, the tensor is copied first.
//!
//! For each item, the alternatives are tried in order of preference, and the first one that the library implements is
//! taken: the whole chain as post-operators before a part of it, existing layouts before copies.

mod mean;
mod stages;

use crate::argument::{Argument, Buf};
use crate::frame::Frame;
use crate::fuse::{Item, Link, items};
use crate::library::{Attr, Desc, Failure, OneDnn, Outcome, PostOps, PrimitiveDesc, ffi};
use crate::pack::{Pack, Packing};
use crate::plan::{Buffer, Place, Plan, Step, Work, place_in_arena};
use crate::program::{Def, Function, Kind, Op, Program, Reason, Taken, Val};
use crate::row::Matrices;
use crate::view::{View, count, regroup};
use byoc_plugin_api::DType;
use std::collections::HashMap;

/// Tensor in a buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct Placed {
    pub buffer: Buf,
    /// Layout, in elements relative to the start of the buffer.
    pub view: View,
}

/// Post-operator of a primitive.
pub enum Post {
    /// Adds the previous contents of the destination.
    Sum,
    /// Applies an elementwise function.
    Eltwise(Function),
    /// Combines the result with another tensor.
    Binary(i32, Placed),
}

/// Post-operators that a primitive computes of a chain.
pub struct Chain {
    pub posts: Vec<Post>,
    /// Number of links of the chain that they cover.
    pub links: usize,
    /// Tensor that the first post-operator accumulates into; its buffer becomes the result's.
    pub sum_into: Option<Placed>,
}

/// Packed constants of one region, shared by its plans.
#[derive(Default)]
pub struct Packs {
    pub packs: Vec<Pack>,
}

/// Maximum number of post-operators of a primitive in oneDNN.
const MOST_POSTS: usize = 32;

/// Plan under construction.
pub struct Lowering<'p> {
    pub library: &'static OneDnn,
    pub program: &'p Program,
    pub packs: &'p mut Packs,
    users: Vec<Vec<usize>>,
    steps: Vec<Step>,
    buffers: Vec<Buffer>,
    constants: HashMap<usize, Buf>,
    packed: HashMap<usize, Buf>,
    placed: Vec<Option<Placed>>,
    /// Index of the last item that reads each value or a view of it; `usize::MAX` for outputs.
    last_read: Vec<usize>,
    /// Index of the last item that reads each buffer.
    needed_until: Vec<usize>,
    /// Copies in other layouts, so that each copy is made once.
    copies: Vec<(Placed, Placed)>,
    /// Copies in bfloat16.
    pub narrow_copies: Vec<(Placed, Placed)>,
    /// Buffers that the remaining chain of the current item reads, whether or not the current anchor fuses those links.
    read_behind: Vec<Buf>,
    /// Constant matrices that several products read.
    pub matrices: Matrices,
    now: usize,
}

/// Lowers a program. `packs` holds the constants packed by earlier plans of the region and receives those that this
/// plan adds.
///
/// # Errors
/// An operator for which the library has no implementation.
pub fn lower(library: &'static OneDnn, program: &Program, packs: &mut Packs) -> Taken<Plan> {
    let items = items(program);
    let mut lowering = Lowering {
        library,
        program,
        packs,
        users: program.users(),
        steps: Vec::new(),
        buffers: Vec::new(),
        constants: HashMap::new(),
        packed: HashMap::new(),
        placed: vec![None; program.values.len()],
        last_read: last_reads(program, &items),
        needed_until: Vec::new(),
        copies: Vec::new(),
        narrow_copies: Vec::new(),
        read_behind: Vec::new(),
        matrices: Matrices::of(program),
        now: 0,
    };
    for (i, &input) in program.inputs.iter().enumerate() {
        let view = View::dense(program.shape(input));
        let buffer = lowering.buffer(Place::Input(i), count(&view.shape), program.get(input).dtype);
        lowering.placed[input.index()] = Some(Placed { buffer, view });
    }
    for (now, item) in items.iter().enumerate() {
        lowering.now = now;
        lowering.item(item)?;
    }
    lowering.finish()
}

fn last_reads(program: &Program, items: &[Item]) -> Vec<usize> {
    let mut last = vec![0; program.values.len()];
    program.outputs.iter().for_each(|output| last[output.index()] = usize::MAX);
    for (now, item) in items.iter().enumerate().rev() {
        let ops = std::iter::once(item.anchor).chain(item.chain.iter().map(|link| link.op()));
        for op in ops.map(|op| &program.ops[op]) {
            let until = if op.kind.is_view() { last[op.output.index()].max(now) } else { now };
            op.inputs.iter().for_each(|input| last[input.index()] = last[input.index()].max(until));
        }
    }
    last
}

impl Lowering<'_> {
    /// Adds a buffer of `elements` elements.
    pub fn buffer(&mut self, place: Place, elements: i64, dtype: DType) -> Buf {
        self.buffers.push(Buffer { place, bytes: elements as usize * dtype.size(), dtype });
        self.needed_until.push(if matches!(place, Place::Arena(_)) { 0 } else { usize::MAX });
        Buf((self.buffers.len() - 1) as u32)
    }

    /// Allocates a `float32` tensor in the arena.
    pub fn scratch(&mut self, view: View) -> Placed {
        self.scratch_of(DType::F32, view)
    }

    /// Allocates a tensor in the arena.
    pub fn scratch_of(&mut self, dtype: DType, view: View) -> Placed {
        let buffer = self.buffer(Place::Arena(0), count(&view.shape), dtype);
        Placed { buffer, view }
    }

    pub fn dtype(&self, placed: &Placed) -> DType {
        self.buffers[placed.buffer.0 as usize].dtype
    }

    /// Returns true if a tensor is in a constant, which can be packed at load time.
    pub fn is_constant(&self, placed: &Placed) -> bool {
        matches!(self.buffers[placed.buffer.0 as usize].place, Place::Constant(_))
    }

    /// Offset of a tensor's first element in its buffer, in bytes.
    fn offset(&self, placed: &Placed) -> usize {
        placed.view.offset as usize * self.dtype(placed).size()
    }

    /// Returns the placement of a value.
    pub fn at(&mut self, value: Val) -> Placed {
        if let Some(placed) = &self.placed[value.index()] {
            return placed.clone();
        }
        let view = View::dense(self.program.shape(value));
        let Def::Constant(number) = self.program.get(value).def else { unreachable!("operands precede their users") };
        let dtype = self.program.get(value).dtype;
        let buffer = match self.constants.get(&number) {
            Some(&buffer) => buffer,
            None => {
                let buffer = self.buffer(Place::Constant(number), count(&view.shape), dtype);
                self.constants.insert(number, buffer);
                buffer
            }
        };
        let placed = Placed { buffer, view };
        self.placed[value.index()] = Some(placed.clone());
        placed
    }

    /// Sets the placement of a value.
    pub fn put(&mut self, value: Val, placed: Placed) {
        let until = &mut self.needed_until[placed.buffer.0 as usize];
        *until = (*until).max(self.last_read[value.index()]);
        self.placed[value.index()] = Some(placed);
    }

    /// Returns true if a buffer is in the arena and nothing reads it after the current item.
    fn dies(&self, buffer: Buf) -> bool {
        matches!(self.buffers[buffer.0 as usize].place, Place::Arena(_))
            && self.needed_until[buffer.0 as usize] <= self.now
    }

    /// Creates the descriptor of a `float32` tensor with this layout.
    pub fn desc(&self, view: &View) -> Outcome<Desc> {
        self.desc_as(DType::F32, view)
    }

    /// Creates the descriptor of a tensor with this element type and layout.
    pub fn desc_as(&self, dtype: DType, view: &View) -> Outcome<Desc> {
        if view.shape.is_empty() {
            return Desc::strided(self.library, dtype, &[1], &[1]);
        }
        Desc::strided(self.library, dtype, &view.shape, &view.strides)
    }

    /// Creates the descriptor of a placed tensor.
    pub fn desc_of(&self, placed: &Placed) -> Outcome<Desc> {
        self.desc_as(self.dtype(placed), &placed.view)
    }

    /// Returns a tensor in the dense layout of the given order, copying it if its layout differs. Constants are copied
    /// at load time.
    pub fn in_order(&mut self, placed: &Placed, order: &[usize]) -> Taken<Placed> {
        let wanted = View::in_order(&placed.view.shape, order);
        if placed.view.same_layout(&wanted) {
            return Ok(Placed { buffer: placed.buffer, view: View { offset: placed.view.offset, ..wanted } });
        }
        if let Some((_, copy)) = self.copies.iter().find(|(from, to)| from == placed && to.view == wanted) {
            return Ok(copy.clone());
        }
        let dtype = self.dtype(placed);
        let desc = self.desc_as(dtype, &wanted)?;
        if let Some(packed) = self.pack(placed, desc)? {
            return Ok(Placed { buffer: packed, view: wanted });
        }
        let copy = self.scratch_of(dtype, wanted);
        self.copy(placed, &copy, "reorder")?;
        // A copy may be read as long as the original, so its buffer is never reused.
        self.needed_until[copy.buffer.0 as usize] = usize::MAX;
        self.copies.push((placed.clone(), copy.clone()));
        Ok(copy)
    }

    /// Returns the tensor in row-major order, copying it if necessary.
    pub fn row_major(&mut self, placed: &Placed) -> Taken<Placed> {
        let order: Vec<usize> = (0..placed.view.shape.len()).collect();
        self.in_order(placed, &order)
    }

    /// Packs a constant into a layout of the library at load time. Returns `None` if the tensor is not a constant.
    pub fn pack(&mut self, placed: &Placed, to: Desc) -> Taken<Option<Buf>> {
        self.pack_as(placed, Packing::Layout(to))
    }

    /// Packs a constant at load time. Returns `None` if the tensor is not a constant.
    pub fn pack_as(&mut self, placed: &Placed, to: Packing) -> Taken<Option<Buf>> {
        let Place::Constant(constant) = self.buffers[placed.buffer.0 as usize].place else { return Ok(None) };
        let from = self.desc_of(placed)?;
        let offset = self.offset(placed);
        let same =
            |pack: &Pack| pack.constant == constant && pack.offset == offset && pack.from == from && pack.to == to;
        let number = match self.packs.packs.iter().position(same) {
            Some(number) => number,
            None => {
                self.packs.packs.push(Pack { constant, offset, from, to });
                self.packs.packs.len() - 1
            }
        };
        if let Some(&buffer) = self.packed.get(&number) {
            return Ok(Some(buffer));
        }
        let bytes = self.packs.packs[number].to.bytes();
        let dtype = self.dtype(placed);
        let buffer = self.buffer(Place::Packed(number), bytes.div_ceil(dtype.size()) as i64, dtype);
        self.packed.insert(number, buffer);
        Ok(Some(buffer))
    }

    /// Returns the packed forms that other plans already hold of a constant tensor.
    pub fn packed_before(&self, placed: &Placed) -> Vec<Packing> {
        let Place::Constant(constant) = self.buffers[placed.buffer.0 as usize].place else { return Vec::new() };
        let Ok(from) = self.desc_of(placed) else { return Vec::new() };
        let offset = self.offset(placed);
        let own = |pack: &&Pack| pack.constant == constant && pack.offset == offset && pack.from == from;
        self.packs.packs.iter().filter(own).map(|pack| pack.to.clone()).collect()
    }

    /// Returns the library layouts among the packed forms.
    pub fn layouts_before(&self, placed: &Placed) -> Vec<Desc> {
        let layout = |packing| if let Packing::Layout(desc) = packing { Some(desc) } else { None };
        self.packed_before(placed).into_iter().filter_map(layout).collect()
    }

    /// Adds a step that copies a tensor into another layout.
    pub fn copy(&mut self, from: &Placed, to: &Placed, what: &str) -> Taken<()> {
        let (src, dst) = (self.desc_of(from)?, self.desc_of(to)?);
        let attr = self.attr(&[])?;
        let desc = PrimitiveDesc::reorder(self.library, &src, &dst, &attr)?;
        self.step(desc, vec![(ffi::ARG_SRC, from.clone(), src), (ffi::ARG_DST, to.clone(), dst)], what)
    }

    /// Adds a step that fills a whole buffer with a byte.
    pub fn fill(&mut self, placed: &Placed, byte: u8) -> Taken<()> {
        let desc = self.desc_of(placed)?;
        let args = vec![Argument { arg: ffi::ARG_DST, buffer: placed.buffer, offset: 0, desc }];
        self.push(Work::Fill(byte), args, "filling");
        Ok(())
    }

    /// Adds a step that replaces every NaN of a packed tensor by a number.
    pub fn replace_nan(&mut self, placed: &Placed, number: f32) -> Taken<()> {
        let desc = self.desc(&placed.view)?;
        let offset = self.offset(placed);
        let args = vec![Argument { arg: ffi::ARG_DST, buffer: placed.buffer, offset, desc }];
        self.push(Work::NoNan(number, count(&placed.view.shape) as usize), args, "NaN replacement");
        Ok(())
    }

    /// Adds a step with a hand-written kernel.
    pub fn own_step(&mut self, work: Work, tensors: Vec<(i32, Placed)>, what: &str) -> Taken<()> {
        let mut args = Vec::new();
        for (arg, placed) in tensors {
            let desc = self.desc_of(&placed)?;
            args.push(Argument { arg, buffer: placed.buffer, offset: self.offset(&placed), desc });
        }
        tracing::trace!("{what}: hand-written kernel");
        self.push(work, args, what);
        Ok(())
    }

    /// Adds a step that runs a primitive.
    pub fn step(&mut self, desc: PrimitiveDesc, tensors: Vec<(i32, Placed, Desc)>, what: &str) -> Taken<()> {
        let mut args: Vec<Argument> = tensors
            .into_iter()
            .map(|(arg, placed, desc)| Argument { arg, buffer: placed.buffer, offset: self.offset(&placed), desc })
            .collect();
        if let Some(scratch) = desc.scratchpad()? {
            let buffer = self.buffer(Place::Arena(0), scratch.size() as i64, DType::U8);
            args.push(Argument { arg: ffi::ARG_SCRATCHPAD, buffer, offset: 0, desc: scratch });
        }
        tracing::trace!("{what}: {}", desc.implementation());
        self.push(Work::Primitive(desc), args, what);
        Ok(())
    }

    fn push(&mut self, work: Work, args: Vec<Argument>, what: &str) {
        // Copies of, and in, a buffer that is overwritten are stale.
        for written in args.iter().filter(|argument| argument.arg == ffi::ARG_DST) {
            self.copies.retain(|(from, to)| from.buffer != written.buffer && to.buffer != written.buffer);
            self.forget_narrowed(written.buffer);
        }
        self.steps.push(Step { work, args, what: what.to_owned() });
    }

    /// Creates attributes with these post-operators.
    pub fn attr(&self, posts: &[Post]) -> Outcome<Attr> {
        let mut list = PostOps::new(self.library)?;
        for post in posts {
            match post {
                Post::Sum => list.sum()?,
                Post::Eltwise(f) => list.eltwise(f.alg, f.alpha, f.beta)?,
                Post::Binary(alg, other) => list.binary(*alg, &self.desc(&other.view)?)?,
            }
        }
        Attr::new(self.library, &list)
    }

    /// Returns the tensors of post-operators as arguments.
    pub fn post_args(&self, posts: &[Post]) -> Outcome<Vec<(i32, Placed, Desc)>> {
        let mut args = Vec::new();
        for (i, post) in posts.iter().enumerate() {
            if let Post::Binary(_, other) = post {
                let arg = (ffi::ARG_POST_OP * (i as i32 + 1)) | ffi::ARG_SRC_1;
                args.push((arg, other.clone(), self.desc(&other.view)?));
            }
        }
        Ok(args)
    }

    /// Returns the second operand of a link, viewed through the frame of a primitive whose result is the value at the
    /// start of the chain. `path` holds the views in between.
    pub fn operand(&mut self, other: Val, path: &[Link], frame: &Frame) -> Option<Placed> {
        let placed = self.at(other);
        let mut view = placed.view;
        // The operand broadcasts to the shape after the last view.
        for link in path.iter().rev() {
            let op = &self.program.ops[link.op()];
            let (before, after) = (self.program.shape(op.inputs[0]), self.program.shape(op.output));
            match &op.kind {
                Kind::Reshape => view = view.reshape(&regroup(&view.shape, after, before)?)?,
                Kind::Transpose(axes) => {
                    let lead = after.len().checked_sub(view.shape.len())?;
                    let full: Vec<i64> = std::iter::repeat_n(1, lead).chain(view.shape.iter().copied()).collect();
                    view = view.reshape(&full)?;
                    let mut inverse = vec![0; axes.len()];
                    axes.iter().enumerate().for_each(|(i, &axis)| inverse[axis] = i);
                    view = view.permute(&inverse);
                }
                _ => return None,
            }
        }
        let buffer = placed.buffer;
        if let Some(view) = frame.enter(&view) {
            return Some(Placed { buffer, view });
        }
        // Dimensions that the frame merges may not be adjacent in memory; a copy makes them so.
        let ordered = Placed { buffer, view: frame.permuted(&view)? };
        let shape = regroup(&ordered.view.shape, &frame.ordered_shape(), &frame.exec)?;
        let ordered = self.row_major(&ordered).ok()?;
        Some(Placed { view: ordered.view.reshape(&shape)?, ..ordered })
    }

    /// Converts the longest expressible prefix of the links into post-operators, for a result of layout `dst`, which
    /// has the shape of the frame. `bias` is the index of the link that the primitive computes as its bias. `read`
    /// lists the buffers that the item reads, from the anchor to the end of its chain.
    pub fn chain(
        &mut self,
        links: &[Link],
        frame: &Frame,
        dst: &View,
        bias: Option<usize>,
        sums: bool,
        read: &[Buf],
    ) -> Taken<Chain> {
        let mut chain = Chain { posts: Vec::new(), links: 0, sum_into: None };
        let mut path: Vec<Link> = Vec::new();
        for (i, &link) in links.iter().enumerate() {
            if chain.posts.len() == MOST_POSTS {
                break;
            }
            match link {
                Link::View(_) => path.push(link),
                Link::Stage { .. } => break,
                _ if bias == Some(i) => chain.links = i + 1,
                Link::Eltwise(op) => {
                    let Kind::Eltwise(function) = self.program.ops[op].kind else { break };
                    chain.posts.push(Post::Eltwise(function));
                    chain.links = i + 1;
                }
                Link::Binary { op, other } => {
                    let Kind::Binary(alg) = self.program.ops[op].kind else { break };
                    let Some(mut operand) = self.operand(other, &path, frame) else { break };
                    let whole = operand.view.shape == dst.shape;
                    let once = read.iter().filter(|&&buffer| buffer == operand.buffer).count() == 1;
                    // oneDNN accumulates in place only as the first post-operator, and only in the layout of the
                    // result.
                    if sums
                        && chain.posts.is_empty()
                        && alg == ffi::BINARY_ADD
                        && whole
                        && once
                        && operand.view.same_layout(dst)
                        && operand.view.is_packed()
                        && self.dies(operand.buffer)
                    {
                        chain.sum_into = Some(operand);
                        chain.posts.push(Post::Sum);
                        chain.links = i + 1;
                        continue;
                    }
                    if whole && !operand.view.same_layout(dst) {
                        operand = self.in_order(&operand, &dst.order())?;
                    } else if !operand.view.is_packed() {
                        operand = self.row_major(&operand)?;
                    }
                    chain.posts.push(Post::Binary(alg, operand));
                    chain.links = i + 1;
                }
            }
        }
        Ok(chain)
    }

    /// Returns the buffers that the links of a chain read.
    pub fn reads(&mut self, links: &[Link]) -> Vec<Buf> {
        let others = links.iter().filter_map(|link| match link {
            Link::Binary { other, .. } => Some(*other),
            _ => None,
        });
        others.collect::<Vec<_>>().into_iter().map(|other| self.at(other).buffer).collect()
    }

    /// Returns true if an anchor may overwrite this operand: neither the rest of its item nor a later one reads it.
    pub fn may_overwrite(&self, placed: &Placed, read: &[Buf]) -> bool {
        self.dies(placed.buffer)
            && !self.read_behind.contains(&placed.buffer)
            && placed.view.is_packed()
            && read.iter().filter(|&&buffer| buffer == placed.buffer).count() == 1
    }

    /// Returns the memory order that suits the users of a value: that of its only user if it is a transpose.
    pub fn wanted_order(&self, value: Val) -> Option<Vec<usize>> {
        match self.users[value.index()][..] {
            [user] => match &self.program.ops[user].kind {
                Kind::Transpose(axes) => Some(axes.clone()),
                _ => None,
            },
            _ => None,
        }
    }

    fn item(&mut self, item: &Item) -> Taken<()> {
        let mut anchor = item.anchor;
        let mut links = &item.chain[..];
        loop {
            let op = &self.program.ops[anchor];
            self.read_behind = self.reads(links);
            let done = if op.kind.is_view() {
                self.view(op)?;
                0
            } else {
                self.anchor(op, links)
                    .map_err(|reason| Reason { detail: format!("{}: {}", name(&op.kind), reason.detail), ..reason })?
            };
            let Some(next) = links.get(done) else { return Ok(()) };
            anchor = next.op();
            links = &links[done + 1..];
        }
    }

    /// Places the value at the end of the first `count` links of a chain; `placed` is the anchor's result as seen
    /// through `frame`.
    pub fn put_through(&mut self, op: &Op, links: &[Link], count: usize, placed: Placed, frame: &Frame) -> Taken<()> {
        let mut value = op.output;
        let mut view = frame.leave(&placed.view);
        for link in &links[..count] {
            let op = &self.program.ops[link.op()];
            value = op.output;
            if let (Link::View(_), Some(before)) = (link, &view) {
                view = match &op.kind {
                    Kind::Transpose(axes) => Some(before.permute(axes)),
                    _ => before.reshape(self.program.shape(op.output)),
                };
            }
        }
        let view = view.ok_or_else(|| Failure::from("expected a result that is a view of the chain's value"))?;
        self.put(value, Placed { view, ..placed });
        Ok(())
    }

    /// Returns the frame with the fewest dimensions for a value in this memory order that is compatible with an operand
    /// of the given shape and with all operands of the chain.
    pub fn fewest(&mut self, op: &Op, links: &[Link], order: &[usize], operand: Option<&[i64]>) -> Frame {
        let start = self.program.shape(op.output).to_vec();
        let whole = Frame::plain(&start, &start);
        let mut shapes: Vec<Vec<i64>> = operand.into_iter().map(<[i64]>::to_vec).collect();
        let mut path: Vec<Link> = Vec::new();
        for &link in links {
            match link {
                Link::View(_) => path.push(link),
                Link::Binary { other, .. } => {
                    shapes.extend(self.operand(other, &path, &whole).map(|placed| placed.view.shape));
                }
                Link::Eltwise(_) | Link::Stage { .. } => {}
            }
        }
        Frame::fewest(&start, order, &shapes)
    }

    fn view(&mut self, op: &Op) -> Taken<()> {
        let placed = self.at(op.inputs[0]);
        let shape = self.program.shape(op.output).to_vec();
        let through = |view: &View| match &op.kind {
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
        let placed = match through(&placed.view) {
            Some(view) => Placed { view, ..placed },
            None => {
                let copy = self.row_major(&placed)?;
                let view =
                    through(&copy.view).ok_or_else(|| Failure::from("reshape changes the number of elements"))?;
                Placed { view, ..copy }
            }
        };
        self.put(op.output, placed);
        Ok(())
    }

    /// Copies remaining results into the region's outputs and assigns arena offsets.
    fn finish(mut self) -> Taken<Plan> {
        let mut outputs = Vec::new();
        for (k, &output) in self.program.outputs.iter().enumerate() {
            let shape = self.program.shape(output).to_vec();
            let dtype = self.program.get(output).dtype;
            let bytes = count(&shape) as usize * dtype.size();
            let placed = self.at(output);
            let buffer = &mut self.buffers[placed.buffer.0 as usize];
            let whole = placed.view.is_dense() && placed.view.offset == 0 && buffer.bytes == bytes;
            if whole && matches!(buffer.place, Place::Arena(_)) {
                buffer.place = Place::Output(k);
            } else {
                let buffer = self.buffer(Place::Output(k), count(&shape), dtype);
                let to = Placed { buffer, view: View::dense(&shape) };
                self.copy(&placed, &to, "output")?;
            }
            outputs.push(shape.iter().map(|&d| d as usize).collect());
        }
        let workspace = place_in_arena(&self.steps, &mut self.buffers);
        Ok(Plan { steps: self.steps, buffers: self.buffers, workspace, outputs })
    }
}

/// Name of a kind in messages.
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
        Kind::Curve(curve) => curve.name(),
        Kind::IsNan => "isnan",
        Kind::NoNan(_) => "NaN replacement",
        Kind::Binary(_) => "binary",
        Kind::Prelu => "prelu",
        Kind::Cell(form) => form.name(),
        Kind::Concat { .. } => "concatenation",
        Kind::Reduce { .. } => "reduction",
        Kind::Resample { .. } => "resizing",
        Kind::Pad { .. } | Kind::PadBytes { .. } => "padding",
        Kind::Stage(_) => "integer stage",
        Kind::Mean(_) => "integer average pooling",
        Kind::Reshape | Kind::Transpose(_) | Kind::Slice { .. } => "view",
    }
}

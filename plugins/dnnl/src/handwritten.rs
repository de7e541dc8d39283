//! Selection of hand-written kernels instead of the library's primitives.
//!
//! The kernels are in `winograd`, `gemv`, `elementwise` and `cell`, which document why each is faster or more precise.

use crate::cell::{ARG_OUT, Cell, CellKind, MAX_OPERANDS};
use crate::cpu;
use crate::dim_map::DimMap;
use crate::elementwise::{Elementwise, MathFn};
use crate::fuse::Link;
use crate::gemv::{Gemv, MAX_ADDENDS, Panels};
use crate::ir::{CompileError, Op, Result};
use crate::library::{Conv, OneDnnError, PrimitiveDesc, Window, ffi};
use crate::lower::{BufferView, Chain, Lowering, PostOp};
use crate::overlap::{OverlapAdd, WindowAxis};
use crate::pack::Packing;
use crate::plan::Operation;
use crate::shape::channels_last;
use crate::winograd::{LANES, WeightLayout, Winograd};
use byoc_plugin_api::{DType, RefusalCode};
use byoc_plugin_support::view::{View, count};

/// Maximum size in bytes at which transformed weights stay in a core's cache from one group of tiles to the next.
const MAX_CACHED_BYTES: usize = 1 << 20;

/// Minimum number of tiles for which Winograd pays off, depending on whether the transformed weights fit in the cache.
/// Transformed weights are 16/9 times as large as the original weights. If they do not fit, they are streamed from
/// memory, and with few tiles, that costs more than the saved multiplications.
const MIN_TILES_CACHED: usize = 32;
const MIN_TILES_STREAMED: usize = 96;

/// Chain operators that the Winograd kernel computes after its convolution.
struct WinogradEpilogue {
    /// Tensor added to the result; the result may be stored in its memory.
    addend: Option<BufferView>,
    range: [f32; 2],
}

impl WinogradEpilogue {
    /// Extracts the addend and the clamp range of a chain for a result with layout `result`. Returns `None` if the
    /// chain contains other operators.
    fn of(chain: &Chain, result: &View) -> Option<WinogradEpilogue> {
        let mut epilogue =
            WinogradEpilogue { addend: chain.sum_into.clone(), range: [f32::NEG_INFINITY, f32::INFINITY] };
        let mut post_ops = &chain.post_ops[..];
        match post_ops {
            [PostOp::Sum, remaining @ ..] => post_ops = remaining,
            [PostOp::Binary(ffi::BINARY_ADD, other), rest @ ..] if other.view.same_layout(result) => {
                epilogue.addend = Some(other.clone());
                post_ops = rest;
            }
            _ => {}
        }
        match post_ops {
            [] => {}
            [PostOp::Eltwise(f)] if f.alg == ffi::ELTWISE_RELU && f.alpha == 0.0 => epilogue.range[0] = 0.0,
            [PostOp::Eltwise(f)] if f.alg == ffi::ELTWISE_CLIP => epilogue.range = [f.alpha, f.beta],
            _ => return None,
        }
        Some(epilogue)
    }
}

/// Returns the tensors that a chain adds to a result with layout `result`. Returns `None` if the chain contains other
/// operators or too many additions.
fn addends(chain: &Chain, result: &View) -> Option<Vec<BufferView>> {
    let addend = |post_op: &PostOp| match post_op {
        PostOp::Binary(ffi::BINARY_ADD, other) if other.view.same_layout(result) => Some(other.clone()),
        _ => None,
    };
    chain.post_ops.iter().map(addend).collect::<Option<Vec<_>>>().filter(|addends| addends.len() <= MAX_ADDENDS)
}

impl Lowering<'_> {
    /// Adds a step that convolves `x` with `w` and computes the whole chain. Returns `None` if Winograd is not faster,
    /// or if the chain has operators that only the library can fuse.
    pub fn winograd(
        &mut self,
        op: &Op,
        links: &[Link],
        (x, w): (&BufferView, &BufferView),
        window: &Window,
        bias: Option<&(usize, BufferView)>,
    ) -> Result<Option<usize>> {
        let shape = self.ir.shape(op.output).to_vec();
        let Some(mut layer) = self.winograd_layer(&shape, x, w, window) else { return Ok(None) };
        let order = channels_last(shape.len());
        let (dim_map, view) = (DimMap::plain(&shape, &shape), View::in_order(&shape, &order));
        let mut read = self.read_buffers(links);
        read.push(x.buffer);
        let chain = self.chain(links, &dim_map, &view, bias.map(|(index, _)| *index), true, &read)?;
        let epilogue = WinogradEpilogue::of(&chain, &view).filter(|_| chain.links == links.len());
        let Some(WinogradEpilogue { addend, range }) = epilogue else { return Ok(None) };
        layer.range = range;
        let channels_are_contiguous = x.view.strides[1] == 1 && x.view.strides.iter().all(|&stride| stride >= 0);
        let x = if channels_are_contiguous { x.clone() } else { self.in_order(x, &order)? };
        layer.strides = [0, 2, 3].map(|axis| x.view.strides[axis] as usize);
        let Some(weights) = self.pack_as(w, Packing::Winograd(layer.weights))? else { return Ok(None) };
        let view_of = |view: View, buffer| BufferView { buffer, view };
        let weights = view_of(View::dense(&[layer.weights.elements() as i64]), weights);
        let scratch = self.scratch(View::dense(&[layer.scratch() as i64]));
        let target = match chain.sum_into {
            Some(tensor) => tensor,
            None => self.scratch(view),
        };
        let mut tensors = vec![(ffi::ARG_SRC, x), (ffi::ARG_WEIGHTS, weights), (ffi::ARG_SCRATCHPAD, scratch)];
        tensors.extend(bias.map(|(_, bias)| (ffi::ARG_BIAS, bias.clone())));
        tensors.extend(addend.map(|addend| (ffi::ARG_SRC_1, addend)));
        tensors.push((ffi::ARG_DST, target.clone()));
        self.handwritten_step(Operation::Winograd(layer), tensors, "convolution")?;
        self.put_after_chain(op, links, chain.links, target, &dim_map)?;
        Ok(Some(chain.links))
    }

    /// Adds the steps that compute a transposed convolution of `x` with the kernel `w`, of the axes (I, O / groups,
    /// spatial...), as a matrix product and an overlap-add, and returns the number of links that they cover.
    pub fn overlap_add(
        &mut self,
        op: &Op,
        links: &[Link],
        (x, w): (&BufferView, &BufferView),
        (window, groups): (&Window, i64),
        bias: Option<&(usize, BufferView)>,
    ) -> Result<usize> {
        let shape = self.ir.shape(op.output).to_vec();
        let (rank, images) = (shape.len(), shape[0]);
        let unsupported = |detail: &str| CompileError::new(RefusalCode::UnsupportedShape, detail);
        let size = |size: i64| usize::try_from(size).map_err(|_| unsupported("expected dimensions of at least 0"));
        let mut axes = [WindowAxis::UNIT; 3];
        for (i, axis) in (5 - rank..3).enumerate() {
            axes[axis] = WindowAxis {
                input: size(x.view.shape[2 + i])?,
                output: size(shape[2 + i])?,
                taps: size(window.kernel[i])?,
                stride: size(window.strides[i])?,
                dilation: size(window.dilation[i])?,
                padding: size(window.pad_before[i])?,
            };
        }
        let range = [f32::NEG_INFINITY, f32::INFINITY];
        let channels = size(shape[1] / groups)?;
        let mut step = OverlapAdd { images: size(images)?, groups: size(groups)?, channels, axes, range };

        // The data become one row per position, and the kernel one column per tap and output channel.
        let order = channels_last(rank);
        let (rows, columns, inner_dim) = (step.rows() as i64, step.columns() as i64, x.view.shape[1] / groups);
        let x = self.in_order(x, &order)?;
        let kernel_order: Vec<usize> = std::iter::once(0).chain(2..rank).chain([1]).collect();
        let w = self.in_order(w, &kernel_order)?;
        let as_matrix = |tensor: BufferView, order: &[usize], shape: &[i64]| {
            let view = tensor.view.permute(order).reshape(shape);
            view.map(|view| BufferView { view, ..tensor })
                .ok_or_else(|| unsupported("cannot view a tensor as a matrix"))
        };
        let mut data = as_matrix(x, &order, &[rows, groups, inner_dim])?;
        data.view = data.view.permute(&[1, 0, 2]);
        let mut weights = as_matrix(w, &kernel_order, &[groups, inner_dim, columns])?;
        let mut product = self.scratch(View::dense(&[groups, rows, columns]));
        if groups == 1 {
            for tensor in [&mut data, &mut weights, &mut product] {
                tensor.view = View { offset: tensor.view.offset, ..View::dense(&tensor.view.shape[1..]) };
            }
        }
        let attr = self.attr(&[])?;
        let describe = |this: &Self, data: &BufferView| {
            let [src, weights, dst] = [this.desc_of(data)?, this.desc_of(&weights)?, this.desc_of(&product)?];
            let desc = PrimitiveDesc::matmul(
                this.library,
                &Conv { src: &src, weights: &weights, bias: None, dst: &dst },
                &attr,
            )?;
            Ok::<_, OneDnnError>((desc, [src, weights, dst]))
        };
        let mut described = describe(self, &data)?;
        if described.0.is_slow() {
            data = self.row_major(&data)?;
            described = describe(self, &data)?;
        }
        let (desc, [src_desc, weights_desc, dst_desc]) = described;
        let tensors = vec![
            (ffi::ARG_SRC, data, src_desc),
            (ffi::ARG_WEIGHTS, weights, weights_desc),
            (ffi::ARG_DST, product.clone(), dst_desc),
        ];
        self.step(desc, tensors, "transposed convolution")?;

        // The whole chain is computed if it clamps, otherwise only its bias.
        let (dim_map, view) = (DimMap::plain(&shape, &shape), View::in_order(&shape, &order));
        let bias_links = bias.map_or(0, |(index, _)| index + 1);
        let mut fused_links = 0;
        for limit in [links.len(), bias_links] {
            let read = self.read_buffers(&links[..limit]);
            let chain = self.chain(&links[..limit], &dim_map, &view, bias.map(|(index, _)| *index), false, &read)?;
            let epilogue = WinogradEpilogue::of(&chain, &view).filter(|_| chain.links == limit);
            if let Some(WinogradEpilogue { addend: None, range }) = epilogue {
                (step.range, fused_links) = (range, limit);
                break;
            }
        }
        let bias = bias.filter(|(index, _)| *index < fused_links);
        let target = self.scratch(view);
        let mut tensors = vec![(ffi::ARG_SRC, product)];
        tensors.extend(bias.map(|(_, bias)| (ffi::ARG_BIAS, bias.clone())));
        tensors.push((ffi::ARG_DST, target.clone()));
        self.handwritten_step(Operation::OverlapAdd(step), tensors, "transposed convolution")?;
        self.put_after_chain(op, links, fused_links, target, &dim_map)?;
        Ok(fused_links)
    }

    /// Returns the Winograd kernel of a convolution, with the data's strides and the clamp range still unset. Returns
    /// `None` if Winograd does not apply or does not pay off.
    fn winograd_layer(&self, shape: &[i64], x: &BufferView, w: &BufferView, window: &Window) -> Option<Winograd> {
        let is_dense_3x3 = window.strides == [1, 1] && window.dilation == [1, 1] && window.kernel == [3, 3];
        let are_floats = [x, w].iter().all(|tensor| self.dtype(tensor) == DType::F32);
        if !(self.ir.options.winograd && cpu::has_avx512() && is_dense_3x3 && are_floats && self.is_constant(w)) {
            return None;
        }
        let size = |stride: i64| usize::try_from(stride).ok();
        let mut strides = [0; 4];
        for (stride, &stride_in_elements) in strides.iter_mut().zip(&w.view.strides) {
            *stride = size(stride_in_elements)?;
        }
        let weights = WeightLayout { size: [size(w.view.shape[0])?, size(w.view.shape[1])?], strides };
        let layer = Winograd {
            source: [size(x.view.shape[0])?, size(x.view.shape[2])?, size(x.view.shape[3])?],
            strides: [0; 3],
            result: [size(shape[2])?, size(shape[3])?],
            padding: [size(window.pad_before[0])?, size(window.pad_before[1])?],
            weights,
            range: [0.0; 2],
            slots: self.library.threads(),
        };
        // A tile may begin at most two elements before the image.
        let is_bounded = layer.padding.iter().all(|&padding| padding <= 2);
        let fills_registers = weights.size.iter().all(|&channels| channels >= LANES);
        let is_cached = weights.elements() * size_of::<f32>() <= MAX_CACHED_BYTES;
        let has_enough_tiles = layer.tiles() >= if is_cached { MIN_TILES_CACHED } else { MIN_TILES_STREAMED };
        // Weights that another plan has packed are used in that form, so that one packed copy serves both plans.
        let is_profitable = match &self.existing_packings(w)[..] {
            [] => has_enough_tiles,
            packings => packings.contains(&Packing::Winograd(weights)),
        };
        (is_bounded && fills_registers && is_profitable).then_some(layer)
    }

    /// Adds a GEMV step for a constant matrix that several matrix products read, fused with the additions in the chain.
    /// Returns `None` for any other matrix product or chain.
    pub fn gemv(
        &mut self,
        op: &Op,
        links: &[Link],
        (a, b): (&BufferView, &BufferView),
        shape: &[i64],
    ) -> Result<Option<usize>> {
        let are_floats = [a, b].iter().all(|tensor| self.dtype(tensor) == DType::F32);
        let is_shared = self.matrices.is_shared(self.ir, op.inputs[1]);
        let (&[1, columns], &[_, inner_dim]) = (shape, &a.view.shape[..]) else { return Ok(None) };
        if !(is_shared && are_floats && self.is_constant(b))
            || b.view.strides.iter().any(|&stride| stride < 0)
            || a.view.strides[1] != 1
        {
            return Ok(None);
        }
        let size = [inner_dim, columns].map(|size| size as usize);
        let panels = Panels { size, strides: [b.view.strides[0] as usize, b.view.strides[1] as usize] };
        let existing_packings = self.existing_packings(b);
        if !(existing_packings.is_empty() || existing_packings.contains(&Packing::Panels(panels))) {
            return Ok(None);
        }
        let (dim_map, view) = (DimMap::plain(self.ir.shape(op.output), shape), View::dense(shape));
        let mut read = self.read_buffers(links);
        read.push(a.buffer);
        let chain = self.chain(links, &dim_map, &view, None, false, &read)?;
        let Some(addends) = addends(&chain, &view).filter(|_| chain.links == links.len()) else { return Ok(None) };
        let Some(packed_buffer) = self.pack_as(b, Packing::Panels(panels))? else { return Ok(None) };
        let packed_buffer = BufferView { buffer: packed_buffer, view: View::dense(&[panels.elements() as i64]) };
        let step = Gemv { panels, is_backwards: self.matrices.next_direction(self.ir, op.inputs[1]) };
        let target = self.scratch(view);
        let mut tensors = vec![(ffi::ARG_SRC, a.clone()), (ffi::ARG_WEIGHTS, packed_buffer)];
        let indexed_argument = |(indexed_argument, addend)| (ffi::ARG_MULTIPLE_SRC + indexed_argument, addend);
        tensors.extend((0..).zip(addends).map(indexed_argument));
        tensors.push((ffi::ARG_DST, target.clone()));
        self.handwritten_step(Operation::Gemv(step), tensors, "matrix product")?;
        self.put_after_chain(op, links, chain.links, target, &dim_map)?;
        Ok(Some(chain.links))
    }

    /// Adds a step that computes an elementwise function.
    pub fn elementwise(&mut self, op: &Op, function: MathFn) -> Result<usize> {
        let mut x = self.placement(op.inputs[0]);
        if !x.view.is_packed() {
            x = self.row_major(&x)?;
        }
        let shape = self.ir.shape(op.output).to_vec();
        let target = match self.may_overwrite(&x, &[x.buffer]) {
            true => x.clone(),
            false => self.scratch(View::in_order(&shape, &x.view.order())),
        };
        let operation = Operation::Elementwise(Elementwise { function, elements: count(&shape) as usize });
        self.handwritten_step(operation, vec![(ffi::ARG_SRC, x), (ffi::ARG_DST, target.clone())], function.name())?;
        self.put_after_chain(op, &[], 0, target, &DimMap::plain(&shape, &shape))?;
        Ok(0)
    }

    /// Adds a step that computes a recurrent cell.
    pub fn cell(&mut self, op: &Op, kind: CellKind) -> Result<usize> {
        let shape = self.ir.shape(op.output).to_vec();
        let hidden_size = shape.last().copied().unwrap_or(1);
        let rows = match kind {
            CellKind::Lstm(_) => shape[1],
            CellKind::Gru(_) => count(&shape) / hidden_size,
        };
        let mut tensors = Vec::new();
        let mut strides = [0; MAX_OPERANDS];
        for (index, &value) in kind.operand_indices().into_iter().zip(&op.inputs) {
            let mut tensor = self.placement(value);
            let element_count = count(&tensor.view.shape);
            let columns = tensor.view.shape.last().copied().unwrap_or(1);
            let row_shape = [element_count / columns, columns];
            // Gaps between rows are supported; gaps between the elements of a row are not.
            let rows_view = tensor.view.reshape(&row_shape).filter(|view| columns == 1 || view.strides[1] == 1);
            tensor.view = match rows_view {
                Some(view) => view,
                None => {
                    tensor = self.row_major(&tensor)?;
                    tensor.view.reshape(&row_shape).ok_or_else(|| {
                        let detail = format!("cannot reshape {:?} to rows of length {columns}", tensor.view.shape);
                        CompileError::new(RefusalCode::UnsupportedShape, detail)
                    })?
                }
            };
            // A single row is broadcast to all rows.
            strides[index] = if row_shape[0] == 1 { 0 } else { tensor.view.strides[0] as usize };
            tensors.push((index as i32, tensor));
        }
        let out = self.scratch(View::dense(&shape));
        tensors.push((ARG_OUT, out.clone()));
        let cell = Cell { kind, rows: rows as usize, hidden_size: hidden_size as usize, strides };
        self.handwritten_step(Operation::Cell(cell), tensors, kind.name())?;
        self.put_after_chain(op, &[], 0, out, &DimMap::plain(&shape, &shape))?;
        Ok(0)
    }

    /// Adds a step that replaces every NaN with `replacement`: in place if nothing else reads the tensor, otherwise in
    /// a copy.
    pub fn without_nan(&mut self, op: &Op, replacement: f32) -> Result<usize> {
        let x = self.placement(op.inputs[0]);
        let shape = self.ir.shape(op.output).to_vec();
        let result = match self.may_overwrite(&x, &[x.buffer]) {
            true => x,
            false => {
                let copy = self.scratch(View::in_order(&shape, &x.view.order()));
                self.copy(&x, &copy, "copy")?;
                copy
            }
        };
        self.replace_nan(&result, replacement)?;
        self.put_after_chain(op, &[], 0, result, &DimMap::plain(&shape, &shape))?;
        Ok(0)
    }
}

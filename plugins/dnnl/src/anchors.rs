//! Lowering of anchors: the primitives for each kind of operator, and the order in which alternatives are tried.

mod copies;
mod requantize;

use crate::argument::BufferId;
use crate::dim_map::DimMap;
use crate::fuse::Link;
use crate::ir::{CompileError, EltwiseParams, Kind, Op, Result, Val};
use crate::library::{Attr, Conv, Desc, OneDnnError, PrimitiveDesc, Window, ffi};
use crate::lower::{BufferView, Chain, Lowering};
use crate::shape::channels_last;
use crate::sum_requirement::SumRequirement;
use byoc_plugin_api::{DType, RefusalCode};
use byoc_plugin_support::view::{View, count};
use requantize::Requantization;

/// Tensor that a primitive reads: in place, or after a copy into the dense layout of `order`.
#[derive(Clone)]
struct Source {
    arg: i32,
    tensor: BufferView,
    order: Option<Vec<usize>>,
    /// True if the copy is converted to bfloat16.
    bf16: bool,
}

impl Source {
    fn as_is(arg: i32, tensor: &BufferView) -> Source {
        Source { arg, tensor: tensor.clone(), order: None, bf16: false }
    }

    fn reordered(arg: i32, tensor: &BufferView, order: &[usize]) -> Source {
        Source { arg, tensor: tensor.clone(), order: Some(order.to_vec()), bf16: false }
    }

    fn bf16(arg: i32, tensor: &BufferView, order: &[usize]) -> Source {
        Source { bf16: true, ..Source::reordered(arg, tensor, order) }
    }

    fn view(&self) -> View {
        match &self.order {
            None => self.tensor.view.clone(),
            Some(order) => View::in_order(&self.tensor.view.shape, order),
        }
    }
}

/// Destination of a result.
#[derive(Clone)]
enum Target {
    /// New buffer with this layout.
    New(View),
    /// Memory of the first source, in place.
    InPlace(BufferView),
}

impl Target {
    fn view(&self) -> &View {
        match self {
            Target::New(view) => view,
            Target::InPlace(tensor) => &tensor.view,
        }
    }
}

/// Alternatives for computing an anchor.
struct Alternatives<'a> {
    links: &'a [Link],
    /// Sources, in order of preference.
    sources: Vec<Vec<Source>>,
    /// Destinations, in order of preference.
    targets: Vec<Target>,
    /// Index of the link that becomes the primitive's bias, and the bias tensor.
    bias: Option<(usize, BufferView)>,
    /// True if the primitive can accumulate into its destination.
    allows_sum: bool,
    /// Map from the value's dimensions to the dimensions that the primitive sees.
    dim_map: DimMap,
    /// Element type of the result.
    dtype: DType,
    /// What the primitive does with its sums besides: it covers all of `links`.
    requantization: Option<Requantization>,
}

impl<'a> Alternatives<'a> {
    /// Creates alternatives without a bias, for a primitive that cannot accumulate into its destination.
    fn new(links: &'a [Link], sources: Vec<Vec<Source>>, targets: Vec<Target>, dim_map: DimMap, dtype: DType) -> Self {
        Alternatives { links, sources, targets, bias: None, allows_sum: false, dim_map, dtype, requantization: None }
    }
}

/// Chosen alternative, with its tensors in the required layouts.
struct Selection {
    desc: PrimitiveDesc,
    sources: Vec<(i32, BufferView, Desc)>,
    target: BufferView,
    chain: Chain,
    bias: Option<BufferView>,
    dim_map: DimMap,
}

impl Selection {
    fn is_fast(&self) -> bool {
        !self.desc.is_slow()
    }
}

/// Maximum number of output channels of a transposed convolution that is computed as a matrix product and an
/// overlap-add, and maximum number of contributions to an element of its result.
const MAX_OVERLAP_CHANNELS: i64 = 8;
const MAX_OVERLAP: i64 = 8;

fn unsupported_shape(detail: impl Into<String>) -> CompileError {
    CompileError::new(RefusalCode::UnsupportedShape, detail)
}

impl Lowering<'_> {
    /// Adds the steps of an anchor, fused with the longest prefix of its chain that the library supports. Returns the
    /// number of links in that prefix.
    pub fn anchor(&mut self, op: &Op, links: &[Link]) -> Result<usize> {
        match &op.kind {
            Kind::Conv { window, groups, transposed } => self.convolution(op, links, window, *groups, *transposed),
            Kind::MatMul { transpose_a, transpose_b } => self.matmul(op, links, *transpose_a, *transpose_b),
            Kind::Pool { alg, window } => {
                let (alg, library) = (*alg, self.library);
                self.unary_op(op, links, &|s, d, a| PrimitiveDesc::pooling(library, alg, &s[0], d, window, a))
            }
            Kind::Softmax { alg, axis } => {
                let (alg, axis, library) = (*alg, *axis, self.library);
                self.unary_op(op, links, &|s, d, a| PrimitiveDesc::softmax(library, alg, &s[0], d, axis, a))
            }
            Kind::Resample { alg } => {
                let (alg, library) = (*alg, self.library);
                self.unary_op(op, links, &|s, d, a| PrimitiveDesc::resampling(library, alg, &s[0], d, a))
            }
            Kind::Reduce { alg, axes } => self.reduction(op, links, *alg, axes),
            Kind::Eltwise(function) => self.eltwise(op, links, *function),
            Kind::Binary(alg) => self.binary(op, links, *alg),
            Kind::LayerNorm { epsilon } => self.layer_norm(op, links, *epsilon),
            Kind::Prelu => self.prelu(op, links),
            Kind::Cell(kind) => self.cell(op, *kind),
            Kind::Concat { axis } => self.concat(op, *axis),
            Kind::Pad { pad_before } => self.pad(op, pad_before, 0),
            Kind::PadBytes { pad_before, value } => self.pad(op, pad_before, *value),
            Kind::Stage(_) => self.stages(op, links),
            Kind::IntAvgPool(pool) => self.int_avg_pool(op, pool),
            Kind::MathFn(function) => self.elementwise(op, *function),
            Kind::NoNan(replacement) => self.without_nan(op, *replacement),
            Kind::IsNan => Err(CompileError::new(
                RefusalCode::UnsupportedOp,
                "supported only in where(isnan(x), c, x) with a constant c",
            )),
            Kind::Erf => Err(CompileError::new(RefusalCode::UnsupportedOp, "supported only as part of GELU")),
            Kind::Reshape | Kind::Transpose(_) | Kind::Slice { .. } => {
                Err(unsupported_shape("expected an operator that oneDNN implements, found a view operator"))
            }
        }
    }

    /// Returns the first alternative that the library implements. Longer chain prefixes are tried before shorter
    /// prefixes, and oneDNN's reference implementations last.
    fn select(
        &mut self,
        alternatives: &Alternatives<'_>,
        make: &dyn Fn(&[Desc], &Desc, &Attr, bool) -> Result<PrimitiveDesc, OneDnnError>,
    ) -> Result<Selection> {
        let chain_reads = self.read_buffers(alternatives.links);
        let mut failure = OneDnnError::from("oneDNN has no implementation of this operator");
        for reference in [false, true] {
            let mut limit = alternatives.links.len() + 1;
            while limit > 0 {
                limit -= 1;
                let links = &alternatives.links[..limit];
                let bias = alternatives.bias.as_ref().filter(|(index, _)| *index < limit);
                if alternatives.requantization.is_some() && (reference || limit < alternatives.links.len()) {
                    return Err(failure.into());
                }
                let mut fused_count = 0;
                for sources in &alternatives.sources {
                    let own_buffers = sources.iter().map(|source| source.tensor.buffer);
                    let read: Vec<BufferId> = own_buffers.chain(chain_reads.iter().copied()).collect();
                    for target in &alternatives.targets {
                        let bias_index = bias.map(|(index, _)| *index);
                        let chain = match &alternatives.requantization {
                            Some(requantization) => requantization.chain(),
                            None => self.chain(
                                links,
                                &alternatives.dim_map,
                                target.view(),
                                bias_index,
                                alternatives.allows_sum,
                                &read,
                            )?,
                        };
                        fused_count = fused_count.max(chain.links);
                        if let Target::InPlace(tensor) = target {
                            let sums_elsewhere = chain.sum_into.is_some();
                            if sums_elsewhere || !self.is_free_for(tensor, &read, sources.first()) {
                                continue;
                            }
                        }
                        match self.try_desc(sources, (alternatives.dtype, target.view()), &chain, bias.is_some(), make)
                        {
                            Ok(desc) if reference || !desc.is_slow() => {
                                let has_bias = bias.is_some();
                                return self.materialize(desc, sources, target, chain, has_bias, alternatives);
                            }
                            Ok(_) => {}
                            Err(memory @ OneDnnError::OutOfMemory(_)) => return Err(memory.into()),
                            Err(label) => failure = label,
                        }
                    }
                }
                // No attempt fused more than `fused_count` links, so only shorter prefixes are tried next.
                limit = limit.min(fused_count.max(1));
            }
        }
        Err(failure.into())
    }

    /// Returns the element type in which the primitive reads `source`.
    fn read_as(&self, source: &Source) -> DType {
        if source.bf16 { DType::BF16 } else { self.dtype(&source.tensor) }
    }

    /// Returns true if the result may be written to `tensor`, which may share its buffer with `first_source`.
    fn is_free_for(&self, tensor: &BufferView, read: &[BufferId], first_source: Option<&Source>) -> bool {
        match first_source {
            Some(source) if source.tensor.buffer == tensor.buffer => {
                source.order.is_none() && self.may_overwrite(tensor, read)
            }
            _ => true,
        }
    }

    fn try_desc(
        &self,
        sources: &[Source],
        (dtype, target): (DType, &View),
        chain: &Chain,
        bias: bool,
        make: &dyn Fn(&[Desc], &Desc, &Attr, bool) -> Result<PrimitiveDesc, OneDnnError>,
    ) -> Result<PrimitiveDesc, OneDnnError> {
        let desc_of_source = |source: &Source| self.desc_as(self.read_as(source), &source.view());
        let descs: Vec<Desc> = sources.iter().map(desc_of_source).collect::<Result<_, OneDnnError>>()?;
        let desc = make(&descs, &self.desc_as(dtype, target)?, &self.attr(&chain.post_ops)?, bias)?;
        tracing::trace!("tried: {}", desc.implementation());
        Ok(desc)
    }

    fn materialize(
        &mut self,
        desc: PrimitiveDesc,
        sources: &[Source],
        target: &Target,
        chain: Chain,
        bias: bool,
        alternatives: &Alternatives<'_>,
    ) -> Result<Selection> {
        let mut tensors = Vec::new();
        for source in sources {
            let tensor = match &source.order {
                None => source.tensor.clone(),
                Some(order) if source.bf16 => self.bf16_copy(&source.tensor, order)?,
                Some(order) => self.in_order(&source.tensor, order)?,
            };
            let layout = self.desc_of(&tensor)?;
            tensors.push((source.arg, tensor, layout));
        }
        let target = match (&chain.sum_into, target) {
            (Some(tensor), _) | (None, Target::InPlace(tensor)) => tensor.clone(),
            (None, Target::New(view)) => self.scratch_of(alternatives.dtype, view.clone()),
        };
        let bias = alternatives.bias.as_ref().filter(|_| bias).map(|(_, bias)| bias.clone());
        Ok(Selection { desc, sources: tensors, target, chain, bias, dim_map: alternatives.dim_map.clone() })
    }

    /// Adds the step of the chosen alternative with the additional arguments `extra_args`, and records the placement of
    /// its result.
    fn emit(
        &mut self,
        op: &Op,
        links: &[Link],
        selection: Selection,
        extra_args: Vec<(i32, BufferView, Desc)>,
        label: &str,
    ) -> Result<usize> {
        let Selection { desc, mut sources, target, chain, dim_map, .. } = selection;
        sources.extend(extra_args);
        sources.push((ffi::ARG_DST, target.clone(), self.desc_of(&target)?));
        sources.extend(self.post_op_args(&chain.post_ops)?);
        self.step(desc, sources, label)?;
        self.put_after_chain(op, links, chain.links, target, &dim_map)?;
        Ok(chain.links)
    }

    /// Lowers an operator with one source and a result in the same memory order; if necessary, the source is copied to
    /// channels-last or row-major order.
    fn unary_op(
        &mut self,
        op: &Op,
        links: &[Link],
        make: &dyn Fn(&[Desc], &Desc, &Attr) -> Result<PrimitiveDesc, OneDnnError>,
    ) -> Result<usize> {
        let x = self.placement(op.inputs[0]);
        let shape = self.ir.shape(op.output).to_vec();
        let dtype = self.ir.get(op.output).dtype;
        let rank = shape.len();
        let row: Vec<usize> = (0..rank).collect();
        let orders = match op.kind {
            // Only the innermost dimension, or the last one of several, is fast in every implementation.
            Kind::Softmax { axis, .. } => {
                let innermost = (0..rank).filter(|&d| d != axis).chain([axis]).collect();
                vec![x.view.order(), row, innermost]
            }
            _ => vec![x.view.order(), channels_last(rank), row],
        };
        let mut selection = None;
        let mut failure = None;
        'search: for fused_links in [links, &[]] {
            for order in &orders {
                let targets = vec![Target::New(View::in_order(&shape, order))];
                let dim_map = DimMap::plain(&shape, &shape);
                // A source that has this order is not copied. Its unit dimensions get the usual strides: the library has
                // only reference code for others.
                let sources = vec![vec![Source::reordered(ffi::ARG_SRC, &x, order)]];
                let alternatives = Alternatives::new(fused_links, sources, targets, dim_map, dtype);
                match self.select(&alternatives, &|s, d, a, _| make(s, d, a)) {
                    Ok(found) if !found.desc.is_slow() => {
                        selection = Some(found);
                        break 'search;
                    }
                    Ok(desc) => selection = selection.or(Some(desc)),
                    Err(reason) if reason.code == RefusalCode::ResourceLimit => return Err(reason),
                    Err(reason) => failure = Some(reason),
                }
            }
        }
        match (selection, failure) {
            (Some(selection), _) => self.emit(op, links, selection, Vec::new(), "unary"),
            (None, Some(reason)) => Err(reason),
            (None, None) => Err(unsupported_shape("oneDNN has no implementation of this operator")),
        }
    }

    fn convolution(
        &mut self,
        op: &Op,
        links: &[Link],
        window: &Window,
        groups: i64,
        transposed: bool,
    ) -> Result<usize> {
        let (x, w) = (self.placement(op.inputs[0]), self.placement(op.inputs[1]));
        let shape = self.ir.shape(op.output).to_vec();
        let dtype = self.ir.get(op.output).dtype;
        let all_links = links;
        // Stages after an integer accumulation that the primitive does not compute are left to the `qnn` module.
        let links = if dtype == DType::F32 { links } else { &[] };
        let layout = channels_last(shape.len());
        let weights = kernel(&w, groups, transposed).ok_or_else(|| {
            unsupported_shape(format!("cannot split a kernel of shape {:?} into {groups} groups", w.view.shape))
        })?;
        let any_desc = Desc::any(self.library, self.dtype(&weights), &weights.view.shape)?;
        // Layouts into which another plan has packed the weights come first, so that one packed copy serves both plans.
        // Weights that are computed or passed at run time are copied into the chosen layout in each run.
        let mut weight_layouts = self.existing_layouts(&weights);
        weight_layouts.push(any_desc);
        let bf16 = self.should_use_bf16(&x, &weights, count(&shape) * (count(&weights.view.shape) / shape[1].max(1)));
        if bf16 {
            weight_layouts.push(Desc::any(self.library, DType::BF16, &weights.view.shape)?);
        }
        let bias = self.bias(op, links, 1, &shape);
        if !(bf16 || transposed || groups > 1)
            && let Some(step) = self.winograd(op, links, (&x, &w), window, bias.as_ref())?
        {
            return Ok(step);
        }
        let has_few_channels = shape[1] / groups <= MAX_OVERLAP_CHANNELS
            && count(&window.kernel) <= MAX_OVERLAP * count(&window.strides)
            && groups == 1
            && window.strides.iter().any(|&stride| stride > 1);
        let parts = (&x, &w);
        if transposed && dtype == DType::F32 && !bf16 && has_few_channels {
            return self.overlap_add(op, links, parts, (window, groups), bias.as_ref());
        }
        let bias_desc = Desc::with_strides(self.library, DType::F32, &[shape[1]], &[1])?;
        let mut sources = Vec::new();
        if bf16 {
            sources.push(vec![Source::bf16(ffi::ARG_SRC, &x, &layout)]);
        }
        if x.view.is_packed() {
            sources.push(vec![Source::as_is(ffi::ARG_SRC, &x)]);
        }
        sources.push(vec![Source::reordered(ffi::ARG_SRC, &x, &layout)]);
        let targets = vec![Target::New(View::in_order(&shape, &layout))];
        let dim_map = DimMap::plain(&shape, &shape);
        let (library, requirement) = (self.library, SumRequirement::of(self.ir, op.output)?);
        let limits_retained_code = self.ir.limits_retained_code;
        let alternatives = Alternatives {
            bias: bias.clone(),
            allows_sum: true,
            ..Alternatives::new(links, sources, targets, dim_map, dtype)
        };
        let dst = View::in_order(&shape, &layout);
        let requantized = self.requantized(op, all_links, (1, dst), &weights, &alternatives)?;
        let make = |s: &[Desc], d: &Desc, attr: &Attr, with_bias: bool| {
            let mut outcome = Err("oneDNN has no implementation of this operator".into());
            for weights in &weight_layouts {
                let bias = with_bias.then_some(&bias_desc);
                let io = Conv { src: &s[0], weights, bias, dst: d };
                outcome = match transposed {
                    false => PrimitiveDesc::convolution(library, &io, window, attr),
                    true => PrimitiveDesc::deconvolution(library, &io, window, attr),
                };
                outcome = match dtype {
                    // The library recognizes equal kernels of accumulations without post-ops.
                    DType::I32 if !attr.has_post_ops() => outcome.map(PrimitiveDesc::without_retained_key),
                    _ if limits_retained_code => outcome.and_then(PrimitiveDesc::within_retained_limit),
                    _ => outcome,
                };
                outcome = outcome.and_then(|desc| requirement.check(desc, attr));
                if outcome.as_ref().is_ok_and(|desc| !desc.is_slow()) {
                    break;
                }
            }
            outcome
        };
        let selection = match self.select_first(requantized.as_ref(), &alternatives, &make) {
            Err(reason) if reason.code == RefusalCode::ResourceLimit => return Err(reason),
            // The library rejects some windows of transposed convolutions, and has only reference code for others.
            outcome if transposed && dtype == DType::F32 && !outcome.as_ref().is_ok_and(Selection::is_fast) => {
                return self.overlap_add(op, links, parts, (window, groups), bias.as_ref());
            }
            outcome => outcome?,
        };
        let mut extra_args = vec![self.weights(&selection, &weights)?];
        extra_args.extend(selection.bias.clone().map(|bias| (ffi::ARG_BIAS, bias, bias_desc)));
        self.emit(
            op,
            all_links,
            selection,
            extra_args,
            if transposed { "transposed convolution" } else { "convolution" },
        )
    }

    /// Returns the weights in the layout that the primitive chose.
    fn weights(&mut self, selection: &Selection, weights: &BufferView) -> Result<(i32, BufferView, Desc)> {
        let layout = selection.desc.weights()?;
        if layout == self.desc_of(weights)? {
            return Ok((ffi::ARG_WEIGHTS, weights.clone(), layout));
        }
        let buffer = match self.pack(weights, layout.clone())? {
            Some(buffer) => buffer,
            None => self.copy_into_layout(weights, &layout)?,
        };
        let view = View { offset: 0, ..weights.view.clone() };
        Ok((ffi::ARG_WEIGHTS, BufferView { buffer, view }, layout))
    }

    /// Returns the index and the operand of the first non-view link, if that link adds a bias: one value per index
    /// along `axis` of the result.
    fn bias(&mut self, op: &Op, links: &[Link], axis: usize, exec_shape: &[i64]) -> Option<(usize, BufferView)> {
        let index = links.iter().position(|link| !matches!(link, Link::View(_)))?;
        let Link::Binary { op: op_index, operand: other } = links[index] else { return None };
        if self.ir.ops[op_index].kind != Kind::Binary(ffi::BINARY_ADD) {
            return None;
        }
        let dim_map = DimMap::plain(self.ir.shape(op.output), exec_shape);
        let tensor = self.operand(other, &links[..index], &dim_map)?;
        let is_per_channel =
            tensor.view.shape.iter().enumerate().all(|(d, &size)| size == if d == axis { exec_shape[d] } else { 1 });
        (is_per_channel && tensor.view.is_packed()).then_some((index, tensor))
    }

    fn matmul(&mut self, op: &Op, links: &[Link], transpose_a: bool, transpose_b: bool) -> Result<usize> {
        let mut a = self.placement(op.inputs[0]);
        let mut b = self.placement(op.inputs[1]);
        let swap = |tensor: &mut BufferView| {
            let rank = tensor.view.shape.len();
            let mut axes: Vec<usize> = (0..rank).collect();
            axes.swap(rank - 2, rank - 1);
            tensor.view = tensor.view.permute(&axes);
        };
        if transpose_a {
            swap(&mut a);
        }
        if transpose_b {
            swap(&mut b);
        }
        let dtype = self.ir.get(op.output).dtype;
        let all_links = links;
        // Stages after an integer accumulation that the primitive does not compute are left to the `qnn` module.
        let links = if dtype == DType::F32 { links } else { &[] };
        let mut shape = self.ir.shape(op.output).to_vec();
        let rank = shape.len();
        if b.view.shape.len() == 2 && rank > 2 {
            // If all batches share one right operand, the batches are folded into the rows.
            let (rows, columns) = (count(&shape[..rank - 1]), shape[rank - 1]);
            let inner_dim = a.view.shape[rank - 1];
            let flat_view = match a.view.reshape(&[rows, inner_dim]) {
                Some(view) => BufferView { view, ..a },
                None => {
                    let copy = self.row_major(&a)?;
                    let view = copy.view.reshape(&[rows, inner_dim]);
                    let view = view.ok_or_else(|| {
                        unsupported_shape(format!("cannot reshape {:?} to rows of length {inner_dim}", copy.view.shape))
                    })?;
                    BufferView { view, ..copy }
                }
            };
            a = flat_view;
            shape = vec![rows, columns];
        }
        let rank = shape.len();
        let row: Vec<usize> = (0..rank).collect();
        let is_constant = self.is_constant(&b);
        let bias = self.bias(op, links, rank - 1, &shape);
        let mut bias_shape = vec![1; rank];
        bias_shape[rank - 1] = shape[rank - 1];
        let bias_desc = self.desc(&View::dense(&bias_shape))?;

        let mut weight_layouts = Vec::new();
        if is_constant {
            weight_layouts = self.existing_layouts(&b);
            weight_layouts.push(Desc::any(self.library, self.dtype(&b), &b.view.shape)?);
        }
        let bf16 = self.should_use_bf16(&a, &b, count(&shape) * a.view.shape[a.view.shape.len() - 1]);
        if bf16 {
            weight_layouts.push(Desc::any(self.library, DType::BF16, &b.view.shape)?);
        }
        if !bf16 && let Some(step) = self.gemv(op, links, (&a, &b), &shape)? {
            return Ok(step);
        }
        // Operands are tried in place first, then with one or both operands copied; a copy of the right operand keeps
        // the order of its rows and columns.
        let mut columns = row.clone();
        if rank >= 2 && b.view.strides[b.view.strides.len() - 2] < b.view.strides[b.view.strides.len() - 1] {
            columns.swap(rank - 2, rank - 1);
        }
        let mut sources = Vec::new();
        if bf16 {
            sources.push(vec![Source::bf16(ffi::ARG_SRC, &a, &row)]);
        }
        for (copy_a, copy_b) in [(false, false), (true, false), (false, true), (true, true)] {
            let source_of = |arg, tensor: &BufferView, order: &[usize], copy: bool| match copy {
                true => Source::reordered(arg, tensor, order),
                false => Source::as_is(arg, tensor),
            };
            let mut pair = vec![source_of(ffi::ARG_SRC, &a, &row, copy_a)];
            if !is_constant {
                pair.push(source_of(ffi::ARG_WEIGHTS, &b, &columns, copy_b));
            }
            if !(is_constant && copy_b) {
                sources.push(pair);
            }
        }
        let mut targets = Vec::new();
        let before_views = links.iter().take_while(|link| !matches!(link, Link::View(_)));
        if let Some(order) = self.preferred_order(before_views.last().map_or(op.output, |l| self.ir.ops[l.op()].output))
            && shape == self.ir.shape(op.output)
            && order.last() == Some(&(rank - 1))
        {
            targets.push(Target::New(View::in_order(&shape, &order)));
        }
        targets.push(Target::New(View::dense(&shape)));
        let dim_map = DimMap::plain(self.ir.shape(op.output), &shape);
        let alternatives =
            Alternatives { bias, allows_sum: true, ..Alternatives::new(links, sources, targets, dim_map, dtype) };
        let requantized = match alternatives.dim_map.to_value(&View::dense(&shape)) {
            Some(dst) => self.requantized(op, all_links, (dst.shape.len() - 1, dst), &b, &alternatives)?,
            None => None,
        };
        let (library, requirement) = (self.library, SumRequirement::of(self.ir, op.output)?);
        let make = |s: &[Desc], d: &Desc, attr: &Attr, with_bias: bool| {
            let bias = with_bias.then_some(&bias_desc);
            let mut outcome = Err("oneDNN has no implementation of this operator".into());
            for weights in weight_layouts.iter().chain(s.get(1)) {
                let io = Conv { src: &s[0], weights, bias, dst: d };
                outcome = PrimitiveDesc::matmul(library, &io, attr).and_then(|desc| requirement.check(desc, attr));
                if outcome.as_ref().is_ok_and(|desc| !desc.is_slow()) {
                    break;
                }
            }
            outcome
        };
        // oneDNN's general GEMM accepts any strides but runs one batch at a time. Copying the operands for a faster
        // implementation is cheaper, so the general GEMM is a last resort.
        let specialized = |s: &[Desc], d: &Desc, attr: &Attr, with_bias: bool| match make(s, d, attr, with_bias) {
            Ok(desc) if desc.is_general_product() => {
                Err("expected a specialized GEMM of oneDNN, found only the general GEMM".into())
            }
            outcome => outcome,
        };
        let selection_without_gemm = self.select_first(requantized.as_ref(), &alternatives, &specialized);
        let selection = match selection_without_gemm {
            Ok(selection) if !selection.desc.is_slow() => selection,
            _ => self.select(&alternatives, &make)?,
        };
        let mut extra_args = Vec::new();
        if is_constant {
            extra_args.push(self.weights(&selection, &b)?);
        }
        extra_args.extend(selection.bias.clone().map(|bias| (ffi::ARG_BIAS, bias, bias_desc)));
        self.emit(op, all_links, selection, extra_args, "matrix product")
    }

    fn eltwise(&mut self, op: &Op, links: &[Link], function: EltwiseParams) -> Result<usize> {
        let x = self.placement(op.inputs[0]);
        let order = x.view.order();
        let library = self.library;
        let f = (function.alg, function.alpha, function.beta);
        self.pointwise(op, links, vec![(ffi::ARG_SRC, x)], &order, &|s, d, a, _| {
            PrimitiveDesc::eltwise(library, f, &s[0], d, a)
        })
    }

    /// Lowers an elementwise function. The first operand has the result's shape and the memory order `order`; a second
    /// operand broadcasts to the first. The primitive sees as few dimensions as possible, and the chain is not fused if
    /// that would select a slow implementation.
    fn pointwise(
        &mut self,
        op: &Op,
        links: &[Link],
        operands: Vec<(i32, BufferView)>,
        order: &[usize],
        make: &dyn Fn(&[Desc], &Desc, &Attr, bool) -> Result<PrimitiveDesc, OneDnnError>,
    ) -> Result<usize> {
        let operand_shape = operands.get(1).map(|(_, tensor)| tensor.view.shape.clone());
        let mut best_selection: Option<Selection> = None;
        let mut failure = unsupported_shape("oneDNN has no implementation of this operator");
        let candidates = [links, &[]];
        for fused_links in &candidates[..if links.is_empty() { 1 } else { 2 }] {
            let dim_map = self.collapsed_dims(op, fused_links, order, operand_shape.as_deref());
            let mut sources = Vec::new();
            for (arg, tensor) in &operands {
                let tensor = self.in_order(tensor, order)?;
                let exec_view = dim_map.to_exec(&tensor.view);
                let exec_view = exec_view.ok_or_else(|| {
                    unsupported_shape(format!(
                        "cannot merge the dimensions of an operand of shape {:?}",
                        tensor.view.shape
                    ))
                })?;
                sources.push(Source::as_is(*arg, &BufferView { view: exec_view, ..tensor }));
            }
            let mut targets = Vec::new();
            if sources[1..].iter().all(|source| source.tensor.buffer != sources[0].tensor.buffer) {
                targets.push(Target::InPlace(sources[0].tensor.clone()));
            }
            targets.push(Target::New(View::dense(&dim_map.exec_shape)));
            let alternatives = Alternatives::new(fused_links, vec![sources], targets, dim_map, DType::F32);
            match self.select(&alternatives, make) {
                Ok(selection) if !selection.desc.is_slow() => {
                    best_selection = Some(selection);
                    break;
                }
                Ok(selection) => best_selection = best_selection.or(Some(selection)),
                Err(reason) if reason.code == RefusalCode::ResourceLimit => return Err(reason),
                Err(reason) => failure = reason,
            }
        }
        let label = if operands.len() == 1 { "elementwise" } else { "binary" };
        self.emit(op, links, best_selection.ok_or(failure)?, Vec::new(), label)
    }

    /// Returns a source for `x` and its memory order; a tensor with gaps is copied to the dense layout of that order.
    fn packed_source(&self, arg: i32, x: &BufferView) -> (Source, Vec<usize>) {
        let order = x.view.order();
        match x.view.is_packed() {
            true => (Source::as_is(arg, x), order),
            false => (Source::reordered(arg, x, &order), order),
        }
    }

    fn binary(&mut self, op: &Op, links: &[Link], alg: i32) -> Result<usize> {
        let shape = self.ir.shape(op.output).to_vec();
        let to_full_rank = |this: &mut Self, value: Val| {
            let tensor = this.placement(value);
            let leading_dims = shape.len() - tensor.view.shape.len();
            let full_shape: Vec<i64> =
                std::iter::repeat_n(1, leading_dims).chain(tensor.view.shape.iter().copied()).collect();
            let view = tensor.view.reshape(&full_shape);
            view.map(|view| BufferView { view, ..tensor })
                .ok_or_else(|| unsupported_shape(format!("cannot reshape an operand to shape {full_shape:?}")))
        };
        let (mut a, mut b) = (to_full_rank(self, op.inputs[0])?, to_full_rank(self, op.inputs[1])?);
        if a.view.shape != shape {
            if b.view.shape != shape {
                return Err(unsupported_shape(format!(
                    "expected an operand of the result's shape {shape:?}, found shapes {:?} and {:?}",
                    a.view.shape, b.view.shape
                )));
            }
            match alg {
                ffi::BINARY_SUB | ffi::BINARY_DIV => return self.reversed_binary(op, links, alg, a, b),
                _ => std::mem::swap(&mut a, &mut b),
            }
        } else if b.view.shape == shape
            && self.ir.constant(op.inputs[0]).is_some()
            && !matches!(alg, ffi::BINARY_SUB | ffi::BINARY_DIV)
        {
            std::mem::swap(&mut a, &mut b);
        }
        let order = a.view.order();
        let library = self.library;
        self.pointwise(op, links, vec![(ffi::ARG_SRC, a), (ffi::ARG_SRC_1, b)], &order, &|s, d, attr, _| {
            PrimitiveDesc::binary(library, alg, &s[0], &s[1], d, attr)
        })
    }

    /// Lowers `a - b` and `a / b` with a broadcast `a` as `-b + a` and `b^-1 * a`, because the library broadcasts only
    /// the second operand.
    fn reversed_binary(&mut self, op: &Op, links: &[Link], alg: i32, a: BufferView, b: BufferView) -> Result<usize> {
        let (function, binary_alg) = match alg {
            ffi::BINARY_SUB => ((ffi::ELTWISE_LINEAR, -1.0, 0.0), ffi::BINARY_ADD),
            _ => ((ffi::ELTWISE_POW, 1.0, -1.0), ffi::BINARY_MUL),
        };
        let order = b.view.order();
        let b = self.in_order(&b, &order)?;
        let intermediate = self.scratch(View { offset: 0, ..b.view.clone() });
        // The function does not depend on the order of elements.
        let flat = self.desc(&View::dense(&[count(&b.view.shape)]))?;
        let desc = PrimitiveDesc::eltwise(self.library, function, &flat, &flat, &self.attr(&[])?)?;
        let tensors = vec![(ffi::ARG_SRC, b, flat.clone()), (ffi::ARG_DST, intermediate.clone(), flat)];
        self.step(desc, tensors, "elementwise")?;
        let library = self.library;
        let operands = vec![(ffi::ARG_SRC, intermediate), (ffi::ARG_SRC_1, a)];
        self.pointwise(op, links, operands, &order, &|s, d, attr, _| {
            PrimitiveDesc::binary(library, binary_alg, &s[0], &s[1], d, attr)
        })
    }

    fn prelu(&mut self, op: &Op, links: &[Link]) -> Result<usize> {
        let (x, slope) = (self.placement(op.inputs[0]), self.placement(op.inputs[1]));
        let shape = self.ir.shape(op.output).to_vec();
        let (source, order) = self.packed_source(ffi::ARG_SRC, &x);
        let slope_source = Source::reordered(ffi::ARG_WEIGHTS, &slope, &order);
        let targets = vec![Target::New(View::in_order(&shape, &order))];
        let dim_map = DimMap::plain(&shape, &shape);
        let alternatives = Alternatives::new(links, vec![vec![source, slope_source]], targets, dim_map, DType::F32);
        let library = self.library;
        let selection =
            self.select(&alternatives, &|s, d, attr, _| PrimitiveDesc::prelu(library, &s[0], &s[1], d, attr))?;
        self.emit(op, links, selection, Vec::new(), "prelu")
    }

    fn layer_norm(&mut self, op: &Op, links: &[Link], epsilon: f32) -> Result<usize> {
        let x = self.placement(op.inputs[0]);
        let shape = self.ir.shape(op.output).to_vec();
        let width = shape[shape.len() - 1];
        // Every implementation supports a row-major matrix.
        let (rows, x) = match x.view.reshape(&[count(&shape) / width, width]).filter(View::is_dense) {
            Some(view) => (view.shape.clone(), BufferView { view, ..x }),
            None => {
                let copy = self.row_major(&x)?;
                let view = copy.view.reshape(&[count(&shape) / width, width]);
                let view = view.ok_or_else(|| {
                    unsupported_shape(format!("cannot reshape {:?} to rows of length {width}", copy.view.shape))
                })?;
                (view.shape.clone(), BufferView { view, ..copy })
            }
        };
        let mut extra_args = Vec::new();
        for (arg, &value) in [ffi::ARG_SCALE, ffi::ARG_SHIFT].into_iter().zip(&op.inputs[1..]) {
            let tensor = self.placement(value);
            if tensor.view.shape != [width] {
                return Err(unsupported_shape(format!(
                    "expected scale and shift of shape [{width}], found {:?}",
                    tensor.view.shape
                )));
            }
            let tensor = self.row_major(&tensor)?;
            let desc = self.desc(&tensor.view)?;
            extra_args.push((arg, tensor, desc));
        }
        let sources = vec![vec![Source::as_is(ffi::ARG_SRC, &x)]];
        let targets = vec![Target::New(View::dense(&rows))];
        let dim_map = DimMap::plain(&shape, &rows);
        let alternatives = Alternatives::new(links, sources, targets, dim_map, DType::F32);
        let library = self.library;
        let selection =
            self.select(&alternatives, &|s, d, attr, _| PrimitiveDesc::layer_norm(library, &s[0], d, epsilon, attr))?;
        self.emit(op, links, selection, extra_args, "layer normalization")
    }

    fn reduction(&mut self, op: &Op, links: &[Link], alg: i32, axes: &[usize]) -> Result<usize> {
        let x = self.placement(op.inputs[0]);
        let shape = self.ir.shape(op.output).to_vec();
        // oneDNN's reductions are fast if the reduced dimensions are the last ones, in memory and in the shape, so the
        // second form is a matrix whose columns are reduced.
        let mut reduced_last: Vec<usize> = x.view.order().into_iter().filter(|d| !axes.contains(d)).collect();
        reduced_last.extend(axes);
        let kept = count(&shape);
        let mut sources = Vec::new();
        if x.view.is_packed() {
            let target = View::in_order(&shape, &x.view.order());
            sources.push((Source::as_is(ffi::ARG_SRC, &x), target, DimMap::plain(&shape, &shape)));
        }
        let library = self.library;
        let mut best_selection = None;
        for form in 0..=sources.len() {
            let (source, target, dim_map) = match sources.get(form) {
                Some(form) => form.clone(),
                None => {
                    let matrix = self.in_order(&x, &reduced_last)?;
                    let view = matrix.view.permute(&reduced_last).reshape(&[kept, count(&x.view.shape) / kept]);
                    let view = view.ok_or_else(|| {
                        unsupported_shape(format!("cannot view shape {:?} as a matrix", x.view.shape))
                    })?;
                    let source = Source::as_is(ffi::ARG_SRC, &BufferView { view, ..matrix });
                    (source, View::dense(&[kept, 1]), DimMap::in_order(&shape, &reduced_last, &[kept, 1]))
                }
            };
            let targets = vec![Target::New(target)];
            let alternatives = Alternatives::new(links, vec![vec![source]], targets, dim_map, DType::F32);
            let selection =
                self.select(&alternatives, &|s, d, a, _| PrimitiveDesc::reduction(library, alg, &s[0], d, a))?;
            let is_optimized = !selection.desc.is_slow();
            best_selection = Some(selection);
            if is_optimized {
                break;
            }
        }
        let selection =
            best_selection.ok_or_else(|| unsupported_shape("oneDNN has no implementation of this operator"))?;
        self.emit(op, links, selection, Vec::new(), "reduction")
    }
}

/// Returns a view of convolution weights with the axes in oneDNN's order: (G, O / G, I / G, spatial...), or (O, I,
/// spatial...) if `groups` is 1.
fn kernel(w: &BufferView, groups: i64, is_transposed: bool) -> Option<BufferView> {
    let mut view = w.view.clone();
    let rank = view.shape.len();
    if groups > 1 {
        let mut shape = vec![groups, view.shape[0] / groups];
        shape.extend_from_slice(&view.shape[1..]);
        view = view.reshape(&shape)?;
    }
    if is_transposed {
        // Swaps (I, O, ...) to (O, I, ...).
        let input_axis = usize::from(groups > 1);
        let mut axes: Vec<usize> = (0..view.shape.len()).collect();
        axes.swap(input_axis, input_axis + 1);
        view = view.permute(&axes);
    }
    debug_assert!(view.shape.len() == rank + usize::from(groups > 1));
    Some(BufferView { buffer: w.buffer, view })
}

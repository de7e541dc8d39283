//! Primitives for each kind of operator, and the alternatives that are tried.

use crate::argument::Buf;
use crate::frame::Frame;
use crate::fuse::Link;
use crate::join::{Join, MOST_PARTS, Part};
use crate::library::{Attr, Conv, Desc, Failure, Outcome, PrimitiveDesc, Window, ffi};
use crate::lower::{Chain, Lowering, Placed};
use crate::plan::Work;
use crate::program::{Function, Kind, Op, Reason, Taken, Val};
use crate::trust::Trust;
use crate::view::{View, channels_last, count};
use byoc_plugin_api::{DType, RefusalCode};

/// Tensor that a primitive reads: in place, or copied into a dense layout of the given order.
#[derive(Clone)]
struct Source {
    arg: i32,
    placed: Placed,
    order: Option<Vec<usize>>,
    /// True if the copy is converted to bfloat16.
    narrow: bool,
}

impl Source {
    fn as_is(arg: i32, placed: &Placed) -> Source {
        Source { arg, placed: placed.clone(), order: None, narrow: false }
    }

    fn copied(arg: i32, placed: &Placed, order: &[usize]) -> Source {
        Source { arg, placed: placed.clone(), order: Some(order.to_vec()), narrow: false }
    }

    fn narrowed(arg: i32, placed: &Placed, order: &[usize]) -> Source {
        Source { narrow: true, ..Source::copied(arg, placed, order) }
    }

    fn view(&self) -> View {
        match &self.order {
            None => self.placed.view.clone(),
            Some(order) => View::in_order(&self.placed.view.shape, order),
        }
    }
}

/// Destination of a result.
#[derive(Clone)]
enum Target {
    /// New memory with this layout.
    New(View),
    /// Memory of the first source, in place.
    There(Placed),
}

impl Target {
    fn view(&self) -> &View {
        match self {
            Target::New(view) => view,
            Target::There(placed) => &placed.view,
        }
    }
}

/// Alternatives for computing an anchor.
struct Ways<'a> {
    links: &'a [Link],
    /// Sources, in order of preference.
    sources: Vec<Vec<Source>>,
    /// Destinations, in order of preference.
    targets: Vec<Target>,
    /// Link that the primitive computes as its bias, and the bias tensor.
    bias: Option<(usize, Placed)>,
    /// True if the primitive can accumulate into its destination.
    sums: bool,
    /// Frame through which the primitive sees its result.
    frame: Frame,
    /// Element type of the result.
    dtype: DType,
}

/// Alternative that was chosen.
struct Settled {
    desc: PrimitiveDesc,
    sources: Vec<(i32, Placed, Desc)>,
    target: Placed,
    chain: Chain,
    bias: bool,
    frame: Frame,
}

fn turned_down(what: impl Into<String>) -> Reason {
    Reason::new(RefusalCode::UnsupportedShape, what)
}

impl Lowering<'_> {
    /// Adds the steps of an anchor and of the longest prefix of its chain that the library fuses with it. Returns the
    /// number of links of that prefix.
    pub fn anchor(&mut self, op: &Op, links: &[Link]) -> Taken<usize> {
        match &op.kind {
            Kind::Conv { window, groups, transposed } => self.convolution(op, links, window, *groups, *transposed),
            Kind::MatMul { transpose_a, transpose_b } => self.product(op, links, *transpose_a, *transpose_b),
            Kind::Pool { alg, window } => {
                let (alg, library) = (*alg, self.library);
                self.unary(op, links, &|s, d, a| PrimitiveDesc::pooling(library, alg, &s[0], d, window, a))
            }
            Kind::Softmax { alg, axis } => {
                let (alg, axis, library) = (*alg, *axis, self.library);
                self.unary(op, links, &|s, d, a| PrimitiveDesc::softmax(library, alg, &s[0], d, axis, a))
            }
            Kind::Resample { alg } => {
                let (alg, library) = (*alg, self.library);
                self.unary(op, links, &|s, d, a| PrimitiveDesc::resampling(library, alg, &s[0], d, a))
            }
            Kind::Reduce { alg, axes } => self.reduction(op, links, *alg, axes),
            Kind::Eltwise(function) => self.eltwise(op, links, *function),
            Kind::Binary(alg) => self.binary(op, links, *alg),
            Kind::LayerNorm { epsilon } => self.layer_norm(op, links, *epsilon),
            Kind::Prelu => self.prelu(op, links),
            Kind::Cell(form) => self.cell_of(op, *form),
            Kind::Concat { axis } => self.concat(op, *axis),
            Kind::Pad { before } => self.pad(op, before, 0),
            Kind::PadBytes { before, value } => self.pad(op, before, *value),
            Kind::Stage(_) => self.stages(op, links),
            Kind::Mean(mean) => self.mean(op, mean),
            Kind::Curve(curve) => self.elementwise(op, *curve),
            Kind::NoNan(number) => self.without_nan(op, *number),
            Kind::IsNan => Err(Reason::new(RefusalCode::UnsupportedOp, "supported only in where(isnan(x), number, x)")),
            Kind::Erf => Err(Reason::new(RefusalCode::UnsupportedOp, "oneDNN has it only as a part of GELU")),
            Kind::Reshape | Kind::Transpose(_) | Kind::Slice { .. } => Err(turned_down("a view cannot be an anchor")),
        }
    }

    /// Tries the alternatives in order: long prefixes of the chain before short ones, oneDNN's reference implementation
    /// last.
    fn settle(
        &mut self,
        ways: &Ways<'_>,
        make: &dyn Fn(&[Desc], &Desc, &Attr, bool) -> Outcome<PrimitiveDesc>,
    ) -> Taken<Settled> {
        let behind = self.reads(ways.links);
        let mut failure = Failure::from("oneDNN has no implementation");
        for reference in [false, true] {
            let mut limit = ways.links.len() + 1;
            while limit > 0 {
                limit -= 1;
                let links = &ways.links[..limit];
                let bias = ways.bias.as_ref().filter(|(at, _)| *at < limit);
                let mut reached = 0;
                for sources in &ways.sources {
                    let own = sources.iter().map(|source| source.placed.buffer);
                    let read: Vec<Buf> = own.chain(behind.iter().copied()).collect();
                    for target in &ways.targets {
                        let number = bias.map(|(at, _)| *at);
                        let chain = self.chain(links, &ways.frame, target.view(), number, ways.sums, &read)?;
                        reached = reached.max(chain.links);
                        if let Target::There(placed) = target {
                            let elsewhere = chain.sum_into.is_some();
                            if elsewhere || !self.is_free_for(placed, &read, sources.first()) {
                                continue;
                            }
                        }
                        match self.attempt(sources, (ways.dtype, target.view()), &chain, bias.is_some(), make) {
                            Ok(desc) if reference || !desc.is_reference() => {
                                let bias = bias.is_some();
                                return self.take(desc, sources, target, chain, bias, ways);
                            }
                            Ok(_) => {}
                            Err(memory @ Failure::OutOfMemory(_)) => return Err(memory.into()),
                            Err(what) => failure = what,
                        }
                    }
                }
                // Links beyond the longest expressible prefix were not part of any attempt.
                limit = limit.min(reached.max(1));
            }
        }
        Err(failure.into())
    }

    /// Element type in which a primitive reads a source.
    fn read_as(&self, source: &Source) -> DType {
        if source.narrow { DType::BF16 } else { self.dtype(&source.placed) }
    }

    /// Returns true if a result may be written to `placed`.
    fn is_free_for(&self, placed: &Placed, read: &[Buf], first: Option<&Source>) -> bool {
        match first {
            Some(source) if source.placed.buffer == placed.buffer => {
                source.order.is_none() && self.may_overwrite(placed, read)
            }
            _ => true,
        }
    }

    fn attempt(
        &self,
        sources: &[Source],
        (dtype, target): (DType, &View),
        chain: &Chain,
        bias: bool,
        make: &dyn Fn(&[Desc], &Desc, &Attr, bool) -> Outcome<PrimitiveDesc>,
    ) -> Outcome<PrimitiveDesc> {
        let own = |source: &Source| self.desc_as(self.read_as(source), &source.view());
        let descs: Vec<Desc> = sources.iter().map(own).collect::<Outcome<_>>()?;
        let desc = make(&descs, &self.desc_as(dtype, target)?, &self.attr(&chain.posts)?, bias)?;
        tracing::trace!("tried: {}", desc.implementation());
        Ok(desc)
    }

    fn take(
        &mut self,
        desc: PrimitiveDesc,
        sources: &[Source],
        target: &Target,
        chain: Chain,
        bias: bool,
        ways: &Ways<'_>,
    ) -> Taken<Settled> {
        let mut tensors = Vec::new();
        for source in sources {
            let placed = match &source.order {
                None => source.placed.clone(),
                Some(order) if source.narrow => self.narrowed(&source.placed, order)?,
                Some(order) => self.in_order(&source.placed, order)?,
            };
            let layout = self.desc_of(&placed)?;
            tensors.push((source.arg, placed, layout));
        }
        let target = match (&chain.sum_into, target) {
            (Some(placed), _) | (None, Target::There(placed)) => placed.clone(),
            (None, Target::New(view)) => self.scratch_of(ways.dtype, view.clone()),
        };
        Ok(Settled { desc, sources: tensors, target, chain, bias, frame: ways.frame.clone() })
    }

    /// Adds the step of the chosen alternative, with further arguments, and places its value.
    fn emit(
        &mut self,
        op: &Op,
        links: &[Link],
        settled: Settled,
        more: Vec<(i32, Placed, Desc)>,
        what: &str,
    ) -> Taken<usize> {
        let Settled { desc, mut sources, target, chain, frame, .. } = settled;
        sources.extend(more);
        sources.push((ffi::ARG_DST, target.clone(), self.desc_of(&target)?));
        sources.extend(self.post_args(&chain.posts)?);
        self.step(desc, sources, what)?;
        self.put_through(op, links, chain.links, target, &frame)?;
        Ok(chain.links)
    }

    /// Lowers an operator with one source and a result in the same memory order; the source is copied to channels-last
    /// or row-major if necessary.
    fn unary(
        &mut self,
        op: &Op,
        links: &[Link],
        make: &dyn Fn(&[Desc], &Desc, &Attr) -> Outcome<PrimitiveDesc>,
    ) -> Taken<usize> {
        let x = self.at(op.inputs[0]);
        let shape = self.program.shape(op.output).to_vec();
        let dtype = self.program.get(op.output).dtype;
        let rank = shape.len();
        let row: Vec<usize> = (0..rank).collect();
        let orders = match op.kind {
            Kind::Softmax { .. } => vec![x.view.order(), row],
            _ => vec![x.view.order(), channels_last(rank), row],
        };
        let mut settled = None;
        let mut failure = None;
        'search: for part in [links, &[]] {
            for order in &orders {
                let as_is = x.view.is_packed() && x.view.order() == *order;
                let source = match as_is {
                    true => Source::as_is(ffi::ARG_SRC, &x),
                    false => Source::copied(ffi::ARG_SRC, &x, order),
                };
                let targets = vec![Target::New(View::in_order(&shape, order))];
                let frame = Frame::plain(&shape, &shape);
                let sources = vec![vec![source]];
                let ways = Ways { links: part, sources, targets, bias: None, sums: false, frame, dtype };
                match self.settle(&ways, &|s, d, a, _| make(s, d, a)) {
                    Ok(found) if !found.desc.is_reference() => {
                        settled = Some(found);
                        break 'search;
                    }
                    Ok(found) => settled = settled.or(Some(found)),
                    Err(reason) if reason.code == RefusalCode::ResourceLimit => return Err(reason),
                    Err(reason) => failure = Some(reason),
                }
            }
        }
        match (settled, failure) {
            (Some(settled), _) => self.emit(op, links, settled, Vec::new(), "unary"),
            (None, Some(reason)) => Err(reason),
            (None, None) => Err(turned_down("oneDNN has no implementation")),
        }
    }

    fn convolution(&mut self, op: &Op, links: &[Link], window: &Window, groups: i64, transposed: bool) -> Taken<usize> {
        let (x, w) = (self.at(op.inputs[0]), self.at(op.inputs[1]));
        let shape = self.program.shape(op.output).to_vec();
        let dtype = self.program.get(op.output).dtype;
        // `qnn` computes what follows sums of integers.
        let links = if dtype == DType::F32 { links } else { &[] };
        let last = channels_last(shape.len());
        let weights =
            kernel(&w, groups, transposed).ok_or_else(|| turned_down("cannot split the kernel into groups"))?;
        let any = Desc::any(self.library, self.dtype(&weights), &weights.view.shape)?;
        // Layouts that another plan packed the weights into come first, so that they are held once.
        let is_constant = self.is_constant(&w);
        let mut wanted = self.layouts_before(&weights);
        wanted.push(if is_constant { any } else { self.desc_of(&weights)? });
        let narrow = self.may_narrow(&x, &weights, count(&shape) * (count(&weights.view.shape) / shape[1].max(1)));
        if narrow {
            wanted.push(Desc::any(self.library, DType::BF16, &weights.view.shape)?);
        }
        let bias = self.bias(op, links, 1, &shape);
        if !(narrow || transposed || groups > 1)
            && let Some(done) = self.winograd(op, links, (&x, &w), window, bias.as_ref())?
        {
            return Ok(done);
        }
        let bias_desc = Desc::strided(self.library, DType::F32, &[shape[1]], &[1])?;
        let mut sources = Vec::new();
        if narrow {
            sources.push(vec![Source::narrowed(ffi::ARG_SRC, &x, &last)]);
        }
        if x.view.is_packed() {
            sources.push(vec![Source::as_is(ffi::ARG_SRC, &x)]);
        }
        sources.push(vec![Source::copied(ffi::ARG_SRC, &x, &last)]);
        let targets = vec![Target::New(View::in_order(&shape, &last))];
        let frame = Frame::plain(&shape, &shape);
        let ways = Ways { links, sources, targets, bias: bias.clone(), sums: true, frame, dtype };
        let (library, trust) = (self.library, Trust::of(self.program, op.output)?);
        let settled = self.settle(&ways, &|s, d, attr, with_bias| {
            let mut outcome = Err("oneDNN has no implementation".into());
            for weights in &wanted {
                let bias = with_bias.then_some(&bias_desc);
                let io = Conv { src: &s[0], weights, bias, dst: d };
                outcome = match transposed {
                    false => PrimitiveDesc::convolution(library, &io, window, attr),
                    true => PrimitiveDesc::deconvolution(library, &io, window, attr),
                };
                outcome = outcome.and_then(|desc| trust.check(desc));
                if outcome.as_ref().is_ok_and(|desc| !desc.is_reference()) {
                    break;
                }
            }
            outcome
        })?;
        let mut more = vec![self.weights(&settled, &weights)?];
        if settled.bias
            && let Some((_, bias)) = bias
        {
            more.push((ffi::ARG_BIAS, bias, bias_desc));
        }
        self.emit(op, links, settled, more, if transposed { "transposed convolution" } else { "convolution" })
    }

    /// Returns the weights in the layout that the primitive chose.
    fn weights(&mut self, settled: &Settled, weights: &Placed) -> Taken<(i32, Placed, Desc)> {
        let layout = settled.desc.weights()?;
        if layout == self.desc_of(weights)? {
            return Ok((ffi::ARG_WEIGHTS, weights.clone(), layout));
        }
        match self.pack(weights, layout.clone())? {
            Some(buffer) => {
                let view = View { offset: 0, ..weights.view.clone() };
                Ok((ffi::ARG_WEIGHTS, Placed { buffer, view }, layout))
            }
            None => Err(turned_down("weights that are not constant, in a layout other than the one oneDNN requires")),
        }
    }

    /// Returns the first link and its operand, if it adds one number per index of `axis` of the result.
    fn bias(&mut self, op: &Op, links: &[Link], axis: usize, exec: &[i64]) -> Option<(usize, Placed)> {
        let at = links.iter().position(|link| !matches!(link, Link::View(_)))?;
        let Link::Binary { op: number, other } = links[at] else { return None };
        if self.program.ops[number].kind != Kind::Binary(ffi::BINARY_ADD) {
            return None;
        }
        let frame = Frame::plain(self.program.shape(op.output), exec);
        let placed = self.operand(other, &links[..at], &frame)?;
        let along = placed.view.shape.iter().enumerate().all(|(d, &size)| size == if d == axis { exec[d] } else { 1 });
        (along && placed.view.is_packed()).then_some((at, placed))
    }

    fn product(&mut self, op: &Op, links: &[Link], transpose_a: bool, transpose_b: bool) -> Taken<usize> {
        let mut a = self.at(op.inputs[0]);
        let mut b = self.at(op.inputs[1]);
        let swap = |placed: &mut Placed| {
            let rank = placed.view.shape.len();
            let mut axes: Vec<usize> = (0..rank).collect();
            axes.swap(rank - 2, rank - 1);
            placed.view = placed.view.permute(&axes);
        };
        if transpose_a {
            swap(&mut a);
        }
        if transpose_b {
            swap(&mut b);
        }
        let dtype = self.program.get(op.output).dtype;
        // `qnn` computes what follows sums of integers.
        let links = if dtype == DType::F32 { links } else { &[] };
        let mut shape = self.program.shape(op.output).to_vec();
        let rank = shape.len();
        if b.view.shape.len() == 2 && rank > 2 {
            // With a single matrix for all batches, the batches are further rows.
            let (rows, columns) = (count(&shape[..rank - 1]), shape[rank - 1]);
            let inner = a.view.shape[rank - 1];
            let flat = match a.view.reshape(&[rows, inner]) {
                Some(view) => Placed { view, ..a },
                None => {
                    let copy = self.row_major(&a)?;
                    let view = copy.view.reshape(&[rows, inner]);
                    Placed { view: view.ok_or_else(|| turned_down("cannot reshape a copy to rows"))?, ..copy }
                }
            };
            a = flat;
            shape = vec![rows, columns];
        }
        let rank = shape.len();
        let row: Vec<usize> = (0..rank).collect();
        let is_constant = self.is_constant(&b);
        let bias = self.bias(op, links, rank - 1, &shape);
        let mut along = vec![1; rank];
        along[rank - 1] = shape[rank - 1];
        let bias_desc = self.desc(&View::dense(&along))?;

        let mut wanted = Vec::new();
        if is_constant {
            wanted = self.layouts_before(&b);
            wanted.push(Desc::any(self.library, self.dtype(&b), &b.view.shape)?);
        }
        let narrow = self.may_narrow(&a, &b, count(&shape) * a.view.shape[a.view.shape.len() - 1]);
        if narrow {
            wanted.push(Desc::any(self.library, DType::BF16, &b.view.shape)?);
        }
        if !narrow && let Some(done) = self.row_product(op, links, (&a, &b), &shape)? {
            return Ok(done);
        }
        // In place first, then with either operand copied; the copy of the right one keeps its order of rows and
        // columns.
        let mut columns = row.clone();
        if rank >= 2 && b.view.strides[b.view.strides.len() - 2] < b.view.strides[b.view.strides.len() - 1] {
            columns.swap(rank - 2, rank - 1);
        }
        let mut sources = Vec::new();
        if narrow {
            sources.push(vec![Source::narrowed(ffi::ARG_SRC, &a, &row)]);
        }
        for (copy_a, copy_b) in [(false, false), (true, false), (false, true), (true, true)] {
            let pick = |arg, placed: &Placed, order: &[usize], copy: bool| match copy {
                true => Source::copied(arg, placed, order),
                false => Source::as_is(arg, placed),
            };
            let mut both = vec![pick(ffi::ARG_SRC, &a, &row, copy_a)];
            if !is_constant {
                both.push(pick(ffi::ARG_WEIGHTS, &b, &columns, copy_b));
            }
            if !(is_constant && copy_b) {
                sources.push(both);
            }
        }
        let mut targets = Vec::new();
        if let Some(order) = self.wanted_order(links.last().map_or(op.output, |l| self.program.ops[l.op()].output))
            && links.iter().all(|link| !matches!(link, Link::View(_)))
            && shape == self.program.shape(op.output)
            && order.last() == Some(&(rank - 1))
        {
            targets.push(Target::New(View::in_order(&shape, &order)));
        }
        targets.push(Target::New(View::dense(&shape)));
        let frame = Frame::plain(self.program.shape(op.output), &shape);
        let ways = Ways { links, sources, targets, bias: bias.clone(), sums: true, frame, dtype };
        let (library, trust) = (self.library, Trust::of(self.program, op.output)?);
        let make = |s: &[Desc], d: &Desc, attr: &Attr, with_bias: bool| {
            let bias = with_bias.then_some(&bias_desc);
            let mut outcome = Err("oneDNN has no implementation".into());
            for weights in wanted.iter().chain(s.get(1)) {
                let io = Conv { src: &s[0], weights, bias, dst: d };
                outcome = PrimitiveDesc::matmul(library, &io, attr).and_then(|desc| trust.check(desc));
                if outcome.as_ref().is_ok_and(|desc| !desc.is_reference()) {
                    break;
                }
            }
            outcome
        };
        // oneDNN's general GEMM reads operands of any strides, one batch at a time. A copy for the faster
        // implementation is cheaper, so the general one is only a fallback.
        let better = self.settle(&ways, &|s, d, attr, with_bias| match make(s, d, attr, with_bias) {
            Ok(desc) if desc.is_general_product() => Err("only the general product".into()),
            outcome => outcome,
        });
        let settled = match better {
            Ok(settled) if !settled.desc.is_reference() => settled,
            _ => self.settle(&ways, &make)?,
        };
        let mut more = Vec::new();
        if is_constant {
            more.push(self.weights(&settled, &b)?);
        }
        if settled.bias
            && let Some((_, bias)) = bias
        {
            more.push((ffi::ARG_BIAS, bias, bias_desc));
        }
        self.emit(op, links, settled, more, "matrix product")
    }

    fn eltwise(&mut self, op: &Op, links: &[Link], function: Function) -> Taken<usize> {
        let x = self.at(op.inputs[0]);
        let order = x.view.order();
        let library = self.library;
        let f = (function.alg, function.alpha, function.beta);
        self.spread(op, links, vec![(ffi::ARG_SRC, x)], &order, &|s, d, a, _| {
            PrimitiveDesc::eltwise(library, f, &s[0], d, a)
        })
    }

    /// Lowers an elementwise function of the first operand, which has the result's shape and this memory order, and of
    /// a second operand that broadcasts to it: in the fewest dimensions, and without its chain if the library is only
    /// fast without it.
    fn spread(
        &mut self,
        op: &Op,
        links: &[Link],
        operands: Vec<(i32, Placed)>,
        order: &[usize],
        make: &dyn Fn(&[Desc], &Desc, &Attr, bool) -> Outcome<PrimitiveDesc>,
    ) -> Taken<usize> {
        let further = operands.get(1).map(|(_, placed)| placed.view.shape.clone());
        let mut best: Option<Settled> = None;
        let mut failure = turned_down("oneDNN has no implementation");
        let parts = [links, &[]];
        for part in &parts[..if links.is_empty() { 1 } else { 2 }] {
            let frame = self.fewest(op, part, order, further.as_deref());
            let mut sources = Vec::new();
            for (arg, placed) in &operands {
                let placed = self.in_order(placed, order)?;
                let seen = frame.enter(&placed.view);
                let seen = seen.ok_or_else(|| {
                    turned_down(format!("cannot merge the dimensions of an operand of {:?}", placed.view.shape))
                })?;
                sources.push(Source::as_is(*arg, &Placed { view: seen, ..placed }));
            }
            let mut targets = Vec::new();
            if sources[1..].iter().all(|source| source.placed.buffer != sources[0].placed.buffer) {
                targets.push(Target::There(sources[0].placed.clone()));
            }
            targets.push(Target::New(View::dense(&frame.exec)));
            let ways = Ways {
                links: part,
                sources: vec![sources],
                targets,
                bias: None,
                sums: false,
                frame,
                dtype: DType::F32,
            };
            match self.settle(&ways, make) {
                Ok(settled) if !settled.desc.is_reference() => {
                    best = Some(settled);
                    break;
                }
                Ok(settled) => best = best.or(Some(settled)),
                Err(reason) if reason.code == RefusalCode::ResourceLimit => return Err(reason),
                Err(reason) => failure = reason,
            }
        }
        let what = if operands.len() == 1 { "elementwise" } else { "binary" };
        self.emit(op, links, best.ok_or(failure)?, Vec::new(), what)
    }

    /// Returns a source for a tensor, copied to a dense layout of the same order if it has gaps, and that order.
    fn packed_source(&self, arg: i32, x: &Placed) -> (Source, Vec<usize>) {
        let order = x.view.order();
        match x.view.is_packed() {
            true => (Source::as_is(arg, x), order),
            false => (Source::copied(arg, x, &order), order),
        }
    }

    fn binary(&mut self, op: &Op, links: &[Link], alg: i32) -> Taken<usize> {
        let shape = self.program.shape(op.output).to_vec();
        let full = |this: &mut Self, value: Val| {
            let placed = this.at(value);
            let lead = shape.len() - placed.view.shape.len();
            let own: Vec<i64> = std::iter::repeat_n(1, lead).chain(placed.view.shape.iter().copied()).collect();
            let view = placed.view.reshape(&own);
            view.map(|view| Placed { view, ..placed })
                .ok_or_else(|| turned_down("expected operands of at most the result's rank"))
        };
        let (mut a, mut b) = (full(self, op.inputs[0])?, full(self, op.inputs[1])?);
        if a.view.shape != shape {
            if b.view.shape != shape {
                return Err(turned_down(format!(
                    "cannot broadcast both operands: {:?} with {:?}",
                    a.view.shape, b.view.shape
                )));
            }
            match alg {
                ffi::BINARY_SUB | ffi::BINARY_DIV => return self.reversed(op, alg, a, b),
                _ => std::mem::swap(&mut a, &mut b),
            }
        } else if b.view.shape == shape
            && self.program.constant(op.inputs[0]).is_some()
            && !matches!(alg, ffi::BINARY_SUB | ffi::BINARY_DIV)
        {
            std::mem::swap(&mut a, &mut b);
        }
        let order = a.view.order();
        let library = self.library;
        self.spread(op, links, vec![(ffi::ARG_SRC, a), (ffi::ARG_SRC_1, b)], &order, &|s, d, attr, _| {
            PrimitiveDesc::binary(library, alg, &s[0], &s[1], d, attr)
        })
    }

    /// Lowers `a - b` and `a / b` with a broadcast `a`: a function of `b`, then the commutative operator with `a`.
    fn reversed(&mut self, op: &Op, alg: i32, a: Placed, b: Placed) -> Taken<usize> {
        let (function, then) = match alg {
            ffi::BINARY_SUB => ((ffi::ELTWISE_LINEAR, -1.0, 0.0), ffi::BINARY_ADD),
            _ => ((ffi::ELTWISE_POW, 1.0, -1.0), ffi::BINARY_MUL),
        };
        let order = b.view.order();
        let b = self.in_order(&b, &order)?;
        let between = self.scratch(b.view.clone());
        let result = self.scratch(b.view.clone());
        let a = if a.view.is_packed() { a } else { self.row_major(&a)? };
        let desc = |this: &Self, placed: &Placed| this.desc(&placed.view);
        let (da, db, dm, dr) = (desc(self, &a)?, desc(self, &b)?, desc(self, &between)?, desc(self, &result)?);
        let attr = self.attr(&[])?;
        let first = PrimitiveDesc::eltwise(self.library, function, &db, &dm, &attr)?;
        let second = PrimitiveDesc::binary(self.library, then, &dm, &da, &dr, &attr)?;
        self.step(first, vec![(ffi::ARG_SRC, b, db), (ffi::ARG_DST, between.clone(), dm.clone())], "elementwise")?;
        let tensors = vec![(ffi::ARG_SRC, between, dm), (ffi::ARG_SRC_1, a, da), (ffi::ARG_DST, result.clone(), dr)];
        self.step(second, tensors, "binary")?;
        let frame = Frame::plain(self.program.shape(op.output), &result.view.shape);
        self.put_through(op, &[], 0, result, &frame)?;
        Ok(0)
    }

    fn prelu(&mut self, op: &Op, links: &[Link]) -> Taken<usize> {
        let (x, slope) = (self.at(op.inputs[0]), self.at(op.inputs[1]));
        let shape = self.program.shape(op.output).to_vec();
        let (first, order) = self.packed_source(ffi::ARG_SRC, &x);
        let second = Source::copied(ffi::ARG_WEIGHTS, &slope, &order);
        let targets = vec![Target::New(View::in_order(&shape, &order))];
        let frame = Frame::plain(&shape, &shape);
        let ways = Ways {
            links,
            sources: vec![vec![first, second]],
            targets,
            bias: None,
            sums: false,
            frame,
            dtype: DType::F32,
        };
        let library = self.library;
        let settled = self.settle(&ways, &|s, d, attr, _| PrimitiveDesc::prelu(library, &s[0], &s[1], d, attr))?;
        self.emit(op, links, settled, Vec::new(), "prelu")
    }

    fn layer_norm(&mut self, op: &Op, links: &[Link], epsilon: f32) -> Taken<usize> {
        let x = self.at(op.inputs[0]);
        let shape = self.program.shape(op.output).to_vec();
        let width = shape[shape.len() - 1];
        // Every implementation supports a row-major matrix.
        let (rows, x) = match x.view.reshape(&[count(&shape) / width, width]).filter(View::is_dense) {
            Some(view) => (view.shape.clone(), Placed { view, ..x }),
            None => {
                let copy = self.row_major(&x)?;
                let view = copy.view.reshape(&[count(&shape) / width, width]);
                let view = view.ok_or_else(|| turned_down("cannot reshape a copy to rows"))?;
                (view.shape.clone(), Placed { view, ..copy })
            }
        };
        let mut more = Vec::new();
        for (arg, &value) in [ffi::ARG_SCALE, ffi::ARG_SHIFT].into_iter().zip(&op.inputs[1..]) {
            let placed = self.at(value);
            if placed.view.shape != [width] {
                return Err(turned_down(format!(
                    "expected scale and shift of shape [{width}], found {:?}",
                    placed.view.shape
                )));
            }
            let placed = self.row_major(&placed)?;
            let desc = self.desc(&placed.view)?;
            more.push((arg, placed, desc));
        }
        let sources = vec![vec![Source::as_is(ffi::ARG_SRC, &x)]];
        let targets = vec![Target::New(View::dense(&rows))];
        let frame = Frame::plain(&shape, &rows);
        let ways = Ways { links, sources, targets, bias: None, sums: false, frame, dtype: DType::F32 };
        let library = self.library;
        let settled =
            self.settle(&ways, &|s, d, attr, _| PrimitiveDesc::layer_norm(library, &s[0], d, epsilon, attr))?;
        self.emit(op, links, settled, more, "layer normalization")
    }

    fn reduction(&mut self, op: &Op, links: &[Link], alg: i32, axes: &[usize]) -> Taken<usize> {
        let x = self.at(op.inputs[0]);
        let shape = self.program.shape(op.output).to_vec();
        // oneDNN is fast if the reduced dimensions are innermost.
        let mut inner: Vec<usize> = x.view.order().into_iter().filter(|d| !axes.contains(d)).collect();
        inner.extend(axes);
        let mut sources = Vec::new();
        if x.view.is_packed() {
            sources.push((Source::as_is(ffi::ARG_SRC, &x), x.view.order()));
        }
        sources.push((Source::copied(ffi::ARG_SRC, &x, &inner), inner));
        let library = self.library;
        let mut best = None;
        for (source, order) in sources {
            let targets = vec![Target::New(View::in_order(&shape, &order))];
            let frame = Frame::plain(&shape, &shape);
            let ways =
                Ways { links, sources: vec![vec![source]], targets, bias: None, sums: false, frame, dtype: DType::F32 };
            let settled = self.settle(&ways, &|s, d, a, _| PrimitiveDesc::reduction(library, alg, &s[0], d, a))?;
            let fast = !settled.desc.is_reference();
            best = Some(settled);
            if fast {
                break;
            }
        }
        let settled = best.ok_or_else(|| turned_down("oneDNN has no implementation"))?;
        self.emit(op, links, settled, Vec::new(), "reduction")
    }

    fn concat(&mut self, op: &Op, axis: usize) -> Taken<usize> {
        let shape = self.program.shape(op.output).to_vec();
        let dtype = self.program.get(op.output).dtype;
        let parts: Vec<Placed> = op.inputs.iter().map(|&part| self.at(part)).collect();
        let order = parts.iter().max_by_key(|part| count(&part.view.shape)).map(|part| part.view.order());
        let mut order = order.unwrap_or_default();
        let single = parts.iter().all(|part| part.view.shape[axis] == 1);
        if let Some(before) = axis.checked_sub(1).filter(|&d| single && shape[d] > 1) {
            // Interleaved parts: their axis goes innermost next to the one before it, with which it is about to be
            // merged.
            order.retain(|&d| d != axis);
            let at = order.iter().position(|&d| d == before).map_or(order.len(), |at| at + 1);
            order.insert(at, axis);
            let whole = self.scratch_of(dtype, View::in_order(&shape, &order));
            for (i, part) in parts.iter().enumerate() {
                let to = Placed { view: whole.view.slice(axis, i as i64, 1, 1), ..whole.clone() };
                self.copy(part, &to, "interleaving")?;
            }
            self.put_through(op, &[], 0, whole, &Frame::plain(&shape, &shape))?;
            return Ok(0);
        }
        let whole = self.scratch_of(dtype, View::in_order(&shape, &order));
        if let Some(join) = rows_to_join(&parts, axis, &order, dtype.size()) {
            let sources = parts.into_iter().enumerate().map(|(i, part)| (ffi::ARG_MULTIPLE_SRC + i as i32, part));
            let tensors = sources.chain([(ffi::ARG_DST, whole.clone())]).collect();
            self.own_step(Work::Join(join), tensors, "concatenation")?;
            self.put_through(op, &[], 0, whole, &Frame::plain(&shape, &shape))?;
            return Ok(0);
        }
        // Operands are read in place: the library copies each of them.
        let descs = parts.iter().map(|part| self.desc_of(part)).collect::<Outcome<Vec<_>>>()?;
        let dst = self.desc_of(&whole)?;
        let attr = self.attr(&[])?;
        let refs: Vec<&Desc> = descs.iter().collect();
        let desc = PrimitiveDesc::concat(self.library, axis, &refs, &dst, &attr)?;
        let mut tensors: Vec<(i32, Placed, Desc)> = parts
            .into_iter()
            .zip(descs)
            .enumerate()
            .map(|(i, (part, desc))| (ffi::ARG_MULTIPLE_SRC + i as i32, part, desc))
            .collect();
        tensors.push((ffi::ARG_DST, whole.clone(), dst));
        self.step(desc, tensors, "concatenation")?;
        let frame = Frame::plain(&shape, &shape);
        self.put_through(op, &[], 0, whole, &frame)?;
        Ok(0)
    }

    /// Copies the data into a tensor filled with the byte `value`.
    fn pad(&mut self, op: &Op, before: &[i64], value: u8) -> Taken<usize> {
        let x = self.at(op.inputs[0]);
        let shape = self.program.shape(op.output).to_vec();
        let whole = self.scratch_of(self.dtype(&x), View::in_order(&shape, &x.view.order()));
        let mut inner = whole.clone();
        for (axis, (&begin, &size)) in before.iter().zip(&x.view.shape).enumerate() {
            inner.view = inner.view.slice(axis, begin, 1, size);
        }
        self.fill(&whole, value)?;
        self.copy(&x, &inner, "padding")?;
        let frame = Frame::plain(&shape, &shape);
        self.put_through(op, &[], 0, whole, &frame)?;
        Ok(0)
    }
}

/// Returns a concatenation as one of rows, if its axis is innermost and all parts have the memory order of the result.
fn rows_to_join(parts: &[Placed], axis: usize, order: &[usize], size: usize) -> Option<Join> {
    if order.last() != Some(&axis) || parts.len() > MOST_PARTS {
        return None;
    }
    let columns = |part: &Placed| part.view.shape[axis];
    let rows = parts.first().map(|part| count(&part.view.shape) / columns(part))?;
    let one = |part: &Placed| {
        let view = part.view.permute(order).reshape(&[rows, columns(part)])?;
        let dense = columns(part) == 1 || view.strides[1] == 1;
        let (row, step) = (columns(part) as usize * size, view.strides[0] as usize * size);
        dense.then_some(Part { bytes: row, stride: step })
    };
    Some(Join { rows: rows as usize, parts: parts.iter().map(one).collect::<Option<_>>()? })
}

/// Returns a kernel in oneDNN's order: (G, O / G, I / G, spatial...), or without groups (O, I, spatial...).
fn kernel(w: &Placed, groups: i64, transposed: bool) -> Option<Placed> {
    let mut view = w.view.clone();
    let rank = view.shape.len();
    if groups > 1 {
        let mut shape = vec![groups, view.shape[0] / groups];
        shape.extend_from_slice(&view.shape[1..]);
        view = view.reshape(&shape)?;
    }
    if transposed {
        // Swaps (I, O, ...) to (O, I, ...).
        let first = usize::from(groups > 1);
        let mut axes: Vec<usize> = (0..view.shape.len()).collect();
        axes.swap(first, first + 1);
        view = view.permute(&axes);
    }
    debug_assert!(view.shape.len() == rank + usize::from(groups > 1));
    Some(Placed { buffer: w.buffer, view })
}

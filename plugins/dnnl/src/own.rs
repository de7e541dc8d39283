//! Hand-written kernels: where they replace primitives of the library, and the steps that run them.
//!
//! The loops are in `winograd`, `row`, `elementwise` and `cell`, each of which gives its reason.

use crate::cell::{ARG_OUT, Cell, Form, MOST_OPERANDS};
use crate::cpu;
use crate::elementwise::{Curve, Elementwise};
use crate::frame::Frame;
use crate::fuse::Link;
use crate::library::{Window, ffi};
use crate::lower::{Chain, Lowering, Placed, Post};
use crate::pack::Packing;
use crate::plan::Work;
use crate::program::{Op, Reason, Taken};
use crate::row::{MOST_ADDENDS, Panels, Row};
use crate::view::{View, channels_last, count};
use crate::winograd::{LANES, Weights, Winograd};
use byoc_plugin_api::{DType, RefusalCode};

/// Maximum size in bytes of transformed kernels that stay in a core's cache from one group of tiles to the next.
const SMALL: usize = 1 << 20;

/// Minimum number of tiles for small and for large kernels. Transformed kernels are 16 / 9 of their original size, and
/// large ones are streamed from memory: with fewer tiles that costs more than the multiplications saved.
const FEW_TILES: usize = 32;
const MANY_TILES: usize = 96;

/// Operators after a convolution that the Winograd loop computes.
struct Behind {
    /// Tensor that is added; the result may overwrite it.
    addend: Option<Placed>,
    range: [f32; 2],
}

impl Behind {
    /// Extracts the addend and the bounds of a chain, for a result of this layout; `None` if the chain has other
    /// operators.
    fn of(chain: &Chain, result: &View) -> Option<Behind> {
        let mut behind = Behind { addend: chain.sum_into.clone(), range: [f32::NEG_INFINITY, f32::INFINITY] };
        let mut posts = &chain.posts[..];
        match posts {
            [Post::Sum, rest @ ..] => posts = rest,
            [Post::Binary(ffi::BINARY_ADD, other), rest @ ..] if other.view.same_layout(result) => {
                behind.addend = Some(other.clone());
                posts = rest;
            }
            _ => {}
        }
        match posts {
            [] => {}
            [Post::Eltwise(f)] if f.alg == ffi::ELTWISE_RELU && f.alpha == 0.0 => behind.range[0] = 0.0,
            [Post::Eltwise(f)] if f.alg == ffi::ELTWISE_CLIP => behind.range = [f.alpha, f.beta],
            _ => return None,
        }
        Some(behind)
    }
}

/// Returns the tensors that a chain adds to a result of this layout, if it does nothing else and there are few enough.
fn addends(chain: &Chain, result: &View) -> Option<Vec<Placed>> {
    let addend = |post: &Post| match post {
        Post::Binary(ffi::BINARY_ADD, other) if other.view.same_layout(result) => Some(other.clone()),
        _ => None,
    };
    chain.posts.iter().map(addend).collect::<Option<Vec<_>>>().filter(|addends| addends.len() <= MOST_ADDENDS)
}

impl Lowering<'_> {
    /// Adds the step of a convolution of `x` by `w` with its whole chain, if Winograd is faster there. Returns `None`
    /// if it is not, or if the chain has operators that only the library can fuse.
    pub fn winograd(
        &mut self,
        op: &Op,
        links: &[Link],
        (x, w): (&Placed, &Placed),
        window: &Window,
        bias: Option<&(usize, Placed)>,
    ) -> Taken<Option<usize>> {
        let shape = self.program.shape(op.output).to_vec();
        let Some(mut layer) = self.layer(&shape, x, w, window) else { return Ok(None) };
        let order = channels_last(shape.len());
        let (frame, view) = (Frame::plain(&shape, &shape), View::in_order(&shape, &order));
        let mut read = self.reads(links);
        read.push(x.buffer);
        let chain = self.chain(links, &frame, &view, bias.map(|(at, _)| *at), true, &read)?;
        let behind = Behind::of(&chain, &view).filter(|_| chain.links == links.len());
        let Some(Behind { addend, range }) = behind else { return Ok(None) };
        layer.range = range;
        let channels_lie_densely = x.view.strides[1] == 1 && x.view.strides.iter().all(|&stride| stride >= 0);
        let x = if channels_lie_densely { x.clone() } else { self.in_order(x, &order)? };
        layer.strides = [0, 2, 3].map(|axis| x.view.strides[axis] as usize);
        let Some(weights) = self.pack_as(w, Packing::Winograd(layer.weights))? else { return Ok(None) };
        let place = |view: View, buffer| Placed { buffer, view };
        let weights = place(View::dense(&[layer.weights.elements() as i64]), weights);
        let scratch = self.scratch(View::dense(&[layer.scratch() as i64]));
        let target = match chain.sum_into {
            Some(placed) => placed,
            None => self.scratch(view),
        };
        let mut tensors = vec![(ffi::ARG_SRC, x), (ffi::ARG_WEIGHTS, weights), (ffi::ARG_SCRATCHPAD, scratch)];
        tensors.extend(bias.map(|(_, bias)| (ffi::ARG_BIAS, bias.clone())));
        tensors.extend(addend.map(|addend| (ffi::ARG_SRC_1, addend)));
        tensors.push((ffi::ARG_DST, target.clone()));
        self.own_step(Work::Winograd(layer), tensors, "convolution")?;
        self.put_through(op, links, chain.links, target, &frame)?;
        Ok(Some(chain.links))
    }

    /// Returns the convolution if Winograd applies to it and pays off; the data's strides and the clamp range are left
    /// unset.
    fn layer(&self, shape: &[i64], x: &Placed, w: &Placed, window: &Window) -> Option<Winograd> {
        let dense = window.strides == [1, 1] && window.dilation == [1, 1] && window.kernel == [3, 3];
        let floats = [x, w].iter().all(|placed| self.dtype(placed) == DType::F32);
        if !(self.program.options.winograd && cpu::has_avx512() && dense && floats && self.is_constant(w)) {
            return None;
        }
        let size = |of: i64| usize::try_from(of).ok();
        let mut strides = [0; 4];
        for (stride, &of) in strides.iter_mut().zip(&w.view.strides) {
            *stride = size(of)?;
        }
        let weights = Weights { size: [size(w.view.shape[0])?, size(w.view.shape[1])?], strides };
        let layer = Winograd {
            source: [size(x.view.shape[0])?, size(x.view.shape[2])?, size(x.view.shape[3])?],
            strides: [0; 3],
            result: [size(shape[2])?, size(shape[3])?],
            before: [size(window.before[0])?, size(window.before[1])?],
            weights,
            range: [0.0; 2],
            slots: self.library.threads(),
        };
        // A tile begins at most two elements before the image.
        let bounded = layer.before.iter().all(|&before| before <= 2);
        let fills_registers = weights.size.iter().all(|&channels| channels >= LANES);
        let small = weights.elements() * size_of::<f32>() <= SMALL;
        let enough = layer.tiles() >= if small { FEW_TILES } else { MANY_TILES };
        // Weights that another plan has already packed keep their form, so that they are held once.
        let gains = match &self.packed_before(w)[..] {
            [] => enough,
            packed => packed.contains(&Packing::Winograd(weights)),
        };
        (bounded && fills_registers && gains).then_some(layer)
    }

    /// Adds the step of a GEMV by a matrix that other products read too, with the sums in its chain. Returns `None` for
    /// any other product or chain.
    pub fn row_product(
        &mut self,
        op: &Op,
        links: &[Link],
        (a, b): (&Placed, &Placed),
        shape: &[i64],
    ) -> Taken<Option<usize>> {
        let floats = [a, b].iter().all(|placed| self.dtype(placed) == DType::F32);
        let again = self.matrices.is_read_again(self.program, op.inputs[1]);
        let (&[1, columns], &[_, inner]) = (shape, &a.view.shape[..]) else { return Ok(None) };
        if !(again && floats && self.is_constant(b))
            || b.view.strides.iter().any(|&stride| stride < 0)
            || a.view.strides[1] != 1
        {
            return Ok(None);
        }
        let size = [inner, columns].map(|size| size as usize);
        let panels = Panels { size, strides: [b.view.strides[0] as usize, b.view.strides[1] as usize] };
        let before = self.packed_before(b);
        if !(before.is_empty() || before.contains(&Packing::Panels(panels))) {
            return Ok(None);
        }
        let (frame, view) = (Frame::plain(self.program.shape(op.output), shape), View::dense(shape));
        let mut read = self.reads(links);
        read.push(a.buffer);
        let chain = self.chain(links, &frame, &view, None, false, &read)?;
        let Some(addends) = addends(&chain, &view).filter(|_| chain.links == links.len()) else { return Ok(None) };
        let Some(packed) = self.pack_as(b, Packing::Panels(panels))? else { return Ok(None) };
        let packed = Placed { buffer: packed, view: View::dense(&[panels.elements() as i64]) };
        let row = Row { panels, backwards: self.matrices.turn(self.program, op.inputs[1]) };
        let target = self.scratch(view);
        let mut tensors = vec![(ffi::ARG_SRC, a.clone()), (ffi::ARG_WEIGHTS, packed)];
        let number = |(number, addend)| (ffi::ARG_MULTIPLE_SRC + number, addend);
        tensors.extend((0..).zip(addends).map(number));
        tensors.push((ffi::ARG_DST, target.clone()));
        self.own_step(Work::Row(row), tensors, "matrix product")?;
        self.put_through(op, links, chain.links, target, &frame)?;
        Ok(Some(chain.links))
    }

    /// Adds the step of an elementwise function.
    pub fn elementwise(&mut self, op: &Op, curve: Curve) -> Taken<usize> {
        let mut x = self.at(op.inputs[0]);
        if !x.view.is_packed() {
            x = self.row_major(&x)?;
        }
        let shape = self.program.shape(op.output).to_vec();
        let target = match self.may_overwrite(&x, &[x.buffer]) {
            true => x.clone(),
            false => self.scratch(View::in_order(&shape, &x.view.order())),
        };
        let work = Work::Elementwise(Elementwise { curve, elements: count(&shape) as usize });
        self.own_step(work, vec![(ffi::ARG_SRC, x), (ffi::ARG_DST, target.clone())], curve.name())?;
        self.put_through(op, &[], 0, target, &Frame::plain(&shape, &shape))?;
        Ok(0)
    }

    /// Adds the step of a recurrent cell.
    pub fn cell_of(&mut self, op: &Op, form: Form) -> Taken<usize> {
        let shape = self.program.shape(op.output).to_vec();
        let hidden = shape.last().copied().unwrap_or(1);
        let rows = match form {
            Form::Lstm(_) => shape[1],
            Form::Gru(_) => count(&shape) / hidden,
        };
        let mut tensors = Vec::new();
        let mut strides = [0; MOST_OPERANDS];
        for (number, &value) in form.numbers().into_iter().zip(&op.inputs) {
            let mut placed = self.at(value);
            let all = count(&placed.view.shape);
            let columns = placed.view.shape.last().copied().unwrap_or(1);
            let flat = [all / columns, columns];
            // Rows may have gaps between them, their elements may not.
            let seen = placed.view.reshape(&flat).filter(|view| columns == 1 || view.strides[1] == 1);
            placed.view = match seen {
                Some(view) => view,
                None => {
                    placed = self.row_major(&placed)?;
                    placed
                        .view
                        .reshape(&flat)
                        .ok_or_else(|| Reason::new(RefusalCode::UnsupportedShape, "cannot reshape a copy to rows"))?
                }
            };
            // A single row is broadcast to all rows.
            strides[number] = if flat[0] == 1 { 0 } else { placed.view.strides[0] as usize };
            tensors.push((number as i32, placed));
        }
        let out = self.scratch(View::dense(&shape));
        tensors.push((ARG_OUT, out.clone()));
        let cell = Cell { form, rows: rows as usize, hidden: hidden as usize, strides };
        self.own_step(Work::Cell(cell), tensors, form.name())?;
        self.put_through(op, &[], 0, out, &Frame::plain(&shape, &shape))?;
        Ok(0)
    }

    /// Adds the step that replaces every NaN by a number, in place if nothing else needs the tensor, otherwise in a
    /// copy.
    pub fn without_nan(&mut self, op: &Op, number: f32) -> Taken<usize> {
        let x = self.at(op.inputs[0]);
        let shape = self.program.shape(op.output).to_vec();
        let place = match self.may_overwrite(&x, &[x.buffer]) {
            true => x,
            false => {
                let copy = self.scratch(View::in_order(&shape, &x.view.order()));
                self.copy(&x, &copy, "copy")?;
                copy
            }
        };
        self.replace_nan(&place, number)?;
        self.put_through(op, &[], 0, place, &Frame::plain(&shape, &shape))?;
        Ok(0)
    }
}

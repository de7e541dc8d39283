//! Where a convolution is computed with fewer multiplications.

use super::{LANES, Weights, Winograd};
use crate::frame::Frame;
use crate::fuse::Link;
use crate::library::{Window, ffi};
use crate::lower::{Chain, Lowering, Placed, Post};
use crate::pack::Packing;
use crate::plan::Work;
use crate::program::{Op, Taken};
use crate::view::{View, channels_last};
use byoc_plugin_api::DType;

/// Transformed kernels of so many bytes stay in a core's cache from one group of tiles to the next.
const SMALL: usize = 1 << 20;

/// The fewest tiles by which small kernels are multiplied, and larger ones. They are 16 / 9 of what they were, and
/// larger ones come from memory: with fewer tiles that takes longer than the multiplications saved.
const FEW_TILES: usize = 32;
const MANY_TILES: usize = 96;

/// Whether the CPU has the instructions that the loops are written in.
fn cpu_computes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx512f");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// What stands behind a convolution, as far as its loop computes it.
struct Behind {
    /// A tensor that is added, and whether the result takes its place.
    addend: Option<Placed>,
    range: [f32; 2],
}

impl Behind {
    /// What a chain says, for a result that lies so.
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

impl Lowering<'_> {
    /// Makes the step of a convolution of `x` by `w`, and of everything behind it, if that is faster so. `None` where
    /// it is not, or where there is something behind it that the library computes along with its own.
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

    /// The convolution, if it is one of those that are computed so, but for what its data's layout and its chain say.
    fn layer(&self, shape: &[i64], x: &Placed, w: &Placed, window: &Window) -> Option<Winograd> {
        let dense = window.strides == [1, 1] && window.dilation == [1, 1] && window.kernel == [3, 3];
        let floats = [x, w].iter().all(|placed| self.dtype(placed) == DType::F32);
        if !(self.program.options.winograd && cpu_computes() && dense && floats && self.is_constant(w)) {
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
        // A tile begins at most two places before the first.
        let bounded = layer.before.iter().all(|&before| before <= 2);
        let fills_registers = weights.size.iter().all(|&channels| channels >= LANES);
        let small = weights.elements() * size_of::<f32>() <= SMALL;
        let enough = layer.tiles() >= if small { FEW_TILES } else { MANY_TILES };
        // What another plan has packed is held once.
        let gains = match &self.packed_before(w)[..] {
            [] => enough,
            packed => packed.contains(&Packing::Winograd(weights)),
        };
        (bounded && fills_registers && gains).then_some(layer)
    }
}

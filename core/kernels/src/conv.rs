//! Convolutions as matrix products.
//!
//! * Channels first (NCHW): out = weight * columns. The columns are the data itself for a 1x1 kernel without stride or
//!   padding; otherwise the product gathers them (im2col) a block at a time, where it would pack a matrix.
//! * Channels last (NHWC), one group: out = columns * weight, with the weight packed once if it is constant. The columns
//!   are gathered for a run of output elements at a time, as many as fit in the L2 cache next to the product's own
//!   blocks. Runs are split over the threads; with fewer runs than threads, the threads share the gathering and the
//!   product of each run.
//! * Three spatial axes (NCDHW): same as channels first, once for each depth of the result. A channel of the
//!   two-dimensional convolution is a channel of the data at one tap of the depth.
//! * One input channel per group over a plane: see [`super::depthwise`].

use super::dense::f32_shapes;
use super::gemm::{Columns, Matrix, Output, gemm, gemm_gathered};
use super::plane::{Plane, is_channels_last, is_dense};
use super::simd::copy_every;
use super::split::{self, SharedPtr};
use super::{Kernel, Offer, Spec, depthwise};
use byoc_ir::op::conv::ConvShape;
use byoc_ir::op::spatial::CanonicalDims;
use byoc_ir::tensor::{Tensor, TensorView, TensorViewMut};
use std::ops::Range;

inventory::submit! { Offer { op: "nn.conv1d", make } }
inventory::submit! { Offer { op: "nn.conv2d", make } }
inventory::submit! { Offer { op: "nn.conv3d", make: make_volume } }

/// Target size in bytes of the gathered columns, so that they stay in the L2 cache while they are multiplied.
const COLUMN_BYTES: usize = 384 << 10;

/// Maximum number of threads that gather concurrently, each into its own scratch memory. Independent of the machine's
/// number of threads, because a plan must not depend on the machine that prepares it.
const SLOTS: usize = 16;

fn make(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    let ([data, weight], out) = f32_shapes(spec)?;
    let shape = ConvShape::new(&spec.params(), &data, &weight, &out);
    let plane = Plane::new(&shape)?;
    let constant = spec.constants.get(1).copied().flatten();
    if is_dense(&shape.data) && is_dense(&shape.out) {
        let packed = packed_weight(&shape, constant, [0, 1, 2, 3, 4])?;
        return Some(match plane.channels {
            1 if plane.groups > 1 => Box::new(depthwise::DepthwiseConv::new(plane, packed)),
            _ => Box::new(ChannelsFirst { plane, depth: Depth::NONE, packed }),
        });
    }
    if is_channels_last(&shape.data) && is_channels_last(&shape.out) && plane.groups == 1 {
        // The axes of the weight follow the order within a column: taps, then channels.
        let packed = packed_weight(&shape, constant, [2, 3, 4, 1, 0])?;
        return Some(Box::new(ChannelsLast { tile: tile(&plane), plane, packed }));
    }
    None
}

/// Returns the number of output positions whose columns are gathered at a time.
fn tile(plane: &Plane) -> usize {
    if plane.is_direct() {
        return plane.positions();
    }
    let max_columns = COLUMN_BYTES / 4 / plane.terms();
    (max_columns / 16 * 16).clamp(64, plane.positions().max(64)).min(plane.positions())
}

/// Returns the weight with its axes in `order`; `Some(None)` if the weight already has that order, `None` if it would
/// have to be reordered but is not constant.
pub(super) fn packed_weight(
    shape: &ConvShape,
    constant: Option<&Tensor>,
    order: [usize; 5],
) -> Option<Option<Vec<f32>>> {
    let w = &shape.weight;
    let reordered = CanonicalDims { size: order.map(|i| w.size[i]), stride: order.map(|i| w.stride[i]) };
    if is_dense(&reordered) {
        return Some(None);
    }
    let values = constant?.as_slice::<f32>();
    let mut packed = Vec::with_capacity(values.len());
    let size = reordered.size;
    for a in 0..size[0] {
        for b in 0..size[1] {
            for c in 0..size[2] {
                for d in 0..size[3] {
                    for e in 0..size[4] {
                        packed.push(values[reordered.at(a, b, [c, d, e])]);
                    }
                }
            }
        }
    }
    Some(Some(packed))
}

/// Returns the size in bytes of the scratch memory: one set of columns per slot.
fn column_bytes(plane: &Plane, tile: usize) -> usize {
    if plane.is_direct() {
        return 0;
    }
    let runs = plane.batch * plane.positions().div_ceil(tile);
    runs.min(SLOTS) * plane.terms() * tile * 4
}

/// Calls `f(threads, image, positions, slot)` for every run of positions: in parallel with one thread and one slot per
/// run, or sequentially with all threads for each run.
fn for_each_run(
    plane: &Plane,
    tile: usize,
    scratch: &mut [f32],
    f: impl Fn(usize, usize, Range<usize>, &mut [f32]) + Send + Sync,
) {
    let runs_per_image = plane.positions().div_ceil(tile);
    let runs = plane.batch * runs_per_image;
    let slot = if plane.is_direct() { 0 } else { plane.terms() * tile };
    let run = |threads: usize, i: usize, columns: &mut [f32]| {
        let (image, first) = (i / runs_per_image, i % runs_per_image * tile);
        f(threads, image, first..(first + tile).min(plane.positions()), columns);
    };
    let threads = split::threads(plane.work() * plane.batch).min(SLOTS);
    if threads == 1 || runs < 2 * threads && !runs.is_multiple_of(threads) {
        let threads = split::threads(plane.work());
        (0..runs).for_each(|i| run(threads, i, &mut scratch[..slot]));
        return;
    }
    let parts = threads.min(runs);
    let each_run = |part: usize, columns: &mut [f32]| {
        split::part(runs, 1, part, parts).for_each(|i| run(1, i, columns));
    };
    if slot == 0 {
        split::for_each_part(parts, |part| each_run(part, &mut []));
    } else {
        split::for_each_chunk(&mut scratch[..parts * slot], slot, usize::MAX, each_run);
    }
}

fn make_volume(spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    let ([data, weight], out) = f32_shapes(spec)?;
    let shape = ConvShape::new(&spec.params(), &data, &weight, &out);
    if !is_dense(&shape.data) || !is_dense(&shape.out) {
        return None;
    }
    let packed = packed_weight(&shape, spec.constants.get(1).copied().flatten(), [0, 1, 2, 3, 4])?;
    let mut depth = Depth {
        size: shape.data.size[2],
        kernel: shape.weight.size[2],
        out: shape.out.size[2],
        stride: shape.window.stride[0],
        dilation: shape.window.dilation[0],
        before: shape.window.before[0],
    };
    let mut plane = Plane::of_depth(&shape)?;
    if shape.weight.spatial() == [1; 3] && shape.window.stride == [1; 3] && shape.data.spatial() == shape.out.spatial()
    {
        // For a pointwise convolution, the depths are further rows of one plane.
        let size = [depth.size * plane.size[0], plane.size[1]];
        plane = Plane { size, out: size, is_slice: false, ..plane };
        depth = Depth::NONE;
    }
    plane.batch *= depth.out;
    plane.channels *= depth.kernel;
    Some(Box::new(ChannelsFirst { plane, depth, packed }))
}

/// Depth axis of a convolution; a convolution over a plane has a single depth.
struct Depth {
    size: usize,
    kernel: usize,
    out: usize,
    stride: usize,
    dilation: usize,
    before: usize,
}

impl Depth {
    const NONE: Depth = Depth { size: 1, kernel: 1, out: 1, stride: 1, dilation: 1, before: 0 };
}

struct ChannelsFirst {
    /// Convolution of one plane of the result. Its images are the pairs of an image and an output depth, its input
    /// channels the pairs of an input channel and a depth tap.
    plane: Plane,
    depth: Depth,
    packed: Option<Vec<f32>>,
}

/// Columns of one group and one depth of the result: one row per channel and tap, one column per position.
struct Gathered<'a> {
    plane: &'a Plane,
    depth: &'a Depth,
    /// Channels of the group.
    data: &'a [f32],
    /// Depth of the result.
    at: usize,
}

impl Columns for Gathered<'_> {
    fn row<'x>(&'x self, row: usize, positions: Range<usize>, line: &'x mut [f32]) -> &'x [f32] {
        let (p, depth) = (self.plane, self.depth);
        let taps = p.kernel[0] * p.kernel[1];
        let (channel, tap) = (row / taps, row % taps);
        let (channel, depth_tap) = (channel / depth.kernel, channel % depth.kernel);
        let at = (self.at * depth.stride + depth_tap * depth.dilation).checked_sub(depth.before);
        match at.filter(|&at| at < depth.size) {
            None => line.fill(0.0),
            Some(at) => {
                let size = p.size[0] * p.size[1];
                gather_tap(p, &self.data[(channel * depth.size + at) * size..][..size], tap, positions, line);
            }
        }
        line
    }
}

/// Gathers the element of a plane under tap `tap` at each of `positions`; 0 in the padding.
fn gather_tap(p: &Plane, image: &[f32], tap: usize, positions: Range<usize>, row_out: &mut [f32]) {
    let (kh, kw) = (tap / p.kernel[1], tap % p.kernel[1]);
    let (inside_h, inside_w) = (p.valid_positions(0, kh), p.valid_positions(1, kw));
    let mut position = positions.start;
    while position < positions.end {
        let (h, w) = (position / p.out[1], position % p.out[1]);
        let end = (position - w + p.out[1]).min(positions.end);
        let row_out = &mut row_out[position - positions.start..end - positions.start];
        position = end;
        let row_end = w + row_out.len();
        let (first_in, last_in) = (inside_w.start.clamp(w, row_end), inside_w.end.clamp(w, row_end));
        if !inside_h.contains(&h) || first_in >= last_in {
            row_out.fill(0.0);
            continue;
        }
        row_out[..first_in - w].fill(0.0);
        row_out[last_in - w..].fill(0.0);
        let line = (h * p.stride[0] + kh * p.dilation[0] - p.before[0]) * p.size[1];
        let source = &image[line + first_in * p.stride[1] + kw * p.dilation[1] - p.before[1]..];
        copy_every(&mut row_out[first_in - w..last_in - w], source, p.stride[1]);
    }
}

impl Kernel for ChannelsFirst {
    fn run(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], _: &mut [u8]) -> Result<(), String> {
        let (p, depth) = (&self.plane, &self.depth);
        let (x, w) = (inputs[0].as_slice::<f32>(), inputs[1].as_slice::<f32>());
        let w = self.packed.as_deref().unwrap_or(w);
        let out = outputs[0].as_mut_slice::<f32>();
        let (positions, terms) = (p.positions(), p.terms());
        let group_input_len = p.channels / depth.kernel * depth.size * p.size[0] * p.size[1];
        let out_row = depth.out * positions;
        let out_len = out.len();
        let shared_out = SharedPtr::new(out);
        let product = |threads: usize, i: usize| {
            let (image, d, group) = (i / p.groups / depth.out, i / p.groups % depth.out, i % p.groups);
            let index = image * p.groups + group;
            let data = &x[index * group_input_len..][..group_input_len];
            let weight =
                Matrix { data: &w[group * p.out_channels * terms..][..p.out_channels * terms], row: terms, col: 1 };
            let first = index * p.out_channels * out_row + d * positions;
            assert!(first + (p.out_channels - 1) * out_row + positions <= out_len, "the product lies in the result");
            // SAFETY: the assertion keeps the rows inside the result. Each product belongs to one call, so no other
            // thread accesses them.
            let out = unsafe { Output::at(shared_out.get().add(first), p.out_channels, positions, out_row) };
            if p.is_direct() {
                gemm(threads, terms, weight, Matrix { data, row: positions, col: 1 }, out);
            } else {
                gemm_gathered(threads, terms, weight, &Gathered { plane: p, depth, data, at: d }, out);
            }
        };
        let products = p.batch * p.groups;
        let threads = split::threads(p.work() * products);
        if products < 2 * threads {
            (0..products).for_each(|i| product(split::threads(p.work()), i));
        } else {
            split::for_each_part(threads, |part| {
                split::part(products, 1, part, threads).for_each(|i| product(1, i));
            });
        }
        Ok(())
    }
}

struct ChannelsLast {
    plane: Plane,
    tile: usize,
    packed: Option<Vec<f32>>,
}

impl ChannelsLast {
    /// Gathers the columns of `positions`: one row per position, holding taps and then channels.
    fn gather(&self, image: &[f32], positions: Range<usize>, threads: usize, columns: &mut [f32]) {
        let p = &self.plane;
        let rows = &mut columns[..positions.len() * p.terms()];
        let row = |i: usize, row_out: &mut [f32]| {
            let position = positions.start + i;
            let (h, w) = (position / p.out[1], position % p.out[1]);
            for (tap, row_out) in row_out.chunks_mut(p.channels).enumerate() {
                let (kh, kw) = (tap / p.kernel[1], tap % p.kernel[1]);
                if !p.valid_positions(0, kh).contains(&h) || !p.valid_positions(1, kw).contains(&w) {
                    row_out.fill(0.0);
                    continue;
                }
                let y = h * p.stride[0] + kh * p.dilation[0] - p.before[0];
                let x = w * p.stride[1] + kw * p.dilation[1] - p.before[1];
                row_out.copy_from_slice(&image[(y * p.size[1] + x) * p.channels..][..p.channels]);
            }
        };
        if threads == 1 {
            rows.chunks_mut(p.terms()).enumerate().for_each(|(i, row_out)| row(i, row_out));
        } else {
            let work = rows.len();
            split::for_each_chunk(rows, p.terms(), work, row);
        }
    }
}

impl Kernel for ChannelsLast {
    fn workspace(&self) -> usize {
        column_bytes(&self.plane, self.tile)
    }

    fn run(
        &self,
        inputs: &[TensorView<'_>],
        outputs: &mut [TensorViewMut<'_>],
        workspace: &mut [u8],
    ) -> Result<(), String> {
        let p = &self.plane;
        let (x, w) = (inputs[0].as_slice::<f32>(), inputs[1].as_slice::<f32>());
        let weight = Matrix { data: self.packed.as_deref().unwrap_or(w), row: p.out_channels, col: 1 };
        let out = outputs[0].as_mut_slice::<f32>();
        let (positions, terms) = (p.positions(), p.terms());
        let image_input_len = p.channels * p.size[0] * p.size[1];
        let out_len = out.len();
        let shared_out = SharedPtr::new(out);
        for_each_run(p, self.tile, split::scratch(workspace), |threads, image, run, columns| {
            let data = &x[image * image_input_len..][..image_input_len];
            let columns = if p.is_direct() {
                Matrix { data: &data[run.start * terms..], row: terms, col: 1 }
            } else {
                self.gather(data, run.clone(), threads, columns);
                Matrix { data: columns, row: terms, col: 1 }
            };
            let first = (image * positions + run.start) * p.out_channels;
            assert!(first + run.len() * p.out_channels <= out_len, "every run lies within the result");
            // SAFETY: the assertion keeps the rows inside the result, and `for_each_run` passes each run of positions
            // to one call, so no other thread accesses the rows.
            let out = unsafe { Output::at(shared_out.get().add(first), run.len(), p.out_channels, p.out_channels) };
            gemm(threads, terms, columns, weight, out);
        });
        Ok(())
    }
}

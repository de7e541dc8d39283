//! Overlap-add: the second half of a transposed convolution whose first half is a matrix product.
//!
//! The product of the data and the kernel has one row per data position, with the contributions of the position to each
//! tap and output channel. Every output position adds up the contributions that fall on it. oneDNN's transposed
//! convolutions fill vectors with output channels and are faster if there are enough of them; with one to eight, this
//! form took about half of the time. It also covers windows for which the library has no implementation.

use crate::argument::Arguments;
use crate::cpu::fastest;
use crate::library::{OneDnn, ffi};

/// Windows of a transposed convolution along one spatial axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowAxis {
    /// Size of the data.
    pub input: usize,
    /// Size of the result.
    pub output: usize,
    pub taps: usize,
    pub stride: usize,
    pub dilation: usize,
    /// Padding at the start.
    pub padding: usize,
}

impl WindowAxis {
    /// Axis of size 1, as fewer than three spatial axes are preceded by such axes.
    pub const UNIT: WindowAxis = WindowAxis { input: 1, output: 1, taps: 1, stride: 1, dilation: 1, padding: 0 };

    /// Returns the taps that contribute to an output position, each with the data position that it reads.
    fn contributions(self, position: usize) -> impl Iterator<Item = (usize, usize)> {
        (0..self.taps).filter_map(move |tap| {
            let distance = (position + self.padding).checked_sub(tap * self.dilation)?;
            let is_covered = distance % self.stride == 0 && distance / self.stride < self.input;
            is_covered.then_some((tap, distance / self.stride))
        })
    }
}

/// Overlap-add of a product with the axes (groups, images, data positions, taps, channels per group) into a
/// channels-last result, plus a bias, clamped to a range.
#[derive(Clone, Debug, PartialEq)]
pub struct OverlapAdd {
    pub images: usize,
    pub groups: usize,
    /// Output channels per group.
    pub channels: usize,
    /// Spatial axes, outermost first.
    pub axes: [WindowAxis; 3],
    pub range: [f32; 2],
}

/// Maximum number of contributions that the calling thread adds alone, because waking another thread would take longer.
const MAX_SERIAL_ELEMENTS: usize = 16 << 10;

/// Tensors during a run.
struct Tensors<'a> {
    product: &'a [f32],
    bias: Option<&'a [f32]>,
    /// Address of the result.
    result: *mut f32,
}

// SAFETY: `run` assigns disjoint lines of the result to the threads.
unsafe impl Sync for Tensors<'_> {}

impl OverlapAdd {
    /// Returns the number of rows of the product in a group.
    pub fn rows(&self) -> usize {
        self.images * self.axes.iter().map(|axis| axis.input).product::<usize>()
    }

    /// Returns the number of columns of the product.
    pub fn columns(&self) -> usize {
        self.channels * self.axes.iter().map(|axis| axis.taps).product::<usize>()
    }

    /// Computes the result.
    ///
    /// # Safety
    /// Each argument must point to a tensor with the dimensions stated in `self`: readable for the product and the bias,
    /// writable for the result, which must not overlap them.
    pub unsafe fn run(&self, library: &OneDnn, args: Arguments<'_>) {
        let [Some(product), Some(result)] = [ffi::ARG_SRC, ffi::ARG_DST].map(|arg| args.floats(arg)) else { return };
        // SAFETY: the caller guarantees tensors of these sizes.
        let tensors = unsafe {
            let bias = args.floats(ffi::ARG_BIAS);
            Tensors {
                product: std::slice::from_raw_parts(product, self.groups * self.rows() * self.columns()),
                bias: bias.map(|bias| std::slice::from_raw_parts(bias, self.groups * self.channels)),
                result,
            }
        };
        let lines = self.images * self.axes[0].output * self.axes[1].output;
        let code = code();
        let run_part = |thread: usize, threads: usize| {
            let tensors = &tensors;
            // SAFETY: the caller guarantees valid tensors, and only this thread writes these lines.
            unsafe { code(self, tensors, lines * thread / threads, lines * (thread + 1) / threads) };
        };
        library.run_on_threads(tensors.product.len() > MAX_SERIAL_ELEMENTS, &run_part);
    }
}

fastest! {
    /// Returns the variant of [`lines`] for this CPU.
    code: unsafe fn(step: &OverlapAdd, tensors: &Tensors<'_>, first: usize, last: usize) = lines
}

/// Computes the lines `first..last` of the result: runs of positions along the innermost spatial axis.
///
/// # Safety
/// The tensors must have the dimensions stated in `step`, and no other thread may write these lines.
#[inline(always)]
unsafe fn lines(step: &OverlapAdd, tensors: &Tensors<'_>, first: usize, last: usize) {
    let [depth, height, width] = step.axes;
    let all_channels = step.groups * step.channels;
    for line in first..last {
        let (image, z, y) =
            (line / height.output / depth.output, line / height.output % depth.output, line % height.output);
        // SAFETY: the caller guarantees a result of these dimensions, which no other thread writes at this line.
        let result = unsafe {
            let start = tensors.result.add(line * width.output * all_channels);
            std::slice::from_raw_parts_mut(start, width.output * all_channels)
        };
        match tensors.bias {
            Some(&[bias]) => result.fill(bias),
            // Not `copy_from_slice`, which would call `memcpy` for a few elements.
            Some(bias) => result.chunks_exact_mut(all_channels).for_each(|position| {
                position.iter_mut().zip(bias).for_each(|(element, bias)| *element = *bias);
            }),
            None => result.fill(0.0),
        }
        for (tap_z, from_z) in depth.contributions(z) {
            for (tap_y, from_y) in height.contributions(y) {
                let from = ((image * depth.input + from_z) * height.input + from_y) * width.input;
                for group in 0..step.groups {
                    let row = group * step.rows() + from;
                    let tap = (tap_z * height.taps + tap_y) * width.taps * step.channels;
                    let products = &tensors.product[row * step.columns() + tap..];
                    if step.groups == 1 && width.dilation == 1 {
                        add_runs(step, products, result);
                    } else {
                        add_taps(step, products, result, group);
                    }
                }
            }
        }
        let [low, high] = step.range;
        if low > f32::NEG_INFINITY || high < f32::INFINITY {
            result.iter_mut().for_each(|x| *x = x.clamp(low, high));
        }
    }
}

/// Adds the contributions of a line of the data to a line of the result: the taps of a position are adjacent in both.
#[inline(always)]
fn add_runs(step: &OverlapAdd, products: &[f32], result: &mut [f32]) {
    let (axis, run) = (step.axes[2], step.axes[2].taps * step.channels);
    let (advance, offset) = (axis.stride * step.channels, axis.padding * step.channels);
    // Positions whose run lies within the result.
    let inside_from = offset.div_ceil(advance).min(axis.input);
    let inside_to = match (result.len() + offset).checked_sub(run) {
        Some(last) => (last / advance + 1).clamp(inside_from, axis.input),
        None => inside_from,
    };
    for position in (0..inside_from).chain(inside_to..axis.input) {
        let products = &products[position * step.columns()..][..run];
        for (i, product) in products.iter().enumerate() {
            if let Some(element) = (position * advance + i).checked_sub(offset).and_then(|index| result.get_mut(index))
            {
                *element += product;
            }
        }
    }
    if inside_from == inside_to {
        return;
    }
    let result = &mut result[inside_from * advance - offset..];
    let products = &products[inside_from * step.columns()..];
    let positions = inside_to - inside_from;
    // Short runs of a known length take a few instructions each.
    macro_rules! known_lengths {
        ($($length:literal)*) => {
            match run {
                $($length => {
                    let products = products.chunks(step.columns()).take(positions);
                    for (position, products) in products.enumerate() {
                        let result = &mut result[position * advance..][..$length];
                        result.iter_mut().zip(&products[..$length]).for_each(|(element, product)| *element += product);
                    }
                })*
                _ => {
                    let products = products.chunks(step.columns()).take(positions);
                    for (position, products) in products.enumerate() {
                        let result = &mut result[position * advance..][..run];
                        result.iter_mut().zip(&products[..run]).for_each(|(element, product)| *element += product);
                    }
                }
            }
        };
    }
    known_lengths!(1 2 3 4 6 8 9 12 16);
}

/// Adds the contributions of a line of the data to the channels of a group in a line of the result.
#[inline(always)]
fn add_taps(step: &OverlapAdd, products: &[f32], result: &mut [f32], group: usize) {
    let (axis, all_channels) = (step.axes[2], step.groups * step.channels);
    for position in 0..axis.input {
        for tap in 0..axis.taps {
            let Some(to) = (position * axis.stride + tap * axis.dilation).checked_sub(axis.padding) else { continue };
            if to < axis.output {
                let result = &mut result[to * all_channels + group * step.channels..][..step.channels];
                let products = &products[position * step.columns() + tap * step.channels..][..step.channels];
                result.iter_mut().zip(products).for_each(|(element, product)| *element += product);
            }
        }
    }
}

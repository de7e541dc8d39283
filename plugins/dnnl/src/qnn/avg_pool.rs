//! Average pooling of 8-bit integers: `(Σ (x - zero) / count) * scale`, with an exact sum and a quotient rounded once.

use crate::argument::Arguments;
use crate::library::{OneDnn, Window, ffi};

/// Average pooling of 8-bit integers.
#[derive(Clone, Debug, PartialEq)]
pub struct IntAvgPool {
    pub window: Window,
    /// True if the average includes padding, whose value is the zero point.
    pub includes_padding: bool,
    /// Zero point of the data.
    pub zero: i32,
    /// Scale of the data.
    pub scale: f32,
}

/// Pooling windows along one axis.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    /// Number of data elements along the axis.
    pub size: i64,
    /// Number of windows.
    pub out: i64,
    pub kernel: i64,
    pub stride: i64,
    pub dilation: i64,
    pub pad_before: i64,
}

impl Axis {
    /// Returns the range of taps of window `window` that are inside the data.
    fn taps(self, window: i64) -> std::ops::Range<i64> {
        let start = window * self.stride - self.pad_before;
        let first_tap = if start < 0 { (-start + self.dilation - 1) / self.dilation } else { 0 };
        let end_tap = if start >= self.size { 0 } else { (self.size - 1 - start) / self.dilation + 1 };
        first_tap.min(self.kernel)..end_tap.clamp(first_tap.min(self.kernel), self.kernel)
    }
}

/// Average pooling kernel for channels-last images.
#[derive(Clone, Debug)]
pub struct IntAvgPoolKernel {
    pub images: usize,
    pub channels: usize,
    pub axes: [Axis; 2],
    pub includes_padding: bool,
    pub zero: i32,
    pub scale: f32,
    pub is_signed: bool,
}

/// Number of channels accumulated together.
const LANES: usize = 64;

/// Minimum number of input bytes that justifies waking another thread.
const MIN_PARALLEL_BYTES: usize = 1 << 15;

/// Tensor addresses during a run.
#[derive(Clone, Copy)]
struct Pointers {
    source: *const u8,
    destination: *mut f32,
}

// SAFETY: `run` assigns disjoint results to the threads, and inputs are not written.
unsafe impl Sync for Pointers {}

impl IntAvgPoolKernel {
    /// Runs the pooling on all images.
    ///
    /// # Safety
    /// Each tensor must be at its argument's address, channels-last, with the pooling's dimensions; source and
    /// destination must not overlap.
    pub unsafe fn run(&self, library: &OneDnn, args: Arguments<'_>) {
        let (Some(source), Some(destination)) = (args.find(ffi::ARG_SRC), args.find(ffi::ARG_DST)) else { return };
        let pointers = Pointers { source: source.cast_const(), destination: destination.cast() };
        let [height, width] = self.axes;
        let blocks = self.channels.div_ceil(LANES);
        let unit_count = self.images * (height.out * width.out) as usize * blocks;
        let run_part = |thread: usize, threads: usize| {
            let pointers = &pointers;
            for unit in unit_count * thread / threads..unit_count * (thread + 1) / threads {
                // SAFETY: the caller guarantees tensors that contain the unit, and only this thread computes it.
                unsafe { self.average_window(*pointers, unit / blocks, unit % blocks * LANES) };
            }
        };
        library.run_on_threads(
            unit_count * LANES * (height.kernel * width.kernel) as usize > MIN_PARALLEL_BYTES,
            &run_part,
        );
    }

    /// Computes the means of one window for the block of channels that starts at `channel`.
    ///
    /// # Safety
    /// The tensors at `pointers` must have the pooling's dimensions.
    unsafe fn average_window(&self, pointers: Pointers, window: usize, channel: usize) {
        let [height, width] = self.axes;
        let row = window as i64 / width.out;
        let (image, y, x) = (row / height.out, row % height.out, window as i64 % width.out);
        let (rows, columns) = (height.taps(y), width.taps(x));
        let len = LANES.min(self.channels - channel);
        let mut accumulators = [0i64; LANES];
        let mut tap_count = 0i64;
        for tap_y in rows {
            for tap_x in columns.clone() {
                let source_y = y * height.stride - height.pad_before + tap_y * height.dilation;
                let source_x = x * width.stride - width.pad_before + tap_x * width.dilation;
                let offset =
                    ((image * height.size + source_y) * width.size + source_x) as usize * self.channels + channel;
                let mut block = [0u8; LANES];
                // SAFETY: `taps` returns only taps inside the data, which has `len` channels starting at `channel`.
                unsafe { std::ptr::copy_nonoverlapping(pointers.source.add(offset), block.as_mut_ptr(), len) };
                for (sum, &byte) in accumulators.iter_mut().zip(&block) {
                    *sum += if self.is_signed { i64::from(byte as i8) } else { i64::from(byte) };
                }
                tap_count += 1;
            }
        }
        let count = if self.includes_padding { height.kernel * width.kernel } else { tap_count };
        let mut means = [0f32; LANES];
        for (mean, sum) in means.iter_mut().zip(&accumulators) {
            let sum = sum - tap_count * i64::from(self.zero);
            *mean = (sum as f64 / count.max(1) as f64) as f32 * self.scale;
        }
        // SAFETY: the caller guarantees a result with `len` channels starting at `channel` for this window.
        unsafe {
            let address = pointers.destination.add(window * self.channels + channel);
            std::ptr::copy_nonoverlapping(means.as_ptr(), address, len);
        }
    }
}

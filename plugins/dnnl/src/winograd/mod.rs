//! Convolutions by 3 x 3 kernels with fewer multiplications: Winograd's minimal filtering F(2 x 2, 3 x 3).
//!
//! Computed directly, a 2 x 2 tile of the result takes 36 multiplications for each pair of channels. In a transformed
//! basis, the 4 x 4 input tile that it depends on is multiplied by the kernel in 16 multiplications (A. Lavin and S.
//! Gray, "Fast Algorithms for Convolutional Neural Networks", 2015, section 4.1):
//!
//! ```text
//! Y = At [ (G g Gt) * (Bt d B) ] A
//!
//!      | 1  0 -1  0 |        |  1    0    0  |        | 1  1  1  0 |
//! Bt = | 0  1  1  0 |    G = | 1/2  1/2  1/2 |   At = | 0  1 -1 -1 |
//!      | 0 -1  1  0 |        | 1/2 -1/2  1/2 |
//!      | 0  1  0 -1 |        |  0    0    1  |
//! ```
//!
//! Summed over channels, the elementwise product is one matrix product for each of the 16 positions. oneDNN 3.2 has no
//! Winograd convolution for these CPUs (a request for one returns "unimplemented"), so it is computed here, on the
//! library's threads: each thread takes tiles of the result, transforms their input into a buffer that stays in its
//! cache (`kernel`), multiplies and transforms back. The kernels are transformed at load time (`weights`).
//! `handwritten` decides where this is used instead of the library's convolution.
//!
//! Larger tiles would save more multiplications but lose precision: their transforms have coefficients of 4 and 8,
//! whereas those used here have none above 1.

#[cfg(target_arch = "x86_64")]
mod kernel;
mod weights;

pub use weights::Weights;

use crate::argument::Arguments;
use crate::library::{OneDnn, ffi};

/// Number of positions of a transformed tile.
const POSITIONS: usize = 16;

/// Number of channels per vector.
pub const LANES: usize = 16;

/// Number of filters per block: columns of a register kernel.
const BLOCK: usize = 2 * LANES;

/// Maximum number of tiles that a register kernel multiplies at once.
const MAX_ROWS: usize = 14;

/// Size in bytes of a thread's transformed data: a part of a core's L2 cache, most of which the weights occupy.
const CACHE_BYTES: usize = 256 << 10;

/// Winograd convolution.
#[derive(Clone, Debug, PartialEq)]
pub struct Winograd {
    /// Number of images, and their height and width.
    pub source: [usize; 3],
    /// Strides of images, rows and columns of the data, in elements. Channels are contiguous.
    pub strides: [usize; 3],
    /// Height and width of the result, which is channels-last and packed.
    pub result: [usize; 2],
    /// Padding above and to the left.
    pub padding: [usize; 2],
    pub weights: Weights,
    /// Clamp bounds of the result.
    pub range: [f32; 2],
    /// Number of threads that have scratch memory.
    pub slots: usize,
}

/// Addresses of a convolution's tensors; null for optional ones that are absent.
struct Pointers {
    data: *const f32,
    weights: *const f32,
    bias: *const f32,
    /// Tensor in the result's layout that is added; may be the result itself.
    addend: *const f32,
    result: *mut f32,
    scratch: *mut f32,
}

// SAFETY: inputs are not written, except for the addend, each element of which is read by the thread that writes it;
// results and scratch memory are disjoint between threads.
unsafe impl Sync for Pointers {}

impl Winograd {
    /// Returns the number of rows and columns of tiles.
    fn grid(&self) -> [usize; 2] {
        self.result.map(|size| size.div_ceil(2))
    }

    /// Number of tiles of all images.
    pub fn tiles(&self) -> usize {
        self.source[0] * self.grid()[0] * self.grid()[1]
    }

    /// Number of tiles whose transformed data is held at once.
    fn tiles_per_group(&self) -> usize {
        let rows = POSITIONS * MAX_ROWS * self.weights.padded_channels() * size_of::<f32>();
        MAX_ROWS * (CACHE_BYTES / rows).clamp(1, 8)
    }

    /// Number of elements of a thread's scratch memory: transformed data and products of the current tiles.
    fn scratch_per_thread(&self) -> usize {
        POSITIONS * self.tiles_per_group() * (self.weights.padded_channels() + BLOCK)
    }

    /// Number of elements of scratch memory.
    pub fn scratch(&self) -> usize {
        self.slots * self.scratch_per_thread()
    }

    /// Returns the number of parts into which tiles and the number into which filter blocks are split. Tiles are split
    /// first, since threads that share tiles transform the same data; a part should fill a register kernel.
    fn parts(&self, threads: usize) -> [usize; 2] {
        let tiles = threads.min(self.tiles().div_ceil(MAX_ROWS)).max(1);
        [tiles, (threads / tiles).clamp(1, self.weights.blocks())]
    }

    /// Computes the convolution.
    ///
    /// # Safety
    /// Each tensor must be at its argument's address with the stated sizes; the result may overlap only the addend, and
    /// only exactly. The CPU must support AVX-512.
    pub unsafe fn run(&self, library: &OneDnn, args: Arguments<'_>) {
        let all = [ffi::ARG_SRC, ffi::ARG_WEIGHTS, ffi::ARG_DST, ffi::ARG_SCRATCHPAD].map(|arg| args.floats(arg));
        let [Some(data), Some(weights), Some(result), Some(scratch)] = all else { return };
        let [bias, addend] =
            [ffi::ARG_BIAS, ffi::ARG_SRC_1].map(|arg| args.floats(arg).unwrap_or(std::ptr::null_mut()));
        let pointers = Pointers { data, weights, bias, addend, result, scratch };
        library.on_threads(true, &|thread, threads| {
            let [shares, others] = self.parts(threads.min(self.slots));
            if thread < shares * others {
                let share = |all: usize, part: usize, parts: usize| all * part / parts..all * (part + 1) / parts;
                let tiles = share(self.tiles(), thread % shares, shares);
                let blocks = share(self.weights.blocks(), thread / shares, others);
                // Winograd is never chosen on other architectures.
                #[cfg(target_arch = "x86_64")]
                // SAFETY: guaranteed by the caller; parts do not overlap, and each has its own scratch memory.
                unsafe {
                    self.part(&pointers, thread, tiles, blocks);
                }
            }
        });
    }
}

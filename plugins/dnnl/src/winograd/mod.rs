//! 3 x 3 convolutions with fewer multiplications: Winograd's minimal filtering F(2 x 2, 3 x 3).
//!
//! Computed directly, a 2 x 2 result tile needs 36 multiplications per pair of input and output channels. In a
//! transformed basis, multiplying the corresponding 4 x 4 input tile by the kernel needs 16 (A. Lavin and S. Gray,
//! "Fast Algorithms for Convolutional Neural Networks", 2015, section 4.1):
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
//! library's threads: each thread transforms the input of its result tiles into a buffer that stays in cache
//! (`kernel`), multiplies, and transforms back. The kernels are transformed at load time (`weights`). `handwritten`
//! decides where this is used instead of the library's convolution.
//!
//! Larger tiles would save more multiplications but lose precision: their transforms have coefficients of 4 and 8,
//! whereas the transforms used here have no coefficient above 1.

#[cfg(target_arch = "x86_64")]
mod kernel;
mod weights;

pub use weights::WeightLayout;

use crate::argument::Arguments;
use crate::library::{OneDnn, ffi};

/// Number of positions in a transformed tile.
const POSITIONS: usize = 16;

/// Number of channels per vector.
pub const LANES: usize = 16;

/// Number of filters per block: columns of a microkernel.
const BLOCK: usize = 2 * LANES;

/// Maximum number of tiles per microkernel call.
const MAX_ROWS: usize = 14;

/// Size in bytes of a thread's transformed data: a fraction of a core's L2 cache, because weights occupy most of the
/// cache.
const CACHE_BYTES: usize = 256 << 10;

/// Winograd convolution.
#[derive(Clone, Debug, PartialEq)]
pub struct Winograd {
    /// Number of images, image height and image width.
    pub source: [usize; 3],
    /// Strides of the data's images, rows and columns, in elements. Channels are contiguous.
    pub strides: [usize; 3],
    /// Height and width of the result, which is channels-last and packed.
    pub result: [usize; 2],
    /// Padding above and to the left.
    pub padding: [usize; 2],
    pub weights: WeightLayout,
    /// Clamp bounds of the result.
    pub range: [f32; 2],
    /// Number of threads that have scratch memory.
    pub slots: usize,
}

/// Addresses of a convolution's tensors; null for absent optional tensors.
struct Pointers {
    data: *const f32,
    weights: *const f32,
    bias: *const f32,
    /// Tensor added to the result, in the same layout; may be the result itself.
    addend: *const f32,
    result: *mut f32,
    scratch: *mut f32,
}

// SAFETY: `run` assigns the threads disjoint results and scratch memory, and inputs are not written, unless the result
// is the addend; then only the thread that writes an element reads it.
unsafe impl Sync for Pointers {}

impl Winograd {
    /// Returns the number of tile rows and the number of tile columns.
    fn grid(&self) -> [usize; 2] {
        self.result.map(|size| size.div_ceil(2))
    }

    /// Total number of tiles in all images.
    pub fn tiles(&self) -> usize {
        self.source[0] * self.grid()[0] * self.grid()[1]
    }

    /// Number of tiles per group; only one group's transformed data is live at a time.
    fn tiles_per_group(&self) -> usize {
        let rows = POSITIONS * MAX_ROWS * self.weights.padded_channels() * size_of::<f32>();
        MAX_ROWS * (CACHE_BYTES / rows).clamp(1, 8)
    }

    /// Number of elements of a thread's scratch memory: transformed data and products of the current tiles.
    fn scratch_per_thread(&self) -> usize {
        POSITIONS * self.tiles_per_group() * (self.weights.padded_channels() + BLOCK)
    }

    /// Total number of scratch memory elements.
    pub fn scratch(&self) -> usize {
        self.slots * self.scratch_per_thread()
    }

    /// Returns the number of tile parts and the number of filter-block parts. Tiles are split first, because threads
    /// with the same tiles repeat the same data transform; each tile part should fill a microkernel.
    fn parts(&self, threads: usize) -> [usize; 2] {
        let tile_parts = threads.min(self.tiles().div_ceil(MAX_ROWS)).max(1);
        [tile_parts, (threads / tile_parts).clamp(1, self.weights.blocks())]
    }

    /// Computes the convolution.
    ///
    /// # Safety
    /// Each tensor must be at its argument's address with the sizes stated in `self`; the result must not overlap any
    /// other tensor, but may be the addend itself. The CPU must support AVX-512.
    pub unsafe fn run(&self, library: &OneDnn, args: Arguments<'_>) {
        let addresses = [ffi::ARG_SRC, ffi::ARG_WEIGHTS, ffi::ARG_DST, ffi::ARG_SCRATCHPAD].map(|arg| args.floats(arg));
        let [Some(data), Some(weights), Some(result), Some(scratch)] = addresses else { return };
        let [bias, addend] =
            [ffi::ARG_BIAS, ffi::ARG_SRC_1].map(|arg| args.floats(arg).unwrap_or(std::ptr::null_mut()));
        let pointers = Pointers { data, weights, bias, addend, result, scratch };
        library.run_on_threads(true, &|thread, threads| {
            let [tile_parts, filter_parts] = self.parts(threads.min(self.slots));
            if thread < tile_parts * filter_parts {
                let range_of_part = |addresses: usize, index: usize, count: usize| {
                    addresses * index / count..addresses * (index + 1) / count
                };
                let tiles = range_of_part(self.tiles(), thread % tile_parts, tile_parts);
                let blocks = range_of_part(self.weights.blocks(), thread / tile_parts, filter_parts);
                // Lowering never selects Winograd on other architectures.
                #[cfg(target_arch = "x86_64")]
                // SAFETY: the caller guarantees valid tensors and AVX-512; parts do not overlap, and each has its own
                // scratch memory.
                unsafe {
                    self.run_part(&pointers, thread, tiles, blocks);
                }
            }
        });
    }
}

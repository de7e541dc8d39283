//! Convolutions by 3 x 3 kernels with fewer multiplications: Winograd's minimal filtering F(2 x 2, 3 x 3).
//!
//! Two by two places of a result take 36 multiplications directly for each pair of channels. Transformed into another
//! basis, the 4 x 4 places of the data that they depend on meet the kernel in 16 multiplications (A. Lavin and S. Gray,
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
//! Summed over channels, the product in the middle is one matrix product for each of the 16 places. oneDNN 3.2 has no
//! such convolution for this kind of CPU (asked for one, it says that it is unimplemented), so it is computed here, on
//! the library's threads: each of them takes tiles of the result, transforms their data into memory that stays in its
//! cache (`kernel`), multiplies and transforms back. The kernels are transformed when they are loaded (`weights`).
//! `own` says where all this is taken instead of the library's own.
//!
//! Larger tiles would save more multiplications, and lose digits: their matrices hold 4 and 8, those here nothing
//! beyond 1.

#[cfg(target_arch = "x86_64")]
mod kernel;
mod weights;

pub use weights::Weights;

use crate::argument::Given;
use crate::library::{OneDnn, ffi};

/// Places of a transformed tile.
const PLACES: usize = 16;

/// Channels that are computed on at once.
pub const LANES: usize = 16;

/// Filters of a block: what a register kernel multiplies by.
const BLOCK: usize = 2 * LANES;

/// The most tiles that a register kernel multiplies at once.
const MOST_ROWS: usize = 14;

/// Transformed data of a thread's tiles at hand: a part of a core's second cache, most of which the weights take.
const CACHED: usize = 256 << 10;

/// A convolution.
#[derive(Clone, Debug, PartialEq)]
pub struct Winograd {
    /// Images, and the height and width of each.
    pub source: [usize; 3],
    /// Elements from one image, row and column of the data to the next. Channels lie densely.
    pub strides: [usize; 3],
    /// Height and width of the result, which lies channels-last without gaps.
    pub result: [usize; 2],
    /// Padding above and to the left.
    pub before: [usize; 2],
    /// Channels and filters.
    pub weights: Weights,
    /// What results are clamped to.
    pub range: [f32; 2],
    /// Threads that there is scratch memory for.
    pub slots: usize,
}

/// Where a convolution's tensors lie. Those that may be missing are null.
struct Places {
    data: *const f32,
    weights: *const f32,
    bias: *const f32,
    /// A tensor of the result's layout that is added; it may be the result itself.
    addend: *const f32,
    result: *mut f32,
    scratch: *mut f32,
}

// SAFETY: what is read is not written, but for the addend, which the thread reads that writes there; threads write
// results and scratch of their own.
unsafe impl Sync for Places {}

impl Winograd {
    /// Rows and columns of tiles.
    fn grid(&self) -> [usize; 2] {
        self.result.map(|size| size.div_ceil(2))
    }

    /// Tiles of all images.
    pub fn tiles(&self) -> usize {
        self.source[0] * self.grid()[0] * self.grid()[1]
    }

    /// Tiles whose transformed data is held at once.
    fn held(&self) -> usize {
        let rows = PLACES * MOST_ROWS * self.weights.padded_channels() * size_of::<f32>();
        MOST_ROWS * (CACHED / rows).clamp(1, 8)
    }

    /// Elements of a thread's scratch memory: transformed data and products of the tiles at hand.
    fn scratch_each(&self) -> usize {
        PLACES * self.held() * (self.weights.padded_channels() + BLOCK)
    }

    /// Elements of scratch memory.
    pub fn scratch(&self) -> usize {
        self.slots * self.scratch_each()
    }

    /// How many parts the tiles and the blocks of filters are cut into for so many threads. Tiles come first, since
    /// whoever shares tiles transforms the same data; a part of them should fill a register kernel.
    fn parts(&self, threads: usize) -> [usize; 2] {
        let tiles = threads.min(self.tiles().div_ceil(MOST_ROWS)).max(1);
        [tiles, (threads / tiles).clamp(1, self.weights.blocks())]
    }

    /// Computes.
    ///
    /// # Safety Each tensor has to lie where it is said to, with the sizes given, and the result may overlap only the
    /// addend, and that wholly. The CPU has to have AVX-512.
    pub unsafe fn run(&self, library: &OneDnn, given: Given<'_>) {
        let all = [ffi::ARG_SRC, ffi::ARG_WEIGHTS, ffi::ARG_DST, ffi::ARG_SCRATCHPAD].map(|arg| given.floats(arg));
        let [Some(data), Some(weights), Some(result), Some(scratch)] = all else { return };
        let [bias, addend] =
            [ffi::ARG_BIAS, ffi::ARG_SRC_1].map(|arg| given.floats(arg).unwrap_or(std::ptr::null_mut()));
        let places = Places { data, weights, bias, addend, result, scratch };
        library.on_threads(true, &|thread, threads| {
            let [shares, others] = self.parts(threads.min(self.slots));
            if thread < shares * others {
                let share = |all: usize, part: usize, parts: usize| all * part / parts..all * (part + 1) / parts;
                let tiles = share(self.tiles(), thread % shares, shares);
                let blocks = share(self.weights.blocks(), thread / shares, others);
                // Elsewhere it is never chosen.
                #[cfg(target_arch = "x86_64")]
                // SAFETY: the caller's word; parts do not overlap, and this one has scratch memory of its own.
                unsafe {
                    self.part(&places, thread, tiles, blocks);
                }
            }
        });
    }
}

//! Tilings: divisions of a layer into tiles, the parts that the on-chip memories hold at a time.

use crate::layer::{Conv, Layer, Pool, Step};
use byoc_vta_machine::check::MIN_DISTANCE;
use byoc_vta_machine::config::Config;
use byoc_vta_machine::isa::Memory;

/// Distribution of the tiles over virtual threads. While one thread computes, the memories of the other are filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// One thread.
    One,
    /// Two threads, split over output channel blocks.
    OverOutputs,
    /// Two threads, split over rows.
    OverRows,
}

impl Threads {
    /// Returns the number of threads.
    pub fn count(self) -> usize {
        if self == Threads::One { 1 } else { 2 }
    }
}

/// Tile sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Number of result rows and columns. Elementwise operations have one row.
    pub size: [usize; 2],
    /// Number of input channel blocks; 1 for layers other than convolutions.
    pub inputs: usize,
    /// Number of output channel blocks; 1 for layers other than convolutions.
    pub outputs: usize,
    /// Distribution over virtual threads.
    pub threads: Threads,
}

/// Maximum loop count of an instruction.
const MAX_ITERATIONS: usize = 16383;

/// Maximum number of zero rows or columns that a load can add on each side.
pub const MAX_PAD: usize = 15;

/// Result axes that the micro-operations of a convolution enumerate for each tap. The remaining axes are instruction
/// loops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unrolled {
    /// Columns only.
    Columns,
    /// Rows and columns.
    Rows,
    /// Blocks, rows and columns.
    All,
    /// Blocks, rows and columns, with one instruction per tap.
    Nothing,
}

impl Unrolled {
    /// Returns the smallest set of axes for which steps that write the same accumulator are at least `MIN_DISTANCE`
    /// apart.
    pub(crate) fn of([rows, columns]: [usize; 2], outputs: usize, taps: usize) -> Unrolled {
        if taps == 1 || columns >= MIN_DISTANCE {
            Unrolled::Columns
        } else if rows * columns >= MIN_DISTANCE {
            Unrolled::Rows
        } else if outputs * rows * columns >= MIN_DISTANCE {
            Unrolled::All
        } else {
            Unrolled::Nothing
        }
    }
}

impl Tile {
    /// Returns the number of data rows and columns that a tile of windows reads, including padding.
    fn data(&self, kernel: [usize; 2], strides: [usize; 2]) -> [usize; 2] {
        [0, 1].map(|axis| (self.size[axis] - 1) * strides[axis] + kernel[axis])
    }

    /// Returns the number of micro-operations in a tile's matrix kernel.
    fn uops(&self, layer: &Conv) -> usize {
        let taps = self.inputs * layer.kernel[0] * layer.kernel[1];
        let results = match Unrolled::of(self.size, self.outputs, taps) {
            Unrolled::Columns => self.size[1],
            Unrolled::Rows => self.size[0] * self.size[1],
            Unrolled::All => self.outputs * self.size[0] * self.size[1],
            Unrolled::Nothing => return self.outputs * self.size[0] * self.size[1],
        };
        taps * results
    }

    /// Tests whether the tiles of all threads fit into the on-chip memories.
    pub fn fits(&self, layer: &Layer, config: &Config) -> bool {
        let threads = self.threads.count();
        let depth_per_thread = |memory| config.depth(memory) / threads;
        let results = self.outputs * self.size[0] * self.size[1];
        let tensor_count = layer.added_tensors();
        let has_vectors = layer.steps().iter().any(|step| matches!(step, Step::Vector(..)));
        let epilogue = results * tensor_count.min(1) + if has_vectors { self.outputs } else { 0 };
        // Tensors pass through the activation memory if the device cannot load bytes into accumulators.
        let staged_tensors = |tensors: usize| if config.has_acc_8bit() { 0 } else { tensors };
        let can_iterate = results <= MAX_ITERATIONS;
        let has_room_for = |kernels: usize| kernels + self.size[1] + 16 <= config.uop_entries();
        match layer {
            Layer::Conv(conv) => {
                let [rows, columns] = self.data(conv.kernel, conv.strides);
                let data = (self.inputs * rows * columns).max(results * staged_tensors(tensor_count));
                can_iterate
                    && data <= depth_per_thread(Memory::Inp)
                    && self.outputs * self.inputs * conv.kernel[0] * conv.kernel[1] <= depth_per_thread(Memory::Wgt)
                    && results + epilogue <= depth_per_thread(Memory::Acc)
                    && has_room_for(self.uops(conv))
            }
            Layer::Pool(pool) => {
                let [rows, columns] = self.pool_data(pool);
                let data = rows * columns;
                can_iterate
                    && data <= MAX_ITERATIONS
                    && data * staged_tensors(1) + results * staged_tensors(tensor_count)
                        <= depth_per_thread(Memory::Inp)
                    && results + data.max(epilogue) <= depth_per_thread(Memory::Acc)
                    && has_room_for(pool.kernel[0] * pool.kernel[1])
            }
            Layer::Elementwise(_) => {
                can_iterate
                    && results * staged_tensors(1 + tensor_count) <= depth_per_thread(Memory::Inp)
                    && results + epilogue <= depth_per_thread(Memory::Acc)
                    && has_room_for(0)
            }
        }
    }

    /// Returns the maximum number of data rows and columns that a pooling tile reads.
    fn pool_data(&self, pool: &Pool) -> [usize; 2] {
        let data = self.data(pool.kernel, pool.strides);
        [0, 1].map(|axis| data[axis].min(pool.size[axis]))
    }
}

//! Tilings of a layer: how much of it the memories of the device hold at a time.

use crate::layer::Conv;
use byoc_vta_machine::config::Config;
use byoc_vta_machine::isa::Memory;

/// Axis whose tiles two virtual threads share: while one computes, the memories of the other are filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// One thread.
    One,
    /// Two threads, on blocks of output channels.
    OverOutputs,
    /// Two threads, on rows.
    OverRows,
}

impl Threads {
    /// Returns the number of threads.
    pub fn count(self) -> usize {
        if self == Threads::One { 1 } else { 2 }
    }
}

/// Sizes of a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Rows and columns of the result.
    pub size: [usize; 2],
    /// Blocks of input channels.
    pub inputs: usize,
    /// Blocks of output channels.
    pub outputs: usize,
    /// Virtual threads.
    pub threads: Threads,
}

/// Maximum of the loop counts, and of the micro-operations of a kernel.
const MAX_ITERATIONS: usize = 16383;

/// Maximum rows or columns of zeros that a load adds on a side.
pub const MAX_PAD: usize = 15;

impl Tile {
    /// Returns the rows and columns of the data that a tile reads, with padding.
    pub fn data(&self, layer: &Conv) -> [usize; 2] {
        [0, 1].map(|axis| (self.size[axis] - 1) * layer.strides[axis] + layer.kernel[axis])
    }

    /// Returns the number of micro-operations of the matrix kernel of a tile.
    pub fn uops(&self, layer: &Conv) -> usize {
        self.inputs * layer.kernel[0] * layer.kernel[1] * self.size[1]
    }

    /// Returns true if the memories of the device hold the tiles of all threads.
    pub fn fits(&self, layer: &Conv, config: &Config) -> bool {
        let threads = self.threads.count();
        let [rows, columns] = self.data(layer);
        let results = self.outputs * self.size[0] * self.size[1];
        let share = |memory| config.depth(memory) / threads;
        let bias = if layer.bias { self.outputs } else { 0 };
        self.inputs * rows * columns <= share(Memory::Inp)
            && self.outputs * self.inputs * layer.kernel[0] * layer.kernel[1] <= share(Memory::Wgt)
            && results + bias <= share(Memory::Acc)
            && self.uops(layer) + self.size[1] + 4 <= config.uop_entries()
            && results <= MAX_ITERATIONS
    }
}

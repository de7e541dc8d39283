//! Layers in the units of the device: blocks of channels.

/// Convolution of int8 tensors with its requantization, in blocks of channels.
///
/// Tensors are packed: activations and results as (blocks of batch, blocks of channels, rows, columns), weights as (blocks
/// of output channels, blocks of input channels, rows, columns), the bias as one accumulator element per block of output
/// channels. The result of each sum is `clip((sum + bias) >> shift)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conv {
    /// Blocks of the batch.
    pub batch: usize,
    /// Blocks of input channels.
    pub inputs: usize,
    /// Blocks of output channels.
    pub outputs: usize,
    /// Rows and columns of the data.
    pub size: [usize; 2],
    /// Rows and columns of a kernel.
    pub kernel: [usize; 2],
    /// Strides in rows and columns.
    pub strides: [usize; 2],
    /// Rows of zeros above and below, columns of zeros on the left and on the right.
    pub pads: [[usize; 2]; 2],
    /// Bias, if the layer has one.
    pub bias: bool,
    /// Amount of the shift to the right.
    pub shift: i16,
    /// Bounds of the results.
    pub bounds: [i16; 2],
}

impl Conv {
    /// Returns the rows and columns of the result; `None` if the padded data is smaller than the kernel.
    pub fn result(&self) -> Option<[usize; 2]> {
        let along = |axis: usize| {
            let padded = self.size[axis] + self.pads[axis][0] + self.pads[axis][1];
            Some(padded.checked_sub(self.kernel[axis])? / self.strides[axis] + 1)
        };
        Some([along(0)?, along(1)?])
    }

    /// Returns the number of steps of the matrix unit.
    pub fn steps(&self) -> usize {
        let [rows, columns] = self.result().unwrap_or_default();
        self.batch * self.inputs * self.outputs * rows * columns * self.kernel[0] * self.kernel[1]
    }
}

/// Addresses of the tensors of a layer in DRAM, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// Activations.
    pub data: usize,
    /// Weights.
    pub weight: usize,
    /// Bias.
    pub bias: usize,
    /// Result.
    pub result: usize,
    /// Micro-operations.
    pub uops: usize,
}

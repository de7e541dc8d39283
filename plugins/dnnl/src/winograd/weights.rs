//! Convolution kernels in the transformed basis, in the order in which the microkernels read them.

use super::{BLOCK, LANES, POSITIONS};

/// Layout of 3 x 3 kernels before and after the Winograd transform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightLayout {
    /// Number of filters and number of channels.
    pub size: [usize; 2],
    /// Strides of filters, channels, rows and columns in the constant, in elements.
    pub strides: [usize; 4],
}

impl WeightLayout {
    /// Number of channels, rounded up to full vectors.
    pub fn padded_channels(&self) -> usize {
        self.size[1].next_multiple_of(LANES)
    }

    /// Number of filter blocks; the last block is zero-padded.
    pub fn blocks(&self) -> usize {
        self.size[0].div_ceil(BLOCK)
    }

    /// Number of elements of the transformed kernels, whose axes are (blocks, positions, channels, filters per block).
    pub fn elements(&self) -> usize {
        self.blocks() * POSITIONS * self.padded_channels() * BLOCK
    }

    /// Transforms the kernels in `source` and stores them in `transformed`, which must be zeroed. Returns `None` if
    /// `source` is too short.
    pub fn transform(&self, source: &[u8], transformed: &mut [f32]) -> Option<()> {
        let (floats, _) = source.as_chunks::<4>();
        let [filters, channels] = self.size;
        for filter in 0..filters {
            for channel in 0..channels {
                let mut kernel = [[0.0; 3]; 3];
                for (column, taps) in kernel.iter_mut().enumerate() {
                    for (row, tap) in taps.iter_mut().enumerate() {
                        let index = [filter, channel, row, column];
                        let offset: usize = index.iter().zip(self.strides).map(|(i, stride)| i * stride).sum();
                        *tap = f64::from(f32::from_ne_bytes(*floats.get(offset)?));
                    }
                }
                // Columns of G g, which the loop below multiplies by Gt.
                let columns = kernel.map(multiply_by_g);
                for row in 0..4 {
                    let values = multiply_by_g(columns.map(|column| column[row]));
                    for (column, &value) in values.iter().enumerate() {
                        let plane = filter / BLOCK * POSITIONS + row * 4 + column;
                        transformed[(plane * self.padded_channels() + channel) * BLOCK + filter % BLOCK] = value as f32;
                    }
                }
            }
        }
        Some(())
    }
}

/// Multiplies G by a column.
fn multiply_by_g([a, b, c]: [f64; 3]) -> [f64; 4] {
    [a, (a + b + c) / 2.0, (a - b + c) / 2.0, c]
}

//! Packed tensors: channel blocks in the layout of the device.

use byoc_plugin_api::{Result, Services};
use byoc_vta_machine::config::Config;
use serde::{Deserialize, Serialize};

/// Dimensions of a tensor, and its packing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// (N, C, H, W), packed as (N/b, C/c, H, W, b, c).
    Images {
        /// Batch size, N.
        batch: usize,
        /// Number of channels, C.
        channels: usize,
        /// Number of pixels, H * W.
        positions: usize,
    },
    /// (N, C), packed as (C/c, N/b, b, c): the rows of a dense layer are treated as positions in one image.
    Rows {
        /// Number of rows, N.
        rows: usize,
        /// Number of channels, C.
        channels: usize,
    },
}

impl Layout {
    /// Returns the layout of a tensor: images for rank 4, otherwise rows along the last dimension.
    pub fn of(shape: &[usize]) -> Layout {
        match *shape {
            [batch, channels, height, width] => Layout::Images { batch, channels, positions: height * width },
            [] => Layout::Rows { rows: 1, channels: 1 },
            [ref leading @ .., channels] => Layout::Rows { rows: leading.iter().product(), channels },
        }
    }

    /// Returns the number of device activation elements in the packed tensor.
    pub fn elements(&self, config: &Config) -> usize {
        let (b, c) = (config.batch(), config.block());
        match *self {
            Layout::Images { batch, channels, positions } => batch.div_ceil(b) * channels.div_ceil(c) * positions,
            Layout::Rows { rows, channels } => rows.div_ceil(b) * channels.div_ceil(c),
        }
    }

    /// Returns the number of scalars in the tensor.
    pub fn count(&self) -> usize {
        match *self {
            Layout::Images { batch, channels, positions } => batch * channels * positions,
            Layout::Rows { rows, channels } => rows * channels,
        }
    }

    /// Returns the number of independently packed slabs, and the number of elements per slab.
    fn slabs(&self, config: &Config) -> (usize, usize) {
        let (b, c) = (config.batch(), config.block());
        match *self {
            Layout::Images { batch, channels, positions } => (batch.div_ceil(b) * channels.div_ceil(c), positions),
            Layout::Rows { rows, channels } => (channels.div_ceil(c), rows.div_ceil(b)),
        }
    }

    /// Calls `f` for each scalar of a slab, with its index in the slab and its index in the tensor.
    fn for_each(&self, config: &Config, slab: usize, mut f: impl FnMut(usize, usize)) {
        let (b, c) = (config.batch(), config.block());
        match *self {
            Layout::Images { batch, channels, positions } => {
                let blocks = channels.div_ceil(c);
                let (first_image, first_channel) = (slab / blocks * b, slab % blocks * c);
                for image in 0..b.min(batch - first_image) {
                    for channel in 0..c.min(channels - first_channel) {
                        let source = ((first_image + image) * channels + first_channel + channel) * positions;
                        let destination = image * c + channel;
                        (0..positions).for_each(|position| f(position * b * c + destination, source + position));
                    }
                }
            }
            Layout::Rows { rows, channels } => {
                let first_channel = slab * c;
                for row in 0..rows {
                    for channel in 0..c.min(channels - first_channel) {
                        f(row / b * b * c + row % b * c + channel, row * channels + first_channel + channel);
                    }
                }
            }
        }
    }
}

/// Memory in which tasks write disjoint elements.
#[derive(Clone, Copy)]
struct Target<T>(*mut T);

// SAFETY: memory is only accessed by `write`, whose caller guarantees exclusive access to the element.
unsafe impl<T: Send> Send for Target<T> {}
// SAFETY: memory is only accessed by `write`, whose caller guarantees exclusive access to the element.
unsafe impl<T: Send> Sync for Target<T> {}

impl<T: Copy> Target<T> {
    /// Writes an element. Because this is a method, closures capture the `Target`, which is `Sync`, not its raw
    /// pointer.
    ///
    /// # Safety
    /// `index` must be in bounds, and nothing else may access the element during the call.
    unsafe fn write(self, index: usize, value: T) {
        // SAFETY: the caller guarantees that `index` is in bounds and that the access is exclusive.
        unsafe { self.0.add(index).write(value) };
    }
}

/// Packs a tensor. Padding channels and padding rows are zero.
///
/// # Errors
/// If a task panics.
pub fn pack(services: &Services, config: &Config, layout: &Layout, tensor: &[i8], packed: &mut [u8]) -> Result<()> {
    let (slabs, elements) = layout.slabs(config);
    let lanes = config.batch() * config.block();
    assert!(
        tensor.len() == layout.count() && packed.len() == slabs * elements * lanes,
        "both slices have the sizes of the layout"
    );
    packed.fill(0);
    let target = Target(packed.as_mut_ptr());
    services.parallel_for(slabs, |slab| {
        let slab_start = slab * elements * lanes;
        // SAFETY: each task writes only its own slab, and the assertion ensures that `packed` contains all slabs.
        layout.for_each(config, slab, |slab_index, source| unsafe {
            target.write(slab_start + slab_index, tensor[source] as u8)
        });
    })
}

/// Unpacks an int8 tensor.
///
/// # Errors
/// If a task panics.
pub fn unpack(services: &Services, config: &Config, layout: &Layout, packed: &[u8], tensor: &mut [i8]) -> Result<()> {
    unpack_with(services, config, layout, packed.len(), tensor, |index| packed[index] as i8)
}

/// Unpacks an int32 tensor from four byte planes.
///
/// # Errors
/// If a task panics.
pub fn unpack_planes(
    services: &Services,
    config: &Config,
    layout: &Layout,
    packed: &[u8],
    tensor: &mut [i32],
) -> Result<()> {
    let plane = packed.len() / 4;
    let value = |index: usize| i32::from_le_bytes([0, 1, 2, 3].map(|plane_index| packed[plane_index * plane + index]));
    unpack_with(services, config, layout, plane, tensor, value)
}

fn unpack_with<T: Copy + Send>(
    services: &Services,
    config: &Config,
    layout: &Layout,
    bytes: usize,
    tensor: &mut [T],
    value: impl Fn(usize) -> T + Sync,
) -> Result<()> {
    let (slabs, elements) = layout.slabs(config);
    let lanes = config.batch() * config.block();
    assert!(
        tensor.len() == layout.count() && bytes == slabs * elements * lanes,
        "both slices have the sizes of the layout"
    );
    let target = Target(tensor.as_mut_ptr());
    services.parallel_for(slabs, |slab| {
        let slab_start = slab * elements * lanes;
        // SAFETY: each tensor element is in one slab, each slab belongs to one task, and the assertion checks the
        // sizes.
        layout.for_each(config, slab, |slab_index, destination| unsafe {
            target.write(destination, value(slab_start + slab_index))
        });
    })
}

/// Packing of convolution weights (O, I, KH, KW). Groups with fewer channels than a block are merged, with zero weights
/// between channels of different groups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Weights {
    /// Index of the constant.
    pub constant: usize,
    /// Number of output channels.
    pub kernels: usize,
    /// Number of input channels per group.
    pub channels: usize,
    /// Number of groups.
    pub groups: usize,
    /// Number of groups that are merged into one.
    pub merged: usize,
    /// Number of taps per kernel.
    pub taps: usize,
}

impl Weights {
    /// Returns the number of groups to merge: the fewest that fill whole blocks, or else all groups.
    pub fn groups_to_merge(channels: usize, kernels: usize, groups: usize, block: usize) -> usize {
        let fills_blocks = |merged: &usize| {
            groups.is_multiple_of(*merged)
                && (merged * channels).is_multiple_of(block)
                && (merged * kernels).is_multiple_of(block)
        };
        (1..groups).find(fills_blocks).unwrap_or(groups)
    }

    /// Returns the number of groups after merging.
    pub fn merged_groups(&self) -> usize {
        self.groups / self.merged
    }

    /// Returns the number of input channel blocks and of output channel blocks per merged group.
    pub fn blocks(&self, block: usize) -> [usize; 2] {
        let kernels = self.kernels / self.groups;
        [(self.merged * self.channels).div_ceil(block), (self.merged * kernels).div_ceil(block)]
    }

    /// Returns the size of the packed weights in bytes.
    pub fn bytes(&self, block: usize) -> usize {
        let [inputs, outputs] = self.blocks(block);
        self.merged_groups() * inputs * outputs * self.taps * block * block
    }

    /// Packs weights.
    ///
    /// # Errors
    /// If a task panics.
    pub fn pack(&self, services: &Services, block: usize, weights: &[i8], packed: &mut [u8]) -> Result<()> {
        let [inputs, outputs] = self.blocks(block);
        let group_kernels = self.kernels / self.groups;
        assert!(packed.len() == self.bytes(block), "`packed` has the size of the packed weights");
        assert!(
            weights.len() == self.kernels * self.channels * self.taps,
            "`weights` has one element per kernel, channel and tap"
        );
        packed.fill(0);
        let row_bytes = inputs * self.taps * block * block;
        let target = Target(packed.as_mut_ptr());
        services.parallel_for(self.merged_groups() * outputs, |row| {
            let (group, output) = (row / outputs, row % outputs);
            for lane in 0..block {
                let kernel = output * block + lane;
                if kernel >= self.merged * group_kernels {
                    continue;
                }
                // First input channel of the kernel's group within the merged group.
                let first_channel = kernel / group_kernels * self.channels;
                for channel in 0..self.channels {
                    let (input, k) = ((first_channel + channel) / block, (first_channel + channel) % block);
                    for tap in 0..self.taps {
                        let index = ((input * self.taps + tap) * block + lane) * block + k;
                        let kernel = group * self.merged * group_kernels + kernel;
                        let source = (kernel * self.channels + channel) * self.taps + tap;
                        // SAFETY: each task writes only its own row of blocks, and the assertion ensures that `packed`
                        // contains all rows.
                        unsafe { target.write(row * row_bytes + index, weights[source] as u8) };
                    }
                }
            }
        })
    }
}

/// Returns the bytes of a vector: one accumulator element per output channel block, with the values repeated for each
/// batch row. Groups that end within a block are merged, so channels are consecutive within each of the `groups`.
pub fn vector(config: &Config, groups: usize, values: &[i32]) -> Vec<u8> {
    let (batch, block) = (config.batch(), config.block());
    let mut bytes = Vec::new();
    for group in values.chunks(values.len() / groups.max(1)) {
        for channels in group.chunks(block) {
            for lane in (0..batch).flat_map(|_| 0..block) {
                bytes.extend(channels.get(lane).copied().unwrap_or(0).to_le_bytes());
            }
        }
    }
    bytes
}

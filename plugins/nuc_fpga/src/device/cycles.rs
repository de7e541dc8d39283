//! Cycle model of the device.
//!
//! A systolic array of R rows and C columns stores R x C kernel elements and consumes R terms of one output position
//! per cycle. A layer is tiled: a tile has `channels` input channels, `outputs` output channels, and `rows` output rows
//! of full width. One tile is one step; accumulators stay in their buffer from the first input channel block to the
//! last.
//!
//! ```text
//! passes(tile)  = ceil(channels * taps / R) * ceil(outputs / C)
//! compute(tile) = R + passes * max(rows * width, R) + R + C - 2
//! ```
//!
//! A pass streams the tile's output positions through the array while the kernel elements of the next pass are loaded
//! (R cycles). The load before the first pass is not overlapped, and after the last pass the pipeline drains.
//!
//! ```text
//! burst(run)     = ceil(run / burst_bytes) * latency + ceil(run * clock / bandwidth)
//! transfer(tile) = sum of burst(run) over the runs of contiguous bytes
//! ```
//!
//! Loads (feature rows, kernels) and stores (accumulators) share one DRAM port. Every buffer is double-buffered: while
//! step i is computed, the operands of step i + 1 are loaded and the accumulators that step i - 1 completed are stored.
//!
//! ```text
//! cycles = load(0) + sum over i of max(compute(i), load(i + 1) + store(i - 1)) + store(last)
//! ```
//!
//! An operand shared with the preceding step is not reloaded. Groups and images are processed sequentially. Tile sizes
//! that fit into half of each buffer are tried in two loop orders: all rows of an output channel block first, or all
//! output channels of a stripe of rows first. The tiling with the fewest cycles is chosen; ties are broken by candidate
//! order.

use super::config::Config;
use crate::layer::Layer;
use std::ops::Range;

/// Maximum number of steps of a simulated tiling. The tiling with the fewest steps is always simulated.
const MAX_STEPS: u64 = 50_000;

/// Estimated cost of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// Cycles from the first load to the last store.
    pub cycles: u64,
    /// Cycles in which the array computes.
    pub compute_cycles: u64,
    /// Number of feature map bytes read.
    pub input_bytes: u64,
    /// Number of kernel bytes read.
    pub weight_bytes: u64,
    /// Number of accumulator bytes written.
    pub sum_bytes: u64,
    /// Number of multiply-accumulate operations in the layer.
    pub macs: u64,
    /// Number of multiply-accumulate operations that the array can execute in `cycles`.
    pub possible_macs: u64,
    /// Tiling of the layer.
    pub tiling: Tiling,
    /// Number of tiles.
    pub steps: u64,
}

impl Estimate {
    /// Returns the number of bytes transferred.
    pub fn bytes(&self) -> u64 {
        self.input_bytes + self.weight_bytes + self.sum_bytes
    }

    /// Returns the array utilization, from 0 to 1.
    pub fn utilization(&self) -> f64 {
        self.macs as f64 / self.possible_macs.max(1) as f64
    }
}

/// Tile sizes and tile order of a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tiling {
    /// Number of input channels per tile.
    pub channels: u64,
    /// Number of output channels per tile.
    pub outputs: u64,
    /// Number of output rows per tile.
    pub rows: u64,
    /// True if all rows of an output channel block are computed before the next block.
    pub rows_first: bool,
}

/// Dimensions of a layer in the cycle model.
struct LayerDims {
    images: u64,
    groups: u64,
    channels: u64,
    outputs: u64,
    taps: u64,
    rows: u64,
    width: u64,
    layout: RowLayout,
}

/// Relation of output rows to input rows, and the layout of both in memory.
enum RowLayout {
    /// One plane of `height` x `width` per channel.
    Planes { height: u64, width: u64, kernel: u64, stride: u64, pad: u64 },
    /// One row of all channels per output row.
    Rows,
}

/// Transfer of contiguous runs: number of runs, size of a run in bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Runs(u64, u64);

impl Runs {
    fn bytes(self) -> u64 {
        self.0 * self.1
    }

    fn cycles(self, config: &Config) -> u64 {
        let Runs(count, run) = self;
        let beats = (u128::from(run) * u128::from(config.clock_hz)).div_ceil(config.dram_bytes_per_second.into());
        count * (run.div_ceil(config.dram_burst_bytes) * config.dram_burst_latency_cycles + beats as u64)
    }
}

impl LayerDims {
    fn new(layer: &Layer) -> LayerDims {
        match layer {
            Layer::Conv2d(c) => LayerDims {
                images: c.batch.into(),
                groups: c.group.into(),
                channels: c.group_channels() as u64,
                outputs: c.group_kernels() as u64,
                taps: u64::from(c.kernel_height) * u64::from(c.kernel_width),
                rows: c.out_height() as u64,
                width: c.out_width() as u64,
                layout: RowLayout::Planes {
                    height: c.height.into(),
                    width: c.width.into(),
                    kernel: c.kernel_height.into(),
                    stride: c.stride_height.into(),
                    pad: c.pad_height.into(),
                },
            },
            Layer::Dense(d) => LayerDims {
                images: 1,
                groups: 1,
                channels: d.in_features.into(),
                outputs: d.out_features.into(),
                taps: 1,
                rows: d.batch.into(),
                width: 1,
                layout: RowLayout::Rows,
            },
        }
    }

    /// Returns the transfer of features for the given channels and output rows. Padding rows are not loaded.
    fn input(&self, channels: u64, rows: &Range<u64>) -> Runs {
        match self.layout {
            RowLayout::Planes { height, width, kernel, stride, pad } => {
                let first_row = (rows.start * stride).saturating_sub(pad).min(height);
                let end = ((rows.end - 1) * stride + kernel).saturating_sub(pad).clamp(first_row, height);
                if end - first_row == height {
                    Runs(1, channels * height * width)
                } else {
                    Runs(channels, (end - first_row) * width)
                }
            }
            RowLayout::Rows => {
                let rows = rows.end - rows.start;
                if channels == self.channels { Runs(1, rows * channels) } else { Runs(rows, channels) }
            }
        }
    }

    /// Returns the maximum number of feature bytes for `rows` output rows at any position.
    fn max_input(&self, channels: u64, rows: u64) -> u64 {
        match self.layout {
            RowLayout::Planes { height, width, kernel, stride, .. } => {
                channels * ((rows - 1) * stride + kernel).min(height) * width
            }
            RowLayout::Rows => channels * rows,
        }
    }

    fn weights(&self, channels: u64, outputs: u64) -> Runs {
        if channels == self.channels {
            Runs(1, outputs * channels * self.taps)
        } else {
            Runs(outputs, channels * self.taps)
        }
    }

    fn sum_runs(&self, outputs: u64, rows: u64) -> Runs {
        match self.layout {
            RowLayout::Planes { .. } if rows == self.rows => Runs(1, 4 * outputs * rows * self.width),
            RowLayout::Planes { .. } => Runs(outputs, 4 * rows * self.width),
            RowLayout::Rows if outputs == self.outputs => Runs(1, 4 * rows * outputs),
            RowLayout::Rows => Runs(rows, 4 * outputs),
        }
    }

    /// Returns the maximum number of output rows for which a tile with these channels fits into half of each buffer;
    /// `None` if no row fits.
    fn max_rows(&self, channels: u64, outputs: u64, config: &Config) -> Option<u64> {
        let has_room = |rows: u64| {
            self.max_input(channels, rows) <= config.input_buffer_bytes / 2
                && 4 * outputs * rows * self.width <= config.sum_buffer_bytes / 2
        };
        if self.weights(channels, outputs).bytes() > config.weight_buffer_bytes / 2 || !has_room(1) {
            return None;
        }
        let (mut low, mut high) = (1, self.rows);
        while low < high {
            let midpoint = low + (high - low).div_ceil(2);
            if has_room(midpoint) { low = midpoint } else { high = midpoint - 1 }
        }
        Some(low)
    }

    fn compute(&self, channels: u64, outputs: u64, rows: u64, config: &Config) -> u64 {
        let (r, c) = (config.array_rows, config.array_columns);
        let passes = (channels * self.taps).div_ceil(r) * outputs.div_ceil(c);
        r + passes * (rows * self.width).max(r) + r + c - 2
    }

    fn steps(&self, tiling: &Tiling) -> u64 {
        let counts = [
            self.images,
            self.groups,
            self.rows.div_ceil(tiling.rows),
            self.outputs.div_ceil(tiling.outputs),
            self.channels.div_ceil(tiling.channels),
        ];
        counts.iter().fold(1u64, |product, &count| product.saturating_mul(count))
    }

    /// Simulates the tiles of a tiling and returns the estimated cost.
    fn simulate(&self, tiling: Tiling, config: &Config) -> Estimate {
        let mut estimate = Estimate { tiling, steps: self.steps(&tiling), ..Estimate::default() };
        let mut timeline = Timeline::default();
        // Operands of the preceding step. Weights are identified by group, first output channel and first input
        // channel; features, by image, group, first output row and first input channel.
        let (mut weights, mut features) = (None, None);
        let blocks =
            |size: u64, step: u64| (0..size).step_by(step as usize).map(move |start| start..(start + step).min(size));
        let mut tile = |group: u64, image: u64, outputs: &Range<u64>, rows: &Range<u64>| {
            for channels in blocks(self.channels, tiling.channels) {
                let [o, r, c] = [outputs, rows, &channels].map(|range| range.end - range.start);
                let mut load = 0;
                if weights.replace((group, outputs.start, channels.start))
                    != Some((group, outputs.start, channels.start))
                {
                    let weight_runs = self.weights(c, o);
                    estimate.weight_bytes += weight_runs.bytes();
                    load += weight_runs.cycles(config);
                }
                let key = (image, group, rows.start, channels.start);
                if features.replace(key) != Some(key) {
                    let input_runs = self.input(c, rows);
                    estimate.input_bytes += input_runs.bytes();
                    load += input_runs.cycles(config);
                }
                let compute = self.compute(c, o, r, config);
                estimate.compute_cycles += compute;
                let store = if channels.end == self.channels { self.sum_runs(o, r) } else { Runs(0, 0) };
                estimate.sum_bytes += store.bytes();
                timeline.step(load, compute, store.cycles(config));
            }
        };
        for group in 0..self.groups {
            if tiling.rows_first {
                for outputs in blocks(self.outputs, tiling.outputs) {
                    for image in 0..self.images {
                        blocks(self.rows, tiling.rows).for_each(|rows| tile(group, image, &outputs, &rows));
                    }
                }
            } else {
                for image in 0..self.images {
                    for rows in blocks(self.rows, tiling.rows) {
                        blocks(self.outputs, tiling.outputs).for_each(|outputs| tile(group, image, &outputs, &rows));
                    }
                }
            }
        }
        estimate.cycles = timeline.end();
        estimate
    }
}

/// Timeline of steps, in which the computation of a step overlaps the transfers of its neighbors.
#[derive(Default)]
struct Timeline {
    cycles: u64,
    /// Compute cycles of the preceding step, and store cycles of the step before it.
    pending: Option<(u64, u64)>,
    /// Store cycles of the preceding step.
    store: u64,
}

impl Timeline {
    fn step(&mut self, load: u64, compute: u64, store: u64) {
        self.cycles += match self.pending {
            Some((pending_compute, pending_load)) => pending_compute.max(load + pending_load),
            None => load,
        };
        self.pending = Some((compute, self.store));
        self.store = store;
    }

    fn end(&self) -> u64 {
        self.cycles + self.pending.map_or(0, |(compute, pending_load)| compute.max(pending_load)) + self.store
    }
}

/// Returns the block sizes to try for `size` channels: `size`, and `min` times each power of two below `size`.
fn sizes(size: u64, min: u64) -> Vec<u64> {
    let mut sizes = vec![size];
    sizes.extend(std::iter::successors(Some(min), |size| size.checked_mul(2)).take_while(|&at| at < size));
    sizes
}

/// Checks that the smallest tile of a layer fits into the buffers.
///
/// # Errors
/// If the tile does not fit. The message names the buffer and the sizes.
pub fn check_fits(layer: &Layer, config: &Config) -> Result<(), String> {
    let dims = LayerDims::new(layer);
    let (channels, outputs) = (dims.channels.min(config.array_rows), dims.outputs.min(config.array_columns));
    let requirements = [
        ("input", dims.max_input(channels, 1), config.input_buffer_bytes),
        ("weight", dims.weights(channels, outputs).bytes(), config.weight_buffer_bytes),
        ("sum", 4 * outputs * dims.width, config.sum_buffer_bytes),
    ];
    for (name, bytes, buffer) in requirements {
        if bytes > buffer / 2 {
            return Err(format!(
                "one output row of {channels} input and {outputs} output channels: expected at most half of the {name} \
                 buffer of {buffer} bytes, found {bytes} bytes"
            ));
        }
    }
    Ok(())
}

/// Chooses the tiling of a layer and estimates its cost.
///
/// # Errors
/// If no tile fits into the buffers, as in [`check_fits`].
pub fn plan(layer: &Layer, config: &Config) -> Result<Estimate, String> {
    check_fits(layer, config)?;
    let dims = LayerDims::new(layer);
    let mut tilings: Vec<Tiling> = Vec::new();
    for channels in sizes(dims.channels, dims.channels.min(config.array_rows)) {
        for outputs in sizes(dims.outputs, dims.outputs.min(config.array_columns)) {
            let Some(rows) = dims.max_rows(channels, outputs, config) else { continue };
            tilings.extend([true, false].map(|rows_first| Tiling { channels, outputs, rows, rows_first }));
        }
    }
    let min_steps = tilings.iter().map(|tiling| dims.steps(tiling)).min().unwrap_or(0);
    let candidates = tilings.into_iter().filter(|tiling| dims.steps(tiling) <= min_steps.max(MAX_STEPS));
    let best_estimate = candidates.map(|tiling| dims.simulate(tiling, config)).min_by_key(|estimate| estimate.cycles);
    let mut estimate = best_estimate.ok_or("no tiling of the layer fits into the buffers")?;
    estimate.macs = layer.macs();
    estimate.possible_macs = estimate.cycles.saturating_mul(config.array_rows * config.array_columns);
    Ok(estimate)
}

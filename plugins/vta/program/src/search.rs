//! Tiling search: feasible tilings are emitted and timed by the cycle model, in increasing order of a lower bound on
//! their cycles, until no remaining tiling can be faster. Ties are broken by candidate order, so the choice is
//! deterministic.

use crate::emit::{self, Auxiliary, Runs};
use crate::layer::{Conv, Elementwise, Layer, Pool};
use crate::tile::{Threads, Tile};
use byoc_vta_machine::config::Config;
use byoc_vta_machine::cycles::{self, Rates};
use byoc_vta_machine::isa::Memory;

/// Returns the fastest tiling of a layer with its predicted cycles; `None` if no tile fits into the on-chip memories.
pub fn fastest(config: &Config, layer: &Layer) -> Option<(Tile, f64)> {
    let mut bounded_tiles: Vec<(f64, Tile)> =
        candidates(config, layer).into_iter().map(|tile| (min_cycles(config, layer, &tile), tile)).collect();
    bounded_tiles.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let mut fastest_tile: Option<(Tile, f64)> = None;
    for (bound, tile) in bounded_tiles {
        if fastest_tile.as_ref().is_some_and(|(_, cycles)| *cycles <= bound) {
            break;
        }
        let Some(cycles) = predict_cycles(config, layer, tile) else { continue };
        if fastest_tile.as_ref().is_none_or(|(_, min_cycles_so_far)| cycles < *min_cycles_so_far) {
            fastest_tile = Some((tile, cycles));
        }
    }
    fastest_tile
}

/// Tests whether any tiling of a layer fits into the on-chip memories.
pub fn has_tiling(config: &Config, layer: &Layer) -> bool {
    let tile = Tile { size: [1, 1], inputs: 1, outputs: 1, threads: Threads::One };
    tile.fits(layer, config)
}

/// Returns a lower bound on the cycles of a tiling: the maximum of the LOAD and COMPUTE times, without latencies that
/// depend on the instruction order.
fn min_cycles(config: &Config, layer: &Layer, tile: &Tile) -> f64 {
    let conv = match layer {
        Layer::Conv(conv) => conv,
        // These layers have so few candidates that all are emitted.
        Layer::Pool(_) | Layer::Elementwise(_) => return 0.0,
    };
    // Each result takes one cycle to reset, and two cycles per operation.
    let results = conv.element_count() as f64;
    let compute = conv.gemm_steps() as f64 + (1.0 + 2.0 * layer.alu_steps() as f64) * results;
    compute.max(load_time(config, conv, tile))
}

/// Returns a lower bound on the cycles that LOAD needs for a convolution.
fn load_time(config: &Config, layer: &Conv, tile: &Tile) -> f64 {
    let rates = Rates::of(config.profile);
    let [rows, columns] = layer.result().unwrap_or_default();
    let images = layer.batch * layer.groups;
    let tiles = images * rows.div_ceil(tile.size[0]) * columns.div_ceil(tile.size[1]);
    let blocks = layer.outputs.div_ceil(tile.outputs);
    let element = |memory| config.element_bytes(memory) as f64;
    // The last tile of an axis may be smaller, and part of what it reads may be padding.
    let data_extent = |axis: usize| {
        let count = [rows, columns][axis].div_ceil(tile.size[axis]);
        let extent = layer.size[axis] + (count - 1) * layer.kernel[axis].saturating_sub(layer.strides[axis]);
        extent.saturating_sub(layer.pads[axis][0] + layer.pads[axis][1] + layer.strides[axis]).max(1) as f64
    };
    // Tiles of whole rows are contiguous.
    let run_count = if tile.size[1] == columns { 1.0 } else { data_extent(0) };
    let bytes = data_extent(0) * data_extent(1) / columns.div_ceil(tile.size[1]) as f64 * element(Memory::Inp);
    let loads = (images * layer.inputs * blocks * columns.div_ceil(tile.size[1])) as f64;
    let data_cycles = loads * (run_count * rates.row + bytes / rates.bandwidth);
    let taps = layer.kernel[0] * layer.kernel[1];
    let weight_cycles =
        (tiles * layer.outputs * layer.inputs) as f64 * taps as f64 * element(Memory::Wgt) / rates.bandwidth;
    data_cycles + weight_cycles
}

/// Returns the predicted cycles of a layer with a tiling; `None` if the tiling does not fit.
pub fn predict_cycles(config: &Config, layer: &Layer, tile: Tile) -> Option<f64> {
    let auxiliary = Auxiliary { uops: 0, identity: 0 };
    let program = emit::program(config, &[(layer.clone(), tile)], auxiliary, Runs::Whole).ok()?;
    Some(cycles::time(config, &program.stream)?.total)
}

/// Maximum number of equal tiles per axis.
const MAX_PIECES: usize = 16;

/// Returns candidate tile sizes for an axis: equal divisions into up to [`MAX_PIECES`] tiles, and then repeated
/// halvings of the smallest size.
fn tile_sizes(size: usize) -> Vec<usize> {
    let mut sizes: Vec<usize> = (1..=size.min(MAX_PIECES)).map(|count| size.div_ceil(count)).collect();
    while let Some(&last_size) = sizes.last()
        && last_size > 1
    {
        sizes.push(last_size.div_ceil(2));
    }
    sizes.dedup();
    sizes
}

/// Returns the feasible tilings.
fn candidates(config: &Config, layer: &Layer) -> Vec<Tile> {
    let mut tiles = match layer {
        Layer::Conv(conv) => conv_tiles(conv),
        Layer::Pool(pool) => pool_tiles(pool),
        Layer::Elementwise(elementwise) => elementwise_tiles(config, elementwise),
    };
    tiles.retain(|tile| tile.fits(layer, config));
    tiles
}

fn conv_tiles(layer: &Conv) -> Vec<Tile> {
    let Some([rows, columns]) = layer.result() else { return Vec::new() };
    let mut tiles = Vec::new();
    for columns in tile_sizes(columns) {
        for &rows in &tile_sizes(rows) {
            for &outputs in &tile_sizes(layer.outputs) {
                for inputs in [1, 2, 4].into_iter().filter(|&inputs| inputs <= layer.inputs) {
                    for threads in [Threads::OverOutputs, Threads::OverRows, Threads::One] {
                        tiles.push(Tile { size: [rows, columns], inputs, outputs, threads });
                    }
                }
            }
        }
    }
    tiles
}

/// Returns tiles of whole rows, and tiles of parts of one row.
fn pool_tiles(layer: &Pool) -> Vec<Tile> {
    let [rows, columns] = layer.results;
    let tile = |rows, columns, threads| Tile { size: [rows, columns], inputs: 1, outputs: 1, threads };
    let with_threads = |rows, columns| [Threads::OverRows, Threads::One].map(|threads| tile(rows, columns, threads));
    let row_tiles = tile_sizes(rows).into_iter().flat_map(|rows| with_threads(rows, columns));
    row_tiles.chain(tile_sizes(columns).into_iter().flat_map(|columns| with_threads(1, columns))).collect()
}

/// Returns tiles that fill fractions of the accumulators.
fn elementwise_tiles(config: &Config, layer: &Elementwise) -> Vec<Tile> {
    let elements = config.depth(Memory::Acc).min(layer.elements).max(1);
    let sizes = tile_sizes(elements);
    let tile = |columns, threads| Tile { size: [1, columns], inputs: 1, outputs: 1, threads };
    sizes.into_iter().flat_map(|size| [Threads::OverRows, Threads::One].map(|threads| tile(size, threads))).collect()
}

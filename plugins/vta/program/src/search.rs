//! Choice of a tiling: feasible ones are emitted in the order of a lower bound of their time until no other can be faster,
//! and the cycle model decides. Ties are broken by the order of the candidates, so that the choice is deterministic.

use crate::emit;
use crate::layer::{Conv, Places};
use crate::tile::{Threads, Tile};
use byoc_vta_machine::config::Config;
use byoc_vta_machine::cycles::{self, Rates};
use byoc_vta_machine::isa::Memory;

/// Returns the fastest tiling of a layer with its predicted cycles; `None` if no tile fits the memories of the device.
pub fn fastest(config: &Config, layer: &Conv) -> Option<(Tile, f64)> {
    let mut all: Vec<(f64, Tile)> =
        candidates(config, layer).into_iter().map(|tile| (least(config, layer, &tile), tile)).collect();
    all.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let mut best: Option<(Tile, f64)> = None;
    for (least, tile) in all {
        if best.as_ref().is_some_and(|(_, cycles)| *cycles <= least) {
            break;
        }
        let Some(cycles) = predicted(config, layer, tile) else { continue };
        if best.as_ref().is_none_or(|(_, fewest)| cycles < *fewest) {
            best = Some((tile, cycles));
        }
    }
    best
}

/// Returns a lower bound on the cycles of a tiling: the time of the busier of LOAD and COMPUTE, without latencies that
/// depend on their order.
fn least(config: &Config, layer: &Conv, tile: &Tile) -> f64 {
    let rates = Rates::of(config.profile);
    let [rows, columns] = layer.result().unwrap_or_default();
    let tiles = layer.batch * rows.div_ceil(tile.size[0]) * columns.div_ceil(tile.size[1]);
    let blocks = layer.outputs.div_ceil(tile.outputs);
    let element = |memory| config.element_bytes(memory) as f64;
    // The last tile of an axis is smaller, and its data may lie in the padding.
    let inside = |axis: usize| {
        let count = [rows, columns][axis].div_ceil(tile.size[axis]);
        let all = layer.size[axis] + (count - 1) * layer.kernel[axis].saturating_sub(layer.strides[axis]);
        all.saturating_sub(layer.pads[axis][0] + layer.pads[axis][1] + layer.strides[axis]).max(1) as f64
    };
    let row = rates.row + inside(1) / columns.div_ceil(tile.size[1]) as f64 * element(Memory::Inp) / rates.bandwidth;
    let of_data = (layer.batch * layer.inputs * blocks * columns.div_ceil(tile.size[1])) as f64 * inside(0) * row;
    let taps = layer.kernel[0] * layer.kernel[1];
    let of_weights = (tiles * layer.outputs * layer.inputs) as f64
        * (rates.row / tile.inputs as f64 + taps as f64 * element(Memory::Wgt) / rates.bandwidth);
    let results = (layer.batch * layer.outputs * rows * columns) as f64;
    // A reset, and a shift and two bounds at two cycles each.
    let compute = layer.steps() as f64 + 7.0 * results;
    compute.max(of_data + of_weights)
}

/// Returns the predicted cycles of a layer under a tiling; `None` if the tiling does not fit.
pub fn predicted(config: &Config, layer: &Conv, tile: Tile) -> Option<f64> {
    // The time does not depend on the places of the tensors.
    let places = Places { data: 0, weight: 0, bias: 0, result: 0, uops: 0 };
    let program = emit::conv(config, layer, tile, places).ok()?;
    Some(cycles::time(config, &program.stream)?.total)
}

/// Maximum number of tiles that an axis is cut into.
const MAX_PIECES: usize = 16;

/// Returns the feasible tilings: pieces of equal size of each axis, the last of which may be smaller.
fn candidates(config: &Config, layer: &Conv) -> Vec<Tile> {
    let Some([rows, columns]) = layer.result() else { return Vec::new() };
    let pieces = |size: usize| {
        let mut sizes: Vec<usize> = (1..=size.min(MAX_PIECES)).map(|count| size.div_ceil(count)).collect();
        sizes.dedup();
        sizes
    };
    let mut tiles = Vec::new();
    for columns in pieces(columns) {
        for rows in pieces(rows) {
            for outputs in pieces(layer.outputs) {
                for inputs in [1, 2, 4].into_iter().filter(|&inputs| inputs <= layer.inputs) {
                    for threads in [Threads::OverOutputs, Threads::OverRows, Threads::One] {
                        tiles.push(Tile { size: [rows, columns], inputs, outputs, threads });
                    }
                }
            }
        }
    }
    tiles.retain(|tile| tile.fits(layer, config));
    tiles
}

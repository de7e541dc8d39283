//! Max pooling: the data of a tile is copied to the accumulators, and each window tap is compared with the results
//! whose windows contain it.

use super::epilogue::Results;
use super::{Elements, Emitter, POP_NEXT, POP_PREV, Result, tiles_of};
use crate::layer::{Form, Pool};
use byoc_vta_machine::isa::{AluOp, Deps, Memory, Module, Uop};

/// Minimum int8 value.
const MIN_INT8: i16 = -128;

/// Data that a tile of windows reads: first row and column, number of rows and columns.
#[derive(Clone, Copy)]
struct Data {
    start: [usize; 2],
    size: [usize; 2],
}

impl Emitter<'_, '_> {
    pub(super) fn pool(&mut self, layer: &Pool) -> Result<()> {
        let mut tiles = Vec::new();
        for image in 0..layer.images {
            for rows in tiles_of(layer.results[0], self.tile.size[0]) {
                tiles.extend(tiles_of(layer.results[1], self.tile.size[1]).map(|columns| (image, [rows, columns])));
            }
        }
        for group in tiles.chunks(self.tile.threads.count()) {
            let tile_parts: Vec<(Results, Data, usize)> = group
                .iter()
                .enumerate()
                .map(|(thread, (image, spans))| self.window_tile(layer, thread, *image, *spans))
                .collect();
            let results: Vec<Results> = tile_parts.iter().map(|(results, ..)| *results).collect();
            let is_through_loads = !self.recorder.config.has_acc_8bit();
            for (results, data, image) in &tile_parts {
                self.reset(POP_NEXT, results.base, results.count())?;
                self.immediate(AluOp::Min, MIN_INT8, results.base, results.count())?;
                if is_through_loads {
                    self.recorder.push_token(false);
                    let base = self.first_of_thread(Memory::Inp, results.thread);
                    self.move_elements(POP_NEXT, Memory::Inp, layer.data, elements(layer, data, *image, base));
                    self.fetch_identity(results.thread);
                    self.recorder.push_token(true);
                }
            }
            self.pop_unused_tokens(group.len());
            for (results, data, image) in &tile_parts {
                let (count, area) = (data.size[0] * data.size[1], results.base + results.count());
                if is_through_loads {
                    self.copy(
                        POP_PREV,
                        results.thread,
                        self.first_of_thread(Memory::Inp, results.thread),
                        area,
                        count,
                    )?;
                    self.recorder.push_token(false);
                    self.recorder.no_op(Module::Load, POP_NEXT);
                } else {
                    let image_elements = elements(layer, data, *image, area);
                    self.move_elements(Deps::default(), Memory::Acc8, layer.data, image_elements);
                }
                self.compare(layer, results, data, area)?;
                self.apply_steps(results, count)?;
                self.recorder.push_token(true);
            }
            self.store(&results, layer.result, Form::Bytes)?;
            self.push_unused_tokens(group.len());
        }
        Ok(())
    }

    /// Returns the results of a tile, the data that the tile reads, and the index of its image.
    fn window_tile(
        &self,
        layer: &Pool,
        thread: usize,
        image: usize,
        spans: [(usize, usize); 2],
    ) -> (Results, Data, usize) {
        let [rows, columns] = layer.results;
        let results = Results {
            thread,
            base: self.first_of_thread(Memory::Acc, thread),
            block: 0,
            size: [1, spans[0].1, spans[1].1],
            first: (image * rows + spans[0].0) * columns + spans[1].0,
            strides: [rows * columns, columns],
            element_count: layer.images * rows * columns,
        };
        let range = |axis: usize| {
            let (first_result, count) = spans[axis];
            let start = (first_result * layer.strides[axis]).saturating_sub(layer.pads[axis]);
            let end = (first_result + count - 1) * layer.strides[axis] + layer.kernel[axis];
            (start, end.saturating_sub(layer.pads[axis]).clamp(start, layer.size[axis].max(start)))
        };
        let ranges = [range(0), range(1)];
        let data = Data { start: ranges.map(|range| range.0), size: ranges.map(|range| range.1 - range.0) };
        (results, data, image)
    }

    /// Compares each tap with the results for which the tap is inside the data.
    fn compare(&mut self, layer: &Pool, results: &Results, data: &Data, area: usize) -> Result<()> {
        let [rows, columns] = layer.results;
        let position = results.first % (rows * columns);
        let first = [position / columns, position % columns];
        let sizes = [results.size[1], results.size[2]];
        for y in 0..layer.kernel[0] {
            for x in 0..layer.kernel[1] {
                // Results of the tile for which the tap is inside the data: first result, number of results, first data
                // index.
                let range = |axis: usize, tap: usize| {
                    let is_inside = |i: &usize| {
                        let position = (first[axis] + i) * layer.strides[axis] + tap;
                        (layer.pads[axis]..layer.pads[axis] + layer.size[axis]).contains(&position)
                    };
                    let start = (0..sizes[axis]).find(is_inside)?;
                    let end = (start..sizes[axis]).find(|i| !is_inside(i)).unwrap_or(sizes[axis]);
                    let data_index = (first[axis] + start) * layer.strides[axis] + tap - layer.pads[axis];
                    Some((start, end - start, data_index - data.start[axis]))
                };
                let (Some(row_range), Some(column_range)) = (range(0, y), range(1, x)) else { continue };
                let uop = Uop {
                    dst: (results.base + row_range.0 * sizes[1] + column_range.0) as u32,
                    src: (area + row_range.2 * data.size[1] + column_range.2) as u32,
                    wgt: 0,
                };
                let factors = [[sizes[1], 1], [layer.strides[0] * data.size[1], layer.strides[1]]];
                self.vector(AluOp::Max, uop, [row_range.1, column_range.1], factors)?;
            }
        }
        Ok(())
    }
}

fn elements(layer: &Pool, data: &Data, image: usize, sram: usize) -> Elements {
    let [height, width] = layer.size;
    Elements {
        sram,
        first: (image * height + data.start[0]) * width + data.start[1],
        size: data.size,
        stride: width,
        pads: [[0; 2]; 2],
    }
}

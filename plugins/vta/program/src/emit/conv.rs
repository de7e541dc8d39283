//! Convolutions: each tile of accumulators sums products over the input channel blocks.

use super::epilogue::Results;
use super::{Elements, EmitError, Emitter, POP_NEXT, POP_PREV, Result, tiles_of};
use crate::layer::Conv;
use crate::tile::{MAX_PAD, Threads, Unrolled};
use byoc_vta_machine::isa::{Deps, Memory, Module, Uop};

/// Tile of a thread, with its position in the result.
#[derive(Clone, Copy)]
struct Part {
    thread: usize,
    batch: usize,
    group: usize,
    /// First row and column.
    first: [usize; 2],
    /// First output channel block in the group.
    output: usize,
    /// Number of rows and columns. The last tile of an axis may have fewer than the other tiles.
    size: [usize; 2],
    /// Number of output channel blocks. The last tile of the axis may have fewer than the other tiles.
    outputs: usize,
}

/// Rows or columns of the data that a tile reads.
struct Span {
    /// First row or column in the data.
    start: usize,
    /// Number of rows or columns in the data, without padding.
    count: usize,
    /// Number of padding rows or columns before and after the data.
    pads: [u8; 2],
    /// Total number of rows or columns, including padding.
    length: usize,
}

impl Span {
    /// Returns the rows (axis 0) or columns (axis 1) that a tile reads.
    fn of(layer: &Conv, part: &Part, axis: usize) -> Span {
        let first_row = (part.first[axis] * layer.strides[axis]) as isize - layer.pads[axis][0] as isize;
        let length = (part.size[axis] - 1) * layer.strides[axis] + layer.kernel[axis];
        let end = first_row + length as isize;
        let (start, clipped_end) = (first_row.max(0), end.min(layer.size[axis] as isize));
        let count = (clipped_end - start).max(0);
        let pads = [start - first_row, end - start - count].map(|pad| pad.clamp(0, MAX_PAD as isize) as u8);
        Span { start: start as usize, count: count as usize, pads, length }
    }
}

impl Emitter<'_, '_> {
    pub(super) fn conv(&mut self, layer: &Conv) -> Result<()> {
        let result = layer.result().ok_or(EmitError::Geometry)?;
        if layer.pads.iter().flatten().any(|pad| *pad > MAX_PAD) {
            return Err(EmitError::Geometry);
        }
        for group in self.groups(layer, result) {
            let results: Vec<Results> = group.iter().map(|part| self.results(layer, result, part)).collect();
            for tile in &results {
                self.reset(POP_NEXT, tile.base, tile.count())?;
                self.recorder.push_token(false);
            }
            self.pop_unused_tokens(group.len());
            for (first_input, inputs) in tiles_of(layer.inputs, self.tile.inputs) {
                for part in &group {
                    self.load(layer, part, first_input, inputs);
                }
                for part in &group {
                    self.multiply(layer, part, inputs)?;
                }
            }
            self.fetch_added(&results, 0);
            for tile in &results {
                self.apply_steps(tile, 0)?;
                self.recorder.push_token(true);
            }
            for _ in &group {
                self.recorder.no_op(Module::Load, POP_NEXT);
            }
            self.store(&results, layer.result, layer.form)?;
            self.push_unused_tokens(group.len());
        }
        Ok(())
    }

    /// Returns the tiles in groups. The threads compute the tiles of a group concurrently.
    fn groups(&self, layer: &Conv, result: [usize; 2]) -> Vec<Vec<Part>> {
        let threads = self.tile.threads;
        let mut tile_parts = Vec::new();
        for batch in 0..layer.batch {
            for group in 0..layer.groups {
                for (column, columns) in tiles_of(result[1], self.tile.size[1]) {
                    let mut grid = Vec::new();
                    for (row, rows) in tiles_of(result[0], self.tile.size[0]) {
                        for (output, outputs) in tiles_of(layer.outputs, self.tile.outputs) {
                            let (origin, size) = ([row, column], [rows, columns]);
                            grid.push(Part { thread: 0, batch, group, first: origin, output, size, outputs });
                        }
                    }
                    if threads == Threads::OverRows {
                        grid.sort_by_key(|tile_part| (tile_part.output, tile_part.first[0]));
                    }
                    tile_parts.extend(grid);
                }
            }
        }
        let mut groups: Vec<Vec<Part>> = tile_parts.chunks(threads.count()).map(<[Part]>::to_vec).collect();
        for group in &mut groups {
            group.iter_mut().enumerate().for_each(|(thread, part)| part.thread = thread);
        }
        groups
    }

    fn results(&self, layer: &Conv, [rows, columns]: [usize; 2], part: &Part) -> Results {
        let block = part.group * layer.outputs + part.output;
        let channel = part.batch * layer.groups * layer.outputs + block;
        Results {
            thread: part.thread,
            base: self.first_of_thread(Memory::Acc, part.thread),
            block,
            size: [part.outputs, part.size[0], part.size[1]],
            first: (channel * rows + part.first[0]) * columns + part.first[1],
            strides: [rows * columns, columns],
            element_count: layer.element_count(),
        }
    }

    fn load(&mut self, layer: &Conv, part: &Part, first_input: usize, inputs: usize) {
        let [height, width] = layer.size;
        let [rows, columns] = [0, 1].map(|axis| Span::of(layer, part, axis));
        if rows.count == 0 || columns.count == 0 {
            // The tile reads only padding, so all products are zero and nothing is loaded. An empty load would leave
            // stale data in the memory.
            self.recorder.no_op(Module::Load, POP_NEXT);
            self.recorder.push_token(true);
            return;
        }
        for input in 0..inputs {
            let image = (part.batch * layer.groups + part.group) * layer.inputs + first_input + input;
            let elements = Elements {
                sram: self.first_of_thread(Memory::Inp, part.thread) + input * rows.length * columns.length,
                first: (image * height + rows.start) * width + columns.start,
                size: [rows.count, columns.count],
                stride: width,
                pads: [rows.pads, columns.pads],
            };
            let deps = if input == 0 { POP_NEXT } else { Deps::default() };
            self.move_elements(deps, Memory::Inp, layer.data, elements);
        }
        let taps = layer.kernel[0] * layer.kernel[1];
        let elements = Elements {
            sram: self.first_of_thread(Memory::Wgt, part.thread),
            first: ((part.group * layer.outputs + part.output) * layer.inputs + first_input) * taps,
            size: [part.outputs, inputs * taps],
            stride: layer.inputs * taps,
            pads: [[0; 2]; 2],
        };
        self.move_elements(Deps::default(), Memory::Wgt, layer.weight, elements);
        self.recorder.push_token(true);
    }

    /// Emits the instructions that accumulate the products of `inputs` input channel blocks in a tile.
    fn multiply(&mut self, layer: &Conv, part: &Part, inputs: usize) -> Result<()> {
        let [rows, columns] = [0, 1].map(|axis| Span::of(layer, part, axis));
        if rows.count == 0 || columns.count == 0 {
            self.recorder.no_op(Module::Compute, POP_PREV);
            self.recorder.push_token(false);
            return Ok(());
        }
        let [acc, inp, wgt] =
            [Memory::Acc, Memory::Inp, Memory::Wgt].map(|memory| self.first_of_thread(memory, part.thread));
        let taps = inputs * layer.kernel[0] * layer.kernel[1];
        // Index steps in each of the three memories, by result axis.
        let dst = [part.size[0] * part.size[1], part.size[1], 1];
        let src = [0, layer.strides[0] * columns.length, layer.strides[1]];
        let weight_steps = [taps, 0, 0];
        let axis_sizes = [part.outputs, part.size[0], part.size[1]];
        let unrolled_axes = Unrolled::of(part.size, part.outputs, taps);
        // Number of innermost axes that micro-operations enumerate.
        let enumerated_axes = match unrolled_axes {
            Unrolled::Columns => 1,
            Unrolled::Rows => 2,
            Unrolled::All | Unrolled::Nothing => 3,
        };
        let mut points = vec![[0usize; 3]];
        for axis in 3 - enumerated_axes..3 {
            let step = [dst[axis], src[axis], weight_steps[axis]];
            points = points
                .iter()
                .flat_map(|point| (0..axis_sizes[axis]).map(move |i| [0, 1, 2].map(|k| point[k] + i * step[k])))
                .collect();
        }
        let mut kernels = vec![Vec::with_capacity(taps * points.len())];
        for input in 0..inputs {
            for y in 0..layer.kernel[0] {
                for x in 0..layer.kernel[1] {
                    let tap = (input * layer.kernel[0] + y) * layer.kernel[1] + x;
                    let source = (input * rows.length + y) * columns.length + x;
                    let uops = points.iter().map(|[dst_offset, src_offset, block]| Uop {
                        dst: (acc + dst_offset) as u32,
                        src: (inp + source + src_offset) as u32,
                        wgt: (wgt + tap + block) as u32,
                    });
                    match kernels.last_mut() {
                        Some(kernel) if unrolled_axes != Unrolled::Nothing || kernel.is_empty() => kernel.extend(uops),
                        _ => kernels.push(uops.collect()),
                    }
                }
            }
        }
        let (iterations, axes) = match unrolled_axes {
            Unrolled::Columns => ([axis_sizes[0], axis_sizes[1]], [Some(0), Some(1)]),
            Unrolled::Rows => ([axis_sizes[0], 1], [Some(0), None]),
            Unrolled::All | Unrolled::Nothing => ([1, 1], [None, None]),
        };
        let factors = [dst, src, weight_steps].map(|steps| axes.map(|axis| axis.map_or(0, |axis: usize| steps[axis])));
        for (index, kernel) in kernels.iter().enumerate() {
            let deps = if index == 0 { POP_PREV } else { Deps::default() };
            self.matrix(deps, false, kernel, iterations, factors)?;
        }
        self.recorder.push_token(false);
        Ok(())
    }
}

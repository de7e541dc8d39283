//! Instruction streams of a layer under a tiling.
//!
//! Each thread has its share of every memory. LOAD fills it with a tile of activations and weights while COMPUTE works on
//! the other thread's; STORE empties the accumulators of one thread while COMPUTE fills those of the other. Tokens order
//! these uses.

use crate::layer::{Conv, Places};
use crate::recorder::Recorder;
use crate::tile::{MAX_PAD, Threads, Tile};
use byoc_vta_machine::config::Config;
use byoc_vta_machine::isa::{Alu, AluOp, Deps, EncodeError, Gemm, Insn, Loops, Memory, Module, Op, Transfer, Uop};
use std::fmt;

/// Stream of a layer with its micro-operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Instructions.
    pub stream: Vec<Insn>,
    /// Micro-operations, at the place that the layer gives them.
    pub uops: Vec<u32>,
}

/// Reason why a layer has no stream under a tiling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EmitError {
    /// The memories of the device do not hold the tiles.
    DoesNotFit,
    /// The kernel is larger than the padded data, or the padding larger than a load can add.
    Geometry,
    /// A field of an instruction is too narrow.
    Field(EncodeError),
}

impl fmt::Display for EmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EmitError::DoesNotFit => f.write_str("expected tiles that the memories of the device hold"),
            EmitError::Geometry => write!(f, "expected a kernel within the padded data, and at most {MAX_PAD} zeros"),
            EmitError::Field(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for EmitError {}

impl From<EncodeError> for EmitError {
    fn from(error: EncodeError) -> EmitError {
        EmitError::Field(error)
    }
}

const POP_PREV: Deps = Deps { pop_prev: true, pop_next: false, push_prev: false, push_next: false };
const POP_NEXT: Deps = Deps { pop_prev: false, pop_next: true, push_prev: false, push_next: false };

/// Tile of a thread: where it lies in the result.
#[derive(Clone, Copy)]
struct Part {
    thread: usize,
    batch: usize,
    /// First row, column and block of output channels.
    first: [usize; 2],
    output: usize,
    /// Rows, columns and blocks, which are fewer at the end of an axis.
    size: [usize; 2],
    outputs: usize,
}

/// Rows or columns of the data that a tile reads.
struct Span {
    /// First one in the data.
    start: usize,
    /// Number of those in the data; the others lie in the padding.
    count: usize,
    /// Number of those in the padding before and after.
    pads: [u8; 2],
    /// Number of all.
    length: usize,
}

struct Emitter<'a> {
    config: &'a Config,
    layer: &'a Conv,
    tile: Tile,
    places: Places,
    result: [usize; 2],
    to: Recorder<'a>,
}

/// Returns the stream of a layer.
///
/// # Errors
/// A tiling that does not fit the device, or a geometry that the device cannot load.
pub fn conv(config: &Config, layer: &Conv, tile: Tile, places: Places) -> Result<Program, EmitError> {
    let result = layer.result().ok_or(EmitError::Geometry)?;
    if layer.pads.iter().flatten().any(|pad| *pad > MAX_PAD) {
        return Err(EmitError::Geometry);
    }
    if !tile.fits(layer, config) {
        return Err(EmitError::DoesNotFit);
    }
    let mut emitter = Emitter { config, layer, tile, places, result, to: Recorder::new(config, places.uops) };
    emitter.run()?;
    Ok(Program { stream: emitter.to.stream, uops: emitter.to.uops })
}

impl Emitter<'_> {
    fn run(&mut self) -> Result<(), EmitError> {
        let threads = self.tile.threads.count();
        for _ in 0..threads {
            self.to.no_op(Module::Store, Deps { push_prev: true, ..Deps::default() });
        }
        for group in self.groups() {
            for part in &group {
                self.reset(part)?;
            }
            let blocks = self.layer.inputs.div_ceil(self.tile.inputs);
            for block in 0..blocks {
                let first = block * self.tile.inputs;
                let inputs = self.tile.inputs.min(self.layer.inputs - first);
                for part in &group {
                    self.load(part, first, inputs)?;
                }
                for part in &group {
                    self.multiply(part, inputs)?;
                }
            }
            for _ in &group {
                self.to.no_op(Module::Load, POP_NEXT);
            }
            for part in &group {
                self.requantize(part)?;
            }
            for part in &group {
                self.store(part)?;
            }
            // A thread without a tile at the end of an axis returns its accumulators unused.
            for _ in group.len()..threads {
                self.to.no_op(Module::Compute, POP_NEXT);
                self.to.no_op(Module::Store, Deps { push_prev: true, ..Deps::default() });
            }
        }
        for _ in 0..threads {
            self.to.no_op(Module::Compute, POP_NEXT);
        }
        self.to.push(Deps::default(), Op::Finish);
        Ok(())
    }

    /// Returns the tiles, in groups of those that the threads compute at the same time.
    fn groups(&self) -> Vec<Vec<Part>> {
        let Tile { size, outputs, threads, .. } = self.tile;
        let starts = |end: usize, step: usize| (0..end).step_by(step).collect::<Vec<_>>();
        let mut parts = Vec::new();
        for batch in 0..self.layer.batch {
            for column in starts(self.result[1], size[1]) {
                let mut grid = Vec::new();
                for row in starts(self.result[0], size[0]) {
                    for output in starts(self.layer.outputs, outputs) {
                        grid.push(Part {
                            thread: 0,
                            batch,
                            first: [row, column],
                            output,
                            size: [size[0].min(self.result[0] - row), size[1].min(self.result[1] - column)],
                            outputs: outputs.min(self.layer.outputs - output),
                        });
                    }
                }
                if threads == Threads::OverRows {
                    grid.sort_by_key(|part| (part.output, part.first[0]));
                }
                parts.extend(grid);
            }
        }
        let mut groups: Vec<Vec<Part>> = parts.chunks(threads.count()).map(<[Part]>::to_vec).collect();
        for group in &mut groups {
            group.iter_mut().enumerate().for_each(|(thread, part)| part.thread = thread);
        }
        groups
    }

    /// Returns the first element of a thread's share of a memory.
    fn share(&self, memory: Memory, part: &Part) -> usize {
        self.config.depth(memory) / self.tile.threads.count() * part.thread
    }

    fn reset(&mut self, part: &Part) -> Result<(), EmitError> {
        let base = self.share(Memory::Acc, part);
        let uops: Vec<Uop> = (0..part.size[1]).map(|x| Uop { dst: (base + x) as u32, ..Uop::default() }).collect();
        self.matrix(POP_NEXT, true, part, &uops, [0; 2], [0; 2])?;
        self.to.give(false);
        Ok(())
    }

    /// Emits a matrix instruction: blocks of output channels in the outer loop, rows in the inner one.
    fn matrix(
        &mut self,
        deps: Deps,
        reset: bool,
        part: &Part,
        uops: &[Uop],
        src: [u16; 2],
        wgt: [u16; 2],
    ) -> Result<(), EmitError> {
        let (uop_begin, uop_end) = self.to.kernel(uops)?;
        let loops = Loops { uop_begin, uop_end, iterations: [part.outputs as u16, part.size[0] as u16] };
        let dst = [(part.size[0] * part.size[1]) as u16, part.size[1] as u16];
        // A loop of one iteration has no step, which might not fit its field.
        let [outer, inner] = [part.outputs > 1, part.size[0] > 1];
        let used = |factor: [u16; 2]| [if outer { factor[0] } else { 0 }, if inner { factor[1] } else { 0 }];
        let gemm = Gemm { reset, loops, dst: used(dst), src: used(src), wgt: used(wgt) };
        // The load of a kernel comes first, so that its tokens would be those of the instruction.
        self.to.push(deps, Op::Gemm(gemm));
        Ok(())
    }

    /// Returns the rows (axis 0) or columns (axis 1) of the data that a tile reads.
    fn span(&self, part: &Part, axis: usize) -> Span {
        let layer = self.layer;
        let first = (part.first[axis] * layer.strides[axis]) as isize - layer.pads[axis][0] as isize;
        let length = (part.size[axis] - 1) * layer.strides[axis] + layer.kernel[axis];
        let end = first + length as isize;
        let (from, to) = (first.max(0), end.min(layer.size[axis] as isize));
        let count = (to - from).max(0);
        let pads = [from - first, end - from - count].map(|pad| pad.clamp(0, MAX_PAD as isize) as u8);
        Span { start: from as usize, count: count as usize, pads, length }
    }

    fn load(&mut self, part: &Part, first: usize, inputs: usize) -> Result<(), EmitError> {
        let layer = self.layer;
        let [height, width] = layer.size;
        let (of_rows, of_columns) = (self.span(part, 0), self.span(part, 1));
        if of_rows.count == 0 || of_columns.count == 0 {
            // A load of nothing would leave what the memory holds; the products are zeros.
            self.to.no_op(Module::Load, POP_NEXT);
            self.to.give(true);
            return Ok(());
        }
        for input in 0..inputs {
            let sram = self.share(Memory::Inp, part) + input * of_rows.length * of_columns.length;
            let image = part.batch * layer.inputs + first + input;
            let element = (image * height + of_rows.start) * width + of_columns.start;
            let transfer = Transfer {
                memory: Memory::Inp,
                sram_base: sram as u16,
                dram_base: (self.places.data / self.config.element_bytes(Memory::Inp) + element) as u32,
                y_size: of_rows.count as u16,
                x_size: of_columns.count as u16,
                x_stride: width as u16,
                y_pad: of_rows.pads,
                x_pad: of_columns.pads,
            };
            self.to.push(if input == 0 { POP_NEXT } else { Deps::default() }, Op::Load(transfer));
        }
        let taps = layer.kernel[0] * layer.kernel[1];
        let element = (part.output * layer.inputs + first) * taps;
        let transfer = Transfer {
            memory: Memory::Wgt,
            sram_base: self.share(Memory::Wgt, part) as u16,
            dram_base: (self.places.weight / self.config.element_bytes(Memory::Wgt) + element) as u32,
            y_size: part.outputs as u16,
            x_size: (inputs * taps) as u16,
            x_stride: (layer.inputs * taps) as u16,
            y_pad: [0; 2],
            x_pad: [0; 2],
        };
        self.to.push(Deps::default(), Op::Load(transfer));
        self.to.give(true);
        Ok(())
    }

    fn multiply(&mut self, part: &Part, inputs: usize) -> Result<(), EmitError> {
        let layer = self.layer;
        let [kernel_rows, kernel_columns] = layer.kernel;
        let (of_rows, of_columns) = (self.span(part, 0), self.span(part, 1));
        if of_rows.count == 0 || of_columns.count == 0 {
            self.to.no_op(Module::Compute, POP_PREV);
            self.to.give(false);
            return Ok(());
        }
        let [rows, columns] = [of_rows.length, of_columns.length];
        let bases = [Memory::Acc, Memory::Inp, Memory::Wgt].map(|memory| self.share(memory, part));
        let mut uops = Vec::with_capacity(inputs * kernel_rows * kernel_columns * part.size[1]);
        for input in 0..inputs {
            for y in 0..kernel_rows {
                for x in 0..kernel_columns {
                    let tap = (input * kernel_rows + y) * kernel_columns + x;
                    for place in 0..part.size[1] {
                        let src = (input * rows + y) * columns + x + place * layer.strides[1];
                        uops.push(Uop {
                            dst: (bases[0] + place) as u32,
                            src: (bases[1] + src) as u32,
                            wgt: (bases[2] + tap) as u32,
                        });
                    }
                }
            }
        }
        let src = [0, (layer.strides[0] * columns) as u16];
        let wgt = [(inputs * kernel_rows * kernel_columns) as u16, 0];
        self.matrix(POP_PREV, false, part, &uops, src, wgt)?;
        self.to.give(false);
        Ok(())
    }

    /// Adds the bias, shifts and bounds the sums of a tile.
    fn requantize(&mut self, part: &Part) -> Result<(), EmitError> {
        let (base, results) = (self.share(Memory::Acc, part), part.size[0] * part.size[1]);
        if self.layer.bias {
            let place = base + part.outputs * results;
            let transfer = Transfer {
                memory: Memory::Acc,
                sram_base: place as u16,
                dram_base: (self.places.bias / self.config.element_bytes(Memory::Acc) + part.output) as u32,
                y_size: 1,
                x_size: part.outputs as u16,
                x_stride: part.outputs as u16,
                y_pad: [0; 2],
                x_pad: [0; 2],
            };
            self.to.push(Deps::default(), Op::Load(transfer));
            let (uop_begin, uop_end) =
                self.to.kernel(&[Uop { dst: base as u32, src: place as u32, ..Uop::default() }])?;
            let loops = Loops { uop_begin, uop_end, iterations: [part.outputs as u16, results as u16] };
            let step = |value: usize, count: usize| if count > 1 { value as u16 } else { 0 };
            let dst = [step(results, part.outputs), step(1, results)];
            let src = [step(1, part.outputs), 0];
            let alu = Alu { reset: false, loops, dst, src, op: AluOp::Add, use_imm: false, imm: 0 };
            self.to.push(Deps::default(), Op::Alu(alu));
        }
        let [low, high] = self.layer.bounds;
        for (op, imm) in [(AluOp::Shr, self.layer.shift), (AluOp::Max, low), (AluOp::Min, high)] {
            let (uop_begin, uop_end) =
                self.to.kernel(&[Uop { dst: base as u32, src: base as u32, ..Uop::default() }])?;
            let count = (part.outputs * results) as u16;
            let loops = Loops { uop_begin, uop_end, iterations: [1, count] };
            let step = u16::from(count > 1);
            let alu = Alu { reset: false, loops, dst: [0, step], src: [0, step], op, use_imm: true, imm };
            self.to.push(Deps::default(), Op::Alu(alu));
        }
        self.to.give(true);
        Ok(())
    }

    fn store(&mut self, part: &Part) -> Result<(), EmitError> {
        let base = self.share(Memory::Acc, part);
        let [rows, columns] = self.result;
        let whole = part.size[1] == columns;
        for output in 0..part.outputs {
            let channel = part.batch * self.layer.outputs + part.output + output;
            let element = (channel * rows + part.first[0]) * columns + part.first[1];
            // Rows of the whole width are one run.
            let [y_size, x_size] = if whole { [1, part.size[0] * columns] } else { part.size };
            let transfer = Transfer {
                memory: Memory::Out,
                sram_base: (base + output * part.size[0] * part.size[1]) as u16,
                dram_base: (self.places.result / self.config.element_bytes(Memory::Out) + element) as u32,
                y_size: y_size as u16,
                x_size: x_size as u16,
                x_stride: columns as u16,
                y_pad: [0; 2],
                x_pad: [0; 2],
            };
            self.to.push(if output == 0 { POP_PREV } else { Deps::default() }, Op::Store(transfer));
        }
        self.to.give(false);
        Ok(())
    }
}

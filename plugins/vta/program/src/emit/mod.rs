//! Emits instruction streams for layers with their tilings.
//!
//! Each thread owns a share of every on-chip memory. LOAD fills one thread's share with a tile of activations and
//! weights while COMPUTE processes the other thread's tile; STORE empties one thread's accumulators while COMPUTE fills
//! the other thread's accumulators. Tokens order these accesses. Between layers, a token passes from STORE through
//! COMPUTE to LOAD, so a layer only reads data that has been written.

mod conv;
mod elementwise;
mod epilogue;
mod pool;

use crate::layer::{Layer, Place};
use crate::recorder::Recorder;
use crate::tile::{MAX_PAD, Tile};
use byoc_vta_machine::config::Config;
use byoc_vta_machine::isa::{Deps, EncodeError, Gemm, Insn, Loops, Memory, Module, Op, Transfer, Uop};
use std::fmt;
use std::ops::Range;

/// Instruction stream for layers, with its micro-operations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// Instructions. Transfer addresses are relative to their buffers.
    pub stream: Vec<Insn>,
    /// Index of the buffer that each instruction accesses, if any.
    pub buffers: Vec<Option<u32>>,
    /// Contents of the micro-operation buffer.
    pub uops: Vec<u32>,
    /// Instruction range of each layer.
    pub layers: Vec<Range<usize>>,
    /// Instruction range of each device run. Each run ends with FINISH.
    pub runs: Vec<Range<usize>>,
}

/// Number of device runs for a sequence of layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runs {
    /// One run for all layers.
    Whole,
    /// One run per layer.
    PerLayer,
}

/// Buffers that a stream needs in addition to layer tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Auxiliary {
    /// Index of the micro-operation buffer.
    pub uops: u32,
    /// Index of the buffer with a weight element that is the identity matrix. On devices that cannot load bytes into
    /// accumulators, multiplication by the identity copies activations to accumulators.
    pub identity: u32,
}

/// Maximum number of instructions per run: the capacity of the driver's largest buffer.
pub const MAX_RUN: usize = (1 << 24) / 16;

/// Error in emitting a layer with a given tiling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EmitError {
    /// The tiles do not fit into the on-chip memories.
    DoesNotFit,
    /// The kernel is larger than the padded data, or a load cannot add that much padding.
    Geometry,
    /// A field of an instruction is too narrow.
    Field(EncodeError),
}

impl fmt::Display for EmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EmitError::DoesNotFit => f.write_str("the tiles do not fit into the on-chip memories"),
            EmitError::Geometry => write!(f, "the kernel exceeds the padded data, or the padding exceeds {MAX_PAD}"),
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

type Result<T> = std::result::Result<T, EmitError>;

const POP_PREV: Deps = Deps { pop_prev: true, pop_next: false, push_prev: false, push_next: false };
const POP_NEXT: Deps = Deps { pop_prev: false, pop_next: true, push_prev: false, push_next: false };
const PUSH_PREV: Deps = Deps { pop_prev: false, pop_next: false, push_prev: true, push_next: false };

/// Emits the stream for a sequence of layers.
///
/// # Errors
/// If a tiling does not fit the device, or the device does not support the geometry of a layer.
pub fn program(config: &Config, layers: &[(Layer, Tile)], auxiliary: Auxiliary, runs: Runs) -> Result<Program> {
    let mut recorder = Recorder::new(config, auxiliary.uops);
    let mut program = Program::default();
    let mut start = 0;
    for (layer_index, (layer, tile)) in layers.iter().enumerate() {
        let first_insn = recorder.stream.len();
        // LOAD waits for the last results of the previous layer, if both layers are in the same run.
        if first_insn > start {
            recorder.no_op(Module::Load, POP_NEXT);
        }
        Emitter { layer, tile: *tile, identity: auxiliary.identity, recorder: &mut recorder }.emit_layer()?;
        let length = recorder.stream.len() - start;
        let is_per_layer = runs == Runs::PerLayer || length + (recorder.stream.len() - first_insn) > MAX_RUN;
        if layer_index + 1 == layers.len() || is_per_layer {
            recorder.push(Deps::default(), Op::Finish);
            recorder.forget_kernels();
            program.runs.push(start..recorder.stream.len());
            start = recorder.stream.len();
        } else {
            recorder.push_token(false);
        }
        program.layers.push(first_insn..recorder.stream.len());
    }
    Ok(Program { stream: recorder.stream, buffers: recorder.buffers, uops: recorder.uops, ..program })
}

/// Emits the stream of one layer.
struct Emitter<'a, 'r> {
    layer: &'a Layer,
    tile: Tile,
    identity: u32,
    recorder: &'r mut Recorder<'a>,
}

/// Tensor elements that a transfer moves, in units of memory elements.
#[derive(Clone, Copy)]
struct Elements {
    /// Index of the first element in the on-chip memory.
    sram: usize,
    /// Index of the first element in the tensor.
    first: usize,
    /// Number of rows, and of elements per row.
    size: [usize; 2],
    /// Row stride of the tensor, in elements.
    stride: usize,
    /// Zero padding before and after: number of rows, and of elements per row.
    pads: [[u8; 2]; 2],
}

impl Elements {
    /// Returns a contiguous range of elements.
    fn run(sram: usize, first: usize, count: usize) -> Elements {
        Elements { sram, first, size: [1, count], stride: count, pads: [[0; 2]; 2] }
    }
}

impl Emitter<'_, '_> {
    /// Emits the layer, including the instructions that pop the last tokens of STORE.
    fn emit_layer(&mut self) -> Result<()> {
        if !self.tile.fits(self.layer, self.recorder.config) {
            return Err(EmitError::DoesNotFit);
        }
        let threads = self.tile.threads.count();
        for _ in 0..threads {
            self.recorder.no_op(Module::Store, PUSH_PREV);
        }
        match self.layer {
            Layer::Conv(conv) => self.conv(conv)?,
            Layer::Pool(pool) => self.pool(pool)?,
            Layer::Elementwise(elementwise) => self.elementwise(elementwise)?,
        }
        for _ in 0..threads {
            self.recorder.no_op(Module::Compute, POP_NEXT);
        }
        Ok(())
    }

    /// Returns the first element of a thread's share of a memory.
    fn first_of_thread(&self, memory: Memory, thread: usize) -> usize {
        self.recorder.config.depth(memory) / self.tile.threads.count() * thread
    }

    /// Emits a transfer of tensor elements.
    fn move_elements(&mut self, deps: Deps, memory: Memory, place: Place, elements: Elements) {
        // Rows without gaps form a single row.
        let is_contiguous = elements.stride == elements.size[1]
            && elements.pads[1] == [0; 2]
            && elements.size[0] * elements.size[1] <= usize::from(u16::MAX);
        let [y_size, x_size] = if is_contiguous && elements.pads[0] == [0; 2] {
            [1, elements.size[0] * elements.size[1]]
        } else {
            elements.size
        };
        let transfer = Transfer {
            memory,
            sram_base: elements.sram as u16,
            dram_base: (place.offset / self.recorder.config.element_bytes(memory) + elements.first) as u32,
            y_size: y_size as u16,
            x_size: x_size as u16,
            x_stride: if y_size == 1 { x_size } else { elements.stride } as u16,
            y_pad: elements.pads[0],
            x_pad: elements.pads[1],
        };
        let op = if memory == Memory::Out { Op::Store(transfer) } else { Op::Load(transfer) };
        self.recorder.transfer(deps, op, place.buffer);
    }

    /// Emits COMPUTE no-ops that pop the accumulator tokens of threads without a tile, as at the end of an axis.
    /// Otherwise, the active threads would pop these tokens.
    fn pop_unused_tokens(&mut self, used_threads: usize) {
        for _ in used_threads..self.tile.threads.count() {
            self.recorder.no_op(Module::Compute, POP_NEXT);
        }
    }

    /// Emits STORE no-ops that push the accumulator tokens of threads without a tile.
    fn push_unused_tokens(&mut self, used_threads: usize) {
        for _ in used_threads..self.tile.threads.count() {
            self.recorder.no_op(Module::Store, PUSH_PREV);
        }
    }

    /// Emits a reset of accumulators to zero.
    fn reset(&mut self, deps: Deps, base: usize, count: usize) -> Result<()> {
        self.matrix(deps, true, &[Uop { dst: base as u32, ..Uop::default() }], [1, count], [[0, 1], [0; 2], [0; 2]])
    }

    /// Emits a matrix instruction with two loops. `factors` are the index steps of destination, activation and weight.
    fn matrix(
        &mut self,
        deps: Deps,
        reset: bool,
        uops: &[Uop],
        iterations: [usize; 2],
        factors: [[usize; 2]; 3],
    ) -> Result<()> {
        let loops = self.loops(uops, iterations)?;
        let [dst, src, wgt] = factors.map(|factor| used_steps(iterations, factor));
        self.recorder.push(deps, Op::Gemm(Gemm { reset, loops, dst, src, wgt }));
        Ok(())
    }

    fn loops(&mut self, uops: &[Uop], iterations: [usize; 2]) -> Result<Loops> {
        let (uop_begin, uop_end) = self.recorder.kernel(uops)?;
        Ok(Loops { uop_begin, uop_end, iterations: iterations.map(|count| count as u16) })
    }
}

/// Returns the index steps of two loops. The step of a single-iteration loop is replaced by 0, because the actual step
/// might not fit its field.
fn used_steps(iterations: [usize; 2], steps: [usize; 2]) -> [u16; 2] {
    [0, 1].map(|axis| if iterations[axis] > 1 { steps[axis] as u16 } else { 0 })
}

/// Returns the tiles of an axis as (start, size). The last tile may be smaller.
fn tiles_of(end: usize, step: usize) -> impl Iterator<Item = (usize, usize)> + Clone {
    (0..end).step_by(step).map(move |start| (start, step.min(end - start)))
}

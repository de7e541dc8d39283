//! Instructions and micro-operations.
//!
//! An instruction is two little-endian 64-bit words. Fields are filled from bit 0 up and never straddle words.
//! Some field widths depend on the depths of the on-chip memories.

mod bits;
mod text;

use crate::config::{Config, Revision};
pub use crate::memory::Memory;
use bits::{Reader, Writer};
use std::fmt;

/// Operation of the vector unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AluOp {
    /// Minimum.
    Min,
    /// Maximum.
    Max,
    /// Wrapping addition.
    Add,
    /// Arithmetic right shift; left shift for a negative amount.
    Shr,
    /// Wrapping multiplication.
    Mul,
}

impl AluOp {
    const ALL: [AluOp; 5] = [AluOp::Min, AluOp::Max, AluOp::Add, AluOp::Shr, AluOp::Mul];
}

/// Tokens that an instruction pops before it starts and pushes after it ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deps {
    /// Pops a token from the previous module.
    pub pop_prev: bool,
    /// Pops a token from the next module.
    pub pop_next: bool,
    /// Pushes a token to the previous module.
    pub push_prev: bool,
    /// Pushes a token to the next module.
    pub push_next: bool,
}

/// Transfer between DRAM and an on-chip memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// On-chip memory.
    pub memory: Memory,
    /// Index of the first element in the on-chip memory.
    pub sram_base: u16,
    /// Index of the first element in DRAM.
    pub dram_base: u32,
    /// Number of rows.
    pub y_size: u16,
    /// Number of elements per row.
    pub x_size: u16,
    /// Row stride in DRAM, in elements.
    pub x_stride: u16,
    /// Number of zero rows before and after the data.
    pub y_pad: [u8; 2],
    /// Number of zero elements before and after each row.
    pub x_pad: [u8; 2],
}

/// Loops around a range of micro-operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loops {
    /// Index of the first micro-operation.
    pub uop_begin: u32,
    /// Exclusive end index of the micro-operations.
    pub uop_end: u32,
    /// Number of iterations of the outer loop and of the inner loop.
    pub iterations: [u16; 2],
}

/// Matrix instruction: multiplies and accumulates, or resets accumulators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gemm {
    /// True if the instruction resets accumulators to zero.
    pub reset: bool,
    /// Loops and micro-operations.
    pub loops: Loops,
    /// Increments of the accumulator index in the outer loop and in the inner loop.
    pub dst: [u16; 2],
    /// Increments of the activation index.
    pub src: [u16; 2],
    /// Increments of the weight index.
    pub wgt: [u16; 2],
}

/// Vector instruction on accumulators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alu {
    /// Reset bit, which has no effect in a vector instruction.
    pub reset: bool,
    /// Loops and micro-operations.
    pub loops: Loops,
    /// Increments of the destination index in the outer loop and in the inner loop.
    pub dst: [u16; 2],
    /// Increments of the source index.
    pub src: [u16; 2],
    /// Operation on the accumulators.
    pub op: AluOp,
    /// True if the second operand is the immediate, not an accumulator.
    pub use_imm: bool,
    /// Immediate operand, which the encoding preserves even if it is unused.
    pub imm: i16,
}

/// Operation of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Transfer from DRAM.
    Load(Transfer),
    /// Transfer to DRAM.
    Store(Transfer),
    /// Matrix unit instruction.
    Gemm(Gemm),
    /// Vector unit instruction.
    Alu(Alu),
    /// End of the stream.
    Finish,
}

/// Instruction of the accelerator, with its synchronization.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Insn {
    /// Tokens that the instruction pops and pushes.
    pub deps: Deps,
    /// Operation that the instruction executes.
    pub op: Op,
}

/// Micro-operation: the element indices of one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uop {
    /// Accumulator index.
    pub dst: u32,
    /// Activation index, or source accumulator index in a vector instruction.
    pub src: u32,
    /// Weight index.
    pub wgt: u32,
}

/// Module that executes an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Module {
    /// Loads activations and weights.
    Load,
    /// Computes, and loads micro-operations and accumulators.
    Compute,
    /// Stores results.
    Store,
}

impl fmt::Display for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Module::Load => "LOAD",
            Module::Compute => "COMPUTE",
            Module::Store => "STORE",
        })
    }
}

/// Returns the bit position of the DRAM address field in the low word of a transfer instruction.
pub fn dram_base_bit(config: &Config) -> u32 {
    const FLAGS_AND_OPCODE: u32 = 7;
    const SRAM_BASE: u32 = 16;
    FLAGS_AND_OPCODE + Widths::of(config).code + SRAM_BASE
}

impl Insn {
    /// Returns the module that executes the instruction.
    pub fn module(&self) -> Module {
        match &self.op {
            Op::Load(transfer) if matches!(transfer.memory, Memory::Inp | Memory::Wgt) => Module::Load,
            Op::Store(_) => Module::Store,
            _ => Module::Compute,
        }
    }

    /// Returns an instruction that only moves tokens.
    pub fn no_op(module: Module, deps: Deps) -> Insn {
        let memory = if module == Module::Load { Memory::Inp } else { Memory::Uop };
        let empty_transfer = Transfer {
            memory,
            sram_base: 0,
            dram_base: 0,
            y_size: 0,
            x_size: 0,
            x_stride: 0,
            y_pad: [0; 2],
            x_pad: [0; 2],
        };
        Insn { deps, op: if module == Module::Store { Op::Store(empty_transfer) } else { Op::Load(empty_transfer) } }
    }

    /// Encodes the instruction for a device.
    ///
    /// # Errors
    /// If a value does not fit its field.
    pub fn encode(&self, config: &Config) -> Result<[u64; 2], EncodeError> {
        let widths = Widths::of(config);
        let mut writer = Writer::default();
        let code = match &self.op {
            Op::Load(_) => 0,
            Op::Store(_) => 1,
            Op::Gemm(_) => 2,
            Op::Finish => 3,
            Op::Alu(_) => 4,
        };
        writer.write_field("opcode", code, 3)?;
        for (name, flag) in [
            ("pop_prev", self.deps.pop_prev),
            ("pop_next", self.deps.pop_next),
            ("push_prev", self.deps.push_prev),
            ("push_next", self.deps.push_next),
        ] {
            writer.write_field(name, u64::from(flag), 1)?;
        }
        match &self.op {
            Op::Finish => {}
            Op::Load(transfer) => transfer.encode(&widths, false, &mut writer)?,
            Op::Store(transfer) => transfer.encode(&widths, true, &mut writer)?,
            Op::Gemm(gemm) => {
                gemm.loops.encode(gemm.reset, &widths, &mut writer)?;
                writer.start_second_word();
                let factors =
                    [(gemm.dst, widths.acc, "dst"), (gemm.src, widths.inp, "src"), (gemm.wgt, widths.wgt, "wgt")];
                for (factor, width, name) in factors {
                    writer.write_field(name, u64::from(factor[0]), width)?;
                    writer.write_field(name, u64::from(factor[1]), width)?;
                }
            }
            Op::Alu(alu) => {
                alu.loops.encode(alu.reset, &widths, &mut writer)?;
                writer.start_second_word();
                for factor in [alu.dst, alu.src] {
                    writer.write_field("factor", u64::from(factor[0]), widths.acc)?;
                    writer.write_field("factor", u64::from(factor[1]), widths.acc)?;
                }
                let code = AluOp::ALL.iter().position(|op| *op == alu.op).unwrap_or_default();
                writer.write_field("alu_opcode", code as u64, widths.code)?;
                writer.write_field("use_imm", u64::from(alu.use_imm), 1)?;
                writer.write_field("imm", u64::from(alu.imm as u16), 16)?;
            }
        }
        Ok(writer.words())
    }

    /// Decodes an instruction for a device.
    ///
    /// # Errors
    /// If an operation, memory or vector operation is unknown, or a bit outside all fields is set.
    pub fn decode(words: [u64; 2], config: &Config) -> Result<Insn, DecodeError> {
        let widths = Widths::of(config);
        let mut reader = Reader::new(words);
        let code = reader.take(3);
        let mut flag = || reader.take(1) == 1;
        let deps = Deps { pop_prev: flag(), pop_next: flag(), push_prev: flag(), push_next: flag() };
        let op = match code {
            0 => Op::Load(Transfer::decode(&widths, &mut reader)?),
            1 => {
                let mut transfer = Transfer::decode(&widths, &mut reader)?;
                if widths.code == 2 && transfer.memory == Memory::Uop && !transfer.is_no_op() {
                    transfer.memory = Memory::Out;
                }
                Op::Store(transfer)
            }
            2 => {
                let (reset, loops) = Loops::decode(&widths, &mut reader);
                reader.start_second_word()?;
                let mut read_pair = |width: u32| [reader.take(width) as u16, reader.take(width) as u16];
                let (dst, src, wgt) = (read_pair(widths.acc), read_pair(widths.inp), read_pair(widths.wgt));
                Op::Gemm(Gemm { reset, loops, dst, src, wgt })
            }
            3 => Op::Finish,
            4 => {
                let (reset, loops) = Loops::decode(&widths, &mut reader);
                reader.start_second_word()?;
                let mut read_pair = || [reader.take(widths.acc) as u16, reader.take(widths.acc) as u16];
                let (dst, src) = (read_pair(), read_pair());
                let code = reader.take(widths.code);
                let op = AluOp::ALL.get(code as usize).ok_or(DecodeError::UnknownAluOp(code))?;
                let use_imm = reader.take(1) == 1;
                Op::Alu(Alu { reset, loops, dst, src, op: *op, use_imm, imm: reader.take(16) as u16 as i16 })
            }
            other => return Err(DecodeError::UnknownOpcode(other)),
        };
        reader.end()?;
        Ok(Insn { deps, op })
    }
}

impl Transfer {
    fn encode(&self, widths: &Widths, is_store: bool, writer: &mut Writer) -> Result<(), EncodeError> {
        let mut code = Memory::ALL.iter().position(|memory| *memory == self.memory).unwrap_or_default() as u64;
        if widths.code == 2 && is_store && self.memory == Memory::Out {
            // The first revision has no code for OUT, the only memory that a store can name.
            code = 0;
        }
        writer.write_field("memory_type", code, widths.code)?;
        writer.write_field("sram_base", u64::from(self.sram_base), 16)?;
        writer.write_field("dram_base", u64::from(self.dram_base), 32)?;
        writer.start_second_word();
        writer.write_field("y_size", u64::from(self.y_size), 16)?;
        writer.write_field("x_size", u64::from(self.x_size), 16)?;
        writer.write_field("x_stride", u64::from(self.x_stride), 16)?;
        for (name, pad) in [("y_pad", self.y_pad), ("x_pad", self.x_pad)] {
            writer.write_field(name, u64::from(pad[0]), 4)?;
            writer.write_field(name, u64::from(pad[1]), 4)?;
        }
        Ok(())
    }

    fn decode(widths: &Widths, reader: &mut Reader) -> Result<Transfer, DecodeError> {
        let code = reader.take(widths.code);
        let memory = *Memory::ALL.get(code as usize).ok_or(DecodeError::UnknownMemory(code))?;
        let (sram_base, dram_base) = (reader.take(16) as u16, reader.take(32) as u32);
        reader.start_second_word()?;
        let (y_size, x_size, x_stride) = (reader.take(16) as u16, reader.take(16) as u16, reader.take(16) as u16);
        let mut read_pair = || [reader.take(4) as u8, reader.take(4) as u8];
        let (y_pad, x_pad) = (read_pair(), read_pair());
        Ok(Transfer { memory, sram_base, dram_base, y_size, x_size, x_stride, y_pad, x_pad })
    }

    /// Returns true if the instruction only moves tokens.
    pub fn is_no_op(&self) -> bool {
        self.x_size == 0
    }

    /// Returns the number of elements per row, including padding.
    pub fn row_length(&self) -> usize {
        usize::from(self.x_pad[0]) + usize::from(self.x_size) + usize::from(self.x_pad[1])
    }

    /// Returns the number of rows, including padding.
    pub fn rows(&self) -> usize {
        usize::from(self.y_pad[0]) + usize::from(self.y_size) + usize::from(self.y_pad[1])
    }
}

impl Loops {
    fn encode(&self, is_reset: bool, widths: &Widths, writer: &mut Writer) -> Result<(), EncodeError> {
        writer.write_field("reset", u64::from(is_reset), 1)?;
        writer.write_field("uop_begin", u64::from(self.uop_begin), widths.uop)?;
        writer.write_field("uop_end", u64::from(self.uop_end), widths.uop + 1)?;
        writer.write_field("iter_out", u64::from(self.iterations[0]), 14)?;
        writer.write_field("iter_in", u64::from(self.iterations[1]), 14)
    }

    fn decode(widths: &Widths, reader: &mut Reader) -> (bool, Loops) {
        let reset = reader.take(1) == 1;
        let (uop_begin, uop_end) = (reader.take(widths.uop) as u32, reader.take(widths.uop + 1) as u32);
        let iterations = [reader.take(14) as u16, reader.take(14) as u16];
        (reset, Loops { uop_begin, uop_end, iterations })
    }

    /// Returns the number of steps: micro-operations times iterations.
    pub fn steps(&self) -> u64 {
        let uops = u64::from(self.uop_end.saturating_sub(self.uop_begin));
        uops * u64::from(self.iterations[0]) * u64::from(self.iterations[1])
    }
}

impl Uop {
    /// Encodes the micro-operation for a device.
    ///
    /// # Errors
    /// If an index does not fit its field.
    pub fn encode(&self, config: &Config) -> Result<u32, EncodeError> {
        let widths = Widths::of(config);
        let mut writer = Writer::default();
        writer.write_field("dst", u64::from(self.dst), widths.acc)?;
        writer.write_field("src", u64::from(self.src), widths.uop_src)?;
        writer.write_field("wgt", u64::from(self.wgt), widths.wgt)?;
        Ok(writer.words()[0] as u32)
    }

    /// Decodes a micro-operation for a device.
    pub fn decode(word: u32, config: &Config) -> Uop {
        let widths = Widths::of(config);
        let mut reader = Reader::new([u64::from(word), 0]);
        Uop {
            dst: reader.take(widths.acc) as u32,
            src: reader.take(widths.uop_src) as u32,
            wgt: reader.take(widths.wgt) as u32,
        }
    }
}

/// Device-dependent field widths in bits.
struct Widths {
    uop: u32,
    inp: u32,
    wgt: u32,
    acc: u32,
    /// Width of a micro-operation's source index.
    uop_src: u32,
    /// Width of memory IDs and vector operation codes.
    code: u32,
}

impl Widths {
    fn of(config: &Config) -> Widths {
        let [inp, acc] = [Memory::Inp, Memory::Acc].map(|memory| config.log_depth(memory));
        let is_first_revision = config.revision() == Revision::First;
        Widths {
            uop: config.log_depth(Memory::Uop),
            inp,
            wgt: config.log_depth(Memory::Wgt),
            acc,
            uop_src: if is_first_revision { inp } else { inp.max(acc) },
            code: if is_first_revision { 2 } else { 3 },
        }
    }
}

/// Error for a value that does not fit its field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodeError {
    /// Name of the field.
    pub field: &'static str,
    /// Value that does not fit.
    pub value: u64,
    /// Width of the field in bits.
    pub width: u32,
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: expected a value < 2^{}, found {}", self.field, self.width, self.value)
    }
}

impl std::error::Error for EncodeError {}

/// Error for an instruction that cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// Unknown operation code.
    UnknownOpcode(u64),
    /// Unknown memory ID.
    UnknownMemory(u64),
    /// Unknown vector operation code.
    UnknownAluOp(u64),
    /// Nonzero bits outside all fields.
    ExtraBits,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecodeError::UnknownOpcode(code) => write!(f, "expected an opcode from 0 to 4, found {code}"),
            DecodeError::UnknownMemory(code) => write!(f, "expected a memory id from 0 to 5, found {code}"),
            DecodeError::UnknownAluOp(code) => write!(f, "expected an ALU operation from 0 to 4, found {code}"),
            DecodeError::ExtraBits => f.write_str("expected zeros outside the instruction fields, found ones"),
        }
    }
}

impl std::error::Error for DecodeError {}

//! Instructions and micro-operations.
//!
//! An instruction has 128 bits, two little-endian words of 64. Fields are filled from bit 0 upwards and never straddle
//! the words. The widths of some fields depend on the depths of the device's memories.

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
    /// Addition, which wraps.
    Add,
    /// Arithmetic shift to the right; to the left by a negative amount.
    Shr,
    /// Multiplication, which wraps.
    Mul,
}

impl AluOp {
    const ALL: [AluOp; 5] = [AluOp::Min, AluOp::Max, AluOp::Add, AluOp::Shr, AluOp::Mul];
}

/// Tokens that an instruction takes before it starts and gives after it ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deps {
    /// Takes a token from the previous module.
    pub pop_prev: bool,
    /// Takes a token from the next module.
    pub pop_next: bool,
    /// Gives a token to the previous module.
    pub push_prev: bool,
    /// Gives a token to the next module.
    pub push_next: bool,
}

/// Transfer between DRAM and a memory of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Memory of the device.
    pub memory: Memory,
    /// First element in the memory.
    pub sram_base: u16,
    /// First element in DRAM.
    pub dram_base: u32,
    /// Number of rows.
    pub y_size: u16,
    /// Elements of a row.
    pub x_size: u16,
    /// Elements between the starts of two rows in DRAM.
    pub x_stride: u16,
    /// Rows of zeros before and after.
    pub y_pad: [u8; 2],
    /// Elements of zeros before and after each row.
    pub x_pad: [u8; 2],
}

/// Loops around a range of micro-operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loops {
    /// First micro-operation.
    pub uop_begin: u32,
    /// End of the micro-operations, exclusive.
    pub uop_end: u32,
    /// Iterations of the outer and of the inner loop.
    pub iterations: [u16; 2],
}

/// Matrix instruction: sums of products, or zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gemm {
    /// Writes zeros, if true.
    pub reset: bool,
    /// Loops and micro-operations.
    pub loops: Loops,
    /// Steps of the accumulator's index in the outer and the inner loop.
    pub dst: [u16; 2],
    /// Steps of the activation's index.
    pub src: [u16; 2],
    /// Steps of the weight's index.
    pub wgt: [u16; 2],
}

/// Vector instruction on accumulators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alu {
    /// Bit that has no effect.
    pub reset: bool,
    /// Loops and micro-operations.
    pub loops: Loops,
    /// Steps of the destination's index in the outer and the inner loop.
    pub dst: [u16; 2],
    /// Steps of the source's index.
    pub src: [u16; 2],
    /// Operation.
    pub op: AluOp,
    /// Second operand, if it is not an accumulator. The field of the instruction keeps the value if it is unused.
    pub use_imm: bool,
    /// Immediate.
    pub imm: i16,
}

/// Work of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// From DRAM.
    Load(Transfer),
    /// To DRAM.
    Store(Transfer),
    /// Matrix unit.
    Gemm(Gemm),
    /// Vector unit.
    Alu(Alu),
    /// End of the stream.
    Finish,
}

/// Instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Insn {
    /// Tokens.
    pub deps: Deps,
    /// Work.
    pub op: Op,
}

/// Indices of a micro-operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uop {
    /// Accumulator.
    pub dst: u32,
    /// Activation, or accumulator in a vector instruction.
    pub src: u32,
    /// Weight.
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

/// Returns the lowest bit of the address of a transfer, which lies in the low half of an instruction.
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
        let nothing = Transfer {
            memory,
            sram_base: 0,
            dram_base: 0,
            y_size: 0,
            x_size: 0,
            x_stride: 0,
            y_pad: [0; 2],
            x_pad: [0; 2],
        };
        Insn { deps, op: if module == Module::Store { Op::Store(nothing) } else { Op::Load(nothing) } }
    }

    /// Encodes the instruction for a device.
    ///
    /// # Errors
    /// A field whose value does not fit.
    pub fn encode(&self, config: &Config) -> Result<[u64; 2], EncodeError> {
        let widths = Widths::of(config);
        let mut to = Writer::default();
        let code = match &self.op {
            Op::Load(_) => 0,
            Op::Store(_) => 1,
            Op::Gemm(_) => 2,
            Op::Finish => 3,
            Op::Alu(_) => 4,
        };
        to.put("opcode", code, 3)?;
        for (name, flag) in [
            ("pop_prev", self.deps.pop_prev),
            ("pop_next", self.deps.pop_next),
            ("push_prev", self.deps.push_prev),
            ("push_next", self.deps.push_next),
        ] {
            to.put(name, u64::from(flag), 1)?;
        }
        match &self.op {
            Op::Finish => {}
            Op::Load(transfer) => transfer.encode(&widths, false, &mut to)?,
            Op::Store(transfer) => transfer.encode(&widths, true, &mut to)?,
            Op::Gemm(gemm) => {
                gemm.loops.encode(gemm.reset, &widths, &mut to)?;
                to.next_word();
                let factors =
                    [(gemm.dst, widths.acc, "dst"), (gemm.src, widths.inp, "src"), (gemm.wgt, widths.wgt, "wgt")];
                for (factor, width, name) in factors {
                    to.put(name, u64::from(factor[0]), width)?;
                    to.put(name, u64::from(factor[1]), width)?;
                }
            }
            Op::Alu(alu) => {
                alu.loops.encode(alu.reset, &widths, &mut to)?;
                to.next_word();
                for factor in [alu.dst, alu.src] {
                    to.put("factor", u64::from(factor[0]), widths.acc)?;
                    to.put("factor", u64::from(factor[1]), widths.acc)?;
                }
                let code = AluOp::ALL.iter().position(|op| *op == alu.op).unwrap_or_default();
                to.put("alu_opcode", code as u64, widths.code)?;
                to.put("use_imm", u64::from(alu.use_imm), 1)?;
                to.put("imm", u64::from(alu.imm as u16), 16)?;
            }
        }
        Ok(to.words())
    }

    /// Decodes an instruction of a device.
    ///
    /// # Errors
    /// An unknown operation, memory or vector operation, or a bit outside all fields that is set.
    pub fn decode(words: [u64; 2], config: &Config) -> Result<Insn, DecodeError> {
        let widths = Widths::of(config);
        let mut from = Reader::new(words);
        let code = from.take(3);
        let mut flag = || from.take(1) == 1;
        let deps = Deps { pop_prev: flag(), pop_next: flag(), push_prev: flag(), push_next: flag() };
        let op = match code {
            0 => Op::Load(Transfer::decode(&widths, &mut from)?),
            1 => {
                let mut transfer = Transfer::decode(&widths, &mut from)?;
                if widths.code == 2 && transfer.memory == Memory::Uop && !transfer.is_no_op() {
                    transfer.memory = Memory::Out;
                }
                Op::Store(transfer)
            }
            2 => {
                let (reset, loops) = Loops::decode(&widths, &mut from);
                from.next_word()?;
                let mut pair = |width: u32| [from.take(width) as u16, from.take(width) as u16];
                let (dst, src, wgt) = (pair(widths.acc), pair(widths.inp), pair(widths.wgt));
                Op::Gemm(Gemm { reset, loops, dst, src, wgt })
            }
            3 => Op::Finish,
            4 => {
                let (reset, loops) = Loops::decode(&widths, &mut from);
                from.next_word()?;
                let mut pair = || [from.take(widths.acc) as u16, from.take(widths.acc) as u16];
                let (dst, src) = (pair(), pair());
                let code = from.take(widths.code);
                let op = AluOp::ALL.get(code as usize).ok_or(DecodeError::UnknownAluOp(code))?;
                let use_imm = from.take(1) == 1;
                Op::Alu(Alu { reset, loops, dst, src, op: *op, use_imm, imm: from.take(16) as u16 as i16 })
            }
            other => return Err(DecodeError::UnknownOpcode(other)),
        };
        from.end()?;
        Ok(Insn { deps, op })
    }
}

impl Transfer {
    fn encode(&self, widths: &Widths, store: bool, to: &mut Writer) -> Result<(), EncodeError> {
        let mut code = Memory::ALL.iter().position(|memory| *memory == self.memory).unwrap_or_default() as u64;
        if widths.code == 2 && store && self.memory == Memory::Out {
            // The first revision has no code for OUT; a store can only mean it.
            code = 0;
        }
        to.put("memory_type", code, widths.code)?;
        to.put("sram_base", u64::from(self.sram_base), 16)?;
        to.put("dram_base", u64::from(self.dram_base), 32)?;
        to.next_word();
        to.put("y_size", u64::from(self.y_size), 16)?;
        to.put("x_size", u64::from(self.x_size), 16)?;
        to.put("x_stride", u64::from(self.x_stride), 16)?;
        for (name, pad) in [("y_pad", self.y_pad), ("x_pad", self.x_pad)] {
            to.put(name, u64::from(pad[0]), 4)?;
            to.put(name, u64::from(pad[1]), 4)?;
        }
        Ok(())
    }

    fn decode(widths: &Widths, from: &mut Reader) -> Result<Transfer, DecodeError> {
        let code = from.take(widths.code);
        let memory = *Memory::ALL.get(code as usize).ok_or(DecodeError::UnknownMemory(code))?;
        let (sram_base, dram_base) = (from.take(16) as u16, from.take(32) as u32);
        from.next_word()?;
        let (y_size, x_size, x_stride) = (from.take(16) as u16, from.take(16) as u16, from.take(16) as u16);
        let mut pair = || [from.take(4) as u8, from.take(4) as u8];
        let (y_pad, x_pad) = (pair(), pair());
        Ok(Transfer { memory, sram_base, dram_base, y_size, x_size, x_stride, y_pad, x_pad })
    }

    /// Returns true if the instruction only moves tokens.
    pub fn is_no_op(&self) -> bool {
        self.x_size == 0
    }

    /// Returns the elements of a row with its padding.
    pub fn row_length(&self) -> usize {
        usize::from(self.x_pad[0]) + usize::from(self.x_size) + usize::from(self.x_pad[1])
    }

    /// Returns the number of rows with the padding.
    pub fn rows(&self) -> usize {
        usize::from(self.y_pad[0]) + usize::from(self.y_size) + usize::from(self.y_pad[1])
    }
}

impl Loops {
    fn encode(&self, reset: bool, widths: &Widths, to: &mut Writer) -> Result<(), EncodeError> {
        to.put("reset", u64::from(reset), 1)?;
        to.put("uop_begin", u64::from(self.uop_begin), widths.uop)?;
        to.put("uop_end", u64::from(self.uop_end), widths.uop + 1)?;
        to.put("iter_out", u64::from(self.iterations[0]), 14)?;
        to.put("iter_in", u64::from(self.iterations[1]), 14)
    }

    fn decode(widths: &Widths, from: &mut Reader) -> (bool, Loops) {
        let reset = from.take(1) == 1;
        let (uop_begin, uop_end) = (from.take(widths.uop) as u32, from.take(widths.uop + 1) as u32);
        let iterations = [from.take(14) as u16, from.take(14) as u16];
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
    /// An index that does not fit.
    pub fn encode(&self, config: &Config) -> Result<u32, EncodeError> {
        let widths = Widths::of(config);
        let mut to = Writer::default();
        to.put("dst", u64::from(self.dst), widths.acc)?;
        to.put("src", u64::from(self.src), widths.uop_src)?;
        to.put("wgt", u64::from(self.wgt), widths.wgt)?;
        Ok(to.words()[0] as u32)
    }

    /// Decodes a micro-operation of a device.
    pub fn decode(word: u32, config: &Config) -> Uop {
        let widths = Widths::of(config);
        let mut from = Reader::new([u64::from(word), 0]);
        Uop {
            dst: from.take(widths.acc) as u32,
            src: from.take(widths.uop_src) as u32,
            wgt: from.take(widths.wgt) as u32,
        }
    }
}

/// Widths of the fields that depend on the device.
struct Widths {
    uop: u32,
    inp: u32,
    wgt: u32,
    acc: u32,
    /// Field of a micro-operation's source.
    uop_src: u32,
    /// Memory ids and vector operations.
    code: u32,
}

impl Widths {
    fn of(config: &Config) -> Widths {
        let [inp, acc] = [Memory::Inp, Memory::Acc].map(|memory| config.log_depth(memory));
        let first = config.revision() == Revision::First;
        Widths {
            uop: config.log_depth(Memory::Uop),
            inp,
            wgt: config.log_depth(Memory::Wgt),
            acc,
            uop_src: if first { inp } else { inp.max(acc) },
            code: if first { 2 } else { 3 },
        }
    }
}

/// Field whose value does not fit its width.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodeError {
    /// Name of the field.
    pub field: &'static str,
    /// Value.
    pub value: u64,
    /// Width in bits.
    pub width: u32,
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: expected at most {} bits, found {}", self.field, self.width, self.value)
    }
}

impl std::error::Error for EncodeError {}

/// Reason why 128 bits are no instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// Operation code without an operation.
    UnknownOpcode(u64),
    /// Memory id without a memory.
    UnknownMemory(u64),
    /// Code without a vector operation.
    UnknownAluOp(u64),
    /// Bits outside all fields that are set.
    ExtraBits,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecodeError::UnknownOpcode(code) => write!(f, "expected an opcode from 0 to 4, found {code}"),
            DecodeError::UnknownMemory(code) => write!(f, "expected a memory id from 0 to 5, found {code}"),
            DecodeError::UnknownAluOp(code) => write!(f, "expected an ALU operation from 0 to 4, found {code}"),
            DecodeError::ExtraBits => f.write_str("expected zeros outside the fields, found other bits"),
        }
    }
}

impl std::error::Error for DecodeError {}

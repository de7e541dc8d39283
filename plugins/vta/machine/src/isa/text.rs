//! Assembly text: one line per instruction, as `byoc inspect` prints it.

use super::{Alu, AluOp, Gemm, Insn, Loops, Op, Transfer};
use std::fmt;

impl fmt::Display for Insn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.op {
            Op::Load(transfer) => write!(f, "LOAD {transfer}")?,
            Op::Store(transfer) => write!(f, "STORE {transfer}")?,
            Op::Gemm(gemm) => write!(f, "{gemm}")?,
            Op::Alu(alu) => write!(f, "{alu}")?,
            Op::Finish => f.write_str("FINISH")?,
        }
        let flags = [
            ("pop_prev", self.deps.pop_prev),
            ("pop_next", self.deps.pop_next),
            ("push_prev", self.deps.push_prev),
            ("push_next", self.deps.push_next),
        ];
        flags.iter().filter(|(_, set)| *set).try_for_each(|(name, _)| write!(f, " {name}"))
    }
}

impl fmt::Display for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_no_op() {
            return f.write_str("nothing");
        }
        let Transfer { memory, sram_base, dram_base, y_size, x_size, x_stride, y_pad, x_pad } = self;
        write!(f, "{memory}[{sram_base}] dram {dram_base:#x} {y_size}x{x_size} stride {x_stride}")?;
        if (*y_pad, *x_pad) != ([0; 2], [0; 2]) {
            write!(f, " pad {},{} x {},{}", y_pad[0], y_pad[1], x_pad[0], x_pad[1])?;
        }
        Ok(())
    }
}

impl fmt::Display for Loops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "uop {}..{} loops {}x{}", self.uop_begin, self.uop_end, self.iterations[0], self.iterations[1])
    }
}

impl fmt::Display for Gemm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Gemm { reset, loops, dst, src, wgt } = self;
        if *reset {
            return write!(f, "RESET {loops} dst +{},+{}", dst[0], dst[1]);
        }
        let [a, b, c] = [dst, src, wgt].map(|factor| format!("+{},+{}", factor[0], factor[1]));
        write!(f, "GEMM {loops} dst {a} src {b} wgt {c}")
    }
}

impl fmt::Display for Alu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.op {
            AluOp::Min => "MIN",
            AluOp::Max => "MAX",
            AluOp::Add => "ADD",
            AluOp::Shr => "SHR",
            AluOp::Mul => "MUL",
        };
        write!(f, "{name} {} dst +{},+{}", self.loops, self.dst[0], self.dst[1])?;
        if self.use_imm { write!(f, " imm {}", self.imm) } else { write!(f, " src +{},+{}", self.src[0], self.src[1]) }
    }
}

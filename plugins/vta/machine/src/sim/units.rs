//! Instruction semantics.

use super::memory::rows;
use super::{Machine, Mode};
use crate::isa::{Alu, AluOp, Gemm, Loops, Memory, Transfer, Uop};

impl Machine<'_> {
    pub(super) fn load(&mut self, transfer: &Transfer) -> Result<(), String> {
        if transfer.is_no_op() {
            return Ok(());
        }
        let memory = transfer.memory;
        if memory == Memory::Out {
            return Err("expected a load of UOP, WGT, INP or ACC, found OUT".into());
        }
        let has_padding = transfer.x_pad != [0; 2] || transfer.y_pad != [0; 2];
        if self.mode == Mode::Strict && has_padding && matches!(memory, Memory::Wgt | Memory::Uop) {
            return Err(format!(
                "{memory}: expected no padding, because the hardware ignores it, found {:?} in x and {:?} in y",
                transfer.x_pad, transfer.y_pad
            ));
        }
        let (depth, entries) = (self.config.depth(memory), transfer.rows() * transfer.row_length());
        // ACC_8BIT loads write elements of ACC, but their DRAM addresses are in units of OUT elements.
        let depth = if memory == Memory::Acc8 { self.config.depth(Memory::Acc) } else { depth };
        let base = usize::from(transfer.sram_base);
        if base + entries > depth {
            let last_element = base + entries.max(1) - 1;
            return Err(format!("{memory}: expected element indices < {depth}, found {base} to {last_element}"));
        }
        let bytes = self.config.element_bytes(memory);
        let counted_bytes = if memory == Memory::Acc8 { self.config.element_bytes(Memory::Acc) } else { bytes };
        let moved_bytes = u64::from(transfer.x_size) * u64::from(transfer.y_size) * counted_bytes as u64;
        let counter = match memory {
            Memory::Uop => &mut self.counters.uop_load_nbytes,
            Memory::Inp => &mut self.counters.inp_load_nbytes,
            Memory::Wgt => &mut self.counters.wgt_load_nbytes,
            _ => &mut self.counters.acc_load_nbytes,
        };
        *counter += moved_bytes;
        let lanes = self.config.element_bytes(Memory::Out);
        match memory {
            Memory::Uop => self.sram.uop[base..base + entries].fill(0),
            Memory::Inp => self.sram.inp[base * bytes..(base + entries) * bytes].fill(0),
            Memory::Wgt => self.sram.wgt[base * bytes..(base + entries) * bytes].fill(0),
            _ => self.sram.acc[base * lanes..(base + entries) * lanes].fill(0),
        }
        for row in rows(transfer) {
            let (count, start) = (usize::from(transfer.x_size), row.dram as usize * bytes);
            let data = self.dram.read(start, count * bytes)?;
            let read_words =
                || data.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
            match memory {
                Memory::Uop => {
                    self.sram.uop[row.sram..].iter_mut().zip(read_words()).for_each(|(slot, word)| *slot = word)
                }
                Memory::Inp => copy(&mut self.sram.inp[row.sram * bytes..], data),
                Memory::Wgt => copy(&mut self.sram.wgt[row.sram * bytes..], data),
                Memory::Acc8 => {
                    let accumulators = self.sram.acc[row.sram * lanes..].iter_mut();
                    accumulators.zip(data).for_each(|(slot, byte)| *slot = i32::from(*byte as i8));
                }
                _ => {
                    let accumulators = self.sram.acc[row.sram * lanes..].iter_mut();
                    accumulators.zip(read_words()).for_each(|(accumulator, word)| *accumulator = word as i32);
                }
            }
        }
        Ok(())
    }

    pub(super) fn store(&mut self, transfer: &Transfer) -> Result<(), String> {
        if transfer.is_no_op() {
            return Ok(());
        }
        if transfer.memory != Memory::Out {
            return Err(format!("expected a store of OUT, found {}", transfer.memory));
        }
        if transfer.x_pad != [0; 2] || transfer.y_pad != [0; 2] {
            return Err(format!(
                "expected a store without padding, found {:?} in x and {:?} in y",
                transfer.x_pad, transfer.y_pad
            ));
        }
        let (lanes, depth) = (self.config.element_bytes(Memory::Out), self.config.depth(Memory::Out));
        let (base, elements) =
            (usize::from(transfer.sram_base), usize::from(transfer.x_size) * usize::from(transfer.y_size));
        if base + elements > depth {
            let last_element = base + elements.max(1) - 1;
            return Err(format!("OUT: expected element indices < {depth}, found {base} to {last_element}"));
        }
        self.counters.out_store_nbytes += (elements * lanes) as u64;
        for row in rows(transfer) {
            let count = usize::from(transfer.x_size);
            let destination = self.dram.write(row.dram as usize * lanes, count * lanes)?;
            if self.mode == Mode::Functional {
                let source = &self.sram.acc[row.sram * lanes..(row.sram + count) * lanes];
                destination.iter_mut().zip(source).for_each(|(slot, lane)| *slot = *lane as u8);
                continue;
            }
            for (i, element_out) in destination.chunks_exact_mut(lanes).enumerate() {
                let element = row.sram + i;
                let element_in = self.sram.out[element].as_ref();
                let element_in = element_in.ok_or_else(|| {
                    format!("OUT[{element}]: expected the result of a computation, found an unwritten element")
                })?;
                element_out.iter_mut().zip(element_in.iter()).for_each(|(slot, lane)| *slot = *lane as u8);
            }
        }
        Ok(())
    }

    /// Calls `f` with the indices of each step: destination, source, weight.
    fn for_each_step(
        &mut self,
        loops: &Loops,
        [dst, src, wgt]: [[u16; 2]; 3],
        mut f: impl FnMut(&mut Self, [usize; 3]) -> Result<(), String>,
    ) -> Result<(), String> {
        let range = loops.uop_begin as usize..loops.uop_end as usize;
        let depth = self.config.depth(Memory::Uop);
        if range.end > depth {
            return Err(format!(
                "UOP: expected micro-operation indices < {depth}, found {} to {}",
                range.start,
                range.end - 1
            ));
        }
        let uops: Vec<Uop> =
            range.filter_map(|i| self.sram.uop.get(i)).map(|&word| Uop::decode(word, self.config)).collect();
        if uops.is_empty() {
            // Iterations without micro-operations have no steps. They must take no time, because callers bound the time
            // by the number of steps.
            return Ok(());
        }
        let [outer, inner] = loops.iterations.map(u32::from);
        for y in 0..outer {
            for x in 0..inner {
                let step = |factor: [u16; 2]| y * u32::from(factor[0]) + x * u32::from(factor[1]);
                let offsets = [step(dst), step(src), step(wgt)];
                for uop in &uops {
                    let indices = [uop.dst + offsets[0], uop.src + offsets[1], uop.wgt + offsets[2]];
                    f(self, indices.map(|index| index as usize))?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn gemm(&mut self, gemm: &Gemm) -> Result<(), String> {
        let (batch, block) = (self.config.batch(), self.config.block());
        let lanes = batch * block;
        let is_strict = self.mode == Mode::Strict;
        if !gemm.reset {
            self.counters.gemm_counter += gemm.loops.steps();
        }
        let reset = gemm.reset;
        let limits = [Memory::Acc, Memory::Inp, Memory::Wgt].map(|memory| (memory, self.config.depth(memory)));
        self.for_each_step(&gemm.loops, [gemm.dst, gemm.src, gemm.wgt], |machine, indices| {
            let accessed_count = if reset { 1 } else { 3 };
            for (index, (memory, depth)) in indices.iter().zip(&limits).take(accessed_count) {
                if index >= depth {
                    return Err(format!("{memory}: expected element indices < {depth}, found {index}"));
                }
            }
            let acc = &mut machine.sram.acc[indices[0] * lanes..(indices[0] + 1) * lanes];
            if reset {
                acc.fill(0);
                return Ok(());
            }
            let inp = &machine.sram.inp[indices[1] * lanes..(indices[1] + 1) * lanes];
            let wgt = &machine.sram.wgt[indices[2] * block * block..(indices[2] + 1) * block * block];
            for (acc, row) in acc.chunks_exact_mut(block).zip(inp.chunks_exact(block)) {
                for (acc, column) in acc.iter_mut().zip(wgt.chunks_exact(block)) {
                    let products = row.iter().zip(column).map(|(a, b)| i32::from(*a) * i32::from(*b));
                    *acc = acc.wrapping_add(products.fold(0, i32::wrapping_add));
                }
            }
            if is_strict {
                machine.write_out(indices[0], lanes);
            }
            Ok(())
        })
    }

    pub(super) fn alu(&mut self, alu: &Alu) -> Result<(), String> {
        let lanes = self.config.batch() * self.config.block();
        let (depth, is_strict) = (self.config.depth(Memory::Acc), self.mode == Mode::Strict);
        self.counters.alu_counter += alu.loops.steps();
        let Alu { op, use_imm, imm, .. } = *alu;
        self.for_each_step(&alu.loops, [alu.dst, alu.src, [0; 2]], |machine, [dst, src, _]| {
            let last_accessed = if use_imm { dst } else { dst.max(src) };
            if last_accessed >= depth {
                return Err(format!("ACC: expected element indices < {depth}, found {last_accessed}"));
            }
            for lane in 0..lanes {
                let a = machine.sram.acc[dst * lanes + lane];
                let b = if use_imm { i32::from(imm) } else { machine.sram.acc[src * lanes + lane] };
                machine.sram.acc[dst * lanes + lane] = match op {
                    AluOp::Min => a.min(b),
                    AluOp::Max => a.max(b),
                    AluOp::Add => a.wrapping_add(b),
                    AluOp::Mul => a.wrapping_mul(b),
                    AluOp::Shr if is_strict => shift(a, sign_extend_5(b)),
                    AluOp::Shr => shift(a, b),
                };
            }
            if is_strict {
                machine.write_out(dst, lanes);
            }
            Ok(())
        })
    }

    /// Writes the low bytes of an accumulator to the result memory.
    fn write_out(&mut self, element: usize, lanes: usize) {
        let accumulators = &self.sram.acc[element * lanes..(element + 1) * lanes];
        self.sram.out[element] = Some(accumulators.iter().map(|lane| *lane as i8).collect());
    }
}

fn copy(destination: &mut [i8], source: &[u8]) {
    destination.iter_mut().zip(source).for_each(|(slot, byte)| *slot = *byte as i8);
}

/// Shifts right, rounding down; shifts left for a negative amount. Amounts of magnitude 32 or more shift out all bits.
fn shift(value: i32, amount: i32) -> i32 {
    match amount {
        0.. => value >> amount.min(31),
        -31..0 => value << -amount,
        _ => 0,
    }
}

/// Sign-extends the low five bits, as the hardware does for shift amounts.
fn sign_extend_5(amount: i32) -> i32 {
    (amount << 27) >> 27
}

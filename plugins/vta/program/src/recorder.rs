//! Writes a stream: instructions, micro-operations, and the tokens of hand-overs between modules.

use byoc_vta_machine::config::Config;
use byoc_vta_machine::isa::{Deps, EncodeError, Insn, Memory, Module, Op, Transfer, Uop};
use std::collections::HashMap;

/// Stream under construction.
pub(crate) struct Recorder<'a> {
    config: &'a Config,
    /// Address of the micro-operations in DRAM.
    place: usize,
    pub(crate) stream: Vec<Insn>,
    /// All micro-operations of the stream, in the order of their kernels.
    pub(crate) uops: Vec<u32>,
    /// Range of each kernel that the memory of micro-operations holds.
    kernels: HashMap<Vec<u32>, (u32, u32)>,
    /// First free micro-operation of the memory.
    free: usize,
}

impl<'a> Recorder<'a> {
    pub(crate) fn new(config: &'a Config, place: usize) -> Recorder<'a> {
        Recorder { config, place, stream: Vec::new(), uops: Vec::new(), kernels: HashMap::new(), free: 0 }
    }

    /// Appends an instruction that takes these tokens.
    pub(crate) fn push(&mut self, deps: Deps, op: Op) {
        self.stream.push(Insn { deps, op });
    }

    /// Makes the last instruction give a token to the next or to the previous module.
    pub(crate) fn give(&mut self, next: bool) {
        if let Some(last) = self.stream.last_mut() {
            let flag = if next { &mut last.deps.push_next } else { &mut last.deps.push_prev };
            *flag = true;
        }
    }

    pub(crate) fn no_op(&mut self, module: Module, deps: Deps) {
        self.stream.push(Insn::no_op(module, deps));
    }

    /// Returns the range of a kernel in the memory of micro-operations. A kernel that it does not hold is loaded; if it does
    /// not fit behind the others, the memory is filled anew.
    pub(crate) fn kernel(&mut self, uops: &[Uop]) -> Result<(u32, u32), EncodeError> {
        let words = uops.iter().map(|uop| uop.encode(self.config)).collect::<Result<Vec<u32>, _>>()?;
        if let Some(&range) = self.kernels.get(&words) {
            return Ok(range);
        }
        if self.free + words.len() > self.config.uop_entries() {
            self.kernels.clear();
            self.free = 0;
        }
        let transfer = Transfer {
            memory: Memory::Uop,
            sram_base: self.free as u16,
            dram_base: (self.place / 4 + self.uops.len()) as u32,
            y_size: 1,
            x_size: words.len() as u16,
            x_stride: words.len() as u16,
            y_pad: [0; 2],
            x_pad: [0; 2],
        };
        self.push(Deps::default(), Op::Load(transfer));
        let range = (self.free as u32, (self.free + words.len()) as u32);
        self.uops.extend(&words);
        self.free += words.len();
        self.kernels.insert(words, range);
        Ok(range)
    }
}

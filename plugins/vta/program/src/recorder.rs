//! Records a stream: instructions, micro-operations, and the dependency tokens between modules.

use byoc_vta_machine::config::Config;
use byoc_vta_machine::isa::{Deps, EncodeError, Insn, Memory, Module, Op, Transfer, Uop};
use std::collections::HashMap;

/// Stream under construction.
pub(crate) struct Recorder<'a> {
    pub(crate) config: &'a Config,
    /// Index of the micro-operation buffer.
    buffer: u32,
    pub(crate) stream: Vec<Insn>,
    /// Index of the buffer that each instruction accesses; `None` if it accesses no DRAM.
    pub(crate) buffers: Vec<Option<u32>>,
    /// All micro-operations of the stream, in kernel order.
    pub(crate) uops: Vec<u32>,
    /// Range of each kernel in the micro-operation memory.
    kernels: HashMap<Vec<u32>, (u32, u32)>,
    /// Index of the first free entry in the micro-operation memory.
    free_entry: usize,
}

impl<'a> Recorder<'a> {
    pub(crate) fn new(config: &'a Config, buffer: u32) -> Recorder<'a> {
        Recorder {
            config,
            buffer,
            stream: Vec::new(),
            buffers: Vec::new(),
            uops: Vec::new(),
            kernels: HashMap::new(),
            free_entry: 0,
        }
    }

    /// Appends an instruction that has these token flags and accesses no DRAM.
    pub(crate) fn push(&mut self, deps: Deps, op: Op) {
        self.stream.push(Insn { deps, op });
        self.buffers.push(None);
    }

    /// Appends a transfer from or to a buffer.
    pub(crate) fn transfer(&mut self, deps: Deps, op: Op, buffer: u32) {
        self.push(deps, op);
        if let Some(last_buffer) = self.buffers.last_mut() {
            *last_buffer = Some(buffer);
        }
    }

    /// Makes the last instruction push a token to the next or previous module.
    pub(crate) fn push_token(&mut self, to_next: bool) {
        if let Some(last_insn) = self.stream.last_mut() {
            let flag = if to_next { &mut last_insn.deps.push_next } else { &mut last_insn.deps.push_prev };
            *flag = true;
        }
    }

    pub(crate) fn no_op(&mut self, module: Module, deps: Deps) {
        let Insn { deps, op } = Insn::no_op(module, deps);
        self.push(deps, op);
    }

    /// Marks the micro-operation memory as empty.
    pub(crate) fn forget_kernels(&mut self) {
        self.kernels.clear();
        self.free_entry = 0;
    }

    /// Returns the range of a kernel in the micro-operation memory. Loads a kernel that is not there. If the kernel
    /// does not fit into the free entries, the memory is refilled from the start.
    pub(crate) fn kernel(&mut self, uops: &[Uop]) -> Result<(u32, u32), EncodeError> {
        let words = uops.iter().map(|uop| uop.encode(self.config)).collect::<Result<Vec<u32>, _>>()?;
        if let Some(&range) = self.kernels.get(&words) {
            return Ok(range);
        }
        if self.free_entry + words.len() > self.config.uop_entries() {
            self.forget_kernels();
        }
        let transfer = Transfer {
            memory: Memory::Uop,
            sram_base: self.free_entry as u16,
            dram_base: self.uops.len() as u32,
            y_size: 1,
            x_size: words.len() as u16,
            x_stride: words.len() as u16,
            y_pad: [0; 2],
            x_pad: [0; 2],
        };
        self.transfer(Deps::default(), Op::Load(transfer), self.buffer);
        let range = (self.free_entry as u32, (self.free_entry + words.len()) as u32);
        self.uops.extend(&words);
        self.free_entry += words.len();
        self.kernels.insert(words, range);
        Ok(range)
    }
}

//! On-chip memories and DRAM.

use crate::config::Config;
use crate::isa::{Memory, Transfer};

/// DRAM in the address space of the device, from address 0.
#[derive(Clone, Debug, Default)]
pub struct Dram {
    bytes: Vec<u8>,
}

impl Dram {
    /// Creates a memory of `size` zero bytes.
    pub fn new(size: usize) -> Dram {
        Dram { bytes: vec![0; size] }
    }

    /// Returns the bytes of a range.
    ///
    /// # Errors
    /// If the range exceeds the memory.
    pub fn read(&self, start: usize, len: usize) -> Result<&[u8], String> {
        let range = start.checked_add(len).and_then(|end| self.bytes.get(start..end));
        range.ok_or_else(|| self.out_of_range(start, len))
    }

    /// Returns the bytes of a range for writing.
    ///
    /// # Errors
    /// If the range exceeds the memory.
    pub fn write(&mut self, start: usize, len: usize) -> Result<&mut [u8], String> {
        let error = self.out_of_range(start, len);
        start.checked_add(len).and_then(|end| self.bytes.get_mut(start..end)).ok_or(error)
    }

    fn out_of_range(&self, start: usize, len: usize) -> String {
        format!("expected DRAM addresses < {:#x}, found {len} bytes at {start:#x}", self.bytes.len())
    }
}

/// On-chip memories. Activations, weights and results are 8-bit integers, accumulators 32-bit integers.
pub(super) struct Sram {
    pub uop: Vec<u32>,
    pub inp: Vec<i8>,
    pub wgt: Vec<i8>,
    pub acc: Vec<i32>,
    /// Results of computations; `None` for an element that no computation has written.
    pub out: Vec<Option<Box<[i8]>>>,
}

impl Sram {
    pub(super) fn new(config: &Config) -> Sram {
        let bytes = |memory| config.depth(memory) * config.element_bytes(memory);
        Sram {
            uop: vec![0; config.depth(Memory::Uop)],
            inp: vec![0; bytes(Memory::Inp)],
            wgt: vec![0; bytes(Memory::Wgt)],
            acc: vec![0; bytes(Memory::Acc) / 4],
            out: vec![None; config.depth(Memory::Out)],
        }
    }
}

/// Data row of a transfer: indices of its first element in the on-chip memory and in DRAM.
pub(super) struct Row {
    /// Index of the first data element in the on-chip memory.
    pub sram: usize,
    pub dram: u64,
}

/// Returns the data rows of a transfer, without its padding.
pub(super) fn rows(transfer: &Transfer) -> impl Iterator<Item = Row> + use<> {
    let transfer = *transfer;
    let first_entry = usize::from(transfer.sram_base) + usize::from(transfer.y_pad[0]) * transfer.row_length();
    (0..usize::from(transfer.y_size)).map(move |row| Row {
        sram: first_entry + row * transfer.row_length() + usize::from(transfer.x_pad[0]),
        dram: u64::from(transfer.dram_base) + row as u64 * u64::from(transfer.x_stride),
    })
}

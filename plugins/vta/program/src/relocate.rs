//! Relocation: transfer addresses in a stream are relative to buffers until the buffers have addresses.

use byoc_vta_machine::config::Config;
use byoc_vta_machine::isa::{Insn, Op};
use std::fmt;

/// Error for an instruction whose address cannot be made absolute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelocateError {
    /// Index of the instruction.
    pub instruction: usize,
    /// Description with expected and found values.
    pub message: String,
}

impl fmt::Display for RelocateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "instruction {}: {}", self.instruction, self.message)
    }
}

impl std::error::Error for RelocateError {}

/// Adds the buffer addresses to the transfers of a stream.
///
/// # Errors
/// If a buffer does not exist or does not start at a multiple of the element size, a transfer has no buffer, or an
/// address exceeds 32 bits.
pub fn relocate(
    config: &Config,
    stream: &[Insn],
    buffers: &[Option<u32>],
    addresses: &[u64],
) -> Result<Vec<Insn>, RelocateError> {
    let relocate_one = |(instruction, (insn, buffer)): (usize, (&Insn, &Option<u32>))| {
        let fail = |message: String| RelocateError { instruction, message };
        let mut insn = *insn;
        let (Op::Load(transfer) | Op::Store(transfer)) = &mut insn.op else { return Ok(insn) };
        if transfer.is_no_op() {
            return Ok(insn);
        }
        let index = buffer.ok_or_else(|| fail("expected a buffer for the transfer, found none".into()))?;
        let address = addresses
            .get(index as usize)
            .ok_or_else(|| fail(format!("expected buffer indices < {}, found {index}", addresses.len())))?;
        let unit = config.element_bytes(transfer.memory) as u64;
        if !address.is_multiple_of(unit) {
            return Err(fail(format!("buffer {index}: expected an address divisible by {unit}, found {address:#x}")));
        }
        let element = address / unit + u64::from(transfer.dram_base);
        transfer.dram_base = u32::try_from(element)
            .map_err(|_| fail(format!("expected a DRAM element index of at most 32 bits, found {element:#x}")))?;
        Ok(insn)
    };
    stream.iter().zip(buffers).enumerate().map(relocate_one).collect()
}

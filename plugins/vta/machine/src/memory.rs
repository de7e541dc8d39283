//! On-chip memories.

use std::fmt;

/// On-chip memory, as encoded in an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Memory {
    /// Micro-operations.
    Uop,
    /// Weights.
    Wgt,
    /// Activations.
    Inp,
    /// Accumulators.
    Acc,
    /// Results.
    Out,
    /// Accumulators that are loaded from 8-bit integers in DRAM.
    Acc8,
}

impl Memory {
    pub(crate) const ALL: [Memory; 6] = [Memory::Uop, Memory::Wgt, Memory::Inp, Memory::Acc, Memory::Out, Memory::Acc8];
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Memory::Uop => "UOP",
            Memory::Wgt => "WGT",
            Memory::Inp => "INP",
            Memory::Acc => "ACC",
            Memory::Out => "OUT",
            Memory::Acc8 => "ACC_8BIT",
        })
    }
}

//! Compiled region: kernels, launch list, buffers and packed constants.
//!
//! The region is plain data. The loader creates device objects from it, and a run enqueues the launches in order.

use byoc_loops::packing::Packing;
use byoc_plugin_api::{DType, Signature};
use serde::{Deserialize, Serialize};

/// Alignment of arena buffers in bytes. Devices that require a larger sub-buffer alignment are not supported.
pub const ALIGNMENT: u64 = 4096;

/// Memory that a kernel accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// Region input, by index.
    Input(usize),
    /// Region output, by index.
    Output(usize),
    /// Packed constant, by index.
    Constant(usize),
    /// Buffer in the arena, by index.
    Work(usize),
}

/// Region input or output, dense and row-major.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Edge {
    pub shape: Vec<usize>,
    /// Size of an element in bytes.
    pub element: usize,
}

impl Edge {
    /// Returns the size in bytes; `None` if it overflows.
    pub fn bytes(&self) -> Option<u64> {
        self.shape.iter().try_fold(self.element as u64, |bytes, &dim| bytes.checked_mul(dim as u64))
    }
}

/// Kernel function in the program source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kernel {
    /// Name in the source.
    pub name: String,
    /// Number of arguments, all of which are buffers.
    pub arguments: usize,
    /// Work-group size along each dimension.
    pub local: [usize; 3],
}

/// Kernel launch. Launches execute in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Launch {
    /// Names of the operators that the launch computes, for traces.
    pub name: String,
    /// Index of the kernel.
    pub kernel: usize,
    /// Kernel arguments.
    pub arguments: Vec<Place>,
    /// Number of work-items along each dimension, a multiple of the kernel's work-group size.
    pub global: [usize; 3],
}

/// Buffer in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Buffer {
    /// Offset in the arena in bytes.
    pub offset: u64,
    /// Size in bytes.
    pub bytes: u64,
}

/// Constant in the layout that kernels read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackedConstant {
    /// Index of the region's constant; `None` for zeros.
    pub constant: Option<usize>,
    /// Size of an element in bytes.
    pub element: usize,
    /// Element order.
    pub packing: Packing,
}

impl PackedConstant {
    /// Returns the size in bytes; `None` if it overflows.
    pub fn bytes(&self) -> Option<u64> {
        u64::try_from(self.packing.elements()?).ok()?.checked_mul(self.element as u64)
    }
}

/// Compiled region.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// Symbol of the region.
    pub symbol: String,
    /// Types of the region's inputs and outputs.
    pub signature: Signature,
    pub inputs: Vec<Edge>,
    pub outputs: Vec<Edge>,
    /// Number of elements and element type of each region constant.
    pub constants: Vec<(usize, DType)>,
    /// Packed constants that kernels read.
    pub packed: Vec<PackedConstant>,
    /// Buffers for intermediate results.
    pub buffers: Vec<Buffer>,
    /// Size of the arena in bytes.
    pub arena: u64,
    pub kernels: Vec<Kernel>,
    /// Kernel launches, in execution order.
    pub launches: Vec<Launch>,
    /// OpenCL C source of all kernels.
    pub source: String,
    /// Name of the device for which the kernels were tuned.
    pub device: String,
    /// Value of option `device`: selector of the default device for runs.
    pub selector: String,
}

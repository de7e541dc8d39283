//! Compiled region: kernels, the list of their launches, buffers and packed constants.
//!
//! Everything is data. The loader creates device objects from it, and a run walks through the list of launches.

use crate::pack::Packing;
use byoc_plugin_api::{DType, Signature};
use serde::{Deserialize, Serialize};

/// Alignment of buffers in the arena in bytes. Devices require at most this much of a sub-buffer.
pub const ALIGNMENT: u64 = 4096;

/// Memory that a kernel accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// Input of the region, by index.
    Input(usize),
    /// Output of the region, by index.
    Output(usize),
    /// Packed constant, by index.
    Constant(usize),
    /// Buffer in the arena, by index.
    Work(usize),
}

/// Tensor that enters or leaves the region, dense and row-major.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Edge {
    /// Dimensions.
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

/// Function of the program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kernel {
    /// Name in the source.
    pub name: String,
    /// Number of arguments, which all are buffers.
    pub arguments: usize,
    /// Number of work-items of a work-group along each dimension.
    pub local: [usize; 3],
}

/// Run of a kernel. Launches run one after another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Launch {
    /// Operators that the launch computes, for traces.
    pub name: String,
    /// Index of the kernel.
    pub kernel: usize,
    /// Arguments of the kernel.
    pub arguments: Vec<Place>,
    /// Number of work-items along each dimension, multiples of the kernel's work-group.
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

/// Constant in the layout in which kernels read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackedConstant {
    /// Index of the region's constant; `None` for zeros.
    pub constant: Option<usize>,
    /// Size of an element in bytes.
    pub element: usize,
    /// Order of the elements.
    pub packing: Packing,
}

impl PackedConstant {
    /// Returns the size in bytes; `None` if it overflows.
    pub fn bytes(&self) -> Option<u64> {
        self.packing.elements()?.checked_mul(self.element as u64)
    }
}

/// Compiled region.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// Symbol of the region.
    pub symbol: String,
    /// Types of the region's tensors.
    pub signature: Signature,
    /// Inputs.
    pub inputs: Vec<Edge>,
    /// Outputs.
    pub outputs: Vec<Edge>,
    /// Size and element type of each of the region's constants.
    pub constants: Vec<(usize, DType)>,
    /// Constants that kernels read.
    pub packed: Vec<PackedConstant>,
    /// Buffers of intermediate results.
    pub buffers: Vec<Buffer>,
    /// Size of the arena in bytes.
    pub arena: u64,
    /// Functions.
    pub kernels: Vec<Kernel>,
    /// Runs of the functions, in order.
    pub launches: Vec<Launch>,
    /// OpenCL C with all functions.
    pub source: String,
    /// Name of the device that the kernels were tuned for.
    pub device: String,
    /// Device to run on: the value of the option `device`.
    pub selector: String,
}

//! Ten convolutions of ResNet-18, C2 to C11, with tiles tuned on hardware.

use byoc_vta_machine::isa::AluOp;
use byoc_vta_program::layer::{Conv, Form, Place, Step};
use byoc_vta_program::tile::{Threads, Tile};

/// Shape of a convolution of square images, in blocks of 16 channels.
pub struct Shape {
    pub size: usize,
    pub inputs: usize,
    pub outputs: usize,
    pub kernel: usize,
    pub stride: usize,
}

const fn shape([size, inputs, outputs, kernel, stride]: [usize; 5]) -> Shape {
    Shape { size, inputs, outputs, kernel, stride }
}

const fn tile([rows, columns, outputs]: [usize; 3], threads: Threads) -> Tile {
    Tile { size: [rows, columns], inputs: 1, outputs, threads }
}

/// Name, shape and tuned tile of each convolution.
pub const CONVOLUTIONS: [(&str, Shape, Tile); 10] = [
    ("C2", shape([56, 4, 4, 3, 1]), tile([8, 56, 2], Threads::OverOutputs)),
    ("C3", shape([56, 4, 8, 3, 2]), tile([7, 28, 4], Threads::OverOutputs)),
    ("C4", shape([56, 4, 8, 1, 2]), tile([7, 28, 4], Threads::OverRows)),
    ("C5", shape([28, 8, 8, 3, 1]), tile([14, 28, 2], Threads::OverRows)),
    ("C6", shape([28, 8, 16, 3, 2]), tile([14, 14, 4], Threads::OverOutputs)),
    ("C7", shape([28, 8, 16, 1, 2]), tile([7, 14, 8], Threads::OverOutputs)),
    ("C8", shape([14, 16, 16, 3, 1]), tile([14, 14, 4], Threads::OverOutputs)),
    ("C9", shape([14, 16, 32, 3, 2]), tile([7, 7, 16], Threads::OverOutputs)),
    ("C10", shape([14, 16, 32, 1, 2]), tile([7, 7, 16], Threads::OverOutputs)),
    ("C11", shape([7, 32, 32, 3, 1]), tile([7, 7, 16], Threads::OverOutputs)),
];

impl Shape {
    /// Returns the convolution, followed by a shift and bounds, with the given locations of data, weights and result.
    pub fn conv(&self, [data, weight, result]: [Place; 3]) -> Conv {
        let pad = self.kernel / 2;
        Conv {
            batch: 1,
            groups: 1,
            inputs: self.inputs,
            outputs: self.outputs,
            size: [self.size; 2],
            kernel: [self.kernel; 2],
            strides: [self.stride; 2],
            pads: [[pad; 2]; 2],
            data,
            weight,
            steps: [(AluOp::Shr, 8), (AluOp::Max, -127), (AluOp::Min, 127)]
                .map(|(op, imm)| Step::Immediate(op, imm))
                .to_vec(),
            result,
            form: Form::Bytes,
        }
    }
}

//! Layers in device units: channel blocks.
//!
//! Tensors are packed: activations and results as (batch blocks, channel blocks, rows, columns), weights as (output
//! channel blocks, input channel blocks of the group, rows, columns), vectors as one accumulator element per output
//! channel block.

use byoc_vta_machine::config::Config;
use byoc_vta_machine::isa::{AluOp, Memory};

/// Location of a tensor in memory that host and device share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index of the buffer.
    pub buffer: u32,
    /// Offset in the buffer in bytes.
    pub offset: usize,
}

/// Operation of the vector unit on the accumulators of a tile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Operation with an immediate operand.
    Immediate(AluOp, i16),
    /// Operation with a vector: one operand per output channel.
    Vector(AluOp, Place),
    /// Addition of an int8 tensor with the dimensions of the result, after `steps` have been applied to its elements.
    AddTensor {
        /// Location of the tensor.
        place: Place,
        /// Operations on the elements of the tensor.
        steps: Vec<(AluOp, i16)>,
    },
}

/// Memory format of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// int8: the low byte of each accumulator.
    Bytes,
    /// int32: four consecutive byte tensors, from the low byte to the high byte.
    Planes,
}

impl Form {
    /// Returns the number of bytes per element.
    pub fn bytes(self) -> usize {
        if self == Form::Bytes { 1 } else { 4 }
    }
}

/// Convolution of int8 tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conv {
    /// Number of batch blocks.
    pub batch: usize,
    /// Number of groups.
    pub groups: usize,
    /// Number of input channel blocks per group.
    pub inputs: usize,
    /// Number of output channel blocks per group.
    pub outputs: usize,
    /// Number of rows and columns of the data.
    pub size: [usize; 2],
    /// Number of rows and columns of a kernel.
    pub kernel: [usize; 2],
    /// Row stride and column stride.
    pub strides: [usize; 2],
    /// Number of zero rows above and below, and of zero columns on the left and on the right.
    pub pads: [[usize; 2]; 2],
    /// Location of the activations.
    pub data: Place,
    /// Location of the weights.
    pub weight: Place,
    /// Operations on the accumulators.
    pub steps: Vec<Step>,
    /// Location of the result.
    pub result: Place,
    /// Memory format of the result.
    pub form: Form,
}

/// Max pooling of an int8 tensor. Padding is ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Number of batch blocks times number of channel blocks.
    pub images: usize,
    /// Number of rows and columns of the data.
    pub size: [usize; 2],
    /// Number of rows and columns of a window.
    pub kernel: [usize; 2],
    /// Row stride and column stride.
    pub strides: [usize; 2],
    /// Number of padding rows above and of padding columns on the left of the data.
    pub pads: [usize; 2],
    /// Number of rows and columns of the result.
    pub results: [usize; 2],
    /// Location of the activations.
    pub data: Place,
    /// Operations on the maxima.
    pub steps: Vec<Step>,
    /// Location of the int8 result.
    pub result: Place,
}

/// Operations on each element of an int8 tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elementwise {
    /// Number of device activation elements.
    pub elements: usize,
    /// Location of the tensor.
    pub data: Place,
    /// Operations, none of which has a vector operand.
    pub steps: Vec<Step>,
    /// Location of the int8 result.
    pub result: Place,
}

/// Layer of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layer {
    /// Convolution. A dense layer is a convolution with one tap.
    Conv(Conv),
    /// Pooling.
    Pool(Pool),
    /// Elementwise operations.
    Elementwise(Elementwise),
}

impl Conv {
    /// Returns the number of result rows and columns; `None` if the padded data is smaller than the kernel.
    pub fn result(&self) -> Option<[usize; 2]> {
        let result_size = |axis: usize| {
            let padded_size = self.size[axis] + self.pads[axis][0] + self.pads[axis][1];
            Some(padded_size.checked_sub(self.kernel[axis])? / self.strides[axis] + 1)
        };
        Some([result_size(0)?, result_size(1)?])
    }

    /// Returns the number of result elements.
    pub fn element_count(&self) -> usize {
        let [rows, columns] = self.result().unwrap_or_default();
        self.batch * self.groups * self.outputs * rows * columns
    }

    /// Returns the number of matrix unit steps.
    pub fn gemm_steps(&self) -> usize {
        self.element_count() * self.inputs * self.kernel[0] * self.kernel[1]
    }
}

impl Layer {
    /// Returns the operations on the accumulators.
    pub fn steps(&self) -> &[Step] {
        match self {
            Layer::Conv(conv) => &conv.steps,
            Layer::Pool(pool) => &pool.steps,
            Layer::Elementwise(elementwise) => &elementwise.steps,
        }
    }

    /// Returns the number of tensors that [`Step::AddTensor`] adds.
    pub(crate) fn added_tensors(&self) -> usize {
        self.steps().iter().filter(|step| matches!(step, Step::AddTensor { .. })).count()
    }

    /// Returns the number of vector unit operations per result.
    pub(crate) fn alu_steps(&self) -> usize {
        let steps_of = |step: &Step| match step {
            Step::Immediate(..) | Step::Vector(..) => 1,
            Step::AddTensor { steps, .. } => steps.len() + 1,
        };
        self.steps().iter().map(steps_of).sum()
    }

    /// Returns the size of the result in bytes.
    pub fn result_bytes(&self, config: &Config) -> usize {
        let element = config.element_bytes(Memory::Out);
        match self {
            Layer::Conv(conv) => conv.element_count() * element * conv.form.bytes(),
            Layer::Pool(pool) => pool.images * pool.results[0] * pool.results[1] * element,
            Layer::Elementwise(elementwise) => elementwise.elements * element,
        }
    }

    /// Returns the layer with all tensor locations reset. Layers that are then equal share a tiling.
    pub fn without_places(&self) -> Layer {
        let empty_place = Place { buffer: 0, offset: 0 };
        let mut layer = self.clone();
        let steps = match &mut layer {
            Layer::Conv(conv) => {
                (conv.data, conv.weight, conv.result) = (empty_place, empty_place, empty_place);
                &mut conv.steps
            }
            Layer::Pool(pool) => {
                (pool.data, pool.result) = (empty_place, empty_place);
                &mut pool.steps
            }
            Layer::Elementwise(elementwise) => {
                (elementwise.data, elementwise.result) = (empty_place, empty_place);
                &mut elementwise.steps
            }
        };
        for step in steps {
            match step {
                Step::Vector(_, address) | Step::AddTensor { place: address, .. } => *address = empty_place,
                Step::Immediate(..) => {}
            }
        }
        layer
    }
}

//! Layers in the units of the device: blocks of channels.
//!
//! Tensors are packed: activations and results as (blocks of batch, blocks of channels, rows, columns), weights as
//! (blocks of output channels, blocks of input channels of the group, rows, columns), vectors as one accumulator
//! element per block of output channels.

use byoc_vta_machine::config::Config;
use byoc_vta_machine::isa::{AluOp, Memory};

/// Place of a tensor in the memory that host and device share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of the buffer.
    pub buffer: u32,
    /// Offset in the buffer in bytes.
    pub offset: usize,
}

/// Operation of the vector unit on the accumulators of a tile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Operation with an immediate.
    Immediate(AluOp, i16),
    /// Operation with a vector: a number per output channel.
    Vector(AluOp, Place),
    /// Addition of an int8 tensor with the dimensions of the result, after operations on its elements.
    AddTensor {
        /// Tensor.
        place: Place,
        /// Operations on the elements of the tensor.
        steps: Vec<(AluOp, i16)>,
    },
}

/// Form of a result in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// int8: the low byte of each accumulator.
    Bytes,
    /// int32: four tensors of bytes, one after another, from the low byte to the high one.
    Planes,
}

impl Form {
    /// Returns the number of bytes of an element.
    pub fn bytes(self) -> usize {
        if self == Form::Bytes { 1 } else { 4 }
    }
}

/// Convolution of int8 tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conv {
    /// Blocks of the batch.
    pub batch: usize,
    /// Number of groups.
    pub groups: usize,
    /// Blocks of input channels of a group.
    pub inputs: usize,
    /// Blocks of output channels of a group.
    pub outputs: usize,
    /// Rows and columns of the data.
    pub size: [usize; 2],
    /// Rows and columns of a kernel.
    pub kernel: [usize; 2],
    /// Strides in rows and columns.
    pub strides: [usize; 2],
    /// Rows of zeros above and below, columns of zeros on the left and on the right.
    pub pads: [[usize; 2]; 2],
    /// Activations.
    pub data: Place,
    /// Weights.
    pub weight: Place,
    /// Operations on the sums.
    pub steps: Vec<Step>,
    /// Result.
    pub result: Place,
    /// Form of the result.
    pub form: Form,
}

/// Maximum over windows of an int8 tensor, without padding values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Blocks of the batch times blocks of channels.
    pub images: usize,
    /// Rows and columns of the data.
    pub size: [usize; 2],
    /// Rows and columns of a window.
    pub kernel: [usize; 2],
    /// Strides in rows and columns.
    pub strides: [usize; 2],
    /// Rows above and columns on the left of the data that windows may cover.
    pub pads: [usize; 2],
    /// Rows and columns of the result.
    pub results: [usize; 2],
    /// Activations.
    pub data: Place,
    /// Operations on the maxima.
    pub steps: Vec<Step>,
    /// Result, in int8.
    pub result: Place,
}

/// Operations on each element of an int8 tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elementwise {
    /// Number of activation elements of the device.
    pub elements: usize,
    /// Tensor.
    pub data: Place,
    /// Operations, without vectors.
    pub steps: Vec<Step>,
    /// Result, in int8.
    pub result: Place,
}

/// Layer of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layer {
    /// Convolution; a dense layer is one of a kernel with one tap.
    Conv(Conv),
    /// Pooling.
    Pool(Pool),
    /// Elementwise operations.
    Elementwise(Elementwise),
}

impl Conv {
    /// Returns the rows and columns of the result; `None` if the padded data is smaller than the kernel.
    pub fn result(&self) -> Option<[usize; 2]> {
        let along = |axis: usize| {
            let padded = self.size[axis] + self.pads[axis][0] + self.pads[axis][1];
            Some(padded.checked_sub(self.kernel[axis])? / self.strides[axis] + 1)
        };
        Some([along(0)?, along(1)?])
    }

    /// Returns the number of elements of the result.
    pub fn result_elements(&self) -> usize {
        let [rows, columns] = self.result().unwrap_or_default();
        self.batch * self.groups * self.outputs * rows * columns
    }

    /// Returns the number of steps of the matrix unit.
    pub fn gemm_steps(&self) -> usize {
        self.result_elements() * self.inputs * self.kernel[0] * self.kernel[1]
    }
}

impl Layer {
    /// Returns the operations on the accumulators.
    pub fn steps(&self) -> &[Step] {
        match self {
            Layer::Conv(conv) => &conv.steps,
            Layer::Pool(pool) => &pool.steps,
            Layer::Elementwise(each) => &each.steps,
        }
    }

    /// Returns the number of tensors that [`Step::AddTensor`] adds.
    pub(crate) fn added_tensors(&self) -> usize {
        self.steps().iter().filter(|step| matches!(step, Step::AddTensor { .. })).count()
    }

    /// Returns the number of operations of the vector unit on each result.
    pub(crate) fn alu_steps(&self) -> usize {
        let each = |step: &Step| match step {
            Step::Immediate(..) | Step::Vector(..) => 1,
            Step::AddTensor { steps, .. } => steps.len() + 1,
        };
        self.steps().iter().map(each).sum()
    }

    /// Returns the bytes of the result.
    pub fn result_bytes(&self, config: &Config) -> usize {
        let element = config.element_bytes(Memory::Out);
        match self {
            Layer::Conv(conv) => conv.result_elements() * element * conv.form.bytes(),
            Layer::Pool(pool) => pool.images * pool.results[0] * pool.results[1] * element,
            Layer::Elementwise(each) => each.elements * element,
        }
    }

    /// Returns the layer with all tensors in one place: layers that are then equal have one tiling.
    pub fn without_places(&self) -> Layer {
        let nowhere = Place { buffer: 0, offset: 0 };
        let mut layer = self.clone();
        let steps = match &mut layer {
            Layer::Conv(conv) => {
                (conv.data, conv.weight, conv.result) = (nowhere, nowhere, nowhere);
                &mut conv.steps
            }
            Layer::Pool(pool) => {
                (pool.data, pool.result) = (nowhere, nowhere);
                &mut pool.steps
            }
            Layer::Elementwise(each) => {
                (each.data, each.result) = (nowhere, nowhere);
                &mut each.steps
            }
        };
        for step in steps {
            match step {
                Step::Vector(_, place) | Step::AddTensor { place, .. } => *place = nowhere,
                Step::Immediate(..) => {}
            }
        }
        layer
    }
}

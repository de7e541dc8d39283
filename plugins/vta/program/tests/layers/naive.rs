//! Reference implementation of the layers, element by element.

use super::memory::Memory;
use byoc_vta_machine::config::Config;
use byoc_vta_machine::isa::AluOp;
use byoc_vta_program::layer::{Conv, Form, Layer, Place, Pool, Step};

struct Naive<'a> {
    config: &'a Config,
    memory: &'a Memory,
}

/// Computes the result bytes of a layer.
pub fn evaluate(config: &Config, layer: &Layer, memory: &Memory) -> Vec<u8> {
    let naive = Naive { config, memory };
    let lanes = config.batch() * config.block();
    let (values, form): (Vec<i32>, Form) = match layer {
        Layer::Conv(conv) => {
            let count = conv.element_count() * lanes;
            ((0..count).map(|index| naive.conv(conv, index)).collect(), conv.form)
        }
        Layer::Pool(pool) => {
            let count = pool.images * pool.results[0] * pool.results[1] * lanes;
            ((0..count).map(|index| naive.pool(pool, index)).collect(), Form::Bytes)
        }
        Layer::Elementwise(elementwise) => {
            let count = elementwise.elements * lanes;
            let value = |index| naive.apply(&elementwise.steps, naive.byte(elementwise.data, index), index, 0);
            ((0..count).map(value).collect(), Form::Bytes)
        }
    };
    (0..form.bytes()).flat_map(|plane| values.iter().map(move |value| (value >> (8 * plane)) as u8)).collect()
}

impl Naive<'_> {
    fn byte(&self, place: Place, index: usize) -> i32 {
        i32::from(self.memory.buffers[place.buffer as usize][place.offset + index] as i8)
    }

    fn read_int32(&self, place: Place, index: usize) -> i32 {
        let bytes = &self.memory.buffers[place.buffer as usize][place.offset + 4 * index..][..4];
        i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    /// Applies operations to element `index` of a result; `lane` is the index of its output channel in a vector.
    fn apply(&self, steps: &[Step], mut value: i32, index: usize, lane: usize) -> i32 {
        for step in steps {
            value = match step {
                Step::Immediate(op, imm) => alu(*op, value, i32::from(*imm)),
                Step::Vector(op, place) => alu(*op, value, self.read_int32(*place, lane)),
                Step::AddTensor { place, steps } => {
                    let addend =
                        steps.iter().fold(self.byte(*place, index), |v, (op, imm)| alu(*op, v, i32::from(*imm)));
                    value.wrapping_add(addend)
                }
            };
        }
        value
    }

    fn conv(&self, layer: &Conv, index: usize) -> i32 {
        let (batch, block) = (self.config.batch(), self.config.block());
        let [rows, columns] = layer.result().unwrap();
        let [height, width] = layer.size;
        let (lane, element) = (index % (batch * block), index / (batch * block));
        let (row_of_batch, channel) = (lane / block, lane % block);
        let (x, y) = (element % columns, element / columns % rows);
        let outputs = layer.groups * layer.outputs;
        let (output, n) = (element / columns / rows % outputs, element / columns / rows / outputs);
        let group = output / layer.outputs;
        let mut sum = 0i32;
        for input in 0..layer.inputs {
            for v in 0..layer.kernel[0] {
                for u in 0..layer.kernel[1] {
                    let (i, j) = (y * layer.strides[0] + v, x * layer.strides[1] + u);
                    let (Some(i), Some(j)) = (i.checked_sub(layer.pads[0][0]), j.checked_sub(layer.pads[1][0])) else {
                        continue;
                    };
                    if i >= height || j >= width {
                        continue;
                    }
                    let image = (n * layer.groups + group) * layer.inputs + input;
                    let data = ((image * height + i) * width + j) * batch + row_of_batch;
                    let tap = ((output * layer.inputs + input) * layer.kernel[0] + v) * layer.kernel[1] + u;
                    for k in 0..block {
                        let weight = self.byte(layer.weight, (tap * block + channel) * block + k);
                        sum += self.byte(layer.data, data * block + k) * weight;
                    }
                }
            }
        }
        self.apply(&layer.steps, sum, index, output * batch * block + lane)
    }

    fn pool(&self, layer: &Pool, index: usize) -> i32 {
        let lanes = self.config.batch() * self.config.block();
        let (lane, element) = (index % lanes, index / lanes);
        let [rows, columns] = layer.results;
        let (x, y, image) = (element % columns, element / columns % rows, element / columns / rows);
        let mut max = -128;
        for v in 0..layer.kernel[0] {
            for u in 0..layer.kernel[1] {
                let row = (y * layer.strides[0] + v).checked_sub(layer.pads[0]).filter(|i| *i < layer.size[0]);
                let column = (x * layer.strides[1] + u).checked_sub(layer.pads[1]).filter(|j| *j < layer.size[1]);
                if let (Some(i), Some(j)) = (row, column) {
                    let data = ((image * layer.size[0] + i) * layer.size[1] + j) * lanes + lane;
                    max = max.max(self.byte(layer.data, data));
                }
            }
        }
        self.apply(&layer.steps, max, index, 0)
    }
}

fn alu(op: AluOp, a: i32, b: i32) -> i32 {
    match op {
        AluOp::Min => a.min(b),
        AluOp::Max => a.max(b),
        AluOp::Add => a.wrapping_add(b),
        AluOp::Mul => a.wrapping_mul(b),
        AluOp::Shr if b < 0 => a.wrapping_shl(-b as u32),
        AluOp::Shr => a >> b,
    }
}

//! Seeds: streams of small layers, emitted by `byoc-vta-program`.

use super::input::Input;
use super::{READ_ONLY_RANGE, UOP_ADDRESS, WRITABLE_RANGE};
use byoc_vta_machine::isa::{AluOp, Memory};
use byoc_vta_program::emit::{Auxiliary, Runs, program};
use byoc_vta_program::layer::{Conv, Elementwise, Form, Layer, Place, Pool, Step};
use byoc_vta_program::relocate::relocate;
use byoc_vta_program::search::fastest;

/// Device variants: large and small memories, both revisions, no byte loads, a batch, few micro-operations.
const DEVICES: [[u8; 2]; 6] = [[0x83, 0], [0x43, 0xff], [0x0a, 0xff], [0x22, 0xff], [0x06, 0xff], [0x51, 0xff]];

/// Addresses of the buffers: micro-operations, the identity matrix, activations, weights, vectors, a tensor between
/// layers, the result.
const ADDRESSES: [u64; 7] = [
    UOP_ADDRESS as u64,
    READ_ONLY_RANGE.start as u64,
    READ_ONLY_RANGE.start as u64 + 0x1000,
    READ_ONLY_RANGE.start as u64 + 0x3000,
    READ_ONLY_RANGE.start as u64 + 0x8000,
    WRITABLE_RANGE.start as u64,
    WRITABLE_RANGE.start as u64 + 0x1000,
];

const DATA: Place = Place { buffer: 2, offset: 0 };
const WEIGHTS: Place = Place { buffer: 3, offset: 0 };
const VECTOR: Place = Place { buffer: 4, offset: 0 };
const INTERMEDIATE: Place = Place { buffer: 5, offset: 0 };
const RESULT: Place = Place { buffer: 6, offset: 0 };

pub fn seeds() -> Vec<Vec<u8>> {
    DEVICES.iter().flat_map(|device| networks().map(|layers| seed(*device, &layers))).collect()
}

/// Returns the instruction stream for layers with their fastest tilings.
fn seed(device: [u8; 2], layers: &[Layer]) -> Vec<u8> {
    let mut input = Input { device, ..Input::default() };
    let config = input.config();
    let with_fastest_tile = |layer: &Layer| {
        (layer.clone(), fastest(&config, layer).expect("expected a tiling that fits the device, found none").0)
    };
    let layers: Vec<_> = layers.iter().map(with_fastest_tile).collect();
    let program =
        program(&config, &layers, Auxiliary { uops: 0, identity: 1 }, Runs::Whole).expect("cannot generate the stream");
    let stream = relocate(&config, &program.stream, &program.buffers, &ADDRESSES).expect("cannot relocate the stream");
    input.words = stream.iter().map(|insn| insn.encode(&config).expect("cannot encode the instruction")).collect();
    assert!(program.uops.len() < 256, "expected fewer than 256 micro-operations, found {}", program.uops.len());
    input.uops = program.uops;
    // A tensor must not reach into the next buffer: the checker would find a race, and reject the seed.
    let activation = config.element_bytes(Memory::Inp);
    assert!(MAX_ELEMENTS * activation <= 0x1000, "expected elements of at most 64 bytes, found {activation}");
    input.to_bytes()
}

/// Maximum number of elements per seed tensor.
const MAX_ELEMENTS: usize = 64;

fn networks() -> [Vec<Layer>; 4] {
    let clamp = |low| [(AluOp::Max, low), (AluOp::Min, 127)].map(|(op, imm)| Step::Immediate(op, imm));
    let bias_and_shift = [Step::Vector(AluOp::Add, VECTOR), Step::Immediate(AluOp::Shr, 8)];
    let first_conv = conv([5, 2, 2, 3, 1], DATA, INTERMEDIATE, [&bias_and_shift[..], &clamp(0)].concat(), Form::Bytes);
    let add = Step::AddTensor { place: INTERMEDIATE, steps: vec![(AluOp::Shr, -1), (AluOp::Shr, 2)] };
    let sum =
        conv([5, 2, 2, 1, 1], INTERMEDIATE, RESULT, [vec![add.clone()], clamp(-128).to_vec()].concat(), Form::Bytes);
    let planes = conv([4, 1, 1, 1, 2], DATA, RESULT, Vec::new(), Form::Planes);
    let pool = Layer::Pool(Pool {
        images: 2,
        size: [5; 2],
        kernel: [3; 2],
        strides: [2; 2],
        pads: [1; 2],
        results: [3; 2],
        data: INTERMEDIATE,
        steps: Vec::new(),
        result: RESULT,
    });
    let elementwise = |data, result, step| {
        let steps = [&[step][..], &clamp(-128)].concat();
        Layer::Elementwise(Elementwise { elements: 40, data, steps, result })
    };
    let shifted_left = elementwise(DATA, INTERMEDIATE, Step::Immediate(AluOp::Shr, -2));
    [
        vec![first_conv.clone(), sum],
        vec![first_conv, pool],
        vec![planes],
        vec![shifted_left, elementwise(DATA, RESULT, add)],
    ]
}

fn conv(
    [size, inputs, outputs, kernel, stride]: [usize; 5],
    data: Place,
    result: Place,
    steps: Vec<Step>,
    form: Form,
) -> Layer {
    Layer::Conv(Conv {
        batch: 1,
        groups: 1,
        inputs,
        outputs,
        size: [size; 2],
        kernel: [kernel; 2],
        strides: [stride; 2],
        pads: [[kernel / 2; 2]; 2],
        data,
        weight: WEIGHTS,
        steps,
        result,
        form,
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Case, check};
    use super::*;
    use byoc_vta_machine::isa::Insn;

    #[test]
    fn checker_accepts_the_seeds() {
        for seed in seeds() {
            let input = Input::parse(&seed);
            let config = input.config();
            let decode = |words: &[u64; 2]| Insn::decode(*words, &config).unwrap();
            let stream: Vec<Insn> = input.words.iter().map(decode).collect();
            let case = Case { config: config.clone(), uops: &input.uops, stream };
            assert_eq!(check(&config, &case.stream, &case.segments()), Ok(()));
        }
    }
}

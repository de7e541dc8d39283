//! Tests random layers with random tilings: the simulated streams must match the reference, bit for bit, in every mode
//! and under every schedule, and the checker must accept the streams.

mod memory;
mod naive;
mod schedules;

use byoc_vta_machine::config::Config;
use byoc_vta_machine::isa::AluOp;
use byoc_vta_program::emit::EmitError;
use byoc_vta_program::layer::{Conv, Elementwise, Form, Layer, Place, Pool, Step};
use byoc_vta_program::tile::{Threads, Tile};
use memory::{Memory, simulate};
use proptest::prelude::*;

/// Returns a device with memories that hold only small tiles.
fn small_device(log_block: u32) -> Config {
    Config {
        log_block,
        log_uop_buff_size: 11,
        log_inp_buff_size: 7 + log_block,
        log_wgt_buff_size: 5 + 2 * log_block,
        log_acc_buff_size: 8 + log_block,
        ..Config::default()
    }
}

/// Returns one of several devices, with or without byte loads into accumulators.
fn device(device_index: usize) -> Config {
    let config = match device_index % 3 {
        0 => Config::default(),
        1 => small_device(4),
        _ => Config { log_batch: 1, ..small_device(3) },
    };
    Config { acc_8bit: Some(device_index < 3), ..config }
}

const THREADS: [Threads; 3] = [Threads::One, Threads::OverOutputs, Threads::OverRows];

fn requantization(memory: &mut Memory, blocks: usize, [bias, shifts]: [bool; 2], shift: i16) -> Vec<Step> {
    let mut steps = Vec::new();
    if bias {
        steps.push(Step::Vector(AluOp::Add, memory.vector(blocks, -2048..2048)));
    }
    if shifts {
        steps.push(Step::Vector(AluOp::Shr, memory.vector(blocks, 0..16)));
    }
    steps.extend([
        Step::Immediate(AluOp::Shr, shift),
        Step::Immediate(AluOp::Max, -128),
        Step::Immediate(AluOp::Min, 127),
    ]);
    steps
}

/// Checks that simulations of a layer match the reference, if the tiling fits.
fn check(config: &Config, layer: &Layer, tile: Tile, memory: &Memory) -> Result<bool, TestCaseError> {
    match simulate(config, layer, tile, memory) {
        Ok(runs) => {
            let expected = naive::evaluate(config, layer, memory);
            prop_assert!(runs.iter().all(|result| *result == expected), "{layer:?} {tile:?}");
            Ok(true)
        }
        Err(error) => {
            prop_assert_eq!(error, EmitError::DoesNotFit);
            Ok(false)
        }
    }
}

fn first_layer(memory: &mut Memory) -> Layer {
    let data = memory.bytes(32 * 32 * memory.activation());
    let weight = memory.bytes(2 * 9 * memory.weight());
    let steps = requantization(memory, 2, [true, false], 8);
    Layer::Conv(Conv {
        batch: 1,
        groups: 1,
        inputs: 1,
        outputs: 2,
        size: [32, 32],
        kernel: [3, 3],
        strides: [2, 2],
        pads: [[1, 1], [1, 1]],
        data,
        weight,
        steps,
        result: memory.result(),
        form: Form::Bytes,
    })
}

#[test]
fn computes_the_first_layer_of_a_network() {
    let config = Config::default();
    let mut memory = Memory::new(&config, 1);
    let layer = first_layer(&mut memory);
    for threads in THREADS {
        let tile = Tile { size: [4, 16], inputs: 1, outputs: 1, threads };
        assert!(check(&config, &layer, tile, &memory).unwrap(), "{threads:?}");
    }
    let tile = Tile { size: [16, 16], inputs: 1, outputs: 2, threads: Threads::OverRows };
    assert!(!check(&Config { log_acc_buff_size: 12, ..config }, &layer, tile, &memory).unwrap());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn convolutions(
        sizes in (1usize..3, 1usize..4, 1usize..4, 1usize..9, 1usize..9),
        kernel in (1usize..6, 1usize..4, 1usize..3, 1usize..4),
        pads in (0usize..3, 0usize..3, 0usize..3, 0usize..3),
        tile in (1usize..6, 1usize..6, 1usize..3, 1usize..3, 0usize..3),
        more in (any::<[bool; 4]>(), 0i16..12, any::<u64>(), 0usize..6, 1usize..3),
    ) {
        let ([bias, shifts, has_addend, planes], shift, seed, device_index, groups) = more;
        let config = device(device_index);
        let mut memory = Memory::new(&config, seed);
        let (batch, inputs, outputs) = (sizes.0, sizes.1, sizes.2);
        let mut conv = Conv {
            batch,
            groups,
            inputs,
            outputs,
            size: [sizes.3, sizes.4],
            kernel: [kernel.0, kernel.1],
            strides: [kernel.2, kernel.3],
            pads: [[pads.0, pads.1], [pads.2, pads.3]],
            data: memory.bytes(batch * groups * inputs * sizes.3 * sizes.4 * memory.activation()),
            weight: memory.bytes(groups * outputs * inputs * kernel.0 * kernel.1 * memory.weight()),
            steps: Vec::new(),
            result: memory.result(),
            form: if planes { Form::Planes } else { Form::Bytes },
        };
        prop_assume!(conv.result().is_some());
        if bias || !planes {
            conv.steps = requantization(&mut memory, groups * outputs, [bias, shifts], shift);
        }
        if has_addend {
            let addend = memory.bytes(conv.element_count() * memory.activation());
            let steps = vec![(AluOp::Shr, -1), (AluOp::Add, 3), (AluOp::Shr, 2)];
            conv.steps.extend([Step::AddTensor { place: addend, steps }, Step::Immediate(AluOp::Max, 0)]);
        }
        let tile = Tile { size: [tile.0, tile.1], inputs: tile.2, outputs: tile.3, threads: THREADS[tile.4] };
        check(&config, &Layer::Conv(conv), tile, &memory)?;
    }

    #[test]
    fn pooling(
        sizes in (1usize..4, 1usize..12, 1usize..12, 1usize..4, 1usize..4),
        window in (1usize..4, 1usize..4, 0usize..3, 0usize..3, 0usize..2),
        tile in (1usize..6, 1usize..6, 0usize..3),
        more in (any::<u64>(), 0usize..6),
    ) {
        let config = device(more.1);
        let mut memory = Memory::new(&config, more.0);
        let (size, kernel, strides) = ([sizes.1, sizes.2], [sizes.3, sizes.4], [window.0, window.1]);
        let pads = [window.2.min(kernel[0] - 1), window.3.min(kernel[1] - 1)];
        // Windows may extend past the end of the data too.
        let results = [0, 1].map(|axis| {
            (size[axis] + 2 * pads[axis] + window.4).checked_sub(kernel[axis]).map_or(0, |span| span / strides[axis] + 1)
        });
        prop_assume!(results.iter().all(|count| *count > 0));
        let data = memory.bytes(sizes.0 * size[0] * size[1] * memory.activation());
        let steps = vec![Step::Immediate(AluOp::Max, -100)];
        let result = memory.result();
        let pool = Pool { images: sizes.0, size, kernel, strides, pads, results, data, steps, result };
        let tile = Tile { size: [tile.0, tile.1], inputs: 1, outputs: 1, threads: THREADS[tile.2] };
        check(&config, &Layer::Pool(pool), tile, &memory)?;
    }

    #[test]
    fn elementwise(
        elements in 1usize..300,
        columns in 1usize..100,
        threads in 0usize..3,
        more in (any::<bool>(), any::<u64>(), 0usize..6),
    ) {
        let config = device(more.2);
        let mut memory = Memory::new(&config, more.1);
        let data = memory.bytes(elements * memory.activation());
        let mut steps = vec![Step::Immediate(AluOp::Shr, -2)];
        if more.0 {
            let addend = memory.bytes(elements * memory.activation());
            steps.push(Step::AddTensor { place: addend, steps: vec![(AluOp::Add, 1), (AluOp::Shr, 1)] });
        }
        steps.extend([Step::Immediate(AluOp::Min, 127), Step::Immediate(AluOp::Max, -128)]);
        let layer = Layer::Elementwise(Elementwise { elements, data, steps, result: memory.result() });
        let tile = Tile { size: [1, columns], inputs: 1, outputs: 1, threads: THREADS[threads] };
        check(&config, &layer, tile, &memory)?;
    }
}

#[test]
fn places_are_relative_to_their_buffers() {
    let config = Config::default();
    let mut memory = Memory::new(&config, 3);
    // The tensor begins at a nonzero offset in its buffer.
    let data = memory.bytes(64 * memory.activation());
    let view_inside = Place { offset: 16 * memory.activation(), ..data };
    let steps = vec![Step::Immediate(AluOp::Add, 1)];
    let layer = Layer::Elementwise(Elementwise { elements: 48, data: view_inside, steps, result: memory.result() });
    let tile = Tile { size: [1, 48], inputs: 1, outputs: 1, threads: Threads::One };
    assert!(check(&config, &layer, tile, &memory).unwrap());
}

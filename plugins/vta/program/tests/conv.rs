//! Convolutions under random tilings: the simulated streams compute the definition, bit for bit, in every mode and under
//! every schedule, and the checker accepts them.

use byoc_vta_machine::check::{Segment, check};
use byoc_vta_machine::config::Config;
use byoc_vta_machine::isa::Memory;
use byoc_vta_machine::sim::{Dram, Mode, Options, run};
use byoc_vta_program::emit::{EmitError, conv};
use byoc_vta_program::layer::{Conv, Places};
use byoc_vta_program::tile::{Threads, Tile};
use proptest::prelude::*;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        self.0 >> 33
    }
}

/// Data in packed order, with the sizes of an element.
struct Operands {
    data: Vec<i8>,
    weight: Vec<i8>,
    bias: Vec<i32>,
}

fn operands(layer: &Conv, config: &Config, random: &mut Random) -> Operands {
    let (batch, block) = (config.batch(), config.block());
    let mut bytes = |count: usize| (0..count).map(|_| random.next() as i8).collect::<Vec<i8>>();
    let data = bytes(layer.batch * layer.inputs * layer.size[0] * layer.size[1] * batch * block);
    let weight = bytes(layer.outputs * layer.inputs * layer.kernel[0] * layer.kernel[1] * block * block);
    let bias = (0..layer.outputs * batch * block).map(|_| random.next() as i32 % 4096 - 2048).collect();
    Operands { data, weight, bias }
}

/// Computes the layer by its definition.
fn naive(layer: &Conv, config: &Config, of: &Operands) -> Vec<i8> {
    let (batch, block) = (config.batch(), config.block());
    let [rows, columns] = layer.result().unwrap();
    let [height, width] = layer.size;
    let mut result = vec![0i8; layer.batch * layer.outputs * rows * columns * batch * block];
    for (at, to) in result.iter_mut().enumerate() {
        let (lane, element) = (at % (batch * block), at / (batch * block));
        let (row_of_batch, channel) = (lane / block, lane % block);
        let (x, y) = (element % columns, element / columns % rows);
        let (output, n) = (element / columns / rows % layer.outputs, element / columns / rows / layer.outputs);
        let mut sum = if layer.bias { of.bias[output * batch * block + lane] } else { 0 };
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
                    let data = (((n * layer.inputs + input) * height + i) * width + j) * batch + row_of_batch;
                    let tap = ((output * layer.inputs + input) * layer.kernel[0] + v) * layer.kernel[1] + u;
                    for k in 0..block {
                        let weight = of.weight[(tap * block + channel) * block + k];
                        sum += i32::from(of.data[data * block + k]) * i32::from(weight);
                    }
                }
            }
        }
        let [low, high] = layer.bounds.map(i32::from);
        *to = (sum >> layer.shift).max(low).min(high) as i8;
    }
    result
}

fn simulated(layer: &Conv, config: &Config, tile: Tile, of: &Operands) -> Result<Vec<Vec<i8>>, EmitError> {
    let align = |size: usize| size.next_multiple_of(4096);
    let bytes = |values: &[i8]| values.iter().map(|value| *value as u8).collect::<Vec<u8>>();
    let bias: Vec<u8> = of.bias.iter().flat_map(|value| value.to_le_bytes()).collect();
    let [rows, columns] = layer.result().unwrap();
    let results = layer.batch * layer.outputs * rows * columns * config.element_bytes(Memory::Out);
    let data = 4096;
    let weight = data + align(of.data.len());
    let bias_place = weight + align(of.weight.len());
    let result = bias_place + align(bias.len().max(1));
    let uops = result + align(results);
    let places = Places { data, weight, bias: bias_place, result, uops };
    let program = conv(config, layer, tile, places)?;
    let words: Vec<u8> = program.uops.iter().flat_map(|word| word.to_le_bytes()).collect();
    let segment = |start: usize, len: usize, writable| Segment { range: start..start + len, writable, uops: None };
    let segments = [
        segment(data, of.data.len(), false),
        segment(weight, of.weight.len(), false),
        segment(bias_place, bias.len(), false),
        segment(result, results, true),
        Segment { range: uops..uops + words.len(), writable: false, uops: Some(program.uops.clone()) },
    ];
    check(config, &program.stream, &segments).unwrap_or_else(|violation| panic!("{violation}: {layer:?} {tile:?}"));
    for insn in &program.stream {
        insn.encode(config)?;
    }
    let options = [(Mode::Functional, 0), (Mode::Functional, 1), (Mode::Functional, 2), (Mode::Strict, 3)];
    Ok(options
        .map(|(mode, seed)| {
            let mut dram = Dram::new(uops + align(words.len()));
            for (place, content) in [
                (data, bytes(&of.data)),
                (weight, bytes(&of.weight)),
                (bias_place, bias.clone()),
                (uops, words.clone()),
            ] {
                dram.write(place, content.len()).unwrap().copy_from_slice(&content);
            }
            let counters =
                run(config, &program.stream, &mut dram, &Options { mode, seed, ..Options::default() }).unwrap();
            assert!(counters.gemm_counter <= layer.steps() as u64);
            dram.read(result, results).unwrap().iter().map(|byte| *byte as i8).collect()
        })
        .to_vec())
}

fn small(log_block: u32) -> Config {
    Config {
        log_block,
        log_uop_buff_size: 11,
        log_inp_buff_size: 7 + log_block,
        log_wgt_buff_size: 5 + 2 * log_block,
        log_acc_buff_size: 8 + log_block,
        ..Config::default()
    }
}

#[test]
fn computes_the_first_layer_of_a_network() {
    let layer = Conv {
        batch: 1,
        inputs: 1,
        outputs: 2,
        size: [32, 32],
        kernel: [3, 3],
        strides: [2, 2],
        pads: [[1, 1], [1, 1]],
        bias: true,
        shift: 8,
        bounds: [0, 127],
    };
    let config = Config::default();
    let of = operands(&layer, &config, &mut Random(1));
    let expected = naive(&layer, &config, &of);
    for threads in [Threads::One, Threads::OverOutputs, Threads::OverRows] {
        let tile = Tile { size: [4, 16], inputs: 1, outputs: 1, threads };
        for found in simulated(&layer, &config, tile, &of).unwrap() {
            assert!(found == expected, "{threads:?}");
        }
    }
    let tile = Tile { size: [16, 16], inputs: 1, outputs: 2, threads: Threads::OverRows };
    assert!(simulated(&layer, &Config { log_acc_buff_size: 12, ..config }, tile, &of).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn streams_compute_the_definition(
        sizes in (1usize..3, 1usize..4, 1usize..4, 1usize..9, 1usize..9),
        kernel in (1usize..6, 1usize..4, 1usize..3, 1usize..4),
        pads in (0usize..3, 0usize..3, 0usize..3, 0usize..3),
        tile in (1usize..6, 1usize..6, 1usize..3, 1usize..3, 0usize..3),
        more in (any::<bool>(), 0i16..12, any::<u64>(), 0usize..3),
    ) {
        let layer = Conv {
            batch: sizes.0,
            inputs: sizes.1,
            outputs: sizes.2,
            size: [sizes.3, sizes.4],
            kernel: [kernel.0, kernel.1],
            strides: [kernel.2, kernel.3],
            pads: [[pads.0, pads.1], [pads.2, pads.3]],
            bias: more.0,
            shift: more.1,
            bounds: [-128, 127],
        };
        prop_assume!(layer.result().is_some());
        let config = [Config::default(), small(4), Config { log_batch: 1, ..small(3) }][more.3].clone();
        let threads = [Threads::One, Threads::OverOutputs, Threads::OverRows][tile.4];
        let tile = Tile { size: [tile.0, tile.1], inputs: tile.2, outputs: tile.3, threads };
        let of = operands(&layer, &config, &mut Random(more.2));
        match simulated(&layer, &config, tile, &of) {
            Ok(all) => {
                let expected = naive(&layer, &config, &of);
                prop_assert!(all.iter().all(|found| *found == expected));
            }
            Err(error) => prop_assert_eq!(error, EmitError::DoesNotFit),
        }
    }
}

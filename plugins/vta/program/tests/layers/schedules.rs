//! Network streams: every schedule produces the same results, and every token is necessary.

use super::memory::{Memory, Prepared, prepare};
use byoc_vta_machine::config::Config;
use byoc_vta_machine::isa::{AluOp, Insn};
use byoc_vta_machine::sim::{Mode, Options};
use byoc_vta_program::layer::{Conv, Elementwise, Form, Layer, Place, Pool, Step};
use byoc_vta_program::search::fastest;

/// Number of random schedules per stream.
const SCHEDULES: u64 = 100;

/// Layers of a network under construction.
struct Network<'a> {
    memory: &'a mut Memory,
    layers: Vec<Layer>,
}

impl Network<'_> {
    fn requantization_steps(&mut self, outputs: usize) -> Vec<Step> {
        let mut steps = vec![
            Step::Vector(AluOp::Add, self.memory.vector(outputs, -4096..4096)),
            Step::Vector(AluOp::Shr, self.memory.vector(outputs, 6..10)),
        ];
        steps.extend([(AluOp::Max, 0), (AluOp::Min, 127)].map(|(op, imm)| Step::Immediate(op, imm)));
        steps
    }

    /// Adds a convolution of square images. Channel counts are in blocks; `add` is an optional tensor to add to the
    /// result.
    fn conv(&mut self, data: Place, [size, inputs, outputs, kernel, stride]: [usize; 5], add: Option<Place>) -> Place {
        let pad = kernel / 2;
        let weight = self.memory.bytes(outputs * inputs * kernel * kernel * self.memory.weight());
        let mut steps = self.requantization_steps(outputs);
        if let Some(addend) = add {
            steps.push(Step::AddTensor { place: addend, steps: vec![(AluOp::Shr, 1)] });
            steps.push(Step::Immediate(AluOp::Min, 127));
        }
        let results = (size + 2 * pad - kernel) / stride + 1;
        let result = self.memory.tensor(outputs * results * results * self.memory.activation());
        self.layers.push(Layer::Conv(Conv {
            batch: 1,
            groups: 1,
            inputs,
            outputs,
            size: [size; 2],
            kernel: [kernel; 2],
            strides: [stride; 2],
            pads: [[pad; 2]; 2],
            data,
            weight,
            steps,
            result,
            form: Form::Bytes,
        }));
        result
    }

    fn pool(&mut self, data: Place, images: usize, size: usize, [kernel, stride, pad]: [usize; 3]) -> Place {
        let results = (size + 2 * pad - kernel) / stride + 1;
        let result = self.memory.tensor(images * results * results * self.memory.activation());
        self.layers.push(Layer::Pool(Pool {
            images,
            size: [size; 2],
            kernel: [kernel; 2],
            strides: [stride; 2],
            pads: [pad; 2],
            results: [results; 2],
            data,
            steps: Vec::new(),
            result,
        }));
        result
    }

    fn relu(&mut self, data: Place, elements: usize) -> Place {
        let result = self.memory.tensor(elements * self.memory.activation());
        let steps = vec![Step::Immediate(AluOp::Max, 0)];
        self.layers.push(Layer::Elementwise(Elementwise { elements, data, steps, result }));
        result
    }

    /// Emits the network, whose last layer writes the result.
    fn emit(mut self, config: &Config) -> Prepared {
        let result = self.memory.result();
        match self.layers.last_mut() {
            Some(Layer::Conv(last_layer)) => last_layer.result = result,
            Some(Layer::Pool(last_layer)) => last_layer.result = result,
            Some(Layer::Elementwise(last_layer)) => last_layer.result = result,
            None => {}
        }
        let tiled_layers: Vec<_> = self
            .layers
            .into_iter()
            .map(|layer| {
                let (tile, _) =
                    fastest(config, &layer).unwrap_or_else(|| panic!("expected a tiling of {layer:?}, found none"));
                (layer, tile)
            })
            .collect();
        prepare(config, &tiled_layers, self.memory).unwrap()
    }
}

/// Checks the stream, and compares its results in both modes, in program order and under random schedules.
fn check_schedules(preparation: &Prepared, schedules: u64) -> Vec<u8> {
    let stream = &preparation.stream;
    assert_eq!(preparation.violation(stream).map(|violation| violation.to_string()), None);
    let expected = preparation.simulate(stream, &Options::default()).unwrap();
    assert!(expected.iter().any(|byte| *byte != 0), "expected a nonzero result, found zeros");
    for mode in [Mode::Functional, Mode::Strict] {
        let options = Options { mode, serial: true, ..Options::default() };
        assert!(
            preparation.simulate(stream, &options).unwrap() == expected,
            "expected equal results in program order in {mode:?} mode"
        );
    }
    for seed in 1..=schedules {
        let mode = if seed.is_multiple_of(2) { Mode::Strict } else { Mode::Functional };
        let options = Options { seed, mode, ..Options::default() };
        assert!(preparation.simulate(stream, &options).unwrap() == expected, "{options:?}");
    }
    expected
}

/// Removes each token flag of the stream, one at a time. The checker, a deadlock, or a schedule with different results
/// must reveal each removal. Returns the number of removals that the checker missed.
fn remove_tokens(preparation: &Prepared, expected: &[u8]) -> usize {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let indices = |first: usize| (first..preparation.stream.len()).step_by(threads);
        let handles: Vec<_> = (0..threads)
            .map(|first| {
                scope.spawn(move || {
                    indices(first).map(|index| remove_tokens_of(preparation, index, expected)).sum::<usize>()
                })
            })
            .collect();
        handles.into_iter().map(|thread| thread.join().unwrap()).sum()
    })
}

fn remove_tokens_of(preparation: &Prepared, index: usize, expected: &[u8]) -> usize {
    let remove: [fn(&mut Insn) -> &mut bool; 4] = [
        |insn| &mut insn.deps.pop_prev,
        |insn| &mut insn.deps.pop_next,
        |insn| &mut insn.deps.push_prev,
        |insn| &mut insn.deps.push_next,
    ];
    let mut removed_count = 0;
    for flag in remove {
        let mut stream = preparation.stream.clone();
        if !std::mem::replace(flag(&mut stream[index]), false) || preparation.violation(&stream).is_some() {
            continue;
        }
        removed_count += 1;
        let is_detected = (0..SCHEDULES).any(|seed| {
            let options = Options { seed, ..Options::default() };
            preparation.simulate(&stream, &options).ok().is_none_or(|is_detected| is_detected != *expected)
        });
        assert!(
            is_detected,
            "instruction {index}: expected the missing token to be detected: {}",
            preparation.stream[index]
        );
    }
    removed_count
}

/// Returns a ResNet-18 convolution on the default device.
fn layer_of_resnet(shape: [usize; 5]) -> Prepared {
    let config = Config::default();
    let mut memory = Memory::new(&config, 18);
    let data = memory.bytes(shape[0] * shape[0] * shape[1] * memory.activation());
    let mut network = Network { memory: &mut memory, layers: Vec::new() };
    network.conv(data, shape, None);
    network.emit(&config)
}

#[test]
fn layers_of_resnet() {
    // C2, C6 and C11.
    for shape in [[56, 4, 4, 3, 1], [28, 8, 16, 3, 2], [7, 32, 32, 3, 1]] {
        let preparation = layer_of_resnet(shape);
        let expected = check_schedules(&preparation, SCHEDULES);
        assert_eq!(remove_tokens(&preparation, &expected), 0);
    }
}

/// Returns the digits network: three convolutions with pooling and a dense layer.
fn digits(config: &Config) -> Prepared {
    let mut memory = Memory::new(config, 10);
    let data = memory.bytes(8 * 8 * memory.activation());
    let mut network = Network { memory: &mut memory, layers: Vec::new() };
    let first_conv = network.conv(data, [8, 1, 1, 3, 1], None);
    let second_conv = network.conv(first_conv, [8, 1, 2, 3, 1], None);
    let pooled_data = network.pool(second_conv, 2, 8, [2, 2, 0]);
    let third_conv = network.conv(pooled_data, [4, 2, 2, 3, 1], Some(pooled_data));
    let small_pool = network.pool(third_conv, 2, 4, [4, 4, 0]);
    network.conv(small_pool, [1, 2, 1, 1, 1], None);
    network.emit(config)
}

#[test]
fn small_network() {
    let tiny = Config { log_inp_buff_size: 11, log_wgt_buff_size: 13, log_acc_buff_size: 12, ..Config::default() };
    for config in [Config::default(), tiny] {
        let preparation = digits(&config);
        let expected = check_schedules(&preparation, SCHEDULES);
        assert_eq!(remove_tokens(&preparation, &expected), 0);
    }
}

/// Returns the layers of ResNet-18 after its first convolution.
fn resnet(config: &Config) -> Prepared {
    let mut memory = Memory::new(config, 18);
    let mut data = memory.bytes(56 * 56 * 4 * memory.activation());
    let mut network = Network { memory: &mut memory, layers: Vec::new() };
    let mut shape = [56, 4];
    for (stage, outputs) in [4, 8, 16, 32].into_iter().enumerate() {
        for block in 0..2 {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            let [size, inputs] = shape;
            let first_conv = network.conv(data, [size, inputs, outputs, 3, stride], None);
            let shortcut =
                if inputs == outputs { data } else { network.conv(data, [size, inputs, outputs, 1, stride], None) };
            let sum = network.conv(first_conv, [size / stride, outputs, outputs, 3, 1], Some(shortcut));
            data = network.relu(sum, (size / stride) * (size / stride) * outputs);
            shape = [size / stride, outputs];
        }
    }
    let pooled_data = network.pool(data, 32, 7, [7, 7, 0]);
    network.conv(pooled_data, [1, 32, 63, 1, 1], None);
    network.emit(config)
}

/// Takes minutes; `cargo xtask vta` runs it.
#[test]
#[ignore = "takes minutes"]
fn whole_resnet() {
    let preparation = resnet(&Config::default());
    let expected = check_schedules(&preparation, SCHEDULES);
    assert_eq!(remove_tokens(&preparation, &expected), 0);
}

//! Benchmarks of the accelerator's software on ten convolutions of ResNet-18, for the default device: encoding,
//! decoding, tiling search, checking, cycle prediction and simulation.
//!
//! A throughput element is an instruction, or a multiply-add in simulations.

#[path = "../tests/layers/memory.rs"]
#[expect(dead_code, reason = "networks and random layers are those of the tests")]
mod memory;
#[path = "../tests/resnet.rs"]
mod resnet;

use byoc_vta_machine::check::{check, check_hazards};
use byoc_vta_machine::config::Config;
use byoc_vta_machine::cycles;
use byoc_vta_machine::isa::Insn;
use byoc_vta_machine::sim::{Mode, Options, run};
use byoc_vta_program::layer::{Conv, Layer};
use byoc_vta_program::search::fastest;
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput};
use memory::{Memory, Prepared, prepare};
use resnet::{CONVOLUTIONS, Shape};
use std::hint::black_box;

fn main() {
    let mut criterion = Criterion::default().sample_size(10).configure_from_args();
    let config = Config::default();
    let cases: Vec<Case> = CONVOLUTIONS.iter().map(|(name, shape, _)| Case::new(&config, name, shape)).collect();
    assemble(&mut criterion, &config, &cases);
    search(&mut criterion, &config, &cases);
    verify(&mut criterion, &config, &cases);
    simulate(&mut criterion, &config, &cases);
    criterion.final_summary();
}

/// Convolution with the stream of its fastest tiling.
struct Case {
    name: &'static str,
    conv: Conv,
    preparation: Prepared,
}

impl Case {
    fn new(config: &Config, name: &'static str, shape: &Shape) -> Case {
        let mut memory = Memory::new(config, 18);
        let data = memory.bytes(shape.size * shape.size * shape.inputs * memory.activation());
        let taps = shape.kernel * shape.kernel;
        let weight = memory.bytes(shape.outputs * shape.inputs * taps * memory.weight());
        let conv = shape.conv([data, weight, memory.result()]);
        let layer = Layer::Conv(conv.clone());
        let (tile, _) = fastest(config, &layer).expect("every layer has a tiling");
        let preparation = prepare(config, &[(layer, tile)], &memory).expect("the fastest tiling can be emitted");
        Case { name, conv, preparation }
    }

    fn words(&self, config: &Config) -> Vec<[u64; 2]> {
        let encode = |insn: &Insn| insn.encode(config).expect("emitted values fit their fields");
        self.preparation.stream.iter().map(encode).collect()
    }

    fn instructions(&self) -> Throughput {
        Throughput::Elements(self.preparation.stream.len() as u64)
    }

    fn macs(&self, config: &Config) -> Throughput {
        let step = config.batch() * config.block() * config.block();
        Throughput::Elements((self.conv.gemm_steps() * step) as u64)
    }
}

/// Measures a function on each case.
fn bench_each<T>(group: &mut BenchmarkGroup<'_, WallTime>, cases: &[Case], name: &str, f: impl Fn(&Case) -> T) {
    for case in cases {
        group.throughput(case.instructions());
        group.bench_function(format!("{name} {}", case.name), |bencher| bencher.iter(|| f(case)));
    }
}

fn assemble(criterion: &mut Criterion, config: &Config, cases: &[Case]) {
    let mut group = criterion.benchmark_group("assemble");
    bench_each(&mut group, cases, "encode", |case| case.words(config));
    for case in cases {
        let words = case.words(config);
        let decode =
            || words.iter().map(|insn_words| Insn::decode(*insn_words, config)).collect::<Result<Vec<Insn>, _>>();
        group.throughput(case.instructions());
        group.bench_function(format!("decode {}", case.name), |bencher| bencher.iter(decode));
    }
}

fn search(criterion: &mut Criterion, config: &Config, cases: &[Case]) {
    let mut group = criterion.benchmark_group("search");
    for case in cases {
        let layer = Layer::Conv(case.conv.clone());
        group.bench_function(case.name, |bencher| bencher.iter(|| fastest(config, black_box(&layer))));
    }
}

fn verify(criterion: &mut Criterion, config: &Config, cases: &[Case]) {
    let mut group = criterion.benchmark_group("verify");
    bench_each(&mut group, cases, "check", |case| check(config, &case.preparation.stream, &case.preparation.segments));
    bench_each(&mut group, cases, "hazards", |case| {
        check_hazards(config, &case.preparation.stream, &case.preparation.segments)
    });
    bench_each(&mut group, cases, "cycles", |case| cycles::time(config, &case.preparation.stream));
}

fn simulate(criterion: &mut Criterion, config: &Config, cases: &[Case]) {
    let mut group = criterion.benchmark_group("simulate");
    for (name, mode) in [("functional", Mode::Functional), ("strict", Mode::Strict)] {
        let options = Options { mode, ..Options::default() };
        for case in cases {
            // The stream reads no buffer that it writes, so runs can share the memory.
            let mut dram = case.preparation.dram();
            group.throughput(case.macs(config));
            group.bench_function(format!("{name} {}", case.name), |bencher| {
                bencher.iter(|| {
                    run(config, &case.preparation.stream, &mut dram, &options).expect("the stream runs to completion")
                });
            });
        }
    }
}

//! Buffers with random contents, and the simulation of a layer on them.

use byoc_test_support::random::Random;
use byoc_vta_machine::check::{Segment, Violation, check, check_hazards};
use byoc_vta_machine::config::Config;
use byoc_vta_machine::isa::{Insn, Memory as Kind};
use byoc_vta_machine::sim::{Counters, Dram, Mode, Options, SimError, run};
use byoc_vta_program::emit::{Auxiliary, EmitError, Runs, program};
use byoc_vta_program::layer::{Layer, Place};
use byoc_vta_program::relocate::relocate;
use byoc_vta_program::tile::Tile;
use std::ops::Range;

/// Index of the micro-operation buffer.
const UOPS: u32 = 0;
/// Index of the identity matrix buffer.
const IDENTITY: u32 = 1;
/// Index of the result buffer.
const RESULT: u32 = 2;

/// Buffers of a layer.
pub struct Memory {
    config: Config,
    pub buffers: Vec<Vec<u8>>,
    /// Indices of the buffers for tensors between layers.
    writable: Vec<u32>,
    random: Random,
}

impl Memory {
    pub fn new(config: &Config, seed: u64) -> Memory {
        let block = config.block();
        let identity = (0..block * block).map(|i| u8::from(i / block == i % block)).collect();
        Memory {
            config: config.clone(),
            buffers: vec![Vec::new(), identity, Vec::new()],
            writable: Vec::new(),
            random: Random::new(seed),
        }
    }

    /// Returns the size of an activation element in bytes.
    pub fn activation(&self) -> usize {
        self.config.element_bytes(Kind::Inp)
    }

    /// Returns the size of a weight element in bytes.
    pub fn weight(&self) -> usize {
        self.config.element_bytes(Kind::Wgt)
    }

    fn add(&mut self, bytes: Vec<u8>) -> Place {
        self.buffers.push(bytes);
        Place { buffer: self.buffers.len() as u32 - 1, offset: 0 }
    }

    /// Adds a buffer of random bytes.
    pub fn bytes(&mut self, count: usize) -> Place {
        let bytes = (0..count).map(|_| self.random.bits() as u8).collect();
        self.add(bytes)
    }

    /// Adds a buffer for a tensor between layers.
    pub fn tensor(&mut self, count: usize) -> Place {
        let place = self.add(vec![0; count]);
        self.writable.push(place.buffer);
        place
    }

    /// Adds a vector of random numbers: one per output channel, repeated for each batch row.
    pub fn vector(&mut self, blocks: usize, range: Range<i32>) -> Place {
        let (batch, block) = (self.config.batch(), self.config.block());
        let mut bytes = Vec::new();
        for _ in 0..blocks {
            let size = (range.end - range.start) as u64;
            let row: Vec<i32> = (0..block).map(|_| range.start + (self.random.bits() % size) as i32).collect();
            for value in row.iter().cycle().take(batch * block) {
                bytes.extend(value.to_le_bytes());
            }
        }
        self.add(bytes)
    }

    /// Returns the location of the result.
    pub fn result(&self) -> Place {
        Place { buffer: RESULT, offset: 0 }
    }
}

/// Stream with absolute addresses, and the memory that it accesses.
pub struct Prepared {
    pub config: Config,
    pub stream: Vec<Insn>,
    pub segments: Vec<Segment>,
    buffers: Vec<Vec<u8>>,
}

/// Emits layers with their tiles, and assigns buffer addresses.
pub fn prepare(config: &Config, layers: &[(Layer, Tile)], memory: &Memory) -> Result<Prepared, EmitError> {
    let program = program(config, layers, Auxiliary { uops: UOPS, identity: IDENTITY }, Runs::Whole)?;
    let mut buffers = memory.buffers.clone();
    buffers[UOPS as usize] = program.uops.iter().flat_map(|word| word.to_le_bytes()).collect();
    let (mut writable, mut addresses, mut segments) = (memory.writable.clone(), Vec::new(), Vec::new());
    if let Some((last_layer, _)) = layers.last() {
        buffers[RESULT as usize] = vec![0; last_layer.result_bytes(config)];
        writable.push(RESULT);
    }
    let mut end = 4096;
    for (index, buffer) in buffers.iter().enumerate() {
        let index = index as u32;
        addresses.push(end as u64);
        segments.push(Segment {
            range: end..end + buffer.len(),
            writable: writable.contains(&index),
            uops: (index == UOPS).then(|| program.uops.clone()),
        });
        end += buffer.len().next_multiple_of(4096);
    }
    let stream = relocate(config, &program.stream, &program.buffers, &addresses).unwrap();
    for insn in &stream {
        insn.encode(config)?;
    }
    Ok(Prepared { config: config.clone(), stream, segments, buffers })
}

impl Prepared {
    /// Returns the first violation that the checker finds in a stream on this memory.
    pub fn violation(&self, stream: &[Insn]) -> Option<Violation> {
        check(&self.config, stream, &self.segments)
            .and_then(|()| check_hazards(&self.config, stream, &self.segments))
            .err()
    }

    /// Returns the initial memory contents.
    pub fn dram(&self) -> Dram {
        let end = self.segments.iter().map(|segment| segment.range.end).max().unwrap_or(0);
        let mut dram = Dram::new(end);
        for (buffer, segment) in self.buffers.iter().zip(&self.segments) {
            dram.write(segment.range.start, buffer.len()).unwrap().copy_from_slice(buffer);
        }
        dram
    }

    /// Simulates a stream on this memory, and returns the bytes of all writable buffers.
    pub fn simulate(&self, stream: &[Insn], options: &Options) -> Result<Vec<u8>, SimError> {
        Ok(self.simulate_counted(stream, options)?.0)
    }

    /// Simulates a stream. Returns the bytes of all writable buffers, with the result last, and the counters.
    pub fn simulate_counted(&self, stream: &[Insn], options: &Options) -> Result<(Vec<u8>, Counters), SimError> {
        let mut dram = self.dram();
        let counters = run(&self.config, stream, &mut dram, options)?;
        let mut written_bytes = Vec::new();
        for (index, segment) in self.segments.iter().enumerate() {
            if segment.writable && index != RESULT as usize {
                written_bytes.extend_from_slice(dram.read(segment.range.start, segment.range.len()).unwrap());
            }
        }
        let result = &self.segments[RESULT as usize].range;
        written_bytes.extend_from_slice(dram.read(result.start, result.len()).unwrap());
        Ok((written_bytes, counters))
    }
}

/// Simulates a layer in both modes and under several schedules. Returns the result bytes of each simulation.
pub fn simulate(config: &Config, layer: &Layer, tile: Tile, memory: &Memory) -> Result<Vec<Vec<u8>>, EmitError> {
    let preparation = prepare(config, &[(layer.clone(), tile)], memory)?;
    if let Some(violation) = preparation.violation(&preparation.stream) {
        panic!("{violation}: {layer:?} {tile:?}");
    }
    let strict_options = Options { mode: Mode::Strict, ..Options::default() };
    let with_seed = |seed| Options { seed, ..Options::default() };
    let option_sets = [
        with_seed(0),
        with_seed(1),
        with_seed(2),
        Options { serial: true, ..strict_options },
        Options { seed: 3, ..strict_options },
    ];
    Ok(option_sets
        .map(|options| {
            let (written_bytes, counters) = preparation.simulate_counted(&preparation.stream, &options).unwrap();
            if let Layer::Conv(conv) = layer
                && config.has_acc_8bit()
            {
                assert!(counters.gemm_counter <= conv.gemm_steps() as u64);
            }
            written_bytes
        })
        .to_vec())
}

//! Buffers with random contents, and the simulation of a layer on them.

use byoc_vta_machine::check::{Segment, check, hazards};
use byoc_vta_machine::config::Config;
use byoc_vta_machine::isa::Memory as Kind;
use byoc_vta_machine::sim::{Dram, Mode, Options, run};
use byoc_vta_program::emit::{Auxiliary, EmitError, Runs, program};
use byoc_vta_program::layer::{Layer, Place};
use byoc_vta_program::relocate::relocate;
use byoc_vta_program::tile::Tile;
use std::ops::Range;

/// Buffer of the micro-operations.
const UOPS: u32 = 0;
/// Buffer of the identity matrix.
const IDENTITY: u32 = 1;
/// Buffer of the result.
const RESULT: u32 = 2;

/// Buffers of a layer.
pub struct Memory {
    config: Config,
    pub buffers: Vec<Vec<u8>>,
    random: u64,
}

impl Memory {
    pub fn new(config: &Config, seed: u64) -> Memory {
        let block = config.block();
        let identity = (0..block * block).map(|i| u8::from(i / block == i % block)).collect();
        Memory { config: config.clone(), buffers: vec![Vec::new(), identity, Vec::new()], random: seed }
    }

    fn next(&mut self) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.random >> 33
    }

    /// Returns the bytes of an activation element.
    pub fn activation(&self) -> usize {
        self.config.element_bytes(Kind::Inp)
    }

    /// Returns the bytes of a weight element.
    pub fn weight(&self) -> usize {
        self.config.element_bytes(Kind::Wgt)
    }

    fn add(&mut self, bytes: Vec<u8>) -> Place {
        self.buffers.push(bytes);
        Place { buffer: self.buffers.len() as u32 - 1, offset: 0 }
    }

    /// Adds a buffer of random bytes.
    pub fn bytes(&mut self, count: usize) -> Place {
        let bytes = (0..count).map(|_| self.next() as u8).collect();
        self.add(bytes)
    }

    /// Adds a vector of random numbers: one for each output channel, the same for each row of the batch.
    pub fn vector(&mut self, blocks: usize, range: Range<i32>) -> Place {
        let (batch, block) = (self.config.batch(), self.config.block());
        let mut bytes = Vec::new();
        for _ in 0..blocks {
            let size = (range.end - range.start) as u64;
            let row: Vec<i32> = (0..block).map(|_| range.start + (self.next() % size) as i32).collect();
            for value in row.iter().cycle().take(batch * block) {
                bytes.extend(value.to_le_bytes());
            }
        }
        self.add(bytes)
    }

    /// Returns the place of the result.
    pub fn result(&self) -> Place {
        Place { buffer: RESULT, offset: 0 }
    }
}

/// Returns the bytes of the result under both modes and several schedules.
pub fn simulate(config: &Config, layer: &Layer, tile: Tile, memory: &Memory) -> Result<Vec<Vec<u8>>, EmitError> {
    let layers = [(layer.clone(), tile)];
    let program = program(config, &layers, Auxiliary { uops: UOPS, identity: IDENTITY }, Runs::Whole)?;
    let mut buffers = memory.buffers.clone();
    buffers[UOPS as usize] = program.uops.iter().flat_map(|word| word.to_le_bytes()).collect();
    let result_bytes = layer.result_bytes(config);
    buffers[RESULT as usize] = vec![0; result_bytes];
    let mut addresses = Vec::new();
    let mut end = 4096;
    for buffer in &buffers {
        addresses.push(end as u64);
        end += buffer.len().next_multiple_of(4096);
    }
    let segments: Vec<Segment> = buffers
        .iter()
        .zip(&addresses)
        .enumerate()
        .map(|(number, (buffer, start))| Segment {
            range: *start as usize..*start as usize + buffer.len(),
            writable: number == RESULT as usize,
            uops: (number == UOPS as usize).then(|| program.uops.clone()),
        })
        .collect();
    let stream = relocate(config, &program.stream, &program.buffers, &addresses).unwrap();
    check(config, &stream, &segments).unwrap_or_else(|violation| panic!("{violation}: {layer:?} {tile:?}"));
    hazards(config, &stream, &segments).unwrap_or_else(|violation| panic!("{violation}: {layer:?} {tile:?}"));
    for insn in &stream {
        insn.encode(config)?;
    }
    let options = [(Mode::Functional, 0), (Mode::Functional, 1), (Mode::Functional, 2), (Mode::Strict, 3)];
    Ok(options
        .map(|(mode, seed)| {
            let mut dram = Dram::new(end);
            for (buffer, address) in buffers.iter().zip(&addresses) {
                dram.write(*address as usize, buffer.len()).unwrap().copy_from_slice(buffer);
            }
            let counters = run(config, &stream, &mut dram, &Options { mode, seed, ..Options::default() }).unwrap();
            if let Layer::Conv(conv) = layer
                && config.acc_8bit()
            {
                assert!(counters.gemm_counter <= conv.gemm_steps() as u64);
            }
            dram.read(addresses[RESULT as usize] as usize, result_bytes).unwrap().to_vec()
        })
        .to_vec())
}

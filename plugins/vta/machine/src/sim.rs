//! Functional simulation: what a stream computes, without time.
//!
//! Each module executes its instructions in order; which module goes next is chosen by a seed, so that a stream with a
//! missing token gives other results under another seed. A stream that cannot go on is reported with the heads of the
//! modules.

mod counters;
mod memory;
mod units;

pub use counters::Counters;
pub use memory::Dram;

use crate::config::Config;
use crate::isa::{Insn, Op};
use crate::tokens::{self, MODULES, QUEUES, Queue};
use memory::Sram;
use std::fmt;

/// Rules of the simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Those of VTA's own functional simulator: results are stored from the accumulators.
    #[default]
    Functional,
    /// Those that every hardware design has: a memory for results that only computations write, shift amounts of five
    /// bits, no padding of weights.
    Strict,
}

/// Options of a simulation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Rules.
    pub mode: Mode,
    /// Seed of the schedule of the modules.
    pub seed: u64,
    /// Executes the instructions one by one, in the order of the stream, as VTA's runtime does when it is told to
    /// serialize.
    pub serial: bool,
    /// Number of executed instructions after which the simulation ends with an error; 0 for no limit.
    pub max_instructions: u64,
}

/// Number of instructions between two looks at a request to cancel.
const CANCELLATION_INTERVAL: u64 = 64;

/// Error of a simulation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimError {
    /// Index of the instruction in the stream; `None` for a deadlock.
    pub instruction: Option<usize>,
    /// Reason.
    pub message: String,
}

impl fmt::Display for SimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.instruction {
            Some(index) => write!(f, "instruction {index}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for SimError {}

/// Executes a stream until every instruction has run, and returns what it has moved and computed.
///
/// # Errors
/// An access outside a memory, a deadlock, or an instruction that the mode does not allow.
pub fn run(config: &Config, stream: &[Insn], dram: &mut Dram, options: &Options) -> Result<Counters, SimError> {
    run_unless(config, stream, dram, options, &mut || false)
}

/// Executes a stream like [`run`], but ends with an error when `cancelled`, which is called between instructions, returns
/// true.
///
/// # Errors
/// As for [`run`], and cancellation.
pub fn run_unless(
    config: &Config,
    stream: &[Insn],
    dram: &mut Dram,
    options: &Options,
    cancelled: &mut dyn FnMut() -> bool,
) -> Result<Counters, SimError> {
    let mut machine =
        Machine { config, sram: Sram::new(config), dram, mode: options.mode, counters: Counters::default() };
    let queues = tokens::by_module(stream);
    let mut heads = [0usize; MODULES];
    let mut tokens = [0u64; QUEUES];
    let mut random = options.seed;
    let mut executed = 0u64;
    loop {
        let mut ready = Vec::with_capacity(MODULES);
        for (module, queue) in queues.iter().enumerate() {
            let Some(&index) = queue.get(heads[module]) else { continue };
            let at = |message| SimError { instruction: Some(index), message };
            let pops = tokens::pops(stream[index].module(), &stream[index].deps).map_err(at)?;
            if pops.iter().flatten().all(|queue| tokens[*queue as usize] > 0) {
                ready.push((module, index, pops));
            }
        }
        if ready.is_empty() {
            break;
        }
        let choice = match options.serial {
            false => next_random(&mut random) as usize % ready.len(),
            true => match ready.iter().position(|(_, index, _)| *index as u64 == executed) {
                Some(choice) => choice,
                None => break,
            },
        };
        let (module, index, pops) = ready[choice];
        let at = |message| SimError { instruction: Some(index), message };
        pops.iter().flatten().for_each(|queue| tokens[*queue as usize] -= 1);
        machine.execute(&stream[index].op).map_err(at)?;
        let pushes = tokens::pushes(stream[index].module(), &stream[index].deps).map_err(at)?;
        pushes.iter().flatten().for_each(|queue| tokens[*queue as usize] += 1);
        heads[module] += 1;
        executed += 1;
        if executed.is_multiple_of(CANCELLATION_INTERVAL) && cancelled() {
            return Err(SimError { instruction: Some(index), message: "cancelled".into() });
        }
        if options.max_instructions > 0 && executed > options.max_instructions {
            let message = format!("expected at most {} executed instructions", options.max_instructions);
            return Err(SimError { instruction: Some(index), message });
        }
    }
    if heads.iter().zip(&queues).any(|(head, queue)| *head < queue.len()) {
        return Err(SimError { instruction: None, message: deadlock(stream, &queues, heads, tokens) });
    }
    Ok(machine.counters)
}

/// Describes a deadlock: the instruction that each module waits with, and the fill of the token queues.
fn deadlock(stream: &[Insn], queues: &[Vec<usize>; MODULES], heads: [usize; MODULES], tokens: [u64; QUEUES]) -> String {
    let waiting = queues.iter().zip(heads).filter_map(|(queue, head)| queue.get(head));
    let waiting: Vec<String> =
        waiting.map(|&i| format!("{} waits at {i}: {}", stream[i].module(), stream[i])).collect();
    let fills: Vec<String> = Queue::NAMES.iter().zip(tokens).map(|(name, fill)| format!("{name} {fill}")).collect();
    format!("deadlock: {}; tokens: {}", waiting.join("; "), fills.join(", "))
}

/// Advances a linear congruential generator and returns its upper bits.
fn next_random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// State of a simulated device.
struct Machine<'a> {
    config: &'a Config,
    sram: Sram,
    dram: &'a mut Dram,
    mode: Mode,
    counters: Counters,
}

impl Machine<'_> {
    fn execute(&mut self, op: &Op) -> Result<(), String> {
        match op {
            Op::Load(transfer) => self.load(transfer),
            Op::Store(transfer) => self.store(transfer),
            Op::Gemm(gemm) => self.gemm(gemm),
            Op::Alu(alu) => self.alu(alu),
            Op::Finish => Ok(()),
        }
    }
}

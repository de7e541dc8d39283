//! Functional simulation: the results of a stream, without timing.
//!
//! Each module executes its instructions in order. A seed determines which module executes next, so the results of a
//! stream with a missing token depend on the seed. A deadlock is reported with the next instruction of each module.

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

/// Simulation rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Rules of VTA's own functional simulator: STORE reads the results from the accumulators.
    #[default]
    Functional,
    /// Rules that all hardware designs share: a result memory that only computations write, 5-bit shift amounts, no
    /// padding of weights.
    Strict,
}

/// Simulation options.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Simulation rules to apply.
    pub mode: Mode,
    /// Seed of the module schedule.
    pub seed: u64,
    /// True to execute instructions one by one in stream order, as VTA's runtime does on request.
    pub serial: bool,
    /// Maximum number of executed instructions; 0 for no limit.
    pub max_instructions: u64,
}

/// Number of instructions between two cancellation checks.
const CANCELLATION_INTERVAL: u64 = 64;

/// Simulation error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimError {
    /// Index of the instruction in the stream; `None` for a deadlock.
    pub instruction: Option<usize>,
    /// Description of the error.
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

/// Executes a stream to completion, and returns the counters.
///
/// # Errors
/// If an access is outside a memory, the stream deadlocks, or the mode does not allow an instruction.
pub fn run(config: &Config, stream: &[Insn], dram: &mut Dram, options: &Options) -> Result<Counters, SimError> {
    run_unless(config, stream, dram, options, &mut || false)
}

/// Executes a stream like [`run`], but stops when `is_cancelled` returns true. `is_cancelled` is called between
/// instructions.
///
/// # Errors
/// Under the conditions of [`run`], or if `is_cancelled` returns true.
pub fn run_unless(
    config: &Config,
    stream: &[Insn],
    dram: &mut Dram,
    options: &Options,
    is_cancelled: &mut dyn FnMut() -> bool,
) -> Result<Counters, SimError> {
    let mut machine =
        Machine { config, sram: Sram::new(config), dram, mode: options.mode, counters: Counters::default() };
    let queues = tokens::by_module(stream);
    let mut heads = [0usize; MODULES];
    let mut tokens = [0u64; QUEUES];
    let mut random = options.seed;
    let mut executed_count = 0u64;
    loop {
        let mut ready_insns = Vec::with_capacity(MODULES);
        for (module, queue) in queues.iter().enumerate() {
            let Some(&index) = queue.get(heads[module]) else { continue };
            let error_at = |message| SimError { instruction: Some(index), message };
            let pops = tokens::popped_queues(stream[index].module(), &stream[index].deps).map_err(error_at)?;
            if pops.iter().flatten().all(|queue| tokens[*queue as usize] > 0) {
                ready_insns.push((module, index, pops));
            }
        }
        if ready_insns.is_empty() {
            break;
        }
        let chosen_index = match options.serial {
            false => next_random(&mut random) as usize % ready_insns.len(),
            true => match ready_insns.iter().position(|(_, index, _)| *index as u64 == executed_count) {
                Some(chosen_index) => chosen_index,
                None => break,
            },
        };
        let (module, index, pops) = ready_insns[chosen_index];
        let error_at = |message| SimError { instruction: Some(index), message };
        pops.iter().flatten().for_each(|queue| tokens[*queue as usize] -= 1);
        machine.execute(&stream[index].op).map_err(error_at)?;
        let pushed_queues = tokens::pushed_queues(stream[index].module(), &stream[index].deps).map_err(error_at)?;
        pushed_queues.iter().flatten().for_each(|queue| tokens[*queue as usize] += 1);
        heads[module] += 1;
        executed_count += 1;
        if executed_count.is_multiple_of(CANCELLATION_INTERVAL) && is_cancelled() {
            return Err(SimError { instruction: Some(index), message: "cancelled".into() });
        }
        if options.max_instructions > 0 && executed_count > options.max_instructions {
            let message =
                format!("expected at most {} executed instructions, found {executed_count}", options.max_instructions);
            return Err(SimError { instruction: Some(index), message });
        }
    }
    if heads.iter().zip(&queues).any(|(head, queue)| *head < queue.len()) {
        return Err(SimError { instruction: None, message: deadlock(stream, &queues, heads, tokens) });
    }
    Ok(machine.counters)
}

/// Describes a deadlock: the instruction at which each module waits, and the number of tokens in each queue.
fn deadlock(stream: &[Insn], queues: &[Vec<usize>; MODULES], heads: [usize; MODULES], tokens: [u64; QUEUES]) -> String {
    let blocked_insns = queues.iter().zip(heads).filter_map(|(queue, head)| queue.get(head));
    let blocked_insns: Vec<String> =
        blocked_insns.map(|&i| format!("{} waits at {i}: {}", stream[i].module(), stream[i])).collect();
    let token_counts: Vec<String> =
        Queue::NAMES.iter().zip(tokens).map(|(name, token_count)| format!("{name} {token_count}")).collect();
    format!("deadlock: {}; tokens: {}", blocked_insns.join("; "), token_counts.join(", "))
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

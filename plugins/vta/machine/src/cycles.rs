//! Cycle model of a stream: a model of the three modules, fitted to measurements on hardware.
//!
//! Each instruction has a duration, a module executes one instruction at a time, and a token carries the time at which
//! it was pushed. The matrix unit executes one step per cycle, the vector unit one step per two cycles. Each row of a
//! transfer costs a latency plus the time for its bytes.

use crate::config::{Config, Profile};
use crate::isa::{Insn, Module, Op, Transfer};
use crate::tokens::{self, MODULES, QUEUES};
use std::collections::VecDeque;

/// Predicted times of a stream, in cycles.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timing {
    /// Cycles from the start of the stream to the end of its last instruction.
    pub total: f64,
    /// Busy cycles of each module: LOAD, COMPUTE, STORE.
    pub busy: [f64; MODULES],
    /// End time of each instruction, in stream order.
    pub ends: Vec<f64>,
}

/// Memory bandwidth and latencies of a profile.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// Bytes per cycle between DRAM and the on-chip memories.
    pub bandwidth: f64,
    /// Latency of each transfer row before its first byte, in cycles.
    pub row: f64,
    /// Latency of each transfer before its first row, in cycles.
    pub transfer: f64,
}

impl Rates {
    /// Returns the rates of a profile.
    pub fn of(profile: Profile) -> Rates {
        match profile {
            Profile::Pynq => Rates { bandwidth: 3.5, row: 20.0, transfer: 0.0 },
            Profile::Tsim => Rates { bandwidth: 8.0, row: 16.0, transfer: 60.0 },
        }
    }
}

/// Startup cycles of a matrix or vector instruction before its first step.
const START: f64 = 10.0;

/// Returns the duration of an instruction in cycles.
pub fn duration(config: &Config, insn: &Insn, rates: &Rates) -> f64 {
    match &insn.op {
        Op::Gemm(gemm) => gemm.loops.steps() as f64 + START,
        Op::Alu(alu) => 2.0 * alu.loops.steps() as f64 + START,
        Op::Load(transfer) | Op::Store(transfer) => transfer_time(config, transfer, rates),
        Op::Finish => 0.0,
    }
}

fn transfer_time(config: &Config, transfer: &Transfer, rates: &Rates) -> f64 {
    if transfer.is_no_op() {
        return 0.0;
    }
    let bytes = usize::from(transfer.x_size) * config.element_bytes(transfer.memory);
    rates.transfer + f64::from(transfer.y_size) * (rates.row + bytes as f64 / rates.bandwidth)
}

/// Returns the predicted times of a stream; `None` if it cannot run to completion.
pub fn time(config: &Config, stream: &[Insn]) -> Option<Timing> {
    let rates = Rates::of(config.profile);
    let queues = tokens::by_module(stream);
    let mut heads = [0usize; MODULES];
    let mut idle_times = [0.0f64; MODULES];
    let mut token_times: [VecDeque<f64>; QUEUES] = Default::default();
    let mut timing = Timing { ends: vec![0.0; stream.len()], ..Timing::default() };
    loop {
        let mut has_progressed = false;
        for module in [Module::Load, Module::Compute, Module::Store] {
            while let Some(&index) = queues[module as usize].get(heads[module as usize]) {
                let insn = &stream[index];
                let pops = tokens::popped_queues(module, &insn.deps).ok()?;
                if pops.iter().flatten().any(|queue| token_times[*queue as usize].is_empty()) {
                    break;
                }
                let arrival_times = pops.iter().flatten().filter_map(|queue| token_times[*queue as usize].pop_front());
                let start = arrival_times.fold(idle_times[module as usize], f64::max);
                let elapsed = duration(config, insn, &rates);
                let end = start + elapsed;
                for queue in tokens::pushed_queues(module, &insn.deps).ok()?.into_iter().flatten() {
                    token_times[queue as usize].push_back(end);
                }
                idle_times[module as usize] = end;
                timing.busy[module as usize] += elapsed;
                timing.ends[index] = end;
                timing.total = timing.total.max(end);
                heads[module as usize] += 1;
                has_progressed = true;
            }
        }
        if !has_progressed {
            break;
        }
    }
    let is_finished = heads.iter().zip(&queues).all(|(head, queue)| *head == queue.len());
    is_finished.then_some(timing)
}

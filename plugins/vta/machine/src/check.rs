//! Static verification of a stream without its data: every access is within a memory or a buffer, the stream
//! terminates, and tokens order every pair of accesses that includes a write.
//!
//! Vector clocks define the order: an instruction happens after the earlier instructions of its module, and after the
//! instructions whose tokens it pops.

use crate::config::Config;
use crate::isa::{Gemm, Insn, Loops, Memory, Module, Op, Transfer, Uop};
use crate::tokens::{self, MODULES, QUEUES, Queue};
use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;

/// Maximum queue length, in tokens, that every hardware design supports.
pub const MAX_TOKENS: usize = 8;

/// Buffer in DRAM that a stream may access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Range of byte addresses.
    pub range: Range<usize>,
    /// True if the stream may write to the buffer.
    pub writable: bool,
    /// Micro-operations in the buffer, if any. They determine the elements that instructions access.
    pub uops: Option<Vec<u32>>,
}

/// Violation of a rule by an instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Index of the instruction in the stream; `None` for the stream as a whole.
    pub instruction: Option<usize>,
    /// Description of the violation, with expected and found values.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.instruction {
            Some(index) => write!(f, "instruction {index}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for Violation {}

/// Vector clock: for each module, the number of instructions that have happened by the end of an instruction.
type Clock = [u32; MODULES];

/// Checks a stream.
///
/// # Errors
/// If the stream violates a rule. The error is the first violation.
pub fn check(config: &Config, stream: &[Insn], segments: &[Segment]) -> Result<(), Violation> {
    let mut checker = Checker::new(config, segments);
    let queues = tokens::by_module(stream);
    let mut heads = [0usize; MODULES];
    let mut clocks: [Clock; MODULES] = Default::default();
    let mut produced_tokens: [VecDeque<Clock>; QUEUES] = Default::default();
    loop {
        let mut has_progressed = false;
        for module in [Module::Load, Module::Compute, Module::Store] {
            let module_index = module as usize;
            let Some(&index) = queues[module_index].get(heads[module_index]) else { continue };
            let insn = &stream[index];
            let violation_at = |message| Violation { instruction: Some(index), message };
            let pops = tokens::popped_queues(module, &insn.deps).map_err(violation_at)?;
            if pops.iter().flatten().any(|queue| produced_tokens[*queue as usize].is_empty()) {
                continue;
            }
            for clock in pops.iter().flatten().filter_map(|queue| produced_tokens[*queue as usize].pop_front()) {
                clocks[module_index] = std::array::from_fn(|i| clocks[module_index][i].max(clock[i]));
            }
            clocks[module_index][module_index] += 1;
            checker.visit(insn, module, clocks[module_index]).map_err(violation_at)?;
            for queue in tokens::pushed_queues(module, &insn.deps).map_err(violation_at)?.into_iter().flatten() {
                let tokens = &mut produced_tokens[queue as usize];
                tokens.push_back(clocks[module_index]);
                if tokens.len() > MAX_TOKENS {
                    let name = Queue::NAMES[queue as usize];
                    return Err(violation_at(format!(
                        "{name}: expected at most {MAX_TOKENS} tokens, found {}",
                        tokens.len()
                    )));
                }
            }
            heads[module_index] += 1;
            has_progressed = true;
        }
        if !has_progressed {
            break;
        }
    }
    if let Some((module, index)) = first_pending(&queues, heads) {
        let message = format!("deadlock: {module} waits for a token that no instruction pushes: {}", stream[index]);
        return Err(Violation { instruction: Some(index), message });
    }
    let stream_violation = |message| Violation { instruction: None, message };
    if let Some(queue) = produced_tokens.iter().position(|tokens| !tokens.is_empty()) {
        let (name, remaining) = (Queue::NAMES[queue], produced_tokens[queue].len());
        return Err(stream_violation(format!("{name}: expected no token at the end of the stream, found {remaining}")));
    }
    match stream.iter().filter(|insn| insn.op == Op::Finish).count() {
        1 if stream.last().is_some_and(|insn| insn.op == Op::Finish) => Ok(()),
        count => Err(stream_violation(format!(
            "expected a single FINISH, at the end of the stream, found {count} in the stream"
        ))),
    }
}

/// Minimum distance between two steps of a matrix instruction that write the same accumulator: the pipeline depth of
/// the hardware designs, with a margin.
pub const MIN_DISTANCE: usize = 4;

/// Checks that no matrix instruction adds to an accumulator again before the pipeline has written it. The simulators
/// and some hardware designs have no such pipeline, but a portable stream must pass.
///
/// # Errors
/// If an instruction has such a hazard. The error is the first violation.
pub fn check_hazards(config: &Config, stream: &[Insn], segments: &[Segment]) -> Result<(), Violation> {
    let mut checker = Checker::new(config, segments);
    for (index, insn) in stream.iter().enumerate() {
        let violation_at = |message| Violation { instruction: Some(index), message };
        match &insn.op {
            Op::Load(transfer) if transfer.memory == Memory::Uop && !transfer.is_no_op() => {
                checker.load_uops(transfer).map_err(violation_at)?;
            }
            Op::Gemm(gemm) if !gemm.reset => {
                let mut recent_accesses = VecDeque::<usize>::new();
                let uops = checker.known_uops(&gemm.loops).map_err(violation_at)?;
                let step = |dst: usize| {
                    if let Some(position) = recent_accesses.iter().rev().position(|recent| *recent == dst) {
                        let distance = position + 1;
                        return Err(format!(
                            "ACC[{dst}]: expected at least {MIN_DISTANCE} steps between accumulations, found {distance}"
                        ));
                    }
                    recent_accesses.push_back(dst);
                    if recent_accesses.len() == MIN_DISTANCE {
                        recent_accesses.pop_front();
                    }
                    Ok(())
                };
                for_each_sum(&uops, gemm, step).map_err(violation_at)?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns the first module with pending instructions, and the index of its next instruction.
fn first_pending(queues: &[Vec<usize>; MODULES], heads: [usize; MODULES]) -> Option<(Module, usize)> {
    let modules = [Module::Load, Module::Compute, Module::Store];
    modules.into_iter().zip(queues).zip(heads).find_map(|((module, queue), head)| Some((module, *queue.get(head)?)))
}

/// Latest accesses to an element: the last write, and the last read by each module since then.
#[derive(Clone, Copy, Default)]
struct Accesses {
    write: Option<(Module, u32)>,
    reads: [u32; MODULES],
}

impl Accesses {
    /// Records an access. Returns false if an earlier conflicting access does not happen before it.
    fn record(&mut self, module: Module, clock: Clock, writes: bool) -> bool {
        let is_after_write = self.write.is_none_or(|(writer, time)| clock[writer as usize] >= time);
        let is_after_reads = !writes || self.reads.iter().zip(clock).all(|(read, clock)| clock >= *read);
        if writes {
            *self = Accesses { write: Some((module, clock[module as usize])), reads: [0; MODULES] };
        } else {
            self.reads[module as usize] = clock[module as usize];
        }
        is_after_write && is_after_reads
    }
}

/// Maximum number of accesses that a check records: about 20 times the number for ResNet-18. A check of this size takes
/// seconds.
pub const MAX_ACCESSES: u64 = 1 << 28;

/// Size in bytes of a granule, the unit in which accesses to DRAM are recorded.
const GRANULE: usize = 16;

struct Checker<'a> {
    config: &'a Config,
    segments: &'a [Segment],
    /// Contents of the micro-operation memory; `None` for entries that are not loaded.
    uops: Vec<Option<u32>>,
    /// Accesses to the elements of INP, WGT and ACC.
    sram: [Vec<Accesses>; 3],
    /// Accesses to the granules of each segment.
    dram: Vec<Vec<Accesses>>,
    /// Number of accesses so far.
    accesses: u64,
}

/// Returns the granules of an address range.
fn granules(range: &Range<usize>) -> Range<usize> {
    range.start / GRANULE..range.end.div_ceil(GRANULE)
}

impl<'a> Checker<'a> {
    fn new(config: &'a Config, segments: &'a [Segment]) -> Checker<'a> {
        Checker {
            config,
            segments,
            uops: vec![None; config.depth(Memory::Uop)],
            sram: [Memory::Inp, Memory::Wgt, Memory::Acc].map(|memory| vec![Accesses::default(); config.depth(memory)]),
            dram: segments.iter().map(|segment| vec![Accesses::default(); granules(&segment.range).len()]).collect(),
            accesses: 0,
        }
    }

    fn visit(&mut self, insn: &Insn, module: Module, clock: Clock) -> Result<(), String> {
        match &insn.op {
            Op::Finish => Ok(()),
            Op::Load(transfer) | Op::Store(transfer) if transfer.is_no_op() => Ok(()),
            Op::Load(transfer) => {
                if transfer.memory == Memory::Out {
                    return Err("expected a load of UOP, WGT, INP or ACC, found OUT".into());
                }
                if transfer.memory == Memory::Acc8 && !self.config.has_acc_8bit() {
                    return Err("the device cannot load bytes into accumulators (ACC_8BIT)".into());
                }
                let memory = if transfer.memory == Memory::Acc8 { Memory::Acc } else { transfer.memory };
                for element in self.elements(memory, transfer)? {
                    self.access(memory, element, module, clock, true)?;
                }
                self.transfer(transfer, module, clock, false)?;
                if memory == Memory::Uop { self.load_uops(transfer) } else { Ok(()) }
            }
            Op::Store(transfer) => {
                if transfer.memory != Memory::Out {
                    return Err(format!("expected a store of OUT, found {}", transfer.memory));
                }
                if transfer.x_pad != [0; 2] || transfer.y_pad != [0; 2] {
                    return Err(format!(
                        "expected a store without padding, found {:?} in x and {:?} in y",
                        transfer.x_pad, transfer.y_pad
                    ));
                }
                for element in self.elements(Memory::Acc, transfer)? {
                    self.access(Memory::Acc, element, module, clock, false)?;
                }
                self.transfer(transfer, module, clock, true)
            }
            Op::Gemm(gemm) => {
                let uops = self.known_uops(&gemm.loops)?;
                let mut visit = |memory, index: fn(&Uop) -> u32, factors, writes| {
                    for_each_element(uops.iter().map(index), factors, &gemm.loops, |element| {
                        self.access(memory, element, module, clock, writes)
                    })
                };
                visit(Memory::Acc, |uop| uop.dst, gemm.dst, true)?;
                if gemm.reset {
                    return Ok(());
                }
                visit(Memory::Inp, |uop| uop.src, gemm.src, false)?;
                visit(Memory::Wgt, |uop| uop.wgt, gemm.wgt, false)
            }
            Op::Alu(alu) => {
                let uops = self.known_uops(&alu.loops)?;
                let mut visit = |index: fn(&Uop) -> u32, factors, writes| {
                    for_each_element(uops.iter().map(index), factors, &alu.loops, |element| {
                        self.access(Memory::Acc, element, module, clock, writes)
                    })
                };
                if !alu.use_imm {
                    visit(|uop| uop.src, alu.src, false)?;
                }
                visit(|uop| uop.dst, alu.dst, true)
            }
        }
    }

    /// Counts an access, up to [`MAX_ACCESSES`], which bounds the time of a check.
    fn count(&mut self) -> Result<(), String> {
        self.accesses += 1;
        match self.accesses > MAX_ACCESSES {
            true => Err(format!("expected at most {MAX_ACCESSES} memory accesses, found at least {}", self.accesses)),
            false => Ok(()),
        }
    }

    /// Returns the number of usable elements in a memory.
    fn limit(&self, memory: Memory) -> usize {
        if memory == Memory::Uop { self.config.uop_entries() } else { self.config.depth(memory) }
    }

    /// Returns the range of memory elements that a transfer accesses. The start of an empty range must be in bounds
    /// too, as in the simulators.
    fn elements(&self, memory: Memory, transfer: &Transfer) -> Result<Range<usize>, String> {
        let (limit, base) = (self.limit(memory), usize::from(transfer.sram_base));
        let end = base + transfer.rows() * transfer.row_length();
        if end > limit {
            return Err(format!("{memory}: expected element indices < {limit}, found {}", base.max(limit)));
        }
        Ok(base..end)
    }

    /// Records an access to an element of an on-chip memory.
    fn access(
        &mut self,
        memory: Memory,
        element: usize,
        module: Module,
        clock: Clock,
        writes: bool,
    ) -> Result<(), String> {
        let limit = self.limit(memory);
        if element >= limit {
            return Err(format!("{memory}: expected element indices < {limit}, found {element}"));
        }
        // One module both loads and reads micro-operations, in order, so these accesses need no tokens.
        let table = match memory {
            Memory::Inp => 0,
            Memory::Wgt => 1,
            Memory::Acc => 2,
            _ => return Ok(()),
        };
        self.count()?;
        if self.sram[table][element].record(module, clock, writes) {
            return Ok(());
        }
        let verb = if writes { "writes" } else { "reads" };
        Err(format!("{module} {verb} {memory}[{element}] without a token after the last access of another module"))
    }

    /// Checks the DRAM range of a transfer, and records its accesses.
    fn transfer(&mut self, transfer: &Transfer, module: Module, clock: Clock, writes: bool) -> Result<(), String> {
        let bytes = self.config.element_bytes(transfer.memory);
        for row in 0..usize::from(transfer.y_size) {
            let first_element = transfer.dram_base as usize + row * usize::from(transfer.x_stride);
            let range = first_element * bytes..(first_element + usize::from(transfer.x_size)) * bytes;
            let contains_range =
                |segment: &&Segment| segment.range.start <= range.start && range.end <= segment.range.end;
            let segment_index = self.segments.iter().position(|segment| contains_range(&segment));
            let segment_index = match segment_index {
                Some(segment_index) if !writes || self.segments[segment_index].writable => segment_index,
                Some(_) => {
                    return Err(format!("expected a writable buffer, found {:#x}..{:#x}", range.start, range.end));
                }
                None => {
                    let (start, end) = (range.start, range.end);
                    return Err(format!("expected addresses within one buffer, found {start:#x}..{end:#x}"));
                }
            };
            let first_granule = granules(&self.segments[segment_index].range).start;
            for granule in granules(&range) {
                self.count()?;
                if !self.dram[segment_index][granule - first_granule].record(module, clock, writes) {
                    let (address, verb) = (granule * GRANULE, if writes { "writes" } else { "reads" });
                    return Err(format!("{module} {verb} DRAM at {address:#x} without a token after the last access"));
                }
            }
        }
        Ok(())
    }

    /// Copies micro-operations to the on-chip memory. Only a single row without padding is valid, because the hardware
    /// ignores the other size fields.
    fn load_uops(&mut self, transfer: &Transfer) -> Result<(), String> {
        if transfer.y_size != 1 || transfer.rows() != 1 || transfer.row_length() != usize::from(transfer.x_size) {
            let (rows, row) = (transfer.rows(), transfer.row_length());
            return Err(format!("UOP: expected one row without padding, found {rows} rows of {row} elements"));
        }
        let start = transfer.dram_base as usize * 4;
        let segment = self.segments.iter().find(|segment| segment.uops.is_some() && segment.range.contains(&start));
        let Some((segment, uop_words)) = segment.and_then(|segment| Some((segment, segment.uops.as_ref()?))) else {
            return Err(format!("expected a micro-operation buffer at {start:#x}, found none"));
        };
        let first_word = (start - segment.range.start) / 4;
        let uop_slots = self.uops.iter_mut().skip(usize::from(transfer.sram_base)).take(usize::from(transfer.x_size));
        uop_slots.enumerate().for_each(|(i, uop_slots)| *uop_slots = uop_words.get(first_word + i).copied());
        Ok(())
    }

    /// Returns the micro-operations that loops execute.
    fn known_uops(&self, loops: &Loops) -> Result<Vec<Uop>, String> {
        let range = loops.uop_begin as usize..loops.uop_end as usize;
        let entries = self.config.uop_entries();
        if range.end > entries {
            return Err(format!("UOP: expected micro-operation indices < {entries}, found {}", range.end - 1));
        }
        let entries: Option<Vec<u32>> = self.uops.get(range.clone()).unwrap_or_default().iter().copied().collect();
        let entries = entries.ok_or_else(|| {
            let last = range.end - 1;
            format!("UOP: expected micro-operations loaded at {} to {last}, found unloaded entries", range.start)
        })?;
        Ok(entries.into_iter().map(|word| Uop::decode(word, self.config)).collect())
    }
}

/// Calls `f` with each element that an operand accesses in loops. Iterations that access the same elements again count
/// once, because an instruction counts as one access to each element.
fn for_each_element(
    indices: impl Iterator<Item = u32> + Clone,
    factors: [u16; 2],
    loops: &Loops,
    mut f: impl FnMut(usize) -> Result<(), String>,
) -> Result<(), String> {
    if indices.clone().next().is_none() {
        return Ok(());
    }
    let iteration_count = |level: usize| match factors[level] {
        0 => u32::from(loops.iterations[level].min(1)),
        _ => u32::from(loops.iterations[level]),
    };
    for y in 0..iteration_count(0) {
        for x in 0..iteration_count(1) {
            let offset = y * u32::from(factors[0]) + x * u32::from(factors[1]);
            for index in indices.clone() {
                f((index + offset) as usize)?;
            }
        }
    }
    Ok(())
}

/// Calls `f` with the accumulator of each step of a matrix instruction.
fn for_each_sum(uops: &[Uop], gemm: &Gemm, mut f: impl FnMut(usize) -> Result<(), String>) -> Result<(), String> {
    let [outer, inner] = gemm.loops.iterations.map(u32::from);
    // Iterations without micro-operations have no steps, and callers bound the time by the number of steps.
    for y in 0..if uops.is_empty() { 0 } else { outer } {
        for x in 0..inner {
            let offset = y * u32::from(gemm.dst[0]) + x * u32::from(gemm.dst[1]);
            uops.iter().try_for_each(|uop| f((uop.dst + offset) as usize))?;
        }
    }
    Ok(())
}

//! Proves that no function of a program reads memory that the same activation has not written. The memory of an
//! activation is reused between runs and holds the tensors of earlier ones, so a read of unwritten memory would reveal
//! the inputs of another client.
//!
//! The proof follows the code of a function once, from the first instruction to the last, as jumps only go forward. It
//! knows the ranges of each arena that are written on every path to an instruction: a write adds the range of its
//! register, and where paths meet, only the bytes that all of them have written remain. Ranges, not registers, carry
//! the knowledge, so a view, a result in the memory of an input, and a register that reuses the bytes of another one
//! need no rules of their own. The proof costs nothing per run. Registers that are values need none: such a register is
//! empty until it is written, and a read of an empty register is an error.
//!
//! A region writes all bytes of its results by its contract. A region from a file may break it, as nothing can be proven
//! about a blob: its memory is zeroed in each run
//! ([`Region::needs_zeroed_memory`](super::region::Region::needs_zeroed_memory)), which costs one pass of writes over its
//! results and its workspace. Regions that this process has compiled are spared that.

use super::program::{Function, Instr, Place, Reg};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Maximum number of ranges that are visited where the paths of a function part and meet, at all branches together. A
/// program of the planner has few ranges, as its tensors fill an arena.
const MAX_VISITED_RANGES: usize = 1 << 22;

/// Disjoint ranges of bytes that do not touch: the end of each by its start.
#[derive(Clone, Debug, Default, PartialEq)]
struct Ranges(BTreeMap<usize, usize>);

impl Ranges {
    fn insert(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        let Range { mut start, mut end } = range;
        while let Some((&other_start, &other_end)) = self.0.range(..=end).next_back()
            && other_end >= start
        {
            self.0.remove(&other_start);
            start = start.min(other_start);
            end = end.max(other_end);
        }
        self.0.insert(start, end);
    }

    /// Returns the first byte of a range that is in none of these ranges.
    fn first_missing(&self, range: &Range<usize>) -> Option<usize> {
        let covered_to = self.0.range(..=range.start).next_back().map_or(0, |(_, &end)| end).max(range.start);
        (covered_to < range.end).then_some(covered_to)
    }

    /// Removes the bytes that are not in `other`.
    fn intersect(&mut self, other: &Ranges) {
        let mut common = BTreeMap::new();
        let (mut left_ranges, mut right_ranges) = (self.0.iter(), other.0.iter());
        let (mut left, mut right) = (left_ranges.next(), right_ranges.next());
        while let (Some((left_start, left_end)), Some((right_start, right_end))) = (left, right) {
            let (start, end) = (*left_start.max(right_start), *left_end.min(right_end));
            if start < end {
                common.insert(start, end);
            }
            if left_end <= right_end {
                left = left_ranges.next();
            } else {
                right = right_ranges.next();
            }
        }
        self.0 = common;
    }
}

/// Memory that is written on every path to an instruction.
#[derive(Clone, Default)]
struct Written {
    host: Ranges,
    /// Ranges of the arena in each device memory, by the index of the memory.
    devices: BTreeMap<u32, Ranges>,
    /// Registers whose tensors may be in a buffer outside of the device arena. Nothing is known about their bytes in
    /// the arena.
    imports: BTreeSet<Reg>,
}

impl Written {
    /// Returns the number of ranges.
    fn count(&self) -> usize {
        let in_devices: usize = self.devices.values().map(|ranges| ranges.0.len()).sum();
        1 + self.host.0.len() + self.devices.len() + in_devices + self.imports.len()
    }

    fn ranges(&mut self, space: Option<u32>) -> &mut Ranges {
        match space {
            None => &mut self.host,
            Some(space) => self.devices.entry(space).or_default(),
        }
    }

    fn intersect(&mut self, mut other: Written) {
        self.host.intersect(&other.host);
        for (&space, ranges) in &mut self.devices {
            ranges.intersect(other.ranges(Some(space)));
        }
        self.imports.retain(|reg| other.imports.contains(reg));
    }
}

/// Returns the device memory and the range of a register in an arena.
fn location(function: &Function, reg: Reg) -> Option<(Option<u32>, Range<usize>)> {
    let register = &function.registers[reg.index()];
    let range = |offset: usize| offset..offset.saturating_add(register.bytes().unwrap_or(0));
    match register.place {
        Place::Arena(offset) => Some((None, range(offset))),
        Place::Device { space, offset } => Some((Some(space), range(offset))),
        Place::Value | Place::Constant(_) => None,
    }
}

/// Checks that every instruction of a function reads only memory that is written on every path to it. The indices of
/// the function must be valid, and its jumps must go forward.
///
/// # Errors
/// If an instruction may read memory that is not written; the message names the instruction, the register and the
/// first such byte.
pub(super) fn check(function: &Function) -> Result<(), String> {
    if function.arena == 0 && function.device_arenas.iter().all(|bytes| *bytes == 0) {
        return Ok(());
    }
    let is_importable = importable_registers(function);
    let mut paths = Paths { function, jumps: BTreeMap::new(), visited_ranges: 0 };
    let mut current = Some(Written::default());
    for (index, instr) in function.code.iter().enumerate() {
        current = paths.arrive(index, current.take())?;
        // No path leads to an instruction without written memory.
        let Some(mut written) = current.take() else { continue };
        let (read, outs) = instr.operands();
        for (reg, (space, range)) in read.iter().filter_map(|&reg| Some((reg, location(function, reg)?))) {
            if let Some(byte) = written.ranges(space).first_missing(&range)
                && !written.imports.contains(&reg)
            {
                let memory = space.map_or_else(|| "the arena".to_owned(), |space| format!("device space {space}"));
                return Err(format!(
                    "instruction {index}: register {}: expected {memory} to be written before it is read at {range:?}, \
                     found byte {byte} unwritten",
                    reg.0
                ));
            }
        }
        for (reg, (space, range)) in outs.iter().filter_map(|&reg| Some((reg, location(function, reg)?))) {
            match instr {
                Instr::Copy { from, .. } if is_importable[reg.index()] && is_value(function, *from) => {
                    written.imports.insert(reg);
                }
                _ => written.ranges(space).insert(range),
            }
        }
        current = match instr {
            Instr::Jump { to } => {
                paths.jump(*to, written)?;
                None
            }
            Instr::Branch { otherwise, .. } | Instr::Test { otherwise, .. } => {
                paths.jump(*otherwise, written.clone())?;
                Some(written)
            }
            Instr::Return { .. } | Instr::TailCall { .. } | Instr::TailCallClosure { .. } | Instr::Unmatched { .. } => {
                None
            }
            _ => Some(written),
        };
    }
    Ok(())
}

/// Paths through a function that continue at a later instruction.
struct Paths<'f> {
    function: &'f Function,
    /// Memory that is written on every jump to an instruction, by its index.
    jumps: BTreeMap<usize, Written>,
    visited_ranges: usize,
}

impl Paths<'_> {
    /// Returns the memory that is written on every path to an instruction, given the memory that is written when the
    /// previous instruction continues with it.
    fn arrive(&mut self, index: usize, previous: Option<Written>) -> Result<Option<Written>, String> {
        match (previous, self.jumps.remove(&index)) {
            (Some(mut written), Some(jumping)) => {
                self.visit(&[&written, &jumping])?;
                written.intersect(jumping);
                Ok(Some(written))
            }
            (previous, jumping) => Ok(previous.or(jumping)),
        }
    }

    /// Adds a path that continues at a later instruction.
    fn jump(&mut self, to: u32, written: Written) -> Result<(), String> {
        self.visit(&[&written])?;
        match self.jumps.entry(to as usize) {
            Entry::Vacant(entry) => drop(entry.insert(written)),
            Entry::Occupied(mut entry) => {
                self.visited_ranges += entry.get().count();
                entry.get_mut().intersect(written);
            }
        }
        Ok(())
    }

    /// Counts the ranges, so that a program with many branches cannot make the check slow.
    fn visit(&mut self, sets: &[&Written]) -> Result<(), String> {
        self.visited_ranges += sets.iter().map(|written| written.count()).sum::<usize>();
        match self.visited_ranges > MAX_VISITED_RANGES {
            true => Err(format!(
                "expected at most {MAX_VISITED_RANGES} ranges of written memory at the branches of {} instructions, \
                 found more",
                self.function.code.len()
            )),
            false => Ok(()),
        }
    }
}

fn is_value(function: &Function, reg: Reg) -> bool {
    function.registers[reg.index()].place == Place::Value
}

/// Returns, for each register, whether it is written exactly once, and read only by regions that do not compute in
/// place on it. A device may read such a copy of a tensor where the tensor is, in host memory.
pub(super) fn importable_registers(function: &Function) -> Vec<bool> {
    let mut is_importable = vec![false; function.registers.len()];
    let copies = function.code.iter().filter(|instr| matches!(instr, Instr::Copy { .. }));
    copies.flat_map(|instr| instr.operands().1).for_each(|reg| is_importable[reg.index()] = true);
    if !is_importable.contains(&true) {
        return is_importable;
    }
    let mut writes = vec![0u32; function.registers.len()];
    for instr in &function.code {
        let (read, outs) = instr.operands();
        outs.iter().for_each(|reg| writes[reg.index()] += 1);
        match instr {
            Instr::Region { inputs, in_place, .. } => {
                let reused = in_place.iter().filter_map(|[_, input]| inputs.get(*input as usize));
                reused.for_each(|reg| is_importable[reg.index()] = false);
            }
            _ => read.iter().for_each(|reg| is_importable[reg.index()] = false),
        }
    }
    is_importable.iter().zip(writes).map(|(is_importable, writes)| *is_importable && writes == 1).collect()
}

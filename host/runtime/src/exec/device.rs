//! Device memory during a run: locations of the tensors of a step, copies, and unfinished runs.

use super::program::Reg;
use super::value::bad_program;
use crate::cancel::Cancel;
use crate::error::fault;
use byoc_ir::diag::Diagnostic;
use byoc_ir::tensor::Tensor;
use byoc_plugin_api::device::DeviceWorkspace;
use byoc_plugin_api::host::device::{Buffer, Event, Memory};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Alignment of the offsets that the planner chooses in a device arena, in bytes.
pub const ALIGNMENT: usize = byoc_plugin_api::host::device::MAX_ALIGNMENT;

/// Minimum alignment of offsets in a device arena, in bytes. Artifacts of version 0.1 have offsets of this alignment.
pub(super) const MIN_ALIGNMENT: usize = 256;

/// Interval at which cancellation is checked while a device works.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Time limit for a device to finish after its run was cancelled. After that, the device is considered lost, and its
/// memory is not reused.
const GRACE_PERIOD: Duration = Duration::from_millis(500);

/// Device memory shared by the programs that use it.
pub struct DeviceSpace {
    /// Interface to the device memory.
    pub memory: Memory,
    /// Lock that serializes runs, for a device that serves one run at a time.
    pub one_run: Mutex<()>,
    /// Callback that adds a number of copied bytes to the named counter.
    pub count: Box<dyn Fn(&str, u64) + Send + Sync>,
}

/// Device memory of each space of a program; `None` if the tensors of the space are in host memory.
pub type DeviceSpaces = Vec<Option<Arc<DeviceSpace>>>;

/// Tensor in the memory of a device.
#[derive(Clone)]
pub struct DeviceSlice {
    /// Device buffer that holds the tensor.
    pub buffer: Buffer,
    /// Offset of the first byte in the buffer.
    pub offset: usize,
}

/// Operands of a region that are in device memory; `None` for an operand in host memory.
#[derive(Default)]
pub struct DeviceOperands {
    /// Inputs, in the order of the region's parameters.
    pub inputs: SmallVec<[Option<DeviceSlice>; 8]>,
    /// Outputs, in the order of the region's results.
    pub outputs: SmallVec<[Option<DeviceSlice>; 4]>,
    /// Workspace of the run.
    pub workspace: Option<DeviceWorkspace>,
}

/// Tensor in host memory that a device reads in place.
pub(super) struct SharedTensor(pub Tensor);

impl AsRef<[u8]> for SharedTensor {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

/// Ranges of a device arena that a step reads and writes.
#[derive(Clone, Default)]
pub(super) struct Footprint {
    pub space: u32,
    pub reads: Vec<Range<usize>>,
    pub writes: Vec<Range<usize>>,
}

fn ranges_overlap(ranges: &[Range<usize>], other_ranges: &[Range<usize>]) -> bool {
    ranges.iter().any(|a| other_ranges.iter().any(|b| a.start < b.end && b.start < a.end))
}

impl Footprint {
    /// Returns an empty footprint.
    pub(super) fn of(space: u32) -> Footprint {
        Footprint { space, ..Footprint::default() }
    }

    /// Adds an access; returns `None` if it overlaps a write, or is a write that overlaps another access.
    pub(super) fn add(&mut self, range: Range<usize>, writes: bool) -> Option<()> {
        let range = [range];
        if ranges_overlap(&self.writes, &range) || (writes && ranges_overlap(&self.reads, &range)) {
            return None;
        }
        let target_ranges = if writes { &mut self.writes } else { &mut self.reads };
        target_ranges.extend(range);
        Some(())
    }

    /// Returns true if one of the two steps writes to a range that the other accesses.
    fn conflicts_with(&self, other_ranges: &Footprint) -> bool {
        self.space == other_ranges.space
            && (ranges_overlap(&self.writes, &other_ranges.writes)
                || ranges_overlap(&self.writes, &other_ranges.reads)
                || ranges_overlap(&self.reads, &other_ranges.writes))
    }
}

/// Unfinished region runs, all in the topmost activation.
#[derive(Default)]
pub(super) struct Unfinished(Vec<(Event, Footprint, u32)>);

impl Unfinished {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds an unfinished run of a region.
    pub(super) fn push(&mut self, event: Event, footprint: Footprint, region: u32) {
        self.0.push((event, footprint, region));
    }

    /// Returns the runs that a step has to wait for.
    pub(super) fn dependencies(&self, step: &Footprint) -> SmallVec<[&Event; 4]> {
        self.0.iter().filter(|(_, footprint, _)| footprint.conflicts_with(step)).map(|(event, ..)| event).collect()
    }

    /// Waits for the runs that conflict with a step, or for all runs if `step` is `None`.
    ///
    /// # Errors
    /// If a run fails; the error has the index of its region. After a cancellation, the wait ends without an error.
    pub(super) fn wait(&mut self, step: Option<&Footprint>, cancel: &Cancel) -> Result<(), (Diagnostic, u32)> {
        let is_conflict = |footprint: &Footprint| step.is_none_or(|step| footprint.conflicts_with(step));
        let mut index = 0;
        while let Some((event, footprint, region)) = self.0.get(index) {
            if !is_conflict(footprint) {
                index += 1;
                continue;
            }
            let is_done = event.wait(POLL_INTERVAL).map_err(|error| (fault(&error), *region));
            if is_done.is_err() || matches!(is_done, Ok(true)) {
                self.0.remove(index);
                is_done?;
            } else if cancel.is_set() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Waits for all work after a run has failed or been cancelled. Returns the regions whose device does not finish in
    /// time and may still write to memory.
    pub(super) fn abandon(&mut self) -> Vec<u32> {
        let end = Instant::now() + GRACE_PERIOD;
        let mut lost_regions = Vec::new();
        for (event, _, region) in self.0.drain(..) {
            let remaining = end.saturating_duration_since(Instant::now());
            if matches!(event.wait(remaining), Ok(false)) {
                lost_regions.push(region);
            }
        }
        lost_regions
    }
}

/// Device memory of an activation.
#[derive(Default)]
pub(super) struct DeviceFrame {
    /// Arena in the memory of each space; `None` for empty arenas.
    arenas: Vec<Option<Buffer>>,
    /// Registers whose contents are in a buffer outside the arena.
    imports: Vec<(Reg, Buffer)>,
}

impl DeviceFrame {
    /// Creates the memory of an activation with the given arenas.
    pub(super) fn new(arenas: Vec<Option<Buffer>>) -> DeviceFrame {
        DeviceFrame { arenas, imports: Vec::new() }
    }

    /// Returns true if there is no device memory.
    pub(super) fn is_empty(&self) -> bool {
        self.imports.is_empty() && self.arenas.iter().all(Option::is_none)
    }

    /// Fills the arenas with zeros; `sizes` are their sizes in bytes.
    ///
    /// # Errors
    /// If the device fails.
    pub(super) fn zero(&self, sizes: &[usize]) -> Result<(), Diagnostic> {
        const ZEROS: &[u8] = &[0; 64 << 10];
        for (arena, &bytes) in self.arenas.iter().zip(sizes) {
            let Some(arena) = arena else { continue };
            for offset in (0..bytes).step_by(ZEROS.len()) {
                arena.copy_in(offset, &ZEROS[..ZEROS.len().min(bytes - offset)]).map_err(|error| fault(&error))?;
            }
        }
        Ok(())
    }

    /// Returns the arena of a space.
    pub(super) fn arena(&self, space: u32) -> Result<&Buffer, Diagnostic> {
        let buffer = self.arenas.get(space as usize).and_then(Option::as_ref);
        buffer.ok_or_else(|| bad_program("expected an arena in device memory, found none"))
    }

    /// Returns the buffer and the offset of a register at `offset` in the arena of a space.
    pub(super) fn slice(&self, reg: Reg, space: u32, offset: usize) -> Result<(&Buffer, usize), Diagnostic> {
        match self.imports.iter().find(|(imported_reg, _)| *imported_reg == reg) {
            Some((_, buffer)) => Ok((buffer, 0)),
            None => Ok((self.arena(space)?, offset)),
        }
    }

    /// Places a register in a buffer outside the arena.
    pub(super) fn import(&mut self, reg: Reg, buffer: Buffer) {
        self.remove_import(reg);
        self.imports.push((reg, buffer));
    }

    /// Moves a register back to its place in the arena.
    pub(super) fn remove_import(&mut self, reg: Reg) {
        self.imports.retain(|(imported_reg, _)| *imported_reg != reg);
    }

    /// Releases the buffers outside the arenas.
    pub(super) fn clear_imports(&mut self) {
        self.imports.clear();
    }
}

/// Workspace of a step in device memory.
#[derive(Clone, Copy)]
pub(super) struct WorkspaceRange {
    pub space: u32,
    pub offset: usize,
    pub bytes: usize,
}

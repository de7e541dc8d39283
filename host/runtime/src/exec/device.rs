//! Memories of devices during a run: where the tensors of a step lie, copies, and runs that are not finished.

use super::value::bad_program;
use crate::cancel::Cancel;
use crate::error::fault;
use byoc_ir::diag::Diagnostic;
use byoc_plugin_api::host::device::{Buffer, Event, Memory};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Alignment of offsets in the arena of a device in bytes.
pub const ALIGNMENT: usize = byoc_plugin_api::host::device::MAX_ALIGNMENT;

/// Time between two looks at the cancellation while a device works.
const POLL: Duration = Duration::from_millis(10);

/// Time that a device has to finish after the run was cancelled. Then it counts as lost: its memory cannot be used again.
const GRACE: Duration = Duration::from_millis(500);

/// Memory of a device that programs use.
pub struct DeviceSpace {
    /// Memory.
    pub memory: Memory,
    /// Lock of runs, for a device that serves one at a time.
    pub one_run: Mutex<()>,
    /// Counts the bytes that are copied, by the name of the counter.
    pub count: Box<dyn Fn(&str, u64) + Send + Sync>,
}

/// Memories of a program's spaces; `None` where the tensors live in the host's memory.
pub type DeviceSpaces = Vec<Option<Arc<DeviceSpace>>>;

/// Tensor in the memory of a device.
#[derive(Clone)]
pub struct DeviceSlice {
    /// Buffer.
    pub buffer: Buffer,
    /// Offset of the first byte.
    pub offset: usize,
}

/// Operands of a region in the memory of a device; `None` for those in the host's.
#[derive(Default)]
pub struct DeviceOperands {
    /// Inputs.
    pub inputs: SmallVec<[Option<DeviceSlice>; 8]>,
    /// Outputs.
    pub outputs: SmallVec<[Option<DeviceSlice>; 4]>,
}

/// Ranges of a device's arena that a step reads and writes.
#[derive(Clone, Default)]
pub(super) struct Footprint {
    pub space: u32,
    pub reads: Vec<Range<usize>>,
    pub writes: Vec<Range<usize>>,
}

fn overlap(one: &[Range<usize>], other: &[Range<usize>]) -> bool {
    one.iter().any(|a| other.iter().any(|b| a.start < b.end && b.start < a.end))
}

impl Footprint {
    /// Returns an empty footprint.
    pub(super) fn of(space: u32) -> Footprint {
        Footprint { space, ..Footprint::default() }
    }

    /// Adds an access; returns `None` if it overlaps a write, or is a write that overlaps another access.
    pub(super) fn add(&mut self, range: Range<usize>, writes: bool) -> Option<()> {
        let range = [range];
        if overlap(&self.writes, &range) || (writes && overlap(&self.reads, &range)) {
            return None;
        }
        let to = if writes { &mut self.writes } else { &mut self.reads };
        to.extend(range);
        Some(())
    }

    /// Returns true if one of two steps writes what the other accesses.
    fn conflicts(&self, other: &Footprint) -> bool {
        self.space == other.space
            && (overlap(&self.writes, &other.writes)
                || overlap(&self.writes, &other.reads)
                || overlap(&self.reads, &other.writes))
    }
}

/// Runs of regions that are not finished, all of them in the topmost activation.
#[derive(Default)]
pub(super) struct Unfinished(Vec<(Event, Footprint, u32)>);

impl Unfinished {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the work of a region.
    pub(super) fn push(&mut self, event: Event, footprint: Footprint, region: u32) {
        self.0.push((event, footprint, region));
    }

    /// Returns the runs that a step has to wait for.
    pub(super) fn dependencies(&self, step: &Footprint) -> SmallVec<[&Event; 4]> {
        self.0.iter().filter(|(_, footprint, _)| footprint.conflicts(step)).map(|(event, ..)| event).collect()
    }

    /// Waits for the runs that conflict with a step; for all if `step` is `None`. A failure names the region.
    ///
    /// # Errors
    /// A failed run, with the index of its region. After a cancellation the wait ends without an error.
    pub(super) fn wait(&mut self, step: Option<&Footprint>, cancel: &Cancel) -> Result<(), (Diagnostic, u32)> {
        let concerns = |footprint: &Footprint| step.is_none_or(|step| footprint.conflicts(step));
        let mut at = 0;
        while let Some((event, footprint, region)) = self.0.get(at) {
            if !concerns(footprint) {
                at += 1;
                continue;
            }
            let done = event.wait(POLL).map_err(|error| (fault(&error), *region));
            if done.is_err() || matches!(done, Ok(true)) {
                self.0.remove(at);
                done?;
            } else if cancel.is_set() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Waits for all work after a run has failed or was cancelled. Returns the regions whose device does not finish:
    /// their memory may still be written.
    pub(super) fn abandon(&mut self) -> Vec<u32> {
        let end = Instant::now() + GRACE;
        let mut lost = Vec::new();
        for (event, _, region) in self.0.drain(..) {
            let left = end.saturating_duration_since(Instant::now());
            if matches!(event.wait(left), Ok(false)) {
                lost.push(region);
            }
        }
        lost
    }
}

/// Returns the buffer of a space among those of a frame.
pub(super) fn buffer(device: &[Option<Buffer>], space: u32) -> Result<&Buffer, Diagnostic> {
    let buffer = device.get(space as usize).and_then(Option::as_ref);
    buffer.ok_or_else(|| bad_program("expected an arena in the memory of a device"))
}

//! Asynchronous runs of Rust plugins: work that continues after `run` has returned, and its workspace on the device.

use super::table::{self, EventTable, Failure, OK, PENDING, Report, StreamTable};
use super::{BufferHandle, STREAM_SERVICE};
use crate::error::Result;
use crate::guard::guard;
use crate::services::Services;
use std::ffi::c_void;
use std::mem::offset_of;
use std::time::Duration;

/// Type of [`EventTable::wait`].
type WaitFn = unsafe extern "C" fn(*mut c_void, *const Report, u32) -> i32;

/// Unfinished work of a run. If the host drops it before completion, the host has stopped waiting: the device counts as
/// lost, and the memory that the work uses is never released.
pub trait Completion: Send + Sync + 'static {
    /// Waits until the work is complete or `time` has passed. Returns true if the work is complete.
    ///
    /// # Errors
    /// If the work failed. An error with the code [`DEVICE_LOST`](super::DEVICE_LOST) makes the host repeat the run of
    /// the model without the device.
    fn wait(&self, time: Duration) -> Result<bool>;
}

/// Returns the service's table. An older host may lack the fields after `submit`.
fn service(services: &Services) -> Option<*const StreamTable> {
    services.get_service(STREAM_SERVICE).map(|table| table.as_ptr().cast_const().cast())
}

/// Submits the unfinished work of the current run to the host. Must be called on the thread on which the host
/// called `run`, at most once per run.
///
/// # Errors
/// If the host lacks the service, or needs the results when `run` returns. The caller must then wait for the returned
/// work.
pub fn submit<C: Completion>(services: &Services, work: C) -> std::result::Result<(), C> {
    let Some(service) = service(services) else { return Err(work) };
    let this = Box::into_raw(Box::new(work));
    let event =
        EventTable { struct_size: size_of::<EventTable>(), this: this.cast(), wait: wait::<C>, release: release::<C> };
    // SAFETY: the service lives as long as the process. `event` is valid for the call, and the host copies it.
    match unsafe { ((*service).submit)(&raw const event) } {
        OK => Ok(()),
        // SAFETY: the host has rejected the event, so `this` is still the only pointer to the work.
        _ => Err(*unsafe { Box::from_raw(this) }),
    }
}

unsafe extern "C" fn wait<C: Completion>(this: *mut c_void, report: *const Report, milliseconds: u32) -> i32 {
    // SAFETY: the host passes the `this` of an event that it has not released.
    let work = unsafe { &*this.cast::<C>() };
    match guard(|| work.wait(Duration::from_millis(milliseconds.into()))) {
        Ok(true) => OK,
        Ok(false) => PENDING,
        // SAFETY: the host passes the report of this call.
        Err(error) => unsafe { table::fail(report, &error) },
    }
}

unsafe extern "C" fn release<C: Completion>(this: *mut c_void) {
    // SAFETY: `submit` created `this` from a `Box`, and the host releases an event once.
    let work = unsafe { Box::from_raw(this.cast::<C>()) };
    let _ = guard(|| {
        drop(work);
        Ok(())
    });
}

/// Unfinished runs that the current run has to wait for.
pub struct Dependencies<'a>(&'a [EventTable]);

/// Returns the unfinished runs whose results the current run reads, or whose operands it overwrites. A device that
/// executes work in submission order need not call this function.
pub fn dependencies(services: &Services) -> Dependencies<'_> {
    let Some(service) = service(services) else { return Dependencies(&[]) };
    let mut events = std::ptr::null();
    // SAFETY: the service lives as long as the process. `events` is a valid output pointer for the call.
    let count = unsafe { ((*service).dependencies)(&raw mut events) };
    if count == 0 || events.is_null() {
        return Dependencies(&[]);
    }
    // SAFETY: the host keeps the `count` events until `run` returns, and the caller uses the result only within `run`.
    Dependencies(unsafe { std::slice::from_raw_parts(events, count) })
}

/// Workspace of a run in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceWorkspace {
    /// Buffer that contains the workspace.
    pub buffer: BufferHandle,
    /// Offset of the first byte, aligned like the offset of a tensor.
    pub offset: usize,
    /// Size in bytes, at least the response to [`WORKSPACE_KEY`](super::WORKSPACE_KEY).
    pub bytes: usize,
}

/// Returns the workspace of the current run in device memory. Returns `None` if the plan requires none, if its operands
/// are not all in the memory of one device, or if the host lacks the service. Runs that may execute concurrently have
/// disjoint workspaces.
pub fn workspace(services: &Services) -> Option<DeviceWorkspace> {
    let service = service(services)?;
    // SAFETY: the service lives as long as the process, and begins with its size.
    if unsafe { (*service).struct_size } < offset_of!(StreamTable, workspace) + size_of::<usize>() {
        return None;
    }
    let (mut buffer, mut offset) = (std::ptr::null_mut(), 0);
    // SAFETY: the size covers the function; the pointers are valid output pointers for the call.
    let bytes = unsafe { ((*service).workspace)(&raw mut buffer, &raw mut offset) };
    Some(DeviceWorkspace { buffer: BufferHandle::new(buffer)?, offset, bytes }).filter(|workspace| workspace.bytes > 0)
}

impl Dependencies<'_> {
    /// Returns the dependencies whose work has type `C`, which this plugin passed to [`submit`]. The current run need
    /// not wait for them if the device does.
    pub fn own<C: Completion>(&self) -> impl Iterator<Item = &C> {
        let is_same = |event: &&EventTable| std::ptr::fn_addr_eq(event.wait, wait::<C> as WaitFn);
        // SAFETY: `submit` created every event with this function from a `C`, and the host keeps it until `run`
        // returns.
        self.0.iter().filter(is_same).map(|event| unsafe { &*event.this.cast::<C>() })
    }

    /// Returns true if there are no dependencies.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Waits for the runs one after another, for at most `time` each. Returns true if all runs are complete.
    ///
    /// # Errors
    /// If a run failed.
    pub fn wait(&self, time: Duration) -> Result<bool> {
        let milliseconds = u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        for event in self.0 {
            // SAFETY: the host releases the events only after `run` has returned.
            if Failure::of(|report| unsafe { (event.wait)(event.this, report, milliseconds) })? == PENDING {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

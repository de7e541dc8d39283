//! Commands in a queue, and the wait for the last of them.

use super::Device;
use super::error::failed;
use byoc_plugin_api::{Error, Result, Services};
use cl3::event::{
    CL_COMPLETE, CL_EVENT_COMMAND_EXECUTION_STATUS, CL_PROFILING_COMMAND_END, CL_PROFILING_COMMAND_START,
    get_event_info, get_event_profiling_info, release_event, set_event_callback,
};
use cl3::types::cl_event;
use std::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Interval at which a wait looks for cancellation.
pub const INTERVAL: Duration = Duration::from_millis(10);

/// Time that a cancelled run has for the kernels that are already enqueued. A device that takes longer counts as lost. The
/// host ends a process whose plugin does not return within a second.
const GRACE: Duration = Duration::from_millis(400);

/// Command in a queue.
#[derive(Debug)]
pub struct Event {
    device: Arc<Device>,
    handle: cl_event,
}

/// Status of an event, which the library sets from a thread of its own.
#[derive(Default)]
struct Signal {
    status: Mutex<Option<i32>>,
    ended: Condvar,
}

extern "C" fn signal(_: cl_event, status: i32, data: *mut c_void) {
    // SAFETY: `data` is the reference that `Event::wait` gave away, and the library calls back once.
    let signal = unsafe { Arc::from_raw(data.cast::<Signal>().cast_const()) };
    *signal.status.lock().unwrap_or_else(PoisonError::into_inner) = Some(status);
    signal.ended.notify_all();
}

impl Event {
    /// Takes over an event of the library.
    pub fn new(device: &Arc<Device>, handle: cl_event) -> Event {
        Event { device: device.clone(), handle }
    }

    /// Waits for the end of the command and of all before it. On cancellation, commands that are already running get a
    /// moment to end; a device on which they do not is lost.
    ///
    /// # Errors
    /// A command that failed, cancellation, or a device that is lost.
    pub fn wait(&self, services: &Services) -> Result<()> {
        let device = &self.device;
        cl3::command_queue::flush(device.handles.queue).map_err(|code| device.failed("clFlush", code))?;
        let shared = Arc::new(Signal::default());
        let given = Arc::into_raw(shared.clone());
        if let Err(code) = set_event_callback(self.handle, CL_COMPLETE, signal, given.cast_mut().cast()) {
            // SAFETY: the library did not take the reference.
            drop(unsafe { Arc::from_raw(given) });
            return Err(device.failed("clSetEventCallback", code));
        }
        let mut cancelled: Option<Instant> = None;
        let mut status = shared.status.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(code) = *status {
                return self.ended(code, cancelled.is_some());
            }
            status = shared.ended.wait_timeout(status, INTERVAL).unwrap_or_else(PoisonError::into_inner).0;
            if cancelled.is_none() && services.cancelled() {
                cancelled = Some(Instant::now());
            }
            if cancelled.is_some_and(|since| since.elapsed() > GRACE) {
                device.lose();
                return Err(Error::cancelled());
            }
        }
    }

    fn ended(&self, code: i32, cancelled: bool) -> Result<()> {
        if code < 0 {
            // The context of a failed command is not usable on most drivers; a lack of memory passes.
            if !super::error::is_memory(code) {
                self.device.lose();
            }
            return Err(failed("clSetEventCallback", code));
        }
        if cancelled { Err(Error::cancelled()) } else { Ok(()) }
    }

    /// Returns the time that the command took on the device in nanoseconds; `None` if it has not ended.
    pub fn nanoseconds(&self) -> Option<u64> {
        let status = i32::from(get_event_info(self.handle, CL_EVENT_COMMAND_EXECUTION_STATUS).ok()?);
        let time = |name| get_event_profiling_info(self.handle, name).ok().map(u64::from);
        (status == CL_COMPLETE).then_some(())?;
        time(CL_PROFILING_COMMAND_END)?.checked_sub(time(CL_PROFILING_COMMAND_START)?)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if !self.device.is_lost() {
            // SAFETY: this object owns one reference.
            let _ = unsafe { release_event(self.handle) };
        }
    }
}

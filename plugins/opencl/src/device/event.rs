//! Commands in a queue, and the wait for the last of them.

use super::Device;
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

// SAFETY: the handle is a pointer that the library follows, whose functions may be called from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

/// Status of an event, which the library sets from a thread of its own.
#[derive(Debug, Default)]
struct Signal {
    status: Mutex<Option<i32>>,
    ended: Condvar,
}

impl Signal {
    /// Waits for the end, at most for `time`. Returns the status of the ended command.
    fn wait(&self, time: Duration) -> Option<i32> {
        let status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        *self
            .ended
            .wait_timeout_while(status, time, |status| status.is_none())
            .unwrap_or_else(PoisonError::into_inner)
            .0
    }
}

/// Command that goes on after the run that has enqueued it.
#[derive(Debug)]
pub struct Unfinished {
    last: Event,
    signal: Arc<Signal>,
}

impl Unfinished {
    /// Returns the command.
    pub fn event(&self) -> &Event {
        &self.last
    }

    /// Waits for the end, at most for `time`. Returns true if the command has ended.
    ///
    /// # Errors
    /// A command that failed.
    pub fn wait(&self, time: Duration) -> Result<bool> {
        match self.signal.wait(time) {
            Some(code) => self.last.device.ended(code).map(|()| true),
            None => Ok(false),
        }
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // The host does not wait any more for a command that has not ended.
        if self.signal.wait(Duration::ZERO).is_none() {
            self.last.device.lose();
        }
    }
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

    /// Lets the library signal the end of the command, and sends all commands to the device.
    fn signalled(&self) -> Result<Arc<Signal>> {
        let device = &self.device;
        cl3::command_queue::flush(device.handles.queue).map_err(|code| device.failed("clFlush", code))?;
        let shared = Arc::new(Signal::default());
        let given = Arc::into_raw(shared.clone());
        if let Err(code) = set_event_callback(self.handle, CL_COMPLETE, signal, given.cast_mut().cast()) {
            // SAFETY: the library did not take the reference.
            drop(unsafe { Arc::from_raw(given) });
            return Err(device.failed("clSetEventCallback", code));
        }
        Ok(shared)
    }

    /// Waits for the end of the command and of all before it. On cancellation, commands that are already running get a
    /// moment to end; a device on which they do not is lost.
    ///
    /// # Errors
    /// A command that failed, cancellation, or a device that is lost.
    pub fn wait(&self, services: &Services) -> Result<()> {
        let shared = self.signalled()?;
        let mut cancelled: Option<Instant> = None;
        loop {
            if let Some(code) = shared.wait(INTERVAL) {
                self.device.ended(code)?;
                return if cancelled.is_some() { Err(Error::cancelled()) } else { Ok(()) };
            }
            if cancelled.is_none() && services.cancelled() {
                cancelled = Some(Instant::now());
            }
            if cancelled.is_some_and(|since| since.elapsed() > GRACE) {
                self.device.lose();
                return Err(Error::cancelled());
            }
        }
    }

    /// Returns the command as work that goes on.
    ///
    /// # Errors
    /// Those of the library.
    pub fn unfinished(self) -> Result<Unfinished> {
        Ok(Unfinished { signal: self.signalled()?, last: self })
    }

    /// Returns the times at which the device began and ended the command, in nanoseconds of its clock; `None` if it has not
    /// ended.
    pub fn times(&self) -> Option<[u64; 2]> {
        let status = i32::from(get_event_info(self.handle, CL_EVENT_COMMAND_EXECUTION_STATUS).ok()?);
        let time = |name| get_event_profiling_info(self.handle, name).ok().map(u64::from);
        (status == CL_COMPLETE).then_some(())?;
        Some([time(CL_PROFILING_COMMAND_START)?, time(CL_PROFILING_COMMAND_END)?])
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

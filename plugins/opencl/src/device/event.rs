//! Enqueued commands, and waiting for their completion.

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

/// Interval at which a wait checks for cancellation.
pub const INTERVAL: Duration = Duration::from_millis(10);

/// Bounds of the interval at which the status of a command is polled, because some drivers call back up to 20 ms after
/// the command has ended.
const STATUS_INTERVALS: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(1)];

/// Grace period for kernels that are already enqueued when a run is cancelled. A device that takes longer is considered
/// lost. The period is shorter than one second, after which the host terminates a process whose plugin has not
/// returned.
const GRACE_PERIOD: Duration = Duration::from_millis(400);

/// Enqueued command.
#[derive(Debug)]
pub struct Event {
    device: Arc<Device>,
    handle: cl_event,
}

// SAFETY: only the OpenCL library dereferences the handle, and it accepts it from any thread (OpenCL 1.2, A.2).
unsafe impl Send for Event {}
// SAFETY: OpenCL guarantees that event functions are thread-safe (OpenCL 1.2, A.2).
unsafe impl Sync for Event {}

/// Final status of a command, set by a thread of the OpenCL library.
#[derive(Debug, Default)]
struct Signal {
    status: Mutex<Option<i32>>,
    condition: Condvar,
}

impl Signal {
    /// Waits at most `time` for the command to end. Returns its status; `None` if it has not ended.
    fn wait(&self, time: Duration) -> Option<i32> {
        let status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        *self
            .condition
            .wait_timeout_while(status, time, |status| status.is_none())
            .unwrap_or_else(PoisonError::into_inner)
            .0
    }
}

/// Command that may outlast the run that enqueued it.
#[derive(Debug)]
pub struct UnfinishedEvent {
    last_event: Event,
    signal: Arc<Signal>,
}

impl UnfinishedEvent {
    /// Returns the event of the command.
    pub fn event(&self) -> &Event {
        &self.last_event
    }

    /// Waits at most `time` for the command to end. Returns true if it has ended.
    ///
    /// # Errors
    /// If the command failed.
    pub fn wait(&self, time: Duration) -> Result<bool> {
        match self.last_event.wait_for(&self.signal, time) {
            Some(code) => self.last_event.device.check_status(code).map(|()| true),
            None => Ok(false),
        }
    }
}

impl Drop for UnfinishedEvent {
    fn drop(&mut self) {
        // The host has stopped waiting for a command that has not ended.
        if self.last_event.wait_for(&self.signal, Duration::ZERO).is_none() {
            self.last_event.device.mark_lost();
        }
    }
}

extern "C" fn signal(_: cl_event, status: i32, data: *mut c_void) {
    // SAFETY: `data` is the `Arc` that `Event::register_signal` passed to the library, which calls back once.
    let signal = unsafe { Arc::from_raw(data.cast::<Signal>().cast_const()) };
    *signal.status.lock().unwrap_or_else(PoisonError::into_inner) = Some(status);
    signal.condition.notify_all();
}

impl Event {
    /// Takes ownership of an event handle.
    pub fn new(device: &Arc<Device>, handle: cl_event) -> Event {
        Event { device: device.clone(), handle }
    }

    /// Requests a signal for the end of the command, and flushes the queue. Marks the device as lost on failure,
    /// because the end of the command's accesses to host memory could then not be detected.
    fn register_signal(&self) -> Result<Arc<Signal>> {
        self.register().inspect_err(|_| self.device.mark_lost())
    }

    fn register(&self) -> Result<Arc<Signal>> {
        let device = &self.device;
        cl3::command_queue::flush(device.handles.queue).map_err(|code| device.call_error("clFlush", code))?;
        let shared_signal = Arc::new(Signal::default());
        let callback_data = Arc::into_raw(shared_signal.clone());
        if let Err(code) = set_event_callback(self.handle, CL_COMPLETE, signal, callback_data.cast_mut().cast()) {
            // SAFETY: registration failed, so the library did not take ownership of the `Arc`.
            drop(unsafe { Arc::from_raw(callback_data) });
            return Err(device.call_error("clSetEventCallback", code));
        }
        Ok(shared_signal)
    }

    /// Waits at most `time` for the signal, and polls the status of the command meanwhile. Returns the final status of
    /// the command; `None` if it has not ended.
    fn wait_for(&self, signal: &Signal, time: Duration) -> Option<i32> {
        let [shortest, longest] = STATUS_INTERVALS;
        let start = Instant::now();
        loop {
            let elapsed = start.elapsed();
            let interval = (elapsed / 8).clamp(shortest, longest).min(time.saturating_sub(elapsed));
            let status = signal.wait(interval).or_else(|| self.status().filter(|&status| status <= CL_COMPLETE));
            if status.is_some() || start.elapsed() >= time {
                return status;
            }
        }
    }

    /// Returns the status of the command: negative after a failure.
    fn status(&self) -> Option<i32> {
        get_event_info(self.handle, CL_EVENT_COMMAND_EXECUTION_STATUS).ok().map(i32::from)
    }

    /// Waits for the command and all earlier commands to end. After a cancellation, they have `GRACE_PERIOD` to end;
    /// then the device is marked as lost.
    ///
    /// # Errors
    /// If the command fails, the device is lost, or the caller cancels.
    pub fn wait(&self, services: &Services) -> Result<()> {
        let signal = self.register_signal()?;
        let mut cancelled_at: Option<Instant> = None;
        loop {
            if let Some(code) = self.wait_for(&signal, INTERVAL) {
                self.device.check_status(code)?;
                return if cancelled_at.is_some() { Err(Error::cancelled()) } else { Ok(()) };
            }
            if cancelled_at.is_none() && services.cancelled() {
                cancelled_at = Some(Instant::now());
            }
            if cancelled_at.is_some_and(|instant| instant.elapsed() > GRACE_PERIOD) {
                self.device.mark_lost();
                return Err(Error::cancelled());
            }
        }
    }

    /// Converts the event to an unfinished command, whose end the library signals.
    ///
    /// # Errors
    /// If the library cannot flush the queue or register the callback.
    pub fn into_unfinished(self) -> Result<UnfinishedEvent> {
        Ok(UnfinishedEvent { signal: self.register_signal()?, last_event: self })
    }

    /// Returns the start and end times of the command in nanoseconds of the device clock; `None` if it has not ended.
    pub fn times(&self) -> Option<[u64; 2]> {
        let status = self.status()?;
        let time = |name| get_event_profiling_info(self.handle, name).ok().map(u64::from);
        (status == CL_COMPLETE).then_some(())?;
        Some([time(CL_PROFILING_COMMAND_START)?, time(CL_PROFILING_COMMAND_END)?])
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if !self.device.is_lost() {
            // SAFETY: `self` owns one reference to the event and releases it only here.
            let _ = unsafe { release_event(self.handle) };
        }
    }
}

//! Kernels in a queue, and the wait for the last of them.

use super::Device;
use super::error::failed;
use byoc_plugin_api::{Error, Result, Services};
use cl3::command_queue::enqueue_nd_range_kernel;
use cl3::event::{
    CL_COMPLETE, CL_EVENT_COMMAND_EXECUTION_STATUS, CL_PROFILING_COMMAND_END, CL_PROFILING_COMMAND_START,
    get_event_info, get_event_profiling_info, release_event, set_event_callback,
};
use cl3::kernel::{create_kernel, release_kernel, set_kernel_arg};
use cl3::types::{cl_event, cl_kernel, cl_mem};
use std::ffi::{CString, c_void};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Interval at which a wait looks for cancellation.
const INTERVAL: Duration = Duration::from_millis(10);

/// Time that a cancelled run has for the kernels that are already enqueued. A device that takes longer counts as lost.
const GRACE: Duration = Duration::from_secs(2);

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
            return Err(failed("a kernel ended with", code));
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

/// Kernel with its arguments and its grid.
#[derive(Debug)]
pub struct Launch {
    device: Arc<Device>,
    kernel: cl_kernel,
    global: [usize; 3],
    local: [usize; 3],
}

// SAFETY: the handle is a pointer that the library follows; the object is used by one thread at a time.
unsafe impl Send for Launch {}

impl Launch {
    /// Creates a launch of the kernel `name` of a program.
    ///
    /// # Errors
    /// A program without this kernel, or a kernel with other parameters.
    pub fn new(
        program: &super::program::Program,
        name: &str,
        arguments: &[cl_mem],
        global: [usize; 3],
        local: [usize; 3],
    ) -> Result<Launch> {
        let device = program.device.clone();
        let text = CString::new(name).map_err(|_| Error::new("expected a kernel name without zero bytes"))?;
        let kernel = create_kernel(program.handle, &text)
            .map_err(|code| device.failed(&format!("clCreateKernel {name}"), code))?;
        let launch = Launch { device, kernel, global, local };
        for (i, argument) in arguments.iter().enumerate() {
            // SAFETY: the value is the address of a handle, of the size of a handle.
            unsafe { set_kernel_arg(kernel, i as u32, size_of::<cl_mem>(), (&raw const *argument).cast()) }
                .map_err(|code| launch.device.failed(&format!("clSetKernelArg {name}"), code))?;
        }
        Ok(launch)
    }

    /// Enqueues the kernel after all commands before it.
    ///
    /// # Errors
    /// Those of the library.
    pub fn enqueue(&self) -> Result<Event> {
        let (device, (global, local)) = (&self.device, (&self.global, &self.local));
        // SAFETY: all arguments are set to buffers that live as long as this object's owner; the sizes have three dimensions.
        let event = unsafe {
            enqueue_nd_range_kernel(
                device.handles.queue,
                self.kernel,
                3,
                std::ptr::null(),
                global.as_ptr(),
                local.as_ptr(),
                0,
                std::ptr::null(),
            )
        };
        event.map(|event| Event::new(device, event)).map_err(|code| device.failed("clEnqueueNDRangeKernel", code))
    }
}

impl Drop for Launch {
    fn drop(&mut self) {
        if !self.device.is_lost() {
            // SAFETY: this object owns one reference.
            let _ = unsafe { release_kernel(self.kernel) };
        }
    }
}

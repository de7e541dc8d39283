//! Kernels with their arguments, enqueued without waiting.

use super::Device;
use super::event::Event;
use super::program::Program;
use byoc_plugin_api::{Error, Result};
use cl3::command_queue::enqueue_nd_range_kernel;
use cl3::kernel::{create_kernel, release_kernel, set_kernel_arg};
use cl3::types::{cl_kernel, cl_mem};
use std::ffi::CString;
use std::sync::Arc;

/// Kernel with its arguments and its NDRange.
#[derive(Debug)]
pub struct Launch {
    device: Arc<Device>,
    kernel: cl_kernel,
    global: [usize; 3],
    local: [usize; 3],
}

// SAFETY: OpenCL allows calls on a kernel from any thread, one at a time (OpenCL 1.2, A.2); the type is not `Sync`.
unsafe impl Send for Launch {}

impl Launch {
    /// Creates a launch of the kernel `name` of a program.
    ///
    /// # Errors
    /// If the program has no kernel of this name, or the name contains a zero byte.
    pub fn new(program: &Program, name: &str, global: [usize; 3], local: [usize; 3]) -> Result<Launch> {
        let device = program.device.clone();
        let text = CString::new(name)
            .map_err(|_| Error::new(format!("expected a kernel name without zero bytes, found {name:?}")))?;
        let kernel = create_kernel(program.handle, &text)
            .map_err(|code| device.call_error(&format!("clCreateKernel {name}"), code))?;
        Ok(Launch { device, kernel, global, local })
    }

    /// Sets an argument for subsequent launches. The buffer must live until they have ended.
    ///
    /// # Errors
    /// If the kernel has no parameter with this number.
    pub fn set(&self, index: usize, argument: cl_mem) -> Result<()> {
        // SAFETY: the pointer refers to `argument`, which outlives the call and has the passed size.
        unsafe { set_kernel_arg(self.kernel, index as u32, size_of::<cl_mem>(), (&raw const argument).cast()) }
            .map_err(|code| self.device.call_error("clSetKernelArg", code))
    }

    /// Enqueues the kernel. The queue executes commands in order.
    ///
    /// # Errors
    /// If the library cannot enqueue the kernel.
    pub fn enqueue(&self) -> Result<Event> {
        let (device, (global, local)) = (&self.device, (&self.global, &self.local));
        // SAFETY: the owner of `self` has set all arguments to buffers that it keeps alive; both sizes have three
        // dimensions.
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
        event.map(|event| Event::new(device, event)).map_err(|code| device.call_error("clEnqueueNDRangeKernel", code))
    }
}

impl Drop for Launch {
    fn drop(&mut self) {
        if !self.device.is_lost() {
            // SAFETY: `self` owns one reference to the kernel and releases it only here.
            let _ = unsafe { release_kernel(self.kernel) };
        }
    }
}

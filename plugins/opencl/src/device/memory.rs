//! Buffers on a device.

use super::Device;
use super::event::Event;
use byoc_plugin_api::{Error, Result};
use cl3::command_queue::{enqueue_read_buffer, enqueue_write_buffer};
use cl3::ext::CL_BUFFER_CREATE_TYPE_REGION;
use cl3::memory::{CL_MEM_READ_WRITE, create_buffer, create_sub_buffer, release_mem_object};
use cl3::types::{CL_FALSE, cl_buffer_region, cl_mem};
use std::ptr;
use std::sync::Arc;

/// Buffer, or part of one. Released on drop, unless the device is lost.
#[derive(Debug)]
pub struct Buffer {
    device: Arc<Device>,
    handle: cl_mem,
    bytes: usize,
}

// SAFETY: the handle is a pointer that the library follows, whose functions may be called from any thread.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Allocates a buffer.
    ///
    /// # Errors
    /// More bytes than the device has.
    pub fn new(device: &Arc<Device>, bytes: u64) -> Result<Buffer> {
        let bytes = bytes.max(1);
        if bytes > device.max_buffer {
            return Err(Error::new(format!(
                "expected buffers of at most {} bytes on {}, found one of {bytes}",
                device.max_buffer, device.traits.name
            ))
            .hint("the device lacks memory: use a smaller batch or model, or close other programs on the device"));
        }
        // SAFETY: the context lives as long as the process; there is no host pointer.
        let handle =
            unsafe { create_buffer(device.handles.context, CL_MEM_READ_WRITE, bytes as usize, ptr::null_mut()) }
                .map_err(|code| device.failed("clCreateBuffer", code))?;
        Ok(Buffer { device: device.clone(), handle, bytes: bytes as usize })
    }

    /// Takes over a buffer that [`into_handle`](Buffer::into_handle) gave away.
    ///
    /// # Safety
    /// The handle must be that of a buffer of this device and size, which nobody else releases.
    pub unsafe fn from_handle(device: &Arc<Device>, handle: cl_mem, bytes: usize) -> Buffer {
        Buffer { device: device.clone(), handle, bytes }
    }

    /// Gives the buffer away: it is not released.
    pub fn into_handle(self) -> cl_mem {
        std::mem::ManuallyDrop::new(self).handle
    }

    /// Creates a part of a buffer.
    ///
    /// # Errors
    /// A range outside the buffer.
    pub fn part(&self, offset: u64, bytes: u64) -> Result<Buffer> {
        if offset.checked_add(bytes).is_none_or(|end| end > self.bytes as u64) {
            return Err(Error::new(format!("expected a part of {} bytes, found {bytes} at {offset}", self.bytes)));
        }
        let region = cl_buffer_region { origin: offset as usize, size: bytes as usize };
        // SAFETY: the region lies inside the buffer; the structure is the one that this type of part takes.
        let handle = unsafe {
            create_sub_buffer(self.handle, CL_MEM_READ_WRITE, CL_BUFFER_CREATE_TYPE_REGION, (&raw const region).cast())
        }
        .map_err(|code| self.device.failed("clCreateSubBuffer", code))?;
        Ok(Buffer { device: self.device.clone(), handle, bytes: bytes as usize })
    }

    /// Returns the handle, for arguments of kernels.
    pub fn handle(&self) -> cl_mem {
        self.handle
    }

    /// Enqueues a copy of `data` to the buffer.
    ///
    /// # Errors
    /// Those of the library.
    ///
    /// # Safety
    /// `data` must live unchanged until the event has ended.
    pub unsafe fn write(&self, data: &[u8]) -> Result<Event> {
        assert!(data.len() <= self.bytes, "the caller checks the size");
        let queue = self.device.handles.queue;
        // SAFETY: the range lies inside the buffer; the caller keeps the data.
        let event = unsafe {
            enqueue_write_buffer(queue, self.handle, CL_FALSE, 0, data.len(), data.as_ptr().cast(), 0, ptr::null())
        };
        event
            .map(|event| Event::new(&self.device, event))
            .map_err(|code| self.device.failed("clEnqueueWriteBuffer", code))
    }

    /// Enqueues a copy of the buffer to `data`.
    ///
    /// # Errors
    /// Those of the library.
    ///
    /// # Safety
    /// `data` must live, and must not be accessed, until the event has ended.
    pub unsafe fn read(&self, data: &mut [u8]) -> Result<Event> {
        assert!(data.len() <= self.bytes, "the caller checks the size");
        let queue = self.device.handles.queue;
        // SAFETY: the range lies inside the buffer; the caller keeps the memory.
        let event = unsafe {
            enqueue_read_buffer(queue, self.handle, CL_FALSE, 0, data.len(), data.as_mut_ptr().cast(), 0, ptr::null())
        };
        event
            .map(|event| Event::new(&self.device, event))
            .map_err(|code| self.device.failed("clEnqueueReadBuffer", code))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if !self.device.is_lost() {
            // SAFETY: this object owns one reference. A failure leaves the memory to the driver.
            let _ = unsafe { release_mem_object(self.handle) };
        }
    }
}

//! Device buffers.

use super::Device;
use super::event::Event;
use byoc_plugin_api::{Error, Result};
use cl3::command_queue::{
    enqueue_map_buffer, enqueue_read_buffer, enqueue_unmap_mem_object, enqueue_write_buffer, flush,
};
use cl3::ext::CL_BUFFER_CREATE_TYPE_REGION;
use cl3::memory::{
    CL_MAP_READ, CL_MAP_WRITE, CL_MEM_ALLOC_HOST_PTR, CL_MEM_READ_WRITE, CL_MEM_USE_HOST_PTR, create_buffer,
    create_sub_buffer, release_mem_object,
};
use cl3::types::{CL_FALSE, CL_TRUE, cl_buffer_region, cl_mem, cl_mem_flags};
use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

/// Buffer, released on drop unless the device is lost.
#[derive(Debug)]
pub struct Buffer {
    device: Arc<Device>,
    handle: cl_mem,
    bytes: usize,
    /// Sub-buffers in order of creation: offset, size in bytes and handle.
    parts: Mutex<Vec<(u64, u64, cl_mem)>>,
}

// SAFETY: only the OpenCL library dereferences the handle, and it accepts it from any thread (OpenCL 1.2, A.2).
unsafe impl Send for Buffer {}
// SAFETY: OpenCL guarantees that buffer functions are thread-safe (OpenCL 1.2, A.2).
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Allocates a buffer.
    ///
    /// # Errors
    /// If the device does not support buffers of this size, or lacks memory.
    pub fn new(device: &Arc<Device>, bytes: u64) -> Result<Buffer> {
        // SAFETY: the flags require no host pointer.
        unsafe { Buffer::create(device, bytes, CL_MEM_READ_WRITE, ptr::null_mut()) }
    }

    /// Creates a buffer that shares host memory.
    ///
    /// # Errors
    /// As for [`Buffer::new`].
    ///
    /// # Safety
    /// The `bytes` bytes at `source` must stay valid until the buffer is released and all commands that use it have
    /// ended. Until then, the host must not write them, and commands must only read them.
    pub unsafe fn sharing(device: &Arc<Device>, source: *const u8, bytes: u64) -> Result<Buffer> {
        let flags = CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR;
        // SAFETY: the caller guarantees that the memory stays valid.
        unsafe { Buffer::create(device, bytes, flags, source.cast_mut().cast()) }
    }

    /// Creates a buffer with the given flags.
    ///
    /// # Safety
    /// `source` must meet the requirements of the flags.
    unsafe fn create(device: &Arc<Device>, bytes: u64, flags: cl_mem_flags, source: *mut c_void) -> Result<Buffer> {
        let bytes = bytes.max(1);
        if bytes > device.max_buffer_bytes {
            return Err(Error::new(format!(
                "expected a buffer of at most {} bytes on {}, found {bytes} bytes",
                device.max_buffer_bytes, device.traits.name
            ))
            .hint("use a smaller batch or model"));
        }
        // SAFETY: the context lives as long as the process; the caller guarantees that `source` fits the flags.
        let handle = unsafe { create_buffer(device.handles.context, flags, bytes as usize, source) }
            .map_err(|code| device.call_error("clCreateBuffer", code))?;
        Ok(Buffer { device: device.clone(), handle, bytes: bytes as usize, parts: Mutex::default() })
    }

    /// Returns the handle of the sub-buffer with this range, which lives as long as the buffer. It is created on first
    /// use.
    ///
    /// # Errors
    /// If the range exceeds the buffer, or the library cannot create the sub-buffer.
    pub fn part(&self, offset: u64, bytes: u64) -> Result<cl_mem> {
        if offset.checked_add(bytes).is_none_or(|end| end > self.bytes as u64) {
            return Err(Error::new(format!(
                "expected a range within {} bytes, found {bytes} bytes at offset {offset}",
                self.bytes
            )));
        }
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&(.., handle)) = parts.iter().find(|part| (part.0, part.1) == (offset, bytes)) {
            return Ok(handle);
        }
        let region = cl_buffer_region { origin: offset as usize, size: bytes as usize };
        // SAFETY: `self` owns the buffer; `region` has the type that `CL_BUFFER_CREATE_TYPE_REGION` requires and
        // outlives the call.
        let handle = unsafe {
            create_sub_buffer(self.handle, CL_MEM_READ_WRITE, CL_BUFFER_CREATE_TYPE_REGION, (&raw const region).cast())
        }
        .map_err(|code| self.device.call_error("clCreateSubBuffer", code))?;
        parts.push((offset, bytes, handle));
        Ok(handle)
    }

    /// Returns the handle, for kernel arguments.
    pub fn handle(&self) -> cl_mem {
        self.handle
    }

    /// Checks that `len` bytes at `offset` are in the buffer.
    fn check_range(&self, offset: usize, len: usize) -> Result<()> {
        if offset.checked_add(len).is_some_and(|end| end <= self.bytes) {
            return Ok(());
        }
        Err(Error::new(format!("expected a copy within {} bytes, found {len} bytes at offset {offset}", self.bytes)))
    }

    /// Enqueues a copy of `data` to the buffer, at `offset`.
    ///
    /// # Errors
    /// If the range exceeds the buffer, or the library cannot enqueue the copy.
    ///
    /// # Safety
    /// `data` must stay valid and unchanged until the command has ended.
    pub unsafe fn write(&self, offset: usize, data: &[u8]) -> Result<Event> {
        self.check_range(offset, data.len())?;
        let queue = self.device.handles.queue;
        // SAFETY: the range was checked; the caller keeps `data` valid until the command has ended.
        let event = unsafe {
            enqueue_write_buffer(queue, self.handle, CL_FALSE, offset, data.len(), data.as_ptr().cast(), 0, ptr::null())
        };
        event
            .map(|event| Event::new(&self.device, event))
            .map_err(|code| self.device.call_error("clEnqueueWriteBuffer", code))
    }

    /// Enqueues a copy of the buffer to `data`, from `offset`.
    ///
    /// # Errors
    /// If the range exceeds the buffer, or the library cannot enqueue the copy.
    ///
    /// # Safety
    /// `data` must stay valid, and must not be accessed, until the command has ended.
    pub unsafe fn read(&self, offset: usize, data: &mut [u8]) -> Result<Event> {
        self.check_range(offset, data.len())?;
        let queue = self.device.handles.queue;
        // SAFETY: the range was checked; the caller does not access `data` until the command has ended.
        let event = unsafe {
            let data = (data.len(), data.as_mut_ptr().cast());
            enqueue_read_buffer(queue, self.handle, CL_FALSE, offset, data.0, data.1, 0, ptr::null())
        };
        event
            .map(|event| Event::new(&self.device, event))
            .map_err(|code| self.device.call_error("clEnqueueReadBuffer", code))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.device.is_lost() {
            return;
        }
        // In reverse order of creation: NVIDIA's driver (580.159) dereferences a null pointer when overlapping
        // sub-buffers are released in the order in which they were created.
        let parts = std::mem::take(self.parts.get_mut().unwrap_or_else(PoisonError::into_inner));
        for handle in parts.into_iter().rev().map(|part| part.2).chain([self.handle]) {
            // SAFETY: `self` owns one reference to the buffer and to each sub-buffer. A failed release only leaks the
            // memory.
            let _ = unsafe { release_mem_object(handle) };
        }
    }
}

/// Page-locked host memory: a buffer in host memory that stays mapped.
#[derive(Debug)]
pub struct PageLocked {
    buffer: Buffer,
    address: *mut c_void,
}

// SAFETY: the address belongs to this buffer, and only the owner's functions use it; OpenCL accepts calls from any
// thread.
unsafe impl Send for PageLocked {}

impl PageLocked {
    /// Allocates page-locked memory.
    ///
    /// # Errors
    /// If the device cannot allocate or map the memory.
    pub fn new(device: &Arc<Device>, bytes: u64) -> Result<PageLocked> {
        // SAFETY: the flags require no host pointer.
        let buffer =
            unsafe { Buffer::create(device, bytes, CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR, ptr::null_mut()) }?;
        let (queue, flags) = (device.handles.queue, CL_MAP_READ | CL_MAP_WRITE);
        let mut address = ptr::null_mut();
        // SAFETY: the range is the whole buffer, `address` is a valid output pointer, and there is no wait list.
        let event = unsafe {
            enqueue_map_buffer(queue, buffer.handle, CL_TRUE, flags, 0, buffer.bytes, &mut address, 0, ptr::null())
        };
        let event = event.map_err(|code| device.call_error("clEnqueueMapBuffer", code))?;
        drop(Event::new(device, event));
        Ok(PageLocked { buffer, address })
    }

    /// Returns the address of the first byte.
    pub fn address(&self) -> *mut u8 {
        self.address.cast()
    }
}

impl Drop for PageLocked {
    fn drop(&mut self) {
        let device = &self.buffer.device;
        if device.is_lost() {
            return;
        }
        let queue = device.handles.queue;
        // SAFETY: `new` mapped the buffer at this address. A failed call only leaks the memory.
        if let Ok(event) = unsafe { enqueue_unmap_mem_object(queue, self.buffer.handle, self.address, 0, ptr::null()) }
        {
            drop(Event::new(device, event));
            // The release of the buffer takes effect after the command.
            let _ = flush(queue);
        }
    }
}

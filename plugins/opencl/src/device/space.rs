//! Device memory for tensors between regions.

use super::Device;
use super::memory::{Buffer, PageLocked};
use byoc_plugin_api::device::{BufferHandle, DeviceMemory, HostBytes, Transfer};
use byoc_plugin_api::{Device as DlpackDevice, Error, Result, Services};
use cl3::types::cl_mem;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// DLPack device type of OpenCL (`kDLOpenCL`).
const OPENCL: i32 = 4;

/// Returns the DLPack device of tensors in this memory. The host uses the value only for comparison.
pub fn dlpack_device() -> DlpackDevice {
    DlpackDevice { kind: OPENCL, id: 0 }
}

/// Memory of one device.
pub struct Space {
    device: Arc<Device>,
    services: Services,
    /// Size in bytes of each buffer that the host owns, keyed by handle.
    sizes: Mutex<BTreeMap<usize, usize>>,
    /// Page-locked memory that the host uses, with its size in bytes, keyed by address.
    page_locked: Mutex<BTreeMap<usize, (PageLocked, usize)>>,
    /// True if the device reads inputs in host memory.
    is_zero_copy: bool,
}

impl Space {
    /// Creates the memory of a device.
    pub fn new(device: &Arc<Device>, services: &Services, is_zero_copy: bool) -> Space {
        let (device, services) = (device.clone(), services.clone());
        Space { device, services, sizes: Mutex::default(), page_locked: Mutex::default(), is_zero_copy }
    }

    /// Transfers ownership of a buffer to the host.
    fn hand_over(&self, buffer: Buffer, bytes: usize) -> Result<BufferHandle> {
        let handle = buffer.into_handle();
        self.sizes.lock().unwrap_or_else(PoisonError::into_inner).insert(handle as usize, bytes.max(1));
        BufferHandle::new(handle).ok_or_else(|| Error::new("clCreateBuffer: expected a buffer, found none"))
    }

    /// Returns true if a slice is in page-locked memory.
    fn is_page_locked(&self, data: &[u8]) -> bool {
        let page_locked = self.page_locked.lock().unwrap_or_else(PoisonError::into_inner);
        let start = data.as_ptr() as usize;
        let block = page_locked.range(..=start).next_back();
        block.is_some_and(|(&address, (_, bytes))| start + data.len() <= address + bytes)
    }

    /// Calls `f` with a sub-buffer of `bytes` bytes at the transfer's offset.
    fn with_sub_buffer<R>(&self, transfer: Transfer, bytes: usize, f: impl FnOnce(&Buffer) -> Result<R>) -> Result<R> {
        self.device.check()?;
        let size = self
            .sizes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&(transfer.buffer.as_ptr() as usize))
            .copied();
        let size = size.ok_or_else(|| Error::new("expected a buffer of this device, found an unknown handle"))?;
        let handle: cl_mem = transfer.buffer.as_ptr();
        // SAFETY: `sizes` lists the handle, so the host has not released the buffer; `into_handle` below consumes
        // `buffer` without releasing the handle.
        let buffer = unsafe { Buffer::from_handle(&self.device, handle, size) };
        let result = buffer.sub_buffer(transfer.offset as u64, bytes as u64).and_then(|sub_buffer| f(&sub_buffer));
        buffer.into_handle();
        result
    }
}

impl DeviceMemory for Space {
    fn device(&self) -> DlpackDevice {
        dlpack_device()
    }

    fn alignment(&self) -> usize {
        self.device.alignment
    }

    fn allocate(&self, bytes: usize) -> Result<BufferHandle> {
        self.device.check()?;
        self.hand_over(Buffer::new(&self.device, bytes as u64)?, bytes)
    }

    fn release(&self, buffer: BufferHandle) {
        let size = self.sizes.lock().unwrap_or_else(PoisonError::into_inner).remove(&(buffer.as_ptr() as usize));
        if let Some(size) = size {
            // SAFETY: `allocate` returned the handle; removing its entry from `sizes` ensures a single release.
            drop(unsafe { Buffer::from_handle(&self.device, buffer.as_ptr(), size) });
        }
    }

    fn copy_in(&self, destination: Transfer, source: &[u8]) -> Result<()> {
        if source.is_empty() {
            return Ok(());
        }
        // A lost device may still read the bytes after this call has returned, so they are copied, unless they are in
        // page-locked memory, which a lost device keeps.
        let data = if self.is_page_locked(source) { Cow::Borrowed(source) } else { Cow::Owned(source.to_vec()) };
        let result = self.with_sub_buffer(destination, data.len(), |sub_buffer| {
            // SAFETY: `data` outlives the wait for the event. If the device is lost, a copy is leaked below, and
            // page-locked memory is never released.
            unsafe { sub_buffer.write(&data) }.and_then(|event| event.wait(&self.services))
        });
        if self.device.is_lost() {
            std::mem::forget(data);
        }
        result
    }

    fn copy_out(&self, source: Transfer, destination: &mut [u8]) -> Result<()> {
        if destination.is_empty() {
            return Ok(());
        }
        let mut data = vec![0; destination.len()];
        let result = self.with_sub_buffer(source, destination.len(), |sub_buffer| {
            // SAFETY: `data` outlives the wait for the event, and is leaked below if the device is lost.
            unsafe { sub_buffer.read(&mut data) }.and_then(|event| event.wait(&self.services))
        });
        if self.device.is_lost() {
            std::mem::forget(data);
            return result.and(self.device.check());
        }
        result?;
        destination.copy_from_slice(&data);
        Ok(())
    }

    fn allocate_host(&self, bytes: usize) -> Result<Option<NonNull<u8>>> {
        self.device.check()?;
        let memory = PageLocked::new(&self.device, bytes as u64)?;
        let Some(address) = NonNull::new(memory.address()) else { return Ok(None) };
        let mut page_locked = self.page_locked.lock().unwrap_or_else(PoisonError::into_inner);
        page_locked.insert(address.as_ptr() as usize, (memory, bytes));
        Ok(Some(address))
    }

    fn release_host(&self, memory: NonNull<u8>) {
        let address = memory.as_ptr() as usize;
        let page_locked = self.page_locked.lock().unwrap_or_else(PoisonError::into_inner).remove(&address);
        drop(page_locked);
    }

    fn import_host(&self, memory: HostBytes) -> Result<Option<BufferHandle>> {
        if !self.is_zero_copy || memory.len as u64 > self.device.max_buffer_bytes {
            return Ok(None);
        }
        self.device.check()?;
        // SAFETY: the host keeps the memory unchanged until it releases the buffer, after the runs that use it; runs only
        // read their inputs.
        let buffer = unsafe { Buffer::sharing(&self.device, memory.address.as_ptr(), memory.len as u64) }?;
        self.hand_over(buffer, memory.len).map(Some)
    }
}

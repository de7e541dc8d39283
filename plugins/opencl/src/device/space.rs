//! Device memory for tensors that are passed between regions.

use super::Device;
use super::memory::{Buffer, PageLocked};
use byoc_plugin_api::device::{BufferHandle, DeviceMemory, HostBytes, Transfer};
use byoc_plugin_api::{Device as DlpackDevice, Error, Result, Services};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// DLPack device type of OpenCL (`kDLOpenCL`).
const OPENCL: i32 = 4;

/// Returns the DLPack device of tensors in this memory. The host uses the value only for comparison.
pub fn dlpack_device() -> DlpackDevice {
    DlpackDevice { kind: OPENCL, id: 0 }
}

/// Buffer that the host owns.
#[derive(Debug)]
pub struct HostBuffer {
    /// Serial number, which distinguishes the buffer from a later one with the same handle.
    pub serial: u64,
    pub buffer: Buffer,
}

/// Buffers that the host owns, on all devices, keyed by handle.
static HOST_BUFFERS: Mutex<BTreeMap<usize, Arc<HostBuffer>>> = Mutex::new(BTreeMap::new());

/// Returns a buffer that the host owns.
///
/// # Errors
/// If there is no such buffer.
pub fn host_buffer(handle: BufferHandle) -> Result<Arc<HostBuffer>> {
    let buffers = HOST_BUFFERS.lock().unwrap_or_else(PoisonError::into_inner);
    let buffer = buffers.get(&(handle.as_ptr() as usize)).cloned();
    buffer.ok_or_else(|| Error::new("expected a buffer of this plugin, found an unknown handle"))
}

/// Memory of one device.
pub struct Space {
    device: Arc<Device>,
    services: Services,
    /// Page-locked memory that the host uses, with its size in bytes, keyed by address.
    page_locked: Mutex<BTreeMap<usize, (PageLocked, usize)>>,
    /// True if the device reads inputs in host memory.
    is_zero_copy: bool,
}

impl Space {
    /// Creates the memory of a device.
    pub fn new(device: &Arc<Device>, services: &Services, is_zero_copy: bool) -> Space {
        let (device, services) = (device.clone(), services.clone());
        Space { device, services, page_locked: Mutex::default(), is_zero_copy }
    }

    /// Transfers ownership of a buffer to the host.
    fn hand_over(&self, buffer: Buffer) -> Result<BufferHandle> {
        static LAST_SERIAL: AtomicU64 = AtomicU64::new(0);
        let handle = BufferHandle::new(buffer.handle())
            .ok_or_else(|| Error::new("clCreateBuffer: expected a buffer, found none"))?;
        let serial = LAST_SERIAL.fetch_add(1, Ordering::Relaxed) + 1;
        let mut buffers = HOST_BUFFERS.lock().unwrap_or_else(PoisonError::into_inner);
        buffers.insert(handle.as_ptr() as usize, Arc::new(HostBuffer { serial, buffer }));
        Ok(handle)
    }

    /// Returns true if a slice is in page-locked memory.
    fn is_page_locked(&self, data: &[u8]) -> bool {
        let page_locked = self.page_locked.lock().unwrap_or_else(PoisonError::into_inner);
        let start = data.as_ptr() as usize;
        let block = page_locked.range(..=start).next_back();
        block.is_some_and(|(&address, (_, bytes))| start + data.len() <= address + bytes)
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
        self.hand_over(Buffer::new(&self.device, bytes as u64)?)
    }

    fn release(&self, buffer: BufferHandle) {
        let mut buffers = HOST_BUFFERS.lock().unwrap_or_else(PoisonError::into_inner);
        let released = buffers.remove(&(buffer.as_ptr() as usize));
        drop(buffers);
        drop(released);
    }

    fn copy_in(&self, destination: Transfer, source: &[u8]) -> Result<()> {
        if source.is_empty() {
            return Ok(());
        }
        self.device.check()?;
        let host_buffer = host_buffer(destination.buffer)?;
        // A lost device may still read the bytes after this call has returned, so they are copied. Page-locked memory
        // needs no copy, because it is never released if its device is lost.
        let data = if self.is_page_locked(source) { Cow::Borrowed(source) } else { Cow::Owned(source.to_vec()) };
        // SAFETY: `data` outlives the wait for the event. If the device is lost, a copy is leaked below, and
        // page-locked memory is never released.
        let event = unsafe { host_buffer.buffer.write(destination.offset, &data) };
        let result = event.and_then(|event| event.wait(&self.services));
        if self.device.is_lost() {
            std::mem::forget(data);
        }
        result
    }

    fn copy_out(&self, source: Transfer, destination: &mut [u8]) -> Result<()> {
        if destination.is_empty() {
            return Ok(());
        }
        self.device.check()?;
        let host_buffer = host_buffer(source.buffer)?;
        let mut data = vec![0; destination.len()];
        // SAFETY: `data` outlives the wait for the event, and is leaked below if the device is lost.
        let event = unsafe { host_buffer.buffer.read(source.offset, &mut data) };
        let result = event.and_then(|event| event.wait(&self.services));
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
        // SAFETY: the host keeps the memory unchanged until it releases the buffer, after the runs that use it; runs
        // only read their inputs.
        let buffer = unsafe { Buffer::sharing(&self.device, memory.address.as_ptr(), memory.len as u64) }?;
        self.hand_over(buffer).map(Some)
    }
}

//! Memory of a device for the tensors between regions.

use super::Device;
use super::memory::Buffer;
use byoc_plugin_api::device::{BufferHandle, DeviceMemory, Transfer};
use byoc_plugin_api::{Device as DlpackDevice, Error, Result, Services};
use cl3::types::cl_mem;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// DLPack's code of an OpenCL device.
const OPENCL: i32 = 4;

/// Returns the device of tensors in this memory, in DLPack's terms: the host compares it with nothing else.
pub fn dlpack_device() -> DlpackDevice {
    DlpackDevice { kind: OPENCL, id: 0 }
}

/// Memory of a device.
pub struct Space {
    device: Arc<Device>,
    services: Services,
    /// Sizes of the buffers that the host has.
    sizes: Mutex<BTreeMap<usize, usize>>,
}

impl Space {
    /// Creates the memory of a device.
    pub fn new(device: &Arc<Device>, services: &Services) -> Space {
        Space { device: device.clone(), services: services.clone(), sizes: Mutex::default() }
    }

    /// Calls `f` with a part of a buffer.
    fn with_part<R>(&self, of: Transfer, bytes: usize, f: impl FnOnce(&Buffer) -> Result<R>) -> Result<R> {
        self.device.check()?;
        let size =
            self.sizes.lock().unwrap_or_else(PoisonError::into_inner).get(&(of.buffer.as_ptr() as usize)).copied();
        let size = size.ok_or_else(|| Error::new("expected a buffer of this device"))?;
        let handle: cl_mem = of.buffer.as_ptr();
        // SAFETY: the host has the buffer, so it has not been released; it is given away again below.
        let buffer = unsafe { Buffer::from_handle(&self.device, handle, size) };
        let result = buffer.part(of.offset as u64, bytes as u64).and_then(|part| f(&part));
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
        let handle = Buffer::new(&self.device, bytes as u64)?.into_handle();
        self.sizes.lock().unwrap_or_else(PoisonError::into_inner).insert(handle as usize, bytes.max(1));
        BufferHandle::new(handle).ok_or_else(|| Error::new("clCreateBuffer: expected a buffer, found none"))
    }

    fn release(&self, buffer: BufferHandle) {
        let size = self.sizes.lock().unwrap_or_else(PoisonError::into_inner).remove(&(buffer.as_ptr() as usize));
        if let Some(size) = size {
            // SAFETY: `allocate` gave the buffer away, and the host releases it once.
            drop(unsafe { Buffer::from_handle(&self.device, buffer.as_ptr(), size) });
        }
    }

    fn copy_in(&self, to: Transfer, from: &[u8]) -> Result<()> {
        if from.is_empty() {
            return Ok(());
        }
        // The device may be lost before it has read the bytes.
        let data = from.to_vec();
        let copied = self.with_part(to, data.len(), |part| {
            // SAFETY: the data lives until the event has ended, or for ever if the device is lost.
            unsafe { part.write(&data) }.and_then(|event| event.wait(&self.services))
        });
        if self.device.is_lost() {
            std::mem::forget(data);
        }
        copied
    }

    fn copy_out(&self, from: Transfer, to: &mut [u8]) -> Result<()> {
        if to.is_empty() {
            return Ok(());
        }
        let mut data = vec![0; to.len()];
        let copied = self.with_part(from, to.len(), |part| {
            // SAFETY: as in `copy_in`.
            unsafe { part.read(&mut data) }.and_then(|event| event.wait(&self.services))
        });
        if self.device.is_lost() {
            std::mem::forget(data);
            return copied.and(self.device.check());
        }
        copied?;
        to.copy_from_slice(&data);
        Ok(())
    }
}

//! Memory of a device, for tensors that stay there between regions.

use crate::cuda::{Buffer, Cuda, Stream, allocate_host, release_host};
use byoc_plugin_api::device::{BufferHandle, DeviceMemory, Transfer};
use byoc_plugin_api::{Device, Error, Result};
use std::ptr::NonNull;

/// DLPack's number of CUDA devices (`kDLCUDA`).
const CUDA: i32 = 2;

/// Returns the device of tensors in the memory of a device.
pub fn dlpack_device(device: i32) -> Device {
    Device { kind: CUDA, id: device }
}

/// Memory of one device.
pub struct Space {
    cuda: &'static Cuda,
    device: i32,
    stream: Stream,
}

impl Space {
    /// Creates the memory of the device of this thread.
    ///
    /// # Errors
    /// If the device fails.
    pub fn new(cuda: &'static Cuda, device: i32) -> Result<Space> {
        Ok(Space { cuda, device, stream: Stream::new(cuda)? })
    }
}

fn address(transfer: Transfer) -> *mut std::ffi::c_void {
    transfer.buffer.as_ptr().cast::<u8>().wrapping_add(transfer.offset).cast()
}

impl DeviceMemory for Space {
    fn device(&self) -> Device {
        dlpack_device(self.device)
    }

    fn alignment(&self) -> usize {
        256
    }

    fn allocate(&self, bytes: usize) -> Result<BufferHandle> {
        self.cuda.select(self.device)?;
        let buffer = Buffer::new(self.cuda, bytes)?;
        BufferHandle::new(buffer.into_address())
            .ok_or_else(|| Error::new("cudaMalloc: expected an address, found none"))
    }

    fn release(&self, buffer: BufferHandle) {
        let _ = self.cuda.select(self.device);
        // SAFETY: the host releases a buffer of `allocate` once, when no work uses it.
        drop(unsafe { Buffer::from_address(self.cuda, buffer.as_ptr()) });
    }

    fn copy_in(&self, to: Transfer, from: &[u8]) -> Result<()> {
        self.cuda.select(self.device)?;
        // SAFETY: the host copies within a buffer of `allocate`; the stream is synchronized before the slice ends.
        unsafe { self.stream.copy_in(address(to), from) }.and(self.stream.synchronize())
    }

    fn copy_out(&self, from: Transfer, to: &mut [u8]) -> Result<()> {
        self.cuda.select(self.device)?;
        // SAFETY: as for `copy_in`.
        unsafe { self.stream.copy_out(address(from), to) }.and(self.stream.synchronize())
    }

    fn allocate_host(&self, bytes: usize) -> Result<Option<NonNull<u8>>> {
        self.cuda.select(self.device)?;
        allocate_host(self.cuda, bytes).map(|address| NonNull::new(address.cast()))
    }

    fn release_host(&self, memory: NonNull<u8>) {
        // SAFETY: the host releases memory of `allocate_host` once, when nothing uses it.
        if let Err(error) = unsafe { release_host(self.cuda, memory.as_ptr().cast()) } {
            tracing::debug!("{error}");
        }
    }
}

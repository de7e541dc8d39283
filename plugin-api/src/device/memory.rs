//! Device memory of a Rust plugin.

use super::table::{self, FAILED, MemoryTable, OK, ONE_RUN, Report};
use crate::dtype::Device;
use crate::error::{Error, Result};
use crate::guard::guard;
use serde::Deserialize;
use std::ffi::c_void;
use std::ptr::NonNull;

/// Opaque handle to a device buffer: the `data` of DLPack tensors in the buffer. Only the plugin interprets it.
pub type BufferHandle = NonNull<c_void>;

/// Buffer and offset at which a copy begins.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// Source or destination buffer.
    pub buffer: BufferHandle,
    /// Offset of the first byte.
    pub offset: usize,
}

/// Host memory that a device reads in place: valid and unchanged until the host releases the buffer created from it.
#[derive(Clone, Copy, Debug)]
pub struct HostBytes {
    /// Address of the first byte.
    pub address: NonNull<u8>,
    /// Size in bytes.
    pub len: usize,
}

/// Device memory. All functions may be called concurrently from several threads.
///
/// A run receives tensors in this memory as descriptors whose device is [`device`](DeviceMemory::device), with the
/// buffer as `data` and the offset as `byte_offset`. For tensors in host memory, the run itself performs the copies.
pub trait DeviceMemory: Send + Sync + 'static {
    /// Device of the tensors in this memory, as defined by DLPack.
    fn device(&self) -> Device;

    /// Alignment in bytes of offsets within a buffer: a power of two, at most 4096.
    fn alignment(&self) -> usize {
        64
    }

    /// Returns true if the device can serve only one run at a time.
    fn serves_one_run(&self) -> bool {
        false
    }

    /// Allocates a buffer.
    ///
    /// # Errors
    /// If the device is out of memory.
    fn allocate(&self, bytes: usize) -> Result<BufferHandle>;

    /// Releases a buffer that [`allocate`](DeviceMemory::allocate) returned. The host guarantees that no unfinished
    /// work uses the buffer.
    fn release(&self, buffer: BufferHandle);

    /// Copies from host memory; `from` may be modified once the function returns.
    ///
    /// # Errors
    /// If the device fails.
    fn copy_in(&self, to: Transfer, from: &[u8]) -> Result<()>;

    /// Copies to host memory.
    ///
    /// # Errors
    /// If the device fails.
    fn copy_out(&self, from: Transfer, to: &mut [u8]) -> Result<()>;

    /// Allocates page-locked host memory, aligned to 64 bytes, so that copies need no intermediate buffer. Returns
    /// `None` if ordinary memory serves equally well. The host uses this memory for tensors that it copies to and from
    /// the device.
    ///
    /// # Errors
    /// If the memory cannot be allocated; the host then uses ordinary memory.
    fn allocate_host(&self, bytes: usize) -> Result<Option<NonNull<u8>>> {
        let _ = bytes;
        Ok(None)
    }

    /// Releases memory that [`allocate_host`](DeviceMemory::allocate_host) returned.
    fn release_host(&self, memory: NonNull<u8>) {
        let _ = memory;
    }

    /// Creates a buffer from host memory. Runs only read the buffer, and the host releases it with
    /// [`release`](DeviceMemory::release). Returns `None` if the host has to copy this memory instead.
    ///
    /// # Errors
    /// If the device fails.
    fn import_host(&self, memory: HostBytes) -> Result<Option<BufferHandle>> {
        let _ = memory;
        Ok(None)
    }
}

/// Data of a [`MEMORY_KEY`](super::MEMORY_KEY) query.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct MemoryKey {
    /// User-selected device; empty for the default.
    #[serde(default)]
    pub device: String,
}

impl MemoryKey {
    /// Parses the query data. Empty data selects the default device.
    ///
    /// # Errors
    /// If non-empty data is not a JSON object, or `device` is not a string.
    pub fn parse(data: &[u8]) -> Result<MemoryKey> {
        if data.is_empty() {
            return Ok(MemoryKey::default());
        }
        Ok(serde_json::from_slice(data)?)
    }
}

/// Returns the response to a [`MEMORY_KEY`](super::MEMORY_KEY) query. The memory is leaked, because the plugin is never
/// unloaded: call this once per device, and keep the response.
pub fn answer_memory(memory: impl DeviceMemory) -> Vec<u8> {
    let (device, alignment) = (memory.device(), memory.alignment());
    let flags = if memory.serves_one_run() { ONE_RUN } else { 0 };
    let object: Box<dyn DeviceMemory> = Box::new(memory);
    let table = MemoryTable {
        struct_size: size_of::<MemoryTable>(),
        this: Box::into_raw(Box::new(object)).cast(),
        device,
        alignment,
        flags,
        allocate,
        release,
        copy_in,
        copy_out,
        allocate_host: Some(allocate_host),
        release_host: Some(release_host),
        import_host: Some(import_host),
    };
    let address: *mut MemoryTable = Box::into_raw(Box::new(table));
    (address as usize).to_ne_bytes().to_vec()
}

/// Calls `f` with the memory behind `this`, and reports a failure or a panic.
fn call(this: *mut c_void, report: *const Report, f: impl FnOnce(&dyn DeviceMemory) -> Result<()>) -> i32 {
    // SAFETY: `answer_memory` created `this` and never frees it.
    let memory = unsafe { &**this.cast::<Box<dyn DeviceMemory>>() };
    match guard(|| f(memory)) {
        Ok(()) => OK,
        // SAFETY: the host passes null or the report of this call.
        Err(error) => unsafe { table::fail(report, &error) },
    }
}

fn handle(buffer: *mut c_void) -> Result<BufferHandle> {
    NonNull::new(buffer).ok_or_else(|| Error::new("expected a buffer, found a null pointer"))
}

unsafe extern "C" fn allocate(this: *mut c_void, report: *const Report, bytes: usize, to: *mut *mut c_void) -> i32 {
    call(this, report, |memory| {
        let buffer = memory.allocate(bytes)?;
        // SAFETY: by the contract of `MemoryTable`, the host passes a valid output pointer.
        unsafe { to.write(buffer.as_ptr()) };
        Ok(())
    })
}

unsafe extern "C" fn release(this: *mut c_void, buffer: *mut c_void) {
    let result = call(this, std::ptr::null(), |memory| {
        memory.release(handle(buffer)?);
        Ok(())
    });
    if result == FAILED {
        tracing::error!("failed to release a device buffer");
    }
}

unsafe extern "C" fn copy_in(
    this: *mut c_void,
    report: *const Report,
    buffer: *mut c_void,
    offset: usize,
    source: *const c_void,
    bytes: usize,
) -> i32 {
    call(this, report, |memory| {
        // SAFETY: by the contract of `MemoryTable`, the host passes `bytes` bytes that are readable during this call.
        let source = unsafe { std::slice::from_raw_parts(source.cast::<u8>(), bytes) };
        memory.copy_in(Transfer { buffer: handle(buffer)?, offset }, source)
    })
}

unsafe extern "C" fn copy_out(
    this: *mut c_void,
    report: *const Report,
    buffer: *mut c_void,
    offset: usize,
    destination: *mut c_void,
    bytes: usize,
) -> i32 {
    call(this, report, |memory| {
        // SAFETY: by the contract of `MemoryTable`, the host passes `bytes` bytes that are writable during this call.
        let destination = unsafe { std::slice::from_raw_parts_mut(destination.cast::<u8>(), bytes) };
        memory.copy_out(Transfer { buffer: handle(buffer)?, offset }, destination)
    })
}

unsafe extern "C" fn allocate_host(
    this: *mut c_void,
    report: *const Report,
    bytes: usize,
    target: *mut *mut c_void,
) -> i32 {
    call(this, report, |memory| {
        let address = memory.allocate_host(bytes)?.map_or(std::ptr::null_mut(), NonNull::as_ptr);
        // SAFETY: by the contract of `MemoryTable`, the host passes a valid output pointer.
        unsafe { target.write(address.cast()) };
        Ok(())
    })
}

unsafe extern "C" fn release_host(this: *mut c_void, address: *mut c_void) {
    let result = call(this, std::ptr::null(), |memory| {
        memory.release_host(handle(address)?.cast());
        Ok(())
    });
    if result == FAILED {
        tracing::error!("failed to release page-locked memory");
    }
}

unsafe extern "C" fn import_host(
    this: *mut c_void,
    report: *const Report,
    source: *const c_void,
    bytes: usize,
    target: *mut *mut c_void,
) -> i32 {
    call(this, report, |memory| {
        let source = HostBytes { address: handle(source.cast_mut())?.cast(), len: bytes };
        let buffer = memory.import_host(source)?.map_or(std::ptr::null_mut(), NonNull::as_ptr);
        // SAFETY: by the contract of `MemoryTable`, the host passes a valid output pointer.
        unsafe { target.write(buffer) };
        Ok(())
    })
}

//! Memory of a device, as a plugin in Rust implements it.

use super::table::{self, FAILED, MemoryTable, OK, ONE_RUN, Report};
use crate::dtype::Device;
use crate::error::{Error, Result};
use crate::guard::guard;
use serde::Deserialize;
use std::ffi::c_void;
use std::ptr::NonNull;

/// Buffer of a device: DLPack's `data` of the tensors in it. Its meaning is the plugin's.
pub type BufferHandle = NonNull<c_void>;

/// Part of a buffer that a copy reads or writes.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// Buffer.
    pub buffer: BufferHandle,
    /// Offset of the first byte.
    pub offset: usize,
}

/// Memory of a device. All functions may be called from several threads at once.
///
/// A run gets tensors of this memory as descriptors whose device is [`device`](DeviceMemory::device), with the buffer as
/// `data` and the offset as `byte_offset`; it also gets tensors of the host's memory, for which it copies itself.
pub trait DeviceMemory: Send + Sync + 'static {
    /// Device of the tensors in this memory, in DLPack's terms.
    fn device(&self) -> Device;

    /// Alignment of offsets within a buffer in bytes: a power of two, at most 256.
    fn alignment(&self) -> usize {
        64
    }

    /// Returns true if the device serves one run at a time.
    fn serves_one_run(&self) -> bool {
        false
    }

    /// Allocates a buffer.
    ///
    /// # Errors
    /// If the device has no such memory left.
    fn allocate(&self, bytes: usize) -> Result<BufferHandle>;

    /// Releases a buffer that [`allocate`](DeviceMemory::allocate) returned and no unfinished work uses.
    fn release(&self, buffer: BufferHandle);

    /// Copies from the host; `from` may be written when the function returns.
    ///
    /// # Errors
    /// If the device fails.
    fn copy_in(&self, to: Transfer, from: &[u8]) -> Result<()>;

    /// Copies to the host.
    ///
    /// # Errors
    /// If the device fails.
    fn copy_out(&self, from: Transfer, to: &mut [u8]) -> Result<()>;
}

/// Data of the key [`MEMORY_KEY`](super::MEMORY_KEY).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct MemoryKey {
    /// Device that the user chose; empty for the default.
    #[serde(default)]
    pub device: String,
}

impl MemoryKey {
    /// Reads the data of the key.
    ///
    /// # Errors
    /// If the data is not a JSON object with known fields.
    pub fn parse(data: &[u8]) -> Result<MemoryKey> {
        if data.is_empty() {
            return Ok(MemoryKey::default());
        }
        Ok(serde_json::from_slice(data)?)
    }
}

/// Returns the answer to [`MEMORY_KEY`](super::MEMORY_KEY). The memory lives as long as the process, as the plugin does:
/// call this once for each device, and keep the answer.
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
    };
    let address: *mut MemoryTable = Box::into_raw(Box::new(table));
    (address as usize).to_ne_bytes().to_vec()
}

/// Calls `f` with the memory behind `this`, and reports a failure or a panic.
fn call(this: *mut c_void, report: *const Report, f: impl FnOnce(&dyn DeviceMemory) -> Result<()>) -> i32 {
    // SAFETY: `this` was made by `answer_memory` and is never freed.
    let memory = unsafe { &**this.cast::<Box<dyn DeviceMemory>>() };
    match guard(|| f(memory)) {
        Ok(()) => OK,
        // SAFETY: the caller passes the report of this call.
        Err(error) => unsafe { table::fail(report, &error) },
    }
}

fn handle(buffer: *mut c_void) -> Result<BufferHandle> {
    NonNull::new(buffer).ok_or_else(|| Error::new("expected a buffer, found a null pointer"))
}

unsafe extern "C" fn allocate(this: *mut c_void, report: *const Report, bytes: usize, to: *mut *mut c_void) -> i32 {
    call(this, report, |memory| {
        let buffer = memory.allocate(bytes)?;
        // SAFETY: the caller passes a pointer to a place for the result.
        unsafe { to.write(buffer.as_ptr()) };
        Ok(())
    })
}

unsafe extern "C" fn release(this: *mut c_void, buffer: *mut c_void) {
    let released = call(this, std::ptr::null(), |memory| {
        memory.release(handle(buffer)?);
        Ok(())
    });
    if released == FAILED {
        tracing::error!("the release of a buffer failed");
    }
}

unsafe extern "C" fn copy_in(
    this: *mut c_void,
    report: *const Report,
    buffer: *mut c_void,
    offset: usize,
    from: *const c_void,
    bytes: usize,
) -> i32 {
    call(this, report, |memory| {
        // SAFETY: the caller lends `bytes` readable bytes for this call.
        let from = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), bytes) };
        memory.copy_in(Transfer { buffer: handle(buffer)?, offset }, from)
    })
}

unsafe extern "C" fn copy_out(
    this: *mut c_void,
    report: *const Report,
    buffer: *mut c_void,
    offset: usize,
    to: *mut c_void,
    bytes: usize,
) -> i32 {
    call(this, report, |memory| {
        // SAFETY: the caller lends `bytes` writable bytes for this call.
        let to = unsafe { std::slice::from_raw_parts_mut(to.cast::<u8>(), bytes) };
        memory.copy_out(Transfer { buffer: handle(buffer)?, offset }, to)
    })
}

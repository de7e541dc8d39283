//! Host side of `byoc.memory.1` and `byoc.stream.1`: device memory as safe objects, and the service that accepts
//! unfinished work.

use crate::backend::Loader;
use crate::device::table::{Failure, OK, ONE_RUN, PENDING};
use crate::device::{BufferHandle, DeviceWorkspace, EventTable, MEMORY_KEY, MemoryTable, StreamTable, WORKSPACE_KEY};
use crate::dtype::{DType, Device};
use crate::entries::{CallSites, Entry};
use crate::error::{Error, Result};
use crate::executable::Executable;
use crate::tensor::{Tensor, TensorMut, TensorRef};
use std::cell::RefCell;
use std::ffi::c_void;
use std::fmt;
use std::mem::{MaybeUninit, offset_of};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

/// Maximum offset alignment in bytes that a device may request; the host aligns offsets to it.
pub const MAX_ALIGNMENT: usize = 4096;

/// Device memory of a plugin.
#[derive(Clone)]
pub struct Memory {
    table: Arc<MemoryTable>,
    sites: &'static CallSites,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({:?})", self.table.device)
    }
}

impl Memory {
    /// Queries a loader for the memory of a device. Returns `None` if the device's tensors are in host memory.
    ///
    /// # Errors
    /// If the loader fails, or its response is not the address of a complete table with a valid alignment and device.
    pub fn of(loader: &dyn Loader, plugin: &str, device: &str) -> Result<Option<Memory>> {
        let data = serde_json::json!({ "device": device }).to_string();
        let Some(table_bytes) = loader.query(MEMORY_KEY, data.as_bytes())? else { return Ok(None) };
        let invalid = |problem: String| Error::new(format!("{MEMORY_KEY}: {problem}"));
        let address = <[u8; 8]>::try_from(&*table_bytes).map(usize::from_ne_bytes).unwrap_or_default();
        let table = NonNull::new(std::ptr::with_exposed_provenance_mut::<MemoryTable>(address))
            .filter(|table| table.is_aligned())
            .ok_or_else(|| {
                let size = table_bytes.len();
                invalid(format!("expected the 8-byte address of an aligned table, found a response of {size} bytes"))
            })?;
        // SAFETY: by the contract of the key, the plugin returns the address of a table that lives as long as the
        // process and begins with its size.
        let size = unsafe { table.cast::<usize>().read() };
        let expected = offset_of!(MemoryTable, copy_out) + size_of::<usize>();
        if size < expected {
            return Err(invalid(format!("expected a table of at least {expected} bytes, found {size}")));
        }
        let mut copy = MaybeUninit::<MemoryTable>::zeroed();
        let bytes = size.min(size_of::<MemoryTable>());
        // SAFETY: by the contract of the key, `size` bytes of the table are readable. They cover all required fields;
        // the remaining fields are optional functions, for which zero bytes are valid.
        let table = unsafe {
            table.cast::<u8>().copy_to_nonoverlapping(NonNull::from(&mut copy).cast(), bytes);
            Arc::new(copy.assume_init())
        };
        if !table.alignment.is_power_of_two() || table.alignment > MAX_ALIGNMENT {
            let alignment = table.alignment;
            return Err(invalid(format!(
                "expected a power-of-two alignment of at most {MAX_ALIGNMENT}, found {alignment}"
            )));
        }
        if table.device.kind == Device::CPU.kind {
            return Err(invalid("expected a device type with dedicated memory, found the host type".into()));
        }
        Ok(Some(Memory { table, sites: CallSites::of(plugin, "") }))
    }

    /// Returns the name of the plugin.
    pub fn plugin(&self) -> &'static str {
        self.sites.at(Entry::Run).plugin
    }

    /// Returns the alignment of offsets within a buffer, in bytes.
    pub fn alignment(&self) -> usize {
        self.table.alignment
    }

    /// Returns true if the device can serve only one run at a time.
    pub fn serves_one_run(&self) -> bool {
        self.table.flags & ONE_RUN != 0
    }

    /// Calls a table function as an entry of the plugin.
    fn call(&self, f: impl FnOnce(*const crate::device::Report) -> i32) -> Result<()> {
        let site = self.sites.at(Entry::Run);
        let _guard = crate::entries::enter(site)?;
        match Failure::of(f).map_err(|error| error.with_entry(site.plugin, "memory"))? {
            PENDING => {
                let error = Error::new("expected a completed operation, found a pending one");
                Err(error.with_entry(site.plugin, "memory"))
            }
            _ => Ok(()),
        }
    }

    /// Allocates a buffer.
    ///
    /// # Errors
    /// If the device is out of memory.
    pub fn allocate(&self, bytes: usize) -> Result<Buffer> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: `handle` is a valid output pointer for the call.
        self.call(|report| unsafe { (self.table.allocate)(self.table.this, report, bytes, &raw mut handle) })?;
        let handle = NonNull::new(handle).ok_or_else(|| Error::new("allocate: expected a buffer, found none"))?;
        Ok(Buffer { allocation: Arc::new(Allocation { memory: self.clone(), handle, _source: None }), bytes })
    }

    /// Allocates page-locked host memory, filled with zeros. Returns `None` if the device offers none.
    ///
    /// # Errors
    /// If the device fails, or the memory is not aligned to 64 bytes.
    pub fn allocate_host(&self, bytes: usize) -> Result<Option<HostMemory>> {
        let (Some(allocate_host), Some(_), 1..) = (self.table.allocate_host, self.table.release_host, bytes) else {
            return Ok(None);
        };
        let mut address = std::ptr::null_mut();
        // SAFETY: `address` is a valid output pointer for the call.
        self.call(|report| unsafe { allocate_host(self.table.this, report, bytes, &raw mut address) })?;
        let Some(address) = NonNull::new(address.cast::<u8>()) else { return Ok(None) };
        let memory = HostMemory { memory: self.clone(), address, bytes };
        if !address.as_ptr().addr().is_multiple_of(HOST_ALIGNMENT) {
            let message = format!("allocate_host: expected an alignment of {HOST_ALIGNMENT} bytes, found {address:?}");
            return Err(Error::new(message).with_entry(self.plugin(), "memory"));
        }
        // SAFETY: by the contract of `allocate_host`, the plugin lends `bytes` writable bytes.
        unsafe { address.write_bytes(0, bytes) };
        Ok(Some(memory))
    }

    /// Creates a buffer from host memory that is shared with the device, not copied. The buffer keeps `source` until
    /// it is released. Returns `None` if the device cannot share this memory.
    ///
    /// # Errors
    /// If the device fails.
    pub fn import<T: AsRef<[u8]> + Send + Sync + 'static>(&self, source: T) -> Result<Option<Buffer>> {
        let source = Box::new(source);
        let data = (*source).as_ref();
        let (Some(import_host), bytes @ 1..) = (self.table.import_host, data.len()) else { return Ok(None) };
        let mut handle = std::ptr::null_mut();
        let address = data.as_ptr().cast();
        // SAFETY: `handle` is a valid output pointer for the call. The allocation keeps `source`, and with it the
        // memory, until it has released the buffer.
        self.call(|report| unsafe { import_host(self.table.this, report, address, bytes, &raw mut handle) })?;
        let Some(handle) = NonNull::new(handle) else { return Ok(None) };
        let allocation = Allocation { memory: self.clone(), handle, _source: Some(source) };
        Ok(Some(Buffer { allocation: Arc::new(allocation), bytes }))
    }

    /// Returns true if the device may share host memory.
    pub fn imports(&self) -> bool {
        self.table.import_host.is_some()
    }
}

/// Alignment of page-locked host memory in bytes.
const HOST_ALIGNMENT: usize = 64;

/// Page-locked host memory of a device, released on drop.
pub struct HostMemory {
    memory: Memory,
    address: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory is ordinary host memory with a single owner, and the plugin guarantees that the table's functions
// can be called from any thread.
unsafe impl Send for HostMemory {}
// SAFETY: a shared reference permits only reads of the memory.
unsafe impl Sync for HostMemory {}

impl AsRef<[u8]> for HostMemory {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `allocate_host` has initialized `bytes` bytes, which `self` owns.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.bytes) }
    }
}

impl AsMut<[u8]> for HostMemory {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: `allocate_host` has initialized `bytes` bytes, which `self` owns.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.bytes) }
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        let Ok(_guard) = crate::entries::enter(self.memory.sites.at(Entry::Release)) else { return };
        let table = &self.memory.table;
        if let Some(release_host) = table.release_host {
            // SAFETY: `allocate_host` returned the address, and this is its only owner.
            unsafe { release_host(table.this, self.address.as_ptr().cast()) };
        }
    }
}

/// Device buffer. Dropping the last clone releases it.
#[derive(Clone)]
pub struct Buffer {
    allocation: Arc<Allocation>,
    bytes: usize,
}

struct Allocation {
    memory: Memory,
    handle: BufferHandle,
    /// Host memory that the buffer shares; dropped after the buffer is released.
    _source: Option<Box<dyn Send + Sync>>,
}

// SAFETY: the handle is opaque to the host, and the contract of the table allows calls from any thread.
unsafe impl Send for Allocation {}
// SAFETY: the handle is opaque to the host, and the contract of the table allows concurrent calls from several threads.
unsafe impl Sync for Allocation {}

impl Drop for Allocation {
    fn drop(&mut self) {
        let Ok(_guard) = crate::entries::enter(self.memory.sites.at(Entry::Release)) else { return };
        // SAFETY: the plugin returned the handle for a new buffer, and this allocation is its only owner.
        unsafe { (self.memory.table.release)(self.memory.table.this, self.handle.as_ptr()) };
    }
}

impl Buffer {
    fn check(&self, offset: usize, bytes: usize) -> Result<()> {
        match offset.checked_add(bytes).is_some_and(|end| end <= self.bytes) {
            true => Ok(()),
            false => Err(Error::new(format!(
                "expected a range within {} bytes, found {bytes} bytes at offset {offset}",
                self.bytes
            ))),
        }
    }

    /// Copies from host memory.
    ///
    /// # Errors
    /// If the range exceeds the buffer, or the device fails.
    pub fn copy_in(&self, offset: usize, source: &[u8]) -> Result<()> {
        self.check(offset, source.len())?;
        let Allocation { memory, handle, .. } = &*self.allocation;
        let (table, handle, source, bytes) = (&memory.table, handle.as_ptr(), source.as_ptr().cast(), source.len());
        // SAFETY: `source` is borrowed for the call, and `check` verified that the range is within the buffer.
        memory.call(|report| unsafe { (table.copy_in)(table.this, report, handle, offset, source, bytes) })
    }

    /// Copies to host memory.
    ///
    /// # Errors
    /// If the range exceeds the buffer, or the device fails.
    pub fn copy_out(&self, offset: usize, destination: &mut [u8]) -> Result<()> {
        self.check(offset, destination.len())?;
        let Allocation { memory, handle, .. } = &*self.allocation;
        let (table, handle, destination, bytes) =
            (&memory.table, handle.as_ptr(), destination.as_mut_ptr().cast(), destination.len());
        // SAFETY: `destination` is borrowed for the call, and `check` verified that the range is within the buffer.
        memory.call(|report| unsafe { (table.copy_out)(table.this, report, handle, offset, destination, bytes) })
    }

    fn descriptor(&self, dtype: DType, shape: *const usize, rank: usize, offset: usize) -> Tensor {
        let Allocation { memory, handle, .. } = &*self.allocation;
        Tensor {
            data: handle.as_ptr().cast(),
            device: memory.table.device,
            ndim: rank as i32,
            dtype,
            shape: shape.cast_mut().cast(),
            strides: std::ptr::null_mut(),
            byte_offset: offset as u64,
        }
    }

    /// Returns a range of the buffer as the workspace of a run.
    pub fn workspace(&self, offset: usize, bytes: usize) -> DeviceWorkspace {
        DeviceWorkspace { buffer: self.allocation.handle, offset, bytes }
    }

    /// Returns a view of a dense tensor in the buffer, which is in device memory.
    pub fn tensor<'a>(&'a self, dtype: DType, shape: &'a [usize], offset: usize) -> TensorRef<'a> {
        let tensor = self.descriptor(dtype, shape.as_ptr(), shape.len(), offset);
        // SAFETY: `self` and `shape` are borrowed for `'a`; the view exposes no device memory as a slice.
        unsafe { TensorRef::from_raw(tensor) }
    }

    /// Returns a mutable view of a dense tensor in the buffer.
    pub fn tensor_mut<'a>(&'a self, dtype: DType, shape: &'a mut [usize], offset: usize) -> TensorMut<'a> {
        let tensor = self.descriptor(dtype, shape.as_ptr(), shape.len(), offset);
        // SAFETY: `self` and `shape` are borrowed for `'a`; the view exposes no device memory as a slice.
        unsafe { TensorMut::from_raw(tensor) }
    }
}

/// Unfinished work of a run.
pub struct Event {
    table: EventTable,
    sites: &'static CallSites,
}

// SAFETY: the contract of an event allows calls to its functions on any thread.
unsafe impl Send for Event {}
// SAFETY: the contract of an event allows calls to its functions on any thread.
unsafe impl Sync for Event {}

impl Event {
    /// Waits until the work is complete or `time` has passed. Returns true if the work is complete.
    ///
    /// # Errors
    /// If the work failed.
    pub fn wait(&self, time: Duration) -> Result<bool> {
        let site = self.sites.at(Entry::Run);
        let _guard = crate::entries::enter(site)?;
        let milliseconds = u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        // SAFETY: `self` owns the event, and releases it only in `drop`.
        let status = Failure::of(|report| unsafe { (self.table.wait)(self.table.this, report, milliseconds) });
        Ok(status.map_err(|error| error.with_entry(site.plugin, "run"))? == OK)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let Ok(_guard) = crate::entries::enter(self.sites.at(Entry::Release)) else { return };
        // SAFETY: `self` owns the event, and releases it only here.
        unsafe { (self.table.release)(self.table.this) };
    }
}

/// Returns the size in bytes of the workspace that runs of `plan` need in device memory; see
/// [`WORKSPACE_KEY`](crate::device::WORKSPACE_KEY).
///
/// # Errors
/// If the plugin fails, or its response is not a number.
pub fn workspace_bytes(executable: &dyn Executable, plan: u64, inputs: &[&[usize]]) -> Result<usize> {
    let data = serde_json::json!({ "plan": plan, "inputs": inputs }).to_string();
    let Some(response) = executable.query(WORKSPACE_KEY, data.as_bytes())? else { return Ok(0) };
    let text = String::from_utf8_lossy(&response);
    text.trim()
        .parse()
        .map_err(|_| Error::new(format!("{WORKSPACE_KEY}: expected a number of bytes, found \"{text}\"")))
}

/// Run in progress.
struct Pending {
    dependencies: Vec<EventTable>,
    /// True if the run may return before its work is complete.
    is_asynchronous: bool,
    submitted: Option<EventTable>,
    workspace: Option<DeviceWorkspace>,
}

thread_local! {
    static CURRENT: RefCell<Option<Pending>> = const { RefCell::new(None) };
}

/// Calls `run` with access to a workspace in device memory. If `dependencies` is `Some`, the plugin may submit
/// unfinished work and query the runs that it depends on; otherwise, all work must be complete when `run` returns.
/// Returns the event of the unfinished work, if any.
pub fn submitting<R>(
    plugin: &str,
    dependencies: Option<&[&Event]>,
    workspace: Option<DeviceWorkspace>,
    run: impl FnOnce() -> R,
) -> (R, Option<Event>) {
    let events = dependencies.unwrap_or_default().iter().map(|event| event.table).collect();
    let is_asynchronous = dependencies.is_some();
    let outer = CURRENT.replace(Some(Pending { dependencies: events, is_asynchronous, submitted: None, workspace }));
    let result = run();
    let submitted_event = CURRENT.replace(outer).and_then(|pending| pending.submitted);
    (result, submitted_event.map(|table| Event { table, sites: CallSites::of(plugin, "") }))
}

unsafe extern "C" fn current_workspace(buffer: *mut *mut c_void, offset: *mut usize) -> usize {
    let workspace = CURRENT.with_borrow(|current| current.as_ref().and_then(|pending| pending.workspace));
    let Some(workspace) = workspace else { return 0 };
    // SAFETY: the plugin passes valid output pointers.
    unsafe {
        buffer.write(workspace.buffer.as_ptr());
        offset.write(workspace.offset);
    }
    workspace.bytes
}

unsafe extern "C" fn current_dependencies(to: *mut *const EventTable) -> usize {
    CURRENT.with_borrow(|current| {
        let events = current.as_ref().map_or(&[][..], |pending| &pending.dependencies);
        // SAFETY: the plugin passes a valid output pointer. The vector does not change until `run` returns.
        unsafe { to.write(events.as_ptr()) };
        events.len()
    })
}

unsafe extern "C" fn take_event(event: *const EventTable) -> i32 {
    CURRENT.with_borrow_mut(|current| match current {
        Some(pending) if pending.is_asynchronous && pending.submitted.is_none() => {
            // SAFETY: the plugin passes a valid event, which is copied.
            pending.submitted = Some(unsafe { *event });
            OK
        }
        _ => crate::device::table::FAILED,
    })
}

/// Returns the service [`STREAM_SERVICE`](crate::device::STREAM_SERVICE).
pub fn stream_service() -> NonNull<c_void> {
    static TABLE: StreamTable = StreamTable {
        struct_size: size_of::<StreamTable>(),
        dependencies: current_dependencies,
        submit: take_event,
        workspace: current_workspace,
    };
    NonNull::from(&TABLE).cast()
}

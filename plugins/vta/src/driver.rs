//! Driver library that the environment variable `VTA_DRIVER` names, with the functions of VTA's `driver.h`. A driver
//! that was built for a board or for VTA's own simulators works unchanged.

use byoc_plugin_api::device::DEVICE_LOST;
use byoc_plugin_api::{Error, Result};
use byoc_plugin_support::library::{self, Drivers, Symbol};
use std::ffi::{c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Environment variable with the path of the library.
pub const VARIABLE: &str = "VTA_DRIVER";

/// Loaded drivers, each with its device.
pub static DRIVERS: Drivers<Driver> = Drivers::new(VARIABLE, load);

/// Number of times that a driver polls the device for completion: the maximum, because [`Driver::run`] enforces the
/// deadline.
const WAIT_CYCLES: u32 = u32::MAX;

type DeviceAlloc = unsafe extern "C" fn() -> *mut c_void;
type DeviceRun = unsafe extern "C" fn(*mut c_void, u32, u32, u32) -> c_int;
type MemAlloc = unsafe extern "C" fn(usize, c_int) -> *mut c_void;
type MemFree = unsafe extern "C" fn(*mut c_void);
type MemGetPhyAddr = unsafe extern "C" fn(*mut c_void) -> u32;
type MemCopyFromHost = unsafe extern "C" fn(*mut c_void, *const c_void, usize);
type MemCopyToHost = unsafe extern "C" fn(*mut c_void, *const c_void, usize);
type Cache = unsafe extern "C" fn(*mut c_void, u32, c_int);

/// Driver functions.
struct Functions {
    run: DeviceRun,
    alloc: MemAlloc,
    free: MemFree,
    address: MemGetPhyAddr,
    copy_from_host: MemCopyFromHost,
    copy_to_host: MemCopyToHost,
    flush: Cache,
    invalidate: Cache,
}

/// Opaque pointer to a device or to its memory, obtained from the driver.
#[derive(Clone, Copy)]
struct Handle(*mut c_void);

// SAFETY: only the driver dereferences the pointer, and `Driver::busy` serializes its calls.
unsafe impl Send for Handle {}
// SAFETY: only the driver dereferences the pointer, and `Driver::busy` serializes its calls.
unsafe impl Sync for Handle {}

/// Loaded driver with its device.
pub struct Driver {
    /// Path of the library.
    pub path: PathBuf,
    functions: Functions,
    device: Handle,
    /// Held during a call, because the functions are not thread-safe and the device executes one run at a time.
    busy: Mutex<()>,
    /// Set after a run that missed its deadline. The device is not used again.
    lost: AtomicBool,
}

/// Functions of `driver.h`, in the order that [`load`] expects. `VTADeviceFree` is required but not called: the device
/// stays open until the process exits.
const NAMES: [&str; 10] = [
    "VTADeviceAlloc",
    "VTADeviceFree",
    "VTADeviceRun",
    "VTAMemAlloc",
    "VTAMemFree",
    "VTAMemGetPhyAddr",
    "VTAMemCopyFromHost",
    "VTAMemCopyToHost",
    "VTAFlushCache",
    "VTAInvalidateCache",
];

fn load(path: &Path) -> Result<Driver> {
    let invalid = |problem: String| {
        Error::new(format!("driver {} ({VARIABLE}): {problem}", path.display())).hint(
            "set VTA_DRIVER to a shared library that exports the functions of VTA's driver.h, or unset it to use the \
             simulator",
        )
    };
    let symbols = library::open(path, NAMES).map_err(invalid)?;
    let [device_alloc, _, run, alloc, free, address, from_host, to_host, flush, invalidate] = symbols;
    // SAFETY: `library::open` has found all functions. The user who names the library guarantees that they have the
    // types that `driver.h` declares.
    let (device_alloc, functions) = unsafe {
        let functions = Functions {
            run: std::mem::transmute::<Symbol, DeviceRun>(run),
            alloc: std::mem::transmute::<Symbol, MemAlloc>(alloc),
            free: std::mem::transmute::<Symbol, MemFree>(free),
            address: std::mem::transmute::<Symbol, MemGetPhyAddr>(address),
            copy_from_host: std::mem::transmute::<Symbol, MemCopyFromHost>(from_host),
            copy_to_host: std::mem::transmute::<Symbol, MemCopyToHost>(to_host),
            flush: std::mem::transmute::<Symbol, Cache>(flush),
            invalidate: std::mem::transmute::<Symbol, Cache>(invalidate),
        };
        (std::mem::transmute::<Symbol, DeviceAlloc>(device_alloc), functions)
    };
    // SAFETY: `driver.h` declares `VTADeviceAlloc` without parameters and without preconditions.
    let device = unsafe { device_alloc() };
    if device.is_null() {
        return Err(invalid("VTADeviceAlloc returned no device".into()));
    }
    Ok(Driver {
        path: path.to_owned(),
        functions,
        device: Handle(device),
        busy: Mutex::new(()),
        lost: AtomicBool::new(false),
    })
}

/// Driver-allocated memory that the device reads and writes.
pub struct DeviceMemory {
    driver: Arc<Driver>,
    pointer: Handle,
    address: u32,
    size: usize,
}

impl DeviceMemory {
    /// Allocates memory.
    ///
    /// # Errors
    /// If the driver has no memory left, or the device is lost.
    pub fn new(driver: &Arc<Driver>, size: usize) -> Result<DeviceMemory> {
        let _one_at_a_time = driver.lock()?;
        // SAFETY: by the contract of the driver, `VTAMemAlloc` accepts any size and returns null on failure. The memory
        // may be cached (1), because `write` flushes the cache and `read` invalidates it.
        let pointer = unsafe { (driver.functions.alloc)(size.max(1), 1) };
        if pointer.is_null() {
            return Err(driver.error(&format!("VTAMemAlloc returned no memory for {size} bytes")));
        }
        // SAFETY: `VTAMemAlloc` returned `pointer`, which is non-null.
        let address = unsafe { (driver.functions.address)(pointer) };
        Ok(DeviceMemory { driver: driver.clone(), pointer: Handle(pointer), address, size })
    }

    /// Returns the device address of the memory.
    pub fn address(&self) -> u64 {
        self.address.into()
    }

    /// Copies bytes to the start of the memory.
    ///
    /// # Errors
    /// If `bytes` is larger than the memory, or the device is lost.
    pub fn write(&self, bytes: &[u8]) -> Result<()> {
        let size = self.check(bytes.len())?;
        let _one_at_a_time = self.driver.lock()?;
        let Functions { copy_from_host, flush, .. } = self.driver.functions;
        // SAFETY: `self` owns the memory, `check` has bounded the size, and the slice is readable.
        unsafe {
            copy_from_host(self.pointer.0, bytes.as_ptr().cast(), bytes.len());
            flush(self.pointer.0, self.address, size);
        }
        Ok(())
    }

    /// Copies bytes from the start of the memory.
    ///
    /// # Errors
    /// If `bytes` is larger than the memory, or the device is lost.
    pub fn read(&self, bytes: &mut [u8]) -> Result<()> {
        let size = self.check(bytes.len())?;
        let _one_at_a_time = self.driver.lock()?;
        let Functions { copy_to_host, invalidate, .. } = self.driver.functions;
        // SAFETY: `self` owns the memory, `check` has bounded the size, and the slice is writable.
        unsafe {
            invalidate(self.pointer.0, self.address, size);
            copy_to_host(bytes.as_mut_ptr().cast(), self.pointer.0, bytes.len());
        }
        Ok(())
    }

    fn check(&self, bytes: usize) -> Result<c_int> {
        match c_int::try_from(bytes) {
            Ok(size) if bytes <= self.size => Ok(size),
            _ => Err(Error::new(format!("device memory: expected at most {} bytes, found {bytes}", self.size))),
        }
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // A lost device may still write to the memory, so the memory is leaked.
        if let Ok(_one_at_a_time) = self.driver.lock() {
            // SAFETY: `self` owns the allocation and does not use it again.
            unsafe { (self.driver.functions.free)(self.pointer.0) };
        }
    }
}

impl Driver {
    fn error(&self, problem: &str) -> Error {
        Error::new(format!("driver {} ({VARIABLE}): {problem}", self.path.display()))
    }

    /// Returns an error with the code of a lost device, which makes the host compute the region itself.
    fn lost_error(&self, problem: &str) -> Error {
        self.error(problem).code(DEVICE_LOST)
    }

    fn lock(&self) -> Result<std::sync::MutexGuard<'_, ()>> {
        if self.lost.load(Ordering::Acquire) {
            return Err(self.lost_error("an earlier run has not ended"));
        }
        Ok(self.busy.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Runs `count` instructions at a device address, and waits for their completion.
    ///
    /// # Errors
    /// If the driver reports an error or misses the deadline. After a missed deadline, the device is not used again.
    pub fn run(self: &Arc<Driver>, address: u64, count: usize, deadline: Duration) -> Result<()> {
        let _one_at_a_time = self.lock()?;
        let (Ok(address), Ok(count)) = (u32::try_from(address), u32::try_from(count)) else {
            return Err(self.error(&format!(
                "expected an address and an instruction count < 2^32, found {address:#x} and {count}"
            )));
        };
        let (sender, receiver) = mpsc::channel();
        let (run, device) = (self.functions.run, self.device);
        // The driver may never return, so it is called on a separate thread.
        let call = move || {
            let device = device;
            // SAFETY: `Device` has written the instructions to driver memory, and `blob::read` has checked them.
            let code = unsafe { run(device.0, address, count, WAIT_CYCLES) };
            // The receiver is gone if the deadline has passed.
            let _ = sender.send(code);
        };
        std::thread::Builder::new()
            .name("vta-run".into())
            .spawn(call)
            .map_err(|error| self.error(&format!("cannot start a thread: {error}")))?;
        match receiver.recv_timeout(deadline) {
            Ok(0) => Ok(()),
            Ok(code) => {
                Err(self.lost_error(&format!("VTADeviceRun: expected 0, found {code}: the run has not finished")))
            }
            Err(RecvTimeoutError::Timeout) => {
                self.lost.store(true, Ordering::Release);
                Err(self.lost_error(&format!("VTADeviceRun: no response within {:.1} s", deadline.as_secs_f64())))
            }
            Err(RecvTimeoutError::Disconnected) => {
                Err(self.lost_error("VTADeviceRun: the calling thread ended without a result"))
            }
        }
    }
}

//! CUDA's run time, opened at run time: devices, memory, streams.

use crate::library::{cuda_runtimes, tensorrt};
use byoc_plugin_api::device::DEVICE_LOST;
use byoc_plugin_api::{Error, Result};
use byoc_plugin_support::library::{self, Symbol};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::sync::OnceLock;

/// Stream of a device.
pub type RawStream = *mut c_void;

/// Declares the functions of the run time: field, symbol, types.
macro_rules! functions {
    ($($field:ident $symbol:literal ($($ty:ty),*);)*) => {
        /// Functions of CUDA's run time.
        pub struct Cuda {
            $($field: unsafe extern "C" fn($($ty),*) -> c_int,)*
            error_name: unsafe extern "C" fn(c_int) -> *const c_char,
        }

        const NAMES: [&str; 14] = [$($symbol,)* "cudaGetErrorName"];

        impl Cuda {
            fn of(symbols: [Symbol; 14]) -> Cuda {
                let [$($field,)* error_name] = symbols;
                // SAFETY: these are the functions' types in every version of CUDA since 10.
                unsafe {
                    Cuda {
                        $($field: std::mem::transmute::<Symbol, unsafe extern "C" fn($($ty),*) -> c_int>($field),)*
                        error_name: std::mem::transmute::<Symbol, unsafe extern "C" fn(c_int) -> *const c_char>(error_name),
                    }
                }
            }
        }
    };
}

functions! {
    get_device_count "cudaGetDeviceCount" (*mut c_int);
    get_device "cudaGetDevice" (*mut c_int);
    set_device "cudaSetDevice" (c_int);
    get_attribute "cudaDeviceGetAttribute" (*mut c_int, c_int, c_int);
    memory_info "cudaMemGetInfo" (*mut usize, *mut usize);
    malloc "cudaMalloc" (*mut *mut c_void, usize);
    free "cudaFree" (*mut c_void);
    host_alloc "cudaHostAlloc" (*mut *mut c_void, usize, c_uint);
    free_host "cudaFreeHost" (*mut c_void);
    memcpy_async "cudaMemcpyAsync" (*mut c_void, *const c_void, usize, c_int, RawStream);
    stream_create "cudaStreamCreateWithFlags" (*mut RawStream, c_uint);
    stream_destroy "cudaStreamDestroy" (RawStream);
    stream_synchronize "cudaStreamSynchronize" (RawStream);
}

/// Attributes of a device: the two parts of its compute capability.
const CAPABILITY_MAJOR: c_int = 75;
const CAPABILITY_MINOR: c_int = 76;
/// Directions of copies.
const TO_DEVICE: c_int = 1;
const FROM_DEVICE: c_int = 2;
/// Flag of a stream that does not wait for the default one.
const NON_BLOCKING: c_uint = 1;

/// Errors that tell that there is no usable device.
const NO_DEVICE: [c_int; 3] = [35, 100, 803];
/// Error of memory of the device that is short.
const OUT_OF_MEMORY: c_int = 2;
/// Errors after which the process cannot use the device any more.
const LOST: [c_int; 9] = [46, 214, 700, 702, 710, 716, 717, 719, 999];

/// Device of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceFacts {
    pub id: i32,
    /// Ten times the compute capability.
    pub capability: i32,
    /// Size of the memory in bytes.
    pub memory: u64,
}

impl Cuda {
    /// Returns the run time, opened at the first call, on a machine with a device.
    ///
    /// # Errors
    /// If there is no run time, no driver or no device.
    pub fn get() -> Result<&'static Cuda> {
        static CUDA: OnceLock<Result<Cuda>> = OnceLock::new();
        CUDA.get_or_init(open).as_ref().map_err(Clone::clone)
    }

    /// Returns an error for a failed call of a function.
    fn check(&self, status: c_int, function: &str) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the function accepts any number, and returns a static text.
        let name = unsafe {
            let name = (self.error_name)(status);
            if name.is_null() { "unknown error".into() } else { CStr::from_ptr(name).to_string_lossy() }
        };
        let error = Error::new(format!("{function}: {name} ({status})"));
        Err(if NO_DEVICE.contains(&status) {
            error.hint("run the model on a machine with an NVIDIA GPU and its driver, or with `--backend none`")
        } else if status == OUT_OF_MEMORY {
            error.hint("use a smaller batch or model, or close other programs that use the GPU")
        } else if LOST.contains(&status) {
            error
                .code(DEVICE_LOST)
                .hint("restart the program, or run it with `--backend none`; `dmesg` may have the cause")
        } else {
            error
        })
    }

    /// Returns the number of devices.
    ///
    /// # Errors
    /// If there is no driver.
    fn count(&self) -> Result<c_int> {
        let mut count = 0;
        // SAFETY: the pointer is valid for the call.
        self.check(unsafe { (self.get_device_count)(&mut count) }, "cudaGetDeviceCount")?;
        Ok(count)
    }

    /// Lists the devices.
    ///
    /// # Errors
    /// If one of them fails.
    pub fn devices(&self) -> Result<Vec<DeviceFacts>> {
        let current = self.current()?;
        let facts = |id| {
            self.select(id)?;
            let (mut free, mut memory) = (0, 0);
            // SAFETY: the pointers are valid for the call.
            self.check(unsafe { (self.memory_info)(&mut free, &mut memory) }, "cudaMemGetInfo")?;
            Ok(DeviceFacts { id, capability: self.capability(id)?, memory: memory as u64 })
        };
        let devices = (0..self.count()?).map(facts).collect();
        self.select(current)?;
        devices
    }

    /// Returns the device of this thread.
    ///
    /// # Errors
    /// If there is none.
    pub fn current(&self) -> Result<i32> {
        let mut device = 0;
        // SAFETY: the pointer is valid for the call.
        self.check(unsafe { (self.get_device)(&mut device) }, "cudaGetDevice")?;
        Ok(device)
    }

    /// Sets the device of this thread.
    ///
    /// # Errors
    /// If there is no such device.
    pub fn select(&self, device: i32) -> Result<()> {
        // SAFETY: the function accepts any number.
        self.check(unsafe { (self.set_device)(device) }, "cudaSetDevice")
    }

    /// Returns the device that a selector names: its number; empty for that of this thread.
    ///
    /// # Errors
    /// If there is no such device; the message lists those that there are.
    pub fn find(&self, selector: &str) -> Result<i32> {
        if selector.is_empty() {
            return self.current();
        }
        let count = self.count()?;
        selector.parse::<i32>().ok().filter(|device| (0..count).contains(device)).ok_or_else(|| {
            Error::new(format!("expected the number of a device below {count}, found \"{selector}\""))
                .hint("`byoc plugins show tensorrt` lists the devices")
        })
    }

    /// Returns ten times the compute capability of a device.
    ///
    /// # Errors
    /// If there is no such device.
    pub fn capability(&self, device: i32) -> Result<i32> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the pointers are valid for the calls.
        unsafe {
            self.check((self.get_attribute)(&mut major, CAPABILITY_MAJOR, device), "cudaDeviceGetAttribute")?;
            self.check((self.get_attribute)(&mut minor, CAPABILITY_MINOR, device), "cudaDeviceGetAttribute")?;
        }
        Ok(major * 10 + minor)
    }
}

fn open() -> Result<Cuda> {
    let library = tensorrt().ok().map(|library| library.file.as_path());
    let mut problems = Vec::new();
    for file in cuda_runtimes(library) {
        match open_file(&file) {
            Ok(symbols) => {
                let cuda = Cuda::of(symbols);
                let count = cuda.count()?;
                let no_device = || Error::new("expected an NVIDIA GPU, found none");
                return if count > 0 { Ok(cuda) } else { Err(no_device()) };
            }
            Err(problem) => problems.push(format!("{}: {problem}", file.display())),
        }
    }
    let message = format!("expected CUDA's run time (libcudart.so.13), found none: {}", problems.join("; "));
    Err(Error::new(message)
        .hint("install NVIDIA's driver and `pip install onnxruntime-ep-nv-tensorrt-rtx-cu13`, or set BYOC_CUDART_LIB"))
}

/// Opens a file, or a name that the dynamic loader searches.
fn open_file(file: &Path) -> Result<[Symbol; 14], String> {
    if file.parent().is_some_and(|dir| !dir.as_os_str().is_empty()) {
        return library::open(file, NAMES);
    }
    // SAFETY: the directories that the dynamic loader searches hold libraries that the system's owner trusts.
    let library = unsafe { Library::open(Some(file), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| error.to_string())?;
    // SAFETY: only the addresses are used here; `Cuda::of` gives them their types.
    let symbols = NAMES.map(|name| unsafe { library.get::<Symbol>(name) }.ok().map(|symbol| *symbol));
    // The functions may be called until the process exits.
    std::mem::forget(library);
    let symbols: Vec<Symbol> = symbols.into_iter().flatten().collect();
    symbols.try_into().map_err(|_| "missing functions".to_owned())
}

/// Block of memory of a device.
pub struct Buffer {
    cuda: &'static Cuda,
    address: *mut c_void,
    pub bytes: usize,
}

// SAFETY: an address of the device may be used on any thread.
unsafe impl Send for Buffer {}
// SAFETY: as above; the block is only named, never accessed, through a shared reference.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Allocates memory of the device of this thread.
    ///
    /// # Errors
    /// If the device has not enough.
    pub fn new(cuda: &'static Cuda, bytes: usize) -> Result<Buffer> {
        let mut address = std::ptr::null_mut();
        // SAFETY: the pointer is valid for the call.
        let status = unsafe { (cuda.malloc)(&mut address, bytes.max(1)) };
        cuda.check(status, "cudaMalloc").map_err(|mut error| {
            error = Error::new(format!("{} for {bytes} bytes", error.message)).hint(error.hint.to_string());
            error
        })?;
        Ok(Buffer { cuda, address, bytes })
    }

    /// Returns the address, in memory of the device.
    pub fn address(&self) -> *mut c_void {
        self.address
    }

    /// Gives up the ownership.
    pub fn into_address(self) -> *mut c_void {
        std::mem::ManuallyDrop::new(self).address
    }

    /// Takes over memory that [`Buffer::into_address`] gave up.
    ///
    /// # Safety
    /// `address` is of that function, and nothing else owns it.
    pub unsafe fn from_address(cuda: &'static Cuda, address: *mut c_void) -> Buffer {
        Buffer { cuda, address, bytes: 0 }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the memory is allocated, and this value is its only owner. A lost device has released it already.
        let status = unsafe { (self.cuda.free)(self.address) };
        if let Err(error) = self.cuda.check(status, "cudaFree") {
            tracing::debug!("{error}");
        }
    }
}

/// Page-locked memory of the host.
///
/// # Errors
/// If there is not enough.
pub fn allocate_host(cuda: &Cuda, bytes: usize) -> Result<*mut c_void> {
    let mut address = std::ptr::null_mut();
    // SAFETY: the pointer is valid for the call.
    cuda.check(unsafe { (cuda.host_alloc)(&mut address, bytes.max(1), 0) }, "cudaHostAlloc")?;
    Ok(address)
}

/// Releases memory of [`allocate_host`].
///
/// # Errors
/// If the device fails.
///
/// # Safety
/// `address` is of that function, and nothing uses it any more.
pub unsafe fn release_host(cuda: &Cuda, address: *mut c_void) -> Result<()> {
    // SAFETY: by the contract of this function.
    cuda.check(unsafe { (cuda.free_host)(address) }, "cudaFreeHost")
}

/// Stream of a device.
pub struct Stream {
    cuda: &'static Cuda,
    stream: RawStream,
}

// SAFETY: streams may be used on any thread.
unsafe impl Send for Stream {}
// SAFETY: the run time locks a stream in its calls.
unsafe impl Sync for Stream {}

impl Stream {
    /// Creates a stream of the device of this thread.
    ///
    /// # Errors
    /// If the device fails.
    pub fn new(cuda: &'static Cuda) -> Result<Stream> {
        let mut stream = std::ptr::null_mut();
        // SAFETY: the pointer is valid for the call.
        cuda.check(unsafe { (cuda.stream_create)(&mut stream, NON_BLOCKING) }, "cudaStreamCreateWithFlags")?;
        Ok(Stream { cuda, stream })
    }

    /// Returns the stream for calls of the library.
    pub fn raw(&self) -> RawStream {
        self.stream
    }

    /// Enqueues a copy to the device.
    ///
    /// # Errors
    /// If the device fails.
    ///
    /// # Safety
    /// `to` has room for the bytes, and both stay as they are until the stream is synchronized.
    pub unsafe fn copy_in(&self, to: *mut c_void, from: &[u8]) -> Result<()> {
        // SAFETY: by the contract of this function.
        let status = unsafe { (self.cuda.memcpy_async)(to, from.as_ptr().cast(), from.len(), TO_DEVICE, self.stream) };
        self.cuda.check(status, "cudaMemcpyAsync")
    }

    /// Enqueues a copy to the host.
    ///
    /// # Errors
    /// If the device fails.
    ///
    /// # Safety
    /// `from` has the bytes, and both stay in place until the stream is synchronized.
    pub unsafe fn copy_out(&self, from: *const c_void, to: &mut [u8]) -> Result<()> {
        // SAFETY: by the contract of this function.
        let status =
            unsafe { (self.cuda.memcpy_async)(to.as_mut_ptr().cast(), from, to.len(), FROM_DEVICE, self.stream) };
        self.cuda.check(status, "cudaMemcpyAsync")
    }

    /// Waits for all work of the stream.
    ///
    /// # Errors
    /// If the work failed: with the code of a lost device if it is lost.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream is live.
        self.cuda.check(unsafe { (self.cuda.stream_synchronize)(self.stream) }, "cudaStreamSynchronize")
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the stream is live, and this value is its only owner.
        let status = unsafe { (self.cuda.stream_destroy)(self.stream) };
        if let Err(error) = self.cuda.check(status, "cudaStreamDestroy") {
            tracing::debug!("{error}");
        }
    }
}

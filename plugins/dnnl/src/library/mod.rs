//! Access to oneDNN: locating the library, its C API, and a safe layer over the API.

pub mod ffi;
mod find;
mod handles;
mod openmp;
pub mod pages;
pub mod retained;
mod status;

pub use find::{FILE_NAME, INSTALL_HINT, set_plugin_path};
pub use handles::{Attr, Conv, Desc, Memory, PostOps, Primitive, PrimitiveDesc, Stream, Window, is_slow};
pub use status::{OneDnnError, Status};

use byoc_plugin_api::{Error, Result};
use byoc_plugin_support::isa;
use byoc_plugin_support::refusal::cause;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use openmp::{SetThreads, Team};
use std::ffi::c_int;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Loaded library, open until the process ends.
pub struct OneDnn {
    api: ffi::Api,
    engine: *mut ffi::CEngine,
    set_threads: SetThreads,
    team: Option<Team>,
    /// Path or bare file name that was passed to the dynamic loader.
    file: PathBuf,
    /// True if the library never frees the kernels of some convolutions.
    retains_kernels: bool,
    /// Instruction sets that the library uses: bits of `dnnl_cpu_isa_t`.
    pub isa: u32,
    /// Version, such as `3.2.0`.
    pub version: String,
    // Never unmapped: the struct lives in a static.
    _library: Library,
}

// SAFETY: oneDNN permits the use of an engine from any thread; the other fields are immutable.
unsafe impl Send for OneDnn {}
// SAFETY: oneDNN permits concurrent use of an engine; the other fields are immutable.
unsafe impl Sync for OneDnn {}

/// Returns the library, opening it on the first call.
///
/// # Errors
/// If the library is missing or unsupported; the hint contains the installation command.
pub fn onednn() -> Result<&'static OneDnn> {
    static LIBRARY: OnceLock<Result<OneDnn>> = OnceLock::new();
    match LIBRARY.get_or_init(open) {
        Ok(library) => Ok(library),
        Err(error) => Err(error.clone()),
    }
}

fn open() -> Result<OneDnn> {
    let file = find::find()?;
    let library_path = file.display();
    let unusable = |problem: String| Error::new(format!("{library_path}: {problem}")).hint(INSTALL_HINT);
    // SAFETY: the user trusts the library; its constructors only initialize OpenMP and C++ statics.
    let library = openmp::with_short_spin(|| unsafe { Library::open(Some(&file), RTLD_NOW | RTLD_LOCAL) })
        .map_err(|error| unusable(format!("cannot load the library: {}", cause(&error))))?;
    // SAFETY: every version of the library has this function; it returns a pointer to a static structure, which begins
    // with these fields.
    let version = unsafe {
        let version = library.get::<unsafe extern "C" fn() -> *const ffi::Version>(b"dnnl_version");
        let version = version.map_err(|_| unusable("expected oneDNN, found a library without dnnl_version".into()))?;
        &*version()
    };
    let shown_version = format!("{}.{}.{}", version.major, version.minor, version.patch);
    if version.major != 3 {
        return Err(unusable(format!("expected oneDNN 3, found {shown_version}")));
    }
    if version.cpu_runtime != ffi::RUNTIME_OMP as u32 {
        return Err(unusable(format!(
            "expected oneDNN built with OpenMP (CPU runtime {}), found CPU runtime {}",
            ffi::RUNTIME_OMP,
            version.cpu_runtime
        )));
    }
    let isa = limit_isa(&library);
    // SAFETY: the check above ensures oneDNN 3, and `OneDnn` keeps the library mapped.
    let api = unsafe { ffi::Api::of(&library) };
    let api = api.map_err(|name| unusable(format!("oneDNN {shown_version} lacks the function {name}")))?;
    let set_threads = openmp::set_threads(&library)
        .ok_or_else(|| unusable("the OpenMP library lacks the function omp_set_num_threads".into()))?;
    let mut engine = std::ptr::null_mut();
    // SAFETY: the out-pointer is valid.
    let status = unsafe { (api.engine_create)(&mut engine, ffi::CPU, 0) };
    if let Some(status) = Status::of(status) {
        return Err(unusable(format!("cannot create a CPU engine: {status}")));
    }
    tracing::debug!("oneDNN {shown_version} from {library_path}");
    let team = Team::of(&library);
    let retains_kernels = !cfg!(target_arch = "x86_64") || version.minor < 4;
    Ok(OneDnn { api, engine, set_threads, team, file, retains_kernels, isa, version: shown_version, _library: library })
}

/// Bits of `dnnl_cpu_isa_t`: int8 dot products in AVX-512 and in AVX2, and bfloat16 dot products.
pub const ISA_VNNI: [u32; 2] = [0x40, 0x08];
pub const ISA_BF16: u32 = 0x80;

/// Keeps the library to the instruction sets that may be used, and returns those that it uses. Must be called before
/// every other function of the library.
fn limit_isa(library: &Library) -> u32 {
    const SSE41: c_int = 0x1;
    const AVX2: c_int = 0x7;
    let highest = if isa::permits_avx512() {
        None
    } else if isa::permits_avx2() {
        Some(AVX2)
    } else {
        Some(SSE41)
    };
    // SAFETY: the types are those of oneDNN 3. A build without the functions has no such limit.
    unsafe {
        let set = library.get::<unsafe extern "C" fn(c_int) -> c_int>(b"dnnl_set_max_cpu_isa");
        if let (Some(highest), Ok(set)) = (highest, set) {
            set(highest);
        }
        let used = library.get::<unsafe extern "C" fn() -> u32>(b"dnnl_get_effective_cpu_isa");
        used.map_or(0, |used| used())
    }
}

impl OneDnn {
    /// Returns the library path.
    ///
    /// # Errors
    /// If the system does not report the mapped files, or the current directory is not accessible.
    pub fn path(&self) -> Result<PathBuf> {
        find::mapped_path(&self.file)
    }

    /// Calls `body(thread, threads)` on every thread of the library's pool if `is_worthwhile` is set, otherwise only on
    /// the calling thread. `is_worthwhile` states that the work justifies waking the threads. `body` must not panic.
    pub fn run_on_threads(&self, is_worthwhile: bool, body: &(dyn Fn(usize, usize) + Sync)) {
        match self.team.as_ref().filter(|_| is_worthwhile) {
            Some(team) => team.run(body),
            None => body(0, 1),
        }
    }

    /// Returns the number of threads that the library uses for calls from the calling thread.
    pub fn threads(&self) -> usize {
        self.team.as_ref().map_or(1, Team::size)
    }

    /// Empties the library's primitive cache, which retains the code of up to about a thousand primitives after their
    /// last user has released them. Live primitives are not affected.
    pub fn empty_cache(&self) {
        // Without the lock, a concurrent call could read the temporary 0 as the capacity and leave the cache disabled.
        static FLUSH_LOCK: Mutex<()> = Mutex::new(());
        let _flush_guard = FLUSH_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        let mut capacity = 0;
        // SAFETY: `capacity` is a valid out-pointer. Threads that create primitives concurrently merely miss the cache.
        unsafe {
            if (self.api.get_primitive_cache_capacity)(&mut capacity) == ffi::SUCCESS && capacity > 0 {
                (self.api.set_primitive_cache_capacity)(0);
                (self.api.set_primitive_cache_capacity)(capacity);
            }
        }
    }

    /// Returns true if the library never frees the code of this implementation of a convolution; see [`retained`].
    fn retains_code(&self, implementation: &str) -> bool {
        self.retains_kernels && implementation.contains("brg")
    }

    /// Sets the number of threads for calls by the calling thread.
    pub fn set_threads(&self, threads: usize) {
        // SAFETY: `omp_set_num_threads` only sets a variable of the calling thread.
        unsafe { (self.set_threads)(threads.clamp(1, 4096) as i32) }
    }
}

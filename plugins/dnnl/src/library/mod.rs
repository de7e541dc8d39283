//! oneDNN: where it is found, its C API, and a safe layer over it.

pub mod ffi;
mod find;
mod handles;
mod openmp;
pub mod pages;
mod status;

pub use find::{INSTALL, set_plugin_path};
pub use handles::{Attr, Conv, Desc, Memory, Outcome, PostOps, Primitive, PrimitiveDesc, Stream, Window};
pub use status::{Failure, Status};

use byoc_plugin_api::{Error, Result};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use openmp::{SetThreads, Team};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The library, open for the life of the process.
pub struct OneDnn {
    api: ffi::Api,
    engine: *mut ffi::CEngine,
    set_threads: SetThreads,
    team: Option<Team>,
    /// Its version: `3.2.0`.
    pub version: String,
    // Never unmapped: it stays in a static.
    _library: Library,
}

// SAFETY: the table holds function pointers, and the library's engines may be used from any thread.
unsafe impl Send for OneDnn {}
// SAFETY: as above.
unsafe impl Sync for OneDnn {}

/// The library, opened the first time that it is asked for.
///
/// # Errors
/// Where it is not on this machine, or is one that is not known here: with the line that installs it as the hint.
pub fn onednn() -> Result<&'static OneDnn> {
    static LIBRARY: OnceLock<Result<OneDnn>> = OnceLock::new();
    match LIBRARY.get_or_init(open) {
        Ok(library) => Ok(library),
        Err(error) => Err(error.clone()),
    }
}

fn open() -> Result<OneDnn> {
    let file = find::find()?;
    let shown = file.display();
    let wrong = |what: String| Error::new(format!("{shown}: {what}")).hint(INSTALL);
    // SAFETY: the file is a whole shared library, which its user trusts; its constructors set up OpenMP and C++ statics.
    let library = openmp::with_short_spinning(|| unsafe { Library::open(Some(&file), RTLD_NOW | RTLD_LOCAL) })
        .map_err(|error| wrong(format!("the library does not load: {error}")))?;
    // SAFETY: every version of the library has this function, and its structure begins with these fields.
    let version = unsafe { library.get::<unsafe extern "C" fn() -> *const ffi::Version>(b"dnnl_version") };
    let version = version.map_err(|_| wrong("this is not oneDNN: it has no function dnnl_version".into()))?;
    // SAFETY: the function returns a pointer to a constant.
    let version = unsafe { &*version() };
    let shown_version = format!("{}.{}.{}", version.major, version.minor, version.patch);
    if version.major != 3 {
        return Err(wrong(format!("this is oneDNN {shown_version}; version 3 is wanted")));
    }
    if version.cpu_runtime != ffi::RUNTIME_OMP as u32 {
        return Err(wrong("this oneDNN is not built on OpenMP, so its threads cannot be sized".into()));
    }
    // SAFETY: it is oneDNN 3, and it is kept.
    let api = unsafe { ffi::Api::of(&library) };
    let api = api.map_err(|name| wrong(format!("this oneDNN {shown_version} has no function {name}")))?;
    let set_threads = openmp::set_threads(&library)
        .ok_or_else(|| wrong("its OpenMP library has no function omp_set_num_threads".into()))?;
    let mut engine = std::ptr::null_mut();
    // SAFETY: the out-pointer is valid.
    let status = unsafe { (api.engine_create)(&mut engine, ffi::CPU, 0) };
    if let Some(status) = Status::of(status) {
        return Err(wrong(format!("no engine for this CPU: {status}")));
    }
    tracing::debug!("oneDNN {shown_version} from {shown}");
    let team = Team::of(&library);
    Ok(OneDnn { api, engine, set_threads, team, version: shown_version, _library: library })
}

impl OneDnn {
    /// Calls `body(thread, threads)`, which may not panic, on every thread of the library's pool, or on the caller's alone
    /// where there is not `enough` to do: others take longer to begin.
    pub fn on_threads(&self, enough: bool, body: &(dyn Fn(usize, usize) + Sync)) {
        match self.team.as_ref().filter(|_| enough) {
            Some(team) => team.run(body),
            None => body(0, 1),
        }
    }

    /// How many threads the library computes with, of those that this thread calls.
    pub fn threads(&self) -> usize {
        self.team.as_ref().map_or(1, Team::size)
    }

    /// Empties the library's cache of primitives, which holds the code of a thousand of them after everybody else has let them
    /// go. Primitives in use stay.
    pub fn empty_cache(&self) {
        // Two at once would take each other's 0 for the capacity.
        static ONE: Mutex<()> = Mutex::new(());
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut capacity = 0;
        // SAFETY: the out-pointer is valid. Others who make primitives meanwhile do not find them in the cache.
        unsafe {
            if (self.api.get_primitive_cache_capacity)(&mut capacity) == ffi::SUCCESS && capacity > 0 {
                (self.api.set_primitive_cache_capacity)(0);
                (self.api.set_primitive_cache_capacity)(capacity);
            }
        }
    }

    /// Sizes the library's pool for what this thread calls from now on.
    pub fn set_threads(&self, threads: usize) {
        // SAFETY: the function sets a variable of the calling thread.
        unsafe { (self.set_threads)(threads.clamp(1, 4096) as i32) }
    }
}

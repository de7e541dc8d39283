//! Session objects and their options.

use crate::error::{Error, free_in_process, report};
use crate::options::{ExtensibleStruct, array, read, store_result, text};
use byoc::runtime::fork::Generation;
use std::ffi::{c_char, c_int};
use std::sync::Arc;

/// Session object for C.
pub struct Session {
    session: Arc<byoc::Session>,
    generation: Generation,
}

impl Session {
    /// Returns the session.
    ///
    /// # Errors
    /// If the process has been forked since it was created.
    pub fn live(&self) -> Result<&Arc<byoc::Session>, Error> {
        self.generation.check().map_err(byoc::Error::from)?;
        Ok(&self.session)
    }
}

/// Pair of a name and a value.
#[repr(C)]
pub struct Pair {
    name: *const c_char,
    value: *const c_char,
}

impl Pair {
    /// Returns the name and the value.
    ///
    /// # Safety
    /// Each pointer is NULL, or points to NUL-terminated text that outlives the result.
    pub unsafe fn strings<'a>(&self, name: &str) -> Result<(&'a str, &'a str), Error> {
        // SAFETY: the caller guarantees that both texts are NUL-terminated and outlive the result.
        Ok(unsafe { (text(self.name, name)?, text(self.value, name)?) })
    }
}

/// Splits the name of a backend option.
///
/// # Errors
/// If the name contains no dot.
pub fn split_option(name: &str) -> Result<(&str, &str), Error> {
    name.split_once('.')
        .ok_or_else(|| Error::argument(format!("backend_options: expected \"backend.option\", found \"{name}\"")))
}

/// Session options.
#[repr(C)]
pub struct SessionOptions {
    struct_size: usize,
    plugin_dirs: *const *const c_char,
    plugin_dir_count: usize,
    search_default_dirs: c_int,
    refuse_native_code: c_int,
    threads: usize,
    max_memory: usize,
    cache_dir: *const c_char,
    devices: *const Pair,
    device_count: usize,
}

// SAFETY: the structure is `repr(C)`, begins with its size, and holds only integers and pointers.
unsafe impl ExtensibleStruct for SessionOptions {}

/// Creates a session.
///
/// # Safety
/// The pointers meet the requirements of `byoc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn byoc_session_create(options: *const SessionOptions, session: *mut *mut Session) -> *mut Error {
    // SAFETY: the caller meets the pointer requirements of `byoc.h`.
    report(|| unsafe {
        let options = read(options, "byoc_session_options")?;
        let mut builder =
            byoc::Session::builder().threads(options.threads).allow_native(options.refuse_native_code == 0);
        for dir in array(options.plugin_dirs, options.plugin_dir_count, "plugin_dirs")? {
            builder = builder.plugin_dir(text(*dir, "plugin_dirs")?);
        }
        if options.search_default_dirs != 0 {
            builder = builder.search_default_dirs();
        }
        if options.max_memory != 0 {
            builder = builder.max_memory(options.max_memory);
        }
        if !options.cache_dir.is_null() {
            builder = builder.cache_dir(text(options.cache_dir, "cache_dir")?);
        }
        for device in array(options.devices, options.device_count, "devices")? {
            let (backend, id) = device.strings("devices")?;
            builder = builder.device(backend, id);
        }
        store_result(session, || {
            let session = Arc::new(builder.build().map_err(byoc::Error::from)?);
            Ok(Session { session, generation: Generation::current() })
        })
    })
}

/// Frees a session.
///
/// # Safety
/// `session` is NULL, or a session that has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn byoc_session_free(session: *mut Session) {
    free_in_process(session, |session| session.generation);
}

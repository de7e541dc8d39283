//! Sessions: threads, plugins and limits that models share.

use crate::error;
use crate::fork;
use byoc::runtime::fork::Generation;
use byoc::runtime::invocation::{self, Invocation};
use byoc::runtime::plugin::entries;
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::Arc;

/// Sets the package directory, which is searched for plugins, and the command that starts the `byoc` command line.
#[pyfunction]
pub fn set_folder(directory: PathBuf, command: Vec<std::ffi::OsString>) {
    invocation::set(Invocation { command, arguments: Vec::new(), directory });
}

/// Threads, plugins and limits that models share.
#[pyclass(frozen, subclass, module = "byoc._byoc")]
pub struct Session {
    pub session: Arc<byoc::Session>,
    pub generation: Generation,
}

impl Session {
    /// Returns the directories for files that live as long as a model: the cache, and the system's temporary directory.
    pub fn spare_folders(&self) -> Vec<PathBuf> {
        let cache = self.session.cache_dir.as_deref().map(PathBuf::from);
        cache.into_iter().chain([std::env::temp_dir()]).collect()
    }
}

impl Drop for Session {
    /// Leaks the session in a child process: its destructor could wait for threads that do not exist there.
    fn drop(&mut self) {
        if !self.generation.is_current() {
            std::mem::forget(self.session.clone());
        }
    }
}

#[pymethods]
impl Session {
    #[new]
    #[pyo3(signature = (plugin_dirs, search, threads, max_memory, cache_dir, allow_native, devices))]
    fn new(
        py: Python<'_>,
        plugin_dirs: Vec<PathBuf>,
        search: bool,
        threads: usize,
        max_memory: Option<usize>,
        cache_dir: Option<PathBuf>,
        allow_native: bool,
        devices: Vec<(String, String)>,
    ) -> PyResult<Session> {
        // A plugin that ends the interpreter is named on standard error.
        entries::guard_process();
        let mut builder = byoc::Session::builder().threads(threads).allow_native(allow_native);
        for dir in plugin_dirs {
            builder = builder.plugin_dir(dir);
        }
        if search {
            builder = builder.search_default_dirs();
        }
        if let Some(bytes) = max_memory {
            builder = builder.max_memory(bytes);
        }
        if let Some(dir) = cache_dir {
            builder = builder.cache_dir(dir);
        }
        for (backend, id) in devices {
            builder = builder.device(backend, id);
        }
        let session = py.detach(|| error::catch_panics(|| Ok(builder.build()?)));
        Ok(Session { session: Arc::new(error::result(py, session)?), generation: Generation::current() })
    }

    /// Returns the number of threads.
    #[getter]
    fn threads(&self) -> usize {
        self.session.pool.threads()
    }

    /// Loads all plugins, and describes each plugin file as JSON.
    fn plugins(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        fork::check(self.generation, py)?;
        let rows = py.detach(|| error::catch_panics(|| Ok(byoc_cli::report::plugins(&self.session))));
        Ok(error::result(py, rows)?.iter().map(ToString::to_string).collect())
    }
}

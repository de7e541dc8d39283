//! Session: the threads, the plugins found, and the services for plugins, shared by all builds and models.

use crate::cancel::Cancel;
use crate::choices::{Choices, base_name};
use crate::error::Failure;
use crate::exec::Pool;
use crate::limits;
use crate::plugin::devices::Devices;
use crate::plugin::discover::{given_dirs, search_dirs};
use crate::plugin::registry::Registry;
use crate::plugin::services::{Metrics, services};
use byoc_plugin_api::Services;
use std::path::PathBuf;
use std::sync::Arc;

/// State shared by all builds and models: threads, plugins, and the services for plugins.
pub struct Session {
    /// Thread pool.
    pub pool: Arc<Pool>,
    /// Counters and events of plugins.
    pub metrics: Arc<Metrics>,
    /// Services provided to plugins.
    pub services: Services,
    /// Cancellation of builds and runs in progress; any thread may request it. Inherited from the scope in which the
    /// session was created, if any.
    pub cancel: Cancel,
    /// Registry of the plugins found.
    pub registry: Registry,
    /// Device memories of the plugins.
    pub devices: Devices,
    /// Devices and options selected by the user.
    pub choices: Choices,
    /// True (the default) if regions of artifacts may hold native code, which runs with the privileges of the process.
    pub allow_native: bool,
    /// Cache directory of the backends; `None` (the default) for no cache.
    pub cache_dir: Option<PathBuf>,
}

/// Builder of a [`Session`].
#[derive(Clone, Debug, Default)]
pub struct SessionBuilder {
    plugin_dirs: Vec<PathBuf>,
    search_default_dirs: bool,
    threads: usize,
    max_memory: Option<usize>,
    allow_native: Option<bool>,
    cache_dir: Option<PathBuf>,
    choices: Choices,
}

impl SessionBuilder {
    /// Adds a directory of plugins. Earlier directories take precedence.
    #[must_use]
    pub fn plugin_dir(mut self, dir: impl Into<PathBuf>) -> SessionBuilder {
        self.plugin_dirs.push(dir.into());
        self
    }

    /// Also searches the default directories of the command line: `BYOC_PLUGIN_PATH`, the executable's directory and
    /// its `plugins/` subdirectory, and the user's data directory. Without this call, only directories added with
    /// [`SessionBuilder::plugin_dir`] are searched.
    #[must_use]
    pub fn search_default_dirs(mut self) -> SessionBuilder {
        self.search_default_dirs = true;
        self
    }

    /// Sets the number of threads; 0 (the default) stands for the number of processors.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> SessionBuilder {
        self.threads = threads;
        self
    }

    /// Sets the limit in bytes on the memory of tensors, arenas and workspaces. It applies to the whole process; the
    /// default is half of the available memory.
    #[must_use]
    pub fn max_memory(mut self, bytes: usize) -> SessionBuilder {
        self.max_memory = Some(bytes);
        self
    }

    /// Sets whether regions of artifacts may hold native code, which runs with the privileges of the process; true by
    /// default.
    #[must_use]
    pub fn allow_native(mut self, allow: bool) -> SessionBuilder {
        self.allow_native = Some(allow);
        self
    }

    /// Sets the cache directory of the backends; by default, backends have no cache directory.
    #[must_use]
    pub fn cache_dir(mut self, dir: impl Into<PathBuf>) -> SessionBuilder {
        self.cache_dir = Some(dir.into());
        self
    }

    /// Selects a device for a backend.
    #[must_use]
    pub fn device(mut self, backend: impl Into<String>, id: impl Into<String>) -> SessionBuilder {
        self.choices.devices.insert(backend.into(), id.into());
        self
    }

    /// Sets a backend option that applies when regions are loaded. It overrides the value with which they were
    /// compiled.
    #[must_use]
    pub fn load_option(
        mut self,
        backend: impl Into<String>,
        option: impl Into<String>,
        value: impl Into<String>,
    ) -> SessionBuilder {
        self.choices.load_options.entry(backend.into()).or_default().insert(option.into(), value.into());
        self
    }

    /// Sets a backend option for every run. It overrides the value with which the regions were compiled or loaded.
    #[must_use]
    pub fn run_option(
        mut self,
        backend: impl AsRef<str>,
        option: impl AsRef<str>,
        value: impl AsRef<str>,
    ) -> SessionBuilder {
        self.choices.run_options.set(base_name(backend.as_ref()), option.as_ref(), value.as_ref());
        self
    }

    /// Creates the session.
    ///
    /// # Errors
    /// If the system cannot start the threads.
    pub fn build(self) -> Result<Session, Failure> {
        let mut session = Session::without_plugins(self.threads)?;
        let dirs = if self.search_default_dirs {
            search_dirs(&self.plugin_dirs)
        } else {
            given_dirs(&self.plugin_dirs, "added by the program")
        };
        session.registry = Registry::of_dirs(dirs, &session.services);
        session.choices = self.choices;
        session.allow_native = self.allow_native.unwrap_or(true);
        session.cache_dir = self.cache_dir;
        if let Some(bytes) = self.max_memory {
            limits::set_max_memory(bytes);
        }
        Ok(session)
    }
}

impl Session {
    /// Returns a builder of sessions; by default, a session searches no plugin directories.
    pub fn builder() -> SessionBuilder {
        SessionBuilder::default()
    }

    /// Returns the cancellation of a build or load: that of the scope in which it runs, if any, otherwise that of the
    /// session.
    pub fn cancellation(&self) -> Cancel {
        Cancel::current().unwrap_or_else(|| self.cancel.clone())
    }

    /// Starts `threads` threads (0 stands for the number of processors) and determines the plugin directories. Plugins
    /// are loaded on demand.
    ///
    /// # Errors
    /// If the system cannot start the threads.
    pub fn new(plugin_dirs: &[PathBuf], threads: usize) -> Result<Session, Failure> {
        let mut session = Session::without_plugins(threads)?;
        session.registry = Registry::discover(plugin_dirs, &session.services);
        Ok(session)
    }

    /// Creates a session that does not search for plugins.
    ///
    /// # Errors
    /// If the system cannot start the threads.
    pub fn without_plugins(threads: usize) -> Result<Session, Failure> {
        let pool = Arc::new(Pool::new(threads)?);
        let metrics = Arc::new(Metrics::default());
        let cancel = Cancel::current().unwrap_or_default();
        limits::default_memory();
        let services = services(pool.clone(), metrics.clone(), cancel.clone());
        Ok(Session {
            pool,
            metrics,
            services,
            cancel,
            registry: Registry::empty(),
            devices: Devices::default(),
            choices: Choices::default(),
            allow_native: true,
            cache_dir: None,
        })
    }
}

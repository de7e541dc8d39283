//! State shared by a whole process: threads, services for plugins, and the plugins found.

use crate::cancel::Cancel;
use crate::choices::Choices;
use crate::error::Failure;
use crate::exec::Pool;
use crate::limits;
use crate::plugin::devices::Devices;
use crate::plugin::registry::Registry;
use crate::plugin::services::{Metrics, services};
use byoc_plugin_api::Services;
use std::path::PathBuf;
use std::sync::Arc;

/// State of a process: threads, plugins and the services for plugins.
pub struct Session {
    /// Thread pool.
    pub pool: Arc<Pool>,
    /// Counters and events of plugins.
    pub metrics: Arc<Metrics>,
    /// Services that plugins get.
    pub services: Services,
    /// Cancellation of builds and runs in progress; any thread may request it. Inherited from the scope in which the
    /// session was created, if any.
    pub cancel: Cancel,
    /// Registry of the plugins found.
    pub registry: Registry,
    /// Memories of the devices of plugins.
    pub devices: Devices,
    /// Devices and options that the user chose.
    pub choices: Choices,
    /// True (the default) if regions of artifacts may hold native code, which runs with the rights of the process.
    pub allow_native: bool,
}

impl Session {
    /// Starts `threads` threads (0: one per CPU core) and determines the plugin directories. Plugins are loaded on
    /// demand.
    ///
    /// # Errors
    /// When the system cannot start the threads.
    pub fn new(plugin_dirs: &[PathBuf], threads: usize) -> Result<Session, Failure> {
        let mut session = Session::without_plugins(threads)?;
        session.registry = Registry::discover(plugin_dirs, &session.services);
        Ok(session)
    }

    /// Creates a session that does not search for plugins.
    ///
    /// # Errors
    /// When the system cannot start the threads.
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
        })
    }
}

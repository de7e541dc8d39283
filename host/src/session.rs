//! What one process shares: the threads, the services that plugins get, the plugins found, and where log messages go.

use crate::cancel::Cancel;
use crate::error::Failure;
use crate::limits;
use crate::plugin::registry::Registry;
use crate::plugin::services::{Metrics, services};
use crate::runtime::Pool;
use byoc_plugin_api::Services;
use std::path::PathBuf;
use std::sync::Arc;
use tracing_subscriber::EnvFilter;

/// The threads, the plugins and their services.
pub struct Session {
    /// The threads.
    pub pool: Arc<Pool>,
    /// What plugins counted.
    pub metrics: Arc<Metrics>,
    /// What plugins were given.
    pub services: Services,
    /// Ends builds and runs that are under way, from any thread. It is the one in whose scope the session was made, if any.
    pub cancel: Cancel,
    /// The plugins found.
    pub registry: Registry,
    /// True if regions of artifacts may hold native code, which runs with the rights of the process. The default is yes.
    pub allow_native: bool,
}

impl Session {
    /// Starts `threads` threads (0: as many as the machine has) and knows where to look for plugins. Each is loaded when it is
    /// needed.
    ///
    /// # Errors
    /// When the system gives no threads.
    pub fn new(plugin_dirs: &[PathBuf], threads: usize) -> Result<Session, Failure> {
        let mut session = Session::without_plugins(threads)?;
        session.registry = Registry::discover(plugin_dirs, &session.services);
        Ok(session)
    }

    /// The same without looking for plugins.
    ///
    /// # Errors
    /// When the system gives no threads.
    pub fn without_plugins(threads: usize) -> Result<Session, Failure> {
        let pool = Arc::new(Pool::new(threads)?);
        let metrics = Arc::new(Metrics::default());
        let cancel = Cancel::current().unwrap_or_default();
        limits::default_memory();
        let services = services(pool.clone(), metrics.clone(), cancel.clone());
        Ok(Session { pool, metrics, services, cancel, registry: Registry::empty(), allow_native: true })
    }
}

/// Sends log messages to standard error: warnings, with `-v` each region call, with `-vv` everything. `BYOC_LOG` says it
/// in more detail (`byoc::plugin=debug`).
pub fn log_to_stderr(verbose: u8) {
    let level = match verbose {
        0 => "warn",
        1 => "info",
        _ => "debug",
    };
    let filter = EnvFilter::builder().with_env_var("BYOC_LOG").try_from_env().unwrap_or_else(|_| EnvFilter::new(level));
    let plain = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
    // A second command in one process keeps the first one's subscriber.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(!plain && std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .without_time()
        .try_init();
}

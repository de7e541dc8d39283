//! Host services that count the calls made by a plugin.

use byoc_plugin_api::{Constant, Executable, Graph, HostServices, Result, Services};
use serde_json::Value;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tracing::Level;

/// Counter of the service calls made by a plugin.
#[derive(Debug, Default)]
pub struct CallCounter {
    calls: AtomicU64,
}

impl CallCounter {
    /// Returns the number of calls so far.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }
}

/// Wraps the services `inner` so that calls are counted.
pub fn counting_services(inner: Services, call_counter: Arc<CallCounter>) -> Services {
    Services::new(CountingServices { inner, call_counter })
}

struct CountingServices {
    inner: Services,
    call_counter: Arc<CallCounter>,
}

impl CountingServices {
    fn count_call(&self) -> &Services {
        self.call_counter.calls.fetch_add(1, Ordering::SeqCst);
        &self.inner
    }
}

impl HostServices for CountingServices {
    fn num_threads(&self) -> usize {
        self.count_call().num_threads()
    }

    fn parallel_for(&self, count: usize, task: &(dyn Fn(usize) + Sync)) {
        // The result can be ignored, because a task does not panic.
        let _ = self.count_call().parallel_for(count, task);
    }

    fn event(&self, name: &str, fields: &Value) {
        self.count_call().event(name, fields);
    }

    fn counter(&self, name: &str, increment: u64) {
        self.count_call().counter(name, increment);
    }

    // This call is not counted, because the `tracing` bridge makes it before every message.
    fn log_level(&self) -> Option<Level> {
        self.inner.log_level()
    }

    fn log(&self, level: Level, target: &str, message: &str) {
        self.count_call().log(level, target, message);
    }

    fn reference(&self, graph: &Graph, constants: &[Constant]) -> Result<Box<dyn Executable>> {
        self.count_call().reference(graph, constants)
    }

    fn cancelled(&self) -> bool {
        self.inner.cancelled()
    }

    fn get_service(&self, name: &str) -> Option<NonNull<c_void>> {
        self.count_call().get_service(name)
    }
}

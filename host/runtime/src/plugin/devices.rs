//! Device memories, and limits on concurrent runs, shared by all regions of a session that have the same loader and
//! device.

use super::run_slots::RunSlots;
use super::services::Metrics;
use crate::exec::device::DeviceSpace;
use byoc_plugin_api::host::device::Memory;
use byoc_plugin_api::{Loader, Result};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Device memories and run slots of a session's loaders.
#[derive(Default)]
pub struct Devices {
    /// Memory for each pair of loader key and device; `None` for a device without separate memory.
    spaces: Mutex<BTreeMap<(String, String), Option<Arc<DeviceSpace>>>>,
    /// Run slots for each combination of loader key, device, and number of concurrent runs.
    slots: Mutex<BTreeMap<(String, String, usize), Arc<RunSlots>>>,
}

impl Devices {
    /// Returns the memory of a loader's device; `None` if its tensors are in host memory.
    ///
    /// # Errors
    /// If the loader's response is invalid; the next call queries the loader again.
    pub fn space(
        &self,
        (key, loader): (&str, &dyn Loader),
        plugin: &str,
        device: &str,
        metrics: &Arc<Metrics>,
    ) -> Result<Option<Arc<DeviceSpace>>> {
        let mut spaces = self.spaces.lock().unwrap_or_else(PoisonError::into_inner);
        let name = (key.to_owned(), device.to_owned());
        if let Some(space) = spaces.get(&name) {
            return Ok(space.clone());
        }
        let metrics = metrics.clone();
        let space = Memory::of(loader, plugin, device)?.map(|memory| {
            let count = Box::new(move |name: &str, amount| metrics.add(name, amount));
            Arc::new(DeviceSpace { memory, one_run: Mutex::default(), count })
        });
        spaces.insert(name, space.clone());
        Ok(space)
    }

    /// Returns the run slots for the loader `key` and the device `device`, shared by all regions that are limited to
    /// `count` concurrent runs.
    pub fn slots(&self, key: &str, device: &str, count: usize) -> Arc<RunSlots> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let name = (key.to_owned(), device.to_owned(), count);
        slots.entry(name).or_insert_with(|| Arc::new(RunSlots::new(count))).clone()
    }
}

//! Memories of devices, and locks of backends that serve one run at a time: one for each loader in a process.

use super::run_slots::RunSlots;
use super::services::Metrics;
use crate::exec::device::DeviceSpace;
use byoc_plugin_api::host::device::Memory;
use byoc_plugin_api::{Loader, Result};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Devices of the loaders of a session.
#[derive(Default)]
pub struct Devices {
    /// By loader key and device.
    spaces: Mutex<BTreeMap<(String, String), Option<Arc<DeviceSpace>>>>,
    /// By loader key, device, and number of runs at a time.
    slots: Mutex<BTreeMap<(String, String, usize), Arc<RunSlots>>>,
}

impl Devices {
    /// Returns the memory of a loader's device; `None` if its tensors are in the host's memory.
    ///
    /// # Errors
    /// If the loader's answer is invalid. It is asked again next time.
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

    /// Returns the slots that those regions of a loader share on a device of which at most `count` may run at a time.
    pub fn slots(&self, key: &str, device: &str, count: usize) -> Arc<RunSlots> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let name = (key.to_owned(), device.to_owned(), count);
        slots.entry(name).or_insert_with(|| Arc::new(RunSlots::new(count))).clone()
    }
}

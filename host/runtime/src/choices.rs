//! User choices passed to the backends of a session: devices and options.

use byoc_plugin_api::host::run_options::BackendOptions;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// User choices, by backend.
#[derive(Clone, Debug, Default)]
pub struct Choices {
    /// Device of each backend.
    pub devices: BTreeMap<String, String>,
    /// Load options of each backend. They override the options with which its regions were compiled.
    pub load_options: BTreeMap<String, BTreeMap<String, String>>,
    /// Backend options for every run of the loaded models.
    pub run_options: BackendOptions,
    /// True if a region that its backend does not load or run is an error, rather than run by the host.
    pub fails_without_backend: bool,
}

/// Returns the name under which a plugin registers a backend: `mine` for the backend `mine` and for `mine@1`, which is
/// that backend on its device `1`.
pub fn base_name(backend: &str) -> &str {
    backend.split_once('@').map_or(backend, |(base, _)| base)
}

impl Choices {
    /// Returns the device of a backend; empty for its default.
    pub fn device<'a>(&'a self, backend: &'a str) -> &'a str {
        match backend.split_once('@') {
            Some((_, device)) => device,
            None => self.devices.get(backend).map_or("", String::as_str),
        }
    }

    /// Sets `device` and `backend_options` in an entry's options to the choices for a backend. `backend_options`
    /// contains the load options and, unless they override them, the options `compiled`, with which a region was or is
    /// being compiled.
    pub fn add_to(&self, options: &mut Value, backend: &str, compiled: &Value) {
        let Some(fields) = options.as_object_mut() else { return };
        fields.remove("device");
        fields.remove("backend_options");
        let mut values = compiled.as_object().cloned().unwrap_or_default();
        let base = Some(base_name(backend)).filter(|base| *base != backend);
        let load_options = base.into_iter().chain([backend]).filter_map(|name| self.load_options.get(name)).flatten();
        values.extend(load_options.map(|(option, value)| (option.clone(), json!(value))));
        if !values.is_empty() {
            fields.insert("backend_options".into(), Value::Object(values));
        }
        let device = self.device(backend);
        if !device.is_empty() {
            fields.insert("device".into(), json!(device));
        }
    }

    /// Returns the choices for a backend as an object with the fields `device` and `backend_options`. The load options
    /// override `device_options`.
    pub fn of(&self, backend: &str, device_options: &BTreeMap<String, String>) -> Value {
        let mut options = json!({});
        self.add_to(&mut options, backend, &json!(device_options));
        options
    }
}

//! Choices of the user that reach the backends of a session: devices, and options.

use byoc_plugin_api::host::run_options::BackendOptions;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Key of a code generator's `query` for the description of a backend under options: the data is [`Choices::of`] as JSON,
/// the answer a description.
pub const DESCRIBE_KEY: &str = "byoc.describe.1";

/// Key of a code generator's `query` for the devices of a backend: the answer is a JSON list of [`Device`].
pub const DEVICES_KEY: &str = "byoc.devices.1";

/// Choices by backend.
#[derive(Clone, Debug, Default)]
pub struct Choices {
    /// Device of each backend.
    pub devices: BTreeMap<String, String>,
    /// Options of each backend that apply when its regions are loaded, over those that they were compiled with.
    pub load_options: BTreeMap<String, BTreeMap<String, String>>,
    /// Options of every run of the models that are loaded.
    pub run_options: BackendOptions,
}

/// Returns the name under which a plugin registers a backend: `mine` for the backend `mine` and for `mine@1`, which is
/// that backend on its device `1`.
pub fn base_name(backend: &str) -> &str {
    backend.split_once('@').map_or(backend, |(base, _)| base)
}

/// Device of a backend.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
pub struct Device {
    /// Word that chooses the device.
    pub id: String,
    /// Name of the device.
    #[serde(default)]
    pub name: String,
    /// Size of its memory in bytes; 0 if unknown.
    #[serde(default)]
    pub memory: u64,
    /// Capabilities in words.
    #[serde(default)]
    pub about: String,
}

impl Choices {
    /// Returns the device of a backend; empty for its default.
    pub fn device<'a>(&'a self, backend: &'a str) -> &'a str {
        match backend.split_once('@') {
            Some((_, device)) => device,
            None => self.devices.get(backend).map_or("", String::as_str),
        }
    }

    /// Adds the choices for a backend to the options of an entry: `device`, and `backend_options`, which are `compiled` (those
    /// that a region was compiled with, or is) and those of loading over them.
    pub fn add_to(&self, options: &mut Value, backend: &str, compiled: &Value) {
        let Some(fields) = options.as_object_mut() else { return };
        fields.remove("device");
        fields.remove("backend_options");
        let mut values = compiled.as_object().cloned().unwrap_or_default();
        let base = Some(base_name(backend)).filter(|base| *base != backend);
        let further = base.into_iter().chain([backend]).filter_map(|name| self.load_options.get(name)).flatten();
        values.extend(further.map(|(option, value)| (option.clone(), json!(value))));
        if !values.is_empty() {
            fields.insert("backend_options".into(), Value::Object(values));
        }
        let device = self.device(backend);
        if !device.is_empty() {
            fields.insert("device".into(), json!(device));
        }
    }

    /// Returns the choices for a backend as an object: `device`, and the options that a build chose.
    pub fn of(&self, backend: &str, chosen: &BTreeMap<String, String>) -> Value {
        let mut options = json!({});
        self.add_to(&mut options, backend, &json!(chosen));
        options
    }
}

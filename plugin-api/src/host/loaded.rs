//! Loaded plugin, with a Rust or a C entry.

use super::{Rejection, code};
use crate::backend::{Codegen, Loader};
use crate::error::Error;
use crate::plugin::{API_VERSION, CODEGEN_PREFIX, LOADER_PREFIX};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Loaded and initialized plugin.
pub struct LoadedPlugin {
    /// Name of the plugin.
    pub name: String,
    /// Version of the plugin.
    pub version: String,
    /// Version of the boundary that the plugin was built against.
    pub api_version: String,
    /// File of the library.
    pub path: PathBuf,
    /// Registrations, sorted by name.
    pub registrations: Vec<Registration>,
}

/// Registered object and its name.
pub struct Registration {
    /// Full name: `relay.ext.dnnl`, `loadbinary_dnnl_json`.
    pub name: String,
    /// Code generator, loader or data.
    pub object: RegisteredObject,
}

/// Object that a plugin registers.
#[derive(Clone)]
pub enum RegisteredObject {
    /// Code generator.
    Codegen(Arc<dyn Codegen>),
    /// Loader of compiled regions.
    Loader(Arc<dyn Loader>),
    /// Registration as JSON text; reserved for kinds that later versions of the boundary add.
    Data(String),
}

impl LoadedPlugin {
    /// Creates a plugin with the given registrations, in arbitrary order.
    ///
    /// # Errors
    /// If a name is malformed or registered twice.
    pub(super) fn new(
        name: &str,
        version: &str,
        api_version: String,
        path: &Path,
        mut registrations: Vec<Registration>,
    ) -> Result<LoadedPlugin, Rejection> {
        registrations.sort_by(|a, b| a.name.cmp(&b.name));
        check_names(&registrations)?;
        let (name, version) = (name.to_owned(), version.to_owned());
        Ok(LoadedPlugin { name, version, api_version, path: path.to_owned(), registrations })
    }

    /// Creates a plugin of this process that comes from no file.
    ///
    /// # Errors
    /// If a name is malformed or registered twice.
    pub fn in_process(
        name: &str,
        version: &str,
        path: &Path,
        registrations: Vec<Registration>,
    ) -> Result<LoadedPlugin, Rejection> {
        LoadedPlugin::new(name, version, API_VERSION.to_string(), path, registrations)
    }

    /// Returns the code generator `relay.ext.<name>`.
    pub fn codegen(&self, name: &str) -> Option<Arc<dyn Codegen>> {
        self.registrations.iter().find_map(|registration| match &registration.object {
            RegisteredObject::Codegen(codegen) if registration.name.strip_prefix(CODEGEN_PREFIX) == Some(name) => {
                Some(codegen.clone())
            }
            _ => None,
        })
    }

    /// Returns the loader `loadbinary_<key>`.
    pub fn loader(&self, key: &str) -> Option<Arc<dyn Loader>> {
        self.registrations.iter().find_map(|registration| match &registration.object {
            RegisteredObject::Loader(loader) if registration.name.strip_prefix(LOADER_PREFIX) == Some(key) => {
                Some(loader.clone())
            }
            _ => None,
        })
    }
}

impl std::fmt::Debug for LoadedPlugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.registrations.iter().map(|registration| registration.name.as_str()).collect();
        write!(f, "LoadedPlugin({} {}, {:?}, {names:?})", self.name, self.version, self.path)
    }
}

/// Returns the `init` options as JSON text.
pub(super) fn init_options() -> String {
    json!({ "host_api_version": API_VERSION }).to_string()
}

/// Converts an `init` error into a rejection.
pub(super) fn init_rejection(error: Error) -> Rejection {
    let code = if error.panicked { code::INIT_PANIC } else { code::INIT };
    let rejection = Rejection::new(code, error.to_string());
    if error.hint.is_empty() { rejection } else { rejection.hint(error.hint.as_str()) }
}

fn check_names(registrations: &[Registration]) -> Result<(), Rejection> {
    for pair in registrations.windows(2) {
        if pair[0].name == pair[1].name {
            return Err(Rejection::new(code::BAD_REGISTRATION, format!("{} is registered twice", pair[0].name)));
        }
    }
    for registration in registrations {
        let suffix = match registration.object {
            RegisteredObject::Codegen(_) => registration.name.strip_prefix(CODEGEN_PREFIX),
            RegisteredObject::Loader(_) => registration.name.strip_prefix(LOADER_PREFIX),
            RegisteredObject::Data(_) => continue,
        };
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        let is_valid = suffix.is_some_and(|suffix| !suffix.is_empty() && suffix.chars().all(is_allowed));
        if !is_valid {
            let reason = format!("registered name: expected letters, digits, _ and -, found \"{}\"", registration.name);
            return Err(Rejection::new(code::BAD_REGISTRATION, reason));
        }
    }
    Ok(())
}

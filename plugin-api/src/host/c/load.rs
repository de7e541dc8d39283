//! Loading of a C plugin: calls its entry, checks its version, initializes it.

use super::abi::{self, ABI};
use super::arguments::c_text;
use super::call::CallState;
use super::functions::host_table;
use crate::entries::{CallSites, Entry, enter};
use crate::host::loaded::{LoadedPlugin, RegisteredObject, Registration, init_options, init_rejection};
use crate::host::{Rejection, code};
use crate::plugin::{CODEGEN_PREFIX, LOADER_PREFIX};
use crate::services::Services;
use libloading::os::unix::Library;
use std::ffi::{CStr, c_char};
use std::path::Path;
use std::sync::Arc;

/// Initializes the plugin in a mapped library that exports the entry.
pub fn load(
    path: &Path,
    library: &Library,
    services: &Services,
    sites: &'static CallSites,
) -> Result<LoadedPlugin, Rejection> {
    // SAFETY: the header declares the symbol with this type.
    let entry = unsafe { library.get::<abi::Entry>(super::ENTRY.as_bytes()) };
    let entry: abi::Entry = *entry.map_err(|error| Rejection::new(code::DLOPEN, error.to_string()))?;
    let plugin = {
        let _entered = enter(sites.at(Entry::Entry));
        // SAFETY: the plugin's entry has the header's signature.
        unsafe { entry(ABI) }
    };
    if plugin.is_null() {
        let reason = format!("byoc_plugin_entry returned NULL for version {ABI} of byoc_plugin.h");
        return Err(Rejection::new(code::VERSION, reason).hint(REBUILD_C));
    }
    // SAFETY: the first two fields are the same in every version.
    let (version, size) = unsafe { ((&raw const (*plugin).abi).read(), (&raw const (*plugin).struct_size).read()) };
    if version != ABI {
        let reason = format!("expected version {ABI} of byoc_plugin.h, found version {version}");
        return Err(Rejection::new(code::VERSION, reason).hint(REBUILD_C));
    }
    if (size as usize) < size_of::<abi::Plugin>() {
        let reason = format!(
            "expected a byoc_plugin of {} bytes for version {ABI}, found {size} bytes",
            size_of::<abi::Plugin>()
        );
        return Err(Rejection::new(code::LAYOUT, reason).hint("set struct_size to sizeof(byoc_plugin)"));
    }
    // SAFETY: the structure is at least as long as this version's.
    let plugin = unsafe { plugin.read() };
    let required = |pointer: *const c_char, field: &str| {
        if pointer.is_null() {
            return Err(Rejection::new(code::INIT, format!("byoc_plugin.{field}: expected a string, found NULL")));
        }
        // SAFETY: texts end with a NUL.
        Ok(unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned())
    };
    let (declared, plugin_version) = (required(plugin.name, "name")?, required(plugin.version, "version")?);
    let Some(init) = plugin.init else {
        return Err(Rejection::new(code::INIT, "byoc_plugin.init: expected a function, found NULL"));
    };

    let host = host_table(services);
    let name: Arc<str> = declared.as_str().into();
    let (file, options) = (c_text(&path.to_string_lossy()), c_text(&init_options()));
    let result = CallState::new(&host, &name).run(|call| {
        let _entered = enter(CallSites::of(&declared, "").at(Entry::Init));
        // SAFETY: the plugin's entry has the header's signature.
        unsafe { init(call, file.as_ptr(), options.as_ptr()) }
    });
    let (_, answers) = result.map_err(|error| init_rejection(error.with_entry(&declared, "init")))?;
    let mut registrations: Vec<Registration> = Vec::new();
    for (name, object) in answers.registrations {
        let prefix = match object {
            RegisteredObject::Codegen(_) => CODEGEN_PREFIX,
            RegisteredObject::Loader(_) => LOADER_PREFIX,
            RegisteredObject::Data(_) => "",
        };
        registrations.push(Registration { name: format!("{prefix}{name}"), object });
    }
    let name = answers.name.unwrap_or(declared);
    LoadedPlugin::new(&name, &plugin_version, format!("byoc_plugin.h {ABI}"), path, registrations)
}

const REBUILD_C: &str = "rebuild the plugin against the byoc_plugin.h of this version";

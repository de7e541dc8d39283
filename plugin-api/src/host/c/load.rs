//! Loading of a C plugin: calls its entry, checks its version, initializes it.

use super::abi::{self, ABI};
use super::call::CallState;
use super::functions::host_table;
use super::given::c_text;
use crate::entries::{Entry, Places, enter};
use crate::host::loaded::{LoadedPlugin, Offer, Registration, init_options, init_rejection};
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
    places: &'static Places,
) -> Result<LoadedPlugin, Rejection> {
    // SAFETY: the header declares the symbol with this type.
    let entry = unsafe { library.get::<abi::Entry>(super::ENTRY.as_bytes()) };
    let entry: abi::Entry = *entry.map_err(|error| Rejection::new(code::DLOPEN, error.to_string()))?;
    let plugin = {
        let _entered = enter(places.at(Entry::Entry));
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
        let reason = format!("built against version {version} of byoc_plugin.h; this byoc reads version {ABI}");
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
    let needed = |text: *const c_char, what: &str| {
        if text.is_null() {
            return Err(Rejection::new(code::INIT, format!("its byoc_plugin has no {what}")));
        }
        // SAFETY: texts end with a NUL.
        Ok(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    };
    let (declared, own_version) = (needed(plugin.name, "name")?, needed(plugin.version, "version")?);
    let Some(init) = plugin.init else { return Err(Rejection::new(code::INIT, "its byoc_plugin has no init")) };

    let host = host_table(services);
    let name: Arc<str> = declared.as_str().into();
    let (file, options) = (c_text(&path.to_string_lossy()), c_text(&init_options()));
    let outcome = CallState::new(&host, &name).run(|call| {
        let _entered = enter(Places::of(&declared, "").at(Entry::Init));
        // SAFETY: the plugin's entry has the header's signature.
        unsafe { init(call, file.as_ptr(), options.as_ptr()) }
    });
    let (_, answers) = outcome.map_err(|error| init_rejection(error.within(&declared, "init")))?;
    let mut registrations: Vec<Registration> = Vec::new();
    for (name, offer) in answers.registrations {
        let prefix = match offer {
            Offer::Codegen(_) => CODEGEN_PREFIX,
            Offer::Loader(_) => LOADER_PREFIX,
            Offer::Data(_) => "",
        };
        registrations.push(Registration { name: format!("{prefix}{name}"), offer });
    }
    let name = answers.name.unwrap_or(declared);
    LoadedPlugin::new(&name, &own_version, format!("byoc_plugin.h {ABI}"), path, registrations)
}

const REBUILD_C: &str = "rebuild the plugin against the byoc_plugin.h of this version";

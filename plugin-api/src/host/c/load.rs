//! C plugin loading: calls the entry, checks the version, initializes the plugin.
//!
//! A host loads every plugin whose BYOC_ABI is between 1 and the host's own. Within a version, nothing is removed and
//! nothing changes its meaning: a structure grows at its end only and begins with its size, fields beyond the end of a
//! shorter structure count as NULL or 0, and fields beyond the end known to the reader are ignored. In a shorter
//! byoc_plugin, a missing name is that of the file and a missing version is "0"; `init` is required. Every
//! deprecated feature keeps working.

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
        let _guard = enter(sites.at(Entry::Entry)).map_err(init_rejection)?;
        // SAFETY: the library exports the entry, which the header declares with this signature.
        unsafe { entry(ABI) }
    };
    if plugin.is_null() {
        let reason = format!("byoc_plugin_entry returned NULL for version {ABI} of byoc_plugin.h");
        return Err(Rejection::new(code::VERSION, reason).hint(REBUILD_C));
    }
    // SAFETY: the header guarantees the same first two fields in every version.
    let (version, size) = unsafe { ((&raw const (*plugin).abi).read(), (&raw const (*plugin).struct_size).read()) };
    check_version(version, ABI)?;
    const HEADER: usize = std::mem::offset_of!(abi::Plugin, name);
    if (size as usize) < HEADER {
        let reason = format!("byoc_plugin.struct_size: expected at least {HEADER}, found {size}");
        return Err(Rejection::new(code::LAYOUT, reason).hint("set struct_size to sizeof(byoc_plugin)"));
    }
    // SAFETY: the header requires that the table has `struct_size` bytes.
    let plugin = unsafe { abi::read_plugin(plugin, size as usize) };
    let text = |pointer: *const c_char| {
        // SAFETY: the header requires that a string ends with a NUL.
        (!pointer.is_null()).then(|| unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned())
    };
    let declared_name = text(plugin.name).unwrap_or_else(|| name_of_file(path));
    let plugin_version = text(plugin.version).unwrap_or_else(|| "0".to_owned());
    let Some(init) = plugin.init else {
        return Err(Rejection::new(code::INIT, "byoc_plugin.init: expected a function, found NULL"));
    };

    let host = host_table(services);
    let name: Arc<str> = declared_name.as_str().into();
    let (file, options) = (c_text(&path.to_string_lossy()), c_text(&init_options()));
    let result = CallState::new(&host, &name).run(CallSites::of(&declared_name, "").at(Entry::Init), |call| {
        // SAFETY: the header declares `init` with this signature, and all arguments live until the call returns.
        unsafe { init(call, file.as_ptr(), options.as_ptr()) }
    });
    let (_, answers) = result.map_err(|error| init_rejection(error.with_entry(&declared_name, "init")))?;
    let mut registrations: Vec<Registration> = Vec::new();
    for (name, object) in answers.registrations {
        let prefix = match object {
            RegisteredObject::Codegen(_) => CODEGEN_PREFIX,
            RegisteredObject::Loader(_) => LOADER_PREFIX,
            RegisteredObject::Data(_) => "",
        };
        registrations.push(Registration { name: format!("{prefix}{name}"), object });
    }
    let name = answers.name.unwrap_or(declared_name);
    LoadedPlugin::new(&name, &plugin_version, format!("byoc_plugin.h {version}"), path, registrations)
}

/// Checks that a host with the header version `newest` supports tables of `version`.
fn check_version(version: u32, newest: u32) -> Result<(), Rejection> {
    if (1..=newest).contains(&version) {
        return Ok(());
    }
    let expected = if newest == 1 { "version 1".to_owned() } else { format!("a version from 1 to {newest}") };
    let reason = format!("expected {expected} of byoc_plugin.h, found version {version}");
    let hint = if version > newest {
        "update byoc, or return a table of the version that byoc_plugin_entry is called with"
    } else {
        "set abi to BYOC_ABI"
    };
    Err(Rejection::new(code::VERSION, reason).hint(hint))
}

/// Returns the plugin name that a file name implies: `mine` for `libbyoc_mine.so`.
fn name_of_file(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let stem = stem.strip_prefix("lib").unwrap_or(&stem);
    stem.strip_prefix("byoc_").unwrap_or(stem).to_owned()
}

const REBUILD_C: &str = "rebuild the plugin against the byoc_plugin.h of this version";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_reads_every_version_since_the_first() {
        for newest in 1..5 {
            for version in 1..=newest {
                check_version(version, newest).unwrap();
            }
            for version in [0, newest + 1, u32::MAX] {
                let rejection = check_version(version, newest).unwrap_err();
                assert_eq!(rejection.code, code::VERSION);
                assert!(rejection.reason.contains(&format!("found version {version}")), "{rejection}");
            }
        }
        assert!(check_version(7, 3).unwrap_err().reason.starts_with("expected a version from 1 to 3 of byoc_plugin.h"));
    }

    #[test]
    fn file_names_plugin() {
        for (file, name) in [("a/libbyoc_mine.so", "mine"), ("mine.so", "mine"), ("libmine.so", "mine")] {
            assert_eq!(name_of_file(Path::new(file)), name);
        }
    }
}

//! Plugin loading: inspects the file, maps it, compares versions and layouts, then calls `init`.
//!
//! A library is never unmapped: its thread-locals, statics and threads may outlive the host's objects. `load_from_file`
//! of `abi_stable` caches one module per type, and would return the first plugin for every later one. Therefore the
//! header of each library is read directly.

use super::loaded::{LoadedPlugin, RegisteredObject, Registration, init_options, init_rejection};
use super::sniff::{EntryKind, needed_libraries, sniff_entry};
use super::{Rejection, c, code, imports, layout};
use crate::abi::import::{ImportedCodegen, ImportedLoader};
use crate::entries::{CallSites, Entry, enter};
use crate::plugin::{API_VERSION, InitArguments, Object, PluginModuleRef};
use crate::services::Services;
use abi_stable::library::{AbiHeader, AbiHeaderRef, LibHeader, LibraryError, ROOT_MODULE_LOADER_NAME_WITH_NUL};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::error::Error as _;
use std::path::Path;
use std::sync::Arc;

/// Loads a plugin.
///
/// # Errors
/// If the file cannot be used as a plugin; the rejection states the reason.
pub fn load(path: &Path, services: &Services) -> Result<LoadedPlugin, Rejection> {
    let kind = sniff_entry(path)?;
    // The path identifies the plugin in the call sites until its name is known.
    let sites = CallSites::of(&path.to_string_lossy(), "");
    let library = {
        let _guard = enter(sites.at(Entry::Dlopen)).map_err(init_rejection)?;
        open(path)?
    };
    if kind == EntryKind::C {
        let plugin = c::load(path, &library, services, sites);
        std::mem::forget(library);
        return plugin;
    }
    let header = header(library)?;
    let api_version = check_version(header)?;
    let (module, info) = {
        let _guard = enter(sites.at(Entry::Entry)).map_err(init_rejection)?;
        let module = header.init_root_module::<PluginModuleRef>().map_err(|error| layout_rejection(&error))?;
        (module, (module.info())())
    };
    let arguments = InitArguments {
        path: path.to_string_lossy().into_owned().into(),
        services: services.clone(),
        options: init_options().into(),
    };
    let init_result = {
        let _guard = enter(CallSites::of(&info.name, "").at(Entry::Init)).map_err(init_rejection)?;
        (module.init())(arguments).into_result()
    };
    let init_result = init_result.map_err(|error| init_rejection(error.with_entry(&info.name, "init")))?;
    let name: Arc<str> = init_result.info.name.as_str().into();
    let mut registrations: Vec<Registration> = Vec::new();
    for registration in init_result.registrations {
        let object = match registration.object {
            Object::Codegen(object) => RegisteredObject::Codegen(Arc::new(ImportedCodegen::new(name.clone(), object))),
            Object::Loader(object) => RegisteredObject::Loader(Arc::new(ImportedLoader::new(name.clone(), object))),
            Object::Data(text) => RegisteredObject::Data(text.into()),
        };
        registrations.push(Registration { name: registration.name.into(), object });
    }
    LoadedPlugin::new(&name, &init_result.info.version, api_version, path, registrations)
}

fn open(path: &Path) -> Result<Library, Rejection> {
    // The dynamic loader would search the system directories for a path without a slash.
    let absolute_path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let rejection_of = |error: libloading::Error| {
        let message = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        // The dynamic loader prefixes its message with the path, which the caller prints anyway.
        let reason = message.strip_prefix(&format!("{}: ", absolute_path.display())).unwrap_or(&message);
        let mut rejection = Rejection::new(code::DLOPEN, format!("the dynamic loader failed: {reason}"));
        rejection.details = missing_libraries(path);
        rejection
    };
    // SAFETY: `sniff_entry` verified that the file is a complete library for this machine with a plugin entry; a user
    // who loads a plugin trusts its constructors.
    let library = unsafe { Library::open(Some(&absolute_path), RTLD_NOW | RTLD_LOCAL) }.map_err(rejection_of)?;
    let handle = library.into_raw();
    imports::replace(handle);
    // SAFETY: the handle is that of the library above, which gave it up.
    Ok(unsafe { Library::from_raw(handle) })
}

/// Returns the required libraries that cannot be loaded, one line each.
fn missing_libraries(path: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    for name in needed_libraries(path) {
        // SAFETY: loading the plugin, as the user requested, would have loaded this library as well.
        match unsafe { Library::open(Some(&name), RTLD_NOW | RTLD_LOCAL) } {
            Ok(library) => std::mem::forget(library),
            Err(error) => {
                let message = error.source().map_or_else(|| error.to_string(), ToString::to_string);
                lines.push(format!("the required library {name} cannot be loaded: {message}"));
            }
        }
    }
    lines
}

/// Returns the header of a Rust plugin's library, which is never unmapped.
fn header(library: Library) -> Result<&'static LibHeader, Rejection> {
    // SAFETY: the symbol of this name is abi_stable's `LibHeader`, which begins with an `AbiHeader`; `upgrade` checks
    // its magic before anything else is read.
    let header = unsafe { library.get::<AbiHeaderRef>(ROOT_MODULE_LOADER_NAME_WITH_NUL.as_bytes()) };
    let header: AbiHeaderRef = *header.map_err(|error| Rejection::new(code::DLOPEN, error.to_string()))?;
    std::mem::forget(library);
    header.upgrade().map_err(|error| match error {
        LibraryError::InvalidAbiHeader(found) if found.magic_string != AbiHeader::VALUE.magic_string => Rejection::new(
            code::NO_ENTRY,
            "expected the entry symbol of a byoc plugin, found an unrelated symbol of the same name",
        ),
        LibraryError::InvalidAbiHeader(found) => Rejection::new(
            code::VERSION,
            format!(
                "expected a plugin for abi_stable {}.{}, found one for {}.{}",
                AbiHeader::VALUE.abi_major,
                AbiHeader::VALUE.abi_minor,
                found.abi_major,
                found.abi_minor
            ),
        )
        .hint(REBUILD),
        other => Rejection::new(code::LAYOUT, first_line(&other.to_string())).hint(REBUILD),
    })
}

const REBUILD: &str = "rebuild the plugin against the byoc-plugin-api of this version";

/// Compares versions before layouts: for a version mismatch, one line is clearer than a page of differences.
fn check_version(header: &LibHeader) -> Result<String, Rejection> {
    let plugin_version = header.version_strings().version.as_str();
    if compatible_series(plugin_version) != compatible_series(API_VERSION) {
        let reason = format!("expected a plugin for byoc-plugin-api {API_VERSION}, found one for {plugin_version}");
        return Err(Rejection::new(code::VERSION, reason).hint(REBUILD));
    }
    Ok(plugin_version.to_owned())
}

/// Returns the components of a version that must agree: major, and before 1.0 also minor.
fn compatible_series(version: &str) -> (&str, &str) {
    let mut parts = version.split('.');
    let major = parts.next().unwrap_or("");
    (major, if major == "0" { parts.next().unwrap_or("") } else { "" })
}

fn layout_rejection(error: &LibraryError) -> Rejection {
    let text = error.to_string();
    if !matches!(error, LibraryError::AbiInstability(_)) {
        return Rejection::new(code::LAYOUT, first_line(&text)).hint(REBUILD);
    }
    let details = layout::differences(&text);
    let reason = match &details[..] {
        [] => "the layout of the boundary differs".to_owned(),
        [difference] => format!("the layout of the boundary differs: {difference}"),
        [first_difference, remaining @ ..] => {
            format!("the layout of the boundary differs: {first_difference} (and {} more)", remaining.len())
        }
    };
    Rejection { details, ..Rejection::new(code::LAYOUT, reason).hint(REBUILD) }
}

fn first_line(text: &str) -> String {
    text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("unspecified layout error").to_owned()
}

//! Plugin that claims the current version of the boundary, but whose module has a different layout.

#![expect(missing_docs, reason = "the macros make public items")]

use abi_stable::StableAbi;
use abi_stable::library::RootModule;
use abi_stable::prefix_type::PrefixTypeTrait;
use abi_stable::sabi_types::VersionStrings;
use abi_stable::std_types::{RStr, RString};

/// Module whose field types differ from the boundary's.
#[repr(C)]
#[derive(StableAbi)]
#[sabi(kind(Prefix(prefix_ref = PluginModuleRef, prefix_fields = PluginModuleFields)))]
pub struct PluginModule {
    /// String where the boundary has a structure.
    pub info: extern "C" fn() -> RString,
    /// Function whose argument and result types differ from the boundary's `init`.
    #[sabi(last_prefix_field)]
    pub init: extern "C" fn(u32) -> u32,
}

impl RootModule for PluginModuleRef {
    abi_stable::declare_root_module_statics! {PluginModuleRef}
    const BASE_NAME: &'static str = "byoc_plugin";
    const NAME: &'static str = "byoc plugin";
    const VERSION_STRINGS: VersionStrings = VersionStrings { version: RStr::from_str(env!("CARGO_PKG_VERSION")) };
}

extern "C" fn info() -> RString {
    "other_layout".into()
}

extern "C" fn init(argument: u32) -> u32 {
    argument
}

/// Exports the module.
#[abi_stable::export_root_module]
pub fn module() -> PluginModuleRef {
    PluginModule { info, init }.leak_into_prefix()
}

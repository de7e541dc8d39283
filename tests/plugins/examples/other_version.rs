//! Plugin for a future version of the boundary: version 9.

#![expect(missing_docs, reason = "the macros make public items")]

use abi_stable::StableAbi;
use abi_stable::library::RootModule;
use abi_stable::prefix_type::PrefixTypeTrait;
use abi_stable::sabi_types::VersionStrings;
use abi_stable::std_types::RStr;

/// Module of version 9.
#[repr(C)]
#[derive(StableAbi)]
#[sabi(kind(Prefix(prefix_ref = ModuleRef, prefix_fields = ModuleFields)))]
pub struct Module {
    /// Arbitrary field.
    #[sabi(last_prefix_field)]
    pub hello: extern "C" fn(),
}

impl RootModule for ModuleRef {
    abi_stable::declare_root_module_statics! {ModuleRef}
    const BASE_NAME: &'static str = "byoc_plugin";
    const NAME: &'static str = "byoc plugin";
    const VERSION_STRINGS: VersionStrings = VersionStrings { version: RStr::from_str("9.0.0") };
}

extern "C" fn hello() {}

/// Exports the module.
#[abi_stable::export_root_module]
pub fn module() -> ModuleRef {
    Module { hello }.leak_into_prefix()
}

//! Root module of a plugin library, and the two macros that turn a crate into a plugin.

use crate::abi::export::{export_codegen, export_loader};
use crate::abi::objects::{CodegenObject, LoaderObject};
use crate::backend::{Codegen, Loader};
use crate::error::{Error, Result};
use crate::guard::guard;
use crate::log_forwarding;
use crate::services::Services;
use abi_stable::StableAbi;
use abi_stable::library::{CheckTypeLayout, LibHeader, RootModule, RootModuleError, RootModuleResult};
use abi_stable::package_version_strings;
use abi_stable::prefix_type::{PrefixRefTrait, PrefixTypeTrait};
use abi_stable::sabi_types::VersionStrings;
use abi_stable::std_types::{RBoxError, RResult, RString, RVec};
use serde_json::Value;
use std::path::PathBuf;

/// Root module of a plugin: two functions, through which the host obtains all other data and objects.
#[repr(C)]
#[derive(StableAbi)]
#[sabi(kind(Prefix(prefix_ref = PluginModuleRef, prefix_fields = PluginModuleFields)))]
#[sabi(missing_field(panic))]
#[doc(hidden)]
pub struct PluginModule {
    /// Returns the name and the version, without running the plugin author's code.
    pub info: extern "C" fn() -> Info,
    /// Creates the plugin's objects. May be called more than once; the calls are independent.
    #[sabi(last_prefix_field)]
    pub init: extern "C" fn(InitArguments) -> RResult<Initialised, Error>,
}

impl RootModule for PluginModuleRef {
    abi_stable::declare_root_module_statics! {PluginModuleRef}
    const BASE_NAME: &'static str = "byoc_plugin";
    const NAME: &'static str = "byoc plugin";
    const VERSION_STRINGS: VersionStrings = package_version_strings!();
}

/// Identity of a plugin.
#[repr(C)]
#[derive(StableAbi, Clone, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub struct Info {
    /// Name of the plugin.
    pub name: RString,
    /// Version of the plugin.
    pub version: RString,
}

/// Arguments of `init`.
#[repr(C)]
#[derive(StableAbi, Clone)]
#[doc(hidden)]
pub struct InitArguments {
    /// File that the plugin was loaded from.
    pub path: RString,
    /// Host services.
    pub services: Services,
    /// JSON object, as in [`Context::options`].
    pub options: RString,
}

/// Result of `init`.
#[repr(C)]
#[derive(StableAbi)]
#[doc(hidden)]
pub struct Initialised {
    /// Identity; `init` may have changed the name.
    pub info: Info,
    /// Registrations, in no particular order.
    pub registrations: RVec<Registration>,
}

/// Object registered under a name.
#[repr(C)]
#[derive(StableAbi)]
#[doc(hidden)]
pub struct Registration {
    /// Name of the object, such as `relay.ext.<name>` or `loadbinary_<key>`.
    pub name: RString,
    /// Code generator, loader or data.
    pub object: Object,
}

/// Registered object, by kind.
#[repr(u8)]
#[derive(StableAbi)]
#[doc(hidden)]
pub enum Object {
    /// Code generator.
    Codegen(CodegenObject),
    /// Loader of compiled regions.
    Loader(LoaderObject),
    /// JSON text, for future extensions; a host ignores unknown names.
    Data(RString),
}

/// Identity and environment of a plugin during registration.
#[derive(Clone, Debug)]
pub struct Context {
    /// Name of the plugin, as declared. A plugin that reads its name from a file sets it here.
    pub name: String,
    /// Version of the plugin, as declared.
    pub version: String,
    /// File that the plugin was loaded from.
    pub path: PathBuf,
    /// Host services.
    pub services: Services,
    /// JSON object: `host_api_version` is the version of the boundary that the host was built with; later versions may
    /// add keys.
    pub options: Value,
}

/// Collection of the objects that a plugin registers.
#[derive(Default)]
pub struct Registry {
    entries: RVec<Registration>,
}

impl Registry {
    /// Registers a code generator as `relay.ext.<name>`.
    pub fn codegen(&mut self, name: &str, codegen: impl Codegen) {
        let object = Object::Codegen(export_codegen(codegen));
        self.entries.push(Registration { name: format!("{CODEGEN_PREFIX}{name}").into(), object });
    }

    /// Registers a loader as `loadbinary_<key>`.
    pub fn loader(&mut self, key: &str, loader: impl Loader) {
        let object = Object::Loader(export_loader(loader));
        self.entries.push(Registration { name: format!("{LOADER_PREFIX}{key}").into(), object });
    }

    /// Registers data under a name; a host ignores unknown names.
    pub fn data(&mut self, name: &str, data: &Value) {
        self.entries.push(Registration { name: name.into(), object: Object::Data(data.to_string().into()) });
    }
}

/// Version of the boundary: the version of this crate.
pub const API_VERSION: &str = env!("CARGO_PKG_VERSION");
/// Prefix of a backend's name in the registry.
pub const CODEGEN_PREFIX: &str = "relay.ext.";
/// Prefix of a loader's key in the registry.
pub const LOADER_PREFIX: &str = "loadbinary_";

/// Registration function, collected by [`register!`](crate::register).
#[doc(hidden)]
pub struct Register(pub fn(&mut Context, &mut Registry) -> Result<()>);

inventory::collect!(Register);

/// Runs the registration functions of a plugin; [`declare_plugin!`](crate::declare_plugin) calls it from `init`.
#[doc(hidden)]
pub fn initialize(info: Info, arguments: InitArguments) -> InitResult {
    guard(|| {
        log_forwarding::install(&arguments.services);
        let mut context = Context {
            name: info.name.into(),
            version: info.version.into(),
            path: PathBuf::from(arguments.path.as_str()),
            services: arguments.services,
            options: serde_json::from_str(&arguments.options)?,
        };
        let mut registry = Registry::default();
        for register in inventory::iter::<Register> {
            register.0(&mut context, &mut registry)?;
        }
        let info = Info { name: context.name.into(), version: context.version.into() };
        Ok(Initialised { info, registrations: registry.entries })
    })
    .into()
}

/// Result of a library's module constructor.
#[doc(hidden)]
pub type ModuleResult = RootModuleResult;
/// Result of `init`.
#[doc(hidden)]
pub type InitResult = RResult<Initialised, Error>;
/// Header that a plugin library exports as a symbol.
#[doc(hidden)]
pub type Header = LibHeader;

/// Creates the module, and returns a panic as an error.
#[doc(hidden)]
pub fn module(make: fn() -> PluginModule) -> ModuleResult {
    match guard(|| Ok(make().leak_into_prefix())) {
        Ok(module) => {
            // SAFETY: `PluginModuleRef` is a transparent wrapper around `PrefixRef`, and `header` declares this type.
            RResult::ROk(unsafe { module.to_prefix_ref().cast() })
        }
        Err(error) => RResult::RErr(RootModuleError::Returned(RBoxError::new(error))),
    }
}

/// Returns the header that a plugin library exports.
#[doc(hidden)]
pub const fn header(constructor: extern "C" fn() -> ModuleResult) -> Header {
    // SAFETY: `declare_plugin!`, the only caller, passes a constructor whose module is a `PluginModuleRef`.
    unsafe { LibHeader::from_constructor::<PluginModuleRef>(constructor, CheckTypeLayout::Yes) }
}

/// Registers code generators and loaders. The closure receives a [`Context`] and a [`Registry`] and returns a
/// [`Result`](crate::Result). May be used several times in a plugin; the order of the calls is unspecified.
///
/// The crate documentation shows a complete plugin.
#[macro_export]
macro_rules! register {
    ($register:expr) => {
        $crate::inventory::submit! { $crate::plugin::Register($register) }
    };
}

/// Turns a `cdylib` crate into a plugin with the given name and version. Must be used exactly once:
/// `declare_plugin!("mine", env!("CARGO_PKG_VERSION"))`.
#[macro_export]
macro_rules! declare_plugin {
    ($name:expr, $version:expr $(,)?) => {
        const _: () = {
            extern "C" fn info() -> $crate::plugin::Info {
                $crate::plugin::Info { name: $name.into(), version: $version.into() }
            }

            extern "C" fn init(arguments: $crate::plugin::InitArguments) -> $crate::plugin::InitResult {
                $crate::plugin::initialize(info(), arguments)
            }

            extern "C" fn module() -> $crate::plugin::ModuleResult {
                $crate::plugin::module(|| $crate::plugin::PluginModule { info, init })
            }

            // Value of `abi_stable::library::ROOT_MODULE_LOADER_NAME`, repeated because an attribute requires a
            // literal.
            #[unsafe(export_name = "_1as_0lib_1header_0root_bmodule_bloader")]
            static HEADER: $crate::plugin::Header = $crate::plugin::header(module);
        };
    };
}

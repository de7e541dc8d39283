//! The library as a whole: its root module, and the two macros by which an author makes one.

use crate::adapt;
use crate::backend::{Codegen, Loader};
use crate::bridge;
use crate::error::{Error, Result};
use crate::guard::guard;
use crate::services::Services;
use crate::wire::{CodegenObject, LoaderObject};
use abi_stable::StableAbi;
use abi_stable::library::{CheckTypeLayout, LibHeader, RootModule, RootModuleError, RootModuleResult};
use abi_stable::package_version_strings;
use abi_stable::prefix_type::{PrefixRefTrait, PrefixTypeTrait};
use abi_stable::sabi_types::VersionStrings;
use abi_stable::std_types::{RBoxError, RResult, RString, RVec};
use serde_json::Value;
use std::path::PathBuf;

/// The root module of a plugin: two functions, and everything else is data or an object that they return.
#[repr(C)]
#[derive(StableAbi)]
#[sabi(kind(Prefix(prefix_ref = PluginModuleRef, prefix_fields = PluginModuleFields)))]
#[sabi(missing_field(panic))]
#[doc(hidden)]
pub struct PluginModule {
    /// Who it is. Runs none of the author's code.
    pub info: extern "C" fn() -> Info,
    /// Makes the plugin's objects. May be called more than once; each call is for itself.
    #[sabi(last_prefix_field)]
    pub init: extern "C" fn(InitArguments) -> RResult<Initialised, Error>,
}

impl RootModule for PluginModuleRef {
    abi_stable::declare_root_module_statics! {PluginModuleRef}
    const BASE_NAME: &'static str = "byoc_plugin";
    const NAME: &'static str = "byoc plugin";
    const VERSION_STRINGS: VersionStrings = package_version_strings!();
}

/// Who a plugin is.
#[repr(C)]
#[derive(StableAbi, Clone, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub struct Info {
    /// Its name.
    pub name: RString,
    /// Its own version.
    pub version: RString,
}

/// Arguments of `init`.
#[repr(C)]
#[derive(StableAbi, Clone)]
#[doc(hidden)]
pub struct InitArguments {
    /// The file that the plugin was loaded from.
    pub path: RString,
    /// The host's services.
    pub services: Services,
    /// A JSON object, as in [`Context::options`].
    pub options: RString,
}

/// Result of `init`.
#[repr(C)]
#[derive(StableAbi)]
#[doc(hidden)]
pub struct Initialised {
    /// Who it is, now that it has read its files.
    pub info: Info,
    /// Registrations, in no particular order.
    pub registrations: RVec<Registration>,
}

/// A named object.
#[repr(C)]
#[derive(StableAbi)]
#[doc(hidden)]
pub struct Registration {
    /// `relay.ext.<name>`, `loadbinary_<key>`.
    pub name: RString,
    /// Registered object.
    pub object: Object,
}

/// Kind of a registered object.
#[repr(u8)]
#[derive(StableAbi)]
#[doc(hidden)]
pub enum Object {
    /// A code generator.
    Codegen(CodegenObject),
    /// A loader.
    Loader(LoaderObject),
    /// JSON text, for what comes later; a host leaves names alone that it does not know.
    Data(RString),
}

/// Identity and surroundings of a plugin while it registers.
#[derive(Clone, Debug)]
pub struct Context {
    /// The plugin's name, as declared. A plugin that takes its name from a file writes it here.
    pub name: String,
    /// The plugin's version, as declared.
    pub version: String,
    /// The file that the plugin was loaded from.
    pub path: PathBuf,
    /// The host's services.
    pub services: Services,
    /// A JSON object: `host_api_version` is the version of the boundary that the host was built with; more may come.
    pub options: Value,
}

/// Offers of a plugin.
#[derive(Default)]
pub struct Registry {
    entries: RVec<Registration>,
}

impl Registry {
    /// Offers a code generator as `relay.ext.<name>`.
    pub fn codegen(&mut self, name: &str, codegen: impl Codegen) {
        let object = Object::Codegen(adapt::export_codegen(codegen));
        self.entries.push(Registration { name: format!("{CODEGEN_PREFIX}{name}").into(), object });
    }

    /// Offers a loader as `loadbinary_<key>`.
    pub fn loader(&mut self, key: &str, loader: impl Loader) {
        let object = Object::Loader(adapt::export_loader(loader));
        self.entries.push(Registration { name: format!("{LOADER_PREFIX}{key}").into(), object });
    }

    /// Offers data under a name of its own, for whoever knows that name; a host leaves alone what it does not know.
    pub fn data(&mut self, name: &str, data: &Value) {
        self.entries.push(Registration { name: name.into(), object: Object::Data(data.to_string().into()) });
    }
}

/// The version of the boundary: this crate's.
pub const API_VERSION: &str = env!("CARGO_PKG_VERSION");
/// Prefix of a backend's name in the registry.
pub const CODEGEN_PREFIX: &str = "relay.ext.";
/// Prefix of a loader's key in the registry.
pub const LOADER_PREFIX: &str = "loadbinary_";

/// A function that registers things, collected by [`register!`](crate::register).
#[doc(hidden)]
pub struct Register(pub fn(&mut Context, &mut Registry) -> Result<()>);

inventory::collect!(Register);

/// Makes the module of a plugin; [`declare_plugin!`](crate::declare_plugin) calls it.
#[doc(hidden)]
pub fn initialise(info: Info, arguments: InitArguments) -> InitResult {
    guard(|| {
        bridge::install(&arguments.services);
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

/// Result of the constructor of a library's module.
#[doc(hidden)]
pub type ModuleResult = RootModuleResult;
/// Result of `init`.
#[doc(hidden)]
pub type InitResult = RResult<Initialised, Error>;
/// Symbol that a library exports.
#[doc(hidden)]
pub type Header = LibHeader;

/// Makes the module; panics in it become an error.
#[doc(hidden)]
pub fn module(make: fn() -> PluginModule) -> ModuleResult {
    match guard(|| Ok(make().leak_into_prefix())) {
        Ok(module) => {
            // SAFETY: a `PluginModuleRef` is a transparent `PrefixRef`, and `header` declares that very type.
            RResult::ROk(unsafe { module.to_prefix_ref().cast() })
        }
        Err(error) => RResult::RErr(RootModuleError::Returned(RBoxError::new(error))),
    }
}

/// The header that a library exports.
#[doc(hidden)]
pub const fn header(constructor: extern "C" fn() -> ModuleResult) -> Header {
    // SAFETY: the constructor is the one of `declare_plugin!`, whose module is a `PluginModuleRef`.
    unsafe { LibHeader::from_constructor::<PluginModuleRef>(constructor, CheckTypeLayout::Yes) }
}

/// Registers code generators and loaders. The closure gets a [`Context`] and a [`Registry`] and returns a
/// [`Result`](crate::Result). May stand several times in a plugin; the order is not defined.
///
/// The crate's front page shows a whole plugin.
#[macro_export]
macro_rules! register {
    ($register:expr) => {
        $crate::inventory::submit! { $crate::plugin::Register($register) }
    };
}

/// Makes the crate, a `cdylib`, a plugin. Stands once in it.
/// Takes the plugin's name and its version, as in `declare_plugin!("mine", env!("CARGO_PKG_VERSION"))`.
#[macro_export]
macro_rules! declare_plugin {
    ($name:expr, $version:expr $(,)?) => {
        const _: () = {
            extern "C" fn info() -> $crate::plugin::Info {
                $crate::plugin::Info { name: $name.into(), version: $version.into() }
            }

            extern "C" fn init(arguments: $crate::plugin::InitArguments) -> $crate::plugin::InitResult {
                $crate::plugin::initialise(info(), arguments)
            }

            extern "C" fn module() -> $crate::plugin::ModuleResult {
                $crate::plugin::module(|| $crate::plugin::PluginModule { info, init })
            }

            // The name is `abi_stable::library::ROOT_MODULE_LOADER_NAME`, which an attribute has to have as a literal.
            #[unsafe(export_name = "_1as_0lib_1header_0root_bmodule_bloader")]
            static HEADER: $crate::plugin::Header = $crate::plugin::header(module);
        };
    };
}

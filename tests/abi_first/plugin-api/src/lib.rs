//! The boundary between byoc and its backends.
//!
//! A backend is a `cdylib` with one [`declare_plugin!`] line. It implements two plain traits and registers them:
//!
//! * [`Codegen`], found as `relay.ext.<name>`, at compile time: says what it looks for, judges candidates, compiles regions;
//! * [`Loader`], found as `loadbinary_<key>`, at run time: makes an [`Executable`] of what was compiled.
//!
//! ```no_run
//! use byoc_plugin_api::*;
//!
//! struct Mine;
//!
//! impl Codegen for Mine {
//!     fn describe(&self) -> Result<Description> {
//!         Ok(Description { operators: vec!["nn.relu".into()], ..Description::default() })
//!     }
//!     fn judge(&self, candidate: &Candidate) -> Verdict {
//!         match candidate.graph.inputs[0].ty.dtype {
//!             DType::F32 => Verdict::Supported,
//!             other => Verdict::refused(RefusalCode::UnsupportedDtype, format!("input 0 is {other}; mine takes float32")),
//!         }
//!     }
//!     fn compile(&self, region: &Region<'_>) -> Result<CompiledRegion> {
//!         let blob = region.graph.to_json().into_bytes();
//!         Ok(CompiledRegion::new(&region.graph.symbol, "mine", blob))
//!     }
//! }
//!
//! impl Loader for Mine {
//!     fn load(&self, region: &LoadRequest<'_>) -> Result<Box<dyn Executable>> {
//!         let graph = Graph::from_json(&String::from_utf8_lossy(region.blob))?;
//!         region.services.reference(&graph, region.constants)  // or an `Executable` of your own: prepare, run
//!     }
//! }
//!
//! register!(|_context, registry| {
//!     registry.codegen("mine", Mine);
//!     registry.loader("mine", Mine);
//!     Ok(())
//! });
//! declare_plugin!("mine", "1.0.0");
//! ```
//!
//! | file | what it is |
//! |---|---|
//! | `backend` | the traits of a backend, and what goes in and out of them |
//! | `services` | what the host does for a backend |
//! | `graph`, `graph_json` | graphs, and their JSON form |
//! | `tensor`, `dtype`, `constant` | memory: DLPack descriptors and views, element types, handles into the host's pool |
//! | `describe` | what a backend says about itself, as versioned JSON |
//! | `wire`, `adapt` | the stable-ABI objects, and the adapters between them and the plain traits |
//! | `plugin` | the root module and the macros that make a library a plugin |
//! | `guard`, `bridge` | panics become errors; `tracing` events reach the host |
//!
//! The data types here ([`Graph`], [`CompiledRegion`], [`Verdict`], ...) are laid out the same in every compiler, which
//! is why they hold an [`RVec`] and an [`RString`]: use them as `Vec` and `String`, and convert with `into()`.
//! Their layout is checked, field by field, when a plugin is loaded: **a field or a method more turns away every plugin
//! that was built before.** So entries are few and data is open: attributes by name, descriptions as JSON, `query` and
//! `get_service` by key.

mod adapt;
mod backend;
mod bridge;
mod constant;
mod describe;
mod dtype;
mod error;
mod graph;
mod graph_json;
mod guard;
#[doc(hidden)]
pub mod plugin;
mod services;
mod tensor;
#[doc(hidden)]
pub mod wire;

pub use abi_stable::std_types::{RBox, ROption, RString, RVec};
pub use backend::*;
pub use constant::{Constant, ConstantSource};
pub use describe::*;
pub use dtype::{DType, Device, Element};
pub use error::{Error, ErrorData, Result};
pub use graph::*;
pub use graph_json::GRAPH_VERSION;
pub use plugin::{API_VERSION, CODEGEN_PREFIX, Context, LOADER_PREFIX, Registry};
pub use services::{HostServices, Services};
pub use tensor::{Tensor, TensorMut, TensorRef};

#[doc(hidden)]
pub use inventory;

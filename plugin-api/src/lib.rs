//! The boundary between byoc and its backends.
//!
//! A plugin is a `cdylib` with one [`declare_plugin!`] line. It registers backends, which implement two plain traits:
//!
//! * [`Codegen`], registered as `relay.ext.<name>`, at compile time: describes the backend, judges candidates, compiles
//!   regions;
//! * [`Loader`], registered as `loadbinary_<key>`, at run time: turns a compiled region into an [`Executable`].
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
//!             other => {
//!                 Verdict::refused(RefusalCode::UnsupportedDtype, format!("input 0: expected float32, found {other}"))
//!             }
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
//!         region.services.reference(&graph, region.constants)  // or a custom `Executable`: prepare, run
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
//! The host (feature `host`) implements [`HostServices`] and uses each plugin through the same traits:
//!
//! ```no_run
//! # use byoc_plugin_api::*;
//! # use serde_json::json;
//! # fn compile_and_run<'t>(host: impl HostServices, path: &std::path::Path, graph: Graph, constants: Vec<Constant>,
//! #     candidates: Vec<Candidate>, inputs: &[TensorRef<'t>], outputs: &mut [TensorMut<'t>])
//! #     -> std::result::Result<(), Box<dyn std::error::Error>> {
//! let services = Services::new(host);
//! let plugin = host::load(path, &services)?; // or a host::Rejection: code, reason, hint, details
//! let codegen = plugin.codegen("mine").expect("relay.ext.mine");
//! let options = json!({ "cache_dir": null });
//! let verdicts = codegen.judge_batch(&candidates)?; // or an Error: message, hint, plugin, entry, location, panicked
//! let compiled = codegen.compile(&Region { graph: &graph, constants: &constants, options: &options })?;
//! let loader = plugin.loader(&compiled.loader).expect("loadbinary_mine");
//! let executable = loader.load(&LoadRequest {
//!     symbol: &graph.symbol,
//!     blob: &compiled.blob,
//!     constants: &constants,
//!     options: &options,
//!     services: &services,
//! })?;
//! let Prepared { workspace, plan, .. } = executable.prepare(&[inputs[0].shape()])?;
//! executable.run(Call { inputs, outputs, workspace: &mut vec![0; workspace], plan })?; // aligned to 64 bytes, in a real host
//! # Ok(()) }
//! ```
//!
//! | file | contents |
//! |---|---|
//! | `backend`, `executable` | backend traits, their arguments and results |
//! | `services` | host services for backends |
//! | `graph`, `graph_json` | graphs, and their JSON form |
//! | `tensor`, `dtype`, `constant` | DLPack descriptors and views, element types, constant handles |
//! | `signature` | comparison of a region's compile-time and run-time tensor types |
//! | `describe` | description of a backend, as versioned JSON |
//! | [`claim`] | sets of operators of a whole module, as regions |
//! | `precision` | formats in which operators are computed, and their errors |
//! | [`program`] | regions as C, for exported programs |
//! | `estimate` | cost estimate of a candidate |
//! | [`mod@run_options`] | run options |
//! | [`onnx`] | regions as ONNX models |
//! | [`link`] | link step over all regions of a model |
//! | [`device`] | device memory, and runs that continue after `run` has returned |
//! | `abi`, `executable_object` | the stable-ABI objects, and the adapters between them and the plain traits |
//! | `entries` | record of the entry that each thread executes, and protection of the process from plugins |
//! | `plugin` | the root module and the macros that make a library a plugin |
//! | `guard`, `log_forwarding` | conversion of panics into errors; forwarding of `tracing` events to the host |
//! | `host` | inspection and loading of plugin files |
//!
//! The data types of this crate ([`Graph`], [`CompiledRegion`], [`Verdict`], ...) have the same layout with every
//! compiler, and therefore contain [`RVec`] and [`RString`], which are used like `Vec` and `String` and converted with
//! `into()`. The layout is checked, field by field, when a plugin is loaded: **an additional field or method makes the
//! host reject every plugin built earlier.** Entries are therefore few and data is extensible: attributes by name,
//! descriptions as JSON, `query` and `get_service` by key.

/// Guide for backend authors, included to compile its examples.
#[cfg(doctest)]
#[doc = include_str!("../../docs/writing-a-backend.md")]
pub struct Guide;

#[doc(hidden)]
pub mod abi;
mod backend;
pub mod claim;
mod constant;
pub mod declare;
mod describe;
pub mod device;
mod dtype;
#[cfg(feature = "host")]
pub mod entries;
mod error;
mod estimate;
mod executable;
#[doc(hidden)]
pub mod executable_object;
mod graph;
mod graph_json;
mod guard;
#[cfg(feature = "host")]
pub mod host;
pub mod link;
mod log_forwarding;
pub mod onnx;
#[doc(hidden)]
pub mod plugin;
mod precision;
pub mod program;
pub mod run_options;
mod services;
mod signature;
mod tensor;

pub use abi_stable::std_types::{RBox, ROption, RString, RVec};
pub use backend::*;
pub use constant::{Constant, ConstantSource};
pub use describe::*;
pub use dtype::{DType, Device, Element};
pub use error::{Error, ErrorData, Result};
pub use estimate::Estimate;
pub use executable::*;
pub use graph::*;
pub use graph_json::GRAPH_VERSION;
pub use onnx::{OnnxForm, OnnxInfo, OnnxModel, OnnxNode, OnnxOptions};
pub use plugin::{API_VERSION, CODEGEN_PREFIX, Context, LOADER_PREFIX, Registry};
pub use precision::{ComputeFormat, PrecisionClaim};
pub use run_options::run_options;
pub use services::{HostServices, Services, Span};
pub use signature::Signature;
pub use tensor::{Tensor, TensorMut, TensorRef};

/// Level of a log message, re-exported from `tracing` for [`Services::log`] and [`Services::log_level`].
pub use tracing::Level;

#[doc(hidden)]
pub use inventory;

//! byoc as a library, which reads models, compiles them for the installed backends, and runs them.
//!
//! A [`Session`] owns the threads and the plugins. A [`Compilation`] is a compiled model as data, which can be saved
//! and explained; a [`Model`] is loaded and ready to run, from any thread.
//!
//! ```
//! use byoc::{CompileOptions, Model, Session, Tensor};
//!
//! # fn main() -> Result<(), byoc::Error> {
//! # let folder = std::env::temp_dir().join(format!("byoc-doc-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder).unwrap();
//! # let file = folder.join("relu.relay");
//! # std::fs::write(&file, "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(1, 4), float32]) { nn.relu(%x) }\n").unwrap();
//! let session = Session::builder().threads(2).build()?;
//! let model = Model::compile(&session, &file, &CompileOptions::new())?;
//! let x = Tensor::from_slice(&[1, 4], &[-1.0f32, 2.0, -3.0, 4.0]);
//! let outputs = model.run([("x", &x)])?;
//! assert_eq!(outputs[0].as_slice::<f32>(), [0.0, 2.0, 0.0, 4.0]);
//! # std::fs::remove_dir_all(&folder).unwrap();
//! # Ok(())
//! # }
//! ```
//!
//! # Backends
//!
//! A session loads plugins only from the directories that the program names, and from the default directories if
//! [`SessionBuilder::search_default_dirs`] requests them. [`CompileOptions::backend`] selects backends from the loaded
//! plugins:
//!
//! ```no_run
//! # use byoc::{CompileOptions, Compilation, Model, Session};
//! # fn main() -> Result<(), byoc::Error> {
//! let session = Session::builder().plugin_dir("plugins").cache_dir("cache").build()?;
//! let options = CompileOptions::new().backend("ccompiler").dim("batch", 8);
//! let compilation = Compilation::new(&session, "model.onnx", &options)?;
//! for node in &compilation.explanation().nodes {
//!     println!("{} {}: {:?}", node.op, node.source, node.placement.kind);
//! }
//! compilation.save("model.byoc")?;
//! let model = Model::of(&session, compilation)?;
//! # Ok(())
//! # }
//! ```
//!
//! A program that only runs artifacts depends only on the crate `byoc_runtime`, or calls [`Model::load`].
//!
//! # Results in the caller's memory, deadlines, futures
//!
//! ```
//! use byoc::{CompileOptions, Error, Model, RunOptions, Session, Tensor, TensorView, TensorViewMut};
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), byoc::Error> {
//! # let folder = std::env::temp_dir().join(format!("byoc-doc-b-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder).unwrap();
//! # let file = folder.join("relu.relay");
//! # std::fs::write(&file, "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(1, 4), float32]) { nn.relu(%x) }\n").unwrap();
//! # let session = Session::builder().build()?;
//! # let model = Model::compile(&session, &file, &CompileOptions::new())?;
//! let input = [-1.0f32, 2.0, -3.0, 4.0];
//! let x = TensorView::of(&[1, 4], &input);
//! let mut result = [0.0f32; 4];
//! let options = RunOptions { timeout: Some(Duration::from_secs(1)), ..RunOptions::default() };
//! match model.run_into([x], &mut [TensorViewMut::of(&[1, 4], &mut result)], &options) {
//!     Ok(()) => assert_eq!(result, [0.0, 2.0, 0.0, 4.0]),
//!     Err(Error::TimedOut(info)) => println!("{}", info.message),
//!     Err(error) => return Err(error),
//! }
//! let future = model.run_async([x], &options)?; // awaited on any executor; dropping it cancels the run
//! # drop(future);
//! # std::fs::remove_dir_all(&folder).unwrap();
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//!
//! | feature | contents |
//! |---|---|
//! | `onnx` (default) | reads ONNX models |
//! | `images` (default) | reads images as inputs |
//! | `log` | formats log events without control characters, for `tracing-subscriber` |
//! | `ndarray` | converts between [`Tensor`] and arrays of the crate `ndarray` |
//!
//! # Logs
//!
//! Events and spans are emitted through [`tracing`]; without a subscriber, they are discarded at negligible cost.

mod adaptive;
pub mod compare;
mod compilation;
pub mod driver;
mod error;
pub mod frontend;
pub mod io;
#[cfg(feature = "log")]
pub mod log;
mod model;
mod plan;
mod run_async;
pub mod trace;
mod values;
mod wording;

pub use byoc_ir::diag::{Code, Diagnostic};
pub use byoc_ir::escape;
pub use byoc_ir::ir::{Dim, TensorType};
pub use byoc_ir::tensor::{DType, Element, Tensor, TensorView, TensorViewMut};
pub use byoc_plugin_api::ComputeFormat;
pub use byoc_runtime as runtime;
pub use byoc_runtime::cancel::Cancel;
pub use byoc_runtime::exec::program::Port;
pub use byoc_runtime::{Session, SessionBuilder};
pub use compilation::{Compilation, CompileOptions, Source};
pub use driver::contract::Contract;
pub use driver::explanation::Explanation;
pub use driver::{OnFailure, Stage};
pub use error::{Error, ErrorInfo};
pub use model::{Model, RunOptions};
pub use plan::Plan;
pub use run_async::RunFuture;
pub use values::{Input, Inputs, Outputs};
pub use wording::Interface;

use std::path::Path;

/// Compiles a model for the host and runs it once on `inputs`.
///
/// # Errors
/// Same as [`Model::compile`] and [`Model::run`].
pub fn run<'a>(model: impl AsRef<Path>, inputs: impl Into<Inputs<'a>>) -> Result<Outputs, Error> {
    let session = Session::builder().build()?;
    Model::compile(&session, model.as_ref(), &CompileOptions::new())?.run(inputs)
}

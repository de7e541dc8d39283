//! Library interface for compiling models.

use crate::driver::contract::Contract;
use crate::driver::explanation::Explanation;
use crate::driver::{self, BuildOptions, Compiled, OnFailure, Progress, Stage};
use crate::error::Error;
use crate::frontend::{self, LoadOptions, Loaded};
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::ir::Module;
use byoc_plugin_api::ComputeFormat;
use byoc_runtime::cancel::Cancel;
use byoc_runtime::exec::program::Port;
use byoc_runtime::{Failure, Session, artifact};
use bytes::Bytes;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Model or artifact to read.
#[derive(Clone, Debug)]
pub enum Source {
    /// File (`.onnx`, `.relay` or `.byoc`), or directory in ONNX test-data layout.
    Path(PathBuf),
    /// Bytes of an ONNX file or of an artifact. External tensor data is read from `folder`.
    Bytes {
        /// Contents of the file.
        bytes: Bytes,
        /// Directory with the external data files of an ONNX model.
        folder: Option<PathBuf>,
    },
    /// Module that was built in memory.
    Module(Arc<Module>),
}

impl From<&Path> for Source {
    fn from(path: &Path) -> Source {
        Source::Path(path.to_owned())
    }
}

impl From<PathBuf> for Source {
    fn from(path: PathBuf) -> Source {
        Source::Path(path)
    }
}

impl From<&PathBuf> for Source {
    fn from(path: &PathBuf) -> Source {
        Source::Path(path.clone())
    }
}

impl From<&str> for Source {
    fn from(path: &str) -> Source {
        Source::Path(path.into())
    }
}

impl From<Vec<u8>> for Source {
    fn from(bytes: Vec<u8>) -> Source {
        Source::Bytes { bytes: bytes.into(), folder: None }
    }
}

impl From<&[u8]> for Source {
    fn from(bytes: &[u8]) -> Source {
        bytes.to_vec().into()
    }
}

/// Compilation options.
#[derive(Clone, Debug, Default)]
pub struct CompileOptions {
    build: BuildOptions,
    load: LoadOptions,
    specialized: BTreeMap<String, Vec<usize>>,
    cancel: Option<Cancel>,
    /// True to compile no program for the optional inputs.
    omits_optional: bool,
}

impl CompileOptions {
    /// Returns the default options, with which everything runs on the host.
    pub fn new() -> CompileOptions {
        CompileOptions::default()
    }

    /// Appends a backend in priority order; `auto` stands for every backend found.
    #[must_use]
    pub fn backend(mut self, name: impl Into<String>) -> CompileOptions {
        self.build.backends.push(name.into());
        self
    }

    /// Sets a backend option.
    #[must_use]
    pub fn backend_option(
        mut self,
        backend: impl Into<String>,
        option: impl Into<String>,
        value: impl Into<String>,
    ) -> CompileOptions {
        self.build.backend_options.push((backend.into(), option.into(), value.into()));
        self
    }

    /// Sets the lowest precision in which backends may compute a float32 model, `F32` by default. An option of a backend
    /// may allow that backend more.
    #[must_use]
    pub fn precision(mut self, format: ComputeFormat) -> CompileOptions {
        self.build.precision = format;
        self
    }

    /// Sets the value of a symbolic dimension.
    #[must_use]
    pub fn dim(mut self, name: impl Into<String>, size: usize) -> CompileOptions {
        self.load.dims.insert(name.into(), size);
        self
    }

    /// Leaves a dimension symbolic, so that its value may differ in every run. A separate program is compiled for each
    /// value in `specialized`.
    #[must_use]
    pub fn open_dim(mut self, name: impl Into<String>, specialized: impl IntoIterator<Item = usize>) -> CompileOptions {
        let name = name.into();
        let sizes: Vec<usize> = specialized.into_iter().collect();
        if !sizes.is_empty() {
            self.specialized.insert(name.clone(), sizes);
        }
        self.load.open.insert(name);
        self
    }

    /// Leaves symbolic every dimension that neither [`CompileOptions::dim`] nor [`CompileOptions::input_shape`] binds;
    /// without this call, such a dimension is an error.
    #[must_use]
    pub fn open_unbound_dims(mut self) -> CompileOptions {
        self.load.open_unbound = true;
        self
    }

    /// Sets the dimensions of an input.
    #[must_use]
    pub fn input_shape(mut self, input: impl Into<String>, shape: impl Into<Vec<usize>>) -> CompileOptions {
        self.load.input_shapes.insert(input.into(), shape.into());
        self
    }

    /// Replaces the session's cancellation with `cancel`; any thread may request it.
    #[must_use]
    pub fn cancel(mut self, cancel: Cancel) -> CompileOptions {
        self.cancel = Some(cancel);
        self
    }

    /// Returns the configured cancellation, by default that of the session.
    pub(crate) fn cancellation<'a>(&'a self, session: &'a Session) -> &'a Cancel {
        self.cancel.as_ref().unwrap_or(&session.cancel)
    }

    /// Returns the options for a program that takes inputs of known shapes, and no optional inputs.
    pub(crate) fn for_shapes(&self, inputs: &[String], shapes: &[Vec<usize>]) -> CompileOptions {
        let mut options = self.clone();
        (options.build.progress, options.omits_optional) = (None, true);
        options.load.input_shapes = inputs.iter().cloned().zip(shapes.iter().cloned()).collect();
        options.specialized.clear();
        options.load.open.clear();
        options
    }

    /// Sets what happens to a region that its backend fails to compile; by default, the next backend is asked.
    #[must_use]
    pub fn on_failure(mut self, policy: OnFailure) -> CompileOptions {
        self.build.on_failure = policy;
        self
    }

    /// Sets the contract that the build has to keep; by default, `byoc.toml` beside a model that is read from a path.
    #[must_use]
    pub fn contract(mut self, contract: Contract) -> CompileOptions {
        self.build.contract = Some(Arc::new(contract));
        self
    }

    /// Compiles only the regions that the module already has: the backends receive no further operators.
    #[must_use]
    pub fn keep_partition(mut self) -> CompileOptions {
        self.build.keep_partition = true;
        self
    }

    /// Runs everything on the host, the regions that the module already has as well.
    #[must_use]
    pub fn host_only(mut self) -> CompileOptions {
        self.build.host_only = true;
        self
    }

    /// Reports the stages of the compilation to `report`.
    #[must_use]
    pub fn progress(mut self, report: impl Fn(&Stage) + Send + Sync + 'static) -> CompileOptions {
        self.build.progress = Some(Progress::new(report));
        self
    }
}

/// Compiled model, which can be saved, explained, and loaded as a [`Model`](crate::Model). Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Compilation {
    pub(crate) compiled: Arc<Compiled>,
    explanation: Arc<Explanation>,
    warnings: Arc<Vec<Diagnostic>>,
    pub(crate) progress: Option<Progress>,
    /// True if the digest of the model covers all bytes that it was compiled from.
    pub(crate) is_self_contained: bool,
}

impl Compilation {
    /// Compiles a model.
    ///
    /// # Errors
    /// If the model cannot be read or is unsupported, a backend or option is unknown, or the compilation is cancelled.
    pub fn new(session: &Session, source: impl Into<Source>, options: &CompileOptions) -> Result<Compilation, Error> {
        let source = source.into();
        let mut build = options.build.clone();
        build.cache_dir.clone_from(&session.cache_dir);
        build.report(|| Stage::Read);
        if let (None, Source::Path(path)) = (&build.contract, &source) {
            build.contract = Contract::beside(path)?.map(Arc::new);
        }
        let _scope = options.cancellation(session).enter();
        let specialized_dims: Vec<(String, Vec<usize>)> = options.specialized.clone().into_iter().collect();
        let load = LoadOptions {
            keeps_optional: !options.omits_optional,
            host_operators: build.host_operators(),
            ..options.load.clone()
        };
        driver::declare_operators(session, &build.backends)?;
        let is_self_contained = Cell::new(true);
        let output = driver::build_programs(
            &load,
            &specialized_dims,
            |load| read(&source, load).inspect(|model| is_self_contained.set(model.is_self_contained)),
            |model| driver::build(session, model, &build, &mut |_| {}),
        )?;
        let warnings = output.warnings().cloned().collect();
        Ok(Compilation {
            compiled: Arc::new(output.compiled),
            explanation: Arc::new(output.explanation),
            warnings: Arc::new(warnings),
            progress: build.progress,
            is_self_contained: is_self_contained.get(),
        })
    }

    /// Partitions a model for the backends, without compiling its regions. Returns the module and the warnings.
    ///
    /// # Errors
    /// Same as [`Compilation::new`].
    pub fn partition(
        session: &Session,
        source: impl Into<Source>,
        options: &CompileOptions,
    ) -> Result<(Module, Vec<Diagnostic>), Error> {
        let _scope = options.cancellation(session).enter();
        let load = LoadOptions { host_operators: options.build.host_operators(), ..options.load.clone() };
        driver::declare_operators(session, &options.build.backends)?;
        Ok(driver::partitioned(session, read(&source.into(), &load)?, &options.build)?)
    }

    /// Opens an artifact, which is a saved compilation.
    ///
    /// # Errors
    /// If the file cannot be read, is not an artifact, or is corrupt.
    pub fn open(source: impl Into<Source>) -> Result<Compilation, Error> {
        let artifact = match source.into() {
            Source::Path(path) => artifact::open(&path)?,
            Source::Bytes { bytes, .. } => artifact::parse(Arc::new(bytes))?,
            Source::Module(_) => {
                let message = "expected an artifact, found a module in memory";
                return Err(Diagnostic::error(codes::artifacts::NOT_AN_ARTIFACT, message).into());
            }
        };
        let compiled = artifact.into_compiled();
        // An artifact of an older release may lack fields of the explanation.
        let explanation = serde_json::from_value(compiled.explain.clone()).unwrap_or_default();
        Ok(Compilation {
            compiled: Arc::new(compiled),
            explanation: Arc::new(explanation),
            warnings: Arc::default(),
            progress: None,
            is_self_contained: false,
        })
    }

    /// Writes an artifact atomically: the file appears only once it is complete.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        Ok(artifact::write(path.as_ref(), &self.compiled)?)
    }

    /// Serializes the compilation as an artifact.
    ///
    /// # Errors
    /// If the contents cannot be encoded.
    pub fn to_bytes(&self) -> Result<Vec<u8>, Error> {
        Ok(artifact::to_bytes(&self.compiled)?)
    }

    /// Returns the inputs of the model.
    pub fn inputs(&self) -> &[Port] {
        &self.compiled.program.inputs
    }

    /// Returns the outputs of the model.
    pub fn outputs(&self) -> &[Port] {
        &self.compiled.program.outputs
    }

    /// Returns the placement of each operator, and the reasons for refusals by backends. Reasons name command-line
    /// options; [`Explanation::in_interface`] names the functions of this library instead.
    pub fn explanation(&self) -> &Explanation {
        &self.explanation
    }

    pub(crate) fn shared_explanation(&self) -> Arc<Explanation> {
        self.explanation.clone()
    }

    /// Returns the size in bytes of the constants of regions. They are unused once a backend has packed them at load
    /// time, but stay in memory with the compilation.
    pub fn region_constant_bytes(&self) -> usize {
        let variants = self.compiled.variants.iter().map(|variant| &variant.compiled);
        let bytes = |compiled: &Compiled| {
            let used_constants: BTreeSet<u32> =
                compiled.regions.iter().flatten().flat_map(|region| region.constants.iter().copied()).collect();
            let size = |index: u32| compiled.constants.get(index as usize).map_or(0, |tensor| tensor.bytes().len());
            used_constants.into_iter().map(size).sum::<usize>()
        };
        std::iter::once(&*self.compiled).chain(variants).map(bytes).sum()
    }

    /// Returns the sources of the regions for which code generators returned some: symbol, language and text.
    pub fn region_sources(&self) -> Vec<(String, String, String)> {
        let regions = self.compiled.regions.iter().flatten();
        let sources = regions.filter_map(|region| Some((region.symbol.clone(), region.source.as_ref()?)));
        sources.map(|(symbol, source)| (symbol, source.language.clone(), source.text.clone())).collect()
    }

    /// Returns the compilation warnings, which name command-line options;
    /// [`Interface::diagnostic`](crate::Interface::diagnostic) names the functions of this library instead.
    pub fn warnings(&self) -> &[Diagnostic] {
        &self.warnings
    }
}

/// Reads a model.
fn read(source: &Source, options: &LoadOptions) -> Result<Loaded, Failure> {
    match source {
        Source::Path(path) => frontend::load(path, options),
        Source::Bytes { bytes, folder: dir } => frontend::load_bytes(bytes.clone(), dir.as_deref(), options),
        Source::Module(module) => frontend::relay::of_module(module, options),
    }
}

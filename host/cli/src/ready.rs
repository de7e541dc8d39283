//! Preparation shared by `run`, `bench`, `verify`, `explain`, `source` and `compile`: from command-line options to a
//! model that is ready to be run or inspected.

use super::args::{BuildArgs, DimChoice, InputArgs, Share};
use super::inputs::InputSources;
use super::interrupt::cancel_on_interrupt;
use super::{escape, render};
use byoc::driver::backend::{Backend, check_run_option};
use byoc::driver::contract::Contract;
use byoc::driver::explanation::Explanation;
use byoc::driver::{self, BuildOptions, BuildOutput, Compiled, OnFailure, Progress, RefusalSummary};
use byoc::frontend::folder::{TestFolder, TestSet};
use byoc::frontend::{self, LoadOptions};
use byoc::runtime::artifact;
use byoc::runtime::choices::base_name;
use byoc::runtime::error::Failure;
use byoc::runtime::model::Model;
use byoc::runtime::session::Session;
use byoc_ir::diag::{Diagnostic, codes};
use indicatif::ProgressBar;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Value of `--backend` that restricts execution to the host.
const HOST_ONLY: &str = "none";

/// Model that is ready to run, with its user-supplied inputs.
pub struct PreparedModel {
    pub model: Model,
    pub inputs: InputSources,
    /// Time to read and compile the model; zero for an artifact.
    pub compile_time: Duration,
    /// Time to load the model.
    pub load_time: Duration,
}

/// Work on models as the options of a command request it: a session, and how models are built.
pub struct Request<'a> {
    args: &'a BuildArgs,
    pub session: Session,
    pub options: BuildOptions,
    /// True if the command makes an artifact, whose runs may replace the default values of inputs.
    pub keeps_optional: bool,
    /// False for a build that is not that of the user, such as a baseline.
    pub keeps_contract: bool,
}

impl<'a> Request<'a> {
    /// Sets up logging, the thread pool and the plugins according to the options.
    ///
    /// # Errors
    /// E0403 if `--target` is given, or `--backend` names a backend besides `none`.
    pub fn new(args: &'a BuildArgs) -> Result<Request<'a>, Failure> {
        let misplaced = |message: String, help: String| -> Failure {
            Diagnostic::error(codes::plugins::BACKEND_MISPLACED, message).help(help).into()
        };
        if let Some(name) = &args.target {
            return Err(misplaced(format!("unsupported option --target {name}"), remedy_for_target(name)));
        }
        crate::log::log_to_stderr(args.diagnostics.verbose);
        let threads = args.threads.map_or(0, usize::from);
        let mut backends: Vec<&str> = args.backend.iter().map(|name| name.trim()).collect();
        backends.retain(|name| !name.is_empty());
        let host_only = backends.contains(&HOST_ONLY);
        if host_only && backends.len() > 1 {
            let other = backends[usize::from(backends[0] == HOST_ONLY)];
            let message = format!("expected --backend {HOST_ONLY} alone, found {other} as well");
            return Err(misplaced(message, format!("remove {HOST_ONLY}, or the other backends")));
        }
        let mut session = match host_only {
            true => Session::without_plugins(threads)?,
            false => Session::new(&args.plugins.plugin_dirs, threads)?,
        };
        session.allow_native = args.allow_native;
        session.choices.fails_without_backend = args.on_failure == OnFailure::Error;
        session.choices.devices = args.devices.iter().cloned().collect();
        let cache_dir = args.cache_dir.clone().or_else(|| Some(dirs::cache_dir()?.join("byoc")));
        backends.retain(|name| *name != HOST_ONLY);
        let options = BuildOptions {
            backends: backends.into_iter().map(str::to_owned).collect(),
            backend_options: args.backend_options.clone(),
            precision: args.precision,
            cache_dir: cache_dir.filter(|_| !args.no_cache),
            host_only,
            on_failure: args.on_failure,
            print_after: args.print_after.clone(),
            time_passes: args.time_passes,
            ..BuildOptions::default()
        };
        Ok(Request { args, session, options, keeps_optional: false, keeps_contract: true })
    }

    /// Reads and builds a model, which must not be an artifact, and prints the warnings.
    pub fn build(&self, path: &Path, inputs: &InputSources) -> Result<BuildOutput, Failure> {
        let output = self.compile(path, inputs)?;
        output.warnings().for_each(render::print_diagnostic);
        Ok(output)
    }

    /// Reads and builds a model, which must not be an artifact, and checks `--require-offload`. The caller prints the
    /// warnings unless an error is returned.
    pub fn compile(&self, path: &Path, inputs: &InputSources) -> Result<BuildOutput, Failure> {
        let output = self.compile_unchecked(path, inputs)?;
        self.check_build_offload(&output)?;
        Ok(output)
    }

    /// Reads and builds a model, which must not be an artifact. The caller must call [`Request::check_build_offload`]
    /// and print the warnings.
    pub fn compile_unchecked(&self, path: &Path, inputs: &InputSources) -> Result<BuildOutput, Failure> {
        if is_artifact(path) {
            return Err(Diagnostic::error(
                codes::plugins::BACKEND_MISPLACED,
                format!("expected a model, found the compiled artifact {}", path.display()),
            )
            .help(format!("print the contents of the artifact with \"byoc inspect {}\"", path.display()))
            .into());
        }
        let (load, specialized_dims) = self.load_options(path, inputs)?;
        let message = format!("compiling {}", name_of(path));
        let spinner = spinner(message.clone());
        let progress_spinner = spinner.clone();
        let progress = Progress::new(move |stage| {
            progress_spinner.set_message(escape::line(&format!("{message}: {stage}")).into_owned())
        });
        let contract = if self.keeps_contract { self.contract(path)?.map(Arc::new) } else { None };
        let options = BuildOptions { progress: Some(progress), contract, ..self.options.clone() };
        let mut print_line = |text: &str| spinner.suspend(|| eprintln!("{}", escape::lines(text)));
        let output = {
            let _interruptible = cancel_on_interrupt(&self.session.cancel);
            driver::build_programs(
                &load,
                &specialized_dims,
                |load| frontend::load(path, load),
                |model| driver::build(&self.session, model, &options, &mut print_line),
            )?
        };
        spinner.finish_and_clear();
        Ok(output)
    }

    /// Returns how the model is read, and the sizes for which it gets programs of their own.
    pub fn load_options(
        &self,
        path: &Path,
        inputs: &InputSources,
    ) -> Result<(LoadOptions, Vec<(String, Vec<usize>)>), Failure> {
        let (input_shapes, given) = (inputs.shapes(), inputs.names());
        let keeps_optional = self.keeps_optional;
        let host_operators = self.options.host_operators();
        driver::declare_operators(&self.session, &self.options.backends)?;
        let mut load = LoadOptions { input_shapes, given, keeps_optional, host_operators, ..LoadOptions::default() };
        let mut specialized_dims = Vec::new();
        for (name, dim_choice) in &self.args.dims {
            match dim_choice {
                DimChoice::Fixed(size) => drop(load.dims.insert(name.clone(), *size)),
                DimChoice::Open(sizes) => {
                    load.open.insert(name.clone());
                    specialized_dims.extend((!sizes.is_empty()).then(|| (name.clone(), sizes.clone())));
                }
            }
        }
        if inputs.has_image()
            && let Some((name, size)) = inputs.image_dims(&frontend::signature(path)?.inputs)
            && !load.open.contains(&name)
        {
            load.dims.entry(name).or_insert(size);
        }
        Ok((load, specialized_dims))
    }

    /// Returns the contract of a model: that of `--contract`, or the one beside the model.
    pub fn contract(&self, path: &Path) -> Result<Option<Contract>, Diagnostic> {
        self.args.contract.as_ref().map_or_else(|| Contract::beside(path), |file| Contract::read(file).map(Some))
    }

    /// Returns an error if the share of the FLOPs on backends is below `--require-offload`, after printing the
    /// warnings.
    pub fn check_build_offload(&self, output: &BuildOutput) -> Result<(), Failure> {
        let offload = self.check_offload(output.min_offload_share(), || {
            let reasons = driver::refusal_summary(&output.explanation);
            (
                driver::refusal_headline(&reasons.iter().collect::<Vec<_>>()),
                reasons.iter().map(RefusalSummary::to_string).collect(),
            )
        });
        if offload.is_err() {
            // Warnings about unused backends are omitted, as the error lists the same reasons.
            output.warnings.iter().for_each(render::print_diagnostic);
        }
        offload
    }

    /// Returns an error if the share of the FLOPs on backends is below `--require-offload` after loading: regions
    /// compiled for a backend may have fallen back to the host, for the reasons in `load_warnings`.
    pub fn check_load_offload(&self, share: f64, load_warnings: &[Diagnostic]) -> Result<(), Failure> {
        self.check_offload(share, || (String::new(), load_warnings.iter().map(|w| w.message.clone()).collect()))
    }

    /// Returns an error if the share of the FLOPs on backends is below `--require-offload`. `reasons` returns a summary
    /// for the message, and the notes of the error.
    fn check_offload(&self, share: f64, reasons: impl FnOnce() -> (String, Vec<String>)) -> Result<(), Failure> {
        let (is_enough, amount) = match self.args.require_offload {
            None => return Ok(()),
            Some(Share::Any) => (share > 0.0, "more than 0 %".to_owned()),
            Some(Share::AtLeast(minimum)) => (share >= minimum, format!("at least {:.1} %", 100.0 * minimum)),
        };
        if is_enough {
            return Ok(());
        }
        let (refusal_headline, notes) = reasons();
        let message =
            format!("expected {amount} of the FLOPs on backends, found {:.1} %{refusal_headline}", 100.0 * share);
        let mut diagnostic = Diagnostic::error(codes::plugins::TOOK_NOTHING, message);
        diagnostic.notes = notes;
        Err(diagnostic.help("run \"byoc explain\" with the same options to list the reasons for each operator").into())
    }

    /// Sets the backend options that apply to every run of a model. Compile-time, load-time and unknown options are left
    /// to the build.
    fn choose_run_options(&mut self) {
        for (name, option, value) in &self.args.backend_options {
            if check_run_option(&self.session.registry, name, option, value).is_ok() {
                self.session.choices.run_options.set(base_name(name), option, value);
            }
        }
    }

    /// Sets the backend options for an artifact.
    ///
    /// # Errors
    /// If a backend or an option is unknown, or an option applies neither at load time nor at run time.
    fn choose_load_options(&mut self, path: &Path) -> Result<(), Failure> {
        for (name, option, value) in &self.args.backend_options {
            let mut backend = Backend::find(&self.session.registry, name)?;
            backend.choose(option, value)?;
            let spec = backend.description.options.get(option);
            if spec.is_some_and(|spec| spec.run && !spec.load) {
                continue;
            }
            if !spec.is_some_and(|spec| spec.load) {
                let message = format!(
                    "{name}.{option} has no effect on the compiled artifact {}: the option applies only to compilation",
                    path.display()
                );
                return Err(Diagnostic::error(codes::plugins::UNKNOWN_OPTION, message)
                    .help(format!("print the options of the compilation with \"byoc inspect {}\"", path.display()))
                    .into());
            }
            let options = self.session.choices.load_options.entry(name.clone()).or_default();
            options.insert(option.clone(), value.clone());
        }
        Ok(())
    }

    /// Reads, builds and loads a model or an artifact.
    pub fn prepare(&mut self, path: &Path, input: &InputArgs) -> Result<PreparedModel, Failure> {
        if is_artifact(path) {
            self.choose_load_options(path)?;
        }
        self.choose_run_options();
        let inputs = input_sources(path, input)?;
        let start = Instant::now();
        let compile_model = || match is_artifact(path) {
            true if self.options.host_only => Ok(artifact::open(path)?.into_compiled().on_host()),
            true => Ok(artifact::open(path)?.into_compiled()),
            false => Ok::<_, Failure>(self.build(path, &inputs)?.compiled),
        };
        let host_model = compile_model()?;
        let compile_time = if is_artifact(path) { Duration::ZERO } else { start.elapsed() };
        let start = Instant::now();
        let cache_dir = self.options.cache_dir.as_deref();
        let (model, warnings) = Model::load_sparing(&self.session, host_model, cache_dir, compile_model)?;
        warnings.iter().for_each(render::print_diagnostic);
        self.check_load_offload(model.min_offload_share, &warnings)?;
        Ok(PreparedModel { model, inputs, compile_time, load_time: start.elapsed() })
    }

    /// Loads a model that was built, and prints the warnings, which are returned as well.
    pub fn load(&self, compiled: Compiled) -> Result<(Model, Vec<Diagnostic>), Failure> {
        let loaded = Model::load(&self.session, compiled, self.options.cache_dir.as_deref())?;
        loaded.1.iter().for_each(render::print_diagnostic);
        Ok(loaded)
    }
}

/// Kinds of TVM's targets for which TVM itself generates code.
const TVM_TARGETS: [&str; 13] = [
    "aocl",
    "c",
    "composite",
    "cuda",
    "ext_dev",
    "hexagon",
    "hybrid",
    "llvm",
    "metal",
    "nvptx",
    "rocm",
    "stackvm",
    "vulkan",
];

/// Returns what to say instead of `--target`: a target of TVM compiles what no external code generator takes, and here
/// the host runs that without an option.
fn remedy_for_target(target: &str) -> String {
    let kind = target.split_whitespace().next().unwrap_or_default();
    if !TVM_TARGETS.contains(&kind) {
        return format!("select a backend with --backend {target}");
    }
    format!(
        "remove it: {kind} compiled what no external code generator of TVM took, and the host of byoc runs that without an \
         option; select backends with --backend NAME, which \"byoc plugins\" lists"
    )
}

/// Starts a spinner, which is shown only on a terminal.
pub fn spinner(message: String) -> ProgressBar {
    let spinner = ProgressBar::new_spinner().with_message(escape::line(&message).into_owned());
    spinner.enable_steady_tick(Duration::from_millis(120));
    spinner
}

/// Returns the explanation in an artifact.
pub fn explanation_of(path: &Path) -> Result<Explanation, Failure> {
    let explain = artifact::open(path)?.into_compiled().explain;
    Explanation::deserialize(&explain).map_err(|error| {
        let message = format!("{}: expected an explanation of this release: {error}", path.display());
        Diagnostic::error(codes::artifacts::MALFORMED, message).help("compile the model again").into()
    })
}

/// Tests whether the file is an artifact, by its extension.
pub fn is_artifact(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "byoc")
}

/// Returns the inputs given by `args`. For a directory in test-data layout, missing inputs are read from its first
/// data set.
pub fn input_sources(path: &Path, args: &InputArgs) -> Result<InputSources, Failure> {
    let inputs = InputSources::read(args)?;
    if !path.is_dir() {
        return Ok(inputs);
    }
    let dir = TestFolder::open(path)?;
    match dir.sets.first() {
        Some(set) => recorded_inputs(&dir, set, inputs),
        None => Ok(inputs),
    }
}

/// Returns the inputs that a directory in test-data layout has.
pub fn recorded_alone(path: &Path) -> Result<InputSources, Failure> {
    input_sources(path, &InputArgs::default())
}

/// Returns `inputs`, with missing inputs read from a data set.
pub fn recorded_inputs(dir: &TestFolder, set: &TestSet, inputs: InputSources) -> Result<InputSources, Failure> {
    Ok(inputs.with_recorded(set.recorded_inputs(&frontend::signature(&dir.model)?)?))
}

/// Returns the last component of a path, or the entire path if it has no file name, for messages and case names.
pub fn name_of(path: &Path) -> String {
    let path: PathBuf = path.components().collect();
    path.file_name().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned())
}

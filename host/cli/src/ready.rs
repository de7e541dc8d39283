//! Preparation shared by `run`, `bench`, `verify`, `explain`, `source` and `compile`: from command-line options to a
//! model that is ready to be run or inspected.

use super::args::{BuildArgs, DimChoice, InputArgs};
use super::inputs::InputSources;
use super::interrupt::cancel_on_interrupt;
use super::{escape, render};
use byoc::build::backend::{Backend, check_run_option};
use byoc::build::{self, BuildOptions, BuildOutput, Progress, RefusalSummary};
use byoc::frontend::folder::{TestFolder, TestSet};
use byoc::frontend::{self, LoadOptions};
use byoc::runtime::artifact;
use byoc::runtime::choices::base_name;
use byoc::runtime::error::Failure;
use byoc::runtime::model::Model;
use byoc::runtime::session::Session;
use byoc_ir::diag::{Diagnostic, codes};
use indicatif::ProgressBar;
use std::path::{Path, PathBuf};
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

/// Sets up logging, the thread pool and the plugins according to the options.
///
/// # Errors
/// E0403 if `--target` is given, or `--backend` names a backend besides `none`.
pub fn session(args: &BuildArgs) -> Result<Session, Failure> {
    if let Some(name) = &args.target {
        let message = format!("unsupported option --target {name}");
        return Err(Diagnostic::error(codes::plugins::BACKEND_MISPLACED, message)
            .help(format!("select a backend with --backend {name}"))
            .into());
    }
    crate::log::log_to_stderr(args.diagnostics.verbose);
    let threads = args.threads.map_or(0, usize::from);
    let mut session = match is_host_only(args)? {
        true => Session::without_plugins(threads)?,
        false => Session::new(&args.plugins.plugin_dirs, threads)?,
    };
    session.allow_native = args.allow_native;
    session.choices.devices = args.devices.iter().cloned().collect();
    Ok(session)
}

/// Returns true if everything runs on the host: `--backend none`.
///
/// # Errors
/// E0403 if a backend is named besides `none`.
fn is_host_only(args: &BuildArgs) -> Result<bool, Failure> {
    let names: Vec<&str> = names(args).collect();
    match names.iter().position(|name| *name == HOST_ONLY) {
        None => Ok(false),
        Some(_) if names.len() == 1 => Ok(true),
        Some(index) => {
            let other = names[usize::from(index == 0)];
            let message = format!("expected --backend {HOST_ONLY} alone, found {other} as well");
            Err(Diagnostic::error(codes::plugins::BACKEND_MISPLACED, message)
                .help(format!("remove {HOST_ONLY}, or the other backends"))
                .into())
        }
    }
}

/// Returns the names of the backends.
fn names(args: &BuildArgs) -> impl Iterator<Item = &str> {
    args.backend.iter().map(|name| name.trim()).filter(|name| !name.is_empty())
}

pub fn build_options(args: &BuildArgs) -> BuildOptions {
    let cache_dir = match (&args.cache_dir, args.no_cache) {
        (_, true) => None,
        (Some(dir), false) => Some(dir.clone()),
        (None, false) => dirs::cache_dir().map(|d| d.join("byoc")),
    };
    BuildOptions {
        backends: names(args).filter(|name| *name != HOST_ONLY).map(str::to_owned).collect(),
        backend_options: args.backend_options.clone(),
        cache_dir,
        keep_partition: false,
        host_only: names(args).any(|name| name == HOST_ONLY),
        print_after: args.print_after.clone(),
        time_passes: args.time_passes,
        source: args.source,
        program: args.program,
        progress: None,
    }
}

/// Reads and builds a model, which must not be an artifact, and prints the warnings.
pub fn build(path: &Path, args: &BuildArgs, session: &Session, inputs: &InputSources) -> Result<BuildOutput, Failure> {
    let output = compile(path, args, session, inputs)?;
    output.warnings().for_each(render::print_diagnostic);
    Ok(output)
}

/// Reads and builds a model, which must not be an artifact, and checks `--require-offload`. The caller prints the
/// warnings unless an error is returned.
pub fn compile(
    path: &Path,
    args: &BuildArgs,
    session: &Session,
    inputs: &InputSources,
) -> Result<BuildOutput, Failure> {
    let output = compile_unchecked(path, args, session, inputs)?;
    check_build_offload(args, &output)?;
    Ok(output)
}

/// Reads and builds a model, which must not be an artifact. The caller must call [`check_build_offload`] and print
/// the warnings.
pub fn compile_unchecked(
    path: &Path,
    args: &BuildArgs,
    session: &Session,
    inputs: &InputSources,
) -> Result<BuildOutput, Failure> {
    if is_artifact(path) {
        return Err(Diagnostic::error(
            codes::plugins::BACKEND_MISPLACED,
            format!("expected a model, found the compiled artifact {}", path.display()),
        )
        .help(format!("print the contents of the artifact with \"byoc inspect {}\"", path.display()))
        .into());
    }
    let (input_shapes, given) = (inputs.shapes(), inputs.names());
    let keeps_optional = args.keeps_optional;
    let options = build_options(args);
    let host_operators = options.host_operators();
    let mut load = LoadOptions { input_shapes, given, keeps_optional, host_operators, ..LoadOptions::default() };
    let mut specialized_dims = Vec::new();
    for (name, dim_choice) in &args.dims {
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
    let message = format!("compiling {}", name_of(path));
    let spinner = spinner(message.clone());
    let progress_spinner = spinner.clone();
    let progress = Progress::new(move |stage| {
        progress_spinner.set_message(escape::line(&format!("{message}: {stage}")).into_owned())
    });
    let options = BuildOptions { progress: Some(progress), ..options };
    let mut print_line = |text: &str| spinner.suspend(|| eprintln!("{}", escape::lines(text)));
    let output = {
        let _interruptible = cancel_on_interrupt(&session.cancel);
        build::build_programs(
            &load,
            &specialized_dims,
            |load| frontend::load(path, load),
            |model| build::build(session, model, &options, &mut print_line),
        )?
    };
    spinner.finish_and_clear();
    Ok(output)
}

/// Returns an error if the share of the FLOPs on backends is below `--require-offload`, after printing the warnings.
pub fn check_build_offload(args: &BuildArgs, output: &BuildOutput) -> Result<(), Failure> {
    let offload = check_offload(args, output.min_offload_share(), || {
        let reasons = build::refusal_summary(&output.explanation);
        (
            build::refusal_headline(&reasons.iter().collect::<Vec<_>>()),
            reasons.iter().map(RefusalSummary::to_string).collect(),
        )
    });
    if offload.is_err() {
        // Warnings about unused backends are omitted, as the error lists the same reasons.
        output.warnings.iter().for_each(render::print_diagnostic);
    }
    offload
}

/// Returns an error if the share of the FLOPs on backends is below `--require-offload` after loading: regions compiled
/// for a backend may have fallen back to the host, for the reasons in `load_warnings`.
pub fn check_load_offload(args: &BuildArgs, share: f64, load_warnings: &[Diagnostic]) -> Result<(), Failure> {
    check_offload(args, share, || (String::new(), load_warnings.iter().map(|w| w.message.clone()).collect()))
}

/// Starts a spinner, which is shown only on a terminal.
pub fn spinner(message: String) -> ProgressBar {
    let spinner = ProgressBar::new_spinner().with_message(escape::line(&message).into_owned());
    spinner.enable_steady_tick(Duration::from_millis(120));
    spinner
}

/// Returns an error if the share of the FLOPs on backends is below `--require-offload`. `reasons` returns a summary for
/// the message, and the notes of the error.
fn check_offload(args: &BuildArgs, share: f64, reasons: impl FnOnce() -> (String, Vec<String>)) -> Result<(), Failure> {
    let Some(requirement) = &args.require_offload else { return Ok(()) };
    let (is_enough, amount) = match requirement.as_str() {
        "any" => (share > 0.0, "more than 0 %".to_owned()),
        text => match text.parse::<f64>() {
            Ok(minimum) if (0.0..=1.0).contains(&minimum) => {
                (share >= minimum, format!("at least {:.1} %", 100.0 * minimum))
            }
            _ => {
                let message = format!("--require-offload: expected a share from 0 to 1, found {text}");
                return Err(Failure::new(codes::plugins::TOOK_NOTHING, message));
            }
        },
    };
    if is_enough {
        return Ok(());
    }
    let (refusal_headline, notes) = reasons();
    let message = format!("expected {amount} of the FLOPs on backends, found {:.1} %{refusal_headline}", 100.0 * share);
    let mut diagnostic = Diagnostic::error(codes::plugins::TOOK_NOTHING, message);
    diagnostic.notes = notes;
    Err(diagnostic.help("run \"byoc explain\" with the same options to list the reasons for each operator").into())
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

/// Returns `inputs`, with missing inputs read from a data set.
pub fn recorded_inputs(dir: &TestFolder, set: &TestSet, inputs: InputSources) -> Result<InputSources, Failure> {
    Ok(inputs.with_recorded(set.recorded_inputs(&frontend::signature(&dir.model)?)?))
}

/// Sets the backend options that apply to every run of a model. Compile-time, load-time and unknown options are left to
/// the build.
fn choose_run_options(args: &BuildArgs, session: &mut Session) {
    for (name, option, value) in &args.backend_options {
        if check_run_option(&session.registry, name, option, value).is_ok() {
            session.choices.run_options.set(base_name(name), option, value);
        }
    }
}

/// Sets the backend options for an artifact.
///
/// # Errors
/// If a backend or an option is unknown, or an option applies neither at load time nor at run time.
fn choose_load_options(path: &Path, args: &BuildArgs, session: &mut Session) -> Result<(), Failure> {
    for (name, option, value) in &args.backend_options {
        let mut backend = Backend::find(&session.registry, name)?;
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
        let options = session.choices.load_options.entry(name.clone()).or_default();
        options.insert(option.clone(), value.clone());
    }
    Ok(())
}

/// Reads, builds and loads a model or an artifact.
pub fn prepare(
    path: &Path,
    build_args: &BuildArgs,
    input: &InputArgs,
    session: &mut Session,
) -> Result<PreparedModel, Failure> {
    if is_artifact(path) {
        choose_load_options(path, build_args, session)?;
    }
    choose_run_options(build_args, session);
    let session = &*session;
    let inputs = input_sources(path, input)?;
    let is_host_alone = is_host_only(build_args)?;
    let start = Instant::now();
    let compile_model = || match is_artifact(path) {
        true if is_host_alone => Ok(artifact::open(path)?.into_compiled().on_host()),
        true => Ok(artifact::open(path)?.into_compiled()),
        false => Ok::<_, Failure>(build(path, build_args, session, &inputs)?.compiled),
    };
    let host_model = compile_model()?;
    let compile_time = if is_artifact(path) { Duration::ZERO } else { start.elapsed() };
    let start = Instant::now();
    let (model, warnings) =
        Model::load_sparing(session, host_model, build_options(build_args).cache_dir.as_deref(), compile_model)?;
    warnings.iter().for_each(render::print_diagnostic);
    check_load_offload(build_args, model.min_offload_share, &warnings)?;
    Ok(PreparedModel { model, inputs, compile_time, load_time: start.elapsed() })
}

/// Returns the last component of a path, or the entire path if it has no file name, for messages and case names.
pub fn name_of(path: &Path) -> String {
    let path: PathBuf = path.components().collect();
    path.file_name().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned())
}

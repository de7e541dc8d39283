//! From what the user typed to a model that is ready to run or to be looked at: the part that `run`, `bench`, `verify`,
//! `explain`, `source` and `compile` share.

use super::args::{BuildArgs, InputArgs};
use super::inputs::Given;
use super::interrupt::interruptible;
use super::{escape, render};
use crate::artifact;
use crate::build::{self, BuildOptions, Built, Reason};
use crate::error::Failure;
use crate::frontend::folder::{TestFolder, TestSet};
use crate::frontend::{self, LoadOptions};
use crate::model::Model;
use crate::session::{self, Session};
use byoc_core::diag::{Diagnostic, codes};
use indicatif::ProgressBar;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The backend that stands for the host alone.
const NONE: &str = "none";

/// A model that can run, and the inputs that were given for it.
pub struct Ready {
    /// The model.
    pub model: Model,
    /// The inputs.
    pub given: Given,
    /// How long reading and compiling took; nothing for an artifact.
    pub compile: Duration,
    /// How long loading took.
    pub load: Duration,
}

/// Starts logging, threads and plugins as the options say.
///
/// # Errors
/// E0403 when a backend is named as a target.
pub fn session(args: &BuildArgs) -> Result<Session, Failure> {
    if let Some(name) = &args.target {
        let message = format!("there are no targets here: \"{name}\" is named where nothing is meant");
        return Err(Diagnostic::error(codes::plugins::BACKEND_MISPLACED, message)
            .help(format!("a backend is named with --backend {name}"))
            .into());
    }
    session::log_to_stderr(args.talk.verbose);
    let threads = args.threads.map_or(0, usize::from);
    let mut session = match on_host(args)? {
        true => Session::without_plugins(threads)?,
        false => Session::new(&args.plugins.plugin_dirs, threads)?,
    };
    session.allow_native = args.allow_native;
    Ok(session)
}

/// Returns true if everything runs on the host: `--backend none`.
///
/// # Errors
/// E0403 when another backend is named beside it.
fn on_host(args: &BuildArgs) -> Result<bool, Failure> {
    let names: Vec<&str> = names(args).collect();
    match names.iter().position(|name| *name == NONE) {
        None => Ok(false),
        Some(_) if names.len() == 1 => Ok(true),
        Some(at) => {
            let other = names[usize::from(at == 0)];
            let message = format!("--backend {NONE} stands alone: found {other} beside it");
            Err(Diagnostic::error(codes::plugins::BACKEND_MISPLACED, message)
                .help(format!("leave out {NONE}, or everything else"))
                .into())
        }
    }
}

/// The backends that are named.
fn names(args: &BuildArgs) -> impl Iterator<Item = &str> {
    args.backend.iter().map(|name| name.trim()).filter(|name| !name.is_empty())
}

/// The options of a build.
pub fn build_options(args: &BuildArgs) -> BuildOptions {
    let cache_dir = match (&args.cache_dir, args.no_cache) {
        (_, true) => None,
        (Some(dir), false) => Some(dir.clone()),
        (None, false) => dirs::cache_dir().map(|d| d.join("byoc")),
    };
    BuildOptions {
        backends: names(args).filter(|name| *name != NONE).map(str::to_owned).collect(),
        backend_options: args.backend_options.clone(),
        cache_dir,
        print_after: args.print_after.clone(),
        time_passes: args.time_passes,
    }
}

/// Reads and builds a model that is not an artifact, and says what there is to say about it.
pub fn build(path: &Path, args: &BuildArgs, session: &Session, given: &Given) -> Result<Built, Failure> {
    if is_artifact(path) {
        return Err(Diagnostic::error(
            codes::plugins::BACKEND_MISPLACED,
            format!("{} is compiled already; a model is wanted here", path.display()),
        )
        .help(format!("\"byoc inspect {}\" shows what is in it", path.display()))
        .into());
    }
    let (open, dims): (Vec<_>, Vec<_>) = args.dims.iter().cloned().partition(|(_, size)| size.is_none());
    let mut load = LoadOptions {
        dims: dims.into_iter().filter_map(|(name, size)| Some((name, size?))).collect(),
        open: open.into_iter().map(|(name, _)| name).collect(),
        input_shapes: given.shapes(),
    };
    if given.has_image()
        && let Some((name, size)) = given.image_dims(&frontend::signature(path)?.inputs)
        && !load.open.contains(&name)
    {
        load.dims.entry(name).or_insert(size);
    }
    let spinner = spinner(format!("compiling {}", name_of(path)));
    let loaded = frontend::load(path, &load)?;
    let mut say = |text: &str| spinner.suspend(|| eprintln!("{}", escape::lines(text)));
    let built = {
        let _interruptible = interruptible(&session.cancel);
        build::build(session, loaded, &build_options(args), &mut say)?
    };
    spinner.finish_and_clear();
    let share = built.explanation.totals.offload_share;
    let offload = check_offload(args, share, || {
        let reasons = build::refusal_summary(&built.explanation);
        (build::because(&reasons.iter().collect::<Vec<_>>()), reasons.iter().map(Reason::to_string).collect())
    });
    // The error gives the same reasons as the warning that a backend took nothing.
    let said = |warning: &&Diagnostic| offload.is_ok() || warning.code != codes::plugins::TOOK_NOTHING;
    built.warnings.iter().filter(said).for_each(render::diagnostic);
    offload.map(|()| built)
}

/// Shows that work goes on, on a terminal only.
pub fn spinner(message: String) -> ProgressBar {
    let spinner = ProgressBar::new_spinner().with_message(escape::line(&message).into_owned());
    spinner.enable_steady_tick(Duration::from_millis(120));
    spinner
}

/// Holds the share of the FLOPs on backends against `--require-offload`; `reasons` says why it is not more, in
/// short and line by line.
fn check_offload(args: &BuildArgs, share: f64, reasons: impl FnOnce() -> (String, Vec<String>)) -> Result<(), Failure> {
    let Some(wanted) = &args.require_offload else { return Ok(()) };
    let (enough, words) = match wanted.as_str() {
        "any" => (share > 0.0, "more than none".to_owned()),
        text => match text.parse::<f64>() {
            Ok(least) if (0.0..=1.0).contains(&least) => (share >= least, format!("at least {:.1} %", 100.0 * least)),
            _ => {
                let message = format!("--require-offload={text}: a share between 0 and 1 is wanted");
                return Err(Failure::new(codes::plugins::TOOK_NOTHING, message));
            }
        },
    };
    if enough {
        return Ok(());
    }
    let (because, notes) = reasons();
    let why = if share > 0.0 { "" } else { &because };
    let message = format!("{:.1} % of the FLOPs are on the backends, {words} is wanted{why}", 100.0 * share);
    let mut diagnostic = Diagnostic::error(codes::plugins::TOOK_NOTHING, message);
    diagnostic.notes = notes;
    Err(diagnostic.help("\"byoc explain\" with the same options gives every operator its reasons").into())
}

/// Returns true if the file is an artifact, by its name.
pub fn is_artifact(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "byoc")
}

/// The inputs given, with the first data set of a folder in test-data layout behind them.
pub fn given(path: &Path, args: &InputArgs) -> Result<Given, Failure> {
    let given = Given::read(args)?;
    if !path.is_dir() {
        return Ok(given);
    }
    let folder = TestFolder::open(path)?;
    match folder.sets.first() {
        Some(set) => recorded(&folder, set, given),
        None => Ok(given),
    }
}

/// The inputs given, with those of a data set behind them.
pub fn recorded(folder: &TestFolder, set: &TestSet, given: Given) -> Result<Given, Failure> {
    let ports = frontend::signature(&folder.model)?.inputs;
    let names = ports.iter().map(|p| p.name.clone());
    Ok(given.or_recorded(names.zip(set.read_inputs(&ports)?)))
}

/// Reads, builds and loads a model, whatever it was given as.
pub fn ready(path: &Path, build_args: &BuildArgs, input: &InputArgs, session: &Session) -> Result<Ready, Failure> {
    if let (true, Some((name, option, _))) = (is_artifact(path), build_args.backend_options.first()) {
        let message =
            format!("{name}.{option} is set when a model is compiled, and {} is compiled already", path.display());
        return Err(Diagnostic::error(codes::plugins::UNKNOWN_OPTION, message)
            .help(format!("\"byoc inspect {}\" shows what was set", path.display()))
            .into());
    }
    let given = given(path, input)?;
    let host_alone = on_host(build_args)?;
    let start = Instant::now();
    let compiled = || match is_artifact(path) {
        true if host_alone => Ok(artifact::open(path)?.into_compiled().on_host()),
        true => Ok(artifact::open(path)?.into_compiled()),
        false => Ok::<_, Failure>(build(path, build_args, session, &given)?.compiled),
    };
    let first = compiled()?;
    let compile = if is_artifact(path) { Duration::ZERO } else { start.elapsed() };
    let start = Instant::now();
    let (model, warnings) =
        Model::load_sparing(session, first, build_options(build_args).cache_dir.as_deref(), compiled)?;
    warnings.iter().for_each(render::diagnostic);
    // What was compiled for a backend may have come back to the host when it was loaded.
    check_offload(build_args, model.offload_share, || {
        (String::new(), warnings.iter().map(|w| w.message.clone()).collect())
    })?;
    Ok(Ready { model, given, compile, load: start.elapsed() })
}

/// A path for messages and for the name of a case: its last part, or all of it when there is none.
pub fn name_of(path: &Path) -> String {
    let path: PathBuf = path.components().collect();
    path.file_name().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned())
}

//! The command line: every command with its options.

use crate::limits::parse_size;
use crate::quantize::method::Method;
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;
use std::time::Duration;

/// Compiles and runs neural-network models on backends loaded at run time.
#[derive(Debug, Parser)]
#[command(name = "byoc", version, max_term_width = 110)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// A command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a model and print its outputs.
    Run(RunArgs),
    /// Build an artifact, or print a stage of the compilation.
    Compile(CompileArgs),
    /// Say of each operator of the model where it runs, or every reason why not there.
    Explain(ExplainArgs),
    /// Run folders in ONNX test-data layout against their recorded outputs.
    Verify(VerifyArgs),
    /// Measure the latency of a model.
    Bench(BenchArgs),
    /// Run passes on a Relay program.
    Opt(OptArgs),
    /// Print the code that the backends generate for a model.
    Source(SourceArgs),
    /// Print what an artifact holds and needs.
    Inspect(InspectArgs),
    /// List the plugins found, and those that were refused.
    Plugins(PluginsArgs),
    /// Print the operator reference.
    Ops(OpsArgs),
    /// Explain an error code.
    Error(ErrorArgs),
    /// Turn a float model into one that computes with int8.
    Quantize(QuantizeArgs),
    /// Write a standard architecture with seeded weights as ONNX.
    Zoo(ZooArgs),
}

/// Which plugins there are.
#[derive(Args, Clone, Debug, Default)]
pub struct PluginDirArgs {
    /// Look for plugins here first (may be repeated).
    #[arg(long = "plugin-dir", value_name = "DIR")]
    pub plugin_dirs: Vec<PathBuf>,
}

/// How much is said on standard error.
#[derive(Args, Clone, Debug, Default)]
pub struct TalkArgs {
    /// Say more: each region call; twice for everything.
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Machine-readable output, one JSON object a line.
    #[arg(long)]
    pub json: bool,
}

/// How much a command may take.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct LimitArgs {
    /// End with an error unless all is done after this time, such as 30 or 0.5. By default there is no limit.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub timeout: Option<Duration>,
    /// Most memory for tensors and intermediate results, such as 2GiB or 512M. By default half of what is available to the
    /// process.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub max_memory: Option<usize>,
}

/// How a model is compiled.
#[derive(Args, Clone, Debug, Default)]
pub struct BuildArgs {
    /// Backends in priority order; "auto" takes every plugin that loads, "none" loads no plugin and runs everything on the
    /// host, artifacts too. Without it the host runs a model, and the plugins that it was compiled for an artifact.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub backend: Vec<String>,
    /// Set an option of a backend that --backend names, such as mychip.half=true; "byoc plugins show mychip" lists its options,
    /// with the values that each takes (may be repeated).
    #[arg(long = "backend-option", value_name = "NAME.OPTION=VALUE", value_parser = backend_option)]
    pub backend_options: Vec<(String, String, String)>,
    /// Not an option of this program: a backend is named with --backend.
    #[arg(long, value_name = "NAME", hide = true)]
    pub target: Option<String>,
    /// Fail unless the backends run at least this share of the FLOPs (without a share: more than none).
    #[arg(long, value_name = "SHARE", num_args = 0..=1, require_equals = true, default_missing_value = "any", value_parser = share)]
    pub require_offload: Option<String>,
    /// Bind a symbolic dimension, or with ? leave it open: the program then takes any size (may be repeated).
    #[arg(long = "dim", value_name = "NAME=N|?", value_parser = named_dim)]
    pub dims: Vec<(String, Option<usize>)>,
    /// Whether regions of an artifact may hold native code, which runs with the rights of this process.
    #[arg(long, value_name = "yes|no", env = "BYOC_ALLOW_NATIVE", default_value = "yes", action = clap::ArgAction::Set, value_parser = yes_or_no)]
    pub allow_native: bool,
    /// Number of threads.
    #[arg(long, value_name = "N", env = "BYOC_THREADS", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Where backends keep what they compiled, each up to the bytes of BYOC_CACHE_LIMIT (1G by default).
    #[arg(long, value_name = "DIR", env = "BYOC_CACHE_DIR")]
    pub cache_dir: Option<PathBuf>,
    /// Compile everything anew, whatever cache is named.
    #[arg(long)]
    pub no_cache: bool,
    /// Print the program after a pass, or after each one ("all"), on standard error.
    #[arg(long, value_name = "PASS")]
    pub print_after: Option<String>,
    /// Print how long each pass took, on standard error.
    #[arg(long)]
    pub time_passes: bool,
    /// How much it may take.
    #[command(flatten)]
    pub limits: LimitArgs,
    /// Which plugins there are.
    #[command(flatten)]
    pub plugins: PluginDirArgs,
    /// How much is said.
    #[command(flatten)]
    pub talk: TalkArgs,
}

/// Where the values of a run come from.
#[derive(Args, Clone, Debug, Default)]
pub struct InputArgs {
    /// A model input: a .npy, .npz or .pb file, random[:seed], ones or zeros (may be repeated).
    #[arg(long = "input", value_name = "NAME=FILE|random[:seed]|ones|zeros", value_parser = named_text)]
    pub inputs: Vec<(String, String)>,
    /// A picture for the model's one image input.
    #[arg(long, value_name = "FILE")]
    pub image: Option<PathBuf>,
    /// Subtracted from each channel of the picture, after division by 255.
    #[arg(long, value_name = "M,...", value_delimiter = ',', requires = "image", allow_negative_numbers = true)]
    pub mean: Vec<f64>,
    /// Divides each channel of the picture, after the mean is subtracted.
    #[arg(long, value_name = "S,...", value_delimiter = ',', requires = "image")]
    pub std: Vec<f64>,
}

/// `byoc run`.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// A .onnx, .relay or .byoc file, or a folder in ONNX test-data layout.
    pub model: PathBuf,
    /// Where the inputs come from.
    #[command(flatten)]
    pub input: InputArgs,
    /// Class names, one a line; the five most probable are printed.
    #[arg(long, value_name = "FILE")]
    pub labels: Option<PathBuf>,
    /// Write the outputs to a file; - is standard output.
    #[arg(long, value_name = "FILE.npz")]
    pub output: Option<PathBuf>,
    /// Print the inputs and outputs of the model and do not run it.
    #[arg(long)]
    pub describe: bool,
    /// Write a trace of the run that Perfetto shows; - is standard output.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// How it is compiled.
    #[command(flatten)]
    pub build: BuildArgs,
}

/// `byoc compile`.
#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("product").required(true).args(["output", "emit"]))]
pub struct CompileArgs {
    /// A .onnx or .relay file, or a folder in ONNX test-data layout.
    pub model: PathBuf,
    /// Write an artifact; - is standard output.
    #[arg(short, long, value_name = "FILE.byoc")]
    pub output: Option<PathBuf>,
    /// Print a stage instead.
    #[arg(long, value_enum)]
    pub emit: Option<Stage>,
    /// How it is compiled.
    #[command(flatten)]
    pub build: BuildArgs,
}

/// A stage that `byoc compile --emit` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Stage {
    /// The simplified program.
    Relay,
    /// The program with its regions.
    Partitioned,
    /// The graph executor's JSON.
    GraphJson,
    /// Each region's JSON.
    RegionJson,
    /// The code that backends generated.
    Source,
}

/// `byoc explain`.
#[derive(Args, Debug)]
pub struct ExplainArgs {
    /// A .onnx or .relay file, or a folder in ONNX test-data layout.
    pub model: PathBuf,
    /// Write a page that draws the graph, coloured by region; - is standard output.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// How it is compiled.
    #[command(flatten)]
    pub build: BuildArgs,
}

/// `byoc verify`.
#[derive(Args, Debug)]
pub struct VerifyArgs {
    /// Folders with model.onnx and test_data_set_N.
    #[arg(required = true, value_name = "DIR")]
    pub dirs: Vec<PathBuf>,
    /// Relative tolerance, as numpy's allclose.
    #[arg(long, default_value_t = 1e-3, value_parser = tolerance, allow_hyphen_values = true)]
    pub rtol: f64,
    /// Absolute tolerance, as numpy's allclose.
    #[arg(long, default_value_t = 1e-5, value_parser = tolerance, allow_hyphen_values = true)]
    pub atol: f64,
    /// Accept when max|a-b| / max|b| of each output is at most this, instead of allclose.
    #[arg(long, value_name = "X", value_parser = tolerance, allow_hyphen_values = true)]
    pub max_rel_err: Option<f64>,
    /// How it is compiled.
    #[command(flatten)]
    pub build: BuildArgs,
}

/// `byoc bench`.
#[derive(Args, Debug)]
pub struct BenchArgs {
    /// A .onnx, .relay or .byoc file, or a folder in ONNX test-data layout.
    pub model: PathBuf,
    /// Timed runs.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
    /// Where the inputs come from; random by default.
    #[command(flatten)]
    pub input: InputArgs,
    /// Write a trace of one run that Perfetto shows; - is standard output.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// How it is compiled.
    #[command(flatten)]
    pub build: BuildArgs,
}

/// `byoc opt`.
#[derive(Args, Debug)]
pub struct OptArgs {
    /// A Relay program.
    pub file: PathBuf,
    /// Passes to run, in order. Without any the program is printed as it is, and need not type.
    #[arg(long = "pass", value_name = "PASS,...", value_delimiter = ',')]
    pub passes: Vec<String>,
    /// A pattern file for merge_composite.
    #[arg(long, value_name = "FILE")]
    pub patterns: Option<PathBuf>,
    /// What target T supports, in priority order (may be repeated). `T=` supports its own composites alone, which are
    /// those named `T.x`.
    #[arg(long, value_name = "T=OP,...", value_parser = target)]
    pub annotate: Vec<(String, String)>,
    /// For convert_layout: the layout that an operator is to have, and of its kernel (may be repeated).
    #[arg(long = "layout", value_name = "OP=DATA[,KERNEL]", value_parser = named_text)]
    pub layouts: Vec<(String, String)>,
    /// Whether annotate_target gives tuples and references a target.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    pub include_non_call_ops: bool,
    /// Whether partition_graph moves constants into regions.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    pub bind_constants: bool,
    /// The module's name in the names of lifted functions.
    #[arg(long, value_name = "M", default_value = "default")]
    pub module_name: String,
    /// For inline_compiler_functions_bound_to.
    #[arg(long, value_name = "@F,...", value_delimiter = ',')]
    pub inline_bound_to: Vec<String>,
    /// Whose functions outline_ and mark_compiler_functions are about; all when not given.
    #[arg(long, value_name = "T")]
    pub compiler: Option<String>,
    /// Compare the result with this program instead of printing it.
    #[arg(long, value_name = "FILE")]
    pub expect: Option<PathBuf>,
    /// Print the program after a pass, or after each one ("all"), on standard error.
    #[arg(long, value_name = "PASS")]
    pub print_after: Option<String>,
    /// Print how long each pass took, on standard error.
    #[arg(long)]
    pub time_passes: bool,
    /// Stop after this many passes, to find the one that breaks a program.
    #[arg(long, value_name = "N")]
    pub pass_limit: Option<usize>,
    /// How much it may take.
    #[command(flatten)]
    pub limits: LimitArgs,
    /// How much is said.
    #[command(flatten)]
    pub talk: TalkArgs,
}

/// `byoc source`.
#[derive(Args, Debug)]
pub struct SourceArgs {
    /// A .onnx, .relay or .byoc file, or a folder in ONNX test-data layout.
    pub model: PathBuf,
    /// Only this region.
    #[arg(long, value_name = "S")]
    pub symbol: Option<String>,
    /// How it is compiled.
    #[command(flatten)]
    pub build: BuildArgs,
}

/// `byoc inspect`.
#[derive(Args, Debug)]
pub struct InspectArgs {
    /// An artifact.
    #[arg(value_name = "FILE.byoc")]
    pub file: PathBuf,
    /// How much it may take.
    #[command(flatten)]
    pub limits: LimitArgs,
    /// How much is said.
    #[command(flatten)]
    pub talk: TalkArgs,
}

/// `byoc plugins`.
#[derive(Args, Debug)]
pub struct PluginsArgs {
    /// What to do; the list when not given.
    #[command(subcommand)]
    pub command: Option<PluginsCommand>,
    /// Which plugins there are.
    #[command(flatten)]
    pub plugins: PluginDirArgs,
    /// How much is said.
    #[command(flatten)]
    pub talk: TalkArgs,
}

/// `byoc plugins ...`.
#[derive(Debug, Subcommand)]
pub enum PluginsCommand {
    /// List what was found where.
    List(PluginsListArgs),
    /// Print what a plugin says of itself, with its pattern table.
    Show(PluginsShowArgs),
    /// Say what is wrong with a file.
    Check(PluginsCheckArgs),
    /// Write a folder with a new plugin that builds, drops in and runs as it stands.
    New(PluginsNewArgs),
    /// Try what a plugin claims: generated cases against the reference.
    Test(PluginsTestArgs),
    /// What `test` starts for itself.
    #[command(hide = true)]
    TestWorker(TestWorkerArgs),
}

/// `byoc plugins list`.
#[derive(Args, Debug)]
pub struct PluginsListArgs {
    /// Which plugins there are.
    #[command(flatten)]
    pub plugins: PluginDirArgs,
    /// How much is said.
    #[command(flatten)]
    pub talk: TalkArgs,
}

/// `byoc plugins show`.
#[derive(Args, Debug)]
pub struct PluginsShowArgs {
    /// The backend's name.
    pub name: String,
    /// Which plugins there are.
    #[command(flatten)]
    pub plugins: PluginDirArgs,
    /// How much is said.
    #[command(flatten)]
    pub talk: TalkArgs,
}

/// `byoc plugins check`.
#[derive(Args, Debug)]
pub struct PluginsCheckArgs {
    /// A shared library.
    pub file: PathBuf,
    /// How much is said.
    #[command(flatten)]
    pub talk: TalkArgs,
}

/// `byoc plugins new`.
#[derive(Args, Debug)]
pub struct PluginsNewArgs {
    /// The plugin's name: letters, digits and _. The folder has it too.
    pub name: PathBuf,
    /// One file of C and a Makefile, instead of a Rust crate.
    #[arg(long)]
    pub c: bool,
    /// Refer to the sources of byoc-plugin-api in this folder, instead of writing a copy of them beside the plugin.
    #[arg(long, value_name = "DIR", conflicts_with = "c")]
    pub api: Option<PathBuf>,
}

/// `byoc plugins test`.
#[derive(Args, Debug)]
pub struct PluginsTestArgs {
    /// A shared library, or the name of a backend.
    #[arg(value_name = "FILE|NAME")]
    pub plugin: PathBuf,
    /// What the cases are drawn from: the same seed gives the same cases.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Cases for each operator and each pattern.
    #[arg(long, value_name = "N", default_value_t = 24)]
    pub cases: usize,
    /// Only operators and patterns whose name has this in it.
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Run one case that an earlier run wrote.
    #[arg(long, value_name = "FILE.relay")]
    pub case: Option<PathBuf>,
    /// Where failing cases are written.
    #[arg(long, value_name = "DIR", default_value = "byoc-conformance")]
    pub out: PathBuf,
    /// How long an entry of the plugin may take.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub time_limit: u64,
    /// The most threads that the plugin is given; it is tried with one as well.
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub threads: usize,
    /// Which plugins there are.
    #[command(flatten)]
    pub plugins: PluginDirArgs,
    /// How much is said.
    #[command(flatten)]
    pub talk: TalkArgs,
}

/// `byoc plugins test-worker`.
#[derive(Args, Debug)]
pub struct TestWorkerArgs {
    /// A shared library.
    pub file: PathBuf,
    /// The most threads that the plugin is given.
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub threads: usize,
    /// Which plugins there are.
    #[command(flatten)]
    pub plugins: PluginDirArgs,
}

/// `byoc ops`.
#[derive(Args, Debug)]
pub struct OpsArgs {
    /// An operator; all of them when not given.
    pub name: Option<String>,
    /// How much is said.
    #[command(flatten)]
    pub talk: TalkArgs,
}

/// `byoc error`.
#[derive(Args, Debug)]
pub struct ErrorArgs {
    /// A code such as E0401; all of them when not given.
    pub code: Option<String>,
}

/// `byoc quantize`.
#[derive(Args, Debug)]
pub struct QuantizeArgs {
    /// A float model: a .onnx or .relay file, or a folder in ONNX test-data layout.
    pub model: PathBuf,
    /// Samples of the model's inputs: an .npz with an entry for each input, a folder of pictures, or random[:seed].
    #[arg(long, value_name = "DATA")]
    pub calibrate: String,
    /// Where to write the quantized model; its weights go beside it, or with - into the text on standard output.
    #[arg(short, long, value_name = "FILE.relay")]
    pub output: PathBuf,
    /// Quantize as this backend declares; of several, as the first that declares a scheme.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub backend: Vec<String>,
    /// Set the scheme by hand: symmetric or asymmetric, with any of uint8, per-tensor, power-of-two.
    #[arg(long, value_name = "SCHEME")]
    pub scheme: Option<String>,
    /// How the range of an activation is chosen: min-max, percentile[:P], entropy or mse.
    #[arg(long, value_name = "METHOD", default_value = "mse", value_parser = Method::parse)]
    pub method: Method,
    /// Layers that stay in float: names, "first" (the first convolution; what holds when nothing is given) or "none".
    #[arg(long, value_name = "NAME,...|first|none", value_delimiter = ',')]
    pub keep: Vec<String>,
    /// Keep the most sensitive layers in float until the loss is at most this: right answers lost (a share) where there
    /// are labels, else 1 - cosine of the outputs.
    #[arg(long, value_name = "X", value_parser = loss)]
    pub max_loss: Option<f64>,
    /// The right class of each sample: an array, or a text with one number a line.
    #[arg(long, value_name = "FILE")]
    pub labels: Option<PathBuf>,
    /// Use at most so many samples (random data: so many, 32 by default).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub samples: Option<u32>,
    /// Subtracted from each channel of a picture, after division by 255.
    #[arg(long, value_name = "M,...", value_delimiter = ',', allow_negative_numbers = true)]
    pub mean: Vec<f64>,
    /// Divides each channel of a picture, after the mean is subtracted.
    #[arg(long, value_name = "S,...", value_delimiter = ',')]
    pub std: Vec<f64>,
    /// Bind a symbolic dimension for good (may be repeated); the others stay open where the model allows it.
    #[arg(long = "dim", value_name = "NAME=N", value_parser = named_number)]
    pub dims: Vec<(String, usize)>,
    /// Number of threads.
    #[arg(long, value_name = "N", env = "BYOC_THREADS", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// How much it may take.
    #[command(flatten)]
    pub limits: LimitArgs,
    /// Which plugins there are.
    #[command(flatten)]
    pub plugins: PluginDirArgs,
    /// How much is said.
    #[command(flatten)]
    pub talk: TalkArgs,
}

/// `byoc zoo`.
#[derive(Args, Debug)]
pub struct ZooArgs {
    /// An architecture.
    pub name: String,
    /// Where to write it; - is standard output.
    #[arg(short, long, value_name = "FILE.onnx")]
    pub output: PathBuf,
    /// Seed of the weights.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
}

impl Command {
    /// How much the command may take; nothing is said of those that read no model.
    pub fn limits(&self) -> LimitArgs {
        match self {
            Command::Run(args) => args.build.limits,
            Command::Compile(args) => args.build.limits,
            Command::Explain(args) => args.build.limits,
            Command::Verify(args) => args.build.limits,
            Command::Bench(args) => args.build.limits,
            Command::Source(args) => args.build.limits,
            Command::Opt(args) => args.limits,
            Command::Quantize(args) => args.limits,
            Command::Inspect(args) => args.limits,
            Command::Plugins(_) | Command::Ops(_) | Command::Error(_) | Command::Zoo(_) => LimitArgs::default(),
        }
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| *seconds > 0.0);
    let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.ok_or_else(|| "a number of seconds above 0 is wanted".to_owned())
}

fn named_text(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("NAME=VALUE is wanted".to_owned()),
    }
}

fn yes_or_no(text: &str) -> Result<bool, String> {
    match text {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err("yes or no is wanted".to_owned()),
    }
}

fn backend_option(text: &str) -> Result<(String, String, String), String> {
    let parts = text.split_once('=').and_then(|(key, value)| Some((key.split_once('.')?, value)));
    match parts {
        Some(((name, option), value)) if ![name, option, value].contains(&"") => {
            Ok((name.to_owned(), option.to_owned(), value.to_owned()))
        }
        _ => Err("NAME.OPTION=VALUE is wanted: a backend, one of its options, and what it is to be".to_owned()),
    }
}

fn target(text: &str) -> Result<(String, String), String> {
    match text.split_once('=').unwrap_or((text, "")) {
        ("", _) => Err("TARGET=OPERATOR,... is wanted".to_owned()),
        (target, operators) => Ok((target.to_owned(), operators.to_owned())),
    }
}

fn loss(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(loss) if (0.0..=1.0).contains(&loss) => Ok(loss),
        _ => Err("a number from 0 to 1 is wanted".to_owned()),
    }
}

fn tolerance(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number >= 0.0 => Ok(number),
        _ => Err("expected a number of at least 0".to_owned()),
    }
}

/// A share of the FLOPs, or `any`: what `--require-offload` alone stands for.
fn share(text: &str) -> Result<String, String> {
    match text.parse::<f64>() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(text.to_owned()),
        _ if text == "any" => Ok(text.to_owned()),
        _ => Err("expected a share from 0 to 1".to_owned()),
    }
}

fn named_dim(text: &str) -> Result<(String, Option<usize>), String> {
    match text.strip_suffix("=?") {
        Some(name) if !name.is_empty() => Ok((name.to_owned(), None)),
        _ => named_number(text).map(|(name, size)| (name, Some(size))),
    }
}

fn named_number(text: &str) -> Result<(String, usize), String> {
    let (name, value) = named_text(text)?;
    let number = value.parse().map_err(|_| format!("{value} is no number of elements"))?;
    Ok((name, number))
}

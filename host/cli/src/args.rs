//! Command line: the commands and their options.

use super::architectures::ARCHITECTURES;
use super::wrap::wrap;
use byoc::ComputeFormat;
use byoc::OnFailure;
use byoc::runtime::limits::parse_size;
use byoc_core::pass::manager::PASSES;
use byoc_quantize::method::Method;
use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Compiles and runs neural-network models on backends loaded at run time.
#[derive(Debug, Parser)]
#[command(name = "byoc", version, max_term_width = 110)]
pub struct Cli {
    /// Command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// Subcommands of `byoc`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a model and print its outputs.
    Run(RunArgs),
    /// Build an artifact, or print a stage of the compilation.
    Compile(CompileArgs),
    /// Show the placement of each operator of the model, and the reasons of the backends that refused it.
    Explain(ExplainArgs),
    /// Write an artifact together with everything needed to run it.
    Bundle(BundleArgs),
    /// Export a model as a C program.
    Export(ExportArgs),
    /// Run models in ONNX test-data layout and compare their outputs with the recorded ones.
    Verify(VerifyArgs),
    /// Measure the latency of a model.
    Bench(BenchArgs),
    /// Run passes on a Relay module.
    Opt(OptArgs),
    /// Print the code that the backends generate for a model.
    Source(SourceArgs),
    /// Print the contents and requirements of an artifact.
    Inspect(InspectArgs),
    /// List the plugins found, including the rejected ones.
    Plugins(PluginsArgs),
    /// Print the operator reference.
    Ops(OpsArgs),
    /// Explain an error code.
    Error(ErrorArgs),
    /// Quantize a float model to int8.
    Quantize(QuantizeArgs),
    /// Write a standard architecture with seeded weights as ONNX.
    Zoo(ZooArgs),
    /// Serve models over HTTP and gRPC with the Open Inference Protocol.
    Serve(ServeArgs),
}

/// Directories searched for plugins.
#[derive(Args, Clone, Debug, Default)]
pub struct PluginDirArgs {
    /// Plugin search path, searched first (may be repeated).
    #[arg(long = "plugin-dir", value_name = "DIR")]
    pub plugin_dirs: Vec<PathBuf>,
}

/// Diagnostic output options.
#[derive(Args, Clone, Debug, Default)]
pub struct DiagnosticArgs {
    /// Log verbosity: -v logs the loading of plugins, code generation and each region call, -vv passes and verdicts too.
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Machine-readable output, one JSON object per line.
    #[arg(long)]
    pub json: bool,
}

/// Limits on time and memory.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct LimitArgs {
    /// Maximum run time of the command in seconds, such as 30 or 0.5. No limit by default.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub timeout: Option<Duration>,
    /// Maximum memory for tensors and intermediate results, such as 2GiB or 512M. By default half of the memory
    /// available to the process.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub max_memory: Option<usize>,
}

/// Compilation options.
#[derive(Args, Clone, Debug, Default)]
pub struct BuildArgs {
    /// Backends in priority order; "auto" selects every plugin that loads, "none" loads no plugin and runs everything
    /// on the host, including artifacts. mychip@1 is the backend mychip on its device 1. By default a model runs on the
    /// host, and an artifact on the plugins it was compiled for.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub backend: Vec<String>,
    /// Option for a backend named by --backend, such as mychip.half=true; "byoc plugins show mychip" lists its options
    /// with their values. For an artifact, a load-time or run-time option (may be repeated).
    #[arg(long = "backend-option", value_name = "NAME.OPTION=VALUE", value_parser = parse_backend_option)]
    pub backend_options: Vec<(String, String, String)>,
    /// Lowest precision of computation that a float32 model allows: f32, tf32, bf16 or f16. bf16 and f16 allow tf32 too.
    /// An option of a backend may allow that backend more.
    #[arg(long, value_name = "FORMAT", default_value = "f32", value_parser = ComputeFormat::from_str)]
    pub precision: ComputeFormat,
    /// Device of a backend, such as mychip=1; "byoc plugins show mychip" lists its devices (may be repeated).
    #[arg(long = "device", value_name = "NAME=ID", value_parser = parse_device)]
    pub devices: Vec<(String, String)>,
    /// Unsupported option; backends are selected with --backend.
    #[arg(long, value_name = "NAME", hide = true)]
    pub target: Option<String>,
    /// Minimum share of the FLOPs on backends, below which the command fails; without a value, any share above zero.
    /// With sizes listed by --dim, it applies to each of them.
    #[arg(long, value_name = "SHARE", num_args = 0..=1, require_equals = true, default_missing_value = "any", value_parser = parse_share)]
    pub require_offload: Option<Share>,
    /// Contract that the build has to keep, or else the command fails; by default, byoc.toml beside the model.
    #[arg(long, value_name = "FILE")]
    pub contract: Option<PathBuf>,
    /// Fate of a region that its backend fails to compile: next asks the next backend, then splits the region around what
    /// fails, then leaves that to the host; split begins with the split; host leaves the region to the host;
    /// error fails. With error, a region that does not load or loses its device fails as well.
    #[arg(long, value_name = "next|split|host|error", default_value = "next", hide_default_value = true, value_parser = parse_on_failure)]
    pub on_failure: OnFailure,
    /// Fixed value for a symbolic dimension, or ? to keep the dimension symbolic and accept any value at run time, or
    /// several values to keep the dimension symbolic and add a specialized program per value (may be repeated).
    #[arg(long = "dim", value_name = "NAME=N|N,N..|?", value_parser = parse_named_dim)]
    pub dims: Vec<(String, DimChoice)>,
    /// Permission to load artifact regions with native code, which runs with the privileges of this process.
    #[arg(long, value_name = "yes|no", env = "BYOC_ALLOW_NATIVE", default_value = "yes", action = clap::ArgAction::Set, value_parser = parse_yes_or_no)]
    pub allow_native: bool,
    /// Number of threads.
    #[arg(long, value_name = "N", env = "BYOC_THREADS", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Cache directory of the backends; BYOC_CACHE_LIMIT limits the cache of each backend in bytes (1G by default).
    #[arg(long, value_name = "DIR", env = "BYOC_CACHE_DIR")]
    pub cache_dir: Option<PathBuf>,
    /// Compilation without the cache.
    #[arg(long)]
    pub no_cache: bool,
    /// Pass after which the module is printed on standard error, or "all".
    #[arg(long, value_name = "PASS")]
    pub print_after: Option<String>,
    /// Time of each pass, printed on standard error.
    #[arg(long)]
    pub time_passes: bool,
    /// Limits on time and memory.
    #[command(flatten)]
    pub limits: LimitArgs,
    /// Directories searched for plugins.
    #[command(flatten)]
    pub plugins: PluginDirArgs,
    /// Diagnostic output options.
    #[command(flatten)]
    pub diagnostics: DiagnosticArgs,
}

/// Sources of the input values of a run.
#[derive(Args, Clone, Debug, Default)]
pub struct InputArgs {
    /// Value of a model input: a .npy, .npz or .pb file, random[:seed], ones or zeros (may be repeated).
    #[arg(long = "input", value_name = "NAME=FILE|random[:seed]|ones|zeros", value_parser = parse_named_text)]
    pub inputs: Vec<(String, String)>,
    /// Image for the model's only image input.
    #[arg(long, value_name = "FILE")]
    pub image: Option<PathBuf>,
    /// Mean of each channel, subtracted from the image after division by 255.
    #[arg(long, value_name = "M,...", value_delimiter = ',', requires = "image", allow_negative_numbers = true)]
    pub mean: Vec<f64>,
    /// Standard deviation of each channel, by which the image is divided after the mean is subtracted.
    #[arg(long, value_name = "S,...", value_delimiter = ',', requires = "image")]
    pub std: Vec<f64>,
}

/// Arguments of `byoc run`.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// Model: a .onnx, .relay or .byoc file, or a directory in ONNX test-data layout.
    pub model: PathBuf,
    /// Sources of the input values.
    #[command(flatten)]
    pub input: InputArgs,
    /// Class names, one per line; the five most probable classes are printed.
    #[arg(long, value_name = "FILE")]
    pub labels: Option<PathBuf>,
    /// File for the outputs: .npz, or .npy for a single output; - is standard output.
    #[arg(long, value_name = "FILE.npz")]
    pub output: Option<PathBuf>,
    /// Description of the model's inputs and outputs; the model is not run.
    #[arg(long)]
    pub describe: bool,
    /// File for a trace of the run in Perfetto format; - is standard output.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Compilation options.
    #[command(flatten)]
    pub build: BuildArgs,
}

/// Arguments of `byoc compile`.
#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("product").required(true).multiple(true).args(["output", "emit"]))]
pub struct CompileArgs {
    /// Model: a .onnx or .relay file, or a directory in ONNX test-data layout.
    pub model: PathBuf,
    /// File for the artifact, or for what --emit onnx and --emit relay write; - is standard output.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Stage of the compilation to print instead of writing an artifact; onnx and relay write the model to the output.
    #[arg(long, value_enum)]
    pub emit: Option<Stage>,
    /// Stage of the model that --emit onnx writes: imported, quantized (integers between quantizations), simplified (the
    /// default), or partitioned, where each region is a local function.
    #[arg(long, value_name = "STAGE", value_parser = ["imported", "quantized", "simplified", "partitioned"])]
    pub stage: Option<String>,
    /// Operator set of --emit onnx; by default 17, or the lowest after it that has all operators.
    #[arg(long, value_name = "N")]
    pub opset: Option<i64>,
    /// Form of quantized operators of --emit onnx: qdq, or integer (ConvInteger, MatMulInteger).
    #[arg(long, value_name = "FORM", value_parser = ["qdq", "integer"], default_value = "qdq")]
    pub form: String,
    /// Compilation options.
    #[command(flatten)]
    pub build: BuildArgs,
}

/// Stage that `byoc compile --emit` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Stage {
    /// Simplified module.
    Relay,
    /// Model as ONNX.
    Onnx,
    /// Partitioned module.
    Partitioned,
    /// Input of the graph executor as JSON.
    GraphJson,
    /// Graph of each region as JSON.
    RegionJson,
    /// Code generated by the backends.
    Source,
}

/// Arguments of `byoc serve`, passed on to the `byoc-serve` executable.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub struct ServeArgs {
    /// Models and options; "byoc serve --help" lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    pub arguments: Vec<OsString>,
}

/// Arguments of `byoc bundle`.
#[derive(Args, Debug)]
pub struct BundleArgs {
    /// Artifact.
    #[arg(value_name = "FILE.byoc")]
    pub artifact: PathBuf,
    /// Directory for the bundle: new, empty, or an earlier bundle.
    #[arg(short, long, value_name = "DIR")]
    pub output: PathBuf,
    /// Replace the directory, whatever it contains.
    #[arg(long)]
    pub force: bool,
    /// Executable that runs the artifact in the bundle [default: byoc-run in the directory of byoc].
    #[arg(long, value_name = "FILE")]
    pub runner: Option<PathBuf>,
    /// Limits on time and memory.
    #[command(flatten)]
    pub limits: LimitArgs,
    /// Directories searched for plugins.
    #[command(flatten)]
    pub plugins: PluginDirArgs,
    /// Diagnostic output options.
    #[command(flatten)]
    pub diagnostics: DiagnosticArgs,
}

/// Arguments of `byoc export`.
#[derive(Args, Debug)]
pub struct ExportArgs {
    /// Model: a .onnx or .relay file, or a directory in ONNX test-data layout.
    pub model: PathBuf,
    /// Directory for the C project.
    #[arg(long, value_name = "DIR")]
    pub c: PathBuf,
    /// Prefix of all names in the C code.
    #[arg(long, value_name = "NAME", default_value = "model")]
    pub prefix: String,
    /// External function that computes an operator, such as "nn.conv2d=my_conv2d(my_header.h)", or "nn.conv2d:OHWI=..."
    /// with the layout of its weights (may be repeated).
    #[arg(long = "extern", value_name = "OP[:LAYOUT]=FUNCTION(HEADER)")]
    pub externs: Vec<String>,
    /// Weight storage: arrays in the source, or a separate file.
    #[arg(long, value_name = "FORM", value_enum, default_value_t = WeightsForm::Source)]
    pub weights: WeightsForm,
    /// Float16 instead of float32 storage for the weights of convolutions, dense layers, matrix products and tables.
    #[arg(long)]
    pub half_weights: bool,
    /// Input values for checking the program.
    #[command(flatten)]
    pub input: InputArgs,
    /// Compilation options.
    #[command(flatten)]
    pub build: BuildArgs,
}

/// Weight storage of an exported program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum WeightsForm {
    /// Arrays in the C source.
    Source,
    /// Separate file that the program links, maps or reads.
    File,
}

/// Arguments of `byoc explain`.
#[derive(Args, Debug)]
pub struct ExplainArgs {
    /// Model: a .onnx or .relay file, or a directory in ONNX test-data layout.
    pub model: PathBuf,
    /// File for an HTML page with the graph colored by region; - is standard output.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Complete output: full reasons in each row, no truncation, and the types of the regions.
    #[arg(long)]
    pub full: bool,
    /// Operators to tell everything about instead: by name in the model, or by type, with * for any text.
    #[arg(long, value_name = "OPERATOR", conflicts_with_all = ["html", "full"])]
    pub why: Option<String>,
    /// Changes with which backends take operators that they refused: each is tried on a copy of the model and listed with
    /// its command if operators move. All plugins found are loaded.
    #[arg(long)]
    pub suggest: bool,
    /// Earlier state for comparison: a model, an artifact, or the output of byoc explain --json. The operators that moved
    /// are listed instead of the placement, with the reasons.
    #[arg(long, value_name = "OLD", conflicts_with_all = ["html", "full", "why", "suggest"])]
    pub diff: Option<PathBuf>,
    /// File for the comparison as Markdown, for a comment on a pull request; - is standard output.
    #[arg(long, value_name = "FILE", requires = "diff")]
    pub markdown: Option<PathBuf>,
    /// File for the outcome of the contract in SARIF 2.1.0; - is standard output.
    #[arg(long, value_name = "FILE")]
    pub sarif: Option<PathBuf>,
    /// File for the outcome of the contract in JUnit's XML; - is standard output.
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,
    /// Compilation options.
    #[command(flatten)]
    pub build: BuildArgs,
}

/// Arguments of `byoc verify`.
#[derive(Args, Debug)]
pub struct VerifyArgs {
    /// Directories with model.onnx and test_data_set_N.
    #[arg(required = true, value_name = "DIR")]
    pub dirs: Vec<PathBuf>,
    /// Relative tolerance, as in NumPy's allclose.
    #[arg(long, default_value_t = 1e-3, value_parser = parse_tolerance, allow_hyphen_values = true)]
    pub rtol: f64,
    /// Absolute tolerance, as in NumPy's allclose.
    #[arg(long, default_value_t = 1e-5, value_parser = parse_tolerance, allow_hyphen_values = true)]
    pub atol: f64,
    /// Limit on max|a-b| / max|b| of each output; replaces allclose.
    #[arg(long, value_name = "X", value_parser = parse_tolerance, allow_hyphen_values = true)]
    pub max_rel_err: Option<f64>,
    /// Separate process for each case, so that a crash fails only that case.
    #[arg(long)]
    pub isolate_cases: bool,
    /// Index of the case that a process of --isolate-cases runs.
    #[arg(long, value_name = "N", hide = true)]
    pub only_case: Option<usize>,
    /// Compilation options.
    #[command(flatten)]
    pub build: BuildArgs,
}

/// Arguments of `byoc bench`.
#[derive(Args, Debug)]
pub struct BenchArgs {
    /// Model: a .onnx, .relay or .byoc file, or a directory in ONNX test-data layout.
    pub model: PathBuf,
    /// Number of timed runs.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
    /// Sources of the input values; random by default.
    #[command(flatten)]
    pub input: InputArgs,
    /// File for a trace of one run in Perfetto format; - is standard output.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Compilation options.
    #[command(flatten)]
    pub build: BuildArgs,
}

/// Arguments of `byoc opt`.
#[derive(Args, Debug)]
#[command(after_help = pass_list())]
pub struct OptArgs {
    /// Relay module, or an ONNX model.
    pub file: PathBuf,
    /// Passes to run, in order. Without passes the module is printed unchanged and need not type-check.
    #[arg(long = "pass", value_name = "PASS,...", value_delimiter = ',')]
    pub passes: Vec<String>,
    /// Pattern file for merge_composite.
    #[arg(long, value_name = "FILE")]
    pub patterns: Option<PathBuf>,
    /// Operators that target T supports, in priority order (may be repeated). With `T=`, the target supports only its
    /// own composites, named `T.x`.
    #[arg(long, value_name = "T=OP,...", value_parser = parse_annotation)]
    pub annotate: Vec<(String, String)>,
    /// Desired data and kernel layouts of an operator, for convert_layout (may be repeated).
    #[arg(long = "layout", value_name = "OP=DATA[,KERNEL]", value_parser = parse_named_text)]
    pub layouts: Vec<(String, String)>,
    /// Annotation of tuples and references by annotate_target.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    pub include_non_call_ops: bool,
    /// Binding of constants into regions by partition_graph.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    pub bind_constants: bool,
    /// Module name in the names of lifted functions.
    #[arg(long, value_name = "M", default_value = "default")]
    pub module_name: String,
    /// Functions for inline_compiler_functions_bound_to.
    #[arg(long, value_name = "@F,...", value_delimiter = ',')]
    pub inline_bound_to: Vec<String>,
    /// Compiler whose functions the outline_ and mark_compiler_functions passes process; all by default.
    #[arg(long, value_name = "T")]
    pub compiler: Option<String>,
    /// File for the result: .onnx, or .relay with its weights in a file next to it; standard output by default, with the
    /// weights in the text.
    #[arg(short, long, value_name = "FILE", conflicts_with = "expect")]
    pub output: Option<PathBuf>,
    /// Operator set of an .onnx output; by default 17, or the lowest after it that has all operators.
    #[arg(long, value_name = "N")]
    pub opset: Option<i64>,
    /// File with the expected module; the result is compared with it instead of printed.
    #[arg(long, value_name = "FILE")]
    pub expect: Option<PathBuf>,
    /// Pass after which the module is printed on standard error, or "all".
    #[arg(long, value_name = "PASS")]
    pub print_after: Option<String>,
    /// Time of each pass, printed on standard error.
    #[arg(long)]
    pub time_passes: bool,
    /// Maximum number of passes to run, for bisecting a faulty pass.
    #[arg(long, value_name = "N")]
    pub pass_limit: Option<usize>,
    /// Limits on time and memory.
    #[command(flatten)]
    pub limits: LimitArgs,
    /// Diagnostic output options.
    #[command(flatten)]
    pub diagnostics: DiagnosticArgs,
}

/// Arguments of `byoc source`.
#[derive(Args, Debug)]
pub struct SourceArgs {
    /// Model: a .onnx, .relay or .byoc file, or a directory in ONNX test-data layout.
    pub model: PathBuf,
    /// Symbol of the region to print; all regions by default.
    #[arg(long, value_name = "S")]
    pub symbol: Option<String>,
    /// Stage to print: the operators that share a loop nest, the nests, the nests as their schedules transform them, or
    /// the generated code. Stages before the text exist for backends that generate loop nests.
    #[arg(long, value_name = "STAGE", value_enum, default_value_t = SourceStage::Text)]
    pub stage: SourceStage,
    /// Compilation options.
    #[command(flatten)]
    pub build: BuildArgs,
}

/// Stage of a region on the way to its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum SourceStage {
    /// Groups of operators, each of which becomes a loop nest.
    Group,
    /// Loop nests.
    Nest,
    /// Steps of each schedule, and the nests that they make.
    Schedule,
    /// Generated code.
    Text,
}

/// Arguments of `byoc inspect`.
#[derive(Args, Debug)]
pub struct InspectArgs {
    /// Artifact to inspect.
    #[arg(value_name = "FILE.byoc")]
    pub file: PathBuf,
    /// Complete listings of the regions, such as every instruction of a device program, instead of summaries.
    #[arg(long)]
    pub listing: bool,
    /// Limits on time and memory.
    #[command(flatten)]
    pub limits: LimitArgs,
    /// Search path for the plugins that print the regions.
    #[command(flatten)]
    pub plugins: PluginDirArgs,
    /// Diagnostic output options.
    #[command(flatten)]
    pub diagnostics: DiagnosticArgs,
}

/// Arguments of `byoc plugins`.
#[derive(Args, Debug)]
pub struct PluginsArgs {
    /// Subcommand; `list` by default.
    #[command(subcommand)]
    pub command: Option<PluginsCommand>,
    /// Directories searched for plugins.
    #[command(flatten)]
    pub plugins: PluginDirArgs,
    /// Diagnostic output options.
    #[command(flatten)]
    pub diagnostics: DiagnosticArgs,
}

/// Subcommands of `byoc plugins`.
#[derive(Debug, Subcommand)]
pub enum PluginsCommand {
    /// List the plugins found and their files.
    List(PluginsListArgs),
    /// Print the description of a plugin, with its pattern table.
    Show(PluginsShowArgs),
    /// Check a plugin file and print its errors.
    Check(PluginsCheckArgs),
    /// Create a directory with a new plugin that builds and runs unchanged.
    New(PluginsNewArgs),
    /// Renew the copy of the boundary in the directory of a plugin.
    Update(PluginsUpdateArgs),
    /// Test the claims of a plugin with generated cases against the reference.
    Test(PluginsTestArgs),
    /// Run the worker process of `test`.
    #[command(hide = true)]
    TestWorker(TestWorkerArgs),
}

/// Arguments of `byoc plugins list`.
#[derive(Args, Debug)]
pub struct PluginsListArgs {
    /// Directories searched for plugins.
    #[command(flatten)]
    pub plugins: PluginDirArgs,
    /// Diagnostic output options.
    #[command(flatten)]
    pub diagnostics: DiagnosticArgs,
}

/// Arguments of `byoc plugins show`.
#[derive(Args, Debug)]
pub struct PluginsShowArgs {
    /// Name of the backend.
    pub name: String,
    /// Directories searched for plugins.
    #[command(flatten)]
    pub plugins: PluginDirArgs,
    /// Diagnostic output options.
    #[command(flatten)]
    pub diagnostics: DiagnosticArgs,
}

/// Arguments of `byoc plugins check`.
#[derive(Args, Debug)]
pub struct PluginsCheckArgs {
    /// Shared library.
    pub file: PathBuf,
    /// Diagnostic output options.
    #[command(flatten)]
    pub diagnostics: DiagnosticArgs,
}

/// Arguments of `byoc plugins new`.
#[derive(Args, Debug)]
pub struct PluginsNewArgs {
    /// Name of the plugin and its directory: letters, digits and _.
    pub name: PathBuf,
    /// C file and Makefile instead of a Rust crate.
    #[arg(long)]
    pub c: bool,
    /// Backend around a compiler that is a command and takes ONNX files, instead of one that takes single operators.
    #[arg(long)]
    pub onnx: bool,
    /// Directory with the sources of byoc-plugin-api; by default a copy is written next to the plugin.
    #[arg(long, value_name = "DIR", conflicts_with = "c")]
    pub api: Option<PathBuf>,
}

/// Arguments of `byoc plugins update`.
#[derive(Args, Debug)]
pub struct PluginsUpdateArgs {
    /// Directory of the plugin, as "byoc plugins new" made it.
    pub dir: PathBuf,
}

/// Arguments of `byoc plugins test`.
#[derive(Args, Debug)]
pub struct PluginsTestArgs {
    /// Shared library, or name of a backend.
    #[arg(value_name = "FILE|NAME")]
    pub plugin: PathBuf,
    /// Seed of the cases; the same seed produces the same cases.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Number of cases for each operator and each pattern.
    #[arg(long, value_name = "N", default_value_t = 24)]
    pub cases: usize,
    /// Entry after which a case ends: compile, for a backend whose device this machine lacks.
    #[arg(long, value_name = "compile", value_parser = ["compile"])]
    pub until: Option<String>,
    /// Substring of the names of the operators and patterns to test.
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Name of a claim that may remain untested, or of a check whose fault is accepted (may be repeated).
    #[arg(long, value_name = "NAME")]
    pub waive: Vec<String>,
    /// File of a single case to run, as written by an earlier run.
    #[arg(long, value_name = "FILE.relay")]
    pub case: Option<PathBuf>,
    /// Output directory for failing cases.
    #[arg(long, value_name = "DIR", default_value = "byoc-conformance")]
    pub out: PathBuf,
    /// Time limit for each call of a plugin entry.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub time_limit: u64,
    /// Maximum number of threads for the plugin, which is also tested with one thread.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: u16,
    /// Directories searched for plugins.
    #[command(flatten)]
    pub plugins: PluginDirArgs,
    /// Diagnostic output options.
    #[command(flatten)]
    pub diagnostics: DiagnosticArgs,
}

/// Arguments of `byoc plugins test-worker`.
#[derive(Args, Debug)]
pub struct TestWorkerArgs {
    /// Shared library.
    pub file: PathBuf,
    /// Maximum number of threads for the plugin.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: u16,
    /// Entry after which a case ends.
    #[arg(long)]
    pub until: Option<String>,
    /// Directories searched for plugins.
    #[command(flatten)]
    pub plugins: PluginDirArgs,
}

/// Arguments of `byoc ops`.
#[derive(Args, Debug)]
pub struct OpsArgs {
    /// Operator; all by default.
    pub name: Option<String>,
    /// Diagnostic output options.
    #[command(flatten)]
    pub diagnostics: DiagnosticArgs,
}

/// Arguments of `byoc error`.
#[derive(Args, Debug)]
pub struct ErrorArgs {
    /// Error code such as E0401; all by default.
    pub code: Option<String>,
}

/// Arguments of `byoc quantize`.
#[derive(Args, Debug)]
pub struct QuantizeArgs {
    /// Float model: a .onnx or .relay file, or a directory in ONNX test-data layout.
    pub model: PathBuf,
    /// Samples of the model's inputs: an .npz file with an entry per input, an image directory, or random[:seed].
    #[arg(long, value_name = "DATA")]
    pub calibrate: String,
    /// File for the quantized model: .onnx with QuantizeLinear and DequantizeLinear, or .relay with its weights in a file
    /// next to it; - is standard output, Relay text with the weights in it.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Backends in priority order; the first quantization scheme that one of them declares is used.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub backend: Vec<String>,
    /// Quantization scheme: symmetric or asymmetric, with any of uint8, per-tensor, power-of-two.
    #[arg(long, value_name = "SCHEME")]
    pub scheme: Option<String>,
    /// Method that chooses the range of an activation: min-max, percentile[:P], entropy or mse.
    #[arg(long, value_name = "METHOD", default_value = "mse", value_parser = Method::parse)]
    pub method: Method,
    /// Layers that stay in float: names, "first" (the first convolution, the default) or "none".
    #[arg(long, value_name = "NAME,...|first|none", value_delimiter = ',')]
    pub keep: Vec<String>,
    /// Maximum loss, enforced by keeping the most sensitive layers in float. With labels the loss is the drop in
    /// accuracy as a fraction, otherwise 1 minus the cosine of the outputs.
    #[arg(long, value_name = "X", value_parser = parse_loss)]
    pub max_loss: Option<f64>,
    /// Correct class of each sample: an array, or a text file with one number per line.
    #[arg(long, value_name = "FILE")]
    pub labels: Option<PathBuf>,
    /// Maximum number of samples; for random data, the exact number (32 by default).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub samples: Option<u32>,
    /// Mean of each channel, subtracted from an image after division by 255.
    #[arg(long, value_name = "M,...", value_delimiter = ',', allow_negative_numbers = true)]
    pub mean: Vec<f64>,
    /// Standard deviation of each channel, by which an image is divided after the mean is subtracted.
    #[arg(long, value_name = "S,...", value_delimiter = ',')]
    pub std: Vec<f64>,
    /// Fixed value for a symbolic dimension (may be repeated); unnamed dimensions stay symbolic where the model allows
    /// it.
    #[arg(long = "dim", value_name = "NAME=N", value_parser = parse_named_number)]
    pub dims: Vec<(String, usize)>,
    /// Number of threads.
    #[arg(long, value_name = "N", env = "BYOC_THREADS", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Limits on time and memory.
    #[command(flatten)]
    pub limits: LimitArgs,
    /// Directories searched for plugins.
    #[command(flatten)]
    pub plugins: PluginDirArgs,
    /// Diagnostic output options.
    #[command(flatten)]
    pub diagnostics: DiagnosticArgs,
}

/// Arguments of `byoc zoo`.
#[derive(Args, Debug)]
#[command(after_help = architecture_list())]
pub struct ZooArgs {
    /// Name of the architecture.
    pub name: String,
    /// File for the model; - is standard output.
    #[arg(short, long, value_name = "FILE.onnx")]
    pub output: PathBuf,
    /// Seed of the weights.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
}

impl Command {
    /// Returns the limits of the command, or the defaults if the command has no limit options.
    pub fn limits(&self) -> LimitArgs {
        match self {
            Command::Run(args) => args.build.limits,
            Command::Compile(args) => args.build.limits,
            Command::Explain(args) => args.build.limits,
            Command::Export(args) => args.build.limits,
            Command::Verify(args) => args.build.limits,
            Command::Bench(args) => args.build.limits,
            Command::Source(args) => args.build.limits,
            Command::Opt(args) => args.limits,
            Command::Quantize(args) => args.limits,
            Command::Inspect(args) => args.limits,
            Command::Bundle(args) => args.limits,
            Command::Plugins(_) | Command::Ops(_) | Command::Error(_) | Command::Zoo(_) | Command::Serve(_) => {
                LimitArgs::default()
            }
        }
    }
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| *seconds > 0.0);
    let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.ok_or_else(|| format!("expected a number of seconds > 0, found \"{text}\""))
}

fn parse_named_text(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("expected NAME=VALUE, found \"{text}\"")),
    }
}

fn parse_yes_or_no(text: &str) -> Result<bool, String> {
    match text {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err(format!("expected yes or no, found \"{text}\"")),
    }
}

fn parse_backend_option(text: &str) -> Result<(String, String, String), String> {
    let parts = text.split_once('=').and_then(|(key, value)| Some((key.split_once('.')?, value)));
    match parts {
        Some(((name, option), value)) if ![name, option, value].contains(&"") => {
            Ok((name.to_owned(), option.to_owned(), value.to_owned()))
        }
        _ => Err(format!("expected NAME.OPTION=VALUE with a backend, its option and a value, found \"{text}\"")),
    }
}

fn parse_device(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, id)) if !name.is_empty() && !id.is_empty() => Ok((name.to_owned(), id.to_owned())),
        _ => Err(format!("expected NAME=ID with a backend and one of its devices, found \"{text}\"")),
    }
}

/// Returns the names and descriptions of all passes, for the help text.
fn pass_list() -> String {
    list("Passes", PASSES.iter().map(|pass| (pass.name, pass.doc)))
}

/// Returns the names and descriptions of all architectures, for the help text.
fn architecture_list() -> String {
    list("Architectures", ARCHITECTURES.iter().copied())
}

/// Formats names and descriptions as a list for the help text.
fn list<'a>(title: &str, items: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    /// Maximum line length. Longer lines would be wrapped by clap, which drops the indentation.
    const WIDTH: usize = 90;
    const INDENT: usize = 6;
    let mut text = format!("{title}:");
    for (name, description) in items {
        text += &format!("\n  {name}");
        for line in wrap(description, WIDTH - INDENT) {
            text += &format!("\n{:INDENT$}{line}", "");
        }
    }
    text
}

fn parse_annotation(text: &str) -> Result<(String, String), String> {
    match text.split_once('=').unwrap_or((text, "")) {
        ("", _) => Err(format!("expected TARGET=OPERATOR,..., found \"{text}\"")),
        (target, operators) => Ok((target.to_owned(), operators.to_owned())),
    }
}

fn parse_loss(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(loss) if (0.0..=1.0).contains(&loss) => Ok(loss),
        _ => Err(format!("expected a number from 0 to 1, found \"{text}\"")),
    }
}

fn parse_tolerance(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number >= 0.0 => Ok(number),
        _ => Err(format!("expected a number >= 0, found \"{text}\"")),
    }
}

/// Minimum share of the FLOPs on backends.
#[derive(Clone, Copy, Debug)]
pub enum Share {
    /// Any share above zero: `--require-offload` without a share.
    Any,
    AtLeast(f64),
}

fn parse_on_failure(text: &str) -> Result<OnFailure, String> {
    OnFailure::parse(text).ok_or_else(|| format!("expected next, split, host or error, found \"{text}\""))
}

fn parse_share(text: &str) -> Result<Share, String> {
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(Share::AtLeast(share)),
        _ if text == "any" => Ok(Share::Any),
        _ => Err(format!("expected a share from 0 to 1, found \"{text}\"")),
    }
}

/// Values of a symbolic dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DimChoice {
    /// Binds the dimension to one value.
    Fixed(usize),
    /// Keeps the dimension symbolic and adds a specialized program for each of these values.
    Open(Vec<usize>),
}

fn parse_named_dim(text: &str) -> Result<(String, DimChoice), String> {
    if let Some(name) = text.strip_suffix("=?").filter(|name| !name.is_empty()) {
        return Ok((name.to_owned(), DimChoice::Open(Vec::new())));
    }
    let (name, value) = parse_named_text(text)?;
    // A dimension with several values stays symbolic, so an additional ? is redundant.
    let sizes: Result<Vec<usize>, String> = value
        .split(',')
        .filter(|size| size.trim() != "?")
        .map(|size| size.trim().parse().map_err(|_| format!("expected NAME=N with an integer N, found {value}")))
        .collect();
    let sizes = sizes?;
    let is_bound = !value.contains(',');
    Ok((
        name,
        if let (true, [size]) = (is_bound, &sizes[..]) { DimChoice::Fixed(*size) } else { DimChoice::Open(sizes) },
    ))
}

fn parse_named_number(text: &str) -> Result<(String, usize), String> {
    let (name, value) = parse_named_text(text)?;
    let number = value.parse().map_err(|_| format!("expected NAME=N with an integer N, found {value}"))?;
    Ok((name, number))
}

//! Server options, from the command line or from a file with the same option names.

use crate::error::{Result, ServeError, Status};
use crate::load::{Defaults, Engine};
use crate::log::LogFormat;
use byoc::runtime::limits::parse_size;
use byoc::{CompileOptions, ComputeFormat, Session};
use byoc_ir::diag::codes::serving::SERVE_OPTIONS;
use clap::Parser;
use clap::builder::TypedValueParser;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

const AFTER_HELP: &str = "\
Examples:
  byoc serve digits.onnx                          http://127.0.0.1:8000/v2/models/digits, gRPC on port 8001
  byoc serve net=resnet50.byoc --http 0.0.0.0:8080 --grpc none
  byoc serve --repository models --allow-control  files models/NAME/VERSION/model.onnx, as in Triton
  byoc serve --config serve.conf                  lines of the form: name = value, with the flag names

  curl -d '{\"inputs\":[{\"name\":\"x\",\"datatype\":\"FP32\",\"shape\":[1,4],\"data\":[1,2,3,4]}]}' \\
       http://127.0.0.1:8000/v2/models/digits/infer

Requests that arrive while the model runs are batched, if the first dimension of all its inputs and outputs is
symbolic. See docs/serve.md for details.";

/// Serves models with the Open Inference Protocol v2 over HTTP and gRPC.
#[derive(Clone, Debug, Parser)]
#[command(name = "byoc serve", bin_name = "byoc serve", version, max_term_width = 110, after_help = AFTER_HELP, args_override_self = true)]
pub struct Options {
    /// Models: .onnx, .relay or .byoc files, served under the file name or under NAME.
    #[arg(value_name = "[NAME=]MODEL")]
    pub models: Vec<String>,
    /// Directory of models in Triton's layout: NAME/VERSION/model.onnx, with an optional NAME/config.pbtxt.
    #[arg(long, value_name = "DIR")]
    pub repository: Option<PathBuf>,
    /// Options file: lines of the form "name = value" with the flag names; flags take precedence.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Address for HTTP/1.1 and HTTP/2: a local port, HOST:PORT, or none.
    #[arg(long, value_name = "ADDR", default_value = "8000", help_heading = "Network")]
    pub http: String,
    /// Address for gRPC: a local port, HOST:PORT, or none.
    #[arg(long, value_name = "ADDR", default_value = "8001", help_heading = "Network")]
    pub grpc: String,
    /// Address of a separate server for /metrics, which the HTTP server also provides.
    #[arg(long, value_name = "ADDR", default_value = "none", help_heading = "Network")]
    pub metrics: String,
    /// Permission for clients to load and unload models.
    #[arg(long, help_heading = "Network")]
    pub allow_control: bool,
    /// Permission for clients to register local shared-memory regions.
    #[arg(long, help_heading = "Network")]
    pub allow_shared_memory: bool,

    /// Maximum batch size of models with a symbolic first dimension and no configured batch size; 0 disables
    /// batching.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(0..=65536), help_heading = "Batching")]
    pub max_batch_size: u32,
    /// Preferred batch sizes, which are executed without waiting for more requests, for models with a symbolic first
    /// dimension and no configured batch size.
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=65536), help_heading = "Batching")]
    pub preferred_batch_size: Vec<u32>,
    /// Maximum time for which a request waits to be batched while its model is busy, for models with a symbolic first
    /// dimension and no configured batch size.
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 0, help_heading = "Batching")]
    pub max_queue_delay_microseconds: u64,
    /// Maximum number of requests waiting for a model; additional requests are rejected with status 503.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Batching")]
    pub max_queue_size: u32,
    /// Number of concurrent batches per model, on shared threads.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64), help_heading = "Batching")]
    pub instances: u32,

    /// Backends in priority order; "auto" selects every plugin that loads, "none" loads no plugin. By default a model
    /// runs on the host, and an artifact on the plugins it was compiled for.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', help_heading = "Models")]
    pub backend: Vec<String>,
    /// Backend option, such as mychip.half=true (may be repeated).
    #[arg(long, value_name = "NAME.OPTION=VALUE", value_parser = triple, help_heading = "Models")]
    pub backend_option: Vec<(String, String, String)>,
    /// Lowest precision of computation that a float32 model allows: f32, tf32, bf16 or f16.
    #[arg(long, value_name = "FORMAT", default_value = "f32", value_parser = ComputeFormat::from_str, help_heading = "Models")]
    pub precision: ComputeFormat,
    /// Backend device, such as mychip=1 (may be repeated).
    #[arg(long, value_name = "NAME=ID", value_parser = pair, help_heading = "Models")]
    pub device: Vec<(String, String)>,
    /// Plugin search path, searched first (may be repeated).
    #[arg(long, value_name = "DIR", help_heading = "Models")]
    pub plugin_dir: Vec<PathBuf>,
    /// Fixed value for a symbolic dimension, or several values: the dimension stays symbolic, and inputs of these sizes
    /// run on separate programs. Unnamed dimensions stay symbolic (may be repeated).
    #[arg(long, value_name = "NAME=N|N,N..", value_parser = dim, help_heading = "Models")]
    pub dim: Vec<(String, Sizes)>,
    /// Number of threads.
    #[arg(long, value_name = "N", env = "BYOC_THREADS", value_parser = clap::value_parser!(u16).range(1..=1024), help_heading = "Models")]
    pub threads: Option<u16>,
    /// Cache directory of the backends.
    #[arg(long, value_name = "DIR", env = "BYOC_CACHE_DIR", help_heading = "Models")]
    pub cache_dir: Option<PathBuf>,
    /// Permission for regions of an artifact to contain native code, which runs with the privileges of this process.
    #[arg(long, value_name = "yes|no", env = "BYOC_ALLOW_NATIVE", default_value = "yes", action = clap::ArgAction::Set, value_parser = yes_or_no_parser(), help_heading = "Models")]
    pub allow_native: bool,

    /// Time limit per request, such as 30 or 0.5.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds, help_heading = "Limits")]
    pub timeout: Duration,
    /// Time limit for loading a model: compilation and warm-up.
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = seconds, help_heading = "Limits")]
    pub load_timeout: Duration,
    /// Maximum memory for requests, tensors and intermediate results, such as 2GiB or 512M. By default half of the
    /// memory available to the process.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = "Limits")]
    pub max_memory: Option<usize>,
    /// Maximum size of a request, compressed and decompressed.
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = parse_size, help_heading = "Limits")]
    pub max_request_size: usize,
    /// Maximum number of connections; additional connections are closed.
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Limits")]
    pub max_connections: u32,
    /// Time after which an idle connection is closed.
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = seconds, help_heading = "Limits")]
    pub idle_timeout: Duration,
    /// Time limit for requests in progress after SIGTERM or Ctrl-C.
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds, help_heading = "Limits")]
    pub shutdown_timeout: Duration,

    /// Log format on standard error.
    #[arg(long, value_enum, default_value_t, help_heading = "Log")]
    pub log_format: LogFormat,
    /// Log verbosity: 1 logs each request, 2 adds debug events.
    #[arg(long, value_name = "LEVEL", default_value_t = 0, help_heading = "Log")]
    pub log_verbose: u32,
}

fn invalid_option(message: impl Into<String>) -> ServeError {
    ServeError::new(Status::InvalidArgument, SERVE_OPTIONS, message)
}

fn pair(text: &str) -> std::result::Result<(String, String), String> {
    let (name, value) = text
        .split_once('=')
        .filter(|(name, value)| !name.is_empty() && !value.is_empty())
        .ok_or_else(|| format!("expected NAME=VALUE, found \"{text}\""))?;
    Ok((name.to_owned(), value.to_owned()))
}

fn triple(text: &str) -> std::result::Result<(String, String, String), String> {
    let (name, value) = pair(text)?;
    let (backend, option) =
        name.split_once('.').ok_or_else(|| format!("expected NAME.OPTION=VALUE, found \"{text}\""))?;
    Ok((backend.to_owned(), option.to_owned(), value))
}

/// Values of a symbolic dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes(pub Vec<usize>);

fn dim(text: &str) -> std::result::Result<(String, Sizes), String> {
    let (name, value) = pair(text)?;
    let sizes: Option<Vec<usize>> = value.split(',').map(|size| size.parse().ok()).collect();
    Ok((name, Sizes(sizes.ok_or_else(|| format!("expected NAME=N or NAME=N,N.., found \"{text}\""))?)))
}

fn seconds(text: &str) -> std::result::Result<Duration, String> {
    /// Maximum duration: one year. Longer durations could overflow the system clocks.
    const MAX_SECONDS: f64 = 31_536_000.0;
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= MAX_SECONDS => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!("expected a number of seconds > 0 and <= {MAX_SECONDS}, found \"{text}\"")),
    }
}

fn yes_or_no_parser() -> impl TypedValueParser<Value = bool> {
    clap::builder::PossibleValuesParser::new(["yes", "no"]).map(|word| word == "yes")
}

/// Maximum size of an options file in bytes.
const MAX_FILE: u64 = 1 << 20;

/// Parses command-line arguments, the first of which is the executable name, and the arguments from the file named by
/// `--config`.
///
/// # Errors
/// If an argument is invalid, the file cannot be read, or help or the version is requested.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> std::result::Result<Options, clap::Error> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let options = Options::try_parse_from(&arguments)?;
    let Some(path) = &options.config else { return Ok(options) };
    let file_arguments = read_file(path)
        .map_err(|error| clap::Error::raw(clap::error::ErrorKind::ValueValidation, format!("{error}\n")))?;
    let (program, other_arguments) =
        arguments.split_first().map_or((OsString::from("byoc serve"), &[][..]), |(p, r)| (p.clone(), r));
    let all_arguments = std::iter::once(program)
        .chain(file_arguments.into_iter().map(OsString::from))
        .chain(other_arguments.iter().cloned());
    Options::try_parse_from(all_arguments)
}

/// Reads an options file as command-line arguments.
fn read_file(path: &Path) -> Result<Vec<String>> {
    let config_error = |reason: String| invalid_option(format!("--config {}: {reason}", path.display()));
    let size = std::fs::metadata(path).map_err(|error| config_error(error.to_string()))?.len();
    if size > MAX_FILE {
        return Err(config_error(format!("expected at most {MAX_FILE} bytes, found {size}")));
    }
    let text = byoc::io::read_text(path).map_err(|error| config_error(error.to_string()))?;
    let mut arguments = Vec::new();
    for (line_index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let line_place = || format!("line {}", line_index + 1);
        let (name, value) = line
            .split_once('=')
            .map(|(name, value)| (name.trim(), value.trim()))
            .ok_or_else(|| config_error(format!("{}: expected name = value, found {line:?}", line_place())))?;
        let value = value.strip_prefix('"').and_then(|unquoted| unquoted.strip_suffix('"')).unwrap_or(value);
        match (name, value) {
            ("config", _) => {
                return Err(config_error(format!(
                    "{}: expected an option other than config, found config",
                    line_place()
                )));
            }
            ("model", value) => arguments.push(value.to_owned()),
            ("allow-control" | "allow-shared-memory", "true") => arguments.push(format!("--{name}")),
            ("allow-control" | "allow-shared-memory", "false") => {}
            ("allow-control" | "allow-shared-memory", other) => {
                return Err(config_error(format!("{}: expected true or false, found {other}", line_place())));
            }
            (name, value) => arguments.push(format!("--{name}={value}")),
        }
    }
    Ok(arguments)
}

impl Options {
    /// Returns the models on the command line by name.
    ///
    /// # Errors
    /// If a model has no file name.
    pub fn named_models(&self) -> Result<Vec<(String, PathBuf)>> {
        let named_text = |text: &String| {
            if let Some((name, path)) = text.split_once('=').filter(|(name, _)| !name.contains('/')) {
                return Ok((name.to_owned(), PathBuf::from(path)));
            }
            let path = PathBuf::from(text);
            let name = path.file_stem().and_then(|name| name.to_str()).map(str::to_owned);
            Ok((name.ok_or_else(|| invalid_option(format!("expected a model file, found {text:?}")))?, path))
        };
        self.models.iter().map(named_text).collect()
    }

    /// Starts the threads and finds the backends.
    ///
    /// # Errors
    /// If the backend options are inconsistent, or the threads cannot be started.
    pub fn engine(&self) -> Result<Engine> {
        let names: Vec<&str> = self.backend.iter().map(|name| name.trim()).filter(|name| !name.is_empty()).collect();
        let is_host_only = names.contains(&"none");
        if is_host_only && names.len() > 1 {
            return Err(invalid_option(format!("--backend: expected only 'none', found {}", names.join(","))));
        }
        let mut builder =
            Session::builder().threads(self.threads.map_or(0, usize::from)).allow_native(self.allow_native);
        if !is_host_only {
            builder = builder.search_default_dirs();
            for dir in &self.plugin_dir {
                builder = builder.plugin_dir(dir);
            }
        }
        if let Some(bytes) = self.max_memory {
            builder = builder.max_memory(bytes);
        }
        if let Some(dir) = self.cache_dir.clone().or_else(|| dirs::cache_dir().map(|dir| dir.join("byoc"))) {
            builder = builder.cache_dir(dir);
        }
        for (backend, id) in &self.device {
            builder = builder.device(backend, id);
        }
        let session = builder.build().map_err(|failure| ServeError::from(byoc::Error::from(failure)))?;
        let mut options = CompileOptions::new().open_unbound_dims().precision(self.precision);
        if is_host_only {
            options = options.host_only();
        }
        for name in names.iter().filter(|name| **name != "none") {
            options = options.backend(*name);
        }
        for (backend, option, value) in &self.backend_option {
            options = options.backend_option(backend, option, value);
        }
        for (name, Sizes(sizes)) in &self.dim {
            options = match sizes[..] {
                [size] => options.dim(name, size),
                _ => options.open_dim(name, sizes.iter().copied()),
            };
        }
        let defaults = Defaults {
            max_batch_size: self.max_batch_size,
            preferred_batch_size: self.preferred_batch_size.clone(),
            max_queue_delay_microseconds: self.max_queue_delay_microseconds,
            max_queue_size: self.max_queue_size,
            instances: self.instances,
        };
        Ok(Engine { session, options, defaults, load_timeout: self.load_timeout })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn options_with_file(text: &str, flags: &[&str]) -> std::result::Result<Options, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("serve.conf");
        std::fs::write(&path, text).unwrap();
        let config = path.display().to_string();
        let arguments = ["serve", "--config", &config].into_iter().chain(flags.iter().copied());
        parse(arguments.map(OsString::from)).map_err(|error| error.to_string())
    }

    #[test]
    fn file_has_the_names_of_the_flags() {
        let text = "# comment\nmodel = a.onnx\nmodel = n=b.byoc\nhttp = \"0.0.0.0:9000\"\nallow-control = true\n\
                    allow-shared-memory = false\ntimeout = 2.5\ndim = n=3\nprecision = bf16\n";
        let options = options_with_file(text, &["--timeout", "4", "c.onnx"]).unwrap();
        assert_eq!(options.models, ["a.onnx", "n=b.byoc", "c.onnx"]);
        assert_eq!(
            (options.http.as_str(), options.allow_control, options.allow_shared_memory),
            ("0.0.0.0:9000", true, false)
        );
        assert_eq!((options.timeout, options.dim), (Duration::from_secs(4), vec![("n".to_owned(), Sizes(vec![3]))]));
        assert_eq!(options.precision, ComputeFormat::Bf16);
        for (text, expected) in [
            ("precision = half", "expected one of f32, tf32, bf16, f16, found \"half\""),
            ("x", "line 1: expected name = value, found \"x\""),
            ("\nconfig = a", "line 2: expected an option other than config"),
            ("allow-control = 1", "expected true or false, found 1"),
            ("htpp = 1", "--htpp"),
            ("timeout = -1", "expected a number of seconds"),
        ] {
            let error = options_with_file(text, &[]).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn help_names_every_flag() {
        Options::command().debug_assert();
        let help = Options::command().render_help().to_string();
        for argument in Options::command().get_arguments() {
            if let Some(long) = argument.get_long() {
                assert!(help.contains(&format!("--{long}")), "{long}");
                assert!(argument.get_help().is_some_and(|text| !text.to_string().is_empty()), "{long}");
            }
        }
    }
}

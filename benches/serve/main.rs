//! Measurements of the inference server: overhead relative to an echo server built on the same libraries, CPU time per
//! request, comparison with peer servers, startup from the cache, and a soak test. This executable is built and started
//! by `cargo xtask bench serve` and `cargo xtask soak`.
//!
//! The server runs in a separate process, as in production; this process is the client. Rounds alternate between the
//! compared servers, so drift in machine speed affects all servers equally.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the output of a command-line tool")]

mod client;
mod echo;
mod load;
mod models;
mod numbers;
mod overhead;
mod peers;
mod processes;
mod processor;
mod soak;

use std::process::ExitCode;

const USAGE: &str = "\
usage: byoc-bench-serve <measurement> [options]

  overhead [--rounds N]       Compare the latency with that of an echo server on the same libraries
  processor [--rounds N]      Measure the CPU time of a request, resident memory, and the start with a warm cache
  peers [--rounds N] [--seconds S] [--model NAME] --kserve PYTHON [--mlserver PYTHON]
                              Compare throughput and p99 latency with other servers
  soak [--minutes N]          Run a mixed load, check the responses, and monitor the memory of the server
  echo                        Run the echo server
";

/// Result of a measurement, with a message as the error.
type Result<T> = std::result::Result<T, String>;

/// Measurement options, by name.
struct Options(Vec<(String, String)>);

impl Options {
    fn parse(args: &[String]) -> Result<Options> {
        let mut options = Vec::new();
        let mut args = args.iter();
        while let Some(name) = args.next() {
            let name = name.strip_prefix("--").ok_or_else(|| format!("expected an option, found {name}"))?;
            let value = args.next().ok_or_else(|| format!("--{name}: expected a value, found none"))?;
            options.push((name.to_owned(), value.clone()));
        }
        Ok(Options(options))
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|option| option.0 == name).map(|option| option.1.as_str())
    }

    fn number(&self, name: &str, default: f64) -> Result<f64> {
        let Some(text) = self.text(name) else { return Ok(default) };
        text.parse()
            .ok()
            .filter(|number| *number > 0.0)
            .ok_or_else(|| format!("--{name}: expected a number > 0, found {text}"))
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some((measurement, rest)) = args.split_first() else {
        eprint!("{USAGE}");
        return ExitCode::from(2);
    };
    let outcome = Options::parse(rest).and_then(|options| match measurement.as_str() {
        "overhead" => overhead::run(&options),
        "processor" => processor::run(&options),
        "peers" => peers::run(&options),
        "soak" => soak::run(&options),
        "echo" => echo::run(),
        "resident" => processor::print_resident_after_run(&options),
        "resident-of" => processor::print_artifact_resident(&options),
        other => Err(format!("expected a measurement, found {other}\n{USAGE}")),
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("byoc-bench-serve: {message}");
            ExitCode::FAILURE
        }
    }
}

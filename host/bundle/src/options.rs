//! Command-line options of the runner.

use byoc_runtime::limits::parse_size;
use std::ffi::OsString;
use std::path::PathBuf;

/// Help text of the runner.
pub const USAGE: &str = "\
Run the model of a bundle and print its outputs

Usage: run [OPTIONS]

Options:
      --input <NAME=VALUE>  Value of an input: a .npy or .npz file, - for a .npy file on standard input,
                            random[:seed], ones or zeros (may be repeated)
      --output <FILE>       File for the outputs: .npz, or .npy for a single one; - is standard output
      --describe            Names and types of the inputs and outputs; the model is not run
      --check               Check of every file and region; the model is not run
      --json                Machine-readable output, one JSON object per line
      --threads <N>         Number of threads [env: BYOC_THREADS]
      --max-memory <SIZE>   Maximum memory for tensors and intermediate results, such as 512M
      --bundle <DIR>        Bundle directory [default: the bundle that contains this program]
  -h, --help                Help
  -V, --version             Version
";

/// Options of the runner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Names and values of inputs, exactly as given on the command line.
    pub inputs: Vec<(String, String)>,
    /// File for the outputs; `-` is standard output.
    pub output: Option<PathBuf>,
    /// True if the runner describes the inputs and outputs instead of running the model.
    pub describe: bool,
    /// True if the runner checks the bundle instead of running the model.
    pub check: bool,
    /// True if the output is JSON.
    pub json: bool,
    /// Number of threads; 0 selects the number of processors.
    pub threads: usize,
    /// Memory limit in bytes.
    pub max_memory: Option<usize>,
    /// Directory of the bundle; by default the parent of the runner's directory.
    pub bundle: Option<PathBuf>,
}

/// Command given by the arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Runs, checks or describes the model.
    Run(Box<Options>),
    /// Prints the help text.
    Help,
    /// Prints the version.
    Version,
}

/// Parses the arguments, excluding the executable name.
///
/// # Errors
/// If an argument is unknown, or a value is missing or invalid.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Command, String> {
    let mut options = Options::default();
    if let Some(threads) = std::env::var_os("BYOC_THREADS").filter(|value| !value.is_empty()) {
        options.threads = parse_threads("BYOC_THREADS", &threads.to_string_lossy())?;
    }
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let text = argument.to_str().ok_or_else(|| format!("unexpected argument {argument:?}"))?;
        let (name, attached) = match text.split_once('=') {
            Some((name, value)) if name.starts_with("--") => (name, Some(OsString::from(value))),
            _ => (text, None),
        };
        let has_value = attached.is_some();
        let mut value = || {
            let value = attached.clone().or_else(|| arguments.next());
            value.ok_or_else(|| format!("{name}: expected a value, found none"))
        };
        let mut text = || value()?.into_string().map_err(|value| format!("{name}: expected UTF-8, found {value:?}"));
        match name {
            "--input" => {
                let text = text()?;
                let (input, value) =
                    text.split_once('=').ok_or_else(|| format!("--input: expected NAME=VALUE, found {text}"))?;
                options.inputs.push((input.to_owned(), value.to_owned()));
            }
            "--output" => options.output = Some(value()?.into()),
            "--bundle" => options.bundle = Some(value()?.into()),
            "--threads" => options.threads = parse_threads(name, &text()?)?,
            "--max-memory" => {
                options.max_memory = Some(parse_size(&text()?).map_err(|reason| format!("--max-memory: {reason}"))?)
            }
            _ if has_value => return Err(format!("unexpected argument {argument:?}")),
            "--describe" => options.describe = true,
            "--check" => options.check = true,
            "--json" => options.json = true,
            "-h" | "--help" => return Ok(Command::Help),
            "-V" | "--version" => return Ok(Command::Version),
            _ => return Err(format!("unexpected argument {argument:?}")),
        }
    }
    Ok(Command::Run(Box::new(options)))
}

fn parse_threads(source: &str, text: &str) -> Result<usize, String> {
    let threads = text.parse().ok().filter(|threads| (1..=1024).contains(threads));
    threads.ok_or_else(|| format!("{source}: expected a number from 1 to 1024, found {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_args(args: &[&str]) -> Result<Command, String> {
        parse(args.iter().map(OsString::from))
    }

    #[test]
    fn parses_options_with_values_apart_and_attached() {
        let expected = Options {
            inputs: vec![("x".into(), "a=b.npy".into()), ("y".into(), "-".into())],
            output: Some("out.npz".into()),
            json: true,
            threads: 2,
            max_memory: Some(1 << 20),
            ..Options::default()
        };
        let args =
            ["--input", "x=a=b.npy", "--input=y=-", "--output=out.npz", "--json", "--threads", "2", "--max-memory=1M"];
        assert_eq!(parse_args(&args), Ok(Command::Run(Box::new(expected))));
        assert_eq!(parse_args(&["--describe", "-h"]), Ok(Command::Help));
        assert_eq!(parse_args(&["--version"]), Ok(Command::Version));
    }

    #[test]
    fn names_wrong_arguments() {
        for (args, message) in [
            (&["model.byoc"][..], "unexpected argument \"model.byoc\""),
            (&["--json=1"], "unexpected argument \"--json=1\""),
            (&["--input"], "--input: expected a value, found none"),
            (&["--input", "x"], "--input: expected NAME=VALUE, found x"),
            (&["--threads=0"], "--threads: expected a number from 1 to 1024, found 0"),
        ] {
            assert_eq!(parse_args(args).unwrap_err(), message);
        }
        assert!(parse_args(&["--max-memory=much"]).unwrap_err().starts_with("--max-memory: expected"));
    }
}

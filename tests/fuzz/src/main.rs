//! `byoc-fuzz TARGET [--executions N] [--seconds S] [--seed N] [--only N [--save FILE]]`,
//! or `byoc-fuzz TARGET --hostile SIZE`, or `byoc-fuzz TARGET FILE...`.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the output of a command-line tool")]

use byoc_fuzz::driver::{self, Options};
use byoc_fuzz::memory::LimitedAllocator;
use byoc_fuzz::{TARGETS, hostile, target};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Allocator with a limit far above what small models and inputs of a few kilobytes need.
#[global_allocator]
static MEMORY: LimitedAllocator = LimitedAllocator::new(2 << 30);

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("byoc-fuzz: {message}");
            let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
            eprintln!(
                "usage: byoc-fuzz TARGET [--executions N] [--seconds S] [--seed N] [--first N] [--progress FILE]"
            );
            eprintln!("       byoc-fuzz TARGET --only N [--seed N] [--save FILE]");
            eprintln!("       byoc-fuzz TARGET --hostile SIZE");
            eprintln!("       byoc-fuzz TARGET FILE...");
            eprintln!("targets: {}", names.join(", "));
            ExitCode::from(2)
        }
    }
}

fn run(args: &[String]) -> Result<bool, String> {
    let (name, rest) = args.split_first().ok_or("expected a target, found none")?;
    let target = target(name).ok_or_else(|| format!("unknown target \"{name}\""))?;
    let mut options = Options {
        executions: u64::MAX,
        time: Duration::from_secs(60),
        seed: 1,
        first: 0,
        progress: None,
        execution_timeout: Duration::from_secs(20),
    };
    let (mut only_execution, mut save, mut files) = (None, None::<PathBuf>, Vec::new());
    let mut hostile_size = None;
    let mut arguments = rest.iter();
    while let Some(option) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{option}: expected a value, found none"));
        let parse_integer =
            |text: &String| text.parse::<u64>().map_err(|_| format!("{option}: expected an integer, found \"{text}\""));
        match option.as_str() {
            "--executions" => options.executions = parse_integer(value()?)?,
            "--seconds" => options.time = Duration::from_secs(parse_integer(value()?)?),
            "--each" => options.execution_timeout = Duration::from_secs(parse_integer(value()?)?),
            "--seed" => options.seed = parse_integer(value()?)?,
            "--first" => options.first = parse_integer(value()?)?,
            "--progress" => options.progress = Some(value()?.into()),
            "--only" => only_execution = Some(parse_integer(value()?)?),
            "--hostile" => hostile_size = Some(parse_integer(value()?)?),
            "--save" => save = Some(value()?.into()),
            file if !file.starts_with("--") => files.push(PathBuf::from(file)),
            unknown => return Err(format!("unknown option {unknown}")),
        }
    }
    // Compiles and caches the seeds before the first execution.
    if name.starts_with("blob_") || name == "artifact" {
        drop((target.seeds)());
    }
    if let Some(size) = hostile_size {
        let count = hostile::run(target, size as usize)?;
        println!("{name}: {count} hostile inputs of {size} bytes");
        return Ok(true);
    }
    if !files.is_empty() {
        let read = |file: &Path| std::fs::read(file).map_err(|e| format!("{}: {e}", file.display()));
        let mut have_all_passed = true;
        for file in &files {
            let result = driver::execute(target, &read(file)?);
            println!("{}: {}", file.display(), result.as_ref().map_or_else(String::as_str, |()| "passed"));
            have_all_passed &= result.is_ok();
        }
        return Ok(have_all_passed);
    }
    if let Some(execution) = only_execution {
        let bytes = driver::input(target, &(target.seeds)(), options.seed, execution);
        if let Some(file) = save {
            std::fs::write(&file, &bytes).map_err(|e| format!("{}: {e}", file.display()))?;
        }
        let result = driver::execute(target, &bytes);
        println!("{execution}: {}", result.as_ref().map_or_else(String::as_str, |()| "passed"));
        return Ok(result.is_ok());
    }
    let summary = driver::run(target, &options).map_err(|e| e.to_string())?;
    for (execution, message) in &summary.failures {
        println!("{name} --seed {} --only {execution}: {message}", options.seed);
    }
    let (longest_execution, longest_duration) = summary.longest_execution;
    println!(
        "{name}: {} executions, {} accepted, {} failures, longest {longest_execution} in {longest_duration:?}, at most {} MiB",
        summary.executions,
        summary.accepted_count,
        summary.failures.len(),
        MEMORY.peak() >> 20
    );
    Ok(summary.failures.is_empty())
}

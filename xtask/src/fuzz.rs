//! `cargo xtask fuzz` and `cargo xtask sanitize`.
//!
//! Both use unstable compiler features on the stable compiler, with `RUSTC_BOOTSTRAP=1`. No shipped binary is built
//! this way.

use crate::onednn;
use crate::process::{self, cargo, root};
use std::process::Command;

/// Target triple with sanitizer support. Passing it explicitly keeps the flags away from build scripts and procedural
/// macros.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Flags of an instrumented build. Plugins call functions of the sanitizer runtime, which is linked into the executable
/// that loads the plugins.
const FLAGS: &str = "-Zsanitizer=address -Clink-arg=-rdynamic";

/// Runs `cargo xtask fuzz TARGET [--minutes N]`, guided by coverage if cargo-fuzz is installed, otherwise with the
/// driver.
pub fn fuzz(args: &[&str]) -> Result<(), String> {
    let [target, rest @ ..] = args else {
        return Err("expected a target, found none: run `cargo xtask fuzz TARGET --minutes N`".into());
    };
    let seconds = match rest {
        [] => 60,
        ["--minutes", minutes] => {
            let minutes: f64 = minutes.parse().map_err(|_| format!("--minutes: expected a number, found {minutes}"))?;
            (minutes * 60.0).round() as u64
        }
        _ => return Err(format!("expected `TARGET --minutes N`, found `{}`", args.join(" "))),
    };
    onednn::fetch_if_possible();
    if process::exists("cargo-fuzz") {
        // libFuzzer derives all inputs from its initial inputs. The seeds for artifacts are compiled when the target
        // starts.
        let mut command = cargo(&["fuzz", "run", "--target", TARGET, target]);
        command.env("RUSTFLAGS", "-Clink-arg=-rdynamic");
        let corpus = root().join("tests/fuzz/corpus").join(target);
        command.arg(root().join("fuzz/corpus").join(target));
        if corpus.is_dir() && *target != "artifact" {
            command.arg(corpus);
        }
        std::fs::create_dir_all(root().join("fuzz/corpus").join(target)).map_err(|e| e.to_string())?;
        command.arg("--").arg(format!("-max_total_time={seconds}")).args([
            "-timeout=20",
            "-rss_limit_mb=2560",
            "-max_len=65536",
            "-print_final_stats=1",
        ]);
        return process::run(set_environment(&mut command));
    }
    println!("fuzzing without coverage guidance; to enable it, run `cargo install cargo-fuzz`");
    let mut command = cargo(&["run", "--quiet", "--package", "byoc-fuzz", "--", target, "--seconds"]);
    command.arg(seconds.to_string()).args(["--seed", &seed().to_string()]);
    process::run(set_environment(&mut command))
}

/// Runs `cargo xtask sanitize [TARGET [--minutes N]]`: the test suite, or a target, with AddressSanitizer.
pub fn sanitize(args: &[&str]) -> Result<(), String> {
    let library = onednn::fetch_if_possible();
    let mut command = match args {
        [] => cargo(&["test", "--workspace", "--lib", "--bins", "--tests"]),
        [target] => driver(target, 60),
        [target, "--minutes", minutes] => {
            let minutes: f64 = minutes.parse().map_err(|_| format!("--minutes: expected a number, found {minutes}"))?;
            driver(target, (minutes * 60.0).round() as u64)
        }
        _ => return Err(format!("expected no arguments or `TARGET --minutes N`, found `{}`", args.join(" "))),
    };
    if let Some(library) = &library {
        command.env("BYOC_DNNL_LIB", library);
    }
    command
        .env("RUSTFLAGS", FLAGS)
        .env("CARGO_BUILD_TARGET", TARGET)
        .env("CARGO_TARGET_DIR", process::target_dir().join("sanitize"));
    process::run(set_environment(&mut command))
}

fn driver(target: &str, seconds: u64) -> Command {
    let mut command = cargo(&["run", "--package", "byoc-fuzz", "--", target, "--each", "120", "--seconds"]);
    command.arg(seconds.to_string()).args(["--seed", &seed().to_string()]);
    command
}

/// Sets the environment for a run of a target. Leak detection is off, because plugins are never unmapped and statics
/// are never dropped.
fn set_environment(command: &mut Command) -> &mut Command {
    command
        .env("RUSTC_BOOTSTRAP", "1")
        .env("BYOC_CHECK_REGIONS", "1")
        .env("ASAN_OPTIONS", "detect_leaks=0:allocator_may_return_null=1:detect_odr_violation=0")
}

/// Returns a seed derived from the time; the driver prints the seed with its findings.
fn seed() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(1, |time| time.as_secs())
}

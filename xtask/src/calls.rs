//! Overhead of a call through the C interface, compared with a call through the Rust interface.

use crate::process::{self, cargo, output, root, target_dir};
use std::path::Path;
use std::process::Command;

const ROUNDS: usize = 9;

/// Program whose execution takes less time than the call overhead.
const RELU: &str = "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(16), float32]) { nn.relu(%x) }\n";

/// Runs `cargo xtask bench calls`, which prints the duration of a call in microseconds: the median and the range over
/// alternating rounds.
pub fn bench() -> Result<(), String> {
    process::run(&mut cargo(&["build", "--release", "--package", "byoc-capi", "--lib", "--example", "calls"]))?;
    let build_dir = target_dir().join("release");
    let dir = target_dir().join("bench-calls");
    let model = dir.join("relu.relay");
    std::fs::create_dir_all(&dir)
        .and_then(|()| std::fs::write(&model, RELU))
        .map_err(|error| format!("cannot write {}: {error}", model.display()))?;
    let c_program = compile(&build_dir, &dir.join("calls"))?;
    let programs = [("Rust, Model::run_into", build_dir.join("examples/calls")), ("C, byoc_model_run", c_program)];
    let mut durations = [const { Vec::new() }; 2];
    for _ in 0..ROUNDS {
        for ((_, program), list) in programs.iter().zip(&mut durations) {
            let text = output(Command::new(program).arg(&model))?;
            let duration = text.trim().parse::<f64>();
            list.push(duration.map_err(|_| format!("{}: expected a number, found {text}", program.display()))?);
        }
    }
    for list in &mut durations {
        list.sort_by(f64::total_cmp);
    }
    for ((name, _), list) in programs.iter().zip(&durations) {
        println!("{name:22} {:.3} us ({:.3} to {:.3})", list[ROUNDS / 2], list[0], list[ROUNDS - 1]);
    }
    println!("{:22} {:+.3} us", "C over Rust", durations[1][ROUNDS / 2] - durations[0][ROUNDS / 2]);
    Ok(())
}

/// Compiles the C program against the shared library in `build_dir`.
fn compile(build_dir: &Path, program: &Path) -> Result<std::path::PathBuf, String> {
    let capi = root().join("host/capi");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let mut command = Command::new(compiler);
    command.args(["-std=c99", "-O2", "-Wall", "-Wextra", "-Werror", "-I"]).arg(capi.join("include"));
    command.arg(capi.join("benches/calls.c")).arg("-o").arg(program).arg("-L").arg(build_dir).arg("-lbyocapi");
    command.arg(format!("-Wl,-rpath,{}", build_dir.display()));
    process::run(&mut command)?;
    Ok(program.to_owned())
}

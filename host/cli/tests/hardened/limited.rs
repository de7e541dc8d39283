//! Runs of `byoc` with a limited address space, in which an allocation whose size comes from a file fails immediately.

use super::{CommandOutput, binary, data_text, isolated_command, to_command_output};
use std::path::Path;
use std::process::Command;

/// Address-space limit in KiB, sufficient for the binary, its threads and half a gigabyte of data.
pub const SPACE: usize = 1 << 20;

/// Runs `byoc` with its address space limited to [`SPACE`].
pub fn byoc(args: &[&str]) -> CommandOutput {
    to_command_output(command(args).output().expect("cannot start a shell"))
}

/// Creates the command that [`byoc`] runs, without starting it. The shell replaces itself with `byoc` through `exec`,
/// so the process id of the child is that of `byoc`.
pub fn command(args: &[&str]) -> Command {
    let mut command = isolated_command("sh");
    let limit_command = format!("ulimit -v {SPACE}; exec \"$@\"");
    command.args(["-c", &limit_command, "sh"]).arg(binary()).args(args).env("BYOC_THREADS", "2");
    command
}

/// Returns the path of a file in `tests/hardened`.
pub fn hostile(name: &str) -> String {
    data_text(&format!("hardened/{name}"))
}

/// Writes a Relay module to a directory and returns its path.
pub fn program(dir: &Path, text: &str) -> String {
    let file = dir.join("model.relay");
    std::fs::write(&file, format!("#[version = \"0.0.5\"]\n{text}\n")).expect("cannot write the module");
    file.display().to_string()
}

//! Runs of `byoc` with a limited address space, so that an allocation with a size from a file fails immediately.

use super::{CommandOutput, binary, data_text, isolated_command, to_command_output};
use std::path::Path;
use std::process::Command;

/// Address space in KiB, enough for every command of these tests: the binary, its threads, and half a gigabyte.
pub const SPACE: usize = 1 << 20;

/// Runs `byoc` with [`SPACE`].
pub fn byoc(args: &[&str]) -> CommandOutput {
    to_command_output(command(args).output().expect("a shell starts"))
}

/// Creates the command without starting it. `exec` leaves one process, whose id is the command's.
pub fn command(args: &[&str]) -> Command {
    let mut command = isolated_command("sh");
    let limited = format!("ulimit -v {SPACE}; exec \"$@\"");
    command.args(["-c", &limited, "sh"]).arg(binary()).args(args).env("BYOC_THREADS", "2");
    command
}

/// Returns a file in `tests/hardened`.
pub fn hostile(name: &str) -> String {
    data_text(&format!("hardened/{name}"))
}

/// Writes a Relay program to a folder.
pub fn program(folder: &Path, text: &str) -> String {
    let file = folder.join("model.relay");
    std::fs::write(&file, format!("#[version = \"0.0.5\"]\n{text}\n")).expect("cannot write the program");
    file.display().to_string()
}

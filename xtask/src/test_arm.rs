//! `cargo xtask test-arm`: the command-line tool, a native-code backend and the plugin in C of release 0.1.0, built for
//! aarch64 and run under an emulator.

use crate::process::{self, cargo, exists, output, root, target_dir};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Target triple.
const TARGET: &str = "aarch64-unknown-linux-gnu";
/// Cross compiler and emulator, from Debian packages.
const COMPILER: &str = "aarch64-linux-gnu-gcc";
const EMULATOR: &str = "qemu-aarch64";
const INSTALL: &str = "apt-get install -y gcc-aarch64-linux-gnu qemu-user";
/// Sysroot for aarch64.
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";
/// Number of recorded models.
const MODELS: usize = 15;

/// Wrapper that replaces the native compiler and removes `-march=native`, because a cross compiler does not know the
/// CPU on which its output runs.
const NATIVE: &str = r#"#!/bin/sh
for word; do
    shift
    [ "$word" = -march=native ] || set -- "$@" "$word"
done
exec aarch64-linux-gnu-gcc "$@"
"#;

/// Program that the plugin in C of release 0.1.0 computes.
const PROGRAM: &str = "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(2, 2), float32]) { nn.relu(add(%x, %x)) }\n";

/// Builds for aarch64, verifies the recorded models on the host and on ccompiler, and runs a program on the plugin in C
/// of release 0.1.0.
pub fn run() -> Result<(), String> {
    check_tools()?;
    let mut build = cargo(&["build", "--target", TARGET, "--package", "byoc-cli", "--package", "byoc-ccompiler"]);
    process::run(build.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", COMPILER))?;
    let build_dir = target_dir().join(TARGET).join("debug");
    let dir = target_dir().join("test-arm");
    let dir_error = |error: std::io::Error| format!("{}: {error}", dir.display());
    fs::create_dir_all(dir.join("plugins")).map_err(dir_error)?;
    let plugin = build_dir.join("libbyoc_ccompiler.so");
    fs::copy(&plugin, dir.join("plugins/libbyoc_ccompiler.so"))
        .map_err(|error| format!("cannot copy {}: {error}", plugin.display()))?;
    let compiler = dir.join("cc");
    fs::write(&compiler, NATIVE).map_err(dir_error)?;
    fs::set_permissions(&compiler, fs::Permissions::from_mode(0o755)).map_err(dir_error)?;
    let models = models()?;
    let plugins = dir.join("plugins").display().to_string();
    let byoc = || {
        let mut command = Command::new(EMULATOR);
        command.args(["-L", LIBRARIES]).arg(build_dir.join("byoc"));
        command
    };
    for backend in [&["--backend", "none"][..], &["--backend", "ccompiler", "--require-offload=0.9"]] {
        let mut verify = byoc();
        verify.args(["verify", "--max-rel-err", "5e-4", "--no-cache"]);
        verify.args(["--plugin-dir", &plugins]).args(backend).args(&models).env("CC", &compiler);
        process::run(&mut verify)?;
    }
    let frozen_plugin = dir.join("plugins/libbyoc_frozen_c.so");
    let mut compile = Command::new(COMPILER);
    compile.args(["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]).arg(&frozen_plugin);
    process::run(compile.arg(root().join("tests/compat/c/frozen.c")))?;
    let model = dir.join("model.relay");
    fs::write(&model, PROGRAM).map_err(dir_error)?;
    let mut frozen = byoc();
    frozen.arg("run").arg(model).args(["--input", "x=ones", "--no-cache", "--plugin-dir", &plugins]);
    process::run(frozen.args(["--backend", "frozen_c", "--require-offload"]))
}

/// Returns an error if tools are missing: a list of them, with the commands that install them.
fn check_tools() -> Result<(), String> {
    let mut missing_tools = Vec::new();
    if !exists(COMPILER) || !exists(EMULATOR) || !Path::new(LIBRARIES).is_dir() {
        missing_tools.push(format!("{COMPILER} and {EMULATOR}: {INSTALL}"));
    }
    let libraries =
        output(Command::new("rustc").args(["--print", "target-libdir", "--target", TARGET]).current_dir(root()))?;
    let has_std = fs::read_dir(libraries.trim()).is_ok_and(|mut files| files.next().is_some());
    if !has_std {
        missing_tools.push(format!("the Rust standard library for {TARGET}: rustup target add {TARGET}"));
    }
    if missing_tools.is_empty() { Ok(()) } else { Err(format!("missing:\n  {}", missing_tools.join("\n  "))) }
}

/// Returns the directories of the recorded models.
fn models() -> Result<Vec<PathBuf>, String> {
    let dir = root().join("tests/models");
    let entries = fs::read_dir(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let mut models: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(|path| path.join("model.onnx").is_file()).collect();
    models.sort();
    match models.len() {
        MODELS => Ok(models),
        found => Err(format!("{}: expected {MODELS} models, found {found}", dir.display())),
    }
}

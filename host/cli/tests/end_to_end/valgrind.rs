//! Plugins are loaded, run and unloaded under valgrind, which must report no out-of-bounds accesses, no uses of
//! uninitialized values and no leaks. The tests are skipped with a message if valgrind is not installed.

use crate::{binary, data_text};
use byoc_test_support::{copy, plugin, sample};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Runs the digits model, or an int8 convolution, on a backend under valgrind.
#[expect(clippy::print_stderr, reason = "reports a skipped test")]
fn assert_clean(name: &str, library: &Path) {
    let is_installed = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status().is_ok();
    if !is_installed {
        eprintln!("skipped: valgrind is not installed (apt-get install valgrind)");
        return;
    }
    let temp_dir = tempfile::tempdir().unwrap();
    copy(library, &temp_dir.path().join("plugin.so"));
    let dir = temp_dir.path().display().to_string();
    let convolution = temp_dir.path().join("conv.relay");
    std::fs::write(
        &convolution,
        "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(1, 4, 6, 6), int8], %w: Tensor[(2, 4, 3, 3), int8]) {\n  \
         nn.conv2d(%x, %w, padding=[1, 1, 1, 1], out_dtype=\"int32\")\n}\n",
    )
    .unwrap();
    let (digits, convolution) = (data_text("digits/digits.onnx"), convolution.display().to_string());
    let (model, inputs): (&str, &[&str]) = match name {
        "conv_int8" => (&convolution, &["--input", "x=random", "--input", "w=random:2"]),
        _ => (&digits, &["--dim", "batch=1", "--input", "image=random"]),
    };
    // Code compiled for the native CPU may use instructions that valgrind does not support.
    let compiler = temp_dir.path().join("cc");
    std::fs::write(&compiler, "#!/bin/sh\nexec cc \"$@\" -march=x86-64-v3\n").unwrap();
    std::fs::set_permissions(&compiler, PermissionsExt::from_mode(0o755)).unwrap();
    let output = Command::new("valgrind")
        .args(["-q", "--error-exitcode=9", "--leak-check=full", "--errors-for-leak-kinds=definite"])
        .args(["--show-leak-kinds=definite", "--"])
        .arg(binary())
        .args(["run", model, "--threads", "2", "--no-cache", "--require-offload"])
        .args(["--backend", name, "--plugin-dir", &dir])
        .args(inputs)
        .env("CC", &compiler)
        .env_remove("BYOC_PLUGIN_PATH")
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {}\n{log}", output.status);
    assert!(!log.contains("=="), "{name}: expected no valgrind errors, found:\n{log}");
}

#[test]
fn the_sample_in_c() {
    assert_clean("elementwise", &sample("elementwise"));
}

#[test]
fn the_sample_in_cpp() {
    assert_clean("conv_int8", &sample("conv_int8"));
}

#[test]
fn template() {
    assert_clean("template", &plugin("template"));
}

#[test]
fn ccompiler() {
    assert_clean("ccompiler", &plugin("ccompiler"));
}

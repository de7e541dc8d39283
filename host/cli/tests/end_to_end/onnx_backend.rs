//! Backends around a compiler that takes ONNX files, as `byoc plugins new --onnx` makes them, with a stand-in for the vendor's
//! programs.

use crate::new_plugin::{run_shell, shared_target, temp_dir};
use crate::{CommandOutput, byoc, command, data_text, to_command_output};
use byoc_test_support::{copy, onnx_compiler, workspace};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use tempfile::TempDir;

/// Generated backends: in Rust and in C.
const BACKENDS: [&str; 2] = ["chip_rs", "chip_c"];

/// Directory with both generated plugins, built once.
fn plugins() -> &'static Path {
    static BUILT: OnceLock<TempDir> = OnceLock::new();
    let dir = BUILT.get_or_init(|| {
        let dir = temp_dir();
        let [rust, c] = BACKENDS.map(|name| dir.path().join(name));
        byoc(["plugins", "new", "--onnx", &rust.display().to_string()]).ok();
        byoc(["plugins", "new", "--onnx", "--c", &c.display().to_string()]).ok();
        assert_short(&rust.join("src/lib.rs"));
        assert_short(&c.join("chip_c.c"));
        copy(&workspace().join("Cargo.lock"), &rust.join("Cargo.lock"));
        assert_eq!(run_shell(&rust, "cargo build --release --quiet --offline"), "", "expected no warnings");
        assert_eq!(run_shell(&c, "make --silent CFLAGS='-O1 -Wall -Wextra -Werror'"), "");
        let plugins = dir.path().join("plugins");
        std::fs::create_dir(&plugins).unwrap();
        copy(&shared_target().join("release/libbyoc_chip_rs.so"), &plugins.join("libbyoc_chip_rs.so"));
        copy(&c.join("libbyoc_chip_c.so"), &plugins.join("libbyoc_chip_c.so"));
        dir
    });
    Box::leak(dir.path().join("plugins").into_boxed_path())
}

/// Counts lines that are neither blank nor comments.
fn assert_short(source: &Path) {
    let text = std::fs::read_to_string(source).unwrap();
    let comments = ["//", "/*", " *"];
    let lines = text.lines().filter(|line| {
        let is_comment = comments.iter().any(|mark| line.starts_with(mark)) || line.trim_start().starts_with("///");
        !line.trim().is_empty() && !is_comment
    });
    assert!(lines.count() < 120, "{}: expected fewer than 120 lines of code", source.display());
}

/// Runs `byoc` on one of the backends, with these programs as compiler and run time.
fn byoc_with(programs: [&Path; 2], backend: &str, args: &[&str]) -> CommandOutput {
    let mut command = command(args);
    for (suffix, program) in ["CC", "RUN"].iter().zip(programs) {
        command.env(format!("{}_{suffix}", backend.to_ascii_uppercase()), program);
    }
    to_command_output(command.output().unwrap())
}

#[test]
fn generated_backends_pass_the_conformance_run() {
    let stand_in = onnx_compiler();
    for backend in BACKENDS {
        let library = plugins().join(format!("libbyoc_{backend}.so")).display().to_string();
        let out = temp_dir();
        let out = out.path().display().to_string();
        let args = ["plugins", "test", &library, "--cases", "4", "--threads", "2", "--out", &out];
        let output = byoc_with([&stand_in, &stand_in], backend, &args).ok();
        assert!(output.out.contains("no faults"), "{}", output.out);
    }
}

/// Quantizes the ResNet-18 of the tests, and runs it as one region.
#[test]
fn quantized_resnet_is_one_region() {
    let (stand_in, dir) = (onnx_compiler(), temp_dir());
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (model, quantized) = (data_text("models/resnet18_w16"), path("resnet.relay"));
    byoc(["quantize", &model, "--calibrate", "random", "--keep", "none", "-o", &quantized]).ok();
    let input = format!("input.1={}", data_text("models/resnet18_w16/test_data_set_0/input_0.pb"));
    byoc(["run", &quantized, "--input", &input, "--output", &path("host.npz")]).ok();
    let plugin_dir = plugins().display().to_string();
    for backend in BACKENDS {
        let on = ["--backend", backend, "--plugin-dir", &plugin_dir];
        let programs = [&*stand_in, &*stand_in];
        let explained = byoc_with(programs, backend, &[&["explain", &quantized, "--json"][..], &on].concat()).ok();
        let explained = explained.json().remove(0);
        assert_eq!(explained["regions"].as_array().unwrap().len(), 1, "{explained}");
        assert_eq!(explained["totals"]["offload_share"], 1.0, "{}", explained["totals"]);
        let artifact = path("resnet.byoc");
        byoc_with(programs, backend, &[&["compile", &quantized, "-o", &artifact][..], &on].concat()).ok();
        let output = path(&format!("{backend}.npz"));
        let run = ["run", &artifact, "--plugin-dir", &plugin_dir, "--input", &input, "--output", &output];
        byoc_with(programs, backend, &run).ok();
        let [expected, found] = [path("host.npz"), output].map(|file| outputs(Path::new(&file)));
        let difference = expected.iter().zip(&found).map(|(e, f)| (e - f).abs()).fold(0.0, f64::max);
        let size = expected.iter().fold(0.0f64, |max, value| max.max(value.abs()));
        assert!(expected.len() == found.len() && difference <= 0.02 * size, "{difference} of {size}");
    }
}

/// Reads all numbers of an archive.
fn outputs(file: &Path) -> Vec<f64> {
    let entries = ::byoc::io::npz::read(file).unwrap();
    entries.iter().flat_map(|(_, tensor)| tensor.view().to_f64s()).collect()
}

/// Writes a shell script as a compiler.
fn script(dir: &TempDir, name: &str, text: &str) -> PathBuf {
    let file = dir.path().join(name);
    std::fs::write(&file, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    file
}

/// Compilers that agree to everything and then fail: the region is refused with their last lines, and the host runs it.
#[test]
fn failing_compilers_are_quoted() {
    let (dir, stand_in) = (temp_dir(), onnx_compiler());
    let plugin_dir = plugins().display().to_string();
    let model = data_text("digits/digits.onnx");
    let agrees = "[ \"$2\" = --check ] && exit 0";
    for (name, text, expected) in [
        ("exits", "echo pass 1 >&2; echo out of registers; exit 3", "pass 1; out of registers"),
        ("silent", "exit 4", "no message"),
        ("nothing", "echo done; exit 0", "region.bin is missing"),
        ("other", "echo wrote other.bin; echo x > other.bin", "wrote other.bin"),
        ("hangs", "echo fusing; sleep 1000", "fusing"),
        ("killed", "echo linking; kill -9 $$", "linking"),
    ] {
        let compiler = script(&dir, name, &format!("{agrees}\n{text}"));
        for backend in BACKENDS {
            let limit = format!("{backend}.time_limit=1");
            let on = ["--backend", backend, "--plugin-dir", &plugin_dir, "--backend-option", &limit, "--json"];
            let on = [&["explain", &model, "--dim", "batch=1"][..], &on].concat();
            let output = byoc_with([&compiler, &stand_in], backend, &on).ok();
            let explained = output.json().remove(0);
            assert_eq!(explained["regions"].as_array().unwrap().len(), 0, "{name} {backend}: {explained}");
            assert!(explained.to_string().contains(expected), "{name} {backend}: {explained}");
        }
    }
}

/// Compilers that say no, hang or are missing when they are asked.
#[test]
fn compilers_that_do_not_answer_are_named() {
    let (dir, stand_in) = (temp_dir(), onnx_compiler());
    let plugin_dir = plugins().display().to_string();
    let model = data_text("digits/digits.onnx");
    let refusing = script(&dir, "refusing", "echo no Conv of this size >&2; exit 1");
    let hanging = script(&dir, "hanging", "echo thinking; sleep 1000");
    for backend in BACKENDS {
        let variable = format!("{}_CC", backend.to_ascii_uppercase());
        for (compiler, code, expected) in [
            (refusing.as_path(), "UnsupportedOp", "no Conv of this size"),
            (&hanging, "Unavailable", "did not finish within"),
            (Path::new("/nowhere/cc"), "Unavailable", variable.as_str()),
        ] {
            let limit = format!("{backend}.time_limit=1");
            let on = ["--backend", backend, "--plugin-dir", &plugin_dir, "--backend-option", &limit, "--json"];
            let on = [&["explain", &model, "--dim", "batch=1"][..], &on].concat();
            let explained = byoc_with([compiler, &stand_in], backend, &on).ok().json().remove(0);
            let refusals =
                explained["nodes"].as_array().unwrap().iter().flat_map(|node| node["refusals"].as_array().unwrap());
            let found: Vec<String> =
                refusals.filter(|refusal| refusal["code"] == code).map(ToString::to_string).collect();
            assert!(found.iter().any(|refusal| refusal.contains(expected)), "{expected}: {explained}");
        }
    }
}

/// A run time that fails or hangs: the error of the run has its last lines.
#[test]
fn failing_run_times_are_quoted() {
    let (dir, stand_in) = (temp_dir(), onnx_compiler());
    let plugin_dir = plugins().display().to_string();
    let model = data_text("digits/digits.onnx");
    for (name, text, expected) in
        [("fails", "echo no device >&2; exit 9", "no device"), ("hangs", "echo waiting >&2; sleep 1000", "waiting")]
    {
        let run_time = script(&dir, name, text);
        for backend in BACKENDS {
            let limit = format!("{backend}.time_limit=2");
            let args = ["run", &model, "--dim", "batch=1", "--input", "image=ones", "--backend", backend];
            let args = [&args[..], &["--plugin-dir", &plugin_dir, "--backend-option", &limit]].concat();
            let output = byoc_with([&stand_in, &run_time], backend, &args);
            assert!(output.err.contains(expected), "{name} {backend}: {}", output.err);
        }
    }
}

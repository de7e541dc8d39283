//! Artifacts: independent of directory, cache and thread count, rejected when corrupt, and explicit about their
//! requirements.

use crate::{byoc, data_text};
use byoc_test_support::plugin_dir;

#[test]
fn artifact_is_reproducible() {
    let plugins = plugin_dir(&["ccompiler"]);
    let temp_dir = tempfile::tempdir().unwrap();
    let path = |name: &str| temp_dir.path().join(name).display().to_string();
    let dir = plugins.path().display().to_string();
    std::fs::create_dir(temp_dir.path().join("elsewhere")).unwrap();
    let model = data_text("models/unet_small/model.onnx");
    let copy = path("elsewhere/model.onnx");
    std::fs::copy(&model, &copy).unwrap();
    let cache = path("cache");
    let build = |model: &str, output: &str, extra_args: &[&str]| {
        let args = ["compile", model, "-o", output, "--backend", "ccompiler", "--plugin-dir", &dir];
        byoc(args.iter().chain(extra_args)).ok();
        std::fs::read(output).unwrap()
    };
    let first_artifact = build(&model, &path("a.byoc"), &["--cache-dir", &cache, "--threads", "1"]);
    let warm_artifact = build(&model, &path("b.byoc"), &["--cache-dir", &cache, "--threads", "2"]);
    let cold_artifact = build(&copy, &path("elsewhere/c.byoc"), &["--no-cache", "--threads", "2"]);
    assert!(first_artifact == warm_artifact && first_artifact == cold_artifact);
}

/// Tests that the C compiler finds its subprograms without a `PATH`. A compiler started by its bare name would not find
/// them.
#[test]
fn artifact_compiles_with_an_empty_environment() {
    let plugins = plugin_dir(&["ccompiler"]);
    let temp_dir = tempfile::tempdir().unwrap();
    let (file, dir) = (temp_dir.path().join("digits.byoc"), plugins.path().display().to_string());
    let (model, file) = (data_text("digits/digits.onnx"), file.display().to_string());
    let build = ["--dim", "batch=1", "--backend", "ccompiler", "--plugin-dir", &dir, "--require-offload=0.9"];
    let mut command = crate::command([&["compile", &model, "-o", &file, "--no-cache"], &build[..]].concat());
    crate::to_command_output(command.env_clear().output().unwrap()).ok();
}

#[test]
fn artifact_names_missing_plugin() {
    let plugins = plugin_dir(&["template"]);
    let temp_dir = tempfile::tempdir().unwrap();
    let file = temp_dir.path().join("digits.byoc").display().to_string();
    let dir = plugins.path().display().to_string();
    let model = data_text("digits/digits.onnx");
    byoc(["compile", &model, "-o", &file, "--dim", "batch=1", "--backend", "template", "--plugin-dir", &dir]).ok();
    let run = |dir: &str| byoc(["run", &file, "--input", "image=random:3", "--json", "--plugin-dir", dir]).ok();
    let plugin_output = run(&dir);
    let fallback_output = run(&temp_dir.path().display().to_string());
    let fallback_output = fallback_output.stderr_contains(&[
        "E0402",
        "loadbinary_template",
        "template 0.1.0",
        "runs on the host",
        "searched ",
    ]);
    // The plugin executes the reference operators, the host its kernels, so results differ only by rounding.
    let first_value = |output: &crate::CommandOutput| -> Vec<f64> {
        output.json()[0]["first"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
    };
    for (a, b) in first_value(&plugin_output).into_iter().zip(first_value(&fallback_output)) {
        assert!((a - b).abs() < 1e-4, "expected {b}, found {a}");
    }
    let listing = byoc(["inspect", &file]).ok().out;
    assert!(listing.contains("loadbinary_template") && listing.contains("template 0.1.0"), "{listing}");
}

#[test]
fn rejects_damaged_artifact() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("digits.byoc");
    let text = file.display().to_string();
    byoc(["compile", &data_text("digits/digits.onnx"), "-o", &text, "--dim", "batch=1"]).ok();
    let bytes = std::fs::read(&file).unwrap();
    for offset in [0, 100, bytes.len() / 3, bytes.len() / 2, bytes.len() - 1] {
        let mut damaged_bytes = bytes.clone();
        damaged_bytes[offset] ^= 1;
        std::fs::write(&file, &damaged_bytes).unwrap();
        let output = byoc(["run", &text, "--input", "image=random"]);
        assert!(output.code == 1 && output.err.contains("error[E07"), "byte {offset}: {}", output.err);
    }
    std::fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
    let output = byoc(["run", &text, "--input", "image=random"]);
    assert!(output.code == 1 && output.err.contains("error[E07"), "{}", output.err);
}

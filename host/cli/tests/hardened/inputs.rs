//! Inputs that are not regular files are rejected with a diagnostic, without blocking.

use crate::nodes::{create_fifo, run_nonblocking};
use crate::{CommandOutput, byoc, command, data_text};
use std::path::Path;

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// Asserts that a command rejects a special file without blocking.
#[track_caller]
fn assert_refused(args: &[&str], code: &str, message: &str) -> CommandOutput {
    run_nonblocking(&mut command(args)).fails_with(code).stderr_contains(&[message])
}

#[test]
fn rejects_fifos() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = |name: &str| {
        let path = dir.path().join(name);
        create_fifo(&path);
        text(&path)
    };
    let message = "expected a regular file, found a FIFO";
    let digits = data_text("digits/digits.onnx");
    let program = dir.path().join("p.relay");
    std::fs::write(&program, "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(4), float32]) { nn.relu(%x) }\n").unwrap();
    let program = text(&program);

    for (name, code) in [("m.onnx", "E0501"), ("m.relay", "E0501"), ("m.byoc", "E0705")] {
        let model = pipe(name);
        assert_refused(&["run", &model, "--input", "x=ones"], code, message);
        assert_refused(&["run", &model, "--describe"], code, message);
    }
    assert_refused(&["inspect", &text(&dir.path().join("m.byoc"))], "E0705", message);
    for name in ["x.npy", "x.npz", "x.pb"] {
        assert_refused(&["run", &program, "--input", &format!("x={}", pipe(name))], "E0512", message);
    }
    let run_args = ["run", &digits, "--dim", "batch=1"];
    assert_refused(&[&run_args[..], &["--image", &pipe("x.png")]].concat(), "E0512", message);
    assert_refused(
        &[&run_args[..], &["--input", "image=ones", "--labels", &pipe("labels.txt")]].concat(),
        "E0512",
        message,
    );
    assert_refused(&["opt", &pipe("opt.relay")], "E0501", message);
    assert_refused(&["opt", &program, "--expect", &pipe("expect.relay")], "E0501", message);
    let merge_args = ["opt", &program, "--pass", "merge_composite", "--patterns"];
    assert_refused(&[&merge_args[..], &[&pipe("patterns.txt")]].concat(), "E0501", message);
    pipe("p.relay.safetensors");
    assert_refused(&["opt", &program], "E0512", message);

    let quantized_path = text(&dir.path().join("q.relay"));
    let quantize_args = ["quantize", &digits, "-o", &quantized_path, "--calibrate"];
    assert_refused(&[&quantize_args[..], &[&pipe("calibrate.npz")]].concat(), "E0512", message);
    for labels in ["l.txt", "l.npz"] {
        assert_refused(&[&quantize_args[..], &["random", "--labels", &pipe(labels)]].concat(), "E0512", message);
    }
    std::fs::create_dir(dir.path().join("pictures")).unwrap();
    pipe("pictures/p.png");
    let pictures = text(&dir.path().join("pictures"));
    assert_refused(&[&quantize_args[..], &[&pictures]].concat(), "E0512", message);
}

#[test]
fn rejects_fifos_in_folders() {
    let dir = tempfile::tempdir().unwrap();
    let (case, set) = (dir.path().join("case"), dir.path().join("case/test_data_set_0"));
    std::fs::create_dir_all(&set).unwrap();
    std::fs::copy(data_text("hardened/esc.onnx"), case.join("model.onnx")).unwrap();
    create_fifo(&set.join("input_0.pb"));
    assert_refused(&["run", &text(&case)], "E0512", "expected a regular file, found a FIFO");
    create_fifo(&case.join("data.json"));
    assert_refused(&["run", &text(&case)], "E0516", "data.json: expected a regular file, found a FIFO");

    let plugins = dir.path().join("plugins");
    std::fs::create_dir(&plugins).unwrap();
    create_fifo(&plugins.join("libbyoc_pipe.so"));
    let list_args = ["plugins", "list", "--json", "--plugin-dir", &text(&plugins)];
    let list_output = run_nonblocking(&mut command(list_args)).ok();
    assert_eq!(list_output.json()[0]["reason"], "expected a regular file, found a directory or a special file");
}

#[test]
fn rejects_devices() {
    let dir = tempfile::tempdir().unwrap();
    let digits = data_text("digits/digits.onnx");
    let message = "expected a regular file, found a device";
    let run = ["run", &digits, "--dim", "batch=1", "--input", "image=ones", "--labels"];
    assert_refused(&[&run[..], &["/dev/null"]].concat(), "E0512", message);
    for (name, code) in [("m.onnx", "E0501"), ("m.relay", "E0501"), ("m.byoc", "E0705")] {
        let model = dir.path().join(name);
        std::os::unix::fs::symlink("/dev/null", &model).unwrap();
        assert_refused(&["run", &text(&model), "--input", "x=ones"], code, message);
    }
    let quantized_path = text(&dir.path().join("q.relay"));
    assert_refused(&["quantize", &digits, "-o", &quantized_path, "--calibrate", "/dev/null"], "E0512", message);
}

#[test]
fn invalid_tolerance_is_usage_error() {
    let model = data_text("models/gru");
    for (option, value) in [
        ("--rtol", "nan"),
        ("--rtol", "-1e-3"),
        ("--atol", "NaN"),
        ("--atol", "-inf"),
        ("--max-rel-err", "nan"),
        ("--max-rel-err", "-0.5"),
        ("--max-rel-err", "much"),
    ] {
        let output = byoc(["verify", &model, option, value]);
        assert_eq!(output.code, 2, "{option} {value}: {}", output.err);
        assert!(output.err.contains("expected a number >= 0"), "{}", output.err);
    }
    for share in ["nan", "-0.1", "1.5", "most"] {
        let output = byoc(["verify", &model, &format!("--require-offload={share}")]);
        assert_eq!(output.code, 2, "{share}: {}", output.err);
        assert!(output.err.contains("expected a share from 0 to 1"), "{}", output.err);
    }
    byoc(["verify", &model, "--rtol", "0", "--atol", "1", "--require-offload=0"]).ok();

    // Tolerances specified by a test directory.
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(data_text("hardened/esc.onnx"), dir.path().join("model.onnx")).unwrap();
    std::fs::write(dir.path().join("data.json"), "{\"rtol\": -1}").unwrap();
    let output = byoc(["verify", &text(dir.path())]);
    assert!(output.code == 1 && output.out.contains("E0516"), "{}", output.out);
    assert!(output.out.contains("rtol: expected a number >= 0, found -1"), "{}", output.out);
}

#[test]
fn no_cache_overrides_environment() {
    let dir = tempfile::tempdir().unwrap();
    let model = data_text("hardened/esc.onnx");
    let cache = dir.path().join("cache");
    let mut command = command(["explain", &model, "--no-cache"]);
    crate::to_command_output(command.env("BYOC_CACHE_DIR", &cache).output().unwrap()).ok();
    assert!(!cache.exists());
}

//! Inputs that are not regular files are rejected with a diagnostic, without blocking.

use crate::nodes::{fifo, run_nonblocking};
use crate::{CommandOutput, byoc, command, data_text};
use std::path::Path;

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// Asserts that a command rejects a special file without blocking.
#[track_caller]
fn refused(args: &[&str], code: &str, words: &str) -> CommandOutput {
    run_nonblocking(&mut command(args)).fails_with(code).stderr_contains(&[words])
}

#[test]
fn rejects_fifos() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = |name: &str| {
        let path = folder.path().join(name);
        fifo(&path);
        text(&path)
    };
    let words = "expected a regular file, found a FIFO";
    let digits = data_text("digits/digits.onnx");
    let program = folder.path().join("p.relay");
    std::fs::write(&program, "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(4), float32]) { nn.relu(%x) }\n").unwrap();
    let program = text(&program);

    for (name, code) in [("m.onnx", "E0501"), ("m.relay", "E0501"), ("m.byoc", "E0705")] {
        let model = pipe(name);
        refused(&["run", &model, "--input", "x=ones"], code, words);
        refused(&["run", &model, "--describe"], code, words);
    }
    refused(&["inspect", &text(&folder.path().join("m.byoc"))], "E0705", words);
    for name in ["x.npy", "x.npz", "x.pb"] {
        refused(&["run", &program, "--input", &format!("x={}", pipe(name))], "E0512", words);
    }
    let run = ["run", &digits, "--dim", "batch=1"];
    refused(&[&run[..], &["--image", &pipe("x.png")]].concat(), "E0512", words);
    refused(&[&run[..], &["--input", "image=ones", "--labels", &pipe("labels.txt")]].concat(), "E0512", words);
    refused(&["opt", &pipe("opt.relay")], "E0501", words);
    refused(&["opt", &program, "--expect", &pipe("expect.relay")], "E0501", words);
    let merge = ["opt", &program, "--pass", "merge_composite", "--patterns"];
    refused(&[&merge[..], &[&pipe("patterns.txt")]].concat(), "E0501", words);
    pipe("p.relay.safetensors");
    refused(&["opt", &program], "E0512", words);

    let quantized = text(&folder.path().join("q.relay"));
    let quantize = ["quantize", &digits, "-o", &quantized, "--calibrate"];
    refused(&[&quantize[..], &[&pipe("calibrate.npz")]].concat(), "E0512", words);
    for labels in ["l.txt", "l.npz"] {
        refused(&[&quantize[..], &["random", "--labels", &pipe(labels)]].concat(), "E0512", words);
    }
    std::fs::create_dir(folder.path().join("pictures")).unwrap();
    pipe("pictures/p.png");
    let pictures = text(&folder.path().join("pictures"));
    refused(&[&quantize[..], &[&pictures]].concat(), "E0512", words);
}

#[test]
fn rejects_fifos_in_folders() {
    let folder = tempfile::tempdir().unwrap();
    let (case, set) = (folder.path().join("case"), folder.path().join("case/test_data_set_0"));
    std::fs::create_dir_all(&set).unwrap();
    std::fs::copy(data_text("hardened/esc.onnx"), case.join("model.onnx")).unwrap();
    fifo(&set.join("input_0.pb"));
    refused(&["run", &text(&case)], "E0512", "expected a regular file, found a FIFO");
    fifo(&case.join("data.json"));
    refused(&["run", &text(&case)], "E0516", "data.json: expected a regular file, found a FIFO");

    let plugins = folder.path().join("plugins");
    std::fs::create_dir(&plugins).unwrap();
    fifo(&plugins.join("libbyoc_pipe.so"));
    let list = ["plugins", "list", "--json", "--plugin-dir", &text(&plugins)];
    let listed = run_nonblocking(&mut command(list)).ok();
    assert_eq!(listed.json()[0]["reason"], "expected a regular file, found a directory or a special file");
}

#[test]
fn rejects_devices() {
    let folder = tempfile::tempdir().unwrap();
    let digits = data_text("digits/digits.onnx");
    let words = "expected a regular file, found a device";
    let run = ["run", &digits, "--dim", "batch=1", "--input", "image=ones", "--labels"];
    refused(&[&run[..], &["/dev/null"]].concat(), "E0512", words);
    for (name, code) in [("m.onnx", "E0501"), ("m.relay", "E0501"), ("m.byoc", "E0705")] {
        let model = folder.path().join(name);
        std::os::unix::fs::symlink("/dev/null", &model).unwrap();
        refused(&["run", &text(&model), "--input", "x=ones"], code, words);
    }
    let quantized = text(&folder.path().join("q.relay"));
    refused(&["quantize", &digits, "-o", &quantized, "--calibrate", "/dev/null"], "E0512", words);
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
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(data_text("hardened/esc.onnx"), folder.path().join("model.onnx")).unwrap();
    std::fs::write(folder.path().join("data.json"), "{\"rtol\": -1}").unwrap();
    let output = byoc(["verify", &text(folder.path())]);
    assert!(output.code == 1 && output.out.contains("E0516"), "{}", output.out);
    assert!(output.out.contains("rtol: expected a number >= 0, found -1"), "{}", output.out);
}

#[test]
fn no_cache_overrides_environment() {
    let folder = tempfile::tempdir().unwrap();
    let model = data_text("hardened/esc.onnx");
    let cache = folder.path().join("cache");
    let mut command = command(["explain", &model, "--no-cache"]);
    crate::to_command_output(command.env("BYOC_CACHE_DIR", &cache).output().unwrap()).ok();
    assert!(!cache.exists());
}

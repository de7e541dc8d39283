//! Output files of commands: only regular files are replaced, and no partial files remain.

use crate::nodes::{create_device, create_fifo, read_all, reader};
use crate::{CommandOutput, byoc, command, data_text, to_command_output};
use std::fs::Permissions;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Directory with a small model, the input of the commands that write a file.
struct Writers {
    temp_dir: TempDir,
    model: String,
}

/// Commands that write a file: the name used in these tests, and the first bytes of the file.
const WRITERS: &[(&str, &[u8])] =
    &[("artifact", b"PK"), ("output", b"PK"), ("trace", b"{"), ("bench", b"{"), ("html", b"<!doctype html>")];

impl Writers {
    fn new() -> Writers {
        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().join("model.relay");
        let program = "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(4, 8), float32]) { nn.relu(exp(%x)) }\n";
        std::fs::write(&model, program).unwrap();
        let model = model.display().to_string();
        Writers { temp_dir: dir, model }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.temp_dir.path().join(name)
    }

    fn args(&self, command: &str, path: &str) -> Vec<String> {
        let args: &[&str] = match command {
            "artifact" => &["compile", &self.model, "-o", path],
            "output" => &["run", &self.model, "--input", "x=ones", "--output", path],
            "trace" => &["run", &self.model, "--input", "x=ones", "--trace", path],
            "bench" => &["bench", &self.model, "--runs", "1", "--trace", path],
            "html" => &["explain", &self.model, "--html", path],
            "quantize" => {
                let model = &data_text("digits/digits.onnx");
                return ["quantize", model, "--calibrate", "random", "--samples", "2", "-o", path]
                    .map(String::from)
                    .to_vec();
            }
            other => panic!("unknown writer {other}"),
        };
        args.iter().map(|arg| (*arg).to_owned()).collect()
    }

    fn write(&self, command: &str, path: &Path) -> CommandOutput {
        byoc(self.args(command, &path.display().to_string()))
    }

    /// Returns the number of entries in the directory, which reveals leftover temporary files.
    fn entries(&self) -> usize {
        std::fs::read_dir(self.temp_dir.path()).unwrap().count()
    }
}

/// Returns a name for the file of a command: that of Relay text has its ending, which no artifact may have.
fn name_of(stem: &str, command: &str) -> String {
    if command == "quantize" { format!("{stem}.relay") } else { stem.to_owned() }
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().mode() & 0o777
}

#[test]
fn writes_to_device() {
    let writers = Writers::new();
    for (command, _) in WRITERS.iter().chain(&[("quantize", &b""[..])]) {
        let node = writers.path(&name_of("null", command));
        if !node.exists() && !create_device(&node, "null") {
            return;
        }
        writers.write(command, &node).ok();
        assert!(std::fs::symlink_metadata(&node).unwrap().file_type().is_char_device(), "{command}");
    }
    let full = writers.path("full");
    assert!(create_device(&full, "full"));
    for (command, _) in WRITERS {
        let code = if *command == "artifact" { "E0706" } else { "E0513" };
        writers.write(command, &full).fails_with(code).stderr_contains(&["full: No space left on device"]);
        assert!(std::fs::symlink_metadata(&full).unwrap().file_type().is_char_device(), "{command}");
    }
}

#[test]
fn writes_to_fifo() {
    let writers = Writers::new();
    let pipe = writers.path("pipe");
    create_fifo(&pipe);
    for (command, begin) in WRITERS {
        let reader = reader(&pipe);
        writers.write(command, &pipe).ok();
        assert!(read_all(reader).starts_with(begin), "{command}");
        assert!(std::fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo(), "{command}");
    }
}

#[test]
fn writes_to_target_of_link() {
    let writers = Writers::new();
    std::fs::create_dir(writers.path("there")).unwrap();
    for (command, begin) in WRITERS {
        let (link, target) = (writers.path(&format!("{command} link")), writers.path(&format!("there/{command}")));
        symlink(format!("there/{command}"), &link).unwrap();
        // The first run creates the target, the second run replaces it.
        for _ in 0..2 {
            writers.write(command, &link).ok();
            assert!(link.is_symlink(), "{command}");
            assert!(std::fs::read(&target).unwrap().starts_with(begin), "{command}");
            std::fs::write(&target, "old").unwrap();
        }
    }
    assert_eq!(std::fs::read_dir(writers.path("there")).unwrap().count(), WRITERS.len());
}

#[test]
fn weights_of_quantized_model_follow_links() {
    let writers = Writers::new();
    std::fs::create_dir(writers.path("there")).unwrap();
    for name in ["q.relay", "q.relay.safetensors"] {
        symlink(format!("there/{name}"), writers.path(name)).unwrap();
    }
    writers.write("quantize", &writers.path("q.relay")).ok();
    for name in ["q.relay", "q.relay.safetensors"] {
        assert!(writers.path(name).is_symlink());
        assert!(writers.path("there").join(name).metadata().unwrap().len() > 100);
    }
}

/// Runs `byoc` with the given umask.
fn run_with_umask(umask: &str, args: &[String]) -> CommandOutput {
    let byoc = command(args);
    let mut shell = Command::new("sh");
    shell.args(["-c", "umask $0; exec \"$@\"", umask]).arg(byoc.get_program()).args(byoc.get_args());
    for (name, value) in byoc.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    to_command_output(shell.output().unwrap())
}

#[test]
fn permissions_follow_umask_or_replaced_file() {
    let writers = Writers::new();
    for (command, _) in WRITERS {
        let path = writers.path(command);
        let args = writers.args(command, &path.display().to_string());
        run_with_umask("027", &args).ok();
        assert_eq!(mode(&path), 0o640, "{command}: expected the umask to set the mode of a new file");
        std::fs::set_permissions(&path, Permissions::from_mode(0o604)).unwrap();
        run_with_umask("077", &args).ok();
        assert_eq!(mode(&path), 0o604, "{command}: expected a replaced file to keep its mode");
    }
    let dir = writers.path("mine");
    run_with_umask("027", &["plugins".into(), "new".into(), dir.display().to_string(), "--c".into()]).ok();
    assert_eq!([mode(&dir), mode(&dir.join("Makefile"))], [0o750, 0o640]);
}

#[test]
fn rejects_folder_as_output() {
    let writers = Writers::new();
    for (command, _) in WRITERS.iter().chain(&[("quantize", &b""[..])]) {
        let [dir, link] = ["folder", "link"].map(|stem| name_of(stem, command));
        if !writers.path(&dir).exists() {
            std::fs::create_dir(writers.path(&dir)).unwrap();
            symlink(&dir, writers.path(&link)).unwrap();
        }
        let entries_before = writers.entries();
        for name in [dir, link] {
            let message = format!("{name}: expected a file, found a directory");
            writers.write(command, &writers.path(&name)).fails_with("E0513").stderr_contains(&[&message]);
        }
        assert_eq!(writers.entries(), entries_before);
    }
}

#[test]
fn failed_command_leaves_no_files() {
    let writers = Writers::new();
    let entries_before = writers.entries();
    let path = writers.path("out").display().to_string();
    byoc(["run", &writers.model, "--input", "y=ones", "--output", &path, "--trace", &path]).fails_with("E0602");
    byoc(["zoo", "no_such_architecture", "-o", &path]).fails_with("E0515");
    byoc(["compile", &writers.path("missing.relay").display().to_string(), "-o", &path]).fails_with("E0501");
    // The directory of a new plugin is created completely or not at all.
    symlink("nowhere", writers.path("mine")).unwrap();
    let plugin = writers.path("mine");
    byoc(["plugins", "new", &plugin.display().to_string()])
        .fails_with("E0425")
        .stderr_contains(&["cannot write", "mine"]);
    std::fs::remove_file(&plugin).unwrap();
    assert_eq!(writers.entries(), entries_before);
}

/// Runs `byoc`; returns standard output as bytes, and standard error.
fn bytes(args: &[String]) -> (Vec<u8>, String) {
    let output = command(args).output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{err}");
    (output.stdout, err)
}

#[test]
fn dash_writes_only_result_to_standard_output() {
    let writers = Writers::new();
    for (command, begin) in WRITERS {
        let (out, err) = bytes(&writers.args(command, "-"));
        assert!(out.starts_with(begin), "{command}");
        let file = writers.path(command);
        writers.write(command, &file).ok();
        let file_bytes = std::fs::read(&file).unwrap();
        match *command {
            "trace" | "bench" => {
                serde_json::from_slice::<serde_json::Value>(&out).unwrap();
            }
            _ => assert!(out == file_bytes, "{command}: expected the same bytes in the file and on standard output"),
        }
        let stderr = match *command {
            "artifact" => "wrote standard output",
            "output" | "trace" => "Tensor[(4, 8), float32]  min",
            "bench" => "median",
            _ => "operators:",
        };
        assert!(err.contains(stderr), "{command}: expected {stderr} in {err}");
        assert!(!writers.path("-").exists() && !Path::new("-").exists());
        // The path `/dev/stdout` is equivalent to `-`.
        assert!(bytes(&writers.args(command, "/dev/stdout")).0.starts_with(begin), "{command}");
    }
    let (text, err) = bytes(&writers.args("quantize", "-"));
    assert!(err.contains("layers in int8"), "{err}");
    let file = writers.path("q.relay");
    std::fs::write(&file, text).unwrap();
    byoc(["run", &file.display().to_string(), "--dim", "batch=1", "--input", "image=ones"]).ok();
    let args = ["run", &writers.model, "--input", "x=ones", "--output", "-", "--trace", "-"];
    let output = byoc(args).fails_with("E0513").stderr_contains(&["expected at most one file on standard output"]);
    assert_eq!(output.out, "");
}

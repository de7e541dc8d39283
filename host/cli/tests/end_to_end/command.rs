//! Runs the `byoc` binary as a user would, and checks its output and exit code.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

/// Standard output, standard error and exit code of a command.
pub struct CommandOutput {
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
    /// Exit code.
    pub code: i32,
}

impl CommandOutput {
    /// Asserts that the command succeeded.
    #[track_caller]
    pub fn ok(self) -> CommandOutput {
        assert_eq!(self.code, 0, "stdout:\n{}\nstderr:\n{}", self.out, self.err);
        self
    }

    /// Asserts that the command failed with exit code 1 and a diagnostic with this code.
    #[track_caller]
    pub fn fails_with(self, code: &str) -> CommandOutput {
        assert_eq!(self.code, 1, "stdout:\n{}\nstderr:\n{}", self.out, self.err);
        assert!(self.err.contains(&format!("error[{code}]")), "expected {code} in:\n{}", self.err);
        self
    }

    /// Asserts that standard error contains each of `fragments`.
    #[track_caller]
    pub fn stderr_contains(self, fragments: &[&str]) -> CommandOutput {
        for fragment in fragments {
            assert!(self.err.contains(fragment), "expected \"{fragment}\" in:\n{}", self.err);
        }
        self
    }

    /// Parses standard output, one JSON value per line.
    #[track_caller]
    pub fn json(&self) -> Vec<serde_json::Value> {
        self.out.lines().map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{e}: {l}"))).collect()
    }
}

/// Runs `byoc` in a clean environment.
pub fn byoc<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> CommandOutput {
    to_command_output(command(args).output().expect("cannot start byoc"))
}

/// Creates the command for `byoc` in a clean environment, without starting it.
pub fn command<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = isolated_command(binary());
    command.args(args);
    command
}

/// Creates the command for `program` in a clean environment, without variables that affect `byoc`.
pub fn isolated_command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    let home = std::env::temp_dir().join("byoc-tests-without-a-home");
    command.env("HOME", &home).env("XDG_DATA_HOME", &home).env("XDG_CACHE_HOME", &home);
    for name in ["BYOC_PLUGIN_PATH", "BYOC_THREADS", "BYOC_LOG", "BYOC_CACHE_DIR", "NUC_FPGA_DRIVER", "VTA_DRIVER"] {
        command.env_remove(name);
    }
    command
}

/// Returns a copy of the binary in a separate directory, so that the binary does not find the plugins that cargo builds
/// next to the original.
pub fn binary() -> &'static Path {
    static BINARY: LazyLock<PathBuf> = LazyLock::new(|| {
        let executable = Path::new(env!("CARGO_BIN_EXE_byoc"));
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("alone-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("cannot create the directory for the binary");
        let copy = dir.join("byoc");
        byoc_test_support::copy(executable, &copy);
        copy
    });
    &BINARY
}

/// Converts the output of a finished process.
pub fn to_command_output(output: Output) -> CommandOutput {
    CommandOutput {
        out: String::from_utf8(output.stdout).expect("expected UTF-8 on standard output"),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
        code: output.status.code().expect("expected an exit code, found a signal"),
    }
}

/// Returns the path of a file or directory in the project's `tests` directory.
pub fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests").join(path)
}

/// Returns the path of a file or directory in the project's `tests` directory as text.
pub fn data_text(path: &str) -> String {
    data(path).display().to_string()
}

/// Returns the directories of the models with recorded outputs, sorted by name.
pub fn models() -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(data("models"))
        .expect("cannot read the directory of the models")
        .map(|e| e.expect("cannot read a directory entry").path())
        .filter(|p| p.join("model.onnx").is_file())
        .collect();
    paths.sort();
    assert_eq!(paths.len(), 15);
    paths
}

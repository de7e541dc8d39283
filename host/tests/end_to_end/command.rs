//! Runs the `byoc` binary as a user would, and looks at what it printed and how it ended.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

/// What a command printed and how it ended.
pub struct Ran {
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
    /// The exit code.
    pub code: i32,
}

impl Ran {
    /// Asserts that the command went well.
    #[track_caller]
    pub fn ok(self) -> Ran {
        assert_eq!(self.code, 0, "stdout:\n{}\nstderr:\n{}", self.out, self.err);
        self
    }

    /// Asserts that the command ended with a diagnostic of this code, the user's error.
    #[track_caller]
    pub fn fails_with(self, code: &str) -> Ran {
        assert_eq!(self.code, 1, "stdout:\n{}\nstderr:\n{}", self.out, self.err);
        assert!(self.err.contains(&format!("error[{code}]")), "{code} in:\n{}", self.err);
        self
    }

    /// Asserts that standard error says all of these.
    #[track_caller]
    pub fn says(self, words: &[&str]) -> Ran {
        for word in words {
            assert!(self.err.contains(word), "\"{word}\" in:\n{}", self.err);
        }
        self
    }

    /// Standard output, one JSON value a line.
    #[track_caller]
    pub fn json(&self) -> Vec<serde_json::Value> {
        self.out.lines().map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{e}: {l}"))).collect()
    }
}

/// Runs `byoc` with nothing of the surroundings that could change what it does.
pub fn byoc<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Ran {
    ran(command(args).output().expect("byoc starts"))
}

/// The same, not started yet.
pub fn command<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = without_surroundings(binary());
    command.args(args);
    command
}

/// A program with nothing of the surroundings that could change what `byoc` does.
pub fn without_surroundings(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    let home = std::env::temp_dir().join("byoc-tests-without-a-home");
    command.env("HOME", &home).env("XDG_DATA_HOME", &home).env("XDG_CACHE_HOME", &home);
    for name in ["BYOC_PLUGIN_PATH", "BYOC_THREADS", "BYOC_LOG", "BYOC_CACHE_DIR", "NUC_FPGA_DRIVER"] {
        command.env_remove(name);
    }
    command
}

/// The binary alone in a folder: beside the one that cargo builds lie plugins, which it would find.
pub fn binary() -> &'static Path {
    static BINARY: LazyLock<PathBuf> = LazyLock::new(|| {
        let built = Path::new(env!("CARGO_BIN_EXE_byoc"));
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("alone-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder for the binary");
        let alone = folder.join("byoc");
        byoc_test_support::copy(built, &alone);
        alone
    });
    &BINARY
}

/// A finished process.
pub fn ran(output: Output) -> Ran {
    Ran {
        out: String::from_utf8(output.stdout).expect("UTF-8 on standard output"),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
        code: output.status.code().expect("byoc does not die of a signal"),
    }
}

/// A file or folder in the project's `tests` folder.
pub fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests").join(path)
}

/// The same as text.
pub fn data_text(path: &str) -> String {
    data(path).display().to_string()
}

/// The folders of the models with recorded outputs, by name.
pub fn models() -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = std::fs::read_dir(data("models"))
        .expect("the models are there")
        .map(|e| e.expect("a folder entry").path())
        .filter(|p| p.join("model.onnx").is_file())
        .collect();
    all.sort();
    assert_eq!(all.len(), 15);
    all
}

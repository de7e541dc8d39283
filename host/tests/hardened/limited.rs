//! Runs `byoc` with so much address space, so that an allocation by a size from a file fails there and then.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

/// Address space in KiB that every command of these tests can do with: the binary, its threads, and half a gigabyte.
pub const SPACE: usize = 1 << 20;

/// What a command printed and how it ended.
pub struct Ran {
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
    /// The exit code; -1 for a signal.
    pub code: i32,
}

impl Ran {
    /// Asserts that the command went well.
    #[track_caller]
    pub fn ok(self) -> Ran {
        assert_eq!(self.code, 0, "stdout:\n{}\nstderr:\n{}", self.out, self.err);
        self
    }

    /// Asserts that the command ended with a diagnostic of this code, which says all of these.
    #[track_caller]
    pub fn fails_with(self, code: &str, words: &[&str]) -> Ran {
        assert_eq!(self.code, 1, "stdout:\n{}\nstderr:\n{}", self.out, self.err);
        assert!(self.err.contains(&format!("error[{code}]")), "{code} in:\n{}", self.err);
        for word in words {
            assert!(self.err.contains(word), "\"{word}\" in:\n{}", self.err);
        }
        self
    }
}

/// Runs `byoc` with [`SPACE`].
pub fn byoc(args: &[&str]) -> Ran {
    ran(command(args).output().expect("a shell starts"))
}

/// The same, not started yet. `exec` leaves one process, whose number is the command's.
pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new("sh");
    let limited = format!("ulimit -v {SPACE}; exec \"$@\"");
    let home = std::env::temp_dir().join("byoc-tests-without-a-home");
    command.args(["-c", &limited, "sh"]).arg(binary()).args(args);
    command.env("HOME", &home).env("XDG_CACHE_HOME", &home).env("XDG_DATA_HOME", &home).env("BYOC_THREADS", "2");
    command.env_remove("BYOC_PLUGIN_PATH");
    command
}

/// The binary alone in a folder: beside the one that cargo builds lie plugins, which it would load.
fn binary() -> &'static Path {
    static BINARY: LazyLock<PathBuf> = LazyLock::new(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("limited-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder for the binary");
        let alone = folder.join("byoc");
        byoc_test_support::copy(Path::new(env!("CARGO_BIN_EXE_byoc")), &alone);
        alone
    });
    &BINARY
}

/// A finished process.
pub fn ran(output: Output) -> Ran {
    Ran {
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
        code: output.status.code().unwrap_or(-1),
    }
}

/// A file in `tests/hardened`.
pub fn hostile(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/hardened").join(name).display().to_string()
}

/// A Relay program in a folder.
pub fn program(folder: &Path, text: &str) -> String {
    let file: PathBuf = folder.join("model.relay");
    std::fs::write(&file, format!("#[version = \"0.0.5\"]\n{text}\n")).expect("a program is written");
    file.display().to_string()
}

//! TensorRT for RTX: regions as engines. The tests in `stub` drive the backend on a stub of the library and of CUDA's run
//! time; those in `library` compile with the library itself, without a GPU, and are skipped where it is not installed.

mod library;
mod stub;

use crate::{CommandOutput, command, to_command_output};
use byoc_test_support::plugin_dir;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Scratch directory and plugin directory.
struct Fixture {
    temp_dir: TempDir,
    plugins: TempDir,
    /// Directory of the library.
    library: PathBuf,
}

impl Fixture {
    fn new(library: &Path) -> Fixture {
        let temp_dir = tempfile::tempdir().unwrap();
        Fixture { temp_dir, plugins: plugin_dir(&["tensorrt"]), library: library.to_owned() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.temp_dir.path().join(name)
    }

    fn text_path(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    fn write(&self, name: &str, text: &str) -> String {
        std::fs::write(self.path(name), text).unwrap();
        self.text_path(name)
    }

    /// Runs `byoc` with the plugin and with additional environment variables.
    fn byoc(&self, args: &[&str], variables: &[(&str, &str)]) -> CommandOutput {
        let mut command = command(args.iter().copied().chain(["--plugin-dir", self.plugins.path().to_str().unwrap()]));
        command.env("BYOC_TENSORRT_LIB", &self.library).env_remove("BYOC_CUDART_LIB");
        to_command_output(command.envs(variables.iter().copied()).output().unwrap())
    }
}

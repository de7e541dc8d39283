//! Runs the system's C compiler.

use crate::cpu;
use crate::scratch::Scratch;
use byoc_plugin_api::{Error, Result, Services};
use byoc_plugin_support::cache::{self, Settings};
use byoc_plugin_support::command::run_limited;
use byoc_plugin_support::log::excerpt;
use serde_json::Value;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

/// Time after which a compiler is killed. Compiling a region normally takes a few seconds, and the host can run a
/// region that was not compiled.
pub const TIME_LIMIT: Duration = Duration::from_secs(120);

/// Compiler flags. `-ffast-math` is absent, so that NaN, infinities and signed zeros are preserved. The flags sacrifice
/// `errno` and the floating-point exception flags, which nothing reads, and permit fused multiply-add.
const FLAGS: &[&str] = &[
    "-std=gnu11",
    "-O3",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fPIC",
    "-shared",
    "-s",
    "-frandom-seed=byoc",
    "-Wl,--build-id=none",
];

/// Subdirectory of the host's cache for compiled objects.
pub const CACHE_FOLDER: &str = "ccompiler";

/// Returns the object cache settings, or `None` if caching is disabled.
pub fn cache_settings(options: &Value) -> Option<Settings> {
    Settings::of_options(options, CACHE_FOLDER, ".so")
}

/// C compiler on this machine.
#[derive(Clone, Debug)]
pub struct Toolchain {
    command: Vec<String>,
    /// First line that the compiler prints for `--version`.
    pub version: String,
}

/// Returns the C compiler: `$CC`, otherwise `cc`.
///
/// # Errors
/// If no C compiler is found; the hint explains how to install one.
pub fn toolchain() -> Result<&'static Toolchain> {
    static TOOLCHAIN: OnceLock<std::result::Result<Toolchain, Error>> = OnceLock::new();
    TOOLCHAIN.get_or_init(find).as_ref().map_err(Clone::clone)
}

fn find() -> Result<Toolchain> {
    let compiler_variable = std::env::var("CC").unwrap_or_default();
    let mut command: Vec<String> = compiler_variable.split_whitespace().map(str::to_owned).collect();
    if command.is_empty() {
        command.push("cc".to_owned());
    }
    let missing_compiler = |reason: String| {
        Error::new(format!("no C compiler: `{} --version` {reason}", command.join(" ")))
            .hint("install a C compiler with `apt-get install gcc`, or set the environment variable CC")
    };
    let output = compiler_command(&command)
        .arg("--version")
        .output()
        .map_err(|error| missing_compiler(format!("cannot be started ({error})")))?;
    if !output.status.success() {
        return Err(missing_compiler(format!("fails with {}", output.status)));
    }
    let version = String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned();
    Ok(Toolchain { command, version })
}

/// Returns the command that starts the compiler. Without `PATH` in the environment, a compiler started by name does not
/// find its subprograms, so `PATH` is set to the standard directories.
fn compiler_command(command_line: &[String]) -> Command {
    let mut command = Command::new(&command_line[0]);
    command.args(&command_line[1..]);
    if std::env::var_os("PATH").is_none() {
        command.env("PATH", "/usr/local/bin:/usr/bin:/bin");
    }
    command
}

impl Toolchain {
    fn flags(&self) -> Vec<&'static str> {
        let mut flags = FLAGS.to_vec();
        flags.push(cpu::target_flag());
        if cpu::features().iter().any(|f| f == "avx512f") {
            flags.push("-mprefer-vector-width=512");
        }
        flags
    }

    /// Compiles `source` to a shared object, or returns the cached object.
    ///
    /// # Errors
    /// If the compiler fails (the message quotes its first error) or exceeds [`TIME_LIMIT`], or if the compilation is
    /// cancelled.
    pub fn compile(&self, source: &str, cache: Option<&Settings>, services: &Services) -> Result<Vec<u8>> {
        let flags = self.flags();
        let mut hasher = blake3::Hasher::new();
        for input in [source, &self.command.join(" "), &self.version, &flags.join(" "), &cpu::features().join(" ")] {
            hasher.update(&(input.len() as u64).to_le_bytes());
            hasher.update(input.as_bytes());
        }
        cache::cached(cache, hasher.finalize(), || self.run_compiler(source, &flags, services))
    }

    fn run_compiler(&self, source: &str, flags: &[&str], services: &Services) -> Result<Vec<u8>> {
        let dir = Scratch::new()?;
        std::fs::write(dir.path().join("region.c"), source)?;
        let stderr_file = dir.path().join("stderr");
        let mut command = compiler_command(&self.command);
        command
            .args(flags)
            .args(["-o", "region.so", "region.c", "-lm"])
            .env("LC_ALL", "C")
            .env_remove("SOURCE_DATE_EPOCH")
            // Temporary files of the compiler are removed with the directory, even if the compiler is killed.
            .env("TMPDIR", dir.path())
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&stderr_file)?);
        let status = run_limited(&mut command, &self.command.join(" "), TIME_LIMIT, services)?;
        if !status.success() {
            let stderr = std::fs::read(&stderr_file)?;
            let excerpt = excerpt(&String::from_utf8_lossy(&stderr));
            return Err(Error::new(format!("`{}` failed with {status}: {excerpt}", self.command.join(" "))));
        }
        Ok(std::fs::read(dir.path().join("region.so"))?)
    }
}

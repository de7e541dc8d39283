//! Runs the system's C compiler and keeps its objects by content.

use crate::cpu;
use crate::process::{self, TIME_LIMIT};
use byoc_plugin_api::{Error, Result, Services};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// Optimisation flags. No `-ffast-math`: NaN, infinities and signed zeros keep their meaning. What is given up is the
/// state of `errno` and of the floating-point exception flags, which nobody reads, and the rounding between a product and a sum.
const FLAGS: &[&str] = &[
    "-std=gnu11",
    "-O3",
    "-march=native",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fPIC",
    "-shared",
    "-s",
    "-frandom-seed=byoc",
    "-Wl,--build-id=none",
];

/// A C compiler on this machine.
#[derive(Clone, Debug)]
pub struct Toolchain {
    command: Vec<String>,
    /// What it says about itself.
    pub version: String,
}

/// The compiler: `$CC`, else `cc`.
///
/// # Errors
/// Where there is none; the hint says how to install one.
pub fn toolchain() -> Result<&'static Toolchain> {
    static FOUND: OnceLock<std::result::Result<Toolchain, Error>> = OnceLock::new();
    FOUND.get_or_init(find).as_ref().map_err(Clone::clone)
}

fn find() -> Result<Toolchain> {
    let given = std::env::var("CC").unwrap_or_default();
    let mut command: Vec<String> = given.split_whitespace().map(str::to_owned).collect();
    if command.is_empty() {
        command.push("cc".to_owned());
    }
    let missing = |reason: String| {
        Error::new(format!("no C compiler: `{} --version` {reason}", command.join(" ")))
            .hint("install one with `apt-get install gcc`, or name one in the environment variable CC")
    };
    let output = Command::new(&command[0])
        .args(&command[1..])
        .arg("--version")
        .output()
        .map_err(|error| missing(format!("does not start ({error})")))?;
    if !output.status.success() {
        return Err(missing(format!("ends with {}", output.status)));
    }
    let version = String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned();
    Ok(Toolchain { command, version })
}

impl Toolchain {
    fn flags(&self) -> Vec<&'static str> {
        let mut flags = FLAGS.to_vec();
        if cpu::features().iter().any(|f| f == "avx512f") {
            flags.push("-mprefer-vector-width=512");
        }
        flags
    }

    /// The object of a source, from the cache if it is there.
    ///
    /// # Errors
    /// What the compiler says; also when it is not done after [`TIME_LIMIT`], or nobody waits for it any more.
    pub fn compile(&self, source: &str, cache: Option<&Path>, services: &Services) -> Result<Vec<u8>> {
        let flags = self.flags();
        let mut key = blake3::Hasher::new();
        for part in [source, &self.command.join(" "), &self.version, &flags.join(" "), &cpu::features().join(" ")] {
            key.update(&(part.len() as u64).to_le_bytes());
            key.update(part.as_bytes());
        }
        let digest = key.finalize().to_hex();
        let kept = cache.map(|dir| dir.join("ccompiler").join(format!("{digest}.so")));
        if let Some(object) = kept.as_ref().and_then(|path| read_kept(path)) {
            return Ok(object);
        }
        let folder = tempfile::Builder::new().prefix("byoc-cc-").tempdir()?;
        std::fs::write(folder.path().join("region.c"), source)?;
        let said = folder.path().join("said");
        let mut command = Command::new(&self.command[0]);
        command
            .args(&self.command[1..])
            .args(&flags)
            .args(["-o", "region.so", "region.c", "-lm"])
            .env("LC_ALL", "C")
            .env_remove("SOURCE_DATE_EPOCH")
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&said)?);
        let status = process::limited(&mut command, &self.command.join(" "), TIME_LIMIT, services)?;
        if !status.success() {
            let said = std::fs::read(&said)?;
            let said = String::from_utf8_lossy(&said);
            let first = said.lines().find(|line| line.contains("error")).or(said.lines().next()).unwrap_or_default();
            return Err(Error::new(format!("`{}` ends with {status}: {first}", self.command.join(" "))));
        }
        let object = std::fs::read(folder.path().join("region.so"))?;
        if let Some(path) = kept {
            // The cache is a help, not a need: a full disk costs time only.
            if let Err(error) = keep(&path, &object) {
                tracing::warn!("an object was not kept at {}: {error}", path.display());
            }
        }
        Ok(object)
    }
}

/// Objects are kept with their digest behind them, so that a damaged file is compiled again and not loaded.
fn read_kept(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = std::fs::read(path).ok()?;
    let at = bytes.len().checked_sub(32)?;
    let digest = bytes.split_off(at);
    (blake3::hash(&bytes).as_bytes()[..] == digest[..]).then_some(bytes)
}

fn keep(path: &Path, object: &[u8]) -> std::io::Result<()> {
    let Some(folder) = path.parent() else { return Ok(()) };
    std::fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    std::io::Write::write_all(&mut file, object)?;
    std::io::Write::write_all(&mut file, blake3::hash(object).as_bytes())?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

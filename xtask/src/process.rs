//! Execution of external commands.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Returns the root of the checkout.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned).unwrap_or_default()
}

/// Returns the target directory of cargo.
pub fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// Returns a `cargo` command that runs in the root of the checkout.
pub fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root());
    command
}

/// Returns compiler flags that strip the executables and keep local paths out of them. (Cargo does not apply `strip` of
/// a profile to packages that have their own section in the profile.)
pub fn release_flags() -> Result<String, String> {
    let cargo_home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let cargo_home =
        cargo_home.or_else(|| std::env::var_os("HOME").map(|cargo_home| PathBuf::from(cargo_home).join(".cargo")));
    let cargo_home = cargo_home.ok_or("expected HOME or CARGO_HOME in the environment, found neither")?;
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    Ok(format!(
        "{flags} -Cstrip=symbols --remap-path-prefix={}=/byoc --remap-path-prefix={}=/cargo",
        root().display(),
        cargo_home.display()
    )
    .trim()
    .to_owned())
}

/// Runs a command to completion.
pub fn run(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|e| format!("{} cannot be started: {e}", name(command)))?;
    if status.success() { Ok(()) } else { Err(format!("{} failed ({status})", name(command))) }
}

/// Runs a command to completion and returns its standard output.
pub fn output(command: &mut Command) -> Result<String, String> {
    let output =
        command.stderr(Stdio::inherit()).output().map_err(|e| format!("{} cannot be started: {e}", name(command)))?;
    if !output.status.success() {
        return Err(format!("{} failed ({})", name(command), output.status));
    }
    String::from_utf8(output.stdout)
        .map_err(|_| format!("{}: expected UTF-8 on standard output, found other bytes", name(command)))
}

/// Installs Python packages into a directory, unless they are already installed there. (A virtual environment would
/// require an additional Debian package.)
pub fn install_packages(dir: &Path, packages: &[&str]) -> Result<(), String> {
    let (marker, package_list) = (dir.join("ready"), packages.join(" "));
    if std::fs::read_to_string(&marker).is_ok_and(|installed| installed == package_list) {
        return Ok(());
    }
    let mut install = Command::new("python3");
    install.args(["-m", "pip", "install", "--quiet", "--upgrade", "--target"]).arg(dir).args(packages);
    run(&mut install).map_err(|e| format!("installing Python packages failed: {e}"))?;
    std::fs::write(&marker, package_list).map_err(|e| format!("{}: {e}", marker.display()))
}

/// Returns the Python interpreter of a private environment with the given packages.
pub fn environment(dir: &Path, packages: &[&str]) -> Result<PathBuf, String> {
    let python = dir.join("bin").join("python");
    let (marker, package_list) = (dir.join("ready"), packages.join(" "));
    if std::fs::read_to_string(&marker).is_ok_and(|installed| installed == package_list) {
        return Ok(python);
    }
    run(Command::new("python3").args(["-m", "venv"]).arg(dir))?;
    let mut install = Command::new(&python);
    run(install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(packages))?;
    std::fs::write(&marker, package_list).map_err(|e| format!("{}: {e}", marker.display()))?;
    Ok(python)
}

/// Returns true if an executable is on the search path.
pub fn exists(program: &str) -> bool {
    let Some(path) = std::env::var_os("PATH") else { return false };
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

fn name(command: &Command) -> String {
    let args: Vec<_> = command.get_args().map(|a| a.to_string_lossy()).collect();
    format!("`{} {}`", command.get_program().to_string_lossy(), args.join(" "))
}

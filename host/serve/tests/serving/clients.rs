//! Tests with the published clients from PyPI, if Python with pip is available.

use crate::models::serve;
use byoc_test_support::workspace;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// Published client: directory for its packages, package requirement, and test script.
struct ClientPackages {
    dir_name: &'static str,
    packages: &'static str,
    script: &'static str,
}

const TRITON: ClientPackages =
    ClientPackages { dir_name: "tritonclient", packages: "tritonclient[http,grpc]==2.73.0", script: "triton.py" };
/// KServe client; its packages total 450 MB and take two minutes to download.
const KSERVE: ClientPackages =
    ClientPackages { dir_name: "kserve", packages: "kserve==0.21.0", script: "kserve_client.py" };

impl ClientPackages {
    /// Installs the packages and returns their directory, which is reused by later test runs; `None` if the
    /// installation fails.
    fn install(&self) -> Option<PathBuf> {
        // Concurrent tests install the packages one after another.
        static INSTALL_LOCK: Mutex<()> = Mutex::new(());
        let _install_guard = INSTALL_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        let pip = Command::new("python3").args(["-m", "pip", "--version"]).output();
        if !pip.is_ok_and(|output| output.status.success()) {
            return None;
        }
        let dir = workspace().join("target/python").join(self.dir_name);
        let ready_file = dir.join("ready");
        if std::fs::read_to_string(&ready_file).is_ok_and(|package_dir| package_dir == self.packages) {
            return Some(dir);
        }
        let mut install = Command::new("python3");
        install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade", "--target"]);
        let package_dir = install.arg(&dir).arg(self.packages).output().ok()?;
        if !package_dir.status.success() {
            let _ = writeln!(std::io::stderr(), "{}", String::from_utf8_lossy(&package_dir.stderr));
            return None;
        }
        std::fs::write(ready_file, self.packages).unwrap();
        Some(dir)
    }

    /// Runs the client's script against a server. Returns the number of checks; `None` if the packages cannot be
    /// installed.
    fn run(&self) -> Option<usize> {
        let packages = self.install()?;
        let flags = ["--allow-control", "--allow-shared-memory"];
        let server = serve(&["relu", "sums", "rounds", "copy_INT8", "copy_FP16", "softmax"], &flags);
        let script = workspace().join("host/serve/tests/clients").join(self.script);
        let mut python = Command::new("python3");
        python.arg(script).arg(server.http.to_string()).arg(server.grpc.to_string());
        python.env("PYTHONPATH", packages).env("PYTHONDONTWRITEBYTECODE", "1");
        let output = python.output().unwrap();
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{out}{err}");
        Some(out.lines().last().and_then(|line| line.strip_suffix(" checks")).unwrap().parse().unwrap())
    }
}

/// Returns the package directory of tritonclient; prints a note and returns `None` if the packages cannot be installed.
pub fn tritonclient_packages() -> Option<PathBuf> {
    let packages = TRITON.install();
    if packages.is_none() {
        let _ = writeln!(std::io::stderr(), "skipped: tests with tritonclient, which requires Python with pip");
    }
    packages
}

#[test]
fn tritonclient() {
    if tritonclient_packages().is_none() {
        return;
    }
    let checks = TRITON.run().expect("expected the tritonclient packages, found none");
    assert!(checks > 200, "expected more than 200 checks, found {checks}");
}

#[test]
#[ignore = "fetches 450 MB: cargo xtask test-serve"]
fn kserve() {
    let checks = KSERVE.run().expect("expected Python with pip and the kserve packages, found none");
    assert_eq!(checks, 149, "the checks of clients/kserve_client.py with this version of kserve");
}

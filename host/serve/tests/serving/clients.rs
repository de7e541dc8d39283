//! The real clients from PyPI, if Python with pip is there.

use crate::models::serve;
use byoc_test_support::workspace;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

const PACKAGES: &str = "tritonclient[http,grpc]==2.73.0";

/// Returns the folder of the packages, which is kept for later runs; `None` if they cannot be had.
fn packages() -> Option<PathBuf> {
    let pip = Command::new("python3").args(["-m", "pip", "--version"]).output();
    if !pip.is_ok_and(|output| output.status.success()) {
        return None;
    }
    let folder = workspace().join("target/python/tritonclient");
    let ready = folder.join("ready");
    if std::fs::read_to_string(&ready).is_ok_and(|installed| installed == PACKAGES) {
        return Some(folder);
    }
    let mut install = Command::new("python3");
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade", "--target"]);
    let installed = install.arg(&folder).arg(PACKAGES).output().ok()?;
    if !installed.status.success() {
        let _ = writeln!(std::io::stderr(), "{}", String::from_utf8_lossy(&installed.stderr));
        return None;
    }
    std::fs::write(ready, PACKAGES).unwrap();
    Some(folder)
}

#[test]
fn tritonclient() {
    let Some(packages) = packages() else {
        let _ = writeln!(std::io::stderr(), "skipped: tests with tritonclient, which requires Python with pip");
        return;
    };
    let flags = ["--allow-control", "--allow-shared-memory"];
    let server = serve(&["relu", "sums", "rounds", "copy_INT8", "copy_FP16"], &flags);
    let script = workspace().join("host/serve/tests/clients/triton.py");
    let mut python = Command::new("python3");
    python.arg(script).arg(server.http.to_string()).arg(server.grpc.to_string()).env("PYTHONPATH", packages);
    let output = python.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    let checks: usize = out.trim().strip_suffix(" checks").unwrap().parse().unwrap();
    assert!(checks > 80, "expected more than 80 checks, found {checks}");
}

//! ONNX backend suite: writes the cases to files, runs them through `byoc verify`, and compares the verdicts with the
//! recorded verdicts in `tests/onnx-suite.txt`, which may only improve.

use crate::process::{self, cargo, root, target_dir};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Version of the package `onnx` from which the recorded cases originate.
const ONNX: &str = "onnx==1.23.2";

/// Stride between the cases that CI runs on `ccompiler`, which invokes the C compiler for each case.
const CCOMPILER_SHARE: usize = 10;

/// Verdicts by case name: `pass`, or the status with its reason.
type Verdicts = BTreeMap<String, String>;

/// Runs `cargo xtask onnx-suite [--backend NAME,...] [--every N] [--bless]`.
pub fn run(args: &[&str]) -> Result<(), String> {
    let (mut backend, mut every, mut bless, mut remaining) = (None, 1, false, args);
    while let [flag, tail @ ..] = remaining {
        remaining = match (*flag, tail) {
            ("--backend", [names, tail @ ..]) => {
                backend = Some(*names);
                tail
            }
            ("--every", [n, tail @ ..]) => {
                every = n
                    .parse()
                    .ok()
                    .filter(|&n| n > 0)
                    .ok_or_else(|| format!("--every: expected an integer >= 1, found {n}"))?;
                tail
            }
            ("--bless", tail) => {
                bless = true;
                tail
            }
            _ => return Err(format!("onnx-suite: unknown argument {flag}")),
        };
    }
    process::run(&mut cargo(&["build", "--workspace"]))?;
    let cases = cases()?;
    let verdicts = verify(&cases, backend, every)?;
    report(backend.unwrap_or("host"), &verdicts);
    if bless && backend.is_none() && every == 1 {
        return write_recorded(&verdicts);
    }
    compare(&verdicts)
}

/// Runs the CI part of the suite: all cases on the host, all cases on `dnnl` if its library is available, and a
/// fraction of the cases on `ccompiler`.
pub fn run_in_ci(has_dnnl: bool) -> Result<(), String> {
    let cases = match cases() {
        Ok(cases) => cases,
        Err(message) => {
            println!("skipped: ONNX backend suite: installing the package onnx failed: {message}");
            return Ok(());
        }
    };
    let mut runs = vec![(None, 1), (Some("ccompiler"), CCOMPILER_SHARE)];
    if has_dnnl {
        runs.insert(1, (Some("dnnl"), 1));
    }
    for (backend, every) in runs {
        let verdicts = verify(&cases, backend, every)?;
        report(backend.unwrap_or("host"), &verdicts);
        compare(&verdicts)?;
    }
    Ok(())
}

/// Returns the directory of the cases, which are written once per version of `onnx`.
pub fn cases() -> Result<PathBuf, String> {
    let dir = target_dir().join("onnx-suite");
    let marker = dir.join("ready");
    if std::fs::read_to_string(&marker).is_ok_and(|version| version == ONNX) {
        return Ok(dir);
    }
    let packages = target_dir().join("python").join("onnx-suite");
    process::install_packages(&packages, &[ONNX, "numpy"])?;
    if dir.exists() {
        std::fs::remove_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    }
    let script = root().join("xtask").join("onnx").join("suite.py");
    let mut write = Command::new("python3");
    process::run(write.env("PYTHONPATH", &packages).arg(script).arg(&dir).stdout(Stdio::null()))?;
    std::fs::write(&marker, ONNX).map_err(|e| format!("{}: {e}", marker.display()))?;
    Ok(dir)
}

/// Runs every n-th case in name order, with n = `every`, and returns the verdicts.
fn verify(cases: &Path, backend: Option<&str>, every: usize) -> Result<Verdicts, String> {
    let entries = std::fs::read_dir(cases).map_err(|e| format!("{}: {e}", cases.display()))?;
    let mut dirs: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    dirs.sort();
    let mut byoc = Command::new(target_dir().join("debug").join("byoc"));
    byoc.args(["verify", "--json"]).args(dirs.iter().step_by(every)).stderr(Stdio::null());
    if let Some(backend) = backend {
        byoc.args(["--backend", backend]);
    }
    // The exit status is ignored, because the verdicts describe the failures in more detail.
    let output = byoc.output().map_err(|e| format!("byoc verify cannot be started: {e}"))?;
    let mut verdicts = Verdicts::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let result: Value = serde_json::from_str(line).map_err(|e| format!("byoc verify: {e} in {line}"))?;
        let Some(case) = result["case"].as_str() else { continue };
        let status = result["status"].as_str().unwrap_or_default();
        let message = result["message"].as_str().unwrap_or_default();
        let verdict = if status == "pass" { status.to_owned() } else { format!("{status}: {message}") };
        verdicts.insert(case.to_owned(), verdict);
    }
    let expected = dirs.iter().step_by(every).count();
    if verdicts.len() != expected {
        let (found, status) = (verdicts.len(), output.status);
        return Err(format!("byoc verify: number of verdicts: expected {expected}, found {found} ({status})"));
    }
    Ok(verdicts)
}

fn report(backend: &str, verdicts: &Verdicts) {
    let count = |status: &str| verdicts.values().filter(|verdict| verdict.split(':').next() == Some(status)).count();
    println!(
        "ONNX backend suite on {backend}: {} of {} pass, {} unsupported, {} fail, {} error",
        count("pass"),
        verdicts.len(),
        count("unsupported"),
        count("fail"),
        count("error")
    );
}

fn recorded_file() -> PathBuf {
    root().join("tests").join("onnx-suite.txt")
}

/// Compares the verdicts with the recorded verdicts: a case recorded as passing must pass. Newly passing cases are
/// listed.
fn compare(verdicts: &Verdicts) -> Result<(), String> {
    let text = std::fs::read_to_string(recorded_file()).map_err(|e| format!("{}: {e}", recorded_file().display()))?;
    let has_passed = |case: &str| text.lines().any(|line| line.strip_suffix(" pass") == Some(case));
    let (mut regressions, mut gained) = (String::new(), Vec::new());
    for (case, verdict) in verdicts {
        match (has_passed(case), verdict == "pass") {
            (true, false) => {
                let _ = writeln!(regressions, "  {case} {verdict}");
            }
            (false, true) => gained.push(case.as_str()),
            _ => {}
        }
    }
    if !gained.is_empty() {
        println!("newly passing; record them with `cargo xtask onnx-suite --bless`: {}", gained.join(", "));
    }
    if regressions.is_empty() {
        Ok(())
    } else {
        Err(format!("expected every case recorded as passing to pass, found failures:\n{regressions}"))
    }
}

/// Records the verdicts, unless a recorded verdict would regress.
fn write_recorded(verdicts: &Verdicts) -> Result<(), String> {
    let file = recorded_file();
    let previous_text = std::fs::read_to_string(&file).unwrap_or_default();
    let missing_cases: Vec<&str> = previous_text
        .lines()
        .filter_map(|line| line.strip_suffix(" pass"))
        .filter(|case| verdicts.get(*case).is_none_or(|verdict| verdict != "pass"))
        .collect();
    if !missing_cases.is_empty() {
        return Err(format!("expected no regressions, found {}", missing_cases.join(", ")));
    }
    let lines: String = verdicts.iter().map(|(case, verdict)| format!("{case} {verdict}\n")).collect();
    std::fs::write(&file, lines).map_err(|e| format!("{}: {e}", file.display()))
}

//! `byoc verify --isolate-cases`: runs each case in a separate process, so that a crash fails only that case.

use super::verify_result::FolderResult;
use byoc::runtime::cancel::Cancel;
use byoc::runtime::error::Failure;
use byoc::runtime::invocation;
use byoc_conformance::supervise::Termination;
use byoc_ir::diag::codes;
use std::io::Read;
use std::process::{Child, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

/// Polling interval while waiting for a process to exit.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Verifies the directory with the given index in a new process that runs this command, and returns the result. A
/// process that prints no result counts as an error.
///
/// # Errors
/// If the process cannot be started, or the command is cancelled.
pub fn verify(index: usize, cancel: &Cancel) -> Result<FolderResult, Failure> {
    let mut child = Case::start(index).map_err(|error| {
        Failure::new(codes::runtime::NO_THREADS, format!("case {index}: cannot start the process: {error}"))
    })?;
    let status = loop {
        match child.process.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) => {}
            Err(error) => {
                let message = format!("case {index}: cannot wait for the process: {error}");
                return Err(Failure::new(codes::runtime::NO_THREADS, message));
            }
        }
        cancel.check(|| format!("stopped at case {index}"))?;
        std::thread::sleep(POLL_INTERVAL);
    };
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let text = |reader: Option<JoinHandle<String>>| reader.and_then(|r| r.join().ok()).unwrap_or_default();
    let (stdout, stderr) = (text(stdout), text(stderr));
    let result = stdout.lines().find_map(|line| serde_json::from_str::<FolderResult>(line).ok());
    match result {
        Some(result) => {
            eprint!("{stderr}");
            Ok(result)
        }
        None => Ok(failed_result(&stderr, status)),
    }
}

/// Process of one case, killed when dropped.
struct Case {
    process: Child,
    stdout: Option<JoinHandle<String>>,
    stderr: Option<JoinHandle<String>>,
}

impl Case {
    fn start(index: usize) -> std::io::Result<Case> {
        let mut process = invocation::command()?
            .args(invocation::arguments())
            .arg(format!("--only-case={index}"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let stdout = process.stdout.take().map(read);
        let stderr = process.stderr.take().map(read);
        Ok(Case { process, stdout, stderr })
    }
}

impl Drop for Case {
    fn drop(&mut self) {
        // An error means that the process has already ended, so errors are ignored.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Reads a pipe to its end in a thread, so that the process never blocks on a full pipe.
fn read(mut pipe: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Creates the result for a process that printed no result: its exit status, and the first line of its standard error.
fn failed_result(stderr: &str, status: ExitStatus) -> FolderResult {
    let termination = Termination::of(status);
    let message = match stderr.lines().find(|line| !line.trim().is_empty()) {
        Some(line) => format!("{termination}: {line}"),
        None => termination.to_string(),
    };
    FolderResult::with_error(None, message)
}

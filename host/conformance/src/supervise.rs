//! Supervisor of the worker in a conformance run: starts the worker, sends requests to it, and after a crash or a hang,
//! reports the current entry and starts a new worker.

use serde_json::Value;
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Outcome of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// The worker responded.
    Done(Value),
    /// The worker process terminated.
    Died {
        /// Entry that the worker was executing.
        entry: String,
        /// Region that the entry worked on; empty if there was none.
        region: String,
        /// Termination status.
        termination: Termination,
        /// Last line of the worker's standard error, or the reason for an unknown status.
        last_line: Option<String>,
    },
    /// The worker did not respond in time, and was killed.
    Late {
        /// Entry that the worker was executing.
        entry: String,
        /// Region that the entry worked on; empty if there was none.
        region: String,
    },
}

/// Termination status of a worker process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Termination {
    /// Exited with this code.
    Exited(i32),
    /// Killed by this signal.
    Killed(i32),
    /// The status could not be read.
    Unknown,
}

impl Termination {
    /// Termination by SIGABRT, for example after a failed allocation.
    pub const ABORTED: Termination = Termination::Killed(6);

    /// Converts the exit status of a process.
    pub fn of(status: ExitStatus) -> Termination {
        match (signal(status), status.code()) {
            (Some(signal), _) => Termination::Killed(signal),
            (None, Some(code)) => Termination::Exited(code),
            (None, None) => Termination::Unknown,
        }
    }
}

impl fmt::Display for Termination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match *self {
            Termination::Exited(code) => return write!(f, "the process exited with code {code}"),
            Termination::Unknown => return f.write_str("the status of the process is unknown"),
            Termination::Killed(4) => "an illegal instruction",
            Termination::ABORTED => "an abort",
            Termination::Killed(7) => "a bus error",
            Termination::Killed(8) => "an arithmetic fault",
            Termination::Killed(11) => "a segmentation fault",
            Termination::Killed(other) => return write!(f, "the process was killed by signal {other}"),
        };
        write!(f, "the process was terminated by {name}")
    }
}

/// Supervisor of worker processes.
pub struct Supervisor {
    /// Callback that creates the command for a worker.
    command: Box<dyn Fn() -> Command>,
    /// Time limit for an entry.
    pub limit: Duration,
    running: Option<RunningWorker>,
}

struct RunningWorker {
    child: Child,
    requests: Option<ChildStdin>,
    responses: Receiver<String>,
    errors: Option<File>,
}

impl Supervisor {
    /// Creates a supervisor for workers that `command` starts. A worker that sends no message for `limit` counts as
    /// hung.
    pub fn new(command: Box<dyn Fn() -> Command>, limit: Duration) -> Supervisor {
        Supervisor { command, limit, running: None }
    }

    /// Sends a request to the worker, after starting a worker if none is running.
    pub fn send(&mut self, request: &Value) -> Reply {
        self.send_until(request, None)
    }

    /// Sends a request to the worker, waits for at most `patience`, and kills the worker, regardless of its current
    /// entry.
    pub fn interrupt(&mut self, request: &Value, patience: Duration) {
        self.send_until(request, Some(Instant::now() + patience));
        self.stop();
    }

    fn send_until(&mut self, request: &Value, deadline: Option<Instant>) -> Reply {
        let (mut entry, mut region) = ("start".to_owned(), String::new());
        let worker_died = |entry: String, reason: String| {
            let region = String::new();
            Reply::Died { entry, region, termination: Termination::Unknown, last_line: Some(reason) }
        };
        if self.running.is_none() {
            match start(&mut (self.command)()) {
                Ok(worker) => self.running = Some(worker),
                Err(error) => return worker_died(entry, format!("cannot start the worker: {error}")),
            }
        }
        let Some(worker) = &mut self.running else {
            return worker_died(entry, "expected a running worker, found none".into());
        };
        let line = format!("{request}\n");
        let is_sent = worker.requests.as_mut().is_some_and(|pipe| pipe.write_all(line.as_bytes()).is_ok());
        if !is_sent {
            return self.collect_termination(entry, region);
        }
        loop {
            let remaining_time = deadline
                .map_or(self.limit, |deadline| deadline.saturating_duration_since(Instant::now()).min(self.limit));
            match worker.responses.recv_timeout(remaining_time) {
                Ok(line) => {
                    // Lines without JSON are plugin output, and are ignored.
                    let Ok(mut value) = serde_json::from_str::<Value>(&line) else { continue };
                    if let Some(done) = value.get_mut("done") {
                        return Reply::Done(done.take());
                    }
                    if let Some(entry_name) = value["at"].as_str() {
                        entry = entry_name.to_owned();
                        region = value["region"].as_str().unwrap_or_default().to_owned();
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.stop();
                    return Reply::Late { entry, region };
                }
                Err(RecvTimeoutError::Disconnected) => return self.collect_termination(entry, region),
            }
        }
    }

    /// Kills the worker.
    pub fn stop(&mut self) {
        if let Some(mut worker) = self.running.take() {
            // The worker may have terminated already.
            let _ = worker.child.kill();
            let _ = worker.child.wait();
        }
    }

    fn collect_termination(&mut self, entry: String, region: String) -> Reply {
        let Some(mut worker) = self.running.take() else {
            return Reply::Died { entry, region, termination: Termination::Unknown, last_line: None };
        };
        drop(worker.requests.take());
        let termination = worker.child.wait().map_or(Termination::Unknown, Termination::of);
        let mut stderr_text = String::new();
        if let Some(errors) = &mut worker.errors {
            let _ = errors.seek(SeekFrom::Start(0)).and_then(|_| errors.read_to_string(&mut stderr_text));
        }
        let last_line = stderr_text.lines().map(str::trim).rfind(|line| !line.is_empty()).map(str::to_owned);
        Reply::Died { entry, region, termination, last_line }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.stop();
    }
}

fn start(command: &mut Command) -> std::io::Result<RunningWorker> {
    let errors = tempfile::tempfile()?;
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors.try_clone()?).spawn()?;
    let (send, responses) = channel();
    if let Some(out) = child.stdout.take() {
        std::thread::spawn(move || {
            for line in BufReader::new(out).split(b'\n') {
                let Ok(line) = line else { return };
                if send.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    return;
                }
            }
        });
    }
    Ok(RunningWorker { requests: child.stdin.take(), responses, errors: Some(errors), child })
}

#[cfg(unix)]
fn signal(status: ExitStatus) -> Option<i32> {
    std::os::unix::process::ExitStatusExt::signal(&status)
}

#[cfg(not(unix))]
fn signal(_: ExitStatus) -> Option<i32> {
    None
}

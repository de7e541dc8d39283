//! The half of a conformance run that stays alive: starts the worker, asks it, and when it dies or does not come back
//! says where, and starts another.

use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How a request ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// With an answer.
    Done(Value),
    /// The worker's process ended.
    Died {
        /// The entry that it was in.
        at: String,
        /// How it ended, and what it said last.
        how: String,
        /// True if it ended by running out of memory in an orderly way.
        aborted: bool,
    },
    /// The worker did not come back in time, and was ended.
    Late {
        /// The entry that it is in.
        at: String,
    },
}

/// Starts workers.
pub struct Supervisor {
    /// The command that serves requests.
    command: Box<dyn Fn() -> Command>,
    /// How long an entry may take.
    pub limit: Duration,
    running: Option<Running>,
}

struct Running {
    child: Child,
    requests: Option<ChildStdin>,
    answers: Receiver<String>,
    errors: Option<File>,
}

impl Supervisor {
    /// A supervisor of workers that `command` starts. Between two signs of life a worker has `limit`.
    pub fn new(command: Box<dyn Fn() -> Command>, limit: Duration) -> Supervisor {
        Supervisor { command, limit, running: None }
    }

    /// Asks the worker, and starts one if there is none.
    pub fn ask(&mut self, request: &Value) -> Reply {
        self.ask_for(request, None)
    }

    /// Asks the worker and ends it after `patience`, wherever it is.
    pub fn interrupt(&mut self, request: &Value, patience: Duration) {
        self.ask_for(request, Some(Instant::now() + patience));
        self.stop();
    }

    fn ask_for(&mut self, request: &Value, until: Option<Instant>) -> Reply {
        let mut at = "start".to_owned();
        let died = |at: String, how: String| Reply::Died { at, how, aborted: false };
        if self.running.is_none() {
            match start(&mut (self.command)()) {
                Ok(running) => self.running = Some(running),
                Err(error) => return died(at, format!("the worker does not start: {error}")),
            }
        }
        let Some(running) = &mut self.running else { return died(at, "there is no worker".into()) };
        let line = format!("{request}\n");
        let sent = running.requests.as_mut().is_some_and(|pipe| pipe.write_all(line.as_bytes()).is_ok());
        if !sent {
            return self.ended(at);
        }
        loop {
            let wait =
                until.map_or(self.limit, |until| until.saturating_duration_since(Instant::now()).min(self.limit));
            match running.answers.recv_timeout(wait) {
                Ok(line) => {
                    // What a plugin prints is none of our business.
                    let Ok(mut value) = serde_json::from_str::<Value>(&line) else { continue };
                    if let Some(done) = value.get_mut("done") {
                        return Reply::Done(done.take());
                    }
                    if let Some(place) = value["at"].as_str() {
                        at = place.to_owned();
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.stop();
                    return Reply::Late { at };
                }
                Err(RecvTimeoutError::Disconnected) => return self.ended(at),
            }
        }
    }

    /// Ends the worker.
    pub fn stop(&mut self) {
        if let Some(mut running) = self.running.take() {
            // It may have ended by itself.
            let _ = running.child.kill();
            let _ = running.child.wait();
        }
    }

    fn ended(&mut self, at: String) -> Reply {
        let Some(mut running) = self.running.take() else {
            return Reply::Died { at, how: "it is gone".into(), aborted: false };
        };
        drop(running.requests.take());
        let Ok(status) = running.child.wait() else {
            return Reply::Died { at, how: "it is gone".into(), aborted: false };
        };
        let mut said = String::new();
        if let Some(errors) = &mut running.errors {
            let _ = errors.seek(SeekFrom::Start(0)).and_then(|_| errors.read_to_string(&mut said));
        }
        let aborted = signal(status) == Some(6);
        let last =
            said.lines().rfind(|line| !line.trim().is_empty()).map(|line| format!(", after \"{}\"", line.trim()));
        Reply::Died { at, how: format!("{}{}", ending(status), last.unwrap_or_default()), aborted }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.stop();
    }
}

fn start(command: &mut Command) -> std::io::Result<Running> {
    let errors = tempfile::tempfile()?;
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors.try_clone()?).spawn()?;
    let (send, answers) = channel();
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
    Ok(Running { requests: child.stdin.take(), answers, errors: Some(errors), child })
}

#[cfg(unix)]
fn signal(status: ExitStatus) -> Option<i32> {
    std::os::unix::process::ExitStatusExt::signal(&status)
}

#[cfg(not(unix))]
fn signal(_: ExitStatus) -> Option<i32> {
    None
}

fn ending(status: ExitStatus) -> String {
    let name = match signal(status) {
        Some(4) => "an illegal instruction",
        Some(6) => "an abort",
        Some(7) => "a bus error",
        Some(8) => "an arithmetic fault",
        Some(11) => "a segmentation fault",
        Some(other) => return format!("the process ended by signal {other}"),
        None => return format!("the process ended with code {}", status.code().unwrap_or_default()),
    };
    format!("the process ended by {name}")
}

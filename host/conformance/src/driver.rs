//! Driver of the worker process: sends cases, reports outcomes, shrinks failing cases and writes them to files.

use super::case::{Case, Setting};
use super::fault::{Fault, Kind};
use super::reply::{CaseReply, fault_in, fault_of_reply};
use super::report::{BackendReport, FailedCase};
use super::shrink::shrink;
use super::supervise::{Reply, Supervisor, Termination};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Options of a conformance run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Seed for case generation.
    pub seed: u64,
    /// Number of cases per operator and per pattern.
    pub cases: usize,
    /// Substring that the name of a tested subject must contain; `None` selects all subjects.
    pub name_filter: Option<String>,
    /// Time limit per call to an entry.
    pub limit: Duration,
    /// Names of claims and checks whose faults, or missing cases, are accepted.
    pub waived: Vec<String>,
    /// Directory for failing cases.
    pub out: PathBuf,
    /// Command that reproduces a case, without the path of the case.
    pub reproduce_command: String,
}

/// Maximum number of attempts to shrink a case.
const MAX_SHRINK_ATTEMPTS: usize = 120;

/// Maximum number of runs of a low-memory case until its fault appears. The address space that the threads of a process
/// reserve differs from run to run, and with it the allocation that fails.
const MEMORY_ATTEMPTS: usize = 4;

/// Conformance run of a plugin, in a process that is isolated from crashes of the plugin.
pub struct Run<'a> {
    /// Callback that creates the command to start a worker for the plugin file. The argument limits the worker's
    /// address space, in KiB.
    pub command: &'a dyn Fn(Option<u64>) -> Command,
    /// Options of the run.
    pub options: &'a Options,
    /// Callback that receives a description of the current test.
    pub progress: &'a dyn Fn(&str),
    /// Directory for cases that are passed to the worker.
    pub scratch: &'a Path,
}

impl Run<'_> {
    pub(super) fn supervisor(&self, memory: Option<u64>) -> Supervisor {
        let command = (self.command)(memory);
        let (program, args): (_, Vec<_>) =
            (command.get_program().to_owned(), command.get_args().map(Into::into).collect());
        let make = move || {
            let mut command = Command::new(&program);
            command.args(args.iter().map(|a: &std::ffi::OsString| a));
            command
        };
        Supervisor::new(Box::new(make), self.options.limit)
    }

    pub(super) fn is_waived(&self, name: &str) -> bool {
        self.options.waived.iter().any(|waived_name| waived_name == name)
    }

    /// Adds a failed case to the report, among the waived failures if its subject is waived.
    pub(super) fn report_failure(&self, report: &mut BackendReport, failure: FailedCase) {
        match self.is_waived(&failure.subject) {
            true => report.waived.push(failure),
            false => report.failures.push(failure),
        }
    }

    pub(super) fn run_case(&self, worker: &mut Supervisor, backend: &str, case: &Case, is_thorough: bool) -> Reply {
        match self.request(backend, case, is_thorough, None) {
            Ok(request) => worker.send(&request),
            Err(reason) => Reply::Done(json!({ "invalid": reason })),
        }
    }

    pub(super) fn request(
        &self,
        backend: &str,
        case: &Case,
        is_thorough: bool,
        cache: Option<&Path>,
    ) -> Result<Value, String> {
        let file = self.scratch.join("case.relay");
        case.write(&file, &[]).map_err(|d| d.to_string())?;
        let cache = cache.map_or_else(|| self.scratch.join("cache"), Path::to_owned);
        Ok(json!({ "do": "case", "backend": backend, "file": file, "thorough": is_thorough, "cache_dir": cache }))
    }

    /// Shrinks the case, and writes it to a file that reproduces the fault.
    pub(super) fn shrink_failure(
        &self,
        worker: &mut Supervisor,
        backend: &str,
        case: Case,
        fault: Fault,
        is_thorough: bool,
    ) -> FailedCase {
        // Each attempt on a hanging case waits for the full time limit, so the number of attempts is small.
        let attempts = match fault.kind {
            Kind::TimeLimit => 4,
            Kind::Crash => 40,
            _ => MAX_SHRINK_ATTEMPTS,
        };
        let smallest_case = shrink(&case, attempts, |candidate| {
            let reply = self.run_case(worker, backend, candidate, is_thorough);
            matches!(CaseReply::of(&reply), CaseReply::Failed(repeat) if repeat.kind == fault.kind)
        });
        // The report shows the message of the shrunk case.
        let fault = match CaseReply::of(&self.run_case(worker, backend, &smallest_case, is_thorough)) {
            CaseReply::Failed(repeat) if repeat.kind == fault.kind => repeat,
            _ => fault,
        };
        let subject = match &smallest_case.setting {
            Setting { open: Some(_), .. } => format!("{} open", smallest_case.subject),
            Setting { option: Some((option, value)), .. } => format!("{} {option} {value}", smallest_case.subject),
            Setting { device: Some(device), .. } => format!("{} device {device}", smallest_case.subject),
            Setting { is_on_device: true, .. } => format!("{} on device", smallest_case.subject),
            _ => smallest_case.subject.to_string(),
        };
        let (file, command) = self.write_case(backend, &smallest_case, &subject, &fault).unzip();
        FailedCase {
            subject: smallest_case.subject.to_string(),
            fault,
            case: smallest_case.description.clone(),
            file,
            command,
        }
    }

    /// Writes a case to a file that reproduces its fault; returns the file and the command.
    pub(super) fn write_case(
        &self,
        backend: &str,
        case: &Case,
        subject: &str,
        fault: &Fault,
    ) -> Option<(String, String)> {
        let subject = subject.replace(|c: char| !c.is_ascii_alphanumeric() && c != '-', "_");
        let file = self.options.out.join(format!("{backend}_{subject}_{}.relay", fault.kind));
        let command = format!("{} --case {}", self.options.reproduce_command, file.display());
        let notes = [fault.to_string(), command.clone()];
        let is_written = std::fs::create_dir_all(&self.options.out).is_ok() && case.write(&file, &notes).is_ok();
        is_written.then(|| (file.display().to_string(), command))
    }

    /// Runs one case from a file.
    ///
    /// # Errors
    /// If the case cannot be written for the worker.
    pub fn try_one(&self, backend: &str, case: &Case) -> Result<Value, String> {
        if let Some(headroom) = case.setting.memory {
            let mut attempt = self.run_in_memory(backend, case, headroom);
            for _ in 1..MEMORY_ATTEMPTS {
                if matches!(attempt, Some((_, None))) {
                    attempt = self.run_in_memory(backend, case, headroom);
                }
            }
            return Ok(match attempt {
                None => return Err("cannot limit the address space of a process on this system".to_owned()),
                Some((_, Some(fault))) => json!({ "fault": fault }),
                Some((Reply::Done(reply_data), None)) if reply_data.get("fault").is_none() => reply_data,
                // With too little memory, an error and an orderly exit are both acceptable.
                Some(_) => json!({ "passed": 0.0 }),
            });
        }
        let mut worker = self.supervisor(None);
        // Only a case without special conditions is tested thoroughly.
        let request = self.request(backend, case, case.setting.is_plain(), None)?;
        Ok(match worker.send(&request) {
            Reply::Done(reply_data) => reply_data,
            reply => json!({ "fault": fault_of_reply(&reply, "") }),
        })
    }

    /// Runs a case with `headroom` KiB of address space left. Returns the reply and the fault, if any; `None` if the
    /// system cannot limit the address space.
    pub(super) fn run_in_memory(&self, backend: &str, case: &Case, headroom: u64) -> Option<(Reply, Option<Fault>)> {
        let Reply::Done(size) = self.supervisor(None).send(&json!({ "do": "memory" })) else { return None };
        let size = size.as_u64().filter(|&kib| kib > 0)?;
        let request = self.request(backend, case, false, None).ok()?;
        let reply = self.supervisor(Some(size + headroom)).send(&request);
        // A failed allocation aborts a Rust process; C libraries exit.
        let is_orderly =
            matches!(&reply, Reply::Died { termination: Termination::ABORTED | Termination::Exited(_), .. });
        let is_severe = |kind| matches!(kind, Kind::Crash | Kind::TimeLimit | Kind::WrongResult | Kind::WritesOutside);
        // A worker that cannot even start reveals nothing about the plugin.
        let fault = fault_in(&reply).filter(|fault| is_severe(fault.kind) && !is_orderly && fault.entry != "start");
        let fault = fault.map(|fault| {
            let kind = if fault.kind == Kind::TimeLimit { Kind::MemoryHang } else { Kind::Memory };
            let message = format!("with {headroom} KiB of address space left: {}: {}", fault.kind, fault.message);
            Fault::new(kind, &fault.entry, message).in_region(&fault.region)
        });
        Some((reply, fault))
    }
}

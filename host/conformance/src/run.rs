//! The conformance run: claims of a backend, cases for them, checks of the plugin as a whole, and handling of failures.

use super::case::{Case, Subject};
use super::fault::{Fault, Kind};
use super::generate::Cases;
use super::generate::draw::Scheme;
use super::report::{BackendReport, FailedCase, SubjectReport};
use super::shrink::shrink;
use super::supervise::{Reply, Supervisor, Termination};
use byoc_core::pattern::{Checks, Entry, parse_table};
use byoc_ir::op::{self, OpDef};
use byoc_ir::tensor::DType;
use byoc_plugin_api::Quantization;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Options of a conformance run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Seed of the cases.
    pub seed: u64,
    /// Number of cases for each operator and each pattern.
    pub cases: usize,
    /// Filter: only subjects whose name contains this text are tested.
    pub only: Option<String>,
    /// Time limit for an entry.
    pub limit: Duration,
    /// Folder for failing cases.
    pub out: PathBuf,
    /// Command that reproduces a case, without the path of the case.
    pub reproduce_command: String,
}

/// Number of cases of a subject that are tested thoroughly.
const MAX_THOROUGH_CASES: usize = 2;

/// Number of faults of one kind in a subject after which the subject is abandoned.
const MAX_FAULTS_PER_KIND: usize = 3;

/// Maximum number of cases that are drawn if few are supported, as a multiple of the requested number.
const MAX_DRAW_FACTOR: usize = 8;

/// Maximum number of attempts to shrink a case.
const MAX_SHRINK_ATTEMPTS: usize = 120;

/// Conformance run of a plugin, in the process that survives the plugin's crashes.
pub struct Run<'a> {
    /// Creates the command that starts a worker for the plugin's file. The argument limits the memory of the worker, in
    /// KiB.
    pub command: &'a dyn Fn(Option<u64>) -> Command,
    /// Options.
    pub options: &'a Options,
    /// Called with a description of the test in progress.
    pub progress: &'a dyn Fn(&str),
    /// Folder for cases that are passed to the worker.
    pub scratch: &'a Path,
}

/// Returns the quantization scheme of a description.
fn scheme_of(declared: &Value) -> Option<Scheme> {
    let declared: Quantization = serde_json::from_value(declared.clone()).ok()?;
    let activation = if declared.activation == "uint8" { DType::U8 } else { DType::I8 };
    Some(Scheme { activation, symmetric: declared.symmetric, power_of_two: declared.power_of_two })
}

impl Run<'_> {
    fn supervisor(&self, memory: Option<u64>) -> Supervisor {
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

    /// Returns the backends that the plugin registers.
    ///
    /// # Errors
    /// If the plugin cannot be loaded.
    pub fn backends(&self) -> Result<Vec<String>, Fault> {
        match self.supervisor(None).send(&json!({ "do": "backends" })) {
            Reply::Done(Value::Array(names)) => Ok(names.iter().filter_map(|n| n.as_str().map(String::from)).collect()),
            reply => Err(fault_of_reply(&reply, "init")),
        }
    }

    /// Tests one backend, and returns the findings.
    pub fn test(&self, backend: &str) -> BackendReport {
        let mut report = BackendReport::new(backend);
        let mut worker = self.supervisor(None);
        (self.progress)("describe");
        let description = match worker.send(&json!({ "do": "describe", "backend": backend })) {
            Reply::Done(description) => description,
            reply => {
                report.faults.push(fault_of_reply(&reply, "describe"));
                return report;
            }
        };
        if let Some(fault) = fault_of(&description) {
            report.faults.push(fault);
            if description.get("patterns").is_none() {
                return report;
            }
        }
        let text = |key: &str| description[key].as_str().unwrap_or_default().to_owned();
        (report.plugin, report.version) = (text("plugin"), text("version"));
        report.finite_math = description["finite_math"] == true;
        let warnings = description["warnings"].as_array().into_iter().flatten();
        let faults = warnings.filter_map(|w| w.as_str()).map(|w| Fault::new(Kind::BadDescription, "describe", w));
        report.faults.extend(faults);
        let table = qualified_pattern_table(backend, &text("patterns"));
        let operators: Vec<&'static OpDef> = description["operators"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|name| Some(op::get(op::lookup(name.as_str()?)?)))
            .collect();
        let cases = Cases { seed: self.options.seed, scheme: scheme_of(&description["quantization"]) };
        let mut sample = None;
        for entry in &table {
            let subject = Subject::Pattern(entry.name.to_string());
            self.try_subject(&mut worker, &mut report, &subject, &cases, &mut sample, |n| cases.pattern(entry, n));
        }
        for def in &operators {
            let subject = Subject::Operator(def.name.to_owned());
            self.try_subject(&mut worker, &mut report, &subject, &cases, &mut sample, |n| cases.operator(def, n));
        }
        if operators.len() > 1 {
            let make = |n| cases.region(&operators, n);
            self.try_subject(&mut worker, &mut report, &Subject::Region, &cases, &mut sample, make);
        }
        if let Some(case) = &sample {
            self.lifecycle(&mut report, case);
        }
        report
    }

    fn try_subject(
        &self,
        worker: &mut Supervisor,
        report: &mut BackendReport,
        subject: &Subject,
        cases: &Cases,
        sample: &mut Option<Case>,
        make: impl Fn(usize) -> Option<Case>,
    ) {
        let name = subject.to_string();
        if self.options.only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
            return;
        }
        (self.progress)(&name);
        let mut subject_report = SubjectReport::new(&name);
        let mut thorough = 0;
        let mut found: Vec<(Kind, usize)> = Vec::new();
        let mut dtypes: BTreeMap<DType, bool> = BTreeMap::new();
        for number in 0..self.options.cases * MAX_DRAW_FACTOR {
            let dtype = cases.theme(number).dtype;
            if number >= self.options.cases {
                // A backend that supports little gets more cases of the element types that it supports.
                if subject_report.passed + subject_report.failed >= self.options.cases / 2 {
                    break;
                }
                if dtypes.get(&dtype) == Some(&false) {
                    continue;
                }
            }
            let Some(case) = make(number) else { continue };
            subject_report.cases += 1;
            let reply = self.run_case(worker, &report.backend, &case, thorough < MAX_THOROUGH_CASES);
            match CaseReply::of(&reply) {
                CaseReply::Passed(share) => {
                    dtypes.insert(dtype, true);
                    thorough += 1;
                    subject_report.passed += 1;
                    subject_report.share = subject_report.share.max(share);
                    sample.get_or_insert(case);
                }
                CaseReply::Refused(code, detail) => {
                    if code == "UnsupportedDtype" {
                        dtypes.entry(dtype).or_insert(false);
                    }
                    subject_report.refused += 1;
                    *subject_report.reasons.entry(format!("{code}: {detail}")).or_default() += 1;
                }
                CaseReply::Invalid => subject_report.cases -= 1,
                CaseReply::Failed(fault) => {
                    subject_report.failed += 1;
                    let kind = fault.kind;
                    let known = found.iter().position(|(k, _)| *k == kind);
                    match known {
                        Some(at) => found[at].1 += 1,
                        None => {
                            found.push((kind, 1));
                            let failure = self.shrink_failure(
                                worker,
                                &report.backend,
                                case,
                                fault,
                                thorough < MAX_THOROUGH_CASES,
                            );
                            report.failures.push(failure);
                        }
                    }
                    // A crash costs a process, and a time limit costs the waiting time.
                    let costly = matches!(kind, Kind::Crash | Kind::TimeLimit);
                    if found.iter().any(|(_, n)| *n >= if costly { 1 } else { MAX_FAULTS_PER_KIND }) {
                        break;
                    }
                }
            }
        }
        report.subjects.push(subject_report);
    }

    fn run_case(&self, worker: &mut Supervisor, backend: &str, case: &Case, thorough: bool) -> Reply {
        match self.request(backend, case, thorough, None) {
            Ok(request) => worker.send(&request),
            Err(why) => Reply::Done(json!({ "invalid": why })),
        }
    }

    fn request(&self, backend: &str, case: &Case, thorough: bool, cache: Option<&Path>) -> Result<Value, String> {
        let file = self.scratch.join("case.relay");
        case.write(&file, &[]).map_err(|d| d.to_string())?;
        let cache = cache.map_or_else(|| self.scratch.join("cache"), Path::to_owned);
        Ok(json!({ "do": "case", "backend": backend, "file": file, "thorough": thorough, "cache_dir": cache }))
    }

    /// Shrinks the case, and writes it to a file that reproduces the fault.
    fn shrink_failure(
        &self,
        worker: &mut Supervisor,
        backend: &str,
        case: Case,
        fault: Fault,
        thorough: bool,
    ) -> FailedCase {
        // A smaller case is not worth waiting for the time limit many times.
        let attempts = match fault.kind {
            Kind::TimeLimit => 4,
            Kind::Crash => 40,
            _ => MAX_SHRINK_ATTEMPTS,
        };
        let small = shrink(&case, attempts, |smaller| {
            let reply = self.run_case(worker, backend, smaller, thorough);
            matches!(CaseReply::of(&reply), CaseReply::Failed(again) if again.kind == fault.kind)
        });
        // The report shows the message of the shrunk case.
        let fault = match CaseReply::of(&self.run_case(worker, backend, &small, thorough)) {
            CaseReply::Failed(again) if again.kind == fault.kind => again,
            _ => fault,
        };
        let subject = small.subject.to_string().replace([' ', '.', '/'], "_");
        let file = self.options.out.join(format!("{backend}_{subject}_{}.relay", fault.kind));
        let command = format!("{} --case {}", self.options.reproduce_command, file.display());
        let notes = [fault.to_string(), command.clone()];
        let written = std::fs::create_dir_all(&self.options.out).is_ok() && small.write(&file, &notes).is_ok();
        FailedCase {
            subject: small.subject.to_string(),
            fault,
            case: small.about.clone(),
            file: written.then(|| file.display().to_string()),
            command: written.then_some(command),
        }
    }

    /// Runs one case from a file.
    ///
    /// # Errors
    /// If the case cannot be written for the worker.
    pub fn try_one(&self, backend: &str, case: &Case) -> Result<Value, String> {
        let mut worker = self.supervisor(None);
        let request = self.request(backend, case, true, None)?;
        Ok(match worker.send(&request) {
            Reply::Done(done) => done,
            reply => json!({ "fault": fault_of_reply(&reply, "") }),
        })
    }

    /// Tests the plugin as a whole, once, with a case that passes.
    fn lifecycle(&self, report: &mut BackendReport, case: &Case) {
        let backend = report.backend.clone();
        let mut check = |name: &str, fault: Option<Fault>| {
            report.checks.push((name.to_owned(), fault.is_none()));
            if let Some(fault) = fault {
                let (file, command) = (None, None);
                let subject = name.to_owned();
                report.failures.push(FailedCase { subject, fault, case: case.about.clone(), file, command });
            }
        };
        (self.progress)("a cancelled compilation");
        let cancelled = self.request(&backend, case, false, None).ok().and_then(|mut request| {
            request["do"] = "cancel".into();
            fault_in(&self.supervisor(None).send(&request))
        });
        check("compiling after a cancelled compilation", cancelled);
        (self.progress)("an interrupted compilation");
        check("compiling after an interrupted compilation", self.check_interrupted(&backend, case));
        (self.progress)("an unusable cache folder");
        check("an unusable cache folder", self.check_unusable_cache(&backend, case));
        (self.progress)("too little memory");
        check("too little memory", self.check_low_memory(&backend, case));
        (self.progress)("after unloading");
        let unloaded = self.request(&backend, case, false, None).ok().and_then(|mut request| {
            request["do"] = "unload".into();
            fault_in(&self.supervisor(None).send(&request))
        });
        check("silence after the last region was dropped", unloaded);
    }

    /// Checks that killed compilations leave nothing in the cache that breaks a later one.
    fn check_interrupted(&self, backend: &str, case: &Case) -> Option<Fault> {
        let cache = self.scratch.join("interrupted");
        for milliseconds in [2, 10, 25, 60, 120] {
            let request = self.request(backend, case, false, Some(&cache)).ok()?;
            self.supervisor(None).interrupt(&request, Duration::from_millis(milliseconds));
            let fault = fault_in(&self.supervisor(None).send(&request));
            if let Some(fault) = fault {
                let message = format!("after a compilation that was killed after {milliseconds} ms: {fault}");
                return Some(Fault::new(Kind::Cache, "compile", message));
            }
        }
        None
    }

    /// Checks that a file in place of the cache folder is tolerated: an error is permitted, a crash or a wrong result
    /// is not.
    fn check_unusable_cache(&self, backend: &str, case: &Case) -> Option<Fault> {
        let cache = self.scratch.join("no folder");
        std::fs::write(&cache, "a file").ok()?;
        let request = self.request(backend, case, false, Some(&cache)).ok()?;
        let fault = fault_in(&self.supervisor(None).send(&request))?;
        if matches!(fault.kind, Kind::ClaimNotKept | Kind::LoadFailed) {
            return None;
        }
        Some(Fault::new(
            Kind::Cache,
            &fault.entry,
            format!("with a file in place of the cache folder: {}", fault.message),
        ))
    }

    /// Checks that a small address space is tolerated: an error or an orderly exit is permitted.
    fn check_low_memory(&self, backend: &str, case: &Case) -> Option<Fault> {
        let Reply::Done(size) = self.supervisor(None).send(&json!({ "do": "memory" })) else { return None };
        let size = size.as_u64().filter(|&kib| kib > 0)?;
        for headroom in [1 << 10, 8 << 10, 64 << 10] {
            let request = self.request(backend, case, false, None).ok()?;
            let reply = self.supervisor(Some(size + headroom)).send(&request);
            // A failed allocation aborts a Rust process; C libraries exit.
            let orderly =
                matches!(&reply, Reply::Died { termination: Termination::ABORTED | Termination::Exited(_), .. });
            let Some(fault) = fault_in(&reply) else { continue };
            let wild = matches!(fault.kind, Kind::Crash | Kind::TimeLimit | Kind::WrongResult | Kind::WritesOutside);
            // A worker that cannot even start reveals nothing about the plugin.
            if wild && !orderly && fault.entry != "start" {
                let message = format!("with {headroom} KiB of address space left: {}", fault.message);
                return Some(Fault::new(Kind::Memory, &fault.entry, message));
            }
        }
        None
    }
}

/// Parses a pattern table, and prefixes the names of its entries with the backend, as partitioning does.
fn qualified_pattern_table(backend: &str, text: &str) -> Vec<Entry> {
    let mut table = parse_table(text, Checks::Allowed).entries;
    let prefix = format!("{backend}.");
    for entry in &mut table {
        if !entry.name.starts_with(&prefix) {
            entry.name = format!("{prefix}{}", entry.name).into();
        }
    }
    table
}

/// Outcome of a case, as the worker reported it.
enum CaseReply {
    Passed(f64),
    Refused(String, String),
    Invalid,
    Failed(Fault),
}

impl CaseReply {
    fn of(reply: &Reply) -> CaseReply {
        let Reply::Done(done) = reply else { return CaseReply::Failed(fault_of_reply(reply, "")) };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        if let Some(share) = done["passed"].as_f64() {
            CaseReply::Passed(share)
        } else if let Some(refused) = done.get("refused") {
            CaseReply::Refused(text(&refused["code"]), text(&refused["detail"]))
        } else {
            fault_of(done).map_or(CaseReply::Invalid, CaseReply::Failed)
        }
    }
}

fn fault_in(reply: &Reply) -> Option<Fault> {
    match CaseReply::of(reply) {
        CaseReply::Failed(fault) => Some(fault),
        _ => None,
    }
}

fn fault_of(done: &Value) -> Option<Fault> {
    serde_json::from_value(done.get("fault")?.clone()).ok()
}

/// Converts a reply without a result to a fault of the entry that the worker was in.
fn fault_of_reply(reply: &Reply, entry: &str) -> Fault {
    let place = |at: &str| if at == "start" && !entry.is_empty() { entry.to_owned() } else { at.to_owned() };
    match reply {
        Reply::Died { at, termination, last_line } => {
            let after = last_line.as_ref().map(|line| format!(", after \"{line}\"")).unwrap_or_default();
            let exit_code = if let Termination::Exited(code) = termination { Some(*code) } else { None };
            Fault { exit_code, ..Fault::new(Kind::Crash, &place(at), format!("{termination}{after}")) }
        }
        Reply::Late { at } => {
            Fault::new(Kind::TimeLimit, &place(at), "the entry did not return within the time limit".to_owned())
        }
        Reply::Done(done) => {
            Fault::new(Kind::BadDescription, entry, format!("unexpected answer of the worker: {done}"))
        }
    }
}

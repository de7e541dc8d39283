//! The whole run: what is claimed, the cases for it, the checks of the plugin as such, and what comes of the failures.

use super::case::{Case, Subject};
use super::fault::{Fault, Kind};
use super::generate::{operator_case, pattern_case, region_case, theme};
use super::report::{BackendReport, Failure, SubjectReport};
use super::shrink::shrink;
use super::supervise::{Reply, Supervisor};
use byoc_core::op::{self, OpDef};
use byoc_core::pattern::{Checks, Entry, parse_table};
use byoc_core::tensor::DType;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How a run goes.
#[derive(Clone, Debug)]
pub struct Options {
    /// What the cases are drawn from.
    pub seed: u64,
    /// Cases for each operator and each pattern.
    pub cases: usize,
    /// Only subjects whose name has this in it.
    pub only: Option<String>,
    /// How long an entry may take.
    pub limit: Duration,
    /// Where failing cases are written.
    pub out: PathBuf,
    /// The words that reproduce a case, without the case's file.
    pub again: String,
}

/// Cases of a subject that are tried thoroughly.
const THOROUGH: usize = 2;

/// Faults of one kind in one subject after which it is left.
const ENOUGH: usize = 3;

/// So many times the cases are drawn where few of them are taken.
const MORE: usize = 8;

/// Tries for a smaller case.
const SHRINKING: usize = 120;

/// A plugin under test, from the side that stays alive.
pub struct Run<'a> {
    /// Starts workers for the file; with a bound on its memory in KiB when one is given.
    pub command: &'a dyn Fn(Option<u64>) -> Command,
    /// How it goes.
    pub options: &'a Options,
    /// Told what is being tried.
    pub progress: &'a dyn Fn(&str),
    /// A folder for cases on their way to the worker.
    pub scratch: &'a Path,
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

    /// The backends that the plugin registers; a fault when it cannot even be loaded.
    ///
    /// # Errors
    /// How loading it ended the worker.
    pub fn backends(&self) -> Result<Vec<String>, Fault> {
        match self.supervisor(None).ask(&json!({ "do": "backends" })) {
            Reply::Done(Value::Array(names)) => Ok(names.iter().filter_map(|n| n.as_str().map(String::from)).collect()),
            reply => Err(lost(&reply, "init")),
        }
    }

    /// Tests one backend.
    pub fn test(&self, backend: &str) -> BackendReport {
        let mut report = BackendReport::new(backend);
        let mut worker = self.supervisor(None);
        (self.progress)("describe");
        let description = match worker.ask(&json!({ "do": "describe", "backend": backend })) {
            Reply::Done(description) => description,
            reply => {
                report.faults.push(lost(&reply, "describe"));
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
        let said = description["warnings"].as_array().into_iter().flatten();
        let faults = said.filter_map(|w| w.as_str()).map(|w| Fault::new(Kind::BadDescription, "describe", w));
        report.faults.extend(faults);
        let table = table(backend, &text("patterns"));
        let operators: Vec<&'static OpDef> = description["operators"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|name| Some(op::get(op::lookup(name.as_str()?)?)))
            .collect();
        let mut sample = None;
        for entry in &table {
            let subject = Subject::Pattern(entry.name.to_string());
            self.try_subject(&mut worker, &mut report, &subject, &mut sample, |n| {
                pattern_case(entry, n, self.options.seed)
            });
        }
        for def in &operators {
            let subject = Subject::Operator(def.name.to_owned());
            self.try_subject(&mut worker, &mut report, &subject, &mut sample, |n| {
                operator_case(def, n, self.options.seed)
            });
        }
        if operators.len() > 1 {
            let make = |n| region_case(&operators, n, self.options.seed);
            self.try_subject(&mut worker, &mut report, &Subject::Region, &mut sample, make);
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
        sample: &mut Option<Case>,
        make: impl Fn(usize) -> Option<Case>,
    ) {
        let name = subject.to_string();
        if self.options.only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
            return;
        }
        (self.progress)(&name);
        let mut tally = SubjectReport::new(&name);
        let mut thorough = 0;
        let mut found: Vec<(Kind, usize)> = Vec::new();
        let mut dtypes: BTreeMap<DType, bool> = BTreeMap::new();
        for number in 0..self.options.cases * MORE {
            let dtype = theme(number).dtype;
            if number >= self.options.cases {
                // A backend that takes little is asked for more of what it takes.
                if tally.passed + tally.failed >= self.options.cases / 2 {
                    break;
                }
                if dtypes.get(&dtype) == Some(&false) {
                    continue;
                }
            }
            let Some(case) = make(number) else { continue };
            tally.cases += 1;
            let reply = self.ask(worker, &report.backend, &case, thorough < THOROUGH);
            match Tried::of(&reply) {
                Tried::Passed(share) => {
                    dtypes.insert(dtype, true);
                    thorough += 1;
                    tally.passed += 1;
                    tally.share = tally.share.max(share);
                    sample.get_or_insert(case);
                }
                Tried::Refused(code, detail) => {
                    if code == "UnsupportedDtype" {
                        dtypes.entry(dtype).or_insert(false);
                    }
                    tally.refused += 1;
                    *tally.reasons.entry(format!("{code}: {detail}")).or_default() += 1;
                }
                Tried::Invalid => tally.cases -= 1,
                Tried::Failed(fault) => {
                    tally.failed += 1;
                    let kind = fault.kind;
                    let known = found.iter().position(|(k, _)| *k == kind);
                    match known {
                        Some(at) => found[at].1 += 1,
                        None => {
                            found.push((kind, 1));
                            let failure = self.failure(worker, &report.backend, case, fault, thorough < THOROUGH);
                            report.failures.push(failure);
                        }
                    }
                    // A crash costs a process, a time limit costs the time.
                    let costly = matches!(kind, Kind::Crash | Kind::TimeLimit);
                    if found.iter().any(|(_, n)| *n >= if costly { 1 } else { ENOUGH }) {
                        break;
                    }
                }
            }
        }
        report.subjects.push(tally);
    }

    fn ask(&self, worker: &mut Supervisor, backend: &str, case: &Case, thorough: bool) -> Reply {
        match self.request(backend, case, thorough, None) {
            Ok(request) => worker.ask(&request),
            Err(why) => Reply::Done(json!({ "invalid": why })),
        }
    }

    fn request(&self, backend: &str, case: &Case, thorough: bool, cache: Option<&Path>) -> Result<Value, String> {
        let file = self.scratch.join("case.relay");
        case.write(&file, &[]).map_err(|d| d.to_string())?;
        let cache = cache.map_or_else(|| self.scratch.join("cache"), Path::to_owned);
        Ok(json!({ "do": "case", "backend": backend, "file": file, "thorough": thorough, "cache_dir": cache }))
    }

    /// Makes the case small and writes it where it can be run again.
    fn failure(&self, worker: &mut Supervisor, backend: &str, case: Case, fault: Fault, thorough: bool) -> Failure {
        // Waiting for a time limit again and again is not worth a smaller case.
        let attempts = match fault.kind {
            Kind::TimeLimit => 4,
            Kind::Crash => 40,
            _ => SHRINKING,
        };
        let small = shrink(&case, attempts, |smaller| {
            let reply = self.ask(worker, backend, smaller, thorough);
            matches!(Tried::of(&reply), Tried::Failed(again) if again.kind == fault.kind)
        });
        // What the small case says is what the reader will see.
        let fault = match Tried::of(&self.ask(worker, backend, &small, thorough)) {
            Tried::Failed(again) if again.kind == fault.kind => again,
            _ => fault,
        };
        let subject = small.subject.to_string().replace([' ', '.', '/'], "_");
        let file = self.options.out.join(format!("{backend}_{subject}_{}.relay", fault.kind));
        let command = format!("{} --case {}", self.options.again, file.display());
        let notes = [fault.to_string(), command.clone()];
        let written = std::fs::create_dir_all(&self.options.out).is_ok() && small.write(&file, &notes).is_ok();
        Failure {
            subject: small.subject.to_string(),
            fault,
            case: small.about.clone(),
            file: written.then(|| file.display().to_string()),
            command: written.then_some(command),
        }
    }

    /// One case from a file.
    ///
    /// # Errors
    /// When the case cannot be written for the worker.
    pub fn try_one(&self, backend: &str, case: &Case) -> Result<Value, String> {
        let mut worker = self.supervisor(None);
        let request = self.request(backend, case, true, None)?;
        Ok(match worker.ask(&request) {
            Reply::Done(done) => done,
            reply => json!({ "fault": lost(&reply, "") }),
        })
    }

    /// What is tried once for the plugin, with a case that passes.
    fn lifecycle(&self, report: &mut BackendReport, case: &Case) {
        let backend = report.backend.clone();
        let mut check = |name: &str, fault: Option<Fault>| {
            report.checks.push((name.to_owned(), fault.is_none()));
            if let Some(fault) = fault {
                let (file, command) = (None, None);
                let subject = name.to_owned();
                report.failures.push(Failure { subject, fault, case: case.about.clone(), file, command });
            }
        };
        (self.progress)("a compilation that is called off");
        let cancelled = self.request(&backend, case, false, None).ok().and_then(|mut request| {
            request["do"] = "cancel".into();
            failed(&self.supervisor(None).ask(&request))
        });
        check("compiling after a compilation that was called off", cancelled);
        (self.progress)("interrupted compilation");
        check("compiling after an interrupted compilation", self.interrupted(&backend, case));
        (self.progress)("a cache folder that cannot be used");
        check("a cache folder that cannot be used", self.bad_cache(&backend, case));
        (self.progress)("too little memory");
        check("too little memory", self.little_memory(&backend, case));
        (self.progress)("after unloading");
        let unloaded = self.request(&backend, case, false, None).ok().and_then(|mut request| {
            request["do"] = "unload".into();
            failed(&self.supervisor(None).ask(&request))
        });
        check("silence after the last region was dropped", unloaded);
    }

    /// Compilations that are ended on the way leave nothing in the cache that a later one trips over.
    fn interrupted(&self, backend: &str, case: &Case) -> Option<Fault> {
        let cache = self.scratch.join("interrupted");
        for milliseconds in [2, 10, 25, 60, 120] {
            let request = self.request(backend, case, false, Some(&cache)).ok()?;
            self.supervisor(None).interrupt(&request, Duration::from_millis(milliseconds));
            let fault = failed(&self.supervisor(None).ask(&request));
            if let Some(fault) = fault {
                let message = format!("after a compilation that was ended after {milliseconds} ms: {fault}");
                return Some(Fault::new(Kind::Cache, "compile", message));
            }
        }
        None
    }

    /// A file where the cache folder should be: an error is fine, a crash or a wrong result is not.
    fn bad_cache(&self, backend: &str, case: &Case) -> Option<Fault> {
        let cache = self.scratch.join("no folder");
        std::fs::write(&cache, "a file").ok()?;
        let request = self.request(backend, case, false, Some(&cache)).ok()?;
        let fault = failed(&self.supervisor(None).ask(&request))?;
        if matches!(fault.kind, Kind::ClaimNotKept | Kind::LoadFailed) {
            return None;
        }
        Some(Fault::new(Kind::Cache, &fault.entry, format!("where the cache folder is a file: {}", fault.message)))
    }

    /// With an address space that ends soon: an error or an orderly end is fine.
    fn little_memory(&self, backend: &str, case: &Case) -> Option<Fault> {
        let Reply::Done(size) = self.supervisor(None).ask(&json!({ "do": "memory" })) else { return None };
        let size = size.as_u64().filter(|&kib| kib > 0)?;
        for room in [1 << 10, 8 << 10, 64 << 10] {
            let request = self.request(backend, case, false, None).ok()?;
            let reply = self.supervisor(Some(size + room)).ask(&request);
            let orderly = match &reply {
                Reply::Died { aborted, how, .. } => {
                    *aborted || how.contains("out of memory") || how.contains("allocat")
                }
                _ => false,
            };
            let Some(fault) = failed(&reply) else { continue };
            let wild = matches!(fault.kind, Kind::Crash | Kind::TimeLimit | Kind::WrongResult | Kind::WritesOutside);
            // A worker that cannot even start says nothing about the plugin.
            if wild && !orderly && fault.entry != "start" {
                let message = format!("with {room} KiB of address space left: {}", fault.message);
                return Some(Fault::new(Kind::Memory, &fault.entry, message));
            }
        }
        None
    }
}

/// The entries of a table under their full names, as partitioning has them.
fn table(backend: &str, text: &str) -> Vec<Entry> {
    let mut table = parse_table(text, Checks::Allowed).entries;
    let prefix = format!("{backend}.");
    for entry in &mut table {
        if !entry.name.starts_with(&prefix) {
            entry.name = format!("{prefix}{}", entry.name).into();
        }
    }
    table
}

/// How the worker answered to a case.
enum Tried {
    Passed(f64),
    Refused(String, String),
    Invalid,
    Failed(Fault),
}

impl Tried {
    fn of(reply: &Reply) -> Tried {
        let Reply::Done(done) = reply else { return Tried::Failed(lost(reply, "")) };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        if let Some(share) = done["passed"].as_f64() {
            Tried::Passed(share)
        } else if let Some(refused) = done.get("refused") {
            Tried::Refused(text(&refused["code"]), text(&refused["detail"]))
        } else {
            fault_of(done).map_or(Tried::Invalid, Tried::Failed)
        }
    }
}

fn failed(reply: &Reply) -> Option<Fault> {
    match Tried::of(reply) {
        Tried::Failed(fault) => Some(fault),
        _ => None,
    }
}

fn fault_of(done: &Value) -> Option<Fault> {
    serde_json::from_value(done.get("fault")?.clone()).ok()
}

/// A worker that did not answer, as a fault of the entry that it was in.
fn lost(reply: &Reply, entry: &str) -> Fault {
    let place = |at: &str| if at == "start" && !entry.is_empty() { entry.to_owned() } else { at.to_owned() };
    match reply {
        Reply::Died { at, how, .. } => Fault::new(Kind::Crash, &place(at), how.clone()),
        Reply::Late { at } => {
            Fault::new(Kind::TimeLimit, &place(at), "the entry did not come back within the time limit".to_owned())
        }
        Reply::Done(done) => Fault::new(Kind::BadDescription, entry, format!("an answer that is none: {done}")),
    }
}

//! The conformance run: claims of a backend, cases for them, checks of the plugin as a whole, and handling of failures.

use super::case::{Case, Open, Setting, Subject};
use super::claims::{Claims, OPEN_DIMS, option_claim};
use super::fault::{Fault, Kind};
use super::generate::Cases;
use super::generate::draw::{Layouts, Scheme};
use super::reply::{CaseReply, fault_in, fault_of, fault_of_reply};
use super::report::{BackendReport, FailedCase, SubjectReport};
use super::shrink::{shrink, with_open_dims};
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
    /// Names of claims and checks whose lack of cases, or whose fault, is accepted.
    pub waived: Vec<String>,
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

/// Number of times that a case with little memory is repeated until its fault appears. What the threads of a process
/// have reserved differs from run to run, and with it the allocation that fails.
const MEMORY_ATTEMPTS: usize = 4;

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

/// Maximum number of cases of a subject that are tried with open dimensions.
const MAX_OPEN_CASES: usize = 4;

/// Maximum number of cases that are tried with each value of an option.
const MAX_OPTION_CASES: usize = 32;

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
        let layouts: Layouts = serde_json::from_value(description["layouts"].clone()).unwrap_or_default();
        let scheme = scheme_of(&description["quantization"]);
        let cases = Cases { seed: self.options.seed, scheme, layouts: layouts.into() };
        let mut claims = Claims::of(&description, &cases.layouts);
        let mut samples = Vec::new();
        for entry in &table {
            let subject = Subject::Pattern(entry.name.to_string());
            let make = |n| cases.pattern(entry, n);
            samples.extend(self.try_subject(&mut worker, &mut report, &subject, &cases, &mut claims, make));
        }
        for def in &operators {
            let subject = Subject::Operator(def.name.to_owned());
            let make = |n| cases.operator(def, n);
            samples.extend(self.try_subject(&mut worker, &mut report, &subject, &cases, &mut claims, make));
        }
        if operators.len() > 1 {
            let make = |n| cases.region(&operators, n);
            samples.extend(self.try_subject(&mut worker, &mut report, &Subject::Region, &cases, &mut claims, make));
        }
        self.try_options(&mut worker, &mut report, &samples, &mut claims);
        report.claims = claims.reports;
        self.report_untested(&mut report);
        if let Some(case) = samples.first() {
            self.lifecycle(&mut report, case);
        }
        report
    }

    /// Tries every value of every option on cases that passed without it.
    fn try_options(&self, worker: &mut Supervisor, report: &mut BackendReport, samples: &[Case], claims: &mut Claims) {
        for (option, values) in claims.options.clone() {
            for value in values {
                let name = option_claim(&option, &value);
                if self.is_waived(&name) {
                    continue;
                }
                (self.progress)(&name);
                for sample in samples.iter().take(MAX_OPTION_CASES) {
                    let setting = Setting { option: Some((option.clone(), value.clone())), ..sample.setting.clone() };
                    let case = Case { setting, ..sample.clone() };
                    let outcome = CaseReply::of(&self.run_case(worker, &report.backend, &case, false));
                    claims.count(&name, &outcome);
                    if let CaseReply::Failed(fault) = outcome {
                        let mut failure = self.shrink_failure(worker, &report.backend, case, fault, false);
                        failure.subject = format!("{}, {name}", failure.subject);
                        report.failures.push(failure);
                        break;
                    }
                }
            }
        }
    }

    /// Tries a case that passed with some of its dimensions open; returns false if that reveals a fault.
    fn try_open(
        &self,
        worker: &mut Supervisor,
        report: &mut BackendReport,
        case: &Case,
        open: Open,
        claims: &mut Claims,
    ) -> bool {
        let Some(case) = with_open_dims(case, open) else { return true };
        let outcome = CaseReply::of(&self.run_case(worker, &report.backend, &case, false));
        claims.count(OPEN_DIMS, &outcome);
        if let CaseReply::Failed(fault) = outcome {
            let mut failure = self.shrink_failure(worker, &report.backend, case, fault, false);
            failure.subject = format!("{}, open dimensions", failure.subject);
            report.failures.push(failure);
            return false;
        }
        true
    }

    /// Adds a fault for each claim without a tested case, unless only some claims were to be tested, or none was.
    fn report_untested(&self, report: &mut BackendReport) {
        let subjects = report.subjects.iter().map(|s| (&s.subject, s.passed + s.failed, s.cases));
        let claims = report.claims.iter().map(|claim| (&claim.claim, claim.tested, claim.cases));
        let all: Vec<(String, usize, usize)> =
            subjects.chain(claims).map(|(name, tested, cases)| (name.clone(), tested, cases)).collect();
        if self.options.only.is_some() || all.iter().all(|(_, tested, _)| *tested == 0) {
            return;
        }
        for (name, _, cases) in all.into_iter().filter(|(_, tested, _)| *tested == 0) {
            let message = match cases {
                0 => "expected a tested case, found none: no valid case was generated".to_owned(),
                n => format!("expected a tested case, found {n} that were refused"),
            };
            let fault = Fault::new(Kind::NotTested, "", message);
            let failure = FailedCase { subject: name, fault, case: String::new(), file: None, command: None };
            self.report_failure(report, failure);
        }
    }

    fn is_waived(&self, name: &str) -> bool {
        self.options.waived.iter().any(|waived| waived == name)
    }

    /// Adds a failure of a claim or a check, unless it is waived by its name.
    fn report_failure(&self, report: &mut BackendReport, failure: FailedCase) {
        match self.is_waived(&failure.subject) {
            true => report.waived.push(failure),
            false => report.failures.push(failure),
        }
    }

    fn try_subject(
        &self,
        worker: &mut Supervisor,
        report: &mut BackendReport,
        subject: &Subject,
        cases: &Cases,
        claims: &mut Claims,
        make: impl Fn(usize) -> Option<Case>,
    ) -> Option<Case> {
        let name = subject.to_string();
        if self.options.only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
            return None;
        }
        let (mut sample, mut opened) = (None, 0);
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
            let outcome = CaseReply::of(&reply);
            claims.count_layouts(&case, &outcome);
            match outcome {
                CaseReply::Passed(share) => {
                    if claims.open_dims && opened < MAX_OPEN_CASES {
                        let open = if opened % 2 == 0 { Open::First } else { Open::All };
                        let good = self.try_open(worker, report, &case, open, claims);
                        opened = if good { opened + 1 } else { MAX_OPEN_CASES };
                    }
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
        sample
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
        let subject = match &small.setting {
            Setting { open: Some(_), .. } => format!("{} open", small.subject),
            Setting { option: Some((option, value)), .. } => format!("{} {option} {value}", small.subject),
            _ => small.subject.to_string(),
        };
        let (file, command) = self.write_case(backend, &small, &subject, &fault).unzip();
        FailedCase { subject: small.subject.to_string(), fault, case: small.about.clone(), file, command }
    }

    /// Writes a case to a file that reproduces its fault; returns the file and the command.
    fn write_case(&self, backend: &str, case: &Case, subject: &str, fault: &Fault) -> Option<(String, String)> {
        let subject = subject.replace([' ', '.', '/', '='], "_");
        let file = self.options.out.join(format!("{backend}_{subject}_{}.relay", fault.kind));
        let command = format!("{} --case {}", self.options.reproduce_command, file.display());
        let notes = [fault.to_string(), command.clone()];
        let written = std::fs::create_dir_all(&self.options.out).is_ok() && case.write(&file, &notes).is_ok();
        written.then(|| (file.display().to_string(), command))
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
                None => return Err("the system does not limit the address space of a process".to_owned()),
                Some((_, Some(fault))) => json!({ "fault": fault }),
                Some((Reply::Done(done), None)) if done.get("fault").is_none() => done,
                // An error or an orderly exit is what too little memory should lead to.
                Some(_) => json!({ "passed": 0.0 }),
            });
        }
        let mut worker = self.supervisor(None);
        // The circumstances of a case are tested once, without what concerns the backend as a whole.
        let request = self.request(backend, case, case.setting == Setting::default(), None)?;
        Ok(match worker.send(&request) {
            Reply::Done(done) => done,
            reply => json!({ "fault": fault_of_reply(&reply, "") }),
        })
    }

    /// Tests the plugin as a whole, once, with a case that passes.
    fn lifecycle(&self, report: &mut BackendReport, case: &Case) {
        let backend = report.backend.clone();
        let mut check = |name: &str, fault: Option<Fault>, setting: Setting| {
            let waived = fault.is_some() && self.is_waived(name);
            report.checks.push((name.to_owned(), fault.is_none() || waived));
            if let Some(fault) = fault {
                let case = Case { setting, ..case.clone() };
                let written =
                    (case.setting != Setting::default()).then(|| self.write_case(&backend, &case, name, &fault));
                let (file, command) = written.flatten().unzip();
                let subject = name.to_owned();
                self.report_failure(report, FailedCase { subject, fault, case: case.about, file, command });
            }
        };
        (self.progress)("a cancelled compilation");
        let cancelled = self.request(&backend, case, false, None).ok().and_then(|mut request| {
            request["do"] = "cancel".into();
            fault_in(&self.supervisor(None).send(&request))
        });
        check("compiling after a cancelled compilation", cancelled, Setting::default());
        (self.progress)("an interrupted compilation");
        check("compiling after an interrupted compilation", self.check_interrupted(&backend, case), Setting::default());
        (self.progress)("an unusable cache folder");
        check("an unusable cache folder", self.check_unusable_cache(&backend, case), Setting::default());
        (self.progress)("too little memory");
        let (fault, memory) = self.check_low_memory(&backend, case).unzip();
        check("too little memory", fault, Setting { memory, ..case.setting.clone() });
        (self.progress)("after unloading");
        let unloaded = self.request(&backend, case, false, None).ok().and_then(|mut request| {
            request["do"] = "unload".into();
            fault_in(&self.supervisor(None).send(&request))
        });
        check("silence after the last region was dropped", unloaded, Setting::default());
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

    /// Checks that a small address space is tolerated: an error or an orderly exit is permitted. Returns the fault, and
    /// how many KiB were left.
    fn check_low_memory(&self, backend: &str, case: &Case) -> Option<(Fault, u64)> {
        [1 << 10, 8 << 10, 64 << 10].into_iter().find_map(|headroom| {
            let (_, fault) = self.run_in_memory(backend, case, headroom)?;
            Some((fault?, headroom))
        })
    }

    /// Runs a case with `headroom` KiB of address space left. Returns the reply and the fault, if any; `None` if the
    /// system cannot limit the address space.
    fn run_in_memory(&self, backend: &str, case: &Case, headroom: u64) -> Option<(Reply, Option<Fault>)> {
        let Reply::Done(size) = self.supervisor(None).send(&json!({ "do": "memory" })) else { return None };
        let size = size.as_u64().filter(|&kib| kib > 0)?;
        let request = self.request(backend, case, false, None).ok()?;
        let reply = self.supervisor(Some(size + headroom)).send(&request);
        // A failed allocation aborts a Rust process; C libraries exit.
        let orderly = matches!(&reply, Reply::Died { termination: Termination::ABORTED | Termination::Exited(_), .. });
        let wild = |kind| matches!(kind, Kind::Crash | Kind::TimeLimit | Kind::WrongResult | Kind::WritesOutside);
        // A worker that cannot even start reveals nothing about the plugin.
        let fault = fault_in(&reply).filter(|fault| wild(fault.kind) && !orderly && fault.entry != "start");
        let fault = fault.map(|fault| {
            let kind = if fault.kind == Kind::TimeLimit { Kind::MemoryHang } else { Kind::Memory };
            let message = format!("with {headroom} KiB of address space left: {}: {}", fault.kind, fault.message);
            Fault::new(kind, &fault.entry, message).in_region(&fault.region)
        });
        Some((reply, fault))
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

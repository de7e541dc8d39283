//! `byoc plugins test`: the conformance run and its worker process.

use super::args::{DiagnosticArgs, PluginsTestArgs, TestWorkerArgs};
use super::{render, table};
use byoc::runtime::error::Failure;
use byoc::runtime::invocation;
use byoc::runtime::session::Session;
use byoc_conformance::case::Case;
use byoc_conformance::fault::{Fault, Kind};
use byoc_conformance::report::{BackendReport, FailedCase, exclusions};
use byoc_conformance::run::{Options, Run};
use byoc_conformance::worker::Worker;
use byoc_ir::diag::{Diagnostic, codes, nearest, plural};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

/// Tests the claims of the plugins in a conformance run and prints the report.
pub fn run(args: &PluginsTestArgs) -> Result<ExitCode, Failure> {
    crate::log::log_to_stderr(args.diagnostics.verbose);
    let file = plugin_file(args)?;
    let program = invocation::words().map_err(|e| start_error(&e))?;
    let command = |memory: Option<u64>| worker_command(&program, &file, args, memory);
    let scratch_dir = tempfile::tempdir().map_err(|e| start_error(&e))?;
    let dirs: Vec<String> = args.plugins.plugin_dirs.iter().map(|d| format!(" --plugin-dir {}", d.display())).collect();
    let options = Options {
        seed: args.seed,
        cases: args.cases,
        name_filter: args.only.clone(),
        waived: args.waive.clone(),
        limit: Duration::from_secs(args.time_limit.max(1)),
        out: args.out.clone(),
        reproduce_command: format!(
            "byoc plugins test {}{}{}",
            file.display(),
            dirs.concat(),
            args.until.as_ref().map(|entry| format!(" --until {entry}")).unwrap_or_default()
        ),
    };
    let is_quiet = args.diagnostics.json || !std::io::stderr().is_terminal();
    let bar = if is_quiet { ProgressBar::hidden() } else { ProgressBar::new_spinner() };
    bar.set_style(ProgressStyle::with_template("{spinner} {msg}").unwrap_or_else(|_| ProgressStyle::default_spinner()));
    bar.enable_steady_tick(Duration::from_millis(120));
    let progress = |message: &str| bar.set_message(message.to_owned());
    let run = Run { command: &command, options: &options, progress: &progress, scratch: scratch_dir.path() };
    let backends = run.backends().map_err(|fault| worker_error(&file, &fault))?;
    if backends.is_empty() {
        let message = format!("{}: the plugin registers no code generator to test", file.display());
        return Err(Failure::new(codes::plugins::NO_CODEGEN, message));
    }
    if let Some(path) = &args.case {
        return run_case(&run, &backends, path, &args.diagnostics);
    }
    let (mut problems, mut unmatched, mut claim_names) = (Vec::new(), Vec::new(), BTreeSet::new());
    for backend in &backends {
        let report = run.test(backend);
        claim_names.extend(report.claim_names());
        bar.set_message(String::new());
        match args.diagnostics.json {
            true => print_json(&report),
            false => print_report(&file, &report, args),
        }
        if !report.has_passed() {
            problems.push(conformance_error(&file, &report, args));
        } else if let Some(text) = args.only.as_deref().filter(|_| report.subjects.is_empty()) {
            unmatched.push(no_claim_error(&report, text));
        } else if report.passed_count() == 0 {
            problems.push(nothing_supported_error(&report));
        }
    }
    bar.finish_and_clear();
    // The filter may name a claim of only one of the plugin's backends.
    if unmatched.len() == backends.len() {
        problems.append(&mut unmatched);
    }
    warn_of_unknown_waivers(args, &claim_names);
    if problems.is_empty() { Ok(ExitCode::SUCCESS) } else { Err(problems.into()) }
}

/// Prints a warning for each waived name that matches neither a claim nor a check.
fn warn_of_unknown_waivers(args: &PluginsTestArgs, names: &BTreeSet<String>) {
    // A filter may exclude claims that appear only with an option set, such as "operator tanh, option half=true".
    let is_excluded = |waiver: &str| {
        args.only.is_some() && waiver.rsplit_once(", ").is_some_and(|(_, option)| names.contains(option))
    };
    for waiver in args.waive.iter().filter(|waiver| !names.contains(*waiver) && !is_excluded(waiver)) {
        let list: Vec<&str> = names.iter().map(String::as_str).collect();
        let message = format!("--waive: expected the name of a claim or a check, found \"{waiver}\"");
        let warning =
            Diagnostic::warning(codes::plugins::NOT_CONFORMING, message).note(format!("names: {}", list.join(", ")));
        render::print_diagnostic(&did_you_mean(warning, waiver, list));
    }
}

fn did_you_mean<'a>(diagnostic: Diagnostic, value: &str, candidates: impl IntoIterator<Item = &'a str>) -> Diagnostic {
    match nearest(value, candidates) {
        Some(suggestion) => diagnostic.help(format!("did you mean \"{suggestion}\"?")),
        None => diagnostic,
    }
}

/// Returns the file to test: the argument itself if it is a path, or the file that registers the backend it names.
fn plugin_file(args: &PluginsTestArgs) -> Result<PathBuf, Failure> {
    let plugin = &args.plugin;
    if plugin.exists() {
        return Ok(plugin.clone());
    }
    let name = plugin.to_string_lossy();
    if name.contains(std::path::MAIN_SEPARATOR) || plugin.extension().is_some() {
        let message = format!("{name}: expected a plugin file, found none");
        return Err(Failure::new(codes::plugins::UNREADABLE_PLUGIN, message));
    }
    let session = Session::new(&args.plugins.plugin_dirs, 1)?;
    session.registry.codegen(&name).map(|(_, file)| file.path.clone())
}

/// Creates the command that starts this executable as the worker. A shell sets the memory limit, for which the standard
/// library has no function.
fn worker_command(program: &[OsString], file: &Path, args: &PluginsTestArgs, memory: Option<u64>) -> Command {
    let mut command = match memory {
        None => Command::new(&program[0]),
        Some(kib) => {
            let mut shell = Command::new("sh");
            shell.arg("-c").arg("ulimit -v \"$0\" && exec \"$@\"").arg(kib.to_string()).arg(&program[0]);
            shell
        }
    };
    command.args(&program[1..]);
    command.args(["plugins", "test-worker"]).arg(file).args(["--threads", &args.threads.to_string()]);
    if let Some(entry) = &args.until {
        command.args(["--until", entry]);
    }
    for dir in &args.plugins.plugin_dirs {
        command.arg("--plugin-dir").arg(dir);
    }
    command
}

fn start_error(error: &std::io::Error) -> Failure {
    Failure::new(codes::plugins::NOT_CONFORMING, format!("cannot start the conformance run: {error}"))
}

/// Returns the error for a terminated worker. If the worker exited with code 1, the plugin is loaded in this process,
/// which may reveal why it is rejected; otherwise only the fault is reported.
fn worker_error(file: &Path, fault: &Fault) -> Failure {
    if fault.kind == Kind::Crash && fault.exit_code == Some(1) {
        let registry =
            Session::without_plugins(1).map(|s| byoc::runtime::plugin::registry::Registry::of_file(file, &s.services));
        let load_error = registry.ok().and_then(|r| match &r.found().next()?.status {
            byoc::runtime::plugin::registry::Status::Rejected(rejection) => {
                Some(byoc::runtime::plugin::registry::rejection_diagnostic(file, rejection))
            }
            _ => None,
        });
        if let Some(diagnostic) = load_error {
            return diagnostic.into();
        }
    }
    Failure::new(codes::plugins::NOT_CONFORMING, format!("{}: {fault}", file.display()))
}

fn print_json(report: &BackendReport) {
    let backend = &report.backend;
    let report_line = |mut value: Value| {
        value["backend"] = json!(backend);
        value
    };
    for fault in &report.faults {
        println!("{}", report_line(json!({ "status": "fail", "subject": "plugin", "fault": fault })));
    }
    for subject in &report.subjects {
        let status = if subject.failed > 0 { "fail" } else { "pass" };
        let mut value = serde_json::to_value(subject).unwrap_or_default();
        value["status"] = json!(status);
        println!("{}", report_line(value));
    }
    for claim in &report.claims {
        let mut value = serde_json::to_value(claim).unwrap_or_default();
        value["status"] = json!(if claim.tested > 0 { "pass" } else { "fail" });
        println!("{}", report_line(value));
    }
    for (name, passed) in &report.checks {
        println!("{}", report_line(json!({ "status": if *passed { "pass" } else { "fail" }, "check": name })));
    }
    for failure in &report.failures {
        let mut value = serde_json::to_value(failure).unwrap_or_default();
        value["status"] = json!("fail");
        println!("{}", report_line(value));
    }
    for waived in &report.waived {
        println!("{}", report_line(json!({ "status": "waived", "subject": waived.subject, "waived": waived.fault })));
    }
    let count = |f: fn(&byoc_conformance::report::SubjectReport) -> usize| report.subjects.iter().map(f).sum::<usize>();
    let summary = json!({
        "plugin": report.plugin, "version": report.version, "passes": report.has_passed(),
        "cases": count(|s| s.cases), "passed": count(|s| s.passed), "refused": count(|s| s.refused),
        "finite_math": report.finite_math, "flush_to_zero": report.flush_to_zero, "failed": count(|s| s.failed), "faults": report.faults.len() + report.failures.len(),
    });
    println!("{}", report_line(json!({ "summary": summary })));
}

fn print_report(file: &Path, report: &BackendReport, args: &PluginsTestArgs) {
    println!("{} {} ({}), backend {}", report.plugin, report.version, file.display(), report.backend);
    println!(
        "seed {}, {} for each operator and pattern, up to {}",
        args.seed,
        plural(args.cases, "case"),
        plural(args.threads.into(), "thread")
    );
    for note in exclusions(report.finite_math, report.flush_to_zero) {
        println!("{note}: skipped");
    }
    println!();
    let mut rows =
        table::new(&["claim", "cases", "passed", "failed", "refused", "budget used", "most frequent reason"]);
    for subject in &report.subjects {
        let reason = subject.most_frequent_reason();
        let error_budget_used =
            if subject.share > 0.0 { format!("{:.0} %", subject.share * 100.0) } else { String::from("-") };
        rows.add_row([
            subject.subject.clone(),
            subject.cases.to_string(),
            subject.passed.to_string(),
            subject.failed.to_string(),
            subject.refused.to_string(),
            error_budget_used,
            reason.map(ToString::to_string).unwrap_or_default(),
        ]);
    }
    table::print(&rows);
    println!();
    for (name, passed) in &report.checks {
        println!("{}  {name}", if *passed { "ok   " } else { "FAULT" });
    }
    for claim in &report.claims {
        let status = if claim.tested > 0 { "ok   " } else { "NONE " };
        println!("{status}  {}: {}", claim.claim, plural(claim.tested, "case"));
    }
    for waived in &report.waived {
        println!("waived  {}: {}", waived.subject, waived.fault);
    }
    let shown_count = report.faults.len() + report.failures.len();
    if shown_count > 0 {
        println!("\n{}:", plural(shown_count, "fault"));
    }
    for fault in &report.faults {
        println!("\n* {fault}");
    }
    for FailedCase { subject, fault, case, file: _, command } in &report.failures {
        let case = if case.is_empty() { String::new() } else { format!(", {case}") };
        println!("\n* {subject}{case}\n  {fault}");
        if let Some(command) = command {
            println!("  reproduce: {command}");
        }
    }
    println!("\n{}", report.summary());
}

/// Returns the error that the command ends with.
fn conformance_error(file: &Path, report: &BackendReport, args: &PluginsTestArgs) -> Diagnostic {
    let mut kinds: Vec<Kind> =
        report.failures.iter().map(|f| f.fault.kind).chain(report.faults.iter().map(|f| f.kind)).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let count = plural(report.failures.len() + report.faults.len(), "fault");
    let message = format!("{} does not conform: {count} in {}", report.backend, file.display());
    let mut diagnostic = Diagnostic::error(codes::plugins::NOT_CONFORMING, message);
    for kind in kinds {
        diagnostic = diagnostic.note(format!("{kind}: {}", kind.meaning()));
    }
    if report.failures.iter().any(|f| f.fault.kind == Kind::NotTested) {
        diagnostic =
            diagnostic.note("--waive NAME accepts a claim without tested cases: --waive \"operator nn.conv2d\"");
    }
    if report.failures.iter().any(|f| f.file.is_some()) {
        diagnostic = diagnostic.help(format!(
            "rerun a failing case with its command in the report; the case files are in {}",
            args.out.display()
        ));
    }
    diagnostic
}

/// Maximum number of claims that an error lists.
const MAX_LISTED_CLAIMS: usize = 10;

/// Returns the error for a backend with no claim whose name contains `text`, the filter of the run.
fn no_claim_error(report: &BackendReport, text: &str) -> Diagnostic {
    let names: Vec<&str> = report.subject_names.iter().map(String::as_str).collect();
    let list = match names.len().checked_sub(MAX_LISTED_CLAIMS) {
        None | Some(0) => names.join(", "),
        Some(others) => format!("{} and {others} more", names[..MAX_LISTED_CLAIMS].join(", ")),
    };
    let message = format!("{}: no claim contains \"{text}\"", report.backend);
    let diagnostic = Diagnostic::error(codes::plugins::TOOK_NOTHING, message).note(format!("claims: {list}"));
    let short_names = names.iter().filter_map(|name| Some(name.split_once(' ')?.1));
    did_you_mean(diagnostic, text, names.iter().copied().chain(short_names))
}

fn nothing_supported_error(report: &BackendReport) -> Diagnostic {
    let message = format!("{}: expected at least one supported case, found only refused cases", report.backend);
    let mut diagnostic = Diagnostic::error(codes::plugins::TOOK_NOTHING, message);
    let reasons =
        report.subjects.iter().flat_map(|s| s.reasons.keys().map(move |reason| format!("{}: {reason}", s.subject)));
    for reason in reasons.take(5) {
        diagnostic = diagnostic.note(reason);
    }
    diagnostic
}

fn run_case(
    run: &Run<'_>,
    backends: &[String],
    path: &Path,
    diagnostics: &DiagnosticArgs,
) -> Result<ExitCode, Failure> {
    let case = Case::read(path)?;
    let mut problems = Vec::new();
    for backend in backends {
        let reply = run.try_one(backend, &case).map_err(|reason| Failure::new(codes::plugins::BAD_CASE, reason))?;
        if diagnostics.json {
            println!("{}", json!({ "backend": backend, "subject": case.subject.to_string(), "result": reply }));
        }
        let text = match (&reply["passed"], reply.get("refused"), reply.get("fault")) {
            (_, Some(rejection), _) => format!("refused: {}: {}", rejection["code"], rejection["detail"]),
            (_, _, Some(fault)) => match serde_json::from_value::<Fault>(fault.clone()) {
                Ok(fault) => {
                    problems.push(Diagnostic::error(codes::plugins::NOT_CONFORMING, format!("{backend}: {fault}")));
                    continue;
                }
                Err(error) => format!("{error}"),
            },
            (Value::Number(share), ..) => {
                format!("passed; {:.0} % of the error budget used", share.as_f64().unwrap_or(0.0) * 100.0)
            }
            _ => format!("invalid case: {}", reply["invalid"].as_str().unwrap_or_default()),
        };
        if !diagnostics.json {
            println!("{backend}: {text}");
        }
    }
    if problems.is_empty() { Ok(ExitCode::SUCCESS) } else { Err(problems.into()) }
}

/// Runs the worker: requests on standard input, responses on standard output.
pub fn run_worker(args: &TestWorkerArgs) -> Result<ExitCode, Failure> {
    let worker =
        Worker::new(&args.file, &args.plugins.plugin_dirs, args.threads.into())?.until_compile(args.until.is_some());
    let send = |value: &Value| {
        // The newline ends a line that a plugin may have left unterminated.
        println!("\n{value}");
    };
    worker.serve(std::io::stdin().lock(), &send);
    Ok(ExitCode::SUCCESS)
}

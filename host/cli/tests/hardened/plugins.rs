//! Malicious plugins: `tests/hardened/faulty.c` with every fault in every entry. The process terminates by itself or
//! continues, names the plugin and the entry, and never reports success without the right result.

use byoc_test_support::{copy, plugin, temporary_folder, workspace};
use std::fmt::Write as _;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Faulty plugin under the name that it registers, and a model that it supports. The model doubles its input, which is
/// exact in every rounding mode.
struct Fixture {
    temp_dir: TempDir,
    plugins: PathBuf,
    model: PathBuf,
}

static FIXTURE: LazyLock<Fixture> = LazyLock::new(|| {
    let temp_dir = temporary_folder();
    let plugins = temp_dir.path().join("plugins");
    std::fs::create_dir(&plugins).unwrap();
    let compilation = Command::new("cc")
        .current_dir(workspace())
        .args(["-O0", "-shared", "-fPIC", "-w", "-I", "plugin-api/include", "tests/hardened/faulty.c", "-o"])
        .arg(plugins.join("libbyoc_elementwise.so"))
        .args(["-lm", "-lpthread"])
        .output()
        .expect("cannot start the compiler that Rust links with");
    assert!(compilation.status.success(), "{}", String::from_utf8_lossy(&compilation.stderr));
    let model = temp_dir.path().join("model.relay");
    let program = "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(3, 3), float32]) { add(nn.relu(%x), %x) }\n";
    std::fs::write(&model, program).unwrap();
    Fixture { temp_dir, plugins, model }
});

/// Exit status, standard output and standard error of a process.
struct ProcessOutput {
    status: ExitStatus,
    out: String,
    err: String,
}

impl ProcessOutput {
    #[track_caller]
    fn ok(self) -> ProcessOutput {
        assert!(self.status.success(), "{}\nstdout:\n{}\nstderr:\n{}", self.status, self.out, self.err);
        self
    }
}

fn byoc(args: &[&str]) -> Command {
    let home = FIXTURE.temp_dir.path().join("home");
    // Restores the default action of SIGINT: tests started as a background job of a shell inherit an ignored SIGINT.
    let mut command = Command::new("env");
    command.args(["--default-signal=INT", env!("CARGO_BIN_EXE_byoc")]);
    command.args(args).env("HOME", &home).env("XDG_DATA_HOME", &home).env("XDG_CACHE_HOME", &home);
    for name in ["BYOC_PLUGIN_PATH", "BYOC_LOG", "BYOC_CACHE_DIR", "BYOC_CHECK_REGIONS", "FAULT", "ENTRY"] {
        command.env_remove(name);
    }
    command.env("BYOC_THREADS", "2").current_dir(FIXTURE.temp_dir.path());
    command
}

/// Runs a command, and kills the process if it does not terminate.
fn wait_with_timeout(mut command: Command) -> ProcessOutput {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let read = |mut reader: Box<dyn Read + Send>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            reader.read_to_end(&mut bytes).unwrap();
            String::from_utf8_lossy(&bytes).into_owned()
        })
    };
    let out = read(Box::new(child.stdout.take().unwrap()));
    let err = read(Box::new(child.stderr.take().unwrap()));
    let deadline = Instant::now() + Duration::from_secs(60);
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(3));
    };
    ProcessOutput { status, out: out.join().unwrap(), err: err.join().unwrap() }
}

/// Creates the command that runs the model on the faulty backend.
fn run(extra_args: &[&str]) -> Command {
    let (plugins, model) = (FIXTURE.plugins.display().to_string(), FIXTURE.model.display().to_string());
    let mut args = vec!["run", &model, "--input", "x=random:3", "--json", "--no-cache"];
    args.extend(["--backend", "elementwise", "--plugin-dir", &plugins]);
    args.extend(extra_args);
    byoc(&args)
}

fn run_faulty(fault: &str, entry: &str, extra_args: &[&str]) -> ProcessOutput {
    let mut command = run(extra_args);
    command.env("FAULT", fault).env("ENTRY", entry);
    wait_with_timeout(command)
}

const ENTRIES: [&str; 9] = ["entry", "init", "describe", "judge", "compile", "load", "prepare", "run", "release"];

/// Expected outcome of a fault, in addition to the correct result on success.
#[derive(Clone, Copy)]
enum ExpectedOutcome {
    /// The process continues normally.
    Harmless,
    /// The process continues, and the changed state is restored and reported.
    Restored,
    /// Like `Restored`, but if the system does not permit restoring the state, the process exits with an error.
    Reported,
    /// The process is terminated by this signal, with a message.
    Signal(i32),
    /// The process exits with code 1 and a diagnostic with this code.
    Error(&'static str),
    /// Any of the above, as the effect of corrupt memory is unpredictable.
    Either,
}
use ExpectedOutcome::{Either, Error, Harmless, Reported, Restored, Signal};

/// Faults injected into every entry. SIGSTOP is omitted, as nothing but the message is left to check.
const FAULTS: [(&str, ExpectedOutcome); 37] = [
    ("segv", Signal(11)),
    ("abort", Signal(6)),
    ("loop", Error("E0451")),
    ("stack", Signal(11)),
    ("oom", Error("E0451")),
    ("exit0", Error("E0450")),
    ("threads", Harmless),
    ("threadsegv", Signal(11)),
    ("mxcsr", Restored),
    ("fpexc", Restored),
    ("cwd", Restored),
    ("locale", Harmless),
    ("close1", Restored),
    ("closeall", Restored),
    ("sigint", Either),
    ("sigign", Restored),
    ("heap", Either),
    ("doublefree", Signal(6)),
    ("env", Harmless),
    ("rlim", Reported),
    ("fork", Harmless),
    ("pthexit", Either),
    ("print", Harmless),
    ("umask", Harmless),
    ("_exit0", Error("E0450")),
    ("exec", Error("E0450")),
    ("quick_exit", Error("E0450")),
    ("daemon", Error("E0450")),
    ("forkexit0", Error("E0450")),
    ("syscallexit", Error("E0450")),
    ("threadexit0", Error("E0450")),
    ("sigterm", Signal(15)),
    ("sigkill", Signal(9)),
    ("segvdefault", Signal(11)),
    ("abortignored", Signal(6)),
    ("forkexec", Harmless),
    ("vforkexec", Harmless),
];

/// Describes how a run with `fault` deviates from the expected outcome; `None` if it does not deviate.
fn find_deviation(
    fault: &str,
    entry: &str,
    expected_outcome: ExpectedOutcome,
    output: &ProcessOutput,
    correct_output: &str,
) -> Option<String> {
    let ProcessOutput { status, out, err } = output;
    // Heap corruption is detected at the next use of the heap, which may be in any entry.
    let place = if fault == "heap" { String::new() } else { format!(": {entry}") };
    let is_named = err.lines().any(|line| line.contains("elementwise") && line.contains(&place));
    let problem = match (status.code(), status.signal()) {
        (Some(0), _) if out != correct_output => "expected the correct result, found a different one",
        (Some(0), _) => match expected_outcome {
            Harmless | Either => return None,
            Restored | Reported if is_named && err.contains("E0452") => return None,
            Restored | Reported => "expected a description of the changed state, found none",
            Signal(_) | Error(_) => "expected the process to fail, found exit code 0",
        },
        (Some(1), _) if !is_named => "expected an error with the plugin and the entry, found none",
        (Some(1), _) => match expected_outcome {
            Either => return None,
            Reported if err.contains("E0452") => return None,
            Error(code) if err.contains(&format!("error[{code}]")) => return None,
            _ => "unexpected exit code 1",
        },
        // The corrupted memory may belong to the handler that prints the line.
        (_, Some(_)) if !is_named && fault == "heap" => return None,
        (_, Some(_)) if !is_named => "expected a line with the plugin and the entry that raised the signal, found none",
        (_, Some(signal)) => match expected_outcome {
            Signal(expected) if expected == signal => return None,
            Either => return None,
            _ => "unexpected termination by a signal",
        },
        _ => "expected exit code 0, exit code 1 or a signal, found a different exit code",
    };
    Some(format!("{fault} in {entry}: {problem}\n{status}\nstdout: {out}\nstderr: {err}\n"))
}

/// Runs `cases` in parallel, and returns the deviations.
fn run_all(cases: &[(&str, &str, ExpectedOutcome)]) -> String {
    let correct_output = wait_with_timeout(run(&[])).ok().out;
    let (next, problems) = (AtomicUsize::new(0), Mutex::new(String::new()));
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                while let Some(&(fault, entry, expected_outcome)) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let limit: &[&str] = match fault {
                        "loop" => &["--timeout", "0.1"],
                        // Heap corruption can leave a cyclic list, which is traversed forever.
                        "heap" | "doublefree" => &["--timeout", "2"],
                        "oom" => &["--max-memory", "512M"],
                        _ => &[],
                    };
                    let output = run_faulty(fault, entry, limit);
                    if let Some(problem) = find_deviation(fault, entry, expected_outcome, &output, &correct_output) {
                        let _ = writeln!(problems.lock().unwrap(), "{problem}");
                    }
                }
            });
        }
    });
    problems.into_inner().unwrap()
}

#[test]
fn handles_every_fault_in_every_entry() {
    let cases: Vec<_> = FAULTS
        .iter()
        .flat_map(|&(fault, expected_outcome)| ENTRIES.map(|entry| (fault, entry, expected_outcome)))
        .collect();
    let problems = run_all(&cases);
    assert!(problems.is_empty(), "{problems}");
}

#[test]
fn does_not_affect_host_and_other_backends() {
    let plugin_dir = temporary_folder();
    copy(&FIXTURE.plugins.join("libbyoc_elementwise.so"), &plugin_dir.path().join("libbyoc_elementwise.so"));
    copy(&plugin("template"), &plugin_dir.path().join("libbyoc_template.so"));
    let (plugins, model) = (plugin_dir.path().display().to_string(), FIXTURE.model.display().to_string());
    let artifact = plugin_dir.path().join("model.byoc").display().to_string();
    let base_args = ["--plugin-dir", &plugins, "--no-cache"];
    let template_args = [&base_args[..], &["--backend", "template"]].concat();
    let commands = [
        [&["run", &model, "--input", "x=random:3"], &base_args[..]].concat(),
        [&["run", &model, "--input", "x=random:3", "--require-offload"], &template_args[..]].concat(),
        [&["compile", &model, "-o", &artifact], &template_args[..]].concat(),
        [&["run", &artifact, "--input", "x=random:3"], &base_args[..]].concat(),
        [&["explain", &model], &template_args[..]].concat(),
    ];
    for args in commands {
        let mut command = byoc(&args);
        command.env("FAULT", "segv").env("ENTRY", "entry");
        let output = wait_with_timeout(command);
        assert!(output.status.success(), "{args:?}\n{}\n{}", output.status, output.err);
    }
}

#[test]
fn redirects_output_of_plugin() {
    let correct_output = wait_with_timeout(run(&[])).ok().out;
    for entry in ["init", "compile", "run", "release"] {
        let output = run_faulty("print", entry, &[]).ok();
        assert_eq!(output.out, correct_output, "{entry}");
        assert!(output.err.contains("garbage on stdout"), "{entry}: {}", output.err);
    }
}

/// Tests that the rounding mode is restored after a region that changes it: the host then executes a softmax, which
/// depends on the mode.
#[test]
fn restores_rounding_mode_after_run() {
    let (plugins, model) = (FIXTURE.plugins.display().to_string(), FIXTURE.temp_dir.path().join("thirds.relay"));
    let program = "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(64, 64), float32]) {\n\
                   let %y = add(%x, %x); nn.softmax(%y) }\n";
    std::fs::write(&model, program).unwrap();
    let model = model.display().to_string();
    let output = FIXTURE.temp_dir.path().join("thirds.npz").display().to_string();
    let args = ["run", &model, "--input", "x=random:3", "--output", &output, "--no-cache", "--plugin-dir", &plugins];
    let plugin_args = [&args[..], &["--backend", "elementwise", "--require-offload"]].concat();
    wait_with_timeout(byoc(&args)).ok();
    let correct_output = std::fs::read(&output).unwrap();
    for fault in ["mxcsr", "mxcsrend"] {
        let mut command = byoc(&plugin_args);
        command.env("FAULT", fault).env("ENTRY", "run");
        let restored_run = wait_with_timeout(command).ok();
        assert!(
            restored_run.err.contains("E0452") && restored_run.err.contains("plugin elementwise: run"),
            "{}",
            restored_run.err
        );
        assert!(std::fs::read(&output).unwrap() == correct_output, "{fault}");
    }
}

#[test]
fn writes_files_to_requested_paths() {
    let name = "relative.npz";
    for entry in ["init", "run"] {
        run_faulty("cwd", entry, &["--output", name]).ok();
        assert!(std::fs::remove_file(FIXTURE.temp_dir.path().join(name)).is_ok(), "{entry}");
        assert!(!Path::new("/").join(name).exists(), "{entry}");
    }
}

#[test]
fn forked_child_of_plugin_is_not_second_host() {
    let correct_output = wait_with_timeout(run(&[])).ok().out;
    for entry in ["init", "judge", "run"] {
        let output = run_faulty("fork", entry, &[]).ok();
        assert_eq!(output.out, correct_output, "{entry}");
        assert!(
            output.err.contains(&format!("{entry}: ")) && output.err.contains("the child process returned to byoc"),
            "{}",
            output.err
        );
    }
}

/// Tests contract violations that apply to only one entry.
#[test]
fn reports_contract_violations() {
    let faults = [
        "nullblob",
        "hugeblob",
        "badutf",
        "path",
        "nocompiled",
        "wrongdims",
        "bigdims",
        "hugebound",
        "hugews",
        "maxws",
        "noprep",
        "twiceprep",
        "status",
        "failnone",
        "wrinput",
    ];
    let correct_output = wait_with_timeout(run(&[])).ok().out;
    let mut problems = String::new();
    for fault in faults {
        let output = run_faulty(fault, "", &[]);
        let is_named = output.err.contains("elementwise");
        let is_expected = match (output.status.code(), output.status.signal()) {
            (Some(0), _) => output.out == correct_output,
            (Some(1), _) | (None, Some(_)) => is_named && output.err.contains("error[E0"),
            _ => false,
        };
        if !is_expected {
            let _ = writeln!(problems, "{fault}: {}\nstdout: {}\nstderr: {}", output.status, output.out, output.err);
        }
    }
    // Out-of-bounds writes are detected in checked runs.
    for fault in ["oobout", "oobout1", "wrinput"] {
        let mut command = run(&[]);
        command.env("FAULT", fault).env("BYOC_CHECK_REGIONS", "1");
        let output = wait_with_timeout(command);
        if output.status.success() || !output.err.contains("plugin elementwise: run") {
            let _ = writeln!(problems, "{fault}, watched: {}\nstderr: {}", output.status, output.err);
        }
    }
    assert!(problems.is_empty(), "{problems}");
}

/// Tests that a fault that terminates the worker of `plugins test` does not terminate the command, which reports the
/// reason.
#[test]
fn conformance_run_reports_faults() {
    let file = FIXTURE.plugins.join("libbyoc_elementwise.so").display().to_string();
    let out = FIXTURE.temp_dir.path().join("cases").display().to_string();
    let args = ["plugins", "test", &file, "--cases", "1", "--only", "nn.relu", "--out", &out];
    for (fault, cause) in [("segv", "a segmentation fault"), ("exit0", "called exit")] {
        let mut command = byoc(&args);
        command.env("FAULT", fault).env("ENTRY", "compile");
        let output = wait_with_timeout(command);
        assert_eq!(output.status.code(), Some(1), "{}", output.err);
        assert!(output.out.contains(cause), "{cause}\n{}\n{}", output.out, output.err);
    }
}

/// Tests that a plugin is identified by the backends it registers, not by its file name, and that an earlier directory
/// takes precedence.
#[test]
fn earlier_directory_takes_precedence() {
    let (first_dir, second_dir) = (temporary_folder(), temporary_folder());
    let library = FIXTURE.plugins.join("libbyoc_elementwise.so");
    copy(&library, &first_dir.path().join("of_another_name.so"));
    copy(&library, &second_dir.path().join("libbyoc_elementwise.so"));
    let (a, b) = (first_dir.path().display().to_string(), second_dir.path().display().to_string());
    for (dirs, expected_file) in [([&a, &b], "of_another_name.so"), ([&b, &a], "libbyoc_elementwise.so")] {
        let args = ["plugins", "show", "elementwise", "--plugin-dir", dirs[0], "--plugin-dir", dirs[1]];
        let listing = wait_with_timeout(byoc(&args)).ok().out;
        assert!(listing.contains(expected_file), "{listing}");
    }
    // Two plugins in one directory that register the same name are reported together, regardless of their file names.
    copy(&library, &second_dir.path().join("twin.so"));
    let output = wait_with_timeout(byoc(&["plugins", "show", "elementwise", "--plugin-dir", &b]));
    assert!(
        !output.status.success() && output.err.contains("E0409") && output.err.contains("twin.so"),
        "{}",
        output.err
    );
}

#[test]
fn crash_of_an_isolated_case_is_one_line() {
    let plugins = FIXTURE.plugins.display().to_string();
    let cases = ["operators/celu", "operators/softsign"].map(crate::data_text);
    let mut args = vec!["verify", "--isolate-cases", "--json", "--backend", "elementwise", "--plugin-dir", &plugins];
    args.extend(cases.iter().map(String::as_str));
    let verify = |fault: Option<&str>| {
        let mut command = byoc(&args);
        if let Some(fault) = fault {
            command.env("FAULT", fault).env("ENTRY", "describe");
        }
        wait_with_timeout(command)
    };
    let rows = |output: &ProcessOutput| -> Vec<serde_json::Value> {
        output.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let correct_output = verify(None);
    assert_eq!(rows(&correct_output).last().unwrap()["summary"]["pass"], 2, "{}", correct_output.err);
    let output = verify(Some("segv"));
    assert_eq!(output.status.code(), Some(1), "{}", output.err);
    let rows = rows(&output);
    assert_eq!(rows.len(), 3, "{}", output.out);
    for row in &rows[..2] {
        assert_eq!(row["status"], "error");
        assert!(row["message"].as_str().unwrap().contains("SIGSEGV"), "{row}");
    }
    assert_eq!(rows[2]["summary"]["error"], 2);
}

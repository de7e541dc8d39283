//! `byoc plugins test`: correct backends pass, and each deliberate contract violation is detected and classified.

use crate::{CommandOutput, byoc};
use byoc_test_support::{c_plugin, copy, plugin, sample, temporary_folder, test_plugin};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Mutex;

/// Deliberate contract violation in `tests/plugins/examples/faulty`, the operator or pattern whose cases reveal it, and
/// the permitted kinds of fault.
struct Mistake {
    name: &'static str,
    only: &'static str,
    kinds: &'static [&'static str],
}

const fn mistake(name: &'static str, subject: &'static str, kinds: &'static [&'static str]) -> Mistake {
    Mistake { name, only: subject, kinds }
}

const WRONG_RESULT: &[&str] = &["wrong-result"];

const MISTAKES: &[Mistake] = &[
    mistake("padding_off_by_one", "nn.conv2d", WRONG_RESULT),
    mistake("swapped_strides", "nn.conv2d", WRONG_RESULT),
    mistake("dilation_ignored", "nn.conv2d", WRONG_RESULT),
    mistake("wrong_group", "nn.conv2d", WRONG_RESULT),
    mistake("kernel_transposed", "nn.conv2d", WRONG_RESULT),
    mistake("sums_in_half", "nn.conv2d", WRONG_RESULT),
    mistake("layout_ignored", "nn.conv2d", &["wrong-result", "panic"]),
    mistake("stale_weights", "nn.conv2d", &["stale-constants"]),
    mistake("bias_ignored", "conv_bias", WRONG_RESULT),
    mistake("nan_lost", "nn.relu", WRONG_RESULT),
    mistake("denormals_flushed", "nn.relu", WRONG_RESULT),
    mistake("saturates", "operator add", WRONG_RESULT),
    mistake("wrong_axis", "nn.softmax", WRONG_RESULT),
    mistake("concatenates_memory", "concatenate", WRONG_RESULT),
    mistake("zero_size", "nn.relu", &["load-failed"]),
    mistake("tail_of_odd_sizes", "nn.relu", &["reads-unset"]),
    mistake("reads_past_end", "nn.relu", &["reads-outside"]),
    mistake("writes_past_end", "nn.relu", &["writes-outside"]),
    mistake("writes_before_start", "nn.relu", &["writes-outside"]),
    mistake("writes_past_workspace", "nn.relu", &["writes-outside"]),
    mistake("writes_input", "nn.relu", &["writes-input"]),
    mistake("adds_to_output", "nn.relu", &["reads-unset"]),
    mistake("aliases_wrong", "operator add", &["aliasing"]),
    mistake("shared_scratch", "nn.relu", &["not-reentrant"]),
    mistake("shared_by_regions", "nn.relu", &["not-reentrant"]),
    mistake("one_thread_forgotten", "nn.relu", &["threads"]),
    mistake("second_run_differs", "nn.relu", &["not-repeatable"]),
    mistake("threads_lose_the_rest", "nn.relu", &["reads-unset"]),
    mistake("race", "nn.relu", &["not-repeatable", "reads-unset", "wrong-result"]),
    mistake("claims_then_refuses", "nn.conv2d", &["claim-not-kept"]),
    mistake("time_in_the_blob", "nn.relu", &["not-deterministic"]),
    mistake("other_symbol", "nn.relu", &["missing-symbol"]),
    mistake("other_loader", "nn.relu", &["wrong-loader"]),
    mistake("damaged_blob_accepted", "nn.softmax", &["damaged-blob"]),
    mistake("wrong_shape", "nn.relu", &["wrong-shape"]),
    mistake("one_output_more", "nn.relu", &["wrong-shape"]),
    mistake("answers_everything", "nn.relu", &["query"]),
    mistake("query_is_an_error", "nn.relu", &["query"]),
    mistake("noise_after_unload", "nn.relu", &["works-after-unload"]),
    mistake("two_descriptions", "nn.relu", &["bad-description"]),
    mistake("three_bad_patterns", "nn.relu", &["bad-description"]),
    mistake("no_verdict", "nn.relu", &["judge-failed"]),
    mistake("panic_judge", "nn.relu", &["panic"]),
    mistake("panic_compile", "nn.relu", &["panic"]),
    mistake("panic_load", "nn.relu", &["panic"]),
    mistake("panic_prepare", "nn.relu", &["panic"]),
    mistake("panic_run", "nn.relu", &["panic"]),
    mistake("panic_query", "nn.relu", &["panic"]),
    mistake("panic_describe", "nn.relu", &["panic"]),
    mistake("crash_run", "nn.relu", &["crash"]),
    mistake("crash_compile", "nn.relu", &["crash"]),
    mistake("endless_run", "nn.relu", &["time-limit"]),
    mistake("endless_compile", "nn.relu", &["time-limit"]),
];

/// Performs a conformance run; returns its raw output, and the JSON values of the output lines.
fn run_conformance(file: &Path, extra_args: &[&str]) -> (CommandOutput, Vec<Value>) {
    let out = temporary_folder();
    let (file, out) = (file.display().to_string(), out.path().display().to_string());
    let mut args = vec!["plugins", "test", &file, "--json", "--out", &out];
    args.extend(extra_args);
    let output = byoc(&args);
    let lines = output.json();
    (output, lines)
}

fn kinds(lines: &[Value]) -> Vec<&str> {
    lines.iter().filter_map(|line| line["fault"]["kind"].as_str()).collect()
}

#[test]
fn correct_backends_pass() {
    let dir = temporary_folder();
    let right = dir.path().join("right.so");
    copy(&test_plugin("faulty"), &right);
    let plugins = [
        plugin("template"),
        right,
        test_plugin("dense"),
        sample("elementwise"),
        sample("conv_int8"),
        plugin("ccompiler"),
    ];
    for file in plugins {
        // ccompiler starts a C compiler for each case, so only `cargo xtask conformance` tests it with the default
        // number of cases.
        let cases: &[&str] = if file.ends_with("libbyoc_ccompiler.so") { &["--cases", "4"] } else { &[] };
        let (output, lines) = run_conformance(&file, cases);
        assert_eq!(kinds(&lines), [] as [&str; 0], "{}", output.out);
        let output = output.ok();
        let summary = &lines.last().unwrap()["summary"];
        let passed_count = summary["passed"].as_u64();
        assert!(summary["passes"] == true && passed_count >= Some(8), "{}: {summary}\n{}", file.display(), output.out);
    }
}

/// A backend whose device is elsewhere is tested as far as compiling.
#[test]
fn cases_may_end_after_compile() {
    let dir = temporary_folder();
    for (mistake, only, expected) in
        [("nan_lost", "nn.relu", &[][..]), ("claims_then_refuses", "nn.conv2d", &["claim-not-kept"][..])]
    {
        let file = dir.path().join(format!("faulty_{mistake}.so"));
        copy(&test_plugin("faulty"), &file);
        let (output, lines) = run_conformance(&file, &["--only", only, "--until", "compile"]);
        assert_eq!(kinds(&lines), expected, "{mistake}: {}", output.out);
        assert_eq!(output.code, i32::from(!expected.is_empty()), "{}", output.err);
    }
}

#[test]
fn reports_waivers_without_a_claim() {
    let (output, _) = run_conformance(&test_plugin("dense"), &["--cases", "4", "--waive", "layer"]);
    output.ok().stderr_contains(&["expected the name of a claim or a check, found \"layer\"", "pattern dense.layer"]);
    // A waiver of a claim that the filter excludes causes no warning.
    let dir = temporary_folder();
    let waivers = ["operator nn.conv2d", "too little memory", "operator tanh, option loud=true", "option luod=true"];
    let waive_args = waivers.iter().flat_map(|name| ["--waive", *name]);
    let args: Vec<&str> = ["--cases", "4", "--only", "nn.relu"].into_iter().chain(waive_args).collect();
    let (output, _) = run_conformance(&claims(dir.path(), "right"), &args);
    assert_eq!(output.err.matches("--waive: expected").count(), 1, "{}", output.err);
    output.ok().stderr_contains(&["found \"option luod=true\"", "did you mean \"option loud=true\"?"]);
}

#[test]
fn filter_without_a_claim_is_an_error() {
    for (only, fragments) in [
        ("nn.relu", &["dense: no claim contains \"nn.relu\"", "claims: pattern dense.layer"][..]),
        ("dense.lyer", &["did you mean \"dense.layer\"?"]),
    ] {
        let (output, _) = run_conformance(&test_plugin("dense"), &["--cases", "4", "--only", only]);
        output.fails_with("E0404").stderr_contains(fragments);
    }
}

/// oneDNN's relu maps NaN to 0, which the description, the report and `plugins show` declare.
#[test]
fn skips_and_reports_values_without_guarantee() {
    if byoc_test_support::onednn().is_none() {
        return;
    }
    let guarantees = "finite_math: no guarantee for results that involve NaN or infinity\nflush_to_zero: subnormal numbers may be replaced by zero";
    let (output, lines) = run_conformance(&plugin("dnnl"), &["--only", "dense_bias_relu"]);
    let summary = &lines.last().unwrap()["summary"];
    assert!(summary["finite_math"] == true && summary["flush_to_zero"] == true, "{}", output.out);
    assert!(summary["passed"].as_u64() >= Some(8), "{}", output.out);
    // A fault under low memory is permitted, as OpenMP aborts the process if it cannot create threads.
    assert!(kinds(&lines).iter().all(|kind| kind.starts_with("memory")), "{}", output.out);
    let dir = byoc_test_support::plugin_dir(&["dnnl"]);
    let text = byoc(["plugins", "show", "dnnl", "--plugin-dir", &dir.path().display().to_string()]).ok();
    assert!(text.out.contains(guarantees), "{}", text.out);
}

#[test]
fn finds_every_mistake() {
    let library = test_plugin("faulty");
    let dir = temporary_folder();
    let mistakes = Mutex::new(MISTAKES.iter());
    let missed_mistakes = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while let Some(mistake) = { mistakes.lock().unwrap().next() } {
                    let file = dir.path().join(format!("faulty_{}.so", mistake.name));
                    copy(&library, &file);
                    let (output, lines) =
                        run_conformance(&file, &["--cases", "16", "--only", mistake.only, "--time-limit", "3"]);
                    let kinds_reported = kinds(&lines);
                    let is_reported = kinds_reported.iter().any(|kind| mistake.kinds.contains(kind));
                    if !is_reported || output.code != 1 || !output.err.contains("error[E0441]") {
                        let context =
                            format!("{}: {kinds_reported:?}, code {}: {}", mistake.name, output.code, output.err);
                        missed_mistakes.lock().unwrap().push(context);
                    }
                }
            });
        }
    });
    let missed_mistakes = missed_mistakes.into_inner().unwrap();
    assert!(
        missed_mistakes.is_empty(),
        "{} of {} contract violations were not detected:\n{}",
        missed_mistakes.len(),
        MISTAKES.len(),
        missed_mistakes.join("\n")
    );
}

#[test]
fn shrinks_failing_case_and_reproduces_it() {
    let temp_dir = temporary_folder();
    let file = temp_dir.path().join("faulty_swapped_strides.so");
    copy(&test_plugin("faulty"), &file);
    let out = temp_dir.path().join("cases");
    let (path, dir) = (file.display().to_string(), out.display().to_string());
    let args = ["plugins", "test", &path, "--only", "operator nn.conv2d", "--out", &dir, "--cases", "16"];
    let output = byoc(args).fails_with("E0441");
    assert!(output.out.contains("reproduce: byoc plugins test"), "{}", output.out);
    let case = out.join("faulty_operator_nn.conv2d_wrong-result.relay".replace("nn.conv2d", "nn_conv2d"));
    let text = std::fs::read_to_string(&case).unwrap();
    assert!(text.starts_with("// byoc plugins test: operator nn.conv2d\n"), "{text}");
    // The case is minimized: every attribute but the strides has its default, and every dimension is small.
    assert!(text.contains("strides=[") && !text.contains("dilation=") && !text.contains("groups="), "{text}");
    let case = case.display().to_string();
    byoc(["plugins", "test", &path, "--case", &case]).fails_with("E0441").stderr_contains(&["wrong-result in run"]);
    // The case is also an ordinary model.
    let inputs = ["x0", "x1"].into_iter().filter(|name| text.contains(&format!("%{name}:")));
    let inputs = inputs.flat_map(|name| ["--input".to_owned(), format!("{name}=random")]);
    byoc(["run".to_owned(), case.clone()].into_iter().chain(inputs)).ok();
    // A backend without the violation passes the case.
    let correct_plugin = temp_dir.path().join("right.so");
    copy(&test_plugin("faulty"), &correct_plugin);
    let output = byoc(["plugins", "test", &correct_plugin.display().to_string(), "--case", &case]).ok();
    assert!(output.out.contains("passed"), "{}", output.out);
    // The same seed produces the same case, byte for byte.
    let second_dir = temp_dir.path().join("again");
    let dir = second_dir.display().to_string();
    byoc(["plugins", "test", &path, "--only", "operator nn.conv2d", "--out", &dir, "--cases", "16"])
        .fails_with("E0441");
    let name = "faulty_operator_nn_conv2d_wrong-result.relay";
    let lines = |temp_dir: &Path| -> Vec<String> {
        let text = std::fs::read_to_string(temp_dir.join(name)).unwrap();
        text.lines().filter(|line| !line.starts_with("// byoc plugins test /")).map(String::from).collect()
    };
    assert_eq!(lines(&out), lines(&second_dir));
}

#[test]
fn rejects_files_that_are_not_cases() {
    let file = plugin("template").display().to_string();
    let dir = temporary_folder();
    let program = dir.path().join("program.relay");
    std::fs::write(&program, "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(2), float32]) { nn.relu(%x) }\n").unwrap();
    let program = program.display().to_string();
    byoc(["plugins", "test", &file, "--case", &program])
        .fails_with("E0440")
        .stderr_contains(&["expected a first line such as"]);
    byoc(["plugins", "test", "no/such/file.so"])
        .fails_with("E0410")
        .stderr_contains(&["no/such/file.so: expected a plugin file, found none"]);
    byoc(["plugins", "test", "nobody"]).fails_with("E0401").stderr_contains(&["relay.ext.nobody"]);
}

#[test]
fn finds_backend_by_name() {
    let plugins = byoc_test_support::plugin_dir(&["template"]);
    let dir = plugins.path().display().to_string();
    let args = ["plugins", "test", "template", "--plugin-dir", &dir, "--cases", "3", "--only", "nn.relu"];
    let output = byoc(args.into_iter().chain(["--threads", "1"])).ok();
    assert!(output.out.contains("operator nn.relu") && output.out.contains(", up to 1 thread\n"), "{}", output.out);
    let summary = output.out.lines().last().unwrap();
    assert!(summary.starts_with("no faults; ") && summary.contains(" cases passed, "), "{}", output.out);
}

/// Copies the `claims` plugin to a file whose name selects a mistake in the plugin's declarations.
fn claims(dir: &Path, mistake: &str) -> std::path::PathBuf {
    let file = dir.join(format!("claims_{mistake}.so"));
    copy(&c_plugin("claims"), &file);
    file
}

/// Tests that the layouts, open dimensions and options declared by a backend are exercised.
#[test]
fn tests_what_is_declared() {
    let dir = temporary_folder();
    let (output, lines) = run_conformance(&claims(dir.path(), "right"), &[]);
    assert_eq!(kinds(&lines), [] as [&str; 0], "{}", output.out);
    output.ok();
    let counts: Vec<(&str, u64)> =
        lines.iter().filter_map(|line| Some((line["claim"].as_str()?, line["tested"].as_u64()?))).collect();
    let names: Vec<&str> = counts.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["layout nn.conv2d", "open dimensions", "option loud=false", "option loud=true"]);
    assert!(counts[0].1 >= 8 && counts.iter().all(|(_, tested_count)| *tested_count >= 2), "{counts:?}");
    for (mistake, subject) in [
        ("layout_zero", "operator nn.conv2d"),
        ("open_zero", "operator nn.relu, open dimensions"),
        ("option_zero", "operator nn.conv2d, option loud=true"),
    ] {
        let (output, lines) = run_conformance(&claims(dir.path(), mistake), &["--cases", "12"]);
        let is_found = lines.iter().any(|line| line["subject"] == subject && line["fault"]["kind"] == "wrong-result");
        assert!(is_found && output.code == 1, "{mistake}: {}", output.out);
    }
}

/// Tests that a claim that needs other operators, constants or an option is tested with what it needs.
#[test]
fn draws_what_a_claim_needs() {
    let dir = temporary_folder();
    for (right, mistake, subject) in [
        ("beside", "beside_zero", "operator reshape"),
        ("constants", "constants_zero", "pattern claims.half"),
        ("optional", "optional_zero", "operator sigmoid"),
    ] {
        let (output, lines) = run_conformance(&claims(dir.path(), right), &[]);
        assert_eq!(kinds(&lines), [] as [&str; 0], "{right}: {}", output.out);
        let passed_count = lines.iter().find(|line| line["subject"] == subject).unwrap()["passed"].as_u64();
        assert!(passed_count >= Some(8), "{right}: {}", output.out);
        output.ok();
        let (output, lines) = run_conformance(&claims(dir.path(), mistake), &["--cases", "12"]);
        let wrong_result =
            lines.iter().find(|line| line["subject"] == subject && line["fault"]["kind"] == "wrong-result");
        assert!(wrong_result.is_some() && output.code == 1, "{mistake}: {}", output.out);
    }
}

/// Tests that a case with a second claim as context names that claim, and reproduces the fault.
#[test]
fn repeats_cases_beside_other_claims() {
    let temp_dir = temporary_folder();
    let (file, out) = (claims(temp_dir.path(), "beside_zero").display().to_string(), temp_dir.path().join("cases"));
    let dir = out.display().to_string();
    byoc(["plugins", "test", &file, "--cases", "8", "--only", "operator reshape", "--out", &dir]).fails_with("E0441");
    let case = out.join("claims_operator_reshape_wrong-result.relay").display().to_string();
    let text = std::fs::read_to_string(&case).unwrap();
    assert!(text.contains("\n// with context: operator nn."), "{text}");
    byoc(["plugins", "test", &file, "--case", &case]).fails_with("E0441").stderr_contains(&["wrong-result in run of "]);
    let right = claims(temp_dir.path(), "beside").display().to_string();
    byoc(["plugins", "test", &right, "--case", &case]).ok();
}

/// Tests that a backend that declares support for one run at a time is never called concurrently.
#[test]
fn one_run_at_a_time_is_respected() {
    let dir = temporary_folder();
    let file = dir.path().join("faulty_shared_scratch_one_at_a_time.so");
    copy(&test_plugin("faulty"), &file);
    let (output, lines) = run_conformance(&file, &["--only", "nn.relu"]);
    assert_eq!(kinds(&lines), [] as [&str; 0], "{}", output.out);
    output.ok();
}

/// Tests that a conformance run exercises the device memory, the devices and the asynchronous runs of a backend.
#[test]
fn tests_devices() {
    let device = |config: &Value| {
        let dir = temporary_folder();
        let file = dir.path().join("libbyoc_device.so");
        copy(&test_plugin("device"), &file);
        std::fs::write(dir.path().join("libbyoc_device.json"), config.to_string()).unwrap();
        (dir, file)
    };
    // Device 1 has no memory, and the option fault=lost loses device 0.
    let waive_args = ["--waive", "device 1", "--waive", "option fault=lost"];
    for one_run in [false, true] {
        let workspace = if one_run { 0 } else { 1000 };
        let (_dir, file) = device(&json!({
            "one_run": one_run, "shares_memory": !one_run, "workspace": workspace, "control_flow": !one_run,
            "loops": !one_run
        }));
        let (output, lines) = run_conformance(&file, &[&waive_args[..], &["--cases", "8"]].concat());
        assert_eq!(kinds(&lines), [] as [&str; 0], "{}", output.out);
        let control_flow = if one_run { &[][..] } else { &["control flow", "loops"] };
        for claim in ["device memory", "device 0", "unfinished runs", "option wide=true"].iter().chain(control_flow) {
            let tested_count = lines.iter().find(|line| line["claim"] == *claim).unwrap()["tested"].as_u64();
            assert!(tested_count >= Some(2), "{claim}: {}", output.out);
        }
        // The operator is supported only with the option set.
        let option_subject = lines.iter().find(|line| line["subject"] == "operator sigmoid, option wide=true").unwrap();
        assert!(option_subject["passed"].as_u64() >= Some(4), "{}", output.out);
        output.ok();
    }
    for (fault, expected_kinds) in [
        ("early", &["wrong-result", "not-repeatable"][..]),
        ("unordered", &["not-repeatable"]),
        ("past_end", &["writes-outside"]),
        ("workspace", &["writes-outside"]),
        ("shared", &["wrong-result"]),
        ("branch", &["wrong-result"]),
        ("state", &["wrong-result"]),
        ("host_only", &["not-tested"]),
        ("lost", &["run-failed"]),
    ] {
        let (_dir, file) = device(&json!({
            "fault": fault, "milliseconds": 1, "shares_memory": true, "workspace": 64, "control_flow": true,
            "loops": true
        }));
        let (output, lines) = run_conformance(&file, &[&waive_args[..], &["--cases", "2"]].concat());
        let kinds_reported = kinds(&lines);
        assert!(
            kinds_reported.iter().any(|kind| expected_kinds.contains(kind)),
            "{fault}: {kinds_reported:?}: {}",
            output.out
        );
        assert_eq!(output.code, 1);
    }
    let (_dir, file) = device(&json!({}));
    let (output, lines) = run_conformance(&file, &["--cases", "2", "--waive", "option fault=lost"]);
    let is_out_of_memory =
        lines.iter().any(|line| line["fault"]["message"].as_str().is_some_and(|m| m.contains("memory")));
    assert!(is_out_of_memory && output.code == 1, "{}", output.out);
}

/// Tests that the case written for a fault with open dimensions or with an option reproduces the fault.
#[test]
fn repeats_cases_with_their_circumstances() {
    let temp_dir = temporary_folder();
    let out = temp_dir.path().join("cases");
    for (mistake, setting) in [("open_zero", "// with open dimensions: "), ("option_zero", "// with option: loud=true")]
    {
        let file = claims(temp_dir.path(), mistake).display().to_string();
        let dir = out.display().to_string();
        byoc(["plugins", "test", &file, "--cases", "8", "--only", "nn.relu", "--out", &dir]).fails_with("E0441");
        let mut cases = std::fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().path());
        let case = cases.find(|path| path.extension().is_some_and(|e| e == "relay")).unwrap();
        let text = std::fs::read_to_string(&case).unwrap();
        assert!(text.contains(setting), "{text}");
        let case = case.display().to_string();
        byoc(["plugins", "test", &file, "--case", &case])
            .fails_with("E0441")
            .stderr_contains(&["wrong-result in run of "]);
        let right = claims(temp_dir.path(), "right").display().to_string();
        byoc(["plugins", "test", &right, "--case", &case]).ok();
        std::fs::remove_dir_all(&out).unwrap();
    }
}

#[test]
fn claim_without_a_tested_case_is_a_fault_unless_waived() {
    let dir = temporary_folder();
    let file = claims(dir.path(), "untested");
    let (output, lines) = run_conformance(&file, &["--cases", "12"]);
    assert_eq!(kinds(&lines), ["not-tested"], "{}", output.out);
    assert_eq!(output.code, 1);
    assert!(output.err.contains("--waive"), "{}", output.err);
    let (output, lines) = run_conformance(&file, &["--cases", "12", "--waive", "operator tanh"]);
    assert!(
        lines.iter().any(|line| line["status"] == "waived" && line["subject"] == "operator tanh"),
        "{}",
        output.out
    );
    output.ok();
}

/// Tests that the report of a fault under low memory names the entry and the region and distinguishes a hang from a
/// crash, that the written case reproduces the fault, and that the fault can be waived.
#[test]
fn reports_faults_with_little_memory() {
    for (mistake, kind) in [("memory_crash", "memory"), ("memory_hang", "memory-hang")] {
        let temp_dir = temporary_folder();
        let file = claims(temp_dir.path(), mistake);
        let dir = temp_dir.path().join("cases").display().to_string();
        let file_name = file.display().to_string();
        let options = ["plugins", "test", &file_name, "--cases", "4", "--time-limit", "3", "--json", "--out", &dir];
        let output = byoc(options).fails_with("E0441");
        let lines = output.json();
        let failure =
            lines.iter().find(|line| line["fault"]["kind"] == kind).unwrap_or_else(|| panic!("{}", output.out));
        assert_eq!((&failure["subject"], &failure["fault"]["entry"]), (&"too little memory".into(), &"load".into()));
        assert!(failure["fault"]["region"].as_str().unwrap().starts_with("tvmgen_"), "{failure}");
        let case = failure["file"].as_str().unwrap();
        let repetition = byoc(["plugins", "test", &file_name, "--time-limit", "3", "--case", case]).fails_with("E0441");
        repetition.stderr_contains(&[&format!("{kind} in load of tvmgen_")]);
        byoc(options.iter().copied().chain(["--waive", "too little memory"])).ok();
    }
}

/// Tests that the report of a crash names the plugin, the region and the entry.
#[test]
fn crash_names_plugin_region_and_entry() {
    let dir = temporary_folder();
    let file = dir.path().join("faulty_crash_run.so");
    copy(&test_plugin("faulty"), &file);
    let (output, lines) = run_conformance(&file, &["--cases", "4", "--only", "nn.relu"]);
    let fault = &lines.iter().find(|line| line["fault"]["kind"] == "crash").unwrap()["fault"];
    assert_eq!(fault["entry"], "run", "{}", output.out);
    let region = fault["region"].as_str().unwrap();
    assert!(region.starts_with("tvmgen_"), "{fault}");
    let message = fault["message"].as_str().unwrap();
    assert!(message.contains(&format!("plugin faulty: run: region {region}")), "{message}");
}

#[test]
fn show_marks_refused_entries() {
    let dir = byoc_test_support::plugin_dir(&["template"]);
    let config = r#"{"name": "mychip", "patterns": ["a: nn.relu(*)", "b: nn.relu(nn.conv2d(*, const) ? nn.bias_add(*, const))"]}"#;
    std::fs::write(dir.path().join("libbyoc_template.json"), config).unwrap();
    let text = byoc(["plugins", "show", "mychip", "--plugin-dir", &dir.path().display().to_string()]).ok().out;
    let marked_line = "^ refused: expected \"?\", \"|\" or the end of the pattern, found \"(\"\n    write let p0 = nn.conv2d(*, const); ";
    assert!(text.contains(marked_line) && text.matches("refused").count() == 1, "{text}");
}

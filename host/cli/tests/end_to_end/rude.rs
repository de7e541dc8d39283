//! Misbehaving plugins: each causes one error that names the plugin, the entry and the reason, and later commands still
//! work.

use crate::{CommandOutput, byoc, data_text};
use byoc_test_support::{copy, temporary_folder, test_plugin};
use std::process::Command;
use tempfile::TempDir;

/// Creates a directory with the faulty plugin for `mistake`, and a model that the plugin supports.
fn faulty_plugin(mistake: &str) -> (TempDir, String, String) {
    let temp_dir = temporary_folder();
    copy(&test_plugin("faulty"), &temp_dir.path().join(format!("faulty_{mistake}.so")));
    let model = temp_dir.path().join("model.relay");
    let program = "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(3, 3), float32]) { nn.relu(%x) }\n";
    std::fs::write(&model, program).unwrap();
    let (dir, model) = (temp_dir.path().display().to_string(), model.display().to_string());
    (temp_dir, dir, model)
}

fn run(dir: &str, model: &str) -> CommandOutput {
    byoc(["run", model, "--input", "x=ones", "--backend", "faulty", "--plugin-dir", dir, "--no-cache"])
}

/// Checks that the next command works, with the faulty plugin still present.
fn check_next_command(dir: &str) {
    byoc(["plugins", "list", "--json", "--plugin-dir", dir]).ok();
    let model = data_text("digits/digits.onnx");
    byoc(["run", &model, "--dim", "batch=1", "--input", "image=ones", "--plugin-dir", dir]).ok();
}

#[test]
fn failure_before_run_falls_back_to_host() {
    let cases: &[(&str, &[&str])] = &[
        ("panic_judge", &["plugin faulty: judge: panicked at", "deliberate panic in judge"]),
        ("panic_compile", &["plugin faulty: compile: panicked at", "deliberate panic in compile"]),
        ("panic_load", &["plugin faulty: load: panicked at", "deliberate panic in load"]),
        ("no_verdict", &["plugin faulty: judge: number of verdicts: expected 1, found 0"]),
        ("other_symbol", &["to a library that does not define it", "the library defines somebody_else"]),
        ("other_loader", &["loadbinary_somebody_else", "compiled by plugin faulty"]),
    ];
    for (mistake, fragments) in cases {
        let (_dir, dir, model) = faulty_plugin(mistake);
        let output = run(&dir, &model).ok().stderr_contains(fragments);
        assert!(output.out.contains("(3, 3)") || output.out.contains("[3, 3]"), "{mistake}: {}", output.out);
        check_next_command(&dir);
    }
}

/// Tests that a region runs on the host if its backend refuses it at preparation. A backend that has loaded a region
/// owns the constants, and the host may have released its copies by then.
#[test]
fn region_refused_after_release_of_constants_runs_on_host() {
    let (temp_dir, dir, _) = faulty_plugin("panic_prepare");
    let file = temp_dir.path().join("digits.byoc").display().to_string();
    let digits = data_text("digits/digits.onnx");
    let backend = ["--backend", "faulty", "--plugin-dir", &dir, "--no-cache"];
    let host_output = byoc(["run", &digits, "--dim", "batch=1", "--input", "image=random:3"]).ok().out;
    let output = byoc([&["run", &digits, "--dim", "batch=1", "--input", "image=random:3"], &backend[..]].concat()).ok();
    assert_eq!(output.stderr_contains(&["refused it", "deliberate panic in prepare"]).out, host_output);
    byoc([&["compile", &digits, "--dim", "batch=1", "-o", &file], &backend[..]].concat()).ok();
    let output = byoc([&["run", &file, "--input", "image=random:3"], &backend[2..4]].concat()).ok();
    assert_eq!(output.stderr_contains(&["refused it", "deliberate panic in prepare"]).out, host_output);
}

#[test]
fn failure_in_run_is_error() {
    let (_dir, dir, model) = faulty_plugin("panic_run");
    run(&dir, &model)
        .fails_with("E0406")
        .stderr_contains(&["plugin faulty: run: panicked at", "deliberate panic in run"]);
    check_next_command(&dir);
}

#[test]
fn failure_at_start_is_error() {
    let (_dir, dir, model) = faulty_plugin("panic_describe");
    run(&dir, &model)
        .fails_with("E0406")
        .stderr_contains(&["plugin faulty: describe: panicked at", "deliberate panic in describe"]);
    check_next_command(&dir);
    let (_dir, dir, model) = faulty_plugin("panic_init");
    run(&dir, &model).fails_with("E0401").stderr_contains(&["E0419", "deliberate panic in init"]);
    check_next_command(&dir);
    let (_dir, dir, model) = faulty_plugin("error_init");
    run(&dir, &model).fails_with("E0401").stderr_contains(&["E0418", "expected a connected device, found none"]);
    check_next_command(&dir);
}

#[test]
fn wrong_prepared_shapes_fall_back_to_host() {
    for (mistake, reason) in [
        ("panic_prepare", "deliberate panic in prepare"),
        ("one_output_more", "expected prepared output dimensions [3, 3], found [3, 3] and [1]"),
    ] {
        let (_dir, dir, model) = faulty_plugin(mistake);
        run(&dir, &model).ok().stderr_contains(&["faulty", "host", reason]);
        check_next_command(&dir);
    }
}

#[test]
fn checked_run_reports_out_of_bounds_writes() {
    for (mistake, reason) in [
        ("writes_past_end", "output 0: 1 bytes written after the end, the first at offset 0 past the end"),
        ("writes_before_start", "output 0: 1 bytes written before the start, the last at offset -1"),
        ("writes_past_workspace", "workspace: 1 bytes written after the end"),
        ("writes_input", "input 0 was written to"),
    ] {
        let (_dir, dir, model) = faulty_plugin(mistake);
        let args = ["run", &model, "--input", "x=ones", "--backend", "faulty", "--plugin-dir", &dir, "--no-cache"];
        let output =
            Command::new(env!("CARGO_BIN_EXE_byoc")).args(args).env("BYOC_CHECK_REGIONS", "1").output().unwrap();
        crate::to_command_output(output)
            .fails_with("E0613")
            .stderr_contains(&["plugin faulty: run: region tvmgen_", reason]);
        check_next_command(&dir);
    }
}

#[test]
fn correct_plugin_passes_checked_run() {
    let (_dir, dir, model) = faulty_plugin("nothing");
    let args = ["run", &model, "--input", "x=ones", "--backend", "faulty", "--plugin-dir", &dir, "--require-offload"];
    let output = Command::new(env!("CARGO_BIN_EXE_byoc")).args(args).env("BYOC_CHECK_REGIONS", "1").output().unwrap();
    crate::to_command_output(output).ok();
}

#[test]
fn last_line_names_endless_loop() {
    let (_dir, dir, model) = faulty_plugin("endless_run");
    let args = ["run", &model, "--input", "x=ones", "--backend", "faulty", "--plugin-dir", &dir, "-vv"];
    let mut child = Command::new(env!("CARGO_BIN_EXE_byoc"))
        .args(args)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // The host cannot stop a plugin thread; it can only report the entry in which the thread runs.
    let errors = child.stderr.take().unwrap();
    let (send, lines) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in std::io::BufRead::lines(std::io::BufReader::new(errors)).map_while(Result::ok) {
            let _ = send.send(line);
        }
    });
    let mut log = Vec::new();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !log
        .iter()
        .any(|line: &String| line.contains("plugin faulty: run: region tvmgen_default_faulty_main_0 begins"))
    {
        let remaining = deadline.saturating_duration_since(std::time::Instant::now());
        match lines.recv_timeout(remaining) {
            Ok(line) => log.push(line),
            Err(_) => break,
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(
        log.iter().any(|line| line.contains("plugin faulty: run: region tvmgen_default_faulty_main_0 begins")),
        "{log:#?}"
    );
    check_next_command(&dir);
}

/// Tests that a region without outputs stays on the host, as no backend can compile it.
#[test]
fn region_without_outputs_stays_on_host() {
    let (temp_dir, dir, _) = faulty_plugin("nothing");
    let model = temp_dir.path().join("regions.relay");
    let region = |name: &str, body: &str| {
        format!(
            "def @{name}(%y: Tensor[(3, 3), float32], Compiler=\"faulty\", Primitive=1, Inline=1, global_symbol=\"{name}\") \
             {{ {body} }}\n"
        )
    };
    let program = format!(
        "#[version = \"0.0.5\"]\n{}{}def @main(%x: Tensor[(3, 3), float32]) {{ let %r = @empty(%x); @whole(%x) }}\n",
        region("empty", "()"),
        region("whole", "nn.relu(%y)"),
    );
    std::fs::write(&model, program).unwrap();
    let output = run(&dir, &model.display().to_string()).ok();
    for fragments in [
        "warning[E0421]",
        "graph empty: expected at least one output, found none",
        "region empty could not be compiled, so it runs on the host",
    ] {
        assert!(output.err.contains(fragments), "expected {fragments} in {}", output.err);
    }
    assert!(!output.err.contains("E0404"), "expected the other region on the backend: {}", output.err);
    check_next_command(&dir);
}

#[test]
fn build_names_missing_symbol_by_its_code() {
    let (_dir, dir, model) = faulty_plugin("other_symbol");
    let explanation =
        byoc(["explain", &model, "--backend", "faulty", "--plugin-dir", &dir, "--no-cache", "--json"]).ok();
    for fragments in [
        "warning[E0405]: faulty compiled tvmgen_default_faulty_main_0 to a library that does not define it",
        "the library defines somebody_else",
        "region tvmgen_default_faulty_main_0 could not be compiled, so it runs on the host",
    ] {
        assert!(explanation.err.contains(fragments), "expected {fragments} in {}", explanation.err);
    }
    assert!(!explanation.err.contains("E0423"), "{}", explanation.err);
    assert_eq!(explanation.json()[0]["nodes"][0]["refusals"][0]["code"], "CompileFailed");
}

#[test]
fn build_gives_errors_without_code_the_code_of_their_region() {
    let (_dir, dir, model) = faulty_plugin("panic_compile");
    let explanation = byoc(["explain", &model, "--backend", "faulty", "--plugin-dir", &dir, "--no-cache"]).ok();
    assert!(explanation.err.contains("warning[E0423]"), "{}", explanation.err);
}

#[test]
fn error_with_code_is_refusal_with_that_code() {
    let (_dir, dir, model) = faulty_plugin("no_room");
    let explanation =
        byoc(["explain", &model, "--backend", "faulty", "--plugin-dir", &dir, "--no-cache", "--json"]).ok();
    let refusal = &explanation.json()[0]["nodes"][0]["refusals"][0];
    assert_eq!(refusal["code"], "ResourceLimit", "{refusal}");
    assert_eq!(refusal["detail"], "plugin faulty: compile: expected a region with at most 8 buffers, found 9");
    assert_eq!(refusal["hint"], "use a larger device");
}

/// Tests that Ctrl-C during the compilation of a region makes the plugin stop and the command report the cancellation.
#[test]
fn build_can_be_cancelled() {
    use std::io::{BufRead, BufReader, Read};
    let (temp_dir, dir, model) = faulty_plugin("until_cancelled");
    let out = temp_dir.path().join("model.byoc");
    let artifact = out.display().to_string();
    let args = ["compile", &model, "-o", &artifact, "--backend", "faulty", "--plugin-dir", &dir];
    let mut child = Command::new(env!("CARGO_BIN_EXE_byoc"))
        .args(args)
        .arg("--no-cache")
        .env_remove("BYOC_LOG")
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("compiling until cancelled") {
        line.clear();
        assert_ne!(
            errors.read_line(&mut line).unwrap(),
            0,
            "expected the command to compile the region before it ends"
        );
    }
    let kill_status = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(kill_status.success());
    let mut log = String::new();
    errors.read_to_string(&mut log).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{log}");
    for fragments in
        ["E0426", "the build was cancelled", "region tvmgen_default_faulty_main_0 was being compiled by faulty"]
    {
        assert!(log.contains(fragments), "expected {fragments} in {log}");
    }
    assert!(!out.exists());
    check_next_command(&dir);
}

#[test]
fn reports_three_mistakes_in_table_and_uses_valid_entry() {
    let (_dir, dir, _) = faulty_plugin("three_bad_patterns");
    let output = byoc(["plugins", "show", "faulty", "--plugin-dir", &dir]).ok();
    assert!(output.out.contains("conv_bias"), "{}", output.out);
    let model = data_text("digits/digits.onnx");
    let output = byoc(["explain", &model, "--dim", "batch=1", "--backend", "faulty", "--plugin-dir", &dir]).ok();
    for entry in ["entry \"a\"", "entry \"b\"", "entry \"c\""] {
        assert!(output.err.contains(entry), "expected {entry} in {}", output.err);
    }
    assert_eq!(output.err.matches("E0407").count(), 3, "{}", output.err);
    assert!(output.err.contains("plugin faulty") && output.err.contains("column"), "{}", output.err);
}

#[test]
fn reports_both_plugins_of_one_name() {
    let (temp_dir, dir, model) = faulty_plugin("nothing");
    copy(&test_plugin("faulty"), &temp_dir.path().join("another.so"));
    run(&dir, &model).fails_with("E0401").stderr_contains(&["E0409", "another.so", "faulty_nothing.so"]);
    check_next_command(&dir);
}

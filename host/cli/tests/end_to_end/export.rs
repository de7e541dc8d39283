//! `byoc export`: models as C programs. The programs are compiled with warnings as errors, and run under sanitizers and
//! on emulated processors. Their outputs are compared with recorded outputs, and their memory with a lower bound.

#![expect(clippy::print_stderr, reason = "reports skipped tests and measured ratios")]

mod half;
mod random;
mod regions;
mod relay;
mod weights;

use crate::{binary, byoc, data, data_text, isolated_command, models};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Compiler flags for every exported file.
const STRICT_FLAGS: &[&str] = &["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-Wconversion"];

const SANITIZER_FLAGS: &[&str] = &["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

/// Exported project and its directory.
struct ExportedProject {
    _temp_dir: Option<TempDir>,
    dir: PathBuf,
    metadata: Value,
}

fn export(model: &str, extra_args: &[&str]) -> ExportedProject {
    let temp_dir = tempfile::tempdir().unwrap();
    let dir = temp_dir.path().join("c");
    let text = dir.display().to_string();
    byoc(["export", model, "--c", &text].iter().chain(extra_args)).ok();
    ExportedProject { _temp_dir: Some(temp_dir), ..ExportedProject::open(&text) }
}

fn digits(extra_args: &[&str]) -> ExportedProject {
    export(&data_text("digits/digits.onnx"), &[&["--dim", "batch=1"], extra_args].concat())
}

/// Quantizes the digits model to int8; returns the directory and the path of the model in it.
fn quantized_digits(extra_args: &[&str]) -> (TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("int8.relay").display().to_string();
    let (model, calibration) = (data_text("digits/digits.onnx"), data_text("digits/calibration.npz"));
    let args = ["quantize", &model, "--dim", "batch=1", "--calibrate", &calibration, "-o", &file];
    byoc(args.iter().chain(extra_args)).ok();
    (dir, file)
}

/// Tests whether an executable can be started.
fn exists(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Runs a command, asserts that it exits with code 0, and returns its standard output.
#[track_caller]
fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}\n{err}", output.status);
    out.into_owned()
}

impl ExportedProject {
    /// Opens the exported project in a directory.
    fn open(dir: &str) -> ExportedProject {
        let dir = PathBuf::from(dir);
        let metadata = serde_json::from_slice(&std::fs::read(dir.join("model.json")).unwrap()).unwrap();
        ExportedProject { _temp_dir: None, dir, metadata }
    }

    fn sources(&self) -> Vec<String> {
        let files = self.metadata["files"].as_array().unwrap();
        files.iter().filter_map(Value::as_str).filter(|file| file.ends_with(".c")).map(str::to_owned).collect()
    }

    /// Compiles the project with the additional files `extra_args`; returns the path of the executable.
    #[track_caller]
    fn compile(&self, compiler: &str, flags: &[&str], extra_args: &[&str]) -> PathBuf {
        let (program, mut command) = self.compilation(compiler, flags, extra_args);
        output(&mut command);
        program
    }

    /// Returns the path of the executable and the command that compiles it.
    fn compilation(&self, compiler: &str, flags: &[&str], extra_args: &[&str]) -> (PathBuf, Command) {
        let program = self.dir.join(format!("{compiler}.out"));
        let mut command = Command::new(compiler);
        command.current_dir(&self.dir).args(STRICT_FLAGS).args(flags).args(self.sources()).args(extra_args);
        command.arg("-o").arg(&program).arg("-lm");
        (program, command)
    }

    /// Compiles and runs the checking program.
    ///
    /// # Errors
    /// If the compiler or the program exits with a nonzero code; the error is the exit status with the output.
    fn try_check(&self, compiler: &str, flags: &[&str]) -> Result<(), String> {
        let (program, mut compilation) = self.compilation(compiler, flags, &[]);
        for command in [&mut compilation, &mut isolated_command(program)] {
            let run = command.output().unwrap();
            if !run.status.success() {
                let (out, err) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
                return Err(format!("{}\n{out}\n{err}", run.status));
            }
        }
        Ok(())
    }

    /// Compiles and runs the test program, which fails if an output differs from the recorded output.
    #[track_caller]
    fn check(&self, compiler: &str, flags: &[&str], extra_args: &[&str]) -> String {
        output(&mut isolated_command(self.compile(compiler, flags, extra_args)))
    }

    fn arena(&self) -> u64 {
        self.metadata["arena_bytes"].as_u64().unwrap()
    }
}

/// Checks that the arena is at most 1.1 times the lower bound that a script derives from the shapes.
fn check_floor(model: &str, extra_args: &[&str], project: &ExportedProject) {
    if !exists("python3") {
        eprintln!("skipped: the memory lower bound of {model}, which requires python3");
        return;
    }
    let graph = byoc(["compile", model, "--emit", "graph-json"].iter().chain(extra_args)).ok().out;
    let file = project.dir.join("graph.json");
    std::fs::write(&file, graph).unwrap();
    let arena = project.arena().to_string();
    eprint!("{model}: {}", output(Command::new("python3").arg(data("export/ram_floor.py")).arg(file).arg(arena)));
}

#[test]
fn digits_run_under_sanitizers() {
    let project = digits(&[]);
    let out = project.check("cc", SANITIZER_FLAGS, &[]);
    assert!(out.contains("logits: max relative error") && out.contains("pass"), "{out}");
    check_floor(&data_text("digits/digits.onnx"), &["--dim", "batch=1"], &project);
    assert_eq!(project.metadata["inputs"][0]["name"], "image");
    assert_eq!(project.metadata["multiply_adds"], 460_416);
}

#[test]
fn quantized_digits_have_the_bits_of_the_host() {
    for scheme in [&[][..], &["--scheme", "asymmetric,uint8"]] {
        let (_dir, model) = quantized_digits(scheme);
        let out = export(&model, &[]).check("cc", SANITIZER_FLAGS, &[]);
        assert!(out.contains("max relative error 0.00e+00: pass"), "{scheme:?}: {out}");
    }
}

#[test]
fn small_models_match_their_recorded_outputs() {
    for name in ["gru", "unet_small", "swin_small", "mobilenet_v3_small"] {
        let model = data_text(&format!("models/{name}"));
        let project = export(&model, &[]);
        project.check("cc", &["-O1"], &[]);
        check_floor(&model, &[], &project);
    }
}

#[test]
fn a_wrong_result_fails() {
    let project = digits(&[]);
    let file = project.dir.join("model_recorded.h");
    let text = std::fs::read_to_string(&file).unwrap();
    let (head, tail) = text.split_once("out_logits[10] = {\n").unwrap();
    let (first_word, rest_of_line) = tail.split_once(',').unwrap();
    let value: f32 = first_word.trim().trim_end_matches('f').parse().unwrap();
    std::fs::write(&file, format!("{head}out_logits[10] = {{\n    {:?}f,{rest_of_line}", value + 1.0)).unwrap();
    let run = isolated_command(project.compile("cc", &[], &[])).output().unwrap();
    assert_eq!(run.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&run.stdout).contains("FAIL"));
}

#[test]
fn exports_are_reproducible_and_replace_earlier_ones() {
    let (first_project, second_project) = (digits(&[]), digits(&[]));
    let read = |project: &ExportedProject, file: &str| std::fs::read(project.dir.join(file)).unwrap();
    let files = first_project.metadata["files"].as_array().unwrap();
    for file in files.iter().filter_map(Value::as_str) {
        assert!(read(&first_project, file) == read(&second_project, file), "{file} differs");
    }
    // An export with a different prefix replaces the files of the earlier export.
    let (model, dir) = (data_text("digits/digits.onnx"), first_project.dir.display().to_string());
    byoc(["export", &model, "--dim", "batch=1", "--c", &dir, "--prefix", "net"]).ok();
    assert!(first_project.dir.join("net.h").exists() && !first_project.dir.join("model.h").exists());
    // A directory with unrelated files is left untouched.
    let other_dir = tempfile::tempdir().unwrap();
    std::fs::write(other_dir.path().join("thesis.txt"), "mine").unwrap();
    let dir = other_dir.path().display().to_string();
    byoc(["export", &model, "--dim", "batch=1", "--c", &dir]).fails_with("E0513").stderr_contains(&["other files"]);
    assert_eq!(std::fs::read_dir(other_dir.path()).unwrap().count(), 1);
}

#[test]
fn two_prefixes_link_into_one_program() {
    let (first_project, second_project) = (digits(&["--prefix", "first"]), digits(&["--prefix", "second"]));
    let main = "#include \"first.h\"\n#include \"second.h\"\n#include <string.h>\n\
        static first a, b;\nstatic second c;\n\
        int main(void) {\n    static float x[64], y[3][10];\n    x[5] = 1.0f;\n    first_inputs in;\n    in.image = x;\n    \
        first_outputs out0, out1;\n    out0.logits = y[0];\n    out1.logits = y[1];\n    second_inputs in2;\n    \
        in2.image = x;\n    second_outputs out2;\n    out2.logits = y[2];\n    \
        if (first_init(&a) || first_init(&b) || second_init(&c))\n        return 2;\n    \
        if (first_run(&a, &in, &out0) || first_run(&b, &in, &out1) || second_run(&c, &in2, &out2))\n        return 3;\n    \
        out0.logits = 0;\n    if (first_run(&a, &in, &out0) != -1)\n        return 4;\n    \
        return memcmp(y[0], y[1], sizeof y[0]) != 0 || memcmp(y[0], y[2], sizeof y[0]) != 0;\n}\n";
    std::fs::write(first_project.dir.join("main.c"), main).unwrap();
    let other_files: Vec<String> = second_project.sources().into_iter().filter(|file| file != "main.c").collect();
    let other_files: Vec<String> =
        other_files.iter().map(|file| second_project.dir.join(file).display().to_string()).collect();
    let include = format!("-I{}", second_project.dir.display());
    let mut extra_args: Vec<&str> = other_files.iter().map(String::as_str).collect();
    extra_args.push(&include);
    first_project.check("cc", SANITIZER_FLAGS, &extra_args);
}

#[test]
fn open_dimensions_and_unknown_operators_are_refused() {
    let temp_dir = tempfile::tempdir().unwrap();
    let dir = temp_dir.path().join("c").display().to_string();
    let model = data_text("digits/digits.onnx");
    byoc(["export", &model, "--c", &dir]).fails_with("E0504").stderr_contains(&["--dim batch=N"]);
    byoc(["export", &model, "--dim", "batch=?", "--c", &dir]).fails_with("E0504").stderr_contains(&["--dim batch=N"]);
    let file = temp_dir.path().join("m.relay");
    std::fs::write(&file, "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(4, 5), float32]) {\n  argsort(%x)\n}\n")
        .unwrap();
    let file = file.display().to_string();
    byoc(["export", &file, "--c", &dir]).fails_with("E0519").stderr_contains(&["argsort"]);
    byoc(["export", &model, "--dim", "batch=1", "--c", &dir, "--prefix", "3d"]).fails_with("E0519");
    byoc(["export", &model, "--dim", "batch=1", "--c", &dir, "--target", "z80"])
        .fails_with("E0519")
        .stderr_contains(&["generic", "z80"]);
    for invalid in ["nn.conv2d", "nn.conv3=f(h.h)", "reshape=f(h.h)", "nn.relu:OIHW=f(h.h)", "nn.conv2d:AB=f(h.h)"] {
        let extern_model = if invalid.starts_with("reshape") { data_text("models/gpt2_small") } else { model.clone() };
        let dims: &[&str] = if invalid.starts_with("reshape") { &[] } else { &["--dim", "batch=1"] };
        let args = ["export", &extern_model, "--c", &dir, "--extern", invalid];
        byoc(args.iter().chain(dims)).fails_with("E0519");
    }
    assert!(!Path::new(&dir).exists(), "expected no output directory");
}

#[test]
fn operators_become_functions_of_the_user() {
    let project = digits(&["--extern", "nn.conv2d:OHWI=my_conv2d(my_conv2d.h)"]);
    for file in ["my_conv2d.h", "my_conv2d.c"] {
        std::fs::copy(data(&format!("export/{file}")), project.dir.join(file)).unwrap();
    }
    let out = project.check("cc", SANITIZER_FLAGS, &["my_conv2d.c"]);
    let calls: Vec<&str> = out.lines().filter(|line| line.starts_with("Calling")).collect();
    assert_eq!(calls, ["/0/Conv", "/3/Conv", "/6/Conv"].map(|node| format!("Calling my_conv2d for {node}")));
}

/// Model to export, with the options that bind its dimensions.
struct Subject {
    _temp_dir: Option<TempDir>,
    model: String,
    dims: Vec<&'static str>,
}

/// Returns the models in `tests/models`, and the digits model in float and in int8.
fn subjects() -> Vec<Subject> {
    let float_models = models().into_iter().map(|model| model.display().to_string());
    let mut subjects: Vec<Subject> =
        float_models.map(|model| Subject { _temp_dir: None, model, dims: Vec::new() }).collect();
    let digits = data_text("digits/digits.onnx");
    subjects.push(Subject { _temp_dir: None, model: digits, dims: vec!["--dim", "batch=1"] });
    let (dir, model) = quantized_digits(&[]);
    subjects.push(Subject { _temp_dir: Some(dir), model, dims: Vec::new() });
    assert!(subjects.len() >= 17, "expected 15 models and digits, found {}", subjects.len());
    subjects
}

impl Subject {
    fn export(&self, target: &str) -> ExportedProject {
        export(&self.model, &[&["--target", target], &self.dims[..]].concat())
    }

    /// Prints the output of the checking program, and asserts that int8 results are bit-identical to the host's.
    fn report(&self, out: &str) {
        assert!(!self.model.ends_with("int8.relay") || out.contains("0.00e+00"), "{out}");
        eprint!("{}\n{out}", self.model);
    }
}

/// Checks all models with a compiler: the exported C compiles without warnings and reproduces the recorded outputs.
fn all_models(compiler: &str, target: &str, flags: &[&str]) {
    for subject in subjects() {
        subject.report(&subject.export(target).check(compiler, flags, &[]));
    }
}

#[test]
#[ignore = "minutes of computation: cargo xtask export"]
fn all_models_with_gcc_under_sanitizers() {
    for subject in subjects() {
        let project = subject.export("generic");
        subject.report(&project.check("gcc", SANITIZER_FLAGS, &[]));
        project.check("gcc", &["-O2"], &[]);
        check_floor(&subject.model, &subject.dims, &project);
    }
}

#[test]
#[ignore = "minutes of computation: cargo xtask export"]
fn all_models_with_clang() {
    match exists("clang") {
        true => all_models("clang", "generic", &["-O2"]),
        false => eprintln!("skipped: clang is not installed"),
    }
}

#[test]
#[ignore = "minutes of computation: cargo xtask export"]
fn all_models_with_vectors() {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    for (target, feature) in [("x86-64-v3", " avx2 "), ("x86-64-v4", " avx512vl ")] {
        match cpu.contains(feature) {
            true => all_models("gcc", target, &[SANITIZER_FLAGS, &[&format!("-march={target}")]].concat()),
            false => eprintln!("skipped: {target}, which this processor does not support"),
        }
    }
}

#[test]
#[ignore = "minutes of computation: cargo xtask export"]
fn all_models_on_aarch64() {
    if !exists("aarch64-linux-gnu-gcc") || !exists("qemu-aarch64") {
        eprintln!("skipped: requires aarch64-linux-gnu-gcc and qemu-aarch64");
        return;
    }
    for subject in subjects() {
        for target in ["generic", "aarch64"] {
            let (_project, program) = subject.export(target).compile_for_aarch64();
            subject.report(&output(Command::new("qemu-aarch64").arg(program)));
        }
    }
}

/// Builds the project with make and with CMake, as a user would.
#[test]
fn build_files_build_and_print_sizes() {
    let project = digits(&[]);
    if !exists("make") {
        eprintln!("skipped: make is not installed");
        return;
    }
    let make = |target: &str| output(Command::new("make").arg("-C").arg(&project.dir).arg(target));
    assert!(make("check").contains("pass"));
    let sizes = make("size");
    assert!(sizes.contains("text") && sizes.contains("model_layers0.o") && sizes.contains("static"), "{sizes}");
    if !exists("cmake") {
        eprintln!("skipped: cmake is not installed");
        return;
    }
    let build = project.dir.join("build");
    output(Command::new("cmake").arg("-S").arg(&project.dir).arg("-B").arg(&build));
    output(Command::new("cmake").arg("--build").arg(&build));
    let tests = output(Command::new("ctest").current_dir(&build).arg("--output-on-failure"));
    assert!(tests.contains("100% tests passed"), "{tests}");
}

impl ExportedProject {
    fn compile_for_aarch64(self) -> (ExportedProject, PathBuf) {
        let program = self.compile("aarch64-linux-gnu-gcc", &["-O2", "-static"], &[]);
        (self, program)
    }
}

/// Compiler flags for the processor of the board.
const CORTEX_M55: &[&str] =
    &["-Os", "-mcpu=cortex-m55", "-mfloat-abi=hard", "-mthumb", "-ffunction-sections", "-fdata-sections"];

impl ExportedProject {
    /// Compiles and links the program for the board mps3-an547; returns the path of the executable.
    fn compile_for_cortex_m55(&self) -> PathBuf {
        let gcc = || {
            let mut command = Command::new("arm-none-eabi-gcc");
            command.current_dir(&self.dir).args(CORTEX_M55);
            command
        };
        output(gcc().args(STRICT_FLAGS).arg("-c").args(self.sources()));
        output(gcc().args(["-std=gnu99", "-c"]).arg(data("export/cortex_m55/startup.c")));
        let objects = self.sources().into_iter().map(|file| file.replace(".c", ".o"));
        let script = data("export/cortex_m55/link.ld");
        let mut link = gcc();
        link.args(["--specs=rdimon.specs", "-nostartfiles", "-Wl,--gc-sections", "-T"]).arg(script).arg("startup.o");
        output(link.args(objects).args(["-o", "board.elf", "-lm"]));
        self.dir.join("board.elf")
    }

    /// Returns the total size in bytes of the symbols selected by `predicate`.
    fn symbol_bytes(&self, predicate: impl Fn(&str) -> bool) -> i64 {
        let table = output(Command::new("arm-none-eabi-nm").arg("-S").arg(self.dir.join("board.elf")));
        let fields = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let sizes = fields.filter(|fields| fields.len() == 4 && predicate(fields[3]));
        sizes.map(|fields| i64::from_str_radix(fields[1], 16).unwrap()).sum()
    }
}

#[test]
#[ignore = "needs an emulator: cargo xtask export"]
fn digits_on_a_cortex_m55() {
    if !exists("arm-none-eabi-gcc") || !exists("qemu-system-arm") {
        eprintln!("skipped: requires arm-none-eabi-gcc and qemu-system-arm");
        return;
    }
    let (_dir, quantized_model) = quantized_digits(&[]);
    for (project, is_exact) in [(digits(&[]), false), (export(&quantized_model, &[]), true)] {
        let program = project.compile_for_cortex_m55();
        let mut board = Command::new("qemu-system-arm");
        board.args(["-M", "mps3-an547", "-nographic", "-semihosting-config", "enable=on,target=native", "-kernel"]);
        let out = output(board.arg(program));
        assert!(out.contains(": pass") && (!is_exact || out.contains("0.00e+00")), "{out}");
        let assert_near = |reported: &Value, linked_size: i64| {
            let reported = reported.as_i64().unwrap();
            assert!(
                (reported - linked_size).abs() * 50 <= reported,
                "expected a reported size near the linked size {linked_size}, found {reported}"
            );
        };
        let array =
            |name: &str| name.strip_prefix("model_").is_some_and(|n| n.starts_with(['p', 'k']) && !n.contains('_'));
        assert_near(
            &project.metadata["weights_bytes"],
            project.symbol_bytes(|name| array(name) && !name.starts_with("model_phase")),
        );
        assert_near(&project.metadata["arena_bytes"], project.symbol_bytes(|name| name == "instance"));
        assert_near(&project.metadata["inputs"][0]["bytes"], project.symbol_bytes(|name| name.starts_with("in_")));
        assert_near(&project.metadata["outputs"][0]["bytes"], project.symbol_bytes(|name| name.starts_with("result_")));
        eprint!("{out}");
    }
}

/// Runs every `$` line of `docs/export.md`.
#[test]
fn every_command_of_page_runs() {
    let page = std::fs::read_to_string(data("../docs/export.md")).unwrap();
    let plugins = byoc_test_support::plugin_dir(&["ccompiler"]);
    let dir = tempfile::tempdir().unwrap();
    let path = format!("{}:{}", binary().parent().unwrap().display(), std::env::var("PATH").unwrap());
    let mut count = 0;
    for line in page.split("```console\n").skip(1).flat_map(|block| block.split("```").next().unwrap().lines()) {
        let line = line.strip_prefix("$ ").unwrap_or_else(|| panic!("expected a line \"$ ...\", found {line}"));
        let args = line.split_whitespace().map(|arg| {
            arg.trim_matches('"')
                .replace("$PLUGINS", &plugins.path().display().to_string())
                .replace("$OUT", &dir.path().display().to_string())
        });
        let args: Vec<String> = args.collect();
        let mut command = isolated_command(&args[0]);
        output(command.args(&args[1..]).env("PATH", &path).current_dir(data("..")));
        count += 1;
    }
    assert!(count >= 10, "expected at least 10 commands, found {count}");
}

//! Tests of C and C++ programs that use the installed library: examples, invalid calls, allocations per run, and
//! exchange of DLPack tensors.

use byoc::runtime::tensor::Tensor;
use byoc::{CompileOptions, Model, Session, io};
use byoc_test_support::{c_library, onednn, plugin_dir, workspace};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

const STRICT: [&str; 5] = ["-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror"];

/// Libraries required by the static library, as listed in `byoc.pc`.
const STATIC_LIBRARIES: [&str; 5] = ["-lgcc_s", "-lutil", "-lpthread", "-lm", "-ldl"];

fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn digits() -> PathBuf {
    workspace().join("tests/digits/digits.onnx")
}

/// Creates a directory with the library in its installed layout.
fn install() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let library = c_library();
    std::fs::create_dir(dir.path().join("lib")).unwrap();
    for extension in ["so", "a"] {
        let target = dir.path().join(format!("lib/libbyoc.{extension}"));
        std::os::unix::fs::symlink(library.with_extension(extension), target).unwrap();
    }
    dir
}

/// Compiles a source file against the library in `dir`; returns the path of the executable.
fn build(dir: &TempDir, compiler: &[&str], file: &str, is_shared: bool) -> PathBuf {
    let program = dir.path().join(if is_shared { "shared" } else { "static" });
    let lib = dir.path().join("lib");
    let mut command = Command::new(compiler[0]);
    command
        .args(&compiler[1..])
        .args(STRICT)
        .arg("-I")
        .arg(source("include"))
        .arg("-o")
        .arg(&program)
        .arg(source(file));
    if is_shared {
        command.arg("-L").arg(&lib).arg("-lbyoc").arg(format!("-Wl,-rpath,{}", lib.display()));
    } else {
        // The linker would discard the self-registering operator and kernel tables, because nothing references them.
        command
            .arg("-Wl,--whole-archive")
            .arg(lib.join("libbyoc.a"))
            .arg("-Wl,--no-whole-archive")
            .args(STATIC_LIBRARIES);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{file}: {}", String::from_utf8_lossy(&output.stderr));
    program
}

/// Runs a command with `input` on its standard input.
fn run(program: &mut Command, input: &str) -> Output {
    let mut child = program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// Returns images as text, each with the digit predicted by the Rust library.
fn pictures() -> Vec<(String, String)> {
    let images = io::npz::read_entry(&workspace().join("tests/digits/test.npz"), Some("image")).unwrap();
    let session = Session::builder().threads(1).build().unwrap();
    let model = Model::compile(&session, digits(), &CompileOptions::new().dim("batch", 1)).unwrap();
    let pixels = images.view().to_f64s();
    let picture = |pixels: &[f64]| {
        let pixels: Vec<f32> = pixels.iter().map(|&value| value as f32).collect();
        let outputs = model.run([Tensor::from_slice(&[1, 1, 8, 8], &pixels)]).unwrap();
        let logits = outputs[0].as_slice::<f32>();
        let class = (0..10).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
        (pixels.iter().map(f32::to_string).collect::<Vec<_>>().join(" "), format!("{class}\n"))
    };
    pixels.chunks(64).take(20).map(picture).collect()
}

fn check_classification(compiler: &[&str], file: &str) {
    let dir = install();
    let pictures = pictures();
    assert!(pictures.iter().map(|(_, digit)| digit).collect::<std::collections::BTreeSet<_>>().len() > 3);
    for is_shared in [true, false] {
        let program = build(&dir, compiler, file, is_shared);
        for (picture, digit) in &pictures {
            let output = run(Command::new(&program).arg(digits()), picture);
            assert_eq!(String::from_utf8_lossy(&output.stdout), *digit, "{}", String::from_utf8_lossy(&output.stderr));
        }
        let output = run(Command::new(&program).arg("missing.onnx"), &pictures[0].0);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && error.contains("E0501: cannot read missing.onnx"), "{error}");
    }
}

#[test]
fn a_program_in_c_classifies_digits() {
    check_classification(&["cc", "-std=c11"], "examples/digits.c");
}

#[test]
fn a_program_in_cpp_classifies_digits() {
    check_classification(&["c++", "-std=c++17"], "examples/digits.cpp");
}

#[test]
fn the_headers_compile_alone() {
    for (compiler, header) in [
        (["cc", "-std=c99", "-xc"], "byoc.h"),
        (["c++", "-std=c++11", "-xc++"], "byoc.h"),
        (["c++", "-std=c++17", "-xc++"], "byoc.hpp"),
    ] {
        let mut command = Command::new(compiler[0]);
        command.args(&compiler[1..]).args(STRICT).arg("-fsyntax-only").arg("-I").arg(source("include")).arg("-");
        let output =
            run(&mut command, &format!("#include <{header}>\nint main(void) {{ return byoc_version()[0] == 0; }}\n"));
        assert!(output.status.success(), "{header}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn wrong_calls_give_errors_and_leak_nothing() {
    let dir = install();
    let program = build(&dir, &["cc", "-std=c11"], "tests/bad_calls.c", true);
    let output = Command::new(&program).arg(digits()).arg("200").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn strings_are_spans_and_bytes() {
    let dir = install();
    let program = build(&dir, &["cc", "-std=c11"], "tests/strings.c", true);
    let model = workspace().join("tests/operators/string_reshape_transpose/model.onnx");
    let output = Command::new(&program).arg(model).output().unwrap();
    let expected = "x int64 strings\nx.bytes uint8 part\n3:one\n6:drei\0!\n1:b\n0:\n1:a\n1:c\n";
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.starts_with(expected), "{text}");
    for error in ["below 6, found 6", "E0626 expected a vector of bytes", "E0626 element 0: expected UTF-8"] {
        assert!(text.contains(error), "{error}: {text}");
    }
}

#[test]
fn models_are_written_as_onnx() {
    let dir = install();
    let program = build(&dir, &["cc", "-std=c11"], "tests/export.c", true);
    let model = workspace().join("tests/digits/digits.onnx");
    let output = Command::new(&program).arg(model).arg(dir.path().join("written.onnx")).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.starts_with("image 2\n"), "{text}");
    for error in ["expected imported, quantized or simplified", "E0508", "E0513", "model"] {
        assert!(text.contains(error), "{error}: {text}");
    }
}

#[test]
fn after_a_fork_every_call_is_an_error() {
    let dir = install();
    let program = build(&dir, &["cc", "-std=c11"], "tests/fork.c", true);
    let output = Command::new(&program).arg(digits()).output().unwrap();
    assert!(output.status.success(), "{:?}: {}", output.status, String::from_utf8_lossy(&output.stdout));
}

#[test]
fn runs_allocate_nothing() {
    let dir = install();
    let program = build(&dir, &["cc", "-std=c11"], "tests/allocations.c", true);
    let output = Command::new(&program).arg(digits()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn a_process_ends_with_its_exit_code_while_threads_run_a_model() {
    let dir = install();
    let program = build(&dir, &["cc", "-std=c11"], "tests/exit_in_use.c", true);
    let model = dir.path().join("conv.relay");
    let text = "#[version = \"0.0.5\"]\n\
                def @main(%x: Tensor[(1, 8, h, w), float32]) {\n\
                  nn.relu(nn.conv2d(%x, ones(shape=[16, 8, 3, 3], dtype=\"float32\"), strides=[2, 2], \
                  padding=[1, 1, 1, 1], channels=16, kernel_size=[3, 3]))\n\
                }";
    std::fs::write(&model, text).unwrap();
    let backends = ["none", "dnnl"];
    let backends = &backends[..1 + usize::from(onednn().is_some())];
    for backend in backends {
        let plugins = plugin_dir(if *backend == "none" { &[] } else { std::slice::from_ref(backend) });
        for (round, ending) in (0..5).flat_map(|round| ["keep", "free", "run"].map(|ending| (round, ending))) {
            let output =
                Command::new(&program).arg(&model).arg(plugins.path()).args([backend, ending]).output().unwrap();
            let error = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(7), "{backend}, {ending}, round {round}: {}, {error}", output.status);
        }
    }
}

/// Writes a model whose second result is a constant; returns its path.
fn constant(dir: &TempDir) -> PathBuf {
    let file = dir.path().join("constant.relay");
    let text = "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(2, 3), float32]) { (nn.relu(%x), 2.5f) }\n";
    std::fs::write(&file, text).unwrap();
    file
}

#[test]
fn tensors_of_dlpack_go_in_and_out() {
    let dir = install();
    let program = build(&dir, &["cc", "-std=c11"], "tests/dlpack.c", true);
    let output = Command::new(&program).arg(digits()).arg(constant(&dir)).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let program = build(&dir, &["c++", "-std=c++17"], "tests/dlpack.cpp", true);
    let output = Command::new(&program).arg(digits()).output().unwrap();
    assert!(output.status.success(), "{:?}: {}", output.status, String::from_utf8_lossy(&output.stderr));
}

/// Returns the commands in a block of `docs/c-api.md`, without the `cargo` commands.
fn documented_commands(block: usize) -> String {
    let page = std::fs::read_to_string(workspace().join("docs/c-api.md")).unwrap();
    let commands = page.split("```sh\n").nth(block + 1).and_then(|tail| tail.split("```").next()).unwrap();
    commands.lines().filter(|line| !line.starts_with("cargo ")).map(|line| format!("{line}\n")).collect()
}

#[test]
#[expect(clippy::print_stderr, reason = "reports a skipped test")]
fn the_commands_of_the_document_build_the_example() {
    if Command::new("pkg-config").arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("skipped: pkg-config is not installed (apt-get install pkg-config)");
        return;
    }
    let home_dir = tempfile::tempdir().unwrap();
    let (prefix, library) = (home_dir.path().join("byoc"), c_library());
    std::fs::create_dir_all(prefix.join("lib/pkgconfig")).unwrap();
    std::fs::create_dir_all(prefix.join("include")).unwrap();
    for (pattern, target) in [
        (source("include/byoc.h"), "include/byoc.h"),
        (source("include/byoc.hpp"), "include/byoc.hpp"),
        (library.with_extension("so"), "lib/libbyoc.so"),
        (library.with_extension("a"), "lib/libbyoc.a"),
        (source("examples/digits.c"), "../digits.c"),
    ] {
        std::os::unix::fs::symlink(pattern, prefix.join(target)).unwrap();
    }
    let text = std::fs::read_to_string(source("byoc.pc.in")).unwrap();
    let text = text.replace("@PREFIX@", &prefix.display().to_string()).replace("@VERSION@", env!("CARGO_PKG_VERSION"));
    std::fs::write(prefix.join("lib/pkgconfig/byoc.pc"), text).unwrap();
    let (picture, digit) = &pictures()[0];
    let (shared_commands, static_commands) = (documented_commands(0), documented_commands(1));
    assert!(
        shared_commands.contains("$(pkg-config --cflags --libs byoc)") && static_commands.contains("--whole-archive")
    );
    for commands in [shared_commands, static_commands] {
        let mut shell = Command::new("sh");
        shell.args(["-e", "-c", &commands]).current_dir(home_dir.path()).env("HOME", home_dir.path());
        let compilation = shell.output().unwrap();
        assert!(compilation.status.success(), "{commands}\n{}", String::from_utf8_lossy(&compilation.stderr));
        let output = run(Command::new(home_dir.path().join("digits")).arg(digits()), picture);
        assert_eq!(String::from_utf8_lossy(&output.stdout), *digit, "{}", String::from_utf8_lossy(&output.stderr));
        std::fs::remove_file(home_dir.path().join("digits")).unwrap();
    }
    // `byoc.pc` and the library have the same version.
    let version = Command::new("pkg-config")
        .args(["--modversion", "byoc"])
        .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"))
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&version.stdout).trim(), env!("CARGO_PKG_VERSION"));
}

/// Returns the valgrind command with its options; `None` if valgrind is not installed.
#[expect(clippy::print_stderr, reason = "reports a skipped test")]
fn valgrind() -> Option<Command> {
    if Command::new("valgrind").arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("skipped: valgrind is not installed (apt-get install valgrind)");
        return None;
    }
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["-q", "--error-exitcode=9", "--leak-check=full", "--errors-for-leak-kinds=definite"]);
    Some(valgrind)
}

#[test]
fn valgrind_finds_nothing_in_managed_tensors() {
    let Some(mut valgrind) = valgrind() else { return };
    let dir = install();
    let program = build(&dir, &["cc", "-std=c11"], "tests/dlpack.c", true);
    let output = valgrind.arg(program).arg(digits()).arg(constant(&dir)).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn valgrind_finds_nothing_in_the_example() {
    let Some(mut valgrind) = valgrind() else { return };
    let dir = install();
    let program = build(&dir, &["cc", "-std=c11"], "examples/digits.c", true);
    let (picture, digit) = &pictures()[0];
    let output = run(valgrind.arg(program).arg(digits()), picture);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout), *digit);
}

//! Demo: runs a trained model on a backend that is dropped into a directory, then the same model in int8 on two
//! accelerators.

use crate::onednn;
use crate::process::{self, cargo, exists, output, root, target_dir};
use crate::quantized;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// Profile that compiles fast.
const PROFILE: &str = "quick";

/// Backend that is dropped in first.
const BACKEND: &str = "ccompiler";

/// Backend whose library is fetched, dropped in last.
const LIBRARY_BACKEND: &str = "dnnl";

/// Runs `cargo xtask demo`.
pub fn run() -> Result<(), String> {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    if !exists(&compiler) && !Path::new(&compiler).is_file() {
        return Err(format!(
            "expected a C compiler, found no `{compiler}` on the PATH; install one with `apt-get install -y gcc`"
        ));
    }
    let demo = target_dir().join("demo");
    let plugins = demo.join("plugins");
    let trace = |backend: &str| demo.join(format!("trace_{backend}.json"));
    step("build byoc and four separate backends");
    let backends = || std::iter::once(BACKEND).chain(quantized::BACKENDS);
    // One command for all, in which each dependency is compiled once.
    let mut build = cargo(&["build", "--profile", PROFILE, "--quiet", "--package", "byoc-cli"]);
    for backend in backends().chain([LIBRARY_BACKEND]) {
        build.arg("--package").arg(format!("byoc-{}", backend.replace('_', "-")));
    }
    process::run(&mut build)?;
    let built = target_dir().join(PROFILE);
    let byoc = built.join("byoc");

    step(&format!("drop the backends into {}", display(&plugins)));
    std::fs::create_dir_all(&plugins).map_err(|e| format!("{}: {e}", plugins.display()))?;
    for backend in backends() {
        let library = format!("libbyoc_{backend}{}", std::env::consts::DLL_SUFFIX);
        drop_in(&built.join(&library), &plugins.join(&library))?;
    }
    let byoc = |args: &[&str]| {
        let mut command = Command::new(&byoc);
        command.args(args).current_dir(root());
        command
    };
    let plugin_dir = display(&plugins);
    process::run(&mut byoc(&["plugins", "--plugin-dir", &plugin_dir]))?;

    let artifact = display(&demo.join("digits.byoc"));
    let source = demo.join("digits.c");
    let cache = display(&demo.join("cache"));
    let model = "tests/digits/digits.onnx";
    let build_flags = ["--dim", "batch=1", "--backend", BACKEND, "--plugin-dir", &plugin_dir, "--cache-dir", &cache];
    step(&format!("compile {model} for the backend"));
    let start = Instant::now();
    process::run(&mut byoc(&[&["compile", model, "-o", &artifact], &build_flags[..]].concat()))?;
    let code = output(&mut byoc(&[&["source", model], &build_flags[..]].concat()))?;
    std::fs::write(&source, code).map_err(|e| format!("{}: {e}", source.display()))?;
    let compile_time = start.elapsed();

    step("classify ten pictures with the compiled artifact");
    let start = Instant::now();
    for digit in 0..10 {
        let picture = format!("tests/digits/samples/{digit}.png");
        let stdout = output(&mut byoc(&[
            "run",
            &artifact,
            "--image",
            &picture,
            "--labels",
            "tests/digits/labels.txt",
            "--plugin-dir",
            &plugin_dir,
        ]))?;
        // The line that starts with rank 1 names the most probable class.
        let top_line = stdout.lines().find(|line| line.trim_start().starts_with('1')).unwrap_or_default();
        println!("  {picture}  {}", top_line.trim());
    }
    let classification_time = start.elapsed();

    step("list the backend of each operator");
    process::run(&mut byoc(&[&["explain", model], &build_flags[..]].concat()))?;

    for backend in quantized::BACKENDS {
        let quantized_model = display(&demo.join(format!("digits_{backend}.relay")));
        let build_flags = ["--backend", backend, "--plugin-dir", &plugin_dir];
        step(&format!("quantize {model} to int8, with the scheme that {backend} declares"));
        let quantize_args = ["quantize", model, "--calibrate", "tests/digits/calibration.npz", "-o", &quantized_model];
        process::run(&mut byoc(&[&quantize_args, &build_flags[..]].concat()))?;
        step(&format!("classify all 360 test pictures at once on the software model of {backend}"));
        let (pictures, trace) = (root().join("tests/digits/test.npz"), trace(backend));
        let build_flags = [&build_flags[..], &["--cache-dir", &cache, "--require-offload=0.9"]].concat();
        quantized::classify(byoc, &quantized_model, &build_flags, &pictures, &trace)?;
    }

    if let Some(dnnl_lib) = onednn::fetch_if_possible() {
        step("drop one more backend in: the same model on oneDNN");
        let library = format!("libbyoc_{LIBRARY_BACKEND}{}", std::env::consts::DLL_SUFFIX);
        drop_in(&built.join(&library), &plugins.join(&library))?;
        let dnnl_flags =
            ["--dim", "batch=1", "--backend", LIBRARY_BACKEND, "--plugin-dir", &plugin_dir, "--require-offload=0.99"];
        let mut bench = byoc(&[&["bench", model, "--runs", "20"], &dnnl_flags[..]].concat());
        // oneDNN depends on libgomp, which may be missing.
        if let Err(error) = process::run(bench.env("BYOC_DNNL_LIB", dnnl_lib)) {
            println!("skipped: {error}");
        }
    }

    println!();
    println!(
        "compiled in {:.2} s, classified in {:.2} s",
        compile_time.as_secs_f64(),
        classification_time.as_secs_f64()
    );
    println!("artifact     {artifact}   (inspect it with `{} inspect {artifact}`)", display(&built.join("byoc")));
    println!("generated C  {}", display(&source));
    for backend in quantized::BACKENDS {
        println!("{:<12} {}   (trace of the device calls; open it in Perfetto)", backend, display(&trace(backend)));
    }
    Ok(())
}

fn step(title: &str) {
    println!("\n==> {title}");
}

/// Copies a library to a temporary name and renames it, so processes that have mapped the old file keep it.
fn drop_in(source: &Path, target: &Path) -> Result<(), String> {
    let part = target.with_extension("part");
    std::fs::copy(source, &part)
        .and_then(|_| std::fs::rename(&part, target))
        .map_err(|e| format!("cannot copy {} to {}: {e}", source.display(), target.display()))
}

/// Returns a path inside the checkout relative to its root, and any other path unchanged.
fn display(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

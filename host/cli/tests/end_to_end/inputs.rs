//! User errors on the command line, and their diagnostics.

use crate::{byoc, data_text};

#[test]
fn reports_wrong_name_shape_or_type_of_input() {
    let model = data_text("models/gru/model.onnx");
    byoc(["run", &model, "--input", "inputs=random"]).fails_with("E0602").stderr_contains(&[
        "no input \"inputs\"",
        "\"input\" (float32[9, 2, 32])",
        "did you mean \"input\"?",
    ]);
    byoc(["run", &model]).fails_with("E0603").stderr_contains(&["\"input\""]);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.npy");
    let input = format!("input={}", file.display());
    use byoc_ir::tensor::{DType, Tensor};
    byoc::io::npy::write(&file, &Tensor::zeros(DType::F64, &[9, 2, 32]).unwrap()).unwrap();
    byoc(["run", &model, "--input", &input]).fails_with("E0604").stderr_contains(&["float64", "float32"]);
    byoc::io::npy::write(&file, &Tensor::zeros(DType::F32, &[9, 3, 32]).unwrap()).unwrap();
    byoc(["run", &model, "--input", &input]).fails_with("E0511").stderr_contains(&["[9, 3, 32]", "(9, 2, 32)"]);
}

/// Tests that an unbound dimension is an error that shows how to bind the dimension, and how to keep it symbolic.
#[test]
fn reports_unbound_dimension() {
    let model = data_text("digits/digits.onnx");
    byoc(["run", &model, "--input", "image=random"]).fails_with("E0504").stderr_contains(&[
        "\"batch\"",
        "--dim batch=N",
        "--dim \"batch=?\"",
    ]);
    byoc(["compile", &model, "--dim", "bach=?", "-o", "never.byoc"])
        .fails_with("E0511")
        .stderr_contains(&["did you mean \"batch\"?"]);
}

/// Tests that a backend that needs known dimensions is not reported as unused if a specialized program uses it.
#[test]
fn reports_regions_of_each_specialized_program() {
    let model = data_text("digits/digits.onnx");
    let plugins = byoc_test_support::plugin_dir(&["ccompiler"]);
    let dir = tempfile::tempdir().unwrap();
    let artifact = dir.path().join("a.byoc").display().to_string();
    let plugin_dir = plugins.path().display().to_string();
    let compile_with = |dim: &str, options: &[&str]| {
        let args =
            ["compile", &model, "--dim", dim, "--backend", "ccompiler", "--plugin-dir", &plugin_dir, "--no-cache"];
        byoc([&args[..], &["-o", &artifact], options].concat())
    };
    let compile = |dim: &str| compile_with(dim, &[]).ok();
    let fragments = ["0 regions with 0.0 %", "  batch=1: 1 region with 100.0 %", "  batch=3: 1 region with 100.0 %"];
    let specialized_output = compile("batch=1,3").stderr_contains(&fragments);
    assert!(!specialized_output.err.contains("E0404"), "{}", specialized_output.err);
    compile("batch=?").stderr_contains(&["E0404", "--dim NAME=N,N.."]);

    // `--require-offload` applies only to the programs for the listed dimensions.
    compile_with("batch=1,3", &["--require-offload=1"]).ok();
    compile_with("batch=?", &["--require-offload=1"]).fails_with("E0404");
}

#[test]
fn checks_product_of_dimensions() {
    use byoc_ir::tensor::{DType, Tensor};
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (program, artifact) = (path("p.relay"), path("p.byoc"));
    let text = "#[version = \"0.0.5\"]\n\
        def @main(%x: Tensor[(n), float32], %y: Tensor[(2*n), float32]) { (exp(%x), exp(%y)) }\n";
    std::fs::write(&program, text).unwrap();
    byoc(["compile", &program, "-o", &artifact]).ok();
    let run = |size: usize| {
        byoc::io::npy::write(path("y.npy").as_ref(), &Tensor::zeros(DType::F32, &[size]).unwrap()).unwrap();
        byoc::io::npy::write(path("x.npy").as_ref(), &Tensor::zeros(DType::F32, &[3]).unwrap()).unwrap();
        let (x, y) = (format!("x={}", path("x.npy")), format!("y={}", path("y.npy")));
        byoc(["run", &artifact, "--input", &x, "--input", &y])
    };
    run(6).ok();
    run(5).fails_with("E0605").stderr_contains(&["\"y\"", "2*n = 6"]);
}

#[test]
fn reports_unwritable_output_first() {
    let model = data_text("no/such/model.onnx");
    byoc(["compile", &model, "-o", "/no/such/folder/a.byoc"])
        .fails_with("E0513")
        .stderr_contains(&["/no/such/folder/a.byoc"]);
}

#[test]
fn rejects_file_that_is_not_a_model() {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in
        [("empty.onnx", &b""[..]), ("text.onnx", b"hello"), ("empty.byoc", b""), ("text.byoc", b"hello")]
    {
        let file = dir.path().join(name);
        std::fs::write(&file, bytes).unwrap();
        let output = byoc(["run", &file.display().to_string(), "--input", "x=random"]);
        assert_eq!(output.code, 1, "{}", output.err);
        let area = if name.ends_with("onnx") { "error[E05" } else { "error[E07" };
        assert!(output.err.contains(area), "{}", output.err);
    }
}

#[test]
fn usage_error_has_exit_code_2() {
    assert_eq!(byoc(["run"]).code, 2);
    assert_eq!(byoc(["frobnicate"]).code, 2);
    assert_eq!(byoc(["--help"]).code, 0);
}

#[test]
fn help_of_zoo_lists_the_architectures_of_the_error() {
    let help = byoc(["zoo", "--help"]).ok().out;
    let error = byoc(["zoo", "unknown", "-o", "-"]).fails_with("E0515").err;
    let names = error.lines().find_map(|line| line.split_once("known architectures: ")).unwrap().1;
    assert!(names.contains("resnet50"), "{names}");
    for name in names.split(", ") {
        assert!(help.lines().any(|line| line.trim() == name), "expected {name} in\n{help}");
    }
}

#[test]
fn closed_pipe_is_not_an_error() {
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_byoc"))
        .args(["ops", "--json"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

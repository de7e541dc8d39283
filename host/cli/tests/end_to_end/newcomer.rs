//! Common obstacles in writing a first code generator, each with the diagnostic that resolves it.

use crate::{byoc, data_text};
use byoc_test_support::plugin_dir;
use serde_json::{Value, json};

#[test]
fn target_option_suggests_backend() {
    let model = data_text("digits/digits.onnx");
    byoc(["compile", &model, "--emit", "relay", "--target", "ccompiler"])
        .fails_with("E0403")
        .stderr_contains(&["--backend ccompiler"]);
    // A target of TVM is no backend.
    byoc(["explain", &model, "--target", "llvm -mcpu=skylake"])
        .fails_with("E0403")
        .stderr_contains(&["remove it: llvm compiled what no external code generator of TVM took"]);
}

#[test]
fn names_of_backends_are_found_however_they_are_written() {
    let plugins = plugin_dir(&["ccompiler", "nuc_fpga"]);
    let (model, dir) = (data_text("digits/digits.onnx"), plugins.path().display().to_string());
    for (name, suggestion) in [
        ("relay.ext.ccompiler", "ccompiler"),
        ("CCompiler", "ccompiler"),
        ("NUC", "nuc_fpga"),
        ("nuc_fgpa", "nuc_fpga"),
    ] {
        byoc(["explain", &model, "--dim", "batch=1", "--backend", name, "--plugin-dir", &dir])
            .fails_with("E0401")
            .stderr_contains(&[&format!("did you mean --backend {suggestion}?")]);
    }
    byoc(["source", &model, "--dim", "batch=1"]).fails_with("E0404").stderr_contains(&["byoc export MODEL --c DIR"]);
}

#[test]
fn suggests_closest_pass() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.relay");
    std::fs::write(&file, "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(2), float32]) { nn.relu(%x) }\n").unwrap();
    byoc(["opt", &file.display().to_string(), "--pass", "partition_grap"])
        .fails_with("E0301")
        .stderr_contains(&["did you mean \"partition_graph\"?"]);
}

#[test]
fn explains_backend_that_took_nothing() {
    let plugins = plugin_dir(&["template"]);
    std::fs::write(
        plugins.path().join("libbyoc_template.json"),
        r#"{"name": "template", "patterns": [], "operators": ["nn.batch_matmul"]}"#,
    )
    .unwrap();
    let (dir, model) = (plugins.path().display().to_string(), data_text("digits/digits.onnx"));
    let build = ["--dim", "batch=1", "--backend", "template", "--plugin-dir", &dir];
    let fragments = ["E0404", "template accepted no operator"];
    let explanation = byoc([&["explain", &model], &build[..]].concat()).ok().stderr_contains(&fragments);
    // The table lists the reasons, so the warning does not repeat them.
    assert!(
        explanation.out.contains("NoPatternMatch") && !explanation.err.contains("NoPatternMatch"),
        "{}",
        explanation.err
    );
    byoc([&["explain", &model, "--json"], &build[..]].concat()).ok().stderr_contains(&fragments);
    byoc([&["explain", &model, "--require-offload"], &build[..]].concat()).fails_with("E0404");
}

#[test]
fn prints_generated_code_without_build() {
    let plugins = plugin_dir(&["ccompiler"]);
    let (dir, model) = (plugins.path().display().to_string(), data_text("models/resnet18_w16"));
    let output = byoc(["source", &model, "--backend", "ccompiler", "--plugin-dir", &dir, "--no-cache"]).ok();
    assert!(output.out.contains("tvmgen_default_ccompiler_main_0") && output.out.contains("nn.conv2d"));
    let temp_dir = tempfile::tempdir().unwrap();
    let file = temp_dir.path().join("resnet18.c");
    std::fs::write(&file, &output.out).unwrap();
    let object = temp_dir.path().join("resnet18.o");
    let mut cc = std::process::Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".into()));
    cc.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-c"]).arg(&file).arg("-o").arg(&object);
    let compiled = cc.output().expect("cannot start the C compiler");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
}

#[test]
fn logs_each_region_call() {
    let plugins = plugin_dir(&["template"]);
    let (dir, model) = (plugins.path().display().to_string(), data_text("digits/digits.onnx"));
    let build = ["--dim", "batch=1", "--backend", "template", "--plugin-dir", &dir];
    let output = byoc([&["run", &model, "--input", "image=random", "-v"], &build[..]].concat()).ok();
    output.stderr_contains(&["tvmgen_default_template_main_", "Tensor[(1, 1, 8, 8), float32]", " ms"]);
}

#[test]
fn graph_shows_region_around_operators() {
    let plugins = plugin_dir(&["template"]);
    let (dir, model) = (plugins.path().display().to_string(), data_text("digits/digits.onnx"));
    let build = ["--dim", "batch=1", "--backend", "template", "--plugin-dir", &dir];
    let text = byoc([&["compile", &model, "--emit", "partitioned"], &build[..]].concat()).ok().out;
    assert!(text.contains("Compiler=\"template\"") && text.contains("nn.conv2d("), "{text}");
    let graph = byoc([&["compile", &model, "--emit", "graph-json"], &build[..]].concat()).ok().out;
    let graph: Value = serde_json::from_str(&graph).unwrap();
    let entries = graph["attrs"]["shape"][1].as_array().unwrap().len();
    assert_eq!(graph["node_row_ptr"].as_array().unwrap().last().unwrap(), entries);
    byoc([&["compile", &model, "--emit", "region-json"], &build[..]].concat()).ok();
}

#[test]
fn region_json_marks_open_dimensions_only() {
    let plugins = plugin_dir(&["template"]);
    let config = r#"{"name": "template", "patterns": [], "operators": ["nn.relu"], "dynamic_dims": true}"#;
    std::fs::write(plugins.path().join("libbyoc_template.json"), config).unwrap();
    let model = plugins.path().join("model.relay");
    std::fs::write(&model, "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(n, 8), float32]) { nn.relu(%x) }\n").unwrap();
    let (dir, model) = (plugins.path().display().to_string(), model.display().to_string());
    let build = ["--dim", "n=?", "--backend", "template", "--plugin-dir", &dir];
    let text = byoc([&["compile", &model, "--emit", "region-json"], &build[..]].concat()).ok().out;
    let graph: Value = serde_json::from_str(&text).unwrap();
    let nodes = graph["nodes"].as_array().unwrap();
    assert!(nodes.iter().all(|node| node["attrs"]["shape"] == json!([[[-1, 8]]])), "{text}");
}

/// The regions of a program are compiled by the backends that they name, and counted everywhere.
#[test]
fn regions_of_the_program() {
    let plugins = plugin_dir(&["template"]);
    let dir = plugins.path().display().to_string();
    let program = |name: &str| {
        let text = format!(
            "#[version = \"0.0.5\"]\n\
             def @by_hand(%x: Tensor[(1, 4), float32], Inline=1, Compiler=\"{name}\", global_symbol=\"by_hand\", \
             Primitive=1) -> Tensor[(1, 4), float32] {{ nn.relu(%x) }}\n\
             def @main(%x: Tensor[(1, 4), float32]) -> Tensor[(1, 4), float32] {{\n  %0 = add(%x, %x);\n  \
             @by_hand(%0)\n}}\n"
        );
        let file = plugins.path().join(format!("{name}.relay"));
        std::fs::write(&file, text).unwrap();
        file.display().to_string()
    };
    let (known, unknown) = (program("template"), program("nosuch"));
    let explained = |args: &[&str]| {
        let output = byoc([&["explain", "--json"], args].concat()).ok();
        let report: Value = serde_json::from_str(&output.out).unwrap();
        let place = |node: &Value| node["placement"]["region"].as_str().unwrap_or("host").to_owned();
        let places: Vec<String> = report["nodes"].as_array().unwrap().iter().map(place).collect();
        (places, report["regions"].as_array().unwrap().len())
    };
    let here = ["--plugin-dir", &dir];
    let in_region = (vec!["by_hand".to_owned(), "host".to_owned()], 1);
    assert_eq!(explained(&[&[known.as_str()], &here[..]].concat()), in_region);
    let artifact = plugins.path().join("model.byoc").display().to_string();
    let built = byoc([&["compile", &known, "--require-offload", "-o", &artifact], &here[..]].concat()).ok();
    assert!(built.err.contains("1 region"), "{}", built.err);
    let trace = plugins.path().join("trace.json");
    byoc(["run", &artifact, "--input", "x=ones", "--trace", &trace.display().to_string(), "--plugin-dir", &dir]).ok();
    assert!(std::fs::read_to_string(trace).unwrap().contains("by_hand"));

    let notes = ["@by_hand of the model has Compiler=\"nosuch\"", "relay.ext.nosuch", "--backend none"];
    let run = ["run", unknown.as_str(), "--input", "x=ones"];
    byoc([&run[..], &here].concat()).fails_with("E0401").stderr_contains(&notes);
    byoc([&run[..], &["--backend", "none"]].concat()).ok();
    assert_eq!(explained(&[&unknown, "--backend", "none"]), (vec!["host".to_owned(); 2], 0));
}

#[test]
fn verify_reports_share_and_reason_of_insufficient_offload() {
    let plugins = plugin_dir(&["template"]);
    let (dir, model) = (plugins.path().display().to_string(), data_text("models/resnet18_w16"));
    let args = ["verify", &model, "--backend", "template", "--plugin-dir", &dir, "--require-offload=0.999", "--json"];
    let output = byoc(args);
    assert_eq!(output.code, 1, "{}", output.err);
    let line: Value = serde_json::from_str(output.out.lines().next().unwrap()).unwrap();
    assert_eq!((&line["status"], &line["code"]), (&json!("error"), &json!("E0404")), "{line}");
    let share = line["offload_flops"].as_f64().unwrap();
    assert!(share > 0.0 && share < 0.999, "{line}");
    let message = line["message"].as_str().unwrap();
    assert!(message.contains(&format!("found {:.1} %: ", 100.0 * share)), "{line}");
}

#[test]
fn backend_whose_operators_a_preceding_backend_took_is_no_warning() {
    let plugins = plugin_dir(&["ccompiler", "template"]);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.relay").display().to_string();
    std::fs::write(&file, "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(2), float32]) { nn.relu(%x) }\n").unwrap();
    let plugin_dir = plugins.path().display().to_string();
    let explain = |backends| byoc(["explain", &file, "--backend", backends, "--plugin-dir", &plugin_dir]).ok();
    let output = explain("template,ccompiler");
    assert!(output.out.contains("LowerPriority") && output.err.is_empty(), "{}{}", output.out, output.err);
}

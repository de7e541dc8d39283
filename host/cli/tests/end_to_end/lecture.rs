//! Annotation, merging and partitioning of a graph with a loop: the example in `docs/examples/loop`, and the page
//! `docs/walkthrough-loop.md`, which shows the output of these commands.

use crate::byoc;
use byoc_test_support::{plugin, temporary_folder, workspace};
use std::path::{Path, PathBuf};

const STEPS: [&str; 4] = ["merge_composite", "annotate_target", "merge_compiler_regions", "partition_graph"];

fn example(name: &str) -> String {
    workspace().join("docs/examples/loop").join(name).display().to_string()
}

/// Returns the output of `byoc opt` after the given passes.
fn module_after(steps: &[&str]) -> String {
    let (program, patterns) = (example("loop.relay"), example("loop.patterns"));
    let annotate = "byoc-target=reshape,add";
    byoc(["opt", &program, "--pass", &steps.join(","), "--patterns", &patterns, "--annotate", annotate]).ok().out
}

#[test]
fn output_of_each_step_matches_page() {
    let page = std::fs::read_to_string(workspace().join("docs/walkthrough-loop.md")).unwrap();
    for count in 1..=STEPS.len() {
        let output = module_after(&STEPS[..count]);
        // The page omits the version line and the functions that the step did not change.
        let body = output.split_once("\n").map_or("", |(_, tail)| tail).trim();
        for function in body.split("\n\n") {
            assert!(
                page.contains(function),
                "expected docs/walkthrough-loop.md to show the output of {}:\n{function}",
                STEPS[count - 1]
            );
        }
    }
}

#[test]
fn prints_all_steps_in_one_run() {
    let (program, patterns) = (example("loop.relay"), example("loop.patterns"));
    let output = byoc([
        "opt",
        &program,
        "--pass",
        &STEPS.join(","),
        "--patterns",
        &patterns,
        "--annotate",
        "byoc-target=reshape,add",
        "--print-after",
        "all",
    ])
    .ok();
    for (index, step) in STEPS.iter().enumerate() {
        assert!(
            output.err.contains(&format!("// after {step}\n{}", module_after(&STEPS[..=index]))),
            "{step} in:\n{}",
            output.err
        );
    }
    assert_eq!(output.out, module_after(&STEPS));
}

#[test]
fn partitions_into_three_regions_and_preserves_program() {
    let text = module_after(&STEPS);
    assert_eq!(text.matches("Compiler=\"byoc-target\"").count(), 3, "{text}");
    let regions: Vec<&str> = text.split("\n\n").filter(|f| f.contains("Compiler=")).collect();
    let assert_contains = |operators: &[&str]| {
        let matching_regions: Vec<&&str> =
            regions.iter().filter(|region| operators.iter().all(|w| region.contains(w))).collect();
        assert_eq!(matching_regions.len(), 1, "expected one region with {operators:?} in:\n{text}");
    };
    assert_contains(&["nn.conv2d", "nn.bias_add", "nn.relu", "Composite=\"byoc-target.conv2d_bias_relu\""]);
    assert_contains(&["reshape("]);
    assert_contains(&["add(", "int32"]);
}

/// Creates a directory with the template plugin, configured by the JSON file of the example.
fn target() -> tempfile::TempDir {
    let dir = temporary_folder();
    byoc_test_support::copy(&plugin("template"), &dir.path().join("libbyoc_target.so"));
    byoc_test_support::copy(Path::new(&example("byoc-target.json")), &dir.path().join("libbyoc_target.json"));
    dir
}

/// Runs the example; returns the result from the output file, and the output of the command.
fn result(dir: &Path, name: &str, options: &[&str]) -> (Vec<f32>, crate::CommandOutput) {
    let path: PathBuf = dir.join(format!("{name}.npz"));
    let (program, file) = (example("loop.relay"), path.display().to_string());
    let inputs = ["--input", "data=random:1", "--input", "weight=random:2", "--input", "bias=random:3"];
    let command = [&["run", &program, "--output", &file, "--no-cache"], &inputs[..], options].concat();
    let output = byoc(command).ok();
    let arrays = ::byoc::io::npz::read(&path).unwrap();
    assert_eq!(arrays.len(), 1, "expected one output");
    let tensor = arrays.into_iter().next().map(|(_, tensor)| tensor).unwrap();
    assert_eq!(tensor.shape(), [1, 256]);
    (tensor.as_slice::<f32>().to_vec(), output)
}

#[test]
fn loop_has_same_result_with_and_without_backend() {
    let temp_dir = temporary_folder();
    let (host, _) = result(temp_dir.path(), "host", &[]);
    assert!(host.iter().any(|v| *v > 0.0), "expected a nonzero result of the loop");
    let max_abs = host.iter().fold(0f32, |m, v| m.max(v.abs()));
    let target = target();
    let dir = target.path().display().to_string();
    let options = ["--backend", "byoc-target", "--plugin-dir", &dir, "--require-offload", "-v"];
    let (target_output, output) = result(temp_dir.path(), "target", &options);
    for (a, b) in host.iter().zip(&target_output) {
        assert!((a - b).abs() <= 1e-5 * max_abs, "expected {a}, found {b}");
    }
    // The body region and the counter region run in each of ten iterations, the exit region once.
    assert!(output.err.matches("byoc_target_while_loop").count() >= 21, "{}", output.err);
    let program = example("loop.relay");
    let explain = byoc(["explain", &program, "--backend", "byoc-target", "--plugin-dir", &dir, "--json"]).ok();
    let report = &explain.json()[0];
    assert_eq!(report["regions"].as_array().map(Vec::len), Some(3), "{report}");
    let region_nodes =
        report["nodes"].as_array().unwrap().iter().filter(|n| n["placement"]["kind"] == "region").count();
    assert_eq!(region_nodes, 5, "expected convolution, bias, relu, counter and exit on the backend: {report}");
}

#[test]
fn loop_has_same_result_on_compiled_code() {
    let temp_dir = temporary_folder();
    let (host, _) = result(temp_dir.path(), "host", &[]);
    let max_abs = host.iter().fold(0f32, |m, v| m.max(v.abs()));
    let plugins = temporary_folder();
    byoc_test_support::copy(&plugin("ccompiler"), &plugins.path().join("libbyoc_ccompiler.so"));
    let dir = plugins.path().display().to_string();
    let options = ["--backend", "ccompiler", "--plugin-dir", &dir, "--require-offload=0.9"];
    let (compiled, _) = result(temp_dir.path(), "compiled", &options);
    for (a, b) in host.iter().zip(&compiled) {
        assert!((a - b).abs() <= 1e-5 * max_abs, "expected {a}, found {b}");
    }
}

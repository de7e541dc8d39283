//! Backend regions and user-supplied functions in exported programs.

use super::{ExportedProject, SANITIZER_FLAGS, digits, exists, export, output, quantized_digits};
use crate::{byoc, data, data_text, isolated_command};
use byoc_test_support::{copy, plugin, plugin_dir, sample, test_plugin};
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// Copies files of `tests/export` into a project.
fn add(project: &ExportedProject, files: &[&str]) {
    for file in files {
        std::fs::copy(data(&format!("export/{file}")), project.dir.join(file)).unwrap();
    }
}

/// Quantizes resnet18_w16 to int8; returns the directory and the path of the model in it.
fn quantized_resnet() -> (TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("resnet.relay").display().to_string();
    let float = data_text("models/resnet18_w16");
    byoc(["quantize", &float, "--calibrate", "random:1", "--samples", "4", "-o", &file]).ok();
    (dir, file)
}

/// Returns the number of output lines that report a call to `function`.
fn calls(out: &str, function: &str) -> usize {
    out.lines().filter(|line| *line == format!("Calling From {function}")).count()
}

/// Runs quantized models on nuc_fpga, whose driver prints one line per layer.
#[test]
fn regions_of_an_accelerator_call_its_driver() {
    let plugins = plugin_dir(&["nuc_fpga"]);
    let plugins = plugins.path().display().to_string();
    let (_resnet, resnet) = quantized_resnet();
    let (_digits, digits) = quantized_digits(&[]);
    for (model, convolutions, products) in [(&digits, 2, 2), (&resnet, 19, 1)] {
        let project = export(model, &["--backend", "nuc_fpga", "--plugin-dir", &plugins]);
        add(&project, &["driver.c"]);
        let out = project.check("cc", SANITIZER_FLAGS, &["driver.c"]);
        assert_eq!((calls(&out, "nuc_fpga_conv2d"), calls(&out, "nuc_fpga_dense")), (convolutions, products), "{out}");
        assert!(out.contains("max relative error 0.00e+00: pass"), "{out}");
    }
}

/// Runs quantized models without a plugin and with a user-supplied convolution.
#[test]
fn quantized_convolutions_are_calls_of_a_function() {
    let (_resnet, resnet) = quantized_resnet();
    let (_digits, digits) = quantized_digits(&[]);
    for (model, convolutions) in [(&digits, 2), (&resnet, 19)] {
        for layout in ["", ":OHWI"] {
            let function = format!("qnn.conv2d{layout}=nuc_fpga_conv2d(nuc_fpga_conv2d.h)");
            let project = export(model, &["--extern", &function]);
            add(&project, &["nuc_fpga_conv2d.h", "nuc_fpga_conv2d.c"]);
            let out = project.check("cc", SANITIZER_FLAGS, &["nuc_fpga_conv2d.c"]);
            assert_eq!(calls(&out, "nuc_fpga_conv2d"), convolutions, "{out}");
            assert!(out.contains("max relative error 0.00e+00: pass"), "{out}");
        }
    }
}

/// Links vta regions with the C driver, which simulates the device.
#[test]
fn regions_of_vta_run_by_its_driver() {
    let plugins = plugin_dir(&["vta"]);
    let plugins = plugins.path().display().to_string();
    let backend_args = ["--backend", "vta", "--plugin-dir", &plugins];
    let (_digits, model) = quantized_digits(&backend_args);
    let project = export(&model, &backend_args);
    let regions = project.sources().iter().filter(|file| file.contains("region")).count();
    assert!(regions >= 1, "{:?}", project.sources());
    assert!(project.metadata["region_constant_bytes"].as_i64().unwrap() > 10_000, "{}", project.metadata);
    let driver = project.dir.join("vta_driver.o");
    let mut compile = Command::new("cc");
    compile.args(["-std=c11", "-O1", "-c", "-I"]).arg(data("../plugins/vta/include"));
    output(compile.arg(data("../plugins/vta/samples/driver.c")).arg("-o").arg(&driver));
    let driver = driver.display().to_string();
    let out = project.check("cc", SANITIZER_FLAGS, &[&driver]);
    assert!(out.contains("max relative error 0.00e+00: pass"), "{out}");
    if exists("clang") {
        project.check("clang", &["-O2"], &[&driver]);
    }
    // If the device cannot be opened, the run fails.
    let broken_source = "#define VTADeviceAlloc other\n#include \"driver.c\"\n#undef VTADeviceAlloc\n\
        VTADeviceHandle VTADeviceAlloc(void) { return 0; }\n";
    std::fs::write(project.dir.join("broken.c"), broken_source).unwrap();
    let mut compile = Command::new("cc");
    compile.current_dir(&project.dir).args(["-std=c11", "-O1", "-c", "-I"]).arg(data("../plugins/vta/include"));
    output(compile.arg("-I").arg(data("../plugins/vta/samples")).args(["broken.c", "-o", "broken.o"]));
    let run = isolated_command(project.compile("cc", &[], &["broken.o"])).output().unwrap();
    assert_eq!(run.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&run.stdout).contains("the run failed"), "{run:?}");
}

/// Tests a Rust plugin and a C plugin that return their regions as C code in response to a query.
#[test]
fn plugins_take_part_by_a_query() {
    let dir = tempfile::tempdir().unwrap();
    copy(&plugin("template"), &dir.path().join("libbyoc_template.so"));
    copy(&sample("elementwise"), &dir.path().join("libbyoc_elementwise.so"));
    let plugins = dir.path().display().to_string();
    for backend in ["template", "elementwise"] {
        let project = digits(&["--backend", backend, "--plugin-dir", &plugins]);
        let regions = project.sources().iter().filter(|file| file.contains("region")).count();
        assert!(regions >= 1, "{backend}: {:?}", project.sources());
        let out = project.check("cc", SANITIZER_FLAGS, &[]);
        assert!(out.contains("logits: max relative error") && out.contains("pass"), "{backend}: {out}");
    }
    // Covers broadcasting, an intermediate result that is also an output, and a constant.
    let text = "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(2, 1, 3), float32], %y: Tensor[(4, 1), float32]) {\n  \
        %0 = add(%x, %y);\n  %1 = maximum(%0, 0.5f);\n  %2 = divide(sigmoid(%1), exp(%y));\n  (negative(%2), %1)\n}\n";
    let model = dir.path().join("chain.relay").display().to_string();
    std::fs::write(&model, text).unwrap();
    let project = export(&model, &["--backend", "elementwise", "--plugin-dir", &plugins]);
    assert!(project.sources().iter().any(|file| file.contains("region")), "{:?}", project.sources());
    project.check("cc", SANITIZER_FLAGS, &[]);
}

/// Tests that the error names the backend that has no C program for a region, and states the reason.
#[test]
fn backends_without_a_program_are_refused() {
    let temp_dir = tempfile::tempdir().unwrap();
    let plugins = temp_dir.path().display().to_string();
    let dir = temp_dir.path().join("c").display().to_string();
    copy(&plugin("template"), &temp_dir.path().join("libbyoc_sorter.so"));
    let config = "{\"name\": \"sorter\", \"operators\": [\"argsort\"]}";
    std::fs::write(temp_dir.path().join("libbyoc_sorter.json"), config).unwrap();
    let model = temp_dir.path().join("sort.relay").display().to_string();
    let text = "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(4, 5), float32]) {\n  argsort(%x)\n}\n";
    std::fs::write(&model, text).unwrap();
    byoc(["export", &model, "--backend", "sorter", "--plugin-dir", &plugins, "--c", &dir])
        .fails_with("E0519")
        .stderr_contains(&["sorter has no C program", "argsort", "export without sorter"]);
    // This backend does not support the query.
    copy(&test_plugin("minimal"), &temp_dir.path().join("libbyoc_minimal.so"));
    let model = data_text("digits/digits.onnx");
    byoc(["export", &model, "--dim", "batch=1", "--backend", "minimal", "--plugin-dir", &plugins, "--c", &dir])
        .fails_with("E0519")
        .stderr_contains(&["minimal has no C program", "byoc.program.1", "export without minimal"]);
    assert!(!Path::new(&dir).exists(), "expected no output directory");
}

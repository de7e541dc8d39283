//! Compatibility with plugins and artifacts that predate region signatures in the boundary.

use crate::{byoc, data, data_text};
use byoc_test_support::{earlier_plugins, onednn};

fn logits(args: &[&str]) -> Vec<f64> {
    let output = byoc(["run", "--json"].iter().chain(args)).ok();
    assert!(!output.err.contains("runs on the host"), "{}", output.err);
    output.json()[0]["first"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

#[test]
fn loads_and_runs_older_plugins() {
    let Some(dir) = earlier_plugins() else { return };
    let dir = dir.display().to_string();
    let expected = logits(&[&data_text("digits/digits.onnx"), "--dim", "batch=1", "--input", "image=random:1"]);
    for backend in ["ccompiler", "template", "elementwise"] {
        let model = data_text("digits/digits.onnx");
        let options = ["--backend", backend, "--require-offload", "--no-cache", "--plugin-dir", &dir];
        let run_args = [&[&*model, "--dim", "batch=1", "--input", "image=random:1"], &options[..]].concat();
        for (a, b) in logits(&run_args).iter().zip(&expected) {
            assert!((a - b).abs() < 1e-4, "{backend}: expected {b}, found {a}");
        }
    }
    for name in ["template", "ccompiler", "nuc_fpga", "elementwise", "conv_int8"] {
        byoc(["plugins", "check", &data_text(&format!("compat/libbyoc_{name}.so"))]).ok();
    }
}

#[test]
fn runs_older_artifacts_on_current_plugins() {
    let plugins = byoc_test_support::plugin_dir(&["template", "ccompiler", "nuc_fpga", "vta", "dnnl"]);
    let dir = plugins.path().display().to_string();
    for name in ["ccompiler", "template", "int8_nuc_fpga", "int8_vta", "dnnl"] {
        if name == "dnnl" && onednn().is_none() {
            continue;
        }
        let file = data(&format!("compat/digits_{name}.byoc")).display().to_string();
        let run = |options: &[&str]| logits(&[&[&*file, "--input", "image=random:1"], options].concat());
        let plugin_output = run(&["--plugin-dir", &dir, "--require-offload"]);
        for (a, b) in plugin_output.iter().zip(run(&["--backend", "none"])) {
            assert!((a - b).abs() < 1e-4, "{name}: expected {b}, found {a}");
        }
    }
}

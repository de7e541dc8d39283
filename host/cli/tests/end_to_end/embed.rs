//! Tests of the runtime crate's example, which runs artifacts on a plugin and on the host.

use crate::{byoc, data_text};
use byoc_test_support::{plugin_dir, runtime_example, temporary_folder};
use std::process::Command;

#[test]
fn program_runs_artifact_on_plugin_and_on_host() {
    let (temp_dir, plugins) = (temporary_folder(), plugin_dir(&["ccompiler"]));
    let artifact = temp_dir.path().join("digits.byoc").display().to_string();
    let dir = plugins.path().display().to_string();
    let build = ["--dim", "batch=1", "--backend", "ccompiler", "--plugin-dir", &dir, "--require-offload"];
    byoc([&["compile", &data_text("digits/digits.onnx"), "-o", &artifact], &build[..]].concat()).ok();
    let run = |dirs: &[&str]| {
        let output = Command::new(runtime_example()).arg(&artifact).args(dirs).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let (on_plugin, on_host) = (run(&[&dir]), run(&[]));
    assert!(!on_plugin.contains(" on 0 regions") && on_host.contains(" on 0 regions"), "{on_plugin}{on_host}");
    let values = |line: &str| -> Vec<f64> {
        let list = line.trim_end().rsplit_once(": [").unwrap().1.trim_end_matches(']');
        list.split(", ").map(|value| value.parse().unwrap()).collect()
    };
    let (a, b) = (values(&on_plugin), values(&on_host));
    assert_eq!((a.len(), b.len()), (10, 10));
    let largest = b.iter().fold(0.0f64, |largest, x| largest.max(x.abs()));
    assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= 5e-4 * largest), "{on_plugin}{on_host}");
}

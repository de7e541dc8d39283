//! Compatibility with plugins built against frozen versions of the boundary: they load and run in the current host.

use crate::byoc;
use byoc_test_support::{copy, earlier_plugins, release_c_plugin, temporary_folder};
use std::path::Path;

#[test]
fn first_plugin_loads_runs_and_passes_conformance() {
    assert_binaries_conform(&["first"]);
}

#[test]
fn plugins_of_release_0_1_load_run_and_pass_conformance() {
    assert_loads_runs_and_conforms(&release_c_plugin(), "frozen_c");
    assert_binaries_conform(&["frozen_c", "frozen_rust"]);
}

/// Checks libraries in `tests/compat`.
fn assert_binaries_conform(names: &[&str]) {
    let Some(dir) = earlier_plugins() else { return };
    for name in names {
        assert_loads_runs_and_conforms(&dir.join(format!("libbyoc_{name}.so")), name);
    }
}

fn assert_loads_runs_and_conforms(library: &Path, name: &str) {
    let temp_dir = temporary_folder();
    let file = temp_dir.path().join(format!("libbyoc_{name}.so"));
    copy(library, &file);
    let model = temp_dir.path().join("model.relay");
    let program = "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(2, 2), float32], %y: Tensor[(2, 2), float32]) {\n\
                   nn.relu(add(%x, %y))\n}\n";
    std::fs::write(&model, program).unwrap();
    let (dir, model) = (temp_dir.path().display().to_string(), model.display().to_string());

    let output = byoc(["plugins", "list", "--json", "--plugin-dir", &dir]).ok();
    let rows = output.json();
    let row = rows.iter().find(|r| r["file"].as_str().is_some_and(|f| f.starts_with(&dir))).unwrap();
    assert_eq!((row["status"].as_str(), row["name"].as_str()), (Some("loaded"), Some(name)), "{row}");

    let common_args = ["--backend", name, "--plugin-dir", &dir, "--require-offload", "--no-cache"];
    let mut args = vec!["run", &model, "--input", "x=ones", "--input", "y=ones"];
    args.extend(common_args);
    byoc(&args).ok();
    let output = byoc(["explain", &model, "--json", "--backend", name, "--plugin-dir", &dir]).ok();
    let region_count = output.json()[0]["regions"].as_array().map(Vec::len);
    assert_eq!(region_count, Some(1), "{}", output.out);

    // A conformance run also queries a key that did not exist when the plugin was built.
    let out = temp_dir.path().join("cases").display().to_string();
    byoc(["plugins", "test", &file.display().to_string(), "--cases", "4", "--out", &out]).ok();
}

//! Compatibility with plugins built against the boundary at its freeze: such a plugin loads and runs in the current
//! host.

use crate::byoc;
use byoc_test_support::{copy, first_plugin, temporary_folder};

#[test]
fn first_plugin_loads_runs_and_passes_conformance() {
    let folder = temporary_folder();
    copy(&first_plugin(), &folder.path().join("libbyoc_first.so"));
    let model = folder.path().join("model.relay");
    let program = "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(2, 2), float32], %y: Tensor[(2, 2), float32]) {\n\
                   nn.relu(add(%x, %y))\n}\n";
    std::fs::write(&model, program).unwrap();
    let (dir, model) = (folder.path().display().to_string(), model.display().to_string());

    let output = byoc(["plugins", "list", "--json", "--plugin-dir", &dir]).ok();
    let rows = output.json();
    let row = rows.iter().find(|r| r["file"].as_str().is_some_and(|f| f.starts_with(&dir))).unwrap();
    assert_eq!((row["status"].as_str(), row["name"].as_str()), (Some("loaded"), Some("first")), "{row}");

    let common = ["--backend", "first", "--plugin-dir", &dir, "--require-offload", "--no-cache"];
    let mut args = vec!["run", &model, "--input", "x=ones", "--input", "y=ones"];
    args.extend(common);
    byoc(&args).ok();
    let output = byoc(["explain", &model, "--json", "--backend", "first", "--plugin-dir", &dir]).ok();
    let placed = output.json()[0]["regions"].as_array().map(Vec::len);
    assert_eq!(placed, Some(1), "{}", output.out);

    // A conformance run queries, among others, a key that did not exist when the plugin was built.
    let file = folder.path().join("libbyoc_first.so").display().to_string();
    let out = folder.path().join("cases").display().to_string();
    byoc(["plugins", "test", &file, "--cases", "16", "--out", &out]).ok();
}

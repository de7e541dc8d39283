//! Installation of a backend as a single file in a directory. Every invalid plugin file is reported in one line.

use crate::{byoc, data_text};
use byoc_test_support::{copy, plugin, plugin_dir, test_plugin};

#[test]
fn finds_plugin_after_it_is_copied() {
    let plugins = tempfile::tempdir().unwrap();
    let dir = plugins.path().display().to_string();
    let model = data_text("digits/digits.onnx");
    let args = ["explain", &model, "--dim", "batch=1", "--backend", "ccompiler", "--plugin-dir", &dir, "--no-cache"];
    byoc(args).fails_with("E0401").stderr_contains(&["relay.ext.ccompiler", &dir, "--plugin-dir"]);
    copy(&plugin("ccompiler"), &plugins.path().join("any_name.so"));
    let output = byoc(args).ok();
    assert!(output.out.contains("tvmgen_default_ccompiler_main_"), "{}", output.out);
}

#[test]
fn reports_each_bad_file_and_loads_others() {
    let plugins = plugin_dir(&["template"]);
    let template = std::fs::read(plugin("template")).unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(plugins.path().join(name), bytes).unwrap();
    write("a_text.so", b"this is no library\n");
    write("b_empty.so", b"");
    write("c_truncated.so", &template[..template.len() / 2]);
    let libc = ["/lib/x86_64-linux-gnu/libm.so.6", "/usr/lib/libm.so.6"].iter().find_map(|p| std::fs::read(p).ok());
    if let Some(libc) = &libc {
        write("d_other.so", libc);
    }
    copy(&test_plugin("other_version"), &plugins.path().join("e_version.so"));
    copy(&test_plugin("init_panic"), &plugins.path().join("f_panics.so"));
    let dir = plugins.path().display().to_string();
    let output = byoc(["plugins", "list", "--json", "--plugin-dir", &dir]).ok();
    let rows: Vec<_> = output.json().into_iter().filter(|r| r["file"].as_str().unwrap().starts_with(&dir)).collect();
    let code = |name: &str| {
        let row = rows
            .iter()
            .find(|r| r["file"].as_str().unwrap().ends_with(name))
            .unwrap_or_else(|| panic!("expected a row for {name}"));
        assert!(!row["reason"].as_str().unwrap_or_default().contains('\n'), "{row}");
        row["code"].as_str().unwrap_or_default().to_owned()
    };
    assert_eq!(code("a_text.so"), "E0411");
    assert_eq!(code("c_truncated.so"), "E0413");
    if libc.is_some() {
        assert_eq!(code("d_other.so"), "E0414");
    }
    assert!(["E0416", "E0417"].contains(&code("e_version.so").as_str()));
    assert_eq!(code("f_panics.so"), "E0419");
    assert!(code("b_empty.so").starts_with("E041"));
    let loaded_row = rows.iter().find(|r| r["file"].as_str().unwrap().ends_with("libbyoc_template.so")).unwrap();
    assert_eq!(loaded_row["status"], "loaded");
}

#[test]
fn rejects_two_plugins_of_one_name() {
    let plugins = plugin_dir(&["template"]);
    copy(&plugin("template"), &plugins.path().join("twin.so"));
    let dir = plugins.path().display().to_string();
    let output = byoc(["plugins", "--json", "--plugin-dir", &dir]).ok();
    let dir_rows: Vec<_> =
        output.json().into_iter().filter(|r| r["file"].as_str().unwrap().starts_with(&dir)).collect();
    assert!(dir_rows.iter().all(|r| r["status"] == "refused" && r["code"] == "E0409"), "{}", output.out);
    assert!(dir_rows[0]["reason"].as_str().unwrap().contains("twin.so"), "{}", output.out);
}

#[test]
fn earlier_directory_takes_precedence() {
    let (first_dir, second_dir) = (plugin_dir(&["template"]), plugin_dir(&["template"]));
    let (a, b) = (first_dir.path().display().to_string(), second_dir.path().display().to_string());
    let output = byoc(["plugins", "--json", "--plugin-dir", &a, "--plugin-dir", &b]).ok();
    let rows = output.json();
    assert!(rows.iter().any(|r| r["status"] == "loaded" && r["file"].as_str().unwrap().starts_with(&a)));
    assert!(rows.iter().any(|r| r["status"] == "shadowed" && r["file"].as_str().unwrap().starts_with(&b)));
}

#[test]
fn suggests_closest_name() {
    let plugins = plugin_dir(&["template"]);
    let dir = plugins.path().display().to_string();
    let model = data_text("digits/digits.onnx");
    byoc(["run", &model, "--dim", "batch=1", "--backend", "templat", "--plugin-dir", &dir])
        .fails_with("E0401")
        .stderr_contains(&["did you mean --backend template?"]);
}

//! From an empty directory to a running backend (`plugins new`, one build command, one copy), and the reports of
//! `plugins check`.

use crate::{byoc, data_text, to_command_output};
use byoc_test_support::{c_plugin, copy, plugin, sample, test_plugin, workspace};
use serde_json::Value;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Creates a directory inside the build directory, so that generated crates are built with this checkout's settings.
pub fn temp_dir() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Build directory of generated crates, shared so that their dependencies are built once.
pub fn shared_target() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("generated")
}

/// Environment variables of `cargo build --release` for generated crates. Optimization is off, as it takes most of the
/// build time and changes no result.
fn cargo_variables() -> [(&'static str, PathBuf); 2] {
    [("CARGO_TARGET_DIR", shared_target()), ("CARGO_PROFILE_RELEASE_OPT_LEVEL", PathBuf::from("0"))]
}

/// Runs a command, and returns its standard error.
pub fn run_shell(dir: &Path, line: &str) -> String {
    let output = Command::new("sh").current_dir(dir).envs(cargo_variables()).args(["-c", line]).output().unwrap();
    let messages = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{line}\n{messages}");
    messages
}

/// Copies a library to a new plugin directory and runs the digits model on it. The backend must support a part of the
/// model, `explain` must report it, and the result must be correct. Returns the backend's share of the FLOPs.
fn digits_offload_share(library: &Path, name: &str) -> f64 {
    let plugins = tempfile::tempdir().unwrap();
    copy(library, &plugins.path().join(library.file_name().unwrap()));
    let (dir, model) = (plugins.path().display().to_string(), data_text("digits/digits.onnx"));
    let backend_args = ["--dim", "batch=1", "--backend", name, "--plugin-dir", &dir];
    let explanation = byoc([&["explain", &model, "--json"], &backend_args[..]].concat()).ok().json().remove(0);
    let regions = explanation["regions"].as_array().unwrap();
    assert!(!regions.is_empty() && regions.iter().all(|region| region["backend"] == name), "{explanation}");
    let text = byoc([&["explain", &model], &backend_args[..]].concat()).ok().out;
    assert!(text.contains(&format!("tvmgen_default_{name}_main_0")) && text.contains("FLOPs on backends"), "{text}");
    for digit in [2, 7] {
        let (picture, labels) = (data_text(&format!("digits/samples/{digit}.png")), data_text("digits/labels.txt"));
        let image = ["run", &model, "--image", &picture, "--labels", &labels, "--json", "--require-offload"];
        let output = byoc([&image[..], &backend_args[..]].concat()).ok();
        assert_eq!(output.json()[0]["top"][0]["label"], digit.to_string(), "{}", output.out);
    }
    explanation["totals"]["offload_share"].as_f64().unwrap()
}

#[test]
fn builds_new_plugin_in_rust() {
    let dir = temp_dir();
    let plugin_dir = dir.path().join("mine");
    let listing = byoc(["plugins", "new", &plugin_dir.display().to_string()]).ok().out;
    assert!(listing.contains("cargo build --release --manifest-path"), "{listing}");
    // The plugin contains no reference to this checkout, as all of its files come from the binary.
    let checkout = workspace().display().to_string();
    for file in [
        "Cargo.toml",
        "README.md",
        "src/lib.rs",
        "byoc-plugin-api/Cargo.toml",
        "byoc-plugin-api/src/lib.rs",
        "byoc-plugin-support/Cargo.toml",
    ] {
        let text = std::fs::read_to_string(plugin_dir.join(file)).unwrap();
        assert!(!text.contains(&checkout), "{file}");
    }
    let names = |dir: &Path| -> BTreeSet<OsString> {
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    };
    let helpers = workspace().join("plugin-api/support/src");
    assert_eq!(names(&plugin_dir.join("byoc-plugin-support/src")), names(&helpers), "expected a complete copy");
    for dir in ["byoc-plugin-api", "byoc-plugin-support"] {
        assert_licensed(&plugin_dir.join(dir));
    }
    // Pins the versions that this checkout is tested with; a user's cargo selects the newest.
    copy(&workspace().join("Cargo.lock"), &plugin_dir.join("Cargo.lock"));
    let warnings = run_shell(&plugin_dir, "cargo build --release --quiet --offline");
    assert_eq!(warnings, "", "expected a build without warnings");
    let library = shared_target().join("release/libbyoc_mine.so");
    assert!(digits_offload_share(&library, "mine") > 0.0);
    let report = byoc(["plugins", "check", &library.display().to_string()]).ok().out;
    for part in [
        "entry       declare_plugin!",
        "byoc-plugin-api 0.1.0",
        "mine 0.1.0",
        "--backend mine: nn.relu, and nothing else",
        "no problems found",
    ] {
        assert!(report.contains(part), "expected {part} in\n{report}");
    }
}

#[test]
fn update_renews_the_copy_of_the_boundary() {
    let dir = temp_dir();
    for (name, arguments, copied, stale) in [
        ("mine", &[][..], "byoc-plugin-api/src/lib.rs", Some("byoc-plugin-support/src/left.rs")),
        ("inc", &["--c"][..], "byoc_plugin.h", None),
    ] {
        let plugin_dir = dir.path().join(name);
        let path = plugin_dir.display().to_string();
        byoc([&["plugins", "new", &path][..], arguments].concat()).ok();
        let fresh = std::fs::read(plugin_dir.join(copied)).unwrap();
        std::fs::write(plugin_dir.join(copied), "of an earlier release").unwrap();
        std::fs::write(plugin_dir.join("README.md"), "mine").unwrap();
        if let Some(stale) = stale {
            std::fs::write(plugin_dir.join(stale), "gone").unwrap();
        }
        let removed = usize::from(stale.is_some());
        let output = byoc(["plugins", "update", &path]).ok().out;
        assert!(output.contains(&format!("1 file renewed, {removed} file")), "{output}");
        assert_eq!(std::fs::read(plugin_dir.join(copied)).unwrap(), fresh);
        assert_eq!(std::fs::read_to_string(plugin_dir.join("README.md")).unwrap(), "mine");
        assert!(stale.is_none_or(|stale| !plugin_dir.join(stale).exists()));
        let again = byoc(["plugins", "update", &path]).ok().out;
        assert!(again.contains("0 files renewed, 0 files removed"), "{again}");
    }
    let empty = dir.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    byoc(["plugins", "update", &empty.display().to_string()])
        .fails_with("E0425")
        .stderr_contains(&["expected a copy of the boundary, byoc-plugin-api or byoc_plugin.h, found none"]);
}

/// Checks that the copied sources are accompanied by their licenses.
fn assert_licensed(dir: &Path) {
    for name in ["LICENSE-MIT", "LICENSE-APACHE"] {
        let read = |dir: &Path| std::fs::read_to_string(dir.join(name)).unwrap();
        assert_eq!(read(dir), read(workspace()), "{name}");
    }
}

/// Runs the commands of the guide one by one, in a directory that contains only the test models of this checkout.
#[test]
fn guide_commands_work() {
    let guide = std::fs::read_to_string(workspace().join("docs/writing-a-backend.md")).unwrap();
    let walkthrough = guide.split("## The walk").nth(1).unwrap().split("\n## ").next().unwrap();
    let blocks: Vec<&str> =
        walkthrough.split("```sh\n").skip(1).map(|part| part.split("```").next().unwrap_or_default()).collect();
    let [new, build, later_blocks @ ..] = &blocks[..] else { panic!("expected at least two blocks, found {blocks:?}") };
    assert!(later_blocks.iter().any(|block| block.contains("byoc plugins test")), "{later_blocks:?}");
    let dir = temp_dir();
    std::os::unix::fs::symlink(workspace().join("tests"), dir.path().join("tests")).unwrap();
    let binary = Path::new(env!("CARGO_BIN_EXE_byoc")).parent().unwrap();
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap());
    let run_walkthrough = |block: &str| {
        let mut command = Command::new("sh");
        command.current_dir(dir.path()).args(["-e", "-c", block]);
        command.env("PATH", &path).env("CARGO_NET_OFFLINE", "true").envs(cargo_variables());
        to_command_output(command.env_remove("BYOC_PLUGIN_PATH").output().unwrap()).ok()
    };
    run_walkthrough(new);
    // The lock file makes the registry unnecessary, and the shared build directory saves a first build, which takes
    // minutes.
    copy(&workspace().join("Cargo.lock"), &dir.path().join("mine/Cargo.lock"));
    run_walkthrough(build);
    std::os::unix::fs::symlink(shared_target(), dir.path().join("mine/target")).unwrap();
    let text = run_walkthrough(&later_blocks.join("\n")).out;
    for part in ["no problems found", "tvmgen_default_mine_main_0", "FLOPs on backends", "y = max(x, 0)"] {
        assert!(text.contains(part), "expected {part} in\n{text}");
    }
}

#[test]
fn builds_and_edits_new_plugin_in_c() {
    let temp_dir = temp_dir();
    let plugin_dir = temp_dir.path().join("mine");
    byoc(["plugins", "new", "--c", &plugin_dir.display().to_string()]).ok();
    run_shell(&plugin_dir, "make");
    assert_licensed(&plugin_dir);
    for header in ["byoc_plugin.h", "byoc_json.h"] {
        let text = std::fs::read_to_string(plugin_dir.join(header)).unwrap();
        assert!(text.starts_with("/* SPDX-License-Identifier: MIT OR Apache-2.0 */\n"), "{header}");
    }
    let pkg_config = std::fs::read_to_string(plugin_dir.join("byoc-plugin.pc")).unwrap();
    assert!(
        pkg_config.contains("\nprefix=${pcfiledir}\n") && pkg_config.contains("\nVersion: 0.1.0\n"),
        "{pkg_config}"
    );
    // Tests the README's command if pkg-config is installed.
    if Command::new("pkg-config").arg("--version").output().is_ok() {
        let readme = std::fs::read_to_string(plugin_dir.join("README.md")).unwrap();
        let line = readme.lines().find(|line| line.contains("pkg-config --cflags")).unwrap();
        run_shell(&plugin_dir, line);
    }
    let library = plugin_dir.join("libbyoc_mine.so");
    let share_before = digits_offload_share(&library, "mine");
    assert!(share_before > 0.0);
    // Removing an operator takes one edit, one `make` and one copy.
    let source = std::fs::read_to_string(plugin_dir.join("mine.c")).unwrap();
    let edited_source = source.replacen("{\"nn.relu\", relu, NULL,", "{\"sign\", relu, NULL,", 1);
    assert_ne!(source, edited_source);
    std::fs::write(plugin_dir.join("mine.c"), edited_source).unwrap();
    run_shell(&plugin_dir, "touch -d '+2 seconds' mine.c && make");
    let plugins = tempfile::tempdir().unwrap();
    copy(&library, &plugins.path().join("libbyoc_mine.so"));
    let dir = plugins.path().display().to_string();
    let model = data_text("digits/digits.onnx");
    byoc(["explain", &model, "--dim", "batch=1", "--backend", "mine", "--plugin-dir", &dir])
        .ok()
        .stderr_contains(&["E0404", "mine accepted no operator"]);
}

#[test]
fn plugin_refuses_unprofitable_regions() {
    let temp_dir = temp_dir();
    let plugin_dir = temp_dir.path().join("mine");
    byoc(["plugins", "new", "--c", &plugin_dir.display().to_string()]).ok();
    let source = std::fs::read_to_string(plugin_dir.join("mine.c")).unwrap();
    let plugins = tempfile::tempdir().unwrap();
    let dir = plugins.path().display().to_string();
    let file = plugins.path().join("mixed.relay").display().to_string();
    let text = r#"#[version = "0.0.5"]
def @main(%a: Tensor[(4, 4), float32], %w: Tensor[(4, 4), float32]) {
  %0 = nn.relu(%a);
  %1 = nn.dense(%0, %w);
  nn.relu(add(%1, %1))
}
"#;
    std::fs::write(&file, text).unwrap();
    let backend_args = ["--backend", "mine", "--plugin-dir", &dir];
    let explanation = |cost: &str| {
        let edited_source =
            source.replacen(r#"{\"version\": 1, "#, &format!(r#"{{\"version\": 1, \"cost\": {cost}, "#), 1);
        assert_ne!(source, edited_source);
        std::fs::write(plugin_dir.join("mine.c"), edited_source).unwrap();
        run_shell(&plugin_dir, "make -B");
        copy(&plugin_dir.join("libbyoc_mine.so"), &plugins.path().join("libbyoc_mine.so"));
        byoc([&["explain", &file, "--json"], &backend_args[..]].concat()).ok().json().remove(0)
    };
    let kinds = |rows: &Value| -> Vec<String> {
        let nodes = rows["nodes"].as_array().unwrap().iter();
        nodes.map(|node| node["placement"]["kind"].as_str().unwrap_or_default().to_owned()).collect()
    };
    // The region with one operator is refused with a reason and falls back to the host; the region with two is not.
    let rows = explanation(r#"{\"min_region_operators\": 2}"#);
    assert_eq!(kinds(&rows), ["host", "host", "region", "region"], "{rows}");
    let detail = rows["nodes"][0]["refusals"][0]["detail"].as_str().unwrap_or_default();
    let expected =
        "NotProfitable: mine: expected a region of at least 2 operators and 0 FLOPs, found 1 operator and 16 FLOPs";
    assert_eq!((detail, &rows["nodes"][0]["refusals"][0]["code"]), (expected, &Value::from("RegionRefused")), "{rows}");
    // 4 x 4 additions and 4 x 4 clamps are 32 FLOPs.
    assert_eq!(kinds(&explanation(r#"{\"min_region_flops\": 32}"#)), ["host", "host", "region", "region"]);
    assert_eq!(kinds(&explanation(r#"{\"min_region_flops\": 33}"#)), ["host"; 4]);
    // The refused operators are back in their original function, not in a separate function.
    let partitioned_module = byoc([&["compile", &file, "--emit", "partitioned"], &backend_args[..]].concat()).ok().out;
    assert!(!partitioned_module.contains("Compiler="), "{partitioned_module}");
}

#[test]
fn sample_in_c_runs_digits() {
    assert!(digits_offload_share(&sample("elementwise"), "elementwise") > 0.0);
}

#[test]
fn sample_in_cpp_calls_foreign_function() {
    let plugins = tempfile::tempdir().unwrap();
    copy(&sample("conv_int8"), &plugins.path().join("a.so"));
    let dir = plugins.path().display().to_string();
    let file = plugins.path().join("conv.relay");
    let text = r#"#[version = "0.0.5"]
def @main(%x: Tensor[(2, 4, 9, 8), int8], %w: Tensor[(6, 2, 3, 2), int8], %f: Tensor[(1, 2, 5, 5), float32]) {
  let %a = nn.conv2d(%x, %w, padding=[1, 2, 1, 2], strides=[2, 1], groups=2, out_dtype="int32");
  let %b = nn.conv2d(%f, %f);
  let %c = nn.conv2d(%x, %w, padding=[1, 2, 0, 2], groups=2, out_dtype="int32");
  let %d = nn.conv2d(%x, %w, dilation=[2, 1], groups=2, out_dtype="int32");
  (%a, %b, %c, %d)
}
"#
    .replace("%f: Tensor[(1, 2, 5, 5), float32]", "%f: Tensor[(1, 1, 5, 5), float32]");
    std::fs::write(&file, text).unwrap();
    let model = file.display().to_string();
    let backend_args = ["--backend", "conv_int8", "--plugin-dir", &dir];
    let rows = byoc([&["explain", &model, "--json"], &backend_args[..]].concat()).ok().json().remove(0);
    let refusals: Vec<&Value> =
        rows["nodes"].as_array().unwrap().iter().flat_map(|n| n["refusals"].as_array().unwrap()).collect();
    let is_reported = |code: &str, detail: &str| refusals.iter().any(|r| r["code"] == code && r["detail"] == detail);
    assert!(is_reported("UnsupportedDtype", "input 0: expected int8, found float32"), "{refusals:?}");
    let padding = "padding: expected the same before and after, found [1, 2, 0, 2]";
    assert!(is_reported("UnsupportedAttr", padding), "{refusals:?}");
    assert!(is_reported("UnsupportedAttr", "dilation: expected 1, found [2, 1]"), "{refusals:?}");
    assert!(refusals.iter().any(|r| r["hint"] == "run \"byoc quantize\" first"), "{refusals:?}");
    let source = byoc([&["source", &model], &backend_args[..]].concat()).ok().out;
    assert!(source.contains("vendor_conv2d(data, weight, out, 2, 4, 9, 8, 6, 2, 1, 2, 3, 2, 2, 1);"), "{source}");

    let (with_backend, without_backend) = (plugins.path().join("with.npz"), plugins.path().join("without.npz"));
    let run = |output: &Path, extra_args: &[&str]| {
        let output = output.display().to_string();
        let inputs = ["--input", "x=random", "--input", "w=random:3", "--input", "f=random:4", "--output", &output];
        byoc([&["run", &model], &inputs[..], extra_args].concat()).ok()
    };
    run(&with_backend, &backend_args).stderr_contains(&["Calling From vendor_conv2d: 2x4x9x8, 6 kernels of 3x2"]);
    run(&without_backend, &[]);
    assert_eq!(std::fs::read(with_backend).unwrap(), std::fs::read(without_backend).unwrap());
}

#[test]
fn new_rejects_invalid_names_and_paths() {
    let dir = temp_dir();
    let path_of = |name: &str| dir.path().join(name).display().to_string();
    byoc(["plugins", "new", &path_of("my-chip")])
        .fails_with("E0425")
        .stderr_contains(&["\"my-chip\"", "try \"my_chip\""]);
    byoc(["plugins", "new", "--c", &path_of("mine")]).ok();
    byoc(["plugins", "new", "--c", &path_of("mine")]).fails_with("E0425").stderr_contains(&["mine already exists"]);
    byoc(["plugins", "new", &path_of("other"), "--api", &path_of("mine")])
        .fails_with("E0425")
        .stderr_contains(&[&path_of("mine"), "--api DIR"]);
    assert!(!Path::new(&path_of("other")).exists());
}

/// Builds a C plugin with the given description; returns its directory and its path.
fn described_plugin(description: &str) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(workspace().join("tests/plugins/c/everything.c")).unwrap();
    let literal: String = format!("{description:?}");
    let old_description = "(void *)\"{\\\"operators\\\": [\\\"nn.relu\\\"]}\"";
    assert!(text.contains(old_description));
    let text = text.replace(old_description, &format!("(void *){literal}")).replace("\"all\"", "\"chatty\"");
    // Registers only the backend that supports every candidate.
    let text = text.replace(
        "    call->host->register_codegen(call, \"short\"",
        "    if (0) call->host->register_codegen(call, \"short\"",
    );
    let source = dir.path().join("chatty.c");
    std::fs::write(&source, text).unwrap();
    let library = dir.path().join("libbyoc_chatty.so");
    let compilation = Command::new("cc")
        .args(["-shared", "-fPIC", "-I"])
        .arg(workspace().join("plugin-api/include"))
        .arg(&source)
        .arg("-o")
        .arg(&library)
        .output()
        .unwrap();
    to_command_output(compilation).ok();
    let library = library.display().to_string();
    (dir, library)
}

const THREE_MISTAKES: &str = r#"{"version": 1, "operators": ["nn.relu", "nn.rleu"], "patterns": [
    "good: nn.relu(nn.conv2d(*, *))",
    "first: nn.relu(nn.conv2(*, *))",
    "second: add(*, ",
    "also_good: nn.relu(*)",
    "third: nn.relu(*) where",
    "last: tanh(*)"]}"#;

/// Checks that every pattern table in the guide, including those in JSON, parses without diagnostics.
#[test]
fn parses_tables_of_guide() {
    use byoc_core::pattern::{Checks, parse_table};
    let guide = std::fs::read_to_string(workspace().join("docs/writing-a-backend.md")).unwrap();
    let blocks = |language: &str| -> Vec<String> {
        let begin = format!("```{language}\n");
        guide.split(&begin).skip(1).map(|part| part.split("```").next().unwrap_or_default().to_owned()).collect()
    };
    let json_tables = blocks("json").into_iter().filter_map(|block| {
        let value: Value = serde_json::from_str(&block).unwrap();
        let lines = value["patterns"].as_array()?;
        Some(lines.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("\n"))
    });
    let tables: Vec<String> = blocks("patterns").into_iter().chain(json_tables).collect();
    assert!(blocks("patterns").len() == 1 && tables.len() >= 3, "{tables:?}");
    for table in tables {
        let table_result = parse_table(&table, Checks::Allowed);
        assert!(table_result.diagnostics.is_empty(), "{table}\n{:?}", table_result.diagnostics);
        assert_eq!(table_result.entries.len(), table.lines().count());
    }
    // Tests of the boundary itself cover the blocks in the other languages. The list must name every language of the
    // guide.
    let languages = guide.lines().filter_map(|line| line.strip_prefix("```")).filter(|language| !language.is_empty());
    let known_languages = ["sh", "rust", "rust,ignore", "c", "json", "patterns"];
    assert_eq!(
        languages.filter(|language| !known_languages.contains(language)).collect::<Vec<_>>(),
        Vec::<&str>::new()
    );
}

#[test]
fn reports_three_mistakes_in_pattern_table() {
    let (temp_dir, library) = described_plugin(THREE_MISTAKES);
    let dir = temp_dir.path().display().to_string();
    let model = data_text("digits/digits.onnx");
    let messages = [
        "plugin chatty, pattern table, entry \"first\", line 2, column 16: ",
        "plugin chatty, pattern table, entry \"second\", line 3, column ",
        "plugin chatty, pattern table, entry \"third\", line 5, column ",
    ];
    let explanation = byoc(["explain", &model, "--dim", "batch=1", "--backend", "chatty", "--plugin-dir", &dir]).ok();
    assert!(
        explanation.out.contains("tvmgen_default_chatty_main_0"),
        "expected the valid entries to be used: {}",
        explanation.out
    );
    assert_eq!(explanation.err.matches("warning[E0407]").count(), 3, "{}", explanation.err);
    let explanation = explanation.stderr_contains(&messages);
    explanation.stderr_contains(&["did you mean \"nn.relu\"?", "unknown operator \"nn.rleu\""]);
    let report = byoc(["plugins", "check", &library]);
    assert_eq!(report.code, 1);
    assert!(report.out.contains("3 patterns and 1 single operator are valid"), "{}", report.out);
    assert_eq!(report.err.matches("error[E0407]").count(), 3, "{}", report.err);
    report.stderr_contains(&messages);
    let row = byoc(["plugins", "check", "--json", &library]).json().remove(0);
    assert_eq!(row["problems"].as_array().unwrap().len(), 4, "{row}");
    assert_eq!((&row["status"], &row["entry"]), (&"loaded".into(), &"byoc_plugin_entry".into()));
}

#[test]
fn reports_description_that_is_not_json() {
    let (temp_dir, library) = described_plugin("operators: nn.relu");
    let dir = temp_dir.path().display().to_string();
    let model = data_text("digits/digits.onnx");
    byoc(["run", &model, "--dim", "batch=1", "--backend", "chatty", "--plugin-dir", &dir, "--input", "image=ones"])
        .ok()
        .stderr_contains(&[
            "warning[E0408]",
            "expected a JSON object",
            "found \"operators: nn.relu\"",
            "accepted no operator",
        ]);
    byoc(["plugins", "check", &library]).fails_with("E0408").stderr_contains(&["plugin chatty, describe: 1 problem"]);
}

#[test]
fn accepts_description_of_later_version() {
    let later_description =
        r#"{"version": 2, "operators": ["nn.relu"], "streams": 2, "pre_passes": ["fold_constants"]}"#;
    let (temp_dir, _) = described_plugin(later_description);
    let dir = temp_dir.path().display().to_string();
    let model = data_text("digits/digits.onnx");
    let output = byoc(["explain", &model, "--dim", "batch=1", "--backend", "chatty", "--plugin-dir", &dir]).ok();
    assert!(
        output.out.contains("tvmgen_default_chatty_main_0"),
        "expected the known fields to be used: {}",
        output.out
    );
    output.stderr_contains(&[
        "unknown field \"streams\"",
        "expected version 1 or older, found 2",
        "did you mean \"fold_constant\"?",
    ]);
}

#[test]
fn reports_blob_over_declared_size() {
    let (temp_dir, _) = described_plugin(r#"{"operators": ["nn.relu"], "max_blob_bytes": 100}"#);
    let dir = temp_dir.path().display().to_string();
    let model = data_text("digits/digits.onnx");
    let output = byoc(["explain", &model, "--dim", "batch=1", "--backend", "chatty", "--plugin-dir", &dir]).ok();
    assert!(output.out.contains("CompileFailed"), "{}", output.out);
    output.stderr_contains(&["warning[E0424]", "expected a blob of at most 100 bytes", "runs on the host"]);
}

#[test]
fn graphs_conform_to_schema() {
    let plugins = byoc_test_support::plugin_dir(&["template"]);
    let operators: Vec<&str> = byoc_ir::op::names().collect();
    let config = serde_json::json!({"name": "template", "operators": operators, "dynamic_dims": true});
    std::fs::write(plugins.path().join("libbyoc_template.json"), config.to_string()).unwrap();
    let dir = plugins.path().display().to_string();
    let schema = byoc_test_support::schema::schema("graph");
    let mut graphs = 0;
    for model in
        ["models/swin_small", "models/bert_small", "models/gru", "models/unet_small", "models/mobilenet_v3_small"]
    {
        // The template backend prints the graph of a region as its source.
        let text = byoc(["source", &data_text(model), "--backend", "template", "--plugin-dir", &dir]).ok().out;
        for graph in serde_json::Deserializer::from_str(&text).into_iter::<Value>() {
            byoc_test_support::schema::check(&schema, &graph.unwrap()).unwrap_or_else(|e| panic!("{model}: {e}"));
            graphs += 1;
        }
    }
    assert!(graphs >= 5, "expected at least 5 graphs, found {graphs}");
}

#[test]
fn check_explains_bad_files() {
    let check = |path: &Path| byoc(["plugins", "check", &path.display().to_string()]);
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("text.so");
    std::fs::write(&text, "no library").unwrap();
    check(&text).fails_with("E0411").stderr_contains(&["a text file"]);
    check(&test_plugin("no_entry")).fails_with("E0414").stderr_contains(&["in C, export byoc_plugin_entry"]);
    check(&test_plugin("other_version")).fails_with("E0416").stderr_contains(&["found one for 9.0.0"]);
    check(&test_plugin("other_layout")).fails_with("E0417").stderr_contains(&[
        "PluginModule.info.result: mismatched type: expected Info, found RString",
        "PluginModule.init.argument: mismatched type: expected InitArguments, found u32",
    ]);
    let failure = check(&c_plugin("everything")).fails_with("E0408");
    assert!(failure.out.contains("--backend all") && failure.out.contains("--backend short"), "{}", failure.out);
    let valid_output = check(&plugin("template")).ok();
    assert!(
        valid_output.out.contains("needs       libgcc_s.so.1, libc.so.6") || valid_output.out.contains("libc.so.6"),
        "{}",
        valid_output.out
    );

    // A plugin without a code generator.
    let header = workspace().join("plugin-api/include/byoc_plugin.h");
    let loader = format!(
        "#include \"{}\"\n\
         static int32_t load(void *self, byoc_call *call, const byoc_load *request) {{\n\
         (void)self; (void)call; (void)request; return BYOC_ERROR; }}\n\
         static int32_t init(byoc_call *call, const char *path, const char *options) {{\n\
         static const byoc_loader loader = {{sizeof loader, load, NULL, NULL}};\n\
         (void)path; (void)options; call->host->register_loader(call, \"only\", &loader, NULL); return BYOC_OK; }}\n\
         const byoc_plugin *byoc_plugin_entry(uint32_t abi);\n\
         const byoc_plugin *byoc_plugin_entry(uint32_t abi) {{\n\
         static const byoc_plugin plugin = {{BYOC_ABI, sizeof plugin, \"only\", \"1\", init}};\n\
         return abi >= BYOC_ABI ? &plugin : NULL; }}\n",
        header.display()
    );
    std::fs::write(dir.path().join("only.c"), loader).unwrap();
    run_shell(dir.path(), "cc -std=c11 -shared -fPIC -o libonly.so only.c");
    let output = check(&dir.path().join("libonly.so")).ok();
    let reason = "no code generator: the library registers none, so --backend has nothing to select in it";
    assert!(output.out.contains(reason) && !output.out.contains("no problems found"), "{}", output.out);

    // A plugin that depends on a missing library.
    let build = |name: &str, code: &str, extra_source: &str| {
        std::fs::write(dir.path().join(format!("{name}.c")), code).unwrap();
        run_shell(dir.path(), &format!("cc -shared -fPIC -o lib{name}.so {name}.c {extra_source}"));
    };
    build("gone", "int gone(void) { return 1; }", "");
    let undefined_symbol =
        "int gone(void); const void *byoc_plugin_entry(unsigned v) { return gone() == (int)v ? 0 : \"\"; }";
    build("needs", undefined_symbol, "-L. -lgone");
    std::fs::remove_file(dir.path().join("libgone.so")).unwrap();
    check(&dir.path().join("libneeds.so"))
        .fails_with("E0415")
        .stderr_contains(&["the required library libgone.so cannot be loaded"]);
}

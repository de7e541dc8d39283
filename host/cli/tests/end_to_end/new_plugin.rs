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
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Build directory of generated crates, shared so that their dependencies are built once.
fn shared_target() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("generated")
}

fn shell(folder: &Path, line: &str) {
    let output = Command::new("sh")
        .current_dir(folder)
        .env("CARGO_TARGET_DIR", shared_target())
        .args(["-c", line])
        .output()
        .unwrap();
    assert!(output.status.success(), "{line}\n{}", String::from_utf8_lossy(&output.stderr));
}

/// Copies a library to a new plugin directory and runs the digits model on it. The backend must support a part of the
/// model, `explain` must report it, and the result must be correct. Returns the backend's share of the FLOPs.
fn digits_on(library: &Path, name: &str) -> f64 {
    let plugins = tempfile::tempdir().unwrap();
    copy(library, &plugins.path().join(library.file_name().unwrap()));
    let (dir, model) = (plugins.path().display().to_string(), data_text("digits/digits.onnx"));
    let on = ["--dim", "batch=1", "--backend", name, "--plugin-dir", &dir];
    let explained = byoc([&["explain", &model, "--json"], &on[..]].concat()).ok().json().remove(0);
    let regions = explained["regions"].as_array().unwrap();
    assert!(!regions.is_empty() && regions.iter().all(|region| region["backend"] == name), "{explained}");
    let shown = byoc([&["explain", &model], &on[..]].concat()).ok().out;
    assert!(shown.contains(&format!("tvmgen_default_{name}_main_0")) && shown.contains("FLOPs on backends"), "{shown}");
    for digit in [2, 7] {
        let (picture, labels) = (data_text(&format!("digits/samples/{digit}.png")), data_text("digits/labels.txt"));
        let image = ["run", &model, "--image", &picture, "--labels", &labels, "--json", "--require-offload"];
        let output = byoc([&image[..], &on[..]].concat()).ok();
        assert_eq!(output.json()[0]["top"][0]["label"], digit.to_string(), "{}", output.out);
    }
    explained["totals"]["offload_share"].as_f64().unwrap()
}

#[test]
fn builds_new_plugin_in_rust() {
    let folder = folder();
    let mine = folder.path().join("mine");
    let shown = byoc(["plugins", "new", &mine.display().to_string()]).ok().out;
    assert!(shown.contains("cargo build --release --manifest-path"), "{shown}");
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
        let text = std::fs::read_to_string(mine.join(file)).unwrap();
        assert!(!text.contains(&checkout), "{file}");
    }
    let names = |folder: &Path| -> BTreeSet<OsString> {
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    };
    let helpers = workspace().join("plugin-api/support/src");
    assert_eq!(names(&mine.join("byoc-plugin-support/src")), names(&helpers), "expected a complete copy");
    for folder in ["byoc-plugin-api", "byoc-plugin-support"] {
        assert_licensed(&mine.join(folder));
    }
    // Pins the versions that this checkout is tested with; a user's cargo selects the newest.
    copy(&workspace().join("Cargo.lock"), &mine.join("Cargo.lock"));
    shell(&mine, "RUSTFLAGS='-D warnings' cargo build --release --quiet --offline");
    let library = shared_target().join("release/libbyoc_mine.so");
    assert!(digits_on(&library, "mine") > 0.0);
    let checked = byoc(["plugins", "check", &library.display().to_string()]).ok().out;
    for part in [
        "entry       declare_plugin!",
        "byoc-plugin-api 0.1.0",
        "mine 0.1.0",
        "--backend mine: nn.relu, and nothing else",
        "no problems found",
    ] {
        assert!(checked.contains(part), "expected {part} in\n{checked}");
    }
}

/// Checks that the copied sources are accompanied by their licenses.
fn assert_licensed(folder: &Path) {
    for name in ["LICENSE-MIT", "LICENSE-APACHE"] {
        let read = |folder: &Path| std::fs::read_to_string(folder.join(name)).unwrap();
        assert_eq!(read(folder), read(workspace()), "{name}");
    }
}

/// Runs the commands of the guide one by one, in a directory that contains only the test models of this checkout.
#[test]
fn guide_commands_work() {
    let guide = std::fs::read_to_string(workspace().join("docs/writing-a-backend.md")).unwrap();
    let walk = guide.split("## The walk").nth(1).unwrap().split("\n## ").next().unwrap();
    let blocks: Vec<&str> =
        walk.split("```sh\n").skip(1).map(|part| part.split("```").next().unwrap_or_default()).collect();
    let [new, build, rest @ ..] = &blocks[..] else { panic!("expected at least two blocks, found {blocks:?}") };
    assert!(rest.iter().any(|block| block.contains("byoc plugins test")), "{rest:?}");
    let folder = folder();
    std::os::unix::fs::symlink(workspace().join("tests"), folder.path().join("tests")).unwrap();
    let binary = Path::new(env!("CARGO_BIN_EXE_byoc")).parent().unwrap();
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap());
    let walked = |block: &str| {
        let mut command = Command::new("sh");
        command.current_dir(folder.path()).args(["-e", "-c", block]);
        command.env("PATH", &path).env("CARGO_NET_OFFLINE", "true").env("CARGO_TARGET_DIR", shared_target());
        to_command_output(command.env_remove("BYOC_PLUGIN_PATH").output().unwrap()).ok()
    };
    walked(new);
    // The lock file makes the registry unnecessary, and the shared build directory saves the minutes of a first build.
    copy(&workspace().join("Cargo.lock"), &folder.path().join("mine/Cargo.lock"));
    walked(build);
    std::os::unix::fs::symlink(shared_target(), folder.path().join("mine/target")).unwrap();
    let shown = walked(&rest.join("\n")).out;
    for part in ["no problems found", "tvmgen_default_mine_main_0", "FLOPs on backends", "y = max(x, 0)"] {
        assert!(shown.contains(part), "expected {part} in\n{shown}");
    }
}

#[test]
fn builds_and_edits_new_plugin_in_c() {
    let folder = folder();
    let mine = folder.path().join("mine");
    byoc(["plugins", "new", "--c", &mine.display().to_string()]).ok();
    shell(&mine, "make");
    assert_licensed(&mine);
    for header in ["byoc_plugin.h", "byoc_json.h"] {
        let text = std::fs::read_to_string(mine.join(header)).unwrap();
        assert!(text.starts_with("/* SPDX-License-Identifier: MIT OR Apache-2.0 */\n"), "{header}");
    }
    let facts = std::fs::read_to_string(mine.join("byoc-plugin.pc")).unwrap();
    assert!(facts.contains("\nprefix=${pcfiledir}\n") && facts.contains("\nVersion: 0.1.0\n"), "{facts}");
    // Tests the README's command if pkg-config is installed.
    if Command::new("pkg-config").arg("--version").output().is_ok() {
        let readme = std::fs::read_to_string(mine.join("README.md")).unwrap();
        let line = readme.lines().find(|line| line.contains("pkg-config --cflags")).unwrap();
        shell(&mine, line);
    }
    let library = mine.join("libbyoc_mine.so");
    let before = digits_on(&library, "mine");
    assert!(before > 0.0);
    // Removing an operator takes one edit, one `make` and one copy.
    let source = std::fs::read_to_string(mine.join("mine.c")).unwrap();
    let without = source.replacen("{\"nn.relu\", relu, NULL,", "{\"sign\", relu, NULL,", 1);
    assert_ne!(source, without);
    std::fs::write(mine.join("mine.c"), without).unwrap();
    shell(&mine, "touch -d '+2 seconds' mine.c && make");
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
    let folder = folder();
    let mine = folder.path().join("mine");
    byoc(["plugins", "new", "--c", &mine.display().to_string()]).ok();
    let source = std::fs::read_to_string(mine.join("mine.c")).unwrap();
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
    let on = ["--backend", "mine", "--plugin-dir", &dir];
    let explained = |cost: &str| {
        let with = source.replacen(r#"{\"version\": 1, "#, &format!(r#"{{\"version\": 1, \"cost\": {cost}, "#), 1);
        assert_ne!(source, with);
        std::fs::write(mine.join("mine.c"), with).unwrap();
        shell(&mine, "make -B");
        copy(&mine.join("libbyoc_mine.so"), &plugins.path().join("libbyoc_mine.so"));
        byoc([&["explain", &file, "--json"], &on[..]].concat()).ok().json().remove(0)
    };
    let kinds = |rows: &Value| -> Vec<String> {
        let nodes = rows["nodes"].as_array().unwrap().iter();
        nodes.map(|node| node["placement"]["kind"].as_str().unwrap_or_default().to_owned()).collect()
    };
    // The region with one operator is refused with a reason and falls back to the host; the region with two is not.
    let rows = explained(r#"{\"min_region_operators\": 2}"#);
    assert_eq!(kinds(&rows), ["host", "host", "region", "region"], "{rows}");
    let detail = rows["nodes"][0]["refusals"][0]["detail"].as_str().unwrap_or_default();
    let wanted =
        "NotProfitable: mine: expected a region of at least 2 operators and 0 FLOPs, found 1 operators and 16 FLOPs";
    assert_eq!((detail, &rows["nodes"][0]["refusals"][0]["code"]), (wanted, &Value::from("RegionRefused")), "{rows}");
    // 4 x 4 additions and 4 x 4 clamps are 32 FLOPs.
    assert_eq!(kinds(&explained(r#"{\"min_region_flops\": 32}"#)), ["host", "host", "region", "region"]);
    assert_eq!(kinds(&explained(r#"{\"min_region_flops\": 33}"#)), ["host"; 4]);
    // The refused operators are back in their original function, not in a separate function.
    let partitioned = byoc([&["compile", &file, "--emit", "partitioned"], &on[..]].concat()).ok().out;
    assert!(!partitioned.contains("Compiler="), "{partitioned}");
}

#[test]
fn sample_in_c_runs_digits() {
    assert!(digits_on(&sample("elementwise"), "elementwise") > 0.0);
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
    let on = ["--backend", "conv_int8", "--plugin-dir", &dir];
    let rows = byoc([&["explain", &model, "--json"], &on[..]].concat()).ok().json().remove(0);
    let refusals: Vec<&Value> =
        rows["nodes"].as_array().unwrap().iter().flat_map(|n| n["refusals"].as_array().unwrap()).collect();
    let said = |code: &str, detail: &str| refusals.iter().any(|r| r["code"] == code && r["detail"] == detail);
    assert!(said("UnsupportedDtype", "input 0: expected int8, found float32"), "{refusals:?}");
    let padding = "padding: expected the same before and after, found [1, 2, 0, 2]";
    assert!(said("UnsupportedAttr", padding), "{refusals:?}");
    assert!(said("UnsupportedAttr", "dilation: expected 1, found [2, 1]"), "{refusals:?}");
    assert!(refusals.iter().any(|r| r["hint"] == "run \"byoc quantize\" first"), "{refusals:?}");
    let source = byoc([&["source", &model], &on[..]].concat()).ok().out;
    assert!(source.contains("vendor_conv2d(data, weight, out, 2, 4, 9, 8, 6, 2, 1, 2, 3, 2, 2, 1);"), "{source}");

    let (with, without) = (plugins.path().join("with.npz"), plugins.path().join("without.npz"));
    let run = |output: &Path, on: &[&str]| {
        let output = output.display().to_string();
        let inputs = ["--input", "x=random", "--input", "w=random:3", "--input", "f=random:4", "--output", &output];
        byoc([&["run", &model], &inputs[..], on].concat()).ok()
    };
    run(&with, &on).stderr_contains(&["Calling From vendor_conv2d: 2x4x9x8, 6 kernels of 3x2"]);
    run(&without, &[]);
    assert_eq!(std::fs::read(with).unwrap(), std::fs::read(without).unwrap());
}

#[test]
fn new_rejects_invalid_names_and_paths() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name).display().to_string();
    byoc(["plugins", "new", &at("my-chip")]).fails_with("E0425").stderr_contains(&["\"my-chip\"", "try \"my_chip\""]);
    byoc(["plugins", "new", "--c", &at("mine")]).ok();
    byoc(["plugins", "new", "--c", &at("mine")]).fails_with("E0425").stderr_contains(&["mine already exists"]);
    byoc(["plugins", "new", &at("other"), "--api", &at("mine")])
        .fails_with("E0425")
        .stderr_contains(&[&at("mine"), "--api DIR"]);
    assert!(!Path::new(&at("other")).exists());
}

/// Builds a C plugin with the given description; returns its directory and its path.
fn described(description: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(workspace().join("tests/plugins/c/everything.c")).unwrap();
    let literal: String = format!("{description:?}");
    let old = "(void *)\"{\\\"operators\\\": [\\\"nn.relu\\\"]}\"";
    assert!(text.contains(old));
    let text = text.replace(old, &format!("(void *){literal}")).replace("\"all\"", "\"chatty\"");
    // Registers only the backend that supports every candidate.
    let text = text.replace(
        "    call->host->register_codegen(call, \"short\"",
        "    if (0) call->host->register_codegen(call, \"short\"",
    );
    let source = folder.path().join("chatty.c");
    std::fs::write(&source, text).unwrap();
    let library = folder.path().join("libbyoc_chatty.so");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-I"])
        .arg(workspace().join("plugin-api/include"))
        .arg(&source)
        .arg("-o")
        .arg(&library)
        .output()
        .unwrap();
    to_command_output(built).ok();
    let library = library.display().to_string();
    (folder, library)
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
    let of_json = blocks("json").into_iter().filter_map(|block| {
        let value: Value = serde_json::from_str(&block).unwrap();
        let lines = value["patterns"].as_array()?;
        Some(lines.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("\n"))
    });
    let tables: Vec<String> = blocks("patterns").into_iter().chain(of_json).collect();
    assert!(blocks("patterns").len() == 1 && tables.len() >= 3, "{tables:?}");
    for table in tables {
        let read = parse_table(&table, Checks::Allowed);
        assert!(read.diagnostics.is_empty(), "{table}\n{:?}", read.diagnostics);
        assert_eq!(read.entries.len(), table.lines().count());
    }
    // Tests of the boundary itself cover the blocks in the remaining languages. This list must be complete.
    let languages = guide.lines().filter_map(|line| line.strip_prefix("```")).filter(|language| !language.is_empty());
    let known = ["sh", "rust", "rust,ignore", "c", "json", "patterns"];
    assert_eq!(languages.filter(|language| !known.contains(language)).collect::<Vec<_>>(), Vec::<&str>::new());
}

#[test]
fn reports_three_mistakes_in_pattern_table() {
    let (folder, library) = described(THREE_MISTAKES);
    let dir = folder.path().display().to_string();
    let model = data_text("digits/digits.onnx");
    let messages = [
        "plugin chatty, pattern table, entry \"first\", line 2, column 16: ",
        "plugin chatty, pattern table, entry \"second\", line 3, column ",
        "plugin chatty, pattern table, entry \"third\", line 5, column ",
    ];
    let explained = byoc(["explain", &model, "--dim", "batch=1", "--backend", "chatty", "--plugin-dir", &dir]).ok();
    assert!(
        explained.out.contains("tvmgen_default_chatty_main_0"),
        "expected the valid entries to be used: {}",
        explained.out
    );
    assert_eq!(explained.err.matches("warning[E0407]").count(), 3, "{}", explained.err);
    let explained = explained.stderr_contains(&messages);
    explained.stderr_contains(&["did you mean \"nn.relu\"?", "unknown operator \"nn.rleu\""]);
    let checked = byoc(["plugins", "check", &library]);
    assert_eq!(checked.code, 1);
    assert!(checked.out.contains("3 patterns and 2 single operators are valid"), "{}", checked.out);
    assert_eq!(checked.err.matches("error[E0407]").count(), 3, "{}", checked.err);
    checked.stderr_contains(&messages);
    let row = byoc(["plugins", "check", "--json", &library]).json().remove(0);
    assert_eq!(row["problems"].as_array().unwrap().len(), 4, "{row}");
    assert_eq!((&row["status"], &row["entry"]), (&"loaded".into(), &"byoc_plugin_entry".into()));
}

#[test]
fn reports_description_that_is_not_json() {
    let (folder, library) = described("operators: nn.relu");
    let dir = folder.path().display().to_string();
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
    let later = r#"{"version": 2, "operators": ["nn.relu"], "streams": 2, "pre_passes": ["fold_constants"]}"#;
    let (folder, _) = described(later);
    let dir = folder.path().display().to_string();
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
    let (folder, _) = described(r#"{"operators": ["nn.relu"], "max_blob_bytes": 100}"#);
    let dir = folder.path().display().to_string();
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
    assert!(graphs >= 5, "{graphs}");
}

#[test]
fn check_explains_bad_files() {
    let check = |path: &Path| byoc(["plugins", "check", &path.display().to_string()]);
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text.so");
    std::fs::write(&text, "no library").unwrap();
    check(&text).fails_with("E0411").stderr_contains(&["a text file"]);
    check(&test_plugin("no_entry")).fails_with("E0414").stderr_contains(&["in C, export byoc_plugin_entry"]);
    check(&test_plugin("other_version")).fails_with("E0416").stderr_contains(&["found one for 9.0.0"]);
    check(&test_plugin("other_layout")).fails_with("E0417").stderr_contains(&[
        "PluginModule.info.result: mismatched type: expected Info, found RString",
        "PluginModule.init.argument: mismatched type: expected InitArguments, found u32",
    ]);
    let broken = check(&c_plugin("everything")).fails_with("E0408");
    assert!(broken.out.contains("--backend all") && broken.out.contains("--backend short"), "{}", broken.out);
    let fine = check(&plugin("template")).ok();
    assert!(
        fine.out.contains("needs       libgcc_s.so.1, libc.so.6") || fine.out.contains("libc.so.6"),
        "{}",
        fine.out
    );

    // A plugin that depends on a missing library.
    let build = |name: &str, code: &str, more: &str| {
        std::fs::write(folder.path().join(format!("{name}.c")), code).unwrap();
        shell(folder.path(), &format!("cc -shared -fPIC -o lib{name}.so {name}.c {more}"));
    };
    build("gone", "int gone(void) { return 1; }", "");
    let needs = "int gone(void); const void *byoc_plugin_entry(unsigned v) { return gone() == (int)v ? 0 : \"\"; }";
    build("needs", needs, "-L. -lgone");
    std::fs::remove_file(folder.path().join("libgone.so")).unwrap();
    check(&folder.path().join("libneeds.so"))
        .fails_with("E0415")
        .stderr_contains(&["the required library libgone.so cannot be loaded"]);
}

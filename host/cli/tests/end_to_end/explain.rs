//! Every operator of a model is placed, folded or refused with a code; table, JSON and trace agree.

use crate::{byoc, models, to_command_output};
use byoc_test_support::temporary_folder;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

const CODES: [&str; 21] = [
    "UnsupportedOp",
    "UnsupportedDtype",
    "UnsupportedShape",
    "UnsupportedAttr",
    "UnsupportedLayout",
    "DynamicDim",
    "QuantScheme",
    "NotConstant",
    "ResourceLimit",
    "Unavailable",
    "NotProfitable",
    "NoPatternMatch",
    "Overlap",
    "Escape",
    "WouldCycle",
    "LowerPriority",
    "RegionRefused",
    "CompileFailed",
    "LoadFailed",
    "NotClaimed",
    "Precision",
];

#[test]
fn explains_every_operator_of_every_model() {
    let plugins = byoc_test_support::plugin_dir(&["template", "ccompiler"]);
    let dir = plugins.path().display().to_string();
    // The table is printed from the regions that the first command compiled.
    let cache = temporary_folder();
    for model in models() {
        let name = model.display().to_string();
        let build = ["--backend", "template,ccompiler", "--plugin-dir", &dir];
        let explain = |extra_args: &[&str]| {
            let mut command = crate::command([&["explain", &name], extra_args, &build[..]].concat());
            to_command_output(command.env("BYOC_CACHE_DIR", cache.path()).output().unwrap()).ok()
        };
        let json = explain(&["--json"]).json().remove(0);
        let nodes = json["nodes"].as_array().unwrap();
        assert_eq!(nodes.len(), operators(&model), "{name}");
        for node in nodes {
            check_node(&name, node, &json);
        }
        let table = explain(&[]).out;
        let totals = &json["totals"];
        let line =
            format!("{} operators: {} in {} regions", totals["operators"], totals["in_regions"], totals["regions"]);
        assert!(table.contains(&line), "expected {line} in\n{table}");
    }
}

fn operators(model: &Path) -> usize {
    use byoc::frontend::onnx::proto::ModelProto;
    use prost::Message;
    let bytes = std::fs::read(model.join("model.onnx")).unwrap();
    ModelProto::decode(&bytes[..]).unwrap().graph.unwrap().node.len()
}

fn check_node(model: &str, node: &Value, json: &Value) {
    let placement = &node["placement"];
    let context = || format!("{model}: {node}");
    match placement["kind"].as_str().unwrap() {
        "region" => {
            let region = json["regions"].as_array().unwrap().iter().find(|r| r["symbol"] == placement["region"]);
            let region =
                region.unwrap_or_else(|| panic!("expected an entry for the region, found none: {}", context()));
            assert!(region["nodes"].as_array().unwrap().contains(&node["id"]), "{}", context());
        }
        "host" => {
            // Each of the two backends refused the operator with a reason.
            let refused_operators: BTreeSet<&str> =
                node["refusals"].as_array().unwrap().iter().map(|r| r["backend"].as_str().unwrap()).collect();
            assert_eq!(refused_operators, BTreeSet::from(["ccompiler", "template"]), "{}", context());
        }
        "folded" => assert!(placement["into"].as_str().is_some_and(|s| !s.is_empty()), "{}", context()),
        other => panic!("unknown placement {other}: {}", context()),
    }
    for refusal in node["refusals"].as_array().unwrap() {
        assert!(CODES.contains(&refusal["code"].as_str().unwrap()), "{}", context());
        assert!(!refusal["detail"].as_str().unwrap().is_empty(), "{}", context());
    }
}

#[test]
fn run_calls_exactly_listed_regions() {
    let plugins = byoc_test_support::plugin_dir(&["ccompiler"]);
    let dir = plugins.path().display().to_string();
    let temp_dir = tempfile::tempdir().unwrap();
    let trace = temp_dir.path().join("trace.json").display().to_string();
    let model = crate::data_text("models/shufflenet_v2_05");
    let build = ["--backend", "ccompiler", "--plugin-dir", &dir, "--no-cache"];
    let json = byoc([&["explain", &model, "--json"], &build[..]].concat()).ok().json().remove(0);
    byoc([&["run", &model, "--trace", &trace], &build[..]].concat()).ok();
    let trace: Value = serde_json::from_slice(&std::fs::read(&trace).unwrap()).unwrap();
    let called_regions: BTreeSet<&str> = trace["traceEvents"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|e| e["cat"] == "region")
        .map(|e| e["name"].as_str().unwrap())
        .collect();
    let listed_regions: BTreeSet<&str> =
        json["regions"].as_array().unwrap().iter().map(|r| r["symbol"].as_str().unwrap()).collect();
    assert!(!listed_regions.is_empty());
    assert_eq!(called_regions, listed_regions);
}

#[test]
fn edges_lead_through_tuples() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("split.relay").display().to_string();
    let text = "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(4, 6), float32]) {\n  %0 = nn.relu(%x);\n  \
                %1 = split(%0, indices_or_sections=[2], axis=1);\n  let %y = %1.1;\n  %2 = tanh(%y);\n  \
                %3 = (%1.0, %2);\n  %4 = (%3, %0);\n  %5 = %4.0;\n  concatenate(%5, axis=1)\n}\n";
    std::fs::write(&model, text).unwrap();
    let page = dir.path().join("page.html").display().to_string();
    let json = byoc(["explain", &model, "--json", "--html", &page]).ok().json().remove(0);
    let node = |op: &str| json["nodes"].as_array().unwrap().iter().find(|node| node["op"] == op).unwrap();
    let inputs = |op: &str| -> BTreeSet<u64> {
        node(op)["inputs"].as_array().unwrap().iter().map(|input| input.as_u64().unwrap()).collect()
    };
    let id = |op: &str| node(op)["id"].as_u64().unwrap();
    assert_eq!(inputs("split"), BTreeSet::from([id("nn.relu")]));
    assert_eq!(inputs("tanh"), BTreeSet::from([id("split")]));
    assert_eq!(inputs("concatenate"), BTreeSet::from([id("split"), id("tanh")]));
    let page = std::fs::read_to_string(&page).unwrap();
    assert_eq!(page.matches("<path ").count(), 4, "{page}");
}

#[test]
fn page_shows_every_operator() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("page.html").display().to_string();
    let artifact = dir.path().join("gru.byoc").display().to_string();
    byoc(["explain", &crate::data_text("models/gru"), "--html", &page]).ok();
    byoc(["compile", &crate::data_text("models/gru"), "-o", &artifact, "--no-cache"]).ok();
    let page_of_artifact = dir.path().join("artifact.html").display().to_string();
    byoc(["explain", &artifact, "--html", &page_of_artifact]).ok();
    let page = std::fs::read_to_string(&page).unwrap();
    // But for the title, the page of an artifact is that of its model.
    let body = |page: &str| page.split_once("</h1>").unwrap().1.to_owned();
    assert_eq!(body(&std::fs::read_to_string(page_of_artifact).unwrap()), body(&page));
    assert_eq!(page.matches("<g class=").count(), 15);
    // The page has as many edges as the ONNX graph: operators that are folded together are not connected with each
    // other.
    assert_eq!(page.matches("<path ").count(), 14);
}

/// `--why` tells everything about one operator: by name, or by type, of a model or of an artifact.
#[test]
fn why_tells_the_story_of_an_operator() {
    let plugins = byoc_test_support::plugin_dir(&["ccompiler", "template"]);
    let plugins = plugins.path().display().to_string();
    let model = crate::data_text("digits/digits.onnx");
    let explain = ["explain", &model, "--dim", "batch=1", "--plugin-dir", &plugins];
    let why = |arguments: &[&str]| byoc([&explain[..], arguments].concat());
    let story = why(&["--backend", "ccompiler,template", "--why", "/3/Conv"]).ok().out;
    for part in [
        "Conv /3/Conv: 591.9 k FLOPs, 63.6 % of the model",
        "of ccompiler, with",
        "reads: Relu /2/Relu (",
        "read by: Relu /4/Relu (",
        "refused: template: LowerPriority",
    ] {
        assert!(story.contains(part), "expected {part} in\n{story}");
    }
    assert!(!story.contains("ccompiler: "), "{story}");
    let on_host = why(&["--why", "/3/Conv"]).ok().out;
    assert!(on_host.contains("runs: host") && on_host.contains("none was asked"), "{on_host}");
    // A type names all of its operators.
    let rows = why(&["--why", "Conv", "--json"]).ok().json();
    assert_eq!(rows.len(), 3);
    assert!(rows.iter().all(|row| row["node"]["op"] == "Conv"));
    why(&["--why", "/3/Cnov"]).fails_with("E0204").stderr_contains(&["did you mean \"/3/Conv\"?"]);
}

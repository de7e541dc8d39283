//! Models with recorded outputs: each model is verified, and fails verification when one of its weights is changed.

use crate::{byoc, models};

fn verify(extra_args: &[&str]) {
    let mut args: Vec<String> = vec!["verify".into(), "--json".into(), "--max-rel-err".into(), "5e-4".into()];
    args.extend(extra_args.iter().map(|s| (*s).to_owned()));
    args.extend(models().iter().map(|m| m.display().to_string()));
    let output = byoc(&args).ok();
    let rows = output.json();
    assert_eq!(rows.last().unwrap()["summary"]["pass"], 15, "{}", output.out);
}

#[test]
fn verify_on_host() {
    verify(&[]);
}

#[test]
fn verify_on_backend() {
    let plugins = byoc_test_support::plugin_dir(&["ccompiler"]);
    let dir = plugins.path().display().to_string();
    verify(&["--backend", "ccompiler", "--plugin-dir", &dir, "--no-cache", "--require-offload=0.9"]);
}

/// Verifies layers whose steps write only to the workspace. GCC 12 deletes such a step if it believes that it reads the
/// null address.
#[test]
fn verify_recurrent_layers_on_backend() {
    let plugins = byoc_test_support::plugin_dir(&["ccompiler"]);
    let dir = plugins.path().display().to_string();
    let cases = ["gru", "lstm_bidirectional_last", "lstm_last_states", "lstm_yc_without_yh"]
        .map(|name| crate::data_text(&format!("operators/{name}")));
    let options = ["verify", "--json", "--backend", "ccompiler", "--plugin-dir", &dir, "--no-cache"];
    let output = byoc(options.into_iter().chain(cases.iter().map(String::as_str))).ok();
    assert_eq!(output.json().last().unwrap()["summary"]["pass"], cases.len(), "{}", output.out);
}

/// Verifies the forms in which common tools write int8, int4 and float16; each folder has its own bound.
pub fn verify_low_precision(extra_args: &[&str]) {
    let cases = std::fs::read_dir(crate::data("lowprec")).unwrap().map(|entry| entry.unwrap().path());
    let cases: Vec<String> = cases.map(|path| path.display().to_string()).collect();
    let output = byoc(
        ["verify", "--json"].iter().copied().chain(extra_args.iter().copied()).chain(cases.iter().map(String::as_str)),
    )
    .ok();
    assert_eq!(output.json().last().unwrap()["summary"]["pass"], 20, "{}", output.out);
}

#[test]
fn low_precision() {
    verify_low_precision(&[]);
    let plugins = byoc_test_support::plugin_dir(&["ccompiler"]);
    verify_low_precision(&["--backend", "ccompiler", "--plugin-dir", &plugins.path().display().to_string()]);
}

/// Verifies models with symbolic dimensions: each is compiled once and must be correct for all recorded dimensions.
pub fn verify_open(extra_args: &[&str]) {
    for (model, open_dims) in
        [("bert", &["batch", "sequence"][..]), ("gpt2", &["batch", "sequence"]), ("vit", &["batch"])]
    {
        verify_one(&format!("{model}_open"), open_dims, "1e-5", extra_args);
    }
}

/// Verifies models with loops, data-dependent dimensions, sampling grids and Einstein sums: detectors, image warping
/// and windowed attention.
pub fn verify_new(extra_args: &[&str]) {
    let plane: &[&str] = &["height", "width"];
    let batches: &[&str] = &["batch", "height", "width"];
    let models = [
        ("fasterrcnn_small", plane),
        ("retinanet_small", plane),
        ("maxvit_small", &["batch"]),
        ("warp_small", batches),
        ("squeeze_if", &["batch", "length"]),
        ("squeeze_rest", &["batch", "length"]),
        ("squeeze_scores", &["batch"]),
    ];
    for (model, open_dims) in models {
        verify_one(model, open_dims, "5e-4", extra_args);
    }
}

fn verify_one(model: &str, open_dims: &[&str], tolerance: &str, extra_args: &[&str]) {
    let mut args: Vec<String> = ["verify", "--json", "--max-rel-err", tolerance].map(String::from).to_vec();
    args.extend(open_dims.iter().flat_map(|name| ["--dim".to_owned(), format!("{name}=?")]));
    args.extend(extra_args.iter().map(|s| (*s).to_owned()));
    args.push(crate::data_text(&format!("open/{model}")));
    let output = byoc(&args).ok();
    assert_eq!(output.json().last().unwrap()["summary"]["pass"], 1, "{}", output.out);
}

#[test]
fn with_sizes_that_the_data_determines() {
    verify_new(&[]);
    let plugins = byoc_test_support::plugin_dir(&["ccompiler"]);
    let dir = plugins.path().display().to_string();
    verify_new(&["--backend", "ccompiler", "--plugin-dir", &dir]);
}

#[test]
fn with_open_dimensions() {
    verify_open(&[]);
}

/// Tests that without `--dim`, each data set runs on a program compiled for the dimensions of that data set.
#[test]
fn with_data_sets_of_several_sizes() {
    let output = byoc(["verify", "--json", "--max-rel-err", "1e-5", &crate::data_text("open/bert_open")]).ok();
    assert_eq!(output.json().last().unwrap()["summary"]["pass"], 1, "{}", output.out);
}

/// Sanity check of `verify` itself: each model fails if the weights of one GEMM or convolution are zeroed.
#[test]
fn detects_zeroed_weight() {
    for model in models() {
        let dir = tempfile::tempdir().unwrap();
        let broken_model = dir.path().join(model.file_name().unwrap());
        copy_folder(&model, &broken_model);
        let bytes = std::fs::read(broken_model.join("model.onnx")).unwrap();
        std::fs::write(broken_model.join("model.onnx"), zero_a_weight(&bytes)).unwrap();
        let output = byoc(["verify", "--json", "--max-rel-err", "5e-4", &broken_model.display().to_string()]);
        assert_eq!(output.json()[0]["status"], "fail", "{}: {}", model.display(), output.out);
    }
}

fn copy_folder(source: &std::path::Path, destination: &std::path::Path) {
    std::fs::create_dir_all(destination).unwrap();
    for entry in std::fs::read_dir(source).unwrap() {
        let entry = entry.unwrap().path();
        let target = destination.join(entry.file_name().unwrap());
        if entry.is_dir() {
            copy_folder(&entry, &target);
        } else {
            std::fs::copy(&entry, &target).unwrap();
        }
    }
}

/// Returns the model with the weight of its last convolution or GEMM set to zero. The last layer is chosen because two
/// models have inner blocks that contribute so little to their residual sum that no tolerance could distinguish the
/// change from rounding.
fn zero_a_weight(bytes: &[u8]) -> Vec<u8> {
    use byoc::frontend::onnx::proto::ModelProto;
    use prost::Message;
    let mut model = ModelProto::decode(bytes).unwrap();
    let graph = model.graph.as_mut().unwrap();
    let names: Vec<String> = graph
        .node
        .iter()
        .filter(|n| ["Conv", "Gemm", "MatMul", "LSTM", "GRU"].contains(&n.op_type.as_str()))
        .filter_map(|n| n.input.get(1).cloned())
        .filter(|name| graph.initializer.iter().any(|t| t.name == **name))
        .collect();
    let name = names.last().unwrap().clone();
    let weight = graph.initializer.iter_mut().find(|t| t.name == name).unwrap();
    weight.raw_data = weight.raw_data.as_ref().map(|d| vec![0; d.len()].into());
    weight.float_data.iter_mut().for_each(|v| *v = 0.0);
    model.encode_to_vec()
}

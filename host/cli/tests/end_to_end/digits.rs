//! The trained classifier recognizes as many test images on the host and on a backend as in PyTorch.

use crate::{byoc, data_text};
use std::path::Path;

const EXPECTED_CORRECT: usize = 357;

/// Classifies all test images with the options `extra_args`, and returns the number of correct results.
fn count_correct(extra_args: &[&str]) -> usize {
    let dir = tempfile::tempdir().unwrap();
    let (images, labels) = test_set();
    let file = dir.path().join("images.npy");
    byoc::io::npy::write(&file, &images).unwrap();
    let output = dir.path().join("out.npz");
    let (model, input) = (data_text("digits/digits.onnx"), format!("image={}", file.display()));
    let output_text = output.display().to_string();
    let args = ["run", &model, "--input", &input, "--output", &output_text];
    byoc(args.iter().chain(extra_args)).ok();
    let logits = byoc::io::npz::read_entry(Path::new(&output), Some("logits")).unwrap();
    let classes = logits.shape()[1];
    logits
        .as_slice::<f32>()
        .chunks(classes)
        .zip(labels)
        .filter(|(row, label)| {
            let predicted_class = (0..classes).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
            predicted_class as i64 == *label
        })
        .count()
}

/// Returns the 360 test images as a model input, and their labels.
fn test_set() -> (byoc_ir::tensor::Tensor, Vec<i64>) {
    let entries = byoc::io::npz::read(&crate::data("digits/test.npz")).unwrap();
    let find = |names: &[&str]| {
        let entry = entries.iter().find(|(name, _)| names.contains(&name.as_str()));
        entry.map(|(_, t)| t.clone()).unwrap_or_else(|| {
            panic!("expected {names:?} among {:?}", entries.iter().map(|e| &e.0).collect::<Vec<_>>())
        })
    };
    let images = find(&["image", "images", "x"]);
    let labels = find(&["label", "labels", "y"]).view().to_i64s().unwrap();
    assert_eq!(images.shape()[0], 360);
    (images, labels)
}

#[test]
fn runs_on_host() {
    assert_eq!(count_correct(&[]), EXPECTED_CORRECT);
}

#[test]
fn runs_on_backend() {
    let plugins = byoc_test_support::plugin_dir(&["ccompiler"]);
    let dir = plugins.path().display().to_string();
    let extra_args = ["--backend", "ccompiler", "--plugin-dir", &dir, "--no-cache", "--require-offload=0.9"];
    assert_eq!(count_correct(&extra_args), EXPECTED_CORRECT);
}

#[test]
fn classifies_image_with_labels() {
    for digit in [0, 7] {
        let picture = data_text(&format!("digits/samples/{digit}.png"));
        let (model, labels) = (data_text("digits/digits.onnx"), data_text("digits/labels.txt"));
        // An image is a single sample and binds the batch dimension, so `--dim` is not needed.
        let output = byoc(["run", &model, "--image", &picture, "--labels", &labels, "--json"]).ok();
        let top = &output.json()[0]["top"][0];
        assert_eq!(top["label"], digit.to_string(), "{}", output.out);
        assert!(top["probability"].as_f64().unwrap() > 0.5, "{}", output.out);
    }
}

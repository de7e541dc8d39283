//! Float16 models: storage of weights and of intermediate results.

use super::relay::{Model, half, next_real};
use super::{ExportedProject, SANITIZER_FLAGS, check_floor, digits, exists, export, output};
use crate::data_text;
use byoc_test_support::random::Random;
use std::process::Command;

/// Returns a float16 network with one operator of each kind.
fn network() -> Model {
    let mut model = Model::default();
    let mut random = Random::new(16);
    let mut weight = |shape: &[i64], scale: f32| {
        let count: i64 = shape.iter().product();
        let values = (0..count).flat_map(|_| half(next_real(&mut random) * scale).to_le_bytes());
        let bytes = values.collect();
        model.constant("F16", shape, bytes)
    };
    let (conv, bias, depthwise) = (weight(&[8, 3, 3, 3], 0.25), weight(&[8], 1.0), weight(&[8, 1, 3, 3], 0.5));
    let (gamma, beta) = (weight(&[16], 1.0), weight(&[16], 1.0));
    let (dense, bias_of_dense, transposed_weight) =
        (weight(&[6, 16], 0.5), weight(&[6], 1.0), weight(&[16, 4, 2, 2], 0.25));
    model.text = format!(
        "#[version = \"0.0.5\"]
def @main(%image: Tensor[(1, 3, 9, 8), float16], %ids: Tensor[(2,), int32]) {{
  %0 = nn.conv2d(%image, {conv}, strides=[2, 1], padding=[1, 0, 1, 1], channels=8, kernel_size=[3, 3]);
  %1 = nn.relu(nn.bias_add(%0, {bias}));
  %2 = nn.conv2d(%1, {depthwise}, padding=[1, 1, 1, 1], groups=8, channels=8, kernel_size=[3, 3]);
  %3 = nn.max_pool2d(%2, pool_size=[2, 2], strides=[2, 2], padding=[0, 0, 1, 1]);
  %4 = nn.avg_pool2d(%2, pool_size=[2, 2], strides=[2, 2], padding=[0, 0, 1, 1]);
  %5 = concatenate((%3, %4), axis=1);
  %6 = nn.conv2d_transpose(%5, {transposed_weight}, strides=[2, 2], channels=4, kernel_size=[2, 2]);
  %7 = image.resize2d(%6, size=[5, 5], layout=\"NCHW\");
  %8 = nn.pad(%7, 0.5f16, pad_width=[[0, 0], [0, 0], [1, 0], [0, 2]]);
  %9 = transpose(%5, axes=[0, 2, 3, 1]);
  %10 = nn.layer_norm(%9, {gamma}, {beta});
  %11 = multiply(%10, sigmoid(%10));
  %12 = nn.softmax(%11, axis=-1);
  %13 = max(%12, axis=[1]);
  %14 = mean(%11, axis=[1, 2]);
  %15 = tanh(nn.bias_add(nn.dense(%14, {dense}, units=6), {bias_of_dense}));
  %16 = take(%15, %ids, axis=1);
  %17 = nn.batch_matmul(%13, %13, transpose_b=True);
  (%15, %16, cast(%8, dtype=\"float32\"), %17, power(exp(clip(%14, a_min=-1f, a_max=1f)), 2f16))
}}
"
    );
    model
}

#[test]
fn float16_models_compute_as_the_host() {
    let dir = tempfile::tempdir().unwrap();
    let model = network().write(dir.path());
    let project = export(&model, &["--input", "ids=ones"]);
    let out = project.check("cc", SANITIZER_FLAGS, &[]);
    assert_eq!(out.matches(": pass").count(), 5, "{out}");
    eprint!("{out}");
    check_floor(&model, &[], &project);
    // Each weight takes two bytes, as does the padding value.
    let weights: i64 = [8 * 27, 8, 8 * 9, 16, 16, 96, 6, 16 * 16, 1].iter().sum();
    assert_eq!(project.metadata["weights_bytes"], 2 * weights);
    for target in ["x86-64-v3", "x86-64-v4"] {
        let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        if !cpu.contains(if target == "x86-64-v3" { " f16c " } else { " avx512vl " }) {
            eprintln!("skipped: {target}, which this processor does not support");
            continue;
        }
        let project = export(&model, &["--input", "ids=ones", "--target", target]);
        let march = format!("-march={target}");
        project.check("cc", &[SANITIZER_FLAGS, &[&march]].concat(), &[]);
        if exists("clang") {
            project.check("clang", &["-O2", &march], &[]);
        }
    }
    if exists("aarch64-linux-gnu-gcc") && exists("qemu-aarch64") {
        let (_project, program) = export(&model, &["--target", "aarch64"]).compile_for_aarch64();
        eprint!("{}", output(Command::new("qemu-aarch64").arg(program)));
    }
}

/// Tests that the weights of a float32 model occupy half their size when stored as float16.
#[test]
fn weights_of_float32_are_stored_as_float16() {
    let (float_project, half_project) = (digits(&[]), digits(&["--half-weights"]));
    let bytes = |project: &ExportedProject| project.metadata["weights_bytes"].as_i64().unwrap();
    let biases = 4 * (16 + 32 + 32 + 64 + 10);
    assert_eq!((bytes(&float_project) - biases) / 2, bytes(&half_project) - biases);
    let out = half_project.check("cc", SANITIZER_FLAGS, &[]);
    // The results are close to those of float32 weights, but not equal.
    assert!(out.contains("pass") && !out.contains("e-07"), "{out}");
    eprint!("{out}");
    for name in ["resnet18_w16", "gpt2_small"] {
        eprint!("{}", export(&data_text(&format!("models/{name}")), &["--half-weights"]).check("cc", &["-O2"], &[]));
    }
    // User-supplied functions receive the original float32 weights.
    let project = digits(&["--half-weights", "--extern", "nn.conv2d:OHWI=my_conv2d(my_conv2d.h)"]);
    assert!(bytes(&project) > bytes(&half_project));
}

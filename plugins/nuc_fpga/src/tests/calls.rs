//! Tests that calls of the software device are bit-exact with naive loops.

use super::harness::{Case, ConvCase, ty};
use byoc_plugin_api::DType;
use byoc_test_support::random::Random;

fn check(case: &Case) {
    let blob = case.compile().blob;
    for threads in [1, 3] {
        let (actual, test_host) = case.run(&blob, threads);
        let last_node = case.graph.nodes.last();
        assert!(actual == case.expected(), "threads {threads}: expected the results of naive loops for {last_node:?}");
        assert_eq!(test_host.counters.lock().unwrap()["nuc_fpga.calls"], 1);
    }
}

fn check_conv(conv: &ConvCase, seed: u64) {
    let mut case = Case::new(seed);
    let x = case.input_of(DType::I8, &conv.data);
    let y = case.conv2d(conv, x);
    case.output(y);
    check(&case);
}

#[test]
fn convolutions_of_random_shapes() {
    let mut random = Random::new(1);
    for seed in 0..150 {
        check_conv(&ConvCase::random(&mut random), seed);
    }
}

#[test]
fn convolutions_at_block_boundaries() {
    // More positions and channels than fit in one task, and sizes that exceed a multiple of the tile or vector size by
    // one.
    let conv = ConvCase { data: [1, 11, 15, 13], kernels: 67, kernel: [3, 1], padding: [1, 0], ..ConvCase::default() };
    check_conv(&conv, 1);
    check_conv(&ConvCase { data: [2, 32, 7, 7], kernels: 65, kernel: [1, 1], padding: [0, 0], ..conv.clone() }, 2);
    // Includes windows that are entirely in the padding.
    check_conv(&ConvCase { data: [1, 1, 1, 1], kernels: 1, kernel: [1, 1], padding: [2, 3], ..conv.clone() }, 3);
    // Depthwise convolution.
    check_conv(&ConvCase { data: [1, 40, 6, 5], kernels: 40, kernel: [3, 3], padding: [1, 1], groups: 40, ..conv }, 4);
}

/// Checks a fully connected layer with `batch` rows, `inputs` input features and `outputs` output features.
fn check_dense([batch, inputs, outputs]: [usize; 3], seed: u64) {
    let mut case = Case::new(seed);
    let x = case.input_of(DType::I8, &[batch, inputs]);
    let w = case.kernel(&[outputs, inputs]);
    let y = case.op("nn.dense", &[x, w], Vec::new(), ty(DType::I32, &[batch, outputs]));
    case.output(y);
    check(&case);
}

/// Convolutions of ResNet-18 at 224 x 224: input channels, output channels, side, kernel, stride.
const RESNET18: [[usize; 5]; 11] = [
    [3, 64, 224, 7, 2],
    [64, 64, 56, 3, 1],
    [64, 128, 56, 3, 2],
    [64, 128, 56, 1, 2],
    [128, 128, 28, 3, 1],
    [128, 256, 28, 3, 2],
    [128, 256, 28, 1, 2],
    [256, 256, 14, 3, 1],
    [256, 512, 14, 3, 2],
    [256, 512, 14, 1, 2],
    [512, 512, 7, 3, 1],
];

#[test]
#[ignore = "a billion multiplications in naive loops: cargo test --release -p byoc-nuc-fpga -- --ignored"]
fn layers_of_resnet18() {
    for (seed, [channels, kernels, size, kernel, stride]) in RESNET18.into_iter().enumerate() {
        let conv = ConvCase {
            data: [1, channels, size, size],
            kernels,
            kernel: [kernel; 2],
            padding: [kernel / 2; 2],
            strides: [stride; 2],
            ..ConvCase::default()
        };
        check_conv(&conv, seed as u64);
    }
    check_dense([1, 512, 1000], 11);
}

#[test]
fn dense_layers_of_random_shapes() {
    let mut random = Random::new(2);
    let mut shapes: Vec<[usize; 3]> = (0..60)
        .map(|_| [random.between(1, 70) as usize, random.between(1, 90) as usize, random.between(1, 140) as usize])
        .collect();
    shapes.extend([[1, 1, 1], [360, 64, 10], [49, 32, 65]]);
    for (seed, shape) in shapes.into_iter().enumerate() {
        check_dense(shape, seed as u64);
    }
}

#[test]
fn longest_sum_of_largest_products_does_not_overflow() {
    let terms = crate::layer::MAX_TERMS as usize;
    let mut case = Case::new(0);
    let x = case.input_of(DType::I8, &[1, terms]);
    case.inputs[0].bytes_mut().fill(0x80);
    let w = case.constant(DType::I8, &[1, terms], &vec![0x80; terms]);
    let y = case.op("nn.dense", &[x, w], Vec::new(), ty(DType::I32, &[1, 1]));
    case.output(y);
    let (actual, _) = case.run(&case.compile().blob, 1);
    assert_eq!(actual, [[128 * 128 * terms as i64]]);
    assert!(actual[0][0] > i64::from(i32::MAX) - 128 * 128);
}

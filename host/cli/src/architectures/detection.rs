//! SSD (Liu et al.: SSD, single shot multibox detector, 2016) with the first stages of ResNet-50 as its backbone.
//!
//! The input is `image` (1, 3, 300, 300). The outputs are the detections that remain after non-maximum suppression;
//! their number depends on the image. They are `boxes` (detections, 4) as left, top, right and bottom relative to the
//! image, `labels` and `scores` (detections).

use super::net::{Attr, Dim, Net, Output, Value, Window};
use super::vision::{bottlenecks, stem_with_sample};
use byoc::frontend::onnx::proto::ModelProto;
use byoc_ir::tensor::{DType, Tensor};

/// Height and width of the images.
const SIZE: usize = 300;

/// Number of classes, including the background, which is class 0.
const CLASSES: usize = 81;

/// Number of default boxes.
const BOXES: usize = 8732;

/// Feature map from which boxes are predicted: side length, stride in image pixels, box sizes in pixels of this level
/// and the next, and additional aspect ratios. The values are those of the SSD300 configuration of the paper's authors
/// for COCO.
struct Level {
    size: usize,
    step: usize,
    scale: f64,
    large: f64,
    ratios: &'static [f64],
}

const LEVELS: [Level; 6] = [
    Level { size: 38, step: 8, scale: 21.0, large: 45.0, ratios: &[2.0] },
    Level { size: 19, step: 16, scale: 45.0, large: 99.0, ratios: &[2.0, 3.0] },
    Level { size: 10, step: 32, scale: 99.0, large: 153.0, ratios: &[2.0, 3.0] },
    Level { size: 5, step: 64, scale: 153.0, large: 207.0, ratios: &[2.0, 3.0] },
    Level { size: 3, step: 100, scale: 207.0, large: 261.0, ratios: &[2.0] },
    Level { size: 1, step: 300, scale: 261.0, large: 315.0, ratios: &[2.0] },
];

impl Level {
    /// Returns the number of default boxes per feature-map pixel: two squares, and two boxes per additional aspect
    /// ratio.
    fn boxes(&self) -> usize {
        2 + 2 * self.ratios.len()
    }
}

/// Builds SSD300 with its widths divided by `divide`.
pub fn ssd_resnet50(mut net: Net, divide: usize) -> ModelProto {
    // The last levels are only a few pixels wide, so the sample consists of full-size images.
    let x = stem_with_sample(&mut net, divide, SIZE, SIZE);
    let mut features = vec![bottlenecks(&mut net, x, divide, &[(3, 1), (4, 2), (6, 1)])];
    for (middle, out, stride, pad) in
        [(256, 512, 2, 1), (256, 512, 2, 1), (128, 256, 2, 1), (128, 256, 1, 0), (128, 256, 1, 0)]
    {
        let x = features.last().expect("the backbone has produced a feature map").clone();
        let y = net.conv_bn(&x, middle / divide, 1, 1, 1);
        let y = net.relu(&y);
        let y = net.conv_bn_window(&y, out / divide, Window { kernel: 3, stride, pad }, 1);
        features.push(net.relu(&y));
    }
    let (mut locations, mut scores) = (Vec::new(), Vec::new());
    for (feature, level) in features.iter().zip(&LEVELS) {
        locations.push(predict(&mut net, feature, level, 4));
        scores.push(predict(&mut net, feature, level, CLASSES));
    }
    let mut concatenate = |parts: &[String]| {
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        net.node("Concat", &parts, &[("axis", Attr::Int(1))])
    };
    let (locations, scores) = (concatenate(&locations), concatenate(&scores));
    let boxes = decode(&mut net, &locations);
    detections(net, &boxes, &scores)
}

/// Adds the convolution that predicts `values` elements for each default box of a level. The result has shape (1, boxes
/// of the level, values).
fn predict(net: &mut Net, feature: &Value, level: &Level, values: usize) -> String {
    let y = net.conv_fitted(feature, level.boxes() * values, 3);
    let y = net.node("Transpose", &[&y.name], &[("perm", Attr::Ints(&[0, 2, 3, 1]))]);
    let count = level.boxes() * level.size * level.size;
    let shape = Tensor::from_slice(&[3], &[1, count as i64, values as i64]);
    let shape = net.weight(&format!("{y}.boxes"), &shape);
    net.node("Reshape", &[&y, &shape], &[])
}

/// Returns the centers and the sizes of the default boxes, relative to the image.
fn default_boxes() -> [Tensor; 2] {
    let (mut centers, mut sizes) = (Vec::new(), Vec::new());
    for level in &LEVELS {
        let mut shapes =
            vec![(level.scale, level.scale), ((level.scale * level.large).sqrt(), (level.scale * level.large).sqrt())];
        for ratio in level.ratios {
            let (long, short) = (level.scale * ratio.sqrt(), level.scale / ratio.sqrt());
            shapes.extend([(long, short), (short, long)]);
        }
        for pixel in 0..level.size * level.size {
            let center = |index: usize| ((index as f64 + 0.5) * level.step as f64 / SIZE as f64).clamp(0.0, 1.0) as f32;
            for (width, height) in &shapes {
                centers.extend([center(pixel % level.size), center(pixel / level.size)]);
                sizes.extend([width, height].map(|size| (size / SIZE as f64).clamp(0.0, 1.0) as f32));
            }
        }
    }
    [centers, sizes].map(|values| Tensor::from_slice(&[1, BOXES, 2], &values))
}

/// Decodes predicted locations into boxes of shape (1, boxes, 4): left, top, right and bottom.
fn decode(net: &mut Net, locations: &str) -> String {
    let [centers, sizes] = default_boxes();
    let (centers, sizes) = (net.weight("default.centers", &centers), net.weight("default.sizes", &sizes));
    // Variances of the box encoding.
    let center_variance = net.weight("default.center_variance", &Tensor::scalar(0.1f32));
    let size_variance = net.weight("default.size_variance", &Tensor::scalar(0.2f32));
    let half = net.weight("default.half", &Tensor::scalar(0.5f32));
    let shift = slice(net, locations, 2, 0, 2);
    let shift = net.node("Mul", &[&shift, &center_variance], &[]);
    let shift = net.node("Mul", &[&shift, &sizes], &[]);
    let center = net.node("Add", &[&centers, &shift], &[]);
    let growth = slice(net, locations, 2, 2, 4);
    let growth = net.node("Mul", &[&growth, &size_variance], &[]);
    let growth = net.node("Exp", &[&growth], &[]);
    let size = net.node("Mul", &[&growth, &sizes], &[]);
    let half_size = net.node("Mul", &[&size, &half], &[]);
    let lower = net.node("Sub", &[&center, &half_size], &[]);
    let upper = net.node("Add", &[&center, &half_size], &[]);
    net.node("Concat", &[&lower, &upper], &[("axis", Attr::Int(2))])
}

/// Adds a slice along an axis.
fn slice(net: &mut Net, x: &str, axis: i64, start: i64, stop: i64) -> String {
    let mut constant =
        |role: &str, value: i64| net.weight(&format!("{x}.{role}_{start}"), &Tensor::from_slice(&[1], &[value]));
    let (starts, ends, axes) = (constant("first", start), constant("end", stop), constant("axis", axis));
    net.node("Slice", &[x, &starts, &ends, &axes], &[])
}

/// Adds non-maximum suppression for each class except the background, then adds the model outputs.
fn detections(mut net: Net, boxes: &str, scores: &str) -> ModelProto {
    // Random logits have a variance of 1, trained logits a larger one. The factor increases the variance, so that about
    // 200 boxes exceed the score threshold.
    let score_scale = net.weight("scores.sharpness", &Tensor::scalar(2f32));
    let scores = net.node("Mul", &[scores, &score_scale], &[]);
    let scores = net.node("Softmax", &[&scores], &[("axis", Attr::Int(2))]);
    let scores = net.node("Transpose", &[&scores], &[("perm", Attr::Ints(&[0, 2, 1]))]);
    let scores = slice(&mut net, &scores, 1, 1, CLASSES as i64);
    let max_boxes = net.weight("suppression.most", &Tensor::from_slice(&[1], &[200i64]));
    let overlap = net.weight("suppression.overlap", &Tensor::from_slice(&[1], &[0.5f32]));
    let min_score = net.weight("suppression.least", &Tensor::from_slice(&[1], &[0.7f32]));
    let selected_boxes = net.node("NonMaxSuppression", &[boxes, &scores, &max_boxes, &overlap, &min_score], &[]);
    let column = |net: &mut Net, name: &str, index: i64| {
        let index = net.weight(name, &Tensor::scalar(index));
        net.node("Gather", &[&selected_boxes, &index], &[("axis", Attr::Int(1))])
    };
    let (labels, box_indices) = (column(&mut net, "column.label", 1), column(&mut net, "column.box", 2));
    let axes = net.weight("boxes.axes", &Tensor::from_slice(&[1], &[0i64]));
    let boxes = net.node("Squeeze", &[boxes, &axes], &[]);
    let boxes = net.node("Gather", &[&boxes, &box_indices], &[("axis", Attr::Int(0))]);
    let scores = net.node("GatherND", &[&scores, &selected_boxes], &[]);
    let output = |name, result, dtype, extra_dims: &[usize]| {
        let known_dims = extra_dims.iter().map(|&dim| Dim::Known(dim));
        Output { name, result, dtype, shape: std::iter::once(Dim::Named("detections")).chain(known_dims).collect() }
    };
    net.finish_outputs(vec![
        output("boxes", boxes, DType::F32, &[4]),
        output("labels", labels, DType::I64, &[]),
        output("scores", scores, DType::F32, &[]),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_boxes_are_those_of_the_paper() {
        assert_eq!(LEVELS.iter().map(|level| level.boxes() * level.size * level.size).sum::<usize>(), BOXES);
        let [centers, sizes] = default_boxes();
        assert_eq!((centers.shape(), sizes.shape()), (&[1, BOXES, 2][..], &[1, BOXES, 2][..]));
        let last = &sizes.as_slice::<f32>()[2 * (BOXES - 4)..];
        let expected = [261.0f32, 261.0, (261.0f32 * 315.0).sqrt(), (261.0f32 * 315.0).sqrt()].map(|size| size / 300.0);
        assert!(
            last.iter().zip(expected).all(|(size, expected)| (size - expected).abs() < 1e-6),
            "expected {expected:?}, found {last:?}"
        );
        assert!(centers.as_slice::<f32>().iter().all(|center| (0.0..=1.0).contains(center)));
    }
}

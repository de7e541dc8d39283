//! Detector with its backbone on the device and its non-maximum suppression on the host.

use super::Fixture;
use crate::byoc;
use byoc::io::npz;

/// Detection: label, score, box.
type Detection = (i64, f64, Vec<f64>);

/// Reads the detections from the output file of a run, in descending order of score.
fn detections(path: &std::path::Path) -> Vec<Detection> {
    let outputs = npz::read(path).unwrap();
    let values_of = |name: &str| outputs.iter().find(|(output, _)| output == name).unwrap().1.view().to_f64s();
    let (boxes, labels, scores) = (values_of("boxes"), values_of("labels"), values_of("scores"));
    let parts = labels.iter().zip(scores).zip(boxes.chunks(4));
    let mut detections: Vec<Detection> =
        parts.map(|((label, score), corners)| (*label as i64, score, corners.to_vec())).collect();
    detections.sort_by(|a, b| b.1.total_cmp(&a.1));
    detections
}

/// Returns the detections without a counterpart in `candidates`. A counterpart has the same label, and its score and
/// corners are equal up to rounding.
fn unmatched_detections<'a>(detections: &'a [Detection], candidates: &[Detection]) -> Vec<&'a Detection> {
    let is_same = |a: &Detection, b: &Detection| {
        a.0 == b.0 && (a.1 - b.1).abs() < 1e-3 && a.2.iter().zip(&b.2).all(|(x, y)| (x - y).abs() < 1e-3)
    };
    detections.iter().filter(|detection| !candidates.iter().any(|other| is_same(detection, other))).collect()
}

#[test]
fn detector_finds_the_boxes_of_the_host() {
    let Some(fixture) = Fixture::with_device() else { return };
    let model = fixture.path("ssd.onnx").display().to_string();
    byoc(["zoo", "ssd_resnet50", "-o", &model]).ok();
    let explanation = fixture.byoc(&["explain", &model, "--json"], &[]).ok().json().remove(0);
    let count_placed = |op: &str, kind: &str| {
        let nodes = explanation["nodes"].as_array().unwrap().iter().filter(|node| node["op"] == op);
        nodes.filter(|node| node["placement"]["kind"] == kind).count()
    };
    // 43 convolutions of ResNet-50 up to its third stage, 10 between the levels, 12 for the predictions.
    assert_eq!((count_placed("Conv", "region"), count_placed("Conv", "host")), (65, 0));
    assert_eq!((count_placed("NonMaxSuppression", "host"), count_placed("NonMaxSuppression", "region")), (1, 0));
    let (device, host) = (fixture.path("device.npz"), fixture.path("host.npz"));
    let args = ["run", &model, "--input", "image=random:3", "--output"];
    let device_args = [&args[..], &[device.to_str().unwrap(), "--require-offload=0.98"]].concat();
    fixture.byoc(&device_args, &[]).ok();
    byoc([&args[..], &[host.to_str().unwrap()]].concat()).ok();
    let (actual, expected) = (detections(&device), detections(&host));
    assert!(expected.len() > 50, "expected more than 50 detections, found {}", expected.len());
    let [missing_detections, extra_detections] =
        [unmatched_detections(&expected, &actual), unmatched_detections(&actual, &expected)];
    assert!(
        missing_detections.is_empty() && extra_detections.is_empty(),
        "expected the detections of the host, found {extra_detections:?} instead of {missing_detections:?}"
    );
}

//! Tests of the detection operators. The expected values are computed by hand from the formulas in the operators'
//! documentation.

use super::{assert_values, attrs, call, error_of, f32s, inferred_type};
use byoc_ir::ir::{AttrValue, Attrs, Type};
use byoc_ir::op::Value;
use byoc_ir::tensor::{DType, Tensor};

fn floats<const N: usize>(values: [f64; N]) -> AttrValue {
    AttrValue::List(values.iter().map(|&v| AttrValue::Float(v)).collect())
}

fn of(shape: &[usize], values: &[f32]) -> Tensor {
    Tensor::from_slice(shape, values)
}

fn ints(shape: &[usize], values: &[i32]) -> Tensor {
    Tensor::from_slice(shape, values)
}

fn run_all(name: &str, attrs: &Attrs, args: &[&Tensor]) -> Vec<Tensor> {
    let args: Vec<Value> = args.iter().map(|&t| Value::Tensor(t.clone())).collect();
    call(name, attrs, &args).unwrap()
}

/// Asserts that boxes are equal up to an absolute error of 1e-6, for coordinates of magnitude near 1.
#[track_caller]
fn assert_near(actual: &Tensor, expected: &[f64]) {
    let actual = actual.view().to_f64s();
    assert_eq!(actual.len(), expected.len());
    for (g, w) in actual.iter().zip(expected) {
        assert!((g - w).abs() < 1e-6, "expected {w}, found {g}");
    }
}

#[test]
fn default_boxes() {
    // Two rows, one column: in relative coordinates, a box of ratio 1 is twice as wide as it is high.
    let data = of(&[1, 1, 2, 1], &[0.0; 2]);
    let two_ratios = attrs([("sizes", floats([0.2])), ("ratios", floats([1.0, 4.0]))]);
    let actual = run_all("vision.multibox_prior", &two_ratios, &[&data]).remove(0);
    assert_eq!(actual.shape(), [1, 4, 4]);
    let square = |y: f64| [0.5 - 0.2, y - 0.1, 0.5 + 0.2, y + 0.1];
    let wide_box = |y: f64| [0.5 - 0.4, y - 0.05, 0.5 + 0.4, y + 0.05];
    assert_values(&actual, &[square(0.25), wide_box(0.25), square(0.75), wide_box(0.75)].concat());
    // Steps and offsets move the centers, and `clip` clips the boxes to the image.
    let offset_attrs = attrs([
        ("sizes", floats([1.0, 0.5])),
        ("steps", floats([0.5, 0.25])),
        ("offsets", floats([0.0, 1.0])),
        ("clip", true.into()),
    ]);
    let actual = run_all("vision.multibox_prior", &offset_attrs, &[&of(&[1, 1, 1, 1], &[0.0])]).remove(0);
    assert_values(&actual, &[0.0, 0.0, 0.75, 0.5, 0.0, 0.0, 0.5, 0.25]);
    let ty = |dims: &str, attrs: &Attrs| inferred_type("vision.multibox_prior", attrs, &[f32s(dims)]);
    assert_eq!(ty("1, 8, 3, 5", &two_ratios).unwrap(), "Tensor[(1, 30, 4), float32]");
    assert_eq!(ty("1, 8, h, 5", &two_ratios).unwrap(), "Tensor[(1, ?, 4), float32]");
    assert!(ty("8, 3, 5", &two_ratios).unwrap_err().contains("4 dimensions"));
    assert!(
        ty("1, 8, 3, 5", &attrs([("ratios", floats([-1.0]))]))
            .unwrap_err()
            .contains("ratios: expected numbers above 0, found -1")
    );
}

#[test]
fn boxes_are_decoded_and_the_background_is_dropped() {
    // Three anchors: the first is background, the second falls below the threshold, the third is class 2.
    let classes = of(&[1, 3, 3], &[0.9, 0.8, 0.1, 0.05, 0.15, 0.3, 0.05, 0.05, 0.6]);
    let offsets = of(&[1, 12], &[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, -2.0, 0.0, 0.0]);
    let square = [0.2f32, 0.2, 0.6, 0.4];
    let anchors = of(&[1, 3, 4], &[square, square, square].concat());
    let threshold = attrs([("threshold", 0.2.into())]);
    let actual = run_all("vision.multibox_transform_loc", &threshold, &[&classes, &offsets, &anchors]);
    assert_eq!(actual[1].as_slice::<i32>(), [1]);
    // Center (0.4, 0.3) moved by 0.1 * 0.4 and by -2 * 0.1 * 0.2.
    let expected_box = [1.0, 0.6f32 as f64, 0.24, 0.16, 0.64, 0.36];
    assert_near(&actual[0], &[&expected_box[..], &[-1.0; 12]].concat());
    // If the background is kept, anchors keep their classes, and all three reach the threshold.
    let keep_attrs = attrs([("threshold", 0.2.into()), ("keep_background", true.into())]);
    let actual = run_all("vision.multibox_transform_loc", &keep_attrs, &[&classes, &offsets, &anchors]);
    assert_eq!(actual[1].as_slice::<i32>(), [3]);
    let ids: Vec<f32> = actual[0].as_slice::<f32>().chunks(6).map(|b| b[0]).collect();
    assert_eq!(ids, [0.0, 0.0, 2.0]);
    // Growth by exp(5 * 0.2) on both axes, with and without clipping at the border.
    let growth = of(&[1, 4], &[0.0, 0.0, 5.0, 5.0]);
    let (class_scores, anchor) = (of(&[1, 2, 1], &[0.0, 1.0]), of(&[1, 1, 4], &square));
    let actual = run_all("vision.multibox_transform_loc", &Attrs::none(), &[&class_scores, &growth, &anchor]);
    let e = std::f64::consts::E;
    assert_near(&actual[0], &[0.0, 1.0, 0.0, 0.3 - e * 0.1, 0.4 + e * 0.2, 0.3 + e * 0.1]);
    let error = error_of(
        "vision.multibox_transform_loc",
        &Attrs::none(),
        &[&class_scores, &growth, &of(&[1, 1, 5], &[0.0; 5])],
    );
    assert!(error.contains("elements of an anchor: expected equal dimensions, found 5 and 4"), "{error}");
}

#[test]
fn valid_boxes_move_to_the_front() {
    let boxes = [[0.0f32, 0.1, 1.0], [-1.0, 0.9, 2.0], [1.0, 0.8, 3.0], [2.0, 0.5, 4.0]].concat();
    let (data, threshold) = (of(&[1, 4, 3], &boxes), of(&[], &[0.4]));
    let actual = run_all("vision.get_valid_counts", &Attrs::none(), &[&data, &threshold]);
    assert_eq!(actual[0].as_slice::<i32>(), [2]);
    assert_eq!(actual[1].as_slice::<f32>(), [1.0, 0.8, 3.0, 2.0, 0.5, 4.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0]);
    assert_eq!(actual[2].as_slice::<i32>(), [2, 3, -1, -1]);
    // Boxes without a class, and the threshold as an attribute. A score equal to the threshold does not pass.
    let classless_attrs = attrs([("id_index", AttrValue::Int(-1)), ("score_threshold", 0.5.into())]);
    let actual = run_all("vision.get_valid_counts", &classless_attrs, &[&data]);
    assert_eq!(actual[2].as_slice::<i32>(), [1, 2, -1, -1]);
    let error =
        inferred_type("vision.get_valid_counts", &attrs([("score_index", AttrValue::Int(3))]), &[f32s("1, 4, 3")]);
    assert!(error.unwrap_err().contains("score_index: expected an index within the 3 elements of a box, found 3"));
}

/// Class, score and four sides of each of five boxes.
const BOXES: [[f32; 6]; 5] = [
    [0.0, 0.8, 1.0, 20.0, 25.0, 45.0],
    [1.0, 0.7, 30.0, 60.0, 50.0, 80.0],
    [0.0, 0.4, 4.0, 21.0, 19.0, 40.0],
    [2.0, 0.9, 35.0, 61.0, 52.0, 79.0],
    [1.0, 0.5, 100.0, 60.0, 70.0, 110.0],
];

fn suppress(pairs: &[(&str, AttrValue)], valid: i32, max_output: i32, threshold: f32) -> Vec<Tensor> {
    let attrs = Attrs::new(pairs.iter().map(|(k, v)| (*k, v.clone())));
    let (data, count) = (of(&[1, 5, 6], &BOXES.concat()), ints(&[1], &[valid]));
    let indices = ints(&[1, 5], &[10, 11, 12, 13, 14]);
    run_all(
        "vision.non_max_suppression",
        &attrs,
        &[&data, &count, &indices, &ints(&[], &[max_output]), &of(&[], &[threshold])],
    )
}

fn kept_indices(pairs: &[(&str, AttrValue)], valid: i32, max_output: i32, threshold: f32) -> Vec<i32> {
    let actual = suppress(pairs, valid, max_output, threshold);
    let count = actual[1].as_slice::<i32>()[0] as usize;
    assert!(actual[0].as_slice::<i32>()[count..].iter().all(|&i| i == -1));
    actual[0].as_slice::<i32>()[..count].to_vec()
}

#[test]
fn overlapping_boxes_are_suppressed() {
    // Order by score: 3, 0, 1, 4, 2. Box 2 lies in box 0, with an IoU of 15 * 19 / (24 * 25) = 0.475. Boxes 1 and 3
    // have an IoU of 15 * 18 / (400 + 306 - 270) = 0.619, but belong to different classes.
    assert_eq!(kept_indices(&[], 5, -1, 0.4), [13, 10, 11, 14]);
    assert_eq!(kept_indices(&[], 5, -1, 0.48), [13, 10, 11, 14, 12]);
    assert_eq!(kept_indices(&[("force_suppress", true.into())], 5, -1, 0.6), [13, 10, 14, 12]);
    assert_eq!(kept_indices(&[("id_index", AttrValue::Int(-1))], 5, -1, 0.6), [13, 10, 14, 12]);
    // Box 4 is beyond the valid count; only the best two boxes take part; only one box may be kept.
    assert_eq!(kept_indices(&[], 4, -1, 0.4), [13, 10, 11]);
    assert_eq!(kept_indices(&[("top_k", AttrValue::Int(2))], 5, -1, 0.4), [13, 10]);
    assert_eq!(kept_indices(&[], 5, 1, 0.4), [13]);
    assert_eq!(kept_indices(&[], 5, 0, 0.4), [0i32; 0]);
    // Without a threshold, all valid boxes are kept in input order.
    assert_eq!(kept_indices(&[], 3, -1, 0.0), [10, 11, 12]);
    // Boxes instead of indices, in score order, with and without gaps.
    let gaps = [("force_suppress", true.into()), ("return_indices", false.into())];
    let ids = |t: &Tensor| t.as_slice::<f32>().chunks(6).map(|b| (b[0], b[1])).collect::<Vec<_>>();
    let no_box = (-1.0, -1.0);
    let packed_rows = suppress(&gaps, 4, -1, 0.6).remove(0);
    assert_eq!(ids(&packed_rows), [(2.0, 0.9), (0.0, 0.8), no_box, (0.0, 0.4), no_box]);
    let packed = [gaps[0].clone(), gaps[1].clone(), ("invalid_to_bottom", true.into())];
    let packed_rows = suppress(&packed, 4, -1, 0.6).remove(0);
    assert_eq!(ids(&packed_rows), [(2.0, 0.9), (0.0, 0.8), (0.0, 0.4), no_box, no_box]);
    assert_eq!(packed_rows.as_slice::<f32>()[..6], BOXES[3]);
}

#[test]
fn suppression_is_typed() {
    let scalar = |dtype| Type::tensor(dtype, &[]);
    let vector = |n: usize| Type::tensor(DType::I32, &[n]);
    let args = |count: Type| {
        [f32s("2, 9, 6"), count, Type::tensor(DType::I32, &[2, 9]), scalar(DType::I32), scalar(DType::F32)]
    };
    let ty = |attrs: &Attrs, count: Type| inferred_type("vision.non_max_suppression", attrs, &args(count));
    assert_eq!(ty(&Attrs::none(), vector(2)).unwrap(), "(Tensor[(2, 9), int32], Tensor[(2, 1), int32])");
    let boxes = attrs([("return_indices", false.into())]);
    assert_eq!(ty(&boxes, vector(2)).unwrap(), "Tensor[(2, 9, 6), float32]");
    assert!(ty(&boxes, vector(3)).unwrap_err().contains("images: expected equal dimensions, found 2 and 3"));
    assert!(ty(&boxes, f32s("2")).unwrap_err().contains("expected integers"));
    let data = of(&[1, 2, 6], &[0.0; 12]);
    let too_many = [&data, &ints(&[1], &[3]), &ints(&[1, 2], &[0, 1]), &ints(&[], &[-1]), &of(&[], &[0.5])];
    assert!(
        error_of("vision.non_max_suppression", &Attrs::none(), &too_many)
            .contains("valid_count: expected 0 to 2 boxes, found 3")
    );
}

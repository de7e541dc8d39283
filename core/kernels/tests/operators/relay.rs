//! Values that operators of Relay reject when they run. Their results are in `golden/relay.txt`, their type relations in the
//! file tests `error/relay_operators.relay` and `print/relay_operators.relay` of `byoc-core`.

use super::{attrs, call, error_of, run, vector};
use byoc_ir::ir::{AttrValue, Attrs};
use byoc_ir::op::{self, Value};
use byoc_ir::tensor::Tensor;

fn ints(shape: &[usize], values: &[i64]) -> Tensor {
    Tensor::from_slice(shape, values)
}

#[track_caller]
fn rejects(name: &str, attrs: &Attrs, args: &[&Tensor], expected: &str) {
    let error = error_of(name, attrs, args);
    assert!(error.contains(expected), "{name}: expected {expected:?}, found {error:?}");
}

#[test]
fn indices_out_of_range_are_errors() {
    let none = Attrs::none();
    let (v, index) = (vector(&[1.0, 2.0, 3.0]), ints(&[2], &[0, 3]));
    let fields = Value::Tuple(vec![v.clone(), index.clone()]);
    let error = call("adv_index", &none, &[fields]).unwrap_err();
    assert!(error.contains("index 3 is out of range for an axis of length 3"), "{error}");
    rejects("unravel_index", &none, &[&ints(&[1], &[6]), &ints(&[2], &[2, 3])], "index 6 is out of range");
    rejects("unravel_index", &none, &[&index, &ints(&[2], &[2, 0])], "expected positive dimensions, found [2, 0]");
    rejects("invert_permutation", &none, &[&ints(&[2], &[1, 1])], "each index below 2 once, found 1 at 1");
    rejects("invert_permutation", &none, &[&index], "each index below 2 once, found 3 at 1");
    rejects("scatter_add", &none, &[&v, &index, &vector(&[1.0, 1.0])], "index 3 is out of range");
    let bounds = [&ints(&[1], &[0]), &ints(&[1], &[2]), &ints(&[1], &[1])];
    let args = [&v, &v, bounds[0], bounds[1], bounds[2]];
    rejects("strided_set", &none, &args, "axis 0 of v: expected equal dimensions, found 2 and 3");
}

#[test]
fn axes_beyond_int64_are_errors() {
    let (axes, x) = (Tensor::from_slice(&[2], &[u64::MAX, 0]), Tensor::from_slice(&[1, 2], &[0f32; 2]));
    rejects("dyn.squeeze", &Attrs::none(), &[&x, &axes], "expected a result of 2 elements, found []");
}

#[test]
fn inconsistent_sparse_tensors_are_errors() {
    let none = Attrs::none();
    let (v, matrix) = (vector(&[1.0, 2.0]), Tensor::from_slice(&[2, 3], &[0f32; 6]));
    let zero = Tensor::scalar(0f32);
    let rows = ints(&[2, 1], &[2, 1]);
    let fill = |rows: &Tensor, shape: i64, expected: &str| {
        rejects("sparse_fill_empty_rows", &none, &[rows, &v, &ints(&[1], &[shape]), &zero], expected);
    };
    fill(&rows, 3, "rows in ascending order and below 3, found 1");
    fill(&ints(&[2, 1], &[0, 5]), 3, "rows in ascending order and below 3, found 5");
    fill(&rows, -1, "expected a number of rows >= 0, found [-1]");
    // A number of rows for which there is no memory is rejected before any is taken.
    fill(&ints(&[2, 1], &[0, 1]), 1 << 60, "expected a result of at most");
    let reshape = |new: &[i64], expected: &str| {
        let args = [&ints(&[1, 2], &[0, 1]), &ints(&[2], &[2, 3]), &ints(&[new.len()], new)];
        rejects("sparse_reshape", &none, &args, expected);
    };
    reshape(&[4], "expected shapes of equal size, found [2, 3] and [4]");
    reshape(&[-1, 4], "expected shapes of equal size, found [2, 3] and [-1, 4]");
    reshape(&[i64::MAX, i64::MAX], "expected shapes of equal size");
    let product = |indices: [i64; 2], pointers: [i64; 3], expected: &str| {
        let args = [&matrix, &v, &ints(&[2], &indices), &ints(&[3], &pointers)];
        rejects("nn.sparse_dense", &none, &args, expected);
        rejects("nn.sparse_add", &none, &args, expected);
    };
    product([0, 3], [0, 1, 2], "sparse_indices: index 3 is out of range for an axis of length 3");
    product([0, 1], [0, 2, 1], "sparse_indptr: expected ascending positions from 0 to 2, found [0, 2, 1]");
    product([0, 1], [0, 1, 3], "sparse_indptr: expected ascending positions from 0 to 2, found [0, 1, 3]");
    product([0, 1], [-1, 1, 2], "sparse_indptr: expected ascending positions from 0 to 2, found [-1, 1, 2]");
}

#[test]
fn images_classes_and_codes_out_of_range_are_errors() {
    let none = Attrs::none();
    let image = Tensor::from_slice(&[1, 1, 2, 2], &[0f32; 4]);
    let boxes = Tensor::from_slice(&[1, 4], &[0f32, 0.0, 1.0, 1.0]);
    let crop = attrs([("crop_size", AttrValue::from([1, 1]))]);
    rejects(
        "image.crop_and_resize",
        &crop,
        &[&image, &boxes, &ints(&[1], &[1])],
        "box_indices: index 1 is out of range",
    );
    let pool = attrs([("pooled_size", AttrValue::from([1, 1])), ("spatial_scale", 1.0.into())]);
    let rois = Tensor::from_slice(&[1, 5], &[f32::NAN, 0.0, 0.0, 1.0, 1.0]);
    rejects("vision.roi_pool", &pool, &[&image, &rois], "expected a batch index >= 0 and < 1, found NaN");
    let (row, weights) = (Tensor::from_slice(&[1, 2], &[1f32, 2.0]), vector(&[1.0, 1.0]));
    let loss = attrs([("ignore_index", (-1).into())]);
    rejects("nn.nll_loss", &loss, &[&row, &ints(&[1], &[2]), &weights], "expected classes >= 0 and < 2, found 2");
    let (scale, zero) = (Tensor::scalar(1f32), Tensor::scalar(0i32));
    let args = [&weights, &Tensor::scalar(4i32), &scale, &zero];
    rejects("qnn.simulated_quantize", &none, &args, "out_dtype: expected the number of a type, from 0 to 3, found 4");
    let none_of_both = [&weights, &Tensor::scalar(0i32), &scale, &zero];
    assert_eq!(run("qnn.simulated_dequantize", &none, &none_of_both), weights);
}

#[test]
fn roi_align_in_both_layouts() {
    let image: Vec<f32> = (0..24).map(|i| (i * 7 % 11) as f32).collect();
    let planes = Tensor::from_slice(&[1, 2, 3, 4], &image);
    let transposed = |x: &Tensor, axes: [i64; 4]| run("transpose", &attrs([("axes", AttrValue::from(axes))]), &[x]);
    let pixels = transposed(&planes, [0, 2, 3, 1]);
    let rois = Tensor::from_slice(&[1, 5], &[0f32, 0.5, 0.25, 3.0, 2.5]);
    for mode in ["avg", "max"] {
        let pool = attrs([("pooled_size", AttrValue::from([2, 3])), ("mode", mode.into())]);
        let expected = run("vision.roi_align", &pool, &[&planes, &rois]);
        let actual = run("vision.roi_align", &pool.with("layout", "NHWC"), &[&pixels, &rois]);
        assert_eq!(transposed(&actual, [0, 3, 1, 2]), expected, "{mode}");
    }
}

#[test]
fn annotations_return_their_argument() {
    let x = vector(&[1.0, 2.0]);
    for name in ["on_device", "device_copy", "debug", "annotation.checkpoint", "annotation.bitpack_start"] {
        assert_eq!(run(name, &Attrs::none(), &[&x]), x, "{name}");
        assert!(op::get(op::lookup(name).unwrap()).properties.annotation, "{name}");
    }
}

#[test]
fn empty_tensors_have_empty_results() {
    let none = Attrs::none();
    let empty = Tensor::from_slice(&[0, 3], &[0f32; 0]);
    assert_eq!(run("sequence_mask", &none, &[&empty, &vector(&[1.0, 1.0, 1.0])]).shape(), [0, 3]);
    assert_eq!(run("nn.dilate", &attrs([("strides", AttrValue::from([2, 2]))]), &[&empty]).shape(), [0, 5]);
    assert_eq!(run("collapse_sum_like", &none, &[&empty, &vector(&[0.0; 3])]).as_slice::<f32>(), [0.0; 3]);
    let mirrored = attrs([("pad_width", AttrValue::List([[0i64, 0], [3, 3]].map(AttrValue::from).into()))]);
    assert_eq!(run("nn.mirror_pad", &mirrored, &[&empty]).shape(), [0, 9]);
    rejects("nn.cross_entropy", &none, &[&empty, &vector(&[1.0])], "expected matrices of floats");
}

#[test]
fn results_beyond_the_limit_are_errors() {
    let (one, key) = (Tensor::from_slice(&[1, 1], &[0f32]), Tensor::from_slice(&[10], &[0u64; 10]));
    let huge = AttrValue::from([1 << 20, 1 << 20]);
    let pairs = AttrValue::List([[0i64, 0], [0, 0]].map(AttrValue::from).into());
    let beyond =
        |name: &str, attrs: &Attrs, args: &[&Tensor]| rejects(name, attrs, args, "expected a result of at most");
    beyond("random.threefry_generate", &attrs([("out_shape", huge.clone())]), &[&key]);
    beyond(
        "sparse_to_dense",
        &attrs([("output_shape", huge.clone())]),
        &[&ints(&[1, 2], &[0, 0]), &vector(&[1.0]), &Tensor::scalar(0f32)],
    );
    beyond(
        "image.resize3d",
        &attrs([("size", AttrValue::from([1 << 20, 1 << 20, 1]))]),
        &[&one.reshaped(&[1, 1, 1, 1, 1]).unwrap()],
    );
    beyond("image.affine_grid", &attrs([("target_shape", huge)]), &[&Tensor::from_slice(&[1, 2, 3], &[0f32; 6])]);
    let wide = Tensor::from_slice(&[2, 2], &[0f32; 4]);
    beyond("nn.dilate", &attrs([("strides", AttrValue::from([1 << 30, 1 << 30]))]), &[&wide]);
    let padded = AttrValue::List([[0i64, 1 << 30]].map(AttrValue::from).into());
    beyond("nn.space_to_batch_nd", &attrs([("block_shape", AttrValue::from([1])), ("paddings", padded)]), &[&wide]);
    assert_eq!(run("nn.mirror_pad", &attrs([("pad_width", pairs)]), &[&wide]), wide);
}

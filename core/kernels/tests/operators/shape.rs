//! Tests of reshapes, layout changes, concatenations, slices and repeats. The expected values are numpy's.

use super::{attrs, call, error_of, f32s, inferred_type, run};
use byoc_ir::ir::{AttrValue, Attrs, Type};
use byoc_ir::op::Value;
use byoc_ir::tensor::{DType, Tensor};

/// Returns a tensor of the given shape with the elements 0, 1, 2, ...
fn sequence(shape: &[usize]) -> Tensor {
    let count = shape.iter().product::<usize>();
    Tensor::from_slice(shape, &(0..count as i32).collect::<Vec<_>>())
}

#[track_caller]
fn check(name: &str, attrs: Attrs, args: &[&Tensor], shape: &[usize], expected: &[i32]) {
    let actual = run(name, &attrs, args);
    assert_eq!(actual.shape(), shape, "{name}");
    assert_eq!(actual.as_slice::<i32>(), expected, "{name}");
}

fn ints<const N: usize>(values: [i64; N]) -> AttrValue {
    AttrValue::from(values)
}

fn index_vector(values: &[i64]) -> Tensor {
    Tensor::from_slice(&[values.len()], values)
}

#[test]
fn reshape_codes() {
    let shape =
        |dims: &str, newshape: &[i64]| inferred_type("reshape", &attrs([("newshape", newshape.into())]), &[f32s(dims)]);
    let fixed = [
        ("2,3,4", &[4, 0, 2][..], "4, 3, 2"),
        ("2,3,4", &[4, -1], "4, 6"),
        ("2,3,4", &[-2], "2, 3, 4"),
        ("2,3,4", &[2, -2, 1, 1], "2, 3, 4, 1, 1"),
        ("2,3,4", &[-3, 4], "6, 4"),
        ("2,3,4,5", &[-3, -3], "6, 20"),
        ("2,3,4", &[0, -3], "2, 12"),
        ("2,3,4", &[-4, 1, 2, -2], "1, 2, 3, 4"),
        ("2,3,4", &[2, -4, -1, 3, -2], "2, 1, 3, 4"),
        ("2,3,4", &[-1], "24"),
        ("0,3", &[0, 5], "0, 5"),
        ("0,3", &[0, -1], "0, 3"),
        ("n,8,7,7", &[0, -1], "n, 392"),
        ("n,8", &[-1, 8], "n, 8"),
        ("n,8", &[-1, 4], "2*n, 4"),
        ("n,9", &[-1, 4], "2*n + floordiv(n, 4), 4"),
        ("12*n,8", &[-4, -1, 12, 0], "n, 12, 8"),
        ("n,m", &[-1], "m*n"),
        ("n,?", &[-1], "?"),
        ("n,1,5", &[-1, 5], "n, 5"),
        ("n,?,12,64", &[0, 0, 768], "n, ?, 768"),
        ("n,?,768", &[0, 0, 12, -1], "n, ?, 12, 64"),
        ("n,m,4", &[-3, 4], "m*n, 4"),
        ("?,6", &[2, -1], "2, ?"),
    ];
    for (dims, newshape, expected) in fixed {
        assert_eq!(shape(dims, newshape).unwrap(), format!("Tensor[({expected}), float32]"), "{dims} to {newshape:?}");
    }
    let invalid = [
        ("2,3", &[4][..], "cannot be reshaped"),
        ("2,3", &[-1, 4], "cannot be reshaped"),
        ("2,3", &[-1, -1], "expected at most one inferred dimension"),
        ("2,3", &[0, 0, 0], "expected codes for an input of rank 2, found codes for rank 3"),
        ("2,3", &[-4, 2], "expected 2 integers after -4, found 1"),
        ("2,3", &[-4, 2, 2, 3], "expected factors of dimension 2, found 2 and 2"),
        ("2,3", &[-5], "expected a dimension or a code from -4 to -1, found -5"),
        ("n,4", &[0, 5], "cannot be reshaped"),
        ("2,3", &[i64::MAX, i64::MAX, i64::MAX], "the number of elements exceeds 2^64 - 1"),
    ];
    for (dims, newshape, expected) in invalid {
        let message = shape(dims, newshape).unwrap_err();
        assert!(message.contains(expected), "{message}");
    }
    let zero = attrs([("newshape", ints([0, -1])), ("allowzero", true.into())]);
    assert_eq!(inferred_type("reshape", &zero, &[f32s("3, 0")]).unwrap(), "Tensor[(0, 0), float32]");
    check("reshape", attrs([("newshape", ints([3, -1]))]), &[&sequence(&[2, 3])], &[3, 2], &[0, 1, 2, 3, 4, 5]);
    check("reshape_like", Attrs::none(), &[&sequence(&[4]), &sequence(&[2, 2])], &[2, 2], &[0, 1, 2, 3]);
    assert!(error_of("reshape_like", &Attrs::none(), &[&sequence(&[4]), &sequence(&[3])]).contains("element count 4"));
    check("dyn.reshape", Attrs::none(), &[&sequence(&[4]), &index_vector(&[2, -1])], &[2, 2], &[0, 1, 2, 3]);
    let unknown_shape = inferred_type("dyn.reshape", &Attrs::none(), &[f32s("4"), Type::tensor(DType::I64, &[3])]);
    assert_eq!(unknown_shape.unwrap(), "Tensor[(?, ?, ?), float32]");
    let scalar_shape = inferred_type("dyn.reshape", &Attrs::none(), &[f32s("4"), Type::tensor(DType::I64, &[0])]);
    assert!(scalar_shape.unwrap_err().contains("Tensor[(4), float32] cannot be reshaped to []"));
    assert!(
        inferred_type("dyn.reshape", &Attrs::none(), &[f32s("4"), f32s("3")])
            .unwrap_err()
            .contains("expected integers")
    );
}

#[test]
fn ranks_change() {
    let none = Attrs::none();
    check("nn.batch_flatten", none.clone(), &[&sequence(&[1, 2, 2])], &[1, 4], &[0, 1, 2, 3]);
    assert_eq!(inferred_type("nn.batch_flatten", &none, &[f32s("n, 2, 3")]).unwrap(), "Tensor[(n, 6), float32]");
    let symbolic = [f32s("n, 4, h, w + 1")];
    let expected = "Tensor[(n, 4*h*w + 4*h), float32]";
    assert_eq!(inferred_type("nn.batch_flatten", &none, &symbolic).unwrap(), expected);
    assert!(inferred_type("nn.batch_flatten", &none, &[f32s("")]).unwrap_err().contains("scalar"));
    let expand = |axis: i64, count: i64| attrs([("axis", axis.into()), ("num_newaxis", count.into())]);
    let dims = |a: &Attrs| inferred_type("expand_dims", a, &[f32s("2, n")]);
    assert_eq!(dims(&expand(0, 2)).unwrap(), "Tensor[(1, 1, 2, n), float32]");
    assert_eq!(dims(&expand(-1, 1)).unwrap(), "Tensor[(2, n, 1), float32]");
    assert!(dims(&expand(3, 1)).unwrap_err().contains("axis 3"));
    assert!(dims(&expand(0, 1 << 40)).unwrap_err().contains("num_newaxis: expected an integer"));
    check("expand_dims", expand(1, 1), &[&sequence(&[2])], &[2, 1], &[0, 1]);
    check("squeeze", none.clone(), &[&sequence(&[1, 2, 1])], &[2], &[0, 1]);
    let axis = |a: AttrValue| attrs([("axis", a)]);
    assert_eq!(inferred_type("squeeze", &axis(ints([0, -1])), &[f32s("?, 2, 1")]).unwrap(), "Tensor[(2), float32]");
    assert!(
        inferred_type("squeeze", &axis(ints([1])), &[f32s("1, 2")])
            .unwrap_err()
            .contains("axis 1: expected dimension 1, found 2")
    );
    assert!(
        inferred_type("squeeze", &none, &[f32s("?, 2")])
            .unwrap_err()
            .contains("expected known dimensions because attribute axis is None")
    );
}

#[test]
fn elements_move() {
    let a = sequence(&[2, 3, 4]);
    let expected = [0, 4, 8, 12, 16, 20, 1, 5, 9, 13, 17, 21, 2, 6, 10, 14, 18, 22, 3, 7, 11, 15, 19, 23];
    check("transpose", attrs([("axes", ints([2, 0, 1]))]), &[&a], &[4, 2, 3], &expected);
    check("transpose", attrs([("axes", ints([-1, 0, 1]))]), &[&a], &[4, 2, 3], &expected);
    check("transpose", Attrs::none(), &[&sequence(&[2, 3])], &[3, 2], &[0, 3, 1, 4, 2, 5]);
    assert!(error_of("transpose", &attrs([("axes", ints([0, 0, 1]))]), &[&a]).contains("expected a permutation"));
    let expected = [8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3, 20, 21, 22, 23, 16, 17, 18, 19, 12, 13, 14, 15];
    check("reverse", attrs([("axis", (-2).into())]), &[&a], &[2, 3, 4], &expected);
}

#[test]
fn layouts() {
    let transform_to = |src: &str, dst: &str| attrs([("src_layout", src.into()), ("dst_layout", dst.into())]);
    let n = sequence(&[2, 8, 1, 2]);
    let expected = [
        0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15, 16, 18, 20, 22, 17, 19, 21, 23, 24, 26, 28, 30, 25, 27,
        29, 31,
    ];
    check("layout_transform", transform_to("NCHW", "NCHW4c"), &[&n], &[2, 2, 1, 2, 4], &expected);
    let blocked = run("layout_transform", &transform_to("NCHW", "NCHW4c"), &[&n]);
    assert_eq!(run("layout_transform", &transform_to("NCHW4c", "NCHW"), &[&blocked]), n);
    let reblocked = run("layout_transform", &transform_to("NCHW4c", "NCHW2c"), &[&blocked]);
    assert_eq!(reblocked, run("layout_transform", &transform_to("NCHW", "NCHW2c"), &[&n]));
    let nhwc = run("layout_transform", &transform_to("NCHW", "NHWC"), &[&n]);
    assert_eq!(nhwc, run("transpose", &attrs([("axes", ints([0, 2, 3, 1]))]), &[&n]));
    let weights = sequence(&[4, 4, 1, 1]);
    let expected = [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15];
    check("layout_transform", transform_to("OIHW", "OIHW2i2o"), &[&weights], &[2, 2, 1, 1, 2, 2], &expected);
    let ty =
        |src: &str, dst: &str, dims: &str| inferred_type("layout_transform", &transform_to(src, dst), &[f32s(dims)]);
    assert_eq!(ty("NCHW", "NCHW8c", "n, 16, ?, 7").unwrap(), "Tensor[(n, 2, ?, 7, 8), float32]");
    assert!(ty("NCHW", "NCHW8c", "1, 3, 7, 7").unwrap_err().contains("expected a multiple of 8"));
    assert!(ty("NCHW", "NCHW8", "1, 8, 7, 7").unwrap_err().contains("expected a layout"));
    assert!(ty("NCHW", "NCH", "1, 8, 7, 7").unwrap_err().contains("expected layouts with the same axes"));
    assert!(ty("NCHW", "NHWC", "1, 8, 7").unwrap_err().contains("dimensions for layout"));
    assert!(ty("NCHW99999999999999999999c", "NCHW", "1, 8, 7, 7, 1").unwrap_err().contains("expected a layout"));
}

#[test]
fn concatenations() {
    let (a, b) = (sequence(&[2, 2]), sequence(&[2, 1]));
    let tuple = Value::Tuple(vec![a.clone(), b.clone()]);
    let actual = call("concatenate", &attrs([("axis", (-1).into())]), std::slice::from_ref(&tuple)).unwrap().remove(0);
    assert_eq!((actual.shape(), actual.as_slice::<i32>()), (&[2usize, 3][..], &[0, 1, 0, 2, 3, 1][..]));
    let error = call("concatenate", &Attrs::none(), &[tuple]).unwrap_err();
    assert_eq!(error, "concatenate: axis 1: expected equal dimensions, found 2 and 1");
    let pair = Value::Tuple(vec![a.clone(), a.clone()]);
    let actual = call("stack", &attrs([("axis", 1.into())]), &[pair]).unwrap().remove(0);
    assert_eq!((actual.shape(), actual.as_slice::<i32>()), (&[2usize, 2, 2][..], &[0, 1, 0, 1, 2, 3, 2, 3][..]));
    assert!(call("concatenate", &Attrs::none(), &[Value::Tuple(vec![])]).unwrap_err().contains("found an empty tuple"));
    assert!(call("concatenate", &Attrs::none(), &[Value::Tensor(a)]).unwrap_err().contains("a tuple of tensors"));
    let fields = Type::tuple([f32s("n, 3"), f32s("2, ?")]);
    assert_eq!(inferred_type("concatenate", &Attrs::none(), &[fields]).unwrap(), "Tensor[(n + 2, 3), float32]");
}

#[test]
fn splits() {
    let a = Value::Tensor(sequence(&[2, 4]));
    let split = |value: AttrValue| attrs([("indices_or_sections", value), ("axis", 1.into())]);
    let parts = call("split", &split(2.into()), std::slice::from_ref(&a)).unwrap();
    let values: Vec<&[i32]> = parts.iter().map(|p| p.as_slice::<i32>()).collect();
    assert_eq!(values, [[0, 1, 4, 5], [2, 3, 6, 7]]);
    let parts = call("split", &split(ints([1, 1])), &[a]).unwrap();
    let values: Vec<&[i32]> = parts.iter().map(|p| p.as_slice::<i32>()).collect();
    assert_eq!(values, [&[0, 4][..], &[], &[1, 2, 3, 5, 6, 7]]);
    assert_eq!(
        inferred_type("split", &split(ints([2])), &[f32s("n, ?")]).unwrap(),
        "(Tensor[(n, 2), float32], Tensor[(n, ?), float32])"
    );
    assert!(inferred_type("split", &split(3.into()), &[f32s("2, 4")]).unwrap_err().contains("3 equal parts"));
    assert!(
        inferred_type("split", &split(ints([3, 2])), &[f32s("2, 4")])
            .unwrap_err()
            .contains("expected ascending indices")
    );
    assert!(
        inferred_type("split", &split(0.into()), &[f32s("2, 4")]).unwrap_err().contains("from 1 to 65536, found 0")
    );
    assert!(inferred_type("split", &split(i64::MAX.into()), &[f32s("2, ?")]).unwrap_err().contains("sections"));
}

#[test]
fn slices() {
    let a = sequence(&[2, 3, 4]);
    let slice = |begin: &[i64], end: &[i64], strides: &[i64]| {
        attrs([("begin", begin.into()), ("end", end.into()), ("strides", strides.into())])
    };
    let axis_end = i64::MAX;
    check(
        "strided_slice",
        slice(&[0, 2, 1], &[axis_end, 0, axis_end], &[1, -1, 2]),
        &[&a],
        &[2, 2, 2],
        &[9, 11, 5, 7, 21, 23, 17, 19],
    );
    check(
        "strided_slice",
        slice(&[-1, 0, -100], &[axis_end, -1, 3], &[1]),
        &[&a],
        &[1, 2, 3],
        &[12, 13, 14, 16, 17, 18],
    );
    let backward_slice = slice(&[axis_end, axis_end, 3], &[i64::MIN, i64::MIN, 0], &[-1, -2, -2]);
    check("strided_slice", backward_slice.clone(), &[&a], &[2, 2, 2], &[23, 21, 15, 13, 11, 9, 3, 1]);
    let axes = slice(&[1], &[2], &[1]).with("axes", [-1]);
    check("strided_slice", axes.clone(), &[&a], &[2, 3, 1], &[1, 5, 9, 13, 17, 21]);
    let sizes = slice(&[0, 1], &[-1, 1], &[1]).with("slice_mode", "size");
    check("strided_slice", sizes, &[&a], &[2, 1, 4], &[4, 5, 6, 7, 16, 17, 18, 19]);
    check("strided_slice", slice(&[2], &[1], &[1]), &[&a], &[0, 3, 4], &[]);
    assert!(error_of("strided_slice", &slice(&[0], &[1], &[0]), &[&a]).contains("expected a nonzero step, found 0"));
    assert!(error_of("strided_slice", &axes.with("axes", [3]), &[&a]).contains("found [3]"));
    assert!(
        error_of("strided_slice", &slice(&[0; 4], &[1; 4], &[1]), &[&a]).contains("expected a length <= 3, found 4")
    );
    let ty = |dims: &str, a: &Attrs| inferred_type("strided_slice", a, &[f32s(dims)]).unwrap();
    assert_eq!(ty("n, 8", &slice(&[0, 1], &[axis_end, 4], &[1])), "Tensor[(n, 3), float32]");
    assert_eq!(ty("n", &slice(&[1], &[axis_end], &[1])), "Tensor[(max(0, n - 1)), float32]");
    assert_eq!(ty("n", &slice(&[-1], &[i64::MIN], &[-1])), "Tensor[(n), float32]");

    let bounds = [index_vector(&[1]), index_vector(&[2]), index_vector(&[1])];
    let none = Attrs::none();
    check(
        "dyn.strided_slice",
        none.clone(),
        &[&sequence(&[3, 2]), &bounds[0], &bounds[1], &bounds[2]],
        &[1, 2],
        &[2, 3],
    );
    let last_axis = [&sequence(&[3, 2]), &bounds[0], &bounds[1], &bounds[2], &index_vector(&[-1])];
    check("dyn.strided_slice", none.clone(), &last_axis, &[3, 1], &[1, 3, 5]);
    let vector = Type::tensor(DType::I64, &[1]);
    let five = [f32s("3, 4"), vector.clone(), vector.clone(), vector.clone(), vector.clone()];
    assert_eq!(inferred_type("dyn.strided_slice", &none, &five).unwrap(), "Tensor[(?, ?), float32]");
    let args = [f32s("3, 4"), vector.clone(), vector.clone(), vector];
    assert_eq!(inferred_type("dyn.strided_slice", &none, &args).unwrap(), "Tensor[(?, 4), float32]");
    assert_eq!(
        inferred_type("dyn.strided_slice", &attrs([("axes", ints([1]))]), &args).unwrap(),
        "Tensor[(3, ?), float32]"
    );

    check("slice_like", none.clone(), &[&sequence(&[2, 3]), &sequence(&[1, 2])], &[1, 2], &[0, 1]);
    check(
        "slice_like",
        attrs([("axes", ints([1]))]),
        &[&sequence(&[2, 3]), &sequence(&[1, 2])],
        &[2, 2],
        &[0, 1, 3, 4],
    );
    assert!(
        error_of("slice_like", &none, &[&sequence(&[2]), &sequence(&[3])])
            .contains("expected a dimension >= 3, found 2")
    );
}

#[test]
fn repeats() {
    let a = Tensor::from_slice(&[2, 2], &[1i32, 2, 3, 4]);
    let shape_attrs = |shape: &[i64]| attrs([("shape", shape.into())]);
    check("broadcast_to", shape_attrs(&[2, 3, 1]), &[&sequence(&[3, 1])], &[2, 3, 1], &[0, 1, 2, 0, 1, 2]);
    check("broadcast_to_like", Attrs::none(), &[&sequence(&[1, 2]), &a], &[2, 2], &[0, 1, 0, 1]);
    check("dyn.broadcast_to", Attrs::none(), &[&sequence(&[2]), &index_vector(&[2, 2])], &[2, 2], &[0, 1, 0, 1]);
    assert!(
        error_of("broadcast_to", &shape_attrs(&[3]), &[&sequence(&[2])])
            .contains("expected a dimension of 1 or 3, found 2")
    );
    assert!(
        error_of("broadcast_to", &shape_attrs(&[2]), &[&sequence(&[1, 2])])
            .contains("expected a rank of at most 1, found")
    );
    assert!(error_of("broadcast_to", &shape_attrs(&[-1]), &[&sequence(&[2])]).contains("expected dimensions >= 0"));
    let reps = |reps: &[i64]| attrs([("reps", reps.into())]);
    check("tile", reps(&[2, 1, 2]), &[&a], &[2, 2, 4], &[1, 2, 1, 2, 3, 4, 3, 4, 1, 2, 1, 2, 3, 4, 3, 4]);
    check("tile", reps(&[2]), &[&sequence(&[1, 2, 2])], &[1, 2, 4], &[0, 1, 0, 1, 2, 3, 2, 3]);
    check("dyn.tile", Attrs::none(), &[&sequence(&[2]), &index_vector(&[2])], &[4], &[0, 1, 0, 1]);
    assert!(error_of("tile", &reps(&[i64::MAX]), &[&sequence(&[4])]).contains("expected a result dimension < 2^64"));
    let repeat = |n: i64, axis: i64| attrs([("repeats", n.into()), ("axis", axis.into())]);
    check("repeat", repeat(2, -1), &[&a], &[2, 4], &[1, 1, 2, 2, 3, 3, 4, 4]);
    check("repeat", repeat(2, 0), &[&a], &[4, 2], &[1, 2, 1, 2, 3, 4, 3, 4]);
    check("repeat", repeat(0, 0), &[&a], &[0, 2], &[]);
    assert_eq!(inferred_type("tile", &reps(&[2, 1]), &[f32s("3, n")]).unwrap(), "Tensor[(6, n), float32]");
}

#[test]
fn dimensions_known_at_run_time() {
    let scalar_index = |n: i64| Tensor::from_slice(&[], &[n]);
    let two_axes = attrs([("num_newaxis", 2.into())]);
    check("dyn.expand_dims", two_axes.clone(), &[&sequence(&[2, 2]), &scalar_index(1)], &[2, 1, 1, 2], &[0, 1, 2, 3]);
    check("dyn.expand_dims", Attrs::none(), &[&sequence(&[3]), &index_vector(&[-1])], &[3, 1], &[0, 1, 2]);
    let positions = index_vector(&[-1, 0]);
    check("dyn.expand_dims", Attrs::none(), &[&sequence(&[3]), &positions], &[1, 3, 1], &[0, 1, 2]);
    let duplicate_error = error_of("dyn.expand_dims", &Attrs::none(), &[&sequence(&[3]), &index_vector(&[0, -3])]);
    assert!(duplicate_error.contains("expected distinct axes"), "{duplicate_error}");
    check("dyn.squeeze", Attrs::none(), &[&sequence(&[1, 2, 1]), &index_vector(&[0, -1])], &[2], &[0, 1]);
    check("dyn.squeeze", Attrs::none(), &[&sequence(&[1, 2, 1]), &index_vector(&[2])], &[1, 2], &[0, 1]);
    assert!(
        error_of("dyn.squeeze", &Attrs::none(), &[&sequence(&[1, 2]), &index_vector(&[1])])
            .contains("expected dimension 1, found 2")
    );
    let vector = |n: usize| Type::tensor(DType::I64, &[n]);
    assert_eq!(
        inferred_type("dyn.squeeze", &Attrs::none(), &[f32s("1, 2, 1"), vector(2)]).unwrap(),
        "Tensor[(?), float32]"
    );
    assert!(inferred_type("dyn.squeeze", &Attrs::none(), &[f32s("1"), vector(2)]).unwrap_err().contains("found 2"));
    let scalar = Type::tensor(DType::I64, &[]);
    assert_eq!(
        inferred_type("dyn.expand_dims", &two_axes, &[f32s("7"), scalar]).unwrap(),
        "Tensor[(?, ?, ?), float32]"
    );
}

#[test]
fn padding_and_sizes_known_at_run_time() {
    let zero = Tensor::from_slice(&[], &[9i32]);
    let widths = Tensor::from_slice(&[2, 2], &[0i64, 1, 1, 0]);
    check("dyn.nn.pad", Attrs::none(), &[&sequence(&[1, 2]), &widths, &zero], &[2, 3], &[9, 0, 1, 9, 9, 9]);
    let edge_mode = attrs([("pad_mode", "edge".into())]);
    check("dyn.nn.pad", edge_mode.clone(), &[&sequence(&[1, 2]), &widths, &zero], &[2, 3], &[0, 0, 1, 0, 0, 1]);
    let unknown_widths = [f32s("4, 5"), Type::tensor(DType::I64, &[2, 2]), f32s("")];
    assert_eq!(inferred_type("dyn.nn.pad", &edge_mode, &unknown_widths).unwrap(), "Tensor[(?, ?), float32]");
    let wrong_widths = [f32s("4, 5"), Type::tensor(DType::I64, &[3, 2]), f32s("")];
    assert!(
        inferred_type("dyn.nn.pad", &edge_mode, &wrong_widths)
            .unwrap_err()
            .contains("expected integers of shape (2, 2)")
    );

    let nearest_attrs =
        attrs([("method", "nearest_neighbor".into()), ("coordinate_transformation_mode", "asymmetric".into())]);
    let roi = Tensor::from_slice(&[4], &[0f32, 0.0, 1.0, 1.0]);
    let data = sequence(&[1, 1, 2, 2]);
    let size = index_vector(&[2, 4]);
    check("dyn.image.resize2d", nearest_attrs.clone(), &[&data, &size, &roi], &[1, 1, 2, 4], &[0, 0, 1, 1, 2, 2, 3, 3]);
    let crop_attrs = attrs([
        ("method", "nearest_neighbor".into()),
        ("rounding_method", "round".into()),
        ("coordinate_transformation_mode", "tf_crop_and_resize".into()),
    ]);
    let lower_roi = Tensor::from_slice(&[4], &[1f32, 0.0, 1.0, 1.0]);
    check("dyn.image.resize2d", crop_attrs, &[&data, &index_vector(&[1, 2]), &lower_roi], &[1, 1, 1, 2], &[2, 3]);
    let types = |n: usize| [f32s("1, 3, 8, 8"), Type::tensor(DType::I64, &[n]), f32s("4")];
    assert_eq!(
        inferred_type("dyn.image.resize2d", &nearest_attrs, &types(2)).unwrap(),
        "Tensor[(1, 3, ?, ?), float32]"
    );
    assert!(
        inferred_type("dyn.image.resize2d", &nearest_attrs, &types(3)).unwrap_err().contains("expected a vector of 2")
    );
    let scale = |v: f32| Tensor::from_slice(&[], &[v]);
    let (unit_scale, double_scale) = (scale(1.0), scale(2.0));
    check(
        "dyn.nn.upsampling",
        Attrs::none(),
        &[&data, &double_scale, &unit_scale],
        &[1, 1, 4, 2],
        &[0, 1, 0, 1, 2, 3, 2, 3],
    );
    assert!(
        error_of("dyn.nn.upsampling", &Attrs::none(), &[&data, &scale(0.0), &unit_scale])
            .contains("scale_h: expected a scale")
    );
}

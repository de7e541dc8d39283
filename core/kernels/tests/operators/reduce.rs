//! Tests of reductions and sorting. The expected values are numpy's.

use super::{assert_values, attrs, call, error_of, f32s, inferred_type, run, vector};
use byoc_ir::ir::{AttrValue, Attrs};
use byoc_ir::op::Value;
use byoc_ir::tensor::{DType, Tensor};

const INF: f64 = f64::INFINITY;
const NAN: f64 = f64::NAN;

fn data() -> Tensor {
    Tensor::from_slice(&[2, 2, 3], &[1.5f32, -2.0, 3.0, 4.0, 0.25, -6.0, 7.0, 8.0, -9.0, 0.5, 11.0, 12.0])
}

fn axis_attrs(axis: Option<&[i64]>) -> Attrs {
    axis.map_or(Attrs::none(), |a| attrs([("axis", a.into())]))
}

#[test]
fn reductions_match_numpy() {
    type Row<'a> = (&'a str, Option<&'a [i64]>, &'a [f64]);
    let table: &[Row<'_>] = &[
        ("sum", None, &[30.25]),
        ("sum", Some(&[]), &[30.25]),
        ("mean", None, &[2.5208333333333335]),
        ("prod", None, &[-1796256.0]),
        ("max", None, &[12.0]),
        ("min", None, &[-9.0]),
        ("argmax", None, &[11.0]),
        ("argmin", None, &[8.0]),
        ("sum", Some(&[0]), &[8.5, 6.0, -6.0, 4.5, 11.25, 6.0]),
        ("max", Some(&[0]), &[7.0, 8.0, 3.0, 4.0, 11.0, 12.0]),
        ("argmax", Some(&[0]), &[1.0, 1.0, 0.0, 0.0, 1.0, 1.0]),
        ("argmin", Some(&[0]), &[0.0, 0.0, 1.0, 1.0, 0.0, 0.0]),
        ("sum", Some(&[0, 2]), &[8.5, 21.75]),
        ("mean", Some(&[0, -1]), &[1.4166666666666667, 3.625]),
        ("prod", Some(&[2, 0]), &[4536.0, -396.0]),
        ("min", Some(&[0, 2]), &[-9.0, -6.0]),
        ("mean", Some(&[-1]), &[0.8333333333333334, -0.5833333333333334, 2.0, 7.833333333333333]),
        ("argmax", Some(&[-1]), &[2.0, 0.0, 1.0, 2.0]),
        ("argmin", Some(&[-1]), &[1.0, 2.0, 2.0, 0.0]),
    ];
    for (name, axis, expected) in table {
        assert_values(&run(name, &axis_attrs(*axis), &[&data()]), expected);
    }
    let exclude_attrs = attrs([("axis", AttrValue::from([1])), ("exclude", true.into()), ("keepdims", true.into())]);
    let actual = run("sum", &exclude_attrs, &[&data()]);
    assert_eq!(actual.shape(), [1, 2, 1]);
    assert_values(&actual, &[8.5, 21.75]);
}

#[test]
fn variance_of_a_given_mean() {
    let last_axis = attrs([("axis", AttrValue::from([-1]))]);
    let mean = run("mean", &last_axis.with("keepdims", true), &[&data()]);
    let expected = [4.388888888888889, 17.01388888888889, 60.666666666666664, 27.055555555555554];
    assert_values(&run("variance", &last_axis, &[&data(), &mean]), &expected);
    let unbiased_variances: Vec<f64> = expected.iter().map(|v| v * 1.5).collect();
    assert_values(&run("variance", &last_axis.with("unbiased", true), &[&data(), &mean]), &unbiased_variances);
    assert!(
        error_of("variance", &last_axis, &[&data(), &vector(&[1.0, 2.0])])
            .contains("expected a shape that broadcasts to")
    );
}

#[test]
fn reductions_of_special_values() {
    let no_attrs = Attrs::none();
    let x = vector(&[1.0, f32::NAN, 3.0]);
    for name in ["max", "min", "sum"] {
        assert_values(&run(name, &no_attrs, &[&x]), &[NAN]);
    }
    for name in ["argmax", "argmin"] {
        assert_values(&run(name, &no_attrs, &[&x]), &[1.0]);
        let error = error_of(name, &no_attrs, &[&vector(&[])]);
        assert!(error.contains("expected at least one element in the reduced axes, found none"));
    }
    for (name, expected) in [("sum", 0.0), ("prod", 1.0), ("mean", NAN), ("max", -INF), ("min", INF)] {
        assert_values(&run(name, &no_attrs, &[&vector(&[])]), &[expected]);
    }
    let ties = vector(&[2.0, 5.0, 5.0, 1.0, 1.0]);
    assert_values(&run("argmax", &attrs([("select_last_index", true.into())]), &[&ties]), &[2.0]);
    assert_values(&run("argmin", &no_attrs, &[&ties]), &[3.0]);
    let overflowing_terms = Tensor::from_slice(&[2], &[i64::MAX, 2]);
    assert_eq!(run("sum", &no_attrs, &[&overflowing_terms]).as_slice::<i64>(), [i64::MIN + 1]);
    assert_eq!(run("max", &no_attrs, &[&Tensor::zeros(DType::I8, &[0]).unwrap()]).as_slice::<i8>(), [i8::MIN]);
    assert_eq!(run("mean", &no_attrs, &[&Tensor::from_slice(&[2], &[-3i32, 0])]).as_slice::<i32>(), [-1]);
    let ones = Tensor::from_slice(&[1 << 12], &vec![1f32; 1 << 12]);
    let products = run("multiply", &no_attrs, &[&ones, &Tensor::scalar(16777217.0f32)]);
    assert_values(&run("sum", &no_attrs, &[&products]), &[16777216.0 * 4096.0]);
}

#[test]
fn truth() {
    let flags = Tensor::from_bools(&[2, 2], &[true, true, true, false]);
    let rows = attrs([("axis", AttrValue::from([1]))]);
    assert_eq!(run("all", &rows, &[&flags]), Tensor::from_bools(&[2], &[true, false]));
    assert_eq!(run("any", &Attrs::none(), &[&flags]), Tensor::from_bools(&[], &[true]));
    assert_eq!(
        run("any", &Attrs::none(), &[&Tensor::zeros(DType::Bool, &[0]).unwrap()]),
        Tensor::from_bools(&[], &[false])
    );
}

#[test]
fn types_of_reductions() {
    let axis = |a: &[i64]| attrs([("axis", a.into())]);
    assert_eq!(inferred_type("sum", &axis(&[1]), &[f32s("n, 3, ?")]).unwrap(), "Tensor[(n, ?), float32]");
    assert_eq!(
        inferred_type("argmax", &axis(&[-1]).with("keepdims", true), &[f32s("n, 3")]).unwrap(),
        "Tensor[(n, 1), int32]"
    );
    assert_eq!(inferred_type("all", &Attrs::none(), &[f32s("n, 3")]).unwrap(), "bool");
    assert!(inferred_type("sum", &axis(&[3]), &[f32s("2, 3")]).unwrap_err().contains("axis [3]"));
}

#[test]
fn axes_computed_during_the_run() {
    let axes = |axes: &[i64]| Tensor::from_slice(&[axes.len()], axes);
    let (no_attrs, keepdims) = (Attrs::none(), attrs([("keepdims", true.into())]));
    let actual = run("dyn.sum", &keepdims, &[&data(), &axes(&[-1, 0])]);
    assert_eq!(actual.shape(), [1, 2, 1]);
    assert_values(&actual, &[8.5, 21.75]);
    assert_values(&run("dyn.max", &no_attrs, &[&data(), &axes(&[1])]), &[4.0, 0.25, 3.0, 7.0, 11.0, 12.0]);
    assert_values(&run("dyn.mean", &no_attrs, &[&data(), &axes(&[])]), &[2.5208333333333335]);
    assert!(error_of("dyn.min", &no_attrs, &[&data(), &axes(&[3])]).contains("axis [3] is out of range"));
    let vector = |n: usize| byoc_ir::ir::Type::tensor(DType::I64, &[n]);
    assert_eq!(inferred_type("dyn.prod", &no_attrs, &[f32s("n, 3"), vector(1)]).unwrap(), "Tensor[(?), float32]");
    assert_eq!(inferred_type("dyn.prod", &keepdims, &[f32s("n, 3"), vector(1)]).unwrap(), "Tensor[(?, ?), float32]");
    assert!(inferred_type("dyn.prod", &no_attrs, &[f32s("3"), vector(2)]).unwrap_err().contains("a length <= 1 for"));

    let (square, first) = (Tensor::from_slice(&[2, 2], &[1i32, 2, 3, 4]), Tensor::scalar(0i64));
    assert_eq!(run("dyn.cumsum", &no_attrs, &[&square, &first]).as_slice::<i32>(), [1, 2, 4, 6]);
    let exclusive_attrs = attrs([("exclusive", true.into())]);
    assert_eq!(run("dyn.cumprod", &exclusive_attrs, &[&square, &axes(&[-1])]).as_slice::<i32>(), [1, 1, 1, 3]);
    assert_eq!(run("dyn.reverse", &no_attrs, &[&square, &first]).as_slice::<i32>(), [3, 4, 1, 2]);
    assert_eq!(inferred_type("dyn.cumsum", &no_attrs, &[f32s("n, 3"), vector(1)]).unwrap(), "Tensor[(n, 3), float32]");
    assert!(
        inferred_type("dyn.cumsum", &no_attrs, &[f32s("n, 3"), vector(2)])
            .unwrap_err()
            .contains("expected one integer")
    );
    let scalar = byoc_ir::ir::Type::tensor(DType::F32, &[]);
    let scalar_error = inferred_type("dyn.cumsum", &no_attrs, &[scalar, vector(1)]).unwrap_err();
    assert!(scalar_error.contains("expected rank 1 or more"));
}

#[test]
fn orderings() {
    let t = Tensor::from_slice(&[2, 4], &[3f32, 1.0, 2.0, 2.0, 5.0, 5.0, -1.0, 0.0]);
    let no_attrs = Attrs::none();
    assert_eq!(run("argsort", &no_attrs, &[&t]).as_slice::<i32>(), [1, 2, 3, 0, 2, 3, 0, 1]);
    assert_eq!(run("argsort", &attrs([("axis", 0.into())]), &[&t]).as_slice::<i32>(), [0, 0, 1, 1, 1, 1, 0, 0]);
    assert_values(
        &run("sort", &attrs([("is_ascend", false.into())]), &[&t]),
        &[3.0, 2.0, 2.0, 1.0, 5.0, 5.0, 0.0, -1.0],
    );
    assert_values(&run("sort", &no_attrs, &[&vector(&[f32::NAN, 1.0, -1.0])]), &[-1.0, 1.0, NAN]);
    let top_two = attrs([("k", 2.into()), ("dtype", "int64".into())]);
    let parts = call("topk", &top_two, &[Value::Tensor(t.clone())]).unwrap();
    assert_eq!(parts[0].as_slice::<f32>(), [3.0, 2.0, 5.0, 5.0]);
    assert_eq!(parts[1].as_slice::<i64>(), [0, 2, 0, 1]);
    let ascending_attrs = attrs([("axis", 0.into()), ("is_ascend", true.into()), ("ret_type", "values".into())]);
    assert_eq!(run("topk", &ascending_attrs, &[&t]).as_slice::<f32>(), [3.0, 1.0, -1.0, 0.0]);
    let indices = attrs([("ret_type", "indices".into()), ("k", 0.into())]);
    assert_eq!(run("topk", &indices, &[&t]).as_slice::<i32>(), [0, 2, 3, 1, 0, 1, 3, 2]);
    let k = Tensor::from_slice(&[1], &[1i64]);
    assert_eq!(run("dyn.topk", &attrs([("ret_type", "values".into())]), &[&t, &k]).as_slice::<f32>(), [3.0, 5.0]);
    assert!(error_of("topk", &attrs([("k", 5.into())]), &[&t]).contains("k: expected at most 4, found 5"));
    assert_eq!(
        inferred_type("dyn.topk", &no_attrs, &[f32s("n, 4"), byoc_ir::ir::Type::tensor(DType::I64, &[1])]).unwrap(),
        "(Tensor[(n, ?), float32], Tensor[(n, ?), int32])"
    );
}

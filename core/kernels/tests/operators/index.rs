//! Tests of operators that create tensors, or that read or write at computed positions.

use super::{assert_values, attrs, error_of, f32s, inferred_type, run, vector};
use byoc_ir::ir::{AttrValue, Attrs, Type};
use byoc_ir::op;
use byoc_ir::tensor::{DType, Tensor};

fn ints(shape: &[usize], values: &[i64]) -> Tensor {
    Tensor::from_slice(shape, values)
}

fn sequence(shape: &[usize]) -> Tensor {
    ints(shape, &(0..shape.iter().product::<usize>() as i64).collect::<Vec<_>>())
}

#[test]
fn creation() {
    let none = Attrs::none();
    let shape = attrs([("shape", AttrValue::from([2, 1]))]);
    assert_eq!(run("zeros", &shape, &[]), Tensor::zeros(DType::F32, &[2, 1]).unwrap());
    assert_eq!(run("ones", &shape.with("dtype", DType::I8), &[]).as_slice::<i8>(), [1, 1]);
    assert_eq!(run("full", &shape, &[&Tensor::scalar(2.5f32)]).as_slice::<f32>(), [2.5, 2.5]);
    assert_eq!(run("full", &shape.with("dtype", DType::I64), &[&Tensor::scalar(2.5f32)]).as_slice::<i64>(), [2, 2]);
    let booleans = run("full", &shape.with("dtype", DType::Bool), &[&Tensor::scalar(7i32)]);
    assert_eq!(booleans, Tensor::from_bools(&[2, 1], &[true, true]));
    let x = vector(&[3.0, 4.0]);
    assert_eq!(run("zeros_like", &none, &[&x]).as_slice::<f32>(), [0.0, 0.0]);
    assert_eq!(run("ones_like", &none, &[&x]).as_slice::<f32>(), [1.0, 1.0]);
    assert_eq!(run("full_like", &none, &[&x, &Tensor::scalar(9i32)]).as_slice::<f32>(), [9.0, 9.0]);
    let pair = ints(&[1], &[2]);
    assert_eq!(run("dyn.zeros", &none, &[&pair]).as_slice::<f32>(), [0.0, 0.0]);
    assert_eq!(run("dyn.ones", &none, &[&pair]).as_slice::<f32>(), [1.0, 1.0]);
    assert_eq!(run("dyn.full", &none, &[&Tensor::scalar(5i64), &pair]).as_slice::<i64>(), [5, 5]);
    assert_eq!(
        inferred_type("dyn.zeros", &none, &[Type::tensor(DType::I64, &[2])]).unwrap(),
        "Tensor[(?, ?), float32]"
    );
    assert!(error_of("full", &shape, &[&x]).contains("expected a scalar"));
    assert!(error_of("zeros", &attrs([("shape", AttrValue::from([-1]))]), &[]).contains("expected dimensions >= 0"));
    assert!(error_of("zeros", &attrs([("shape", AttrValue::from([1 << 40, 1 << 40]))]), &[]).contains("at most"));
    let data = sequence(&[2, 3]);
    assert_eq!(run("shape_of", &none, &[&data]).as_slice::<i32>(), [2, 3]);
    assert_eq!(run("ndarray_size", &attrs([("dtype", DType::I64.into())]), &[&data]).as_slice::<i64>(), [6]);
}

#[test]
fn ranges() {
    let arange = |a: f32, b: f32, step: f32| {
        run("arange", &Attrs::none(), &[&Tensor::scalar(a), &Tensor::scalar(b), &Tensor::scalar(step)])
    };
    assert_values(&arange(1.0, 2.5, 0.5), &[1.0, 1.5, 2.0]);
    assert_values(&arange(1.0, -1.5, -1.0), &[1.0, 0.0, -1.0]);
    assert_values(&arange(1.0, 0.0, 1.0), &[]);
    let as_int64 = attrs([("dtype", DType::I64.into())]);
    let i = |v: i64| Tensor::scalar(v);
    assert_eq!(run("arange", &as_int64, &[&i(10), &i(0), &i(-3)]).as_slice::<i64>(), [10, 7, 4, 1]);
    assert_eq!(run("arange", &as_int64, &[&i(0), &i(6), &i(3)]).as_slice::<i64>(), [0, 3]);
    assert!(error_of("arange", &as_int64, &[&i(0), &i(6), &i(0)]).contains("in steps of 0"));
    assert!(error_of("arange", &as_int64, &[&i(0), &i(i64::MAX), &i(1)]).contains("at most 2^40"));
    let scalar = Type::scalar(DType::I64);
    let args = [scalar.clone(), scalar.clone(), scalar];
    assert_eq!(inferred_type("arange", &as_int64, &args).unwrap(), "Tensor[(?), int64]");
    let def = op::get(op::lookup("arange").unwrap());
    let (zero, five, one) = (i(0), i(5), i(1));
    let static_type = def.infer(&as_int64, &args, &[Some(&zero), Some(&five), Some(&one)]).unwrap();
    assert_eq!(static_type.to_string(), "Tensor[(5), int64]");
}

#[test]
fn take_along_axes() {
    let a = sequence(&[2, 3, 4]);
    let indices = ints(&[2, 2], &[2, 0, 1, 1]);
    let axis = |n: i64| attrs([("axis", n.into())]);
    let actual = run("take", &axis(1), &[&a, &indices]);
    assert_eq!(actual.shape(), [2, 2, 2, 4]);
    let expected = [
        8, 9, 10, 11, 0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 16, 17, 18, 19, 16, 17, 18,
        19,
    ];
    assert_eq!(actual.as_slice::<i64>(), expected);
    assert_eq!(run("take", &axis(-1), &[&sequence(&[2, 2]), &ints(&[], &[1])]).as_slice::<i64>(), [1, 3]);
    assert_eq!(run("take", &Attrs::none(), &[&sequence(&[2, 2]), &ints(&[2], &[3, 9])]).as_slice::<i64>(), [3, 3]);
    let out_of_range_indices = ints(&[2], &[-1, 4]);
    let row = sequence(&[3]);
    let mode = |m: &str| axis(0).with("mode", m);
    assert_eq!(run("take", &mode("clip"), &[&row, &out_of_range_indices]).as_slice::<i64>(), [0, 2]);
    assert_eq!(run("take", &mode("wrap"), &[&row, &out_of_range_indices]).as_slice::<i64>(), [2, 1]);
    assert!(
        error_of("take", &mode("fast"), &[&row, &out_of_range_indices])
            .contains("index -1 is out of range for an axis of length 3")
    );
    assert!(error_of("take", &mode("other"), &[&row, &out_of_range_indices]).contains("found \"other\""));
    assert!(error_of("take", &mode("clip"), &[&sequence(&[0]), &out_of_range_indices]).contains("without elements"));
    let batched_rows =
        run("take", &axis(1).with("batch_dims", 1), &[&sequence(&[2, 3]), &ints(&[2, 2], &[2, 0, 1, 1])]);
    assert_eq!((batched_rows.shape(), batched_rows.as_slice::<i64>()), (&[2usize, 2][..], &[2, 0, 4, 4][..]));
    assert!(error_of("take", &axis(0), &[&row, &vector(&[1.0])]).contains("expected integers"));
    let table = inferred_type("take", &axis(0), &[f32s("1000, 64"), Type::tensor(DType::I64, &[1, 7])]);
    assert_eq!(table.unwrap(), "Tensor[(1, 7, 64), float32]");
}

#[test]
fn gathers() {
    let a = sequence(&[2, 3, 4]);
    let gather_indices = ints(&[2, 1, 4], &[0, 2, 1, 0, 1, 1, -1, 2]);
    let axis = |n: i64| attrs([("axis", n.into())]);
    assert_eq!(run("gather", &axis(1), &[&a, &gather_indices]).as_slice::<i64>(), [0, 9, 6, 3, 16, 17, 22, 23]);
    assert!(
        error_of("gather", &axis(1), &[&a, &ints(&[1, 1, 1], &[3])])
            .contains("index 3 is out of range for an axis of length 3")
    );
    assert!(
        error_of("gather", &axis(1), &[&a, &ints(&[3, 1, 1], &[0, 0, 0])])
            .contains("expected indices with the rank of data")
    );

    let vectors = ints(&[2, 2], &[0, 1, 2, -3]);
    let actual = run("gather_nd", &Attrs::none(), &[&a, &vectors]);
    assert_eq!((actual.shape(), actual.as_slice::<i64>()), (&[2usize, 4][..], &[8, 9, 10, 11, 12, 13, 14, 15][..]));
    let batch = attrs([("batch_dims", 1.into())]);
    let actual = run("gather_nd", &batch, &[&a, &ints(&[2, 2], &[1, 2, 3, 0])]);
    assert_eq!((actual.shape(), actual.as_slice::<i64>()), (&[2usize][..], &[7, 20][..]));
    assert!(
        error_of("gather_nd", &Attrs::none(), &[&sequence(&[2]), &vectors])
            .contains("expected indices with a first dimension")
    );
}

#[test]
fn scatters() {
    let zeros = ints(&[2, 2], &[10, 20, 30, 40]);
    let cells = ints(&[2, 3], &[0, 1, 0, 1, 0, 1]);
    let updates = ints(&[3], &[1, 2, 3]);
    let mode = |m: &str| attrs([("mode", m.into())]);
    assert_eq!(run("scatter_nd", &mode("update"), &[&zeros, &cells, &updates]).as_slice::<i64>(), [10, 3, 2, 40]);
    assert_eq!(run("scatter_nd", &mode("add"), &[&zeros, &cells, &updates]).as_slice::<i64>(), [10, 24, 32, 40]);
    assert_eq!(run("scatter_nd", &mode("mul"), &[&zeros, &cells, &updates]).as_slice::<i64>(), [10, 60, 60, 40]);
    assert_eq!(run("scatter_nd", &mode("min"), &[&zeros, &cells, &updates]).as_slice::<i64>(), [10, 1, 2, 40]);
    assert_eq!(run("scatter_nd", &mode("max"), &[&zeros, &cells, &updates]), zeros);
    let rows = run("scatter_nd", &mode("update"), &[&zeros, &ints(&[1, 1], &[-1]), &ints(&[1, 2], &[7, 8])]);
    assert_eq!(rows.as_slice::<i64>(), [10, 20, 7, 8]);
    assert!(error_of("scatter_nd", &mode("other"), &[&zeros, &cells, &updates]).contains("found \"other\""));
    assert!(error_of("scatter_nd", &mode("add"), &[&zeros, &cells, &zeros]).contains("updates: expected rank 1"));

    let positions = ints(&[1, 2], &[1, 1]);
    let axis = |reduction: &str| attrs([("axis", 1.into()), ("reduction", reduction.into())]);
    let pair = ints(&[1, 2], &[5, 6]);
    assert_eq!(
        run("scatter_elements", &axis("update"), &[&zeros, &positions, &pair]).as_slice::<i64>(),
        [10, 6, 30, 40]
    );
    assert_eq!(run("scatter_elements", &axis("add"), &[&zeros, &positions, &pair]).as_slice::<i64>(), [10, 31, 30, 40]);
    let unequal_indices = ints(&[1, 2], &[1, 2]);
    assert!(error_of("scatter_elements", &axis("add"), &[&zeros, &unequal_indices, &pair]).contains("index 2"));
}

#[test]
fn one_hot_and_scans_and_triangles() {
    let (on_value, off_value) = (Tensor::scalar(1f32), Tensor::scalar(0f32));
    let indices = ints(&[3], &[1, 0, 5]);
    let depth = attrs([("depth", 2.into())]);
    assert_values(&run("one_hot", &depth, &[&indices, &on_value, &off_value]), &[0.0, 1.0, 1.0, 0.0, 0.0, 0.0]);
    let first = run("one_hot", &depth.with("axis", 0), &[&indices, &on_value, &off_value]);
    assert_eq!(first.shape(), [2, 3]);
    assert_values(&first, &[0.0, 1.0, 0.0, 1.0, 0.0, 0.0]);
    let dynamic_one_hot = run("dyn.one_hot", &Attrs::none(), &[&indices, &on_value, &off_value, &Tensor::scalar(2i64)]);
    assert_values(&dynamic_one_hot, &[0.0, 1.0, 1.0, 0.0, 0.0, 0.0]);
    assert!(
        error_of("one_hot", &attrs([("depth", (-1).into())]), &[&indices, &on_value, &off_value])
            .contains("depth: expected an integer >= 0, found -1")
    );

    let a = sequence(&[2, 3, 4]);
    let cumulative_sums = run("cumsum", &attrs([("axis", 1.into())]), &[&a]);
    let expected = [0, 1, 2, 3, 4, 6, 8, 10, 12, 15, 18, 21, 12, 13, 14, 15, 28, 30, 32, 34, 48, 51, 54, 57];
    assert_eq!(cumulative_sums.as_slice::<i64>(), expected);
    let flat_sums = run("cumsum", &attrs([("exclusive", true.into())]), &[&sequence(&[2, 2])]);
    assert_eq!((flat_sums.shape(), flat_sums.as_slice::<i64>()), (&[4usize][..], &[0, 0, 1, 3][..]));
    let product = run("cumprod", &attrs([("dtype", DType::F32.into())]), &[&ints(&[3], &[2, 3, 4])]);
    assert_values(&product, &[2.0, 6.0, 24.0]);

    let k = Tensor::scalar(1i64);
    let upper_triangle = run("trilu", &Attrs::none(), &[&a, &k]);
    let expected = [0, 1, 2, 3, 0, 0, 6, 7, 0, 0, 0, 11, 0, 13, 14, 15, 0, 0, 18, 19, 0, 0, 0, 23];
    assert_eq!(upper_triangle.as_slice::<i64>(), expected);
    let lower_triangle = run("trilu", &attrs([("upper", false.into())]), &[&a, &Tensor::scalar(-1i64)]);
    let expected = [0, 0, 0, 0, 4, 0, 0, 0, 8, 9, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 20, 21, 0, 0];
    assert_eq!(lower_triangle.as_slice::<i64>(), expected);
}

//! Tests of binary operators and `where`.

use super::{assert_values, error_of, f32s, inferred_type, run, vector};
use byoc_ir::ir::{Attrs, Type};
use byoc_ir::tensor::{DType, Tensor};

const INF: f64 = f64::INFINITY;
const NAN: f64 = f64::NAN;

#[test]
fn float_arithmetic() {
    let a = vector(&[7.5, -7.5, 2.0, -0.5, 0.0, f32::NAN]);
    let b = vector(&[2.0, 2.0, -3.0, 0.25, 0.0, 1.0]);
    let table: &[(&str, [f64; 6])] = &[
        ("add", [9.5, -5.5, -1.0, -0.25, 0.0, NAN]),
        ("subtract", [5.5, -9.5, 5.0, -0.75, 0.0, NAN]),
        ("multiply", [15.0, -15.0, -6.0, -0.125, 0.0, NAN]),
        ("divide", [3.75, -3.75, -2.0 / 3.0, -2.0, NAN, NAN]),
        ("floor_divide", [3.0, -4.0, -1.0, -2.0, NAN, NAN]),
        ("mod", [1.5, -1.5, 2.0, 0.0, NAN, NAN]),
        ("floor_mod", [1.5, 0.5, -1.0, 0.0, NAN, NAN]),
        ("power", [56.25, 56.25, 0.125, NAN, 1.0, NAN]),
        ("maximum", [7.5, 2.0, 2.0, 0.25, 0.0, NAN]),
        ("minimum", [2.0, -7.5, -3.0, -0.5, 0.0, NAN]),
        ("logical_and", [1.0, 1.0, 1.0, 1.0, 0.0, 1.0]),
        ("logical_or", [1.0, 1.0, 1.0, 1.0, 0.0, 1.0]),
        ("logical_xor", [0.0; 6]),
    ];
    for (name, expected) in table {
        assert_values(&run(name, &Attrs::none(), &[&a, &b]), expected);
    }
    for name in ["maximum", "minimum"] {
        assert_values(
            &run(name, &Attrs::none(), &[&b, &a]).reshaped(&[6]).unwrap(),
            &match name {
                "maximum" => [7.5, 2.0, 2.0, 0.25, 0.0, NAN],
                _ => [2.0, -7.5, -3.0, -0.5, 0.0, NAN],
            },
        );
    }
    let overflowing_products = run("multiply", &Attrs::none(), &[&vector(&[1e30, -1e30]), &vector(&[1e30])]);
    assert_values(&overflowing_products, &[INF, -INF]);
}

#[test]
fn integer_arithmetic() {
    let a = Tensor::from_slice(&[5], &[7i32, -7, 7, -7, i32::MIN]);
    let b = Tensor::from_slice(&[5], &[2i32, 2, -2, -2, -1]);
    let table: &[(&str, [i32; 5])] = &[
        ("add", [9, -5, 5, -9, i32::MAX]),
        ("subtract", [5, -9, 9, -5, i32::MIN + 1]),
        ("multiply", [14, -14, -14, 14, i32::MIN]),
        ("divide", [3, -3, -3, 3, i32::MIN]),
        ("floor_divide", [3, -4, -4, 3, i32::MIN]),
        ("mod", [1, -1, 1, -1, 0]),
        ("floor_mod", [1, 1, -1, -1, 0]),
        ("power", [49, 49, 0, 0, 0]),
        ("maximum", [7, 2, 7, -2, -1]),
        ("minimum", [2, -7, -2, -7, i32::MIN]),
        ("bitwise_and", [2, 0, 6, -8, i32::MIN]),
        ("bitwise_or", [7, -5, -1, -1, -1]),
        ("bitwise_xor", [5, -5, -7, 7, i32::MAX]),
    ];
    for (name, expected) in table {
        assert_eq!(run(name, &Attrs::none(), &[&a, &b]).as_slice::<i32>(), expected, "{name}");
    }
    let (attrs_none, zero) = (Attrs::none(), Tensor::scalar(0i32));
    for name in ["divide", "floor_divide", "mod", "floor_mod"] {
        assert!(error_of(name, &attrs_none, &[&a, &zero]).contains("division by zero"));
    }
    assert!(error_of("power", &attrs_none, &[&zero, &Tensor::scalar(-1i32)]).contains("division by zero"));
    assert_eq!(run("power", &attrs_none, &[&Tensor::scalar(-1i32), &Tensor::scalar(-3i32)]).as_slice::<i32>(), [-1]);
    assert_eq!(
        run("power", &attrs_none, &[&Tensor::scalar(3i64), &Tensor::scalar(39i64)]).as_slice::<i64>(),
        [4052555153018976267]
    );
    let amounts = Tensor::from_slice(&[3], &[1i32, 31, 40]);
    assert_eq!(
        run("left_shift", &attrs_none, &[&Tensor::scalar(-3i32), &amounts]).as_slice::<i32>(),
        [-6, i32::MIN, 0]
    );
    assert_eq!(run("right_shift", &attrs_none, &[&Tensor::scalar(-3i32), &amounts]).as_slice::<i32>(), [-2, -1, -1]);
    assert!(
        error_of("left_shift", &attrs_none, &[&amounts, &Tensor::scalar(-1i32)])
            .contains("expected a shift amount >= 0, found -1")
    );
    let bytes = Tensor::from_slice(&[2], &[200u8, 3]);
    assert_eq!(run("add", &attrs_none, &[&bytes, &bytes]).as_slice::<u8>(), [144, 6]);
    let flags = Tensor::from_bools(&[2], &[true, false]);
    assert_eq!(run("add", &attrs_none, &[&flags, &flags]), flags);
    assert_eq!(
        run("logical_xor", &attrs_none, &[&flags, &Tensor::from_bools(&[], &[true])]),
        Tensor::from_bools(&[2], &[false, true])
    );
}

#[test]
fn comparisons() {
    let a = vector(&[1.0, 2.0, 3.0, f32::NAN]);
    let b = vector(&[2.0, 2.0, 2.0, f32::NAN]);
    let table = [
        ("equal", [false, true, false, false]),
        ("not_equal", [true, false, true, true]),
        ("less", [true, false, false, false]),
        ("less_equal", [true, true, false, false]),
        ("greater", [false, false, true, false]),
        ("greater_equal", [false, true, true, false]),
    ];
    for (name, expected) in table {
        assert_eq!(run(name, &Attrs::none(), &[&a, &b]), Tensor::from_bools(&[4], &expected), "{name}");
    }
    let largest_pair = Tensor::from_slice(&[2], &[i64::MAX, i64::MAX - 1]);
    let largest = Tensor::scalar(i64::MAX);
    assert_eq!(run("less", &Attrs::none(), &[&largest_pair, &largest]), Tensor::from_bools(&[2], &[false, true]));
}

#[test]
fn operands_broadcast() {
    let a = Tensor::from_slice(&[2, 1, 2], &[1i32, 2, 3, 4]);
    let b = Tensor::from_slice(&[3, 1], &[10i32, 20, 30]);
    let sum = run("add", &Attrs::none(), &[&a, &b]);
    assert_eq!(sum.shape(), [2, 3, 2]);
    assert_eq!(sum.as_slice::<i32>(), [11, 12, 21, 22, 31, 32, 13, 14, 23, 24, 33, 34]);
    let empty_sum =
        run("add", &Attrs::none(), &[&Tensor::zeros(DType::F32, &[0, 3]).unwrap(), &vector(&[1.0, 2.0, 3.0])]);
    assert_eq!(empty_sum.shape(), [0, 3]);
}

#[test]
fn where_selects() {
    let condition = Tensor::from_bools(&[2, 1], &[true, false]);
    let x = vector(&[1.0, 2.0, 3.0]);
    let y = Tensor::scalar(-1f32);
    let actual = run("where", &Attrs::none(), &[&condition, &x, &y]);
    assert_eq!((actual.shape(), actual.as_slice::<f32>()), (&[2usize, 3][..], &[1.0, 2.0, 3.0, -1.0, -1.0, -1.0][..]));
    assert!(
        error_of("where", &Attrs::none(), &[&condition, &x, &Tensor::scalar(1i32)])
            .contains("expected equal element types")
    );
}

#[test]
fn unknown_dimensions() {
    let add = |a: &str, b: &str| inferred_type("add", &Attrs::none(), &[f32s(a), f32s(b)]);
    assert_eq!(add("n, 3", "1, 3").unwrap(), "Tensor[(n, 3), float32]");
    assert_eq!(add("n, 3", "n, 1").unwrap(), "Tensor[(n, 3), float32]");
    assert_eq!(add("?, 3", "4, 3").unwrap(), "Tensor[(4, 3), float32]");
    assert_eq!(add("n, 3", "m, 3").unwrap(), "Tensor[(?, 3), float32]");
    assert_eq!(add("?", "3, 1").unwrap(), "Tensor[(3, ?), float32]");
    assert_eq!(add("", "?").unwrap(), "Tensor[(?), float32]");
    assert_eq!(
        add("2, 3", "4, 3").unwrap_err(),
        "add: axis -2 of the result: expected broadcastable dimensions, found 2 and 4"
    );
    let less_type = inferred_type("less", &Attrs::none(), &[f32s("n, 1"), f32s("5")]).unwrap();
    assert_eq!(less_type, "Tensor[(n, 5), bool]");
    let mixed_sum = inferred_type("add", &Attrs::none(), &[f32s("2"), Type::tensor(DType::I32, &[2])]);
    assert_eq!(mixed_sum.unwrap_err(), "add: expected equal element types, found float32 and int32");
    let shift_result = inferred_type("left_shift", &Attrs::none(), &[f32s("2"), f32s("2")]);
    assert_eq!(shift_result.unwrap_err(), "left_shift: expected integer operands, found float32");
}

//! Tests of unary operators, casts and annotations.

use super::{assert_values, attrs, error_of, f32s, inferred_type, run, vector};
use byoc_ir::ir::{Attrs, Type};
use byoc_ir::tensor::{DType, Tensor};

const INF: f64 = f64::INFINITY;
const NAN: f64 = f64::NAN;

#[test]
#[expect(clippy::approx_constant, reason = "the table is numpy's output, not a use of the constants")]
fn real_functions_match_numpy() {
    let x = vector(&[-2.5, -1.5, -0.75, -0.5, 0.0, 0.3, 0.5, 1.0, 2.5]);
    let table: &[(&str, &[f64])] = &[
        (
            "exp",
            &[
                0.08208499862,
                0.2231301601,
                0.4723665527,
                0.6065306597,
                1.0,
                1.349858824,
                1.648721271,
                2.718281828,
                12.18249396,
            ],
        ),
        (
            "tanh",
            &[
                -0.9866142982,
                -0.9051482536,
                -0.6351489524,
                -0.4621171573,
                0.0,
                0.2913126234,
                0.4621171573,
                0.761594156,
                0.9866142982,
            ],
        ),
        (
            "sigmoid",
            &[
                0.07585818002,
                0.1824255238,
                0.3208213008,
                0.3775406688,
                0.5,
                0.5744425197,
                0.6224593312,
                0.7310585786,
                0.92414182,
            ],
        ),
        (
            "erf",
            &[
                -0.999593048,
                -0.9661051465,
                -0.7111556337,
                -0.5204998778,
                0.0,
                0.3286267718,
                0.5204998778,
                0.8427007929,
                0.999593048,
            ],
        ),
        (
            "sin",
            &[
                -0.5984721441,
                -0.9974949866,
                -0.68163876,
                -0.4794255386,
                0.0,
                0.295520218,
                0.4794255386,
                0.8414709848,
                0.5984721441,
            ],
        ),
        (
            "cos",
            &[
                -0.8011436155,
                0.07073720167,
                0.7316888689,
                0.8775825619,
                1.0,
                0.9553364856,
                0.8775825619,
                0.5403023059,
                -0.8011436155,
            ],
        ),
        (
            "tan",
            &[
                0.7470222972,
                -14.10141995,
                -0.9315964599,
                -0.5463024898,
                0.0,
                0.3093362627,
                0.5463024898,
                1.557407725,
                -0.7470222972,
            ],
        ),
        (
            "sinh",
            &[
                -6.050204481,
                -2.129279455,
                -0.8223167319,
                -0.5210953055,
                0.0,
                0.3045203059,
                0.5210953055,
                1.175201194,
                6.050204481,
            ],
        ),
        (
            "cosh",
            &[
                6.13228948,
                2.352409615,
                1.294683285,
                1.127625965,
                1.0,
                1.045338518,
                1.127625965,
                1.543080635,
                6.13228948,
            ],
        ),
        (
            "atan",
            &[
                -1.19028995,
                -0.9827937232,
                -0.6435011088,
                -0.463647609,
                0.0,
                0.2914568054,
                0.463647609,
                0.7853981634,
                1.19028995,
            ],
        ),
        (
            "asinh",
            &[
                -1.647231146,
                -1.194763217,
                -0.6931471806,
                -0.4812118251,
                0.0,
                0.295673059,
                0.4812118251,
                0.881373587,
                1.647231146,
            ],
        ),
        ("nn.relu", &[0.0, 0.0, 0.0, 0.0, 0.0, 0.3f32 as f64, 0.5, 1.0, 2.5]),
        ("abs", &[2.5, 1.5, 0.75, 0.5, 0.0, 0.3f32 as f64, 0.5, 1.0, 2.5]),
        ("negative", &[2.5, 1.5, 0.75, 0.5, -0.0, -0.3f32 as f64, -0.5, -1.0, -2.5]),
        ("floor", &[-3.0, -2.0, -1.0, -1.0, 0.0, 0.0, 0.0, 1.0, 2.0]),
        ("ceil", &[-2.0, -1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 3.0]),
        ("round", &[-3.0, -2.0, -1.0, -1.0, 0.0, 0.0, 1.0, 1.0, 3.0]),
        ("trunc", &[-2.0, -1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0]),
        ("sign", &[-1.0, -1.0, -1.0, -1.0, 0.0, 1.0, 1.0, 1.0, 1.0]),
        ("logical_not", &[0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]),
        ("copy", &[-2.5, -1.5, -0.75, -0.5, 0.0, 0.3f32 as f64, 0.5, 1.0, 2.5]),
        ("nn.leaky_relu", &[-0.625, -0.375, -0.1875, -0.125, 0.0, 0.3f32 as f64, 0.5, 1.0, 2.5]),
        ("annotation.stop_fusion", &[-2.5, -1.5, -0.75, -0.5, 0.0, 0.3f32 as f64, 0.5, 1.0, 2.5]),
    ];
    for (name, expected) in table {
        assert_values(&run(name, &Attrs::none(), &[&x]), expected);
    }
    let x = vector(&[0.0, 0.25, 0.5, 1.0, 2.0, 10.0]);
    let table: &[(&str, &[f64])] = &[
        ("log", &[-INF, -1.386294361, -0.6931471806, 0.0, 0.6931471806, 2.302585093]),
        ("log2", &[-INF, -2.0, -1.0, 0.0, 1.0, 3.321928095]),
        ("log10", &[-INF, -0.6020599913, -0.3010299957, 0.0, 0.3010299957, 1.0]),
        ("sqrt", &[0.0, 0.5, 0.7071067812, 1.0, 1.414213562, 3.16227766]),
        ("rsqrt", &[INF, 2.0, 1.414213562, 1.0, 0.7071067812, 0.316227766]),
        ("acosh", &[NAN, NAN, NAN, 0.0, 1.316957897, 2.993222846]),
        ("asin", &[0.0, 0.2526802551, 0.5235987756, 1.570796327, NAN, NAN]),
        ("acos", &[1.570796327, 1.318116072, 1.047197551, 0.0, NAN, NAN]),
        ("atanh", &[0.0, 0.2554128119, 0.5493061443, INF, NAN, NAN]),
    ];
    for (name, expected) in table {
        assert_values(&run(name, &Attrs::none(), &[&x]), expected);
    }
}

#[test]
fn special_values() {
    let x = vector(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1.0]);
    let none = Attrs::none();
    assert_eq!(run("isnan", &none, &[&x]), Tensor::from_bools(&[4], &[true, false, false, false]));
    assert_eq!(run("isinf", &none, &[&x]), Tensor::from_bools(&[4], &[false, true, true, false]));
    assert_eq!(run("isfinite", &none, &[&x]), Tensor::from_bools(&[4], &[false, false, false, true]));
    assert_values(&run("nn.relu", &none, &[&x]), &[NAN, INF, 0.0, 1.0]);
    assert_values(&run("sign", &none, &[&x]), &[NAN, 1.0, -1.0, 1.0]);
    assert_values(&run("clip", &attrs([("a_min", 0.0.into()), ("a_max", 6.0.into())]), &[&x]), &[NAN, 6.0, 0.0, 1.0]);
}

#[test]
fn integers_stay_exact() {
    let large_int = (1i64 << 60) + 1;
    let x = Tensor::from_slice(&[3], &[large_int, -large_int, i64::MIN]);
    let none = Attrs::none();
    assert_eq!(run("negative", &none, &[&x]).as_slice::<i64>(), [-large_int, large_int, i64::MIN]);
    assert_eq!(run("abs", &none, &[&x]).as_slice::<i64>(), [large_int, large_int, i64::MIN]);
    assert_eq!(run("nn.relu", &none, &[&x]).as_slice::<i64>(), [large_int, 0, 0]);
    assert_eq!(run("round", &none, &[&x]), x);
    assert_eq!(run("bitwise_not", &none, &[&x]).as_slice::<i64>(), [!large_int, !-large_int, i64::MAX]);
    let bounds = attrs([("a_min", 0.0.into()), ("a_max", 1e30.into())]);
    assert_eq!(run("clip", &bounds, &[&x]).as_slice::<i64>(), [large_int, 0, 0]);
    let flags = Tensor::from_bools(&[2], &[true, false]);
    assert_eq!(run("logical_not", &none, &[&flags]), Tensor::from_bools(&[2], &[false, true]));
    assert_eq!(run("bitwise_not", &none, &[&flags]), Tensor::from_bools(&[2], &[false, true]));
    assert!(error_of("bitwise_not", &none, &[&vector(&[1.0])]).contains("found float32"));
}

#[test]
fn casts() {
    let cast_to = |dtype: DType| attrs([("dtype", dtype.into())]);
    let x = vector(&[-1.7, 0.0, 0.5, 300.0, f32::NAN]);
    assert_eq!(run("cast", &cast_to(DType::I32), &[&x]).as_slice::<i32>(), [-1, 0, 0, 300, 0]);
    assert_eq!(run("cast", &cast_to(DType::U8), &[&x]).as_slice::<u8>(), [0, 0, 0, 255, 0]);
    assert_eq!(run("cast", &cast_to(DType::Bool), &[&x]), Tensor::from_bools(&[5], &[true, false, true, true, true]));
    let wide_ints = Tensor::from_slice(&[3], &[300i64, -1, (1 << 53) + 1]);
    assert_eq!(run("cast", &cast_to(DType::I8), &[&wide_ints]).as_slice::<i8>(), [44, -1, 1]);
    assert_eq!(run("cast", &cast_to(DType::U64), &[&wide_ints]).as_slice::<u64>(), [300, u64::MAX, (1 << 53) + 1]);
    assert_eq!(
        run("cast_like", &Attrs::none(), &[&wide_ints, &x]).as_slice::<f32>(),
        [300.0, -1.0, 9007199254740992.0]
    );
    let halves = run("cast", &cast_to(DType::F16), &[&vector(&[0.1, 70000.0])]);
    assert_eq!(halves.view().to_f64s(), [0.0999755859375, INF]);
    assert!(error_of("cast", &Attrs::none(), &[&x]).contains("expected the attribute \"dtype\""));
}

#[test]
fn fixed_point_multiply_rounds_halves_up() {
    let x = Tensor::from_slice(&[5], &[5i32, -5, 3, -3, 100]);
    let factor = |multiplier: i64, shift: i64| attrs([("multiplier", multiplier.into()), ("shift", shift.into())]);
    assert_eq!(run("fixed_point_multiply", &factor(1 << 30, 0), &[&x]).as_slice::<i32>(), [3, -2, 2, -1, 50]);
    assert_eq!(run("fixed_point_multiply", &factor(1 << 30, 1), &[&x]), x);
    assert_eq!(run("fixed_point_multiply", &factor(1288490189, -2), &[&x]).as_slice::<i32>(), [1, -1, 0, 0, 15]);
    assert!(
        error_of("fixed_point_multiply", &factor(1, 40), &[&x])
            .contains("shift: expected an integer in [-31, 31], found 40")
    );
}

#[test]
fn types_pass_through() {
    let none = Attrs::none();
    assert_eq!(inferred_type("exp", &none, &[f32s("n, ?, 3")]).unwrap(), "Tensor[(n, ?, 3), float32]");
    assert_eq!(inferred_type("isnan", &none, &[f32s("?")]).unwrap(), "Tensor[(?), bool]");
    let tuple = Type::tuple([f32s("2"), f32s("3")]);
    let begin = attrs([("compiler", "some".into())]);
    let text = inferred_type("annotation.compiler_end", &begin, std::slice::from_ref(&tuple)).unwrap();
    assert_eq!(text, "(Tensor[(2), float32], Tensor[(3), float32])");
    assert_eq!(inferred_type("annotation.compiler_begin", &begin, &[f32s("2")]).unwrap(), "Tensor[(2), float32]");
    assert!(inferred_type("exp", &none, &[tuple]).unwrap_err().contains("expected a tensor"));
    assert!(inferred_type("exp", &none, &[]).unwrap_err().contains("expected 1, found 0"));
}

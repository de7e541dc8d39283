//! Tests of the QNN dialect: values computed by hand, errors, and the exact arithmetic of requantization.

use super::{attrs, call, error_of, inferred_type, run};
use byoc_ir::ir::{AttrValue, Attrs, Type};
use byoc_ir::op::{self, Value};
use byoc_ir::tensor::{DType, Tensor};
use byoc_test_support::random::Random;

fn f32s(values: &[f32]) -> Tensor {
    super::vector(values)
}

fn scale_tensor(scale: f32) -> Tensor {
    Tensor::scalar(scale)
}

fn zero(point: i32) -> Tensor {
    Tensor::scalar(point)
}

fn string_attr(name: &str, value: &str) -> Attrs {
    attrs([(name, AttrValue::from(value))])
}

#[test]
fn quantize_rounds_and_saturates() {
    let x = f32s(&[0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 300.0, -300.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN]);
    let nearest_values = run("qnn.quantize", &Attrs::none(), &[&x, &scale_tensor(1.0), &zero(0)]);
    assert_eq!(nearest_values.as_slice::<i8>(), [1, 2, 3, -1, -2, -3, 127, -128, 127, -128, 0]);
    let even_values = run("qnn.quantize", &string_attr("rounding", "TOEVEN"), &[&x, &scale_tensor(1.0), &zero(0)]);
    assert_eq!(even_values.as_slice::<i8>(), [0, 2, 2, 0, -2, -2, 127, -128, 127, -128, 0]);
    let u8s = run("qnn.quantize", &string_attr("out_dtype", "uint8"), &[&x, &scale_tensor(0.5), &zero(3)]);
    assert_eq!(u8s.as_slice::<u8>(), [4, 6, 8, 2, 0, 0, 255, 0, 255, 0, 0]);
    let int32s = run(
        "qnn.quantize",
        &string_attr("out_dtype", "int32"),
        &[&f32s(&[3e9, -3e9, 7.0]), &scale_tensor(1.0), &zero(0)],
    );
    assert_eq!(int32s.as_slice::<i32>(), [i32::MAX, i32::MIN, 7]);
}

#[test]
fn parameters_lie_along_an_axis() {
    let x = Tensor::from_slice(&[2, 3], &[1f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let (scales, zeros) = (f32s(&[1.0, 0.5]), Tensor::from_slice(&[2], &[0i32, -10]));
    let q = run("qnn.quantize", &attrs([("axis", AttrValue::Int(0))]), &[&x, &scales, &zeros]);
    assert_eq!(q.as_slice::<i8>(), [1, 2, 3, -2, 0, 2]);
    let real_values = run("qnn.dequantize", &attrs([("axis", AttrValue::Int(-2))]), &[&q, &scales, &zeros]);
    assert_eq!(real_values, x);
    let error = error_of("qnn.quantize", &Attrs::none(), &[&x, &scales, &zeros]);
    assert!(error.contains("output_scale and its axis: expected equal dimensions, found 2 and 3"), "{error}");
}

#[test]
fn dequantize_saturates_in_int32_and_float16() {
    let x = Tensor::from_slice(&[2], &[i32::MIN, i32::MAX]);
    let saturated_values = run("qnn.dequantize", &Attrs::none(), &[&x, &scale_tensor(1.0), &zero(5)]);
    assert_eq!(saturated_values.as_slice::<f32>(), [i32::MIN as f32, (i32::MAX - 5) as f32]);
    let float16s = run("qnn.dequantize", &string_attr("out_dtype", "float16"), &[&x, &scale_tensor(1.0), &zero(0)]);
    assert_eq!(float16s.view().to_f64s(), [-65504.0, 65504.0]);
}

#[test]
fn rejects_invalid_scales() {
    let x = f32s(&[1.0, 2.0]);
    for (scale, problem) in
        [(0.0, "found 0"), (-0.5, "found -0.5"), (f32::NAN, "found NaN"), (f32::INFINITY, "found inf")]
    {
        let error = error_of("qnn.quantize", &Attrs::none(), &[&x, &scale_tensor(scale), &zero(0)]);
        assert!(
            error.contains(&format!("qnn.quantize: output_scale: expected a finite scale above 0, {problem}")),
            "{error}"
        );
    }
    let error = error_of("qnn.quantize", &Attrs::none(), &[&x, &f32s(&[1.0, 0.0]), &zero(0)]);
    assert!(error.contains("output_scale: expected finite scales above 0, found 0 at index 1"), "{error}");
    let error = error_of("qnn.quantize", &Attrs::none(), &[&x, &scale_tensor(1.0), &Tensor::scalar(0i8)]);
    assert!(error.contains("output_zero_point: expected int32, found int8"), "{error}");
    let error = error_of("qnn.quantize", &Attrs::none(), &[&x, &Tensor::scalar(1f64), &zero(0)]);
    assert!(error.contains("output_scale: expected float32, found float64"), "{error}");
    let error = error_of("qnn.quantize", &string_attr("rounding", "DOWN"), &[&x, &scale_tensor(1.0), &zero(0)]);
    assert!(error.contains("found \"DOWN\""), "{error}");
    let def = op::get(op::lookup("qnn.dequantize").unwrap());
    let types = [Type::tensor(DType::I8, &[2]), Type::scalar(DType::F32), Type::scalar(DType::I32)];
    let fault = def.infer(&Attrs::none(), &types, &[None, Some(&scale_tensor(0.0)), None]).unwrap_err();
    assert_eq!(fault.code.to_string(), "E0209");
}

#[test]
fn rejects_invalid_scales_at_run_time() {
    let data = || Value::Tensor(Tensor::from_slice(&[1], &[1i8]));
    let tuple = |t: Tensor| Value::Tuple(vec![t]);
    let args = [Value::Tuple(vec![Tensor::from_slice(&[1], &[1i8])]), tuple(scale_tensor(-1.0)), tuple(zero(0))];
    let args = [args.to_vec(), vec![Value::Tensor(scale_tensor(1.0)), Value::Tensor(zero(0))]].concat();
    let error = call("qnn.concatenate", &Attrs::none(), &args).unwrap_err();
    assert!(error.contains("input_scales: expected a finite scale above 0, found -1"), "{error}");
    let error = call("qnn.concatenate", &Attrs::none(), &[&[data()][..], &args[1..]].concat()).unwrap_err();
    assert!(error.contains("expected a tuple of tensors"), "{error}");
}

/// Decomposes a positive ratio into a 31-bit multiplier M and an exponent e: ratio = M * 2^(e - 31) up to rounding.
fn decompose(ratio: f64) -> (i128, i32) {
    let bits = ratio.to_bits();
    assert!(ratio.is_normal() && ratio > 0.0);
    let mantissa = i128::from(bits & ((1 << 52) - 1) | (1 << 52));
    let exponent = (bits >> 52 & 0x7ff) as i32 - 1022;
    // Rounds the mantissa from 53 bits to 31, halves up (away from zero, since the mantissa is positive).
    let rounded = (mantissa + (1 << 21)) >> 22;
    if rounded == 1 << 31 { (1 << 30, exponent + 1) } else { (rounded, exponent) }
}

/// Requantizes one value by the fixed-point formula, in 128 bits.
fn fixed_point(x: i128, source: (f32, i32), target: (f32, i32), rounding: &str, low: i128, high: i128) -> i128 {
    let int32 = |v: i128| v.clamp(-(1 << 31), (1 << 31) - 1);
    let t = int32(x - i128::from(source.1));
    let scaled = if source.0 == target.0 {
        t
    } else {
        let (m, e) = decompose(f64::from(source.0) / f64::from(target.0));
        let r = (-e).clamp(0, 80);
        let y = (t << e.clamp(0, 60)) * m;
        let half_unit = 1i128 << (30 + r);
        match rounding {
            "UPWARD" => (y + half_unit) >> (31 + r),
            "TONEAREST" if y >= 0 => (y + half_unit) >> (31 + r),
            "TONEAREST" => (y + half_unit - 1) >> (31 + r),
            _ => {
                let (floor, remainder) = (y.div_euclid(2 * half_unit), y.rem_euclid(2 * half_unit));
                floor + i128::from(remainder > half_unit || remainder == half_unit && floor % 2 != 0)
            }
        }
    };
    (int32(scaled) + i128::from(target.1)).max(low).min(high)
}

/// Returns a random 32-bit integer of random bit width.
fn int(random: &mut Random) -> i32 {
    let bits = random.below(32);
    (random.bits() as i32) >> bits
}

/// Returns a random scale, with an arbitrary mantissa and an exponent from -`spread` to `spread`; occasionally a power
/// of two.
fn scale(random: &mut Random, spread: i32) -> f32 {
    let exponent = random.between(-i64::from(spread), i64::from(spread)) as i32;
    let mantissa = if random.below(8) == 0 { 1.0 } else { 1.0 + random.below(1 << 23) as f32 / (1 << 23) as f32 };
    mantissa * 2f32.powi(exponent)
}

const ROUNDINGS: [&str; 3] = ["UPWARD", "TONEAREST", "TOEVEN"];

#[test]
fn requantize_agrees_with_128_bit_arithmetic_on_a_million_cases() {
    let mut random = Random::new(1);
    let mut cases = 0;
    for round in 0..60 {
        let n = 20_000;
        let spread = [4, 16, 40][round % 3];
        let rounding = ROUNDINGS[round / 3 % 3];
        let out = [DType::I8, DType::U8, DType::I16, DType::I32][round % 4];
        let is_plain = round % 5 == 0;
        let point = |random: &mut Random| if is_plain { 0 } else { int(random) };
        let x: Vec<i32> = (0..n).map(|_| int(&mut random)).collect();
        let sources: Vec<(f32, i32)> = (0..n).map(|_| (scale(&mut random, spread), point(&mut random))).collect();
        let targets: Vec<(f32, i32)> = (0..n).map(|_| (scale(&mut random, spread), point(&mut random))).collect();
        let scales = |v: &[(f32, i32)]| f32s(&v.iter().map(|p| p.0).collect::<Vec<_>>());
        let zeros = |v: &[(f32, i32)]| Tensor::from_slice(&[n], &v.iter().map(|p| p.1).collect::<Vec<_>>());
        let attr_set = attrs([("rounding", rounding.into()), ("out_dtype", out.into())]);
        let actual = run(
            "qnn.requantize",
            &attr_set,
            &[&Tensor::from_slice(&[n], &x), &scales(&sources), &zeros(&sources), &scales(&targets), &zeros(&targets)],
        );
        let (low, high) = match out {
            DType::I8 => (-128, 127),
            DType::U8 => (0, 255),
            DType::I16 => (-32768, 32767),
            _ => (-(1 << 31), (1 << 31) - 1),
        };
        for (i, actual) in actual.view().to_i64s().unwrap().into_iter().enumerate() {
            let expected = fixed_point(x[i].into(), sources[i], targets[i], rounding, low, high);
            assert_eq!(
                i128::from(actual),
                expected,
                "{} from {:?} to {:?}, {rounding}, {out}",
                x[i],
                sources[i],
                targets[i]
            );
            cases += 1;
        }
    }
    assert!(cases >= 1_000_000);
}

/// Requantizes `x` from scale `source_scale` to scale 1 without zero points, into int32.
fn rescale(x: &[i32], source_scale: f32, rounding: &str) -> Vec<i32> {
    let attr_set = attrs([("rounding", rounding.into()), ("out_dtype", "int32".into())]);
    let x = Tensor::from_slice(&[x.len()], x);
    run("qnn.requantize", &attr_set, &[&x, &scale_tensor(source_scale), &zero(0), &scale_tensor(1.0), &zero(0)])
        .as_slice::<i32>()
        .to_vec()
}

#[test]
fn powers_of_two_shift() {
    // Halfway cases (-1.5, -0.5, 0.5, 1.5) and their neighbors.
    let x = [-7, -6, -5, -3, -2, -1, 0, 1, 2, 3, 5, 6, 7];
    assert_eq!(rescale(&x, 0.25, "UPWARD"), [-2, -1, -1, -1, 0, 0, 0, 0, 1, 1, 1, 2, 2]);
    assert_eq!(rescale(&x, 0.25, "TONEAREST"), [-2, -2, -1, -1, -1, 0, 0, 0, 1, 1, 1, 2, 2]);
    assert_eq!(rescale(&x, 0.25, "TOEVEN"), [-2, -2, -1, -1, 0, 0, 0, 0, 0, 1, 1, 2, 2]);
    for rounding in ROUNDINGS {
        for power in 0..=31 {
            let values = [0, 1, -1, 3, -3, 12345, -12345, i32::MAX, i32::MIN];
            let shifted_up = rescale(&values, 2f32.powi(power), rounding);
            for (x, y) in values.iter().zip(shifted_up) {
                let expected = (i64::from(*x) << power).clamp(i32::MIN.into(), i32::MAX.into());
                assert_eq!(i64::from(y), expected, "{x} << {power}, {rounding}");
            }
            let shifted_down = rescale(&values, 2f32.powi(-power), rounding);
            for (x, y) in values.iter().zip(shifted_down) {
                let expected =
                    fixed_point(i128::from(*x), (2f32.powi(-power), 0), (1.0, 0), rounding, -(1 << 31), (1 << 31) - 1);
                assert_eq!(i128::from(y), expected, "{x} >> {power}, {rounding}");
            }
        }
        // Shifts beyond the range of 64 bits.
        assert_eq!(rescale(&[0, 1, -1], 2f32.powi(100), rounding), [0, i32::MAX, i32::MIN]);
        assert_eq!(rescale(&[0, i32::MAX, i32::MIN], 2f32.powi(-100), rounding), [0, 0, 0]);
    }
}

#[test]
fn rescaling_saturates_where_it_would_wrap() {
    assert_eq!(rescale(&[i32::MAX, i32::MIN, 1 << 30], 3.0, "UPWARD"), [i32::MAX, i32::MIN, i32::MAX]);
    let x = Tensor::from_slice(&[2], &[i32::MAX, i32::MIN]);
    let as_int32 = string_attr("out_dtype", "int32");
    // Neither the difference from the zero point nor the sum with the output zero point fits int32.
    let actual = run("qnn.requantize", &as_int32, &[&x, &scale_tensor(0.5), &zero(-1), &scale_tensor(1.0), &zero(0)]);
    assert_eq!(actual.as_slice::<i32>(), [1 << 30, -(1 << 30) + 1]);
    let actual = run("qnn.requantize", &as_int32, &[&x, &scale_tensor(1.0), &zero(0), &scale_tensor(1.0), &zero(7)]);
    assert_eq!(actual.as_slice::<i32>(), [i32::MAX, i32::MIN + 7]);
    let actual =
        run("qnn.requantize", &Attrs::none(), &[&x, &scale_tensor(1.0), &zero(0), &scale_tensor(1.0), &zero(0)]);
    assert_eq!(actual.as_slice::<i8>(), [127, -128]);
}

#[test]
fn requantize_in_float32() {
    let x = Tensor::from_slice(&[8], &[1i32, -1, 3, -3, 5, -5, i32::MAX, i32::MIN]);
    for (rounding, expected) in [
        ("UPWARD", [1i8, 0, 2, -1, 3, -2, 127, -128]),
        ("TONEAREST", [1, -1, 2, -2, 3, -3, 127, -128]),
        ("TOEVEN", [0, 0, 2, -2, 2, -2, 127, -128]),
    ] {
        let attr_set = attrs([("rounding", rounding.into()), ("compute_dtype", "float32".into())]);
        let actual =
            run("qnn.requantize", &attr_set, &[&x, &scale_tensor(0.5), &zero(0), &scale_tensor(1.0), &zero(0)]);
        assert_eq!(actual.as_slice::<i8>(), expected, "{rounding}");
    }
}

#[test]
fn fixed_point_products() {
    let x = Tensor::from_slice(&[2, 2], &[3i32, -3, i32::MAX, 100]);
    let attrs_of = |m: i64, shift: i64| attrs([("multiplier", AttrValue::Int(m)), ("shift", AttrValue::Int(shift))]);
    let actual = run("fixed_point_multiply", &attrs_of(1 << 30, 0), &[&x]);
    assert_eq!(actual.as_slice::<i32>(), [2, -1, 1 << 30, 50]);
    // A multiplier of exactly 1.
    assert_eq!(run("fixed_point_multiply", &attrs_of(1 << 30, 1), &[&x]), x);
    let actual = run("fixed_point_multiply", &attrs_of(1 << 30, 3), &[&x]);
    assert_eq!(actual.as_slice::<i32>(), [12, -12, i32::MAX, 400]);
    let m = Tensor::from_slice(&[2], &[1i32 << 30, 1 << 30]);
    let (left_shifts, right_shifts) = (Tensor::from_slice(&[2], &[3i32, 0]), Tensor::from_slice(&[2], &[0i32, 1]));
    let both_shifts = attrs([
        ("is_lshift_required", AttrValue::Bool(true)),
        ("is_rshift_required", AttrValue::Bool(true)),
        ("axes", AttrValue::from([1])),
    ]);
    let actual = run("fixed_point_multiply_per_axis", &both_shifts, &[&x, &m, &left_shifts, &right_shifts]);
    assert_eq!(actual.as_slice::<i32>(), [12, -1, i32::MAX, 25]);
    let ignored_shifts = attrs([("axes", AttrValue::from([0]))]);
    let actual = run("fixed_point_multiply_per_axis", &ignored_shifts, &[&x, &m, &left_shifts, &right_shifts]);
    assert_eq!(actual.as_slice::<i32>(), [2, -1, 1 << 30, 50]);
}

#[test]
fn sums_of_products_subtract_zero_points() {
    // The dot product of (1 - 1, 3 - 1) with (2 - 1, 5 - 1) in the first output channel, and with (4 - 2, 0 - 2) in the
    // second.
    let x = Tensor::from_slice(&[1, 2], &[1u8, 3]);
    let w = Tensor::from_slice(&[2, 2], &[2u8, 5, 4, 0]);
    let zeros = Tensor::from_slice(&[2], &[1i32, 2]);
    let actual = run("qnn.dense", &Attrs::none(), &[&x, &w, &zero(1), &zeros, &scale_tensor(0.1), &f32s(&[0.5, 0.25])]);
    assert_eq!((actual.shape(), actual.as_slice::<i32>()), (&[1, 2][..], &[8, -4][..]));
    // Padding holds the zero point, which represents zero.
    let x = Tensor::from_slice(&[1, 1, 1, 2], &[10i8, 20]);
    let w = Tensor::from_slice(&[1, 1, 1, 3], &[1i8, 2, 3]);
    let pads = attrs([("padding", AttrValue::from([0, 1]))]);
    let actual = run("qnn.conv2d", &pads, &[&x, &w, &zero(10), &zero(0), &scale_tensor(1.0), &scale_tensor(1.0)]);
    assert_eq!(actual.as_slice::<i32>(), [3 * 10, 2 * 10]);
    let x = Tensor::from_slice(&[1, 1, 2], &[3i8, 4]);
    let y = Tensor::from_slice(&[1, 2, 1], &[5i8, 6]);
    let actual =
        run("qnn.batch_matmul", &Attrs::none(), &[&x, &y, &zero(1), &zero(2), &scale_tensor(1.0), &scale_tensor(1.0)]);
    assert_eq!(actual.as_slice::<i32>(), [2 * 3 + 3 * 4]);
    let x = Tensor::from_slice(&[1, 1, 1, 2], &[3u8, 5]);
    let w = Tensor::from_slice(&[1, 1, 1, 2], &[1i8, 2]);
    let actual = run(
        "qnn.conv2d_transpose",
        &Attrs::none(),
        &[&x, &w, &zero(3), &zero(0), &scale_tensor(1.0), &scale_tensor(1.0)],
    );
    assert_eq!(actual.as_slice::<i32>(), [0, 2, 4]);
}

#[test]
fn arithmetic_of_two_tensors() {
    let (a, b) = (Tensor::from_slice(&[4], &[10i8, -20, 127, -128]), Tensor::from_slice(&[1], &[4i8]));
    let args = |name: &str| {
        run(
            name,
            &Attrs::none(),
            &[&a, &b, &scale_tensor(0.5), &zero(0), &scale_tensor(1.0), &zero(2), &scale_tensor(0.25), &zero(1)],
        )
    };
    // lhs: 2 * x + 1; rhs: 4 * (4 - 2) + 1 = 9.
    assert_eq!(args("qnn.add").as_slice::<i8>(), [29, -31, 127, -128]);
    assert_eq!(args("qnn.subtract").as_slice::<i8>(), [13, -47, 127, -128]);
    // x * 2 * 0.5 / 0.25 + 1.
    assert_eq!(args("qnn.mul").as_slice::<i8>(), [41, -79, 127, -128]);
    let fields = |t: [&Tensor; 2]| Value::Tuple(t.map(Clone::clone).to_vec());
    let concatenated = call(
        "qnn.concatenate",
        &Attrs::none(),
        &[
            fields([&a, &b]),
            fields([&scale_tensor(0.5), &scale_tensor(1.0)]),
            fields([&zero(0), &zero(2)]),
            Value::Tensor(scale_tensor(1.0)),
            Value::Tensor(zero(2)),
        ],
    );
    assert_eq!(concatenated.unwrap()[0].as_slice::<i8>(), [7, -8, 66, -62, 4]);
}

#[test]
fn functions_of_one_tensor() {
    let x = Tensor::from_slice(&[5], &[0u8, 64, 128, 192, 255]);
    let apply = |name: &str, apply_attrs: &Attrs, scale: f32, point: i32| {
        run(name, apply_attrs, &[&x, &scale_tensor(1.0 / 16.0), &zero(128), &scale_tensor(scale), &zero(point)])
            .as_slice::<u8>()
            .to_vec()
    };
    let expected = |f: fn(f64) -> f64, scale: f64, point: f64| -> Vec<u8> {
        let value = |q: &u8| (f((f64::from(*q) - 128.0) / 16.0) / scale).round() + point;
        x.as_slice::<u8>().iter().map(|q| value(q).clamp(0.0, 255.0) as u8).collect()
    };
    let no_attrs = Attrs::none();
    assert_eq!(apply("qnn.tanh", &no_attrs, 1.0 / 128.0, 128), expected(f64::tanh, 1.0 / 128.0, 128.0));
    assert_eq!(
        apply("qnn.sigmoid", &no_attrs, 1.0 / 256.0, 0),
        expected(|x| 1.0 / (1.0 + (-x).exp()), 1.0 / 256.0, 0.0)
    );
    assert_eq!(apply("qnn.exp", &no_attrs, 1.0, 0), expected(f64::exp, 1.0, 0.0));
    assert_eq!(apply("qnn.sqrt", &no_attrs, 1.0 / 64.0, 0)[2..], expected(f64::sqrt, 1.0 / 64.0, 0.0)[2..]);
    assert_eq!(apply("qnn.abs", &no_attrs, 1.0 / 16.0, 0), [128, 64, 0, 64, 127]);
    assert_eq!(apply("qnn.erf", &no_attrs, 1.0 / 64.0, 64), [0, 0, 64, 128, 128]);
    assert_eq!(apply("qnn.hardswish", &no_attrs, 0.125, 4), [4, 4, 4, 36, 68]);
    assert_eq!(apply("qnn.log", &no_attrs, 1.0 / 16.0, 0)[3..], [22, 33]);
    assert_eq!(apply("qnn.rsqrt", &no_attrs, 1.0 / 64.0, 0)[3..], [32, 23]);
    let slope_attrs = attrs([("alpha", AttrValue::Float(0.5))]);
    assert_eq!(apply("qnn.leaky_relu", &slope_attrs, 1.0 / 16.0, 128), [64, 96, 128, 192, 255]);
    let softmax = apply("qnn.softmax", &no_attrs, 1.0 / 256.0, 0);
    assert_eq!(softmax, [0, 0, 0, 5, 251]);
    let plane = Tensor::from_slice(&[1, 1, 2, 2], &[10u8, 20, 30, 41]);
    let pool = attrs([("pool_size", AttrValue::from([2, 2]))]);
    let mean = run("qnn.avg_pool2d", &pool, &[&plane, &scale_tensor(0.5), &zero(10), &scale_tensor(0.25), &zero(0)]);
    // The mean is (0 + 10 + 20 + 31) / 4 = 15.25, and 15.25 * 0.5 / 0.25 = 30.5 is rounded away from zero.
    assert_eq!(mean.as_slice::<u8>(), [31]);
}

#[test]
fn types_of_the_dialect() {
    let (s, z) = (Type::scalar(DType::F32), Type::scalar(DType::I32));
    let data = Type::tensor(DType::U8, &[1, 3, 8, 8]);
    let weight = Type::tensor(DType::I8, &[4, 3, 3, 3]);
    let conv = |w: &Type, kernel_scale: &Type| {
        inferred_type(
            "qnn.conv2d",
            &Attrs::none(),
            &[data.clone(), w.clone(), z.clone(), z.clone(), s.clone(), kernel_scale.clone()],
        )
    };
    assert_eq!(conv(&weight, &Type::tensor(DType::F32, &[4])).as_deref(), Ok("Tensor[(1, 4, 6, 6), int32]"));
    assert!(
        conv(&weight, &Type::tensor(DType::F32, &[3]))
            .unwrap_err()
            .contains("kernel_scale and its axis: expected equal dimensions, found 3 and 4")
    );
    let float = Type::tensor(DType::F32, &[4, 3, 3, 3]);
    assert!(conv(&float, &s).unwrap_err().contains("weight: expected int8, uint8, int16 or uint16, found float32"));
    let pair = |a: DType, b: DType| {
        let mut args = vec![Type::tensor(a, &[2, 1]), Type::tensor(b, &[3])];
        args.extend([&s, &z, &s, &z, &s, &z].map(Clone::clone));
        inferred_type("qnn.add", &Attrs::none(), &args)
    };
    assert_eq!(pair(DType::I8, DType::I8).as_deref(), Ok("Tensor[(2, 3), int8]"));
    assert!(pair(DType::I8, DType::U8).unwrap_err().contains("expected equal element types"));
    let unary_args = |data: Type| [data, s.clone(), z.clone(), s.clone(), z.clone()];
    let softmax_attrs = attrs([("axis", AttrValue::Int(4))]);
    assert!(inferred_type("qnn.softmax", &softmax_attrs, &unary_args(data.clone())).unwrap_err().contains("axis 4"));
    assert_eq!(
        inferred_type("qnn.tanh", &Attrs::none(), &unary_args(data.clone())).as_deref(),
        Ok("Tensor[(1, 3, 8, 8), uint8]")
    );
    let pool = attrs([("pool_size", AttrValue::from([2, 2])), ("strides", AttrValue::from([2, 2]))]);
    assert_eq!(
        inferred_type("qnn.avg_pool2d", &pool, &unary_args(data.clone())).as_deref(),
        Ok("Tensor[(1, 3, 4, 4), uint8]")
    );
    let error = inferred_type("qnn.requantize", &string_attr("out_dtype", "float32"), &unary_args(data));
    assert!(error.unwrap_err().contains("found float32"), "expected an error that names float32");
}

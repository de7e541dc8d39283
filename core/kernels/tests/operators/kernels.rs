//! Tests the fast kernels against the naive references, over many shapes, and in place where the kernels support it.

use super::attrs;
use byoc_ir::ir::{AttrValue, Attrs, TensorType};
use byoc_ir::op::{self, Value};
use byoc_ir::tensor::{AlignedBytes, DType, Tensor, TensorView, TensorViewMut};
use byoc_kernels::{self, Spec};
use byoc_test_support::random::Random;

/// Returns pseudorandom numbers between -4 and 4, occasionally zero.
fn noise(shape: &[usize], seed: u64) -> Tensor {
    let mut random = Random::new(seed);
    let values: Vec<f32> =
        (0..shape.iter().product()).map(|_| if random.below(17) == 0 { 0.0 } else { 4.0 * random.float() }).collect();
    Tensor::from_slice(shape, &values)
}

/// Allowed difference from the reference.
#[derive(Clone, Copy)]
enum Tolerance {
    /// Identical bits, except that all NaNs are equal.
    Exact,
    /// Number of units in the last place of float32.
    Units(f64),
    /// Absolute error of a sum or a mean.
    Sum(f64),
}

fn assert_close(case: &str, actual: &Tensor, expected: &Tensor, tolerance: Tolerance) {
    assert_eq!((actual.dtype(), actual.shape()), (expected.dtype(), expected.shape()), "{case}");
    for (i, (g, w)) in actual.view().to_f64s().into_iter().zip(expected.view().to_f64s()).enumerate() {
        let bound = match tolerance {
            Tolerance::Exact => 0.0,
            Tolerance::Units(n) => n * (w.abs() * 2f64.powi(-23)).max(f64::from(f32::from_bits(1))),
            Tolerance::Sum(n) => n,
        };
        let is_close = g.to_bits() == w.to_bits() || g == w || (g.is_nan() && w.is_nan()) || (g - w).abs() <= bound;
        assert!(is_close, "{case}: element {i}: expected {w:e}, found {g:e}");
    }
}

/// Compares the kernel of a call with the reference, out of place and, where supported, in place.
fn check(name: &str, attrs: &Attrs, args: &[Value], tolerance: Tolerance) {
    let id = op::lookup(name).unwrap_or_else(|| panic!("unknown operator {name}"));
    let def = op::get(id);
    let attrs = op::normalize_attrs(def, attrs.clone()).unwrap();
    let expected = op::evaluate(id, &attrs, args, 1 << 30).unwrap_or_else(|error| panic!("{error}"));
    let tensors: Vec<&Tensor> = args
        .iter()
        .flat_map(|arg| match arg {
            Value::Tensor(t) => std::slice::from_ref(t),
            Value::Tuple(fields) => fields.as_slice(),
        })
        .collect();
    let types = |tensors: &[&Tensor]| -> Vec<TensorType> {
        tensors.iter().map(|t| TensorType::fixed(t.dtype(), t.shape())).collect()
    };
    let (inputs, outputs) = (types(&tensors), types(&expected.iter().collect::<Vec<_>>()));
    let constants = vec![None; inputs.len()];
    let spec = Spec { def, attrs: &attrs, inputs: &inputs, outputs: &outputs, constants: &constants };
    let kernel = byoc_kernels::make(id, &spec).unwrap();
    let shapes: Vec<&[usize]> = tensors.iter().map(|t| t.shape()).collect();
    let case = format!("{name} of {shapes:?}");

    let views: Vec<TensorView<'_>> = tensors.iter().map(|t| t.view()).collect();
    // The fill pattern reveals elements that a kernel does not write.
    let filled_buffer = |t: &Tensor| AlignedBytes::copy_of(&vec![0xa5; t.bytes().len()]).unwrap();
    let mut buffers: Vec<AlignedBytes> = expected.iter().map(filled_buffer).collect();
    let run = |buffers: &mut [AlignedBytes], call: &dyn Fn(&mut [TensorViewMut<'_>]) -> Result<(), String>| {
        let mut out: Vec<TensorViewMut<'_>> = buffers
            .iter_mut()
            .zip(&expected)
            .map(|(b, t)| TensorViewMut { dtype: t.dtype(), shape: t.shape(), data: b.as_mut() })
            .collect();
        call(&mut out).unwrap();
    };
    let compare = |buffers: &[AlignedBytes], case: &str| {
        for (buffer, expected) in buffers.iter().zip(&expected) {
            assert_close(
                case,
                &Tensor::from_bytes(expected.dtype(), expected.shape(), buffer.as_ref()).unwrap(),
                expected,
                tolerance,
            );
        }
    };
    let bytes = kernel.workspace();
    run(&mut buffers, &|out| kernel.run(&views, out, AlignedBytes::zeroed(bytes).unwrap().as_mut()));
    compare(&buffers, &case);

    if let Some(input) = kernel.in_place() {
        let mut buffers = vec![AlignedBytes::copy_of(tensors[input].bytes()).unwrap()];
        let mut remaining_views = views.clone();
        remaining_views.remove(input);
        run(&mut buffers, &|out| kernel.run_in_place(&remaining_views, out));
        compare(&buffers, &format!("{case} in place of {input}"));
    }
}

fn single_value(t: Tensor) -> [Value; 1] {
    [Value::Tensor(t)]
}

fn ints<const N: usize>(values: [i64; N]) -> AttrValue {
    AttrValue::from(values)
}

#[test]
fn unary_kernels_on_the_whole_range() {
    // All exponents and signs with some significands, among them zeros, denormals, infinities and NaN.
    let range: Vec<f32> = (0..1u32 << 16).map(|i| f32::from_bits(i << 16 | i.wrapping_mul(40503) & 0xffff)).collect();
    let range = Tensor::from_slice(&[range.len()], &range);
    // Arguments in the range in which the approximations switch from one formula to another.
    let middle: Vec<f32> = (-100_000..100_000).map(|i| i as f32 * 1e-4).collect();
    let middle = Tensor::from_slice(&[middle.len()], &middle);
    let exact_operators = ["nn.relu", "abs", "negative", "sign", "floor", "ceil", "round", "trunc", "sqrt", "copy"];
    let units = [
        ("rsqrt", 2.0),
        ("exp", 2.0),
        ("log", 2.0),
        ("log2", 2.0),
        ("log10", 3.0),
        ("sigmoid", 3.0),
        ("tanh", 3.0),
        ("erf", 3.0),
        ("sin", 1.0),
        ("cos", 1.0),
        ("tan", 1.0),
        ("asin", 1.0),
        ("acos", 1.0),
        ("atan", 1.0),
        ("sinh", 1.0),
        ("cosh", 1.0),
    ];
    for data in [&range, &middle] {
        for name in exact_operators {
            check(name, &Attrs::none(), &single_value(data.clone()), Tolerance::Exact);
        }
        for (name, units) in units {
            check(name, &Attrs::none(), &single_value(data.clone()), Tolerance::Units(units));
        }
        check(
            "clip",
            &attrs([("a_min", 0.0.into()), ("a_max", 6.0.into())]),
            &single_value(data.clone()),
            Tolerance::Exact,
        );
        check("nn.leaky_relu", &attrs([("alpha", 0.5.into())]), &single_value(data.clone()), Tolerance::Exact);
    }
    for shape in [&[][..], &[0], &[1], &[3, 0, 2], &[7, 31], &[3, 41, 501]] {
        check("tanh", &Attrs::none(), &single_value(noise(shape, 1)), Tolerance::Units(3.0));
        check("nn.relu", &Attrs::none(), &single_value(noise(shape, 2)), Tolerance::Exact);
    }
}

#[test]
fn binary_kernels_broadcast() {
    let pairs: [(&[usize], &[usize]); 16] = [
        (&[], &[]),
        (&[5], &[]),
        (&[], &[5]),
        (&[0, 3], &[1, 3]),
        (&[7, 9], &[7, 9]),
        (&[2, 3, 17], &[17]),
        (&[17], &[2, 3, 17]),
        (&[1, 8, 5, 5], &[8, 1, 1]),
        (&[8, 1, 1], &[1, 8, 5, 5]),
        (&[2, 5, 1], &[2, 5, 33]),
        (&[4, 1, 6, 1], &[1, 3, 1, 5]),
        (&[2, 1, 3], &[1, 4, 1]),
        (&[100, 700], &[700]),
        (&[300, 1], &[1, 401]),
        (&[99_999], &[1]),
        (&[1, 1, 1, 70_001], &[70_001]),
    ];
    let exact_operators = ["add", "subtract", "multiply", "divide", "maximum", "minimum"];
    let comparisons = ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"];
    for (a, b) in pairs {
        let args = [Value::Tensor(noise(a, 3)), Value::Tensor(noise(b, 4))];
        for name in exact_operators.into_iter().chain(comparisons) {
            check(name, &Attrs::none(), &args, Tolerance::Exact);
        }
        check("power", &Attrs::none(), &args, Tolerance::Units(1.0));
        // Operators without a fast kernel are executed by the reference.
        check("floor_mod", &Attrs::none(), &args, Tolerance::Exact);
    }
    let special_values = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, 1.0, -2.5, 1e-40];
    let column = Tensor::from_slice(&[8, 1], &special_values);
    let args = [Value::Tensor(column), Value::Tensor(Tensor::from_slice(&[8], &special_values))];
    for name in exact_operators.into_iter().chain(comparisons) {
        check(name, &Attrs::none(), &args, Tolerance::Exact);
    }
    check("power", &Attrs::none(), &args, Tolerance::Units(1.0));
    check(
        "power",
        &Attrs::none(),
        &[Value::Tensor(noise(&[3, 5], 1)), Value::Tensor(Tensor::scalar(2f32))],
        Tolerance::Exact,
    );
}

#[test]
fn where_kernels() {
    let shapes: [[&[usize]; 3]; 6] = [
        [&[], &[], &[]],
        [&[4, 5], &[4, 5], &[4, 5]],
        [&[4, 1], &[5], &[]],
        [&[1, 1, 6, 6], &[2, 3, 6, 6], &[]],
        [&[0], &[1], &[]],
        [&[200, 300], &[300], &[200, 1]],
    ];
    for [c, x, y] in shapes {
        let zero = Tensor::scalar(0f32);
        let condition = super::run("less", &Attrs::none(), &[&noise(c, 1), &zero]);
        for dtype in [DType::F32, DType::F64, DType::I16, DType::U8] {
            let cast = |t: &Tensor| super::run("cast", &attrs([("dtype", dtype.into())]), &[t]);
            let args = [condition.clone(), cast(&noise(x, 2)), cast(&noise(y, 3))].map(Value::Tensor);
            check("where", &Attrs::none(), &args, Tolerance::Exact);
        }
    }
}

/// Returns one tensor per element size, each with the elements 0, 1, 2, ...
fn counting_tensors(shape: &[usize]) -> [Tensor; 4] {
    let n = shape.iter().product::<usize>();
    [
        Tensor::from_slice(shape, &(0..n).map(|i| i as u8).collect::<Vec<_>>()),
        Tensor::from_slice(shape, &(0..n).map(|i| i as i16).collect::<Vec<_>>()),
        Tensor::from_slice(shape, &(0..n).map(|i| i as f32).collect::<Vec<_>>()),
        Tensor::from_slice(shape, &(0..n).map(|i| i as i64).collect::<Vec<_>>()),
    ]
}

fn check_all_widths(name: &str, attrs: &Attrs, shape: &[usize]) {
    for data in counting_tensors(shape) {
        check(name, attrs, &single_value(data), Tolerance::Exact);
    }
}

#[test]
fn transposes() {
    let permutations: [(&[usize], &[i64]); 14] = [
        (&[], &[]),
        (&[5], &[0]),
        (&[0, 4], &[1, 0]),
        (&[3, 5], &[1, 0]),
        (&[16, 16], &[1, 0]),
        (&[100, 333], &[1, 0]),
        (&[2, 3, 4], &[2, 0, 1]),
        (&[2, 17, 19], &[0, 2, 1]),
        (&[2, 9, 4, 8], &[0, 2, 1, 3]),
        (&[2, 9, 4, 8], &[0, 2, 3, 1]),
        (&[1, 3, 40, 50], &[0, 2, 3, 1]),
        (&[2, 37, 5, 3], &[3, 1, 0, 2]),
        (&[2, 3, 1, 5, 7], &[4, 2, 3, 0, 1]),
        (&[33, 2, 35], &[2, 1, 0]),
    ];
    for (shape, axes) in permutations {
        check_all_widths("transpose", &attrs([("axes", axes.into())]), shape);
    }
    for (source, target, shape) in [
        ("NCHW", "NHWC", &[2, 5, 6, 7][..]),
        ("NHWC", "NCHW", &[2, 5, 6, 7]),
        ("NCHW", "NCHW8c", &[1, 16, 5, 6]),
        ("NCHW8c", "NCHW", &[1, 3, 5, 6, 8]),
        ("NCHW8c", "NCHW4c", &[1, 3, 5, 6, 8]),
        ("NCHW4c", "NHWC", &[2, 3, 5, 6, 4]),
        ("NCHW6c", "NCHW4c", &[1, 2, 2, 2, 6]),
        ("OIHW", "OIHW4i8o", &[16, 8, 3, 3]),
        ("NCHW8c", "NCHW8c", &[1, 0, 5, 6, 8]),
    ] {
        check_all_widths(
            "layout_transform",
            &attrs([("src_layout", source.into()), ("dst_layout", target.into())]),
            shape,
        );
    }
}

#[test]
fn slices_and_repeats() {
    let slice = |begin: &[i64], end: &[i64], strides: &[i64]| {
        attrs([("begin", begin.into()), ("end", end.into()), ("strides", strides.into())])
    };
    let axis_end = i64::MAX;
    for shape in [&[6, 7, 8][..], &[1, 40, 300], &[5, 0, 3]] {
        check_all_widths("strided_slice", &slice(&[0, 2, 1], &[axis_end, 0, axis_end], &[1, -1, 2]), shape);
        check_all_widths("strided_slice", &slice(&[-1], &[axis_end], &[1]), shape);
        check_all_widths("strided_slice", &slice(&[0, 1], &[axis_end, -1], &[1]), shape);
        check_all_widths("strided_slice", &slice(&[0, 0, 3], &[axis_end, axis_end, 5], &[1]), shape);
        check_all_widths(
            "strided_slice",
            &slice(&[axis_end, axis_end, axis_end], &[i64::MIN; 3], &[-1, -3, -2]),
            shape,
        );
        check_all_widths("strided_slice", &slice(&[0], &[axis_end], &[i64::MAX]), shape);
        for axis in [0, 1, -1] {
            check_all_widths("reverse", &attrs([("axis", axis.into())]), shape);
            check_all_widths("repeat", &attrs([("axis", axis.into()), ("repeats", 3.into())]), shape);
        }
        check_all_widths("tile", &attrs([("reps", ints([2, 1, 3]))]), shape);
        check_all_widths("tile", &attrs([("reps", ints([2, 1, 1, 2]))]), shape);
    }
    check_all_widths("broadcast_to", &attrs([("shape", ints([3, 5, 4, 70]))]), &[5, 1, 70]);
    check_all_widths("broadcast_to", &attrs([("shape", ints([300, 200]))]), &[300, 1]);
    check_all_widths("broadcast_to", &attrs([("shape", ints([2, 0]))]), &[1]);
    check_all_widths("broadcast_to", &attrs([("shape", ints([4]))]), &[]);
    for (data, reference) in counting_tensors(&[4, 5]).into_iter().zip(counting_tensors(&[3, 2])) {
        check("slice_like", &Attrs::none(), &[Value::Tensor(data), Value::Tensor(reference)], Tolerance::Exact);
    }
}

#[test]
fn reductions() {
    let cases: [(&[usize], Option<&[i64]>); 18] = [
        (&[], None),
        (&[7], None),
        (&[5000], None),
        (&[3, 70_001], None),
        (&[0, 3], Some(&[0])),
        (&[3, 0], Some(&[1])),
        (&[3, 0], Some(&[0])),
        (&[2, 768], Some(&[-1])),
        (&[128, 33], Some(&[1])),
        (&[128, 33], Some(&[0])),
        (&[40, 3000], Some(&[0])),
        (&[2, 19, 7, 7], Some(&[2, 3])),
        (&[2, 7, 7, 19], Some(&[1, 2])),
        (&[4, 6, 5, 9], Some(&[0, 2])),
        (&[4, 6, 5, 9], Some(&[1, 3])),
        (&[4, 6, 5, 9], Some(&[0, 2, 3])),
        (&[1, 6, 1, 9], Some(&[2])),
        (&[3, 5], Some(&[0, 1])),
    ];
    for (shape, axis) in cases {
        let data = noise(shape, 7);
        let group: usize = axis.map_or(shape.iter().product(), |axes| {
            axes.iter().map(|&a| shape[a.rem_euclid(shape.len() as i64) as usize]).product()
        });
        // Each of n additions has a rounding error of up to 2^-24 times the partial sum. The elements are at most 4 in
        // magnitude; due to cancellation, the partial sum is assumed to be at most 4 * max(sqrt(n), 4).
        let sum = Tolerance::Sum(group as f64 * 4.0 * 2f64.powi(-24) * (group as f64).sqrt().max(4.0));
        let base = axis.map_or(Attrs::none(), |a| attrs([("axis", a.into())]));
        for variant in [base.clone(), base.with("keepdims", true), base.with("exclude", true)] {
            if variant.get("exclude").is_some() && axis.is_none() {
                continue;
            }
            let is_excluded = variant.get("exclude").is_some();
            for name in ["max", "min"] {
                check(name, &variant, &single_value(data.clone()), Tolerance::Exact);
            }
            if is_excluded {
                let all = shape.iter().product::<usize>() as f64;
                check(
                    "sum",
                    &variant,
                    &single_value(data.clone()),
                    Tolerance::Sum(all * 4.0 * 2f64.powi(-24) * all.sqrt().max(4.0)),
                );
                continue;
            }
            check("sum", &variant, &single_value(data.clone()), sum);
            check(
                "mean",
                &variant,
                &single_value(data.clone()),
                Tolerance::Sum(4.0 * 2f64.powi(-24) * (group as f64).sqrt().max(4.0)),
            );
            if group > 0 {
                check("argmax", &variant, &single_value(data.clone()), Tolerance::Exact);
                check("argmin", &variant, &single_value(data.clone()), Tolerance::Exact);
                let mean = super::run("mean", &base.with("keepdims", true), &[&data]);
                let args = [Value::Tensor(data.clone()), Value::Tensor(mean)];
                check("variance", &variant, &args, Tolerance::Units(32.0));
            }
            if group <= 768 {
                let values_near_one = super::run(
                    "exp",
                    &Attrs::none(),
                    &[&super::run("multiply", &Attrs::none(), &[&data, &Tensor::scalar(0.01f32)])],
                );
                check("prod", &variant, &single_value(values_near_one), Tolerance::Units(group as f64 + 1.0));
            }
        }
    }
    let rows = [f32::NAN, 1.0, 2.0, f32::INFINITY, f32::NEG_INFINITY, -0.0, 0.0, -1.0, f32::NAN, f32::NAN, 3.0, 3.0];
    let rows = Tensor::from_slice(&[4, 3], &rows);
    for name in ["max", "min", "sum", "mean", "prod", "argmax", "argmin"] {
        for axis in [0, 1] {
            check(name, &attrs([("axis", ints([axis]))]), &single_value(rows.clone()), Tolerance::Units(1.0));
        }
    }
    let empty = Tensor::from_slice::<f32>(&[0, 3, 2, 4], &[]);
    for name in ["sum", "prod", "max"] {
        check(name, &attrs([("axis", ints([0, 2]))]), &single_value(empty.clone()), Tolerance::Exact);
    }
    // The product of the elements before the zero exceeds the range of binary32.
    let mut column = [1e30f32; 84];
    column[70] = 0.0;
    for shape in [[1, 84], [84, 1], [42, 2]] {
        let values = Tensor::from_slice(&shape, &column);
        check("prod", &attrs([("axis", ints([0]))]), &single_value(values.clone()), Tolerance::Units(1.0));
        check("prod", &attrs([("axis", ints([1]))]), &single_value(values), Tolerance::Units(1.0));
    }
}

#[test]
fn block_copies() {
    for (shapes, axis) in [
        (&[&[2, 3][..], &[4, 3]][..], 0),
        (&[&[2, 3], &[2, 1], &[2, 0]], -1),
        (&[&[5, 64, 20], &[5, 64, 20], &[5, 1, 20]], 1),
        (&[&[0, 3], &[0, 4]], 1),
        (&[&[70, 500], &[70, 100]], 1),
    ] {
        for element in 0..4 {
            let fields: Vec<Tensor> = shapes.iter().map(|s| counting_tensors(s)[element].clone()).collect();
            check("concatenate", &attrs([("axis", axis.into())]), &[Value::Tuple(fields.clone())], Tolerance::Exact);
            let equal_fields = vec![fields[0].clone(), fields[0].clone(), fields[0].clone()];
            for axis in [0, 1, -1] {
                check(
                    "stack",
                    &attrs([("axis", axis.into())]),
                    &[Value::Tuple(equal_fields.clone())],
                    Tolerance::Exact,
                );
            }
        }
    }
    for shape in [&[4, 6, 8][..], &[4, 0, 8], &[60, 90, 20]] {
        for axis in [0, 1, -1] {
            let split = |value: AttrValue| attrs([("indices_or_sections", value), ("axis", axis.into())]);
            check_all_widths("split", &split(2.into()), shape);
            if shape[1] > 0 {
                check_all_widths("split", &split(ints([1, 1, 3])), shape);
            }
        }
    }
    let index = |shape: &[usize], values: &[i32]| Tensor::from_slice(shape, values);
    let indices = [index(&[], &[1]), index(&[0], &[]), index(&[2, 3], &[0, 1, 2, 2, -1, 7])];
    for indices in &indices {
        let wide_indices = super::run("cast", &attrs([("dtype", "int64".into())]), &[indices]);
        let short_indices = super::run("cast", &attrs([("dtype", "int16".into())]), &[indices]);
        for (data, indices) in
            counting_tensors(&[3, 4, 5]).into_iter().zip([indices, &wide_indices, &short_indices, indices])
        {
            for mode in ["clip", "wrap"] {
                for axis in [AttrValue::None, 0.into(), 1.into(), (-1).into()] {
                    let args = [Value::Tensor(data.clone()), Value::Tensor(indices.clone())];
                    check("take", &attrs([("axis", axis), ("mode", mode.into())]), &args, Tolerance::Exact);
                }
            }
        }
    }
    let batched = [Value::Tensor(noise(&[2, 3, 4, 5], 1)), Value::Tensor(index(&[2, 2], &[3, 0, 1, 2]))];
    check("take", &attrs([("axis", 2.into()), ("batch_dims", 1.into())]), &batched, Tolerance::Exact);
    let large_table = [Value::Tensor(noise(&[100, 768], 1)), Value::Tensor(index(&[2, 50], &[3; 100]))];
    check("take", &attrs([("axis", 0.into()), ("mode", "fast".into())]), &large_table, Tolerance::Exact);
}

#[test]
fn casts() {
    let values = [0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 127.6, 255.5, -300.0, 65520.0, 1e10, -1e20, 1e-45];
    let mut values: Vec<f32> = values.to_vec();
    values.extend([f32::NAN, f32::INFINITY, f32::NEG_INFINITY]);
    let floats = Tensor::from_slice(&[values.len()], &values);
    let integers: Vec<i64> = vec![0, 1, -1, 127, 128, 255, 256, -129, 1 << 24 | 1, i64::MAX, i64::MIN, (1 << 53) + 1];
    let integers = Tensor::from_slice(&[integers.len()], &integers);
    let cast_to = |dtype: DType| attrs([("dtype", dtype.into())]);
    for &from in DType::ALL {
        for source in [&floats, &integers] {
            let source = super::run("cast", &cast_to(from), &[source]);
            for &target in DType::ALL {
                check("cast", &cast_to(target), &single_value(source.clone()), Tolerance::Exact);
            }
        }
    }
    check("cast", &cast_to(DType::I32), &single_value(noise(&[300, 301], 5)), Tolerance::Exact);
    let reference = [Value::Tensor(noise(&[3, 4], 5)), Value::Tensor(Tensor::scalar(1i32))];
    check("cast_like", &Attrs::none(), &reference, Tolerance::Exact);
}

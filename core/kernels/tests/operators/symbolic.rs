//! Tests of the type relations over symbolic dimensions: substituting numbers for the symbols in the result must yield
//! the type inferred from the numbers.

use super::{f32s, infer};
use byoc_ir::ir::{AttrValue, Attrs, Dim, Type};

fn with_sizes(ty: &Type, sizes: [usize; 2]) -> Type {
    let size = |name: &str| ["n", "m"].iter().position(|symbol| *symbol == name).map(|i| sizes[i]);
    match ty {
        Type::Tuple(fields) => Type::tuple(fields.iter().map(|field| with_sizes(field, sizes))),
        Type::Tensor(tensor) => Type::tensor_of(tensor.dtype, tensor.dims.iter().map(|dim| dim.with_sizes(size))),
        other => other.clone(),
    }
}

/// Checks an operator for all small values of the symbolic dimensions. Values for which inference fails are skipped:
/// with symbolic dimensions, they fail at run time.
fn check(name: &str, list: &[(&str, AttrValue)], args: &[&str], expected: &str) {
    let attrs = Attrs::new(list.iter().cloned());
    let args: Vec<Type> = match args {
        ["tuple", fields @ ..] => vec![Type::tuple(fields.iter().map(|dims| f32s(dims)))],
        dims => dims.iter().map(|dims| f32s(dims)).collect(),
    };
    let symbolic_type = infer(name, &attrs, &args).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(symbolic_type.to_string(), expected, "{name}");
    let mut compared_count = 0;
    for n in 1..25 {
        for m in [1, 2, 5, 8] {
            let fixed: Vec<Type> = args.iter().map(|ty| with_sizes(ty, [n, m])).collect();
            if let Ok(fixed) = infer(name, &attrs, &fixed) {
                assert_eq!(with_sizes(&symbolic_type, [n, m]), fixed, "{name} of n = {n}, m = {m}");
                compared_count += 1;
            }
        }
    }
    assert!(compared_count >= 8, "{name}: expected at least 8 valid sizes, found {compared_count}");
}

fn ints<const N: usize>(values: [i64; N]) -> AttrValue {
    AttrValue::ints(values)
}

fn window(kernel: i64, stride: i64, pad: i64) -> [(&'static str, AttrValue); 3] {
    [("pool_size", ints([kernel])), ("strides", ints([stride])), ("padding", ints([pad]))]
}

fn slice_attrs(begin: i64, end: i64, step: i64) -> [(&'static str, AttrValue); 3] {
    [("begin", ints([begin])), ("end", ints([end])), ("strides", ints([step]))]
}

#[test]
fn windows() {
    let t = |dims: &str| format!("Tensor[({dims}), float32]");
    check("nn.max_pool2d", &window(2, 2, 0), &["1, 3, n, m"], &t("1, 3, floordiv(n, 2), floordiv(m, 2)"));
    check("nn.avg_pool1d", &window(3, 2, 1), &["1, 3, n"], &t("1, 3, floordiv(n + 1, 2)"));
    check("nn.avg_pool1d", &window(3, 1, 1), &["1, 3, n"], &t("1, 3, n"));
    let ceil_attrs = [&window(3, 2, 0)[..], &[("ceil_mode", true.into())]].concat();
    check("nn.max_pool1d", &ceil_attrs, &["n, 3, m"], &t("n, 3, floordiv(m, 2)"));
    let conv_attrs = [("strides", ints([2, 1])), ("padding", ints([3, 2])), ("dilation", ints([1, 2]))];
    check("nn.conv2d", &conv_attrs, &["n, 3, m, n", "8, 3, 7, 3"], &t("n, 8, floordiv(m + 1, 2), n"));
    check("nn.conv2d", &[], &["1, 3, n, n", "8, 3, m, 1"], &t("1, 8, -m + n + 1, n"));
    let transpose_attrs = [("strides", ints([2])), ("padding", ints([1])), ("output_padding", ints([1]))];
    check("nn.conv1d_transpose", &transpose_attrs, &["1, 3, n", "3, 8, 3"], &t("1, 8, 2*n"));
}

#[test]
fn slices() {
    let t = |dims: &str| format!("Tensor[({dims}), float32]");
    let axis_end = i64::MAX;
    for (begin, end, step, dims) in [
        (0, axis_end, 1, "n"),
        (0, axis_end, 2, "floordiv(n + 1, 2)"),
        (3, axis_end, 1, "max(0, n - 3)"),
        (0, 8, 1, "min(8, n)"),
        (0, -2, 1, "max(0, n - 2)"),
        (2, -2, 3, "floordiv(max(0, n - 4) + 2, 3)"),
        (-3, axis_end, 1, "min(3, n)"),
        (-3, -1, 1, "max(0, min(2, n - 1))"),
        (2, 5, 1, "max(0, min(5, n) - 2)"),
        (-5, 3, 1, "max(0, min(3, -n + min(3, n) + 5, n))"),
    ] {
        check("strided_slice", &slice_attrs(begin, end, step), &["n"], &t(dims));
    }
    let sizes = [("begin", ints([2])), ("end", ints([3])), ("slice_mode", "size".into())];
    check("strided_slice", &sizes, &["n"], &t("max(0, min(5, n) - 2)"));
}

#[test]
fn shapes() {
    let t = |dims: &str| format!("Tensor[({dims}), float32]");
    check("concatenate", &[("axis", 1.into())], &["tuple", "2, n", "2, m", "2, 3"], &t("2, m + n + 3"));
    check("nn.pad", &[("pad_width", ints_of([[0, 0], [1, 2]]))], &["n, m", ""], &t("n, m + 3"));
    check("tile", &[("reps", ints([2, 3]))], &["n, m"], &t("2*n, 3*m"));
    check("nn.space_to_depth", &[("block_size", 2.into())], &["1, m, n, 4"], &t("1, 4*m, floordiv(n, 2), 2"));
    check("nn.depth_to_space", &[("block_size", 2.into())], &["1, 8, n, m"], &t("1, 2, 2*n, 2*m"));
    check("reshape", &[("newshape", ints([-1, 4]))], &["n, 6"], &t("n + floordiv(n, 2), 4"));
    let thirds_attrs = [("indices_or_sections", 3.into()), ("axis", 0.into())];
    check("split", &thirds_attrs, &["n, 2"], &format!("({0}, {0}, {0})", t("floordiv(n, 3), 2")));
    let split_attrs = [("indices_or_sections", ints([1, 3])), ("axis", 0.into())];
    check("split", &split_attrs, &["n"], &format!("({}, {}, {})", t("1"), t("2"), t("n - 3")));
    check("nn.upsampling", &[("scale_h", 2.0.into()), ("scale_w", 3.0.into())], &["1, 1, n, m"], &t("1, 1, 2*n, 3*m"));
}

fn ints_of<const N: usize>(rows: [[i64; 2]; N]) -> AttrValue {
    AttrValue::List(rows.map(ints).into())
}

#[test]
fn what_cannot_be_written_is_unknown() {
    let ty = infer("nn.max_pool1d", &Attrs::new(window(2, 2, 0)), &[f32s("1, 1, ?")]).unwrap();
    assert_eq!(ty.as_tensor().unwrap().dims[2], Dim::Any);
}

#[test]
fn operators_of_relay() {
    let t = |dims: &str| format!("Tensor[({dims}), float32]");
    let pairs = |values: &[[i64; 2]]| AttrValue::List(values.iter().map(|pair| AttrValue::from(*pair)).collect());
    check("nn.mirror_pad", &[("pad_width", pairs(&[[1, 0], [2, 1]]))], &["n, m"], &t("n + 1, m + 3"));
    check("nn.dilate", &[("strides", ints([3, 1]))], &["n, m"], &t("3*n - 2, m"));
    let blocks = [("block_shape", ints([2])), ("paddings", pairs(&[[1, 0]]))];
    check("nn.space_to_batch_nd", &blocks, &["n, m"], &t("2*n, floordiv(m + 1, 2)"));
    let blocks = [("block_shape", ints([2])), ("crops", pairs(&[[1, 0]]))];
    check("nn.batch_to_space_nd", &blocks, &["n, m"], &t("floordiv(n, 2), 2*m - 1"));
    let window = [("axis", AttrValue::Int(1)), ("window_shape", ints([2])), ("strides", ints([3]))];
    check("sliding_window", &window, &["m, n"], &t("m, floordiv(n + 1, 3), 2"));
    let moved = [("max_displacement", AttrValue::Int(2)), ("stride1", 2.into()), ("padding", ints([1]))];
    check("nn.correlation", &moved, &["m, 3, n, 7", "m, 3, n, 7"], &t("m, 25, floordiv(n + 1, 2) - 1, 3"));
    check("vision.yolo_reorg", &[("stride", 2.into())], &["m, 4, n, 6"], &t("m, 16, floordiv(n, 2), 3"));
    let window = [("strides", ints([2, 1])), ("dilations", ints([1, 2]))];
    check("image.dilation2d", &window, &["m, 2, n, 9", "2, 3, 2"], &t("m, 2, floordiv(n + 1, 2) - 1, 7"));
    let scales = [("scale_d", AttrValue::Int(2)), ("scale_h", 3.into()), ("scale_w", 1.into())];
    check("nn.upsampling3d", &scales, &["1, 2, n, m, 4"], &t("1, 2, 2*n, 3*m, 4"));
    check("nn.fifo_buffer", &[("axis", 1.into())], &["m, 2", "m, n"], &t("m, n"));
    check("dft", &[], &["n, m", "n, m"], "(Tensor[(n, m), float32], Tensor[(n, m), float32])");
    let grids = "(Tensor[(m, n), float32], Tensor[(m, n), float32])";
    check("meshgrid", &[("indexing", "xy".into())], &["tuple", "n", "m"], grids);
    check("collapse_sum_like", &[], &["m, n, 4", "n, 1"], &t("n, 1"));
    let like = [("lhs_begin", AttrValue::Int(1)), ("rhs_end", 1.into())];
    check("reshape_like", &like, &["m, n", "n, 5"], &t("m, n"));
    check("nn.contrib_dense_pack", &[], &["n, 6", "m, 6, 4"], &t("n, 4*m"));
    let pool = [("pool_size", ints([2, 2])), ("strides", ints([2, 2]))];
    check("nn.max_pool2d_grad", &pool, &["1, m, n, 3", "1, m, 2*n, 6"], &t("1, m, 2*n, 6"));
}

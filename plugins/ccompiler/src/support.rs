//! Verdicts on operators, with the reasons for refusals.

use byoc_emit_c::anchors::{Anchor, anchor};
use byoc_emit_c::check::check_anchor;
use byoc_emit_c::elementwise::{expression, is_elementwise, names};
use byoc_emit_c::literals::c_type;
use byoc_emit_c::view_ops::is_view_op;
use byoc_emit_c::{anchors, elementwise};
use byoc_plugin_api::{DType, RefusalCode, Verdict};
use byoc_plugin_support::region::{Op, RegionIr};
use byoc_plugin_support::view;

/// Maximum number of operators in a region; a C compiler needs minutes for larger regions.
pub const MAX_OPERATORS: usize = 5_000;

const VIEWS: &[&str] = &[
    "reshape",
    "nn.batch_flatten",
    "squeeze",
    "expand_dims",
    "transpose",
    "strided_slice",
    "split",
    "broadcast_to",
    "copy",
];

/// Pattern table. Fusion within a region does not depend on it; the patterns keep operators together when several
/// backends share a model.
pub const PATTERNS: &str = "\
conv2d_bias_relu: nn.relu(nn.bias_add(nn.conv2d(*, const), const) | add(nn.conv2d(*, const), const))
conv2d_bias_clip: clip(nn.bias_add(nn.conv2d(*, const), const) | add(nn.conv2d(*, const), const))
conv2d_bias: nn.bias_add(nn.conv2d(*, const), const) | add(nn.conv2d(*, const), const)
dense_bias_relu: nn.relu(nn.bias_add(nn.dense(*, const), const) | add(nn.dense(*, const), const))
dense_bias: nn.bias_add(nn.dense(*, const), const) | add(nn.dense(*, const), const)
silu: multiply(*x, sigmoid(*x)) | multiply(sigmoid(*x), *x)
";

/// Returns the single operators for the description, in order of preference.
pub fn operators() -> Vec<String> {
    let anchors = anchors::ANCHORS.iter().map(|entry| entry.0);
    anchors.chain(names()).chain(VIEWS.iter().copied()).map(str::to_owned).collect()
}

/// Returns the verdict on an operator.
pub fn check(ir: &RegionIr<'_>, op: &Op<'_>) -> Verdict {
    let refuse = |code, detail: String| Verdict::refused(code, format!("{}: {detail}", op.name));
    for (i, &value) in op.inputs.iter().chain(&op.outputs).enumerate() {
        let value = ir.val(value);
        let operand =
            if i < op.inputs.len() { format!("input {i}") } else { format!("output {}", i - op.inputs.len()) };
        if c_type(value.dtype).is_none() {
            let detail = format!("{operand}: unsupported element type {}", value.dtype);
            return refuse(RefusalCode::UnsupportedDtype, detail);
        }
        if value.shape.contains(&0) {
            return refuse(RefusalCode::UnsupportedShape, format!("{operand}: expected at least 1 element, found 0"));
        }
        if view::count(&value.shape) > 1 << 31 {
            let detail = format!("{operand}: expected at most 2^31 elements, found {}", view::count(&value.shape));
            return refuse(RefusalCode::ResourceLimit, detail);
        }
    }
    if is_view_op(op.name) {
        return Verdict::Supported;
    }
    if is_elementwise(op.name) {
        return check_elementwise(ir, op);
    }
    let Some(kind) = anchor(op.name) else {
        return refuse(RefusalCode::UnsupportedOp, "ccompiler does not support this operator".into());
    };
    let is_move = matches!(kind, Anchor::Gather | Anchor::Concatenate | Anchor::Pad);
    for (i, &value) in op.inputs.iter().enumerate() {
        let dtype = ir.val(value).dtype;
        let is_index = kind == Anchor::Gather && i == 1;
        if is_index && !matches!(dtype, DType::I32 | DType::I64) {
            return refuse(RefusalCode::UnsupportedDtype, format!("expected int32 or int64 indices, found {dtype}"));
        }
        if !is_move && dtype != DType::F32 {
            return refuse(RefusalCode::UnsupportedDtype, format!("input {i}: expected float32, found {dtype}"));
        }
    }
    if !is_move && ir.val(op.outputs[0]).dtype != DType::F32 {
        let detail = format!("expected a float32 result, found {}", ir.val(op.outputs[0]).dtype);
        return refuse(RefusalCode::UnsupportedDtype, detail);
    }
    match check_anchor(ir, op, kind) {
        Ok(()) => Verdict::Supported,
        Err((code, detail)) => refuse(code, detail),
    }
}

fn check_elementwise(ir: &RegionIr<'_>, op: &Op<'_>) -> Verdict {
    let dtype = ir.val(op.inputs[0]).dtype;
    let refuse = |code, detail: String| Verdict::refused(code, format!("{}: {detail}", op.name));
    // C promotes small integers to int, so only operators without arithmetic produce the same result.
    let has_exact_arithmetic = matches!(dtype, DType::F32 | DType::F64 | DType::I32 | DType::I64);
    let is_exact_operator = matches!(op.name, "cast" | "where" | "equal" | "not_equal" | "logical_not")
        || op.name.starts_with("logical_")
        || (dtype == DType::BOOL && op.name.starts_with("bitwise_") && op.name != "bitwise_not");
    if !has_exact_arithmetic && !is_exact_operator {
        return refuse(RefusalCode::UnsupportedDtype, format!("unsupported element type {dtype}"));
    }
    let args: Vec<String> = (0..op.inputs.len()).map(|i| format!("x{i}")).collect();
    if expression(ir, op, &args).is_none() {
        let is_division = ["divide", "mod", "floor_divide", "floor_mod"].contains(&op.name);
        return if is_division {
            let is_constant = op.inputs.get(1).is_some_and(|&divisor| ir.constant_ints(divisor).is_some());
            let divisor = if is_constant { "a constant that contains 0 or -1" } else { "a runtime value" };
            let detail = format!("expected a constant {dtype} divisor other than 0 and -1, found {divisor}");
            refuse(RefusalCode::UnsupportedAttr, detail)
        } else {
            refuse(RefusalCode::UnsupportedDtype, format!("unsupported element type {dtype}"))
        };
    }
    for (i, &input) in op.inputs.iter().enumerate() {
        if elementwise::operand_view(ir, op, i, &view::View::dense(ir.shape(input))).is_none() {
            let (in_shape, out_shape) = (ir.shape(input), ir.shape(op.outputs[0]));
            let detail = format!("input {i}: expected a shape that broadcasts to {out_shape:?}, found {in_shape:?}");
            return refuse(RefusalCode::UnsupportedShape, detail);
        }
    }
    Verdict::Supported
}

//! Verdicts on operators, with the reasons for refusals.

use crate::anchors::{ANCHORS, Anchor, anchor};
use crate::expression::{self, c_type, is_elementwise, operand_view};
use crate::layout::{layout, spatial_axes};
use crate::view_ops;
use byoc_plugin_api::{DType, RefusalCode};
use byoc_plugin_support::refusal::{CompileError, refuse};
use byoc_plugin_support::region::{Op, RegionIr};
use byoc_plugin_support::resize::Resize;
use byoc_plugin_support::view::{View, count};

type Result = std::result::Result<(), CompileError>;

/// Maximum number of operators per region; with more, drivers take minutes to build the kernels.
pub const MAX_OPERATORS: usize = 5_000;

/// Pattern table. Fusion inside a region does not need it; the patterns keep operators together where several backends
/// share a model.
pub const PATTERNS: &str = "\
conv2d_bias_relu: nn.relu(nn.bias_add(nn.conv2d(*, const), const) | add(nn.conv2d(*, const), const))
conv2d_bias_clip: clip(nn.bias_add(nn.conv2d(*, const), const) | add(nn.conv2d(*, const), const))
conv2d_bias: nn.bias_add(nn.conv2d(*, const), const) | add(nn.conv2d(*, const), const)
dense_bias_relu: nn.relu(nn.bias_add(nn.dense(*, const), const) | add(nn.dense(*, const), const))
dense_bias: nn.bias_add(nn.dense(*, const), const) | add(nn.dense(*, const), const)
";

/// Returns the names of the supported operators, in order of preference.
pub fn operators() -> Vec<String> {
    let anchors = ANCHORS.iter().map(|entry| entry.0);
    anchors.chain(expression::names()).chain(view_ops::NAMES.iter().copied()).map(str::to_owned).collect()
}

/// Checks that an operator has a kernel.
///
/// # Errors
/// If the operator has no kernel for its element types, shapes or attributes.
pub fn check(ir: &RegionIr<'_>, op: &Op<'_>) -> Result {
    for (i, &value) in op.inputs.iter().chain(&op.outputs).enumerate() {
        let value = ir.val(value);
        let name = if i < op.inputs.len() { format!("input {i}") } else { format!("output {}", i - op.inputs.len()) };
        if c_type(value.dtype).is_none() {
            let detail = format!("{}: {name}: unsupported element type {}", op.name, value.dtype);
            return refuse(RefusalCode::UnsupportedDtype, detail);
        }
        if value.shape.contains(&0) {
            let detail = format!("{}: {name}: expected at least 1 element, found 0", op.name);
            return refuse(RefusalCode::UnsupportedShape, detail);
        }
        if count(&value.shape) > i64::from(i32::MAX) / 2 {
            let elements = count(&value.shape);
            let detail = format!("{}: {name}: expected fewer than 2^30 elements, found {elements}", op.name);
            return refuse(RefusalCode::ResourceLimit, detail);
        }
    }
    if view_ops::is_view(op.name) {
        return Ok(());
    }
    if is_elementwise(op.name) {
        return check_elementwise(ir, op);
    }
    let Some(kind) = anchor(op.name) else {
        return refuse(RefusalCode::UnsupportedOp, format!("{}: opencl has no kernel for this operator", op.name));
    };
    let is_move = matches!(kind, Anchor::Concatenate | Anchor::Take);
    for (i, &value) in op.inputs.iter().enumerate().filter(|_| !is_move) {
        let dtype = ir.val(value).dtype;
        if dtype != DType::F32 {
            let detail = format!("{}: input {i}: expected float32, found {dtype}", op.name);
            return refuse(RefusalCode::UnsupportedDtype, detail);
        }
    }
    check_anchor(ir, op, kind)
}

fn check_elementwise(ir: &RegionIr<'_>, op: &Op<'_>) -> Result {
    let arguments: Vec<String> = (0..op.inputs.len()).map(|i| format!("x{i}")).collect();
    if expression::expression(ir, op, &arguments, 1).is_none() {
        let detail = format!("{}: unsupported element type {}", op.name, ir.val(op.inputs[0]).dtype);
        return refuse(RefusalCode::UnsupportedDtype, detail);
    }
    for (i, &input) in op.inputs.iter().enumerate() {
        if operand_view(ir, op, i, &View::dense(ir.shape(input))).is_none() {
            let (in_shape, out_shape) = (ir.shape(input), ir.shape(op.outputs[0]));
            let detail = format!(
                "{}: input {i}: expected a shape that broadcasts to {out_shape:?}, found {in_shape:?}",
                op.name
            );
            return refuse(RefusalCode::UnsupportedShape, detail);
        }
    }
    Ok(())
}

fn check_anchor(ir: &RegionIr<'_>, op: &Op<'_>, kind: Anchor) -> Result {
    let has_negative = |key: &str| op.attrs().ints(key).unwrap_or_default().iter().any(|&value| value < 0);
    match kind {
        Anchor::Convolution => {
            if spatial_axes(op.name).is_none_or(|axes| layout(op, axes).is_none()) {
                let (data, kernel) = (op.attrs().text("data_layout"), op.attrs().text("kernel_layout"));
                let detail = format!("{}: unsupported layouts: data {data}, kernel {kernel}", op.name);
                return refuse(RefusalCode::UnsupportedLayout, detail);
            }
        }
        Anchor::Pool => {
            let layout = op.attrs().text("layout");
            if !["NCHW", "NHWC", "NCW", "NWC", ""].contains(&layout) {
                let detail =
                    format!("{}: attribute layout: expected NCHW, NHWC, NCW or NWC, found \"{layout}\"", op.name);
                return refuse(RefusalCode::UnsupportedLayout, detail);
            }
        }
        Anchor::Take => {
            let (mode, index) = (op.attrs().text("mode"), ir.val(op.inputs[1]).dtype);
            if !matches!(index, DType::I32 | DType::I64) {
                let detail = format!("{}: expected int32 or int64 indices, found {index}", op.name);
                return refuse(RefusalCode::UnsupportedDtype, detail);
            }
            let batch_dims = op.attrs().int("batch_dims", 0);
            if !["", "clip", "fast", "wrap"].contains(&mode) || batch_dims != 0 {
                let detail = format!(
                    "{}: expected mode clip, fast or wrap and batch_dims 0, found mode \"{mode}\" and batch_dims \
                     {batch_dims}",
                    op.name
                );
                return refuse(RefusalCode::UnsupportedAttr, detail);
            }
        }
        Anchor::Resize => {
            if let Err(detail) = Resize::new(op) {
                return refuse(RefusalCode::UnsupportedAttr, format!("{}: {detail}", op.name));
            }
            let layout = op.attrs().text("layout");
            if !["NCHW", "NHWC"].contains(&layout) {
                let detail = format!("{}: attribute layout: expected NCHW or NHWC, found \"{layout}\"", op.name);
                return refuse(RefusalCode::UnsupportedLayout, detail);
            }
        }
        Anchor::MatrixProduct | Anchor::Normalize | Anchor::Reduce | Anchor::Concatenate => {}
    }
    if has_negative("padding") {
        let padding = op.attrs().ints("padding").unwrap_or_default();
        let detail = format!("{}: attribute padding: expected integers >= 0, found {padding:?}", op.name);
        return refuse(RefusalCode::UnsupportedAttr, detail);
    }
    Ok(())
}

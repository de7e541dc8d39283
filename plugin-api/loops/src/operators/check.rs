//! Checks for operators, types, attributes and operands that code generation does not support.

use crate::nest::Expr;
use crate::operators::anchors::Anchor;
use crate::operators::elementwise::{self, is_elementwise};
use crate::operators::layout::layout_is_known;
use crate::operators::resize::Resize;
use crate::operators::views::is_view_op;
use crate::types::floats;
use byoc_plugin_api::{DType, RefusalCode};
use byoc_plugin_support::refusal::CompileError;
use byoc_plugin_support::region::{Op, RegionIr};
use byoc_plugin_support::view::{View, count};

/// Maximum number of elements in a row, which is held on the stack.
pub const MAX_ROW: i64 = 65_536;

/// Limits of a backend, apart from the operators themselves.
pub struct Limits {
    /// Name of the backend.
    pub backend: &'static str,
    /// Binary logarithm of the largest number of elements of a tensor.
    pub log2_elements: u32,
    /// Returns true for an element type that tensors may have.
    pub stores: fn(DType) -> bool,
    /// Returns the kind of an anchor operator.
    pub anchor: fn(&str) -> Option<Anchor>,
}

/// Checks an operator of a region.
///
/// # Errors
/// If the backend does not take the operator with its element types, shapes and attributes.
pub fn operator(ir: &RegionIr<'_>, op: &Op<'_>, limits: &Limits) -> Result<(), CompileError> {
    let refuse = |code, detail: String| Err(CompileError::new(code, format!("{}: {detail}", op.name)));
    for (i, &value) in op.inputs.iter().chain(&op.outputs).enumerate() {
        let value = ir.val(value);
        let operand =
            if i < op.inputs.len() { format!("input {i}") } else { format!("output {}", i - op.inputs.len()) };
        if !(limits.stores)(value.dtype) {
            let detail = format!("{operand}: unsupported element type {}", value.dtype);
            return refuse(RefusalCode::UnsupportedDtype, detail);
        }
        if value.shape.contains(&0) {
            return refuse(RefusalCode::UnsupportedShape, format!("{operand}: expected at least 1 element, found 0"));
        }
        if count(&value.shape) > 1 << limits.log2_elements {
            let (most, found) = (limits.log2_elements, count(&value.shape));
            let detail = format!("{operand}: expected at most 2^{most} elements, found {found}");
            return refuse(RefusalCode::ResourceLimit, detail);
        }
    }
    if is_view_op(op.name) {
        return Ok(());
    }
    if is_elementwise(op.name) {
        return check_elementwise(ir, op).or_else(|(code, detail)| refuse(code, detail));
    }
    let Some(kind) = (limits.anchor)(op.name) else {
        return refuse(RefusalCode::UnsupportedOp, format!("{} does not support this operator", limits.backend));
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
    check_anchor(ir, op, kind).or_else(|(code, detail)| refuse(code, detail))
}

/// Checks the element types and the shapes of an elementwise operator.
fn check_elementwise(ir: &RegionIr<'_>, op: &Op<'_>) -> Result<(), (RefusalCode, String)> {
    let dtype = ir.val(op.inputs[0]).dtype;
    let refuse = |code, detail: String| Err((code, detail));
    // The host's kernels of quantized products add the bias and requantize while the sums are in registers.
    let has_sums_from_outside = op.name == "nn.bias_add" && dtype == DType::I32 && ir.inputs.contains(&op.inputs[0]);
    if has_sums_from_outside {
        let detail = "the sums of a quantized product come from another backend, which adds a bias at no cost";
        return refuse(RefusalCode::NotProfitable, detail.into());
    }
    // C promotes small integers to int, so only operators without arithmetic produce the same result.
    let has_exact_arithmetic = matches!(dtype, DType::F32 | DType::F64 | DType::I32 | DType::I64);
    let is_exact_operator =
        matches!(op.name, "cast" | "where" | "equal" | "not_equal" | "logical_not" | elementwise::ROUND_TO_HALF)
            || op.name.starts_with("logical_")
            || (dtype == DType::BOOL && op.name.starts_with("bitwise_") && op.name != "bitwise_not");
    if !has_exact_arithmetic && !is_exact_operator {
        return refuse(RefusalCode::UnsupportedDtype, format!("unsupported element type {dtype}"));
    }
    let args: Vec<Expr> = (0..op.inputs.len()).map(|i| Expr::name(format!("x{i}"))).collect();
    if elementwise::expression(ir, op, &args).is_none() {
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
        if elementwise::operand_view(ir, op, i, &View::dense(ir.shape(input))).is_none() {
            let (in_shape, out_shape) = (ir.shape(input), ir.shape(op.outputs[0]));
            let detail = format!("input {i}: expected a shape that broadcasts to {out_shape:?}, found {in_shape:?}");
            return refuse(RefusalCode::UnsupportedShape, detail);
        }
    }
    Ok(())
}

/// Checks the attributes and operands of an anchor operator.
///
/// # Errors
/// If code generation does not support an attribute or an operand.
pub fn check_anchor(ir: &RegionIr<'_>, op: &Op<'_>, kind: Anchor) -> Result<(), (RefusalCode, String)> {
    let attrs = op.attrs();
    let expect = |code: RefusalCode, attribute: &str, texts: &[&str], expected: &str| match attrs.text(attribute) {
        text if texts.contains(&text) => Ok(()),
        text => Err((code, format!("attribute {attribute}: expected {expected}, found \"{text}\""))),
    };
    match kind {
        Anchor::Convolution => check_convolution(ir, op)?,
        Anchor::Pool => {
            let layouts = ["NCHW", "NHWC", "NCW", "NWC", ""];
            expect(RefusalCode::UnsupportedLayout, "layout", &layouts, "NCHW, NHWC, NCW or NWC")?;
            check_padding(op)?;
        }
        Anchor::Normalize => {
            let shape = ir.shape(op.inputs[0]);
            let axis = attrs.axis("axis", -1, shape.len()).ok_or_else(|| {
                let (rank, axis) = (shape.len(), attrs.int("axis", -1));
                let detail = format!("attribute axis: expected an axis of a tensor of rank {rank}, found {axis}");
                (RefusalCode::UnsupportedAttr, detail)
            })?;
            if shape[axis] > MAX_ROW {
                let detail = format!("expected rows of at most {MAX_ROW} elements, found {}", shape[axis]);
                return Err((RefusalCode::ResourceLimit, detail));
            }
        }
        Anchor::Resize => {
            Resize::new(op).map_err(|detail| (RefusalCode::UnsupportedAttr, detail))?;
            expect(RefusalCode::UnsupportedLayout, "layout", &["NCHW", "NHWC"], "NCHW or NHWC")?;
        }
        Anchor::Gather => {
            let batch_dims = attrs.int("batch_dims", 0);
            if batch_dims != 0 {
                let detail = format!("attribute batch_dims: expected 0, found {batch_dims}");
                return Err((RefusalCode::UnsupportedAttr, detail));
            }
        }
        Anchor::Pad => {
            let modes = ["", "constant", "edge", "reflect"];
            expect(RefusalCode::UnsupportedAttr, "pad_mode", &modes, "constant, edge or reflect")?;
        }
        Anchor::MatrixProduct | Anchor::Reduce | Anchor::Concatenate => {}
    }
    Ok(())
}

/// Checks the attributes and the weights of a convolution.
fn check_convolution(ir: &RegionIr<'_>, op: &Op<'_>) -> Result<(), (RefusalCode, String)> {
    if !layout_is_known(op) {
        let (data, kernel) = (op.attrs().text("data_layout"), op.attrs().text("kernel_layout"));
        let detail = format!("unsupported layouts: data {data}, kernel {kernel}");
        return Err((RefusalCode::UnsupportedLayout, detail));
    }
    check_padding(op)?;
    let weight = || ir.constant(op.inputs[1]);
    let has_non_finite_weight = || weight().is_some_and(|(_, weight)| floats(weight).iter().any(|x| !x.is_finite()));
    if op.name == "nn.conv2d_transpose" && has_non_finite_weight() {
        let detail = "expected finite weights, found an infinity or a NaN: its product with zero padding is NaN";
        return Err((RefusalCode::UnsupportedAttr, detail.into()));
    }
    Ok(())
}

/// Checks the padding of a convolution or a pooling operator.
fn check_padding(op: &Op<'_>) -> Result<(), (RefusalCode, String)> {
    match op.attrs().ints("padding").unwrap_or_default().into_iter().find(|&pad| pad < 0) {
        Some(pad) => {
            Err((RefusalCode::UnsupportedAttr, format!("attribute padding: expected integers >= 0, found {pad}")))
        }
        None => Ok(()),
    }
}

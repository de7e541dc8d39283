//! Operators of opsets 1 to 6 that differ from later versions: broadcasting by an attribute, and parameters as
//! attributes instead of inputs.

use super::{Node, Outputs, Result, Row, attrs, elementwise, math, norm, resize, single_output, slice};
use crate::tensor;
use byoc_ir::ir::{Dim, ExprId};

pub const ROWS: &[Row] = &[
    ("Add", 1, |n| binary(n, "add")),
    ("And", 1, |n| binary(n, "logical_and")),
    ("BatchNormalization", 1, norm::batch_norm),
    ("Cast", 1, cast),
    ("Concat", 1, |n| {
        let inputs = n.all_inputs()?;
        let &first_input = inputs.first().ok_or_else(|| n.invalid_node("expected at least one input, found none"))?;
        let axis = n.axis(n.int_attr("axis", 1)?, n.rank(first_input)?)?;
        single_output(n.concatenate(&inputs, axis as i64)?)
    }),
    ("Div", 1, |n| binary(n, "divide")),
    ("Dropout", 1, elementwise::dropout),
    ("Equal", 1, |n| binary(n, "equal")),
    ("Gemm", 1, math::gemm),
    ("Greater", 1, |n| binary(n, "greater")),
    ("Less", 1, |n| binary(n, "less")),
    ("Mul", 1, |n| binary(n, "multiply")),
    ("Or", 1, |n| binary(n, "logical_or")),
    ("PRelu", 1, prelu),
    ("Pad", 1, |n| slice::pad_by_attribute(n, "paddings")),
    ("Pow", 1, |n| binary(n, "power")),
    ("Reshape", 1, |n| {
        let data = n.input(0)?;
        let shape = n.ints_attr("shape")?.ok_or_else(|| n.invalid_node("attribute shape is missing"))?;
        single_output(n.op("reshape", &[data], attrs![newshape: shape])?)
    }),
    ("Sub", 1, |n| binary(n, "subtract")),
    ("Upsample", 1, |n| {
        let scales = [n.float_attr("height_scale", 1.0)?, n.float_attr("width_scale", 1.0)?];
        resize::resize_before_11(n, vec![1.0, 1.0, scales[0], scales[1]])
    }),
    ("Xor", 1, |n| binary(n, "logical_xor")),
];

/// Converts a binary operator. With `broadcast`, the dimensions of the second operand are aligned with the dimensions
/// of the first operand starting at `axis`, by default with its last dimensions.
fn binary(n: &mut Node<'_, '_>, op: &str) -> Result<Outputs> {
    let (a, mut b) = (n.input(0)?, n.input(1)?);
    if n.int_attr("broadcast", 0)? != 0 {
        b = align(n, a, b)?;
    }
    single_output(n.op_without_attrs(op, &[a, b])?)
}

fn align(n: &mut Node<'_, '_>, a: ExprId, b: ExprId) -> Result<ExprId> {
    let (rank, mut dims) = (n.rank(a)?, n.dims(b)?.to_vec());
    if !n.has("axis") {
        return Ok(b);
    }
    let axis = n.axis(n.int_attr("axis", 0)?, rank)?;
    let trailing_axes = rank.checked_sub(axis + dims.len()).ok_or_else(|| {
        n.invalid_node(format!(
            "second operand: expected rank <= {} for axis {axis}, found {}",
            rank - axis,
            dims.len()
        ))
    })?;
    dims.extend(std::iter::repeat_n(Dim::Fixed(1), trailing_axes));
    n.reshape_to(b, &dims)
}

/// Converts Cast, whose target type is given by name.
fn cast(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let name = n.str_attr("to", "")?;
    let dtype = (1..=16).filter(|number| data_type_name(*number) == name).find_map(tensor::dtype);
    let dtype =
        dtype.ok_or_else(|| n.invalid_node(format!("attribute to: expected an element type, found \"{name}\"")))?;
    let x = n.input(0)?;
    single_output(if n.dtype(x)? == dtype { n.forward(x) } else { n.cast(x, dtype)? })
}

/// Returns the name of a `TensorProto.DataType` value.
fn data_type_name(number: i32) -> &'static str {
    match number {
        1 => "FLOAT",
        2 => "UINT8",
        3 => "INT8",
        4 => "UINT16",
        5 => "INT16",
        6 => "INT32",
        7 => "INT64",
        9 => "BOOL",
        10 => "FLOAT16",
        11 => "DOUBLE",
        12 => "UINT32",
        13 => "UINT64",
        _ => "",
    }
}

/// Converts PRelu with a scalar or per-channel slope.
fn prelu(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (x, slope) = (n.input(0)?, n.input(1)?);
    let slope_dims = n.dims(slope)?;
    if slope_dims.len() == 1 && slope_dims[0] != Dim::Fixed(1) {
        return single_output(n.op("nn.prelu", &[x, slope], attrs![axis: 1])?);
    }
    elementwise::prelu(n)
}

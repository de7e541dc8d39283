//! Reductions, including ArgMax and ArgMin.

use super::{Node, Outputs, Result, Row, attrs, single_output};
use byoc_ir::ir::{AttrValue, ExprId};
use byoc_ir::tensor::DType;

pub const ROWS: &[Row] = &[
    ("ArgMax", 1, |n| arg_reduce(n, "argmax")),
    ("ArgMin", 1, |n| arg_reduce(n, "argmin")),
    ("ReduceL1", 1, |n| reduce(n, l1, |n, x| n.op_without_attrs("abs", &[x]))),
    ("ReduceL2", 1, |n| reduce(n, l2, |n, x| n.op_without_attrs("abs", &[x]))),
    ("ReduceLogSum", 1, |n| reduce(n, log_sum, |n, x| n.op_without_attrs("log", &[x]))),
    ("ReduceLogSumExp", 1, |n| reduce(n, log_sum_exp, identity)),
    ("ReduceMax", 1, |n| reduce(n, |n, x, along| along.apply(n, "max", x), identity)),
    ("ReduceMean", 1, |n| reduce(n, |n, x, along| along.apply(n, "mean", x), identity)),
    ("ReduceMin", 1, |n| reduce(n, |n, x, along| along.apply(n, "min", x), identity)),
    ("ReduceProd", 1, |n| reduce(n, |n, x, along| along.apply(n, "prod", x), identity)),
    ("ReduceSum", 1, |n| reduce(n, |n, x, along| along.apply(n, "sum", x), identity)),
    ("ReduceSumSquare", 1, |n| reduce(n, sum_square, |n, x| n.op_without_attrs("multiply", &[x, x]))),
];

type Formula = fn(&mut Node<'_, '_>, ExprId, &Reduction) -> Result<ExprId>;

/// Elementwise form of a reduction, for reductions over a single element.
type Elementwise = fn(&mut Node<'_, '_>, ExprId) -> Result<ExprId>;

/// Axes of a reduction.
struct Reduction {
    axes: Axes,
    keepdims: bool,
}

enum Axes {
    Known(Vec<i64>),
    /// Axes computed at run time.
    Computed(ExprId),
}

impl Reduction {
    fn apply(&self, n: &mut Node<'_, '_>, op: &str, x: ExprId) -> Result<ExprId> {
        match &self.axes {
            Axes::Known(axes) => n.op(op, &[x], attrs![axis: AttrValue::from(axes.clone()), keepdims: self.keepdims]),
            Axes::Computed(axes) => n.op(&format!("dyn.{op}"), &[x, *axes], attrs![keepdims: self.keepdims]),
        }
    }

    /// Reduces `x`, and keeps the reduced axes with dimension 1.
    fn apply_keepdims(&self, n: &mut Node<'_, '_>, op: &str, x: ExprId) -> Result<ExprId> {
        let axes = match &self.axes {
            Axes::Known(axes) => Axes::Known(axes.clone()),
            Axes::Computed(axes) => Axes::Computed(*axes),
        };
        Reduction { axes, keepdims: true }.apply(n, op, x)
    }
}

fn identity(n: &mut Node<'_, '_>, x: ExprId) -> Result<ExprId> {
    Ok(n.forward(x))
}

/// Converts a reduction. The axes are an attribute or, since opset 13 (sum) or 18 (all other reductions), an input.
/// With `noop_with_empty_axes` and no axes, each element forms a separate group.
fn reduce(n: &mut Node<'_, '_>, formula: Formula, elementwise: Elementwise) -> Result<Outputs> {
    let data = n.input(0)?;
    let rank = n.rank(data)?;
    let keepdims = n.int_attr("keepdims", 1)? != 0;
    if let Some(axes) = n.computed_input(1)
        && n.ty(axes)?.shape().is_none_or(|shape| shape.as_slice() != [0])
    {
        return single_output(formula(n, data, &Reduction { axes: Axes::Computed(axes), keepdims })?);
    }
    let axes = match n.ints_attr("axes")? {
        Some(axes) => axes,
        None if n.computed_input(1).is_some() => Vec::new(),
        None => n.ints(1, "axes")?.unwrap_or_default(),
    };
    if axes.is_empty() && n.int_attr("noop_with_empty_axes", 0)? != 0 {
        return single_output(elementwise(n, data)?);
    }
    let axes: Vec<i64> = match axes.as_slice() {
        [] => (0..rank as i64).collect(),
        axes => axes.iter().map(|&a| n.axis(a, rank).map(|a| a as i64)).collect::<Result<_, _>>()?,
    };
    single_output(formula(n, data, &Reduction { axes: Axes::Known(axes), keepdims })?)
}

fn l1(n: &mut Node<'_, '_>, x: ExprId, axes: &Reduction) -> Result<ExprId> {
    let size = n.op_without_attrs("abs", &[x])?;
    axes.apply(n, "sum", size)
}

fn sum_square(n: &mut Node<'_, '_>, x: ExprId, axes: &Reduction) -> Result<ExprId> {
    let square = n.op_without_attrs("multiply", &[x, x])?;
    axes.apply(n, "sum", square)
}

fn l2(n: &mut Node<'_, '_>, x: ExprId, axes: &Reduction) -> Result<ExprId> {
    let sum = sum_square(n, x, axes)?;
    n.op_without_attrs("sqrt", &[sum])
}

fn log_sum(n: &mut Node<'_, '_>, x: ExprId, axes: &Reduction) -> Result<ExprId> {
    let sum = axes.apply(n, "sum", x)?;
    n.op_without_attrs("log", &[sum])
}

/// Computes max + log(sum(exp(x - max))), which does not overflow because each exponential is at most 1.
fn log_sum_exp(n: &mut Node<'_, '_>, x: ExprId, axes: &Reduction) -> Result<ExprId> {
    let input_dtype = n.dtype(x)?;
    // Integers are computed in float64: unsigned integers cannot represent negative differences, and no integer type
    // can represent logarithms.
    let x = if input_dtype.is_float() { x } else { n.cast(x, DType::F64)? };
    let dtype = n.dtype(x)?;
    let max = axes.apply_keepdims(n, "max", x)?;
    // The shift is 0 if the maximum is infinite (-inf if a group is empty), because the difference of two equal
    // infinities is NaN.
    let is_finite = n.op_without_attrs("isfinite", &[max])?;
    let zero = n.scalar(dtype, 0.0);
    let shift = n.op_without_attrs("where", &[is_finite, max, zero])?;
    let shifted = n.op_without_attrs("subtract", &[x, shift])?;
    let power = n.op_without_attrs("exp", &[shifted])?;
    let sum = axes.apply(n, "sum", power)?;
    let log = n.op_without_attrs("log", &[sum])?;
    let shift = match &axes.axes {
        Axes::Known(_) => {
            let dims = n.dims(log)?;
            n.reshape_to(shift, &dims)?
        }
        Axes::Computed(_) => n.op_without_attrs("reshape_like", &[shift, log])?,
    };
    let sum = n.op_without_attrs("add", &[log, shift])?;
    n.cast(sum, input_dtype)
}

/// Converts ArgMax and ArgMin; the int32 indices of Relay are cast to the int64 of ONNX.
fn arg_reduce(n: &mut Node<'_, '_>, op: &str) -> Result<Outputs> {
    let data = n.input(0)?;
    let axis = n.axis(n.int_attr("axis", 0)?, n.rank(data)?)? as i64;
    let (keepdims, select_last) = (n.int_attr("keepdims", 1)? != 0, n.int_attr("select_last_index", 0)? != 0);
    let result = n.op(op, &[data], attrs![axis: [axis], keepdims: keepdims, select_last_index: select_last])?;
    single_output(n.cast(result, DType::I64)?)
}

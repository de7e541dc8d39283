//! Reductions, and the positions of extreme elements.

use super::super::call::{Call, Outputs, int_vector};
use super::super::proto_parts::{int, ints};
use super::super::values::Operand;
use super::super::writer::{Refusal, Result};
use super::elementwise::to_bool;
use super::{Row, single};
use byoc_ir::op::reduce::reduced;
use byoc_ir::tensor::DType;

pub const ROWS: &[Row] = &[
    ("all", |c| boolean(c, "ReduceMin")),
    ("any", |c| boolean(c, "ReduceMax")),
    ("argmax", |c| position(c, "ArgMax")),
    ("argmin", |c| position(c, "ArgMin")),
    ("dyn.max", |c| computed(c, "ReduceMax")),
    ("dyn.mean", |c| computed(c, "ReduceMean")),
    ("dyn.min", |c| computed(c, "ReduceMin")),
    ("dyn.prod", |c| computed(c, "ReduceProd")),
    ("dyn.sum", |c| computed(c, "ReduceSum")),
    ("max", |c| reduction(c, "ReduceMax")),
    ("mean", |c| reduction(c, "ReduceMean")),
    ("min", |c| reduction(c, "ReduceMin")),
    ("prod", |c| reduction(c, "ReduceProd")),
    ("sum", |c| reduction(c, "ReduceSum")),
    ("variance", variance),
];

/// Returns the reduced axes of the data.
fn axes(c: &Call<'_, '_>) -> Result<Vec<i64>> {
    let mask = reduced(&c.params, c.rank(0)?).ok_or_else(|| Refusal::new("an axis that is out of range"))?;
    Ok(mask.iter().enumerate().filter(|(_, is_reduced)| **is_reduced).map(|(axis, _)| axis as i64).collect())
}

/// Reduces known axes. ReduceSum takes them as an input in all operator sets that are written, others from 18 on.
pub fn reduce(c: &mut Call<'_, '_>, op: &str, value: &Operand, axes: &[i64], keepdims: bool) -> Operand {
    if axes.is_empty() {
        return c.apply("Identity", &[value]);
    }
    let keepdims = int("keepdims", keepdims.into());
    if op == "ReduceSum" || c.w.opset >= 18 {
        return c.node(op, &[value.clone(), int_vector(axes)], vec![keepdims]);
    }
    c.node(op, std::slice::from_ref(value), vec![ints("axes", axes), keepdims])
}

/// Returns a type that the reductions of ONNX have.
fn computed_type(c: &Call<'_, '_>, dtype: DType, op: &str) -> DType {
    let is_extremum = matches!(op, "ReduceMax" | "ReduceMin");
    match dtype {
        DType::Bool if is_extremum && c.w.opset >= 20 => dtype,
        DType::I8 | DType::U8 if is_extremum => dtype,
        // The extremes of no element are those of the type: false and true.
        DType::Bool if is_extremum => DType::U8,
        DType::Bool | DType::I8 | DType::U8 | DType::I16 | DType::U16 => DType::I32,
        DType::U32 | DType::U64 => DType::I64,
        _ => dtype,
    }
}

fn reduction(c: &mut Call<'_, '_>, op: &str) -> Result<Outputs> {
    let (axes, dtype) = (axes(c)?, c.dtype(0)?);
    let computed = computed_type(c, dtype, op);
    let value = c.cast(&c.arg(0)?, dtype, computed)?;
    let keepdims = c.params.bool("keepdims");
    let result = reduce(c, op, &value, &axes, keepdims);
    single(c.cast(&result, computed, dtype)?)
}

fn computed(c: &mut Call<'_, '_>, op: &str) -> Result<Outputs> {
    if op != "ReduceSum" {
        c.since(18, "axes that are computed")?;
    }
    let dtype = c.dtype(0)?;
    let computed = computed_type(c, dtype, op);
    let (value, axes) = (c.cast(&c.arg(0)?, dtype, computed)?, c.int_vector(1)?);
    let keepdims = int("keepdims", c.params.bool("keepdims").into());
    let result = c.node(op, &[value, axes], vec![keepdims]);
    single(c.cast(&result, computed, dtype)?)
}

fn boolean(c: &mut Call<'_, '_>, op: &str) -> Result<Outputs> {
    let (axes, keepdims) = (axes(c)?, c.params.bool("keepdims"));
    let value = to_bool(c, 0)?;
    let number = c.cast(&value, DType::Bool, DType::U8)?;
    let result = reduce(c, op, &number, &axes, keepdims);
    single(c.cast(&result, DType::U8, DType::Bool)?)
}

fn position(c: &mut Call<'_, '_>, op: &str) -> Result<Outputs> {
    let (axes, rank) = (axes(c)?, c.rank(0)?);
    let mut value = c.arg(0)?;
    let mut attrs = Vec::new();
    let keepdims = c.params.bool("keepdims");
    match axes[..] {
        [axis] => attrs.extend([int("axis", axis), int("keepdims", keepdims.into())]),
        _ if axes.len() == rank => {
            value = c.reshape(&value, &[-1])?;
            attrs.extend([int("axis", 0), int("keepdims", 0)]);
        }
        _ => return Err(Refusal::new(format!("expected one axis or all, found {axes:?}"))),
    }
    if c.params.bool("select_last_index") {
        attrs.push(int("select_last_index", 1));
    }
    let mut result = c.node(op, &[value], attrs);
    if axes.len() != 1 && keepdims {
        result = c.reshape(&result, &vec![1; rank])?;
    }
    single(c.narrow(&result, DType::I32)?)
}

fn variance(c: &mut Call<'_, '_>) -> Result<Outputs> {
    let (axes, keepdims, dtype) = (axes(c)?, c.params.bool("keepdims"), c.dtype(0)?);
    let (data, mean) = (c.arg(0)?, c.arg(1)?);
    let difference = c.apply("Sub", &[&data, &mean]);
    let square = c.apply("Mul", &[&difference, &difference]);
    if !c.params.bool("unbiased") {
        return single(reduce(c, "ReduceMean", &square, &axes, keepdims));
    }
    let dims = &c.ty(0)?.dims;
    let count = axes.iter().try_fold(1usize, |n, &axis| n.checked_mul(dims[axis as usize].fixed()?));
    let count = count.ok_or_else(|| Refusal::new("an unbiased variance over unknown dimensions"))?;
    let sum = reduce(c, "ReduceSum", &square, &axes, keepdims);
    single(c.apply("Div", &[&sum, &super::super::call::scalar(dtype, count as f64 - 1.0)]))
}

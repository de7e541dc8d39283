//! Reductions along axes. Floats are accumulated in binary64, integers exactly, and rounded or wrapped once.
//!
//! An `axis` of `None` or an empty list means all axes; `exclude` inverts the choice; `keepdims` keeps reduced axes
//! with dimension 1.

use super::scalar::{self, Reader, Writer, max_or_nan, min_or_nan};
use super::walk::{broadcast_strides, for_each_index, offset, strides};
use super::{AttrDef, AttrKind, Cost, Default, Evaluation, OpPattern, Params, Relation, TypeResult};
use crate::diag::{Diagnostic, codes};
use crate::ir::{Dim, Type};
use crate::op::facts::{Properties, reduced_elements};
use crate::tensor::{DType, Shape, TensorView, TensorViewMut};

const AXIS: AttrDef = AttrDef::new("axis", AttrKind::Ints, Default::None, "reduced axes; all if None");
const KEEPDIMS: AttrDef =
    AttrDef::new("keepdims", AttrKind::Bool, Default::Bool(false), "true to keep reduced axes with dimension 1");
const EXCLUDE: AttrDef =
    AttrDef::new("exclude", AttrKind::Bool, Default::Bool(false), "true if `axis` lists the axes that are not reduced");

/// Returns a mask of the reduced axes. `None` if an entry of `axis` is out of range.
pub fn reduced(params: &Params<'_>, rank: usize) -> Option<Vec<bool>> {
    let axes = params.opt_ints("axis").unwrap_or_default();
    let mut mask = vec![axes.is_empty(); rank];
    for axis in axes {
        let resolved_axis = usize::try_from(if axis < 0 { axis + rank as i64 } else { axis }).ok()?;
        *mask.get_mut(resolved_axis)? = true;
    }
    if params.bool("exclude") {
        mask.iter_mut().for_each(|m| *m = !*m);
    }
    Some(mask)
}

fn reduced_dims(relation: &Relation<'_>) -> Result<Vec<Dim>, Box<Diagnostic>> {
    let data = relation.tensor(0)?;
    let mask = reduced(&relation.params, data.dims.len()).ok_or_else(|| {
        let axes = relation.params.ints("axis");
        let rank = data.dims.len();
        relation.error(codes::types::BAD_ATTRIBUTE, format!("axis {axes:?} is out of range for rank {rank}"))
    })?;
    let keepdims = relation.params.bool("keepdims");
    let result_dims = data.dims.iter().zip(mask).filter_map(|(dim, is_reduced)| match is_reduced {
        false => Some(dim.clone()),
        true if keepdims => Some(Dim::Fixed(1)),
        true => None,
    });
    Ok(result_dims.collect())
}

fn same_element_type(relation: &Relation<'_>) -> TypeResult {
    Ok(Type::tensor_of(relation.tensor(0)?.dtype, reduced_dims(relation)?))
}

/// Counts one operation per input element.
fn one_flop_per_input(cost: &Cost<'_>) -> u64 {
    cost.arg_len(0)
}

/// Calls `visit` for each output element, in order, with the offsets of the input elements that it reduces.
fn for_each_group(
    params: &Params<'_>,
    shape: &[usize],
    mut visit: impl FnMut(&mut dyn Iterator<Item = usize>),
) -> Evaluation {
    let mask = reduced(params, shape.len())
        .ok_or_else(|| format!("axis {:?} is out of range for rank {}", params.ints("axis"), shape.len()))?;
    let strides = strides(shape);
    let part = |is_reduced: bool| -> (Shape, Shape) {
        (0..shape.len()).filter(|&a| mask[a] == is_reduced).map(|a| (shape[a], strides[a])).unzip()
    };
    let ((inner, inner_strides), (outer, outer_strides)) = (part(true), part(false));
    let mut members = Vec::new();
    for_each_index(&inner, |index| members.push(offset(index, &inner_strides)));
    for_each_index(&outer, |index| {
        let base = offset(index, &outer_strides);
        visit(&mut members.iter().map(|m| base + m));
    });
    Ok(())
}

/// Folds every group: floats in binary64, integers in 128 bits. `float` and `int` each consist of the initial value,
/// the step, and the final function of the folded value and the number of elements.
fn fold(
    params: Params<'_>,
    inputs: &[TensorView<'_>],
    outputs: &mut [TensorViewMut<'_>],
    float: (fn(DType) -> f64, fn(f64, f64) -> f64, fn(f64, f64) -> f64),
    int: (fn(DType) -> i128, fn(i128, i128) -> i128, fn(i128, i128) -> i128),
) -> Evaluation {
    let dtype = inputs[0].dtype;
    let (data, mut out) = (Reader::new(&inputs[0]), Writer::new(&mut outputs[0]));
    let mut positions = 0..out.len();
    for_each_group(&params, inputs[0].shape, |members| {
        let Some(position) = positions.next() else { return };
        let mut count = 0u64;
        let members = members.inspect(|_| count += 1);
        if dtype.is_float() {
            let total = members.fold((float.0)(dtype), |acc, i| (float.1)(acc, data.float(i)));
            out.set_float(position, (float.2)(total, count as f64));
        } else {
            let total = members.fold((int.0)(dtype), |acc, i| (int.1)(acc, data.int(i)));
            out.set_int(position, (int.2)(total, i128::from(count)));
        }
    })
}

/// Returns the minimum and the maximum of an integer type.
fn limits(dtype: DType) -> (i128, i128) {
    let bits = scalar::bits(dtype);
    match dtype {
        DType::Bool => (0, 1),
        _ if dtype.is_signed_int() => (-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
        _ => (0, (1 << bits) - 1),
    }
}

macro_rules! reductions {
    ($($name:literal, $properties:expr, $doc:literal, $float:expr, $int:expr;)*) => {$(
        operator! {
            name: $name,
            doc: $doc,
            inputs: &["data"],
            attrs: &[AXIS, KEEPDIMS, EXCLUDE],
            pattern: OpPattern::CommReduce,
            relation: same_element_type,
            reference: Some(|params, inputs, outputs| fold(params, inputs, outputs, $float, $int)),
            flops: one_flop_per_input,
            properties: $properties,
        }
    )*};
}

reductions! {
    "sum", Properties::EXACT.sum(reduced_elements), "Sum; 0 for an empty group.",
        (|_| 0.0, |a, x| a + x, |a, _| a), (|_| 0, |a, x| a + x, |a, _| a);
    "mean", Properties::EXACT.sum(reduced_elements), "Arithmetic mean; integers round toward zero. An empty group yields NaN, or 0 for integers.",
        (|_| 0.0, |a, x| a + x, |a, n| a / n), (|_| 0, |a, x| a + x, |a, n| a / n.max(1));
    "prod", Properties::EXACT.stable(reduced_elements), "Product; 1 for an empty group.",
        (|_| 1.0, |a, x| a * x, |a, _| a), (|_| 1, |a, x| a.wrapping_mul(x), |a, _| a);
    "max", Properties::EXACT, "Largest element, NaN if any element is NaN; the minimum of the type for an empty group.",
        (|_| f64::NEG_INFINITY, max_or_nan, |a, _| a),
        (|t| limits(t).0, |a, x| a.max(x), |a, _| a);
    "min", Properties::EXACT, "Smallest element, NaN if any element is NaN; the maximum of the type for an empty group.",
        (|_| f64::INFINITY, min_or_nan, |a, _| a),
        (|t| limits(t).1, |a, x| a.min(x), |a, _| a);
}

macro_rules! boolean_reductions {
    ($($name:literal, $doc:literal, $method:ident;)*) => {$(
        operator! {
            name: $name,
            doc: $doc,
            inputs: &["data"],
            attrs: &[AXIS, KEEPDIMS, EXCLUDE],
            pattern: OpPattern::CommReduce,
            relation: |relation| Ok(Type::tensor_of(DType::Bool, reduced_dims(relation)?)),
            reference: Some(|params, inputs, outputs| {
                let data = Reader::new(&inputs[0]);
                let mut out = outputs[0].data.iter_mut();
                for_each_group(&params, inputs[0].shape, |members| {
                    let value = Iterator::$method(&mut { members }, |i| data.is_nonzero(i));
                    if let Some(out) = out.next() {
                        *out = u8::from(value);
                    }
                })
            }),
            flops: one_flop_per_input,
        }
    )*};
}

boolean_reductions! {
    "all", "True if no element is zero; true for an empty group.", all;
    "any", "True if at least one element is not zero; false for an empty group.", any;
}

/// Stores the position of the extreme element within each group: the maximum if `better` is `Greater`, the minimum if
/// `better` is `Less`.
fn arg_reduce(
    params: Params<'_>,
    inputs: &[TensorView<'_>],
    outputs: &mut [TensorViewMut<'_>],
    better: std::cmp::Ordering,
) -> Evaluation {
    let selects_last = params.bool("select_last_index");
    let mut positions = Vec::with_capacity(outputs[0].len());
    let data = Reader::new(&inputs[0]);
    // NaN takes precedence over every other value, as in NumPy.
    let is_preferred = |x: usize, best: usize| match data.compare(x, &data, best) {
        Some(std::cmp::Ordering::Equal) => selects_last,
        Some(order) => order == better,
        None => data.float(x).is_nan() && (selects_last || !data.float(best).is_nan()),
    };
    for_each_group(&params, inputs[0].shape, |members| {
        let mut best: Option<(usize, usize)> = None;
        for (position, i) in members.enumerate() {
            if best.is_none_or(|(_, best)| is_preferred(i, best)) {
                best = Some((position, i));
            }
        }
        positions.push(best.map(|b| b.0));
    })?;
    for (out, position) in outputs[0].as_mut_slice::<i32>().iter_mut().zip(positions) {
        let position = position.ok_or("expected at least one element in the reduced axes, found none")?;
        *out =
            i32::try_from(position).map_err(|_| format!("expected an index that fits in int32, found {position}"))?;
    }
    Ok(())
}

macro_rules! arg_reductions {
    ($($name:literal, $doc:literal, $better:expr;)*) => {$(
        operator! {
            name: $name,
            doc: $doc,
            inputs: &["data"],
            attrs: &[
                AXIS,
                KEEPDIMS,
                EXCLUDE,
                AttrDef::new(
                    "select_last_index",
                    AttrKind::Bool,
                    Default::Bool(false),
                    "true to select the last of equal elements, false for the first",
                ),
            ],
            pattern: OpPattern::CommReduce,
            relation: |relation| Ok(Type::tensor_of(DType::I32, reduced_dims(relation)?)),
            reference: Some(|params, inputs, outputs| arg_reduce(params, inputs, outputs, $better)),
            flops: one_flop_per_input,
        }
    )*};
}

arg_reductions! {
    "argmax", "Index of the largest element, counted in the reduced axes; a NaN counts as largest.",
        std::cmp::Ordering::Greater;
    "argmin", "Index of the smallest element, counted in the reduced axes; a NaN counts as smallest.",
        std::cmp::Ordering::Less;
}

operator! {
    name: "variance",
    doc: "Mean of (data - mean)^2, where `mean` is broadcast to data (for example the mean with keepdims).",
    inputs: &["data", "mean"],
    attrs: &[
        AXIS,
        KEEPDIMS,
        EXCLUDE,
        AttrDef::new("unbiased", AttrKind::Bool, Default::Bool(false), "true to divide by n - 1 instead of n (Bessel's correction)"),
    ],
    pattern: OpPattern::CommReduce,
    relation: |relation| {
        let (data, mean) = (relation.tensor(0)?, relation.tensor(1)?);
        relation.same_dtype(data.dtype, mean.dtype)?;
        let missing_rank = data.dims.len().checked_sub(mean.dims.len());
        let is_compatible = missing_rank.is_some_and(|missing_rank| {
            mean.dims.iter().zip(&data.dims[missing_rank..]).all(|(m, d)| match (m.fixed(), d.fixed()) {
                (Some(m), Some(d)) => m == 1 || m == d,
                _ => true,
            })
        });
        if !is_compatible {
            let (data, mean) = (&relation.args[0], &relation.args[1]);
            return Err(relation.mismatch(format!("mean: expected a shape that broadcasts to {data}, found {mean}")));
        }
        same_element_type(relation)
    },
    reference: Some(variance),
    flops: |cost| 3 * cost.arg_len(0),
    properties: Properties::EXACT.stable(reduced_elements),
}

fn variance(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let shape = inputs[0].shape;
    let steps = broadcast_strides(inputs[1].shape, shape.len());
    let (data, mean) = (inputs[0].to_f64s(), inputs[1].to_f64s());
    let mut squares = Vec::with_capacity(data.len());
    for_each_index(shape, |index| squares.push((data[squares.len()] - mean[offset(index, &steps)]).powi(2)));
    if squares.len() < data.len() {
        return Ok(());
    }
    let correction = f64::from(u8::from(params.bool("unbiased")));
    let mut out = Writer::new(&mut outputs[0]);
    let mut positions = 0..out.len();
    for_each_group(&params, shape, |members| {
        let Some(position) = positions.next() else { return };
        let (mut total, mut count) = (0.0, 0.0);
        for i in members {
            total += squares[i];
            count += 1.0;
        }
        out.set_float(position, total / (count - correction));
    })
}

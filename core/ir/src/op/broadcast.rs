//! Elementwise binary operators with NumPy's broadcasting, and `where`.
//!
//! Integer results are exact and wrap to their type; integer division by zero and a shift by a negative number are
//! errors. Floats follow IEEE 754; `maximum` and `minimum` return NaN if either operand is NaN.

use super::elementwise::one_flop_per_element;
use super::scalar::{self, BLOCK, Reader, Writer, max_or_nan, min_or_nan};
use super::walk::{broadcast_strides, for_each_index, for_each_run, offset};
use super::{Evaluation, OpPattern, Params, Relation, TypeResult};
use crate::ir::{Dim, TensorType, Type};
use crate::op::facts::{Properties, reduced_elements};
use crate::tensor::{DType, Shape, TensorView, TensorViewMut};
use std::cmp::Ordering;

/// Returns the dimension that two dimensions broadcast to; `None` if they are known and incompatible.
fn broadcast_dim(a: &Dim, b: &Dim) -> Option<Dim> {
    Some(match (a, b) {
        (a, b) if a == b => a.clone(),
        (Dim::Fixed(1), other) | (other, Dim::Fixed(1)) => other.clone(),
        (Dim::Fixed(_), Dim::Fixed(_)) => return None,
        // The unknown dimension is 1 or equal to the known dimension.
        (Dim::Fixed(n), _) | (_, Dim::Fixed(n)) => Dim::Fixed(*n),
        _ => Dim::Any,
    })
}

/// Returns the dimensions that the operands broadcast to, aligned at the last axis.
pub(super) fn broadcast_dims<'a>(
    relation: &Relation<'_>,
    operands: impl IntoIterator<Item = &'a TensorType>,
) -> Result<Vec<Dim>, Box<crate::diag::Diagnostic>> {
    let mut result: Vec<Dim> = Vec::new();
    for operand in operands {
        let mut dims = operand.dims.to_vec();
        let rank = dims.len().max(result.len());
        for list in [&mut dims, &mut result] {
            let missing = rank - list.len();
            list.splice(0..0, std::iter::repeat_n(Dim::Fixed(1), missing));
        }
        for (axis, (extent, dim)) in result.iter_mut().zip(&dims).enumerate() {
            *extent = broadcast_dim(extent, dim).ok_or_else(|| {
                let negative_axis = axis as i64 - rank as i64;
                relation.mismatch(format!(
                    "axis {negative_axis} of the result: expected broadcastable dimensions, found {extent} and {dim}"
                ))
            })?;
        }
    }
    Ok(result)
}

fn operands<'a>(relation: &Relation<'a>) -> Result<(DType, Vec<Dim>), Box<crate::diag::Diagnostic>> {
    let (a, b) = (relation.tensor(0)?, relation.tensor(1)?);
    Ok((relation.same_dtype(a.dtype, b.dtype)?, broadcast_dims(relation, [a, b])?))
}

fn arithmetic_relation(relation: &Relation<'_>) -> TypeResult {
    let (dtype, dims) = operands(relation)?;
    Ok(Type::tensor_of(dtype, dims))
}

fn integer_relation(relation: &Relation<'_>) -> TypeResult {
    let (dtype, dims) = operands(relation)?;
    if dtype.is_float() {
        return Err(relation.mismatch(format!("expected integer operands, found {dtype}")));
    }
    Ok(Type::tensor_of(dtype, dims))
}

fn comparison_relation(relation: &Relation<'_>) -> TypeResult {
    let (_, dims) = operands(relation)?;
    Ok(Type::tensor_of(DType::Bool, dims))
}

/// Calls `visit` with the offsets of both operands for each output element in turn.
pub(super) fn for_each_pair<E>(
    a: &[usize],
    b: &[usize],
    out: &[usize],
    mut visit: impl FnMut(usize, usize) -> Result<(), E>,
) -> Result<(), E> {
    let (a, b) = (broadcast_strides(a, out.len()), broadcast_strides(b, out.len()));
    let mut outcome = Ok(());
    for_each_run(out, [&a, &b], |[a, b], len, [a_step, b_step]| {
        if outcome.is_ok() {
            outcome = (0..len).try_for_each(|k| visit(a + k * a_step, b + k * b_step));
        }
    });
    outcome
}

type IntResult = Result<i128, String>;

/// Evaluates a binary operator: floats in binary64, integers in 128 bits.
fn compute(
    inputs: &[TensorView<'_>],
    outputs: &mut [TensorViewMut<'_>],
    float: fn(f64, f64) -> f64,
    int: fn(i128, i128, DType) -> IntResult,
) -> Evaluation {
    let (dtype, shape) = (inputs[0].dtype, outputs[0].shape);
    let (a, b, mut out) = (Reader::new(&inputs[0]), Reader::new(&inputs[1]), Writer::new(&mut outputs[0]));
    let mut position = 0;
    if !dtype.is_float() {
        return for_each_pair(inputs[0].shape, inputs[1].shape, shape, |i, j| {
            out.set_int(position, int(a.int(i), b.int(j), dtype)?);
            position += 1;
            Ok(())
        });
    }
    let strides = [0, 1].map(|i| broadcast_strides(inputs[i].shape, shape.len()));
    let (mut left, mut right) = ([0.0; BLOCK], [0.0; BLOCK]);
    for_each_run(shape, [&strides[0], &strides[1]], |[i, j], len, [i_step, j_step]| {
        for first in (0..len).step_by(BLOCK) {
            let count = BLOCK.min(len - first);
            let (left, right) = (&mut left[..count], &mut right[..count]);
            a.floats(i + first * i_step, i_step, left);
            b.floats(j + first * j_step, j_step, right);
            left.iter_mut().zip(right).for_each(|(x, y)| *x = float(*x, *y));
            out.set_floats(position, left);
            position += count;
        }
    });
    Ok(())
}

macro_rules! binary {
    ($relation:ident: $($name:literal, $properties:expr, $doc:literal, $float:expr, $int:expr;)*) => {$(
        operator! {
            name: $name,
            doc: $doc,
            inputs: &["lhs", "rhs"],
            pattern: OpPattern::Broadcast,
            relation: $relation,
            reference: Some(|_, inputs, outputs| compute(inputs, outputs, $float, $int)),
            flops: one_flop_per_element,
            properties: $properties,
        }
    )*};
}

const DIVISION_BY_ZERO: &str = "integer division by zero";

/// Returns `f(a, b)`, or an error if `b` is zero.
fn divide_checked(a: i128, b: i128, f: impl Fn(i128, i128) -> i128) -> IntResult {
    if b == 0 { Err(DIVISION_BY_ZERO.to_owned()) } else { Ok(f(a, b)) }
}

/// Returns the quotient rounded down.
fn floor_div(a: i128, b: i128) -> i128 {
    a.div_euclid(b) - i128::from(b < 0 && a.rem_euclid(b) != 0)
}

/// Returns the remainder with the sign of the divisor.
fn floor_mod(a: f64, b: f64) -> f64 {
    let r = a % b;
    if r != 0.0 && (r < 0.0) != (b < 0.0) { r + b } else { r }
}

/// Computes a power by repeated squaring, with wrapping multiplication; the result for a negative exponent is rounded
/// toward zero.
fn int_power(base: i128, exponent: i128) -> IntResult {
    if exponent < 0 {
        return match base {
            0 => Err(DIVISION_BY_ZERO.to_owned()),
            1 => Ok(1),
            -1 => Ok(if exponent % 2 == 0 { 1 } else { -1 }),
            _ => Ok(0),
        };
    }
    let (mut result, mut square, mut exponent_bits) = (1i128, base, exponent);
    while exponent_bits > 0 {
        if exponent_bits % 2 == 1 {
            result = result.wrapping_mul(square);
        }
        square = square.wrapping_mul(square);
        exponent_bits /= 2;
    }
    Ok(result)
}

fn shift(amount: i128, dtype: DType, f: impl Fn(i128) -> i128) -> IntResult {
    match amount {
        ..0 => Err(format!("expected a shift amount >= 0, found {amount}")),
        _ => Ok(f(amount.min(scalar::bits(dtype)))),
    }
}

fn logic(a: f64, b: f64, f: impl Fn(bool, bool) -> bool) -> f64 {
    f64::from(f(a != 0.0, b != 0.0))
}

fn int_logic(a: i128, b: i128, f: impl Fn(bool, bool) -> bool) -> IntResult {
    Ok(i128::from(f(a != 0, b != 0)))
}

binary! { arithmetic_relation:
    "add", Properties::POINTWISE.ulps(1.0).commutative(), "lhs + rhs.", |a, b| a + b, |a, b, _| Ok(a + b);
    "subtract", Properties::POINTWISE.ulps(1.0), "lhs - rhs.", |a, b| a - b, |a, b, _| Ok(a - b);
    "multiply", Properties::POINTWISE.ulps(1.0).commutative(), "lhs * rhs.", |a, b| a * b, |a, b, _| Ok(a.wrapping_mul(b));
    "divide", Properties::POINTWISE.ulps(2.5), "lhs / rhs; integers round toward zero.", |a, b| a / b, |a, b, _| divide_checked(a, b, |a, b| a / b);
    "trunc_divide", Properties::POINTWISE.stable(reduced_elements), "lhs / rhs, rounded toward zero.", |a, b| (a / b).trunc(), |a, b, _| divide_checked(a, b, |a, b| a / b);
    "trunc_mod", Properties::POINTWISE.stable(reduced_elements), "Remainder of lhs / rhs with the sign of lhs.", |a, b| a % b, |a, b, _| divide_checked(a, b, |a, b| a % b);
    "floor_divide", Properties::POINTWISE.stable(reduced_elements), "lhs / rhs, rounded down.", |a, b| (a / b).floor(), |a, b, _| divide_checked(a, b, floor_div);
    "mod", Properties::POINTWISE.stable(reduced_elements), "Remainder of lhs / rhs with the sign of lhs, as C's fmod.", |a, b| a % b, |a, b, _| divide_checked(a, b, |a, b| a % b);
    "floor_mod", Properties::POINTWISE.stable(reduced_elements), "Remainder of lhs / rhs with the sign of rhs.", floor_mod,
        |a, b, _| divide_checked(a, b, |a, b| a - floor_div(a, b) * b);
    "power", Properties::POINTWISE.ulps(16.0), "lhs to the power of rhs.", f64::powf, |a, b, _| int_power(a, b);
    "maximum", Properties::POINTWISE, "Larger of lhs and rhs; NaN when either is NaN.", max_or_nan, |a, b, _| Ok(a.max(b));
    "minimum", Properties::POINTWISE, "Smaller of lhs and rhs; NaN when either is NaN.", min_or_nan, |a, b, _| Ok(a.min(b));
    "logical_and", Properties::POINTWISE, "Logical AND: 1 where both operands are nonzero, 0 elsewhere.", |a, b| logic(a, b, |a, b| a && b),
        |a, b, _| int_logic(a, b, |a, b| a && b);
    "logical_or", Properties::POINTWISE, "Logical OR: 1 where at least one operand is nonzero, 0 elsewhere.", |a, b| logic(a, b, |a, b| a || b),
        |a, b, _| int_logic(a, b, |a, b| a || b);
    "logical_xor", Properties::POINTWISE, "Logical XOR: 1 where exactly one operand is nonzero, 0 elsewhere.", |a, b| logic(a, b, |a, b| a != b),
        |a, b, _| int_logic(a, b, |a, b| a != b);
}

binary! { integer_relation:
    "bitwise_and", Properties::POINTWISE, "Bitwise AND of lhs and rhs.", |a, _| a, |a, b, _| Ok(a & b);
    "bitwise_or", Properties::POINTWISE, "Bitwise OR of lhs and rhs.", |a, _| a, |a, b, _| Ok(a | b);
    "bitwise_xor", Properties::POINTWISE, "Bitwise exclusive OR of lhs and rhs.", |a, _| a, |a, b, _| Ok(a ^ b);
    "left_shift", Properties::POINTWISE, "lhs shifted left by rhs bits; bits shifted out are lost.", |a, _| a,
        |a, b, dtype| shift(b, dtype, |n| a << n);
    "right_shift", Properties::POINTWISE, "lhs shifted right by rhs bits, keeping the sign.", |a, _| a,
        |a, b, dtype| shift(b, dtype, |n| a >> n);
}

/// Applies `test` to the ordering of each pair of elements, which is `None` if either element is NaN.
fn compare(inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], test: fn(Option<Ordering>) -> bool) {
    let (a, b) = (Reader::new(&inputs[0]), Reader::new(&inputs[1]));
    let mut out = outputs[0].data.iter_mut();
    let outcome: Result<(), ()> = for_each_pair(inputs[0].shape, inputs[1].shape, outputs[0].shape, |i, j| {
        if let Some(out) = out.next() {
            *out = u8::from(test(a.compare(i, &b, j)));
        }
        Ok(())
    });
    debug_assert!(outcome.is_ok());
}

macro_rules! compare {
    ($($name:literal, $doc:literal, $f:expr;)*) => {$(
        operator! {
            name: $name,
            doc: $doc,
            inputs: &["lhs", "rhs"],
            pattern: OpPattern::Broadcast,
            relation: comparison_relation,
            reference: Some(|_, inputs, outputs| {
                compare(inputs, outputs, $f);
                Ok(())
            }),
            flops: one_flop_per_element,
            properties: Properties::POINTWISE,
        }
    )*};
}

compare! {
    "equal", "True where lhs = rhs; false when either is NaN.", |order| order == Some(Ordering::Equal);
    "not_equal", "True where lhs and rhs differ, or either is NaN.", |order| order != Some(Ordering::Equal);
    "less", "True where lhs < rhs.", |order| order.is_some_and(Ordering::is_lt);
    "less_equal", "True where lhs <= rhs.", |order| order.is_some_and(Ordering::is_le);
    "greater", "True where lhs > rhs.", |order| order.is_some_and(Ordering::is_gt);
    "greater_equal", "True where lhs >= rhs.", |order| order.is_some_and(Ordering::is_ge);
}

operator! {
    name: "where",
    doc: "x where the condition is true (not zero), y elsewhere; the three broadcast against each other.",
    inputs: &["condition", "x", "y"],
    pattern: OpPattern::Broadcast,
    relation: |relation| {
        let (condition, x, y) = (relation.tensor(0)?, relation.tensor(1)?, relation.tensor(2)?);
        let dtype = relation.same_dtype(x.dtype, y.dtype)?;
        Ok(Type::tensor_of(dtype, broadcast_dims(relation, [condition, x, y])?))
    },
    reference: Some(select),
    properties: Properties::POINTWISE,
}

fn select(_: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let shape = outputs[0].shape;
    let condition = Reader::new(&inputs[0]);
    let steps: Vec<Shape> = inputs.iter().map(|i| broadcast_strides(i.shape, shape.len())).collect();
    let size = outputs[0].dtype.size();
    let mut chunks = outputs[0].data.chunks_exact_mut(size);
    for_each_index(shape, |index| {
        let operand = if condition.is_nonzero(offset(index, &steps[0])) { 1 } else { 2 };
        let start = offset(index, &steps[operand]) * size;
        if let Some(chunk) = chunks.next() {
            chunk.copy_from_slice(&inputs[operand].data[start..start + size]);
        }
    });
    Ok(())
}

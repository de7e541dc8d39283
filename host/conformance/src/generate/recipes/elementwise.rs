//! Elementwise operators: unary operators, broadcasting operators, conversions.

use super::{
    Constraint, Recipe, ValueType, argument_type, attrs, first_argument, operand, recipe, unconstrained, weight,
};
use crate::generate::draw::{Fill, Sampler, Values};
use byoc_ir::ir::{AttrValue, Attrs};
use byoc_ir::op::{OpDef, OpPattern};
use byoc_ir::tensor::DType;

pub(super) fn propose(def: &'static OpDef, sampler: &mut Sampler, constraints: &[Constraint]) -> Option<Recipe> {
    let unary = |sampler: &mut Sampler, attrs: Attrs| {
        let (dtype, shape) = first_argument(sampler, constraints, 0, 4);
        recipe([operand(dtype, shape, domain(def.name))], attrs)
    };
    match def.name {
        "clip" => {
            let (min, max) = match sampler.scheme {
                Some(_) => sampler.pick(&[(-128, 127), (0, 127), (-100, 100), (-3, 6)]),
                None => (sampler.int(-3, 1), sampler.int(1, 6)),
            };
            unary(sampler, attrs([("a_min", AttrValue::Float(min as f64)), ("a_max", AttrValue::Float(max as f64))]))
        }
        "nn.leaky_relu" => {
            let alpha = sampler.pick(&[0.25, 0.1, 0.01, 1.5]);
            unary(sampler, attrs([("alpha", AttrValue::Float(alpha))]))
        }
        "nn.dropout" => unary(sampler, Attrs::none()),
        "cast" => {
            let target_dtype = match (sampler.scheme, argument_type(constraints, 0)) {
                (Some(scheme), Some((DType::I32, _))) => scheme.activation,
                (Some(_), _) => DType::I32,
                // A quantized model computes in float32 between its integer operators.
                (None, Some((DType::F32, _))) if sampler.restrictions.symmetric => {
                    sampler.pick(&[DType::I8, DType::U8])
                }
                (None, _) if sampler.restrictions.symmetric => DType::F32,
                (None, _) => sampler.pick(DType::COMPUTED),
            };
            unary(sampler, attrs([("dtype", AttrValue::from(target_dtype))]))
        }
        "cast_like" => {
            let target_dtype = sampler.pick(DType::COMPUTED);
            let (dtype, shape) = first_argument(sampler, constraints, 0, 4);
            let template = argument_type(constraints, 1).unwrap_or((target_dtype, vec![2]));
            recipe([unconstrained(dtype, shape), unconstrained(template.0, template.1)], Attrs::none())
        }
        "fixed_point_multiply" => {
            let (dtype, shape) =
                argument_type(constraints, 0).unwrap_or_else(|| (DType::I32, sampler.shape_of_rank(0, 4)));
            let is_power_of_two = sampler.scheme.is_some_and(|scheme| scheme.power_of_two);
            let multiplier = if is_power_of_two { 1 << 30 } else { sampler.int(1 << 30, (1 << 31) - 1) };
            let shift = sampler.int(-12, 6);
            let pairs = [("multiplier", AttrValue::Int(multiplier)), ("shift", AttrValue::Int(shift))];
            recipe([operand(dtype, shape, Fill::Within(-100_000.0, 100_000.0))], attrs(pairs))
        }
        "fixed_point_multiply_per_axis" => {
            let (dtype, shape) =
                argument_type(constraints, 0).unwrap_or_else(|| (DType::I32, sampler.shape_of_rank(1, 4)));
            let axis = sampler.below(shape.len());
            let channels = *shape.get(axis)?;
            let per_channel = |min, max| weight(DType::I32, vec![channels], Fill::Within(min, max));
            let multipliers = per_channel(f64::from(1 << 30), f64::from(i32::MAX));
            let data = operand(dtype, shape, Fill::Within(-100_000.0, 100_000.0));
            let pairs = [
                ("is_lshift_required", sampler.chance(2).into()),
                ("is_rshift_required", sampler.chance(2).into()),
                ("axes", super::ints([axis])),
            ];
            recipe([data, multipliers, per_channel(0.0, 6.0), per_channel(0.0, 12.0)], attrs(pairs))
        }
        "where" => {
            let (dtype, shape) = match (argument_type(constraints, 1), argument_type(constraints, 2)) {
                (Some(input_type), _) => input_type,
                // A scalar replaces the elements for which the condition is true.
                (None, Some(other)) if sampler.restrictions.scalars => (other.0, Vec::new()),
                (None, Some(other)) => other,
                (None, None) => first_argument(sampler, &[], 1, 4),
            };
            let condition =
                argument_type(constraints, 0).unwrap_or_else(|| (DType::Bool, draw_broadcastable(sampler, &shape)));
            let other = argument_type(constraints, 2).unwrap_or_else(|| (dtype, draw_broadcastable(sampler, &shape)));
            recipe(
                [unconstrained(condition.0, condition.1), unconstrained(dtype, shape), unconstrained(other.0, other.1)],
                Attrs::none(),
            )
        }
        _ if def.inputs == ["lhs", "rhs"] && def.attrs.is_empty() => binary(def, sampler, constraints),
        _ if def.name.starts_with("qnn.") => None,
        _ if def.inputs == ["data"] && def.attrs.is_empty() && def.pattern == OpPattern::ElemWise => {
            unary(sampler, Attrs::none())
        }
        _ => None,
    }
}

fn binary(def: &'static OpDef, sampler: &mut Sampler, constraints: &[Constraint]) -> Option<Recipe> {
    let dtype =
        argument_type(constraints, 0).or_else(|| argument_type(constraints, 1)).map_or(sampler.theme.dtype, |k| k.0);
    let (lhs, rhs): (ValueType, ValueType) = match (argument_type(constraints, 0), argument_type(constraints, 1)) {
        (Some(lhs), Some(rhs)) => (lhs, rhs),
        (Some(lhs), None) => {
            let shape = match sampler.scheme {
                _ if sampler.restrictions.scalars => Vec::new(),
                Some(_) if lhs.0 == DType::I32 => draw_per_channel(sampler, &lhs.1),
                _ => draw_broadcastable(sampler, &lhs.1),
            };
            (lhs, (dtype, shape))
        }
        (None, Some(rhs)) => {
            let shape = if sampler.restrictions.scalars { Vec::new() } else { draw_broadcastable(sampler, &rhs.1) };
            ((dtype, shape), rhs)
        }
        (None, None) => {
            let full_shape = sampler.shape_of_rank(0, 4);
            // Extreme values test the arithmetic rather than broadcasting, so the shapes are equal.
            let is_same_shape = sampler.theme.values == Values::Extreme;
            let part = match is_same_shape {
                _ if sampler.restrictions.scalars => Vec::new(),
                true => full_shape.clone(),
                false => draw_broadcastable(sampler, &full_shape),
            };
            let is_swapped = !sampler.restrictions.constants && sampler.chance(3);
            let (a, b) = if is_swapped { (part, full_shape) } else { (full_shape, part) };
            ((dtype, a), (dtype, b))
        }
    };
    let bits = lhs.0.size() as f64 * 8.0;
    let (left, right) = match def.name {
        "divide" | "mod" | "floor_divide" | "floor_mod" => (Fill::Free, Fill::NonZero),
        "power" if lhs.0.is_float() => (Fill::Within(0.1, 3.0), Fill::Within(-2.0, 3.0)),
        "power" => (Fill::Within(-3.0, 3.0), Fill::Within(0.0, 4.0)),
        "left_shift" | "right_shift" => (Fill::Free, Fill::Within(0.0, (bits - 1.0).min(15.0))),
        _ => (Fill::Free, Fill::Free),
    };
    recipe([operand(lhs.0, lhs.1, left), operand(rhs.0, rhs.1, right)], Attrs::none())
}

/// Draws the shape of a per-tensor or per-channel operand that a quantized model applies to the accumulators of a
/// layer.
fn draw_per_channel(sampler: &mut Sampler, shape: &[usize]) -> Vec<usize> {
    match *shape {
        [_, channels, _, _] if !sampler.chance(3) => vec![channels, 1, 1],
        [.., channels] if shape.len() != 4 && !sampler.chance(3) => vec![channels],
        _ => Vec::new(),
    }
}

/// Draws a shape that broadcasts to `shape`: usually `shape` itself, otherwise a shape with dimensions of 1 or with
/// lower rank.
pub(super) fn draw_broadcastable(sampler: &mut Sampler, shape: &[usize]) -> Vec<usize> {
    match sampler.below(4) {
        0 => shape[sampler.below(shape.len() + 1)..].to_vec(),
        1 => shape.iter().map(|&d| if sampler.chance(2) { 1 } else { d }).collect(),
        _ => shape.to_vec(),
    }
}

/// Returns the operand range for tests of a unary function. The range exceeds the domain of some functions, to test for
/// NaN, but excludes overflow, where libraries differ.
fn domain(name: &str) -> Fill {
    match name {
        "exp" | "sinh" | "cosh" => Fill::Within(-20.0, 20.0),
        "sin" | "cos" | "tan" => Fill::Within(-10.0, 10.0),
        "acosh" => Fill::Within(0.5, 50.0),
        "atanh" | "asin" | "acos" => Fill::Within(-1.2, 1.2),
        _ => Fill::Free,
    }
}

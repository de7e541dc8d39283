//! Normalizations and reductions: operators with axes.

use super::{Constraint, Operand, Recipe, argument_type, attrs, first_argument, operand, recipe, weight};
use crate::generate::draw::{Fill, Sampler, Values};
use byoc_ir::ir::{AttrValue, Attrs};
use byoc_ir::op::OpDef;

pub(super) fn propose(def: &'static OpDef, sampler: &mut Sampler, constraints: &[Constraint]) -> Option<Recipe> {
    match def.name {
        "sum" | "mean" | "prod" | "max" | "min" | "all" | "any" | "argmax" | "argmin" => {
            let (dtype, shape) = first_argument(sampler, constraints, 1, 4);
            let mut pairs = reduction(sampler, shape.len());
            if def.attr("select_last_index").is_some() {
                pairs.push(("select_last_index", sampler.chance(3).into()));
            }
            let fill = match def.name {
                "sum" | "mean" => Fill::Terms,
                "prod" if dtype.is_float() => Fill::Within(0.5, 1.5),
                "prod" => Fill::Within(-3.0, 3.0),
                "all" | "any" => Fill::Within(0.0, 1.0),
                _ => Fill::Free,
            };
            recipe([operand(dtype, shape, fill)], Attrs::new(pairs))
        }
        "variance" => {
            let (dtype, shape) =
                argument_type(constraints, 0).unwrap_or_else(|| (sampler.float(), sampler.shape_of_rank(1, 4)));
            // The second operand is the mean over the axis that the operator reduces.
            let axis = sampler.below(shape.len().max(1));
            let mut mean = shape.clone();
            *mean.get_mut(axis)? = 1;
            let mean = argument_type(constraints, 1).unwrap_or((dtype, mean));
            let pairs = [
                ("axis", AttrValue::ints([axis as i64])),
                ("keepdims", sampler.chance(2).into()),
                ("unbiased", sampler.chance(3).into()),
            ];
            recipe([operand(dtype, shape, Fill::Terms), operand(mean.0, mean.1, Fill::Factors)], attrs(pairs))
        }
        "nn.softmax" | "nn.log_softmax" => {
            let (dtype, shape) =
                argument_type(constraints, 0).unwrap_or_else(|| (sampler.float(), sampler.shape_of_rank(1, 4)));
            let axis = sampler.axis(shape.len());
            recipe([operand(dtype, shape, row_fill(sampler))], attrs([("axis", axis.into())]))
        }
        "nn.batch_norm" | "nn.layer_norm" | "nn.instance_norm" | "nn.group_norm" => {
            let min_rank = if matches!(def.name, "nn.instance_norm" | "nn.group_norm") { 3 } else { 2 };
            let (dtype, shape) =
                argument_type(constraints, 0).unwrap_or_else(|| (sampler.float(), sampler.shape_of_rank(min_rank, 4)));
            let axis = match def.name {
                "nn.layer_norm" => -1,
                _ => 1.min(shape.len() as i64 - 1),
            };
            let axis =
                if sampler.chance(4) && def.name != "nn.instance_norm" { sampler.axis(shape.len()) } else { axis };
            let channels = *shape.get(axis.rem_euclid(shape.len().max(1) as i64) as usize)?;
            let mut pairs = vec![
                ("axis", AttrValue::Int(axis)),
                ("epsilon", AttrValue::Float(sampler.pick(&[1e-5, 1e-3, 0.1]))),
                ("center", (!sampler.chance(4)).into()),
                ("scale", (!sampler.chance(4)).into()),
            ];
            if def.name == "nn.group_norm" {
                let divisors: Vec<usize> = (1..=channels.max(1)).filter(|g| channels.is_multiple_of(*g)).collect();
                pairs.push(("num_groups", AttrValue::Int(sampler.pick(&divisors) as i64)));
            }
            let mut args = vec![operand(dtype, shape, row_fill(sampler))];
            for i in 1..def.arity.max {
                let fill = if i == 4 { Fill::Within(0.25, 4.0) } else { Fill::Factors };
                args.push(weight(dtype, vec![channels], fill));
            }
            recipe(args, Attrs::new(pairs))
        }
        "nn.l2_normalize" => {
            let (dtype, shape) =
                argument_type(constraints, 0).unwrap_or_else(|| (sampler.float(), sampler.shape_of_rank(1, 4)));
            let axis = sampler.axis(shape.len());
            recipe([operand(dtype, shape, row_fill(sampler))], attrs([("axis", AttrValue::ints([axis]))]))
        }
        "nn.lrn" => {
            let (dtype, shape) = argument_type(constraints, 0).unwrap_or_else(|| (sampler.float(), sampler.shape(4)));
            let pairs = [
                ("size", AttrValue::Int(sampler.pick(&[1, 3, 5]))),
                ("axis", AttrValue::Int(1.min(shape.len() as i64 - 1))),
                ("alpha", AttrValue::Float(sampler.pick(&[1e-5, 0.01]))),
                ("bias", AttrValue::Float(sampler.pick(&[1.0, 2.0]))),
            ];
            recipe([operand(dtype, shape, row_fill(sampler))], attrs(pairs))
        }
        "nn.prelu" => {
            let (dtype, shape) =
                argument_type(constraints, 0).unwrap_or_else(|| (sampler.float(), sampler.shape_of_rank(2, 4)));
            let axis = if sampler.chance(2) { 1 } else { sampler.axis(shape.len()) };
            let channels = *shape.get(axis.rem_euclid(shape.len().max(1) as i64) as usize)?;
            let slopes = Operand { dtype, shape: vec![channels], fill: Fill::Factors, weight: true };
            let data = operand(dtype, shape, Fill::Free);
            recipe([data, super::Argument::One(slopes)], attrs([("axis", axis.into())]))
        }
        _ => None,
    }
}

/// Returns the constraint on the elements of normalized rows: moderate values. The result for a row with an infinity
/// depends on how the maximum is subtracted, which no definition specifies.
fn row_fill(sampler: &Sampler) -> Fill {
    match sampler.theme.values {
        Values::Plain => Fill::Free,
        _ => Fill::Within(-6.0, 6.0),
    }
}

fn reduction(sampler: &mut Sampler, rank: usize) -> Vec<(&'static str, AttrValue)> {
    let mut pairs = vec![("keepdims", AttrValue::Bool(sampler.chance(2)))];
    match sampler.below(4) {
        0 => {}
        1 if rank > 1 => {
            let axis = sampler.below(rank - 1) as i64;
            pairs.push(("axis", AttrValue::ints([axis, axis + 1])));
        }
        _ if rank > 0 => pairs.push(("axis", AttrValue::ints([sampler.axis(rank)]))),
        _ => {}
    }
    if pairs.len() > 1 && sampler.chance(5) {
        pairs.push(("exclude", true.into()));
    }
    pairs
}

//! Operators with indices: gathering, scattering, sorting, counting.

use super::{
    Constraint, Recipe, argument_type, attrs, first_argument, integers, operand, recipe, unconstrained, weight,
};
use crate::generate::draw::{Fill, Sampler};
use byoc_ir::ir::{AttrValue, Attrs};
use byoc_ir::op::OpDef;
use byoc_ir::tensor::DType;

pub(super) fn propose(def: &'static OpDef, sampler: &mut Sampler, constraints: &[Constraint]) -> Option<Recipe> {
    let index = sampler.pick(&[DType::I32, DType::I64]);
    let indices_below = |n: usize| Fill::Within(0.0, n.saturating_sub(1) as f64);
    let (dtype, shape) = first_argument(sampler, constraints, 1, 4);
    let rank = shape.len();
    if rank == 0 {
        return None;
    }
    let axis = sampler.axis(rank);
    let axis_index = axis.rem_euclid(rank as i64) as usize;
    let size = shape[axis_index];
    let data = unconstrained(dtype, shape.clone());
    match def.name {
        "take" => {
            let rank = if sampler.restrictions.scalars { 0 } else { 2 };
            let indices = argument_type(constraints, 1).unwrap_or_else(|| (index, sampler.shape_of_rank(0, rank)));
            let mode = if sampler.common_attrs { "clip" } else { sampler.pick(&["clip", "wrap", "fast"]) };
            let is_flat = !sampler.common_attrs && sampler.chance(4);
            let size = if is_flat { shape.iter().product() } else { size };
            // Includes out-of-range indices if the mode defines their result.
            let fill = match mode {
                _ if sampler.common_attrs => indices_below(size),
                "fast" => indices_below(size),
                _ => Fill::Within(-(size as f64), 2.0 * size as f64),
            };
            let mut pairs = vec![("mode", AttrValue::from(mode))];
            if !is_flat {
                pairs.push(("axis", axis.into()));
            }
            recipe([data, operand(indices.0, indices.1, fill)], Attrs::new(pairs))
        }
        "gather" => {
            let mut index_shape = shape.clone();
            index_shape[axis_index] = if size == 0 { 0 } else { sampler.int(1, size as i64 + 1) as usize };
            recipe([data, operand(index, index_shape, indices_below(size))], attrs([("axis", axis.into())]))
        }
        "gather_nd" | "scatter_nd" => {
            let depth = sampler.int(1, rank as i64) as usize;
            let min_dim = shape[..depth].iter().copied().min()?;
            let count = sampler.int(1, 4) as usize;
            let indices = operand(index, vec![depth, count], indices_below(min_dim));
            if def.name == "gather_nd" {
                return recipe([data, indices], Attrs::none());
            }
            let updates: Vec<usize> = [count].into_iter().chain(shape[depth..].iter().copied()).collect();
            // Duplicate indices have a unique result only if the updates commute.
            let mode = sampler.pick(&["add", "min", "max"]);
            recipe([data, indices, operand(dtype, updates, Fill::Terms)], attrs([("mode", mode.into())]))
        }
        "scatter_elements" => {
            let mut index_shape = shape.clone();
            index_shape[axis_index] = if size == 0 { 0 } else { sampler.int(1, size as i64) as usize };
            let mode = sampler.pick(&["add", "min", "max"]);
            let updates = operand(dtype, index_shape.clone(), Fill::Terms);
            let pairs = [("axis", axis.into()), ("reduction", mode.into())];
            recipe([data, operand(index, index_shape, indices_below(size)), updates], attrs(pairs))
        }
        "one_hot" | "dyn.one_hot" => {
            let depth = sampler.int(1, 6);
            let indices = argument_type(constraints, 0).unwrap_or_else(|| (index, sampler.shape_of_rank(1, 3)));
            if indices.0.is_float() {
                return None;
            }
            let (on_value, off_value) = (unconstrained(DType::F32, Vec::new()), unconstrained(DType::F32, Vec::new()));
            let mut args = vec![operand(indices.0, indices.1, Fill::Within(0.0, depth as f64)), on_value, off_value];
            if def.name == "dyn.one_hot" {
                args.push(weight(DType::I64, Vec::new(), Fill::Exactly(vec![depth])));
                return recipe(args, Attrs::none());
            }
            recipe(args, attrs([("depth", depth.into())]))
        }
        "cumsum" | "cumprod" => {
            let mut pairs = vec![("exclusive", AttrValue::Bool(sampler.chance(3)))];
            if !sampler.chance(5) {
                pairs.push(("axis", axis.into()));
            }
            let fill = if def.name == "cumsum" { Fill::Terms } else { Fill::Within(-1.5, 1.5) };
            recipe([operand(dtype, shape, fill)], Attrs::new(pairs))
        }
        "trilu" => {
            let shape = argument_type(constraints, 0).map_or_else(|| sampler.shape_of_rank(2, 4), |k| k.1);
            let k = weight(DType::I64, Vec::new(), Fill::Exactly(vec![sampler.int(-2, 2)]));
            recipe([unconstrained(dtype, shape), k], attrs([("upper", sampler.chance(2).into())]))
        }
        "sort" => recipe([data], attrs([("axis", axis.into()), ("is_ascend", sampler.chance(2).into())])),
        "argsort" => {
            let pairs = [("axis", axis.into()), ("is_ascend", sampler.chance(2).into()), ("dtype", index.into())];
            recipe([data], attrs(pairs))
        }
        "topk" | "dyn.topk" => {
            let k = if size == 0 { 0 } else { sampler.int(1, size as i64) };
            let mut pairs = vec![
                ("axis", AttrValue::Int(axis)),
                ("is_ascend", sampler.chance(2).into()),
                ("ret_type", sampler.pick(&["both", "values", "indices"]).into()),
                ("dtype", index.into()),
            ];
            if def.name == "dyn.topk" {
                return recipe([data, integers(DType::I64, vec![k])], Attrs::new(pairs));
            }
            pairs.push(("k", k.into()));
            recipe([data], Attrs::new(pairs))
        }
        _ => None,
    }
}

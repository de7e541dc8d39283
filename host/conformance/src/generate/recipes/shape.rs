//! Operators that move elements or change dimensions.

use super::{
    Argument, Constraint, Operand, Recipe, argument_type, attrs, first_argument, integers, ints, recipe, unconstrained,
};
use crate::generate::draw::{Fill, Sampler};
use byoc_ir::ir::{AttrValue, Attrs};
use byoc_ir::op::OpDef;
use byoc_ir::tensor::DType;

pub(super) fn propose(def: &'static OpDef, sampler: &mut Sampler, constraints: &[Constraint]) -> Option<Recipe> {
    let (dtype, shape) = match def.name {
        "concatenate" | "stack" => return concatenation(def, sampler, constraints),
        "squeeze" | "broadcast_to" | "dyn.broadcast_to" | "broadcast_to_like" => {
            let (dtype, input_shape) = first_argument(sampler, constraints, 1, 4);
            // These operators need dimensions of 1.
            let shape = match argument_type(constraints, 0) {
                Some(input_type) => input_type.1,
                None => input_shape.iter().map(|&d| if sampler.chance(2) { 1 } else { d }).collect(),
            };
            (dtype, shape)
        }
        _ => first_argument(sampler, constraints, 1, 4),
    };
    let rank = shape.len();
    let data = unconstrained(dtype, shape.clone());
    let unary = |pairs: Vec<(&'static str, AttrValue)>| recipe([data.clone()], Attrs::new(pairs));
    match def.name {
        "reshape" => unary(vec![("newshape", AttrValue::ints(regroup_dims(sampler, &shape)))]),
        "dyn.reshape" => recipe([data, integers(DType::I64, regroup_dims(sampler, &shape))], Attrs::none()),
        "reshape_like" => {
            let template =
                argument_type(constraints, 1).unwrap_or_else(|| (dtype, shape.iter().rev().copied().collect()));
            recipe([data, unconstrained(template.0, template.1)], Attrs::none())
        }
        "nn.batch_flatten" | "copy" => unary(vec![]),
        "expand_dims" => {
            let axis = sampler.int(-(rank as i64) - 1, rank as i64);
            unary(vec![
                ("axis", axis.into()),
                ("num_newaxis", AttrValue::Int(if axis < 0 { 1 } else { sampler.int(1, 2) })),
            ])
        }
        "squeeze" => {
            let unit_axes: Vec<usize> = (0..rank).filter(|&i| shape[i] == 1).collect();
            unary(if unit_axes.is_empty() || sampler.chance(3) {
                vec![]
            } else {
                vec![("axis", ints([sampler.pick(&unit_axes)]))]
            })
        }
        "transpose" => {
            let mut axes: Vec<usize> = (0..rank).collect();
            for i in (1..rank).rev() {
                axes.swap(i, sampler.below(i + 1));
            }
            unary(if sampler.chance(4) { vec![] } else { vec![("axes", ints(axes))] })
        }
        "reverse" => unary(vec![("axis", sampler.axis(rank).into())]),
        "layout_transform" => layout_transform(sampler, constraints),
        "broadcast_to" | "dyn.broadcast_to" | "broadcast_to_like" => {
            let mut target_shape: Vec<usize> =
                shape.iter().map(|&d| if d == 1 { sampler.spatial_dim() } else { d }).collect();
            if sampler.chance(3) {
                target_shape.insert(0, 2);
            }
            match def.name {
                "broadcast_to" => unary(vec![("shape", ints(target_shape))]),
                "broadcast_to_like" => {
                    let template = argument_type(constraints, 1).unwrap_or((dtype, target_shape));
                    recipe([data, unconstrained(template.0, template.1)], Attrs::none())
                }
                _ => recipe(
                    [data, integers(DType::I64, target_shape.iter().map(|&d| d as i64).collect())],
                    Attrs::none(),
                ),
            }
        }
        "tile" => {
            let reps: Vec<usize> = (0..rank + sampler.below(2)).map(|_| 1 + sampler.below(3)).collect();
            unary(vec![("reps", ints(reps))])
        }
        "dyn.tile" => {
            let reps: Vec<i64> = (0..rank).map(|_| sampler.int(1, 3)).collect();
            recipe([data, integers(DType::I64, reps)], Attrs::none())
        }
        "repeat" => unary(vec![("repeats", AttrValue::Int(sampler.int(1, 3))), ("axis", sampler.axis(rank).into())]),
        "split" => {
            let axis = sampler.axis(rank);
            let size = *shape.get(axis.rem_euclid(rank.max(1) as i64) as usize)?;
            let sections = if sampler.chance(2) {
                let divisors: Vec<usize> = (1..=size.max(1)).filter(|n| size.is_multiple_of(*n)).collect();
                AttrValue::Int(sampler.pick(&divisors) as i64)
            } else {
                let split_index = sampler.below(size + 1);
                ints([split_index, split_index + sampler.below(size - split_index + 1)])
            };
            unary(vec![("indices_or_sections", sections), ("axis", axis.into())])
        }
        "strided_slice" | "dyn.strided_slice" => {
            let (mut begin, mut end, mut strides) = (vec![], vec![], vec![]);
            for &dim in &shape {
                let (a, b) = (sampler.below(dim + 1) as i64, sampler.below(dim + 1) as i64);
                let step = sampler.int(1, 3);
                if sampler.chance(4) && dim > 0 && def.name == "strided_slice" {
                    // A negative stride: `begin` is counted from the end.
                    begin.push(-1);
                    end.push(-(dim as i64) - 1);
                    strides.push(-step);
                } else {
                    begin.push(a.min(b));
                    end.push(a.max(b));
                    strides.push(step);
                }
            }
            if def.name == "strided_slice" {
                let list = |values: Vec<i64>| AttrValue::ints(values);
                return unary(vec![("begin", list(begin)), ("end", list(end)), ("strides", list(strides))]);
            }
            let list = |values| integers(DType::I64, values);
            recipe([data, list(begin), list(end), list(strides)], Attrs::none())
        }
        "slice_like" => {
            let template = shape.iter().map(|&d| if d > 1 && sampler.chance(2) { d - 1 } else { d }).collect();
            let template = argument_type(constraints, 1).unwrap_or((dtype, template));
            recipe([data, unconstrained(template.0, template.1)], Attrs::none())
        }
        "zeros_like" | "ones_like" | "shape_of" | "ndarray_size" => unary(vec![]),
        "full_like" => recipe([data, unconstrained(dtype, Vec::new())], Attrs::none()),
        _ => None,
    }
}

/// Draws dimensions with the same number of elements as `shape`; one dimension may be -1, to be inferred.
fn regroup_dims(sampler: &mut Sampler, shape: &[usize]) -> Vec<i64> {
    let mut new: Vec<i64> = shape.iter().map(|&d| d as i64).collect();
    match sampler.below(4) {
        0 if !shape.contains(&0) => return vec![-1],
        1 if new.len() > 1 => {
            let index = sampler.below(new.len() - 1);
            let product = new[index] * new[index + 1];
            new.splice(index..index + 2, [product]);
        }
        2 => new.push(1),
        _ => new.reverse(),
    }
    if !new.is_empty() && !shape.contains(&0) && sampler.chance(3) {
        let index = sampler.below(new.len());
        new[index] = -1;
    }
    new
}

fn concatenation(def: &'static OpDef, sampler: &mut Sampler, constraints: &[Constraint]) -> Option<Recipe> {
    let fields = match constraints.first() {
        Some(Constraint::Tuple(fields)) => fields.clone(),
        _ => vec![None; sampler.int(1, 4) as usize],
    };
    let input_type = fields.iter().flatten().next().cloned();
    let (dtype, shape) = input_type.unwrap_or_else(|| (sampler.theme.dtype, sampler.shape_of_rank(1, 4)));
    let is_stack = def.name == "stack";
    let axis = sampler.axis(shape.len() + usize::from(is_stack));
    let index = axis.rem_euclid(shape.len().max(1) as i64) as usize;
    let operands = fields.into_iter().map(|field| {
        let (dtype, shape) = field.unwrap_or_else(|| {
            let mut shape = shape.clone();
            if !is_stack && let Some(dim) = shape.get_mut(index) {
                *dim = sampler.below(*dim + 2);
            }
            (dtype, shape)
        });
        Operand { dtype, shape, fill: Fill::Free, weight: false }
    });
    recipe([Argument::Tuple(operands.collect())], attrs([("axis", axis.into())]))
}

fn layout_transform(sampler: &mut Sampler, constraints: &[Constraint]) -> Option<Recipe> {
    let block = sampler.pick(&[2, 4]);
    let (n, c, h, w) = (sampler.batch(), block * (1 + sampler.below(3)), sampler.spatial_dim(), sampler.spatial_dim());
    let (dtype, shape, src, dst) = match (argument_type(constraints, 0), sampler.below(4)) {
        (Some((dtype, shape)), _) => (dtype, shape, "NCHW".to_owned(), "NHWC".to_owned()),
        (None, 0) => (sampler.theme.dtype, vec![n, h, w, c], "NHWC".into(), "NCHW".into()),
        (None, 1) => (sampler.theme.dtype, vec![n, c, h, w], "NCHW".into(), format!("NCHW{block}c")),
        (None, 2) => (sampler.theme.dtype, vec![n, c / block, h, w, block], format!("NCHW{block}c"), "NCHW".into()),
        (None, _) => (sampler.theme.dtype, vec![n, c, h, w], "NCHW".into(), "NHWC".into()),
    };
    let pairs = [("src_layout", src.as_str().into()), ("dst_layout", dst.as_str().into())];
    recipe([unconstrained(dtype, shape)], attrs(pairs))
}

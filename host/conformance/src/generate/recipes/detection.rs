//! Operators of detection models, and operator variants with parameters computed at run time.

use super::{
    Constraint, Recipe, argument_type, attrs, first_argument, integers, operand, recipe, unconstrained, weight,
};
use crate::generate::draw::{Fill, Sampler};
use byoc_ir::ir::{AttrValue, Attrs};
use byoc_ir::op::OpDef;
use byoc_ir::tensor::DType;

pub(super) fn propose(def: &'static OpDef, sampler: &mut Sampler, constraints: &[Constraint]) -> Option<Recipe> {
    let float = sampler.float();
    let (batch, boxes) = (sampler.batch(), sampler.spatial_dim());
    match def.name {
        "vision.multibox_prior" => {
            let shape = argument_type(constraints, 0).map_or_else(
                || vec![batch, sampler.spatial_dim(), sampler.spatial_dim(), sampler.spatial_dim()],
                |k| k.1,
            );
            let list = |values: &[f64]| AttrValue::List(values.iter().map(|&v| AttrValue::Float(v)).collect());
            let pairs =
                [("sizes", list(&[0.5, 0.25])), ("ratios", list(&[1.0, 2.0])), ("clip", sampler.chance(2).into())];
            recipe([unconstrained(float, shape)], attrs(pairs))
        }
        "vision.multibox_transform_loc" => {
            let classes = operand(float, vec![batch, 1 + sampler.below(4), boxes], Fill::Within(0.0, 1.0));
            let offsets = operand(float, vec![batch, 4 * boxes], Fill::Within(-1.0, 1.0));
            recipe([classes, offsets, operand(float, vec![1, boxes, 4], Fill::Within(0.1, 0.9))], Attrs::none())
        }
        "vision.get_valid_counts" => {
            let data = operand(float, vec![batch, boxes, 6], Fill::Within(-1.0, 3.0));
            recipe([data, weight(float, Vec::new(), Fill::Within(0.1, 0.6))], Attrs::none())
        }
        "vision.non_max_suppression" => {
            let data = operand(float, vec![batch, boxes, 6], Fill::Within(0.0, 3.0));
            let counts = operand(DType::I32, vec![batch], Fill::Within(0.0, boxes as f64));
            let indices = operand(DType::I32, vec![batch, boxes], Fill::Within(0.0, boxes as f64 - 1.0));
            let max_boxes = weight(DType::I32, Vec::new(), Fill::Exactly(vec![-1]));
            let pairs = [("return_indices", sampler.chance(2).into()), ("force_suppress", sampler.chance(2).into())];
            recipe([data, counts, indices, max_boxes, weight(float, Vec::new(), Fill::Within(0.3, 0.7))], attrs(pairs))
        }
        "dyn.image.resize2d" => {
            let data = operand(sampler.theme.dtype, vec![batch, 2, boxes, boxes + 1], Fill::Terms);
            let size = integers(DType::I64, vec![sampler.int(1, 7), sampler.int(1, 7)]);
            recipe([data, size, weight(DType::F32, vec![4], Fill::Within(0.0, 0.0))], Attrs::none())
        }
        "dyn.nn.upsampling" => {
            let data = operand(sampler.theme.dtype, vec![batch, 2, boxes, boxes + 1], Fill::Terms);
            let scale = |n| weight(DType::F32, Vec::new(), Fill::Exactly(vec![n]));
            recipe([data, scale(sampler.int(1, 3)), scale(sampler.int(1, 3))], Attrs::none())
        }
        "dyn.nn.pad" => {
            let (dtype, shape) = first_argument(sampler, constraints, 1, 3);
            let widths: Vec<i64> = (0..2 * shape.len()).map(|_| sampler.int(0, 2)).collect();
            let rows = weight(DType::I64, vec![shape.len(), 2], Fill::Exactly(widths));
            recipe([unconstrained(dtype, shape), rows, weight(dtype, Vec::new(), Fill::Factors)], Attrs::none())
        }
        "dyn.expand_dims" => {
            let (dtype, shape) = first_argument(sampler, constraints, 1, 3);
            let axis = weight(DType::I64, Vec::new(), Fill::Exactly(vec![sampler.int(0, shape.len() as i64)]));
            recipe([unconstrained(dtype, shape), axis], Attrs::none())
        }
        "dyn.squeeze" => {
            let (dtype, mut shape) = first_argument(sampler, constraints, 1, 3);
            let axis_index = sampler.below(shape.len());
            if argument_type(constraints, 0).is_none() {
                *shape.get_mut(axis_index)? = 1;
            }
            recipe([unconstrained(dtype, shape), integers(DType::I64, vec![axis_index as i64])], Attrs::none())
        }
        _ => None,
    }
}

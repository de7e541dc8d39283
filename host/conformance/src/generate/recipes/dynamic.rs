//! Operators with axes computed at run time, and operators whose result size depends on the data.

use super::{
    Argument, Constraint, Operand, Recipe, attrs, first_argument, integers, operand, recipe, unconstrained, weight,
};
use crate::generate::draw::{Fill, Sampler};
use byoc_ir::ir::{AttrValue, Attrs};
use byoc_ir::op::OpDef;
use byoc_ir::tensor::DType;

pub(super) fn propose(def: &'static OpDef, sampler: &mut Sampler, constraints: &[Constraint]) -> Option<Recipe> {
    let float = sampler.float();
    match def.name {
        "dyn.sum" | "dyn.mean" | "dyn.prod" | "dyn.max" | "dyn.min" => {
            let (dtype, shape) = first_argument(sampler, constraints, 1, 4);
            let axis = integers(DType::I64, vec![sampler.below(shape.len()) as i64]);
            let fill = match def.name {
                "dyn.sum" | "dyn.mean" => Fill::Terms,
                "dyn.prod" => Fill::Within(0.5, 1.5),
                _ => Fill::Free,
            };
            recipe([operand(dtype, shape, fill), axis], attrs([("keepdims", sampler.chance(2).into())]))
        }
        "dyn.cumsum" | "dyn.cumprod" | "dyn.reverse" => {
            let (dtype, shape) = first_argument(sampler, constraints, 1, 4);
            let axis = integers(DType::I64, vec![sampler.below(shape.len()) as i64]);
            let fill = if def.name == "dyn.cumprod" { Fill::Within(-1.5, 1.5) } else { Fill::Terms };
            recipe([operand(dtype, shape, fill), axis], Attrs::none())
        }
        "dyn.image.resize_nd" => {
            let (dtype, shape) = first_argument(sampler, constraints, 1, 4);
            let sizes = shape.iter().map(|_| sampler.int(1, 7)).collect();
            let method = sampler.pick(&["nearest_neighbor", "linear", "cubic"]);
            let roi = weight(DType::F32, vec![0], Fill::Exactly(Vec::new()));
            recipe(
                [operand(dtype, shape, Fill::Terms), integers(DType::I64, sizes), roi],
                attrs([("method", method.into())]),
            )
        }
        // The operands are constants, because the result size depends on them.
        "argwhere" => {
            let shape = sampler.shape_of_rank(1, 4);
            recipe([weight(DType::Bool, shape, Fill::Within(0.0, 1.0))], Attrs::none())
        }
        "unique_slices" => {
            let (dtype, shape) = first_argument(sampler, constraints, 1, 3);
            recipe([weight(dtype, shape, Fill::Within(0.0, 3.0))], attrs([("is_sorted", sampler.chance(2).into())]))
        }
        "reinterpret" => {
            let (dtype, shape) = first_argument(sampler, constraints, 0, 4);
            let has_same_width =
                |target_dtype: &&DType| target_dtype.bits() == dtype.bits() && !target_dtype.is_float();
            let target_dtype = DType::COMPUTED.iter().find(has_same_width).copied()?;
            recipe([unconstrained(dtype, shape)], attrs([("dtype", target_dtype.into())]))
        }
        "image.grid_sample" => {
            let (batch, size) = (sampler.batch(), sampler.spatial_dim());
            let data = operand(float, vec![batch, 2, size, size + 1], Fill::Terms);
            let grid = operand(float, vec![batch, 2, 3, 2], Fill::Within(-1.2, 1.2));
            let padding = sampler.pick(&["zeros", "border", "reflection"]);
            // The method is never `nearest`, because a rounding error in a coordinate could then select a different
            // element.
            recipe([data, grid], attrs([("padding_mode", padding.into())]))
        }
        "vision.all_class_non_max_suppression" => {
            let (batch, boxes) = (sampler.batch(), sampler.spatial_dim());
            let box_operand = operand(float, vec![batch, boxes, 4], Fill::Within(0.0, 1.0));
            let scores = operand(float, vec![batch, 2, boxes], Fill::Within(0.0, 1.0));
            let threshold = |max| weight(DType::F32, vec![1], Fill::Within(0.0, max));
            recipe([box_operand, scores, integers(DType::I64, vec![3]), threshold(0.5), threshold(0.3)], Attrs::none())
        }
        "vision.roi_align" => {
            let size = sampler.spatial_dim() + 2;
            let data = operand(float, vec![1, 2, size, size + 1], Fill::Terms);
            let rois = weight(float, vec![2, 5], Fill::Exactly(vec![0, 0, 0, 2, 2, 0, 1, 0, 2, 1]));
            recipe([data, rois], attrs([("pooled_size", AttrValue::from([2i64, 2])), ("sample_ratio", 2.into())]))
        }
        "linalg.det" => {
            let (batch, size) = (sampler.batch(), sampler.below(4) + 1);
            recipe([operand(float, vec![batch, size, size], Fill::Within(-1.0, 1.0))], Attrs::none())
        }
        "nn.col2im" => {
            let (batch, size) = (sampler.batch(), sampler.int(3, 6));
            let blocks = ((size - 1) * (size - 1)) as usize;
            let data = operand(float, vec![batch, 2 * 4, blocks], Fill::Terms);
            recipe([data, integers(DType::I64, vec![size; 2]), integers(DType::I64, vec![2; 2])], Attrs::none())
        }
        "signal.dft" => {
            let (batch, size) = (sampler.batch(), sampler.spatial_dim());
            let data = operand(float, vec![batch, size, 1 + sampler.below(2)], Fill::Terms);
            let scalar = |n| weight(DType::I64, Vec::new(), Fill::Exactly(vec![n]));
            recipe([data, scalar(0), scalar(1)], attrs([("onesided", sampler.chance(2).into())]))
        }
        "signal.stft" => {
            let (batch, size) = (sampler.batch(), sampler.spatial_dim());
            let signal = operand(float, vec![batch, size + 4, 1], Fill::Terms);
            let step = weight(DType::I64, Vec::new(), Fill::Exactly(vec![sampler.int(1, 3)]));
            recipe([signal, step, operand(float, vec![4], Fill::Factors)], Attrs::none())
        }
        "einsum" => {
            let equation = sampler.pick(&["ij,jk->ik", "...ij,...kj->...ik", "ij,jk", "ij,jk->"]);
            let [rows, terms, columns] = [sampler.spatial_dim(), sampler.spatial_dim(), sampler.spatial_dim()];
            let right_shape = if equation.starts_with("...") { vec![columns, terms] } else { vec![terms, columns] };
            let field = |shape: Vec<usize>, fill| Operand { dtype: float, shape, fill, weight: false };
            let operands = vec![field(vec![rows, terms], Fill::Terms), field(right_shape, Fill::Factors)];
            recipe([Argument::Tuple(operands)], attrs([("equation", AttrValue::from(equation))]))
        }
        _ => None,
    }
}

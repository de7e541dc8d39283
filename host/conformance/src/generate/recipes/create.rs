//! Operators that create tensors from a shape.

use super::{Constraint, Recipe, argument_type, attrs, integers, ints, recipe, unconstrained, weight};
use crate::generate::draw::{Fill, Sampler};
use byoc_ir::ir::{AttrValue, Attrs};
use byoc_ir::op::OpDef;
use byoc_ir::tensor::DType;

pub(super) fn propose(def: &'static OpDef, sampler: &mut Sampler, constraints: &[Constraint]) -> Option<Recipe> {
    let shape = sampler.shape_of_rank(1, 3);
    let dims = shape.iter().map(|&d| d as i64).collect();
    let dtype = sampler.theme.dtype;
    match def.name {
        "zeros" | "ones" => recipe([], attrs([("shape", ints(shape)), ("dtype", dtype.into())])),
        "dyn.zeros" | "dyn.ones" => recipe([integers(DType::I64, dims)], attrs([("dtype", dtype.into())])),
        "full" | "dyn.full" => {
            let (dtype, value) = argument_type(constraints, 0).unwrap_or((dtype, Vec::new()));
            let value = unconstrained(dtype, value);
            if def.name == "dyn.full" {
                return recipe([value, integers(DType::I64, dims)], Attrs::none());
            }
            recipe([value], attrs([("shape", ints(shape))]))
        }
        "arange" => {
            let count = sampler.int(0, 9);
            let scalar = |value: i64| weight(DType::I64, Vec::new(), Fill::Exactly(vec![value]));
            let (start, step) = (sampler.int(-5, 5), sampler.pick(&[1, 2, -1, 3]));
            let dtype_attr = AttrValue::from(sampler.pick(&[DType::F32, DType::I64, DType::I32]));
            recipe([scalar(start), scalar(start + step * count), scalar(step)], attrs([("dtype", dtype_attr)]))
        }
        _ => None,
    }
}

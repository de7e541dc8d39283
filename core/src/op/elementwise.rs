//! Elementwise operators of one input: one output element from the input element at the same place.

use super::{Arity, AttrDef, AttrKind, Cost, Default, OpDef, OpPattern, Params, ReferenceError, Relation, TypeResult};
use crate::tensor::{Element, TensorView, TensorViewMut};
use crate::with_dtype;

/// The result has the type of the argument.
pub(super) fn same_as_input(relation: &Relation<'_>) -> TypeResult {
    relation.tensor(0)?;
    Ok(relation.args[0].clone())
}

/// One operation per output element.
pub(super) fn one_per_element(cost: &Cost<'_>) -> u64 {
    cost.ret_len()
}

/// Computes each element in binary64 and rounds once.
pub(super) fn map(inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], f: impl Fn(f64) -> f64) {
    with_dtype!(inputs[0].dtype, T => {
        for (out, &x) in outputs[0].as_mut_slice::<T>().iter_mut().zip(inputs[0].as_slice::<T>()) {
            *out = T::from_f64(f(x.to_f64()));
        }
    });
}

macro_rules! unary {
    ($($name:literal, $doc:literal, $f:expr;)*) => {$(
        inventory::submit! {
            OpDef {
                name: $name,
                doc: $doc,
                arity: Arity::exactly(1),
                inputs: &["data"],
                attrs: &[],
                pattern: OpPattern::ElemWise,
                relation: same_as_input,
                reference: Some(|_, inputs, outputs| { map(inputs, outputs, $f); Ok(()) }),
                flops: one_per_element,
            }
        }
    )*};
}

unary! {
    "nn.relu", "max(x, 0); NaN stays NaN.", |x: f64| if x < 0.0 { 0.0 } else { x };
    "exp", "e to the power of x.", f64::exp;
}

inventory::submit! {
    OpDef {
        name: "clip",
        doc: "min(max(x, a_min), a_max); NaN stays NaN.",
        arity: Arity::exactly(1),
        inputs: &["data"],
        attrs: &[
            AttrDef::new("a_min", AttrKind::Float, Default::Required, "lower bound"),
            AttrDef::new("a_max", AttrKind::Float, Default::Required, "upper bound"),
        ],
        pattern: OpPattern::ElemWise,
        relation: same_as_input,
        reference: Some(clip),
        flops: one_per_element,
    }
}

fn clip(
    params: Params<'_>,
    inputs: &[TensorView<'_>],
    outputs: &mut [TensorViewMut<'_>],
) -> Result<(), ReferenceError> {
    let (low, high) = (params.float("a_min"), params.float("a_max"));
    map(inputs, outputs, |x| {
        if x < low {
            low
        } else if x > high {
            high
        } else {
            x
        }
    });
    Ok(())
}

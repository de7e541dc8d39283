//! Operators that repeat elements: broadcast_to, tile, repeat.

use super::reshape::{MAX_RANK, unknown_dims};
use super::walk::{broadcast_strides, gather, gather_strided, strides};
use super::{AttrDef, AttrKind, Default, Evaluation, OpPattern, Params, Relation, TypeResult};
use crate::diag::codes;
use crate::ir::{Dim, TensorType, Type};
use crate::op::facts::Properties;
use crate::tensor::{TensorView, TensorViewMut};

fn broadcast_to_dims(relation: &Relation<'_>, data: &TensorType, dims: Vec<Dim>) -> TypeResult {
    let Some(missing_rank) = dims.len().checked_sub(data.dims.len()) else {
        let rank = dims.len();
        return Err(relation.mismatch(format!("expected a rank of at most {rank}, found {}", relation.args[0])));
    };
    for (source, target) in data.dims.iter().zip(&dims[missing_rank..]) {
        if let (Some(a), Some(b)) = (source.fixed(), target.fixed())
            && a != 1
            && a != b
        {
            return Err(relation.mismatch(format!("expected a dimension of 1 or {b}, found {a}")));
        }
    }
    Ok(Type::tensor_of(data.dtype, dims))
}

/// Converts a list of integers to dimensions.
pub(super) fn dims_of(relation: &Relation<'_>, shape: &[i64]) -> Result<Vec<Dim>, Box<crate::diag::Diagnostic>> {
    if shape.len() > MAX_RANK {
        return Err(relation.error(
            codes::types::BAD_ATTRIBUTE,
            format!("expected a rank of at most {MAX_RANK}, found {}", shape.len()),
        ));
    }
    let dim = |&n: &i64| usize::try_from(n).map(Dim::Fixed).ok();
    let dims = shape.iter().map(dim).collect::<Option<Vec<_>>>();
    dims.ok_or_else(|| {
        relation.error(codes::types::BAD_ATTRIBUTE, format!("expected dimensions >= 0, found {shape:?}"))
    })
}

fn broadcast(_: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let strides = broadcast_strides(inputs[0].shape, outputs[0].shape.len());
    gather_strided(&inputs[0], &mut outputs[0], &strides);
    Ok(())
}

operator! {
    name: "broadcast_to",
    doc: "data broadcast to the given shape: repeated along dimensions of 1 and along new leading dimensions.",
    inputs: &["data"],
    attrs: &[AttrDef::new("shape", AttrKind::Ints, Default::Required, "shape of the result")],
    pattern: OpPattern::Broadcast,
    relation: |relation| {
        broadcast_to_dims(relation, relation.tensor(0)?, dims_of(relation, &relation.params.ints("shape"))?)
    },
    reference: Some(broadcast),
}

operator! {
    name: "broadcast_to_like",
    doc: "data broadcast to the shape of broadcast_type.",
    inputs: &["data", "broadcast_type"],
    pattern: OpPattern::Broadcast,
    relation: |relation| broadcast_to_dims(relation, relation.tensor(0)?, relation.tensor(1)?.dims.to_vec()),
    reference: Some(broadcast),
    properties: Properties::POINTWISE,
}

operator! {
    name: "dyn.broadcast_to",
    doc: "broadcast_to with a shape computed at run time.",
    inputs: &["data", "shape"],
    pattern: OpPattern::Broadcast,
    relation: |relation| {
        let dims = match relation.known_ints(1) {
            Some(shape) => dims_of(relation, &shape)?,
            None => unknown_dims(relation, 1)?,
        };
        broadcast_to_dims(relation, relation.tensor(0)?, dims)
    },
    reference: Some(broadcast),
}

fn tile_type(relation: &Relation<'_>, reps: Vec<Dim>) -> TypeResult {
    let data = relation.tensor(0)?;
    let rank = data.dims.len().max(reps.len());
    let padded = |dims: &[Dim]| -> Vec<Dim> {
        std::iter::repeat_n(Dim::Fixed(1), rank - dims.len()).chain(dims.iter().cloned()).collect()
    };
    let dims: Result<Vec<Dim>, _> = padded(&data.dims)
        .into_iter()
        .zip(padded(&reps))
        .map(|(dim, reps)| match (dim.fixed(), reps.fixed()) {
            (_, Some(1)) => Ok(dim),
            (_, Some(0)) | (Some(0), _) => Ok(Dim::Fixed(0)),
            (Some(a), Some(b)) => {
                let message = || format!("expected a result dimension < 2^64, found {a} * {b}");
                a.checked_mul(b).map(Dim::Fixed).ok_or_else(|| relation.mismatch(message()))
            }
            _ => Ok(Dim::compute([&dim, &reps], |[dim, reps]| dim.mul(&reps))),
        })
        .collect();
    Ok(Type::tensor_of(data.dtype, dims?))
}

fn tile(_: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let (shape, strides) = (inputs[0].shape, strides(inputs[0].shape));
    let missing_rank = outputs[0].shape.len() - shape.len();
    gather(&inputs[0], &mut outputs[0], |index| {
        index[missing_rank..].iter().zip(shape).zip(&strides).map(|((i, n), s)| i % n * s).sum()
    });
    Ok(())
}

operator! {
    name: "tile",
    doc: "data repeated reps[i] times along axis i; the shorter of shape and reps is padded with leading ones.",
    inputs: &["data"],
    attrs: &[AttrDef::new("reps", AttrKind::Ints, Default::Required, "repetitions per axis")],
    pattern: OpPattern::Broadcast,
    relation: |relation| tile_type(relation, dims_of(relation, &relation.params.ints("reps"))?),
    reference: Some(tile),
}

operator! {
    name: "dyn.tile",
    doc: "tile with repetitions computed at run time.",
    inputs: &["data", "reps"],
    pattern: OpPattern::Broadcast,
    relation: |relation| {
        let reps = match relation.known_ints(1) {
            Some(reps) => dims_of(relation, &reps)?,
            None => unknown_dims(relation, 1)?,
        };
        tile_type(relation, reps)
    },
    reference: Some(tile),
}

operator! {
    name: "repeat",
    doc: "Each element repeated `repeats` times in succession along the axis.",
    inputs: &["data"],
    attrs: &[
        AttrDef::new("repeats", AttrKind::Int, Default::Required, "number of repetitions"),
        AttrDef::new("axis", AttrKind::Int, Default::Required, "axis; a negative axis counts from the end"),
    ],
    pattern: OpPattern::Broadcast,
    relation: |relation| {
        let data = relation.tensor(0)?;
        let axis = relation.axis(relation.params.int("axis"), data.dims.len())?;
        let repeats = dims_of(relation, &[relation.params.int("repeats")])?.remove(0);
        let mut reps = vec![Dim::Fixed(1); data.dims.len()];
        reps[axis] = repeats;
        tile_type(relation, reps)
    },
    reference: Some(|params, inputs, outputs| {
        let (shape, repeats) = (inputs[0].shape, params.int("repeats") as usize);
        let axis = params.int("axis").rem_euclid(shape.len() as i64) as usize;
        let strides = strides(shape);
        gather(&inputs[0], &mut outputs[0], |index| {
            let of = |(i, s): (usize, &usize)| if i == axis { index[i] / repeats * s } else { index[i] * s };
            strides.iter().enumerate().map(of).sum()
        });
        Ok(())
    }),
}

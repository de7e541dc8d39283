//! Operators that move blocks of spatial axes into the batch or back, and dilation with constant elements.

use super::scalar::Writer;
use super::spatial::to_dim;
use super::walk::{for_each_index, offset, strides};
use super::{AttrDef, AttrKind, Default, Evaluation, OpPattern, Params, Relation, TypeResult};
use crate::diag::{Diagnostic, codes};
use crate::ir::{AttrValue, Dim, DimExpr, Type};
use crate::op::facts::Properties;
use crate::tensor::{TensorView, TensorViewMut};

const BLOCK_SHAPE: AttrDef =
    AttrDef::new("block_shape", AttrKind::Ints, Default::Ints(&[1, 1]), "size of a block on each axis after the batch");

/// Returns attribute `name`, a pair of numbers for each block axis.
fn pairs(params: &Params<'_>, name: &str) -> Option<Vec<(i64, i64)>> {
    let AttrValue::List(items) = params.value(name) else { return None };
    let pair = |item: &AttrValue| match item.as_ints()?[..] {
        [before, after] => Some((before, after)),
        _ => None,
    };
    items.iter().map(pair).collect()
}

/// Returns the block sizes and the numbers of elements to add or remove per axis, after a check of both.
fn blocks(relation: &Relation<'_>, name: &str) -> Result<(Vec<i64>, Vec<(i64, i64)>), Box<Diagnostic>> {
    let (rank, blocks) = (relation.tensor(0)?.dims.len(), relation.params.ints("block_shape"));
    let invalid = |message: String| relation.error(codes::types::BAD_ATTRIBUTE, message);
    if blocks.len() >= rank || blocks.iter().any(|block| !(1..=1 << 20).contains(block)) {
        let expected = format!("fewer than {rank} integers from 1 to 1048576");
        return Err(invalid(format!("block_shape: expected {expected}, found {blocks:?}")));
    }
    let is_valid = |pairs: &Vec<(i64, i64)>| {
        let range = 0..=i64::from(i32::MAX);
        pairs.len() == blocks.len() && pairs.iter().all(|(a, b)| range.contains(a) && range.contains(b))
    };
    match pairs(&relation.params, name).filter(is_valid) {
        Some(pairs) => Ok((blocks, pairs)),
        None => {
            let found = relation.params.value(name);
            Err(invalid(format!("{name}: expected {} pairs of integers >= 0, found {found}", blocks.len())))
        }
    }
}

/// Divides a dimension, which must be a multiple of `n`.
fn divided(relation: &Relation<'_>, what: &str, dim: &Dim, n: i64) -> Result<Dim, Box<Diagnostic>> {
    match dim.fixed() {
        Some(size) if size as i128 % i128::from(n) == 0 => Ok(Dim::Fixed((size as i128 / i128::from(n)) as usize)),
        Some(size) => Err(relation.mismatch(format!("{what}: expected a multiple of {n}, found {size}"))),
        None => Ok(Dim::compute([dim], |[dim]| dim.floor_div(&DimExpr::constant(n)))),
    }
}

fn volume(relation: &Relation<'_>, blocks: &[i64]) -> Result<i64, Box<Diagnostic>> {
    let product = blocks.iter().try_fold(1i64, |product, &block| product.checked_mul(block));
    product.ok_or_else(|| relation.error(codes::types::BAD_ATTRIBUTE, "block_shape: expected a product < 2^63"))
}

fn space_to_batch_type(relation: &Relation<'_>) -> TypeResult {
    let data = relation.tensor(0)?;
    let (blocks, paddings) = blocks(relation, "paddings")?;
    let count = volume(relation, &blocks)?;
    let mut dims = data.dims.to_vec();
    dims[0] = match dims[0].fixed() {
        Some(n) => to_dim(relation, n as i128 * i128::from(count))?,
        None => Dim::compute([&dims[0]], |[n]| n.scale(count)),
    };
    for (i, ((before, after), &block)) in paddings.iter().zip(&blocks).enumerate() {
        let padded = match dims[i + 1].fixed() {
            Some(n) => to_dim(relation, n as i128 + i128::from(*before) + i128::from(*after))?,
            None => Dim::compute([&dims[i + 1]], |[n]| n.offset(before + after)),
        };
        dims[i + 1] = divided(relation, &format!("axis {} with padding", i + 1), &padded, block)?;
    }
    Ok(Type::tensor_of(data.dtype, dims))
}

fn batch_to_space_type(relation: &Relation<'_>) -> TypeResult {
    let data = relation.tensor(0)?;
    let (blocks, crops) = blocks(relation, "crops")?;
    let mut dims = data.dims.to_vec();
    dims[0] = divided(relation, "batch", &dims[0], volume(relation, &blocks)?)?;
    for (i, ((before, after), &block)) in crops.iter().zip(&blocks).enumerate() {
        dims[i + 1] = match dims[i + 1].fixed() {
            Some(n) => to_dim(relation, n as i128 * i128::from(block) - i128::from(*before) - i128::from(*after))?,
            None => Dim::compute([&dims[i + 1]], |[n]| n.scale(block)?.offset(-(before + after))),
        };
    }
    Ok(Type::tensor_of(data.dtype, dims))
}

/// Calls `visit` with the offsets of each element of the larger plane and of the tensor with the larger batch. `crops`
/// are the elements of the plane before the first block is complete; elements outside of the plane are left out.
fn for_each_moved(
    blocks: &[i64],
    crops: &[(i64, i64)],
    plane: &[usize],
    batched: &[usize],
    mut visit: impl FnMut(usize, usize),
) {
    let plane_strides = strides(plane);
    let mut coordinates = vec![0; plane.len()];
    let mut position = 0;
    for_each_index(batched, |index| {
        let mut block = index[0] / plane[0].max(1);
        coordinates.copy_from_slice(index);
        coordinates[0] = index[0] % plane[0].max(1);
        let mut is_inside = true;
        for i in (0..blocks.len()).rev() {
            let in_block = block % blocks[i] as usize;
            block /= blocks[i] as usize;
            let coordinate = (index[i + 1] * blocks[i] as usize + in_block) as i64 - crops[i].0;
            is_inside &= (0..plane[i + 1] as i64).contains(&coordinate);
            coordinates[i + 1] = coordinate.max(0) as usize;
        }
        if is_inside {
            visit(offset(&coordinates, &plane_strides), position);
        }
        position += 1;
    });
}

operator! {
    name: "nn.space_to_batch_nd",
    doc: "Moves the blocks of the axes after the batch, which are padded with pad_value first, into the batch: element \
          b of the blocks of batch element n is at batch position b * batch + n.",
    inputs: &["data"],
    attrs: &[
        BLOCK_SHAPE,
        AttrDef::new("paddings", AttrKind::Ints, Default::Required, "[before, after] for each axis of a block"),
        AttrDef::new("pad_value", AttrKind::Float, Default::Float(0.0), "value of the padding"),
    ],
    pattern: OpPattern::Injective,
    relation: space_to_batch_type,
    reference: Some(|params, inputs, outputs| {
        let (blocks, paddings) = (params.ints("block_shape"), pairs(&params, "paddings").unwrap_or_default());
        let (size, shape) = (inputs[0].dtype.size(), outputs[0].shape);
        let mut out = Writer::new(&mut outputs[0]);
        (0..out.len()).for_each(|i| out.set_float(i, params.float("pad_value")));
        for_each_moved(&blocks, &paddings, inputs[0].shape, shape, |source, target| {
            outputs[0].data[target * size..][..size].copy_from_slice(&inputs[0].data[source * size..][..size]);
        });
        Ok(())
    }),
}

operator! {
    name: "nn.batch_to_space_nd",
    doc: "Moves parts of the batch into blocks of the axes after it, and crops these axes: the inverse of \
          nn.space_to_batch_nd.",
    inputs: &["data"],
    attrs: &[
        BLOCK_SHAPE,
        AttrDef::new("crops", AttrKind::Ints, Default::Required, "[before, after] for each axis of a block"),
    ],
    pattern: OpPattern::Injective,
    relation: batch_to_space_type,
    reference: Some(|params, inputs, outputs| {
        let (blocks, crops) = (params.ints("block_shape"), pairs(&params, "crops").unwrap_or_default());
        let (size, shape) = (inputs[0].dtype.size(), outputs[0].shape);
        for_each_moved(&blocks, &crops, shape, inputs[0].shape, |target, source| {
            outputs[0].data[target * size..][..size].copy_from_slice(&inputs[0].data[source * size..][..size]);
        });
        Ok(())
    }),
    properties: Properties::SELECTS,
}

operator! {
    name: "nn.dilate",
    doc: "data with strides[i] - 1 elements dilation_value between the elements of each axis i.",
    inputs: &["x"],
    attrs: &[
        AttrDef::new("strides", AttrKind::Ints, Default::Required, "distance between the elements of data on each axis"),
        AttrDef::new("dilation_value", AttrKind::Float, Default::Float(0.0), "value of the other elements"),
    ],
    pattern: OpPattern::Injective,
    relation: dilate_type,
    reference: Some(dilate),
}

fn dilate_type(relation: &Relation<'_>) -> TypeResult {
    let (data, steps) = (relation.tensor(0)?, relation.params.ints("strides"));
    if steps.len() != data.dims.len() || steps.iter().any(|step| !(1..=i64::from(i32::MAX)).contains(step)) {
        let message = format!("strides: expected {} positive integers, found {steps:?}", data.dims.len());
        return Err(relation.error(codes::types::BAD_ATTRIBUTE, message));
    }
    let dims: Result<Vec<Dim>, Box<Diagnostic>> = data
        .dims
        .iter()
        .zip(steps)
        .map(|(dim, step)| match dim.fixed() {
            Some(0) => Ok(Dim::Fixed(0)),
            Some(n) => to_dim(relation, (n as i128 - 1) * i128::from(step) + 1),
            None => Ok(Dim::compute([dim], |[n]| n.offset(-1)?.scale(step)?.offset(1))),
        })
        .collect();
    Ok(Type::tensor_of(data.dtype, dims?))
}

fn dilate(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let (steps, size, target_strides) = (params.ints("strides"), inputs[0].dtype.size(), strides(outputs[0].shape));
    let mut out = Writer::new(&mut outputs[0]);
    (0..out.len()).for_each(|i| out.set_float(i, params.float("dilation_value")));
    let mut elements = inputs[0].data.chunks_exact(size);
    for_each_index(inputs[0].shape, |index| {
        let target: usize =
            index.iter().zip(&steps).zip(&target_strides).map(|((i, step), s)| i * *step as usize * s).sum();
        if let Some(element) = elements.next() {
            outputs[0].data[target * size..][..size].copy_from_slice(element);
        }
    });
    Ok(())
}

//! Rotary embeddings and fixed-size caches of language models.

use super::{Node, Outputs, Result, Row, attrs, single_output};
use byoc_ir::ir::{AttrValue, Dim, ExprId};
use byoc_ir::tensor::{DType, Tensor};

pub const ROWS: &[Row] = &[("RotaryEmbedding", 23, rotary_embedding), ("TensorScatter", 24, tensor_scatter)];

/// Rotates pairs of elements by angles, given as their cosines and sines at each position. X is (batch, heads,
/// sequence, size) or (batch, sequence, heads * size).
fn rotary_embedding(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let data = n.input(0)?;
    let input_dims = n.dims(data)?;
    let is_flat = input_dims.len() == 3;
    let x = if is_flat {
        let heads = usize::try_from(n.int_attr("num_heads", 0)?).ok().filter(|&heads| heads > 0);
        let (Some(heads), Some(hidden_size)) = (heads, input_dims[2].fixed()) else {
            return Err(n.invalid_node(format!(
                "expected num_heads > 0 and a known width, found num_heads {} and width {}",
                n.int_attr("num_heads", 0)?,
                input_dims[2]
            )));
        };
        if !hidden_size.is_multiple_of(heads) {
            return Err(n.invalid_node(format!("expected a width divisible by {heads} heads, found {hidden_size}")));
        }
        let split = [input_dims[0].clone(), input_dims[1].clone(), Dim::Fixed(heads), Dim::Fixed(hidden_size / heads)];
        n.reshape_to(data, &split)?
    } else {
        data
    };
    let [_, _, _, size] = n.dims_of_rank(x)?;
    let size = size.fixed().ok_or_else(|| n.invalid_node(format!("expected a known head size, found {size}")))?;
    let rotary_size = match n.int_attr("rotary_embedding_dim", 0)? {
        0 => size,
        part => usize::try_from(part).ok().filter(|&part| part <= size).unwrap_or(0),
    };
    let angles = [angles(n, 1, is_flat)?, angles(n, 2, is_flat)?];
    let is_interleaved = n.int_attr("interleaved", 0)? != 0;
    let rotated_input = rotate_first(n, x, rotary_size, angles, is_interleaved)?;
    single_output(n.reshape_to(rotated_input, &input_dims)?)
}

/// Rotates the leading elements of each head, one pair of elements per cosine.
pub(super) fn rotate_heads(
    n: &mut Node<'_, '_>,
    x: ExprId,
    angles: [ExprId; 2],
    is_interleaved: bool,
) -> Result<ExprId> {
    let Some(half_size) = n.dims(angles[0])?.last().and_then(Dim::fixed) else {
        let ty = n.ty(angles[0])?;
        return Err(n.invalid_node(format!("expected a known number of angles, found {ty}")));
    };
    rotate_first(n, x, 2 * half_size, angles, is_interleaved)
}

/// Rotates the first `rotary_size` elements of each head, (batch, heads, sequence, size).
fn rotate_first(
    n: &mut Node<'_, '_>,
    x: ExprId,
    rotary_size: usize,
    angles: [ExprId; 2],
    interleaved: bool,
) -> Result<ExprId> {
    let [_, _, _, size] = n.dims_of_rank(x)?;
    let size = size.fixed().ok_or_else(|| n.invalid_node(format!("expected a known head size, found {size}")))?;
    if rotary_size == 0 || rotary_size > size || !rotary_size.is_multiple_of(2) {
        return Err(n.invalid_node(format!(
            "expected an even number of rotated elements from 2 to {size}, found {rotary_size}"
        )));
    }
    let head = n.slice(x, 3, 0, rotary_size)?;
    let rotated_head = rotate(n, head, rotary_size, angles, interleaved)?;
    if rotary_size == size {
        return Ok(rotated_head);
    }
    let unrotated_part = n.slice(x, 3, rotary_size, size)?;
    n.concatenate(&[rotated_head, unrotated_part], 3)
}

/// Returns the cosines or sines from input `i` for each position, in a shape that broadcasts over the heads.
fn angles(n: &mut Node<'_, '_>, i: usize, is_flat: bool) -> Result<ExprId> {
    let cache = n.input(i)?;
    let cache = match n.optional_input(3) {
        Some(positions) => n.op("take", &[cache, positions], attrs![axis: 0, mode: "fast"])?,
        None => cache,
    };
    n.op("expand_dims", &[cache], attrs![axis: if is_flat { 2 } else { 1 }])
}

/// Rotates `size` elements in pairs: element i with element i + size / 2, or with its neighbor if `is_interleaved`.
fn rotate(
    n: &mut Node<'_, '_>,
    x: ExprId,
    size: usize,
    [cos, sin]: [ExprId; 2],
    is_interleaved: bool,
) -> Result<ExprId> {
    let half_size = size / 2;
    let [first_half, second_half] = if is_interleaved {
        let end = size as i64;
        let mut strided_half =
            |begin: i64| n.op("strided_slice", &[x], attrs![begin: [begin], end: [end], strides: [2], axes: [3]]);
        [strided_half(0)?, strided_half(1)?]
    } else {
        [n.slice(x, 3, 0, half_size)?, n.slice(x, 3, half_size, size)?]
    };
    let mut product = |a: ExprId, b: ExprId| n.op_without_attrs("multiply", &[a, b]);
    let [a, b] = [product(cos, first_half)?, product(sin, second_half)?];
    let [c, d] = [product(sin, first_half)?, product(cos, second_half)?];
    let real_part = n.op_without_attrs("subtract", &[a, b])?;
    let imaginary_part = n.op_without_attrs("add", &[c, d])?;
    if !is_interleaved {
        return n.concatenate(&[real_part, imaginary_part], 3);
    }
    let dims = n.dims(x)?;
    let pair = n.tuple(&[real_part, imaginary_part])?;
    let pairs = n.op("stack", &[pair], attrs![axis: 4])?;
    n.reshape_to(pairs, &dims)
}

/// Writes an update into a fixed-size cache, at a start position per sequence. In `circular` mode, the update wraps
/// around to the start of the cache.
fn tensor_scatter(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (cache, update) = (n.input(0)?, n.input(1)?);
    let (length, shape) = (n.dims(cache)?, n.shape(update)?);
    let axis = n.axis(n.int_attr("axis", -2)?, length.len())?;
    if axis == 0 || shape.len() != length.len() {
        return Err(n.invalid_node(format!(
            "expected axis >= 1 and an update of rank {}, found axis {axis} and rank {}",
            length.len(),
            shape.len()
        )));
    }
    let broadcast_along = |axis: usize, size: usize| {
        let mut target_shape = vec![1; shape.len()];
        target_shape[axis] = size;
        target_shape
    };
    let steps: Vec<i64> = (0..shape[axis] as i64).collect();
    let steps = n.tensor(Tensor::from_slice(&broadcast_along(axis, shape[axis]), &steps));
    let mut positions = match n.optional_input(2) {
        Some(starts) => {
            let starts = n.cast(starts, DType::I64)?;
            let starts = n.reshape(starts, &broadcast_along(0, shape[0]))?;
            n.op_without_attrs("add", &[starts, steps])?
        }
        None => steps,
    };
    if n.str_attr("mode", "linear")? == "circular" {
        let size = n.shape_vector(cache, axis..axis + 1)?;
        let size = n.reshape(size, &[])?;
        positions = n.op_without_attrs("floor_mod", &[positions, size])?;
    }
    let target_shape = AttrValue::ints(shape.iter().map(|&size| size as i64));
    let positions = n.op("broadcast_to", &[positions], attrs![shape: target_shape])?;
    let attributes = attrs![axis: axis as i64, reduction: "update"];
    single_output(n.op("scatter_elements", &[cache, positions, update], attributes)?)
}

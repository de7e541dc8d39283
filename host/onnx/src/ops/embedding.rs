//! Rotary embeddings and fixed-size caches of language models.

use super::{Node, Outputs, Result, Row, attrs, one};
use byoc_ir::ir::{AttrValue, Dim, ExprId};
use byoc_ir::tensor::{DType, Tensor};

pub const ROWS: &[Row] = &[("RotaryEmbedding", 23, rotary_embedding), ("TensorScatter", 24, tensor_scatter)];

/// Rotates pairs of elements by angles with known cosines and sines per position. X is (batch, heads, sequence, size)
/// or (batch, sequence, heads * size).
fn rotary_embedding(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let data = n.input(0)?;
    let given = n.dims(data)?;
    let flat = given.len() == 3;
    let x = if flat {
        let heads = usize::try_from(n.int_attr("num_heads", 0)?).ok().filter(|&heads| heads > 0);
        let (Some(heads), Some(hidden)) = (heads, given[2].fixed()) else {
            return Err(n.invalid_node(format!(
                "expected num_heads > 0 and a known width, found {} and {}",
                n.int_attr("num_heads", 0)?,
                given[2]
            )));
        };
        if !hidden.is_multiple_of(heads) {
            return Err(n.invalid_node(format!("expected a width divisible by {heads} heads, found {hidden}")));
        }
        let split = [given[0].clone(), given[1].clone(), Dim::Fixed(heads), Dim::Fixed(hidden / heads)];
        n.reshape_to(data, &split)?
    } else {
        data
    };
    let dims = n.dims(x)?;
    let [_, _, _, size] = &dims[..] else {
        return Err(n.invalid_node(format!("X: expected rank 3 or 4, found {}", n.ty(data)?)));
    };
    let size = size.fixed().ok_or_else(|| n.invalid_node("expected a known head size, found an unknown dimension"))?;
    let rotated = match n.int_attr("rotary_embedding_dim", 0)? {
        0 => size,
        part => usize::try_from(part).ok().filter(|&part| part <= size).unwrap_or(0),
    };
    let angles = [angles(n, 1, flat)?, angles(n, 2, flat)?];
    let interleaved = n.int_attr("interleaved", 0)? != 0;
    let whole = rotate_first(n, x, rotated, angles, interleaved)?;
    one(n.reshape_to(whole, &given)?)
}

/// Rotates the leading elements of each head, two per cosine.
pub(super) fn rotate_heads(n: &mut Node<'_, '_>, x: ExprId, angles: [ExprId; 2], interleaved: bool) -> Result<ExprId> {
    let half = n.dims(angles[0])?.last().and_then(Dim::fixed);
    let half = half.ok_or_else(|| n.invalid_node("expected a known number of angles, found an unknown dimension"))?;
    rotate_first(n, x, 2 * half, angles, interleaved)
}

/// Rotates the first `rotated` elements of each head, (batch, heads, sequence, size).
fn rotate_first(
    n: &mut Node<'_, '_>,
    x: ExprId,
    rotated: usize,
    angles: [ExprId; 2],
    interleaved: bool,
) -> Result<ExprId> {
    let size = n.dims(x)?[3]
        .fixed()
        .ok_or_else(|| n.invalid_node("expected a known head size, found an unknown dimension"))?;
    if rotated == 0 || rotated > size || !rotated.is_multiple_of(2) {
        return Err(
            n.invalid_node(format!("expected an even number of rotated elements from 2 to {size}, found {rotated}"))
        );
    }
    let head = n.slice(x, 3, 0, rotated)?;
    let turned = rotate(n, head, rotated, angles, interleaved)?;
    if rotated == size {
        return Ok(turned);
    }
    let rest = n.slice(x, 3, rotated, size)?;
    n.concatenate(&[turned, rest], 3)
}

/// Returns the cosines or sines of input `i` for each position, in a shape that broadcasts over the heads.
fn angles(n: &mut Node<'_, '_>, i: usize, flat: bool) -> Result<ExprId> {
    let cache = n.input(i)?;
    let cache = match n.optional_input(3) {
        Some(positions) => n.op("take", &[cache, positions], attrs![axis: 0, mode: "fast"])?,
        None => cache,
    };
    n.op("expand_dims", &[cache], attrs![axis: if flat { 2 } else { 1 }])
}

/// Rotates `size` elements in pairs: element i with element i + size / 2, or with its neighbor if `interleaved`.
fn rotate(n: &mut Node<'_, '_>, x: ExprId, size: usize, [cos, sin]: [ExprId; 2], interleaved: bool) -> Result<ExprId> {
    let half = size / 2;
    let [first, second] = if interleaved {
        let end = size as i64;
        let mut every_other =
            |begin: i64| n.op("strided_slice", &[x], attrs![begin: [begin], end: [end], strides: [2], axes: [3]]);
        [every_other(0)?, every_other(1)?]
    } else {
        [n.slice(x, 3, 0, half)?, n.slice(x, 3, half, size)?]
    };
    let mut product = |a: ExprId, b: ExprId| n.op_without_attrs("multiply", &[a, b]);
    let [a, b] = [product(cos, first)?, product(sin, second)?];
    let [c, d] = [product(sin, first)?, product(cos, second)?];
    let real = n.op_without_attrs("subtract", &[a, b])?;
    let imaginary = n.op_without_attrs("add", &[c, d])?;
    if !interleaved {
        return n.concatenate(&[real, imaginary], 3);
    }
    let dims = n.dims(x)?;
    let pair = n.tuple(&[real, imaginary])?;
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
        let message = format!("axis: expected 1 to {}, found {axis}", length.len().saturating_sub(1));
        return Err(n.invalid_node(message));
    }
    let along = |axis: usize, size: usize| {
        let mut wanted = vec![1; shape.len()];
        wanted[axis] = size;
        wanted
    };
    let steps: Vec<i64> = (0..shape[axis] as i64).collect();
    let steps = n.tensor(Tensor::from_slice(&along(axis, shape[axis]), &steps));
    let mut places = match n.optional_input(2) {
        Some(starts) => {
            let starts = n.cast(starts, DType::I64)?;
            let starts = n.reshape(starts, &along(0, shape[0]))?;
            n.op_without_attrs("add", &[starts, steps])?
        }
        None => steps,
    };
    if n.str_attr("mode", "linear")? == "circular" {
        let size = n.shape_vector(cache, axis..axis + 1)?;
        let size = n.reshape(size, &[])?;
        places = n.op_without_attrs("floor_mod", &[places, size])?;
    }
    let wanted = AttrValue::ints(shape.iter().map(|&size| size as i64));
    let places = n.op("broadcast_to", &[places], attrs![shape: wanted])?;
    let attributes = attrs![axis: axis as i64, reduction: "update"];
    one(n.op("scatter_elements", &[cache, places, update], attributes)?)
}

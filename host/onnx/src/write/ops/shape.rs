//! Operators that change dimensions or the order of elements: reshape, transpose, concatenation, repetition.

use super::super::call::{Call, Outputs, int_vector, known_dims, normal_axis};
use super::super::proto_parts::int;
use super::super::values::Operand;
use super::super::writer::{Refusal, Result};
use super::{Row, single};
use byoc_ir::ir::{AttrValue, Dim};
use byoc_ir::op::layout::{Layout, permutation};
use byoc_ir::tensor::Tensor;
use std::sync::Arc;

pub const ROWS: &[Row] = &[
    ("broadcast_to", |c| {
        let (x, shape) = (c.arg(0)?, c.params.ints("shape"));
        single(c.node("Expand", &[x, int_vector(&shape)], Vec::new()))
    }),
    ("broadcast_to_like", |c| {
        let (x, like) = (c.arg(0)?, c.arg(1)?);
        let shape = c.shape_of(&like);
        single(c.apply("Expand", &[&x, &shape]))
    }),
    ("concatenate", |c| {
        let (fields, axis) = (c.fields(0)?, c.axis("axis", c.result()?.dims.len())?);
        single(c.concat(&fields, axis))
    }),
    ("contrib_reverse_reshape", reshape_to_type),
    ("dyn.broadcast_to", |c| {
        let (x, shape) = (c.arg(0)?, c.int_vector(1)?);
        single(c.apply("Expand", &[&x, &shape]))
    }),
    ("dyn.expand_dims", |c| {
        if c.params.int("num_newaxis") != 1 {
            return Err(Refusal::new("several new axes at a computed position"));
        }
        let (x, axes) = (c.arg(0)?, c.int_vector(1)?);
        single(c.apply("Unsqueeze", &[&x, &axes]))
    }),
    ("dyn.reshape", dyn_reshape),
    ("dyn.squeeze", |c| {
        let (x, axes) = (c.arg(0)?, c.int_vector(1)?);
        single(c.apply("Squeeze", &[&x, &axes]))
    }),
    ("dyn.tile", dyn_tile),
    ("expand_dims", |c| {
        let axis = c.axis("axis", c.rank(0)? + 1)?;
        let axes: Vec<i64> = (axis..axis.saturating_add(c.params.int("num_newaxis"))).collect();
        let x = c.arg(0)?;
        single(c.node("Unsqueeze", &[x, int_vector(&axes)], Vec::new()))
    }),
    ("layout_transform", layout_transform),
    ("nn.batch_flatten", |c| {
        let x = c.arg(0)?;
        single(c.node("Flatten", &[x], vec![int("axis", 1)]))
    }),
    ("repeat", repeat),
    ("reshape", reshape),
    ("reshape_like", reshape_like),
    ("split", split),
    ("squeeze", squeeze),
    ("stack", |c| {
        let axis = c.axis("axis", c.result()?.dims.len())?;
        let fields: Vec<Operand> = c.fields(0)?.iter().map(|field| c.unsqueeze(field, &[axis])).collect();
        single(c.concat(&fields, axis))
    }),
    ("tile", tile),
    ("transpose", transpose),
];

/// Writes a reshape whose codes ONNX has as well; other codes are replaced by the dimensions of the result.
fn reshape(c: &mut Call<'_, '_>) -> Result<Outputs> {
    let (x, shape, allowzero) = (c.arg(0)?, c.params.ints("newshape"), c.params.bool("allowzero"));
    let known = known_dims(&c.result()?.dims).filter(|dims| !dims.contains(&0));
    if known.is_some() || shape.iter().any(|&code| code < -1) {
        return reshape_to_type(c);
    }
    let mut attrs = Vec::new();
    if allowzero && shape.contains(&0) {
        c.since(14, "an empty dimension in Reshape")?;
        attrs.push(int("allowzero", 1));
    }
    single(c.node("Reshape", &[x, int_vector(&shape)], attrs))
}

/// Writes a reshape to the dimensions of the result, of which one may be unknown.
fn reshape_to_type(c: &mut Call<'_, '_>) -> Result<Outputs> {
    let (x, data, result) = (c.arg(0)?, c.ty(0)?, c.result()?);
    if let Some(shape) = known_dims(&result.dims) {
        let count = c.w.graph().nodes.len();
        let result = c.reshape(&x, &shape)?;
        // Only a new value is in the graph in which it is found again.
        if let (Operand::Name(name), Some(before)) = (&result, known_dims(&data.dims))
            && c.w.graph().nodes.len() > count
        {
            c.w.reshaped.insert(name.clone(), (x, before));
        }
        return single(result);
    }
    let code = |(axis, dim): (usize, &Dim)| match dim {
        Dim::Fixed(size) => *size as i64,
        Dim::Symbolic(_) if data.dims.get(axis) == Some(dim) => 0,
        _ => -1,
    };
    let shape: Vec<i64> = result.dims.iter().enumerate().map(code).collect();
    if shape.iter().filter(|&&size| size == -1).count() > 1 || result.dims.contains(&Dim::Fixed(0)) {
        return Err(Refusal::new(format!("expected at most one unknown dimension, found {}", c.ret)));
    }
    single(c.node("Reshape", &[x, int_vector(&shape)], Vec::new()))
}

fn dyn_reshape(c: &mut Call<'_, '_>) -> Result<Outputs> {
    let (x, shape) = (c.arg(0)?, c.int_vector(1)?);
    // Without it, a 0 that is computed copies a dimension.
    let allowzero = c.params.bool("allowzero");
    let mut attrs = Vec::new();
    if allowzero && c.w.opset >= 14 {
        attrs.push(int("allowzero", 1));
    }
    single(c.node("Reshape", &[x, shape], attrs))
}

fn reshape_like(c: &mut Call<'_, '_>) -> Result<Outputs> {
    let (rank, like_rank) = (c.rank(0)? as i64, c.rank(1)? as i64);
    let resolve = |value: i64, rank: i64| if value < 0 { value + rank } else { value };
    let begin = resolve(c.params.int("lhs_begin"), rank);
    let end = c.params.opt_int("lhs_end").map_or(rank, |end| resolve(end, rank));
    let like_begin = resolve(c.params.int("rhs_begin"), like_rank);
    let like_end = c.params.opt_int("rhs_end").map_or(like_rank, |end| resolve(end, like_rank));
    if let Some(shape) = known_dims(&c.result()?.dims) {
        let x = c.arg(0)?;
        return single(c.reshape(&x, &shape)?);
    }
    let (x, like) = (c.arg(0)?, c.arg(1)?);
    let mut parts = Vec::new();
    if begin > 0 {
        parts.push(c.shape_range(&x, 0, begin));
    }
    parts.push(c.shape_range(&like, like_begin, like_end));
    if end < rank {
        parts.push(c.shape_range(&x, end, rank));
    }
    let shape = if parts.len() == 1 { parts.remove(0) } else { c.concat(&parts, 0) };
    single(c.apply("Reshape", &[&x, &shape]))
}

fn squeeze(c: &mut Call<'_, '_>) -> Result<Outputs> {
    let (x, data) = (c.arg(0)?, c.ty(0)?);
    let axes = match c.params.opt_ints("axis") {
        Some(axes) => axes.iter().map(|&axis| normal_axis(axis, data.dims.len())).collect::<Result<Vec<_>>>()?,
        None => (0..data.dims.len() as i64).filter(|&axis| data.dims[axis as usize] == Dim::Fixed(1)).collect(),
    };
    if axes.is_empty() {
        return single(c.apply("Identity", &[&x]));
    }
    single(c.node("Squeeze", &[x, int_vector(&axes)], Vec::new()))
}

fn transpose(c: &mut Call<'_, '_>) -> Result<Outputs> {
    let axes = permutation(&c.params, c.rank(0)?).ok_or_else(|| Refusal::new("axes that are no permutation"))?;
    let x = c.arg(0)?;
    single(c.transpose(&x, &axes))
}

/// Writes the conversion of a layout: axes are split into blocks, permuted, and merged.
fn layout_transform(c: &mut Call<'_, '_>) -> Result<Outputs> {
    let (Some(from), Some(to)) =
        (Layout::parse(&c.params.string("src_layout")), Layout::parse(&c.params.string("dst_layout")))
    else {
        return Err(Refusal::new("an invalid layout"));
    };
    let (Some(dims), Some(result)) = (known_dims(&c.ty(0)?.dims), known_dims(&c.result()?.dims)) else {
        return Err(Refusal::new("a conversion of layouts with unknown dimensions"));
    };
    // Both sides in the blocks that they have together: an axis and its block, if either side has one.
    let block = |letter: char| {
        let size = |layout: &Layout| layout.0.iter().find(|d| d.0 == letter && d.1.is_some()).and_then(|d| d.1);
        (size(&from), size(&to))
    };
    let mut split = Vec::new();
    let mut labels = Vec::new();
    for (&(letter, size), &dim) in from.0.iter().zip(&dims) {
        match (size, block(letter)) {
            (None, (None, Some(inner))) => {
                split.extend([dim / inner as i64, inner as i64]);
                labels.extend([(letter, false), (letter, true)]);
            }
            (_, (Some(a), Some(b))) if a != b => return Err(Refusal::new("blocks of different sizes")),
            _ => {
                split.push(dim);
                labels.push((letter, size.is_some()));
            }
        }
    }
    let mut order = Vec::new();
    for &(letter, size) in &to.0 {
        let parts: &[bool] = match (size, block(letter)) {
            (None, (Some(_), None)) => &[false, true],
            (None, _) => &[false],
            _ => &[true],
        };
        for &is_block in parts {
            let position = labels.iter().position(|&label| label == (letter, is_block));
            order.push(position.ok_or_else(|| Refusal::new("layouts of different axes"))?);
        }
    }
    let mut x = c.arg(0)?;
    if split != dims {
        x = c.reshape(&x, &split)?;
    }
    x = c.transpose(&x, &order);
    let needs_merge = order.len() != result.len();
    single(if needs_merge { c.reshape(&x, &result)? } else { x })
}

fn split(c: &mut Call<'_, '_>) -> Result<Outputs> {
    let rank = c.rank(0)?;
    let (x, axis) = (c.arg(0)?, c.axis("axis", rank)?);
    let parts = c.ret.as_tuple().unwrap_or_default();
    let size = |ty: &byoc_ir::ir::Type| i64::try_from(ty.as_tensor()?.dims[axis as usize].fixed()?).ok();
    if let Some(sizes) = parts.iter().map(size).collect::<Option<Vec<i64>>>() {
        return Ok(c.nodes("Split", &[x, int_vector(&sizes)], vec![int("axis", axis)], parts.len()));
    }
    let points = match c.params.value("indices_or_sections") {
        AttrValue::List(_) => c.params.ints("indices_or_sections"),
        _ => {
            let mut attrs = vec![int("axis", axis)];
            if c.w.opset >= 18 {
                attrs.push(int("num_outputs", parts.len() as i64));
            }
            return Ok(c.nodes("Split", &[x], attrs, parts.len()));
        }
    };
    let begins = std::iter::once(0).chain(points.iter().copied());
    let ends = points.iter().copied().chain([i64::MAX]);
    Ok(begins.zip(ends).map(|(begin, end)| c.slice(&x, axis, begin, end)).collect())
}

fn tile(c: &mut Call<'_, '_>) -> Result<Outputs> {
    let (mut reps, rank) = (c.params.ints("reps"), c.rank(0)?);
    let mut x = c.arg(0)?;
    if reps.len() > rank {
        let axes: Vec<i64> = (0..(reps.len() - rank) as i64).collect();
        x = c.unsqueeze(&x, &axes);
    }
    let missing = rank.saturating_sub(reps.len());
    reps.splice(0..0, std::iter::repeat_n(1, missing));
    single(c.node("Tile", &[x, int_vector(&reps)], Vec::new()))
}

fn dyn_tile(c: &mut Call<'_, '_>) -> Result<Outputs> {
    let (rank, result) = (c.rank(0)?, c.result()?.dims.len());
    let count = c.ty(1)?.dims.first().and_then(Dim::fixed).unwrap_or(result);
    let (mut x, mut reps) = (c.arg(0)?, c.int_vector(1)?);
    if count > rank {
        let axes: Vec<i64> = (0..(count - rank) as i64).collect();
        x = c.unsqueeze(&x, &axes);
    } else if count < rank {
        reps = c.concat(&[int_vector(&vec![1; rank - count]), reps], 0);
    }
    single(c.apply("Tile", &[&x, &reps]))
}

/// Repeats each element along an axis: by indices where the axis is known, otherwise on an axis of its own.
fn repeat(c: &mut Call<'_, '_>) -> Result<Outputs> {
    let (data, repeats) = (c.ty(0)?, c.params.int("repeats"));
    let rank = data.dims.len();
    let (x, axis) = (c.arg(0)?, c.axis("axis", rank)?);
    const MAX_INDICES: i64 = 1 << 16;
    let size = data.dims[axis as usize].fixed().and_then(|size| i64::try_from(size).ok());
    if let Some(size) = size.filter(|size| size.saturating_mul(repeats) <= MAX_INDICES) {
        let indices: Vec<i64> = (0..size).flat_map(|i| std::iter::repeat_n(i, repeats.max(0) as usize)).collect();
        let indices = Operand::Constant(Arc::new(Tensor::from_slice(&[indices.len()], &indices)));
        return single(c.node("Gather", &[x, indices], vec![int("axis", axis)]));
    }
    let wide = c.unsqueeze(&x, &[axis + 1]);
    let mut reps = vec![1; rank + 1];
    reps[axis as usize + 1] = repeats;
    let tiled = c.node("Tile", &[wide, int_vector(&reps)], Vec::new());
    let shape = c.shape_of(&x);
    let mut factors = vec![1; rank];
    factors[axis as usize] = repeats;
    let shape = c.node("Mul", &[shape, int_vector(&factors)], Vec::new());
    single(c.apply("Reshape", &[&tiled, &shape]))
}

//! Padding, space_to_depth and depth_to_space: operators that only move elements.

use super::spatial::{self, CanonicalDims};
use super::walk::{gather, strides};
use super::{AttrDef, AttrKind, Default, Evaluation, OpPattern, Params, Relation, TypeResult};
use crate::diag::{Diagnostic, codes};
use crate::ir::{AttrValue, Dim, DimExpr, Type};
use crate::op::facts::Properties;
use crate::tensor::{TensorView, TensorViewMut};

const PAD_MODE: AttrDef =
    AttrDef::new("pad_mode", AttrKind::Str, Default::Str("constant"), "constant, edge or reflect");

operator! {
    name: "nn.pad",
    doc: "Adds elements before and after each axis: the value of argument 1 (constant), the element of the border \
          (edge), or the data mirrored at its border elements (reflect). A negative width crops elements.",
    inputs: &["data", "pad_value"],
    attrs: &[
        AttrDef::new("pad_width", AttrKind::Ints, Default::Required, "[before, after] for every axis"),
        PAD_MODE,
    ],
    pattern: OpPattern::Injective,
    relation: pad_relation,
    reference: Some(pad_reference),
}

operator! {
    name: "dyn.nn.pad",
    doc: "nn.pad with widths computed at run time: one row (before, after) for every axis.",
    inputs: &["data", "pad_width", "pad_value"],
    attrs: &[PAD_MODE],
    pattern: OpPattern::Injective,
    relation: dynamic_pad_relation,
    reference: Some(|params, inputs, outputs| {
        let widths = inputs[1].to_i64s().ok_or_else(|| {
            format!("pad_width: expected integers that fit int64, found {}", inputs[1].dtype)
        })?;
        pad(&params, &pairs(&widths), [&inputs[0], &inputs[2]], outputs);
        Ok(())
    }),
}

operator! {
    name: "nn.mirror_pad",
    doc: "Adds elements before and after each axis: the data mirrored at its border, with the border element repeated \
          (SYMMETRIC) or not (REFLECT).",
    inputs: &["data"],
    attrs: &[
        AttrDef::new("mode", AttrKind::Str, Default::Str("SYMMETRIC"), "SYMMETRIC or REFLECT"),
        AttrDef::new("pad_width", AttrKind::Ints, Default::Required, "[before, after] for every axis"),
    ],
    pattern: OpPattern::Injective,
    relation: mirror_pad_relation,
    reference: Some(|params, inputs, outputs| {
        let is_symmetric = params.string("mode") == "SYMMETRIC";
        let widths = pad_width(&params).unwrap_or_default();
        let (shape, strides) = (inputs[0].shape, strides(inputs[0].shape));
        gather(&inputs[0], &mut outputs[0], |index| {
            let source = |axis: usize| {
                let (x, size) = (index[axis] as i64 - widths[axis].0, shape[axis] as i64);
                let mirrored = match x {
                    ..0 => -x - i64::from(is_symmetric),
                    _ if x >= size => 2 * size - x - 1 - i64::from(!is_symmetric),
                    _ => x,
                };
                mirrored as usize * strides[axis]
            };
            (0..shape.len()).map(source).sum()
        });
        Ok(())
    }),
    properties: Properties::SELECTS,
}

operator! {
    name: "nn.depth_to_space",
    doc: "Moves block_size^2 channels into blocks of the plane. Channel c of the result is read from channel \
          (row * block_size + column) * channels + c (mode DCR), or c * block_size^2 + row * block_size + column \
          (mode CRD), where row and column are the position in the block.",
    inputs: &["data"],
    attrs: &[
        AttrDef::new("block_size", AttrKind::Int, Default::Required, "height and width of a block"),
        AttrDef::new("layout", AttrKind::Str, Default::Str("NCHW"), "order of the axes"),
        AttrDef::new("mode", AttrKind::Str, Default::Str("DCR"), "DCR or CRD"),
    ],
    pattern: OpPattern::Injective,
    relation: depth_relation,
    reference: Some(blocks_reference),
    properties: Properties::SELECTS,
}

operator! {
    name: "nn.space_to_depth",
    doc: "Moves blocks of the plane into channels: the inverse of nn.depth_to_space in mode DCR.",
    inputs: &["data"],
    attrs: &[
        AttrDef::new("block_size", AttrKind::Int, Default::Required, "height and width of a block"),
        AttrDef::new("layout", AttrKind::Str, Default::Str("NCHW"), "order of the axes"),
    ],
    pattern: OpPattern::Injective,
    relation: space_relation,
    reference: Some(blocks_reference),
    properties: Properties::SELECTS,
}

/// Returns `pad_width` as (before, after) pairs, one per axis; `None` if it is not a list of pairs.
pub fn pad_width(params: &Params<'_>) -> Option<Vec<(i64, i64)>> {
    let AttrValue::List(items) = params.value("pad_width") else { return None };
    let pair = |item: &AttrValue| match item.as_ints()?[..] {
        [before, after] => Some((before, after)),
        _ => None,
    };
    items.iter().map(pair).collect()
}

/// Converts a flat list to (before, after) pairs.
fn pairs(widths: &[i64]) -> Vec<(i64, i64)> {
    widths.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect()
}

fn pad_relation(relation: &Relation<'_>) -> TypeResult {
    let (rank, widths) = (relation.tensor(0)?.dims.len(), pad_width(&relation.params));
    let widths = widths.filter(|w| w.len() == rank).ok_or_else(|| {
        let pad_width = relation.params.value("pad_width");
        relation.error(
            codes::types::BAD_ATTRIBUTE,
            format!("pad_width: expected a pair per axis (rank {rank}), found {pad_width}"),
        )
    })?;
    padded_type(relation, 1, Some(&widths))
}

fn mirror_pad_relation(relation: &Relation<'_>) -> TypeResult {
    let data = relation.tensor(0)?;
    let mode = relation.params.string("mode");
    let missing = match mode.as_str() {
        "SYMMETRIC" => 0,
        "REFLECT" => 1,
        _ => {
            let message = format!("mode: expected \"SYMMETRIC\" or \"REFLECT\", found \"{mode}\"");
            return Err(relation.error(codes::types::BAD_ATTRIBUTE, message));
        }
    };
    let rank = data.dims.len();
    let widths = pad_width(&relation.params)
        .filter(|widths| widths.len() == rank && widths.iter().all(|&(before, after)| before >= 0 && after >= 0));
    let widths = widths.ok_or_else(|| {
        let pad_width = relation.params.value("pad_width");
        let message = format!("pad_width: expected a pair of integers >= 0 per axis (rank {rank}), found {pad_width}");
        relation.error(codes::types::BAD_ATTRIBUTE, message)
    })?;
    let dims: Result<Vec<Dim>, Box<Diagnostic>> = data
        .dims
        .iter()
        .zip(widths)
        .map(|(dim, (before, after))| match dim.fixed() {
            Some(n) if before.max(after) > (n as i64 - missing).max(0) => Err(relation.mismatch(format!(
                "expected {mode} padding of at most {} on an axis of length {n}, found {}",
                (n as i64 - missing).max(0),
                before.max(after)
            ))),
            Some(n) => spatial::to_dim(relation, n as i128 + i128::from(before) + i128::from(after)),
            None => Ok(Dim::compute([dim], |[n]| n.offset(before)?.offset(after))),
        })
        .collect();
    Ok(Type::tensor_of(data.dtype, dims?))
}

fn dynamic_pad_relation(relation: &Relation<'_>) -> TypeResult {
    let (rank, widths) = (relation.tensor(0)?.dims.len(), relation.tensor(1)?);
    let has_size = |axis: usize, n: usize| widths.dims[axis].fixed().is_none_or(|size| size == n);
    if !widths.dtype.is_int() || widths.dims.len() != 2 || !has_size(0, rank) || !has_size(1, 2) {
        let argument = &relation.args[1];
        return Err(relation.mismatch(format!("pad_width: expected integers of shape ({rank}, 2), found {argument}")));
    }
    padded_type(relation, 2, relation.known_ints(1).map(|w| pairs(&w)).as_deref())
}

/// Returns the type of data padded by `widths`; argument `value` is the pad value.
fn padded_type(relation: &Relation<'_>, value: usize, widths: Option<&[(i64, i64)]>) -> TypeResult {
    let (data, value) = (relation.tensor(0)?, relation.tensor(value)?);
    relation.same_dtype(data.dtype, value.dtype)?;
    if value.dims.iter().any(|d| d.fixed().is_some_and(|n| n != 1)) {
        return Err(relation.mismatch(format!("pad_value: expected one element, found {value}")));
    }
    let mode = relation.params.string("pad_mode");
    if !["constant", "edge", "reflect"].contains(&mode.as_str()) {
        return Err(relation.error(
            codes::types::BAD_ATTRIBUTE,
            format!("pad_mode: expected \"constant\", \"edge\" or \"reflect\", found \"{mode}\""),
        ));
    }
    let Some(widths) = widths else { return Ok(Type::tensor_of(data.dtype, vec![Dim::Any; data.dims.len()])) };
    let dims: Result<Vec<Dim>, Box<Diagnostic>> = data
        .dims
        .iter()
        .zip(widths)
        .map(|(dim, &(before, after))| match dim {
            _ if (before, after) == (0, 0) => Ok(dim.clone()),
            Dim::Fixed(n) => {
                let max_width = before.max(after);
                let max_reach = match mode.as_str() {
                    "edge" => i64::from(*n > 0) * i64::MAX,
                    "reflect" => *n as i64 - 1,
                    _ => i64::MAX,
                };
                if max_width > 0 && max_width > max_reach {
                    return Err(relation.mismatch(format!(
                        "expected {mode} padding of at most {max_reach} on an axis of length {n}, found {max_width}"
                    )));
                }
                spatial::to_dim(relation, *n as i128 + i128::from(before) + i128::from(after))
            }
            _ => Ok(Dim::compute([dim], |[n]| n.offset(before)?.offset(after))),
        })
        .collect();
    Ok(Type::tensor_of(data.dtype, dims?))
}

/// Returns the source index in the data for padded index `x`, which counts from the first element of the data; `None`
/// for the pad value.
pub fn pad_source(mode: &str, x: i64, size: i64) -> Option<i64> {
    match mode {
        _ if (0..size).contains(&x) => Some(x),
        "edge" => Some(x.clamp(0, size - 1)),
        "reflect" => Some(if x < 0 { -x } else { 2 * (size - 1) - x }),
        _ => None,
    }
}

fn pad_reference(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    pad(&params, &pad_width(&params).unwrap_or_default(), [&inputs[0], &inputs[1]], outputs);
    Ok(())
}

fn pad(
    params: &Params<'_>,
    widths: &[(i64, i64)],
    [data, value]: [&TensorView<'_>; 2],
    outputs: &mut [TensorViewMut<'_>],
) {
    let mode = params.string("pad_mode");
    let shape = data.shape;
    let bytes = data.dtype.size();
    let out_shape = outputs[0].shape;
    for position in 0..outputs[0].len() {
        let (mut rest, mut offset, mut step) = (position, Some(0), 1);
        for axis in (0..shape.len()).rev() {
            let x = (rest % out_shape[axis]) as i64 - widths[axis].0;
            rest /= out_shape[axis];
            offset = offset.zip(pad_source(&mode, x, shape[axis] as i64)).map(|(offset, x)| offset + x as usize * step);
            step *= shape[axis];
        }
        let source = match offset {
            Some(offset) => &data.data[offset * bytes..][..bytes],
            None => &value.data[..bytes],
        };
        outputs[0].data[position * bytes..][..bytes].copy_from_slice(source);
    }
}

/// Returns the block size, the dimensions of the data (batch, channels, height, width), and the axes of these
/// dimensions.
fn block(relation: &Relation<'_>) -> Result<(i64, [Dim; 4], Vec<usize>), Box<Diagnostic>> {
    let data = relation.tensor(0)?;
    let positions = spatial::layout(relation, "layout", "NCHW", "NCHW")?;
    if data.dims.len() != 4 {
        return Err(relation.mismatch(format!("data: expected 4 dimensions, found {}", data.dims.len())));
    }
    let size = relation.params.int("block_size");
    if !(1..=1 << 20).contains(&size) {
        return Err(relation.error(
            codes::types::BAD_ATTRIBUTE,
            format!("block_size: expected an integer from 1 to 1048576, found {size}"),
        ));
    }
    Ok((size, std::array::from_fn(|i| data.dims[positions[i]].clone()), positions))
}

fn multiply_dim(relation: &Relation<'_>, dim: &Dim, n: i64) -> Result<Dim, Box<Diagnostic>> {
    match dim {
        Dim::Fixed(d) => spatial::to_dim(relation, *d as i128 * i128::from(n)),
        _ => Ok(Dim::compute([dim], |[dim]| dim.scale(n))),
    }
}

fn divide_exact(relation: &Relation<'_>, subject: &str, dim: &Dim, n: i64) -> Result<Dim, Box<Diagnostic>> {
    match dim {
        Dim::Fixed(d) if *d % n as usize == 0 => Ok(Dim::Fixed(d / n as usize)),
        Dim::Fixed(d) => Err(relation.mismatch(format!("expected a number of {subject} divisible by {n}, found {d}"))),
        _ => Ok(Dim::compute([dim], |[dim]| dim.floor_div(&DimExpr::constant(n)))),
    }
}

fn type_in_layout(relation: &Relation<'_>, dims: [Dim; 4], positions: &[usize]) -> TypeResult {
    let mut dims_in_layout = vec![Dim::Any; 4];
    for (dim, &position) in dims.into_iter().zip(positions) {
        dims_in_layout[position] = dim;
    }
    Ok(Type::tensor_of(relation.tensor(0)?.dtype, dims_in_layout))
}

fn depth_relation(relation: &Relation<'_>) -> TypeResult {
    let mode = relation.params.string("mode");
    if mode != "DCR" && mode != "CRD" {
        return Err(
            relation.error(codes::types::BAD_ATTRIBUTE, format!("mode: expected \"DCR\" or \"CRD\", found \"{mode}\""))
        );
    }
    let (size, [n, c, h, w], positions) = block(relation)?;
    let c = divide_exact(relation, "channels", &c, size * size)?;
    type_in_layout(relation, [n, c, multiply_dim(relation, &h, size)?, multiply_dim(relation, &w, size)?], &positions)
}

fn space_relation(relation: &Relation<'_>) -> TypeResult {
    let (size, [n, c, h, w], positions) = block(relation)?;
    let (h, w) = (divide_exact(relation, "rows", &h, size)?, divide_exact(relation, "columns", &w, size)?);
    type_in_layout(relation, [n, multiply_dim(relation, &c, size * size)?, h, w], &positions)
}

fn blocks_reference(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let layout = params.string("layout");
    let data = CanonicalDims::new(inputs[0].shape, &layout, "NC");
    let out = CanonicalDims::new(outputs[0].shape, &layout, "NC");
    let size = params.int("block_size") as usize;
    let is_to_space = params.def().name == "nn.depth_to_space";
    let is_crd = params.string("mode") == "CRD";
    let bytes = inputs[0].dtype.size();
    // `deep_shape` is the tensor with more channels, `wide_shape` the tensor with the larger plane; the traversal
    // follows `wide_shape`.
    let (deep_shape, wide_shape) = if is_to_space { (&data, &out) } else { (&out, &data) };
    let [batch, channels, _, height, width] = wide_shape.size;
    for n in 0..batch {
        for c in 0..channels {
            for h in 0..height {
                for w in 0..width {
                    let block_position = h % size * size + w % size;
                    let channel = if is_crd { c * size * size + block_position } else { block_position * channels + c };
                    let deep_offset = deep_shape.at(n, channel, [0, h / size, w / size]);
                    let wide_offset = wide_shape.at(n, c, [0, h, w]);
                    let (read_index, target) =
                        if is_to_space { (deep_offset, wide_offset) } else { (wide_offset, deep_offset) };
                    let source = &inputs[0].data[read_index * bytes..][..bytes];
                    outputs[0].data[target * bytes..][..bytes].copy_from_slice(source);
                }
            }
        }
    }
    Ok(())
}

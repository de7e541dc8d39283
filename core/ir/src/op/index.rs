//! Operators that read or write elements at computed indices.

use super::elementwise::{one_flop_per_element, same_as_input};
use super::scalar::{self, Reader, Writer};
use super::walk::{for_each_index, offset, split_at_axis, strides};
use super::{AttrDef, AttrKind, Default, Evaluation, OpPattern, Params, ReferenceError, Relation, TypeResult};
use crate::diag::{Diagnostic, codes};
use crate::ir::{Dim, TensorType, Type};
use crate::op::facts::{Properties, elements_along_axis, elements_of};
use crate::tensor::{TensorView, TensorViewMut};

/// Returns the elements of an integer tensor as `i64`. Error messages call the tensor `name`.
pub(super) fn integers(view: &TensorView<'_>, name: &str) -> Result<Vec<i64>, ReferenceError> {
    view.to_i64s().ok_or_else(|| format!("{name}: expected integers that fit int64, found {}", view.dtype))
}

/// Resolves an index; a negative index counts from the end.
pub fn in_bounds(index: i64, size: usize) -> Result<usize, ReferenceError> {
    let resolved_index = if index < 0 { index.checked_add(size as i64) } else { Some(index) };
    match resolved_index.and_then(|i| usize::try_from(i).ok()) {
        Some(i) if i < size => Ok(i),
        _ => Err(format!("index {index} is out of range for an axis of length {size}")),
    }
}

pub(super) fn integer_argument<'a>(relation: &Relation<'a>, i: usize) -> Result<&'a TensorType, Box<Diagnostic>> {
    let ty = relation.tensor(i)?;
    if ty.dtype.is_float() {
        let name = relation.def.inputs[i];
        return Err(relation.mismatch(format!("{name}: expected integers, found {}", relation.args[i])));
    }
    Ok(ty)
}

/// Handling of an out-of-range index in `take`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeMode {
    /// Clamps to the nearest element.
    Clip,
    /// Wraps modulo the number of elements.
    Wrap,
    /// Reports an error.
    Fast,
}

impl TakeMode {
    /// Parses the value of attribute `mode`.
    pub fn parse(name: &str) -> Option<TakeMode> {
        match name {
            "clip" => Some(TakeMode::Clip),
            "wrap" => Some(TakeMode::Wrap),
            "fast" => Some(TakeMode::Fast),
            _ => None,
        }
    }

    /// Resolves an index on an axis of `size` elements.
    #[inline]
    pub fn resolve(self, index: i64, size: usize) -> Result<usize, ReferenceError> {
        match self {
            _ if size == 0 => Err(format!("index {index} is out of range for an axis without elements")),
            TakeMode::Clip => Ok(index.clamp(0, size as i64 - 1) as usize),
            TakeMode::Wrap => Ok(index.rem_euclid(size as i64) as usize),
            TakeMode::Fast if (0..size as i64).contains(&index) => Ok(index as usize),
            TakeMode::Fast => Err(format!("index {index} is out of range for an axis of length {size}")),
        }
    }
}

/// Returns the axis of a `take` (`None` if the data is flattened) and the number of batch dimensions; `None` if either
/// is out of range.
pub fn take_axes(params: &Params<'_>, rank: usize, index_rank: usize) -> Option<(Option<usize>, usize)> {
    let resolve = |v: i64, rank: usize| usize::try_from(if v < 0 { v + rank as i64 } else { v }).ok();
    let batch = resolve(params.int("batch_dims"), index_rank)?;
    match params.opt_int("axis") {
        None => (batch == 0).then_some((None, 0)),
        Some(axis) => {
            let axis = resolve(axis, rank).filter(|&a| a < rank)?;
            (batch <= axis && batch <= index_rank).then_some((Some(axis), batch))
        }
    }
}

fn take_type(relation: &Relation<'_>) -> TypeResult {
    let (data, indices) = (relation.tensor(0)?, integer_argument(relation, 1)?);
    let mode = relation.params.string("mode");
    if TakeMode::parse(&mode).is_none() {
        return Err(relation.error(
            codes::types::BAD_ATTRIBUTE,
            format!("mode: expected \"clip\", \"wrap\" or \"fast\", found \"{mode}\""),
        ));
    }
    let axes = take_axes(&relation.params, data.dims.len(), indices.dims.len());
    let (axis, batch) = axes.ok_or_else(|| {
        let (axis, batch) = (relation.params.value("axis"), relation.params.int("batch_dims"));
        relation.error(
            codes::types::BAD_ATTRIBUTE,
            format!(
                "axis {axis} and batch_dims {batch} are out of range for data {} and indices {}",
                relation.args[0], relation.args[1]
            ),
        )
    })?;
    let Some(axis) = axis else { return Ok(Type::tensor_of(data.dtype, indices.dims.iter().cloned())) };
    let mut dims = data.dims[..axis].to_vec();
    for (i, batch_dim) in dims[..batch].iter_mut().enumerate() {
        *batch_dim = relation.same_dim(&format!("batch dimension {i}"), batch_dim, &indices.dims[i])?;
    }
    dims.extend_from_slice(&indices.dims[batch..]);
    dims.extend_from_slice(&data.dims[axis + 1..]);
    Ok(Type::tensor_of(data.dtype, dims))
}

fn take(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let mode = TakeMode::parse(&params.string("mode"))
        .ok_or_else(|| format!("mode: expected \"clip\", \"wrap\" or \"fast\", found \"{}\"", params.string("mode")))?;
    let indices = integers(&inputs[1], "indices")?;
    let (shape, index_shape) = (inputs[0].shape, inputs[1].shape);
    let (axis, batch) = take_axes(&params, shape.len(), index_shape.len()).ok_or_else(|| {
        let (axis, batch) = (params.value("axis"), params.int("batch_dims"));
        format!("axis {axis} and batch_dims {batch} are out of range for data {shape:?} and indices {index_shape:?}")
    })?;
    let flat_shape = [inputs[0].len()];
    let (shape, axis) = match axis {
        Some(axis) => (shape, axis),
        None => (&flat_shape[..], 0),
    };
    let block = shape[axis + 1..].iter().product::<usize>() * inputs[0].dtype.size();
    let outer: usize = shape[batch..axis].iter().product();
    let indices_per_batch: usize = index_shape[batch..].iter().product();
    let batches: usize = shape[..batch].iter().product();
    let mut chunk = 0;
    for b in 0..batches {
        for o in 0..outer {
            for &index in &indices[b * indices_per_batch..(b + 1) * indices_per_batch] {
                let start = ((b * outer + o) * shape[axis] + mode.resolve(index, shape[axis])?) * block;
                outputs[0].data[chunk..chunk + block].copy_from_slice(&inputs[0].data[start..start + block]);
                chunk += block;
            }
        }
    }
    Ok(())
}

operator! {
    name: "take",
    doc: "Elements (or slices) of data at the indices along an axis: the dimensions of indices replace the \
          axis. Without an axis, data is flattened. data and indices share the first batch_dims dimensions.",
    inputs: &["data", "indices"],
    attrs: &[
        AttrDef::new("batch_dims", AttrKind::Int, Default::Int(0), "number of shared leading dimensions"),
        AttrDef::new("axis", AttrKind::Int, Default::None, "axis; data is flattened if None"),
        AttrDef::new(
            "mode",
            AttrKind::Str,
            Default::Str("clip"),
            "out-of-range index: \"clip\" clamps it, \"wrap\" takes it modulo the dimension, \"fast\" is an error",
        ),
    ],
    pattern: OpPattern::Injective,
    relation: take_type,
    reference: Some(take),
}

/// Checks that `indices` has the rank of the data and is no larger than the data except along the axis in attribute
/// `axis`. Returns that axis.
fn along_axis(relation: &Relation<'_>) -> Result<usize, Box<Diagnostic>> {
    let (data, indices) = (relation.tensor(0)?, integer_argument(relation, 1)?);
    let axis = relation.axis(relation.params.int("axis"), data.dims.len())?;
    let mut is_compatible = data.dims.len() == indices.dims.len();
    for (i, (d, x)) in data.dims.iter().zip(&indices.dims).enumerate() {
        is_compatible &= i == axis || d.fixed().zip(x.fixed()).is_none_or(|(d, x)| x <= d);
    }
    if is_compatible {
        Ok(axis)
    } else {
        Err(relation.mismatch(format!(
            "expected indices with the rank of data, and dimensions no larger than those of data except along the axis, \
             found {} for data {}",
            relation.args[1], relation.args[0]
        )))
    }
}

/// Returns the offset into the data, in elements, for every element of `indices`.
fn offsets_along(axis: usize, shape: &[usize], indices: &TensorView<'_>) -> Result<Vec<usize>, ReferenceError> {
    let (values, strides) = (integers(indices, "indices")?, strides(shape));
    let mut result: Vec<Result<usize, ReferenceError>> = Vec::with_capacity(values.len());
    for_each_index(indices.shape, |index| {
        let position = in_bounds(values[result.len()], shape[axis]);
        result.push(position.map(|p| offset(index, &strides) + p * strides[axis] - index[axis] * strides[axis]));
    });
    result.into_iter().collect()
}

operator! {
    name: "gather",
    doc: "result[.., i, ..] = data[.., indices[.., i, ..], ..] along the axis; negative indices count from the end.",
    inputs: &["data", "indices"],
    attrs: &[AttrDef::new("axis", AttrKind::Int, Default::Required, "axis; a negative axis counts from the end")],
    pattern: OpPattern::Injective,
    relation: |relation| {
        along_axis(relation)?;
        Ok(Type::tensor_of(relation.tensor(0)?.dtype, relation.tensor(1)?.dims.iter().cloned()))
    },
    reference: Some(|params, inputs, outputs| {
        let axis = params.int("axis").rem_euclid(inputs[0].shape.len() as i64) as usize;
        let positions = offsets_along(axis, inputs[0].shape, &inputs[1])?;
        copy_blocks(&inputs[0], &mut outputs[0], &positions, inputs[0].dtype.size());
        Ok(())
    }),
}

/// Copies block `positions[i]` of the input to block `i` of the output, with blocks of `block` bytes.
fn copy_blocks(input: &TensorView<'_>, output: &mut TensorViewMut<'_>, positions: &[usize], block: usize) {
    for (i, &position) in positions.iter().enumerate() {
        output.data[i * block..(i + 1) * block].copy_from_slice(&input.data[position * block..(position + 1) * block]);
    }
}

/// Returns the position that each index vector `indices[:, ..]` refers to, in units of blocks of the remaining
/// dimensions. The first `batch` dimensions of the data are indexed by the position of the vector itself.
fn index_vector_offsets(shape: &[usize], batch: usize, indices: &TensorView<'_>) -> Result<Vec<usize>, ReferenceError> {
    let values = integers(indices, "indices")?;
    let (depth, index_shape) = (indices.shape[0], &indices.shape[1..]);
    let strides = strides(&shape[..batch + depth]);
    let count: usize = index_shape.iter().product();
    let mut result = Vec::with_capacity(count);
    let mut error = None;
    for_each_index(index_shape, |index| {
        let mut start = offset(&index[..batch], &strides);
        for m in 0..depth {
            match in_bounds(values[m * count + result.len()], shape[batch + m]) {
                Ok(i) => start += i * strides[batch + m],
                Err(e) => error = Some(e),
            }
        }
        result.push(start);
    });
    error.map_or(Ok(result), Err)
}

/// Returns the number of components in an index vector: the first dimension of `indices`, at most `max_depth`.
fn index_depth(relation: &Relation<'_>, max_depth: usize) -> Result<usize, Box<Diagnostic>> {
    let indices = integer_argument(relation, 1)?;
    match indices.dims.first().and_then(Dim::fixed).filter(|&m| m <= max_depth) {
        Some(depth) => Ok(depth),
        None => {
            let (data, indices) = (&relation.args[0], &relation.args[1]);
            Err(relation.mismatch(format!(
                "expected indices with a first dimension of at most {max_depth}, found {indices} for data {data}"
            )))
        }
    }
}

fn batch_dims(params: &Params<'_>, index_rank: usize) -> Option<usize> {
    usize::try_from(params.int("batch_dims")).ok().filter(|&b| b < index_rank)
}

operator! {
    name: "gather_nd",
    doc: "result[y.., x..] = data[indices[0, y..], .., indices[m - 1, y..], x..]: the first dimension of indices \
          holds the index vectors. With batch_dims = b, the first b indices of y also index the first b dimensions \
          of data. Negative indices count from the end.",
    inputs: &["data", "indices"],
    attrs: &[
        AttrDef::new("batch_dims", AttrKind::Int, Default::Int(0), "number of shared leading dimensions"),
        AttrDef::new("index_rank", AttrKind::Int, Default::None, "length of an index vector if not known from indices"),
    ],
    pattern: OpPattern::Injective,
    relation: |relation| {
        let (data, indices) = (relation.tensor(0)?, integer_argument(relation, 1)?);
        let batch = batch_dims(&relation.params, indices.dims.len()).filter(|&b| b <= data.dims.len());
        let Some(batch) = batch else {
            let bound = indices.dims.len().min(data.dims.len() + 1);
            let value = relation.params.int("batch_dims");
            return Err(relation.error(
                codes::types::BAD_ATTRIBUTE,
                format!("batch_dims: expected an integer >= 0 and < {bound}, found {value}"),
            ));
        };
        let index_rank = relation.params.opt_int("index_rank").and_then(|r| usize::try_from(r).ok());
        let max_depth = data.dims.len() - batch;
        let depth = match (indices.dims[0].fixed(), index_rank) {
            (None, Some(index_rank)) if index_rank <= max_depth => index_rank,
            _ => index_depth(relation, max_depth)?,
        };
        let mut dims = indices.dims[1..].to_vec();
        for (i, batch_dim) in dims[..batch].iter_mut().enumerate() {
            *batch_dim = relation.same_dim(&format!("batch dimension {i}"), batch_dim, &data.dims[i])?;
        }
        dims.extend_from_slice(&data.dims[batch + depth..]);
        Ok(Type::tensor_of(data.dtype, dims))
    },
    reference: Some(|params, inputs, outputs| {
        let index_rank = inputs[1].shape.len();
        let batch = batch_dims(&params, index_rank).ok_or_else(|| {
            let value = params.int("batch_dims");
            format!("batch_dims: expected an integer >= 0 and < {index_rank}, found {value}")
        })?;
        let positions = index_vector_offsets(inputs[0].shape, batch, &inputs[1])?;
        let block: usize = inputs[0].shape[batch + inputs[1].shape[0]..].iter().product();
        copy_blocks(&inputs[0], &mut outputs[0], &positions, block * inputs[0].dtype.size());
        Ok(())
    }),
}

fn unsupported_mode(mode: &str) -> ReferenceError {
    format!("expected \"update\", \"add\", \"mul\", \"min\" or \"max\", found \"{mode}\"")
}

/// Combines `updates[i]` with `output[positions[i]]`, in order, according to `mode`.
fn update(
    mode: &str,
    output: &mut TensorViewMut<'_>,
    updates: &TensorView<'_>,
    positions: impl Iterator<Item = usize>,
) -> Evaluation {
    let size = updates.dtype.size();
    let update_reader = Reader::new(updates);
    for (i, position) in positions.enumerate() {
        if mode == "update" {
            output.data[position * size..][..size].copy_from_slice(&updates.data[i * size..][..size]);
            continue;
        }
        let output_reader = Reader::new(&output.view());
        if update_reader.is_float() {
            let combine = match mode {
                "add" => |a, b| a + b,
                "mul" => |a, b| a * b,
                "min" => scalar::min_or_nan,
                "max" => scalar::max_or_nan,
                _ => return Err(unsupported_mode(mode)),
            };
            let value = combine(output_reader.float(position), update_reader.float(i));
            Writer::new(output).set_float(position, value);
        } else {
            let combine = match mode {
                "add" => |a, b| a + b,
                "mul" => i128::wrapping_mul,
                "min" => i128::min,
                "max" => i128::max,
                _ => return Err(unsupported_mode(mode)),
            };
            let value = combine(output_reader.int(position), update_reader.int(i));
            Writer::new(output).set_int(position, value);
        }
    }
    Ok(())
}

fn check_mode(relation: &Relation<'_>, name: &str) -> Result<(), Box<Diagnostic>> {
    let mode = relation.params.string(name);
    match mode.as_str() {
        "update" | "add" | "mul" | "min" | "max" => Ok(()),
        _ => Err(relation.error(
            codes::types::BAD_ATTRIBUTE,
            format!("{name}: expected \"update\", \"add\", \"mul\", \"min\" or \"max\", found \"{mode}\""),
        )),
    }
}

const MODE_DOC: &str = "\"update\" (the last one wins), \"add\", \"mul\", \"min\" or \"max\"";

operator! {
    name: "scatter_nd",
    doc: "data with data[indices[0, y..], .., indices[m - 1, y..], x..] replaced by (or combined with) \
          updates[y.., x..]. Negative indices count from the end.",
    inputs: &["data", "indices", "updates"],
    attrs: &[AttrDef::new("mode", AttrKind::Str, Default::Str("update"), MODE_DOC)],
    relation: |relation| {
        check_mode(relation, "mode")?;
        let (data, indices, updates) = (relation.tensor(0)?, integer_argument(relation, 1)?, relation.tensor(2)?);
        relation.same_dtype(data.dtype, updates.dtype)?;
        let depth = index_depth(relation, data.dims.len())?;
        let expected_dims: Vec<&Dim> = indices.dims[1..].iter().chain(&data.dims[depth..]).collect();
        if expected_dims.len() != updates.dims.len() {
            let (rank, updates) = (expected_dims.len(), &relation.args[2]);
            return Err(relation.mismatch(format!("updates: expected rank {rank}, found {updates}")));
        }
        for (i, (expected, dim)) in expected_dims.into_iter().zip(&updates.dims).enumerate() {
            relation.same_dim(&format!("axis {i} of updates"), expected, dim)?;
        }
        same_as_input(relation)
    },
    reference: Some(|params, inputs, outputs| {
        outputs[0].data.copy_from_slice(inputs[0].data);
        let offsets = index_vector_offsets(inputs[0].shape, 0, &inputs[1])?;
        let block: usize = inputs[0].shape[inputs[1].shape[0]..].iter().product();
        let positions = offsets.iter().flat_map(|p| p * block..(p + 1) * block).take(inputs[2].len());
        update(&params.string("mode"), &mut outputs[0], &inputs[2], positions)
    }),
    properties: Properties::EXACT.sum(elements_of::<2>),
}

/// Returns the type of the data, after a check of indices and updates along an axis.
fn scatter_type(relation: &Relation<'_>) -> TypeResult {
    along_axis(relation)?;
    let (data, indices, updates) = (relation.tensor(0)?, relation.tensor(1)?, relation.tensor(2)?);
    relation.same_dtype(data.dtype, updates.dtype)?;
    if indices.dims.len() != updates.dims.len() {
        let (rank, updates) = (indices.dims.len(), &relation.args[2]);
        return Err(relation.mismatch(format!("updates: expected rank {rank}, found {updates}")));
    }
    for (i, (a, b)) in indices.dims.iter().zip(&updates.dims).enumerate() {
        relation.same_dim(&format!("axis {i} of updates"), a, b)?;
    }
    same_as_input(relation)
}

/// Replaces elements along an axis, or combines them with the updates.
fn scatter(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>], mode: &str) -> Evaluation {
    outputs[0].data.copy_from_slice(inputs[0].data);
    let axis = params.int("axis").rem_euclid(inputs[0].shape.len() as i64) as usize;
    let positions = offsets_along(axis, inputs[0].shape, &inputs[1])?;
    let targets = positions.into_iter().take(inputs[2].len());
    update(mode, &mut outputs[0], &inputs[2], targets)
}

macro_rules! scatters {
    ($($name:literal $mode:literal $doc:literal;)*) => {$(
        operator! {
            name: $name,
            doc: $doc,
            inputs: &["data", "indices", "updates"],
            attrs: &[AttrDef::new("axis", AttrKind::Int, Default::Int(0), "axis; a negative axis counts from the end")],
            relation: scatter_type,
            reference: Some(|params, inputs, outputs| scatter(params, inputs, outputs, $mode)),
            properties: Properties::EXACT.sum(elements_of::<2>),
        }
    )*};
}

scatters! {
    "scatter" "update" "scatter_elements with reduction \"update\", under the name that Relay had up to TVM 0.11.";
    "scatter_add" "add" "scatter_elements with reduction \"add\", under the name that Relay had up to TVM 0.11.";
}

operator! {
    name: "scatter_elements",
    doc: "data with data[.., indices[.., i, ..], ..] along the axis replaced by (or combined with) \
          updates[.., i, ..]; negative indices count from the end.",
    inputs: &["data", "indices", "updates"],
    attrs: &[
        AttrDef::new("axis", AttrKind::Int, Default::Int(0), "axis; a negative axis counts from the end"),
        AttrDef::new("reduction", AttrKind::Str, Default::Str("update"), MODE_DOC),
    ],
    relation: |relation| {
        check_mode(relation, "reduction")?;
        scatter_type(relation)
    },
    reference: Some(|params, inputs, outputs| scatter(params, inputs, outputs, &params.string("reduction"))),
    properties: Properties::EXACT.sum(elements_of::<2>),
}

const ONE_HOT_AXIS: AttrDef = AttrDef::new("axis", AttrKind::Int, Default::Int(-1), "position of the new dimension");
const ONE_HOT_DTYPE: AttrDef =
    AttrDef::new("dtype", AttrKind::DType, Default::Str(""), "element type of the result; that of on_value if empty");

/// Returns the type of the result: the dimensions of the indices with `depth` inserted at the axis.
fn one_hot_type(relation: &Relation<'_>, depth: Dim) -> TypeResult {
    let indices = integer_argument(relation, 0)?;
    let (on_value, off_value) = (relation.tensor(1)?, relation.tensor(2)?);
    let dtype = relation.same_dtype(on_value.dtype, off_value.dtype)?;
    if relation.params.dtype("dtype").is_some_and(|d| d != dtype)
        || !on_value.dims.is_empty()
        || !off_value.dims.is_empty()
    {
        let (on_value, off_value) = (&relation.args[1], &relation.args[2]);
        return Err(relation.mismatch(format!(
            "expected scalars of the result's type, found {on_value} as on_value and {off_value} as off_value"
        )));
    }
    let axis = relation.axis(relation.params.int("axis"), indices.dims.len() + 1)?;
    let mut dims = indices.dims.to_vec();
    dims.insert(axis, depth);
    Ok(Type::tensor_of(dtype, dims))
}

fn depth_dim(relation: &Relation<'_>, depth: i64) -> Result<Dim, Box<Diagnostic>> {
    let mismatch =
        |_| relation.error(codes::types::BAD_ATTRIBUTE, format!("depth: expected an integer >= 0, found {depth}"));
    usize::try_from(depth).map(Dim::Fixed).map_err(mismatch)
}

fn one_hot(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let indices = integers(&inputs[0], "indices")?;
    let axis = params.int("axis").rem_euclid(outputs[0].shape.len() as i64) as usize;
    let (_, depth, inner) = split_at_axis(outputs[0].shape, axis);
    let size = outputs[0].dtype.size();
    for (i, chunk) in outputs[0].data.chunks_exact_mut(size).enumerate() {
        let (outer, position) = (i / (depth * inner), i / inner % depth);
        let is_hot = indices[outer * inner + i % inner] == position as i64;
        chunk.copy_from_slice(inputs[if is_hot { 1 } else { 2 }].data);
    }
    Ok(())
}

operator! {
    name: "one_hot",
    doc: "A new dimension of `depth` elements: on_value at the index, off_value elsewhere. An out-of-range index \
          yields off_value everywhere.",
    inputs: &["indices", "on_value", "off_value"],
    attrs: &[
        AttrDef::new("depth", AttrKind::Int, Default::Required, "number of elements of the new dimension"),
        ONE_HOT_AXIS,
        ONE_HOT_DTYPE,
    ],
    pattern: OpPattern::OutEWiseFusable,
    relation: |relation| one_hot_type(relation, depth_dim(relation, relation.params.int("depth"))?),
    reference: Some(one_hot),
}

operator! {
    name: "dyn.one_hot",
    doc: "one_hot with a depth computed at run time: an integer scalar or a vector of one element.",
    inputs: &["indices", "on_value", "off_value", "depth"],
    attrs: &[ONE_HOT_AXIS, ONE_HOT_DTYPE],
    pattern: OpPattern::OutEWiseFusable,
    relation: |relation| {
        let depth = match relation.known_ints(3).as_deref() {
            Some([depth, ..]) => depth_dim(relation, *depth)?,
            _ => Dim::Any,
        };
        one_hot_type(relation, depth)
    },
    reference: Some(one_hot),
}

fn scan_type(relation: &Relation<'_>) -> TypeResult {
    let data = relation.tensor(0)?;
    let dtype = relation.params.dtype("dtype").unwrap_or(data.dtype);
    let dims = match relation.params.opt_int("axis") {
        Some(axis) => {
            relation.axis(axis, data.dims.len())?;
            data.dims.to_vec()
        }
        None => match &*data.dims {
            [only] => vec![only.clone()],
            dims => vec![Dim::product(dims).unwrap_or(Dim::Any)],
        },
    };
    Ok(Type::tensor_of(dtype, dims))
}

fn scan(
    params: Params<'_>,
    inputs: &[TensorView<'_>],
    outputs: &mut [TensorViewMut<'_>],
    first: i8,
    float: fn(f64, f64) -> f64,
    int: fn(i128, i128) -> i128,
) -> Evaluation {
    let shape = outputs[0].shape;
    let axis = params.opt_int("axis").map_or(0, |a| a.rem_euclid(shape.len() as i64) as usize);
    let (outer, size, inner) = split_at_axis(shape, axis);
    let is_exclusive = params.bool("exclusive");
    // Elements are converted to the result's element type first, so that integer results accumulate integers.
    let input_bytes: Vec<u8> = {
        let mut bytes = vec![0; outputs[0].data.len()];
        let mut view = TensorViewMut { dtype: outputs[0].dtype, shape, data: &mut bytes };
        let (source, mut target) = (Reader::new(&inputs[0]), Writer::new(&mut view));
        (0..target.len()).for_each(|i| target.convert(i, &source, i));
        bytes
    };
    let data = Reader::new(&TensorView { dtype: outputs[0].dtype, shape, data: &input_bytes });
    let mut out = Writer::new(&mut outputs[0]);
    for row in 0..outer * inner {
        let (mut real, mut integer) = (f64::from(first), i128::from(first));
        for step in 0..size {
            let i = (row / inner * size + step) * inner + row % inner;
            let previous_values = (real, integer);
            if out.is_float() {
                real = float(real, data.float(i));
            } else {
                integer = int(integer, data.int(i));
            }
            let (real, integer) = if is_exclusive { previous_values } else { (real, integer) };
            if out.is_float() {
                out.set_float(i, real);
            } else {
                out.set_int(i, integer);
            }
        }
    }
    Ok(())
}

const SCAN_ATTRS: &[AttrDef] = &[
    AttrDef::new("axis", AttrKind::Int, Default::None, "axis; data is flattened if None"),
    AttrDef::new("dtype", AttrKind::DType, Default::Str(""), "element type of the result; that of data if empty"),
    AttrDef::new("exclusive", AttrKind::Bool, Default::Bool(false), "true if each element itself is excluded"),
];

operator! {
    name: "cumsum",
    doc: "Cumulative sum along the axis.",
    inputs: &["data"],
    attrs: SCAN_ATTRS,
    relation: scan_type,
    reference: Some(|params, inputs, outputs| scan(params, inputs, outputs, 0, |a, x| a + x, |a, x| a + x)),
    flops: one_flop_per_element,
    properties: Properties::EXACT.sum(elements_along_axis),
}

operator! {
    name: "cumprod",
    doc: "Cumulative product along the axis.",
    inputs: &["data"],
    attrs: SCAN_ATTRS,
    relation: scan_type,
    reference: Some(|params, inputs, outputs| scan(params, inputs, outputs, 1, |a, x| a * x, i128::wrapping_mul)),
    flops: one_flop_per_element,
    properties: Properties::EXACT.stable(elements_along_axis),
}

operator! {
    name: "trilu",
    doc: "Upper triangle of each matrix (columns j >= row i + k), or the lower one (j <= i + k); zero elsewhere.",
    inputs: &["data", "k"],
    attrs: &[AttrDef::new("upper", AttrKind::Bool, Default::Bool(true), "true to keep the upper triangle")],
    pattern: OpPattern::ElemWise,
    relation: |relation| {
        integer_argument(relation, 1)?;
        match relation.tensor(0)?.dims.len() {
            0 | 1 => Err(relation.mismatch(format!("data: expected matrices, found {}", relation.args[0]))),
            _ => same_as_input(relation),
        }
    },
    reference: Some(trilu),
}

fn trilu(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let k = i128::from(integers(&inputs[1], "k")?.first().copied().ok_or("k: expected one element, found none")?);
    let is_upper = params.bool("upper");
    let size = inputs[0].dtype.size();
    let shape = inputs[0].shape;
    let mut offset = 0;
    for_each_index(shape, |index| {
        let (row, column) = (index[shape.len() - 2] as i128, index[shape.len() - 1] as i128);
        let is_kept = if is_upper { column >= row + k } else { column <= row + k };
        if is_kept {
            outputs[0].data[offset..offset + size].copy_from_slice(&inputs[0].data[offset..offset + size]);
        } else {
            outputs[0].data[offset..offset + size].fill(0);
        }
        offset += size;
    });
    Ok(())
}

//! Operators that create tensors or change their shapes, without arithmetic on their elements.

use super::{Node, Outputs, Result, Row, attrs, single_output};
use crate::size::Size;
use crate::tensor;
use byoc_ir::diag::codes;
use byoc_ir::ir::{AttrValue, Dim, ExprId};
use byoc_ir::tensor::{DType, Tensor};

pub const ROWS: &[Row] = &[
    ("Concat", 4, concat),
    ("Constant", 1, constant),
    ("ConstantOfShape", 9, constant_of_shape),
    ("DepthToSpace", 1, depth_to_space),
    ("Expand", 8, expand),
    ("EyeLike", 9, eye_like),
    ("Flatten", 1, flatten),
    ("Range", 11, |n| range(n, None)),
    ("Reshape", 5, reshape),
    ("Shape", 1, shape),
    ("Size", 1, size),
    ("SpaceToDepth", 1, |n| {
        let data = n.input(0)?;
        let block = n.int_attr("blocksize", 0)?;
        if n.str_attr("mode", "DCR")? == "CRD" {
            return space_to_depth_crd(n, data, block);
        }
        single_output(n.op("nn.space_to_depth", &[data], attrs![block_size: block, layout: "NCHW"])?)
    }),
    ("Squeeze", 1, |n| {
        let axes = n.ints_attr("axes")?;
        squeeze(n, axes)
    }),
    ("Squeeze", 13, |n| match n.computed_input(1) {
        Some(axes) => {
            let data = n.input(0)?;
            single_output(n.op_without_attrs("dyn.squeeze", &[data, axes])?)
        }
        None => {
            let axes = n.ints(1, "axes")?;
            squeeze(n, axes)
        }
    }),
    ("Tile", 6, tile),
    ("Transpose", 1, transpose),
    ("Trilu", 14, trilu),
    ("Unsqueeze", 1, |n| {
        let axes = n.ints_attr("axes")?;
        unsqueeze(n, axes)
    }),
    ("Unsqueeze", 13, |n| match n.computed_input(1) {
        Some(axes) => {
            let data = n.input(0)?;
            single_output(n.op_without_attrs("dyn.expand_dims", &[data, axes])?)
        }
        None => {
            let axes = n.ints(1, "axes")?;
            unsqueeze(n, axes)
        }
    }),
];

/// Maximum rank of a tensor; a longer list is rejected as a shape.
const MAX_RANK: usize = 64;

fn concat(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let inputs = n.all_inputs()?;
    let &first_input = inputs.first().ok_or_else(|| n.invalid_node("expected at least one input, found none"))?;
    let axis = n.axis(n.int_attr("axis", 0)?, n.rank(first_input)?)?;
    if inputs.len() == 1 {
        return single_output(n.forward(first_input));
    }
    single_output(n.concatenate(&inputs, axis as i64)?)
}

fn constant(n: &mut Node<'_, '_>) -> Result<Outputs> {
    if let Some(strings) = n.string_tensor_attr("value")? {
        return single_output(strings);
    }
    if n.has("value_string") {
        let string = n.str_attr("value_string", "")?;
        return single_output(n.string_tensor(&[], &[string])?);
    }
    if let Some(strings) = n.strings_attr("value_strings")? {
        return single_output(n.string_tensor(&[strings.len()], &strings)?);
    }
    let value = if let Some(tensor) = n.tensor_attr("value")? {
        tensor
    } else if n.has("value_float") {
        Tensor::scalar(n.float_attr("value_float", 0.0)? as f32)
    } else if let Some(values) = n.floats_attr("value_floats")? {
        tensor::from_f64s(DType::F32, &[values.len()], &values)
    } else if n.has("value_int") {
        Tensor::scalar(n.int_attr("value_int", 0)?)
    } else if let Some(values) = n.ints_attr("value_ints")? {
        Tensor::from_slice(&[values.len()], &values)
    } else {
        return Err(n.invalid_node("expected an attribute with a value, found none"));
    };
    single_output(n.tensor(value))
}

fn constant_of_shape(n: &mut Node<'_, '_>) -> Result<Outputs> {
    if let Some(string) = n.string_tensor_attr("value")? {
        let bytes = n.string_bytes(string);
        let spans = filled(n, string)?;
        return single_output(bytes.map_or(spans, |bytes| n.with_bytes(spans, bytes)));
    }
    let value = n.tensor_attr("value")?.unwrap_or_else(|| Tensor::from_slice(&[1], &[0f32]));
    let value = n.tensor(value);
    single_output(filled(n, value)?)
}

/// Creates a tensor of the shape in input 0, filled with the only element of `value`.
fn filled(n: &mut Node<'_, '_>, value: ExprId) -> Result<ExprId> {
    let ty = n.ty(value)?;
    let dtype = ty.dtype;
    if ty.len() != Some(1) {
        return Err(n.invalid_node(format!("attribute value: expected one element, found {ty}")));
    }
    let value = n.reshape(value, &[])?;
    if let Some(shape) = n.untracked_input(0) {
        return n.op("dyn.full", &[value, shape], attrs![dtype: dtype]);
    }
    let dims = n.sizes(0, "shape")?.ok_or_else(|| n.invalid_node("input 0 (shape) is missing"))?;
    let dims = check_dims(n, &dims)?;
    let Some(shape) = fixed_sizes(&dims) else { return n.broadcast_to(value, &dims) };
    n.op("full", &[value], attrs![shape: shape, dtype: dtype])
}

/// Returns the dimensions, if all are known.
fn fixed_sizes(dims: &[Dim]) -> Option<Vec<i64>> {
    dims.iter().map(|dim| dim.fixed().map(|n| n as i64)).collect()
}

/// Converts a size to a dimension; `None` if the size is negative.
fn dim(size: &Size) -> Option<Dim> {
    (size.as_constant().is_none_or(|n| n >= 0)).then(|| size.clone().into())
}

/// Converts sizes to dimensions. A negative size, or an overflow of the product, is an error.
fn check_dims(n: &Node<'_, '_>, sizes: &[Size]) -> Result<Vec<Dim>> {
    let dims: Option<Vec<Dim>> = sizes.iter().map(dim).collect();
    let is_compatible = |dims: &Vec<Dim>| {
        let known_dims: Vec<usize> = dims.iter().filter_map(Dim::fixed).collect();
        dims.len() <= MAX_RANK
            && byoc_ir::tensor::element_count(&known_dims).is_some_and(|n| n <= isize::MAX as usize / 8)
    };
    dims.filter(is_compatible).ok_or_else(|| {
        n.invalid_node(format!(
            "expected at most {MAX_RANK} dimensions >= 0 and an addressable size, found {}",
            shape_text(sizes)
        ))
    })
}

/// Formats sizes: `[2, batch, -1]`.
fn shape_text(sizes: &[Size]) -> String {
    format!("[{}]", sizes.iter().map(Size::to_string).collect::<Vec<_>>().join(", "))
}

fn depth_to_space(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let data = n.input(0)?;
    let block = n.int_attr("blocksize", 0)?;
    let mode = n.str_attr("mode", "DCR")?;
    single_output(n.op("nn.depth_to_space", &[data], attrs![block_size: block, layout: "NCHW", mode: mode.as_str()])?)
}

/// Converts SpaceToDepth in CRD order: the new channels are ordered by data channel, then by row and column in the
/// block.
fn space_to_depth_crd(n: &mut Node<'_, '_>, data: ExprId, block: i64) -> Result<Outputs> {
    let shape = n.shape(data)?;
    let block_size = usize::try_from(block).ok().filter(|&block_size| block_size > 0);
    let (&[batch, channels, height, width], Some(b)) = (&shape[..], block_size) else {
        let ty = n.ty(data)?;
        return Err(n.invalid_node(format!("expected rank 4 and a block size > 0, found {ty} and block size {block}")));
    };
    if !height.is_multiple_of(b) || !width.is_multiple_of(b) {
        return Err(n.invalid_node(format!("expected height and width divisible by {b}, found {height} and {width}")));
    }
    let split = n.reshape(data, &[batch, channels, height / b, b, width / b, b])?;
    let transposed_data = n.transpose(split, &[0, 1, 3, 5, 2, 4])?;
    single_output(n.reshape(transposed_data, &[batch, channels * b * b, height / b, width / b])?)
}

/// Broadcasts the data to the common shape of the data and the shape input.
fn expand(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let data = n.input(0)?;
    if let Some(shape) = n.untracked_input(1) {
        return expand_at_run_time(n, data, shape);
    }
    let target_sizes = n.sizes(1, "shape")?.ok_or_else(|| n.invalid_node("input 1 (shape) is missing"))?;
    let target_dims = check_dims(n, &target_sizes)?;
    let dims = n.dims(data)?;
    let Some(result) = super::math::broadcast(&dims, &target_dims) else {
        let target_dims: Vec<String> = target_dims.iter().map(Dim::to_string).collect();
        return Err(n.invalid_node(format!("cannot broadcast {} to shape [{}]", n.ty(data)?, target_dims.join(", "))));
    };
    if result.contains(&Dim::Any) {
        let shape = n.size_vector(&target_sizes)?;
        return expand_at_run_time(n, data, shape);
    }
    if result == dims {
        return single_output(n.forward(data));
    }
    single_output(n.broadcast_to(data, &result)?)
}

/// Broadcasts to the common shape of the data and a shape computed at run time: along each axis, the data dimension if
/// the shape has a 1, else the dimension in the shape.
fn expand_at_run_time(n: &mut Node<'_, '_>, data: ExprId, shape: ExprId) -> Result<Outputs> {
    let (rank, length) = (n.rank(data)?, n.shape(shape)?.iter().product::<usize>());
    let input_shape = n.shape_vector(data, 0..rank)?;
    let output_rank = rank.max(length);
    let mut pair = [input_shape, shape];
    for (value, size) in pair.iter_mut().zip([rank, length]) {
        if size < output_rank {
            let leading_ones = n.vector(&vec![1i64; output_rank - size]);
            *value = n.concatenate(&[leading_ones, *value], 0)?;
        }
    }
    let [input_shape, shape] = pair;
    let unit_size = n.scalar(DType::I64, 1.0);
    let is_one = n.op_without_attrs("equal", &[shape, unit_size])?;
    let target_dims = n.op_without_attrs("where", &[is_one, input_shape, shape])?;
    single_output(n.op_without_attrs("dyn.broadcast_to", &[data, target_dims])?)
}

fn eye_like(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let data = n.input(0)?;
    let dims = n.dims(data)?;
    if dims.len() != 2 {
        return Err(n.invalid_node(format!("expected a matrix, found {}", n.ty(data)?)));
    }
    let dtype = match n.int_attr("dtype", 0)? {
        0 => n.dtype(data)?,
        dtype_number => tensor::dtype(dtype_number as i32).ok_or_else(|| {
            n.invalid_node(format!("attribute dtype: unsupported element type number {dtype_number}"))
        })?,
    };
    let k = n.int_attr("k", 0)?;
    // Element (i, j) is i + k == j. Constant folding evaluates these calls unless the matrix is too large.
    let row = n.indices_along(data, 0)?;
    let row = n.with_scalar("add", row, k as f64)?;
    let column = n.indices_along(data, 1)?;
    let is_diagonal = n.op_without_attrs("equal", &[row, column])?;
    single_output(n.cast(is_diagonal, dtype)?)
}

fn flatten(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let data = n.input(0)?;
    let dims = n.dims(data)?;
    let axis = n.int_attr("axis", 1)?;
    let axis = if axis == dims.len() as i64 { dims.len() } else { n.axis(axis, dims.len())? };
    let matrix = n.flatten_at(&dims, axis)?;
    if dims == matrix {
        return single_output(n.forward(data));
    }
    if axis == 1 && dims.len() > 2 {
        return single_output(n.op_without_attrs("nn.batch_flatten", &[data])?);
    }
    single_output(n.reshape_to(data, &matrix)?)
}

/// Converts Range. A missing `delta` has the default value, if there is one.
pub(super) fn range(n: &mut Node<'_, '_>, default_delta: Option<f64>) -> Result<Outputs> {
    let mut args = Vec::with_capacity(3);
    for (i, (role, default)) in [("start", None), ("limit", None), ("delta", default_delta)].into_iter().enumerate() {
        let scalar = match (n.optional_input(i), default) {
            (Some(scalar), _) => n.reshape(scalar, &[])?,
            (None, Some(default)) => n.scalar(n.dtype(args[0])?, default),
            (None, None) => return Err(n.invalid_node(format!("input {i} ({role}) is missing"))),
        };
        args.push(scalar);
    }
    let dtype = n.dtype(args[0])?;
    let one_size =
        |n: &Node<'_, '_>, value| n.tracked_elements(value).and_then(|sizes| sizes.first().cloned().flatten());
    if let [Some(start), Some(limit), Some(step)] = [0, 1, 2].map(|i| one_size(n, args[i]))
        && [start.as_constant(), step.as_constant()] == [Some(0), Some(1)]
        && let Some(name) = limit.as_symbol()
    {
        // A range of symbolic length is computed as an exclusive cumulative sum of ones, which preserves the dimension
        // name.
        let lane = n.zeros_of_dim(name)?;
        let lane = n.cast(lane, dtype)?;
        let leading_ones = n.op_without_attrs("ones_like", &[lane])?;
        return single_output(n.op("cumsum", &[leading_ones], attrs![axis: 0, exclusive: true])?);
    }
    single_output(n.op("arange", &args, attrs![dtype: dtype])?)
}

/// Converts Reshape: 0 keeps the dimension (unless `allowzero` is set), and -1 is inferred from the other dimensions.
fn reshape(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let data = n.input(0)?;
    let allow_zero = n.int_attr("allowzero", 0)? != 0;
    let newshape = n.input(1)?;
    let is_unknown =
        n.tracked_elements(newshape).is_none_or(|sizes| sizes.contains(&None)) && n.constant_value(newshape).is_none();
    if is_unknown && n.ty(newshape)?.shape().is_some() {
        return single_output(n.op("dyn.reshape", &[data, newshape], attrs![allowzero: allow_zero])?);
    }
    let target_dims = n.sizes(1, "shape")?.ok_or_else(|| n.invalid_node("input 1 (shape) is missing"))?;
    let dims = n.dims(data)?;
    if target_dims.len() > MAX_RANK {
        return Err(n.invalid_node(format!("expected rank <= {MAX_RANK}, found {}", target_dims.len())));
    }
    let mut result = Vec::with_capacity(target_dims.len());
    let mut open_index = None;
    for (i, size) in target_dims.iter().enumerate() {
        result.push(match size.as_constant() {
            Some(-1) if open_index.is_none() => {
                open_index = Some(i);
                Dim::Fixed(1)
            }
            Some(0) if !allow_zero => {
                let kept_dim = dims.get(i).cloned();
                kept_dim.ok_or_else(|| {
                    n.invalid_node(format!(
                        "shape {}: expected data with a dimension {i} to copy, found data of rank {}",
                        shape_text(&target_dims),
                        dims.len()
                    ))
                })?
            }
            _ => dim(size).ok_or_else(|| {
                n.invalid_node(format!(
                    "expected dimensions >= 0 and at most one -1, found {}",
                    shape_text(&target_dims)
                ))
            })?,
        });
    }
    let ty = n.ty(data)?;
    let error = || n.invalid_node(format!("cannot reshape data of type {ty} to {}", shape_text(&target_dims)));
    let (old_size, new_size) = (Dim::product(&dims).ok_or_else(error)?, Dim::product(&result).ok_or_else(error)?);
    if let Some(open_index) = open_index {
        if let (Some(old_size), Some(new_size)) = (old_size.fixed(), new_size.fixed())
            && (new_size == 0 || !old_size.is_multiple_of(new_size))
        {
            return Err(error());
        }
        result[open_index] = Dim::quotient(&dims, &result);
    } else if matches!((old_size.fixed(), new_size.fixed()), (Some(old_size), Some(new_size)) if old_size != new_size) {
        return Err(error());
    }
    if dims == result && !result.contains(&Dim::Any) {
        return single_output(n.forward(data));
    }
    single_output(n.reshape_to(data, &result)?)
}

pub(super) fn shape(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let data = n.input(0)?;
    let rank = n.rank(data)? as i64;
    let clamp = |v: i64| (if v < 0 { v.saturating_add(rank) } else { v }).clamp(0, rank) as usize;
    let (start, end) = (clamp(n.int_attr("start", 0)?), clamp(n.int_attr("end", rank)?));
    single_output(n.shape_vector(data, start..end.max(start))?)
}

pub(super) fn size(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let data = n.input(0)?;
    let dims = n.dims(data)?;
    let count = Dim::product(&dims).ok_or_else(|| n.product_error(&dims))?;
    if let Dim::Fixed(count) = count {
        n.constant_value(data);
        return single_output(n.tensor(Tensor::scalar(count as i64)));
    }
    let value = n.op("ndarray_size", &[data], attrs![dtype: DType::I64])?;
    n.track_elements(value, vec![Size::of(&count)]);
    single_output(value)
}

fn squeeze(n: &mut Node<'_, '_>, axes: Option<Vec<i64>>) -> Result<Outputs> {
    let data = n.input(0)?;
    let rank = n.rank(data)?;
    let mut axes: Vec<usize> = match axes {
        Some(axes) => axes.iter().map(|&a| n.axis(a, rank)).collect::<Result<_, _>>()?,
        None => {
            let dims = n.dims(data)?;
            if !dims.iter().all(|dim| dim.fixed().is_some() || n.exclude_one(dim)) {
                let ty = n.ty(data)?;
                let message = format!("missing axes, which are required because {ty} has unknown dimensions");
                return Err(Node::with_bindings(n.error(codes::frontends::NOT_CONSTANT, message), &[&ty]));
            }
            (0..rank).filter(|&i| dims[i].fixed() == Some(1)).collect()
        }
    };
    axes.sort_unstable();
    axes.dedup();
    if axes.is_empty() {
        return single_output(n.forward(data));
    }
    single_output(n.op("squeeze", &[data], attrs![axis: AttrValue::ints(axes.iter().map(|&a| a as i64))])?)
}

fn tile(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let data = n.input(0)?;
    if let Some(repeats) = n.computed_input(1) {
        return single_output(n.op_without_attrs("dyn.tile", &[data, repeats])?);
    }
    let repeats = n.ints(1, "repeats")?.ok_or_else(|| n.invalid_node("input 1 (repeats) is missing"))?;
    check_dims(n, &repeats.iter().copied().map(Size::constant).collect::<Vec<_>>())?;
    if repeats.len() != n.rank(data)? {
        return Err(n.invalid_node(format!(
            "input 1 (repeats): expected {1} integers, one per dimension, found {0}",
            repeats.len(),
            n.rank(data)?
        )));
    }
    if repeats.iter().all(|&r| r == 1) {
        return single_output(n.forward(data));
    }
    single_output(n.op("tile", &[data], attrs![reps: repeats])?)
}

fn transpose(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let data = n.input(0)?;
    let rank = n.rank(data)?;
    let axes: Vec<usize> = match n.ints_attr("perm")? {
        Some(perm) => perm.iter().map(|&a| n.axis(a, rank)).collect::<Result<_, _>>()?,
        None => (0..rank).rev().collect(),
    };
    if axes.iter().copied().eq(0..rank) {
        return single_output(n.forward(data));
    }
    single_output(n.transpose(data, &axes)?)
}

pub(super) fn trilu(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let data = n.input(0)?;
    let is_upper = n.int_attr("upper", 1)? != 0;
    let k = match n.optional_input(1) {
        Some(k) => n.reshape(k, &[])?,
        None => n.tensor(Tensor::scalar(0i64)),
    };
    single_output(n.op("trilu", &[data, k], attrs![upper: is_upper])?)
}

/// Converts Unsqueeze. The axes refer to the result.
fn unsqueeze(n: &mut Node<'_, '_>, axes: Option<Vec<i64>>) -> Result<Outputs> {
    let data = n.input(0)?;
    let axes = axes.ok_or_else(|| n.invalid_node("the axes are missing"))?;
    let rank = n.rank(data)?.saturating_add(axes.len());
    if rank > MAX_RANK {
        return Err(n.invalid_node(format!("expected rank <= {MAX_RANK}, found {rank}")));
    }
    let mut positions: Vec<usize> = axes.iter().map(|&a| n.axis(a, rank)).collect::<Result<_, _>>()?;
    positions.sort_unstable();
    if positions.windows(2).any(|p| p[0] == p[1]) {
        return Err(n.invalid_node(format!("axes: expected distinct axes, found {axes:?}")));
    }
    if positions.is_empty() {
        return single_output(n.forward(data));
    }
    let mut value = data;
    for &position in &positions {
        value = n.op("expand_dims", &[value], attrs![axis: position as i64])?;
    }
    single_output(value)
}

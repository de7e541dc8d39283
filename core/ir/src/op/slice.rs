//! Operators that select or replace a strided part of a tensor.

use super::elementwise::same_as_input;
use super::walk::{for_each_index, gather, gather_strided, offset, strides};
use super::{Arity, AttrDef, AttrKind, Default, Evaluation, OpPattern, Params, Relation, TypeResult};
use crate::diag::{Diagnostic, codes};
use crate::ir::{Dim, DimExpr, Type};
use crate::op::facts::Properties;
use crate::tensor::{TensorView, TensorViewMut};

/// Indices that a slice selects on one axis: `start`, `start + step`, ..., `len` in total.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First index; meaningless if `len` is 0.
    pub start: usize,
    /// Difference between consecutive indices; never 0.
    pub step: i64,
    /// Number of indices.
    pub len: usize,
}

/// Slice as written, with bounds not yet resolved against the dimensions.
pub struct Slice {
    begin: Vec<i64>,
    end: Vec<i64>,
    strides: Vec<i64>,
    axes: Option<Vec<i64>>,
    has_sizes: bool,
}

impl Slice {
    /// Returns the slice that the attributes of a call to `strided_slice` specify.
    pub fn from_attrs(params: &Params<'_>) -> Slice {
        Slice {
            begin: params.ints("begin"),
            end: params.ints("end"),
            strides: params.ints("strides"),
            axes: params.opt_ints("axes"),
            has_sizes: params.string("slice_mode") == "size",
        }
    }

    /// Returns the slice that the inputs of a call to `dyn.strided_slice` specify; `None` if a value is unknown.
    fn from_values(params: &Params<'_>, values: [Option<Vec<i64>>; 3], axes: Option<Vec<i64>>) -> Option<Slice> {
        let ([begin, end, strides], attrs) = (values, Slice::from_attrs(params));
        let axes = axes.or_else(|| attrs.axes.clone());
        Some(Slice { begin: begin?, end: end?, strides: strides?, axes, ..attrs })
    }

    /// Returns the sliced axes, in the order of `begin`.
    fn axes(&self, rank: usize) -> Result<Vec<usize>, String> {
        let Some(axes) = &self.axes else {
            let count = self.begin.len().max(self.end.len());
            return if count <= rank {
                Ok((0..count).collect())
            } else {
                Err(format!("begin, end: expected a length <= {rank}, found {count}"))
            };
        };
        let mut result = Vec::with_capacity(axes.len());
        for &axis in axes {
            let resolved_axis = usize::try_from(if axis < 0 { axis + rank as i64 } else { axis }).unwrap_or(rank);
            if resolved_axis >= rank || result.contains(&resolved_axis) {
                return Err(format!("axes: expected distinct axes >= -{rank} and < {rank}, found {axes:?}"));
            }
            result.push(resolved_axis);
        }
        Ok(result)
    }

    /// Returns the selected indices of the `i`-th sliced axis, which has `n` elements.
    fn range(&self, i: usize, n: usize) -> Result<Range, String> {
        let step = if self.has_sizes { 1 } else { self.strides.get(i).copied().unwrap_or(1) };
        if step == 0 {
            return Err("strides: expected a nonzero step, found 0".into());
        }
        let size = n as i128;
        // With a negative step, the position before the first element is a valid end.
        let (low, high) = if step > 0 { (0, size) } else { (-1, size - 1) };
        let resolve = |v: i64| {
            let v = i128::from(v);
            (if v < 0 { v + size } else { v }).clamp(low, high)
        };
        let start = self.begin.get(i).map_or(if step > 0 { 0 } else { size - 1 }, |&v| resolve(v));
        let end = match self.end.get(i) {
            None => {
                if step > 0 {
                    size
                } else {
                    -1
                }
            }
            Some(&count) if self.has_sizes && count < 0 => size,
            Some(&count) if self.has_sizes => (start + i128::from(count)).min(size),
            Some(&v) => resolve(v),
        };
        let distance = if step > 0 { end - start } else { start - end };
        let len = (distance.max(0) as u128).div_ceil(u128::from(step.unsigned_abs())) as usize;
        Ok(Range { start: start.max(0) as usize, step, len })
    }

    /// Returns the selected indices of every axis.
    pub fn ranges(&self, shape: &[usize]) -> Result<Vec<Range>, String> {
        let mut result: Vec<Range> = shape.iter().map(|&n| Range { start: 0, step: 1, len: n }).collect();
        for (i, axis) in self.axes(shape.len())?.into_iter().enumerate() {
            result[axis] = self.range(i, shape[axis])?;
        }
        Ok(result)
    }

    /// Returns the number of elements selected from a symbolic dimension; unknown if the step is negative.
    fn length(&self, i: usize, dim: &Dim) -> Dim {
        let step = if self.has_sizes { 1 } else { self.strides.get(i).copied().unwrap_or(1) };
        if step < 1 {
            return Dim::Any;
        }
        Dim::compute([dim], |[n]| {
            let number = DimExpr::constant;
            let begin = self.begin.get(i).copied().unwrap_or(0);
            let end = match self.end.get(i) {
                None => n.clone(),
                Some(&count) if self.has_sizes && count < 0 => n.clone(),
                Some(&count) if self.has_sizes => number(begin.max(0).checked_add(count)?).minimum(&n)?,
                Some(&v) if v >= i64::from(i32::MAX) => n.clone(),
                Some(&v) if v >= 0 => number(v).minimum(&n)?,
                Some(&v) => n.offset(v)?,
            };
            // A negative length is replaced by 0 below, so `end` needs no lower bound here, and `begin` no upper bound.
            let selected_length = match begin {
                ..0 if self.has_sizes && self.end.get(i).is_some_and(|count| *count >= 0) => return None,
                // end - max(n + begin, 0)
                ..0 => end.sub(&n.offset(begin)?)?.minimum(&end)?,
                begin => end.offset(-begin)?,
            };
            selected_length.maximum(&number(0))?.ceil_div(&number(step))
        })
    }

    fn dims(&self, relation: &Relation<'_>, dims: &[Dim]) -> Result<Vec<Dim>, Box<Diagnostic>> {
        let attribute_error = |message: String| relation.error(codes::types::BAD_ATTRIBUTE, message);
        let mut result = dims.to_vec();
        for (i, axis) in self.axes(dims.len()).map_err(attribute_error)?.into_iter().enumerate() {
            result[axis] = match dims[axis].fixed() {
                Some(n) => Dim::Fixed(self.range(i, n).map_err(attribute_error)?.len),
                // A slice that selects all elements for both the smallest and the largest dimension selects all
                // elements for every dimension.
                None => {
                    let is_full =
                        |n: usize| Ok::<bool, Box<Diagnostic>>(self.range(i, n).map_err(attribute_error)?.len == n);
                    let max_size = i32::MAX as usize;
                    if is_full(1)? && is_full(max_size)? { dims[axis].clone() } else { self.length(i, &dims[axis]) }
                }
            };
        }
        Ok(result)
    }
}

/// Copies the elements that the slice selects.
fn take_ranges(slice: &Slice, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let ranges = slice.ranges(inputs[0].shape)?;
    let shape: Vec<usize> = ranges.iter().map(|r| r.len).collect();
    if shape != outputs[0].shape {
        return Err(format!("expected the inferred shape {:?}, found {shape:?}", outputs[0].shape));
    }
    let strides = strides(inputs[0].shape);
    gather(&inputs[0], &mut outputs[0], |index| {
        let source_index = index.iter().zip(&ranges).map(|(&i, r)| (r.start as i64 + i as i64 * r.step) as usize);
        source_index.zip(&strides).map(|(i, s)| i * s).sum()
    });
    Ok(())
}

const AXES: AttrDef = AttrDef::new("axes", AttrKind::Ints, Default::None, "sliced axes; the leading axes if None");
const SLICE_MODE: AttrDef = AttrDef::new(
    "slice_mode",
    AttrKind::Str,
    Default::Str("end"),
    "\"end\" if `end` holds end indices, \"size\" if it holds sizes (-1 for all)",
);

fn check_mode(relation: &Relation<'_>) -> Result<(), Box<Diagnostic>> {
    match relation.params.string("slice_mode").as_str() {
        "end" | "size" => Ok(()),
        other => Err(relation.error(
            codes::types::BAD_ATTRIBUTE,
            format!("slice_mode: expected \"end\" or \"size\", found \"{other}\""),
        )),
    }
}

operator! {
    name: "strided_slice",
    doc: "data[begin:end:strides] along the given axes, with negative and out-of-range bounds handled as in \
          numpy. With slice_mode \"size\", `end` holds numbers of elements, -1 for all, and strides are 1.",
    inputs: &["data"],
    attrs: &[
        AttrDef::new("begin", AttrKind::Ints, Default::Required, "first index per axis"),
        AttrDef::new("end", AttrKind::Ints, Default::Required, "end index per axis, exclusive"),
        AttrDef::new("strides", AttrKind::Ints, Default::Ints(&[1]), "step per axis; 1 if not given"),
        SLICE_MODE,
        AXES,
    ],
    pattern: OpPattern::Injective,
    relation: |relation| {
        check_mode(relation)?;
        let data = relation.tensor(0)?;
        Ok(Type::tensor_of(data.dtype, Slice::from_attrs(&relation.params).dims(relation, &data.dims)?))
    },
    reference: Some(|params, inputs, outputs| take_ranges(&Slice::from_attrs(&params), inputs, outputs)),
    properties: Properties::SELECTS,
}

fn dynamic_slice_type(relation: &Relation<'_>) -> TypeResult {
    check_mode(relation)?;
    let data = relation.tensor(0)?;
    for i in 1..relation.args.len() {
        relation.tensor(i)?;
    }
    let values = [1, 2, 3].map(|i| relation.known_ints(i));
    let known_axes = relation.known_ints(4);
    let has_axes = relation.args.len() > 4;
    if (!has_axes || known_axes.is_some())
        && let Some(slice) = Slice::from_values(&relation.params, values, known_axes.clone())
    {
        return Ok(Type::tensor_of(data.dtype, slice.dims(relation, &data.dims)?));
    }
    if has_axes && known_axes.is_none() {
        return Ok(Type::tensor_of(data.dtype, vec![Dim::Any; data.dims.len()]));
    }
    let mut dims = data.dims.to_vec();
    match known_axes.or_else(|| relation.params.opt_ints("axes")) {
        Some(axes) => {
            for axis in axes {
                dims[relation.axis(axis, data.dims.len())?] = Dim::Any;
            }
        }
        None => {
            // The number of sliced axes is the length of `begin`, if known.
            let count = relation.tensor(1)?.dims.first().and_then(Dim::fixed).unwrap_or(dims.len());
            dims.iter_mut().take(count).for_each(|d| *d = Dim::Any);
        }
    }
    Ok(Type::tensor_of(data.dtype, dims))
}

operator! {
    name: "dyn.strided_slice",
    doc: "strided_slice with bounds computed at run time: three integer vectors, and optionally a vector of the \
          axes in place of the attribute.",
    arity: Arity { min: 4, max: 5 },
    inputs: &["data", "begin", "end", "strides", "axes"],
    attrs: &[SLICE_MODE, AXES],
    pattern: OpPattern::Injective,
    relation: dynamic_slice_type,
    reference: Some(|params, inputs, outputs| {
        let values = [1, 2, 3].map(|i| inputs[i].to_i64s());
        let axes = inputs.get(4).and_then(TensorView::to_i64s);
        let slice = Slice::from_values(&params, values, axes).ok_or_else(|| {
            let [begin, end, strides] = [1, 2, 3].map(|i| inputs[i].dtype);
            format!("expected bounds and strides that fit int64, found {begin}, {end} and {strides}")
        })?;
        take_ranges(&slice, inputs, outputs)
    }),
}

/// Returns the axes that `slice_like` slices; `None` if they do not exist in both arguments.
fn like_axes(params: &Params<'_>, rank: usize, like_rank: usize) -> Option<Vec<usize>> {
    let Some(axes) = params.opt_ints("axes").filter(|a| !a.is_empty()) else {
        return (rank == like_rank).then(|| (0..rank).collect());
    };
    let resolve = |&a: &i64| usize::try_from(if a < 0 { a + rank as i64 } else { a }).ok();
    axes.iter().map(|a| resolve(a).filter(|&a| a < rank && a < like_rank)).collect()
}

operator! {
    name: "slice_like",
    doc: "Leading elements of data along each axis, as many as shape_like has.",
    inputs: &["data", "shape_like"],
    attrs: &[AttrDef::new("axes", AttrKind::Ints, Default::None, "sliced axes; all if None")],
    pattern: OpPattern::Injective,
    relation: |relation| {
        let (data, target) = (relation.tensor(0)?, relation.tensor(1)?);
        let axes = like_axes(&relation.params, data.dims.len(), target.dims.len())
            .ok_or_else(|| relation.mismatch(format!(
                "expected equal ranks, or axes that exist in both arguments, found {} and {}",
                relation.args[0], relation.args[1]
            )))?;
        let mut dims = data.dims.to_vec();
        for axis in axes {
            if let (Some(n), Some(length)) = (dims[axis].fixed(), target.dims[axis].fixed())
                && length > n
            {
                return Err(relation.mismatch(format!("axis {axis}: expected a dimension >= {length}, found {n}")));
            }
            dims[axis] = target.dims[axis].clone();
        }
        Ok(Type::tensor_of(data.dtype, dims))
    },
    reference: Some(|_, inputs, outputs| {
        let strides = strides(inputs[0].shape);
        gather_strided(&inputs[0], &mut outputs[0], &strides);
        Ok(())
    }),
}

/// Returns the slice that arguments 2 to 4 of `strided_set` specify; `None` if a value is unknown.
fn set_slice(values: [Option<Vec<i64>>; 3]) -> Option<Slice> {
    let [begin, end, strides] = values;
    Some(Slice { begin: begin?, end: end?, strides: strides?, axes: None, has_sizes: false })
}

operator! {
    name: "strided_set",
    doc: "data with the elements at [begin:end:strides] replaced by v, whose dimensions are those of the slice. \
          Bounds are handled as in strided_slice.",
    inputs: &["data", "v", "begin", "end", "strides"],
    pattern: OpPattern::Injective,
    relation: |relation| {
        let (data, v) = (relation.tensor(0)?, relation.tensor(1)?);
        relation.same_dtype(data.dtype, v.dtype)?;
        for i in 2..5 {
            let bounds = relation.tensor(i)?;
            if !bounds.dtype.is_int() || bounds.dims.len() != 1 {
                let (name, found) = (relation.def.inputs[i], &relation.args[i]);
                return Err(relation.mismatch(format!("{name}: expected an integer vector, found {found}")));
            }
        }
        if data.dims.len() != v.dims.len() {
            let [data, v] = [&relation.args[0], &relation.args[1]];
            return Err(relation.mismatch(format!("expected equal ranks, found {data} and {v}")));
        }
        if let Some(slice) = set_slice([2, 3, 4].map(|i| relation.known_ints(i))) {
            for (i, (a, b)) in slice.dims(relation, &data.dims)?.iter().zip(&v.dims).enumerate() {
                relation.same_dim(&format!("axis {i} of v"), a, b)?;
            }
        }
        same_as_input(relation)
    },
    reference: Some(strided_set),
}

fn strided_set(_: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let slice = set_slice([2, 3, 4].map(|i| inputs[i].to_i64s()));
    let slice = slice.ok_or("begin, end, strides: expected integers that fit int64")?;
    let (data, v) = (&inputs[0], &inputs[1]);
    let ranges = slice.ranges(data.shape)?;
    let shape: Vec<usize> = ranges.iter().map(|r| r.len).collect();
    if shape != v.shape {
        return Err(format!("v: expected the shape of the slice, {shape:?}, found {:?}", v.shape));
    }
    outputs[0].data.copy_from_slice(data.data);
    let (strides, size, mut source) = (strides(data.shape), data.dtype.size(), v.data.chunks_exact(v.dtype.size()));
    for_each_index(&shape, |index| {
        let target: Vec<usize> =
            index.iter().zip(&ranges).map(|(&i, r)| (r.start as i64 + i as i64 * r.step) as usize).collect();
        if let Some(element) = source.next() {
            outputs[0].data[offset(&target, &strides) * size..][..size].copy_from_slice(element);
        }
    });
    Ok(())
}

//! Operators that change dimensions but not the order of the elements. The references copy the data, but an executor
//! can make the result a view of the argument.

use super::{AttrDef, AttrKind, Default, Evaluation, OpPattern, Params, Relation, TypeResult};
use crate::diag::{Diagnostic, codes};
use crate::ir::{Dim, TensorType, Type};
use crate::op::facts::Properties;
use crate::tensor::{TensorView, TensorViewMut};

/// Maximum rank of the result of an operator that adds dimensions.
pub(super) const MAX_RANK: usize = 64;

fn copy(_: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    if inputs[0].len() != outputs[0].len() {
        return Err(format!("expected a result of {} elements, found {:?}", inputs[0].len(), outputs[0].shape));
    }
    outputs[0].data.copy_from_slice(inputs[0].data);
    Ok(())
}

/// Returns the product of known dimensions; `None` if a dimension is unknown or the product overflows.
pub(super) fn product<'a>(dims: impl IntoIterator<Item = &'a Dim>) -> Option<usize> {
    dims.into_iter().try_fold(1usize, |n, d| n.checked_mul(d.fixed()?))
}

/// Output dimension of a reshape, decoded from `newshape`.
enum Code {
    /// An explicit number.
    Fixed(usize),
    /// The product of a range of input dimensions.
    Input(std::ops::Range<usize>),
    /// `-1`: inferred from the remaining dimensions.
    Infer,
}

/// Parses Relay's codes: n, 0 (the input dimension at this position), -1 (inferred), -2 (all remaining dimensions), -3
/// (two dimensions merged), -4 (one dimension split into the next two numbers).
fn read_codes(
    relation: &Relation<'_>,
    data: &TensorType,
    newshape: &[i64],
    allowzero: bool,
) -> Result<Vec<Code>, Box<Diagnostic>> {
    let attribute_error = |message: String| relation.error(codes::types::BAD_ATTRIBUTE, message);
    let rank = data.dims.len();
    let mut next_axis = 0;
    let mut result = Vec::with_capacity(newshape.len());
    let mut numbers = newshape.iter().copied();
    let take_axes = |next_axis: &mut usize, count: usize| -> Result<std::ops::Range<usize>, Box<Diagnostic>> {
        let range = *next_axis..*next_axis + count;
        *next_axis = range.end;
        if range.end > rank {
            return Err(attribute_error(format!(
                "newshape {newshape:?}: expected codes for an input of rank {rank}, found codes for rank {}",
                range.end
            )));
        }
        Ok(range)
    };
    while let Some(code) = numbers.next() {
        match code {
            0 if allowzero => {
                result.push(Code::Fixed(0));
                next_axis += 1;
            }
            0 => result.push(Code::Input(take_axes(&mut next_axis, 1)?)),
            -1 => {
                result.push(Code::Infer);
                next_axis += 1;
            }
            -2 => {
                result.extend((next_axis.min(rank)..rank).map(|i| Code::Input(i..i + 1)));
                next_axis = next_axis.max(rank);
            }
            -3 => result.push(Code::Input(take_axes(&mut next_axis, 2)?)),
            -4 => {
                let source = take_axes(&mut next_axis, 1)?.start;
                let length = numbers.len();
                let (Some(a), Some(b)) = (numbers.next(), numbers.next()) else {
                    return Err(attribute_error(format!(
                        "newshape {newshape:?}: expected 2 integers after -4, found {length}"
                    )));
                };
                result.extend(split_dim(&data.dims[source], a, b).ok_or_else(|| {
                    let dim = &data.dims[source];
                    attribute_error(format!(
                        "newshape {newshape:?}: expected factors of dimension {dim}, found {a} and {b}"
                    ))
                })?);
            }
            n => match usize::try_from(n) {
                Ok(n) => {
                    result.push(Code::Fixed(n));
                    next_axis += 1;
                }
                Err(_) => {
                    return Err(attribute_error(format!(
                        "newshape {newshape:?}: expected a dimension or a code from -4 to -1, found {n}"
                    )));
                }
            },
        }
    }
    let inferred_count = result.iter().filter(|c| matches!(c, Code::Infer)).count();
    if inferred_count > 1 {
        return Err(attribute_error(format!(
            "newshape {newshape:?}: expected at most one inferred dimension (-1), found {inferred_count}"
        )));
    }
    Ok(result)
}

/// Splits a dimension into the factors `a` and `b`, one of which may be -1; `None` if the dimension is not their
/// product.
fn split_dim(dim: &Dim, a: i64, b: i64) -> Option<[Code; 2]> {
    let (x, y) = (usize::try_from(a).ok(), usize::try_from(b).ok());
    let divide = |divisor: usize| match dim.fixed() {
        Some(n) => (divisor > 0 && n.is_multiple_of(divisor)).then(|| Code::Fixed(n / divisor)),
        None => Some(Code::Infer),
    };
    match (x, y) {
        (Some(x), Some(y)) => {
            let is_exact = dim.fixed().is_none_or(|n| x.checked_mul(y) == Some(n));
            is_exact.then_some([Code::Fixed(x), Code::Fixed(y)])
        }
        (Some(x), None) if b == -1 => Some([Code::Fixed(x), divide(x)?]),
        (None, Some(y)) if a == -1 => Some([divide(y)?, Code::Fixed(y)]),
        _ => None,
    }
}

/// Returns the type of `data` reshaped by Relay's codes.
pub(super) fn reshaped_type(
    relation: &Relation<'_>,
    data: &TensorType,
    newshape: &[i64],
    allowzero: bool,
) -> TypeResult {
    let codes = read_codes(relation, data, newshape, allowzero)?;
    // The product of the explicit numbers must equal the product of the input dimensions that were not copied.
    let mut uncopied_dims: Vec<&Dim> = Vec::new();
    let copied_axes: Vec<usize> =
        codes.iter().flat_map(|c| if let Code::Input(r) = c { r.clone() } else { 0..0 }).collect();
    uncopied_dims.extend(data.dims.iter().enumerate().filter(|(i, _)| !copied_axes.contains(i)).map(|(_, d)| d));
    let mut known_product = 1usize;
    for code in &codes {
        if let Code::Fixed(n) = code {
            known_product = known_product.checked_mul(*n).ok_or_else(|| {
                relation.mismatch(format!("newshape {newshape:?}: the number of elements exceeds 2^64 - 1"))
            })?;
        }
    }
    let infers = codes.iter().any(|c| matches!(c, Code::Infer));
    let mismatch = || relation.mismatch(format!("{} cannot be reshaped to {newshape:?}", relation.args[0]));
    let inferred_dim = match product(uncopied_dims.iter().copied()) {
        Some(total) if !infers => {
            // If all dimensions are known, the total sizes are compared, so that any empty tensor can be reshaped to
            // any other.
            let is_same_size = match product(&data.dims).zip(total_of(data, &codes)) {
                Some((before, after)) => before == after,
                None => total == known_product,
            };
            if !is_same_size {
                return Err(mismatch());
            }
            Dim::Any
        }
        Some(total) if known_product > 0 && total % known_product == 0 => Dim::Fixed(total / known_product),
        Some(0) if known_product == 0 => Dim::Fixed(0),
        Some(_) => return Err(mismatch()),
        // A nonzero remainder is reported at run time.
        None => {
            let total = Dim::product(uncopied_dims.iter().copied()).unwrap_or(Dim::Any);
            Dim::compute([&total, &Dim::Fixed(known_product)], |[total, known_product]| total.floor_div(&known_product))
        }
    };
    let dims = codes.iter().map(|code| match code {
        Code::Fixed(n) => Dim::Fixed(*n),
        Code::Infer => inferred_dim.clone(),
        Code::Input(range) => Dim::product(&data.dims[range.clone()]).unwrap_or(Dim::Any),
    });
    Ok(Type::tensor_of(data.dtype, dims))
}

fn total_of(data: &TensorType, codes: &[Code]) -> Option<usize> {
    codes.iter().try_fold(1usize, |n, code| match code {
        Code::Fixed(m) => n.checked_mul(*m),
        Code::Input(range) => n.checked_mul(product(&data.dims[range.clone()])?),
        Code::Infer => None,
    })
}

const ALLOWZERO: AttrDef =
    AttrDef::new("allowzero", AttrKind::Bool, Default::Bool(false), "true if 0 denotes an empty dimension");

operator! {
    name: "reshape",
    doc: "Same elements under other dimensions. In newshape, 0 copies the dimension at the same position, -1 \
          is inferred from the number of elements, -2 copies all remaining dimensions, -3 merges two, -4 splits \
          one into the two numbers that follow.",
    inputs: &["data"],
    attrs: &[AttrDef::new("newshape", AttrKind::Ints, Default::Required, "dimensions or codes"), ALLOWZERO],
    pattern: OpPattern::Injective,
    relation: |relation| {
        let params = relation.params;
        reshaped_type(relation, relation.tensor(0)?, &params.ints("newshape"), params.bool("allowzero"))
    },
    reference: Some(copy),
    properties: Properties::VIEW,
}

operator! {
    name: "dyn.reshape",
    doc: "reshape to dimensions computed at run time; only the codes 0 and -1 are supported.",
    inputs: &["data", "newshape"],
    attrs: &[ALLOWZERO],
    pattern: OpPattern::Injective,
    relation: |relation| {
        let data = relation.tensor(0)?;
        let allowzero = relation.params.bool("allowzero");
        match relation.known_ints(1) {
            Some(newshape) if newshape.iter().any(|&n| n < -1) => {
                Err(relation.error(
                    codes::types::BAD_ATTRIBUTE,
                    format!("newshape: expected integers >= -1, found {newshape:?}"),
                ))
            }
            Some(newshape) => reshaped_type(relation, data, &newshape, allowzero),
            None => Ok(Type::tensor_of(data.dtype, unknown_dims(relation, 1)?)),
        }
    },
    reference: Some(copy),
}

/// Returns one unknown dimension for each element of argument `i`, a shape tensor.
///
/// # Errors
/// If argument `i` is not an integer vector of known length.
pub(super) fn unknown_dims(relation: &Relation<'_>, i: usize) -> Result<Vec<Dim>, Box<Diagnostic>> {
    let shape = relation.tensor(i)?;
    let name = relation.def.inputs[i];
    match &*shape.dims {
        _ if !shape.dtype.is_int() => {
            Err(relation.mismatch(format!("{name}: expected integers, found {}", shape.dtype)))
        }
        [Dim::Fixed(rank)] if *rank <= MAX_RANK => Ok(vec![Dim::Any; *rank]),
        _ => Err(relation.mismatch(format!("{name}: expected a vector of known length, found {}", relation.args[i]))),
    }
}

/// Returns the axes from attribute `SIDE_begin` to `SIDE_end`, without the latter.
fn axis_range(relation: &Relation<'_>, side: &str, rank: usize) -> Result<std::ops::Range<usize>, Box<Diagnostic>> {
    let resolve =
        |value: i64| usize::try_from(if value < 0 { value + rank as i64 } else { value }).unwrap_or(usize::MAX);
    let begin = resolve(relation.params.int(&format!("{side}_begin")));
    let end = relation.params.opt_int(&format!("{side}_end")).map_or(rank, resolve);
    if begin <= end && end <= rank {
        return Ok(begin..end);
    }
    let message =
        format!("{side}_begin, {side}_end: expected ascending axes from 0 to {rank}, found {begin} and {end}");
    Err(relation.error(codes::types::BAD_ATTRIBUTE, message))
}

operator! {
    name: "contrib_reverse_reshape",
    doc: "reshape whose codes are read from the last dimension to the first.",
    inputs: &["data"],
    attrs: &[AttrDef::new("newshape", AttrKind::Ints, Default::Required, "dimensions or codes"), ALLOWZERO],
    pattern: OpPattern::Injective,
    relation: |relation| {
        let reversed = |ty: &TensorType| TensorType { dims: ty.dims.iter().rev().cloned().collect(), ..ty.clone() };
        let (data, mut newshape) = (reversed(relation.tensor(0)?), relation.params.ints("newshape"));
        newshape.reverse();
        let result = reshaped_type(relation, &data, &newshape, relation.params.bool("allowzero"))?;
        Ok(result.as_tensor().map_or(result.clone(), |ty| Type::tensor_of(ty.dtype, ty.dims.iter().rev().cloned())))
    },
    reference: Some(copy),
    properties: Properties::VIEW,
}

operator! {
    name: "reshape_like",
    doc: "data with the dimensions of shape_like: those from rhs_begin to rhs_end replace those of data from lhs_begin to \
          lhs_end, and have the same number of elements.",
    inputs: &["data", "shape_like"],
    attrs: &[
        AttrDef::new("lhs_begin", AttrKind::Int, Default::Int(0), "first replaced axis of data; negative values count from the end"),
        AttrDef::new("lhs_end", AttrKind::Int, Default::None, "axis of data after the replaced ones; the rank if None"),
        AttrDef::new("rhs_begin", AttrKind::Int, Default::Int(0), "first axis of shape_like that is taken"),
        AttrDef::new("rhs_end", AttrKind::Int, Default::None, "axis of shape_like after those that are taken; the rank if None"),
    ],
    pattern: OpPattern::Injective,
    relation: |relation| {
        let (data, target) = (relation.tensor(0)?, relation.tensor(1)?);
        let replaced = axis_range(relation, "lhs", data.dims.len())?;
        let taken = &target.dims[axis_range(relation, "rhs", target.dims.len())?];
        if let (Some(a), Some(b)) = (product(&data.dims[replaced.clone()]), product(taken))
            && a != b
        {
            return Err(
                relation.mismatch(format!("shape_like: expected element count {a}, found {}", relation.args[1]))
            );
        }
        let mut dims = data.dims.to_vec();
        dims.splice(replaced, taken.iter().cloned());
        Ok(Type::tensor_of(data.dtype, dims))
    },
    reference: Some(copy),
    properties: Properties::VIEW,
}

operator! {
    name: "nn.batch_flatten",
    doc: "Keeps the first dimension and merges all others: (n, a, b, ..) becomes (n, a * b * ..).",
    inputs: &["data"],
    pattern: OpPattern::Injective,
    relation: |relation| {
        let data = relation.tensor(0)?;
        match &*data.dims {
            [] => Err(relation.mismatch("data: expected 1 or more dimensions, found a scalar")),
            [first, rest @ ..] => {
                let rest = Dim::product(rest).unwrap_or(Dim::Any);
                Ok(Type::tensor_of(data.dtype, [first.clone(), rest]))
            }
        }
    },
    reference: Some(copy),
    properties: Properties::VIEW,
}

/// Returns the type of `data` with `count` unit dimensions inserted at `axis`.
fn expanded_type(relation: &Relation<'_>, data: &TensorType, axis: i64, count: i64) -> TypeResult {
    if !(0..=(MAX_RANK.saturating_sub(data.dims.len())) as i64).contains(&count) {
        return Err(relation.error(
            codes::types::BAD_ATTRIBUTE,
            format!(
                "num_newaxis: expected an integer from 0 to {}, found {count}",
                MAX_RANK.saturating_sub(data.dims.len())
            ),
        ));
    }
    let axis = relation.axis(axis, data.dims.len() + 1)?;
    let mut dims = data.dims.to_vec();
    dims.splice(axis..axis, std::iter::repeat_n(Dim::Fixed(1), count as usize));
    Ok(Type::tensor_of(data.dtype, dims))
}

/// Returns the type of `data` with unit dimensions inserted, which become the axes `axes` of the result.
fn expanded_type_at(relation: &Relation<'_>, data: &TensorType, axes: &[i64]) -> TypeResult {
    let rank = data.dims.len().saturating_add(axes.len());
    if rank > MAX_RANK {
        return Err(relation.error(
            codes::types::BAD_ATTRIBUTE,
            format!("expected a result of at most {MAX_RANK} dimensions, found {rank}"),
        ));
    }
    let mut is_inserted = vec![false; rank];
    for &axis in axes {
        let axis = relation.axis(axis, rank)?;
        if std::mem::replace(&mut is_inserted[axis], true) {
            let message = format!("axis: expected distinct axes, found {axes:?}");
            return Err(relation.error(codes::types::BAD_ATTRIBUTE, message));
        }
    }
    let mut data_dims = data.dims.iter();
    let dims = is_inserted
        .into_iter()
        .filter_map(|is_inserted| if is_inserted { Some(Dim::Fixed(1)) } else { data_dims.next().cloned() });
    Ok(Type::tensor_of(data.dtype, dims))
}

/// Replaces all dimensions of a tensor type by unknown dimensions; other types are unchanged.
fn open_dims(ty: &Type) -> Type {
    match ty {
        Type::Tensor(ty) => Type::tensor_of(ty.dtype, vec![Dim::Any; ty.dims.len()]),
        other => other.clone(),
    }
}

/// Returns the type of `data` without the dimensions on `axes`.
fn squeezed_type(relation: &Relation<'_>, data: &TensorType, axes: &[i64]) -> TypeResult {
    let mut is_kept = vec![true; data.dims.len()];
    for &axis in axes {
        let axis = relation.axis(axis, data.dims.len())?;
        if data.dims[axis].fixed().is_some_and(|n| n != 1) {
            let dim = &data.dims[axis];
            return Err(relation.mismatch(format!("axis {axis}: expected dimension 1, found {dim}")));
        }
        is_kept[axis] = false;
    }
    let dims = data.dims.iter().zip(is_kept).filter(|(_, is_kept)| *is_kept).map(|(d, _)| d.clone());
    Ok(Type::tensor_of(data.dtype, dims))
}

operator! {
    name: "expand_dims",
    doc: "Inserts `num_newaxis` axes of length 1 before `axis`; a negative `axis` counts from the end.",
    inputs: &["data"],
    attrs: &[
        AttrDef::new("axis", AttrKind::Int, Default::Required, "position of the first new axis"),
        AttrDef::new("num_newaxis", AttrKind::Int, Default::Int(1), "number of axes to insert"),
    ],
    pattern: OpPattern::Broadcast,
    relation: |relation| {
        let (axis, count) = (relation.params.int("axis"), relation.params.int("num_newaxis"));
        expanded_type(relation, relation.tensor(0)?, axis, count)
    },
    reference: Some(copy),
    properties: Properties::VIEW,
}

operator! {
    name: "squeeze",
    doc: "Removes the given axes, whose dimensions are 1; without `axis`, every axis of dimension 1.",
    inputs: &["data"],
    attrs: &[AttrDef::new("axis", AttrKind::Ints, Default::None, "removed axes; all axes of dimension 1 if None")],
    pattern: OpPattern::Injective,
    relation: |relation| {
        let data = relation.tensor(0)?;
        if let Some(axes) = relation.params.opt_ints("axis") {
            return squeezed_type(relation, data, &axes);
        }
        let mut dims = Vec::new();
        for dim in &data.dims {
            match dim.fixed() {
                Some(1) => {}
                Some(_) => dims.push(dim.clone()),
                None => {
                    let data_type = &relation.args[0];
                    return Err(relation.mismatch(format!(
                        "data: expected known dimensions because attribute axis is None, found {data_type}"
                    )));
                }
            }
        }
        Ok(Type::tensor_of(data.dtype, dims))
    },
    reference: Some(copy),
    properties: Properties::VIEW,
}

operator! {
    name: "dyn.expand_dims",
    doc: "expand_dims at an axis computed at run time: an integer scalar or a vector. A vector of several \
          elements lists the axes of the new dimensions in the result.",
    inputs: &["data", "axis"],
    attrs: &[AttrDef::new("num_newaxis", AttrKind::Int, Default::Int(1), "number of axes to insert")],
    pattern: OpPattern::Broadcast,
    relation: |relation| {
        let (data, count) = (relation.tensor(0)?, relation.params.int("num_newaxis"));
        let axis_count = match &*relation.tensor(1)?.dims {
            [Dim::Fixed(axis_count)] => *axis_count,
            _ => 1,
        };
        if axis_count != 1 && count != 1 {
            return Err(relation.mismatch(format!("axis: expected one axis, found {axis_count}")));
        }
        match relation.known_ints(1).as_deref() {
            Some(&[axis]) => expanded_type(relation, data, axis, count),
            Some(axes) => expanded_type_at(relation, data, axes),
            // Only the rank is known.
            None if axis_count != 1 => expanded_type(relation, data, 0, axis_count as i64).map(|ty| open_dims(&ty)),
            None => expanded_type(relation, data, 0, count).map(|ty| open_dims(&ty)),
        }
    },
    reference: Some(copy),
}

operator! {
    name: "dyn.squeeze",
    doc: "squeeze of axes computed at run time: an integer vector.",
    inputs: &["data", "axis"],
    pattern: OpPattern::Injective,
    relation: |relation| {
        let (data, axis_count) = (relation.tensor(0)?, unknown_dims(relation, 1)?.len());
        match relation.known_ints(1) {
            Some(axes) => squeezed_type(relation, data, &axes),
            None => match data.dims.len().checked_sub(axis_count) {
                Some(rank) => Ok(Type::tensor_of(data.dtype, vec![Dim::Any; rank])),
                None => Err(relation.mismatch(format!(
                    "axis: expected a length <= {} for {}, found {axis_count}",
                    data.dims.len(),
                    relation.args[0]
                ))),
            },
        }
    },
    reference: Some(copy),
}

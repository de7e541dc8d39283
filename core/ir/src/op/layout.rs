//! Operators that permute elements: transpose, reverse, and the conversion between named layouts.

use super::elementwise::same_as_input;
use super::walk::{gather, gather_strided, offset, strides};
use super::{AttrDef, AttrKind, Default, Evaluation, OpPattern, Params, Relation, TypeResult};
use crate::diag::{Diagnostic, codes};
use crate::ir::{Dim, Type};
use crate::op::facts::Properties;
use crate::tensor::{Shape, TensorView, TensorViewMut};

/// Returns the permutation of a transpose, by default the reversed axes; `None` if `axes` is not a permutation.
pub fn permutation(params: &Params<'_>, rank: usize) -> Option<Vec<usize>> {
    let axes = params.opt_ints("axes").unwrap_or_default();
    if axes.is_empty() {
        return Some((0..rank).rev().collect());
    }
    let resolve = |&a: &i64| usize::try_from(if a < 0 { a + rank as i64 } else { a }).ok();
    let axes: Vec<usize> = axes.iter().map(resolve).collect::<Option<_>>()?;
    let mut sorted_axes = axes.clone();
    sorted_axes.sort_unstable();
    sorted_axes.iter().copied().eq(0..rank).then_some(axes)
}

operator! {
    name: "transpose",
    doc: "Dimension i of the result is dimension axes[i] of the input; without axes the order is reversed.",
    inputs: &["data"],
    attrs: &[AttrDef::new("axes", AttrKind::Ints, Default::None, "permutation of the axes; reverse order if None")],
    pattern: OpPattern::Injective,
    relation: |relation| {
        let data = relation.tensor(0)?;
        let axes = permutation(&relation.params, data.dims.len()).ok_or_else(|| {
            let axes = relation.params.ints("axes");
            let rank = data.dims.len();
            relation.error(codes::types::BAD_ATTRIBUTE, format!("axes: expected a permutation of {rank} axes, found {axes:?}"))
        })?;
        Ok(Type::tensor_of(data.dtype, axes.into_iter().map(|a| data.dims[a].clone())))
    },
    reference: Some(|params, inputs, outputs| {
        let shape = inputs[0].shape;
        let axes = permutation(&params, shape.len()).ok_or_else(|| {
            format!("axes: expected a permutation of {} axes, found {:?}", shape.len(), params.ints("axes"))
        })?;
        let strides = strides(shape);
        let strides: Shape = axes.iter().map(|&a| strides[a]).collect();
        gather_strided(&inputs[0], &mut outputs[0], &strides);
        Ok(())
    }),
    properties: Properties::SELECTS,
}

operator! {
    name: "reverse",
    doc: "Input with its elements along one axis in reverse order.",
    inputs: &["data"],
    attrs: &[AttrDef::new("axis", AttrKind::Int, Default::Required, "reversed axis")],
    pattern: OpPattern::Injective,
    relation: |relation| {
        relation.axis(relation.params.int("axis"), relation.tensor(0)?.dims.len())?;
        same_as_input(relation)
    },
    reference: Some(|params, inputs, outputs| {
        let shape = inputs[0].shape;
        let axis = params.int("axis").rem_euclid(shape.len() as i64) as usize;
        let strides = strides(shape);
        gather(&inputs[0], &mut outputs[0], |index| {
            offset(index, &strides) + (shape[axis] - 1) * strides[axis] - 2 * index[axis] * strides[axis]
        });
        Ok(())
    }),
    properties: Properties::SELECTS,
}

/// Layout such as `NCHW8c`: for each dimension, the upper-case letter of its axis and, for a block of the axis, the
/// block size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout(pub Vec<(char, Option<usize>)>);

impl Layout {
    /// Parses a layout. `None` if it is invalid: a repeated letter, a block without its axis, a size of 0.
    pub fn parse(text: &str) -> Option<Layout> {
        let mut dims: Vec<(char, Option<usize>)> = Vec::new();
        let mut size: Option<usize> = None;
        for c in text.chars() {
            match c {
                '0'..='9' => {
                    size = Some(size.unwrap_or(0).checked_mul(10)?.checked_add(c as usize - '0' as usize)?);
                }
                'A'..='Z' if size.is_none() && dims.iter().all(|d| *d != (c, None)) => dims.push((c, None)),
                'a'..='z' => dims.push((c.to_ascii_uppercase(), Some(size.take().filter(|s| *s > 0)?))),
                _ => return None,
            }
        }
        let is_complete = size.is_none() && dims.iter().all(|(c, _)| dims.contains(&(*c, None)));
        is_complete.then_some(Layout(dims))
    }

    /// Returns the product of the block sizes of an axis.
    pub fn factor(&self, axis: char) -> Option<usize> {
        let parts = self.0.iter().filter(|d| d.0 == axis).filter_map(|d| d.1);
        parts.into_iter().try_fold(1usize, usize::checked_mul)
    }

    fn letters(&self) -> Vec<char> {
        let mut letters: Vec<char> = self.0.iter().filter(|d| d.1.is_none()).map(|d| d.0).collect();
        letters.sort_unstable();
        letters
    }
}

fn layouts(relation: &Relation<'_>) -> Result<(Layout, Layout), Box<Diagnostic>> {
    let read = |name: &str| {
        let text = relation.params.string(name);
        Layout::parse(&text).ok_or_else(|| {
            relation.error(
                codes::types::BAD_ATTRIBUTE,
                format!("{name}: expected a layout such as NCHW8c, found \"{text}\""),
            )
        })
    };
    let (from, to) = (read("src_layout")?, read("dst_layout")?);
    if from.letters() != to.letters() {
        let (a, b) = (relation.params.string("src_layout"), relation.params.string("dst_layout"));
        return Err(relation.error(
            codes::types::BAD_ATTRIBUTE,
            format!("expected layouts with the same axes, found \"{a}\" and \"{b}\""),
        ));
    }
    Ok((from, to))
}

fn layout_transform_type(relation: &Relation<'_>) -> TypeResult {
    let data = relation.tensor(0)?;
    let (from, to) = layouts(relation)?;
    let dims = relayout_dims(relation, &data.dims, (&relation.params.string("src_layout"), &from), &to)?;
    Ok(Type::tensor_of(data.dtype, dims))
}

/// Converts the dimensions `dims` from layout `from` to layout `to`; `text` is the notation of `from`, for messages.
pub(super) fn relayout_dims(
    relation: &Relation<'_>,
    dims: &[Dim],
    (text, from): (&str, &Layout),
    to: &Layout,
) -> Result<Vec<Dim>, Box<Diagnostic>> {
    if from.0.len() != dims.len() {
        let (rank, expected) = (dims.len(), from.0.len());
        return Err(relation.mismatch(format!("expected {expected} dimensions for layout \"{text}\", found {rank}")));
    }
    for ((_, size), dim) in from.0.iter().zip(dims) {
        if let (Some(size), Some(n)) = (size, dim.fixed())
            && *size != n
        {
            return Err(relation.mismatch(format!("layout \"{text}\": expected a block of {size} elements, found {n}")));
        }
    }
    to.0.iter()
        .map(|&(axis, size)| {
            if let Some(size) = size {
                return Ok(Dim::Fixed(size));
            }
            let position = from.0.iter().position(|d| *d == (axis, None)).unwrap_or(0);
            let (Some(a), Some(b)) = (from.factor(axis), to.factor(axis)) else {
                return Err(relation.error(
                    codes::types::BAD_ATTRIBUTE,
                    format!("axis {axis}: the product of the block sizes exceeds 2^64 - 1"),
                ));
            };
            match dims[position].fixed() {
                _ if a == b => Ok(dims[position].clone()),
                None => Ok(Dim::compute([&dims[position], &Dim::Fixed(a), &Dim::Fixed(b)], |[outer, a, b]| {
                    outer.mul(&a)?.floor_div(&b)
                })),
                Some(outer) => match outer.checked_mul(a) {
                    Some(n) if n.is_multiple_of(b) => Ok(Dim::Fixed(n / b)),
                    _ => Err(relation
                        .mismatch(format!("axis {axis}: expected a multiple of {b} elements, found {outer} x {a}"))),
                },
            }
        })
        .collect()
}

fn layout_transform(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let layout = |name: &str| {
        let text = params.string(name);
        Layout::parse(&text).ok_or_else(|| format!("{name}: expected a layout such as NCHW8c, found \"{text}\""))
    };
    let (from, to) = (layout("src_layout")?, layout("dst_layout")?);
    relayout(&from, &to, &inputs[0], &mut outputs[0]);
    Ok(())
}

/// Copies `input`, in layout `from`, to `output`, in layout `to`.
pub(super) fn relayout(from: &Layout, to: &Layout, input: &TensorView<'_>, output: &mut TensorViewMut<'_>) {
    let (source, shape) = (input.shape, output.shape);
    let strides = strides(source);
    gather(input, output, |index| {
        let mut offset = 0;
        for letter in to.letters() {
            // The blocks of an axis are digits of its index, the outermost block first.
            let letter_strides = |layout: &Layout| {
                (0..layout.0.len()).filter(|&i| layout.0[i].0 == letter).collect::<smallvec::SmallVec<[usize; 4]>>()
            };
            // The upper-case dimension is the leading digit, whatever its position.
            let mut coordinate = 0;
            let (mut digits, mut result) = (letter_strides(to), letter_strides(from));
            digits.sort_by_key(|&i| to.0[i].1.is_some());
            result.sort_by_key(|&i| from.0[i].1.is_some());
            for i in digits {
                coordinate = coordinate * shape[i] + index[i];
            }
            for &i in result.iter().rev() {
                offset += coordinate % source[i] * strides[i];
                coordinate /= source[i];
            }
        }
        offset
    });
}

operator! {
    name: "layout_transform",
    doc: "Data in another layout. An upper-case letter names an axis, a number with the lower-case \
          letter a block of the axis: NCHW8c stores blocks of 8 channels. Block sizes divide the dimension.",
    inputs: &["data"],
    attrs: &[
        AttrDef::new("src_layout", AttrKind::Str, Default::Required, "layout of the input"),
        AttrDef::new("dst_layout", AttrKind::Str, Default::Required, "layout of the result"),
    ],
    pattern: OpPattern::Injective,
    relation: layout_transform_type,
    reference: Some(layout_transform),
    properties: Properties::SELECTS,
}

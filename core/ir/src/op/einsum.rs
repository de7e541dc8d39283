//! Einstein summation.

use super::scalar::{Reader, Writer};
use super::walk::{each_index, offset, strides};
use super::{Arity, AttrDef, AttrKind, Cost, Default, OpDef, OpPattern, Params, ReferenceError, Relation, TypeResult};
use crate::diag::codes;
use crate::ir::{Dim, Type};
use crate::op::facts::{Facts, elements_of};
use crate::tensor::{Shape, TensorView, TensorViewMut};

inventory::submit! {
    OpDef {
        name: "einsum",
        doc: "Sums of products of the operands' elements, as in numpy: each operand has a label per axis, axes with equal \
              labels share an index, and labels that the result does not have are summed over. `...` stands for further \
              axes, which broadcast. Without `->` the result has `...` and the labels that occur once, in alphabetical \
              order.",
        arity: Arity::exactly(1),
        inputs: &["data"],
        attrs: &[AttrDef::new("equation", AttrKind::Str, Default::Required, "equation such as \"bij,bjk->bik\"")],
        pattern: OpPattern::Opaque,
        relation: einsum_type,
        reference: Some(einsum),
        flops,
        facts: Facts::EXACT.sum(elements_of::<0>),
    }
}

/// Maximum number of distinct labels.
const MAX_LABELS: usize = 64;

/// Axis of an operand or of the result: a letter, or an axis of the ellipsis counted from its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Label {
    /// Axis that `...` stands for, counted from the last.
    Ellipsis(usize),
    /// Axis named by a letter.
    Letter(char),
}

/// Parsed equation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Equation {
    /// Labels of each operand.
    pub operands: Vec<Vec<Label>>,
    /// Labels of the result.
    pub result: Vec<Label>,
}

impl Equation {
    /// Parses an equation for operands of the given ranks.
    ///
    /// # Errors
    /// If the equation does not match the operands, or a label of the result occurs twice or in no operand.
    pub fn parse(text: &str, ranks: &[usize]) -> Result<Equation, String> {
        let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let (left, right) = match text.split_once("->") {
            Some((left, right)) => (left, Some(right)),
            None => (text.as_str(), None),
        };
        let terms: Vec<&str> = left.split(',').collect();
        if terms.len() != ranks.len() {
            return Err(format!("equation: expected {} operands, found {}", ranks.len(), terms.len()));
        }
        let operands: Vec<Vec<Label>> =
            terms.iter().zip(ranks).map(|(term, &rank)| labels(term, Some(rank))).collect::<Result<_, _>>()?;
        let all = || operands.iter().flatten().copied();
        let open = all().filter_map(|label| match label {
            Label::Ellipsis(i) => Some(i + 1),
            Label::Letter(_) => None,
        });
        let open = open.max().unwrap_or(0);
        let result = match right {
            Some(right) => {
                let letters = right.replace("...", "").chars().count();
                let has_ellipsis = right.contains("...");
                labels(right, Some(letters + if has_ellipsis { open } else { 0 }))?
            }
            None => {
                let mut once: Vec<Label> = all().filter(|label| matches!(label, Label::Letter(_))).collect();
                once.sort_unstable();
                let twice: Vec<Label> = once.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
                once.retain(|label| !twice.contains(label));
                (0..open).rev().map(Label::Ellipsis).chain(once).collect()
            }
        };
        for (i, label) in result.iter().enumerate() {
            if result[..i].contains(label) || !all().any(|other| other == *label) {
                return Err(format!(
                    "equation: expected each label of the result once, and in an operand, found \"{text}\""
                ));
            }
        }
        Ok(Equation { operands, result })
    }

    /// Returns all labels, beginning with the labels of the result.
    fn all(&self) -> Vec<Label> {
        let mut all = self.result.clone();
        for label in self.operands.iter().flatten() {
            if !all.contains(label) {
                all.push(*label);
            }
        }
        all
    }
}

/// Parses the labels of a term for a tensor of rank `rank`.
fn labels(term: &str, rank: Option<usize>) -> Result<Vec<Label>, String> {
    let (before, after) = match term.split_once("...") {
        Some((before, after)) => (before, Some(after)),
        None => (term, None),
    };
    let letters = |text: &str| -> Result<Vec<Label>, String> {
        text.chars()
            .map(|c| {
                if c.is_ascii_alphabetic() {
                    Ok(Label::Letter(c))
                } else {
                    Err(format!("equation: expected a letter, found `{c}`"))
                }
            })
            .collect()
    };
    let (mut result, tail) = (letters(before)?, letters(after.unwrap_or(""))?);
    let named = result.len() + tail.len();
    let rank = rank.unwrap_or(named);
    match rank.checked_sub(named) {
        Some(0) => {}
        Some(open) if after.is_some() => result.extend((0..open).rev().map(Label::Ellipsis)),
        _ => return Err(format!("equation: expected {rank} labels, found \"{term}\"")),
    }
    result.extend(tail);
    Ok(result)
}

fn einsum_type(relation: &Relation<'_>) -> TypeResult {
    let operands = relation.tensors(0)?;
    let bad = |message: String| relation.error(codes::types::BAD_ATTRIBUTE, message);
    let Some(first) = operands.first() else { return Err(bad("expected at least one operand, found none".into())) };
    let ranks: Vec<usize> = operands.iter().map(|operand| operand.dims.len()).collect();
    let equation = Equation::parse(&relation.params.string("equation"), &ranks).map_err(bad)?;
    let all = equation.all();
    if all.len() > MAX_LABELS {
        return Err(bad(format!("equation: expected at most {MAX_LABELS} labels, found {}", all.len())));
    }
    let mut sizes: Vec<Option<Dim>> = vec![None; all.len()];
    for (labels, operand) in equation.operands.iter().zip(&operands) {
        relation.same_dtype(first.dtype, operand.dtype)?;
        for (label, dim) in labels.iter().zip(&operand.dims) {
            let Some(size) = all.iter().position(|other| other == label).and_then(|at| sizes.get_mut(at)) else {
                continue;
            };
            *size = Some(match size.take() {
                None => dim.clone(),
                // A dimension of 1 broadcasts.
                Some(known) if *dim == Dim::Fixed(1) => known,
                Some(Dim::Fixed(1)) => dim.clone(),
                Some(known) => relation.same_dim(&format!("{label:?}"), &known, dim)?,
            });
        }
    }
    let dims: Vec<Dim> =
        sizes.into_iter().take(equation.result.len()).map(|size| size.unwrap_or(Dim::Fixed(1))).collect();
    Ok(Type::tensor_of(first.dtype, dims))
}

/// Counts a multiplication or addition per operand for each combination of labels.
fn flops(cost: &Cost<'_>) -> u64 {
    let Some(Type::Tuple(fields)) = cost.args.first() else { return 0 };
    let tensors: Vec<_> = fields.iter().filter_map(Type::as_tensor).collect();
    let ranks: Vec<usize> = tensors.iter().map(|tensor| tensor.dims.len()).collect();
    let Ok(equation) = Equation::parse(&cost.params.string("equation"), &ranks) else { return 0 };
    let size = |label: &Label| {
        let places =
            equation.operands.iter().zip(&tensors).flat_map(|(labels, tensor)| labels.iter().zip(&tensor.dims));
        places.filter(|(other, _)| *other == label).map(|(_, dim)| dim.number() as u64).max().unwrap_or(1)
    };
    equation.all().iter().map(size).fold(tensors.len() as u64, u64::saturating_mul)
}

fn einsum(
    params: Params<'_>,
    inputs: &[TensorView<'_>],
    outputs: &mut [TensorViewMut<'_>],
) -> Result<(), ReferenceError> {
    let ranks: Vec<usize> = inputs.iter().map(|input| input.shape.len()).collect();
    let equation = Equation::parse(&params.string("equation"), &ranks)?;
    let all = equation.all();
    let kept = equation.result.len();
    let mut shape: Shape = smallvec::smallvec![1; all.len()];
    // Strides of each operand along each label; a dimension of 1 broadcasts, and repeated labels select a diagonal.
    let mut along: Vec<Shape> = Vec::with_capacity(inputs.len());
    for (labels, input) in equation.operands.iter().zip(inputs) {
        let mut steps: Shape = smallvec::smallvec![0; all.len()];
        for ((label, &size), &stride) in labels.iter().zip(input.shape).zip(&strides(input.shape)) {
            let at = all.iter().position(|other| other == label).ok_or("a label is missing")?;
            if size != 1 {
                shape[at] = size;
                steps[at] += stride;
            }
        }
        along.push(steps);
    }
    let readers: Vec<Reader<'_>> = inputs.iter().map(Reader::new).collect();
    let is_empty = inputs.iter().any(TensorView::is_empty);
    let mut out = Writer::new(&mut outputs[0]);
    let mut place = 0;
    each_index(&shape[..kept], |index| {
        let base: Vec<usize> = along.iter().map(|steps| offset(index, &steps[..kept])).collect();
        let (mut real, mut whole) = (0.0, 0i128);
        if !is_empty {
            each_index(&shape[kept..], |summed| {
                let at = |i: usize| base[i] + offset(summed, &along[i][kept..]);
                if out.is_float() {
                    real += readers.iter().enumerate().map(|(i, reader)| reader.float(at(i))).product::<f64>();
                } else {
                    let product = |all: i128, (i, reader): (usize, &Reader<'_>)| all.wrapping_mul(reader.int(at(i)));
                    whole = whole.wrapping_add(readers.iter().enumerate().fold(1, product));
                }
            });
        }
        if out.is_float() {
            out.set_float(place, real);
        } else {
            out.set_int(place, whole);
        }
        place += 1;
    });
    Ok(())
}

//! Einstein summation.

use super::scalar::{Reader, Writer};
use super::walk::{for_each_index, offset, strides};
use super::{AttrDef, AttrKind, Cost, Default, Evaluation, Params, Relation, TypeResult};
use crate::diag::codes;
use crate::ir::{Dim, Type};
use crate::op::facts::{Properties, elements_of};
use crate::tensor::{Shape, TensorView, TensorViewMut};

operator! {
    name: "einsum",
    doc: "Sums of products of the operands' elements, as in numpy: each operand has a label per axis, axes with equal \
          labels share an index, and labels that the result does not have are summed over. `...` stands for further \
          axes, which broadcast. Without `->` the result has `...` and the labels that occur once, in alphabetical \
          order.",
    inputs: &["data"],
    attrs: &[AttrDef::new("equation", AttrKind::Str, Default::Required, "equation such as \"bij,bjk->bik\"")],
    relation: einsum_type,
    reference: Some(einsum),
    flops,
    properties: Properties::EXACT.sum(elements_of::<0>),
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
        let (inputs, output) = match text.split_once("->") {
            Some((inputs, output)) => (inputs, Some(output)),
            None => (text.as_str(), None),
        };
        let terms: Vec<&str> = inputs.split(',').collect();
        if terms.len() != ranks.len() {
            return Err(format!("operands of the equation: expected {}, found {}", ranks.len(), terms.len()));
        }
        let operands: Vec<Vec<Label>> =
            terms.iter().zip(ranks).map(|(term, &rank)| labels(term, Some(rank))).collect::<Result<_, _>>()?;
        let labels_of_operands = || operands.iter().flatten().copied();
        let ellipsis_rank = labels_of_operands().filter_map(|label| match label {
            Label::Ellipsis(i) => Some(i + 1),
            Label::Letter(_) => None,
        });
        let ellipsis_rank = ellipsis_rank.max().unwrap_or(0);
        let result = match output {
            Some(output) => {
                let letters = output.replace("...", "").chars().count();
                let has_ellipsis = output.contains("...");
                labels(output, Some(letters + if has_ellipsis { ellipsis_rank } else { 0 }))?
            }
            None => {
                let mut distinct: Vec<Label> =
                    labels_of_operands().filter(|label| matches!(label, Label::Letter(_))).collect();
                distinct.sort_unstable();
                let repeated: Vec<Label> =
                    distinct.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
                distinct.retain(|label| !repeated.contains(label));
                (0..ellipsis_rank).rev().map(Label::Ellipsis).chain(distinct).collect()
            }
        };
        for (i, label) in result.iter().enumerate() {
            if result[..i].contains(label) || !labels_of_operands().any(|other| other == *label) {
                return Err(format!(
                    "equation: expected a result of distinct labels, each from an operand, found \"{text}\""
                ));
            }
        }
        Ok(Equation { operands, result })
    }

    /// Returns all labels, beginning with the labels of the result.
    fn all(&self) -> Vec<Label> {
        let mut labels = self.result.clone();
        for label in self.operands.iter().flatten() {
            if !labels.contains(label) {
                labels.push(*label);
            }
        }
        labels
    }
}

/// Parses the labels of a term for a tensor of rank `rank`.
fn labels(term: &str, rank: Option<usize>) -> Result<Vec<Label>, String> {
    let (head, after) = match term.split_once("...") {
        Some((head, after)) => (head, Some(after)),
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
    let (mut result, tail) = (letters(head)?, letters(after.unwrap_or(""))?);
    let named_count = result.len() + tail.len();
    let rank = rank.unwrap_or(named_count);
    match rank.checked_sub(named_count) {
        Some(0) => {}
        Some(ellipsis_rank) if after.is_some() => result.extend((0..ellipsis_rank).rev().map(Label::Ellipsis)),
        _ => return Err(format!("equation: expected labels for rank {rank}, found \"{term}\"")),
    }
    result.extend(tail);
    Ok(result)
}

fn einsum_type(relation: &Relation<'_>) -> TypeResult {
    let operands = relation.tensors(0)?;
    let invalid = |message: String| relation.error(codes::types::BAD_ATTRIBUTE, message);
    let Some(first) = operands.first() else { return Err(invalid("expected at least one operand, found none".into())) };
    let ranks: Vec<usize> = operands.iter().map(|operand| operand.dims.len()).collect();
    let equation = Equation::parse(&relation.params.string("equation"), &ranks).map_err(invalid)?;
    let all_labels = equation.all();
    if all_labels.len() > MAX_LABELS {
        return Err(invalid(format!("equation: expected at most {MAX_LABELS} labels, found {}", all_labels.len())));
    }
    let mut sizes: Vec<Option<Dim>> = vec![None; all_labels.len()];
    for (labels, operand) in equation.operands.iter().zip(&operands) {
        relation.same_dtype(first.dtype, operand.dtype)?;
        for (label, dim) in labels.iter().zip(&operand.dims) {
            let Some(size) = all_labels.iter().position(|other| other == label).and_then(|at| sizes.get_mut(at)) else {
                continue;
            };
            *size = Some(match size.take() {
                None => dim.clone(),
                // A dimension of 1 broadcasts.
                Some(bound) if *dim == Dim::Fixed(1) => bound,
                Some(Dim::Fixed(1)) => dim.clone(),
                Some(bound) => relation.same_dim(&format!("{label:?}"), &bound, dim)?,
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
        let dims = equation.operands.iter().zip(&tensors).flat_map(|(labels, tensor)| labels.iter().zip(&tensor.dims));
        dims.filter(|(other, _)| *other == label).map(|(_, dim)| dim.number() as u64).max().unwrap_or(1)
    };
    equation.all().iter().map(size).fold(tensors.len() as u64, u64::saturating_mul)
}

fn einsum(params: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let ranks: Vec<usize> = inputs.iter().map(|input| input.shape.len()).collect();
    let equation = Equation::parse(&params.string("equation"), &ranks)?;
    let all_labels = equation.all();
    let result_len = equation.result.len();
    let mut shape: Shape = smallvec::smallvec![1; all_labels.len()];
    // Strides of each operand along each label; a dimension of 1 broadcasts, and repeated labels select a diagonal.
    let mut label_strides: Vec<Shape> = Vec::with_capacity(inputs.len());
    for (labels, input) in equation.operands.iter().zip(inputs) {
        let mut steps: Shape = smallvec::smallvec![0; all_labels.len()];
        for ((label, &size), &stride) in labels.iter().zip(input.shape).zip(&strides(input.shape)) {
            let label_index =
                all_labels.iter().position(|other| other == label).ok_or("equation: unknown label of an operand")?;
            if size != 1 {
                shape[label_index] = size;
                steps[label_index] += stride;
            }
        }
        label_strides.push(steps);
    }
    let readers: Vec<Reader<'_>> = inputs.iter().map(Reader::new).collect();
    let is_empty = inputs.iter().any(TensorView::is_empty);
    let mut out = Writer::new(&mut outputs[0]);
    let mut position = 0;
    for_each_index(&shape[..result_len], |index| {
        let base: Vec<usize> = label_strides.iter().map(|steps| offset(index, &steps[..result_len])).collect();
        let (mut real, mut int) = (0.0, 0i128);
        if !is_empty {
            for_each_index(&shape[result_len..], |summed_index| {
                let element_offset = |i: usize| base[i] + offset(summed_index, &label_strides[i][result_len..]);
                if out.is_float() {
                    real +=
                        readers.iter().enumerate().map(|(i, reader)| reader.float(element_offset(i))).product::<f64>();
                } else {
                    let product = |product: i128, (i, reader): (usize, &Reader<'_>)| {
                        product.wrapping_mul(reader.int(element_offset(i)))
                    };
                    int = int.wrapping_add(readers.iter().enumerate().fold(1, product));
                }
            });
        }
        if out.is_float() {
            out.set_float(position, real);
        } else {
            out.set_int(position, int);
        }
        position += 1;
    });
    Ok(())
}

//! Einsum: floating-point contractions become matrix products; all other cases become the operator `einsum`.
//!
//! Operands are contracted from left to right, each pair by a matrix product. Shared axes that are summed over form the
//! inner dimension of the product; shared axes that are kept form its batch.

use super::math::matmul;
use super::{Node, Outputs, Result, Row, attrs, single_output};
use byoc_ir::ir::{AttrValue, Dim, ExprId};
use byoc_ir::op::einsum::{Equation, Label};
use byoc_ir::tensor::DType;

pub const ROWS: &[Row] = &[("Einsum", 12, einsum)];

fn einsum(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let inputs = n.all_inputs()?;
    let equation = n.str_attr("equation", "")?;
    if let Some((operands, result_labels)) = labeled_operands(n, &inputs, &equation)? {
        return single_output(contract(n, operands, &result_labels)?);
    }
    let operands = n.tuple(&inputs)?;
    single_output(n.op("einsum", &[operands], attrs![equation: equation.as_str()])?)
}

/// Value with a distinct label for each axis.
struct Labeled {
    value: ExprId,
    labels: Vec<Label>,
}

impl Labeled {
    /// Returns the dimensions of the axes with the given labels, each of which must be a label of the value.
    fn dims_of(&self, n: &mut Node<'_, '_>, labels: &[Label]) -> Result<Vec<Dim>> {
        let dims = n.dims(self.value)?;
        Ok(labels.iter().filter_map(|label| Some(dims[position(&self.labels, label)?].clone())).collect())
    }

    /// Transposes the value so that its axes are in the order of `labels`, a permutation of its labels.
    fn in_order(&self, n: &mut Node<'_, '_>, labels: &[Label]) -> Result<ExprId> {
        let axes: Vec<usize> = labels.iter().filter_map(|label| position(&self.labels, label)).collect();
        n.transpose(self.value, &axes)
    }
}

fn position(labels: &[Label], label: &Label) -> Option<usize> {
    labels.iter().position(|other| other == label)
}

/// Returns the operands and the labels of the result; `None` for cases that only the operator `einsum` supports: other
/// element types, diagonals, broadcast dimensions, and dimensions not known to be equal.
fn labeled_operands(
    n: &mut Node<'_, '_>,
    inputs: &[ExprId],
    equation: &str,
) -> Result<Option<(Vec<Labeled>, Vec<Label>)>> {
    let ranks = inputs.iter().map(|&input| n.rank(input)).collect::<Result<Vec<_>>>()?;
    let Ok(Equation { operands, result }) = Equation::parse(equation, &ranks) else { return Ok(None) };
    let mut sizes: Vec<(Label, Dim)> = Vec::new();
    for (labels, &input) in operands.iter().zip(inputs) {
        if !matches!(n.dtype(input)?, DType::F32 | DType::F16) {
            return Ok(None);
        }
        for (i, (label, dim)) in labels.iter().zip(n.dims(input)?).enumerate() {
            let size = sizes.iter().find(|(other, _)| other == label).map(|(_, size)| size);
            if labels[..i].contains(label) || dim == Dim::Any || size.is_some_and(|size| *size != dim) {
                return Ok(None);
            }
            if size.is_none() {
                sizes.push((*label, dim));
            }
        }
    }
    let operands = operands.into_iter().zip(inputs).map(|(labels, &value)| Labeled { value, labels });
    Ok(Some((operands.collect(), result)))
}

/// Contracts the operands from left to right, and returns the result with its axes in the order of `result_labels`.
fn contract(n: &mut Node<'_, '_>, operands: Vec<Labeled>, result_labels: &[Label]) -> Result<ExprId> {
    let mut operands = operands.into_iter();
    let Some(mut result) = operands.next() else { return Err(n.invalid_node("expected operands, found none")) };
    while let Some(operand) = operands.next() {
        let later = operands.as_slice();
        let is_kept =
            |label: &Label| result_labels.contains(label) || later.iter().any(|operand| operand.labels.contains(label));
        let result_sum = sum_except(n, &result, |label| is_kept(label) || operand.labels.contains(label))?;
        let operand = sum_except(n, &operand, |label| is_kept(label) || result_sum.labels.contains(label))?;
        result = pair(n, &result_sum, &operand, is_kept)?;
    }
    let result = sum_except(n, &result, |label| result_labels.contains(label))?;
    result.in_order(n, result_labels)
}

/// Sums over the axes whose labels are not kept.
fn sum_except(n: &mut Node<'_, '_>, operand: &Labeled, is_kept: impl Fn(&Label) -> bool) -> Result<Labeled> {
    let (kept, summed): (Vec<usize>, Vec<usize>) =
        (0..operand.labels.len()).partition(|&axis| is_kept(&operand.labels[axis]));
    let mut value = operand.value;
    if !summed.is_empty() {
        let axes = AttrValue::ints(summed.iter().map(|&axis| axis as i64));
        value = n.op("sum", &[value], attrs![axis: axes, keepdims: false])?;
    }
    Ok(Labeled { value, labels: kept.iter().map(|&axis| operand.labels[axis]).collect() })
}

/// Multiplies two operands, and sums over their shared axes that are not kept.
fn pair(n: &mut Node<'_, '_>, a: &Labeled, b: &Labeled, is_kept: impl Fn(&Label) -> bool) -> Result<Labeled> {
    let (shared, rows): (Vec<Label>, Vec<Label>) = a.labels.iter().partition(|label| b.labels.contains(label));
    let (batch, inner): (Vec<Label>, Vec<Label>) = shared.iter().partition(|label| is_kept(label));
    let columns: Vec<Label> = b.labels.iter().copied().filter(|label| !shared.contains(label)).collect();
    let (ordered_a, ordered_b) = (
        a.in_order(n, &[&batch[..], &rows, &inner].concat())?,
        b.in_order(n, &[&batch[..], &inner, &columns].concat())?,
    );
    let (batch_dims, row_dims, inner_dims, column_dims) =
        (a.dims_of(n, &batch)?, a.dims_of(n, &rows)?, a.dims_of(n, &inner)?, b.dims_of(n, &columns)?);
    let result_dims = [&batch_dims[..], &row_dims, &column_dims].concat();
    let value = if inner.is_empty() {
        let ones = vec![Dim::Fixed(1); columns.len()];
        let a = n.reshape_to(ordered_a, &[&batch_dims[..], &row_dims, &ones].concat())?;
        let ones = vec![Dim::Fixed(1); rows.len()];
        let b = n.reshape_to(ordered_b, &[&batch_dims[..], &ones, &column_dims].concat())?;
        n.op_without_attrs("multiply", &[a, b])?
    } else {
        let merged = |n: &Node<'_, '_>, dims: &[Dim]| Dim::product(dims).ok_or_else(|| n.product_error(dims));
        let (row_count, inner_count, column_count) =
            (merged(n, &row_dims)?, merged(n, &inner_dims)?, merged(n, &column_dims)?);
        // Without batch axes, the row axes are not merged: a product with a single matrix accepts any number of leading
        // axes.
        let rows_of_a = if batch.is_empty() && !rows.is_empty() { row_dims } else { vec![row_count] };
        let a = n.reshape_to(ordered_a, &[&batch_dims[..], &rows_of_a, std::slice::from_ref(&inner_count)].concat())?;
        let b = n.reshape_to(ordered_b, &[&batch_dims[..], &[inner_count, column_count]].concat())?;
        let product = matmul(n, a, b, None)?;
        n.reshape_to(product, &result_dims)?
    };
    Ok(Labeled { value, labels: [batch, rows, columns].concat() })
}

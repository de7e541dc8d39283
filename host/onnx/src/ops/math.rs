//! Matrix products, and cumulative sums and products along an axis.

use super::{Node, Outputs, Result, Row, attrs, single_output};
use byoc_ir::ir::{Attrs, Dim, ExprId};
use byoc_ir::tensor::DType;

pub const ROWS: &[Row] = &[
    ("CumProd", 26, |n| cumulate(n, "cumprod")),
    ("CumSum", 11, |n| cumulate(n, "cumsum")),
    ("Gemm", 7, gemm),
    ("MatMul", 1, mat_mul),
];

fn transpose(n: &mut Node<'_, '_>, matrix: ExprId) -> Result<ExprId> {
    n.transpose(matrix, &[1, 0])
}

/// Returns the attributes for `nn.dense`: the number of units, omitted if unknown.
fn with_units(units: &Dim) -> Attrs {
    units.fixed().map_or_else(|| attrs![], |units| attrs![units: units as i64])
}

pub(super) fn gemm(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (mut a, mut b) = (n.input(0)?, n.input(1)?);
    let (alpha, beta) = (n.float_attr("alpha", 1.0)?, n.float_attr("beta", 1.0)?);
    let (ty_a, ty_b) = (n.ty(a)?, n.ty(b)?);
    if ty_a.dims.len() != 2 || ty_b.dims.len() != 2 {
        return Err(n.invalid_node(format!("expected matrices, found {ty_a} and {ty_b}")));
    }
    if n.int_attr("transA", 0)? != 0 {
        a = transpose(n, a)?;
    }
    // The weight of `nn.dense` has the shape (units, in).
    let units = if n.int_attr("transB", 0)? != 0 {
        n.dims(b)?[0].clone()
    } else {
        b = transpose(n, b)?;
        n.dims(b)?[0].clone()
    };
    // 16-bit floats are scaled in float32, so that only the result is rounded.
    let dtype = n.dtype(a)?;
    if (alpha, beta) != (1.0, 1.0) {
        (a, b) = (n.widen(a)?, n.widen(b)?);
    }
    let compute_dtype = n.dtype(a)?;
    let mut product = n.op("nn.dense", &[a, b], with_units(&units))?;
    if alpha != 1.0 {
        product = n.with_scalar("multiply", product, alpha)?;
    }
    let Some(mut c) = n.optional_input(2).filter(|_| beta != 0.0) else {
        return single_output(n.cast(product, dtype)?);
    };
    c = n.cast(c, compute_dtype)?;
    if beta != 1.0 {
        c = n.with_scalar("multiply", c, beta)?;
    }
    let dims_c = n.dims(c)?;
    if matches!(dims_c.as_slice(), [one @ .., last] if *last == units && one.iter().all(|d| *d == Dim::Fixed(1)) && one.len() < 2)
    {
        let bias = n.reshape_to(c, &[units])?;
        let sum = n.op("nn.bias_add", &[product, bias], attrs![axis: 1])?;
        return single_output(n.cast(sum, dtype)?);
    }
    let sum = n.op_without_attrs("add", &[product, c])?;
    single_output(n.cast(sum, dtype)?)
}

fn mat_mul(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (a, b) = (n.input(0)?, n.input(1)?);
    single_output(matmul(n, a, b, None)?)
}

/// Creates a matrix product with the semantics of `numpy.matmul`. `quantized` holds the zero points and scales of
/// quantized operands; the result elements are then `int32` accumulators.
pub fn matmul(n: &mut Node<'_, '_>, a: ExprId, b: ExprId, quantized: Option<[ExprId; 4]>) -> Result<ExprId> {
    let (ty_a, ty_b) = (n.ty(a)?, n.ty(b)?);
    let (mut dims_a, mut dims_b) = (n.dims(a)?, n.dims(b)?);
    if dims_a.is_empty() || dims_b.is_empty() {
        return Err(n.invalid_node("expected operands of rank 1 or more, found a scalar"));
    }
    // A vector is treated as a matrix with one row (first operand) or one column (second operand); the added axis is
    // removed from the result.
    let (row, column) = (dims_a.len() == 1, dims_b.len() == 1);
    if row {
        dims_a.insert(0, Dim::Fixed(1));
    }
    if column {
        dims_b.push(Dim::Fixed(1));
    }
    let (a, b) = (n.reshape_to(a, &dims_a)?, n.reshape_to(b, &dims_b)?);
    let (m, k) = (dims_a[dims_a.len() - 2].clone(), &dims_a[dims_a.len() - 1]);
    let (k_b, columns) = (&dims_b[dims_b.len() - 2], dims_b[dims_b.len() - 1].clone());
    if k.fixed().zip(k_b.fixed()).is_some_and(|(k, k_b)| k != k_b) {
        return Err(
            n.invalid_node(format!("expected equal inner dimensions of {ty_a} and {ty_b}, found {k} and {k_b}"))
        );
    }
    let mut dims;
    let result = if dims_b.len() == 2 {
        let weight = transpose(n, b)?;
        dims = dims_a[..dims_a.len() - 1].to_vec();
        dims.push(columns.clone());
        match quantized {
            Some([a_zero, b_zero, a_scale, b_scale]) => {
                let args = [a, weight, a_zero, b_zero, a_scale, b_scale];
                n.op("qnn.dense", &args, with_units(&columns))?
            }
            None => n.op("nn.dense", &[a, weight], with_units(&columns))?,
        }
    } else {
        let batch = broadcast(&dims_a[..dims_a.len() - 2], &dims_b[..dims_b.len() - 2])
            .ok_or_else(|| n.invalid_node(format!("operands of types {ty_a} and {ty_b} do not broadcast")))?;
        let runtime_shape = if batch.contains(&Dim::Any) { Some(runtime_batch(n, [a, b])?) } else { None };
        let (matrices_a, matrices_b) = match runtime_shape {
            Some(batch) => (broadcast_to_batch(n, a, batch)?, broadcast_to_batch(n, b, batch)?),
            None => (reshape_to_batch(n, a, &dims_a, &batch)?, reshape_to_batch(n, b, &dims_b, &batch)?),
        };
        let attrs = attrs![transpose_a: false, transpose_b: false];
        let product = match quantized {
            Some([a_zero, b_zero, a_scale, b_scale]) => {
                n.op("qnn.batch_matmul", &[matrices_a, matrices_b, a_zero, b_zero, a_scale, b_scale], attrs)?
            }
            None => n.op("nn.batch_matmul", &[matrices_a, matrices_b], attrs)?,
        };
        dims = batch;
        dims.extend([m, columns]);
        match runtime_shape {
            Some(batch) => {
                let (rank_a, rank_b) = (n.rank(a)?, n.rank(b)?);
                let rows = n.shape_vector(a, rank_a - 2..rank_a - 1)?;
                let columns = n.shape_vector(b, rank_b - 1..rank_b)?;
                let shape = n.concatenate(&[batch, rows, columns], 0)?;
                let result = n.op("dyn.reshape", &[product, shape], attrs![allowzero: true])?;
                n.name_dims(result, &dims);
                dims = n.dims(result)?;
                result
            }
            None => n.reshape_to(product, &dims)?,
        }
    };
    if row {
        dims.remove(dims.len() - 2);
    }
    if column {
        dims.pop();
    }
    n.reshape_to(result, &dims)
}

/// Returns the broadcast batch shape of two operands, computed at run time.
fn runtime_batch(n: &mut Node<'_, '_>, operands: [ExprId; 2]) -> Result<ExprId> {
    let ranks = [n.rank(operands[0])? - 2, n.rank(operands[1])? - 2];
    let mut batches = operands;
    for (batch, rank) in batches.iter_mut().zip(ranks) {
        let batch_dims = n.shape_vector(*batch, 0..rank)?;
        let leading_ones = n.vector(&vec![1i64; ranks[0].max(ranks[1]) - rank]);
        *batch = n.concatenate(&[leading_ones, batch_dims], 0)?;
    }
    let one = n.scalar(DType::I64, 1.0);
    let is_one = n.op_without_attrs("equal", &[batches[0], one])?;
    n.op_without_attrs("where", &[is_one, batches[1], batches[0]])
}

/// Broadcasts an operand to a batch shape computed at run time, as (b, rows, columns).
fn broadcast_to_batch(n: &mut Node<'_, '_>, value: ExprId, batch: ExprId) -> Result<ExprId> {
    let rank = n.rank(value)?;
    let matrix = n.shape_vector(value, rank - 2..rank)?;
    let shape = n.concatenate(&[batch, matrix], 0)?;
    let expanded_value = n.op_without_attrs("dyn.broadcast_to", &[value, shape])?;
    let count = n.op("prod", &[batch], attrs![axis: [0], keepdims: true])?;
    let shape = n.concatenate(&[count, matrix], 0)?;
    n.op("dyn.reshape", &[expanded_value, shape], attrs![allowzero: true])
}

/// Reshapes an operand to (b, rows, columns), with one matrix per batch element, or a single matrix for the entire
/// batch.
fn reshape_to_batch(n: &mut Node<'_, '_>, value: ExprId, dims: &[Dim], batch: &[Dim]) -> Result<ExprId> {
    let (operand_batch, matrix) = dims.split_at(dims.len() - 2);
    let unit_dim = Dim::Fixed(1);
    let with_batch = |first: Dim| [first, matrix[0].clone(), matrix[1].clone()];
    if operand_batch.iter().all(|dim| *dim == unit_dim) {
        return n.reshape_to(value, &with_batch(unit_dim));
    }
    let batch_size = Dim::product(batch).ok_or_else(|| n.product_error(batch))?;
    let mut value = value;
    let leading_ones = operand_batch.iter().position(|dim| *dim != unit_dim).unwrap_or(0);
    let is_same_batch = operand_batch[leading_ones..] == batch[batch.len() - (operand_batch.len() - leading_ones)..];
    if !is_same_batch || Dim::product(operand_batch).as_ref() != Some(&batch_size) {
        let target_dims: Vec<Dim> = batch.iter().chain(matrix).cloned().collect();
        value = n.broadcast_to(value, &target_dims)?;
    }
    n.reshape_to(value, &with_batch(batch_size))
}

/// Returns the shape to which two shapes broadcast; `None` if they are incompatible.
pub fn broadcast(a: &[Dim], b: &[Dim]) -> Option<Vec<Dim>> {
    let rank = a.len().max(b.len());
    let unit_dim = Dim::Fixed(1);
    let dim = |dims: &[Dim], i: usize| {
        (i + dims.len()).checked_sub(rank).map_or(unit_dim.clone(), |index| dims[index].clone())
    };
    (0..rank)
        .map(|i| match (dim(a, i), dim(b, i)) {
            (x, y) if x == y => Some(x),
            (Dim::Fixed(1), other) | (other, Dim::Fixed(1)) => Some(other),
            (Dim::Fixed(_), Dim::Fixed(_)) => None,
            // An unknown dimension can only be 1 or equal to the known dimension.
            (Dim::Fixed(n), _) | (_, Dim::Fixed(n)) => Some(Dim::Fixed(n)),
            _ => Some(Dim::Any),
        })
        .collect()
}

/// Converts a cumulative sum or product along an axis; `reverse` starts at the end.
fn cumulate(n: &mut Node<'_, '_>, op: &str) -> Result<Outputs> {
    let data = n.input(0)?;
    let (exclusive, reverse) = (n.int_attr("exclusive", 0)? != 0, n.int_attr("reverse", 0)? != 0);
    let computed_axis = n.computed_input(1);
    let known_axis = match computed_axis {
        Some(_) => None,
        None => n.int(1, "axis")?,
    };
    let axis = known_axis.map(|axis| n.axis(axis, n.rank(data)?)).transpose()?;
    if axis.is_none() && computed_axis.is_none() {
        return Err(n.invalid_node("input 1 (axis) is missing"));
    }
    let mut apply_along = |op: &str, value: ExprId, attrs: Attrs| match (axis, computed_axis) {
        (None, Some(axis)) => n.op(&format!("dyn.{op}"), &[value, axis], attrs),
        (axis, _) => n.op(op, &[value], attrs.with("axis", axis.unwrap_or(0) as i64)),
    };
    let mut value = data;
    if reverse {
        value = apply_along("reverse", value, attrs![])?;
    }
    value = apply_along(op, value, attrs![exclusive: exclusive])?;
    if reverse {
        value = apply_along("reverse", value, attrs![])?;
    }
    single_output(value)
}

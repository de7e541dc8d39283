//! Matrix products and sums along an axis.

use super::{Fault, Node, Outputs, Row, attrs, one};
use byoc_core::ir::{AttrValue, ExprId};

pub const ROWS: &[Row] = &[("CumSum", 11, cum_sum), ("Gemm", 7, gemm), ("MatMul", 1, mat_mul)];

/// The matrix with rows and columns exchanged.
fn transposed(n: &mut Node<'_, '_>, matrix: ExprId) -> Result<ExprId, Fault> {
    n.transpose(matrix, &[1, 0])
}

fn gemm(n: &mut Node<'_, '_>) -> Outputs {
    let (mut a, mut b) = (n.input(0)?, n.input(1)?);
    let (alpha, beta) = (n.float_attr("alpha", 1.0)?, n.float_attr("beta", 1.0)?);
    let (shape_a, shape_b) = (n.shape(a)?, n.shape(b)?);
    if shape_a.len() != 2 || shape_b.len() != 2 {
        return Err(n.bad(format!("operands of shapes {shape_a:?} and {shape_b:?}, matrices are wanted")));
    }
    if n.int_attr("transA", 0)? != 0 {
        a = transposed(n, a)?;
    }
    // nn.dense wants its weight as (units, in).
    let units = if n.int_attr("transB", 0)? != 0 {
        shape_b[0]
    } else {
        b = transposed(n, b)?;
        shape_b[1]
    };
    let mut product = n.op("nn.dense", &[a, b], attrs![units: units as i64])?;
    if alpha != 1.0 {
        product = n.with_scalar("multiply", product, alpha)?;
    }
    let Some(mut c) = n.maybe(2).filter(|_| beta != 0.0) else { return one(product) };
    if beta != 1.0 {
        c = n.with_scalar("multiply", c, beta)?;
    }
    let shape_c = n.shape(c)?;
    if shape_c.iter().product::<usize>() == units && shape_c.last() == Some(&units) && shape_c.len() <= 2 {
        let bias = n.reshape(c, &[units])?;
        return one(n.op("nn.bias_add", &[product, bias], attrs![axis: 1])?);
    }
    one(n.plain("add", &[product, c])?)
}

fn mat_mul(n: &mut Node<'_, '_>) -> Outputs {
    let (a, b) = (n.input(0)?, n.input(1)?);
    one(product(n, a, b, None)?)
}

/// numpy's matmul. Of quantized operands with their zero points and scales the sums are `int32`.
pub fn product(n: &mut Node<'_, '_>, a: ExprId, b: ExprId, quantized: Option<[ExprId; 4]>) -> Result<ExprId, Fault> {
    let (mut shape_a, mut shape_b) = (n.shape(a)?.to_vec(), n.shape(b)?.to_vec());
    if shape_a.is_empty() || shape_b.is_empty() {
        return Err(n.bad("an operand is a scalar"));
    }
    // A vector is a matrix with one row (or column), which the result does not have.
    let (row, column) = (shape_a.len() == 1, shape_b.len() == 1);
    if row {
        shape_a.insert(0, 1);
    }
    if column {
        shape_b.push(1);
    }
    let (a, b) = (n.reshape(a, &shape_a)?, n.reshape(b, &shape_b)?);
    let (m, k) = (shape_a[shape_a.len() - 2], shape_a[shape_a.len() - 1]);
    let (k_b, columns) = (shape_b[shape_b.len() - 2], shape_b[shape_b.len() - 1]);
    if k != k_b {
        return Err(n.bad(format!("shapes {shape_a:?} and {shape_b:?} do not match: {k} columns against {k_b} rows")));
    }
    let mut shape;
    let result = if shape_b.len() == 2 {
        let weight = transposed(n, b)?;
        shape = shape_a[..shape_a.len() - 1].to_vec();
        shape.push(columns);
        match quantized {
            Some([a_zero, b_zero, a_scale, b_scale]) => {
                let args = [a, weight, a_zero, b_zero, a_scale, b_scale];
                n.op("qnn.dense", &args, attrs![units: columns as i64])?
            }
            None => n.op("nn.dense", &[a, weight], attrs![units: columns as i64])?,
        }
    } else {
        let batch = broadcast(&shape_a[..shape_a.len() - 2], &shape_b[..shape_b.len() - 2])
            .ok_or_else(|| n.bad(format!("shapes {shape_a:?} and {shape_b:?} do not broadcast")))?;
        let a = batched(n, a, &shape_a, &batch)?;
        let b = batched(n, b, &shape_b, &batch)?;
        let attrs = attrs![transpose_a: false, transpose_b: false];
        let product = match quantized {
            Some([a_zero, b_zero, a_scale, b_scale]) => {
                n.op("qnn.batch_matmul", &[a, b, a_zero, b_zero, a_scale, b_scale], attrs)?
            }
            None => n.op("nn.batch_matmul", &[a, b], attrs)?,
        };
        shape = batch;
        shape.extend([m, columns]);
        n.reshape(product, &shape)?
    };
    if row {
        shape.remove(shape.len() - 2);
    }
    if column {
        shape.pop();
    }
    n.reshape(result, &shape)
}

/// Matrices (b, rows, columns), one for each of the batch, or one for all.
fn batched(n: &mut Node<'_, '_>, value: ExprId, shape: &[usize], batch: &[usize]) -> Result<ExprId, Fault> {
    let (own, matrix) = shape.split_at(shape.len() - 2);
    let all: usize = batch.iter().product();
    if own.iter().all(|&d| d == 1) {
        return n.reshape(value, &[1, matrix[0], matrix[1]]);
    }
    let mut value = value;
    let leading = own.iter().position(|&d| d != 1).unwrap_or(0);
    if own[leading..] != batch[batch.len() - (own.len() - leading)..] || own.iter().product::<usize>() != all {
        let wanted: Vec<i64> = batch.iter().chain(matrix).map(|&d| d as i64).collect();
        value = n.op("broadcast_to", &[value], attrs![shape: AttrValue::from(wanted)])?;
    }
    n.reshape(value, &[all, matrix[0], matrix[1]])
}

/// The shape that two shapes broadcast to.
pub fn broadcast(a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
    let rank = a.len().max(b.len());
    let dim = |shape: &[usize], i: usize| (i + shape.len()).checked_sub(rank).map_or(1, |at| shape[at]);
    (0..rank)
        .map(|i| match (dim(a, i), dim(b, i)) {
            (x, y) if x == y => Some(x),
            (1, y) => Some(y),
            (x, 1) => Some(x),
            _ => None,
        })
        .collect()
}

fn cum_sum(n: &mut Node<'_, '_>) -> Outputs {
    let data = n.input(0)?;
    let axis = n.int(1, "axis")?.ok_or_else(|| n.bad("the axis is missing"))?;
    let axis = n.axis(axis, n.rank(data)?)? as i64;
    let (exclusive, reverse) = (n.int_attr("exclusive", 0)? != 0, n.int_attr("reverse", 0)? != 0);
    let mut value = data;
    if reverse {
        value = n.op("reverse", &[value], attrs![axis: axis])?;
    }
    value = n.op("cumsum", &[value], attrs![axis: axis, exclusive: exclusive])?;
    if reverse {
        value = n.op("reverse", &[value], attrs![axis: axis])?;
    }
    one(value)
}

//! Weights of recurrent layers: of floats, or of integers with a scale.

use super::{Node, Result, attrs};
use crate::ops::quant::dynamic_matmul;
use byoc_ir::ir::ExprId;
use byoc_ir::tensor::DType;

/// Weights of all directions.
pub(super) enum Weights {
    /// (directions, rows, columns).
    Float(ExprId),
    /// Integers, (directions, columns, rows), their zero points and scales, (directions, 1, 1 or rows).
    Quantized { integers: ExprId, zero_points: ExprId, scales: ExprId },
}

impl Weights {
    /// Reads float weights, with 16-bit floats cast to float32.
    pub(super) fn read_float(n: &mut Node<'_, '_>, i: usize) -> Result<Weights> {
        let value = n.input(i)?;
        Ok(Weights::Float(n.widen(value)?))
    }

    /// Reads integer weights, with their scale and zero point at two further inputs.
    pub(super) fn read_quantized(n: &mut Node<'_, '_>, i: usize, [scale, zero_point]: [usize; 2]) -> Result<Weights> {
        let (integers, scales, zero_points) = (n.input(i)?, n.input(scale)?, n.input(zero_point)?);
        let shape = n.shape(integers)?;
        let [directions, _, rows] = shape[..] else {
            return Err(n.invalid_node(format!("input {i}: expected weights of rank 3, found {}", n.ty(integers)?)));
        };
        let (dtype, found) = (n.dtype(integers)?, n.dtype(zero_points)?);
        if found != dtype {
            return Err(n.invalid_node(format!(
                "input {zero_point} (zero point): expected {dtype}, the type of the weights, found {found}"
            )));
        }
        let mut per_direction = |value: ExprId| match n.shape(value)?[..] {
            [] if directions == 1 => n.reshape(value, &[1, 1, 1]),
            [count] if count == directions => n.reshape(value, &[directions, 1, 1]),
            [count, row_count] if [count, row_count] == [directions, rows] => n.reshape(value, &[directions, 1, rows]),
            _ => {
                let found = n.ty(value)?;
                Err(n.invalid_node(format!(
                    "scale or zero point: expected shape [{directions}] or [{directions}, {rows}], found {found}"
                )))
            }
        };
        let (scales, zero_points) = (per_direction(scales)?, per_direction(zero_points)?);
        let zero_points = n.cast(zero_points, DType::I32)?;
        Ok(Weights::Quantized { integers, zero_points, scales })
    }

    /// Returns the shape of the weights as (directions, rows, columns).
    pub(super) fn shape(&self, n: &Node<'_, '_>) -> Result<Vec<usize>> {
        Ok(match *self {
            Weights::Float(value) => n.shape(value)?.to_vec(),
            Weights::Quantized { integers, .. } => {
                let mut shape = n.shape(integers)?.to_vec();
                shape.swap(1, 2);
                shape
            }
        })
    }

    /// Returns the weights of direction `d`.
    pub(super) fn matrix(&self, n: &mut Node<'_, '_>, d: usize) -> Result<Matrix> {
        let part = |n: &mut Node<'_, '_>, value: ExprId| {
            let direction_slice = n.slice(value, 0, d, d + 1)?;
            let shape = n.shape(value)?;
            n.reshape(direction_slice, &shape[1..])
        };
        Ok(match *self {
            Weights::Float(value) => Matrix::Float(part(n, value)?),
            Weights::Quantized { integers, zero_points, scales } => {
                let (zero_points, scales) = (part(n, zero_points)?, part(n, scales)?);
                let shape = n.shape(zero_points)?;
                let zero_points = n.reshape(zero_points, if shape[1] == 1 { &[] } else { &shape[1..] })?;
                Matrix::Quantized { integers: part(n, integers)?, zero_points, scales }
            }
        })
    }
}

/// Weights of one direction.
#[derive(Clone, Copy)]
pub(super) enum Matrix {
    /// (rows, columns).
    Float(ExprId),
    /// Integers (columns, rows), zero points, a scalar or (rows), and scales (1, 1 or rows).
    Quantized { integers: ExprId, zero_points: ExprId, scales: ExprId },
}

impl Matrix {
    /// Multiplies (batch, columns) by the transposed matrix, which has `row_count` rows.
    pub(super) fn multiply(self, n: &mut Node<'_, '_>, data: ExprId, row_count: usize) -> Result<ExprId> {
        match self {
            Matrix::Float(weight) => n.op("nn.dense", &[data, weight], attrs![units: row_count as i64]),
            Matrix::Quantized { integers, zero_points, scales } => {
                dynamic_matmul(n, data, [integers, zero_points, scales])
            }
        }
    }

    /// Returns the matrix with its tensors replaced by captured variables of the innermost function.
    pub(super) fn capture(self, n: &mut Node<'_, '_>) -> Matrix {
        match self {
            Matrix::Float(weight) => Matrix::Float(n.capture(weight)),
            Matrix::Quantized { integers, zero_points, scales } => Matrix::Quantized {
                integers: n.capture(integers),
                zero_points: n.capture(zero_points),
                scales: n.capture(scales),
            },
        }
    }

    /// Returns the rows from `begin` to `end`.
    pub(super) fn rows(self, n: &mut Node<'_, '_>, begin: usize, end: usize) -> Result<Matrix> {
        Ok(match self {
            Matrix::Float(weight) => Matrix::Float(n.slice(weight, 0, begin, end)?),
            Matrix::Quantized { integers, zero_points, scales } => {
                let has_row_scales = n.shape(scales)?[1] > 1;
                let scales = if has_row_scales { n.slice(scales, 1, begin, end)? } else { scales };
                let has_row_zero_points = n.rank(zero_points)? > 0;
                let zero_points = if has_row_zero_points { n.slice(zero_points, 0, begin, end)? } else { zero_points };
                Matrix::Quantized { integers: n.slice(integers, 1, begin, end)?, zero_points, scales }
            }
        })
    }
}

//! Linear algebra on batches of square matrices.

use super::scalar::Writer;
use crate::ir::Type;
use crate::op::facts::{Properties, elements_of};

operator! {
    name: "linalg.det",
    doc: "Determinants of the matrices in the last two axes.",
    inputs: &["data"],
    relation: |relation| {
        let data = relation.tensor(0)?;
        let [batch @ .., rows, columns] = &data.dims[..] else {
            return Err(relation.mismatch(format!("data: expected matrices, found {}", relation.args[0])));
        };
        if !data.dtype.is_float() {
            return Err(relation.mismatch(format!("data: expected floats, found {}", data.dtype)));
        }
        relation.same_dim("rows and columns", rows, columns)?;
        Ok(Type::tensor_of(data.dtype, batch.to_vec()))
    },
    reference: Some(|_, inputs, outputs| {
        let size = inputs[0].shape.last().copied().unwrap_or(0);
        let data = inputs[0].to_f64s();
        let matrix = |i: usize| data[i * size * size..][..size * size].to_vec();
        let values: Vec<f64> = (0..outputs[0].len()).map(|i| determinant(matrix(i), size)).collect();
        Writer::new(&mut outputs[0]).store(values);
        Ok(())
    }),
    flops: |cost| cost.arg_len(0),
    properties: Properties::EXACT.stable(elements_of::<0>),
}

/// Computes a determinant by Gaussian elimination with partial pivoting.
fn determinant(mut matrix: Vec<f64>, size: usize) -> f64 {
    let mut product = 1.0;
    for column in 0..size {
        let magnitude = |row: &usize| matrix[row * size + column].abs();
        let pivot = (column..size).max_by(|a, b| magnitude(a).total_cmp(&magnitude(b))).unwrap_or(column);
        if matrix[pivot * size + column] == 0.0 {
            return 0.0;
        }
        if pivot != column {
            (0..size).for_each(|i| matrix.swap(pivot * size + i, column * size + i));
            product = -product;
        }
        let head = matrix[column * size + column];
        product *= head;
        for row in column + 1..size {
            let factor = matrix[row * size + column] / head;
            for i in column..size {
                matrix[row * size + i] -= factor * matrix[column * size + i];
            }
        }
    }
    product
}

//! Matrix products: `nn.dense`, `nn.matmul`, `nn.batch_matmul`.

use super::contraction::Contraction;
use super::panels::Operand;
use super::{Lowering, Result};
use byoc_plugin_support::region::Op;
use byoc_plugin_support::view::View;

impl Lowering<'_, '_> {
    /// Lowers a matrix product.
    pub fn matrix_product(&mut self, group_index: usize, op: &Op<'_>) -> Result<()> {
        let a = self.resolve(op.inputs[0])?;
        let b = self.resolve(op.inputs[1])?;
        let is_a_transposed = op.name != "nn.dense" && op.attrs().flag("transpose_a", false);
        let is_b_transposed = op.name == "nn.dense" || op.attrs().flag("transpose_b", false);
        let rank = self.ir.shape(op.outputs[0]).len();
        let body = self.body(group_index, Some(&(0..rank).collect::<Vec<_>>()))?;
        let (a_rank, b_rank) = (a.view.shape.len(), b.view.shape.len());
        let (b_k, b_column) = if is_b_transposed { (b_rank - 1, b_rank - 2) } else { (b_rank - 2, b_rank - 1) };
        let a_k = if is_a_transposed { a_rank - 2 } else { a_rank - 1 };
        let batch = if op.name == "nn.batch_matmul" { rank - 2 } else { 0 };
        let is_broadcast =
            |view: &View, d: usize| if view.shape[d] == 1 { (1, 0) } else { (view.shape[d], view.strides[d]) };
        let mut strides: Vec<i64> = (0..batch).map(|d| is_broadcast(&a.view, d).1).collect();
        if batch > 0 {
            let row = if is_a_transposed { a_rank - 1 } else { a_rank - 2 };
            strides.push(a.view.strides[row]);
        } else {
            // The data of a dense operator may have any rank; a vector has no row dimension.
            strides.extend((0..a_rank).filter(|&d| d != a_k).map(|d| a.view.strides[d]));
        }
        strides.push(0);
        let domain = body.domain.clone();
        let contraction = Contraction {
            batch,
            a: a.place,
            a_view: View { shape: domain, strides, offset: a.view.offset },
            taps: Vec::new(),
            k: (a.view.shape[a_k], a.view.strides[a_k]),
            b: Operand {
                outer: (0..batch).map(|d| is_broadcast(&b.view, d)).collect(),
                columns: (b.view.shape[b_column], b.view.strides[b_column]),
                inner: vec![(b.view.shape[b_k], b.view.strides[b_k])],
                storage: b,
            },
            body,
        };
        self.contraction(group_index, contraction)
    }
}

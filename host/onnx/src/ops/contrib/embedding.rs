//! Sums of word, position and segment embeddings, followed by layer normalization.

use super::{Node, Outputs, Result, Row, attrs};
use crate::ops::norm;
use crate::ops::quant::{scale, zero_point};
use byoc_ir::ir::ExprId;
use byoc_ir::tensor::DType;

pub const ROWS: &[Row] =
    &[("EmbedLayerNormalization", 1, embed_layer_norm), ("QEmbedLayerNormalization", 1, quantized_embed_layer_norm)];

/// Embedding tables in the order of the inputs: words, positions, segments.
type Tables = [Option<Table>; 3];

/// Embedding table; `quantization` holds the inputs of its scale and zero point.
#[derive(Clone, Copy)]
struct Table {
    values: ExprId,
    quantization: Option<[usize; 2]>,
}

impl Table {
    fn lookup(self, n: &mut Node<'_, '_>, indices: ExprId) -> Result<ExprId> {
        let rows = n.op("take", &[self.values, indices], attrs![axis: 0, mode: "fast"])?;
        match self.quantization {
            Some(parameters) => dequantize(n, rows, parameters),
            None => Ok(rows),
        }
    }
}

/// Dequantizes a value; the parameters are the inputs of its scale and zero point.
fn dequantize(n: &mut Node<'_, '_>, value: ExprId, [scale_input, zero_point_input]: [usize; 2]) -> Result<ExprId> {
    let (scale, zero_point) = (scale(n, scale_input)?, zero_point(n, zero_point_input, n.dtype(value)?)?);
    n.op("qnn.dequantize", &[value, scale, zero_point], attrs![axis: -1, out_dtype: DType::F32])
}

fn embed_layer_norm(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let table = |values: ExprId| Table { values, quantization: None };
    let tables = [Some(table(n.input(2)?)), Some(table(n.input(3)?)), n.optional_input(4).map(table)];
    let sum = sum_of_rows(n, tables, n.optional_input(8))?;
    let normalized_sum = normalize(n, sum, [n.input(5)?, n.input(6)?])?;
    let lengths = lengths(n, n.optional_input(7))?;
    Ok(vec![normalized_sum, lengths, sum])
}

fn quantized_embed_layer_norm(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let table = |values: ExprId, i: usize| Table { values, quantization: Some([8 + i, 13 + i]) };
    let segments = n.optional_input(4).map(|values| table(values, 2));
    let tables = [Some(table(n.input(2)?, 0)), Some(table(n.input(3)?, 1)), segments];
    let sum = sum_of_rows(n, tables, None)?;
    let (gamma, beta) = (n.input(5)?, n.input(6)?);
    let parameters = [dequantize(n, gamma, [11, 16])?, dequantize(n, beta, [12, 17])?];
    let normalized_sum = normalize(n, sum, parameters)?;
    let lengths = lengths(n, n.optional_input(7))?;
    Ok(vec![normalized_sum, lengths])
}

/// Adds the rows of all tables, for the word indices at input 0 and the segment indices at input 1. The positions are 0,
/// 1, .. by default.
fn sum_of_rows(n: &mut Node<'_, '_>, [words, places, segments]: Tables, positions: Option<ExprId>) -> Result<ExprId> {
    let word_ids = n.input(0)?;
    let positions = match positions {
        Some(positions) => positions,
        None => n.indices_along(word_ids, 1)?,
    };
    let mut sum: Option<ExprId> = None;
    for (table, indices) in [(words, Some(word_ids)), (places, Some(positions)), (segments, n.optional_input(1))] {
        let (Some(table), Some(indices)) = (table, indices) else { continue };
        let rows = table.lookup(n, indices)?;
        sum = Some(match sum {
            Some(sum) => n.op_without_attrs("add", &[sum, rows])?,
            None => rows,
        });
    }
    sum.ok_or_else(|| n.invalid_node("expected an embedding table, found none"))
}

fn normalize(n: &mut Node<'_, '_>, sum: ExprId, [gamma, beta]: [ExprId; 2]) -> Result<ExprId> {
    let epsilon = n.float_attr("epsilon", 1e-12)?;
    norm::layer_norm_of(n, sum, gamma, Some(beta), epsilon)
}

/// Returns the number of elements of each sequence that the mask keeps, or 0 without a mask.
fn lengths(n: &mut Node<'_, '_>, mask: Option<ExprId>) -> Result<ExprId> {
    let lengths = match mask {
        Some(mask) => n.op("sum", &[mask], attrs![axis: [1]])?,
        None => {
            let word_ids = n.input(0)?;
            let sums = n.op("sum", &[word_ids], attrs![axis: [1]])?;
            n.op_without_attrs("zeros_like", &[sums])?
        }
    };
    n.cast(lengths, DType::I32)
}

//! Attention of language models: heads, key-value caches, masks and rotary positions.

use super::quantized::matmul_to_float;
use super::{Node, Outputs, Result, Row, attrs, math, single_output};
use crate::ops::attention::split_heads;
use crate::ops::embedding::rotate_heads;
use byoc_ir::ir::{Dim, ExprId};
use byoc_ir::tensor::DType;

pub const ROWS: &[Row] = &[
    ("Attention", 1, attention),
    ("MultiHeadAttention", 1, multi_head),
    ("QAttention", 1, quantized_attention),
    ("RotaryEmbedding", 1, rotary),
];

/// Queries, keys and values, each (batch, heads, sequence, head size).
#[derive(Clone, Copy)]
pub(super) struct Heads {
    pub(super) query: ExprId,
    pub(super) key: ExprId,
    pub(super) value: ExprId,
}

/// Terms of the logits and of the softmax over them.
#[derive(Clone, Copy, Default)]
pub(super) struct Logits {
    pub(super) bias: Option<ExprId>,
    /// Bound of the scaled products; 0 for none.
    pub(super) softcap: f64,
    /// Logits (1, heads, 1, 1) that take part in the softmax and select no value.
    pub(super) sink: Option<ExprId>,
}

/// Computes softmax(scale * Q * K^T + bias) * V, with the shape (batch, sequence, heads * size).
pub(super) fn attend(n: &mut Node<'_, '_>, heads: Heads, terms: Logits) -> Result<ExprId> {
    let [_, _, _, size] = n.dims_of_rank(heads.query)?;
    let size = size.fixed().ok_or_else(|| n.invalid_node(format!("expected a known head size, found {size}")))?;
    let scale = match n.float_attr("scale", 0.0)? {
        0.0 => 1.0 / (size as f64).sqrt(),
        scale => scale,
    };
    let query = n.with_scalar("multiply", heads.query, scale)?;
    let transposed_key = n.transpose(heads.key, &[0, 1, 3, 2])?;
    let mut logits = math::matmul(n, query, transposed_key, None)?;
    if terms.softcap > 0.0 {
        let ratio = n.with_scalar("divide", logits, terms.softcap)?;
        let tanh = n.op_without_attrs("tanh", &[ratio])?;
        logits = n.with_scalar("multiply", tanh, terms.softcap)?;
    }
    if let Some(bias) = terms.bias {
        logits = n.op_without_attrs("add", &[logits, bias])?;
    }
    let weights = match terms.sink {
        Some(sink) => softmax_with_sink(n, logits, sink)?,
        None => n.op("nn.softmax", &[logits], attrs![axis: -1])?,
    };
    let result = math::matmul(n, weights, heads.value, None)?;
    join_heads(n, result)
}

/// Computes exp(x - m) / (sum(exp(x - m)) + exp(sink - m)) over the last axis, where m is the maximum of all logits.
fn softmax_with_sink(n: &mut Node<'_, '_>, logits: ExprId, sink: ExprId) -> Result<ExprId> {
    let max = n.op("max", &[logits], attrs![axis: [-1], keepdims: true])?;
    let max = n.op_without_attrs("maximum", &[max, sink])?;
    let mut power = |x: ExprId| {
        let difference = n.op_without_attrs("subtract", &[x, max])?;
        n.op_without_attrs("exp", &[difference])
    };
    let (powers, sink_power) = (power(logits)?, power(sink)?);
    let sum = n.op("sum", &[powers], attrs![axis: [-1], keepdims: true])?;
    let sum = n.op_without_attrs("add", &[sum, sink_power])?;
    n.op_without_attrs("divide", &[powers, sum])
}

/// Converts (batch, heads, sequence, size) to (batch, sequence, heads * size).
fn join_heads(n: &mut Node<'_, '_>, x: ExprId) -> Result<ExprId> {
    let [batch, heads, length, size] = n.dims_of_rank(x)?;
    let hidden_size = Dim::product(&[heads, size]).unwrap_or(Dim::Any);
    let rows = n.transpose(x, &[0, 2, 1, 3])?;
    n.reshape_to(rows, &[batch, length, hidden_size])
}

/// Adds two optional logit terms.
pub(super) fn add(n: &mut Node<'_, '_>, a: Option<ExprId>, b: Option<ExprId>) -> Result<Option<ExprId>> {
    match (a, b) {
        (Some(a), Some(b)) => n.op_without_attrs("add", &[a, b]).map(Some),
        (a, b) => Ok(a.or(b)),
    }
}

/// Returns 0 where `is_visible` is true, and `masked_value` elsewhere.
pub(super) fn penalty(n: &mut Node<'_, '_>, is_visible: ExprId, dtype: DType, masked_value: f64) -> Result<ExprId> {
    let (zero, masked_value) = (n.scalar(dtype, 0.0), n.scalar(dtype, masked_value));
    n.op_without_attrs("where", &[is_visible, zero, masked_value])
}

/// Returns a mask of the non-padding keys. `mask` is a mask of shape (batch, keys), (batch, queries, keys) or
/// (batch, 1, queries, keys), or holds the sequence lengths and has the shape (batch).
fn padding_mask(n: &mut Node<'_, '_>, mask: ExprId, key: ExprId) -> Result<ExprId> {
    let rank = n.rank(mask)?;
    if rank == 1 {
        if n.dims(mask)? != n.dims(key)?[..1] {
            let (expected, found) = (n.dims(key)?[0].clone(), n.dims(mask)?[0].clone());
            return Err(n.invalid_node(format!("mask: expected {expected} lengths, one per sequence, found {found}")));
        }
        let positions = n.indices_along(key, 2)?;
        let positions = n.transpose(positions, &[0, 1, 3, 2])?;
        let lengths = n.cast(mask, DType::I64)?;
        let mut position_dims = vec![Dim::Fixed(1); 4];
        position_dims[0] = n.dims(mask)?[0].clone();
        let lengths = n.reshape_to(lengths, &position_dims)?;
        return n.op_without_attrs("less", &[positions, lengths]);
    }
    let axes: &[i64] = match rank {
        2 => &[1, 2],
        3 => &[1],
        4 => &[],
        _ => return Err(n.invalid_node(format!("mask: expected rank 1 to 4, found {rank}"))),
    };
    let mut value = n.cast(mask, DType::Bool)?;
    for &axis in axes {
        value = n.op("expand_dims", &[value], attrs![axis: axis])?;
    }
    Ok(value)
}

/// Returns the causal mask: true where the key is not after the query. With S queries and T keys, query i is at
/// position T - S + i.
fn causal_mask(n: &mut Node<'_, '_>, query: ExprId, key: ExprId) -> Result<ExprId> {
    let rows = n.indices_along(query, 2)?;
    let (keys, queries) = (n.shape_vector(key, 2..3)?, n.shape_vector(query, 2..3)?);
    let offset = n.op_without_attrs("subtract", &[keys, queries])?;
    let rows = n.op_without_attrs("add", &[rows, offset])?;
    let columns = n.indices_along(key, 2)?;
    let columns = n.transpose(columns, &[0, 1, 3, 2])?;
    n.op_without_attrs("less_equal", &[columns, rows])
}

/// Returns the logit terms for a padding mask and, if the attribute `unidirectional` is set, for the causal mask.
fn mask_bias(n: &mut Node<'_, '_>, query: ExprId, key: ExprId, mask: Option<ExprId>) -> Result<Option<ExprId>> {
    let dtype = n.dtype(query)?;
    let filter_value = n.float_attr("mask_filter_value", -10000.0)?;
    let padding = match mask {
        Some(mask) => {
            let is_visible = padding_mask(n, mask, key)?;
            Some(penalty(n, is_visible, dtype, filter_value)?)
        }
        None => None,
    };
    let order = if n.int_attr("unidirectional", 0)? != 0 {
        let is_visible = causal_mask(n, query, key)?;
        Some(penalty(n, is_visible, dtype, f64::NEG_INFINITY)?)
    } else {
        None
    };
    add(n, padding, order)
}

/// Converts Attention: projects the input to queries, keys and values, and computes their attention.
fn attention(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (data, weights) = (n.input(0)?, n.input(1)?);
    let mut projection = math::matmul(n, data, weights, None)?;
    if let Some(bias) = n.optional_input(2) {
        projection = n.op_without_attrs("add", &[projection, bias])?;
    }
    let context = Context { mask: n.optional_input(3), past_state: n.optional_input(4), bias: n.optional_input(5) };
    attention_of(n, projection, context)
}

/// Converts QAttention: an Attention whose projection is computed with integers.
fn quantized_attention(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (operands, scales) = ([n.input(0)?, n.input(1)?], [n.input(3)?, n.input(4)?]);
    let projection = matmul_to_float(n, operands, [6, 7], scales, 2)?;
    let context = Context { mask: n.optional_input(5), past_state: n.optional_input(8), bias: None };
    attention_of(n, projection, context)
}

/// Optional inputs of an attention.
#[derive(Clone, Copy)]
struct Context {
    mask: Option<ExprId>,
    /// Keys and values of earlier elements, (2, batch, heads, sequence, head size).
    past_state: Option<ExprId>,
    bias: Option<ExprId>,
}

/// Splits a projection into queries, keys and values, and computes their attention.
fn attention_of(n: &mut Node<'_, '_>, projection: ExprId, context: Context) -> Result<Outputs> {
    if n.int_attr("do_rotary", 0)? != 0 || n.int_attr("past_present_share_buffer", 0)? != 0 {
        return Err(n.invalid_node("attributes do_rotary and past_present_share_buffer are not supported"));
    }
    let [_, _, width] = n.dims_of_rank(projection)?;
    let width =
        width.fixed().ok_or_else(|| n.invalid_node(format!("expected weights of a known width, found {width}")))?;
    let sizes = match n.ints_attr("qkv_hidden_sizes")? {
        Some(sizes) => sizes.iter().map(|&size| usize::try_from(size).unwrap_or(0)).collect(),
        None => vec![width / 3; 3],
    };
    if sizes.len() != 3 || sizes.iter().fold(0, |sum: usize, &size| sum.saturating_add(size)) != width {
        return Err(n.invalid_node(format!("expected Q, K and V widths that sum to {width}, found {sizes:?}")));
    }
    let heads = n.int_attr("num_heads", 0)?;
    let mut begin = 0;
    let mut part = |n: &mut Node<'_, '_>, size: usize| {
        let slice = n.slice(projection, 2, begin, begin + size)?;
        begin += size;
        split_heads(n, slice, heads)
    };
    let (query, mut key, mut value) = (part(n, sizes[0])?, part(n, sizes[1])?, part(n, sizes[2])?);
    if let Some(past_state) = context.past_state {
        let mut concatenate_past = |i: usize, new: ExprId| {
            let past_half = n.slice(past_state, 0, i, i + 1)?;
            let past_half = n.op("squeeze", &[past_half], attrs![axis: [0]])?;
            n.concatenate(&[past_half, new], 2)
        };
        (key, value) = (concatenate_past(0, key)?, concatenate_past(1, value)?);
    }
    let bias = mask_bias(n, query, key, context.mask)?;
    let bias = add(n, bias, context.bias)?;
    let result = attend(n, Heads { query, key, value }, Logits { bias, ..Logits::default() })?;
    let pair = n.tuple(&[key, value])?;
    Ok(vec![result, n.op("stack", &[pair], attrs![axis: 0])?])
}

fn multi_head(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (query, key, value) = (n.input(0)?, n.optional_input(1), n.optional_input(2));
    let count = n.int_attr("num_heads", 0)?;
    let bias = n.optional_input(3);
    let mut begin = 0;
    // Adds the next slice of the bias to the query, key or value, and splits the sum into heads. A tensor of rank 4 is
    // already split, and is returned unchanged.
    let mut heads = |n: &mut Node<'_, '_>, mut x: ExprId| {
        if n.rank(x)? == 4 {
            return Ok(x);
        }
        if let Some(bias) = bias {
            let [_, _, width] = n.dims_of_rank(x)?;
            let width =
                width.fixed().ok_or_else(|| n.invalid_node(format!("expected a known width, found {width}")))?;
            let part = n.slice(bias, 0, begin, begin + width)?;
            begin += width;
            x = n.op_without_attrs("add", &[x, part])?;
        }
        split_heads(n, x, count)
    };
    let Heads { query, mut key, mut value } = match (key, value) {
        (Some(key), Some(value)) => Heads { query: heads(n, query)?, key: heads(n, key)?, value: heads(n, value)? },
        _ => return Err(n.invalid_node("expected separate inputs for query, key and value, found a packed tensor")),
    };
    if n.optional_input(8).is_some() || n.optional_input(9).is_some() {
        return Err(n.invalid_node("shared key and value buffers (inputs 8 and 9) are not supported"));
    }
    if let (Some(past_key), Some(past_value)) = (n.optional_input(6), n.optional_input(7)) {
        key = n.concatenate(&[past_key, key], 2)?;
        value = n.concatenate(&[past_value, value], 2)?;
    }
    let mask = n.optional_input(4);
    let bias = mask_bias(n, query, key, mask)?;
    let bias = add(n, bias, n.optional_input(5))?;
    let result = attend(n, Heads { query, key, value }, Logits { bias, ..Logits::default() })?;
    Ok(vec![result, key, value])
}

/// Returns the cosines or sines from input `i` at `positions`, in a shape that broadcasts over the heads.
pub(super) fn angles(n: &mut Node<'_, '_>, i: usize, positions: ExprId) -> Result<ExprId> {
    let cache = n.input(i)?;
    let rows = n.op("take", &[cache, positions], attrs![axis: 0, mode: "fast"])?;
    n.op("expand_dims", &[rows], attrs![axis: 1])
}

/// Applies rotary position embedding to (batch, sequence, heads * size) or (batch, heads, sequence, size).
fn rotary(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (data, positions) = (n.input(0)?, n.input(1)?);
    let (input_dims, flat) = (n.dims(data)?, n.rank(data)? == 3);
    if n.int_attr("is_packed_batching", 0)? != 0 || n.float_attr("scale", 1.0)? != 1.0 {
        return Err(n.invalid_node("attributes is_packed_batching and scale are not supported"));
    }
    let cos = n.input(2)?;
    let [_, half_size] = n.dims_of_rank(cos)?;
    let half_size = half_size
        .fixed()
        .ok_or_else(|| n.invalid_node(format!("expected a known number of angles, found {half_size}")))?;
    let rotary_size = match n.int_attr("rotary_embedding_dim", 0)? {
        0 => 2 * half_size as i64,
        part => part,
    };
    let x = if flat {
        let heads = match n.int_attr("num_heads", 0)? {
            0 => input_dims[2].fixed().map_or(0, |width| width as i64) / rotary_size.max(1),
            heads => heads,
        };
        split_heads(n, data, heads)?
    } else {
        data
    };
    // `positions` holds one offset for all sequences, or one position per sequence element.
    let positions = if n.rank(positions)? == 1 {
        let steps = n.indices_along(x, 2)?;
        let steps = n.op("reshape", &[steps], attrs![newshape: [1, -1]])?;
        let offset = n.reshape(positions, &[1, 1])?;
        n.op_without_attrs("add", &[offset, steps])?
    } else {
        positions
    };
    let angles = [angles(n, 2, positions)?, angles(n, 3, positions)?];
    let is_interleaved = n.int_attr("interleaved", 0)? != 0;
    let rotated_heads = rotate_heads(n, x, angles, is_interleaved)?;
    single_output(if flat { join_heads(n, rotated_heads)? } else { rotated_heads })
}

//! Attention of language models: heads, key-value caches, masks and rotary positions.

use super::{Node, Outputs, Result, Row, attrs, math, single_output};
use crate::ops::attention::{repeat_heads, split_heads};
use crate::ops::embedding::rotate_heads;
use byoc_ir::ir::{Dim, ExprId};
use byoc_ir::tensor::DType;

pub const ROWS: &[Row] = &[
    ("Attention", 1, attention),
    ("GroupQueryAttention", 1, group_query),
    ("MultiHeadAttention", 1, multi_head),
    ("RotaryEmbedding", 1, rotary),
];

/// Queries, keys and values, each (batch, heads, sequence, head size).
#[derive(Clone, Copy)]
struct Heads {
    query: ExprId,
    key: ExprId,
    value: ExprId,
}

/// Computes softmax(scale * Q * K^T + bias) * V, with the shape (batch, sequence, heads * size). A positive `softcap`
/// bounds the scaled products.
fn attend(n: &mut Node<'_, '_>, heads: Heads, bias: Option<ExprId>, softcap: f64) -> Result<ExprId> {
    let dims = n.dims(heads.query)?;
    let size =
        dims[3].fixed().ok_or_else(|| n.invalid_node(format!("expected a known head size, found {}", dims[3])))?;
    let scale = match n.float_attr("scale", 0.0)? {
        0.0 => 1.0 / (size as f64).sqrt(),
        scale => scale,
    };
    let query = n.with_scalar("multiply", heads.query, scale)?;
    let transposed_key = n.transpose(heads.key, &[0, 1, 3, 2])?;
    let mut logits = math::matmul(n, query, transposed_key, None)?;
    if softcap > 0.0 {
        let ratio = n.with_scalar("divide", logits, softcap)?;
        let tanh = n.op_without_attrs("tanh", &[ratio])?;
        logits = n.with_scalar("multiply", tanh, softcap)?;
    }
    if let Some(bias) = bias {
        logits = n.op_without_attrs("add", &[logits, bias])?;
    }
    let weights = n.op("nn.softmax", &[logits], attrs![axis: -1])?;
    let result = math::matmul(n, weights, heads.value, None)?;
    join_heads(n, result)
}

/// Converts (batch, heads, sequence, size) to (batch, sequence, heads * size).
fn join_heads(n: &mut Node<'_, '_>, x: ExprId) -> Result<ExprId> {
    let dims = n.dims(x)?;
    let hidden_size = Dim::product(&[dims[1].clone(), dims[3].clone()]).unwrap_or(Dim::Any);
    let rows = n.transpose(x, &[0, 2, 1, 3])?;
    n.reshape_to(rows, &[dims[0].clone(), dims[2].clone(), hidden_size])
}

/// Adds two optional logit terms.
fn add(n: &mut Node<'_, '_>, a: Option<ExprId>, b: Option<ExprId>) -> Result<Option<ExprId>> {
    match (a, b) {
        (Some(a), Some(b)) => n.op_without_attrs("add", &[a, b]).map(Some),
        (a, b) => Ok(a.or(b)),
    }
}

/// Returns 0 where `is_visible` is true, and `masked_value` elsewhere.
fn penalty(n: &mut Node<'_, '_>, is_visible: ExprId, dtype: DType, masked_value: f64) -> Result<ExprId> {
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
    if n.int_attr("do_rotary", 0)? != 0 || n.int_attr("past_present_share_buffer", 0)? != 0 {
        return Err(n.invalid_node("attributes do_rotary and past_present_share_buffer are not supported"));
    }
    let mut projection = math::matmul(n, data, weights, None)?;
    if let Some(bias) = n.optional_input(2) {
        projection = n.op_without_attrs("add", &[projection, bias])?;
    }
    let dims = n.dims(projection)?;
    let width = dims[2]
        .fixed()
        .ok_or_else(|| n.invalid_node(format!("expected weights of a known width, found {}", dims[2])))?;
    let sizes = match n.ints_attr("qkv_hidden_sizes")? {
        Some(sizes) => sizes.iter().map(|&size| usize::try_from(size).unwrap_or(0)).collect(),
        None => vec![width / 3; 3],
    };
    if sizes.len() != 3 || sizes.iter().sum::<usize>() != width {
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
    if let Some(past_state) = n.optional_input(4) {
        let mut concatenate_past = |i: usize, new: ExprId| {
            let past_half = n.slice(past_state, 0, i, i + 1)?;
            let past_half = n.op("squeeze", &[past_half], attrs![axis: [0]])?;
            n.concatenate(&[past_half, new], 2)
        };
        (key, value) = (concatenate_past(0, key)?, concatenate_past(1, value)?);
    }
    let mask = n.optional_input(3);
    let bias = mask_bias(n, query, key, mask)?;
    let bias = add(n, bias, n.optional_input(5))?;
    let result = attend(n, Heads { query, key, value }, bias, 0.0)?;
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
            let dims = n.dims(x)?;
            let width =
                dims[2].fixed().ok_or_else(|| n.invalid_node(format!("expected a known width, found {}", dims[2])))?;
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
    let result = attend(n, Heads { query, key, value }, bias, 0.0)?;
    Ok(vec![result, key, value])
}

/// Converts GroupQueryAttention, in which several query heads share one key head. The S new keys of sequence b are
/// written to the cache starting at position `seqlens_k[b] + 1 - S`, or at position 0 if the sequence has fewer than S
/// elements.
fn group_query(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let unsupported_attrs = ["smooth_softmax", "kv_cache_bit_width", "qk_output", "sliding_window_cache"];
    if let Some(name) = unsupported_attrs.into_iter().find(|name| n.int_attr(name, 0).is_ok_and(|value| value > 0)) {
        return Err(n.invalid_node(format!("unsupported attribute {name}")));
    }
    if let Some(i) = (11..n.input_count()).find(|&i| n.optional_input(i).is_some()) {
        return Err(n.invalid_node(format!("unsupported input {i}")));
    }
    let (query_heads, key_heads) = (n.int_attr("num_heads", 0)?, n.int_attr("kv_num_heads", 0)?);
    let new = match (n.optional_input(1), n.optional_input(2)) {
        (Some(key), Some(value)) => Heads {
            query: split_heads(n, n.input(0)?, query_heads)?,
            key: split_heads(n, key, key_heads)?,
            value: split_heads(n, value, key_heads)?,
        },
        _ => packed_heads(n, query_heads, key_heads)?,
    };
    let Heads { mut query, mut key, value } = new;
    // Position of the first new element of each sequence, with shape (batch, 1).
    let last_index = n.cast(n.input(5)?, DType::I64)?;
    let batch = n.dims(query)?[0].clone();
    let last_index = n.reshape_to(last_index, &[batch, Dim::Fixed(1)])?;
    let count = n.shape_vector(query, 2..3)?;
    let next = n.with_scalar("add", last_index, 1.0)?;
    let start = n.op_without_attrs("subtract", &[next, count])?;
    let start = {
        let zero = n.scalar(DType::I64, 0.0);
        n.op_without_attrs("maximum", &[start, zero])?
    };
    if n.int_attr("do_rotary", 0)? != 0 {
        let positions = match n.optional_input(9) {
            Some(positions) => positions,
            None => {
                let steps = n.indices_along(query, 2)?;
                let steps = n.op("reshape", &[steps], attrs![newshape: [1, -1]])?;
                n.op_without_attrs("add", &[start, steps])?
            }
        };
        let is_interleaved = n.int_attr("rotary_interleaved", 0)? != 0;
        let mut angles = |i: usize| {
            let cache = n.input(i)?;
            let rows = n.op("take", &[cache, positions], attrs![axis: 0, mode: "fast"])?;
            n.op("expand_dims", &[rows], attrs![axis: 1])
        };
        let angles = [angles(7)?, angles(8)?];
        query = rotate_heads(n, query, angles, is_interleaved)?;
        key = rotate_heads(n, key, angles, is_interleaved)?;
    }
    let (key, value) = match (n.optional_input(3), n.optional_input(4)) {
        (Some(past_key), Some(past_value)) => {
            let cache_indices = cache_positions(n, past_key, key, start)?;
            let mut update = |past_state: ExprId, new: ExprId| {
                let full_state = n.concatenate(&[past_state, new], 2)?;
                n.op("take", &[full_state, cache_indices], attrs![axis: 2, batch_dims: 1, mode: "fast"])
            };
            (update(past_key, key)?, update(past_value, value)?)
        }
        _ => (key, value),
    };
    let bias = group_query_bias(n, query, key, start)?;
    let bias = add(n, Some(bias), n.optional_input(10))?;
    let [all_keys, all_values] = repeat_heads(n, query, [key, value])?;
    let softcap = n.float_attr("softcap", 0.0)?;
    let result = attend(n, Heads { query, key: all_keys, value: all_values }, bias, softcap)?;
    Ok(vec![result, key, value])
}

/// Splits the packed input (batch, sequence, (query heads + 2 * key heads) * size).
fn packed_heads(n: &mut Node<'_, '_>, query_heads: i64, key_heads: i64) -> Result<Heads> {
    let packed_input = n.input(0)?;
    let width = n.dims(packed_input)?[2].fixed().unwrap_or(0);
    let head_count = usize::try_from(query_heads + 2 * key_heads).unwrap_or(0);
    if head_count == 0 || width == 0 || !width.is_multiple_of(head_count) {
        return Err(n.invalid_node(format!("expected a width divisible by {head_count} heads, found {width}")));
    }
    let size = width / head_count;
    let (key_start, value_start) = (query_heads as usize * size, (query_heads + key_heads) as usize * size);
    let (query, key) = (n.slice(packed_input, 2, 0, key_start)?, n.slice(packed_input, 2, key_start, value_start)?);
    let value = n.slice(packed_input, 2, value_start, width)?;
    Ok(Heads {
        query: split_heads(n, query, query_heads)?,
        key: split_heads(n, key, key_heads)?,
        value: split_heads(n, value, key_heads)?,
    })
}

/// Returns, for each position in the updated cache, the index of its source in the concatenation of the old cache and
/// the new elements. The shape is (batch, length).
fn cache_positions(n: &mut Node<'_, '_>, past_state: ExprId, new: ExprId, start: ExprId) -> Result<ExprId> {
    let past_length = n.shape_vector(past_state, 2..3)?;
    let count = n.shape_vector(new, 2..3)?;
    let total_length = n.cast(n.input(6)?, DType::I64)?;
    let total_length = n.op("reshape", &[total_length], attrs![newshape: [1]])?;
    let length = n.op_without_attrs("maximum", &[total_length, past_length])?;
    let length = n.reshape(length, &[])?;
    let (zero, step) = (n.scalar(DType::I64, 0.0), n.scalar(DType::I64, 1.0));
    let positions = n.op("arange", &[zero, length, step], attrs![dtype: DType::I64])?;
    let positions = n.op("expand_dims", &[positions], attrs![axis: 0])?;
    let relative_positions = n.op_without_attrs("subtract", &[positions, start])?;
    let new_positions = n.op_without_attrs("add", &[relative_positions, past_length])?;
    let is_valid_row = n.op_without_attrs("greater_equal", &[relative_positions, zero])?;
    let is_before_end = n.op_without_attrs("less", &[relative_positions, count])?;
    let is_new = n.op_without_attrs("logical_and", &[is_valid_row, is_before_end])?;
    let end = n.op_without_attrs("add", &[past_length, count])?;
    let last_position = n.with_scalar("subtract", end, 1.0)?;
    let old_positions = n.op_without_attrs("minimum", &[positions, last_position])?;
    n.op_without_attrs("where", &[is_new, new_positions, old_positions])
}

/// Returns the logit bias that restricts each query to keys at or before its own position, within the local window.
fn group_query_bias(n: &mut Node<'_, '_>, query: ExprId, key: ExprId, start: ExprId) -> Result<ExprId> {
    let rows = n.indices_along(query, 2)?;
    let start = n.op("expand_dims", &[start], attrs![axis: 1])?;
    let start = n.op("expand_dims", &[start], attrs![axis: 1])?;
    let rows = n.op_without_attrs("add", &[rows, start])?;
    let columns = n.indices_along(key, 2)?;
    let columns = n.transpose(columns, &[0, 1, 3, 2])?;
    let mut is_visible = n.op_without_attrs("less_equal", &[columns, rows])?;
    let window = n.int_attr("local_window_size", -1)?;
    if window >= 0 {
        let window_start = n.with_scalar("subtract", rows, window as f64)?;
        let is_in_window = n.op_without_attrs("greater", &[columns, window_start])?;
        is_visible = n.op_without_attrs("logical_and", &[is_visible, is_in_window])?;
    }
    penalty(n, is_visible, n.dtype(query)?, f64::NEG_INFINITY)
}

/// Applies rotary position embedding to (batch, sequence, heads * size) or (batch, heads, sequence, size).
fn rotary(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (data, positions) = (n.input(0)?, n.input(1)?);
    let (input_dims, flat) = (n.dims(data)?, n.rank(data)? == 3);
    if n.int_attr("is_packed_batching", 0)? != 0 || n.float_attr("scale", 1.0)? != 1.0 {
        return Err(n.invalid_node("attributes is_packed_batching and scale are not supported"));
    }
    let cos = n.input(2)?;
    let dims = n.dims(cos)?;
    let half_size = dims[1]
        .fixed()
        .ok_or_else(|| n.invalid_node(format!("expected a known number of angles, found {}", dims[1])))?;
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
    let mut angles = |i: usize| {
        let cache = n.input(i)?;
        let rows = n.op("take", &[cache, positions], attrs![axis: 0, mode: "fast"])?;
        n.op("expand_dims", &[rows], attrs![axis: 1])
    };
    let angles = [angles(2)?, angles(3)?];
    let is_interleaved = n.int_attr("interleaved", 0)? != 0;
    let rotated_heads = rotate_heads(n, x, angles, is_interleaved)?;
    single_output(if flat { join_heads(n, rotated_heads)? } else { rotated_heads })
}

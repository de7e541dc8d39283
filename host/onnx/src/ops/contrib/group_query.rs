//! Attention whose query heads share key heads, with a key-value cache.

use super::attention::{Heads, Logits, add, angles, attend, penalty};
use super::{Node, Outputs, Result, Row, attrs};
use crate::ops::attention::{repeat_heads, split_heads};
use crate::ops::embedding::rotate_heads;
use byoc_ir::ir::{Dim, ExprId};
use byoc_ir::tensor::DType;

pub const ROWS: &[Row] = &[("GroupQueryAttention", 1, group_query)];

/// Converts GroupQueryAttention, in which several query heads share one key head. The S new keys of sequence b are
/// written to the cache starting at position `seqlens_k[b] + 1 - S`, or at position 0 if the sequence has fewer than S
/// elements.
fn group_query(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let unsupported_attrs = ["kv_cache_bit_width", "qk_output", "sliding_window_cache"];
    if let Some(name) = unsupported_attrs.into_iter().find(|name| n.int_attr(name, 0).is_ok_and(|value| value > 0)) {
        return Err(n.invalid_node(format!("unsupported attribute {name}")));
    }
    if let Some(i) = (12..n.input_count()).find(|&i| n.optional_input(i).is_some()) {
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
        let angles = [angles(n, 7, positions)?, angles(n, 8, positions)?];
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
    let sink = match n.optional_input(11) {
        Some(sink) => Some(n.reshape(sink, &[1, usize::try_from(query_heads).unwrap_or(0), 1, 1])?),
        // The smooth softmax adds one term with the logit 0.
        None if n.int_attr("smooth_softmax", 0)? > 0 => Some(n.scalar(n.dtype(query)?, 0.0)),
        None => None,
    };
    let terms = Logits { bias, softcap: n.float_attr("softcap", 0.0)?, sink };
    let result = attend(n, Heads { query, key: all_keys, value: all_values }, terms)?;
    Ok(vec![result, key, value])
}

/// Splits the packed input (batch, sequence, (query heads + 2 * key heads) * size).
fn packed_heads(n: &mut Node<'_, '_>, query_heads: i64, key_heads: i64) -> Result<Heads> {
    let packed_input = n.input(0)?;
    let [_, _, width] = n.dims_of_rank(packed_input)?;
    let width = width.fixed().unwrap_or(0);
    let [query_count, key_count] = [query_heads, key_heads].map(|count| usize::try_from(count).unwrap_or(0));
    let head_count = query_count.saturating_add(key_count.saturating_mul(2));
    if query_count == 0 || key_count == 0 || width == 0 || !width.is_multiple_of(head_count) {
        return Err(n.invalid_node(format!("expected a width divisible by {head_count} heads, found {width}")));
    }
    let size = width / head_count;
    let (key_start, value_start) = (query_count * size, (query_count + key_count) * size);
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

//! Attention: scaled dot products, masks, softmax, and the key-value cache.

use super::math::matmul;
use super::{Node, Outputs, Result, Row, attrs};
use byoc_ir::ir::{AttrValue, Dim, ExprId};
use byoc_ir::tensor::{DType, Tensor};

pub const ROWS: &[Row] = &[("Attention", 23, attention)];

/// Stage of the computation whose result is returned as the output `qk_matmul_output`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Products,
    Capped,
    Masked,
    Weights,
}

/// Queries, keys and values of an attention operator, each (batch, heads, sequence, head size).
struct Heads {
    query: ExprId,
    key: ExprId,
    value: ExprId,
}

/// Converts Attention. 16-bit floats are rounded after each step, as in the function that defines the operator.
fn attention(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let is_flat = n.rank(n.input(0)?)? == 3;
    let Heads { query, key: new_key, value: new_value } = heads(n, is_flat)?;
    let past_inputs = [n.optional_input(4), n.optional_input(5)];
    let (key, value) = match past_inputs {
        [None, None] => (new_key, new_value),
        [Some(past_key), Some(past_value)] => {
            (n.concatenate(&[past_key, new_key], 2)?, n.concatenate(&[past_value, new_value], 2)?)
        }
        _ => return Err(n.invalid_node("expected both past_key and past_value or neither, found one of them")),
    };
    let dtype = n.dtype(query)?;
    let [repeated_key, repeated_value] = repeat_heads(n, query, [key, value])?;
    let products = scaled_products(n, query, repeated_key)?;
    let softcap = n.float_attr("softcap", 0.0)?;
    let capped_products = if softcap > 0.0 {
        let ratio = n.with_scalar("divide", products, softcap)?;
        let tanh = n.op_without_attrs("tanh", &[ratio])?;
        n.with_scalar("multiply", tanh, softcap)?
    } else {
        products
    };
    let bias = bias(n, query, key, dtype)?;
    let masked_products = match bias {
        Some(bias) => n.op_without_attrs("add", &[capped_products, bias])?,
        None => capped_products,
    };
    let precision = match n.int_attr("softmax_precision", 0)? {
        0 => dtype,
        dtype_number => {
            crate::tensor::dtype(dtype_number as i32).filter(|dtype| dtype.is_float()).ok_or_else(|| {
                n.invalid_node(format!("attribute softmax_precision: expected a float type, found {dtype_number}"))
            })?
        }
    };
    let logits = n.cast(masked_products, precision)?;
    let mut weights = n.op("nn.softmax", &[logits], attrs![axis: -1])?;
    if let Some(bias) = bias {
        weights = without_masked_rows(n, weights, bias)?;
    }
    let weights = n.cast(weights, dtype)?;
    let repeated_value = n.cast(repeated_value, dtype)?;
    let mut result = matmul(n, weights, repeated_value, None)?;
    if is_flat {
        let dims = n.dims(result)?;
        let hidden_size = Dim::product(&[dims[1].clone(), dims[3].clone()]).unwrap_or(Dim::Any);
        let rows = n.transpose(result, &[0, 2, 1, 3])?;
        result = n.reshape_to(rows, &[dims[0].clone(), dims[2].clone(), hidden_size])?;
    }
    let qk_output = match output_stage(n)? {
        Stage::Products => products,
        Stage::Capped => capped_products,
        Stage::Masked => masked_products,
        Stage::Weights => weights,
    };
    Ok(vec![result, key, value, qk_output])
}

fn output_stage(n: &Node<'_, '_>) -> Result<Stage> {
    match n.int_attr("qk_matmul_output_mode", 0)? {
        0 => Ok(Stage::Products),
        1 => Ok(Stage::Capped),
        2 => Ok(Stage::Masked),
        3 => Ok(Stage::Weights),
        other => Err(n.invalid_node(format!("attribute qk_matmul_output_mode: expected 0 to 3, found {other}"))),
    }
}

/// Returns the inputs Q, K and V. If `is_flat`, inputs of shape (batch, sequence, heads * size) are split into heads.
fn heads(n: &mut Node<'_, '_>, is_flat: bool) -> Result<Heads> {
    let inputs = [n.input(0)?, n.input(1)?, n.input(2)?];
    let rank = if is_flat { 3 } else { 4 };
    for (name, input) in ["Q", "K", "V"].into_iter().zip(inputs) {
        if n.rank(input)? != rank {
            return Err(n.invalid_node(format!("{name}: expected rank {rank}, found {}", n.ty(input)?)));
        }
    }
    let [query, key, value] = inputs;
    if !is_flat {
        return Ok(Heads { query, key, value });
    }
    let (query_heads, key_heads) = (n.int_attr("q_num_heads", 0)?, n.int_attr("kv_num_heads", 0)?);
    Ok(Heads {
        query: split_heads(n, query, query_heads)?,
        key: split_heads(n, key, key_heads)?,
        value: split_heads(n, value, key_heads)?,
    })
}

/// Converts (batch, sequence, heads * size) to (batch, heads, sequence, size).
pub(super) fn split_heads(n: &mut Node<'_, '_>, x: ExprId, heads: i64) -> Result<ExprId> {
    let [batch, length, width] = n.dims_of_rank(x)?;
    let hidden_size = width.fixed().ok_or_else(|| n.invalid_node(format!("expected a known width, found {width}")))?;
    let head_count = usize::try_from(heads).ok().filter(|&count| count > 0 && hidden_size.is_multiple_of(count));
    let head_count = head_count
        .ok_or_else(|| n.invalid_node(format!("expected a width divisible by {heads} heads, found {hidden_size}")))?;
    let target_dims = [batch, length, Dim::Fixed(head_count), Dim::Fixed(hidden_size / head_count)];
    let split_x = n.reshape_to(x, &target_dims)?;
    n.transpose(split_x, &[0, 2, 1, 3])
}

/// Repeats each key head and value head once per query head of its group.
pub(super) fn repeat_heads(n: &mut Node<'_, '_>, query: ExprId, [key, value]: [ExprId; 2]) -> Result<[ExprId; 2]> {
    let (query_heads, key_heads) = (n.dims(query)?[1].fixed(), n.dims(key)?[1].fixed());
    let (Some(query_heads), Some(key_heads)) = (query_heads, key_heads) else {
        let (query_dims, key_dims) = (n.dims(query)?, n.dims(key)?);
        return Err(n.invalid_node(format!(
            "expected known head counts of Q and K, found {} and {}",
            query_dims[1], key_dims[1]
        )));
    };
    if key_heads == 0 || !query_heads.is_multiple_of(key_heads) {
        return Err(n.invalid_node(format!(
            "expected the head count of Q to be a multiple of {key_heads}, found {query_heads}"
        )));
    }
    let groups = query_heads / key_heads;
    if groups == 1 {
        return Ok([key, value]);
    }
    let mut repeat = |x| n.op("repeat", &[x], attrs![repeats: groups as i64, axis: 1]);
    Ok([repeat(key)?, repeat(value)?])
}

/// Computes scale * Q * K^T. For 16-bit floats, both operands are multiplied by sqrt(scale), which avoids overflow.
fn scaled_products(n: &mut Node<'_, '_>, query: ExprId, key: ExprId) -> Result<ExprId> {
    let dims = n.dims(query)?;
    let size =
        dims[3].fixed().ok_or_else(|| n.invalid_node(format!("expected a known head size, found {}", dims[3])))?;
    let scale = if n.has("scale") { n.float_attr("scale", 1.0)? } else { 1.0 / (size as f64).sqrt() };
    let transposed_key = n.transpose(key, &[0, 1, 3, 2])?;
    if matches!(n.dtype(query)?, DType::F32 | DType::F64) {
        let query = n.with_scalar("multiply", query, scale)?;
        return matmul(n, query, transposed_key, None);
    }
    let query = n.with_scalar("multiply", query, scale.sqrt())?;
    let transposed_key = n.with_scalar("multiply", transposed_key, scale.sqrt())?;
    matmul(n, query, transposed_key, None)
}

/// Returns the bias of the logits: 0 where a query attends to a key and -inf elsewhere, plus the floating-point mask,
/// if any. Returns `None` if no bias is needed.
fn bias(n: &mut Node<'_, '_>, query: ExprId, key: ExprId, dtype: DType) -> Result<Option<ExprId>> {
    let mut visible = visible_keys(n, query, key)?;
    let mut total_bias = None;
    if let Some(mask) = n.optional_input(3) {
        let is_boolean = n.dtype(mask)? == DType::Bool;
        let mask = if is_boolean { mask } else { n.cast(mask, dtype)? };
        let mask = extend_mask(n, mask, key, is_boolean)?;
        if is_boolean {
            visible = Some(and(n, visible, mask)?);
        } else {
            total_bias = Some(mask);
        }
    }
    let Some(visible) = visible else { return Ok(total_bias) };
    let (zero, neg_infinity) = (n.scalar(dtype, 0.0), n.scalar(dtype, f64::NEG_INFINITY));
    let mask_bias = n.op_without_attrs("where", &[visible, zero, neg_infinity])?;
    match total_bias {
        Some(total_bias) => n.op_without_attrs("add", &[mask_bias, total_bias]).map(Some),
        None => Ok(Some(mask_bias)),
    }
}

fn and(n: &mut Node<'_, '_>, a: Option<ExprId>, b: ExprId) -> Result<ExprId> {
    match a {
        Some(a) => n.op_without_attrs("logical_and", &[a, b]),
        None => Ok(b),
    }
}

/// Returns the Boolean mask of the keys visible to each query, based on positions (causal masks and windows) and
/// sequence lengths; `None` if every query sees every key.
fn visible_keys(n: &mut Node<'_, '_>, query: ExprId, key: ExprId) -> Result<Option<ExprId>> {
    let is_causal = n.int_attr("is_causal", 0)? != 0;
    let (left_window, right_window) = (n.int_attr("left_window_size", -1)?, n.int_attr("right_window_size", -1)?);
    let lengths = match n.optional_input(6) {
        Some(lengths) => {
            let batch = n.dims(lengths)?.first().cloned().unwrap_or(Dim::Fixed(1));
            let lengths = n.cast(lengths, DType::I64)?;
            Some(n.reshape_to(lengths, &[batch, Dim::Fixed(1), Dim::Fixed(1), Dim::Fixed(1)])?)
        }
        None => None,
    };
    let columns = positions(n, key, 3)?;
    let mut visible = match lengths {
        Some(lengths) => Some(n.op_without_attrs("less", &[columns, lengths])?),
        None => None,
    };
    if !is_causal && left_window < 0 && right_window < 0 {
        return Ok(visible);
    }
    let rows = positions(n, query, 2)?;
    let offset = match (n.optional_input(4), lengths) {
        (Some(past_inputs), _) => Some(n.shape_vector(past_inputs, 2..3)?),
        (None, Some(lengths)) => {
            let query_length = n.shape_vector(query, 2..3)?;
            Some(n.op_without_attrs("subtract", &[lengths, query_length])?)
        }
        (None, None) => None,
    };
    let rows = match offset {
        Some(offset) => n.op_without_attrs("add", &[rows, offset])?,
        None => rows,
    };
    let mut bound = |comparison: &str, bound_offset: i64| -> Result<()> {
        let limit = n.with_scalar("add", rows, bound_offset as f64)?;
        let is_inside = n.op_without_attrs(comparison, &[columns, limit])?;
        visible = Some(and(n, visible, is_inside)?);
        Ok(())
    };
    if is_causal {
        bound("less_equal", 0)?;
    }
    if right_window >= 0 {
        bound("less_equal", right_window)?;
    }
    if left_window >= 0 {
        bound("greater_equal", -left_window)?;
    }
    Ok(visible)
}

/// Returns the indices along the sequence axis (2) of `x` as an int64 tensor of rank 4, laid out along axis
/// `target_axis`.
fn positions(n: &mut Node<'_, '_>, x: ExprId, target_axis: usize) -> Result<ExprId> {
    let dim = n.dims(x)?[2].clone();
    let mut target_dims = [Dim::Fixed(1), Dim::Fixed(1), Dim::Fixed(1), Dim::Fixed(1)];
    target_dims[target_axis] = dim.clone();
    if let Some(count) = dim.fixed() {
        let mut shape = [1; 4];
        shape[target_axis] = count;
        return Ok(n.tensor(Tensor::from_slice(&shape, &(0..count as i64).collect::<Vec<_>>())));
    }
    // The indices are an exclusive `cumsum` of ones, which preserves the dimension name.
    let slice_attrs = attrs![begin: [0, 0, 0], end: [1, 1, 1], strides: [1, 1, 1], axes: [0, 1, 3]];
    let lane = n.op("strided_slice", &[x], slice_attrs)?;
    let lane = n.op_without_attrs("ones_like", &[lane])?;
    let lane_ones = n.cast(lane, DType::I64)?;
    let counts = n.op("cumsum", &[lane_ones], attrs![axis: 2, exclusive: true])?;
    if target_axis == 2 { Ok(counts) } else { n.transpose(counts, &[0, 1, 3, 2]) }
}

/// Extends a mask whose last dimension is less than the number of keys: keys without a mask element are masked.
fn extend_mask(n: &mut Node<'_, '_>, mask: ExprId, key: ExprId, is_boolean: bool) -> Result<ExprId> {
    let (dims, keys) = (n.dims(mask)?, n.dims(key)?[2].fixed());
    let (Some(mask_length), Some(keys)) = (dims.last().and_then(Dim::fixed), keys) else { return Ok(mask) };
    if mask_length >= keys {
        return Ok(mask);
    }
    let mut width = vec![AttrValue::from([0i64, 0]); dims.len() - 1];
    width.push(AttrValue::from([0, (keys - mask_length) as i64]));
    let neg_infinity = n.scalar(n.dtype(mask)?, if is_boolean { 0.0 } else { f64::NEG_INFINITY });
    n.op("nn.pad", &[mask, neg_infinity], attrs![pad_width: AttrValue::List(width.into()), pad_mode: "constant"])
}

/// Zeroes the attention weights of queries that attend to no key, for which the softmax is NaN.
fn without_masked_rows(n: &mut Node<'_, '_>, weights: ExprId, bias: ExprId) -> Result<ExprId> {
    let max_bias = n.op("max", &[bias], attrs![axis: [-1], keepdims: true])?;
    let neg_infinity = n.scalar(n.dtype(bias)?, f64::NEG_INFINITY);
    let is_empty = n.op_without_attrs("equal", &[max_bias, neg_infinity])?;
    if let Some(is_empty) = n.constant_value(is_empty)
        && is_empty.view().to_i64s().is_some_and(|rows| rows.iter().all(|row| *row == 0))
    {
        return Ok(weights);
    }
    let zero = n.scalar(n.dtype(weights)?, 0.0);
    n.op_without_attrs("where", &[is_empty, zero, weights])
}

//! Linear attention and causal convolution, both with a state that is carried from step to step.

use super::attention::split_heads;
use super::loops::{Carried, End, Iteration, Limits, counter, run_loop};
use super::{Node, Outputs, Result, Row, attrs};
use byoc_ir::ir::{Dim, ExprId};
use byoc_ir::tensor::DType;

pub const ROWS: &[Row] =
    &[("CausalConvWithState", 27, causal_conv_with_state), ("LinearAttention", 27, linear_attention)];

/// Converts a causal depthwise convolution. The state holds the elements that precede the input.
pub(super) fn causal_conv_with_state(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (data, weight) = (n.input(0)?, n.input(1)?);
    let (dims, shape) = (n.dims(data)?, n.shape(weight)?);
    let ([_, _, _], [channels, 1, taps]) = (&dims[..], &shape[..]) else {
        let (data, weight) = (n.ty(data)?, n.ty(weight)?);
        return Err(n.invalid_node(format!(
            "expected data (n, c, length) and weights (c, 1, taps), found {data} and {weight}"
        )));
    };
    if *taps == 0 {
        return Err(n.invalid_node("expected at least one tap, found none"));
    }
    let past_state = match n.optional_input(3) {
        Some(past_state) => past_state,
        None => initial_state(n, n.dtype(data)?, &[dims[0].clone(), Dim::Fixed(*channels), Dim::Fixed(taps - 1)])?,
    };
    let padded_input = if *taps == 1 { data } else { n.concatenate(&[past_state, data], 2)? };
    let attributes = attrs![
        groups: *channels as i64,
        channels: *channels as i64,
        kernel_size: [*taps as i64],
        data_layout: "NCW",
        kernel_layout: "OIW",
    ];
    let mut value = n.op("nn.conv1d", &[padded_input, weight], attributes)?;
    if let Some(bias) = n.optional_input(2) {
        value = n.op("nn.bias_add", &[value, bias], attrs![axis: 1])?;
    }
    match n.str_attr("activation", "none")?.as_str() {
        "none" => {}
        "silu" | "swish" => {
            let gate = n.op_without_attrs("sigmoid", &[value])?;
            value = n.op_without_attrs("multiply", &[value, gate])?;
        }
        other => {
            let message = format!("attribute activation: expected none, silu or swish, found \"{other}\"");
            return Err(n.invalid_node(message));
        }
    }
    let length = n.shape_vector(data, 2..3)?;
    let end = n.with_scalar("add", length, *taps as f64 - 1.0)?;
    let step = n.vector(&[1i64]);
    let state = match (dims[2].fixed(), taps - 1) {
        (_, 0) => n.slice(data, 2, 0, 0)?,
        (Some(length), kept_size) => n.slice(padded_input, 2, length, length + kept_size)?,
        (None, _) => n.op("dyn.strided_slice", &[padded_input, length, end, step], attrs![axes: [2i64]])?,
    };
    Ok(vec![value, state])
}

/// Returns a state of zeros.
fn initial_state(n: &mut Node<'_, '_>, dtype: DType, dims: &[Dim]) -> Result<ExprId> {
    match dims.iter().map(Dim::fixed).collect::<Option<Vec<usize>>>() {
        Some(shape) => n.zeros(dtype, &shape),
        None => {
            let zero = n.scalar(dtype, 0.0);
            n.broadcast_to(zero, dims)
        }
    }
}

/// State update rule of linear attention.
#[derive(Clone, Copy)]
struct Rule {
    /// True if the state decays.
    gated: bool,
    /// True if the state's current value for the key is subtracted from the new value (delta rule).
    delta: bool,
}

/// Converts LinearAttention to a loop over the sequence, in float32.
pub(super) fn linear_attention(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let name = n.str_attr("update_rule", "gated_delta")?;
    let rule = match name.as_str() {
        "linear" => Rule { gated: false, delta: false },
        "gated" => Rule { gated: true, delta: false },
        "delta" => Rule { gated: false, delta: true },
        "gated_delta" => Rule { gated: true, delta: true },
        other => {
            return Err(n.invalid_node(format!(
                "attribute update_rule: expected linear, gated, delta or gated_delta, found \"{other}\""
            )));
        }
    };
    let (query_heads, key_heads) = (n.int_attr("q_num_heads", 0)?, n.int_attr("kv_num_heads", 0)?);
    if key_heads < 1 || query_heads % key_heads != 0 {
        return Err(n.invalid_node(format!(
            "expected kv_num_heads to be a positive divisor of q_num_heads, found {key_heads} and {query_heads}"
        )));
    }
    let (query_in, dtype) = (n.input(0)?, n.dtype(n.input(0)?)?);
    let query = heads(n, 0, query_heads)?;
    let (key, value) = (heads(n, 1, key_heads)?, heads(n, 2, key_heads)?);
    let decay = if rule.gated { Some(decay(n, key_heads)?) } else { None };
    let beta = if rule.delta {
        let heads_of_beta = n.dims(n.input(5)?)?.last().and_then(Dim::fixed).unwrap_or(0) as i64;
        Some(heads(n, 5, heads_of_beta)?)
    } else {
        None
    };
    let (dims, width) = (n.dims(key)?, n.dims(value)?[3].clone());
    let size =
        dims[3].fixed().ok_or_else(|| n.invalid_node(format!("expected a known head size, found {}", dims[3])))?;
    let scale_attr = n.float_attr("scale", 0.0)?;
    let scale = if scale_attr == 0.0 { 1.0 / (size as f64).sqrt() } else { scale_attr };
    let query = n.with_scalar("multiply", query, scale)?;
    let (state, state_type) = match n.optional_input(3) {
        Some(past_state) => (n.cast(past_state, DType::F32)?, n.dtype(past_state)?),
        None => {
            let heads = Dim::Fixed(key_heads as usize);
            (initial_state(n, DType::F32, &[dims[0].clone(), heads, Dim::Fixed(size), width.clone()])?, dtype)
        }
    };
    let length = n.shape_vector(query_in, 1..2)?;
    let length = counter(n, length)?;
    let group = query_heads / key_heads;
    let mut body = |n: &mut Node<'_, '_>, step: ExprId, carried_state: &[ExprId]| {
        // Returns the slice of this step, with shape (batch, heads, size, 1).
        let mut column = |x: ExprId| {
            let x = n.capture(x);
            let row = n.op("take", &[x, step], attrs![axis: 2, mode: "fast"])?;
            n.op("expand_dims", &[row], attrs![axis: 3])
        };
        let (query, key, value) = (column(query)?, column(key)?, column(value)?);
        let (decay, beta) = (decay.map(&mut column).transpose()?, beta.map(&mut column).transpose()?);
        let mut state = carried_state[0];
        if let Some(decay) = decay {
            state = n.op_without_attrs("multiply", &[state, decay])?;
        }
        let mut row = n.transpose(value, &[0, 1, 3, 2])?;
        if let Some(beta) = beta {
            let stored_value = read(n, state, key)?;
            let value_error = n.op_without_attrs("subtract", &[row, stored_value])?;
            row = n.op_without_attrs("multiply", &[beta, value_error])?;
        }
        let update = n.op_without_attrs("multiply", &[key, row])?;
        state = n.op_without_attrs("add", &[state, update])?;
        let expanded_state =
            if group == 1 { state } else { n.op("repeat", &[state], attrs![repeats: group, axis: 1])? };
        let result = read(n, expanded_state, query)?;
        let result = n.op("squeeze", &[result], attrs![axis: [2i64]])?;
        Ok(Iteration {
            next: None,
            carried_values: vec![state],
            scan_outputs: vec![(result, End::Back)],
            declared_shapes: Vec::new(),
        })
    };
    let results = run_loop(n, Limits { trips: Some(length), start: None }, Carried::read(vec![state]), &mut body)?;
    // Reorders (sequence, batch, heads, width) to (batch, sequence, heads * width).
    let rows = n.transpose(results[1], &[1, 0, 2, 3])?;
    let hidden_dim = Dim::product(&[Dim::Fixed(query_heads as usize), width]).unwrap_or(Dim::Any);
    let query_dims = n.dims(query_in)?;
    let flat = n.reshape_to(rows, &[query_dims[0].clone(), query_dims[1].clone(), hidden_dim])?;
    Ok(vec![n.cast(flat, dtype)?, n.cast(results[0], state_type)?])
}

/// Returns input `i` as float32 (batch, heads, sequence, size).
fn heads(n: &mut Node<'_, '_>, i: usize, count: i64) -> Result<ExprId> {
    let x = n.input(i)?;
    let x = n.cast(x, DType::F32)?;
    split_heads(n, x, count)
}

/// Returns the decay factors of the state, per head or per key element.
fn decay(n: &mut Node<'_, '_>, heads_of_key: i64) -> Result<ExprId> {
    let logarithm = heads(n, 4, heads_of_key)?;
    n.op_without_attrs("exp", &[logarithm])
}

/// Computes column^T * state for a key or query column; the result has the shape (batch, heads, 1, width).
fn read(n: &mut Node<'_, '_>, state: ExprId, column: ExprId) -> Result<ExprId> {
    let product = n.op_without_attrs("multiply", &[state, column])?;
    n.op("sum", &[product], attrs![axis: [2i64], keepdims: true])
}

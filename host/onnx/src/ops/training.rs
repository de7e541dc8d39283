//! Optimizer steps of the domain `ai.onnx.preview.training`. The inputs of each operator are the learning rate, the
//! number of previous updates, and lists of equal length: tensors, their gradients, and the optimizer states.

use super::{Node, Outputs, Result, Row};
use byoc_ir::ir::ExprId;
use byoc_ir::tensor::DType;

pub const ROWS: &[Row] = &[("Adagrad", 1, adagrad), ("Adam", 1, adam), ("Momentum", 1, momentum)];

/// Tensor to update, with its gradient and optimizer states.
struct Update {
    value: ExprId,
    /// Gradient, including the derivative of the regularization term.
    gradient: ExprId,
    states: Vec<ExprId>,
}

/// Reads the input lists; each tensor has `states` optimizer states.
fn updates(n: &mut Node<'_, '_>, states: usize) -> Result<Vec<Update>> {
    let list_count = states + 2;
    let count = n.input_count().saturating_sub(2) / list_count;
    if count == 0 || n.input_count() != 2 + count * list_count {
        return Err(n.invalid_node(format!(
            "expected 2 inputs plus {list_count} per tensor, found {} inputs",
            n.input_count()
        )));
    }
    let norm = n.float_attr("norm_coefficient", 0.0)?;
    let update = |n: &mut Node<'_, '_>, i: usize| {
        let value = n.input(2 + i)?;
        let gradient = n.input(2 + count + i)?;
        let decay = n.with_scalar("multiply", value, norm)?;
        let gradient = n.op_without_attrs("add", &[decay, gradient])?;
        let states = (2..list_count).map(|list| n.input(2 + list * count + i)).collect::<Result<_>>()?;
        Ok(Update { value, gradient, states })
    };
    (0..count).map(|i| update(n, i)).collect()
}

/// Returns a linear combination of two tensors, each paired with its factor.
fn weighted_sum(n: &mut Node<'_, '_>, a: (ExprId, f64), b: (ExprId, f64)) -> Result<ExprId> {
    let (first_term, second_term) = (n.with_scalar("multiply", a.0, a.1)?, n.with_scalar("multiply", b.0, b.1)?);
    n.op_without_attrs("add", &[first_term, second_term])
}

fn descend(n: &mut Node<'_, '_>, value: ExprId, rate: ExprId, step: ExprId) -> Result<ExprId> {
    let step_update = n.op_without_attrs("multiply", &[rate, step])?;
    n.op_without_attrs("subtract", &[value, step_update])
}

/// Returns the updated tensors, followed by each state list.
fn outputs(results: &[Vec<ExprId>]) -> Outputs {
    let list_count = results.first().map_or(0, Vec::len);
    (0..list_count).flat_map(|list| results.iter().map(move |result| result[list])).collect()
}

/// Converts Adagrad: divides the gradient by the root of the accumulated squared gradients.
fn adagrad(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (rate, epsilon) = (n.input(0)?, n.float_attr("epsilon", 0.0)?);
    let steps = n.cast(n.input(1)?, n.dtype(rate)?)?;
    let decay = n.with_scalar("multiply", steps, n.float_attr("decay_factor", 0.0)?)?;
    let decay = n.with_scalar("add", decay, 1.0)?;
    let rate = n.op_without_attrs("divide", &[rate, decay])?;
    let mut results = Vec::new();
    for Update { value, gradient, states } in updates(n, 1)? {
        let square = n.op_without_attrs("multiply", &[gradient, gradient])?;
        let sum = n.op_without_attrs("add", &[states[0], square])?;
        let root = n.op_without_attrs("sqrt", &[sum])?;
        let root = n.with_scalar("add", root, epsilon)?;
        let step = n.op_without_attrs("divide", &[gradient, root])?;
        results.push(vec![descend(n, value, rate, step)?, sum]);
    }
    Ok(outputs(&results))
}

/// Converts Adam: divides the moving average of the gradients by the root of the moving average of their squares, with
/// bias correction for both.
fn adam(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (alpha, beta) = (n.float_attr("alpha", 0.9)?, n.float_attr("beta", 0.999)?);
    let (epsilon, post) = (n.float_attr("epsilon", 0.0)?, n.float_attr("norm_coefficient_post", 0.0)?);
    let rate = n.input(0)?;
    let dtype = n.dtype(rate)?;
    let steps = n.cast(n.input(1)?, dtype)?;
    let mut correction = |factor: f64| {
        let factor = n.scalar(dtype, factor);
        let power = n.op_without_attrs("power", &[factor, steps])?;
        let one = n.scalar(dtype, 1.0);
        n.op_without_attrs("subtract", &[one, power])
    };
    let (mean_correction, square_correction) = (correction(alpha)?, correction(beta)?);
    let square_correction = n.op_without_attrs("sqrt", &[square_correction])?;
    let corrected_rate = n.op_without_attrs("multiply", &[rate, square_correction])?;
    let corrected_rate = n.op_without_attrs("divide", &[corrected_rate, mean_correction])?;
    let has_started = n.with_scalar("greater", steps, 0.0)?;
    let rate = n.op_without_attrs("where", &[has_started, corrected_rate, rate])?;
    let mut results = Vec::new();
    for Update { value, gradient, states } in updates(n, 2)? {
        let square = n.op_without_attrs("multiply", &[gradient, gradient])?;
        let mean = weighted_sum(n, (states[0], alpha), (gradient, 1.0 - alpha))?;
        let squares = weighted_sum(n, (states[1], beta), (square, 1.0 - beta))?;
        let root = n.op_without_attrs("sqrt", &[squares])?;
        let root = n.with_scalar("add", root, epsilon)?;
        let step = n.op_without_attrs("divide", &[mean, root])?;
        let result = descend(n, value, rate, step)?;
        results.push(vec![n.with_scalar("multiply", result, 1.0 - post)?, mean, squares]);
    }
    Ok(outputs(&results))
}

/// Converts Momentum: updates each tensor by an exponentially decaying sum of its gradients, or by Nesterov's variant.
fn momentum(n: &mut Node<'_, '_>) -> Result<Outputs> {
    let (alpha, beta) = (n.float_attr("alpha", 0.0)?, n.float_attr("beta", 0.0)?);
    let is_nesterov = match n.str_attr("mode", "standard")?.as_str() {
        "standard" => false,
        "nesterov" => true,
        other => {
            return Err(n.invalid_node(format!("attribute mode: expected standard or nesterov, found \"{other}\"")));
        }
    };
    let (rate, steps) = (n.input(0)?, n.cast(n.input(1)?, DType::I64)?);
    let dtype = n.dtype(rate)?;
    let has_started = n.with_scalar("greater", steps, 0.0)?;
    // The first update uses the unscaled gradient.
    let (beta, one) = (n.scalar(dtype, beta), n.scalar(dtype, 1.0));
    let weight = n.op_without_attrs("where", &[has_started, beta, one])?;
    let mut results = Vec::new();
    for Update { value, gradient, states } in updates(n, 1)? {
        let kept_momentum = n.with_scalar("multiply", states[0], alpha)?;
        let new_gradient = n.op_without_attrs("multiply", &[weight, gradient])?;
        let velocity = n.op_without_attrs("add", &[kept_momentum, new_gradient])?;
        let step = if is_nesterov { weighted_sum(n, (gradient, 1.0), (velocity, alpha))? } else { velocity };
        results.push(vec![descend(n, value, rate, step)?, velocity]);
    }
    Ok(outputs(&results))
}

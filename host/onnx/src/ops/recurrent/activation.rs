//! Activation functions of recurrent layers.

use super::{Kind, Node, Result, attrs};
use byoc_ir::ir::ExprId;

/// Activation function with its parameters.
#[derive(Clone, Debug)]
pub(super) struct Activation {
    name: String,
    alpha: f64,
    beta: f64,
}

/// Returns true if the functions are those that a layer has by default.
pub(super) fn are_default(activations: &[Activation], kind: Kind) -> bool {
    activations.iter().map(|activation| activation.name.as_str()).eq(kind.activations().iter().map(
        |name| match *name {
            "Sigmoid" => "sigmoid",
            _ => "tanh",
        },
    ))
}

/// Reads the activation functions of each direction.
pub(super) fn activations(n: &Node<'_, '_>, kind: Kind, directions: usize) -> Result<Vec<Vec<Activation>>> {
    let defaults = kind.activations();
    let names = match n.strings_attr("activations")? {
        Some(names) => names,
        None => defaults.iter().cycle().take(defaults.len() * directions).map(|&s| s.to_owned()).collect(),
    };
    if names.len() != defaults.len() * directions {
        return Err(n.invalid_node(format!(
            "attribute activations: expected length {1}, found {0}",
            names.len(),
            defaults.len() * directions
        )));
    }
    // Activation functions with parameters consume the parameter lists in order.
    let mut alphas = n.floats_attr("activation_alpha")?.unwrap_or_default().into_iter();
    let mut betas = n.floats_attr("activation_beta")?.unwrap_or_default().into_iter();
    let mut activations = Vec::with_capacity(names.len());
    for name in names {
        let (alpha, beta) = match name.to_ascii_lowercase().as_str() {
            "relu" | "tanh" | "sigmoid" | "softsign" | "softplus" => (None, None),
            "affine" => (Some(1.0), Some(0.0)),
            "leakyrelu" => (Some(0.01), None),
            "thresholdedrelu" | "elu" => (Some(1.0), None),
            "scaledtanh" => (Some(1.0), Some(1.0)),
            "hardsigmoid" => (Some(0.2), Some(0.5)),
            _ => return Err(n.invalid_node(format!("activation \"{name}\" is not supported"))),
        };
        activations.push(Activation {
            name: name.to_ascii_lowercase(),
            alpha: alpha.map_or(0.0, |default| alphas.next().unwrap_or(default)),
            beta: beta.map_or(0.0, |default| betas.next().unwrap_or(default)),
        });
    }
    Ok(activations.chunks(defaults.len()).map(<[Activation]>::to_vec).collect())
}

impl Activation {
    pub(super) fn apply(&self, n: &mut Node<'_, '_>, x: ExprId) -> Result<ExprId> {
        let (alpha, beta) = (self.alpha, self.beta);
        match self.name.as_str() {
            "relu" => n.op_without_attrs("nn.relu", &[x]),
            "tanh" => n.op_without_attrs("tanh", &[x]),
            "sigmoid" => n.op_without_attrs("sigmoid", &[x]),
            "affine" => {
                let scaled_x = n.with_scalar("multiply", x, alpha)?;
                n.with_scalar("add", scaled_x, beta)
            }
            "leakyrelu" => n.op("nn.leaky_relu", &[x], attrs![alpha: alpha]),
            "thresholdedrelu" => {
                let is_above = n.with_scalar("greater", x, alpha)?;
                let zero = n.scalar(n.dtype(x)?, 0.0);
                n.op_without_attrs("where", &[is_above, x, zero])
            }
            "scaledtanh" => {
                let inner = n.with_scalar("multiply", x, beta)?;
                let tanh = n.op_without_attrs("tanh", &[inner])?;
                n.with_scalar("multiply", tanh, alpha)
            }
            "hardsigmoid" => {
                let scaled_x = n.with_scalar("multiply", x, alpha)?;
                let shifted_x = n.with_scalar("add", scaled_x, beta)?;
                n.op("clip", &[shifted_x], attrs![a_min: 0.0, a_max: 1.0])
            }
            "elu" => {
                let zero = n.scalar(n.dtype(x)?, 0.0);
                let negative_part = n.op_without_attrs("minimum", &[x, zero])?;
                let power = n.op_without_attrs("exp", &[negative_part])?;
                let power_minus_one = n.with_scalar("subtract", power, 1.0)?;
                let negative = n.with_scalar("multiply", power_minus_one, alpha)?;
                let positive = n.op_without_attrs("nn.relu", &[x])?;
                n.op_without_attrs("add", &[positive, negative])
            }
            "softsign" => {
                let size = n.op_without_attrs("abs", &[x])?;
                let shifted_size = n.with_scalar("add", size, 1.0)?;
                n.op_without_attrs("divide", &[x, shifted_size])
            }
            _ => crate::ops::elementwise::softplus(n, x),
        }
    }
}

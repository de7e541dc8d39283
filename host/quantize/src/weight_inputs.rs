//! Weights declared as inputs: Relay programs declare weights as parameters of `@main` and store their values
//! separately. The calibration data provides the values, which become constants of the quantized model.

use super::source::Source;
use byoc::frontend::{self, LoadOptions, Signature};
use byoc::io::{self, random};
use byoc::runtime::error::Failure;
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::ir::{Expr, ExprId, Module, Type};
use byoc_ir::op;
use byoc_ir::tensor::{DType, Tensor};
use byoc_ir::typing::Rebuild;
use std::collections::BTreeMap;
use std::path::Path;

/// Weights among the model inputs, with their values.
#[derive(Default)]
pub struct WeightInputs {
    /// Values by name.
    pub values: BTreeMap<String, Tensor>,
    /// Non-fatal diagnostics.
    pub warnings: Vec<Diagnostic>,
}

/// Finds the inputs that serve only as weights or biases of layers, and reads their values. An input stays an input if
/// the calibration data has no entry of its shape.
///
/// # Errors
/// If the model or the calibration data cannot be read.
pub fn read(
    path: &Path,
    signature: &Signature,
    dims: &BTreeMap<String, usize>,
    source: &Source,
) -> Result<WeightInputs, Failure> {
    let mut weight_inputs = WeightInputs::default();
    // Most models have one input, and their weights are constants.
    if signature.inputs.len() < 2 || matches!(source, Source::Images(..)) {
        return Ok(weight_inputs);
    }
    let options = LoadOptions { dims: dims.clone(), ..LoadOptions::default() };
    let module = frontend::load(path, &options)?.module;
    for (port, shape) in signature.inputs.iter().zip(weight_shapes(&module)) {
        let Some(shape) = shape else { continue };
        if let Some(value) = value(source, &port.name, &shape, weight_inputs.values.len())? {
            weight_inputs.values.insert(port.name.clone(), value);
        }
    }
    if !weight_inputs.values.is_empty() {
        weight_inputs.warnings.push(warning(source, &weight_inputs.values));
    }
    Ok(weight_inputs)
}

fn warning(source: &Source, values: &BTreeMap<String, Tensor>) -> Diagnostic {
    let names: Vec<&str> = values.keys().map(String::as_str).collect();
    let message = format!("weight inputs become constants of the quantized model: {}", names.join(", "));
    let is_random = matches!(source, Source::Random(_));
    let code = if is_random { codes::frontends::CALIBRATION_MADE_UP } else { codes::frontends::CALIBRATION_MISFIT };
    let warning = Diagnostic::warning(code, message);
    if is_random {
        return warning
            .note("the weight values are random, like the calibration data")
            .help("for production, pass the real weights with --calibrate FILE.npz, one entry per weight");
    }
    warning.note("the weight values are read from the calibration entries of the same names")
}

/// Returns the shape of each `@main` parameter that serves only as a weight or bias of layers; `None` for the remaining
/// parameters.
fn weight_shapes(module: &Module) -> Vec<Option<Vec<usize>>> {
    let params = module.main().map(|main| main.params.to_vec()).unwrap_or_default();
    let mut users_by_param: BTreeMap<ExprId, Vec<ExprId>> = params.iter().map(|&param| (param, Vec::new())).collect();
    let live_exprs = module.live();
    for (id, node) in
        module.nodes.iter().filter(|(id, node)| live_exprs[*id] && !matches!(node.expr, Expr::Function(_)))
    {
        node.expr.for_each_operand(|operand| {
            if let Some(users_by_param) = users_by_param.get_mut(&operand) {
                users_by_param.push(id);
            }
        });
    }
    let is_weight = |param: ExprId, user: &ExprId| {
        module.expr(*user).as_op_call().is_some_and(|(operator, call)| {
            ["nn.conv2d", "nn.dense", "nn.bias_add"].contains(&op::get(operator).name)
                && call.args.first() != Some(&param)
        })
    };
    let shape = |param: &ExprId| {
        let ty = module.ty(*param).as_tensor().filter(|ty| ty.dtype == DType::F32)?;
        let is_weight_only =
            !users_by_param[param].is_empty() && users_by_param[param].iter().all(|user| is_weight(*param, user));
        is_weight_only.then(|| ty.shape().map(|shape| shape.to_vec())).flatten()
    };
    params.iter().map(shape).collect()
}

/// Returns the value of a weight: random, or the calibration entry with its name and shape.
fn value(source: &Source, name: &str, shape: &[usize], index: usize) -> Result<Option<Tensor>, Failure> {
    match source {
        Source::Random(seed) => Ok(Some(random_weight(shape, seed.wrapping_add(1 + index as u64)))),
        Source::Images(..) => Ok(None),
        Source::Arrays(path) => {
            let mut file = io::npz::Npz::open(path)?;
            let Some(entry_index) = file.names().iter().position(|entry| entry == name) else { return Ok(None) };
            let header = file.header(entry_index)?;
            let is_float32 = header.dtype == DType::F32 && header.shape[..] == *shape;
            Ok(if is_float32 { Some(file.read(entry_index)?) } else { None })
        }
    }
}

/// Returns a random weight with a uniform distribution of variance 2 / n for n terms per output element, so that the
/// results have about the magnitude of the inputs.
fn random_weight(shape: &[usize], seed: u64) -> Tensor {
    let terms: usize = shape.iter().skip(1).product();
    let bound = (6.0 / terms.max(1) as f64).sqrt();
    let mut random = random::Random::new(seed);
    let count = shape.iter().product();
    let values: Vec<f32> = (0..count).map(|_| ((2.0 * random.uniform() - 1.0) * bound) as f32).collect();
    Tensor::from_slice(shape, &values)
}

impl WeightInputs {
    /// Returns the signature without the weight inputs.
    pub fn remaining(&self, signature: &Signature) -> Signature {
        let mut other_inputs = signature.clone();
        other_inputs.inputs.retain(|port| !self.values.contains_key(&port.name));
        other_inputs
    }

    /// Replaces the weight parameters of `@main` with constants. `signature` declares the parameters.
    ///
    /// # Errors
    /// If the resulting module does not type-check, which would be a bug.
    pub fn bind(&self, module: Module, signature: &Signature) -> Result<Module, Failure> {
        if self.values.is_empty() {
            return Ok(module);
        }
        let params = module.main().map(|main| main.params.to_vec()).unwrap_or_default();
        let bound: BTreeMap<ExprId, &Tensor> = params
            .iter()
            .zip(&signature.inputs)
            .filter_map(|(&param, port)| Some((param, self.values.get(&port.name)?)))
            .collect();
        let main = module.globals.get("main").copied();
        let module = Rebuild::run(&module, |rebuild, id, expr| {
            if let Some(value) = bound.get(&id) {
                return Ok(Some(rebuild.new.constant((*value).clone())));
            }
            match expr {
                Expr::Function(function) if Some(id) == main => {
                    let params = function.params.iter().filter(|param| !bound.contains_key(*param));
                    let params: Vec<ExprId> = params.map(|&param| rebuild.get(param)).collect();
                    let body = rebuild.get(function.body);
                    rebuild.new.function(&params, body, Type::Unknown, function.attrs.clone()).map(Some)
                }
                _ => Ok(None),
            }
        })?;
        Ok(module)
    }
}

//! Reading and simplification of the float model (batch norms are folded into weights). Dimensions that the module does
//! not depend on stay symbolic.
//!
//! Models are imported with all dimensions bound, because only then can the shape arithmetic emitted by exporters be
//! constant-folded. If two values of a dimension result in the same module, the module does not depend on the
//! dimension, which then stays symbolic in the quantized model.

use super::data::Samples;
use super::weight_inputs::WeightInputs;
use byoc::driver::SIMPLIFY;
use byoc::frontend::{self, LoadOptions, Loaded, Signature};
use byoc::runtime::error::Failure;
use byoc_core::analysis::structural_equal;
use byoc_core::pass::manager::{self, RunOptions};
use byoc_core::pass::{PassOptions, infer_type};
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::ir::{Dim, Expr, Module, Type};
use std::collections::BTreeMap;
use std::path::Path;

/// Float model, ready for analysis.
pub struct FloatModel {
    /// Simplified and typed module.
    pub module: Module,
    /// Number of samples per run, if the batch size is fixed.
    pub fixed_batch: Option<usize>,
    /// Non-fatal diagnostics.
    pub warnings: Vec<Diagnostic>,
}

/// Reads and simplifies the model with the inputs of `file`. The inputs in `weights` become constants, and the
/// dimensions in `dims`, which the user bound, stay bound.
///
/// # Errors
/// If the model cannot be read or simplified.
pub fn read(
    path: &Path,
    file: &Signature,
    weights: &WeightInputs,
    dims: &BTreeMap<String, usize>,
    samples: &Samples,
) -> Result<FloatModel, Failure> {
    let signature = &weights.remaining(file);
    let simplify_with = |shapes: &[Vec<usize>]| simplify(path, file, weights, dims, shapes);
    let declared_dims = declared_dims(signature, dims);
    let is_open = |dim: &Dim| dim.fixed().is_none();
    let shapes = samples.shapes(samples.batch());
    let (module, mut warnings) = simplify_with(&shapes)?;
    if !declared_dims.iter().flatten().any(is_open) {
        return Ok(FloatModel { module, fixed_batch: Some(samples.batch()), warnings });
    }
    // Try to keep all symbolic dimensions, then only the batch dimension.
    let batch_dims: Vec<Vec<Dim>> = declared_dims
        .iter()
        .zip(&shapes)
        .map(|(dims, shape)| {
            let bind = |(i, (dim, &size)): (usize, (&Dim, &usize))| if i > 0 { Dim::Fixed(size) } else { dim.clone() };
            dims.iter().zip(shape).enumerate().map(bind).collect()
        })
        .collect();
    for target_dims in [&declared_dims, &batch_dims] {
        let other_shapes: Vec<Vec<usize>> = target_dims
            .iter()
            .zip(&shapes)
            .map(|(dims, shape)| dims.iter().zip(shape).map(|(d, &n)| if is_open(d) { n + 1 } else { n }).collect())
            .collect();
        let Some(open_module) = with_inputs(&module, target_dims) else { continue };
        let Ok((other_module, _)) = simplify_with(&other_shapes) else { continue };
        if with_inputs(&other_module, target_dims)
            .is_some_and(|other_module| structural_equal(&open_module, &other_module).is_ok())
        {
            return Ok(FloatModel { module: open_module, fixed_batch: None, warnings });
        }
    }
    // The module depends on the batch size, so each run has one sample.
    let shapes = samples.shapes(1);
    let (module, _) = simplify_with(&shapes)?;
    let message =
        "symbolic dimensions are fixed in the quantized model, because the float model depends on their values";
    let fixed_inputs: Vec<String> =
        signature.inputs.iter().zip(&shapes).map(|(port, shape)| format!("{} {shape:?}", port.name)).collect();
    warnings.push(
        Diagnostic::warning(codes::frontends::DIMENSIONS_FIXED, message)
            .note(format!("fixed inputs: {}", fixed_inputs.join(", "))),
    );
    Ok(FloatModel { module, fixed_batch: Some(1), warnings })
}

/// Returns the module with inputs of the given shapes.
///
/// # Errors
/// E0607 if the module does not type-check with these shapes.
pub fn with_shapes(module: &Module, shapes: &[Vec<usize>]) -> Result<Module, Diagnostic> {
    let dims: Vec<Vec<Dim>> = shapes.iter().map(|s| s.iter().map(|&n| Dim::Fixed(n)).collect()).collect();
    with_inputs(module, &dims).ok_or_else(|| {
        Diagnostic::error(
            codes::runtime::NOT_LOWERABLE,
            format!("the model does not accept inputs of shapes {shapes:?}"),
        )
    })
}

/// Returns the module with inputs of the given dimensions; `None` if the result does not type-check.
fn with_inputs(module: &Module, inputs: &[Vec<Dim>]) -> Option<Module> {
    let mut module = module.clone();
    let main = *module.globals.get("main")?;
    let params = module.main()?.params.to_vec();
    for (param, dims) in params.into_iter().zip(inputs) {
        if let Expr::Var(var) = &mut module.nodes[param].expr
            && let Some(dtype) = var.annotation.as_tensor().map(|t| t.dtype)
        {
            var.annotation = Type::tensor_of(dtype, dims.iter().cloned());
        }
    }
    if let Expr::Function(function) = &mut module.nodes[main].expr {
        function.ret = Type::Unknown;
    }
    infer_type(&module).ok()
}

/// Returns the input dimensions declared by the file, with the dimensions in `bound` replaced by their values; an empty
/// list for an input of unknown rank.
fn declared_dims(signature: &Signature, bound: &BTreeMap<String, usize>) -> Vec<Vec<Dim>> {
    let fix = |dim: &Dim| dim.with_sizes(|name| bound.get(name).copied());
    signature.inputs.iter().map(|port| port.dims.iter().flatten().map(fix).collect()).collect()
}

/// Reads the model with its non-weight inputs bound to `shapes`, and runs the simplification passes.
fn simplify(
    path: &Path,
    file: &Signature,
    weights: &WeightInputs,
    dims: &BTreeMap<String, usize>,
    shapes: &[Vec<usize>],
) -> Result<(Module, Vec<Diagnostic>), Failure> {
    let names = weights.remaining(file).inputs.into_iter().map(|port| port.name);
    let options = LoadOptions {
        dims: dims.clone(),
        input_shapes: names.zip(shapes.iter().cloned()).collect(),
        ..LoadOptions::default()
    };
    let Loaded { module, mut warnings, .. } = frontend::load(path, &options)?;
    let module = weights.bind(module, file)?;
    let mut run = RunOptions { verify_each: cfg!(debug_assertions), ..RunOptions::default() };
    let simplified_output = manager::run(module, SIMPLIFY, &PassOptions::default(), &mut run)
        .map_err(|error| Failure::from(error.diagnostics))?;
    warnings.extend(simplified_output.warnings);
    Ok((simplified_output.module, warnings))
}

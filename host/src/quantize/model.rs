//! The float model: read, simplified (batch norms folded into weights), and with those dimensions left open that it
//! does not depend on.
//!
//! Models are imported with all dimensions bound, since the arithmetic on shapes that exporters write out disappears only
//! then. A model that comes out the same for two sizes of a dimension does not depend on it: the quantized model keeps the
//! dimension's name and takes any size.

use super::data::Samples;
use crate::build::SIMPLIFY;
use crate::error::Failure;
use crate::frontend::{self, LoadOptions, Loaded, Signature};
use byoc_core::diag::{Diagnostic, codes};
use byoc_core::ir::{Dim, Expr, Module, Type, structural_equal};
use byoc_core::pass::manager::{self, RunOptions};
use byoc_core::pass::{PassOptions, infer_type};
use std::collections::BTreeMap;
use std::path::Path;

/// A float model, ready to be looked at.
pub struct FloatModel {
    /// The program, simplified and typed.
    pub module: Module,
    /// Number of samples in a run, when that is not open.
    pub fixed_batch: Option<usize>,
    /// What should be said but does not stop the work.
    pub warnings: Vec<Diagnostic>,
}

/// Reads the model whose inputs `signature` declares. `dims` are the dimensions that the user bound; they stay bound.
///
/// # Errors
/// What is wrong with the model.
pub fn read(
    path: &Path,
    signature: &Signature,
    dims: &BTreeMap<String, usize>,
    samples: &Samples,
) -> Result<FloatModel, Failure> {
    let declared = declared(signature, dims);
    let open = |dim: &Dim| dim.fixed().is_none();
    let shapes = samples.shapes(samples.batch());
    let (module, mut warnings) = simplified(path, signature, dims, &shapes)?;
    if !declared.iter().flatten().any(open) {
        return Ok(FloatModel { module, fixed_batch: Some(samples.batch()), warnings });
    }
    // All open dimensions, or the number of samples alone.
    let batch_only: Vec<Vec<Dim>> = declared
        .iter()
        .zip(&shapes)
        .map(|(dims, shape)| {
            let bind = |(i, (dim, &size)): (usize, (&Dim, &usize))| if i > 0 { Dim::Fixed(size) } else { dim.clone() };
            dims.iter().zip(shape).enumerate().map(bind).collect()
        })
        .collect();
    for wanted in [&declared, &batch_only] {
        let other: Vec<Vec<usize>> = wanted
            .iter()
            .zip(&shapes)
            .map(|(dims, shape)| dims.iter().zip(shape).map(|(d, &n)| if open(d) { n + 1 } else { n }).collect())
            .collect();
        let Some(opened) = with_inputs(&module, wanted) else { continue };
        let Ok((again, _)) = simplified(path, signature, dims, &other) else { continue };
        if with_inputs(&again, wanted).is_some_and(|again| structural_equal(&opened, &again).is_ok()) {
            return Ok(FloatModel { module: opened, fixed_batch: None, warnings });
        }
    }
    // The program depends on the number of samples: it takes one at a time.
    let shapes = samples.shapes(1);
    let (module, _) = simplified(path, signature, dims, &shapes)?;
    let message =
        "the program that the model becomes depends on its open dimensions: the quantized model has them fixed";
    let fixed: Vec<String> =
        signature.inputs.iter().zip(&shapes).map(|(port, shape)| format!("{} {shape:?}", port.name)).collect();
    warnings.push(
        Diagnostic::warning(codes::frontends::DIMENSIONS_FIXED, message)
            .note(format!("inputs are {}", fixed.join(", "))),
    );
    Ok(FloatModel { module, fixed_batch: Some(1), warnings })
}

/// The program with inputs of these shapes, whatever they were.
///
/// # Errors
/// E0607 when it does not type: it takes other shapes.
pub fn with_shapes(module: &Module, shapes: &[Vec<usize>]) -> Result<Module, Diagnostic> {
    let dims: Vec<Vec<Dim>> = shapes.iter().map(|s| s.iter().map(|&n| Dim::Fixed(n)).collect()).collect();
    with_inputs(module, &dims).ok_or_else(|| {
        Diagnostic::error(codes::runtime::NOT_LOWERABLE, format!("the model does not take inputs of {shapes:?}"))
    })
}

/// The program with inputs of these dimensions; none when it does not type then.
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

/// The dimensions that the inputs have in the file, those that the user bound fixed; none for an input whose rank the file
/// does not say.
fn declared(signature: &Signature, bound: &BTreeMap<String, usize>) -> Vec<Vec<Dim>> {
    let fix = |dim: &Dim| match dim {
        Dim::Named(name) => bound.get(&**name).map_or_else(|| dim.clone(), |&n| Dim::Fixed(n)),
        other => other.clone(),
    };
    signature.inputs.iter().map(|port| port.dims.iter().flatten().map(fix).collect()).collect()
}

/// The model bound to these input shapes, after the simplifying passes.
fn simplified(
    path: &Path,
    signature: &Signature,
    dims: &BTreeMap<String, usize>,
    shapes: &[Vec<usize>],
) -> Result<(Module, Vec<Diagnostic>), Failure> {
    let names = signature.inputs.iter().map(|port| port.name.clone());
    let options = LoadOptions {
        dims: dims.clone(),
        input_shapes: names.zip(shapes.iter().cloned()).collect(),
        ..LoadOptions::default()
    };
    let Loaded { module, mut warnings, .. } = frontend::load(path, &options)?;
    let mut run = RunOptions { verify_each: cfg!(debug_assertions), ..RunOptions::default() };
    let ran = manager::run(module, SIMPLIFY, &PassOptions::default(), &mut run)
        .map_err(|error| Failure::from(error.diagnostics))?;
    warnings.extend(ran.warnings);
    Ok((ran.module, warnings))
}

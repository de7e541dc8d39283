//! Models out: a model at a stage of its compilation, for the writers of ONNX and of Relay text.

use super::SIMPLIFY;
use crate::frontend::Loaded;
#[cfg(feature = "onnx")]
use crate::frontend::{self, LoadOptions, onnx::write};
use byoc_core::pass::PassOptions;
use byoc_core::pass::manager::{self, RunOptions};
#[cfg(feature = "onnx")]
use byoc_ir::diag::Diagnostic;
use byoc_runtime::error::Failure;
#[cfg(feature = "onnx")]
use std::path::Path;

/// Stage of the compilation before it is divided among backends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ModelStage {
    /// As the frontend read it.
    Imported,
    /// Float operators between quantizations replaced by operators on integers.
    Quantized,
    /// After the passes of [`SIMPLIFY`].
    #[default]
    Simplified,
}

impl ModelStage {
    /// Returns the stage of that name.
    pub fn parse(name: &str) -> Option<ModelStage> {
        match name {
            "imported" => Some(ModelStage::Imported),
            "quantized" => Some(ModelStage::Quantized),
            "simplified" => Some(ModelStage::Simplified),
            _ => None,
        }
    }

    fn passes(self) -> &'static [&'static str] {
        match self {
            ModelStage::Imported => &[],
            ModelStage::Quantized => &["fake_quantization_to_integer"],
            ModelStage::Simplified => SIMPLIFY,
        }
    }
}

/// Returns the model at a stage; its inputs and outputs stay those of the file.
///
/// # Errors
/// If a pass fails.
pub fn at_stage(model: Loaded, stage: ModelStage) -> Result<Loaded, Failure> {
    let mut run = RunOptions { verify_each: cfg!(debug_assertions), ..RunOptions::default() };
    let output = manager::run(model.module, stage.passes(), &PassOptions::default(), &mut run);
    let output = output.map_err(|error| Failure::from(error.diagnostics))?;
    let mut warnings = model.warnings;
    warnings.extend(output.warnings);
    Ok(Loaded { module: output.module, warnings, ..model })
}

/// Reads a model whose dimensions stay symbolic, except those that `load` binds, and writes it at a stage of its compilation
/// as ONNX. Returns the warnings.
///
/// # Errors
/// If the model cannot be read, E0526 if it has no form in ONNX, E0513 if the file cannot be written.
#[cfg(feature = "onnx")]
pub fn export_onnx(
    model: &Path,
    load: LoadOptions,
    stage: ModelStage,
    options: &write::Options,
    output: &Path,
) -> Result<Vec<Diagnostic>, Failure> {
    let loaded = frontend::load(model, &LoadOptions { open_unbound: true, ..load })?;
    let Loaded { module, signature, warnings, .. } = at_stage(loaded, stage)?;
    write::write(&module, &signature, options)?.write_file(output)?;
    Ok(warnings)
}

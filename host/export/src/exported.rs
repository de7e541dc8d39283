//! Data of an export: options, interface, external functions.

use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::tensor::Tensor;
use byoc_loops::externals::Region;
use byoc_loops::form::Machine;
use byoc_loops::program::{Array, Program};
use byoc_plugin_api::DType;

/// Export options.
#[derive(Clone, Debug)]
pub struct Options {
    /// Prefix of all names and files.
    pub prefix: String,
    /// Name of the model, for comments.
    pub title: String,
    /// Target processor.
    pub machine: Machine,
    /// User-supplied functions.
    pub externs: Vec<Extern>,
    /// Storage of the constants.
    pub weights: Weights,
    /// True if float32 weights are stored as float16.
    pub half_weights: bool,
}

/// Storage of the constants of a project.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Weights {
    /// `const` arrays in a C file.
    #[default]
    Source,
    /// Separate file, which the calling program links, maps or reads.
    File,
}

/// Inputs of a run, and the expected outputs for checking the program.
#[derive(Clone, Debug, Default)]
pub struct RecordedValues {
    /// Values of the inputs.
    pub inputs: Vec<Tensor>,
    /// Expected values of the outputs.
    pub outputs: Vec<Tensor>,
}

/// Input or output of the exported program.
#[derive(Clone, Debug)]
pub struct Port {
    /// Name in the model.
    pub name: String,
    /// C identifier.
    pub identifier: String,
    /// Element type.
    pub dtype: DType,
    /// Dimensions.
    pub shape: Vec<i64>,
}

impl ExportedModel<'_> {
    /// Returns true if the constants are in a separate file.
    pub fn has_weights_file(&self) -> bool {
        self.options.weights == Weights::File
    }

    /// Returns true if a backend region can report a failure.
    pub fn has_status(&self) -> bool {
        self.regions.iter().any(|region| region.call.status)
    }
}

impl Port {
    /// Returns the number of elements.
    pub fn count(&self) -> i64 {
        self.shape.iter().product()
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> i64 {
        self.count() * self.dtype.size() as i64
    }
}

/// Exported model: the program and its interface.
pub struct ExportedModel<'a> {
    pub options: &'a Options,
    /// Functions, constants and arena.
    pub program: Program,
    pub inputs: Vec<Port>,
    pub outputs: Vec<Port>,
    /// Backend regions.
    pub regions: Vec<RegionCode>,
    /// Headers of external functions.
    pub includes: Vec<String>,
}

/// User-supplied function that computes an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extern {
    /// Relay name of the operator.
    pub operator: String,
    /// Layout of constant weights; empty to keep the layout in the model.
    pub kernel_layout: String,
    /// Name of the function.
    pub function: String,
    /// Header that declares the function.
    pub header: String,
}

/// Backend region as C code.
#[derive(Clone, Debug)]
pub struct RegionCode {
    /// Name of the region's function.
    pub symbol: String,
    /// Name of the backend.
    pub backend: String,
    /// Contents of the C file.
    pub source: String,
    /// Workspace and constants of the function.
    pub call: Region,
    /// Constants that the function reads.
    pub arrays: Vec<Array>,
    /// Size in bytes of the constant arrays in the C file.
    pub constant_bytes: i64,
}

/// Returns the diagnostic for a model that cannot be exported.
pub(crate) fn export_error(reason: String) -> Diagnostic {
    Diagnostic::error(codes::frontends::NOT_EXPORTABLE, format!("the model cannot be exported: {reason}"))
}

//! Data of an export: options, interface, functions from outside.

use byoc_emit_c::externals::Region;
use byoc_emit_c::form::Machine;
use byoc_emit_c::program::{Array, Program};
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::tensor::Tensor;
use byoc_plugin_api::DType;

/// Options of an export.
#[derive(Clone, Debug)]
pub struct Options {
    /// Prefix of all names and files.
    pub prefix: String,
    /// Name of the model, for comments.
    pub title: String,
    /// Processor that the code is generated for.
    pub machine: Machine,
    /// Functions of the user.
    pub externs: Vec<Extern>,
    /// Form of the constants.
    pub weights: Weights,
    /// Stores weights of float32 as float16.
    pub half_weights: bool,
}

/// Form of the constants of a project.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Weights {
    /// `const` arrays in a C file.
    #[default]
    Source,
    /// A file beside the sources, which the caller of the program links, maps or reads.
    File,
}

/// Inputs of a run and the outputs that the program is checked against.
#[derive(Clone, Debug, Default)]
pub struct Recorded {
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
    /// Name in C.
    pub identifier: String,
    /// Element type.
    pub dtype: DType,
    /// Dimensions.
    pub shape: Vec<i64>,
}

impl Exported<'_> {
    /// Returns true if the constants are in a file of their own.
    pub fn has_weights_file(&self) -> bool {
        self.options.weights == Weights::File
    }

    /// Returns true if a region of a backend reports failures.
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

/// Exported model: the program, and the names of its interface.
pub struct Exported<'a> {
    /// Options of the export.
    pub options: &'a Options,
    /// Functions, constants and arena.
    pub program: Program,
    /// Inputs.
    pub inputs: Vec<Port>,
    /// Outputs.
    pub outputs: Vec<Port>,
    /// Regions of backends.
    pub regions: Vec<RegionCode>,
    /// Headers of functions from outside.
    pub includes: Vec<String>,
}

/// Function of the user that computes an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extern {
    /// Relay name of the operator.
    pub operator: String,
    /// Layout of constant weights; empty for that of the model.
    pub kernel_layout: String,
    /// Name of the function.
    pub function: String,
    /// Header that declares it.
    pub header: String,
}

/// Region of a backend as C.
#[derive(Clone, Debug)]
pub struct RegionCode {
    /// Function of the region.
    pub symbol: String,
    /// Name of the backend.
    pub backend: String,
    /// C file.
    pub source: String,
    /// Workspace and constants of the function.
    pub call: Region,
    /// Constants that the function reads.
    pub arrays: Vec<Array>,
    /// Size in bytes of the constant arrays in the C file.
    pub constant_bytes: i64,
}

/// Returns the diagnostic of a model that has no C program.
pub(crate) fn not_exportable(reason: String) -> Diagnostic {
    Diagnostic::error(codes::frontends::NOT_EXPORTABLE, format!("the model cannot be exported: {reason}"))
}

//! Result of `byoc verify` for one directory.

use byoc::runtime::error::Failure;
use byoc_ir::diag::{Code, Diagnostic, codes};
use serde::{Deserialize, Serialize};

/// Status of a directory. The summary lists the variants in this order.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Pass,
    Fail,
    Unsupported,
    Error,
}

impl Status {
    pub const COUNT: usize = 4;

    /// Returns the name in reports and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Status::Pass => "pass",
            Status::Fail => "fail",
            Status::Unsupported => "unsupported",
            Status::Error => "error",
        }
    }
}

/// Error codes for models that the frontend does not support.
const UNSUPPORTED_CODES: [Code; 4] = [
    codes::frontends::UNSUPPORTED_OPERATOR,
    codes::frontends::UNSUPPORTED_OPSET,
    codes::frontends::UNSUPPORTED_TYPE,
    codes::frontends::NOT_CONSTANT,
];

/// Verification outcome of one directory.
#[derive(Serialize, Deserialize)]
pub struct FolderResult {
    pub status: Status,
    /// Largest |a - b| of a computed and a recorded element; `None` if the status is `Unsupported` or `Error`.
    pub max_abs_err: Option<f64>,
    /// Maximum, over the outputs, of the largest |a - b| divided by the largest finite |b|.
    pub max_rel_err: Option<f64>,
    /// Share of the FLOPs on backends.
    #[serde(rename = "offload_flops")]
    pub offload: f64,
    /// Code of the first error.
    pub code: Option<String>,
    /// Description of the difference or the errors; empty if the status is `Pass`.
    pub message: String,
}

impl FolderResult {
    /// Creates the result for a directory whose model could not be built or run.
    pub fn from_failure(failure: &Failure) -> FolderResult {
        let code = failure.diagnostics.first().map(|d| d.code);
        // A model that the frontend does not support counts as unsupported, not as an error.
        let is_unsupported = code.is_some_and(|c| UNSUPPORTED_CODES.contains(&c));
        let message = |d: &Diagnostic| match d.code {
            // The notes name the operators.
            codes::frontends::UNSUPPORTED_OPERATOR => format!("{}: {}", d.message, d.notes.join("; ")),
            _ => d.message.clone(),
        };
        let messages: Vec<String> = failure.diagnostics.iter().map(message).collect();
        let result = FolderResult::with_error(code.map(|c| c.to_string()), messages.join("; "));
        if is_unsupported { FolderResult { status: Status::Unsupported, ..result } } else { result }
    }

    /// Creates the result for a directory whose verification ended in an error.
    pub fn with_error(code: Option<String>, message: String) -> FolderResult {
        FolderResult { status: Status::Error, max_abs_err: None, max_rel_err: None, offload: 0.0, code, message }
    }
}

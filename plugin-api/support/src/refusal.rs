//! Lowering errors of a code generator, and their conversion to verdicts and errors.

use byoc_plugin_api::{Error, RefusalCode, Verdict};

/// Lowering error, which converts to a verdict or an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompileError {
    /// Refusal code.
    pub code: RefusalCode,
    /// Expected and found values.
    pub detail: String,
    /// Remedy; may be empty.
    pub hint: String,
}

/// Returns the innermost cause of an error: for a library that cannot be loaded, what the dynamic loader says.
pub fn cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// Returns a refusal without a hint.
///
/// # Errors
/// Always.
pub fn refuse<T>(code: RefusalCode, detail: impl Into<String>) -> Result<T, CompileError> {
    Err(CompileError::new(code, detail))
}

/// Returns a refusal with a hint.
///
/// # Errors
/// Always.
pub fn refuse_with_hint<T>(code: RefusalCode, detail: impl Into<String>, hint: &str) -> Result<T, CompileError> {
    Err(CompileError { code, detail: detail.into(), hint: hint.to_owned() })
}

impl CompileError {
    /// Creates an error without a hint.
    pub fn new(code: RefusalCode, detail: impl Into<String>) -> CompileError {
        CompileError { code, detail: detail.into(), hint: String::new() }
    }
}

impl From<Error> for CompileError {
    /// Keeps the code of a refusal; an error without one is an unsupported operator.
    fn from(error: Error) -> CompileError {
        let code = RefusalCode::ALL.iter().copied().find(|code| code.as_str() == error.code.as_str());
        let code = code.unwrap_or(RefusalCode::UnsupportedOp);
        CompileError { code, detail: error.message.to_string(), hint: error.hint.to_string() }
    }
}

impl From<CompileError> for Verdict {
    fn from(error: CompileError) -> Verdict {
        Verdict::refused(error.code, error.detail).hint(error.hint)
    }
}

impl From<CompileError> for Error {
    fn from(error: CompileError) -> Error {
        Error::new(error.detail).code(error.code.as_str()).hint(error.hint)
    }
}

//! Reason and hint of a refusal.

use byoc_plugin_api::{Error, RefusalCode, Verdict};

/// Refusal, which converts to a verdict or an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Kind of the reason.
    pub code: RefusalCode,
    /// Expected and found values.
    pub detail: String,
    /// Remedy; may be empty.
    pub hint: String,
}

/// Returns a refusal without a hint.
pub fn refuse<T>(code: RefusalCode, detail: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal { code, detail: detail.into(), hint: String::new() })
}

/// Returns a refusal with a hint.
pub fn refuse_with_hint<T>(code: RefusalCode, detail: impl Into<String>, hint: &str) -> Result<T, Refusal> {
    Err(Refusal { code, detail: detail.into(), hint: hint.to_owned() })
}

impl From<Refusal> for Verdict {
    fn from(refusal: Refusal) -> Verdict {
        Verdict::refused(refusal.code, refusal.detail).hint(refusal.hint)
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Error {
        Error::new(refusal.detail).hint(refusal.hint)
    }
}

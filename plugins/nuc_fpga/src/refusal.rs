//! Why something is not taken, and what helps.

use byoc_plugin_api::{Error, RefusalCode, Verdict};

/// A reason, before it becomes a verdict or an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Which kind of reason.
    pub code: RefusalCode,
    /// What was found and what is wanted.
    pub detail: String,
    /// What helps; may be empty.
    pub hint: String,
}

/// A refusal without a hint.
pub fn refuse<T>(code: RefusalCode, detail: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal { code, detail: detail.into(), hint: String::new() })
}

/// A refusal that says what helps.
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

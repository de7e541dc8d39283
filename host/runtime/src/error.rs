//! Errors reported to the caller: diagnostics, with their source text if any.

use byoc_ir::diag::{Code, Diagnostic, codes};
use byoc_plugin_api::device::DEVICE_LOST;

/// Text that diagnostics refer to.
#[derive(Clone, Debug)]
pub struct SourceText {
    /// Origin of the text, as the user named it.
    pub name: String,
    /// Contents of the text.
    pub text: String,
}

/// Error reported to the user: one or more diagnostics, each with a code.
#[derive(Clone, Debug, Default)]
pub struct Failure {
    /// Diagnostics, in the order in which they were found.
    pub diagnostics: Vec<Diagnostic>,
    /// Text that the spans of the diagnostics refer to.
    pub source: Option<SourceText>,
}

impl Failure {
    /// Creates an error without a location.
    pub fn new(code: Code, message: impl Into<String>) -> Failure {
        Diagnostic::error(code, message).into()
    }

    /// Sets the text that the diagnostics refer to.
    pub fn in_source(mut self, name: &str, text: &str) -> Failure {
        self.source = Some(SourceText { name: name.to_owned(), text: text.to_owned() });
        self
    }
}

impl From<Diagnostic> for Failure {
    fn from(diagnostic: Diagnostic) -> Failure {
        Failure { diagnostics: vec![diagnostic], source: None }
    }
}

impl From<Box<Diagnostic>> for Failure {
    fn from(diagnostic: Box<Diagnostic>) -> Failure {
        (*diagnostic).into()
    }
}

impl From<Vec<Diagnostic>> for Failure {
    fn from(diagnostics: Vec<Diagnostic>) -> Failure {
        Failure { diagnostics, source: None }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, diagnostic) in self.diagnostics.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{diagnostic}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}

/// Converts an error returned by a plugin entry to a diagnostic.
pub fn fault(error: &byoc_plugin_api::Error) -> Diagnostic {
    let code = match &*error.code {
        DEVICE_LOST => codes::runtime::DEVICE_LOST,
        _ => codes::plugins::PLUGIN_FAULT,
    };
    let diagnostic = Diagnostic::error(code, error.to_string());
    if error.hint.is_empty() { diagnostic } else { diagnostic.help(error.hint.as_str()) }
}

//! What went wrong, for whoever called: diagnostics, and the text they point into where there is one.

use byoc_core::diag::{Code, Diagnostic};

/// A text that diagnostics point into.
#[derive(Clone, Debug)]
pub struct SourceText {
    /// Where it came from, as the user named it.
    pub name: String,
    /// The text.
    pub text: String,
}

/// A user's error: one diagnostic or more, every one with a code.
#[derive(Clone, Debug, Default)]
pub struct Failure {
    /// What is wrong, in the order in which it was found.
    pub diagnostics: Vec<Diagnostic>,
    /// What the diagnostics' spans are spans of.
    pub source: Option<SourceText>,
}

impl Failure {
    /// One error without a place.
    pub fn new(code: Code, message: impl Into<String>) -> Failure {
        Diagnostic::error(code, message).into()
    }

    /// Says which text the diagnostics point into.
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

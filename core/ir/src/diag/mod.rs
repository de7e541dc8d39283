//! Diagnostics as plain data. The command line renders them; this crate never prints.

pub mod codes;
mod lines;
mod reports;

pub use lines::Lines;
pub use reports::{MAX_REPORTED, Reports, list};

use std::fmt;

/// Stable error code, shown as `E0101`. The first two digits identify the area (see [`codes`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Code(pub u16);

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "E{:04}", self.0)
    }
}

/// Severity of a diagnostic. Only an error makes a command fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The work cannot continue.
    Error,
    /// The work continues, but probably not as intended.
    Warning,
}

/// Half-open range of byte offsets in a source text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Span {
    /// Offset of the first byte.
    pub start: u32,
    /// Offset one past the last byte.
    pub end: u32,
}

impl Span {
    /// Returns the smallest span that covers `self` and `other`.
    pub fn to(self, other: Span) -> Span {
        Span { start: self.start.min(other.start), end: self.end.max(other.end) }
    }
}

/// Source span with explanatory text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// Span in the source.
    pub span: Span,
    /// Text shown at the span; may be empty.
    pub text: String,
}

/// Message to the user: what was expected, where, what was found instead, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Stable error code.
    pub code: Code,
    /// Error or warning.
    pub severity: Severity,
    /// Message: one line, lower case, no full stop.
    pub message: String,
    /// Labeled source spans; the first label is the primary label. The renderer adds the source itself.
    pub labels: Vec<Label>,
    /// Additional facts, one line each.
    pub notes: Vec<String>,
    /// Remedy for the user.
    pub help: Option<String>,
}

impl Diagnostic {
    /// Creates an error without a source span.
    pub fn error(code: Code, message: impl Into<String>) -> Self {
        Diagnostic {
            code,
            severity: Severity::Error,
            message: message.into(),
            labels: Vec::new(),
            notes: Vec::new(),
            help: None,
        }
    }

    /// Creates a warning without a source span.
    pub fn warning(code: Code, message: impl Into<String>) -> Self {
        Diagnostic { severity: Severity::Warning, ..Diagnostic::error(code, message) }
    }

    /// Adds a label; the first label added is the primary label.
    pub fn at(mut self, span: Span, text: impl Into<String>) -> Self {
        self.labels.push(Label { span, text: text.into() });
        self
    }

    /// Adds a note.
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }

    /// Sets the help text.
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)?;
        for note in &self.notes {
            write!(f, "\n  note: {note}")?;
        }
        if let Some(help) = &self.help {
            write!(f, "\n  help: {help}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostic {}

/// Formats a count and a noun, as in `1 region` and `2 regions`.
pub fn plural(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Maximum length of a name for which a similar name is searched, in bytes.
const MAX_SEARCHED_NAME: usize = 256;

/// Maximum number of names that are compared with a misspelled name.
const MAX_CANDIDATES: usize = 10_000;

/// Returns the name in `candidates` nearest to `target`, if `target` is likely to be a misspelling of it. Long names and
/// candidates after the first 10,000 are not searched, because a model can have any number of names of any length.
pub fn nearest<'a>(target: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if target.len() > MAX_SEARCHED_NAME {
        return None;
    }
    let length = target.chars().count();
    let limit = (length / 3).max(1);
    candidates
        .into_iter()
        .take(MAX_CANDIDATES)
        // The distance is at least the difference of the lengths.
        .filter(|name| name.len() <= 4 * (length + limit) && name.chars().count().abs_diff(length) <= limit)
        .map(|name| (strsim::levenshtein(target, name), name))
        .filter(|(distance, _)| *distance <= limit)
        .min()
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_finds_typos_only() {
        let names = ["nn.conv2d", "nn.dense", "add"];
        assert_eq!(nearest("nn.conv2", names), Some("nn.conv2d"));
        assert_eq!(nearest("nn.dens", names), Some("nn.dense"));
        assert_eq!(nearest("completely.other", names), None);
    }

    #[test]
    fn nearest_bounds_its_search() {
        let long_name = "x".repeat(MAX_SEARCHED_NAME + 1);
        assert_eq!(nearest(&long_name, [&*long_name]), None);
        let mut visited = 0;
        let names = std::iter::repeat_with(|| {
            visited += 1;
            "other"
        });
        assert_eq!(nearest("name", names.take(1 << 20)), None);
        assert_eq!(visited, MAX_CANDIDATES);
    }
}

//! Bounded collection of the errors of one operation.
//!
//! A text of a few bytes per line can have an error in each line, and each error costs a message, a search for similar
//! names and a part of the output. So only the first errors are created, and the others are counted.

use super::Diagnostic;
use std::fmt::{self, Write};

/// Maximum number of errors that one operation reports.
pub const MAX_REPORTED: usize = 100;

/// Errors of one operation: the first [`MAX_REPORTED`], and the number of the others.
#[derive(Clone, Debug)]
pub struct Reports<T = Diagnostic> {
    kept: Vec<T>,
    omitted: usize,
}

impl<T> Default for Reports<T> {
    fn default() -> Self {
        Reports { kept: Vec::new(), omitted: 0 }
    }
}

impl<T: AsMut<Diagnostic>> Reports<T> {
    /// Adds an error. `create` is called only if the error is among the first [`MAX_REPORTED`].
    pub fn add(&mut self, create: impl FnOnce() -> T) {
        match self.is_full() {
            true => self.omitted += 1,
            false => self.kept.push(create()),
        }
    }

    /// Returns true if no error was added.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Returns true if further errors are only counted.
    pub fn is_full(&self) -> bool {
        self.kept.len() >= MAX_REPORTED
    }

    /// Returns the errors that are kept, ordered by `key`; the last one has a note with the number of the others.
    pub fn into_sorted<K: Ord>(mut self, key: impl FnMut(&T) -> K) -> Vec<T> {
        self.kept.sort_by_key(key);
        self.into_vec()
    }

    /// Returns the errors that are kept, in the order in which they were added; the last one has a note with the number
    /// of the others.
    pub fn into_vec(self) -> Vec<T> {
        let Reports { mut kept, omitted } = self;
        if omitted > 0
            && let Some(last) = kept.last_mut()
        {
            let errors = if omitted == 1 { "error is" } else { "errors are" };
            last.as_mut().notes.push(format!("{omitted} more {errors} not shown"));
        }
        kept
    }
}

/// Maximum number of names that a message lists.
const MAX_LISTED: usize = 50;

/// Lists names for a message, separated by `separator`; of many names, the first and the number of the others.
pub fn list(names: impl IntoIterator<Item = impl fmt::Display>, separator: &str) -> String {
    let mut names = names.into_iter();
    let mut text = String::new();
    for (i, name) in names.by_ref().take(MAX_LISTED).enumerate() {
        let separator = if i == 0 { "" } else { separator };
        // Writing to a string does not fail.
        let _ = write!(text, "{separator}{name}");
    }
    match names.count() {
        0 => text,
        omitted => format!("{text}{separator}{omitted} more"),
    }
}

impl AsMut<Diagnostic> for Diagnostic {
    fn as_mut(&mut self) -> &mut Diagnostic {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::super::codes;
    use super::*;

    #[test]
    fn lists_are_bounded() {
        assert_eq!(list(["a", "b"], " and "), "a and b");
        let text = list(0..MAX_LISTED + 10, ", ");
        assert!(text.starts_with("0, 1, ") && text.ends_with(", 49, 10 more"), "{text}");
    }

    #[test]
    fn first_errors_are_kept_and_the_others_counted() {
        for (count, kept, note) in [
            (0, 0, None),
            (MAX_REPORTED, MAX_REPORTED, None),
            (MAX_REPORTED + 1, MAX_REPORTED, Some("1 more error is not shown")),
            (MAX_REPORTED + 900, MAX_REPORTED, Some("900 more errors are not shown")),
        ] {
            let (mut reports, mut created) = (Reports::default(), 0);
            for _ in 0..count {
                reports.add(|| {
                    created += 1;
                    Diagnostic::error(codes::text::UNEXPECTED_TOKEN, "error")
                });
            }
            assert_eq!((created, reports.is_empty(), reports.is_full()), (kept, count == 0, count >= MAX_REPORTED));
            let errors = reports.into_vec();
            let notes: Vec<&str> = errors.iter().flat_map(|error| &error.notes).map(String::as_str).collect();
            assert_eq!((errors.len(), notes), (kept, note.into_iter().collect()));
        }
    }
}

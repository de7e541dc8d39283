//! Something wrong with a module, and where.

use super::{ExprId, IndexVec};
use crate::diag::{Diagnostic, Span};

/// Something wrong with an expression of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The expression; none for what concerns the module as a whole.
    pub at: Option<ExprId>,
    /// Violation, in words.
    pub diagnostic: Diagnostic,
}

impl Fault {
    /// The diagnostic, with the place in the text that the expression was read from.
    pub fn located(self, spans: &IndexVec<ExprId, Span>) -> Diagnostic {
        match self.at.and_then(|id| spans.get(id)) {
            Some(&span) => self.diagnostic.at(span, ""),
            None => self.diagnostic,
        }
    }
}

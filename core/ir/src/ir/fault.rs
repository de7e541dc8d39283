//! Violation of a rule of the IR, and its location.

use super::{ExprId, IndexVec};
use crate::diag::{Diagnostic, Span};

/// Violation of a rule of the IR.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Expression at fault; `None` if the violation concerns the module as a whole.
    pub at: Option<ExprId>,
    /// Description of the violation.
    pub diagnostic: Diagnostic,
}

impl Fault {
    /// Returns the diagnostic with the source span of the expression.
    pub fn located(self, spans: &IndexVec<ExprId, Span>) -> Diagnostic {
        match self.at.and_then(|id| spans.get(id)) {
            Some(&span) => self.diagnostic.at(span, ""),
            None => self.diagnostic,
        }
    }
}

impl AsMut<Diagnostic> for Fault {
    fn as_mut(&mut self) -> &mut Diagnostic {
        &mut self.diagnostic
    }
}

//! Recovery after a syntax error.

use super::frames::{ParseFrame, State};
use super::{Kind, Parser, Result};
use crate::diag::Diagnostic;
use crate::ir::{Expr, ExprId};

impl Parser<'_> {
    /// Reports an error, drops unfinished constructs in the enclosing block, and skips to a token at which parsing can
    /// continue.
    ///
    /// # Errors
    /// If no enclosing block can continue or no more errors are shown. An error that is not yet reported is returned.
    pub(super) fn recover(&mut self, error: Box<Diagnostic>) -> Result<State> {
        let block = self.frames.iter().rposition(is_block);
        self.has_skipped_text |= self.diagnostics.is_full();
        let Some(block) = block.filter(|_| !self.diagnostics.is_full()) else {
            return Err(error);
        };
        let kept_frame_count = match self.frames.get(block + 1) {
            Some(ParseFrame::Sequence { .. }) => block + 2,
            _ => block + 1,
        };
        // Each abandoned match left one brace open.
        let mut depth = self.frames[kept_frame_count.min(self.frames.len())..]
            .iter()
            .filter(|f| matches!(f, ParseFrame::Clause(_)))
            .count();
        self.unwind(kept_frame_count);
        let state = loop {
            let token = self.peek();
            match token.kind {
                Kind::OpenBrace => depth += 1,
                Kind::CloseBrace if depth == 0 => break State::Complete(self.unit()),
                Kind::CloseBrace => depth -= 1,
                Kind::Semicolon if depth == 0 => {
                    self.take();
                    break State::Item;
                }
                _ if self.is_at_end_of_definition() => {
                    // An error at this token already reports that the block is not closed.
                    if error.labels.first().is_some_and(|label| label.span == token.span) {
                        return Err(error);
                    }
                    self.report(error);
                    return Err(self.unexpected_token(token, "`}`"));
                }
                _ => {}
            }
            self.take();
        };
        self.report(error);
        Ok(state)
    }

    /// Returns true at a token that no block contains: the end of the text, or the next definition.
    fn is_at_end_of_definition(&mut self) -> bool {
        let token = self.peek();
        match token.kind {
            Kind::Eof | Kind::OpenString | Kind::OpenComment => true,
            _ => match self.word(token) {
                Some("def") => self.peek_second().kind == Kind::Global,
                Some("type") => self.peek_second().kind == Kind::Ident,
                Some("extern") => {
                    let second = self.peek_second();
                    self.word(second) == Some("type")
                }
                _ => false,
            },
        }
    }

    /// Drops all frames.
    pub(super) fn abandon(&mut self) {
        self.unwind(0);
        self.values.clear();
        self.attrs.clear();
        self.lets.clear();
        self.names.leave(0);
        self.type_params.clear();
    }

    /// Skips to the next definition, after an error outside any block.
    pub(super) fn skip_to_definition(&mut self) {
        loop {
            // The keyword of the faulty definition has already been consumed, so any definition found here is a later
            // one.
            let token = self.peek();
            let is_unterminated = matches!(token.kind, Kind::OpenString | Kind::OpenComment);
            if self.is_at_end_of_definition() && !is_unterminated {
                return;
            }
            self.take();
        }
    }

    /// Drops the frames above `depth`; the names that they would have bound are bound to placeholders.
    fn unwind(&mut self, depth: usize) {
        while self.frames.len() > depth {
            match self.frames.pop() {
                Some(ParseFrame::LetValue { name, var, bound: is_bound }) if !is_bound => {
                    self.names.bind(self.local_name(name), var);
                }
                Some(ParseFrame::GraphValue { number }) => {
                    let unit = self.unit();
                    // A duplicate number is not reported: the statement has already been reported as faulty.
                    let _ = self.bind_graph(number, unit);
                }
                Some(ParseFrame::Sequence { lets, scope }) => {
                    self.lets.truncate(lets as usize);
                    self.names.leave(scope);
                }
                Some(ParseFrame::Paren { values, .. }) => self.values.truncate(values as usize),
                Some(ParseFrame::Arguments { values, attrs, .. }) => {
                    self.values.truncate(values as usize);
                    self.attrs.truncate(attrs as usize);
                }
                _ => {}
            }
        }
    }

    /// Appends `()` as a placeholder for an expression that could not be parsed.
    fn unit(&mut self) -> ExprId {
        let position = self.last_end;
        self.push(Expr::Tuple(Box::new([])), position)
    }
}

fn is_block(frame: &ParseFrame) -> bool {
    match frame {
        ParseFrame::Then { .. } | ParseFrame::Otherwise { .. } | ParseFrame::Body(_) => true,
        ParseFrame::Clause(open) => open.has_braces,
        _ => false,
    }
}

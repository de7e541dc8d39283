//! Parser of `match (data) { pattern => body, ... }` and its patterns.

use super::frames::{OpenMatch, ParseFrame, State};
use super::types::nesting_error;
use super::{Kind, Parser, Result};
use crate::ir::{Clause, ClausePattern, Expr, ExprId, Match, Type};
use crate::text::MAX_NESTING;

impl Parser<'_> {
    /// Parses `match (` or `match? (`.
    pub(super) fn match_data(&mut self, start: u32) -> Result<State> {
        self.take();
        let is_complete = !self.accept(Kind::Question);
        self.expect(Kind::OpenParen)?;
        self.frames.push(ParseFrame::MatchData { start, is_complete });
        Ok(State::Item)
    }

    /// Parses `) {` and begins the first clause.
    pub(super) fn open_match(&mut self, start: u32, is_complete: bool, data: ExprId) -> Result<State> {
        self.expect(Kind::CloseParen)?;
        self.expect(Kind::OpenBrace)?;
        self.frames.pop();
        let scope = self.names.scope();
        let frame =
            OpenMatch { start, data, is_complete, clauses: Vec::new(), pattern: None, has_braces: false, scope };
        self.frames.push(ParseFrame::Clause(Box::new(frame)));
        self.next_clause()
    }

    /// Parses the next pattern, or the end of the match. The match frame must be on top of the stack.
    fn next_clause(&mut self) -> Result<State> {
        if self.accept(Kind::CloseBrace) {
            let Some(ParseFrame::Clause(frame)) = self.frames.pop() else {
                unreachable!("the frame of a match is on top when its clauses end");
            };
            let OpenMatch { start, data, is_complete, clauses, .. } = *frame;
            let m = Match { data, clauses: clauses.into(), complete: is_complete };
            return Ok(State::After(self.push(Expr::Match(Box::new(m)), start), start));
        }
        let pattern = self.clause_pattern(0)?;
        self.expect(Kind::FatArrow)?;
        let has_braces = self.accept(Kind::OpenBrace);
        if let Some(ParseFrame::Clause(frame)) = self.frames.last_mut() {
            frame.pattern = Some(pattern);
            frame.has_braces = has_braces;
        }
        Ok(State::Item)
    }

    /// Completes a clause whose body has been read.
    pub(super) fn close_clause(&mut self, body: ExprId) -> Result<State> {
        let Some(ParseFrame::Clause(frame)) = self.frames.last_mut() else {
            unreachable!("the caller checked the frame");
        };
        let (has_braces, scope) = (frame.has_braces, frame.scope);
        if let Some(pattern) = frame.pattern.take() {
            frame.clauses.push(Clause { pattern, body });
        }
        if has_braces {
            self.expect(Kind::CloseBrace)?;
        }
        if let Some(ParseFrame::Clause(frame)) = self.frames.last_mut() {
            frame.has_braces = false;
        }
        self.names.leave(scope);
        let token = self.peek();
        // The comma is optional if no expression can continue with the next token.
        let begins_pattern = matches!(token.kind, Kind::Ident | Kind::Local);
        if !self.accept(Kind::Comma) && token.kind != Kind::CloseBrace && !has_braces && !begins_pattern {
            return Err(self.unexpected_token(token, "`,` or `}`"));
        }
        self.next_clause()
    }

    fn clause_pattern(&mut self, depth: usize) -> Result<ClausePattern> {
        let token = self.peek();
        if depth >= MAX_NESTING {
            return Err(nesting_error("patterns", token.span));
        }
        match token.kind {
            Kind::Local => {
                self.take();
                let annotation = if self.accept(Kind::Colon) { self.ty()? } else { Type::Unknown };
                let var = self.variable(token, annotation);
                self.names.bind(self.local_name(token), var);
                Ok(ClausePattern::Var(var))
            }
            Kind::OpenParen => {
                self.take();
                Ok(ClausePattern::Tuple(self.field_patterns(depth)?))
            }
            Kind::Ident if self.text_of(token) == "_" => {
                self.take();
                Ok(ClausePattern::Any)
            }
            Kind::Ident => {
                self.take();
                let name = self.names.shared_name(self.text_of(token));
                if self.module.types.constructor(&name).is_none() {
                    self.unknown_callees.push((token, true));
                }
                let fields = if self.accept(Kind::OpenParen) { self.field_patterns(depth)? } else { Box::new([]) };
                Ok(ClausePattern::Constructor { name, fields })
            }
            _ => Err(self.unexpected_token(token, "a pattern: `_`, a variable, a constructor or a tuple")),
        }
    }

    /// Parses patterns up to and including the closing parenthesis; a trailing comma is allowed.
    fn field_patterns(&mut self, depth: usize) -> Result<Box<[ClausePattern]>> {
        let mut fields = Vec::new();
        while !self.accept(Kind::CloseParen) {
            fields.push(self.clause_pattern(depth + 1)?);
            if self.peek().kind != Kind::CloseParen {
                self.expect(Kind::Comma)?;
            }
        }
        Ok(fields.into())
    }
}

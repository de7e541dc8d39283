//! Token stream with a lookahead of two, and the diagnostic for an unexpected token.

use super::{Kind, Parser, Result, Token};
use crate::diag::{Diagnostic, codes};

impl<'a> Parser<'a> {
    pub(super) fn peek(&mut self) -> Token {
        if self.lookahead == 0 {
            self.lookahead_tokens[0] = self.lexer.next();
            self.lookahead = 1;
        }
        self.lookahead_tokens[0]
    }

    pub(super) fn peek_second(&mut self) -> Token {
        self.peek();
        if self.lookahead == 1 {
            self.lookahead_tokens[1] = self.lexer.next();
            self.lookahead = 2;
        }
        self.lookahead_tokens[1]
    }

    pub(super) fn take(&mut self) -> Token {
        let token = self.peek();
        self.lookahead_tokens[0] = self.lookahead_tokens[1];
        self.lookahead -= 1;
        self.last_end = token.span.end;
        if self.ticks.is_requested() {
            self.stop_if_cancelled();
        }
        token
    }

    /// Consumes the next token if its kind is `kind`.
    pub(super) fn accept(&mut self, kind: Kind) -> bool {
        let is_match = self.peek().kind == kind;
        if is_match {
            self.take();
        }
        is_match
    }

    pub(super) fn expect(&mut self, kind: Kind) -> Result<Token> {
        let token = self.peek();
        if token.kind == kind { Ok(self.take()) } else { Err(self.unexpected_token(token, kind.describe())) }
    }

    pub(super) fn text_of(&self, token: Token) -> &'a str {
        &self.source[token.span.start as usize..token.span.end as usize]
    }

    /// Returns the text of a name token.
    pub(super) fn word(&self, token: Token) -> Option<&'a str> {
        (token.kind == Kind::Ident).then(|| self.text_of(token))
    }

    /// Returns the name in `%name`, `@name` and their quoted forms.
    pub(super) fn local_name(&self, token: Token) -> &'a str {
        unquote(&self.text_of(token)[1..])
    }

    /// Creates the diagnostic for an unexpected token. Unknown characters and unterminated tokens have specific
    /// messages.
    #[cold]
    pub(super) fn unexpected_token(&self, token: Token, expected: &str) -> Box<Diagnostic> {
        let text = self.text_of(token);
        Box::new(match token.kind {
            Kind::OpenString => Diagnostic::error(codes::text::UNTERMINATED, "unterminated string").at(token.span, ""),
            Kind::OpenComment => {
                Diagnostic::error(codes::text::UNTERMINATED, "unterminated comment").at(token.span, "")
            }
            // A carriage return is whitespace only before a line feed; elsewhere it indicates that line breaks were
            // lost.
            Kind::Unknown if text == "\r" => {
                let message = "expected a line feed after the carriage return, found none";
                Diagnostic::error(codes::text::UNEXPECTED_TOKEN, message)
                    .at(token.span, "")
                    .help("end the lines of the text with \\n or \\r\\n")
            }
            Kind::Unknown => {
                let message = format!("expected {expected}, found `{}`", text.escape_debug());
                Diagnostic::error(codes::text::UNEXPECTED_TOKEN, message).at(token.span, format!("expected {expected}"))
            }
            Kind::Ident | Kind::Local | Kind::Graph | Kind::Global | Kind::Number => Diagnostic::error(
                codes::text::UNEXPECTED_TOKEN,
                format!("expected {expected}, found `{}`", shorten(text)),
            )
            .at(token.span, format!("expected {expected}")),
            other => {
                let actual = other.describe();
                Diagnostic::error(codes::text::UNEXPECTED_TOKEN, format!("expected {expected}, found {actual}"))
                    .at(token.span, format!("expected {expected}"))
            }
        })
    }
}

/// Returns a name without its quotes.
pub(super) fn unquote(text: &str) -> &str {
    text.strip_prefix('"').and_then(|t| t.strip_suffix('"')).unwrap_or(text)
}

/// Truncates a long name.
pub(super) fn shorten(text: &str) -> String {
    let mut chars = text.chars();
    let mut start: String = chars.by_ref().take(60).collect();
    if chars.next().is_some() {
        start.push_str("...");
    }
    start
}

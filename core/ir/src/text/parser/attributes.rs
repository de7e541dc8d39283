//! Attributes of calls and functions: `strides=[1, 1], out_dtype="int32", axis=None`.

use super::types::nesting_error;
use super::{Kind, Parser, Result};
use crate::diag::{Diagnostic, Span, codes};
use crate::ir::{AttrValue, Name, OpId};
use crate::op;
use crate::text::MAX_NESTING;
use crate::text::number::{self, Number};

/// Attributes of functions that hold objects of TVM's executors, which no result depends on.
const UNREAD_OF_FUNCTIONS: [&str; 4] = ["executor", "runtime", "target", "virtual_device"];

impl Parser<'_> {
    /// Returns true if the next tokens are `name =`.
    pub(super) fn is_at_attribute(&mut self) -> bool {
        self.peek().kind == Kind::Ident && self.peek_second().kind == Kind::Equal
    }

    /// Parses `name = value` pairs up to and including the closing parenthesis, and appends them to `self.attrs`: the
    /// attributes of a call of `op`, or of a function.
    pub(super) fn parse_attributes(&mut self, op: Option<OpId>) -> Result<()> {
        let first = self.attrs.len();
        while !self.accept(Kind::CloseParen) {
            let token = self.peek();
            if token.kind != Kind::Ident {
                return Err(Box::new(
                    self.unexpected_token(token, "an attribute or `)`").help("write attributes after the arguments"),
                ));
            }
            self.take();
            self.expect(Kind::Equal)?;
            let name = self.text_of(token);
            let is_unread = match op {
                Some(op) => op::is_unread(op::get(op), name),
                None => UNREAD_OF_FUNCTIONS.contains(&name) && self.is_at_object(),
            };
            if is_unread {
                self.skip_value()?;
                continue;
            }
            let key = self.names.shared_name(name);
            let value = self.attribute_value(0)?;
            if self.attrs[first..].iter().any(|(k, _)| *k == key) {
                return Err(Box::new(
                    Diagnostic::error(codes::text::DUPLICATE_NAME, format!("duplicate attribute `{key}`"))
                        .at(token.span, ""),
                ));
            }
            self.attrs.push((key, value));
            self.check_list("attributes", self.attrs.len() - first, token.span)?;
            if self.peek().kind != Kind::CloseParen {
                self.expect(Kind::Comma)?;
            }
        }
        Ok(())
    }

    /// Returns true before a reference to metadata, or before a device in the form that TVM prints without metadata.
    fn is_at_object(&mut self) -> bool {
        let token = self.peek();
        matches!(self.word(token), Some("meta" | "VirtualDevice"))
    }

    /// Skips `{virtual_device=...}` after a parameter.
    pub(super) fn skip_device(&mut self) -> Result<()> {
        let name = if self.peek().kind == Kind::OpenBrace { self.peek_second() } else { return Ok(()) };
        if self.word(name) == Some("virtual_device") {
            self.take();
            self.take();
            self.expect(Kind::Equal)?;
            self.skip_value()?;
            self.expect(Kind::CloseBrace)?;
        }
        Ok(())
    }

    /// Skips a value of any form, up to and including the comma after it.
    fn skip_value(&mut self) -> Result<()> {
        let mut depth = 0usize;
        loop {
            let token = self.peek();
            match token.kind {
                Kind::Comma if depth == 0 => {
                    self.take();
                    return Ok(());
                }
                Kind::CloseParen | Kind::CloseBrace if depth == 0 => return Ok(()),
                Kind::OpenParen | Kind::OpenBracket | Kind::OpenBrace => depth += 1,
                Kind::CloseParen | Kind::CloseBracket | Kind::CloseBrace => depth = depth.saturating_sub(1),
                Kind::Unknown if depth > 0 => {}
                Kind::Eof | Kind::Unknown | Kind::OpenString | Kind::OpenComment | Kind::Semicolon => {
                    return Err(self.unexpected_token(token, "the value of an attribute"));
                }
                _ => {}
            }
            self.take();
        }
    }

    fn attribute_value(&mut self, depth: usize) -> Result<AttrValue> {
        const WANTED: &str = "a number, True, False, None, a string or a list";
        let token = self.peek();
        if depth > MAX_NESTING {
            return Err(nesting_error("lists", token.span));
        }
        let text = self.text_of(token);
        let value = match token.kind {
            Kind::OpenBracket | Kind::OpenParen => {
                let close = if token.kind == Kind::OpenBracket { Kind::CloseBracket } else { Kind::CloseParen };
                self.take();
                let mut items = Vec::new();
                while !self.accept(close) {
                    items.push(self.attribute_value(depth + 1)?);
                    if self.peek().kind != close {
                        self.expect(Kind::Comma)?;
                    }
                }
                return Ok(AttrValue::List(items.into()));
            }
            Kind::Minus | Kind::Number => {
                let number = self.number()?;
                let span = token.span.to(Span { start: token.span.start, end: self.last_end });
                if let Err(message) = number.to_tensor() {
                    return Err(Box::new(Diagnostic::error(codes::text::BAD_NUMBER, message).at(span, "")));
                }
                return match number {
                    Number::Int(value, _) => match i64::try_from(value) {
                        Ok(value) => Ok(AttrValue::Int(value)),
                        Err(_) => {
                            let message = format!("expected an integer that fits int64, found {value}");
                            Err(Box::new(Diagnostic::error(codes::text::BAD_NUMBER, message).at(span, "")))
                        }
                    },
                    Number::Float(value, _) => Ok(AttrValue::Float(value)),
                };
            }
            Kind::Str => AttrValue::Str(Name::from(&text[1..text.len() - 1])),
            Kind::Ident => match text {
                "True" => AttrValue::Bool(true),
                "False" => AttrValue::Bool(false),
                "None" | "nullptr" => AttrValue::None,
                "meta" => return self.meta_attribute(),
                _ => match number::special(text, false) {
                    Some(Number::Float(value, _)) => AttrValue::Float(value),
                    _ => return Err(self.unexpected_token(token, WANTED)),
                },
            },
            _ => return Err(self.unexpected_token(token, WANTED)),
        };
        self.take();
        Ok(value)
    }

    /// Parses a number preceded by zero or more minus signs.
    pub(super) fn number(&mut self) -> Result<Number> {
        let start = self.peek().span;
        let mut is_negative = false;
        while self.accept(Kind::Minus) {
            is_negative = !is_negative;
        }
        let token = self.peek();
        let text = self.text_of(token);
        let number = match token.kind {
            Kind::Number => number::parse(text, is_negative),
            Kind::Ident => match number::special(text, is_negative) {
                Some(number) => Ok(number),
                None => return Err(self.unexpected_token(token, "a number")),
            },
            _ => return Err(self.unexpected_token(token, "a number")),
        };
        self.take();
        number.map_err(|message| {
            Box::new(Diagnostic::error(codes::text::BAD_NUMBER, message).at(start.to(token.span), ""))
        })
    }
}

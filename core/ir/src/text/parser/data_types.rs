//! Type definitions: `type List[A] { Cons(A, List[A]), Nil }` and `extern type Handle`.

use super::tokens::shorten;
use super::{Kind, Parser, Result};
use crate::diag::{Diagnostic, codes, nearest};
use crate::ir::{Constructor, Name, Type, TypeDef, TypeDefs};
use crate::op;
use crate::text::number;
use std::sync::Arc;

impl Parser<'_> {
    /// Parses `type Name[A] { Constructor(A), ... }` or `extern type Name[A]`.
    pub(super) fn parse_type_definition(&mut self) -> Result<()> {
        let is_extern = self.is_at_word("extern");
        if is_extern {
            self.take();
        }
        if !self.is_at_word("type") {
            let token = self.peek();
            return Err(self.unexpected_token(token, "`type`"));
        }
        self.take();
        let token = self.expect(Kind::Ident)?;
        let name = self.names.shared_name(self.text_of(token));
        if self.text_of(token).contains('.') || Type::is_reserved(&name) {
            return Err(self.unexpected_token(token, "a name for the type"));
        }
        let params = self.type_parameters()?;
        let constructors = if is_extern { Ok(Vec::new()) } else { self.constructors() };
        self.type_params.clear();
        let def = TypeDef { params, constructors: constructors?.into(), is_extern };
        match Arc::make_mut(&mut self.module.types).define(name.clone(), def) {
            None => {
                self.type_spans.insert(name, token.span);
            }
            Some(duplicate) => {
                let previous_span = self.type_spans.get(&duplicate).copied();
                let message = match duplicate == name {
                    true => format!("the type name `{}` is already in use", shorten(&duplicate)),
                    false => format!("the constructor name `{}` is already in use", shorten(&duplicate)),
                };
                let mut diagnostic =
                    Diagnostic::error(codes::text::DUPLICATE_NAME, message).at(token.span, "the second definition");
                let owner = self.module.types.constructor(&duplicate).map(|(owner, ..)| owner.clone());
                if let Some(span) = previous_span.or_else(|| self.type_spans.get(&owner?).copied()) {
                    diagnostic = diagnostic.at(span, "the first definition");
                }
                self.report(Box::new(diagnostic));
            }
        }
        Ok(())
    }

    /// Parses `{ Constructor(type, ...), ... }`.
    fn constructors(&mut self) -> Result<Vec<Constructor>> {
        self.expect(Kind::OpenBrace)?;
        let mut constructors = Vec::new();
        while !self.accept(Kind::CloseBrace) {
            let token = self.expect(Kind::Ident)?;
            let name: Name = self.names.shared_name(self.text_of(token));
            let is_number = number::special(&name, false).is_some();
            if self.text_of(token).contains('.') || Type::is_reserved(&name) || is_number {
                return Err(self.unexpected_token(token, "a name for the constructor"));
            }
            if op::lookup(&name).is_some() {
                let message = format!("the constructor `{name}` has the same name as an operator");
                self.report(Box::new(Diagnostic::error(codes::text::DUPLICATE_NAME, message).at(token.span, "")));
            }
            let fields = if self.peek().kind == Kind::OpenParen { self.types()? } else { Vec::new() };
            constructors.push(Constructor { name, fields: fields.into() });
            if self.peek().kind != Kind::CloseBrace {
                self.expect(Kind::Comma)?;
            }
        }
        Ok(constructors)
    }

    /// Reports names that are called or used in a pattern but are neither operators nor constructors.
    pub(super) fn check_unknown_callees(&mut self) {
        let names = std::mem::take(&mut self.unknown_callees);
        for (token, in_pattern) in names {
            let word = self.text_of(token);
            let Parser { diagnostics, module, .. } = self;
            diagnostics.add(|| unknown_callee(&module.types, word, in_pattern).at(token.span, ""));
        }
    }

    pub(super) fn is_at_word(&mut self, expected: &str) -> bool {
        let token = self.peek();
        self.word(token) == Some(expected)
    }
}

fn unknown_callee<'t>(types: &'t TypeDefs, word: &str, in_pattern: bool) -> Diagnostic {
    let excerpt = shorten(word);
    if types.constructor(word).is_some() {
        let message = format!("the constructor `{excerpt}` is used before its type is defined");
        return Diagnostic::error(codes::text::UNKNOWN_NAME, message)
            .help("move the definition of the type above the function");
    }
    if in_pattern {
        let diagnostic = Diagnostic::error(codes::text::UNKNOWN_NAME, format!("unknown constructor `{excerpt}`"));
        return match nearest(&excerpt, types.constructor_names()) {
            Some(near) => diagnostic.help(format!("did you mean `{near}`?")),
            None => diagnostic.help(format!("write a variable as `%{excerpt}`, or define the constructor in a `type`")),
        };
    }
    let diagnostic = Diagnostic::error(codes::types::UNKNOWN_OPERATOR, format!("unknown operator `{excerpt}`"));
    let names = op::names().map(|name| -> &'t str { name });
    match nearest(&excerpt, names.chain(types.constructor_names())) {
        Some(near) => diagnostic.help(format!("did you mean `{near}`?")),
        None => diagnostic,
    }
}

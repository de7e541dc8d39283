//! Functions: `def @name(...)` and `fn (...)`.

use super::frames::{Head, ParseFrame, State};
use super::tokens::shorten;
use super::{Kind, Parser, Result, Token};
use crate::diag::{Diagnostic, Span, codes, nearest};
use crate::ir::{Attrs, Expr, ExprId, Function, Name, Type};
use std::collections::HashSet;

impl Parser<'_> {
    /// Parses `def @name(...) { ... }`.
    pub(super) fn parse_definition(&mut self) -> Result<()> {
        let start = self.take().span.start;
        let name = self.expect(Kind::Global)?;
        let head = self.head(start, Some(name))?;
        self.frames.push(ParseFrame::Body(head));
        self.expression()?;
        Ok(())
    }

    /// Parses `(params, attributes) -> type {`, and binds the parameters.
    pub(super) fn head(&mut self, start: u32, name: Option<Token>) -> Result<Box<Head>> {
        let outer_type_params = self.type_params.len() as u32;
        let type_params = self.type_parameters()?;
        self.expect(Kind::OpenParen)?;
        let first = self.attrs.len();
        let mut params: Vec<(Token, ExprId)> = Vec::new();
        let mut names = HashSet::new();
        loop {
            if self.accept(Kind::CloseParen) {
                break;
            }
            if self.is_at_attribute() {
                self.parse_attributes(None)?;
                break;
            }
            let token = self.peek();
            if token.kind != Kind::Local {
                return Err(self.unexpected_token(token, "a parameter, an attribute or `)`"));
            }
            self.take();
            self.skip_device()?;
            let annotation = if self.accept(Kind::Colon) { self.ty()? } else { Type::Unknown };
            let param_name = self.local_name(token);
            if !names.insert(param_name) {
                self.report(Box::new(
                    Diagnostic::error(
                        codes::text::DUPLICATE_NAME,
                        format!("duplicate parameter `%{}`", shorten(param_name)),
                    )
                    .at(token.span, "the second occurrence"),
                ));
            }
            params.push((token, self.variable(token, annotation)));
            if self.peek().kind != Kind::CloseParen {
                self.expect(Kind::Comma)?;
            }
        }
        let attrs = Attrs::new(self.attrs.drain(first..));
        let ret = if self.accept(Kind::Arrow) { self.ty()? } else { Type::Unknown };
        self.expect(Kind::OpenBrace)?;
        let scope = self.names.scope();
        for &(token, var) in &params {
            self.names.bind(self.local_name(token), var);
        }
        let params = params.into_iter().map(|(_, var)| var).collect();
        Ok(Box::new(Head { start, name, type_params, params, ret, attrs, scope, outer_type_params }))
    }

    /// Builds a function whose body has been read, and defines it if it is global.
    pub(super) fn function(&mut self, head: Head, body: ExprId) -> State {
        let Head { start, name, type_params, params, ret, attrs, scope, outer_type_params } = head;
        self.names.leave(scope);
        self.type_params.truncate(outer_type_params as usize);
        let function = Function { type_params, params, body, ret, attrs };
        let id = self.push(Expr::Function(Box::new(function)), start);
        let Some(token) = name else {
            return State::After(id, start);
        };
        let name = self.names.shared_name(self.local_name(token));
        if let Some(&previous) = self.module.globals.get(&name) {
            let previous = self.spans[previous];
            self.report(Box::new(
                Diagnostic::error(
                    codes::text::DUPLICATE_NAME,
                    format!("duplicate definition of the function `@{}`", shorten(&name)),
                )
                .at(token.span, "the second definition")
                .at(Span { start: previous.start, end: previous.start + 3 }, "the first definition"),
            ));
        } else {
            self.module.globals.insert(name, id);
        }
        State::Done(id)
    }

    /// Reports each undefined global once.
    pub(super) fn check_globals(&mut self) {
        let mut undefined: Vec<(Name, ExprId)> = Vec::new();
        let mut visited = HashSet::new();
        for (id, node) in self.module.nodes.iter() {
            if let Expr::Global(name) = &node.expr
                && !self.module.globals.contains_key(name)
                && visited.insert(name.clone())
            {
                undefined.push((name.clone(), id));
            }
        }
        let Parser { diagnostics, module, spans, .. } = self;
        for (name, id) in undefined {
            diagnostics.add(|| {
                let excerpt = shorten(&name);
                let diagnostic =
                    Diagnostic::error(codes::text::UNKNOWN_NAME, format!("undefined function `@{excerpt}`"))
                        .at(spans[id], "");
                match nearest(&excerpt, module.globals.keys().map(|k| &**k)) {
                    Some(near) => diagnostic.help(format!("did you mean `@{near}`?")),
                    None => diagnostic,
                }
            });
        }
        debug_assert_eq!(self.spans.len(), self.module.nodes.len(), "every expression has a span");
    }
}

//! Types: `Tensor[(1, ?, batch), float32]`, `float32`, `(int32,)`, `fn (int32) -> int32`, `ref(int32)`, `_`.

use super::{Fallible, Kind, Parser, outside_subset, tokens::brief};
use crate::diag::{Diagnostic, Span, codes, nearest};
use crate::ir::{Dim, FuncType, Type};
use crate::tensor::DType;
use crate::text::MAX_NESTING;
use std::sync::Arc;

impl Parser<'_> {
    /// A type.
    pub(super) fn ty(&mut self) -> Fallible<Type> {
        self.nested_type(0)
    }

    fn nested_type(&mut self, depth: usize) -> Fallible<Type> {
        let token = self.peek();
        if depth > Type::MAX_DEPTH {
            return Err(too_deep("types", token.span));
        }
        if token.kind == Kind::OpenParen {
            return Ok(Type::tuple(self.types(depth)?));
        }
        let Some(word) = self.word(token) else {
            return Err(self.unexpected(token, "a type"));
        };
        self.take();
        match word {
            "_" => Ok(Type::Unknown),
            "Tensor" => self.tensor_type(),
            "fn" => {
                if self.peek().kind == Kind::OpenBracket {
                    return Err(outside_subset("type parameters", self.peek().span));
                }
                let params = self.types(depth)?.into();
                self.expect(Kind::Arrow)?;
                let ret = self.nested_type(depth + 1)?;
                Ok(Type::Func(Arc::new(FuncType { params, ret })))
            }
            "ref" => {
                self.expect(Kind::OpenParen)?;
                let inner = self.nested_type(depth + 1)?;
                self.expect(Kind::CloseParen)?;
                Ok(Type::Ref(Arc::new(inner)))
            }
            _ => match DType::parse(word) {
                Some(dtype) => Ok(Type::scalar(dtype)),
                None => Err(unknown_type(word, token.span)),
            },
        }
    }

    /// `(type, type)`; a trailing comma is fine.
    fn types(&mut self, depth: usize) -> Fallible<Vec<Type>> {
        self.expect(Kind::OpenParen)?;
        let mut types = Vec::new();
        while !self.eat(Kind::CloseParen) {
            types.push(self.nested_type(depth + 1)?);
            if self.peek().kind != Kind::CloseParen {
                self.expect(Kind::Comma)?;
            }
        }
        Ok(types)
    }

    /// What follows `Tensor`.
    fn tensor_type(&mut self) -> Fallible<Type> {
        self.expect(Kind::OpenBracket)?;
        self.expect(Kind::OpenParen)?;
        let mut dims = Vec::new();
        while !self.eat(Kind::CloseParen) {
            dims.push(self.dim()?);
            if self.peek().kind != Kind::CloseParen {
                self.expect(Kind::Comma)?;
            }
        }
        self.expect(Kind::Comma)?;
        let token = self.expect(Kind::Ident)?;
        let word = self.text_of(token);
        let dtype = DType::parse(word).ok_or_else(|| unknown_type(word, token.span))?;
        self.expect(Kind::CloseBracket)?;
        Ok(Type::tensor_of(dtype, dims))
    }

    fn dim(&mut self) -> Fallible<Dim> {
        let token = self.peek();
        let dim = match token.kind {
            Kind::Question => Dim::Any,
            Kind::Ident => Dim::Named(self.names.shared(self.text_of(token))),
            Kind::Number => {
                let text = self.text_of(token);
                let size = text.parse::<usize>().ok().filter(|&n| n <= i64::MAX as usize);
                let Some(size) = size else {
                    return Err(Box::new(
                        Diagnostic::error(
                            codes::text::BAD_NUMBER,
                            format!("`{}` is no dimension: a whole number is wanted", brief(text)),
                        )
                        .at(token.span, ""),
                    ));
                };
                Dim::Fixed(size)
            }
            _ => return Err(self.unexpected(token, "a dimension: a number, `?` or a name")),
        };
        self.take();
        Ok(dim)
    }
}

pub(super) fn too_deep(what: &str, span: Span) -> Box<Diagnostic> {
    Box::new(
        Diagnostic::error(codes::text::NESTING_TOO_DEEP, format!("{what} nest deeper than {MAX_NESTING} levels"))
            .at(span, "one level too many"),
    )
}

fn unknown_type(word: &str, span: Span) -> Box<Diagnostic> {
    let known = DType::ALL.iter().map(|d| d.name()).chain(["Tensor", "fn", "ref"]);
    let message = format!("no type is called `{}`", brief(word));
    let mut diagnostic = Diagnostic::error(codes::text::UNEXPECTED_TOKEN, message).at(span, "expected a type");
    if let Some(near) = nearest(word, known) {
        diagnostic = diagnostic.help(format!("did you mean `{near}`?"));
    }
    Box::new(diagnostic)
}

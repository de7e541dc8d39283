//! Types: `Tensor[(1, ?, batch), float32]`, `float32`, `(int32,)`, `fn [A](A) -> A`, `ref(int32)`, `List[int32]`, `_`.
//!
//! A name that is no element type is a type parameter when one of that name is in scope, and otherwise the name of a
//! type definition, which may come later in the text: whether it does is seen when all has been read.

use super::{Fallible, Kind, Parser, Token, tokens::brief};
use crate::diag::{Diagnostic, Span, codes, nearest};
use crate::ir::{Dim, FuncType, Name, Type};
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
                let outer = self.type_params.len();
                let type_params = self.type_parameters()?;
                let func = self.function_type(depth, type_params);
                self.type_params.truncate(outer);
                func
            }
            "ref" => {
                self.expect(Kind::OpenParen)?;
                let inner = self.nested_type(depth + 1)?;
                self.expect(Kind::CloseParen)?;
                Ok(Type::Ref(Arc::new(inner)))
            }
            _ => match DType::parse(word) {
                Some(dtype) => Ok(Type::scalar(dtype)),
                None => self.named_type(token, depth),
            },
        }
    }

    /// What follows `fn` and its type parameters.
    fn function_type(&mut self, depth: usize, type_params: Box<[Name]>) -> Fallible<Type> {
        let params = self.types(depth)?.into();
        self.expect(Kind::Arrow)?;
        let ret = self.nested_type(depth + 1)?;
        Ok(Type::Func(Arc::new(FuncType { type_params, params, ret })))
    }

    /// A type parameter, or a defined type with what stands for its parameters.
    fn named_type(&mut self, token: Token, depth: usize) -> Fallible<Type> {
        let word = self.text_of(token);
        if let Some((_, name)) = self.type_params.iter().rev().find(|(written, _)| *written == word) {
            return Ok(Type::Param(name.clone()));
        }
        let name = self.names.shared(word);
        let args = if self.peek().kind == Kind::OpenBracket { self.bracketed_types(depth)? } else { Vec::new() };
        let span = token.span.to(Span { start: token.span.start, end: self.last_end });
        self.type_mentions.push((name.clone(), args.len(), span));
        Ok(Type::adt(name, args))
    }

    fn bracketed_types(&mut self, depth: usize) -> Fallible<Vec<Type>> {
        self.expect(Kind::OpenBracket)?;
        let mut types = Vec::new();
        while !self.eat(Kind::CloseBracket) {
            types.push(self.nested_type(depth + 1)?);
            if self.peek().kind != Kind::CloseBracket {
                self.expect(Kind::Comma)?;
            }
        }
        Ok(types)
    }

    /// `[A, B]`, if it is there. They are in scope until the list of type parameters is cut back.
    ///
    /// A name that is in scope already means the new one from here on; the module keeps the two apart by another name.
    pub(super) fn type_parameters(&mut self) -> Fallible<Box<[Name]>> {
        if self.peek().kind != Kind::OpenBracket {
            return Ok(Box::new([]));
        }
        self.take();
        let mut params: Vec<Name> = Vec::new();
        let first = self.type_params.len();
        while !self.eat(Kind::CloseBracket) {
            let token = self.expect(Kind::Ident)?;
            let written = self.text_of(token);
            if self.type_params[first..].iter().any(|(before, _)| *before == written) {
                self.report(Box::new(
                    Diagnostic::error(
                        codes::text::DUPLICATE_NAME,
                        format!("two type parameters are called `{}`", brief(written)),
                    )
                    .at(token.span, "the second one"),
                ));
            }
            if Type::is_reserved(written) || written.contains('.') {
                return Err(self.unexpected(token, "a name for a type parameter"));
            }
            let mut name = self.names.shared(written);
            let mut more = 0;
            while self.type_params.iter().any(|(_, taken)| *taken == name) {
                more += 1;
                name = format!("{written}_{more}").into();
            }
            self.type_params.push((written, name.clone()));
            params.push(name);
            if self.peek().kind != Kind::CloseBracket {
                self.expect(Kind::Comma)?;
            }
        }
        Ok(params.into())
    }

    /// Reports the types that are named and nowhere defined, or with a wrong number of types for their parameters.
    pub(super) fn check_type_mentions(&mut self) {
        for (name, args, span) in std::mem::take(&mut self.type_mentions) {
            let Some(def) = self.module.types.get(&name) else {
                let defined: Vec<Name> = self.module.types.iter().map(|(name, _)| name.clone()).collect();
                self.report(unknown_type(&name, &defined, span));
                continue;
            };
            let wanted = def.params.len();
            if wanted != args {
                let message = format!("types given to `{name}`: {args}, it has {wanted} parameters");
                let message = if wanted == 1 { message.trim_end_matches('s').to_owned() } else { message };
                self.report(Box::new(Diagnostic::error(codes::types::BAD_ARITY, message).at(span, "")));
            }
        }
    }

    /// `(type, type)`; a trailing comma is fine.
    pub(super) fn types(&mut self, depth: usize) -> Fallible<Vec<Type>> {
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
        let dtype = DType::parse(word).ok_or_else(|| unknown_type(word, &[], token.span))?;
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

fn unknown_type(word: &str, defined: &[Name], span: Span) -> Box<Diagnostic> {
    let known = DType::ALL.iter().map(|d| d.name()).chain(["Tensor", "fn", "ref"]).chain(defined.iter().map(|n| &**n));
    let message = format!("no type is called `{}`", brief(word));
    let mut diagnostic = Diagnostic::error(codes::text::UNEXPECTED_TOKEN, message).at(span, "expected a type");
    if let Some(near) = nearest(word, known) {
        diagnostic = diagnostic.help(format!("did you mean `{near}`?"));
    }
    Box::new(diagnostic)
}

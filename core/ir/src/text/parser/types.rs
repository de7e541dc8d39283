//! Type parser: `Tensor[(1, ?, batch), float32]`, `float32`, `(int32,)`, `fn [A](A) -> A`, `ref(int32)`, `List[int32]`,
//! `_`.
//!
//! A name other than an element type denotes the type parameter of that name if one is in scope, and otherwise a type
//! definition. The definition may follow later in the text, so its existence is checked once the whole text has been
//! read.

use super::{Kind, Parser, Result, Token, tokens::shorten};
use crate::diag::{Diagnostic, Span, codes, nearest};
use crate::ir::{Dim, FuncType, Name, Type};
use crate::tensor::DType;
use crate::text::{MAX_NESTING, parse_dim};

/// Unfinished type, with its finished parts.
struct OpenType {
    parts: Vec<Type>,
    kind: OpenKind,
}

enum OpenKind {
    /// List of types up to the bracket `close`.
    List { close: Kind, then: Then },
    /// Return type of a function type; the parts are its parameters.
    Return { type_params: Box<[Name]>, outer: usize },
    /// `ref( ...`
    Ref,
}

/// Purpose of a type list.
enum Then {
    Tuple,
    /// Parameters of a function; the first `outer` type parameters were already in scope.
    Func {
        type_params: Box<[Name]>,
        outer: usize,
    },
    /// Type arguments of a defined type.
    Named {
        token: Token,
        name: Name,
    },
}

impl Parser<'_> {
    /// Parses a type. Types may nest deeply, so unfinished types are kept on an explicit stack.
    pub(super) fn ty(&mut self) -> Result<Type> {
        let mut stack: Vec<OpenType> = Vec::new();
        let outer = self.type_params.len();
        let ty = self.ty_on_stack(&mut stack);
        if ty.is_err() {
            self.type_params.truncate(outer);
        }
        ty
    }

    fn ty_on_stack(&mut self, stack: &mut Vec<OpenType>) -> Result<Type> {
        'next: loop {
            let mut ty = match self.begin_type(stack)? {
                Some(ty) => ty,
                None => continue,
            };
            // A finished type may complete its enclosing types.
            loop {
                let Some(innermost) = stack.pop() else { return Ok(ty) };
                let mut parts = innermost.parts;
                parts.push(ty);
                match innermost.kind {
                    OpenKind::List { close, then } => {
                        if self.peek().kind != close {
                            self.expect(Kind::Comma)?;
                        }
                        if self.peek().kind != close {
                            stack.push(OpenType { parts, kind: OpenKind::List { close, then } });
                            continue 'next;
                        }
                        self.take();
                        match self.end_list(then, parts, stack)? {
                            Some(complete) => ty = complete,
                            None => continue 'next,
                        }
                    }
                    OpenKind::Return { type_params, outer } => {
                        self.type_params.truncate(outer);
                        let ret = parts.pop().unwrap_or(Type::Unknown);
                        ty = Type::func(FuncType { type_params, params: parts.into(), ret });
                    }
                    OpenKind::Ref => {
                        self.expect(Kind::CloseParen)?;
                        ty = Type::reference(parts.pop().unwrap_or(Type::Unknown));
                    }
                }
                if !ty.is_within_limits() {
                    return Err(self.too_large_type());
                }
            }
        }
    }

    fn too_large_type(&self) -> Box<Diagnostic> {
        let message = format!("the type has more than {} parts", Type::MAX_PARTS);
        let span = Span { start: self.last_end.saturating_sub(1), end: self.last_end };
        Box::new(Diagnostic::error(codes::text::NESTING_TOO_DEEP, message).at(span, "the limit is exceeded here"))
    }

    /// Parses a type without component types, or pushes an unfinished type on `stack`.
    fn begin_type(&mut self, stack: &mut Vec<OpenType>) -> Result<Option<Type>> {
        let token = self.peek();
        if stack.len() > Type::MAX_PARTS {
            return Err(self.too_large_type());
        }
        if token.kind == Kind::OpenParen {
            return self.begin_list(Kind::OpenParen, Kind::CloseParen, Then::Tuple, stack);
        }
        let Some(word) = self.word(token) else {
            return Err(self.unexpected_token(token, "a type"));
        };
        self.take();
        match word {
            "_" => Ok(Some(Type::Unknown)),
            "Tensor" => self.tensor_type().map(Some),
            "fn" => {
                let outer = self.type_params.len();
                let type_params = self.type_parameters()?;
                self.begin_list(Kind::OpenParen, Kind::CloseParen, Then::Func { type_params, outer }, stack)
            }
            "ref" => {
                self.expect(Kind::OpenParen)?;
                stack.push(OpenType { parts: Vec::new(), kind: OpenKind::Ref });
                Ok(None)
            }
            _ => match element_type(word) {
                Some(dtype) => Ok(Some(Type::scalar(dtype))),
                None => self.named_type(token, stack),
            },
        }
    }

    /// Parses the opening bracket of a type list, which may be empty.
    fn begin_list(
        &mut self,
        bracket: Kind,
        close: Kind,
        then: Then,
        stack: &mut Vec<OpenType>,
    ) -> Result<Option<Type>> {
        self.expect(bracket)?;
        if self.accept(close) {
            return self.end_list(then, Vec::new(), stack);
        }
        stack.push(OpenType { parts: Vec::new(), kind: OpenKind::List { close, then } });
        Ok(None)
    }

    /// Completes a type list.
    fn end_list(&mut self, then: Then, types: Vec<Type>, stack: &mut Vec<OpenType>) -> Result<Option<Type>> {
        match then {
            Then::Tuple => Ok(Some(Type::tuple(types))),
            Then::Func { type_params, outer } => {
                self.expect(Kind::Arrow)?;
                stack.push(OpenType { parts: types, kind: OpenKind::Return { type_params, outer } });
                Ok(None)
            }
            Then::Named { token, name } => Ok(Some(self.mention(token, name, types))),
        }
    }

    /// Parses a type parameter, or a defined type with its type arguments.
    fn named_type(&mut self, token: Token, stack: &mut Vec<OpenType>) -> Result<Option<Type>> {
        let word = self.text_of(token);
        if let Some((_, name)) = self.type_params.iter().rev().find(|(written, _)| *written == word) {
            return Ok(Some(Type::param(name.clone())));
        }
        let name = self.names.shared_name(word);
        if self.peek().kind == Kind::OpenBracket {
            return self.begin_list(Kind::OpenBracket, Kind::CloseBracket, Then::Named { token, name }, stack);
        }
        Ok(Some(self.mention(token, name, Vec::new())))
    }

    fn mention(&mut self, token: Token, name: Name, args: Vec<Type>) -> Type {
        let span = token.span.to(Span { start: token.span.start, end: self.last_end });
        self.type_mentions.push((name.clone(), args.len(), span));
        Type::adt(name, args)
    }

    /// Parses `[A, B]`, if present. The parameters are in scope until the caller truncates `self.type_params`.
    ///
    /// A name that is already in scope is shadowed; the new parameter is renamed in the module.
    pub(super) fn type_parameters(&mut self) -> Result<Box<[Name]>> {
        if self.peek().kind != Kind::OpenBracket {
            return Ok(Box::new([]));
        }
        self.take();
        let mut params: Vec<Name> = Vec::new();
        let first = self.type_params.len();
        while !self.accept(Kind::CloseBracket) {
            let token = self.expect(Kind::Ident)?;
            let text = self.text_of(token);
            if self.type_params[first..].iter().any(|(earlier, _)| *earlier == text) {
                self.report(Box::new(
                    Diagnostic::error(
                        codes::text::DUPLICATE_NAME,
                        format!("duplicate type parameter `{}`", shorten(text)),
                    )
                    .at(token.span, "the second occurrence"),
                ));
            }
            if Type::is_reserved(text) || text.contains('.') {
                return Err(self.unexpected_token(token, "a name for a type parameter"));
            }
            let mut name = self.names.shared_name(text);
            let mut renames = 0;
            while self.type_params.iter().any(|(_, bound)| *bound == name) {
                renames += 1;
                name = format!("{text}_{renames}").into();
            }
            self.type_params.push((text, name.clone()));
            self.check_list("type parameters in scope", self.type_params.len(), token.span)?;
            params.push(name);
            if self.peek().kind != Kind::CloseBracket {
                self.expect(Kind::Comma)?;
            }
        }
        Ok(params.into())
    }

    /// Reports types that are undefined or have the wrong number of type arguments.
    pub(super) fn check_type_mentions(&mut self) {
        let Parser { diagnostics, module, type_mentions, .. } = self;
        for (name, args, span) in std::mem::take(type_mentions) {
            let Some(def) = module.types.get(&name) else {
                diagnostics.add(|| *unknown_type(&name, module.types.iter().map(|(name, _)| &**name), span));
                continue;
            };
            let expected = def.params.len();
            if expected != args {
                let message = format!("type arguments of `{name}`: expected {expected}, found {args}");
                let message = if expected == 1 { message.trim_end_matches('s').to_owned() } else { message };
                diagnostics.add(|| Diagnostic::error(codes::types::BAD_ARITY, message).at(span, ""));
            }
        }
    }

    /// Parses `(type, type)`; a trailing comma is allowed.
    pub(super) fn types(&mut self) -> Result<Vec<Type>> {
        self.expect(Kind::OpenParen)?;
        let mut types = Vec::new();
        while !self.accept(Kind::CloseParen) {
            types.push(self.ty()?);
            if self.peek().kind != Kind::CloseParen {
                self.expect(Kind::Comma)?;
            }
        }
        Ok(types)
    }

    /// Parses the rest of a tensor type after `Tensor`.
    fn tensor_type(&mut self) -> Result<Type> {
        self.expect(Kind::OpenBracket)?;
        self.expect(Kind::OpenParen)?;
        let mut dims = Vec::new();
        while !self.accept(Kind::CloseParen) {
            dims.push(self.dim()?);
            if self.peek().kind != Kind::CloseParen {
                self.expect(Kind::Comma)?;
            }
        }
        self.expect(Kind::Comma)?;
        let token = self.expect(Kind::Ident)?;
        let word = self.text_of(token);
        let dtype = element_type(word).ok_or_else(|| unknown_type(word, [], token.span))?;
        self.expect(Kind::CloseBracket)?;
        let ty = Type::tensor_of(dtype, dims);
        if let Some(fault) = ty.tensor_fault() {
            return Err(Box::new(Diagnostic::error(codes::types::TYPE_TOO_LARGE, fault).at(token.span, "")));
        }
        Ok(self.shared_type(ty))
    }

    /// Returns the shared copy of a recently used type, as most modules repeat a few types many times.
    fn shared_type(&mut self, ty: Type) -> Type {
        if let Some(existing) = self.last_types.iter().find(|existing| **existing == ty) {
            return existing.clone();
        }
        if self.last_types.len() == 8 {
            self.last_types.pop_front();
        }
        self.last_types.push_back(ty.clone());
        ty
    }

    /// Parses a dimension: `3`, `?`, `batch`, or an expression; see [`parse_dim`](crate::text::parse_dim).
    fn dim(&mut self) -> Result<Dim> {
        let first = self.peek();
        let dim = match first.kind {
            Kind::Question => Dim::Any,
            Kind::Ident => Dim::symbol(self.names.shared_name(self.text_of(first))),
            Kind::Number => {
                let text = self.text_of(first);
                let size = text.parse::<usize>().ok().filter(|&n| n <= i64::MAX as usize);
                let message = || format!("expected an integer dimension, found `{}`", shorten(text));
                Dim::Fixed(size.ok_or_else(|| bad_dim(message(), first.span))?)
            }
            Kind::OpenParen | Kind::Minus => Dim::Any,
            _ => return Err(self.unexpected_token(first, "a dimension: a number, `?`, a name or an expression")),
        };
        let mut last = first;
        let mut depth = 0;
        loop {
            let next = self.peek();
            match next.kind {
                Kind::Comma | Kind::CloseParen if depth == 0 => break,
                Kind::OpenParen => depth += 1,
                Kind::CloseParen => depth -= 1,
                Kind::Ident | Kind::Number | Kind::Question | Kind::Plus | Kind::Minus | Kind::Star => {}
                Kind::Comma => {}
                _ => return Err(self.unexpected_token(next, "`,` or `)`")),
            }
            last = self.take();
        }
        if last.span == first.span && !matches!(first.kind, Kind::OpenParen | Kind::Minus) {
            return Ok(dim);
        }
        let span = Span { end: last.span.end, ..first.span };
        let text = &self.source[span.start as usize..span.end as usize];
        parse_dim(text).map_err(|message| bad_dim(message, span))
    }
}

pub(super) fn nesting_error(construct: &str, span: Span) -> Box<Diagnostic> {
    Box::new(
        Diagnostic::error(
            codes::text::NESTING_TOO_DEEP,
            format!("{construct} nested more than {MAX_NESTING} levels deep"),
        )
        .at(span, "the limit is exceeded here"),
    )
}

fn unknown_type<'n>(word: &str, defined_names: impl IntoIterator<Item = &'n str>, span: Span) -> Box<Diagnostic> {
    let candidates = DType::ALL.iter().map(|d| d.name()).chain(["Tensor", "fn", "ref"]).chain(defined_names);
    let message = format!("unknown type `{}`", shorten(word));
    let mut diagnostic = Diagnostic::error(codes::text::UNEXPECTED_TOKEN, message).at(span, "expected a type");
    if let Some(near) = nearest(word, candidates) {
        diagnostic = diagnostic.help(format!("did you mean `{near}`?"));
    }
    Box::new(diagnostic)
}

fn bad_dim(message: impl Into<String>, span: Span) -> Box<Diagnostic> {
    Box::new(Diagnostic::error(codes::text::BAD_NUMBER, message).at(span, ""))
}

/// Returns the element type of a name; `int` and `float` have 32 bits.
fn element_type(word: &str) -> Option<DType> {
    DType::parse(match word {
        "int" => "int32",
        "float" => "float32",
        word => word,
    })
}

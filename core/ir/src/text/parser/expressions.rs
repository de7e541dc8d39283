//! Expression parser: the loop over the stack of frames.
//!
//! An *item* is a sequence of statements with a result: the contents of braces or parentheses, and each argument. `let`
//! bindings and `e;` form a chain of lets, which is built backwards when the item ends; `%N = e;` only binds a name.

use super::frames::{Infix, ParseFrame, State, Target};
use super::tokens::shorten;
use super::{Kind, Parser, Result, Token};
use crate::diag::{Diagnostic, Span, codes, nearest, plural};
use crate::ir::{AttrValue, Attrs, Call, Callee, Expr, ExprId, ExprList, Type};
use crate::op;
use std::sync::Arc;

fn infix(kind: Kind) -> Option<Infix> {
    let (precedence, name) = match kind {
        Kind::Star => (12, "multiply"),
        Kind::Slash => (12, "divide"),
        Kind::Plus => (10, "add"),
        Kind::Minus => (10, "subtract"),
        Kind::Less => (8, "less"),
        Kind::LessEqual => (8, "less_equal"),
        Kind::Greater => (8, "greater"),
        Kind::GreaterEqual => (8, "greater_equal"),
        Kind::EqualEqual => (7, "equal"),
        Kind::NotEqual => (7, "not_equal"),
        _ => return None,
    };
    Some(Infix { precedence, name })
}

impl Parser<'_> {
    /// Parses a top-level expression, or the rest of a definition whose frame is on the stack. The frame stack is empty
    /// on return.
    pub(super) fn expression(&mut self) -> Result<ExprId> {
        let mut state = State::Item;
        loop {
            state = match self.step(state) {
                Ok(State::Done(root)) => return Ok(root),
                Ok(next) => next,
                Err(error) => match self.recover(error) {
                    Ok(next) => next,
                    Err(error) => {
                        self.abandon();
                        return Err(error);
                    }
                },
            };
        }
    }

    fn step(&mut self, state: State) -> Result<State> {
        match state {
            State::Item => self.item(),
            State::Operand => self.operand(),
            State::After(value, start) => self.postfix(value, start),
            State::Complete(value) => self.complete(value),
            State::Done(_) => Ok(state),
        }
    }

    fn item(&mut self) -> Result<State> {
        let token = self.peek();
        if self.word(token) == Some("let") {
            self.take();
            self.push_sequence();
            let name = self.peek();
            if name.kind != Kind::Local {
                return Err(self.unexpected_token(name, "a variable, as in `let %x = ...`"));
            }
            self.take();
            let annotation = if self.accept(Kind::Colon) { self.ty()? } else { Type::Unknown };
            self.expect(Kind::Equal)?;
            let var = self.variable(name, annotation);
            // A function may call itself; in any other value, the name refers to its previous binding.
            let value = self.peek();
            let is_function = self.word(value) == Some("fn");
            if is_function {
                self.names.bind(self.local_name(name), var);
            }
            self.frames.push(ParseFrame::LetValue { name, var, bound: is_function });
            return Ok(State::Operand);
        }
        if token.kind == Kind::Graph && self.peek_second().kind == Kind::Equal {
            self.take();
            self.take();
            self.push_sequence();
            self.frames.push(ParseFrame::GraphValue { number: token });
        }
        Ok(State::Operand)
    }

    /// Pushes the frame of a sequence, unless the current item already has such a frame.
    fn push_sequence(&mut self) {
        if !matches!(self.frames.last(), Some(ParseFrame::Sequence { .. })) {
            self.frames.push(ParseFrame::Sequence { lets: self.lets.len() as u32, scope: self.names.scope() });
        }
    }

    fn operand(&mut self) -> Result<State> {
        let token = self.peek();
        let start = token.span.start;
        match token.kind {
            Kind::Local => {
                let name = self.local_name(token);
                self.take();
                match self.names.lookup(name) {
                    Some(var) => Ok(State::After(var, start)),
                    None => Ok(State::After(self.unknown_local(name, token.span), start)),
                }
            }
            Kind::Graph => {
                self.take();
                let number = self.graph_number(token)?;
                match self.names.lookup_graph(number) {
                    Some(value) => Ok(State::After(value, start)),
                    None => {
                        let message = format!("`%{number}` is used before it is defined");
                        self.report(Box::new(
                            Diagnostic::error(codes::text::UNKNOWN_NAME, message)
                                .at(token.span, "")
                                .help(format!("define the binding above its first use: `%{number} = ...;`")),
                        ));
                        // Binding the number prevents a second error for it.
                        let unit = self.push(Expr::Tuple(Box::new([])), start);
                        self.names.bind_graph(number, unit);
                        Ok(State::After(unit, start))
                    }
                }
            }
            Kind::Global => {
                self.take();
                let name = self.names.shared_name(self.local_name(token));
                Ok(State::After(self.push(Expr::Global(name), start), start))
            }
            Kind::Number | Kind::Minus => {
                let number = self.number()?;
                self.scalar(number, start)
            }
            Kind::OpenParen => {
                self.take();
                if self.accept(Kind::CloseParen) {
                    return Ok(State::After(self.push(Expr::Tuple(Box::new([])), start), start));
                }
                self.frames.push(ParseFrame::Paren { start, values: self.values.len() as u32, comma: false });
                Ok(State::Item)
            }
            Kind::Ident => self.word_operand(token),
            _ => Err(self.unexpected_token(token, "an expression")),
        }
    }

    fn word_operand(&mut self, token: Token) -> Result<State> {
        let start = token.span.start;
        let word = self.text_of(token);
        match word {
            "True" | "False" => {
                self.take();
                let value = crate::tensor::Tensor::from_bools(&[], &[word == "True"]);
                Ok(State::After(self.push(Expr::Constant(Arc::new(value)), start), start))
            }
            "if" => {
                self.take();
                self.expect(Kind::OpenParen)?;
                self.frames.push(ParseFrame::Condition { start });
                Ok(State::Item)
            }
            "fn" => {
                self.take();
                let head = self.head(start, None)?;
                self.frames.push(ParseFrame::Body(head));
                Ok(State::Item)
            }
            "meta" => self.meta_operand(start),
            "match" => self.match_data(start),
            "ref" => self.arguments(Target::RefNew, start, true),
            "ref_read" => self.arguments(Target::RefRead, start, true),
            "ref_write" => self.arguments(Target::RefWrite, start, true),
            "let" => Err(Box::new(
                Diagnostic::error(codes::text::UNEXPECTED_TOKEN, "expected an expression, found `let`")
                    .at(token.span, "")
                    .help("enclose the binding in parentheses: `(let %x = ...; ...)`"),
            )),
            "def" | "type" | "extern" | "else" | "free_var" | "_" => Err(self.unexpected_token(token, "an expression")),
            _ => {
                if let Some(number) = crate::text::number::special(word, false) {
                    self.take();
                    return self.scalar(number, start);
                }
                let is_called = self.peek_second().kind == Kind::OpenParen;
                if let Some((_, _, Type::Func(signature))) = self.module.types.constructor(word) {
                    let is_constant = signature.params.is_empty() && !is_called;
                    self.take();
                    let name = self.names.shared_name(word);
                    let constructor = self.push(Expr::Constructor(name), start);
                    let value = if is_constant { self.push(Expr::call(constructor, []), start) } else { constructor };
                    return Ok(State::After(value, start));
                }
                let target = match op::lookup(word) {
                    Some(op) if is_called => Target::Op(op),
                    Some(_) => {
                        return Err(Box::new(
                            Diagnostic::error(
                                codes::text::UNEXPECTED_TOKEN,
                                format!("expected a call to the operator `{word}`, found only its name"),
                            )
                            .at(token.span, "expected arguments after the name")
                            .help(format!("wrap the operator in a function: `fn (%x) {{ {word}(%x) }}`")),
                        ));
                    }
                    None if is_called => {
                        self.unknown_callees.push((token, false));
                        Target::UnknownOp
                    }
                    None => {
                        let mut diagnostic = Diagnostic::error(
                            codes::types::UNKNOWN_OPERATOR,
                            format!("unknown operator `{}`", shorten(word)),
                        )
                        .at(token.span, "");
                        if let Some(near) = nearest(&shorten(word), op::names()) {
                            diagnostic = diagnostic.help(format!("did you mean `{near}`?"));
                        } else {
                            diagnostic = diagnostic.help(format!("write a variable as `%{}`", shorten(word)));
                        }
                        return Err(Box::new(diagnostic));
                    }
                };
                self.arguments(target, start, true)
            }
        }
    }

    /// Begins a call; if `is_word` is true, consumes the name of the callee first.
    fn arguments(&mut self, target: Target, start: u32, is_word: bool) -> Result<State> {
        if is_word {
            self.take();
        }
        self.expect(Kind::OpenParen)?;
        let values = self.values.len() as u32;
        let attrs = self.attrs.len() as u32;
        self.frames.push(ParseFrame::Arguments { target, start, values, attrs });
        self.next_argument()
    }

    /// Parses an argument, the attributes, or the end of the call.
    pub(super) fn next_argument(&mut self) -> Result<State> {
        if self.peek().kind != Kind::CloseParen && !self.is_at_attribute() {
            return Ok(State::Item);
        }
        let op = match self.frames.last() {
            Some(&ParseFrame::Arguments { target: Target::Op(op), .. }) => Some(op),
            _ => None,
        };
        self.parse_attributes(op)?;
        let Some(ParseFrame::Arguments { target, start, values, attrs }) = self.frames.pop() else {
            unreachable!("the frame of a call is on top when its arguments end");
        };
        let attrs = Attrs::new(self.attrs.drain(attrs as usize..));
        let args: ExprList = self.values.drain(values as usize..).collect();
        let span = Span { start, end: self.last_end };
        let fixed = |expected: usize, name: &str| match args.len() == expected && attrs.is_empty() {
            true => Ok(()),
            false => Err(Box::new(
                Diagnostic::error(
                    codes::types::BAD_ARITY,
                    format!(
                        "{name}: expected {} and no attributes, found {} and {}",
                        plural(expected, "argument"),
                        args.len(),
                        attrs.len()
                    ),
                )
                .at(span, ""),
            )),
        };
        let expr = match target {
            Target::RefNew => fixed(1, "ref").map(|()| Expr::RefNew(args[0])),
            Target::RefRead => fixed(1, "ref_read").map(|()| Expr::RefRead(args[0])),
            Target::RefWrite => fixed(2, "ref_write").map(|()| Expr::RefWrite { reference: args[0], value: args[1] }),
            Target::Value(callee) => Ok(Expr::Call(Box::new(Call { callee: Callee::Expr(callee), args, attrs }))),
            Target::Op(op) => {
                // The operator determines the schema of the attributes.
                let attrs = match attrs.get("attrs_type_key") {
                    Some(AttrValue::Str(_)) => attrs.without("attrs_type_key"),
                    _ => attrs,
                };
                op::normalize_attrs(op::get(op), attrs)
                    .map(|attrs| Expr::Call(Box::new(Call { callee: Callee::Op(op), args, attrs })))
                    .map_err(|diagnostic| Box::new(diagnostic.at(span, "")))
            }
            Target::UnknownOp => Ok(Expr::Tuple(Box::new([]))),
        };
        let expr = expr.unwrap_or_else(|error| {
            self.report(error);
            Expr::Tuple(Box::new([]))
        });
        Ok(State::After(self.push(expr, start), start))
    }

    fn scalar(&mut self, number: crate::text::number::Number, start: u32) -> Result<State> {
        match number.to_tensor() {
            Ok(tensor) => Ok(State::After(self.push(Expr::Constant(Arc::new(tensor)), start), start)),
            Err(message) => Err(Box::new(
                Diagnostic::error(codes::text::BAD_NUMBER, message).at(Span { start, end: self.last_end }, ""),
            )),
        }
    }

    /// Parses calls, projections and infix operators after an expression.
    fn postfix(&mut self, value: ExprId, start: u32) -> Result<State> {
        let token = self.peek();
        match token.kind {
            Kind::OpenParen => self.arguments(Target::Value(value), start, false),
            Kind::Dot => {
                self.take();
                let index = self.expect(Kind::Number)?;
                let text = self.text_of(index);
                let Ok(index) = text.parse::<u32>() else {
                    let message = format!("expected a field index, found `{}`", shorten(text));
                    return Err(Box::new(Diagnostic::error(codes::text::BAD_NUMBER, message).at(index.span, "")));
                };
                Ok(State::After(self.push(Expr::Project { tuple: value, index }, start), start))
            }
            kind => match infix(kind) {
                Some(op) => {
                    let (lhs, start) = self.reduce(value, start, op.precedence);
                    self.take();
                    self.frames.push(ParseFrame::Infix { op, left: lhs, start });
                    Ok(State::Operand)
                }
                None => Ok(State::Complete(self.reduce(value, start, 0).0)),
            },
        }
    }

    /// Builds the calls of the infix operators on top of the stack that bind at least as tightly as `precedence`.
    fn reduce(&mut self, mut rhs: ExprId, mut rhs_start: u32, precedence: u8) -> (ExprId, u32) {
        while let Some(&ParseFrame::Infix { op, left: lhs, start }) = self.frames.last()
            && op.precedence >= precedence
        {
            self.frames.pop();
            rhs_start = start;
            let Some(operator) = op::lookup(op.name) else {
                unreachable!("the operator table contains all infix operators");
            };
            rhs = self.push(Expr::op(operator, [lhs, rhs], Attrs::none()), start);
        }
        (rhs, rhs_start)
    }

    /// Passes a complete expression to the innermost frame.
    fn complete(&mut self, value: ExprId) -> Result<State> {
        match self.frames.last() {
            Some(&ParseFrame::LetValue { name, var, bound: is_bound }) => {
                self.expect(Kind::Semicolon)?;
                self.frames.pop();
                if !is_bound {
                    self.names.bind(self.local_name(name), var);
                }
                self.lets.push((var, value));
                return Ok(State::Item);
            }
            Some(&ParseFrame::GraphValue { number }) => {
                self.expect(Kind::Semicolon)?;
                self.frames.pop();
                self.bind_graph(number, value)?;
                return Ok(State::Item);
            }
            _ => {}
        }
        if self.peek().kind == Kind::Semicolon {
            self.push_sequence();
            let semicolon = self.take();
            let var = self.push(Expr::var("_", Type::Unknown), semicolon.span.start);
            self.lets.push((var, value));
            return Ok(State::Item);
        }
        let value = self.finish_sequence(value);
        let Some(frame) = self.frames.last_mut() else {
            return Ok(State::Done(value));
        };
        match frame {
            ParseFrame::Paren { comma, .. } => {
                let comma_before = std::mem::replace(comma, true);
                if self.accept(Kind::Comma) {
                    self.values.push(value);
                    if self.peek().kind != Kind::CloseParen {
                        return Ok(State::Item);
                    }
                } else if comma_before {
                    self.values.push(value);
                }
                let token = self.peek();
                if token.kind != Kind::CloseParen {
                    return Err(self.unexpected_token(token, "`,` or `)`"));
                }
                self.take();
                let Some(ParseFrame::Paren { start, values, .. }) = self.frames.pop() else {
                    unreachable!("the frame was checked above");
                };
                let fields: Box<[ExprId]> = self.values.drain(values as usize..).collect();
                if fields.is_empty() {
                    // Plain parentheses denote the expression itself.
                    return Ok(State::After(value, start));
                }
                Ok(State::After(self.push(Expr::Tuple(fields), start), start))
            }
            ParseFrame::Arguments { .. } => {
                self.values.push(value);
                let token = self.peek();
                match token.kind {
                    Kind::Comma => {
                        self.take();
                        self.next_argument()
                    }
                    Kind::CloseParen => self.next_argument(),
                    _ => Err(self.unexpected_token(token, "`,` or `)`")),
                }
            }
            &mut ParseFrame::Condition { start } => {
                self.expect(Kind::CloseParen)?;
                self.expect(Kind::OpenBrace)?;
                self.frames.pop();
                self.frames.push(ParseFrame::Then { start, scope: self.names.scope(), cond: value });
                Ok(State::Item)
            }
            &mut ParseFrame::Then { start, scope, cond } => {
                self.expect(Kind::CloseBrace)?;
                self.names.leave(scope);
                self.frames.pop();
                let token = self.peek();
                if self.word(token) != Some("else") {
                    return Err(self.unexpected_token(token, "`else`"));
                }
                self.take();
                self.expect(Kind::OpenBrace)?;
                self.frames.push(ParseFrame::Otherwise { start, scope, cond, then: value });
                Ok(State::Item)
            }
            &mut ParseFrame::Otherwise { start, scope, cond, then } => {
                self.expect(Kind::CloseBrace)?;
                self.names.leave(scope);
                self.frames.pop();
                let id = self.push(Expr::If { cond, then, otherwise: value }, start);
                Ok(State::After(id, start))
            }
            &mut ParseFrame::MatchData { start, is_complete } => self.open_match(start, is_complete, value),
            ParseFrame::Clause(_) => self.close_clause(value),
            ParseFrame::Body(_) => {
                self.expect(Kind::CloseBrace)?;
                let Some(ParseFrame::Body(head)) = self.frames.pop() else {
                    unreachable!("the frame was checked above");
                };
                Ok(self.function(*head, value))
            }
            ParseFrame::Infix { .. }
            | ParseFrame::Sequence { .. }
            | ParseFrame::LetValue { .. }
            | ParseFrame::GraphValue { .. } => {
                unreachable!("these frames are finished before an expression is complete")
            }
        }
    }

    /// Ends the sequence of the current item: wraps the result in its lets and leaves its scope.
    fn finish_sequence(&mut self, mut value: ExprId) -> ExprId {
        let Some(&ParseFrame::Sequence { lets, scope }) = self.frames.last() else {
            return value;
        };
        self.frames.pop();
        self.names.leave(scope);
        while self.lets.len() > lets as usize {
            if let Some((var, bound)) = self.lets.pop() {
                let start = self.spans[var].start;
                value = self.push(Expr::Let { var, value: bound, body: value }, start);
            }
        }
        value
    }

    fn graph_number(&self, token: Token) -> Result<u64> {
        self.text_of(token)[1..].parse::<u64>().map_err(|_| {
            let message = format!("expected a number less than 2^64, found `{}`", shorten(self.text_of(token)));
            Box::new(Diagnostic::error(codes::text::BAD_NUMBER, message).at(token.span, ""))
        })
    }

    pub(super) fn bind_graph(&mut self, token: Token, value: ExprId) -> Result<()> {
        let number = self.graph_number(token)?;
        if self.names.bind_graph(number, value).is_some() {
            self.report(Box::new(
                Diagnostic::error(codes::text::DUPLICATE_NAME, format!("duplicate definition of `%{number}`"))
                    .at(token.span, "the second definition")
                    .help("use another number: all `%N` in a text share one scope"),
            ));
        }
        Ok(())
    }

    fn unknown_local(&mut self, name: &str, span: Span) -> ExprId {
        let excerpt = shorten(name);
        let mut diagnostic =
            Diagnostic::error(codes::text::UNKNOWN_NAME, format!("undefined variable `%{excerpt}`")).at(span, "");
        if let Some((left, right)) = name.split_once('/').filter(|(left, _)| self.names.lookup(left).is_some()) {
            let (left, right) = (shorten(left), shorten(right));
            diagnostic = diagnostic
                .note("a `/` inside a name is part of the name")
                .help(format!("for a division, put spaces around the `/`: `%{left} / {right}`"));
        } else if let Some(near) = self.suggestion(&excerpt, self.names.bound()) {
            diagnostic = diagnostic.help(format!("did you mean `%{near}`?"));
        }
        self.report(Box::new(diagnostic));
        self.push(Expr::Tuple(Box::new([])), span.start)
    }
}

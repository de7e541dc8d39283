//! Parser of the values inside a pattern: attributes, literals, types and shapes.

use super::{Parser, Result, advice, depth_error};
use crate::pattern::data::{MAX_DEPTH, PatternId, PatternNode};
use crate::pattern::lexer::Token;
use byoc_ir::diag::{Diagnostic, Severity, Span, codes, nearest};
use byoc_ir::ir::{AttrValue, Attrs, Dim, Name, OpId, Type};
use byoc_ir::op;
use byoc_ir::tensor::{DType, Tensor};
use byoc_ir::text::number::{self, Number};

impl Parser<'_> {
    pub(super) fn attrs(&mut self) -> Result<Attrs> {
        Ok(Attrs::new(self.attr_list()?.into_iter().map(|(key, value, _)| (key, value))))
    }

    /// Parses attributes, with a warning for each attribute that the operator does not have.
    pub(super) fn attrs_of(&mut self, op: Option<OpId>) -> Result<Attrs> {
        let list = self.attr_list()?;
        if let Some(op) = op {
            let def = op::get(op);
            for (key, _, span) in &list {
                if def.attr(key).is_none() {
                    let message = format!("{} has no attribute \"{key}\"", def.name);
                    self.findings.add(Severity::Warning, || {
                        let diagnostic =
                            Diagnostic::warning(codes::passes::PATTERN_ATTRIBUTE, message).at(*span, "never matches");
                        match nearest(key, def.attrs.iter().map(|a| a.name)) {
                            Some(suggestion) => diagnostic.help(format!("did you mean \"{suggestion}\"?")),
                            None => diagnostic,
                        }
                    });
                }
            }
        }
        Ok(Attrs::new(list.into_iter().map(|(key, value, _)| (key, value))))
    }

    pub(super) fn attr_list(&mut self) -> Result<Vec<(Name, AttrValue, Span)>> {
        let mut list = Vec::new();
        if self.take('{') {
            while !self.take('}') {
                if !list.is_empty() {
                    self.expect(',')?;
                }
                let (key, span) = self.name("the name of an attribute")?;
                if self.peek() == Token::Mark(':') {
                    return Err(self.unexpected_with("\"=\"", Some(format!("write {{{key}=...}}"))));
                }
                self.expect('=')?;
                let value = self.value()?;
                list.push((Name::from(key), value, span));
            }
        }
        Ok(list)
    }

    pub(super) fn value(&mut self) -> Result<AttrValue> {
        Ok(match self.peek() {
            Token::Number(number) => match attr_number(number) {
                Some(value) => {
                    self.next();
                    value
                }
                None => return Err(self.unexpected("a number")),
            },
            Token::Str(text) => {
                self.next();
                text.into()
            }
            Token::Name(name) => {
                self.next();
                match name {
                    "True" | "true" => true.into(),
                    "False" | "false" => false.into(),
                    "None" | "nullptr" => AttrValue::None,
                    other => attr_number(other).unwrap_or_else(|| other.into()),
                }
            }
            Token::Mark(open @ ('[' | '(')) => {
                self.next();
                let close = if open == '[' { ']' } else { ')' };
                self.depth += 1;
                if self.depth > MAX_DEPTH {
                    return Err(depth_error(self.span()));
                }
                let mut items = Vec::new();
                while !self.take(close) {
                    if !items.is_empty() {
                        self.expect(',')?;
                    }
                    items.push(self.value()?);
                }
                self.depth -= 1;
                AttrValue::List(items.into())
            }
            _ => return Err(self.unexpected("the value of an attribute")),
        })
    }

    pub(super) fn literal_tensor(&mut self) -> Result<Tensor> {
        let tensor = match self.peek() {
            Token::Name("True" | "true") => Some(Tensor::from_bools(&[], &[true])),
            Token::Name("False" | "false") => Some(Tensor::from_bools(&[], &[false])),
            // Infinity and NaN are spelled like names: inff, nanf16.
            Token::Number(number) | Token::Name(number) => scalar(number),
            _ => None,
        };
        match tensor {
            Some(tensor) => {
                self.next();
                Ok(tensor)
            }
            None => Err(self.unexpected("a number that fits its type, such as 1, 2i64, 0.5f or 1f16")),
        }
    }

    pub(super) fn of_type(&mut self, inner: PatternId) -> Result<PatternNode> {
        match self.peek() {
            Token::Name(name) if DType::parse(name).is_some() => {
                self.next();
                Ok(PatternNode::OfDtype(inner, DType::parse(name).expect("the match guard accepts only element types")))
            }
            Token::Mark('(') if self.shape_follows() => {
                self.next();
                Ok(PatternNode::OfShape(inner, self.dims()?))
            }
            _ => Ok(PatternNode::Typed(inner, self.full_type()?)),
        }
    }

    pub(super) fn shape_follows(&self) -> bool {
        matches!(self.tokens.get(self.at + 1).map(|t| t.token), Some(Token::Number(_) | Token::Mark('?' | ')')))
    }

    /// Parses dimensions up to `)`; the `(` is already consumed.
    pub(super) fn dims(&mut self) -> Result<Box<[Dim]>> {
        let mut dims = Vec::new();
        while !self.take(')') {
            if !dims.is_empty() {
                self.expect(',')?;
                if self.take(')') {
                    break;
                }
            }
            dims.push(match self.peek() {
                Token::Mark('?') => Dim::Any,
                Token::Name(name) => Dim::symbol(name),
                Token::Number(number) => match number.parse() {
                    Ok(size) => Dim::Fixed(size),
                    Err(_) => return Err(self.unexpected("a dimension")),
                },
                _ => return Err(self.unexpected("a dimension")),
            });
            self.next();
        }
        Ok(dims.into())
    }

    pub(super) fn full_type(&mut self) -> Result<Type> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(depth_error(self.span()));
        }
        let ty = match self.peek() {
            Token::Name("Tensor") => {
                self.next();
                self.expect('[')?;
                self.expect('(')?;
                let dims = self.dims()?;
                self.expect(',')?;
                let dtype = self.dtype()?;
                self.expect(']')?;
                Type::tensor_of(dtype, dims)
            }
            Token::Mark('(') => {
                self.next();
                let mut fields = Vec::new();
                while !self.take(')') {
                    if !fields.is_empty() {
                        self.expect(',')?;
                        if self.take(')') {
                            break;
                        }
                    }
                    fields.push(self.full_type()?);
                }
                Type::tuple(fields)
            }
            _ => Type::scalar(self.dtype()?),
        };
        self.depth -= 1;
        Ok(ty)
    }

    pub(super) fn dtype(&mut self) -> Result<DType> {
        match self.peek() {
            Token::Name(name) if DType::parse(name).is_some() => {
                self.next();
                Ok(DType::parse(name).expect("the match guard accepts only element types"))
            }
            token => {
                let help = match token {
                    Token::Name(word) => advice::element_type(word),
                    _ => self.help_for_dimensions(),
                };
                Err(self.unexpected_with("a type: Tensor[(1, ?), float32], an element type, or dimensions", help))
            }
        }
    }
}

/// Parses the numeric value of an attribute. Relay's type suffixes are allowed and have no effect.
fn attr_number(text: &str) -> Option<AttrValue> {
    match number(text)? {
        Number::Int(value, _) => i64::try_from(value).ok().map(AttrValue::Int),
        Number::Float(value, _) => Some(AttrValue::Float(value)),
    }
}

/// Parses a scalar with one of Relay's type suffixes. Without a suffix, an integer is int32 (int64 if the value does
/// not fit) and a number with a fraction is float32.
fn scalar(text: &str) -> Option<Tensor> {
    number(text)?.to_tensor().ok()
}

fn number(text: &str) -> Option<Number> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    // Unlike in the text format, a float needs no suffix: a fraction or an exponent identifies it.
    let float = digits.contains(['.', 'e', 'E']).then(|| number::parse(&format!("{digits}f"), negative).ok()).flatten();
    number::special(digits, negative).or(float).or_else(|| number::parse(digits, negative).ok())
}

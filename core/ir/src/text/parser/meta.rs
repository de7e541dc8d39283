//! References to metadata: `meta[relay.Constant][0]` as an expression, `meta[relay.attrs.Conv2DAttrs][0]` for the
//! attributes of a call, any other key for the value of one attribute. The values are in the metadata section of the
//! text or, for constants, in the weights file next to it.

use super::frames::{ParseFrame, State, Target};
use super::tokens::shorten;
use super::{Kind, Parser, Result};
use crate::diag::{Diagnostic, Span, codes, nearest};
use crate::ir::{AttrValue, Expr};
use crate::op;
use crate::text::metadata::{HEADER, Metadata, OLD_HEADER};

/// Parsed `meta[key][index]`.
struct Reference<'a> {
    key: &'a str,
    index: usize,
    span: Span,
}

impl<'a> Parser<'a> {
    /// Finds and reads the metadata section at the end of the text. The header found may be inside a comment, which is
    /// known only once the text before it has been parsed.
    pub(super) fn parse_metadata_section(&mut self) {
        let find = |header: &'static str| self.source.rfind(header).map(|start| (start, header));
        let Some((start, header)) = find(HEADER).or_else(|| find(OLD_HEADER)) else { return };
        if start > 0 && !self.source[..start].trim_end_matches([' ', '\t', '\r']).ends_with('\n') {
            return;
        }
        let span = Span { start: start as u32, end: (start + header.len()) as u32 };
        let mut json = self.source[start + header.len()..].trim_start();
        while let Some(comment) = json.strip_prefix("//") {
            json = comment.split_once('\n').map_or("", |(_, tail)| tail).trim_start();
        }
        if let Err(error) = self.charge.grow(Metadata::tree_size(json)) {
            return self.stop(Diagnostic::from(error).note("the metadata section was being read"));
        }
        let metadata = Metadata::read(json);
        self.stop_if_cancelled();
        match metadata {
            Ok(metadata) => {
                self.section = Some(span.start);
                self.metadata = Some(metadata);
            }
            Err(reason) => {
                self.section = Some(span.start);
                let message = format!("cannot read the metadata section: {reason}");
                self.section_error = Some(Box::new(Diagnostic::error(codes::text::BAD_METADATA, message).at(span, "")));
            }
        }
    }

    /// Parses `meta[key][index]`.
    fn reference(&mut self) -> Result<Reference<'a>> {
        let start = self.take().span.start;
        self.expect(Kind::OpenBracket)?;
        let key = self.expect(Kind::Ident)?;
        self.expect(Kind::CloseBracket)?;
        self.expect(Kind::OpenBracket)?;
        let number = self.expect(Kind::Number)?;
        self.expect(Kind::CloseBracket)?;
        let span = Span { start, end: self.last_end };
        match self.text_of(number).parse() {
            Ok(index) => Ok(Reference { key: self.text_of(key), index, span }),
            Err(_) => {
                let message = format!("expected an index, found `{}`", shorten(self.text_of(number)));
                Err(Box::new(Diagnostic::error(codes::text::BAD_NUMBER, message).at(number.span, "")))
            }
        }
    }

    /// Parses a reference to a constant or, as the last argument of an operator, to all attributes of the call.
    pub(super) fn meta_operand(&mut self, start: u32) -> Result<State> {
        let reference = self.reference()?;
        if reference.key == "relay.Constant" {
            let index = reference.index;
            let id = match self.constants.get(&index) {
                Some(&id) => id,
                None => {
                    let tensor = match self.metadata.as_mut().filter(|m| m.count("relay.Constant") > 0) {
                        Some(metadata) if index < metadata.count("relay.Constant") => metadata.constant(index),
                        Some(metadata) => Err(format!(
                            "the number of constants in the section is {}",
                            metadata.count("relay.Constant")
                        )),
                        None if self.section_error.is_some() => Err("invalid metadata section".to_owned()),
                        None => self.options.constants.get(index).cloned().ok_or_else(|| {
                            format!("the number of constants in the weights file is {}", self.options.constants.len())
                        }),
                    };
                    let tensor = tensor.map_err(|reason| {
                        let message = format!("constant {index}: {reason}");
                        Box::new(Diagnostic::error(codes::text::BAD_METADATA, message).at(reference.span, "").help(
                            "number the constants from 0, in a #[metadata] section or a weights file beside the text",
                        ))
                    })?;
                    let id = self.push(Expr::Constant(tensor), start);
                    self.constants.insert(index, id);
                    id
                }
            };
            return Ok(State::After(id, start));
        }
        if let Some(&ParseFrame::Arguments { target: Target::Op(op), .. }) = self.frames.last()
            && self.peek().kind == Kind::CloseParen
        {
            let attrs = self.metadata(&reference)?.op_attrs(reference.key, reference.index, op::get(op));
            let pairs = attrs.map_err(|reason| unusable_reference(&reference, &reason))?;
            self.attrs.extend(pairs);
            return self.next_argument();
        }
        self.metadata(&reference)?;
        Err(unusable_reference(&reference, "attributes are only allowed as the last argument of an operator call"))
    }

    /// Parses the value of an attribute.
    pub(super) fn meta_attribute(&mut self) -> Result<AttrValue> {
        let reference = self.reference()?;
        let value = self.metadata(&reference)?.attribute(reference.key, reference.index);
        value.map_err(|reason| unusable_reference(&reference, &reason))
    }

    /// Returns the metadata, after a check that it contains the referenced object.
    fn metadata(&self, reference: &Reference<'_>) -> Result<&Metadata> {
        let Reference { key, index, span } = *reference;
        let excerpt = shorten(key);
        let Some(metadata) = &self.metadata else {
            let message = match self.section_error {
                None => format!("expected a metadata section for `meta[{excerpt}]`, found none"),
                Some(_) => format!("`meta[{excerpt}]` refers to an invalid metadata section"),
            };
            return Err(Box::new(
                Diagnostic::error(codes::text::BAD_METADATA, message)
                    .at(span, "")
                    .help("add a metadata section after the definitions, below a line #[metadata]"),
            ));
        };
        let count = metadata.count(key);
        if index < count {
            return Ok(metadata);
        }
        let keys = metadata.keys();
        let message = match count {
            0 => format!("the metadata has no objects of type `{excerpt}`"),
            _ => format!("`meta[{excerpt}]`: expected an index less than {count}, found {index}"),
        };
        let mut diagnostic = Diagnostic::error(codes::text::BAD_METADATA, message).at(span, "");
        if let Some(near) = nearest(key, keys.iter().copied()).filter(|near| *near != key) {
            diagnostic = diagnostic.help(format!("did you mean `{near}`?"));
        }
        Err(Box::new(diagnostic))
    }
}

fn unusable_reference(reference: &Reference<'_>, reason: &str) -> Box<Diagnostic> {
    let message = format!("invalid reference `meta[{}][{}]`: {reason}", shorten(reference.key), reference.index);
    Box::new(Diagnostic::error(codes::text::BAD_METADATA, message).at(reference.span, ""))
}

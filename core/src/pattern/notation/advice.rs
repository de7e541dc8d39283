//! Help for mistakes in patterns: a valid form that is close to the invalid one.

use super::{Parser, Token};
use byoc_ir::diag::{Diagnostic, nearest};
use byoc_ir::op;
use byoc_ir::tensor::DType;
use std::ops::Range;

/// Forms in this notation that correspond to constructors of Relay's pattern language and to words of other notations.
const OTHER_FORMS: [(&str, &str); 13] = [
    ("wildcard", "* for any expression"),
    ("is_constant", "const for a constant"),
    ("is_var", "var for a variable"),
    ("is_op", "nn.relu(*) for a call to nn.relu"),
    ("is_expr", "const(1.0) for a constant of that value"),
    ("is_tuple", "(*, *) for a tuple of two fields"),
    ("is_tuple_get_item", "split(*).0 for a field of a tuple"),
    ("is_if", "if(*, *, *) for a branch"),
    ("constant", "const for a constant"),
    ("any", "* for any expression"),
    ("_", "* for any expression"),
    ("optional", "nn.conv2d(*, *) ? nn.bias_add for an optional operator"),
    ("or", "nn.relu(*) | tanh(*) for one of two patterns"),
];

/// Returns the form in this notation that corresponds to a word of another notation.
pub(super) fn other_form(name: &str) -> Option<&'static str> {
    OTHER_FORMS.iter().find(|(other, _)| *other == name).map(|(_, form)| *form)
}

/// Returns the operator whose name without its prefix is `name`: `nn.relu` for `relu`.
pub(super) fn with_prefix(name: &str) -> Option<&'static str> {
    let matches = |qualified_name: &&'static str| qualified_name.rsplit_once('.').is_some_and(|(_, last)| last == name);
    op::names().filter(matches).min_by_key(|qualified_name| !qualified_name.starts_with("nn."))
}

/// Returns help for an entry without a colon after `first`, which is the name of the entry or begins its pattern.
pub(super) fn name_entry(first: &str, entry: &str) -> String {
    let tail = entry.strip_prefix(first).unwrap_or_default().trim_start();
    if op::lookup(first).is_none() && !tail.is_empty() && !tail.starts_with(['(', '{', '=', '.']) {
        return format!("write {first}: {tail}");
    }
    let name: String = first.rsplit('.').next().unwrap_or(first).chars().filter(|c| *c != '"').collect();
    format!("write {name}_1: {entry}")
}

/// Adds help about the parts of a `dominates` pattern to an error in one of them.
pub(super) fn add_parts_help(mut error: Box<Diagnostic>, name: &str) -> Box<Diagnostic> {
    error
        .help
        .get_or_insert_with(|| format!("write {name}(nn.relu(*), op{{TOpPattern=0}}, add(*, *)): parent, path, child"));
    error
}

/// Returns help for a token at which no pattern begins.
pub(super) fn help_for_missing_pattern(found: Token<'_>, next: Option<Token<'_>>) -> Option<String> {
    match (found, next) {
        (Token::Mark('%'), Some(Token::Name(name))) => {
            Some(format!("write *{name} for an expression that occurs several times, or var({name}) for a variable"))
        }
        (Token::Number(number), _) => Some(format!("write const({number}) for a constant of that value")),
        (Token::Any, _) => Some("write * for any expression".to_owned()),
        _ => None,
    }
}

/// Returns help for a name that is not an element type.
pub(super) fn element_type(word: &str) -> Option<String> {
    let names = DType::ALL.iter().map(|dtype| dtype.name());
    nearest(word, names).map(|suggestion| format!("did you mean \"{suggestion}\"?"))
}

impl Parser<'_> {
    /// Returns the text of the current statement before the current token.
    fn preceding_text(&self) -> &str {
        self.text[self.statement..self.span().start as usize].trim_end()
    }

    /// Returns the text of the entry after the current token.
    fn following_text(&self) -> &str {
        &self.text[self.span().end as usize..self.end]
    }

    /// Returns help for an unexpected token after a complete pattern.
    pub(super) fn help_after_pattern(&self) -> Option<String> {
        let next_token = self.tokens.get(self.at + 1).map(|t| t.token);
        match (self.peek(), next_token) {
            (Token::Mark('['), Some(Token::Number(field))) => Some(format!("write {}.{field}", self.preceding_text())),
            (Token::Bad('+'), _) => Some("write let c = nn.relu(c | *); c for a chain of any length".to_owned()),
            (Token::Bad('&'), _) => Some("write a name that occurs in both: add(nn.relu(*x), *x)".to_owned()),
            _ => None,
        }
    }

    /// Returns help for an unterminated argument list, or for an argument list that contains an attribute.
    pub(super) fn help_in_arguments(&self, callee: &str) -> Option<String> {
        match (self.peek(), self.tokens.get(self.at + 1).map(|t| t.token)) {
            (Token::End, _) => {
                let depth_open = self.tokens[..self.at].iter().fold(0usize, |depth, t| match t.token {
                    Token::Mark('(') => depth + 1,
                    Token::Mark(')') => depth.saturating_sub(1),
                    _ => depth,
                });
                Some(format!("write {}{}", self.preceding_text(), ")".repeat(depth_open)))
            }
            (Token::Name(key), Some(Token::Mark('='))) => {
                let value = &self.text[self.tokens[self.at + 1].span.end as usize..self.end];
                let value = value[..argument_end(value)].trim();
                Some(format!("write {callee}{{{key}={value}}}(..)"))
            }
            _ => None,
        }
    }

    /// Returns help for `let NAME = p in q`.
    pub(super) fn help_after_binding(&self, name: &str) -> Option<String> {
        let binding = self.text[self.statement..self.span().start as usize].trim();
        let binding = binding.rfind(&format!("let {name}")).map_or(binding, |start| &binding[start..]);
        (self.peek() == Token::Name("in")).then(|| format!("write {binding}; {}", self.following_text().trim()))
    }

    /// Returns help for `p.relu`, where `start` is the byte offset of `p`.
    pub(super) fn help_for_method(&self, start: usize) -> Option<String> {
        let Token::Name(name) = self.peek() else { return None };
        let qualified_name = if op::lookup(name).is_some() { name } else { with_prefix(name)? };
        let receiver = self.text[start..self.span().start as usize].trim_end().trim_end_matches('.').trim_end();
        Some(format!("write {qualified_name}({receiver})"))
    }

    /// Returns help for `[1, 2]` in place of dimensions.
    pub(super) fn help_for_dimensions(&self) -> Option<String> {
        let tail = &self.text[self.span().start as usize..self.end];
        let inner = tail.strip_prefix('[')?;
        Some(format!("write ({})", inner[..inner.find(']')?].trim()))
    }

    /// Returns help for an operator without arguments: `nn.bias_add?(p)` is `p ? nn.bias_add`.
    pub(super) fn help_without_arguments(&self, name: &str) -> String {
        let is_optional =
            self.peek() == Token::Mark('?') && self.tokens.get(self.at + 1).map(|t| t.token) == Some(Token::Mark('('));
        let argument = self.tokens.get(self.at + 1).filter(|_| is_optional).and_then(|t| {
            let tail = &self.text[t.span.end as usize..self.end];
            Some(tail.get(..argument_end(tail))?.trim())
        });
        match argument {
            Some(argument) => format!("write ({argument} ? {name})"),
            None => format!("write {name}(..) for a call with any arguments"),
        }
    }

    /// Returns help for `p ? op(..)`: the complete entry, with a name bound to `p` and the operator applied to that
    /// name. `inner` is the byte range of `p`, `operator` the byte offset of the operator, which needs at least
    /// `min_arity` arguments; the current token opens its arguments.
    pub(super) fn help_for_optional_arguments(&self, inner: Range<usize>, operator: usize, min_arity: usize) -> String {
        let open = self.span().start as usize;
        let Some(close) = self.closing() else { return format!("write ? {}", self.text[operator..open].trim()) };
        let name = (0..).map(|i| format!("p{i}")).find(|name| !self.names.contains_key(&**name)).unwrap_or_default();
        let written_arguments = split_arguments(&self.text[open + 1..close]);
        // The pattern itself is the first argument. With too few arguments, the list begins with the second one.
        let other_arguments: &[&str] = match &written_arguments[..] {
            [".."] => &[],
            [_, other_arguments @ ..] if written_arguments.len() >= min_arity => other_arguments,
            all => all,
        };
        let mut arguments = vec![name.as_str()];
        arguments.extend(other_arguments);
        arguments.resize(arguments.len().max(min_arity), "*");
        let call = format!("{}({})", self.text[operator..open].trim(), arguments.join(", "));
        let (before, after) = (&self.text[self.statement..inner.start], &self.text[close + 1..self.end]);
        let inner = self.text[inner].trim();
        let rewritten_text = format!("let {name} = {inner}; {before}({name} | {call}){after}");
        format!("write {}", rewritten_text.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    /// Returns the byte offset of the parenthesis that matches the opening parenthesis at the current token.
    fn closing(&self) -> Option<usize> {
        let mut depth = 0usize;
        for spanned in &self.tokens[self.at..] {
            match spanned.token {
                Token::Mark('(') => depth += 1,
                Token::Mark(')') => depth = depth.checked_sub(1)?,
                _ => continue,
            }
            if depth == 0 {
                return Some(spanned.span.start as usize);
            }
        }
        None
    }
}

/// Splits an argument list at the commas outside parentheses, braces and brackets.
fn split_arguments(arguments: &str) -> Vec<&str> {
    let mut depth = 0i32;
    let is_separator = |c: char| {
        depth += match c {
            '(' | '{' | '[' => 1,
            ')' | '}' | ']' => -1,
            _ => 0,
        };
        c == ',' && depth == 0
    };
    arguments.split(is_separator).map(str::trim).filter(|argument| !argument.is_empty()).collect()
}

/// Returns the byte offset of the comma or the parenthesis that ends the first argument.
fn argument_end(arguments: &str) -> usize {
    let mut depth = 0i32;
    let end = arguments.char_indices().find_map(|(i, c)| {
        match c {
            ',' | ')' if depth == 0 => return Some(i),
            '(' | '{' | '[' => depth += 1,
            ')' | '}' | ']' => depth -= 1,
            _ => {}
        }
        None
    });
    end.unwrap_or(arguments.len())
}

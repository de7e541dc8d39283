//! Help for mistakes in patterns: a valid form that is close to the invalid one.

use super::{Parser, Token};
use byoc_ir::diag::Diagnostic;
use std::ops::Range;

/// Forms of this notation for the constructors of Relay's pattern language.
const RELAY_FORMS: [(&str, &str); 8] = [
    ("wildcard", "* for any expression"),
    ("is_constant", "const for a constant"),
    ("is_var", "var for a variable"),
    ("is_op", "nn.relu(*) for a call of nn.relu"),
    ("is_expr", "const(1.0) for a constant of that value"),
    ("is_tuple", "(*, *) for a tuple of two fields"),
    ("is_tuple_get_item", "split(*).0 for a field of a tuple"),
    ("is_if", "if(*, *, *) for a branch"),
];

/// Returns the form of this notation for a constructor of Relay's pattern language.
pub(super) fn relay_form(name: &str) -> Option<&'static str> {
    RELAY_FORMS.iter().find(|(relay, _)| *relay == name).map(|(_, form)| *form)
}

/// Returns help for an entry that begins with its pattern.
pub(super) fn name_entry(first: &str, entry: &str) -> String {
    let name: String = first.rsplit('.').next().unwrap_or(first).chars().filter(|c| *c != '"').collect();
    format!("write {name}_1: {entry}")
}

/// Adds help about `dominates` to an error in its parts.
pub(super) fn three_parts(mut error: Box<Diagnostic>, name: &str) -> Box<Diagnostic> {
    error
        .help
        .get_or_insert_with(|| format!("write {name}(nn.relu(*), op{{TOpPattern=0}}, add(*, *)): parent, path, child"));
    error
}

/// Returns help for a token at which no pattern begins.
pub(super) fn no_pattern(found: Token<'_>, next: Option<Token<'_>>) -> Option<String> {
    match (found, next) {
        (Token::Mark('%'), Some(Token::Name(name))) => {
            Some(format!("write *{name} for an expression that occurs several times, or var({name}) for a variable"))
        }
        (Token::Number(number), _) => Some(format!("write const({number}) for a constant of that value")),
        (Token::Any, _) => Some("write * for any expression".to_owned()),
        _ => None,
    }
}

impl Parser<'_> {
    /// Returns help for `p ? op(..)`: the whole entry with a name for `p`, which the operator is applied to. `inner` is
    /// the range of `p` in the text, `operator` the place of the operator; the current token opens its arguments.
    pub(super) fn optional_with_arguments(&self, inner: Range<usize>, operator: usize) -> String {
        let open = self.span().start as usize;
        let Some(close) = self.closing() else { return format!("write ? {}", self.text[operator..open].trim()) };
        let name = (0..).map(|i| format!("p{i}")).find(|name| !self.names.contains_key(&**name)).unwrap_or_default();
        let arguments = self.text[open + 1..close].trim();
        // The first argument is the pattern itself.
        let rest = match first_argument_end(arguments) {
            Some(comma) => format!(", {}", arguments[comma + 1..].trim()),
            None => String::new(),
        };
        let call = format!("{}({name}{rest})", self.text[operator..open].trim());
        let (before, after) = (&self.text[self.statement..inner.start], &self.text[close + 1..self.end]);
        let inner = self.text[inner].trim();
        let whole = format!("let {name} = {inner}; {before}({name} | {call}){after}");
        format!("write {}", whole.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    /// Returns the place of the parenthesis that closes the one at the current token.
    fn closing(&self) -> Option<usize> {
        let mut depth = 0usize;
        for word in &self.words[self.at..] {
            match word.token {
                Token::Mark('(') => depth += 1,
                Token::Mark(')') => depth = depth.checked_sub(1)?,
                _ => continue,
            }
            if depth == 0 {
                return Some(word.span.start as usize);
            }
        }
        None
    }
}

/// Returns the place of the comma after the first of several arguments.
fn first_argument_end(arguments: &str) -> Option<usize> {
    let mut depth = 0i32;
    arguments.char_indices().find_map(|(at, c)| {
        depth += match c {
            '(' | '{' | '[' => 1,
            ')' | '}' | ']' => -1,
            _ => 0,
        };
        (c == ',' && depth == 0).then_some(at)
    })
}

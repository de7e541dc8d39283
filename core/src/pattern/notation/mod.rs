//! Parser of the pattern notation. One entry per line, in table order; indented lines continue an entry.
//!
//! ```text
//! entry   := name ':' (('let' NAME '=' alt ';')* alt) ('where' name)?
//! alt     := opt ('|' opt)*
//! opt     := typed ('?' opname attrs?)*          p ? f  is  p | f(p)
//! typed   := post (':' type)*
//! post    := atom ('.' INT | '.' '*')*
//! atom    := '*' NAME? | 'const' ('(' literal ')')? | 'var' ('(' NAME ')')? | opname attrs? '(' args | '..' ')'
//!          | '(' alt (',' alt)* ')' | '(' '..' ')' | 'if' '(' alt ',' alt ',' alt ')' | 'let' '(' alt ',' alt ',' alt ')'
//!          | 'fn' attrs? '(' args | '..' ')' '{' alt '}' | 'call' attrs? '(' alt ';' args | '..' ')'
//!          | ('dominates' | 'post_dominates') '(' alt ',' alt ',' alt ')' | 'op' attrs ('(' args | '..' ')')? | NAME
//! ```
//! As the callee of `call`, `op{..}` and a bare operator name denote the operator itself. A name may be used in its own
//! definition, inside an operand: `let c = nn.relu(c | *); c` matches a chain of any length. An entry with an error is
//! omitted from the table; parsing continues with the next entry, so that all errors are reported together.

mod advice;
mod values;

use super::data::{MAX_DEPTH, Pattern, PatternId, PatternNode};
use super::lexer::{SpannedToken, Token, entries, tokens};
use byoc_ir::cancel;
use byoc_ir::diag::{Diagnostic, Reports, Severity, Span, codes, nearest};
use byoc_ir::ir::{Attrs, IndexVec, Name, OpId};
use byoc_ir::op;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Entry of a pattern table.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Name of the composite: `chip.conv2d_bias_relu`.
    pub name: Name,
    /// Pattern of the entry.
    pub pattern: Pattern,
    /// Name of the plugin's check for candidates.
    pub check: Option<Name>,
    /// Span in the text.
    pub span: Span,
}

/// Permission to use `where`. A pattern file without a plugin has no implementation of the checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checks {
    /// `where` is allowed, as in the table of a plugin.
    Allowed,
    /// `where` is an error, as in a pattern file.
    Refused,
}

/// Result of parsing a table: the valid entries, and the diagnostics.
#[derive(Clone, Debug, Default)]
pub struct Parsed {
    /// Entries without errors, in table order.
    pub entries: Vec<Entry>,
    /// Errors and warnings, with spans in the text.
    pub diagnostics: Vec<Diagnostic>,
}

impl Parsed {
    /// Returns true if there are errors; warnings do not count.
    pub fn has_errors(&self) -> bool {
        self.diagnostics.iter().any(|d| d.severity == Severity::Error)
    }
}

/// Maximum length of a table in bytes. The time for a match is quadratic in the number of its bindings.
const MAX_TABLE: usize = 1 << 18;

/// Parses a pattern table. Entries with errors are omitted. A cancelled parse reports its cancellation as its only error.
pub fn parse_table(text: &str, checks: Checks) -> Parsed {
    if text.len() > MAX_TABLE {
        let message = format!("expected a pattern table of at most {MAX_TABLE} bytes, found {}", text.len());
        let diagnostics = vec![Diagnostic::error(codes::text::TOO_LARGE, message)];
        return Parsed { entries: Vec::new(), diagnostics };
    }
    let mut table_entries = Vec::new();
    let mut findings = Findings::default();
    for (start, end) in entries(text) {
        let mut parser = Parser::new(text, start, end, checks);
        parser.findings = std::mem::take(&mut findings);
        parser.findings.has_failed = false;
        match parser.entry() {
            Ok(entry) if !parser.findings.has_failed => table_entries.push(entry),
            Ok(_) => {}
            Err(diagnostic) => parser.findings.add(Severity::Error, || *diagnostic),
        }
        findings = parser.findings;
        if let Err(reason) = check_cancelled() {
            return Parsed { entries: Vec::new(), diagnostics: vec![*reason] };
        }
    }
    Parsed { entries: table_entries, diagnostics: findings.into_vec() }
}

fn check_cancelled() -> Result<()> {
    Ok(cancel::check(|| "patterns were being parsed".to_owned())?)
}

/// Errors and warnings.
#[derive(Default)]
struct Findings {
    errors: Reports,
    warnings: Reports,
    /// True if the current entry has an error.
    has_failed: bool,
}

impl Findings {
    fn add(&mut self, severity: Severity, create: impl FnOnce() -> Diagnostic) {
        self.has_failed |= severity == Severity::Error;
        match severity {
            Severity::Error => self.errors.add(create),
            Severity::Warning => self.warnings.add(create),
        }
    }

    /// Returns the errors and warnings in the order of the text.
    fn into_vec(self) -> Vec<Diagnostic> {
        let mut diagnostics = [self.errors.into_vec(), self.warnings.into_vec()].concat();
        diagnostics.sort_by_key(|diagnostic| diagnostic.labels.first().map_or(0, |label| label.span.start));
        diagnostics
    }
}

/// Returns the name of the entry around byte `offset` of a table, for the location of a diagnostic; empty if there is
/// none.
pub fn entry_name(table: &str, offset: usize) -> &str {
    let entry = entries(table).into_iter().find(|&(start, end)| start <= offset && offset <= end);
    entry.map_or("", |(start, end)| table[start..end].split(':').next().unwrap_or_default().trim())
}

/// Parses one pattern without a name, such as `nn.relu(nn.conv2d(*, *))`. Returns the pattern and the warnings.
///
/// # Errors
/// If the syntax is invalid or a name is unknown; the error lists all diagnostics.
pub fn parse_pattern(text: &str) -> Result<(Pattern, Vec<Diagnostic>), Vec<Diagnostic>> {
    let mut parser = Parser::new(text, 0, text.len(), Checks::Refused);
    match parser.definition().and_then(|pattern| parser.expect_end().map(|()| pattern)) {
        Ok(pattern) if !parser.findings.has_failed => Ok((pattern, parser.findings.into_vec())),
        Ok(_) => Err(parser.findings.into_vec()),
        Err(diagnostic) => {
            parser.findings.add(Severity::Error, || *diagnostic);
            Err(parser.findings.into_vec())
        }
    }
}

type Result<T, E = Box<Diagnostic>> = std::result::Result<T, E>;

const KEYWORDS: &[&str] = &["let", "where", "if", "fn", "call", "op", "dominates", "post_dominates", "const", "var"];

struct Parser<'a> {
    text: &'a str,
    /// Start in `text` of the current `let`, or of the pattern after the last `let`.
    statement: usize,
    /// End of the entry in `text`.
    end: usize,
    tokens: Vec<SpannedToken<'a>>,
    at: usize,
    checks: Checks,
    nodes: IndexVec<PatternId, PatternNode>,
    /// Names bound by `let`, and by the first use of `*name`.
    names: BTreeMap<&'a str, PatternId>,
    /// Node of each operator: all references to an operator share one node.
    ops: BTreeMap<OpId, PatternId>,
    /// Placeholders for a name inside its own definition, with the span of the definition.
    recursive: Vec<(PatternId, &'a str, Span)>,
    depth: usize,
    findings: Findings,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str, from: usize, to: usize, checks: Checks) -> Parser<'a> {
        Parser {
            text,
            statement: from,
            end: to,
            tokens: tokens(text, from, to),
            at: 0,
            checks,
            nodes: IndexVec::new(),
            names: BTreeMap::new(),
            ops: BTreeMap::new(),
            recursive: Vec::new(),
            depth: 0,
            findings: Findings::default(),
        }
    }

    fn peek(&self) -> Token<'a> {
        self.tokens[self.at].token
    }

    fn span(&self) -> Span {
        self.tokens[self.at].span
    }

    fn next(&mut self) -> SpannedToken<'a> {
        let token = self.tokens[self.at];
        if self.at + 1 < self.tokens.len() {
            self.at += 1;
        }
        token
    }

    fn take(&mut self, mark: char) -> bool {
        let is_match = self.peek() == Token::Mark(mark);
        if is_match {
            self.next();
        }
        is_match
    }

    fn expect(&mut self, mark: char) -> Result<()> {
        if self.take(mark) { Ok(()) } else { Err(self.unexpected(&format!("\"{mark}\""))) }
    }

    fn name(&mut self, token: &str) -> Result<(&'a str, Span)> {
        match self.peek() {
            Token::Name(name) => Ok((name, self.next().span)),
            _ => Err(self.unexpected(token)),
        }
    }

    fn expect_end(&mut self) -> Result<()> {
        match self.peek() {
            Token::End => Ok(()),
            _ => {
                let help = self.help_after_pattern();
                Err(self.unexpected_with("\"|\", \"?\", \":\", \".\" or the end of the pattern", help))
            }
        }
    }

    fn unexpected(&self, expected: &str) -> Box<Diagnostic> {
        self.unexpected_with(expected, None)
    }

    /// Returns the error for the current token, with help that shows a valid form.
    fn unexpected_with(&self, expected: &str, help: Option<String>) -> Box<Diagnostic> {
        let actual = match self.peek() {
            Token::Name(name) => format!("\"{name}\""),
            Token::Number(number) => format!("\"{number}\""),
            Token::Str(text) => format!("the string \"{text}\""),
            Token::Mark(mark) => format!("\"{mark}\""),
            Token::Any => "\"..\"".to_owned(),
            Token::Bad('"') => "an unterminated string".to_owned(),
            Token::Bad(character) => format!("the character {character:?}"),
            Token::End => "the end of the pattern".to_owned(),
        };
        let message = format!("expected {expected}, found {actual}");
        let mut diagnostic =
            Diagnostic::error(codes::passes::PATTERN_SYNTAX, message).at(self.span(), format!("expected {expected}"));
        diagnostic.help = help;
        Box::new(diagnostic)
    }

    fn entry(&mut self) -> Result<Entry> {
        let (name, span) = self.name("the name of a pattern")?;
        if self.peek() != Token::Mark(':') {
            let help = advice::name_entry(name, self.text[span.start as usize..self.end].trim());
            return Err(self.unexpected_with("\":\"", Some(help)));
        }
        self.next();
        let pattern = self.definition()?;
        let mut check = None;
        if self.peek() == Token::Name("where") {
            let name_span = self.next().span;
            let (name, end) = self.name("the name of a check")?;
            if self.checks == Checks::Refused {
                let message = format!("a pattern file cannot use the check \"{name}\"");
                return Err(Box::new(
                    Diagnostic::error(codes::passes::PATTERN_CHECK, message)
                        .at(name_span.to(end), "only the table of a plugin has checks")
                        .help("remove \"where\", or use the plugin as a backend"),
                ));
            }
            check = Some(Name::from(name));
        }
        self.expect_end()?;
        Ok(Entry { name: name.into(), pattern, check, span: span.to(self.span()) })
    }

    fn definition(&mut self) -> Result<Pattern> {
        self.statement = self.span().start as usize;
        while self.peek() == Token::Name("let")
            && matches!(self.tokens.get(self.at + 1).map(|t| t.token), Some(Token::Name(_)))
        {
            self.next();
            let (name, span) = self.name("a name")?;
            if KEYWORDS.contains(&name) || self.names.contains_key(name) {
                let message = format!("the name \"{name}\" is already in use");
                return Err(Box::new(
                    Diagnostic::error(codes::passes::PATTERN_NAME, message)
                        .at(span, "expected a name that is neither bound nor a keyword"),
                ));
            }
            self.expect('=')?;
            let placeholder = self.push(PatternNode::Wildcard);
            self.names.insert(name, placeholder);
            let value = self.alternative()?;
            if !self.take(';') {
                return Err(self.unexpected_with("\";\"", self.help_after_binding(name)));
            }
            let uses = |(_, node): (_, &PatternNode)| Pattern::operands(node).contains(&placeholder);
            if value == placeholder || self.nodes.iter().any(uses) {
                self.nodes[placeholder] = PatternNode::Redirect(value);
                self.recursive.push((placeholder, name, span));
            }
            self.names.insert(name, value);
            self.statement = self.span().start as usize;
        }
        let start = self.span();
        let root = self.alternative()?;
        let pattern = Pattern { nodes: std::mem::take(&mut self.nodes), root };
        for (placeholder, name, span) in std::mem::take(&mut self.recursive) {
            check_cancelled()?;
            if pattern.is_unguarded(placeholder) {
                let message = format!("the pattern \"{name}\" refers directly to itself");
                self.findings.add(Severity::Error, || {
                    Diagnostic::error(codes::passes::PATTERN_NAME, message)
                        .at(span, "the recursion consumes no expression")
                        .help(format!("use \"{name}\" inside an operand of its definition: nn.relu({name} | *)"))
                });
            }
        }
        if pattern.depth() > MAX_DEPTH {
            return Err(depth_error(start));
        }
        Ok(pattern)
    }

    fn alternative(&mut self) -> Result<PatternId> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(depth_error(self.span()));
        }
        let mut left = self.optional()?;
        while self.take('|') {
            let right = self.optional()?;
            left = self.push(PatternNode::Alt(left, right));
        }
        self.depth -= 1;
        Ok(left)
    }

    fn optional(&mut self) -> Result<PatternId> {
        let start = self.span().start as usize;
        let mut inner = self.type_constraint()?;
        while self.peek() == Token::Mark('?') {
            let range = start..self.span().start as usize;
            self.next();
            let (name, span) = self.name("the name of an operator")?;
            let op = self.operator(name, span);
            let attrs = self.attrs_of(op)?;
            if self.peek() == Token::Mark('(') {
                let min_arity = op.map_or(1, |op| op::get(op).arity.min);
                let help = self.help_for_optional_arguments(range, span.start as usize, min_arity);
                return Err(self.unexpected_with("\"?\", \"|\" or the end of the pattern", Some(help)));
            }
            let Some(op) = op else { continue };
            // The pattern becomes the first argument of the operator; any further arguments are wildcards.
            let mut args = vec![inner];
            while args.len() < op::get(op).arity.min {
                args.push(self.push(PatternNode::Wildcard));
            }
            let call = self.call_op(op, attrs, Some(args.into()));
            inner = self.push(PatternNode::Alt(inner, call));
        }
        Ok(inner)
    }

    fn type_constraint(&mut self) -> Result<PatternId> {
        let mut inner = self.postfix()?;
        while self.take(':') {
            let node = self.of_type(inner)?;
            inner = self.push(node);
        }
        Ok(inner)
    }

    fn postfix(&mut self) -> Result<PatternId> {
        let start = self.span().start as usize;
        let mut tuple = self.atom()?;
        while self.take('.') {
            let index = if self.take('*') {
                None
            } else {
                match self.peek() {
                    Token::Number(number) => match number.parse() {
                        Ok(index) => {
                            self.next();
                            Some(index)
                        }
                        Err(_) => return Err(self.unexpected("a field index")),
                    },
                    _ => return Err(self.unexpected_with("a field index or \"*\"", self.help_for_method(start))),
                }
            };
            tuple = self.push(PatternNode::Project { tuple, index });
        }
        Ok(tuple)
    }

    fn atom(&mut self) -> Result<PatternId> {
        check_cancelled()?;
        let spanned_token = self.next();
        match spanned_token.token {
            Token::Mark('*') => match self.peek() {
                Token::Name(name) if !KEYWORDS.contains(&name) => {
                    self.next();
                    if let Some(&definition) = self.names.get(name) {
                        return Ok(definition);
                    }
                    let id = self.push(PatternNode::Wildcard);
                    self.names.insert(name, id);
                    Ok(id)
                }
                _ => Ok(self.push(PatternNode::Wildcard)),
            },
            Token::Mark('(') => self.tuple_or_group(),
            Token::Name("const") => {
                if self.take('(') {
                    let tensor = self.literal_tensor()?;
                    self.expect(')')?;
                    return Ok(self.push(PatternNode::Literal(Arc::new(tensor))));
                }
                Ok(self.push(PatternNode::Constant))
            }
            Token::Name("var") => {
                let mut name = None;
                if self.take('(') {
                    self.take('%');
                    name = Some(Name::from(self.name("the name of a variable")?.0));
                    self.expect(')')?;
                }
                Ok(self.push(PatternNode::Var(name)))
            }
            Token::Name("if") => {
                let [cond, then, otherwise] = self.three_patterns()?;
                Ok(self.push(PatternNode::If { cond, then, otherwise }))
            }
            Token::Name("let") => {
                let [var, value, body] = self.three_patterns()?;
                Ok(self.push(PatternNode::Let { var, value, body }))
            }
            Token::Name(name @ ("dominates" | "post_dominates")) => {
                let [parent, path, child] =
                    self.three_patterns().map_err(|error| advice::add_parts_help(error, name))?;
                Ok(self.push(PatternNode::Dominates { parent, path, child, free: name == "post_dominates" }))
            }
            Token::Name("fn") => {
                let attrs = self.attrs()?;
                self.expect('(')?;
                let params = self.args()?;
                self.expect('{')?;
                let body = self.alternative()?;
                self.expect('}')?;
                let function = self.push(PatternNode::Function { params, body });
                Ok(self.with_attrs(function, attrs))
            }
            Token::Name("call") => {
                let attrs = self.attrs()?;
                self.expect('(')?;
                let callee = self.callee()?;
                self.expect(';')?;
                let args = self.args()?;
                let call = self.push(PatternNode::Call { callee, args });
                Ok(self.with_attrs(call, attrs))
            }
            Token::Name("op") if self.peek() == Token::Mark('{') => {
                let callee = self.any_operator()?;
                let args = if self.take('(') { self.args()? } else { None };
                Ok(self.push(PatternNode::Call { callee, args }))
            }
            // After a pattern, `where` introduces a check; at the beginning of a pattern, it is the operator.
            Token::Name("where") if matches!(self.peek(), Token::Mark('(' | '{')) => {
                self.name_or_call("where", spanned_token.span)
            }
            Token::Name(name) if !KEYWORDS.contains(&name) => self.name_or_call(name, spanned_token.span),
            _ => {
                self.at = self.tokens.iter().position(|t| t.span == spanned_token.span).unwrap_or(self.at);
                let help = advice::help_for_missing_pattern(
                    spanned_token.token,
                    self.tokens.get(self.at + 1).map(|t| t.token),
                );
                Err(self.unexpected_with("a pattern", help))
            }
        }
    }

    /// Parses the rest of an operator call, or resolves a name bound by `let` or `*name`.
    fn name_or_call(&mut self, name: &'a str, span: Span) -> Result<PatternId> {
        let is_called = matches!(self.peek(), Token::Mark('(' | '{'));
        if !is_called {
            if let Some(&id) = self.names.get(name) {
                return Ok(id);
            }
            let mut diagnostic = Diagnostic::error(codes::passes::PATTERN_NAME, format!("undefined name \"{name}\""));
            diagnostic = if op::lookup(name).is_some() {
                diagnostic
                    .at(span, "expected an argument list after an operator")
                    .help(self.help_without_arguments(name))
            } else if let Some(form) = advice::other_form(name) {
                diagnostic.at(span, "not bound by a let or a wildcard").help(format!("write {form}"))
            } else if let Some(suggestion) = nearest(name, self.names.keys().copied()) {
                diagnostic.at(span, "not bound by a let or a wildcard").help(format!("did you mean \"{suggestion}\"?"))
            } else {
                diagnostic
                    .at(span, "not bound by a let or a wildcard")
                    .help(format!("write *{name} for an expression that occurs several times"))
            };
            self.findings.add(Severity::Error, || diagnostic);
            return Ok(self.push(PatternNode::Wildcard));
        }
        let op = self.operator(name, span);
        let attrs = self.attrs_of(op)?;
        self.expect('(')?;
        let args = self.args_of(name)?;
        let Some(op) = op else { return Ok(self.push(PatternNode::Wildcard)) };
        let arity = op::get(op).arity;
        if let Some(args) = &args
            && !(arity.min..=arity.max).contains(&args.len())
        {
            let expected =
                if arity.min == arity.max { arity.min.to_string() } else { format!("{} to {}", arity.min, arity.max) };
            let message = format!("arguments of {name}: expected {expected}, found {}", args.len());
            self.findings.add(Severity::Warning, || {
                Diagnostic::warning(codes::passes::PATTERN_ARITY, message)
                    .at(span, "never matches")
                    .note(format!("signature: {name}({})", op::get(op).inputs.join(", ")))
                    .help(format!("write {name}({}) for any arguments", vec!["*"; arity.min].join(", ")))
            });
        }
        Ok(self.call_op(op, attrs, args))
    }

    /// Parses a tuple, the pattern of any tuple (`..`), or a pattern in parentheses; the `(` is already consumed.
    fn tuple_or_group(&mut self) -> Result<PatternId> {
        if self.peek() == Token::Any {
            self.next();
            self.expect(')')?;
            return Ok(self.push(PatternNode::Tuple(None)));
        }
        let mut fields = Vec::new();
        let mut has_comma = false;
        while !self.take(')') {
            if !fields.is_empty() && !has_comma {
                return Err(self.unexpected("\",\" or \")\""));
            }
            fields.push(self.alternative()?);
            has_comma = self.take(',');
        }
        if fields.len() == 1 && !has_comma {
            return Ok(fields[0]);
        }
        Ok(self.push(PatternNode::Tuple(Some(fields.into()))))
    }

    /// Parses arguments or parameters up to `)`; the `(` is already consumed.
    fn args(&mut self) -> Result<Option<Box<[PatternId]>>> {
        self.args_of("op")
    }

    /// Parses the arguments of `callee` up to `)`; the `(` is already consumed. Returns `None` for `..`, which matches
    /// arbitrary arguments.
    fn args_of(&mut self, callee: &str) -> Result<Option<Box<[PatternId]>>> {
        if self.peek() == Token::Any {
            self.next();
            self.expect(')')?;
            return Ok(None);
        }
        let mut args = Vec::new();
        while !self.take(')') {
            if !args.is_empty() {
                if !self.take(',') {
                    return Err(self.unexpected_with("\",\" or \")\"", self.help_in_arguments(callee)));
                }
                if self.take(')') {
                    break;
                }
            }
            if let Some(help) = self.help_in_arguments(callee) {
                return Err(self.unexpected_with("a pattern", Some(help)));
            }
            args.push(self.alternative()?);
        }
        Ok(Some(args.into()))
    }

    fn three_patterns(&mut self) -> Result<[PatternId; 3]> {
        self.expect('(')?;
        let first = self.alternative()?;
        self.expect(',')?;
        let second = self.alternative()?;
        self.expect(',')?;
        let third = self.alternative()?;
        self.expect(')')?;
        Ok([first, second, third])
    }

    /// Parses the callee of `call`: a pattern, in which a bare operator name denotes the operator.
    fn callee(&mut self) -> Result<PatternId> {
        let mut left = self.callee_atom()?;
        while self.take('|') {
            let right = self.callee_atom()?;
            left = self.push(PatternNode::Alt(left, right));
        }
        Ok(left)
    }

    fn callee_atom(&mut self) -> Result<PatternId> {
        let next_token = self.tokens.get(self.at + 1).map(|t| t.token);
        match self.peek() {
            Token::Name("op") if next_token == Some(Token::Mark('{')) => {
                self.next();
                self.any_operator()
            }
            Token::Name(name)
                if matches!(next_token, Some(Token::Mark(';' | '|')))
                    && !self.names.contains_key(name)
                    && !KEYWORDS.contains(&name) =>
            {
                let span = self.next().span;
                match self.operator(name, span) {
                    Some(op) => Ok(self.op_node(op)),
                    None => Ok(self.push(PatternNode::Wildcard)),
                }
            }
            _ => self.optional(),
        }
    }

    /// Parses the rest of `op{TOpPattern=0}`: an operator with the given attributes.
    fn any_operator(&mut self) -> Result<PatternId> {
        let span = self.span();
        let attrs = self.attrs()?;
        for (key, _) in attrs.iter() {
            if &**key != "TOpPattern" {
                self.findings.add(Severity::Warning, || {
                    Diagnostic::warning(
                        codes::passes::PATTERN_ATTRIBUTE,
                        format!("operators have no attribute \"{key}\""),
                    )
                    .at(span, "never matches")
                    .note("the only attribute of operators is TOpPattern")
                });
            }
        }
        let wildcard = self.push(PatternNode::Wildcard);
        Ok(self.push(PatternNode::WithAttrs(wildcard, attrs)))
    }

    // Operators and attributes.

    fn operator(&mut self, name: &str, span: Span) -> Option<OpId> {
        let operator_id = op::lookup(name);
        if operator_id.is_none() {
            let mut diagnostic =
                Diagnostic::error(codes::passes::PATTERN_OPERATOR, format!("unknown operator \"{name}\""))
                    .at(span, "not in the operator table");
            if let Some(form) = advice::other_form(name) {
                diagnostic = diagnostic.help(format!("write {form}"));
            } else if let Some(qualified_name) = advice::with_prefix(name) {
                diagnostic = diagnostic.help(format!("did you mean \"{qualified_name}\"?"));
            } else if let Some(suggestion) = nearest(name, op::names().chain(KEYWORDS.iter().copied())) {
                diagnostic = diagnostic.help(format!("did you mean \"{suggestion}\"?"));
            } else {
                diagnostic = diagnostic.help("\"byoc ops\" lists the operators");
            }
            self.findings.add(Severity::Error, || diagnostic);
        }
        operator_id
    }

    fn op_node(&mut self, op: OpId) -> PatternId {
        match self.ops.get(&op) {
            Some(&id) => id,
            None => {
                let id = self.push(PatternNode::Op(op));
                self.ops.insert(op, id);
                id
            }
        }
    }

    fn call_op(&mut self, op: OpId, attrs: Attrs, args: Option<Box<[PatternId]>>) -> PatternId {
        let callee = self.op_node(op);
        let call = self.push(PatternNode::Call { callee, args });
        self.with_attrs(call, attrs)
    }

    fn with_attrs(&mut self, inner: PatternId, attrs: Attrs) -> PatternId {
        if attrs.is_empty() { inner } else { self.push(PatternNode::WithAttrs(inner, attrs)) }
    }

    fn push(&mut self, node: PatternNode) -> PatternId {
        self.nodes.push(node)
    }
}

fn depth_error(span: Span) -> Box<Diagnostic> {
    let message = format!("pattern nested more than {MAX_DEPTH} levels deep");
    Box::new(Diagnostic::error(codes::passes::PATTERN_SYNTAX, message).at(span, "the limit is exceeded here"))
}

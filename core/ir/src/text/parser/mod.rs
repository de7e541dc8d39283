//! Parser: text to module. Unfinished constructs are kept on a stack of [`ParseFrame`]s, so the parser never recurses
//! to the depth of the input; a loop moves between three states (before an item, before an operand, after an operand).
//! Only match patterns and lists in attributes are read recursively, up to [`super::MAX_NESTING`].
//!
//! Cancellation and the memory limit are checked while tokens are consumed. When the work is to end, the lexer returns the
//! end of the text from then on, so that no loop of the parser goes on, and the reason is the only diagnostic.
//!
//! The parser reports several errors per run. After an error, the parser drops unfinished constructs in the enclosing
//! block, skips to the next `;`, `}` or `def @`, and continues; names that the broken part would have bound are bound
//! to `()`, so that one mistake causes only one diagnostic.

mod attributes;
mod data_types;
mod expressions;
mod frames;
mod functions;
mod matches;
mod meta;
mod names;
mod recovery;
mod tokens;
mod types;

use super::lexer::{Kind, Lexer, Token};
use super::metadata::Metadata;
use crate::cancel::{self, Ticks};
use crate::diag::{Diagnostic, MAX_REPORTED, Reports, Span, codes, nearest};
use crate::ir::{AttrValue, Attrs, Expr, ExprId, Function, IndexVec, Module, Name, Node, Origins, Type};
use crate::tensor::Tensor;
use crate::tensor::memory::Charge;
use frames::ParseFrame;
use names::Names;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use tokens::shorten;

/// Parser options.
#[derive(Clone, Copy, Debug, Default)]
pub struct ParseOptions<'a> {
    /// Values of `meta[relay.Constant][i]`, from the companion file of the text.
    pub constants: &'a [Arc<Tensor>],
}

/// Result of parsing source text. If the diagnostics contain errors, the module is incomplete and only useful for
/// further diagnostics.
#[derive(Debug)]
pub struct Parsed {
    /// Module, before type inference.
    pub module: Module,
    /// Expression after the definitions, if the text has one.
    pub root: Option<ExprId>,
    /// Source span of each expression of the module.
    pub spans: IndexVec<ExprId, Span>,
    /// Diagnostics, in the order of the text.
    pub diagnostics: Vec<Diagnostic>,
    /// Counts the memory of the module as in use while it is processed.
    pub charge: Charge,
}

impl Parsed {
    /// Makes the expression after the definitions, if any, the body of `@main`, with its free variables as parameters
    /// in the order of their declarations. A function literal becomes `@main` itself.
    ///
    /// # Errors
    /// If the text has both an expression and a function `@main`.
    pub fn define_main(&mut self) -> Result<()> {
        let Some(root) = self.root else { return Ok(()) };
        if let Some(&main) = self.module.globals.get("main") {
            let start = self.spans[main].start;
            let message = "expected either an expression or a function `@main`, found both";
            let diagnostic = Diagnostic::error(codes::text::DUPLICATE_NAME, message)
                .at(self.spans[root], "the expression")
                .at(Span { start, end: start + 3 }, "the function")
                .help("move the expression into a function: `def @name() { ... }`");
            return Err(Box::new(diagnostic));
        }
        let main = match self.module.expr(root) {
            Expr::Function(_) => root,
            _ => {
                let params = free_variables(&self.module, root);
                let function = Function::new(params, root, Type::Unknown, Attrs::none());
                self.spans.push(self.spans[root]);
                self.module.push(Expr::Function(Box::new(function)), Origins::none())
            }
        };
        self.module.globals.insert("main".into(), main);
        Ok(())
    }
}

fn free_variables(module: &Module, root: ExprId) -> Vec<ExprId> {
    let order = module.post_order(root, |_, _| true);
    let mut binders = HashSet::new();
    for &id in &order {
        module.expr(id).for_each_binder(|var| {
            binders.insert(var);
        });
    }
    let is_free = |id: &ExprId| matches!(module.expr(*id), Expr::Var(_)) && !binders.contains(id);
    let mut variables: Vec<ExprId> = order.into_iter().filter(is_free).collect();
    variables.sort_unstable();
    variables
}

/// Parses a module (`#[version = "0.0.5"]` and definitions), an expression, or definitions and an expression.
pub fn parse(source: &str, options: &ParseOptions<'_>) -> Parsed {
    if source.len() > MAX_LENGTH {
        let diagnostic = Diagnostic::error(
            codes::text::TOO_LARGE,
            format!("expected source text of at most 1 GiB, found {} bytes", source.len()),
        )
        .help("move constants to the weights file and refer to them as meta[relay.Constant][i]");
        let (module, spans) = (Module::new(), IndexVec::new());
        return Parsed { module, root: None, spans, diagnostics: vec![diagnostic], charge: Charge::default() };
    }
    let mut parser = Parser::new(source, options);
    let last = parser.parse_text();
    let Parser { module, root, spans, diagnostics, stop, charge, .. } = parser;
    let diagnostics = match stop {
        Some(reason) => vec![*reason],
        None => {
            let start = |diagnostic: &Diagnostic| diagnostic.labels.first().map_or(0, |label| label.span.start);
            diagnostics.into_sorted(start).into_iter().chain(last).collect()
        }
    };
    Parsed { module, root, spans, diagnostics, charge }
}

/// Maximum length of the source text in bytes. Two bytes yield at most three expressions, so spans and expression ids
/// fit into 32 bits.
const MAX_LENGTH: usize = 1 << 30;

/// Maximum number of attributes of a call or function, and of type parameters in scope. The lists are searched
/// sequentially.
const MAX_LIST: usize = 1000;

/// Number of bytes by which the memory in use is counted.
const CHARGE_STEP: usize = 1 << 20;

/// Result with a boxed error, as errors are rare.
type Result<T, E = Box<Diagnostic>> = std::result::Result<T, E>;

struct Parser<'a> {
    source: &'a str,
    options: &'a ParseOptions<'a>,
    lexer: Lexer<'a>,
    /// Lookahead buffer; its first `lookahead` tokens are valid.
    lookahead_tokens: [Token; 2],
    lookahead: usize,
    /// End of the last consumed token.
    last_end: u32,
    module: Module,
    spans: IndexVec<ExprId, Span>,
    diagnostics: Reports,
    /// Reason for which parsing ended before the end of the text.
    stop: Option<Box<Diagnostic>>,
    /// True if text was skipped because no more errors are shown.
    has_skipped_text: bool,
    ticks: Ticks,
    charge: Charge,
    /// Memory in bytes that `charge` does not contain yet.
    uncharged: usize,
    root: Option<ExprId>,
    frames: Vec<ParseFrame>,
    /// Finished fields and arguments of the open frames.
    values: Vec<ExprId>,
    /// Finished attributes of the open frames.
    attrs: Vec<(Name, AttrValue)>,
    /// Let bindings whose bodies are still being read: variable and value.
    lets: Vec<(ExprId, ExprId)>,
    names: Names<'a>,
    /// Type parameters in scope: the name in the text, and the name in the module.
    type_params: Vec<(&'a str, Name)>,
    /// Most recently parsed tensor types, shared by subsequent equal types.
    last_types: VecDeque<Type>,
    /// References to types, resolved when all definitions have been read: the name, the number of type arguments, the
    /// span.
    type_mentions: Vec<(Name, usize, Span)>,
    /// Span of each type definition.
    type_spans: HashMap<Name, Span>,
    /// Names of callees and constructors that were undefined when they were read; `true` for a name in a pattern.
    unknown_callees: Vec<(Token, bool)>,
    /// Expression of each metadata constant; all references share it.
    constants: HashMap<usize, ExprId>,
    /// Start of the metadata section, if the text has one.
    section: Option<u32>,
    /// Error in the metadata section, deferred until the parser reaches the section, which may be inside a comment.
    section_error: Option<Box<Diagnostic>>,
    metadata: Option<Metadata>,
}

impl<'a> Parser<'a> {
    fn new(source: &'a str, options: &'a ParseOptions<'a>) -> Parser<'a> {
        let eof = Token { kind: Kind::Eof, span: Span::default() };
        Parser {
            source,
            options,
            lexer: Lexer::new(source),
            lookahead_tokens: [eof; 2],
            lookahead: 0,
            last_end: 0,
            module: Module::new(),
            spans: IndexVec::new(),
            diagnostics: Reports::default(),
            stop: None,
            has_skipped_text: false,
            ticks: Ticks::every(1 << 6),
            charge: Charge::default(),
            uncharged: 0,
            root: None,
            frames: Vec::new(),
            values: Vec::new(),
            attrs: Vec::new(),
            lets: Vec::new(),
            names: Names::new(source.len()),
            type_params: Vec::new(),
            last_types: VecDeque::new(),
            type_mentions: Vec::new(),
            type_spans: HashMap::new(),
            unknown_callees: Vec::new(),
            constants: HashMap::new(),
            section: None,
            section_error: None,
            metadata: None,
        }
    }

    /// Parses the whole text. Returns the final diagnostic if parsing stops because of the number of errors.
    fn parse_text(&mut self) -> Option<Diagnostic> {
        self.parse_metadata_section();
        let versioned = match self.version() {
            Ok(versioned) => versioned,
            Err(error) => {
                self.report(error);
                self.skip_to_definition();
                true
            }
        };
        if !versioned && self.is_at_definition() {
            let span = self.peek().span;
            self.report(Box::new(
                Diagnostic::error(
                    codes::text::BAD_VERSION,
                    "expected a version line before the first definition, found none",
                )
                .at(span, "the first definition")
                .help("add `#[version = \"0.0.5\"]` above the definition"),
            ));
        }
        if !versioned && self.peek().kind == Kind::Eof {
            let span = self.peek().span;
            self.report(Box::new(
                Diagnostic::error(codes::text::BAD_VERSION, "expected a module or an expression, found neither")
                    .at(span, "")
                    .help("begin a module with #[version = \"0.0.5\"]"),
            ));
        }
        while !self.diagnostics.is_full() {
            match self.top_level() {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    self.report(error);
                    self.skip_to_definition();
                }
            }
        }
        let next = self.peek();
        if self.has_skipped_text || self.diagnostics.is_full() && next.kind != Kind::Eof {
            let message = format!("parsing stopped after {MAX_REPORTED} errors");
            return Some(Diagnostic::error(codes::text::UNEXPECTED_TOKEN, message).at(next.span, ""));
        }
        if self.stop.is_none() {
            self.check_type_mentions();
            self.check_unknown_callees();
            self.check_globals();
        }
        None
    }

    /// Parses `#[version = "0.0.5"]`, or `v0.0.4` as older releases of TVM wrote it, if present.
    fn version(&mut self) -> Result<bool> {
        let first = self.peek();
        if self.word(first) == Some("v0") && self.peek_second().kind == Kind::Dot {
            self.take();
            while matches!(self.peek().kind, Kind::Dot | Kind::Number) && self.peek().span.start == self.last_end {
                self.take();
            }
            let span = Span { start: first.span.start, end: self.last_end };
            return self.check_version(span, "v0.0.4");
        }
        if !self.accept(Kind::Hash) {
            return Ok(false);
        }
        self.expect(Kind::OpenBracket)?;
        let key = self.expect(Kind::Ident)?;
        if self.word(key) != Some("version") {
            return Err(self.unexpected_token(key, "`version`"));
        }
        self.expect(Kind::Equal)?;
        let version = self.expect(Kind::Str)?;
        self.expect(Kind::CloseBracket)?;
        self.check_version(version.span, "\"0.0.5\"")
    }

    fn check_version(&self, span: Span, known: &str) -> Result<bool> {
        let version = &self.source[span.start as usize..span.end as usize];
        if version == known {
            return Ok(true);
        }
        let message = format!("version: expected {known}, found {}", shorten(version));
        Err(Box::new(Diagnostic::error(codes::text::BAD_VERSION, message).at(span, "unsupported version")))
    }

    fn is_at_definition(&mut self) -> bool {
        let token = self.peek();
        matches!(self.word(token), Some("def" | "type" | "extern"))
    }

    /// Parses one definition, or the final expression. Returns `false` at the end of the text.
    fn top_level(&mut self) -> Result<bool> {
        let token = self.peek();
        match token.kind {
            Kind::Eof => return Ok(false),
            // The rest of the text is the metadata section, which has already been read.
            _ if self.section == Some(token.span.start) => {
                if let Some(error) = self.section_error.take() {
                    self.report(error);
                }
                return Ok(false);
            }
            Kind::Hash => return Err(self.unexpected_token(token, "a definition or the end of the text")),
            _ => {}
        }
        match self.word(token) {
            Some("def") => self.parse_definition()?,
            Some("type" | "extern") => self.parse_type_definition()?,
            Some("free_var") => self.parse_free_variable()?,
            _ => {
                if self.root.is_some() {
                    return Err(self.unexpected_token(token, "a definition or the end of the text"));
                }
                self.root = Some(self.expression()?);
            }
        }
        Ok(true)
    }

    /// Parses `free_var %x: T;`.
    fn parse_free_variable(&mut self) -> Result<()> {
        self.take();
        let token = self.expect(Kind::Local)?;
        let annotation = if self.accept(Kind::Colon) { self.ty()? } else { Type::Unknown };
        self.expect(Kind::Semicolon)?;
        let var = self.variable(token, annotation);
        self.names.bind(self.local_name(token), var);
        Ok(())
    }

    /// Appends a new variable.
    fn variable(&mut self, token: Token, annotation: Type) -> ExprId {
        let text = self.local_name(token);
        let name = self.names.shared_name(text);
        let id = self.module.push_typed(Expr::var(name, annotation.clone()), annotation, Origins::none());
        self.spans.push(token.span);
        self.count_memory(size_of::<Node>() + text.len());
        id
    }

    /// Appends an expression that begins at `start` and ends with the last token.
    fn push(&mut self, expr: Expr, start: u32) -> ExprId {
        let bytes = size_of::<(Node, Span)>() + expr.heap_size();
        let id = self.module.push(expr, Origins::none());
        self.spans.push(Span { start, end: self.last_end });
        self.count_memory(bytes);
        id
    }

    /// Counts memory of the module as in use. Parsing ends if the limit is exceeded.
    fn count_memory(&mut self, bytes: usize) {
        self.uncharged += bytes;
        if self.uncharged >= CHARGE_STEP
            && let Err(error) = self.charge.grow(std::mem::take(&mut self.uncharged))
        {
            let position = format!("byte {} of {} of the text was being parsed", self.last_end, self.source.len());
            self.stop(Diagnostic::from(error).note(position));
        }
    }

    /// Ends parsing if the work is cancelled.
    #[cold]
    fn stop_if_cancelled(&mut self) {
        let position = || format!("byte {} of {} of the text was being parsed", self.last_end, self.source.len());
        if let Err(reason) = cancel::check(position) {
            self.stop(reason);
        }
    }

    /// Ends parsing: from now on, every token is the end of the text.
    #[cold]
    fn stop(&mut self, reason: Diagnostic) {
        self.stop.get_or_insert(Box::new(reason));
        self.lexer.skip_to_end();
        self.lookahead_tokens = [self.lexer.next(); 2];
    }

    fn report(&mut self, error: Box<Diagnostic>) {
        self.diagnostics.add(|| *error);
    }

    /// Returns the name that is probably meant by an unknown name, if the error is to be shown.
    fn suggestion<'n>(&self, name: &str, candidates: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
        if self.diagnostics.is_full() { None } else { nearest(name, candidates) }
    }

    /// Returns the error for a list that has more than [`MAX_LIST`] items.
    fn check_list(&self, items: &str, count: usize, span: Span) -> Result<()> {
        if count <= MAX_LIST {
            return Ok(());
        }
        let message = format!("expected at most {MAX_LIST} {items}, found more");
        Err(Box::new(Diagnostic::error(codes::text::TOO_LARGE, message).at(span, "the limit is exceeded here")))
    }
}

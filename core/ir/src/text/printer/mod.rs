//! Printer: module to text. Each non-leaf expression has a line `%N = ...;` in the scope in which it is evaluated (see
//! [`Scopes`]), in the order of the arena; the result of a scope and the value of a let are inline if that is their
//! only use. Numbers are unique in the entire text; the body of a function is numbered before the function.
//!
//! Pending output is kept on a stack of [`Task`]s, so that a deeply nested module cannot
//! overflow the call stack. Types are shared in memory but not in the text, which can be far larger than the module: the
//! memory of the text counts as in use, and printing ends when the limit is exceeded or the work is cancelled.

mod layout;
mod names;

use super::metadata;
use super::number::write_scalar;
use crate::cancel::{self, Ticks};
use crate::diag::Diagnostic;
use crate::ir::{
    AttrValue, Attrs, Callee, ClausePattern, Constructor, Expr, ExprId, Fault, Function, Id, Match, Module, Name,
    ScopeId, Scopes, Type, TypeDef,
};
use crate::op::{self, AttrKind};
use crate::tensor::Tensor;
use crate::tensor::memory::Charge;
use layout::{Form, Layout};
use names::VarNames;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

/// Printer options.
#[derive(Clone, Copy, Default)]
pub struct PrintOptions<'a> {
    /// Adds `/* ty=... */` after expressions whose type is known.
    pub types: bool,
    /// Adds the constants that are not written inline, as a `#[metadata]` section.
    pub metadata: bool,
    /// Returns the note on an expression, printed in comment lines below its line.
    pub notes: Option<&'a dyn Fn(ExprId) -> Option<String>>,
}

/// Printed text and the constants that it refers to.
#[derive(Clone, Debug)]
pub struct PrintedText {
    /// Module or expression in the text format.
    pub text: String,
    /// Values of `meta[relay.Constant][i]`.
    pub constants: Vec<Arc<Tensor>>,
    /// Reason for which the text is incomplete.
    stop: Option<Box<Diagnostic>>,
}

impl PrintedText {
    /// Returns the text if it is complete.
    ///
    /// # Errors
    /// If printing was cancelled, or the text exceeded the memory limit.
    pub fn complete(mut self) -> Result<PrintedText, Diagnostic> {
        self.stop.take().map_or(Ok(self), |reason| Err(*reason))
    }
}

/// Prints a module.
pub fn print(module: &Module, options: &PrintOptions<'_>) -> PrintedText {
    let mut printer = Printer::new(module, Layout::of_module(module), options);
    printer.out.push_str("#[version = \"0.0.5\"]\n");
    for (i, (name, def)) in module.types.iter().enumerate() {
        if i > 0 {
            printer.out.push('\n');
        }
        printer.write_type_definition(name, def);
    }
    for (i, (name, &id)) in module.globals.iter().enumerate() {
        if i > 0 || !module.types.is_empty() {
            printer.out.push('\n');
        }
        printer.write_definition(name, id);
    }
    printer.finish()
}

/// Prints a module with each fault below the line of its expression.
pub fn print_faults(module: &Module, faults: &[Fault]) -> String {
    let mut notes: HashMap<ExprId, String> = HashMap::new();
    let mut text = String::new();
    for fault in faults {
        let Fault { at, diagnostic } = fault;
        let note = format!("{}: {}", diagnostic.code, diagnostic.message);
        match at {
            None => text.push_str(&format!("// {note}\n")),
            Some(id) => {
                let note_lines = notes.entry(*id).or_default();
                note_lines.push_str(&note);
                note_lines.push('\n');
            }
        }
    }
    // A note is printed where its expression first occurs. Notes on dead or broken expressions, which are not printed,
    // follow at the end.
    let remaining_notes = RefCell::new(notes);
    let take_note = |id: ExprId| remaining_notes.borrow_mut().remove(&id);
    text.push_str(&print(module, &PrintOptions { notes: Some(&take_note), ..PrintOptions::default() }).text);
    let mut unplaced_notes: Vec<(ExprId, String)> = remaining_notes.into_inner().into_iter().collect();
    unplaced_notes.sort();
    for line in unplaced_notes.iter().flat_map(|(_, note)| note.lines()) {
        text.push_str(&format!("// {line}\n"));
    }
    text
}

/// Prints one expression, preceded by declarations of its free variables.
pub fn print_expr(module: &Module, root: ExprId, options: &PrintOptions<'_>) -> PrintedText {
    let mut printer = Printer::new(module, Layout::of_expr(module, root), options);
    printer.write_free_variables();
    printer.tasks.extend([Task::Newline, Task::Body { scope: Scopes::root(), root }]);
    printer.run();
    printer.finish()
}

/// Maximum indentation level, so that the length of the text stays linear in the size of a deeply nested module.
const MAX_INDENT: usize = 24;

/// Pending output item.
enum Task {
    /// The lines of a scope, then its result.
    Body {
        scope: ScopeId,
        root: ExprId,
    },
    /// The lines of a scope from `next` on, then its result.
    Lines {
        next: Option<ExprId>,
        root: ExprId,
    },
    /// An expression in full (not its `%N`).
    Expr(ExprId),
    /// A leaf, the `%N` of an expression, or a let in parentheses.
    Operand(ExprId),
    /// End of the line that defines an expression.
    EndLine(ExprId),
    /// `let %v = value;` and the body.
    Let(ExprId),
    /// `;` after the value of a let, then its body.
    LetBody(ExprId),
    Text(&'static str),
    Owned(String),
    /// Line break that increases the indentation by one level.
    Indent,
    /// Line break that decreases the indentation by one level.
    Dedent,
    Newline,
    /// `/* ty=... */`
    Type(ExprId),
    /// Pattern of a match clause.
    Pattern(ExprId, usize),
}

struct Printer<'a> {
    module: &'a Module,
    options: &'a PrintOptions<'a>,
    layout: Layout,
    out: String,
    tasks: Vec<Task>,
    indent: usize,
    /// Number of the next `%N`.
    counter: u32,
    /// Number N in the `%N` of each expression, set when its line begins.
    numbers: Vec<u32>,
    names: VarNames,
    constants: Vec<Arc<Tensor>>,
    constant_index: HashMap<*const Tensor, usize>,
    /// Positions in `out` of operands that are lets; they are filled in once the enclosing expression has been written.
    holes: Vec<(usize, ExprId)>,
    /// Notes on the current line.
    margin: Vec<String>,
    ticks: Ticks,
    /// Counts the text as in use, as long as it was when it was last polled.
    charge: Charge,
    counted: usize,
    stop: Option<Box<Diagnostic>>,
}

/// Number of bytes of text after which the memory is counted.
const CHARGE_STEP: usize = 1 << 16;

impl<'a> Printer<'a> {
    fn new(module: &'a Module, layout: Layout, options: &'a PrintOptions<'a>) -> Printer<'a> {
        Printer {
            module,
            options,
            layout,
            out: String::new(),
            tasks: Vec::new(),
            indent: 0,
            counter: 0,
            numbers: vec![u32::MAX; module.nodes.len()],
            names: VarNames::default(),
            constants: Vec::new(),
            constant_index: HashMap::new(),
            holes: Vec::new(),
            margin: Vec::new(),
            ticks: Ticks::every(1 << 8),
            charge: Charge::default(),
            counted: 0,
            stop: None,
        }
    }

    /// Counts the memory of the text, and checks whether printing is to end.
    fn poll(&mut self) -> Result<(), Box<Diagnostic>> {
        let grown = self.out.len().saturating_sub(self.counted);
        if grown < CHARGE_STEP && !self.ticks.is_requested() {
            return Ok(());
        }
        self.counted = self.out.len();
        let progress = || "a program was being printed as text".to_owned();
        self.charge.grow(grown).map_err(|error| Diagnostic::from(error).note(progress()))?;
        Ok(cancel::check(progress)?)
    }

    fn finish(mut self) -> PrintedText {
        if self.options.metadata {
            if !self.out.ends_with('\n') {
                self.out.push('\n');
            }
            metadata::write(&mut self.out, &self.constants);
        }
        PrintedText { text: self.out, constants: self.constants, stop: self.stop }
    }

    /// Writes `type Name[A] { ... }`.
    fn write_type_definition(&mut self, name: &str, def: &TypeDef) {
        self.out.push_str(if def.is_extern { "extern type " } else { "type " });
        self.out.push_str(name);
        self.write_type_params(&def.params);
        if !def.is_extern {
            self.out.push_str(" {\n");
            for Constructor { name, fields } in &def.constructors {
                let _ = write!(self.out, "  {name}");
                for (i, field) in fields.iter().enumerate() {
                    let _ = write!(self.out, "{}{field}", if i == 0 { "(" } else { ", " });
                }
                self.out.push_str(if fields.is_empty() { ",\n" } else { "),\n" });
            }
            self.out.push('}');
        }
        self.out.push('\n');
    }

    /// Writes `[A, B]`, unless there are none.
    fn write_type_params(&mut self, params: &[Name]) {
        for (i, param) in params.iter().enumerate() {
            let _ = write!(self.out, "{}{param}", if i == 0 { "[" } else { ", " });
        }
        if !params.is_empty() {
            self.out.push(']');
        }
    }

    /// Writes `def @name(...) { ... }`.
    fn write_definition(&mut self, name: &str, id: ExprId) {
        self.names.clear();
        self.out.push_str("def @");
        names::write_name(&mut self.out, name);
        let Some(function) = self.module.nodes.get(id).and_then(|node| node.expr.as_function()) else {
            self.out.push_str(" // is not a function\n");
            return;
        };
        self.write_note(id);
        self.tasks.push(Task::Newline);
        self.write_function(id, function);
        self.run();
    }

    /// Writes the declarations of the free variables.
    fn write_free_variables(&mut self) {
        let mut is_bound = vec![false; self.module.nodes.len()];
        for (id, node) in self.module.nodes.iter() {
            if self.layout.scopes.scope_of[id].is_none() {
                continue;
            }
            node.expr.for_each_binder(|var| is_bound[var.index()] = true);
        }
        for (id, node) in self.module.nodes.iter() {
            if matches!(node.expr, Expr::Var(_)) && self.layout.scopes.scope_of[id].is_some() && !is_bound[id.index()] {
                self.out.push_str("free_var ");
                self.declare(id);
                self.out.push(';');
                self.start_line();
            }
        }
    }

    fn run(&mut self) {
        while let Some(task) = self.tasks.pop() {
            if let Err(reason) = self.poll() {
                self.stop.get_or_insert(reason);
                self.tasks.clear();
                return;
            }
            match task {
                Task::Body { scope, root } => {
                    let next = self.layout.first_line(scope);
                    self.tasks.push(Task::Lines { next, root });
                }
                Task::Lines { next: Some(id), root } => {
                    self.tasks.push(Task::Lines { next: self.layout.next_line(id), root });
                    // The expressions inside the line are numbered before the line itself.
                    self.numbers[id.index()] = self.counter + self.layout.inside[id];
                    let _ = write!(self.out, "%{} = ", self.numbers[id.index()]);
                    self.tasks.push(Task::EndLine(id));
                    self.tasks.push(Task::Expr(id));
                }
                Task::Lines { next: None, root } => match (self.layout.forms[root], self.module.expr(root)) {
                    (Form::Body, Expr::Let { .. }) => self.tasks.push(Task::Let(root)),
                    (Form::Body, _) => self.tasks.extend([Task::Type(root), Task::Expr(root)]),
                    _ => self.write_full_operand(root),
                },
                Task::Expr(id) => self.write_expression(id),
                Task::Operand(id) => self.write_full_operand(id),
                Task::EndLine(id) => {
                    self.write_type(id);
                    self.out.push(';');
                    self.start_line();
                    self.counter += 1;
                }
                Task::Let(id) => {
                    if let Expr::Let { var, value, .. } = self.module.expr(id) {
                        self.write_note(id);
                        self.out.push_str("let ");
                        self.declare(*var);
                        self.out.push_str(" = ");
                        self.tasks.push(Task::LetBody(id));
                        match (self.layout.forms[*value], self.module.expr(*value)) {
                            (Form::Operand, Expr::Let { .. }) => self.write_full_operand(*value),
                            (Form::Operand, _) => self.tasks.extend([Task::Type(*value), Task::Expr(*value)]),
                            _ => self.tasks.push(Task::Operand(*value)),
                        }
                    }
                }
                Task::LetBody(id) => {
                    self.out.push(';');
                    self.start_line();
                    if let (Expr::Let { body, .. }, Some(scope)) = (self.module.expr(id), self.layout.scopes.opened[id])
                    {
                        self.tasks.push(Task::Body { scope, root: *body });
                    }
                }
                Task::Text(text) => self.out.push_str(text),
                Task::Owned(text) => self.out.push_str(&text),
                Task::Indent => {
                    self.indent += 1;
                    self.start_line();
                }
                Task::Dedent => {
                    self.indent -= 1;
                    self.start_line();
                }
                Task::Newline => self.start_line(),
                Task::Type(id) => self.write_type(id),
                Task::Pattern(id, clause_index) => {
                    if let Expr::Match(m) = self.module.expr(id) {
                        self.write_pattern(&m.clauses[clause_index].pattern);
                    }
                }
            }
        }
    }

    /// Writes a line break, the notes on the finished line, and the indentation of the next line.
    fn start_line(&mut self) {
        self.out.push('\n');
        for note in std::mem::take(&mut self.margin) {
            for line in note.lines() {
                self.write_indentation();
                let _ = writeln!(self.out, "// {line}");
            }
        }
        self.write_indentation();
    }

    fn write_indentation(&mut self) {
        for _ in 0..self.indent.min(MAX_INDENT) {
            self.out.push_str("  ");
        }
    }

    fn write_note(&mut self, id: ExprId) {
        if let Some(note) = self.options.notes.and_then(|notes| notes(id)) {
            self.margin.push(note);
        }
    }

    fn write_type(&mut self, id: ExprId) {
        let ty = self.module.ty(id);
        if self.options.types && *ty != Type::Unknown {
            let _ = write!(self.out, " /* ty={ty} */");
        }
    }

    /// Writes an expression.
    fn write_expression(&mut self, id: ExprId) {
        self.write_note(id);
        let begin = self.out.len();
        let module = self.module;
        match module.expr(id) {
            // Leaves are written where they are used; a let on a separate line is in parentheses.
            Expr::Constant(_) | Expr::Var(_) | Expr::Global(_) | Expr::Constructor(_) => self.write_operand(id),
            Expr::Let { .. } => self.write_parenthesized(id),
            Expr::Function(function) => {
                self.out.push_str("fn ");
                self.write_function(id, function);
            }
            Expr::If { cond, then, otherwise } => {
                self.out.push_str("if (");
                self.write_operand(*cond);
                self.out.push_str(") {");
                if let Some(then_scope) = self.layout.scopes.opened[id] {
                    let else_scope = ScopeId::new(then_scope.index() + 1);
                    self.tasks.extend([
                        Task::Text("}"),
                        Task::Dedent,
                        Task::Body { scope: else_scope, root: *otherwise },
                        Task::Indent,
                        Task::Text("} else {"),
                        Task::Dedent,
                        Task::Body { scope: then_scope, root: *then },
                        Task::Indent,
                    ]);
                }
            }
            Expr::Tuple(fields) => {
                self.out.push('(');
                self.write_operands(fields);
                self.out.push_str(if fields.len() == 1 { ",)" } else { ")" });
            }
            Expr::Project { tuple, index } => {
                self.write_operand(*tuple);
                let _ = write!(self.out, ".{index}");
            }
            Expr::Match(m) => self.write_match_clauses(id, m),
            // A constructor without fields is written without parentheses.
            Expr::Call(call) if call.args.is_empty() && call.attrs.is_empty() && self.is_bare(call.callee) => {
                if let Callee::Expr(callee) = call.callee {
                    self.write_operand(callee);
                }
            }
            Expr::Call(call) => {
                match call.callee {
                    Callee::Op(op) => self.out.push_str(op::get(op).name),
                    Callee::Expr(callee) => self.write_operand(callee),
                }
                self.out.push('(');
                self.write_operands(&call.args);
                let mut has_items = !call.args.is_empty();
                match call.callee {
                    Callee::Op(op) => {
                        for attr in op::get(op).attrs {
                            if let Some(value) = call.attrs.get(attr.name) {
                                self.write_attribute(attr.name, value, Some(attr.kind), &mut has_items);
                            }
                        }
                    }
                    Callee::Expr(_) => self.write_attributes(&call.attrs, &mut has_items),
                }
                self.out.push(')');
            }
            Expr::RefNew(value) => {
                self.out.push_str("ref(");
                self.write_operand(*value);
                self.out.push(')');
            }
            Expr::RefRead(reference) => {
                self.out.push_str("ref_read(");
                self.write_operand(*reference);
                self.out.push(')');
            }
            Expr::RefWrite { reference, value } => {
                self.out.push_str("ref_write(");
                self.write_operands(&[*reference, *value]);
                self.out.push(')');
            }
        }
        if !self.holes.is_empty() {
            self.fill_holes(begin);
        }
    }

    /// Splits the output since `begin` at the holes and pushes the segments as tasks.
    fn fill_holes(&mut self, begin: usize) {
        for (position, id) in std::mem::take(&mut self.holes).into_iter().rev() {
            self.tasks.push(Task::Owned(self.out.split_off(position.max(begin))));
            self.write_parenthesized(id);
        }
    }

    fn write_parenthesized(&mut self, id: ExprId) {
        self.tasks.extend([Task::Text(")"), Task::Dedent, Task::Let(id), Task::Indent, Task::Text("(")]);
    }

    /// Returns true if a call to `callee` without arguments may be written as a bare name, which requires a constructor
    /// without fields.
    fn is_bare(&self, callee: Callee) -> bool {
        let Callee::Expr(callee) = callee else { return false };
        let Some(Expr::Constructor(name)) = self.module.nodes.get(callee).map(|node| &node.expr) else { return false };
        match self.module.types.constructor(name) {
            Some((_, _, Type::Func(signature))) => signature.params.is_empty(),
            _ => false,
        }
    }

    /// Writes `match (data) { pattern => { body }, ... }`.
    fn write_match_clauses(&mut self, id: ExprId, m: &Match) {
        self.out.push_str(if m.complete { "match (" } else { "match? (" });
        self.write_operand(m.data);
        self.out.push_str(") {");
        let Some(first) = self.layout.scopes.opened[id] else {
            self.out.push('}');
            return;
        };
        self.tasks.extend([Task::Text("}"), Task::Dedent]);
        for index in (0..m.clauses.len()).rev() {
            self.tasks.push(Task::Text(","));
            self.tasks.extend([Task::Text("}"), Task::Dedent]);
            self.tasks.push(Task::Body { scope: ScopeId::new(first.index() + index), root: m.clauses[index].body });
            self.tasks.extend([Task::Indent, Task::Text(" => {"), Task::Pattern(id, index)]);
            self.tasks.push(if index == 0 { Task::Indent } else { Task::Newline });
        }
    }

    /// Writes a pattern. Recursion is safe, as the nesting of patterns is limited.
    fn write_pattern(&mut self, pattern: &ClausePattern) {
        match pattern {
            ClausePattern::Any => self.out.push('_'),
            ClausePattern::Var(var) => self.declare(*var),
            ClausePattern::Constructor { name, fields } => {
                self.out.push_str(name);
                if !fields.is_empty() {
                    self.write_patterns(fields, false);
                }
            }
            ClausePattern::Tuple(fields) => self.write_patterns(fields, fields.len() == 1),
        }
    }

    fn write_patterns(&mut self, fields: &[ClausePattern], has_comma: bool) {
        self.out.push('(');
        for (i, field) in fields.iter().enumerate() {
            if i > 0 {
                self.out.push_str(", ");
            }
            self.write_pattern(field);
        }
        self.out.push_str(if has_comma { ",)" } else { ")" });
    }

    /// Writes `[A](params, attributes) -> type { body }`.
    fn write_function(&mut self, id: ExprId, function: &Function) {
        self.write_type_params(&function.type_params);
        self.out.push('(');
        let mut has_items = false;
        for &param in &function.params {
            if std::mem::replace(&mut has_items, true) {
                self.out.push_str(", ");
            }
            self.declare(param);
        }
        self.write_attributes(&function.attrs, &mut has_items);
        self.out.push(')');
        if function.ret != Type::Unknown {
            let _ = write!(self.out, " -> {}", function.ret);
        }
        self.out.push_str(" {");
        if let Some(scope) = self.layout.scopes.opened[id] {
            let body = Task::Body { scope, root: function.body };
            self.tasks.extend([Task::Text("}"), Task::Dedent, body, Task::Indent]);
        }
    }

    fn write_operands(&mut self, ids: &[ExprId]) {
        for (i, &id) in ids.iter().enumerate() {
            if i > 0 {
                self.out.push_str(", ");
            }
            self.write_operand(id);
        }
    }

    /// Writes an operand outside an expression, and fills its hole.
    fn write_full_operand(&mut self, id: ExprId) {
        let begin = self.out.len();
        self.write_operand(id);
        self.fill_holes(begin);
    }

    /// Writes an operand: a leaf, `%N`, or a hole for a let.
    fn write_operand(&mut self, id: ExprId) {
        let module = self.module;
        let Some(node) = module.nodes.get(id) else {
            self.out.push_str("%missing");
            return;
        };
        match &node.expr {
            Expr::Constant(tensor) => {
                self.write_note(id);
                self.write_constant(tensor);
            }
            Expr::Var(var) => {
                self.write_note(id);
                self.names.write(&mut self.out, id, &var.name);
            }
            Expr::Global(name) => {
                self.write_note(id);
                self.out.push('@');
                names::write_name(&mut self.out, name);
            }
            Expr::Constructor(name) => {
                self.write_note(id);
                self.out.push_str(name);
            }
            Expr::Let { .. } if self.layout.forms[id] == Form::Operand => self.holes.push((self.out.len(), id)),
            _ => match self.numbers[id.index()] {
                u32::MAX => self.out.push_str("%missing"),
                number => {
                    let _ = write!(self.out, "%{number}");
                }
            },
        }
    }

    /// Writes the declaration of a variable: its name and type.
    fn declare(&mut self, id: ExprId) {
        match self.module.nodes.get(id).map(|node| &node.expr) {
            Some(Expr::Var(var)) => {
                self.write_note(id);
                self.names.write(&mut self.out, id, &var.name);
                if var.annotation != Type::Unknown {
                    let _ = write!(self.out, ": {}", var.annotation);
                }
            }
            _ => self.out.push_str("%missing"),
        }
    }

    fn write_constant(&mut self, tensor: &Arc<Tensor>) {
        if write_scalar(tensor, &mut self.out) {
            return;
        }
        let next = self.constants.len();
        let index = *self.constant_index.entry(Arc::as_ptr(tensor)).or_insert(next);
        if index == next {
            self.constants.push(tensor.clone());
        }
        let _ = write!(self.out, "meta[relay.Constant][{index}]");
    }

    fn write_attributes(&mut self, attrs: &Attrs, has_items: &mut bool) {
        for (key, value) in attrs.iter() {
            self.write_attribute(key, value, None, has_items);
        }
    }

    /// Writes `key=value`, in the syntax of the attribute's kind.
    fn write_attribute(&mut self, key: &str, value: &AttrValue, kind: Option<AttrKind>, has_items: &mut bool) {
        if std::mem::replace(has_items, true) {
            self.out.push_str(", ");
        }
        let _ = match (kind, value) {
            (Some(AttrKind::Float | AttrKind::Floats), AttrValue::Int(v)) => {
                write!(self.out, "{key}={}", AttrValue::Float(*v as f64))
            }
            (Some(AttrKind::Bool), AttrValue::Int(v @ (0 | 1))) => {
                write!(self.out, "{key}={}", AttrValue::Bool(*v == 1))
            }
            _ => write!(self.out, "{key}={value}"),
        };
    }
}

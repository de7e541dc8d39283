//! Verifier: the invariants of a module. The rules, in the order in which they are checked:
//!
//! Structure of every expression in the arena:
//! 1. Operands precede their users.
//!
//! Structure of the expressions that the global functions reach (checked if rule 1 holds):
//! 2. A global is a function that is neither an operand of an expression nor shared with another global.
//! 3. Every `@name` refers to an existing global.
//! 4. Binders of functions, lets and patterns are variables, and each variable is bound exactly once.
//! 5. A variable is used only in its scope: for a parameter, the body of the function; for the variable of a let, the
//!    body of the let, and also its value if that is a function literal; for the variable of a pattern, the body of the
//!    clause. An expression that uses a variable may be shared, but only inside the scope of the variable.
//! 6. An expression other than a leaf belongs to one global function.
//! 7. The attributes of an operator follow its schema: each exists and has the right kind, no required one is missing,
//!    and none is equal to its default.
//! 8. `Compiler`, `Composite`, `PartitionedFromPattern` and `global_symbol` are strings; `Primitive`, `Inline`,
//!    `Extern`, `SkipOptimization` and `Closure` are integers.
//! 9. Names and strings contain no double quote: the text format has no escapes.
//! 10. Every referenced constructor is defined, and a pattern has as many fields as its constructor.
//! 11. An annotated type refers to defined types only, with the right number of type arguments; a type parameter is
//!     used only in the function or type definition that binds it, and the type parameters of one function or type
//!     definition have distinct names.
//!
//! Types (checked if the structure holds):
//! 12. Every expression has a complete type.
//! 13. The type of an expression is the one inferred from its operands: the operands of an operator satisfy its arity
//!     and its type relation; arguments agree with parameters, both branches of an if with each other, the value of a
//!     let with the variable, and the clauses of a match with the scrutinee and with each other.
//! 14. A `match` covers every value of its scrutinee; a `match?` need not.
//!
//! Checking all rules takes O(n log n) time; the logarithmic factor is due to the scope checks alone. A cancelled check
//! reports its cancellation as its only violation.

use super::equal::describe;
use byoc_ir::cancel::{self, Ticks};
use byoc_ir::diag::{Diagnostic, Reports, codes, nearest};
use byoc_ir::ir::{
    AttrValue, Attrs, Callee, ClausePattern, Expr, ExprId, Fault, Id, IndexVec, Module, Name, ScopeId, Scopes, Type,
    TypeDef,
};
use byoc_ir::op;
use byoc_ir::typing::{infer_expr, unify};

/// Checks every rule.
///
/// # Errors
/// If a rule is violated; the error lists the first [`MAX_REPORTED`](byoc_ir::diag::MAX_REPORTED) violations, each with the function that contains it.
pub fn verify(module: &Module) -> Result<(), Vec<Diagnostic>> {
    let faults = faults(module);
    if faults.is_empty() {
        return Ok(());
    }
    // Scopes presuppose rule 1. If rule 1 is violated, the scopes serve only to find the function that contains a
    // violation.
    let scopes = Scopes::of_module(module);
    let diagnostic = |fault: Fault| match fault.at.and_then(|id| enclosing_global(module, &scopes, id)) {
        Some(name) => fault.diagnostic.note(format!("in @{name}")),
        None => fault.diagnostic,
    };
    Err(faults.into_iter().map(diagnostic).collect())
}

/// Module that satisfies every rule, as required by code generation.
#[derive(Clone, Copy)]
pub struct VerifiedModule<'m>(&'m Module);

impl<'m> VerifiedModule<'m> {
    /// Verifies a module.
    ///
    /// # Errors
    /// See [`verify`].
    pub fn of(module: &'m Module) -> Result<VerifiedModule<'m>, Vec<Diagnostic>> {
        verify(module).map(|()| VerifiedModule(module))
    }

    /// Returns the verified module.
    pub fn module(self) -> &'m Module {
        self.0
    }
}

/// Returns the violations, each with the expression that causes it. Types are checked only if the structure holds.
pub fn faults(module: &Module) -> Vec<Fault> {
    let mut faults = structure_faults(module);
    if faults.is_empty() {
        faults = check_types(module);
    }
    faults
}

/// Returns the violations of the structural rules, 1 to 11. The module need not be typed.
pub fn structure_faults(module: &Module) -> Vec<Fault> {
    let mut verifier = Verifier { module, faults: Reports::default() };
    verifier.check_order();
    let mut ticks = Ticks::every(1 << 8);
    if verifier.faults.is_empty() {
        let scopes = Scopes::of_module(module);
        let globals = verifier.check_globals(&scopes);
        let binder_scopes = verifier.check_binders(&scopes);
        verifier.check_type_defs();
        for (id, node) in module.nodes.iter() {
            if scopes.scope_of[id].is_some() {
                if !globals[id] {
                    verifier.check_owner(&scopes, id, &node.expr);
                }
                verifier.check_scope(&scopes, &binder_scopes, id, &node.expr);
                verifier.check_expr(id, &node.expr);
                verifier.check_written_type(&scopes, id, &node.expr);
            }
            if ticks.is_requested() {
                return cancelled();
            }
            if verifier.faults.is_full() {
                break;
            }
        }
    }
    verifier.faults.into_vec()
}

/// Returns the only violation of a check that is cancelled.
fn cancelled() -> Vec<Fault> {
    let reason = cancel::check(|| "the module was being verified".to_owned()).err();
    reason.map(|diagnostic| Fault { at: None, diagnostic }).into_iter().collect()
}

/// Returns the global function that an expression belongs to.
fn enclosing_global<'m>(module: &'m Module, scopes: &Scopes, id: ExprId) -> Option<&'m Name> {
    let mut global = id;
    let mut scope = *scopes.scope_of.get(id)?;
    while let Some(enclosing) = scope
        && let Some(opener) = scopes.tree[enclosing].opener
    {
        global = opener;
        scope = scopes.scope_of[opener];
    }
    module.globals.iter().find(|(_, root)| **root == global).map(|(name, _)| name)
}

struct Verifier<'a> {
    module: &'a Module,
    faults: Reports<Fault>,
}

impl Verifier<'_> {
    fn report_fault(&mut self, at: ExprId, message: impl Into<String>) {
        self.faults.add(|| Fault { at: Some(at), diagnostic: Diagnostic::error(codes::types::BAD_STRUCTURE, message) });
    }

    /// Checks rule 1.
    fn check_order(&mut self) {
        for (id, node) in self.module.nodes.iter() {
            node.expr.for_each_operand(|operand| {
                if operand >= id {
                    let message = format!(
                        "expression {}: expected operands that precede it, found expression {}",
                        id.index(),
                        operand.index()
                    );
                    self.report_fault(id, message);
                }
            });
            if self.faults.is_full() {
                return;
            }
        }
        for (name, &id) in &self.module.globals {
            if self.module.nodes.get(id).is_none() {
                let message = format!("@{name} refers to expression {}, which does not exist", id.index());
                let diagnostic = Diagnostic::error(codes::types::BAD_STRUCTURE, message);
                self.faults.add(|| Fault { at: None, diagnostic });
            }
        }
    }

    /// Checks rule 2, and rule 9 for the names of global functions. Marks the expressions that are global functions.
    fn check_globals(&mut self, scopes: &Scopes) -> IndexVec<ExprId, bool> {
        let mut is_global: IndexVec<ExprId, bool> = IndexVec::filled(false, self.module.nodes.len());
        for (name, &id) in &self.module.globals {
            if !matches!(self.module.expr(id), Expr::Function(_)) {
                self.report_fault(
                    id,
                    format!("@{name}: expected a function, found {}", describe(self.module.expr(id))),
                );
            }
            if scopes.uses[id] > 0 {
                self.report_fault(
                    id,
                    format!("expected a reference to @{name} by name, found the function itself as an operand"),
                );
            }
            if std::mem::replace(&mut is_global[id], true) {
                let first =
                    self.module.globals.iter().find(|(_, other)| **other == id).map_or("", |(first, _)| &**first);
                self.report_fault(
                    id,
                    format!("@{name}: expected a function of its own, found the function of @{first}"),
                );
            }
            self.check_text(id, "the name of a function", name);
        }
        is_global
    }

    /// Checks rule 4. Returns the scope in which each variable is bound.
    fn check_binders(&mut self, scopes: &Scopes) -> IndexVec<ExprId, Option<ScopeId>> {
        let mut binder_scopes = IndexVec::filled(None, self.module.nodes.len());
        for (id, node) in self.module.nodes.iter() {
            let Some(scope) = scopes.opened[id] else { continue };
            let mut bind = |var: ExprId, scope: ScopeId| {
                if !matches!(self.module.expr(var), Expr::Var(_)) {
                    self.report_fault(
                        id,
                        format!("expected a variable as binder, found {}", describe(self.module.expr(var))),
                    );
                } else if binder_scopes[var].replace(scope).is_some() {
                    self.report_fault(id, format!("%{} is bound twice", self.var_name(var)));
                }
            };
            match &node.expr {
                Expr::Function(function) => function.params.iter().for_each(|&param| bind(param, scope)),
                &Expr::Let { var, .. } => bind(var, scope),
                Expr::Match(m) => {
                    for (index, clause) in m.clauses.iter().enumerate() {
                        clause.pattern.for_each_var(&mut |var| bind(var, ScopeId::new(scope.index() + index)));
                    }
                }
                _ => {}
            }
        }
        binder_scopes
    }

    /// Checks rule 6.
    fn check_owner(&mut self, scopes: &Scopes, id: ExprId, expr: &Expr) {
        if !expr.is_leaf() && scopes.scope_of[id] == Some(Scopes::root()) {
            self.report_fault(
                id,
                "expected an expression of one global function, found an expression shared by several",
            );
        }
    }

    /// Checks rule 5.
    fn check_scope(
        &mut self,
        scopes: &Scopes,
        binder_scopes: &IndexVec<ExprId, Option<ScopeId>>,
        id: ExprId,
        expr: &Expr,
    ) {
        scopes.for_each_operand(id, expr, |operand, use_scope| {
            if !matches!(self.module.expr(operand), Expr::Var(_)) {
                return;
            }
            let message = match binder_scopes[operand] {
                None => format!("%{} is not bound", self.var_name(operand)),
                Some(scope) if scopes.is_inside(use_scope, scope) || self.is_in_own_value(scopes, scope, use_scope) => {
                    return;
                }
                Some(_) => format!("%{} is used outside its scope", self.var_name(operand)),
            };
            let diagnostic = Diagnostic::error(codes::types::OUT_OF_SCOPE, message);
            self.faults.add(|| Fault { at: Some(id), diagnostic });
        });
    }

    /// Returns true if `scope` is the body of a let whose value is a function literal, and `use_scope` is inside that
    /// function.
    fn is_in_own_value(&self, scopes: &Scopes, scope: ScopeId, use_scope: ScopeId) -> bool {
        let Some(opener) = scopes.tree[scope].opener else { return false };
        let Expr::Let { value, .. } = self.module.expr(opener) else { return false };
        match scopes.opened[*value] {
            Some(body) if scopes.uses[*value] == 1 && matches!(self.module.expr(*value), Expr::Function(_)) => {
                scopes.is_inside(use_scope, body)
            }
            _ => false,
        }
    }

    /// Returns the number of fields of a constructor. Reports a violation if the constructor is undefined.
    fn constructor_fields(&mut self, id: ExprId, name: &str) -> Option<usize> {
        if let Some((_, _, Type::Func(signature))) = self.module.types.constructor(name) {
            return Some(signature.params.len());
        }
        let mut diagnostic = Diagnostic::error(codes::types::BAD_STRUCTURE, format!("undefined constructor {name}"));
        if let Some(suggestion) = nearest(name, self.module.types.constructor_names()) {
            diagnostic = diagnostic.help(format!("did you mean {suggestion}?"));
        }
        self.faults.add(|| Fault { at: Some(id), diagnostic });
        None
    }

    /// Checks rule 10. Recursion is safe because patterns nest no deeper than types.
    fn check_pattern(&mut self, id: ExprId, pattern: &ClausePattern) {
        match pattern {
            ClausePattern::Any | ClausePattern::Var(_) => {}
            ClausePattern::Tuple(fields) => fields.iter().for_each(|field| self.check_pattern(id, field)),
            ClausePattern::Constructor { name, fields } => {
                if let Some(field_count) = self.constructor_fields(id, name)
                    && field_count != fields.len()
                {
                    let message = format!("fields of pattern {name}: expected {field_count}, found {}", fields.len());
                    let diagnostic = Diagnostic::error(codes::types::BAD_ARITY, message);
                    self.faults.add(|| Fault { at: Some(id), diagnostic });
                }
                fields.iter().for_each(|field| self.check_pattern(id, field));
            }
        }
    }

    /// Checks rule 11 for type definitions.
    fn check_type_defs(&mut self) {
        for (name, def) in self.module.types.iter() {
            let constructors = def.constructors.iter().map(|constructor| &constructor.name);
            let mut names = constructors.chain(&def.params).chain([name]);
            let mut messages: Vec<String> = find_duplicate(&def.params).into_iter().collect();
            messages.extend(
                names.find(|name| !is_identifier(name)).map(|name| format!("expected an identifier, found \"{name}\"")),
            );
            for field in def.constructors.iter().flat_map(|constructor| &constructor.fields) {
                messages.extend(name_fault(self.module, field, &mut |name| def.params.contains(name)));
            }
            for message in messages {
                let message = format!("type {name}: {message}");
                let create = || Diagnostic::error(codes::types::BAD_STRUCTURE, message);
                self.faults.add(|| Fault { at: None, diagnostic: create() });
            }
        }
    }

    /// Checks rule 11 for the annotations of an expression.
    fn check_written_type(&mut self, scopes: &Scopes, id: ExprId, expr: &Expr) {
        let ty = match expr {
            Expr::Var(var) => &var.annotation,
            Expr::Function(function) => {
                if let Some(message) = find_duplicate(&function.type_params) {
                    self.report_fault(id, message);
                }
                &function.ret
            }
            _ => return,
        };
        if matches!(ty, Type::Tensor(_) | Type::Unknown) {
            return;
        }
        let start_scope = if expr.scopes() > 0 { scopes.opened[id] } else { scopes.scope_of[id] };
        let mut is_in_scope = |name: &Name| {
            let mut at = start_scope;
            while let Some(scope) = at
                && let Some(opener) = scopes.tree[scope].opener
            {
                if let Expr::Function(function) = self.module.expr(opener)
                    && function.type_params.contains(name)
                {
                    return true;
                }
                at = Some(scopes.tree[scope].parent);
            }
            false
        };
        if let Some(message) = name_fault(self.module, ty, &mut is_in_scope) {
            self.report_fault(id, message);
        }
    }

    /// Checks rules 3, 7, 8, 9 and 10.
    fn check_expr(&mut self, id: ExprId, expr: &Expr) {
        match expr {
            Expr::Global(name) if !self.module.globals.contains_key(name) => {
                let mut diagnostic =
                    Diagnostic::error(codes::types::BAD_STRUCTURE, format!("no function @{name} is defined"));
                if let Some(suggestion) = nearest(name, self.module.globals.keys().map(|k| &**k)) {
                    diagnostic = diagnostic.help(format!("did you mean @{suggestion}?"));
                }
                self.faults.add(|| Fault { at: Some(id), diagnostic });
            }
            Expr::Var(var) => self.check_text(id, "the name of a variable", &var.name),
            Expr::Constructor(name) => {
                self.constructor_fields(id, name);
            }
            Expr::Match(m) => m.clauses.iter().for_each(|clause| self.check_pattern(id, &clause.pattern)),
            Expr::Call(call) => {
                if let Callee::Op(op) = call.callee {
                    match op::normalize_attrs(op::get(op), call.attrs.clone()) {
                        Ok(normal) if normal.len() == call.attrs.len() => {}
                        Ok(normal) => {
                            let defaults: Vec<String> = call
                                .attrs
                                .iter()
                                .filter(|(key, _)| normal.get(key).is_none())
                                .map(|(key, value)| format!("{key}={value}"))
                                .collect();
                            let (name, defaults) = (op::get(op).name, defaults.join(", "));
                            self.report_fault(
                                id,
                                format!("{name}: expected no attribute equal to its default, found {defaults}"),
                            );
                        }
                        Err(diagnostic) => self.faults.add(|| Fault { at: Some(id), diagnostic: *diagnostic }),
                    }
                }
                self.check_strings(id, &call.attrs);
            }
            Expr::Function(function) => {
                for (key, value) in function.attrs.iter() {
                    let expected = match &**key {
                        "Compiler" | "Composite" | "PartitionedFromPattern" | "global_symbol" => {
                            if value.as_str().is_some() { continue } else { "a string" }
                        }
                        "Primitive" | "Inline" | "Extern" | "SkipOptimization" | "Closure" => {
                            if value.as_int().is_some() { continue } else { "an integer" }
                        }
                        _ => continue,
                    };
                    self.report_fault(id, format!("function attribute {key}: expected {expected}, found {value}"));
                }
                self.check_strings(id, &function.attrs);
            }
            _ => {}
        }
    }

    fn check_strings(&mut self, id: ExprId, attrs: &Attrs) {
        for (key, value) in attrs.iter() {
            if let AttrValue::Str(text) = value {
                self.check_text(id, key, text);
            }
        }
    }

    fn check_text(&mut self, id: ExprId, subject: &str, text: &str) {
        if text.contains('"') {
            self.report_fault(
                id,
                format!("{subject} contains a double quote, which the text format cannot express: {text}"),
            );
        }
    }

    fn var_name(&self, var: ExprId) -> &str {
        match self.module.expr(var) {
            Expr::Var(var) => &var.name,
            _ => "?",
        }
    }
}

/// Returns a description of an unknown or out-of-scope name in a type.
fn name_fault(module: &Module, ty: &Type, is_in_scope: &mut dyn FnMut(&Name) -> bool) -> Option<String> {
    let mut invalid_name = None;
    ty.walk(&mut |part, own| {
        let message = match part {
            Type::Param(name) if own.iter().any(|names| names.contains(name)) || is_in_scope(name) => None,
            Type::Param(name) => Some(format!("type parameter {name} is used outside its scope")),
            Type::Adt(adt) => match module.types.get(&adt.name) {
                None => Some(format!("no type {} is defined", adt.name)),
                Some(TypeDef { params, .. }) if params.len() != adt.args.len() => {
                    let (name, expected, actual) = (&adt.name, params.len(), adt.args.len());
                    Some(format!("type arguments of {name}: expected {expected}, found {actual} in {part}"))
                }
                Some(_) => None,
            },
            Type::Func(func) => find_duplicate(&func.type_params),
            Type::Tensor(_) | Type::Tuple(_) | Type::Ref(_) | Type::Unknown => None,
        };
        if invalid_name.is_none() {
            invalid_name = message;
        }
        invalid_name.is_none() && (part.has_names() || matches!(part, Type::Func(_)))
    });
    invalid_name
}

/// Returns true if the text format can express `name` as the name of a type, a constructor or a type parameter, which
/// are never quoted.
fn is_identifier(name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    name.chars().all(is_part) && name.starts_with(|c: char| !c.is_ascii_digit())
}

/// Describes the first type parameter that has the same name as an earlier type parameter.
fn find_duplicate(params: &[Name]) -> Option<String> {
    let duplicate = params.iter().enumerate().find(|(i, name)| params[..*i].contains(name));
    duplicate.map(|(_, name)| format!("duplicate type parameter {name}"))
}

/// Checks rules 12 to 14.
fn check_types(module: &Module) -> Vec<Fault> {
    let live = module.live();
    let mut faults = Reports::default();
    let mut ticks = Ticks::every(1 << 8);
    let mut first_untyped = None;
    let mut count = 0usize;
    for (id, node) in module.nodes.iter() {
        if !live[id] {
            continue;
        }
        if !node.ty.is_complete() {
            first_untyped = first_untyped.or(Some(id));
            count += 1;
            continue;
        }
        if node.ty.parts() > 1 << 8 && cancel::is_requested() || ticks.is_requested() {
            return cancelled();
        }
        if faults.is_full() {
            return faults.into_vec();
        }
        let diagnostic = match infer_expr(module, &node.expr) {
            Err(diagnostic) => *diagnostic,
            Ok(ty) if unify(&ty, &node.ty).is_some() => continue,
            Ok(ty) => {
                let message = match &node.expr {
                    Expr::Var(var) => format!("%{}: expected the annotated type {ty}, found {}", var.name, node.ty),
                    _ => format!("expression: expected type {ty} from its operands, found {}", node.ty),
                };
                Diagnostic::error(codes::types::TYPE_MISMATCH, message)
            }
        };
        faults.add(|| Fault { at: Some(id), diagnostic });
    }
    if let Some(id) = first_untyped {
        let ty = module.ty(id);
        let detail = if *ty == Type::Unknown { "no type".to_owned() } else { format!("the incomplete type {ty}") };
        let diagnostic = Diagnostic::error(
            codes::types::CANNOT_INFER,
            format!("expected a complete type for every expression, found {count} without one; the first has {detail}"),
        )
        .help("run infer_type first");
        faults.add(|| Fault { at: Some(id), diagnostic });
    }
    faults.into_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use byoc_ir::ir::{Function, Origins};
    use byoc_ir::tensor::DType;

    fn int() -> Type {
        Type::scalar(DType::I32)
    }

    fn function(params: &[ExprId], body: ExprId) -> Expr {
        Expr::Function(Box::new(Function::new(params.iter().copied(), body, Type::Unknown, Attrs::none())))
    }

    /// Verifies a module whose `@main` is the function that `build` returns, and expects exactly one message.
    fn check(expected: &str, build: impl FnOnce(&mut Module) -> ExprId) {
        let mut module = Module::new();
        let main = build(&mut module);
        module.globals.insert("main".into(), main);
        let messages: Vec<String> = faults(&module).into_iter().map(|fault| fault.diagnostic.message).collect();
        assert_eq!(messages, [expected]);
        // Printing must not fail on an invalid module.
        assert!(byoc_ir::text::print_faults(&module, &faults(&module)).contains(expected));
        assert!(verify(&module).is_err());
    }

    fn push(module: &mut Module, expr: Expr, ty: Type) -> ExprId {
        module.push_typed(expr, ty, Origins::none())
    }

    fn func(params: &[Type], ret: Type) -> Type {
        Type::func(byoc_ir::ir::FuncType::new(params, ret))
    }

    #[test]
    fn operands_come_first() {
        check("expression 0: expected operands that precede it, found expression 1", |module| {
            push(module, Expr::Tuple([ExprId::new(1)].into()), Type::Unknown)
        });
    }

    #[test]
    fn globals_are_distinct_functions() {
        check("@main: expected a function, found a tuple of 0 fields", |module| {
            push(module, Expr::Tuple([].into()), Type::unit())
        });
        check("@main: expected a function of its own, found the function of @a", |module| {
            let x = push(module, Expr::var("x", int()), int());
            let f = push(module, function(&[x], x), func(&[int()], int()));
            module.globals.insert("a".into(), f);
            f
        });
        check("expected a reference to @f by name, found the function itself as an operand", |module| {
            let x = push(module, Expr::var("x", int()), int());
            let f = push(module, function(&[x], x), func(&[int()], int()));
            module.globals.insert("f".into(), f);
            push(module, function(&[], f), func(&[], func(&[int()], int())))
        });
        check("no function @g is defined", |module| {
            let g = push(module, Expr::Global("g".into()), int());
            push(module, function(&[], g), func(&[], int()))
        });
    }

    #[test]
    fn variables_are_bound_once() {
        check("%x is bound twice", |module| {
            let x = push(module, Expr::var("x", int()), int());
            push(module, function(&[x, x], x), func(&[int(), int()], int()))
        });
        check("expected a variable as binder, found a tuple of 0 fields", |module| {
            let unit = push(module, Expr::Tuple([].into()), Type::unit());
            push(module, function(&[unit], unit), func(&[Type::unit()], Type::unit()))
        });
    }

    #[test]
    fn attributes_match_the_schema() {
        let clip = |attrs: Attrs| {
            move |module: &mut Module| {
                let ty = Type::scalar(DType::F32);
                let x = push(module, Expr::var("x", ty.clone()), ty.clone());
                let op = op::lookup("clip").unwrap();
                let call = push(module, Expr::op(op, [x], attrs), ty.clone());
                push(module, function(&[x], call), func(std::slice::from_ref(&ty), ty.clone()))
            }
        };
        let bounds = Attrs::new([("a_min", AttrValue::Float(0.0)), ("a_max", AttrValue::Float(6.0))]);
        check("clip has no attribute \"other\"", clip(bounds.with("other", 1)));
        check("clip: expected the attribute \"a_min\" (lower bound), found none", clip(bounds.without("a_min")));
    }

    #[test]
    fn names_are_printable() {
        check("the name of a variable contains a double quote, which the text format cannot express: a\"b", |module| {
            let x = push(module, Expr::var("a\"b", int()), int());
            push(module, function(&[x], x), func(&[int()], int()))
        });
    }

    #[test]
    fn types_are_complete_and_consistent() {
        check("expected a complete type for every expression, found 1 without one; the first has no type", |module| {
            let x = push(module, Expr::var("x", Type::Unknown), Type::Unknown);
            push(module, function(&[x], x), func(&[int()], int()))
        });
        check("expression: expected type (int32,) from its operands, found (int32, int32)", |module| {
            let x = push(module, Expr::var("x", int()), int());
            let ty = Type::tuple([int(), int()]);
            let t = push(module, Expr::Tuple([x].into()), ty.clone());
            push(module, function(&[x], t), func(&[int()], ty))
        });
        check("%x: expected the annotated type int32, found float32", |module| {
            let float = Type::scalar(DType::F32);
            let x = push(module, Expr::var("x", int()), float.clone());
            push(module, function(&[x], x), func(std::slice::from_ref(&float), float.clone()))
        });
    }
}

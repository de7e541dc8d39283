//! Infers the types of a module and completes missing annotations.
//!
//! A fully annotated module is typed in one ascending sweep, since operands precede their users. Where an annotation is
//! missing (a parameter, the result of a recursive function, a closure that calls itself), the sweep leaves incomplete
//! types, which a work list completes: when the type of an expression is refined, its users are typed again, and the
//! argument types of calls flow into the parameters of function literals, let-bound functions and globals. The work
//! list terminates because a type is only ever refined and is bounded in size.
//!
//! A function without type parameters has one type: calls with different argument types are type errors. A function
//! with type parameters is instantiated at each use, with types inferred from the arguments and from the context of the
//! result. The same applies to the constructors of algebraic data types.

use byoc_ir::cancel::{self, Ticks};
use byoc_ir::diag::{Diagnostic, Reports, codes};
use byoc_ir::ir::{Callee, ClausePattern, Expr, ExprId, Fault, FuncType, Function, IndexVec, Module, Type};
use byoc_ir::tensor::memory;
use byoc_ir::typing::{Solver, infer_expr, signature_of_call, unify};
use std::collections::{BTreeSet, HashMap};

/// Infers the types of a module; the expressions keep their ids.
///
/// # Errors
/// If an expression has a type error (of which at most [`MAX_REPORTED`](byoc_ir::diag::MAX_REPORTED) are reported), its type cannot be inferred without
/// more annotations, the types exceed the memory limit, or the work is cancelled.
pub fn infer_type(module: &Module) -> Result<Module, Vec<Fault>> {
    let mut result = module.clone();
    infer_type_in_place(&mut result, &[])?;
    Ok(result)
}

/// Infers the types of a module in place, including those of `roots`, which need not be reachable from a global
/// function.
///
/// # Errors
/// See [`infer_type`]. On an error, the module is left partially typed.
pub fn infer_type_in_place(module: &mut Module, roots: &[ExprId]) -> Result<(), Vec<Fault>> {
    let mut inference = Inference::new(module, roots);
    inference.run().map_err(|diagnostic| vec![Fault { at: None, diagnostic: *diagnostic }])?;
    let Inference { live, faults, module, .. } = inference;
    if !faults.is_empty() {
        return Err(faults.into_sorted(|fault| fault.at));
    }
    complete_annotations(module, &live);
    Ok(())
}

/// Result of a step; only the end of the entire inference is an error.
type Result<T, E = Box<Diagnostic>> = std::result::Result<T, E>;

/// Maximum number of inference rounds per expression. A type that still changes is assumed not to converge.
const MAX_ROUNDS: u8 = 200;

/// Maximum number of let-bound variables that are followed to resolve an alias chain to its value.
const MAX_ALIASES: usize = 100;

/// Let bindings of a module: the value of each variable, and the variables bound to each value as a linked list in
/// reverse binding order. The tables are empty in a module without lets.
#[derive(Default)]
struct Lets {
    value: IndexVec<ExprId, Option<ExprId>>,
    first: IndexVec<ExprId, Option<ExprId>>,
    next: IndexVec<ExprId, Option<ExprId>>,
}

impl Lets {
    fn bind(&mut self, expressions: usize, var: ExprId, value: ExprId) {
        if self.value.is_empty() {
            for list in [&mut self.value, &mut self.first, &mut self.next] {
                *list = IndexVec::filled(None, expressions);
            }
        }
        self.value[var] = Some(value);
        self.next[var] = self.first[value].replace(var);
    }

    fn value(&self, var: ExprId) -> Option<ExprId> {
        self.value.get(var).copied().flatten()
    }

    fn first(&self, value: ExprId) -> Option<ExprId> {
        self.first.get(value).copied().flatten()
    }

    fn next(&self, var: ExprId) -> Option<ExprId> {
        self.next.get(var).copied().flatten()
    }

    fn vars(&self, value: ExprId) -> impl Iterator<Item = ExprId> {
        std::iter::successors(self.first(value), |&var| self.next(var))
    }

    fn values(&self) -> impl Iterator<Item = ExprId> {
        self.first.iter().filter(|(_, var)| var.is_some()).map(|(value, _)| value)
    }
}

struct Inference<'a> {
    module: &'a mut Module,
    live: IndexVec<ExprId, bool>,
    lets: Lets,
    faults: Reports<Fault>,
    /// Expressions with a type error.
    is_faulty: IndexVec<ExprId, bool>,
    ticks: Ticks,
    /// Work list: expressions to type again.
    worklist: BTreeSet<ExprId>,
    visits: IndexVec<ExprId, u8>,
    /// Users of each expression; empty unless there are incomplete types.
    users: IndexVec<ExprId, Vec<ExprId>>,
    /// References to each global function.
    mentions: HashMap<ExprId, Vec<ExprId>>,
}

impl<'a> Inference<'a> {
    fn new(module: &'a mut Module, roots: &[ExprId]) -> Inference<'a> {
        let mut live = IndexVec::filled(false, module.nodes.len());
        for &root in module.globals.values().chain(roots) {
            live[root] = true;
        }
        for (id, node) in module.nodes.iter().rev() {
            if live[id] {
                node.expr.for_each_operand(|operand| live[operand] = true);
            }
        }
        Inference {
            live,
            lets: Lets::default(),
            faults: Reports::default(),
            is_faulty: IndexVec::filled(false, module.nodes.len()),
            ticks: Ticks::every(1 << 8),
            worklist: BTreeSet::new(),
            visits: IndexVec::new(),
            users: IndexVec::new(),
            mentions: HashMap::new(),
            module,
        }
    }

    fn run(&mut self) -> Result<()> {
        self.declare();
        self.sweep()?;
        self.fill_gaps()?;
        self.check_complete();
        Ok(())
    }

    /// Fails if the work is cancelled, or the types exceed the memory limit. Called for each expression that is typed;
    /// the time that one takes depends on the size of its type.
    fn poll(&mut self, id: ExprId) -> Result<()> {
        let parts = self.module.ty(id).parts();
        if parts > 1 << 8 || self.ticks.is_requested() {
            cancel::check(|| "types were being inferred".to_owned())?;
        }
        memory::check().map_err(|error| Box::new(Diagnostic::from(error).note("types were being inferred")))
    }

    fn report(&mut self, id: ExprId, create: impl FnOnce() -> Diagnostic) {
        if !std::mem::replace(&mut self.is_faulty[id], true) {
            self.faults.add(|| Fault { at: Some(id), diagnostic: create() });
        }
    }

    /// Initializes the type of every expression: variables with their annotations, functions with their signatures, and
    /// all other expressions with the unknown type.
    fn declare(&mut self) {
        for id in self.module.nodes.ids() {
            if !self.live[id] {
                continue;
            }
            let ty = match self.module.expr(id) {
                Expr::Var(var) => var.annotation.clone(),
                Expr::Function(function) => self.signature(function),
                &Expr::Let { var, value, .. } => {
                    self.lets.bind(self.module.nodes.len(), var, value);
                    Type::Unknown
                }
                _ => Type::Unknown,
            };
            self.module.nodes[id].ty = ty;
        }
        for value in self.lets.values() {
            // The variable of a recursive function may precede the function in the arena.
            if let Expr::Function(_) = self.module.expr(value) {
                for var in self.lets.vars(value) {
                    if let Some(ty) = unify(self.module.ty(var), self.module.ty(value)) {
                        self.module.nodes[var].ty = ty;
                    }
                }
            }
        }
    }

    fn signature(&self, function: &Function) -> Type {
        let params = function.params.iter().map(|&p| self.module.ty(p).clone()).collect();
        Type::func(FuncType { type_params: function.type_params.clone(), params, ret: function.ret.clone() })
    }

    fn sweep(&mut self) -> Result<()> {
        for id in self.module.nodes.ids() {
            if self.live[id] {
                self.infer(id);
                self.poll(id)?;
            }
        }
        Ok(())
    }

    /// Infers the type of an expression. Returns true if the type changed.
    fn infer(&mut self, id: ExprId) -> bool {
        let node = &self.module.nodes[id];
        if self.is_faulty[id] {
            return false;
        }
        if matches!(node.expr, Expr::Var(_)) {
            self.flow_to_variables(id);
            return false;
        }
        match infer_expr(self.module, &node.expr) {
            Ok(mut ty) => {
                if !ty.is_complete()
                    && let Some(refined) = unify(&ty, &node.ty)
                {
                    // Keep the type information from earlier uses.
                    ty = refined;
                }
                let is_changed = ty != node.ty;
                if is_changed {
                    self.module.nodes[id].ty = ty;
                }
                self.flow_to_variables(id);
                is_changed
            }
            Err(mut diagnostic) => {
                if diagnostic.code == codes::types::TYPE_MISMATCH
                    && !self.faults.is_full()
                    && let Some(help) = self.ambiguous_types(id)
                {
                    diagnostic.help = Some(help);
                }
                self.report(id, || *diagnostic);
                false
            }
        }
    }

    /// Returns a help text that suggests a type parameter, if a parameter type of the called function was inferred from
    /// another call.
    fn ambiguous_types(&self, call: ExprId) -> Option<String> {
        let Expr::Call(call) = self.module.expr(call) else { return None };
        let Callee::Expr(callee) = call.callee else { return None };
        let function = self.module.expr(self.target(callee)?).as_function()?;
        let is_incomplete = |&param: &ExprId| match self.module.expr(param) {
            Expr::Var(var) if !var.annotation.is_complete() => Some(var.name.clone()),
            _ => None,
        };
        let name = function.params.iter().find_map(is_incomplete).filter(|_| function.type_params.is_empty())?;
        Some(format!(
            "the type of %{name} is inferred from another call; to call the function at several types, declare a type \
             parameter: `[A](%{name}: A)`"
        ))
    }

    /// Resolves a callee through let-bound variables and the names of globals.
    fn target(&self, callee: ExprId) -> Option<ExprId> {
        let mut target = callee;
        // A variable may be bound to another variable. Chains are short in practice; an invalid module may have a
        // cycle.
        for _ in 0..MAX_ALIASES {
            match self.lets.value(target) {
                Some(value) => target = value,
                None => break,
            }
        }
        match self.module.expr(target) {
            Expr::Global(name) => self.module.globals.get(name).copied(),
            _ => Some(target),
        }
    }

    /// Propagates the type of a value to the let variables bound to it.
    fn flow_to_variables(&mut self, value: ExprId) {
        let mut variable = self.lets.first(value);
        while let Some(var) = variable {
            let ty = self.module.ty(value).clone();
            self.refine(var, &ty);
            variable = self.lets.next(var);
        }
    }

    /// Refines the type of a variable without a complete annotation, or of an expression with an incomplete type. A
    /// conflict is reported not here but at the expression where the two types meet.
    fn refine(&mut self, id: ExprId, ty: &Type) {
        // Variables may be bound to variables, in a chain.
        let mut pending = vec![(id, ty.clone())];
        while let Some((id, ty)) = pending.pop() {
            let node = &self.module.nodes[id];
            let is_incomplete = match &node.expr {
                Expr::Var(var) => !var.annotation.is_complete(),
                _ => !node.ty.is_complete(),
            };
            // A generic type stays generic, so that each use can instantiate it with different types.
            let is_generic = matches!(&node.ty, Type::Func(func) if !func.type_params.is_empty());
            if !is_incomplete || ty == Type::Unknown || is_generic && node.ty.is_complete() {
                continue;
            }
            if let Some(refined) = unify(&node.ty, &ty)
                && refined != node.ty
            {
                self.module.nodes[id].ty = refined.clone();
                self.wake_users(id);
                // The types of the variables bound to this expression, and of its operands, may become more precise.
                pending.extend(self.lets.vars(id).map(|var| (var, refined.clone())));
                if !self.users.is_empty() {
                    self.worklist.insert(id);
                }
            }
        }
    }

    fn wake_users(&mut self, id: ExprId) {
        if let Some(users) = self.users.get(id) {
            self.worklist.extend(users.iter().copied());
        }
    }

    /// If there are incomplete types, infers types repeatedly until none changes.
    fn fill_gaps(&mut self) -> Result<()> {
        let is_incomplete = |module: &Module, id: ExprId| !module.ty(id).is_complete();
        let has_gaps = self.module.nodes.ids().any(|id| self.live[id] && is_incomplete(self.module, id));
        if !has_gaps {
            return Ok(());
        }
        self.collect_users();
        self.visits = IndexVec::filled(0, self.module.nodes.len());
        self.worklist.extend(self.module.nodes.ids().filter(|&id| self.live[id]));
        while let Some(id) = self.worklist.pop_first() {
            if self.visits[id] >= MAX_ROUNDS {
                let message = "type inference does not converge: the type grows with every call";
                self.report(id, || {
                    Diagnostic::error(codes::types::CANNOT_INFER, message)
                        .help("write the types of the parameters and the result of the recursive function")
                });
                continue;
            }
            self.visits[id] += 1;
            self.poll(id)?;
            self.flow_backwards(id);
            if self.infer(id) {
                // The new type propagates to the users of the expression, and back to its operands.
                self.wake_users(id);
                self.worklist.insert(id);
                if let Some(mentions) = self.mentions.get(&id) {
                    self.worklist.extend(mentions.iter().copied());
                }
            }
        }
        Ok(())
    }

    fn collect_users(&mut self) {
        self.users = IndexVec::filled(Vec::new(), self.module.nodes.len());
        for (id, node) in self.module.nodes.iter() {
            if !self.live[id] {
                continue;
            }
            node.expr.for_each_operand(|operand| self.users[operand].push(id));
            if let Expr::Global(name) = &node.expr
                && let Some(&function) = self.module.globals.get(name)
            {
                self.mentions.entry(function).or_default().push(id);
            }
        }
    }

    /// Propagates the type of an expression to its operands.
    fn flow_backwards(&mut self, id: ExprId) {
        let own_type = self.module.ty(id).clone();
        match self.module.expr(id).clone() {
            Expr::Var(_) => {
                if let Some(value) = self.lets.value(id) {
                    self.refine(value, &own_type);
                }
            }
            Expr::If { cond, then, otherwise } => {
                self.refine(cond, &Type::scalar(byoc_ir::tensor::DType::Bool));
                self.refine(then, &own_type);
                self.refine(otherwise, &own_type);
            }
            Expr::Let { body, .. } => self.refine(body, &own_type),
            Expr::Match(m) => {
                for clause in &m.clauses {
                    self.refine(clause.body, &own_type);
                    let data = self.module.ty(m.data).clone();
                    let pattern_type = self.flow_into_pattern(&clause.pattern, &data);
                    self.refine(m.data, &pattern_type);
                }
            }
            Expr::Tuple(fields) => {
                if let Type::Tuple(types) = &own_type {
                    for (&field, ty) in fields.iter().zip(types.iter()) {
                        self.refine(field, ty);
                    }
                }
            }
            Expr::Function(function) => {
                let Type::Func(func) = &own_type else { return };
                for (&param, ty) in function.params.iter().zip(&func.params) {
                    self.refine(param, ty);
                }
                self.refine(function.body, &func.ret);
            }
            Expr::Call(call) => {
                let Callee::Expr(callee) = call.callee else { return };
                self.flow_into_callee(callee, &call.args);
                if let Some(func) = signature_of_call(self.module, callee, &call.args, &own_type) {
                    for (&arg, param) in call.args.iter().zip(&func.params) {
                        self.refine(arg, param);
                    }
                    self.refine(id, &func.ret);
                }
            }
            Expr::RefNew(value) => {
                if let Type::Ref(inner) = &own_type {
                    self.refine(value, inner);
                }
            }
            Expr::RefRead(reference) => self.refine(reference, &Type::reference(own_type)),
            Expr::RefWrite { reference, value } => {
                let reference_type = Type::reference(self.module.ty(value).clone());
                self.refine(reference, &reference_type);
                if let Type::Ref(inner) = self.module.ty(reference).clone() {
                    self.refine(value, &inner);
                }
            }
            Expr::Constant(_) | Expr::Global(_) | Expr::Constructor(_) | Expr::Project { .. } => {}
        }
    }

    /// Propagates the type of the data to the variables of a pattern. Returns the type that the pattern implies for the
    /// data.
    fn flow_into_pattern(&mut self, pattern: &ClausePattern, data: &Type) -> Type {
        match pattern {
            ClausePattern::Any => data.clone(),
            ClausePattern::Var(var) => {
                self.refine(*var, data);
                self.module.ty(*var).clone()
            }
            ClausePattern::Tuple(fields) => {
                let field_types = data.as_tuple().filter(|types| types.len() == fields.len()).map(<[Type]>::to_vec);
                let field_types = field_types.unwrap_or_else(|| vec![Type::Unknown; fields.len()]);
                Type::tuple(fields.iter().zip(&field_types).map(|(f, ty)| self.flow_into_pattern(f, ty)))
            }
            ClausePattern::Constructor { name, fields } => {
                let Some((_, _, Type::Func(signature))) = self.module.types.constructor(name) else {
                    return Type::Unknown;
                };
                let signature = signature.clone();
                let mut solver = Solver::default();
                let signature = solver.instantiate(&signature);
                // A conflict is reported where the two types meet.
                if solver.join(&signature.ret, data).is_none() || signature.params.len() != fields.len() {
                    return Type::Unknown;
                }
                for (field, ty) in fields.iter().zip(&signature.params) {
                    let field_type = self.flow_into_pattern(field, &solver.finish(ty));
                    if solver.join(ty, &field_type).is_none() {
                        return Type::Unknown;
                    }
                }
                solver.finish(&signature.ret)
            }
        }
    }

    /// Propagates the types of a call's arguments to the parameters of its callee.
    fn flow_into_callee(&mut self, callee: ExprId, args: &[ExprId]) {
        let Some(target) = self.target(callee) else { return };
        match self.module.expr(target) {
            Expr::Function(function) if function.params.len() == args.len() => {
                let params = function.params.clone();
                for (&param, &arg) in params.iter().zip(args) {
                    let ty = self.module.ty(arg).clone();
                    self.refine(param, &ty);
                }
            }
            Expr::Var(_) => {
                let params = args.iter().map(|&a| self.module.ty(a).clone()).collect();
                let params: Box<[Type]> = params;
                self.refine(target, &Type::func(FuncType::new(params, Type::Unknown)));
            }
            _ => {}
        }
    }

    /// Reports an expression whose type is still incomplete, unless type errors were found, which may be the cause.
    fn check_complete(&mut self) {
        if !self.faults.is_empty() {
            return;
        }
        let is_incomplete = |id: &ExprId| self.live[*id] && !self.module.ty(*id).is_complete();
        // Variables come first: a variable of unknown type makes the types of its users unknown.
        let mut gaps = self.module.nodes.ids().filter(is_incomplete).collect::<Vec<_>>();
        gaps.sort_by_key(|&id| !matches!(self.module.expr(id), Expr::Var(_)));
        if let Some(&id) = gaps.first() {
            let subject = match self.module.expr(id) {
                Expr::Var(var) => format!("the type of %{}", var.name),
                Expr::Global(name) => format!("the type of @{name}"),
                Expr::Function(_) => "the type of a function".to_owned(),
                _ => "the type of an expression".to_owned(),
            };
            let mut message = format!("{subject} cannot be inferred");
            if *self.module.ty(id) != Type::Unknown {
                message.push_str(&format!(": only {} is known", self.module.ty(id)));
            }
            let diagnostic = Diagnostic::error(codes::types::CANNOT_INFER, message)
                .help("write the types of parameters and the result types of recursive functions");
            self.report(id, || diagnostic);
        }
    }
}

/// Writes the inferred types into the annotations of variables and the results of functions.
fn complete_annotations(module: &mut Module, live: &IndexVec<ExprId, bool>) {
    for id in module.nodes.ids() {
        if !live[id] {
            continue;
        }
        let node = &mut module.nodes[id];
        match &mut node.expr {
            Expr::Var(var) if !var.annotation.is_complete() => var.annotation = node.ty.clone(),
            Expr::Function(function) if !function.ret.is_complete() => {
                if let Type::Func(func) = &node.ty {
                    function.ret = func.ret.clone();
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use byoc_ir::diag::MAX_REPORTED;
    use byoc_ir::text::{ParseOptions, parse};

    fn module(count: usize, line: impl Fn(usize) -> String) -> Module {
        let lines: String = (0..count).map(line).collect();
        let text = format!("#[version = \"0.0.5\"]\ndef @main(%x: float32) {{\n{lines} %x\n}}\n");
        let parsed = parse(&text, &ParseOptions::default());
        assert_eq!(parsed.diagnostics, []);
        parsed.module
    }

    #[test]
    fn type_errors_beyond_the_first_are_counted() {
        let faults = infer_type(&module(MAX_REPORTED + 7, |i| format!(" let %a{i} = add(%x, 1);\n"))).unwrap_err();
        assert_eq!(faults.len(), MAX_REPORTED);
        let note = faults[MAX_REPORTED - 1].diagnostic.notes.last();
        assert_eq!(note.map(String::as_str), Some("7 more errors are not shown"));
    }

    #[test]
    fn cancelled_inference_reports_only_its_cancellation() {
        let module = module(1000, |i| format!(" let %a{i} = add(%x, 1);\n"));
        let cancel = cancel::Cancel::default();
        cancel.set(true);
        for faults in [cancel.within(|| infer_type(&module).unwrap_err()), {
            let typed = infer_type(&self::module(1000, |i| format!(" let %a{i} = exp(%x);\n"))).unwrap();
            cancel.within(|| crate::analysis::verifier::faults(&typed))
        }] {
            let found: Vec<_> = faults.iter().map(|fault| (fault.at, fault.diagnostic.code)).collect();
            assert_eq!(found, [(None, codes::runtime::CANCELLED)]);
        }
    }
}

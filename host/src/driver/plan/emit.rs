//! Code emission for one function: the expressions of its scopes, in order, become instructions over registers.
//! [`super::storage`] assigns a storage location to each register afterwards.
//!
//! A tuple is not a value at run time but a structure over registers ([`Sym`]), so constructing and projecting tuples
//! is free.

use super::scope::{ScopeId, Unit};
use super::{Context, lowering_error};
use byoc_ir::diag::Diagnostic;
use byoc_ir::ir::{Call, Callee, ClausePattern, Expr, ExprId, Id, OpId, Type};
use byoc_ir::op;
use byoc_ir::op::facts::ResultMemory;
use byoc_ir::typing::substitute;
use byoc_runtime::exec::program::{Arg, Instr, OpCall, Place, Reg, Register};
use std::collections::HashMap;

/// Maximum number of leaves of a tuple.
const MAX_LEAVES: usize = 1 << 20;

/// Value of an expression.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sym {
    /// Tensor, closure or reference.
    Reg(Reg),
    /// Tuple: a range of [`Emitter::fields`].
    Tuple { first: u32, len: u32 },
    /// Function literal of this unit, with the register of its closure if one was created.
    Literal { literal: ExprId, closure: Option<Reg> },
    /// Global function, by its expression.
    Global(ExprId),
}

/// Function whose registers have no storage locations yet.
pub(super) struct Draft {
    pub params: u32,
    pub results: u32,
    pub registers: Vec<Register>,
    pub code: Vec<Instr>,
}

/// Pending unit of work of the emitter.
enum Task {
    /// Remaining items of a scope, starting at the cursor's item `next`.
    Scope(Cursor),
    /// Second branch of an `if`, with the index of the branch instruction and, unless the `if` is in tail position, the
    /// value of the `if`.
    Otherwise { branch: usize, cursor: Cursor, join: Option<(ExprId, Sym)> },
    /// End of an `if` or a `match` that is not in tail position; `jumps` are the jumps from the ends of its branches to
    /// its end.
    Join { jumps: Vec<usize>, id: ExprId, sym: Sym },
    /// Next clause of a `match`.
    Clause(Clauses),
}

/// State of a `match` during emission.
struct Clauses {
    id: ExprId,
    /// Index of the next clause.
    next: usize,
    /// Tests of the previous clause, which jump to the next clause on failure.
    failed: Vec<usize>,
    /// Jumps from the ends of the clauses to the end of the match.
    jumps: Vec<usize>,
    to: Target,
    /// Value of the match, unless it is in tail position.
    join: Option<Sym>,
}

/// State of a scope during emission.
struct Cursor {
    scope: ScopeId,
    next: usize,
    root: ExprId,
    to: Target,
    /// Index of the item in tail position: the last item that emits code, if its value is the result.
    tail: Option<usize>,
}

/// Destination of a scope's result.
#[derive(Clone)]
enum Target {
    Return,
    Regs(Vec<Reg>),
}

/// Emits the code of one function.
pub(super) struct Emitter<'a, 'm> {
    context: &'a mut Context<'m>,
    unit: &'a Unit,
    /// Literal whose body is emitted; `None` for the body of a global function.
    literal: Option<ExprId>,
    registers: Vec<Register>,
    code: Vec<Instr>,
    fields: Vec<Sym>,
    constants: HashMap<u32, Reg>,
    /// Registers of the captured values, for the function of a literal.
    captured: Vec<Reg>,
    self_closure: Option<Reg>,
}

impl<'a, 'm> Emitter<'a, 'm> {
    /// Emits the function with the parameters `params` and the body `root`.
    pub(super) fn function(
        context: &'a mut Context<'m>,
        unit: &'a Unit,
        literal: Option<ExprId>,
        params: &[ExprId],
        root: ExprId,
        scope: ScopeId,
    ) -> Result<Draft, Diagnostic> {
        context.syms.clear();
        let mut emitter = Emitter {
            context,
            unit,
            literal,
            registers: Vec::new(),
            code: Vec::new(),
            fields: Vec::new(),
            constants: HashMap::new(),
            captured: Vec::new(),
            self_closure: None,
        };
        for &param in params {
            emitter.allocate_registers(param)?;
        }
        let first_own_register = emitter.registers.len();
        let literal_captures = literal.and_then(|literal| unit.literals.get(&literal));
        for &capture in literal_captures.iter().flat_map(|literal_captures| &literal_captures.captures) {
            emitter.allocate_registers(capture)?;
        }
        let count = emitter.registers.len();
        emitter.captured = (first_own_register..count).map(|i| Reg(i as u32)).collect();
        if let Some(literal) = literal
            && literal_captures.is_some_and(|literal_captures| literal_captures.self_is_value)
        {
            let captures = emitter.captured.clone();
            emitter.self_closure = Some(emitter.closure(emitter.context.literals[&literal], captures));
        }
        let results = leaves(emitter.context.module.ty(root))?.len();
        emitter.run(scope, root)?;
        let Emitter { registers, code, .. } = emitter;
        Ok(Draft { params: count as u32, results: results as u32, registers, code })
    }

    fn run(&mut self, scope: ScopeId, root: ExprId) -> Result<(), Diagnostic> {
        let mut tasks = vec![Task::Scope(self.cursor(scope, root, Target::Return))];
        while let Some(task) = tasks.pop() {
            match task {
                Task::Scope(cursor) => self.emit_scope(&mut tasks, cursor)?,
                Task::Otherwise { branch, cursor, join } => {
                    if let Some((id, sym)) = join {
                        tasks.push(Task::Join { jumps: vec![self.code.len()], id, sym });
                        self.code.push(Instr::Jump { to: 0 });
                    }
                    let code_position = self.code.len() as u32;
                    if let Instr::Branch { otherwise, .. } = &mut self.code[branch] {
                        *otherwise = code_position;
                    }
                    tasks.push(Task::Scope(cursor));
                }
                Task::Join { jumps: exit_jumps, id, sym } => {
                    for jump in exit_jumps {
                        self.code[jump] = Instr::Jump { to: self.code.len() as u32 };
                    }
                    self.context.syms.set(id, sym);
                }
                Task::Clause(clauses) => self.emit_clause(&mut tasks, clauses)?,
            }
        }
        Ok(())
    }

    fn cursor(&self, scope: ScopeId, root: ExprId, target: Target) -> Cursor {
        let tail = match target {
            Target::Return => self.tail(&self.unit.scopes[scope as usize].items, root),
            Target::Regs(_) => None,
        };
        Cursor { scope, next: 0, root, to: target, tail }
    }

    /// Returns the index of the item in tail position: a call or branch that produces the result and is not followed by
    /// code.
    fn tail(&self, items: &[ExprId], root: ExprId) -> Option<usize> {
        let mut result = root;
        while let Some(other) = self.forwarded_expr(result) {
            result = other;
        }
        let position = items.iter().rposition(|&id| id == result || !self.is_silent(id))?;
        let is_tail_position = match self.context.module.expr(items[position]) {
            Expr::If { .. } | Expr::Match(_) => true,
            Expr::Call(call) => match call.callee {
                Callee::Expr(callee) if matches!(self.context.module.expr(callee), Expr::Constructor(_)) => false,
                Callee::Expr(callee) => self.context.region_name(callee).is_none(),
                Callee::Op(_) => false,
            },
            _ => false,
        };
        (items[position] == result && is_tail_position).then_some(position)
    }

    /// Returns the expression whose value `id` forwards without emitting code, if any.
    fn forwarded_expr(&self, id: ExprId) -> Option<ExprId> {
        match self.context.module.expr(id) {
            Expr::Let { body, .. } => Some(*body),
            Expr::Var(_) => self.unit.bound_exprs.get(&id).copied(),
            Expr::Call(call) => match call.callee {
                Callee::Op(op) if op::get(op).properties.result == ResultMemory::Argument => call.args.first().copied(),
                Callee::Op(_) => None,
                Callee::Expr(_) => self.unit.inlined_bodies.get(&id).copied(),
            },
            _ => None,
        }
    }

    /// Returns true if an expression emits no instruction.
    fn is_silent(&self, id: ExprId) -> bool {
        match self.context.module.expr(id) {
            Expr::Var(_) | Expr::Tuple(_) | Expr::Project { .. } => true,
            Expr::Function(_) => self.unit.literals.get(&id).is_none_or(|literal| !literal.is_value),
            _ => self.forwarded_expr(id).is_some(),
        }
    }

    /// Emits a scope until it ends or a branch interrupts it.
    fn emit_scope(&mut self, tasks: &mut Vec<Task>, cursor: Cursor) -> Result<(), Diagnostic> {
        let unit = self.unit;
        let Cursor { scope, next, root, to: destination, tail } = cursor;
        let items = &unit.scopes[scope as usize].items;
        for (position, &id) in items.iter().enumerate().skip(next) {
            let is_tail = tail == Some(position);
            match self.context.module.expr(id) {
                Expr::If { cond, then, otherwise } => {
                    let cond = self.reg(*cond)?;
                    let (then_scope, else_scope) = unit.branches[&id];
                    let branch = self.code.len();
                    self.code.push(Instr::Branch { cond, otherwise: 0 });
                    let (target, join) = if is_tail {
                        (Target::Return, None)
                    } else {
                        tasks.push(Task::Scope(Cursor { scope, next: position + 1, root, to: destination, tail }));
                        // Both branches write the registers of the value, so they are allocated before the branches are
                        // emitted.
                        let sym = self.allocate_registers(id)?;
                        (Target::Regs(self.flatten(sym)?), Some((id, sym)))
                    };
                    let cursor = self.cursor(else_scope, *otherwise, target.clone());
                    tasks.push(Task::Otherwise { branch, cursor, join });
                    tasks.push(Task::Scope(self.cursor(then_scope, *then, target)));
                    return Ok(());
                }
                Expr::Match(_) => {
                    let (to_clauses, join) = if is_tail {
                        (Target::Return, None)
                    } else {
                        tasks.push(Task::Scope(Cursor { scope, next: position + 1, root, to: destination, tail }));
                        let sym = self.allocate_registers(id)?;
                        (Target::Regs(self.flatten(sym)?), Some(sym))
                    };
                    let (failed_tests, exit_jumps) = (Vec::new(), Vec::new());
                    tasks.push(Task::Clause(Clauses {
                        id,
                        next: 0,
                        failed: failed_tests,
                        jumps: exit_jumps,
                        to: to_clauses,
                        join,
                    }));
                    return Ok(());
                }
                Expr::Call(call) => {
                    self.emit_call(id, call, is_tail)?;
                    if is_tail {
                        return Ok(());
                    }
                }
                expr => self.emit_expr(id, expr)?,
            }
        }
        let values = self.values(root)?;
        match destination {
            Target::Return => self.code.push(Instr::Return { values }),
            Target::Regs(regs) => {
                self.code.extend(
                    values
                        .into_iter()
                        .zip(regs)
                        .map(|(source_reg, destination)| Instr::Move { from: source_reg, to: destination }),
                );
            }
        }
        Ok(())
    }

    /// Emits an expression that is neither a call nor an `if`.
    fn emit_expr(&mut self, id: ExprId, expr: &Expr) -> Result<(), Diagnostic> {
        match expr {
            Expr::Tuple(fields) => {
                let syms: Vec<Sym> = fields.iter().map(|&field| self.sym(field)).collect::<Result<_, _>>()?;
                let sym = self.tuple(syms);
                self.context.syms.set(id, sym);
            }
            Expr::Project { tuple, index } => match self.sym(*tuple)? {
                Sym::Tuple { first, len } if *index < len => {
                    let field = self.fields[(first + index) as usize];
                    self.context.syms.set(id, field);
                }
                _ => {
                    return Err(lowering_error(format!(
                        "expected a tuple with a field {index}, found type {}",
                        self.context.module.ty(*tuple)
                    )));
                }
            },
            Expr::Function(_) => {
                if let Some(literal) = self.unit.literals.get(&id) {
                    let closure = if literal.is_value {
                        let captures = self.captures(id)?;
                        Some(self.closure(self.context.literals[&id], captures))
                    } else {
                        None
                    };
                    self.context.syms.set(id, Sym::Literal { literal: id, closure });
                }
            }
            Expr::RefNew(value) => {
                let values = self.values(*value)?;
                let out = self.handle();
                self.code.push(Instr::RefNew { values, out });
                self.context.syms.set(id, Sym::Reg(out));
            }
            Expr::RefRead(reference) => {
                let cell = self.reg(*reference)?;
                let sym = self.allocate_registers(id)?;
                let outs = self.flatten(sym)?;
                self.code.push(Instr::RefRead { cell, outs });
            }
            Expr::RefWrite { reference, value } => {
                let cell = self.reg(*reference)?;
                let values = self.values(*value)?;
                self.code.push(Instr::RefWrite { cell, values });
                let unit_tuple = self.tuple(Vec::new());
                self.context.syms.set(id, unit_tuple);
            }
            // These expressions emit no code here, since their values are looked up at their uses.
            Expr::Var(_)
            | Expr::Let { .. }
            | Expr::Constant(_)
            | Expr::Global(_)
            | Expr::Constructor(_)
            | Expr::Call(_)
            | Expr::Match(_)
            | Expr::If { .. } => {}
        }
        Ok(())
    }

    /// Emits the tests of the next clause of a `match`, and schedules its body.
    fn emit_clause(&mut self, tasks: &mut Vec<Task>, mut state: Clauses) -> Result<(), Diagnostic> {
        let module = self.context.module;
        let unit = self.unit;
        let Expr::Match(m) = module.expr(state.id) else { return Ok(()) };
        if state.next > 0 && state.join.is_some() {
            state.jumps.push(self.code.len());
            self.code.push(Instr::Jump { to: 0 });
        }
        let code_position = self.code.len() as u32;
        for test in state.failed.drain(..) {
            if let Instr::Test { otherwise, .. } = &mut self.code[test] {
                *otherwise = code_position;
            }
        }
        let Some(clause) = m.clauses.get(state.next) else {
            // Exhaustive matches have this instruction as well: types make it unreachable, but an executor of untrusted
            // programs cannot rely on types.
            let clauses: Vec<String> = m.clauses.iter().map(|clause| format_pattern(&clause.pattern)).collect();
            self.code.push(Instr::Unmatched { clauses: clauses.join(", ") });
            if let Some(sym) = state.join {
                tasks.push(Task::Join { jumps: state.jumps, id: state.id, sym });
            }
            return Ok(());
        };
        let data = self.sym(m.data)?;
        state.failed = self.tests(&clause.pattern, data, module.ty(m.data).clone())?;
        let inner = unit.clauses[&state.id][state.next];
        let cursor = self.cursor(inner, clause.body, state.to.clone());
        state.next += 1;
        tasks.push(Task::Clause(state));
        tasks.push(Task::Scope(cursor));
        Ok(())
    }

    /// Emits the tests of a pattern and binds its variables. Returns the tests that can fail.
    fn tests(&mut self, pattern: &'m ClausePattern, data: Sym, ty: Type) -> Result<Vec<usize>, Diagnostic> {
        let mut tests = Vec::new();
        let mut worklist = vec![(pattern, data, ty)];
        while let Some((pattern, sym, ty)) = worklist.pop() {
            match (pattern, sym, &ty) {
                (ClausePattern::Any, ..) => {}
                (ClausePattern::Var(var), ..) => self.context.syms.set(*var, sym),
                (ClausePattern::Tuple(fields), Sym::Tuple { first: first_field, len }, Type::Tuple(types))
                    if len as usize == fields.len() && len as usize == types.len() =>
                {
                    for position in (0..fields.len()).rev() {
                        worklist.push((
                            &fields[position],
                            self.fields[first_field as usize + position],
                            types[position].clone(),
                        ));
                    }
                }
                (ClausePattern::Constructor { name, fields }, Sym::Reg(value), Type::Adt(adt)) => {
                    let types = &self.context.module.types;
                    let (Some((_, tag, _)), Some(def)) = (types.constructor(name), types.get(&adt.name)) else {
                        return Err(lowering_error(format!("unknown constructor {name}")));
                    };
                    tests.push(self.code.len());
                    self.code.push(Instr::Test { value, tag, otherwise: 0 });
                    if fields.iter().all(|field| *field == ClausePattern::Any) {
                        continue;
                    }
                    let field_types = &def.constructors[tag as usize].fields;
                    let field_types: Vec<Type> =
                        field_types.iter().map(|ty| substitute(ty, &def.params, &adt.args)).collect();
                    let mut outs = Vec::new();
                    for (field, ty) in fields.iter().zip(field_types) {
                        let sym = self.registers_for(&ty)?;
                        outs.extend(self.flatten(sym)?);
                        worklist.push((field, sym, ty));
                    }
                    let previous_len = worklist.len() - fields.len();
                    worklist[previous_len..].reverse();
                    self.code.push(Instr::Fields { value, outs });
                }
                _ => {
                    return Err(lowering_error(format!(
                        "expected a pattern of type {ty}, found {}",
                        format_pattern(pattern)
                    )));
                }
            }
        }
        Ok(tests)
    }

    /// Emits a call; a call in tail position ends the function.
    fn emit_call(&mut self, id: ExprId, call: &Call, is_tail: bool) -> Result<(), Diagnostic> {
        if self.forwarded_expr(id).is_some() {
            return Ok(());
        }
        let callee = match call.callee {
            Callee::Op(op) => return self.emit_op(id, op, call),
            Callee::Expr(callee) => callee,
        };
        if let Expr::Constructor(name) = self.context.module.expr(callee) {
            let Some((_, tag, _)) = self.context.module.types.constructor(name) else {
                return Err(lowering_error(format!("unknown constructor {name}")));
            };
            let mut values = Vec::with_capacity(call.args.len());
            for &arg in &call.args {
                values.extend(self.values(arg)?);
            }
            let out = self.handle();
            self.code.push(Instr::Construct { tag, values, out });
            self.context.syms.set(id, Sym::Reg(out));
            return Ok(());
        }
        let region = self.context.region_name(callee);
        let target = self.sym(callee)?;
        let mut args = Vec::with_capacity(call.args.len());
        for &arg in &call.args {
            args.extend(self.values(arg)?);
        }
        if let Some(name) = region {
            let region = self.context.region(&name)?;
            let sym = self.allocate_registers(id)?;
            let outs = self.flatten(sym)?;
            self.code.push(Instr::Region { region, inputs: args, outs, in_place: Vec::new() });
            return Ok(());
        }
        let function = match target {
            Sym::Global(global) => Some(self.context.global(global)?),
            Sym::Literal { literal, .. } => {
                args.extend(self.captures(literal)?);
                Some(self.context.literals[&literal])
            }
            _ => None,
        };
        let outs = match is_tail {
            true => Vec::new(),
            false => {
                let sym = self.allocate_registers(id)?;
                self.flatten(sym)?
            }
        };
        let instr = match (function, target, is_tail) {
            (Some(function), _, true) => Instr::TailCall { function, args },
            (Some(function), _, false) => Instr::Call { function, args, outs },
            (None, Sym::Reg(closure), true) => Instr::TailCallClosure { closure, args },
            (None, Sym::Reg(closure), false) => Instr::CallClosure { closure, args, outs },
            _ => {
                return Err(lowering_error(format!(
                    "expected a function as callee, found type {}",
                    self.context.module.ty(callee)
                )));
            }
        };
        self.code.push(instr);
        Ok(())
    }

    fn emit_op(&mut self, id: ExprId, operator: OpId, call: &Call) -> Result<(), Diagnostic> {
        let name = op::get(operator).name;
        let module = self.context.module;
        let mut args = Vec::with_capacity(call.args.len());
        for &arg in &call.args {
            args.push(match self.sym(arg)? {
                Sym::Reg(reg) => Arg::One(reg),
                sym @ Sym::Tuple { .. } => Arg::Tuple(self.flatten(sym)?),
                _ => return Err(lowering_error(format!("{name}: expected tensors as arguments, found a function"))),
            });
        }
        let sym = self.allocate_registers(id)?;
        let outs = self.flatten(sym)?;
        let origins = self.context.origins(module.nodes[id].origin);
        let is_alias = op::get(operator).properties.result == ResultMemory::View
            && matches!((&args[..], sym), ([Arg::One(_), ..], Sym::Reg(_)));
        let call = OpCall { op: name.to_owned(), attrs: call.attrs.clone(), args, outs, in_place: None, origins };
        self.code.push(if is_alias { Instr::Alias(call) } else { Instr::Kernel(call) });
        Ok(())
    }

    /// Returns the value of an expression that has been emitted or needs no code.
    fn sym(&mut self, id: ExprId) -> Result<Sym, Diagnostic> {
        let mut position = id;
        let sym = loop {
            if let Some(sym) = self.context.syms.get(position) {
                break sym;
            }
            if let Some(other) = self.forwarded_expr(position) {
                position = other;
                continue;
            }
            break match self.context.module.expr(position) {
                Expr::Constant(tensor) => {
                    let index = self.context.constant(position, tensor);
                    let ty = self.context.module.ty(position).as_tensor().cloned();
                    let next = Reg(self.registers.len() as u32);
                    let reg = *self.constants.entry(index).or_insert(next);
                    if reg == next {
                        self.registers.push(Register { ty, place: Place::Constant(index) });
                    }
                    Sym::Reg(reg)
                }
                Expr::Global(_) => Sym::Global(position),
                Expr::Function(_) if self.literal == Some(position) => {
                    Sym::Literal { literal: position, closure: self.self_closure }
                }
                Expr::Var(var) => return Err(lowering_error(format!("unbound variable %{}", var.name))),
                _ => {
                    return Err(lowering_error(format!(
                        "expression {} is used before it has a value",
                        position.index()
                    )));
                }
            };
        };
        self.context.syms.set(id, sym);
        Ok(sym)
    }

    /// Returns the single register of a non-tuple expression.
    fn reg(&mut self, id: ExprId) -> Result<Reg, Diagnostic> {
        match &self.values(id)?[..] {
            [reg] => Ok(*reg),
            _ => Err(lowering_error("expected one value, found a tuple")),
        }
    }

    fn values(&mut self, id: ExprId) -> Result<Vec<Reg>, Diagnostic> {
        let sym = self.sym(id)?;
        self.flatten(sym)
    }

    /// Returns the registers of a value, with tuples flattened.
    fn flatten(&mut self, sym: Sym) -> Result<Vec<Reg>, Diagnostic> {
        let mut regs = Vec::new();
        let mut stack = vec![sym];
        while let Some(sym) = stack.pop() {
            match sym {
                Sym::Reg(reg) => regs.push(reg),
                Sym::Tuple { first: first_field, len } => {
                    stack.extend(self.fields[first_field as usize..(first_field + len) as usize].iter().rev());
                }
                Sym::Literal { closure: Some(closure), .. } => regs.push(closure),
                Sym::Literal { closure: None, .. } => {
                    return Err(lowering_error("the closure is used before it is created"));
                }
                Sym::Global(global) => {
                    let function = self.context.global(global)?;
                    regs.push(self.closure(function, Vec::new()));
                }
            }
            if regs.len() > MAX_LEAVES || stack.len() > MAX_LEAVES {
                return Err(width_error());
            }
        }
        Ok(regs)
    }

    /// Allocates registers for the value of an expression, and records them.
    fn allocate_registers(&mut self, id: ExprId) -> Result<Sym, Diagnostic> {
        let module = self.context.module;
        let mut ty = module.ty(id);
        if *ty == Type::Unknown {
            // The type of a `let` variable may be known only from the bound value.
            ty = module.ty(self.unit.resolve(id));
        }
        let sym = self.registers_for(ty)?;
        self.context.syms.set(id, sym);
        Ok(sym)
    }

    /// Allocates registers for a value of type `ty`.
    fn registers_for(&mut self, ty: &Type) -> Result<Sym, Diagnostic> {
        let mut ty = ty;
        // Stack of the enclosing tuple types: the remaining fields, and the values of the finished fields.
        let mut pending_tuples: Vec<(&[Type], Vec<Sym>)> = Vec::new();
        let limit = self.registers.len() + MAX_LEAVES;
        Ok('all: loop {
            let mut finished_sym = match ty {
                Type::Tuple(fields) if fields.is_empty() => self.tuple(Vec::new()),
                Type::Tuple(fields) => {
                    pending_tuples.push((&fields[1..], Vec::with_capacity(fields.len())));
                    ty = &fields[0];
                    continue;
                }
                Type::Tensor(tensor) => {
                    let reg = Reg(self.registers.len() as u32);
                    self.registers.push(Register { ty: Some((**tensor).clone()), place: Place::Value });
                    Sym::Reg(reg)
                }
                Type::Func(_) | Type::Ref(_) | Type::Adt(_) => Sym::Reg(self.handle()),
                Type::Param(name) => {
                    return Err(lowering_error(format!("unbound type parameter {name}")));
                }
                Type::Unknown => {
                    return Err(lowering_error(
                        "expected a typed expression, found an untyped one: run infer_type first",
                    ));
                }
            };
            if self.registers.len() > limit {
                return Err(width_error());
            }
            loop {
                let Some((remaining, mut fields)) = pending_tuples.pop() else { break 'all finished_sym };
                fields.push(finished_sym);
                if let Some((next, remaining)) = remaining.split_first() {
                    pending_tuples.push((remaining, fields));
                    ty = next;
                    break;
                }
                finished_sym = self.tuple(fields);
            }
        })
    }

    fn tuple(&mut self, fields: Vec<Sym>) -> Sym {
        let first_field = self.fields.len() as u32;
        self.fields.extend(fields);
        Sym::Tuple { first: first_field, len: self.fields.len() as u32 - first_field }
    }

    fn handle(&mut self) -> Reg {
        self.registers.push(Register { ty: None, place: Place::Value });
        Reg(self.registers.len() as u32 - 1)
    }

    fn closure(&mut self, function: u32, captures: Vec<Reg>) -> Reg {
        let out = self.handle();
        self.code.push(Instr::Closure { function, captures, out });
        out
    }

    /// Returns the registers of a literal's captured values in this function.
    fn captures(&mut self, literal: ExprId) -> Result<Vec<Reg>, Diagnostic> {
        if self.literal == Some(literal) {
            return Ok(self.captured.clone());
        }
        let unit = self.unit;
        let mut regs = Vec::new();
        for &capture in &unit.literals[&literal].captures {
            regs.extend(self.values(capture)?);
        }
        Ok(regs)
    }
}

/// Returns the leaf types of a type.
pub(super) fn leaves(ty: &Type) -> Result<Vec<&Type>, Diagnostic> {
    let mut tensor_types = Vec::new();
    let mut stack = vec![ty];
    while let Some(ty) = stack.pop() {
        match ty {
            Type::Tuple(fields) => stack.extend(fields.iter().rev()),
            other => tensor_types.push(other),
        }
        if tensor_types.len() > MAX_LEAVES || stack.len() > MAX_LEAVES {
            return Err(width_error());
        }
    }
    Ok(tensor_types)
}

/// Formats a pattern for a message; variables are printed as `_`.
fn format_pattern(pattern: &ClausePattern) -> String {
    let list = |fields: &[ClausePattern]| fields.iter().map(format_pattern).collect::<Vec<_>>().join(", ");
    match pattern {
        ClausePattern::Any | ClausePattern::Var(_) => "_".to_owned(),
        ClausePattern::Constructor { name, fields } if fields.is_empty() => name.to_string(),
        ClausePattern::Constructor { name, fields } => format!("{name}({})", list(fields)),
        ClausePattern::Tuple(fields) => format!("({})", list(fields)),
    }
}

fn width_error() -> Diagnostic {
    lowering_error(format!("expected a tuple with at most {MAX_LEAVES} leaves, found more"))
}

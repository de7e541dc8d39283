//! Gives each function with type parameters one copy for each list of types that it is used at, and makes a function of
//! each constructor that is used as a value. What comes out has no type parameters, so that everything behind it knows
//! the type of every value.
//!
//! A copy is called after its types: `@map` at `int32` and `float32` becomes `@"map[int32, float32]"`. Linear in what comes
//! out; a function that calls itself at ever larger types has no end and is refused.

use crate::diag::{Diagnostic, codes};
use crate::ir::{Callee, Expr, ExprId, FuncType, Function, Module, Name, Origins, Type};
use crate::typing::{Solver, map_params, signature_of_call};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

/// So many copies of functions are made before the program is taken to ask for ever more.
const MAX_COPIES: usize = 10_000;

/// Copies functions until none has type parameters.
///
/// # Errors
/// A function with type parameters whose types cannot be told where it is used, or that is a closure; too many copies.
pub fn monomorphize(module: &Module) -> Result<Module, Box<Diagnostic>> {
    if !needs_copies(module) {
        return Ok(module.clone());
    }
    let mut copies = Copies { old: module, new: Module::like(module), names: BTreeMap::new(), queue: VecDeque::new() };
    for (name, &root) in &module.globals {
        let plain = module.expr(root).as_function().is_none_or(|function| function.type_params.is_empty());
        if plain {
            copies.queue.push_back((root, name.clone(), Arc::default()));
        }
    }
    while let Some((root, name, types)) = copies.queue.pop_front() {
        let function = copies.copy(root, &types)?;
        copies.new.globals.insert(name, function);
    }
    Ok(copies.new)
}

/// Whether anything reachable has type parameters.
fn needs_copies(module: &Module) -> bool {
    let live = module.live();
    module.nodes.iter().any(|(id, node)| {
        live[id]
            && match &node.expr {
                Expr::Function(function) => !function.type_params.is_empty(),
                Expr::Constructor(_) => true,
                _ => false,
            }
    })
}

/// What the type parameters of a function stand for in a copy.
type Types = Arc<HashMap<Name, Type>>;

struct Copies<'m> {
    old: &'m Module,
    new: Module,
    /// The copies that were asked for, by function and types.
    names: BTreeMap<(Name, String), Name>,
    queue: VecDeque<(ExprId, Name, Types)>,
}

impl Copies<'_> {
    /// A copy of a global function; the copies that it calls are asked for.
    fn copy(&mut self, root: ExprId, types: &Types) -> Result<ExprId, Box<Diagnostic>> {
        let old = self.old;
        let mut ids = old.post_order(root, |_, _| true);
        // The order of the arena is the order of evaluation; operands come first in both.
        ids.sort_unstable();
        let mut map: HashMap<ExprId, ExprId> = HashMap::new();
        // Variables that stand for a function with type parameters.
        let mut aliases: HashMap<ExprId, ExprId> = HashMap::new();
        for &id in &ids {
            if let &Expr::Let { var, value, .. } = old.expr(id)
                && by_use(old, value)
            {
                aliases.insert(var, value);
            }
        }
        for id in ids {
            let node = &old.nodes[id];
            let ty = at(&node.ty, types);
            let mut expr = node.expr.clone();
            match &mut expr {
                // One for each use.
                Expr::Global(_) | Expr::Constructor(_) if by_use(old, id) => continue,
                Expr::Var(_) if aliases.contains_key(&id) => continue,
                Expr::Var(var) => var.annotation = at(&var.annotation, types),
                Expr::Function(function) => {
                    if id != root && !function.type_params.is_empty() {
                        let message = "a closure has type parameters";
                        let diagnostic = Diagnostic::error(codes::types::CANNOT_INFER, message);
                        return Err(Box::new(diagnostic.help("make it a function of the module: `def @name[A](...)`")));
                    }
                    function.type_params = Box::new([]);
                    function.ret = at(&function.ret, types);
                }
                Expr::Let { var, body, .. } if aliases.contains_key(var) => {
                    map.insert(id, map[body]);
                    continue;
                }
                _ => {}
            }
            let uses = self.uses(id, types, &aliases)?;
            let mut place = 0;
            expr.map_operands(|operand| {
                let made = uses.iter().find(|(at, _)| *at == place).map(|(_, made)| *made);
                place += 1;
                made.unwrap_or_else(|| map[&operand])
            });
            let ty = match &expr {
                Expr::Function(function) if id == root => {
                    let params: Box<[Type]> = function.params.iter().map(|&p| self.new.ty(p).clone()).collect();
                    Type::func(FuncType::new(params, self.new.ty(function.body).clone()))
                }
                _ => ty,
            };
            let new = self.new.push_typed(expr, ty, node.origin);
            map.insert(id, new);
        }
        Ok(map[&root])
    }

    /// What stands, in a copy, for the operands of an expression that have type parameters: their places and values.
    fn uses(
        &mut self,
        user: ExprId,
        types: &Types,
        aliases: &HashMap<ExprId, ExprId>,
    ) -> Result<Vec<(usize, ExprId)>, Box<Diagnostic>> {
        let old = self.old;
        let mut operands = Vec::new();
        old.expr(user).for_each_operand(|operand| operands.push(operand));
        let mut uses = Vec::new();
        for (place, &operand) in operands.iter().enumerate() {
            if !by_use(old, operand) && !aliases.contains_key(&operand) {
                continue;
            }
            let mut target = operand;
            while let Some(&value) = aliases.get(&target) {
                target = value;
            }
            let unclear = || {
                let what = match old.expr(target) {
                    Expr::Global(name) => format!("@{name}"),
                    Expr::Constructor(name) => name.to_string(),
                    _ => "a function with type parameters".to_owned(),
                };
                let message = format!("{what} is used as a value, and its type parameters cannot be told there");
                let help = format!("wrap it in a function: `fn (%x: int32) {{ {what}(%x) }}`");
                Box::new(Diagnostic::error(codes::types::CANNOT_INFER, message).help(help))
            };
            let wanted = match old.expr(user) {
                Expr::Call(call) => match call.callee {
                    Callee::Expr(callee) => {
                        let result = old.ty(user);
                        let signature = signature_of_call(old, callee, &call.args, result).ok_or_else(unclear)?;
                        if place == 0 {
                            Type::Func(signature)
                        } else {
                            signature.params.get(place - 1).cloned().ok_or_else(unclear)?
                        }
                    }
                    Callee::Op(_) => return Err(unclear()),
                },
                Expr::Let { var, body, .. } if *var == operand || *body != operand => continue,
                _ => old.ty(user).clone(),
            };
            let wanted = at(&wanted, types);
            if is_generic(&wanted) || !wanted.is_complete() {
                return Err(unclear());
            }
            let is_called = place == 0 && matches!(old.expr(user), Expr::Call(_));
            uses.push((place, self.one_use(target, &wanted, is_called).ok_or_else(unclear)??));
        }
        Ok(uses)
    }

    /// A function without type parameters for one use of what has them; `None` when that is neither a global nor a
    /// constructor.
    fn one_use(&mut self, target: ExprId, wanted: &Type, is_called: bool) -> Option<Result<ExprId, Box<Diagnostic>>> {
        let node = &self.old.nodes[target];
        match &node.expr {
            Expr::Constructor(name) if is_called => {
                let expr = Expr::Constructor(name.clone());
                Some(Ok(self.new.push_typed(expr, node.ty.clone(), node.origin)))
            }
            Expr::Constructor(name) => {
                let Type::Func(func) = wanted else { return None };
                let constructor = self.new.push_typed(Expr::Constructor(name.clone()), node.ty.clone(), node.origin);
                let params: Vec<ExprId> = func
                    .params
                    .iter()
                    .map(|ty| self.new.push_typed(Expr::var("x", ty.clone()), ty.clone(), Origins::none()))
                    .collect();
                let call = Expr::call(constructor, params.iter().copied());
                let body = self.new.push_typed(call, func.ret.clone(), node.origin);
                let function = Function::new(params, body, func.ret.clone(), crate::ir::Attrs::none());
                Some(Ok(self.new.push_typed(Expr::Function(Box::new(function)), wanted.clone(), node.origin)))
            }
            Expr::Global(name) => {
                let Type::Func(generic) = &node.ty else { return None };
                let mut solver = Solver::default();
                let holes = solver.holes(&generic.type_params);
                let open = |ty: &Type| crate::typing::substitute(ty, &generic.type_params, &holes);
                let params: Box<[Type]> = generic.params.iter().map(open).collect();
                let open = Type::func(FuncType::new(params, open(&generic.ret)));
                solver.join(&open, wanted)?;
                let args: Vec<Type> = holes.iter().map(|hole| solver.finish(hole)).collect();
                if !args.iter().all(Type::is_complete) {
                    return None;
                }
                let name = match self.name_of_copy(name, &generic.type_params, &args) {
                    Ok(name) => name,
                    Err(error) => return Some(Err(error)),
                };
                Some(Ok(self.new.push_typed(Expr::Global(name), wanted.clone(), node.origin)))
            }
            _ => None,
        }
    }

    /// The name of the copy of a global function at some types, which is asked for when it is new.
    fn name_of_copy(&mut self, name: &Name, params: &[Name], args: &[Type]) -> Result<Name, Box<Diagnostic>> {
        let list: Vec<String> = args.iter().map(Type::to_string).collect();
        let key = (name.clone(), list.join(", "));
        if let Some(copy) = self.names.get(&key) {
            return Ok(copy.clone());
        }
        if self.names.len() >= MAX_COPIES || !args.iter().all(Type::is_within_limits) {
            let message = format!("@{name} is used at more types than there is an end to: the last is {}", key.1);
            let message = if message.len() > 300 { format!("@{name} is used at ever larger types") } else { message };
            return Err(Box::new(Diagnostic::error(codes::types::TYPE_TOO_LARGE, message)));
        }
        let mut copy: Name = format!("{name}[{}]", key.1).into();
        while self.old.globals.contains_key(&copy) {
            copy = format!("{copy}_").into();
        }
        let types = params.iter().cloned().zip(args.iter().cloned()).collect();
        if let Some(&root) = self.old.globals.get(name) {
            self.queue.push_back((root, copy.clone(), Arc::new(types)));
        }
        self.names.insert(key, copy.clone());
        Ok(copy)
    }
}

/// Whether each use of an expression gets something of its own.
fn by_use(module: &Module, id: ExprId) -> bool {
    is_generic(module.ty(id)) || matches!(module.expr(id), Expr::Constructor(_))
}

fn is_generic(ty: &Type) -> bool {
    matches!(ty, Type::Func(func) if !func.type_params.is_empty())
}

/// A type in a copy.
fn at(ty: &Type, types: &Types) -> Type {
    if types.is_empty() {
        return ty.clone();
    }
    map_params(ty, &mut |name| types.get(name).cloned())
}

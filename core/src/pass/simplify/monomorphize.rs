//! Specializes each function with type parameters for each list of types at which it is used, and turns each
//! constructor that is used as a value into a function. The result has no type parameters, so later passes know the
//! type of every value.
//!
//! The specialization of a global is named after its types: `@map` at `int32` and `float32` becomes
//! `@"map[int32, float32]"`. The specialization of a closure replaces the closure and captures the same values:
//! `let %f = fn [A](..) {..}` used at two types becomes two closures; a closure that calls itself is wrapped in a
//! `let`. The time is linear in the size of the result. A function that calls itself at ever larger types would need
//! infinitely many specializations, and is an error.

use byoc_ir::cancel::{self, Ticks};
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::ir::{Callee, Expr, ExprId, FuncType, Function, IndexVec, Module, Name, Origins, ScopeId, Scopes, Type};
use byoc_ir::tensor::memory::{self, Charge};
use byoc_ir::typing::{Solver, map_params, signature_of_call};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

/// Maximum number of specializations; a module that needs more is assumed to need infinitely many.
const MAX_COPIES: usize = 10_000;

/// Maximum nesting depth of closure specializations under construction.
const MAX_DEPTH: usize = 500;

/// Specializes functions until none has type parameters.
///
/// # Errors
/// If the types of a function's type parameters cannot be inferred at a use, too many specializations are needed, their
/// names and types exceed the memory limit, or the work is cancelled.
pub fn monomorphize(module: &Module) -> Result<Module, Box<Diagnostic>> {
    if !needs_copies(module) {
        return Ok(module.clone());
    }
    let mut copies = Copies {
        source: module,
        new: Module::like(module),
        parts: parts(module),
        aliases: aliases(module),
        names: BTreeMap::new(),
        closures: 0,
        queue: VecDeque::new(),
        ticks: Ticks::every(1 << 8),
        charge: Charge::default(),
    };
    for (name, &root) in &module.globals {
        let is_monomorphic = module.expr(root).as_function().is_none_or(|function| function.type_params.is_empty());
        if is_monomorphic {
            copies.queue.push_back((root, name.clone(), Arc::default()));
        }
    }
    while let Some((root, name, types)) = copies.queue.pop_front() {
        let function = copies.copy(root, &types)?;
        copies.new.globals.insert(name, function);
    }
    Ok(copies.new)
}

/// Returns true if any live expression has type parameters.
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

/// Returns, for each function that is copied as a whole, the expressions that are copied with it. Such a function is a
/// global, or a closure with type parameters; closures without type parameters belong to the function around them. The
/// expressions are in the order of the arena. The key `None` holds the expressions that globals share.
fn parts(module: &Module) -> HashMap<Option<ExprId>, Vec<ExprId>> {
    let scopes = Scopes::of_module(module);
    let mut owner: IndexVec<ScopeId, Option<ExprId>> = IndexVec::filled(None, scopes.tree.len());
    // The parent of a scope has a smaller id.
    for (id, scope) in scopes.tree.iter() {
        let is_copied =
            |opener: &ExprId| is_generic_function(module, *opener) || scopes.scope_of[*opener] == Some(Scopes::root());
        owner[id] = scope.opener.filter(is_copied).or(if id == Scopes::root() { None } else { owner[scope.parent] });
    }
    let mut parts: HashMap<Option<ExprId>, Vec<ExprId>> = HashMap::new();
    for (id, _) in module.nodes.iter() {
        if let Some(scope) = scopes.scope_of[id] {
            parts.entry(owner[scope]).or_default().push(id);
        }
    }
    parts
}

/// Let-bound variables whose value is a function with type parameters.
#[derive(Default)]
struct Aliases {
    values: HashMap<ExprId, ExprId>,
    /// Name of the first variable bound to each value.
    names: HashMap<ExprId, Name>,
}

fn aliases(module: &Module) -> Aliases {
    let mut aliases = Aliases::default();
    for (_, node) in module.nodes.iter() {
        if let Expr::Let { var, value, .. } = node.expr
            && is_copied_by_use(module, value)
        {
            aliases.values.insert(var, value);
            if let Expr::Var(variable) = module.expr(var) {
                aliases.names.entry(value).or_insert_with(|| variable.name.clone());
            }
        }
    }
    aliases
}

fn new_copy(function: ExprId, types: Types, key: String) -> Copy {
    Copy { function, types, key, part_count: 0, map: HashMap::new(), closures: HashMap::new(), own_var: None }
}

/// Types substituted for the type parameters in a specialization of a function.
type Types = Arc<HashMap<Name, Type>>;

struct Copies<'m> {
    source: &'m Module,
    new: Module,
    parts: HashMap<Option<ExprId>, Vec<ExprId>>,
    aliases: Aliases,
    /// Names of the requested specializations of globals, by function and types.
    names: BTreeMap<(Name, String), Name>,
    /// Number of closure specializations created so far.
    closures: usize,
    queue: VecDeque<(ExprId, Name, Types)>,
    ticks: Ticks,
    /// Counts the names of the specializations, which contain types, as in use.
    charge: Charge,
}

/// Specialization under construction. At the bottom of the stack is the specialization of a global; each further entry
/// is the specialization of a closure that is used in the entries below it.
struct Copy {
    function: ExprId,
    types: Types,
    /// Types substituted for the type parameters of the specialized function, as text.
    key: String,
    /// Number of parts of the function that have been copied.
    part_count: usize,
    map: HashMap<ExprId, ExprId>,
    /// Completed specializations of the nested closures, by function and types.
    closures: HashMap<(ExprId, String), ExprId>,
    /// Variable through which the specialization calls itself; `None` if it is not recursive.
    own_var: Option<ExprId>,
}

/// Obstacle to copying an expression: a missing specialization, or an error.
enum CopyError {
    /// The specialization of a closure for the listed types must be created first.
    Closure(ExprId, Vec<Type>),
    Fault(Box<Diagnostic>),
}

impl Copies<'_> {
    /// Copies a global function, and requests specializations of the global functions that it uses.
    fn copy(&mut self, root: ExprId, types: &Types) -> Result<ExprId, Box<Diagnostic>> {
        let source = self.source;
        let mut stack = vec![new_copy(root, types.clone(), String::new())];
        loop {
            if self.ticks.is_requested() {
                self.check_budget()?;
            }
            let top = stack.len() - 1;
            let function = stack[top].function;
            let next_part = self.parts.get(&Some(function)).and_then(|ids| ids.get(stack[top].part_count)).copied();
            let id = next_part.unwrap_or(function);
            match self.copy_expr(&mut stack, id, next_part.is_none()) {
                Ok(()) if next_part.is_some() => stack[top].part_count += 1,
                Ok(()) => {
                    let copy_id = stack[top].map[&function];
                    let Some(Copy { key, .. }) = stack.pop().filter(|_| top > 0) else { return Ok(copy_id) };
                    // A closure specialized inside another specialization of the same closure may use values that only
                    // the enclosing specialization has.
                    let owner =
                        stack.iter().rposition(|copy| copy.function == function || self.is_part(copy, function));
                    stack[owner.unwrap_or(0)].closures.insert((function, key), copy_id);
                }
                Err(CopyError::Closure(function, args)) => {
                    self.closures += 1;
                    let key = list(&args);
                    self.count_key(&key)?;
                    if stack.len() >= MAX_DEPTH
                        || self.closures + self.names.len() >= MAX_COPIES
                        || !args.iter().all(Type::is_within_limits)
                    {
                        return Err(too_many_copies("a closure", &key));
                    }
                    let owner = stack.iter().rfind(|copy| self.is_part(copy, function));
                    let mut types = owner.map_or_else(HashMap::new, |copy| HashMap::clone(&copy.types));
                    let params = source.expr(function).as_function().map(|f| f.type_params.clone()).unwrap_or_default();
                    types.extend(params.iter().cloned().zip(args));
                    stack.push(new_copy(function, Arc::new(types), key));
                }
                Err(CopyError::Fault(fault)) => return Err(fault),
            }
        }
    }

    /// Counts the types of a new specialization, as text, as in use: once for each of its copies in names and keys.
    fn count_key(&mut self, key: &str) -> Result<(), Box<Diagnostic>> {
        const COPIES: usize = 3;
        self.check_budget()?;
        Ok(self.charge.grow(COPIES * key.len()).map_err(Diagnostic::from)?)
    }

    fn check_budget(&self) -> Result<(), Box<Diagnostic>> {
        cancel::check(|| "functions with type parameters were being specialized".to_owned())?;
        Ok(memory::check().map_err(Diagnostic::from)?)
    }

    /// Copies the operands of `user` that are leaves shared by globals.
    fn copy_shared_leaves(&mut self, stack: &mut [Copy], user: ExprId) {
        let source = self.source;
        source.expr(user).for_each_operand(|operand| {
            let is_leaf = source.expr(operand).is_closed_leaf() && !is_copied_by_use(source, operand);
            if is_leaf && !stack.iter().any(|copy| copy.map.contains_key(&operand)) {
                let node = source.nodes[operand].clone();
                stack[0].map.insert(operand, self.new.push_typed(node.expr, node.ty, node.origin));
            }
        });
    }

    /// Returns true if an expression belongs to the function that `copy` specializes.
    fn is_part(&self, copy: &Copy, id: ExprId) -> bool {
        self.parts.get(&Some(copy.function)).is_some_and(|ids| ids.binary_search(&id).is_ok())
    }

    /// Copies one expression of the topmost specialization: a part of the function, or the function itself if
    /// `is_whole` is true.
    fn copy_expr(&mut self, stack: &mut [Copy], id: ExprId, is_whole: bool) -> Result<(), CopyError> {
        let source = self.source;
        let top = stack.len() - 1;
        self.copy_shared_leaves(stack, id);
        let types = stack[top].types.clone();
        let node = &source.nodes[id];
        let ty = substitute(&node.ty, &types);
        let mut expr = node.expr.clone();
        match &mut expr {
            // Generic values and constructors are copied separately for each use.
            Expr::Global(_) | Expr::Constructor(_) if is_copied_by_use(source, id) => return Ok(()),
            Expr::Function(function) if !is_whole && !function.type_params.is_empty() => return Ok(()),
            Expr::Var(_) if self.aliases.values.contains_key(&id) => return Ok(()),
            Expr::Var(var) => var.annotation = substitute(&var.annotation, &types),
            Expr::Function(function) => {
                function.type_params = Box::new([]);
                function.ret = substitute(&function.ret, &types);
            }
            Expr::Let { var, body, .. } if self.aliases.values.contains_key(var) => {
                let use_copy = match self.uses(stack, id)?.first() {
                    Some(&(_, use_copy)) => use_copy,
                    None => find_copy(stack, *body),
                };
                stack[top].map.insert(id, use_copy);
                return Ok(());
            }
            _ => {}
        }
        let uses = self.uses(stack, id)?;
        let mut index = 0;
        expr.map_operands(|operand| {
            let use_copy = uses.iter().find(|(i, _)| *i == index).map(|(_, use_copy)| *use_copy);
            index += 1;
            use_copy.unwrap_or_else(|| find_copy(stack, operand))
        });
        let ty = match &expr {
            Expr::Function(function) if is_whole => {
                let params: Box<[Type]> = function.params.iter().map(|&p| self.new.ty(p).clone()).collect();
                Type::func(FuncType::new(params, self.new.ty(function.body).clone()))
            }
            _ => ty,
        };
        let mut copied = self.new.push_typed(expr, ty.clone(), node.origin);
        if let Some(var) = stack[top].own_var.filter(|_| is_whole) {
            self.new.nodes[var].ty = ty.clone();
            if let Expr::Var(own_var) = &mut self.new.nodes[var].expr {
                own_var.annotation = ty.clone();
            }
            copied = self.new.push_typed(Expr::Let { var, value: copied, body: var }, ty, node.origin);
        }
        stack[top].map.insert(id, copied);
        Ok(())
    }

    /// Builds an instance for each operand of `user` that has type parameters. Returns the positions of these operands
    /// and their instances.
    fn uses(&mut self, stack: &mut [Copy], user: ExprId) -> Result<Vec<(usize, ExprId)>, CopyError> {
        let source = self.source;
        let types = stack[stack.len() - 1].types.clone();
        let mut operands = Vec::new();
        source.expr(user).for_each_operand(|operand| operands.push(operand));
        let mut uses = Vec::new();
        for (index, &operand) in operands.iter().enumerate() {
            if !is_copied_by_use(source, operand) && !self.aliases.values.contains_key(&operand) {
                continue;
            }
            let mut target = operand;
            while let Some(&value) = self.aliases.values.get(&target) {
                target = value;
            }
            let ambiguous_parameters = || CopyError::Fault(ambiguous_parameters(source, target));
            let expected = match source.expr(user) {
                Expr::Call(call) => match call.callee {
                    Callee::Expr(callee) => {
                        let result = source.ty(user);
                        let signature =
                            signature_of_call(source, callee, &call.args, result).ok_or_else(ambiguous_parameters)?;
                        if index == 0 {
                            Type::Func(signature)
                        } else {
                            signature.params.get(index - 1).cloned().ok_or_else(ambiguous_parameters)?
                        }
                    }
                    Callee::Op(_) => return Err(ambiguous_parameters()),
                },
                Expr::Let { body, .. } if *body != operand || index != 2 => continue,
                Expr::Function(function) => function.ret.clone(),
                Expr::Tuple(_) => match source.ty(user) {
                    Type::Tuple(fields) => fields.get(index).cloned().ok_or_else(ambiguous_parameters)?,
                    _ => return Err(ambiguous_parameters()),
                },
                _ => source.ty(user).clone(),
            };
            let expected = substitute(&expected, &types);
            if is_generic(&expected) || !expected.is_complete() {
                return Err(ambiguous_parameters());
            }
            let is_called = index == 0 && matches!(source.expr(user), Expr::Call(_));
            let copy_id = self.resolve_use(stack, target, &expected, is_called)?.ok_or_else(ambiguous_parameters)?;
            uses.push((index, copy_id));
        }
        Ok(uses)
    }

    /// Builds an instance without type parameters for one use of a generic function. Returns `None` if the function is
    /// not a literal, global or constructor, or if its types cannot be inferred.
    fn resolve_use(
        &mut self,
        stack: &mut [Copy],
        target: ExprId,
        expected: &Type,
        is_called: bool,
    ) -> Result<Option<ExprId>, CopyError> {
        let node = &self.source.nodes[target];
        Ok(match &node.expr {
            Expr::Constructor(name) if is_called => {
                let expr = Expr::Constructor(name.clone());
                Some(self.new.push_typed(expr, node.ty.clone(), node.origin))
            }
            Expr::Constructor(name) => {
                let Type::Func(func) = expected else { return Ok(None) };
                let constructor = self.new.push_typed(Expr::Constructor(name.clone()), node.ty.clone(), node.origin);
                let params: Vec<ExprId> = func
                    .params
                    .iter()
                    .map(|ty| self.new.push_typed(Expr::var("x", ty.clone()), ty.clone(), Origins::none()))
                    .collect();
                let call = Expr::call(constructor, params.iter().copied());
                let body = self.new.push_typed(call, func.ret.clone(), node.origin);
                let function = Function::new(params, body, func.ret.clone(), byoc_ir::ir::Attrs::none());
                Some(self.new.push_typed(Expr::Function(Box::new(function)), expected.clone(), node.origin))
            }
            Expr::Global(name) => {
                let Some(args) = args_of_use(&node.ty, expected) else { return Ok(None) };
                let Type::Func(generic) = &node.ty else { return Ok(None) };
                let name = self.name_of_copy(name, &generic.type_params, &args).map_err(CopyError::Fault)?;
                Some(self.new.push_typed(Expr::Global(name), expected.clone(), node.origin))
            }
            Expr::Function(_) => {
                // Type parameters of enclosing functions are replaced as in the specialization to which the closure
                // belongs.
                let owner = stack.iter().rfind(|copy| self.is_part(copy, target));
                let ty = owner.map_or_else(|| node.ty.clone(), |copy| substitute(&node.ty, &copy.types));
                let Some(args) = args_of_use(&ty, expected) else { return Ok(None) };
                let key = list(&args);
                let key = (target, key);
                let depth = stack.len();
                for level in (0..depth).rev() {
                    let copy = &stack[level];
                    if let Some(&copy_id) = copy.closures.get(&key) {
                        return Ok(Some(copy_id));
                    }
                    if copy.function == target && copy.key == key.1 {
                        let name = self.aliases.names.get(&target).cloned().unwrap_or_else(|| "f".into());
                        let var = copy.own_var.unwrap_or_else(|| {
                            self.new.push_typed(Expr::var(name, expected.clone()), expected.clone(), Origins::none())
                        });
                        stack[level].own_var = Some(var);
                        return Ok(Some(var));
                    }
                    // In enclosing specializations, the same literal is a different closure.
                    if self.is_part(&stack[level], target) {
                        break;
                    }
                }
                return Err(CopyError::Closure(target, args));
            }
            _ => None,
        })
    }

    /// Returns the name of the specialization of a global function for the types `args`, and requests the
    /// specialization if it is new.
    fn name_of_copy(&mut self, name: &Name, params: &[Name], args: &[Type]) -> Result<Name, Box<Diagnostic>> {
        let key = (name.clone(), list(args));
        if let Some(copy) = self.names.get(&key) {
            return Ok(copy.clone());
        }
        if self.closures + self.names.len() >= MAX_COPIES || !args.iter().all(Type::is_within_limits) {
            return Err(too_many_copies(&format!("@{name}"), &key.1));
        }
        self.count_key(&key.1)?;
        let mut copy: Name = format!("{name}[{}]", key.1).into();
        while self.source.globals.contains_key(&copy) {
            copy = format!("{copy}_").into();
        }
        let types = params.iter().cloned().zip(args.iter().cloned()).collect();
        if let Some(&root) = self.source.globals.get(name) {
            self.queue.push_back((root, copy.clone(), Arc::new(types)));
        }
        self.names.insert(key, copy.clone());
        Ok(copy)
    }
}

/// Looks up the copy of an expression in the specializations on the stack, innermost first.
fn find_copy(stack: &[Copy], id: ExprId) -> ExprId {
    let copy_id = stack.iter().rev().find_map(|copy| copy.map.get(&id));
    *copy_id.unwrap_or_else(|| unreachable!("{id:?} is copied before its users"))
}

/// Infers the type parameters of a function from the type `expected` of one use; `None` if that type does not determine
/// them.
fn args_of_use(function: &Type, expected: &Type) -> Option<Vec<Type>> {
    let Type::Func(generic) = function else { return None };
    let mut solver = Solver::default();
    let holes = solver.holes(&generic.type_params);
    let instantiate = |ty: &Type| byoc_ir::typing::substitute(ty, &generic.type_params, &holes);
    let params: Box<[Type]> = generic.params.iter().map(instantiate).collect();
    let instance = Type::func(FuncType::new(params, instantiate(&generic.ret)));
    solver.join(&instance, expected)?;
    let args: Vec<Type> = holes.iter().map(|hole| solver.finish(hole)).collect();
    args.iter().all(Type::is_complete).then_some(args)
}

fn list(args: &[Type]) -> String {
    let list: Vec<String> = args.iter().map(Type::to_string).collect();
    list.join(", ")
}

fn too_many_copies(subject: &str, types: &str) -> Box<Diagnostic> {
    let message = format!("{subject} is used at too many types; the last is {types}");
    let message = if message.len() > 300 { format!("{subject} is used at ever larger types") } else { message };
    Box::new(Diagnostic::error(codes::types::TYPE_TOO_LARGE, message))
}

/// Returns the diagnostic for a use whose type parameters cannot be inferred.
fn ambiguous_parameters(module: &Module, target: ExprId) -> Box<Diagnostic> {
    let subject = match module.expr(target) {
        Expr::Global(name) => format!("@{name}"),
        Expr::Constructor(name) => name.to_string(),
        Expr::Var(var) => {
            let message = format!("%{} has type parameters, but the function is known only at run time", var.name);
            let help = "declare one parameter per type, each without type parameters, such as `fn (int32) -> int32`";
            return Box::new(Diagnostic::error(codes::types::CANNOT_INFER, message).help(help));
        }
        Expr::Function(_) => "the closure".to_owned(),
        _ => "a value".to_owned(),
    };
    let message = format!("{subject} has type parameters that cannot be inferred at this use");
    let help = match module.expr(target) {
        Expr::Global(_) | Expr::Constructor(_) => {
            format!("wrap {subject} in a function with explicit types: `fn (%x: int32) {{ {subject}(%x) }}`")
        }
        _ => "bind the function with a let, and call that variable".to_owned(),
    };
    Box::new(Diagnostic::error(codes::types::CANNOT_INFER, message).help(help))
}

/// Returns true if each use of an expression is copied separately.
fn is_copied_by_use(module: &Module, id: ExprId) -> bool {
    is_generic(module.ty(id)) || matches!(module.expr(id), Expr::Constructor(_))
}

fn is_generic_function(module: &Module, id: ExprId) -> bool {
    module.expr(id).as_function().is_some_and(|function| !function.type_params.is_empty())
}

fn is_generic(ty: &Type) -> bool {
    matches!(ty, Type::Func(func) if !func.type_params.is_empty())
}

/// Substitutes the types of a specialization for the type parameters in a type.
fn substitute(ty: &Type, types: &Types) -> Type {
    if types.is_empty() {
        return ty.clone();
    }
    map_params(ty, &mut |name| types.get(name).cloned())
}

//! Assignment of expressions to scopes.
//!
//! A global function is a tree of scopes: its body, the branches of each `if`, the clauses of each `match`, and the
//! body of each non-inlined function literal. An expression is evaluated in the scope that is the least common ancestor
//! of its uses, just as the text declares a shared `%0` before the first `if` that uses it. A scope evaluates its
//! expressions in textual order: operands before users, left to right, the value of a `let` before its body.
//!
//! A literal whose only use is as the callee of one call is inlined: its parameters are names for the arguments.
//! (Composite functions are inlined this way when they run on the host.) Every remaining literal becomes a separate
//! function, which captures the values that its body uses from enclosing scopes.

use byoc_ir::ir::{Callee, Expr, ExprId, IndexVec, Module};
use std::collections::HashMap;

/// Index of a scope in a [`Unit`].
pub(super) type ScopeId = u32;

/// Analysis results for an expression within a unit.
#[derive(Clone, Copy, Default)]
struct Facts {
    /// Unit for which the facts were computed; they are stale in a different unit.
    unit: u32,
    uses: u32,
    /// Number of uses as the callee of a call.
    call_count: u32,
    scope: Option<ScopeId>,
    /// True if the expression already has a position in the evaluation order.
    ordered: bool,
}

/// Analyzer with scratch buffers that are sized to the module and shared by all units.
pub(super) struct Analyzer<'m> {
    module: &'m Module,
    facts: IndexVec<ExprId, Facts>,
    unit: u32,
}

/// Lexical scope of a unit.
pub(super) struct Scope {
    parent: ScopeId,
    /// Skip pointer to an ancestor, for finding common ancestors in logarithmic time.
    skip: ScopeId,
    depth: u32,
    /// Scope of the innermost enclosing function; the scope itself for the body of a function.
    pub function: ScopeId,
    /// Expressions evaluated in this scope, in order.
    pub items: Vec<ExprId>,
}

/// Function literal that becomes a separate function.
pub(super) struct Literal {
    /// Scope of the body.
    pub scope: ScopeId,
    /// Values captured from enclosing scopes.
    pub captures: Vec<ExprId>,
    /// True if the closure is needed as a value outside its body: for any use other than a call in the enclosing
    /// function.
    pub is_value: bool,
    /// True if the closure is used as a value inside its own body.
    pub self_is_value: bool,
}

/// Global function with its nested functions.
pub(super) struct Unit {
    /// Scopes; scope 0 is the body.
    pub scopes: Vec<Scope>,
    /// Scopes of the branches of each `if`.
    pub branches: HashMap<ExprId, (ScopeId, ScopeId)>,
    /// Scopes of the clauses of each `match`.
    pub clauses: HashMap<ExprId, Vec<ScopeId>>,
    /// Function literals that are not inlined.
    pub literals: HashMap<ExprId, Literal>,
    /// Keys of `literals`, outermost first.
    pub literal_order: Vec<ExprId>,
    /// Expression that each variable is bound to: the value of a `let`, or an argument of an inlined call.
    pub bound_exprs: HashMap<ExprId, ExprId>,
    /// Body that replaces each inlined call.
    pub inlined_bodies: HashMap<ExprId, ExprId>,
}

impl Unit {
    /// Returns the expression that a chain of variables refers to.
    pub(super) fn resolve(&self, mut id: ExprId) -> ExprId {
        while let Some(&value) = self.bound_exprs.get(&id) {
            id = value;
        }
        id
    }
}

impl<'m> Analyzer<'m> {
    pub(super) fn new(module: &'m Module) -> Analyzer<'m> {
        Analyzer { module, facts: IndexVec::filled(Facts::default(), module.nodes.len()), unit: 0 }
    }

    /// Analyzes a global function and its nested functions.
    pub(super) fn analyze(&mut self, params: &[ExprId], body: ExprId) -> Unit {
        self.unit += 1;
        self.count_uses(body);
        let mut unit = Unit {
            scopes: vec![Scope { parent: 0, skip: 0, depth: 0, function: 0, items: Vec::new() }],
            branches: HashMap::new(),
            clauses: HashMap::new(),
            literals: HashMap::new(),
            literal_order: Vec::new(),
            bound_exprs: HashMap::new(),
            inlined_bodies: HashMap::new(),
        };
        let order = self.order(body, &mut unit);
        // Parameters belong to the outermost scope, wherever they are used.
        for &param in params {
            self.record_use(param, 0, &unit.scopes);
        }
        self.place_scopes(body, &order, &mut unit);
        for &id in &order {
            let scope = self.scope(id);
            unit.scopes[scope as usize].items.push(id);
        }
        self.capture_values(body, &order, &mut unit);
        unit
    }

    fn facts(&mut self, id: ExprId) -> &mut Facts {
        let facts = &mut self.facts[id];
        if facts.unit != self.unit {
            *facts = Facts { unit: self.unit, ..Facts::default() };
        }
        facts
    }

    fn scope(&mut self, id: ExprId) -> ScopeId {
        self.facts(id).scope.expect("users are placed before their operands")
    }

    fn count_uses(&mut self, body: ExprId) {
        self.facts(body).uses = 1;
        let mut stack = vec![body];
        while let Some(id) = stack.pop() {
            let expr = self.module.expr(id);
            if let Expr::Call(call) = expr
                && let Callee::Expr(callee) = call.callee
            {
                self.facts(callee).call_count += 1;
            }
            expr.for_each_operand(|operand| {
                let facts = self.facts(operand);
                facts.uses += 1;
                if facts.uses == 1 {
                    stack.push(operand);
                }
            });
        }
    }

    /// Returns true if a literal is called once and has no other use.
    fn is_inlined(&mut self, id: ExprId) -> bool {
        let Facts { uses, call_count, .. } = *self.facts(id);
        matches!(self.module.expr(id), Expr::Function(_)) && uses == 1 && call_count == 1
    }

    /// Returns the expressions to evaluate, in textual order. Constants and globals are excluded, since they are
    /// available everywhere.
    fn order(&mut self, body: ExprId, unit: &mut Unit) -> Vec<ExprId> {
        let module = self.module;
        let mut order = Vec::new();
        let mut stack = vec![(body, false)];
        while let Some((id, is_leaving)) = stack.pop() {
            let expr = module.expr(id);
            if is_leaving {
                order.push(id);
                continue;
            }
            let ordered = std::mem::replace(&mut self.facts(id).ordered, true);
            if ordered || expr.is_closed_leaf() {
                continue;
            }
            stack.push((id, true));
            let first_operand = stack.len();
            match expr {
                Expr::Call(call) => {
                    let callee = match call.callee {
                        Callee::Expr(callee) => Some(callee),
                        Callee::Op(_) => None,
                    };
                    let inlined_callee = callee.filter(|&callee| self.is_inlined(callee));
                    if let Some(literal) = inlined_callee
                        && let Expr::Function(function) = module.expr(literal)
                    {
                        unit.bound_exprs.extend(function.params.iter().copied().zip(call.args.iter().copied()));
                        unit.inlined_bodies.insert(id, function.body);
                        stack.extend(call.args.iter().map(|&arg| (arg, false)));
                        stack.push((literal, false));
                    } else {
                        expr.for_each_operand(|operand| stack.push((operand, false)));
                    }
                }
                Expr::Let { var, value, .. } => {
                    unit.bound_exprs.insert(*var, *value);
                    expr.for_each_operand(|operand| stack.push((operand, false)));
                }
                _ => expr.for_each_operand(|operand| stack.push((operand, false))),
            }
            stack[first_operand..].reverse();
        }
        order
    }

    /// Assigns a scope to each expression, users before operands.
    fn place_scopes(&mut self, body: ExprId, order: &[ExprId], unit: &mut Unit) {
        let module = self.module;
        self.record_use(body, 0, &unit.scopes);
        for &id in order.iter().rev() {
            let scope = self.scope(id);
            match module.expr(id) {
                Expr::If { cond, then: then_branch, otherwise: else_branch } => {
                    let function = unit.scopes[scope as usize].function;
                    let branches = (
                        open_scope(&mut unit.scopes, scope, Some(function)),
                        open_scope(&mut unit.scopes, scope, Some(function)),
                    );
                    unit.branches.insert(id, branches);
                    self.record_use(*cond, scope, &unit.scopes);
                    self.record_use(*then_branch, branches.0, &unit.scopes);
                    self.record_use(*else_branch, branches.1, &unit.scopes);
                }
                Expr::Match(m) => {
                    let function = unit.scopes[scope as usize].function;
                    self.record_use(m.data, scope, &unit.scopes);
                    let mut clauses = Vec::with_capacity(m.clauses.len());
                    for clause in &m.clauses {
                        let inner = open_scope(&mut unit.scopes, scope, Some(function));
                        clause.pattern.for_each_var(&mut |var| self.record_use(var, inner, &unit.scopes));
                        self.record_use(clause.body, inner, &unit.scopes);
                        clauses.push(inner);
                    }
                    unit.clauses.insert(id, clauses);
                }
                Expr::Function(function) => {
                    let inner = if self.is_inlined(id) {
                        scope
                    } else {
                        let inner = open_scope(&mut unit.scopes, scope, None);
                        let literal =
                            Literal { scope: inner, captures: Vec::new(), is_value: false, self_is_value: false };
                        unit.literals.insert(id, literal);
                        unit.literal_order.push(id);
                        inner
                    };
                    for &param in &function.params {
                        self.record_use(param, inner, &unit.scopes);
                    }
                    self.record_use(function.body, inner, &unit.scopes);
                }
                expr => expr.for_each_operand(|operand| self.record_use(operand, scope, &unit.scopes)),
            }
        }
    }

    fn record_use(&mut self, id: ExprId, scope: ScopeId, scopes: &[Scope]) {
        let facts = self.facts(id);
        facts.scope = Some(match facts.scope {
            Some(earlier_scope) => common_ancestor(scopes, earlier_scope, scope),
            None => scope,
        });
    }

    /// Finds the values that each literal captures, and the closures that are used as values.
    fn capture_values(&mut self, body: ExprId, order: &[ExprId], unit: &mut Unit) {
        let literal_of: HashMap<ScopeId, ExprId> =
            unit.literals.iter().map(|(&id, literal)| (literal.scope, id)).collect();
        if literal_of.is_empty() {
            return;
        }
        let mut captured_ids = std::collections::HashSet::new();
        let mut uses: Vec<(ExprId, ScopeId, bool)> = vec![(body, 0, false)];
        for &id in order {
            let scope = self.scope(id);
            match self.module.expr(id) {
                Expr::If { cond, then: then_branch, otherwise: else_branch } => {
                    let (first_operand, else_scope) = unit.branches[&id];
                    uses.extend([
                        (*cond, scope, false),
                        (*then_branch, first_operand, false),
                        (*else_branch, else_scope, false),
                    ]);
                }
                Expr::Match(m) => {
                    uses.push((m.data, scope, false));
                    let inner = unit.clauses[&id].iter();
                    uses.extend(m.clauses.iter().zip(inner).map(|(clause, &inner)| (clause.body, inner, false)));
                }
                Expr::Function(function) => {
                    let inner = unit.literals.get(&id).map_or(scope, |literal| literal.scope);
                    uses.push((function.body, inner, false));
                }
                Expr::Let { value, body, .. } => {
                    // A `let` only names its value, so a use of the variable is a use of the value. A value from an
                    // enclosing function counts as used by this function.
                    let is_closed = self.module.expr(*value).is_closed_leaf();
                    let function = unit.scopes[scope as usize].function;
                    if !is_closed && unit.scopes[self.scope(*value) as usize].function != function {
                        uses.push((*value, scope, false));
                    }
                    uses.push((*body, scope, false));
                }
                Expr::Call(call) => {
                    if let Callee::Expr(callee) = call.callee
                        && !unit.inlined_bodies.contains_key(&id)
                    {
                        uses.push((callee, scope, true));
                    }
                    uses.extend(call.args.iter().map(|&arg| (arg, scope, false)));
                }
                expr => expr.for_each_operand(|operand| uses.push((operand, scope, false))),
            }
        }
        for (id, scope, call_count) in uses {
            if self.module.expr(id).is_closed_leaf() {
                continue;
            }
            let value = unit.resolve(id);
            let owner_function = unit.scopes[self.scope(id) as usize].function;
            let mut scope_id = unit.scopes[scope as usize].function;
            if let Some(literal) = unit.literals.get_mut(&value) {
                match (scope_id == literal.scope, scope_id == owner_function) {
                    (true, _) if call_count => continue,
                    (true, _) => {
                        literal.self_is_value = true;
                        continue;
                    }
                    (false, true) if call_count => {}
                    _ => literal.is_value = true,
                }
            }
            while scope_id != owner_function {
                let function = literal_of[&scope_id];
                if function == value {
                    // A function nested in the body uses the literal itself, so the body creates a closure of it.
                    if let Some(literal) = unit.literals.get_mut(&value) {
                        literal.self_is_value = true;
                    }
                    break;
                }
                if !captured_ids.insert((function, id)) {
                    break;
                }
                if let Some(literal) = unit.literals.get_mut(&function) {
                    literal.captures.push(id);
                }
                let parent = unit.scopes[scope_id as usize].parent;
                scope_id = unit.scopes[parent as usize].function;
            }
        }
    }
}

fn open_scope(scopes: &mut Vec<Scope>, parent: ScopeId, function: Option<ScopeId>) -> ScopeId {
    let id = scopes.len() as ScopeId;
    // Skew-binary skip pointers (Myers, "An applicative random-access stack", 1983).
    let parent_scope = &scopes[parent as usize];
    let skip = &scopes[parent_scope.skip as usize];
    let skip = if parent_scope.depth - skip.depth == skip.depth - scopes[skip.skip as usize].depth {
        skip.skip
    } else {
        parent
    };
    let depth = parent_scope.depth + 1;
    scopes.push(Scope { parent, skip, depth, function: function.unwrap_or(id), items: Vec::new() });
    id
}

/// Returns the least common ancestor of two scopes.
fn common_ancestor(scopes: &[Scope], mut a: ScopeId, mut b: ScopeId) -> ScopeId {
    let depth = |id: ScopeId| scopes[id as usize].depth;
    while depth(a) != depth(b) {
        let (deeper, shallower) = if depth(a) > depth(b) { (&mut a, b) } else { (&mut b, a) };
        let scope = &scopes[*deeper as usize];
        *deeper = if depth(scope.skip) >= depth(shallower) { scope.skip } else { scope.parent };
    }
    while a != b {
        let (x, y) = (&scopes[a as usize], &scopes[b as usize]);
        (a, b) = if x.skip != y.skip { (x.skip, y.skip) } else { (x.parent, y.parent) };
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;
    use byoc_test_support::random::Random;

    #[test]
    fn common_ancestor_matches_linear_search() {
        let mut scopes = vec![Scope { parent: 0, skip: 0, depth: 0, function: 0, items: Vec::new() }];
        let mut random = Random::new(1);
        for i in 1..500 {
            open_scope(&mut scopes, random.below(i) as u32, Some(0));
        }
        let path = |mut id: ScopeId| {
            let mut path = vec![id];
            while id != 0 {
                id = scopes[id as usize].parent;
                path.push(id);
            }
            path
        };
        for a in (0..500).step_by(7) {
            for b in (0..500).step_by(3) {
                let (path_up, other) = (path(a), path(b));
                let expected = *path_up.iter().find(|id| other.contains(id)).unwrap();
                assert_eq!(common_ancestor(&scopes, a, b), expected);
            }
        }
    }
}

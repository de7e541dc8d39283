//! Graphs of the written model, and the order of their nodes.
//!
//! The body of a function and the branches of an if are units; everything else, including the body of a let, belongs to
//! the unit around it. Each unit becomes a list of nodes: in the main graph, in a subgraph, or where a function is called.

use byoc_ir::ir::{Callee, Expr, ExprId, Id, IndexVec, Module, ScopeId, Scopes, WhileLoop};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};

/// Maximum nesting depth of units, functions included; deeper ones have no form in ONNX.
const MAX_NESTING: usize = 256;

/// Units of a module.
pub struct Units<'m> {
    module: &'m Module,
    /// Scopes, and the numbers of uses.
    pub scopes: Scopes,
    /// Unit of each scope.
    unit_of: IndexVec<ScopeId, ScopeId>,
    /// Value of each variable that a let binds.
    bound: HashMap<ExprId, ExprId>,
    /// Variables that loops are bound to, which have no value in ONNX.
    loops: HashSet<ExprId>,
    /// Values of outer units that the units of an expression read.
    captures: HashMap<ExprId, Vec<ExprId>>,
    /// True if units are nested too deeply to be written, so that the captures are incomplete.
    pub is_too_deep: bool,
    /// Only user of an expression; absent if there are several.
    only_user: HashMap<ExprId, ExprId>,
}

impl<'m> Units<'m> {
    /// Computes the units of a module.
    pub fn new(module: &'m Module) -> Units<'m> {
        let scopes = Scopes::of_module(module);
        let mut unit_of = IndexVec::with_capacity(scopes.tree.len());
        for (id, scope) in scopes.tree.iter() {
            let is_let = scope.opener.is_some_and(|opener| matches!(module.expr(opener), Expr::Let { .. }));
            let unit = if is_let { unit_of[scope.parent] } else { id };
            unit_of.push(unit);
        }
        let mut units = Units {
            module,
            scopes,
            unit_of,
            bound: HashMap::new(),
            loops: HashSet::new(),
            captures: HashMap::new(),
            is_too_deep: false,
            only_user: HashMap::new(),
        };
        units.bind_variables();
        units.find_captures();
        units
    }

    fn bind_variables(&mut self) {
        for (id, node) in self.module.nodes.iter() {
            if self.scopes.scope_of[id].is_none() {
                continue;
            }
            node.expr.for_each_operand(|operand| {
                if self.scopes.uses[operand] == 1 {
                    self.only_user.insert(operand, id);
                }
            });
            if let Expr::Let { var, value, .. } = &node.expr {
                match self.while_loop(id) {
                    Some(_) => drop(self.loops.insert(*var)),
                    None => drop(self.bound.insert(*var, *value)),
                }
            }
        }
    }

    fn find_captures(&mut self) {
        let mut operands = Vec::new();
        for id in self.module.nodes.ids() {
            let Some(unit) = self.unit(id) else { continue };
            operands.clear();
            self.for_each_own_operand(id, |operand| operands.push(operand));
            for &operand in &operands {
                let Some(outer) = self.unit(operand).filter(|&outer| outer != unit) else { continue };
                let (mut inner, mut steps) = (unit, 0);
                while let Some(opener) = self.scopes.tree[inner].opener {
                    inner = self.unit_of[self.scopes.tree[inner].parent];
                    if inner == outer {
                        self.captures.entry(opener).or_default().push(operand);
                        break;
                    }
                    steps += 1;
                    if steps > MAX_NESTING {
                        self.is_too_deep = true;
                        return;
                    }
                }
            }
        }
    }

    /// Returns the unit in which an expression is evaluated; `None` if it is dead or the same everywhere.
    pub fn unit(&self, id: ExprId) -> Option<ScopeId> {
        let has_unit = !self.module.expr(id).is_closed_leaf() && !self.loops.contains(&id);
        self.scopes.scope_of[id].filter(|_| has_unit).map(|scope| self.unit_of[scope])
    }

    /// Returns the unit of a function, or of the branch `index` of an if.
    pub fn opened(&self, id: ExprId, index: usize) -> ScopeId {
        ScopeId::new(self.scopes.opened[id].unwrap_or(Scopes::root()).index() + index)
    }

    /// Returns the values of outer units that the units of an expression read.
    pub fn captured(&self, id: ExprId) -> &[ExprId] {
        self.captures.get(&id).map_or(&[], Vec::as_slice)
    }

    /// Returns the value of a variable that a let binds.
    pub fn bound(&self, variable: ExprId) -> Option<ExprId> {
        self.bound.get(&variable).copied()
    }

    /// Returns the only user of an expression, if it is an operator call or a projection in the same unit.
    pub fn only_user(&self, id: ExprId) -> Option<ExprId> {
        self.only_user.get(&id).copied().filter(|&user| self.unit(user) == self.unit(id))
    }

    /// Returns the while loop that a let is, if nothing else uses its function.
    pub fn while_loop(&self, id: ExprId) -> Option<WhileLoop<'m>> {
        let parts = self.module.while_loop(id)?;
        let uses = |id: ExprId| self.scopes.uses[id];
        let is_alone = [parts.function, parts.next_call, parts.first_call].into_iter().all(|part| uses(part) == 1);
        // The let, the first call and the next call.
        (is_alone && uses(parts.variable) == 3).then_some(parts)
    }

    /// Returns the expressions of a unit that `roots` need, in an order in which each follows its operands. `None` if a
    /// function calls itself.
    pub fn order(&self, unit: ScopeId, roots: &[ExprId]) -> Option<Vec<ExprId>> {
        let mut stack: Vec<ExprId> = roots.iter().copied().filter(|&root| self.unit(root) == Some(unit)).collect();
        let mut members = HashSet::new();
        let mut users: HashMap<ExprId, Vec<ExprId>> = HashMap::new();
        let mut missing: HashMap<ExprId, usize> = HashMap::new();
        let mut ready = BinaryHeap::new();
        while let Some(id) = stack.pop() {
            if !members.insert(id) {
                continue;
            }
            let mut count = 0;
            self.for_each_operand(id, |operand| {
                if self.unit(operand) == Some(unit) {
                    users.entry(operand).or_default().push(id);
                    stack.push(operand);
                    count += 1;
                }
            });
            if count == 0 {
                ready.push(Reverse(id));
            } else {
                missing.insert(id, count);
            }
        }
        let mut order = Vec::with_capacity(members.len());
        while let Some(Reverse(id)) = ready.pop() {
            order.push(id);
            for &user in users.get(&id).into_iter().flatten() {
                let Some(count) = missing.get_mut(&user) else { continue };
                *count -= 1;
                if *count == 0 {
                    ready.push(Reverse(user));
                }
            }
        }
        (order.len() == members.len()).then_some(order)
    }

    fn for_each_operand(&self, id: ExprId, mut visit: impl FnMut(ExprId)) {
        self.for_each_own_operand(id, &mut visit);
        self.captured(id).iter().copied().for_each(visit);
    }

    /// Calls `visit` with the operands that must precede an expression in its unit, besides its captures.
    fn for_each_own_operand(&self, id: ExprId, mut visit: impl FnMut(ExprId)) {
        match self.module.expr(id) {
            Expr::Function(function) => {
                // A parameter is bound by the caller; the body belongs to another unit.
                if self.unit(function.body) != Some(self.opened(id, 0)) {
                    visit(function.body);
                }
            }
            Expr::Var(_) => self.bound(id).into_iter().for_each(visit),
            Expr::Let { body, .. } => match self.while_loop(id) {
                Some(parts) => std::iter::once(&parts.function).chain(parts.initial).copied().for_each(visit),
                None => visit(*body),
            },
            Expr::If { cond, then, otherwise } => {
                visit(*cond);
                for (index, &branch) in [then, otherwise].into_iter().enumerate() {
                    if self.unit(branch) != Some(self.opened(id, index)) {
                        visit(branch);
                    }
                }
            }
            Expr::Call(call) => {
                if let Callee::Expr(callee) = call.callee {
                    visit(callee);
                }
                call.args.iter().copied().for_each(visit);
            }
            other => other.for_each_operand(visit),
        }
    }
}

//! Graph of a module for pattern matching: the users of each expression, and the groups collapsed into composites.
//!
//! Collapsing a group turns its root into a call to an opaque function with the inputs of the group as arguments, and
//! removes the expressions that have no other users. Later patterns match as they would on a rewritten module. An
//! entire table is therefore matched on one graph, and the module is rebuilt once at the end.

use byoc_ir::ir::{Expr, ExprId, Id, IndexVec, Module, Type};
use std::collections::{BTreeSet, HashMap, HashSet};

/// Inputs of a collapsed group, in the order of the parameters of its function.
pub type Collapsed = Box<[ExprId]>;

/// Users of a module's live expressions, overlaid with collapsed groups.
pub struct Graph<'m> {
    /// Underlying module, which is never changed.
    pub module: &'m Module,
    first_user: Vec<u32>,
    users: Vec<ExprId>,
    /// Users added by collapsed groups.
    more_users: HashMap<ExprId, Vec<ExprId>>,
    /// Number of uses of each expression as an operand; unused expressions are dead.
    uses: IndexVec<ExprId, u32>,
    /// 1-based index into `groups` of the group rooted at each expression; 0 for none.
    collapsed: IndexVec<ExprId, u32>,
    groups: Vec<Collapsed>,
}

impl<'m> Graph<'m> {
    /// Creates the graph of a module, in linear time.
    pub fn new(module: &'m Module) -> Graph<'m> {
        Graph::of(module, [])
    }

    /// Creates the graph of a module, with additional roots: expressions that need not be reachable from a global
    /// function.
    pub fn of(module: &'m Module, roots: impl IntoIterator<Item = ExprId>) -> Graph<'m> {
        let roots: Vec<ExprId> = module.globals.values().copied().chain(roots).collect();
        let mut live = IndexVec::filled(false, module.nodes.len());
        roots.iter().for_each(|&root| live[root] = true);
        // Operands have smaller ids, so one descending sweep visits every user first.
        for (id, node) in module.nodes.iter().rev() {
            if live[id] {
                node.expr.for_each_operand(|operand| live[operand] = true);
            }
        }
        let mut uses = IndexVec::filled(0u32, module.nodes.len());
        for (id, node) in module.nodes.iter().filter(|(id, _)| live[*id]) {
            let _ = id;
            node.expr.for_each_operand(|operand| uses[operand] += 1);
        }
        let mut first_user = Vec::with_capacity(module.nodes.len() + 1);
        let mut total = 0u32;
        for (_, &count) in uses.iter() {
            first_user.push(total);
            total += count;
        }
        first_user.push(total);
        let mut cursor = first_user.clone();
        let mut users = vec![ExprId::new(0); total as usize];
        for (id, node) in module.nodes.iter().filter(|(id, _)| live[*id]) {
            node.expr.for_each_operand(|operand| {
                let slot = &mut cursor[operand.index()];
                users[*slot as usize] = id;
                *slot += 1;
            });
        }
        roots.iter().for_each(|&root| uses[root] += 1);
        let collapsed = IndexVec::filled(0, module.nodes.len());
        Graph { module, first_user, users, more_users: HashMap::new(), uses, collapsed, groups: Vec::new() }
    }

    /// Returns an expression; `None` for the root of a collapsed group.
    pub fn expr(&self, id: ExprId) -> Option<&'m Expr> {
        (self.collapsed[id] == 0).then(|| self.module.expr(id))
    }

    /// Returns the type of an expression.
    pub fn ty(&self, id: ExprId) -> &'m Type {
        self.module.ty(id)
    }

    /// Returns the inputs of the collapsed group with the given root.
    pub fn collapsed_inputs(&self, root: ExprId) -> Option<&[ExprId]> {
        self.groups.get((self.collapsed[root] as usize).checked_sub(1)?).map(|inputs| &**inputs)
    }

    /// Returns true if the expression still has users.
    pub fn is_live(&self, id: ExprId) -> bool {
        self.uses[id] > 0
    }

    /// Calls `visit` with each operand in evaluation order, or with each input of a collapsed group.
    pub fn for_each_operand(&self, id: ExprId, visit: impl FnMut(ExprId)) {
        match self.collapsed_inputs(id) {
            Some(inputs) => inputs.iter().copied().for_each(visit),
            None => self.module.expr(id).for_each_operand(visit),
        }
    }

    /// Iterates over the live users of an expression. A user with several uses of the expression may be repeated.
    pub fn users(&self, id: ExprId) -> impl Iterator<Item = ExprId> + '_ {
        let initial_users = &self.users[self.first_user[id.index()] as usize..self.first_user[id.index() + 1] as usize];
        let added_users = self.more_users.get(&id).map(Vec::as_slice).unwrap_or_default();
        initial_users.iter().chain(added_users).copied().filter(move |&user| {
            self.is_live(user) && self.collapsed_inputs(user).is_none_or(|inputs| inputs.contains(&id))
        })
    }

    /// Collapses the group with the given root into a call to an opaque function on `inputs`.
    pub fn collapse(&mut self, root: ExprId, inputs: Collapsed) {
        for &input in &inputs {
            self.more_users.entry(input).or_default().push(root);
            self.acquire(input);
        }
        let mut released_ids = Vec::new();
        self.for_each_operand(root, |operand| released_ids.push(operand));
        self.groups.push(inputs);
        self.collapsed[root] = self.groups.len() as u32;
        self.release(released_ids);
    }

    /// Drops the user table; operands remain available.
    pub fn forget_users(&mut self) {
        (self.first_user, self.users, self.more_users) = (Vec::new(), Vec::new(), HashMap::new());
        self.uses = IndexVec::new();
    }

    /// Undoes the collapse of a group.
    pub fn expand(&mut self, root: ExprId) {
        let group = std::mem::take(&mut self.collapsed[root]) as usize;
        if group > 0 {
            let inputs = std::mem::take(&mut self.groups[group - 1]);
            let mut operands = Vec::new();
            self.for_each_operand(root, |operand| operands.push(operand));
            operands.into_iter().for_each(|operand| self.acquire(operand));
            for input in &inputs {
                if let Some(users) = self.more_users.get_mut(input) {
                    users.retain(|&user| user != root);
                }
            }
            self.release(inputs.into_vec());
        }
    }

    /// Returns true if every use of `id` flows into `root`: the value of `id` is used only through `root`.
    ///
    /// Users have larger ids than their operands, so the search ends at the first user with a larger id than `root`,
    /// and only visits expressions with ids between `id` and `root`.
    pub fn flows_into(&self, id: ExprId, root: ExprId) -> bool {
        let mut visited = HashSet::from([id]);
        let mut stack = vec![id];
        while let Some(current) = stack.pop() {
            let mut has_user = false;
            for user in self.users(current) {
                has_user = true;
                if user > root {
                    return false;
                }
                if user != root && visited.insert(user) {
                    stack.push(user);
                }
            }
            if !has_user {
                return false;
            }
        }
        true
    }

    /// Returns the expressions through which the value of `id` flows into `root`, in ascending order and without `id`
    /// and `root`; `None` if the value also flows elsewhere, or through an expression that `is_allowed` does not
    /// contain.
    pub fn exprs_between(&self, id: ExprId, root: ExprId, is_allowed: impl Fn(ExprId) -> bool) -> Option<Vec<ExprId>> {
        let mut visited = BTreeSet::new();
        let mut stack = vec![id];
        while let Some(current) = stack.pop() {
            let mut has_user = false;
            for user in self.users(current) {
                has_user = true;
                if user == root {
                    continue;
                }
                if user > root || !is_allowed(user) {
                    return None;
                }
                if visited.insert(user) {
                    stack.push(user);
                }
            }
            if !has_user {
                return None;
            }
        }
        Some(visited.into_iter().collect())
    }

    fn acquire(&mut self, id: ExprId) {
        let mut stack = vec![id];
        while let Some(id) = stack.pop() {
            self.uses[id] += 1;
            if self.uses[id] == 1 {
                self.for_each_operand(id, |operand| stack.push(operand));
            }
        }
    }

    fn release(&mut self, mut stack: Vec<ExprId>) {
        while let Some(id) = stack.pop() {
            self.uses[id] -= 1;
            if self.uses[id] == 0 {
                self.for_each_operand(id, |operand| stack.push(operand));
            }
        }
    }

    /// Returns the live expressions below `root`, operands before users, left to right, like [`Module::post_order`] but
    /// with collapsed groups. The operands of an expression are visited only if `enter` returns true.
    pub fn post_order(
        &self,
        root: ExprId,
        visited: &mut IndexVec<ExprId, bool>,
        enter: impl Fn(&Expr) -> bool,
    ) -> Vec<ExprId> {
        let mut order = Vec::new();
        let mut stack = vec![(root, false)];
        while let Some((id, is_exit)) = stack.pop() {
            if is_exit {
                order.push(id);
                continue;
            }
            if std::mem::replace(&mut visited[id], true) {
                continue;
            }
            stack.push((id, true));
            if self.collapsed[id] > 0 || enter(self.module.expr(id)) {
                let first = stack.len();
                self.for_each_operand(id, |operand| {
                    if !visited[operand] {
                        stack.push((operand, false));
                    }
                });
                stack[first..].reverse();
            }
        }
        order
    }
}

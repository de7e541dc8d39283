//! A module as patterns see it: who uses what, and which expressions were put together into a composite.
//!
//! Collapsing a group makes its root a call of an opaque function of the group's inputs, and whatever nobody else uses
//! disappears. That is all that later patterns can see of a rewrite, so a whole table is matched over one graph, and
//! the module is rebuilt once at the end.

use crate::ir::{Expr, ExprId, Id, IndexVec, Module, Type};
use std::collections::{HashMap, HashSet};

/// The inputs of a collapsed group, in the order of its parameters.
pub type Collapsed = Box<[ExprId]>;

/// Users and uses of a module's live expressions, with collapsed groups on top.
pub struct Graph<'m> {
    /// The module underneath; it does not change.
    pub module: &'m Module,
    first_user: Vec<u32>,
    users: Vec<ExprId>,
    /// Users that came with collapsed groups.
    more_users: HashMap<ExprId, Vec<ExprId>>,
    /// Number of operand places that hold an expression. Unused expressions are gone.
    uses: IndexVec<ExprId, u32>,
    /// Position in `groups` of the inputs of a group, by its root, counted from 1.
    collapsed: IndexVec<ExprId, u32>,
    groups: Vec<Collapsed>,
}

impl<'m> Graph<'m> {
    /// The graph of a module. Linear.
    pub fn new(module: &'m Module) -> Graph<'m> {
        Graph::of(module, [])
    }

    /// The graph of a module and of some expressions that its functions need not reach.
    pub fn of(module: &'m Module, roots: impl IntoIterator<Item = ExprId>) -> Graph<'m> {
        let roots: Vec<ExprId> = module.globals.values().copied().chain(roots).collect();
        let mut live = IndexVec::filled(false, module.nodes.len());
        roots.iter().for_each(|&root| live[root] = true);
        // Operands have smaller ids, so one descending sweep sees every user first.
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
        let mut next = first_user.clone();
        let mut users = vec![ExprId::new(0); total as usize];
        for (id, node) in module.nodes.iter().filter(|(id, _)| live[*id]) {
            node.expr.for_each_operand(|operand| {
                let place = &mut next[operand.index()];
                users[*place as usize] = id;
                *place += 1;
            });
        }
        roots.iter().for_each(|&root| uses[root] += 1);
        let collapsed = IndexVec::filled(0, module.nodes.len());
        Graph { module, first_user, users, more_users: HashMap::new(), uses, collapsed, groups: Vec::new() }
    }

    /// The expression; `None` when it is the root of a collapsed group.
    pub fn expr(&self, id: ExprId) -> Option<&'m Expr> {
        (self.collapsed[id] == 0).then(|| self.module.expr(id))
    }

    /// The type of an expression.
    pub fn ty(&self, id: ExprId) -> &'m Type {
        self.module.ty(id)
    }

    /// The inputs of the group that has this root.
    pub fn collapsed(&self, root: ExprId) -> Option<&[ExprId]> {
        self.groups.get((self.collapsed[root] as usize).checked_sub(1)?).map(|inputs| &**inputs)
    }

    /// Returns true if anything still uses it.
    pub fn is_live(&self, id: ExprId) -> bool {
        self.uses[id] > 0
    }

    /// Calls `visit` with each operand, in evaluation order; of a collapsed group, with each input.
    pub fn for_each_operand(&self, id: ExprId, visit: impl FnMut(ExprId)) {
        match self.collapsed(id) {
            Some(inputs) => inputs.iter().copied().for_each(visit),
            None => self.module.expr(id).for_each_operand(visit),
        }
    }

    /// The live users of an expression; one that uses it twice may come twice.
    pub fn users(&self, id: ExprId) -> impl Iterator<Item = ExprId> + '_ {
        let own = &self.users[self.first_user[id.index()] as usize..self.first_user[id.index() + 1] as usize];
        let more = self.more_users.get(&id).map(Vec::as_slice).unwrap_or_default();
        own.iter()
            .chain(more)
            .copied()
            .filter(move |&user| self.is_live(user) && self.collapsed(user).is_none_or(|inputs| inputs.contains(&id)))
    }

    /// Makes the group with this root one opaque call of its inputs.
    pub fn collapse(&mut self, root: ExprId, inputs: Collapsed) {
        for &input in &inputs {
            self.more_users.entry(input).or_default().push(root);
            self.acquire(input);
        }
        let mut released = Vec::new();
        self.for_each_operand(root, |operand| released.push(operand));
        self.groups.push(inputs);
        self.collapsed[root] = self.groups.len() as u32;
        self.release(released);
    }

    /// Drops what is known of users; operands can still be asked for.
    pub fn forget_users(&mut self) {
        (self.first_user, self.users, self.more_users) = (Vec::new(), Vec::new(), HashMap::new());
        self.uses = IndexVec::new();
    }

    /// Takes a collapsed group apart again.
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

    /// Returns true if every use of `id` flows into `root`: nothing of it reaches the outside but through `root`.
    ///
    /// Users have larger ids than what they use, so the search ends at the first user beyond the root, and looks at
    /// nothing but expressions between the two.
    pub fn flows_into(&self, id: ExprId, root: ExprId) -> bool {
        let mut seen = HashSet::from([id]);
        let mut stack = vec![id];
        while let Some(at) = stack.pop() {
            let mut used = false;
            for user in self.users(at) {
                used = true;
                if user > root {
                    return false;
                }
                if user != root && seen.insert(user) {
                    stack.push(user);
                }
            }
            if !used {
                return false;
            }
        }
        true
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

    /// The live expressions below `root`, operands before users, left to right, as [`Module::post_order`] but over
    /// collapsed groups. `enter` decides whether the operands of an expression are visited.
    pub fn post_order(
        &self,
        root: ExprId,
        seen: &mut IndexVec<ExprId, bool>,
        enter: impl Fn(&Expr) -> bool,
    ) -> Vec<ExprId> {
        let mut order = Vec::new();
        let mut stack = vec![(root, false)];
        while let Some((id, leave)) = stack.pop() {
            if leave {
                order.push(id);
                continue;
            }
            if std::mem::replace(&mut seen[id], true) {
                continue;
            }
            stack.push((id, true));
            if self.collapsed[id] > 0 || enter(self.module.expr(id)) {
                let first = stack.len();
                self.for_each_operand(id, |operand| {
                    if !seen[operand] {
                        stack.push((operand, false));
                    }
                });
                stack[first..].reverse();
            }
        }
        order
    }
}

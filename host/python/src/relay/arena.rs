//! Arena of the expressions to which Python objects refer.
//!
//! Handles count the objects of an expression. Expressions that no handle reaches are dropped by a sweep, which renumbers
//! the arena; so ids are valid only until the next expression is appended, unless the arena is pinned.

use byoc_ir::ir::{Expr, ExprId, Id, IndexVec, Module, Node, Origins, Type};
use byoc_ir::typing::infer_expr;
use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Number of expressions below which the arena is never swept.
const MIN_SWEPT: usize = 1 << 16;

/// Expressions of all programs in this process, with the handles of Python objects.
pub struct Arena {
    /// The expressions; there are no global functions.
    pub module: Module,
    handles: Vec<Entry>,
    free: Vec<u32>,
    handle_of: HashMap<ExprId, u32>,
    swept_len: usize,
    pins: usize,
}

/// Expression of a handle, and the number of Python objects.
struct Entry {
    expr: ExprId,
    objects: u32,
}

static ARENA: Mutex<Option<Arena>> = Mutex::new(None);

/// Calls `f` with the arena. `f` must not call Python.
pub fn with<T>(f: impl FnOnce(&mut Arena) -> T) -> T {
    let mut guard: MutexGuard<'_, Option<Arena>> = ARENA.lock().unwrap_or_else(PoisonError::into_inner);
    f(guard.get_or_insert_with(|| Arena {
        module: Module::new(),
        handles: Vec::new(),
        free: Vec::new(),
        handle_of: HashMap::new(),
        swept_len: 0,
        pins: 0,
    }))
}

/// Keeps the ids of the arena valid until it is dropped.
pub struct Pin(());

impl Pin {
    pub fn new() -> Pin {
        with(|arena| arena.pins += 1);
        Pin(())
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        with(|arena| arena.pins -= 1);
    }
}

/// Part of the arena as a module of its own.
pub struct Extract {
    pub module: Module,
    /// Expression of the arena for each expression of the module.
    pub sources: IndexVec<ExprId, ExprId>,
    /// The root in the module.
    pub root: ExprId,
}

impl Arena {
    /// Appends an expression with the type that follows from its operands. Type errors are reported by type inference.
    pub fn push(&mut self, expr: Expr) -> ExprId {
        let ty = infer_expr(&self.module, &expr).unwrap_or(Type::Unknown);
        self.module.push_typed(expr, ty, Origins::none())
    }

    /// Returns the handle of an expression for a new Python object.
    pub fn retain(&mut self, expr: ExprId) -> u32 {
        let handle = *self.handle_of.entry(expr).or_insert_with(|| {
            let entry = Entry { expr, objects: 0 };
            match self.free.pop() {
                Some(slot) => {
                    self.handles[slot as usize] = entry;
                    slot
                }
                None => {
                    self.handles.push(entry);
                    (self.handles.len() - 1) as u32
                }
            }
        });
        self.handles[handle as usize].objects += 1;
        handle
    }

    /// Adds a Python object of a handle. Returns false unless there is such a handle.
    pub fn retain_handle(&mut self, handle: u32) -> bool {
        let entry = self.handles.get_mut(handle as usize).filter(|entry| entry.objects > 0);
        entry.map(|entry| entry.objects += 1).is_some()
    }

    /// Removes a Python object of a handle.
    pub fn release(&mut self, handle: u32) {
        let entry = &mut self.handles[handle as usize];
        entry.objects -= 1;
        if entry.objects == 0 {
            self.handle_of.remove(&entry.expr);
            self.free.push(handle);
        }
    }

    /// Returns the expression of a handle.
    pub fn id(&self, handle: u32) -> ExprId {
        self.handles[handle as usize].expr
    }

    /// Copies what `root` reaches into a module of its own, in the order in which the text format prints it.
    pub fn extract(&self, root: ExprId) -> Extract {
        let mut extract = Extract { module: Module::new(), sources: IndexVec::new(), root };
        let mut map = HashMap::new();
        self.extract_into(root, &mut map, &mut extract.module, |source| {
            extract.sources.push(source);
        });
        extract.root = map[&root];
        extract
    }

    /// Appends what `root` reaches to `module`, except for the expressions in `map`, which it completes.
    pub fn extract_into(
        &self,
        root: ExprId,
        map: &mut HashMap<ExprId, ExprId>,
        module: &mut Module,
        mut record: impl FnMut(ExprId),
    ) {
        for id in self.module.post_order(root, |_, _| true) {
            if map.contains_key(&id) {
                continue;
            }
            let mut node = self.module.nodes[id].clone();
            node.expr.map_operands(|operand| map[&operand]);
            node.origin = Origins::none();
            map.insert(id, module.nodes.push(node));
            record(id);
        }
    }

    /// Appends what `roots` reach in `module`. `known` holds expressions of the module that the arena has already. Returns
    /// the expressions of the roots.
    pub fn adopt(&mut self, module: &Module, roots: &[ExprId], known: &[(ExprId, ExprId)]) -> Vec<ExprId> {
        let mut map: IndexVec<ExprId, Option<ExprId>> = IndexVec::filled(None, module.nodes.len());
        for &(id, source) in known {
            map[id] = Some(source);
        }
        self.adopt_into(module, roots, &mut map)
    }

    /// Variant of [`Arena::adopt`] that completes the map from the expressions of the module to those of the arena.
    pub fn adopt_into(
        &mut self,
        module: &Module,
        roots: &[ExprId],
        map: &mut IndexVec<ExprId, Option<ExprId>>,
    ) -> Vec<ExprId> {
        let mut live: IndexVec<ExprId, bool> = IndexVec::filled(false, module.nodes.len());
        for &root in roots {
            live[root] = true;
        }
        for (id, node) in module.nodes.iter().rev() {
            if live[id] && map[id].is_none() {
                node.expr.for_each_operand(|operand| live[operand] = true);
            }
        }
        for (id, node) in module.nodes.iter() {
            if live[id] && map[id].is_none() {
                let mut node: Node = node.clone();
                // Operands precede their users, so each has been appended.
                node.expr.map_operands(|operand| map[operand].unwrap_or(operand));
                node.origin = Origins::none();
                map[id] = Some(self.module.nodes.push(node));
            }
        }
        roots.iter().filter_map(|&root| map[root]).collect()
    }

    /// Returns the free variables of an expression, in order of their first use.
    pub fn free_vars(&self, root: ExprId) -> Vec<ExprId> {
        let order = self.module.post_order(root, |_, _| true);
        let mut bound = HashSet::new();
        for &id in &order {
            self.module.expr(id).for_each_binder(|var| {
                bound.insert(var);
            });
        }
        order.into_iter().filter(|id| matches!(self.module.expr(*id), Expr::Var(_)) && !bound.contains(id)).collect()
    }

    /// Drops what no handle reaches, if that is likely to be much. Returns what was dropped, for the caller to release
    /// without the lock.
    pub fn sweep(&mut self) -> Vec<Node> {
        let len = self.module.nodes.len();
        if self.pins > 0 || len < MIN_SWEPT || len < 2 * self.swept_len {
            return Vec::new();
        }
        let old = std::mem::take(&mut self.module.nodes);
        let mut live: IndexVec<ExprId, bool> = IndexVec::filled(false, len);
        for entry in self.handles.iter().filter(|entry| entry.objects > 0) {
            live[entry.expr] = true;
        }
        for (id, node) in old.iter().rev() {
            if live[id] {
                node.expr.for_each_operand(|operand| live[operand] = true);
            }
        }
        let mut map: IndexVec<ExprId, ExprId> = IndexVec::filled(ExprId::new(0), len);
        let mut dropped = Vec::new();
        for (id, node) in old.iter() {
            let mut node = node.clone();
            if live[id] {
                node.expr.map_operands(|operand| map[operand]);
                map[id] = self.module.nodes.push(node);
            } else {
                dropped.push(node);
            }
        }
        for entry in self.handles.iter_mut().filter(|entry| entry.objects > 0) {
            entry.expr = map[entry.expr];
        }
        self.handle_of =
            std::mem::take(&mut self.handle_of).into_iter().map(|(id, handle)| (map[id], handle)).collect();
        self.swept_len = self.module.nodes.len();
        dropped
    }
}

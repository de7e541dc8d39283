//! Names in scope. Names are interned at their first mention, a binding is one slot of a vector, and a scope is a
//! position in the undo log: leaving a scope undoes its bindings.

use crate::ir::{ExprId, Name};
use std::collections::HashMap;

pub(super) struct Names<'a> {
    index: HashMap<&'a str, u32>,
    /// Name and current binding, by index.
    entries: Vec<(Name, Option<ExprId>)>,
    /// Undo log: name index and previous binding, innermost last.
    undo: Vec<(u32, Option<ExprId>)>,
    /// Bindings of `%N` in the whole text. A number below the length of the text has a slot in `dense`, a larger number
    /// an entry in `sparse`.
    dense: Vec<Option<ExprId>>,
    sparse: HashMap<u64, ExprId>,
    limit: u64,
}

impl<'a> Names<'a> {
    pub(super) fn new(source_len: usize) -> Names<'a> {
        Names {
            index: HashMap::new(),
            entries: Vec::new(),
            undo: Vec::new(),
            dense: Vec::new(),
            sparse: HashMap::new(),
            limit: source_len as u64,
        }
    }

    fn intern(&mut self, name: &'a str) -> u32 {
        let next = self.entries.len() as u32;
        let index = *self.index.entry(name).or_insert(next);
        if index == next {
            self.entries.push((name.into(), None));
        }
        index
    }

    /// Returns the interned name, as the module stores it.
    pub(super) fn shared_name(&mut self, name: &'a str) -> Name {
        let index = self.intern(name);
        self.entries[index as usize].0.clone()
    }

    /// Binds a name in the current scope.
    pub(super) fn bind(&mut self, name: &'a str, target: ExprId) {
        let index = self.intern(name);
        let shadowed_binding = self.entries[index as usize].1.replace(target);
        self.undo.push((index, shadowed_binding));
    }

    pub(super) fn lookup(&self, name: &str) -> Option<ExprId> {
        self.index.get(name).and_then(|&index| self.entries[index as usize].1)
    }

    /// Iterates over the names in scope, for suggestions.
    pub(super) fn bound(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().filter(|(_, binding)| binding.is_some()).map(|(name, _)| &**name)
    }

    /// Returns a mark of the current scope for [`leave`](Self::leave).
    pub(super) fn scope(&self) -> u32 {
        self.undo.len() as u32
    }

    pub(super) fn leave(&mut self, scope: u32) {
        while self.undo.len() > scope as usize {
            if let Some((index, shadowed_binding)) = self.undo.pop() {
                self.entries[index as usize].1 = shadowed_binding;
            }
        }
    }

    /// Binds `%number` and returns its previous binding.
    pub(super) fn bind_graph(&mut self, number: u64, target: ExprId) -> Option<ExprId> {
        if number >= self.limit {
            return self.sparse.insert(number, target);
        }
        let slot = number as usize;
        if self.dense.len() <= slot {
            self.dense.resize(slot + 1, None);
        }
        self.dense[slot].replace(target)
    }

    pub(super) fn lookup_graph(&self, number: u64) -> Option<ExprId> {
        if number < self.limit {
            self.dense.get(number as usize).copied().flatten()
        } else {
            self.sparse.get(&number).copied()
        }
    }
}

//! Provenance: the model operators from which an expression originates. Every pass preserves it, so that each model
//! operator can be traced to the resulting expressions.

use super::{Id, IndexVec, Name, OriginId, SourceId};
use std::collections::HashMap;

/// Model operator as the frontend read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Name in the file; derived from the position if the operator is unnamed.
    pub name: Name,
    /// Operator type in the file (`Conv`, `nn.conv2d`).
    pub op: Name,
}

/// Model operators, and the sets of operators from which expressions originate.
#[derive(Clone, Debug)]
pub struct Origins {
    sources: IndexVec<SourceId, Source>,
    sets: IndexVec<OriginId, Box<[SourceId]>>,
    index: HashMap<Box<[SourceId]>, OriginId>,
}

impl Origins {
    /// Creates a table with no sources and only the empty set.
    pub fn new() -> Origins {
        let mut origins = Origins { sources: IndexVec::new(), sets: IndexVec::new(), index: HashMap::new() };
        origins.set(Box::new([]));
        origins
    }

    /// Returns the empty set, for expressions that the compiler created or whose origin is unknown.
    #[inline]
    pub fn none() -> OriginId {
        OriginId::new(0)
    }

    /// Records an operator of the model and returns its singleton set.
    pub fn add_source(&mut self, source: Source) -> OriginId {
        let id = self.sources.push(source);
        self.set(Box::new([id]))
    }

    /// Returns the union of two sets.
    pub fn union(&mut self, a: OriginId, b: OriginId) -> OriginId {
        if a == b || b == Origins::none() {
            return a;
        }
        if a == Origins::none() {
            return b;
        }
        let mut sources: Vec<SourceId> = self.sets[a].iter().chain(&*self.sets[b]).copied().collect();
        sources.sort_unstable();
        sources.dedup();
        self.set(sources.into())
    }

    /// Returns the union of any number of sets, sorting only once.
    pub fn union_all(&mut self, ids: impl IntoIterator<Item = OriginId>) -> OriginId {
        let mut ids: Vec<OriginId> = ids.into_iter().filter(|&id| id != Origins::none()).collect();
        ids.sort_unstable();
        ids.dedup();
        match ids[..] {
            [] => Origins::none(),
            [only] => only,
            _ => {
                let mut sources: Vec<SourceId> = ids.iter().flat_map(|&id| self.sets[id].iter().copied()).collect();
                sources.sort_unstable();
                sources.dedup();
                self.set(sources.into())
            }
        }
    }

    /// Returns the sources of a set in ascending order.
    #[inline]
    pub fn get(&self, id: OriginId) -> &[SourceId] {
        &self.sets[id]
    }

    /// Returns all operators of the model, in file order.
    pub fn sources(&self) -> &IndexVec<SourceId, Source> {
        &self.sources
    }

    fn set(&mut self, ids: Box<[SourceId]>) -> OriginId {
        if let Some(&id) = self.index.get(&ids) {
            return id;
        }
        let id = self.sets.push(ids.clone());
        self.index.insert(ids, id);
        id
    }
}

impl Default for Origins {
    fn default() -> Self {
        Origins::new()
    }
}

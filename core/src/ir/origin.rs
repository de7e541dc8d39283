//! Provenance: which operators of the model an expression came from. It survives every pass, so that the question
//! "where did this operator of my model go?" always has an answer.

use super::{Id, IndexVec, Name, OriginId, SourceId};
use std::collections::HashMap;

/// An operator of the model as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Its name in the file; made up from its position where the file gives none.
    pub name: Name,
    /// Its operator type there (`Conv`, `nn.conv2d`).
    pub op: Name,
}

/// The operators of the model, and the sets of them that expressions came from.
#[derive(Clone, Debug)]
pub struct Origins {
    sources: IndexVec<SourceId, Source>,
    sets: IndexVec<OriginId, Box<[SourceId]>>,
    index: HashMap<Box<[SourceId]>, OriginId>,
}

impl Origins {
    /// No sources, and the empty set.
    pub fn new() -> Origins {
        let mut origins = Origins { sources: IndexVec::new(), sets: IndexVec::new(), index: HashMap::new() };
        origins.set(Box::new([]));
        origins
    }

    /// The empty set: made by the compiler, or of unknown origin.
    pub fn none() -> OriginId {
        OriginId::new(0)
    }

    /// Records an operator of the model and gives the set that holds it alone.
    pub fn add_source(&mut self, source: Source) -> OriginId {
        let id = self.sources.push(source);
        self.set(Box::new([id]))
    }

    /// The union of two sets.
    pub fn union(&mut self, a: OriginId, b: OriginId) -> OriginId {
        if a == b || b == Origins::none() {
            return a;
        }
        if a == Origins::none() {
            return b;
        }
        let mut all: Vec<SourceId> = self.sets[a].iter().chain(&*self.sets[b]).copied().collect();
        all.sort_unstable();
        all.dedup();
        self.set(all.into())
    }

    /// The union of many sets: one sort, however many there are.
    pub fn union_all(&mut self, ids: impl IntoIterator<Item = OriginId>) -> OriginId {
        let mut ids: Vec<OriginId> = ids.into_iter().filter(|&id| id != Origins::none()).collect();
        ids.sort_unstable();
        ids.dedup();
        match ids[..] {
            [] => Origins::none(),
            [only] => only,
            _ => {
                let mut all: Vec<SourceId> = ids.iter().flat_map(|&id| self.sets[id].iter().copied()).collect();
                all.sort_unstable();
                all.dedup();
                self.set(all.into())
            }
        }
    }

    /// The sources of a set, ascending.
    pub fn get(&self, id: OriginId) -> &[SourceId] {
        &self.sets[id]
    }

    /// Every operator of the model, in the order of the file.
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

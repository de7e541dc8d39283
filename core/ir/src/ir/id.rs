//! Typed ids and the vectors they index. An id is one 32-bit word with a niche, so an `Option` of an id is no larger.

use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::ops::{Index, IndexMut};

/// Typed index into an [`IndexVec`].
pub trait Id: Copy + Eq + Ord + fmt::Debug {
    /// Creates the id of the element at `index`.
    ///
    /// # Panics
    /// If `index` exceeds 2^32 - 2.
    fn new(index: usize) -> Self;
    /// Returns the index of the element.
    fn index(self) -> usize;
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(NonZeroU32);

        impl Id for $name {
            #[inline]
            fn new(index: usize) -> Self {
                let word = u32::try_from(index + 1).ok().and_then(NonZeroU32::new);
                $name(word.expect("an index is less than 2^32 - 1"))
            }
            #[inline]
            fn index(self) -> usize {
                self.0.get() as usize - 1
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.index())
            }
        }
    )*};
}

ids! {
    /// Id of an expression of a module.
    ExprId;
    /// Id of an operator of the operator table.
    OpId;
    /// Id of a model operator as the frontend read it.
    SourceId;
    /// Id of a set of [`SourceId`]s.
    OriginId;
    /// Id of a scope of a module (see [`super::Scopes`]).
    ScopeId;
}

/// Vector indexed by a typed id.
#[derive(Clone)]
pub struct IndexVec<I, T> {
    items: Vec<T>,
    ids: PhantomData<fn(I)>,
}

impl<I: Id, T> IndexVec<I, T> {
    /// Creates an empty vector.
    pub fn new() -> Self {
        IndexVec { items: Vec::new(), ids: PhantomData }
    }

    /// Creates a vector of `len` copies of `value`.
    pub fn filled(value: T, len: usize) -> Self
    where
        T: Clone,
    {
        IndexVec { items: vec![value; len], ids: PhantomData }
    }

    /// Creates an empty vector with the given capacity.
    pub fn with_capacity(capacity: usize) -> Self {
        IndexVec { items: Vec::with_capacity(capacity), ids: PhantomData }
    }

    /// Appends an element and returns its id.
    pub fn push(&mut self, item: T) -> I {
        let id = I::new(self.items.len());
        self.items.push(item);
        id
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Returns true if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns the element, or `None` if the id is out of range.
    pub fn get(&self, id: I) -> Option<&T> {
        self.items.get(id.index())
    }

    /// Iterates over the ids in ascending order.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = I> + ExactSizeIterator + use<I, T> {
        (0..self.items.len()).map(I::new)
    }

    /// Iterates over the elements with their ids, in ascending order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (I, &T)> + ExactSizeIterator {
        self.items.iter().enumerate().map(|(i, item)| (I::new(i), item))
    }
}

impl<I: Id, T: fmt::Debug> fmt::Debug for IndexVec<I, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.items).finish()
    }
}

impl<I: Id, T> Default for IndexVec<I, T> {
    fn default() -> Self {
        IndexVec::new()
    }
}

impl<I: Id, T> Index<I> for IndexVec<I, T> {
    type Output = T;
    fn index(&self, id: I) -> &T {
        &self.items[id.index()]
    }
}

impl<I: Id, T> IndexMut<I> for IndexVec<I, T> {
    fn index_mut(&mut self, id: I) -> &mut T {
        &mut self.items[id.index()]
    }
}

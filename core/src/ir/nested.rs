//! What types are made of when they hold other types.
//!
//! A type may nest as deep as a program is long: each line of it can put the tuple of the line before into another. So
//! whatever is asked of a type again and again (whether it is equal to another, how large it is, whether anything is
//! still to be inferred) is found out once, when the type is made from parts of which it is known already, and a type
//! is taken apart by a loop when it goes.

use super::{AdtType, Dim, FuncType, Name, Type};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

/// Types that a part of a type holds.
pub trait Holds {
    /// Distinguishes what else there is to it: the kind, names, how many parts.
    #[doc(hidden)]
    fn describe(&self, into: &mut Vec<u8>);
    /// Calls `visit` with each type that it holds, in order.
    fn for_each<'t>(&'t self, visit: &mut dyn FnMut(&'t Type));
    /// The names that stand for types inside it.
    fn binds(&self) -> &[Name] {
        &[]
    }
    /// Moves the types that it holds out of it.
    #[doc(hidden)]
    fn take(&mut self, into: &mut Vec<Type>);
}

/// Something that holds types, with what is known of all of it.
pub struct Nested<T: Holds> {
    summary: Summary,
    inner: T,
}

/// Summary of a type with all its parts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Summary {
    /// Two types are equal when these are: 128 bits of a cryptographic hash of all of it.
    digest: [u64; 2],
    /// Number of parts; parts that are shared count each time.
    pub parts: u32,
    /// Number of levels.
    depth: u32,
    /// Nothing is still to be inferred.
    pub complete: bool,
    /// A type parameter is named in it.
    pub params: bool,
    /// A type definition is named in it.
    pub defined: bool,
    /// It has dimensions that are not known.
    pub open_dims: bool,
}

/// A type that nests no deeper is dropped by plain recursion.
const SHALLOW: u32 = 32;

impl<T: Holds> Nested<T> {
    /// Finds out what there is to know. The parts know it of themselves, so this takes time for them alone.
    pub fn new(inner: T) -> Nested<T> {
        let mut text = Vec::with_capacity(64);
        inner.describe(&mut text);
        let mut summary = Summary {
            digest: [0; 2],
            parts: 1,
            depth: 1,
            complete: true,
            params: false,
            defined: text.first() == Some(&b'a'),
            open_dims: false,
        };
        inner.for_each(&mut |ty| {
            let part = ty.summary();
            summary.parts = summary.parts.saturating_add(part.parts);
            summary.depth = summary.depth.max(part.depth.saturating_add(1));
            summary.complete &= part.complete;
            summary.params |= part.params;
            summary.defined |= part.defined;
            summary.open_dims |= part.open_dims;
            match ty {
                Type::Tensor(_) | Type::Param(_) | Type::Unknown => describe_leaf(ty, &mut text),
                _ => {
                    text.push(b'#');
                    part.digest.iter().for_each(|word| text.extend(word.to_le_bytes()));
                }
            }
        });
        let hash = *blake3::hash(&text).as_bytes();
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| hash[at + i]));
        summary.digest = [word(0), word(8)];
        Nested { summary, inner }
    }

    pub(super) fn summary(&self) -> Summary {
        self.summary
    }

    /// Moves the types that it holds out of it: it is about to be dropped.
    pub(super) fn take_parts(&mut self, into: &mut Vec<Type>) {
        self.inner.take(into);
    }
}

/// Of a type that holds no other.
pub(super) fn leaf(ty: &Type) -> Summary {
    let open = |dim: &Dim| !matches!(dim, Dim::Fixed(_));
    Summary {
        digest: [0; 2],
        parts: 1,
        depth: 0,
        complete: *ty != Type::Unknown,
        params: matches!(ty, Type::Param(_)),
        defined: false,
        open_dims: ty.as_tensor().is_some_and(|tensor| tensor.dims.iter().any(open)),
    }
}

fn describe_leaf(ty: &Type, into: &mut Vec<u8>) {
    match ty {
        Type::Tensor(tensor) => {
            into.extend([b't', tensor.dtype as u8]);
            number(tensor.dims.len(), into);
            for dim in &tensor.dims {
                match dim {
                    Dim::Fixed(n) => {
                        into.push(b'f');
                        number(*n, into);
                    }
                    Dim::Any => into.push(b'?'),
                    Dim::Named(name) => {
                        into.push(b'n');
                        text(name, into);
                    }
                }
            }
        }
        Type::Param(name) => {
            into.push(b'p');
            text(name, into);
        }
        _ => into.push(b'_'),
    }
}

fn number(n: usize, into: &mut Vec<u8>) {
    into.extend((n as u64).to_le_bytes());
}

fn text(name: &str, into: &mut Vec<u8>) {
    number(name.len(), into);
    into.extend(name.as_bytes());
}

impl<T: Holds> Deref for Nested<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: Holds> PartialEq for Nested<T> {
    fn eq(&self, other: &Self) -> bool {
        self.summary.digest == other.summary.digest
    }
}
impl<T: Holds> Eq for Nested<T> {}

impl<T: Holds> Hash for Nested<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.summary.digest.hash(state);
    }
}

impl<T: Holds + fmt::Debug> fmt::Debug for Nested<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T: Holds> Drop for Nested<T> {
    fn drop(&mut self) {
        if self.summary.depth <= SHALLOW {
            return;
        }
        let mut parts = Vec::new();
        self.inner.take(&mut parts);
        while let Some(mut part) = parts.pop() {
            part.take(&mut parts);
        }
    }
}

impl Holds for Box<[Type]> {
    fn describe(&self, into: &mut Vec<u8>) {
        into.push(b'(');
        number(self.len(), into);
    }
    fn for_each<'t>(&'t self, visit: &mut dyn FnMut(&'t Type)) {
        self.iter().for_each(visit);
    }
    fn take(&mut self, into: &mut Vec<Type>) {
        into.extend(std::mem::take(self));
    }
}

impl Holds for Type {
    fn describe(&self, into: &mut Vec<u8>) {
        into.push(b'r');
    }
    fn for_each<'t>(&'t self, visit: &mut dyn FnMut(&'t Type)) {
        visit(self);
    }
    fn take(&mut self, into: &mut Vec<Type>) {
        into.push(std::mem::replace(self, Type::Unknown));
    }
}

impl Holds for AdtType {
    fn describe(&self, into: &mut Vec<u8>) {
        into.push(b'a');
        text(&self.name, into);
        number(self.args.len(), into);
    }
    fn for_each<'t>(&'t self, visit: &mut dyn FnMut(&'t Type)) {
        self.args.iter().for_each(visit);
    }
    fn take(&mut self, into: &mut Vec<Type>) {
        into.extend(std::mem::take(&mut self.args));
    }
}

impl Holds for FuncType {
    fn describe(&self, into: &mut Vec<u8>) {
        into.push(b'>');
        number(self.type_params.len(), into);
        self.type_params.iter().for_each(|name| text(name, into));
        number(self.params.len(), into);
    }
    fn for_each<'t>(&'t self, visit: &mut dyn FnMut(&'t Type)) {
        self.params.iter().for_each(&mut *visit);
        visit(&self.ret);
    }
    fn binds(&self) -> &[Name] {
        &self.type_params
    }
    fn take(&mut self, into: &mut Vec<Type>) {
        into.extend(std::mem::take(&mut self.params));
        into.push(std::mem::replace(&mut self.ret, Type::Unknown));
    }
}

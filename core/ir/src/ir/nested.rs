//! Types that contain other types.
//!
//! Types can nest as deeply as a module has lines, since each line can wrap the tuple of the previous line in another
//! tuple. So the properties that are queried often (equality, size, completeness) are computed once, at construction,
//! from the summaries of the parts, and types are dropped iteratively. Their memory counts as in use, since a chain of
//! calls can build an ever larger type in each line.

use super::{AdtType, Dim, FuncType, Name, Type};
use crate::tensor::memory::Charge;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

/// Access to the types that a value contains.
pub trait TypeParts {
    /// Appends the kind, the names and the arity of the value to `into`. Together with the contained types, they
    /// identify the value.
    #[doc(hidden)]
    fn append_key(&self, into: &mut Vec<u8>);
    /// Calls `visit` with each contained type, in order.
    fn for_each<'t>(&'t self, visit: &mut dyn FnMut(&'t Type));
    /// Returns the type parameters that the value binds.
    fn binds(&self) -> &[Name] {
        &[]
    }
    /// Moves the contained types into `into`.
    #[doc(hidden)]
    fn take(&mut self, into: &mut Vec<Type>);
}

/// Value that contains types, with a cached summary of the entire type.
pub struct Nested<T: TypeParts> {
    summary: Summary,
    inner: T,
    _charge: Charge,
}

/// Summary of a type and all its parts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Summary {
    /// 128-bit cryptographic digest of the entire type; types with equal digests are considered equal.
    digest: [u64; 2],
    /// Number of parts; a shared part counts once per occurrence.
    pub parts: u32,
    /// Nesting depth; 0 for a leaf.
    depth: u32,
    /// True if no part is [`Type::Unknown`].
    pub is_complete: bool,
    /// True if a part is a type parameter.
    pub has_params: bool,
    /// True if a part is an instance of a type definition.
    pub has_definitions: bool,
    /// True if a dimension is symbolic or `?`.
    pub has_open_dims: bool,
}

/// Maximum depth of a type that is dropped by plain recursion.
const MAX_RECURSIVE_DROP: u32 = 32;

impl<T: TypeParts> Nested<T> {
    /// Computes the summary from the summaries of the direct parts, in time linear in their number.
    pub fn new(inner: T) -> Nested<T> {
        let mut text = Vec::with_capacity(64);
        inner.append_key(&mut text);
        let mut summary = Summary {
            digest: [0; 2],
            parts: 1,
            depth: 1,
            is_complete: true,
            has_params: false,
            has_definitions: text.first() == Some(&b'a'),
            has_open_dims: false,
        };
        let mut direct_parts = 0;
        inner.for_each(&mut |ty| {
            direct_parts += 1;
            let part = ty.summary();
            summary.parts = summary.parts.saturating_add(part.parts);
            summary.depth = summary.depth.max(part.depth.saturating_add(1));
            summary.is_complete &= part.is_complete;
            summary.has_params |= part.has_params;
            summary.has_definitions |= part.has_definitions;
            summary.has_open_dims |= part.has_open_dims;
            match ty {
                Type::Tensor(_) | Type::Param(_) | Type::Unknown => append_leaf_key(ty, &mut text),
                _ => {
                    text.push(b'#');
                    part.digest.iter().for_each(|word| text.extend(word.to_le_bytes()));
                }
            }
        });
        let hash = *blake3::hash(&text).as_bytes();
        let word = |start: usize| u64::from_le_bytes(std::array::from_fn(|i| hash[start + i]));
        summary.digest = [word(0), word(8)];
        let bytes = size_of::<Nested<T>>() + direct_parts * size_of::<Type>();
        Nested { summary, inner, _charge: Charge::beyond_limit(bytes) }
    }

    pub(super) fn summary(&self) -> Summary {
        self.summary
    }

    /// Moves the contained types into `into`, so that dropping the value does not recurse.
    pub(super) fn take_parts(&mut self, into: &mut Vec<Type>) {
        self.inner.take(into);
    }
}

/// Returns the summary of a leaf type.
pub(super) fn leaf(ty: &Type) -> Summary {
    let is_unresolved = |dim: &Dim| !matches!(dim, Dim::Fixed(_));
    Summary {
        digest: [0; 2],
        parts: 1,
        depth: 0,
        is_complete: *ty != Type::Unknown,
        has_params: matches!(ty, Type::Param(_)),
        has_definitions: false,
        has_open_dims: ty.as_tensor().is_some_and(|tensor| tensor.dims.iter().any(is_unresolved)),
    }
}

fn append_leaf_key(ty: &Type, into: &mut Vec<u8>) {
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
                    Dim::Symbolic(expr) => {
                        into.push(b'n');
                        text(&expr.to_string(), into);
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

impl<T: TypeParts> Deref for Nested<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: TypeParts> PartialEq for Nested<T> {
    fn eq(&self, other: &Self) -> bool {
        self.summary.digest == other.summary.digest
    }
}
impl<T: TypeParts> Eq for Nested<T> {}

impl<T: TypeParts> Hash for Nested<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.summary.digest.hash(state);
    }
}

impl<T: TypeParts + fmt::Debug> fmt::Debug for Nested<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T: TypeParts> Drop for Nested<T> {
    fn drop(&mut self) {
        if self.summary.depth <= MAX_RECURSIVE_DROP {
            return;
        }
        let mut parts = Vec::new();
        self.inner.take(&mut parts);
        while let Some(mut part) = parts.pop() {
            part.take(&mut parts);
        }
    }
}

impl TypeParts for Box<[Type]> {
    fn append_key(&self, into: &mut Vec<u8>) {
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

impl TypeParts for Type {
    fn append_key(&self, into: &mut Vec<u8>) {
        into.push(b'r');
    }
    fn for_each<'t>(&'t self, visit: &mut dyn FnMut(&'t Type)) {
        visit(self);
    }
    fn take(&mut self, into: &mut Vec<Type>) {
        into.push(std::mem::replace(self, Type::Unknown));
    }
}

impl TypeParts for AdtType {
    fn append_key(&self, into: &mut Vec<u8>) {
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

impl TypeParts for FuncType {
    fn append_key(&self, into: &mut Vec<u8>) {
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

//! Attributes of calls and functions: a sorted list of keys and values, cheap to clone.

use super::Name;
use crate::tensor::DType;
use smallvec::SmallVec;
use std::fmt;
use std::sync::Arc;

/// Value of an attribute.
#[derive(Clone, Debug)]
pub enum AttrValue {
    /// An integer.
    Int(i64),
    /// A floating-point number.
    Float(f64),
    /// A Boolean.
    Bool(bool),
    /// A string; element types are strings as well (`"float32"`).
    Str(Name),
    /// A list of attribute values.
    List(Arc<[AttrValue]>),
    /// `None`, an explicitly absent value.
    None,
}

impl AttrValue {
    /// Creates a list of integers.
    pub fn ints(values: impl IntoIterator<Item = i64>) -> AttrValue {
        AttrValue::List(values.into_iter().map(AttrValue::Int).collect())
    }

    /// Returns the integer; a Boolean counts as 0 or 1.
    pub fn as_int(&self) -> Option<i64> {
        match self {
            AttrValue::Int(v) => Some(*v),
            AttrValue::Bool(v) => Some(i64::from(*v)),
            _ => None,
        }
    }

    /// Returns the floating-point number; an integer is converted.
    pub fn as_float(&self) -> Option<f64> {
        match self {
            AttrValue::Float(v) => Some(*v),
            AttrValue::Int(v) => Some(*v as f64),
            _ => None,
        }
    }

    /// Returns the string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            AttrValue::Str(s) => Some(s),
            _ => None,
        }
    }

    /// Returns the items of a list of integers; a single integer counts as a list of one.
    pub fn as_ints(&self) -> Option<Vec<i64>> {
        match self {
            AttrValue::List(items) => items.iter().map(AttrValue::as_int).collect(),
            AttrValue::Int(v) => Some(vec![*v]),
            _ => None,
        }
    }

    /// Returns the element type that the string names.
    pub fn as_dtype(&self) -> Option<DType> {
        DType::parse(self.as_str()?)
    }
}

impl PartialEq for AttrValue {
    /// Structural equality. Integers, Booleans and floats compare by value across kinds (`1` equals `True`); a NaN
    /// equals a NaN with the same bits.
    fn eq(&self, other: &AttrValue) -> bool {
        use AttrValue::*;
        match (self, other) {
            (Float(a), Float(b)) => a.to_bits() == b.to_bits() || a == b,
            (Str(a), Str(b)) => a == b,
            (List(a), List(b)) => a == b,
            (None, None) => true,
            (Float(a), b) | (b, Float(a)) => b.as_int().is_some_and(|b| b as f64 == *a),
            (a, b) => a.as_int().is_some() && a.as_int() == b.as_int(),
        }
    }
}

impl fmt::Display for AttrValue {
    /// Formats the value as Relay text: `1`, `0.5f`, `True`, `"NCHW"`, `[1, 1]`, `None`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AttrValue::Int(v) => write!(f, "{v}"),
            AttrValue::Float(v) => {
                let text = format!("{v:?}");
                write!(f, "{}f", text.strip_suffix(".0").unwrap_or(&text))
            }
            AttrValue::Bool(true) => f.write_str("True"),
            AttrValue::Bool(false) => f.write_str("False"),
            AttrValue::Str(s) => write!(f, "\"{s}\""),
            AttrValue::None => f.write_str("None"),
            AttrValue::List(items) => {
                f.write_str("[")?;
                for (i, item) in items.iter().enumerate() {
                    if i > 0 {
                        f.write_str(", ")?;
                    }
                    write!(f, "{item}")?;
                }
                f.write_str("]")
            }
        }
    }
}

impl From<i64> for AttrValue {
    fn from(v: i64) -> Self {
        AttrValue::Int(v)
    }
}
impl From<f64> for AttrValue {
    fn from(v: f64) -> Self {
        AttrValue::Float(v)
    }
}
impl From<bool> for AttrValue {
    fn from(v: bool) -> Self {
        AttrValue::Bool(v)
    }
}
impl From<&str> for AttrValue {
    fn from(v: &str) -> Self {
        AttrValue::Str(v.into())
    }
}
impl From<DType> for AttrValue {
    fn from(v: DType) -> Self {
        AttrValue::Str(v.name().into())
    }
}
impl From<&[i64]> for AttrValue {
    fn from(v: &[i64]) -> Self {
        AttrValue::ints(v.iter().copied())
    }
}
impl<const N: usize> From<[i64; N]> for AttrValue {
    fn from(v: [i64; N]) -> Self {
        AttrValue::ints(v)
    }
}
impl From<Vec<i64>> for AttrValue {
    fn from(v: Vec<i64>) -> Self {
        AttrValue::ints(v)
    }
}

/// Attributes, sorted by key. Operator attributes are kept only where they differ from their default, so that a module
/// that states a default equals a module that omits it.
#[derive(Clone, Default)]
pub struct Attrs(Option<Arc<Pairs>>);

/// Keys and values in two parts, because region functions share all attributes but one.
struct Pairs {
    /// Attributes shared with other instances; always flat, with an empty common part.
    common: Attrs,
    /// Remaining attributes, whose keys sort after those of the common part.
    own: SmallVec<[(Name, AttrValue); 1]>,
}

impl Attrs {
    /// Returns an empty set of attributes.
    pub fn none() -> Attrs {
        Attrs(None)
    }

    /// Creates attributes from pairs; if a key is repeated, the last value wins.
    pub fn new<K: Into<Name>>(pairs: impl IntoIterator<Item = (K, AttrValue)>) -> Attrs {
        let mut own: SmallVec<[(Name, AttrValue); 1]> = SmallVec::new();
        for (key, value) in pairs {
            let key = key.into();
            match own.binary_search_by(|(k, _)| k.cmp(&key)) {
                Ok(index) => own[index].1 = value,
                Err(index) => own.insert(index, (key, value)),
            }
        }
        own.shrink_to_fit();
        Attrs((!own.is_empty()).then(|| Arc::new(Pairs { common: Attrs::none(), own })))
    }

    /// Adds an attribute, sharing memory with `self` if `key` sorts after all existing keys.
    pub fn and(&self, key: Name, value: AttrValue) -> Attrs {
        let last_key = self.own_pairs().last().map(|(last_key, _)| last_key);
        if self.common_pairs().is_empty() && last_key.is_some_and(|last_key| *last_key < key) {
            let own = SmallVec::from([(key, value)]);
            return Attrs(Some(Arc::new(Pairs { common: self.clone(), own })));
        }
        self.with(&key, value)
    }

    fn own_pairs(&self) -> &[(Name, AttrValue)] {
        self.0.as_ref().map_or(&[], |pairs| &pairs.own)
    }

    fn common_pairs(&self) -> &[(Name, AttrValue)] {
        self.0.as_ref().map_or(&[], |pairs| pairs.common.own_pairs())
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &str) -> Option<&AttrValue> {
        let find = |pairs: &'_ [(Name, AttrValue)]| pairs.binary_search_by(|(k, _)| (**k).cmp(key)).ok();
        match find(self.own_pairs()) {
            Some(index) => Some(&self.own_pairs()[index].1),
            None => find(self.common_pairs()).map(|index| &self.common_pairs()[index].1),
        }
    }

    /// Returns the value of a key if it is a string.
    pub fn str(&self, key: &str) -> Option<&str> {
        self.get(key)?.as_str()
    }

    /// Returns the attributes with `key` set to `value`.
    pub fn with(&self, key: &str, value: impl Into<AttrValue>) -> Attrs {
        Attrs::new(self.iter().map(|(k, v)| (k.clone(), v.clone())).chain([(Name::from(key), value.into())]))
    }

    /// Returns the attributes without `key`.
    pub fn without(&self, key: &str) -> Attrs {
        Attrs::new(self.iter().filter(|(k, _)| &***k != key).map(|(k, v)| (k.clone(), v.clone())))
    }

    /// Iterates over keys and values in key order.
    pub fn iter(&self) -> impl Iterator<Item = (&Name, &AttrValue)> {
        self.common_pairs().iter().chain(self.own_pairs()).map(|(k, v)| (k, v))
    }

    /// Returns the number of attributes.
    pub fn len(&self) -> usize {
        self.common_pairs().len() + self.own_pairs().len()
    }

    /// Returns true if there are no attributes.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

impl PartialEq for Attrs {
    fn eq(&self, other: &Attrs) -> bool {
        match (&self.0, &other.0) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b) || (self.len() == other.len() && self.iter().eq(other.iter())),
            (a, b) => a.is_none() && b.is_none(),
        }
    }
}

impl fmt::Debug for Attrs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_and_flat_attributes_are_equal() {
        let base = Attrs::new([("b", AttrValue::Int(1)), ("a", AttrValue::Int(2))]);
        let (shared, flat) = (base.and("c".into(), AttrValue::Int(3)), base.with("c", 3));
        assert_eq!(shared, flat);
        assert_eq!(shared.len(), 3);
        for (key, value) in [("a", Some(2)), ("b", Some(1)), ("c", Some(3)), ("d", None)] {
            assert_eq!(shared.get(key).and_then(AttrValue::as_int), value, "{key}");
        }
        assert_eq!(shared.without("b"), flat.without("b"));
        // Cases: a key between two existing keys, an existing key, and a second appended key.
        assert_eq!(base.and("aa".into(), AttrValue::Int(3)), base.with("aa", 3));
        assert_eq!(base.and("b".into(), AttrValue::Int(3)), base.with("b", 3));
        assert_eq!(shared.and("d".into(), AttrValue::Int(4)), flat.with("d", 4));
        assert_eq!(Attrs::none().and("d".into(), AttrValue::Int(4)), Attrs::none().with("d", 4));
        assert_ne!(shared, base);
    }
}

//! Attributes of calls and functions: a sorted list of key and value, cheap to clone.

use super::Name;
use crate::tensor::DType;
use std::fmt;
use std::sync::Arc;

/// The value of an attribute.
#[derive(Clone, Debug)]
pub enum AttrValue {
    /// An integer.
    Int(i64),
    /// A floating-point number.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// A string; element types are strings too (`"float32"`).
    Str(Name),
    /// A list.
    List(Arc<[AttrValue]>),
    /// `None`: deliberately without a value.
    None,
}

impl AttrValue {
    /// A list of integers.
    pub fn ints(values: impl IntoIterator<Item = i64>) -> AttrValue {
        AttrValue::List(values.into_iter().map(AttrValue::Int).collect())
    }

    /// The integer; a truth value counts as 0 or 1.
    pub fn as_int(&self) -> Option<i64> {
        match self {
            AttrValue::Int(v) => Some(*v),
            AttrValue::Bool(v) => Some(i64::from(*v)),
            _ => None,
        }
    }

    /// The number.
    pub fn as_float(&self) -> Option<f64> {
        match self {
            AttrValue::Float(v) => Some(*v),
            AttrValue::Int(v) => Some(*v as f64),
            _ => None,
        }
    }

    /// The string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            AttrValue::Str(s) => Some(s),
            _ => None,
        }
    }

    /// The items of a list of integers; one integer counts as a list of one.
    pub fn as_ints(&self) -> Option<Vec<i64>> {
        match self {
            AttrValue::List(items) => items.iter().map(AttrValue::as_int).collect(),
            AttrValue::Int(v) => Some(vec![*v]),
            _ => None,
        }
    }

    /// The element type that the string names.
    pub fn as_dtype(&self) -> Option<DType> {
        DType::parse(self.as_str()?)
    }
}

impl PartialEq for AttrValue {
    /// Structural: integers, truth values and floats compare by value across kinds (`1`, `True`), floats bitwise.
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
    /// Relay text: `1`, `0.5f`, `True`, `"NCHW"`, `[1, 1]`, `None`.
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

/// Attributes, sorted by key. Of an operator's attributes only those that differ from their default are kept:
/// writing a default out or leaving it out is the same program.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attrs(Option<Arc<[(Name, AttrValue)]>>);

impl Attrs {
    /// No attributes.
    pub fn none() -> Attrs {
        Attrs(None)
    }

    /// These attributes; of a key given twice the last value stays.
    pub fn new<K: Into<Name>>(pairs: impl IntoIterator<Item = (K, AttrValue)>) -> Attrs {
        let mut sorted: Vec<(Name, AttrValue)> = Vec::new();
        for (key, value) in pairs {
            let key = key.into();
            match sorted.binary_search_by(|(k, _)| k.cmp(&key)) {
                Ok(at) => sorted[at].1 = value,
                Err(at) => sorted.insert(at, (key, value)),
            }
        }
        Attrs((!sorted.is_empty()).then(|| sorted.into()))
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&AttrValue> {
        let pairs = self.0.as_deref()?;
        pairs.binary_search_by(|(k, _)| (**k).cmp(key)).ok().map(|at| &pairs[at].1)
    }

    /// The string value of a key.
    pub fn str(&self, key: &str) -> Option<&str> {
        self.get(key)?.as_str()
    }

    /// The same attributes with one set.
    pub fn with(&self, key: &str, value: impl Into<AttrValue>) -> Attrs {
        Attrs::new(self.iter().map(|(k, v)| (k.clone(), v.clone())).chain([(Name::from(key), value.into())]))
    }

    /// The same attributes without one.
    pub fn without(&self, key: &str) -> Attrs {
        Attrs::new(self.iter().filter(|(k, _)| &***k != key).map(|(k, v)| (k.clone(), v.clone())))
    }

    /// Key and value, by key.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Name, &AttrValue)> {
        self.0.as_deref().unwrap_or_default().iter().map(|(k, v)| (k, v))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

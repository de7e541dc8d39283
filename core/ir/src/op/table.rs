//! Operator table: every submitted [`OpDef`], sorted by name, and after them those that were declared while the process
//! ran, in order. An [`OpId`] is an index into the table.

use super::{AttrDef, AttrKind, Default, OpDef};
use crate::diag::{Diagnostic, codes, nearest};
use crate::ir::{AttrValue, Attrs, Id, OpId};
use std::sync::{LazyLock, PoisonError, RwLock};

static TABLE: LazyLock<Vec<&'static OpDef>> = LazyLock::new(|| {
    let mut table: Vec<&'static OpDef> = inventory::iter::<OpDef>.into_iter().collect();
    table.sort_by_key(|def| def.name);
    table
});

/// Operators that were added, in order. Their ids follow those of the table.
static ADDED: RwLock<Vec<&'static OpDef>> = RwLock::new(Vec::new());

/// Appends an operator to the table. The caller makes sure that there is none of its name.
pub fn add(def: &'static OpDef) -> OpId {
    let mut added = ADDED.write().unwrap_or_else(PoisonError::into_inner);
    added.push(def);
    OpId::new(TABLE.len() + added.len() - 1)
}

/// Returns the operators that were added, in order.
pub fn added() -> Vec<&'static OpDef> {
    ADDED.read().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Returns Relay's operators, sorted by name, without those that were added.
pub fn table() -> &'static [&'static OpDef] {
    &TABLE
}

/// Iterates over the names of all operators: Relay's, sorted, and those that were added.
pub fn names() -> impl Iterator<Item = &'static str> {
    TABLE.iter().copied().chain(added()).map(|def| def.name)
}

/// Returns the id of the operator named `name`.
pub fn lookup(name: &str) -> Option<OpId> {
    let own = TABLE.binary_search_by(|def| def.name.cmp(name)).ok();
    let position = |name| added().iter().position(|def| def.name == name);
    own.or_else(|| position(name).map(|index| TABLE.len() + index)).map(OpId::new)
}

/// Returns the operator with the given id.
#[inline]
pub fn get(id: OpId) -> &'static OpDef {
    match TABLE.get(id.index()) {
        Some(def) => def,
        None => ADDED.read().unwrap_or_else(PoisonError::into_inner)[id.index() - TABLE.len()],
    }
}

/// Attributes that Relay's text has and no result depends on: arguments of a call once more, settings of Relay's executors
/// and passes. Their values are not read, whatever their form.
const UNREAD: &[(&str, &[&str])] = &[
    ("arange", &["start", "stop", "step"]),
    ("broadcast_to", &["dtype"]),
    ("debug", &["debug_func"]),
    ("device_copy", &["src_virtual_device", "dst_virtual_device"]),
    ("dyn.broadcast_to", &["dtype"]),
    ("nn.space_to_depth", &["mode"]),
    ("on_device", &["virtual_device"]),
    ("sort", &["dtype"]),
];

/// Returns true for an attribute that Relay's text has and no result depends on.
pub fn is_unread(def: &OpDef, attr: &str) -> bool {
    UNREAD.iter().any(|(name, attrs)| *name == def.name && attrs.contains(&attr))
}

/// Returns true for an attribute that Relay leaves unset because the operator computes it at run time: an attribute of
/// `NAME` in a call to `dyn.NAME`, null or a number.
fn is_unset(def: &OpDef, attr: &str, value: &AttrValue) -> bool {
    let is_null = match value {
        AttrValue::List(items) => items.is_empty(),
        value => matches!(value, AttrValue::None | AttrValue::Int(_) | AttrValue::Float(_)),
    };
    let fixed = || def.name.strip_prefix("dyn.").and_then(lookup).map(get);
    is_null && def.attr(attr).is_none() && fixed().is_some_and(|def| def.attr(attr).is_some())
}

/// Checks attributes against the operator's schema and omits those that equal their default, and those that Relay leaves
/// unset. `None` denotes the default.
///
/// # Errors
/// If an attribute is unknown, missing or of the wrong kind; the help suggests the nearest known name.
pub fn normalize_attrs(def: &'static OpDef, attrs: Attrs) -> Result<Attrs, Box<Diagnostic>> {
    let fail = |message: String| Diagnostic::error(codes::types::BAD_ATTRIBUTE, message);
    let mut is_redundant = false;
    for (key, value) in attrs.iter() {
        let Some(attr) = def.attr(key) else {
            if is_unset(def, key, value) {
                is_redundant = true;
                continue;
            }
            let mut diagnostic = fail(format!("{} has no attribute \"{key}\"", def.name));
            if let Some(near) = nearest(key, def.attrs.iter().map(|a| a.name)) {
                diagnostic = diagnostic.help(format!("did you mean \"{near}\"?"));
            } else if def.attrs.is_empty() {
                diagnostic = diagnostic.note("the operator has no attributes");
            } else {
                let attr_names: Vec<_> = def.attrs.iter().map(|a| a.name).collect();
                diagnostic = diagnostic.note(format!("known attributes: {}", attr_names.join(", ")));
            }
            return Err(Box::new(diagnostic));
        };
        if !accepts(attr, value) {
            return Err(Box::new(fail(format!(
                "{}: attribute {key}: expected {}, found {value}",
                def.name, attr.kind
            ))));
        }
        is_redundant |= is_default(attr, value);
    }
    for attr in def.attrs {
        if attr.default == Default::Required && attrs.get(attr.name).is_none() {
            return Err(Box::new(fail(format!(
                "{}: expected the attribute \"{}\" ({}), found none",
                def.name, attr.name, attr.doc
            ))));
        }
    }
    if !is_redundant {
        return Ok(attrs);
    }
    let non_default = attrs.iter().filter(|(key, value)| def.attr(key).is_some_and(|a| !is_default(a, value)));
    Ok(Attrs::new(non_default.map(|(k, v)| (k.clone(), v.clone()))))
}

fn is_default(attr: &AttrDef, value: &AttrValue) -> bool {
    attr.default != Default::Required && (attr.default.value() == *value || *value == AttrValue::None)
}

fn accepts(attr: &AttrDef, value: &AttrValue) -> bool {
    let is_ints = |v: &AttrValue| v.as_ints().is_some();
    match (attr.kind, value) {
        (_, AttrValue::None) => attr.default != Default::Required,
        (AttrKind::Int, v) => v.as_int().is_some(),
        (AttrKind::Float, v) => v.as_float().is_some(),
        (AttrKind::Bool, v) => v.as_int().is_some(),
        (AttrKind::Str, v) => v.as_str().is_some(),
        (AttrKind::DType, v) => v.as_dtype().is_some() || v.as_str() == Some(""),
        (AttrKind::Ints, AttrValue::List(items)) => items.iter().all(|v| v.as_int().is_some() || is_ints(v)),
        (AttrKind::Ints | AttrKind::IntOrInts, v) => is_ints(v),
        (AttrKind::Floats, AttrValue::List(items)) => items.iter().all(|v| v.as_float().is_some()),
        (AttrKind::Floats, v) => v.as_float().is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_documented() {
        for pair in table().windows(2) {
            assert_ne!(pair[0].name, pair[1].name);
        }
        for def in table() {
            assert!(
                !def.doc.is_empty() && def.attrs.iter().all(|a| !a.doc.is_empty()),
                "{}: expected documentation",
                def.name
            );
            assert!(def.inputs.len() == def.arity.max, "{}: expected {} input names", def.name, def.arity.max);
        }
    }

    #[test]
    fn defaults_are_omitted() {
        let def = get(lookup("clip").unwrap());
        let attrs = Attrs::new([("a_min", AttrValue::Float(0.0)), ("a_max", AttrValue::Int(6))]);
        assert_eq!(normalize_attrs(def, attrs.clone()).unwrap(), attrs);
        let error = normalize_attrs(def, attrs.with("a_mx", 1.0)).unwrap_err();
        assert_eq!(error.help.as_deref(), Some("did you mean \"a_max\"?"));
    }
}

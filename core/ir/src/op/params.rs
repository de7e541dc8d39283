//! Attributes of a call, with the operator's defaults for omitted attributes.

use super::{Default, OpDef};
use crate::ir::{AttrValue, Attrs};
use crate::tensor::DType;

/// Typed access to attributes. Attributes are checked against the schema when a call is created, so an accessor of the
/// right kind always finds a value; an accessor of the wrong kind returns the zero value of its kind.
#[derive(Clone, Copy)]
pub struct Params<'a> {
    def: &'static OpDef,
    attrs: &'a Attrs,
}

impl<'a> Params<'a> {
    /// Creates the accessor for the attributes of a call to `def`.
    pub fn new(def: &'static OpDef, attrs: &'a Attrs) -> Params<'a> {
        Params { def, attrs }
    }

    /// Returns the operator.
    pub fn def(&self) -> &'static OpDef {
        self.def
    }

    /// Returns the explicitly given attributes, without defaults.
    pub fn attrs(&self) -> &'a Attrs {
        self.attrs
    }

    /// Returns the same attributes under the schema and the defaults of `def`.
    pub fn with_def(&self, def: &'static OpDef) -> Params<'a> {
        Params { def, attrs: self.attrs }
    }

    /// Returns the given or default value of attribute `name`; [`AttrValue::None`] if there is neither.
    pub fn value(&self, name: &str) -> AttrValue {
        match self.attrs.get(name) {
            Some(value) => value.clone(),
            None => self.def.attr(name).map_or(AttrValue::None, |a| a.default.value()),
        }
    }

    /// Iterates over all attributes of the schema with their values, in the schema's order.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, AttrValue)> + '_ {
        self.def.attrs.iter().map(|a| (a.name, self.value(a.name)))
    }

    /// Returns an integer attribute; 0 if it is `None`.
    pub fn int(&self, name: &str) -> i64 {
        self.opt_int(name).unwrap_or(0)
    }

    /// Returns an integer attribute, which may be `None`.
    pub fn opt_int(&self, name: &str) -> Option<i64> {
        self.value(name).as_int()
    }

    /// Returns a floating-point attribute; 0 if it is `None`.
    pub fn float(&self, name: &str) -> f64 {
        self.value(name).as_float().unwrap_or(0.0)
    }

    /// Returns a Boolean attribute; false if it is `None`.
    pub fn bool(&self, name: &str) -> bool {
        self.int(name) != 0
    }

    /// Returns an attribute that is a list of integers; empty if it is `None`.
    pub fn ints(&self, name: &str) -> Vec<i64> {
        self.opt_ints(name).unwrap_or_default()
    }

    /// Returns an attribute that is a list of integers, which may be `None`.
    pub fn opt_ints(&self, name: &str) -> Option<Vec<i64>> {
        self.value(name).as_ints()
    }

    /// Returns an attribute that is a list of floating-point numbers; empty if it is `None`.
    pub fn floats(&self, name: &str) -> Vec<f64> {
        match self.value(name) {
            AttrValue::List(items) => items.iter().filter_map(AttrValue::as_float).collect(),
            other => other.as_float().into_iter().collect(),
        }
    }

    /// Returns a string attribute; empty if it is `None`.
    pub fn string(&self, name: &str) -> String {
        self.value(name).as_str().unwrap_or_default().to_owned()
    }

    /// Returns the element type in attribute `name`; `None` if it is empty or not given.
    pub fn dtype(&self, name: &str) -> Option<DType> {
        self.value(name).as_dtype()
    }

    /// Returns spatial padding as (before, after) per axis. A single value pads all sides; one value per axis pads both
    /// sides of that axis; with two values per axis, all `before` values precede all `after` values (Relay's top, left,
    /// bottom, right).
    pub fn padding(&self, axes: usize) -> Vec<(i64, i64)> {
        let p = self.ints("padding");
        (0..axes)
            .map(|i| match p.len() {
                0 => (0, 0),
                1 => (p[0], p[0]),
                n if n < 2 * axes => (p.get(i).copied().unwrap_or(0), p.get(i).copied().unwrap_or(0)),
                _ => (p[i], p[axes + i]),
            })
            .collect()
    }

    /// Returns a list with one value per spatial axis; a single value applies to all axes.
    pub fn per_axis(&self, name: &str, axes: usize) -> Vec<i64> {
        let v = self.ints(name);
        (0..axes).map(|i| v.get(i).or(v.last()).copied().unwrap_or(1)).collect()
    }
}

impl Default {
    /// Returns the default as an attribute value.
    pub fn value(&self) -> AttrValue {
        match *self {
            Default::Required | Default::None => AttrValue::None,
            Default::Int(v) => AttrValue::Int(v),
            Default::Float(v) => AttrValue::Float(v),
            Default::Bool(v) => AttrValue::Bool(v),
            Default::Str(v) => AttrValue::from(v),
            Default::Ints(v) => AttrValue::from(v),
            Default::Floats(v) => AttrValue::List(v.iter().map(|&f| AttrValue::Float(f)).collect()),
        }
    }
}

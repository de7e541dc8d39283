//! Calls of operators that a vendor declares: dimensions by name, from the sizes that the declaration permits.

use super::{Argument, Constraint, Recipe, argument_type, unconstrained};
use crate::generate::draw::Sampler;
use byoc_ir::declared::{Declared, Port};
use byoc_ir::ir::{AttrValue, Attrs, Dim};
use byoc_ir::op::{AttrKind, Default, OpDef};
use byoc_ir::tensor::DType;
use std::collections::BTreeMap;

pub(super) fn propose(def: &'static OpDef, sampler: &mut Sampler, constraints: &[Constraint]) -> Option<Recipe> {
    let declared = Declared::of(def)?;
    let leading = sampler.shape_of_rank(0, 2);
    let mut drawn = Drawn { declared, leading, sizes: BTreeMap::new(), dtype: sampler.theme.dtype };
    let mut args: Vec<Argument> = Vec::new();
    for (index, port) in declared.inputs.iter().enumerate() {
        let (dtype, shape) = match argument_type(constraints, index) {
            Some((dtype, shape)) => {
                drawn.bind(port, &shape);
                (dtype, shape)
            }
            None => drawn.argument(port, sampler),
        };
        args.push(unconstrained(dtype, shape));
    }
    let required = def.attrs.iter().filter(|attr| attr.default == Default::Required);
    let attrs: Vec<(&str, AttrValue)> = required.map(|attr| (attr.name, value(attr.kind, sampler))).collect();
    Some(Recipe { args, attrs: Attrs::new(attrs) })
}

/// Sizes of one case.
struct Drawn {
    declared: &'static Declared,
    leading: Vec<usize>,
    sizes: BTreeMap<String, usize>,
    dtype: DType,
}

impl Drawn {
    /// Takes the sizes of an argument that there is.
    fn bind(&mut self, port: &Port, shape: &[usize]) {
        let Some(dims) = &port.dims else { return };
        let split = shape.len().saturating_sub(dims.len());
        if port.leading {
            self.leading = shape[..split].to_vec();
        }
        for (dim, &size) in dims.iter().zip(&shape[split..]) {
            if let Some(name) = dim.name() {
                self.sizes.entry(name.to_string()).or_insert(size);
            }
        }
    }

    fn argument(&mut self, port: &Port, sampler: &mut Sampler) -> (DType, Vec<usize>) {
        let dtype = match port.dtypes.is_empty() || port.dtypes.contains(&self.dtype) {
            true => self.dtype,
            false => sampler.pick(&port.dtypes),
        };
        let mut shape = if port.leading || port.dims.is_none() { self.leading.clone() } else { Vec::new() };
        for dim in port.dims.iter().flatten() {
            shape.push(self.size(dim, sampler));
        }
        (dtype, shape)
    }

    fn size(&mut self, dim: &Dim, sampler: &mut Sampler) -> usize {
        let Some(name) = dim.name() else { return dim.number() };
        if let Some(size) = self.sizes.get(&**name) {
            return *size;
        }
        let size = match self.declared.sizes.get(&**name) {
            Some(permitted) => sampler.pick(permitted),
            None => sampler.int(1, 9) as usize,
        };
        self.sizes.insert(name.to_string(), size);
        size
    }
}

fn value(kind: AttrKind, sampler: &mut Sampler) -> AttrValue {
    match kind {
        AttrKind::Float => AttrValue::Float(sampler.pick(&[0.25, 0.5, 1.0, 2.0])),
        AttrKind::Bool => AttrValue::Bool(sampler.pick(&[false, true])),
        AttrKind::Str => AttrValue::Str("".into()),
        AttrKind::Ints | AttrKind::Floats => AttrValue::ints([1]),
        _ => AttrValue::Int(sampler.int(1, 4)),
    }
}

//! Type relation of declared operators.

use super::{Declared, Port};
use crate::diag::{Diagnostic, codes};
use crate::ir::{Dim, TensorType, Type};
use crate::op::{AttrKind, Relation, TypeResult};
use std::collections::BTreeMap;

/// Dimensions that the arguments give to the names of a declaration.
#[derive(Default)]
struct Bound {
    names: BTreeMap<String, Dim>,
    leading: Option<Vec<Dim>>,
}

/// Infers the type of a call from the declaration.
pub fn relate(relation: &Relation<'_>) -> TypeResult {
    let Some(declared) = Declared::of(relation.def) else {
        return Err(relation.error(codes::types::UNKNOWN_OPERATOR, "expected a declared operator, found another one"));
    };
    let mut bound = Bound::default();
    for (index, port) in declared.inputs.iter().enumerate() {
        bind(relation, &mut bound, port, relation.tensor(index)?)?;
    }
    if declared.outputs.is_empty() {
        return match declared.decompose(&relation.params, relation.args) {
            Some(module) => {
                let module = module?;
                Ok(module.main().map_or(Type::Unknown, |main| module.ty(main.body).clone()))
            }
            None => Err(relation.mismatch("expected the types of the outputs, found none")),
        };
    }
    for attr in relation.def.attrs.iter().filter(|attr| attr.kind == AttrKind::Int) {
        let value = usize::try_from(relation.params.int(attr.name)).map_err(|_| {
            relation.error(
                codes::types::BAD_ATTRIBUTE,
                format!("attribute {}: expected a size, found less than 0", attr.name),
            )
        });
        let is_used = declared
            .outputs
            .iter()
            .flat_map(|port| port.dims.iter().flatten())
            .any(|dim| dim.symbols().iter().any(|name| ***name == *attr.name));
        if is_used {
            bound.names.insert(attr.name.to_owned(), Dim::Fixed(value?));
        }
    }
    let types: Vec<Type> =
        declared.outputs.iter().map(|port| output(relation, declared, &bound, port)).collect::<Result<_, _>>()?;
    Ok(if let [single] = &types[..] { single.clone() } else { Type::tuple(types) })
}

/// Compares an argument with the declaration and binds its dimensions.
fn bind(relation: &Relation<'_>, bound: &mut Bound, port: &Port, ty: &TensorType) -> Result<(), Box<Diagnostic>> {
    let name = port.name;
    if !port.dtypes.is_empty() && !port.dtypes.contains(&ty.dtype) {
        let expected: Vec<String> = port.dtypes.iter().map(ToString::to_string).collect();
        return Err(relation.mismatch(format!("{name}: expected {}, found {}", expected.join(" or "), ty.dtype)));
    }
    let Some(dims) = &port.dims else { return Ok(()) };
    let rank = ty.dims.len();
    if rank < dims.len() || (rank > dims.len() && !port.leading) {
        let least = if port.leading { "at least " } else { "" };
        return Err(relation.mismatch(format!("{name}: expected {least}{} dimensions, found {ty}", dims.len())));
    }
    let (leading, rest) = ty.dims.split_at(rank - dims.len());
    if port.leading {
        match &bound.leading {
            None => bound.leading = Some(leading.to_vec()),
            Some(first) if first.len() == leading.len() => {
                let same = first.iter().zip(leading).map(|(a, b)| relation.same_dim(name, a, b));
                bound.leading = Some(same.collect::<Result<_, _>>()?);
            }
            Some(first) => {
                let message = format!("{name}: expected {} leading dimensions, found {}", first.len(), leading.len());
                return Err(relation.mismatch(message));
            }
        }
    }
    for (expected, found) in dims.iter().zip(rest) {
        match expected.name() {
            None => drop(relation.same_dim(name, expected, found)?),
            Some(symbol) => {
                let dim = match bound.names.get(&**symbol) {
                    Some(other) => relation.same_dim(&format!("{name}, dimension {symbol}"), other, found)?,
                    None => found.clone(),
                };
                bound.names.insert(symbol.to_string(), dim);
            }
        }
    }
    Ok(())
}

fn output(relation: &Relation<'_>, declared: &Declared, bound: &Bound, port: &Port) -> TypeResult {
    let like = declared.inputs.iter().position(|input| input.name == port.same_dtype);
    let dtype = match (like, port.dtypes.first()) {
        (Some(index), _) => relation.tensor(index)?.dtype,
        (None, Some(dtype)) => *dtype,
        (None, None) => return Err(relation.mismatch("expected an element type of the output, found none")),
    };
    let leading = bound.leading.iter().flatten().filter(|_| port.leading).cloned();
    let dims = port.dims.iter().flatten().map(|dim| dim.with_dims(|name| bound.names.get(name).cloned()));
    Ok(Type::Tensor(TensorType { dtype, dims: leading.chain(dims).collect() }.into()))
}

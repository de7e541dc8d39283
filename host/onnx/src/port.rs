//! Inputs and outputs as a model declares them. A value that is no tensor takes several ports.

use super::proto::{DimensionValue, ElementTypeProto, TensorTypeProto, TypeProto, ValueInfoProto};
use super::{invalid_model, tensor};
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::interface::{PortInfo, PortKind};
use byoc_ir::ir::{Dim, TensorType};
use byoc_ir::tensor::DType;

/// Returns the ports of an input or output.
///
/// # Errors
/// If the model declares no type, or an unsupported one.
pub(super) fn of(info: &ValueInfoProto, role: &str) -> Result<Vec<PortInfo>, Diagnostic> {
    let name = &info.name;
    let refuse = |found: String| {
        let message = format!("{role} \"{name}\": unsupported type, {found}");
        let note = "supported types: tensors, sequences of tensors and optional ones, of numbers or of strings";
        Err(Diagnostic::error(codes::frontends::UNSUPPORTED_TYPE, message).note(note))
    };
    let Some(ty) = &info.r#type else {
        return Err(invalid_model(format!("{role} \"{name}\": expected a type, found none")));
    };
    let element = |element: &ElementTypeProto| element.elem_type.clone().unwrap_or_default();
    let mut ports = match ty {
        TypeProto { tensor_type: Some(tensor), .. } => {
            let Some(dtype) = element_type(tensor) else {
                return refuse(format!("a tensor of {}", tensor::type_name(tensor.elem_type)));
            };
            let kind = if is_string(tensor) { PortKind::Strings } else { PortKind::Tensor };
            let dims = dims(tensor, name, role)?;
            vec![PortInfo { name: name.clone(), dtype, dims, kind }]
        }
        TypeProto { sequence_type: Some(inner), .. } => match element(inner) {
            TypeProto { tensor_type: Some(tensor), .. } => {
                let kind = if is_string(&tensor) { PortKind::StringSequence } else { PortKind::Sequence };
                return match packed(name, &tensor, kind) {
                    Some(ports) => Ok(ports),
                    None => refuse(format!("a sequence of tensors of {}", tensor::type_name(tensor.elem_type))),
                };
            }
            TypeProto { map_type: Some(map), .. } if role == "output" => {
                let value = map.value_type.as_ref().and_then(|ty| ty.tensor_type.as_ref()).and_then(element_type);
                let (Some(dtype), 7 | tensor::STRING) = (value, map.key_type) else {
                    return refuse("a sequence of maps with other keys than integers and strings".into());
                };
                let kind = if map.key_type == 7 { PortKind::Maps } else { PortKind::StringMaps };
                vec![
                    PortInfo { name: name.clone(), dtype, dims: Some(vec![Dim::Any; 2]), kind },
                    part(format!("{name}.keys"), DType::I64, vec![Dim::Any]),
                ]
            }
            _ => return refuse("a sequence of other values than tensors".into()),
        },
        TypeProto { optional_type: Some(inner), .. } => match element(inner) {
            TypeProto { tensor_type: Some(tensor), .. } if !is_string(&tensor) => {
                return match packed(name, &tensor, PortKind::Optional) {
                    Some(ports) => Ok(ports),
                    None => refuse(format!("an optional tensor of {}", tensor::type_name(tensor.elem_type))),
                };
            }
            TypeProto { sequence_type: Some(inner), .. } => {
                let tensor = element(&inner).tensor_type.filter(|tensor| !is_string(tensor));
                return match tensor.and_then(|tensor| packed(name, &tensor, PortKind::OptionalSequence)) {
                    Some(ports) => Ok(ports),
                    None => refuse("an optional sequence of other values than tensors of numbers".into()),
                };
            }
            _ => return refuse("an optional value other than tensors of numbers".into()),
        },
        TypeProto { map_type: Some(_), .. } => return refuse("a map".into()),
        TypeProto { sparse_tensor_type: Some(_), .. } => return refuse("a sparse tensor".into()),
        _ => return refuse("an unknown one".into()),
    };
    if matches!(ports[0].kind, PortKind::Strings | PortKind::StringMaps) {
        ports.push(part(format!("{name}.bytes"), DType::U8, vec![Dim::Any]));
    }
    Ok(ports)
}

fn part(name: String, dtype: DType, dims: Vec<Dim>) -> PortInfo {
    PortInfo { name, dtype, dims: Some(dims), kind: PortKind::Part }
}

/// Returns the ports of a sequence of tensors of one rank; `None` if their type is unsupported. A rank that the model does
/// not declare is that of the input's shapes.
fn packed(name: &str, tensor: &TensorTypeProto, kind: PortKind) -> Option<Vec<PortInfo>> {
    let elements = PortInfo { name: name.to_owned(), dtype: element_type(tensor)?, dims: Some(vec![Dim::Any]), kind };
    // Tools write no dimensions for unknown ones.
    let shape = tensor.shape.as_ref().filter(|shape| !shape.dim.is_empty());
    let rank = shape.map(|shape| vec![Dim::Any, Dim::Fixed(shape.dim.len())]);
    let shapes = PortInfo { dims: rank, ..part(format!("{name}.shapes"), DType::I64, Vec::new()) };
    let mut ports = vec![elements, shapes];
    if kind == PortKind::StringSequence {
        ports.push(part(format!("{name}.bytes"), DType::U8, vec![Dim::Any]));
    }
    if kind == PortKind::OptionalSequence {
        ports.push(part(format!("{name}.present"), DType::Bool, Vec::new()));
    }
    Some(ports)
}

fn is_string(tensor: &TensorTypeProto) -> bool {
    tensor.elem_type == tensor::STRING
}

/// Returns the element type, that of the spans for strings; `None` if it is unsupported.
fn element_type(tensor: &TensorTypeProto) -> Option<DType> {
    if is_string(tensor) { Some(DType::I64) } else { tensor::dtype(tensor.elem_type) }
}

fn dims(tensor: &TensorTypeProto, name: &str, role: &str) -> Result<Option<Vec<Dim>>, Diagnostic> {
    let rank = tensor.shape.as_ref().map_or(0, |shape| shape.dim.len());
    if rank > TensorType::MAX_RANK {
        let max = TensorType::MAX_RANK;
        let message = format!("{role} \"{name}\": expected a tensor of at most {max} dimensions, found {rank}");
        return Err(Diagnostic::error(codes::frontends::UNSUPPORTED_TYPE, message));
    }
    Ok(tensor.shape.as_ref().map(|shape| {
        let unnamed_dim = |axis: usize| Dim::symbol(format!("{name}.{axis}"));
        let dims = shape.dim.iter().enumerate();
        dims.map(|(axis, dim)| match &dim.value {
            Some(DimensionValue::DimValue(n)) => usize::try_from(*n).map_or_else(|_| unnamed_dim(axis), Dim::Fixed),
            Some(DimensionValue::DimParam(name)) if !is_placeholder(name) => Dim::symbol(name.as_str()),
            _ => unnamed_dim(axis),
        })
        .collect()
    }))
}

/// Tests for names that tools write for any dimension that they do not know, such as `?` and `None`: two dimensions of
/// this name are not equal.
fn is_placeholder(name: &str) -> bool {
    !name.contains(char::is_alphabetic)
        || ["none", "null", "nan", "unknown"].iter().any(|word| name.eq_ignore_ascii_case(word))
}

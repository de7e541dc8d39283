//! Values of the inputs and outputs of a model, and the tensors in which its program holds them.
//!
//! A tensor of numbers is one tensor; strings, sequences, optional values and maps take several
//! ([`PortKind`]), whose ports follow each other.

use crate::exec::program::Port;
use crate::summary::{MAX_SHOWN_VALUES, Summary};
use byoc_files::npy;
use byoc_ir::diag::{Code, Diagnostic, codes};
use byoc_ir::escape;
use byoc_ir::interface::PortKind;
use byoc_ir::ir::Type;
use byoc_ir::tensor::strings::{self, EncodeError};
use byoc_ir::tensor::{DType, Shape, Tensor, element_count};
use serde_json::json;

/// Value of an input or output.
#[derive(Clone, Debug, PartialEq)]
pub enum PortValue {
    /// Tensor of numbers.
    Tensor(Tensor),
    /// Tensor of strings.
    Strings(StringTensor),
    /// Sequence of tensors of one rank, all of numbers or all of strings.
    Sequence(Vec<PortValue>),
    /// Tensor that may be absent.
    Optional(Option<Tensor>),
    /// Sequence of tensors of numbers that may be absent.
    OptionalSequence(Option<Vec<PortValue>>),
    /// Sequence of maps with the same keys: a row of values for each map.
    Maps(Keys, Tensor),
}

/// Tensor of strings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StringTensor {
    /// Dimensions.
    pub shape: Shape,
    /// Elements in row-major order.
    pub strings: Vec<String>,
}

/// Keys of maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keys {
    /// Integers.
    Numbers(Vec<i64>),
    /// Strings.
    Strings(Vec<String>),
}

impl From<Tensor> for PortValue {
    fn from(tensor: Tensor) -> PortValue {
        PortValue::Tensor(tensor)
    }
}

/// Splits ports into those of each value, the first of which names it.
pub fn by_value(ports: &[Port]) -> impl Iterator<Item = &[Port]> {
    ports.chunk_by(|_, next| next.kind == PortKind::Part)
}

/// Returns true if a value is no tensor of numbers.
pub fn has_other_values(ports: &[Port]) -> bool {
    ports.iter().any(|port| port.kind != PortKind::Tensor)
}

/// Formats the type of the value of these ports.
pub fn type_text(ports: &[Port]) -> String {
    let port = &ports[0];
    let rank = || ports.get(1).and_then(|shapes| shapes.ty.dims.get(1)?.fixed());
    let element = |dtype: &str| match rank() {
        Some(rank) => format!("{dtype} of rank {rank}"),
        None => dtype.to_owned(),
    };
    match port.kind {
        PortKind::Tensor | PortKind::Part => Type::Tensor(port.ty.clone().into()).to_string(),
        // Written as types of numbers are.
        PortKind::Strings => {
            let ty = Type::Tensor(port.ty.clone().into()).to_string();
            if port.ty.dims.is_empty() { "string".to_owned() } else { ty.replace(DType::I64.name(), "string") }
        }
        PortKind::Sequence => format!("sequence of {}", element(port.ty.dtype.name())),
        PortKind::StringSequence => format!("sequence of {}", element("string")),
        PortKind::Optional => format!("optional {}", element(port.ty.dtype.name())),
        PortKind::OptionalSequence => format!("optional sequence of {}", element(port.ty.dtype.name())),
        PortKind::Maps => format!("maps from int64 to {}", port.ty.dtype),
        PortKind::StringMaps => format!("maps from string to {}", port.ty.dtype),
    }
}

impl PortValue {
    /// Formats the type of the value.
    pub fn type_text(&self) -> String {
        match self {
            PortValue::Tensor(tensor) => Type::tensor(tensor.dtype(), tensor.shape()).to_string(),
            PortValue::Strings(StringTensor { shape, .. }) => format!("string{:?}", &shape[..]),
            PortValue::Sequence(elements) | PortValue::OptionalSequence(Some(elements)) => {
                format!("a sequence of length {}", elements.len())
            }
            PortValue::Optional(Some(tensor)) => format!("an optional {}{:?}", tensor.dtype(), tensor.shape()),
            PortValue::Optional(None) | PortValue::OptionalSequence(None) => "an absent value".to_owned(),
            PortValue::Maps(_, values) => format!("{} maps", values.shape().first().copied().unwrap_or(0)),
        }
    }

    /// Returns the tensors of an input, one for each of its ports.
    ///
    /// # Errors
    /// If the value is of another kind, or its tensors have different types or ranks.
    pub fn into_tensors(self, ports: &[Port]) -> Result<Vec<Tensor>, Diagnostic> {
        let port = &ports[0];
        let found = self.type_text();
        match (port.kind, self) {
            (PortKind::Tensor, PortValue::Tensor(tensor)) => Ok(vec![tensor]),
            (PortKind::Strings, PortValue::Strings(StringTensor { shape, strings })) => {
                encoded(port, &shape, &strings).map(Vec::from)
            }
            (PortKind::Sequence | PortKind::StringSequence, PortValue::Sequence(elements)) => pack(ports, elements),
            (PortKind::OptionalSequence, PortValue::OptionalSequence(value)) => {
                let present = Tensor::from_bools(&[], &[value.is_some()]);
                let mut tensors = pack(ports, value.unwrap_or_default())?;
                tensors.push(present);
                Ok(tensors)
            }
            (PortKind::Optional, PortValue::Optional(value)) => {
                pack(ports, value.map(PortValue::Tensor).into_iter().collect())
            }
            (PortKind::Optional, PortValue::Tensor(value)) => pack(ports, vec![PortValue::Tensor(value)]),
            _ => Err(input_error(codes::runtime::INPUT_DTYPE, ports, &found)),
        }
    }
}

impl PortValue {
    /// Summarizes the value in one line for a terminal, and as JSON, for each tensor in it.
    pub fn summaries(&self, name: &str) -> Vec<(String, serde_json::Value)> {
        let summary = |name: &str, tensor: &Tensor| {
            let summary = Summary::new(name, tensor);
            (summary.to_line(), summary.to_json())
        };
        let listing = |ty: String, first: Vec<String>, count: usize| {
            let ellipsis = if count > first.len() { ", ..." } else { "" };
            let line = format!("{}: {ty}  [{}{ellipsis}]", escape::line(name), escape::line(&first.join(", ")));
            (line, json!({ "output": name, "type": ty, "first": first }))
        };
        let quoted = |strings: &[String]| -> Vec<String> {
            strings.iter().take(MAX_SHOWN_VALUES).map(|string| format!("\"{string}\"")).collect()
        };
        match self {
            PortValue::Tensor(tensor) => vec![summary(name, tensor)],
            PortValue::Strings(tensor) => {
                vec![listing(self.type_text(), quoted(&tensor.strings), tensor.strings.len())]
            }
            PortValue::Sequence(elements) | PortValue::OptionalSequence(Some(elements)) => {
                let of_element = |(i, element): (usize, &PortValue)| element.summaries(&format!("{name}[{i}]"));
                let elements = elements.iter().enumerate().flat_map(of_element);
                std::iter::once(listing(self.type_text(), Vec::new(), 0)).chain(elements).collect()
            }
            PortValue::Optional(Some(tensor)) => vec![summary(name, tensor)],
            PortValue::Optional(None) | PortValue::OptionalSequence(None) => {
                vec![listing(self.type_text(), Vec::new(), 0)]
            }
            PortValue::Maps(keys, values) => {
                let (first, count) = match keys {
                    Keys::Numbers(keys) => {
                        (keys.iter().take(MAX_SHOWN_VALUES).map(i64::to_string).collect(), keys.len())
                    }
                    Keys::Strings(keys) => (quoted(keys), keys.len()),
                };
                vec![listing(format!("{} with keys", self.type_text()), first, count), summary(name, values)]
            }
        }
    }

    /// Returns the value as arrays of the format `.npy`, each with its name.
    pub fn arrays(&self, name: &str) -> Vec<(String, Vec<u8>)> {
        let array = |tensor: &Tensor| vec![(name.to_owned(), npy::encode(tensor))];
        match self {
            PortValue::Tensor(tensor) | PortValue::Optional(Some(tensor)) => array(tensor),
            PortValue::Strings(StringTensor { shape, strings }) => {
                vec![(name.to_owned(), npy::encode_strings(shape, strings))]
            }
            PortValue::Sequence(elements) | PortValue::OptionalSequence(Some(elements)) => {
                let of_element = |(i, element): (usize, &PortValue)| element.arrays(&format!("{name}.{i}"));
                elements.iter().enumerate().flat_map(of_element).collect()
            }
            PortValue::Optional(None) | PortValue::OptionalSequence(None) => Vec::new(),
            PortValue::Maps(keys, values) => {
                let keys = match keys {
                    Keys::Numbers(keys) => npy::encode(&Tensor::from_slice(&[keys.len()], keys)),
                    Keys::Strings(keys) => npy::encode_strings(&[keys.len()], keys),
                };
                array(values).into_iter().chain([(format!("{name}.keys"), keys)]).collect()
            }
        }
    }
}

fn input_error(code: Code, ports: &[Port], found: &str) -> Diagnostic {
    let message = format!("input \"{}\": expected {}, found {found}", ports[0].name, type_text(ports));
    Diagnostic::error(code, message)
}

fn encoded(port: &Port, shape: &[usize], strings: &[String]) -> Result<[Tensor; 2], Diagnostic> {
    if element_count(shape) != Some(strings.len()) {
        let message = format!(
            "input \"{}\": expected a string for each element of {shape:?}, found {}",
            port.name,
            strings.len()
        );
        return Err(Diagnostic::error(codes::runtime::INPUT_SHAPE, message));
    }
    strings::encode(shape, strings).map_err(|error| string_error("input", port, error))
}

fn string_error(role: &str, port: &Port, error: EncodeError) -> Diagnostic {
    match error {
        EncodeError::Invalid(reason) => {
            Diagnostic::error(codes::runtime::BAD_STRING, format!("{role} \"{}\": {reason}", port.name))
        }
        EncodeError::Memory(error) => Diagnostic::from(error).note(format!("for {role} \"{}\"", port.name)),
    }
}

/// Returns the tensors of a sequence: elements, shapes, and the bytes of strings.
fn pack(ports: &[Port], elements: Vec<PortValue>) -> Result<Vec<Tensor>, Diagnostic> {
    let (port, has_strings) = (&ports[0], ports[0].kind == PortKind::StringSequence);
    let rank = ports.get(1).and_then(|shapes| shapes.ty.dims.get(1)?.fixed()).unwrap_or(0);
    let (mut sizes, mut bytes, mut strings, count) = (Vec::new(), Vec::new(), Vec::new(), elements.len());
    for (i, element) in elements.into_iter().enumerate() {
        let found = format!("{} at position {i}", element.type_text());
        let wrong = |code| Err(input_error(code, ports, &found));
        let shape = match element {
            PortValue::Tensor(tensor) if !has_strings && tensor.dtype() == port.ty.dtype => {
                bytes.extend_from_slice(tensor.bytes());
                Shape::from_slice(tensor.shape())
            }
            PortValue::Strings(tensor) if has_strings => {
                strings.extend(tensor.strings);
                tensor.shape
            }
            _ => return wrong(codes::runtime::INPUT_DTYPE),
        };
        if shape.len() != rank {
            return wrong(codes::runtime::INPUT_SHAPE);
        }
        sizes.extend(shape.iter().map(|&size| size as i64));
    }
    let shapes = Tensor::from_slice(&[count, rank], &sizes);
    if has_strings {
        let [spans, bytes] = encoded(port, &[strings.len()], &strings)?;
        return Ok(vec![spans, shapes, bytes]);
    }
    let length = bytes.len() / port.ty.dtype.size();
    let data = Tensor::build(port.ty.dtype, &[length], |data| data.copy_from_slice(&bytes))?;
    Ok(vec![data, shapes])
}

/// Returns the values of outputs, in order, from the tensors of their ports.
///
/// # Errors
/// If the tensors of a value do not belong together, or strings are invalid.
pub fn values(ports: &[Port], tensors: Vec<Tensor>) -> Result<Vec<PortValue>, Diagnostic> {
    let mut tensors = tensors.into_iter();
    by_value(ports).map(|ports| value(ports, tensors.by_ref().take(ports.len()).collect())).collect()
}

fn value(ports: &[Port], tensors: Vec<Tensor>) -> Result<PortValue, Diagnostic> {
    let port = &ports[0];
    let strings = |spans: &Tensor, bytes: &Tensor| -> Result<StringTensor, Diagnostic> {
        let strings = strings::decode(spans, bytes).map_err(|error| string_error("output", port, error))?.strings;
        Ok(StringTensor { shape: spans.shape().into(), strings })
    };
    Ok(match (port.kind, tensors.as_slice()) {
        (PortKind::Tensor, [tensor]) => PortValue::Tensor(tensor.clone()),
        (PortKind::Strings, [spans, bytes]) => PortValue::Strings(strings(spans, bytes)?),
        (PortKind::Sequence, [data, shapes]) => {
            PortValue::Sequence(unpack(port, data, shapes)?.into_iter().map(PortValue::Tensor).collect())
        }
        (PortKind::StringSequence, [spans, shapes, bytes]) => {
            let elements = unpack(port, spans, shapes)?.into_iter();
            let elements = elements.map(|spans| strings(&spans, bytes).map(PortValue::Strings));
            PortValue::Sequence(elements.collect::<Result<_, _>>()?)
        }
        (PortKind::OptionalSequence, [data, shapes, present]) => {
            let elements = unpack(port, data, shapes)?.into_iter().map(PortValue::Tensor).collect();
            let is_present = present.view().to_i64s().is_some_and(|values| values == [1]);
            PortValue::OptionalSequence(is_present.then_some(elements))
        }
        (PortKind::Optional, [data, shapes]) => PortValue::Optional(unpack(port, data, shapes)?.into_iter().next()),
        (PortKind::Maps, [values, keys]) => {
            PortValue::Maps(Keys::Numbers(keys.view().to_i64s().unwrap_or_default()), values.clone())
        }
        (PortKind::StringMaps, [values, keys, bytes]) => {
            PortValue::Maps(Keys::Strings(strings(keys, bytes)?.strings), values.clone())
        }
        _ => {
            let message = format!("output \"{}\": expected the tensors of a {}", port.name, port.kind.name());
            return Err(Diagnostic::error(codes::runtime::BAD_PROGRAM, message));
        }
    })
}

/// Returns the tensors of a sequence.
fn unpack(port: &Port, data: &Tensor, shapes: &Tensor) -> Result<Vec<Tensor>, Diagnostic> {
    let invalid = || {
        let message = format!("output \"{}\": expected as many elements as the shapes of the sequence have", port.name);
        Diagnostic::error(codes::runtime::BAD_PROGRAM, message)
    };
    let &[count, rank] = shapes.shape() else { return Err(invalid()) };
    let sizes = shapes.view().to_i64s().ok_or_else(invalid)?;
    let width = data.dtype().size();
    let (mut tensors, mut begin) = (Vec::with_capacity(count), 0usize);
    for i in 0..count {
        let sizes = sizes.get(i * rank..(i + 1) * rank).ok_or_else(invalid)?;
        let shape: Option<Shape> = sizes.iter().map(|&size| usize::try_from(size).ok()).collect();
        let shape = shape.ok_or_else(invalid)?;
        let size = element_count(&shape).and_then(|count| count.checked_mul(width)).ok_or_else(invalid)?;
        let end = begin.checked_add(size).ok_or_else(invalid)?;
        let bytes = data.bytes().get(begin..end).ok_or_else(invalid)?;
        tensors.push(Tensor::build(data.dtype(), &shape, |out| out.copy_from_slice(bytes))?);
        begin = end;
    }
    Ok(tensors)
}

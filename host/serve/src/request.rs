//! Inference requests and responses, as both protocols have them.

use crate::error::{Result, ServeError};
use bytes::Bytes;
use std::collections::BTreeMap;

/// Parameter of a request or of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub enum Param {
    Bool(bool),
    Int(i64),
    Uint(u64),
    Float(f64),
    Text(String),
}

/// Parameters by name.
pub type Params = BTreeMap<String, Param>;

impl Param {
    /// Returns the parameter as a count.
    ///
    /// # Errors
    /// A parameter that is no integer of at least 0.
    pub fn count(&self, name: &str) -> Result<u64> {
        match self {
            Param::Int(value) => u64::try_from(*value).ok(),
            Param::Uint(value) => Some(*value),
            _ => None,
        }
        .ok_or_else(|| self.wrong(name, "an integer >= 0"))
    }

    /// Returns the parameter as a Boolean.
    ///
    /// # Errors
    /// A parameter that is no Boolean.
    pub fn bool(&self, name: &str) -> Result<bool> {
        match self {
            Param::Bool(value) => Ok(*value),
            _ => Err(self.wrong(name, "true or false")),
        }
    }

    /// Returns the parameter as text.
    ///
    /// # Errors
    /// A parameter that is no text.
    pub fn text(&self, name: &str) -> Result<&str> {
        match self {
            Param::Text(value) => Ok(value),
            _ => Err(self.wrong(name, "a string")),
        }
    }

    fn wrong(&self, name: &str, expected: &str) -> ServeError {
        let found = match self {
            Param::Bool(value) => value.to_string(),
            Param::Int(value) => value.to_string(),
            Param::Uint(value) => value.to_string(),
            Param::Float(value) => value.to_string(),
            Param::Text(value) => format!("{:?}", value.chars().take(40).collect::<String>()),
        };
        ServeError::bad_request(format!("parameter '{name}': expected {expected}, found {found}"))
    }
}

/// Inference request.
#[derive(Clone, Debug, Default)]
pub struct InferRequest {
    /// Id that the client gave; empty if it gave none.
    pub id: String,
    /// Parameters of the request.
    pub params: Params,
    /// Inputs in the order of the request.
    pub inputs: Vec<InputTensor>,
    /// Outputs asked for; empty for all.
    pub outputs: Vec<RequestedOutput>,
}

/// Input of a request.
#[derive(Clone, Debug)]
pub struct InputTensor {
    pub name: String,
    pub datatype: String,
    pub shape: Vec<i64>,
    pub data: InputData,
}

/// Elements of an input.
#[derive(Clone, Debug)]
pub enum InputData {
    /// Elements in the binary layout of the protocol.
    Bytes(Bytes),
    /// Elements in shared memory.
    Shared(SharedSpan),
}

/// Part of a region of shared memory.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedSpan {
    pub region: String,
    pub offset: u64,
    pub byte_size: u64,
}

/// Output that a request asks for.
#[derive(Clone, Debug, Default)]
pub struct RequestedOutput {
    pub name: String,
    /// Number of classes to return instead of the values; 0 for the values.
    pub classes: u64,
    /// Place for the values.
    pub shared: Option<SharedSpan>,
    /// Form of the values over HTTP; `None` for the form that the request chose for all outputs.
    pub binary: Option<bool>,
}

/// Response to an inference request.
#[derive(Clone, Debug)]
pub struct InferResponse {
    pub model: String,
    pub version: String,
    pub id: String,
    pub outputs: Vec<OutputTensor>,
}

/// Output of a response.
#[derive(Clone, Debug)]
pub struct OutputTensor {
    pub name: String,
    pub datatype: crate::datatype::Datatype,
    pub shape: Vec<i64>,
    pub data: OutputData,
    /// Form of the values over HTTP that the request chose for this output.
    pub binary: Option<bool>,
}

/// Elements of an output.
#[derive(Clone, Debug)]
pub enum OutputData {
    /// Elements in the binary layout of the protocol.
    Bytes(Bytes),
    /// Elements that were written to shared memory.
    Shared(SharedSpan),
}

/// Takes the place in shared memory from the parameters of a tensor.
///
/// # Errors
/// A parameter of the wrong type, or without the others.
pub fn take_shared(params: &mut Params) -> Result<Option<SharedSpan>> {
    let region = params.remove("shared_memory_region");
    let byte_size = params.remove("shared_memory_byte_size");
    let offset = params.remove("shared_memory_offset");
    match (region, byte_size) {
        (Some(region), Some(byte_size)) => Ok(Some(SharedSpan {
            region: region.text("shared_memory_region")?.to_owned(),
            byte_size: byte_size.count("shared_memory_byte_size")?,
            offset: offset.map_or(Ok(0), |offset| offset.count("shared_memory_offset"))?,
        })),
        (None, None) if offset.is_none() => Ok(None),
        _ => Err(ServeError::bad_request(
            "expected both 'shared_memory_region' and 'shared_memory_byte_size', found one of the parameters of shared memory",
        )),
    }
}

/// Takes the parameters of a requested output.
///
/// # Errors
/// A parameter of the wrong type or value.
pub fn requested_output(name: String, mut params: Params) -> Result<RequestedOutput> {
    let shared = take_shared(&mut params)?;
    let binary = params.remove("binary_data").map(|value| value.bool("binary_data")).transpose()?;
    let classes = params.remove("classification").map_or(Ok(0), |value| value.count("classification"))?;
    if shared.is_some() && (classes > 0 || binary == Some(true)) {
        let other = if classes > 0 { "classification" } else { "binary_data" };
        return Err(ServeError::bad_request(format!(
            "output '{name}': expected shared memory or '{other}', found both"
        )));
    }
    Ok(RequestedOutput { name, classes, shared, binary })
}

/// Checks a parameter of an unload. No model of this server depends on another, so that both values of the only one ask
/// for the same.
///
/// # Errors
/// An unknown parameter, or one of the wrong type.
pub fn check_unload_parameter(name: &str, value: Option<&Param>) -> Result<()> {
    const KNOWN: &str = "unload_dependents";
    match value {
        Some(value) if name == KNOWN => value.bool(name).map(drop),
        _ => {
            let name: String = name.chars().take(100).collect();
            Err(ServeError::bad_request(format!("expected the parameter '{KNOWN}', a Boolean, found '{name}'")))
        }
    }
}

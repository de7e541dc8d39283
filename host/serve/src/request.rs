//! Inference requests and responses, independent of the protocol.

use crate::error::{Result, ServeError};
use bytes::Bytes;
use std::collections::BTreeMap;

/// Parameter of a request or a tensor.
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
    /// If the parameter is not a non-negative integer.
    pub fn count(&self, name: &str) -> Result<u64> {
        match self {
            Param::Int(value) => u64::try_from(*value).ok(),
            Param::Uint(value) => Some(*value),
            _ => None,
        }
        .ok_or_else(|| self.type_error(name, "an integer >= 0"))
    }

    /// Returns the parameter as a Boolean.
    ///
    /// # Errors
    /// If the parameter is not a Boolean.
    pub fn bool(&self, name: &str) -> Result<bool> {
        match self {
            Param::Bool(value) => Ok(*value),
            _ => Err(self.type_error(name, "true or false")),
        }
    }

    /// Returns the parameter as text.
    ///
    /// # Errors
    /// If the parameter is not a string.
    pub fn text(&self, name: &str) -> Result<&str> {
        match self {
            Param::Text(value) => Ok(value),
            _ => Err(self.type_error(name, "a string")),
        }
    }

    fn type_error(&self, name: &str, expected: &str) -> ServeError {
        let value_text = match self {
            Param::Bool(value) => value.to_string(),
            Param::Int(value) => value.to_string(),
            Param::Uint(value) => value.to_string(),
            Param::Float(value) => value.to_string(),
            Param::Text(value) => format!("{:?}", value.chars().take(40).collect::<String>()),
        };
        ServeError::bad_request(format!("parameter '{name}': expected {expected}, found {value_text}"))
    }
}

/// Inference request.
#[derive(Clone, Debug, Default)]
pub struct InferRequest {
    /// Client-supplied id; empty if absent.
    pub id: String,
    /// Parameters of the request.
    pub params: Params,
    /// Inputs in the order of the request.
    pub inputs: Vec<InputTensor>,
    /// Requested outputs; empty for all outputs.
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

/// Byte range in a shared-memory region.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedSpan {
    pub region: String,
    pub offset: u64,
    pub byte_size: u64,
}

/// Output requested by a client.
#[derive(Clone, Debug, Default)]
pub struct RequestedOutput {
    pub name: String,
    /// Number of classes to return instead of the values; 0 to return the values.
    pub classes: u64,
    /// Shared memory to write the values to, if any.
    pub shared_span: Option<SharedSpan>,
    /// True for binary data over HTTP, false for JSON; `None` for the default of the request.
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
    /// Format requested for this output, as in [`RequestedOutput::binary`].
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

/// Checks the number of inputs or outputs of a request.
///
/// # Errors
/// If there are more than any model has.
pub fn check_count(kind: &str, count: usize) -> Result<()> {
    const MAX_TENSORS: usize = 1 << 16;
    match count {
        0..=MAX_TENSORS => Ok(()),
        _ => Err(ServeError::bad_request(format!("expected at most {MAX_TENSORS} {kind}, found {count}"))),
    }
}

/// Removes the shared-memory parameters of a tensor, and returns the span that they describe.
///
/// # Errors
/// If a parameter has the wrong type, or a required parameter is missing.
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
        (region, byte_size) => {
            let given_names: Vec<&str> = [
                region.map(|_| "'shared_memory_region'"),
                byte_size.map(|_| "'shared_memory_byte_size'"),
                offset.map(|_| "'shared_memory_offset'"),
            ]
            .into_iter()
            .flatten()
            .collect();
            Err(ServeError::bad_request(format!(
                "expected both 'shared_memory_region' and 'shared_memory_byte_size', found only {}",
                given_names.join(" and ")
            )))
        }
    }
}

/// Creates a requested output from its parameters.
///
/// # Errors
/// If a parameter has the wrong type or value, or parameters conflict.
pub fn requested_output(name: String, mut params: Params) -> Result<RequestedOutput> {
    let shared_span = take_shared(&mut params)?;
    let binary = params.remove("binary_data").map(|value| value.bool("binary_data")).transpose()?;
    let classes = params.remove("classification").map_or(Ok(0), |value| value.count("classification"))?;
    if shared_span.is_some() && (classes > 0 || binary == Some(true)) {
        let other = if classes > 0 { "classification" } else { "binary_data" };
        return Err(ServeError::bad_request(format!(
            "output '{name}': expected shared memory or '{other}', found both"
        )));
    }
    Ok(RequestedOutput { name, classes, shared_span, binary })
}

/// Checks a parameter of an unload request. The only known parameter has no effect, because no model depends on another
/// model.
///
/// # Errors
/// If the parameter is unknown or has the wrong type.
pub fn check_unload_parameter(name: &str, value: Option<&Param>) -> Result<()> {
    const PARAMETER_NAME: &str = "unload_dependents";
    match value {
        Some(value) if name == PARAMETER_NAME => value.bool(name).map(drop),
        _ => {
            let name: String = name.chars().take(100).collect();
            Err(ServeError::bad_request(format!("expected the Boolean parameter '{PARAMETER_NAME}', found '{name}'")))
        }
    }
}

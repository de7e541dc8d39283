//! Status codes of the library and the errors derived from them.

use super::ffi;
use byoc_plugin_api::{Error, RefusalCode};
use std::fmt;

/// Failure codes of `dnnl_status_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Memory is exhausted, or a tensor is larger than the address space.
    OutOfMemory,
    InvalidArguments,
    /// No implementation for these types, shapes, layouts or attributes.
    Unimplemented,
    /// End of an iteration over implementations.
    LastImplementationReached,
    /// Failed computation.
    RuntimeError,
    /// Query of a property that the primitive does not require.
    NotRequired,
    /// Any other code: from the graph API, which is not used here, or from a later version.
    Unknown(i32),
}

impl Status {
    /// Converts a status code. Returns `None` for success.
    pub fn of(code: ffi::Status) -> Option<Status> {
        Some(match code {
            0 => return None,
            1 => Status::OutOfMemory,
            2 => Status::InvalidArguments,
            3 => Status::Unimplemented,
            4 => Status::LastImplementationReached,
            5 => Status::RuntimeError,
            6 => Status::NotRequired,
            other => Status::Unknown(other),
        })
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Status::OutOfMemory => "out of memory",
            Status::InvalidArguments => "invalid arguments",
            Status::Unimplemented => "unimplemented",
            Status::LastImplementationReached => "last implementation reached",
            Status::RuntimeError => "runtime error",
            Status::NotRequired => "not required",
            Status::Unknown(code) => return write!(f, "unknown status {code}"),
        })
    }
}

/// Error from the library or from the layer over it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OneDnnError {
    /// No implementation. Alternatives may be tried; if all fail, the host executes the operator.
    Unsupported(String),
    /// Memory is exhausted. No alternatives are tried.
    OutOfMemory(String),
    /// Failure that indicates a defect in the plugin or in the library.
    Defect(String),
}

impl OneDnnError {
    /// Converts the status of a failed call; `subject` names the object of the call in the message.
    pub fn of(status: Status, subject: &str) -> OneDnnError {
        let text = format!("oneDNN, {subject}: {status}");
        match status {
            Status::Unimplemented | Status::LastImplementationReached | Status::NotRequired => {
                OneDnnError::Unsupported(text)
            }
            Status::OutOfMemory => OneDnnError::OutOfMemory(text),
            Status::InvalidArguments | Status::RuntimeError | Status::Unknown(_) => OneDnnError::Defect(text),
        }
    }

    /// Prefixes the message with the name of a step.
    pub fn in_step(self, step: &str) -> OneDnnError {
        match self {
            OneDnnError::Unsupported(text) => OneDnnError::Unsupported(format!("{step}: {text}")),
            OneDnnError::OutOfMemory(text) => OneDnnError::OutOfMemory(format!("{step}: {text}")),
            OneDnnError::Defect(text) => OneDnnError::Defect(format!("{step}: {text}")),
        }
    }

    /// Returns the code that is reported to the host for this error.
    pub fn code(&self) -> RefusalCode {
        match self {
            OneDnnError::Unsupported(_) => RefusalCode::UnsupportedShape,
            OneDnnError::OutOfMemory(_) => RefusalCode::ResourceLimit,
            OneDnnError::Defect(_) => RefusalCode::UnsupportedOp,
        }
    }
}

impl fmt::Display for OneDnnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OneDnnError::Unsupported(text) | OneDnnError::OutOfMemory(text) => f.write_str(text),
            OneDnnError::Defect(text) => write!(f, "{text}; this is a defect in the dnnl plugin, please report it"),
        }
    }
}

impl From<String> for OneDnnError {
    fn from(text: String) -> OneDnnError {
        OneDnnError::Unsupported(text)
    }
}

impl From<&str> for OneDnnError {
    fn from(text: &str) -> OneDnnError {
        OneDnnError::Unsupported(text.to_owned())
    }
}

impl From<OneDnnError> for Error {
    fn from(failure: OneDnnError) -> Error {
        let error = Error::new(failure.to_string());
        match failure {
            OneDnnError::OutOfMemory(_) => error.code(RefusalCode::ResourceLimit.as_str()),
            OneDnnError::Unsupported(_) | OneDnnError::Defect(_) => error,
        }
    }
}

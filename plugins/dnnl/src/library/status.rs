//! Status codes of the library and the errors derived from them.

use super::ffi;
use byoc_plugin_api::{Error, RefusalCode};
use std::fmt;

/// `dnnl_status_t` without success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Memory is exhausted, or a tensor is larger than the address space.
    OutOfMemory,
    /// Invalid arguments.
    InvalidArguments,
    /// No implementation for these types, shapes, layouts or attributes.
    Unimplemented,
    /// No further implementation.
    LastImplementationReached,
    /// Failed computation.
    RuntimeError,
    /// Query for something that the primitive does not require.
    NotRequired,
    /// Any other code: one of the graph API, which is not used here, or of a later version.
    Unknown(i32),
}

impl Status {
    /// Converts a status code; `None` is success.
    pub fn of(number: ffi::Status) -> Option<Status> {
        Some(match number {
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
            Status::Unknown(number) => return write!(f, "status {number}"),
        })
    }
}

/// Failure of the library, or of the layer over it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No implementation. Alternatives may be tried; otherwise the host is the fallback.
    NotTaken(String),
    /// Memory is exhausted. No alternatives are tried.
    OutOfMemory(String),
    /// Call that a correct plugin would not make, or a correct library would not fail.
    Defect(String),
}

impl Failure {
    /// Converts the status of a call about `what`.
    pub fn of(status: Status, what: &str) -> Failure {
        let text = format!("oneDNN, {what}: {status}");
        match status {
            Status::Unimplemented | Status::LastImplementationReached | Status::NotRequired => Failure::NotTaken(text),
            Status::OutOfMemory => Failure::OutOfMemory(text),
            Status::InvalidArguments | Status::RuntimeError | Status::Unknown(_) => Failure::Defect(text),
        }
    }

    /// Adds the name of a step.
    pub fn within(self, step: &str) -> Failure {
        match self {
            Failure::NotTaken(what) => Failure::NotTaken(format!("{step}: {what}")),
            Failure::OutOfMemory(what) => Failure::OutOfMemory(format!("{step}: {what}")),
            Failure::Defect(what) => Failure::Defect(format!("{step}: {what}")),
        }
    }

    /// Returns the refusal code at the boundary.
    pub fn code(&self) -> RefusalCode {
        match self {
            Failure::NotTaken(_) => RefusalCode::UnsupportedShape,
            Failure::OutOfMemory(_) => RefusalCode::ResourceLimit,
            Failure::Defect(_) => RefusalCode::UnsupportedOp,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::NotTaken(what) | Failure::OutOfMemory(what) => f.write_str(what),
            Failure::Defect(what) => write!(f, "{what}; this is a defect of the dnnl plugin, please report it"),
        }
    }
}

impl From<String> for Failure {
    fn from(what: String) -> Failure {
        Failure::NotTaken(what)
    }
}

impl From<&str> for Failure {
    fn from(what: &str) -> Failure {
        Failure::NotTaken(what.to_owned())
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        let error = Error::new(failure.to_string());
        match failure {
            Failure::OutOfMemory(_) => error.code(RefusalCode::ResourceLimit.as_str()),
            Failure::NotTaken(_) | Failure::Defect(_) => error,
        }
    }
}

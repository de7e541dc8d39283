//! What the library answers, and what that means to whoever asked.

use super::ffi;
use byoc_plugin_api::{Error, RefusalCode};
use std::fmt;

/// `dnnl_status_t`, without success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Memory is exhausted, or a tensor is larger than memory can be.
    OutOfMemory,
    /// The call makes no sense.
    InvalidArguments,
    /// There is no implementation for these types, shapes, layouts or attributes.
    Unimplemented,
    /// No further implementation.
    LastImplementationReached,
    /// A computation failed.
    RuntimeError,
    /// A primitive does not need what was asked for.
    NotRequired,
    /// Another number: one of the graph API, which is not used here, or of a later version.
    Unknown(i32),
}

impl Status {
    /// The status of that number; `None` is success.
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

/// Why the library, or the layer over it, does not do something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It has no code for that. Something else may be tried, and in the end the host computes it.
    NotTaken(String),
    /// There is not enough memory. Nothing else need be tried.
    OutOfMemory(String),
    /// A call that a correct plugin and a correct library would not make or not fail.
    Defect(String),
}

impl Failure {
    /// What a status means in answer to a call about `what`.
    pub fn of(status: Status, what: &str) -> Failure {
        let text = format!("oneDNN, {what}: {status}");
        match status {
            Status::Unimplemented | Status::LastImplementationReached | Status::NotRequired => Failure::NotTaken(text),
            Status::OutOfMemory => Failure::OutOfMemory(text),
            Status::InvalidArguments | Status::RuntimeError | Status::Unknown(_) => Failure::Defect(text),
        }
    }

    /// The same, of this step.
    pub fn within(self, step: &str) -> Failure {
        match self {
            Failure::NotTaken(what) => Failure::NotTaken(format!("{step}: {what}")),
            Failure::OutOfMemory(what) => Failure::OutOfMemory(format!("{step}: {what}")),
            Failure::Defect(what) => Failure::Defect(format!("{step}: {what}")),
        }
    }

    /// The code under which the boundary knows it.
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

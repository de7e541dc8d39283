//! Errors returned to clients: a status that is mapped to both protocols, with the code and the text of a diagnostic.

use byoc::{Code, Diagnostic, Error, Interface};
use byoc_ir::diag::codes::{runtime, serving};
use std::fmt;

/// Result of serving a request.
pub type Result<T> = std::result::Result<T, ServeError>;

/// Error kind, which determines the HTTP and gRPC status codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The request is invalid: 400.
    InvalidArgument,
    /// No object has the requested name: 404.
    NotFound,
    /// The name is already registered: 400.
    AlreadyExists,
    /// The server is temporarily unable to serve the request; the client may retry: 503.
    Unavailable,
    /// The server does not support the requested feature: 501.
    Unsupported,
    /// The request is larger than the limit: 413.
    TooLarge,
    /// The request was not finished before its deadline: 504.
    DeadlineExceeded,
    /// The client cancelled the request: 400.
    Cancelled,
    /// The model or the server failed: 500.
    Internal,
}

impl Status {
    /// Returns the HTTP status code.
    pub fn http(self) -> u16 {
        match self {
            Status::InvalidArgument | Status::AlreadyExists | Status::Cancelled => 400,
            Status::NotFound => 404,
            Status::TooLarge => 413,
            Status::Internal => 500,
            Status::Unsupported => 501,
            Status::Unavailable => 503,
            Status::DeadlineExceeded => 504,
        }
    }

    /// Returns the gRPC status code.
    pub fn grpc(self) -> tonic::Code {
        match self {
            Status::InvalidArgument => tonic::Code::InvalidArgument,
            Status::AlreadyExists => tonic::Code::AlreadyExists,
            Status::Cancelled => tonic::Code::Cancelled,
            Status::NotFound => tonic::Code::NotFound,
            Status::TooLarge => tonic::Code::ResourceExhausted,
            Status::Internal => tonic::Code::Internal,
            Status::Unsupported => tonic::Code::Unimplemented,
            Status::Unavailable => tonic::Code::Unavailable,
            Status::DeadlineExceeded => tonic::Code::DeadlineExceeded,
        }
    }
}

/// Error response to a request.
#[derive(Clone, Debug)]
pub struct ServeError {
    /// Error kind.
    pub status: Status,
    /// Stable code, documented in `docs/errors/`.
    pub code: Code,
    /// Message that states the expected and the found values.
    pub message: String,
}

impl ServeError {
    /// Creates an error.
    pub fn new(status: Status, code: Code, message: impl Into<String>) -> ServeError {
        ServeError { status, code, message: message.into() }
    }

    /// Creates the error for a malformed request.
    pub fn bad_request(message: impl Into<String>) -> ServeError {
        ServeError::new(Status::InvalidArgument, serving::BAD_REQUEST, message)
    }

    /// Creates the error for a tensor that does not match the model.
    pub fn bad_tensor(message: impl Into<String>) -> ServeError {
        ServeError::new(Status::InvalidArgument, serving::BAD_TENSOR, message)
    }

    /// Creates the error for an unsupported feature.
    pub fn not_served(message: impl Into<String>) -> ServeError {
        ServeError::new(Status::Unsupported, serving::NOT_SERVED, message)
    }

    /// Creates the error for an overloaded server.
    pub fn overloaded(message: impl Into<String>) -> ServeError {
        ServeError::new(Status::Unavailable, serving::OVERLOADED, message)
    }

    /// Creates the error for an invalid model configuration.
    pub fn repository(message: impl Into<String>) -> ServeError {
        ServeError::new(Status::InvalidArgument, serving::REPOSITORY, message)
    }

    /// Prefixes the message with the request id, if non-empty.
    #[must_use]
    pub fn with_request_id(mut self, id: &str) -> ServeError {
        if !id.is_empty() {
            self.message = format!("[request id: {id}] {}", self.message);
        }
        self
    }
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.code)
    }
}

impl std::error::Error for ServeError {}

impl From<Error> for ServeError {
    fn from(error: Error) -> ServeError {
        let status = match &error {
            Error::Input(_) => Status::InvalidArgument,
            Error::OutOfMemory(_) => Status::Unavailable,
            Error::Cancelled(_) => Status::Cancelled,
            Error::TimedOut(_) => Status::DeadlineExceeded,
            _ if error.code() == runtime::KERNEL_FAILED => Status::InvalidArgument,
            _ => Status::Internal,
        };
        let error = error.in_interface(Interface::CommandLine);
        let info = error.info();
        let mut message = info.message.clone();
        for note in &info.context {
            message.push_str("; ");
            message.push_str(note);
        }
        if let Some(help) = &info.help {
            message.push_str("; ");
            message.push_str(help);
        }
        ServeError { status, code: info.code, message }
    }
}

impl From<ServeError> for tonic::Status {
    fn from(error: ServeError) -> tonic::Status {
        tonic::Status::new(error.status.grpc(), error.to_string())
    }
}

impl From<ServeError> for Diagnostic {
    fn from(error: ServeError) -> Diagnostic {
        Diagnostic::error(error.code, error.message)
    }
}

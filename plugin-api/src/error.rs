//! Error type of the boundary, for failures on both sides.

use abi_stable::StableAbi;
use abi_stable::std_types::{RBox, RString};
use std::fmt;
use std::ops::Deref;

/// Error of an entry. Dereferences to [`ErrorData`].
#[repr(C)]
#[derive(StableAbi, Clone, Debug, PartialEq, Eq)]
pub struct Error {
    // Boxed to keep `Result` small.
    data: RBox<ErrorData>,
}

/// Fields of an error. Unknown strings are empty. A backend fills in `message` and optionally `hint`; the boundary adds
/// the plugin, the entry and, for a panic, the location.
#[repr(C)]
#[derive(StableAbi, Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorData {
    /// One line, lower case, no full stop.
    pub message: RString,
    /// Remedy for the user.
    pub hint: RString,
    /// Kind of failure: a [`RefusalCode`](crate::RefusalCode), [`Error::CANCELLED`], or a code of a later version;
    /// empty if unspecified.
    pub code: RString,
    /// Name of the plugin.
    pub plugin: RString,
    /// Entry that failed: `compile`, `load`, `run`, ...
    pub entry: RString,
    /// Source location of a panic: `src/lib.rs:10:5`.
    pub location: RString,
    /// True if the entry panicked: a defect in the plugin or, if a host service panicked, in the host.
    pub panicked: bool,
}

/// Result of an entry.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// [`code`](ErrorData::code) of work that was cancelled by the host.
    pub const CANCELLED: &str = "Cancelled";

    /// Creates an error with the given message.
    pub fn new(message: impl Into<String>) -> Error {
        Error { data: RBox::new(ErrorData { message: RString::from(message.into()), ..ErrorData::default() }) }
    }

    /// Creates an error for a panic.
    pub(crate) fn panic(message: String, location: String) -> Error {
        let mut error = Error::new(message);
        error.data.location = location.into();
        error.data.panicked = true;
        error
    }

    /// Adds a remedy for the user.
    pub fn hint(mut self, hint: impl Into<String>) -> Error {
        self.data.hint = RString::from(hint.into());
        self
    }

    /// Sets the kind of failure; see [`ErrorData::code`].
    pub fn code(mut self, code: &str) -> Error {
        self.data.code = code.into();
        self
    }

    /// Creates the error that reports a cancellation, for use after [`Services::cancelled`](crate::Services::cancelled)
    /// returned true.
    pub fn cancelled() -> Error {
        Error::new("cancelled by the host").code(Error::CANCELLED)
    }

    /// Sets the plugin and the entry. Existing values, from a host service that the plugin called, are moved into the
    /// message.
    pub(crate) fn with_entry(mut self, plugin: &str, entry: &str) -> Error {
        if !self.plugin.is_empty() {
            self.data.message = format!("{}: {}: {}", self.plugin, self.entry, self.message).into();
        }
        self.data.plugin = plugin.into();
        self.data.entry = entry.into();
        self
    }
}

impl Deref for Error {
    type Target = ErrorData;

    fn deref(&self) -> &ErrorData {
        &self.data
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.plugin.is_empty() {
            write!(f, "plugin {}: ", self.plugin)?;
        }
        if !self.entry.is_empty() {
            write!(f, "{}: ", self.entry)?;
        }
        if self.panicked {
            write!(f, "panicked")?;
            if !self.location.is_empty() {
                write!(f, " at {}", self.location)?;
            }
            write!(f, ": ")?;
        }
        write!(f, "{}", self.message)
    }
}

impl std::error::Error for Error {}

impl From<String> for Error {
    fn from(message: String) -> Error {
        Error::new(message)
    }
}

impl From<&str> for Error {
    fn from(message: &str) -> Error {
        Error::new(message)
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Error {
        Error::new(error.to_string())
    }
}

impl From<serde_json::Error> for Error {
    fn from(error: serde_json::Error) -> Error {
        Error::new(error.to_string())
    }
}

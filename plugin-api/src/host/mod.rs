//! Host side of the boundary: inspection of a file before it is mapped, loading, and access to the registered objects.
//!
//! This module exposes no stable-ABI types: the host uses a loaded plugin through the same plain traits that its author
//! implemented.

mod c;
pub mod device;
mod imports;
mod in_place;
mod layout;
mod load;
mod loaded;
pub mod onnx;
pub mod run_options;
mod sniff;
mod sources;

pub use crate::entries;
pub use c::{
    ABI_TEXT as C_ABI_TEXT, COMMAND_HEADER as C_COMMAND_HEADER, DEVICE_HEADER as C_DEVICE_HEADER, ENTRY as C_ENTRY,
    HEADER as C_HEADER, JSON_HEADER as C_JSON_HEADER,
};
pub use in_place::{InPlaceType, in_place};
pub use load::load;
pub use loaded::{LoadedPlugin, RegisteredObject, Registration};
pub use sniff::{FileFacts, contains_text, read_facts, sniff};
pub use sources::plugin_api_sources;

use std::fmt;

/// Rejection of a file that cannot be used as a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// Error code, such as `E0403`.
    pub code: &'static str,
    /// One line, lower case, no full stop.
    pub reason: String,
    /// Remedy for the user.
    pub hint: Option<String>,
    /// Details, one line each; may be empty.
    pub details: Vec<String>,
}

impl Rejection {
    fn new(code: &'static str, reason: impl Into<String>) -> Rejection {
        Rejection { code, reason: reason.into(), hint: None, details: Vec::new() }
    }

    fn hint(mut self, hint: impl Into<String>) -> Rejection {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.reason)
    }
}

impl std::error::Error for Rejection {}

/// Error codes of rejections. Their pages are `docs/errors/E04xx.md`.
pub mod code {
    /// The file cannot be read.
    pub const UNREADABLE: &str = "E0410";
    /// The file is not an ELF shared library.
    pub const NOT_A_LIBRARY: &str = "E0411";
    /// The file is a shared library for a different processor architecture.
    pub const OTHER_MACHINE: &str = "E0412";
    /// The file is shorter than its headers require.
    pub const TRUNCATED: &str = "E0413";
    /// The library has no entry symbol: it is not a plugin.
    pub const NO_ENTRY: &str = "E0414";
    /// The system's dynamic loader failed to load the library.
    pub const DLOPEN: &str = "E0415";
    /// The plugin was built against a different version of the boundary.
    pub const VERSION: &str = "E0416";
    /// The plugin was built against a boundary with a different layout.
    pub const LAYOUT: &str = "E0417";
    /// The plugin's `init` returned an error.
    pub const INIT: &str = "E0418";
    /// The plugin's `init` panicked.
    pub const INIT_PANIC: &str = "E0419";
    /// The plugin registers a malformed name, or the same name twice.
    pub const BAD_REGISTRATION: &str = "E0420";
}

//! C entry: adapts a plugin written against `include/byoc_plugin.h` to the plain traits.
//!
//! | file | contents |
//! |---|---|
//! | `abi` | the header, field by field |
//! | `handles` | host handles that a plugin holds: constants, references |
//! | `call` | one entry call, and the plugin's results |
//! | `arguments` | entry arguments: candidates, constants, texts |
//! | `objects` | code generators, loaders and loaded regions of a C plugin as the plain traits |
//! | `foreign` | copies of memory that a plugin points to |
//! | `functions` | host functions: results and services |
//! | `load` | the library: version, name, registrations |
//!
//! C code cannot panic. A crash in a C plugin ends the process, and so does a C++ exception that escapes an entry.

mod abi;
mod arguments;
mod call;
mod foreign;
mod functions;
mod handles;
mod load;
mod objects;
mod prefetch;

pub(super) use load::load;

/// Text of the header, for a newly generated plugin.
pub const HEADER: &str = include_str!("../../../include/byoc_plugin.h");
/// Text of the header with the JSON reader.
pub const JSON_HEADER: &str = include_str!("../../../include/byoc_json.h");
/// Text of the header with the device-memory interface.
pub const DEVICE_HEADER: &str = include_str!("../../../include/byoc_device.h");
/// Text of the header for backends around a command.
pub const COMMAND_HEADER: &str = include_str!("../../../include/byoc_command.h");
/// Version of the header, for messages.
pub const ABI_TEXT: &str = "1";
/// Symbol that a C plugin exports.
pub const ENTRY: &str = "byoc_plugin_entry";

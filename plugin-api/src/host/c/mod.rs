//! The C entry: a plugin written against `include/byoc_plugin.h`, adapted to the plain traits.
//!
//! | file | what it is |
//! |---|---|
//! | `abi` | the header, field by field |
//! | `handles` | what a plugin holds of the host's: constants, references |
//! | `call` | one call of an entry, and what the plugin answers in it |
//! | `given` | what an entry is given: candidates, constants, texts |
//! | `objects` | code generators, loaders and loaded regions of a C plugin as the plain traits |
//! | `foreign` | copies of memory that a plugin points at |
//! | `functions` | the host's functions that take an answer, and the services |
//! | `load` | the library: version, name, registrations |
//!
//! C code cannot panic. A crash in it ends the process, and so does an exception that leaves it.

mod abi;
mod call;
mod foreign;
mod functions;
mod given;
mod handles;
mod load;
mod objects;
mod prefetch;

pub(super) use load::load;

/// The header, for whoever writes out a new plugin.
pub const HEADER: &str = include_str!("../../../include/byoc_plugin.h");
/// The reader of JSON beside it.
pub const JSON_HEADER: &str = include_str!("../../../include/byoc_json.h");
/// The version of the header, for people.
pub const ABI_TEXT: &str = "1";
/// The symbol that a C plugin exports.
pub const ENTRY: &str = "byoc_plugin_entry";

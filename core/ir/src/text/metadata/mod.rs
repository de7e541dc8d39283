//! Section `#[metadata]` at the end of a module: the values of `meta[type key][index]`, as the JSON object graph that
//! TVM saves. The root is a map from type keys to arrays; constants refer to serialized arrays, each in base64.
//!
//! ```json
//! {"root": 1,
//!  "nodes": [{"type_key": ""}, {"type_key": "Map", "keys": ["relay.Constant"], "data": [2]}, ...],
//!  "b64ndarrays": ["P6G0lvBA..."]}
//! ```

mod base64;
mod ndarray;
mod read;
mod write;

pub(super) use read::Metadata;
pub(super) use write::write;

/// First line of the section.
pub(super) const HEADER: &str = "#[metadata]";

/// First line of the section in texts of version 0.0.4.
pub(super) const OLD_HEADER: &str = "METADATA:";

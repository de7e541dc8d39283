//! `manifest.json`: what the file holds, who made it, and the digests.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The version of the format. A reader refuses any other.
pub const FORMAT: u32 = 1;

/// The manifest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: u32,
    /// Name and version of the program that wrote it.
    pub producer: String,
    /// BLAKE3 of the model as it was read.
    pub model_digest: String,
    /// The options that shaped the result.
    pub options: Value,
    /// Where each operator of the model went.
    pub explain: Value,
    /// The regions, in the program's order; `null` where a backend made nothing and the host runs it.
    pub regions: Vec<Option<RegionRecord>>,
    /// The constants, in the program's order.
    pub tensors: Vec<TensorRecord>,
    /// Every other entry of the archive, in its order.
    pub entries: Vec<Entry>,
}

/// An entry of the archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// BLAKE3 of its bytes.
    pub blake3: String,
}

/// A constant in `weights.safetensors`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorRecord {
    /// Its name there.
    pub name: String,
    /// BLAKE3 of its bytes.
    pub blake3: String,
}

/// A region as its backend compiled it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegionRecord {
    /// The lifted function's name.
    pub symbol: String,
    /// The backend.
    pub backend: String,
    /// The plugin's name.
    pub plugin: String,
    /// The plugin's version.
    pub plugin_version: String,
    /// BLAKE3 of the plugin's library.
    pub plugin_digest: String,
    /// The key of `loadbinary_<key>`.
    pub loader: String,
    /// The entry that holds what the loader gets.
    pub blob: String,
    /// The functions that the blob defines.
    pub symbols: Vec<String>,
    /// The entry that holds the generated source, if there is one.
    pub source: Option<String>,
    /// The language of the source.
    pub language: Option<String>,
    /// The constants that the loader gets, by index.
    pub constants: Vec<u32>,
    /// The CPU features that the blob needs.
    pub cpu_features: Vec<String>,
    /// Things worth knowing.
    pub notes: Vec<String>,
    /// What the plugin records, by name, in its order.
    pub metadata: Vec<(String, Value)>,
    /// The region as the code generator got it.
    pub graph: Value,
}

//! `manifest.json`: contents, producer and digests of an artifact.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Version of the artifact format. A reader rejects every other version.
pub const FORMAT: u32 = 1;

/// Manifest of an artifact.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Format version; equals [`FORMAT`].
    pub format: u32,
    /// Name and version of the program that wrote the file.
    pub producer: String,
    /// BLAKE3 digest of the model file.
    pub model_digest: String,
    /// Build options that affect the result.
    pub options: Value,
    /// Placement of each operator of the model, as `byoc explain --json` prints it.
    pub explain: Value,
    /// Regions, in the program's order; `null` where the backend failed and the region runs on the host.
    pub regions: Vec<Option<RegionRecord>>,
    /// Constants, in the program's order.
    pub tensors: Vec<TensorRecord>,
    /// All entries of the archive except the manifest, in archive order.
    pub entries: Vec<Entry>,
    /// Programs for fixed values of symbolic dimensions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variants: Vec<VariantRecord>,
    /// Linked backends, each with the name of the entry that holds the data shared by its regions, if any.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub linked: BTreeMap<String, Option<String>>,
}

/// Program for fixed values of symbolic dimensions, or with optional inputs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VariantRecord {
    /// Values of the dimensions, by name.
    pub dims: BTreeMap<String, usize>,
    /// Default values of the optional inputs, which are the last inputs of the program, as indices of its constants.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub defaults: Vec<u32>,
    /// Name of the entry with the program.
    pub program: String,
    /// Build options that affect the result.
    pub options: Value,
    /// Placement of each operator of the model.
    pub explain: Value,
    /// Regions, in the program's order.
    pub regions: Vec<Option<RegionRecord>>,
    /// Constants, in the program's order.
    pub tensors: Vec<TensorRecord>,
    /// Linked backends, as in [`Manifest::linked`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub linked: BTreeMap<String, Option<String>>,
}

/// Entry of the archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Name of the entry in the archive.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// BLAKE3 digest of the entry's bytes.
    pub blake3: String,
}

/// Constant in `weights.safetensors`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorRecord {
    /// Name of the tensor in `weights.safetensors`.
    pub name: String,
    /// BLAKE3 digest of the tensor's bytes; empty for a tensor that is stored only in blobs.
    pub blake3: String,
    /// True if the tensor is not in `weights.safetensors`, because the blobs of the regions that read it contain it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_blobs: bool,
}

/// Region as compiled by its backend.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegionRecord {
    /// Name of the lifted function.
    pub symbol: String,
    /// Name of the backend.
    pub backend: String,
    /// Name of the plugin.
    pub plugin: String,
    /// Version of the plugin.
    pub plugin_version: String,
    /// BLAKE3 digest of the plugin's library.
    pub plugin_digest: String,
    /// Key of `loadbinary_<key>`.
    pub loader: String,
    /// Name of the entry with the blob.
    pub blob: String,
    /// Functions that the blob defines.
    pub symbols: Vec<String>,
    /// Name of the entry with the generated source, if any.
    pub source: Option<String>,
    /// Language of the source.
    pub language: Option<String>,
    /// Constants passed to the loader, in order, as indices into the constants of the program.
    pub constants: Vec<u32>,
    /// CPU features that the blob requires.
    pub cpu_features: Vec<String>,
    /// Notes of the backend.
    pub notes: Vec<String>,
    /// Metadata recorded by the plugin, as (name, value) in the plugin's order.
    pub metadata: Vec<(String, Value)>,
    /// Region graph that the code generator received.
    pub graph: Value,
}

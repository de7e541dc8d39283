//! What building a model gives: everything that an executor needs and an artifact holds.

use crate::runtime::Program;
use byoc_core::tensor::Tensor;
use serde_json::Value;
use std::sync::Arc;

/// A built model. The same model, options and plugins give an equal one, whatever the folder or the number of threads.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The program; its `inputs` and `outputs` are the interface, its `regions` go with `regions` below by index.
    pub program: Program,
    /// The values of `program.constants`, in order.
    pub constants: Vec<Tensor>,
    /// What the backends made, in the order of `program.regions`. `None` where a backend failed: the host runs it.
    pub regions: Vec<Option<CompiledRegion>>,
    /// Where each operator of the model went, as `byoc explain --json` prints it.
    pub explain: Value,
    /// BLAKE3 of the model as it was read, in hexadecimal.
    pub model_digest: String,
    /// The options that shaped the result (backends, bound dimensions), by name.
    pub options: Value,
}

/// A region as its backend compiled it.
#[derive(Clone, Debug, PartialEq)]
pub struct CompiledRegion {
    /// The lifted function's name.
    pub symbol: String,
    /// The backend's name.
    pub backend: String,
    /// The plugin that made it.
    pub plugin: PluginId,
    /// The key of `loadbinary_<key>`.
    pub loader: String,
    /// What the loader gets.
    pub blob: Arc<[u8]>,
    /// The functions that the blob defines.
    pub symbols: Vec<String>,
    /// The generated source, for people and for machines that the blob does not fit.
    pub source: Option<RegionSource>,
    /// The constants that the loader gets, in its order, by index into [`Compiled::constants`].
    pub constants: Vec<u32>,
    /// The CPU features that the blob needs; empty where it fits every machine.
    pub cpu_features: Vec<String>,
    /// Things worth knowing, one line each.
    pub notes: Vec<String>,
    /// What the plugin records about the region, by name.
    pub metadata: Vec<(String, Value)>,
    /// The region as it was given to the code generator, so that it can be compiled again.
    pub graph: Value,
}

/// Which plugin made a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginId {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// BLAKE3 of its library, in hexadecimal.
    pub digest: String,
}

/// Generated source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionSource {
    /// Its language, which is also the file's ending.
    pub language: String,
    /// The text.
    pub text: String,
}

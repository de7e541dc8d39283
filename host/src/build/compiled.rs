//! What building a model gives: everything that an executor needs and an artifact holds.

use crate::runtime::{Program, Signature};
use byoc_core::diag::{Diagnostic, codes};
use byoc_core::tensor::Tensor;
use serde_json::{Value, json};
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
    /// True if the regions were read from a file, so that their code was made by whoever wrote it.
    pub from_file: bool,
}

impl Compiled {
    /// Leaves every region to the host: no plugin is asked for anything.
    pub fn on_host(mut self) -> Compiled {
        self.regions.fill(None);
        self
    }

    /// Compares the regions of the program with what their backends compiled: name, backend, loader, and the types of
    /// everything that goes in and comes out. Code that was made for other tensors than it would be given never loads.
    ///
    /// # Errors
    /// E0704: the first contradiction.
    pub fn check(&self) -> Result<(), Diagnostic> {
        if self.regions.len() != self.program.regions.len() {
            let (made, wanted) = (self.regions.len(), self.program.regions.len());
            return Err(contradiction(format!("expected {wanted} regions as in the program, found {made}")));
        }
        for (made, region) in self.regions.iter().zip(&self.program.regions) {
            let Some(made) = made else { continue };
            let names = [("name", &made.symbol, &region.symbol), ("backend", &made.backend, &region.backend)];
            for (what, made, wanted) in names.into_iter().chain([("loader", &made.loader, &region.loader)]) {
                if made != wanted {
                    let symbol = &region.symbol;
                    return Err(contradiction(format!("region {symbol}: expected the {what} {wanted}, found {made}")));
                }
            }
            made.check(&self.constants)
                .and_then(|signature| signature.check_ports(&region.inputs, &region.outputs))
                .map_err(|what| contradiction(format!("region {}: {what}", region.symbol)))?;
        }
        Ok(())
    }
}

fn contradiction(what: String) -> Diagnostic {
    Diagnostic::error(codes::artifacts::MALFORMED, what)
        .note("the program and the compiled region do not belong together")
        .help("compile the model again")
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

impl CompiledRegion {
    /// The types that the region was compiled for.
    ///
    /// # Errors
    /// A recorded graph that cannot be read.
    pub fn signature(&self) -> Result<Signature, String> {
        Signature::of_graph(&self.graph)
    }

    /// Compares the constants of the model with those that the region was compiled with; the region's signature.
    fn check(&self, constants: &[Tensor]) -> Result<Signature, String> {
        if let Some(number) = self.constants.iter().find(|&&number| number as usize >= constants.len()) {
            return Err(format!("expected one of {} constants, found number {number}", constants.len()));
        }
        let signature = self.signature()?;
        signature.check_constants(|i| constants.get(*self.constants.get(i)? as usize))?;
        Ok(signature)
    }

    /// What a loader is told about the region beside its blob: `options.region`.
    pub fn load_options(&self, signature: &Signature) -> Value {
        let mut region = signature.to_json();
        let metadata = self.metadata.iter().map(|(key, value)| (key.clone(), value.clone()));
        region["metadata"] = Value::Object(metadata.collect());
        let PluginId { name, version, digest } = &self.plugin;
        region["producer"] = json!({ "plugin": name, "version": version, "digest": digest });
        region
    }
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

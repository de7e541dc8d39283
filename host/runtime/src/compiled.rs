//! Result of a build: everything that an executor needs and an artifact holds.

use crate::exec::{Program, Signature};
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::tensor::Tensor;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Built model. Equal models, options and plugins give equal results, whatever the directory or the number of threads.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// Program; its `inputs` and `outputs` are the interface, its `regions` correspond to `regions` below by index.
    pub program: Program,
    /// Values of `program.constants`, in order.
    pub constants: Vec<Tensor>,
    /// Compiled regions, in the order of `program.regions`. `None` where a backend failed: the region runs on the host.
    pub regions: Vec<Option<CompiledRegion>>,
    /// Placement of each operator of the model, as `byoc explain --json` prints it.
    pub explain: Value,
    /// BLAKE3 of the model file, in hexadecimal.
    pub model_digest: String,
    /// Build options that affect the result (backends, bound dimensions), by name.
    pub options: Value,
    /// True if the regions were read from a file, so that this process did not compile them.
    pub from_file: bool,
    /// Programs for fixed values of symbolic dimensions, which inputs of these sizes run on.
    pub variants: Vec<Variant>,
}

/// Program for fixed values of symbolic dimensions.
#[derive(Clone, Debug)]
pub struct Variant {
    /// Values of the dimensions, by name.
    pub dims: BTreeMap<String, usize>,
    /// Built model with these dimensions.
    pub compiled: Compiled,
}

impl Compiled {
    /// Moves every region to the host: no plugin is called.
    pub fn on_host(mut self) -> Compiled {
        self.regions.fill(None);
        self.variants = std::mem::take(&mut self.variants)
            .into_iter()
            .map(|variant| Variant { compiled: variant.compiled.on_host(), ..variant })
            .collect();
        self
    }

    /// Returns the regions of all programs that are compiled: those of the main one, then those of each specialized one.
    pub fn all_regions(&self) -> impl Iterator<Item = &CompiledRegion> {
        let variants = self.variants.iter().map(|variant| &variant.compiled);
        std::iter::once(self).chain(variants).flat_map(|compiled| compiled.regions.iter().flatten())
    }

    /// Returns the regions in the order of [`Compiled::all_regions`].
    pub fn all_regions_mut(&mut self) -> impl Iterator<Item = &mut CompiledRegion> {
        let variants = self.variants.iter_mut().flat_map(|variant| &mut variant.compiled.regions);
        self.regions.iter_mut().chain(variants).flatten()
    }

    /// Compares the regions of the program with the compiled ones: name, backend, loader, and the types of all inputs
    /// and outputs. A blob that was compiled for other tensor types is never loaded.
    ///
    /// # Errors
    /// E0704 if the regions differ; the message names the first difference.
    pub fn check(&self) -> Result<(), Diagnostic> {
        if self.regions.len() != self.program.regions.len() {
            let (made, wanted) = (self.regions.len(), self.program.regions.len());
            return Err(contradiction(format!("expected {wanted} regions as in the program, found {made}")));
        }
        for (made, region) in self.regions.iter().zip(&self.program.regions) {
            let Some(made) = made else { continue };
            let names = [("name", &made.symbol, &region.symbol), ("backend", &made.backend, &region.backend)];
            for (field, made, wanted) in names.into_iter().chain([("loader", &made.loader, &region.loader)]) {
                if made != wanted {
                    let symbol = &region.symbol;
                    return Err(contradiction(format!("region {symbol}: expected the {field} {wanted}, found {made}")));
                }
            }
            made.check(&self.constants)
                .and_then(|signature| signature.check_ports(&region.inputs, &region.outputs))
                .map_err(|message| contradiction(format!("region {}: {message}", region.symbol)))?;
        }
        self.variants.iter().try_for_each(|variant| {
            let ports = |program: &Program| program.inputs.len() == self.program.inputs.len();
            if !ports(&variant.compiled.program) {
                return Err(contradiction("a specialized program has other inputs".to_owned()));
            }
            variant.compiled.check()
        })
    }

    /// Adds a program for fixed values of symbolic dimensions. Constants that both have share their memory.
    pub fn add_variant(&mut self, dims: BTreeMap<String, usize>, mut compiled: Compiled) {
        let digest = |tensor: &Tensor| (tensor.dtype(), tensor.shape().to_vec(), blake3::hash(tensor.bytes()));
        let known: HashMap<_, &Tensor> = self.constants.iter().map(|tensor| (digest(tensor), tensor)).collect();
        for constant in &mut compiled.constants {
            if let Some(&same) = known.get(&digest(constant)) {
                *constant = same.clone();
            }
        }
        self.variants.push(Variant { dims, compiled });
    }
}

fn contradiction(message: String) -> Diagnostic {
    Diagnostic::error(codes::artifacts::MALFORMED, message)
        .note("the program and the compiled region come from different builds")
        .help("compile the model again")
}

/// Region as compiled by its backend.
#[derive(Clone, Debug, PartialEq)]
pub struct CompiledRegion {
    /// Name of the lifted function.
    pub symbol: String,
    /// Name of the backend.
    pub backend: String,
    /// Plugin that compiled the region.
    pub plugin: PluginId,
    /// Key of `loadbinary_<key>`.
    pub loader: String,
    /// Input of the loader.
    pub blob: Arc<[u8]>,
    /// Functions that the blob defines.
    pub symbols: Vec<String>,
    /// Generated source, for inspection and for machines that cannot run the blob.
    pub source: Option<RegionSource>,
    /// Constants that the loader gets, in order, as indices into [`Compiled::constants`].
    pub constants: Vec<u32>,
    /// CPU features that the blob needs; empty if it runs on every machine.
    pub cpu_features: Vec<String>,
    /// Notes of the backend, one line each.
    pub notes: Vec<String>,
    /// Metadata that the plugin records about the region, by name.
    pub metadata: Vec<(String, Value)>,
    /// Graph of the region as given to the code generator, kept for recompilation.
    pub graph: Value,
    /// File that holds the shared library inside the blob; its loader opens it in place instead of writing a temporary one.
    pub library: Option<PathBuf>,
}

impl CompiledRegion {
    /// Returns the types that the region was compiled for.
    ///
    /// # Errors
    /// When the recorded graph is malformed.
    pub fn signature(&self) -> Result<Signature, String> {
        Signature::of_graph(&self.graph)
    }

    /// Checks the constants of the model against those that the region was compiled with, and returns the region's
    /// signature.
    fn check(&self, constants: &[Tensor]) -> Result<Signature, String> {
        if let Some(number) = self.constants.iter().find(|&&number| number as usize >= constants.len()) {
            return Err(format!("expected a constant index below {}, found {number}", constants.len()));
        }
        let signature = self.signature()?;
        signature.check_constants(|i| constants.get(*self.constants.get(i)? as usize))?;
        Ok(signature)
    }

    /// Returns `options.region`, the description of the region that a loader gets in addition to the blob.
    pub fn load_options(&self, signature: &Signature) -> Value {
        let mut region = signature.to_json();
        let metadata = self.metadata.iter().map(|(key, value)| (key.clone(), value.clone()));
        region["metadata"] = Value::Object(metadata.collect());
        let PluginId { name, version, digest } = &self.plugin;
        region["producer"] = json!({ "plugin": name, "version": version, "digest": digest });
        if let Some(library) = self.library.as_deref().and_then(Path::to_str) {
            region["library"] = json!(library);
        }
        region
    }
}

/// Identity of the plugin that compiled a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginId {
    /// Name of the plugin.
    pub name: String,
    /// Version of the plugin.
    pub version: String,
    /// BLAKE3 of the plugin's library, in hexadecimal.
    pub digest: String,
}

/// Source code generated for a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionSource {
    /// Language, also used as the file extension.
    pub language: String,
    /// Source text.
    pub text: String,
}

//! Result of a build: the input of an executor and the contents of an artifact.

use crate::exec::constants::needed_constants;
use crate::exec::signature::admits;
use crate::exec::{Program, Signature};
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::ir::TensorType;
use byoc_ir::tensor::Tensor;
use byoc_ir::tensor::memory::Charge;
use bytes::Bytes;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Built model. Equal models, options and plugins produce equal results, regardless of the directory and the thread
/// count.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// Program; its `inputs` and `outputs` are the interface, its `regions` correspond to `regions` below by index.
    pub program: Program,
    /// Values of `program.constants`, in order.
    pub constants: Vec<Tensor>,
    /// Indices of the constants whose values are stored only in the blobs of regions; they are empty in `constants`.
    pub absent: BTreeSet<u32>,
    /// Compiled regions, in the order of `program.regions`. `None` where a backend failed: the region runs on the host.
    pub regions: Vec<Option<CompiledRegion>>,
    /// Linked backends, each with the data shared by its regions, if any.
    pub linked: BTreeMap<String, Option<Tensor>>,
    /// Placement of each operator of the model, as `byoc explain --json` prints it.
    pub explain: Value,
    /// BLAKE3 digest of the model file, in hexadecimal.
    pub model_digest: String,
    /// Build options that affect the result (backends, bound dimensions), by name.
    pub options: Value,
    /// True if the regions were read from a file rather than compiled by this process.
    pub from_file: bool,
    /// Programs for fixed values of symbolic dimensions, used for inputs of these dimensions.
    pub variants: Vec<Variant>,
    /// Memory of the parts that were read from a file, counted toward the memory limit.
    pub charges: Arc<Vec<Charge>>,
}

/// Program for fixed values of symbolic dimensions, or with optional inputs.
#[derive(Clone, Debug)]
pub struct Variant {
    /// Values of the dimensions, by name.
    pub dims: BTreeMap<String, usize>,
    /// Default values of the inputs that the program takes in addition to those of the main program, as indices of its
    /// constants.
    pub defaults: Vec<u32>,
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

    /// Returns the compiled regions of all programs: those of the main program first, then those of each specialized
    /// program.
    pub fn all_regions(&self) -> impl Iterator<Item = &CompiledRegion> {
        let variants = self.variants.iter().map(|variant| &variant.compiled);
        std::iter::once(self).chain(variants).flat_map(|compiled| compiled.regions.iter().flatten())
    }

    /// Mutable variant of [`Compiled::all_regions`], in the same order.
    pub fn all_regions_mut(&mut self) -> impl Iterator<Item = &mut CompiledRegion> {
        let variants = self.variants.iter_mut().flat_map(|variant| &mut variant.compiled.regions);
        self.regions.iter_mut().chain(variants).flatten()
    }

    /// Compares the regions of the program with the compiled regions: name, backend, loader, and the types of all
    /// inputs and outputs. A blob that was compiled for different tensor types is never loaded.
    ///
    /// # Errors
    /// E0704 if the regions differ; the message names the first difference.
    pub fn check(&self) -> Result<(), Diagnostic> {
        if self.regions.len() != self.program.regions.len() {
            let (actual, expected) = (self.regions.len(), self.program.regions.len());
            return Err(contradiction(format!("expected {expected} regions, as in the program, found {actual}")));
        }
        for (compiled_region, region) in self.regions.iter().zip(&self.program.regions) {
            let Some(compiled_region) = compiled_region else { continue };
            let names = [
                ("name", &compiled_region.symbol, &region.symbol),
                ("backend", &compiled_region.backend, &region.backend),
            ];
            for (field, compiled_region, expected) in
                names.into_iter().chain([("loader", &compiled_region.loader, &region.loader)])
            {
                if compiled_region != expected {
                    let symbol = &region.symbol;
                    return Err(contradiction(format!(
                        "region {symbol}: expected {field} {expected}, found {compiled_region}"
                    )));
                }
            }
            compiled_region
                .check(|constant| self.constant_type(constant))
                .and_then(|signature| signature.check_ports(&region.inputs, &region.outputs))
                .map_err(|message| contradiction(format!("region {}: {message}", region.symbol)))?;
        }
        self.variants.iter().try_for_each(|variant| {
            let (inputs, count) = (&variant.compiled.program.inputs, self.program.inputs.len());
            if inputs.len() != count + variant.defaults.len() {
                return Err(contradiction(format!(
                    "specialized program: expected {} inputs, found {}",
                    count + variant.defaults.len(),
                    inputs.len()
                )));
            }
            for (port, &index) in inputs[count..].iter().zip(&variant.defaults) {
                let default =
                    variant.compiled.constant_type(index).filter(|_| !variant.compiled.absent.contains(&index));
                let is_valid = default
                    .and_then(|ty| Some((ty.dtype, ty.shape()?)))
                    .is_some_and(|(dtype, shape)| port.ty.dtype == dtype && admits(&port.ty, &shape));
                if !is_valid {
                    let message = format!("input \"{}\": expected a default value of its type", port.name);
                    return Err(contradiction(message));
                }
            }
            variant.compiled.check()
        })
    }

    /// Checks that the constants without a value are in the blobs of all regions that read them, and that no other part
    /// of the program reads them.
    ///
    /// # Errors
    /// E0704 if a value is missing.
    pub fn check_absent(&self) -> Result<(), Diagnostic> {
        let only_in_blobs = self.only_in_blobs();
        match self.absent.iter().find(|constant| !only_in_blobs.contains(constant)) {
            Some(constant) => Err(contradiction(format!("expected the value of constant {constant}, found none"))),
            None => self.variants.iter().try_for_each(|variant| variant.compiled.check_absent()),
        }
    }

    /// Returns the type of a constant; `None` if the index is out of range.
    fn constant_type(&self, constant: u32) -> Option<TensorType> {
        match self.absent.contains(&constant) {
            true => Some(self.program.constants.get(constant as usize)?.ty.clone()),
            false => {
                let tensor = self.constants.get(constant as usize)?;
                Some(TensorType::fixed(tensor.dtype(), tensor.shape()))
            }
        }
    }

    /// Returns the constants that need not be stored outside the blobs: every region that reads such a constant has it
    /// in its blob, and no function that the host may run reads it. Only regions without a host fallback are
    /// considered.
    pub fn only_in_blobs(&self) -> BTreeSet<u32> {
        let region = |index: u32| self.regions.get(index as usize).and_then(Option::as_ref);
        let is_needed = needed_constants(&self.program, |index| region(index).is_some_and(|r| !r.has_fallback()));
        let (mut held_constants, mut read_constants) = (BTreeSet::new(), BTreeSet::new());
        for region in self.regions.iter().flatten() {
            for (&constant, is_packed) in region.constants.iter().zip(region.is_packed()) {
                if is_packed { &mut held_constants } else { &mut read_constants }.insert(constant);
            }
        }
        held_constants
            .retain(|constant| !read_constants.contains(constant) && is_needed.get(*constant as usize) == Some(&false));
        held_constants
    }

    /// Adds a program. Constants of both programs share memory.
    pub fn add_variant(&mut self, mut variant: Variant) {
        let compiled = &mut variant.compiled;
        let digest = |tensor: &Tensor| (tensor.dtype(), tensor.shape().to_vec(), blake3::hash(tensor.bytes()));
        let tensors_by_digest: HashMap<_, &Tensor> =
            self.constants.iter().map(|tensor| (digest(tensor), tensor)).collect();
        for constant in &mut compiled.constants {
            if let Some(&stored) = tensors_by_digest.get(&digest(constant)) {
                *constant = stored.clone();
            }
        }
        for (backend, data) in &mut compiled.linked {
            if let (Some(data), Some(Some(main))) = (data, self.linked.get(backend))
                && digest(data) == digest(main)
            {
                *data = main.clone();
            }
        }
        self.variants.push(variant);
    }
}

fn contradiction(message: String) -> Diagnostic {
    Diagnostic::error(codes::artifacts::MALFORMED, message)
        .note("the program and the compiled region come from different builds")
        .help("compile the model again")
}

/// Metadata key for the indices of the region's constants that the blob contains.
pub const PACKED_CONSTANTS: &str = "packed_constants";

/// Metadata key whose value `false` declares that a region needs no host fallback.
pub const HOST_FALLBACK: &str = "host_fallback";

/// Metadata key for pairs `[output, input]`: the output may reuse the memory of the input.
pub const IN_PLACE: &str = "in_place";

/// Reads the value of [`IN_PLACE`]. Elements that are not pairs of indices are skipped.
pub fn in_place_pairs(value: &Value) -> Vec<[u32; 2]> {
    let index = |value: Option<&Value>| u32::try_from(value?.as_u64()?).ok();
    let pair = |pair: &Value| match pair.as_array().map(Vec::as_slice) {
        Some([output, input]) => Some([index(Some(output))?, index(Some(input))?]),
        _ => None,
    };
    value.as_array().into_iter().flatten().filter_map(pair).collect()
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
    pub blob: Bytes,
    /// Functions that the blob defines.
    pub symbols: Vec<String>,
    /// Generated source, for inspection and for machines that cannot run the blob.
    pub source: Option<RegionSource>,
    /// Constants passed to the loader, in order, as indices into [`Compiled::constants`].
    pub constants: Vec<u32>,
    /// CPU features that the blob requires; empty if it runs on every machine.
    pub cpu_features: Vec<String>,
    /// Notes of the backend, one line each.
    pub notes: Vec<String>,
    /// Metadata that the plugin records about the region, by name.
    pub metadata: Vec<(String, Value)>,
    /// Region graph that the code generator received, kept for recompilation.
    pub graph: Value,
    /// Existing file that contains the blob's shared library. The loader opens it instead of writing a temporary file.
    pub library: Option<PathBuf>,
}

impl CompiledRegion {
    /// Returns the types that the region was compiled for.
    ///
    /// # Errors
    /// If the recorded graph is malformed.
    pub fn signature(&self) -> Result<Signature, String> {
        Signature::of_graph(&self.graph)
    }

    /// Checks the constants of the model, given by their types, against the constants with which the region was
    /// compiled, and returns the region's signature.
    fn check(&self, constant: impl Fn(u32) -> Option<TensorType>) -> Result<Signature, String> {
        if let Some(missing_constant) =
            self.constants.iter().find(|&&missing_constant| constant(missing_constant).is_none())
        {
            return Err(format!("expected the index of a constant, found {missing_constant}"));
        }
        let signature = self.signature()?;
        signature.check_constants(|i| constant(*self.constants.get(i)?))?;
        Ok(signature)
    }

    /// Returns the value that the backend recorded under a name.
    pub fn metadata(&self, name: &str) -> Option<&Value> {
        self.metadata.iter().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    /// Returns true unless the backend declared that the region needs no host fallback.
    pub fn has_fallback(&self) -> bool {
        self.metadata(HOST_FALLBACK) != Some(&Value::Bool(false))
    }

    /// Returns the results that the region may write to the memory of an input, as pairs of a result index and an input
    /// index; see [`in_place_pairs`].
    pub fn in_place(&self) -> Vec<[u32; 2]> {
        self.metadata(IN_PLACE).map(in_place_pairs).unwrap_or_default()
    }

    /// Tests for each of [`CompiledRegion::constants`] whether the blob contains the constant. The loader receives no
    /// value for such a constant.
    pub fn is_packed(&self) -> Vec<bool> {
        let mut packed_flags = vec![false; self.constants.len()];
        if !self.has_fallback() {
            let packed_indices = self.metadata(PACKED_CONSTANTS).and_then(Value::as_array).into_iter().flatten();
            for index in packed_indices.filter_map(Value::as_u64).filter_map(|index| usize::try_from(index).ok()) {
                if let Some(flag) = packed_flags.get_mut(index) {
                    *flag = true;
                }
            }
        }
        packed_flags
    }

    /// Returns `options.region`, the region description that a loader receives in addition to the blob.
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
    /// BLAKE3 digest of the plugin's library, in hexadecimal.
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

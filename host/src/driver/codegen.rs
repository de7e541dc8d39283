//! Code generation for regions: `relay.ext.<name>` compiles each function with `Compiler="<name>"`.

use super::backend::Backend;
use super::judge::refusal_of;
use byoc_core::analysis::VerifiedModule;
use byoc_core::pass::{Refusal, RefusalCode};
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::ir::Module;
use byoc_ir::tensor::Tensor;
use byoc_plugin_api::Region;
use byoc_plugin_api::link::LinkRegion;
use byoc_plugin_api::program::{self, Answer, Request};
use byoc_runtime::compiled::{CompiledRegion, PluginId, RegionSource};
use byoc_runtime::linking::{self, LINK, LinkedRegions};
use byoc_runtime::plugin::entries::with_operators;
use byoc_runtime::plugin::to_graph::{self, ConstantTable, function_graph};
use byoc_runtime::plugin::{fault, operator_list};
use serde_json::{Value, json};
use std::collections::HashMap;

/// Failure to compile a region: a diagnostic for the user, and a refusal for the explanation.
#[derive(Debug)]
pub struct CompileFailure {
    /// Complete diagnostic.
    pub diagnostic: Diagnostic,
    /// Refusal that `byoc explain` reports for the region's operators.
    pub refusal: Refusal,
}

impl From<Diagnostic> for CompileFailure {
    fn from(diagnostic: Diagnostic) -> CompileFailure {
        let refusal = Refusal::new(RefusalCode::CompileFailed, diagnostic.message.clone());
        CompileFailure { diagnostic, refusal }
    }
}

/// Compiles regions one by one, and identifies their constants by the indices that the program uses.
pub struct RegionCompiler<'a> {
    module: &'a Module,
    /// Indices of the program's constants, by the address of their bytes.
    indices: HashMap<*const u8, u32>,
    options: Value,
}

impl<'a> RegionCompiler<'a> {
    /// Creates a compiler for the regions of `module`; `constants` are the constants of the planned program.
    pub fn new(module: VerifiedModule<'a>, constants: &[Tensor], options: Value) -> RegionCompiler<'a> {
        let indices = constants.iter().enumerate().map(|(i, t)| (t.bytes().as_ptr(), i as u32)).collect();
        RegionCompiler { module: module.module(), indices, options }
    }

    /// Compiles the region `symbol`, and appends to `constants` those of its constants that the program does not
    /// contain yet.
    ///
    /// # Errors
    /// E0406 if the backend fails, E0405 if the compiled library does not define `symbol`.
    pub fn compile(
        &mut self,
        backend: &Backend<'_>,
        symbol: &str,
        constants: &mut Vec<Tensor>,
    ) -> Result<CompiledRegion, Box<CompileFailure>> {
        let compile_error = |diagnostic: Diagnostic| Box::new(CompileFailure::from(diagnostic));
        let function = self.module.function(symbol).ok_or_else(|| {
            let message = format!("the module has no function @{symbol}");
            compile_error(Diagnostic::error(codes::plugins::MISSING_SYMBOL, message))
        })?;
        let mut table = ConstantTable::default();
        let graph = function_graph(self.module, symbol, function, &mut table).map_err(|d| compile_error(*d))?;
        let bad_graph = |e: String| compile_error(Diagnostic::error(codes::plugins::BAD_GRAPH, e));
        graph.check(table.handles.len()).map_err(bad_graph)?;
        let options = self.options_of(backend);
        let region = Region { graph: &graph, constants: &table.handles, options: &options };
        let sources = graph.nodes.iter().flat_map(|node| node.sources.iter().map(|name| name.as_str()));
        let operators = operator_list(sources);
        let compiled = with_operators(operators, || backend.codegen.compile(&region)).map_err(|error| {
            Box::new(CompileFailure {
                diagnostic: fault(&error),
                refusal: refusal_of(&error, RefusalCode::CompileFailed),
            })
        })?;
        if !compiled.symbols.iter().any(|s| s.as_str() == symbol) {
            let names: Vec<&str> = compiled.symbols.iter().map(|s| s.as_str()).collect();
            let message = format!("{} compiled {symbol} to a library that does not define it", backend.name);
            let symbol_list = if names.is_empty() { "nothing".into() } else { names.join(", ") };
            let diagnostic = Diagnostic::error(codes::plugins::MISSING_SYMBOL, message);
            return Err(compile_error(diagnostic.note(format!("the library defines {symbol_list}"))));
        }
        check_size(backend, symbol, compiled.blob.len()).map_err(compile_error)?;
        let indices = table.tensors.iter().map(|tensor| {
            *self.indices.entry(tensor.bytes().as_ptr()).or_insert_with(|| {
                constants.push((**tensor).clone());
                (constants.len() - 1) as u32
            })
        });
        let mut metadata = to_graph::metadata(&compiled);
        let mut source = compiled
            .source
            .as_ref()
            .map(|s| RegionSource { language: s.language.to_string(), text: s.text.to_string() })
            .into_option();
        if options["program"] == "c" && metadata.iter().all(|(key, _)| key != PROGRAM_WORKSPACE) {
            ask_for_program(backend, &region, &mut source, &mut metadata);
        }
        let features = metadata.iter().find(|(key, _)| key == "cpu_features").map(|(_, value)| match value {
            Value::Array(items) => items.iter().filter_map(|v| v.as_str().map(String::from)).collect(),
            Value::String(text) => text.split([',', ' ']).filter(|s| !s.is_empty()).map(String::from).collect(),
            _ => Vec::new(),
        });
        Ok(CompiledRegion {
            symbol: symbol.to_owned(),
            backend: backend.name.clone(),
            plugin: PluginId {
                name: backend.plugin.name.clone(),
                version: backend.plugin.version.clone(),
                digest: backend.file.digest().to_owned(),
            },
            loader: compiled.loader.to_string(),
            blob: compiled.blob.as_slice().to_vec().into(),
            symbols: compiled.symbols.iter().map(|s| s.to_string()).collect(),
            source,
            constants: indices.collect(),
            cpu_features: features.unwrap_or_default(),
            notes: compiled.notes.iter().map(|n| n.to_string()).collect(),
            metadata,
            graph: serde_json::from_str(&graph.to_json()).unwrap_or(Value::Null),
            library: None,
        })
    }

    /// Returns the `compile` options for a backend.
    fn options_of(&self, backend: &Backend<'_>) -> Value {
        let mut options = self.options.clone();
        for (key, value) in backend.choices.as_object().into_iter().flatten() {
            options[key] = value.clone();
        }
        options
    }

    /// Links those regions of a backend whose metadata requests linking, and returns their shared data, if any. The
    /// outer `Option` is `None` if no region requests linking.
    ///
    /// # Errors
    /// If the backend fails or returns an invalid result. None of the linked regions can be loaded in that case.
    pub fn link(
        &self,
        backend: &Backend<'_>,
        regions: &mut [Option<CompiledRegion>],
    ) -> Result<Option<Option<Tensor>>, Diagnostic> {
        let mut linked_regions: Vec<&mut CompiledRegion> =
            regions.iter_mut().flatten().filter(|region| takes_part(region, &backend.name)).collect();
        if linked_regions.is_empty() {
            return Ok(None);
        }
        let link_regions = linked_regions.iter().map(|region| LinkRegion {
            symbol: region.symbol.clone(),
            loader: region.loader.clone(),
            metadata: region.metadata.iter().cloned().collect(),
            blob: &region.blob,
        });
        let answer = linking::link(backend.codegen.as_ref(), &self.options_of(backend), link_regions.collect());
        let LinkedRegions { shared: shared_data, blobs, notes } = answer.map_err(|diagnostic| *diagnostic)?;
        for (symbol, blob) in &blobs {
            check_size(backend, symbol, blob.len())?;
        }
        linked_regions[0].notes.extend(notes);
        for region in linked_regions {
            if let Some(blob) = blobs.get(&region.symbol) {
                region.blob = blob.clone().into();
            }
        }
        Ok(Some(shared_data))
    }
}

/// Metadata key for a region whose source is a C99 program: workspace size in bytes.
pub const PROGRAM_WORKSPACE: &str = "program_workspace";

/// Metadata key for a region whose source is a C99 program: true if the region's function returns a status.
pub const PROGRAM_STATUS: &str = "program_status";

/// Metadata key for a region whose source is a C99 program: total size in bytes of the constant arrays in the source.
pub const PROGRAM_CONSTANT_BYTES: &str = "program_constant_bytes";

/// Metadata key for a region without a C99 program: reason for the refusal, and remedy if any.
pub const PROGRAM_REFUSED: &str = "program_refused";

/// Requests a region as C99 from a code generator ([`program::KEY`]), and records the result.
fn ask_for_program(
    backend: &Backend<'_>,
    region: &Region<'_>,
    source: &mut Option<RegionSource>,
    metadata: &mut Vec<(String, Value)>,
) {
    let data = Request::write(region.graph, region.constants, region.options);
    let response = match backend.codegen.query(program::KEY, &data) {
        Ok(None) => return,
        Ok(Some(answer)) => Answer::read(&answer).map_err(|error| (error.to_string(), String::new())),
        Err(error) => Err((error.message.to_string(), error.hint.to_string())),
    };
    let (reason, hint) = match response {
        Ok(Answer::Program(program)) => {
            metadata.push((PROGRAM_WORKSPACE.into(), program.workspace.into()));
            metadata.push((PROGRAM_STATUS.into(), program.status.into()));
            metadata.push((PROGRAM_CONSTANT_BYTES.into(), program.constant_bytes.into()));
            *source = Some(RegionSource { language: "c".into(), text: program.source });
            return;
        }
        Ok(Answer::Refused { reason, hint }) | Err((reason, hint)) => (reason, hint),
    };
    metadata.push((PROGRAM_REFUSED.into(), json!([reason, hint])));
}

/// Returns true if `backend` compiled the region and requested linking for it.
pub fn takes_part(region: &CompiledRegion, backend: &str) -> bool {
    region.backend == backend && region.metadata(LINK) == Some(&Value::Bool(true))
}

/// Checks the size of a blob against the limit in the backend's description.
fn check_size(backend: &Backend<'_>, symbol: &str, bytes: usize) -> Result<(), Diagnostic> {
    let Some(limit) = backend.description.max_blob_bytes.filter(|limit| bytes as u64 > *limit) else { return Ok(()) };
    let message =
        format!("{}, region {symbol}: expected a blob of at most {limit} bytes, found {bytes} bytes", backend.name);
    Err(Diagnostic::error(codes::plugins::BLOB_TOO_LARGE, message)
        .help("refuse such regions in the backend's verdict with the code ResourceLimit"))
}

//! From a region to engines: one for each capability.

use crate::blob::{self, Header};
use crate::cuda::Cuda;
use crate::library::{Config, Dims, Layer, Network, TensorRt};
use crate::model;
use crate::options::{Capability, Options};
use byoc_plugin_api::{Attr, CompiledRegion, Error, Graph, OnnxModel, Region, Result, Services, Signature};
use std::path::Path;

/// Lowest capability of engines for any.
const OLDEST_OF_ANY: i32 = 80;
/// Lowest capability that the library offers.
const OLDEST: i32 = 75;

/// First bytes of the library's timings.
const CACHE_MAGIC: &[u8] = b"ptrt";

/// Returns the capabilities to compile for: those of the user, that of the device at hand, or any.
fn capabilities(options: &Options) -> Vec<Capability> {
    if !options.capabilities.is_empty() {
        return options.capabilities.clone();
    }
    let device = Cuda::get().and_then(|cuda| cuda.capability(cuda.current()?)).ok();
    let offered = device.filter(|number| crate::options::OFFERED.contains(number) && *number >= OLDEST_OF_ANY);
    vec![offered.map_or(Capability::Any, Capability::Of)]
}

/// Compiles a region.
///
/// # Errors
/// If an option is out of range, the parser refuses the region, or the library cannot build it for a capability.
pub fn compile(library: &TensorRt, services: &Services, region: &Region<'_>) -> Result<CompiledRegion> {
    let options = Options::of(region.options)?;
    let graph = region.graph;
    let model = model::write(services, graph, region.constants)?;
    let built = Network::parse(library, &model.bytes, |network| {
        model::check_ports(network, graph, &model)?;
        build(network, &options, &model, graph, services)
    });
    let (layers, engines) = built.map_err(|errors| Error::from(model::refusal_of(&errors, graph, &model)))??;
    let shown: Vec<String> = engines.iter().map(|(capability, _)| capability.shown()).collect();
    let sizes: usize = engines.iter().map(|(_, bytes)| bytes.len()).sum();
    let header = Header {
        library: library.version.clone(),
        symbol: graph.symbol.to_string(),
        signature: Signature::of(graph),
        inputs: model.info.inputs.clone(),
        outputs: model.info.outputs.clone(),
        profile: options.profile.clone(),
        layers: layers.len(),
    };
    let mut compiled = CompiledRegion::new(&graph.symbol, "tensorrt", blob::write(&header, &engines));
    let note = format!("layers: {}, engines for {}: {sizes} bytes", layers.len(), shown.join(", "));
    compiled.notes.push(note.into());
    compiled.metadata.push(Attr::new("library", format!("TensorRT for RTX {}", library.version)));
    compiled.metadata.push(Attr::new("capabilities", shown.join(",")));
    compiled.metadata.push(Attr::new("own_threads", true));
    Ok(compiled.with_source("txt", listing(&layers, &model)))
}

/// Builds the engine of each capability. Returns the layers of the network, and the engines.
///
/// # Errors
/// If the library refuses a setting or the network; the message names the capability.
pub fn build(
    network: &Network,
    options: &Options,
    model: &OnnxModel,
    graph: &Graph,
    services: &Services,
) -> Result<(Vec<Layer>, Vec<(Capability, Vec<u8>)>)> {
    let types = graph.inputs.iter().map(|input| &input.ty);
    let is_open = types.clone().any(|ty| ty.shape().is_none());
    let dims = types.map(|ty| options.dims_of(ty)).collect::<Result<Vec<[Dims; 3]>>>()?;
    let profile: Vec<(String, [Dims; 3])> = model.info.inputs.iter().cloned().zip(dims).collect();
    let mut engines = Vec::new();
    for capability in capabilities(options) {
        if services.cancelled() {
            return Err(Error::cancelled());
        }
        let config = network.config()?;
        set_up(&config, options, capability)?;
        if is_open {
            config.add_profile(&profile)?;
        }
        let engine = config.build().map_err(|error| {
            let failed = Error::new(format!("capability {}: {}", capability.shown(), error.message));
            match capability {
                Capability::Of(OLDEST) => failed.hint(
                    "leave out capability 7.5, whose engines lack more than others: products of float32 among them",
                ),
                _ => failed,
            }
        })?;
        if let Some(file) = &options.timing_cache {
            keep_timings(&config, file)?;
        }
        engines.push((capability, engine));
    }
    Ok((network.layers(), engines))
}

fn set_up(config: &Config<'_>, options: &Options, capability: Capability) -> Result<()> {
    if let Capability::Of(number) = capability {
        config.set_capability(number)?;
    }
    config.set_tf32(options.tf32);
    config.set_workspace(options.workspace);
    let level = config.set_level(options.level);
    if level != options.level {
        let expected = options.level;
        return Err(Error::new(format!("tensorrt.level: expected a level that the library takes, found {expected}"))
            .hint(format!("leave the option out: the library then uses level {level}")));
    }
    match &options.timing_cache {
        Some(file) => match std::fs::read(file) {
            // The library takes other data for an empty cache, and the build would then replace the file.
            Ok(bytes) if !bytes.is_empty() && !bytes.starts_with(CACHE_MAGIC) => {
                Err(timing_error(file, "expected timings of the library, found another file"))
            }
            Ok(bytes) => config.set_timing_cache(&bytes).map_err(|error| timing_error(file, &error.message)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => config.set_timing_cache(&[]),
            Err(error) => Err(timing_error(file, &error.to_string())),
        },
        None => Ok(()),
    }
}

fn timing_error(file: &Path, problem: &str) -> Error {
    Error::new(format!("tensorrt.timing_cache: {}: {problem}", file.display()))
        .hint("name another file; a missing one is written by the next compilation")
}

/// Writes the timings after a build: to a file beside the one, which then takes its name.
fn keep_timings(config: &Config<'_>, file: &Path) -> Result<()> {
    let Some(bytes) = config.timing_cache() else { return Ok(()) };
    let part = file.with_extension(format!("part{}", std::process::id()));
    let written = std::fs::write(&part, bytes).and_then(|()| std::fs::rename(&part, file));
    written.map_err(|error| timing_error(file, &error.to_string()))
}

/// Lists the layers of the network, and the nodes of the model that it was parsed from.
fn listing(layers: &[Layer], model: &OnnxModel) -> String {
    let mut text = format!("# nodes of the ONNX model: {}\n", model.info.nodes.len());
    for node in &model.info.nodes {
        text += &format!("{} {}\n", node.op, node.name);
    }
    text += &format!("# layers of the network: {}\n", layers.len());
    for layer in layers {
        text += &format!("{} (kind {})\n", layer.name, layer.kind);
    }
    text
}

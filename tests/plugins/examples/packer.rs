//! Backend for tests of the host. Its blobs contain the constants, and its link step moves the constants of all regions
//! of a model into shared data, without duplicates. It computes with the host's reference kernels.
//!
//! A blob consists of a checksum, the size of a JSON text in 8 bytes, the text (graph and constant locations), and
//! data. In a linked blob, the locations refer to the shared data.

use byoc_plugin_api::link::{LINK_KEY, LinkRequest, Linked};
use byoc_plugin_api::{
    Attr, AttrValue, Call, Candidate, Codegen, CompiledRegion, Constant, ConstantSource, DType, Description, Error,
    Executable, Graph, Level, LoadRequest, Loader, Prepared, Region, Result, Signature, Verdict,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

byoc_plugin_api::declare_plugin!("packer", "1.0.0");
byoc_plugin_api::register!(|context, registry| {
    let path = context.path.with_extension("json");
    let text = if path.exists() { std::fs::read_to_string(&path)? } else { "{}".to_owned() };
    let config: Config = serde_json::from_str(&text)?;
    registry.codegen("packer", Backend(config.clone()));
    registry.loader("packer", PackerLoader { config, engines: Mutex::default(), running_count: &RUNNING_COUNT });
    Ok(())
});

/// Contents of the configuration file beside the library.
#[derive(Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Config {
    /// True if the blobs contain the constants. The host then drops its copies and the fallback.
    packed: bool,
    /// True if the regions of a model share their constants.
    link: bool,
    /// True if each run adds the number of earlier runs to its first output.
    state: bool,
    /// True if a region's first output may share the memory of its first input.
    in_place: bool,
    /// Maximum number of concurrent runs; 0 for no limit.
    concurrency: i64,
    /// Blob format version.
    format: i64,
    /// Simulated fault. `link`: the link step fails; `symbol`: the link step returns a blob for a nonexistent region;
    /// `load`: no region can be loaded; `prepare`: no region can be prepared.
    fault: String,
}

/// JSON part of a blob.
#[derive(Serialize, Deserialize)]
struct Head {
    graph: Value,
    /// Element type (code, bits, lanes), dimensions, offset and size of each packed constant.
    constants: Vec<Place>,
    linked: bool,
}

#[derive(Serialize, Deserialize)]
struct Place {
    dtype: [u16; 3],
    shape: Vec<usize>,
    offset: usize,
    size: usize,
}

impl Place {
    /// Returns the end of the constant; saturates because a corrupt blob may contain an arbitrary offset.
    fn end(&self) -> usize {
        self.offset.saturating_add(self.size)
    }
}

/// Returns the FNV-1a checksum, which detects corrupt blobs.
fn checksum(bytes: &[u8]) -> [u8; 8] {
    let hash = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    hash.to_le_bytes()
}

fn encode(head: &Head, data: &[u8]) -> Result<Vec<u8>> {
    let text = serde_json::to_string(head)?;
    let content = [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), data].concat();
    Ok([&checksum(&content)[..], &content].concat())
}

fn decode(blob: &[u8]) -> Result<(Head, &[u8])> {
    let content = blob.split_first_chunk::<8>().filter(|(sum, content)| **sum == checksum(content));
    let sections = content.and_then(|(_, content)| content.split_first_chunk::<8>()).and_then(|(size, rest)| {
        let size = usize::try_from(u64::from_le_bytes(*size)).ok()?;
        rest.split_at_checked(size)
    });
    let (text, data) =
        sections.ok_or_else(|| Error::new("expected a blob from packer, found corrupt or unrecognized data"))?;
    Ok((serde_json::from_slice(text)?, data))
}

struct Backend(Config);

impl Codegen for Backend {
    fn describe(&self) -> Result<Description> {
        let operators = ["nn.conv2d", "nn.bias_add", "nn.relu", "add", "multiply", "nn.dense"];
        Ok(Description {
            about: "stores constants in its blobs".into(),
            operators: operators.into_iter().map(String::from).collect(),
            ..Description::default()
        })
    }

    fn judge(&self, _: &Candidate) -> Verdict {
        Verdict::Supported
    }

    fn compile(&self, region: &Region<'_>) -> Result<CompiledRegion> {
        let Config { packed, link, format, .. } = self.0;
        let mut head =
            Head { graph: serde_json::from_str(&region.graph.to_json())?, constants: Vec::new(), linked: false };
        let mut data = Vec::new();
        for constant in region.constants.iter().filter(|_| packed) {
            let DType { code, bits, lanes } = constant.dtype();
            let (offset, size) = (data.len(), constant.bytes().len());
            data.extend_from_slice(constant.bytes());
            let dtype = [code.into(), bits.into(), lanes];
            head.constants.push(Place { dtype, shape: constant.shape().to_vec(), offset, size });
        }
        let mut compiled_region = CompiledRegion::new(&region.graph.symbol, "packer", encode(&head, &data)?);
        compiled_region.metadata.push(Attr::new("format", format));
        if packed {
            let indices: Vec<AttrValue> = (0..region.constants.len()).map(|i| AttrValue::Int(i as i64)).collect();
            compiled_region.metadata.push(Attr::new("packed_constants", AttrValue::List(indices.into())));
            compiled_region.metadata.push(Attr::new("host_fallback", AttrValue::Bool(false)));
        }
        if self.0.state {
            compiled_region.metadata.push(Attr::new("state", AttrValue::Bool(true)));
        }
        if self.0.in_place {
            let in_place_pair = AttrValue::List(vec![AttrValue::Int(0), AttrValue::Int(0)].into());
            compiled_region.metadata.push(Attr::new("in_place", AttrValue::List(vec![in_place_pair].into())));
        }
        if self.0.concurrency > 0 {
            compiled_region.metadata.push(Attr::new("concurrency", self.0.concurrency));
        }
        if link {
            compiled_region.metadata.push(Attr::new("link", AttrValue::Bool(true)));
        }
        Ok(compiled_region)
    }

    fn query(&self, key: &str, data: &[u8]) -> Result<Option<Vec<u8>>> {
        if key != LINK_KEY {
            return Ok(None);
        }
        let request = LinkRequest::parse(data)?;
        if self.0.fault == "link" {
            let message = format!("expected at most 1 region, found {}", request.regions.len());
            return Err(Error::new(message).hint("use a larger device"));
        }
        let (mut shared_bytes, mut offsets): (Vec<u8>, HashMap<Vec<u8>, usize>) = (Vec::new(), HashMap::new());
        let mut response = Linked::default();
        for region in &request.regions {
            let (mut head, data) = decode(region.blob)?;
            head.linked = true;
            for constant_entry in &mut head.constants {
                let bytes = data.get(constant_entry.offset..constant_entry.end()).unwrap_or_default();
                constant_entry.offset = *offsets.entry(bytes.to_vec()).or_insert_with(|| {
                    shared_bytes.resize(shared_bytes.len().next_multiple_of(64), 0);
                    shared_bytes.extend_from_slice(bytes);
                    shared_bytes.len() - bytes.len()
                });
            }
            response.blobs.insert(region.symbol.clone(), encode(&head, &[])?);
        }
        if self.0.fault == "symbol" {
            response.blobs.insert("elsewhere".into(), Vec::new());
        }
        response.notes.push(format!("{} regions share {} bytes", request.regions.len(), shared_bytes.len()));
        response.shared = Some(shared_bytes);
        Ok(Some(response.to_bytes()))
    }
}

/// Data shared by all regions of a model. Stands in for a hardware engine.
struct Engine(Vec<u8>);

/// Constant in an engine.
struct Part {
    engine: Arc<Engine>,
    offset: usize,
    size: usize,
}

impl ConstantSource for Part {
    fn bytes(&self) -> &[u8] {
        &self.engine.0[self.offset..self.offset + self.size]
    }

    fn digest(&self) -> String {
        String::new()
    }
}

struct PackerLoader {
    config: Config,
    /// Live engines, keyed by the digest of the shared data.
    engines: Mutex<HashMap<String, Weak<Engine>>>,
    /// Number of runs in progress.
    running_count: &'static AtomicI64,
}

static RUNNING_COUNT: AtomicI64 = AtomicI64::new(0);

impl PackerLoader {
    /// Returns the engine of a model.
    fn engine(&self, region: &LoadRequest<'_>, shared_constant: &Constant) -> Arc<Engine> {
        let mut engines = self.engines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(engine) = engines.get(&shared_constant.digest()).and_then(Weak::upgrade) {
            return engine;
        }
        let message = format!("created an engine of {} bytes", shared_constant.bytes().len());
        region.services.log(Level::INFO, "packer", &message);
        let engine = Arc::new(Engine(shared_constant.bytes().to_vec()));
        engines.insert(shared_constant.digest(), Arc::downgrade(&engine));
        engine
    }
}

impl Loader for PackerLoader {
    fn load(&self, region: &LoadRequest<'_>) -> Result<Box<dyn Executable>> {
        if self.config.fault == "load" {
            return Err(Error::new("the device is busy"));
        }
        let (head, data) = decode(region.blob)?;
        let graph = Graph::from_json(&head.graph.to_string())?;
        region.check_signature(&Signature::of(&graph))?;
        let engine = match (head.linked, region.shared()) {
            (true, Some(shared_constant)) => self.engine(region, shared_constant),
            (true, None) => return Err(Error::new("expected shared data, found none")),
            (false, _) => {
                let mut aligned_bytes = Vec::new();
                for place in &head.constants {
                    aligned_bytes.resize(aligned_bytes.len().next_multiple_of(64), 0);
                    aligned_bytes.extend_from_slice(data.get(place.offset..place.end()).unwrap_or_default());
                }
                Arc::new(Engine(aligned_bytes))
            }
        };
        let mut constants = Vec::new();
        let mut next_constant = 0usize;
        for (place, supplied_constant) in head.constants.iter().zip(region.constants) {
            if !supplied_constant.bytes().is_empty() {
                return Err(Error::new(format!(
                    "expected a constant without elements, found {} bytes; the blob contains its elements",
                    supplied_constant.bytes().len()
                )));
            }
            let offset = if head.linked { place.offset } else { next_constant.next_multiple_of(64) };
            next_constant = offset.saturating_add(place.size);
            if next_constant > engine.0.len() {
                return Err(Error::new(format!(
                    "expected at least {next_constant} bytes of constants, found {}",
                    engine.0.len()
                )));
            }
            let [code, bits, lanes] = place.dtype;
            let dtype = DType { code: code as u8, bits: bits as u8, lanes };
            let engine_part = Part { engine: engine.clone(), offset, size: place.size };
            constants.push(Constant::new("", dtype, &place.shape, engine_part));
        }
        let constants = if head.constants.is_empty() { region.constants.to_vec() } else { constants };
        graph.check(constants.len())?;
        let reference = region.services.reference(&graph, &constants)?;
        if self.config.fault == "prepare" {
            return Ok(Box::new(UnpreparedRegion));
        }
        let Config { state, concurrency, .. } = self.config;
        if !state && concurrency == 0 {
            return Ok(reference);
        }
        let max_runs = if state { 1 } else { concurrency };
        Ok(Box::new(WatchedRegion {
            reference,
            runs: AtomicI64::new(0),
            running_count: self.running_count,
            own_running_count: AtomicI64::new(0),
            max_running: max_runs,
            is_stateful: state,
        }))
    }

    fn query(&self, key: &str, data: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(match key {
            "blob.native" => Some(b"false".to_vec()),
            "blob.compatible" => {
                let region: Value = serde_json::from_slice(data)?;
                let is_same_format = region["metadata"]["format"] == self.config.format;
                Some(if is_same_format { b"yes".to_vec() } else { b"recompile".to_vec() })
            }
            _ => None,
        })
    }
}

/// Region that fails if more runs are in progress than it declares; it may be stateful.
struct WatchedRegion {
    reference: Box<dyn Executable>,
    /// Number of runs so far: the state.
    runs: AtomicI64,
    /// Number of runs in progress, over all regions.
    running_count: &'static AtomicI64,
    /// Number of runs of this region in progress: regions with separate states run concurrently.
    own_running_count: AtomicI64,
    max_running: i64,
    is_stateful: bool,
}

impl Executable for WatchedRegion {
    fn prepare(&self, inputs: &[&[usize]]) -> Result<Prepared> {
        self.reference.prepare(inputs)
    }

    fn run(&self, mut call: Call<'_, '_>) -> Result<()> {
        let running_count = if self.is_stateful { &self.own_running_count } else { self.running_count };
        let concurrent_runs = running_count.fetch_add(1, Ordering::SeqCst) + 1;
        std::thread::sleep(Duration::from_millis(20));
        let Call { inputs, ref mut outputs, plan, .. } = call;
        let result = self.reference.run(Call { inputs, outputs, workspace: &mut [], plan });
        running_count.fetch_sub(1, Ordering::SeqCst);
        result?;
        if concurrent_runs > self.max_running {
            return Err(Error::new(format!(
                "expected at most {} runs at a time, found {concurrent_runs}",
                self.max_running
            )));
        }
        if self.is_stateful {
            let previous_runs = self.runs.fetch_add(1, Ordering::SeqCst);
            call.outputs[0].as_mut_slice::<f32>().iter_mut().for_each(|value| *value += previous_runs as f32);
        }
        Ok(())
    }

    fn query(&self, key: &str, _: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok((key == "state.reset").then(|| {
            self.runs.store(0, Ordering::SeqCst);
            Vec::new()
        }))
    }
}

/// Region that cannot be prepared for any dimensions.
struct UnpreparedRegion;

impl Executable for UnpreparedRegion {
    fn prepare(&self, inputs: &[&[usize]]) -> Result<Prepared> {
        Err(Error::new(format!("expected smaller dimensions, found {inputs:?}")))
    }

    fn run(&self, _: Call<'_, '_>) -> Result<()> {
        Err(Error::new("the region ran before it was prepared"))
    }
}

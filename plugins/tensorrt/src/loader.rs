//! Loader: checks of version, capability and types, and the engine of the device at hand.

use crate::blob;
use crate::cuda::Cuda;
use crate::library::{Engine, shown_capability, tensorrt};
use crate::memory::Space;
use crate::options::{Capability, OFFERED};
use crate::region::EngineRegion;
use byoc_plugin_api::device::{MEMORY_KEY, MemoryKey, answer_memory};
use byoc_plugin_api::{Error, Executable, LoadRequest, Loader, Result};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Lowest capability of engines for any.
const OLDEST_OF_ANY: i32 = 80;

/// Loader `loadbinary_tensorrt`.
#[derive(Default)]
pub struct EngineLoader {
    /// Answers to the query for a device's memory, by device.
    spaces: Mutex<BTreeMap<i32, Vec<u8>>>,
}

/// Returns the position of the engine for a device among those of a blob.
///
/// # Errors
/// If there is none: the capabilities that there are.
pub fn choose(capabilities: &[Capability], device: i32) -> Result<usize> {
    let position = |wanted: Capability| capabilities.iter().position(|&capability| capability == wanted);
    let any = position(Capability::Any).filter(|_| device >= OLDEST_OF_ANY && OFFERED.contains(&device));
    position(Capability::Of(device)).or(any).ok_or_else(|| {
        let list: Vec<String> = capabilities.iter().map(|capability| capability.shown()).collect();
        let device_text = shown_capability(device);
        let error = Error::new(format!(
            "expected an engine for the GPU of this machine, of capability {device_text}, found engines for {}",
            list.join(", ")
        ));
        match OFFERED.contains(&device) {
            true => error.hint(format!("compile the model with --backend-option tensorrt.capability={device_text}")),
            false => error.hint(format!(
                "TensorRT for RTX has no engines for capability {device_text}: use another backend, such as opencl"
            )),
        }
    })
}

impl Loader for EngineLoader {
    fn load(&self, request: &LoadRequest<'_>) -> Result<Box<dyn Executable>> {
        let (header, engines) = blob::read(request.blob)?;
        if header.symbol != request.symbol {
            let (expected, found) = (request.symbol, &header.symbol);
            return Err(Error::new(format!("expected the engines of region {expected}, found those of {found}")));
        }
        request.check_signature(&header.signature)?;
        let library = tensorrt()?;
        if library.version != header.library {
            let (expected, found) = (&header.library, &library.version);
            return Err(Error::new(format!(
                "expected TensorRT for RTX {expected}, which built the engines, found {found}"
            ))
            .hint("compile the model again with the library of this machine"));
        }
        let cuda = Cuda::get()?;
        let device = cuda.find(request.options["device"].as_str().unwrap_or_default())?;
        cuda.select(device)?;
        let capabilities: Vec<Capability> = engines.iter().map(|(capability, _)| *capability).collect();
        let (_, bytes) = engines[choose(&capabilities, cuda.capability(device)?)?];
        let engine = Engine::deserialize(library, bytes)?;
        Ok(Box::new(EngineRegion::new(header, engine, cuda, device)?))
    }

    fn query(&self, key: &str, data: &[u8]) -> Result<Option<Vec<u8>>> {
        match key {
            // Engines hold code for the device.
            "blob.native" => Ok(Some(b"true".to_vec())),
            "blob.compatible" => Ok(Some(compatible(data).as_bytes().to_vec())),
            "blob.summary" => summary(data).map(|text| Some(text.into_bytes())),
            "byoc.files.1" => files().map(Some),
            MEMORY_KEY => self.memory(data),
            _ => Ok(None),
        }
    }
}

impl EngineLoader {
    /// Returns the memory of a device, none without one.
    fn memory(&self, data: &[u8]) -> Result<Option<Vec<u8>>> {
        let Ok(cuda) = Cuda::get() else { return Ok(None) };
        let device = cuda.find(&MemoryKey::parse(data)?.device)?;
        let mut spaces = self.spaces.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = spaces.get(&device) {
            return Ok(Some(known.clone()));
        }
        cuda.select(device)?;
        let answer = answer_memory(Space::new(cuda, device)?);
        spaces.insert(device, answer.clone());
        Ok(Some(answer))
    }
}

/// Returns what the host should do with a region by what it knows of it: `recompile` if another version of the library built
/// the engines than is here. Without a library, and for the device at hand, `load` tells what is missing.
fn compatible(region: &[u8]) -> &'static str {
    let region: Value = serde_json::from_slice(region).unwrap_or_default();
    let built = region["metadata"]["library"].as_str();
    let is_other = |own: &str| built.is_some_and(|built| built != own);
    match tensorrt() {
        Ok(library) if is_other(&format!("TensorRT for RTX {}", library.version)) => "recompile",
        _ => "yes",
    }
}

/// Describes a blob in a few lines.
fn summary(data: &[u8]) -> Result<String> {
    let (header, engines) = blob::read(data)?;
    let mut text = format!("TensorRT for RTX {}, layers: {}\n", header.library, header.layers);
    for (capability, bytes) in engines {
        text += &format!("engine for capability {}: {} bytes\n", capability.shown(), bytes.len());
    }
    for (name, [min, opt, max]) in &header.profile {
        text += &format!("dimension {name}: {min} to {max}, typically {opt}\n");
    }
    Ok(text)
}

/// Returns the files that a bundle needs besides the plugin.
fn files() -> Result<Vec<u8>> {
    let library = tensorrt()?;
    let dir = library.file.parent().unwrap_or(std::path::Path::new("."));
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir)?.filter_map(|entry| entry.ok()) {
        let name = entry.file_name().to_string_lossy().into_owned();
        if ["libtensorrt_rtx.so.", "libtensorrt_onnxparser_rtx.so.", "libcudart.so."]
            .iter()
            .any(|own| name.starts_with(own))
        {
            files.push(
                json!({ "path": entry.path().display().to_string(), "name": name, "license": "LicenseRef-NVIDIA-SLA" }),
            );
        }
    }
    files.sort_by_key(|file| file["name"].as_str().unwrap_or_default().to_owned());
    Ok(Value::from(files).to_string().into_bytes())
}

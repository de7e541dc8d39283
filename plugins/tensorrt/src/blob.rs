//! Compiled region: a header, and an engine for each capability.
//!
//! Magic, size of the header as 8 bytes, little-endian, the header as JSON, the engines one after another. The header has the
//! digest of the engines, so that a changed one never reaches the library.

use crate::options::{Capability, Range};
use byoc_plugin_api::{Error, Result, Signature};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const MAGIC: &[u8; 8] = b"BYOCTRT1";

/// Facts about a compiled region.
#[derive(Clone, Debug, PartialEq)]
pub struct Header {
    /// Version of the library that built the engines: no other one reads them.
    pub library: String,
    pub symbol: String,
    pub signature: Signature,
    /// Names of the inputs of the engines, in the order of the region's.
    pub inputs: Vec<String>,
    pub outputs: Vec<String>,
    /// Ranges of open dimensions.
    pub profile: BTreeMap<String, Range>,
    /// Number of layers of the network.
    pub layers: usize,
}

/// Compiled region that was read: the header, and the engines by capability.
pub type Blob<'b> = (Header, Vec<(Capability, &'b [u8])>);

/// Writes a compiled region.
pub fn write(header: &Header, engines: &[(Capability, Vec<u8>)]) -> Vec<u8> {
    let sizes: Vec<Value> = engines
        .iter()
        .map(|(capability, bytes)| json!({ "capability": capability.shown(), "size": bytes.len() }))
        .collect();
    let mut hasher = blake3::Hasher::new();
    for (_, bytes) in engines {
        hasher.update(bytes);
    }
    let text = json!({
        "library": header.library,
        "symbol": header.symbol,
        "signature": header.signature.to_json(),
        "inputs": header.inputs,
        "outputs": header.outputs,
        "profile": header.profile,
        "layers": header.layers,
        "engines": sizes,
        "digest": hasher.finalize().to_hex().to_string(),
    })
    .to_string();
    let mut blob = MAGIC.to_vec();
    blob.extend_from_slice(&(text.len() as u64).to_le_bytes());
    blob.extend_from_slice(text.as_bytes());
    engines.iter().for_each(|(_, bytes)| blob.extend_from_slice(bytes));
    blob
}

/// Reads a compiled region.
///
/// # Errors
/// If it is cut or changed.
pub fn read(blob: &[u8]) -> Result<Blob<'_>> {
    let malformed = |what: &str| {
        Error::new(format!("expected engines of TensorRT, found {what}"))
            .hint("compile the model again with this version of the plugin")
    };
    let rest = blob.strip_prefix(MAGIC).ok_or_else(|| malformed("other data"))?;
    let (size, rest) = rest.split_first_chunk::<8>().ok_or_else(|| malformed("a blob without a header"))?;
    let size = usize::try_from(u64::from_le_bytes(*size)).unwrap_or(usize::MAX);
    let (text, mut data) = rest.split_at_checked(size).ok_or_else(|| malformed("a blob with a part of its header"))?;
    let header: Value = serde_json::from_slice(text).map_err(|_| malformed("a header that is not JSON"))?;
    let digest = blake3::hash(data).to_hex();
    let mut engines = Vec::new();
    for engine in header["engines"].as_array().into_iter().flatten() {
        let size = engine["size"].as_u64().and_then(|size| usize::try_from(size).ok()).unwrap_or(usize::MAX);
        let (bytes, rest) = data.split_at_checked(size).ok_or_else(|| malformed("a blob with a part of an engine"))?;
        data = rest;
        engines.push((Capability::parse(engine["capability"].as_str().unwrap_or_default())?, bytes));
    }
    if header["digest"].as_str() != Some(digest.as_str()) || !data.is_empty() || engines.is_empty() {
        return Err(malformed("engines that were changed"));
    }
    let names = |key: &str| -> Option<Vec<String>> { serde_json::from_value(header[key].clone()).ok() };
    let signature = Signature::from_json(&header["signature"])?;
    let (inputs, outputs) = (names("inputs"), names("outputs"));
    let (Some(inputs), Some(outputs)) = (inputs, outputs) else {
        return Err(malformed("a header without the names of inputs and outputs"));
    };
    if inputs.len() != signature.inputs.len() || outputs.len() != signature.outputs.len() {
        return Err(malformed("a header whose names do not fit its types"));
    }
    let header = Header {
        library: header["library"].as_str().unwrap_or_default().to_owned(),
        symbol: header["symbol"].as_str().unwrap_or_default().to_owned(),
        signature,
        inputs,
        outputs,
        profile: serde_json::from_value(header["profile"].clone())
            .map_err(|_| malformed("a header without a profile"))?,
        layers: header["layers"].as_u64().unwrap_or(0) as usize,
    };
    Ok((header, engines))
}

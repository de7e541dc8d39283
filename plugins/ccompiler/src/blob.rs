//! Region blob: the C source, and one object compiled from it for a set of CPU features.
//!
//! Format: an 8-byte magic number, the BLAKE3 digest of everything after it, the length of a JSON header (64 bits,
//! little-endian), the header, the source, the object. The digest prevents corrupted machine code from being mapped.

use byoc_plugin_api::{Constant, Error, LoadRequest, Result, Signature, TensorType};
use serde::{Deserialize, Serialize};
use serde_json::Value;

const MAGIC: &[u8; 8] = b"BYOCCC02";

/// Metadata of a region.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Name of the function that runs the region.
    pub symbol: String,
    /// CPU features that the object may use.
    pub features: Vec<String>,
    /// Version line of the compiler that built the object.
    pub compiler: String,
    /// Dimensions of the inputs.
    pub inputs: Vec<Vec<usize>>,
    /// Dimensions of the outputs.
    pub outputs: Vec<Vec<usize>>,
    /// Types of inputs, outputs and constants in the JSON format of the plugin API; absent in blobs of earlier
    /// versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub types: Option<Types>,
    /// Indices of the constants that the code reads in place; the packing function reads all other constants.
    pub kept: Vec<usize>,
    /// Size of the source in bytes.
    pub source: usize,
    /// Size of the object in bytes.
    pub object: usize,
}

/// Types that the code was generated for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Types {
    /// Types of inputs and outputs.
    pub signature: Value,
    pub constants: Vec<Value>,
}

impl Types {
    /// Returns the types of a region.
    pub fn new(signature: &Signature, constants: &[Constant]) -> Types {
        let constants = constants.iter().map(|constant| constant.ty().to_json()).collect();
        Types { signature: signature.to_json(), constants }
    }

    /// Checks the signature and the constants of a load request against these types.
    ///
    /// # Errors
    /// If a type differs; the message names the first such tensor.
    pub fn check(&self, request: &LoadRequest<'_>) -> Result<()> {
        request.check_signature(&Signature::from_json(&self.signature)?)?;
        if self.constants.len() != request.constants.len() {
            let (expected, found) = (self.constants.len(), request.constants.len());
            return Err(format!("number of constants: expected {expected}, found {found}").into());
        }
        for (i, (expected, found)) in self.constants.iter().zip(request.constants).enumerate() {
            let expected = TensorType::from_json(expected)?;
            if found.ty() != expected {
                return Err(format!("constant {i}: expected {expected}, found {}", found.ty()).into());
            }
        }
        Ok(())
    }
}

/// Parsed blob.
#[derive(Debug)]
pub struct Blob<'a> {
    /// Metadata of the region.
    pub header: Header,
    /// C source.
    pub source: &'a str,
    /// Shared object.
    pub object: &'a [u8],
}

/// Serializes a blob and sets the lengths in the header.
pub fn write(mut header: Header, source: &str, object: &[u8]) -> Result<Vec<u8>> {
    header.source = source.len();
    header.object = object.len();
    let text = serde_json::to_vec(&header)?;
    let mut payload = (text.len() as u64).to_le_bytes().to_vec();
    payload.extend_from_slice(&text);
    payload.extend_from_slice(source.as_bytes());
    payload.extend_from_slice(object);
    Ok([&MAGIC[..], &blake3::hash(&payload).as_bytes()[..], &payload].concat())
}

/// Parses a blob.
///
/// # Errors
/// If the bytes are not a blob of this plugin, or are corrupt.
pub fn read(bytes: &[u8]) -> Result<Blob<'_>> {
    let corrupted_blob = || Error::new("expected a ccompiler blob, found foreign or corrupted data");
    let rest = bytes.strip_prefix(MAGIC).ok_or_else(corrupted_blob)?;
    let (digest, rest) = rest.split_first_chunk::<32>().ok_or_else(corrupted_blob)?;
    if blake3::hash(rest) != blake3::Hash::from_bytes(*digest) {
        return Err(corrupted_blob());
    }
    let (length, rest) = rest.split_first_chunk::<8>().ok_or_else(corrupted_blob)?;
    let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| corrupted_blob())?;
    let (header, rest) = rest.split_at_checked(length).ok_or_else(corrupted_blob)?;
    let header: Header = serde_json::from_slice(header)?;
    let (source, object) = rest.split_at_checked(header.source).ok_or_else(corrupted_blob)?;
    if object.len() != header.object {
        return Err(corrupted_blob());
    }
    let source = std::str::from_utf8(source).map_err(|_| corrupted_blob())?;
    Ok(Blob { header, source, object })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_and_rejects_corrupted_bytes() {
        let header = Header {
            symbol: "f".into(),
            features: vec!["avx2".into()],
            compiler: "cc 1".into(),
            inputs: vec![vec![1, 2]],
            outputs: vec![vec![2]],
            types: None,
            kept: vec![0],
            source: 0,
            object: 0,
        };
        let bytes = write(header.clone(), "int x;", &[1, 2, 3]).unwrap();
        let blob = read(&bytes).unwrap();
        assert_eq!((blob.source, blob.object), ("int x;", &[1u8, 2, 3][..]));
        assert_eq!(blob.header, Header { source: 6, object: 3, ..header });
        for len in 0..bytes.len() {
            assert!(read(&bytes[..len]).is_err(), "expected an error for the first {len} of {} bytes", bytes.len());
        }
        let mut damaged_bytes = bytes.clone();
        for index in 0..bytes.len() {
            damaged_bytes[index] ^= 4;
            assert!(read(&damaged_bytes).is_err(), "expected an error after changing byte {index}");
            damaged_bytes[index] = bytes[index];
        }
    }
}

//! What is shipped for a region: the C source, and one object of it for some CPU features.
//!
//! Eight bytes of magic, the BLAKE3 digest of what follows, the length of a JSON header (64 bits, little-endian), the
//! header, the source, the object. The digest keeps damaged machine code from being mapped, let alone run.

use byoc_plugin_api::{Constant, Error, LoadRequest, Result, Signature, TensorType};
use serde::{Deserialize, Serialize};
use serde_json::Value;

const MAGIC: &[u8; 8] = b"BYOCCC02";

/// What is known about a region beside its code.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// The function that runs it.
    pub symbol: String,
    /// The CPU features that the object may use.
    pub features: Vec<String>,
    /// The compiler that made the object.
    pub compiler: String,
    /// The dimensions of the inputs.
    pub inputs: Vec<Vec<usize>>,
    /// The dimensions of the outputs.
    pub outputs: Vec<Vec<usize>>,
    /// The types of inputs, outputs and constants in the boundary's JSON form; blobs of earlier versions lack them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub types: Option<Types>,
    /// The constants that the code reads where they lie; the others are only packed.
    pub kept: Vec<usize>,
    /// Bytes of source.
    pub source: usize,
    /// Bytes of object.
    pub object: usize,
}

/// The types that the code was generated for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Types {
    /// Inputs and outputs.
    pub signature: Value,
    /// The constants.
    pub constants: Vec<Value>,
}

impl Types {
    /// Returns the types of a region.
    pub fn new(signature: &Signature, constants: &[Constant]) -> Types {
        let constants = constants.iter().map(|constant| constant.ty().to_json()).collect();
        Types { signature: signature.to_json(), constants }
    }

    /// Compares the types with those of a region that is about to run, and of its constants.
    ///
    /// # Errors
    /// The first tensor that differs.
    pub fn check(&self, request: &LoadRequest<'_>) -> Result<()> {
        request.check_signature(&Signature::from_json(&self.signature)?)?;
        if self.constants.len() != request.constants.len() {
            let (expected, found) = (self.constants.len(), request.constants.len());
            return Err(format!("expected {expected} constants, found {found}").into());
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

/// A blob, read.
#[derive(Debug)]
pub struct Blob<'a> {
    /// The header.
    pub header: Header,
    /// The C source.
    pub source: &'a str,
    /// The object.
    pub object: &'a [u8],
}

/// Writes a blob. The header's lengths are filled in.
pub fn write(mut header: Header, source: &str, object: &[u8]) -> Result<Vec<u8>> {
    header.source = source.len();
    header.object = object.len();
    let text = serde_json::to_vec(&header)?;
    let mut contents = (text.len() as u64).to_le_bytes().to_vec();
    contents.extend_from_slice(&text);
    contents.extend_from_slice(source.as_bytes());
    contents.extend_from_slice(object);
    Ok([&MAGIC[..], &blake3::hash(&contents).as_bytes()[..], &contents].concat())
}

/// Reads a blob.
///
/// # Errors
/// Where it is none, or damaged.
pub fn read(bytes: &[u8]) -> Result<Blob<'_>> {
    let damaged = || Error::new("the region is not a blob of ccompiler, or it is damaged");
    let rest = bytes.strip_prefix(MAGIC).ok_or_else(damaged)?;
    let (digest, rest) = rest.split_first_chunk::<32>().ok_or_else(damaged)?;
    if blake3::hash(rest) != blake3::Hash::from_bytes(*digest) {
        return Err(damaged());
    }
    let (length, rest) = rest.split_first_chunk::<8>().ok_or_else(damaged)?;
    let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| damaged())?;
    let (header, rest) = rest.split_at_checked(length).ok_or_else(damaged)?;
    let header: Header = serde_json::from_slice(header)?;
    let (source, object) = rest.split_at_checked(header.source).ok_or_else(damaged)?;
    if object.len() != header.object {
        return Err(damaged());
    }
    let source = std::str::from_utf8(source).map_err(|_| damaged())?;
    Ok(Blob { header, source, object })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes_and_refuses_everything_else() {
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
            assert!(read(&bytes[..len]).is_err(), "{len} bytes of {}", bytes.len());
        }
        let mut edited = bytes.clone();
        for at in 0..bytes.len() {
            edited[at] ^= 4;
            assert!(read(&edited).is_err(), "byte {at} changed");
            edited[at] = bytes[at];
        }
    }
}

//! Edits artifacts as an attacker would: all digests are recomputed, so that only content checks can reject the
//! artifact.

use serde_json::{Value, json};
use std::io::{Cursor, Read, Write};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipArchive, ZipWriter};

const ALIGN: u16 = 64;
const TRAILER: &[u8] = b"byoc-blake3:";
const DIGEST_DIGITS: usize = 64;

/// Artifact entries, in order.
#[derive(Clone)]
pub struct Entries(pub Vec<(String, Vec<u8>)>);

impl Entries {
    /// Unpacks an artifact.
    ///
    /// # Panics
    /// If `bytes` is not a readable archive.
    pub fn unpack(bytes: &[u8]) -> Entries {
        let mut archive = ZipArchive::new(Cursor::new(bytes)).expect("cannot open the archive");
        let entries = (0..archive.len()).map(|i| {
            let mut entry = archive.by_index(i).expect("cannot open the entry");
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).expect("cannot read the entry");
            (entry.name().expect("cannot decode the entry name").into_owned(), bytes)
        });
        Entries(entries.collect())
    }

    /// Returns the first entry whose name has this suffix.
    ///
    /// # Panics
    /// If no entry name has this suffix.
    pub fn entry(&mut self, suffix: &str) -> &mut Vec<u8> {
        let entry = self.0.iter_mut().find(|(name, _)| name.ends_with(suffix));
        &mut entry.unwrap_or_else(|| panic!("expected an entry name that ends with {suffix}, found none")).1
    }

    /// Edits an entry as JSON.
    ///
    /// # Panics
    /// If the entry is missing or not JSON.
    pub fn edit(&mut self, suffix: &str, edit: impl FnOnce(&mut Value)) {
        let entry = self.entry(suffix);
        let mut value = serde_json::from_slice(entry).expect("expected an entry in JSON");
        edit(&mut value);
        *entry = serde_json::to_vec(&value).expect("cannot serialize the entry");
    }

    /// Replaces text in an entry.
    ///
    /// # Panics
    /// If the entry is missing, is not UTF-8, or does not contain `original`.
    pub fn replace(&mut self, suffix: &str, original: &str, replacement: &str) {
        let entry = self.entry(suffix);
        let text = String::from_utf8(std::mem::take(entry)).expect("expected an entry in UTF-8");
        assert!(text.contains(original), "expected {original} in {text}");
        *entry = text.replace(original, replacement).into_bytes();
    }

    /// Packs the artifact, with the digests recomputed.
    ///
    /// # Panics
    /// If the manifest cannot be read.
    pub fn pack(mut self) -> Vec<u8> {
        let entries = &self.0;
        let records = entries.iter().filter(|(name, _)| name != "manifest.json").map(|(name, bytes)| {
            json!({"name": name, "bytes": bytes.len(), "blake3": blake3::hash(bytes).to_hex().as_str()})
        });
        let records: Vec<Value> = records.collect();
        let weights = entries.iter().find(|(name, _)| name == "weights.safetensors").map(|(_, bytes)| bytes.clone());
        self.edit("manifest.json", |manifest| {
            manifest["entries"] = Value::Array(records);
            let records = manifest["tensors"].as_array_mut().into_iter().flatten();
            for record in records {
                let bytes = weights.as_deref().and_then(|weights| tensor(weights, record["name"].as_str()?));
                if let Some(bytes) = bytes {
                    record["blake3"] = json!(blake3::hash(bytes).to_hex().as_str());
                }
            }
        });
        let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
        archive.set_raw_comment([TRAILER, &[b'0'; DIGEST_DIGITS]].concat().into()).expect("cannot write the comment");
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .last_modified_time(DateTime::default())
            .with_alignment(ALIGN);
        for (name, bytes) in &self.0 {
            archive.start_file(name, options).expect("cannot start the entry");
            archive.write_all(bytes).expect("cannot write the entry");
        }
        let mut bytes = archive.finish().expect("cannot finish the archive").into_inner();
        seal(&mut bytes);
        bytes
    }
}

/// Writes the digest of the preceding bytes at the end of an artifact.
pub fn seal(bytes: &mut [u8]) {
    if let Some(covered_len) = bytes.len().checked_sub(DIGEST_DIGITS) {
        let digest = blake3::hash(&bytes[..covered_len]).to_hex();
        bytes[covered_len..].copy_from_slice(digest.as_bytes());
    }
}

/// Returns the bytes of a tensor in a safetensors file.
fn tensor<'b>(weights: &'b [u8], name: &str) -> Option<&'b [u8]> {
    let (length, rest) = weights.split_first_chunk::<8>()?;
    let (header, data) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    let header: Value = serde_json::from_slice(header).ok()?;
    let offset = |i: usize| usize::try_from(header.get(name)?.get("data_offsets")?.get(i)?.as_u64()?).ok();
    data.get(offset(0)?..offset(1)?)
}

//! Writes an artifact.

use super::manifest::{Entry, FORMAT, Manifest, RegionRecord, TensorRecord, VariantRecord};
use super::{ALIGN, DIGEST_DIGITS, MANIFEST, PROGRAM, TRAILER, WEIGHTS};
use crate::compiled::{Compiled, CompiledRegion};
use byoc_files::output::Pending;
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::tensor::{DType, Tensor};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{Cursor, Read, Seek, SeekFrom, Write};
use std::path::Path;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipWriter};

/// Minimum size in bytes of an entry that is written in the ZIP64 format.
const ZIP64_THRESHOLD: usize = 1 << 31;

/// Writes a built model to a file atomically: the file appears under its name once it is complete.
///
/// # Errors
/// If the file cannot be written.
pub fn write(path: &Path, compiled: &Compiled) -> Result<(), Diagnostic> {
    let write_error = |cause: &dyn std::fmt::Display| {
        let message = format!("cannot write {}: {cause}", path.display());
        Diagnostic::error(codes::artifacts::CANNOT_WRITE, message)
            .help("check that the directory exists and is writable")
    };
    let mut pending = Pending::begin(path).map_err(|e| write_error(&e))?;
    write_to(pending.file(), compiled).map_err(|e| write_error(&e))?;
    pending.commit().map_err(|e| write_error(&e))
}

/// Writes a built model to an empty file that is open for reading and writing.
///
/// # Errors
/// If the file cannot be written.
pub fn write_to(file: &mut File, compiled: &Compiled) -> std::io::Result<()> {
    Contents::new(compiled)?.write(file)?;
    seal(file)?;
    file.sync_all()
}

/// Returns the bytes of an artifact.
///
/// # Errors
/// If the contents cannot be encoded.
pub fn to_bytes(compiled: &Compiled) -> Result<Vec<u8>, Diagnostic> {
    let write = |file: &mut Cursor<Vec<u8>>| {
        Contents::new(compiled)?.write(file)?;
        seal(file)
    };
    let mut file = Cursor::new(Vec::new());
    match write(&mut file) {
        Ok(()) => Ok(file.into_inner()),
        Err(error) => {
            Err(Diagnostic::error(codes::artifacts::CANNOT_WRITE, format!("cannot encode the artifact: {error}")))
        }
    }
}

/// Entries of an archive, in order.
struct Contents<'a> {
    manifest: Vec<u8>,
    entries: Vec<(String, Vec<Cow<'a, [u8]>>)>,
}

impl<'a> Contents<'a> {
    fn new(compiled: &'a Compiled) -> Result<Contents<'a>, serde_json::Error> {
        let mut entries: Vec<(String, Vec<Cow<'a, [u8]>>)> = Vec::new();
        entries.push((PROGRAM.to_owned(), vec![serde_json::to_vec(&compiled.program)?.into()]));
        let mut weights = Weights::default();
        let tensors = weights.record_program(compiled);
        let variant_records: Vec<Vec<TensorRecord>> = compiled
            .variants
            .iter()
            .enumerate()
            .map(|(i, variant)| weights.record_variant(i, &variant.compiled))
            .collect();
        entries.push((WEIGHTS.to_owned(), safetensors(&weights.tensors)?));
        let mut shared_entries = SharedData::default();
        let regions = records(compiled, "", &mut entries);
        let linked_files = shared_entries.records(compiled, "", &mut entries);
        let mut variants = Vec::with_capacity(compiled.variants.len());
        for ((i, variant), tensors) in compiled.variants.iter().enumerate().zip(variant_records) {
            let (dir, compiled) = (format!("variants/{i}/"), &variant.compiled);
            let program = format!("{dir}{PROGRAM}");
            entries.push((program.clone(), vec![serde_json::to_vec(&compiled.program)?.into()]));
            variants.push(VariantRecord {
                dims: variant.dims.clone(),
                defaults: variant.defaults.clone(),
                program,
                options: compiled.options.clone(),
                explain: compiled.explain.clone(),
                regions: records(compiled, &dir, &mut entries),
                tensors,
                linked: shared_entries.records(compiled, &dir, &mut entries),
            });
        }
        let entries_json = entries.iter().map(|(name, chunks)| Entry {
            name: name.clone(),
            bytes: chunks.iter().map(|part| part.len() as u64).sum(),
            blake3: digest(chunks.iter().map(|part| &part[..])),
        });
        let manifest = Manifest {
            format: FORMAT,
            producer: concat!("byoc ", env!("CARGO_PKG_VERSION")).to_owned(),
            model_digest: compiled.model_digest.clone(),
            options: compiled.options.clone(),
            explain: compiled.explain.clone(),
            regions,
            tensors,
            entries: entries_json.collect(),
            variants,
            linked: linked_files,
        };
        Ok(Contents { manifest: serde_json::to_vec(&manifest)?, entries })
    }

    fn write(&self, file: &mut (impl Write + Seek)) -> zip::result::ZipResult<()> {
        let mut archive = ZipWriter::new(std::io::BufWriter::with_capacity(1 << 20, file));
        archive.set_raw_comment([TRAILER, &[b'0'; DIGEST_DIGITS]].concat().into())?;
        let manifest = (MANIFEST, vec![Cow::from(&self.manifest[..])]);
        let entries = self.entries.iter().map(|(name, chunks)| (name.as_str(), chunks));
        for (name, chunks) in std::iter::once((manifest.0, &manifest.1)).chain(entries) {
            let size: usize = chunks.iter().map(|part| part.len()).sum();
            let options = SimpleFileOptions::default()
                .compression_method(CompressionMethod::Stored)
                .last_modified_time(DateTime::default())
                .unix_permissions(0o644)
                .with_alignment(ALIGN as u16)
                .large_file(size >= ZIP64_THRESHOLD);
            archive.start_file(name, options)?;
            for part in chunks {
                archive.write_all(part)?;
            }
        }
        archive.finish()?.flush()?;
        Ok(())
    }
}

/// Named tensors of the archive. A constant shared by several programs is written once.
#[derive(Default)]
struct Weights<'a> {
    tensors: Vec<(String, &'a Tensor)>,
    /// Tensor name by element type, shape and digest of the bytes.
    by_content: HashMap<(DType, &'a [usize], String), String>,
}

impl<'a> Weights<'a> {
    /// Adds the tensors of the main program, except for tensors that are stored only in blobs.
    fn record_program(&mut self, compiled: &'a Compiled) -> Vec<TensorRecord> {
        let in_blobs = compiled.only_in_blobs();
        let names = compiled.program.constants.iter().map(|port| port.name.clone());
        let numbered_constants = names.zip(&compiled.constants).zip(0u32..);
        let record = |((name, tensor), index): ((String, &'a Tensor), u32)| match in_blobs.contains(&index) {
            true => TensorRecord { name, blake3: String::new(), in_blobs: true },
            false => self.add(name, tensor),
        };
        numbered_constants.map(record).collect()
    }

    fn add(&mut self, name: String, tensor: &'a Tensor) -> TensorRecord {
        let record = TensorRecord { name: name.clone(), blake3: digest([tensor.bytes()]), in_blobs: false };
        self.by_content.insert((tensor.dtype(), tensor.shape(), record.blake3.clone()), name.clone());
        self.tensors.push((name, tensor));
        record
    }

    /// Adds the tensors of a specialized program that are not in the archive yet.
    fn record_variant(&mut self, index: usize, compiled: &'a Compiled) -> Vec<TensorRecord> {
        let names = compiled.program.constants.iter().map(|port| format!("variants/{index}/{}", port.name));
        let in_blobs = compiled.only_in_blobs();
        let mut records = Vec::with_capacity(compiled.constants.len());
        for ((name, tensor), constant) in names.zip(&compiled.constants).zip(0u32..) {
            if in_blobs.contains(&constant) {
                records.push(TensorRecord { name, blake3: String::new(), in_blobs: true });
                continue;
            }
            let blake3 = digest([tensor.bytes()]);
            match self.by_content.get(&(tensor.dtype(), tensor.shape(), blake3.clone())) {
                Some(stored_name) => records.push(TensorRecord { name: stored_name.clone(), blake3, in_blobs: false }),
                None => records.push(self.add(name, tensor)),
            }
        }
        records
    }
}

/// Shared data of linked regions. Data shared by several programs is written once.
#[derive(Default)]
struct SharedData {
    /// Entry name by digest.
    by_content: HashMap<String, String>,
}

impl SharedData {
    /// Adds the entries of a program under the path prefix `dir`, and returns their names by backend.
    fn records<'a>(
        &mut self,
        compiled: &'a Compiled,
        dir: &str,
        entries: &mut Vec<(String, Vec<Cow<'a, [u8]>>)>,
    ) -> BTreeMap<String, Option<String>> {
        let mut entry = |backend: &str, data: &'a Tensor| {
            let name = self.by_content.entry(digest([data.bytes()])).or_insert_with(|| {
                let name = format!("{dir}shared/{backend}");
                entries.push((name.clone(), vec![Cow::from(data.bytes())]));
                name
            });
            name.clone()
        };
        let linked_data = compiled.linked.iter();
        linked_data.map(|(backend, data)| (backend.clone(), data.as_ref().map(|data| entry(backend, data)))).collect()
    }
}

/// Adds the entries of a program's regions under the path prefix `dir`, and returns their records.
fn records<'a>(
    compiled: &'a Compiled,
    dir: &str,
    entries: &mut Vec<(String, Vec<Cow<'a, [u8]>>)>,
) -> Vec<Option<RegionRecord>> {
    compiled.regions.iter().map(|region| region.as_ref().map(|region| record(region, dir, entries))).collect()
}

/// Adds the entries of a region and returns its record.
fn record<'a>(region: &'a CompiledRegion, dir: &str, entries: &mut Vec<(String, Vec<Cow<'a, [u8]>>)>) -> RegionRecord {
    let blob = format!("{dir}regions/{}/{}", region.symbol, region.loader);
    entries.push((blob.clone(), vec![Cow::from(&region.blob[..])]));
    let source = region.source.as_ref().map(|source| {
        let name = format!("{dir}regions/{}/source.{}", region.symbol, source.language);
        entries.push((name.clone(), vec![Cow::from(source.text.as_bytes())]));
        name
    });
    RegionRecord {
        symbol: region.symbol.clone(),
        backend: region.backend.clone(),
        plugin: region.plugin.name.clone(),
        plugin_version: region.plugin.version.clone(),
        plugin_digest: region.plugin.digest.clone(),
        loader: region.loader.clone(),
        blob,
        symbols: region.symbols.clone(),
        source,
        language: region.source.as_ref().map(|source| source.language.clone()),
        constants: region.constants.clone(),
        cpu_features: region.cpu_features.clone(),
        notes: region.notes.clone(),
        metadata: region.metadata.clone(),
        graph: region.graph.clone(),
    }
}

/// Returns the bytes of a safetensors file whose tensors are aligned to 64 bytes from the beginning of the file. The
/// format allows no gaps, so the padding between two tensors is a tensor of bytes, `pad.<i>`.
fn safetensors<'a>(tensors: &[(String, &'a Tensor)]) -> Result<Vec<Cow<'a, [u8]>>, serde_json::Error> {
    let mut header = serde_json::Map::new();
    let mut chunks: Vec<Cow<'a, [u8]>> = vec![Cow::default()];
    let mut offset = 0usize;
    for (i, (name, tensor)) in tensors.iter().enumerate() {
        let mut add = |name: &str, dtype: &str, shape: &[usize], bytes: Cow<'a, [u8]>| {
            let offsets = [offset, offset + bytes.len()];
            offset = offsets[1];
            header.insert(
                name.to_owned(),
                serde_json::json!({ "dtype": dtype, "shape": shape, "data_offsets": offsets }),
            );
            chunks.push(bytes);
        };
        add(name, dtype_name(tensor.dtype()), tensor.shape(), Cow::from(tensor.bytes()));
        let pad = tensor.bytes().len().next_multiple_of(ALIGN) - tensor.bytes().len();
        if pad > 0 && i + 1 < tensors.len() {
            add(&format!("pad.{i}"), "U8", &[pad], Cow::from(vec![0; pad]));
        }
    }
    let mut text = serde_json::to_vec(&header)?;
    text.resize((8 + text.len()).next_multiple_of(ALIGN) - 8, b' ');
    let mut length_and_header = (text.len() as u64).to_le_bytes().to_vec();
    length_and_header.append(&mut text);
    chunks[0] = length_and_header.into();
    Ok(chunks)
}

/// Returns the name of an element type in the safetensors format.
pub(super) fn dtype_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "F64",
        DType::F32 => "F32",
        DType::F16 => "F16",
        DType::BF16 => "BF16",
        DType::I8 => "I8",
        DType::I16 => "I16",
        DType::I32 => "I32",
        DType::I64 => "I64",
        DType::U8 => "U8",
        DType::U16 => "U16",
        DType::U32 => "U32",
        DType::U64 => "U64",
        DType::Bool => "BOOL",
        DType::F8E4M3Fn => "F8_E4M3",
        DType::F8E4M3FnUz => "F8_E4M3FNUZ",
        DType::F8E5M2 => "F8_E5M2",
        DType::F8E5M2FnUz => "F8_E5M2FNUZ",
        DType::F8E8M0Fnu => "F8_E8M0",
        DType::F4E2M1Fn => "F4_E2M1",
        DType::I4 => "I4",
        DType::U4 => "U4",
        DType::I2 => "I2",
        DType::U2 => "U2",
    }
}

fn digest<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hasher = blake3::Hasher::new();
    for part in chunks {
        hasher.update(part);
    }
    hasher.finalize().to_hex().to_string()
}

/// Writes the digest of all preceding bytes at the end of the file.
fn seal(file: &mut (impl Read + Write + Seek)) -> std::io::Result<()> {
    let end = file.seek(SeekFrom::End(0))?;
    let digested_len = end.saturating_sub(DIGEST_DIGITS as u64);
    file.seek(SeekFrom::Start(0))?;
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(Read::take(&mut *file, digested_len))?;
    file.seek(SeekFrom::Start(digested_len))?;
    file.write_all(hasher.finalize().to_hex().as_bytes())
}

//! Opens an artifact: maps it, checks it, and returns its parts without copying them.

use super::json;
use super::manifest::{FORMAT, Manifest, RegionRecord, TensorRecord};
use super::write::dtype_name;
use super::{ALIGN, DIGEST_DIGITS, MANIFEST, PROGRAM, TRAILER, WEIGHTS, malformed};
use crate::compiled::{Compiled, CompiledRegion, PluginId, RegionSource, Variant};
use crate::exec::program::Port;
use crate::exec::{Program, validate};
use byoc_files::footprint::JsonCosts;
use byoc_files::mapped::{self, MappedFile};
use byoc_files::open_regular;
use byoc_ir::cancel;
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::tensor::memory::Charge;
use byoc_ir::tensor::{DType, Tensor};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Cursor;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use zip::{CompressionMethod, ZipArchive};

/// Artifact whose contents have been checked.
#[derive(Clone, Debug)]
pub struct Artifact {
    /// Manifest of the file.
    pub manifest: Manifest,
    /// Built model. Its constants are views of the mapped file.
    pub compiled: Compiled,
    /// Size of the file in bytes.
    pub bytes: u64,
}

impl Artifact {
    /// Returns the built model.
    pub fn into_compiled(self) -> Compiled {
        self.compiled
    }
}

/// Opens an artifact and checks all of its contents.
///
/// # Errors
/// If the file cannot be read, is not an artifact, is corrupt, has an unsupported format version, or has inconsistent
/// contents.
pub fn open(path: &Path) -> Result<Artifact, Diagnostic> {
    let with_path = |mut diagnostic: Diagnostic| {
        diagnostic.message = format!("{}: {}", path.display(), diagnostic.message);
        diagnostic
    };
    let read_error = |e: std::io::Error| with_path(Diagnostic::error(codes::artifacts::CANNOT_READ, e.to_string()));
    let file = open_regular(path).map_err(read_error)?;
    if file.metadata().map_err(read_error)?.len() == 0 {
        // An empty file cannot be mapped.
        return Err(with_path(not_an_artifact()));
    }
    // The file must not be truncated while it is mapped. The writer never truncates it: it renames a new file over the
    // old file (see docs/artifact.md).
    parse(Arc::new(MappedFile::of(&file).map_err(read_error)?)).map_err(with_path)
}

/// Shared range of a file. Dropping the range releases its pages.
struct FileRange<T: AsRef<[u8]>>(Arc<T>, Range<usize>);

impl<T: AsRef<[u8]>> AsRef<[u8]> for FileRange<T> {
    fn as_ref(&self) -> &[u8] {
        &(*self.0).as_ref()[self.1.clone()]
    }
}

impl<T: AsRef<[u8]>> Drop for FileRange<T> {
    fn drop(&mut self) {
        mapped::release_pages(self.as_ref());
    }
}

/// Reads an artifact from the bytes of its file. The constants and the blobs are views of these bytes. No byte belongs
/// to two parts of the model, so the time of the checks and the memory are bounded by the size of the file.
///
/// # Errors
/// Same as [`open`].
pub fn parse<T: AsRef<[u8]> + Send + Sync + 'static>(file: Arc<T>) -> Result<Artifact, Diagnostic> {
    let bytes = (*file).as_ref();
    check_seal(bytes)?;
    let entries = entries(bytes)?;
    let mut parts = Parts { file: &file, entries: &entries, users: BTreeMap::new(), charges: Vec::new() };
    let manifest = manifest(&mut parts)?;
    check_entries(&manifest, &parts)?;
    let mut weights = Weights::read(&mut parts)?;
    let (program, constants) = program(PROGRAM, &manifest.tensors, &mut parts, &mut weights)?;
    let mut named_constants = manifest.tensors.iter().zip(&program.constants);
    if let Some((record, port)) = named_constants.find(|(record, port)| record.name != port.name) {
        return Err(malformed(format!(
            "expected constant \"{}\", as in the program, found \"{}\" in the manifest",
            port.name, record.name
        )));
    }
    let mut compiled = Compiled {
        program,
        constants,
        absent: absent_constants(&manifest.tensors),
        regions: regions(&manifest.regions, &mut parts)?,
        linked: parts.linked_data(&manifest.linked)?,
        explain: manifest.explain.clone(),
        model_digest: manifest.model_digest.clone(),
        options: manifest.options.clone(),
        from_file: true,
        variants: Vec::with_capacity(manifest.variants.len()),
        charges: Arc::default(),
    };
    for record in &manifest.variants {
        let (program, constants) = self::program(&record.program, &record.tensors, &mut parts, &mut weights)?;
        let variant = Compiled {
            program,
            constants,
            absent: absent_constants(&record.tensors),
            regions: regions(&record.regions, &mut parts)?,
            linked: parts.linked_data(&record.linked)?,
            explain: record.explain.clone(),
            model_digest: manifest.model_digest.clone(),
            options: record.options.clone(),
            from_file: true,
            variants: Vec::new(),
            charges: Arc::default(),
        };
        let (dims, defaults) = (record.dims.clone(), record.defaults.clone());
        compiled.variants.push(Variant { dims, defaults, compiled: variant });
    }
    compiled.charges = Arc::new(parts.charges);
    compiled.check()?;
    compiled.check_absent()?;
    Ok(Artifact { bytes: bytes.len() as u64, manifest, compiled })
}

/// Entries of an artifact that is being read.
struct Parts<'a, T: AsRef<[u8]>> {
    file: &'a Arc<T>,
    entries: &'a BTreeMap<String, Range<usize>>,
    /// Part of the model that an entry belongs to, by name of the entry.
    users: BTreeMap<String, String>,
    /// Memory of what was read, counted toward the limit.
    charges: Vec<Charge>,
}

impl<'a, T: AsRef<[u8]> + Send + Sync + 'static> Parts<'a, T> {
    fn range(&self, name: &str) -> Result<Range<usize>, Diagnostic> {
        self.entries.get(name).cloned().ok_or_else(|| malformed(format!("missing entry {name}")))
    }

    fn get(&self, name: &str) -> Result<&'a [u8], Diagnostic> {
        Ok(&(**self.file).as_ref()[self.range(name)?])
    }

    /// Returns the range of an entry, which no other part of the model may have.
    fn take(&mut self, name: &str, user: &str) -> Result<Range<usize>, Diagnostic> {
        let range = self.range(name)?;
        match self.users.insert(name.to_owned(), user.to_owned()) {
            None => Ok(range),
            Some(other) => Err(malformed(format!("entry {name}: expected one use, found it as {other} and as {user}"))),
        }
    }

    /// Decodes a JSON entry; see [`json::decode`].
    fn decode<D: DeserializeOwned>(
        &mut self,
        name: &str,
        user: &str,
        costs: &JsonCosts,
        copies: usize,
    ) -> Result<D, Diagnostic> {
        self.take(name, user)?;
        let (value, charge) = json::decode(name, self.get(name)?, costs, copies)?;
        self.charges.push(charge);
        Ok(value)
    }

    /// Returns the shared data of linked regions as views of the file.
    fn linked_data(
        &self,
        records: &BTreeMap<String, Option<String>>,
    ) -> Result<BTreeMap<String, Option<Tensor>>, Diagnostic> {
        let shared_data = |name: &String| {
            let range = self.range(name)?;
            let slice = Arc::new(FileRange(self.file.clone(), range.clone()));
            Tensor::from_storage(DType::U8, &[range.len()], slice).ok_or_else(|| {
                malformed(format!("entry {name}: expected an addressable size, found {} bytes", range.len()))
            })
        };
        let linked_data = |(backend, name): (&String, &Option<String>)| {
            Ok::<_, Diagnostic>((backend.clone(), name.as_ref().map(shared_data).transpose()?))
        };
        records.iter().map(linked_data).collect()
    }
}

/// Checks that the manifest lists each entry once, and the digests of the entries.
fn check_entries<T: AsRef<[u8]> + Send + Sync + 'static>(
    manifest: &Manifest,
    parts: &Parts<'_, T>,
) -> Result<(), Diagnostic> {
    let mut names = BTreeSet::new();
    for entry in &manifest.entries {
        parts.range(&entry.name)?;
        if !names.insert(&*entry.name) {
            return Err(malformed(format!("the manifest lists entry {} twice", entry.name)));
        }
    }
    if names.len() + 1 != parts.entries.len() {
        let (expected, actual) = (names.len(), parts.entries.len() - 1);
        return Err(malformed(format!("expected the {expected} entries that the manifest lists, found {actual}")));
    }
    for entry in &manifest.entries {
        cancel::check(|| format!("while checking entry {}", entry.name))?;
        let contents = parts.get(&entry.name)?;
        let digest = mapped::digest(contents).to_hex();
        if contents.len() as u64 != entry.bytes || digest.as_str() != entry.blake3 {
            return Err(Diagnostic::error(
                codes::artifacts::DAMAGED,
                format!(
                    "entry {}: expected {} bytes with BLAKE3 digest {}, found {} bytes with digest {digest}",
                    entry.name,
                    entry.bytes,
                    entry.blake3,
                    contents.len()
                ),
            ));
        }
    }
    Ok(())
}

/// Returns the first pair of ranges that share a byte.
fn overlap(mut ranges: Vec<(Range<usize>, &str)>) -> Option<[(Range<usize>, &str); 2]> {
    ranges.retain(|(range, _)| !range.is_empty());
    ranges.sort_by_key(|(range, _)| range.start);
    let pair = ranges.windows(2).find(|pair| pair[1].0.start < pair[0].0.end)?;
    Some([pair[0].clone(), pair[1].clone()])
}

/// Checks the digest at the end of the file against the preceding bytes.
fn check_seal(bytes: &[u8]) -> Result<(), Diagnostic> {
    if !bytes.starts_with(b"PK") {
        return Err(not_an_artifact());
    }
    let digested_len = bytes.len().checked_sub(DIGEST_DIGITS).ok_or_else(not_an_artifact)?;
    let (digested_bytes, digest) = bytes.split_at(digested_len);
    if !digested_bytes.ends_with(TRAILER) {
        return Err(Diagnostic::error(
            codes::artifacts::DAMAGED,
            "expected an artifact, found a ZIP file without a digest",
        )
        .note("the file is not an artifact, or it is truncated"));
    }
    let actual_digest = mapped::digest(digested_bytes).to_hex();
    if actual_digest.as_bytes() != digest {
        let message = format!("expected contents with BLAKE3 digest {}, found {actual_digest}", digest.escape_ascii());
        return Err(Diagnostic::error(codes::artifacts::DAMAGED, message)
            .help("copy the file again, or compile the model again"));
    }
    Ok(())
}

/// Returns the range of each entry's bytes.
fn entries(bytes: &[u8]) -> Result<BTreeMap<String, Range<usize>>, Diagnostic> {
    let archive_error = |e: zip::result::ZipError| malformed(format!("archive: {e}"));
    let directory = directory_bytes(bytes)
        .ok_or_else(|| malformed("archive: expected the end of its directory before the digest, found other bytes"))?;
    let _charge = Charge::new(directory.saturating_mul(DIRECTORY_FACTOR))?;
    let mut archive = ZipArchive::new(Cursor::new(bytes)).map_err(archive_error)?;
    let mut entries = BTreeMap::new();
    for i in 0..archive.len() {
        let entry = archive.by_index_raw(i).map_err(archive_error)?;
        let name = entry.name().map_err(archive_error)?.into_owned();
        let start = entry.data_start().and_then(|start| usize::try_from(start).ok());
        let range = start.zip(usize::try_from(entry.compressed_size()).ok());
        let range = range.and_then(|(start, size)| Some(start..start.checked_add(size)?));
        match range {
            Some(range)
                if entry.compression() == CompressionMethod::Stored
                    && range.start.is_multiple_of(ALIGN)
                    && range.end <= bytes.len() =>
            {
                if entries.insert(name.clone(), range).is_some() {
                    return Err(malformed(format!("duplicate entry {name}")));
                }
            }
            range => {
                let found = range.map_or_else(|| "an unknown range".to_owned(), |r| format!("{}..{}", r.start, r.end));
                return Err(malformed(format!(
                    "entry {name}: expected stored data in 0..{}, aligned to {ALIGN} bytes, found {} data in {found}",
                    bytes.len(),
                    entry.compression()
                )));
            }
        }
    }
    let ranges = entries.iter().map(|(name, range)| (range.clone(), name.as_str())).collect();
    if let Some([(range, name), (other_range, other_name)]) = overlap(ranges) {
        return Err(malformed(format!(
            "entries {name} and {other_name}: expected separate ranges, found {range:?} and {other_range:?}"
        )));
    }
    Ok(entries)
}

/// Size of a decoded directory, in multiples of its size in the file.
const DIRECTORY_FACTOR: usize = 16;

/// Returns the size in bytes of the archive's directory, from the record that precedes the comment of the archive;
/// `None` if there is no such record.
fn directory_bytes(bytes: &[u8]) -> Option<usize> {
    const END: (&[u8], usize) = (b"PK\x05\x06", 22);
    const ZIP64_LOCATOR_BYTES: usize = 20;
    const ZIP64_END: (&[u8], usize) = (b"PK\x06\x06", 56);
    let record = |end: usize, (signature, len): (&[u8], usize)| {
        let start = end.checked_sub(len)?;
        bytes.get(start..end).filter(|record| record.starts_with(signature)).map(|record| (start, record))
    };
    let (start, end_record) = record(bytes.len().checked_sub(TRAILER.len() + DIGEST_DIGITS)?, END)?;
    match u32::from_le_bytes(end_record[12..16].try_into().ok()?) {
        u32::MAX => {
            let (_, end_record) = record(start.checked_sub(ZIP64_LOCATOR_BYTES)?, ZIP64_END)?;
            usize::try_from(u64::from_le_bytes(end_record[40..48].try_into().ok()?)).ok()
        }
        size => usize::try_from(size).ok(),
    }
}

/// Reads the manifest, whose trees the compiled model copies.
fn manifest<T: AsRef<[u8]> + Send + Sync + 'static>(parts: &mut Parts<'_, T>) -> Result<Manifest, Diagnostic> {
    let value: Value = parts.decode(MANIFEST, "the manifest", &json::TREE, 2)?;
    let format = value.get("format").and_then(Value::as_u64);
    if format != Some(u64::from(FORMAT)) {
        let found = format.map_or_else(|| "none".to_owned(), |format| format.to_string());
        let producer = value.get("producer").and_then(Value::as_str).unwrap_or("an unknown program");
        let message = format!("expected format version {FORMAT}, found {found}, written by {producer}");
        return Err(Diagnostic::error(codes::artifacts::UNSUPPORTED_VERSION, message).help("compile the model again"));
    }
    serde_json::from_value(value).map_err(|e| malformed(format!("{MANIFEST}: {e}")))
}

/// Reads and validates a program, and returns it with its constants.
fn program<T: AsRef<[u8]> + Send + Sync + 'static>(
    name: &str,
    records: &[TensorRecord],
    parts: &mut Parts<'_, T>,
    weights: &mut Weights,
) -> Result<(Program, Vec<Tensor>), Diagnostic> {
    let program: Program = parts.decode(name, "a program", &json::PROGRAM, 1)?;
    validate(&program).map_err(|e| malformed(e.message))?;
    if records.len() != program.constants.len() {
        return Err(malformed(format!(
            "expected {} constants, as in the program, found {} in the manifest",
            program.constants.len(),
            records.len()
        )));
    }
    let constants = records.iter().zip(&program.constants).map(|(record, port)| match record.in_blobs {
        true => Ok(Tensor::empty()),
        false => weights.tensor(parts, record, port),
    });
    let constants = constants.collect::<Result<_, Diagnostic>>()?;
    Ok((program, constants))
}

/// Reads the regions of a program.
fn regions<T: AsRef<[u8]> + Send + Sync + 'static>(
    records: &[Option<RegionRecord>],
    parts: &mut Parts<'_, T>,
) -> Result<Vec<Option<CompiledRegion>>, Diagnostic> {
    records.iter().map(|record| record.as_ref().map(|record| region(record, parts)).transpose()).collect()
}

/// Tensors in `weights.safetensors`.
struct Weights {
    header: Value,
    /// Range of the data in the file.
    data: Range<usize>,
    /// Contents of the tensors that were checked, by name: several programs may have the same tensor.
    checked: HashMap<String, CheckedTensor>,
}

struct CheckedTensor {
    digest: String,
    /// Byte that is neither 0 nor 1, if there is one.
    non_boolean: Option<u8>,
}

fn weights_error(message: &str) -> Diagnostic {
    malformed(format!("{WEIGHTS}: {message}"))
}

impl Weights {
    fn read<T: AsRef<[u8]> + Send + Sync + 'static>(parts: &mut Parts<'_, T>) -> Result<Weights, Diagnostic> {
        let range = parts.take(WEIGHTS, "the constants")?;
        let bytes = parts.get(WEIGHTS)?;
        let (length, tail) = bytes.split_first_chunk::<8>().ok_or_else(|| {
            weights_error(&format!("expected a header length of 8 bytes, found an entry of {} bytes", bytes.len()))
        })?;
        let length = u64::from_le_bytes(*length);
        let header_len = usize::try_from(length).ok().filter(|&length| length <= tail.len()).ok_or_else(|| {
            let max = tail.len();
            weights_error(&format!("expected a header of at most {max} bytes, found a header length of {length}"))
        })?;
        let (header, charge) = json::decode(WEIGHTS, &tail[..header_len], &json::TREE, 1)?;
        parts.charges.push(charge);
        let weights = Weights { header, data: range.start + 8 + header_len..range.end, checked: HashMap::new() };
        let tensors = weights.header.as_object().into_iter().flatten();
        let ranges = tensors.filter_map(|(name, entry)| Some((offsets(entry)?, name.as_str()))).collect();
        if let Some([(range, name), (other_range, other_name)]) = overlap(ranges) {
            return Err(weights_error(&format!(
                "tensors {name} and {other_name}: expected separate ranges, found {range:?} and {other_range:?}"
            )));
        }
        Ok(weights)
    }

    /// Returns a constant as a view of the file.
    fn tensor<T: AsRef<[u8]> + Send + Sync + 'static>(
        &mut self,
        parts: &Parts<'_, T>,
        record: &TensorRecord,
        port: &Port,
    ) -> Result<Tensor, Diagnostic> {
        let entry = self.header.get(&record.name);
        let mismatch_error = || {
            let found = entry.map_or_else(|| "none".to_owned(), Value::to_string);
            weights_error(&format!("tensor {}: expected data of type {}, found {found}", port.name, port.ty))
        };
        let shape = port.ty.shape().ok_or_else(mismatch_error)?;
        let entry = entry.ok_or_else(mismatch_error)?;
        let dims: Vec<Value> = shape.iter().map(|&d| Value::from(d)).collect();
        let is_declared = entry.get("dtype").and_then(Value::as_str) == Some(dtype_name(port.ty.dtype))
            && entry.get("shape").and_then(Value::as_array) == Some(&dims);
        let range = offsets(entry).filter(|range| is_declared && range.end <= self.data.len());
        let Range { start, end } = range.ok_or_else(mismatch_error)?;
        let range = self.data.start + start..self.data.start + end;
        let checked = match self.checked.entry(record.name.clone()) {
            Entry::Occupied(checked) => checked.into_mut(),
            Entry::Vacant(entry) => {
                cancel::check(|| format!("while checking tensor {}", record.name))?;
                let content = &(**parts.file).as_ref()[range.clone()];
                let is_boolean = port.ty.dtype == DType::Bool;
                let non_boolean = content.iter().filter(|_| is_boolean).find(|&&byte| byte > 1).copied();
                entry.insert(CheckedTensor { digest: mapped::digest(content).to_hex().to_string(), non_boolean })
            }
        };
        if checked.digest != record.blake3 {
            return Err(Diagnostic::error(
                codes::artifacts::DAMAGED,
                format!(
                    "tensor {}: expected contents with BLAKE3 digest {}, found {}",
                    port.name, record.blake3, checked.digest
                ),
            ));
        }
        if let Some(byte) = checked.non_boolean {
            return Err(weights_error(&format!("tensor {}: expected Boolean bytes 0 or 1, found {byte}", port.name)));
        }
        let slice = FileRange(parts.file.clone(), range);
        Tensor::from_storage(port.ty.dtype, &shape, Arc::new(slice)).ok_or_else(mismatch_error)
    }
}

/// Returns the range of a tensor in the data of a safetensors file.
fn offsets(entry: &Value) -> Option<Range<usize>> {
    let offset = |i: usize| entry.get("data_offsets")?.get(i)?.as_u64().and_then(|n| usize::try_from(n).ok());
    let (start, end) = (offset(0)?, offset(1)?);
    (start <= end).then_some(start..end)
}

/// Returns the indices of the constants that are stored only in blobs.
fn absent_constants(records: &[TensorRecord]) -> BTreeSet<u32> {
    records.iter().zip(0u32..).filter(|(record, _)| record.in_blobs).map(|(_, index)| index).collect()
}

fn region<T: AsRef<[u8]> + Send + Sync + 'static>(
    record: &RegionRecord,
    parts: &mut Parts<'_, T>,
) -> Result<CompiledRegion, Diagnostic> {
    let source = match (&record.source, &record.language) {
        (Some(name), Some(language)) => {
            let range = parts.take(name, &format!("the source of region {}", record.symbol))?;
            parts.charges.push(Charge::new(range.len())?);
            let text = std::str::from_utf8(parts.get(name)?)
                .map_err(|_| malformed(format!("entry {name}: expected UTF-8 text, found invalid bytes")))?;
            Some(RegionSource { language: language.clone(), text: text.to_owned() })
        }
        _ => None,
    };
    let blob = parts.take(&record.blob, &format!("the blob of region {}", record.symbol))?;
    Ok(CompiledRegion {
        symbol: record.symbol.clone(),
        backend: record.backend.clone(),
        plugin: PluginId {
            name: record.plugin.clone(),
            version: record.plugin_version.clone(),
            digest: record.plugin_digest.clone(),
        },
        loader: record.loader.clone(),
        blob: Bytes::from_owner(FileRange(parts.file.clone(), blob)),
        symbols: record.symbols.clone(),
        source,
        constants: record.constants.clone(),
        cpu_features: record.cpu_features.clone(),
        notes: record.notes.clone(),
        metadata: record.metadata.clone(),
        graph: record.graph.clone(),
        library: None,
    })
}

fn not_an_artifact() -> Diagnostic {
    Diagnostic::error(codes::artifacts::NOT_AN_ARTIFACT, "expected a byoc artifact, found a different file format")
        .help("byoc compile MODEL -o FILE.byoc writes an artifact")
}

//! Opens an artifact: maps it, checks it, and returns its parts without copying them.

use super::manifest::{FORMAT, Manifest, RegionRecord, TensorRecord};
use super::write::dtype_name;
use super::{ALIGN, DIGEST_DIGITS, MANIFEST, PROGRAM, TRAILER, WEIGHTS};
use crate::compiled::{Compiled, CompiledRegion, PluginId, RegionSource, Variant};
use crate::exec::{Program, validate};
use byoc_files::mapped::{self, MappedFile};
use byoc_files::open_regular;
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::tensor::{DType, Tensor};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
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

/// Reads an artifact from the bytes of its file. The constants are views of these bytes.
///
/// # Errors
/// Same as [`open`].
pub fn parse<T: AsRef<[u8]> + Send + Sync + 'static>(file: Arc<T>) -> Result<Artifact, Diagnostic> {
    let bytes = (*file).as_ref();
    check_seal(bytes)?;
    let entries = entries(bytes)?;
    let get = |name: &str| {
        let range = entries.get(name).ok_or_else(|| malformed(format!("missing entry {name}")))?;
        Ok::<_, Diagnostic>(&bytes[range.clone()])
    };
    let manifest = manifest(get(MANIFEST)?)?;
    for entry in &manifest.entries {
        let contents = get(&entry.name)?;
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
    if manifest.entries.len() + 1 != entries.len() {
        let (expected, actual) = (manifest.entries.len(), entries.len() - 1);
        return Err(malformed(format!("expected the {expected} entries that the manifest lists, found {actual}")));
    }
    let weights = entries.get(WEIGHTS).ok_or_else(|| malformed(format!("missing entry {WEIGHTS}")))?;
    let program = program(PROGRAM, get)?;
    let mut named_constants = manifest.tensors.iter().zip(&program.constants);
    if let Some((record, port)) = named_constants.find(|(record, port)| record.name != port.name) {
        return Err(malformed(format!(
            "expected constant \"{}\", as in the program, found \"{}\" in the manifest",
            port.name, record.name
        )));
    }
    let mut compiled = Compiled {
        constants: constants(&file, weights.clone(), &manifest.tensors, &program)?,
        program,
        absent: absent_constants(&manifest.tensors),
        regions: regions(&manifest.regions, get)?,
        linked: linked_data(&file, &entries, &manifest.linked)?,
        explain: manifest.explain.clone(),
        model_digest: manifest.model_digest.clone(),
        options: manifest.options.clone(),
        from_file: true,
        variants: Vec::with_capacity(manifest.variants.len()),
    };
    for record in &manifest.variants {
        let program = self::program(&record.program, get)?;
        let variant = Compiled {
            constants: constants(&file, weights.clone(), &record.tensors, &program)?,
            program,
            absent: absent_constants(&record.tensors),
            regions: regions(&record.regions, get)?,
            linked: linked_data(&file, &entries, &record.linked)?,
            explain: record.explain.clone(),
            model_digest: manifest.model_digest.clone(),
            options: record.options.clone(),
            from_file: true,
            variants: Vec::new(),
        };
        compiled.variants.push(Variant { dims: record.dims.clone(), compiled: variant });
    }
    compiled.check()?;
    compiled.check_absent()?;
    Ok(Artifact { bytes: bytes.len() as u64, manifest, compiled })
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
    Ok(entries)
}

fn manifest(bytes: &[u8]) -> Result<Manifest, Diagnostic> {
    let value: Value = serde_json::from_slice(bytes).map_err(|e| malformed(format!("{MANIFEST}: {e}")))?;
    let format = value.get("format").and_then(Value::as_u64);
    if format != Some(u64::from(FORMAT)) {
        let found = format.map_or_else(|| "none".to_owned(), |format| format.to_string());
        let producer = value.get("producer").and_then(Value::as_str).unwrap_or("an unknown program");
        let message = format!("expected format version {FORMAT}, found {found}, written by {producer}");
        return Err(Diagnostic::error(codes::artifacts::UNSUPPORTED_VERSION, message).help("compile the model again"));
    }
    serde_json::from_value(value).map_err(|e| malformed(format!("{MANIFEST}: {e}")))
}

/// Reads and validates a program.
fn program<'a>(name: &str, get: impl Fn(&str) -> Result<&'a [u8], Diagnostic>) -> Result<Program, Diagnostic> {
    let program = serde_json::from_slice(get(name)?).map_err(|e| malformed(format!("{name}: {e}")))?;
    validate(&program).map_err(|e| malformed(e.message))?;
    Ok(program)
}

/// Reads the regions of a program.
fn regions<'a>(
    records: &[Option<RegionRecord>],
    get: impl Fn(&str) -> Result<&'a [u8], Diagnostic> + Copy,
) -> Result<Vec<Option<CompiledRegion>>, Diagnostic> {
    records.iter().map(|record| record.as_ref().map(|record| region(record, get)).transpose()).collect()
}

/// Returns the constants of a program as views of the file.
fn constants<T: AsRef<[u8]> + Send + Sync + 'static>(
    file: &Arc<T>,
    weights: Range<usize>,
    records: &[TensorRecord],
    program: &Program,
) -> Result<Vec<Tensor>, Diagnostic> {
    let bytes = &(**file).as_ref()[weights.clone()];
    let weights_error = |message: &str| malformed(format!("{WEIGHTS}: {message}"));
    let (length, tail) = bytes.split_first_chunk::<8>().ok_or_else(|| {
        weights_error(&format!("expected a header length of 8 bytes, found an entry of {} bytes", bytes.len()))
    })?;
    let length = u64::from_le_bytes(*length);
    let header_len = usize::try_from(length).ok().filter(|&length| length <= tail.len()).ok_or_else(|| {
        weights_error(&format!("expected a header of at most {} bytes, found a header length of {length}", tail.len()))
    })?;
    let (header, data) = tail.split_at(header_len);
    let header: Value = serde_json::from_slice(header).map_err(|e| weights_error(&e.to_string()))?;
    let base = weights.start + 8 + (tail.len() - data.len());
    if records.len() != program.constants.len() {
        return Err(malformed(format!(
            "expected {} constants, as in the program, found {} in the manifest",
            program.constants.len(),
            records.len()
        )));
    }
    let mut tensors = Vec::with_capacity(program.constants.len());
    for (record, port) in records.iter().zip(&program.constants) {
        if record.in_blobs {
            tensors.push(Tensor::empty());
            continue;
        }
        let mismatch_error = || {
            let found = header.get(&record.name).map_or_else(|| "none".to_owned(), Value::to_string);
            weights_error(&format!("tensor {}: expected data of type {}, found {found}", port.name, port.ty))
        };
        let shape = port.ty.shape().ok_or_else(mismatch_error)?;
        let entry = header.get(&record.name).ok_or_else(mismatch_error)?;
        let dims: Vec<Value> = shape.iter().map(|&d| Value::from(d)).collect();
        let is_declared = entry.get("dtype").and_then(Value::as_str) == Some(dtype_name(port.ty.dtype))
            && entry.get("shape").and_then(Value::as_array) == Some(&dims);
        let offset = |i: usize| entry.get("data_offsets")?.get(i)?.as_u64().and_then(|n| usize::try_from(n).ok());
        let range = offset(0).zip(offset(1)).filter(|&(start, end)| start <= end && end <= data.len());
        let Some((start, end)) = range.filter(|_| is_declared) else { return Err(mismatch_error()) };
        let content = &data[start..end];
        let digest = mapped::digest(content).to_hex();
        if digest.as_str() != record.blake3 {
            return Err(Diagnostic::error(
                codes::artifacts::DAMAGED,
                format!("tensor {}: expected contents with BLAKE3 digest {}, found {digest}", port.name, record.blake3),
            ));
        }
        if port.ty.dtype == DType::Bool
            && let Some(byte) = content.iter().find(|&&byte| byte > 1)
        {
            return Err(weights_error(&format!("tensor {}: expected Boolean bytes 0 or 1, found {byte}", port.name)));
        }
        let slice = FileRange(file.clone(), base + start..base + end);
        tensors.push(Tensor::from_storage(port.ty.dtype, &shape, Arc::new(slice)).ok_or_else(mismatch_error)?);
    }
    Ok(tensors)
}

/// Returns the indices of the constants that are stored only in blobs.
fn absent_constants(records: &[TensorRecord]) -> BTreeSet<u32> {
    records.iter().zip(0u32..).filter(|(record, _)| record.in_blobs).map(|(_, index)| index).collect()
}

/// Returns the shared data of linked regions as views of the file.
fn linked_data<T: AsRef<[u8]> + Send + Sync + 'static>(
    file: &Arc<T>,
    entries: &BTreeMap<String, Range<usize>>,
    records: &BTreeMap<String, Option<String>>,
) -> Result<BTreeMap<String, Option<Tensor>>, Diagnostic> {
    let shared_data = |name: &String| {
        let range = entries.get(name).ok_or_else(|| malformed(format!("missing entry {name}")))?;
        let slice = Arc::new(FileRange(file.clone(), range.clone()));
        Tensor::from_storage(DType::U8, &[range.len()], slice).ok_or_else(|| {
            malformed(format!("entry {name}: expected an addressable size, found {} bytes", range.len()))
        })
    };
    let linked_data = |(backend, name): (&String, &Option<String>)| {
        Ok::<_, Diagnostic>((backend.clone(), name.as_ref().map(shared_data).transpose()?))
    };
    records.iter().map(linked_data).collect()
}

fn region<'a>(
    record: &RegionRecord,
    get: impl Fn(&str) -> Result<&'a [u8], Diagnostic>,
) -> Result<CompiledRegion, Diagnostic> {
    let source = match (&record.source, &record.language) {
        (Some(name), Some(language)) => {
            let text = std::str::from_utf8(get(name)?)
                .map_err(|_| malformed(format!("entry {name}: expected UTF-8 text, found invalid bytes")))?;
            Some(RegionSource { language: language.clone(), text: text.to_owned() })
        }
        _ => None,
    };
    Ok(CompiledRegion {
        symbol: record.symbol.clone(),
        backend: record.backend.clone(),
        plugin: PluginId {
            name: record.plugin.clone(),
            version: record.plugin_version.clone(),
            digest: record.plugin_digest.clone(),
        },
        loader: record.loader.clone(),
        blob: get(&record.blob)?.into(),
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

fn malformed(message: impl Into<String>) -> Diagnostic {
    Diagnostic::error(codes::artifacts::MALFORMED, message)
}

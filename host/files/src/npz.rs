//! NumPy's `.npz`: a ZIP archive of `.npy` files, one per array, stored or deflated.

use crate::input::{bad_file, map_file};
use crate::npy::{self, Header, ReadError};
use crate::output::write_atomically;
use byoc_ir::cancel::CancellableReader;
use byoc_ir::diag::{Diagnostic, list, nearest};
use byoc_ir::tensor::Tensor;
use byoc_ir::tensor::memory::{self, Charge};
use bytes::Bytes;
use std::io::{Cursor, Read, Seek, Write};
use std::path::Path;
use zip::read::ZipFile;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

/// Open archive, from which arrays are read individually. Headers can be read separately, so that unsuitable arrays are
/// not decompressed.
pub struct Npz<'p> {
    path: &'p Path,
    archive: ZipArchive<Source>,
    names: Vec<String>,
    /// Counts the entries of the archive as in use.
    _charge: Charge,
}

type Source = CancellableReader<Cursor<Bytes>>;

impl<'p> Npz<'p> {
    /// Opens an `.npz` file.
    ///
    /// # Errors
    /// If the file cannot be read or is not a ZIP archive, its entries exceed the memory limit, or the work is cancelled.
    pub fn open(path: &'p Path) -> Result<Npz<'p>, Diagnostic> {
        let bytes = map_file(path).map_err(|e| bad_file(path, e))?;
        let entries = declared_entries(&bytes);
        let charge = memory::reserve(entries.saturating_mul(BYTES_PER_ENTRY))?;
        let archive = ZipArchive::new(CancellableReader::new(Cursor::new(bytes))).map_err(|e| bad_file(path, e))?;
        if archive.len() > entries {
            let reason = format!("expected {entries} entries as the end of the file states, found {}", archive.len());
            return Err(bad_file(path, reason));
        }
        let names = archive.file_names().map(|n| n.map(|n| n.trim_end_matches(".npy").to_owned()));
        let names = names.collect::<Result<_, _>>().map_err(|e| bad_file(path, e))?;
        Ok(Npz { path, archive, names, _charge: charge })
    }

    /// Returns the names of the arrays, in the order of the file.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the index of the array `name`, or of the only array in the file.
    ///
    /// # Errors
    /// If the file has no such entry.
    pub fn find(&self, name: Option<&str>) -> Result<usize, Diagnostic> {
        let names = &self.names;
        let index = match name.and_then(|name| names.iter().position(|n| n == name)) {
            Some(index) => index,
            None if names.len() == 1 => 0,
            None => {
                let entry_name = name.unwrap_or("");
                let reason = match name {
                    Some(name) => format!("missing entry \"{name}\""),
                    None => format!("expected one entry, found {}", names.len()),
                };
                let mut diagnostic =
                    bad_file(self.path, reason).note(format!("entries of the file: {}", list(names, ", ")));
                if let Some(suggestion) = nearest(entry_name, names.iter().map(String::as_str)) {
                    diagnostic = diagnostic.help(format!("did you mean \"{suggestion}\"?"));
                }
                return Err(diagnostic);
            }
        };
        let (archive, name) = (&self.archive, &names[index]);
        Ok(archive.index_for_name(&format!("{name}.npy")).or_else(|| archive.index_for_name(name)).unwrap_or(index))
    }

    /// Reads the header of an array.
    ///
    /// # Errors
    /// If the entry is not an array.
    pub fn header(&mut self, index: usize) -> Result<Header, Diagnostic> {
        let read = |file: &mut ZipFile<'_, Source>| Header::read(file).map_err(ReadError::File);
        self.entry(index, read)
    }

    /// Reads an array. The directory of the archive states the uncompressed size, which bounds the read.
    ///
    /// # Errors
    /// If the entry is not an array, or the allocation fails.
    pub fn read(&mut self, index: usize) -> Result<Tensor, Diagnostic> {
        self.entry(index, |file| {
            let mut reader = CountingReader { file, bytes: 0 };
            let header = Header::read(&mut reader).map_err(ReadError::File)?;
            let remaining = reader.file.size().saturating_sub(reader.bytes);
            header.read_elements(&mut reader, remaining)
        })
    }

    /// Reads the strings of an array: the spans and the bytes.
    ///
    /// # Errors
    /// If the entry is not an array of strings, or the allocation fails.
    pub fn read_strings(&mut self, index: usize) -> Result<[Tensor; 2], Diagnostic> {
        self.entry(index, |file| {
            let mut reader = CountingReader { file, bytes: 0 };
            let header = Header::read(&mut reader).map_err(ReadError::File)?;
            let remaining = reader.file.size().saturating_sub(reader.bytes);
            header.read_strings(&mut reader, remaining)
        })
    }

    fn entry<T>(
        &mut self,
        index: usize,
        read: impl FnOnce(&mut ZipFile<'_, Source>) -> Result<T, ReadError>,
    ) -> Result<T, Diagnostic> {
        let name = self.names.get(index).cloned().unwrap_or_default();
        let path = self.path;
        let mut file = self.archive.by_index(index).map_err(|e| bad_file(path, e))?;
        read(&mut file).map_err(|error| error.with_location(&format!("entry {name}")).of(path))
    }
}

/// Memory in bytes that an entry of an open archive takes: its description, twice its name, and its place in the index.
const BYTES_PER_ENTRY: usize = 1024;

/// Returns the number of entries that the end of a ZIP archive states.
fn declared_entries(archive: &[u8]) -> usize {
    const END: (&[u8], usize) = (b"PK\x05\x06", 22);
    const END64: (&[u8], usize) = (b"PK\x06\x06", 56);
    const MAX_COMMENT: usize = u16::MAX as usize;
    let number = |at: usize, bytes: usize| {
        let field = archive.get(at..at + bytes).unwrap_or_default();
        field.iter().rev().fold(0u64, |number, &byte| number << 8 | u64::from(byte))
    };
    // A comment may contain the signature of an end, so the greatest number counts. The archive has no more entries than
    // fit into it.
    let tail = archive.len().saturating_sub(END.1 + END64.1 + MAX_COMMENT);
    let entries = archive[tail..].windows(4).enumerate().filter_map(|(i, signature)| match signature {
        signature if signature == END.0 => Some(number(tail + i + 10, 2)),
        signature if signature == END64.0 => Some(number(tail + i + 32, 8)),
        _ => None,
    });
    const MIN_ENTRY: usize = 46;
    entries.max().map_or(0, |n| usize::try_from(n).unwrap_or(usize::MAX)).min(archive.len() / MIN_ENTRY)
}

/// Reader that counts the bytes read.
struct CountingReader<R> {
    file: R,
    bytes: u64,
}

impl<R: Read> Read for CountingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.bytes += read as u64;
        Ok(read)
    }
}

/// Reads every array, in the order of the file.
///
/// # Errors
/// If the file cannot be read, or an entry is not an array.
pub fn read(path: &Path) -> Result<Vec<(String, Tensor)>, Diagnostic> {
    let mut file = Npz::open(path)?;
    (0..file.names.len()).map(|i| Ok((file.names[i].clone(), file.read(i)?))).collect()
}

/// Reads the array `name`, or the only array in the file.
///
/// # Errors
/// If the file cannot be read, or has no such entry, or the entry is not an array.
pub fn read_entry(path: &Path, name: Option<&str>) -> Result<Tensor, Diagnostic> {
    let mut file = Npz::open(path)?;
    let index = file.find(name)?;
    file.read(index)
}

/// Reads the strings of the array `name`, or of the only array in the file: the spans and the bytes.
///
/// # Errors
/// See [`read_entry`].
pub fn read_strings(path: &Path, name: Option<&str>) -> Result<[Tensor; 2], Diagnostic> {
    let mut file = Npz::open(path)?;
    let index = file.find(name)?;
    file.read_strings(index)
}

/// Reads the header of the array `name`, or of the only array in the file.
///
/// # Errors
/// See [`read_entry`].
pub fn header_of(path: &Path, name: Option<&str>) -> Result<Header, Diagnostic> {
    let mut file = Npz::open(path)?;
    let index = file.find(name)?;
    file.header(index)
}

/// Writes arrays to an `.npz` file without compression.
///
/// # Errors
/// If the file cannot be written.
pub fn write<'a>(path: &Path, arrays: impl IntoIterator<Item = (&'a str, &'a Tensor)>) -> Result<(), Diagnostic> {
    write_atomically(path, |file| write_to(file, arrays))
}

/// Writes arrays to an empty file, or to memory, without compression.
///
/// # Errors
/// If the file cannot be written.
pub fn write_to<'a>(
    file: &mut (impl Write + Seek),
    arrays: impl IntoIterator<Item = (&'a str, &'a Tensor)>,
) -> std::io::Result<()> {
    write_encoded(file, arrays.into_iter().map(|(name, tensor)| (name, npy::encode(tensor))))
}

/// Writes the bytes of `.npy` files to an empty file, or to memory, without compression.
///
/// # Errors
/// If the file cannot be written.
pub fn write_encoded(
    file: &mut (impl Write + Seek),
    arrays: impl IntoIterator<Item = (impl AsRef<str>, Vec<u8>)>,
) -> std::io::Result<()> {
    let mut zip = ZipWriter::new(file);
    // The time stamp is fixed, so that the same arrays produce the same bytes.
    let options = SimpleFileOptions::default()
        .compression_method(CompressionMethod::Stored)
        .last_modified_time(zip::DateTime::default())
        .large_file(false);
    for (name, bytes) in arrays {
        zip.start_file(format!("{}.npy", name.as_ref()), options.large_file(bytes.len() >= 1 << 31))?;
        zip.write_all(&bytes)?;
    }
    zip.finish()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_arrays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.npz");
        let (x, y) = (Tensor::from_slice(&[2], &[1.5f32, 2.5]), Tensor::scalar(7i64));
        write(&path, [("x", &x), ("y/z", &y)]).unwrap();
        assert_eq!(read(&path).unwrap(), [("x".to_owned(), x.clone()), ("y/z".to_owned(), y.clone())]);
        assert_eq!(read_entry(&path, Some("y/z")).unwrap(), y);
        let error = read_entry(&path, Some("y/s")).unwrap_err();
        assert_eq!(error.help.as_deref(), Some("did you mean \"y/z\"?"));
        let bytes = std::fs::read(&path).unwrap();
        write(&path, [("x", &x), ("y/z", &y)]).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
    }

    #[test]
    fn single_array_needs_no_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.npz");
        let x = Tensor::from_slice(&[2], &[1u8, 2]);
        write(&path, [("arr_0", &x)]).unwrap();
        assert_eq!(read_entry(&path, Some("image")).unwrap(), x);
    }

    #[test]
    fn entries_are_counted_before_they_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.npz");
        let x = Tensor::from_slice(&[2], &[1u8, 2]);
        let names: Vec<String> = (0..100).map(|i| format!("x{i}")).collect();
        write(&path, names.iter().map(|name| (name.as_str(), &x))).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        assert_eq!(declared_entries(&bytes), 100);
        assert_eq!(Npz::open(&path).unwrap().names().len(), 100);
        let error = read_entry(&path, Some("y")).unwrap_err();
        assert!(error.notes[0].ends_with(", x49, 50 more"), "{error}");
        // A number of entries that the file is too short for is not believed.
        let end = bytes.len() - 22;
        bytes[end + 10..end + 12].fill(0xff);
        assert_eq!(declared_entries(&bytes), bytes.len() / 46);
        for short in 0..64 {
            declared_entries(&bytes[bytes.len() - short..]);
        }
    }

    #[test]
    fn cancelled_read_reports_its_cancellation() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.npz");
        write(&path, [("x", &Tensor::from_slice(&[100], &[1u8; 100]))]).unwrap();
        let cancel = byoc_ir::cancel::Cancel::default();
        cancel.set_timeout(Some(std::time::Duration::ZERO));
        let error = cancel.within(|| read(&path)).unwrap_err();
        assert_eq!(error.code, byoc_ir::diag::codes::runtime::TIMED_OUT);
    }
}

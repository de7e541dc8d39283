//! NumPy's `.npz`: a ZIP of `.npy` files, one per array, stored or deflated.

use super::files::{bad_file, map_file};
use super::npy;
use super::output::write_atomically;
use byoc_core::diag::{Diagnostic, nearest};
use byoc_core::tensor::Tensor;
use std::fs::File;
use std::io::{Cursor, Read, Write};
use std::path::Path;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

/// Deflate cannot shrink data further than about 1 : 1032; an entry that claims more is a lie.
const MAX_RATIO: u64 = 1100;

/// Reads every array, in the order of the file.
///
/// # Errors
/// When it cannot be read, or an entry is no array.
pub fn read(path: &Path) -> Result<Vec<(String, Tensor)>, Diagnostic> {
    let bytes = map_file(path).map_err(|e| bad_file(path, e))?;
    let mut archive = ZipArchive::new(Cursor::new(&bytes[..])).map_err(|e| bad_file(path, e))?;
    (0..archive.len()).map(|i| entry(&mut archive, i).map_err(|why| bad_file(path, why))).collect()
}

/// Reads the array called `name`, or the only one of the file.
///
/// # Errors
/// When it cannot be read, or there is no such entry.
pub fn read_entry(path: &Path, name: Option<&str>) -> Result<Tensor, Diagnostic> {
    let bytes = map_file(path).map_err(|e| bad_file(path, e))?;
    let mut archive = ZipArchive::new(Cursor::new(&bytes[..])).map_err(|e| bad_file(path, e))?;
    let names = archive.file_names().map(|n| n.map(|n| n.trim_end_matches(".npy").to_owned()));
    let names: Vec<String> = names.collect::<Result<_, _>>().map_err(|e| bad_file(path, e))?;
    let index = match name.and_then(|name| names.iter().position(|n| n == name)) {
        Some(index) => index,
        None if names.len() == 1 => 0,
        None => {
            let wanted = name.unwrap_or("");
            let mut diagnostic =
                bad_file(path, format!("it has no entry \"{wanted}\"")).note(format!("it has {}", names.join(", ")));
            if let Some(near) = nearest(wanted, names.iter().map(String::as_str)) {
                diagnostic = diagnostic.help(format!("did you mean \"{near}\"?"));
            }
            return Err(diagnostic);
        }
    };
    let name = &names[index];
    let index =
        archive.index_for_name(&format!("{name}.npy")).or_else(|| archive.index_for_name(name)).unwrap_or(index);
    entry(&mut archive, index).map(|(_, tensor)| tensor).map_err(|why| bad_file(path, why))
}

/// Writes arrays, stored without compression.
///
/// # Errors
/// When it cannot be written.
pub fn write<'a>(path: &Path, arrays: impl IntoIterator<Item = (&'a str, &'a Tensor)>) -> Result<(), Diagnostic> {
    write_atomically(path, |file| write_to(file, arrays))
}

/// Writes arrays to an open file, stored without compression.
///
/// # Errors
/// When it cannot be written.
pub fn write_to<'a>(file: &mut File, arrays: impl IntoIterator<Item = (&'a str, &'a Tensor)>) -> std::io::Result<()> {
    let mut zip = ZipWriter::new(file);
    // A fixed time stamp: the same arrays give the same bytes.
    let options = SimpleFileOptions::default()
        .compression_method(CompressionMethod::Stored)
        .last_modified_time(zip::DateTime::default())
        .large_file(false);
    for (name, tensor) in arrays {
        zip.start_file(format!("{name}.npy"), options.large_file(tensor.bytes().len() >= 1 << 31))?;
        zip.write_all(&npy::encode(tensor))?;
    }
    zip.finish()?;
    Ok(())
}

fn entry<R: Read + std::io::Seek>(archive: &mut ZipArchive<R>, index: usize) -> Result<(String, Tensor), String> {
    let file = archive.by_index(index).map_err(|e| e.to_string())?;
    let name = file.name().map_err(|e| e.to_string())?.trim_end_matches(".npy").to_owned();
    let limit = file.compressed_size().saturating_mul(MAX_RATIO).saturating_add(1024);
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes).map_err(|e| format!("entry {name}: {e}"))?;
    let tensor = npy::decode(&bytes).map_err(|why| format!("entry {name}: {why}"))?;
    Ok((name, tensor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_survive_the_round_trip() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.npz");
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
    fn a_single_array_needs_no_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.npz");
        let x = Tensor::from_slice(&[2], &[1u8, 2]);
        write(&path, [("arr_0", &x)]).unwrap();
        assert_eq!(read_entry(&path, Some("image")).unwrap(), x);
    }
}

//! Tensor data in files next to the model.
//!
//! The file names come from the model and are untrusted: only files below the model's directory are read, after
//! resolving symlinks, and every range is checked against the file size. If the model itself is a symlink, the
//! directory of the symlink target is permitted as well: model caches store each file under its digest, and provide
//! directories of symlinks to these files.

use super::proto::{Bytes, TensorProto, external_entries};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

/// Files next to a model, mapped at first use.
pub struct ExternalFiles {
    dir: PathBuf,
    /// Permitted directories, with symlinks resolved.
    allowed_dirs: Vec<PathBuf>,
    files: RefCell<BTreeMap<String, Bytes>>,
}

impl ExternalFiles {
    /// Creates the set of files in the directory of the model, without mapping any file.
    pub fn beside(model: &Path) -> ExternalFiles {
        let dir = match model.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir.to_owned(),
            _ => PathBuf::from("."),
        };
        let target = model.canonicalize().ok().and_then(|model| model.parent().map(Path::to_owned));
        let allowed_dirs = dir.canonicalize().into_iter().chain(target).collect();
        ExternalFiles { dir, allowed_dirs, files: RefCell::default() }
    }

    /// Reads the external data of a tensor of `size` bytes.
    ///
    /// # Errors
    /// If the path is outside the permitted directories, the file cannot be read, the range extends beyond the end of
    /// the file, or its length is not `size`.
    pub fn read(&self, tensor: &TensorProto, size: usize) -> Result<Bytes, String> {
        let entries = external_entries(tensor);
        let location = *entries.get("location").ok_or("expected a location in external_data, found none")?;
        let integer_entry = |key: &str| match entries.get(key) {
            Some(text) => text
                .parse::<usize>()
                .map(Some)
                .map_err(|_| format!("{key} in external_data: expected an integer >= 0, found \"{text}\"")),
            None => Ok(None),
        };
        let offset = integer_entry("offset")?.unwrap_or(0);
        let file = self.file(location)?;
        let length = match integer_entry("length")? {
            Some(length) => length,
            None => file.len().saturating_sub(offset),
        };
        if length != size {
            return Err(format!(
                "external data in {location}: expected {size} bytes for the tensor type, found {length}"
            ));
        }
        match offset.checked_add(length) {
            Some(end) if end <= file.len() => Ok(file.slice(offset..end)),
            _ => Err(format!(
                "external data in {location}: expected {length} bytes at offset {offset}, found a file of {} bytes",
                file.len()
            )),
        }
    }

    fn file(&self, location: &str) -> Result<Bytes, String> {
        if let Some(file) = self.files.borrow().get(location) {
            return Ok(file.clone());
        }
        let path = Path::new(location);
        let is_inside = path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        if !is_inside || location.is_empty() || location.contains('\\') {
            return Err(format!("expected a data file below the model's directory, found \"{location}\""));
        }
        let read_error = |e: std::io::Error| format!("cannot read the external data in {location}: {e}");
        let path = self.dir.join(path).canonicalize().map_err(read_error)?;
        if !self.allowed_dirs.iter().any(|dir| path.starts_with(dir)) {
            return Err(format!(
                "expected a data file below the model's directory, found \"{location}\", a symlink to {}",
                path.display()
            ));
        }
        let file = byoc_files::map_file(&path).map_err(read_error)?;
        self.files.borrow_mut().insert(location.to_owned(), file.clone());
        Ok(file)
    }
}

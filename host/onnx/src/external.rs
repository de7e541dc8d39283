//! Tensor data in files next to the model.
//!
//! The file names come from the model and are untrusted: only files below the model's folder are read, after resolving
//! symlinks, and every range is checked against the file size. If the model itself is a symlink, the folder of its
//! target is permitted as well, because model stores keep files named by digest, and folders of symlinks to those
//! files.

use super::proto::{Bytes, TensorProto, external_entries};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

/// Files next to a model, mapped at first use.
pub struct ExternalFiles {
    folder: PathBuf,
    /// Permitted folders, with symlinks resolved.
    allowed: Vec<PathBuf>,
    files: RefCell<BTreeMap<String, Bytes>>,
}

impl ExternalFiles {
    /// Creates the set of files below the model's folder, without mapping any file.
    pub fn beside(model: &Path) -> ExternalFiles {
        let folder = match model.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
            _ => PathBuf::from("."),
        };
        let target = model.canonicalize().ok().and_then(|model| model.parent().map(Path::to_owned));
        let allowed = folder.canonicalize().into_iter().chain(target).collect();
        ExternalFiles { folder, allowed, files: RefCell::default() }
    }

    /// Reads the data of a tensor of `size` bytes.
    ///
    /// # Errors
    /// If the path is outside the permitted folders, the file cannot be read, or the range exceeds the file or differs
    /// from `size`.
    pub fn read(&self, tensor: &TensorProto, size: usize) -> Result<Bytes, String> {
        let entries = external_entries(tensor);
        let location = *entries.get("location").ok_or("missing location of the external data")?;
        let number = |key: &str| match entries.get(key) {
            Some(text) => text
                .parse::<usize>()
                .map(Some)
                .map_err(|_| format!("{key} of the external data: expected a number, found \"{text}\"")),
            None => Ok(None),
        };
        let offset = number("offset")?.unwrap_or(0);
        let file = self.file(location)?;
        let length = match number("length")? {
            Some(length) => length,
            None => file.len().saturating_sub(offset),
        };
        if length != size {
            return Err(format!("expected {size} bytes of data in {location} for its type, found {length}"));
        }
        match offset.checked_add(length) {
            Some(end) if end <= file.len() => Ok(file.slice(offset..end)),
            _ => Err(format!(
                "expected {length} bytes of data at offset {offset} of {location}, found a file of {} bytes",
                file.len()
            )),
        }
    }

    fn file(&self, location: &str) -> Result<Bytes, String> {
        if let Some(file) = self.files.borrow().get(location) {
            return Ok(file.clone());
        }
        let path = Path::new(location);
        let inside = path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        if !inside || location.is_empty() || location.contains('\\') {
            return Err(format!("expected a data file below the model's folder, found \"{location}\""));
        }
        let unreadable = |e: std::io::Error| format!("cannot read the data in {location}: {e}");
        let path = self.folder.join(path).canonicalize().map_err(unreadable)?;
        if !self.allowed.iter().any(|folder| path.starts_with(folder)) {
            return Err(format!(
                "expected a data file below the model's folder, found \"{location}\", a link to {}",
                path.display()
            ));
        }
        let file = byoc_files::map_file(&path).map_err(unreadable)?;
        self.files.borrow_mut().insert(location.to_owned(), file.clone());
        Ok(file)
    }
}

//! Tensor data in files beside the model.
//!
//! The model names the files, so the names are not trusted: only paths below the model's folder are followed, and
//! every range is checked against the file.

use super::proto::{Bytes, TensorProto, external_entries};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

/// The files beside a model, mapped when first asked for.
pub struct ExternalFiles {
    folder: PathBuf,
    files: RefCell<BTreeMap<String, Bytes>>,
}

impl ExternalFiles {
    /// The files below the folder of that model.
    pub fn beside(model: &Path) -> ExternalFiles {
        let folder = model.parent().unwrap_or(Path::new("")).to_owned();
        ExternalFiles { folder, files: RefCell::default() }
    }

    /// The data of a tensor that takes `size` bytes.
    ///
    /// # Errors
    /// When the path leads out of the folder, the file is missing, or the range is not in it.
    pub fn read(&self, tensor: &TensorProto, size: usize) -> Result<Bytes, String> {
        let entries = external_entries(tensor);
        let location = *entries.get("location").ok_or("its external data has no location")?;
        let number = |key: &str| match entries.get(key) {
            Some(text) => text.parse::<usize>().map(Some).map_err(|_| format!("its {key} \"{text}\" is no number")),
            None => Ok(None),
        };
        let offset = number("offset")?.unwrap_or(0);
        let file = self.file(location)?;
        let length = match number("length")? {
            Some(length) => length,
            None => file.len().saturating_sub(offset),
        };
        if length != size {
            return Err(format!("{length} bytes of {location} are its data, its type takes {size}"));
        }
        match offset.checked_add(length) {
            Some(end) if end <= file.len() => Ok(file.slice(offset..end)),
            _ => Err(format!("its data is at {offset}, {length} bytes, of {location}, which has {} bytes", file.len())),
        }
    }

    fn file(&self, location: &str) -> Result<Bytes, String> {
        if let Some(file) = self.files.borrow().get(location) {
            return Ok(file.clone());
        }
        let path = Path::new(location);
        let inside = path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        if !inside || location.is_empty() || location.contains('\\') {
            return Err(format!("its data is said to be in \"{location}\", which is not below the model's folder"));
        }
        let file = crate::io::files::map_file(&self.folder.join(path))
            .map_err(|e| format!("its data is in {location}: {e}"))?;
        self.files.borrow_mut().insert(location.to_owned(), file.clone());
        Ok(file)
    }
}

//! Tensor data in files beside the model.
//!
//! The model names the files, so the names are not trusted: only what lies below the model's folder is read, wherever links
//! lead, and every range is checked against the file. Where the model is a link itself, the folder of its target counts as
//! well: stores of models keep files under their digests, and folders of links to them.

use super::proto::{Bytes, TensorProto, external_entries};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

/// The files beside a model, mapped when first asked for.
pub struct ExternalFiles {
    folder: PathBuf,
    /// The folders that data may lie in, without links.
    allowed: Vec<PathBuf>,
    files: RefCell<BTreeMap<String, Bytes>>,
}

impl ExternalFiles {
    /// The files below the folder of that model.
    pub fn beside(model: &Path) -> ExternalFiles {
        let folder = match model.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
            _ => PathBuf::from("."),
        };
        let target = model.canonicalize().ok().and_then(|model| model.parent().map(Path::to_owned));
        let allowed = folder.canonicalize().into_iter().chain(target).collect();
        ExternalFiles { folder, allowed, files: RefCell::default() }
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
        let unreadable = |e: std::io::Error| format!("its data is in {location}: {e}");
        let path = self.folder.join(path).canonicalize().map_err(unreadable)?;
        if !self.allowed.iter().any(|folder| path.starts_with(folder)) {
            return Err(format!(
                "its data is said to be in \"{location}\", a link to {}, which is not below the model's folder",
                path.display()
            ));
        }
        let file = crate::io::files::map_file(&path).map_err(unreadable)?;
        self.files.borrow_mut().insert(location.to_owned(), file.clone());
        Ok(file)
    }
}

//! Tensor data in files next to the model.
//!
//! The file names come from the model and are untrusted: only files below the model's directory are read, as
//! [`Siblings`] defines it, and every range is checked against the file size.

use super::proto::{Bytes, TensorProto, external_entries};
use byoc_files::beneath::{SiblingError, Siblings};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

/// Files next to a model, mapped at first use.
pub struct ExternalFiles {
    siblings: Siblings,
    files: RefCell<BTreeMap<String, Bytes>>,
}

impl ExternalFiles {
    /// Creates the set of files in the directory of a model in memory, without mapping any file.
    pub fn beside(model: &Path) -> ExternalFiles {
        ExternalFiles { siblings: Siblings::of(model, None), files: RefCell::default() }
    }

    /// Creates the set of files in the directory of a model that was read from `file`, without mapping any file.
    pub fn beside_file(model: &Path, file: &File) -> ExternalFiles {
        ExternalFiles { siblings: Siblings::of(model, Some(file)), files: RefCell::default() }
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

    /// Returns true if no file was read.
    pub fn is_unused(&self) -> bool {
        self.files.borrow().is_empty()
    }

    fn file(&self, location: &str) -> Result<Bytes, String> {
        if let Some(file) = self.files.borrow().get(location) {
            return Ok(file.clone());
        }
        let file = self.siblings.map(location).map_err(|error| match error {
            SiblingError::Unreadable(error) => format!("cannot read the external data in {location}: {error}"),
            SiblingError::Outside(target) => {
                let link = target.map_or_else(String::new, |target| format!(", a symlink to {}", target.display()));
                format!("expected a data file below the model's directory, found \"{location}\"{link}")
            }
        })?;
        self.files.borrow_mut().insert(location.to_owned(), file.clone());
        Ok(file)
    }
}

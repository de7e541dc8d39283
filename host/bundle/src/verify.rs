//! Verification of a bundle on disk: every listed file matches its digest, and only listed files are used.

use crate::contents::{self, Description, FORMAT};
use byoc_files::{map_file, mapped, read_text};
use byoc_ir::diag::{Diagnostic, codes};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Bundle whose files have been verified.
#[derive(Clone, Debug)]
pub struct Bundle {
    /// Directory of the bundle.
    pub root: PathBuf,
    /// Description of the contents.
    pub description: Description,
    listed: BTreeSet<String>,
}

impl Bundle {
    /// Opens a bundle and checks the digests of all of its files.
    ///
    /// # Errors
    /// E0710 if the directory is not a bundle, E0711 if a file is corrupt or missing, or a plugin file is not listed.
    pub fn open(root: &Path) -> Result<Bundle, Diagnostic> {
        let list = root.join(contents::CHECKSUMS);
        let text = read_text(&list).map_err(|error| not_a_bundle(format!("{}: {error}", list.display())))?;
        let files = contents::parse_checksums(&text).map_err(|why| damaged(contents::CHECKSUMS, why))?;
        for (path, digest) in &files {
            let bytes = map_file(&root.join(path)).map_err(|error| damaged(path, error))?;
            if mapped::digest(&bytes) != *digest {
                return Err(damaged(path, "the contents do not match the digest"));
            }
        }
        let listed: BTreeSet<String> = files.into_iter().map(|(path, _)| path).collect();
        // The session searches for loaders in every plugin of this directory.
        for entry in std::fs::read_dir(root.join(contents::PLUGINS)).into_iter().flatten().flatten() {
            let path = format!("{}/{}", contents::PLUGINS, entry.file_name().to_string_lossy());
            if !listed.contains(&path) {
                return Err(damaged(&path, "expected an entry in the digest list, found none"));
            }
        }
        let bundle = Bundle { root: root.to_owned(), description: description(root)?, listed };
        bundle.file(contents::DESCRIPTION)?;
        for plugin in &bundle.description.plugins {
            bundle.file(&plugin.file)?;
        }
        Ok(bundle)
    }

    /// Returns the path of a listed file, including the bundle directory.
    ///
    /// # Errors
    /// E0711 if the digest list does not contain the file.
    pub fn file(&self, path: &str) -> Result<PathBuf, Diagnostic> {
        if self.listed.contains(path) {
            return Ok(self.root.join(path));
        }
        Err(damaged(contents::CHECKSUMS, format!("expected a digest for {path}, found none")))
    }
}

fn description(root: &Path) -> Result<Description, Diagnostic> {
    let file = root.join(contents::DESCRIPTION);
    let text = read_text(&file).map_err(|error| not_a_bundle(format!("{}: {error}", file.display())))?;
    let value: Value = serde_json::from_str(&text).map_err(|error| damaged(contents::DESCRIPTION, error))?;
    let format = value["format"].as_u64();
    if format != Some(u64::from(FORMAT)) {
        let found = format.map_or_else(|| "none".to_owned(), |format| format.to_string());
        return Err(not_a_bundle(format!("expected a bundle of format {FORMAT}, found {found}")));
    }
    serde_json::from_value(value).map_err(|error| damaged(contents::DESCRIPTION, error))
}

fn damaged(path: &str, why: impl std::fmt::Display) -> Diagnostic {
    Diagnostic::error(codes::artifacts::DAMAGED_BUNDLE, format!("{path}: {why}"))
        .help("copy the bundle again, or recreate it with \"byoc bundle\"")
}

fn not_a_bundle(why: String) -> Diagnostic {
    Diagnostic::error(codes::artifacts::NOT_A_BUNDLE, why)
        .help("write a bundle with \"byoc bundle FILE.byoc -o DIR\", and start it with DIR/run")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle(folder: &Path, description: &str) {
        std::fs::write(folder.join("bundle.json"), description).unwrap();
        let digest = |text: &str| blake3::hash(text.as_bytes());
        std::fs::write(folder.join("model.byoc"), "model").unwrap();
        let list = contents::checksums([("bundle.json", digest(description)), ("model.byoc", digest("model"))]);
        std::fs::write(folder.join("checksums.b3"), list).unwrap();
    }

    const DESCRIPTION: &str = r#"{"format": 1, "producer": "byoc", "processor": "x86_64", "cpu_features": [],
        "loader": "lib/ld.so", "plugins": [], "regions": [], "libraries": []}"#;

    #[test]
    fn any_changed_byte_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        bundle(folder, DESCRIPTION);
        let opened = Bundle::open(folder).unwrap();
        assert_eq!(opened.file("model.byoc").unwrap(), folder.join("model.byoc"));
        assert_eq!(opened.file("run").unwrap_err().code, codes::artifacts::DAMAGED_BUNDLE);
        for name in ["bundle.json", "model.byoc", "checksums.b3"] {
            let path = folder.join(name);
            let bytes = std::fs::read(&path).unwrap();
            for at in 0..bytes.len() {
                let mut changed = bytes.clone();
                changed[at] ^= 2;
                std::fs::write(&path, changed).unwrap();
                let error = Bundle::open(folder).unwrap_err();
                assert_eq!(error.code, codes::artifacts::DAMAGED_BUNDLE, "{name} byte {at}: {error}");
            }
            std::fs::write(&path, bytes).unwrap();
        }
        std::fs::remove_file(folder.join("model.byoc")).unwrap();
        assert_eq!(Bundle::open(folder).unwrap_err().code, codes::artifacts::DAMAGED_BUNDLE);
    }

    #[test]
    fn further_plugins_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        bundle(folder.path(), DESCRIPTION);
        std::fs::create_dir(folder.path().join("plugins")).unwrap();
        Bundle::open(folder.path()).unwrap();
        std::fs::write(folder.path().join("plugins/other.so"), "").unwrap();
        let error = Bundle::open(folder.path()).unwrap_err();
        assert_eq!(error.code, codes::artifacts::DAMAGED_BUNDLE);
        assert!(error.message.starts_with("plugins/other.so: "), "{error}");
    }

    #[test]
    fn other_folders_and_other_formats_are_no_bundles() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Bundle::open(folder.path()).unwrap_err().code, codes::artifacts::NOT_A_BUNDLE);
        bundle(folder.path(), r#"{"format": 2}"#);
        let error = Bundle::open(folder.path()).unwrap_err();
        assert_eq!(
            (error.code, &*error.message),
            (codes::artifacts::NOT_A_BUNDLE, "expected a bundle of format 1, found 2")
        );
    }
}

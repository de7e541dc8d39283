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
    files: BTreeSet<String>,
}

impl Bundle {
    /// Opens a bundle and checks the digests of all of its files.
    ///
    /// # Errors
    /// E0710 if the directory is not a bundle, E0711 if a file is corrupt or missing, or a plugin file is not listed.
    pub fn open(root: &Path) -> Result<Bundle, Diagnostic> {
        let list = root.join(contents::CHECKSUMS);
        let text = read_text(&list).map_err(|error| bundle_error(format!("{}: {error}", list.display())))?;
        let files = contents::parse_checksums(&text).map_err(|reason| damage_error(contents::CHECKSUMS, reason))?;
        for (path, digest) in &files {
            let bytes = map_file(&root.join(path)).map_err(|error| damage_error(path, error))?;
            let actual = mapped::digest(&bytes);
            if actual != *digest {
                return Err(damage_error(path, format!("expected digest {digest}, found {actual}")));
            }
        }
        let paths: BTreeSet<String> = files.into_iter().map(|(path, _)| path).collect();
        // The session searches for loaders in every plugin of this directory.
        for entry in std::fs::read_dir(root.join(contents::PLUGINS)).into_iter().flatten().flatten() {
            let path = format!("{}/{}", contents::PLUGINS, entry.file_name().to_string_lossy());
            if !paths.contains(&path) {
                return Err(damage_error(&path, "expected an entry in the digest list, found none"));
            }
        }
        let bundle = Bundle { root: root.to_owned(), description: description(root)?, files: paths };
        bundle.file(contents::DESCRIPTION)?;
        for plugin in &bundle.description.plugins {
            bundle.file(&plugin.file)?;
        }
        Ok(bundle)
    }

    /// Returns the relative path of an entry of the directory that is not part of the bundle. Links are not followed.
    ///
    /// # Errors
    /// If a directory cannot be listed.
    pub fn foreign_entry(&self) -> std::io::Result<Option<PathBuf>> {
        let mut dirs = vec![PathBuf::new()];
        while let Some(dir) = dirs.pop() {
            let mut entries = std::fs::read_dir(self.root.join(&dir))?.collect::<Result<Vec<_>, _>>()?;
            entries.sort_by_key(std::fs::DirEntry::file_name);
            for entry in entries {
                let (path, kind) = (dir.join(entry.file_name()), entry.file_type()?);
                if kind.is_dir() {
                    dirs.push(path);
                    continue;
                }
                let is_listed =
                    path.to_str().is_some_and(|path| path == contents::CHECKSUMS || self.files.contains(path));
                let is_own = match kind.is_symlink() {
                    true => std::fs::read_link(entry.path())? == contents::library_link(&path),
                    false => kind.is_file() && is_listed,
                };
                if !is_own {
                    return Ok(Some(path));
                }
            }
        }
        Ok(None)
    }

    /// Returns the path of a listed file, including the bundle directory.
    ///
    /// # Errors
    /// E0711 if the digest list does not contain the file.
    pub fn file(&self, path: &str) -> Result<PathBuf, Diagnostic> {
        if self.files.contains(path) {
            return Ok(self.root.join(path));
        }
        Err(damage_error(contents::CHECKSUMS, format!("expected a digest for {path}, found none")))
    }
}

fn description(root: &Path) -> Result<Description, Diagnostic> {
    let file = root.join(contents::DESCRIPTION);
    let text = read_text(&file).map_err(|error| bundle_error(format!("{}: {error}", file.display())))?;
    let value: Value = serde_json::from_str(&text).map_err(|error| damage_error(contents::DESCRIPTION, error))?;
    let format = value["format"].as_u64();
    if format != Some(u64::from(FORMAT)) {
        let found = format.map_or_else(|| "none".to_owned(), |format| format.to_string());
        return Err(bundle_error(format!("expected a bundle of format {FORMAT}, found {found}")));
    }
    serde_json::from_value(value).map_err(|error| damage_error(contents::DESCRIPTION, error))
}

fn damage_error(path: &str, reason: impl std::fmt::Display) -> Diagnostic {
    Diagnostic::error(codes::artifacts::DAMAGED_BUNDLE, format!("{path}: {reason}"))
        .help("copy the bundle again, or recreate it with \"byoc bundle\"")
}

fn bundle_error(reason: String) -> Diagnostic {
    Diagnostic::error(codes::artifacts::NOT_A_BUNDLE, reason)
        .help("write a bundle with \"byoc bundle FILE.byoc -o DIR\", and start it with DIR/run")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle(dir: &Path, description: &str) {
        std::fs::write(dir.join("bundle.json"), description).unwrap();
        let digest = |text: &str| blake3::hash(text.as_bytes());
        std::fs::write(dir.join("model.byoc"), "model").unwrap();
        let list = contents::checksums([("bundle.json", digest(description)), ("model.byoc", digest("model"))]);
        std::fs::write(dir.join("checksums.b3"), list).unwrap();
    }

    const DESCRIPTION: &str = r#"{"format": 1, "producer": "byoc", "processor": "x86_64", "cpu_features": [],
        "loader": "lib/ld.so", "plugins": [], "regions": [], "libraries": []}"#;

    #[test]
    fn any_changed_byte_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        bundle(dir, DESCRIPTION);
        let reopened = Bundle::open(dir).unwrap();
        assert_eq!(reopened.file("model.byoc").unwrap(), dir.join("model.byoc"));
        assert_eq!(reopened.file("run").unwrap_err().code, codes::artifacts::DAMAGED_BUNDLE);
        for name in ["bundle.json", "model.byoc", "checksums.b3"] {
            let path = dir.join(name);
            let bytes = std::fs::read(&path).unwrap();
            for index in 0..bytes.len() {
                let mut copy = bytes.clone();
                copy[index] ^= 2;
                std::fs::write(&path, copy).unwrap();
                let error = Bundle::open(dir).unwrap_err();
                assert_eq!(error.code, codes::artifacts::DAMAGED_BUNDLE, "{name} byte {index}: {error}");
            }
            std::fs::write(&path, bytes).unwrap();
        }
        std::fs::remove_file(dir.join("model.byoc")).unwrap();
        assert_eq!(Bundle::open(dir).unwrap_err().code, codes::artifacts::DAMAGED_BUNDLE);
    }

    #[test]
    fn further_plugins_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        bundle(dir.path(), DESCRIPTION);
        std::fs::create_dir(dir.path().join("plugins")).unwrap();
        Bundle::open(dir.path()).unwrap();
        std::fs::write(dir.path().join("plugins/other.so"), "").unwrap();
        let error = Bundle::open(dir.path()).unwrap_err();
        assert_eq!(error.code, codes::artifacts::DAMAGED_BUNDLE);
        assert!(error.message.starts_with("plugins/other.so: "), "{error}");
    }

    #[test]
    fn foreign_entries_are_found() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        bundle(dir.path(), DESCRIPTION);
        std::fs::create_dir_all(path("usr/empty")).unwrap();
        symlink("lib", path("lib64")).unwrap();
        symlink("../lib", path("usr/lib")).unwrap();
        let foreign = || Bundle::open(dir.path()).unwrap().foreign_entry().unwrap();
        assert_eq!(foreign(), None);
        for (name, target) in [("usr/thesis", None), ("other", Some("model.byoc")), ("lib32", Some("../lib"))] {
            match target {
                Some(target) => symlink(target, path(name)).unwrap(),
                None => std::fs::write(path(name), "").unwrap(),
            }
            assert_eq!(foreign(), Some(PathBuf::from(name)));
            std::fs::remove_file(path(name)).unwrap();
        }
        assert_eq!(foreign(), None);
        // A listed name that is a link is not what was written.
        std::fs::rename(path("model.byoc"), path("usr/model")).unwrap();
        symlink("usr/model", path("model.byoc")).unwrap();
        assert_eq!(foreign(), Some(PathBuf::from("model.byoc")));
    }

    #[test]
    fn other_folders_and_other_formats_are_no_bundles() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Bundle::open(dir.path()).unwrap_err().code, codes::artifacts::NOT_A_BUNDLE);
        bundle(dir.path(), r#"{"format": 2}"#);
        let error = Bundle::open(dir.path()).unwrap_err();
        assert_eq!(
            (error.code, &*error.message),
            (codes::artifacts::NOT_A_BUNDLE, "expected a bundle of format 1, found 2")
        );
    }
}

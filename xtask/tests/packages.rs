//! Checks the lists of `cargo xtask test-packages`: packaged models with versions and digests, and quick starts.

use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("packages")
}

#[test]
fn models_are_pinned() {
    let text = std::fs::read_to_string(folder().join("models.json")).unwrap();
    let packages: Vec<Value> = serde_json::from_str(&text).unwrap();
    let mut names = BTreeSet::new();
    let mut models = 0;
    for package in &packages {
        let [registry, name, version, digest] =
            ["registry", "name", "version", "sha256"].map(|key| package[key].as_str().unwrap());
        assert!(["npm", "pypi"].contains(&registry), "{name}: {registry}");
        assert!(!version.is_empty() && names.insert((registry, name)), "{name} {version}");
        assert!(digest.len() == 64 && digest.bytes().all(|digit| digit.is_ascii_hexdigit()), "{name}: {digest}");
        for model in package["models"].as_array().unwrap() {
            assert!(model["path"].as_str().unwrap().ends_with(".onnx"), "{name}: {model}");
            // A verdict other than `identical` has a reason.
            let known = model["known"].as_str();
            assert!(known.is_none_or(|known| {
                known
                    .split_once(": ")
                    .is_some_and(|(verdict, reason)| ["different", "error"].contains(&verdict) && !reason.is_empty())
            }));
            models += 1;
        }
    }
    assert!(packages.len() >= 25 && models >= 40, "{} packages, {models} models", packages.len());
}

#[test]
fn quick_starts_name_their_packages() {
    let mut count = 0;
    for entry in std::fs::read_dir(folder().join("quickstarts")).unwrap() {
        let file = entry.unwrap().path();
        let text = std::fs::read_to_string(&file).unwrap();
        let packages = text.lines().next().and_then(|line| line.strip_prefix("# packages: ")).unwrap_or_default();
        assert!(packages.contains("=="), "{}: expected packages with versions, found {packages}", file.display());
        assert!(text.contains("\ndef call():\n") && !text.contains("byoc"), "{}", file.display());
        count += 1;
    }
    assert!(count >= 19, "{count} quick starts");
}

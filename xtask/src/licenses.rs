//! Licenses of the crates linked into an executable, collected from the crates' packages.

use crate::process::{cargo, output};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

/// Upper-case prefixes of license file names.
const NAMES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE"];

/// Returns the license report for workspace packages: a list of their third-party crates, followed by each distinct
/// license text with its crates.
pub fn third_party(packages: &[&str], target: &str) -> Result<String, String> {
    let text = output(&mut cargo(&["metadata", "--format-version", "1", "--locked", "--filter-platform", target]))?;
    let metadata: Value = serde_json::from_str(&text).map_err(|error| format!("cargo metadata: {error}"))?;
    let crates = dependencies(&metadata, packages)?;
    let mut list = String::new();
    let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in crates {
        let name = format!("{} {}", text_of(&package["name"]), text_of(&package["version"]));
        let license = package["license"].as_str().unwrap_or("see below");
        let _ = writeln!(list, "{name}: {license}");
        let manifest = Path::new(text_of(&package["manifest_path"]));
        for text in license_texts(manifest.parent().unwrap_or(manifest)) {
            texts.entry(text).or_default().insert(name.clone());
        }
    }
    let mut license_text = format!(
        "Third-party crates of this program, with their licenses. Rust standard library: MIT OR Apache-2.0.\n\n{list}"
    );
    for (text, crates) in texts {
        let crates: Vec<String> = crates.into_iter().collect();
        let _ = write!(license_text, "\n{0}\n{1}\n{0}\n\n{2}\n", "-".repeat(80), crates.join(", "), text.trim_end());
    }
    Ok(license_text)
}

fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Returns the third-party crates in the dependency graph of the packages, sorted by name and version, without build
/// dependencies and dev-dependencies.
fn dependencies<'a>(metadata: &'a Value, packages: &[&str]) -> Result<Vec<&'a Value>, String> {
    let items_of = |list: &'a Value| list.as_array().map(Vec::as_slice).unwrap_or_default();
    let packages_by_id: BTreeMap<&str, &Value> =
        items_of(&metadata["packages"]).iter().map(|p| (text_of(&p["id"]), p)).collect();
    let nodes: BTreeMap<&str, &Value> =
        items_of(&metadata["resolve"]["nodes"]).iter().map(|node| (text_of(&node["id"]), node)).collect();
    let members: BTreeSet<&str> = items_of(&metadata["workspace_members"]).iter().map(text_of).collect();
    let mut pending: Vec<&str> = Vec::new();
    for name in packages {
        let member = members.iter().find(|id| packages_by_id.get(**id).is_some_and(|p| text_of(&p["name"]) == *name));
        pending.push(member.ok_or_else(|| format!("expected a package {name} in the workspace, found none"))?);
    }
    let mut visited: BTreeSet<&str> = pending.iter().copied().collect();
    while let Some(id) = pending.pop() {
        for dependency in nodes.get(id).into_iter().flat_map(|node| items_of(&node["deps"])) {
            let is_linked = items_of(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
            let id = text_of(&dependency["pkg"]);
            if is_linked && visited.insert(id) {
                pending.push(id);
            }
        }
    }
    let mut crates: Vec<&Value> =
        visited.iter().filter(|id| !members.contains(**id)).filter_map(|id| packages_by_id.get(*id).copied()).collect();
    crates.sort_by_key(|package| (text_of(&package["name"]), text_of(&package["version"])));
    Ok(crates)
}

/// Returns the license texts in a crate's directory.
fn license_texts(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_license = |path: &Path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_uppercase();
        NAMES.iter().any(|start| name.starts_with(start)) && path.is_file()
    };
    let mut files: Vec<_> = entries.filter(|path| is_license(path)).collect();
    files.sort();
    files.iter().filter_map(|file| std::fs::read_to_string(file).ok()).map(|text| text.replace("\r\n", "\n")).collect()
}

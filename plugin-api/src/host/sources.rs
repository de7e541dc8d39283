//! Sources of this crate that a plugin needs. `byoc plugins new` writes them next to a Rust plugin, which then builds
//! regardless of how byoc was installed.

use crate::plugin::API_VERSION;

macro_rules! sources {
    ($($name:literal)*) => { [$(($name, include_str!(concat!("../", $name)))),*] };
}

/// All files except `host/` and `entries/`, which load plugins.
const SOURCES: [(&str, &str); 32] = sources! {
    "abi/export.rs" "abi/import.rs" "abi/mod.rs" "abi/objects.rs" "backend.rs" "claim.rs" "constant.rs" "declare.rs" "describe.rs"
    "device/memory.rs" "device/mod.rs" "device/stream.rs" "device/table.rs" "dtype.rs" "error.rs" "estimate.rs"
    "executable.rs" "executable_object.rs" "graph.rs" "graph_json.rs" "guard.rs" "lib.rs" "link.rs"
    "log_forwarding.rs" "onnx.rs" "plugin.rs" "precision.rs" "program.rs" "run_options.rs" "services.rs" "signature.rs" "tensor.rs"
};

/// Manifest of the copied crate.
const MANIFEST: &str = include_str!("../../copy.toml");

/// Returns the crate without its feature `host`: the path of each file in the crate's directory, and its text.
pub fn plugin_api_sources() -> Vec<(String, String)> {
    let mut files = vec![("Cargo.toml".to_owned(), MANIFEST.replace("@VERSION@", API_VERSION))];
    files.extend(SOURCES.iter().map(|(name, text)| (format!("src/{name}"), (*text).to_owned())));
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_contains_every_source() {
        let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let names = |subdir: &str| -> Vec<String> {
            let entries = std::fs::read_dir(dir.join(subdir)).unwrap();
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            names.filter(|name| name.ends_with(".rs")).map(|name| format!("{subdir}{name}")).collect()
        };
        let mut source_names = [names(""), names("abi/"), names("device/")].concat();
        source_names.sort();
        assert_eq!(source_names, SOURCES.map(|(name, _)| name));
    }

    /// Tests that the copied manifest lists the crate's dependencies with the workspace's versions.
    #[test]
    fn copied_manifest_matches_the_crate() {
        let section = |text: &str, name: &str| -> Vec<String> {
            let lines = text.lines().skip_while(|line| *line != format!("[{name}]")).skip(1);
            lines
                .take_while(|line| !line.starts_with('['))
                .filter(|line| line.contains('='))
                .map(String::from)
                .collect()
        };
        let workspace = section(include_str!("../../../Cargo.toml"), "workspace.dependencies");
        let dependencies = section(include_str!("../../Cargo.toml"), "dependencies");
        let workspace_dependency = |line: &String| {
            let name = line.strip_suffix(".workspace = true")?;
            workspace.iter().find(|line| line.starts_with(&format!("{name} = "))).cloned()
        };
        let expected: Vec<String> = dependencies.iter().filter_map(workspace_dependency).collect();
        assert!(expected.len() >= 5, "{expected:?}");
        assert_eq!(section(MANIFEST, "dependencies"), expected);
    }
}

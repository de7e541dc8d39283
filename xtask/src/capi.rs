//! Installation of the C interface: headers, libraries, and a pkg-config file.

use crate::process::{cargo, root, run, target_dir};
use std::path::{Path, PathBuf};

/// Builds the library and installs it below a prefix.
pub fn install(prefix: &str) -> Result<(), String> {
    run(&mut cargo(&["build", "--release", "--package", "byoc-capi", "--lib"]))?;
    std::fs::create_dir_all(prefix).map_err(|e| format!("cannot create {prefix}: {e}"))?;
    let prefix = Path::new(prefix).canonicalize().map_err(|e| format!("cannot find {prefix}: {e}"))?;
    for file in place(&target_dir().join("release"), &prefix, &prefix.display().to_string())? {
        println!("{}", file.display());
    }
    Ok(())
}

/// Copies headers and libraries below `prefix`, and writes the pkg-config file, which gives the prefix as
/// `prefix_text`.
pub fn place(build_dir: &Path, prefix: &Path, prefix_text: &str) -> Result<Vec<PathBuf>, String> {
    let sources = root().join("host/capi");
    let mut files = Vec::new();
    for (source, target) in [
        (sources.join("include/byoc.h"), "include/byoc.h"),
        (sources.join("include/byoc.hpp"), "include/byoc.hpp"),
        (build_dir.join("libbyocapi.so"), "lib/libbyoc.so"),
        (build_dir.join("libbyocapi.a"), "lib/libbyoc.a"),
    ] {
        let target = prefix.join(target);
        let result =
            std::fs::create_dir_all(target.parent().unwrap_or(prefix)).and_then(|()| std::fs::copy(&source, &target));
        result.map_err(|e| format!("cannot copy {} to {}: {e}", source.display(), target.display()))?;
        files.push(target);
    }
    let file = prefix.join("lib/pkgconfig/byoc.pc");
    let text =
        std::fs::read_to_string(sources.join("byoc.pc.in")).map_err(|e| format!("cannot read byoc.pc.in: {e}"))?;
    let text = text.replace("@PREFIX@", prefix_text).replace("@VERSION@", env!("CARGO_PKG_VERSION"));
    let result = std::fs::create_dir_all(prefix.join("lib/pkgconfig")).and_then(|()| std::fs::write(&file, text));
    result.map_err(|e| format!("cannot write {}: {e}", file.display()))?;
    files.push(file);
    Ok(files)
}

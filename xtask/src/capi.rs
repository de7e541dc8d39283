//! Installation of the C interface: headers, libraries, and a file for pkg-config.

use crate::process::{cargo, root, run, target_dir};
use std::path::Path;

/// Builds the library and installs it below a prefix.
pub fn install(prefix: &str) -> Result<(), String> {
    run(&mut cargo(&["build", "--release", "--package", "byoc-capi", "--lib"]))?;
    std::fs::create_dir_all(prefix).map_err(|e| format!("cannot create {prefix}: {e}"))?;
    let prefix = Path::new(prefix).canonicalize().map_err(|e| format!("cannot find {prefix}: {e}"))?;
    let (sources, built) = (root().join("host/capi"), target_dir().join("release"));
    for (from, to) in [
        (sources.join("include/byoc.h"), "include/byoc.h"),
        (sources.join("include/byoc.hpp"), "include/byoc.hpp"),
        (built.join("libbyocapi.so"), "lib/libbyoc.so"),
        (built.join("libbyocapi.a"), "lib/libbyoc.a"),
    ] {
        let to = prefix.join(to);
        let copied = std::fs::create_dir_all(to.parent().unwrap_or(&prefix)).and_then(|()| std::fs::copy(&from, &to));
        copied.map_err(|e| format!("cannot copy {} to {}: {e}", from.display(), to.display()))?;
        println!("{}", to.display());
    }
    let file = prefix.join("lib/pkgconfig/byoc.pc");
    let text =
        std::fs::read_to_string(sources.join("byoc.pc.in")).map_err(|e| format!("cannot read byoc.pc.in: {e}"))?;
    let text = text.replace("@PREFIX@", &prefix.display().to_string()).replace("@VERSION@", env!("CARGO_PKG_VERSION"));
    let written = std::fs::create_dir_all(prefix.join("lib/pkgconfig")).and_then(|()| std::fs::write(&file, text));
    written.map_err(|e| format!("cannot write {}: {e}", file.display()))?;
    println!("{}", file.display());
    Ok(())
}

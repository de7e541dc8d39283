//! Packaging of the crates for a registry. Nothing is uploaded.
//!
//! Crates without `publish = false` may be published: the boundary, its helpers, and the host libraries. The remaining
//! crates are packaged as well, because their manifests name versions of the published crates.

use crate::process::{self, cargo};

/// Packages every crate without building it. Fails for manifests that a registry would reject, such as dependencies
/// without a version. Takes seconds, and requires no network access after a build.
pub fn run() -> Result<(), String> {
    // The Python extension and the benches use the command-line tool and the server, which are not in a registry.
    let flags = ["--workspace", "--exclude", "byoc-python", "--exclude", "byoc-benches"];
    process::run(cargo(&["package", "--no-verify", "--allow-dirty", "--offline", "--quiet"]).args(flags))
}

/// Packages the boundary and its helpers, and builds them from the packaged files only.
pub fn verify() -> Result<(), String> {
    process::run(&mut cargo(&["package", "--allow-dirty", "-p", "byoc-plugin-api", "-p", "byoc-plugin-support"]))
}

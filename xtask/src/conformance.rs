//! `cargo xtask conformance`: the conformance run of this repository's plugins with the default number of cases, which
//! takes minutes. The tests run fewer cases.

use crate::process::{cargo, run, target_dir};
use crate::{onednn, opencl};
use std::process::Command;
use std::time::Instant;

/// Plugins of this repository.
const PLUGINS: [&str; 6] = ["template", "ccompiler", "nuc_fpga", "vta", "opencl", "dnnl"];

/// Builds and tests the named plugins, by default all plugins, without waiving a claim.
pub fn conformance(names: &[&str]) -> Result<(), String> {
    if let Some(unknown) = names.iter().find(|name| !PLUGINS.contains(name)) {
        return Err(format!("expected {}, found \"{unknown}\"", PLUGINS.join(", ")));
    }
    let plugins: Vec<&str> = PLUGINS.into_iter().filter(|name| names.is_empty() || names.contains(name)).collect();
    let packages: Vec<String> = plugins.iter().map(|name| format!("byoc-{}", name.replace('_', "-"))).collect();
    let mut build = cargo(&["build", "--package", "byoc-cli"]);
    run(build.args(packages.iter().flat_map(|package| ["--package", package])))?;
    let (dir, mut failed) = (target_dir().join("debug"), Vec::new());
    for name in plugins {
        let mut test = Command::new(dir.join("byoc"));
        test.args(["plugins", "test"]).arg(dir.join(format!("libbyoc_{name}.so")));
        test.arg("--out").arg(target_dir().join("conformance"));
        match name {
            "opencl" if !opencl::install_if_possible() => {
                println!("{name}: skipped: no OpenCL device; install one with `{}`", opencl::INSTALL);
                continue;
            }
            "dnnl" => match onednn::fetch_if_possible() {
                Some(library) => drop(test.env("BYOC_DNNL_LIB", library)),
                None => continue,
            },
            _ => {}
        }
        let start = Instant::now();
        let outcome = run(&mut test);
        println!("{name}: {:.0} s\n", start.elapsed().as_secs_f64());
        if outcome.is_err() {
            failed.push(name);
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("plugins that do not conform: {}", failed.join(", "))) }
}

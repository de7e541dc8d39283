//! `cargo xtask conformance`: the conformance run of this repository's plugins with the default number of cases, which
//! takes minutes. The tests run fewer cases.

use crate::process::{cargo, run, target_dir};
use crate::{onednn, opencl};
use std::process::Command;
use std::time::Instant;

/// Plugins of this repository.
const PLUGINS: [&str; 6] = ["template", "ccompiler", "nuc_fpga", "vta", "opencl", "dnnl"];

/// Claims of dnnl that require int8 dot-product instructions.
const INT8_CLAIMS: [&str; 8] = [
    "pattern dnnl.qnn.conv2d",
    "pattern dnnl.qnn.dense",
    "pattern dnnl.qnn_conv2d_requantize_sum",
    "pattern dnnl.qnn_conv2d_requantize",
    "pattern dnnl.qnn_dense_requantize_sum",
    "pattern dnnl.qnn_dense_requantize",
    "operator qnn.conv2d",
    "operator qnn.dense",
];

/// Returns those claims of a plugin that this machine cannot test.
fn unreachable_claims(plugin: &str) -> &'static [&'static str] {
    #[cfg(target_arch = "x86_64")]
    let has_int8 = std::arch::is_x86_feature_detected!("avx512vnni") || std::arch::is_x86_feature_detected!("avxvnni");
    #[cfg(not(target_arch = "x86_64"))]
    let has_int8 = false;
    if plugin == "dnnl" && !has_int8 { &INT8_CLAIMS } else { &[] }
}

/// Builds and tests the named plugins, by default all plugins. Only claims that this machine cannot test are waived.
pub fn conformance(names: &[&str]) -> Result<(), String> {
    if let Some(unknown) = names.iter().find(|name| !PLUGINS.contains(name)) {
        return Err(format!("expected one of {}, found \"{unknown}\"", PLUGINS.join(", ")));
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
        test.args(unreachable_claims(name).iter().flat_map(|claim| ["--waive", claim]));
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
    if failed.is_empty() { Ok(()) } else { Err(format!("conformance runs failed: {}", failed.join(", "))) }
}

//! Comparison of the hand-written bindings with the library's header.

use crate::library::ffi::{CONSTANTS, SIZES};
use std::fmt::Write;
use std::path::PathBuf;
use std::process::Command;

/// Returns the first of `BYOC_DNNL_INCLUDE`, `vendor/onednn/include` and `/usr/include` that contains
/// `oneapi/dnnl/dnnl.h`.
fn include() -> Option<PathBuf> {
    let vendor = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../vendor/onednn/include");
    let include_dir = std::env::var_os("BYOC_DNNL_INCLUDE").map(PathBuf::from);
    include_dir.into_iter().chain([vendor, "/usr/include".into()]).find(|dir| dir.join("oneapi/dnnl/dnnl.h").is_file())
}

#[test]
fn constants_and_sizes_match_the_header() {
    let Some(include) = include() else {
        println!("skipped: oneDNN's headers are not installed (vendor/onednn/include, BYOC_DNNL_INCLUDE)");
        return;
    };
    let mut source = String::from("#include <oneapi/dnnl/dnnl.h>\n#if DNNL_VERSION_MAJOR == 3\n");
    for (name, value) in CONSTANTS {
        let _ = writeln!(source, "_Static_assert((long long)({name}) == {value}LL, \"{name}\");");
    }
    for (name, size) in SIZES {
        let _ = writeln!(source, "_Static_assert(sizeof({name}) == {size}, \"sizeof {name}\");");
    }
    source.push_str("_Static_assert(offsetof(dnnl_version_t, cpu_runtime) == 24, \"cpu_runtime\");\n#endif\n");
    let source = source.replacen('\n', "\n#include <stddef.h>\n", 1);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("constants.c");
    std::fs::write(&file, source).unwrap();
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let output = Command::new(compiler).arg("-fsyntax-only").arg("-I").arg(&include).arg(&file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

//! `cargo xtask fetch-onednn`: fetches oneDNN from its Python wheels, pinned by name, version and hash.
//!
//! A wheel is a ZIP file. The library and the header directory are extracted into the checkout; nothing is installed.

use crate::process::{root, run, target_dir};
use std::path::PathBuf;
use std::process::Command;

/// Wheels, in the format of pip's requirements. The second wheel contains the headers, against which a test checks the
/// bindings.
const WHEELS: &str = "\
onednn-cpu-gomp==2023.2.0 --hash=sha256:2f22a54d6a890ed14bfa185d42a4be65d8b5b1df85dc1f0f3a9abe31620416fb
onednn-devel-cpu-gomp==2023.2.0 --hash=sha256:9763c69e8c907e119056bd52ad918ca84ac9ba939d130a99dfa95ccca3e5e284
";

/// Script that extracts the required files from the wheels. The library is renamed to its final name when it is
/// complete.
const UNPACK: &str = r#"
import os, shutil, sys, zipfile
wheels, vendor = sys.argv[1], sys.argv[2]
for wheel in sorted(os.listdir(wheels)):
    if not wheel.endswith(".whl"):
        continue
    with zipfile.ZipFile(os.path.join(wheels, wheel)) as archive:
        for name in archive.namelist():
            _, _, inside = name.partition(".data/data/")
            if inside == "lib/libdnnl.so.3.2":
                to = os.path.join(vendor, "libdnnl.so.3")
            elif inside.startswith("include/") and inside.endswith(".h"):
                to = os.path.join(vendor, inside)
            else:
                continue
            os.makedirs(os.path.dirname(to), exist_ok=True)
            with archive.open(name) as source, open(to + ".part", "wb") as part:
                shutil.copyfileobj(source, part)
            os.replace(to + ".part", to)
"#;

/// Returns the library path in this checkout, whether or not the file exists.
pub fn library() -> PathBuf {
    root().join("vendor").join("onednn").join("libdnnl.so.3")
}

/// Fetches the library if it is missing, and returns its path.
pub fn fetch() -> Result<PathBuf, String> {
    let library = library();
    if library.is_file() {
        return Ok(library);
    }
    let wheels = target_dir().join("onednn");
    let fail = |error: &dyn std::fmt::Display| format!("{}: {error}", wheels.display());
    std::fs::create_dir_all(&wheels).map_err(|error| fail(&error))?;
    let list = wheels.join("requirements.txt");
    std::fs::write(&list, WHEELS).map_err(|error| fail(&error))?;
    let mut download = Command::new("python3");
    download.args(["-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:"]);
    run(download.arg("--dest").arg(&wheels).arg("--requirement").arg(&list))?;
    let vendor = library.parent().map(PathBuf::from).unwrap_or_default();
    run(Command::new("python3").args(["-c", UNPACK]).arg(&wheels).arg(&vendor))?;
    if library.is_file() { Ok(library) } else { Err(fail(&"expected lib/libdnnl.so.3.2 in the wheel, found none")) }
}

/// Fetches the library if it is missing, and returns its path. On failure, prints the reason and returns `None`.
pub fn fetch_if_possible() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("BYOC_DNNL_LIB").filter(|value| !value.is_empty()) {
        return Some(PathBuf::from(path));
    }
    fetch().inspect_err(|error| eprintln!("xtask: fetching oneDNN failed: {error}")).ok()
}

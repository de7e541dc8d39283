//! `cargo xtask tensorrt`: fetches TensorRT for RTX from a Python wheel, pinned by name, version and hash, and tests the
//! backend on it. `cargo xtask test-tensorrt` needs no GPU.
//!
//! Only the library, its parser and CUDA's run time are extracted into the checkout; nothing is installed.

use crate::process::{cargo, root, run, target_dir};
use std::path::PathBuf;
use std::process::Command;

/// Wheel, in the format of pip's requirements.
const WHEEL: &str = "\
onnxruntime-ep-nv-tensorrt-rtx-cu13==0.5.0 --hash=sha256:32f575c633d171b4edf4b53d3bb22b72a6c9c0a850d2982ce9a788a5d40d3298
";

/// Script that extracts the required files from the wheel, each renamed to its final name when it is complete.
const UNPACK: &str = r#"
import os, shutil, sys, zipfile
wheels, vendor = sys.argv[1], sys.argv[2]
wanted = ("libtensorrt_rtx.so.", "libtensorrt_onnxparser_rtx.so.", "libcudart.so.")
os.makedirs(vendor, exist_ok=True)
for wheel in sorted(os.listdir(wheels)):
    if not wheel.endswith(".whl"):
        continue
    with zipfile.ZipFile(os.path.join(wheels, wheel)) as archive:
        for name in archive.namelist():
            file = os.path.basename(name)
            if file.startswith(wanted):
                to = os.path.join(vendor, file)
                with archive.open(name) as source, open(to + ".part", "wb") as part:
                    shutil.copyfileobj(source, part)
                os.replace(to + ".part", to)
"#;

/// Returns the library in this checkout, whether or not the file exists.
fn library() -> PathBuf {
    root().join("vendor").join("tensorrt").join("libtensorrt_rtx.so.1.7.1")
}

/// Fetches the library if it is missing, and returns its path.
pub fn fetch() -> Result<PathBuf, String> {
    let library = library();
    if library.is_file() {
        return Ok(library);
    }
    let wheels = target_dir().join("tensorrt");
    let fail = |error: &dyn std::fmt::Display| format!("{}: {error}", wheels.display());
    std::fs::create_dir_all(&wheels).map_err(|error| fail(&error))?;
    let list = wheels.join("requirements.txt");
    std::fs::write(&list, WHEEL).map_err(|error| fail(&error))?;
    let mut download = Command::new("python3");
    download.args(["-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:"]);
    run(download.arg("--dest").arg(&wheels).arg("--requirement").arg(&list))?;
    let vendor = library.parent().map(PathBuf::from).unwrap_or_default();
    run(Command::new("python3").args(["-c", UNPACK]).arg(&wheels).arg(&vendor))?;
    if library.is_file() {
        Ok(library)
    } else {
        Err(fail(&"expected libtensorrt_rtx.so.1.7.1 in the wheel, found none"))
    }
}

/// Fetches the library, and runs the tests on it: engines of the recorded models and of architectures of the zoo for two
/// capabilities, refusals, artifacts on a machine without a GPU.
pub fn test() -> Result<(), String> {
    let library = fetch()?;
    let mut test = cargo(&["test", "--workspace", "--test", "end_to_end", "tensorrt"]);
    run(test.args(["--", "--nocapture"]).env("BYOC_TENSORRT_LIB", library))
}

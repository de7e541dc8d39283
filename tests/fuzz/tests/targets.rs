//! Runs each target for a few seconds, and on inputs that grow when they are read, in a separate process, so that a
//! crash is detected as well.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

/// Run time per target in seconds; `cargo xtask fuzz` runs longer.
const SECONDS: &str = "4";

/// Size of hostile inputs in bytes; `cargo xtask test-hostile` reads larger ones.
const HOSTILE_SIZE: &str = "1048576";

fn fuzz(target: &str) {
    let dir = byoc_test_support::temporary_folder();
    let progress = dir.path().join("progress");
    run(target, &["--seed", "1", "--seconds", SECONDS, "--progress", &progress.display().to_string()], dir.path());
    run(target, &["--hostile", HOSTILE_SIZE], dir.path());
}

fn run(target: &str, arguments: &[&str], dir: &Path) {
    let progress = dir.join("progress");
    let output = Command::new(env!("CARGO_BIN_EXE_byoc-fuzz"))
        .arg(target)
        .args(arguments)
        // Regions run on guarded copies, so that out-of-bounds writes are detected without a sanitizer.
        .env("BYOC_CHECK_REGIONS", "1")
        .env("BYOC_LOG", "off")
        .env("BYOC_CACHE_DIR", dir)
        .output()
        .expect("cannot start the driver");
    if output.status.success() {
        return;
    }
    let output_text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let index = std::fs::read(&progress).ok().and_then(|bytes| Some(u64::from_le_bytes(bytes.try_into().ok()?)));
    let reproduction = match (output.status.signal(), index) {
        (Some(signal), Some(index)) => {
            format!(
                "signal {signal} in execution {index}; reproduce with: byoc-fuzz {target} --seed 1 --only {index} --save FILE"
            )
        }
        _ => format!("{} with {}", output.status, arguments.join(" ")),
    };
    panic!("{target}: {reproduction}\n{output_text}");
}

macro_rules! targets {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            fuzz(stringify!($name));
        })*

        #[test]
        fn every_target_is_tested() {
            let tested_names = [$(stringify!($name)),*];
            let names: Vec<&str> = byoc_fuzz::TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(tested_names, names[..]);
            let root = byoc_test_support::workspace().join("fuzz");
            for name in names {
                let file = root.join("fuzz_targets").join(format!("{name}.rs"));
                assert!(file.is_file(), "expected the file {}, found none", file.display());
            }
        }
    };
}

targets! {
    onnx onnx_graph relay artifact blob_dnnl blob_nuc_fpga blob_vta blob_template blob_ccompiler blob_elementwise npy npz image patterns
    boundary_json safetensors vta_stream
}

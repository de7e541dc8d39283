//! Tests drivers: the sample driver is bit-exact with the software device, and invalid files are rejected before they
//! are mapped.

use super::harness::int8s;
use crate::device::product;
use crate::driver::{DRIVERS, Driver};
use crate::epilogue::Target;
use crate::layer::{Conv, Dense, Layer};
use byoc_test_support::plugin::services;
use byoc_test_support::random::Random;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// Builds a shared library from a C file.
fn build(dir: &Path, source: &Path) -> PathBuf {
    let library = dir.join("libdriver.so");
    let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include");
    let arguments = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", include, "-o"];
    let status = Command::new("cc").args(arguments).arg(&library).arg(source).status().unwrap();
    assert!(status.success());
    library
}

fn sample(dir: &Path) -> PathBuf {
    build(dir, Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/samples/driver.c")))
}

#[test]
fn sample_driver_equals_software_device() {
    let dir = tempfile::tempdir().unwrap();
    let driver: Arc<Driver> = DRIVERS.open(&sample(dir.path())).unwrap_or_else(|e| panic!("{e}"));
    let conv = Conv {
        batch: 2,
        channels: 6,
        height: 7,
        width: 9,
        kernels: 8,
        group: 2,
        pad_height: 1,
        pad_width: 2,
        kernel_height: 3,
        kernel_width: 4,
        stride_height: 2,
        stride_width: 1,
    };
    let layers = [Layer::Conv2d(conv), Layer::Dense(Dense { batch: 3, in_features: 70, out_features: 5 })];
    let services = services(2);
    for layer in layers {
        let [feature, kernel, out] = layer.elements().map(|count| count as usize);
        let mut random = Random::new(5);
        let (feature, kernel) = (int8s(&mut random, feature), int8s(&mut random, kernel));
        let (mut simulated_results, mut device_results) = (vec![0i32; out], vec![1i32; out]);
        // SAFETY: `Layer::elements` determines the sizes of the vectors, which nothing else accesses.
        unsafe {
            product::run(&services, &layer, &feature, &kernel, Target(simulated_results.as_mut_ptr().cast())).unwrap();
            driver.run(&layer, feature.as_ptr(), kernel.as_ptr(), device_results.as_mut_ptr());
        }
        assert!(simulated_results == device_results, "{layer:?}");
    }
}

#[test]
fn header_compiles_as_cpp() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("driver.cpp");
    std::fs::write(&file, "#include \"nuc_fpga.h\"\nint main() { return nuc_fpga_dense == nullptr; }\n").unwrap();
    let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include");
    let output = Command::new("c++").args(["-Wall", "-Wextra", "-fsyntax-only", include]).arg(&file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn rejects_files_that_are_not_drivers() {
    let dir = tempfile::tempdir().unwrap();
    let error_message = |path: &Path| DRIVERS.open(path).err().expect("expected an error").message.to_string();
    let file = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let missing_path = dir.path().join("missing.so");
    assert!(
        error_message(&missing_path).contains("missing.so (NUC_FPGA_DRIVER): cannot be read: No such file"),
        "{}",
        error_message(&missing_path)
    );
    for (name, bytes) in [("text.so", &b"this is no library\n"[..]), ("empty.so", b"")] {
        let path = file(name, bytes);
        assert!(
            error_message(&path)
                .ends_with(&format!("{name} (NUC_FPGA_DRIVER): expected a shared library, found another kind of file")),
            "{}",
            error_message(&path)
        );
    }
    assert!(error_message(dir.path()).contains("cannot be read"), "{}", error_message(dir.path()));
    let valid_bytes = std::fs::read(sample(dir.path())).unwrap();
    for length in [64, 100, valid_bytes.len() / 4, valid_bytes.len() / 2] {
        let path = file("truncated.so", &valid_bytes[..length]);
        let error_message = error_message(&path);
        assert!(
            error_message.ends_with("found a truncated one") || error_message.ends_with("found another kind of file"),
            "{length}: {error_message}"
        );
    }
    let mut foreign_bytes = valid_bytes.clone();
    foreign_bytes[18] = 0x28;
    assert!(
        error_message(&file("arm.so", &foreign_bytes))
            .ends_with("expected a library for this machine, found one for another machine")
    );
    let half_driver = file("half.c", b"void nuc_fpga_conv2d(void);\nvoid nuc_fpga_conv2d(void) {}\n");
    std::fs::create_dir(dir.path().join("half")).unwrap();
    let half_driver = build(&dir.path().join("half"), &half_driver);
    let message = error_message(&half_driver);
    assert!(message.ends_with("missing functions: nuc_fpga_dense"), "{message}");
    let empty_driver = file("none.c", b"int other;\n");
    std::fs::create_dir(dir.path().join("none")).unwrap();
    let empty_driver = build(&dir.path().join("none"), &empty_driver);
    assert!(
        error_message(&empty_driver).ends_with("missing functions: nuc_fpga_conv2d, nuc_fpga_dense"),
        "{}",
        error_message(&empty_driver)
    );
    let error = DRIVERS.open(&empty_driver).err().unwrap();
    assert!(error.hint.contains("or unset it to use the software device"), "{}", error.hint);
}

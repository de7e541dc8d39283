//! Tests of non-plugin files and unusable plugins: each is rejected with a one-line reason, and the process continues.

use crate::common::TestHost;
use byoc_plugin_api::{Services, host};
use byoc_test_support::random::Random;
use host::{Rejection, code};
use std::path::{Path, PathBuf};
use std::process::Command;

fn reject(path: &Path) -> Rejection {
    let rejection = host::load(path, &Services::new(TestHost::default())).err();
    let rejection = rejection.unwrap_or_else(|| panic!("expected a rejection of {path:?}, found a loaded plugin"));
    assert!(!rejection.reason.is_empty() && !rejection.reason.contains('\n'), "{:?}", rejection.reason);
    rejection
}

fn reject_bytes(bytes: &[u8]) -> Rejection {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("libbyoc_bad.so");
    std::fs::write(&path, bytes).unwrap();
    reject(&path)
}

fn template() -> Vec<u8> {
    std::fs::read(byoc_test_support::plugin("template")).unwrap()
}

#[test]
fn rejects_files_that_are_not_libraries() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(reject(&dir.path().join("gone.so")).code, code::UNREADABLE);
    assert_eq!(reject(dir.path()).reason, "expected a regular file, found a directory or a special file");
    for (bytes, reason) in [
        (&b""[..], "expected a shared library, found an empty file"),
        (b"hello, I am text\n", "expected a shared library, found a text file"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\0", "expected a shared library, found a file without an ELF header"),
    ] {
        let rejection = reject_bytes(bytes);
        assert_eq!((rejection.code, rejection.reason.as_str()), (code::NOT_A_LIBRARY, reason));
    }
}

#[test]
fn names_libraries_of_other_systems() {
    let mut pe = [0u8; 0x90];
    pe[..2].copy_from_slice(b"MZ");
    pe[0x3c] = 0x80;
    pe[0x80..0x84].copy_from_slice(b"PE\0\0");
    for (bytes, system) in [
        // Headers of a little-endian 64-bit library and a big-endian 32-bit library.
        (&b"\xcf\xfa\xed\xfe\x0c\0\0\x01\0\0\0\0\x06\0\0\0"[..], "a Mach-O library for macOS"),
        (b"\xfe\xed\xfa\xce\0\0\0\x12", "a Mach-O library for macOS"),
        (b"\xca\xfe\xba\xbe\0\0\0\x02\x01\0\0\x07", "a universal Mach-O library for macOS"),
        (&pe, "a PE library for Windows"),
    ] {
        let rejection = reject_bytes(bytes);
        assert_eq!(rejection.reason, format!("expected an ELF library, found {system}"));
        assert_eq!(rejection.code, code::NOT_A_LIBRARY);
        assert!(rejection.hint.unwrap().contains("-unknown-linux-gnu"));
    }
    // A Java class file, an MS-DOS executable and truncated headers are not recognized as libraries.
    pe[0x3c..0x40].copy_from_slice(&[0xff; 4]);
    for bytes in [&b"\xca\xfe\xba\xbe\0\0\0\x34\0\x10"[..], &pe, b"\xca\xfe\xba\xbe\0", b"MZ\0\0"] {
        let rejection = reject_bytes(bytes);
        assert_eq!(rejection.reason, "expected a shared library, found a file without an ELF header");
    }
}

#[test]
fn rejects_truncated_libraries() {
    let library_bytes = template();
    let mut lengths: Vec<usize> = (1..64).collect();
    lengths.extend([64, 65, 100, 120, 500, 4096]);
    lengths.extend((1..40).map(|numerator| library_bytes.len() * numerator / 40));
    lengths.push(library_bytes.len() - 1);
    for length in lengths {
        let rejection = reject_bytes(&library_bytes[..length]);
        assert_eq!(rejection.code, code::TRUNCATED, "{length} bytes: {rejection}");
    }
    let rejection = reject_bytes(&library_bytes[..library_bytes.len() / 2]);
    assert!(rejection.reason.starts_with("truncated: expected at least "), "{rejection}");
    assert!(rejection.reason.ends_with(&format!(" bytes, found {}", library_bytes.len() / 2)), "{rejection}");
}

#[test]
fn rejects_libraries_for_other_machines() {
    let mut bytes = template();
    bytes[18] = 0xf7; // e_machine: BPF
    bytes[19] = 0;
    let rejection = reject_bytes(&bytes);
    assert_eq!(rejection.code, code::OTHER_MACHINE);
    assert!(rejection.reason.starts_with("expected a library for ELF machine "), "{rejection}");

    let mut bytes = template();
    bytes[4] = 1; // 32-bit
    assert_eq!(reject_bytes(&bytes).reason, "expected ELF class 2 (64-bit), found class 1");
}

#[test]
fn inspecting_a_damaged_library_does_not_crash() {
    let library_bytes = std::fs::read(byoc_test_support::test_plugin("no_entry")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("libbyoc_bad.so");
    let mut random = Random::new(1);
    for _ in 0..500 {
        let mut bytes = library_bytes.clone();
        // Only bits of the headers and of the symbol tables that follow them are flipped.
        let index = random.below(bytes.len().min(4096));
        bytes[index] ^= 1 << random.below(8);
        std::fs::write(&path, &bytes).unwrap();
        // The library is only inspected: with a flipped bit, it may crash when it is loaded.
        let rejection = host::sniff(&path).expect_err("expected a rejection");
        assert!(!rejection.reason.contains('\n'));
    }
}

#[test]
fn rejects_a_program() {
    let rejection = reject_bytes(&std::fs::read(std::env::current_exe().unwrap()).unwrap());
    assert_eq!(rejection.code, code::NO_ENTRY);
}

#[test]
fn rejects_library_without_entry() {
    let rejection = reject(&byoc_test_support::test_plugin("no_entry"));
    assert_eq!(
        (rejection.code, rejection.reason.as_str()),
        (code::NO_ENTRY, "expected a byoc plugin, found a shared library without an entry symbol")
    );
}

/// Builds a shared library from C.
fn compile_c(dir: &Path, name: &str, code: &str, arguments: &[&str]) -> PathBuf {
    let (source, library) = (dir.join(format!("{name}.c")), dir.join(format!("lib{name}.so")));
    std::fs::write(&source, code).unwrap();
    let status = Command::new("cc")
        .current_dir(dir)
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .args(arguments)
        .status()
        .expect("failed to run the compiler");
    assert!(status.success());
    library
}

const ENTRY: &str = "char _1as_0lib_1header_0root_bmodule_bloader[512] = \"nothing of the kind\";";

#[test]
fn rejects_library_with_unrelated_entry_symbol() {
    let dir = tempfile::tempdir().unwrap();
    let rejection = reject(&compile_c(dir.path(), "other", ENTRY, &[]));
    assert_eq!(
        (rejection.code, rejection.reason.as_str()),
        (code::NO_ENTRY, "expected the entry symbol of a byoc plugin, found an unrelated symbol of the same name")
    );
}

#[test]
fn rejects_library_with_missing_dependency() {
    let dir = tempfile::tempdir().unwrap();
    let dependency = compile_c(dir.path(), "gone", "int gone(void) { return 1; }", &[]);
    let code = format!("{ENTRY} int gone(void); int here(void) {{ return gone(); }}");
    let library = compile_c(dir.path(), "needs", &code, &["-L.", "-lgone"]);
    std::fs::remove_file(dependency).unwrap();
    let rejection = reject(&library);
    assert_eq!(rejection.code, code::DLOPEN);
    let reason = &rejection.reason;
    assert!(reason.starts_with("the dynamic loader failed: libgone.so: cannot open shared object"), "{reason}");
}

#[test]
fn rejects_library_with_undefined_symbol() {
    let dir = tempfile::tempdir().unwrap();
    let code = format!("{ENTRY} int gone(void); int here(void) {{ return gone(); }}");
    let rejection = reject(&compile_c(dir.path(), "needs", &code, &[]));
    assert_eq!(
        (rejection.code, rejection.reason.as_str()),
        (code::DLOPEN, "the dynamic loader failed: undefined symbol: gone")
    );
}

#[test]
fn rejects_plugin_of_another_version() {
    let rejection = reject(&byoc_test_support::test_plugin("other_version"));
    assert_eq!(rejection.code, code::VERSION);
    let expected =
        concat!("expected a plugin for byoc-plugin-api ", env!("CARGO_PKG_VERSION"), ", found one for 9.0.0");
    assert_eq!(rejection.reason, expected);
}

#[test]
fn rejects_plugin_of_another_layout() {
    let rejection = reject(&byoc_test_support::test_plugin("other_layout"));
    assert_eq!(rejection.code, code::LAYOUT);
    let details = [
        "PluginModule.info.result: mismatched type: expected Info, found RString",
        "PluginModule.init.argument: mismatched type: expected InitArguments, found u32",
        "PluginModule.init.result: mismatched type: expected RResult, found u32",
    ];
    assert_eq!(rejection.details, details);
    assert_eq!(rejection.reason, format!("the layout of the boundary differs: {} (and 2 more)", details[0]));
}

#[test]
fn rejects_plugin_whose_init_fails() {
    let rejection = reject(&byoc_test_support::test_plugin("init_error"));
    assert_eq!(rejection.code, code::INIT);
    assert_eq!(rejection.reason, "plugin init_error: init: expected a connected device, found none");
    assert_eq!(rejection.hint.as_deref(), Some("connect the device"));
}

#[test]
fn rejects_plugin_whose_init_panics() {
    let rejection = reject(&byoc_test_support::test_plugin("init_panic"));
    assert_eq!(rejection.code, code::INIT_PANIC);
    let reason = &rejection.reason;
    assert!(
        reason.starts_with("plugin init_panic: init: panicked at tests/plugins/examples/init_panic.rs:4:"),
        "{reason}"
    );
    assert!(reason.ends_with(": expected a device, found none"), "{reason}");
}

#[test]
fn rejects_plugin_that_registers_a_name_twice() {
    let rejection = reject(&byoc_test_support::test_plugin("twice"));
    assert_eq!(
        (rejection.code, rejection.reason.as_str()),
        (code::BAD_REGISTRATION, "relay.ext.twice is registered twice")
    );
}

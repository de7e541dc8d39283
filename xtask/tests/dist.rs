//! Tests the release archives written by `cargo xtask dist`: unpacks each archive, and runs its executables with an
//! empty environment in a different directory.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Unpacks an archive below a directory, and returns its only top-level directory.
fn unpack(product: &str, dir: &Path) -> PathBuf {
    let dist = std::env::var_os("BYOC_DIST").map_or_else(|| root().join("target/dist"), PathBuf::from);
    let start = format!("{product}-{}-", env!("CARGO_PKG_VERSION"));
    let files: Vec<PathBuf> = std::fs::read_dir(&dist).unwrap().map(|entry| entry.unwrap().path()).collect();
    let is_archive = |path: &&PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.starts_with(&start) && name.ends_with(".tar.xz")
    };
    let archives: Vec<&PathBuf> = files.iter().filter(is_archive).collect();
    let [archive] = archives[..] else {
        panic!("{}: expected one archive {start}*, found {}", dist.display(), archives.len())
    };
    let listing = successful_output(Command::new("tar").args(["-tvJf"]).arg(archive).args([
        "--utc",
        "--full-time",
        "--numeric-owner",
    ]));
    let names: Vec<&str> = listing
        .lines()
        .filter_map(|line| line.split_once(" 0/0 ")?.1.split_once(" 1980-01-01 00:00:00 "))
        .map(|(_, name)| name)
        .collect();
    assert!(
        names.len() == listing.lines().count() && names.is_sorted(),
        "expected sorted entries with fixed owners and times, found:\n{listing}"
    );
    successful_output(Command::new("tar").args(["-xJf"]).arg(archive).arg("-C").arg(dir));
    let name = archive.file_name().unwrap().to_str().unwrap().strip_suffix(".tar.xz").unwrap();
    let archive_dir = dir.join(name);
    for file in ["licenses/LICENSE-MIT", "licenses/LICENSE-APACHE", "licenses/THIRD-PARTY.txt", "CHANGELOG.md"] {
        assert!(archive_dir.join(file).is_file(), "{product}: expected {file}, found none");
    }
    successful_output(
        Command::new("sha256sum").args(["--check", "--strict", "--quiet", "SHA256SUMS"]).current_dir(&archive_dir),
    );
    archive_dir
}

#[track_caller]
fn successful_output(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&stdout).into_owned(), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}\n{out}{err}");
    out
}

/// Returns the symbol and debug sections of an ELF file, which stripping removes.
fn symbols(file: &Path) -> String {
    successful_output(Command::new("readelf").args(["--sections", "--wide"]).arg(file))
        .lines()
        .filter(|line| line.contains(".symtab") || line.contains(".debug_info"))
        .collect()
}

#[test]
#[ignore = "run by cargo xtask dist, which writes the archives"]
fn command_line_runs_from_its_archive() {
    let (dir, other_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let archive_dir = unpack("byoc", dir.path());
    for file in ["byoc", "byoc-run", "plugins/libbyoc_ccompiler.so"] {
        assert_eq!(symbols(&archive_dir.join(file)), "", "{file}");
    }
    assert!(archive_dir.join("include/byoc_plugin.h").is_file());
    let byoc = |args: &[&str]| {
        successful_output(Command::new(archive_dir.join("byoc")).args(args).env_clear().current_dir(other_dir.path()))
    };
    let plugins = byoc(&["plugins", "list", "--json"]);
    for line in plugins.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["status"], "loaded", "{line}");
    }
    assert_eq!(plugins.lines().count(), 6, "{plugins}");
    let model = root().join("tests/digits/digits.onnx").display().to_string();
    let sample = root().join("tests/digits/samples/7.png").display().to_string();
    let labels = root().join("tests/digits/labels.txt").display().to_string();
    let flags = ["--dim", "batch=1", "--backend", "ccompiler", "--require-offload=0.9", "--no-cache"];
    let is_classified = |out: &str| out.lines().nth(1).unwrap().trim_start().starts_with("1  7 ");
    let output = byoc(&[&["run", &model, "--image", &sample, "--labels", &labels], &flags[..]].concat());
    assert!(is_classified(&output), "{output}");
    let explanation = byoc(&[&["explain", &model], &flags[..]].concat());
    assert!(explanation.contains("ccompiler"), "{explanation}");
    let artifact = other_dir.path().join("digits.byoc").display().to_string();
    byoc(&[&["compile", &model, "-o", &artifact], &flags[..]].concat());
    assert!(is_classified(&byoc(&["run", &artifact, "--image", &sample, "--labels", &labels])));
    // The archive contains the bundle runner, and the licenses that are copied into bundles.
    let bundle = other_dir.path().join("bundle");
    byoc(&["bundle", &artifact, "-o", &bundle.display().to_string()]);
    assert!(bundle.join("licenses/THIRD-PARTY.txt").is_file());
    let description = successful_output(Command::new(bundle.join("run")).arg("--describe").env_clear());
    assert!(description.contains("image"), "{description}");
}

#[test]
#[ignore = "run by cargo xtask dist, which writes the archives"]
fn c_program_builds_against_the_library_of_its_archive() {
    let dir = tempfile::tempdir().unwrap();
    let archive_dir = unpack("libbyoc", dir.path());
    let program = dir.path().join("digits");
    let description = std::fs::read_to_string(archive_dir.join("lib/pkgconfig/byoc.pc")).unwrap();
    assert!(description.contains("prefix=${pcfiledir}/../..\n"), "{description}");
    let lib = archive_dir.join("lib");
    let mut compile = Command::new("cc");
    compile.args(["-O1", "-Wall", "-Werror", "-I"]).arg(archive_dir.join("include")).arg("-o").arg(&program);
    compile.arg(root().join("host/capi/examples/digits.c")).arg("-L").arg(&lib).arg("-lbyoc");
    successful_output(compile.arg(format!("-Wl,-rpath,{}", lib.display())));
    let picture = dir.path().join("picture");
    std::fs::write(&picture, "0.5 ".repeat(64)).unwrap();
    let mut run = Command::new(&program);
    run.arg(root().join("tests/digits/digits.onnx")).env_clear().stdin(std::fs::File::open(&picture).unwrap());
    let digit: u32 = successful_output(&mut run).trim().parse().unwrap();
    assert!(digit < 10);
}

#[test]
#[ignore = "run by cargo xtask dist, which writes the archives"]
fn server_starts_from_its_archive() {
    let dir = tempfile::tempdir().unwrap();
    let archive_dir = unpack("byoc-serve", dir.path());
    let help = successful_output(Command::new(archive_dir.join("byoc-serve")).arg("--help").env_clear());
    assert!(help.contains("--http"), "{help}");
}

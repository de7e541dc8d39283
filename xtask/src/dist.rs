//! Release archives in `target/dist`: the command-line tool with the plugins, the C library, and the server.
//!
//! Archives are reproducible: source paths are identical in every checkout, entries are sorted, and their timestamps
//! and owners are fixed.

use crate::process::{self, cargo, release_flags, root, target_dir};
use crate::wheel::{PLUGINS, place_plugins};
use crate::{capi, licenses};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Target triple, and target name in archive names.
const TARGET: (&str, &str) = if cfg!(target_arch = "aarch64") {
    ("aarch64-unknown-linux-gnu", "aarch64-linux")
} else {
    ("x86_64-unknown-linux-gnu", "x86_64-linux")
};

/// Script that packs directories. Its arguments are the archive directory, then the directories to pack. All timestamps
/// are 1980-01-01, as in artifacts. The script lists digests in each directory and in the archive directory.
const PACK: &str = r#"
import hashlib, io, lzma, os, sys, tarfile
def sums(folder, names):
    digest = lambda name: hashlib.sha256(open(os.path.join(folder, name), "rb").read()).hexdigest()
    with open(os.path.join(folder, "SHA256SUMS"), "w") as out:
        out.writelines(f"{digest(name)}  {name}\n" for name in sorted(names))
def files(folder):
    for path, _, names in os.walk(folder):
        for name in names:
            yield os.path.relpath(os.path.join(path, name), folder)
target, folders = sys.argv[1], sys.argv[2:]
archives = []
for folder in folders:
    sums(folder, list(files(folder)))
    top = os.path.basename(folder)
    archives.append(top + ".tar.xz")
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted(files(folder)):
            path = os.path.join(folder, name)
            entry = tarfile.TarInfo(f"{top}/{name}")
            entry.size, entry.mtime = os.path.getsize(path), 315532800
            entry.mode = 0o755 if os.access(path, os.X_OK) else 0o644
            with open(path, "rb") as content:
                tar.addfile(entry, content)
    with open(os.path.join(target, archives[-1]), "wb") as out:
        out.write(lzma.compress(raw.getvalue(), preset=9 | lzma.PRESET_EXTREME))
sums(target, archives)
"#;

/// File name of the list of third-party crates.
const CRATES: &str = "THIRD-PARTY.txt";

/// Builds and tests the archives.
pub fn run() -> Result<(), String> {
    let mut build = cargo(&["build", "--profile", "dist"]);
    let programs = ["byoc-cli", "byoc-bundle", "byoc-serve", "byoc-capi"];
    for package in programs.into_iter().chain(PLUGINS.map(|(package, _)| package)) {
        build.args(["--package", package]);
    }
    process::run(build.env("RUSTFLAGS", release_flags()?))?;
    // The profile directory is also the archive directory.
    let dist = target_dir().join("dist");
    let build_dir = dist.clone();
    let staging_dir = dist.join("archives");
    let _ = fs::remove_dir_all(&staging_dir);
    let name = |product: &str| format!("{product}-{}-{}", env!("CARGO_PKG_VERSION"), TARGET.1);
    let dirs = [name("byoc"), name("libbyoc"), name("byoc-serve")].map(|name| staging_dir.join(name));
    let [byoc, library, server] = &dirs;
    for program in ["byoc", "byoc-run"] {
        copy(&build_dir.join(program), &byoc.join(program))?;
    }
    copy(&build_dir.join("byoc-serve"), &server.join("byoc-serve"))?;
    for dir in [byoc, server] {
        place_plugins(&build_dir, &dir.join("plugins"))?;
    }
    for header in ["byoc_plugin.h", "byoc_command.h", "byoc_device.h", "byoc_json.h"] {
        copy(&root().join("plugin-api/include").join(header), &byoc.join("include").join(header))?;
    }
    capi::place(&build_dir, library, "${pcfiledir}/../..")?;
    let plugins = PLUGINS.map(|(package, _)| package);
    for (dir, programs, files) in [
        (byoc, &["byoc-cli", "byoc-bundle"][..], &plugins[..]),
        (library, &["byoc-capi"], &[]),
        (server, &["byoc-serve"], &plugins),
    ] {
        let licenses = dir.join("licenses");
        for file in ["LICENSE-APACHE", "LICENSE-MIT"] {
            copy(&root().join(file), &licenses.join(file))?;
        }
        let crates = licenses::third_party(&[programs, files].concat(), TARGET.0)?;
        write(&licenses.join(CRATES), &crates)?;
        copy(&root().join("CHANGELOG.md"), &dir.join("CHANGELOG.md"))?;
    }
    process::run(Command::new("python3").args(["-c", PACK]).arg(&dist).args(&dirs))?;
    for dir in &dirs {
        let archive = PathBuf::from(format!("{}.tar.xz", dist.join(file_name(dir)).display()));
        let size = fs::metadata(&archive).map_err(|e| format!("{}: {e}", archive.display()))?.len();
        println!("{} {:.1} MB", archive.display(), size as f64 / 1e6);
    }
    let mut test =
        cargo(&["test", "--package", "xtask", "--test", "repository", "dist::", "--", "--ignored", "--nocapture"]);
    process::run(test.env("BYOC_DIST", &dist))
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn copy(source: &Path, target: &Path) -> Result<(), String> {
    let result = fs::create_dir_all(target.parent().unwrap_or(target)).and_then(|()| fs::copy(source, target));
    result.map(drop).map_err(|e| format!("cannot copy {} to {}: {e}", source.display(), target.display()))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))
}

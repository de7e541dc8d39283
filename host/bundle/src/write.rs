//! Assembly of a bundle: all files are collected in a temporary directory next to the output directory. The temporary
//! directory then replaces the output directory.

use crate::contents::{self, Description, FORMAT, Library, Plugin};
use crate::elf::{self, Elf};
use crate::required::{RequiredPlugin, Requirements, mapped_libraries, refusal, required_files};
use crate::system::{Packages, Search};
use crate::verify::Bundle;
use byoc_files::directory::PendingDirectory;
use byoc_files::{cannot_write, open_regular};
use byoc_ir::diag::{Diagnostic, codes};
use byoc_runtime::artifact;
use byoc_runtime::compiled::Compiled;
use byoc_runtime::{Failure, Model, Session};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::{Error, Write};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

/// File names and texts of byoc's own licenses.
const OWN_LICENSES: [(&str, &[u8]); 2] = [
    ("LICENSE-APACHE", include_bytes!("../../../LICENSE-APACHE")),
    ("LICENSE-MIT", include_bytes!("../../../LICENSE-MIT")),
];

/// Parameters of bundle assembly.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// Session with the plugins; its cache is not used.
    pub session: &'a Session,
    /// Path of the artifact.
    pub artifact: &'a Path,
    /// Path of the executable `byoc-run`.
    pub runner: &'a Path,
    /// Directory with the licenses of the components in the runner and in the plugins, if any.
    pub licenses: Option<&'a Path>,
    /// Directory to write: new, empty, or an earlier bundle.
    pub output: &'a Path,
    /// True if the directory is replaced whatever it contains.
    pub is_forced: bool,
}

/// Contents and size of a written bundle.
#[derive(Clone, Debug)]
pub struct Report {
    /// Description of the bundle's contents.
    pub description: Description,
    /// Number of files.
    pub files: usize,
    /// Total size of all files in bytes.
    pub bytes: u64,
}

/// Writes a bundle.
///
/// # Errors
/// E0709 if the artifact cannot be bundled, E0708 if the runner is unsuitable, E0513 if the directory cannot be
/// written, and the errors of opening the artifact. On error, the output directory is unchanged.
pub fn write(request: &Request<'_>) -> Result<Report, Failure> {
    let Request { session, artifact, runner, output, is_forced, .. } = *request;
    let check = |dir: &Path| if is_forced { Ok(()) } else { check_replaceable(dir) };
    let pending = PendingDirectory::begin(output, check).map_err(|refusal| match (&refusal.help, is_forced) {
        (Some(help), false) => {
            let help = format!("{help}, or replace everything in it with --force");
            refusal.help(help)
        }
        _ => refusal,
    })?;
    let runner_elf = program(runner)?;
    let compiled = artifact::open(artifact)?.into_compiled();
    let requirements = required_files(session, compiled.all_regions())?;
    let cpu_features: BTreeSet<String> =
        compiled.all_regions().flat_map(|region| region.cpu_features.clone()).collect();
    let mut staging = Staging { root: pending.path().to_owned(), files: BTreeMap::new() };
    staging.copy(artifact, contents::MODEL, 0o644)?;
    staging.copy(runner, contents::RUNNER, 0o755)?;
    let regions = staging.regions(&compiled, &requirements)?;
    let plugins = staging.plugins(&requirements)?;
    let libraries_before = mapped_libraries();
    check_loading(session, compiled, &staging.root, &regions)?;
    let loaded_libraries: Vec<PathBuf> = mapped_libraries().difference(&libraries_before).cloned().collect();
    let interpreter = runner_elf.interpreter.clone().unwrap_or_default();
    let library_files = staging.libraries(&interpreter, &requirements, &regions)?;
    check_opened(&loaded_libraries, &requirements, &library_files, &staging.root)?;
    let libraries = staging.licenses(request, &library_files, &requirements)?;
    let loader = format!("{}/{}", contents::LIBRARIES, file_name(Path::new(&interpreter)));
    staging.create_loader_dir(&interpreter)?;
    staging.add(contents::START, start_script(&loader).as_bytes(), 0o755)?;
    let description = Description {
        format: FORMAT,
        producer: concat!("byoc ", env!("CARGO_PKG_VERSION")).into(),
        processor: std::env::consts::ARCH.into(),
        cpu_features: cpu_features.into_iter().collect(),
        loader,
        plugins,
        regions,
        libraries,
    };
    let text = serde_json::to_string_pretty(&description).map_err(|error| refusal(error.to_string()))? + "\n";
    staging.add(contents::DESCRIPTION, text.as_bytes(), 0o644)?;
    let digests = staging.files.iter().map(|(path, (digest, _))| (path.as_str(), *digest));
    let digests = contents::checksums(digests);
    staging.add(contents::CHECKSUMS, digests.as_bytes(), 0o644)?;
    pending.commit()?;
    let bytes = staging.files.values().map(|(_, bytes)| bytes).sum();
    Ok(Report { description, files: staging.files.len(), bytes })
}

/// Checks that everything in a directory was written by this command, and may be deleted.
///
/// # Errors
/// If the directory holds anything else; the error describes it.
fn check_replaceable(dir: &Path) -> Result<(), String> {
    let bundle = Bundle::open(dir).map_err(|error| format!("no intact bundle: {}", error.message))?;
    match bundle.foreign_entry() {
        Ok(None) => Ok(()),
        Ok(Some(path)) => Err(format!("a bundle with another file, {}", path.display())),
        Err(error) => Err(format!("a bundle that cannot be listed: {error}")),
    }
}

/// Reads the ELF properties of the runner, which must be a dynamically linked executable.
fn program(runner: &Path) -> Result<Elf, Diagnostic> {
    let failure = |reason: String| {
        Diagnostic::error(codes::artifacts::NO_RUNNER, format!("{}: {reason}", runner.display()))
            .help("pass the byoc-run executable of this byoc release with --runner")
    };
    let elf = elf::read(runner).map_err(|error| failure(error.to_string()))?;
    let elf = elf.ok_or_else(|| failure("expected an ELF executable, found a different file format".into()))?;
    match &elf.interpreter {
        Some(path) if contents::is_inside(path.trim_start_matches('/')) => Ok(elf),
        _ => Err(failure("expected a dynamically linked executable, found no dynamic loader".into())),
    }
}

/// Loads every region from the files of the bundle, in the same way as the runner.
///
/// # Errors
/// E0709 if a region cannot be loaded, with the reasons for all such regions.
fn check_loading(
    session: &Session,
    mut compiled: Compiled,
    root: &Path,
    regions: &[Option<String>],
) -> Result<(), Failure> {
    for (region, file) in compiled.all_regions_mut().zip(regions) {
        region.library = file.as_ref().map(|file| root.join(file));
    }
    let (_model, warnings) = Model::load(session, compiled, None)?;
    let Some(first_warning) = warnings.first() else { return Ok(()) };
    let mut refusal =
        refusal(format!("the artifact does not run unchanged on this machine: {}", first_warning.message));
    refusal.notes = warnings.iter().flat_map(|warning| warning.notes.clone()).collect();
    refusal.notes.extend(warnings.iter().skip(1).map(|warning| warning.message.clone()));
    let help = first_warning.help.clone();
    refusal.help =
        Some(help.unwrap_or_else(|| "recompile the model on this machine, and bundle the new artifact".into()));
    Err(refusal.into())
}

/// Checks that plugins opened only libraries that are part of the bundle or no longer exist.
fn check_opened(
    loaded_libraries: &[PathBuf],
    requirements: &Requirements,
    libraries: &BTreeMap<String, PathBuf>,
    root: &Path,
) -> Result<(), Diagnostic> {
    let root = root.canonicalize().unwrap_or_else(|_| root.to_owned());
    let library_paths: BTreeSet<PathBuf> = libraries
        .values()
        .chain(requirements.plugins.iter().flat_map(|p| p.files.iter().map(|file| &file.path).chain([&p.path])))
        .filter_map(|path| path.canonicalize().ok())
        .collect();
    let is_known = |path: &PathBuf| library_paths.contains(path) || path.starts_with(&root) || !path.exists();
    match loaded_libraries.iter().find(|path| !is_known(path)) {
        None => Ok(()),
        Some(path) => Err(refusal(format!("a plugin opened {}, but does not list it among its files", path.display()))
            .note("a loader lists its files in the response to the query byoc.files.1")
            .help("ask the plugin author to add this file to the response")),
    }
}

fn file_name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

/// Returns the shell script that starts the runner.
fn start_script(loader: &str) -> String {
    format!(
        "#!/bin/sh
# Runs the model of this folder with the C library of this folder. In a root folder without a shell: /{runner}
here=${{0%/*}}
[ \"$here\" != \"$0\" ] || here=.
here=$(CDPATH= cd -- \"$here\" && pwd -P) || exit 1
unset LD_PRELOAD LD_LIBRARY_PATH
exec \"$here/{loader}\" --inhibit-cache --library-path \"$here/{libraries}\" \"$here/{runner}\" \"$@\"
",
        runner = contents::RUNNER,
        libraries = contents::LIBRARIES,
    )
}

/// Bundle directory under construction.
struct Staging {
    root: PathBuf,
    /// Digest and size of each file, by path.
    files: BTreeMap<String, (blake3::Hash, u64)>,
}

impl Staging {
    /// Adds a file with the given contents.
    fn add(&mut self, path: &str, bytes: &[u8], mode: u32) -> Result<(), Diagnostic> {
        self.create(path, mode, |file| file.write_all(bytes).map(|()| (blake3::hash(bytes), bytes.len() as u64)))
    }

    /// Adds a copy of a file.
    fn copy(&mut self, source: &Path, path: &str, mode: u32) -> Result<(), Diagnostic> {
        let bytes = byoc_files::map_file(source).map_err(|error| refusal(format!("{}: {error}", source.display())))?;
        self.add(path, &bytes, mode)
    }

    fn create(
        &mut self,
        path: &str,
        mode: u32,
        write_contents: impl FnOnce(&mut std::fs::File) -> std::io::Result<(blake3::Hash, u64)>,
    ) -> Result<(), Diagnostic> {
        let target = self.root.join(path);
        let write = || {
            std::fs::create_dir_all(target.parent().unwrap_or(&self.root))?;
            write_contents(&mut OpenOptions::new().write(true).create_new(true).mode(mode).open(&target)?)
        };
        let digest_and_size = write().map_err(|error| cannot_write(&target, &error))?;
        self.files.insert(path.to_owned(), digest_and_size);
        Ok(())
    }

    /// Adds the regions that are shared libraries; returns a path per region, `None` for a region of a different kind.
    fn regions(&mut self, compiled: &Compiled, requirements: &Requirements) -> Result<Vec<Option<String>>, Diagnostic> {
        let mut paths = Vec::with_capacity(requirements.regions.len());
        for (index, (region, library)) in compiled.all_regions().zip(&requirements.regions).enumerate() {
            let Some(library) = library else {
                paths.push(None);
                continue;
            };
            let sanitize = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
            let symbol: String = region.symbol.chars().map(sanitize).take(100).collect();
            let path = format!("{}/{index:03}_{symbol}.so", contents::REGIONS);
            self.add(&path, library, 0o644)?;
            paths.push(Some(path));
        }
        Ok(paths)
    }

    /// Adds the plugins and their files; returns their descriptions.
    fn plugins(&mut self, requirements: &Requirements) -> Result<Vec<Plugin>, Diagnostic> {
        let mut plugins = Vec::new();
        for RequiredPlugin { name, version, path, files } in &requirements.plugins {
            let file = self.copy_to_plugins(path, file_name(path))?;
            let files: Result<_, _> = files.iter().map(|file| self.copy_to_plugins(&file.path, &file.name)).collect();
            plugins.push(Plugin { name: name.clone(), version: version.clone(), file, files: files? });
        }
        Ok(plugins)
    }

    /// Adds a file to the plugin directory. Two plugins may add a file of the same name if the contents are identical.
    fn copy_to_plugins(&mut self, source: &Path, name: &str) -> Result<String, Diagnostic> {
        let path = format!("{}/{name}", contents::PLUGINS);
        let Some((digest, _)) = self.files.get(&path) else {
            self.copy(source, &path, 0o644)?;
            return Ok(path);
        };
        let bytes = byoc_files::map_file(source).map_err(|error| refusal(format!("{}: {error}", source.display())))?;
        if *digest != blake3::hash(&bytes) {
            return Err(refusal(format!("two plugins require different files named {name}"))
                .help("rename one of the plugins, or compile the model without it"));
        }
        Ok(path)
    }

    /// Adds the dynamic loader, and all libraries on which the files of the bundle depend, directly or indirectly.
    /// Returns the original paths by file name.
    fn libraries(
        &mut self,
        interpreter: &str,
        requirements: &Requirements,
        regions: &[Option<String>],
    ) -> Result<BTreeMap<String, PathBuf>, Diagnostic> {
        let search = Search::from_system();
        let mut libraries = BTreeMap::new();
        let mut pending: Vec<PathBuf> = vec![self.root.join(contents::RUNNER)];
        // Search paths may be relative to the location of a file (`$ORIGIN`), so the original files are read.
        pending.extend(
            requirements.plugins.iter().flat_map(|p| p.files.iter().map(|file| &file.path).chain([&p.path])).cloned(),
        );
        pending.extend(regions.iter().flatten().map(|path| self.root.join(path)));
        libraries.insert(file_name(Path::new(interpreter)).to_owned(), PathBuf::from(interpreter));
        while let Some(file) = pending.pop() {
            let read_error = |error: Error| refusal(format!("{}: {error}", file.display()));
            let Some(properties) = elf::read(&file).map_err(read_error)? else { continue };
            for name in &properties.needed {
                let key = file_name(Path::new(name)).to_owned();
                if libraries.contains_key(&key) {
                    continue;
                }
                let library = search.find(name, &file, &properties).ok_or_else(|| {
                    let relative = file.strip_prefix(&self.root).unwrap_or(&file).display();
                    let dirs: Vec<String> = search.dirs.iter().map(|dir| dir.display().to_string()).collect();
                    refusal(format!("cannot find library {name}, on which {relative} depends"))
                        .note(format!("searched {}", dirs.join(", ")))
                        .help("install the library, or add its directory to LD_LIBRARY_PATH")
                })?;
                pending.push(library.clone());
                libraries.insert(key, library);
            }
        }
        for (name, library) in &libraries {
            // The dynamic loader must be executable, because the start script executes it.
            let mode = if Path::new(interpreter) == library { 0o755 } else { 0o644 };
            self.copy(library, &format!("{}/{name}", contents::LIBRARIES), mode)?;
        }
        Ok(libraries)
    }

    /// Creates a symlink from the directory of the runner's dynamic loader to the library directory, so that the runner
    /// can be started directly in a chroot to the bundle.
    fn create_loader_dir(&self, interpreter: &str) -> Result<(), Diagnostic> {
        let dir = Path::new(interpreter.trim_start_matches('/')).parent().unwrap_or(Path::new(""));
        if dir == Path::new(contents::LIBRARIES) {
            return Ok(());
        }
        let link = self.root.join(dir);
        let write = || {
            std::fs::create_dir_all(link.parent().unwrap_or(&self.root))?;
            symlink(contents::library_link(dir), &link)
        };
        write().map_err(|error| cannot_write(&link, &error))
    }

    /// Adds the license files; returns the libraries with their licenses.
    fn licenses(
        &mut self,
        request: &Request<'_>,
        library_files: &BTreeMap<String, PathBuf>,
        requirements: &Requirements,
    ) -> Result<Vec<Library>, Diagnostic> {
        let mut license_names: BTreeSet<String> = BTreeSet::new();
        if let Some(dir) = request.licenses {
            let entries = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
            let mut files: Vec<PathBuf> = entries.filter(|path| open_regular(path).is_ok()).collect();
            files.sort();
            for file in files {
                let name = file_name(&file).to_owned();
                self.copy(&file, &format!("{}/{name}", contents::LICENSES), 0o644)?;
                license_names.insert(name);
            }
        }
        for (name, text) in OWN_LICENSES {
            if license_names.insert(name.to_owned()) {
                self.add(&format!("{}/{name}", contents::LICENSES), text, 0o644)?;
            }
        }
        let mut libraries = Vec::new();
        let packages = Packages::from_system(library_files.values().map(|path| file_name(path)));
        for (name, path) in library_files {
            let mut license = None;
            if let Some(package) = packages.package(path) {
                let copyright = format!("{}.copyright", package.name);
                let path = format!("{}/{copyright}", contents::LICENSES);
                if license_names.insert(copyright) {
                    self.copy(&package.copyright, &path, 0o644)?;
                }
                license = Some(path);
            }
            libraries.push(Library { file: format!("{}/{name}", contents::LIBRARIES), license });
        }
        for file in requirements.plugins.iter().flat_map(|plugin| &plugin.files) {
            let path = format!("{}/{}", contents::PLUGINS, file.name);
            let is_known = libraries.iter().any(|library| library.file == path);
            if !is_known && matches!(elf::read(&file.path), Ok(Some(_))) {
                libraries.push(Library { file: path, license: file.license.clone() });
            }
        }
        libraries.sort_by(|a, b| a.file.cmp(&b.file));
        Ok(libraries)
    }
}

//! System libraries: search in the order of the dynamic loader, and licenses of the installed packages.

use crate::elf::{self, Elf};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Configuration file of the dynamic loader.
const CONFIGURATION: &str = "/etc/ld.so.conf";

/// Maximum number of configuration files that are read, including the first.
const MAX_INCLUDED: usize = 256;

/// Library search path.
#[derive(Clone, Debug)]
pub struct Search {
    /// Directories searched for every library, in order.
    pub dirs: Vec<PathBuf>,
}

impl Search {
    /// Returns the search path of this machine: `LD_LIBRARY_PATH`, the dynamic loader's configuration, and its default
    /// directories.
    pub fn from_system() -> Search {
        let mut dirs = Vec::new();
        if let Some(path) = std::env::var_os("LD_LIBRARY_PATH") {
            dirs.extend(std::env::split_paths(&path).filter(|dir| dir.is_absolute()));
        }
        dirs.extend(configured_dirs(Path::new(CONFIGURATION)));
        let triple = format!("{}-linux-gnu", std::env::consts::ARCH);
        for lib in ["/lib", "/usr/lib"] {
            dirs.extend([Path::new(lib).join(&triple), PathBuf::from(format!("{lib}64")), PathBuf::from(lib)]);
        }
        Search { dirs }
    }

    /// Finds the library `name` required by the file `user`, whose ELF properties are `requester`. Returns the first
    /// file of this name for the same processor architecture.
    pub fn find(&self, name: &str, user: &Path, requester: &Elf) -> Option<PathBuf> {
        let is_compatible =
            |path: &PathBuf| matches!(elf::read(path), Ok(Some(found)) if found.machine == requester.machine);
        if name.contains('/') {
            return Some(PathBuf::from(name)).filter(is_compatible);
        }
        let origin = user.canonicalize().unwrap_or_else(|_| user.to_owned());
        let origin = origin.parent().unwrap_or(Path::new("/")).display().to_string();
        let rpath =
            requester.search_path.iter().map(|dir| dir.replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin));
        rpath.map(PathBuf::from).chain(self.dirs.iter().cloned()).map(|dir| dir.join(name)).find(is_compatible)
    }
}

/// Returns the directories listed in a configuration file and its included files, in order.
fn configured_dirs(file: &Path) -> Vec<PathBuf> {
    let mut dirs = Vec::new();
    let mut pending = vec![file.to_owned()];
    let mut read = 0;
    while let Some(file) = pending.pop() {
        read += 1;
        if read > MAX_INCLUDED {
            break;
        }
        for line in byoc_files::read_text(&file).unwrap_or_default().lines() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if let Some(pattern) = line.strip_prefix("include ") {
                let mut files = included_files(pattern.trim());
                files.reverse();
                pending.extend(files);
            } else if line.starts_with('/') {
                dirs.push(PathBuf::from(line));
            }
        }
    }
    dirs
}

/// Expands a pattern whose only wildcard is one `*` in the file name; returns the matching files, sorted.
fn included_files(pattern: &str) -> Vec<PathBuf> {
    let path = Path::new(pattern);
    let (Some(dir), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Vec::new();
    };
    let Some((prefix, suffix)) = name.split_once('*') else { return vec![path.to_owned()] };
    let matches =
        |name: &str| name.len() >= prefix.len() + suffix.len() && name.starts_with(prefix) && name.ends_with(suffix);
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> =
        entries.filter(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(matches)).collect();
    files.sort();
    files
}

/// System package that contains a library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Package {
    /// Name of the package.
    pub name: String,
    /// Path of the file with the copyright and the licenses of the package.
    pub copyright: PathBuf,
}

/// Installed packages, indexed by the files that they contain; empty on systems without `dpkg`.
#[derive(Debug, Default)]
pub struct Packages {
    /// Listed paths and their packages, by file name.
    by_name: BTreeMap<String, Vec<(String, String)>>,
}

impl Packages {
    /// Searches the package lists of this machine for libraries with the given file names.
    pub fn from_system<'a>(names: impl IntoIterator<Item = &'a str>) -> Packages {
        let mut by_name: BTreeMap<String, Vec<(String, String)>> =
            names.into_iter().map(|name| (name.to_owned(), Vec::new())).collect();
        let entries = std::fs::read_dir("/var/lib/dpkg/info").into_iter().flatten().flatten().map(|entry| entry.path());
        let mut lists: Vec<PathBuf> =
            entries.filter(|path| path.extension().is_some_and(|end| end == "list")).collect();
        lists.sort();
        for list in lists {
            let package = list.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            let package = package.split(':').next().unwrap_or_default().to_owned();
            for line in byoc_files::read_text(&list).unwrap_or_default().lines() {
                let name = line.rsplit('/').next().unwrap_or_default();
                if let Some(paths) = by_name.get_mut(name) {
                    paths.push((line.to_owned(), package.clone()));
                }
            }
        }
        Packages { by_name }
    }

    /// Returns the package that installed the library at this path.
    pub fn package(&self, path: &Path) -> Option<Package> {
        let target = path.canonicalize().ok()?;
        let name = path.file_name()?.to_str()?;
        // The list may contain paths in `/lib`, which is a symlink to `/usr/lib`.
        let is_target =
            |candidate: &str| Path::new(candidate).canonicalize().is_ok_and(|candidate| candidate == target);
        let (_, package) = self.by_name.get(name)?.iter().find(|(candidate, _)| is_target(candidate))?;
        let copyright = Path::new("/usr/share/doc").join(package).join("copyright");
        copyright.is_file().then(|| Package { name: package.clone(), copyright })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_includes_files_by_pattern() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        let main = format!("# libraries\n/first\ninclude {}/*.conf\n", dir.path().display());
        file("ld.so.conf.main", &main);
        file("b.conf", "/third # comment\n");
        file("a.conf", "/second\n");
        file("c.other", "/none\n");
        let dirs = configured_dirs(&dir.path().join("ld.so.conf.main"));
        assert_eq!(dirs, ["/first", "/second", "/third"].map(PathBuf::from));
        // A configuration file that includes itself must not cause an infinite loop.
        file("loop.conf", &format!("include {}/loop.conf\n/x\n", dir.path().display()));
        assert_eq!(configured_dirs(&dir.path().join("loop.conf")).len(), MAX_INCLUDED);
    }

    #[test]
    fn finds_the_c_library_of_this_program() {
        let program = std::env::current_exe().unwrap();
        let elf = elf::read(&program).unwrap().unwrap();
        let search = Search::from_system();
        let library = search.find("libc.so.6", &program, &elf).unwrap();
        assert!(elf::read(&library).unwrap().unwrap().needed.iter().any(|name| name.starts_with("ld-linux")));
        assert_eq!(search.find("libbyoc_there_is_none.so.9", &program, &elf), None);
        let other = Elf { machine: elf.machine + 1, ..elf };
        assert_eq!(search.find("libc.so.6", &program, &other), None);
    }

    #[test]
    fn search_path_of_the_file_comes_first() {
        let program = std::env::current_exe().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let subdir = dir.path().canonicalize().unwrap().join("below");
        std::fs::create_dir(&subdir).unwrap();
        std::fs::copy(&program, subdir.join("libc.so.6")).unwrap();
        let user = dir.path().join("program");
        std::fs::copy(&program, &user).unwrap();
        let elf = Elf { search_path: vec!["$ORIGIN/below".into()], ..elf::read(&user).unwrap().unwrap() };
        assert_eq!(Search::from_system().find("libc.so.6", &user, &elf), Some(subdir.join("libc.so.6")));
    }
}

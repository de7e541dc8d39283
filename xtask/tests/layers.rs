//! Checks that the dependencies between crates and between modules match `docs/architecture.md`, and that modules have
//! no cyclic dependencies.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn read(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(root().join(&path)).unwrap_or_else(|e| panic!("{}: {e}", path.as_ref().display()))
}

/// Returns the lines of the fenced block `name` in `docs/architecture.md`.
fn block(name: &str) -> Vec<String> {
    let page = read("docs/architecture.md");
    let (_, rest) =
        page.split_once(&format!("\n```{name}\n")).unwrap_or_else(|| panic!("expected a block \"{name}\", found none"));
    rest.lines().take_while(|line| *line != "```").map(str::to_owned).collect()
}

fn members() -> Vec<String> {
    let manifest = read("Cargo.toml");
    let line = manifest
        .lines()
        .find_map(|line| line.strip_prefix("members = "))
        .expect("expected a `members` line in Cargo.toml");
    line.trim_matches(['[', ']']).split(',').map(|name| name.trim().trim_matches('"').to_owned()).collect()
}

/// Returns the name of a crate, and its dependencies on workspace crates, without dev-dependencies.
fn manifest(folder: &str, names: &BTreeSet<String>) -> (String, BTreeSet<String>) {
    let text = read(Path::new(folder).join("Cargo.toml"));
    let name = text.lines().find_map(|line| line.strip_prefix("name = ")).unwrap().trim_matches('"').to_owned();
    let section = text.lines().skip_while(|line| *line != "[dependencies]").skip(1);
    let keys = section.take_while(|line| !line.starts_with('[')).filter_map(|line| line.split(['.', ' ', '=']).next());
    (name, keys.filter(|key| names.contains(*key)).map(str::to_owned).collect())
}

#[test]
fn crates_use_each_other_as_drawn() {
    let none = BTreeSet::new();
    let names: BTreeSet<String> = members().iter().map(|folder| manifest(folder, &none).0).collect();
    let found: BTreeMap<String, BTreeSet<String>> = members().iter().map(|folder| manifest(folder, &names)).collect();
    let drawn: BTreeMap<String, BTreeSet<String>> = block("crates")
        .iter()
        .map(|line| {
            let (name, uses) = line.split_once("->").unwrap_or_else(|| panic!("expected an arrow, found {line}"));
            (name.trim().to_owned(), uses.split_whitespace().map(str::to_owned).collect())
        })
        .collect();
    let mut errors = String::new();
    for (name, uses) in &found {
        let Some(drawn) = drawn.get(name) else {
            let _ = writeln!(errors, "{name} is missing from the page");
            continue;
        };
        for other in uses.difference(drawn) {
            let _ = writeln!(errors, "{name} -> {other} is missing from the page");
        }
        for other in drawn.difference(uses) {
            let _ = writeln!(errors, "{name} -> {other} is on the page but not in the manifest");
        }
    }
    for name in drawn.keys().filter(|name| !found.contains_key(*name)) {
        let _ = writeln!(errors, "{name} is on the page but not a crate");
    }
    assert!(errors.is_empty(), "expected docs/architecture.md to match the manifests:\n{errors}");
}

#[test]
fn runtime_links_no_command_line_and_no_readers() {
    let tree = std::process::Command::new(env!("CARGO"))
        .args(["tree", "--package", "byoc-runtime", "--edges", "normal", "--prefix", "none", "--locked"])
        .current_dir(root())
        .output()
        .unwrap();
    let tree = String::from_utf8(tree.stdout).unwrap();
    let names: BTreeSet<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(names.contains("byoc-kernels"), "{tree}");
    for other in ["byoc-core", "byoc-onnx", "byoc", "clap", "image", "prost"] {
        assert!(!names.contains(other), "expected a runtime without {other}, found a dependency on it");
    }
}

/// Path of a module below the root of its crate.
type ModulePath = Vec<String>;

/// Returns the source files of a crate by module.
fn modules(source: &Path) -> BTreeMap<ModulePath, PathBuf> {
    let mut files = BTreeMap::new();
    let mut folders = vec![source.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("src/main.rs") {
                let below = path.strip_prefix(source).unwrap().with_extension("");
                let mut module: ModulePath = below.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
                module.pop_if(|last| last == "mod" || last == "lib");
                // Tests may depend on every module.
                if !module.iter().any(|part| part == "tests") {
                    files.insert(module, path);
                }
            }
        }
    }
    files
}

/// Returns the code of a file without comments and without the tests at its end.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// Expands a `use` tree into paths that begin with `prefix`.
fn expand(prefix: &str, tree: &str, paths: &mut Vec<String>) {
    let mut worklist = vec![(prefix.to_owned(), tree.to_owned())];
    while let Some((prefix, tree)) = worklist.pop() {
        let (mut depth, mut start) = (0, 0);
        let mut parts = Vec::new();
        for (at, c) in tree.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    parts.push(&tree[start..at]);
                    start = at + 1;
                }
                _ => {}
            }
        }
        parts.push(&tree[start..]);
        for part in parts.into_iter().map(str::trim).filter(|part| !part.is_empty()) {
            match part.split_once('{') {
                Some((head, rest)) => worklist.push((format!("{prefix}{head}"), rest.trim_end_matches('}').to_owned())),
                None => paths.push(format!("{prefix}{}", part.split(" as ").next().unwrap_or_default())),
            }
        }
    }
}

/// Returns the paths in `use` declarations, and all remaining paths in the code that begin with `crate` or `super`.
fn paths(code: &str) -> Vec<String> {
    let mut paths = Vec::new();
    let mut rest = code;
    while let Some(at) = rest.find("use ") {
        let starts_line = rest[..at].lines().next_back().is_none_or(|line| {
            let line = line.trim_start();
            line.is_empty() || line.starts_with("pub") || rest[..at].ends_with('\n')
        });
        let tail = &rest[at + 4..];
        let end = tail.find(';').unwrap_or(tail.len());
        if starts_line {
            let tree: String = tail[..end].split_whitespace().collect::<Vec<_>>().join(" ");
            expand("", &tree, &mut paths);
            rest = &tail[end..];
        } else {
            rest = tail;
        }
    }
    for root in ["crate::", "super::"] {
        for (at, _) in code.match_indices(root) {
            let before = code[..at].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | ':' | '$')) {
                continue;
            }
            let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
            let end = code[at..].find(|c| !is_path(c)).unwrap_or(code.len() - at);
            paths.push(code[at..at + end].trim_end_matches(':').to_owned());
        }
    }
    paths
}

/// Returns the module that `path`, used in `module`, refers to.
fn target(module: &ModulePath, path: &str, files: &BTreeMap<ModulePath, PathBuf>) -> Option<ModulePath> {
    let mut segments: Vec<&str> = path.split("::").map(str::trim).collect();
    let mut absolute: ModulePath = match *segments.first()? {
        "crate" => Vec::new(),
        "self" | "super" => module.clone(),
        first => {
            let child: ModulePath = module.iter().cloned().chain([first.to_owned()]).collect();
            files.contains_key(&child).then_some(())?;
            module.clone()
        }
    };
    while let Some(&first) = segments.first() {
        match first {
            "crate" | "self" => {}
            "super" => _ = absolute.pop(),
            _ => break,
        }
        segments.remove(0);
    }
    absolute.extend(segments.into_iter().map(str::to_owned));
    while !absolute.is_empty() && !files.contains_key(&absolute) {
        absolute.pop();
    }
    (!absolute.is_empty()).then_some(absolute)
}

/// Dependencies between sibling modules by parent, each with a path in the code that causes it.
type Arrows = BTreeMap<ModulePath, BTreeMap<(String, String), String>>;

/// Returns the dependencies between siblings by parent. A dependency between two modules is attributed to their topmost
/// ancestors that differ.
fn arrows(files: &BTreeMap<ModulePath, PathBuf>) -> Arrows {
    let mut arrows = Arrows::new();
    for (module, file) in files {
        for path in paths(&code(&std::fs::read_to_string(file).unwrap())) {
            let Some(target) = target(module, &path, files) else { continue };
            let common = module.iter().zip(&target).take_while(|(a, b)| a == b).count();
            if common < module.len() && common < target.len() {
                let arrow = (module[common].clone(), target[common].clone());
                let use_site = format!("{}: {path}", file.strip_prefix(root()).unwrap().display());
                arrows.entry(module[..common].to_vec()).or_default().entry(arrow).or_insert(use_site);
            }
        }
    }
    arrows
}

/// Repeatedly removes dependencies on modules without dependencies. The remaining dependencies are on a cycle or lead
/// to a cycle.
fn cyclic(arrows: &BTreeMap<(String, String), String>) -> BTreeSet<(String, String)> {
    let mut left: BTreeSet<(String, String)> = arrows.keys().cloned().collect();
    loop {
        let users: BTreeSet<String> = left.iter().map(|(from, _)| from.clone()).collect();
        let before = left.len();
        left.retain(|(_, to)| users.contains(to));
        if left.len() == before {
            return left;
        }
    }
}

#[test]
fn modules_use_lower_layers_and_form_no_cycle() {
    let drawn: BTreeMap<String, BTreeMap<String, usize>> = block("layers")
        .iter()
        .map(|line| {
            let (folder, layers) =
                line.split_once(':').unwrap_or_else(|| panic!("expected a crate and a colon, found {line}"));
            let layers = layers.split('<').enumerate();
            let levels = layers.flat_map(|(level, names)| names.split_whitespace().map(move |n| (n.to_owned(), level)));
            (folder.to_owned(), levels.collect())
        })
        .collect();
    let mut errors = String::new();
    for folder in members() {
        let source = root().join(&folder).join("src");
        if !source.is_dir() {
            continue;
        }
        let files = modules(&source);
        let levels = drawn.get(&folder).cloned().unwrap_or_default();
        let top: BTreeSet<&String> = files.keys().filter_map(|module| module.first()).collect();
        for name in top.iter().filter(|name| !levels.contains_key(**name)) {
            let _ = writeln!(errors, "{folder}: module {name} is missing from the page");
        }
        for name in levels.keys().filter(|name| !top.contains(name)) {
            let _ = writeln!(errors, "{folder}: {name} on the page is not a module");
        }
        for (parent, arrows) in arrows(&files) {
            if parent.is_empty() {
                for ((from, to), use_site) in &arrows {
                    if levels.get(from) <= levels.get(to) {
                        let _ = writeln!(errors, "{folder}: {from} -> {to} is missing from the page ({use_site})");
                    }
                }
            }
            for arrow in cyclic(&arrows) {
                let (from, to) = &arrow;
                let place = parent.join("::");
                let _ = writeln!(errors, "{folder}: {place}: {from} -> {to} is part of a cycle ({})", arrows[&arrow]);
            }
        }
    }
    assert!(errors.is_empty(), "expected docs/architecture.md to match the modules:\n{errors}");
}

#[test]
fn reads_paths_and_cycles() {
    let mut found =
        paths("use crate::a::{b, c::{D, E as F}};\npub use self::g::*;\nfn f() { super::h::run(x::crate_y()) }\n");
    found.sort();
    assert_eq!(found, ["crate::a", "crate::a::b", "crate::a::c::D", "crate::a::c::E", "self::g::*", "super::h::run"]);
    let arrow = |from: &str, to: &str| ((from.to_owned(), to.to_owned()), String::new());
    let chain = BTreeMap::from([arrow("a", "b"), arrow("b", "c")]);
    assert!(cyclic(&chain).is_empty());
    let ring = BTreeMap::from([arrow("a", "b"), arrow("b", "c"), arrow("c", "b")]);
    assert_eq!(cyclic(&ring).len(), 3);
}

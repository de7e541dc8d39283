//! Checks that the dependencies between crates match `docs/architecture.md`, and that modules have no cyclic dependencies.

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
    let (_, tail) =
        page.split_once(&format!("\n```{name}\n")).unwrap_or_else(|| panic!("expected a block \"{name}\", found none"));
    tail.lines().take_while(|line| *line != "```").map(str::to_owned).collect()
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
fn manifest(dir: &str, names: &BTreeSet<String>) -> (String, BTreeSet<String>) {
    let text = read(Path::new(dir).join("Cargo.toml"));
    let name = text.lines().find_map(|line| line.strip_prefix("name = ")).unwrap().trim_matches('"').to_owned();
    let section = text.lines().skip_while(|line| *line != "[dependencies]").skip(1);
    let keys = section.take_while(|line| !line.starts_with('[')).filter_map(|line| line.split(['.', ' ', '=']).next());
    (name, keys.filter(|key| names.contains(*key)).map(str::to_owned).collect())
}

#[test]
fn crates_use_each_other_as_drawn() {
    let no_names = BTreeSet::new();
    let names: BTreeSet<String> = members().iter().map(|dir| manifest(dir, &no_names).0).collect();
    let actual: BTreeMap<String, BTreeSet<String>> = members().iter().map(|dir| manifest(dir, &names)).collect();
    let documented: BTreeMap<String, BTreeSet<String>> = block("crates")
        .iter()
        .map(|line| {
            let (name, uses) = line.split_once("->").unwrap_or_else(|| panic!("expected an arrow, found {line}"));
            (name.trim().to_owned(), uses.split_whitespace().map(str::to_owned).collect())
        })
        .collect();
    let mut errors = String::new();
    for (name, uses) in &actual {
        let Some(documented) = documented.get(name) else {
            let _ = writeln!(errors, "{name} is missing from the page");
            continue;
        };
        for other in uses.difference(documented) {
            let _ = writeln!(errors, "{name} -> {other} is missing from the page");
        }
        for other in documented.difference(uses) {
            let _ = writeln!(errors, "{name} -> {other} is on the page but not in the manifest");
        }
    }
    for name in documented.keys().filter(|name| !actual.contains_key(*name)) {
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
    assert!(names.contains("byoc-kernels"), "expected byoc-kernels among the dependencies, found:\n{tree}");
    for other in ["byoc-core", "byoc-onnx", "byoc", "clap", "image", "prost"] {
        assert!(!names.contains(other), "expected a runtime without {other}, found a dependency on it");
    }
}

/// Path of a module below the root of its crate.
type ModulePath = Vec<String>;

/// Returns the source files of a crate by module.
fn modules(source: &Path) -> BTreeMap<ModulePath, PathBuf> {
    let mut files = BTreeMap::new();
    let mut pending = vec![source.to_owned()];
    while let Some(dir) = pending.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("src/main.rs") {
                let relative = path.strip_prefix(source).unwrap().with_extension("");
                let mut module: ModulePath = relative.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
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
        for (index, c) in tree.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    parts.push(&tree[start..index]);
                    start = index + 1;
                }
                _ => {}
            }
        }
        parts.push(&tree[start..]);
        for part in parts.into_iter().map(str::trim).filter(|part| !part.is_empty()) {
            match part.split_once('{') {
                Some((head, tail)) => worklist.push((format!("{prefix}{head}"), tail.trim_end_matches('}').to_owned())),
                None => paths.push(format!("{prefix}{}", part.split(" as ").next().unwrap_or_default())),
            }
        }
    }
}

/// Returns the paths in `use` declarations, and all remaining paths in the code that begin with `crate` or `super`.
fn paths(code: &str) -> Vec<String> {
    let mut paths = Vec::new();
    let mut rest = code;
    while let Some(index) = rest.find("use ") {
        let starts_line = rest[..index].lines().next_back().is_none_or(|line| {
            let line = line.trim_start();
            line.is_empty() || line.starts_with("pub") || rest[..index].ends_with('\n')
        });
        let tail = &rest[index + 4..];
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
        for (index, _) in code.match_indices(root) {
            let previous_char = code[..index].chars().next_back();
            if previous_char.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | ':' | '$')) {
                continue;
            }
            let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
            let end = code[index..].find(|c| !is_path(c)).unwrap_or(code.len() - index);
            paths.push(code[index..index + end].trim_end_matches(':').to_owned());
        }
    }
    paths
}

/// Returns the module that `path`, used in `module`, refers to.
fn target(module: &ModulePath, path: &str, files: &BTreeMap<ModulePath, PathBuf>) -> Option<ModulePath> {
    let mut segments: Vec<&str> = path.split("::").map(str::trim).collect();
    let mut absolute_path: ModulePath = match *segments.first()? {
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
            "super" => _ = absolute_path.pop(),
            _ => break,
        }
        segments.remove(0);
    }
    absolute_path.extend(segments.into_iter().map(str::to_owned));
    while !absolute_path.is_empty() && !files.contains_key(&absolute_path) {
        absolute_path.pop();
    }
    (!absolute_path.is_empty()).then_some(absolute_path)
}

/// Dependencies between sibling modules, grouped by parent module, each with a path in the code that causes it.
type Arrows = BTreeMap<ModulePath, BTreeMap<(String, String), String>>;

/// Returns the dependencies between sibling modules, grouped by parent module. A dependency between two modules is
/// attributed to their topmost ancestors that differ.
fn arrows(files: &BTreeMap<ModulePath, PathBuf>) -> Arrows {
    let mut arrows = Arrows::new();
    for (module, file) in files {
        for path in paths(&code(&std::fs::read_to_string(file).unwrap())) {
            let Some(target) = target(module, &path, files) else { continue };
            let common_len = module.iter().zip(&target).take_while(|(a, b)| a == b).count();
            if common_len < module.len() && common_len < target.len() {
                let arrow = (module[common_len].clone(), target[common_len].clone());
                let use_site = format!("{}: {path}", file.strip_prefix(root()).unwrap().display());
                arrows.entry(module[..common_len].to_vec()).or_default().entry(arrow).or_insert(use_site);
            }
        }
    }
    arrows
}

/// Repeatedly removes dependencies on modules without dependencies. The remaining dependencies are on a cycle or lead
/// to a cycle.
fn cyclic_arrows(arrows: &BTreeMap<(String, String), String>) -> BTreeSet<(String, String)> {
    let mut remaining_arrows: BTreeSet<(String, String)> = arrows.keys().cloned().collect();
    loop {
        let users: BTreeSet<String> = remaining_arrows.iter().map(|(source, _)| source.clone()).collect();
        let previous_len = remaining_arrows.len();
        remaining_arrows.retain(|(_, target)| users.contains(target));
        if remaining_arrows.len() == previous_len {
            return remaining_arrows;
        }
    }
}

#[test]
fn modules_form_no_cycle() {
    let mut errors = String::new();
    for dir in members() {
        let source = root().join(&dir).join("src");
        if !source.is_dir() {
            continue;
        }
        for (parent, arrows) in arrows(&modules(&source)) {
            for arrow in cyclic_arrows(&arrows) {
                let (source, target) = &arrow;
                let parent_path = parent.join("::");
                let use_site = &arrows[&arrow];
                let _ = writeln!(errors, "{dir}: {parent_path}: {source} -> {target} is part of a cycle ({use_site})");
            }
        }
    }
    assert!(errors.is_empty(), "{errors}");
}

#[test]
fn reads_paths_and_cycles() {
    let mut arrows_found =
        paths("use crate::a::{b, c::{D, E as F}};\npub use self::g::*;\nfn f() { super::h::run(x::crate_y()) }\n");
    arrows_found.sort();
    assert_eq!(
        arrows_found,
        ["crate::a", "crate::a::b", "crate::a::c::D", "crate::a::c::E", "self::g::*", "super::h::run"]
    );
    let arrow = |source: &str, target: &str| ((source.to_owned(), target.to_owned()), String::new());
    let chain = BTreeMap::from([arrow("a", "b"), arrow("b", "c")]);
    assert!(cyclic_arrows(&chain).is_empty());
    let ring = BTreeMap::from([arrow("a", "b"), arrow("b", "c"), arrow("c", "b")]);
    assert_eq!(cyclic_arrows(&ring).len(), 3);
}

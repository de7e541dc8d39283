//! Checks that each crate's number of `unsafe` blocks, functions and implementations does not exceed its ceiling in
//! `unsafe.txt`. A ceiling may only be lowered.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Returns the directories of the workspace's crates.
fn crates(root: &Path) -> Vec<String> {
    let manifest = std::fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let members = manifest
        .lines()
        .find_map(|line| line.strip_prefix("members = "))
        .expect("expected a `members = ` line in Cargo.toml");
    members.trim_matches(['[', ']']).split(',').map(|name| name.trim().trim_matches('"').to_owned()).collect()
}

fn collect_sources(dir: &Path, files: &mut Vec<PathBuf>) {
    let mut pending = vec![dir.to_owned()];
    while let Some(dir) = pending.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                // A nested crate is counted separately.
                if !path.ends_with("target") && !path.join("Cargo.toml").exists() {
                    pending.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with(file!()) {
                files.push(path);
            }
        }
    }
}

/// Counts the constructs that begin with `unsafe`: blocks, functions, implementations. Unsafe function types (`unsafe
/// extern "C" fn(..)` without a name) have no separate contract and are not counted, and neither are comments.
fn count(text: &str) -> usize {
    let code = text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n");
    let mut total = 0;
    for (index, word) in code.match_indices("unsafe") {
        let previous_char = code[..index].chars().next_back();
        let tail = code[index + word.len()..].trim_start();
        let is_function = |tail: &str| tail.starts_with("fn ");
        let text_after_abi =
            tail.strip_prefix("extern").map(|tail| tail.trim_start().trim_start_matches("\"C\"").trim_start());
        let opens_block = tail.starts_with(['{'])
            || tail.starts_with("impl")
            || is_function(tail)
            || text_after_abi.is_some_and(is_function);
        total += usize::from(opens_block && previous_char.is_none_or(|c| !c.is_alphanumeric() && c != '_' && c != '"'));
    }
    total
}

#[test]
fn unsafe_code_does_not_grow() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for name in crates(root) {
        let mut files = Vec::new();
        collect_sources(&root.join(&name), &mut files);
        let total = files.iter().map(|file| count(&std::fs::read_to_string(file).unwrap())).sum();
        counts.insert(name, total);
    }
    let file = root.join("xtask/unsafe.txt");
    let ceiling: BTreeMap<String, usize> = std::fs::read_to_string(&file)
        .unwrap()
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split_once(' ').unwrap_or_else(|| panic!("expected a crate and a count, found {line}")))
        .map(|(name, max)| (name.to_owned(), max.parse().unwrap()))
        .collect();
    let mut errors = String::new();
    for (name, &actual) in &counts {
        let max = ceiling.get(name).copied().unwrap_or(0);
        if actual > max {
            let _ = writeln!(
                errors,
                "{name}: expected at most {max}, found {actual}; use safe code or an existing abstraction"
            );
        } else if actual < max {
            let _ = writeln!(errors, "{name}: expected {actual} in xtask/unsafe.txt, as in the code, found {max}");
        }
    }
    for name in ceiling.keys().filter(|name| !counts.contains_key(*name)) {
        let _ = writeln!(errors, "{name}: expected a crate in xtask/unsafe.txt, found an unknown name");
    }
    assert!(errors.is_empty(), "unsafe blocks, functions and implementations:\n{errors}");
}

#[test]
fn counts_unsafe_constructs() {
    assert_eq!(count("unsafe { f() }; unsafe impl Send for X {}\nunsafe fn g() {}\nunsafe extern \"C\" fn h() {}"), 4);
    assert_eq!(
        count(
            "// unsafe { f() }\ntype F = unsafe extern \"C\" fn(i32);\n#[unsafe(no_mangle)]\n\"unsafe {\"; not_unsafe {}"
        ),
        0
    );
}

//! Checks that `docs/SUMMARY.md`, the table of contents of the book, lists every page exactly once, under the page
//! title, and nothing else; that links lead somewhere; and that paths of the library name modules that it has.

use std::path::{Path, PathBuf};

/// Returns the Markdown files of a directory, except the table of contents.
fn pages(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|e| e == "md") && !path.ends_with("SUMMARY.md")).collect()
}

#[test]
fn contents_list_every_page() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let contents = std::fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let mut expected = Vec::new();
    for prefix in ["", "concepts/", "design/", "errors/"] {
        let dir = docs.join(prefix);
        if !dir.is_dir() {
            continue;
        }
        for page in pages(&dir) {
            let text = std::fs::read_to_string(&page).unwrap();
            let title = text
                .lines()
                .next()
                .and_then(|line| line.strip_prefix("# "))
                .unwrap_or_else(|| panic!("{}: expected a title line", page.display()))
                .to_owned();
            let name = page.file_name().unwrap().to_string_lossy().into_owned();
            expected.push(format!("- [{title}]({prefix}{name})"));
        }
    }
    let mut entries: Vec<String> =
        contents.lines().map(|line| line.trim().to_owned()).filter(|line| line.ends_with(".md)")).collect();
    expected.sort();
    entries.sort();
    let missing: Vec<&String> = expected.iter().filter(|line| !entries.contains(line)).collect();
    let unexpected: Vec<&String> = entries.iter().filter(|line| !expected.contains(line)).collect();
    assert!(
        missing.is_empty() && unexpected.is_empty(),
        "docs/SUMMARY.md: expected entries that are missing: {missing:#?}\nfound entries without a page: {unexpected:#?}"
    );
    assert_eq!(entries.len(), expected.len(), "expected docs/SUMMARY.md to list each page once");
}

/// Returns the link targets in a document, ignoring code.
fn links(text: &str) -> Vec<String> {
    let mut targets_found = Vec::new();
    let mut is_fenced = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_fenced = !is_fenced;
        }
        if is_fenced {
            continue;
        }
        // Every second part is inline code.
        let prose: String = line.split('`').step_by(2).collect::<Vec<_>>().join("");
        let targets = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next().map(str::to_owned));
        targets_found.extend(targets);
    }
    targets_found
}

/// Returns the anchor generated for a heading.
fn anchor(heading: &str) -> String {
    let chars = heading.trim_start_matches('#').trim().chars();
    let chars = chars.filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    chars.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

/// Returns the Markdown files of the repository.
fn documents() -> Vec<PathBuf> {
    let mut pending = vec![Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()];
    let mut found = Vec::new();
    while let Some(dir) = pending.pop() {
        let is_skipped =
            |path: &Path| ["target", "vendor", ".git", "templates"].iter().any(|name| path.ends_with(name));
        let entries = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path());
        let (subdirs, files): (Vec<_>, Vec<_>) =
            entries.filter(|path| !is_skipped(path)).partition(|path| path.is_dir());
        pending.extend(subdirs);
        found.extend(files.into_iter().filter(|path| path.extension().is_some_and(|e| e == "md")));
    }
    found
}

#[test]
fn links_lead_to_files_and_headings() {
    let mut broken_links = Vec::new();
    let mut link_count = 0;
    for page in documents() {
        let text = std::fs::read_to_string(&page).unwrap();
        for link in links(&text) {
            if link.contains("://") {
                continue;
            }
            link_count += 1;
            let (file, heading) = link.split_once('#').unwrap_or((&link, ""));
            let target = if file.is_empty() { page.clone() } else { page.with_file_name("").join(file) };
            let exists = target.exists();
            let has_heading = heading.is_empty()
                || std::fs::read_to_string(&target)
                    .is_ok_and(|text| text.lines().any(|line| line.starts_with('#') && anchor(line) == heading));
            if !exists || !has_heading {
                broken_links.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(link_count > 200, "expected more than 200 links, found {link_count}");
    assert!(broken_links.is_empty(), "expected links to existing files and headings, found {broken_links:#?}");
}

#[test]
fn paths_of_the_library_name_modules() {
    let library = Path::new(env!("CARGO_MANIFEST_DIR")).join("../host/src/lib.rs");
    let library = std::fs::read_to_string(library).unwrap();
    let is_public = |module: &str| {
        library.lines().any(|line| {
            let item = line.strip_suffix(';').unwrap_or_default();
            let ends_in = |before: &str| item.ends_with(&format!("{before}{module}"));
            item == format!("pub mod {module}") || item.starts_with("pub use ") && (ends_in(" as ") || ends_in("::"))
        })
    };
    let (mut missing, mut count) = (Vec::new(), 0);
    for page in documents() {
        let text = std::fs::read_to_string(&page).unwrap();
        // The names of the C++ namespace and the items at the top of the library begin with a capital.
        for path in text.split("byoc::").skip(1) {
            let end = path.find(|c: char| !c.is_ascii_lowercase() && c != '_').unwrap_or(path.len());
            let module = &path[..end];
            if !path[end..].starts_with("::") {
                continue;
            }
            count += 1;
            if !is_public(module) {
                missing.push(format!("{}: byoc::{module}", page.display()));
            }
        }
    }
    assert!(count > 5, "expected more than 5 paths, found {count}");
    assert!(missing.is_empty(), "expected modules of host/src/lib.rs, found {missing:#?}");
}

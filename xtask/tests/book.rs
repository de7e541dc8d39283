//! Test that `docs/SUMMARY.md`, the contents of the book, lists every page once, under the title of the page, and no other.

use std::path::{Path, PathBuf};

/// Returns the Markdown files of a folder, except the contents themselves.
fn pages(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|e| e == "md") && !path.ends_with("SUMMARY.md")).collect()
}

#[test]
fn contents_list_every_page() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let contents = std::fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let mut expected = Vec::new();
    for (folder, prefix) in [(docs.clone(), ""), (docs.join("errors"), "errors/")] {
        for page in pages(&folder) {
            let text = std::fs::read_to_string(&page).unwrap();
            let title = text.lines().next().and_then(|line| line.strip_prefix("# ")).expect("a title").to_owned();
            let name = page.file_name().unwrap().to_string_lossy().into_owned();
            expected.push(format!("- [{title}]({prefix}{name})"));
        }
    }
    let mut listed: Vec<String> =
        contents.lines().map(|line| line.trim().to_owned()).filter(|line| line.ends_with(".md)")).collect();
    expected.sort();
    listed.sort();
    let missing: Vec<&String> = expected.iter().filter(|line| !listed.contains(line)).collect();
    let extra: Vec<&String> = listed.iter().filter(|line| !expected.contains(line)).collect();
    assert!(missing.is_empty() && extra.is_empty(), "docs/SUMMARY.md lacks {missing:#?} and has {extra:#?}");
    assert_eq!(listed.len(), expected.len(), "docs/SUMMARY.md lists a page twice");
}

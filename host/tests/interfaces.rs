//! Command-line options in messages: each option must have an equivalent in every interface.

use byoc::{CompileOptions, Error, Interface, Model, Session};
use byoc_test_support::workspace;
use std::path::{Path, PathBuf};

/// Crates with messages that are visible to library users.
const CRATES: [&str; 9] = [
    "core",
    "host/src",
    "host/runtime/src",
    "host/onnx/src",
    "host/files/src",
    "host/export/src",
    "host/quantize/src",
    "plugin-api",
    "plugins",
];

/// Texts that name options of third-party programs, or of `byoc opt`, which has no library equivalent.
const OTHERS: [&str; 6] = ["--version", "--layout", "-- --ignored", "--build-id", "--set-section-alignment", "--exact"];

fn collect_sources(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && !["tests", "target", "benches", "samples"].contains(&&*name) {
            collect_sources(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") && name != "wording.rs" {
            files.push(path);
        }
    }
}

/// Returns the string literals of a source file, except those in comments and in the module `tests`.
fn literals(text: &str) -> Vec<String> {
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let code: String =
        text.lines().filter(|line| !line.trim_start().starts_with("//")).map(|line| format!("{line}\n")).collect();
    let mut literals = Vec::new();
    let mut remaining = code.as_str();
    while let Some(position) = remaining.find(['"', '\'']) {
        let (prefix, suffix) = remaining.split_at(position);
        if let Some(tail) = suffix.strip_prefix("'\"'").or_else(|| suffix.strip_prefix("'\\\"'")) {
            // Character literal of a quotation mark.
            remaining = tail;
        } else if let Some(tail) = suffix.strip_prefix('\'') {
            remaining = tail;
        } else {
            let hashes = prefix.len() - prefix.trim_end_matches('#').len();
            let is_raw = prefix.trim_end_matches('#').ends_with('r');
            let (literal, tail) =
                if is_raw { raw_literal(&suffix[1..], hashes) } else { escaped_literal(&suffix[1..]) };
            literals.push(literal);
            remaining = tail;
        }
    }
    literals
}

/// Splits text that begins inside a raw literal into the rest of the literal and the text after it.
fn raw_literal(text: &str, hashes: usize) -> (String, &str) {
    let end = format!("\"{}", "#".repeat(hashes));
    let (literal, tail) = text.split_once(&end).unwrap_or((text, ""));
    (literal.to_owned(), tail)
}

/// Splits text that begins inside a literal into the rest of the literal and the text after it.
fn escaped_literal(text: &str) -> (String, &str) {
    let mut literal = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => break,
            '\\' => match chars.next() {
                Some('\n') => chars = chars.as_str().trim_start().chars(),
                Some(character) => literal.push(character),
                None => break,
            },
            c => literal.push(c),
        }
    }
    (literal, chars.as_str())
}

/// Replaces the arguments of a format string, `{}` and `{variable}`, with `NAME`.
fn replace_arguments(literal: &str) -> String {
    let mut text = String::new();
    let mut rest = literal;
    while let Some((before, after)) = rest.split_once('{') {
        text += before;
        match after.split_once('}') {
            Some((argument, after)) if argument.chars().all(|c| c.is_ascii_lowercase() || c == '_') => {
                text += "NAME";
                rest = after;
            }
            _ => {
                text.push('{');
                rest = after;
            }
        }
    }
    text + rest
}

/// Returns true if a string names a command-line option.
fn names_an_option(text: &str) -> bool {
    let mut remaining = text;
    while let Some(position) = remaining.find("--") {
        let prefix = remaining[..position].chars().next_back();
        let tail = remaining[position + 2..].chars().next();
        if prefix.is_none_or(|c| !c.is_alphanumeric() && c != '-' && c != '{')
            && tail.is_some_and(|c| c.is_ascii_lowercase())
        {
            return true;
        }
        remaining = &remaining[position + 2..];
    }
    false
}

#[test]
fn every_option_in_a_message_has_a_name_in_each_interface() {
    let mut files = Vec::new();
    for part in CRATES {
        collect_sources(&workspace().join(part), &mut files);
    }
    assert!(files.len() > 200, "expected more than 200 source files, found {}", files.len());
    let (mut literal_count, mut unmatched_texts) = (0, Vec::new());
    for file in files {
        for literal in literals(&std::fs::read_to_string(&file).unwrap()) {
            let text = replace_arguments(&literal);
            if !names_an_option(&text) || OTHERS.iter().any(|other| text.contains(other)) || text.starts_with("-Wl") {
                continue;
            }
            literal_count += 1;
            // No other interface has an equivalent of `--emit`, so messages name the command.
            let reworded = Interface::Python.words(&text).replace("`byoc compile --emit", "");
            if names_an_option(&reworded) && !reworded.starts_with("arguments=") && !reworded.contains("arguments=[") {
                unmatched_texts.push(format!("{}: {text}: {reworded}", file.display()));
            }
            assert_eq!(Interface::CommandLine.words(&text), text);
        }
    }
    assert!(unmatched_texts.is_empty(), "no row of host/src/wording.rs matches:\n{}", unmatched_texts.join("\n"));
    assert!(literal_count > 15, "expected more than 15 literals with an option, found {literal_count}");
}

#[test]
fn errors_name_the_calls_of_the_interface() {
    let session = Session::builder().threads(1).build().unwrap();
    let digits = workspace().join("tests/digits/digits.onnx");
    let help = |error: Error, interface| error.in_interface(interface).help().unwrap_or_default().to_owned();
    let unbound_error = || Model::compile(&session, &digits, &CompileOptions::new()).unwrap_err();
    assert!(unbound_error().help().unwrap().contains("CompileOptions::dim(\"batch\", N)"), "{}", unbound_error());
    assert!(help(unbound_error(), Interface::C).contains("byoc_dim{\"batch\", N}"));
    assert!(help(unbound_error(), Interface::Python).contains("dims={\"batch\": N}"));
    assert!(help(unbound_error(), Interface::CommandLine).contains("--dim batch=N"));
    // Messages survive a round trip through the C interface.
    let round_trip = unbound_error().in_interface(Interface::C).in_interface(Interface::Rust);
    assert_eq!(round_trip.to_string(), unbound_error().to_string());

    let missing_options =
        Model::compile(&session, &digits, &CompileOptions::new().dim("batch", 1).backend("dnnl")).unwrap_err();
    assert!(missing_options.help().unwrap().contains("SessionBuilder::plugin_dir(DIR)"), "{missing_options}");
    for error in [unbound_error(), missing_options] {
        assert!(!error.to_string().contains("--"), "{error}");
    }
}

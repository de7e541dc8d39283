//! Tests the examples of `docs/patterns.md`: every block of matches has the stated results, and the table parses.

use super::module_with;
use byoc_core::pattern::{Checks, Graph, Matcher, parse_pattern, parse_table};
use byoc_ir::tensor::{DType, Tensor};
use std::sync::Arc;

fn page() -> String {
    std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/patterns.md")).unwrap()
}

/// Returns the fenced blocks in `language`.
fn blocks<'p>(page: &'p str, language: &str) -> Vec<&'p str> {
    let fence = format!("```{language}\n");
    page.split(fence.as_str()).skip(1).map(|part| part.split("```").next().unwrap_or_default()).collect()
}

/// Returns true if a pattern matches a body written with the names of `docs/patterns.md`.
fn matches(pattern: &str, body: &str) -> bool {
    let (pattern, warnings) = parse_pattern(pattern).unwrap_or_else(|errors| panic!("{pattern}: {errors:?}"));
    assert!(warnings.is_empty(), "{warnings:?}");
    let constant = |shape: &[usize]| Arc::new(Tensor::zeros(DType::F32, shape).unwrap());
    let constants = [constant(&[4, 4, 1, 1]), constant(&[4])];
    let body = body.replace("$w", "meta[relay.Constant][0]").replace("$v", "meta[relay.Constant][1]");
    let types = "%a: T, %b: T, %c: T, %x: Tensor[(1, 4, 8, 8), float32], %d: bool";
    let program = module_with(&format!("def @main({types}) {{ {body} }}"), &constants);
    let graph = Graph::new(&program);
    Matcher::new(&graph).match_at(&pattern, program.main().unwrap().body).is_some()
}

#[test]
fn examples_of_the_page_match_as_they_say() {
    let page = page();
    let mut count = 0;
    for block in blocks(&page, "match") {
        let (first, rest) = block.split_once('\n').unwrap();
        let pattern = first.strip_prefix("pattern: ").unwrap_or_else(|| panic!("expected a pattern, found {block}"));
        for line in rest.lines() {
            let (answer, body) = line.split_once(": ").unwrap_or_else(|| panic!("expected yes or no, found {line}"));
            assert!(["yes", "no"].contains(&answer), "{line}");
            assert_eq!(matches(pattern, body), answer == "yes", "{pattern} on {body}");
            count += 1;
        }
    }
    assert!(count >= 60, "expected at least 60 results, found {count}");
    for table in blocks(&page, "patterns") {
        let parsed = parse_table(table, Checks::Allowed);
        assert!(parsed.diagnostics.is_empty() && parsed.entries.len() == 2, "{:?}", parsed.diagnostics);
    }
}

#[test]
fn page_has_the_numbers_of_the_operators() {
    let page = page();
    for line in page.lines().filter(|line| line.starts_with("| ") && line.ends_with("` |")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let Ok(number) = cells[0].parse::<i64>() else { continue };
        for name in cells[2].split(", ").map(|name| name.trim_matches('`')) {
            let def = byoc_ir::op::get(byoc_ir::op::lookup(name).unwrap());
            assert_eq!(def.pattern as i64, number, "{name}");
        }
    }
}

#[test]
fn errors_and_length_of_a_table_are_bounded() {
    use byoc_ir::diag::{MAX_REPORTED, codes};
    let table: String = (0..MAX_REPORTED + 3).map(|i| format!("a{i}: undefined{i}(*)\n")).collect();
    let parsed = parse_table(&table, Checks::Allowed);
    assert_eq!((parsed.diagnostics.len(), parsed.entries.len()), (MAX_REPORTED, 0));
    assert_eq!(parsed.diagnostics[MAX_REPORTED - 1].notes.last().unwrap(), "3 more errors are not shown");
    let long_table = format!("# {}", "x".repeat(1 << 18));
    assert_eq!(parse_table(&long_table, Checks::Allowed).diagnostics[0].code, codes::text::TOO_LARGE);
    let cancel = byoc_ir::cancel::Cancel::default();
    cancel.set(true);
    let cancelled = cancel.within(|| parse_table(&table, Checks::Allowed));
    let found: Vec<_> = cancelled.diagnostics.iter().map(|diagnostic| diagnostic.code).collect();
    assert_eq!((found, cancelled.entries.len()), (vec![codes::runtime::CANCELLED], 0));
}

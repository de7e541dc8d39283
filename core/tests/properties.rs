//! Property tests of the text format: random programs, mutated texts and deeply nested texts.

use crate::simplify::generate::{self, Kind};
use byoc_core::analysis::{structural_equal, verify};
use byoc_core::pass::{infer_type, infer_type_in_place};
use byoc_ir::ir::{Callee, Expr, ExprId, Module, Type};
use byoc_ir::tensor::Tensor;
use byoc_ir::text::{ParseOptions, PrintOptions, parse, print};
use byoc_test_support::random::Random;
use proptest::prelude::*;
use std::fmt::Write;

/// Generates a module of two functions.
fn program(choices: &[u8]) -> Module {
    generate::program(&["main", "other"], choices, Kind::OpenFloat)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn printed_programs_parse_back(choices in prop::collection::vec(any::<u8>(), 0..400)) {
        let module = program(&choices);
        prop_assert_eq!(verify(&module), Ok(()));
        let module = infer_type(&module).unwrap();
        prop_assert_eq!(verify(&module), Ok(()));
        let printed = print(&module, &PrintOptions { types: choices.len() % 2 == 0, ..PrintOptions::default() });
        let reparsed = parse(&printed.text, &ParseOptions { constants: &printed.constants });
        prop_assert_eq!(&reparsed.diagnostics, &[], "{}", printed.text);
        let reparsed = infer_type(&reparsed.module).unwrap();
        prop_assert_eq!(structural_equal(&module, &reparsed), Ok(()), "{}", printed.text);
        let printed_text = print(&module, &PrintOptions::default()).text;
        prop_assert_eq!(print(&reparsed, &PrintOptions::default()).text, printed_text);
    }

    #[test]
    fn another_program_is_not_equal(choices in prop::collection::vec(any::<u8>(), 20..400), at in any::<usize>()) {
        let module = program(&choices);
        let mut changed_module = module.clone();
        let live = changed_module.live();
        let calls: Vec<ExprId> =
            changed_module
                .nodes
                .ids()
                .filter(|&id| live[id] && changed_module.expr(id).as_op_call().is_some())
                .collect();
        prop_assume!(!calls.is_empty());
        if let Expr::Call(call) = &mut changed_module.nodes[calls[at % calls.len()]].expr {
            let op = if call.args.len() == 1 { "log" } else { "divide" };
            call.callee = Callee::Op(byoc_ir::op::lookup(op).unwrap());
        }
        prop_assert!(structural_equal(&module, &changed_module).is_err());
    }
}

fn mutate(text: &[u8], random: &mut Random) -> Vec<u8> {
    const TOKENS: &[&str] = &[
        "{",
        "}",
        "(",
        ")",
        "[",
        ";",
        ",",
        "=",
        "%0",
        "%x",
        "@main",
        "let ",
        "fn (",
        "if (",
        "} else {",
        "def @a(",
        "1",
        "/*",
        "\"",
        ".0",
        "meta[relay.Constant][0]",
        "-> int32",
        "ref(",
        "99999999999999999999",
        "%4294967296",
        "_",
        "?",
    ];
    let mut text = text.to_vec();
    for _ in 0..1 + random.below(4) {
        let start = random.below(text.len().max(1));
        match random.below(6) {
            0 => text.truncate(start),
            1 if !text.is_empty() => text[start] ^= 1 << random.below(8),
            2 => {
                let token = TOKENS[random.below(TOKENS.len())];
                text.splice(start..start, token.bytes());
            }
            3 => {
                let end = (start + random.below(20)).min(text.len());
                text.drain(start..end);
            }
            4 => {
                let end = (start + random.below(200)).min(text.len());
                let copy = text[start..end].to_vec();
                let target = random.below(text.len().max(1));
                text.splice(target..target, copy);
            }
            _ => {
                let position = random.below(text.len().max(1));
                if !text.is_empty() {
                    text.swap(start, position);
                }
            }
        }
    }
    text
}

#[test]
fn mutated_texts_never_panic() {
    let mut random = Random::new(1);
    let mut texts: Vec<Vec<u8>> = (0..50)
        .map(|_| {
            let choices: Vec<u8> = (0..300).map(|_| random.below(256) as u8).collect();
            print(&program(&choices), &PrintOptions::default()).text.into_bytes()
        })
        .collect();
    for kind in ["parse", "error", "print", "pass", "verifier"] {
        let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/filetests").join(kind);
        let mut paths: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        for path in paths {
            let text = std::fs::read_to_string(path).unwrap();
            texts.extend(text.split("// ====\n").map(|case| case.as_bytes().to_vec()));
        }
    }
    let constants = [std::sync::Arc::new(Tensor::scalar(1f32))];
    let (mut parsed_count, mut rejected_count) = (0, 0);
    for i in 0..10_000 {
        let mutated = mutate(&texts[i % texts.len()], &mut random);
        let source = String::from_utf8_lossy(&mutated);
        let mut parsed = parse(&source, &ParseOptions { constants: &constants });
        if !parsed.diagnostics.is_empty() {
            assert!(
                parsed
                    .diagnostics
                    .iter()
                    .all(|d| d.labels.first().is_some_and(|l| l.span.end as usize <= source.len()))
            );
            rejected_count += 1;
            continue;
        }
        parsed_count += 1;
        // Text that parses may still fail type inference or verification, but it can be printed.
        let roots: Vec<ExprId> = parsed.root.into_iter().collect();
        let is_typed = infer_type_in_place(&mut parsed.module, &roots).is_ok();
        let is_valid = verify(&parsed.module).is_ok();
        let printed = print(&parsed.module, &PrintOptions { types: true, ..PrintOptions::default() });
        if is_typed && is_valid {
            let reparsed = parse(&printed.text, &ParseOptions { constants: &printed.constants });
            assert_eq!(reparsed.diagnostics, [], "{}", printed.text);
        }
    }
    assert!(
        parsed_count > 100 && rejected_count > 1_000,
        "expected more than 100 accepted and 1000 rejected texts, found {parsed_count} and {rejected_count}"
    );
}

/// Parses, types, verifies and prints a module; asserts that the printed text parses to an equal module.
fn round_trip(text: &str) -> Module {
    let parsed = parse(text, &ParseOptions::default());
    assert_eq!(parsed.diagnostics, []);
    let mut module = parsed.module;
    infer_type_in_place(&mut module, &[]).unwrap();
    assert_eq!(verify(&module), Ok(()));
    let printed = print(&module, &PrintOptions::default());
    let mut reparsed = parse(&printed.text, &ParseOptions::default()).module;
    infer_type_in_place(&mut reparsed, &[]).unwrap();
    assert_eq!(structural_equal(&module, &reparsed), Ok(()));
    module
}

const HEAD: &str = "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(10, 10), float32]) -> Tensor[(10, 10), float32] {\n";

#[test]
fn a_chain_of_a_million_operators() {
    let mut text = format!("{HEAD}  %0 = nn.relu(%x);\n");
    for i in 1..1_000_000 {
        let _ = writeln!(text, "  %{i} = nn.relu(%{});", i - 1);
    }
    text.push_str("  nn.relu(%999999)\n}\n");
    let module = round_trip(&text);
    assert_eq!(module.nodes.len(), 1_000_000 + 3);
    assert_eq!(print(&module, &PrintOptions::default()).text, text);
}

#[test]
fn a_hundred_thousand_levels() {
    const LEVELS: usize = 100_000;
    let nested = |open: &str, inner: &str, close: &str| {
        let (open, close) = (open.repeat(LEVELS), close.repeat(LEVELS));
        round_trip(&format!("{HEAD}{open}{inner}{close}\n}}\n"))
    };
    let lets = nested("let %x = nn.relu(%x);\n", "%x", "");
    assert_eq!(lets.nodes.len(), 3 * LEVELS + 2);
    nested("(", "%x", ")");
    nested("if (True) {", "%x", "} else { nn.relu(%x) }");
    nested("nn.relu((let %y = nn.relu(%x); ", "%x", "))");
    nested("fn (%y: int32) {", "%x", "}(1)");
    nested("(", "%x", ",).0");
}

#[test]
fn rejects_deeply_nested_types_and_lists() {
    let code = |text: &str| parse(text, &ParseOptions::default()).diagnostics.first().map(|d| d.code.to_string());
    let (open, close) = ("(".repeat(100_000), ")".repeat(100_000));
    assert_eq!(code(&format!("fn (%x: {open}int32{close}) {{ %x }}")), None);
    let ty = |levels: usize| format!("fn (%x: {}int32{}) {{ %x }}", "(".repeat(levels), ")".repeat(levels));
    assert_eq!(code(&ty(Type::MAX_PARTS + 1)).as_deref(), Some("E0108"));
    assert_eq!(code(&format!("fn (%x: {}", "fn (".repeat(Type::MAX_PARTS + 2))).as_deref(), Some("E0108"));
    assert_eq!(code(&format!("fn (%x, a={}", "[".repeat(100_000))).as_deref(), Some("E0108"));
    assert_eq!(code(&format!("{}1", "-".repeat(100_000))), None);
    assert_eq!(code(&format!("{} {} 1", "/*".repeat(100_000), "*/".repeat(100_000))), None);

    // Each of fifty lines doubles the size of the type, up to 2^50 leaves.
    let mut text = String::from("%0 = (1, 1);\n");
    for i in 1..50 {
        let _ = writeln!(text, "%{i} = (%{0}, %{0});", i - 1);
    }
    text.push_str("%49");
    let mut parsed = parse(&text, &ParseOptions::default());
    assert_eq!(parsed.diagnostics, []);
    let root = parsed.root.unwrap();
    let faults = infer_type_in_place(&mut parsed.module, &[root]).unwrap_err();
    assert_eq!(faults[0].diagnostic.code.to_string(), "E0206");
}

//! File tests of the kinds `parse` and `print`.

use byoc_core::analysis::{structural_equal, structural_equal_exprs};
use byoc_core::pass::infer_type_in_place;
use byoc_ir::ir::{ExprId, Module};
use byoc_ir::tensor::Tensor;
use byoc_ir::text::{ParseOptions, Parsed, PrintOptions, PrintedText, parse, print, print_expr};
use byoc_test_support::filetest::{Outcome, constants};
use std::sync::Arc;

/// Parses source text that must not contain errors.
pub fn read(source: &str, constants: &[Arc<Tensor>]) -> Result<Parsed, String> {
    let parsed = parse(source, &ParseOptions { constants });
    match parsed.diagnostics.first() {
        None => Ok(parsed),
        Some(first) => Err(format!("{first}\nin\n{source}")),
    }
}

/// Prints the expression of the text, or the module if the text has no expression.
fn print_root(module: &Module, root: Option<ExprId>, options: &PrintOptions<'_>) -> PrintedText {
    match root {
        Some(root) => print_expr(module, root, options),
        None => print(module, options),
    }
}

pub fn parse_case(case: &str) -> Outcome {
    let constants = constants(case)?;
    let parsed = read(case, &constants)?;
    check_round_trip(&parsed.module, parsed.root)?;
    Ok(case.to_owned())
}

/// Checks that the printed text parses to an equal module, and that this module is printed as the same text.
pub fn check_round_trip(module: &Module, root: Option<ExprId>) -> Result<(), String> {
    let text = print_root(module, root, &PrintOptions::default());
    let reparsed = read(&text.text, &text.constants)?;
    let equal = match (root, reparsed.root) {
        (Some(a), Some(b)) => structural_equal_exprs((module, a), (&reparsed.module, b)),
        _ => structural_equal(module, &reparsed.module),
    };
    equal.map_err(|difference| format!("the text does not round-trip: {difference}\n{}", text.text))?;
    let reprinted = print_root(&reparsed.module, reparsed.root, &PrintOptions::default());
    if reprinted.text != text.text {
        return Err(format!("expected the same text from both printings, found\n{}\n{}", text.text, reprinted.text));
    }
    Ok(())
}

pub fn print_case(case: &str) -> Outcome {
    let (input, _) = case.split_once("// ----\n").unwrap_or((case, ""));
    let constants = constants(input)?;
    let mut parsed = read(input, &constants)?;
    let has_types = input.lines().any(|line| line == "// types");
    if has_types {
        let roots: Vec<ExprId> = parsed.root.into_iter().collect();
        infer_type_in_place(&mut parsed.module, &roots)
            .map_err(|faults| format!("type inference failed: {}", faults[0].diagnostic))?;
    } else {
        check_round_trip(&parsed.module, parsed.root)?;
    }
    let options = PrintOptions { types: has_types, ..PrintOptions::default() };
    let text = print_root(&parsed.module, parsed.root, &options).text;
    let separator = if input.ends_with('\n') { "// ----\n" } else { "\n// ----\n" };
    Ok(format!("{input}{separator}{text}"))
}

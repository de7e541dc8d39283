//! The kinds `error` and `verifier`: the expectation is a comment on the very line.

use crate::{Outcome, constants};
use byoc_core::diag::Diagnostic;
use byoc_core::ir::{ExprId, verifier};
use byoc_core::pass::infer_type_in_place;
use byoc_core::text::{ParseOptions, parse};
use libtest_mimic::Failed;

const MARK: &str = "// error: ";

pub fn error_case(case: &str) -> Outcome {
    let constants = constants(case)?;
    let mut parsed = parse(case, &ParseOptions { constants: &constants });
    let mut diagnostics = parsed.diagnostics;
    if diagnostics.is_empty() {
        let roots: Vec<ExprId> = parsed.root.into_iter().collect();
        let faults = infer_type_in_place(&mut parsed.module, &roots).err().unwrap_or_default();
        diagnostics = faults.into_iter().map(|fault| fault.located(&parsed.spans)).collect();
    }
    if diagnostics.is_empty() {
        return Err(Failed::from("no error was found"));
    }
    Ok(annotated(case, &diagnostics))
}

pub fn verifier_case(case: &str) -> Outcome {
    let constants = constants(case)?;
    let parsed = parse(case, &ParseOptions { constants: &constants });
    if let Some(first) = parsed.diagnostics.first() {
        return Err(format!("{first}").into());
    }
    let faults = verifier::structure_faults(&parsed.module);
    if faults.is_empty() {
        return Err(Failed::from("no fault was found"));
    }
    let diagnostics: Vec<Diagnostic> = faults.into_iter().map(|fault| fault.located(&parsed.spans)).collect();
    Ok(annotated(case, &diagnostics))
}

/// The case with these errors, and no others, in its comments.
fn annotated(case: &str, diagnostics: &[Diagnostic]) -> String {
    let mut lines: Vec<String> =
        case.lines().map(|line| line.split_once(MARK).map_or(line, |(code, _)| code.trim_end()).to_owned()).collect();
    let last = lines.iter().rposition(|line| !line.trim().is_empty()).unwrap_or(0);
    for diagnostic in diagnostics {
        let start = diagnostic.labels.first().map_or(0, |label| label.span.start as usize);
        let line = case[..start].bytes().filter(|&b| b == b'\n').count().min(last);
        if let Some(line) = lines.get_mut(line) {
            line.push_str(&format!(" {MARK}{} {}", diagnostic.code, diagnostic.message));
        }
    }
    let mut text = lines.join("\n");
    if case.ends_with('\n') {
        text.push('\n');
    }
    text
}

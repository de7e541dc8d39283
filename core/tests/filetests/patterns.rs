//! File tests of the kinds `match` and `patterns`.

use crate::texts::read;
use byoc_core::pass::infer_type_in_place;
use byoc_core::pattern::{Checks, parse_pattern, parse_table};
use byoc_ir::diag::Severity;
use byoc_test_support::filetest::{Outcome, constants};

pub fn match_case(case: &str) -> Outcome {
    let constants = constants(case)?;
    let mut parsed = read(case, &constants)?;
    let root = parsed.root.ok_or("expected an expression to match, found a module")?;
    infer_type_in_place(&mut parsed.module, &[root])
        .map_err(|faults| format!("type inference failed: {}", faults[0].diagnostic))?;
    let line = |line: &str| -> Result<String, String> {
        let Some(text) = line.strip_prefix("// yes: ").or_else(|| line.strip_prefix("// no: ")) else {
            return Ok(line.to_owned());
        };
        let (pattern, _) = parse_pattern(text).map_err(|errors| format!("{text}: {}", errors[0]))?;
        let verdict = if pattern.matches(&parsed.module, root).is_some() { "yes" } else { "no" };
        Ok(format!("// {verdict}: {text}"))
    };
    let lines: Vec<String> = case.split('\n').map(line).collect::<Result<_, _>>()?;
    Ok(lines.join("\n"))
}

const SEPARATOR: &str = "# ----\n";

pub fn table_case(case: &str) -> Outcome {
    let (table, _) = case.split_once(SEPARATOR).unwrap_or((case, ""));
    let parsed = parse_table(table, Checks::Refused);
    let mut report = String::new();
    for diagnostic in &parsed.diagnostics {
        let offset = diagnostic.labels.first().map_or(0, |label| label.span.start as usize);
        let preceding_text = &table[..offset];
        let (line, column) =
            (preceding_text.matches('\n').count() + 1, offset - preceding_text.rfind('\n').map_or(0, |n| n + 1) + 1);
        let severity = if diagnostic.severity == Severity::Error { "error" } else { "warning" };
        report.push_str(&format!("# {line}:{column}: {severity} {} {}\n", diagnostic.code, diagnostic.message));
    }
    let names: Vec<&str> = parsed.entries.iter().map(|entry| &*entry.name).collect();
    report.push_str(&format!("# read: {}\n", names.join(", ")));
    Ok(format!("{table}{SEPARATOR}{report}"))
}

//! File tests of the kind `pass`.

use crate::shorthand::expand;
use crate::texts::{check_round_trip, read};
use byoc_core::analysis::structural_equal;
use byoc_core::pass::manager::{self, PassError, RunOptions};
use byoc_core::pass::{
    Candidate, DesiredLayout, Judge, PassOptions, Question, Refusal, RefusalCode, TargetRule, Verdict, infer_type,
    merge_composite,
};
use byoc_core::pattern::{Checks, Pattern, parse_table};
use byoc_ir::diag::Severity;
use byoc_ir::ir::{Module, Name};
use byoc_ir::tensor::Tensor;
use byoc_ir::text::{PrintOptions, print};
use byoc_test_support::filetest::{self, Outcome, constants, headers, is_blessing};
use std::collections::BTreeMap;
use std::sync::Arc;

const SEPARATOR: &str = "// ----\n";

pub fn pass_case(case: &str) -> Outcome {
    let (input, expected) = case.split_once(SEPARATOR).unwrap_or((case, ""));
    let constants = constants(input)?;
    let types = types(input)?;
    let module = program(input, &types, &constants)?;
    let options = options(input)?;
    let passes: Vec<&str> =
        headers(input, "pass").into_iter().flat_map(|line| line.split(',')).map(str::trim).collect();
    let result = match run(&module, &passes, &options, &checks(input)?) {
        Ok(result) => infer_type(&result)
            .map_err(|faults| format!("type inference failed on the result: {}", faults[0].diagnostic))?,
        Err(error) => {
            let lines: Vec<String> =
                error.diagnostics.iter().map(|d| format!("// error: {} {}\n", d.code, d.message)).collect();
            return Ok(format!("{input}{SEPARATOR}{}", lines.concat()));
        }
    };
    check_round_trip(&result, None)?;
    let printed = print(&result, &PrintOptions::default());
    let text = match printed.constants.iter().map(|tensor| constant_line(tensor)).collect::<Option<String>>() {
        Some(lines) => format!("{lines}{}", printed.text),
        None => printed.text,
    };
    let is_empty = expected.trim().is_empty();
    let expected =
        if expected.trim() == "// unchanged" { Ok(module.clone()) } else { program(expected, &types, &constants) };
    let difference = match expected {
        Ok(expected) => structural_equal(&result, &expected).err().map(|difference| difference.to_string()),
        Err(failed) => Some(failed),
    };
    match difference {
        // The expected text is retained if it is the same program in a different notation.
        None => Ok(case.to_owned()),
        Some(_) if is_empty || is_blessing() => {
            let text = if structural_equal(&result, &module).is_ok() { "// unchanged\n".to_owned() } else { text };
            Ok(format!("{input}{SEPARATOR}{text}"))
        }
        Some(difference) => Ok(format!("{input}{SEPARATOR}{text}// {}\n", difference.replace('\n', " "))),
    }
}

/// Parses the expected program, with its own constants if it declares any, otherwise with the constants of the input.
fn program(text: &str, types: &[(&str, &str)], constants: &[Arc<Tensor>]) -> Result<Module, String> {
    let case_constants = filetest::constants(text)?;
    read_typed(&expand(text, types), if case_constants.is_empty() { constants } else { &case_constants })
}

/// Runs the passes; a backend's checks are applied in `merge_composite`.
fn run(
    module: &Module,
    passes: &[&str],
    options: &PassOptions,
    checks: &BTreeMap<Name, Pattern>,
) -> Result<Module, PassError> {
    let mut current = module.clone();
    for pass in passes {
        let mut run = RunOptions { verify_each: true, ..RunOptions::default() };
        current = if *pass == "merge_composite" && !checks.is_empty() {
            let merge_result = merge_composite(
                &current,
                &options.patterns,
                &mut CheckingJudge { checks },
                &mut |_, _| {},
                &mut Vec::new(),
            );
            merge_result.map_err(|d| PassError { pass: (*pass).to_owned(), diagnostics: vec![*d] })?
        } else {
            manager::run(current, &[pass], options, &mut run)?.module
        };
    }
    Ok(current)
}

/// Judge that accepts a match if the pattern of the same name in `checks` also matches the root of the match.
struct CheckingJudge<'a> {
    checks: &'a BTreeMap<Name, Pattern>,
}

impl Judge for CheckingJudge<'_> {
    fn judge(&mut self, module: &Module, question: Question<'_>, candidates: &[Candidate]) -> Vec<Verdict> {
        let Question::Pattern(entry) = question else { return Vec::new() };
        let refusal = || Refusal::new(RefusalCode::UnsupportedAttr, "the check does not match");
        let verdict = |candidate: &Candidate| match self.checks.get(&entry.name) {
            Some(check) if check.matches(module, candidate.outputs[0]).is_none() => Verdict::Refused(refusal()),
            _ => Verdict::Supported,
        };
        candidates.iter().map(verdict).collect()
    }
}

fn checks(input: &str) -> Result<BTreeMap<Name, Pattern>, String> {
    let table = parse_table(&headers(input, "check").join("\n"), Checks::Refused);
    match table.diagnostics.first() {
        Some(first) => Err(format!("{first}")),
        None => Ok(table.entries.into_iter().map(|entry| (entry.name, entry.pattern)).collect()),
    }
}

fn types(input: &str) -> Result<Vec<(&str, &str)>, String> {
    let pair = |line: &str| format!("type: expected NAME = TYPE, found {line}");
    headers(input, "type").into_iter().map(|line| line.split_once(" = ").ok_or_else(|| pair(line))).collect()
}

/// Returns the line that declares a constant, if the constant has at most 64 elements.
fn constant_line(tensor: &Tensor) -> Option<String> {
    let shape: Vec<String> = tensor.shape().iter().map(usize::to_string).collect();
    let values: Vec<String> = tensor.view().to_f64s().iter().map(f64::to_string).collect();
    let line = format!("// constant: {} ({}): {}\n", tensor.dtype().name(), shape.join(", "), values.join(" "));
    (values.len() <= 64).then_some(line)
}

fn read_typed(source: &str, constants: &[Arc<Tensor>]) -> Result<Module, String> {
    let parsed = read(source, constants)?;
    infer_type(&parsed.module).map_err(|faults| format!("type inference failed: {}\n{source}", faults[0].diagnostic))
}

fn options(input: &str) -> Result<PassOptions, String> {
    let mut options = PassOptions::default();
    let table = parse_table(&headers(input, "pattern").join("\n"), Checks::Refused);
    if let Some(first) = table.diagnostics.iter().find(|d| d.severity == Severity::Error) {
        return Err(format!("{first}"));
    }
    options.patterns = table.entries;
    for line in headers(input, "annotate") {
        let (target, operators) =
            line.split_once('=').ok_or_else(|| format!("annotate: expected TARGET=OP,OP, found {line}"))?;
        options.annotate.push(TargetRule {
            target: target.trim().into(),
            operators: operators.split(',').map(str::trim).filter(|op| !op.is_empty()).map(Into::into).collect(),
        });
    }
    let flag = |key: &str, default: bool| headers(input, key).first().map_or(default, |&value| value == "true");
    options.include_non_call_ops = flag("include-non-call-ops", true);
    options.bind_constants = flag("bind-constants", true);
    if let Some(&name) = headers(input, "module-name").first() {
        options.module_name = name.to_owned();
    }
    for line in headers(input, "layout") {
        let (operator, layouts) =
            line.split_once('=').ok_or_else(|| format!("layout: expected OPERATOR=DATA,KERNEL, found {line}"))?;
        let mut layouts = layouts.split(',').map(|layout| layout.trim().into());
        let data = layouts.next().ok_or_else(|| format!("layout: expected OPERATOR=DATA,KERNEL, found {line}"))?;
        options.layouts.push(DesiredLayout { operator: operator.trim().into(), data, kernel: layouts.next() });
    }
    options.compiler = headers(input, "compiler").first().map(|&t| t.to_owned());
    options.inline_bound_to =
        headers(input, "inline-bound-to").iter().flat_map(|l| l.split(',')).map(|n| n.trim().to_owned()).collect();
    Ok(options)
}

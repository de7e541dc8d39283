//! The kind `pass`.

use crate::texts::{check_round_trip, read};
use crate::{Outcome, constants, headers};
use byoc_core::ir::{Module, structural_equal};
use byoc_core::pass::manager::{self, RunOptions};
use byoc_core::pass::{DesiredLayout, PassOptions, TargetRule, infer_type};
use byoc_core::pattern::{Checks, parse_table};
use byoc_core::tensor::Tensor;
use byoc_core::text::{PrintOptions, print};
use libtest_mimic::Failed;
use std::sync::Arc;

const SEPARATOR: &str = "// ----\n";

pub fn pass_case(case: &str) -> Outcome {
    let (input, expected) = case.split_once(SEPARATOR).unwrap_or((case, ""));
    let constants = constants(input)?;
    let module = typed(input, &constants)?;
    let options = options(input)?;
    let passes: Vec<&str> =
        headers(input, "pass").into_iter().flat_map(|line| line.split(',')).map(str::trim).collect();
    let mut run = RunOptions { verify_each: true, ..RunOptions::default() };
    let ran = manager::run(module, &passes, &options, &mut run).map_err(|error| error.to_string())?;
    let result = infer_type(&ran.module).map_err(|faults| format!("the result does not type: {faults:?}"))?;
    check_round_trip(&result, None)?;
    let printed = print(&result, &PrintOptions::default());
    // The expected program has constants of its own, or those of the input.
    let own = crate::constants(expected)?;
    let text = match printed.constants.iter().map(|tensor| declared(tensor)).collect::<Option<String>>() {
        Some(lines) => format!("{lines}{}", printed.text),
        None => printed.text,
    };
    let difference = match typed(expected, if own.is_empty() { &constants } else { &own }) {
        Ok(expected) => structural_equal(&result, &expected).err().map(|difference| difference.to_string()),
        Err(failed) => failed.message().map(str::to_owned),
    };
    match difference {
        // The same program, however it is written down.
        None => Ok(case.to_owned()),
        Some(difference) => Ok(format!("{input}{SEPARATOR}{text}// {}\n", difference.replace('\n', " "))),
    }
}

/// The line that declares a constant, if it is short.
fn declared(tensor: &Tensor) -> Option<String> {
    let shape: Vec<String> = tensor.shape().iter().map(usize::to_string).collect();
    let values: Vec<String> = tensor.view().to_f64s().iter().map(f64::to_string).collect();
    let line = format!("// constant: {} ({}): {}\n", tensor.dtype().name(), shape.join(", "), values.join(" "));
    (values.len() <= 64).then_some(line)
}

fn typed(source: &str, constants: &[Arc<Tensor>]) -> Result<Module, Failed> {
    let parsed = read(source, constants)?;
    infer_type(&parsed.module).map_err(|faults| format!("does not type: {faults:?}\n{source}").into())
}

fn options(input: &str) -> Result<PassOptions, Failed> {
    let mut options = PassOptions::default();
    let table = parse_table(&headers(input, "pattern").join("\n"), Checks::Refused);
    if let Some(first) = table.diagnostics.first() {
        return Err(format!("{first}").into());
    }
    options.patterns = table.entries;
    for line in headers(input, "annotate") {
        let (target, operators) = line.split_once('=').ok_or("annotate: target=op,op")?;
        options.annotate.push(TargetRule {
            target: target.trim().into(),
            operators: operators.split(',').map(|op| op.trim().into()).collect(),
        });
    }
    let flag = |key: &str, default: bool| headers(input, key).first().map_or(default, |&value| value == "true");
    options.include_non_call_ops = flag("include-non-call-ops", true);
    options.bind_constants = flag("bind-constants", true);
    if let Some(&name) = headers(input, "module-name").first() {
        options.module_name = name.to_owned();
    }
    for line in headers(input, "layout") {
        let (operator, layouts) = line.split_once('=').ok_or("layout: operator=data,kernel")?;
        let mut layouts = layouts.split(',').map(|layout| layout.trim().into());
        let data = layouts.next().ok_or("layout: operator=data,kernel")?;
        options.layouts.push(DesiredLayout { operator: operator.trim().into(), data, kernel: layouts.next() });
    }
    options.compiler = headers(input, "compiler").first().map(|&t| t.to_owned());
    options.inline_bound_to =
        headers(input, "inline-bound-to").iter().flat_map(|l| l.split(',')).map(|n| n.trim().to_owned()).collect();
    Ok(options)
}

//! File tests of the kinds `error` and `verifier`: the expectation is a comment on the line of the error.

use byoc_core::analysis::verifier;
use byoc_core::pass::infer_type_in_place;
use byoc_ir::diag::Diagnostic;
use byoc_ir::ir::{Expr, ExprId, Module, Name, Type};
use byoc_ir::op;
use byoc_ir::tensor::DType;
use byoc_ir::text::{ParseOptions, parse, print_faults};
use byoc_test_support::filetest::{Outcome, constants, headers};

const MARK: &str = "// error: ";

pub fn error_case(case: &str) -> Outcome {
    let constants = constants(case)?;
    let mut parsed = parse(case, &ParseOptions { constants: &constants });
    if parsed.diagnostics.is_empty()
        && let Err(error) = parsed.define_main()
    {
        parsed.diagnostics.push(*error);
    }
    let mut diagnostics = parsed.diagnostics;
    if diagnostics.is_empty() {
        let faults = infer_type_in_place(&mut parsed.module, &[]).err().unwrap_or_default();
        diagnostics = faults.into_iter().map(|fault| fault.located(&parsed.spans)).collect();
    }
    if diagnostics.is_empty() {
        return Err("expected an error, found none".to_owned());
    }
    Ok(annotated(case, &diagnostics))
}

pub fn verifier_case(case: &str) -> Outcome {
    let constants = constants(case)?;
    let mut parsed = parse(case, &ParseOptions { constants: &constants });
    if let Some(first) = parsed.diagnostics.first() {
        return Err(format!("{first}"));
    }
    let is_typed = !headers(case, "typed").is_empty();
    if is_typed && let Err(faults) = infer_type_in_place(&mut parsed.module, &[]) {
        return Err(format!("type inference failed: {}", faults[0].diagnostic));
    }
    for line in headers(case, "break") {
        damage(&mut parsed.module, line).ok_or_else(|| format!("break: expected a known defect, found {line}"))?;
    }
    let module = &parsed.module;
    let faults = if is_typed { verifier::faults(module) } else { verifier::structure_faults(module) };
    if faults.is_empty() {
        return Err("expected a violation, found none".to_owned());
    }
    // Printing must succeed on every module, however invalid.
    let printed = print_faults(module, &faults);
    if let Some(fault) = faults.iter().find(|fault| !printed.contains(&fault.diagnostic.message)) {
        return Err(format!("expected the message {:?}, found\n{printed}", fault.diagnostic.message));
    }
    let diagnostics: Vec<Diagnostic> = faults.into_iter().map(|fault| fault.located(&parsed.spans)).collect();
    Ok(annotated(case, &diagnostics))
}

/// Breaks a module in a way that no text can express, as an incorrect pass would.
fn damage(module: &mut Module, line: &str) -> Option<()> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    match *fields.as_slice() {
        // Removes the named global.
        ["drop", name] => {
            module.globals.remove(name.strip_prefix('@')?)?;
        }
        // Makes a global refer to the function of another global, or to a named expression.
        ["let", name, "be", target] => {
            let id = match target.strip_prefix('@') {
                Some(target) => *module.globals.get(target)?,
                None => find_variable(module, target)?,
            };
            module.globals.insert(name.strip_prefix('@')?.into(), id);
        }
        // Replaces an operand of an expression. The name of an operator denotes its last call.
        ["give", user, "operand", index, operand] => {
            let (user, operand) = (find_variable(module, user)?, find_variable(module, operand)?);
            let (target_index, mut operand_index) = (index.parse::<usize>().ok()?, 0);
            module.nodes[user].expr.map_operands(|original| {
                operand_index += 1;
                if operand_index == target_index + 1 { operand } else { original }
            });
        }
        ["rename", name, "to", new] => {
            let id = find_variable(module, name)?;
            match &mut module.nodes[id].expr {
                Expr::Var(var) => var.name = new.into(),
                Expr::Function(function) => function.type_params = new.split(',').map(Name::from).collect(),
                Expr::Constructor(name) => *name = new.into(),
                _ => return None,
            }
        }
        ["set", operator, key, value] => {
            let id = find_variable(module, operator)?;
            let Expr::Call(call) = &mut module.nodes[id].expr else { return None };
            call.attrs = match value {
                "nothing" => call.attrs.without(key),
                text => match text.parse::<f64>() {
                    Ok(value) => call.attrs.with(key, value),
                    Err(_) => call.attrs.with(key, text),
                },
            };
        }
        // Replaces all type definitions.
        ["types", ..] => {
            let text = format!("#[version = \"0.0.5\"]\n{}", line.strip_prefix("types")?);
            module.types = parse(&text, &ParseOptions::default()).module.types;
        }
        ["retype", name, dtype] => {
            let id = find_variable(module, name)?;
            module.nodes[id].ty = match dtype {
                "_" => Type::Unknown,
                dtype => Type::scalar(DType::parse(dtype)?),
            };
        }
        ["complete", "match"] => {
            let ids: Vec<ExprId> = module.nodes.ids().collect();
            for id in ids {
                if let Expr::Match(m) = &mut module.nodes[id].expr {
                    m.complete = true;
                }
            }
        }
        _ => return None,
    }
    Some(())
}

/// Returns the last expression with the given name: `%x`, the name of an operator or a constructor, or `tuple`. For
/// `@f`, returns the function.
fn find_variable(module: &Module, name: &str) -> Option<ExprId> {
    let is_named = |expr: &Expr| match expr {
        Expr::Var(var) => name.strip_prefix('%') == Some(&*var.name),
        Expr::Call(_) => expr.as_op_call().is_some_and(|(op, _)| op::get(op).name == name),
        Expr::Constructor(constructor) => **constructor == *name,
        Expr::Tuple(_) => name == "tuple",
        _ => false,
    };
    match name.strip_prefix('@') {
        Some(global) => module.globals.get(global).copied(),
        None => module.nodes.iter().rev().find(|(_, node)| is_named(&node.expr)).map(|(id, _)| id),
    }
}

/// Returns the case with exactly the given diagnostics in its comments.
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

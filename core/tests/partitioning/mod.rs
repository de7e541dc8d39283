//! Tests of the partitioning passes on worked cases: the program before, and the expected program after.
//!
//! Programs are Relay text with two shorthands: `B[t](e)` and `E[t](e)` are the annotations of target `t`, and `T` is
//! `Tensor[(10, 10), float32]` unless a case specifies otherwise.

mod annotate_target;
mod backends;
mod claims;
mod control;
mod laws;
mod matching;
mod merge_compiler_regions;
mod merge_composite;
mod notation;
mod partition_graph;
mod rewriting;
mod scale;

use crate::shorthand;
use byoc_core::analysis::structural_equal;
use byoc_core::pass::manager::{RunOptions, run};
use byoc_core::pass::{PassOptions, TargetRule, infer_type};
use byoc_core::pattern::{Checks, Entry, parse_table};
use byoc_ir::ir::Module;
use byoc_ir::text::{ParseOptions, PrintOptions, parse, print};
use std::sync::Arc;

/// Expands the shorthands.
fn expand(text: &str) -> String {
    shorthand::expand(text, &[("T", "Tensor[(10, 10), float32]")])
}

/// Parses and types a module; `meta[relay.Constant][i]` refers to `constants[i]`.
fn module_with(text: &str, constants: &[Arc<byoc_ir::tensor::Tensor>]) -> Module {
    let source = format!("#[version = \"0.0.5\"]\n{}", expand(text));
    let parsed = parse(&source, &ParseOptions { constants });
    assert!(parsed.diagnostics.is_empty(), "{:?}\n{source}", parsed.diagnostics);
    match infer_type(&parsed.module) {
        Ok(module) => module,
        Err(faults) => panic!("{faults:?}\n{source}"),
    }
}

fn module(text: &str) -> Module {
    module_with(text, &[])
}

fn table(text: &str) -> Vec<Entry> {
    let parsed = parse_table(text, Checks::Allowed);
    assert!(parsed.diagnostics.is_empty(), "{:?}", parsed.diagnostics);
    parsed.entries
}

fn print_module(module: &Module) -> String {
    print(module, &PrintOptions::default()).text
}

/// Runs passes on a module, and verifies the module after each pass.
fn passes(module: &Module, names: &[&str], options: &PassOptions) -> Module {
    let mut run_options = RunOptions { verify_each: true, ..RunOptions::default() };
    match run(module.clone(), names, options, &mut run_options) {
        Ok(output) => output.module,
        Err(error) => panic!("{error}\n{}", print_module(module)),
    }
}

fn assert_equal(actual: &Module, expected: &Module) {
    if let Err(difference) = structural_equal(actual, expected) {
        panic!("{difference}\nactual:\n{}\nexpected:\n{}", print_module(actual), print_module(expected));
    }
}

/// Runs passes on the program `before` and asserts that the result equals `after`.
fn check(names: &[&str], options: &PassOptions, before: &str, after: &str) {
    assert_equal(&passes(&module(before), names, options), &module(after));
}

fn patterns(text: &str) -> PassOptions {
    PassOptions { patterns: table(text), ..PassOptions::default() }
}

/// Creates options for `annotate_target` from targets and their operators, in priority order.
fn targets(rules: &[(&str, &[&str])], include_non_call_ops: bool) -> PassOptions {
    let annotate = rules
        .iter()
        .map(|(target, operators)| TargetRule {
            target: (*target).into(),
            operators: operators.iter().map(|&name| name.into()).collect(),
        })
        .collect();
    PassOptions { annotate, include_non_call_ops, ..PassOptions::default() }
}

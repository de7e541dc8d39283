//! Tests of the hook through which a backend rewrites its functions, and of the inlining limits.

use super::{assert_equal, module};
use byoc_core::pass::{fold_constant, inline, partition_graph_with};
use byoc_ir::diag::Diagnostic;
use byoc_ir::ir::Module;
use std::fmt::Write;

const PROGRAM: &str = "def @main(%x: T) { E[b](exp(B[b](E[a](abs(B[a](%x)))))) }";

type HookResult = Result<Option<Module>, Box<Diagnostic>>;

fn run_optimizer(optimize: &mut dyn FnMut(&str, &Module) -> HookResult) -> Result<Module, Box<Diagnostic>> {
    partition_graph_with(&module(PROGRAM), "default", true, optimize)
}

#[test]
fn a_backend_rewrites_its_own_functions() {
    let mut names = Vec::new();
    let result = run_optimizer(&mut |target, region| {
        names.push(target.to_owned());
        assert_eq!(region.globals.len(), 1);
        assert!(region.main().is_some_and(|main| main.attrs.is_empty()));
        Ok((target == "a").then(|| module("def @main(%x: T) { nn.relu(%x) }")))
    });
    assert_eq!(names, ["a", "b"]);
    let attrs = |target: &str, number: u32| {
        format!("Primitive=1, Inline=1, Compiler=\"{target}\", global_symbol=\"tvmgen_default_{target}_main_{number}\"")
    };
    let expected = format!(
        "def @main(%x: T) {{ @tvmgen_default_b_main_1(@tvmgen_default_a_main_0(%x)) }}
         def @tvmgen_default_a_main_0(%p: T, {}) -> T {{ nn.relu(%p) }}
         def @tvmgen_default_b_main_1(%p: T, {}) -> T {{ exp(%p) }}",
        attrs("a", 0),
        attrs("b", 1)
    );
    assert_equal(&result.unwrap_or_else(|d| panic!("{d}")), &module(&expected));
}

#[test]
fn rejects_invalid_results_of_the_hook() {
    let cases = [
        ("has no main", "def @other(%x: T) { exp(%x) }"),
        ("changed the type of", "def @main(%x: T, %y: T) { exp(%x) }"),
        ("found a reference to @f", "def @f(%x: T) -> T { exp(%x) } def @main(%x: T) -> T { @f(%x) }"),
    ];
    for (reason, hook_result) in cases {
        let error = run_optimizer(&mut |_, _| Ok(Some(module(hook_result)))).expect_err(reason);
        assert_eq!(error.code.to_string(), "E0346");
        assert!(error.message.contains(reason), "{error}");
    }
    // Any pass works on the module of a region.
    assert!(run_optimizer(&mut |_, region| fold_constant(region).map(Some)).is_ok());
}

#[test]
fn rejects_exponential_inlining() {
    let mut text = "def @f0(%x: T, Inline=1) -> T { exp(%x) }\n".to_owned();
    for i in 1..64 {
        let _ = writeln!(text, "def @f{i}(%x: T, Inline=1) -> T {{ @f{}(@f{}(%x)) }}", i - 1, i - 1);
    }
    text.push_str("def @main(%x: T) -> T { @f63(%x) }");
    let error = inline(&module(&text)).expect_err("expected an error for 2^63 operators");
    assert_eq!(error.code.to_string(), "E0343");
}

//! `byoc opt`: single passes on Relay text, and comparison of the result with an expected module.

use crate::byoc;
use std::path::Path;

const PROGRAM: &str = "#[version = \"0.0.5\"]
def @main(%a: Tensor[(4), float32], %b: Tensor[(4), float32]) { exp(nn.relu(add(%a, %b))) }
";

const FOUR_PASSES: &str = "merge_composite,annotate_target,merge_compiler_regions,partition_graph";

/// Directory with the module, a pattern file and the expected results.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Files {
        let files = Files(tempfile::tempdir().unwrap());
        files.write("program.relay", PROGRAM);
        files.write("patterns.txt", "# Sums.\nt.sum: nn.relu(add(*, *))\n");
        files
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.path().join(name), text).unwrap();
    }

    fn opt(&self, args: &[&str]) -> crate::CommandOutput {
        let is_file = |arg: &str| [".relay", ".txt"].iter().any(|end| arg.ends_with(end));
        let path_of = |arg: &&str| match is_file(arg) {
            true => Path::join(self.0.path(), arg).display().to_string(),
            false => (*arg).to_owned(),
        };
        byoc(["opt".to_owned(), path_of(&"program.relay")].into_iter().chain(args.iter().map(path_of)))
    }
}

#[test]
fn prints_expression_unchanged_without_passes() {
    let files = Files::new();
    files.write("program.relay", "free_var %y: int32; free_var %x; %0 = %x; (%0, 1 * 2 + %y)");
    let output = files.opt(&[]);
    let text = "#[version = \"0.0.5\"]
def @main(%y: int32, %x) {
  %0 = multiply(1, 2);
  %1 = add(%0, %y);
  (%x, %1)
}
";
    assert_eq!((output.code, output.out.as_str()), (0, text), "{}", output.err);
    // With passes or a comparison the module must be well typed. A comparison does not require passes.
    assert!(files.opt(&["--pass", "infer_type"]).err.contains("E0205"));
    files.write("program.relay", "free_var %x: int32; %x + 1");
    files.write("same.relay", "fn (%a: int32) { add(%a, 1) }");
    files.write("other.relay", "fn (%a: int32) { add(%a, 2) }");
    assert_eq!(files.opt(&["--expect", "same.relay"]).code, 0);
    assert_eq!(files.opt(&["--expect", "other.relay"]).code, 1);
}

#[test]
fn four_passes_give_expected_program() {
    let files = Files::new();
    files.write(
        "expected.relay",
        "#[version = \"0.0.5\"]
def @main(%a: Tensor[(4), float32], %b: Tensor[(4), float32]) { exp(@tvmgen_m_t_main_0(%a, %b)) }
def @tvmgen_m_t_main_0(%p: Tensor[(4), float32], %q: Tensor[(4), float32], global_symbol=\"tvmgen_m_t_main_0\", Compiler=\"t\", Primitive=1, Inline=1) {
  fn (%c: Tensor[(4), float32], %d: Tensor[(4), float32], Composite=\"t.sum\", PartitionedFromPattern=\"add_nn.relu_\") { nn.relu(add(%c, %d)) }(%p, %q)
}
",
    );
    // A target without operators supports the composites prefixed with its name.
    let four_pass_args =
        ["--pass", FOUR_PASSES, "--patterns", "patterns.txt", "--annotate", "t=", "--module-name", "m"];
    files.opt(&[&four_pass_args[..], &["--expect", "expected.relay"]].concat()).ok();
    let output = files.opt(&four_pass_args).ok();
    assert!(output.out.contains("def @tvmgen_m_t_main_0"), "{}", output.out);
    let different_output =
        files.opt(&[&four_pass_args[..], &["--annotate", "u=exp", "--expect", "expected.relay"]].concat());
    assert!(different_output.out.contains("+  @tvmgen_m_u_main_"), "expected a diff, found:\n{}", different_output.out);
    different_output.fails_with("E0350");
}

#[test]
fn reports_three_mistakes_in_pattern_file() {
    let files = Files::new();
    files.write("patterns.txt", "t.a: nn.rellu(*)\nt.b: add(*\nt.c: add(*, y)\nt.d: exp(*)\n");
    let output = files.opt(&["--pass", "merge_composite", "--patterns", "patterns.txt"]).fails_with("E0311");
    assert_eq!(output.err.matches("error[").count(), 3, "{}", output.err);
    output.stderr_contains(&[
        "patterns.txt:1:6",
        "did you mean \"nn.relu\"?",
        "patterns.txt:2:",
        "patterns.txt:3:13",
        "in entry t.c",
    ]);
    files.write("patterns.txt", "t.a: clip{min=0}(*)\n");
    let warning_output = files.opt(&["--pass", "merge_composite", "--patterns", "patterns.txt"]).ok();
    warning_output.stderr_contains(&["warning[E0313]", "clip has no attribute \"min\""]);
}

#[test]
fn help_lists_passes() {
    let help = byoc(["opt", "--help"]).ok().out;
    for pass in byoc_core::pass::manager::PASSES {
        assert!(help.lines().any(|line| line.trim_start().starts_with(pass.name)), "expected {} in\n{help}", pass.name);
    }
}

#[test]
fn rejects_unknown_passes_operators_and_functions() {
    let files = Files::new();
    files.opt(&["--pass", "annotate_targets"]).fails_with("E0301").stderr_contains(&["\"annotate_target\""]);
    files.opt(&["--pass", "annotate_target", "--annotate", "t=expp"]).fails_with("E0204").stderr_contains(&["\"exp\""]);
    let bound = ["--pass", "inline_compiler_functions_bound_to", "--inline-bound-to"];
    files.opt(&[&bound[..], &["@mian"]].concat()).fails_with("E0340").stderr_contains(&["\"@mian\""]);
    files.opt(&[&bound[..], &["@main"]].concat()).fails_with("E0342");
    assert_eq!(files.opt(&["--pass", "annotate_target", "--annotate", "=exp"]).code, 2);
    assert_eq!(files.opt(&["--pass", "partition_graph", "--bind-constants", "perhaps"]).code, 2);
}

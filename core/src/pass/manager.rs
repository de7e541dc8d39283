//! Pass table, and the loop that runs, times, observes and verifies the passes.

use super::{AcceptAll, PassOptions};
use crate::analysis::verify;
use byoc_ir::cancel;
use byoc_ir::diag::{Diagnostic, codes, nearest};
use byoc_ir::ir::{Fault, Module};
use std::borrow::Cow;
use std::fmt;
use std::time::{Duration, Instant};

/// Function that transforms a module. Warnings are appended to the list.
pub type PassFn = fn(&Module, &PassOptions, &mut Vec<Diagnostic>) -> Result<Module, Box<Diagnostic>>;

/// Entry of the pass table.
#[derive(Clone, Copy)]
pub struct Pass {
    /// Name on the command line.
    pub name: &'static str,
    /// One-line description.
    pub doc: &'static str,
    /// Implementation of the pass.
    pub run: PassFn,
}

/// All passes, sorted by name.
pub const PASSES: &[Pass] = &[
    Pass {
        name: "annotate_target",
        doc: "marks the values that enter and leave the operators of each target",
        run: |module, options, _| {
            crate::pass::partition::annotate_target(module, &options.annotate, options.include_non_call_ops)
        },
    },
    Pass {
        name: "canonicalize_ops",
        doc: "rewrites nn.bias_add as expand_dims and add",
        run: |module, _, _| crate::pass::simplify::canonicalize_ops(module),
    },
    Pass {
        name: "convert_layout",
        doc: "converts convolutions and pooling to the requested layout",
        run: |module, options, warnings| crate::pass::simplify::convert_layout(module, &options.layouts, warnings),
    },
    Pass {
        name: "dead_code_elimination",
        doc: "removes unused code",
        run: |module, _, _| crate::pass::simplify::dead_code_elimination(module),
    },
    Pass {
        name: "defuse_ops",
        doc: "inlines fused functions",
        run: |module, _, _| crate::pass::simplify::defuse_ops(module),
    },
    Pass {
        name: "eliminate_common_subexpr",
        doc: "merges equal expressions",
        run: |module, _, _| crate::pass::simplify::eliminate_common_subexpr(module),
    },
    Pass {
        name: "fake_quantization_to_integer",
        doc: "replaces float operators between dequantize and quantize by integer operators",
        run: |module, _, _| crate::pass::quantize::fake_quantization_to_integer(module),
    },
    Pass {
        name: "flatten_nested_tuples",
        doc: "moves the output boundary of a region from a tuple to its fields",
        run: |module, _, _| crate::pass::partition::flatten_nested_tuples(module),
    },
    Pass {
        name: "fold_constant",
        doc: "evaluates expressions that depend only on constants",
        run: |module, _, _| crate::pass::simplify::fold_constant(module),
    },
    Pass {
        name: "fold_scale_axis",
        doc: "folds scales into the weights of the preceding operator",
        run: |module, _, _| crate::pass::simplify::fold_scale_axis(module),
    },
    Pass {
        name: "fuse_requantize",
        doc: "fuses quantized convolutions and matrix products with bias, requantization and bounds, for the host",
        run: |module, _, _| crate::pass::quantize::fuse_requantize(module),
    },
    Pass {
        name: "infer_type",
        doc: "infers all types and completes missing annotations",
        run: |module, _, _| super::infer_type(module).map_err(first_fault),
    },
    Pass {
        name: "inline",
        doc: "inlines functions with Inline=1",
        run: |module, _, _| crate::pass::simplify::inline(module),
    },
    Pass {
        name: "inline_compiler_functions_bound_to",
        doc: "inlines functions of backends",
        run: |module, options, _| super::inline_compiler_functions_bound_to(module, &options.inline_bound_to),
    },
    Pass {
        name: "mark_compiler_functions_extern",
        doc: "marks functions of backends as external",
        run: |module, options, _| super::mark_compiler_functions_extern(module, options.compiler.as_deref()),
    },
    Pass {
        name: "merge_compiler_regions",
        doc: "merges adjacent regions of one target",
        run: |module, _, _| crate::pass::partition::merge_compiler_regions(module),
    },
    Pass {
        name: "merge_composite",
        doc: "turns each match of a pattern table into a composite function",
        run: |module, options, warnings| {
            crate::pass::partition::merge_composite(module, &options.patterns, &mut AcceptAll, &mut |_, _| {}, warnings)
        },
    },
    Pass {
        name: "monomorphize",
        doc: "specializes functions with type parameters for the types of each use",
        run: |module, _, _| crate::pass::simplify::monomorphize(module),
    },
    Pass {
        name: "outline_compiler_functions",
        doc: "turns function literals of backends into global functions",
        run: |module, options, _| {
            crate::pass::partition::outline_compiler_functions(module, options.compiler.as_deref())
        },
    },
    Pass {
        name: "partition_graph",
        doc: "turns each region into a global function of its backend",
        run: |module, options, _| {
            crate::pass::partition::partition_graph(module, &options.module_name, options.bind_constants)
        },
    },
    Pass {
        name: "qnn_canonicalize",
        doc: "lowers QNN operators to plain integer and float operators",
        run: |module, _, _| crate::pass::quantize::qnn_canonicalize(module),
    },
    Pass {
        name: "remove_default_annotations",
        doc: "removes annotations of the default target",
        run: |module, _, _| crate::pass::partition::remove_default_annotations(module),
    },
    Pass {
        name: "simplify_inference",
        doc: "rewrites batch normalization as multiply and add, and removes dropout",
        run: |module, _, _| crate::pass::simplify::simplify_inference(module),
    },
    Pass {
        name: "tabulate",
        doc: "replaces chains of elementwise operators on 8-bit integers by tables of their results, for the host",
        run: |module, _, _| crate::pass::quantize::tabulate(module),
    },
    Pass {
        name: "to_a_normal_form",
        doc: "binds every intermediate value by a let",
        run: |module, _, _| crate::pass::simplify::to_a_normal_form(module),
    },
    Pass {
        name: "widen_float16",
        doc: "computes float16 and bfloat16 in float32, between inputs and outputs of the same types",
        run: |module, _, _| crate::pass::simplify::widen_float16(module),
    },
];

/// Returns the diagnostic of the first fault, with a note that counts the remaining faults.
fn first_fault(faults: Vec<Fault>) -> Box<Diagnostic> {
    let remaining = faults.len().saturating_sub(1);
    let first = faults.into_iter().next().map(|fault| fault.diagnostic);
    let first = first.unwrap_or_else(|| {
        Diagnostic::error(codes::types::CANNOT_INFER, "type inference failed without a reported fault")
    });
    Box::new(if remaining == 0 { first } else { first.note(format!("further errors: {remaining}")) })
}

/// Returns the pass named `name`.
///
/// # Errors
/// If `name` is not the name of a pass; the diagnostic suggests the nearest name.
pub fn find(name: &str) -> Result<&'static Pass, Box<Diagnostic>> {
    PASSES.iter().find(|pass| pass.name == name).ok_or_else(|| {
        let diagnostic = Diagnostic::error(codes::passes::UNKNOWN_PASS, format!("unknown pass \"{name}\""));
        Box::new(match nearest(name, PASSES.iter().map(|pass| pass.name)) {
            Some(suggestion) => diagnostic.help(format!("did you mean \"{suggestion}\"?")),
            None => {
                let names: Vec<_> = PASSES.iter().map(|pass| pass.name).collect();
                diagnostic.note(format!("available passes: {}", names.join(", ")))
            }
        })
    })
}

/// Options for running a list of passes.
#[derive(Default)]
pub struct RunOptions<'a> {
    /// True if the module is verified before the first pass and after each pass; a failure is attributed to the pass.
    pub verify_each: bool,
    /// Maximum number of passes to run. Bisecting this limit finds the pass that breaks a module.
    pub step_limit: Option<usize>,
    /// Callback after each pass, with its name and the resulting module.
    pub after_pass: Option<&'a mut dyn FnMut(&str, &Module)>,
}

/// Running time of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Name of the pass.
    pub pass: &'static str,
    /// Elapsed time, without verification.
    pub time: Duration,
}

/// Result of running a list of passes.
#[derive(Debug)]
pub struct PassRun {
    /// Module after the last pass.
    pub module: Module,
    /// One timing per pass that ran, in order.
    pub timings: Vec<Timing>,
    /// Warnings of the passes, in order.
    pub warnings: Vec<Diagnostic>,
}

/// Failure of a pass, or of the verification of its result.
#[derive(Debug)]
pub struct PassError {
    /// Name of the pass, or `the input` if the verification before the first pass failed.
    pub pass: String,
    /// Errors reported by the pass or the verifier.
    pub diagnostics: Vec<Diagnostic>,
}

impl PassError {
    fn of(pass: &str, diagnostic: impl Into<Box<Diagnostic>>) -> PassError {
        PassError { pass: pass.to_owned(), diagnostics: vec![*diagnostic.into()] }
    }
}

impl fmt::Display for PassError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.pass)?;
        self.diagnostics.iter().try_for_each(|d| write!(f, " {d}"))
    }
}

impl std::error::Error for PassError {}

/// Pipeline step: a pass from the table, or a stateful transformation.
pub struct Step<'a> {
    /// Name in diagnostics and dumps.
    name: &'static str,
    run: Box<StepFn<'a>>,
}

type StepFn<'a> = dyn FnMut(&Module, &PassOptions, &mut Vec<Diagnostic>) -> Result<Module, Box<Diagnostic>> + 'a;

impl<'a> Step<'a> {
    /// Creates a step that runs the pass named `name`.
    ///
    /// # Errors
    /// If no pass is named `name`.
    pub fn pass(name: &str) -> Result<Step<'a>, Box<Diagnostic>> {
        let pass = find(name)?;
        Ok(Step { name: pass.name, run: Box::new(pass.run) })
    }

    /// Creates a step from a closure, for transformations that need more than the options, such as backend verdicts.
    pub fn new(
        name: &'static str,
        run: impl FnMut(&Module, &PassOptions, &mut Vec<Diagnostic>) -> Result<Module, Box<Diagnostic>> + 'a,
    ) -> Step<'a> {
        Step { name, run: Box::new(run) }
    }
}

/// Runs passes by name, in order. All names are looked up before the first pass runs.
///
/// # Errors
/// If a name is unknown, or a pass fails as in [`run_steps`].
pub fn run(
    module: Module,
    names: &[&str],
    options: &PassOptions,
    run: &mut RunOptions<'_>,
) -> Result<PassRun, PassError> {
    let steps = names.iter().map(|name| Step::pass(name).map_err(|d| PassError::of(name, d)));
    run_steps(Cow::Owned(module), steps.collect::<Result<_, PassError>>()?, options, run)
}

/// Runs steps in order.
///
/// # Errors
/// If a pass fails, or a module does not verify; the error names the pass. The code is E0617 or E0618 if this thread
/// was [cancelled](cancel).
pub fn run_steps(
    mut module: Cow<'_, Module>,
    steps: Vec<Step<'_>>,
    options: &PassOptions,
    run: &mut RunOptions<'_>,
) -> Result<PassRun, PassError> {
    let check = |pass: &str, module: &Module| match run.verify_each {
        true => verify(module).map_err(|diagnostics| PassError { pass: pass.to_owned(), diagnostics }),
        false => Ok(()),
    };
    // The input of infer_type may be untyped, which the verifier would report.
    if steps.first().is_some_and(|step| step.name != "infer_type") {
        check("the input", &module)?;
    }
    let (mut timings, mut warnings, total) = (Vec::new(), Vec::new(), steps.len());
    for mut step in steps.into_iter().take(run.step_limit.unwrap_or(usize::MAX)) {
        let name = step.name;
        cancel::check(|| format!("stopped before pass {name}, after {} of {total} passes", timings.len()))
            .map_err(|d| PassError::of(name, d))?;
        let start = Instant::now();
        let result = (step.run)(&module, options, &mut warnings).map_err(|d| PassError::of(name, d))?;
        timings.push(Timing { pass: name, time: start.elapsed() });
        module = Cow::Owned(result);
        // The module is incomplete if the pass ended early because of a cancellation.
        cancel::check(|| format!("stopped during pass {name}")).map_err(|d| PassError::of(name, d))?;
        check(name, &module)?;
        if let Some(after_pass) = &mut run.after_pass {
            after_pass(name, &module);
        }
    }
    Ok(PassRun { module: module.into_owned(), timings, warnings })
}

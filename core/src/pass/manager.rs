//! The table of passes, and the loop that runs, times, watches and verifies them.

use super::{AcceptAll, PassOptions};
use crate::diag::{Diagnostic, codes, nearest};
use crate::ir::{Fault, Module, verify};
use crate::stop;
use std::fmt;
use std::time::{Duration, Instant};

/// What a pass does to a module. Warnings go to the list.
pub type PassFn = fn(&Module, &PassOptions, &mut Vec<Diagnostic>) -> Result<Module, Box<Diagnostic>>;

/// A pass.
#[derive(Clone, Copy)]
pub struct Pass {
    /// Its name on the command line.
    pub name: &'static str,
    /// One line: what it does.
    pub doc: &'static str,
    /// What it is.
    pub run: PassFn,
}

/// Every pass, by name.
pub const PASSES: &[Pass] = &[
    Pass {
        name: "annotate_target",
        doc: "marks where values enter and leave what targets take",
        run: |module, options, _| super::annotate_target(module, &options.annotate, options.include_non_call_ops),
    },
    Pass {
        name: "canonicalize_ops",
        doc: "writes nn.bias_add as expand_dims and add",
        run: |module, _, _| super::canonicalize_ops(module),
    },
    Pass {
        name: "convert_layout",
        doc: "moves convolutions and pooling to the layout that is asked for",
        run: |module, options, warnings| super::convert_layout(module, &options.layouts, warnings),
    },
    Pass {
        name: "dead_code_elimination",
        doc: "removes what nothing uses",
        run: |module, _, _| super::dead_code_elimination(module),
    },
    Pass { name: "defuse_ops", doc: "takes fused functions apart", run: |module, _, _| super::defuse_ops(module) },
    Pass {
        name: "eliminate_common_subexpr",
        doc: "computes equal expressions once",
        run: |module, _, _| super::eliminate_common_subexpr(module),
    },
    Pass {
        name: "fake_quantization_to_integer",
        doc: "computes with integers what is dequantized, computed and quantized again",
        run: |module, _, _| super::fake_quantization_to_integer(module),
    },
    Pass {
        name: "flatten_nested_tuples",
        doc: "ends a region in the fields of its tuple",
        run: |module, _, _| super::flatten_nested_tuples(module),
    },
    Pass {
        name: "fold_constant",
        doc: "computes what depends on constants alone",
        run: |module, _, _| super::fold_constant(module),
    },
    Pass {
        name: "fold_scale_axis",
        doc: "moves scales into the weights of the operator before them",
        run: |module, _, _| super::fold_scale_axis(module),
    },
    Pass {
        name: "fuse_requantize",
        doc: "makes one operator of a quantized product, its bias, requantization and bounds, for the host",
        run: |module, _, _| super::fuse_requantize(module),
    },
    Pass {
        name: "infer_type",
        doc: "types every expression and completes what is not annotated",
        run: |module, _, _| super::infer_type(module).map_err(first_fault),
    },
    Pass {
        name: "inline",
        doc: "puts functions with Inline=1 where they are called",
        run: |module, _, _| super::inline(module),
    },
    Pass {
        name: "inline_compiler_functions_bound_to",
        doc: "puts functions of backends back where they are called",
        run: |module, options, _| super::inline_compiler_functions_bound_to(module, &options.inline_bound_to),
    },
    Pass {
        name: "mark_compiler_functions_extern",
        doc: "leaves functions of backends to be compiled elsewhere",
        run: |module, options, _| super::mark_compiler_functions_extern(module, options.compiler.as_deref()),
    },
    Pass {
        name: "merge_compiler_regions",
        doc: "joins neighbouring regions of one target",
        run: |module, _, _| super::merge_compiler_regions(module),
    },
    Pass {
        name: "merge_composite",
        doc: "makes each match of a pattern table a composite function",
        run: |module, options, warnings| {
            super::merge_composite(module, &options.patterns, &mut AcceptAll, &mut |_, _| {}, warnings)
        },
    },
    Pass {
        name: "monomorphize",
        doc: "copies functions with type parameters for the types that they are used at",
        run: |module, _, _| super::monomorphize(module),
    },
    Pass {
        name: "outline_compiler_functions",
        doc: "makes global functions of the literals that belong to backends",
        run: |module, options, _| super::outline_compiler_functions(module, options.compiler.as_deref()),
    },
    Pass {
        name: "partition_graph",
        doc: "makes each region a global function of its backend",
        run: |module, options, _| super::partition_graph(module, &options.module_name, options.bind_constants),
    },
    Pass {
        name: "qnn_canonicalize",
        doc: "writes operators on quantized tensors in plain integer and float operators",
        run: |module, _, _| super::qnn_canonicalize(module),
    },
    Pass {
        name: "remove_default_annotations",
        doc: "drops the annotations of what no backend takes",
        run: |module, _, _| super::remove_default_annotations(module),
    },
    Pass {
        name: "simplify_inference",
        doc: "writes batch normalisation as multiply and add, drops dropout",
        run: |module, _, _| super::simplify_inference(module),
    },
    Pass {
        name: "to_a_normal_form",
        doc: "binds every intermediate value by a let",
        run: |module, _, _| super::to_a_normal_form(module),
    },
];

/// A pass fails with one diagnostic: the first, and how many more there are.
fn first_fault(faults: Vec<Fault>) -> Box<Diagnostic> {
    let more = faults.len().saturating_sub(1);
    let first = faults.into_iter().next().map(|fault| fault.diagnostic);
    let first = first.unwrap_or_else(|| Diagnostic::error(codes::types::CANNOT_INFER, "the module does not type"));
    Box::new(if more == 0 { first } else { first.note(format!("and {more} more")) })
}

/// The pass of that name.
///
/// # Errors
/// When there is none, with the nearest.
pub fn find(name: &str) -> Result<&'static Pass, Box<Diagnostic>> {
    PASSES.iter().find(|pass| pass.name == name).ok_or_else(|| {
        let diagnostic = Diagnostic::error(codes::passes::UNKNOWN_PASS, format!("no pass \"{name}\""));
        Box::new(match nearest(name, PASSES.iter().map(|pass| pass.name)) {
            Some(near) => diagnostic.help(format!("did you mean \"{near}\"?")),
            None => {
                let known: Vec<_> = PASSES.iter().map(|pass| pass.name).collect();
                diagnostic.note(format!("the passes are {}", known.join(", ")))
            }
        })
    })
}

/// How passes are run.
#[derive(Default)]
pub struct RunOptions<'a> {
    /// Verifies the module before the first pass and after each; what does not verify is the fault of the pass.
    pub verify_each: bool,
    /// Runs so many passes and stops: halving it finds the pass that breaks a program.
    pub step_limit: Option<usize>,
    /// Called after each pass with its name and what it made.
    pub after: Option<&'a mut dyn FnMut(&str, &Module)>,
}

/// How long a pass took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// The pass.
    pub pass: &'static str,
    /// From its start to its end, without verification.
    pub time: Duration,
}

/// What a run gives.
#[derive(Debug)]
pub struct Ran {
    /// The module after the last pass.
    pub module: Module,
    /// One for each pass that ran, in order.
    pub timings: Vec<Timing>,
    /// Warnings, in order.
    pub warnings: Vec<Diagnostic>,
}

/// A pass failed, or made a module that does not verify.
#[derive(Debug)]
pub struct PassError {
    /// The pass.
    pub pass: String,
    /// What went wrong.
    pub diagnostics: Vec<Diagnostic>,
}

impl fmt::Display for PassError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.pass)?;
        self.diagnostics.iter().try_for_each(|d| write!(f, " {d}"))
    }
}

impl std::error::Error for PassError {}

/// Runs passes by name, in order. All names are looked up before the first one runs.
///
/// # Errors
/// An unknown name, a pass that fails, a module that does not verify: with the name of the pass. E0617 or E0618 when the work of
/// this thread is to [end](stop).
pub fn run(module: Module, names: &[&str], options: &PassOptions, run: &mut RunOptions<'_>) -> Result<Ran, PassError> {
    let fail =
        |pass: &str, diagnostic: Box<Diagnostic>| PassError { pass: pass.to_owned(), diagnostics: vec![*diagnostic] };
    let passes: Vec<&Pass> =
        names.iter().map(|name| find(name).map_err(|d| fail(name, d))).collect::<Result<_, PassError>>()?;
    let check = |pass: &str, module: &Module| match run.verify_each {
        true => verify(module).map_err(|diagnostics| PassError { pass: pass.to_owned(), diagnostics }),
        false => Ok(()),
    };
    // An untyped module is the business of infer_type, and no fault of the pass before it.
    if passes.first().is_some_and(|pass| pass.name != "infer_type") {
        check("the input", &module)?;
    }
    let mut ran = Ran { module, timings: Vec::new(), warnings: Vec::new() };
    for pass in passes.into_iter().take(run.step_limit.unwrap_or(usize::MAX)) {
        stop::check(|| format!("{} of {} passes had run, {} was next", ran.timings.len(), names.len(), pass.name))
            .map_err(|d| fail(pass.name, d.into()))?;
        let start = Instant::now();
        ran.module = (pass.run)(&ran.module, options, &mut ran.warnings).map_err(|d| fail(pass.name, d))?;
        ran.timings.push(Timing { pass: pass.name, time: start.elapsed() });
        // A pass that finds that it is to end may leave things as they are.
        stop::check(|| format!("it was in pass {}", pass.name)).map_err(|d| fail(pass.name, d.into()))?;
        check(pass.name, &ran.module)?;
        if let Some(after) = &mut run.after {
            after(pass.name, &ran.module);
        }
    }
    Ok(ran)
}

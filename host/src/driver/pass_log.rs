//! The passes of a build: run, printed and timed.

use byoc_core::pass::PassOptions;
use byoc_core::pass::manager::{self, RunOptions, Step, Timing};
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::ir::Module;
use byoc_ir::text::{PrintOptions, print};
use byoc_runtime::error::Failure;
use std::borrow::Cow;
use std::time::{Duration, Instant};

/// Value of `print_after` for all passes.
pub(super) const ALL_PASSES: &str = "all";

/// Converts the diagnostic of a cancellation to that of a cancelled build.
pub(super) fn as_cancelled_build(diagnostic: Diagnostic) -> Diagnostic {
    if diagnostic.code != codes::runtime::CANCELLED {
        return diagnostic;
    }
    let message = "the build was cancelled, and nothing was written".to_owned();
    Diagnostic { code: codes::plugins::BUILD_CANCELLED, message, ..diagnostic }
}

/// Pass runner of a build, which prints the module after the requested passes and records times.
pub(super) struct PassLog<'a> {
    print_after: Option<&'a str>,
    print_line: &'a mut dyn FnMut(&str),
    timings: Vec<(&'static str, Duration)>,
}

impl<'a> PassLog<'a> {
    /// Creates a log. `print_line` receives the modules after the pass `print_after`, and the times.
    pub fn new(print_after: Option<&'a str>, print_line: &'a mut dyn FnMut(&str)) -> PassLog<'a> {
        PassLog { print_after, print_line, timings: Vec::new() }
    }

    /// Runs steps through the pass manager.
    pub fn run(
        &mut self,
        module: Cow<'_, Module>,
        steps: Vec<Step<'_>>,
        options: &PassOptions,
        warnings: &mut Vec<Diagnostic>,
    ) -> Result<Module, Failure> {
        let requested_names = self.print_after;
        let mut print_module = |pass: &str, module: &Module| {
            if requested_names.is_some_and(|p| p == ALL_PASSES || p == pass) {
                (self.print_line)(&format!("// after {pass}\n{}", print(module, &PrintOptions::default()).text));
            }
        };
        let mut run =
            RunOptions { verify_each: cfg!(debug_assertions), step_limit: None, after_pass: Some(&mut print_module) };
        let output = manager::run_steps(module, steps, options, &mut run)
            .map_err(|e| Failure::from(e.diagnostics.into_iter().map(as_cancelled_build).collect::<Vec<_>>()))?;
        warnings.extend(output.warnings);
        output.timings.iter().for_each(|Timing { pass, time }| self.add(pass, *time));
        Ok(output.module)
    }

    /// Notes that the pass whose module was requested did not run.
    pub fn print_missing(&mut self) {
        let requested = self.print_after.filter(|&name| name != ALL_PASSES);
        if let Some(name) = requested.filter(|&name| !self.timings.iter().any(|timing| timing.0 == name)) {
            (self.print_line)(&format!("// {name} is not among the passes of this build\n"));
        }
    }

    /// Prints the times, if they are requested.
    pub fn print_times(&mut self, is_requested: bool) {
        for (name, time) in self.timings.iter().filter(|_| is_requested) {
            (self.print_line)(&format!("{:>12.3} ms  {name}", time.as_secs_f64() * 1e3));
        }
    }

    /// Records the duration of a stage that is not a pass.
    pub fn record(&mut self, stage: &'static str, start: Instant) {
        self.add(stage, start.elapsed());
    }

    fn add(&mut self, name: &'static str, time: Duration) {
        tracing::debug!(target: "byoc::pass", "{name} in {:.3} ms", time.as_secs_f64() * 1e3);
        self.timings.push((name, time));
    }
}

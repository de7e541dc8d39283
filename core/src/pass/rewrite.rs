//! API for pattern-based passes: matching, partitioning and rewriting.

use crate::analysis::structural_equal;
use crate::pass::infer_type;
use crate::pass::partition::group;
use crate::pattern::{Graph, Match, Matcher, Pattern, PatternId, PatternNode};
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::ir::{Attrs, Callee, ExprId, Module, Name};
use byoc_ir::typing::{Builder, Rebuild};
use std::collections::BTreeMap;

/// Maximum number of rewriting rounds.
pub const MAX_ROUNDS: usize = 100;

/// A rewritten module may have at most [`GROWTH_FACTOR`] times the original number of expressions plus
/// [`GROWTH_SLACK`]. A module that doubles in every round would exhaust memory long before [`MAX_ROUNDS`].
const GROWTH_SLACK: usize = 1 << 20;
const GROWTH_FACTOR: usize = 16;

impl Pattern {
    /// Matches the pattern at an expression of a module. Returns the expressions that each pattern node matched.
    ///
    /// ```
    /// use byoc_core::pattern::parse_pattern;
    /// use byoc_ir::text::{ParseOptions, parse};
    ///
    /// let parsed = parse("free_var %x: Tensor[(2), float32]; nn.relu(exp(%x))", &ParseOptions::default());
    /// let (pattern, _) = parse_pattern("nn.relu(exp(*))").unwrap();
    /// assert!(pattern.matches(&parsed.module, parsed.root.unwrap()).is_some());
    /// ```
    pub fn matches(&self, module: &Module, at: ExprId) -> Option<Match> {
        Matcher::new(&Graph::of(module, [at])).match_at(self, at)
    }

    /// Replaces each match with a call to a new function with the attributes `attrs` and `PartitionedFromPattern`. A
    /// match stays unchanged if `check` returns false for its root in `module`.
    ///
    /// A pattern that is a bare function forms no groups: the module is returned unchanged, with a warning.
    ///
    /// # Errors
    /// If the module is ill-typed.
    pub fn partition(
        &self,
        module: &Module,
        attrs: &Attrs,
        check: &mut dyn FnMut(&Module, ExprId) -> bool,
        warnings: &mut Vec<Diagnostic>,
    ) -> Result<Module, Box<Diagnostic>> {
        if let Some(warning) = self.bare_function_warning("without a name") {
            warnings.push(warning);
            return Ok(module.clone());
        }
        group::partition(module, self, attrs, check)
    }

    /// Returns a warning if the pattern is a bare function.
    pub(crate) fn bare_function_warning(&self, name: &str) -> Option<Diagnostic> {
        matches!(self.nodes[self.root], PatternNode::Function { .. }).then(|| {
            let message = format!("pattern {name}: expected a call to a function, found a bare function");
            Diagnostic::warning(codes::passes::PATTERN_FUNCTION, message)
                .help("match the call to the function: call(fn (..) { .. }; ..)")
        })
    }
}

/// Rewrite rule: a pattern, and the function that replaces its matches.
pub struct Callback<'a> {
    /// Pattern to match.
    pub pattern: &'a Pattern,
    /// True if the types of the module are inferred again before each round.
    pub require_type: bool,
    /// True if the callback is not applied again after the first round in which it changed the module.
    pub rewrite_once: bool,
    /// Returns the replacement for the match, in the builder's module; returning [`Site::after`] keeps the match.
    pub function: &'a mut dyn FnMut(&mut Site<'_>) -> Result<ExprId, Box<Diagnostic>>,
}

/// Match that is being rewritten.
pub struct Site<'s> {
    /// Module before this round.
    pub module: &'s Module,
    /// Root of the match in `module`.
    pub before: ExprId,
    /// Builder of the new module. Appended expressions receive the origin of the match.
    pub builder: &'s mut Builder,
    /// Root of the match in the builder's module, with operands already rewritten.
    pub after: ExprId,
    /// Expressions that each node of the pattern matched, in the builder's module.
    pub matched: &'s Match,
}

impl Site<'_> {
    /// Returns the first expression that a pattern node matched; `None` if the node matched nothing or an operator.
    pub fn get(&self, id: PatternId) -> Option<ExprId> {
        match self.matched.get(id)? {
            Callee::Expr(id) => Some(id),
            Callee::Op(_) => None,
        }
    }
}

/// Rewrites the matches of each callback's pattern, one callback after the other, until nothing changes. Matches that
/// overlap, or whose inner expressions are used outside, are skipped as in [`Pattern::partition`].
///
/// # Errors
/// If a callback fails, the types no longer agree, or the callbacks still change the module after [`MAX_ROUNDS`] or let
/// it grow without bound.
pub fn rewrite(callbacks: &mut [Callback<'_>], module: &Module) -> Result<Module, Box<Diagnostic>> {
    let mut is_finished = vec![false; callbacks.len()];
    let mut current = module.clone();
    let limit = GROWTH_SLACK + GROWTH_FACTOR * module.nodes.len();
    for _ in 0..MAX_ROUNDS {
        let mut is_changed = false;
        for (callback, is_finished) in callbacks.iter_mut().zip(&mut is_finished) {
            if *is_finished {
                continue;
            }
            if callback.require_type {
                current = infer_type(&current).map_err(|faults| {
                    faults.into_iter().next().map_or_else(
                        || {
                            Box::new(Diagnostic::error(
                                codes::types::CANNOT_INFER,
                                "type inference failed without a reported fault",
                            ))
                        },
                        |fault| Box::new(fault.diagnostic),
                    )
                })?;
            }
            let rewritten = round(callback, &current)?;
            if structural_equal(&current, &rewritten).is_err() {
                is_changed = true;
                *is_finished = callback.rewrite_once;
            }
            current = rewritten;
            if current.nodes.len() > limit {
                return Err(endless_rewriting_error(format!(
                    "rewriting expands the module from {} to more than {limit} expressions",
                    module.nodes.len()
                )));
            }
        }
        if !is_changed {
            return Ok(current);
        }
    }
    Err(endless_rewriting_error(format!("the module still changes after {MAX_ROUNDS} rounds of rewriting")))
}

/// Finds the matches of a pattern that [`rewrite`] would replace in one round, by their roots.
pub fn find_matches(module: &Module, pattern: &Pattern) -> BTreeMap<ExprId, Match> {
    let groups = group::find(module, pattern, &Name::from("rewrite"));
    groups.into_iter().map(|(root, (_, matched))| (root, matched)).collect()
}

fn endless_rewriting_error(message: String) -> Box<Diagnostic> {
    Box::new(
        Diagnostic::error(codes::passes::REWRITE_WITHOUT_END, message)
            .help("return a match unchanged if it is already rewritten, or set rewrite_once"),
    )
}

fn round(callback: &mut Callback<'_>, module: &Module) -> Result<Module, Box<Diagnostic>> {
    let groups = group::find(module, callback.pattern, &Name::from("rewrite"));
    Rebuild::run(module, |rebuild, id, _| {
        let Some((nodes, matched)) = groups.get(&id) else { return Ok(None) };
        let copy = rebuild.copy(id)?;
        let current_callee = |callee: Callee| match callee {
            Callee::Expr(expr) if expr == id => Callee::Expr(copy),
            Callee::Expr(expr) => Callee::Expr(rebuild.get(expr)),
            op @ Callee::Op(_) => op,
        };
        let matched = Match {
            bindings: matched.bindings.iter().map(|&(pattern, callee)| (pattern, current_callee(callee))).collect(),
        };
        let origins = nodes.iter().map(|&node| module.nodes[node].origin);
        rebuild.new.origin = Some(rebuild.new.module.origins.union_all(origins));
        let mut site = Site { module, before: id, builder: &mut rebuild.new, after: copy, matched: &matched };
        (callback.function)(&mut site).map(Some)
    })
}

//! Patterns as an API: does one match, partition by one, rewrite by several (spec 1.5).

use super::data::{Pattern, PatternId, PatternNode};
use super::graph::Graph;
use super::matcher::{Match, Matcher};
use crate::diag::{Diagnostic, codes};
use crate::ir::{Attrs, Callee, ExprId, Module, Name, structural_equal};
use crate::pass::{group, infer_type};
use crate::typing::{Builder, Rebuild};

/// After so many rounds rewriting gives up.
pub const MAX_ROUNDS: usize = 100;

/// Rewriting may make a module this much larger, in expressions, and as many times as large: what doubles in every
/// round is out of hand long before the last one.
const ROOM: usize = 1 << 20;
const TIMES: usize = 16;

impl Pattern {
    /// Returns true if it matches at an expression of a module, and what each of its nodes met.
    ///
    /// ```
    /// use byoc_core::pattern::parse_pattern;
    /// use byoc_core::text::{ParseOptions, parse};
    ///
    /// let parsed = parse("free_var %x: Tensor[(2), float32]; nn.relu(exp(%x))", &ParseOptions::default());
    /// let (pattern, _) = parse_pattern("nn.relu(exp(*))").unwrap();
    /// assert!(pattern.matches(&parsed.module, parsed.root.unwrap()).is_some());
    /// ```
    pub fn matches(&self, module: &Module, at: ExprId) -> Option<Match> {
        Matcher::new(&Graph::of(module, [at])).match_at(self, at)
    }

    /// Puts each match into a function of its own, which is called where the match was. The function has the attribute
    /// `PartitionedFromPattern` and `attrs`. `check` is asked about the root of each match, in `module`.
    ///
    /// A pattern that is a bare function groups nothing: the module comes back as it was, with a warning.
    ///
    /// # Errors
    /// None that a typed module can cause.
    pub fn partition(
        &self,
        module: &Module,
        attrs: &Attrs,
        check: &mut dyn FnMut(&Module, ExprId) -> bool,
        warnings: &mut Vec<Diagnostic>,
    ) -> Result<Module, Box<Diagnostic>> {
        if let Some(warning) = self.is_bare_function("that is given") {
            warnings.push(warning);
            return Ok(module.clone());
        }
        group::partition(module, self, attrs, check)
    }

    /// The warning about a pattern that is a function by itself.
    pub(crate) fn is_bare_function(&self, name: &str) -> Option<Diagnostic> {
        matches!(self.nodes[self.root], PatternNode::Function { .. }).then(|| {
            let message = format!("the pattern {name} is a bare function, which is not grouped");
            Diagnostic::warning(codes::passes::PATTERN_FUNCTION, message)
                .help("match the call of the function: call(fn (..) { .. }; ..)")
        })
    }
}

/// Rewrite of the matches of a pattern.
pub struct Callback<'a> {
    /// Pattern to match.
    pub pattern: &'a Pattern,
    /// True if the module's types are inferred anew before each round.
    pub require_type: bool,
    /// True if it is done after the first round in which it changed something.
    pub rewrite_once: bool,
    /// Gives what stands for the match from now on, in the builder's module: [`Site::after`] leaves it as it is.
    pub function: &'a mut dyn FnMut(&mut Site<'_>) -> Result<ExprId, Box<Diagnostic>>,
}

/// A match that is being rewritten.
pub struct Site<'s> {
    /// The module before this round.
    pub module: &'s Module,
    /// The root of the match in it.
    pub before: ExprId,
    /// Appends to the module as it becomes. What it appends comes from where the match came from.
    pub builder: &'s mut Builder,
    /// The root in the builder's module, with operands as they are by now.
    pub after: ExprId,
    /// Matches of each node of the pattern, in the builder's module.
    pub met: &'s Match,
}

impl Site<'_> {
    /// Returns the first match of a node of the pattern, if that is an expression.
    pub fn get(&self, id: PatternId) -> Option<ExprId> {
        match self.met.get(id)? {
            Callee::Expr(id) => Some(id),
            Callee::Op(_) => None,
        }
    }
}

/// Rewrites the matches of each callback's pattern, one callback after the other, until nothing changes. Matches that
/// overlap, or whose inside is used outside, are passed over as in [`Pattern::partition`].
///
/// # Errors
/// What a callback fails with, types that no longer agree, and callbacks that still change the module after
/// [`MAX_ROUNDS`] or let it grow without end.
pub fn rewrite(callbacks: &mut [Callback<'_>], module: &Module) -> Result<Module, Box<Diagnostic>> {
    let mut done = vec![false; callbacks.len()];
    let mut current = module.clone();
    let limit = ROOM + TIMES * module.nodes.len();
    for _ in 0..MAX_ROUNDS {
        let mut changed = false;
        for (callback, done) in callbacks.iter_mut().zip(&mut done) {
            if *done {
                continue;
            }
            if callback.require_type {
                current = infer_type(&current).map_err(|faults| {
                    faults.into_iter().next().map_or_else(
                        || Box::new(Diagnostic::error(codes::types::CANNOT_INFER, "the module does not type")),
                        |fault| Box::new(fault.diagnostic),
                    )
                })?;
            }
            let next = round(callback, &current)?;
            if structural_equal(&current, &next).is_err() {
                changed = true;
                *done = callback.rewrite_once;
            }
            current = next;
            if current.nodes.len() > limit {
                return Err(endless(format!(
                    "rewriting makes more than {limit} expressions of {}",
                    module.nodes.len()
                )));
            }
        }
        if !changed {
            return Ok(current);
        }
    }
    Err(endless(format!("the program still changes after {MAX_ROUNDS} rounds of rewriting")))
}

fn endless(message: String) -> Box<Diagnostic> {
    Box::new(
        Diagnostic::error(codes::passes::REWRITE_WITHOUT_END, message)
            .help("let the callbacks leave what they have made as it is, or let them rewrite once"),
    )
}

fn round(callback: &mut Callback<'_>, module: &Module) -> Result<Module, Box<Diagnostic>> {
    let found = group::find(module, callback.pattern, &Name::from("rewrite"));
    Rebuild::run(module, |rebuild, id, _| {
        let Some((nodes, met)) = found.get(&id) else { return Ok(None) };
        let after = rebuild.copy(id)?;
        let now = |at: Callee| match at {
            Callee::Expr(expr) if expr == id => Callee::Expr(after),
            Callee::Expr(expr) => Callee::Expr(rebuild.get(expr)),
            op @ Callee::Op(_) => op,
        };
        let met = Match { met: met.met.iter().map(|&(pattern, at)| (pattern, now(at))).collect() };
        let origins = nodes.iter().map(|&node| module.nodes[node].origin);
        rebuild.new.origin = Some(rebuild.new.module.origins.union_all(origins));
        let mut site = Site { module, before: id, builder: &mut rebuild.new, after, met: &met };
        (callback.function)(&mut site).map(Some)
    })
}

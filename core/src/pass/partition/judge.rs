//! Interface through which partitioning requests verdicts from a backend.
//!
//! The passes find candidates by structure. An implementation of [`Judge`] forwards the candidates to the backend in
//! batches: one per entry of the pattern table, one for all single operators, and one for the regions.

use crate::pattern::Entry;
use byoc_ir::ir::{ExprId, Module, Name};
use std::fmt;

/// Reason for not assigning an operator to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the names are part of the plugin contract and self-explanatory")]
pub enum RefusalCode {
    // Codes returned by backends.
    UnsupportedOp,
    UnsupportedDtype,
    UnsupportedShape,
    UnsupportedAttr,
    UnsupportedLayout,
    DynamicDim,
    QuantScheme,
    NotConstant,
    ResourceLimit,
    Unavailable,
    NotProfitable,
    // Codes assigned by the framework.
    NoPatternMatch,
    Overlap,
    Escape,
    WouldCycle,
    LowerPriority,
    RegionRefused,
    CompileFailed,
    LoadFailed,
    NotClaimed,
    Precision,
}

impl RefusalCode {
    /// All codes, in declaration order.
    pub const ALL: [RefusalCode; 21] = [
        RefusalCode::UnsupportedOp,
        RefusalCode::UnsupportedDtype,
        RefusalCode::UnsupportedShape,
        RefusalCode::UnsupportedAttr,
        RefusalCode::UnsupportedLayout,
        RefusalCode::DynamicDim,
        RefusalCode::QuantScheme,
        RefusalCode::NotConstant,
        RefusalCode::ResourceLimit,
        RefusalCode::Unavailable,
        RefusalCode::NotProfitable,
        RefusalCode::NoPatternMatch,
        RefusalCode::Overlap,
        RefusalCode::Escape,
        RefusalCode::WouldCycle,
        RefusalCode::LowerPriority,
        RefusalCode::RegionRefused,
        RefusalCode::CompileFailed,
        RefusalCode::LoadFailed,
        RefusalCode::NotClaimed,
        RefusalCode::Precision,
    ];

    /// Parses the name of a code.
    pub fn parse(name: &str) -> Option<RefusalCode> {
        RefusalCode::ALL.into_iter().find(|code| code.to_string() == name)
    }
}

impl fmt::Display for RefusalCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// Reason for refusing a candidate, in terms that the user can act on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Code of the reason.
    pub code: RefusalCode,
    /// Explanation, such as the expected and the actual value.
    pub detail: String,
    /// Suggested remedy; may be empty.
    pub hint: String,
}

impl Refusal {
    /// Creates a refusal without a hint.
    pub fn new(code: RefusalCode, detail: impl Into<String>) -> Refusal {
        Refusal { code, detail: detail.into(), hint: String::new() }
    }
}

/// Verdict on a candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The backend accepts the candidate.
    Supported,
    /// The backend refuses the candidate.
    Refused(Refusal),
    /// The candidate region is too large: the backend accepts at most this number of operators and composites per
    /// region. The number is at least 1.
    Split(usize),
}

/// Kind of the candidates in a batch.
#[derive(Clone, Copy, Debug)]
pub enum Question<'a> {
    /// Matches of one entry of the pattern table.
    Pattern(&'a Entry),
    /// Composites of this name that no pattern describes: control flow.
    Composite(&'a Name),
    /// Single operators.
    Operators,
    /// Regions.
    Regions,
}

/// Composite, operator or region on which a backend gives a verdict, as expressions of the module.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Expressions of the candidate in topological order, including its embedded constants.
    pub nodes: Vec<ExprId>,
    /// External values, in parameter order. Any expression may be an input.
    pub inputs: Vec<ExprId>,
    /// Results. A composite or a single operator has exactly one.
    pub outputs: Vec<ExprId>,
    /// Number of uses of the results outside the candidate.
    pub outside_users: usize,
    /// Composites inside a region.
    pub composites: Vec<Composite>,
}

/// Accepted match of a pattern.
#[derive(Clone, Debug)]
pub struct Composite {
    /// Name of the pattern, which is the `Composite` attribute of the function.
    pub name: Name,
    /// Expression that the composite replaces.
    pub root: ExprId,
    /// Expressions of the composite, operands before users, the root last.
    pub nodes: Vec<ExprId>,
    /// External values, in parameter order.
    pub inputs: Vec<ExprId>,
}

/// Function, branch or body of a let with operators, as shown to a backend that claims sets of operators.
#[derive(Clone, Debug)]
pub struct Body {
    /// Name of the global function that contains the body.
    pub function: Name,
    /// Operator calls, operands before users.
    pub operators: Vec<ExprId>,
    /// Values that the operators read and that are neither constants nor results of these operators.
    pub inputs: Vec<ExprId>,
    /// Operators whose results are used by something other than these operators.
    pub outputs: Vec<ExprId>,
    /// Operators that an earlier backend has, each with the name of that backend.
    pub taken: Vec<(ExprId, Name)>,
}

/// Claims of a backend on the operators of a module.
#[derive(Clone, Debug, Default)]
pub struct Claims {
    /// Sets of operators, in the order of the backend's answer.
    pub sets: Vec<ClaimedSet>,
    /// Refusals of operators outside the sets, for which the backend gave a reason of their own.
    pub refusals: Vec<(ExprId, Refusal)>,
    /// Refusal of all other operators outside the sets.
    pub otherwise: Option<Refusal>,
}

/// Set of operators that a backend claims as one region.
#[derive(Clone, Debug, Default)]
pub struct ClaimedSet {
    /// Operators of one body.
    pub operators: Vec<ExprId>,
    /// Reason why the set is invalid, whatever its operators are.
    pub problem: Option<String>,
}

/// Source of a backend's verdicts.
pub trait Judge {
    /// Returns the sets of operators that the backend claims after it has seen the whole module. With `None`, the
    /// default, the backend is asked about patterns and single operators. `bodies` is expensive, and called only for a
    /// backend that states claims.
    fn claims(&mut self, module: &Module, bodies: &mut dyn FnMut() -> Vec<Body>) -> Option<Claims> {
        let _ = (module, bodies);
        None
    }

    /// Returns one verdict per candidate, in order. A missing verdict counts as a refusal.
    fn judge(&mut self, module: &Module, question: Question<'_>, candidates: &[Candidate]) -> Vec<Verdict>;
}

/// Judge that accepts every candidate, for pattern files without a backend.
#[derive(Clone, Copy, Debug, Default)]
pub struct AcceptAll;

impl Judge for AcceptAll {
    fn judge(&mut self, _: &Module, _: Question<'_>, candidates: &[Candidate]) -> Vec<Verdict> {
        vec![Verdict::Supported; candidates.len()]
    }
}

/// Requests one verdict per candidate; a missing verdict becomes a refusal.
pub(super) fn request_verdicts(
    judge: &mut dyn Judge,
    module: &Module,
    question: Question<'_>,
    candidates: &[Candidate],
) -> Vec<Verdict> {
    if candidates.is_empty() {
        return Vec::new();
    }
    let mut verdicts = judge.judge(module, question, candidates);
    verdicts.resize_with(candidates.len(), || {
        Verdict::Refused(Refusal::new(RefusalCode::Unavailable, "the backend returned no verdict"))
    });
    verdicts
}

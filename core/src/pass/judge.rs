//! The questions that partitioning asks a backend, and the answers.
//!
//! The passes find candidates by structure; whoever implements [`Judge`] asks the backend about them, a batch at a
//! time: one batch for each entry of its pattern table, one for all single operators, one for its regions.

use crate::ir::{ExprId, Module};
use crate::pattern::Entry;
use std::fmt;

/// Why an operator is not on a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the names are the contract and say it")]
pub enum RefusalCode {
    // From backends.
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
    // From the framework.
    NoPatternMatch,
    Overlap,
    Escape,
    WouldCycle,
    LowerPriority,
    RegionRefused,
    CompileFailed,
    LoadFailed,
}

impl RefusalCode {
    /// Every code.
    pub const ALL: [RefusalCode; 19] = [
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
    ];

    /// The code of that name.
    pub fn parse(name: &str) -> Option<RefusalCode> {
        RefusalCode::ALL.into_iter().find(|code| code.to_string() == name)
    }
}

impl fmt::Display for RefusalCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// Why a candidate was turned down, in words its user can act on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The kind of reason.
    pub code: RefusalCode,
    /// What is wanted and what was found.
    pub detail: String,
    /// What to do; may be empty.
    pub hint: String,
}

impl Refusal {
    /// A refusal without a hint.
    pub fn new(code: RefusalCode, detail: impl Into<String>) -> Refusal {
        Refusal { code, detail: detail.into(), hint: String::new() }
    }
}

/// The answer to a candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The backend takes it.
    Supported,
    /// It does not.
    Refused(Refusal),
}

/// What a batch of candidates is about.
#[derive(Clone, Copy, Debug)]
pub enum Question<'a> {
    /// Matches of an entry of the pattern table.
    Pattern(&'a Entry),
    /// Single operators.
    Operators,
    /// Whole regions.
    Regions,
}

/// A part of a module that a backend could take, in expressions of that module.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Its operators, operands before users. Constants that stay inside are among them.
    pub nodes: Vec<ExprId>,
    /// What it takes from outside, in the order of its parameters. These may be any expressions.
    pub inputs: Vec<ExprId>,
    /// What comes out; one expression but for regions.
    pub outputs: Vec<ExprId>,
    /// How many expressions outside use what comes out.
    pub outside_users: usize,
    /// The composites in it.
    pub composites: Vec<Composite>,
}

/// A match of a pattern that was accepted.
#[derive(Clone, Debug)]
pub struct Composite {
    /// The pattern's name.
    pub name: crate::ir::Name,
    /// The expression whose place it takes.
    pub root: ExprId,
    /// What it consists of, operands before users, the root last.
    pub nodes: Vec<ExprId>,
    /// What it takes from outside.
    pub inputs: Vec<ExprId>,
}

/// Answers for a backend.
pub trait Judge {
    /// One verdict for each candidate, in order. A missing one counts as a refusal.
    fn judge(&mut self, module: &Module, question: Question<'_>, candidates: &[Candidate]) -> Vec<Verdict>;
}

/// Takes everything: for pattern files, which nobody stands behind.
#[derive(Clone, Copy, Debug, Default)]
pub struct AcceptAll;

impl Judge for AcceptAll {
    fn judge(&mut self, _: &Module, _: Question<'_>, candidates: &[Candidate]) -> Vec<Verdict> {
        vec![Verdict::Supported; candidates.len()]
    }
}

/// The verdicts of a judge, one for each candidate.
pub(super) fn ask(
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
        Verdict::Refused(Refusal::new(RefusalCode::Unavailable, "the backend gave no answer"))
    });
    verdicts
}

//! What a run found.

use super::fault::Fault;
use serde::Serialize;
use std::collections::BTreeMap;

/// What is said of a backend whose description has `finite_math`.
pub const FINITE_MATH: &str = "finite_math: nothing is promised where a number is NaN or infinite";

/// What became of the cases of one operator or pattern.
#[derive(Clone, Debug, Serialize)]
pub struct SubjectReport {
    /// `operator nn.conv2d`, `pattern mine.conv_relu`, `region`.
    pub subject: String,
    /// Valid cases that were tried.
    pub cases: usize,
    /// Taken, and right.
    pub passed: usize,
    /// Not taken, with a reason.
    pub refused: usize,
    /// Taken, and wrong.
    pub failed: usize,
    /// The largest share of its error budget that an element used.
    pub share: f64,
    /// Why cases were not taken, and how many.
    pub reasons: BTreeMap<String, usize>,
}

impl SubjectReport {
    /// Nothing yet.
    pub fn new(subject: &str) -> SubjectReport {
        let subject = subject.to_owned();
        SubjectReport { subject, cases: 0, passed: 0, refused: 0, failed: 0, share: 0.0, reasons: BTreeMap::new() }
    }
}

/// A failure, with what reproduces it.
#[derive(Clone, Debug, Serialize)]
pub struct Failure {
    /// Whose case it was; the name of a check otherwise.
    pub subject: String,
    /// What is wrong.
    pub fault: Fault,
    /// What sets the case apart.
    pub case: String,
    /// The smallest program that shows it.
    pub file: Option<String>,
    /// The command that runs it.
    pub command: Option<String>,
}

/// What was found about a backend.
#[derive(Clone, Debug, Serialize)]
pub struct BackendReport {
    /// Its name.
    pub backend: String,
    /// The plugin.
    pub plugin: String,
    /// The plugin's version.
    pub version: String,
    /// True if it promises nothing of numbers that are not finite, and was not tried on them.
    pub finite_math: bool,
    /// Faults that are not about a case.
    pub faults: Vec<Fault>,
    /// By subject.
    pub subjects: Vec<SubjectReport>,
    /// Checks of the plugin as such: what was tried, and whether it went well.
    pub checks: Vec<(String, bool)>,
    /// Every kind of failure of every subject, once.
    pub failures: Vec<Failure>,
}

impl BackendReport {
    /// Nothing yet.
    pub fn new(backend: &str) -> BackendReport {
        BackendReport {
            backend: backend.to_owned(),
            plugin: String::new(),
            version: String::new(),
            finite_math: false,
            faults: Vec::new(),
            subjects: Vec::new(),
            checks: Vec::new(),
            failures: Vec::new(),
        }
    }

    /// Returns true if nothing is wrong.
    pub fn passes(&self) -> bool {
        self.faults.is_empty() && self.failures.is_empty()
    }

    /// Cases that were taken and right.
    pub fn passed(&self) -> usize {
        self.subjects.iter().map(|s| s.passed).sum()
    }
}

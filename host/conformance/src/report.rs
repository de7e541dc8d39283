//! Findings of a conformance run.

use super::fault::Fault;
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;

/// Returns notes on what a description excludes from its guarantees.
pub fn exclusions(finite_math: bool, flush_to_zero: bool) -> impl Iterator<Item = &'static str> {
    [finite_math.then_some(FINITE_MATH), flush_to_zero.then_some(FLUSH_TO_ZERO)].into_iter().flatten()
}

/// Names of the plugin-wide checks.
pub const CHECKS: [&str; 5] = [
    "compiling after a cancelled compilation",
    "compiling after an interrupted compilation",
    "an unusable cache directory",
    "too little memory",
    "no host calls after the last region was dropped",
];

/// Note on a backend whose description has `flush_to_zero`.
const FLUSH_TO_ZERO: &str = "flush_to_zero: subnormal numbers may be replaced by zero";
/// Note on a backend whose description has `finite_math`.
const FINITE_MATH: &str = "finite_math: no guarantee for results that involve NaN or infinity";

/// Outcomes of the cases of one operator or pattern.
#[derive(Clone, Debug, Serialize)]
pub struct SubjectReport {
    /// Subject: `operator nn.conv2d`, `pattern mine.conv_relu`, `region`.
    pub subject: String,
    /// Number of valid cases.
    pub cases: usize,
    /// Number of supported cases with correct results.
    pub passed: usize,
    /// Number of refused cases.
    pub refused: usize,
    /// Number of supported cases that failed.
    pub failed: usize,
    /// Largest fraction of its error budget that any element used.
    pub share: f64,
    /// Number of refused cases per reason.
    pub reasons: BTreeMap<Reason, usize>,
}

/// Reason for a refusal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reason {
    /// Refusal code.
    pub code: String,
    /// Expected and found values.
    pub detail: String,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.detail)
    }
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl SubjectReport {
    /// Creates an empty report.
    pub fn new(subject: &str) -> SubjectReport {
        let subject = subject.to_owned();
        SubjectReport { subject, cases: 0, passed: 0, refused: 0, failed: 0, share: 0.0, reasons: BTreeMap::new() }
    }

    /// Returns the number of supported cases.
    pub fn tested_count(&self) -> usize {
        self.passed + self.failed
    }

    /// Returns the most frequent reason with the most frequent code. Reasons with the same code usually differ in the
    /// values found, so each of them may be rare.
    pub fn most_frequent_reason(&self) -> Option<&Reason> {
        let mut code_counts: BTreeMap<&str, usize> = BTreeMap::new();
        for (reason, count) in &self.reasons {
            *code_counts.entry(&reason.code).or_default() += count;
        }
        let (code, _) = code_counts.into_iter().max_by_key(|(_, count)| *count)?;
        let reasons_with_code = self.reasons.iter().filter(|(reason, _)| reason.code == code);
        reasons_with_code.max_by_key(|(_, count)| **count).map(|(reason, _)| reason)
    }

    /// Adds the outcomes in `other`.
    pub fn add(&mut self, other: SubjectReport) {
        self.cases += other.cases;
        self.passed += other.passed;
        self.refused += other.refused;
        self.failed += other.failed;
        self.share = self.share.max(other.share);
        for (reason, count) in other.reasons {
            *self.reasons.entry(reason).or_default() += count;
        }
    }
}

/// Case counts of a claim other than a pattern or operator: `layout nn.conv2d`, `open dimensions`, `option half=true`.
#[derive(Clone, Debug, Serialize)]
pub struct ClaimReport {
    /// Name of the claim.
    pub claim: String,
    /// Number of valid cases.
    pub cases: usize,
    /// Number of cases that the backend supported.
    pub tested: usize,
}

/// Failure, with the case that reproduces it.
#[derive(Clone, Debug, Serialize)]
pub struct FailedCase {
    /// Subject of the case, or name of the check.
    pub subject: String,
    /// Fault that the case triggers.
    pub fault: Fault,
    /// Description of the case.
    pub case: String,
    /// File with the shrunk case that reproduces the failure.
    pub file: Option<String>,
    /// Command that reproduces the failure.
    pub command: Option<String>,
}

/// Findings about a backend.
#[derive(Clone, Debug, Serialize)]
pub struct BackendReport {
    /// Name of the backend.
    pub backend: String,
    /// Name of the plugin.
    pub plugin: String,
    /// Version of the plugin.
    pub version: String,
    /// True if the backend makes no guarantee for non-finite values; such values were therefore not tested.
    pub finite_math: bool,
    /// True if the backend may flush subnormal numbers to zero; such numbers were therefore not tested.
    pub flush_to_zero: bool,
    /// Faults that do not belong to a case.
    pub faults: Vec<Fault>,
    /// Names of all patterns and operators, including those that the filter of the run excludes.
    pub subject_names: Vec<String>,
    /// Outcomes of the cases, one report per subject.
    pub subjects: Vec<SubjectReport>,
    /// Claims besides patterns and operators.
    pub claims: Vec<ClaimReport>,
    /// Plugin-wide checks: name, and true if the check passed.
    pub checks: Vec<(String, bool)>,
    /// Failures, one per subject and kind.
    pub failures: Vec<FailedCase>,
    /// Failures that were waived by name.
    pub waived: Vec<FailedCase>,
}

impl BackendReport {
    /// Creates an empty report.
    pub fn new(backend: &str) -> BackendReport {
        BackendReport {
            backend: backend.to_owned(),
            plugin: String::new(),
            version: String::new(),
            finite_math: false,
            flush_to_zero: false,
            faults: Vec::new(),
            subject_names: Vec::new(),
            subjects: Vec::new(),
            claims: Vec::new(),
            checks: Vec::new(),
            failures: Vec::new(),
            waived: Vec::new(),
        }
    }

    /// Returns true if the report contains no faults and no failures.
    pub fn has_passed(&self) -> bool {
        self.faults.is_empty() && self.failures.is_empty()
    }

    /// Returns the names of the claims and checks, including those that the filter of the run excludes.
    pub fn claim_names(&self) -> impl Iterator<Item = String> {
        let subjects = self.subjects.iter().map(|subject| &subject.subject);
        let claims = self.claims.iter().map(|claim| &claim.claim);
        subjects.chain(&self.subject_names).chain(claims).cloned().chain(CHECKS.map(String::from))
    }

    /// Returns the number of supported cases with correct results.
    pub fn passed_count(&self) -> usize {
        self.subjects.iter().map(|s| s.passed).sum()
    }

    /// Returns the outcome in one line: `no faults; 36 of 103 cases passed, 67 refused`.
    pub fn summary(&self) -> String {
        let count = |f: fn(&SubjectReport) -> usize| self.subjects.iter().map(f).sum::<usize>();
        let mut summary = match self.faults.len() + self.failures.len() {
            0 => "no faults".to_owned(),
            1 => "1 fault".to_owned(),
            n => format!("{n} faults"),
        };
        if !self.waived.is_empty() {
            summary += &format!(", {} waived", self.waived.len());
        }
        summary += &format!(
            "; {} of {} cases passed, {} refused",
            self.passed_count(),
            count(|s| s.cases),
            count(|s| s.refused)
        );
        let failed_count = count(|s| s.failed);
        if failed_count > 0 {
            summary += &format!(", {failed_count} failed");
        }
        summary
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::Kind;

    #[test]
    fn most_frequent_reason_has_the_most_frequent_code() {
        let mut report = SubjectReport::new("operator nn.conv2d");
        assert_eq!(report.most_frequent_reason(), None);
        let counts = [
            ("UnsupportedAttr", "expected dilation 1, found 2", 3),
            ("UnsupportedDtype", "expected float32, found float64", 1),
            ("UnsupportedDtype", "expected float32, found int8", 2),
            ("UnsupportedDtype", "expected float32, found uint8", 1),
        ];
        for (code, detail, count) in counts {
            report.reasons.insert(Reason { code: code.to_owned(), detail: detail.to_owned() }, count);
        }
        let reason = report.most_frequent_reason().map(Reason::to_string);
        assert_eq!(reason.as_deref(), Some("UnsupportedDtype: expected float32, found int8"));
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["reasons"]["UnsupportedAttr: expected dilation 1, found 2"], 3);
    }

    #[test]
    fn summary_counts_faults_and_cases() {
        let mut report = BackendReport::new("mine");
        let subject = SubjectReport { cases: 103, passed: 36, refused: 67, ..SubjectReport::new("operator add") };
        report.subjects.push(subject);
        assert_eq!(report.summary(), "no faults; 36 of 103 cases passed, 67 refused");
        report.subjects.push(SubjectReport { cases: 2, failed: 2, ..SubjectReport::new("operator exp") });
        let fault = Fault::new(Kind::WrongResult, "run", "");
        report.faults.push(fault.clone());
        let subject = "operator exp".to_owned();
        report.waived.push(FailedCase { subject, fault, case: String::new(), file: None, command: None });
        assert_eq!(report.summary(), "1 fault, 1 waived; 36 of 105 cases passed, 67 refused, 2 failed");
    }
}

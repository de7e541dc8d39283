//! Cases of one claim (an operator or a pattern), drawn alone, with restrictions derived from refusals, or combined
//! with operators of other claims.

use super::case::{Case, Open, Setting, Subject};
use super::claims::{CONTROL_FLOW, Claims, DEVICE_MEMORY, LOOPS, OPEN_DIMS, STREAMS};
use super::driver::Run;
use super::fault::Kind;
use super::generate::draw::{Restrictions, THEMES};
use super::generate::{Cases, Claim, Neighbor, in_branch, in_loop};
use super::reply::{CaseReply, unfinished_runs};
use super::report::{BackendReport, Reason, SubjectReport};
use super::shrink::with_open_dims;
use super::supervise::Supervisor;
use byoc_ir::tensor::DType;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// Number of thoroughly tested cases per subject.
const MAX_THOROUGH_CASES: usize = 2;

/// Number of faults of one kind after which a subject is abandoned.
const MAX_FAULTS_PER_KIND: usize = 3;

/// Maximum number of drawn cases if few are supported, as a multiple of the requested number.
const MAX_DRAW_FACTOR: usize = 8;

/// Maximum number of supported cases per subject with open dimensions, and of attempts to find them.
const MAX_OPEN_CASES: usize = 4;
const MAX_OPEN_ATTEMPTS: usize = 12;

/// Maximum number of cases per subject in device memory.
const MAX_DEVICE_CASES: usize = 2;

/// Maximum number of cases per subject in the branches of an `if`.
const MAX_BRANCH_CASES: usize = 2;

/// Maximum number of cases per subject in a while loop.
const MAX_LOOP_CASES: usize = 3;

/// Maximum number of cases that are retained for options that may admit further element types.
const MAX_REFUSED_DTYPES: usize = 256;

/// Maximum number of passed cases per subject that are retained for combination with other claims.
const MAX_SAMPLES: usize = 8;

/// State of a backend test.
pub(super) struct Progress {
    /// Worker process.
    pub worker: Supervisor,
    pub report: BackendReport,
    /// Claims besides patterns and operators.
    pub claims: Claims,
    /// Case generator.
    pub cases: Cases,
    /// First refused case of each element type that no claim covers.
    pub refused_dtypes: Vec<Case>,
}

/// Outcomes and samples of one subject.
pub(super) struct Tally {
    pub report: SubjectReport,
    /// Passed cases.
    pub samples: Vec<Case>,
    /// Number of attempts with open dimensions, and number of supported ones among them.
    open_attempts: usize,
    open_case_count: usize,
    device_case_count: usize,
    branch_case_count: usize,
    loop_case_count: usize,
    /// Number of faults per kind.
    faults: Vec<(Kind, usize)>,
    /// Tested element types; true if a case of the type was supported.
    dtypes: BTreeMap<DType, bool>,
    /// Number of refusals per code.
    codes: BTreeMap<String, usize>,
    /// Restrictions under which cases were supported.
    helpful: Vec<Restrictions>,
}

impl Tally {
    /// Creates an empty tally.
    pub fn new(subject: &Subject) -> Tally {
        Tally {
            report: SubjectReport::new(&subject.to_string()),
            samples: Vec::new(),
            open_attempts: 0,
            open_case_count: 0,
            device_case_count: 0,
            branch_case_count: 0,
            loop_case_count: 0,
            faults: Vec::new(),
            dtypes: BTreeMap::new(),
            codes: BTreeMap::new(),
            helpful: Vec::new(),
        }
    }

    /// Returns the number of supported cases.
    pub fn tested_count(&self) -> usize {
        self.report.tested_count()
    }

    /// Returns the restrictions of case `index`. Cases cycle through a list: no restrictions, then the restrictions of
    /// supported cases or, if no case was supported, the restrictions that may avoid earlier refusals.
    fn restrictions(&self, index: usize) -> Restrictions {
        let mut options = vec![Restrictions::default()];
        if self.tested_count() > 0 {
            options.extend(&self.helpful);
        } else {
            let mut codes: Vec<(&String, &usize)> = self.codes.iter().collect();
            codes.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
            for restrictions in codes.iter().flat_map(|(code, _)| Restrictions::for_refusal_code(code)) {
                if !options.contains(restrictions) {
                    options.push(*restrictions);
                }
            }
        }
        // Each theme is drawn with different restrictions in each round.
        options[(index + index / THEMES.len()) % options.len()]
    }

    /// Records that a case with these restrictions was supported.
    fn record_helpful(&mut self, restrictions: Restrictions) {
        if restrictions != Restrictions::default() && !self.helpful.contains(&restrictions) {
            self.helpful.push(restrictions);
        }
    }

    /// Returns true if no case was supported, and the most frequent reason is that a region with only this operator is
    /// not profitable. Different operands or attributes do not change this verdict.
    fn needs_neighbors(&self) -> bool {
        let frequent_code =
            self.codes.iter().filter(|(code, _)| *code != "UnsupportedDtype").max_by_key(|(_, count)| **count);
        self.tested_count() == 0 && frequent_code.is_some_and(|(code, _)| code == "NotProfitable")
    }
}

impl Run<'_> {
    /// Returns true if the filter of the run selects a subject.
    pub(super) fn is_selected(&self, subject: &Subject) -> bool {
        self.options.name_filter.as_ref().is_none_or(|filter| subject.to_string().contains(filter.as_str()))
    }

    /// Tests the backend on cases of a subject, drawn by `make`.
    pub(super) fn try_alone(
        &self,
        progress: &mut Progress,
        subject: &Subject,
        make: impl Fn(&Cases, usize, Restrictions) -> Option<Case>,
    ) -> Tally {
        (self.progress)(&subject.to_string());
        let mut tally = Tally::new(subject);
        // Regions differ in their operators, so the refusal of one says little about the next.
        let is_region = matches!(subject, Subject::Region);
        // A pattern has more code paths than an operator: its alternatives, with and without each optional part.
        let enough = if matches!(subject, Subject::Pattern(_)) { self.options.cases } else { self.options.cases / 2 };
        for index in 0..self.options.cases * MAX_DRAW_FACTOR {
            let dtype = progress.cases.theme(index).dtype;
            let mut restrictions = Restrictions::default();
            if index >= self.options.cases {
                // If few cases were supported, more cases of the supported element types are drawn.
                if tally.tested_count() >= enough || (!is_region && tally.needs_neighbors()) {
                    break;
                }
                if !is_region && tally.dtypes.get(&dtype) == Some(&false) {
                    continue;
                }
                restrictions = tally.restrictions(index);
            }
            let Some(case) = make(&progress.cases, index, restrictions) else { continue };
            let tested_before = tally.tested_count();
            if self.try_case(progress, &mut tally, case, dtype).is_break() {
                break;
            }
            if tally.tested_count() > tested_before {
                tally.record_helpful(restrictions);
            }
        }
        tally
    }

    /// Tests cases that combine a claim with operators of other claims.
    pub(super) fn try_with_neighbors(
        &self,
        progress: &mut Progress,
        tally: &mut Tally,
        claim: Claim<'_>,
        neighbors: &[Neighbor<'_>],
    ) {
        (self.progress)(&format!("{}, combined with others", claim.subject()));
        let max_attempts = (self.options.cases * MAX_DRAW_FACTOR).max(2 * neighbors.len());
        // Neighbors with which a case was supported.
        let mut useful_neighbors: Vec<usize> = Vec::new();
        for index in 0..max_attempts {
            if neighbors.is_empty() || tally.tested_count() >= self.options.cases / 2 {
                break;
            }
            let round = index + index / THEMES.len();
            let neighbor_index = match useful_neighbors.len() {
                0 => round % neighbors.len(),
                n if index % 2 == 1 => useful_neighbors[round / 2 % n],
                _ => round % neighbors.len(),
            };
            let restrictions = tally.restrictions(index);
            let Some(case) = progress.cases.case_with_neighbor(claim, &neighbors[neighbor_index], index, restrictions)
            else {
                continue;
            };
            let (dtype, tested_before) = (progress.cases.theme(index).dtype, tally.tested_count());
            if self.try_case(progress, tally, case, dtype).is_break() {
                break;
            }
            if tally.tested_count() > tested_before {
                tally.record_helpful(restrictions);
                if !useful_neighbors.contains(&neighbor_index) {
                    useful_neighbors.push(neighbor_index);
                }
            }
        }
    }

    /// Tests a case, and counts its outcome. Breaks if the subject has enough faults.
    fn try_case(&self, progress: &mut Progress, tally: &mut Tally, case: Case, dtype: DType) -> ControlFlow<()> {
        let is_thorough = tally.report.passed < MAX_THOROUGH_CASES;
        let backend = progress.report.backend.clone();
        let reply = self.run_case(&mut progress.worker, &backend, &case, is_thorough);
        let outcome = CaseReply::of(&reply);
        progress.claims.count_layouts(&case, &outcome);
        tally.report.cases += usize::from(!matches!(outcome, CaseReply::Invalid));
        match outcome {
            CaseReply::Passed(tolerance_share) => {
                if progress.claims.open_dims
                    && tally.open_case_count < MAX_OPEN_CASES
                    && tally.open_attempts < MAX_OPEN_ATTEMPTS
                {
                    let open_dims = if tally.open_attempts.is_multiple_of(2) { Open::First } else { Open::All };
                    let tested_before = progress.claims.tested_count(OPEN_DIMS);
                    let is_good = self.try_open(progress, &case, open_dims);
                    tally.open_attempts = if is_good { tally.open_attempts + 1 } else { MAX_OPEN_ATTEMPTS };
                    tally.open_case_count += progress.claims.tested_count(OPEN_DIMS) - tested_before;
                }
                if progress.claims.device_memory && tally.device_case_count < MAX_DEVICE_CASES {
                    let is_good = self.try_on_device(progress, &case);
                    tally.device_case_count = if is_good { tally.device_case_count + 1 } else { MAX_DEVICE_CASES };
                }
                if progress.claims.control_flow && tally.branch_case_count < MAX_BRANCH_CASES {
                    let is_good = self.try_in_branch(progress, &case, tally.branch_case_count.is_multiple_of(2));
                    tally.branch_case_count = if is_good { tally.branch_case_count + 1 } else { MAX_BRANCH_CASES };
                }
                if progress.claims.loops && tally.loop_case_count < MAX_LOOP_CASES {
                    // The number of iterations cycles through 2, 0 and 1.
                    let is_good = self.try_in_loop(progress, &case, [2, 0, 1][tally.loop_case_count % 3]);
                    tally.loop_case_count = if is_good { tally.loop_case_count + 1 } else { MAX_LOOP_CASES };
                }
                tally.dtypes.insert(dtype, true);
                tally.report.passed += 1;
                tally.report.share = tally.report.share.max(tolerance_share);
                if tally.samples.len() < MAX_SAMPLES {
                    tally.samples.push(case);
                }
            }
            CaseReply::Refused(code, detail) => {
                if code == "UnsupportedDtype" && case.setting.context.is_empty() {
                    let is_first = !tally.dtypes.contains_key(&dtype) && case.setting.is_plain();
                    tally.dtypes.entry(dtype).or_insert(false);
                    if is_first && progress.refused_dtypes.len() < MAX_REFUSED_DTYPES {
                        progress.refused_dtypes.push(case);
                    }
                }
                tally.report.refused += 1;
                *tally.codes.entry(code.clone()).or_default() += 1;
                *tally.report.reasons.entry(Reason { code, detail }).or_default() += 1;
            }
            CaseReply::Invalid => {}
            CaseReply::Failed(fault) => {
                tally.report.failed += 1;
                let kind = fault.kind;
                match tally.faults.iter_mut().find(|(kind_seen, _)| *kind_seen == kind) {
                    Some((_, count)) => *count += 1,
                    None => {
                        tally.faults.push((kind, 1));
                        let failure = self.shrink_failure(&mut progress.worker, &backend, case, fault, is_thorough);
                        progress.report.failures.push(failure);
                    }
                }
                // After a crash, a new worker must be started; a timeout takes the full time limit.
                let is_costly = matches!(kind, Kind::Crash | Kind::TimeLimit);
                let limit = if is_costly { 1 } else { MAX_FAULTS_PER_KIND };
                if tally.faults.iter().any(|(_, count)| *count >= limit) {
                    return ControlFlow::Break(());
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// Retests a passed case with some of its dimensions open; returns false if this reveals a fault.
    fn try_open(&self, progress: &mut Progress, case: &Case, open_dims: Open) -> bool {
        match with_open_dims(case, open_dims) {
            Some(case) => self.try_variant(progress, case, OPEN_DIMS),
            None => true,
        }
    }

    /// Retests a passed case with its tensors in device memory; returns false if this reveals a fault.
    fn try_on_device(&self, progress: &mut Progress, case: &Case) -> bool {
        let setting = Setting { is_on_device: true, ..case.setting.clone() };
        self.try_variant(progress, Case { setting, ..case.clone() }, DEVICE_MEMORY)
    }

    /// Retests the operators of a passed case in the branches of an `if`; returns false if this reveals a fault.
    fn try_in_branch(&self, progress: &mut Progress, case: &Case, condition: bool) -> bool {
        match in_branch(case, condition) {
            Some(case) => self.try_variant(progress, case, CONTROL_FLOW),
            None => true,
        }
    }

    /// Retests the operators of a passed case in a while loop; returns false if this reveals a fault.
    fn try_in_loop(&self, progress: &mut Progress, case: &Case, iterations: usize) -> bool {
        match in_loop(case, iterations) {
            Some(case) => self.try_variant(progress, case, LOOPS),
            None => true,
        }
    }

    /// Tests a variant of a passed case, as a case of `claim`; returns false if this reveals a fault.
    pub(super) fn try_variant(&self, progress: &mut Progress, case: Case, claim: &str) -> bool {
        let backend = progress.report.backend.clone();
        let reply = self.run_case(&mut progress.worker, &backend, &case, false);
        let outcome = CaseReply::of(&reply);
        progress.claims.count(claim, &outcome);
        if unfinished_runs(&reply) > 0 {
            progress.claims.count_discovered(STREAMS, &outcome);
        }
        let CaseReply::Failed(fault) = outcome else { return true };
        let mut failure = self.shrink_failure(&mut progress.worker, &backend, case, fault, false);
        failure.subject = format!("{}, {claim}", failure.subject);
        progress.report.failures.push(failure);
        false
    }
}

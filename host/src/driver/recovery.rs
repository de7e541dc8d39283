//! Fate of regions that their backends fail to compile.

use byoc_core::pass::{Candidate, Composite, Question, Refusal, RegionReport, Report, Verdict};
use byoc_ir::diag::{Diagnostic, plural};
use byoc_ir::ir::{ExprId, Module};
use byoc_ir::op;
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// Number of partitions of a build, after which the regions that still fail run on the host.
const MAX_ROUNDS: usize = 16;

/// Number of parts of a region that fail alike, after which it is not split further.
const MAX_PARTS: usize = 16;

/// Fate of a region when its backend fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// The next backend is asked; what no other backend takes is split; what still fails runs on the host.
    #[default]
    Next,
    /// The region is split around what fails, which runs on the host.
    Split,
    /// The region runs on the host.
    Host,
    /// The command fails.
    Error,
}

impl OnFailure {
    /// Names of the values, as on the command line.
    pub const NAMES: [(&'static str, OnFailure); 4] = [
        ("next", OnFailure::Next),
        ("split", OnFailure::Split),
        ("host", OnFailure::Host),
        ("error", OnFailure::Error),
    ];

    /// Returns the value of a name.
    pub fn parse(name: &str) -> Option<OnFailure> {
        OnFailure::NAMES.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }
}

/// Restriction of a backend on operators that it failed to compile.
struct Restriction {
    backend: String,
    /// Operator calls.
    calls: HashSet<ExprId>,
    action: Action,
}

enum Action {
    /// The backend gets none of the operators.
    Refuse(Refusal),
    /// The backend gets regions of at most this number of operators and composites.
    Split(usize),
}

/// Region that failed, for the user.
struct FailedRegion {
    backend: String,
    symbol: String,
    calls: HashSet<ExprId>,
    diagnostic: Diagnostic,
}

/// Failures of a build so far, and what follows from them for the next partition.
#[derive(Default)]
pub struct Recovery {
    policy: OnFailure,
    /// Backends in priority order.
    order: Vec<String>,
    restrictions: Vec<Restriction>,
    /// Operators of regions that were offered to the next backends, with the backend that failed.
    offered: Vec<(String, HashSet<ExprId>)>,
    reports: Vec<FailedRegion>,
    rounds: usize,
}

/// Failure of a region's backend.
pub struct RegionFailure {
    /// Reason for the operators of the region.
    pub refusal: Refusal,
    /// Message to the user.
    pub diagnostic: Diagnostic,
}

fn calls_of(module: &Module, nodes: &[ExprId]) -> HashSet<ExprId> {
    nodes.iter().copied().filter(|&id| module.expr(id).as_op_call().is_some()).collect()
}

/// Returns the number of composites, and of operators outside them.
fn unit_count(module: &Module, nodes: &[ExprId], composites: &[Composite]) -> usize {
    let grouped: HashSet<ExprId> = composites.iter().flat_map(|composite| composite.nodes.iter().copied()).collect();
    composites.len() + calls_of(module, nodes).iter().filter(|id| !grouped.contains(id)).count()
}

impl Recovery {
    /// Creates an empty record for backends in priority order.
    pub fn new(policy: OnFailure, order: Vec<String>) -> Recovery {
        Recovery { policy, order, ..Recovery::default() }
    }

    /// Returns the verdict that follows from earlier failures of a backend, if any.
    pub fn verdict(
        &self,
        backend: &str,
        module: &Module,
        question: Question<'_>,
        candidate: &Candidate,
    ) -> Option<Verdict> {
        let mut own = self.restrictions.iter().filter(|restriction| restriction.backend == backend).peekable();
        own.peek()?;
        let touches = |restriction: &&Restriction| candidate.nodes.iter().any(|node| restriction.calls.contains(node));
        if let Question::Regions = question {
            let refusals: Vec<(&Restriction, &Refusal)> = own
                .clone()
                .filter_map(|restriction| match &restriction.action {
                    Action::Refuse(refusal) => Some((restriction, refusal)),
                    Action::Split(_) => None,
                })
                .collect();
            if let Some(verdict) = around_refused(module, candidate, &refusals) {
                return Some(verdict);
            }
            let sizes = own.filter(touches).filter_map(|restriction| match restriction.action {
                Action::Split(size) => Some(size),
                Action::Refuse(_) => None,
            });
            let size = sizes.min()?;
            let units = unit_count(module, &candidate.nodes, &candidate.composites);
            return (size < units).then_some(Verdict::Split(size));
        }
        own.filter(touches).find_map(|restriction| match &restriction.action {
            Action::Refuse(refusal) => Some(Verdict::Refused(refusal.clone())),
            Action::Split(_) => None,
        })
    }

    /// Records the failures of a round, by region symbol. Returns true if another partition may place more operators.
    pub fn learn(&mut self, module: &Module, report: &Report, failures: &BTreeMap<String, RegionFailure>) -> bool {
        self.rounds += 1;
        let failed: Vec<(&RegionReport, &RegionFailure)> =
            report.regions.iter().filter_map(|region| Some((region, failures.get(&*region.symbol)?))).collect();
        for (region, failure) in &failed {
            self.record(module, region, failure);
        }
        if matches!(self.policy, OnFailure::Host | OnFailure::Error) || self.rounds >= MAX_ROUNDS {
            return false;
        }
        let mut is_useful = self.take_back(module, report, failures);
        for (region, failure) in &failed {
            let parts = self.parts_failed_alike(module, &failed, region, failure);
            is_useful |= self.restrict(module, region, failure, parts);
        }
        is_useful
    }

    /// Records a failure for the user, unless it is that of a part of a region that has failed before.
    fn record(&mut self, module: &Module, region: &RegionReport, failure: &RegionFailure) {
        let calls = calls_of(module, &region.nodes);
        if self.reports.iter().any(|known| known.backend == *region.backend && calls.is_subset(&known.calls)) {
            return;
        }
        self.reports.push(FailedRegion {
            backend: region.backend.to_string(),
            symbol: region.symbol.to_string(),
            calls,
            diagnostic: failure.diagnostic.clone(),
        });
    }

    /// Gives operators that were offered to the next backends, and that none of them compiled, back to the backend that
    /// failed. Returns true if there are any.
    fn take_back(&mut self, module: &Module, report: &Report, failures: &BTreeMap<String, RegionFailure>) -> bool {
        let compiled = report.regions.iter().filter(|region| !failures.contains_key(&*region.symbol));
        let placed: HashSet<ExprId> = compiled.flat_map(|region| region.nodes.iter().copied()).collect();
        let failed: HashSet<ExprId> = report
            .regions
            .iter()
            .flat_map(|region| calls_of(module, &region.nodes))
            .filter(|id| !placed.contains(id))
            .collect();
        let mut is_useful = false;
        for restriction in &mut self.restrictions {
            let Action::Refuse(_) = restriction.action else { continue };
            let was_offered = |(backend, calls): &(String, HashSet<ExprId>)| {
                *backend == restriction.backend && *calls == restriction.calls
            };
            // A single operator has failed as such.
            if restriction.calls.len() > 1 && self.offered.iter().any(was_offered) {
                let count = restriction.calls.len();
                restriction.calls.retain(|id| placed.contains(id) || failed.contains(id));
                is_useful |= restriction.calls.len() < count;
            }
        }
        is_useful
    }

    /// Returns the number of parts of the split region that contains `region`, if all of them failed alike; otherwise 0.
    fn parts_failed_alike(
        &self,
        module: &Module,
        failed: &[(&RegionReport, &RegionFailure)],
        region: &RegionReport,
        failure: &RegionFailure,
    ) -> usize {
        let calls = calls_of(module, &region.nodes);
        // The first of the restrictions is that of the region before any split.
        let whole = self.restrictions.iter().find(|restriction| {
            restriction.backend == *region.backend
                && matches!(restriction.action, Action::Split(_))
                && calls.is_subset(&restriction.calls)
        });
        let Some(whole) = whole else { return 0 };
        let is_alike = |(other, reason): &&(&RegionReport, &RegionFailure)| {
            other.backend == region.backend && reason.refusal == failure.refusal
        };
        let counts: Vec<usize> = failed
            .iter()
            .filter(is_alike)
            .map(|(other, _)| calls_of(module, &other.nodes).intersection(&whole.calls).count())
            .filter(|&count| count > 0)
            .collect();
        if counts.iter().sum::<usize>() >= whole.calls.len() { counts.len() } else { 0 }
    }

    /// Adds what follows from the failure of a region. Returns true if the next partition may differ.
    fn restrict(&mut self, module: &Module, region: &RegionReport, failure: &RegionFailure, parts: usize) -> bool {
        let (backend, calls) = (region.backend.to_string(), calls_of(module, &region.nodes));
        let units = unit_count(module, &region.nodes, &region.composites);
        let refuse = || Action::Refuse(failure.refusal.clone());
        let is_last = self.order.last().is_none_or(|last| *last == backend);
        let was_offered = self.offered.iter().any(|(other, seen)| *other == backend && calls.is_subset(seen));
        if self.policy == OnFailure::Next && !is_last && !was_offered {
            self.offered.push((backend.clone(), calls.clone()));
            self.restrictions.push(Restriction { backend, calls, action: refuse() });
            return true;
        }
        let named = named_calls(module, &calls, &failure.refusal.detail);
        // Of several operators with the name in the message, perhaps one alone fails; not if every part has one.
        let is_named = named.len() == 1 || (parts > 1 && !named.is_empty());
        let culprits = match units {
            1 => calls.clone(),
            _ if is_named && named.len() < calls.len() => named,
            // Probably nothing of the region compiles.
            _ if parts >= MAX_PARTS => calls.clone(),
            _ => {
                self.restrictions.push(Restriction { backend, calls, action: Action::Split(units.div_ceil(2)) });
                return true;
            }
        };
        // The rest of a split region becomes one region again.
        let count = self.restrictions.len();
        self.restrictions.retain(|restriction| {
            restriction.backend != backend
                || matches!(restriction.action, Action::Refuse(_))
                || culprits.is_disjoint(&restriction.calls)
        });
        let is_useful = units > 1 || self.restrictions.len() < count;
        self.restrictions.push(Restriction { backend, calls: culprits, action: refuse() });
        is_useful
    }

    /// Returns the warnings about the failures. `report` is that of the last partition.
    pub fn warnings(
        self,
        module: &Module,
        report: &Report,
        failures: &BTreeMap<String, RegionFailure>,
    ) -> Vec<Diagnostic> {
        let compiled = || report.regions.iter().filter(|region| !failures.contains_key(&*region.symbol));
        let warning = |failed: FailedRegion| {
            let count_of = |region: &RegionReport| calls_of(module, &region.nodes).intersection(&failed.calls).count();
            let placed: usize = compiled().map(count_of).sum();
            let backends: BTreeSet<&str> =
                compiled().filter(|region| count_of(region) > 0).map(|region| &*region.backend).collect();
            let backends: Vec<&str> = backends.into_iter().collect();
            let (symbol, on_host) = (&failed.symbol, failed.calls.len().saturating_sub(placed));
            let note = match (placed, on_host) {
                (0, _) => format!("region {symbol} could not be compiled, so it runs on the host"),
                (_, 0) => format!("region {symbol} could not be compiled, so it runs on {}", backends.join(" and ")),
                _ => format!(
                    "region {symbol} could not be compiled: {} of it run on {} and {on_host} on the host",
                    plural(placed, "operator"),
                    backends.join(" and ")
                ),
            };
            failed.diagnostic.note(note)
        };
        // Regions that the model already has are no part of the report, and are not partitioned again.
        let is_partitioned = |symbol: &str| report.regions.iter().any(|region| &*region.symbol == symbol);
        let fixed = failures.iter().filter(|(symbol, _)| !is_partitioned(symbol)).map(|(symbol, failure)| {
            let note = format!("region {symbol} could not be compiled, so it runs on the host");
            failure.diagnostic.clone().note(note)
        });
        fixed.chain(self.reports.into_iter().map(warning)).collect()
    }
}

/// Returns the verdict on a region that a backend claimed as a whole, with operators that it failed to compile: the region is
/// halved until they are alone.
fn around_refused(module: &Module, candidate: &Candidate, refusals: &[(&Restriction, &Refusal)]) -> Option<Verdict> {
    let calls = calls_of(module, &candidate.nodes);
    let is_refused = |id: &&ExprId| refusals.iter().any(|(restriction, _)| restriction.calls.contains(id));
    let count = calls.iter().filter(is_refused).count();
    let (_, refusal) = refusals.iter().find(|(restriction, _)| !restriction.calls.is_disjoint(&calls))?;
    let units = unit_count(module, &candidate.nodes, &candidate.composites);
    match count < calls.len() && units > 1 {
        true => Some(Verdict::Split(units.div_ceil(2))),
        false => Some(Verdict::Refused((*refusal).clone())),
    }
}

/// Returns the calls of the operators that a message names.
fn named_calls(module: &Module, calls: &HashSet<ExprId>, message: &str) -> HashSet<ExprId> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
    let words: HashSet<&str> = message.split(|c: char| !is_name(c)).map(|word| word.trim_end_matches('.')).collect();
    let name = |id: &ExprId| module.expr(*id).as_op_call().map(|(op, _)| op::get(op).name);
    calls.iter().copied().filter(|id| name(id).is_some_and(|name| words.contains(name))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use byoc_core::pass::{
        Backend, Body, ClaimedSet, Claims, ControlFlow, Judge, RefusalCode, infer_type, partition_for,
    };
    use byoc_ir::diag::codes;
    use byoc_ir::text::{ParseOptions, parse};

    const PROGRAM: &str = "#[version = \"0.0.5\"]
def @main(%x: Tensor[(4), float32]) {
  %0 = nn.relu(%x);
  %1 = abs(%0);
  %2 = exp(%1);
  %3 = abs(%2);
  %4 = nn.relu(%3);
  %5 = exp(%4);
  negative(%5)
}
";

    /// Backend that accepts everything, by operator or as one set of all operators.
    struct Accepting<'r> {
        recovery: &'r Recovery,
        claims_all: bool,
    }

    impl Judge for Accepting<'_> {
        fn claims(&mut self, _: &Module, bodies: &mut dyn FnMut() -> Vec<Body>) -> Option<Claims> {
            let sets = || bodies().into_iter().map(|body| ClaimedSet { operators: body.operators, problem: None });
            self.claims_all.then(sets).map(|sets| Claims { sets: sets.collect(), ..Claims::default() })
        }

        fn judge(&mut self, module: &Module, question: Question<'_>, candidates: &[Candidate]) -> Vec<Verdict> {
            let verdict = |candidate| self.recovery.verdict("b", module, question, candidate);
            candidates.iter().map(|candidate| verdict(candidate).unwrap_or(Verdict::Supported)).collect()
        }
    }

    /// Partitions until nothing more is learned, with a compiler that fails on `exp`. Returns the number of rounds, and the
    /// operators of each region that compiles.
    fn settle(claims_all: bool, message: &str) -> (usize, Vec<Vec<&'static str>>) {
        let module = infer_type(&parse(PROGRAM, &ParseOptions::default()).module).unwrap();
        let operators = ["nn.relu", "abs", "exp", "negative"].map(String::from);
        let mut recovery = Recovery::new(OnFailure::Next, vec!["b".into()]);
        for round in 1.. {
            let mut judge = Accepting { recovery: &recovery, claims_all };
            let mut backends = [Backend {
                name: "b".into(),
                table: &[],
                operators: &operators,
                control_flow: ControlFlow::default(),
                judge: &mut judge,
            }];
            let (_, report) = partition_for(&module, &mut backends, "default").unwrap();
            let names = |region: &RegionReport| -> Vec<&'static str> {
                let operators = region.nodes.iter().filter_map(|&id| module.expr(id).as_op_call());
                operators.map(|(op, _)| op::get(op).name).collect()
            };
            let failing = report.regions.iter().filter(|region| names(region).contains(&"exp"));
            let failure = || RegionFailure {
                refusal: Refusal::new(RefusalCode::CompileFailed, message),
                diagnostic: Diagnostic::error(codes::plugins::REGION_NOT_COMPILED, message),
            };
            let failures = failing.map(|region| (region.symbol.to_string(), failure())).collect();
            if !recovery.learn(&module, &report, &failures) {
                let compiled = report.regions.iter().filter(|region| !failures.contains_key(&*region.symbol));
                return (round, compiled.map(names).collect());
            }
        }
        unreachable!()
    }

    #[test]
    fn what_compiles_is_placed_around_what_fails() {
        let expected = [vec!["nn.relu", "abs"], vec!["abs", "nn.relu"], vec!["negative"]];
        for claims_all in [false, true] {
            for message in ["no kernel", "exp: no kernel"] {
                let (rounds, regions) = settle(claims_all, message);
                let operators: usize = regions.iter().map(Vec::len).sum();
                assert!(operators == 5 && rounds < MAX_ROUNDS, "{claims_all} {message}: {rounds} {regions:?}");
                assert!(claims_all || regions == expected, "{message}: {regions:?}");
            }
        }
    }
}

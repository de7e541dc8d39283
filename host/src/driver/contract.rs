//! Contracts: requirements on a build of a model, in a `byoc.toml` beside the model.
//!
//! ```toml
//! [[contract]]
//! op = "Conv"                # every convolution of the model
//! must = "dnnl"              # runs on dnnl
//!
//! [[contract]]
//! max_regions = 1
//! max_host_steps = 0
//! ```
//!
//! A rule selects operators by `op` (type in the model), `kind` (the same), and `source` (name in the model), each with `*` for
//! any text; without them it selects all. [`Contract::check`] compares a build with the rules that a build decides. The
//! rules about results and times (`max_rel_err`, `max_latency_ratio`) are for the commands that measure them.

use super::explain::RegionFacts;
use super::explanation::{Explanation, NodeRow, Placement, PlacementKind};
use byoc_ir::diag::{Diagnostic, codes, nearest, plural};
use byoc_ir::ir::Name;
use byoc_plugin_api::ComputeFormat;
use byoc_runtime::exec::program::{Instr, Program};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::Spanned;

/// Name of the file beside a model.
pub const FILE_NAME: &str = "byoc.toml";

/// Facts of a build that rules are about.
pub(super) struct Build<'b> {
    /// Place of each operator.
    pub explanation: &'b Explanation,
    /// Program of the model.
    pub program: &'b Program,
    /// Size of the constants in bytes.
    pub constant_bytes: usize,
    /// Statements of the backends about their regions, by symbol.
    pub facts: &'b BTreeMap<Name, RegionFacts>,
}

/// Number of operators that a message names.
const NAMED: usize = 5;

/// Rules of a file.
#[derive(Clone, Debug, Default)]
pub struct Contract {
    path: PathBuf,
    rules: Vec<(usize, Rule)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    contract: Vec<Spanned<Rule>>,
}

/// Rule of a contract.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Rule {
    /// Type of the selected operators.
    pub op: Option<String>,
    /// Type of the selected operators.
    pub kind: Option<String>,
    /// Name of the selected operators.
    pub source: Option<String>,
    /// Backend of all selected operators.
    pub must: Option<String>,
    /// Backend that gets none of the selected operators.
    pub must_not: Option<String>,
    /// Least share of the selected operators' FLOPs on backends, or on the backend `must`.
    pub min_flops_share: Option<f64>,
    /// Largest number of regions.
    pub max_regions: Option<usize>,
    /// Largest number of values that pass from a region to another or to the host, or from the host to a region.
    pub max_cuts: Option<usize>,
    /// Largest number of operators that the host runs.
    pub max_host_steps: Option<usize>,
    /// Largest number of bytes per run between host memory and device memories.
    pub max_copied_bytes: Option<usize>,
    /// Largest number of bytes of constants and intermediate results.
    pub max_memory_bytes: Option<usize>,
    /// Lowest precision of computation: `f32`, `tf32`, `bf16` or `f16`.
    pub precision: Option<String>,
    /// Largest latency, divided by that of the host alone; measured by `byoc bench`.
    pub max_latency_ratio: Option<f64>,
    /// Largest error against the recorded outputs; measured by `byoc verify`.
    pub max_rel_err: Option<f64>,
}

/// Result of checking a rule against a build.
#[derive(Clone, Debug)]
pub struct RuleOutcome {
    /// Line of the rule in the file.
    pub line: usize,
    /// Rule.
    pub rule: Rule,
    /// Violations; empty if the build keeps the rule.
    pub violations: Vec<Diagnostic>,
}

impl Contract {
    /// Reads a contract.
    ///
    /// # Errors
    /// E0461 if the file cannot be read, is not a contract, or contradicts itself.
    pub fn read(path: &Path) -> Result<Contract, Diagnostic> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| Diagnostic::error(codes::plugins::BAD_CONTRACT, format!("{}: {error}", path.display())))?;
        Contract::parse(path, &text)
    }

    /// Reads the contract beside a model, if there is one.
    ///
    /// # Errors
    /// Same as [`Contract::read`].
    pub fn beside(model: &Path) -> Result<Option<Contract>, Diagnostic> {
        let dir = if model.is_dir() { model } else { model.parent().unwrap_or(Path::new("")) };
        let path = dir.join(FILE_NAME);
        if path.is_file() { Contract::read(&path).map(Some) } else { Ok(None) }
    }

    fn parse(path: &Path, text: &str) -> Result<Contract, Diagnostic> {
        let position = |span: Option<Range<usize>>| {
            let start = span.map_or(0, |span| span.start.min(text.len()));
            let before = &text[..start];
            let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
            (before.matches('\n').count() + 1, column)
        };
        let error = |(line, column): (usize, usize), problem: String| {
            Diagnostic::error(codes::plugins::BAD_CONTRACT, format!("{}:{line}:{column}: {problem}", path.display()))
        };
        let file: File = toml::from_str(text).map_err(|problem| {
            let message = problem.message().lines().next().unwrap_or_default().to_owned();
            error(position(problem.span()), message)
        })?;
        let rules: Vec<(usize, Rule)> = file
            .contract
            .into_iter()
            .map(|rule| (position(Some(rule.span())), rule.into_inner()))
            .map(|(at, rule)| rule.check().map_err(|problem| error(at, problem)).map(|()| (at.0, rule)))
            .collect::<Result<_, _>>()?;
        for (index, (line, rule)) in rules.iter().enumerate() {
            let contradicts = |other: &&(usize, Rule)| other.1.selects_like(rule) && other.1.contradicts(rule);
            if let Some((other_line, _)) = rules[..index].iter().find(contradicts) {
                let problem = format!("this rule contradicts that in line {other_line}");
                return Err(error((*line, 1), problem).help("keep one of the two rules"));
            }
        }
        Ok(Contract { path: path.to_owned(), rules })
    }

    /// Returns the largest permitted relative error, if there is one.
    pub fn max_rel_err(&self) -> Option<f64> {
        self.rules.iter().filter_map(|(_, rule)| rule.max_rel_err).reduce(f64::min)
    }

    /// Returns the largest permitted ratio of the latency to that of the host, if there is one.
    pub fn max_latency_ratio(&self) -> Option<f64> {
        self.rules.iter().filter_map(|(_, rule)| rule.max_latency_ratio).reduce(f64::min)
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks each rule: E0462 for a violation, E0461 for a rule that selects nothing.
    pub(super) fn check(&self, build: &Build<'_>) -> Vec<RuleOutcome> {
        let outcome = |(line, rule): &(usize, Rule)| {
            let at = format!("{}:{line}", self.path.display());
            let violations = rule.violations(build).into_iter();
            RuleOutcome {
                line: *line,
                rule: rule.clone(),
                violations: violations.map(|v| Diagnostic { message: format!("{at}: {}", v.message), ..v }).collect(),
            }
        };
        self.rules.iter().map(outcome).collect()
    }

    /// Returns the violation of a rule about a measured value.
    pub fn violation(&self, key: &str, limit: f64, found: f64) -> Diagnostic {
        let message = format!("{}: {key}: expected at most {limit}, found {found:.3e}", self.path.display());
        violated(message)
    }
}

impl Rule {
    /// Checks the values of a rule.
    fn check(&self) -> Result<(), String> {
        let selects =
            Rule { op: self.op.clone(), kind: self.kind.clone(), source: self.source.clone(), ..Rule::default() };
        if *self == selects {
            return Err("expected a requirement, such as must or max_regions, found none".into());
        }
        if let Some(share) = self.min_flops_share.filter(|share| !(0.0..=1.0).contains(share)) {
            return Err(format!("min_flops_share: expected 0 to 1, found {share}"));
        }
        for (key, value) in [("max_rel_err", self.max_rel_err), ("max_latency_ratio", self.max_latency_ratio)] {
            if let Some(value) = value.filter(|value| !(*value >= 0.0 && value.is_finite())) {
                return Err(format!("{key}: expected a number >= 0, found {value}"));
            }
        }
        if self.must.is_some() && self.must == self.must_not {
            let backend = self.must.as_deref().unwrap_or_default();
            return Err(format!("must and must_not: expected different backends, found {backend} twice"));
        }
        match &self.precision {
            Some(name) if ComputeFormat::parse(name).is_none() => {
                Err(format!("precision: expected f32, tf32, bf16 or f16, found \"{name}\""))
            }
            _ => Ok(()),
        }
    }

    fn selects_like(&self, other: &Rule) -> bool {
        (&self.op, &self.kind, &self.source) == (&other.op, &other.kind, &other.source)
    }

    fn contradicts(&self, other: &Rule) -> bool {
        let differs = |a: &Option<String>, b: &Option<String>| a.is_some() && b.is_some() && a != b;
        let forbids = |a: &Rule, b: &Rule| a.must.is_some() && a.must == b.must_not;
        let all = self.min_flops_share.is_none() && other.min_flops_share.is_none();
        (all && differs(&self.must, &other.must)) || forbids(self, other) || forbids(other, self)
    }

    fn selects(&self, node: &NodeRow) -> bool {
        let matches = |pattern: &Option<String>, text: &str| pattern.as_deref().is_none_or(|p| is_match(p, text));
        matches(&self.op, &node.op) && matches(&self.kind, &node.op) && matches(&self.source, &node.source)
    }

    fn violations(&self, build: &Build<'_>) -> Vec<Diagnostic> {
        let selected: Vec<&NodeRow> = build.explanation.nodes.iter().filter(|node| self.selects(node)).collect();
        if selected.is_empty() && self.has_selector() {
            return vec![self.selects_nothing(build.explanation)];
        }
        let mut violations = Vec::new();
        self.check_places(&selected, &mut violations);
        self.check_precision(build, &selected, &mut violations);
        self.check_limits(build, &selected, &mut violations);
        violations
    }

    /// Checks the backends of the selected operators.
    fn check_places(&self, selected: &[&NodeRow], violations: &mut Vec<Diagnostic>) {
        if let (Some(backend), None) = (&self.must, self.min_flops_share) {
            let elsewhere: Vec<&NodeRow> =
                selected.iter().copied().filter(|node| places(node).any(|place| !is_on(place, backend))).collect();
            if !elsewhere.is_empty() {
                let message = format!(
                    "expected {} on {backend}, found {} elsewhere",
                    self.words(),
                    plural(elsewhere.len(), "operator")
                );
                violations.push(with_operators(violated(message), &elsewhere, Some(backend)));
            }
        }
        if let Some(backend) = &self.must_not {
            let there: Vec<&NodeRow> = selected
                .iter()
                .copied()
                .filter(|node| places(node).any(|place| is_on(place, backend) && place.kind == PlacementKind::Region))
                .collect();
            if !there.is_empty() {
                let message = format!(
                    "expected {} not on {backend}, found {} there",
                    self.words(),
                    plural(there.len(), "operator")
                );
                violations.push(with_operators(violated(message), &there, None));
            }
        }
        if let Some(least) = self.min_flops_share {
            let counts = |place: &Placement| match &self.must {
                Some(backend) => place.backend.as_ref() == Some(backend),
                None => place.kind == PlacementKind::Region,
            };
            let total: u64 = selected.iter().map(|node| node.flops).sum();
            let placed: u64 = selected.iter().filter(|node| counts(&node.placement)).map(|node| node.flops).sum();
            let share = if total == 0 { 1.0 } else { placed as f64 / total as f64 };
            if share < least {
                let rest: Vec<&NodeRow> = selected.iter().copied().filter(|node| !counts(&node.placement)).collect();
                let place = self.must.as_deref().unwrap_or("backends");
                let message =
                    format!("expected at least {least} of the FLOPs of {} on {place}, found {share:.3}", self.words());
                violations.push(with_operators(violated(message), &rest, self.must.as_ref()));
            }
        }
    }

    /// Checks what the backends claim of the regions with selected operators.
    fn check_precision(&self, build: &Build<'_>, selected: &[&NodeRow], violations: &mut Vec<Diagnostic>) {
        if let Some(lowest) = self.precision.as_deref().and_then(ComputeFormat::parse) {
            let is_selected = |id: &usize| selected.iter().any(|node| node.id == *id);
            for region in build.explanation.regions.iter().filter(|region| region.nodes.iter().any(is_selected)) {
                let claims = build.facts.get(&*region.symbol).map_or(&[][..], |facts| &facts.precision);
                for (claim, _) in claims.iter().filter(|(_, format)| !lowest.allows(*format)) {
                    let message =
                        format!("precision: expected {lowest} of {}, found {claim} in {}", self.words(), region.symbol);
                    violations.push(violated(message));
                }
            }
        }
    }

    /// Checks the numbers of the build.
    fn check_limits(&self, build: &Build<'_>, selected: &[&NodeRow], violations: &mut Vec<Diagnostic>) {
        let Build { explanation, program, constant_bytes, .. } = build;
        let copied: usize = explanation.copies.iter().map(|row| row.to_device_bytes + row.from_device_bytes).sum();
        let entry = program.functions.get(program.entry as usize);
        let host_steps =
            entry.map_or(0, |entry| entry.code.iter().filter(|instr| matches!(instr, Instr::Kernel(_))).count());
        let limits = [
            (self.max_regions, explanation.regions.len(), "max_regions", "regions"),
            (self.max_cuts, cuts(explanation), "max_cuts", "cuts"),
            (self.max_host_steps, host_steps, "max_host_steps", "steps on the host"),
            (self.max_copied_bytes, copied, "max_copied_bytes", "bytes per run"),
            (self.max_memory_bytes, constant_bytes + entry.map_or(0, |entry| entry.arena), "max_memory_bytes", "bytes"),
        ];
        for (most, found, key, unit) in limits {
            if let Some(most) = most.filter(|&most| found > most) {
                let violation = violated(format!("{key}: expected at most {most} {unit}, found {found}"));
                let on_host: Vec<&NodeRow> =
                    selected.iter().copied().filter(|node| node.placement.kind == PlacementKind::Host).collect();
                violations.push(with_operators(violation, &on_host, None));
            }
        }
    }

    /// Returns the requirements of the rule that a build can check, and those that are measured, as in `max_regions = 3`.
    pub fn requirements(&self) -> (Vec<String>, Vec<String>) {
        let text = |key: &str, value: &Option<String>| value.as_ref().map(|value| format!("{key} = \"{value}\""));
        let number = |key: &str, value: Option<f64>| value.map(|value| format!("{key} = {value}"));
        let count = |key: &str, value: Option<usize>| value.map(|value| format!("{key} = {value}"));
        let of_build = [
            text("must", &self.must),
            text("must_not", &self.must_not),
            number("min_flops_share", self.min_flops_share),
            count("max_regions", self.max_regions),
            count("max_cuts", self.max_cuts),
            count("max_host_steps", self.max_host_steps),
            count("max_copied_bytes", self.max_copied_bytes),
            count("max_memory_bytes", self.max_memory_bytes),
            text("precision", &self.precision),
        ];
        let measured = [number("max_latency_ratio", self.max_latency_ratio), number("max_rel_err", self.max_rel_err)];
        (of_build.into_iter().flatten().collect(), measured.into_iter().flatten().collect())
    }

    fn has_selector(&self) -> bool {
        self.op.is_some() || self.kind.is_some() || self.source.is_some()
    }

    /// Describes the selected operators.
    pub fn words(&self) -> String {
        let selectors = [("op", &self.op), ("kind", &self.kind), ("source", &self.source)];
        let parts: Vec<String> =
            selectors.iter().filter_map(|(key, value)| Some(format!("{key} \"{}\"", value.as_ref()?))).collect();
        if parts.is_empty() {
            "every operator".to_owned()
        } else {
            format!("every operator with {}", parts.join(" and "))
        }
    }

    fn selects_nothing(&self, explanation: &Explanation) -> Diagnostic {
        let message = format!("expected {} in the model, found none", self.words());
        let diagnostic = Diagnostic::error(codes::plugins::BAD_CONTRACT, message);
        let wanted = self.source.as_ref().or(self.op.as_ref()).or(self.kind.as_ref()).map_or("", String::as_str);
        let names = explanation.nodes.iter().flat_map(|node| [node.op.as_str(), node.source.as_str()]);
        match nearest(wanted, names) {
            Some(name) => diagnostic.help(format!("did you mean \"{name}\"?")),
            None => diagnostic.help("\"byoc explain MODEL\" lists the operators"),
        }
    }
}

fn violated(message: String) -> Diagnostic {
    Diagnostic::error(codes::plugins::CONTRACT_VIOLATED, message)
}

/// Returns the places of an operator's parts.
fn places(node: &NodeRow) -> impl Iterator<Item = &Placement> {
    let parts = if node.parts.is_empty() { std::slice::from_ref(&node.placement) } else { &node.parts };
    parts.iter()
}

/// Returns true for a place on the backend. A folded operator runs nowhere.
fn is_on(place: &Placement, backend: &str) -> bool {
    place.kind == PlacementKind::Folded || place.backend.as_deref() == Some(backend)
}

/// Returns the number of values that pass between regions, and between regions and the host.
fn cuts(explanation: &Explanation) -> usize {
    let region = |id: &usize| explanation.nodes.get(*id).map(|node| &node.placement);
    let is_folded = |place: &Placement| place.kind == PlacementKind::Folded;
    let crosses = |from: &Placement, to: &Placement| !is_folded(from) && !is_folded(to) && from.region != to.region;
    let crossing =
        |node: &NodeRow| node.inputs.iter().filter_map(region).filter(|from| crosses(from, &node.placement)).count();
    explanation.nodes.iter().map(crossing).sum()
}

/// Adds the names of operators, and the reasons of `backend` for them, or of every backend.
fn with_operators(diagnostic: Diagnostic, nodes: &[&NodeRow], backend: Option<&String>) -> Diagnostic {
    if nodes.is_empty() {
        return diagnostic;
    }
    let names: Vec<String> = nodes.iter().take(NAMED).map(|node| format!("{} {}", node.op, node.source)).collect();
    let rest = nodes.len().saturating_sub(NAMED);
    let rest = if rest > 0 { format!(", and {rest} more") } else { String::new() };
    let mut diagnostic = diagnostic.note(format!("{}{rest}", names.join(", ")));
    let mut reasons: Vec<String> = Vec::new();
    for refusal in nodes.iter().flat_map(|node| &node.refusals) {
        let text = refusal.to_string();
        if backend.is_none_or(|backend| *backend == refusal.backend) && !reasons.contains(&text) {
            reasons.push(text);
        }
    }
    for reason in reasons.into_iter().take(NAMED) {
        diagnostic = diagnostic.note(reason);
    }
    diagnostic.help("\"byoc explain\" with the same options gives the place of each operator, and the reasons")
}

/// Returns true if a text matches a pattern, in which `*` stands for any text.
pub fn is_match(pattern: &str, text: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(head) else { return false };
    let parts: Vec<&str> = rest.split('*').collect();
    let Some((tail, middle)) = parts.split_last() else { return true };
    for part in middle {
        match text.find(part) {
            Some(start) => text = &text[start + part.len()..],
            None => return false,
        }
    }
    text.ends_with(tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Contract, Diagnostic> {
        Contract::parse(Path::new("byoc.toml"), text)
    }

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, text, expected) in [
            ("Conv", "Conv", true),
            ("Conv", "ConvTranspose", false),
            ("Conv*", "ConvTranspose", true),
            ("/layer*/Conv", "/layer1/0/Conv", true),
            ("/layer*/Conv", "/layer1/0/Relu", false),
            ("*a*a", "a", false),
            ("*a*a", "baca", true),
            ("*", "", true),
        ] {
            assert_eq!(is_match(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn faults_have_line_and_column() {
        for (text, expected) in [
            ("[[contract]]\nmax_region = 1\n", "byoc.toml:2:1: unknown field `max_region`"),
            ("[[contract]]\nmax_regions = \n", "byoc.toml:2:"),
            ("[[contract]]\nop = \"Conv\"\n", "byoc.toml:1:1: expected a requirement"),
            ("\n[[contract]]\nmin_flops_share = 1.5\n", "byoc.toml:2:1: min_flops_share: expected 0 to 1, found 1.5"),
            ("[[contract]]\nmust = \"a\"\nmust_not = \"a\"\n", "byoc.toml:1:1: must and must_not"),
            ("[[contract]]\nprecision = \"f8\"\n", "precision: expected f32, tf32, bf16 or f16, found \"f8\""),
            (
                "[[contract]]\nop = \"Conv\"\nmust = \"a\"\n[[contract]]\nop = \"Conv\"\nmust_not = \"a\"\n",
                "byoc.toml:4:1: this rule contradicts that in line 1",
            ),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.message.contains(expected), "expected {expected} in {}", error.message);
        }
        assert!(parse("").unwrap().rules.is_empty());
    }
}

//! Backends that see the whole module and claim sets of operators.

use super::backends::{partition, places, test_backend};
use super::{assert_equal, module};
use byoc_core::pass::{Body, Candidate, ClaimedSet, Claims, Judge, Question, Refusal, RefusalCode, Report, Verdict};
use byoc_ir::ir::{ExprId, Module};
use byoc_ir::op;

fn name(module: &Module, id: ExprId) -> &'static str {
    op::get(module.expr(id).as_op_call().unwrap().0).name
}

/// Judge that claims sets of operators by their names, and takes regions of at most `limit` operators.
struct Claiming {
    sets: Vec<Vec<&'static str>>,
    limit: usize,
}

impl Judge for Claiming {
    fn claims(&mut self, module: &Module, bodies: &mut dyn FnMut() -> Vec<Body>) -> Option<Claims> {
        let operators: Vec<ExprId> = bodies().into_iter().flat_map(|body| body.operators).collect();
        let named = |names: &Vec<&str>| ClaimedSet {
            operators: operators.iter().copied().filter(|&id| names.contains(&name(module, id))).collect(),
            problem: None,
        };
        let refusals = operators.iter().filter(|&&id| name(module, id) == "tanh");
        Some(Claims {
            sets: self.sets.iter().map(named).collect(),
            refusals: refusals.map(|&id| (id, Refusal::new(RefusalCode::NotClaimed, "no table for tanh"))).collect(),
            otherwise: Some(Refusal::new(RefusalCode::NotClaimed, "not on this chip")),
        })
    }

    fn judge(&mut self, module: &Module, question: Question<'_>, candidates: &[Candidate]) -> Vec<Verdict> {
        assert!(!matches!(question, Question::Operators), "a backend with claims is not asked about operators");
        let verdict = |candidate: &Candidate| {
            let count = candidate.nodes.iter().filter(|&&id| module.expr(id).as_op_call().is_some()).count();
            match question {
                Question::Regions if count > self.limit => Verdict::Split(self.limit),
                _ => Verdict::Supported,
            }
        };
        candidates.iter().map(verdict).collect()
    }
}

fn claiming(sets: &[&[&'static str]]) -> Box<dyn Judge> {
    Box::new(Claiming { sets: sets.iter().map(|set| set.to_vec()).collect(), limit: usize::MAX })
}

/// Partitions a program for the backend `c`, which claims the sets.
fn claim(source: &str, patterns: &str, sets: &[&[&'static str]]) -> (Module, Module, Report) {
    let mut backend = test_backend("c", patterns, &["abs"]);
    backend.judge = claiming(sets);
    partition(source, &mut [backend])
}

fn details(report: &Report) -> Vec<&str> {
    report.operators.iter().map(|row| row.refusals.first().map_or("", |(_, refusal)| &refusal.detail)).collect()
}

#[test]
fn a_set_is_one_region_with_composites_inside() {
    let (before, after, report) = claim(
        "def @main(%a: T, %b: T) { %0 = nn.relu(add(%a, %b)); %1 = abs(%a); exp(multiply(%0, %1)) }",
        "c.add_relu: nn.relu(add(*, *))\nc.mul_exp: exp(multiply(*, *))",
        &[&["add", "nn.relu", "abs"], &["multiply"]],
    );
    // The set is not connected. The second pattern reaches outside of the sets, so it forms no composite.
    assert_eq!(places(&before, &report), ["add c0", "nn.relu c0", "abs c0", "multiply c1", "exp host c:NotClaimed"]);
    assert_eq!(details(&report)[4], "not on this chip");
    assert_eq!(report.regions.iter().map(|region| region.composites.len()).collect::<Vec<_>>(), [1, 0]);
    assert_eq!(report.regions[0].outputs.len(), 2);
    assert!(after.globals.contains_key("tvmgen_default_c_main_1"));
}

#[test]
fn sets_do_not_grow_together() {
    let source = "def @main(%a: T) { exp(nn.relu(abs(%a))) }";
    let (before, _, report) = claim(source, "", &[&["abs"], &["nn.relu", "exp"]]);
    assert_eq!(places(&before, &report), ["abs c0", "nn.relu c1", "exp c1"]);
}

#[test]
fn operators_without_a_claim_have_the_reason_of_the_backend() {
    let source = "def @main(%a: T) { tanh(exp(nn.relu(abs(%a)))) }";
    let (before, _, report) = claim(source, "", &[&["abs"]]);
    let host = ["nn.relu host c:NotClaimed", "exp host c:NotClaimed", "tanh host c:NotClaimed"];
    assert_eq!(places(&before, &report)[1..], host);
    assert_eq!(details(&report)[1..], ["not on this chip", "not on this chip", "no table for tanh"]);
}

#[test]
fn sets_that_are_not_convex_or_overlap_are_refused_with_the_operators() {
    let source = "def @main(%a: T) {
        %0 = nn.relu(%a); %1 = sigmoid(%0); %2 = add(%0, %1); %3 = exp(%2); log(erf(sqrt(%3))) }";
    let mut second = test_backend("c", "", &[]);
    second.judge = claiming(&[&["nn.relu", "add"], &["exp", "sqrt"], &["log", "erf"], &["sqrt", "sigmoid"]]);
    let (before, _, report) = partition(source, &mut [test_backend("first", "", &["log"]), second]);
    let expected = [
        "nn.relu host first:NoPatternMatch c:WouldCycle",
        "sigmoid host first:NoPatternMatch c:Overlap",
        "add host first:NoPatternMatch c:WouldCycle",
        "exp c0",
        "sqrt c0",
        "erf host first:NoPatternMatch c:LowerPriority",
        "log first1",
    ];
    assert_eq!(places(&before, &report), expected);
    let detail = |index: usize| &*report.operators[index].refusals[1].1.detail;
    assert_eq!(
        detail(0),
        "set 0 of the answer is not convex: the result of nn.relu reaches add through sigmoid outside the set"
    );
    assert_eq!(detail(1), "set 3 of the answer: sqrt: already in set 1");
    assert_eq!(detail(5), "set 2 of the answer: log: assigned to first, which has higher priority");
}

#[test]
fn sets_are_convex_together() {
    // Each set alone is convex, but as two regions they would depend on each other.
    let source = "def @main(%a: T, %b: T) { %0 = abs(%a); %1 = exp(%b); %2 = nn.relu(%1); %3 = sqrt(%0);
                  add(%2, %3) }";
    let (before, _, report) = claim(source, "", &[&["abs", "nn.relu"], &["exp", "sqrt"]]);
    assert_eq!(
        places(&before, &report),
        ["exp host c:WouldCycle", "nn.relu c0", "abs c0", "sqrt host c:WouldCycle", "add host c:NotClaimed"]
    );
    assert!(details(&report)[0].contains("the result of exp reaches sqrt through nn.relu, abs outside the set"));
}

#[test]
fn a_region_of_an_earlier_backend_counts_as_one() {
    // The first backend has abs and sqrt as one region; a set on both sides of it would depend on itself.
    let source = "def @main(%a: T) { %0 = exp(%a); %1 = sqrt(abs(%0)); %2 = nn.relu(%1); add(%2, %0) }";
    let mut second = test_backend("c", "", &[]);
    second.judge = claiming(&[&["exp", "nn.relu"], &["add"]]);
    let (before, _, report) = partition(source, &mut [test_backend("p", "p.x: sqrt(abs(*))", &[]), second]);
    assert_eq!(places(&before, &report)[0], "exp host p:NoPatternMatch c:WouldCycle");
    assert_eq!(places(&before, &report)[4], "add c1");
    assert!(report.operators[0].refusals[1].1.detail.contains("the result of exp reaches nn.relu through sqrt"));
}

#[test]
fn tuples_belong_to_the_sets_of_their_users() {
    let source = "def @main(%a: T) {
        %0 = split(%a, indices_or_sections=2, axis=1); %1 = (%0.1, %0.0); concatenate(%1, axis=1) }";
    let (before, after, report) = claim(source, "", &[&["split", "concatenate"]]);
    assert_eq!(places(&before, &report), ["split c0", "concatenate c0"]);
    assert_equal(
        &after,
        &module(
            r#"def @main(%a: T) { @tvmgen_default_c_main_0(%a) }
               def @tvmgen_default_c_main_0(%c_0_i0: T, Primitive=1, Inline=1, Compiler="c", global_symbol="tvmgen_default_c_main_0") {
                   %0 = split(%c_0_i0, indices_or_sections=2, axis=1); %1 = (%0.1, %0.0); concatenate(%1, axis=1)
               }"#,
        ),
    );
}

#[test]
fn operators_in_branches_are_claimed_in_their_own_body() {
    let source = "def @main(%c: bool, %a: T) {
        %0 = abs(%a); %1 = if (%c) { exp(nn.relu(%0)) } else { sqrt(%0) }; add(%1, %0) }";
    let (before, _, report) = claim(source, "", &[&["nn.relu", "exp"], &["abs", "add"]]);
    let expected = ["abs host c:WouldCycle", "nn.relu c0", "exp c0", "sqrt host c:NotClaimed", "add host c:WouldCycle"];
    assert_eq!(places(&before, &report), expected);
}

#[test]
fn a_claimed_region_may_be_split() {
    let mut backend = test_backend("c", "", &[]);
    backend.judge = Box::new(Claiming { sets: vec![vec!["abs", "exp", "nn.relu"]], limit: 2 });
    let (before, _, report) = partition("def @main(%a: T) { exp(nn.relu(abs(%a))) }", &mut [backend]);
    assert_eq!(places(&before, &report), ["abs c0", "nn.relu c0", "exp c1"]);
}

#[test]
fn a_set_without_inputs_is_refused() {
    let source = "def @main(%a: T) { %0 = zeros(shape=[10, 10], dtype=\"float32\"); add(%0, %a) }";
    let (before, _, report) = claim(source, "", &[&["zeros"]]);
    assert_eq!(places(&before, &report), ["zeros host c:UnsupportedOp", "add host c:NotClaimed"]);
    assert_eq!(details(&report)[0], "set 0 of the answer: zeros: expected an input, found none");
}

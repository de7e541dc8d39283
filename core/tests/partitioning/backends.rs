use super::{assert_equal, module, print_module, table};
use byoc_core::analysis::verify;
use byoc_core::pass::{
    AcceptAll, Backend, Candidate, ControlFlow, Judge, NearMiss, Question, Refusal, RefusalCode, Report, Verdict,
    partition_for,
};
use byoc_core::pattern::Entry;
use byoc_ir::ir::{ExprId, Module};
use byoc_ir::op;
use byoc_test_support::random::Random;

/// Returns the assignment of each operator: `nn.relu a0` for backend a and region 0, `add host a:NoPatternMatch` for
/// the host, with the reasons.
pub(super) fn places(module: &Module, report: &Report) -> Vec<String> {
    let rows = report.operators.iter().map(|row| {
        let name = op::get(module.expr(row.expr).as_op_call().unwrap().0).name;
        match row.region {
            Some(region) => format!("{name} {}{region}", report.regions[region].backend),
            None => {
                let reasons: Vec<_> = row.refusals.iter().map(|(backend, r)| format!("{backend}:{}", r.code)).collect();
                format!("{name} host {}", reasons.join(" "))
            }
        }
    });
    rows.collect()
}

pub(super) struct TestBackend<'a> {
    name: &'a str,
    table: Vec<Entry>,
    operators: Vec<String>,
    pub(super) judge: Box<dyn Judge>,
}

pub(super) fn test_backend<'a>(name: &'a str, patterns: &str, operators: &[&str]) -> TestBackend<'a> {
    let operators = operators.iter().map(|&name| name.to_owned()).collect();
    TestBackend { name, table: table(patterns), operators, judge: Box::new(AcceptAll) }
}

pub(super) fn partition(source: &str, test_backends: &mut [TestBackend<'_>]) -> (Module, Module, Report) {
    let before = module(source);
    let mut backends: Vec<Backend<'_>> = test_backends
        .iter_mut()
        .map(|g| Backend {
            name: g.name.into(),
            table: &g.table,
            operators: &g.operators,
            control_flow: ControlFlow::default(),
            judge: &mut *g.judge,
        })
        .collect();
    let (after, report) = partition_for(&before, &mut backends, "default").unwrap();
    if let Err(errors) = verify(&after) {
        panic!("{errors:?}\n{}", print_module(&after));
    }
    (before, after, report)
}

#[test]
fn composites_and_single_operators_share_a_region() {
    let (before, after, report) = partition(
        "def @main(%a: T, %b: T) { abs(nn.relu(add(%a, %b))) }",
        &mut [test_backend("c", "c.add_relu: nn.relu(add(*, *))", &["abs"])],
    );
    assert_eq!(places(&before, &report), ["add c0", "nn.relu c0", "abs c0"]);
    assert_equal(
        &after,
        &module(
            r#"def @main(%a: T, %b: T) { @tvmgen_default_c_main_0(%a, %b) }
               def @tvmgen_default_c_main_0(%c_0_i0: T, %c_0_i1: T, Primitive=1, Inline=1, Compiler="c", global_symbol="tvmgen_default_c_main_0") {
                   %1 = fn (%p: T, %q: T, PartitionedFromPattern="add_nn.relu_", Composite="c.add_relu") { %0 = add(%p, %q); nn.relu(%0) };
                   abs(%1(%c_0_i0, %c_0_i1))
               }"#,
        ),
    );
}

#[test]
fn later_backends_take_remaining_operators() {
    let (before, _, report) = partition(
        "def @main(%a: T) { exp(abs(nn.relu(%a))) }",
        &mut [test_backend("p", "", &["abs"]), test_backend("q", "q.ra: abs(nn.relu(*))", &["nn.relu", "exp"])],
    );
    assert_eq!(places(&before, &report), ["nn.relu q0", "abs p1", "exp q2"]);
    let reasons: Vec<_> = report.operators[1].refusals.iter().map(|(by, r)| (&**by, r.code)).collect();
    assert_eq!(reasons, [("q", RefusalCode::LowerPriority)]);
}

#[test]
fn reports_reasons_for_operators_on_the_host() {
    let (before, _, report) = partition(
        "def @main(%a: T) { %0 = abs(%a); %1 = nn.relu(%0); %2 = exp(%1); add(%2, %0) }",
        &mut [test_backend("p", "p.x: nn.relu(abs(*))\np.y: exp(sqrt(*))", &[])],
    );
    assert_eq!(
        places(&before, &report),
        ["abs host p:Escape", "nn.relu host p:Escape", "exp host p:NoPatternMatch", "add host p:NoPatternMatch"]
    );
    let details: Vec<_> = report.operators.iter().map(|row| row.refusals[0].1.detail.as_str()).collect();
    assert_eq!(details[0], "p.x: the result of abs is also used outside the match");
    assert_eq!(details[2], "exp occurs in p.y, but no pattern matches here");
    assert_eq!(details[3], "p has no pattern with add and does not support it alone");
}

/// Returns the near misses: `abs p.y: consumer of exp, expected nn.relu, found sqrt`.
pub(super) fn near_misses(module: &Module, report: &Report) -> Vec<String> {
    let rows = report.near_misses.iter().map(|near| {
        let name = op::get(module.expr(near.expr).as_op_call().unwrap().0).name;
        let NearMiss { entry, position, expected, found, .. } = &*near.near_miss;
        format!("{name} {entry}: {position}, expected {expected}, found {found}")
    });
    rows.collect()
}

#[test]
fn the_entry_that_came_nearest_has_the_most_operators() {
    let patterns = "p.x: nn.relu(abs(*))\np.y: nn.relu(exp(abs(*)))\np.z: tanh(nn.relu(exp(abs(*))))";
    let near = |body: &str| {
        let text = format!("def @main(%a: T, %b: T) {{ {body} }}");
        let (before, _, report) = partition(&text, &mut [test_backend("p", patterns, &[])]);
        near_misses(&before, &report)
    };
    let stops = "p.y: consumer of exp, expected nn.relu, found sqrt";
    assert_eq!(near("sqrt(exp(abs(%a)))"), [format!("abs {stops}"), format!("exp {stops}")]);
    // An operator of which a pattern knows no consumer is described by its operands.
    assert_eq!(near("nn.relu(%a)"), ["nn.relu p.x: input 0 of nn.relu, expected abs, found %a"]);
    // The first consumer that fits counts, whatever the others are.
    assert_eq!(
        near("%0 = abs(%a); %1 = sqrt(%0); %2 = exp(%0); (%1, %2)"),
        [
            "abs p.y: consumer of exp, expected nn.relu, found a tuple",
            "exp p.y: consumer of exp, expected nn.relu, found a tuple"
        ]
    );
    assert_eq!(near("sqrt(%a)"), [""; 0]);
}

#[test]
fn near_misses_are_those_of_operators_without_a_place() {
    let near = |names: &[&str]| {
        let (before, _, report) = partition(
            "def @main(%a: T, %b: T) { nn.relu(add(%a, %b)) }",
            &mut [test_backend("p", "p.x: tanh(add(*, *))", names), test_backend("q", "", &["nn.relu"])],
        );
        near_misses(&before, &report)
    };
    assert_eq!(near(&[]), ["add p.x: consumer of add, expected tanh, found nn.relu"]);
    assert_eq!(near(&["add"]), [""; 0]);
}

#[test]
fn an_entry_whose_match_is_refused_came_nearest() {
    let mut backend = test_backend("p", "p.x: nn.relu(abs(*))", &[]);
    backend.judge = Box::new(RefusingJudge(|_, _, _| Some(Refusal::new(RefusalCode::UnsupportedShape, "too large"))));
    let (before, _, report) = partition("def @main(%a: T) { nn.relu(abs(%a)) }", &mut [backend]);
    let stops = "p.x: the whole pattern, expected a match that p accepts, found UnsupportedShape";
    assert_eq!(near_misses(&before, &report), [format!("abs {stops}"), format!("nn.relu {stops}")]);
}

/// Judge that refuses the candidates for which a function returns a refusal.
struct RefusingJudge(fn(&Module, Question<'_>, &Candidate) -> Option<Refusal>);

impl Judge for RefusingJudge {
    fn judge(&mut self, module: &Module, question: Question<'_>, candidates: &[Candidate]) -> Vec<Verdict> {
        let verdict = |c| self.0(module, question, c).map_or(Verdict::Supported, Verdict::Refused);
        candidates.iter().map(verdict).collect()
    }
}

fn size_refusal(_: &Module, question: Question<'_>, candidate: &Candidate) -> Option<Refusal> {
    let is_small = matches!(question, Question::Regions) && candidate.nodes.len() < 3;
    is_small.then(|| Refusal::new(RefusalCode::NotProfitable, "fewer than 3 operators"))
}

#[test]
fn a_refused_region_goes_to_the_next_backend_or_the_host() {
    let source = "def @main(%a: T) { exp(tanh(nn.relu(abs(%a)))) }";
    let mut backend = test_backend("p", "p.x: nn.relu(abs(*))", &["exp"]);
    backend.judge = Box::new(RefusingJudge(size_refusal));
    let (before, _, report) = partition(source, &mut [backend, test_backend("q", "", &["abs", "exp"])]);
    assert_eq!(
        places(&before, &report),
        [
            "abs q0",
            "nn.relu host p:RegionRefused q:NoPatternMatch",
            "tanh host p:NoPatternMatch q:NoPatternMatch",
            "exp q1"
        ]
    );
    assert_eq!(report.operators[1].refusals[0].1.detail, "NotProfitable: fewer than 3 operators");
    let mut backend = test_backend("p", "p.x: nn.relu(abs(*))", &["exp"]);
    backend.judge = Box::new(RefusingJudge(size_refusal));
    let (before, after, report) = partition(source, &mut [backend]);
    assert_equal(&after, &before);
    assert!(report.regions.is_empty());
}

fn runtime_scale_refusal(module: &Module, question: Question<'_>, candidate: &Candidate) -> Option<Refusal> {
    let (_, call) = module.expr(*candidate.outputs.first()?).as_op_call()?;
    let is_given = |id: &ExprId| matches!(question, Question::Operators) && candidate.inputs.contains(id);
    call.args[1..].iter().any(is_given).then(|| Refusal::new(RefusalCode::NotConstant, "scale of part 0"))
}

#[test]
fn a_tuple_of_constants_is_no_input_of_a_single_operator() {
    let source = "def @main(%a: Tensor[(2), int8], %b: Tensor[(2), int8]) {
        qnn.concatenate((%a, %b), (0.1f, 0.2f), (0, 0), 0.3f, 0, axis=0)
    }";
    let mut backend = test_backend("p", "", &["qnn.concatenate"]);
    backend.judge = Box::new(RefusingJudge(runtime_scale_refusal));
    let (before, _, report) = partition(source, &mut [backend]);
    assert_eq!(places(&before, &report), ["qnn.concatenate p0"]);
}

/// Judge that accepts regions of at most the given number of operators.
struct AtMost(usize);

impl Judge for AtMost {
    fn judge(&mut self, module: &Module, question: Question<'_>, candidates: &[Candidate]) -> Vec<Verdict> {
        let operators = |c: &Candidate| c.nodes.iter().filter(|&&id| module.expr(id).as_op_call().is_some()).count();
        let verdict = |c| match question {
            Question::Regions if operators(c) > self.0 => Verdict::Split(self.0),
            _ => Verdict::Supported,
        };
        candidates.iter().map(verdict).collect()
    }
}

#[test]
fn a_region_is_split_at_the_size_that_its_backend_asks_for() {
    let source = "def @main(%a: T, %b: T) {
        %0 = abs(%a); %1 = split(%0, indices_or_sections=2); %2 = exp(%1.0); %3 = exp(%1.1);
        %4 = concatenate((%2, %3, %0)); %5 = tanh(%4); (%5, %1.0)
    }";
    let operators = ["abs", "split", "exp", "concatenate", "tanh"];
    for (size, regions) in [(1, 6), (2, 3), (3, 2), (4, 2), (5, 2), (6, 1)] {
        let mut backend = test_backend("p", "", &operators);
        backend.judge = Box::new(AtMost(size));
        let (before, after, report) = partition(source, &mut [backend]);
        assert_eq!(report.regions.len(), regions, "{size}: {:?}", places(&before, &report));
        assert!(report.operators.iter().all(|row| row.region.is_some()), "{size}: {:?}", places(&before, &report));
        for region in &report.regions {
            let function = after.function(&region.symbol).unwrap();
            assert!(function.params.iter().all(|&p| after.ty(p).as_tensor().is_some()), "{}", print_module(&after));
        }
    }
    let mut endless_backend = test_backend("p", "", &operators);
    endless_backend.judge = Box::new(AtMost(0));
    let (before, _, report) = partition(source, &mut [endless_backend]);
    assert!(report.regions.is_empty(), "{:?}", places(&before, &report));
    assert!(report.operators[0].refusals[0].1.detail.contains("expected a part size >= 1 and smaller than the region"));
}

#[test]
fn a_missing_verdict_is_a_refusal() {
    struct SilentJudge;
    impl Judge for SilentJudge {
        fn judge(&mut self, _: &Module, _: Question<'_>, _: &[Candidate]) -> Vec<Verdict> {
            Vec::new()
        }
    }
    let mut backend = test_backend("p", "", &["abs"]);
    backend.judge = Box::new(SilentJudge);
    let (before, _, report) = partition("def @main(%a: T) { abs(%a) }", &mut [backend]);
    assert_eq!(places(&before, &report), ["abs host p:Unavailable"]);
}

#[test]
fn projections_and_tuples_stay_inside() {
    let (before, after, report) = partition(
        "def @main(%a: T, %b: T) {
            %0 = split(%a, indices_or_sections=2); %1 = %0.0; %2 = %0.1;
            %3 = concatenate((%2, %1, %b)); (exp(%3), log(%1))
        }",
        &mut [test_backend("c", "", &["split", "concatenate"])],
    );
    assert_eq!(
        places(&before, &report),
        ["split c0", "concatenate c0", "exp host c:NoPatternMatch", "log host c:NoPatternMatch"]
    );
    let region = after.function(&report.regions[0].symbol).unwrap();
    assert_eq!(region.params.len(), 2, "{}", print_module(&after));
    assert!(region.params.iter().all(|&p| after.ty(p).as_tensor().is_some()));
    let fields: &[_] = after.ty(region.body).as_tuple().unwrap();
    assert!(fields.iter().all(|field| field.as_tensor().is_some()), "{}", print_module(&after));
}

#[test]
fn regions_never_depend_on_each_other() {
    // q's exp and subtract are adjacent, but subtract also needs tanh, which needs p's region, which needs exp.
    let (before, _, report) = partition(
        "def @main(%a: T, %b: T) { %0 = abs(%a); %1 = exp(%b); %2 = add(%0, %1); %3 = log(%0); %4 = tanh(%3); %5 = subtract(%1, %4); (%2, %5, abs(%4)) }",
        &mut [test_backend("p", "", &["abs", "add", "log"]), test_backend("q", "", &["exp", "subtract", "tanh"])],
    );
    assert_eq!(places(&before, &report), ["abs p0", "exp q1", "add p0", "log p0", "tanh q2", "subtract q2", "abs p3"]);
}

#[test]
fn constants_move_into_the_region() {
    let (_, after, report) = partition(
        "def @main(%a: T) { nn.relu(add(multiply(%a, 2f), 3f)) }",
        &mut [test_backend("c", "c.add_relu: nn.relu(add(*, *))", &["multiply"])],
    );
    assert_eq!(report.regions.len(), 1);
    assert_eq!(after.function(&report.regions[0].symbol).unwrap().params.len(), 1, "{}", print_module(&after));
}

#[test]
fn operators_keep_their_origins() {
    let mut before = module("def @main(%a: T) { exp(nn.relu(abs(%a))) }");
    let calls: Vec<ExprId> = before.nodes.ids().filter(|&id| before.expr(id).as_call().is_some()).collect();
    for (i, &id) in calls.iter().enumerate() {
        let source = byoc_ir::ir::Source { name: format!("node{i}").into(), op: "Op".into() };
        before.nodes[id].origin = before.origins.add_source(source);
    }
    let entries = table("c.ra: nn.relu(abs(*))");
    let mut judge = AcceptAll;
    let mut backends = [Backend {
        name: "c".into(),
        table: &entries,
        operators: &[],
        control_flow: ControlFlow::default(),
        judge: &mut judge,
    }];
    let (after, _) = partition_for(&before, &mut backends, "default").unwrap();
    let body = after.main().unwrap().body;
    let call = after.expr(body).as_call().unwrap().args[0];
    assert_eq!(after.origins.get(after.nodes[body].origin).len(), 1);
    assert_eq!(after.origins.get(after.nodes[call].origin).len(), 2);
}

/// Reassembles a partitioned program: inlines functions, and resolves tuple projections.
fn inline_regions(module: &Module) -> Module {
    let names: Vec<String> =
        module.globals.keys().filter(|name| ***name != *"main").map(|name| name.to_string()).collect();
    let inlined = byoc_core::pass::inline_compiler_functions_bound_to(module, &names).unwrap();
    byoc_ir::typing::Rebuild::run(&inlined, |rebuild, _, expr| {
        let byoc_ir::ir::Expr::Project { tuple, index } = expr else { return Ok(None) };
        let tuple = rebuild.get(*tuple);
        Ok(match rebuild.new.module.expr(tuple) {
            byoc_ir::ir::Expr::Tuple(fields) => Some(fields[*index as usize]),
            _ => None,
        })
    })
    .unwrap()
}

#[test]
fn random_programs_survive_partitioning_and_inlining() {
    let unary_ops = ["abs", "exp", "log", "tanh", "nn.relu", "sigmoid"];
    let binary_ops = ["add", "subtract", "multiply", "maximum"];
    let mut random = Random::new(3);
    let (mut regions, mut composites) = (0, 0);
    for trial in 0..300 {
        let mut text = String::from("def @main(%a: T, %b: T) {\n");
        let count = 4 + trial % 40;
        let mut values = vec!["%a".to_owned(), "%b".to_owned()];
        for i in 0..count {
            let recent_value = |random: &mut Random| random.pick(&values[values.len().saturating_sub(6)..]);
            let call = match random.below(5) {
                0..=2 => format!("{}({})", random.pick(&unary_ops), recent_value(&mut random)),
                _ => {
                    let (l, r) = (recent_value(&mut random), recent_value(&mut random));
                    format!("{}({l}, {r})", random.pick(&binary_ops))
                }
            };
            text.push_str(&format!("%{i} = {call};\n"));
            values.push(format!("%{i}"));
        }
        text.push_str(&format!("({}, {}) }}", values[values.len() - 1], values[values.len() - 2]));
        let (before, after, report) = partition(
            &text,
            &mut [
                test_backend(
                    "p",
                    "p.ar: nn.relu(add(*, *))\np.t: tanh(abs(*)) ? multiply",
                    &["abs", "subtract", "exp"],
                ),
                test_backend("q", "q.m: maximum(exp(*x), *)\nq.s: sigmoid(*) ? log", &["log", "add", "tanh"]),
                test_backend("r", "", &["multiply", "exp", "nn.relu"]),
            ],
        );
        regions += report.regions.len();
        composites += report.regions.iter().map(|region| region.composites.len()).sum::<usize>();
        let computed_twice = {
            let count = |module: &Module| {
                let live = module.live();
                module.nodes.iter().filter(|(id, node)| live[*id] && node.expr.as_op_call().is_some()).count()
            };
            count(&inline_regions(&after)) > count(&before)
        };
        if !computed_twice {
            assert_equal(&inline_regions(&after), &byoc_core::pass::infer_type(&before).unwrap());
        }
        let unexplained_count =
            report.operators.iter().filter(|row| row.region.is_none() && row.refusals.is_empty()).count();
        assert_eq!(unexplained_count, 0, "expected a reason for every operator on the host");
    }
    assert!(
        regions > 1000 && composites > 200,
        "expected more than 1000 regions and 200 composites, found {regions} and {composites}"
    );
}

#[test]
fn inlines_functions_of_a_backend() {
    let (before, after, _) = partition(
        "def @main(%a: T, %b: T) { abs(nn.relu(add(%a, %b))) }",
        &mut [test_backend("c", "c.add_relu: nn.relu(add(*, *))", &["abs"])],
    );
    assert_equal(&inline_regions(&after), &before);
    let wrong = byoc_core::pass::inline_compiler_functions_bound_to(&after, &["@tvmgen_default_c_main_1".into()]);
    let error = wrong.unwrap_err();
    assert_eq!(error.code.to_string(), "E0340");
    assert_eq!(error.help.as_deref(), Some("did you mean \"@tvmgen_default_c_main_0\"?"));
}

#[test]
fn functions_of_a_backend_are_marked_as_external() {
    let (_, after, report) = partition(
        "def @main(%a: T) { abs(exp(%a)) }",
        &mut [test_backend("c", "", &["abs"]), test_backend("d", "", &["exp"])],
    );
    let marked_module = byoc_core::pass::mark_compiler_functions_extern(&after, Some("c")).unwrap();
    let attrs = |module: &Module, i: usize| module.function(&report.regions[i].symbol).unwrap().attrs.clone();
    let region_of = |name: &str| report.regions.iter().position(|region| &*region.backend == name).unwrap();
    assert_eq!(
        attrs(&marked_module, region_of("c")),
        byoc_ir::ir::Attrs::new([("Extern", byoc_ir::ir::AttrValue::Int(1))])
    );
    assert_eq!(attrs(&marked_module, region_of("d")), attrs(&after, region_of("d")));
}

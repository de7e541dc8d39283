//! Property tests of the passes: random data flow with tuples, splits and concatenations, over random targets.

use super::{assert_equal, print_module};
use byoc_core::analysis::{structural_equal, verify};
use byoc_core::pass::AcceptAll;
use byoc_core::pass::{
    TargetRule, annotate_target, flatten_nested_tuples, infer_type, inline, inline_compiler_functions_bound_to,
    merge_compiler_regions, merge_composite, partition_graph, remove_default_annotations,
};
use byoc_core::pattern::{Checks, Entry, parse_table};
use byoc_ir::diag::Diagnostic;
use byoc_ir::ir::{AttrValue, Attrs, Callee, Expr, ExprId, Module, Type};
use byoc_ir::tensor::{DType, Tensor};
use byoc_ir::typing::{Builder, Rebuild};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

pub const UNARY: [&str; 4] = ["nn.relu", "exp", "tanh", "sigmoid"];
pub const BINARY: [&str; 4] = ["add", "multiply", "subtract", "maximum"];

/// Generator of well-typed programs from a list of choices. When the list is exhausted, every choice is the first
/// alternative.
struct Generator<'a> {
    builder: Builder,
    choices: std::slice::Iter<'a, u8>,
    /// Values of type `Tensor[(4, 2), float32]`.
    tensors: Vec<ExprId>,
    /// Tuples of two tensors.
    pairs: Vec<ExprId>,
}

impl Generator<'_> {
    fn choose(&mut self, n: usize) -> usize {
        usize::from(*self.choices.next().unwrap_or(&0)) % n.max(1)
    }

    /// Picks a tensor, preferring recent tensors.
    fn pick_tensor(&mut self) -> ExprId {
        let distance = self.choose(self.tensors.len().min(if self.choices.len().is_multiple_of(3) { 40 } else { 4 }));
        self.tensors[self.tensors.len() - 1 - distance]
    }

    fn op(&mut self, name: &str, args: &[ExprId], attrs: Attrs) -> ExprId {
        self.builder.op(name, args, attrs).unwrap_or_else(|d| panic!("{d}"))
    }

    fn statement(&mut self) {
        let value = match self.choose(8) {
            0..=2 => {
                let (name, arg) = (UNARY[self.choose(4)], self.pick_tensor());
                self.op(name, &[arg], Attrs::none())
            }
            3 | 4 => {
                let (name, a, b) = (BINARY[self.choose(4)], self.pick_tensor(), self.pick_tensor());
                self.op(name, &[a, b], Attrs::none())
            }
            5 => {
                let (a, b) = (self.pick_tensor(), self.pick_tensor());
                let pair = self.builder.tuple(&[a, b]).unwrap_or_else(|d| panic!("{d}"));
                self.pairs.push(pair);
                return;
            }
            6 => match self.pairs.last() {
                Some(&pair) => {
                    let index = self.choose(2) as u32;
                    self.builder.project(pair, index).unwrap_or_else(|d| panic!("{d}"))
                }
                None => self.builder.constant(Tensor::from_slice(&[4, 2], &[1f32; 8])),
            },
            _ => {
                let arg = self.pick_tensor();
                let halves = Attrs::new([("indices_or_sections", AttrValue::Int(2))]);
                let halves = self.op("split", &[arg], halves);
                let first = self.builder.project(halves, 1).unwrap_or_else(|d| panic!("{d}"));
                let tuple = self.builder.tuple(&[first, first]).unwrap_or_else(|d| panic!("{d}"));
                self.op("concatenate", &[tuple], Attrs::none())
            }
        };
        self.tensors.push(value);
    }
}

fn program(choices: &[u8]) -> Module {
    let builder = Builder::default();
    let mut generator = Generator { builder, choices: choices.iter(), tensors: Vec::new(), pairs: Vec::new() };
    for name in ["main", "other"] {
        let ty = Type::tensor(DType::F32, &[4, 2]);
        let params = [generator.builder.var("x", ty.clone()), generator.builder.var("y", ty)];
        (generator.tensors, generator.pairs) = (params.to_vec(), Vec::new());
        for _ in 0..1 + choices.len() / 8 {
            generator.statement();
        }
        let (a, b) = (generator.pick_tensor(), generator.pick_tensor());
        let result = generator.builder.tuple(&[a, b]).unwrap_or_else(|d| panic!("{d}"));
        generator.builder.define(name, &params, result).unwrap_or_else(|d| panic!("{d}"));
    }
    infer_type(&generator.builder.module).unwrap_or_else(|faults| panic!("{faults:?}"))
}

/// Assigns each operator to one of three targets or to none.
pub fn rules(owners: &[u8]) -> Vec<TargetRule> {
    let names = UNARY.iter().chain(&BINARY).chain(&["split", "concatenate"]);
    let owner_by_operator: Vec<(&str, u8)> =
        names.zip(owners.iter().chain(std::iter::repeat(&3))).map(|(&n, &o)| (n, o % 5)).collect();
    let operators_of = |target: u8| {
        owner_by_operator.iter().filter(|(_, owner)| *owner == target).map(|(name, _)| (*name).into()).collect()
    };
    ["a", "b", "c"]
        .iter()
        .zip(0..)
        .map(|(&target, number)| TargetRule { target: target.into(), operators: operators_of(number) })
        .collect()
}

pub fn table() -> Vec<Entry> {
    parse_table(
        "a.two: nn.relu(exp(*))\nb.gate: multiply(*x, sigmoid(*x))\na.sum: add(multiply(*, *), *) ? nn.relu\n\
         c.chain: let t = tanh(t | *); add(t, *)\na.join: concatenate((*h, *h))",
        Checks::Refused,
    )
    .entries
}

pub fn expect_verified(module: Result<Module, Box<Diagnostic>>) -> Module {
    let module = module.unwrap_or_else(|d| panic!("{d}"));
    if let Err(faults) = verify(&module) {
        panic!("{faults:?}\n{}", print_module(&module));
    }
    module
}

fn four_passes(module: &Module, rules: &[TargetRule], non_call: bool) -> Module {
    let composites =
        expect_verified(merge_composite(module, &table(), &mut AcceptAll, &mut |_, _| {}, &mut Vec::new()));
    let annotated = expect_verified(annotate_target(&composites, rules, non_call));
    let merged = expect_verified(merge_compiler_regions(&annotated));
    expect_verified(partition_graph(&merged, "default", true))
}

/// Returns true if regions could depend on each other: a function is called more than once, or a region calls a
/// function.
pub fn regions_need_each_other(module: &Module) -> bool {
    let callee_of = |id: ExprId| match module.expr(id) {
        Expr::Call(call) => match call.callee {
            Callee::Expr(callee) => match module.expr(callee) {
                Expr::Global(name) => Some(name.clone()),
                _ => None,
            },
            Callee::Op(_) => None,
        },
        _ => None,
    };
    // If each region is one function with one call, the calls have no cycle, because operands precede their users in
    // the arena.
    let live = module.live();
    let mut calls: BTreeMap<_, usize> = BTreeMap::new();
    for (id, _) in module.nodes.iter().filter(|(id, _)| live[*id]) {
        if let Some(name) = callee_of(id) {
            *calls.entry(name).or_default() += 1;
        }
    }
    let nodes_inside: BTreeSet<_> = module
        .globals
        .iter()
        .filter(|(name, _)| module.function(name).is_some_and(|f| f.attrs.get("Compiler").is_some()))
        .flat_map(|(_, &id)| module.post_order(id, |_, _| true))
        .filter_map(callee_of)
        .collect();
    calls.values().any(|&count| count > 1) || !nodes_inside.is_empty()
}

/// Returns the number of programs per law; `PROPTEST_CASES` overrides the default of 2000.
pub fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(2_000)
}

/// Replaces projections of tuple expressions with the fields.
fn resolve(module: &Module) -> Module {
    let resolved = Rebuild::run(module, |rebuild, _, expr| {
        let Expr::Project { tuple, index } = expr else { return Ok(None) };
        let tuple = rebuild.get(*tuple);
        Ok(match rebuild.new.module.expr(tuple) {
            Expr::Tuple(fields) => Some(fields[*index as usize]),
            _ => None,
        })
    });
    expect_verified(resolved)
}

fn operators(module: &Module) -> usize {
    let live = module.live();
    module.nodes.iter().filter(|(id, node)| live[*id] && node.expr.as_op_call().is_some()).count()
}

/// Signature of a pass.
pub type Pass = fn(&Module) -> Result<Module, Box<Diagnostic>>;

/// Idempotent passes.
pub const PASSES: [(&str, Pass); 4] = [
    ("merge_compiler_regions", merge_compiler_regions),
    ("flatten_nested_tuples", flatten_nested_tuples),
    ("remove_default_annotations", remove_default_annotations),
    ("partition_graph", |module| partition_graph(&merge_compiler_regions(module)?, "default", true)),
];

/// Checks that annotating for the targets one after another is equivalent to annotating for all at once, and that
/// annotation is idempotent. Returns the annotated program.
pub fn annotation_laws(module: &Module, rules: &[TargetRule], non_call: bool) -> Result<Module, TestCaseError> {
    let annotated = expect_verified(annotate_target(module, rules, non_call));
    let first = expect_verified(annotate_target(module, &rules[..1], non_call));
    let annotated_in_turn = expect_verified(annotate_target(&first, &rules[1..], non_call));
    prop_assert_eq!(
        structural_equal(&annotated, &annotated_in_turn),
        Ok(()),
        "{}\n{}\n{}",
        print_module(module),
        print_module(&annotated),
        print_module(&annotated_in_turn)
    );
    let again = expect_verified(annotate_target(&annotated, rules, non_call));
    prop_assert_eq!(
        structural_equal(&annotated, &again),
        Ok(()),
        "{}\n{}",
        print_module(&annotated),
        print_module(&again)
    );
    Ok(annotated)
}

/// Checks that each pass leaves its own result unchanged. On failure, the message shows the program.
pub fn check_idempotence(module: &Module, passes: &[(&str, Pass)]) -> Result<(), TestCaseError> {
    for (name, pass) in passes {
        let first_result = step(name, module, pass);
        let second_result = step(name, &first_result, pass);
        prop_assert_eq!(
            structural_equal(&first_result, &second_result),
            Ok(()),
            "{}\n{}\n{}",
            name,
            print_module(&first_result),
            print_module(&second_result)
        );
    }
    Ok(())
}

/// Runs a pass. On failure, the message shows the input program.
pub fn step(name: &str, before: &Module, pass: impl FnOnce(&Module) -> Result<Module, Box<Diagnostic>>) -> Module {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| pass(before))) {
        Ok(Ok(module)) => expect_verified(Ok(module)),
        Ok(Err(diagnostic)) => panic!("{name}: {diagnostic}\n{}", print_module(before)),
        Err(_) => panic!("{name} panics on\n{}", print_module(before)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn annotation_of_two_targets_composes(
        choices in prop::collection::vec(any::<u8>(), 0..200),
        owners in prop::collection::vec(any::<u8>(), 10),
        non_call in any::<bool>(),
    ) {
        let module = program(&choices);
        let rules = rules(&owners);
        annotation_laws(&module, &rules, non_call)?;
    }

    #[test]
    fn twice_is_once(
        choices in prop::collection::vec(any::<u8>(), 0..200),
        owners in prop::collection::vec(any::<u8>(), 10),
        non_call in any::<bool>(),
    ) {
        let module = program(&choices);
        let annotated = expect_verified(annotate_target(&module, &rules(&owners), non_call));
        check_idempotence(&annotated, &PASSES)?;
        check_idempotence(&annotated, &[("inline", |module| inline(&partition_graph(&merge_compiler_regions(module)?, "default", true)?))])?;
    }

    #[test]
    fn partitioned_programs_are_sound_and_inline_back(
        choices in prop::collection::vec(any::<u8>(), 0..200),
        owners in prop::collection::vec(any::<u8>(), 10),
        non_call in any::<bool>(),
    ) {
        let module = program(&choices);
        let rules = rules(&owners);
        let partitioned = four_passes(&module, &rules, non_call);
        prop_assert!(!regions_need_each_other(&partitioned), "{}", print_module(&partitioned));
        prop_assert_eq!(print_module(&partitioned), print_module(&four_passes(&module, &rules, non_call)));
        let names: Vec<String> =
            partitioned.globals.keys().map(|name| name.to_string()).filter(|name| name.starts_with("tvmgen_")).collect();
        let inlined_module = resolve(&expect_verified(inline_compiler_functions_bound_to(&partitioned, &names)));
        // A value that escapes from a composite and flows back into it is computed twice.
        let (inlined_module, before) = (resolve(&inlined_module), resolve(&module));
        if operators(&inlined_module) == operators(&before) {
            assert_equal(&inlined_module, &before);
        } else {
            prop_assert!(operators(&inlined_module) > operators(&before));
        }
    }
}

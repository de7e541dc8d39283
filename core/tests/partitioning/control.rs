//! Property tests of the passes: random data flow inside branches, lets, closures and loops, with references, over
//! random targets.

use super::laws::{
    BINARY, PASSES, Pass, UNARY, annotation_laws, cases, check_idempotence, expect_verified, regions_need_each_other,
    rules, step, table,
};
use super::print_module;
use crate::evaluate::{Evaluator, Value, tensors};
use byoc_core::analysis::structural_equal;
use byoc_core::pass::{
    AcceptAll, Backend, ControlFlow, TargetRule, annotate_target, dead_code_elimination, eliminate_common_subexpr,
    infer_type, inline_compiler_functions_bound_to, merge_compiler_regions, merge_composite, partition_for,
    partition_graph, to_a_normal_form,
};
use byoc_ir::ir::{AttrValue, Attrs, Expr, ExprId, FuncType, Module, Type};
use byoc_ir::tensor::{DType, Tensor};
use byoc_ir::text::{ParseOptions, PrintOptions, parse, print};
use byoc_ir::typing::Builder;
use proptest::prelude::*;

fn tensor() -> Type {
    Type::tensor(DType::F32, &[4, 2])
}

fn int() -> Type {
    Type::scalar(DType::I32)
}

/// Generator of well-typed programs from a list of choices. When the list is exhausted, every choice is the first
/// alternative.
struct Generator<'a> {
    builder: Builder,
    choices: std::slice::Iter<'a, u8>,
    /// Values of type `Tensor[(4, 2), float32]` in scope.
    tensors: Vec<ExprId>,
    /// Tuples of two tensors.
    pairs: Vec<ExprId>,
    /// Scalars: loop counters, and values computed from them.
    ints: Vec<ExprId>,
    /// Functions from tensor to tensor.
    functions: Vec<ExprId>,
    /// References to tensors.
    references: Vec<ExprId>,
    cond: ExprId,
}

impl Generator<'_> {
    fn choose(&mut self, n: usize) -> usize {
        usize::from(*self.choices.next().unwrap_or(&0)) % n.max(1)
    }

    /// Picks a tensor in scope, preferring recent tensors.
    fn pick_tensor(&mut self) -> ExprId {
        let distance = self.choose(self.tensors.len().min(if self.choices.len().is_multiple_of(3) { 40 } else { 4 }));
        self.tensors[self.tensors.len() - 1 - distance]
    }

    fn op(&mut self, name: &str, args: &[ExprId], attrs: Attrs) -> ExprId {
        self.builder.op(name, args, attrs).unwrap_or_else(|d| panic!("{d}"))
    }

    fn push(&mut self, expr: Expr) -> ExprId {
        self.builder.push(expr).unwrap_or_else(|d| panic!("{d}"))
    }

    fn number(&mut self, n: i32) -> ExprId {
        self.builder.constant(Tensor::scalar(n))
    }

    fn scope(&mut self, build_body: impl FnOnce(&mut Self) -> ExprId) -> ExprId {
        let lens = [&self.tensors, &self.pairs, &self.ints, &self.functions, &self.references].map(Vec::len);
        let body = build_body(self);
        self.tensors.truncate(lens[0]);
        self.pairs.truncate(lens[1]);
        self.ints.truncate(lens[2]);
        self.functions.truncate(lens[3]);
        self.references.truncate(lens[4]);
        body
    }

    /// Generates a block: some statements, and a tensor as its result.
    fn block(&mut self, depth: usize) -> ExprId {
        self.scope(|g| {
            for _ in 0..g.choose(5) {
                g.statement(depth);
            }
            g.remaining_body(depth)
        })
    }

    /// Generates the end of a block: a value, or a let whose body is another block.
    fn remaining_body(&mut self, depth: usize) -> ExprId {
        if depth == 0 {
            return self.pick_tensor();
        }
        match self.choose(9) {
            0 | 1 => {
                let value = match self.choose(4) {
                    0 => self.pick_tensor(),
                    _ => {
                        self.statement(depth - 1);
                        *self.tensors.last().unwrap_or(&self.cond)
                    }
                };
                let var = self.builder.var("v", tensor());
                self.tensors.push(var);
                let body = self.block(depth - 1);
                self.push(Expr::Let { var, value, body })
            }
            2 => {
                let (a, b) = (self.pick_tensor(), self.pick_tensor());
                let value = self.push(Expr::Tuple([a, b].into()));
                let var = self.builder.var("t", Type::tuple([tensor(), tensor()]));
                self.pairs.push(var);
                let body = self.block(depth - 1);
                self.push(Expr::Let { var, value, body })
            }
            3 => {
                let value = self.closure(depth - 1);
                let var = self.builder.var("f", Type::func(FuncType::new([tensor()], tensor())));
                self.functions.push(var);
                let body = self.block(depth - 1);
                self.push(Expr::Let { var, value, body })
            }
            4 => self.counted_loop(depth - 1),
            5 => {
                let value = self.pick_tensor();
                let value = self.push(Expr::RefNew(value));
                let var = self.builder.var("r", Type::reference(tensor()));
                self.references.push(var);
                let body = self.block(depth - 1);
                self.push(Expr::Let { var, value, body })
            }
            6 => match self.references.last() {
                Some(&reference) => {
                    let value = self.pick_tensor();
                    let value = self.push(Expr::RefWrite { reference, value });
                    let var = self.builder.var("u", Type::unit());
                    let body = self.block(depth - 1);
                    self.push(Expr::Let { var, value, body })
                }
                None => self.pick_tensor(),
            },
            _ => self.pick_tensor(),
        }
    }

    /// Generates `fn (%p) { ... }`.
    fn closure(&mut self, depth: usize) -> ExprId {
        let param = self.builder.var("p", tensor());
        let body = self.scope(|g| {
            g.tensors.push(param);
            g.block(depth)
        });
        self.builder.function(&[param], body, Type::Unknown, Attrs::none()).unwrap_or_else(|d| panic!("{d}"))
    }

    /// Generates `let %loop = fn (%i, %s) { if (%i < 1) { %s } else { %loop(%i - 1, ...) } }; %loop(n, x)`.
    fn counted_loop(&mut self, depth: usize) -> ExprId {
        let name = self.builder.var("loop", Type::func(FuncType::new([int(), tensor()], tensor())));
        let (i, s) = (self.builder.var("i", int()), self.builder.var("s", tensor()));
        let function = self.scope(|g| {
            g.tensors.push(s);
            g.ints.push(i);
            let unit = g.number(1);
            let cond = g.op("less", &[i, unit], Attrs::none());
            let then_value = if g.choose(3) == 0 { g.block(depth) } else { s };
            let decremented = g.op("subtract", &[i, unit], Attrs::none());
            let step = g.block(depth);
            let recursive_call = g.push(Expr::call(name, [decremented, step]));
            let body = g.push(Expr::If { cond, then: then_value, otherwise: recursive_call });
            g.builder.function(&[i, s], body, tensor(), Attrs::none()).unwrap_or_else(|d| panic!("{d}"))
        });
        let times = self.choose(4) as i32;
        let (times, start) = (self.number(times), self.pick_tensor());
        let body = self.push(Expr::call(name, [times, start]));
        self.push(Expr::Let { var: name, value: function, body })
    }

    fn statement(&mut self, depth: usize) {
        let value = match self.choose(if depth > 0 { 15 } else { 11 }) {
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
                let pair = self.push(Expr::Tuple([a, b].into()));
                self.pairs.push(pair);
                return;
            }
            6 => match self.pairs.len() {
                0 => self.builder.constant(Tensor::from_slice(&[4, 2], &[0.5f32; 8])),
                count => {
                    let distance = self.choose(count.min(3));
                    let tuple = self.pairs[count - 1 - distance];
                    let index = self.choose(2) as u32;
                    self.push(Expr::Project { tuple, index })
                }
            },
            7 => {
                let arg = self.pick_tensor();
                let split_attrs = Attrs::new([("indices_or_sections", AttrValue::Int(2))]);
                let split_attrs = self.op("split", &[arg], split_attrs);
                let first = self.push(Expr::Project { tuple: split_attrs, index: 1 });
                let tuple = self.push(Expr::Tuple([first, first].into()));
                self.op("concatenate", &[tuple], Attrs::none())
            }
            8 => match self.ints.last() {
                // Casts a loop counter (or a value computed from one) to float32 and adds it to a tensor.
                Some(&i) => {
                    let i = self.op("cast", &[i], Attrs::new([("dtype", AttrValue::from("float32"))]));
                    let x = self.pick_tensor();
                    self.op("add", &[x, i], Attrs::none())
                }
                None => self.pick_tensor(),
            },
            9 => match self.functions.last() {
                Some(&function) => {
                    let arg = self.pick_tensor();
                    self.push(Expr::call(function, [arg]))
                }
                None => self.pick_tensor(),
            },
            10 => match self.references.last() {
                Some(&reference) => self.push(Expr::RefRead(reference)),
                None => self.pick_tensor(),
            },
            11 | 12 => {
                let cond = match (self.choose(2), self.ints.last()) {
                    (0, Some(&i)) => {
                        let limit = self.number(2);
                        self.op("less", &[i, limit], Attrs::none())
                    }
                    _ => self.cond,
                };
                if self.choose(3) == 0 {
                    // Branches that return tuples.
                    let [then, otherwise] = [(); 2].map(|()| {
                        let (a, b) = (self.block(depth - 1), self.block(depth - 1));
                        self.push(Expr::Tuple([a, b].into()))
                    });
                    let branches = self.push(Expr::If { cond, then, otherwise });
                    self.pairs.push(branches);
                    return;
                }
                let then = self.block(depth - 1);
                let otherwise = self.block(depth - 1);
                self.push(Expr::If { cond, then, otherwise })
            }
            13 => {
                let function = self.closure(depth - 1);
                let arg = self.pick_tensor();
                self.push(Expr::call(function, [arg]))
            }
            _ => {
                let inner = self.block(depth - 1);
                self.op("nn.relu", &[inner], Attrs::none())
            }
        };
        self.tensors.push(value);
    }
}

/// Generates a module of two functions; `main` calls `helper`.
fn program(choices: &[u8]) -> Module {
    let mut builder = Builder::default();
    let condition = builder.constant(Tensor::from_bools(&[], &[true]));
    let mut generator = Generator {
        builder,
        choices: choices.iter(),
        tensors: Vec::new(),
        pairs: Vec::new(),
        ints: Vec::new(),
        functions: Vec::new(),
        references: Vec::new(),
        cond: condition,
    };
    for name in ["helper", "main"] {
        let params = [
            generator.builder.var("x", tensor()),
            generator.builder.var("y", tensor()),
            generator.builder.var("c", Type::scalar(DType::Bool)),
        ];
        generator.tensors = params[..2].to_vec();
        generator.pairs.clear();
        generator.cond = params[2];
        if name == "main" {
            let helper = generator.push(Expr::Global("helper".into()));
            let result = generator.push(Expr::call(helper, params));
            generator.tensors.push(result);
        }
        let first = generator.block(3);
        generator.tensors.push(first);
        let (a, b) = (generator.block(2), generator.pick_tensor());
        let body = match name {
            "main" => generator.push(Expr::Tuple([a, b].into())),
            _ => a,
        };
        generator.builder.define(name, &params, body).unwrap_or_else(|d| panic!("{d}"));
    }
    infer_type(&generator.builder.module).unwrap_or_else(|faults| panic!("{faults:?}"))
}

/// Returns the bit patterns of the results of `main`.
fn outcome(module: &Module, condition: bool) -> Vec<Vec<u32>> {
    let x: Vec<f32> = (0..8).map(|i| i as f32 * 0.25 - 1.0).collect();
    let y: Vec<f32> = (0..8).map(|i| 0.75 - i as f32 * 0.125).collect();
    let args = [
        Value::Tensor(Tensor::from_slice(&[4, 2], &x)),
        Value::Tensor(Tensor::from_slice(&[4, 2], &y)),
        Value::Tensor(Tensor::from_bools(&[], &[condition])),
    ];
    let result = Evaluator::new(module).run("main", &args);
    let bits = |t: &Tensor| t.bytes().chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    tensors(&result).iter().map(bits).collect()
}

fn check_same_results(before: &Module, after: &Module) -> Result<(), TestCaseError> {
    for cond in [true, false] {
        prop_assert_eq!(
            outcome(before, cond),
            outcome(after, cond),
            "{}\n{}",
            print_module(before),
            print_module(after)
        );
    }
    Ok(())
}

fn run_four_passes(module: &Module, rules: &[TargetRule], non_call: bool) -> [Module; 4] {
    let composites = step("merge_composite", module, |module| {
        merge_composite(module, &table(), &mut AcceptAll, &mut |_, _| {}, &mut Vec::new())
    });
    let annotated = step("annotate_target", &composites, |module| annotate_target(module, rules, non_call));
    let merged = step("merge_compiler_regions", &annotated, merge_compiler_regions);
    let partitioned = step("partition_graph", &merged, |module| partition_graph(module, "default", true));
    [composites, annotated, merged, partitioned]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn every_partitioning_step_preserves_results(
        choices in prop::collection::vec(any::<u8>(), 0..160),
        owners in prop::collection::vec(any::<u8>(), 10),
        non_call in any::<bool>(),
    ) {
        let module = program(&choices);
        let rules = rules(&owners);
        let steps = run_four_passes(&module, &rules, non_call);
        for step in &steps {
            check_same_results(&module, step)?;
        }
        let partitioned = &steps[3];
        prop_assert!(!regions_need_each_other(partitioned), "{}", print_module(partitioned));
        prop_assert_eq!(print_module(partitioned), print_module(&run_four_passes(&module, &rules, non_call)[3]));
        let names: Vec<String> =
            partitioned.globals.keys().map(|name| name.to_string()).filter(|name| name.starts_with("tvmgen_")).collect();
        check_same_results(&module, &expect_verified(inline_compiler_functions_bound_to(partitioned, &names)))?;
    }

    #[test]
    fn partitioning_for_several_backends_preserves_results(
        choices in prop::collection::vec(any::<u8>(), 0..160),
        owners in prop::collection::vec(any::<u8>(), 10),
    ) {
        let module = program(&choices);
        let (rules, table) = (rules(&owners), table());
        let operators: Vec<Vec<String>> =
            rules.iter().map(|rule| rule.operators.iter().map(|op| op.to_string()).collect()).collect();
        let partition = || {
            let mut judges = [AcceptAll, AcceptAll, AcceptAll];
            let mut backends: Vec<Backend<'_>> = rules
                .iter()
                .zip(&operators)
                .zip(&mut judges)
                .map(|((rule, operators), judge)| {
                    let table = if *rule.target == *"a" { &table[..] } else { &[] };
                    // Only one backend executes control flow as part of regions.
                    let control_flow = match *rule.target == *"b" {
                        true => ControlFlow { branches: true, loops: true },
                        false => ControlFlow::default(),
                    };
                    Backend { name: rule.target.clone(), table, operators, control_flow, judge }
                })
                .collect();
            step("partition_for", &module, |module| partition_for(module, &mut backends, "default").map(|(made, _)| made))
        };
        let partitioned = partition();
        check_same_results(&module, &partitioned)?;
        prop_assert!(!regions_need_each_other(&partitioned), "{}", print_module(&partitioned));
        prop_assert_eq!(print_module(&partitioned), print_module(&partition()));
    }

    #[test]
    fn annotation_composes_and_passes_are_idempotent(
        choices in prop::collection::vec(any::<u8>(), 0..160),
        owners in prop::collection::vec(any::<u8>(), 10),
        non_call in any::<bool>(),
    ) {
        let module = program(&choices);
        let rules = rules(&owners);
        let composed = annotation_laws(&module, &rules, non_call)?;
        check_idempotence(&composed, &PASSES)?;
        let other_passes: [(&str, Pass); 3] = [
            ("to_a_normal_form", to_a_normal_form),
            ("dead_code_elimination", dead_code_elimination),
            ("eliminate_common_subexpr", eliminate_common_subexpr),
        ];
        check_idempotence(&composed, &other_passes)?;
    }

    #[test]
    fn every_step_round_trips_through_text(
        choices in prop::collection::vec(any::<u8>(), 0..160),
        owners in prop::collection::vec(any::<u8>(), 10),
        non_call in any::<bool>(),
    ) {
        let module = program(&choices);
        let steps = run_four_passes(&module, &rules(&owners), non_call);
        for step in std::iter::once(&module).chain(&steps) {
            let printed = print(step, &PrintOptions::default());
            let reparsed = parse(&printed.text, &ParseOptions { constants: &printed.constants });
            prop_assert_eq!(&reparsed.diagnostics, &[], "{}", printed.text);
            let reparsed = infer_type(&reparsed.module).unwrap_or_else(|faults| panic!("{faults:?}\n{}", printed.text));
            prop_assert_eq!(structural_equal(step, &reparsed), Ok(()), "{}", printed.text);
        }
    }
}

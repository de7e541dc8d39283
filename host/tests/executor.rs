//! Comparison of planned programs with the naive evaluation of the same module, expression by expression.

use crate::common::{executor, run, run_reference};
use byoc::driver::plan::plan;
use byoc::runtime::cancel::Cancel;
use byoc::runtime::exec::program::{Instr, Place};
use byoc::runtime::exec::{Executor, OutputDims, Pool, Prepared, Region, RegionCall};
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::ir::{Attrs, Dim, Expr, ExprId, Function, Id, Module, Type};
use byoc_ir::tensor::{DType, Tensor};
use byoc_ir::typing::Builder;
use byoc_test_support::random::Random;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Test-defined operator x + 1, with a kernel that works in place.
mod plus_one {
    use byoc_ir::op::{Arity, OpDef, OpPattern};
    use byoc_ir::tensor::{TensorView, TensorViewMut};
    use byoc_kernels::{Kernel, Offer};

    inventory::submit! {
        OpDef {
            name: "test.plus_one",
            doc: "x + 1.",
            arity: Arity::exactly(1),
            inputs: &["data"],
            attrs: &[],
            pattern: OpPattern::ElemWise,
            relation: |relation| Ok(relation.args[0].clone()),
            reference: Some(|_, inputs, outputs| {
                let out = outputs[0].as_mut_slice::<f32>().iter_mut();
                out.zip(inputs[0].as_slice::<f32>()).for_each(|(out, x)| *out = x + 1.0);
                Ok(())
            }),
            flops: |cost| cost.ret_len(),
            properties: byoc_ir::op::Properties::EXACT,
            declaration: None,
        }
    }

    inventory::submit! { Offer { op: "test.plus_one", make: |_| Some(Box::new(PlusOne)) } }

    struct PlusOne;

    impl Kernel for PlusOne {
        fn in_place(&self) -> Option<usize> {
            Some(0)
        }

        fn run(
            &self,
            inputs: &[TensorView<'_>],
            outputs: &mut [TensorViewMut<'_>],
            _: &mut [u8],
        ) -> Result<(), String> {
            outputs[0].data.copy_from_slice(inputs[0].data);
            self.run_in_place(&[], outputs)
        }

        fn run_in_place(&self, _: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Result<(), String> {
            outputs[0].as_mut_slice::<f32>().iter_mut().for_each(|x| *x += 1.0);
            Ok(())
        }
    }
}

/// Draws floats in [-1, 1).
fn floats(random: &mut Random, shape: &[usize]) -> Tensor {
    Tensor::from_slice(shape, &random.floats(shape.iter().product()))
}

fn float_type(shape: &[usize]) -> Type {
    Type::tensor(DType::F32, shape)
}

fn op(b: &mut Builder, name: &str, args: &[ExprId]) -> ExprId {
    b.op(name, args, Attrs::none()).unwrap()
}

fn scalar(b: &mut Builder, value: f32) -> ExprId {
    b.constant(Tensor::scalar(value))
}

fn push(b: &mut Builder, expr: Expr) -> ExprId {
    b.push(expr).unwrap()
}

fn function(b: &mut Builder, params: &[ExprId], body: ExprId, ret: Type) -> ExprId {
    b.function(params, body, ret, Attrs::none()).unwrap()
}

/// Creates a random graph over tensors of 24 elements: elementwise operators, reshapes, tuples, splits and
/// concatenations.
fn random_graph(seed: u64, size: usize) -> (Module, Vec<Tensor>) {
    let mut random = Random::new(seed);
    let mut b = Builder::default();
    let shapes: [&[usize]; 3] = [&[24], &[4, 6], &[2, 3, 4]];
    let inputs: Vec<ExprId> = (0..3).map(|i| b.var(format!("x{i}"), float_type(shapes[i]))).collect();
    let mut values = inputs.clone();
    values.push(b.constant(floats(&mut random, &[4, 6])));
    let flatten = |b: &mut Builder, x: ExprId, shape: &[usize]| {
        let dims: Vec<i64> = shape.iter().map(|&d| d as i64).collect();
        b.op("reshape", &[x], Attrs::new([("newshape", dims.into())])).unwrap()
    };
    for _ in 0..size {
        // Picks mostly recent values, for chains of in-place steps, and sometimes old values, for long live ranges.
        let choose_operator = |random: &mut Random| match random.below(4) {
            0 => values[random.below(values.len())],
            _ => values[values.len() - 1 - random.below(values.len().min(4))],
        };
        let (x, y) = (choose_operator(&mut random), choose_operator(&mut random));
        let value = match random.below(8) {
            0 => op(&mut b, "nn.relu", &[x]),
            1 | 2 => op(&mut b, "test.plus_one", &[x]),
            3 | 4 => {
                let (x, y) = (flatten(&mut b, x, shapes[1]), flatten(&mut b, y, shapes[1]));
                op(&mut b, ["add", "subtract", "maximum"][random.below(3)], &[x, y])
            }
            5 => flatten(&mut b, x, shapes[random.below(3)]),
            6 => {
                let (x, y) = (flatten(&mut b, x, &[12, 2]), flatten(&mut b, y, &[12, 2]));
                let pair = b.tuple(&[x, y]).unwrap();
                let concatenation = b.op("concatenate", &[pair], Attrs::new([("axis", 1i64.into())])).unwrap();
                let attrs = Attrs::new([("indices_or_sections", 2i64.into()), ("axis", 0i64.into())]);
                let halves = b.op("split", &[concatenation], attrs).unwrap();
                values.push(b.project(halves, 1).unwrap());
                b.project(halves, 0).unwrap()
            }
            _ => {
                let pair = b.tuple(&[x, y]).unwrap();
                let nested_tuple = b.tuple(&[pair, x]).unwrap();
                let pair = b.project(nested_tuple, 0).unwrap();
                b.project(pair, random.below(2) as u32).unwrap()
            }
        };
        values.push(value);
    }
    let results: Vec<ExprId> =
        (0..3).map(|_| values[random.below(values.len())]).chain(values.last().copied()).collect();
    let result = b.tuple(&results).unwrap();
    b.define("main", &inputs, result).unwrap();
    let inputs = shapes.iter().map(|shape| floats(&mut random, shape)).collect();
    (b.module, inputs)
}

#[test]
fn random_graphs_match_naive_evaluation() {
    let pool = Arc::new(Pool::new(1).unwrap());
    let mut in_place = 0;
    for seed in 0..400 {
        let (module, inputs) = random_graph(seed, 5 + (seed as usize % 60));
        let lowered_program = plan(&module, &[], &[]).unwrap();
        let code = &lowered_program.program.functions[lowered_program.program.entry as usize].code;
        in_place += code.iter().filter(|i| matches!(i, Instr::Kernel(call) if call.in_place.is_some())).count();
        let executor =
            Executor::new(lowered_program.program, lowered_program.constants, Vec::new(), pool.clone()).unwrap();
        let expected = run_reference(&module, &inputs);
        // The second run reuses the memory of the first.
        for _ in 0..2 {
            assert_eq!(executor.run(&inputs).unwrap(), expected, "seed {seed}");
        }
    }
    assert!(in_place > 100, "expected more than 100 in-place steps, found {in_place}");
}

#[test]
fn chain_computes_in_place() {
    let mut b = Builder::default();
    let x = b.var("x", float_type(&[1000]));
    let mut y = x;
    for _ in 0..10 {
        y = op(&mut b, "test.plus_one", &[y]);
    }
    b.define("main", &[x], y).unwrap();
    let lowered_program = plan(&b.module, &["y".to_owned()], &[]).unwrap();
    let function = &lowered_program.program.functions[0];
    assert_eq!(function.arena, 4032, "expected 1000 floats padded to a cache line");
    let locations = function.registers.iter().map(|r| r.place);
    assert_eq!(locations.filter(|p| *p == Place::Value).count(), 2, "expected the input and the output as values");
    assert_eq!(lowered_program.program.outputs[0].name, "y");
}

#[test]
fn plans_and_runs_long_chain_without_recursion() {
    let mut b = Builder::default();
    let x = b.var("x", float_type(&[2]));
    let mut y = x;
    for _ in 0..1_000_000 {
        y = op(&mut b, "nn.relu", &[y]);
    }
    b.define("main", &[x], y).unwrap();
    let results = run(&b.module, &[Tensor::from_slice(&[2], &[-1.0f32, 2.0])]).unwrap();
    assert_eq!(results, [Tensor::from_slice(&[2], &[0.0f32, 2.0])]);
}

/// Builds `fn (n, total) { if (n <= 0) { total } else { f(n - 1, total + n) } }` as a let-bound closure.
fn loop_module(is_captured: bool) -> Module {
    let mut b = Builder::default();
    let int_type = Type::scalar(DType::I32);
    let n = b.var("n", int_type.clone());
    let step = b.var("step", int_type.clone());
    let one = if is_captured { step } else { b.constant(Tensor::scalar(1i32)) };
    let zero = b.constant(Tensor::scalar(0i32));
    let func = Type::func(byoc_ir::ir::FuncType::new(vec![int_type.clone(); 2], int_type.clone()));
    let f = b.var("loop", func);
    let (i, total) = (b.var("i", int_type.clone()), b.var("total", int_type.clone()));
    let cond = op(&mut b, "less_equal", &[i, zero]);
    let difference = op(&mut b, "subtract", &[i, one]);
    let sum = op(&mut b, "add", &[total, one]);
    let next_call = b.call(f, &[difference, sum]).unwrap();
    let body = push(&mut b, Expr::If { cond, then: total, otherwise: next_call });
    let literal = function(&mut b, &[i, total], body, int_type);
    let start = b.call(f, &[n, zero]).unwrap();
    let main = push(&mut b, Expr::Let { var: f, value: literal, body: start });
    b.define("main", &[n, step], main).unwrap();
    b.module
}

#[test]
fn runs_tail_recursion_in_constant_memory() {
    for is_captured in [false, true] {
        let module = loop_module(is_captured);
        let inputs = [Tensor::scalar(1_000_000i32), Tensor::scalar(1i32)];
        assert_eq!(run(&module, &inputs).unwrap(), [Tensor::scalar(1_000_000i32)]);
    }
}

#[test]
fn limits_recursion_that_is_not_tail_recursive() {
    // fn @sum(n) { if (n <= 0) { 0 } else { n + @sum(n - 1) } }
    let mut b = Builder::default();
    let int_type = Type::scalar(DType::I32);
    let n = b.var("n", int_type.clone());
    let (zero, one) = (b.constant(Tensor::scalar(0i32)), b.constant(Tensor::scalar(1i32)));
    let cond = op(&mut b, "less_equal", &[n, zero]);
    let difference = op(&mut b, "subtract", &[n, one]);
    let recursive_ref = b.module.push_typed(
        Expr::Global("sum".into()),
        Type::func(byoc_ir::ir::FuncType::new([int_type.clone()], int_type.clone())),
        byoc_ir::ir::Origins::none(),
    );
    let recursive_call = b.call(recursive_ref, &[difference]).unwrap();
    let sum = op(&mut b, "add", &[n, recursive_call]);
    let body = push(&mut b, Expr::If { cond, then: zero, otherwise: sum });
    b.define("sum", &[n], body).unwrap();
    let x = b.var("x", int_type);
    let result = b.call(recursive_ref, &[x]).unwrap();
    b.define("main", &[x], result).unwrap();
    let executor = executor(&b.module);
    assert_eq!(executor.run(&[Tensor::scalar(1000i32)]).unwrap(), [Tensor::scalar(500_500i32)]);
    let error = executor.run(&[Tensor::scalar(i32::MAX)]).unwrap_err();
    assert_eq!(error.code, codes::runtime::CALL_DEPTH);
    assert_eq!(
        executor.run(&[Tensor::scalar(10i32)]).unwrap(),
        [Tensor::scalar(55i32)],
        "expected a correct run after the error"
    );
}

#[test]
fn evaluates_shared_operand_once_before_branches() {
    // let r = ref(0); %0 = (r := r + 1; x * 2); if (c) { %0 + 1 } else { %0 - 1 }: the side effect occurs once on
    // either branch.
    let mut b = Builder::default();
    let (c, x) = (b.var("c", Type::scalar(DType::Bool)), b.var("x", Type::scalar(DType::F32)));
    let (zero, one, two) = (scalar(&mut b, 0.0), scalar(&mut b, 1.0), scalar(&mut b, 2.0));
    let cell = push(&mut b, Expr::RefNew(zero));
    let r = b.var("r", b.module.ty(cell).clone());
    let value_before = push(&mut b, Expr::RefRead(r));
    let value_after = op(&mut b, "add", &[value_before, one]);
    let write = push(&mut b, Expr::RefWrite { reference: r, value: value_after });
    let unit_var = b.var("_", Type::unit());
    let double = op(&mut b, "multiply", &[x, two]);
    let shared_let = push(&mut b, Expr::Let { var: unit_var, value: write, body: double });
    let then_value = op(&mut b, "add", &[shared_let, one]);
    let else_value = op(&mut b, "subtract", &[shared_let, one]);
    let branch = push(&mut b, Expr::If { cond: c, then: then_value, otherwise: else_value });
    let y = b.var("y", Type::scalar(DType::F32));
    let count = push(&mut b, Expr::RefRead(r));
    let pair = b.tuple(&[y, count]).unwrap();
    let inner = push(&mut b, Expr::Let { var: y, value: branch, body: pair });
    let body = push(&mut b, Expr::Let { var: r, value: cell, body: inner });
    b.define("main", &[c, x], body).unwrap();
    let executor = executor(&b.module);
    for (c, y) in [(true, 7.0f32), (false, 5.0)] {
        let results = executor.run(&[Tensor::from_bools(&[], &[c]), Tensor::scalar(3.0f32)]).unwrap();
        assert_eq!(results, [Tensor::scalar(y), Tensor::scalar(1.0f32)]);
    }
}

#[test]
fn closures_capture_and_are_selected_at_run_time() {
    // let k = x * x; let add = fn (v) { v + k }; let apply = fn (f, v) { f(f(v)) };
    // apply(if (c) { add } else { fn (v) { v - k } }, x)
    let mut b = Builder::default();
    let f32 = Type::scalar(DType::F32);
    let (c, x) = (b.var("c", Type::scalar(DType::Bool)), b.var("x", f32.clone()));
    let k = op(&mut b, "multiply", &[x, x]);
    let v = b.var("v", f32.clone());
    let sum = op(&mut b, "add", &[v, k]);
    let add = function(&mut b, &[v], sum, f32.clone());
    let w = b.var("w", f32.clone());
    let difference = op(&mut b, "subtract", &[w, k]);
    let subtract = function(&mut b, &[w], difference, f32.clone());
    let named_function = b.var("add", b.module.ty(add).clone());
    let function_choice = push(&mut b, Expr::If { cond: c, then: named_function, otherwise: subtract });
    let (f, u) = (b.var("f", b.module.ty(add).clone()), b.var("u", f32.clone()));
    let applied_once = b.call(f, &[u]).unwrap();
    let applied_twice = b.call(f, &[applied_once]).unwrap();
    let apply = function(&mut b, &[f, u], applied_twice, f32);
    let apply_var = b.var("apply", b.module.ty(apply).clone());
    let call = b.call(apply_var, &[function_choice, x]).unwrap();
    let inner = push(&mut b, Expr::Let { var: apply_var, value: apply, body: call });
    let body = push(&mut b, Expr::Let { var: named_function, value: add, body: inner });
    b.define("main", &[c, x], body).unwrap();
    let executor = executor(&b.module);
    for (c, y) in [(true, 21.0f32), (false, -15.0)] {
        let results = executor.run(&[Tensor::from_bools(&[], &[c]), Tensor::scalar(3.0f32)]).unwrap();
        assert_eq!(results, [Tensor::scalar(y)]);
    }
}

#[test]
fn nested_closure_calls_outer_closure() {
    // let f = fn (n) { let g = fn (m) { f(m - 1) + k }; if (n <= 0) { 0 } else { g(n) } }; f(x), which captures k
    let mut b = Builder::default();
    let f32 = Type::scalar(DType::F32);
    let (x, k) = (b.var("x", f32.clone()), b.var("k", f32.clone()));
    let (zero, one) = (scalar(&mut b, 0.0), scalar(&mut b, 1.0));
    let ty = Type::func(byoc_ir::ir::FuncType::new([f32.clone()], f32.clone()));
    let (f, g) = (b.var("f", ty.clone()), b.var("g", ty));
    let (n, m) = (b.var("n", f32.clone()), b.var("m", f32.clone()));
    let difference = op(&mut b, "subtract", &[m, one]);
    let recursive_call = b.call(f, &[difference]).unwrap();
    let sum = op(&mut b, "add", &[recursive_call, k]);
    let inner = function(&mut b, &[m], sum, f32.clone());
    let cond = op(&mut b, "less_equal", &[n, zero]);
    let call = b.call(g, &[n]).unwrap();
    let branch = push(&mut b, Expr::If { cond, then: zero, otherwise: call });
    let let_g = push(&mut b, Expr::Let { var: g, value: inner, body: branch });
    let outer = function(&mut b, &[n], let_g, f32);
    let start = b.call(f, &[x]).unwrap();
    let body = push(&mut b, Expr::Let { var: f, value: outer, body: start });
    b.define("main", &[x, k], body).unwrap();
    let inputs = [Tensor::scalar(100.0f32), Tensor::scalar(0.5f32)];
    assert_eq!(run(&b.module, &inputs).unwrap(), [Tensor::scalar(50.0f32)]);
}

#[test]
fn handles_deep_ifs_lets_and_tuples_without_recursion() {
    let mut b = Builder::default();
    let (c, x) = (b.var("c", Type::scalar(DType::Bool)), b.var("x", Type::scalar(DType::F32)));
    let one = scalar(&mut b, 1.0);
    let mut y = x;
    for _ in 0..10_000 {
        let sum = op(&mut b, "add", &[y, one]);
        y = push(&mut b, Expr::If { cond: c, then: sum, otherwise: y });
    }
    // In addition to the sequence above, each `if` is nested in a branch of the next.
    let mut nested_tuple = y;
    for _ in 0..10_000 {
        nested_tuple = push(&mut b, Expr::If { cond: c, then: nested_tuple, otherwise: x });
    }
    let mut vars = vec![];
    let mut last_value = nested_tuple;
    for i in 0..100_000 {
        let var = b.var(format!("v{i}"), Type::scalar(DType::F32));
        vars.push((var, last_value));
        last_value = op(&mut b, "negative", &[var]);
    }
    for (var, value) in vars.into_iter().rev() {
        last_value = push(&mut b, Expr::Let { var, value, body: last_value });
    }
    b.define("main", &[c, x], last_value).unwrap();
    let executor = executor(&b.module);
    for (c, y) in [(true, 10_001.0f32), (false, 1.0)] {
        let results = executor.run(&[Tensor::from_bools(&[], &[c]), Tensor::scalar(1.0f32)]).unwrap();
        assert_eq!(results, [Tensor::scalar(y)]);
    }
}

#[test]
fn runs_with_sizes_known_only_at_run_time() {
    // Concatenates relu(x) + x with relu(x) and reshapes the result to one row, for x of type Tensor[(?, 3)].
    let mut b = Builder::default();
    let x = b.var("x", Type::tensor_of(DType::F32, [Dim::Any, Dim::Fixed(3)]));
    let y = op(&mut b, "nn.relu", &[x]);
    let z = op(&mut b, "add", &[x, y]);
    let pair = b.tuple(&[z, y]).unwrap();
    let concatenation = b.op("concatenate", &[pair], Attrs::new([("axis", 0i64.into())])).unwrap();
    let row = b.op("reshape", &[concatenation], Attrs::new([("newshape", [1i64, -1].into())])).unwrap();
    b.define("main", &[x], row).unwrap();
    let executor = executor(&b.module);
    let mut random = Random::new(3);
    for rows in [1, 4, 2, 4] {
        let input = floats(&mut random, &[rows, 3]);
        let results = executor.run(std::slice::from_ref(&input)).unwrap();
        assert_eq!(results[0].shape(), [1, 6 * rows]);
        assert_eq!(results, run_reference(&b.module, &[input]));
    }
}

#[test]
fn concurrent_runs_are_independent() {
    let (module, inputs) = random_graph(77, 60);
    let executor = executor(&module);
    let expected = run_reference(&module, &inputs);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..50 {
                    assert_eq!(executor.run(&inputs).unwrap(), expected);
                }
            });
        }
    });
}

/// Region that adds 1, or whose preparation always fails.
struct AddOne {
    calls: AtomicUsize,
    takes: bool,
}

impl Region for AddOne {
    fn prepare(&self, inputs: &[&[usize]]) -> Result<Prepared, Diagnostic> {
        if !self.takes {
            return Err(Diagnostic::error(codes::runtime::REGION_FAILED, "no"));
        }
        Ok(Prepared {
            outputs: vec![OutputDims { dims: inputs[0].into(), exact: true }],
            workspace: 128,
            plan: 7,
            bytes: 0,
        })
    }

    fn run(&self, call: RegionCall<'_, '_>) -> Result<(), Diagnostic> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        assert_eq!((call.plan, call.workspace.len(), call.workspace.as_ptr() as usize % 64), (7, 128, 0));
        for (out, x) in call.outputs[0].as_mut_slice::<f32>().iter_mut().zip(call.inputs[0].as_slice::<f32>()) {
            *out = x + 1.0;
        }
        Ok(())
    }
}

/// Builds `@main(x) = relu(@region(relu(x)))`. The region's fallback adds 100, so results show whether the region or
/// its fallback ran.
fn region_module(dims: Type) -> Module {
    let mut b = Builder::default();
    let x = b.var("x", dims.clone());
    let hundred_scalar = scalar(&mut b, 100.0);
    let sum = op(&mut b, "add", &[x, hundred_scalar]);
    let attrs = Attrs::new([("Compiler", "test".into()), ("global_symbol", "region_0".into())]);
    let body = Function::new([x], sum, Type::Unknown, attrs);
    let region = push(&mut b, Expr::Function(Box::new(body)));
    b.module.globals.insert("region_0".into(), region);
    let y = b.var("y", dims);
    let value_before = op(&mut b, "nn.relu", &[y]);
    let global = push(&mut b, Expr::Global("region_0".into()));
    let call = b.call(global, &[value_before]).unwrap();
    let value_after = op(&mut b, "nn.relu", &[call]);
    b.define("main", &[y], value_after).unwrap();
    b.module
}

#[test]
fn runs_regions_on_backend_or_host() {
    for dims in [float_type(&[3]), Type::tensor_of(DType::F32, [Dim::Any])] {
        let module = region_module(dims);
        let lowered_program = plan(&module, &[], &[]).unwrap();
        let region = &lowered_program.program.regions[0];
        assert_eq!((region.symbol.as_str(), region.backend.as_str()), ("region_0", "test"));
        let input = [Tensor::from_slice(&[3], &[-1.0f32, 0.0, 2.0])];
        for (takes, offset) in [(true, 1.0f32), (false, 100.0)] {
            let add_one = Arc::new(AddOne { calls: AtomicUsize::new(0), takes });
            let regions: Vec<Option<Arc<dyn Region>>> = vec![Some(add_one.clone())];
            let pool = Arc::new(Pool::new(2).unwrap());
            let executor =
                Executor::new(lowered_program.program.clone(), lowered_program.constants.clone(), regions, pool)
                    .unwrap();
            let expected = [Tensor::from_slice(&[3], &[offset, offset, 2.0 + offset])];
            assert_eq!(executor.run(&input).unwrap(), expected);
            assert_eq!(executor.run(&input).unwrap(), expected);
            assert_eq!(add_one.calls.load(Ordering::Relaxed), if takes { 2 } else { 0 });
        }
    }
}

#[test]
fn reports_expected_and_found_inputs() {
    let mut b = Builder::default();
    let n = || Dim::symbol("n");
    let x = b.var("image", Type::tensor_of(DType::F32, [n(), Dim::Fixed(3)]));
    let y = b.var("mask", Type::tensor_of(DType::F32, [n()]));
    let result = b.tuple(&[x, y]).unwrap();
    b.define("main", &[x, y], result).unwrap();
    let executor = executor(&b.module);
    let zeros = |shape: &[usize]| Tensor::zeros(DType::F32, shape).unwrap();
    let bind = |names: &[&str]| executor.bind(names.iter().map(|n| ((*n).to_owned(), zeros(&[1, 3])))).unwrap_err();

    let error = bind(&["imag"]);
    assert_eq!((error.code, error.help.as_deref()), (codes::runtime::UNKNOWN_INPUT, Some("did you mean \"image\"?")));
    let error = bind(&["image"]);
    assert_eq!(error.code, codes::runtime::INPUT_COUNT);
    assert!(error.message.contains("\"mask\" (float32[n])"), "{error}");
    assert_eq!(bind(&["image", "image"]).code, codes::runtime::INPUT_COUNT);
    let named_inputs = [("mask".to_owned(), zeros(&[2])), ("image".to_owned(), zeros(&[2, 3]))];
    assert_eq!(executor.bind(named_inputs).unwrap()[0].shape(), [2, 3]);

    let error = executor.run(&[zeros(&[1, 3])]).unwrap_err();
    assert_eq!(error.code, codes::runtime::INPUT_COUNT);
    let error = executor.run(&[Tensor::zeros(DType::I64, &[1, 3]).unwrap(), zeros(&[1])]).unwrap_err();
    assert_eq!(error.code, codes::runtime::INPUT_DTYPE);
    assert_eq!(error.message, "input \"image\": expected float32[n, 3], found int64[1, 3]");
    for shapes in [[&[1usize, 4][..], &[1]], [&[1, 3, 1], &[1]], [&[2, 3], &[3]]] {
        let error = executor.run(&shapes.map(zeros)).unwrap_err();
        assert_eq!(error.code, codes::runtime::INPUT_SHAPE);
    }
    assert!(executor.run(&[zeros(&[2, 3]), zeros(&[2])]).is_ok());
}

#[test]
fn flattens_tuples_of_inputs_and_outputs() {
    let mut b = Builder::default();
    let x = b.var("x", Type::tuple([float_type(&[1]), Type::tuple([float_type(&[2])])]));
    let inner = b.project(x, 1).unwrap();
    let result = b.tuple(&[inner, x]).unwrap();
    b.define("main", &[x], result).unwrap();
    let lowered_program = plan(&b.module, &[], &[]).unwrap();
    let names: Vec<_> = lowered_program.program.inputs.iter().map(|p| p.name.as_str()).collect();
    assert_eq!(names, ["x.0", "x.1"]);
    let (one, two) = (Tensor::from_slice(&[1], &[1.0f32]), Tensor::from_slice(&[2], &[2.0f32, 3.0]));
    assert_eq!(run(&b.module, &[one.clone(), two.clone()]).unwrap(), [two.clone(), one, two]);
}

#[test]
fn inlined_composite_is_part_of_caller() {
    let mut b = Builder::default();
    let x = b.var("x", float_type(&[4]));
    let y = op(&mut b, "test.plus_one", &[x]);
    let p = b.var("p", float_type(&[4]));
    let body = op(&mut b, "nn.relu", &[p]);
    let body = op(&mut b, "negative", &[body]);
    let attrs = Attrs::new([("Composite", "test.relu_negative".into())]);
    let literal = b.function(&[p], body, Type::Unknown, attrs).unwrap();
    let z = b.call(literal, &[y]).unwrap();
    let z = op(&mut b, "test.plus_one", &[z]);
    b.define("main", &[x], z).unwrap();
    let lowered_program = plan(&b.module, &[], &[]).unwrap();
    assert_eq!(lowered_program.program.functions.len(), 1);
    assert_eq!(lowered_program.program.functions[0].code.len(), 5);
    let input = floats(&mut Random::new(9), &[4]);
    assert_eq!(run(&b.module, std::slice::from_ref(&input)).unwrap(), run_reference(&b.module, &[input]));
}

#[test]
fn returns_ids_of_constants() {
    let mut b = Builder::default();
    let x = b.var("x", float_type(&[2]));
    let c = b.constant(Tensor::from_slice(&[2], &[1.0f32, 2.0]));
    let y = op(&mut b, "add", &[x, c]);
    b.define("main", &[x], y).unwrap();
    let lowered_program = plan(&b.module, &[], &[]).unwrap();
    assert_eq!(
        lowered_program.constant_of.iter().map(|(id, i)| (id.index(), *i)).collect::<Vec<_>>(),
        [(c.index(), 0)]
    );
    let bytes = b.module.expr(c).as_constant().unwrap().bytes().as_ptr();
    assert_eq!(
        lowered_program.constants[0].bytes().as_ptr(),
        bytes,
        "expected the constant to be shared, found a copy"
    );
}

/// Compares a network block in blocked layouts with the same block in plain layouts, both with the fast kernels and
/// with the references.
#[test]
fn blocked_layouts_match_plain_ones() {
    let text = "#[version = \"0.0.5\"]
def @main(%x: Tensor[(2, 8, 9, 7), float32], %w: Tensor[(16, 8, 3, 3), float32], %v: Tensor[(8, 16, 1, 1), float32], %b: Tensor[(16), float32], %m: Tensor[(9, 7), float32]) {
  %0 = nn.relu(nn.bias_add(nn.conv2d(%x, %w, padding=[1, 1]), %b));
  %1 = nn.max_pool2d(multiply(%0, %m), pool_size=[3, 3], strides=[2, 2], padding=[1, 1]);
  %2 = nn.avg_pool2d(%0, pool_size=[3, 3], strides=[2, 2], padding=[1, 1], count_include_pad=True);
  %3 = nn.conv2d(add(%1, %2), %v, strides=[2, 1]);
  %4 = nn.conv2d(%3, %w, padding=[1, 1, 2, 2], dilation=[2, 2]);
  %5 = concatenate((%4, nn.adaptive_avg_pool2d(%4, output_size=[2, 3])), axis=2);
  (nn.softmax(%3, axis=1), %5, nn.global_avg_pool2d(%4), nn.global_max_pool2d(%4))
}
";
    let parsed_module = byoc_ir::text::parse(text, &Default::default());
    assert_eq!(parsed_module.diagnostics, []);
    let typed_module = byoc_core::pass::infer_type(&parsed_module.module).unwrap();
    let mut random = Random::new(7);
    let shapes: [&[usize]; 5] = [&[2, 8, 9, 7], &[16, 8, 3, 3], &[8, 16, 1, 1], &[16], &[9, 7]];
    let inputs: Vec<Tensor> = shapes.iter().map(|shape| floats(&mut random, shape)).collect();
    let expected = run_reference(&typed_module, &inputs);
    for (data, kernel) in [("NCHW8c", Some("OIHW8i8o")), ("NCHW4c", None), ("NHWC2c", Some("HWIO2o")), ("NCHW1c", None)]
    {
        let desired_layout = byoc_core::pass::DesiredLayout {
            operator: "nn.conv2d".into(),
            data: data.into(),
            kernel: kernel.map(Into::into),
        };
        let mut warnings = Vec::new();
        let blocked_module = byoc_core::pass::convert_layout(&typed_module, &[desired_layout], &mut warnings).unwrap();
        assert_eq!(warnings, [], "{data}");
        assert_eq!(byoc_core::analysis::verify(&blocked_module), Ok(()), "{data}");
        let calls = |layout: &str| {
            let contains = |expr: &Expr| {
                expr.as_op_call().is_some_and(|(_, call)| {
                    [call.attrs.str("data_layout"), call.attrs.str("layout")].contains(&Some(layout))
                })
            };
            blocked_module.nodes.iter().filter(|(_, node)| contains(&node.expr)).count()
        };
        assert_eq!(calls(data), 8, "expected three convolutions and five poolings in {data}");
        for (mode, results) in
            [("fast", run(&blocked_module, &inputs).unwrap()), ("naive", run_reference(&blocked_module, &inputs))]
        {
            for (result, expected) in results.iter().zip(&expected) {
                assert_eq!(result.shape(), expected.shape());
                for (a, b) in result.as_slice::<f32>().iter().zip(expected.as_slice::<f32>()) {
                    assert!((a - b).abs() <= 1e-5 * b.abs().max(1.0), "{data}, {mode}: expected {b}, found {a}");
                }
            }
        }
    }
}

/// Creates an executor for a loop that counts down from its input, with one call per iteration.
fn count_down() -> Executor {
    let text = "#[version = \"0.0.5\"]
        def @count(%n: int64) -> int64 { if (greater(%n, 0i64)) { @count(subtract(%n, 1i64)) } else { %n } }
        def @main(%n: int64) { @count(%n) }";
    let module = byoc_ir::text::parse(text, &Default::default()).module;
    executor(&byoc_core::pass::infer_type(&module).unwrap())
}

#[test]
fn cancels_one_run_only() {
    let executor = count_down();
    let (large_inputs, small_inputs) = ([Tensor::scalar(i64::MAX)], [Tensor::scalar(3i64)]);
    let cancel = Cancel::default();
    std::thread::scope(|scope| {
        let run = scope.spawn(|| executor.run_under(&large_inputs, None, &cancel).unwrap_err());
        // Concurrent runs finish normally.
        assert_eq!(executor.run(&small_inputs).unwrap(), [Tensor::scalar(0i64)]);
        cancel.set(true);
        let error = run.join().unwrap();
        assert_eq!(error.code, codes::runtime::CANCELLED, "{error}");
        // The step reached depends on the scheduler.
        assert!(error.notes[0].contains("was at step"), "{error}");
    });
    assert_eq!(executor.run_under(&small_inputs, None, &cancel).unwrap_err().code, codes::runtime::CANCELLED);
    let deadline_cancel = Cancel::default().part(Some(std::time::Duration::from_millis(50)));
    assert_eq!(executor.run_under(&large_inputs, None, &deadline_cancel).unwrap_err().code, codes::runtime::TIMED_OUT);
    assert_eq!(executor.run(&small_inputs).unwrap(), [Tensor::scalar(0i64)]);
    // The cancellation of an executor applies to each of its runs.
    let executor = count_down().with_cancel(cancel);
    assert_eq!(executor.run(&small_inputs).unwrap_err().code, codes::runtime::CANCELLED);
}

#[test]
fn limits_iterations_of_loop() {
    let executor = count_down().with_max_calls(1000);
    assert!(executor.run(&[Tensor::scalar(900i64)]).is_ok());
    let error = executor.run(&[Tensor::scalar(1001i64)]).unwrap_err();
    assert_eq!(error.code, codes::runtime::STEP_LIMIT);
    assert!(error.message.contains("1000 calls") && error.message.contains("count"), "{error}");
}

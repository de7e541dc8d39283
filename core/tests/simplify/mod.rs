//! Tests that the simplification passes preserve semantics: random programs are evaluated before and after each pass.

mod deep;
pub mod generate;
mod qnn;

use crate::evaluate::{Evaluator, Value, tensors};
use byoc_core::analysis::{structural_equal, verify};
use byoc_core::pass::manager::{self, RunOptions};
use byoc_core::pass::{DesiredLayout, PassOptions};
use byoc_ir::ir::Module;
use byoc_ir::tensor::{DType, Tensor};
use byoc_ir::text::{PrintOptions, print};
use generate::{Kind, program};
use proptest::prelude::*;

const PASSES: &[&str] = &[
    "canonicalize_ops",
    "dead_code_elimination",
    "eliminate_common_subexpr",
    "fold_constant",
    "fold_scale_axis",
    "simplify_inference",
    "to_a_normal_form",
    "convert_layout",
];

fn run(module: &Module, pass: &str) -> Module {
    let nhwc = |operator: &str| DesiredLayout { operator: operator.into(), data: "NHWC".into(), kernel: None };
    let options = PassOptions { layouts: vec![nhwc("nn.conv2d"), nhwc("nn.max_pool2d")], ..PassOptions::default() };
    let mut run = RunOptions { verify_each: true, ..RunOptions::default() };
    match manager::run(module.clone(), &[pass], &options, &mut run) {
        Ok(output) => output.module,
        Err(error) => panic!("{error}\n{}", print(module, &PrintOptions::default()).text),
    }
}

/// Returns the results of `@main`, and the final contents of its reference argument.
fn results(module: &Module, kind: Kind) -> Vec<Tensor> {
    let mut args = generate::arguments(kind).into_iter().map(Value::Tensor).collect::<Vec<_>>();
    let cell = Value::Cell(std::rc::Rc::new(std::cell::RefCell::new(args[0].clone())));
    args.push(cell.clone());
    let mut values = tensors(&Evaluator::new(module).run("main", &args));
    values.extend(tensors(&cell));
    values
}

fn assert_same(pass: &str, before: &[Tensor], after: &[Tensor], module: &Module) {
    assert_eq!(before.len(), after.len());
    for (a, b) in before.iter().zip(after) {
        assert_eq!((a.dtype(), a.shape()), (b.dtype(), b.shape()));
        let is_close = match a.dtype() {
            DType::F32 => {
                let (a, b) = (a.as_slice::<f32>(), b.as_slice::<f32>());
                let largest = a.iter().map(|v| v.abs()).fold(1.0, f32::max);
                a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-5 * largest)
            }
            _ => a.bytes() == b.bytes(),
        };
        assert!(is_close, "{pass}: expected {a:?}\nfound {b:?}\n{}", print(module, &PrintOptions::default()).text);
    }
}

fn check(choices: &[u8], kind: Kind) {
    let module = program(&["main"], choices, kind);
    assert_eq!(verify(&module), Ok(()));
    let before = results(&module, kind);
    let mut program = module.clone();
    for &pass in PASSES {
        let after = run(&module, pass);
        assert_same(pass, &before, &results(&after, kind), &module);
        let repeated = run(&after, pass);
        if let Err(difference) = structural_equal(&after, &repeated) {
            panic!("{pass} is not idempotent: {difference}\n{}", print(&after, &PrintOptions::default()).text);
        }
        program = run(&program, pass);
    }
    assert_same("all passes", &before, &results(&program, kind), &module);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn floats_stay_close(choices in prop::collection::vec(any::<u8>(), 0..300)) {
        check(&choices, Kind::Float);
    }

    #[test]
    fn integers_stay_equal(choices in prop::collection::vec(any::<u8>(), 0..300)) {
        check(&choices, Kind::Int);
    }
}

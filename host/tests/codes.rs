//! Errors that no operator of the operator table can cause, triggered by test-defined operators.

use byoc::driver::plan::plan;
use byoc::runtime::exec::constants::needed_constants;
use byoc::runtime::exec::{Executor, Pool};
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::ir::{Attrs, Dim, Module, Type};
use byoc_ir::tensor::{DType, Tensor};
use byoc_ir::typing::Builder;
use std::sync::Arc;

mod operators {
    use super::{Dim, Type};
    use byoc_ir::op::{Arity, OpDef, OpPattern};

    inventory::submit! {
        OpDef {
            name: "test.without_reference",
            doc: "An operator that only a backend can compute.",
            arity: Arity::exactly(1),
            inputs: &["data"],
            attrs: &[],
            pattern: OpPattern::Opaque,
            relation: |relation| Ok(relation.args[0].clone()),
            reference: None,
            flops: |_| 0,
            properties: byoc_ir::op::Properties::EXACT,
            declaration: None,
        }
    }

    inventory::submit! {
        OpDef {
            name: "test.without_size",
            doc: "An operator whose result has an unknown size.",
            arity: Arity::exactly(1),
            inputs: &["data"],
            attrs: &[],
            pattern: OpPattern::Opaque,
            relation: |relation| Ok(Type::tensor_of(relation.tensor(0)?.dtype, [Dim::Any])),
            reference: Some(|_, _, _| Ok(())),
            flops: |_| 0,
            properties: byoc_ir::op::Properties::EXACT,
            declaration: None,
        }
    }
}

fn run(operator: &str) -> Diagnostic {
    let mut builder = Builder::default();
    let x = builder.var("x", Type::tensor(DType::F32, &[2]));
    let y = builder.op(operator, &[x], Attrs::none()).unwrap();
    builder.define("main", &[x], y).unwrap();
    let lowered_program = plan(&builder.module, &[], &[]).unwrap();
    let executor =
        Executor::new(lowered_program.program, lowered_program.constants, Vec::new(), Arc::new(Pool::new(1).unwrap()));
    match executor {
        Ok(executor) => executor.run(&[Tensor::from_slice(&[2], &[1f32, 2.0])]).unwrap_err(),
        Err(diagnostic) => diagnostic,
    }
}

#[test]
fn reports_operator_without_host_implementation() {
    let diagnostic = run("test.without_reference");
    assert_eq!(diagnostic.code, codes::runtime::NO_KERNEL, "{diagnostic}");
    assert!(diagnostic.message.contains("test.without_reference"), "{diagnostic}");
}

#[test]
fn rejects_module_without_main() {
    let diagnostic = plan(&Module::new(), &[], &[]).err().unwrap();
    assert_eq!(diagnostic.code, codes::runtime::NOT_LOWERABLE, "{diagnostic}");
    assert!(diagnostic.message.contains("@main"), "{diagnostic}");
}

#[test]
fn reports_result_of_unknown_size() {
    let diagnostic = run("test.without_size");
    assert_eq!(diagnostic.code, codes::runtime::SIZE_UNKNOWN, "{diagnostic}");
    assert!(diagnostic.message.contains("Tensor[(?), float32]") || diagnostic.message.contains('?'), "{diagnostic}");
}

#[test]
fn reports_released_constants() {
    let mut builder = Builder::default();
    let x = builder.var("x", Type::tensor(DType::F32, &[2]));
    let constant = builder.constant(Tensor::from_slice(&[2], &[3f32, 4.0]));
    let y = builder.op("add", &[x, constant], Attrs::none()).unwrap();
    builder.define("main", &[x], y).unwrap();
    let lowered_program = plan(&builder.module, &[], &[]).unwrap();
    assert_eq!(needed_constants(&lowered_program.program, |_| true), [true]);
    let pool = Arc::new(Pool::new(1).unwrap());
    let diagnostic =
        Executor::with_partial_constants(lowered_program.program, vec![None], Vec::new(), Vec::new(), pool)
            .unwrap_err();
    assert_eq!(diagnostic.code, codes::runtime::CONSTANTS_GONE, "{diagnostic}");
    assert!(diagnostic.message.contains("main"), "{diagnostic}");
}

//! Values that cross the plugin boundary in either direction.

use byoc::runtime::plugin::from_graph::module_of;
use byoc_core::analysis::VerifiedModule;
use byoc_core::pass::infer_type;
use byoc_ir::diag::codes;
use byoc_ir::ir::{Expr, Id};
use byoc_ir::text::{ParseOptions, parse};
use byoc_plugin_api::{DType, Graph, TensorType, ValueRef};
use std::process::Command;

const RELU: &str = "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(2), float32]) { nn.relu(%x) }\n";

/// Creates the graph of `relu(x)` for an element type.
fn relu_of(dtype: DType) -> Graph {
    let mut graph = Graph::new("region_0");
    let x = ValueRef::of(graph.push_input("x", TensorType::new(dtype, &[2])));
    let y = ValueRef::of(graph.push_op("nn.relu", [x], [], [TensorType::new(dtype, &[2])]));
    graph.outputs.push(y);
    graph
}

#[test]
fn rejects_unknown_element_type() {
    assert!(module_of(&relu_of(DType::F32), &[]).is_ok());
    let complex = DType { code: 5, bits: 64, lanes: 1 };
    let lanes = DType { lanes: 4, ..DType::F32 };
    let wide_dtype = DType { bits: 128, ..DType::F32 };
    for dtype in [complex, lanes, wide_dtype] {
        let error = module_of(&relu_of(dtype), &[]).err().unwrap();
        assert_eq!(error.code, codes::plugins::BAD_GRAPH);
        assert_eq!(error.message, format!("expected an element type that the host supports, found {dtype}"));
    }
}

#[test]
fn compiles_only_verified_graphs() {
    let mut module = infer_type(&parse(RELU, &ParseOptions::default()).module).unwrap();
    assert!(VerifiedModule::of(&module).is_ok());
    // An operand defined after its consumer.
    let last_id = module.nodes.iter().map(|(id, _)| id).next_back().unwrap();
    let call = module.nodes.iter().find(|(_, node)| matches!(node.expr, Expr::Call(_))).map(|(id, _)| id).unwrap();
    if let Expr::Call(call) = &mut module.nodes[call].expr {
        call.args[0] = last_id;
    }
    assert_ne!(last_id.index(), 0);
    assert!(VerifiedModule::of(&module).is_err());
}

#[test]
fn verifies_before_code_generation() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("m.relay");
    std::fs::write(&model, RELU).unwrap();
    let mut byoc = Command::new(env!("CARGO_BIN_EXE_byoc"));
    byoc.args(["compile", "--time-passes", "-o"]).arg(dir.path().join("m.byoc")).arg(&model);
    let output = byoc.output().unwrap();
    let log = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
    let position_of = |pass: &str| {
        log.lines()
            .position(|line| line.ends_with(pass))
            .unwrap_or_else(|| panic!("expected the pass{pass} in:\n{log}"))
    };
    assert!(
        position_of(" partition_graph") < position_of(" verify") && position_of(" verify") < position_of(" codegen"),
        "{log}"
    );
}

#[test]
fn saturates_count_of_operations() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("m.relay");
    let chain = format!("{}%x{}", "exp(".repeat(40), ")".repeat(40));
    let head = "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(2147483647, 2147483647), float32])";
    std::fs::write(&model, format!("{head} {{ {chain} }}\n")).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_byoc")).args(["explain"]).arg(&model).output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(!log.contains("panicked") && output.status.code().is_some_and(|code| code < 100), "{log}");
}

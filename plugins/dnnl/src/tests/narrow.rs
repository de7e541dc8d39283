//! bfloat16: what is read is rounded to it, what comes out is not, and only where it was asked for.

use super::artifacts::{Alone, Bytes};
use super::library;
use super::region::run;
use crate::backend::{Dnnl, JsonLoader};
use crate::cpu;
use byoc_plugin_api::*;
use serde_json::json;

/// Rows and columns: enough for a copy of the data to be worth it.
const N: usize = 96;

/// 1 and half of what bfloat16 can say above it, which it does not know, and twice that, which it does.
const BETWEEN: f32 = 1.0 + 1.0 / 256.0;
const ABOVE: f32 = 1.0 + 1.0 / 128.0;

/// x (N, N) times a weight of `ABOVE`, compiled with these options: the blob and an element of the product of an x of `BETWEEN`.
fn product(options: &serde_json::Value) -> (String, f32) {
    let ty = TensorType::new(DType::F32, &[N, N]);
    let mut graph = Graph::new("region_0");
    let x = graph.push_input("x", ty.clone());
    let w = graph.push_constant(0, ty.clone());
    let y = graph.push_op("nn.dense", [ValueRef::of(x), ValueRef::of(w)], [], [ty]);
    graph.outputs.push(ValueRef::of(y));
    let constants = [Constant::new("w", DType::F32, &[N, N], Bytes(vec![ABOVE; N * N]))];
    let compiled = Dnnl.compile(&Region { graph: &graph, constants: &constants, options }).unwrap();
    let services = Services::new(Alone(1));
    // Whoever loads chooses nothing.
    let request = LoadRequest {
        symbol: "region_0",
        blob: &compiled.blob,
        constants: &constants,
        options: &json!({}),
        services: &services,
    };
    let region = JsonLoader.load(&request).unwrap();
    let output = run(&*region, &[N, N], &[BETWEEN; N * N]);
    assert!(output.iter().all(|&y| y == output[0]), "{output:?}");
    (String::from_utf8(compiled.blob.to_vec()).unwrap(), output[0])
}

#[test]
fn operands_are_rounded_where_it_was_asked_for() {
    if library().is_none() {
        return;
    }
    let exact = N as f32 * BETWEEN * ABOVE;
    for options in [json!({}), json!({"backend_options": {}}), json!({"backend_options": {"bf16": "false"}})] {
        let (blob, y) = product(&options);
        assert_eq!((y, blob.contains("bf16")), (exact, false), "{options}");
    }
    let (blob, y) = product(&json!({"backend_options": {"bf16": "true"}}));
    assert!(blob.contains("bf16"));
    // A tie goes to the even one, which is 1. The sum is one of 32 bits: 96.75 is no bfloat16.
    let rounded = if cpu::has_bf16() { N as f32 * ABOVE } else { exact };
    assert_eq!(y, rounded);
}

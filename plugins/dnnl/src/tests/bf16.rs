//! bfloat16 option: if it is set, operands are rounded and results are not.

use super::library;
use super::region::run;
use crate::backend::{Dnnl, JsonLoader};
use crate::cpu;
use byoc_plugin_api::*;
use byoc_test_support::plugin;
use serde_json::json;

/// Number of rows and columns, large enough for a copy of the data to pay off.
const N: usize = 96;

/// Value halfway between 1 and the next bfloat16, hence not representable in bfloat16.
const HALFWAY: f32 = 1.0 + 1.0 / 256.0;
/// Smallest bfloat16 above 1.
const NEXT_BF16: f32 = 1.0 + 1.0 / 128.0;

/// Compiles the product of x (N, N) and a weight with these options, and runs it. x is filled with `HALFWAY`, the
/// weight with `NEXT_BF16`. Returns the blob and an element of the product.
fn product(options: &serde_json::Value) -> (String, f32) {
    let ty = TensorType::new(DType::F32, &[N, N]);
    let mut graph = Graph::new("region_0");
    let x = graph.push_input("x", ty.clone());
    let w = graph.push_constant(0, ty.clone());
    let y = graph.push_op("nn.dense", [ValueRef::of(x), ValueRef::of(w)], [], [ty]);
    graph.outputs.push(ValueRef::of(y));
    let constants = [plugin::floats(&[N, N], &vec![NEXT_BF16; N * N])];
    let compiled_region = Dnnl.compile(&Region { graph: &graph, constants: &constants, options }).unwrap();
    let services = plugin::services(1);
    // Options take effect only at compile time.
    let request = LoadRequest {
        symbol: "region_0",
        blob: &compiled_region.blob,
        constants: &constants,
        options: &json!({}),
        services: &services,
    };
    let region = JsonLoader.load(&request).unwrap();
    let output = run(&*region, &[N, N], &[HALFWAY; N * N]);
    assert!(output.iter().all(|&y| y == output[0]), "{output:?}");
    (String::from_utf8(compiled_region.blob.to_vec()).unwrap(), output[0])
}

#[test]
fn rounds_operands_if_option_is_set() {
    if library().is_none() {
        return;
    }
    let exact_value = N as f32 * HALFWAY * NEXT_BF16;
    for options in [json!({}), json!({"backend_options": {}}), json!({"backend_options": {"bf16": "false"}})] {
        let (blob, y) = product(&options);
        assert_eq!((y, blob.contains("bf16")), (exact_value, false), "{options}");
    }
    let (blob, y) = product(&json!({"backend_options": {"bf16": "true"}}));
    assert!(blob.contains("bf16"));
    // A tie rounds to even, which is 1. The sum is a float32: 96.75 is not representable in bfloat16.
    let rounded_value = if cpu::has_bf16() { N as f32 * NEXT_BF16 } else { exact_value };
    assert_eq!(y, rounded_value);
}

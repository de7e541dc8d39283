//! Plans for many sets of dimensions, and the memory in use after their release.

use super::library;
use super::region::{random_floats, run};
use crate::runtime::LoadedRegion;
use byoc_plugin_api::*;
use byoc_test_support::plugin;

/// Creates a region of two dense layers of width `n`, each followed by a ReLU, for an arbitrary number of rows.
fn dynamic_region(n: usize) -> LoadedRegion {
    let dynamic_type = || TensorType { dtype: DType::F32, dims: vec![Dim::Unknown("b".into()), Dim::Known(n)].into() };
    let mut graph = Graph::new("region_0");
    let mut y = ValueRef::of(graph.push_input("x", dynamic_type()));
    let mut constants = Vec::new();
    for layer in 0..2 {
        let w = ValueRef::of(graph.push_constant(layer, TensorType::new(DType::F32, &[n, n])));
        y = ValueRef::of(graph.push_op("nn.dense", [y, w], [], [dynamic_type()]));
        y = ValueRef::of(graph.push_op("nn.relu", [y], [], [dynamic_type()]));
        constants.push(plugin::floats(&[n, n], &random_floats(n * n, u64::from(layer))));
    }
    graph.outputs.push(y);
    LoadedRegion::new(graph, &constants, &plugin::services(1)).unwrap()
}

fn release(region: &LoadedRegion, plan: u64) -> Option<Vec<u8>> {
    region.query("plan.release", serde_json::json!({ "plan": plan }).to_string().as_bytes()).unwrap()
}

#[test]
fn releases_plans() {
    if library().is_none() {
        return;
    }
    let region = dynamic_region(32);
    let reported_bytes =
        |preparation: &Prepared| preparation.attrs.iter().find(|attr| attr.key == "bytes").map(|a| a.value.clone());
    let mut released_plans = std::collections::VecDeque::new();
    let mut packed_bytes = 0;
    for rows in 1..=40 {
        let preparation = region.prepare(&[&[rows, 32]]).unwrap();
        assert!(matches!(reported_bytes(&preparation), Some(AttrValue::Int(1..))), "{:?}", preparation.attrs);
        released_plans.push_back(preparation.plan);
        if released_plans.len() > 4 {
            assert!(release(&region, released_plans.pop_front().unwrap()).is_some());
        }
        assert_eq!(region.plans(), released_plans.len());
        packed_bytes = packed_bytes.max(region.packed_bytes());
    }
    assert!(packed_bytes > 0, "expected packed weights");
    // Preparing the same dimensions after their plan was released yields a new plan number and the same results.
    let x = random_floats(32, 7);
    let first_result = run(&region, &[1, 32], &x);
    assert!(region.prepare(&[&[1, 32]]).unwrap().plan >= 40);
    while let Some(plan) = released_plans.pop_front() {
        release(&region, plan);
    }
    let last_plan = region.prepare(&[&[1, 32]]).unwrap().plan;
    release(&region, last_plan);
    assert_eq!((region.plans(), region.packed_bytes()), (0, 0));
    assert_eq!(run(&region, &[1, 32], &x), first_result);
}

#[test]
fn rejects_invalid_queries() {
    if library().is_none() {
        return;
    }
    let region = dynamic_region(8);
    assert_eq!(region.query("something", b"").unwrap(), None);
    let error = region.query("plan.release", b"{}").unwrap_err();
    assert_eq!(error.message.as_str(), "plan.release: expected a plan number, found {}");
    // Releasing an unknown plan number has no effect.
    assert!(release(&region, 99).is_some());
    let inputs = [];
    let call = Call { inputs: &inputs, outputs: &mut [], workspace: &mut [], plan: 99 };
    assert_eq!(region.run(call).unwrap_err().message.as_str(), "the plan was never prepared, or has been released");
}

/// Prints the memory use of plans: `cargo test -p byoc-dnnl -- --ignored --nocapture memory_of_plans`.
#[test]
#[ignore = "measurement"]
fn memory_of_plans() {
    if library().is_none() {
        return;
    }
    let resident_bytes = || {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4
    };
    let max_plans = std::env::var("PLANS").map_or(64, |plans| plans.parse().unwrap());
    let region = dynamic_region(256);
    let mut released_plans = std::collections::VecDeque::new();
    for rows in 1..=2000 {
        released_plans.push_back(region.prepare(&[&[rows, 256]]).unwrap().plan);
        if released_plans.len() > max_plans {
            release(&region, released_plans.pop_front().unwrap());
        }
        if [1, 64, 128, 256, 500, 1000, 1500, 2000].contains(&rows) {
            println!("{rows} sizes, {} plans: {} KiB", region.plans(), resident_bytes());
        }
    }
}

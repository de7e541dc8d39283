//! Calls with random arguments and attributes: whatever an operator is given, it returns a result or an error.

use super::call;
use byoc_ir::ir::{AttrValue, Attrs};
use byoc_ir::op::{self, AttrKind, OpDef, Value};
use byoc_ir::tensor::Tensor;
use byoc_test_support::random::Random;
use std::panic::AssertUnwindSafe;

fn int(random: &mut Random) -> i64 {
    [-2, -1, 0, 1, 1, 2, 2, 3, 4, 8, 1 << 33, i64::MAX, i64::MIN][random.below(13)]
}

fn ints(random: &mut Random) -> AttrValue {
    match random.below(4) {
        0 => AttrValue::List((0..random.below(4)).map(|_| AttrValue::from([int(random), int(random)])).collect()),
        _ => AttrValue::ints((0..random.below(5)).map(|_| int(random)).collect::<Vec<_>>()),
    }
}

fn attribute(random: &mut Random, kind: AttrKind) -> AttrValue {
    const WORDS: [&str; 12] =
        ["NCHW", "NHWC", "OIHW", "NCHW4c", "linear", "nearest_neighbor", "none", "REFLECT", "xy", "add", "ij", ""];
    match kind {
        AttrKind::Int => int(random).into(),
        AttrKind::Float => [0.0, -1.5, 0.5, 2.0, 1e300, f64::NAN][random.below(6)].into(),
        AttrKind::Bool => (random.below(2) == 0).into(),
        AttrKind::Str => WORDS[random.below(12)].into(),
        AttrKind::DType => ["float32", "int8", "uint8", "int64", "bool", ""][random.below(6)].into(),
        AttrKind::Ints | AttrKind::IntOrInts => ints(random),
        AttrKind::Floats => AttrValue::List((0..random.below(3)).map(|_| AttrValue::Float(1.5)).collect()),
    }
}

fn tensor(random: &mut Random) -> Tensor {
    let shape: Vec<usize> = (0..random.below(6)).map(|_| [0, 1, 2, 2, 3, 4][random.below(6)]).collect();
    let shape = if random.below(12) == 0 { vec![10] } else { shape };
    let count = shape.iter().product();
    let values: Vec<i64> =
        (0..count).map(|_| if random.below(20) == 0 { int(random) } else { random.below(4) as i64 }).collect();
    match random.below(5) {
        0 | 1 => Tensor::from_slice(&shape, &values),
        2 => Tensor::from_slice(&shape, &values.iter().map(|&v| v as u64).collect::<Vec<_>>()),
        3 => Tensor::from_slice(&shape, &values.iter().map(|&v| v as i32).collect::<Vec<_>>()),
        _ => Tensor::from_slice(&shape, &values.iter().map(|&v| v as f32).collect::<Vec<_>>()),
    }
}

/// Draws an argument, which often has the type or the values of an earlier one.
fn argument(random: &mut Random, earlier: &[Value]) -> Value {
    match random.below(6) {
        0 => Value::Tuple((0..random.below(4)).map(|_| tensor(random)).collect()),
        1 | 2 if !earlier.is_empty() => earlier[random.below(earlier.len())].clone(),
        _ => Value::Tensor(tensor(random)),
    }
}

/// Number of calls of each operator.
const CALLS: usize = 300;

fn random_call(def: &OpDef, random: &mut Random) -> Result<Vec<Tensor>, String> {
    let mut args = Vec::new();
    for _ in 0..def.arity.min + random.below(def.arity.max - def.arity.min + 1) {
        let arg = argument(random, &args);
        args.push(arg);
    }
    let given: Vec<_> =
        def.attrs.iter().filter(|attr| attr.default == op::Default::Required || random.below(3) == 0).collect();
    let attrs = Attrs::new(given.into_iter().map(|attr| (attr.name, attribute(random, attr.kind))));
    call(def.name, &attrs, &args)
}

#[test]
fn random_calls_return_results_or_errors() {
    let (mut results, mut random, mut panics) = (0, Random::new(7), Vec::new());
    for def in op::table() {
        for i in 0..CALLS {
            let seed = random.bits();
            let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| random_call(def, &mut Random::new(seed))));
            if outcome.is_err() {
                panics.push(format!("{} in call {i}", def.name));
                break;
            }
            results += usize::from(outcome.is_ok_and(|outcome| outcome.is_ok()));
        }
    }
    assert!(panics.is_empty(), "panics: {}", panics.join(", "));
    assert!(results > 2000, "expected more than 2000 results, found {results}");
}

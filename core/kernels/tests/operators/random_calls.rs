//! Calls with random arguments and attributes: whatever an operator is given, it returns a result or an error.

use super::call;
use byoc_ir::ir::{AttrValue, Attrs};
use byoc_ir::op::{self, AttrKind, OpDef, Value};
use byoc_ir::tensor::Tensor;

/// Linear congruential generator of Knuth's MMIX.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }

    fn int(&mut self) -> i64 {
        [-2, -1, 0, 1, 1, 2, 2, 3, 4, 8, 1 << 33, i64::MAX, i64::MIN][self.below(13)]
    }

    fn ints(&mut self) -> AttrValue {
        match self.below(4) {
            0 => AttrValue::List((0..self.below(4)).map(|_| AttrValue::from([self.int(), self.int()])).collect()),
            _ => AttrValue::ints((0..self.below(5)).map(|_| self.int()).collect::<Vec<_>>()),
        }
    }

    fn attribute(&mut self, kind: AttrKind) -> AttrValue {
        const WORDS: [&str; 12] =
            ["NCHW", "NHWC", "OIHW", "NCHW4c", "linear", "nearest_neighbor", "none", "REFLECT", "xy", "add", "ij", ""];
        match kind {
            AttrKind::Int => self.int().into(),
            AttrKind::Float => [0.0, -1.5, 0.5, 2.0, 1e300, f64::NAN][self.below(6)].into(),
            AttrKind::Bool => (self.below(2) == 0).into(),
            AttrKind::Str => WORDS[self.below(12)].into(),
            AttrKind::DType => ["float32", "int8", "uint8", "int64", "bool", ""][self.below(6)].into(),
            AttrKind::Ints | AttrKind::IntOrInts => self.ints(),
            AttrKind::Floats => AttrValue::List((0..self.below(3)).map(|_| AttrValue::Float(1.5)).collect()),
        }
    }

    fn tensor(&mut self) -> Tensor {
        let shape: Vec<usize> = (0..self.below(6)).map(|_| [0, 1, 2, 2, 3, 4][self.below(6)]).collect();
        let shape = if self.below(12) == 0 { vec![10] } else { shape };
        let count = shape.iter().product();
        let values: Vec<i64> =
            (0..count).map(|_| if self.below(20) == 0 { self.int() } else { self.below(4) as i64 }).collect();
        match self.below(5) {
            0 | 1 => Tensor::from_slice(&shape, &values),
            2 => Tensor::from_slice(&shape, &values.iter().map(|&v| v as u64).collect::<Vec<_>>()),
            3 => Tensor::from_slice(&shape, &values.iter().map(|&v| v as i32).collect::<Vec<_>>()),
            _ => Tensor::from_slice(&shape, &values.iter().map(|&v| v as f32).collect::<Vec<_>>()),
        }
    }

    /// Draws an argument, which often has the type or the values of an earlier one.
    fn argument(&mut self, earlier: &[Value]) -> Value {
        match self.below(6) {
            0 => Value::Tuple((0..self.below(4)).map(|_| self.tensor()).collect()),
            1 | 2 if !earlier.is_empty() => earlier[self.below(earlier.len())].clone(),
            _ => Value::Tensor(self.tensor()),
        }
    }
}

/// Number of calls of each operator.
const CALLS: usize = 300;

fn random_call(def: &OpDef, random: &mut Random) -> Result<Vec<Tensor>, String> {
    let mut args = Vec::new();
    for _ in 0..def.arity.min + random.below(def.arity.max - def.arity.min + 1) {
        let arg = random.argument(&args);
        args.push(arg);
    }
    let given: Vec<_> =
        def.attrs.iter().filter(|attr| attr.default == op::Default::Required || random.below(3) == 0).collect();
    let attrs = Attrs::new(given.into_iter().map(|attr| (attr.name, random.attribute(attr.kind))));
    call(def.name, &attrs, &args)
}

#[test]
fn random_calls_return_results_or_errors() {
    let (mut results, mut random, mut panics) = (0, Random(7), Vec::new());
    for def in op::table() {
        for i in 0..CALLS {
            let seed = random.0;
            let outcome = std::panic::catch_unwind(|| random_call(def, &mut Random(seed)));
            if outcome.is_err() {
                panics.push(format!("{} in call {i}", def.name));
                break;
            }
            results += usize::from(outcome.is_ok_and(|outcome| outcome.is_ok()));
            random.below(2);
        }
    }
    assert!(panics.is_empty(), "panics: {}", panics.join(", "));
    assert!(results > 2000, "expected more than 2000 results, found {results}");
}

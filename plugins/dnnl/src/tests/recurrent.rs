//! Recognition of GRU steps in the forms that frontends and exporters emit, and rejection of similar graphs.

use crate::cell::CellKind;
use crate::cell::gru::Part;
use crate::ir::{Kind, RegionIr};
use crate::library::ffi;
use byoc_plugin_api::*;
use byoc_test_support::plugin;

const BATCH: usize = 2;
const HIDDEN: usize = 8;

/// Graph under construction, in which every value is a matrix.
struct Net {
    graph: Graph,
    constants: Vec<Constant>,
}

/// Matrix and its number of columns.
type Matrix = (ValueRef, usize);

impl Net {
    fn new() -> Net {
        Net { graph: Graph::new("region_0"), constants: Vec::new() }
    }

    fn ty(columns: usize) -> TensorType {
        TensorType::new(DType::F32, &[BATCH, columns])
    }

    fn input(&mut self, columns: usize) -> Matrix {
        let name = format!("x{}", self.graph.inputs.len());
        (ValueRef::of(self.graph.push_input(&name, Net::ty(columns))), columns)
    }

    fn constant(&mut self, shape: &[usize]) -> ValueRef {
        self.constants.push(plugin::floats(shape, &vec![1.0; shape.iter().product()]));
        ValueRef::of(self.graph.push_constant(self.constants.len() as u32 - 1, TensorType::new(DType::F32, shape)))
    }

    fn op(&mut self, name: &str, inputs: &[Matrix], columns: usize, attrs: Vec<Attr>) -> Matrix {
        let inputs: Vec<ValueRef> = inputs.iter().map(|(value, _)| *value).collect();
        (ValueRef::of(self.graph.push_op(name, inputs, attrs, [Net::ty(columns)])), columns)
    }

    fn dense(&mut self, x: Matrix, columns: usize) -> Matrix {
        let weight = self.constant(&[columns, x.1]);
        self.op("nn.dense", &[x, (weight, 0)], columns, vec![])
    }

    fn split(&mut self, x: Matrix, parts: usize) -> Vec<Matrix> {
        let attrs = [Attr::new("indices_or_sections", parts as i64), Attr::new("axis", 1i64)];
        let columns = x.1 / parts;
        let node = self.graph.push_op("split", [x.0], attrs, vec![Net::ty(columns); parts]);
        (0..parts).map(|i| (ValueRef { node, index: i as u32 }, columns)).collect()
    }

    fn constant_one(&mut self) -> Matrix {
        (self.constant(&[]), 0)
    }

    fn sum(&mut self, a: Matrix, b: Matrix) -> Matrix {
        self.op("add", &[a, b], a.1, vec![])
    }

    fn product(&mut self, a: Matrix, b: Matrix) -> Matrix {
        self.op("multiply", &[a, b], a.1, vec![])
    }

    fn call(&mut self, name: &str, x: Matrix) -> Matrix {
        self.op(name, &[x], x.1, vec![])
    }

    /// Adds `(1 - z) * n + products.0 * products.1`.
    fn interpolate(&mut self, z: Matrix, n: Matrix, products: (Matrix, Matrix)) -> Matrix {
        let ones = self.constant_one();
        let complement = self.op("subtract", &[ones, z], z.1, vec![]);
        let (candidate_term, products) = (self.product(complement, n), self.product(products.0, products.1));
        self.sum(candidate_term, products)
    }

    /// Returns the operators of the translated graph.
    fn operator_kinds(mut self, outputs: &[Matrix]) -> Vec<Kind> {
        self.graph.outputs.extend(outputs.iter().map(|(value, _)| *value));
        let shapes: Vec<Vec<i64>> = self
            .graph
            .inputs
            .iter()
            .map(|input| input.ty.shape().unwrap().iter().map(|&d| d as i64).collect())
            .collect();
        let ir = RegionIr::of(&self.graph, &self.constants, &shapes).unwrap();
        ir.ops.into_iter().map(|op| op.kind).filter(|kind| !kind.is_view()).collect()
    }
}

/// Returns the cells among these operators, in order, with their number of operands. Asserts that all other operators
/// are matrix products or bias additions.
fn loops(kinds: &[Kind]) -> Vec<(Part, usize)> {
    let other_kinds = kinds
        .iter()
        .filter(|kind| !matches!(kind, Kind::Cell(_) | Kind::MatMul { .. } | Kind::Binary(ffi::BINARY_ADD)));
    assert_eq!(other_kinds.collect::<Vec<_>>(), Vec::<&Kind>::new(), "{kinds:?}");
    kinds
        .iter()
        .filter_map(|kind| match kind {
            Kind::Cell(CellKind::Gru(gru)) => Some((gru.part, gru.present.iter().filter(|present| **present).count())),
            _ => None,
        })
        .collect()
}

/// Adds the update gate and the candidate of a step whose reset gate is applied after the recurrent product; `gate` and
/// `activation` are the functions of the update gate and of the candidate.
fn reset_after_product(net: &mut Net, x: Matrix, h: Matrix, [gate, activation]: [&str; 2]) -> [Matrix; 2] {
    let (x, product) = (net.dense(x, 3 * HIDDEN), net.dense(h, 3 * HIDDEN));
    let (x, product) = (net.split(x, 3), net.split(product, 3));
    let z = net.sum(x[0], product[0]);
    let z = net.call(gate, z);
    let r = net.sum(x[1], product[1]);
    let r = net.call("sigmoid", r);
    let gated_product = net.product(r, product[2]);
    let n = net.sum(x[2], gated_product);
    [z, net.call(activation, n)]
}

#[test]
fn reset_after_product_is_one_loop_per_step() {
    let mut net = Net::new();
    let (x, mut h) = (net.input(5), net.input(HIDDEN));
    for _ in 0..3 {
        let [z, n] = reset_after_product(&mut net, x, h, ["sigmoid", "tanh"]);
        h = net.interpolate(z, n, (z, h));
    }
    let kinds = net.operator_kinds(&[h]);
    assert_eq!(loops(&kinds), [(Part::Whole, 7); 3]);
    assert_eq!(kinds.len(), 3 * 3, "expected two products and a loop per step, found {kinds:?}");
}

#[test]
fn recognizes_equivalent_form() {
    let mut net = Net::new();
    let (x, h) = (net.input(5), net.input(HIDDEN));
    let [z, n] = reset_after_product(&mut net, x, h, ["sigmoid", "tanh"]);
    let difference = net.op("subtract", &[h, n], HIDDEN, vec![]);
    let gated_difference = net.product(difference, z);
    let h = net.sum(gated_difference, n);
    assert_eq!(loops(&net.operator_kinds(&[h])), [(Part::Whole, 7)]);
}

#[test]
fn reset_before_product_is_two_loops_per_step() {
    let mut net = Net::new();
    let (x, h) = (net.input(5), net.input(HIDDEN));
    let x = net.dense(x, 3 * HIDDEN);
    let slice = |net: &mut Net, x: Matrix, start: usize, end: usize| {
        let ints = |value: usize| vec![value as i64];
        let attrs = vec![Attr::new("begin", ints(start)), Attr::new("end", ints(end)), Attr::new("axes", ints(1))];
        net.op("strided_slice", &[x], end - start, attrs)
    };
    let (gates, candidate) = (slice(&mut net, x, 0, 2 * HIDDEN), slice(&mut net, x, 2 * HIDDEN, 3 * HIDDEN));
    let product = net.dense(h, 2 * HIDDEN);
    let gates = net.sum(gates, product);
    let gates = net.call("sigmoid", gates);
    let gates = net.split(gates, 2);
    let state_term = net.product(gates[1], h);
    let product = net.dense(state_term, HIDDEN);
    let n = net.sum(candidate, product);
    let n = net.call("tanh", n);
    let h = net.interpolate(gates[0], n, (gates[0], h));
    let kinds = net.operator_kinds(&[h]);
    assert_eq!(loops(&kinds), [(Part::Reset, 3), (Part::Mix, 5)]);
    assert_eq!(kinds.len(), 3 + 2, "expected three products and two loops, found {kinds:?}");
}

#[test]
fn first_step_has_no_state() {
    let mut net = Net::new();
    let x = net.input(5);
    let x = net.dense(x, 3 * HIDDEN);
    let x = net.split(x, 3);
    // Without a state, only the bias of the recurrent product remains: one row for the whole batch.
    let bias = [(); 3].map(|()| (net.constant(&[1, HIDDEN]), HIDDEN));
    let z = net.sum(x[0], bias[0]);
    let z = net.call("sigmoid", z);
    let r = net.sum(x[1], bias[1]);
    let r = net.call("sigmoid", r);
    let gated_product = net.product(r, bias[2]);
    let n = net.sum(x[2], gated_product);
    let n = net.call("tanh", n);
    let ones = net.constant_one();
    let complement = net.op("subtract", &[ones, z], HIDDEN, vec![]);
    let h = net.product(complement, n);
    assert_eq!(loops(&net.operator_kinds(&[h])), [(Part::Whole, 6)]);
}

#[test]
fn does_not_match_similar_graphs() {
    let is_recognized = |make: fn(&mut Net) -> Matrix| {
        let mut net = Net::new();
        let h = make(&mut net);
        net.operator_kinds(&[h]).iter().any(|kind| {
            // Half a step may match as well; a complete step has a state operand.
            matches!(kind, Kind::Cell(CellKind::Gru(gru)) if gru.present[if gru.part == Part::Whole { 6 } else { 4 }])
        })
    };
    assert!(is_recognized(|net| {
        let (x, h) = (net.input(5), net.input(HIDDEN));
        let [z, n] = reset_after_product(net, x, h, ["sigmoid", "tanh"]);
        net.interpolate(z, n, (z, h))
    }));
    // The state and the candidate have different gates.
    assert!(!is_recognized(|net| {
        let (x, h) = (net.input(5), net.input(HIDDEN));
        let [z, n] = reset_after_product(net, x, h, ["sigmoid", "tanh"]);
        let [reset, _] = reset_after_product(net, x, h, ["sigmoid", "tanh"]);
        net.interpolate(z, n, (reset, h))
    }));
    // Different activation functions.
    assert!(!is_recognized(|net| {
        let (x, h) = (net.input(5), net.input(HIDDEN));
        let [z, n] = reset_after_product(net, x, h, ["tanh", "tanh"]);
        net.interpolate(z, n, (z, h))
    }));
    assert!(!is_recognized(|net| {
        let (x, h) = (net.input(5), net.input(HIDDEN));
        let [z, n] = reset_after_product(net, x, h, ["sigmoid", "sigmoid"]);
        net.interpolate(z, n, (z, h))
    }));
    // The candidate is multiplied by `2 - z`.
    assert!(!is_recognized(|net| {
        let (x, h) = (net.input(5), net.input(HIDDEN));
        let [z, n] = reset_after_product(net, x, h, ["sigmoid", "tanh"]);
        let (ones, other_ones) = (net.constant_one(), net.constant_one());
        let complement = net.op("subtract", &[ones, z], HIDDEN, vec![]);
        let complement = net.op("add", &[complement, other_ones], HIDDEN, vec![]);
        let (candidate_term, state_term) = (net.product(complement, n), net.product(z, h));
        net.sum(candidate_term, state_term)
    }));
    // The difference subtracts a value other than the candidate.
    assert!(!is_recognized(|net| {
        let (x, h) = (net.input(5), net.input(HIDDEN));
        let [z, n] = reset_after_product(net, x, h, ["sigmoid", "tanh"]);
        let difference = net.op("subtract", &[h, z], HIDDEN, vec![]);
        let gated_difference = net.product(difference, z);
        net.sum(gated_difference, n)
    }));
    // The gates are not columns of one matrix.
    assert!(!is_recognized(|net| {
        let (z, n, h) = (net.input(HIDDEN), net.input(HIDDEN), net.input(HIDDEN));
        let (z, n) = (net.call("sigmoid", z), net.call("tanh", n));
        net.interpolate(z, n, (z, h))
    }));
}

//! Minimal host for the tests: records plugin messages, and executes `nn.relu` and `add` on float32.

use byoc_plugin_api::{
    Call, Constant, ConstantSource, DType, Error, Executable, Graph, HostServices, NodeKind, Prepared, Result,
    TensorType, ValueRef,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use tracing::Level;

/// Recorded plugin messages.
#[derive(Default)]
pub struct Recording {
    pub lines: Vec<(Level, String, String)>,
    pub events: Vec<(String, Value)>,
    pub counters: BTreeMap<String, u64>,
}

/// Host for the tests.
#[derive(Clone, Default)]
pub struct TestHost {
    pub recording: Arc<Mutex<Recording>>,
    /// Set to cancel the current work.
    pub cancelled: Arc<AtomicBool>,
}

impl HostServices for TestHost {
    fn num_threads(&self) -> usize {
        4
    }

    fn parallel_for(&self, count: usize, task: &(dyn Fn(usize) + Sync)) {
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || (thread..count).step_by(4).for_each(task));
            }
        });
    }

    fn event(&self, name: &str, fields: &Value) {
        self.recording.lock().unwrap().events.push((name.to_owned(), fields.clone()));
    }

    fn counter(&self, name: &str, amount: u64) {
        *self.recording.lock().unwrap().counters.entry(name.to_owned()).or_default() += amount;
    }

    fn log_level(&self) -> Option<Level> {
        Some(Level::INFO)
    }

    fn log(&self, level: Level, target: &str, message: &str) {
        self.recording.lock().unwrap().lines.push((level, target.to_owned(), message.to_owned()));
    }

    fn cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    fn reference(&self, graph: &Graph, constants: &[Constant]) -> Result<Box<dyn Executable>> {
        for (name, ..) in graph.operators() {
            if !matches!(name, "nn.relu" | "add") {
                return Err(Error::new(format!("this host has no {name}")));
            }
        }
        Ok(Box::new(Reference { graph: graph.clone(), constants: constants.to_vec() }))
    }
}

struct Reference {
    graph: Graph,
    constants: Vec<Constant>,
}

impl Executable for Reference {
    fn prepare(&self, inputs: &[&[usize]]) -> Result<Prepared> {
        Ok(Prepared::exact(self.graph.outputs.iter().map(|_| inputs[0])))
    }

    fn run(&self, call: Call<'_, '_>) -> Result<()> {
        let inputs: Vec<Vec<f32>> = call.inputs.iter().map(|input| input.as_slice().to_vec()).collect();
        let values = evaluate(&self.graph, &self.constants, &inputs);
        for (output, value) in call.outputs.iter_mut().zip(values) {
            output.as_mut_slice().copy_from_slice(&value);
        }
        Ok(())
    }
}

fn evaluate(graph: &Graph, constants: &[Constant], inputs: &[Vec<f32>]) -> Vec<Vec<f32>> {
    let mut values: Vec<Vec<f32>> = Vec::new();
    for node in &graph.nodes {
        let read = |index: usize| &values[node.inputs[index].node as usize];
        let value = match &node.kind {
            NodeKind::Input(index) => inputs[*index as usize].clone(),
            NodeKind::Constant(index) => constants[*index as usize].tensor().as_slice().to_vec(),
            NodeKind::Op(name) if name == "nn.relu" => read(0).iter().map(|x| x.max(0.0)).collect(),
            NodeKind::Op(_) => read(0).iter().zip(read(1)).map(|(x, y)| x + y).collect(),
            NodeKind::Composite(composite) => {
                let inputs: Vec<Vec<f32>> = (0..node.inputs.len()).map(|index| read(index).clone()).collect();
                evaluate(&composite.body, constants, &inputs).remove(0)
            }
        };
        values.push(value);
    }
    graph.outputs.iter().map(|output| values[output.node as usize].clone()).collect()
}

/// Constant data that a test owns, and a flag that is set when the data is dropped.
pub struct Bytes {
    values: Vec<f32>,
    is_dropped: Arc<Mutex<bool>>,
}

impl ConstantSource for Bytes {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the slice borrows `self.values`, and all bytes of a float are initialized.
        unsafe { std::slice::from_raw_parts(self.values.as_ptr().cast(), size_of_val(&self.values[..])) }
    }

    fn digest(&self) -> String {
        format!("{:?}", self.values)
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        *self.is_dropped.lock().unwrap() = true;
    }
}

/// Creates a float32 constant, and a flag that is set when its data is dropped.
pub fn constant(name: &str, shape: &[usize], values: &[f32]) -> (Constant, Arc<Mutex<bool>>) {
    let is_dropped = Arc::new(Mutex::new(false));
    let source = Bytes { values: values.to_vec(), is_dropped: is_dropped.clone() };
    (Constant::new(name, DType::F32, shape, source), is_dropped)
}

/// Returns the graph of `relu(x + constant 0)` on tensors of shape `shape`, with the addition and the relu in a
/// composite.
pub fn add_relu(symbol: &str, shape: &[usize]) -> Graph {
    let ty = TensorType::new(DType::F32, shape);
    let mut body = Graph::new("template.add_relu");
    let x = body.push_input("a", ty.clone());
    let y = body.push_input("b", ty.clone());
    let sum = body.push_op("add", [ValueRef::of(x), ValueRef::of(y)], [], [ty.clone()]);
    let relu = body.push_op("nn.relu", [ValueRef::of(sum)], [], [ty.clone()]);
    body.outputs.push(ValueRef::of(relu));

    let mut graph = Graph::new(symbol);
    let x = graph.push_input("x", ty.clone());
    let c = graph.push_constant(0, ty);
    let node = byoc_plugin_api::Node::composite("template.add_relu", body, [ValueRef::of(x), ValueRef::of(c)]);
    let composite = graph.push(node);
    graph.outputs.push(ValueRef::of(composite));
    graph
}

/// Returns a graph that applies one operator to one float32 input.
pub fn single_op_graph(symbol: &str, operator: &str, shape: &[usize]) -> Graph {
    let ty = TensorType::new(DType::F32, shape);
    let mut graph = Graph::new(symbol);
    let x = graph.push_input("x", ty.clone());
    let y = graph.push_op(operator, [ValueRef::of(x)], [], [ty]);
    graph.outputs.push(ValueRef::of(y));
    graph
}

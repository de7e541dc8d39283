//! The model under construction: open graphs, initializers, names and refused operators.

use super::Options;
use super::names::{Base, Names};
use super::units::Units;
use super::values::{Operand, OperandKey, Strings, Value, tensor_key};
use crate::proto::{AttributeProto, FunctionProto, GraphProto, NodeProto, TensorProto};
use crate::sources;
use crate::tensor::STRING;
use byoc_ir::ir::{Expr, ExprId, Module, OriginId, Origins, Type};
use byoc_ir::tensor::{DType, Tensor};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;

/// Reason why something has no form in ONNX.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// Expected and found values.
    pub reason: String,
    /// Lowest operator set that has the form, if a later one has it.
    pub since: Option<i64>,
    /// True if an operand was refused, which is reported there.
    pub is_consequence: bool,
}

impl Refusal {
    /// Creates a refusal for every operator set.
    pub fn new(reason: impl Into<String>) -> Refusal {
        Refusal { reason: reason.into(), since: None, is_consequence: false }
    }

    /// Creates the refusal of an operator that reads what was refused before.
    pub fn consequence() -> Refusal {
        Refusal { is_consequence: true, ..Refusal::new("an operand that was refused") }
    }
}

/// Result of writing a part of the model.
pub type Result<T, E = Refusal> = std::result::Result<T, E>;

/// Refused operator: the first node that has it, and the number of all.
pub struct Fault {
    pub label: String,
    pub count: usize,
    pub refusal: Refusal,
}

/// Graph under construction.
#[derive(Default)]
pub struct Graph {
    pub nodes: Vec<NodeProto>,
    /// Results of the nodes.
    pub produced: HashSet<Rc<str>>,
    /// Number that no other graph has.
    pub serial: usize,
}

/// Maximum nesting depth of subgraphs; each takes three levels of the hundred that readers of protobuf accept.
const MAX_NESTING: usize = 30;
/// Maximum nesting depth of calls of functions.
const MAX_CALLS: usize = 64;
/// Maximum number of expressions that calls of functions add to those of the module.
const MAX_EXPANSION: usize = 1 << 22;

/// Writer of a model.
pub struct Writer<'m> {
    pub module: &'m Module,
    pub units: Units<'m>,
    pub options: &'m Options,
    pub opset: i64,
    pub names: Names,
    /// Open graphs, innermost last.
    pub graphs: Vec<Graph>,
    /// Weights by name, in order of first use.
    pub initializers: Vec<(Rc<str>, Arc<Tensor>)>,
    /// Initializers that are strings.
    pub string_initializers: Vec<TensorProto>,
    pub functions: Vec<FunctionProto>,
    /// Domains of operators besides the standard one, with their versions.
    pub domains: BTreeMap<&'static str, i64>,
    /// Constants that are the spans of strings.
    pub string_constants: HashMap<ExprId, Rc<Strings>>,
    /// Values that have strings.
    pub string_names: HashSet<Rc<str>>,
    /// Refused operators, by name and reason.
    pub faults: BTreeMap<(String, String), Fault>,
    /// Functions that are being written where they are called.
    pub calls: Vec<ExprId>,
    /// Results of casts that another cast undoes: the value before, and its type.
    pub casts: HashMap<Rc<str>, (Operand, DType)>,
    /// Results of Reshape, with operand and its dimensions.
    pub reshaped: HashMap<Rc<str>, (Operand, Vec<i64>)>,
    /// Results of Transpose, with operand and permutation.
    pub transposed: HashMap<Rc<str>, (Operand, Vec<usize>)>,
    /// Nodes that equal ones replace, by graph: conversions of quantized values.
    pub shared: HashMap<(usize, &'static str, Vec<OperandKey>, i64), Operand>,
    /// Real values of accumulators that have no integer form in the model, by expression.
    pub reals: HashMap<ExprId, Operand>,
    /// Scale and zero point of quantized values, by expression.
    pub quantized: HashMap<ExprId, (Operand, Operand)>,
    /// First results of operators without the rows that pad them, by call.
    pub unpadded: HashMap<ExprId, Operand>,
    /// Expression that is being written.
    pub current: Option<ExprId>,
    /// Expressions of the nodes, by their temporary names.
    pub node_exprs: HashMap<Rc<str>, ExprId>,
    /// Operators that the one before them has done.
    pub absorbed: HashSet<ExprId>,
    values: HashMap<ExprId, Value>,
    initializer_names: HashMap<OperandKey, Rc<str>>,
    serials: usize,
    written: usize,
}

impl<'m> Writer<'m> {
    pub fn new(module: &'m Module, options: &'m Options, opset: i64) -> Writer<'m> {
        Writer {
            module,
            units: Units::new(module),
            options,
            opset,
            names: Names::default(),
            graphs: vec![Graph::default()],
            initializers: Vec::new(),
            string_initializers: Vec::new(),
            functions: Vec::new(),
            domains: BTreeMap::new(),
            string_constants: HashMap::new(),
            string_names: HashSet::new(),
            faults: BTreeMap::new(),
            calls: Vec::new(),
            casts: HashMap::new(),
            reshaped: HashMap::new(),
            transposed: HashMap::new(),
            shared: HashMap::new(),
            reals: HashMap::new(),
            quantized: HashMap::new(),
            unpadded: HashMap::new(),
            current: None,
            node_exprs: HashMap::new(),
            absorbed: HashSet::new(),
            values: HashMap::new(),
            initializer_names: HashMap::new(),
            serials: 0,
            written: 0,
        }
    }

    /// Counts an expression that is being written.
    pub fn count(&mut self) -> Result<()> {
        self.written += 1;
        if self.written > self.module.nodes.len().saturating_add(MAX_EXPANSION) {
            return Err(Refusal::new(format!("expected calls that expand to at most {MAX_EXPANSION} expressions")));
        }
        Ok(())
    }

    /// Sets the value of an expression.
    pub fn set(&mut self, id: ExprId, value: Value) {
        self.values.insert(id, value);
    }

    /// Returns the value of an expression that has been written.
    pub fn value(&self, id: ExprId) -> Result<Value> {
        match self.module.expr(id) {
            Expr::Constant(tensor) => Ok(Value::Tensor(match self.string_constants.get(&id) {
                Some(strings) => Operand::Strings(strings.clone()),
                None => Operand::Constant(tensor.clone()),
            })),
            Expr::Global(name) => {
                let function = self.module.globals.get(name).copied();
                function.map(Value::Function).ok_or_else(|| Refusal::new(format!("unknown function @{name}")))
            }
            _ => {
                self.values.get(&id).cloned().ok_or_else(|| Refusal::new("a value that is not defined before its use"))
            }
        }
    }

    /// Returns the tensors of an expression, with nested tuples flattened.
    pub fn leaves(&self, id: ExprId) -> Result<Vec<Operand>> {
        self.value(id)?.leaves().ok_or_else(|| Refusal::new("a function as a value"))
    }

    /// Returns the types of the tensors of an expression, with nested tuples flattened.
    pub fn leaf_types(&self, id: ExprId) -> Vec<&'m Type> {
        let mut types = Vec::new();
        self.module.ty(id).walk(&mut |part, _| {
            let is_tuple = matches!(part, Type::Tuple(_));
            if !is_tuple {
                types.push(part);
            }
            is_tuple
        });
        types
    }

    /// Returns the name of the model's operator from which an expression originates; otherwise `default`.
    pub fn label(&self, id: ExprId, default: &str) -> String {
        let origin: OriginId = self.module.nodes[id].origin;
        let source = self.module.origins.get(origin).first();
        match source.filter(|_| origin != Origins::none()) {
            Some(&source) => self.module.origins.sources()[source].name.to_string(),
            None => default.to_owned(),
        }
    }

    /// Returns the operators of the model that an expression combines; empty for a single one.
    pub fn sources(&self, id: ExprId) -> String {
        sources::print(self.module, self.module.nodes[id].origin)
    }

    /// Records a refused operator.
    pub fn refuse(&mut self, operator: &str, label: String, refusal: Refusal) {
        if refusal.is_consequence {
            return;
        }
        let key = (operator.to_owned(), refusal.reason.clone());
        self.faults.entry(key).or_insert(Fault { label, count: 0, refusal }).count += 1;
    }

    /// Opens a graph.
    ///
    /// # Errors
    /// If graphs are nested too deeply.
    pub fn open(&mut self) -> Result<()> {
        if self.graphs.len() > MAX_NESTING {
            return Err(Refusal::new(format!("expected at most {MAX_NESTING} nested subgraphs, found more")));
        }
        self.serials += 1;
        self.graphs.push(Graph { serial: self.serials, ..Graph::default() });
        Ok(())
    }

    /// Closes the innermost graph.
    pub fn close(&mut self) -> Graph {
        self.graphs.pop().unwrap_or_default()
    }

    /// Returns the innermost graph.
    pub fn graph(&mut self) -> &mut Graph {
        if self.graphs.is_empty() {
            self.graphs.push(Graph::default());
        }
        let last = self.graphs.len() - 1;
        &mut self.graphs[last]
    }

    /// Enters a function at a call.
    ///
    /// # Errors
    /// If the function calls itself, or calls are nested too deeply.
    pub fn enter(&mut self, function: ExprId) -> Result<()> {
        if self.calls.contains(&function) {
            return Err(Refusal::new("a function that calls itself, other than as a while loop"));
        }
        if self.calls.len() == MAX_CALLS {
            return Err(Refusal::new(format!("expected at most {MAX_CALLS} nested calls, found more")));
        }
        self.calls.push(function);
        Ok(())
    }

    /// Appends a node to the innermost graph, and returns its results.
    pub fn node(&mut self, label: &str, op: Operator<'_>, inputs: &[Operand], outputs: usize) -> Vec<Operand> {
        let name = self.names.temporary(Base::Label(label.to_owned()));
        let input = inputs.iter().map(|input| self.input_name(input)).collect();
        let mut results = vec![name.clone()];
        for i in 1..outputs {
            results.push(self.names.temporary(Base::Result(name.clone(), i)));
        }
        if let Some(current) = self.current {
            self.node_exprs.insert(name.clone(), current);
        }
        let graph = self.graph();
        graph.produced.extend(results.iter().cloned());
        graph.nodes.push(NodeProto {
            input,
            output: results.iter().map(|name| name.to_string()).collect(),
            name: name.to_string(),
            op_type: op.op_type.to_owned(),
            domain: op.domain.to_owned(),
            attribute: op.attributes,
            doc_string: op.doc_string,
        });
        results.into_iter().map(Operand::Name).collect()
    }

    /// Makes a constant the bias of the node that has just been appended to the innermost graph. Returns false if the value
    /// is not the result of that node, or the node cannot take a bias.
    pub fn add_bias(&mut self, value: &Operand, bias: &Operand) -> bool {
        let Operand::Name(value) = value else { return false };
        let last = self.graph().nodes.last();
        let takes_bias = |node: &&NodeProto| {
            let is_linear = ["Conv", "ConvTranspose", "Gemm"].contains(&node.op_type.as_str());
            is_linear && node.input.len() == 2 && node.output.first().is_some_and(|output| **output == **value)
        };
        if !last.as_ref().is_some_and(takes_bias) {
            return false;
        }
        let input = self.input_name(bias);
        if let Some(node) = self.graph().nodes.last_mut() {
            node.input.push(input);
        }
        true
    }

    fn input_name(&mut self, input: &Operand) -> String {
        match input {
            Operand::Absent | Operand::Bytes | Operand::Refused => String::new(),
            Operand::Name(name) => name.to_string(),
            Operand::Constant(tensor) => {
                let key = tensor_key(tensor);
                if let Some(name) = self.initializer_names.get(&key) {
                    return name.to_string();
                }
                let name = self.names.temporary(Base::Input);
                self.initializer_names.insert(key, name.clone());
                self.initializers.push((name.clone(), tensor.clone()));
                name.to_string()
            }
            Operand::Strings(strings) => {
                let key = input.key();
                if let Some(name) = self.initializer_names.get(&key) {
                    return name.to_string();
                }
                let name = self.names.temporary(Base::Input);
                self.initializer_names.insert(key, name.clone());
                self.string_initializers.push(TensorProto {
                    name: name.to_string(),
                    dims: strings.shape.iter().map(|&dim| dim as i64).collect(),
                    data_type: STRING,
                    string_data: strings.values.clone(),
                    ..TensorProto::default()
                });
                name.to_string()
            }
        }
    }

    /// Returns a subgraph whose results are the given values, each the result of a node of its own.
    pub fn finish_graph(&mut self, name: &str, results: &[Operand]) -> (GraphProto, Vec<Rc<str>>) {
        let mut outputs: Vec<Rc<str>> = Vec::with_capacity(results.len());
        for result in results {
            let own = match result {
                Operand::Name(name) if self.graph().produced.contains(name) && !outputs.contains(name) => name.clone(),
                other => {
                    let copy = self.node("Identity", Operator::new("Identity"), std::slice::from_ref(other), 1);
                    match copy.into_iter().next() {
                        Some(Operand::Name(name)) => name,
                        _ => continue,
                    }
                }
            };
            outputs.push(own);
        }
        let graph = self.close();
        (GraphProto { node: graph.nodes, name: name.to_owned(), ..GraphProto::default() }, outputs)
    }
}

/// Operator of a node.
pub struct Operator<'a> {
    pub op_type: &'a str,
    pub domain: &'a str,
    pub attributes: Vec<AttributeProto>,
    pub doc_string: String,
}

impl<'a> Operator<'a> {
    /// Creates an operator of the standard domain without attributes.
    pub fn new(op_type: &'a str) -> Operator<'a> {
        Operator { op_type, domain: "", attributes: Vec::new(), doc_string: String::new() }
    }
}

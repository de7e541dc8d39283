//! Export of a module to the JSON formats of TVM: a graph for the graph executor, and one JSON runtime graph per
//! region. byoc itself executes neither.

use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::ir::{Callee, Expr, ExprId, Module, TensorType};
use byoc_ir::op;
use byoc_plugin_api::{AttrValue, Graph, NodeKind, ValueRef};
use byoc_runtime::error::Failure;
use byoc_runtime::plugin::to_graph::{ConstantTable, flat_types, function_graph};
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// Returns the graph executor's JSON of `@main`: `nodes`, `arg_nodes`, `heads`, `attrs`, `node_row_ptr`.
///
/// Constants become inputs named `p0`, `p1`, and so on. Every host operator becomes a separate function, named after
/// the operator and its position; a region is the function named by its symbol. Every entry has its own storage id,
/// because the memory plan is part of the artifact and not of this graph.
///
/// # Errors
/// If the module has no `@main`, or has expressions that the graph executor cannot represent: branches, references,
/// closures.
pub fn graph_json(module: &Module) -> Result<Value, Failure> {
    let main = module
        .main()
        .ok_or_else(|| Failure::new(codes::passes::NOT_DATA_FLOW, "expected a module with @main, found none"))?;
    let mut graph = Entries::default();
    let mut values: HashMap<ExprId, Vec<[usize; 3]>> = HashMap::new();
    for &param in &main.params {
        let Expr::Var(var) = module.expr(param) else { continue };
        let types = flat_types(module.ty(param))?;
        let is_tuple = types.len() > 1;
        let entries = types.iter().enumerate().map(|(i, ty)| {
            let name = if is_tuple { format!("{}_{i}", var.name) } else { var.name.to_string() };
            graph.input(&name, ty)
        });
        values.insert(param, entries.collect());
    }
    let mut constants = 0;
    let mut functions: HashMap<String, usize> = HashMap::new();
    for id in module.post_order(main.body, |_, expr| !matches!(expr, Expr::Function(_))) {
        if values.contains_key(&id) {
            continue;
        }
        let operands_of = |operand: &ExprId| values.get(operand).cloned().unwrap_or_default();
        let entries = match module.expr(id) {
            Expr::Constant(tensor) => {
                let entry = graph.input(&format!("p{constants}"), &TensorType::fixed(tensor.dtype(), tensor.shape()));
                constants += 1;
                vec![entry]
            }
            Expr::Tuple(fields) => fields.iter().flat_map(operands_of).collect(),
            Expr::Project { tuple, index } => {
                let fields = module.ty(*tuple).as_tuple().unwrap_or_default();
                let previous_fields = &fields[..(*index as usize).min(fields.len())];
                let skip = previous_fields.iter().map(|f| flat_types(f).map_or(0, |t| t.len())).sum();
                operands_of(tuple).into_iter().skip(skip).take(flat_types(module.ty(id))?.len()).collect()
            }
            Expr::Call(call) => {
                let function = match call.callee {
                    Callee::Op(operator) => {
                        let name = format!("tvmgen_default_fused_{}", op::get(operator).name.replace('.', "_"));
                        let count = functions.entry(name.clone()).or_default();
                        *count += 1;
                        if *count == 1 { name } else { format!("{name}_{}", *count - 1) }
                    }
                    Callee::Expr(callee) => match module.expr(callee) {
                        Expr::Global(name) => name.to_string(),
                        _ => return Err(representation_error("a call of a closure")),
                    },
                };
                let inputs: Vec<[usize; 3]> = call.args.iter().flat_map(operands_of).collect();
                graph.call(&function, inputs, &flat_types(module.ty(id))?)
            }
            Expr::Global(_) | Expr::Function(_) | Expr::Constructor(_) => continue,
            Expr::Var(var) => return Err(representation_error(&format!("the free variable %{}", var.name))),
            Expr::Let { .. } => return Err(representation_error("a let expression")),
            Expr::If { .. } => return Err(representation_error("an if expression")),
            Expr::Match(_) => return Err(representation_error("a match expression")),
            Expr::RefNew(_) | Expr::RefRead(_) | Expr::RefWrite { .. } => {
                return Err(representation_error("a reference"));
            }
        };
        values.insert(id, entries);
    }
    let heads = values.remove(&main.body).unwrap_or_default();
    Ok(graph.finish(&heads))
}

fn representation_error(construct_name: &str) -> Failure {
    Diagnostic::error(
        codes::passes::NOT_DATA_FLOW,
        format!("the graph executor's JSON cannot represent {construct_name}"),
    )
    .help("print the module as Relay text with --emit partitioned")
    .into()
}

/// Graph executor JSON under construction, as separate lists.
#[derive(Default)]
struct Entries {
    nodes: Vec<Value>,
    arg_nodes: Vec<usize>,
    row_ptr: Vec<usize>,
    shapes: Vec<Value>,
    dtypes: Vec<Value>,
}

impl Entries {
    fn input(&mut self, name: &str, ty: &TensorType) -> [usize; 3] {
        self.arg_nodes.push(self.nodes.len());
        self.node(json!({"op": "null", "name": name, "inputs": []}), &[ty])[0]
    }

    fn call(&mut self, function: &str, inputs: Vec<[usize; 3]>, outputs: &[&TensorType]) -> Vec<[usize; 3]> {
        let attrs = json!({
            "func_name": function,
            "flatten_data": "0",
            "num_inputs": inputs.len().to_string(),
            "num_outputs": outputs.len().to_string(),
        });
        self.node(json!({"op": "tvm_op", "name": function, "attrs": attrs, "inputs": inputs}), outputs)
    }

    fn node(&mut self, node: Value, outputs: &[&TensorType]) -> Vec<[usize; 3]> {
        let node_index = self.nodes.len();
        self.nodes.push(node);
        self.row_ptr.push(self.shapes.len());
        for ty in outputs {
            // A dimension that is known only at run time is written as -1.
            self.shapes.push(ty.dims.iter().map(|d| d.fixed().map_or(json!(-1), |n| json!(n))).collect());
            self.dtypes.push(json!(ty.dtype.name()));
        }
        (0..outputs.len()).map(|index| [node_index, index, 0]).collect()
    }

    fn finish(mut self, heads: &[[usize; 3]]) -> Value {
        let entries = self.shapes.len();
        self.row_ptr.push(entries);
        json!({
            "nodes": self.nodes,
            "arg_nodes": self.arg_nodes,
            "heads": heads,
            "attrs": {
                "dltype": ["list_str", self.dtypes],
                "device_index": ["list_int", vec![1; entries]],
                "storage_id": ["list_int", (0..entries).collect::<Vec<_>>()],
                "shape": ["list_shape", self.shapes],
            },
            "node_row_ptr": self.row_ptr,
        })
    }
}

/// Returns the JSON runtime graph of each region, in the order of their symbols.
///
/// # Errors
/// If a region is not pure data flow.
pub fn region_json(module: &Module) -> Result<Vec<Value>, Failure> {
    let mut all_values = Vec::new();
    for (name, &id) in &module.globals {
        let Some(function) = module.expr(id).as_function() else { continue };
        if function.attrs.get("Compiler").is_none() {
            continue;
        }
        let symbol = function.attrs.str("global_symbol").unwrap_or(name);
        let mut constants = ConstantTable::default();
        all_values.push(runtime_graph(&function_graph(module, symbol, function, &mut constants)?));
    }
    Ok(all_values)
}

/// Converts a region's graph to a JSON runtime graph, with one kernel node per operator or composite. The attributes of
/// a composite's operators are merged into its node; the attributes of the root take precedence.
fn runtime_graph(graph: &Graph) -> Value {
    let mut nodes = Vec::new();
    let mut row_ptr = vec![0];
    let entry = |r: &ValueRef| json!([r.node, r.index, 0]);
    for node in &graph.nodes {
        let mut attrs = Map::new();
        // A dimension that is known only at run time is written as -1.
        let shapes: Vec<Value> = node
            .outputs
            .iter()
            .map(|ty| ty.dims.iter().map(|dim| dim.known().map_or(json!(-1), |n| json!(n))).collect())
            .collect();
        let dtypes: Vec<&str> = node.outputs.iter().map(|ty| ty.dtype.name().unwrap_or("")).collect();
        attrs.insert("shape".into(), json!([shapes]));
        attrs.insert("dtype".into(), json!([dtypes]));
        let mut object = match &node.kind {
            NodeKind::Input(i) => json!({"op": "input", "name": graph.inputs[*i as usize].name.as_str()}),
            NodeKind::Constant(i) => json!({"op": "const", "name": format!("{}_const_{i}", graph.symbol)}),
            NodeKind::Op(name) => {
                add_attrs(&mut attrs, &node.attrs);
                json!({"op": "kernel", "name": name.as_str()})
            }
            NodeKind::Composite(composite) => {
                composite.body.nodes.iter().for_each(|inner| add_attrs(&mut attrs, &inner.attrs));
                add_attrs(&mut attrs, &composite.body.attrs);
                json!({"op": "kernel", "name": composite.name.as_str()})
            }
        };
        if !node.inputs.is_empty() {
            attrs.insert("num_inputs".into(), json!(node.inputs.len().to_string()));
            attrs.insert("num_outputs".into(), json!(node.outputs.len().to_string()));
            object["inputs"] = node.inputs.iter().map(entry).collect();
        }
        object["attrs"] = Value::Object(attrs);
        nodes.push(object);
        row_ptr.push(row_ptr.last().copied().unwrap_or(0) + node.outputs.len());
    }
    let arg_nodes: Vec<usize> = graph
        .nodes
        .iter()
        .enumerate()
        .filter(|(_, n)| matches!(n.kind, NodeKind::Input(_) | NodeKind::Constant(_)))
        .map(|(i, _)| i)
        .collect();
    let heads: Vec<Value> = graph.outputs.iter().map(entry).collect();
    json!({"symbol": graph.symbol.as_str(), "nodes": nodes, "arg_nodes": arg_nodes, "heads": heads, "node_row_ptr": row_ptr})
}

fn add_attrs(target: &mut Map<String, Value>, attrs: &[byoc_plugin_api::Attr]) {
    for attr in attrs {
        let items: Vec<String> = match &attr.value {
            AttrValue::List(items) => items.iter().map(text).collect(),
            other => vec![text(other)],
        };
        target.insert(attr.key.to_string(), json!([items]));
    }
}

/// Formats a scalar as the JSON runtime does: integers in decimal, booleans as 0 or 1, floats with all significant
/// digits.
fn text(value: &AttrValue) -> String {
    match value {
        AttrValue::None => String::new(),
        AttrValue::Bool(v) => u8::from(*v).to_string(),
        AttrValue::Int(v) => v.to_string(),
        AttrValue::Float(v) => v.to_string(),
        AttrValue::Str(v) => v.to_string(),
        AttrValue::List(items) => items.iter().map(text).collect::<Vec<_>>().join(","),
    }
}

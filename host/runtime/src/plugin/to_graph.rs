//! Conversion of core modules to graphs of the plugin boundary.
//!
//! The conversion flattens tuples, completes attributes with their defaults, and replaces constants with handles to the
//! host's tensors. [`from_graph`](super::from_graph) converts in the other direction.

use byoc_ir::diag::{Code, Diagnostic, codes};
use byoc_ir::ir::{self, Callee, Expr, ExprId, Function, Module, WhileLoop};
use byoc_ir::op::{self, Params};
use byoc_ir::tensor::{self, Tensor};
use byoc_plugin_api as api;
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

/// Constants of a graph under construction: one handle per tensor.
#[derive(Default)]
pub struct ConstantTable {
    /// Handles, in the order in which the graph refers to them.
    pub handles: Vec<api::Constant>,
    /// Tensors that the handles refer to, in the same order.
    pub tensors: Vec<Arc<Tensor>>,
    index: HashMap<*const Tensor, u32>,
}

struct TensorSource {
    tensor: Arc<Tensor>,
    digest: OnceLock<String>,
}

impl api::ConstantSource for TensorSource {
    fn bytes(&self) -> &[u8] {
        self.tensor.bytes()
    }

    fn digest(&self) -> String {
        self.digest.get_or_init(|| tensor_digest(&self.tensor)).clone()
    }
}

/// Returns the BLAKE3 digest of a tensor's element type, shape and bytes, in lower-case hexadecimal.
pub fn tensor_digest(tensor: &Tensor) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(tensor.dtype().name().as_bytes());
    for &dim in tensor.shape() {
        hasher.update(&(dim as u64).to_le_bytes());
    }
    hasher.update(&[0xff]);
    hasher.update(tensor.bytes());
    hasher.finalize().to_hex().to_string()
}

/// Returns a handle to a tensor.
pub fn constant_handle(name: &str, tensor: &Arc<Tensor>) -> api::Constant {
    let source = TensorSource { tensor: tensor.clone(), digest: OnceLock::new() };
    api::Constant::new(name, dtype_to_api(tensor.dtype()), tensor.shape(), source)
}

/// Returns a constant without elements: a placeholder for a constant whose value the loader does not receive.
pub fn without_elements(dtype: api::DType) -> api::Constant {
    api::Constant::new("", dtype, &[0], NoBytes)
}

struct NoBytes;

impl api::ConstantSource for NoBytes {
    fn bytes(&self) -> &[u8] {
        &[]
    }

    fn digest(&self) -> String {
        String::new()
    }
}

/// Returns the metadata that a code generator recorded with a region.
pub fn metadata(compiled: &api::CompiledRegion) -> Vec<(String, Value)> {
    compiled.metadata.iter().map(|attr| (attr.key.to_string(), json_value(&attr.value))).collect()
}

// Attributes nest at most two levels deep, so this recursion is bounded.
fn json_value(value: &api::AttrValue) -> Value {
    match value {
        api::AttrValue::None => Value::Null,
        api::AttrValue::Bool(v) => json!(v),
        api::AttrValue::Int(v) => json!(v),
        api::AttrValue::Float(v) => json!(v),
        api::AttrValue::Str(v) => json!(v.as_str()),
        api::AttrValue::List(items) => items.iter().map(json_value).collect(),
    }
}

impl ConstantTable {
    fn intern(&mut self, tensor: &Arc<Tensor>) -> u32 {
        *self.index.entry(Arc::as_ptr(tensor)).or_insert_with(|| {
            self.handles.push(constant_handle("", tensor));
            self.tensors.push(tensor.clone());
            (self.handles.len() - 1) as u32
        })
    }
}

/// Operators that become one composite node, although the module has no composite function for them.
#[derive(Clone, Copy, Debug)]
pub struct Group<'a> {
    /// Name of the composite.
    pub name: &'a str,
    /// Last operator of the composite.
    pub root: ExprId,
    /// Operands defined outside the composite.
    pub inputs: &'a [ExprId],
}

/// Returns the graph that computes `outputs` from `inputs`; `groups` become composite nodes.
///
/// # Errors
/// If an expression is not pure data flow, such as a branch or a call to a function that is not a composite.
pub fn subgraph(
    module: &Module,
    symbol: &str,
    inputs: &[ExprId],
    outputs: &[ExprId],
    groups: &[Group<'_>],
    constants: &mut ConstantTable,
) -> Result<api::Graph, Box<Diagnostic>> {
    GraphBuilder::new(module, symbol, inputs, groups, constants)?.run(outputs)
}

/// Returns the graph of a region function: its parameters are the inputs, and the fields of a tuple result are the
/// outputs.
///
/// # Errors
/// Same as [`subgraph`].
pub fn function_graph(
    module: &Module,
    symbol: &str,
    function: &Function,
    constants: &mut ConstantTable,
) -> Result<api::Graph, Box<Diagnostic>> {
    let mut graph = GraphBuilder::new(module, symbol, &function.params, &[], constants)?.run(&[function.body])?;
    graph.attrs = attrs_to_api(function.attrs.iter().map(|(k, v)| (&**k, v.clone())));
    Ok(graph)
}

/// Returns the graph of a function. Calls to regions become calls to the operator `region_op` with the attribute
/// `symbol`.
///
/// # Errors
/// Same as [`subgraph`].
pub fn graph_with_regions(
    module: &Module,
    symbol: &str,
    function: &Function,
    region_op: &str,
    constants: &mut ConstantTable,
) -> Result<api::Graph, Box<Diagnostic>> {
    let mut builder = GraphBuilder::new(module, symbol, &function.params, &[], constants)?;
    builder.region_op = Some(region_op.into());
    builder.run(&[function.body])
}

/// Returns the graph that computes `outputs` from `inputs`, with the operator call of each operator node.
///
/// # Errors
/// Same as [`subgraph`].
pub fn graph_of_operators(
    module: &Module,
    symbol: &str,
    inputs: &[ExprId],
    outputs: &[ExprId],
    constants: &mut ConstantTable,
) -> Result<(api::Graph, Vec<(u32, ExprId)>), Box<Diagnostic>> {
    let mut builder = GraphBuilder::new(module, symbol, inputs, &[], constants)?;
    builder.add(outputs)?;
    Ok((builder.graph, builder.operators))
}

/// Graph under construction.
struct GraphBuilder<'a> {
    module: &'a Module,
    /// Operator that represents a call to a region; `None` if calls to regions are not allowed.
    region_op: Option<Box<str>>,
    graph: api::Graph,
    values: HashMap<ExprId, Vec<api::ValueRef>>,
    /// Operator nodes and their calls.
    operators: Vec<(u32, ExprId)>,
    composites: HashMap<ExprId, Group<'a>>,
    constants: &'a mut ConstantTable,
    /// True for the body of a loop, in which loops are not allowed.
    is_loop_body: bool,
}

/// Progress in visiting an expression.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The expression has not been visited yet.
    Start,
    /// The operands have values.
    Operands,
    /// The result of a loop has a value.
    Result,
}

impl<'a> GraphBuilder<'a> {
    fn new(
        module: &'a Module,
        symbol: &str,
        inputs: &[ExprId],
        groups: &[Group<'a>],
        constants: &'a mut ConstantTable,
    ) -> Result<GraphBuilder<'a>, Box<Diagnostic>> {
        let mut graph = api::Graph::new(symbol);
        let mut values = HashMap::new();
        for (i, &input) in inputs.iter().enumerate() {
            let name = match module.expr(input) {
                Expr::Var(var) => var.name.to_string(),
                _ => format!("i{i}"),
            };
            let types = flat_types(module.ty(input))?;
            let refs = types.iter().map(|ty| api::ValueRef::of(graph.push_input(&name, type_to_api(ty)))).collect();
            values.insert(input, refs);
        }
        let composites = groups.iter().map(|group| (group.root, *group)).collect();
        let operators = Vec::new();
        Ok(GraphBuilder {
            module,
            region_op: None,
            graph,
            values,
            operators,
            composites,
            constants,
            is_loop_body: false,
        })
    }

    fn run(mut self, outputs: &[ExprId]) -> Result<api::Graph, Box<Diagnostic>> {
        self.add(outputs)?;
        Ok(self.graph)
    }

    /// Adds the expressions that the outputs depend on, operands first. Uses an explicit stack instead of recursion.
    fn add(&mut self, outputs: &[ExprId]) -> Result<(), Box<Diagnostic>> {
        for &output in outputs {
            let mut stack = vec![(output, Stage::Start)];
            while let Some((id, stage)) = stack.pop() {
                if self.values.contains_key(&id) {
                    continue;
                }
                let while_loop = self.loop_at(id);
                match (stage, while_loop) {
                    (Stage::Start, _) => {
                        stack.push((id, Stage::Operands));
                        let operands = self.operands(id, while_loop);
                        stack.extend(operands.into_iter().rev().map(|operand| (operand, Stage::Start)));
                    }
                    (Stage::Operands, Some(while_loop)) => {
                        self.add_loop(id, while_loop)?;
                        stack.extend([(id, Stage::Result), (while_loop.result, Stage::Start)]);
                    }
                    (Stage::Operands, None) => {
                        let refs = self.node(id)?;
                        self.values.insert(id, refs);
                    }
                    (Stage::Result, while_loop) => {
                        let refs = while_loop.map(|while_loop| self.values_of(while_loop.result));
                        self.values.insert(id, refs.unwrap_or_default());
                    }
                }
            }
            let refs = self.values_of(output);
            self.graph.outputs.extend(refs);
        }
        Ok(())
    }

    /// Returns an expression as a loop; `None` if it is not a loop, or if loops are not allowed here.
    fn loop_at(&self, id: ExprId) -> Option<WhileLoop<'a>> {
        let allows_loops = !self.is_loop_body && self.region_op.is_none() && !self.composites.contains_key(&id);
        self.module.while_loop(id).filter(|_| allows_loops)
    }

    /// Returns the expressions that must have values before the expression `id` is added.
    fn operands(&self, id: ExprId, while_loop: Option<WhileLoop<'a>>) -> Vec<ExprId> {
        if let Some(group) = self.composites.get(&id) {
            return group.inputs.to_vec();
        }
        if let Some(while_loop) = while_loop {
            return while_loop.initial.to_vec();
        }
        let mut operands = Vec::new();
        self.module.expr(id).for_each_operand(|operand| {
            // The body of a composite that is a function literal is converted at its call.
            if self.module.expr(operand).as_function().is_none() {
                operands.push(operand);
            }
        });
        operands
    }

    /// Adds a loop, and maps its parameters to the final state.
    fn add_loop(&mut self, id: ExprId, while_loop: WhileLoop<'a>) -> Result<(), Box<Diagnostic>> {
        let captured = self.captured(while_loop);
        let body_inputs: Vec<ExprId> = while_loop.params.iter().chain(&captured).copied().collect();
        let body_outputs: Vec<ExprId> = [while_loop.cond].iter().chain(while_loop.next).copied().collect();
        let mut body = GraphBuilder::new(self.module, api::WHILE, &body_inputs, &[], self.constants)?;
        body.is_loop_body = true;
        let body = body.run(&body_outputs)?;
        let inputs = while_loop.initial.iter().chain(&captured).flat_map(|&input| self.values_of(input));
        let mut final_state = self.push(api::Node::while_loop(body, inputs), id).into_iter();
        for &param in while_loop.params {
            let count = flat_types(self.module.ty(param))?.len();
            self.values.insert(param, final_state.by_ref().take(count).collect());
        }
        Ok(())
    }

    /// Returns the values that the body of a loop reads from outside, in order of first use.
    fn captured(&self, while_loop: WhileLoop<'a>) -> Vec<ExprId> {
        let mut visited: HashSet<ExprId> = while_loop.params.iter().copied().collect();
        let mut captured = Vec::new();
        let mut stack: Vec<ExprId> = while_loop.next.iter().rev().copied().chain([while_loop.cond]).collect();
        while let Some(id) = stack.pop() {
            if !visited.insert(id) {
                continue;
            }
            if self.values.contains_key(&id) && self.module.expr(id).as_constant().is_none() {
                captured.push(id);
                continue;
            }
            let first_operand = stack.len();
            self.module.expr(id).for_each_operand(|operand| stack.push(operand));
            stack[first_operand..].reverse();
        }
        captured
    }

    /// Returns the operator and the symbol that represent a region; `None` if the expression is not a region, or if
    /// calls to regions are not allowed.
    fn region(&self, id: ExprId) -> Option<(&str, &str)> {
        let operator = self.region_op.as_deref()?;
        let Expr::Global(name) = self.module.expr(id) else { return None };
        let function = self.module.function(name)?;
        function.attrs.str("Compiler")?;
        Some((operator, function.attrs.str("global_symbol").unwrap_or(name)))
    }

    fn values_of(&self, operand: ExprId) -> Vec<api::ValueRef> {
        self.values.get(&operand).cloned().unwrap_or_default()
    }

    fn sources(&self, id: ExprId) -> Vec<String> {
        let ids = self.module.origins.get(self.module.nodes[id].origin);
        ids.iter().map(|&s| self.module.origins.sources()[s].name.to_string()).collect()
    }

    fn push(&mut self, mut node: api::Node, id: ExprId) -> Vec<api::ValueRef> {
        node.sources = self.sources(id).iter().map(|s| s.as_str().into()).collect();
        let count = node.outputs.len() as u32;
        let node_index = self.graph.push(node);
        (0..count).map(|index| api::ValueRef { node: node_index, index }).collect()
    }

    fn node(&mut self, id: ExprId) -> Result<Vec<api::ValueRef>, Box<Diagnostic>> {
        let module = self.module;
        if let Some(&composite) = self.composites.get(&id) {
            let inputs: Vec<api::ValueRef> = composite.inputs.iter().flat_map(|&i| self.values_of(i)).collect();
            let body = GraphBuilder::new(module, composite.name, composite.inputs, &[], self.constants)?.run(&[id])?;
            return Ok(self.push(api::Node::composite(composite.name, body, inputs), id));
        }
        Ok(match module.expr(id) {
            Expr::Constant(tensor) => {
                let ty = api::TensorType::new(dtype_to_api(tensor.dtype()), tensor.shape());
                let constant_index = self.constants.intern(tensor);
                vec![api::ValueRef::of(self.graph.push_constant(constant_index, ty))]
            }
            Expr::Tuple(fields) => fields.iter().flat_map(|&f| self.values_of(f)).collect(),
            Expr::Project { tuple, index } => {
                // A preceding field may itself be a tuple, so its flattened tensors are counted.
                let fields = module.ty(*tuple).as_tuple().unwrap_or_default();
                let previous_fields = &fields[..(*index as usize).min(fields.len())];
                let skipped_count = previous_fields.iter().map(|f| flat_types(f).map_or(0, |t| t.len())).sum();
                let taken_count = flat_types(module.ty(id))?.len();
                self.values_of(*tuple).into_iter().skip(skipped_count).take(taken_count).collect()
            }
            Expr::Call(call) => {
                let inputs: Vec<api::ValueRef> = call.args.iter().flat_map(|&a| self.values_of(a)).collect();
                let outputs: Vec<api::TensorType> = flat_types(module.ty(id))?.iter().map(|t| type_to_api(t)).collect();
                match call.callee {
                    Callee::Op(operator) => {
                        let params = Params::new(op::get(operator), &call.attrs);
                        let kind = api::NodeKind::Op(params.def().name.into());
                        let mut node = api::Node::new(kind, inputs, outputs);
                        let rank = node.outputs.first().map_or(0, |ty| ty.dims.len());
                        node.attrs = attrs_to_api(params.all().map(|(key, value)| match key {
                            "padding" => (key, spatial_padding(&params, rank)),
                            _ => (key, value),
                        }));
                        self.operators.push((self.graph.nodes.len() as u32, id));
                        self.push(node, id)
                    }
                    Callee::Expr(callee) if self.region(callee).is_some() => {
                        let (operator, symbol) = self.region(callee).unwrap_or_default();
                        let mut node = api::Node::new(api::NodeKind::Op(operator.into()), inputs, outputs);
                        node.attrs.push(api::Attr::new("symbol", symbol));
                        self.push(node, id)
                    }
                    Callee::Expr(callee) => {
                        let function = module.expr(callee).as_function();
                        let composite = function.and_then(|f| Some((f, f.attrs.str("Composite")?)));
                        let Some((function, name)) = composite else {
                            return Err(data_flow_error("a function call"));
                        };
                        let body = function_graph(module, name, function, self.constants)?;
                        self.push(api::Node::composite(name, body, inputs), id)
                    }
                }
            }
            Expr::Var(var) => {
                return Err(data_flow_error(&format!("the variable %{} of an enclosing scope", var.name)));
            }
            Expr::Global(_) if self.region(id).is_some() => Vec::new(),
            Expr::Global(name) => return Err(data_flow_error(&format!("the function @{name}"))),
            Expr::Function(_) => return Err(data_flow_error("a function")),
            Expr::Let { .. } => return Err(data_flow_error("a let expression that is not a while loop")),
            // Branches are not allowed in a graph that calls regions.
            Expr::If { .. } if self.region_op.is_some() => return Err(data_flow_error("an if expression")),
            Expr::If { cond, then, otherwise } => {
                let operands = [cond, then, otherwise].into_iter();
                let inputs: Vec<api::ValueRef> = operands.flat_map(|&operand| self.values_of(operand)).collect();
                let outputs: Vec<api::TensorType> = flat_types(module.ty(id))?.iter().map(|t| type_to_api(t)).collect();
                self.push(api::Node::new(api::NodeKind::Op(api::IF.into()), inputs, outputs), id)
            }
            Expr::Match(_) => return Err(data_flow_error("a match expression")),
            Expr::Constructor(name) => return Err(data_flow_error(&format!("the constructor {name}"))),
            Expr::RefNew(_) | Expr::RefRead(_) | Expr::RefWrite { .. } => return Err(data_flow_error("a reference")),
        })
    }
}

/// Returns the attribute `padding` in the canonical form of the boundary: the padding before the data on each spatial
/// axis, then the padding after it. `rank` is the rank of the result.
fn spatial_padding(params: &Params<'_>, rank: usize) -> ir::AttrValue {
    let layout = ["data_layout", "layout"].map(|name| params.string(name)).concat();
    // All axes except batch and channels are spatial; a lower-case letter is the inner part of a split axis.
    let axes = match layout.chars().filter(|c| c.is_ascii_uppercase() && !matches!(c, 'N' | 'C')).count() {
        0 => rank.saturating_sub(2),
        axes => axes,
    };
    let pads = params.padding(axes);
    let (pads_before, pads_after) = (pads.iter().map(|pair| pair.0), pads.iter().map(|pair| pair.1));
    ir::AttrValue::ints(pads_before.chain(pads_after))
}

fn data_flow_error(construct: &str) -> Box<Diagnostic> {
    const NOT_DATA_FLOW: Code = codes::passes::NOT_DATA_FLOW;
    Box::new(Diagnostic::error(NOT_DATA_FLOW, format!("expected a region of pure data flow, found {construct}")))
}

/// Returns the tensor types in a type, with tuples flattened from left to right.
///
/// # Errors
/// If the type contains types other than tensors and tuples.
pub fn flat_types(ty: &ir::Type) -> Result<Vec<&ir::TensorType>, Box<Diagnostic>> {
    let mut flat = Vec::new();
    let mut stack = vec![ty];
    while let Some(ty) = stack.pop() {
        match ty {
            ir::Type::Tensor(t) => flat.push(&**t),
            ir::Type::Tuple(fields) => stack.extend(fields.iter().rev()),
            other => return Err(data_flow_error(&format!("a value of type {other}"))),
        }
    }
    Ok(flat)
}

/// Converts a core element type to a boundary element type.
pub fn dtype_to_api(dtype: tensor::DType) -> api::DType {
    use api::DType as Out;
    use tensor::DType as In;
    match dtype {
        In::F64 => Out::F64,
        In::F32 => Out::F32,
        In::F16 => Out::F16,
        In::BF16 => Out::BF16,
        In::I8 => Out::I8,
        In::I16 => Out::I16,
        In::I32 => Out::I32,
        In::I64 => Out::I64,
        In::U8 => Out::U8,
        In::U16 => Out::U16,
        In::U32 => Out::U32,
        In::U64 => Out::U64,
        In::Bool => Out::BOOL,
        In::I4 => Out { code: 0, bits: 4, lanes: 1 },
        In::U4 => Out { code: 1, bits: 4, lanes: 1 },
        In::I2 => Out { code: 0, bits: 2, lanes: 1 },
        In::U2 => Out { code: 1, bits: 2, lanes: 1 },
        In::F8E4M3Fn => Out { code: 10, bits: 8, lanes: 1 },
        In::F8E4M3FnUz => Out { code: 11, bits: 8, lanes: 1 },
        In::F8E5M2 => Out { code: 12, bits: 8, lanes: 1 },
        In::F8E5M2FnUz => Out { code: 13, bits: 8, lanes: 1 },
        In::F8E8M0Fnu => Out { code: 14, bits: 8, lanes: 1 },
        In::F4E2M1Fn => Out { code: 17, bits: 4, lanes: 1 },
    }
}

fn type_to_api(ty: &ir::TensorType) -> api::TensorType {
    let dims = ty.dims.iter().map(|dim| match dim {
        ir::Dim::Fixed(n) => api::Dim::Known(*n),
        ir::Dim::Any => api::Dim::Unknown("".into()),
        ir::Dim::Symbolic(expr) => api::Dim::Unknown(expr.to_string().into()),
    });
    api::TensorType { dtype: dtype_to_api(ty.dtype), dims: dims.collect() }
}

fn attrs_to_api<'a, A: FromIterator<api::Attr>>(attrs: impl Iterator<Item = (&'a str, ir::AttrValue)>) -> A {
    attrs.map(|(key, value)| api::Attr { key: key.into(), value: attr_to_api(&value) }).collect()
}

// Attributes nest only as deep as the operator schemas allow (two levels), so this recursion is bounded.
fn attr_to_api(value: &ir::AttrValue) -> api::AttrValue {
    match value {
        ir::AttrValue::Int(v) => api::AttrValue::Int(*v),
        ir::AttrValue::Float(v) => api::AttrValue::Float(*v),
        ir::AttrValue::Bool(v) => api::AttrValue::Bool(*v),
        ir::AttrValue::Str(v) => api::AttrValue::Str((&**v).into()),
        ir::AttrValue::List(items) => api::AttrValue::List(items.iter().map(attr_to_api).collect()),
        ir::AttrValue::None => api::AttrValue::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use byoc_ir::ir::Attrs;
    use byoc_ir::typing::Builder;

    /// Converts a module with a single operator call to a graph, and returns the call's `padding` attribute.
    fn export_attrs(name: &str, shapes: &[&[usize]], attrs: &[(&str, ir::AttrValue)]) -> Vec<i64> {
        let mut builder = Builder::default();
        let types = shapes.iter().map(|shape| ir::Type::tensor(tensor::DType::F32, shape));
        let args: Vec<ExprId> = types.enumerate().map(|(i, ty)| builder.var(format!("x{i}").as_str(), ty)).collect();
        let attrs = Attrs::new(attrs.iter().map(|(key, value)| (*key, value.clone())));
        let root = builder.op(name, &args, attrs).unwrap();
        let graph = subgraph(&builder.module, "f", &args, &[root], &[], &mut ConstantTable::default()).unwrap();
        graph.operators()[0].1.ints("padding").unwrap()
    }

    /// Tests that all padding forms of Relay are converted to one form in the graph.
    #[test]
    fn padding_has_one_form() {
        let ints = |values: &[i64]| ir::AttrValue::from(values);
        let conv = |padding: ir::AttrValue| {
            export_attrs("nn.conv2d", &[&[1, 2, 9, 9], &[4, 2, 3, 3]], &[("padding", padding)])
        };
        assert_eq!(conv(ir::AttrValue::Int(1)), [1, 1, 1, 1]);
        assert_eq!(conv(ints(&[1])), [1, 1, 1, 1]);
        assert_eq!(conv(ints(&[1, 2])), [1, 2, 1, 2]);
        assert_eq!(conv(ints(&[0, 1, 2, 3])), [0, 1, 2, 3]);
        assert_eq!(export_attrs("nn.conv2d", &[&[1, 2, 9, 9], &[4, 2, 3, 3]], &[]), [0; 4]);
        let pool = |name: &str, shape: &[usize], attrs: &[(&str, ir::AttrValue)]| export_attrs(name, &[shape], attrs);
        let layout = ("layout", ir::AttrValue::from("NCHW8c"));
        let window = ("pool_size", ints(&[3, 3]));
        let blocked_layout = pool("nn.max_pool2d", &[1, 1, 9, 9, 8], &[layout, window, ("padding", ints(&[1]))]);
        assert_eq!(blocked_layout, [1; 4], "the inner part of a split axis is not a spatial axis");
        let line = [("pool_size", ints(&[3])), ("padding", ints(&[1])), ("layout", ir::AttrValue::from("NWC"))];
        assert_eq!(pool("nn.max_pool1d", &[1, 9, 2], &line), [1, 1]);
    }
}

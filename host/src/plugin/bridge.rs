//! Programs of the core as graphs of the boundary, and back.
//!
//! On the way out tuples are flattened, attributes are completed with their defaults, and constants become handles into
//! the host's pool. On the way back (for the reference runs that plugins ask for) a graph becomes a module again.

use byoc_core::diag::{Code, Diagnostic, codes};
use byoc_core::ir::{self, Attrs, Callee, Expr, ExprId, Function, Module};
use byoc_core::op::{self, Params};
use byoc_core::tensor::{self, Tensor};
use byoc_core::typing::Builder;
use byoc_plugin_api as api;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

/// The constants of a graph under construction: one handle per tensor.
#[derive(Default)]
pub struct ConstantTable {
    /// The handles, in the order in which the graph refers to them.
    pub handles: Vec<api::Constant>,
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

/// The digest of element type, shape and bytes, as lower-case hexadecimal.
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

/// A handle to a tensor.
pub fn constant_handle(name: &str, tensor: &Arc<Tensor>) -> api::Constant {
    let source = TensorSource { tensor: tensor.clone(), digest: OnceLock::new() };
    api::Constant::new(name, dtype_out(tensor.dtype()), tensor.shape(), source)
}

impl ConstantTable {
    fn number(&mut self, tensor: &Arc<Tensor>) -> u32 {
        *self.index.entry(Arc::as_ptr(tensor)).or_insert_with(|| {
            self.handles.push(constant_handle("", tensor));
            (self.handles.len() - 1) as u32
        })
    }
}

/// A graph of what `outputs` compute from `params`, which may be variables or any expressions inside the module.
///
/// # Errors
/// An expression that has no place in a data-flow graph (a branch, a call of a function that is no composite).
pub fn graph(
    module: &Module,
    symbol: &str,
    params: &[ExprId],
    outputs: &[ExprId],
    constants: &mut ConstantTable,
) -> Result<api::Graph, Box<Diagnostic>> {
    let mut graph = api::Graph::new(symbol);
    let mut values: HashMap<ExprId, Vec<api::ValueRef>> = HashMap::new();
    for (i, &param) in params.iter().enumerate() {
        let name = match module.expr(param) {
            Expr::Var(var) => var.name.to_string(),
            _ => format!("i{i}"),
        };
        let types = flat_types(module.ty(param))?;
        let refs = types.iter().map(|ty| api::ValueRef::of(graph.push_input(&name, type_out(ty)))).collect();
        values.insert(param, refs);
    }
    let stops: std::collections::HashSet<ExprId> = params.iter().copied().collect();
    for &output in outputs {
        // A composite's function literal is entered when its call is met.
        let order = module.post_order(output, |id, expr| !stops.contains(&id) && !matches!(expr, Expr::Function(_)));
        for id in order {
            if values.contains_key(&id) {
                continue;
            }
            if let Some(refs) = node(module, id, &mut graph, &values, constants)? {
                values.insert(id, refs);
            }
        }
        graph.outputs.extend(values.get(&output).into_iter().flatten().copied());
    }
    Ok(graph)
}

/// The graph of a region function: its parameters are the inputs, the fields of a tuple result the outputs.
///
/// # Errors
/// As [`graph`].
pub fn function_graph(
    module: &Module,
    symbol: &str,
    function: &Function,
    constants: &mut ConstantTable,
) -> Result<api::Graph, Box<Diagnostic>> {
    let mut graph = graph(module, symbol, &function.params, &[function.body], constants)?;
    graph.attrs = attrs_out(function.attrs.iter().map(|(k, v)| (&**k, v.clone())));
    Ok(graph)
}

fn node(
    module: &Module,
    id: ExprId,
    graph: &mut api::Graph,
    values: &HashMap<ExprId, Vec<api::ValueRef>>,
    constants: &mut ConstantTable,
) -> Result<Option<Vec<api::ValueRef>>, Box<Diagnostic>> {
    let of = |operand: ExprId| values.get(&operand).cloned().unwrap_or_default();
    let sources = || {
        let ids = module.origins.get(module.nodes[id].origin);
        ids.iter().map(|&s| module.origins.sources()[s].name.as_ref().into()).collect()
    };
    Ok(Some(match module.expr(id) {
        Expr::Constant(tensor) => {
            let ty = api::TensorType::new(dtype_out(tensor.dtype()), tensor.shape());
            let number = constants.number(tensor);
            vec![api::ValueRef::of(graph.push_constant(number, ty))]
        }
        Expr::Tuple(fields) => fields.iter().flat_map(|&f| of(f)).collect(),
        Expr::Project { tuple, index } => {
            // A tuple's fields may be tuples: skip the tensors of the fields before.
            let skip = match module.ty(*tuple) {
                ir::Type::Tuple(fields) => {
                    fields.iter().take(*index as usize).map(|f| flat_types(f).map_or(0, |t| t.len())).sum()
                }
                _ => 0,
            };
            let take = flat_types(module.ty(id))?.len();
            of(*tuple).into_iter().skip(skip).take(take).collect()
        }
        Expr::Call(call) => {
            let inputs: Vec<api::ValueRef> = call.args.iter().flat_map(|&a| of(a)).collect();
            let outputs: Vec<api::TensorType> = flat_types(module.ty(id))?.iter().map(|t| type_out(t)).collect();
            let count = outputs.len() as u32;
            let number = match call.callee {
                Callee::Op(operator) => {
                    let params = Params::new(op::get(operator), &call.attrs);
                    let attrs = attrs_out(params.all());
                    let mut node = api::Node::new(api::NodeKind::Op(params.def().name.into()), inputs, outputs);
                    node.attrs = attrs;
                    node.sources = sources();
                    graph.push(node)
                }
                Callee::Expr(callee) => {
                    let function = module.expr(callee).as_function();
                    let composite = function.and_then(|f| Some((f, f.attrs.str("Composite")?)));
                    let Some((function, name)) = composite else { return Err(no_data_flow("a call of a function")) };
                    let body = function_graph(module, name, function, constants)?;
                    let mut node = api::Node::composite(name, body, inputs);
                    node.sources = sources();
                    graph.push(node)
                }
            };
            (0..count).map(|index| api::ValueRef { node: number, index }).collect()
        }
        Expr::Function(_) => return Ok(None),
        Expr::Var(var) => return Err(no_data_flow(&format!("the variable %{} from outside", var.name))),
        Expr::Global(name) => return Err(no_data_flow(&format!("the function @{name}"))),
        Expr::Let { .. } => return Err(no_data_flow("a let")),
        Expr::If { .. } => return Err(no_data_flow("an if")),
        Expr::RefNew(_) | Expr::RefRead(_) | Expr::RefWrite { .. } => return Err(no_data_flow("a reference")),
    }))
}

fn no_data_flow(what: &str) -> Box<Diagnostic> {
    const NOT_DATA_FLOW: Code = codes::passes::NOT_DATA_FLOW;
    Box::new(Diagnostic::error(NOT_DATA_FLOW, format!("a region holds {what}; regions are data flow only")))
}

/// The tensors of a type, tuples flattened left to right.
///
/// # Errors
/// When there is something else in it.
pub fn flat_types(ty: &ir::Type) -> Result<Vec<&ir::TensorType>, Box<Diagnostic>> {
    let mut flat = Vec::new();
    let mut open = vec![ty];
    while let Some(ty) = open.pop() {
        match ty {
            ir::Type::Tensor(t) => flat.push(&**t),
            ir::Type::Tuple(fields) => open.extend(fields.iter().rev()),
            other => return Err(no_data_flow(&format!("a value of type {other}"))),
        }
    }
    Ok(flat)
}

/// An element type of the core as one of the boundary.
pub fn dtype_out(dtype: tensor::DType) -> api::DType {
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
    }
}

/// An element type of the boundary as one of the core.
pub fn dtype_in(dtype: api::DType) -> tensor::DType {
    tensor::DType::ALL.iter().copied().find(|&d| dtype_out(d) == dtype).unwrap_or(tensor::DType::F32)
}

fn type_out(ty: &ir::TensorType) -> api::TensorType {
    let dims = ty.dims.iter().map(|dim| match dim {
        ir::Dim::Fixed(n) => api::Dim::Known(*n),
        ir::Dim::Any => api::Dim::Unknown("".into()),
        ir::Dim::Named(name) => api::Dim::Unknown((&**name).into()),
    });
    api::TensorType { dtype: dtype_out(ty.dtype), dims: dims.collect() }
}

fn type_in(ty: &api::TensorType) -> ir::Type {
    let dims = ty.dims.iter().map(|dim| match dim {
        api::Dim::Known(n) => ir::Dim::Fixed(*n),
        api::Dim::Unknown(name) if name.is_empty() => ir::Dim::Any,
        api::Dim::Unknown(name) => ir::Dim::Named(name.as_str().into()),
    });
    ir::Type::tensor_of(dtype_in(ty.dtype), dims)
}

fn attrs_out<'a, A: FromIterator<api::Attr>>(attrs: impl Iterator<Item = (&'a str, ir::AttrValue)>) -> A {
    attrs.map(|(key, value)| api::Attr { key: key.into(), value: attr_out(&value) }).collect()
}

// Attributes nest as deep as the operator schemas say (two levels), so this recursion is bounded.
fn attr_out(value: &ir::AttrValue) -> api::AttrValue {
    match value {
        ir::AttrValue::Int(v) => api::AttrValue::Int(*v),
        ir::AttrValue::Float(v) => api::AttrValue::Float(*v),
        ir::AttrValue::Bool(v) => api::AttrValue::Bool(*v),
        ir::AttrValue::Str(v) => api::AttrValue::Str((&**v).into()),
        ir::AttrValue::List(items) => api::AttrValue::List(items.iter().map(attr_out).collect()),
        ir::AttrValue::None => api::AttrValue::None,
    }
}

fn attr_in(value: &api::AttrValue) -> ir::AttrValue {
    match value {
        api::AttrValue::Int(v) => ir::AttrValue::Int(*v),
        api::AttrValue::Float(v) => ir::AttrValue::Float(*v),
        api::AttrValue::Bool(v) => ir::AttrValue::Bool(*v),
        api::AttrValue::Str(v) => ir::AttrValue::Str(v.as_str().into()),
        api::AttrValue::List(items) => ir::AttrValue::List(items.iter().map(attr_in).collect()),
        api::AttrValue::None => ir::AttrValue::None,
    }
}

/// A graph of the boundary as a module whose `@main` takes the graph's inputs and gives a tuple of its outputs.
/// Composites are spliced in.
///
/// # Errors
/// An operator that the host does not know, or types that do not agree.
pub fn module_of(graph: &api::Graph, constants: &[api::Constant]) -> Result<Module, Box<Diagnostic>> {
    graph.check(constants.len()).map_err(|e| Box::new(Diagnostic::error(codes::plugins::BAD_GRAPH, e)))?;
    let mut builder = Builder::default();
    let params: Vec<ExprId> =
        graph.inputs.iter().map(|input| builder.var(input.name.as_str(), type_in(&input.ty))).collect();
    let mut tensors: Vec<Option<ExprId>> = vec![None; constants.len()];
    let outputs = splice(&mut builder, graph, &params, constants, &mut tensors)?;
    let body = builder.tuple(&outputs)?;
    builder.define("main", &params, body)?;
    Ok(builder.module)
}

// Composites do not nest (a composite body holds operators only), so this recursion is one level deep; the check of
// the graph has bounded it in any case.
fn splice(
    builder: &mut Builder,
    graph: &api::Graph,
    inputs: &[ExprId],
    constants: &[api::Constant],
    tensors: &mut [Option<ExprId>],
) -> Result<Vec<ExprId>, Box<Diagnostic>> {
    let mut values: Vec<Vec<ExprId>> = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        let args: Vec<ExprId> = node.inputs.iter().map(|r| values[r.node as usize][r.index as usize]).collect();
        let outputs = match &node.kind {
            api::NodeKind::Input(index) => vec![inputs[*index as usize]],
            api::NodeKind::Constant(index) => {
                let slot = &mut tensors[*index as usize];
                if slot.is_none() {
                    let handle = constants[*index as usize].clone();
                    let (dtype, shape) = (dtype_in(handle.dtype()), handle.shape().to_vec());
                    let tensor = Tensor::from_storage(dtype, &shape, Arc::new(Handle(handle)));
                    let wrong =
                        || Diagnostic::error(codes::plugins::BAD_GRAPH, "a constant of another size than its type");
                    *slot = Some(builder.constant(tensor.ok_or_else(wrong)?));
                }
                slot.iter().copied().collect()
            }
            api::NodeKind::Composite(composite) => splice(builder, &composite.body, &args, constants, tensors)?,
            api::NodeKind::Op(name) => {
                let attrs = Attrs::new(node.attrs.iter().map(|a| (a.key.as_str(), attr_in(&a.value))));
                let result = call(builder, name.as_str(), &args, attrs)?;
                match builder.module.ty(result).as_tuple().map(<[ir::Type]>::len) {
                    None => vec![result],
                    Some(n) => (0..n as u32).map(|i| builder.project(result, i)).collect::<Result<_, _>>()?,
                }
            }
        };
        values.push(outputs);
    }
    Ok(graph.outputs.iter().map(|r| values[r.node as usize][r.index as usize]).collect())
}

/// Calls an operator with flattened arguments: as they are, or as the fields of the one tuple that it takes.
fn call(builder: &mut Builder, name: &str, args: &[ExprId], attrs: Attrs) -> Result<ExprId, Box<Diagnostic>> {
    match builder.op(name, args, attrs.clone()) {
        Ok(id) => Ok(id),
        Err(error) => {
            let tuple = builder.tuple(args)?;
            builder.op(name, &[tuple], attrs).map_err(|_| error)
        }
    }
}

struct Handle(api::Constant);

impl AsRef<[u8]> for Handle {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

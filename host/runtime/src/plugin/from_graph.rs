//! Conversion of graphs of the plugin boundary to core modules, for the reference runs that plugins request and for the
//! tests of backends.

use super::to_graph::dtype_to_api;
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::ir::{self, Attrs, Expr, ExprId, FuncType, Module, Source};
use byoc_ir::op;
use byoc_ir::tensor::{self, Tensor};
use byoc_ir::text::dim_or_symbol;
use byoc_ir::typing::{Builder, unify};
use byoc_plugin_api as api;
use std::sync::Arc;

/// Converts a boundary graph to a module whose `@main` takes the graph's inputs and returns a tuple of its outputs.
/// Composites are inlined.
///
/// # Errors
/// If an operator or element type is unknown to the host, or a type stated in the graph contradicts the inferred type.
pub fn module_of(graph: &api::Graph, constants: &[api::Constant]) -> Result<Module, Box<Diagnostic>> {
    traced_module_of(graph, constants).map(|(module, _)| module)
}

/// Positions of the operators of a graph, by their number as sources of a module: the index of a node, for an operator
/// in a composite followed by the index in its body.
pub type Positions = Vec<Vec<u32>>;

/// Variant of [`module_of`] that also returns the operators from which the expressions of the module originate.
///
/// # Errors
/// As for [`module_of`].
pub fn traced_module_of(
    graph: &api::Graph,
    constants: &[api::Constant],
) -> Result<(Module, Positions), Box<Diagnostic>> {
    graph.check(constants.len()).map_err(|e| Box::new(Diagnostic::error(codes::plugins::BAD_GRAPH, e)))?;
    let mut builder = Builder::default();
    let inputs = graph.inputs.iter().map(|input| Ok(builder.var(input.name.as_str(), type_from_api(&input.ty)?)));
    let params: Vec<ExprId> = inputs.collect::<Result<_, Box<Diagnostic>>>()?;
    let mut tensors: Vec<Option<ExprId>> = vec![None; constants.len()];
    let mut trace = Trace::default();
    let outputs = inline_graph(&mut builder, graph, &params, (constants, &mut tensors), &mut trace)?;
    builder.origin = None;
    let body = builder.tuple(&outputs)?;
    builder.define("main", &params, body)?;
    Ok((builder.module, trace.positions))
}

/// Record of the operators that become expressions.
#[derive(Default)]
struct Trace {
    positions: Positions,
    /// Indices of the composites around the graph that is converted.
    outer: Vec<u32>,
}

impl Trace {
    /// Records the operator of a node, from which the next expressions originate.
    fn enter(&mut self, builder: &mut Builder, index: usize, node: &api::Node, operator: &str) {
        let names: Vec<&str> = node.sources.iter().map(|source| source.as_str()).collect();
        let name = if names.is_empty() { operator.to_owned() } else { names.join(", ") };
        let source = Source { name: name.as_str().into(), op: operator.into() };
        builder.origin = Some(builder.module.origins.add_source(source));
        self.positions.push(self.outer.iter().copied().chain([index as u32]).collect());
    }
}

// Composite bodies contain operators and loops, and loop bodies contain only operators, so this recursion is at most
// two levels deep. For a graph that violates this rule, the JSON parser bounds the depth.
fn inline_graph(
    builder: &mut Builder,
    graph: &api::Graph,
    inputs: &[ExprId],
    (constants, tensors): (&[api::Constant], &mut [Option<ExprId>]),
    trace: &mut Trace,
) -> Result<Vec<ExprId>, Box<Diagnostic>> {
    let mut values: Vec<Vec<ExprId>> = Vec::with_capacity(graph.nodes.len());
    for (position, node) in graph.nodes.iter().enumerate() {
        let args: Vec<ExprId> = node.inputs.iter().map(|r| values[r.node as usize][r.index as usize]).collect();
        let outputs = match &node.kind {
            api::NodeKind::Input(index) => vec![inputs[*index as usize]],
            api::NodeKind::Constant(index) => {
                let slot = &mut tensors[*index as usize];
                if slot.is_none() {
                    let handle = constants[*index as usize].clone();
                    let (dtype, shape) = (dtype_from_api(handle.dtype())?, handle.shape().to_vec());
                    let byte_count = handle.bytes().len();
                    let tensor = Tensor::from_storage(dtype, &shape, Arc::new(Handle(handle)));
                    let size_error = || {
                        Diagnostic::error(
                            codes::plugins::BAD_GRAPH,
                            format!(
                                "constant {index}: expected the bytes of a {dtype} tensor of shape {shape:?}, found \
                                 {byte_count} bytes"
                            ),
                        )
                    };
                    *slot = Some(builder.constant(tensor.ok_or_else(size_error)?));
                }
                slot.iter().copied().collect()
            }
            api::NodeKind::Composite(composite) if composite.name == api::WHILE => {
                let states = node.outputs.len();
                trace.enter(builder, position, node, api::WHILE);
                let frame = LoopFrame::new(builder, &composite.body, &args, states)?;
                trace.outer.push(position as u32);
                let outputs = inline_graph(builder, &composite.body, &frame.inputs, (constants, &mut *tensors), trace)?;
                trace.outer.pop();
                frame.finish(builder, &outputs)?
            }
            api::NodeKind::Composite(composite) => {
                for (i, (&arg, input)) in args.iter().zip(&composite.body.inputs).enumerate() {
                    check_declared(builder, arg, &input.ty, &format!("input {i} of {}", composite.body.symbol))?;
                }
                trace.outer.push(position as u32);
                let outputs = inline_graph(builder, &composite.body, &args, (constants, &mut *tensors), trace)?;
                trace.outer.pop();
                outputs
            }
            api::NodeKind::Op(name) if name == api::IF => {
                trace.enter(builder, position, node, api::IF);
                branch(builder, &args)?
            }
            api::NodeKind::Op(name) => {
                trace.enter(builder, position, node, name);
                let attrs = Attrs::new(node.attrs.iter().map(|a| (a.key.as_str(), attr_from_api(&a.value))));
                let result = call(builder, name.as_str(), &args, attrs)?;
                match builder.module.ty(result).as_tuple().map(<[ir::Type]>::len) {
                    None => vec![result],
                    Some(n) => (0..n as u32).map(|i| builder.project(result, i)).collect::<Result<_, _>>()?,
                }
            }
        };
        if outputs.len() != node.outputs.len() {
            let (node, expected, found) = (values.len(), outputs.len(), node.outputs.len());
            let message = format!("node {node}: expected {expected} results, found {found} in the graph");
            return Err(Box::new(Diagnostic::error(codes::plugins::BAD_GRAPH, message)));
        }
        for (&output, ty) in outputs.iter().zip(&node.outputs) {
            check_declared(builder, output, ty, &format!("result of node {}", values.len()))?;
        }
        values.push(outputs);
    }
    Ok(graph.outputs.iter().map(|r| values[r.node as usize][r.index as usize]).collect())
}

/// Loop under construction.
struct LoopFrame {
    /// Inputs of the loop's body: parameters for the state, then the values that the loop only reads.
    inputs: Vec<ExprId>,
    initial: Vec<ExprId>,
}

impl LoopFrame {
    fn new(
        builder: &mut Builder,
        body: &api::Graph,
        args: &[ExprId],
        states: usize,
    ) -> Result<LoopFrame, Box<Diagnostic>> {
        let (initial, read_only) = args.split_at(states);
        let mut inputs = Vec::with_capacity(args.len());
        for (i, input) in body.inputs[..states].iter().enumerate() {
            inputs.push(builder.var(format!("state{i}"), type_from_api(&input.ty)?));
        }
        for (i, &value) in read_only.iter().enumerate() {
            check_declared(builder, value, &body.inputs[states + i].ty, &format!("input {} of a loop", states + i))?;
            inputs.push(value);
        }
        Ok(LoopFrame { inputs, initial: initial.to_vec() })
    }

    /// Adds the loop, given the values of the body's outputs. Returns the final state.
    fn finish(self, builder: &mut Builder, outputs: &[ExprId]) -> Result<Vec<ExprId>, Box<Diagnostic>> {
        let LoopFrame { inputs, initial } = self;
        let (states, cond, next) = (&inputs[..initial.len()], outputs[0], &outputs[1..]);
        let types: Vec<ir::Type> = states.iter().map(|&state| builder.module.ty(state).clone()).collect();
        let result_type = ir::Type::tuple(types.clone());
        let variable = builder.var("loop", ir::Type::func(FuncType::new(types, result_type.clone())));
        let next_call = builder.call(variable, next)?;
        let final_state = builder.tuple(states)?;
        let body = builder.push(Expr::If { cond, then: next_call, otherwise: final_state })?;
        let function = builder.function(states, body, result_type, Attrs::none())?;
        let first_call = builder.call(variable, &initial)?;
        let result = builder.push(Expr::Let { var: variable, value: function, body: first_call })?;
        (0..states.len() as u32).map(|i| builder.project(result, i)).collect()
    }
}

/// Adds an `if` with flattened operands: the condition, the results of the first branch, and the results of the second
/// branch.
fn branch(builder: &mut Builder, args: &[ExprId]) -> Result<Vec<ExprId>, Box<Diagnostic>> {
    let Some((&cond, results)) =
        args.split_first().filter(|(_, results)| !results.is_empty() && results.len() % 2 == 0)
    else {
        let message =
            format!("{}: expected a condition and the results of two branches, found {} inputs", api::IF, args.len());
        return Err(Box::new(Diagnostic::error(codes::plugins::BAD_GRAPH, message)));
    };
    let count = results.len() / 2;
    let mut branch = |results: &[ExprId]| match results {
        [result] => Ok(*result),
        results => builder.tuple(results),
    };
    let (then, otherwise) = (branch(&results[..count])?, branch(&results[count..])?);
    let result = builder.push(Expr::If { cond, then, otherwise })?;
    match count {
        1 => Ok(vec![result]),
        count => (0..count as u32).map(|i| builder.project(result, i)).collect(),
    }
}

/// Compares a type stated in a graph with the inferred type, because a backend generates code for the stated type.
fn check_declared(
    builder: &Builder,
    value: ExprId,
    declared_type: &api::TensorType,
    value_name: &str,
) -> Result<(), Box<Diagnostic>> {
    let (found, declared_type) = (builder.module.ty(value), type_from_api(declared_type)?);
    match unify(found, &declared_type) {
        Some(_) => Ok(()),
        None => {
            let message = format!("{value_name}: expected {found}, found {declared_type} in the graph");
            Err(Box::new(Diagnostic::error(codes::plugins::BAD_GRAPH, message)))
        }
    }
}

/// Calls an operator with flattened arguments. If the operator does not accept them unchanged, the leading arguments
/// are grouped into tuples of equal length (`concatenate` takes one tuple; `qnn.concatenate` takes three tuples, then
/// two tensors).
fn call(builder: &mut Builder, name: &str, args: &[ExprId], attrs: Attrs) -> Result<ExprId, Box<Diagnostic>> {
    match builder.op(name, args, attrs.clone()) {
        Ok(id) => Ok(id),
        Err(error) => {
            let input_count = op::lookup(name).map_or(0, |operator| op::get(operator).inputs.len());
            for tuples in 1..=input_count {
                let fields = args.len().saturating_sub(input_count - tuples);
                if fields == 0 || !fields.is_multiple_of(tuples) {
                    continue;
                }
                let (grouped_args, remaining_args) = args.split_at(fields);
                let call_args = grouped_args.chunks(fields / tuples).map(|fields| builder.tuple(fields));
                let mut call_args = call_args.collect::<Result<Vec<ExprId>, _>>()?;
                call_args.extend(remaining_args);
                if let Ok(id) = builder.op(name, &call_args, attrs.clone()) {
                    return Ok(id);
                }
            }
            Err(error)
        }
    }
}

struct Handle(api::Constant);

impl AsRef<[u8]> for Handle {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

/// Converts a boundary element type to a core element type.
///
/// # Errors
/// If the host does not support the element type.
pub fn dtype_from_api(dtype: api::DType) -> Result<tensor::DType, Box<Diagnostic>> {
    tensor::DType::ALL.iter().copied().find(|&native_dtype| dtype_to_api(native_dtype) == dtype).ok_or_else(|| {
        let known_names: Vec<&str> = tensor::DType::ALL.iter().map(|native_dtype| native_dtype.name()).collect();
        let message = format!("expected an element type that the host supports, found {dtype}");
        Box::new(
            Diagnostic::error(codes::plugins::BAD_GRAPH, message)
                .note(format!("supported element types: {}", known_names.join(", "))),
        )
    })
}

fn type_from_api(ty: &api::TensorType) -> Result<ir::Type, Box<Diagnostic>> {
    let dims = ty.dims.iter().map(|dim| match dim {
        api::Dim::Known(n) => ir::Dim::Fixed(*n),
        api::Dim::Unknown(name) if name.is_empty() => ir::Dim::Any,
        api::Dim::Unknown(name) => dim_or_symbol(name),
    });
    let ty = ir::Type::tensor_of(dtype_from_api(ty.dtype)?, dims);
    match ty.tensor_fault() {
        None => Ok(ty),
        Some(fault) => Err(Box::new(Diagnostic::error(codes::plugins::BAD_GRAPH, fault))),
    }
}

fn attr_from_api(value: &api::AttrValue) -> ir::AttrValue {
    match value {
        api::AttrValue::Int(v) => ir::AttrValue::Int(*v),
        api::AttrValue::Float(v) => ir::AttrValue::Float(*v),
        api::AttrValue::Bool(v) => ir::AttrValue::Bool(*v),
        api::AttrValue::Str(v) => ir::AttrValue::Str(v.as_str().into()),
        api::AttrValue::List(items) => ir::AttrValue::List(items.iter().map(attr_from_api).collect()),
        api::AttrValue::None => ir::AttrValue::None,
    }
}

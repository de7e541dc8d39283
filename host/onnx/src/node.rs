//! View of a node for converters: inputs, attributes, and creation of Relay calls.

use super::graph::{FlatGraph, FlatNode};
use super::proto::{AttributeProto, AttributeType, NodeProto};
use super::size::Size;
use super::state::{ConversionState, Error, MAX_STEPS, Result};
use super::tensor::{STRING, from_f64s};
use byoc_ir::declared::Declared;
use byoc_ir::diag::{Code, Diagnostic, Severity, codes};
use byoc_ir::interface::HostOperators;
use byoc_ir::ir::{AttrValue, Attrs, Dim, Expr, ExprId, OriginId, TensorType, Type};
use byoc_ir::op::OpDef;
use byoc_ir::tensor::{DType, Element, Shape, Tensor};
use byoc_ir::typing::Builder;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Outputs of a node; trailing optional outputs may be omitted.
pub type Outputs = Vec<ExprId>;

/// Creates the attributes of a Relay call: `attrs![axis: 1, keepdims: true]`.
macro_rules! attrs {
    ($($key:ident : $value:expr),* $(,)?) => {
        byoc_ir::ir::Attrs::new([$((stringify!($key), byoc_ir::ir::AttrValue::from($value))),*] as [(&str, byoc_ir::ir::AttrValue); _])
    };
}
pub(super) use attrs;

/// Node under conversion.
pub struct Node<'a, 'm> {
    conversion: &'a mut ConversionState<'m>,
    proto: &'a NodeProto,
    graphs: &'a [(String, FlatGraph)],
    inputs: Vec<Option<ExprId>>,
    origin: OriginId,
    /// Version of the node's opset.
    pub opset: i64,
}

impl<'a, 'm> Node<'a, 'm> {
    pub(super) fn new(
        conversion: &'a mut ConversionState<'m>,
        node: &'a FlatNode,
        inputs: Vec<Option<ExprId>>,
        origin: OriginId,
    ) -> Node<'a, 'm> {
        let FlatNode { proto, graphs, .. } = node;
        Node { conversion, proto, graphs, inputs, origin, opset: node.version() }
    }

    /// Returns input `i`, if present.
    pub fn optional_input(&self, i: usize) -> Option<ExprId> {
        self.inputs.get(i).copied().flatten()
    }

    pub fn input(&self, i: usize) -> Result<ExprId> {
        self.optional_input(i).ok_or_else(|| self.invalid_node(format!("input {i} is missing")))
    }

    /// Returns input `i`, if present and non-constant.
    pub fn computed_input(&mut self, i: usize) -> Option<ExprId> {
        let value = self.optional_input(i)?;
        if self.constant_value(value).is_some() { None } else { Some(value) }
    }

    /// Returns the number of inputs, including absent inputs.
    pub fn input_count(&self) -> usize {
        self.inputs.len()
    }

    /// Returns all inputs; a missing input is an error.
    pub fn all_inputs(&self) -> Result<Vec<ExprId>> {
        (0..self.inputs.len()).map(|i| self.input(i)).collect()
    }

    /// Returns the number of outputs that the node names.
    pub fn output_count(&self) -> usize {
        self.proto.output.len()
    }

    /// Returns true if the node names output `i`.
    pub fn has_output(&self, i: usize) -> bool {
        self.proto.output.get(i).is_some_and(|name| !name.is_empty())
    }

    pub fn ty(&self, value: ExprId) -> Result<TensorType> {
        let ty = self.conversion.builder.module.ty(value);
        ty.as_tensor().cloned().ok_or_else(|| self.invalid_node(format!("expected a tensor, found {ty}")))
    }

    /// Returns the element type of a value.
    pub fn dtype(&self, value: ExprId) -> Result<DType> {
        self.ty(value).map(|t| t.dtype)
    }

    pub fn shape(&self, value: ExprId) -> Result<Shape> {
        let ty = self.ty(value)?;
        ty.shape().ok_or_else(|| self.unknown_dims_error(&ty))
    }

    /// Creates the error for a value with unknown dimensions that this node requires to be known.
    pub fn unknown_dims_error(&self, ty: &TensorType) -> Error {
        let error = self.error(codes::frontends::BAD_NODE, format!("expected known dimensions, found {ty}"));
        Self::with_bindings(error, &[ty])
    }

    /// Adds the help to bind the symbols in the dimensions of `types`, if there are any.
    pub fn with_bindings(error: Diagnostic, types: &[&TensorType]) -> Error {
        let names: BTreeSet<_> = types.iter().flat_map(|ty| &ty.dims).flat_map(Dim::symbols).collect();
        let bindings: Vec<String> = names.iter().map(|name| format!("--dim {name}=N")).collect();
        Box::new(if bindings.is_empty() {
            error
        } else {
            error.help(format!("bind the dimensions: {}", bindings.join(" ")))
        })
    }

    pub fn rank(&self, value: ExprId) -> Result<usize> {
        self.ty(value).map(|t| t.dims.len())
    }

    /// Returns the tensor of a constant, and adds the constant's origins to the origins of this node.
    pub fn constant_value(&mut self, value: ExprId) -> Option<Arc<Tensor>> {
        let tensor = self.conversion.builder.module.expr(value).as_constant()?.clone();
        let origin = self.conversion.builder.module.nodes[value].origin;
        self.origin = self.conversion.union(self.origin, origin);
        Some(tensor)
    }

    /// Returns the tracked elements of a small integer tensor; `None` for each unknown element.
    pub fn tracked_elements(&self, value: ExprId) -> Option<Vec<Option<Size>>> {
        self.conversion.sizes.get(&self.conversion.builder.module, value)
    }

    /// Records the elements of a small integer tensor; `None` for each unknown element.
    pub fn track_elements(&mut self, value: ExprId, sizes: Vec<Option<Size>>) {
        self.conversion.sizes.set(value, sizes);
    }

    /// Returns the dimensions of a value; dimensions known only at run time have names.
    pub fn dims(&mut self, value: ExprId) -> Result<Vec<Dim>> {
        let ty = self.ty(value)?;
        Ok(self.conversion.named_dims(value, &ty))
    }

    /// Returns the dimensions of a value, which must have `N` of them.
    pub fn dims_of_rank<const N: usize>(&mut self, value: ExprId) -> Result<[Dim; N]> {
        let dims = <[Dim; N]>::try_from(self.dims(value)?);
        dims.or_else(|_| Err(self.invalid_node(format!("expected a tensor of rank {N}, found {}", self.ty(value)?))))
    }

    /// Records the dimensions of a value whose type has unknown dimensions.
    pub fn name_dims(&mut self, value: ExprId, dims: &[Dim]) {
        self.conversion.name_dims(value, dims);
    }

    /// Returns true if `name` names a dimension that is known only at run time.
    pub fn is_computed_dim(&self, name: &str) -> bool {
        self.conversion.names.source(name).is_some()
    }

    /// Returns the value and the axis that provide the dimension `name`, if the dimension is known only at run time.
    pub fn source_of_dim(&mut self, name: &str) -> Option<(ExprId, usize)> {
        self.conversion.source_of_dim(name)
    }

    /// Returns an input with the symbolic dimension `name`, and the axis of the dimension.
    pub fn input_with_dim(&self, name: &str) -> Option<(ExprId, usize)> {
        self.conversion.symbolic_dims.get(name).copied()
    }

    /// Assumes that a dimension differs from 1, and returns true, if another program serves the runs in which it is 1.
    pub fn exclude_one(&mut self, dim: &Dim) -> bool {
        let name = dim.name().filter(|name| self.conversion.symbolic_dims.contains_key(*name)).cloned();
        let name = name.filter(|_| self.conversion.excludes_ones);
        let is_excluded = name.is_some();
        self.conversion.excluded_ones.extend(name);
        is_excluded
    }

    /// Returns the cached zero vector whose length is the symbolic dimension `name`, if any.
    pub fn cached_zeros(&self, name: &str) -> Option<ExprId> {
        self.conversion.dim_zeros.get(name).copied()
    }

    /// Caches the zero vector for the symbolic dimension `name`.
    pub fn cache_zeros(&mut self, name: &str, lane: ExprId) {
        self.conversion.dim_zeros.insert(name.into(), lane);
    }

    /// Returns the constant tensor of input `i`, if the input is present. A non-constant input is an error.
    pub fn constant(&mut self, i: usize, role: &str) -> Result<Option<Arc<Tensor>>> {
        let Some(value) = self.optional_input(i) else { return Ok(None) };
        match self.constant_value(value) {
            Some(tensor) => Ok(Some(tensor)),
            None => {
                let message = format!("input {i} ({role}): expected a compile-time constant, found a run-time value");
                let error = self.error(codes::frontends::NOT_CONSTANT, message);
                Err(Box::new(
                    error.help(
                        "bind the dimensions on which the input depends, or export the model with a constant input",
                    ),
                ))
            }
        }
    }

    /// Returns the integers of the constant input `i`, if the input is present.
    pub fn ints(&mut self, i: usize, role: &str) -> Result<Option<Vec<i64>>> {
        let Some(tensor) = self.constant(i, role)? else { return Ok(None) };
        let values = tensor.view().to_i64s();
        values.map(Some).ok_or_else(|| {
            self.invalid_node(format!("input {i} ({role}): expected integers, found {}", tensor.dtype()))
        })
    }

    /// Returns the single integer of the constant input `i`, if the input is present.
    pub fn int(&mut self, i: usize, role: &str) -> Result<Option<i64>> {
        match self.ints(i, role)?.as_deref() {
            None => Ok(None),
            Some([single]) => Ok(Some(*single)),
            Some(values) => {
                Err(self.invalid_node(format!("input {i} ({role}): expected one value, found {}", values.len())))
            }
        }
    }

    fn attribute(&self, name: &str) -> Option<&'a AttributeProto> {
        self.proto.attribute.iter().find(|a| a.name == name)
    }

    fn attribute_of(&self, name: &str, kind: AttributeType) -> Result<Option<&'a AttributeProto>> {
        match self.attribute(name) {
            // Old exporters do not set the type.
            Some(a) if a.r#type == kind as i32 || a.r#type == 0 => Ok(Some(a)),
            Some(a) => Err(self.invalid_node(format!(
                "attribute {name}: expected type {}, found {}",
                kind.name(),
                a.r#type().name()
            ))),
            None => Ok(None),
        }
    }

    /// Returns true if the attribute is present.
    /// Returns the operator that a vendor declares for this node.
    pub fn declared(&self) -> Option<(&'static OpDef, &'static Declared)> {
        byoc_ir::declared::by_onnx(&self.proto.domain, &self.proto.op_type, self.opset)
    }

    pub fn has(&self, name: &str) -> bool {
        self.attribute(name).is_some()
    }

    pub fn int_attr(&self, name: &str, default: i64) -> Result<i64> {
        Ok(self.attribute_of(name, AttributeType::Int)?.map_or(default, |a| a.i.unwrap_or_default()))
    }

    /// Returns a floating-point attribute.
    pub fn float_attr(&self, name: &str, default: f32) -> Result<f64> {
        Ok(f64::from(self.attribute_of(name, AttributeType::Float)?.map_or(default, |a| a.f.unwrap_or_default())))
    }

    pub fn str_attr(&self, name: &str, default: &str) -> Result<String> {
        let Some(attribute) = self.attribute_of(name, AttributeType::String)? else { return Ok(default.to_owned()) };
        let bytes = attribute.s.clone().unwrap_or_default();
        String::from_utf8(bytes.to_vec())
            .map_err(|_| self.invalid_node(format!("attribute {name}: expected UTF-8, found invalid bytes")))
    }

    /// Returns an integer-list attribute, if present.
    pub fn ints_attr(&self, name: &str) -> Result<Option<Vec<i64>>> {
        Ok(self.attribute_of(name, AttributeType::Ints)?.map(|a| a.ints.clone()))
    }

    /// Returns a float-list attribute, if present.
    pub fn floats_attr(&self, name: &str) -> Result<Option<Vec<f64>>> {
        Ok(self.attribute_of(name, AttributeType::Floats)?.map(|a| a.floats.iter().map(|&v| f64::from(v)).collect()))
    }

    /// Returns a string-list attribute, if present.
    pub fn strings_attr(&self, name: &str) -> Result<Option<Vec<String>>> {
        let attribute = self.attribute_of(name, AttributeType::Strings)?;
        Ok(attribute.map(|a| a.strings.iter().map(|s| String::from_utf8_lossy(s).into_owned()).collect()))
    }

    /// Returns a tensor attribute, if present.
    pub fn tensor_attr(&self, name: &str) -> Result<Option<Tensor>> {
        let Some(attribute) = self.attribute_of(name, AttributeType::Tensor)? else { return Ok(None) };
        let proto = attribute.t.as_deref().cloned().unwrap_or_default();
        self.conversion.decode(&proto).map(Some)
    }

    /// Returns a subgraph attribute.
    pub fn graph_attr(&self, name: &str) -> Result<&'a FlatGraph> {
        self.attribute_of(name, AttributeType::Graph)?;
        let graph = self.graphs.iter().find(|(attribute, _)| attribute == name);
        graph.map(|(_, graph)| graph).ok_or_else(|| self.invalid_node(format!("attribute {name} is missing")))
    }

    /// Resolves an axis; a negative axis counts from the end.
    pub fn axis(&self, axis: i64, rank: usize) -> Result<usize> {
        let resolved_axis = if axis < 0 { axis.saturating_add(rank as i64) } else { axis };
        if (0..rank as i64).contains(&resolved_axis) {
            Ok(resolved_axis as usize)
        } else {
            Err(self.invalid_node(format!("axis {axis} is out of range for rank {rank}")))
        }
    }

    pub fn error(&self, code: Code, message: impl Into<String>) -> Diagnostic {
        Diagnostic::error(code, message)
    }

    /// Records a warning about this node.
    pub fn warn(&mut self, message: String) {
        let warning = Diagnostic { severity: Severity::Warning, ..self.error(codes::frontends::BAD_NODE, message) };
        self.conversion.warnings.push(warning);
    }

    /// Creates the diagnostic for a node that cannot be imported.
    pub fn invalid_node(&self, message: impl Into<String>) -> Error {
        Box::new(self.error(codes::frontends::BAD_NODE, message))
    }

    /// Creates a call to a Relay operator, or a constant if the call can be folded.
    pub fn op(&mut self, name: &str, args: &[ExprId], attrs: Attrs) -> Result<ExprId> {
        self.conversion.call(name, args, attrs, self.origin)
    }

    /// Creates a call to a Relay operator, without folding.
    pub fn op_unfolded(&mut self, name: &str, args: &[ExprId], attrs: Attrs) -> Result<ExprId> {
        self.conversion.builder.origin = Some(self.origin);
        self.conversion.builder.op(name, args, attrs)
    }

    /// Creates a call to a Relay operator without attributes.
    pub fn op_without_attrs(&mut self, name: &str, args: &[ExprId]) -> Result<ExprId> {
        self.op(name, args, Attrs::none())
    }

    pub fn tuple(&mut self, fields: &[ExprId]) -> Result<ExprId> {
        self.conversion.builder.origin = Some(self.origin);
        self.conversion.builder.tuple(fields)
    }

    /// Creates a sequence whose length is known in the run only, from its elements, a vector, and the shapes of its
    /// tensors, one row each.
    pub fn packed_sequence(&mut self, [data, shapes]: [ExprId; 2]) -> Result<ExprId> {
        let sequence = self.tuple(&[data, shapes])?;
        self.conversion.packed.insert(sequence);
        Ok(sequence)
    }

    /// Tests whether a value is an optional value that the run provides.
    pub fn is_optional(&self, value: ExprId) -> bool {
        self.conversion.is_optional(value)
    }

    /// Returns the Boolean that tells whether an optional sequence of the run is present.
    pub fn presence(&mut self, value: ExprId) -> Option<ExprId> {
        self.conversion.presence(value)
    }

    /// Records the Boolean that tells whether an optional sequence is present.
    pub fn set_presence(&mut self, value: ExprId, presence: ExprId) {
        self.conversion.set_presence(value, presence);
    }

    /// Tests whether a value has strings: a tensor of spans, or a sequence of such tensors.
    pub fn has_strings(&self, value: ExprId) -> bool {
        self.conversion.has_strings(value)
    }

    /// Returns the bytes of the strings of a value.
    pub fn string_bytes(&mut self, value: ExprId) -> Option<ExprId> {
        self.conversion.string_bytes(value)
    }

    /// Returns the bytes and the spans of the strings in input `i`.
    pub fn strings(&mut self, i: usize) -> Result<[ExprId; 2]> {
        let spans = self.input(i)?;
        match self.string_bytes(spans) {
            Some(bytes) => Ok([bytes, spans]),
            None => {
                let message = format!("input {i}: expected strings, found {}", self.value_type(spans));
                Err(Box::new(self.error(codes::frontends::STRING_MISUSE, message)))
            }
        }
    }

    /// Returns a tensor of spans, or a sequence of them, as a value whose strings have the given bytes.
    pub fn with_bytes(&mut self, spans: ExprId, bytes: ExprId) -> ExprId {
        self.conversion.set_string_bytes(spans, bytes);
        spans
    }

    /// Creates a constant tensor of strings.
    pub fn string_tensor<S: AsRef<[u8]>>(&mut self, shape: &[usize], strings: &[S]) -> Result<ExprId> {
        self.conversion.builder.origin = Some(self.origin);
        self.conversion.string_constant(shape, strings)
    }

    /// Returns the constant strings in a tensor attribute, if it has strings.
    pub fn string_tensor_attr(&mut self, name: &str) -> Result<Option<ExprId>> {
        let attribute = self.attribute(name).and_then(|attribute| attribute.t.as_deref());
        let Some(proto) = attribute.filter(|proto| proto.data_type == STRING) else { return Ok(None) };
        self.conversion.builder.origin = Some(self.origin);
        self.conversion.constant(proto).map(Some)
    }

    /// Creates a sequence of maps from its values, a row for each map, and its keys.
    pub fn maps(&mut self, values: ExprId, keys: ExprId) -> Result<ExprId> {
        let maps = self.tuple(&[values, keys])?;
        self.conversion.maps.insert(maps);
        Ok(maps)
    }

    /// Replaces an input.
    pub fn replace_input(&mut self, i: usize, value: ExprId) {
        self.inputs[i] = Some(value);
    }

    /// Tests whether a value is a sequence whose length is known in the run only.
    pub fn is_packed(&self, value: ExprId) -> bool {
        self.conversion.packed.contains(&value)
    }

    /// Returns a field of a tuple.
    pub fn project(&mut self, tuple: ExprId, index: u32) -> Result<ExprId> {
        if let Expr::Tuple(fields) = self.conversion.builder.module.expr(tuple)
            && let Some(&field) = fields.get(index as usize)
        {
            return Ok(field);
        }
        self.conversion.builder.origin = Some(self.origin);
        let field = self.conversion.builder.project(tuple, index)?;
        self.conversion.name_field(field);
        Ok(field)
    }

    /// Converts a subgraph with the given input values, and returns its outputs.
    pub fn subgraph(&mut self, graph: &FlatGraph, inputs: &[ExprId]) -> Result<Vec<ExprId>> {
        self.conversion.subgraph(graph, inputs)
    }

    /// Opens a function: until it is closed, outer values that subgraphs read are captured.
    pub fn open_function(&mut self) {
        self.conversion.open_function();
    }

    /// Records that the function that is being opened runs once per iteration; `iteration` is its parameter.
    pub fn enter_loop(&mut self, iteration: ExprId) {
        self.conversion.enter_loop(iteration);
    }

    /// Leaves the loop that was entered last.
    pub fn leave_loop(&mut self) {
        self.conversion.leave_loop();
    }

    /// Returns the number of the iteration of the innermost loop, an int64 scalar, if the node is in a loop.
    pub fn iteration(&mut self) -> Option<ExprId> {
        self.conversion.iteration()
    }

    /// Returns a number that no other operator of the model gets.
    pub fn random_number(&mut self) -> u64 {
        self.conversion.random_numbers += 1;
        self.conversion.random_numbers
    }

    /// Captures an outer value in the innermost function, so that it is computed only once, and returns the expression
    /// that represents it there.
    pub fn capture(&mut self, value: ExprId) -> ExprId {
        self.conversion.capture_value(value)
    }

    /// Closes the innermost function, and returns its captured outer values, each with the variable that represents it.
    pub fn close_function(&mut self) -> Vec<(ExprId, ExprId)> {
        self.conversion.close_function()
    }

    fn builder(&mut self) -> &mut Builder {
        self.conversion.builder.origin = Some(self.origin);
        &mut self.conversion.builder
    }

    /// Returns the type of a value of any kind, including non-tensors.
    pub fn value_type(&self, value: ExprId) -> Type {
        self.conversion.builder.module.ty(value).clone()
    }

    pub fn variable(&mut self, name: &str, ty: Type) -> ExprId {
        self.builder().var(name, ty)
    }

    /// Creates `if (cond) { then } else { otherwise }`.
    pub fn if_else(&mut self, cond: ExprId, [then, otherwise]: [ExprId; 2]) -> Result<ExprId> {
        self.builder().push(Expr::If { cond, then, otherwise })
    }

    pub fn function(&mut self, params: &[ExprId], body: ExprId, ret: Type) -> Result<ExprId> {
        self.builder().function(params, body, ret, Attrs::none())
    }

    pub fn call_function(&mut self, function: ExprId, args: &[ExprId]) -> Result<ExprId> {
        self.builder().call(function, args)
    }

    /// Creates `let var = value; body`.
    pub fn let_in(&mut self, var: ExprId, value: ExprId, body: ExprId) -> Result<ExprId> {
        self.builder().push(Expr::Let { var, value, body })
    }

    /// Creates a constant.
    pub fn tensor(&mut self, tensor: Tensor) -> ExprId {
        self.conversion.builder.origin = Some(self.origin);
        self.conversion.builder.constant(tensor)
    }

    /// Creates a rank-0 constant.
    pub fn scalar(&mut self, dtype: DType, value: f64) -> ExprId {
        self.tensor(from_f64s(dtype, &[], &[value]))
    }

    /// Returns the structures that become one operator.
    pub fn host_operators(&self) -> HostOperators {
        self.conversion.host_operators
    }

    /// Reserves steps from the unrolling budget, which all layers and directions of the model share.
    ///
    /// # Errors
    /// If `steps` exceeds the remaining budget.
    pub fn reserve_steps(&mut self, steps: usize) -> Result<()> {
        let remaining = self.conversion.steps_left;
        self.conversion.steps_left = remaining.checked_sub(steps).ok_or_else(|| {
            let message = format!("expected a sequence of at most {remaining} steps, found {steps} steps");
            let bound = format!("the recurrent layers of a model are unrolled into at most {MAX_STEPS} steps in total");
            Box::new(
                self.invalid_node(message)
                    .note(bound)
                    .help("bind a shorter sequence length, or split the sequence across several runs"),
            )
        })?;
        Ok(())
    }

    /// Creates a tensor filled with one value: a constant, or a call to `full` if the tensor is large.
    pub fn constant_tensor(&mut self, dtype: DType, shape: &[usize], value: f64) -> Result<ExprId> {
        let value = self.scalar(dtype, value);
        let dims = AttrValue::ints(shape.iter().map(|&d| d as i64));
        self.op("full", &[value], attrs![shape: dims, dtype: dtype])
    }

    /// Creates a zero tensor with [`Node::constant_tensor`].
    pub fn zeros(&mut self, dtype: DType, shape: &[usize]) -> Result<ExprId> {
        self.constant_tensor(dtype, shape, 0.0)
    }

    /// Creates a constant vector.
    pub fn vector<T: Element>(&mut self, values: &[T]) -> ExprId {
        self.tensor(Tensor::from_slice(&[values.len()], values))
    }

    /// Creates a constant vector of Booleans.
    pub fn bools(&mut self, values: &[bool]) -> ExprId {
        self.tensor(Tensor::from_bools(&[values.len()], values))
    }

    /// Returns `value` with this node added to its origins; used by identity nodes.
    pub fn forward(&mut self, value: ExprId) -> ExprId {
        let origin = self.conversion.builder.module.nodes[value].origin;
        let merged_origin = self.conversion.union(origin, self.origin);
        self.conversion.builder.module.nodes[value].origin = merged_origin;
        value
    }

    pub fn reshape(&mut self, value: ExprId, shape: &[usize]) -> Result<ExprId> {
        let dims: Vec<Dim> = shape.iter().map(|&n| Dim::Fixed(n)).collect();
        self.reshape_to(value, &dims)
    }

    pub fn transpose(&mut self, value: ExprId, axes: &[usize]) -> Result<ExprId> {
        if axes.iter().enumerate().all(|(i, &axis)| i == axis) {
            return Ok(value);
        }
        self.op("transpose", &[value], attrs![axes: AttrValue::ints(axes.iter().map(|&a| a as i64))])
    }

    /// Casts `value` to an element type.
    pub fn cast(&mut self, value: ExprId, dtype: DType) -> Result<ExprId> {
        if self.dtype(value)? == dtype {
            return Ok(value);
        }
        self.op("cast", &[value], attrs![dtype: dtype])
    }

    /// Casts 16-bit floats to float32, for conversions that consist of several calls and round only the final result.
    pub fn widen(&mut self, value: ExprId) -> Result<ExprId> {
        match self.dtype(value)? {
            DType::F16 | DType::BF16 => self.cast(value, DType::F32),
            _ => Ok(value),
        }
    }

    /// Slices `value` along one axis.
    pub fn slice(&mut self, value: ExprId, axis: usize, begin: usize, end: usize) -> Result<ExprId> {
        let (begin, end, axis) = (begin as i64, end as i64, axis as i64);
        self.op("strided_slice", &[value], attrs![begin: [begin], end: [end], strides: [1], axes: [axis]])
    }

    /// Concatenates values along an axis; a single value is returned unchanged.
    pub fn concatenate(&mut self, values: &[ExprId], axis: i64) -> Result<ExprId> {
        if let [value] = values {
            return Ok(*value);
        }
        let tuple = self.tuple(values)?;
        self.op("concatenate", &[tuple], attrs![axis: axis])
    }

    /// Creates `a op scalar`, where the scalar has the element type of `a`.
    pub fn with_scalar(&mut self, op: &str, a: ExprId, value: f64) -> Result<ExprId> {
        let scalar = self.scalar(self.dtype(a)?, value);
        self.op_without_attrs(op, &[a, scalar])
    }
}

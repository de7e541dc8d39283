//! Conversion state: the module under construction, values by name, and folded constants.

use super::external::ExternalFiles;
use super::graph::{FlatGraph, FlatNode};
use super::names::{Names, Source};
use super::proto::{GraphProto, NodeProto, TensorProto, ValueInfoProto};
use super::size::{Size, Sizes};
use super::{invalid_model, tensor};
use byoc_ir::cancel;
use byoc_ir::diag::{Code, Diagnostic, codes};
use byoc_ir::interface::{HostOperators, PortInfo, PortKind, Signature};
use byoc_ir::ir::{Attrs, Callee, Dim, Expr, ExprId, Module, Name, OpId, OriginId, TensorType, Type};
use byoc_ir::op::{self, Value};
use byoc_ir::tensor::{DType, Tensor, strings};
use byoc_ir::typing::Builder;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Error type of converters.
pub type Error = Box<Diagnostic>;

/// Result of a conversion step.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Maximum size of a folded constant in bytes, unless its operands are larger.
const MAX_FOLD_BYTES: usize = 64 << 20;
/// Minimum size in bytes of an initializer that is released once nothing reads it.
const MIN_LARGE_BYTES: usize = 64 << 10;
/// Minimum size in bytes of a constant that is folded once for all its users.
const MIN_SHARED_BYTES: usize = 256;
/// Maximum total size of all folded constants in bytes, in addition to twice the size of the weights.
const MAX_TOTAL_FOLD_BYTES: usize = 256 << 20;
/// Maximum number of FLOPs of a folded call; a more expensive call is executed at run time.
const MAX_FOLD_FLOPS: u64 = 50_000_000;
/// Maximum size of an origin set; without a limit, a long chain of constants would have quadratic cost.
const MAX_ORIGINS: usize = 2048;

/// Maximum total number of unrolled steps over all recurrent layers in a model. Each step has about a dozen operators,
/// so a backend would take minutes to compile many more steps.
pub const MAX_STEPS: usize = 10_000;

/// Maximum number of conversions of nodes in subgraphs. The body of a loop is converted until its types are known, or once
/// for each iteration, and so are the loops in it.
const MAX_CONVERSIONS: usize = 1_000_000;

/// Function that converts the node at the given position in its graph.
pub type ConvertNode = fn(&mut ConversionState<'_>, &FlatNode, usize) -> Result<()>;

/// Value bound to a name.
#[derive(Clone, Copy)]
struct Binding {
    value: ExprId,
    /// Function nesting depth at which the name was bound.
    depth: usize,
}

/// Captured outer values of a function under construction.
#[derive(Default)]
struct Captures {
    /// Pairs of an outer value and its variable in the function, in order of first use.
    variables: Vec<(ExprId, ExprId)>,
    /// Variable of each outer value.
    by_value: HashMap<ExprId, ExprId>,
}

/// State of a model conversion.
pub struct ConversionState<'m> {
    /// Module builder.
    pub builder: Builder,
    /// Warnings so far.
    pub warnings: Vec<Diagnostic>,
    /// Tracked elements of small integer tensors.
    pub sizes: Sizes,
    /// Named dimensions of values whose types have unknown dimensions.
    pub names: Names,
    /// Input and axis that provide each symbolic dimension.
    pub symbolic_dims: BTreeMap<Name, (ExprId, usize)>,
    /// True if symbolic dimensions may be assumed to differ from 1.
    pub excludes_ones: bool,
    /// Symbolic dimensions assumed to differ from 1.
    pub excluded_ones: BTreeSet<Name>,
    /// Structures that become one operator.
    pub host_operators: HostOperators,
    /// Zero vectors, by the symbolic dimension that is their length.
    pub dim_zeros: BTreeMap<Name, ExprId>,
    /// Remaining conversions of nodes in subgraphs.
    conversions_left: usize,
    /// Number of random operators so far.
    pub random_numbers: u64,
    /// Iteration numbers of the loops around the current node, innermost last.
    iterations: Vec<Binding>,
    /// Remaining unrolling budget for recurrent layers, in steps.
    pub steps_left: usize,
    /// Sequences whose length is known in the run only: tuples of their elements and shapes.
    pub packed: HashSet<ExprId>,
    /// Sequences of maps: tuples of the values, a row for each map, and the keys.
    pub maps: HashSet<ExprId>,
    /// Sequences that are optional values of the run, each with a Boolean that tells whether it is present; without one, an
    /// empty sequence is an absent tensor.
    optional: HashMap<ExprId, Option<Binding>>,
    /// Bytes of the strings of each value that has strings: a tensor of spans, or a sequence of such tensors.
    string_bytes: HashMap<ExprId, Binding>,
    values: HashMap<String, Binding>,
    /// Previous bindings of the names that the innermost subgraph has bound.
    shadowed: Vec<(String, Option<Binding>)>,
    /// Functions under construction, innermost last.
    functions: Vec<Captures>,
    /// Subgraph nesting depth of the current node.
    nesting: usize,
    convert: ConvertNode,
    initializers: HashMap<&'m str, Initializer<'m>>,
    external: Option<&'m ExternalFiles>,
    /// Initializers that must remain in the module because a node reads them.
    retained_initializers: HashSet<ExprId>,
    /// Results of folded calls by operator and arguments, with the attributes, so that a weight which several nodes fold
    /// in the same way is one constant.
    folded: HashMap<(OpId, Box<[ExprId]>), Vec<(Attrs, ExprId)>>,
    /// First constant of each initializer that has been released.
    released: HashMap<String, ExprId>,
    /// First constant of each initializer that was decoded again after its release.
    decoded_again: HashMap<ExprId, ExprId>,
    budget: usize,
}

#[derive(Clone, Copy)]
enum Initializer<'m> {
    Dense(&'m TensorProto),
    Sparse(&'m super::proto::SparseTensorProto),
}

impl<'m> ConversionState<'m> {
    /// Creates the state for a graph, without bound values.
    pub fn new(
        graph: &'m GraphProto,
        external: Option<&'m ExternalFiles>,
        convert: ConvertNode,
    ) -> Result<ConversionState<'m>, Vec<Diagnostic>> {
        let mut initializers: HashMap<&str, Initializer<'_>> = HashMap::new();
        let mut weights = 0usize;
        for tensor in &graph.initializer {
            weights += tensor.raw_data.as_ref().map_or(0, super::proto::Bytes::len);
            if initializers.insert(&tensor.name, Initializer::Dense(tensor)).is_some() {
                let message = format!("duplicate initializer \"{}\"", tensor.name);
                return Err(vec![Diagnostic::error(codes::frontends::DUPLICATE_VALUE, message)]);
            }
        }
        for sparse in &graph.sparse_initializer {
            if let Some(values) = &sparse.values {
                initializers.insert(&values.name, Initializer::Sparse(sparse));
            }
        }
        Ok(ConversionState {
            builder: Builder::new(Module::new()),
            warnings: Vec::new(),
            sizes: Sizes::default(),
            names: Names::default(),
            symbolic_dims: BTreeMap::new(),
            excludes_ones: false,
            excluded_ones: BTreeSet::new(),
            host_operators: HostOperators::None,
            dim_zeros: BTreeMap::new(),
            conversions_left: MAX_CONVERSIONS,
            random_numbers: 0,
            iterations: Vec::new(),
            steps_left: MAX_STEPS,
            packed: HashSet::new(),
            maps: HashSet::new(),
            optional: HashMap::new(),
            string_bytes: HashMap::new(),
            values: HashMap::new(),
            shadowed: Vec::new(),
            functions: Vec::new(),
            nesting: 0,
            convert,
            initializers,
            external,
            retained_initializers: HashSet::new(),
            folded: HashMap::new(),
            released: HashMap::new(),
            decoded_again: HashMap::new(),
            budget: MAX_TOTAL_FOLD_BYTES.saturating_add(weights.saturating_mul(2)),
        })
    }

    /// Removes the initializers of the inputs, and returns their values, which are the defaults of these inputs.
    pub fn take_defaults(&mut self, signature: &Signature) -> Result<Vec<Tensor>> {
        let mut defaults = Vec::new();
        for port in &signature.inputs {
            if let Some(initializer) = self.initializers.remove(port.name.as_str()) {
                defaults.push(self.decode_initializer(&port.name, initializer)?);
            }
        }
        Ok(defaults)
    }

    fn decode_initializer(&self, name: &str, initializer: Initializer<'_>) -> Result<Tensor> {
        match initializer {
            Initializer::Dense(proto) => self.decode(proto),
            Initializer::Sparse(proto) => tensor::decode_sparse(proto, MAX_FOLD_BYTES)
                .map_err(|reason| bad_tensor(name, &reason, codes::frontends::BAD_TENSOR)),
        }
    }

    /// Returns the value bound to `name`; an initializer is decoded at its first use.
    pub fn value(&mut self, name: &str) -> Result<Option<ExprId>> {
        if let Some(&Binding { value, depth }) = self.values.get(name) {
            return Ok(Some(self.capture_from(value, depth)));
        }
        let Some(&initializer) = self.initializers.get(name) else {
            return Ok(None);
        };
        self.builder.origin = None;
        let value = match initializer {
            Initializer::Dense(proto) => self.constant(proto)?,
            sparse => {
                let tensor = self.decode_initializer(name, sparse)?;
                self.builder.constant(tensor)
            }
        };
        if let Some(&first) = self.released.get(name) {
            self.decoded_again.insert(value, first);
        }
        self.values.insert(name.to_owned(), Binding { value, depth: 0 });
        Ok(Some(value))
    }

    /// Returns the expression that represents an outer value in a function under construction: the value itself if it
    /// is a constant or a variable, otherwise a variable that captures it. A captured value is computed once instead of
    /// in every call.
    fn capture(&mut self, value: ExprId, function: usize) -> ExprId {
        if matches!(self.builder.module.expr(value), Expr::Constant(_) | Expr::Var(_)) {
            return value;
        }
        if let Some(&variable) = self.functions[function].by_value.get(&value) {
            return variable;
        }
        let ty = self.builder.module.ty(value).clone();
        let variable = self.builder.var("captured", ty);
        if let Some(sizes) = self.sizes.get(&self.builder.module, value) {
            self.sizes.set(variable, sizes);
        }
        self.names.copy(value, variable);
        if self.packed.contains(&value) {
            self.packed.insert(variable);
        }
        if let Some(&presence) = self.optional.get(&value) {
            let presence = presence.map(|Binding { value, depth }| Binding {
                value: (depth..=function).fold(value, |value, function| self.capture(value, function)),
                depth: function + 1,
            });
            self.optional.insert(variable, presence);
        }
        if let Some(&Binding { value: bytes, depth }) = self.string_bytes.get(&value) {
            let bytes = (depth..=function).fold(bytes, |bytes, function| self.capture(bytes, function));
            self.string_bytes.insert(variable, Binding { value: bytes, depth: function + 1 });
        }
        self.functions[function].variables.push((value, variable));
        self.functions[function].by_value.insert(value, variable);
        variable
    }

    /// Returns the expression that represents, in the innermost function, a value that is visible at function nesting
    /// depth `depth`.
    pub fn capture_from(&mut self, value: ExprId, depth: usize) -> ExprId {
        (depth..self.functions.len()).fold(value, |value, function| self.capture(value, function))
    }

    /// Tests whether a value has strings.
    pub fn has_strings(&self, value: ExprId) -> bool {
        self.string_bytes.contains_key(&value)
    }

    /// Returns the bytes of the strings of a value, as an expression in the innermost function.
    pub fn string_bytes(&mut self, value: ExprId) -> Option<ExprId> {
        let &Binding { value, depth } = self.string_bytes.get(&value)?;
        Some(self.capture_from(value, depth))
    }

    /// Records the bytes of the strings of a value. A value that has bytes keeps them, as others begin with the same.
    pub fn set_string_bytes(&mut self, value: ExprId, bytes: ExprId) {
        let depth = self.functions.len();
        self.string_bytes.entry(value).or_insert(Binding { value: bytes, depth });
    }

    /// Tests whether a value is an optional value of the run.
    pub fn is_optional(&self, value: ExprId) -> bool {
        self.optional.contains_key(&value)
    }

    /// Returns the Boolean that tells whether an optional sequence of the run is present.
    pub fn presence(&mut self, value: ExprId) -> Option<ExprId> {
        let Binding { value, depth } = (*self.optional.get(&value)?)?;
        Some(self.capture_from(value, depth))
    }

    /// Records the Boolean that tells whether an optional sequence is present.
    pub fn set_presence(&mut self, value: ExprId, presence: ExprId) {
        let binding = Binding { value: presence, depth: self.functions.len() };
        self.optional.insert(value, Some(binding));
    }

    /// Creates a constant tensor of strings.
    pub fn string_constant<S: AsRef<[u8]>>(&mut self, shape: &[usize], strings: &[S]) -> Result<ExprId> {
        let [spans, bytes] = strings::encode(shape, strings).map_err(|error| match error {
            strings::EncodeError::Invalid(reason) => {
                Diagnostic::error(codes::frontends::BAD_TENSOR, reason.to_string())
            }
            strings::EncodeError::Memory(error) => Diagnostic::from(error),
        })?;
        let (spans, bytes) = (self.builder.constant(spans), self.builder.constant(bytes));
        self.set_string_bytes(spans, bytes);
        Ok(spans)
    }

    /// Creates the constant for a tensor of the model, which may have strings.
    pub fn constant(&mut self, proto: &TensorProto) -> Result<ExprId> {
        if proto.data_type != tensor::STRING {
            let tensor = self.decode(proto)?;
            return Ok(self.builder.constant(tensor));
        }
        let (shape, strings) = tensor::decode_strings(proto)
            .map_err(|reason| bad_tensor(&proto.name, &reason, codes::frontends::BAD_TENSOR))?;
        self.string_constant(&shape, &strings)
    }

    /// Returns the value of an input, whose ports are the first of `ports`.
    pub fn input_value(&mut self, kind: PortKind, ports: &[ExprId]) -> Result<ExprId> {
        match (kind, ports) {
            (PortKind::Strings, &[spans, bytes, ..]) => {
                self.set_string_bytes(spans, bytes);
                Ok(spans)
            }
            (
                PortKind::Sequence | PortKind::StringSequence | PortKind::Optional | PortKind::OptionalSequence,
                &[data, shapes, ref rest @ ..],
            ) => {
                // An empty sequence whose rank the model does not declare takes tensors of any rank.
                let is_empty =
                    self.builder.module.ty(shapes).as_tensor().is_some_and(|ty| ty.dims[0].fixed() == Some(0));
                let fields = [data, shapes];
                let sequence = self.builder.tuple(if is_empty { &[] } else { &fields })?;
                if !is_empty {
                    self.packed.insert(sequence);
                }
                match kind {
                    PortKind::Optional => drop(self.optional.insert(sequence, None)),
                    PortKind::OptionalSequence => {
                        let presence = rest.first().map(|&value| Binding { value, depth: 0 });
                        self.optional.insert(sequence, presence);
                    }
                    _ => {}
                }
                if kind == PortKind::StringSequence
                    && let Some(&bytes) = rest.first()
                {
                    self.set_string_bytes(sequence, bytes);
                }
                Ok(sequence)
            }
            (_, ports) => Ok(ports[0]),
        }
    }

    /// Returns the tensors of an output, one for each of its ports.
    pub fn output_parts(&mut self, port: &PortInfo, value: ExprId) -> Result<Vec<ExprId>> {
        let mut found = match self.builder.module.ty(value) {
            Type::Tensor(_) => vec![value],
            _ if self.packed.contains(&value) || self.maps.contains(&value) => {
                (0..2).map(|i| self.builder.project(value, i)).collect::<Result<_>>()?
            }
            _ => Vec::new(),
        };
        let kind = match (self.maps.contains(&value), found.len(), self.has_strings(value)) {
            (false, 1, false) => PortKind::Tensor,
            (false, 1, true) => PortKind::Strings,
            (false, _, false) => PortKind::Sequence,
            (false, _, true) => PortKind::StringSequence,
            (true, _, false) => PortKind::Maps,
            (true, _, true) => PortKind::StringMaps,
        };
        found.extend(self.string_bytes(value));
        if port.kind == PortKind::OptionalSequence {
            let presence = self.presence(value);
            found.push(presence.unwrap_or_else(|| self.builder.constant(Tensor::from_bools(&[], &[true]))));
        }
        let may_be_absent = matches!(port.kind, PortKind::Optional | PortKind::OptionalSequence);
        let is_declared = kind == port.kind || kind == PortKind::Sequence && may_be_absent;
        if is_declared && found.len() == port.kind.parts().len() + 1 {
            return Ok(found);
        }
        let (name, declared) = (&port.name, port.kind.name());
        let message =
            format!("output \"{name}\": expected a value of kind {declared}, found one of kind {}", kind.name());
        let code = match (kind, port.kind) {
            (PortKind::Strings, PortKind::Tensor) | (PortKind::Tensor, PortKind::Strings) => {
                codes::frontends::STRING_MISUSE
            }
            _ => codes::frontends::UNSUPPORTED_TYPE,
        };
        Err(Box::new(Diagnostic::error(code, message)))
    }

    /// Returns the dimensions of a value of type `ty`; dimensions known only at run time have names.
    pub fn named_dims(&mut self, value: ExprId, ty: &TensorType) -> Vec<Dim> {
        self.names.dims(value, ty, self.functions.len())
    }

    /// Records the dimensions of a value whose type has unknown dimensions.
    pub fn name_dims(&mut self, value: ExprId, dims: &[Dim]) {
        self.names.set(&self.builder.module, value, dims);
    }

    /// Derives the dimensions of a field of a call's result from the named dimensions of the arguments.
    pub fn name_field(&mut self, field: ExprId) {
        self.names.derive(&self.builder.module, field, self.functions.len());
    }

    /// Returns the value and the axis that provide a named dimension. The value is an expression in the innermost
    /// function.
    pub fn source_of_dim(&mut self, name: &str) -> Option<(ExprId, usize)> {
        let Source { value, axis, depth } = self.names.source(name)?;
        Some((self.capture_from(value, depth), axis))
    }

    /// Returns the expression that represents an outer value in the innermost function.
    pub fn capture_value(&mut self, value: ExprId) -> ExprId {
        match self.functions.len().checked_sub(1) {
            Some(innermost) => self.capture(value, innermost),
            None => value,
        }
    }

    /// Enters a loop, whose function is open; `iteration` is a parameter of it.
    pub fn enter_loop(&mut self, iteration: ExprId) {
        self.iterations.push(Binding { value: iteration, depth: self.functions.len() });
    }

    /// Leaves the innermost loop.
    pub fn leave_loop(&mut self) {
        self.iterations.pop();
    }

    /// Returns the number of the iteration of the innermost loop.
    pub fn iteration(&mut self) -> Option<ExprId> {
        let &Binding { value, depth } = self.iterations.last()?;
        Some(self.capture_from(value, depth))
    }

    /// Opens a function: outer values that it reads by name are captured.
    pub fn open_function(&mut self) {
        self.functions.push(Captures::default());
    }

    /// Closes the innermost function, and returns its captured outer values, each with the variable that represents it.
    pub fn close_function(&mut self) -> Vec<(ExprId, ExprId)> {
        self.functions.pop().map(|captures| captures.variables).unwrap_or_default()
    }

    /// Binds a name to a value.
    ///
    /// # Errors
    /// If the main graph binds the name twice. A subgraph may shadow names.
    pub fn bind_name(&mut self, name: &str, value: ExprId) -> Result<()> {
        let binding = Binding { value, depth: self.functions.len() };
        let previous = self.values.insert(name.to_owned(), binding);
        if self.nesting > 0 {
            self.shadowed.push((name.to_owned(), previous));
        } else if previous.is_some() || self.initializers.contains_key(name) {
            let message = format!("duplicate value \"{name}\"");
            return Err(Box::new(Diagnostic::error(codes::frontends::DUPLICATE_VALUE, message)));
        }
        Ok(())
    }

    /// Converts a subgraph with the given input values, and returns its outputs. Names of the enclosing graphs are
    /// visible in the subgraph; names that the subgraph binds are not visible outside.
    pub fn subgraph(&mut self, graph: &FlatGraph, inputs: &[ExprId]) -> Result<Vec<ExprId>> {
        self.nesting += 1;
        let (outer_shadowed, depth) = (std::mem::take(&mut self.shadowed), self.functions.len());
        let outputs = self.convert_subgraph(graph, inputs);
        // After an error, functions that the subgraph opened are still open.
        self.functions.truncate(depth);
        for (name, previous) in std::mem::replace(&mut self.shadowed, outer_shadowed).into_iter().rev() {
            match previous {
                Some(previous) => self.values.insert(name, previous),
                None => self.values.remove(&name),
            };
        }
        self.nesting -= 1;
        outputs
    }

    fn convert_subgraph(&mut self, FlatGraph { proto, nodes }: &FlatGraph, inputs: &[ExprId]) -> Result<Vec<ExprId>> {
        for (port, &value) in proto.input.iter().zip(inputs) {
            self.bind_name(&port.name, value)?;
        }
        for proto in &proto.initializer {
            self.builder.origin = None;
            let value = self.constant(proto)?;
            self.bind_name(&proto.name, value)?;
        }
        for (position, node) in nodes.iter().enumerate() {
            cancel::check(|| format!("{position} of {} nodes of a subgraph had been converted", nodes.len()))?;
            self.conversions_left = self.conversions_left.checked_sub(1).ok_or_else(|| {
                let message = format!("loops: expected at most {MAX_CONVERSIONS} nodes after unrolling, found more");
                Box::new(invalid_model(message))
            })?;
            (self.convert)(self, node, position)?;
        }
        let output = |port: &ValueInfoProto| {
            self.value(&port.name)?.ok_or_else(|| {
                let message = format!("subgraph output \"{}\" is neither the result of a node nor an input", port.name);
                Box::new(Diagnostic::error(codes::frontends::MISSING_VALUE, message))
            })
        };
        proto.output.iter().map(output).collect()
    }

    /// Releases large initializers that a node has folded into new constants (usually transposed matrices), so that
    /// only one copy is in memory. Expressions with ids >= `first_id` belong to the node. A released initializer is
    /// decoded again if a later node uses it.
    pub fn release_folded(&mut self, proto: &NodeProto, outputs: &[ExprId], first_id: usize) {
        let mut operands: Option<HashSet<ExprId>> = None;
        for name in proto.input.iter().filter(|name| self.initializers.contains_key(name.as_str())) {
            let Some(id) = self.values.get(name).map(|binding| binding.value) else { continue };
            let module = &mut self.builder.module;
            let is_large = module.expr(id).as_constant().is_some_and(|tensor| tensor.bytes().len() >= MIN_LARGE_BYTES);
            let mut is_read = !is_large || self.retained_initializers.contains(&id);
            if !is_read {
                let operands = operands.get_or_insert_with(|| {
                    let mut operands = HashSet::from_iter(outputs.iter().copied());
                    for (_, node) in module.nodes.iter().rev().take(module.nodes.len() - first_id) {
                        node.expr.for_each_operand(|operand| {
                            operands.insert(operand);
                        });
                    }
                    operands
                });
                is_read = operands.contains(&id);
            }
            if is_read {
                // This node still reads the initializer, so it must remain even if a later node folds it.
                self.retained_initializers.insert(id);
                continue;
            }
            self.values.remove(name);
            let first = self.decoded_again.get(&id).copied().unwrap_or(id);
            self.released.insert(name.clone(), first);
            let empty_tensor = Tensor::empty();
            module.nodes[id].ty = Type::tensor(empty_tensor.dtype(), empty_tensor.shape());
            module.nodes[id].expr = Expr::Constant(empty_tensor.into());
        }
    }

    /// Decodes a tensor of the model.
    pub fn decode(&self, proto: &TensorProto) -> Result<Tensor> {
        let is_external = proto.data_location == super::proto::LOCATION_EXTERNAL;
        let code = if is_external { codes::frontends::BAD_EXTERNAL_DATA } else { codes::frontends::BAD_TENSOR };
        tensor::decode(proto, self.external).map_err(|reason| bad_tensor(&proto.name, &reason, code))
    }

    /// Creates a call, or a constant if the call can be folded.
    pub fn call(&mut self, name: &str, args: &[ExprId], attrs: Attrs, origin: OriginId) -> Result<ExprId> {
        if let Some(values) = args.iter().map(|&a| self.known_value(a)).collect::<Option<Vec<Value>>>()
            && let Some(id) = op::lookup(name)
            && let Ok(attrs) = op::normalize_attrs(op::get(id), attrs.clone())
        {
            if let Some(constant) = self.folded_before(id, &attrs, args) {
                let union = self.union_with(origin, args);
                let union = self.union(self.builder.module.nodes[constant].origin, union);
                self.builder.module.nodes[constant].origin = union;
                return Ok(constant);
            }
            if let Some(outputs) = self.fold(id, &attrs, args, &values) {
                return self.add_folded(id, attrs, args, origin, outputs);
            }
        }
        self.call_unfolded(name, args, attrs, origin)
    }

    fn fold_key(&self, op: OpId, args: &[ExprId]) -> (OpId, Box<[ExprId]>) {
        let first = |arg: &ExprId| self.decoded_again.get(arg).copied().unwrap_or(*arg);
        (op, args.iter().map(first).collect())
    }

    /// Returns the constant to which an equal call was folded.
    fn folded_before(&self, op: OpId, attrs: &Attrs, args: &[ExprId]) -> Option<ExprId> {
        let calls = self.folded.get(&self.fold_key(op, args))?;
        calls.iter().find(|(other, _)| other == attrs).map(|(_, constant)| *constant)
    }

    fn add_folded(
        &mut self,
        op: OpId,
        attrs: Attrs,
        args: &[ExprId],
        origin: OriginId,
        outputs: FoldResult,
    ) -> Result<ExprId> {
        self.builder.origin = Some(self.union_with(origin, args));
        match outputs {
            FoldResult::One(tensor) => {
                let is_shared = tensor.bytes().len() >= MIN_SHARED_BYTES;
                let constant = self.builder.constant(tensor);
                if is_shared {
                    self.folded.entry(self.fold_key(op, args)).or_default().push((attrs, constant));
                }
                Ok(constant)
            }
            FoldResult::Tuple(tensors) => {
                let fields: Vec<ExprId> = tensors.into_iter().map(|t| self.builder.constant(t)).collect();
                self.builder.tuple(&fields)
            }
        }
    }

    fn call_unfolded(&mut self, name: &str, args: &[ExprId], attrs: Attrs, origin: OriginId) -> Result<ExprId> {
        self.builder.origin = Some(origin);
        let call = self.builder.op(name, args, attrs)?;
        self.names.derive(&self.builder.module, call, self.functions.len());
        let module = &self.builder.module;
        let (Expr::Call(call_expr), Type::Tensor(ty)) = (module.expr(call), module.ty(call)) else { return Ok(call) };
        let Callee::Op(op) = call_expr.callee else { return Ok(call) };
        let Some(sizes) = self.sizes.of_call(module, op, &call_expr.attrs, args, ty) else { return Ok(call) };
        let constant_sizes: Option<Vec<i64>> =
            sizes.iter().map(|size| size.as_ref().and_then(Size::as_constant)).collect();
        let (Some(constant_sizes), Some(shape)) = (constant_sizes, ty.shape()) else {
            self.sizes.set(call, sizes);
            return Ok(call);
        };
        // No element depends on a symbolic dimension, so the result is a constant.
        let tensor = match ty.dtype {
            DType::I64 => Tensor::from_slice(&shape, &constant_sizes),
            dtype => tensor::from_f64s(dtype, &shape, &constant_sizes.iter().map(|&n| n as f64).collect::<Vec<_>>()),
        };
        self.builder.origin = Some(self.union_with(origin, args));
        Ok(self.builder.constant(tensor))
    }

    /// Returns the union of an origin with the origins of the arguments, including the fields of tuple arguments.
    fn union_with(&mut self, origin: OriginId, args: &[ExprId]) -> OriginId {
        let mut union = origin;
        for &arg in args {
            union = self.union(union, self.builder.module.nodes[arg].origin);
            if let Expr::Tuple(fields) = self.builder.module.expr(arg) {
                for field in fields.clone() {
                    union = self.union(union, self.builder.module.nodes[field].origin);
                }
            }
        }
        union
    }

    fn known_value(&self, id: ExprId) -> Option<Value> {
        let module = &self.builder.module;
        match module.expr(id) {
            Expr::Constant(tensor) => Some(Value::Tensor((**tensor).clone())),
            Expr::Tuple(fields) => fields
                .iter()
                .map(|&f| module.expr(f).as_constant().map(|t| (**t).clone()))
                .collect::<Option<Vec<Tensor>>>()
                .map(Value::Tuple),
            _ => None,
        }
    }

    fn fold(&mut self, id: OpId, attrs: &Attrs, args: &[ExprId], values: &[Value]) -> Option<FoldResult> {
        let def = op::get(id);
        let types: Vec<Type> = args.iter().map(|&a| self.builder.module.ty(a).clone()).collect();
        let tensors: Vec<Option<&Tensor>> = values
            .iter()
            .map(|v| match v {
                Value::Tensor(t) => Some(t),
                Value::Tuple(_) => None,
            })
            .collect();
        let ty = def.infer(attrs, &types, &tensors).ok()?;
        let cost = op::Cost { params: op::Params::new(def, attrs), args: &types, ret: &ty };
        if (def.flops)(&cost) > MAX_FOLD_FLOPS {
            return None;
        }
        let bytes = |t: &Tensor| t.bytes().len();
        let operands: usize = values
            .iter()
            .map(|v| match v {
                Value::Tensor(t) => bytes(t),
                Value::Tuple(fields) => fields.iter().map(bytes).sum(),
            })
            .sum();
        let limit = operands.max(MAX_FOLD_BYTES).min(self.budget);
        let outputs = op::evaluate(id, attrs, values, limit).ok()?;
        self.budget = self.budget.saturating_sub(outputs.iter().map(bytes).sum());
        Some(match ty {
            Type::Tuple(_) => FoldResult::Tuple(outputs),
            _ => FoldResult::One(outputs.into_iter().next()?),
        })
    }

    /// Returns the union of two origin sets, or `a` if the union could exceed [`MAX_ORIGINS`].
    pub fn union(&mut self, a: OriginId, b: OriginId) -> OriginId {
        let origins = &mut self.builder.module.origins;
        if origins.get(a).len() + origins.get(b).len() > MAX_ORIGINS { a } else { origins.union(a, b) }
    }
}

enum FoldResult {
    One(Tensor),
    Tuple(Vec<Tensor>),
}

fn bad_tensor(name: &str, reason: &str, code: Code) -> Error {
    Box::new(Diagnostic::error(code, format!("tensor \"{name}\": {reason}")))
}

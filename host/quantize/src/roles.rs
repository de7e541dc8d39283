//! Roles of the float model's operators in the quantized model.
//!
//! Layers read int8 and have int32 accumulators, to which a bias is added in int32. From there, integers flow through
//! activations, pooling, additions, concatenations and reshapes to the next layer. Operators whose results reach no
//! further layer stay in float, at the cost of one dequantization.
//!
//! Values that share a scale form a group: the result of max pooling or a reshape has the scale of its operand, and a
//! value read only by activations has the scale of their result, so no integers are wasted on values that the
//! activations clip.

use super::layers::{Layer, always_evaluated};
use byoc_ir::ir::{Expr, ExprId, IndexVec, Module};
use byoc_ir::op::{self, Params};
use byoc_ir::tensor::DType;
use std::collections::{BTreeMap, BTreeSet};

/// Role of an operator in the quantized model.
#[derive(Clone, Debug, PartialEq)]
pub enum Role {
    /// Layer executed in int8, with its index.
    Layer(usize),
    /// Addition of a bias in int32.
    Bias(Bias),
    /// ReLU on layer accumulators, for a result that stays in float. Scales are positive, so ReLU commutes with
    /// dequantization.
    RectifiedAccumulator,
    /// Clamping of the values to the range `[lo, hi]`.
    Activation {
        /// Lower bound.
        lo: f64,
        /// Upper bound.
        hi: f64,
    },
    /// Operator that selects or moves elements, applied to integers with the same scale.
    Passthrough,
    /// Average pooling; for global pooling, with the height and width of the input.
    Mean(Option<[usize; 2]>),
    /// Addition of two values.
    Add,
    /// Concatenation of quantized values.
    Concatenate,
}

/// Constant that is added to the accumulators of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Bias {
    /// Accumulators to which the bias is added.
    pub accumulator: ExprId,
    /// Layer that produced the accumulators.
    pub layer: usize,
    /// Per-channel values, or a single value for all channels.
    pub values: Vec<f32>,
    /// Shape of the constant in the model.
    pub shape: Vec<usize>,
}

/// Roles of all operators, and the groups of values that share a scale.
pub struct Roles {
    /// Role of each expression; `None` for expressions that stay in float.
    pub role_of: IndexVec<ExprId, Option<Role>>,
    users: IndexVec<ExprId, Vec<ExprId>>,
    /// Group of each expression that has an integer form, represented by one member of the group.
    group: BTreeMap<ExprId, ExprId>,
    /// For each group, the values whose ranges the range of the group must cover.
    pub range_exprs: BTreeMap<ExprId, Vec<ExprId>>,
}

impl Roles {
    /// Assigns roles for int8 execution of the layers selected by `is_selected`.
    pub fn new(module: &Module, layers: &[Layer], is_selected: impl Fn(usize) -> bool) -> Roles {
        let always_evaluated_ids = always_evaluated(module);
        let users_of = users(module);
        let role_of = assign(module, layers, is_selected, &always_evaluated_ids, &users_of);
        let mut roles = Roles { role_of, users: users_of, group: BTreeMap::new(), range_exprs: BTreeMap::new() };
        roles.form_groups(module);
        roles
    }

    /// Returns the group of a value, or the value itself if it belongs to no group.
    pub fn group(&self, id: ExprId) -> ExprId {
        self.group.get(&id).copied().unwrap_or(id)
    }

    /// Returns the end of the chain of biases and activations that starts at `id`, in which each operator is the only
    /// user of its predecessor.
    pub fn end(&self, id: ExprId) -> ExprId {
        let mut end = id;
        while let Some(user) = self.only_user(end)
            && matches!(self.role_of[user], Some(Role::Bias(_) | Role::RectifiedAccumulator | Role::Activation { .. }))
        {
            end = user;
        }
        end
    }

    /// Returns the only user of a value; `None` if there are several, or none.
    pub fn only_user(&self, id: ExprId) -> Option<ExprId> {
        match self.users[id][..] {
            [user] => Some(user),
            _ => None,
        }
    }

    fn form_groups(&mut self, module: &Module) {
        let mut members: BTreeSet<ExprId> = BTreeSet::new();
        let mut parent: BTreeMap<ExprId, ExprId> = BTreeMap::new();
        fn root(parent: &mut BTreeMap<ExprId, ExprId>, mut id: ExprId) -> ExprId {
            while let Some(&parent_id) = parent.get(&id) {
                if let Some(&grandparent_id) = parent.get(&parent_id) {
                    parent.insert(id, grandparent_id);
                }
                id = parent_id;
            }
            id
        }
        for (id, role) in self.role_of.iter() {
            let Some(role) = role else { continue };
            let inputs = inputs(module, id, role);
            match role {
                Role::Layer(_) => members.extend(inputs),
                Role::Bias(_) | Role::RectifiedAccumulator => {}
                Role::Activation { .. } | Role::Passthrough => {
                    members.extend([id, inputs[0]]);
                    let (a, b) = (root(&mut parent, id), root(&mut parent, inputs[0]));
                    if a != b {
                        parent.insert(a.max(b), a.min(b));
                    }
                }
                Role::Mean(_) | Role::Add | Role::Concatenate => {
                    members.insert(id);
                    members.extend(inputs);
                }
            }
        }
        for &id in &members {
            let group = root(&mut parent, id);
            self.group.insert(id, group);
            let has_only_activations =
                self.users[id].iter().all(|&user| matches!(self.role_of[user], Some(Role::Activation { .. })));
            let range_exprs = self.range_exprs.entry(group).or_default();
            // The results of max pooling and reshapes contain only values of their operand.
            if !has_only_activations && self.role_of[id] != Some(Role::Passthrough) {
                range_exprs.push(id);
            }
        }
    }
}

/// Returns the operands that an operator with this role reads as integers.
pub fn inputs(module: &Module, id: ExprId, role: &Role) -> Vec<ExprId> {
    let Some((_, call)) = module.expr(id).as_op_call() else { return Vec::new() };
    match role {
        Role::Concatenate => match module.expr(call.args[0]) {
            Expr::Tuple(fields) => fields.to_vec(),
            _ => Vec::new(),
        },
        Role::Add => call.args.to_vec(),
        Role::Bias(bias) => vec![bias.accumulator],
        _ => vec![call.args[0]],
    }
}

fn users(module: &Module) -> IndexVec<ExprId, Vec<ExprId>> {
    let live_exprs = module.live();
    let mut users_of: IndexVec<ExprId, Vec<ExprId>> = IndexVec::filled(Vec::new(), module.nodes.len());
    for (id, node) in module.nodes.iter() {
        if live_exprs[id] {
            node.expr.for_each_operand(|operand| users_of[operand].push(id));
        }
    }
    users_of
}

fn assign(
    module: &Module,
    layers: &[Layer],
    is_selected: impl Fn(usize) -> bool,
    always_evaluated_ids: &BTreeSet<ExprId>,
    users_of: &IndexVec<ExprId, Vec<ExprId>>,
) -> IndexVec<ExprId, Option<Role>> {
    let mut roles: IndexVec<ExprId, Option<Role>> = IndexVec::filled(None, module.nodes.len());
    for (layer_index, layer) in layers.iter().enumerate() {
        if layer.obstacle.is_none() && is_selected(layer_index) {
            roles[layer.call] = Some(Role::Layer(layer_index));
        }
    }
    for &id in always_evaluated_ids {
        if roles[id].is_none() {
            roles[id] = role(module, id);
        }
    }
    // Backward traversal: marks the values that reach a layer as integers.
    let mut is_candidate: IndexVec<ExprId, bool> = IndexVec::filled(false, module.nodes.len());
    for &id in always_evaluated_ids.iter().rev() {
        is_candidate[id] = users_of[id].iter().any(|&user| match &roles[user] {
            Some(Role::Layer(_)) => module.expr(user).as_call().is_some_and(|call| call.args[0] == id),
            Some(Role::Bias(_)) => false,
            Some(_) => is_candidate[user],
            // The user is the tuple of a concatenation.
            None => matches!(module.expr(user), Expr::Tuple(_)) && is_candidate[user],
        });
    }
    // Forward traversal: keeps the roles of operators whose operands are integers.
    for &id in always_evaluated_ids {
        let possible_role = roles[id].take();
        let is_integer = |input: &ExprId| roles[*input].is_some();
        let is_valid = possible_role.as_ref().is_some_and(|role| match role {
            Role::Layer(_) => true,
            Role::Add | Role::Concatenate => is_candidate[id] && inputs(module, id, role).iter().any(is_integer),
            _ => is_candidate[id] && inputs(module, id, role).iter().all(is_integer),
        });
        roles[id] = match possible_role {
            Some(role) if is_valid => Some(role),
            _ => bias(module, layers, &roles, id)
                .map(Role::Bias)
                .or_else(|| rectifies_accumulator(module, &roles, id).then_some(Role::RectifiedAccumulator)),
        };
    }
    roles
}

/// Returns the role that an operator could have, regardless of its neighbors.
fn role(module: &Module, id: ExprId) -> Option<Role> {
    let (operator, call) = module.expr(id).as_op_call()?;
    let ty = module.ty(id).as_tensor()?;
    if ty.dtype != DType::F32 {
        return None;
    }
    let def = op::get(operator);
    let params = Params::new(def, &call.attrs);
    let is_constant = |id: ExprId| module.expr(id).as_constant().is_some();
    match def.name {
        "nn.relu" => Some(Role::Activation { lo: 0.0, hi: f64::INFINITY }),
        "clip" => Some(Role::Activation { lo: params.float("a_min"), hi: params.float("a_max") }),
        "nn.avg_pool2d" => Some(Role::Mean(None)),
        "nn.global_avg_pool2d" | "nn.adaptive_avg_pool2d" => {
            let data = module.ty(call.args[0]).as_tensor()?;
            let layout = params.string("layout");
            let size = |axis: char| data.dims.get(layout.find(axis)?)?.fixed();
            let unit_dim = |axis: char| ty.dims.get(layout.find(axis)?)?.fixed().filter(|&n| n == 1);
            (unit_dim('H').and(unit_dim('W')).is_some()).then_some(Role::Mean(Some([size('H')?, size('W')?])))
        }
        "add" => (!call.args.iter().any(|&arg| is_constant(arg))).then_some(Role::Add),
        "concatenate" => match module.expr(call.args[0]) {
            Expr::Tuple(fields) if !fields.iter().any(|&f| is_constant(f)) => Some(Role::Concatenate),
            _ => None,
        },
        _ if def.properties.selects => (call.args.len() == 1).then_some(Role::Passthrough),
        _ => None,
    }
}

/// Returns true if an operator applies ReLU to layer accumulators.
fn rectifies_accumulator(module: &Module, roles: &IndexVec<ExprId, Option<Role>>, id: ExprId) -> bool {
    module.expr(id).as_op_call().is_some_and(|(operator, call)| {
        op::get(operator).name == "nn.relu" && matches!(roles[call.args[0]], Some(Role::Layer(_) | Role::Bias(_)))
    })
}

/// Returns the bias that an operator adds to the accumulators of a layer, if any.
fn bias(module: &Module, layers: &[Layer], roles: &IndexVec<ExprId, Option<Role>>, id: ExprId) -> Option<Bias> {
    let (operator, call) = module.expr(id).as_op_call()?;
    let def = op::get(operator);
    let (accumulator, constant) = match (def.name, &call.args[..]) {
        ("nn.bias_add", &[data, bias]) => (data, bias),
        ("add", &[a, b]) if module.expr(b).as_constant().is_some() => (a, b),
        ("add", &[a, b]) => (b, a),
        _ => return None,
    };
    let layer = match &roles[accumulator] {
        Some(Role::Layer(layer)) => *layer,
        Some(Role::Bias(bias)) => bias.layer,
        _ => return None,
    };
    let constant = module.expr(constant).as_constant()?;
    let (sum, result) = (module.ty(accumulator).as_tensor()?, module.ty(id).as_tensor()?);
    let axis = layers[layer].channel_axis;
    if constant.dtype() != DType::F32 || sum.dims != result.dims {
        return None;
    }
    let shape = constant.shape().to_vec();
    let values = constant.as_slice::<f32>().to_vec();
    let channel_axis = match def.name {
        "nn.bias_add" => {
            let axis_attr = Params::new(def, &call.attrs).int("axis");
            (axis_attr.rem_euclid(sum.dims.len().max(1) as i64) as usize == axis).then_some(0)
        }
        // Broadcasting aligns the trailing dimensions.
        _ if values.len() == 1 => Some(0),
        _ => (axis + shape.len()).checked_sub(sum.dims.len()),
    }?;
    let is_broadcast = shape.iter().enumerate().filter(|(i, _)| *i != channel_axis).all(|(_, &n)| n == 1);
    (is_broadcast && values.iter().all(|v| v.is_finite())).then_some(Bias { accumulator, layer, values, shape })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers;
    use byoc_ir::text::{ParseOptions, parse};

    /// Parses a module and infers its types.
    fn parse_typed(text: &str) -> Module {
        let parsed_module = parse(text, &ParseOptions::default());
        assert!(parsed_module.diagnostics.is_empty(), "{:?}", parsed_module.diagnostics);
        byoc_core::pass::infer_type(&parsed_module.module).unwrap()
    }

    fn call(module: &Module, name: &str, index: usize) -> ExprId {
        let expr = module
            .nodes
            .iter()
            .filter(|(_, node)| node.expr.as_op_call().is_some_and(|(operator, _)| op::get(operator).name == name));
        expr.map(|(id, _)| id).nth(index).unwrap()
    }

    const WEIGHT: &str = "meta[relay.Constant][0]";

    fn with_weight(text: &str, shape: &[usize]) -> Module {
        let weight = std::sync::Arc::new(byoc::io::random::tensor(DType::F32, shape, 1));
        let options = ParseOptions { constants: &[weight] };
        let parsed_module = parse(&format!("#[version = \"0.0.5\"]\n{}", text.replace("WEIGHT", WEIGHT)), &options);
        assert!(parsed_module.diagnostics.is_empty(), "{:?}", parsed_module.diagnostics);
        byoc_core::pass::infer_type(&parsed_module.module).unwrap()
    }

    fn roles_of(module: &Module) -> Roles {
        Roles::new(module, &layers::find(module), |_| true)
    }

    #[test]
    fn propagates_integers_from_layer_to_layer() {
        let module = with_weight(
            "def @main(%x: Tensor[(1, 4, 8, 8), float32]) {
               %0 = nn.conv2d(%x, WEIGHT, padding=[1, 1, 1, 1]);
               %1 = nn.relu(%0);
               %2 = nn.max_pool2d(%1, pool_size=[2, 2], strides=[2, 2]);
               %3 = nn.conv2d(%2, WEIGHT, padding=[1, 1, 1, 1]);
               %4 = add(%3, %2);
               %5 = nn.relu(%4);
               nn.softmax(%5)
             }",
            &[4, 4, 3, 3],
        );
        let roles = roles_of(&module);
        let (relu, pool) = (call(&module, "nn.relu", 0), call(&module, "nn.max_pool2d", 0));
        let first_layer = call(&module, "nn.conv2d", 0);
        assert_eq!(roles.role_of[pool], Some(Role::Passthrough));
        // The result of the second layer reaches no further layer, so its successors stay in float.
        assert_eq!(roles.role_of[call(&module, "add", 0)], None);
        assert_eq!(roles.role_of[call(&module, "nn.relu", 1)], None);
        // The accumulators, the activation and the pooling share the scale of the activation's result.
        assert_eq!(roles.group(first_layer), roles.group(pool));
        assert_eq!(roles.range_exprs[&roles.group(first_layer)], [relu]);
        assert_eq!(roles.end(first_layer), relu);
    }

    #[test]
    fn residual_sum_has_its_own_scale() {
        let module = with_weight(
            "def @main(%x: Tensor[(1, 4, 8, 8), float32]) {
               %0 = nn.conv2d(%x, WEIGHT, padding=[1, 1, 1, 1]);
               %1 = add(%0, %x);
               %2 = nn.relu(%1);
               nn.conv2d(%2, WEIGHT, padding=[1, 1, 1, 1])
             }",
            &[4, 4, 3, 3],
        );
        let roles = roles_of(&module);
        let (sum, relu) = (call(&module, "add", 0), call(&module, "nn.relu", 0));
        assert_eq!(roles.role_of[sum], Some(Role::Add));
        assert_eq!(roles.group(sum), roles.group(relu));
        assert_eq!(roles.range_exprs[&roles.group(sum)], [relu]);
        let first_layer = call(&module, "nn.conv2d", 0);
        assert_ne!(roles.group(first_layer), roles.group(sum));
        assert_eq!(roles.range_exprs[&roles.group(first_layer)], [first_layer]);
        let x = module.main().unwrap().params[0];
        assert_eq!(roles.range_exprs[&roles.group(x)], [x]);
    }

    #[test]
    fn value_with_other_users_keeps_its_whole_range() {
        let module = with_weight(
            "def @main(%x: Tensor[(1, 4, 8, 8), float32]) {
               %0 = nn.conv2d(%x, WEIGHT, padding=[1, 1, 1, 1]);
               %1 = nn.relu(%0);
               %2 = nn.conv2d(%1, WEIGHT, padding=[1, 1, 1, 1]);
               %3 = nn.conv2d(%0, WEIGHT, padding=[1, 1, 1, 1]);
               add(%2, %3)
             }",
            &[4, 4, 3, 3],
        );
        let roles = roles_of(&module);
        let (first_layer, relu) = (call(&module, "nn.conv2d", 0), call(&module, "nn.relu", 0));
        assert_eq!(roles.range_exprs[&roles.group(relu)], [first_layer, relu]);
        assert_eq!(roles.end(first_layer), first_layer);
    }

    #[test]
    fn bias_is_a_constant_along_the_channels() {
        let module = with_weight(
            "def @main(%x: Tensor[(1, 4, 8, 8), float32]) {
               %0 = nn.conv2d(%x, WEIGHT, padding=[1, 1, 1, 1]);
               %1 = add(%0, %x);
               %2 = (add(%0, 2f), add(%0, %x), %1);
               %2
             }",
            &[4, 4, 3, 3],
        );
        let roles = roles_of(&module);
        let scalar = call(&module, "add", 1);
        assert_eq!(roles.role_of[call(&module, "add", 0)], None);
        assert!(
            matches!(&roles.role_of[scalar], Some(Role::Bias(bias)) if bias.values == [2.0] && bias.shape.is_empty())
        );
    }

    #[test]
    fn float_layers_have_a_reason() {
        let module = with_weight(
            "def @main(%x: Tensor[(1, 4, 8, 8), float32], %w: Tensor[(4, 4, 3, 3), float32]) {
               %0 = nn.conv2d(%x, %w, padding=[1, 1, 1, 1]);
               nn.conv2d(%0, WEIGHT, padding=[1, 1, 1, 1])
             }",
            &[4, 4, 3, 3],
        );
        let layers = layers::find(&module);
        assert_eq!(layers[0].obstacle.as_deref(), Some("the weight is not constant"));
        assert_eq!(layers[1].obstacle, None);
        assert_eq!(roles_of(&module).role_of[layers[0].call], None);
    }

    #[test]
    fn handles_a_chain_of_100_000_operators() {
        let mut text =
            String::from("#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(2, 2), float32]) {\n%0 = nn.relu(%x);\n");
        for i in 1..100_000 {
            text += &format!("%{i} = nn.relu(%{});\n", i - 1);
        }
        text += "nn.relu(%99999)\n}";
        let module = parse_typed(&text);
        let roles = roles_of(&module);
        assert!(roles.role_of.iter().all(|(_, role)| role.is_none()));
    }
}

//! Finds the groups of expressions that patterns match, and turns them into composites.
//!
//! Within one pattern, users are tried before producers, so that the larger match wins. A group is refused if it
//! overlaps another group of the same pattern, or if an intermediate value is used outside the group, unless every such
//! use flows back into the group's root; the value is then computed both in the group and outside it. Groups of earlier
//! patterns are opaque to later patterns. The expressions of a group that the judge refuses remain unavailable to other
//! matches of the same pattern.
//!
//! The time to find the groups of a pattern is linear in the number of matches and of the expressions they span. For
//! patterns with lets or functions, the inputs of each match are also searched for a dependence on a variable bound
//! inside the match, which can take time linear in the size of the module.

use super::judge::{Candidate, Composite, Judge, Question, Refusal, RefusalCode, Verdict, request_verdicts};
use super::merge_graph::for_each_flow;
use crate::analysis::scope::is_opaque;
use crate::pattern::{Entry, Graph, Match, Matcher, Pattern, PatternId, PatternNode, RootOps};
use byoc_ir::diag::Diagnostic;
use byoc_ir::ir::{
    AttrValue, Attrs, Callee, Expr, ExprId, FuncType, Function, IndexVec, Module, Name, OpId, Origins, Type,
};
use byoc_ir::op;
use byoc_ir::typing::Rebuild;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Group of expressions that becomes a composite function.
#[derive(Clone, Debug)]
pub(super) struct Group {
    /// Name, root, nodes and inputs.
    pub composite: Composite,
    /// Attributes of the composite function: `PartitionedFromPattern`, and the caller's attributes.
    pub attrs: Attrs,
    /// Number of the candidate in its global function, used in the names of the parameters.
    pub number: u32,
}

/// Group together with the pattern match from which it was formed.
pub(super) struct FoundGroup {
    pub group: Group,
    /// Bindings of the pattern nodes.
    pub matched: Match,
}

/// Groups of a module, collected pattern by pattern.
pub(super) struct Grouping<'m> {
    /// Module with the groups collapsed.
    pub graph: Graph<'m>,
    /// Accepted groups, by root.
    pub groups: BTreeMap<ExprId, Group>,
    /// Index of the backend that claimed each expression, counted from 1; 0 for none. A group may use a claimed
    /// expression but not contain it.
    owner: IndexVec<ExprId, u32>,
    owner_names: Vec<Name>,
    functions: Vec<(Name, ExprId)>,
    by_op: HashMap<OpId, Vec<ExprId>>,
    order: Vec<ExprId>,
    position: IndexVec<ExprId, u32>,
    /// Index into `functions` of the function that each expression belongs to.
    function: IndexVec<ExprId, u32>,
    is_stale: bool,
}

impl<'m> Grouping<'m> {
    /// Creates a grouping for all non-opaque functions of a module.
    pub fn new(module: &'m Module) -> Grouping<'m> {
        let functions = module
            .globals
            .iter()
            .filter(|&(_, &id)| module.expr(id).as_function().is_some_and(|function| !is_opaque(function)))
            .map(|(name, &id)| (name.clone(), id))
            .collect();
        let mut grouping = Grouping {
            graph: Graph::new(module),
            groups: BTreeMap::new(),
            owner: IndexVec::filled(0, module.nodes.len()),
            owner_names: Vec::new(),
            functions,
            by_op: HashMap::new(),
            order: Vec::new(),
            position: IndexVec::filled(0, module.nodes.len()),
            function: IndexVec::filled(0, module.nodes.len()),
            is_stale: false,
        };
        grouping.number();
        for &id in &grouping.order {
            if let Some((op, _)) = module.expr(id).as_op_call() {
                grouping.by_op.entry(op).or_default().push(id);
            }
        }
        grouping
    }

    /// Numbers the live expressions, sorted by function name, with operands before users within a function.
    fn number(&mut self) {
        let mut visited = IndexVec::filled(false, self.graph.module.nodes.len());
        self.order.clear();
        for (i, &(_, function)) in self.functions.iter().enumerate() {
            let order = self.graph.post_order(function, &mut visited, |expr| !is_opaque_to_patterns(expr));
            for id in order {
                self.position[id] = self.order.len() as u32;
                self.function[id] = i as u32;
                self.order.push(id);
            }
        }
        self.is_stale = false;
    }

    /// Returns the live expressions, sorted by function name, with operands before users within a function.
    pub fn order(&mut self) -> Vec<ExprId> {
        if self.is_stale {
            self.number();
        }
        self.order.clone()
    }

    /// Frees everything except the groups and the operands, to save memory.
    pub fn forget_users(&mut self) {
        self.graph.forget_users();
        self.order = Vec::new();
        self.by_op = HashMap::new();
        (self.owner, self.position, self.function) = (IndexVec::new(), IndexVec::new(), IndexVec::new());
    }

    /// Sets the names of the backends that may claim expressions, for messages.
    pub fn set_owner_names(&mut self, names: Vec<Name>) {
        self.owner_names = names;
    }

    /// Assigns an expression to the backend with index `by`, which excludes it from later groups.
    pub fn claim(&mut self, id: ExprId, by: u32) {
        self.owner[id] = by + 1;
    }

    /// Returns the name of the backend that claimed an expression; `None` if the expression is free.
    pub fn owner_of(&self, id: ExprId) -> Option<&Name> {
        self.owner_names.get((self.owner[id] as usize).checked_sub(1)?)
    }

    /// Returns the index of the global function that an expression belongs to.
    pub fn function_of(&self, id: ExprId) -> u32 {
        self.function[id]
    }

    /// Returns the name of the global function with the given index.
    pub fn function_name(&self, function: u32) -> &Name {
        &self.functions[function as usize].0
    }

    /// Returns the live, ungrouped and unclaimed operator calls, operands before users.
    pub fn free_operators(&mut self) -> Vec<ExprId> {
        if self.is_stale {
            self.number();
        }
        let is_free = |&id: &ExprId| {
            self.graph.is_live(id)
                && self.owner[id] == 0
                && self.graph.expr(id).is_some_and(|expr| expr.as_op_call().is_some())
        };
        self.order.iter().copied().filter(is_free).collect()
    }

    /// Finds the groups that match a pattern-table entry, requests a verdict on each from the judge, and collapses the
    /// accepted groups. `record_refusal` is called for every expression of a refused candidate.
    pub fn apply(&mut self, entry: &Entry, judge: &mut dyn Judge, record_refusal: &mut dyn FnMut(ExprId, Refusal)) {
        let attrs = Attrs::new([("Composite", AttrValue::Str(entry.name.clone()))]);
        let groups = self.find(&entry.pattern, &entry.name, &attrs, record_refusal);
        if groups.is_empty() {
            return;
        }
        let candidates: Vec<Candidate> = groups.iter().map(|found| self.candidate(&found.group.composite)).collect();
        let verdicts = request_verdicts(judge, self.graph.module, Question::Pattern(entry), &candidates);
        for (FoundGroup { group, .. }, verdict) in groups.into_iter().zip(verdicts) {
            match verdict {
                // A composite is not a region: a backend cannot request that it be split.
                Verdict::Supported | Verdict::Split(_) => self.accept(group),
                Verdict::Refused(refusal) => {
                    group.composite.nodes.iter().for_each(|&node| record_refusal(node, refusal.clone()));
                }
            }
        }
    }

    /// Calls `add_edge(producer, consumer)` for each data-flow edge of an expression, with groups collapsed.
    pub fn for_each_flow(&self, id: ExprId, mut add_edge: impl FnMut(ExprId, ExprId)) {
        match self.graph.expr(id) {
            Some(Expr::Let { .. } | Expr::Function(_) | Expr::Match(_)) => {
                for_each_flow(self.graph.module, id, add_edge);
            }
            _ => self.graph.for_each_operand(id, |operand| add_edge(operand, id)),
        }
    }

    /// Returns the candidate that represents a composite in a request for a verdict.
    pub fn candidate(&self, composite: &Composite) -> Candidate {
        Candidate {
            nodes: composite.nodes.clone(),
            inputs: composite.inputs.clone(),
            outputs: vec![composite.root],
            outside_users: self.graph.users(composite.root).count(),
            composites: Vec::new(),
        }
    }

    /// Accepts a group: its root becomes a call to an opaque function.
    pub fn accept(&mut self, group: Group) {
        let root = group.composite.root;
        self.graph.collapse(root, group.composite.inputs.clone().into());
        self.groups.insert(root, group);
        self.is_stale = true;
    }

    /// Finds the groups of a pattern. Calls `record_refusal` for every expression of each match that cannot become a
    /// group.
    pub fn find(
        &mut self,
        pattern: &Pattern,
        name: &Name,
        attrs: &Attrs,
        record_refusal: &mut dyn FnMut(ExprId, Refusal),
    ) -> Vec<FoundGroup> {
        if pattern.required_ops().iter().any(|op| !self.by_op.contains_key(op)) {
            return Vec::new();
        }
        let ops = pattern.root_ops();
        // A match of a recursive pattern may be as large as the module, so roots inside an earlier match are skipped
        // before matching.
        let is_one_by_one = pattern.is_recursive();
        if self.is_stale && (is_one_by_one || ops == RootOps::Any) {
            self.number();
        }
        let mut roots = self.roots(ops);
        let mut matches: Vec<(ExprId, Match)> = Vec::new();
        if !is_one_by_one {
            let mut matcher = Matcher::new(&self.graph);
            matches.extend(roots.drain(..).filter_map(|root| Some((root, matcher.match_at(pattern, root)?))));
            if matches.len() > 1 && self.is_stale {
                self.number();
            }
        }
        // Matches are tried in the order of the function names, with users before producers within a function.
        let sort_key = |&root: &ExprId| (self.function[root], std::cmp::Reverse(self.position[root]));
        roots.sort_by_key(sort_key);
        matches.sort_by_key(|(root, _)| sort_key(root));
        let mut finder = Finder {
            grouping: self,
            name,
            attrs,
            leaves: InputRules::of(pattern),
            claimed: HashSet::new(),
            numbers: HashMap::new(),
            labels: HashMap::new(),
            groups: Vec::new(),
        };
        let mut matcher = Matcher::new(&self.graph);
        for root in roots {
            if !finder.claimed.contains(&root)
                && let Some(matched) = matcher.match_at(pattern, root)
            {
                finder.add_group(root, matched, record_refusal);
            }
        }
        for (root, matched) in matches {
            if !finder.claimed.contains(&root) {
                finder.add_group(root, matched, record_refusal);
            }
        }
        finder.groups
    }

    /// Returns the expressions that can be the root of a match.
    fn roots(&self, ops: RootOps) -> Vec<ExprId> {
        let is_free = |&root: &ExprId| {
            self.graph.is_live(root)
                && self.owner[root] == 0
                && self.graph.expr(root).is_some_and(|expr| !matches!(expr, Expr::Function(_)))
        };
        match ops {
            RootOps::Any => self.order.iter().copied().filter(is_free).collect(),
            RootOps::These(ops) => {
                ops.iter().filter_map(|op| self.by_op.get(op)).flatten().copied().filter(is_free).collect()
            }
        }
    }

    /// Dissolves a group, which frees its expressions.
    pub fn dissolve(&mut self, root: ExprId) {
        if self.groups.remove(&root).is_some() {
            self.graph.expand(root);
            self.is_stale = true;
        }
    }

    /// Rebuilds the module with each group as a call to its composite function.
    ///
    /// # Errors
    /// If the module is ill-typed.
    pub fn rebuild(&self) -> Result<Module, Box<Diagnostic>> {
        let module = self.graph.module;
        let live: Vec<ExprId> = module.nodes.ids().filter(|&id| self.graph.is_live(id)).collect();
        Rebuild::run_in_order(module, live, |rebuild, id, _| {
            Ok(self.groups.get(&id).map(|group| emit(rebuild, group, |rebuild, input| rebuild.get(input))))
        })
    }
}

/// Turns the matches of one pattern into groups.
struct Finder<'g, 'm> {
    grouping: &'g Grouping<'m>,
    name: &'g Name,
    attrs: &'g Attrs,
    leaves: InputRules<'g>,
    /// Expressions that are already in a group of this pattern.
    claimed: HashSet<ExprId>,
    /// Number of candidates in each global function.
    numbers: HashMap<u32, u32>,
    /// Attributes of the groups, by label.
    labels: HashMap<String, Attrs>,
    groups: Vec<FoundGroup>,
}

impl Finder<'_, '_> {
    fn add_group(&mut self, root: ExprId, matched: Match, record_refusal: &mut dyn FnMut(ExprId, Refusal)) {
        let graph = &self.grouping.graph;
        let counter = self.numbers.entry(self.grouping.function[root]).or_default();
        let number = *counter;
        *counter += 1;
        let mut inputs = self.leaves.inputs(graph, &matched);
        if inputs.contains(&root) {
            return;
        }
        let (nodes, label) = self.interior(root, &inputs);
        let mut bound_nodes: HashSet<ExprId> = HashSet::new();
        for &node in &nodes {
            graph.module.expr(node).for_each_binder(|var| {
                bound_nodes.insert(var);
            });
        }
        // Free variables inside the match become inputs, because a composite function must not capture them.
        let is_free = |id: &ExprId| matches!(graph.module.expr(*id), Expr::Var(_)) && !bound_nodes.contains(id);
        inputs.extend(nodes.iter().copied().filter(is_free));
        let nodes: Vec<ExprId> = nodes.into_iter().filter(|id| !is_free(id)).collect();
        let refusal = self.reject(root, &nodes, &inputs, &bound_nodes);
        if let Some(refusal) = refusal {
            nodes.iter().for_each(|&node| record_refusal(node, refusal.clone()));
            return;
        }
        self.claimed.extend(nodes.iter().copied().filter(|&node| !is_duplicable(graph.module.expr(node))));
        let group_attrs = self.attrs;
        let attrs = match self.labels.get(&label) {
            Some(attrs) => attrs.clone(),
            None => {
                let attrs = group_attrs.with("PartitionedFromPattern", &*label);
                self.labels.insert(label, attrs.clone());
                attrs
            }
        };
        let composite = Composite { name: self.name.clone(), root, nodes, inputs };
        self.groups.push(FoundGroup { group: Group { composite, attrs, number }, matched });
    }

    /// Returns the expressions between the inputs and the root, operands before users, and the group's label.
    fn interior(&self, root: ExprId, inputs: &[ExprId]) -> (Vec<ExprId>, String) {
        let module = self.grouping.graph.module;
        let mut visited: HashSet<ExprId> = inputs.iter().copied().collect();
        let mut nodes = Vec::new();
        let mut label = String::new();
        let mut stack = vec![(root, false)];
        while let Some((id, is_exit)) = stack.pop() {
            if !is_exit {
                if visited.insert(id) {
                    stack.push((id, true));
                    let first = stack.len();
                    self.grouping.graph.for_each_operand(id, |operand| stack.push((operand, false)));
                    stack[first..].reverse();
                }
                continue;
            }
            nodes.push(id);
            match module.expr(id) {
                Expr::Call(call) => match call.callee {
                    Callee::Op(op) => label.extend([op::get(op).name, "_"]),
                    Callee::Expr(_) => label.push_str("Call_"),
                },
                Expr::Tuple(_) => label.push_str("Tuple_"),
                Expr::Project { index, .. } => label.push_str(&format!("TupleGetItem{index}_")),
                Expr::Let { .. } => label.push_str("Let_"),
                Expr::If { .. } => label.push_str("If_"),
                Expr::Function(_) => label.push_str("Function"),
                Expr::Match(_) => label.push_str("Match_"),
                Expr::Constant(_)
                | Expr::Var(_)
                | Expr::Global(_)
                | Expr::Constructor(_)
                | Expr::RefNew(_)
                | Expr::RefRead(_)
                | Expr::RefWrite { .. } => {}
            }
        }
        (nodes, label)
    }

    /// Returns the reason that prevents a candidate from becoming a group; `None` if there is none.
    fn reject(
        &self,
        root: ExprId,
        nodes: &[ExprId],
        inputs: &[ExprId],
        bound_nodes: &HashSet<ExprId>,
    ) -> Option<Refusal> {
        let (graph, name) = (&self.grouping.graph, self.name);
        let module = graph.module;
        let interior: HashSet<ExprId> = nodes.iter().copied().collect();
        for &node in nodes.iter().filter(|&&node| !is_duplicable(module.expr(node))) {
            if self.grouping.owner[node] > 0 {
                let owner = self.grouping.owner_names[self.grouping.owner[node] as usize - 1].clone();
                let detail = format!("{name}: {} is already assigned to {owner}", describe(module, node));
                return Some(Refusal::new(RefusalCode::LowerPriority, detail));
            }
            if self.claimed.contains(&node) || graph.collapsed_inputs(node).is_some() {
                let detail = format!("{name}: {} belongs to another match", describe(module, node));
                return Some(Refusal::new(RefusalCode::Overlap, detail));
            }
            if node != root && graph.users(node).any(|user| !interior.contains(&user) && !graph.flows_into(user, root))
            {
                let detail = format!("{name}: the result of {} is also used outside the match", describe(module, node));
                return Some(Refusal::new(RefusalCode::Escape, detail));
            }
        }
        let dependence = self.bound_dependence(inputs, bound_nodes)?;
        let detail =
            format!("{name}: an input depends on {}, which is bound inside the match", describe(module, dependence));
        Some(Refusal::new(RefusalCode::Escape, detail))
    }

    /// Returns a variable in `bound_nodes` on which an input depends; `None` if there is no such variable.
    fn bound_dependence(&self, inputs: &[ExprId], bound_nodes: &HashSet<ExprId>) -> Option<ExprId> {
        // The users of a variable have larger ids.
        let first = *bound_nodes.iter().min()?;
        let mut visited = HashSet::new();
        let mut stack = inputs.to_vec();
        while let Some(id) = stack.pop() {
            if bound_nodes.contains(&id) {
                return Some(id);
            }
            if id > first && visited.insert(id) {
                self.grouping.graph.for_each_operand(id, |operand| stack.push(operand));
            }
        }
        None
    }
}

/// Returns true if later patterns must not match inside an expression.
fn is_opaque_to_patterns(expr: &Expr) -> bool {
    expr.as_function().is_some_and(|f| is_opaque(f) || f.attrs.get("PartitionedFromPattern").is_some())
}

/// Returns true if an expression may be copied into any number of groups.
fn is_duplicable(expr: &Expr) -> bool {
    expr.is_leaf() || matches!(expr, Expr::Function(_))
}

/// Returns the element of `among` that names the same global function or constructor as `id`. A name may occur as
/// several expressions, all of which denote the same object.
fn find_same_name(module: &Module, among: &[ExprId], id: ExprId) -> Option<ExprId> {
    let expr = module.expr(id);
    let is_name = matches!(expr, Expr::Global(_) | Expr::Constructor(_));
    let is_same = |&other: &ExprId| match (module.expr(other), expr) {
        (Expr::Global(a), Expr::Global(b)) | (Expr::Constructor(a), Expr::Constructor(b)) => a == b,
        _ => false,
    };
    if is_name { among.iter().copied().find(is_same) } else { None }
}

/// Describes an expression for a message.
pub(super) fn describe(module: &Module, id: ExprId) -> String {
    match module.expr(id) {
        Expr::Constant(_) => "a constant".to_owned(),
        Expr::Var(var) => format!("%{}", var.name),
        Expr::Global(name) => format!("@{name}"),
        Expr::Constructor(name) => name.to_string(),
        Expr::Match(_) => "a match".to_owned(),
        Expr::Tuple(_) => "a tuple".to_owned(),
        Expr::Project { index, .. } => format!("field {index} of a tuple"),
        Expr::Call(call) => match call.callee {
            Callee::Op(op) => op::get(op).name.to_owned(),
            Callee::Expr(_) => "a call to a function".to_owned(),
        },
        Expr::Let { .. } => "a let".to_owned(),
        Expr::If { .. } => "an if".to_owned(),
        Expr::Function(_) => "a function".to_owned(),
        Expr::RefNew(_) | Expr::RefRead(_) | Expr::RefWrite { .. } => "a reference".to_owned(),
    }
}

/// Appends the composite function of a group and a call to it, which replaces the group's root. `map_outer` maps each
/// input to the corresponding call argument.
pub(super) fn emit<'a>(
    rebuild: &mut Rebuild<'a>,
    group: &Group,
    mut map_outer: impl FnMut(&mut Rebuild<'a>, ExprId) -> ExprId,
) -> ExprId {
    let Composite { root, nodes, inputs, .. } = &group.composite;
    let old = rebuild.old;
    let mut copies: HashMap<ExprId, ExprId> = HashMap::new();
    let mut params = Vec::with_capacity(inputs.len());
    for (k, &input) in inputs.iter().enumerate() {
        let ty = old.ty(input).clone();
        let param = rebuild.new.var(format!("FunctionVar_{}_{k}", group.number), ty);
        copies.insert(input, param);
        params.push(param);
    }
    for &node in nodes {
        let copy = match old.expr(node) {
            // Constants and names denote the same value inside and outside; a name that is an input becomes a
            // parameter.
            expr if expr.is_closed_leaf() => match find_same_name(old, inputs, node) {
                Some(input) => copies[&input],
                None => rebuild.get_or_copy(node),
            },
            expr => {
                let mut expr = expr.clone();
                expr.map_operands(|operand| copies[&operand]);
                let source = &old.nodes[node];
                rebuild.new.module.push_typed(expr, source.ty.clone(), source.origin)
            }
        };
        copies.insert(node, copy);
    }
    let types: Box<[Type]> = inputs.iter().map(|&input| old.ty(input).clone()).collect();
    let ret = old.ty(*root).clone();
    let function = Function::new(params, copies[root], ret.clone(), group.attrs.clone());
    let module = &mut rebuild.new.module;
    let ty = Type::func(FuncType::new(types, ret.clone()));
    let function = module.push_typed(Expr::Function(Box::new(function)), ty, Origins::none());
    let origin = module.origins.union_all(nodes.iter().map(|&node| old.nodes[node].origin));
    let args: Vec<ExprId> = inputs.iter().map(|&input| map_outer(rebuild, input)).collect();
    rebuild.new.module.push_typed(Expr::call(function, args), ret, origin)
}

/// Properties of a pattern that determine which matched expressions are inputs of a group; computed once per pattern.
struct InputRules<'p> {
    pattern: &'p Pattern,
    order: Vec<PatternId>,
    /// Nodes whose expressions are never inputs: parents and paths of `dominates` patterns, and nodes inside function
    /// patterns.
    never_inputs: Vec<PatternId>,
    /// Nodes of `post_dominates`: root, parent, path.
    free: Vec<[PatternId; 3]>,
    /// Nodes that only the path of a `post_dominates` reaches: they also match expressions outside the group.
    in_free_paths: HashSet<PatternId>,
}

impl<'p> InputRules<'p> {
    fn of(pattern: &'p Pattern) -> InputRules<'p> {
        let order = pattern.post_order();
        let mut rules = InputRules {
            pattern,
            order: Vec::new(),
            never_inputs: Vec::new(),
            free: Vec::new(),
            in_free_paths: HashSet::new(),
        };
        let reachable = |root: PatternId| Pattern { nodes: pattern.nodes.clone(), root }.post_order();
        for &id in &order {
            match &pattern.nodes[id] {
                PatternNode::Dominates { parent, path, child, free: true } => {
                    rules.never_inputs.push(*parent);
                    rules.free.push([id, *parent, *path]);
                    let endpoints: HashSet<PatternId> = [*parent, *child].into_iter().flat_map(reachable).collect();
                    rules.in_free_paths.extend(reachable(*path).into_iter().filter(|node| !endpoints.contains(node)));
                }
                PatternNode::Dominates { parent, path, .. } => rules.never_inputs.extend([*parent, *path]),
                PatternNode::Function { .. } => {
                    rules.never_inputs.extend(reachable(id).into_iter().filter(|&node| node != id));
                }
                _ => {}
            }
        }
        rules.order = order;
        rules
    }

    /// Returns the expressions on the paths of each `post_dominates`, in ascending order.
    fn free_interiors(&self, graph: &Graph<'_>, matched: &Match) -> Vec<ExprId> {
        let mut interior = Vec::new();
        for &[id, parent, _] in &self.free {
            if let (Some(Callee::Expr(root)), Some(Callee::Expr(parent))) = (matched.get(id), matched.get(parent)) {
                interior.extend(graph.exprs_between(parent, root, |_| true).unwrap_or_default());
            }
        }
        interior
    }

    fn inputs(&self, graph: &Graph<'_>, matched: &Match) -> Vec<ExprId> {
        let mut skipped: HashSet<ExprId> = HashSet::new();
        for &id in &self.never_inputs {
            skipped.extend(matched.all(id).filter_map(as_expr));
        }
        let interior = self.free_interiors(graph, matched);
        skipped.extend(interior.iter().copied());
        // The variable of a matched let belongs to the group.
        for &(_, callee) in &matched.bindings {
            if let Some(Expr::Let { var, .. }) = as_expr(callee).and_then(|id| graph.expr(id)) {
                skipped.insert(*var);
            }
        }
        let mut inputs: Vec<ExprId> = Vec::new();
        let mut ids: HashSet<ExprId> = HashSet::new();
        let mut add = |input: ExprId, embeds: bool| {
            let expr = graph.expr(input);
            let is_embedded = embeds && matches!(expr, Some(Expr::Constant(_)));
            let is_function = matches!(expr, Some(Expr::Function(_)));
            if !is_embedded
                && !is_function
                && !skipped.contains(&input)
                && ids.insert(input)
                && find_same_name(graph.module, &inputs, input).is_none()
            {
                inputs.push(input);
            }
        };
        let is_path = |id: PatternId| self.free.iter().any(|&[_, _, path]| path == id);
        for &id in &self.order {
            let node = &self.pattern.nodes[id];
            if is_path(id) {
                let constant =
                    |id: PatternId| matches!(self.pattern.nodes[id], PatternNode::Constant | PatternNode::Literal(_));
                for &on_path in &interior {
                    graph.for_each_operand(on_path, |operand| {
                        let embeds = || {
                            matched.bindings.iter().any(|&(id, callee)| callee == Callee::Expr(operand) && constant(id))
                        };
                        add(operand, matches!(graph.expr(operand), Some(Expr::Constant(_))) && embeds());
                    });
                }
            }
            if self.in_free_paths.contains(&id) {
                continue;
            }
            let embeds = matches!(node, PatternNode::Constant | PatternNode::Literal(_));
            for callee in matched.all(id).filter_map(as_expr) {
                if skipped.contains(&callee) {
                    continue;
                }
                match (node, graph.expr(callee)) {
                    (PatternNode::Tuple(None), Some(Expr::Tuple(fields))) => {
                        fields.iter().for_each(|&field| add(field, false));
                    }
                    (PatternNode::Call { args: None, .. }, Some(Expr::Call(call))) => {
                        call.args.iter().for_each(|&arg| add(arg, false));
                    }
                    (PatternNode::Tuple(None) | PatternNode::Call { args: None, .. }, _) => {}
                    _ if Pattern::operands(node).is_empty() => add(callee, embeds),
                    _ => {}
                }
            }
        }
        inputs
    }
}

fn as_expr(callee: Callee) -> Option<ExprId> {
    match callee {
        Callee::Expr(id) => Some(id),
        Callee::Op(_) => None,
    }
}

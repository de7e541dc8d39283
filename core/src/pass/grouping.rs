//! Finds the groups of expressions that patterns match, and puts them together (spec 1.4).
//!
//! Within one pattern, users are tried before producers, so that the larger match wins. A group is turned down when it
//! overlaps another group of the same pattern, or when a value computed inside is used outside, unless that use flows
//! back into the group's root: then the group computes the value a second time for itself. Groups of earlier patterns
//! are opaque to later ones. A group that the judge refuses still keeps its expressions from other matches of the
//! same pattern.

use super::judge::{Candidate, Composite, Judge, Question, Refusal, RefusalCode, Verdict, ask};
use super::scope::is_opaque;
use crate::diag::Diagnostic;
use crate::ir::{
    AttrValue, Attrs, Callee, Expr, ExprId, FuncType, Function, IndexVec, Module, Name, OpId, Origins, Type,
};
use crate::op;
use crate::pattern::{Entry, Graph, Match, Matcher, Pattern, PatternNode, RootOps};
use crate::typing::Rebuild;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// A group of expressions that becomes a composite function.
#[derive(Clone, Debug)]
pub(super) struct Group {
    /// Name, root, nodes and inputs.
    pub composite: Composite,
    /// `PartitionedFromPattern`.
    pub label: String,
    /// The number of the candidate, in the names of the parameters.
    pub number: usize,
}

/// The groups of a module so far.
pub(super) struct Grouping<'m> {
    /// The module with the groups collapsed.
    pub graph: Graph<'m>,
    /// The groups, by root.
    pub groups: BTreeMap<ExprId, Group>,
    /// Who has taken an expression already, where somebody else has; a group may use it but not contain it.
    pub taken: IndexVec<ExprId, Option<Name>>,
    functions: Vec<(Name, ExprId)>,
    by_op: HashMap<OpId, Vec<ExprId>>,
    all: Vec<ExprId>,
    position: IndexVec<ExprId, u32>,
    /// Which of `functions` an expression belongs to.
    function: IndexVec<ExprId, u32>,
    stale: bool,
}

impl<'m> Grouping<'m> {
    /// Over all functions of a module that are not opaque.
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
            taken: IndexVec::filled(None, module.nodes.len()),
            functions,
            by_op: HashMap::new(),
            all: Vec::new(),
            position: IndexVec::filled(0, module.nodes.len()),
            function: IndexVec::filled(0, module.nodes.len()),
            stale: false,
        };
        grouping.number();
        for &id in &grouping.all {
            if let Some((op, _)) = module.expr(id).as_op_call() {
                grouping.by_op.entry(op).or_default().push(id);
            }
        }
        grouping
    }

    /// Numbers the expressions as they stand now: functions by name, operands before users.
    fn number(&mut self) {
        let mut seen = IndexVec::filled(false, self.graph.module.nodes.len());
        self.all.clear();
        for (i, &(_, function)) in self.functions.iter().enumerate() {
            let order = self.graph.post_order(function, &mut seen, |expr| !closed_to_patterns(expr));
            for id in order {
                self.position[id] = self.all.len() as u32;
                self.function[id] = i as u32;
                self.all.push(id);
            }
        }
        self.stale = false;
    }

    /// The live expressions, functions by name, operands before users.
    pub fn order(&mut self) -> Vec<ExprId> {
        if self.stale {
            self.number();
        }
        self.all.clone()
    }

    /// Drops the numbering, which takes memory; it is made again when it is needed.
    pub fn forget_order(&mut self) {
        self.all = Vec::new();
        self.by_op = HashMap::new();
        self.stale = true;
    }

    /// The name of the global function that an expression belongs to.
    pub fn global_of(&self, id: ExprId) -> Name {
        self.functions[self.function[id] as usize].0.clone()
    }

    /// The operators that are free: live, in no group, taken by nobody; operands before users.
    pub fn free_operators(&mut self) -> Vec<ExprId> {
        if self.stale {
            self.number();
        }
        let free = |&id: &ExprId| {
            self.graph.is_live(id)
                && self.taken[id].is_none()
                && self.graph.expr(id).is_some_and(|expr| expr.as_op_call().is_some())
        };
        self.all.iter().copied().filter(free).collect()
    }

    /// Finds the matches of an entry, asks the judge about those that can be grouped, and collapses what it accepts.
    /// `refused` hears of every expression in a candidate that was turned down.
    pub fn apply(&mut self, entry: &Entry, judge: &mut dyn Judge, refused: &mut dyn FnMut(ExprId, Refusal)) {
        let pattern = &entry.pattern;
        if pattern.required_ops().iter().any(|op| !self.by_op.contains_key(op)) {
            return;
        }
        let roots = pattern.root_ops();
        if roots == RootOps::Any && self.stale {
            self.number();
        }
        let mut matches = self.matches(pattern, roots);
        if matches.len() > 1 {
            if self.stale {
                self.number();
            }
            // Functions by name; within one, users before producers.
            matches.sort_by_key(|(root, _)| (self.function[*root], std::cmp::Reverse(self.position[*root])));
        }
        let leaves = Leaves::of(pattern);
        let mut grouped = HashSet::new();
        let mut numbers: HashMap<u32, usize> = HashMap::new();
        let mut candidates = Vec::new();
        let mut found = Vec::new();
        for (root, met) in matches {
            if grouped.contains(&root) {
                continue;
            }
            let number = numbers.entry(self.function[root]).or_default();
            let inputs = leaves.inputs(&self.graph, &met);
            if inputs.contains(&root) {
                continue;
            }
            let (nodes, label) = self.interior(root, &inputs);
            let this = *number;
            *number += 1;
            if let Some(refusal) = self.reject(entry, root, &nodes, &grouped) {
                nodes.iter().for_each(|&node| refused(node, refusal.clone()));
                continue;
            }
            grouped.extend(nodes.iter().copied().filter(|&node| !shared_freely(self.graph.module.expr(node))));
            let composite = Composite { name: entry.name.clone(), root, nodes, inputs };
            candidates.push(Candidate {
                nodes: composite.nodes.clone(),
                inputs: composite.inputs.clone(),
                outputs: vec![root],
                outside_users: self.graph.users(root).count(),
                composites: Vec::new(),
            });
            found.push(Group { composite, label, number: this });
        }
        let verdicts = ask(judge, self.graph.module, Question::Pattern(entry), &candidates);
        for (group, verdict) in found.into_iter().zip(verdicts) {
            match verdict {
                Verdict::Supported => {
                    let root = group.composite.root;
                    self.graph.collapse(root, group.composite.inputs.clone().into());
                    self.groups.insert(root, group);
                    self.stale = true;
                }
                Verdict::Refused(refusal) => {
                    group.composite.nodes.iter().for_each(|&node| refused(node, refusal.clone()));
                }
            }
        }
    }

    /// Takes a group apart again.
    pub fn dissolve(&mut self, root: ExprId) {
        if self.groups.remove(&root).is_some() {
            self.graph.expand(root);
            self.stale = true;
        }
    }

    fn matches(&self, pattern: &Pattern, roots: RootOps) -> Vec<(ExprId, Match)> {
        let mut matcher = Matcher::new(&self.graph);
        let mut matches = Vec::new();
        let mut attempt = |roots: &[ExprId]| {
            for &root in roots {
                if self.graph.is_live(root)
                    && self.taken[root].is_none()
                    && self.graph.collapsed(root).is_none()
                    && let Some(met) = matcher.match_at(pattern, root)
                {
                    matches.push((root, met));
                }
            }
        };
        match roots {
            RootOps::Any => attempt(&self.all),
            RootOps::These(ops) => {
                ops.iter().for_each(|op| attempt(self.by_op.get(op).map(Vec::as_slice).unwrap_or_default()));
            }
        }
        matches
    }

    /// What is computed between the inputs and the root, operands before users, and its label.
    fn interior(&self, root: ExprId, inputs: &[ExprId]) -> (Vec<ExprId>, String) {
        let module = self.graph.module;
        let mut seen: HashSet<ExprId> = inputs.iter().copied().collect();
        let mut nodes = Vec::new();
        let mut label = String::new();
        let mut stack = vec![(root, false)];
        while let Some((id, leave)) = stack.pop() {
            if !leave {
                if seen.insert(id) {
                    stack.push((id, true));
                    let first = stack.len();
                    self.graph.for_each_operand(id, |operand| stack.push((operand, false)));
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
                Expr::Constant(_)
                | Expr::Var(_)
                | Expr::Global(_)
                | Expr::RefNew(_)
                | Expr::RefRead(_)
                | Expr::RefWrite { .. } => {}
            }
        }
        (nodes, label)
    }

    /// Why a candidate cannot be a group, if it cannot.
    fn reject(&self, entry: &Entry, root: ExprId, nodes: &[ExprId], grouped: &HashSet<ExprId>) -> Option<Refusal> {
        let module = self.graph.module;
        let inside: HashSet<ExprId> = nodes.iter().copied().collect();
        for &node in nodes.iter().filter(|&&node| !shared_freely(module.expr(node))) {
            if let Some(owner) = &self.taken[node] {
                let detail = format!("{}: {} is on {owner} already", entry.name, describe(module, node));
                return Some(Refusal::new(RefusalCode::LowerPriority, detail));
            }
            if grouped.contains(&node) || self.graph.collapsed(node).is_some() {
                let detail = format!("{}: {} belongs to another match", entry.name, describe(module, node));
                return Some(Refusal::new(RefusalCode::Overlap, detail));
            }
            if node != root
                && self.graph.users(node).any(|user| !inside.contains(&user) && !self.graph.flows_into(user, root))
            {
                let detail =
                    format!("{}: the result of {} is used outside the match too", entry.name, describe(module, node));
                return Some(Refusal::new(RefusalCode::Escape, detail));
            }
        }
        None
    }

    /// The module with each group as a call of its composite function.
    ///
    /// # Errors
    /// None that a typed module can cause.
    pub fn rebuild(&self) -> Result<Module, Box<Diagnostic>> {
        let module = self.graph.module;
        let live: Vec<ExprId> = module.nodes.ids().filter(|&id| self.graph.is_live(id)).collect();
        Rebuild::run_in_order(module, live, |rebuild, id, _| {
            Ok(self.groups.get(&id).map(|group| emit(rebuild, group, |rebuild, input| rebuild.get(input))))
        })
    }
}

/// What later patterns must not look into.
fn closed_to_patterns(expr: &Expr) -> bool {
    expr.as_function().is_some_and(|f| is_opaque(f) || f.attrs.get("PartitionedFromPattern").is_some())
}

/// What any number of groups may hold a copy of.
fn shared_freely(expr: &Expr) -> bool {
    matches!(expr, Expr::Constant(_) | Expr::Var(_) | Expr::Function(_) | Expr::Global(_))
}

/// An expression in a message.
pub(super) fn describe(module: &Module, id: ExprId) -> String {
    match module.expr(id) {
        Expr::Constant(_) => "a constant".to_owned(),
        Expr::Var(var) => format!("%{}", var.name),
        Expr::Global(name) => format!("@{name}"),
        Expr::Tuple(_) => "a tuple".to_owned(),
        Expr::Project { index, .. } => format!("field {index} of a tuple"),
        Expr::Call(call) => match call.callee {
            Callee::Op(op) => op::get(op).name.to_owned(),
            Callee::Expr(_) => "a call of a function".to_owned(),
        },
        Expr::Let { .. } => "a let".to_owned(),
        Expr::If { .. } => "an if".to_owned(),
        Expr::Function(_) => "a function".to_owned(),
        Expr::RefNew(_) | Expr::RefRead(_) | Expr::RefWrite { .. } => "a reference".to_owned(),
    }
}

/// Appends the composite function of a group and the call of it, which stands for the group's root. `outer` gives what
/// stands for the inputs where the call is.
pub(super) fn emit<'a>(
    rebuild: &mut Rebuild<'a>,
    group: &Group,
    mut outer: impl FnMut(&mut Rebuild<'a>, ExprId) -> ExprId,
) -> ExprId {
    let Composite { name, root, nodes, inputs } = &group.composite;
    let old = rebuild.old;
    let mut inner: HashMap<ExprId, ExprId> = HashMap::new();
    let mut params = Vec::with_capacity(inputs.len());
    for (k, &input) in inputs.iter().enumerate() {
        let ty = old.ty(input).clone();
        let param = rebuild.new.var(format!("FunctionVar_{}_{k}", group.number), ty);
        inner.insert(input, param);
        params.push(param);
    }
    let bound: HashSet<ExprId> = nodes.iter().flat_map(|&node| binders(old.expr(node))).collect();
    for &node in nodes {
        let copy = match old.expr(node) {
            // Constants and names are the same inside and outside.
            Expr::Constant(_) | Expr::Global(_) => rebuild.get_or_copy(node),
            Expr::Var(_) if !bound.contains(&node) => outer(rebuild, node),
            expr => {
                let mut expr = expr.clone();
                expr.map_operands(|operand| inner[&operand]);
                let source = &old.nodes[node];
                rebuild.new.module.push_typed(expr, source.ty.clone(), source.origin)
            }
        };
        inner.insert(node, copy);
    }
    let types: Box<[Type]> = inputs.iter().map(|&input| old.ty(input).clone()).collect();
    let ret = old.ty(*root).clone();
    let attrs = Attrs::new([
        ("PartitionedFromPattern", AttrValue::from(&*group.label)),
        ("Composite", AttrValue::Str(name.clone())),
    ]);
    let function = Function { params: params.into(), body: inner[root], ret: ret.clone(), attrs };
    let module = &mut rebuild.new.module;
    let ty = Type::Func(Arc::new(FuncType { params: types, ret: ret.clone() }));
    let function = module.push_typed(Expr::Function(Box::new(function)), ty, Origins::none());
    let origin = module.origins.union_all(nodes.iter().map(|&node| old.nodes[node].origin));
    let args: Vec<ExprId> = inputs.iter().map(|&input| outer(rebuild, input)).collect();
    rebuild.new.module.push_typed(Expr::call(function, args), ret, origin)
}

/// The variables that an expression binds.
fn binders(expr: &Expr) -> Vec<ExprId> {
    match expr {
        Expr::Let { var, .. } => vec![*var],
        Expr::Function(function) => function.params.to_vec(),
        _ => Vec::new(),
    }
}

/// How the inputs of a group follow from what a pattern met; worked out once per pattern.
struct Leaves<'p> {
    pattern: &'p Pattern,
    order: Vec<crate::pattern::PatternId>,
    /// Parents and paths of dominators, and what lies inside function patterns.
    fuzzy: Vec<crate::pattern::PatternId>,
}

impl<'p> Leaves<'p> {
    fn of(pattern: &'p Pattern) -> Leaves<'p> {
        let order = pattern.post_order();
        let mut fuzzy = Vec::new();
        for &id in &order {
            match &pattern.nodes[id] {
                PatternNode::Dominates { parent, path, .. } => fuzzy.extend([*parent, *path]),
                PatternNode::Function { .. } => {
                    let inner = Pattern { nodes: pattern.nodes.clone(), root: id };
                    fuzzy.extend(inner.post_order().into_iter().filter(|&below| below != id));
                }
                _ => {}
            }
        }
        Leaves { pattern, order, fuzzy }
    }

    fn inputs(&self, graph: &Graph<'_>, met: &Match) -> Vec<ExprId> {
        let mut skip: HashSet<ExprId> = HashSet::new();
        for &id in &self.fuzzy {
            skip.extend(met.all(id).filter_map(as_expr));
        }
        // The variable of a let that is matched belongs to the group.
        for &(_, at) in &met.met {
            if let Some(Expr::Let { var, .. }) = as_expr(at).and_then(|id| graph.expr(id)) {
                skip.insert(*var);
            }
        }
        let mut inputs: Vec<ExprId> = Vec::new();
        let mut add = |input: ExprId, embeds: bool| {
            let expr = graph.expr(input);
            let embedded = embeds && matches!(expr, Some(Expr::Constant(_)));
            let function = matches!(expr, Some(Expr::Function(_)));
            if !embedded && !function && !skip.contains(&input) && !inputs.contains(&input) {
                inputs.push(input);
            }
        };
        for &id in &self.order {
            let node = &self.pattern.nodes[id];
            let embeds = matches!(node, PatternNode::Constant | PatternNode::Literal(_));
            for at in met.all(id).filter_map(as_expr) {
                if skip.contains(&at) {
                    continue;
                }
                match (node, graph.expr(at)) {
                    (PatternNode::Tuple(None), Some(Expr::Tuple(fields))) => {
                        fields.iter().for_each(|&field| add(field, false));
                    }
                    (PatternNode::Call { args: None, .. }, Some(Expr::Call(call))) => {
                        call.args.iter().for_each(|&arg| add(arg, false));
                    }
                    (PatternNode::Tuple(None) | PatternNode::Call { args: None, .. }, _) => {}
                    _ if Pattern::operands(node).is_empty() => add(at, embeds),
                    _ => {}
                }
            }
        }
        inputs
    }
}

fn as_expr(at: Callee) -> Option<ExprId> {
    match at {
        Callee::Expr(id) => Some(id),
        Callee::Op(_) => None,
    }
}

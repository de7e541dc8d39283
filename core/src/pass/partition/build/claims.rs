//! Claims of a backend that sees the whole module: sets of operators, each of which becomes one region.
//!
//! A set is refused, with the names of the operators at fault, by the first of these rules that it breaks; the other
//! sets are kept:
//!
//! 1. It names operators of one body, each at most once ([`ClaimedSet::problem`], which the source of the claims finds).
//! 2. No operator belongs to an earlier backend (`LowerPriority`).
//! 3. No operator belongs to an earlier set of the same backend (`Overlap`).
//! 4. It reads a value: a region has inputs (`UnsupportedOp`).
//! 5. It is convex, together with the regions of earlier backends and the earlier sets: no value leaves it and comes
//!    back (`WouldCycle`).
//!
//! All sets are checked at once in linear time; only if some of them are not convex is each checked by itself.

use super::super::grouping::{Grouping, describe};
use super::super::judge::{
    Body, Candidate, ClaimedSet, Claims, Judge, Question, Refusal, RefusalCode, Verdict, request_verdicts,
};
use crate::analysis::scope::Bodies;
use byoc_ir::ir::{Expr, ExprId, IndexVec, Module, Name, ScopeId};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Maximum number of operators that a message names.
const MAX_NAMED: usize = 4;

/// Place of each operator before a backend states its claims.
pub(super) struct Places<'p> {
    /// All operators of the module.
    pub operators: &'p [ExprId],
    /// Operators without a backend.
    pub free: HashSet<ExprId>,
    /// Region of each expression, including the expressions inside composites.
    pub region_of: IndexVec<ExprId, Option<u32>>,
    /// Backend of each region.
    pub owners: Vec<Name>,
}

impl Places<'_> {
    /// Returns the backend of an operator; `None` if the operator is free.
    fn owner(&self, id: ExprId) -> Option<&Name> {
        if self.free.contains(&id) { None } else { self.owners.get(self.region_of[id]? as usize) }
    }
}

/// Sets that can become regions, and the refusals of the others.
pub(super) struct Checked {
    /// Number of the set of each expression, counted from 1; 0 for none. Projections belong to the set of their tuple,
    /// tuples to that of their only user.
    pub set_of: IndexVec<ExprId, u32>,
    /// Number of sets, including refused ones.
    pub count: usize,
    /// Refusals, by operator.
    pub refusals: Vec<(ExprId, Refusal)>,
}

/// Returns the bodies of a module with the operators in each.
pub(super) fn bodies_of(grouping: &Grouping<'_>, scopes: &Bodies, places: &Places<'_>) -> Vec<Body> {
    let module = grouping.graph.module;
    let mut index_of: BTreeMap<Option<ScopeId>, usize> = BTreeMap::new();
    let mut bodies: Vec<Body> = Vec::new();
    for &id in places.operators {
        let index = *index_of.entry(scopes.scope(id)).or_insert_with(|| {
            let function = grouping.function_name(grouping.function_of(id)).clone();
            let lists = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
            bodies.push(Body { function, operators: lists.0, inputs: lists.1, outputs: lists.2, taken: lists.3 });
            bodies.len() - 1
        });
        bodies[index].operators.push(id);
        bodies[index].taken.extend(places.owner(id).map(|owner| (id, owner.clone())));
    }
    let operators: HashSet<ExprId> = places.operators.iter().copied().collect();
    let is_inside = |id: ExprId, scope: Option<ScopeId>| operators.contains(&id) && scopes.scope(id) == scope;
    let mut has_outside_user: HashSet<ExprId> = HashSet::new();
    let mut has_user: HashSet<ExprId> = HashSet::new();
    let live = module.live();
    for (id, node) in module.nodes.iter().filter(|(id, _)| live[*id]) {
        let is_operator = operators.contains(&id);
        if !is_operator && matches!(node.expr, Expr::Tuple(_) | Expr::Project { .. }) {
            continue;
        }
        let mut operands = Vec::new();
        node.expr.for_each_operand(|operand| operands.push(operand));
        for producer in sources(module, operands, |_| true) {
            let is_within = is_operator && scopes.scope(producer) == scopes.scope(id);
            if is_within {
                has_user.insert(producer)
            } else {
                has_outside_user.insert(producer)
            };
        }
    }
    for (scope, index) in index_of {
        let body = &mut bodies[index];
        let mut operands = Vec::new();
        body.operators.iter().for_each(|&id| module.expr(id).for_each_operand(|operand| operands.push(operand)));
        // A tuple that is computed elsewhere is an input as a whole.
        let sources = sources(module, operands, |id| scopes.scope(id) == scope);
        let is_input = |id: &ExprId| !is_inside(*id, scope) && module.expr(*id).as_constant().is_none();
        body.inputs = sources.into_iter().filter(is_input).collect();
        let is_output = |id: &ExprId| has_outside_user.contains(id) || !has_user.contains(id);
        body.outputs = body.operators.iter().copied().filter(is_output).collect();
    }
    bodies
}

/// Returns the expressions that compute `pending`, each once, in order of first use: tuples and projections for which
/// `is_entered` returns true are replaced with their operands.
fn sources(module: &Module, mut pending: Vec<ExprId>, is_entered: impl Fn(ExprId) -> bool) -> Vec<ExprId> {
    pending.reverse();
    let mut visited = HashSet::new();
    let mut sources = Vec::new();
    while let Some(id) = pending.pop() {
        if !visited.insert(id) {
            continue;
        }
        match module.expr(id) {
            Expr::Tuple(fields) if is_entered(id) => pending.extend(fields.iter().rev()),
            Expr::Project { tuple, .. } if is_entered(id) => pending.push(*tuple),
            _ => sources.push(id),
        }
    }
    sources
}

/// Checks the sets that a backend claims.
pub(super) fn check(grouping: &mut Grouping<'_>, scopes: &Bodies, places: &Places<'_>, claims: &Claims) -> Checked {
    let module = grouping.graph.module;
    let mut checked = Checked {
        set_of: IndexVec::filled(0, module.nodes.len()),
        count: claims.sets.len(),
        refusals: claims.refusals.clone(),
    };
    for (index, set) in claims.sets.iter().enumerate() {
        match fault(module, places, &checked.set_of, index, set) {
            Some(refusal) => checked.refuse(set, &refusal),
            None => set.operators.iter().for_each(|&id| checked.set_of[id] = index as u32 + 1),
        }
    }
    let order = grouping.order();
    add_tuples(grouping, scopes, &order, &mut checked.set_of);
    if Flow::new(grouping, &order, places, |id| checked.set_of[id]).is_acyclic() {
        return checked;
    }
    let mut accepted: IndexVec<ExprId, u32> = IndexVec::filled(0, module.nodes.len());
    for (index, set) in claims.sets.iter().enumerate() {
        let number = index as u32 + 1;
        let members = || order.iter().copied().filter(|&id| checked.set_of[id] == number);
        members().for_each(|id| accepted[id] = number);
        let flow = Flow::new(grouping, &order, places, |id| accepted[id]);
        let Some(path) = members().next().and_then(|id| flow.path_back(id)) else { continue };
        let refusal = not_convex(module, index, &path);
        let members: Vec<ExprId> = members().collect();
        members.into_iter().for_each(|id| (accepted[id], checked.set_of[id]) = (0, 0));
        checked.refuse(set, &refusal);
    }
    checked
}

impl Checked {
    fn refuse(&mut self, set: &ClaimedSet, refusal: &Refusal) {
        self.refusals.extend(set.operators.iter().map(|&id| (id, refusal.clone())));
    }
}

/// Returns the reason against a set by the first four rules.
fn fault(
    module: &Module,
    places: &Places<'_>,
    set_of: &IndexVec<ExprId, u32>,
    index: usize,
    set: &ClaimedSet,
) -> Option<Refusal> {
    if let Some(problem) = &set.problem {
        return Some(Refusal::new(RefusalCode::RegionRefused, format!("set {index} of the answer: {problem}")));
    }
    let taken: Vec<ExprId> = set.operators.iter().copied().filter(|&id| places.owner(id).is_some()).collect();
    if let Some(owner) = taken.first().and_then(|&id| places.owner(id)) {
        let names = names(module, &taken);
        let detail = format!("set {index} of the answer: {names}: assigned to {owner}, which has higher priority");
        return Some(Refusal::new(RefusalCode::LowerPriority, detail));
    }
    let shared: Vec<ExprId> = set.operators.iter().copied().filter(|&id| set_of[id] > 0).collect();
    if let Some(&first) = shared.first() {
        let (names, other) = (names(module, &shared), set_of[first] - 1);
        let detail = format!("set {index} of the answer: {names}: already in set {other}");
        return Some(Refusal::new(RefusalCode::Overlap, detail));
    }
    let members: HashSet<ExprId> = set.operators.iter().copied().collect();
    let mut operands = Vec::new();
    set.operators.iter().for_each(|&id| module.expr(id).for_each_operand(|operand| operands.push(operand)));
    let reads = |id: &ExprId| !members.contains(id) && !module.expr(*id).is_closed_leaf();
    if !sources(module, operands, |_| true).iter().any(reads) {
        let detail =
            format!("set {index} of the answer: {}: expected an input, found none", names(module, &set.operators));
        return Some(Refusal::new(RefusalCode::UnsupportedOp, detail));
    }
    None
}

/// Returns the refusal of a set that a path leaves and enters again.
fn not_convex(module: &Module, index: usize, path: &[ExprId]) -> Refusal {
    let named = |id: ExprId| sources(module, vec![id], |_| true).first().map_or(id, |&source| source);
    let (first, last) = (named(path[0]), path[path.len() - 1]);
    let outside = &path[1..path.len() - 1];
    let computing: Vec<ExprId> = outside.iter().copied().filter(|&id| module.expr(id).as_call().is_some()).collect();
    let outside = names(module, if computing.is_empty() { outside } else { &computing });
    let (first, last) = (name(module, first), name(module, last));
    let detail = format!(
        "set {index} of the answer is not convex: the result of {first} reaches {last} through {outside} outside the set"
    );
    let hint = "claim the operators on that path too, or divide the set before them".to_owned();
    Refusal { hint, ..Refusal::new(RefusalCode::WouldCycle, detail) }
}

/// Names operators for a message, the first [`MAX_NAMED`] of them.
fn names(module: &Module, ids: &[ExprId]) -> String {
    let mut text = ids.iter().take(MAX_NAMED).map(|&id| name(module, id)).collect::<Vec<_>>().join(", ");
    if ids.len() > MAX_NAMED {
        text.push_str(&format!(" and {} more", ids.len() - MAX_NAMED));
    }
    text
}

/// Names an operator for a message: `nn.relu (Relu_3)`, with the name in the model if there is one.
fn name(module: &Module, id: ExprId) -> String {
    match module.origins.get(module.nodes[id].origin).last() {
        Some(&source) => format!("{} ({})", describe(module, id), module.origins.sources()[source].name),
        None => describe(module, id),
    }
}

/// Adds the projections of the sets' tuples, and the tuples whose only user is in a set.
fn add_tuples(grouping: &Grouping<'_>, scopes: &Bodies, order: &[ExprId], set_of: &mut IndexVec<ExprId, u32>) {
    let graph = &grouping.graph;
    for &id in order {
        if let Some(Expr::Project { tuple, .. }) = graph.expr(id)
            && scopes.are_in_same_body(*tuple, id)
        {
            set_of[id] = set_of[*tuple];
        }
    }
    for &id in order.iter().rev() {
        if let Some(Expr::Tuple(_)) = graph.expr(id) {
            let mut users = graph.users(id);
            if let Some(user) = users.next()
                && scopes.are_in_same_body(id, user)
                && users.all(|other| other == user)
            {
                set_of[id] = set_of[user];
            }
        }
    }
}

/// Data flow of a module in which each region and each set is one node.
struct Flow {
    node_of: HashMap<ExprId, u32>,
    /// Edges to other nodes, by node: the consumer's node, and the expressions at both ends.
    successors: Vec<Vec<(u32, ExprId, ExprId)>>,
}

impl Flow {
    fn new(grouping: &Grouping<'_>, order: &[ExprId], places: &Places<'_>, set_of: impl Fn(ExprId) -> u32) -> Flow {
        let mut merged: HashMap<(bool, u32), u32> = HashMap::new();
        let mut node_of: HashMap<ExprId, u32> = HashMap::with_capacity(order.len());
        let mut count = 0;
        for &id in order {
            let key = match (set_of(id), places.region_of[id].filter(|_| !places.free.contains(&id))) {
                (0, None) => None,
                (0, Some(region)) => Some((false, region)),
                (set, _) => Some((true, set)),
            };
            let mut next_node = || {
                count += 1;
                count - 1
            };
            let node = match key {
                Some(key) => *merged.entry(key).or_insert_with(next_node),
                None => next_node(),
            };
            node_of.insert(id, node);
        }
        let mut successors = vec![Vec::new(); count as usize];
        for &id in order {
            grouping.for_each_flow(id, |producer, consumer| {
                if let (Some(&from), Some(&to)) = (node_of.get(&producer), node_of.get(&consumer))
                    && from != to
                {
                    successors[from as usize].push((to, producer, consumer));
                }
            });
        }
        Flow { node_of, successors }
    }

    fn is_acyclic(&self) -> bool {
        let mut pending = vec![0usize; self.successors.len()];
        self.successors.iter().flatten().for_each(|edge| pending[edge.0 as usize] += 1);
        let mut ready: Vec<usize> = (0..pending.len()).filter(|&node| pending[node] == 0).collect();
        let mut sorted = 0;
        while let Some(node) = ready.pop() {
            sorted += 1;
            for edge in &self.successors[node] {
                pending[edge.0 as usize] -= 1;
                if pending[edge.0 as usize] == 0 {
                    ready.push(edge.0 as usize);
                }
            }
        }
        sorted == pending.len()
    }

    /// Returns the expressions on a path that leaves the node of `id` and ends in it, from a producer in the node to a
    /// consumer in the node; `None` if there is no such path.
    fn path_back(&self, id: ExprId) -> Option<Vec<ExprId>> {
        let start = *self.node_of.get(&id)?;
        // Edge by which the search reached each node.
        let mut reached_by: HashMap<u32, (u32, ExprId, ExprId)> = HashMap::new();
        let mut stack = vec![start];
        while let Some(node) = stack.pop() {
            for &(to, producer, consumer) in &self.successors[node as usize] {
                if to == start {
                    let mut path = vec![consumer];
                    let (mut node, mut producer) = (node, producer);
                    while node != start {
                        let (previous, before, entered) = reached_by[&node];
                        if entered != producer {
                            path.push(producer);
                        }
                        path.push(entered);
                        (node, producer) = (previous, before);
                    }
                    path.push(producer);
                    path.reverse();
                    return Some(path);
                }
                reached_by.entry(to).or_insert_with(|| {
                    stack.push(to);
                    (node, producer, consumer)
                });
            }
        }
        None
    }
}

/// Judge for the patterns of a backend inside its sets: a match that reaches outside of one set is no composite.
pub(super) struct WithinSets<'j> {
    pub judge: &'j mut dyn Judge,
    pub set_of: &'j IndexVec<ExprId, u32>,
}

impl Judge for WithinSets<'_> {
    fn judge(&mut self, module: &Module, question: Question<'_>, candidates: &[Candidate]) -> Vec<Verdict> {
        let is_inside = |candidate: &Candidate| {
            let operators = candidate.nodes.iter().filter(|&&id| module.expr(id).as_op_call().is_some());
            let sets: HashSet<u32> = operators.map(|&id| self.set_of[id]).collect();
            sets.len() == 1 && !sets.contains(&0)
        };
        let inside: Vec<Candidate> = candidates.iter().filter(|&candidate| is_inside(candidate)).cloned().collect();
        let mut verdicts = request_verdicts(self.judge, module, question, &inside).into_iter();
        let outside = || Verdict::Refused(Refusal::new(RefusalCode::NotClaimed, "the match reaches outside of a set"));
        let verdict = |candidate| if is_inside(candidate) { verdicts.next() } else { None };
        candidates.iter().map(verdict).map(|verdict| verdict.unwrap_or_else(outside)).collect()
    }
}

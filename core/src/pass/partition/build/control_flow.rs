//! Control-flow composites, for backends that execute branches or loops. An `if` whose branches consist of operators,
//! tuples and further ifs becomes one unit, like the match of a pattern. So does a while loop whose function consists
//! of such expressions.
//!
//! An outer construct is tried before the constructs nested in it. If the backend refuses the outer construct, the
//! nested ones become candidates in the next round, and the operators inside remain free for patterns.

use super::super::grouping::{Group, Grouping, describe};
use super::super::judge::{Candidate, Composite, Judge, Question, Refusal, RefusalCode, Verdict, request_verdicts};
use byoc_ir::ir::{AttrValue, Attrs, Callee, Expr, ExprId, IndexVec, Module, Name, ScopeId, Scopes, WhileLoop};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Maximum number of rounds. Each round tries the constructs nested in those that the previous round refused.
const MAX_ROUNDS: usize = 16;

/// Control flow that a backend executes as part of a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControlFlow {
    /// Ifs, as composites `NAME.if`.
    pub branches: bool,
    /// While loops, as composites `NAME.while`.
    pub loops: bool,
}

/// Name and attributes of the composites for one kind of control flow.
struct Kind {
    name: Name,
    attrs: Attrs,
}

impl Kind {
    fn new(backend: &Name, suffix: &str, pattern: &str) -> Kind {
        let name = Name::from(format!("{backend}.{suffix}"));
        let pairs = [("Composite", AttrValue::Str(name.clone())), ("PartitionedFromPattern", pattern.into())];
        Kind { name, attrs: Attrs::new(pairs) }
    }
}

/// Requests verdicts on the kinds of control flow that the backend executes, and groups the constructs that it accepts.
/// `record_refusal` is called for every expression of a refused candidate.
pub(super) fn group_control_flow(
    grouping: &mut Grouping<'_>,
    (backend, supported): (&Name, ControlFlow),
    judge: &mut dyn Judge,
    record_refusal: &mut dyn FnMut(ExprId, Refusal),
) {
    let module = grouping.graph.module;
    let mut pending = Pending::of(module, grouping.order(), supported);
    if pending.openers.is_empty() {
        return;
    }
    let scopes = Scopes::of_module(module);
    let kinds = [Kind::new(backend, "if", "If_"), Kind::new(backend, "while", "Let_")];
    let mut numbers: HashMap<u32, u32> = HashMap::new();
    for _ in 0..MAX_ROUNDS {
        let contents = pending.outermost(module, &scopes, grouping);
        if contents.is_empty() {
            break;
        }
        pending.remove(|root| contents.contains_key(&root));
        let mut groups: [Vec<Group>; 2] = Default::default();
        for (root, nodes) in contents {
            let kind = usize::from(matches!(module.expr(root), Expr::Let { .. }));
            match composite(grouping, &kinds[kind].name, root, nodes) {
                Ok(composite) => {
                    let number = numbers.entry(grouping.function_of(root)).or_default();
                    groups[kind].push(Group { composite, attrs: kinds[kind].attrs.clone(), number: *number });
                    *number += 1;
                }
                Err(refusal) => record_refusal(root, refusal),
            }
        }
        let mut accepted: HashSet<ExprId> = HashSet::new();
        for (kind, groups) in kinds.iter().zip(groups) {
            let candidates: Vec<Candidate> = groups.iter().map(|group| grouping.candidate(&group.composite)).collect();
            let verdicts = request_verdicts(judge, module, Question::Composite(&kind.name), &candidates);
            for (group, verdict) in groups.into_iter().zip(verdicts) {
                match verdict {
                    Verdict::Supported | Verdict::Split(_) => {
                        accepted.extend(&group.composite.nodes);
                        grouping.accept(group);
                    }
                    Verdict::Refused(refusal) => {
                        group.composite.nodes.iter().for_each(|&node| record_refusal(node, refusal.clone()));
                    }
                }
            }
        }
        pending.remove(|root| accepted.contains(&root));
    }
}

/// Ifs and loops on which no verdict has been requested yet, each keyed by the expression that opens its scopes: the if
/// itself, or the function of the loop.
struct Pending {
    openers: BTreeMap<ExprId, ExprId>,
}

impl Pending {
    fn of(module: &Module, order: Vec<ExprId>, supported: ControlFlow) -> Pending {
        let mut openers = BTreeMap::new();
        for id in order {
            if supported.branches && matches!(module.expr(id), Expr::If { .. }) {
                openers.insert(id, id);
            }
            if let Some(while_loop) = module.while_loop(id).filter(|_| supported.loops) {
                openers.insert(while_loop.function, id);
            }
        }
        Pending { openers }
    }

    fn remove(&mut self, is_removed: impl Fn(ExprId) -> bool) {
        self.openers.retain(|_, root| !is_removed(*root));
    }

    /// Returns the outermost pending ifs and loops, each with the expressions inside it in topological order.
    fn outermost(&self, module: &Module, scopes: &Scopes, grouping: &Grouping<'_>) -> BTreeMap<ExprId, Vec<ExprId>> {
        // Outermost pending construct around each scope. The parent of a scope has a smaller id.
        let mut owners: IndexVec<ScopeId, Option<ExprId>> = IndexVec::with_capacity(scopes.tree.len());
        for (id, scope) in scopes.tree.iter() {
            let outer = if id == Scopes::root() { None } else { owners[scope.parent] };
            let opened = || self.openers.get(&scope.opener?).copied().filter(|&root| grouping.graph.is_live(root));
            owners.push(outer.or_else(opened));
        }
        let owner = |id: ExprId| scopes.scope_of[id].and_then(|scope| owners[scope]);
        let mut contents: BTreeMap<ExprId, Vec<ExprId>> = BTreeMap::new();
        for &root in self.openers.values().filter(|&&root| grouping.graph.is_live(root) && owner(root).is_none()) {
            let frame = module
                .while_loop(root)
                .map(|WhileLoop { variable, function, first_call, .. }| vec![variable, function, first_call]);
            contents.insert(root, frame.unwrap_or_default());
        }
        for id in module.nodes.ids().filter(|&id| grouping.graph.is_live(id)) {
            if let Some(nodes) = owner(id).and_then(|owner| contents.get_mut(&owner)) {
                nodes.push(id);
            }
        }
        contents.values_mut().for_each(|nodes| nodes.sort_unstable());
        contents
    }
}

/// Returns the composite for an if or a loop with the given expressions inside it.
///
/// # Errors
/// If an expression cannot be part of a composite.
fn composite(grouping: &Grouping<'_>, name: &Name, root: ExprId, mut nodes: Vec<ExprId>) -> Result<Composite, Refusal> {
    let module = grouping.graph.module;
    let refuse = |code: RefusalCode, node: ExprId, reason: &str| {
        Err(Refusal::new(code, format!("{name}: {} {reason}", describe(module, node))))
    };
    nodes.push(root);
    let interior: HashSet<ExprId> = nodes.iter().copied().collect();
    let while_loop = module.while_loop(root);
    let mut inputs = Vec::new();
    let mut seen = HashSet::new();
    for &node in &nodes {
        let is_part_of_loop =
            while_loop.is_some_and(|parts| [root, parts.function, parts.first_call, parts.next_call].contains(&node));
        match module.expr(node) {
            Expr::Call(call) if matches!(call.callee, Callee::Op(_)) => {
                if let Some(owner) = grouping.owner_of(node) {
                    return refuse(RefusalCode::LowerPriority, node, &format!("is already assigned to {owner}"));
                }
            }
            Expr::Tuple(_) | Expr::Project { .. } | Expr::Constant(_) | Expr::If { .. } | Expr::Var(_) => {}
            _ if is_part_of_loop => {}
            _ => return refuse(RefusalCode::UnsupportedOp, node, "inside control flow cannot be part of a region"),
        }
        if grouping.graph.collapsed_inputs(node).is_some() {
            return refuse(RefusalCode::Overlap, node, "belongs to another match");
        }
        let mut uses_loop_as_value = false;
        module.expr(node).for_each_operand(|operand| {
            uses_loop_as_value |= !is_part_of_loop && while_loop.is_some_and(|parts| operand == parts.variable);
            if !interior.contains(&operand) && seen.insert(operand) {
                inputs.push(operand);
            }
        });
        if uses_loop_as_value {
            return refuse(RefusalCode::UnsupportedOp, node, "uses the function of the loop as a value");
        }
    }
    // Constants that are shared with other expressions are embedded, too.
    let (constants, inputs): (Vec<ExprId>, Vec<ExprId>) =
        inputs.into_iter().partition(|&input| matches!(module.expr(input), Expr::Constant(_)));
    if inputs.is_empty() {
        return refuse(RefusalCode::UnsupportedOp, root, "without inputs cannot be a region");
    }
    nodes.splice(0..0, constants);
    Ok(Composite { name: name.clone(), root, nodes, inputs })
}

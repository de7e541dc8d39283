//! Composites of control flow, for backends that execute branches: an `if` whose branches consist of operators, tuples
//! and further ifs becomes one unit, like the match of a pattern.
//!
//! An outer `if` is tried before the ifs in its branches. If the backend refuses it, the inner ones are candidates of
//! the next round, and the operators in the branches stay free for patterns.

use super::grouping::{Group, Grouping, describe};
use super::judge::{Candidate, Composite, Judge, Question, Refusal, RefusalCode, Verdict, request_verdicts};
use byoc_ir::ir::{AttrValue, Attrs, Callee, Expr, ExprId, IndexVec, Module, Name, ScopeId, Scopes};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Maximum number of rounds, and with it the nesting depth up to which a refused `if` is replaced by the ifs in its
/// branches.
const MAX_ROUNDS: usize = 16;

/// Name of the composite of an `if`, after the name of the backend.
const SUFFIX: &str = "if";

/// Requests verdicts on the ifs of a module, and groups those that the backend accepts. `record_refusal` is called for
/// every expression of a refused candidate.
pub(super) fn group_branches(
    grouping: &mut Grouping<'_>,
    backend: &Name,
    judge: &mut dyn Judge,
    record_refusal: &mut dyn FnMut(ExprId, Refusal),
) {
    let module = grouping.graph.module;
    let mut pending: HashSet<ExprId> =
        grouping.order().into_iter().filter(|&id| matches!(module.expr(id), Expr::If { .. })).collect();
    if pending.is_empty() {
        return;
    }
    let scopes = Scopes::of_module(module);
    let name = Name::from(format!("{backend}.{SUFFIX}"));
    let attrs = Attrs::new([
        ("Composite", AttrValue::Str(name.clone())),
        ("PartitionedFromPattern", AttrValue::Str("If_".into())),
    ]);
    let mut numbers: HashMap<u32, u32> = HashMap::new();
    for _ in 0..MAX_ROUNDS {
        let contents = outermost(module, &scopes, &pending, grouping);
        if contents.is_empty() {
            break;
        }
        let mut groups = Vec::new();
        for (root, nodes) in contents {
            pending.remove(&root);
            match composite(grouping, &name, root, nodes) {
                Ok(composite) => {
                    let number = numbers.entry(grouping.function_of(root)).or_default();
                    groups.push(Group { composite, attrs: attrs.clone(), number: *number });
                    *number += 1;
                }
                Err(refusal) => record_refusal(root, refusal),
            }
        }
        let candidates: Vec<Candidate> = groups.iter().map(|group| grouping.candidate(&group.composite)).collect();
        let verdicts = request_verdicts(judge, module, Question::Composite(&name), &candidates);
        for (group, verdict) in groups.into_iter().zip(verdicts) {
            match verdict {
                Verdict::Supported | Verdict::Split(_) => {
                    group.composite.nodes.iter().for_each(|node| {
                        pending.remove(node);
                    });
                    grouping.accept(group);
                }
                Verdict::Refused(refusal) => {
                    group.composite.nodes.iter().for_each(|&node| record_refusal(node, refusal.clone()));
                }
            }
        }
    }
}

/// Returns the pending ifs that are in the branch of no other pending `if`, each with the expressions in its branches
/// in topological order.
fn outermost(
    module: &Module,
    scopes: &Scopes,
    pending: &HashSet<ExprId>,
    grouping: &Grouping<'_>,
) -> BTreeMap<ExprId, Vec<ExprId>> {
    // Outermost pending `if` in whose branches each scope is. A scope is opened after its parent.
    let mut owners: IndexVec<ScopeId, Option<ExprId>> = IndexVec::with_capacity(scopes.tree.len());
    for (id, scope) in scopes.tree.iter() {
        let outer = if id == Scopes::root() { None } else { owners[scope.parent] };
        owners
            .push(outer.or(scope.opener.filter(|opener| pending.contains(opener) && grouping.graph.is_live(*opener))));
    }
    let mut contents: BTreeMap<ExprId, Vec<ExprId>> = BTreeMap::new();
    for (id, _) in module.nodes.iter() {
        let Some(scope) = scopes.scope_of[id].filter(|_| grouping.graph.is_live(id)) else { continue };
        match owners[scope] {
            Some(owner) => contents.entry(owner).or_default().push(id),
            None if pending.contains(&id) => drop(contents.entry(id).or_default()),
            None => {}
        }
    }
    contents
}

/// Returns the composite of an `if` with the given expressions in its branches.
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
    let mut inputs = Vec::new();
    let mut seen = HashSet::new();
    for &node in &nodes {
        match module.expr(node) {
            Expr::Call(call) if matches!(call.callee, Callee::Op(_)) => {
                if let Some(owner) = grouping.owner_of(node) {
                    return refuse(RefusalCode::LowerPriority, node, &format!("is already assigned to {owner}"));
                }
            }
            Expr::Tuple(_) | Expr::Project { .. } | Expr::Constant(_) | Expr::If { .. } => {}
            _ => return refuse(RefusalCode::UnsupportedOp, node, "cannot be part of a branch in a region"),
        }
        if grouping.graph.collapsed_inputs(node).is_some() {
            return refuse(RefusalCode::Overlap, node, "belongs to another match");
        }
        module.expr(node).for_each_operand(|operand| {
            if !interior.contains(&operand) && seen.insert(operand) {
                inputs.push(operand);
            }
        });
    }
    // Constants that the branches share with other expressions are embedded, too.
    let (constants, inputs): (Vec<ExprId>, Vec<ExprId>) =
        inputs.into_iter().partition(|&input| matches!(module.expr(input), Expr::Constant(_)));
    if inputs.is_empty() {
        return refuse(RefusalCode::UnsupportedOp, root, "without inputs cannot be a region");
    }
    nodes.splice(0..0, constants);
    Ok(Composite { name: name.clone(), root, nodes, inputs })
}

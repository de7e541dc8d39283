//! Claims of a backend that sees the whole module: the query [`claim::KEY`], between expressions and nodes of graphs.

use byoc_core::pass::{Body, ClaimedSet, Claims, Refusal, RefusalCode};
use byoc_ir::ir::{ExprId, Module};
use byoc_plugin_api::claim::{self, Answer, ModuleGraph, NodeSet, Reason, Request, Taken};
use byoc_plugin_api::{Codegen, Result};
use byoc_runtime::plugin::to_graph::{ConstantTable, graph_of_operators};
use serde_json::Value;
use std::collections::{HashMap, HashSet};

/// Requests the claims of a backend; `None` if the backend states none. A body that no graph represents, such as one
/// with references, is not part of the request, and its operators are not claimed.
///
/// # Errors
/// If the backend fails, or its answer is not JSON of the right form.
pub(super) fn claims(
    codegen: &dyn Codegen,
    backend: &str,
    options: &Value,
    module: &Module,
    bodies: &[Body],
) -> Result<Option<Claims>> {
    let mut constants = ConstantTable::default();
    let mut graphs: Vec<ModuleGraph> = Vec::with_capacity(bodies.len());
    let mut operators: Vec<HashMap<u32, ExprId>> = Vec::with_capacity(bodies.len());
    for body in bodies {
        let Ok((graph, nodes)) =
            graph_of_operators(module, &body.function, &body.inputs, &body.outputs, &mut constants)
        else {
            continue;
        };
        let node_of: HashMap<ExprId, u32> = nodes.iter().map(|&(node, id)| (id, node)).collect();
        let taken = body
            .taken
            .iter()
            .filter_map(|(id, owner)| Some(Taken { node: *node_of.get(id)?, backend: owner.to_string() }));
        graphs.push(ModuleGraph { graph, taken: taken.collect() });
        operators.push(nodes.into_iter().collect());
    }
    let Some(answer) = codegen.query(claim::KEY, &Request::write(&graphs, &constants.handles, options))? else {
        return Ok(None);
    };
    let Answer { regions, reasons, reason } = Answer::read(&answer)?;
    let refusals = reasons.iter().flat_map(|Reason { graph, nodes, reason }| {
        let operators = operators.get(*graph as usize);
        let ids = nodes.iter().filter_map(move |node| operators?.get(node).copied());
        ids.map(|id| (id, Refusal::new(RefusalCode::NotClaimed, reason.clone())))
    });
    let detail = if reason.is_empty() { format!("{backend} claims other operators of the model") } else { reason };
    Ok(Some(Claims {
        sets: regions.iter().map(|set| claimed_set(set, &operators)).collect(),
        refusals: refusals.collect(),
        otherwise: Some(Refusal::new(RefusalCode::NotClaimed, detail)),
    }))
}

/// Converts a set of nodes to expressions.
fn claimed_set(set: &NodeSet, operators: &[HashMap<u32, ExprId>]) -> ClaimedSet {
    let NodeSet { graph, nodes } = set;
    let Some(operators_of) = operators.get(*graph as usize) else {
        let problem = format!("expected a graph < {}, found {graph}", operators.len());
        return ClaimedSet { operators: Vec::new(), problem: Some(problem) };
    };
    let ids: Vec<ExprId> = nodes.iter().filter_map(|node| operators_of.get(node).copied()).collect();
    let mut seen = HashSet::new();
    let problem = match nodes.iter().find(|node| !operators_of.contains_key(node)) {
        Some(node) => Some(format!("expected nodes that are operators of graph {graph}, found node {node}")),
        None if nodes.is_empty() => Some("expected nodes, found none".to_owned()),
        None => nodes.iter().find(|&node| !seen.insert(node)).map(|node| format!("node {node} occurs twice")),
    };
    ClaimedSet { operators: ids, problem }
}

#[cfg(test)]
mod tests {
    use super::*;
    use byoc_ir::ir::Id;

    #[test]
    fn sets_name_operators_of_a_graph() {
        let operators = [HashMap::from([(1, ExprId::new(10)), (2, ExprId::new(20))])];
        let set = |graph: u32, nodes: &[u32]| claimed_set(&NodeSet { graph, nodes: nodes.to_vec() }, &operators);
        let valid = set(0, &[2, 1]);
        assert_eq!((valid.operators, valid.problem), (vec![ExprId::new(20), ExprId::new(10)], None));
        let problem = |graph, nodes: &[u32]| set(graph, nodes).problem.unwrap();
        assert_eq!(problem(1, &[2]), "expected a graph < 1, found 1");
        assert_eq!(problem(0, &[1, 3]), "expected nodes that are operators of graph 0, found node 3");
        assert_eq!(problem(0, &[]), "expected nodes, found none");
        assert_eq!(problem(0, &[1, 1]), "node 1 occurs twice");
    }
}

//! Backend that sees the whole module before it takes anything. Without the option `sets`, each of its operators is a
//! region, or two that are a composite; `sets=a,b;c` claims the operators with the names `a` and `b` in the model as one region, and `c` as another.

use byoc_plugin_api::claim::{self, Answer, NodeSet, Reason, Request};
use byoc_plugin_api::*;

declare_plugin!("whole_graph", env!("CARGO_PKG_VERSION"));
register!(|_context, registry| {
    registry.codegen("whole_graph", WholeGraph);
    registry.loader("whole_graph", WholeGraph);
    Ok(())
});

const OPERATORS: [&str; 5] = ["nn.relu", "add", "multiply", "sigmoid", "abs"];

struct WholeGraph;

impl Codegen for WholeGraph {
    fn describe(&self) -> Result<Description> {
        let about = "names of operators, separated by commas, and by semicolons between regions".into();
        Ok(Description {
            about: "sets of operators, chosen after a look at the whole module".into(),
            patterns: "add_relu: nn.relu(add(*, *))".into(),
            operators: OPERATORS.map(String::from).into(),
            whole_graph: true,
            options: [("sets".to_owned(), BackendOption { about, ..BackendOption::default() })].into(),
            ..Description::default()
        })
    }

    /// Judges a region. Its operators need no verdict of their own: they were claimed.
    fn judge(&self, candidate: &Candidate) -> Verdict {
        match candidate.graph.inputs.iter().find(|input| input.ty.dtype != DType::F32) {
            None => Verdict::Supported,
            Some(Input { name, ty, .. }) => {
                let found = format!("input {name}: expected float32, found {}", ty.dtype);
                Verdict::refused(RefusalCode::UnsupportedDtype, found)
            }
        }
    }

    fn compile(&self, region: &Region<'_>) -> Result<CompiledRegion> {
        Ok(CompiledRegion::new(&region.graph.symbol, "whole_graph", region.graph.to_json()))
    }

    fn query(&self, key: &str, data: &[u8]) -> Result<Option<Vec<u8>>> {
        if key != claim::KEY {
            return Ok(None);
        }
        let request = Request::read(data)?;
        let mut answer = Answer { reason: "not in the option \"sets\"".into(), ..Answer::default() };
        if let Some(sets) = request.options["backend_options"]["sets"].as_str() {
            answer.regions = sets.split(';').map(|names| named(&request, names)).collect();
            return Ok(Some(answer.to_json()));
        }
        for (graph, module_graph) in request.graphs.iter().enumerate() {
            let is_taken = |node: u32| module_graph.taken.iter().any(|taken| taken.node == node);
            let pairs = add_and_relu(&module_graph.graph);
            for (node, operator) in operators(&module_graph.graph).filter(|&(node, _)| !is_taken(node)) {
                if pairs.iter().any(|pair| pair[1] == node) {
                    continue;
                }
                let pair = pairs.iter().find(|pair| pair[0] == node && !is_taken(pair[1]));
                let (graph, nodes) = (graph as u32, pair.map_or(vec![node], |pair| pair.to_vec()));
                match OPERATORS.contains(&operator) {
                    true => answer.regions.push(NodeSet { graph, nodes }),
                    false => {
                        let reason = format!("expected one of {}, found {operator}", OPERATORS.join(", "));
                        answer.reasons.push(Reason { graph, nodes, reason });
                    }
                }
            }
        }
        Ok(Some(answer.to_json()))
    }
}

/// Returns the operator nodes of a graph.
fn operators(graph: &Graph) -> impl Iterator<Item = (u32, &str)> {
    graph.nodes.iter().enumerate().filter_map(|(index, node)| match &node.kind {
        NodeKind::Op(name) => Some((index as u32, name.as_str())),
        _ => None,
    })
}

/// Returns the additions whose only user is a `nn.relu`, each with that user.
fn add_and_relu(graph: &Graph) -> Vec<[u32; 2]> {
    let user_of = |node: u32| {
        let users =
            graph.nodes.iter().zip(0u32..).filter(|(user, _)| user.inputs.iter().any(|value| value.node == node));
        let users: Vec<(&Node, u32)> = users.collect();
        let is_output = graph.outputs.iter().any(|output| output.node == node);
        match users[..] {
            [(user, index)] if !is_output && user.op() == Some("nn.relu") => Some(index),
            _ => None,
        }
    };
    let additions = operators(graph).filter(|&(_, operator)| operator == "add");
    additions.filter_map(|(node, _)| Some([node, user_of(node)?])).collect()
}

/// Returns the set of the operators with the given names in the model.
fn named(request: &Request, names: &str) -> NodeSet {
    let is_named = |node: &Node| node.sources.iter().any(|source| names.split(',').any(|name| source.as_str() == name));
    let nodes = |graph: &Graph| -> Vec<u32> {
        operators(graph).map(|(index, _)| index).filter(|&index| is_named(graph.node(index))).collect()
    };
    let sets = request.graphs.iter().enumerate().map(|(graph, body)| (graph as u32, nodes(&body.graph)));
    let (graph, nodes) = sets.max_by_key(|(_, nodes)| nodes.len()).unwrap_or_default();
    NodeSet { graph, nodes }
}

impl Loader for WholeGraph {
    fn load(&self, region: &LoadRequest<'_>) -> Result<Box<dyn Executable>> {
        let graph = Graph::from_json(&String::from_utf8_lossy(region.blob))?;
        graph.check(region.constants.len())?;
        region.check_signature(&Signature::of(&graph))?;
        region.services.reference(&graph, region.constants)
    }
}

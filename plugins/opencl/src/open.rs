//! Regions with dimensions that are unknown until run time.
//!
//! Kernels are fast because their dimensions are compile-time constants, so such a region is compiled only when its
//! dimensions are known: [`bind`] replaces the open dimensions of the graph. Programs are cached, so each set of
//! dimensions is compiled once.

use byoc_plugin_api::{Dim, Graph, NodeKind, RefusalCode, TensorType};
use byoc_plugin_support::dims;
use byoc_plugin_support::refusal::{CompileError, refuse};
use std::collections::BTreeMap;

/// Sample value of each symbol in [`example`].
const SAMPLE_SIZE: usize = 4;

/// Values of symbols and computed dimensions, keyed by their text.
type Sizes = BTreeMap<String, usize>;

/// Tests a graph for unknown dimensions.
pub fn is_open(graph: &Graph) -> bool {
    let has_unknown_dim = |ty: &TensorType| ty.dims.iter().any(|dim| dim.known().is_none());
    let mut graphs = vec![graph];
    while let Some(graph) = graphs.pop() {
        if graph.inputs.iter().any(|input| has_unknown_dim(&input.ty)) {
            return true;
        }
        for node in &graph.nodes {
            if node.outputs.iter().any(has_unknown_dim) {
                return true;
            }
            graphs.extend(node.as_composite().map(|(_, body)| body));
        }
    }
    false
}

/// Returns the graph with all dimensions known, given the dimensions of its inputs.
///
/// # Errors
/// If the inputs contradict the graph in number, rank or size, or do not determine all dimensions.
pub fn bind(graph: &Graph, inputs: &[&[usize]]) -> Result<Graph, CompileError> {
    if graph.inputs.len() != inputs.len() {
        let detail = format!("number of inputs: expected {}, found {}", graph.inputs.len(), inputs.len());
        return refuse(RefusalCode::UnsupportedShape, detail);
    }
    let mut sizes = Sizes::new();
    for (i, (input, shape)) in graph.inputs.iter().zip(inputs).enumerate() {
        let is_match = input.ty.dims.len() == shape.len()
            && input.ty.dims.iter().zip(*shape).all(|(dim, &size)| is_size(dim, size, &mut sizes));
        if !is_match {
            let detail = format!("input {i}: expected {}, found {shape:?}", input.ty);
            return refuse(RefusalCode::UnsupportedShape, detail);
        }
    }
    close_graph(graph, &sizes, inputs)
}

/// Compares a dimension with a size, and records the derived value of the symbol. Returns false on a contradiction.
fn is_size(dim: &Dim, size: usize, sizes: &mut Sizes) -> bool {
    let text = match dim {
        Dim::Known(known_size) => return *known_size == size,
        Dim::Unknown(text) if text.is_empty() => return true,
        Dim::Unknown(text) => text.as_str(),
    };
    // `12*batch` determines `batch`.
    if let Some((symbol, solution)) = dims::solve(dim, size) {
        return solution.is_some_and(|solution| *sizes.entry(symbol.to_owned()).or_insert(solution) == solution);
    }
    *sizes.entry(text.to_owned()).or_insert(size) == size
}

/// Returns the graph with all dimensions known, for inputs with the shapes `inputs`.
fn close_graph(graph: &Graph, sizes: &Sizes, inputs: &[&[usize]]) -> Result<Graph, CompileError> {
    let mut closed_graph = graph.clone();
    for (input, shape) in closed_graph.inputs.iter_mut().zip(inputs) {
        input.ty.dims = shape.iter().map(|&size| Dim::Known(size)).collect();
    }
    for node in closed_graph.nodes.iter_mut() {
        if let NodeKind::Input(i) = node.kind
            && let (Some(ty), Some(shape)) = (node.outputs.first_mut(), inputs.get(i as usize))
        {
            ty.dims = shape.iter().map(|&size| Dim::Known(size)).collect();
        }
    }
    let mut graphs = vec![&mut closed_graph];
    while let Some(graph) = graphs.pop() {
        for input in graph.inputs.iter_mut() {
            close_type(&mut input.ty, sizes)?;
        }
        for node in graph.nodes.iter_mut() {
            for ty in node.outputs.iter_mut() {
                close_type(ty, sizes)?;
            }
            if let NodeKind::Composite(composite) = &mut node.kind {
                graphs.push(&mut composite.body);
            }
        }
    }
    Ok(closed_graph)
}

fn close_type(ty: &mut TensorType, sizes: &Sizes) -> Result<(), CompileError> {
    for dim in ty.dims.iter_mut() {
        let Dim::Unknown(text) = &*dim else { continue };
        let size = sizes.get(text.as_str()).copied().or_else(|| dims::size(dim, &mut |name| sizes.get(name).copied()));
        let Some(size) = size else {
            let detail = format!("expected a dimension that the input dimensions determine, found {text:?}");
            return refuse(RefusalCode::DynamicDim, detail);
        };
        *dim = Dim::Known(size);
    }
    Ok(())
}

/// Returns an instance of an open graph in which each symbol has the same sample value.
///
/// # Errors
/// If an input dimension has no name, or the input dimensions do not determine all dimensions.
pub fn example(graph: &Graph) -> Result<Graph, CompileError> {
    let shape = |ty: &TensorType| -> Option<Vec<usize>> {
        ty.dims.iter().map(|dim| dims::size(dim, &mut |_| Some(SAMPLE_SIZE))).collect()
    };
    let mut shapes = Vec::new();
    for (i, input) in graph.inputs.iter().enumerate() {
        let Some(shape) = shape(&input.ty) else {
            let detail = format!("input {i}: expected named dimensions, found {}", input.ty);
            return refuse(RefusalCode::DynamicDim, detail);
        };
        shapes.push(shape);
    }
    bind(graph, &shapes.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use byoc_plugin_api::{DType, ValueRef};

    fn ty(dims: &[&str]) -> TensorType {
        let dim = |text: &&str| text.parse().map_or_else(|_| Dim::Unknown((*text).into()), Dim::Known);
        TensorType { dtype: DType::F32, dims: dims.iter().map(dim).collect() }
    }

    fn graph(inputs: &[&[&str]], output: &[&str]) -> Graph {
        let mut graph = Graph::new("region");
        let inputs: Vec<u32> = inputs.iter().map(|dims| graph.push_input("x", ty(dims))).collect();
        let y = graph.push_op("op", inputs.into_iter().map(ValueRef::of), [], [ty(output)]);
        graph.outputs = [ValueRef::of(y)].into_iter().collect();
        graph
    }

    fn bind_and_infer(graph: &Graph, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        let closed_graph = bind(graph, inputs).map_err(|error| error.detail)?;
        assert!(!is_open(&closed_graph));
        Ok(closed_graph.type_of(closed_graph.outputs[0]).shape().unwrap())
    }

    #[test]
    fn dimensions_follow_from_those_of_the_inputs() {
        let graph = graph(&[&["12*n", "4"], &["n", "m"]], &["n + 1", "m", "floordiv(m, 2)", "4"]);
        assert!(is_open(&graph));
        assert_eq!(bind_and_infer(&graph, &[&[36, 4], &[3, 5]]), Ok(vec![4, 5, 2, 4]));
        assert!(bind_and_infer(&graph, &[&[36, 4], &[4, 5]]).unwrap_err().contains("input 1"));
        assert!(bind_and_infer(&graph, &[&[35, 4], &[3, 5]]).unwrap_err().contains("input 0"));
        assert!(bind_and_infer(&graph, &[&[36, 4]]).is_err());
        assert!(!is_open(&example(&graph).unwrap()));
    }

    #[test]
    fn dimensions_that_depend_on_data_are_refused() {
        let graph = graph(&[&["n"]], &["k"]);
        assert!(bind_and_infer(&graph, &[&[3]]).unwrap_err().contains("\"k\""));
        assert_eq!(example(&graph).unwrap_err().code, RefusalCode::DynamicDim);
        assert!(example(&self::graph(&[&["?"]], &["4"])).is_err());
    }
}

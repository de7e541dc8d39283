//! Model that a region becomes for the library, its comparison with the region, and the parser's errors about it.

use crate::library::{Network, ParserError};
use byoc_plugin_api::{Constant, Graph, OnnxModel, OnnxOptions, RefusalCode, Services, TensorType};
use byoc_plugin_support::refusal::{CompileError, refuse};

/// Writes a graph as ONNX, in a form that the parser reads.
///
/// # Errors
/// If it has no form in ONNX.
pub fn write(services: &Services, graph: &Graph, constants: &[Constant]) -> Result<OnnxModel, CompileError> {
    // The parser dequantizes bytes alone.
    let options = OnnxOptions { float_bias: true, ..OnnxOptions::default() };
    services.onnx(graph, constants, &options).map_err(|error| CompileError {
        code: RefusalCode::UnsupportedOp,
        detail: error.message.to_string(),
        hint: error.hint.to_string(),
    })
}

/// Compares the inputs and outputs of a network with those of the graph: the library computes some types in others.
///
/// # Errors
/// If one differs.
pub fn check_ports(network: &Network, graph: &Graph, model: &OnnxModel) -> Result<(), CompileError> {
    let [inputs, outputs] = network.ports();
    let input_types: Vec<&TensorType> = graph.inputs.iter().map(|input| &input.ty).collect();
    let output_types: Vec<&TensorType> = graph.output_types().collect();
    let sides =
        [("input", &inputs, &model.info.inputs, input_types), ("output", &outputs, &model.info.outputs, output_types)];
    for (role, ports, names, types) in sides {
        for (name, ty) in names.iter().zip(types) {
            let found = ports.iter().find(|port| port.name == *name).map(|port| port.dtype);
            match found {
                Some(Some(dtype)) if dtype == ty.dtype => {}
                Some(Some(dtype)) => {
                    let detail = format!("{role} {name}: expected {}, found {dtype} in the network", ty.dtype);
                    return refuse(RefusalCode::UnsupportedDtype, detail);
                }
                Some(None) | None => {
                    let detail = format!("{role} {name}: expected {}, found none in the network", ty.dtype);
                    return refuse(RefusalCode::UnsupportedDtype, detail);
                }
            }
        }
    }
    Ok(())
}

/// Returns the parser's first error as a refusal, with the operator of the graph in place of the node's.
pub fn refusal_of(errors: &[ParserError], graph: &Graph, model: &OnnxModel) -> CompileError {
    let Some(error) = errors.first() else {
        return CompileError::new(RefusalCode::UnsupportedOp, "the parser refuses the model without a reason");
    };
    let node = usize::try_from(error.node).ok().and_then(|index| model.info.nodes.get(index));
    let path = node.and_then(|node| node.operators.first());
    let operator = path.and_then(|path| operator_at(graph, path));
    let detail = match operator {
        Some(operator) => format!("{operator}: TensorRT's parser: {}", error.line()),
        None => format!("TensorRT's parser: {}", error.line()),
    };
    let code = match error.description.to_ascii_lowercase() {
        text if text.contains("zero point") => RefusalCode::QuantScheme,
        text if text.contains("type") => RefusalCode::UnsupportedDtype,
        text if text.contains("shape") || text.contains("dim") => RefusalCode::UnsupportedShape,
        text if text.contains("constant") || text.contains("initializer") => RefusalCode::NotConstant,
        text if text.contains("attr") => RefusalCode::UnsupportedAttr,
        _ => RefusalCode::UnsupportedOp,
    };
    match code {
        RefusalCode::QuantScheme => {
            let hint = "quantize the model for this backend, with zero points of 0: byoc quantize --backend tensorrt";
            CompileError { hint: hint.into(), ..CompileError::new(code, detail) }
        }
        _ => CompileError::new(code, detail),
    }
}

/// Returns the name of the operator at a position of a graph.
fn operator_at<'g>(graph: &'g Graph, path: &[u32]) -> Option<&'g str> {
    let mut graph = graph;
    let (last, outer) = path.split_last()?;
    for &index in outer {
        graph = graph.nodes.get(index as usize)?.as_composite()?.1;
    }
    graph.nodes.get(*last as usize)?.op()
}

//! Region blob: the graph in the boundary's JSON format, with this backend's format version and a digest of the JSON
//! text as graph attributes. Constants are stored in the artifact; the blob refers to them by index and type.

use byoc_plugin_api::{Attr, Constant, Error, Graph, NodeKind, Result};

/// Version of the blob format.
const FORMAT: i64 = 1;
const FORMAT_KEY: &str = "dnnl_json";
const DIGEST_KEY: &str = "digest";

/// Serializes a region's graph.
pub fn write(graph: &Graph) -> String {
    let mut graph = graph.clone();
    graph.attrs.retain(|attr| attr.key != FORMAT_KEY && attr.key != DIGEST_KEY);
    graph.attrs.push(Attr::new(FORMAT_KEY, FORMAT));
    let digest = blake3::hash(graph.to_json().as_bytes()).to_hex().to_string();
    graph.attrs.push(Attr::new(DIGEST_KEY, digest));
    graph.to_json()
}

/// Reads a blob and checks the types of its constants against `constants`.
///
/// # Errors
/// If the blob is invalid or modified, has a different format version, or was built for different constants.
pub fn read(bytes: &[u8], constants: &[Constant]) -> Result<Graph> {
    let invalid = |problem: String| Error::new(format!("invalid dnnl graph: {problem}"));
    let text = std::str::from_utf8(bytes).map_err(|error| invalid(error.to_string()))?;
    let mut graph = Graph::from_json(text).map_err(|error| invalid(error.message.to_string()))?;
    match graph.attr(FORMAT_KEY).and_then(|value| value.as_int()) {
        Some(FORMAT) => {}
        Some(other) => return Err(invalid(format!("expected format {FORMAT}, found {other}"))),
        None => return Err(invalid(format!("missing attribute \"{FORMAT_KEY}\""))),
    }
    let digest = graph.attr(DIGEST_KEY).and_then(|value| value.as_str()).unwrap_or_default().to_owned();
    graph.attrs.retain(|attr| attr.key != DIGEST_KEY);
    if blake3::hash(graph.to_json().as_bytes()).to_hex().as_str() != digest {
        return Err(invalid("digest mismatch: the graph was modified".into()));
    }
    graph
        .check(constants.len())
        .map_err(|problem| invalid(format!("{problem} (constants supplied: {})", constants.len())))?;
    let mut worklist = vec![&graph];
    while let Some(subgraph) = worklist.pop() {
        for node in &subgraph.nodes {
            match &node.kind {
                NodeKind::Constant(index) => {
                    let constant = &constants[*index as usize];
                    if constant.ty() != node.outputs[0] {
                        let (found, expected) = (constant.ty(), &node.outputs[0]);
                        return Err(invalid(format!("constant {index}: expected {expected}, found {found}")));
                    }
                }
                NodeKind::Composite(composite) => worklist.push(&composite.body),
                NodeKind::Input(_) | NodeKind::Op(_) => {}
            }
        }
    }
    Ok(graph)
}

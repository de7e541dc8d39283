//! What is shipped for a region: its graph in the boundary's JSON form, with this backend's version and a digest of the text in
//! the function's attributes. The constants are the artifact's; here they are numbers with a type.

use byoc_plugin_api::{Attr, Constant, Error, Graph, NodeKind, Result};

/// The form of the blob.
const FORMAT: i64 = 1;
const FORMAT_KEY: &str = "dnnl_json";
const DIGEST_KEY: &str = "digest";

/// Writes a blob.
pub fn write(graph: &Graph) -> String {
    let mut graph = graph.clone();
    graph.attrs.retain(|attr| attr.key != FORMAT_KEY && attr.key != DIGEST_KEY);
    graph.attrs.push(Attr::new(FORMAT_KEY, FORMAT));
    let digest = blake3::hash(graph.to_json().as_bytes()).to_hex().to_string();
    graph.attrs.push(Attr::new(DIGEST_KEY, digest));
    graph.to_json()
}

/// Reads a blob, and compares what it says of its constants with those that are at hand.
///
/// # Errors
/// Where it is none, of another form, edited, or made for other constants.
pub fn read(bytes: &[u8], constants: &[Constant]) -> Result<Graph> {
    let damaged = |what: String| Error::new(format!("the region is no graph of dnnl: {what}"));
    let text = std::str::from_utf8(bytes).map_err(|error| damaged(error.to_string()))?;
    let mut graph = Graph::from_json(text).map_err(|error| damaged(error.message.to_string()))?;
    match graph.attr(FORMAT_KEY).and_then(|value| value.as_int()) {
        Some(FORMAT) => {}
        Some(other) => return Err(damaged(format!("it is of form {other}; {FORMAT} is known here"))),
        None => return Err(damaged(format!("it has no attribute \"{FORMAT_KEY}\""))),
    }
    let said = graph.attr(DIGEST_KEY).and_then(|value| value.as_str()).unwrap_or_default().to_owned();
    graph.attrs.retain(|attr| attr.key != DIGEST_KEY);
    if blake3::hash(graph.to_json().as_bytes()).to_hex().as_str() != said {
        return Err(damaged("it was edited: its digest is another one".into()));
    }
    graph
        .check(constants.len())
        .map_err(|what| damaged(format!("{what} ({} constants are given)", constants.len())))?;
    let mut open = vec![&graph];
    while let Some(part) = open.pop() {
        for node in &part.nodes {
            match &node.kind {
                NodeKind::Constant(number) => {
                    let constant = &constants[*number as usize];
                    if constant.ty() != node.outputs[0] {
                        let (is, wanted) = (constant.ty(), &node.outputs[0]);
                        return Err(damaged(format!("constant {number} is {is}, the graph wants {wanted}")));
                    }
                }
                NodeKind::Composite(composite) => open.push(&composite.body),
                NodeKind::Input(_) | NodeKind::Op(_) => {}
            }
        }
    }
    Ok(graph)
}

//! Doc strings of written nodes that combine several operators of the model: "from conv1 (Conv), bn1 (BatchNormalization)".

use byoc_ir::diag::MAX_REPORTED;
use byoc_ir::ir::{Module, OriginId, Source};

const PREFIX: &str = "from ";
const SEPARATOR: &str = "), ";

/// Returns the doc string for an origin; empty for a single operator, which the name of the node tells.
pub fn print(module: &Module, origin: OriginId) -> String {
    let sources = module.origins.get(origin);
    if sources.len() < 2 {
        return String::new();
    }
    let all = module.origins.sources();
    let text = |source: &Source| format!("{} ({}", source.name, source.op);
    let list: Vec<String> = sources.iter().take(MAX_REPORTED).map(|&source| text(&all[source])).collect();
    format!("{PREFIX}{})", list.join(SEPARATOR))
}

/// Returns the operators that a doc string lists; empty if it is none of this form.
pub fn parse(doc_string: &str) -> Vec<Source> {
    let list = doc_string.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(')'));
    let source = |text: &str| {
        let (name, op) = text.rsplit_once(" (")?;
        Some(Source { name: name.into(), op: op.into() })
    };
    list.and_then(|list| list.split(SEPARATOR).map(source).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use byoc_ir::ir::Module;

    #[test]
    fn sources_survive() {
        let mut module = Module::new();
        let source = |name: &str, op: &str| Source { name: name.into(), op: op.into() };
        let expected = [source("/conv (1)/Conv", "Conv"), source("bn, 2", "BatchNormalization")];
        let ids: Vec<OriginId> = expected.iter().map(|source| module.origins.add_source(source.clone())).collect();
        let union = module.origins.union_all(ids.clone());
        assert_eq!(parse(&print(&module, union)), expected);
        assert_eq!(print(&module, ids[0]), "");
        assert!(parse("from the paper").is_empty() && parse("").is_empty());
    }
}

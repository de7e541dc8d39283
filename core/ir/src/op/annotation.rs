//! Annotations: identities that mark where a region for a backend begins and ends, or where fusion stops.

use super::elementwise::no_flops;
use super::{Arity, AttrDef, AttrKind, Default, OpDef, OpPattern};
use crate::op::facts::Properties;

const COMPILER: &[AttrDef] = &[AttrDef::new("compiler", AttrKind::Str, Default::Str(""), "the backend's name")];

macro_rules! annotations {
    ($($name:literal, $attrs:expr, $doc:literal;)*) => {$(
        inventory::submit! {
            OpDef {
                name: $name,
                doc: $doc,
                arity: Arity::exactly(1),
                inputs: &["data"],
                attrs: $attrs,
                pattern: OpPattern::Opaque,
                relation: |relation| Ok(relation.args[0].clone()),
                reference: Some(|_, inputs, outputs| {
                    for (input, output) in inputs.iter().zip(outputs) {
                        output.data.copy_from_slice(input.data);
                    }
                    Ok(())
                }),
                flops: no_flops,
                properties: Properties::ANNOTATION,
            }
        }
    )*};
}

annotations! {
    "annotation.compiler_begin", COMPILER, "Identity; data enters a region of the named backend here.";
    "annotation.compiler_end", COMPILER, "Identity; data leaves a region of the named backend here.";
    "annotation.stop_fusion", &[], "Identity; the producer and the consumers of data are not fused.";
}

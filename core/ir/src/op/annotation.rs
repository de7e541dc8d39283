//! Annotations: identities that mark where a region for a backend begins and ends, where fusion stops, or on which device
//! a value is.

use super::{AttrDef, AttrKind, Default};
use crate::op::facts::Properties;

const COMPILER: &[AttrDef] = &[AttrDef::new("compiler", AttrKind::Str, Default::Str(""), "the backend's name")];

const CAST_HINT: &[AttrDef] = &[AttrDef::new("dtype", AttrKind::DType, Default::Required, "the other element type")];
const ON_DEVICE: &[AttrDef] = &[
    AttrDef::new("constrain_result", AttrKind::Bool, Default::Bool(false), "true if the result is on the device too"),
    AttrDef::new("constrain_body", AttrKind::Bool, Default::Bool(true), "true if body is on the device"),
];

macro_rules! annotations {
    ($($name:literal, $attrs:expr, $doc:literal;)*) => {$(
        operator! {
            name: $name,
            doc: $doc,
            inputs: &["data"],
            attrs: $attrs,
            relation: |relation| Ok(relation.args[0].clone()),
            reference: Some(|_, inputs, outputs| {
                for (input, output) in inputs.iter().zip(outputs) {
                    output.data.copy_from_slice(input.data);
                }
                Ok(())
            }),
            properties: Properties::ANNOTATION,
        }
    )*};
}

annotations! {
    "annotation.compiler_begin", COMPILER, "Identity; data enters a region of the named backend here.";
    "annotation.compiler_end", COMPILER, "Identity; data leaves a region of the named backend here.";
    "annotation.stop_fusion", &[], "Identity; the producer and the consumers of data are not fused.";
    "annotation.bitpack_start", &[], "Identity; packing of bits starts here.";
    "annotation.bitpack_end", &[], "Identity; packing of bits ends here.";
    "annotation.cast_hint", CAST_HINT, "Identity; data may be computed in another element type.";
    "annotation.checkpoint", &[], "Identity; a gradient recomputes what is before the next checkpoint.";
    "on_device", ON_DEVICE, "Identity; body is computed on a device. The devices of Relay are not read: a backend has its own.";
    "device_copy", &[], "Identity; data is copied from one device to another. The devices of Relay are not read.";
    "debug", &[], "Identity; Relay calls a function for debugging here, which is not read.";
}

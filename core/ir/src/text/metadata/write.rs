//! Writer of the metadata section.

use super::{HEADER, base64, ndarray};
use crate::tensor::Tensor;
use std::fmt::Write;
use std::sync::Arc;

/// Appends a metadata section with `constants` as the values of `meta[relay.Constant][i]`, unless there are none.
pub(crate) fn write(out: &mut String, constants: &[Arc<Tensor>]) {
    if constants.is_empty() {
        return;
    }
    // The null object comes first, followed by the root, its only array, and the constants.
    const FIRST: usize = 3;
    let list: Vec<String> = (FIRST..FIRST + constants.len()).map(|index| index.to_string()).collect();
    let _ = write!(
        out,
        "\n{HEADER}\n{{\n  \"root\": 1,\n  \"nodes\": [\n    {{\"type_key\": \"\"}},\n    \
         {{\"type_key\": \"Map\", \"keys\": [\"relay.Constant\"], \"data\": [2]}},\n    \
         {{\"type_key\": \"Array\", \"data\": [{}]}}",
        list.join(", ")
    );
    for index in 0..constants.len() {
        let _ = write!(
            out,
            ",\n    {{\"type_key\": \"relay.Constant\", \"attrs\": {{\"_checked_type_\": \"0\", \"data\": \"{index}\", \
             \"span\": \"0\", \"virtual_device_\": \"0\"}}}}"
        );
    }
    out.push_str("\n  ],\n  \"b64ndarrays\": [");
    for (index, constant) in constants.iter().enumerate() {
        out.push_str(if index == 0 { "\n    \"" } else { ",\n    \"" });
        out.push_str(&base64::encode(&ndarray::write(constant)));
        out.push('"');
    }
    out.push_str("\n  ],\n  \"attrs\": {\"tvm_version\": \"0.14.0\"}\n}\n");
}

//! JSON inside of an artifact, whose memory is counted before it is decoded: a list of two bytes becomes a hundred.

use super::malformed;
use byoc_files::footprint::JsonCosts;
use byoc_ir::diag::Diagnostic;
use byoc_ir::tensor::memory::Charge;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Costs of a [`Value`].
pub const TREE: JsonCosts = JsonCosts::tree(size_of::<Value>());

/// Costs of a [`Program`](crate::exec::Program), whose largest parts are instructions and registers.
pub const PROGRAM: JsonCosts = JsonCosts { object: 256, member: 8, list: 64, element: 96 };

/// Decodes an entry; `copies` is the number of times that it will be in memory. The charge is that of the memory.
///
/// # Errors
/// If the memory limit of the process would be exceeded, or the text is invalid.
pub fn decode<T: DeserializeOwned>(
    name: &str,
    text: &[u8],
    costs: &JsonCosts,
    copies: usize,
) -> Result<(T, Charge), Diagnostic> {
    let charge = Charge::new(costs.of(text).saturating_mul(copies));
    let charge = charge.map_err(|error| {
        Diagnostic::from(error).note(format!("required by entry {name} of {} bytes once it is decoded", text.len()))
    })?;
    let value = serde_json::from_slice(text).map_err(|e| malformed(format!("{name}: {e}")))?;
    Ok((value, charge))
}

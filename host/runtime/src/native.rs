//! Policy on native code in artifacts: machine code, or source that a loader compiles, runs with the privileges of the
//! process.

use crate::compiled::{Compiled, CompiledRegion};
use crate::session::Session;
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::tensor::Tensor;
use byoc_plugin_api::Loader;

/// `query` key by which the host asks whether a loader's blobs hold native code. The response is a JSON boolean.
const QUERY: &str = "blob.native";

/// Rejects a model read from a file if any of its regions may hold native code. The check runs before any region is
/// loaded.
///
/// # Errors
/// E0707 if a region may hold native code; the message names the first such region and the evidence.
pub fn reject_native_code(session: &Session, compiled: &Compiled) -> Result<(), Diagnostic> {
    for region in compiled.regions.iter().flatten() {
        let shared_data = compiled.linked.get(&region.backend).and_then(Option::as_ref);
        let Some(reason) = native_evidence(session, region, shared_data) else { continue };
        let message = format!("region {} of {}: {reason}", region.symbol, region.backend);
        return Err(Diagnostic::error(codes::artifacts::NATIVE_CODE, message)
            .note("native code in artifacts is rejected by --allow-native no")
            .help("run the model with --backend none, or compile the model again on this machine"));
    }
    Ok(())
}

/// Returns the evidence that a region may hold native code: required CPU features, an ELF object in the blob or in the
/// data that linked regions share, or a loader that does not deny native code in response to [`QUERY`]. `None` if there
/// is no evidence, or the loader is not available.
fn native_evidence(session: &Session, region: &CompiledRegion, shared_data: Option<&Tensor>) -> Option<String> {
    let loader = session.registry.loader(&region.loader, &region.plugin.name)?;
    if !region.cpu_features.is_empty() {
        return Some(format!("compiled for a CPU with {}", region.cpu_features.join(", ")));
    }
    let is_elf = |bytes: &[u8]| bytes.windows(4).any(|bytes| bytes == b"\x7fELF");
    if is_elf(&region.blob) || shared_data.is_some_and(|shared_data| is_elf(shared_data.bytes())) {
        return Some("contains an ELF object".to_owned());
    }
    if is_data(loader.as_ref()) {
        return None;
    }
    match loader.query(QUERY, &[]) {
        Ok(Some(_)) => Some(format!("loadbinary_{} loads native code", region.loader)),
        Ok(None) | Err(_) => {
            Some(format!("loadbinary_{} does not declare whether its blobs contain native code", region.loader))
        }
    }
}

/// Returns true if a loader declares that its blobs are data, not native code.
pub fn is_data(loader: &dyn Loader) -> bool {
    matches!(loader.query(QUERY, &[]), Ok(Some(response)) if response == b"false")
}

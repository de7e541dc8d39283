//! Link step: one request to a code generator, with all regions of a model that requested linking. The response
//! contains new blobs, and data that the regions share.

use crate::error::fault;
use byoc_ir::diag::Diagnostic;
use byoc_ir::tensor::{DType, Tensor};
use byoc_plugin_api::link::{LINK_KEY, LinkRegion, LinkRequest, Linked};
use byoc_plugin_api::{Codegen, Error};
use serde_json::Value;
use std::collections::BTreeMap;

/// Metadata key whose value `true` requests the link step for a region.
pub const LINK: &str = "link";

/// Regions after the link step.
#[derive(Debug)]
pub struct LinkedRegions {
    /// Data that the regions share.
    pub shared: Option<Tensor>,
    /// New blobs, by region symbol.
    pub blobs: BTreeMap<String, Vec<u8>>,
    /// Notes of the backend, one line each.
    pub notes: Vec<String>,
}

/// Links regions of a backend.
///
/// # Errors
/// If the backend fails, or its response is invalid; in that case, no region of the backend can be loaded.
pub fn link(
    codegen: &dyn Codegen,
    options: &Value,
    regions: Vec<LinkRegion<'_>>,
) -> Result<LinkedRegions, Box<Diagnostic>> {
    let boxed_fault = |error: Error| Box::new(fault(&error));
    let symbols: Vec<String> = regions.iter().map(|region| region.symbol.clone()).collect();
    let request = LinkRequest { options: options.clone(), regions }.to_bytes();
    let response = codegen.query(LINK_KEY, &request).map_err(boxed_fault)?;
    drop(request);
    let response = response.ok_or_else(|| {
        boxed_fault(Error::new(format!(
            "{LINK_KEY}: expected a response for regions with the metadata {LINK}, found none"
        )))
    })?;
    let Linked { shared, blobs, notes } = Linked::parse(&response).map_err(boxed_fault)?;
    drop(response);
    if let Some(symbol) = blobs.keys().find(|symbol| !symbols.contains(symbol)) {
        let symbol_list = symbols.join(", ");
        return Err(boxed_fault(Error::new(format!(
            "{LINK_KEY}: expected blobs for {symbol_list}, found a blob for {symbol}"
        ))));
    }
    let shared = shared.map(|bytes| Tensor::build(DType::U8, &[bytes.len()], |data| data.copy_from_slice(&bytes)));
    let shared = shared.transpose().map_err(|error| Box::new(Diagnostic::from(error)))?;
    Ok(LinkedRegions { shared, blobs, notes })
}

//! Compiled region of a case, linked as the only region of a model.

use byoc::runtime::compiled::{HOST_FALLBACK, PACKED_CONSTANTS};
use byoc::runtime::linking::{self, LINK};
use byoc::runtime::plugin::to_graph::{self, constant_handle};
use byoc_ir::tensor::Tensor;
use byoc_plugin_api::link::LinkRegion;
use byoc_plugin_api::{self as api, Codegen, Constant};
use serde_json::{Map, Value, json};
use std::ops::Deref;
use std::sync::Arc;

/// Compiled region after the link step, with the shared data of that step.
#[derive(Debug)]
pub struct LinkedRegion {
    region: api::CompiledRegion,
    shared: Option<Arc<Tensor>>,
}

/// Returns true if the metadata of a region requests the link step.
pub fn takes_part(region: &api::CompiledRegion) -> bool {
    to_graph::metadata(region).iter().any(|(key, value)| key == LINK && *value == json!(true))
}

impl Deref for LinkedRegion {
    type Target = api::CompiledRegion;

    fn deref(&self) -> &api::CompiledRegion {
        &self.region
    }
}

impl LinkedRegion {
    /// Links a region if its metadata requests the link step.
    ///
    /// # Errors
    /// If the backend fails to link the region, or returns an invalid link result.
    pub fn link(
        mut region: api::CompiledRegion,
        symbol: &str,
        codegen: &dyn Codegen,
        options: &Value,
    ) -> Result<LinkedRegion, String> {
        if !takes_part(&region) {
            return Ok(LinkedRegion { region, shared: None });
        }
        let metadata: Map<String, Value> = to_graph::metadata(&region).into_iter().collect();
        let loader = region.loader.to_string();
        let part = LinkRegion { symbol: symbol.to_owned(), loader, metadata, blob: &region.blob };
        let mut linked_regions =
            linking::link(codegen, options, vec![part]).map_err(|diagnostic| diagnostic.message)?;
        if let Some(blob) = linked_regions.blobs.remove(symbol) {
            region.blob = blob.into();
        }
        Ok(LinkedRegion { region, shared: linked_regions.shared.map(Arc::new) })
    }

    /// Returns the constants for the loader, based on the constants for `compile`: without packed elements, and with
    /// the shared data appended. Adds the metadata and the index of the shared data to `region_options`, the object
    /// `region` of the loader's options.
    pub fn constants(&self, compiled_with: &[Constant], region_options: &mut Value) -> Vec<Constant> {
        let metadata: Map<String, Value> = to_graph::metadata(&self.region).into_iter().collect();
        let mut constants = compiled_with.to_vec();
        if metadata.get(HOST_FALLBACK) == Some(&json!(false)) {
            for index in metadata.get(PACKED_CONSTANTS).and_then(Value::as_array).into_iter().flatten() {
                let index = index.as_u64().and_then(|index| usize::try_from(index).ok());
                if let Some(constant) = index.and_then(|index| constants.get_mut(index)) {
                    *constant = to_graph::without_elements(constant.dtype());
                }
            }
        }
        region_options["metadata"] = Value::Object(metadata);
        if let Some(shared_data) = &self.shared {
            region_options["shared"] = constants.len().into();
            constants.push(constant_handle("", shared_data));
        }
        constants
    }
}

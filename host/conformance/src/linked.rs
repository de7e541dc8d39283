//! Compiled region of a case, after the link step of a model that has no other region.

use byoc::runtime::compiled::{HOST_FALLBACK, PACKED_CONSTANTS};
use byoc::runtime::linking::{self, LINK};
use byoc::runtime::plugin::bridge::{self, constant_handle};
use byoc_ir::tensor::Tensor;
use byoc_plugin_api::link::LinkRegion;
use byoc_plugin_api::{self as api, Codegen, Constant};
use serde_json::{Map, Value, json};
use std::ops::Deref;
use std::sync::Arc;

/// Compiled region, with the data that it would share with others.
#[derive(Debug)]
pub struct CompiledRegion {
    region: api::CompiledRegion,
    shared: Option<Arc<Tensor>>,
}

/// Returns true if the metadata of a region asks for the link step.
pub fn takes_part(region: &api::CompiledRegion) -> bool {
    bridge::metadata(region).iter().any(|(key, value)| key == LINK && *value == json!(true))
}

impl Deref for CompiledRegion {
    type Target = api::CompiledRegion;

    fn deref(&self) -> &api::CompiledRegion {
        &self.region
    }
}

impl CompiledRegion {
    /// Links a region if its metadata asks for it.
    ///
    /// # Errors
    /// The message of the backend, or what is wrong with its answer.
    pub fn link(
        mut region: api::CompiledRegion,
        symbol: &str,
        codegen: &dyn Codegen,
        options: &Value,
    ) -> Result<CompiledRegion, String> {
        if !takes_part(&region) {
            return Ok(CompiledRegion { region, shared: None });
        }
        let metadata: Map<String, Value> = bridge::metadata(&region).into_iter().collect();
        let loader = region.loader.to_string();
        let part = LinkRegion { symbol: symbol.to_owned(), loader, metadata, blob: &region.blob };
        let mut linked = linking::link(codegen, options, vec![part]).map_err(|diagnostic| diagnostic.message)?;
        if let Some(blob) = linked.blobs.remove(symbol) {
            region.blob = blob.into();
        }
        Ok(CompiledRegion { region, shared: linked.shared.map(Arc::new) })
    }

    /// Returns the constants that the loader gets, given those of `compile`, and adds what it has to know of them to
    /// the object `region` of its options.
    pub fn constants(&self, compiled_with: &[Constant], about: &mut Value) -> Vec<Constant> {
        let metadata: Map<String, Value> = bridge::metadata(&self.region).into_iter().collect();
        let mut constants = compiled_with.to_vec();
        if metadata.get(HOST_FALLBACK) == Some(&json!(false)) {
            for index in metadata.get(PACKED_CONSTANTS).and_then(Value::as_array).into_iter().flatten() {
                let index = index.as_u64().and_then(|index| usize::try_from(index).ok());
                if let Some(constant) = index.and_then(|index| constants.get_mut(index)) {
                    *constant = bridge::without_elements(constant.dtype());
                }
            }
        }
        about["metadata"] = Value::Object(metadata);
        if let Some(shared) = &self.shared {
            about["shared"] = constants.len().into();
            constants.push(constant_handle("", shared));
        }
        constants
    }
}

//! A plugin's objects as the plain traits that the host works with. An error says which plugin and entry it came from.

use crate::RefusalCode;
use crate::adapt::{ImportedExecutable, answered};
use crate::backend::{Candidate, Codegen, CompiledRegion, Executable, LoadRequest, Loader, Region, Verdict};
use crate::describe::Description;
use crate::error::{Error, Result};
use crate::wire::{CodegenObject, LoaderObject};
use abi_stable::std_types::{RSlice, RString};
use std::sync::Arc;

/// A code generator of a plugin, as the host sees it.
pub(crate) struct ImportedCodegen {
    plugin: Arc<str>,
    object: CodegenObject,
}

impl ImportedCodegen {
    pub(crate) fn new(plugin: Arc<str>, object: CodegenObject) -> ImportedCodegen {
        ImportedCodegen { plugin, object }
    }

    fn named<T>(&self, entry: &str, result: Result<T>) -> Result<T> {
        result.map_err(|error| error.within(&self.plugin, entry))
    }
}

impl Codegen for ImportedCodegen {
    fn describe(&self) -> Result<Description> {
        let text: RString = self.named("describe", self.object.describe().into_result())?;
        Ok(Description::from_json_lossy(&text))
    }

    fn judge(&self, candidate: &Candidate) -> Verdict {
        match self.judge_batch(std::slice::from_ref(candidate)) {
            Ok(verdicts) => verdicts.into_iter().next().expect("as many verdicts as candidates"),
            Err(error) => Verdict::refused(RefusalCode::Unavailable, error.to_string()),
        }
    }

    fn judge_batch(&self, candidates: &[Candidate]) -> Result<Vec<Verdict>> {
        let verdicts = self.named("judge", self.object.judge(RSlice::from_slice(candidates)).into_result())?;
        if verdicts.len() != candidates.len() {
            let message = format!("{} verdicts on {} candidates", verdicts.len(), candidates.len());
            return self.named("judge", Err(Error::new(message)));
        }
        Ok(verdicts.into_vec())
    }

    fn compile(&self, region: &Region<'_>) -> Result<CompiledRegion> {
        let options = region.options.to_string();
        let constants = RSlice::from_slice(region.constants);
        self.named("compile", self.object.compile(region.graph, constants, options.as_str().into()).into_result())
    }

    fn query(&self, key: &str, data: &[u8]) -> Result<Option<Vec<u8>>> {
        self.named("query", answered(self.object.query(key.into(), data.into())))
    }
}

/// A loader of a plugin, as the host sees it.
pub(crate) struct ImportedLoader {
    plugin: Arc<str>,
    object: LoaderObject,
}

impl ImportedLoader {
    pub(crate) fn new(plugin: Arc<str>, object: LoaderObject) -> ImportedLoader {
        ImportedLoader { plugin, object }
    }
}

impl Loader for ImportedLoader {
    fn load(&self, region: &LoadRequest<'_>) -> Result<Box<dyn Executable>> {
        let constants = RSlice::from_slice(region.constants);
        let options = region.options.to_string();
        let (symbol, blob) = (region.symbol.into(), region.blob.into());
        let loaded = self.object.load(symbol, blob, constants, options.as_str().into(), region.services);
        let object = loaded.into_result().map_err(|error| error.within(&self.plugin, "load"))?;
        Ok(Box::new(ImportedExecutable::new(self.plugin.clone(), object)))
    }

    fn query(&self, key: &str, data: &[u8]) -> Result<Option<Vec<u8>>> {
        answered(self.object.query(key.into(), data.into())).map_err(|error| error.within(&self.plugin, "query"))
    }
}

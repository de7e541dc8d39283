//! Adapters from a plugin's objects to the plain traits that the host uses. The adapters add the plugin and the entry
//! to errors.

use crate::RefusalCode;
use crate::abi::objects::{CodegenObject, LoaderObject};
use crate::backend::{Candidate, Codegen, CompiledRegion, LoadRequest, Loader, Region, Verdict};
use crate::describe::Description;
use crate::entries::{self, CallSites, Entry, enter};
use crate::error::{Error, Result};
use crate::executable::{Call, Executable, Prepared};
use crate::executable_object::{ImportedExecutable, import_query_result};
use abi_stable::std_types::{RSlice, RString};
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// Plugin object whose entries and destructor are recorded as call sites.
struct PluginObject<T> {
    object: ManuallyDrop<T>,
    sites: &'static CallSites,
}

impl<T> PluginObject<T> {
    fn new(object: T, sites: &'static CallSites) -> PluginObject<T> {
        PluginObject { object: ManuallyDrop::new(object), sites }
    }

    /// Calls an entry of the object.
    #[inline]
    fn call<R>(&self, entry: Entry, call: impl FnOnce(&T) -> Result<R>) -> Result<R> {
        let _guard = enter(self.sites.at(entry))?;
        call(&self.object)
    }
}

impl<T> Drop for PluginObject<T> {
    fn drop(&mut self) {
        let Ok(_guard) = enter(self.sites.at(Entry::Release)) else { return };
        // SAFETY: a destructor runs at most once, and the object is not used after this call.
        unsafe { ManuallyDrop::drop(&mut self.object) };
    }
}

/// Host-side adapter of a plugin's code generator.
pub(crate) struct ImportedCodegen {
    plugin: Arc<str>,
    object: PluginObject<CodegenObject>,
}

impl ImportedCodegen {
    pub(crate) fn new(plugin: Arc<str>, object: CodegenObject) -> ImportedCodegen {
        let sites = CallSites::of(&plugin, "");
        ImportedCodegen { plugin, object: PluginObject::new(object, sites) }
    }

    fn with_context<T>(&self, entry: &str, result: Result<T>) -> Result<T> {
        result.map_err(|error| error.with_entry(&self.plugin, entry))
    }
}

impl Codegen for ImportedCodegen {
    fn describe(&self) -> Result<Description> {
        let text: RString =
            self.with_context("describe", self.object.call(Entry::Describe, |o| o.describe().into_result()))?;
        Ok(Description::from_json_lossy(&text))
    }

    fn judge(&self, candidate: &Candidate) -> Verdict {
        match self.judge_batch(std::slice::from_ref(candidate)) {
            Ok(verdicts) => verdicts.into_iter().next().expect("one verdict per candidate"),
            Err(error) => Verdict::refused(RefusalCode::Unavailable, error.to_string()),
        }
    }

    fn judge_batch(&self, candidates: &[Candidate]) -> Result<Vec<Verdict>> {
        let result = self.object.call(Entry::Judge, |o| o.judge(RSlice::from_slice(candidates)).into_result());
        let verdicts = self.with_context("judge", result)?;
        if verdicts.len() != candidates.len() {
            let message = format!("number of verdicts: expected {}, found {}", candidates.len(), verdicts.len());
            return self.with_context("judge", Err(Error::new(message)));
        }
        Ok(verdicts.into_vec())
    }

    fn compile(&self, region: &Region<'_>) -> Result<CompiledRegion> {
        let options = region.options.to_string();
        let constants = RSlice::from_slice(region.constants);
        let compiled_region = {
            let _guard = enter(CallSites::of(&self.plugin, &region.graph.symbol).at(Entry::Compile))?;
            self.object.object.compile(region.graph, constants, options.as_str().into()).into_result()
        };
        self.with_context("compile", compiled_region)
    }

    fn query(&self, key: &str, data: &[u8]) -> Result<Option<Vec<u8>>> {
        self.with_context(
            "query",
            self.object.call(Entry::Query, |o| import_query_result(o.query(key.into(), data.into()))),
        )
    }
}

/// Host-side adapter of a plugin's loader.
pub(crate) struct ImportedLoader {
    plugin: Arc<str>,
    object: PluginObject<LoaderObject>,
}

impl ImportedLoader {
    pub(crate) fn new(plugin: Arc<str>, object: LoaderObject) -> ImportedLoader {
        let sites = CallSites::of(&plugin, "");
        ImportedLoader { plugin, object: PluginObject::new(object, sites) }
    }
}

impl Loader for ImportedLoader {
    fn load(&self, region: &LoadRequest<'_>) -> Result<Box<dyn Executable>> {
        let constants = RSlice::from_slice(region.constants);
        let options = region.options.to_string();
        let (symbol, blob) = (region.symbol.into(), region.blob.into());
        let sites = CallSites::of(&self.plugin, region.symbol);
        let executable = {
            let _guard = enter(sites.at(Entry::Load))?;
            self.object.object.load(symbol, blob, constants, options.as_str().into(), region.services).into_result()
        };
        let object = executable.map_err(|error| error.with_entry(&self.plugin, "load"))?;
        let object = ImportedExecutable::new(sites.at(Entry::Load).plugin, object);
        Ok(Box::new(LoadedRegion(PluginObject::new(object, sites))))
    }

    fn query(&self, key: &str, data: &[u8]) -> Result<Option<Vec<u8>>> {
        let response = self.object.call(Entry::Query, |o| import_query_result(o.query(key.into(), data.into())));
        response.map_err(|error| error.with_entry(&self.plugin, "query"))
    }
}

/// Checks that the workspace fits into the address space.
#[inline]
pub(crate) fn check_prepared(preparation: &Prepared) -> Result<()> {
    /// Size of the user address space on x86-64 with four-level page tables.
    const ADDRESS_SPACE: usize = 1 << 47;
    if preparation.workspace < ADDRESS_SPACE { Ok(()) } else { Err(oversized_workspace_error(preparation.workspace)) }
}

#[cold]
fn oversized_workspace_error(workspace: usize) -> Error {
    Error::new(format!("expected a workspace of less than 2^47 bytes, found {workspace} bytes"))
}

/// Host-side adapter of a plugin's loaded region.
struct LoadedRegion(PluginObject<ImportedExecutable>);

impl Executable for LoadedRegion {
    fn prepare(&self, inputs: &[&[usize]]) -> Result<Prepared> {
        let site = self.0.sites.at(Entry::Prepare);
        let preparation = entries::prepare(site, || self.0.object.prepare(inputs));
        if let Ok(preparation) = &preparation {
            check_prepared(preparation).map_err(|error| error.with_entry(site.plugin, "prepare"))?;
        }
        preparation
    }

    fn run(&self, call: Call<'_, '_>) -> Result<()> {
        entries::run(self.0.sites.at(Entry::Run), || self.0.object.run(call))
    }

    fn query(&self, key: &str, data: &[u8]) -> Result<Option<Vec<u8>>> {
        self.0.call(Entry::Query, |region| region.query(key, data))
    }
}

//! Adapters from a plugin's objects to the plain traits that the host uses. They add the plugin and the entry to an
//! error.

use crate::RefusalCode;
use crate::backend::{Candidate, Codegen, CompiledRegion, LoadRequest, Loader, Region, Verdict};
use crate::describe::Description;
use crate::entries::{self, Entry, Places, enter};
use crate::error::{Error, Result};
use crate::executable::{Call, Executable, Prepared};
use crate::executable_object::{ImportedExecutable, answered};
use crate::wire::{CodegenObject, LoaderObject};
use abi_stable::std_types::{RSlice, RString};
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// Object of a plugin, whose entries and destructor are recorded.
struct Held<T> {
    object: ManuallyDrop<T>,
    places: &'static Places,
}

impl<T> Held<T> {
    fn new(object: T, places: &'static Places) -> Held<T> {
        Held { object: ManuallyDrop::new(object), places }
    }

    /// Calls an entry of the object.
    #[inline]
    fn call<R>(&self, entry: Entry, call: impl FnOnce(&T) -> R) -> R {
        let _entered = enter(self.places.at(entry));
        call(&self.object)
    }
}

impl<T> Drop for Held<T> {
    fn drop(&mut self) {
        let _entered = enter(self.places.at(Entry::Release));
        // SAFETY: the object is not used after this destructor.
        unsafe { ManuallyDrop::drop(&mut self.object) };
    }
}

/// Code generator of a plugin, as the host sees it.
pub(crate) struct ImportedCodegen {
    plugin: Arc<str>,
    object: Held<CodegenObject>,
}

impl ImportedCodegen {
    pub(crate) fn new(plugin: Arc<str>, object: CodegenObject) -> ImportedCodegen {
        let places = Places::of(&plugin, "");
        ImportedCodegen { plugin, object: Held::new(object, places) }
    }

    fn named<T>(&self, entry: &str, result: Result<T>) -> Result<T> {
        result.map_err(|error| error.within(&self.plugin, entry))
    }
}

impl Codegen for ImportedCodegen {
    fn describe(&self) -> Result<Description> {
        let text: RString =
            self.named("describe", self.object.call(Entry::Describe, |o| o.describe().into_result()))?;
        Ok(Description::from_json_lossy(&text))
    }

    fn judge(&self, candidate: &Candidate) -> Verdict {
        match self.judge_batch(std::slice::from_ref(candidate)) {
            Ok(verdicts) => verdicts.into_iter().next().expect("one verdict per candidate"),
            Err(error) => Verdict::refused(RefusalCode::Unavailable, error.to_string()),
        }
    }

    fn judge_batch(&self, candidates: &[Candidate]) -> Result<Vec<Verdict>> {
        let judged = self.object.call(Entry::Judge, |o| o.judge(RSlice::from_slice(candidates)).into_result());
        let verdicts = self.named("judge", judged)?;
        if verdicts.len() != candidates.len() {
            let message = format!("found {} verdicts on {} candidates", verdicts.len(), candidates.len());
            return self.named("judge", Err(Error::new(message)));
        }
        Ok(verdicts.into_vec())
    }

    fn compile(&self, region: &Region<'_>) -> Result<CompiledRegion> {
        let options = region.options.to_string();
        let constants = RSlice::from_slice(region.constants);
        let compiled = {
            let _entered = enter(Places::of(&self.plugin, &region.graph.symbol).at(Entry::Compile));
            self.object.object.compile(region.graph, constants, options.as_str().into()).into_result()
        };
        self.named("compile", compiled)
    }

    fn query(&self, key: &str, data: &[u8]) -> Result<Option<Vec<u8>>> {
        self.named("query", self.object.call(Entry::Query, |o| answered(o.query(key.into(), data.into()))))
    }
}

/// Loader of a plugin, as the host sees it.
pub(crate) struct ImportedLoader {
    plugin: Arc<str>,
    object: Held<LoaderObject>,
}

impl ImportedLoader {
    pub(crate) fn new(plugin: Arc<str>, object: LoaderObject) -> ImportedLoader {
        let places = Places::of(&plugin, "");
        ImportedLoader { plugin, object: Held::new(object, places) }
    }
}

impl Loader for ImportedLoader {
    fn load(&self, region: &LoadRequest<'_>) -> Result<Box<dyn Executable>> {
        let constants = RSlice::from_slice(region.constants);
        let options = region.options.to_string();
        let (symbol, blob) = (region.symbol.into(), region.blob.into());
        let places = Places::of(&self.plugin, region.symbol);
        let loaded = {
            let _entered = enter(places.at(Entry::Load));
            self.object.object.load(symbol, blob, constants, options.as_str().into(), region.services).into_result()
        };
        let object = loaded.map_err(|error| error.within(&self.plugin, "load"))?;
        let object = ImportedExecutable::new(places.at(Entry::Load).plugin, object);
        Ok(Box::new(LoadedRegion(Held::new(object, places))))
    }

    fn query(&self, key: &str, data: &[u8]) -> Result<Option<Vec<u8>>> {
        let answer = self.object.call(Entry::Query, |o| answered(o.query(key.into(), data.into())));
        answer.map_err(|error| error.within(&self.plugin, "query"))
    }
}

/// Checks that the workspace fits into the address space.
#[inline]
pub(super) fn check_prepared(prepared: &Prepared) -> Result<()> {
    /// Upper bound of the address space of a process on today's processors.
    const ADDRESSES: usize = 1 << 47;
    if prepared.workspace < ADDRESSES { Ok(()) } else { Err(oversized(prepared.workspace)) }
}

#[cold]
fn oversized(workspace: usize) -> Error {
    Error::new(format!("expected a workspace of less than 2^47 bytes, found {workspace} bytes"))
}

/// Loaded region of a plugin, as the host sees it.
struct LoadedRegion(Held<ImportedExecutable>);

impl Executable for LoadedRegion {
    fn prepare(&self, inputs: &[&[usize]]) -> Result<Prepared> {
        let place = self.0.places.at(Entry::Prepare);
        let prepared = entries::prepare(place, || self.0.object.prepare(inputs));
        if let Ok(prepared) = &prepared {
            check_prepared(prepared).map_err(|error| error.within(place.plugin, "prepare"))?;
        }
        prepared
    }

    fn run(&self, call: Call<'_, '_>) -> Result<()> {
        entries::run(self.0.places.at(Entry::Run), || self.0.object.run(call))
    }

    fn query(&self, key: &str, data: &[u8]) -> Result<Option<Vec<u8>>> {
        self.0.call(Entry::Query, |region| region.query(key, data))
    }
}

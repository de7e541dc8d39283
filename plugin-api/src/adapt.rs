//! Adapters between the plain traits and the objects that cross the boundary.
//!
//! `export_*` wraps an implementation of a plain trait into an object that may cross; every entry is guarded, so that a
//! panic crosses as an error. [`ImportedExecutable`] implements the plain trait on the other side (`host/import.rs`
//! does so for code generators and loaders); it adds the plugin and the entry to an error.

use crate::backend::{
    Call, Candidate, Codegen, CompiledRegion, Executable, LoadRequest, Loader, Prepared, Region, Verdict,
};
use crate::constant::Constant;
use crate::error::{Error, Result};
use crate::graph::Graph;
use crate::guard::guard;
use crate::services::Services;
use crate::tensor::{Tensor, TensorMut, TensorRef};
use crate::wire::*;
use abi_stable::sabi_trait::TD_Opaque;
use abi_stable::std_types::{ROption, RResult, RSlice, RSliceMut, RStr, RString, RVec};
use smallvec::SmallVec;
use std::mem::ManuallyDrop;

pub(crate) type Answer = RResult<ROption<RVec<u8>>, Error>;

/// Implementation of an object that crosses. Its destructor must not panic across the boundary either.
struct Export<T>(ManuallyDrop<T>);

impl<T> Export<T> {
    fn new(value: T) -> Export<T> {
        Export(ManuallyDrop::new(value))
    }
}

impl<T> Drop for Export<T> {
    fn drop(&mut self) {
        let dropped = guard(|| {
            // SAFETY: `self.0` is not used after this destructor.
            unsafe { ManuallyDrop::drop(&mut self.0) };
            Ok(())
        });
        if let Err(error) = dropped {
            tracing::error!("destructor failed: {error}");
        }
    }
}

pub(crate) fn export_codegen(codegen: impl Codegen) -> CodegenObject {
    CodegenAbi_TO::from_value(Export::new(codegen), TD_Opaque)
}

pub(crate) fn export_loader(loader: impl Loader) -> LoaderObject {
    LoaderAbi_TO::from_value(Export::new(loader), TD_Opaque)
}

pub(crate) fn export_executable(executable: Box<dyn Executable>) -> ExecutableObject {
    ExecutableAbi_TO::from_value(Export::new(executable), TD_Opaque)
}

impl<C: Codegen> CodegenAbi for Export<C> {
    fn describe(&self) -> RResult<RString, Error> {
        guard(|| Ok(self.0.describe()?.to_json().into())).into()
    }

    fn judge(&self, candidates: RSlice<'_, Candidate>) -> RResult<RVec<Verdict>, Error> {
        guard(|| Ok(self.0.judge_batch(candidates.as_slice())?.into())).into()
    }

    fn compile(
        &self,
        graph: &Graph,
        constants: RSlice<'_, Constant>,
        options: RStr<'_>,
    ) -> RResult<CompiledRegion, Error> {
        guard(|| {
            let options = serde_json::from_str(options.as_str())?;
            self.0.compile(&Region { graph, constants: constants.as_slice(), options: &options })
        })
        .into()
    }

    fn query(&self, key: RStr<'_>, data: RSlice<'_, u8>) -> Answer {
        answer(|| self.0.query(key.as_str(), data.as_slice()))
    }
}

impl<L: Loader> LoaderAbi for Export<L> {
    fn load(
        &self,
        symbol: RStr<'_>,
        blob: RSlice<'_, u8>,
        constants: RSlice<'_, Constant>,
        options: RStr<'_>,
        services: &Services,
    ) -> RResult<ExecutableObject, Error> {
        guard(|| {
            let options = serde_json::from_str(options.as_str())?;
            let request = LoadRequest {
                symbol: symbol.as_str(),
                blob: blob.as_slice(),
                constants: constants.as_slice(),
                options: &options,
                services,
            };
            Ok(export_executable(self.0.load(&request)?))
        })
        .into()
    }

    fn query(&self, key: RStr<'_>, data: RSlice<'_, u8>) -> Answer {
        answer(|| self.0.query(key.as_str(), data.as_slice()))
    }
}

impl ExecutableAbi for Export<Box<dyn Executable>> {
    fn prepare(&self, inputs: RSlice<'_, RSlice<'_, usize>>) -> RResult<Prepared, Error> {
        guard(|| {
            let mut given: SmallVec<[&[usize]; 4]> = SmallVec::new();
            given.extend(inputs.iter().map(|dims| dims.as_slice()));
            self.0.prepare(&given)
        })
        .into()
    }

    fn run(
        &self,
        inputs: RSlice<'_, Tensor>,
        outputs: RSliceMut<'_, Tensor>,
        workspace: RSliceMut<'_, u8>,
        plan: u64,
    ) -> RResult<(), Error> {
        guard(|| {
            // SAFETY: a `TensorRef` is a `Tensor` with a lifetime; `ImportedExecutable::run` borrows both for the call.
            let inputs = unsafe { std::slice::from_raw_parts(inputs.as_ptr().cast::<TensorRef<'_>>(), inputs.len()) };
            let count = outputs.len();
            let outputs = outputs.into_mut_slice().as_mut_ptr().cast::<TensorMut<'_>>();
            // SAFETY: the same for a `TensorMut`.
            let outputs = unsafe { std::slice::from_raw_parts_mut(outputs, count) };
            self.0.run(Call { inputs, outputs, workspace: workspace.into_mut_slice(), plan })
        })
        .into()
    }

    fn query(&self, key: RStr<'_>, data: RSlice<'_, u8>) -> Answer {
        answer(|| self.0.query(key.as_str(), data.as_slice()))
    }
}

fn answer(body: impl FnOnce() -> Result<Option<Vec<u8>>>) -> Answer {
    guard(|| Ok(body()?.map(RVec::from).into())).into()
}

pub(crate) fn answered(answer: Answer) -> Result<Option<Vec<u8>>> {
    Ok(answer.into_result()?.into_option().map(RVec::into_vec))
}

/// Loaded region of a plugin as the host sees it, or reference executable of the host as a plugin sees it.
pub(crate) struct ImportedExecutable {
    plugin: &'static str,
    object: ExecutableObject,
}

impl ImportedExecutable {
    pub(crate) fn new(plugin: &'static str, object: ExecutableObject) -> ImportedExecutable {
        ImportedExecutable { plugin, object }
    }
}

impl Executable for ImportedExecutable {
    fn prepare(&self, inputs: &[&[usize]]) -> Result<Prepared> {
        let mut given: SmallVec<[RSlice<'_, usize>; 4]> = SmallVec::new();
        given.extend(inputs.iter().map(|dims| RSlice::from_slice(dims)));
        self.object
            .prepare(RSlice::from_slice(&given))
            .into_result()
            .map_err(|error| error.within(self.plugin, "prepare"))
    }

    fn run(&self, call: Call<'_, '_>) -> Result<()> {
        let Call { inputs, outputs, workspace, plan } = call;
        // SAFETY: a `TensorRef` is a `Tensor` with a lifetime.
        let inputs = unsafe { std::slice::from_raw_parts(inputs.as_ptr().cast::<Tensor>(), inputs.len()) };
        // SAFETY: the same for a `TensorMut`; `Export::run` casts them back to `TensorMut`s before anything is written.
        let outputs = unsafe { std::slice::from_raw_parts_mut(outputs.as_mut_ptr().cast::<Tensor>(), outputs.len()) };
        self.object
            .run(inputs.into(), outputs.into(), workspace.into(), plan)
            .into_result()
            .map_err(|error| error.within(self.plugin, "run"))
    }

    fn query(&self, key: &str, data: &[u8]) -> Result<Option<Vec<u8>>> {
        answered(self.object.query(key.into(), data.into())).map_err(|error| error.within(self.plugin, "query"))
    }
}

//! Loaded regions as objects of the stable ABI, and the guarded wrapper of every exported object.
//!
//! `Export` wraps an implementation of a plain trait in an object that may cross the boundary; every entry is guarded
//! and returns a panic as an error. `ImportedExecutable` implements the plain trait on the importing side; it adds the
//! plugin and the entry to errors.
#![expect(unused_qualifications, non_local_definitions, reason = "expansion of `sabi_trait`")]

use crate::error::{Error, Result};
use crate::executable::{Call, Executable, Prepared};
use crate::guard::guard;
use crate::tensor::{Tensor, TensorMut, TensorRef};
use abi_stable::sabi_trait;
use abi_stable::sabi_trait::TD_Opaque;
use abi_stable::std_types::{RBox, ROption, RResult, RSlice, RSliceMut, RStr, RVec};
use smallvec::SmallVec;
use std::mem::ManuallyDrop;

pub type ExecutableObject = ExecutableAbi_TO<RBox<()>>;

#[sabi_trait]
pub trait ExecutableAbi: Send + Sync + 'static {
    fn prepare(&self, inputs: RSlice<'_, RSlice<'_, usize>>) -> RResult<Prepared, Error>;
    fn run(
        &self,
        inputs: RSlice<'_, Tensor>,
        outputs: RSliceMut<'_, Tensor>,
        workspace: RSliceMut<'_, u8>,
        plan: u64,
    ) -> RResult<(), Error>;
    #[sabi(last_prefix_field)]
    fn query(&self, key: RStr<'_>, data: RSlice<'_, u8>) -> RResult<ROption<RVec<u8>>, Error>;
}

pub(crate) type QueryResult = RResult<ROption<RVec<u8>>, Error>;

/// Implementation of an object that crosses the boundary. A panic in its destructor is caught and logged.
pub(crate) struct Export<T>(ManuallyDrop<T>);

impl<T> Export<T> {
    pub(crate) fn new(value: T) -> Export<T> {
        Export(ManuallyDrop::new(value))
    }

    pub(crate) fn get(&self) -> &T {
        &self.0
    }
}

impl<T> Drop for Export<T> {
    fn drop(&mut self) {
        let result = guard(|| {
            // SAFETY: a destructor runs at most once, and `self.0` is not used after this call.
            unsafe { ManuallyDrop::drop(&mut self.0) };
            Ok(())
        });
        if let Err(error) = result {
            tracing::error!("destructor failed: {error}");
        }
    }
}

pub(crate) fn export_executable(executable: Box<dyn Executable>) -> ExecutableObject {
    ExecutableAbi_TO::from_value(Export::new(executable), TD_Opaque)
}

impl ExecutableAbi for Export<Box<dyn Executable>> {
    fn prepare(&self, inputs: RSlice<'_, RSlice<'_, usize>>) -> RResult<Prepared, Error> {
        guard(|| {
            let mut dims: SmallVec<[&[usize]; 4]> = SmallVec::new();
            dims.extend(inputs.iter().map(|dims| dims.as_slice()));
            self.0.prepare(&dims)
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
            // SAFETY: `TensorRef` is a transparent wrapper around `Tensor`; `ImportedExecutable::run` borrows the
            // inputs for the call.
            let inputs = unsafe { std::slice::from_raw_parts(inputs.as_ptr().cast::<TensorRef<'_>>(), inputs.len()) };
            let count = outputs.len();
            let outputs = outputs.into_mut_slice().as_mut_ptr().cast::<TensorMut<'_>>();
            // SAFETY: `TensorMut` is a transparent wrapper around `Tensor`; `ImportedExecutable::run` mutably borrows
            // the outputs for the call.
            let outputs = unsafe { std::slice::from_raw_parts_mut(outputs, count) };
            self.0.run(Call { inputs, outputs, workspace: workspace.into_mut_slice(), plan })
        })
        .into()
    }

    fn query(&self, key: RStr<'_>, data: RSlice<'_, u8>) -> QueryResult {
        export_query_result(|| self.0.query(key.as_str(), data.as_slice()))
    }
}

pub(crate) fn export_query_result(body: impl FnOnce() -> Result<Option<Vec<u8>>>) -> QueryResult {
    guard(|| Ok(body()?.map(RVec::from).into())).into()
}

pub(crate) fn import_query_result(response: QueryResult) -> Result<Option<Vec<u8>>> {
    Ok(response.into_result()?.into_option().map(RVec::into_vec))
}

/// Loaded region of a plugin, called by the host, or reference executable of the host, called by a plugin.
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
        let mut dims: SmallVec<[RSlice<'_, usize>; 4]> = SmallVec::new();
        dims.extend(inputs.iter().map(|dims| RSlice::from_slice(dims)));
        self.object
            .prepare(RSlice::from_slice(&dims))
            .into_result()
            .map_err(|error| error.with_entry(self.plugin, "prepare"))
    }

    fn run(&self, call: Call<'_, '_>) -> Result<()> {
        let Call { inputs, outputs, workspace, plan } = call;
        // SAFETY: `TensorRef` is a transparent wrapper around `Tensor`, and the slice is borrowed for the call.
        let inputs = unsafe { std::slice::from_raw_parts(inputs.as_ptr().cast::<Tensor>(), inputs.len()) };
        // SAFETY: `TensorMut` is a transparent wrapper around `Tensor`, and the slice is mutably borrowed for the call.
        // `Export::run` casts the elements back to `TensorMut` before any write.
        let outputs = unsafe { std::slice::from_raw_parts_mut(outputs.as_mut_ptr().cast::<Tensor>(), outputs.len()) };
        self.object
            .run(inputs.into(), outputs.into(), workspace.into(), plan)
            .into_result()
            .map_err(|error| error.with_entry(self.plugin, "run"))
    }

    fn query(&self, key: &str, data: &[u8]) -> Result<Option<Vec<u8>>> {
        import_query_result(self.object.query(key.into(), data.into()))
            .map_err(|error| error.with_entry(self.plugin, "query"))
    }
}

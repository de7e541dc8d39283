//! Objects that cross the boundary, as traits of the stable ABI. Only the modules `adapt`, `services` and `constant`
//! implement them.
//!
//! Method names, their order and every type in them are checked when a plugin is loaded. An additional method makes the
//! host reject every plugin built before: extensions go through `query` and `get_service`.
#![expect(unused_qualifications, non_local_definitions, reason = "expansion of `sabi_trait`")]

use crate::backend::{Candidate, CompiledRegion, Prepared, Verdict};
use crate::constant::Constant;
use crate::error::Error;
use crate::graph::Graph;
use crate::services::Services;
use crate::tensor::Tensor;
use abi_stable::std_types::{RBox, ROption, RResult, RSlice, RSliceMut, RStr, RString, RVec};
use abi_stable::{StableAbi, sabi_trait};
use std::ptr::NonNull;

pub type CodegenObject = CodegenAbi_TO<RBox<()>>;
pub type LoaderObject = LoaderAbi_TO<RBox<()>>;
pub type ExecutableObject = ExecutableAbi_TO<RBox<()>>;

pub type ConstantObject = ConstantAbi_TO<RBox<()>>;
pub type ServicesObject = ServicesAbi_TO<RBox<()>>;

#[sabi_trait]
pub trait CodegenAbi: Send + Sync + 'static {
    fn describe(&self) -> RResult<RString, Error>;
    fn judge(&self, candidates: RSlice<'_, Candidate>) -> RResult<RVec<Verdict>, Error>;
    fn compile(
        &self,
        graph: &Graph,
        constants: RSlice<'_, Constant>,
        options: RStr<'_>,
    ) -> RResult<CompiledRegion, Error>;
    #[sabi(last_prefix_field)]
    fn query(&self, key: RStr<'_>, data: RSlice<'_, u8>) -> RResult<ROption<RVec<u8>>, Error>;
}

#[sabi_trait]
pub trait LoaderAbi: Send + Sync + 'static {
    fn load(
        &self,
        symbol: RStr<'_>,
        blob: RSlice<'_, u8>,
        constants: RSlice<'_, Constant>,
        options: RStr<'_>,
        services: &Services,
    ) -> RResult<ExecutableObject, Error>;
    #[sabi(last_prefix_field)]
    fn query(&self, key: RStr<'_>, data: RSlice<'_, u8>) -> RResult<ROption<RVec<u8>>, Error>;
}

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

#[sabi_trait]
pub trait ConstantAbi: Send + Sync + 'static {
    fn bytes(&self) -> RSlice<'_, u8>;
    #[sabi(last_prefix_field)]
    fn digest(&self) -> RString;
}

/// Task of a `parallel_for` in the form that crosses the boundary. `call` catches panics.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct Task {
    /// Argument of `call`.
    pub context: *const u8,
    /// Runs one index.
    pub call: unsafe extern "C" fn(*const u8, usize),
}

// SAFETY: `context` points at a `TaskState`, which is `Sync`.
unsafe impl Send for Task {}
// SAFETY: as above.
unsafe impl Sync for Task {}

#[sabi_trait]
pub trait ServicesAbi: Send + Sync + 'static {
    fn num_threads(&self) -> usize;
    fn parallel_for(&self, count: usize, task: Task) -> RResult<(), Error>;
    fn event(&self, name: RStr<'_>, fields: RStr<'_>);
    fn counter(&self, name: RStr<'_>, amount: u64);
    fn log_level(&self) -> u8;
    fn log(&self, level: u8, target: RStr<'_>, message: RStr<'_>);
    fn reference(&self, graph: &Graph, constants: RSlice<'_, Constant>) -> RResult<ExecutableObject, Error>;
    fn cancelled(&self) -> bool;
    #[sabi(last_prefix_field)]
    fn get_service(&self, name: RStr<'_>) -> ROption<NonNull<u8>>;
}

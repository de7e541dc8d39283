//! Stable-ABI traits of the code-generator and loader objects that cross the boundary. Only `export` implements them.
//! The objects of loaded regions, constants and services are in `executable`, `constant` and `services`.
//!
//! The names, the order and the types of the methods are checked when a plugin is loaded. Adding a method makes the
//! host reject every plugin built earlier, so extensions use `query` and `get_service`.
#![expect(unused_qualifications, non_local_definitions, reason = "expansion of `sabi_trait`")]

use crate::backend::{Candidate, CompiledRegion, Verdict};
use crate::constant::Constant;
use crate::error::Error;
use crate::executable_object::ExecutableObject;
use crate::graph::Graph;
use crate::services::Services;
use abi_stable::sabi_trait;
use abi_stable::std_types::{RBox, ROption, RResult, RSlice, RStr, RString, RVec};

pub type CodegenObject = CodegenAbi_TO<RBox<()>>;
pub type LoaderObject = LoaderAbi_TO<RBox<()>>;

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

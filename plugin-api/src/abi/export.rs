//! Adapters between the plain code-generator and loader traits and the objects that cross the boundary.
//!
//! `export_*` wraps an implementation of a plain trait; `import` implements the plain traits on the importing
//! side.

use crate::abi::objects::{CodegenAbi, CodegenAbi_TO, CodegenObject, LoaderAbi, LoaderAbi_TO, LoaderObject};
use crate::backend::{Candidate, Codegen, CompiledRegion, LoadRequest, Loader, Region, Verdict};
use crate::constant::Constant;
use crate::error::Error;
use crate::executable_object::{ExecutableObject, Export, QueryResult, export_executable, export_query_result};
use crate::graph::Graph;
use crate::guard::guard;
use crate::services::Services;
use abi_stable::sabi_trait::TD_Opaque;
use abi_stable::std_types::{RResult, RSlice, RStr, RString, RVec};

pub(crate) fn export_codegen(codegen: impl Codegen) -> CodegenObject {
    CodegenAbi_TO::from_value(Export::new(codegen), TD_Opaque)
}

pub(crate) fn export_loader(loader: impl Loader) -> LoaderObject {
    LoaderAbi_TO::from_value(Export::new(loader), TD_Opaque)
}

impl<C: Codegen> CodegenAbi for Export<C> {
    fn describe(&self) -> RResult<RString, Error> {
        guard(|| Ok(self.get().describe()?.to_json().into())).into()
    }

    fn judge(&self, candidates: RSlice<'_, Candidate>) -> RResult<RVec<Verdict>, Error> {
        guard(|| Ok(self.get().judge_batch(candidates.as_slice())?.into())).into()
    }

    fn compile(
        &self,
        graph: &Graph,
        constants: RSlice<'_, Constant>,
        options: RStr<'_>,
    ) -> RResult<CompiledRegion, Error> {
        guard(|| {
            let options = serde_json::from_str(options.as_str())?;
            self.get().compile(&Region { graph, constants: constants.as_slice(), options: &options })
        })
        .into()
    }

    fn query(&self, key: RStr<'_>, data: RSlice<'_, u8>) -> QueryResult {
        export_query_result(|| self.get().query(key.as_str(), data.as_slice()))
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
            Ok(export_executable(self.get().load(&request)?))
        })
        .into()
    }

    fn query(&self, key: RStr<'_>, data: RSlice<'_, u8>) -> QueryResult {
        export_query_result(|| self.get().query(key.as_str(), data.as_slice()))
    }
}

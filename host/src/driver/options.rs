//! Options of a build.

use super::contract::Contract;
use super::progress::{Progress, Stage};
use super::recovery::OnFailure;
use byoc_ir::interface::HostOperators;
use byoc_plugin_api::ComputeFormat;
use std::path::PathBuf;
use std::sync::Arc;

/// Build options.
#[derive(Clone, Debug, Default)]
pub struct BuildOptions {
    /// Backends in priority order; `auto` stands for every backend found.
    pub backends: Vec<String>,
    /// Values of backend options, as (backend, option, value).
    pub backend_options: Vec<(String, String, String)>,
    /// Lowest precision in which backends may compute float32.
    pub precision: ComputeFormat,
    /// Cache directory of the backends; `None` for no cache.
    pub cache_dir: Option<PathBuf>,
    /// Pass after which the module is printed, or `all`.
    pub print_after: Option<String>,
    /// True to print the time of each pass.
    pub time_passes: bool,
    /// True to request the source of every region from code generators, regardless of its size.
    pub source: bool,
    /// Stage before the text that code generators show in place of the source, if they have such stages.
    pub stage: Option<String>,
    /// True to request regions as self-contained C99 programs from code generators; see `docs/boundary.md`.
    pub program: bool,
    /// True if backends receive only the regions that the module already has.
    pub keep_partition: bool,
    /// Contract that the build has to keep.
    pub contract: Option<Arc<Contract>>,
    /// True if a build that breaks the contract succeeds, for the caller to report [`BuildOutput::contract`].
    ///
    /// [`BuildOutput::contract`]: super::BuildOutput::contract
    pub reports_contract: bool,
    /// Fate of a region that its backend fails to compile.
    pub on_failure: OnFailure,
    /// True if the regions that the module already has run on the host as well.
    pub host_only: bool,
    /// Callback for the stages of the build.
    pub progress: Option<Progress>,
}

impl BuildOptions {
    /// Returns the structures that are read as one operator.
    pub fn host_operators(&self) -> HostOperators {
        match self.backends.is_empty() {
            _ if self.program => HostOperators::None,
            true => HostOperators::All,
            false => HostOperators::Long,
        }
    }

    /// Reports the start of a stage.
    pub fn report(&self, stage: impl FnOnce() -> Stage) {
        if let Some(progress) = &self.progress {
            progress.report(&stage());
        }
    }
}

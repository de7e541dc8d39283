//! Loads the regions of a program with the loaders of their backends. A region that has no loader, or that its loader
//! refuses, runs on the host. A region whose blob was made by another version of its plugin is compiled again from its graph if
//! the loader asks for it.

use crate::compiled::{Compiled, CompiledRegion};
use crate::error::{Failure, fault};
use crate::exec::Region;
use crate::exec::device::DeviceSpaces;
use crate::exec::program;
use crate::plugin;
use crate::plugin::bridge::constant_handle;
use crate::plugin::region::PluginRegion;
use crate::session::Session;
use byoc_ir::diag::{Diagnostic, Severity, codes};
use byoc_plugin_api::{Constant, Error, Graph, LoadRequest, Loader, Region as RegionToCompile};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// Metadata key of a region that computes on threads of its own instead of `parallel_for`.
const OWN_THREADS: &str = "own_threads";

/// Metadata key of a region whose backend serves one run at a time.
const ONE_AT_A_TIME: &str = "one_at_a_time";

/// Key of a loader's `query` for whether it can load a blob: the data is what the host knows of the region, the answer `yes`,
/// `recompile` or `no`. A loader that does not know the key is asked by `load`.
const COMPATIBLE: &str = "blob.compatible";

/// Regions of a program, loaded.
pub(crate) struct LoadedRegions {
    /// Regions of the program; `None` for those that the host runs.
    pub regions: Vec<Option<Arc<dyn Region>>>,
    /// Memories of devices for the spaces of the program.
    pub spaces: DeviceSpaces,
    /// True if every region of a backend computes on threads of its own, and there is one.
    pub own_threads: bool,
    /// Reasons for which regions run on the host, and what else the user has to know.
    pub warnings: Vec<Diagnostic>,
}

/// Loads the regions of a program.
///
/// # Errors
/// A cancellation, or a region whose recorded graph is malformed.
pub(crate) fn load_regions(
    session: &Session,
    compiled: &Compiled,
    cache_dir: Option<&Path>,
) -> Result<LoadedRegions, Failure> {
    let mut loading = Loading {
        session,
        compiled,
        options: plugin::options(cache_dir, Some(session.pool.threads())),
        handles: vec![None; compiled.constants.len()],
        spaces: vec![None; compiled.program.spaces.len()],
        warnings: Vec::new(),
        recompiled: BTreeSet::new(),
    };
    let mut regions: Vec<Option<Arc<dyn Region>>> = Vec::with_capacity(compiled.regions.len());
    for (region, about) in compiled.regions.iter().zip(&compiled.program.regions) {
        regions.push(match region {
            Some(region) => loading.region(region, about)?,
            None => None,
        });
    }
    let loaded = regions.iter().zip(&compiled.regions).filter(|(loaded, _)| loaded.is_some());
    let flags: Vec<bool> = loaded.map(|(_, region)| region.as_ref().is_some_and(|r| is_set(r, OWN_THREADS))).collect();
    let own_threads = !flags.is_empty() && flags.iter().all(|flag| *flag);
    let Loading { spaces, warnings, .. } = loading;
    Ok(LoadedRegions { regions, spaces, own_threads, warnings })
}

fn is_set(region: &CompiledRegion, flag: &str) -> bool {
    region.metadata.iter().any(|(key, value)| key == flag && *value == true)
}

/// Answer of a loader about a blob.
enum Compatible {
    Yes,
    Recompile,
    No,
}

/// State of the loading of a program.
struct Loading<'a> {
    session: &'a Session,
    compiled: &'a Compiled,
    options: Value,
    /// Handles of the constants, as far as they were needed.
    handles: Vec<Option<Constant>>,
    spaces: DeviceSpaces,
    warnings: Vec<Diagnostic>,
    /// Plugins whose regions were compiled again, which is said once.
    recompiled: BTreeSet<String>,
}

impl Loading<'_> {
    /// Loads a region; `None` if the host runs it.
    fn region(&mut self, region: &CompiledRegion, about: &program::Region) -> Result<Option<Arc<dyn Region>>, Failure> {
        let session = self.session;
        session.cancellation().check(|| format!("before loading region {}", region.symbol))?;
        let Some(loader) = session.registry.loader(&region.loader, &region.plugin.name) else {
            let message =
                format!("region {}: no plugin registers the loader \"loadbinary_{}\"", region.symbol, region.loader);
            let origin = format!("compiled by plugin {} {}", region.plugin.name, region.plugin.version);
            self.on_host(region, Diagnostic::warning(codes::plugins::NO_LOADER, message).note(origin));
            return Ok(None);
        };
        let constants = self.constants(region);
        let signature = region.signature().map_err(|reason| Failure::new(codes::artifacts::MALFORMED, reason))?;
        self.options["region"] = region.load_options(&signature);
        let chosen = &self.compiled.options["backend_options"][&region.backend];
        session.choices.add_to(&mut self.options, &region.backend, chosen);
        let loaded = self.blob(region, loader.as_ref(), &constants).and_then(|blob| {
            loader.load(&LoadRequest {
                symbol: &region.symbol,
                blob: blob.as_deref().unwrap_or(&region.blob),
                constants: &constants,
                options: &self.options,
                services: &session.services,
            })
        });
        let executable = match loaded {
            Ok(executable) => executable,
            Err(error) => {
                self.on_host(region, fault(&error));
                return Ok(None);
            }
        };
        let mut wrapped = PluginRegion::new(executable, &region.symbol, &region.plugin.name);
        if about.space.is_some() {
            wrapped = wrapped.with_device();
        }
        if is_set(region, ONE_AT_A_TIME) {
            wrapped = wrapped.one_at_a_time(session.devices.one_run(&region.loader));
        }
        self.space(region, about, loader.as_ref());
        Ok(Some(Arc::new(wrapped)))
    }

    fn constants(&mut self, region: &CompiledRegion) -> Vec<Constant> {
        let handle = |&i: &u32| {
            let (slot, tensor) = (&mut self.handles[i as usize], &self.compiled.constants[i as usize]);
            slot.get_or_insert_with(|| constant_handle("", &Arc::new(tensor.clone()))).clone()
        };
        region.constants.iter().map(handle).collect()
    }

    /// Records that the host runs a region.
    fn on_host(&mut self, region: &CompiledRegion, reason: Diagnostic) {
        let note = format!("region {} runs on the host instead; the result is the same", region.symbol);
        self.warnings.push(Diagnostic { severity: Severity::Warning, ..reason.note(note) });
    }

    /// Asks the loader for the memory of the device that the region's tensors live on.
    fn space(&mut self, region: &CompiledRegion, about: &program::Region, loader: &dyn Loader) {
        let session = self.session;
        let slot = about.space.and_then(|space| self.spaces.get_mut(space as usize));
        let Some(slot) = slot.filter(|slot| slot.is_none()) else { return };
        let device = session.choices.device(&region.backend);
        match session.devices.space((&region.loader, loader), &region.plugin.name, device, &session.metrics) {
            Ok(space) => *slot = space,
            Err(error) => {
                let note = "the tensors of its regions stay in the host's memory; the result is the same";
                self.warnings.push(Diagnostic { severity: Severity::Warning, ..fault(&error).note(note) });
            }
        }
    }

    /// Returns a new blob if the loader asks for one.
    fn blob(
        &mut self,
        region: &CompiledRegion,
        loader: &dyn Loader,
        constants: &[Constant],
    ) -> Result<Option<Vec<u8>>, Error> {
        match compatible(loader, &self.options["region"])? {
            Compatible::Yes => Ok(None),
            Compatible::No => {
                let (name, version) = (&region.plugin.name, &region.plugin.version);
                Err(Error::new(format!("{name} cannot load what its version {version} compiled"))
                    .hint("compile the model again"))
            }
            Compatible::Recompile => self.recompile(region, constants).map(Some),
        }
    }

    /// Compiles a region again, from the graph that is recorded with it.
    fn recompile(&mut self, region: &CompiledRegion, constants: &[Constant]) -> Result<Vec<u8>, Error> {
        let (codegen, file) = self
            .session
            .registry
            .codegen(&region.backend)
            .map_err(|error| Error::new(format!("{} has to be compiled again: {error}", region.symbol)))?;
        let graph = Graph::from_json(&region.graph.to_string())?;
        graph.check(constants.len())?;
        let compiled = codegen.compile(&RegionToCompile { graph: &graph, constants, options: &self.options })?;
        if *compiled.loader != *region.loader {
            let (wanted, found) = (&region.loader, &compiled.loader);
            return Err(Error::new(format!(
                "expected a blob for loadbinary_{wanted}, found one for loadbinary_{found}"
            ))
            .hint("compile the model again"));
        }
        let name = &region.plugin.name;
        if self.recompiled.insert(name.clone()) {
            let now = file.plugin().map_or("", |plugin| &plugin.version);
            let message = format!(
                "the regions of {name} were compiled by its version {}; version {now} compiles them again",
                region.plugin.version
            );
            let warning = Diagnostic::warning(codes::plugins::RECOMPILED, message);
            self.warnings.push(warning.help("compile the model again to save the time"));
        }
        Ok(compiled.blob.into_vec())
    }
}

/// Asks a loader whether it can load the blob of a region.
fn compatible(loader: &dyn Loader, region: &Value) -> Result<Compatible, Error> {
    Ok(match loader.query(COMPATIBLE, region.to_string().as_bytes())?.as_deref() {
        None | Some(b"yes") => Compatible::Yes,
        Some(b"recompile") => Compatible::Recompile,
        Some(b"no") => Compatible::No,
        Some(other) => {
            let found = String::from_utf8_lossy(&other[..other.len().min(40)]).into_owned();
            return Err(Error::new(format!("{COMPATIBLE}: expected yes, recompile or no, found {found:?}")));
        }
    })
}

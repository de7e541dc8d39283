//! Loads the regions of a program with the loaders of their backends. A region that has no loader, or that its loader
//! refuses, runs on the host. A region whose blob was made by a different version of its plugin is recompiled from its
//! graph if the loader requests it.

use crate::choices::base_name;
use crate::compiled::{Compiled, CompiledRegion, IN_PLACE, in_place_pairs};
use crate::error::{Failure, fault};
use crate::exec::Region;
use crate::exec::device::DeviceSpaces;
use crate::exec::program::{self, Instr};
use crate::linking::{self, LINK, LinkedRegions};
use crate::plugin;
use crate::plugin::bridge::{self, constant_handle, dtype_to_api};
use crate::plugin::region::PluginRegion;
use crate::session::Session;
use byoc_ir::diag::{Diagnostic, Severity, codes};
use byoc_plugin_api::link::LinkRegion;
use byoc_plugin_api::{Constant, Error, Graph, LoadRequest, Loader, Region as RegionToCompile};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

/// Metadata key of a region that computes on its own threads instead of `parallel_for`.
const OWN_THREADS: &str = "own_threads";

/// Metadata key of a region whose backend serves one run at a time.
const ONE_AT_A_TIME: &str = "one_at_a_time";

/// Metadata key for the maximum number of concurrent runs that the backend of a region serves.
const CONCURRENCY: &str = "concurrency";

/// Metadata key whose value `true` marks a region with state that runs change.
const STATE: &str = "state";

/// `query` key by which the host asks a loader whether it can load a blob. The data is the host's description of the
/// region, the response `yes`, `recompile` or `no`. If a loader does not know the key, its `load` decides.
const COMPATIBLE: &str = "blob.compatible";

/// Regions of a program, loaded.
pub(crate) struct LoadedRegions {
    /// Regions of the program; `None` for regions that the host runs.
    pub regions: Vec<Option<Arc<dyn Region>>>,
    /// Device memories for the spaces of the program.
    pub spaces: DeviceSpaces,
    /// True if at least one region is loaded and all loaded regions compute on their own threads.
    pub own_threads: bool,
    /// Warnings for the user, such as the reasons why regions run on the host.
    pub warnings: Vec<Diagnostic>,
}

/// Loads the regions of a program.
///
/// # Errors
/// If the load is cancelled, or the recorded graph of a region is malformed.
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
        shared: BTreeMap::new(),
        in_place: in_place_of(compiled),
        made: BTreeMap::new(),
        warnings: Vec::new(),
        recompiled: BTreeSet::new(),
    };
    for (backend, shared) in &compiled.linked {
        let shared = shared.as_ref().map(|shared| constant_handle("", &Arc::new(shared.clone())));
        loading.shared.insert(backend.clone(), shared);
        loading.relink(backend);
    }
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

/// Returns the results that a program expects in the memory of an input, by region symbol.
fn in_place_of(compiled: &Compiled) -> BTreeMap<&str, Vec<[u32; 2]>> {
    let mut found: BTreeMap<&str, Vec<[u32; 2]>> = BTreeMap::new();
    for instr in compiled.program.functions.iter().flat_map(|function| &function.code) {
        if let Instr::Region { region, in_place, .. } = instr
            && let Some(about) = compiled.program.regions.get(*region as usize).filter(|_| !in_place.is_empty())
        {
            found.entry(&about.symbol).or_default().extend(in_place);
        }
    }
    found
}

fn is_set(region: &CompiledRegion, flag: &str) -> bool {
    region.metadata.iter().any(|(key, value)| key == flag && *value == true)
}

/// Response of a loader to [`COMPATIBLE`].
enum Compatible {
    Yes,
    Recompile,
    No,
}

/// Recompiled blob of a region, with its metadata.
#[derive(Clone)]
struct Made {
    blob: Vec<u8>,
    metadata: Map<String, Value>,
}

/// State of the loading of a program.
struct Loading<'a> {
    session: &'a Session,
    compiled: &'a Compiled,
    options: Value,
    /// Constant handles, created on first use.
    handles: Vec<Option<Constant>>,
    spaces: DeviceSpaces,
    /// Shared data of linked regions, by backend.
    shared: BTreeMap<String, Option<Constant>>,
    /// Results that the program expects in the memory of an input, by region symbol.
    in_place: BTreeMap<&'a str, Vec<[u32; 2]>>,
    /// Regions that were recompiled together, by symbol.
    made: BTreeMap<String, Result<Made, Diagnostic>>,
    warnings: Vec<Diagnostic>,
    /// Plugins whose regions were recompiled; each plugin is reported once.
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
        self.set_options(region)?;
        let loaded = self.blob(region, loader.as_ref()).and_then(|made| {
            let in_place = match made.as_ref().map(|made| made.metadata.get(IN_PLACE)) {
                None => region.in_place(),
                Some(pairs) => pairs.map(in_place_pairs).unwrap_or_default(),
            };
            let used = self.in_place.get(region.symbol.as_str()).map_or(&[][..], Vec::as_slice);
            if let Some([output, input]) = used.iter().find(|pair| !in_place.contains(pair)) {
                let message = format!("expected output {output} of {} in the memory of input {input}", region.symbol);
                return Err(fault(&Error::new(message).hint("compile the model again")));
            }
            let constants = self.loaded_constants(region);
            if let Some(made) = &made {
                self.options["region"]["metadata"] = Value::Object(made.metadata.clone());
            }
            let request = LoadRequest {
                symbol: &region.symbol,
                blob: made.as_ref().map_or(&*region.blob, |made| &made.blob),
                constants: &constants,
                options: &self.options,
                services: &session.services,
            };
            loader.load(&request).map_err(|error| fault(&error))
        });
        let executable = match loaded {
            Ok(executable) => executable,
            Err(reason) => {
                self.on_host(region, reason);
                return Ok(None);
            }
        };
        let mut wrapped = PluginRegion::new(executable, &region.symbol, &region.plugin.name);
        if about.space.is_some() {
            wrapped = wrapped.with_device();
        }
        let at_a_time = region.metadata(CONCURRENCY).and_then(Value::as_u64).map(|count| count.max(1));
        let at_a_time = if is_set(region, ONE_AT_A_TIME) { Some(1) } else { at_a_time };
        if let Some(count) = at_a_time.and_then(|count| usize::try_from(count).ok()) {
            let device = session.choices.device(&region.backend);
            wrapped = wrapped.with_slots(session.devices.slots(&region.loader, device, count));
        }
        if is_set(region, STATE) {
            wrapped = wrapped.with_state();
        }
        self.space(region, about, loader.as_ref());
        Ok(Some(Arc::new(wrapped)))
    }

    /// Sets the entry options for a region.
    fn set_options(&mut self, region: &CompiledRegion) -> Result<(), Failure> {
        let signature = region.signature().map_err(|reason| Failure::new(codes::artifacts::MALFORMED, reason))?;
        self.options["region"] = region.load_options(&signature);
        let chosen = &self.compiled.options["backend_options"][&region.backend];
        self.session.choices.add_to(&mut self.options, &region.backend, chosen);
        Ok(())
    }

    fn constant(&mut self, index: u32) -> Constant {
        let (slot, tensor) = (&mut self.handles[index as usize], &self.compiled.constants[index as usize]);
        slot.get_or_insert_with(|| constant_handle("", &Arc::new(tensor.clone()))).clone()
    }

    /// Returns the constants to pass to the loader of a region: the constants that `compile` received, without elements
    /// where the blob holds them, and the shared data of linked regions.
    fn loaded_constants(&mut self, region: &CompiledRegion) -> Vec<Constant> {
        let mut constants = Vec::with_capacity(region.constants.len() + 1);
        for (&index, packed) in region.constants.iter().zip(region.is_packed()) {
            constants.push(if packed {
                let dtype = self.compiled.program.constants[index as usize].ty.dtype;
                bridge::without_elements(dtype_to_api(dtype))
            } else {
                self.constant(index)
            });
        }
        if is_set(region, LINK)
            && let Some(Some(shared)) = self.shared.get(&region.backend)
        {
            self.options["region"]["shared"] = constants.len().into();
            constants.push(shared.clone());
        }
        constants
    }

    /// Returns the constants with which a region was compiled.
    fn compiled_constants(&mut self, region: &CompiledRegion) -> Result<Vec<Constant>, Error> {
        if region.constants.iter().any(|index| self.compiled.absent.contains(index)) {
            return Err(Error::new(format!(
                "{} cannot be compiled again: its constants are only in its blob",
                region.symbol
            ))
            .hint("compile the model again"));
        }
        Ok(region.constants.iter().map(|&index| self.constant(index)).collect())
    }

    /// Records that the host runs a region.
    fn on_host(&mut self, region: &CompiledRegion, reason: Diagnostic) {
        let note = format!("region {} runs on the host instead; the result is the same", region.symbol);
        self.warnings.push(Diagnostic { severity: Severity::Warning, ..reason.note(note) });
    }

    /// Requests the device memory for a region's tensors from the loader.
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

    /// Recompiles and links all linked regions of a backend, if the loader of any of them requests it.
    fn relink(&mut self, backend: &str) {
        let regions = self.compiled.regions.iter().flatten();
        let regions: Vec<&CompiledRegion> = regions.filter(|r| r.backend == backend && is_set(r, LINK)).collect();
        let mut wanted = false;
        let mut again = Vec::new();
        for region in regions {
            let Some(loader) = self.session.registry.loader(&region.loader, &region.plugin.name) else { continue };
            // A failure here occurs again when the region is loaded, and is reported there.
            if self.set_options(region).is_err() {
                continue;
            }
            match compatible(loader.as_ref(), &self.options["region"]) {
                Ok(Compatible::Yes) => again.push(region),
                Ok(Compatible::Recompile) => {
                    wanted = true;
                    again.push(region);
                }
                Ok(Compatible::No) | Err(_) => {}
            }
        }
        if !wanted {
            return;
        }
        let made: Vec<(&CompiledRegion, Result<Made, Error>)> = again
            .into_iter()
            .map(|region| {
                let made = self.set_options(region).map_err(|failure| Error::new(failure.to_string()));
                (region, made.and_then(|()| self.recompile(region)))
            })
            .collect();
        let linked = self.link_again(backend, &made);
        let mut blobs = match linked {
            Ok(LinkedRegions { shared, blobs, .. }) => {
                let shared = shared.map(|shared| constant_handle("", &Arc::new(shared)));
                self.shared.insert(backend.to_owned(), shared);
                Ok(blobs)
            }
            Err(diagnostic) => Err(diagnostic),
        };
        for (region, made) in made {
            let made = match (made, &mut blobs) {
                (Err(error), _) => Err(fault(&error)),
                (Ok(_), Err(diagnostic)) => Err((**diagnostic).clone()),
                (Ok(made), Ok(blobs)) => {
                    Ok(Made { blob: blobs.remove(&region.symbol).unwrap_or(made.blob), metadata: made.metadata })
                }
            };
            self.made.insert(region.symbol.clone(), made);
        }
    }

    /// Links the recompiled regions of a backend.
    fn link_again(
        &self,
        backend: &str,
        made: &[(&CompiledRegion, Result<Made, Error>)],
    ) -> Result<LinkedRegions, Box<Diagnostic>> {
        let compiled = made.iter().filter_map(|(region, made)| Some((region, made.as_ref().ok()?)));
        let regions = compiled.map(|(region, made)| LinkRegion {
            symbol: region.symbol.clone(),
            loader: region.loader.clone(),
            metadata: made.metadata.clone(),
            blob: &made.blob,
        });
        let regions: Vec<LinkRegion<'_>> = regions.collect();
        if regions.is_empty() {
            return Ok(LinkedRegions { shared: None, blobs: BTreeMap::new(), notes: Vec::new() });
        }
        let found = self.session.registry.codegen(base_name(backend));
        let (codegen, _) = found.map_err(|failure| Box::new(fault(&Error::new(failure.to_string()))))?;
        let mut options = self.options.clone();
        if let Some(fields) = options.as_object_mut() {
            fields.remove("region");
        }
        linking::link(codegen.as_ref(), &options, regions)
    }

    /// Returns a new blob if the loader requests recompilation.
    fn blob(&mut self, region: &CompiledRegion, loader: &dyn Loader) -> Result<Option<Made>, Diagnostic> {
        if let Some(made) = self.made.remove(&region.symbol) {
            return made.map(Some);
        }
        match compatible(loader, &self.options["region"]).map_err(|error| fault(&error))? {
            Compatible::Yes => Ok(None),
            Compatible::No => {
                let (name, version) = (&region.plugin.name, &region.plugin.version);
                let error = Error::new(format!("{name} cannot load what its version {version} compiled"));
                Err(fault(&error.hint("compile the model again")))
            }
            Compatible::Recompile => self.recompile(region).map(Some).map_err(|error| fault(&error)),
        }
    }

    /// Recompiles a region from its recorded graph.
    fn recompile(&mut self, region: &CompiledRegion) -> Result<Made, Error> {
        let constants = self.compiled_constants(region)?;
        let (codegen, file) = self
            .session
            .registry
            .codegen(base_name(&region.backend))
            .map_err(|error| Error::new(format!("{} has to be compiled again: {error}", region.symbol)))?;
        let graph = Graph::from_json(&region.graph.to_string())?;
        graph.check(constants.len())?;
        let request = RegionToCompile { graph: &graph, constants: &constants, options: &self.options };
        let compiled = codegen.compile(&request)?;
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
        let metadata = bridge::metadata(&compiled).into_iter().collect();
        Ok(Made { blob: compiled.blob.into_vec(), metadata })
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

//! Loads regions onto a device: one plan, or one plan per set of input dimensions.

use crate::backend::{ZERO_COPY, generate, option, with_tile};
use crate::blob::{self, Blob, OpenRegion};
use crate::device::Device;
use crate::device::program::cache_settings;
use crate::device::space::Space;
use crate::open::bind;
use crate::plan::{ConstantPool, Plan, Setup, check_shapes};
use crate::program::{Launch, Program};
use crate::widen;
use byoc_plugin_api::device::{MEMORY_KEY, WORKSPACE_KEY, answer_memory};
use byoc_plugin_api::{
    Attr, Call, Constant, DType, Error, Executable, LoadRequest, Loader, Prepared, Result, Services, Signature,
};
use byoc_plugin_support::cache::Settings;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Loader registered as `loadbinary_opencl`.
#[derive(Default)]
pub struct OpenClLoader {
    /// Memory of each device, for each value of the option `zero_copy`, with the response to the host's memory query.
    /// The last entry belongs to the most recently loaded region.
    spaces: Mutex<Vec<KnownSpace>>,
}

struct KnownSpace {
    device: Arc<Device>,
    is_zero_copy: bool,
    response: Vec<u8>,
}

impl OpenClLoader {
    /// Records the device of a loaded region for the host's memory query.
    fn record_device(&self, device: &Arc<Device>, services: &Services, is_zero_copy: bool) {
        let mut spaces = self.spaces.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = |space: &KnownSpace| Arc::ptr_eq(&space.device, device) && space.is_zero_copy == is_zero_copy;
        let space = match spaces.iter().position(is_same) {
            Some(index) => spaces.remove(index),
            None => {
                let response = answer_memory(Space::new(device, services, is_zero_copy));
                KnownSpace { device: device.clone(), is_zero_copy, response }
            }
        };
        spaces.push(space);
    }
}

/// Key of the query that releases a plan.
const RELEASE_KEY: &str = "plan.release";

impl Loader for OpenClLoader {
    fn load(&self, request: &LoadRequest<'_>) -> Result<Box<dyn Executable>> {
        let blob = blob::read(request.blob)?;
        let (symbol, constants, signature, selector) = match &blob {
            Blob::Fixed(program) => {
                (program.symbol.as_str(), &program.constants, program.signature.clone(), &program.selector)
            }
            Blob::Open(open_region) => (
                open_region.graph.symbol.as_str(),
                &open_region.constants,
                Signature::of(&open_region.graph),
                &open_region.selector,
            ),
        };
        if symbol != request.symbol {
            return Err(Error::new(format!("expected the program of {}, found that of {symbol}", request.symbol)));
        }
        // A program lists float16 constants as float32; an open region lists the element types of its graph.
        let widened_constants = widen::constants(request.constants);
        check_constants(constants, if let Blob::Fixed(_) = &blob { &widened_constants } else { request.constants })?;
        request.check_signature(&signature)?;
        let selector = request.options["device"].as_str().unwrap_or(selector);
        let device = Device::get(selector, Some(request.services.num_threads()))?;
        let is_zero_copy = option(request.options, ZERO_COPY) == Some("true");
        self.record_device(&device, request.services, is_zero_copy);
        let (services, cache) = (request.services.clone(), cache_settings(request.options));
        match blob {
            Blob::Fixed(program) => {
                let pool = ConstantPool::default();
                let setup = Setup { constants: &widened_constants, pool: &pool, cache, services: &services };
                let plan = Plan::new(*program, &device, &setup)?;
                Ok(Box::new(FixedRegion { plan, services }))
            }
            Blob::Open(open_region) => {
                let (constants, pool) = (request.constants.to_vec(), ConstantPool::default());
                let widened_constants = widened_constants.into_owned();
                let plans = Mutex::new(Plans::default());
                Ok(Box::new(DynamicRegion {
                    open_region: *open_region,
                    device,
                    constants,
                    widened: widened_constants,
                    pool,
                    cache,
                    plans,
                    services,
                }))
            }
        }
    }

    fn query(&self, key: &str, data: &[u8]) -> Result<Option<Vec<u8>>> {
        match key {
            // The blob contains source that `load` compiles.
            "blob.native" => Ok(Some(b"true".to_vec())),
            "byoc.files.1" => {
                Err(Error::new("the OpenCL library locates its drivers in system directories, which a bundle lacks")
                    .hint("compile the model for another backend, or run the artifact with a byoc installation"))
            }
            MEMORY_KEY => {
                let spaces = self.spaces.lock().unwrap_or_else(PoisonError::into_inner);
                Ok(spaces.last().map(|space| space.response.clone()))
            }
            "blob.summary" => Ok(Some(summary(&blob::read(data)?).into_bytes())),
            "blob.listing" => Ok(Some(match blob::read(data)? {
                Blob::Fixed(program) => program.source.into_bytes(),
                open_region => summary(&open_region).into_bytes(),
            })),
            _ => Ok(None),
        }
    }
}

/// Formats the launches of a program, one per line.
fn summary(blob: &Blob) -> String {
    let program: &Program = match blob {
        Blob::Fixed(program) => program,
        Blob::Open(_) => return "compiled for each set of input dimensions at run time\n".to_owned(),
    };
    let line = |launch: &Launch| {
        let [x, y, z] = launch.global;
        format!("{}: {}, {x} x {y} x {z} work-items\n", program.kernels[launch.kernel].name, launch.name)
    };
    let lines: String = program.launches.iter().map(line).collect();
    format!("device: {}, arena: {} bytes\n{lines}", program.device, program.arena)
}

fn check_constants(expected: &[(usize, DType)], constants: &[Constant]) -> Result<()> {
    if expected.len() != constants.len() {
        return Err(Error::new(format!("number of constants: expected {}, found {}", expected.len(), constants.len())));
    }
    for (i, (&(elements, dtype), constant)) in expected.iter().zip(constants).enumerate() {
        let element_count = constant.shape().iter().product::<usize>();
        if elements != element_count || dtype != constant.dtype() {
            let element_count = format!("{element_count} of {}", constant.dtype());
            return Err(Error::new(format!(
                "constant {i}: expected {elements} elements of {dtype}, found {element_count}"
            )));
        }
    }
    Ok(())
}

/// Region with known dimensions.
struct FixedRegion {
    plan: Plan,
    services: Services,
}

impl Executable for FixedRegion {
    fn prepare(&self, inputs: &[&[usize]]) -> Result<Prepared> {
        check_shapes("input", inputs.iter().copied(), &self.plan.program().inputs)?;
        Ok(Prepared::exact(self.plan.program().outputs.iter().map(|edge| &edge.shape)))
    }

    fn run(&self, call: Call<'_, '_>) -> Result<()> {
        self.plan.run(call, &self.services)
    }

    fn query(&self, key: &str, _: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok((key == WORKSPACE_KEY).then(|| self.plan.workspace_response()))
    }
}

/// Region with open dimensions.
struct DynamicRegion {
    open_region: OpenRegion,
    device: Arc<Device>,
    constants: Vec<Constant>,
    /// Constants with float16 converted to float32.
    widened: Vec<Constant>,
    pool: ConstantPool,
    cache: Option<Settings>,
    plans: Mutex<Plans>,
    services: Services,
}

/// Region for one set of dimensions.
enum SizedRegion {
    Device(Box<Plan>),
    /// Region with an empty tensor, which the host's reference executes.
    Host(Box<dyn Executable>, Prepared),
}

/// Plans keyed by number, and plan numbers keyed by input dimensions.
#[derive(Default)]
struct Plans {
    plans: BTreeMap<u64, Arc<SizedRegion>>,
    ids: BTreeMap<Vec<Vec<usize>>, u64>,
    next_id: u64,
}

impl DynamicRegion {
    fn plans(&self) -> std::sync::MutexGuard<'_, Plans> {
        self.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Compiles the region for the given input dimensions.
    fn plan(&self, inputs: &[&[usize]]) -> Result<SizedRegion> {
        let graph = bind(&self.open_region.graph, inputs)?;
        let types = graph.nodes.iter().flat_map(|node| node.outputs.iter());
        if types.into_iter().any(|ty| ty.element_count() == Some(0)) {
            let host = self.services.reference(&graph, &self.constants)?;
            let preparation = host.prepare(inputs)?;
            return Ok(SizedRegion::Host(host, preparation));
        }
        let program = generate(&graph, &self.constants, &with_tile(&self.device.traits, &self.open_region.tile))?;
        let setup =
            Setup { constants: &self.widened, pool: &self.pool, cache: self.cache.clone(), services: &self.services };
        Ok(SizedRegion::Device(Box::new(Plan::new(program, &self.device, &setup)?)))
    }
}

impl Executable for DynamicRegion {
    fn prepare(&self, inputs: &[&[usize]]) -> Result<Prepared> {
        let key: Vec<Vec<usize>> = inputs.iter().map(|shape| shape.to_vec()).collect();
        let existing_plan = {
            let plans = self.plans();
            plans.ids.get(&key).and_then(|id| Some((*id, plans.plans.get(id)?.clone())))
        };
        let (id, plan) = match existing_plan {
            Some(existing_plan) => existing_plan,
            None => {
                let plan = Arc::new(self.plan(inputs)?);
                let mut plans = self.plans();
                plans.next_id += 1;
                let id = plans.next_id;
                plans.plans.insert(id, plan.clone());
                plans.ids.insert(key, id);
                (id, plan)
            }
        };
        Ok(match &*plan {
            SizedRegion::Device(plan) => {
                let outputs = plan.program().outputs.iter().map(|edge| &edge.shape);
                let mut preparation = Prepared::exact(outputs).with_plan(id);
                preparation.attrs.push(Attr::new("bytes", plan.bytes() as i64));
                preparation
            }
            SizedRegion::Host(_, preparation) => preparation.clone().with_plan(id),
        })
    }

    fn run(&self, call: Call<'_, '_>) -> Result<()> {
        let plan = self.plans().plans.get(&call.plan).cloned();
        let plan = plan.ok_or_else(|| Error::new(format!("expected the number of a plan, found {}", call.plan)))?;
        match &*plan {
            SizedRegion::Device(plan) => plan.run(call, &self.services),
            SizedRegion::Host(host, preparation) => host.run(Call { plan: preparation.plan, ..call }),
        }
    }

    fn query(&self, key: &str, data: &[u8]) -> Result<Option<Vec<u8>>> {
        if !matches!(key, RELEASE_KEY | WORKSPACE_KEY) {
            return Ok(None);
        }
        let id = serde_json::from_slice::<Value>(data).ok().and_then(|data| data["plan"].as_u64());
        let id = id.ok_or_else(|| Error::new(format!("{key}: expected a plan number, found none")))?;
        let mut plans = self.plans();
        if key == WORKSPACE_KEY {
            return Ok(plans.plans.get(&id).and_then(|plan| match &**plan {
                SizedRegion::Device(plan) => Some(plan.workspace_response()),
                SizedRegion::Host(..) => None,
            }));
        }
        plans.ids.retain(|_, plan_id| *plan_id != id);
        let plan = plans.plans.remove(&id);
        drop(plans);
        drop(plan);
        Ok(Some(Vec::new()))
    }
}

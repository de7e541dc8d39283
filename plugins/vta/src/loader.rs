//! Loads regions onto a device, and runs them.

use crate::backend::option;
use crate::device::Device;
use crate::driver::DRIVERS;
use crate::image::{Edge, Image, Simulator};
use crate::{blob, listing, pack};
use byoc_plugin_api::{
    Call, DType, Error, Executable, LoadRequest, Loader, Prepared, Result, Services, Signature, TensorType,
};
use byoc_vta_machine::config::Config;
use byoc_vta_machine::sim::Counters;
use serde_json::json;
use std::sync::{Mutex, PoisonError};

/// Maximum number of instructions per layer in a summary.
const SUMMARY_INSTRUCTIONS: usize = 12;

/// Loader registered as `loadbinary_vta`.
pub struct VtaLoader {
    /// Device parameters.
    pub config: Config,
}

/// Loaded region.
struct LoadedRegion {
    image: Image,
    /// Driver path or simulator name.
    device_name: String,
    /// True if a driver runs the region.
    is_driven: bool,
    device: Mutex<Device>,
    services: Services,
}

fn dtype(edge: &Edge) -> DType {
    if edge.int32 { DType::I32 } else { DType::I8 }
}

/// Returns the input and output types of a region.
fn signature(image: &Image) -> Signature {
    let ty = |edge: &Edge| TensorType::new(dtype(edge), &edge.shape);
    Signature { inputs: image.inputs.iter().map(ty).collect(), outputs: image.outputs.iter().map(ty).collect() }
}

impl Loader for VtaLoader {
    fn load(&self, request: &LoadRequest<'_>) -> Result<Box<dyn Executable>> {
        let mut image = blob::read(request.blob)?;
        if let Some(simulator) = option(request.options, "simulator") {
            image.simulator = Simulator::named(Some(simulator));
        }
        if image.symbol != request.symbol {
            return Err(format!("expected the program of {}, found that of {}", request.symbol, image.symbol).into());
        }
        let comparable_config =
            Config { target: self.config.target.clone(), profile: self.config.profile, ..image.config.clone() };
        if comparable_config != self.config {
            let (expected, found) = (self.config.name(), image.config.name());
            return Err(Error::new(format!("expected a program for the device {expected}, found one for {found}"))
                .hint("compile the model again with the configuration file of this device next to the plugin"));
        }
        if image.constants != request.constants.len() {
            let (expected, constant_count) = (image.constants, request.constants.len());
            return Err(format!("number of constants: expected {expected}, found {constant_count}").into());
        }
        request.check_signature(&signature(&image))?;
        let driver = DRIVERS.from_environment()?;
        let (mut device, device_name) = match &driver {
            Some(driver) => (Device::driver(&image, driver)?, driver.path.display().to_string()),
            None => (Device::simulator(&image)?, image.simulator.to_string()),
        };
        device.upload(&image, request.constants, request.services)?;
        Ok(Box::new(LoadedRegion {
            image,
            device_name,
            is_driven: driver.is_some(),
            device: Mutex::new(device),
            services: request.services.clone(),
        }))
    }

    fn query(&self, key: &str, data: &[u8]) -> Result<Option<Vec<u8>>> {
        match key {
            // The blob contains device instructions, not native code.
            "blob.native" => Ok(Some(b"false".to_vec())),
            "byoc.files.1" => Ok(Some(DRIVERS.files()?)),
            "blob.listing" => Ok(Some(listing::listing(&blob::read(data)?, usize::MAX).into_bytes())),
            "blob.summary" => Ok(Some(listing::listing(&blob::read(data)?, SUMMARY_INSTRUCTIONS).into_bytes())),
            _ => Ok(None),
        }
    }
}

/// Checks the shapes and element types of tensors against those that a region expects.
fn check_tensors<'s>(
    name: &str,
    actual: impl ExactSizeIterator<Item = (&'s [usize], Option<DType>)>,
    edges: &[Edge],
) -> Result<()> {
    if actual.len() != edges.len() {
        return Err(Error::new(format!("number of {name}s: expected {}, found {}", edges.len(), actual.len())));
    }
    for (i, ((shape, found), edge)) in actual.zip(edges).enumerate() {
        if shape != edge.shape {
            return Err(Error::new(format!("{name} {i}: expected shape {:?}, found {shape:?}", edge.shape)));
        }
        if let Some(found) = found.filter(|found| *found != dtype(edge)) {
            return Err(Error::new(format!("{name} {i}: expected element type {}, found {found}", dtype(edge))));
        }
    }
    Ok(())
}

impl LoadedRegion {
    /// Reports the layers of a run, and the simulator counters.
    fn report(&self, counters: Option<Counters>) {
        for (index, layer) in self.image.layers.iter().enumerate() {
            let [rows, columns, inputs, outputs, threads] = layer.tile;
            let fields = json!({
                "region": self.image.symbol,
                "layer": index,
                "device": self.device_name,
                "cycles": layer.cycles,
                "utilisation": layer.utilization(),
                "gemm": layer.gemm_steps,
                "bytes": layer.bytes,
                "arguments": layer.instructions.len(),
                "tile": json!({"rows": rows, "columns": columns, "inputs": inputs, "outputs": outputs, "threads": threads}),
            });
            self.services.event(&layer.name, &fields);
        }
        self.services.counter("vta.cycles", self.image.cycles());
        let Some(counters) = counters else { return };
        for (name, value) in counters.by_name() {
            self.services.counter(&format!("vta.{name}"), value);
        }
    }
}

impl Executable for LoadedRegion {
    fn query(&self, key: &str, _: &[u8]) -> Result<Option<Vec<u8>>> {
        let is_driven = self.is_driven.to_string();
        Ok((key == "region.may_be_lost").then(|| is_driven.into_bytes()))
    }

    fn prepare(&self, inputs: &[&[usize]]) -> Result<Prepared> {
        check_tensors("input", inputs.iter().map(|shape| (*shape, None)), &self.image.inputs)?;
        Ok(Prepared::exact(self.image.outputs.iter().map(|edge| &edge.shape)))
    }

    fn run(&self, call: Call<'_, '_>) -> Result<()> {
        let Call { inputs, outputs, .. } = call;
        let image = &self.image;
        check_tensors("input", inputs.iter().map(|t| (t.shape(), Some(t.dtype()))), &image.inputs)?;
        check_tensors("output", outputs.iter().map(|t| (t.shape(), Some(t.dtype()))), &image.outputs)?;
        let (services, config) = (&self.services, &image.config);
        let mut device = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        for (edge, tensor) in image.inputs.iter().zip(inputs) {
            let pack = |destination: &mut [u8]| {
                pack::pack(services, config, &edge.layout(), tensor.as_slice::<i8>(), destination)
            };
            device.write(edge.buffer, edge.bytes(config), pack)?;
        }
        let counters = device.run(image, &mut || services.cancelled())?;
        for (edge, tensor) in image.outputs.iter().zip(outputs) {
            let layout = edge.layout();
            device.read(edge.buffer, edge.bytes(config), |source| {
                if edge.int32 {
                    pack::unpack_planes(services, config, &layout, source, tensor.as_mut_slice::<i32>())
                } else {
                    pack::unpack(services, config, &layout, source, tensor.as_mut_slice::<i8>())
                }
            })?;
        }
        drop(device);
        self.report(counters);
        Ok(())
    }
}

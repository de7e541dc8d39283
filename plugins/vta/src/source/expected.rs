//! Expected results of a region for inputs that a generated program can reproduce.

use crate::device::Device;
use crate::image::Image;
use crate::pack;
use byoc_plugin_api::{Constant, Error, Executable, Graph, HostServices, Result, Services};
use serde_json::Value;
use tracing::Level;

/// Services during compilation, when host services are unavailable: one thread, no trace.
struct InlineServices;

impl HostServices for InlineServices {
    fn num_threads(&self) -> usize {
        1
    }

    fn parallel_for(&self, count: usize, task: &(dyn Fn(usize) + Sync)) {
        (0..count).for_each(task);
    }

    fn event(&self, _: &str, _: &Value) {}

    fn counter(&self, _: &str, _: u64) {}

    fn log_level(&self) -> Option<Level> {
        None
    }

    fn log(&self, _: Level, _: &str, _: &str) {}

    fn reference(&self, _: &Graph, _: &[Constant]) -> Result<Box<dyn Executable>> {
        Err(Error::new("the host's reference is not available during compilation"))
    }
}

/// Returns single-threaded services.
pub fn inline_services() -> Services {
    Services::new(InlineServices)
}

/// Returns the elements of an input, from the linear congruential generator that the program uses.
fn input(index: usize, count: usize) -> Vec<i8> {
    let mut state = index as u32 + 1;
    let mut next_value = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8 as i8
    };
    (0..count).map(|_| next_value()).collect()
}

/// Returns the 64-bit FNV-1a hash of bytes.
fn hash(bytes: impl IntoIterator<Item = u8>) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(1_099_511_628_211);
    bytes.into_iter().fold(14_695_981_039_346_656_037, step)
}

/// Runs the region in the simulator, and returns the hash of each output.
///
/// # Errors
/// If the simulator cannot run the region.
pub fn hashes(image: &Image, constants: &[Constant]) -> Result<Vec<u64>> {
    let (services, config) = (inline_services(), &image.config);
    let mut device = Device::simulator(image)?;
    device.upload(image, constants, &services)?;
    for (index, edge) in image.inputs.iter().enumerate() {
        let tensor = input(index, edge.layout().count());
        let pack = |destination: &mut [u8]| pack::pack(&services, config, &edge.layout(), &tensor, destination);
        device.write(edge.buffer, edge.bytes(config), pack)?;
    }
    device.run(image, &mut || false)?;
    let mut hashes = Vec::with_capacity(image.outputs.len());
    for edge in &image.outputs {
        let layout = edge.layout();
        device.read(edge.buffer, edge.bytes(config), |source| {
            hashes.push(if edge.int32 {
                let mut tensor = vec![0; layout.count()];
                pack::unpack_planes(&services, config, &layout, source, &mut tensor)?;
                hash(tensor.iter().flat_map(|value| value.to_le_bytes()))
            } else {
                let mut tensor = vec![0; layout.count()];
                pack::unpack(&services, config, &layout, source, &mut tensor)?;
                hash(tensor.iter().map(|&value| value as u8))
            });
            Ok(())
        })?;
    }
    Ok(hashes)
}

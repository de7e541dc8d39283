//! Device for a region: memory for the buffers, and runs of the stream.

use crate::driver::{DeviceMemory, Driver};
use crate::image::{Image, Simulator};
use byoc_plugin_api::{Constant, Error, Result, Services};
use byoc_vta_machine::isa::Insn;
use byoc_vta_machine::sim::{self, Counters, Dram, Mode, Options};
use byoc_vta_program::relocate::relocate;
use std::sync::Arc;
use std::time::Duration;

/// Device with the buffers of a region.
pub enum Device {
    Simulator {
        /// Simulated memory.
        dram: Dram,
        /// Address and size of each buffer.
        buffers: Vec<(usize, usize)>,
        /// Instructions with absolute addresses.
        stream: Vec<Insn>,
    },
    /// Device behind a driver.
    Driver {
        driver: Arc<Driver>,
        /// Memory of each buffer.
        buffers: Vec<DeviceMemory>,
        /// Memory for the instructions.
        instructions: DeviceMemory,
    },
}

fn relocate_stream(image: &Image, addresses: &[u64]) -> Result<Vec<Insn>> {
    relocate(&image.config, &image.stream, &image.accessed_buffers, addresses)
        .map_err(|error| Error::new(image.locate_message(Some(error.instruction), &error.message)))
}

/// Clock frequency of the boards in hertz.
const CLOCK_HZ: u64 = 100_000_000;

/// Time that each run may take in addition to 100 times its predicted duration.
const GRACE: Duration = Duration::from_secs(5);

/// Number of random schedules to simulate per region.
const SCHEDULES: u64 = 100;

/// Returns the simulator options to compare: both modes, in stream order and in random orders.
fn schedules() -> impl Iterator<Item = Options> {
    let mode = |seed: u64| if seed.is_multiple_of(2) { Mode::Strict } else { Mode::Functional };
    let serial_options =
        [Mode::Functional, Mode::Strict].map(|mode| Options { mode, serial: true, ..Options::default() });
    let random_options = (1..=SCHEDULES).map(move |seed| Options { mode: mode(seed), seed, ..Options::default() });
    serial_options.into_iter().chain(random_options)
}

/// Runs the stream in the simulator.
fn simulate(
    image: &Image,
    stream: &[Insn],
    dram: &mut Dram,
    options: Options,
    is_cancelled: &mut dyn FnMut() -> bool,
) -> Result<Option<Counters>> {
    let mut counters = Counters::default();
    for run in &image.runs {
        let result = sim::run_unless(&image.config, &stream[run.clone()], dram, &options, is_cancelled);
        counters += result.map_err(|error| {
            let instruction = error.instruction.map(|index| index + run.start);
            Error::new(image.locate_message(instruction, &error.message))
        })?;
    }
    Ok(Some(counters))
}

/// Compares the buffers after two runs.
fn compare(image: &Image, buffers: &[(usize, usize)], expected: &Dram, actual: &Dram, options: Options) -> Result<()> {
    for (index, (start, size)) in buffers.iter().enumerate() {
        if expected.read(*start, *size)? != actual.read(*start, *size)? {
            let content = &image.buffers[index].content;
            let rules = if options.mode == Mode::Strict { "strict" } else { "functional" };
            let (order, seed) = (if options.serial { "program" } else { "random" }, options.seed);
            return Err(Error::new(format!(
                "{content}: buffer {index}: expected the bytes of the first run, found others with {rules} rules in \
                 {order} order, seed {seed}"
            )));
        }
    }
    Ok(())
}

impl Device {
    /// Creates a simulator with the buffers of a region.
    ///
    /// # Errors
    /// If an instruction cannot encode the address of a buffer.
    pub fn simulator(image: &Image) -> Result<Device> {
        let (addresses, end) = image.addresses();
        let stream = relocate_stream(image, &addresses)?;
        let buffers = image.buffers.iter().zip(addresses).map(|(buffer, start)| (start as usize, buffer.bytes));
        Ok(Device::Simulator { dram: Dram::new(end), buffers: buffers.collect(), stream })
    }

    /// Allocates the buffers of a region in the memory of a driver.
    ///
    /// # Errors
    /// If the driver has no memory left, or an instruction cannot encode the address of a buffer.
    pub fn driver(image: &Image, driver: &Arc<Driver>) -> Result<Device> {
        let buffers: Vec<DeviceMemory> =
            image.buffers.iter().map(|buffer| DeviceMemory::new(driver, buffer.bytes)).collect::<Result<_>>()?;
        let addresses: Vec<u64> = buffers.iter().map(DeviceMemory::address).collect();
        let mut words = Vec::with_capacity(image.stream.len() * 16);
        for (index, insn) in relocate_stream(image, &addresses)?.iter().enumerate() {
            let encoded_insn = insn
                .encode(&image.config)
                .map_err(|error| Error::new(image.locate_message(Some(index), &error.to_string())))?;
            words.extend(encoded_insn.iter().flat_map(|word| word.to_le_bytes()));
        }
        let instructions = DeviceMemory::new(driver, words.len())?;
        instructions.write(&words)?;
        Ok(Device::Driver { driver: driver.clone(), buffers, instructions })
    }

    /// Writes weights, vectors and micro-operations to their buffers.
    ///
    /// # Errors
    /// If a constant does not match the compiled region, or the driver fails.
    pub fn upload(&mut self, image: &Image, constants: &[Constant], services: &Services) -> Result<()> {
        for index in 0..image.buffers.len() {
            if let Some(content) = image.content(index, constants, services)? {
                self.write(index as u32, content.len(), |destination| {
                    destination.copy_from_slice(&content);
                    Ok(())
                })?;
            }
        }
        Ok(())
    }

    /// Fills a buffer.
    ///
    /// # Errors
    /// If `fill` or the driver fails.
    pub fn write(&mut self, buffer: u32, size: usize, fill: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<()> {
        match self {
            Device::Simulator { dram, buffers, .. } => {
                let (start, _) = buffers[buffer as usize];
                fill(dram.write(start, size)?)
            }
            Device::Driver { buffers, .. } => {
                let mut bytes = vec![0; size];
                fill(&mut bytes)?;
                buffers[buffer as usize].write(&bytes)
            }
        }
    }

    /// Reads a buffer.
    ///
    /// # Errors
    /// If `take` or the driver fails.
    pub fn read(&self, buffer: u32, size: usize, take: impl FnOnce(&[u8]) -> Result<()>) -> Result<()> {
        match self {
            Device::Simulator { dram, buffers, .. } => {
                let (start, _) = buffers[buffer as usize];
                take(dram.read(start, size)?)
            }
            Device::Driver { buffers, .. } => {
                let mut bytes = vec![0; size];
                buffers[buffer as usize].read(&mut bytes)?;
                take(&bytes)
            }
        }
    }

    /// Runs the stream. Returns the simulator counters; `None` with a driver.
    ///
    /// # Errors
    /// If the simulator rejects the stream, schedules have different results, the driver fails or misses its deadline,
    /// or the caller cancels.
    pub fn run(&mut self, image: &Image, is_cancelled: &mut dyn FnMut() -> bool) -> Result<Option<Counters>> {
        match self {
            Device::Simulator { dram, buffers, stream } => {
                let functional_options = Options::default();
                let strict_options = Options { mode: Mode::Strict, ..functional_options };
                match image.simulator {
                    Simulator::Functional => simulate(image, stream, dram, functional_options, is_cancelled),
                    Simulator::Strict => simulate(image, stream, dram, strict_options, is_cancelled),
                    Simulator::Schedules => {
                        let initial_dram = dram.clone();
                        let counters = simulate(image, stream, dram, functional_options, is_cancelled)?;
                        for options in schedules() {
                            let mut dram_of_run = initial_dram.clone();
                            simulate(image, stream, &mut dram_of_run, options, is_cancelled)?;
                            compare(image, buffers, dram, &dram_of_run, options)?;
                        }
                        Ok(counters)
                    }
                }
            }
            Device::Driver { driver, instructions, .. } => {
                for run in &image.runs {
                    let cycles: u64 = image
                        .layers
                        .iter()
                        .filter(|layer| run.contains(&layer.instructions.start))
                        .map(|l| l.cycles)
                        .sum();
                    let deadline = GRACE + Duration::from_millis(cycles.saturating_mul(100) / (CLOCK_HZ / 1000));
                    driver.run(instructions.address() + run.start as u64 * 16, run.len(), deadline)?;
                }
                Ok(None)
            }
        }
    }
}

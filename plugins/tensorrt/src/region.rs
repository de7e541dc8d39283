//! Loaded region: one engine on one device, and a context with a stream for each run at a time.

use crate::blob::Header;
use crate::cuda::{Buffer, Cuda, Stream};
use crate::library::{Context, Dims, Engine};
use crate::memory::dlpack_device;
use byoc_plugin_api::{Call, Dim, Error, Executable, Prepared, Result, TensorType};
use byoc_plugin_support::dims;
use std::collections::BTreeMap;
use std::ffi::{CString, c_void};
use std::sync::{Mutex, PoisonError};

/// Loaded region.
pub struct EngineRegion {
    header: Header,
    input_names: Vec<CString>,
    output_names: Vec<CString>,
    /// Contexts that no run uses. They are dropped before the engine.
    idle: Mutex<Vec<Slot>>,
    engine: Engine,
    cuda: &'static Cuda,
    device: i32,
}

/// Context of runs with its stream, and memory of the device for operands that are in the host's.
struct Slot {
    context: Context,
    stream: Stream,
    inputs: Vec<Option<Buffer>>,
    outputs: Vec<Option<Buffer>>,
}

fn c_names(names: &[String]) -> Result<Vec<CString>> {
    let name = |name: &String| CString::new(name.as_str()).map_err(|_| Error::new("expected a name without NUL"));
    names.iter().map(name).collect()
}

impl EngineRegion {
    /// Creates a region on the device of this thread, with one context, so that a lack of memory shows here.
    ///
    /// # Errors
    /// If the device fails.
    pub fn new(header: Header, engine: Engine, cuda: &'static Cuda, device: i32) -> Result<EngineRegion> {
        let (input_names, output_names) = (c_names(&header.inputs)?, c_names(&header.outputs)?);
        let region = EngineRegion { header, input_names, output_names, idle: Mutex::default(), engine, cuda, device };
        let slot = region.slot()?;
        region.put(slot);
        Ok(region)
    }

    /// Returns a context that no run uses, or a new one.
    fn slot(&self) -> Result<Slot> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(slot) = idle {
            return Ok(slot);
        }
        let none = |count: usize| std::iter::repeat_with(|| None).take(count).collect();
        Ok(Slot {
            context: self.engine.context()?,
            stream: Stream::new(self.cuda)?,
            inputs: none(self.input_names.len()),
            outputs: none(self.output_names.len()),
        })
    }

    fn put(&self, slot: Slot) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(slot);
    }

    /// Returns the sizes of the symbols that input dimensions give.
    ///
    /// # Errors
    /// If a dimension differs from the region's, or is outside of its range.
    fn symbols(&self, inputs: &[&[usize]]) -> Result<BTreeMap<String, usize>> {
        let mut symbols = BTreeMap::new();
        for ((shape, ty), name) in inputs.iter().zip(&self.header.signature.inputs).zip(&self.header.inputs) {
            if shape.len() != ty.rank() {
                return Err(Error::new(format!("input {name}: expected {} dimensions, found {shape:?}", ty.rank())));
            }
            for (dim, &size) in ty.dims.iter().zip(*shape) {
                let mismatch =
                    || Error::new(format!("input {name}: expected dimension {dim}, found {size} in {shape:?}"));
                match dim {
                    Dim::Known(known) if *known == size => {}
                    Dim::Known(_) => return Err(mismatch()),
                    Dim::Unknown(_) => {
                        let Some((symbol, value)) = dims::solve(dim, size) else { continue };
                        let value = value.ok_or_else(mismatch)?;
                        let known = *symbols.entry(symbol.to_owned()).or_insert(value);
                        if known != value {
                            return Err(Error::new(format!(
                                "{symbol}: expected {known}, found {value} in input {name}"
                            )));
                        }
                    }
                }
            }
        }
        for (symbol, &size) in &symbols {
            if let Some([min, _, max]) = self.header.profile.get(symbol)
                && !(min..=max).contains(&&size)
            {
                return Err(Error::new(format!(
                    "{symbol}: expected {min} to {max}, the profile's range, found {size}"
                ))
                .hint("compile the model with a wider range: --backend-option tensorrt.profile=NAME:MIN:OPT:MAX"));
            }
        }
        Ok(symbols)
    }

    fn output_shape(&self, ty: &TensorType, symbols: &BTreeMap<String, usize>) -> Result<Vec<usize>> {
        let size = |dim: &Dim| {
            dims::size(dim, &mut |name| symbols.get(name).copied())
                .ok_or_else(|| Error::new(format!("expected a dimension that follows from the inputs, found {dim}")))
        };
        ty.dims.iter().map(size).collect()
    }

    /// Enqueues a run and waits for it.
    fn run_in(&self, slot: &mut Slot, call: &mut Call<'_, '_>) -> Result<()> {
        let own_device = dlpack_device(self.device);
        for (i, input) in call.inputs.iter().enumerate() {
            let (name, raw) = (&self.input_names[i], input.raw());
            let dims = Dims::new(input.shape()).ok_or_else(|| Error::new("expected at most 8 dimensions"))?;
            if self.header.signature.inputs[i].shape().is_none() {
                slot.context.set_input_shape(name, &dims)?;
            }
            let address = if raw.device == own_device {
                device_address(raw)
            } else {
                let bytes = input.bytes();
                let address = staging(self.cuda, &mut slot.inputs[i], bytes.len())?;
                // SAFETY: the buffer has room for the bytes, and the run waits for the stream before it returns.
                unsafe { slot.stream.copy_in(address, bytes)? };
                address
            };
            // SAFETY: the memory has the size of the tensor, and lives until the run has waited for the stream.
            unsafe { slot.context.set_address(name, address)? };
        }
        for (i, output) in call.outputs.iter_mut().enumerate() {
            let raw = *output.raw();
            let address = if raw.device == own_device {
                device_address(&raw)
            } else {
                staging(self.cuda, &mut slot.outputs[i], output.bytes_mut().len())?
            };
            // SAFETY: as for the inputs.
            unsafe { slot.context.set_address(&self.output_names[i], address)? };
        }
        // SAFETY: all addresses are set, and the stream is live.
        unsafe { slot.context.enqueue(slot.stream.raw())? };
        for (i, output) in call.outputs.iter_mut().enumerate() {
            if output.raw().device != own_device
                && let Some(buffer) = &slot.outputs[i]
            {
                // SAFETY: the buffer has the bytes of the output, and the stream is waited for below.
                unsafe { slot.stream.copy_out(buffer.address(), output.bytes_mut())? };
            }
        }
        Ok(())
    }
}

/// Returns the address of a tensor in memory of the device.
fn device_address(raw: &byoc_plugin_api::Tensor) -> *mut c_void {
    raw.data.wrapping_add(raw.byte_offset as usize).cast()
}

/// Returns memory of the device of at least `bytes` bytes, which the slot keeps for later runs.
fn staging(cuda: &'static Cuda, buffer: &mut Option<Buffer>, bytes: usize) -> Result<*mut c_void> {
    if let Some(buffer) = buffer.as_ref().filter(|buffer| buffer.bytes >= bytes) {
        return Ok(buffer.address());
    }
    let larger = Buffer::new(cuda, bytes)?;
    Ok(buffer.insert(larger).address())
}

impl Executable for EngineRegion {
    fn prepare(&self, inputs: &[&[usize]]) -> Result<Prepared> {
        let symbols = self.symbols(inputs)?;
        let shapes = self.header.signature.outputs.iter().map(|ty| self.output_shape(ty, &symbols));
        Ok(Prepared::exact(shapes.collect::<Result<Vec<Vec<usize>>>>()?))
    }

    fn run(&self, mut call: Call<'_, '_>) -> Result<()> {
        self.cuda.select(self.device)?;
        let mut slot = self.slot()?;
        let enqueued = self.run_in(&mut slot, &mut call);
        // Copies to and from the caller's memory may be under way after an error too.
        let waited = slot.stream.synchronize();
        enqueued.and(waited)?;
        self.put(slot);
        Ok(())
    }
}

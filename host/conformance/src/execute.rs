//! Runs a region in guarded memory, and checks its memory accesses.

use super::fault::{Fault, Kind};
use super::reference::{BoundedTensor, Mismatch, compare};
use super::test_region::TestRegion;
use byoc::runtime::plugin::guard::{GuardedBuffer, first_damage};
use byoc::runtime::plugin::to_graph::dtype_to_api;
use byoc_ir::tensor::{OutOfMemory, Tensor, byte_count};
use byoc_plugin_api::{Call, Executable, Prepared, TensorMut, TensorRef};

/// Fill bytes for the buffers of a run.
#[derive(Clone, Copy, Debug)]
pub struct FillPattern {
    /// Initial bytes of outputs and workspace.
    pub initial: u8,
    /// Guard bytes around every buffer.
    pub guard: u8,
}

impl FillPattern {
    /// Bytes that are NaN in every float type.
    pub const NAN: FillPattern = FillPattern { initial: 0xff, guard: 0xff };
}

/// Runs a region once in guarded memory.
pub fn run(
    test_region: &TestRegion,
    executable: &dyn Executable,
    plan: &Prepared,
    fill: FillPattern,
    inputs: &[Tensor],
) -> Result<Vec<Tensor>, Fault> {
    let memory = copy_inputs(inputs, fill)?;
    let buffer_indices: Vec<usize> = (0..inputs.len()).collect();
    run_on(test_region, executable, plan, fill, inputs, &memory, &buffer_indices)
}

/// Copies inputs into guarded memory.
pub fn copy_inputs(inputs: &[Tensor], fill: FillPattern) -> Result<Vec<GuardedBuffer>, Fault> {
    inputs.iter().map(|t| GuardedBuffer::copy_of(t.bytes(), fill.guard).map_err(|error| no_memory(&error))).collect()
}

fn no_memory(error: &OutOfMemory) -> Fault {
    Fault::new(Kind::Memory, "run", error.to_string())
}

/// Runs a region once with input `i` in `memory[buffer_indices[i]]`; inputs may share memory.
pub fn run_on(
    test_region: &TestRegion,
    executable: &dyn Executable,
    plan: &Prepared,
    fill: FillPattern,
    inputs: &[Tensor],
    memory: &[GuardedBuffer],
    buffer_indices: &[usize],
) -> Result<Vec<Tensor>, Fault> {
    let input_copies: Vec<Vec<u8>> = memory.iter().map(|m| m.bytes().to_vec()).collect();
    let constants: Vec<Tensor> = test_region.tensors.iter().map(|t| (**t).clone()).collect();
    let digests: Vec<blake3::Hash> = constants.iter().map(|t| blake3::hash(t.bytes())).collect();
    let views: Vec<TensorRef<'_>> = inputs
        .iter()
        .zip(buffer_indices)
        .map(|(tensor, &buffer)| TensorRef::new(dtype_to_api(tensor.dtype()), tensor.shape(), memory[buffer].bytes()))
        .collect();
    let mut shapes: Vec<Vec<usize>> = plan.outputs.iter().map(|o| o.dims.to_vec()).collect();
    let dtypes: Vec<_> = test_region.expected.iter().map(|result| result.value.dtype()).collect();
    let guarded_buffer =
        |bytes: usize| GuardedBuffer::new(bytes, fill.initial, fill.guard).map_err(|error| no_memory(&error));
    let bytes = shapes.iter().zip(&dtypes).map(|(shape, dtype)| byte_count(*dtype, shape));
    let mut outputs: Vec<GuardedBuffer> = bytes
        .map(|bytes| bytes.ok_or_else(|| no_memory(&OutOfMemory::OVERFLOW)).and_then(guarded_buffer))
        .collect::<Result<_, Fault>>()?;
    let mut workspace = guarded_buffer(plan.workspace)?;
    let mut targets: Vec<TensorMut<'_>> = outputs
        .iter_mut()
        .zip(&mut shapes)
        .zip(&dtypes)
        .map(|((memory, shape), dtype)| TensorMut::new(dtype_to_api(*dtype), shape, memory.bytes_mut()))
        .collect();
    let call = Call { inputs: &views, outputs: &mut targets, workspace: workspace.bytes_mut(), plan: plan.plan };
    executable.run(call).map_err(|error| Fault::of_error(Kind::RunFailed, "run", &error))?;
    if let Some(damage) = first_damage(&outputs, &workspace, memory) {
        return Err(Fault::new(Kind::WritesOutside, "run", damage));
    }
    if let Some(i) = memory.iter().zip(&input_copies).position(|(buffer, original)| buffer.bytes() != original) {
        return Err(Fault::new(Kind::WritesInput, "run", format!("the run changed input {i}")));
    }
    if let Some(i) = constants.iter().zip(&digests).position(|(t, digest)| blake3::hash(t.bytes()) != *digest) {
        return Err(Fault::new(Kind::WritesInput, "run", format!("the run changed constant {i}")));
    }
    let mut results = Vec::with_capacity(outputs.len());
    for (i, ((memory, shape), result)) in outputs.iter().zip(&shapes).zip(&test_region.expected).enumerate() {
        let value = &result.value;
        if shape[..] != *value.shape() {
            let message = format!("output {i}: expected shape {:?}, found {shape:?}", value.shape());
            return Err(Fault::new(Kind::WrongShape, "run", message));
        }
        let bytes = &memory.bytes()[..value.bytes().len()];
        results.extend(Tensor::from_bytes(value.dtype(), shape, bytes));
    }
    Ok(results)
}

/// Compares all outputs with the reference; returns the largest fraction of an error bound that any element used.
///
/// # Errors
/// If an output is outside its bounds. The error holds the index of the first such output and its worst element.
pub fn judge_outputs(outputs: &[Tensor], expected: &[BoundedTensor]) -> Result<f64, (usize, Mismatch)> {
    let mut share = 0.0f64;
    for (i, (output, result)) in outputs.iter().zip(expected).enumerate() {
        share = share.max(compare(output, result).map_err(|mismatch| (i, mismatch))?);
    }
    Ok(share)
}

/// Checks all outputs against the reference. The message of a fault names the output, and identifies the run by
/// `description`.
///
/// # Errors
/// If an output is outside its bounds. The fault has the given kind and entry.
pub fn check_outputs(
    outputs: &[Tensor],
    expected: &[BoundedTensor],
    kind: Kind,
    entry: &str,
    description: &str,
) -> Result<(), Fault> {
    let outcome = judge_outputs(outputs, expected).map(|_| ());
    outcome.map_err(|(output, mismatch)| Fault::new(kind, entry, format!("{description}: output {output}: {mismatch}")))
}
